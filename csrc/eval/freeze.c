/* Stamps of frozen inputs: what a plan keeps of a parameter's memory (packed weights) is good for as long as the stamp
 * is the same. It changes with the tensor object and with its `_version`; an address alone says nothing, since memory
 * is used again. Holds no tensor.
 *
 * Eager's autocast casts a parameter once and keeps the cast until torch.clear_autocast_cache(), which the end of
 * the outermost block calls. Where nothing was cleared since the last run, that block is still open, and what was
 * made of the parameter may be kept; in any other run it has no stamp, so nothing outlives a block that each call
 * enters anew. */
#include "eval_int.h"

typedef struct CcStamp {
    int value;
    bool cast;      /* CC_FROZEN_CAST */
    PyObject *weak; /* of the tensor; NULL: none was met yet */
    uint64_t version, stamp;
} CcStamp;

/* Stamps of all plans: each tensor has one for each `_version`, so that what plans keep of it may be one copy. */
typedef struct Known {
    PyObject *weak;
    uint64_t version, stamp;
} Known;
static CC_VEC(Known) known;
static CcMap known_at; /* tensor, by address -> where in `known` */
static uint64_t last_stamp = CC_VERSION_UNIQUE;
static int enough = 1024; /* then the dead are looked for */
static uint64_t undone;   /* how often a run was undone */

struct CcFreeze {
    CC_VEC(CcStamp) of;
    uint64_t clears; /* of autocast's cache, before the last run */
    uint64_t undone;
    bool in_block; /* none since then */
};

CcFreeze *cc_freeze_new(const CcGraph *g) {
    CcFreeze *f = NULL;
    for (int v = 0; v < g->val.n; v++) {
        if (!g->val.at[v].frozen) continue;
        if (f == NULL && (f = calloc(1, sizeof *f)) == NULL) return NULL;
        cc_vec_push(&f->of, (CcStamp){.value = v, .cast = g->val.at[v].frozen == CC_FROZEN_CAST});
    }
    return f;
}

void cc_freeze_free(CcFreeze *f) {
    if (f == NULL) return;
    for (int i = 0; i < f->of.n; i++) Py_XDECREF(f->of.at[i].weak);
    cc_vec_free(&f->of);
    free(f);
}

static CcStamp *find(CcFreeze *f, int value) /* they are in order */
{
    int low = 0, high = f->of.n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (f->of.at[middle].value < value) low = middle + 1;
        else high = middle;
    }
    return low < f->of.n && f->of.at[low].value == value ? &f->of.at[low] : NULL;
}

void cc_freeze_undone(void) {
    undone++;
    for (int i = 0; i < known.n; i++) known.at[i].version = CC_TENS_NO_VERSION;
}

void cc_freeze_begin(CcFreeze *f) {
    if (f == NULL) return;
    for (int i = 0; f->undone != undone && i < f->of.n; i++) f->of.at[i].version = CC_TENS_NO_VERSION;
    f->undone = undone;
    const uint64_t clears = cc_look_clears();
    f->in_block = clears != 0 && f->clears == clears;
    f->clears = clears;
}

static void forget_dead(void) {
    int n = 0;
    cc_map_free(&known_at);
    for (int i = 0; i < known.n; i++) {
        PyObject *tensor = cc_weak_target(known.at[i].weak);
        if (tensor == NULL) {
            Py_DECREF(known.at[i].weak);
            continue;
        }
        cc_map_put(&known_at, tensor, n);
        known.at[n++] = known.at[i];
    }
    known.n = n;
    enough = CC_MAX(enough, 2 * n);
}

/* weak: of the tensor */
static uint64_t stamp_of(PyObject *tensor, PyObject *weak, uint64_t version) {
    const int64_t *at = cc_map_find(&known_at, tensor);
    if (at == NULL) {
        if (known.n >= enough) forget_dead();
        cc_map_put(&known_at, tensor, known.n);
        cc_vec_push(&known, (Known){.weak = Py_NewRef(weak), .version = version, .stamp = ++last_stamp});
        return last_stamp;
    }
    Known *k = &known.at[*at];
    if (cc_weak_target(k->weak) == tensor && k->version == version) return k->stamp;
    Py_XSETREF(k->weak, Py_NewRef(weak));
    k->version = version;
    return k->stamp = ++last_stamp;
}

uint64_t cc_freeze_stamp(CcFreeze *f, int value, PyObject *tensor) {
    CcStamp *s = f != NULL && tensor != NULL ? find(f, value) : NULL;
    const uint64_t version = s != NULL ? cc_tens_version(tensor) : CC_TENS_NO_VERSION;
    if (s != NULL && s->cast && !f->in_block) s->version = CC_TENS_NO_VERSION; /* its stamp ends with the block */
    if (version == CC_TENS_NO_VERSION || (s->cast && !f->in_block)) return CC_NO_VERSION;
    const bool same = s->weak != NULL && cc_weak_target(s->weak) == tensor;
    if (same && s->version == version) return s->stamp;
    if (!same) {
        PyObject *weak = PyWeakref_NewRef(tensor, NULL);
        if (weak == NULL) {
            PyErr_Clear();
            return CC_NO_VERSION;
        }
        Py_XSETREF(s->weak, weak);
    }
    s->version = version;
    return s->stamp = s->cast ? ++last_stamp : stamp_of(tensor, s->weak, version);
}
