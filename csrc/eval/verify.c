/* The self-check (knob `verify`, CCOMPILE_VERIFY=1): runs a new plan once on the recorded inputs and compares the
 * results with eager's; if they differ, torch runs all its nodes. Skips plans that write, draw random numbers or set
 * state, because these can't run twice, and calls under hooks of saved tensors. */
#include "eval_int.h"

#include <math.h>

/* Kernels may round slightly differently from eager. SPREAD: relative to the largest element, where sums cancel. */
static const double RTOL = 1e-3, ATOL = 1e-4, RTOL_HALF = 5e-2, ATOL_HALF = 1e-1, SPREAD = 4e-6;

/* NaN if an element is, or if there is none. */
static double greatest(PyObject *tensor) {
    PyObject *abs = PyObject_CallMethod(tensor, "abs", NULL),
             *max = abs != NULL ? PyObject_CallMethod(abs, "max", NULL) : NULL;
    const double v = max != NULL ? PyFloat_AsDouble(max) : NAN;
    cc_raised_clear(); /* the list is empty */
    Py_XDECREF(max);
    Py_XDECREF(abs);
    return v;
}

double cc_verify_largest(PyObject *tensor) {
    const double v = greatest(tensor);
    return isfinite(v) && v > 0 ? v : 0;
}

static bool half_result(const CcTrace *t, const CcGraph *g, const CcNode *n) {
    (void)t;
    bool is = false;
    for (int k = 0; k < n->n_out; k++) is = is || cc_dtype_is_half(g->val.at[n->out0 + k].type.dtype);
    return is;
}

/* Whether the node makes memory, or may grow it, without writing it. */
static bool makes_unset(const CcTrace *t, const CcGraph *g, const CcNode *n) {
    static const char *const HOST[] = {"Tensor.new",        "Tensor.new_empty_strided", "Tensor.resize_",
                                       "Tensor.resize_as_", "torch.empty_permuted",     "torch.empty_strided"};
    (void)g;
    for (int i = 0; n->op == CC_OP_host && i < CC_COUNT(HOST); i++)
        if (strcmp(t->node.at[n->host].name, HOST[i]) == 0) return true;
    if (n->op == CC_OP_host && cc_torch_of_type(t->node.at[n->host].name)) return true; /* of sizes */
    return n->op == CC_OP_empty;
}

/* The value that the node overwrites wholly, without reading it (copy_, fill_, zero_); -1: none. */
static int overwritten(const CcGraph *g, const CcNode *n) {
    CcIn_put in;
    return n->op == CC_OP_put && cc_in_put(g, n, &in) && in.key.n == 0 && in.x.kind == CC_IN_VALUE ? in.x.value : -1;
}

/* For each value: whether it is computed from results of nodes for which `starts` is true. */
static bool *find_reached(const CcTrace *t, const CcGraph *g,
                          bool (*starts)(const CcTrace *, const CcGraph *, const CcNode *)) {
    bool *reached = cc_mem_get(((size_t)g->val.n + 1) * sizeof *reached);
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        const int whole = overwritten(g, n);
        if (whole >= 0) reached[whole] = false;
        bool is = starts(t, g, n);
        for (int k = 0; k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, n, k);
            is = is || (o->kind == CC_IN_VALUE && reached[o->value]);
        }
        for (int k = 0; k < n->n_in && is && n->flags & CC_N_WRITES; k++) {
            const CcOperand *o = cc_graph_operand(g, n, k);
            if (o->kind == CC_IN_VALUE) reached[o->value] = true;
        }
        for (int k = 0; k < n->n_out; k++) reached[n->out0 + k] = is;
    }
    return reached;
}

bool cc_verify_close(PyObject *got, PyObject *want, CcDtype dtype, bool half) {
    static PyObject *allclose;
    if (allclose == NULL) allclose = cc_obj_of_module("torch", "allclose");
    const bool exact = cc_dtype_info(dtype)->kind != 'f';
    const double atol = exact ? 0 : (half ? ATOL_HALF : ATOL) + SPREAD * cc_verify_largest(want);
    PyObject *args = allclose != NULL ? PyTuple_Pack(2, got, want) : NULL;
    PyObject *kw = args != NULL ? Py_BuildValue("{s:d,s:d,s:O}", "rtol",
                                                exact  ? 0.0
                                                : half ? RTOL_HALF
                                                       : RTOL,
                                                "atol", atol, "equal_nan", Py_True)
                                : NULL;
    PyObject *r = kw != NULL ? PyObject_Call(allclose, args, kw) : NULL;
    const bool is = r == Py_True;
    if (r == NULL) cc_raised_clear();
    Py_XDECREF(r);
    Py_XDECREF(kw);
    Py_XDECREF(args);
    return is;
}

bool cc_verify_cancelled(PyObject *got, PyObject *want, double terms) {
    return greatest(got) <= SPREAD * terms && greatest(want) <= SPREAD * terms;
}

static bool same_output(const CcSegment *s, const CcShape *shape, PyObject *got, int value, PyObject *want,
                        bool coarse) {
    const CcType *type = &shape->graph->val.at[value].type;
    if (type->ndim < 0) return true; /* opaque to the graph */
    CcTensor t;
    cc_tens_read(got, false, &t);
    const bool like = t.type.dtype == type->dtype && t.type.ndim == type->ndim && cc_type_same_shape(&t.type, type);
    if (like && cc_verify_close(got, want, (CcDtype)type->dtype, coarse)) return true;
    CcSbuf sb = {0};
    cc_tens_describe(type, &sb);
    cc_log_add(CC_LOG_VERIFY, "segment %d: value %%%d (%s) differs from eager's: its plan is not used", s->id, value,
               cc_sbuf_text(&sb));
    cc_sbuf_free(&sb);
    return false;
}

/* Host nodes with operands from outside the graph can't run here. */
static bool self_contained(const CcTrace *t) {
    for (int i = 0; i < t->node.n; i++)
        for (int k = 0; k < t->node.at[i].n; k++)
            if (!cc_recipe_self_contained(&t->recipes, t->args.at[t->node.at[i].args0 + k])) return false;
    return true;
}

/* False: an input has been freed. */
static bool give_inputs(const CcTrace *t, PyObject *const *symbol, PyObject *const *kept, CcCallState *x) {
    for (int i = 0; i < t->guards.g.n; i++) x->gv[i] = NULL;
    for (int i = 0; i < t->input.n; i++) {
        const int value = t->input_value.at[i];
        if (kept[value] == NULL) return false;
        x->value[value] = Py_NewRef(kept[value]);
        x->gv[t->input.at[i]] = kept[value];
    }
    for (int i = 0; i < t->symbol.n; i++) x->symbol[i] = Py_XNewRef(symbol[i]);
    return true;
}

bool cc_verify_shape(const CcSegment *s, CcShape *shape, PyObject *const *kept, PyObject *const *symbol) {
    const CcTrace *t = s->trace;
    CcMode now;
    cc_mode_read(&now);
    /* the trace ended inside `with torch.no_grad()` */
    if (!cc_mode_same(&now, &t->mode) || !self_contained(t)) return true;
    if (cc_state_has_hooks()) return true; /* torch.utils.checkpoint counts the tensors that are saved */
    CcCallState x;
    cc_segment_open(s, &x);
    bool ok = true;
    if (give_inputs(t, symbol, kept, &x)) {
        CcSegmentHost host;
        const CcHost h = cc_segment_host(&host, t, shape, &x);
        CcErr err = {0};
        ok = cc_run_exec(shape->plan, &h, NULL, &err) == 0;
        if (!ok) cc_log_add(CC_LOG_VERIFY, "segment %d: its plan failed: %s", s->id, err.text);
        cc_raised_clear();
        cc_segment_restore(&host);
        bool *coarse = find_reached(t, shape->graph, half_result), *unset = find_reached(t, shape->graph, makes_unset);
        for (int v = 0; ok && v < t->graph->val.n; v++)
            if (kept[v] != NULL && t->graph->val.at[v].is_output && t->graph->val.at[v].def >= 0 &&
                x.value[v] != NULL && !unset[v])
                ok = same_output(s, shape, x.value[v], v, kept[v], coarse[v]);
        free(coarse);
        free(unset);
    }
    cc_segment_close(&x);
    return ok;
}
