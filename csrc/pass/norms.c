/* norms: a batch norm in eval that stands behind no convolution is a pointwise op. Its vectors are read through windows
 * that broadcast along the channels, [C, 1, 1] of [C] for an image. Value and node numbers stay.
 *
 * Group and instance norm are layer norms of the image seen otherwise: [N, G, C / G, H, W], reduced over the last
 * three. What a group norm makes is then a window of its result, and pointwise nodes that go on with it see everything
 * so, too:
 *
 *   y = group_norm(x)  z = silu(y)  s = add(z, h)   ->   all five dims, one loop; y, z, s: windows of what they were */
#include "pass.h"

enum { X, WEIGHT, VAR = 4 }; /* operands: ops.def */

static bool vector_of(const CcType *t, const CcType *x) {
    const bool half = x->dtype == CC_DT_BF16 || x->dtype == CC_DT_F16;
    return t->ndim == 1 && (t->dtype == x->dtype || (half && t->dtype == CC_DT_F32)) && t->size[0] == x->size[1];
}

static bool good(const CcGraph *g, const CcNode *n) {
    if (n->op != CC_OP_batch_norm || n->flags || n->n_out != 1 || n->n_in != 6 ||
        cc_graph_operand(g, n, X)->kind != CC_IN_VALUE)
        return false;
    const CcType *x = &g->val.at[cc_graph_operand(g, n, X)->value].type;
    if (x->ndim < 2 || cc_dtype_info((CcDtype)x->dtype)->kind != 'f' || cc_graph_operand(g, n, 5)->kind != CC_IN_FLOAT)
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
    if (cc_group_apart(g, (int)(n - g->node.at), rules)) return false;
    if (def < 0 || cc_op_info((CcOpId)g->node.at[def].op)->kind != CC_K_CONV || !cc_group_takes(g, def, rules) ||
        g->val.at[x].is_output)
        return false;
    return cc_edit_reads(g, x) == 1;
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
    const CcNode *n = &g->node.at[node];
    const int ndim = g->val.at[cc_graph_operand(g, n, X)->value].type.ndim;
    CcOperand in[VAR + 2];
    for (int i = 0; i < CC_COUNT(in); i++) {
        in[i] = *cc_graph_operand(g, n, i);
        if (ndim > 2 && i >= WEIGHT && in[i].kind == CC_IN_VALUE) in[i].value = add_window(g, in[i].value, ndim);
    }
    cc_edit_rewrite(g, node, CC_OP_norm_eval, in, CC_COUNT(in));
}

/* ------------------------------------------------------------------ group and instance norm */

/* The type with dim 1 in two; a dim of size 1 is broadcast. */
static CcType split(const CcType *t, int64_t groups) {
    CcType s = *t;
    const bool one = t->size[1] == 1;
    s.ndim++;
    for (int d = s.ndim - 1; d > 2; d--) {
        s.size[d] = t->size[d - 1];
        s.stride[d] = t->stride[d - 1];
    }
    s.size[2] = one ? 1 : t->size[1] / groups;
    s.size[1] = one ? 1 : groups;
    s.stride[2] = t->stride[1];
    s.stride[1] = t->stride[1] * s.size[2];
    return s;
}

static bool good_groups(const CcGraph *g, const CcNode *n, int64_t *groups) {
    const bool group = n->op == CC_OP_group_norm;
    if ((!group && n->op != CC_OP_instance_norm) || n->flags || n->n_out != 1 || n->n_in != 4 + group ||
        cc_graph_operand(g, n, 0)->kind != CC_IN_VALUE)
        return false;
    const CcType *x = &g->val.at[cc_graph_operand(g, n, 0)->value].type, *out = &g->val.at[n->out0].type;
    *groups = group ? cc_graph_operand(g, n, 1)->i : 0;
    if (x->ndim < 2 + !group || x->ndim >= CC_MAX_DIMS || !cc_type_same_shape(x, out) || x->dtype != out->dtype ||
        (group && (cc_graph_operand(g, n, 1)->kind != CC_IN_INT || *groups < 1 || x->size[1] % *groups)))
        return false;
    for (int i = 1 + group; i < 3 + group; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind == CC_IN_VALUE ? !vector_of(&g->val.at[o->value].type, x) : o->kind != CC_IN_NONE) return false;
    }
    return true;
}

/* A vector of channels as [G, C / G, 1, 1] or [C, 1, 1]. */
static CcOperand see_vector(CcGraph *g, CcOperand o, int ndim, int64_t groups) {
    if (o.kind != CC_IN_VALUE) return o;
    CcType t = g->val.at[o.value].type;
    const int64_t step = t.stride[0], size = t.size[0];
    t.ndim = (int8_t)(ndim - 1);
    for (int d = 0; d < t.ndim; d++) {
        t.size[d] = 1;
        t.stride[d] = 0;
    }
    t.size[0] = groups ? groups : size;
    t.stride[0] = groups ? step * (size / groups) : step;
    if (groups) t.size[1] = size / groups, t.stride[1] = step;
    o.value = cc_views_window(g, o.value, &t);
    return o;
}

/* The node makes a window of its result. */
static void see_result(CcGraph *g, int node, int64_t groups) {
    const int result = g->node.at[node].out0;
    const CcType t = split(&g->val.at[result].type, groups);
    const bool is_output = g->val.at[result].is_output;
    const int window = cc_views_window(g, result, &t);
    g->val.at[window].is_output = is_output;
    CcNode *n = cc_edit_node(g, node);
    n->out0 = window;
    n->rewritten = true;
}

static void rewrite_groups(CcGraph *g, int node, int64_t groups) {
    const CcNode n = g->node.at[node];
    const int first = n.op == CC_OP_group_norm;
    CcOperand x = *cc_graph_operand(g, &n, 0), weight = *cc_graph_operand(g, &n, 1 + first),
              bias = *cc_graph_operand(g, &n, 2 + first);
    const CcType t = groups ? split(&g->val.at[x.value].type, groups) : g->val.at[x.value].type;
    if (groups) x.value = cc_views_window(g, x.value, &t);
    const CcOperand dims = {.kind = CC_IN_INT, .i = (INT64_C(1) << (t.ndim - 2)) - 1};
    weight = see_vector(g, weight, t.ndim, groups);
    bias = see_vector(g, bias, t.ndim, groups);
    const CcOperand in[] = {x, dims, weight, bias, *cc_graph_operand(g, &n, 3 + first)};
    cc_edit_rewrite(g, node, CC_OP_layer_norm, in, CC_COUNT(in));
    if (groups) see_result(g, node, groups);
}

/* A pointwise node that reads what is a window now: value -> window in `seen`, 0: as it was. */
static bool goes_on(const CcGraph *g, const CcNode *n, const int *seen, int n_seen, int64_t *groups) {
    const CcExpr *e = cc_op_expr(g, n);
    if (cc_op_info((CcOpId)n->op)->kind != CC_K_POINTWISE || n->n_out != 1 || n->flags || !e || cc_expr_counts(e))
        return false;
    const CcType *out = &g->val.at[n->out0].type;
    bool any = false;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind != CC_IN_VALUE) continue;
        const CcVal *v = &g->val.at[o->value];
        if (v->type.ndim != 0 && v->type.ndim != out->ndim) return false;
        if (o->value >= n_seen || !seen[o->value]) continue;
        const int64_t own = g->val.at[seen[o->value]].type.size[1];
        if (!cc_type_same_shape(&v->type, out) || (any && own != *groups)) return false;
        any = true;
        *groups = own;
    }
    return any;
}

static void rewrite_reader(CcGraph *g, int node, const int *seen, int n_seen, int64_t groups) {
    const CcNode n = g->node.at[node];
    const int in0 = g->operand.n;
    for (int i = 0; i < n.n_in; i++) {
        CcOperand o = *cc_graph_operand(g, &n, i);
        if (o.kind == CC_IN_VALUE && g->val.at[o.value].type.ndim > 0) {
            const CcType t = split(&g->val.at[o.value].type, groups);
            const bool is_seen = o.value < n_seen && seen[o.value];
            o.value = is_seen ? seen[o.value] : cc_views_window(g, o.value, &t);
        }
        cc_vec_push(&g->operand, o);
    }
    cc_edit_slots(g, node, in0, n.n_in);
    see_result(g, node, groups);
}

/* Does a back-end take node i so? Then seen[value] is set where its result is another one; else it is as it was. */
static bool try_node(CcGraph *g, int i, const CcGroupRules *rules, int *seen, int n_seen) {
    int64_t groups = 0;
    const int result = g->node.at[i].out0;
    const bool reader = seen && goes_on(g, &g->node.at[i], seen, n_seen, &groups);
    if (!reader && !good_groups(g, &g->node.at[i], &groups)) return false;
    const CcEditMark mark = cc_edit_mark(g);
    if (reader) rewrite_reader(g, i, seen, n_seen, groups);
    else rewrite_groups(g, i, groups);
    const bool good = cc_group_keeps(g, i, mark, rules);
    if (good && groups && seen) seen[result] = g->node.at[i].out0;
    return good;
}

bool cc_norms_takes(CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    if (cc_group_banned(g, node, rules)) return false;
    if (good(g, n)) return !behind_conv(g, n, rules);
    const CcEditMark mark = cc_edit_mark(g);
    const bool taken = try_node(g, node, rules, NULL, 0);
    cc_edit_undo(g, mark);
    return taken;
}

void cc_norms_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const int values = g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n; i++) {
        any = any || g->node.at[i].op == CC_OP_group_norm || g->node.at[i].op == CC_OP_instance_norm;
        if (cc_group_banned(g, i, rules) || !good(g, &g->node.at[i]) || behind_conv(g, &g->node.at[i], rules)) continue;
        rewrite(g, i);
    }
    int *seen = any ? calloc((size_t)values + 1, sizeof *seen) : NULL;
    for (int i = 0; seen && i < g->node.n; i++)
        if (!cc_group_banned(g, i, rules)) (void)try_node(g, i, rules, seen, values);
    free(seen);
}
