/* Variables that are no longer read. A rebuilt frame has them only where that costs next to nothing, for code that
 * inspects frames: a callee (sys._getframe), the break itself, a traceback.
 *
 *   a frame that existed when the trace began, and has not stored to the variable   keeps it
 *   numbers, text, objects from outside, small objects made of these                rebuilt
 *   tensors, and objects that hold them                                             unset, unless Python code of the
 *                                                                                   chain inspects frames: they would
 *                                                                                   cost graph outputs and memory
 *
 * Objects with finalisers also stay in their slots, or are handled as if they were live (finalizers.c). */
#include "rec_int.h"

void cc_idle_begin(CcRec *rec) {
    rec->idle.n = 0;
    for (int level = 0; level < rec->frame.n; level++) {
        CcAct *act = rec->frame.at[level].act;
        cc_act_clear_stored(act);
        for (int slot = 0; slot < act->code->n_locals; slot++)
            if (!cc_finalizers_slot(act, slot)) cc_vec_push(&rec->idle, (struct CcIdle){level, slot});
    }
}

static bool idle_at_begin(const CcRec *rec, int level, int slot) {
    for (int i = 0; i < rec->idle.n; i++)
        if (rec->idle.at[i].level == level && rec->idle.at[i].slot == slot) return true;
    return false;
}

static bool parameter(const CcAct *act, int slot) {
    const PyCodeObject *co = act->co;
    return slot <
           co->co_argcount + co->co_kwonlyargcount + !!(co->co_flags & CO_VARARGS) + !!(co->co_flags & CO_VARKEYWORDS);
}

bool cc_idle_stays(CcRec *rec, const CcRecFrame *f, int slot) {
    const CcAct *act = f->act;
    if (!f->kept || cc_act_stored(act, slot)) return false;
    if (idle_at_begin(rec, (int)(f - rec->frame.at), slot)) return true;
    PyObject *v = cc_act_get(act, slot);
    if (v == NULL || (cc_tens_is(v) && !parameter(act, slot))) return false;
    const CcProv *p = cc_value_find(rec, v);
    return p != NULL ? p->origin == CC_O_SOURCE || p->origin == CC_O_SYMBOL : cc_value_const(v) || cc_value_ident(v);
}

bool cc_idle_looked(const CcRec *rec) {
    for (int i = 0; i < rec->frame.n; i++)
        if (cc_code_inspects_frames(rec->frame.at[i].act->co)) return true;
    return false;
}

int cc_idle_recipe(CcRec *rec, const CcAct *act, int slot, bool looked, CcMap *memo) {
    enum { FEW = 16 };
    CcRecipes *rs = &rec->trace->recipes;
    PyObject *v = cc_act_get(act, slot);
    const int begin = rs->r.n, kids = rs->kid.n;
    CcMap scratch = {0};
    const int made = cc_recipe_of(rec, v, &scratch);
    cc_map_free(&scratch);
    bool ok = made >= 0 && (looked || rs->r.n - begin <= FEW);
    const bool number = PyFloat_CheckExact(v) || PyLong_CheckExact(v);
    for (int i = begin; i < rs->r.n; i++) {
        CcRecipe *r = &rs->r.at[i];
        const bool tensor = r->make == CC_MAKE_SOURCE && r->aux && !(i == made && parameter(act, slot));
        const bool computed = (r->make == CC_MAKE_VALUE && !number) || r->make == CC_MAKE_EFFECT;
        ok = ok && (looked || !(tensor || computed));
        Py_CLEAR(r->object);
    }
    rs->r.n = begin;
    rs->kid.n = kids;
    return ok ? cc_recipe_of(rec, v, memo) : -1;
}
