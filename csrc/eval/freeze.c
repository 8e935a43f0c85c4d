/* Stamps of frozen inputs: what a plan keeps of a parameter's memory (packed weights) is good for as long as the stamp
 * is the same. It is the fingerprint of what stands there (dev/content.c), looked at in each call: no write can pass it
 * by, whoever did it, and no tensor has to be held or watched.
 *
 * Eager's autocast casts a parameter once and keeps the cast until torch.clear_autocast_cache(), which the end of
 * the outermost block calls, whatever becomes of the parameter until then. Where nothing was cleared since the last run,
 * that block is still open, and what was made of the parameter is kept for this tensor, which a weak reference tells
 * until then; in any other run it has no stamp, so nothing outlives a block that each call enters anew. */
#include "eval_int.h"

/* Apart from fingerprints. */
enum { DEVICE_CPU = 1 }; /* CcType.device */
#define CAST_STAMPS (UINT64_C(1) << 63)

typedef struct CcStamp {
    int value;
    bool cast;      /* CC_FROZEN_CAST */
    bool kept;      /* or CC_FROZEN_KEPT */
    PyObject *weak; /* of a cast tensor; NULL: none was met in this block */
    uint64_t stamp;
} CcStamp;

struct CcFreeze {
    CC_VEC(CcStamp) of;
    uint64_t clears; /* of autocast's cache, before the last run */
    bool in_block;   /* none since then */
    CcFreeze *next;  /* of those that hold weak references */
    bool holds;
};
static CcFreeze *holding;
static uint64_t last_stamp = CAST_STAMPS;

CcFreeze *cc_freeze_new(const CcGraph *g) {
    CcFreeze *f = NULL;
    for (int v = 0; v < g->val.n; v++) {
        if (!g->val.at[v].frozen) continue;
        if (f == NULL && (f = calloc(1, sizeof *f)) == NULL) return NULL;
        const bool cast = g->val.at[v].frozen == CC_FROZEN_CAST;
        cc_vec_push(&f->of, (CcStamp){.value = v, .cast = cast, .kept = cast || g->val.at[v].frozen == CC_FROZEN_KEPT});
    }
    return f;
}

static void let_go(CcFreeze *f) {
    CcFreeze **at = &holding;
    while (f->holds && *at != f) at = &(*at)->next;
    if (f->holds) *at = f->next;
    f->holds = false;
    for (int i = 0; i < f->of.n; i++) Py_CLEAR(f->of.at[i].weak);
}

/* A block has ended. A tensor that has weak references can't be swapped with another (torch.utils.swap_tensors). */
static void let_all_go(void) {
    while (holding != NULL) let_go(holding);
}

void cc_freeze_free(CcFreeze *f) {
    if (f == NULL) return;
    let_go(f);
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

bool cc_freeze_begin(CcFreeze *f, PyObject *const *value) {
    bool fits = true;
    if (f == NULL) return true;
    const uint64_t clears = cc_look_clears(let_all_go);
    f->in_block = clears != 0 && f->clears == clears;
    f->clears = clears;
    for (int i = 0; clears != 0 && i < f->of.n; i++) {
        PyObject *tensor = f->of.at[i].kept ? value[f->of.at[i].value] : NULL;
        if (tensor != NULL && cc_cast_see(tensor, true) == CC_CAST_CHANGED) fits = false;
    }
    return fits;
}

static uint64_t stamp_of_cast(CcFreeze *f, CcStamp *s, PyObject *tensor) {
    if (!f->in_block) return CC_NO_VERSION;
    if (s->weak != NULL && cc_weak_target(s->weak) == tensor) return s->stamp;
    PyObject *weak = PyWeakref_NewRef(tensor, NULL);
    if (weak == NULL) {
        PyErr_Clear();
        return CC_NO_VERSION;
    }
    Py_XSETREF(s->weak, weak);
    if (!f->holds) {
        f->next = holding;
        holding = f;
        f->holds = true;
    }
    return s->stamp = ++last_stamp;
}

uint64_t cc_freeze_stamp(CcFreeze *f, int value, PyObject *tensor) {
    CcStamp *s = f != NULL && tensor != NULL ? find(f, value) : NULL;
    if (s == NULL) return CC_NO_VERSION;
    if (s->cast) return stamp_of_cast(f, s, tensor);
    CcTensor t;
    cc_tens_read_as(tensor, false, true, &t);
    if (t.data == NULL || t.type.device != DEVICE_CPU) return CC_NO_VERSION;
    int64_t last = 0; /* element */
    for (int d = 0; d < t.type.ndim; d++) {
        if (t.type.size[d] < 1 || t.type.stride[d] < 0) return CC_NO_VERSION;
        last += (t.type.size[d] - 1) * t.type.stride[d];
    }
    return cc_run_content(t.data, (last + 1) * cc_dtype_info((CcDtype)t.type.dtype)->size);
}
