/* Reports: a root's state as plain Python data. */
#include "eval_int.h"

static PyObject *stack_list(const CcBreakInfo *b) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < b->n_stack; i++)
        cc_listing_add(&list, Py_BuildValue("(OiOz)", b->stack[i].file, b->stack[i].line, b->stack[i].function,
                                            b->stack[i].library));
    return list;
}

static PyObject *rewrite_list(const CcBreakInfo *b) {
    PyObject *list = PyList_New(0);
    const char *before, *after;
    for (int row = 0; list != NULL && cc_break_rewrite(b, &row, &before, &after);)
        cc_listing_add(&list, Py_BuildValue("(ss)", before, after));
    return list;
}

static PyObject *break_dict(const CcBreakInfo *b) {
    const struct CcPlace *at = cc_break_place(b);
    return Py_BuildValue("{s:s,s:s,s:s,s:O,s:i,s:K,s:N,s:N}", "reason", cc_reason_name(b->reason), "text",
                         b->text != NULL ? b->text : "", "advice", cc_reason_advice(b->reason), "file",
                         at != NULL ? at->file : Py_None, "line", at != NULL ? at->line : 0, "site",
                         (unsigned long long)b->site, "user_stack", stack_list(b), "rewrites", rewrite_list(b));
}

static PyObject *break_list(const CcBreakInfo *at, int n) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        cc_listing_add(&list, break_dict(&at[i]));
    }
    return list;
}

static PyObject *guard_list(const CcTrace *t) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->guards.g.n; i++) {
        if (t->guards.g.at[i].check == CC_CHK_NONE || t->guards.g.at[i].check == CC_CHK_ANY) continue;
        CcSbuf sb = {0};
        cc_guard_text(&t->guards, i, &sb);
        cc_listing_add(&list, cc_listing_text(&sb));
    }
    return list;
}

static PyObject *step_list(const CcTrace *t) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->number.n; i++) {
        CcSbuf sb = {0};
        cc_sbuf_add(&sb, "s%d = ", t->number.at[i].symbol);
        cc_guard_source_text(&t->guards, t->number.at[i].guard, &sb);
        cc_listing_add(&list, cc_listing_text(&sb));
    }
    for (int i = 0; list != NULL && i < t->step.n; i++) {
        CcSbuf sb = {0};
        cc_symtext_step(t, i, &sb);
        cc_listing_add(&list, cc_listing_text(&sb));
    }
    return list;
}

/* point: 0 for a call's first segment, else a number shared by all segments that begin at the same instruction */
static PyObject *segment_dict(const CcSegment *s, int point, const CcListed *of) {
    const CcTrace *t = s->trace;
    PyObject *d = PyDict_New();
    if (d == NULL) return NULL;
    CcSbuf graph = {0}, plan = {0}, captures = {0};
    cc_graph_print(t->graph, &graph);
    /* the last call's shape */
    const CcShape *shape = s->shape.n > 0 && s->shape.at[0]->plan != NULL ? s->shape.at[0] : NULL;
    if (shape != NULL && shape->training != NULL) cc_training_print(shape->training, &plan);
    else if (shape != NULL) cc_run_print(shape->plan, &plan);
    if (shape != NULL && shape->captures != NULL) cc_capture_describe(shape->captures, &captures);
    uint64_t made, reused;
    cc_ring_counts(shape != NULL ? shape->ring : NULL, &made, &reused);
    const bool brk = t->end == CC_END_BREAK;
    if (cc_listing_put(d, "id", PyLong_FromLong(s->id)) < 0 || cc_listing_put(d, "point", PyLong_FromLong(point)) < 0 ||
        cc_listing_put(d, "start", PyUnicode_FromFormat("%U:%d", t->start.file, t->start.line)) < 0 ||
        cc_listing_put(d, "guards", guard_list(t)) < 0 ||
        cc_listing_put(d, "guard_steps", PyLong_FromLong(cc_guard_steps(&t->guards))) < 0 ||
        cc_listing_fill(d, s, shape, of) < 0 || cc_listing_put(d, "symbols", step_list(t)) < 0 ||
        cc_listing_put(d, "shapes", PyLong_FromLong(s->shape.n)) < 0 ||
        cc_listing_put(d, "graph_text", cc_listing_text(&graph)) < 0 ||
        cc_listing_put(d, "plan_text", cc_listing_text(&plan)) < 0 ||
        cc_listing_put(d, "cuda_graphs", cc_listing_text(&captures)) < 0 ||
        cc_listing_put(d, "end", PyUnicode_FromString(brk ? "break" : "return")) < 0 ||
        cc_listing_put(d, "break", brk ? break_dict(&t->brk) : Py_NewRef(Py_None)) < 0 ||
        cc_listing_put(d, "effects", PyLong_FromLong(t->effect.n)) < 0 ||
        cc_listing_put(d, "instructions", PyLong_FromLong(t->instructions)) < 0 ||
        cc_listing_put(d, "hits", PyLong_FromUnsignedLongLong(s->hits)) < 0 ||
        cc_listing_put(d, "record_ms", PyFloat_FromDouble((double)t->record_ns * 1e-6)) < 0 ||
        cc_listing_put(d, "results_made", PyLong_FromUnsignedLongLong(made)) < 0 ||
        cc_listing_put(d, "results_reused", PyLong_FromUnsignedLongLong(reused)) < 0)
        Py_CLEAR(d);
    return d;
}

/* The root's first resume point at the same instruction, where equal layers break. */
static int place_of(const CcRoot *root, int p) {
    const CcPoint *a = root->point.at[p];
    for (int i = 0; i < p; i++) {
        const CcPoint *b = root->point.at[i];
        if (a->level[a->n - 1].co == b->level[b->n - 1].co && a->level[a->n - 1].pc == b->level[b->n - 1].pc)
            return i + 1;
    }
    return p + 1;
}

/* Segments after breaks belong to the root, because entries share them. They are listed with the first entry. */
static PyObject *entry_list(const CcRoot *root) {
    PyObject *list = PyList_New(0);
    for (int i = root->entry.n - 1; list != NULL && i >= 0; i--) {
        PyObject *segments = PyList_New(0);
        cc_listing_add(&segments, segment_dict(root->entry.at[i]->segment, 0,
                                               &(CcListed){.root = root, .entry = root->entry.at[i]}));
        for (int p = 0; i == root->entry.n - 1 && p < root->point.n; p++)
            for (int k = 0; k < root->point.at[p]->segment.n; k++)
                cc_listing_add(&segments, segment_dict(root->point.at[p]->segment.at[k], place_of(root, p),
                                                       &(CcListed){.root = root, .point = root->point.at[p]}));
        cc_listing_add(&list,
                       segments != NULL ? Py_BuildValue("{s:O,s:N}", "root", root->name, "segments", segments) : NULL);
    }
    return list;
}

static PyObject *report(const CcRoot *root) {
    PyObject *d = PyDict_New();
    if (d == NULL) return NULL;
    if (cc_listing_put(d, "entries", entry_list(root)) < 0 ||
        cc_listing_put(d, "breaks_seen", break_list(root->seen.at, root->seen.n)) < 0 ||
        cc_listing_put(d, "give_ups", break_list(root->gave_up.at, root->gave_up.n)) < 0 ||
        cc_listing_put(d, "handed", cc_handed_list(root)) < 0 ||
        cc_listing_put(d, "calls", PyLong_FromUnsignedLongLong(root->calls)) < 0 ||
        cc_listing_put(d, "hits", PyLong_FromUnsignedLongLong(root->hits)) < 0 ||
        cc_listing_put(d, "recordings", PyLong_FromUnsignedLongLong(root->recordings)) < 0 ||
        cc_listing_put(d, "eager_calls", PyLong_FromUnsignedLongLong(root->eager_calls)) < 0 ||
        cc_listing_put(d, "slower_than_eager",
                       root->pace.slow ? Py_BuildValue("dd", root->pace.ours_us, root->pace.eager_us)
                                       : Py_NewRef(Py_None)) < 0 ||
        cc_listing_put(d, "last_guard_failure",
                       root->last_failure != NULL ? PyUnicode_FromString(root->last_failure) : Py_NewRef(Py_None)) < 0)
        Py_CLEAR(d);
    return d;
}

/* The garbage collector would run finalisers, which may call or reset the function, while it is listed. */
PyObject *cc_root_report(CcRoot *root) {
    const int collects = PyGC_Disable();
    cc_root_enter(root);
    PyObject *d = report(root);
    cc_root_leave(root);
    if (collects) PyGC_Enable();
    return d;
}
