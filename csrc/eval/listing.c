/* listing: a segment's nodes as torch.fx would show them, and what runs each: plain Python data for reports. */
#include "eval_int.h"

/* ------------------------------------------------------------------ Python data */

int cc_listing_put(PyObject *dict, const char *key, PyObject *value) {
    if (value == NULL) return -1;
    const int status = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return status;
}

void cc_listing_add(PyObject **list, PyObject *item) {
    if (*list == NULL || item == NULL || PyList_Append(*list, item) < 0) Py_CLEAR(*list);
    Py_XDECREF(item);
}

PyObject *cc_listing_text(CcSbuf *sb) {
    PyObject *s = PyUnicode_DecodeUTF8(cc_sbuf_text(sb), (Py_ssize_t)sb->n, "replace");
    cc_sbuf_free(sb);
    return s;
}

static PyObject *type_text(const CcType *t) {
    CcSbuf sb = {0};
    cc_tens_describe(t, &sb);
    return cc_listing_text(&sb);
}

/* ------------------------------------------------------------------ names */

static PyObject *argument_name(const CcListed *of, int i) {
    PyCodeObject *co = (PyCodeObject *)of->root->func->func_code;
    const int from = of->entry != NULL ? of->entry->n_args - (int)cc_obj_count(of->entry->kwnames) : i + 1;
    if (i >= from) return Py_NewRef(PyTuple_GET_ITEM(of->entry->kwnames, i - from));
    if (i >= co->co_argcount) return PyUnicode_FromFormat("args[%d]", i - co->co_argcount);
    return cc_code_variable(co, i);
}

/* The variable at which the path of a guard begins: a new reference; NULL: it has no name. */
static PyObject *variable_of(const CcListed *of, const CcGuard *g) {
    if (g->source == CC_SRC_ARG && of->point == NULL) return argument_name(of, g->index);
    if (g->source != CC_SRC_SLOT || of->point == NULL || g->level >= of->point->n) return NULL;
    PyObject *name = cc_code_variable(of->point->level[g->level].co, g->index);
    return name != NULL ? name : PyUnicode_FromFormat("stack_%d", g->index);
}

/* The path of a guard, with names of variables instead of numbers. */
static void path_text(const CcTrace *t, const CcListed *of, int guard, CcSbuf *out) {
    int first = guard;
    while (t->guards.g.at[first].parent >= 0) first = t->guards.g.at[first].parent;
    PyObject *name = variable_of(of, &t->guards.g.at[first]);
    const char *text = name != NULL ? PyUnicode_AsUTF8(name) : NULL;
    CcSbuf begin = {0}, path = {0};
    cc_guard_source_text(&t->guards, first, &begin);
    cc_guard_source_text(&t->guards, guard, &path);
    const bool begins = text != NULL && strncmp(cc_sbuf_text(&path), cc_sbuf_text(&begin), begin.n) == 0;
    cc_sbuf_add(out, "%s%s", begins ? text : "", cc_sbuf_text(&path) + (begins ? begin.n : 0));
    cc_raised_clear();
    cc_sbuf_free(&begin);
    cc_sbuf_free(&path);
    Py_XDECREF(name);
}

typedef struct Runs {
    const CcTrace *trace;
    const CcListed *of;
    bool *open;         /* [recipe] its parts are being listed */
    PyObject *plans;    /* list */
    PyObject **of_node; /* [node] list of [plan, step] */
    const char **why;   /* [node] why torch runs it; NULL: it does not */
} Runs;

/* ------------------------------------------------------------------ arguments */

/* Constants stay what they are if JSON has them; other objects are text. */
static PyObject *constant(PyObject *o);

static PyObject *constants(const char *kind, PyObject *const *at, Py_ssize_t n) {
    PyObject *parts = PyList_New(0);
    for (Py_ssize_t i = 0; parts != NULL && i < n; i++) cc_listing_add(&parts, constant(at[i]));
    return parts != NULL ? Py_BuildValue("[sN]", kind, parts) : NULL;
}

static PyObject *constant(PyObject *o) {
    if (PyTuple_CheckExact(o)) return constants("tuple", PySequence_Fast_ITEMS(o), PyTuple_GET_SIZE(o));
    if (PySlice_Check(o)) {
        const PySliceObject *s = (const PySliceObject *)o;
        return constants("slice", (PyObject *const[]){s->start, s->stop, s->step}, 3);
    }
    if (o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyUnicode_CheckExact(o)) return Py_NewRef(o);
    if (PyFloat_CheckExact(o) && isfinite(PyFloat_AS_DOUBLE(o))) return Py_NewRef(o);
    PyObject *text = PyType_Check(o)       ? PyUnicode_FromString(((PyTypeObject *)o)->tp_name)
                     : PyCallable_Check(o) ? PyUnicode_FromFormat("<%s>", Py_TYPE(o)->tp_name)
                                           : PyObject_Repr(o);
    if (text == NULL) {
        cc_raised_clear();
        text = PyUnicode_FromFormat("<%s>", Py_TYPE(o)->tp_name);
    }
    return Py_BuildValue("[sN]", "text", text);
}

static PyObject *argument(Runs *r, int recipe);

/* Objects may contain themselves. */
static PyObject *parts_of(Runs *r, const char *kind, int recipe) {
    const CcRecipe *whole = &r->trace->recipes.r.at[recipe];
    if (r->open[recipe]) return Py_BuildValue("[ss]", "text", "...");
    r->open[recipe] = true;
    PyObject *parts = PyList_New(0);
    for (int i = 0; parts != NULL && i < whole->n; i++)
        cc_listing_add(&parts, argument(r, r->trace->recipes.kid.at[whole->kid0 + i]));
    r->open[recipe] = false;
    return parts != NULL ? Py_BuildValue("[sN]", kind, parts) : NULL;
}

static PyObject *source_of(const Runs *r, int guard) {
    for (int i = 0; i < r->trace->input.n; i++)
        if (r->trace->input.at[i] == guard) return Py_BuildValue("[si]", "value", r->trace->input_value.at[i]);
    CcSbuf sb = {0};
    path_text(r->trace, r->of, guard, &sb);
    return Py_BuildValue("[sN]", "text", cc_listing_text(&sb));
}

/* A constant, or [kind, what]: "value" a graph value's number, "text" something else from outside or a symbol, and
 * "tuple", "list", "slice", "dict" the parts. */
static PyObject *argument(Runs *r, int recipe) {
    static const char *const kinds[] = {
        [CC_MAKE_TUPLE] = "tuple", [CC_MAKE_LIST] = "list", [CC_MAKE_SLICE] = "slice", [CC_MAKE_DICT] = "dict"};
    const CcRecipe *of = &r->trace->recipes.r.at[recipe];
    const char *kind = of->make < CC_COUNT(kinds) ? kinds[of->make] : NULL;
    if (of->make == CC_MAKE_VALUE) return Py_BuildValue("[si]", "value", of->id);
    if (of->make == CC_MAKE_CONST) return constant(of->object);
    if (of->make == CC_MAKE_SYMBOL) return Py_BuildValue("[sN]", "text", PyUnicode_FromFormat("s%d", of->id));
    if (of->make == CC_MAKE_SOURCE) return source_of(r, of->id);
    return kind != NULL ? parts_of(r, kind, recipe) : Py_BuildValue("[ss]", "text", "<object>");
}

static PyObject *arguments(Runs *r, const CcAction *a, int from, int n) {
    PyObject *list = PyList_New(0);
    for (int i = from; list != NULL && i < n; i++) cc_listing_add(&list, argument(r, r->trace->args.at[a->args0 + i]));
    if (a->form == CC_F_GETATTR || a->form == CC_F_SETATTR || a->form == CC_F_DELATTR)
        cc_listing_add(&list, Py_NewRef(a->target));
    return list;
}

static PyObject *keywords(Runs *r, const CcAction *a, int from) {
    PyObject *d = PyDict_New();
    for (int i = 0; d != NULL && from + i < a->n; i++) {
        PyObject *value = argument(r, r->trace->args.at[a->args0 + from + i]);
        if (value == NULL || PyDict_SetItem(d, PyTuple_GET_ITEM(a->kwnames, i), value) < 0) Py_CLEAR(d);
        Py_XDECREF(value);
    }
    return d;
}

/* ------------------------------------------------------------------ targets */

static const char *operator_name(const CcAction *a) {
    static const char *const compare[] = {"lt", "le", "eq", "ne", "gt", "ge"};
    static const char *const binop[CC_NB_COUNT] = {"add", "and_", "floordiv", "lshift", "matmul",  "mul", "mod",
                                                   "or_", "pow",  "rshift",   "sub",    "truediv", "xor"};
    switch ((CcActionForm)a->form) {
    case CC_F_COMPARE: return compare[a->arg];
    case CC_F_BINOP:
    case CC_F_INPLACE: return binop[a->arg];
    case CC_F_UNARY: return a->arg == '-' ? "neg" : a->arg == '~' ? "invert" : "pos";
    case CC_F_GETITEM: return "getitem";
    case CC_F_SETITEM: return "setitem";
    case CC_F_DELITEM: return "delitem";
    default: return NULL;
    }
}

/* The path of the function that fx would name: "torch.relu", "operator.add"; a method's name. */
static PyObject *target_of(const CcAction *a) {
    static const char *const methods = "Tensor.";
    const char *name = operator_name(a);
    if (name != NULL && a->form == CC_F_INPLACE) { /* and_ -> iand */
        const size_t n = strlen(name);
        return PyUnicode_FromFormat("operator.i%.*s", (int)(name[n - 1] == '_' ? n - 1 : n), name);
    }
    if (name != NULL) return PyUnicode_FromFormat("operator.%s", name);
    if (a->form == CC_F_GETATTR) return PyUnicode_FromString("builtins.getattr");
    if (a->form == CC_F_SETATTR) return PyUnicode_FromString("builtins.setattr");
    const bool method = strncmp(a->name, methods, strlen(methods)) == 0;
    return PyUnicode_FromString(method ? a->name + strlen(methods) : a->name);
}

static bool is_method(const CcAction *a) { return a->form == CC_F_CALL && strncmp(a->name, "Tensor.", 7) == 0; }

/* ------------------------------------------------------------------ what runs a node */

static PyObject *step_dict(Runs *r, const CcPlan *plan, int at, const int *origin, int n_origin) {
    const CcPlanStep step = cc_run_step(plan, at);
    PyObject *ops = PyList_New(0);
    CcSbuf source = {0};
    for (int i = 0; ops != NULL && i < step.n_node; i++) {
        const char *op;
        int node = cc_run_step_node(plan, at, i, &op);
        if (origin != NULL) node = node < n_origin ? origin[node] : -1;
        cc_listing_add(&ops, PyUnicode_FromString(op));
        if (n_origin == 0 || node < 0 || node >= r->trace->graph->node.n) continue;
        cc_listing_add(&r->of_node[node], Py_BuildValue("[ni]", PyList_GET_SIZE(r->plans), at));
        if (step.why != NULL) r->why[node] = step.why;
    }
    cc_run_step_text(plan, at, &source);
    return ops != NULL ? Py_BuildValue("{s:s,s:z,s:z,s:N,s:d,s:N}", "kind", step.kind, "way", step.way, "why", step.why,
                                       "ops", ops, "ms", step.ms, "source", cc_listing_text(&source))
                       : NULL;
}

/* origin[node of the plan's graph]: the trace's node; NULL: the same. n_origin 0: the plan's nodes are not the trace's */
static PyObject *plan_dict(Runs *r, const char *name, const CcPlan *plan, const int *origin, int n_origin) {
    CcPlanStats stats;
    cc_run_stats(plan, &stats);
    PyObject *steps = PyList_New(0);
    for (int i = 0; steps != NULL && i < stats.steps; i++)
        cc_listing_add(&steps, step_dict(r, plan, i, origin, n_origin));
    if (steps == NULL) return NULL;
    return Py_BuildValue("{s:s,s:N,s:L,s:L,s:d,s:d,s:d,s:d}", "name", name, "steps", steps, "block_bytes",
                         (long long)stats.block_bytes, "apart_bytes", (long long)stats.apart_bytes, "compile_ms",
                         stats.compile_ms, "passes_ms", stats.passes_ms, "kernels_ms", stats.kernels_ms,
                         "primitives_ms", stats.primitives_ms);
}

static void tell_part(void *ctx, const CcTrainingPart *part) {
    Runs *r = ctx;
    if (part->stage < 0) {
        if (part->node >= 0 && part->node < r->trace->graph->node.n) r->why[part->node] = part->why;
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "stage %d %s", part->stage, part->kind);
    PyObject *d = part->plan != NULL ? plan_dict(r, name, part->plan, part->origin, part->n_origin)
                                     : Py_BuildValue("{s:s,s:[],s:s}", "name", name, "steps", "why", part->why);
    if (d != NULL && part->saved > 0 &&
        (cc_listing_put(d, "saved", PyLong_FromLong(part->saved)) < 0 ||
         cc_listing_put(d, "saved_bytes", PyLong_FromLongLong(part->saved_bytes)) < 0 ||
         cc_listing_put(d, "made_bytes", PyLong_FromLongLong(part->made_bytes)) < 0))
        Py_CLEAR(d);
    cc_listing_add(&r->plans, d);
}

static void find_runs(const CcSegment *s, const CcShape *shape, Runs *r) {
    if (shape->training != NULL) {
        cc_training_visit(shape->training, tell_part, r);
        return;
    }
    cc_listing_add(&r->plans, plan_dict(r, "plan", shape->plan, NULL, s->trace->graph->node.n));
    for (int i = 0; s->options.host_only && i < s->trace->graph->node.n; i++)
        if (r->why[i] != NULL)
            r->why[i] = s->trains ? "autograd records it, and no stage pays" : "autograd records it (training is off)";
}

/* ------------------------------------------------------------------ nodes */

/* Whether the node computes a number or a text from numbers and texts (x.item() * 2, f"{loss:.3f}"), and no tensor.
 * number: the same of each value so far. */
static bool computes_number(const CcGraph *g, const CcNode *n, const bool *number) {
    bool all = n->op == CC_OP_host;
    for (int k = 0; k < n->n_out; k++) all = all && g->val.at[n->out0 + k].type.ndim < 0;
    for (int k = 0; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, n, k);
        all = all && (o->kind != CC_IN_VALUE || number[o->value]);
    }
    return all;
}

static PyObject *node_dict(const CcTrace *t, int i, Runs *r, bool number) {
    const CcNode *n = &t->graph->node.at[i];
    const CcAction *a = &t->node.at[n->host];
    const int positional = a->n - (int)cc_obj_count(a->kwnames);
    PyObject *d = PyDict_New(), *out = PyList_New(0), *values = PyList_New(0);
    for (int k = 0; k < n->n_out; k++) {
        cc_listing_add(&out, type_text(&t->graph->val.at[n->out0 + k].type));
        cc_listing_add(&values, PyLong_FromLong(n->out0 + k));
    }
    if (d == NULL || cc_listing_put(d, "out", out) < 0 || cc_listing_put(d, "values", values) < 0 ||
        cc_listing_put(d, "op", PyUnicode_FromString(cc_op_info((CcOpId)n->op)->name)) < 0 ||
        cc_listing_put(d, "name", PyUnicode_FromString(a->name)) < 0 ||
        cc_listing_put(d, "number", PyBool_FromLong(number)) < 0 ||
        cc_listing_put(d, "method", PyBool_FromLong(is_method(a))) < 0 ||
        cc_listing_put(d, "sequence", PyBool_FromLong(a->sequence)) < 0 ||
        cc_listing_put(d, "target", target_of(a)) < 0 ||
        cc_listing_put(d, "args", arguments(r, a, 0, positional)) < 0 ||
        cc_listing_put(d, "kwargs", keywords(r, a, positional)) < 0 ||
        cc_listing_put(d, "line", PyLong_FromLong(cc_action_line(a))) < 0 ||
        cc_listing_put(d, "file", Py_NewRef(a->co != NULL ? a->co->co_filename : Py_None)) < 0 ||
        cc_listing_put(d, "function", Py_NewRef(a->co != NULL ? a->co->co_qualname : Py_None)) < 0 ||
        cc_listing_put(d, "first_line", PyLong_FromLong(a->co != NULL ? a->co->co_firstlineno : 0)) < 0 ||
        cc_listing_put(d, "runs", Py_NewRef(r->of_node[i])) < 0 ||
        cc_listing_put(d, "why", Py_BuildValue("z", r->why[i])) < 0)
        Py_CLEAR(d);
    return d;
}

static PyObject *node_list(const CcTrace *t, Runs *r) {
    PyObject *list = PyList_New(0);
    const CcGraph *g = t->graph;
    bool *number = cc_mem_get(((size_t)g->val.n + 1) * sizeof *number);
    for (int i = 0; list != NULL && i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        const bool is = computes_number(g, n, number);
        for (int k = 0; k < n->n_out; k++) number[n->out0 + k] = is;
        cc_listing_add(&list, node_dict(t, i, r, is));
    }
    free(number);
    return list;
}

static PyObject *input_list(const CcTrace *t, const CcListed *of) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->input.n; i++) {
        CcSbuf sb = {0};
        path_text(t, of, t->input.at[i], &sb);
        const int value = t->input_value.at[i];
        cc_listing_add(&list, Py_BuildValue("{s:i,s:N,s:N}", "value", value, "source", cc_listing_text(&sb), "out",
                                            type_text(&t->graph->val.at[value].type)));
    }
    return list;
}

/* What the trace hands on: the result, or at a break the values that later code reads. */
static PyObject *result(Runs *r) {
    const CcTrace *t = r->trace;
    if (t->end == CC_END_RETURN) return argument(r, t->result);
    PyObject *list = PyList_New(0);
    for (int v = 0; list != NULL && v < t->graph->val.n; v++)
        if (t->graph->val.at[v].is_output) cc_listing_add(&list, Py_BuildValue("[si]", "value", v));
    return list != NULL ? Py_BuildValue("[sN]", "tuple", list) : NULL;
}

int cc_listing_fill(PyObject *dict, const CcSegment *s, const CcShape *shape, const CcListed *of) {
    const CcTrace *t = s->trace;
    const int n = t->graph->node.n;
    Runs r = {.trace = t, .of = of, .plans = PyList_New(0)};
    r.of_node = cc_mem_get(((size_t)n + 1) * sizeof *r.of_node);
    r.why = cc_mem_get(((size_t)n + 1) * sizeof *r.why);
    r.open = cc_mem_get((size_t)t->recipes.r.n + 1);
    bool ok = r.plans != NULL;
    for (int i = 0; i < n && ok; i++) ok = (r.of_node[i] = PyList_New(0)) != NULL;
    if (ok && shape != NULL) find_runs(s, shape, &r);
    for (int i = 0; i < n && ok; i++) ok = r.of_node[i] != NULL;
    ok = ok && r.plans != NULL && cc_listing_put(dict, "nodes", node_list(t, &r)) == 0 &&
         cc_listing_put(dict, "inputs", input_list(t, of)) == 0 && cc_listing_put(dict, "result", result(&r)) == 0 &&
         cc_listing_put(dict, "plans", Py_NewRef(r.plans)) == 0;
    for (int i = 0; i < n; i++) Py_XDECREF(r.of_node[i]);
    Py_XDECREF(r.plans);
    free(r.of_node);
    free(r.why);
    free(r.open);
    return ok ? 0 : -1;
}
