/* values: max and min along a dim, of which nobody looks at the indices, are amax and amin. */
#include "pass.h"

static bool has_indices(const CcNode *n) {
    return (n->op == CC_OP_max_dim || n->op == CC_OP_min_dim) && n->n_out == 2 && !n->flags;
}

static CcGraph *rewrite(const CcGraph *g, const CcGroupRules *rules, const bool *live, const int *uses) {
    CcGraph *out = NULL;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (!live[i] || !has_indices(n) || uses[n->out0 + 1] || g->val.at[n->out0 + 1].is_output) continue;
        if (!out) out = cc_graph_copy(g);
        CcNode *values = &out->node.at[i];
        values->op = n->op == CC_OP_max_dim ? CC_OP_amax : CC_OP_amin;
        values->n_out = 1;
        values->rewritten = true;
        if (!cc_group_takes(out, i, rules)) *values = *n;
    }
    return out;
}

CcGraph *cc_values_graph(const CcGraph *g, const CcGroupRules *rules) {
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || has_indices(&g->node.at[i]);
    if (!any) return NULL;
    bool *live = malloc((size_t)g->node.n);
    int *uses = calloc((size_t)g->val.n, sizeof *uses);
    CcGraph *out = NULL;
    if (live && uses) {
        cc_dce_mark(g, live);
        cc_dce_uses(g, live, uses);
        out = rewrite(g, rules, live, uses);
    }
    free(live);
    free(uses);
    return out;
}
