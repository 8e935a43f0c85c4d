/* index: reading at indices (embedding, index_select, gather, x[:, index]) is pointwise. Both operands are seen in the result's
 * shape, by windows, and the kernel adds the index to where it reads:
 *
 *   weight [V, D] at index [B, L]     ->   weight [1, 1, D], index [B, L, 1]: take over [B, L, D], V further on D elements each
 *
 * Indices are checked before the kernel runs. Where one is wrong the plan fails and eager is asked, which has to find
 * everything as it was: nothing that writes or draws random numbers may come first. So this is not done behind such a node,
 * and what eager would refuse is not forgotten when nobody reads the result: then the host does it. */
#include "pass.h"

/* gather has an index for each element, which our kernels read by the gather instruction: 65536 elements took 57 us, torch's
 * own loop 23 (Zen 4). Small ones are better here, as torch's call costs more than they do. */
enum { MANY_INDICES = 1 << 13 };

typedef struct Take {
    int x, dim, index; /* values; dim of x */
    bool by_element;   /* the index has the result's shape */
    bool ends;         /* may count from the end */
} Take;

static bool understand(const CcGraph *g, const CcNode *n, Take *t) {
    const bool embedding = n->op == CC_OP_embedding;
    if (!embedding && n->op != CC_OP_index_select && n->op != CC_OP_index && n->op != CC_OP_gather) return false;
    const CcOperand *x = cc_graph_operand(g, n, 0), *index = cc_graph_operand(g, n, n->n_in - 1);
    if (n->n_in != 3 - embedding || n->n_out != 1 || n->flags || x->kind != CC_IN_VALUE || index->kind != CC_IN_VALUE) return false;
    const CcType *from = &g->val.at[x->value].type, *at = &g->val.at[index->value].type, *to = &g->val.at[n->out0].type;
    *t = (Take){x->value, embedding ? 0 : cc_graph_dim(from, cc_graph_operand(g, n, 1)), index->value, n->op == CC_OP_gather,
                n->op == CC_OP_index};
    if (from->ndim < 1 || at->ndim < 0 || to->ndim < 0 || t->dim < 0 || from->dtype != to->dtype || cc_type_numel(to) == 0)
        return false;
    if (at->dtype != CC_DT_I64 && at->dtype != CC_DT_I32) return false;
    if (t->by_element) return cc_type_same_shape(at, to) && at->ndim == from->ndim && cc_type_numel(to) < MANY_INDICES;
    return to->ndim == from->ndim - 1 + (n->op == CC_OP_index_select ? 1 : at->ndim);
}

/* The two as the result sees them. */
static void see(const CcGraph *g, const CcNode *n, const Take *t, CcType *x, CcType *index) {
    const CcType from = *x, at = *index, *to = &g->val.at[n->out0].type;
    const int n_index = to->ndim - (from.ndim - 1);
    x->ndim = index->ndim = to->ndim;
    for (int d = 0; d < to->ndim && t->by_element; d++) {
        x->size[d] = d == t->dim ? 1 : to->size[d];
        x->stride[d] = d == t->dim ? 0 : from.stride[d];
    }
    for (int d = 0; d < to->ndim && !t->by_element; d++) {
        const bool here = d >= t->dim && d < t->dim + n_index;
        const int own = d < t->dim ? d : d - n_index + 1;
        x->size[d] = here ? 1 : from.size[own];
        x->stride[d] = here ? 0 : from.stride[own];
        index->size[d] = here && at.ndim ? at.size[d - t->dim] : 1;
        index->stride[d] = here && at.ndim ? at.stride[d - t->dim] : 0;
    }
}

static void rewrite(CcGraph *g, int node, const Take *t) {
    CcType x = g->val.at[t->x].type, index = g->val.at[t->index].type;
    const CcOperand step = {.kind = CC_IN_INT, .i = x.stride[t->dim]}, size = {.kind = CC_IN_INT, .i = x.size[t->dim]};
    see(g, &g->node.at[node], t, &x, &index);
    const int in0 = g->operand.n;
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_VALUE, .value = cc_views_window(g, t->x, &x)});
    cc_vec_push(&g->operand, step);
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_VALUE, .value = cc_views_window(g, t->index, &index)});
    cc_vec_push(&g->operand, size);
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_BOOL, .i = t->ends});
    CcNode *n = &g->node.at[node];
    n->in0 = in0;
    n->n_in = 5;
    n->op = CC_OP_take;
    n->rewritten = true;
}

/* Nodes before which eager can't begin anew; random ones may be moved in front of others. */
static int first_final(const CcGraph *g) {
    for (int i = 0; i < g->node.n; i++)
        if (g->node.at[i].flags & CC_N_RANDOM) return 0;
    for (int i = 0; i < g->node.n; i++)
        if (g->node.at[i].flags & CC_N_WRITES) return i;
    return g->node.n;
}

bool cc_index_may(const CcGraph *g, int node) { return node < first_final(g); }

/* What an output or an effect needs, and not only what may raise. */
static bool needed(const CcGraph *g, int value, const int *uses) { return uses[value] > 0 || g->val.at[value].is_output; }

CcGraph *cc_index_graph(const CcGraph *g, const CcGroupRules *rules) {
    CcGraph *out = NULL;
    bool *live = malloc((size_t)g->node.n + 1);
    int *uses = calloc((size_t)g->val.n + 1, sizeof *uses);
    const int end = first_final(g);
    if (live && uses) {
        cc_dce_mark(g, live);
        cc_dce_uses(g, live, uses);
    }
    for (int i = 0; live && uses && i < end; i++) {
        Take t;
        if (cc_group_banned(g, i, rules) || !understand(g, &g->node.at[i], &t) ||
            !needed(g, g->node.at[i].out0, uses))
            continue;
        CcGraph *next = cc_graph_copy(out ? out : g);
        rewrite(next, i, &t);
        const bool good = cc_group_takes(next, i, rules);
        if (good && out) cc_graph_free(out);
        if (good) out = next;
        else cc_graph_free(next);
    }
    free(live);
    free(uses);
    return out;
}
