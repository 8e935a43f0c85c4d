/* function: custom autograd.Functions (CcFunction), whose backward is the user's.
 *
 * In a stage, the nodes of the forward replace the call. A mark behind them, a node without a result, lists the call's
 * operands, the values that the forward has made, and the results; there, the backward is added, in place of the
 * derivatives of the forward's nodes. */
#include "grad_int.h"

static bool is_call(const CcNode *n) { return n->function != 0 && n->op == CC_OP_host && n->n_out > 0; }

bool cc_function_is_mark(const CcNode *n) { return n->function != 0 && n->op == CC_OP_host && n->n_out == 0; }

/* ------------------------------------------------------------------ forward */

/* Operands of a node of the function, in the graph of the call. map: [value of the function] */
static void translate(const CcGraph *from, const CcNode *n, const int *map, CcOperand *out) {
    for (int k = 0; k < n->n_in; k++) {
        out[k] = *cc_graph_operand(from, n, k);
        if (out[k].kind == CC_IN_VALUE) out[k].value = map[out[k].value];
    }
}

static int most_operands(const CcGraph *g) {
    int most = 0;
    for (int i = 0; i < g->node.n; i++) most = CC_MAX(most, g->node.at[i].n_in);
    return most;
}

static int result_of(const CcGraph *g, const CcNode *mark, int k) {
    return cc_graph_operand(g, mark, mark->n_in - cc_graph_function(g, mark)->n_out + k)->value;
}

bool cc_function_has_gradient(const Adjoint *a, const CcNode *mark) {
    bool has = false;
    for (int k = 0; k < cc_graph_function(a->g, mark)->n_out; k++) has = has || a->grad[result_of(a->g, mark, k)] >= 0;
    return has;
}

void cc_function_wants(Adjoint *a, const CcNode *mark) {
    for (int k = 0; k < cc_graph_function(a->g, mark)->n_out; k++) {
        const int result = result_of(a->g, mark, k);
        a->wanted[result] = cc_rules_needs(a->g, result);
    }
}

void cc_function_kept(const CcGraph *g, const CcNode *mark, bool *kept) {
    const CcFunction *f = cc_graph_function(g, mark);
    for (int k = 0; k < f->n_in; k++)
        if (f->kept[k]) kept[cc_graph_operand(g, mark, k)->value] = true;
    for (int k = 0; k < f->n_out; k++)
        if (f->kept[f->n_in + k]) kept[result_of(g, mark, k)] = true;
}

void cc_function_pinned(const CcGraph *g, const CcNode *mark, bool *pinned) {
    const CcFunction *f = cc_graph_function(g, mark);
    bool all = true;
    for (int k = 0; k < f->n_in; k++) all = all && f->kept[k];
    for (int k = f->n_in; !all && k < mark->n_in; k++) pinned[cc_graph_operand(g, mark, k)->value] = true;
}

static void add_mark(Adjoint *a, const CcNode *call, const CcFunction *f, const int *map) {
    CcGraph *g = a->g;
    CcNode mark = {.op = CC_OP_host, .in0 = g->operand.n, .out0 = g->val.n, .host = -1, .function = call->function};
    for (int k = 0; k < f->n_in; k++) {
        const CcOperand o = *cc_graph_operand(g, call, k);
        cc_vec_push(&g->operand, o);
    }
    for (int i = 0; i < f->n_forward; i++)
        for (int k = 0; k < f->graph->node.at[i].n_out; k++)
            cc_vec_push(&g->operand, value_of(map[f->graph->node.at[i].out0 + k]));
    for (int k = 0; k < f->n_out; k++) cc_vec_push(&g->operand, value_of(call->out0 + k));
    mark.n_in = g->operand.n - mark.in0;
    (void)cc_edit_insert(g, a->before, &mark);
}

static void split(CcGraph *g, int node) {
    const CcNode call = g->node.at[node];
    const CcFunction *f = cc_graph_function(g, &call);
    const int first_node = g->node.n, first_value = g->val.n;
    Adjoint a = {.g = g, .before = node};
    int *map = cc_mem_get(sizeof *map * ((size_t)f->graph->val.n + 1));
    CcOperand *in = cc_mem_get(sizeof *in * ((size_t)most_operands(f->graph) + 1));
    for (int k = 0; k < f->n_in; k++) map[k] = cc_graph_operand(g, &call, k)->value;
    for (int i = 0; i < f->n_forward; i++) {
        const CcNode *n = &f->graph->node.at[i];
        const int result = cc_functions_result(f, n->out0);
        translate(f->graph, n, map, in);
        for (int k = 0; k < n->n_out; k++) {
            map[n->out0 + k] = result >= 0 ? call.out0 + result : g->val.n;
            if (result < 0) cc_vec_push(&g->val, (CcVal){.type = f->graph->val.at[n->out0 + k].type});
        }
        cc_adjoint_insert(&a, (CcOpId)n->op, in, n->n_in, map[n->out0], n->n_out);
    }
    add_mark(&a, &call, f, map);
    cc_adjoint_replaced(&a, &call, first_node, first_value);
    for (int i = first_node; i < g->node.n; i++) g->node.at[i].function = call.function;
    free(in);
    free(map);
}

void cc_function_split(CcGraph *g) {
    const int n = g->node.n;
    bool any = false;
    for (int i = 0; i < n; i++) any = any || is_call(&g->node.at[i]);
    if (!any) return;
    cc_edit_settle(g);
    for (int i = 0; i < n; i++)
        if (is_call(&g->node.at[i])) split(g, i);
    cc_edit_settle(g);
}

/* ------------------------------------------------------------------ backward */

/* The gradient of result k, with the strides that the user's backward has seen; zeros, where there is none. */
static int seed_of(Adjoint *a, const CcFunction *f, int k, int grad) {
    CcType t = f->graph->val.at[f->n_in + k].type;
    t.requires_grad = 0;
    if (grad < 0) return emit(a, CC_OP_fill, &t, cc_dtype_is_float(t.dtype) ? float_of(0) : int_of(0));
    return cc_type_same_layout(type_of(a, grad), &t) ? grad : emit(a, CC_OP_copy, &t, value_of(grad));
}

/* A gradient that no node of the backward makes is an operand, or a value of the forward: copied, as it is saved. */
static int own(Adjoint *a, const CcFunction *f, int value, const int *map) {
    const int def = f->graph->val.at[value].def;
    const bool made = (def < 0 && value >= f->n_in) || def >= f->n_forward;
    const CcType t = cc_adjoint_like(type_of(a, map[value]));
    return made ? map[value] : emit(a, CC_OP_copy, &t, value_of(map[value]));
}

bool cc_function_apply(Adjoint *a, const CcNode *mark) {
    const CcFunction *f = cc_graph_function(a->g, mark);
    int *map = cc_mem_get(sizeof *map * ((size_t)f->graph->val.n + 1)), at = f->n_in;
    CcOperand *in = cc_mem_get(sizeof *in * ((size_t)most_operands(f->graph) + 1));
    CcType types[CC_OPERANDS_MAX];
    for (int k = 0; k < f->n_in; k++) map[k] = cc_graph_operand(a->g, mark, k)->value;
    for (int i = 0; i < f->n_forward; i++)
        for (int k = 0; k < f->graph->node.at[i].n_out; k++)
            map[f->graph->node.at[i].out0 + k] = cc_graph_operand(a->g, mark, at++)->value;
    for (int k = 0; k < f->n_out; k++) map[f->n_in + k] = seed_of(a, f, k, a->grad[map[f->result[k]]]);
    for (int i = f->n_forward; i < f->graph->node.n; i++) {
        const CcNode *n = &f->graph->node.at[i];
        translate(f->graph, n, map, in);
        for (int k = 0; k < n->n_out; k++) types[k] = f->graph->val.at[n->out0 + k].type;
        const int node = cc_graph_node(a->g, (CcOpId)n->op, 0, -1, in, n->n_in, types, n->n_out);
        for (int k = 0; k < n->n_out; k++) map[n->out0 + k] = a->g->node.at[node].out0 + k;
    }
    for (int k = 0; k < f->n_in; k++)
        if (f->grad[k] >= 0 && a->wanted[map[k]]) cc_adjoint_add(a, map[k], own(a, f, f->grad[k], map));
    free(in);
    free(map);
    return true;
}
