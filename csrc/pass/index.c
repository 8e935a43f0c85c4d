/* index: makes reads at one or two indices (embedding, index_select, gather, x[:, index]) pointwise. Windows give
 * all operands the result's shape (reach.c), and the kernel adds the index to the address that it reads:
 *
 *   weight [V, D] at index [B, L]   ->   weight [1, 1, D], index [B, L, 1]: take over [B, L, D], V indices D elements apart
 *
 * The plan checks indices before the kernel runs. If one is wrong the plan fails and eager starts over, so memory
 * must be unchanged: no node that writes or draws random numbers may come first. After such a node this pass does
 * nothing, and the host runs such reads even if nobody needs the result, because eager would raise. */
#include <limits.h>

#include "pass_int.h"

/* gather has one index per element, which our kernels read with the gather instruction: 65536 elements took 57 us,
 * torch's own loop 23, dev/move.c 28 (Zen 4). Small ones are faster here, as they fuse with their readers. On a GPU
 * every read is a gather (CcGroupRules.gathers). */
enum { MANY_INDICES = 1 << 13 };

static bool understand(const CcGraph *g, const CcNode *n, bool gathers, CcReach *r) {
    if (n->n_out != 1 || n->flags || n->n_in < 2 || cc_graph_source(g, n) < 0) return false;
    const CcType *from = &g->val.at[cc_graph_source(g, n)].type, *to = &g->val.at[n->out0].type;
    if (from->ndim < 0 || to->ndim < 0 || from->dtype != to->dtype || cc_type_numel(to) == 0 ||
        !cc_reach_read(g, n, from, r))
        return false;
    const bool one_each = n->op == CC_OP_gather || n->op == CC_OP_take_along || n->op == CC_OP_take_flat;
    return r->n >= 1 && r->n <= 2 && !r->index[0].mask && cc_type_same_shape(&r->space, to) &&
           !(one_each && !gathers && cc_type_numel(to) >= MANY_INDICES);
}

static CcOperand size_of(int64_t i) { return (CcOperand){.kind = CC_IN_INT, .value = CC_OF_SIZES, .i = i}; }

static void rewrite(CcGraph *g, int node, const CcReach *r) {
    const CcReachIndex *a = &r->index[0], *b = &r->index[1];
    const CcOperand x = cc_reach_window(g, r, cc_graph_source(g, &g->node.at[node]), r->space.stride, r->offset),
                    index = cc_reach_window(g, r, a->value, a->step, 0);
    if (r->n == 1) {
        cc_edit_make(g, node, take, .x = x, .step = int_of(a->by), .index = index, .count = int_of(a->count),
                     .ends = bool_of(a->ends));
        return;
    }
    const CcOperand index_2 = cc_reach_window(g, r, b->value, b->step, 0);
    cc_edit_make(g, node, take_both, .x = x, .one = int_of(1), .index = index, .count = int_of(a->count),
                 .ends = bool_of(a->ends), .step = size_of(a->by), .index_2 = index_2, .count_2 = int_of(b->count),
                 .ends_2 = bool_of(b->ends), .step_2 = size_of(b->by));
}

/* one_hot: compares the index, with a last dim of size 1 added, with the position in that dim. */
static bool hot(CcGraph *g, int node) {
    const CcNode n = g->node.at[node];
    CcIn_one_hot in;
    if (!cc_in_one_hot(g, &n, &in) || in.classes.i < 1) return false;
    const int value = in.index.value;
    CcType t = g->val.at[value].type;
    const CcType *to = &g->val.at[n.out0].type;
    if (t.ndim < 0 || to->ndim != t.ndim + 1 || t.dtype != CC_DT_I64 || cc_type_numel(to) == 0) return false;
    t = cc_type_with_dim(&t, t.ndim);
    const CcOperand index = value_of(cc_views_window(g, value, &t));
    cc_edit_make(g, node, hot, .index = index, .count = in.classes, .ends = bool_of(false));
    return true;
}

static bool try_rewrite(CcGraph *g, int node, bool gathers) {
    CcReach r;
    if (g->node.at[node].op == CC_OP_one_hot) return hot(g, node);
    if (!understand(g, &g->node.at[node], gathers, &r)) return false;
    rewrite(g, node, &r);
    return true;
}

/* The first node after which eager can't start over, by origin, since a pass may be adding nodes. Nodes in order
 * count wherever they are, because others may move behind them. */
static int first_unrepeatable(const CcGraph *g) {
    int first = INT_MAX;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (cc_node_in_order(n)) return -1;
        if (n->flags & CC_N_WRITES && !n->repeatable) first = CC_MIN(first, n->origin);
    }
    return first;
}

bool cc_index_may(const CcGraph *g, int node) {
    const int final = first_unrepeatable(g), origin = g->node.at[node].origin;
    /* it checks its indices first */
    return origin < final || (origin == final && cc_into_is_write(g, &g->node.at[node]));
}

/* Marks what an output or an effect needs, without nodes that merely may raise. */
static bool needed(const CcGraph *g, int value, const int *uses) {
    return uses[value] > 0 || g->val.at[value].is_output;
}

void cc_index_rewrite(CcGraph *g, const CcGroupRules *rules) {
    bool *live = malloc((size_t)g->node.n + 1);
    int *uses = calloc((size_t)g->val.n + 1, sizeof *uses);
    const int end = rules->asserts ? INT_MAX : first_unrepeatable(g);
    if (live && uses) {
        cc_dce_mark(g, live);
        cc_dce_uses(g, live, uses);
    }
    for (int i = 0; live && uses && i < g->node.n && g->node.at[i].origin < end; i++) {
        const CcNode *n = &g->node.at[i];
        if (cc_node_kind(n) != CC_K_INDEX || n->flags || n->n_out != 1 || cc_group_banned(g, i, rules) ||
            !needed(g, n->out0, uses))
            continue;
        const CcEditMark mark = cc_edit_mark(g);
        if (try_rewrite(g, i, rules->gathers)) (void)cc_group_keeps(g, i, mark, rules);
        else cc_edit_undo(g, mark);
    }
    free(live);
    free(uses);
}
