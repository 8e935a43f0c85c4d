/* values: max and min along a dim, of which nobody looks at the indices, are amax and amin. */
#include "pass.h"

static bool is_read(const CcGraph *g, const bool *live, int value) {
    if (g->val.at[value].is_output) return true;
    for (int i = g->val.at[value].def + 1; i < g->node.n; i++)
        for (int k = 0; live[i] && k < g->node.at[i].n_in; k++) {
            const CcOperand *o = &g->operand.at[g->node.at[i].in0 + k];
            if (o->kind == CC_IN_VALUE && o->value == value) return true;
        }
    return false;
}

CcGraph *cc_values_graph(const CcGraph *g, const CcGroupRules *rules) {
    CcGraph *out = NULL;
    bool *live = NULL;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if ((n->op != CC_OP_max_dim && n->op != CC_OP_min_dim) || n->n_out != 2 || n->flags) continue;
        if (!live && !(live = malloc((size_t)g->node.n))) break;
        cc_dce_mark(g, live);
        if (!live[i] || is_read(g, live, n->out0 + 1)) continue;
        if (!out) out = cc_graph_copy(g);
        CcNode *values = &out->node.at[i];
        values->op = n->op == CC_OP_max_dim ? CC_OP_amax : CC_OP_amin;
        values->n_out = 1;
        values->rewritten = true;
        if (!cc_group_takes(out, i, rules)) *values = *n;
    }
    free(live);
    return out;
}
