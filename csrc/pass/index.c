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
    int x, dim; /* value; its first dim that is indexed */
    int count, index[2]; /* dims that are, and values */
    bool by_element;   /* the index has the result's shape */
    bool ends;         /* may count from the end */
} Take;

/* Dims of the result that the indices make, broadcast to one another. */
static int dims_of_indices(const CcGraph *g, const Take *t) {
    int n = 0;
    for (int k = 0; k < t->count; k++) n = CC_MAX(n, g->val.at[t->index[k]].type.ndim);
    return n;
}

static bool understand(const CcGraph *g, const CcNode *n, Take *t) {
    const bool embedding = n->op == CC_OP_embedding, both = n->op == CC_OP_index_both;
    if (!embedding && !both && n->op != CC_OP_index_select && n->op != CC_OP_index && n->op != CC_OP_gather) return false;
    if (n->n_in != 3 - embedding + both || n->n_out != 1 || n->flags || cc_graph_operand(g, n, 0)->kind != CC_IN_VALUE) return false;
    const int x = cc_graph_operand(g, n, 0)->value;
    const CcType *from = &g->val.at[x].type, *to = &g->val.at[n->out0].type;
    *t = (Take){.x = x, .dim = embedding ? 0 : cc_graph_dim(from, cc_graph_operand(g, n, 1)), .count = 1 + both,
                .by_element = n->op == CC_OP_gather, .ends = both || n->op == CC_OP_index};
    for (int k = 0; k < t->count; k++) {
        const CcOperand *index = cc_graph_operand(g, n, n->n_in - t->count + k);
        if (index->kind != CC_IN_VALUE) return false;
        const CcType *at = &g->val.at[t->index[k] = index->value].type;
        if (at->ndim < 0 || (at->dtype != CC_DT_I64 && at->dtype != CC_DT_I32) || cc_type_numel(at) == 0) return false;
    }
    if (from->ndim < t->count || to->ndim < 0 || t->dim < 0 || t->dim + t->count > from->ndim || from->dtype != to->dtype ||
        cc_type_numel(to) == 0)
        return false;
    const CcType *at = &g->val.at[t->index[0]].type;
    if (t->by_element) return cc_type_same_shape(at, to) && at->ndim == from->ndim && cc_type_numel(to) < MANY_INDICES;
    return to->ndim == from->ndim - t->count + (n->op == CC_OP_index_select ? 1 : dims_of_indices(g, t));
}

/* x as the result sees it: it does not move along the dims of the indices. */
static CcType see_x(const CcGraph *g, const CcNode *n, const Take *t) {
    const CcType from = g->val.at[t->x].type, *to = &g->val.at[n->out0].type;
    const int n_index = to->ndim - (from.ndim - t->count);
    CcType x = from;
    x.ndim = to->ndim;
    for (int d = 0; d < to->ndim; d++) {
        const bool here = t->by_element ? d == t->dim : d >= t->dim && d < t->dim + n_index;
        const int own = t->by_element || d < t->dim ? d : d - n_index + t->count;
        x.size[d] = here ? 1 : t->by_element ? to->size[d] : from.size[own];
        x.stride[d] = here ? 0 : from.stride[own];
    }
    return x;
}

/* An index as the result sees it, broadcast to the other one from the right. */
static CcType see_index(const CcGraph *g, const CcNode *n, const Take *t, int k) {
    const CcType at = g->val.at[t->index[k]].type, *to = &g->val.at[n->out0].type;
    const int n_index = to->ndim - (g->val.at[t->x].type.ndim - t->count);
    CcType index = at;
    if (t->by_element) return index;
    index.ndim = to->ndim;
    for (int d = 0; d < to->ndim; d++) {
        const int own = d - t->dim - (n_index - at.ndim);
        const bool here = d < t->dim + n_index && d >= t->dim && own >= 0 && own < at.ndim;
        index.size[d] = here ? at.size[own] : 1;
        index.stride[d] = here ? at.stride[own] : 0;
    }
    return index;
}

static void push_index(CcGraph *g, const CcNode *n, const Take *t, int k) {
    const CcType at = see_index(g, n, t, k);
    const int64_t size = g->val.at[t->x].type.size[t->dim + k];
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_VALUE, .value = cc_views_window(g, t->index[k], &at)});
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_INT, .i = size});
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_BOOL, .i = t->ends});
}

static void rewrite(CcGraph *g, int node, const Take *t) {
    const CcNode n = g->node.at[node];
    const CcType from = g->val.at[t->x].type, x = see_x(g, &n, t);
    const int in0 = g->operand.n;
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_VALUE, .value = cc_views_window(g, t->x, &x)});
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_INT, .i = t->count == 1 ? from.stride[t->dim] : 1});
    for (int k = 0; k < t->count; k++) {
        push_index(g, &n, t, k);
        if (t->count > 1) cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_INT, .i = from.stride[t->dim + k]});
    }
    CcNode *to = &g->node.at[node];
    to->in0 = in0;
    to->n_in = g->operand.n - in0;
    to->op = t->count == 1 ? CC_OP_take : CC_OP_take_both;
    to->rewritten = true;
}

/* one_hot: the index with a last dim of size 1, compared with the place in it. */
static bool hot(CcGraph *g, int node) {
    const CcNode n = g->node.at[node];
    const CcOperand *index = n.n_in == 2 ? cc_graph_operand(g, &n, 0) : NULL, classes = *cc_graph_operand(g, &n, n.n_in - 1);
    if (!index || index->kind != CC_IN_VALUE || classes.kind != CC_IN_INT || classes.i < 1) return false;
    const int value = index->value, in0 = g->operand.n;
    CcType t = g->val.at[value].type;
    const CcType *to = &g->val.at[n.out0].type;
    if (t.ndim < 0 || to->ndim != t.ndim + 1 || t.dtype != CC_DT_I64 || cc_type_numel(to) == 0) return false;
    t.size[t.ndim] = 1;
    t.stride[t.ndim++] = 0;
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_VALUE, .value = cc_views_window(g, value, &t)});
    cc_vec_push(&g->operand, classes);
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_BOOL});
    CcNode *hot = &g->node.at[node];
    hot->in0 = in0;
    hot->n_in = 3;
    hot->op = CC_OP_hot;
    hot->rewritten = true;
    return true;
}

static bool try_rewrite(CcGraph *g, int node) {
    Take t;
    if (g->node.at[node].op == CC_OP_one_hot) return hot(g, node);
    if (!understand(g, &g->node.at[node], &t)) return false;
    rewrite(g, node, &t);
    return true;
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
        const CcNode *n = &g->node.at[i];
        if (cc_op_info((CcOpId)n->op)->kind != CC_K_INDEX || n->flags || n->n_out != 1 || cc_group_banned(g, i, rules) ||
            !needed(g, n->out0, uses))
            continue;
        CcGraph *next = cc_graph_copy(out ? out : g);
        const bool good = try_rewrite(next, i) && cc_group_takes(next, i, rules);
        if (good && out) cc_graph_free(out);
        if (good) out = next;
        else cc_graph_free(next);
    }
    free(live);
    free(uses);
    return out;
}
