/* ahead: the ints that a run draws from Python's generators before it begins (rec/chance.c), and the generators' former
 * states, for a run that is not to happen after all: a guard on an int fails, or the call runs again eagerly. */
#include "eval_int.h"

typedef struct CcAhead {
    CC_VEC(struct CcAheadOf {
        PyObject *generator; /* strong */
        CcTwister before;
    }) of;
} CcAhead;

static bool saved(const CcAhead *a, const PyObject *generator) {
    for (int i = 0; i < a->of.n; i++)
        if (a->of.at[i].generator == generator) return true;
    return false;
}

void cc_ahead_free(CcCallState *x) {
    CcAhead *a = x->ahead;
    x->ahead = NULL;
    if (a == NULL) return;
    while (a->of.n > 0) Py_DECREF(a->of.at[--a->of.n].generator);
    cc_vec_free(&a->of);
    free(a);
}

void cc_ahead_undo(CcCallState *x) {
    for (int i = 0; x->ahead != NULL && i < x->ahead->of.n; i++)
        cc_twister_restore(x->ahead->of.at[i].generator, &x->ahead->of.at[i].before);
    cc_ahead_free(x);
}

int cc_ahead_draw(const CcTrace *t, CcCallState *x) {
    if (t->ahead.n > 0) x->ahead = cc_mem_get(sizeof *x->ahead);
    for (int i = 0; i < t->ahead.n; i++) {
        const int id = t->ahead.at[i];
        const CcGuard *g = &t->guards.g.at[id];
        PyObject *generator = x->gv[g->parent];
        if (!saved(x->ahead, generator)) {
            cc_vec_push(&x->ahead->of, (struct CcAheadOf){.generator = Py_NewRef(generator)});
            cc_twister_save(generator, &cc_vec_last(&x->ahead->of).before);
        }
        x->gv[id] = cc_twister_below(generator, g->key);
        if (x->gv[id] != NULL) continue;
        cc_raised_clear();
        cc_ahead_undo(x);
        return id;
    }
    return -1;
}
