/* custom: what a custom autograd.Function computes (CcFunction).
 *
 * Under grad mode a call of Function.apply is one node (opaque.c), for which torch can always call it. While recording,
 * its forward and its backward are also run once more, on aliases of the operands and a gradient of ones, and recorded
 * in a graph of their own, so that a stage of compiled training can contain the call (grad/function.c). The backward
 * runs early, and nobody may notice that forward runs twice: so their code names nothing but ops that compute
 * (cc_kernel_derives). Apart from that they are calls like any other, and what they read of the world outside has
 * guards. If they do what can't be recorded, the recording ends, and the next one leaves this Function to torch
 * (CC_SITE_FUNCTION). */
#include "rec_events.h"

enum { CPU = 1 };

/* ------------------------------------------------------------------ a graph aside */

/* What the recording of the call's surroundings has, meanwhile. */
typedef struct Aside {
    CcTrace *outer; /* only what swap() exchanges */
    CcMap input_of, unsized, sized;
    int n_prov, n_sites, n_effects;
    bool grad;
} Aside;

#define SWAP(a, b)                                                                                                     \
    do {                                                                                                               \
        __typeof__(a) held = (a);                                                                                      \
        (a) = (b);                                                                                                     \
        (b) = held;                                                                                                    \
    } while (0)

/* Exchanges what nodes are added to, and what they note. */
static void swap(CcTrace *a, CcTrace *b) {
    SWAP(a->graph, b->graph);
    SWAP(a->input, b->input);
    SWAP(a->input_value, b->input_value);
    SWAP(a->saved, b->saved);
    SWAP(a->rewritten, b->rewritten);
    SWAP(a->gave, b->gave);
    SWAP(a->node, b->node);
    SWAP(a->args, b->args);
    SWAP(a->recipes, b->recipes);
    SWAP(a->born, b->born);
    SWAP(a->writes, b->writes);
    SWAP(a->needs_grad, b->needs_grad);
    SWAP(a->retry, b->retry);
    SWAP(a->impure, b->impure);
    SWAP(a->lasting, b->lasting);
    SWAP(a->raises, b->raises);
    SWAP(a->python, b->python);
    SWAP(a->ops, b->ops);
    SWAP(a->scoped, b->scoped);
    SWAP(a->other_autocast, b->other_autocast);
}

static void swap_maps(CcRec *rec, Aside *a) {
    SWAP(rec->input_of, a->input_of);
    SWAP(rec->unsized, a->unsized);
    SWAP(rec->sized, a->sized);
}

static void begin(CcRec *rec, Aside *a) {
    *a = (Aside){.outer = cc_mem_get(sizeof *a->outer),
                 .n_prov = rec->prov.n,
                 .n_sites = rec->sites->at.n,
                 .n_effects = rec->effect.n,
                 .grad = cc_mode_grad_now()};
    a->outer->graph = cc_graph_new();
    swap(rec->trace, a->outer);
    swap_maps(rec, a);
    cc_mode_set_grad(false);
}

/* The graph that was recorded aside; NULL: nothing is recorded any more. */
static CcGraph *end(CcRec *rec, Aside *a, const CcTrace *trace) {
    CcGraph *graph = NULL;
    cc_mode_set_grad(a->grad);
    if (rec->trace == trace) {
        cc_finalizers_sweep(rec, a->n_prov); /* the context, and what else was made */
        for (int i = a->n_prov; i < rec->prov.n; i++)
            if (rec->prov.at[i].object != NULL && rec->prov.at[i].origin == CC_O_VALUE)
                cc_value_drop(rec, &rec->prov.at[i]);
        swap_maps(rec, a);
        swap(rec->trace, a->outer);
        SWAP(graph, a->outer->graph);
        a->outer->graph = cc_graph_new(); /* cc_trace_free frees one */
    }
    cc_map_free(&a->input_of);
    cc_map_free(&a->unsized);
    cc_map_free(&a->sized);
    cc_trace_free(a->outer);
    return graph;
}

/* ------------------------------------------------------------------ the operands */

static int count_tensors(PyObject *const *in, int n) {
    int tensors = 0;
    for (int i = 0; i < n; i++) tensors += cc_tens_is(in[i]);
    return tensors;
}

/* Whether sizes of the tensor vary between calls of the entry. */
static bool is_resized(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_tens_is(o) ? cc_value_find(rec, o) : NULL;
    if (p == NULL) return false;
    return p->origin == CC_O_SOURCE ? rec->trace->guards.g.at[p->id].dynamic != 0 : cc_sym_value(rec, p->id);
}

static bool takes(CcRec *rec, PyObject *o) {
    CcTensor t;
    if (!cc_tens_is(o)) return !cc_sym_within(rec, o, 4) && !cc_value_symbolic(rec, o) && !cc_number_varies(rec, o, 4);
    if (!cc_tens_plain(o) || cc_value_origin(rec, o) == CC_O_UNKNOWN || cc_node_unsized(rec, o)) return false;
    cc_tens_read(o, true, &t);
    return t.type.ndim >= 0 && t.type.device == CPU && t.type.dtype != CC_DT_OTHER;
}

/* An alias that torch does not count as a view for autograd, and the trace's name for it: an input of the graph. */
static PyObject *alias(CcRec *rec, const CcAct *act, PyObject *o) {
    static PyObject *detach;
    if (detach == NULL) detach = cc_obj_of_module("torch", "detach");
    PyObject *r = detach != NULL ? cc_call_unseen(act, detach, &o, 1, NULL) : NULL;
    if (r == NULL) return NULL;
    CcTensor t;
    cc_tens_read(r, true, &t);
    cc_value_set(rec, r, CC_O_VALUE, cc_graph_input(rec->trace->graph, &t.type));
    return r;
}

/* What the call has returned: a tensor, or a tuple of tensors. */
static int count_results(PyObject *result) { return PyTuple_Check(result) ? (int)PyTuple_GET_SIZE(result) : 1; }

static PyObject *result_at(PyObject *result, int k) {
    return PyTuple_Check(result) ? PyTuple_GET_ITEM(result, k) : result;
}

/* A gradient for a result: ones. */
static PyObject *gradient(CcRec *rec, const CcAct *act, PyObject *result) {
    static PyObject *ones_like;
    if (ones_like == NULL) ones_like = cc_obj_of_module("torch", "ones_like");
    PyObject *ones = ones_like != NULL ? cc_call_unseen(act, ones_like, &result, 1, NULL) : NULL;
    PyObject *r = ones != NULL ? alias(rec, act, ones) : NULL;
    Py_XDECREF(ones);
    return r;
}

static PyObject *gradients(CcRec *rec, const CcAct *act, PyObject *result) {
    const int n = count_results(result);
    PyObject *tuple = PyTuple_New(n);
    for (int k = 0; tuple != NULL && k < n; k++) {
        PyObject *o = gradient(rec, act, result_at(result, k));
        if (o == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, k, o);
    }
    if (tuple != NULL) cc_value_fresh(rec, tuple);
    return tuple;
}

/* The inputs: aliases of the tensors, and the other operands. */
static PyObject *inputs(CcRec *rec, const CcAct *act, PyObject *const *in, int n) {
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple != NULL && i < n; i++) {
        PyObject *o = cc_tens_is(in[i]) ? alias(rec, act, in[i]) : Py_NewRef(in[i]);
        if (o == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, o);
    }
    if (tuple != NULL) cc_value_fresh(rec, tuple);
    return tuple;
}

static PyObject *needs(PyObject *const *in, int n) {
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple != NULL && i < n; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(cc_tens_is(in[i]) && cc_tens_requires_grad(in[i]) ? Py_True : Py_False));
    return tuple;
}

/* ------------------------------------------------------------------ what was recorded */

/* Pure nodes with rows, of known numbers; and no tensor from outside but the operands and the gradients. Nothing here
 * requires a gradient, so what sets grad mode has no effect. */
static bool is_plain(const CcTrace *t, int n_inputs) {
    const CcGraph *g = t->graph;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (t->node.at[n->host].state) continue;
        if (n->op == CC_OP_host || n->flags != 0 || n->kept) return false;
        if (n->n_out == 0 || n->n_out > CC_OPERANDS_MAX) return false;
        for (int k = 0; k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, n, k);
            const bool number = o->kind == CC_IN_INT || o->kind == CC_IN_FLOAT;
            if (o->kind == CC_IN_NUMBER || (number && o->value != 0)) return false;
        }
    }
    for (int v = 0; v < g->val.n; v++) {
        const CcVal *val = &g->val.at[v];
        if (val->type.ndim < 0 || val->type.dtype == CC_DT_OTHER || (val->def < 0 && v >= n_inputs)) return false;
    }
    return true;
}

static int value_of(CcRec *rec, PyObject *o) {
    const CcProv *p = o != NULL && cc_tens_is(o) ? cc_value_find(rec, o) : NULL;
    return p != NULL && p->origin == CC_O_VALUE ? p->id : -1;
}

/* Marks what save_for_backward has got, if the backward unpacks it: autograd tells of writes to it then. What is kept in
 * another way may be written, and the backward would see that: false, if it is an operand or a result. */
static bool find_kept(CcRec *rec, PyObject *context, CcFunction *f) {
    PyObject *dict = cc_obj_dict(context), *key, *value;
    PyObject *unpacked = dict != NULL ? cc_obj_item(dict, "unpacked") : NULL;
    PyObject *materialize = dict != NULL ? cc_obj_item(dict, "materialize") : NULL;
    Py_ssize_t pos = 0;
    f->unpacks = unpacked == Py_True;
    if (f->n_out > 1 && materialize != NULL && materialize != Py_True) return false; /* gradients may be None */
    while (dict != NULL && PyDict_Next(dict, &pos, &key, &value)) {
        const bool saved = cc_text_is(key, "saved"), tuple = PyTuple_Check(value);
        if (!tuple && !cc_value_const(value) && value_of(rec, value) < 0) return false;
        for (Py_ssize_t i = 0, n = tuple ? PyTuple_GET_SIZE(value) : 1; i < n; i++) {
            PyObject *item = tuple ? PyTuple_GET_ITEM(value, i) : value;
            const int v = value_of(rec, item), memory = v >= 0 ? cc_graph_viewed(f->graph, v) : -1;
            if (v < 0 && !cc_value_const(item)) return false;
            const int result = v >= 0 ? cc_functions_result(f, memory) : -1;
            if (v < 0 || (result < 0 && f->graph->val.at[memory].def >= 0)) continue;
            if (!saved) return false;
            if (result >= 0) f->kept[f->n_in + result] = f->unpacks;
            if (memory < f->n_in) f->kept[memory] = f->unpacks;
        }
    }
    return dict != NULL;
}

/* The gradient of operand k: false, if it has another shape or dtype, or is no tensor of the graph. If it is None, a leaf gets
 * none, but what torch has made the operand by gets an undefined one. */
static bool find_gradient(CcRec *rec, PyObject *gradient, PyObject *operand, CcFunction *f, int k) {
    const CcType *t = &f->graph->val.at[k].type;
    f->grad[k] = value_of(rec, gradient);
    if (gradient == Py_None) return cc_attr_is_leaf(operand);
    if (f->grad[k] < 0) return false;
    const CcType *g = &f->graph->val.at[f->grad[k]].type;
    return cc_type_same_shape(g, t) && g->dtype == t->dtype && g->device == t->device;
}

/* Gradients of the operands that require them. */
static bool find_gradients(CcRec *rec, PyObject *gradients, PyObject *const *in, int n, CcFunction *f) {
    const bool one = !PyTuple_Check(gradients);
    if (one ? n != 1 : PyTuple_GET_SIZE(gradients) != n) return false;
    for (int i = 0, k = 0; i < n; i++) {
        PyObject *gradient = one ? gradients : PyTuple_GET_ITEM(gradients, i);
        if (!cc_tens_is(in[i])) {
            if (gradient != Py_None) return false; /* torch raises */
            continue;
        }
        f->grad[k] = -1;
        if (cc_tens_requires_grad(in[i]) && !find_gradient(rec, gradient, in[i], f, k)) return false;
        k++;
    }
    return true;
}

/* Marks the nodes that the values which are `read` are computed from. */
static void mark_needed(const CcGraph *g, bool *read, bool *needed) {
    for (int i = g->node.n - 1; i >= 0; i--) {
        const CcNode *n = &g->node.at[i];
        for (int k = 0; k < n->n_out; k++) needed[i] = needed[i] || read[n->out0 + k];
        for (int k = 0; needed[i] && k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, n, k);
            if (o->kind == CC_IN_VALUE) read[o->value] = true;
        }
    }
}

/* Drops what neither a result nor a gradient needs. n_forward: nodes that the forward has recorded. */
static void keep_needed(CcFunction *f, int n_forward) {
    CcGraph *g = f->graph;
    CC_VEC(CcNode) nodes = {0};
    bool *read = cc_mem_get((size_t)g->val.n + 1), *needed = cc_mem_get((size_t)g->node.n + 1);
    for (int k = 0; k < f->n_out; k++) read[f->result[k]] = true;
    for (int k = 0; k < f->n_in; k++)
        if (f->grad[k] >= 0) read[f->grad[k]] = true;
    mark_needed(g, read, needed);
    f->n_forward = 0;
    for (int i = 0; i < g->node.n; i++) {
        if (!needed[i]) continue;
        cc_vec_push(&nodes, g->node.at[i]);
        if (i < n_forward) f->n_forward++;
    }
    SWAP(g->node.at, nodes.at);
    SWAP(g->node.n, nodes.n);
    SWAP(g->node.cap, nodes.cap);
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_out; k++) g->val.at[g->node.at[i].out0 + k].def = i;
    cc_vec_free(&nodes);
    free(read);
    free(needed);
}

/* Result k, which is memory of its own, of the type that torch's has. */
static bool find_result(CcRec *rec, PyObject *own, PyObject *torchs, CcFunction *f, int k) {
    CcTensor t;
    const int value = value_of(rec, own), def = value >= 0 ? f->graph->val.at[value].def : -1;
    if (def < 0 || f->graph->node.at[def].n_out != 1 || cc_op_is_view(f->graph->node.at[def].op)) return false;
    if (cc_functions_result(f, value) >= 0) return false;
    f->result[k] = value;
    cc_tens_read(torchs, true, &t);
    const CcType *type = &f->graph->val.at[value].type;
    return type->dtype == t.type.dtype && type->device == t.type.device && cc_type_same_layout(type, &t.type);
}

static bool find_results(CcRec *rec, PyObject *own, PyObject *torchs, CcFunction *f) {
    if (PyTuple_Check(own) != PyTuple_Check(torchs) || count_results(own) != f->n_out) return false;
    for (int k = 0; k < f->n_out; k++) f->result[k] = -1;
    for (int k = 0; k < f->n_out; k++)
        if (!find_result(rec, result_at(own, k), result_at(torchs, k), f, k)) return false;
    return true;
}

/* What the two runs gave. */
typedef struct Told {
    PyObject *forward;   /* (result, context) */
    PyObject *gradients; /* NULL: one of them raises */
    int n_forward;       /* nodes that the forward has recorded */
} Told;

/* The values are those of the graph that is being recorded. */
static bool describe(CcRec *rec, const Told *told, PyObject *result, PyObject *const *in, int n, CcFunction *f) {
    f->graph = rec->trace->graph;
    f->n_in = count_tensors(in, n);
    f->n_out = count_results(result);
    cc_functions_make(f);
    return is_plain(rec->trace, f->n_in + f->n_out) &&
           find_results(rec, PyTuple_GET_ITEM(told->forward, 0), result, f) &&
           find_gradients(rec, told->gradients, in, n, f) && find_kept(rec, PyTuple_GET_ITEM(told->forward, 1), f);
}

/* ------------------------------------------------------------------ recording */

static bool is_left_to_torch(const CcRec *rec, const PyObject *forward) {
    for (int i = 0; i < rec->sites->at.n; i++)
        if (rec->sites->at.at[i].co == (const PyCodeObject *)forward && rec->sites->at.at[i].pc == CC_SITE_FUNCTION)
            return true;
    return false;
}

/* Calls a template, which rec->keep drops if the recording is given up. */
static PyObject *call(PyObject *template, PyObject *const *args, int n) {
    PyObject *r = NULL;
    Py_XINCREF(template);
    if (template != NULL) r = PyObject_Vectorcall(template, args, (size_t)n, NULL);
    if (r == NULL) cc_raised_clear();
    Py_XDECREF(template);
    return r;
}

static void run(CcRec *rec, const CcAct *act, PyObject *cls, PyObject *const *in, int n, PyObject *result, Told *told) {
    const CcTrace *trace = rec->trace;
    PyObject *needed = needs(in, n), *given = inputs(rec, act, in, n);
    PyObject *grad = given != NULL ? gradients(rec, act, result) : NULL;
    PyObject *const all[] = {cls, cc_kernel_sets_up_apart(cls) ? Py_True : Py_False, needed, given};
    if (needed != NULL && grad != NULL) told->forward = call(cc_backcall_function(rec), all, CC_COUNT(all));
    if (told->forward != NULL && rec->trace == trace) {
        told->n_forward = trace->graph->node.n;
        PyObject *const rest[] = {cls, PyTuple_GET_ITEM(told->forward, 1), grad};
        told->gradients = call(cc_backcall_template(rec, "backward", NULL), rest, CC_COUNT(rest));
    }
    Py_XDECREF(needed);
    Py_XDECREF(given);
    Py_XDECREF(grad);
}

/* Plain tensors, one of which requires a gradient. */
static bool returns_plain(PyObject *result) {
    bool requires = false;
    if (PyTuple_Check(result) && !PyTuple_CheckExact(result)) return false;
    for (int k = 0; k < count_results(result); k++) {
        PyObject *o = result_at(result, k);
        if (!cc_tens_is(o)) return false;
        requires = requires || cc_tens_requires_grad(o);
    }
    return requires;
}

bool cc_custom_record(CcRec *rec, const CcAct *act, PyObject *cls, PyObject *const *in, int n, PyObject *result,
                      bool wrote, CcFunction *f) {
    const CcTrace *trace = rec->trace;
    PyObject *forward = cc_kernel_forward(cls);
    *f = (CcFunction){0};
    if (!returns_plain(result) || cc_mode_autocast_cpu() || wrote) return true;
    if (forward == NULL || is_left_to_torch(rec, forward) || !cc_kernel_derives(cls)) return true;
    bool resized = false;
    for (int i = 0; i < n; i++) {
        if (!takes(rec, in[i])) return true;
        resized = resized || is_resized(rec, in[i]);
    }
    if (resized && cc_kernel_sizes(cls)) return true;
    Aside aside;
    Py_INCREF(forward);
    begin(rec, &aside);
    Told told = {0};
    run(rec, act, cls, in, n, result, &told);
    const bool alive = rec->trace == trace && rec->effect.n == aside.n_effects;
    const bool ok = alive && told.gradients != NULL && describe(rec, &told, result, in, n, f);
    Py_XDECREF(told.forward);
    Py_XDECREF(told.gradients);
    f->graph = end(rec, &aside, trace);
    if (ok) keep_needed(f, told.n_forward);
    if (!ok || (resized && !cc_functions_scale(f))) cc_functions_free_one(f);
    if (!alive) {
        if (rec->trace == trace) {
            cc_site_why(rec, act, CC_R_TORCH_EFFECT, "a custom autograd.Function that writes");
            (void)cc_rec_give_up(rec);
        }
        cc_sites_cut(rec->sites, aside.n_sites);
        (void)cc_site_mark(rec, (PyCodeObject *)forward, CC_SITE_FUNCTION);
    }
    Py_DECREF(forward);
    return alive;
}
