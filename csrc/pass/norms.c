/* norms: an eval-mode batch norm that does not follow a convolution becomes pointwise. Windows broadcast its vectors
 * along the channels, [C, 1, 1] of [C] for an image. Value and node numbers stay.
 *
 * Group and instance norm are layer norms of a view of the image: [N, G, C / G, H, W], reduced over the last three
 * dims. The value of a group norm becomes a window of that result, and pointwise nodes after it use the same view:
 *
 *   y = group_norm(x)  z = silu(y)  s = add(z, h)   ->   all five dims, one loop; y, z, s: windows of the new results */
#include "pass_int.h"

bool cc_norms_of_channels(const CcGraph *g, CcOperand o, const CcType *x) {
    if (o.kind != CC_IN_VALUE) return true;
    const CcType *t = &g->val.at[o.value].type;
    const bool half = cc_dtype_is_half(x->dtype);
    return t->ndim == 1 && t->device == x->device && (t->dtype == x->dtype || (half && t->dtype == CC_DT_F32)) &&
           t->size[0] == x->size[1];
}

static bool good(const CcGraph *g, const CcNode *n, CcIn_batch_norm *in) {
    if (n->op != CC_OP_batch_norm || n->flags || n->n_out != 1 || !cc_in_batch_norm(g, n, in)) return false;
    const CcType *x = &g->val.at[in->x.value].type;
    return x->ndim >= 2 && cc_dtype_is_float(x->dtype) && in->eps.kind == CC_IN_FLOAT && in->mean.kind == CC_IN_VALUE &&
           in->var.kind == CC_IN_VALUE && cc_norms_of_channels(g, in->weight, x) &&
           cc_norms_of_channels(g, in->bias, x) && cc_norms_of_channels(g, in->mean, x) &&
           cc_norms_of_channels(g, in->var, x);
}

/* Will it be a post-op of the convolution whose result only it reads? */
static bool behind_conv(const CcGraph *g, const CcNode *n, int x, const CcGroupRules *rules) {
    const int def = g->val.at[x].def;
    if (cc_group_apart(g, (int)(n - g->node.at), rules)) return false;
    if (def < 0 || cc_node_kind(&g->node.at[def]) != CC_K_CONV || !cc_group_takes(g, def, rules) ||
        g->val.at[x].is_output)
        return false;
    return cc_edit_reads(g, x) == 1;
}

CcOperand cc_norms_see(CcGraph *g, CcOperand vector, int ndim, int64_t groups) {
    if (vector.kind != CC_IN_VALUE || (ndim == 2 && !groups)) return vector;
    CcType t = g->val.at[vector.value].type;
    const int64_t step = t.stride[0], size = t.size[0];
    t.ndim = (int8_t)(ndim - 1);
    for (int d = 0; d < t.ndim; d++) {
        t.size[d] = 1;
        t.stride[d] = 0;
    }
    t.size[0] = groups ? groups : size;
    t.stride[0] = groups ? step * (size / groups) : step;
    if (groups) t.size[1] = size / groups, t.stride[1] = step;
    return value_of(cc_views_window(g, vector.value, &t));
}

static void rewrite(CcGraph *g, int node, const CcIn_batch_norm *in) {
    const int ndim = g->val.at[in->x.value].type.ndim;
    const CcOperand weight = cc_norms_see(g, in->weight, ndim, 0), bias = cc_norms_see(g, in->bias, ndim, 0),
                    mean = cc_norms_see(g, in->mean, ndim, 0), var = cc_norms_see(g, in->var, ndim, 0);
    cc_edit_make(g, node, norm_eval, .x = in->x, .weight = weight, .bias = bias, .mean = mean, .var = var,
                 .eps = in->eps);
}

/* ------------------------------------------------------------------ group and instance norm */

/* The type with dim 1 split in two; a dim of size 1 is broadcast. */
static CcType split(const CcType *t, int64_t groups) {
    CcType s = cc_type_with_dim(t, 2);
    const bool one = t->size[1] == 1;
    s.size[2] = one ? 1 : t->size[1] / groups;
    s.size[1] = one ? 1 : groups;
    s.stride[2] = t->stride[1];
    s.stride[1] = t->stride[1] * s.size[2];
    return s;
}

/* An instance norm counts as 0 groups here. */
static bool good_groups(const CcGraph *g, const CcNode *n, CcIn_group_norm *in) {
    const bool group = n->op == CC_OP_group_norm;
    CcIn_instance_norm own;
    if ((!group && n->op != CC_OP_instance_norm) || n->flags || n->n_out != 1) return false;
    if (group ? !cc_in_group_norm(g, n, in) : !cc_in_instance_norm(g, n, &own)) return false;
    if (!group)
        *in =
            (CcIn_group_norm){.x = own.x, .groups = int_of(0), .weight = own.weight, .bias = own.bias, .eps = own.eps};
    const CcType *x = &g->val.at[in->x.value].type, *out = &g->val.at[n->out0].type;
    return x->ndim >= 2 + !group && x->ndim < CC_MAX_DIMS && cc_type_same_shape(x, out) && x->dtype == out->dtype &&
           (!group || (in->groups.i >= 1 && x->size[1] % in->groups.i == 0)) &&
           cc_norms_of_channels(g, in->weight, x) && cc_norms_of_channels(g, in->bias, x);
}

/* The node's result becomes a window of a new value. */
static void see_result(CcGraph *g, int node, int64_t groups) {
    const int result = g->node.at[node].out0;
    const CcType t = split(&g->val.at[result].type, groups);
    const int window = cc_views_result(g, result, &t);
    CcNode *n = cc_edit_node(g, node);
    n->out0 = window;
    n->rewritten = true;
}

static void rewrite_groups(CcGraph *g, int node, const CcIn_group_norm *in) {
    const int64_t groups = in->groups.i;
    CcOperand x = in->x;
    const CcType t = groups ? split(&g->val.at[x.value].type, groups) : g->val.at[x.value].type;
    if (groups) x.value = cc_views_window(g, x.value, &t);
    const CcOperand weight = cc_norms_see(g, in->weight, t.ndim, groups),
                    bias = cc_norms_see(g, in->bias, t.ndim, groups);
    cc_edit_make(g, node, layer_norm, .x = x, .dims = last_dims(t.ndim - 2), .weight = weight, .bias = bias,
                 .eps = in->eps);
    if (groups) see_result(g, node, groups);
}

/* A pointwise node that reads a value that is now a window. seen: value -> the value it is a window of; 0:
 * unchanged. */
static bool reads_windows(const CcGraph *g, const CcNode *n, const int *seen, int n_seen, int64_t *groups) {
    const CcExpr *e = cc_op_expr(g, n);
    if (cc_node_kind(n) != CC_K_POINTWISE || n->n_out != 1 || n->flags || !e || cc_expr_counts(e)) return false;
    const CcType *out = &g->val.at[n->out0].type;
    bool any = false;
    for (int i = 0; i < n->n_in; i++) {
        const int x = cc_graph_value(g, n, i);
        if (x < 0) continue;
        const CcVal *v = &g->val.at[x];
        if (v->type.ndim != 0 && v->type.ndim != out->ndim) return false;
        if (x >= n_seen || !seen[x]) continue;
        const int64_t own = g->val.at[seen[x]].type.size[1];
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

/* Does a back-end take the rewritten node i? If so, sets seen[value] where its result changed; else undoes the
 * rewrite. */
static bool try_node(CcGraph *g, int i, const CcGroupRules *rules, int *seen, int n_seen) {
    CcIn_group_norm in = {.groups = int_of(0)};
    int64_t groups = 0;
    const int result = g->node.at[i].out0;
    const bool reader = seen && reads_windows(g, &g->node.at[i], seen, n_seen, &groups);
    if (!reader && !good_groups(g, &g->node.at[i], &in)) return false;
    const CcEditMark mark = cc_edit_mark(g);
    if (!reader) groups = in.groups.i;
    if (reader) rewrite_reader(g, i, seen, n_seen, groups);
    else rewrite_groups(g, i, &in);
    const bool good = cc_group_keeps(g, i, mark, rules);
    if (good && groups && seen) seen[result] = g->node.at[i].out0;
    return good;
}

bool cc_norms_takes(CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    CcIn_batch_norm in;
    if (cc_group_banned(g, node, rules)) return false;
    if (good(g, n, &in)) return !behind_conv(g, n, in.x.value, rules);
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
        const CcNode *n = &g->node.at[i];
        CcIn_batch_norm in;
        if (cc_group_banned(g, i, rules) || !good(g, n, &in) || behind_conv(g, n, in.x.value, rules)) continue;
        rewrite(g, i, &in);
    }
    int *seen = any ? calloc((size_t)values + 1, sizeof *seen) : NULL;
    for (int i = 0; seen && i < g->node.n; i++)
        if (!cc_group_banned(g, i, rules)) (void)try_node(g, i, rules, seen, values);
    free(seen);
}
