/* dce: marks the nodes that an output or an effect needs. Operands are the only way to read a value and a node
 * follows everything it reads, so one backward walk suffices. */
#include "pass.h"

/* Integer division by a tensor of integers, which may contain 0. */
static bool divides(const CcGraph *g, const CcNode *n) {
    if (!cc_op_divides((CcOpId)n->op)) return false;
    const int v = cc_graph_value(g, n, 1);
    const char kind = cc_dtype_info((CcDtype)g->val.at[n->out0].type.dtype)->kind;
    return v >= 0 && (kind == 'i' || kind == 'u');
}

/* May data decide whether the node raises? The row says so ('?'), or there is no row and torch runs the op: it may be a
 * decomposition that needs a positive definite matrix. An op of the kinds that take indices reads integers, or a tensor
 * whose sizes depend on data. */
static bool may_raise(const CcGraph *g, const CcNode *n) {
    const CcOpInfo *info = cc_op_info((CcOpId)n->op);
    const CcOpKind kind = info->kind;
    if (n->op == CC_OP_host || strchr(info->promote, '?') || divides(g, n)) return true;
    if (kind != CC_K_INDEX && kind != CC_K_SCATTER) return false;
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(g, n, k);
        if (v < 0) continue;
        const CcType *t = &g->val.at[v].type;
        if (t->dtype == CC_DT_I64 || t->dtype == CC_DT_I32 || t->ndim < 0) return true;
    }
    return false;
}

void cc_dce_mark(const CcGraph *g, bool *live) {
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        live[i] = n->flags & (CC_N_WRITES | CC_N_EFFECT | CC_N_CHECKED) || cc_node_in_order(n) || may_raise(g, n);
        for (int k = 0; k < n->n_out; k++) live[i] = live[i] || g->val.at[n->out0 + k].is_output;
    }
    for (int i = g->node.n - 1; i >= 0; i--) {
        if (!live[i]) continue;
        const CcNode *n = &g->node.at[i];
        for (int k = 0; k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            if (v < 0) continue;
            const int def = g->val.at[cc_graph_base(g, v)].def;
            if (def >= 0) live[def] = true;
        }
    }
}

void cc_dce_uses(const CcGraph *g, const bool *live, int *uses) {
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; live[i] && k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            if (v >= 0) uses[cc_graph_base(g, v)]++;
        }
}
