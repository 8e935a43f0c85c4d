/* Stamps of frozen inputs: a plan's copy of a parameter's data (packed weights) is valid while the stamp stays the
 * same. The stamp is a fingerprint of the data (dev/content.c), computed in each call: it notices every write, whoever
 * made it, and needs neither a reference to the tensor nor a watcher.
 *
 * Eager's autocast casts a parameter once and keeps the cast until torch.clear_autocast_cache(), which the end of the
 * outermost block calls, even if the parameter is written to meanwhile. If the cache was not cleared since the last
 * run, that block is still open, and data made from the parameter stays valid for this tensor, which a weak reference
 * identifies. In any other run the parameter has no stamp, so nothing outlives a block that each call enters anew.
 *
 * Values whose copies do not pay (copies.c) are marked in the graph (CcVal.changes). Their plan asks for no stamp, so
 * changes are told by torch's counter of writes: enough to notice that they have ended. */
#include "eval_int.h"

/* Stamps that are no fingerprints. */
enum { DEVICE_CPU = 1 }; /* CcType.device */
#define CAST_STAMPS (UINT64_C(1) << 63)
enum { QUIET = 256 }; /* runs without a change, after which a plan with all copies is not timed */

typedef struct CcStamp {
    int value;
    bool cast;      /* CC_FROZEN_CAST */
    bool kept;      /* CC_FROZEN_KEPT */
    PyObject *weak; /* weak reference to a cast tensor; NULL: none seen in this block */
    uint64_t stamp;
    bool plain;    /* CcVal.changes */
    bool moved;    /* in this run */
    uint64_t seen; /* what told of changes in the last run: the stamp, or torch's count of writes; 0: nothing yet */
    double moves;  /* runs of late in which it had changed */
} CcStamp;

struct CcFreeze {
    CC_VEC(CcStamp) of;
    uint64_t clears; /* clears of autocast's cache before the last run */
    bool in_block;   /* no clears since then */
    bool adapts;     /* copies that do not pay are given up */
    CcCopies copies;
    uint64_t start_ns; /* of the run; 0: not timed */
    int quiet;         /* runs since the last change */
    CcFreeze *next;    /* list of those with weak references */
    bool holds;
};
static CcFreeze *holding;
static uint64_t last_stamp = CAST_STAMPS;

CcFreeze *cc_freeze_new(const CcGraph *g, bool adapts) {
    CcFreeze *f = NULL;
    for (int v = 0; v < g->val.n; v++) {
        if (!g->val.at[v].frozen) continue;
        if (f == NULL && (f = calloc(1, sizeof *f)) == NULL) return NULL;
        const CcVal *value = &g->val.at[v];
        const bool cast = value->frozen == CC_FROZEN_CAST;
        cc_vec_push(&f->of, (CcStamp){.value = v,
                                      .cast = cast,
                                      .kept = cast || value->frozen == CC_FROZEN_KEPT,
                                      .plain = value->changes});
        f->copies.plain |= value->changes;
        f->adapts = adapts;
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

/* A block has ended: drops the weak references, because torch.utils.swap_tensors refuses tensors that have any. */
static void drop_weakrefs(void) {
    while (holding != NULL) let_go(holding);
}

void cc_freeze_free(CcFreeze *f) {
    if (f == NULL) return;
    let_go(f);
    cc_vec_free(&f->of);
    free(f);
}

static CcStamp *find(CcFreeze *f, int value) /* sorted by value */
{
    int low = 0, high = f->of.n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (f->of.at[middle].value < value) low = middle + 1;
        else high = middle;
    }
    return low < f->of.n && f->of.at[low].value == value ? &f->of.at[low] : NULL;
}

/* ------------------------------------------------------------------ which copies pay */

void cc_freeze_fix(CcFreeze *f) {
    if (f != NULL) f->adapts = false;
}

static void note_seen(CcStamp *s, uint64_t seen) {
    s->moved |= s->seen != 0 && seen != s->seen;
    s->seen = seen;
}

/* Torch's count of writes misses some; a value that seems to be at rest gets copies again, and its stamps tell. */
static uint64_t count_writes(PyObject *tensor) { return cc_tens_version(tensor) << 48 ^ (uint64_t)(uintptr_t)tensor; }

static void start_clock(CcFreeze *f, PyObject *const *value) {
    f->start_ns = f->adapts && (f->copies.plain || f->quiet < QUIET) ? cc_log_now_ns() : 0;
    for (int i = 0; f->copies.plain && i < f->of.n; i++) {
        CcStamp *s = &f->of.at[i];
        if (s->plain && value[s->value] != NULL) note_seen(s, count_writes(value[s->value]));
    }
}

/* Marks, in the graph, the values without copies: those that change in at least half of the runs in which any does. True:
 * a mark has changed. */
static bool mark(CcFreeze *f, CcGraph *g) {
    bool any = false;
    for (int i = 0; i < f->of.n; i++) {
        CcStamp *s = &f->of.at[i];
        if (!f->copies.plain) s->moves = 0; /* as the mix of copies.c */
        const bool often = s->moves > 0 && 2 * s->moves >= f->copies.changed;
        const bool plain = !s->cast && f->copies.plain && (s->plain || often);
        if (plain == s->plain) continue;
        g->val.at[s->value].changes = s->plain = plain;
        s->seen = 0;
        any = true;
    }
    return any;
}

bool cc_freeze_end(CcFreeze *f, CcGraph *g) {
    if (f == NULL || !f->adapts) return false;
    bool changed = false;
    for (int i = 0; i < f->of.n; i++) changed |= f->of.at[i].moved;
    f->quiet = changed ? 0 : CC_MIN(f->quiet + 1, QUIET);
    if (f->start_ns == 0 && !changed) return false;
    for (int i = 0; i < f->of.n; i++) {
        cc_copies_count(&f->of.at[i].moves, f->of.at[i].moved);
        f->of.at[i].moved = false;
    }
    if (f->start_ns == 0) return false; /* a change after long rest: runs are timed from the next one on */
    const bool turns = cc_copies_ran(&f->copies, changed, cc_log_now_ns() - f->start_ns);
    return (turns || f->copies.plain) && mark(f, g);
}

void cc_freeze_tell(const CcFreeze *f, int segment) { cc_copies_tell(&f->copies, segment); }

bool cc_freeze_begin(CcFreeze *f, PyObject *const *value) {
    bool fits = true;
    if (f == NULL) return true;
    start_clock(f, value);
    const uint64_t clears = cc_look_count_clears(drop_weakrefs);
    f->in_block = clears != 0 && f->clears == clears;
    f->clears = clears;
    for (int i = 0; clears != 0 && i < f->of.n; i++) {
        PyObject *tensor = f->of.at[i].kept ? value[f->of.at[i].value] : NULL;
        if (tensor != NULL && cc_cast_note(tensor, true) == CC_CAST_CHANGED) fits = false;
    }
    return fits;
}

static uint64_t stamp_of_cast(CcFreeze *f, CcStamp *s, PyObject *tensor) {
    if (!f->in_block) return CC_NO_VERSION;
    if (s->weak != NULL && cc_weak_target(s->weak) == tensor) return s->stamp;
    PyObject *weak = PyWeakref_NewRef(tensor, NULL);
    if (weak == NULL) {
        cc_raised_clear();
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
    int64_t last = 0; /* last element */
    for (int d = 0; d < t.type.ndim; d++) {
        if (t.type.size[d] < 1 || t.type.stride[d] < 0) return CC_NO_VERSION;
        last += (t.type.size[d] - 1) * t.type.stride[d];
    }
    const uint64_t stamp = cc_run_content(t.data, (last + 1) * cc_dtype_info((CcDtype)t.type.dtype)->size);
    note_seen(s, stamp);
    return stamp;
}
