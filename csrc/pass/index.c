/* index: reading at indices (embedding, index_select, gather, x[:, index]) is pointwise, where one or two say where.
 * All operands are seen in the result's shape, by windows (reach.c), and the kernel adds the index to where it reads:
 *
 *   weight [V, D] at index [B, L]     ->   weight [1, 1, D], index [B, L, 1]: take over [B, L, D], V further on D elements each
 *
 * Indices are checked before the kernel runs. Where one is wrong the plan fails and eager is asked, which has to find
 * everything as it was: nothing that writes or draws random numbers may come first. So this is not done behind such a
 * node, and what eager would refuse is not forgotten when nobody reads the result: then the host does it. */
#include <limits.h>

#include "pass_int.h"

/* gather has an index for each element, which our kernels read by the gather instruction: 65536 elements took 57 us,
 * torch's own loop 23, dev/move.c 28 (Zen 4). Small ones are better here, as they can be a part of what follows. A GPU
 * reads them as it reads everything (CcGroupRules.gathers). */
enum { MANY_INDICES = 1 << 13 };

static bool understand(const CcGraph *g, const CcNode *n, bool gathers, CcReach *r) {
    if (n->n_out != 1 || n->flags || n->n_in < 2 || cc_graph_operand(g, n, 0)->kind != CC_IN_VALUE) return false;
    const CcType *from = &g->val.at[cc_graph_operand(g, n, 0)->value].type, *to = &g->val.at[n->out0].type;
    if (from->ndim < 0 || to->ndim < 0 || from->dtype != to->dtype || cc_type_numel(to) == 0 ||
        !cc_reach_read(g, n, from, r))
        return false;
    const bool one_each = n->op == CC_OP_gather || n->op == CC_OP_take_along || n->op == CC_OP_take_flat;
    return r->n >= 1 && r->n <= 2 && !r->index[0].mask && cc_type_same_shape(&r->space, to) &&
           !(one_each && !gathers && cc_type_numel(to) >= MANY_INDICES);
}

/* A window into `value` with these steps: of one element where it does not move. */
static int window_by(CcGraph *g, const CcReach *r, int value, const int64_t *step, int64_t offset) {
    CcType t = g->val.at[value].type;
    t.ndim = r->space.ndim;
    for (int d = 0; d < t.ndim; d++) {
        t.size[d] = step[d] ? r->space.size[d] : 1;
        t.stride[d] = step[d];
    }
    const int made = cc_views_window(g, value, &t);
    g->val.at[made].offset += offset * cc_dtype_info((CcDtype)t.dtype)->size;
    return made;
}

static void rewrite(CcGraph *g, int node, const CcReach *r) {
    CcOperand in[2 + 4 * 2];
    int n = 0;
    const int x = cc_graph_operand(g, &g->node.at[node], 0)->value;
    in[n++] = value_of(window_by(g, r, x, r->space.stride, r->offset));
    in[n++] = int_of(r->n == 1 ? r->index[0].by : 1);
    for (int k = 0; k < r->n; k++) {
        const CcReachIndex *index = &r->index[k];
        in[n++] = value_of(window_by(g, r, index->value, index->step, 0));
        in[n++] = int_of(index->count);
        in[n++] = (CcOperand){.kind = CC_IN_BOOL, .i = index->ends};
        if (r->n > 1) in[n++] = (CcOperand){.kind = CC_IN_INT, .value = CC_OF_SIZES, .i = index->by};
    }
    cc_edit_rewrite(g, node, r->n == 1 ? CC_OP_take : CC_OP_take_both, in, n);
}

/* one_hot: the index with a last dim of size 1, compared with the place in it. */
static bool hot(CcGraph *g, int node) {
    const CcNode n = g->node.at[node];
    const CcOperand *index = n.n_in == 2 ? cc_graph_operand(g, &n, 0) : NULL,
                    classes = *cc_graph_operand(g, &n, n.n_in - 1);
    if (!index || index->kind != CC_IN_VALUE || classes.kind != CC_IN_INT || classes.i < 1) return false;
    const int value = index->value;
    CcType t = g->val.at[value].type;
    const CcType *to = &g->val.at[n.out0].type;
    if (t.ndim < 0 || to->ndim != t.ndim + 1 || t.dtype != CC_DT_I64 || cc_type_numel(to) == 0) return false;
    t.size[t.ndim] = 1;
    t.stride[t.ndim++] = 0;
    const CcOperand in[] = {value_of(cc_views_window(g, value, &t)), classes, {.kind = CC_IN_BOOL}};
    cc_edit_rewrite(g, node, CC_OP_hot, in, CC_COUNT(in));
    return true;
}

static bool try_rewrite(CcGraph *g, int node, bool gathers) {
    CcReach r;
    if (g->node.at[node].op == CC_OP_one_hot) return hot(g, node);
    if (!understand(g, &g->node.at[node], gathers, &r)) return false;
    rewrite(g, node, &r);
    return true;
}

/* The first node behind which eager can't begin anew, by its origin, since a pass may just be adding nodes; random ones
 * may be moved in front of others. */
static int first_final(const CcGraph *g) {
    int first = INT_MAX;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (n->flags & CC_N_RANDOM) return -1;
        if (n->flags & CC_N_WRITES && !n->again) first = CC_MIN(first, n->origin);
    }
    return first;
}

bool cc_index_may(const CcGraph *g, int node) {
    const int final = first_final(g), origin = g->node.at[node].origin;
    /* it looks at its indices first */
    return origin < final || (origin == final && cc_into_is(g, &g->node.at[node]));
}

/* What an output or an effect needs, and not only what may raise. */
static bool needed(const CcGraph *g, int value, const int *uses) {
    return uses[value] > 0 || g->val.at[value].is_output;
}

void cc_index_rewrite(CcGraph *g, const CcGroupRules *rules) {
    bool *live = malloc((size_t)g->node.n + 1);
    int *uses = calloc((size_t)g->val.n + 1, sizeof *uses);
    const int end = rules->asserts ? INT_MAX : first_final(g);
    if (live && uses) {
        cc_dce_mark(g, live);
        cc_dce_uses(g, live, uses);
    }
    for (int i = 0; live && uses && i < g->node.n && g->node.at[i].origin < end; i++) {
        const CcNode *n = &g->node.at[i];
        if (cc_op_info((CcOpId)n->op)->kind != CC_K_INDEX || n->flags || n->n_out != 1 ||
            cc_group_banned(g, i, rules) || !needed(g, n->out0, uses))
            continue;
        const CcEditMark mark = cc_edit_mark(g);
        if (try_rewrite(g, i, rules->gathers)) (void)cc_group_keeps(g, i, mark, rules);
        else cc_edit_undo(g, mark);
    }
    free(live);
    free(uses);
}
