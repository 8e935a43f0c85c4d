/* graph: makes graphs. Values and nodes are only ever appended, so their indices stay valid. */
#include "ir.h"

CcGraph *cc_graph_new(void) { return cc_mem_get(sizeof(CcGraph)); }

void cc_graph_free(CcGraph *g) {
    if (!g) return;
    cc_vec_free(&g->node);
    cc_vec_free(&g->val);
    cc_vec_free(&g->operand);
    cc_vec_free(&g->undo);
    cc_vec_free(&g->moved);
    free(g->reads);
    cc_functions_release(g->functions);
    free(g);
}

CcGraph *cc_graph_copy(const CcGraph *g) {
    CcGraph *out = cc_graph_new();
    cc_vec_copy(&out->node, &g->node);
    cc_vec_copy(&out->operand, &g->operand);
    cc_vec_copy(&out->val, &g->val);
    out->gpu = g->gpu;
    out->resizes = g->resizes;
    cc_functions_share(out, g);
    return out;
}

int cc_graph_dim(const CcType *t, const CcOperand *o) {
    const int64_t d = o->i < 0 ? o->i + t->ndim : o->i;
    return o->kind == CC_IN_INT && d >= 0 && d < t->ndim ? (int)d : -1;
}

int cc_graph_base(const CcGraph *g, int value) {
    const int32_t of = g->val.at[value].window_of;
    return of ? of - 1 : value;
}

int cc_graph_viewed(const CcGraph *g, int value) {
    for (int def; (def = g->val.at[value].def) >= 0 && cc_op_is_view(g->node.at[def].op);)
        value = cc_graph_source(g, &g->node.at[def]);
    return value;
}

int cc_graph_input(CcGraph *g, const CcType *type) {
    cc_vec_push(&g->val, (CcVal){.type = *type, .def = -1});
    return g->val.n - 1;
}

int cc_graph_node(CcGraph *g, CcOpId op, unsigned flags, int host, const CcOperand *operands, int n_in,
                  const CcType *types, int n_out) {
    cc_vec_push(&g->node, (CcNode){.op = (uint16_t)op,
                                   .flags = (uint16_t)flags,
                                   .in0 = g->operand.n,
                                   .n_in = n_in,
                                   .out0 = g->val.n,
                                   .n_out = n_out,
                                   .host = host});
    cc_vec_last(&g->node).origin = g->node.n - 1;
    for (int i = 0; i < n_in; i++) cc_vec_push(&g->operand, operands[i]);
    for (int i = 0; i < n_out; i++) cc_vec_push(&g->val, (CcVal){.type = types[i], .def = g->node.n - 1});
    return g->node.n - 1;
}
