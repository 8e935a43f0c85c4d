/* norms: a batch norm in eval that stands behind no convolution is a pointwise op. Its vectors are read through windows that
 * broadcast along the channels, [C, 1, 1] of [C] for an image. Value and node numbers stay. */
#include "pass.h"

enum { X, WEIGHT, VAR = 4 }; /* operands: ops.def */

static bool vector_of(const CcType *t, const CcType *x) {
    return t->ndim == 1 && t->dtype == x->dtype && t->size[0] == x->size[1];
}

static bool good(const CcGraph *g, const CcNode *n) {
    if (n->op != CC_OP_batch_norm || n->flags || n->n_out != 1 || n->n_in != 6 || cc_graph_operand(g, n, X)->kind != CC_IN_VALUE)
        return false;
    const CcType *x = &g->val.at[cc_graph_operand(g, n, X)->value].type;
    if (x->ndim < 2 || (x->dtype != CC_DT_F32 && x->dtype != CC_DT_F64) || cc_graph_operand(g, n, 5)->kind != CC_IN_FLOAT)
        return false;
    for (int i = WEIGHT; i <= VAR; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind == CC_IN_VALUE ? !vector_of(&g->val.at[o->value].type, x) : o->kind != CC_IN_NONE) return false;
    }
    return cc_graph_operand(g, n, 3)->kind == CC_IN_VALUE && cc_graph_operand(g, n, VAR)->kind == CC_IN_VALUE;
}

/* Will it be a post-op of the convolution that makes its input for it alone? */
static bool behind_conv(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    const int x = cc_graph_operand(g, n, X)->value, def = g->val.at[x].def;
    if (def < 0 || cc_op_info((CcOpId)g->node.at[def].op)->kind != CC_K_CONV || !cc_group_takes(g, def, rules) ||
        g->val.at[x].is_output)
        return false;
    int uses = 0;
    for (int i = 0; i < g->operand.n; i++)
        uses += g->operand.at[i].kind == CC_IN_VALUE && g->operand.at[i].value == x;
    return uses == 1;
}

/* The vector as the image sees it. */
static int add_window(CcGraph *g, int vector, int ndim) {
    CcType t = g->val.at[vector].type;
    t.ndim = (int8_t)(ndim - 1);
    for (int d = 1; d < ndim - 1; d++) {
        t.size[d] = 1;
        t.stride[d] = 0;
    }
    return cc_views_window(g, vector, &t);
}

static void rewrite(CcGraph *g, int node) {
    CcNode *n = &g->node.at[node];
    const int in0 = g->operand.n, ndim = g->val.at[cc_graph_operand(g, n, X)->value].type.ndim;
    for (int i = 0; i < n->n_in; i++) {
        CcOperand o = *cc_graph_operand(g, n, i);
        if (ndim > 2 && i >= WEIGHT && o.kind == CC_IN_VALUE) o.value = add_window(g, o.value, ndim);
        cc_vec_push(&g->operand, o);
    }
    n->in0 = in0;
    n->op = CC_OP_norm_eval;
    n->rewritten = true;
}

CcGraph *cc_norms_graph(const CcGraph *g, const CcGroupRules *rules) {
    CcGraph *out = NULL;
    for (int i = 0; i < g->node.n; i++) {
        if ((rules->banned && rules->banned[i]) || !good(g, &g->node.at[i]) || behind_conv(g, &g->node.at[i], rules)) continue;
        if (!out) out = cc_graph_copy(g);
        rewrite(out, i);
    }
    return out;
}
