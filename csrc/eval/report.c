/* Reports: a root's state as plain Python data. */
#include "eval_int.h"

static int put(PyObject *dict, const char *key, PyObject *value) {
    if (value == NULL) return -1;
    const int status = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return status;
}

static PyObject *text(CcSbuf *sb) {
    PyObject *s = PyUnicode_DecodeUTF8(cc_sbuf_text(sb), (Py_ssize_t)sb->n, "replace");
    cc_sbuf_free(sb);
    return s;
}

static PyObject *break_dict(const CcBreakInfo *b) {
    const struct CcPlace *at = b->n_stack > 0 ? &b->stack[b->n_stack - 1] : NULL;
    PyObject *stack = PyList_New(0);
    for (int i = 0; stack != NULL && i < b->n_stack; i++) {
        PyObject *place = Py_BuildValue("(OiO)", b->stack[i].file, b->stack[i].line, b->stack[i].function);
        if (place == NULL || PyList_Append(stack, place) < 0) Py_CLEAR(stack);
        Py_XDECREF(place);
    }
    if (stack == NULL) return NULL;
    return Py_BuildValue("{s:s,s:s,s:s,s:O,s:i,s:K,s:N}", "reason", cc_reason_name(b->reason), "text",
                         b->text != NULL ? b->text : "", "advice", cc_reason_advice(b->reason), "file",
                         at != NULL ? at->file : Py_None, "line", at != NULL ? at->line : 0, "site",
                         (unsigned long long)b->site, "user_stack", stack);
}

/* Steals the reference; if the item is NULL, or memory is short, clears the list. */
static void append(PyObject **list, PyObject *item) {
    if (*list == NULL || item == NULL || PyList_Append(*list, item) < 0) Py_CLEAR(*list);
    Py_XDECREF(item);
}

static PyObject *break_list(const CcBreakInfo *at, int n) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        append(&list, break_dict(&at[i]));
    }
    return list;
}

static PyObject *node_list(const CcTrace *t) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->graph->node.n; i++) {
        const CcNode *node = &t->graph->node.at[i];
        PyObject *out = PyList_New(0);
        for (int k = 0; out != NULL && k < node->n_out; k++) {
            CcSbuf sb = {0};
            cc_tens_describe(&t->graph->val.at[node->out0 + k].type, &sb);
            append(&out, text(&sb));
        }
        append(&list, out != NULL ? Py_BuildValue("{s:s,s:s,s:i,s:N}", "op", cc_op_info((CcOpId)node->op)->name, "name",
                                                  t->node.at[node->host].name, "line",
                                                  cc_action_line(&t->node.at[node->host]), "out", out)
                                  : NULL);
    }
    return list;
}

static PyObject *guard_list(const CcTrace *t) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->guards.g.n; i++) {
        if (t->guards.g.at[i].check == CC_CHK_NONE || t->guards.g.at[i].check == CC_CHK_ANY) continue;
        CcSbuf sb = {0};
        cc_guard_text(&t->guards, i, &sb);
        append(&list, text(&sb));
    }
    return list;
}

static PyObject *step_list(const CcTrace *t) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->number.n; i++) {
        CcSbuf sb = {0};
        cc_sbuf_add(&sb, "s%d = ", t->number.at[i].symbol);
        cc_guard_source_text(&t->guards, t->number.at[i].guard, &sb);
        append(&list, text(&sb));
    }
    for (int i = 0; list != NULL && i < t->step.n; i++) {
        CcSbuf sb = {0};
        cc_symtext_step(t, i, &sb);
        append(&list, text(&sb));
    }
    return list;
}

/* point: 0 for a call's first segment, else a number shared by all segments that begin at the same instruction */
static PyObject *segment_dict(const CcSegment *s, int point) {
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
    if (put(d, "id", PyLong_FromLong(s->id)) < 0 || put(d, "point", PyLong_FromLong(point)) < 0 ||
        put(d, "start", PyUnicode_FromFormat("%U:%d", t->start_file, t->start_line)) < 0 ||
        put(d, "guards", guard_list(t)) < 0 || put(d, "guard_steps", PyLong_FromLong(cc_guard_steps(&t->guards))) < 0 ||
        put(d, "nodes", node_list(t)) < 0 || put(d, "symbols", step_list(t)) < 0 ||
        put(d, "shapes", PyLong_FromLong(s->shape.n)) < 0 || put(d, "graph_text", text(&graph)) < 0 ||
        put(d, "plan_text", text(&plan)) < 0 || put(d, "cuda_graphs", text(&captures)) < 0 ||
        put(d, "end", PyUnicode_FromString(brk ? "break" : "return")) < 0 ||
        put(d, "break", brk ? break_dict(&t->brk) : Py_NewRef(Py_None)) < 0 ||
        put(d, "effects", PyLong_FromLong(t->effect.n)) < 0 ||
        put(d, "instructions", PyLong_FromLong(t->instructions)) < 0 ||
        put(d, "hits", PyLong_FromUnsignedLongLong(s->hits)) < 0 ||
        put(d, "results_made", PyLong_FromUnsignedLongLong(made)) < 0 ||
        put(d, "results_reused", PyLong_FromUnsignedLongLong(reused)) < 0)
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
        append(&segments, segment_dict(root->entry.at[i]->segment, 0));
        for (int p = 0; i == root->entry.n - 1 && p < root->point.n; p++)
            for (int k = 0; k < root->point.at[p]->segment.n; k++)
                append(&segments, segment_dict(root->point.at[p]->segment.at[k], place_of(root, p)));
        append(&list, segments != NULL ? Py_BuildValue("{s:O,s:N}", "root", root->name, "segments", segments) : NULL);
    }
    return list;
}

PyObject *cc_root_report(const CcRoot *root) {
    PyObject *d = PyDict_New();
    if (d == NULL) return NULL;
    if (put(d, "entries", entry_list(root)) < 0 || put(d, "breaks_seen", break_list(root->seen.at, root->seen.n)) < 0 ||
        put(d, "give_ups", break_list(root->gave_up.at, root->gave_up.n)) < 0 ||
        put(d, "calls", PyLong_FromUnsignedLongLong(root->calls)) < 0 ||
        put(d, "hits", PyLong_FromUnsignedLongLong(root->hits)) < 0 ||
        put(d, "recordings", PyLong_FromUnsignedLongLong(root->recordings)) < 0 ||
        put(d, "eager_calls", PyLong_FromUnsignedLongLong(root->eager_calls)) < 0 ||
        put(d, "slower_than_eager",
            root->pace.slow ? Py_BuildValue("dd", root->pace.ours_us, root->pace.eager_us) : Py_NewRef(Py_None)) < 0 ||
        put(d, "last_guard_failure",
            root->last_failure != NULL ? PyUnicode_FromString(root->last_failure) : Py_NewRef(Py_None)) < 0)
        Py_CLEAR(d);
    return d;
}
