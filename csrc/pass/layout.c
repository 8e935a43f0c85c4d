/* layout: keeps values between convolutions channels-last.
 *
 *   a = conv(x)  b = relu(a)  c = max_pool(b)  d = conv(c)  e = add(b', d) ...
 *
 * Convolutions work in this layout (run/convolution.c) and copy operands in any other, so a value between two of
 * them gets these strides, and so do pointwise nodes and poolings in between. What torch or the caller sees keeps
 * the recorded strides. Value and node numbers stay. */
#include "pass.h"

enum { MANY = 4, SMALL = 64 };

typedef struct Layout {
    const CcGraph *g;
    const CcGroupRules *rules;
    bool *live, *ours;   /* by node. ours: not a host step, or a convolution that follows */
    bool *follows;       /* by node: a torch convolution that follows its operand's layout */
    bool *channels_last; /* by value: becomes channels-last */
    bool *whole;         /* by value: a window of it exists */
    CcReaders readers;
} Layout;

static bool has_one_position(const CcType *t) {
    int64_t spots = 1;
    for (int d = 2; d < t->ndim; d++) spots *= t->size[d];
    return spots == 1;
}

/* A torch convolution, which follows the layout of its operand. For grouped ones (usually depthwise) torch has
 * kernels for the recorded layout; cuDNN has no channels-last f64. */
bool cc_layout_follows(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    CcIn_conv in;
    if (!rules->follows || n->op != CC_OP_conv || n->flags || n->rewritten || n->n_out != 1 || !cc_in_conv(g, n, &in) ||
        cc_group_takes(g, node, rules))
        return false;
    const CcType *out = &g->val.at[n->out0].type;
    return in.groups.i == 1 && g->val.at[in.x.value].type.ndim == 4 && out->ndim == 4 && out->dtype != CC_DT_F64;
}

/* E.g. a global pooling. On the CPU a channels-last kernel runs down columns, which is as fast if whole planes are
 * reduced. */
static bool shrinks(const Layout *w, const CcNode *n) {
    const int x = cc_graph_source(w->g, n);
    if (n->n_out != 1 || x < 0) return false;
    const CcType *t = &w->g->val.at[x].type;
    const bool planes = t->ndim > 2 && cc_op_dims(w->g, n) == (1 << (t->ndim - 2)) - 1;
    return (w->rules->gathers || planes) && !cc_type_same_shape(t, &w->g->val.at[n->out0].type);
}

/* Does this node accept operand k, or for k = -1 make its result, with any strides? */
static bool any_strides(const Layout *w, const CcNode *n, int k) {
    switch (cc_node_kind(n)) {
    case CC_K_POINTWISE: return true;
    case CC_K_CONCAT: return n->op != CC_OP_stack && (n->op != CC_OP_roll || n->n_in > 2);
    case CC_K_CONV:
    case CC_K_POOL:
    case CC_K_RESAMPLE: return k <= 0;
    case CC_K_REDUCE:
        return k >= 0 && (n->op == CC_OP_batch_mean || n->op == CC_OP_batch_centre || n->op == CC_OP_batch_spread ||
                          (k == 0 && shrinks(w, n)));
    default: return n->op == CC_OP_batch_norm && k <= 0;
    }
}

/* May this value have other strides, as far as its maker is concerned? */
static bool can_move(const Layout *w, int value) {
    const CcVal *v = &w->g->val.at[value];
    const CcType *t = &v->type;
    if (v->def < 0 || !w->live[v->def] || !w->ours[v->def] || !any_strides(w, &w->g->node.at[v->def], -1) ||
        v->is_output || v->window_of || v->narrowed || w->whole[value] || t->ndim < 3 || t->ndim > 5 ||
        t->device != 1 || t->size[1] == 1 || !cc_type_contiguous(t))
        return false;
    return !has_one_position(t) && w->g->node.at[v->def].n_out == 1;
}

static bool same_shape(const Layout *w, int a, int b) {
    return cc_type_same_shape(&w->g->val.at[a].type, &w->g->val.at[b].type);
}

/* Finds values that may change layout: all readers are ours and accept any strides. */
static void find_movable(Layout *w) {
    const CcGraph *g = w->g;
    for (int v = 0; v < g->val.n; v++) w->channels_last[v] = can_move(w, v);
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        for (int k = 0; w->live[i] && k < n->n_in; k++) {
            const int value = cc_graph_value(g, n, k);
            if (value < 0) continue;
            if (!w->ours[i] || !any_strides(w, n, k)) w->channels_last[cc_graph_base(g, value)] = false;
        }
    }
}

/* A convolution to one channel is no reason to reorder its operand. With few channels it reads columns innermost
 * (dev/conv.c ONE); with many, the kernel before it would have to reorder its own operand and lose more than
 * oneDNN's copy takes. relu and 3x3 of 64 channels, 8x64x64: 4.5 ms, channels-last 6.1; cat before it 4.7, 5.0;
 * max_pool2d 3.4, 3.2 (Zen 4, two threads). */
static bool gathers(const CcGraph *g, const CcNode *n) {
    const CcType *t = &g->val.at[n->out0].type;
    return cc_node_kind(n) == CC_K_CONV && t->ndim > 1 && t->size[1] == 1;
}

/* gains[value]: a convolution makes or reads it, or it lies between such values. */
static void spread_gain(const Layout *w, bool *gains) {
    const CcGraph *g = w->g;
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < g->node.n; i++) {
            const CcNode *n = &g->node.at[i];
            if (!w->live[i] || !w->ours[i]) continue;
            if (gathers(g, n)) continue;
            bool any = cc_node_kind(n) == CC_K_CONV || gains[n->out0];
            for (int k = 0; k < n->n_in && !any; k++)
                any = cc_graph_operand(g, n, k)->kind == CC_IN_VALUE && gains[cc_graph_operand(g, n, k)->value];
            for (int k = -1; any && k < n->n_in; k++) {
                if (k >= 0 && cc_graph_operand(g, n, k)->kind != CC_IN_VALUE) continue;
                const int v = k < 0 ? n->out0 : cc_graph_operand(g, n, k)->value;
                if (!w->channels_last[v] || gains[v]) continue;
                gains[v] = again = true;
            }
        }
    }
}

/* Does a following convolution make it from a channels-last operand? Then it is channels-last anyway. */
static bool follows_operand(const Layout *w, int value) {
    const int def = w->g->val.at[value].def;
    return w->follows[def] && w->channels_last[cc_graph_source(w->g, &w->g->node.at[def])];
}

/* A kernel from one layout to another is slow. A value that only such kernels would read keeps its layout. */
static bool drop_slow(Layout *w) {
    const CcGraph *g = w->g;
    bool again = false;
    for (int v = 0; v < g->val.n; v++) {
        bool good = false, bad = false;
        if (!w->channels_last[v]) continue;
        for (int r = w->readers.begin[v]; r < w->readers.begin[v + 1]; r++) {
            const int i = w->readers.node[r];
            const CcNode *n = &g->node.at[i];
            if (!w->live[i]) continue;
            if (w->channels_last[n->out0] || has_one_position(&g->val.at[n->out0].type)) good = true;
            else if (!w->follows[i] && (cc_node_kind(n) == CC_K_CONV || !same_shape(w, v, n->out0))) good = true;
            else bad = true;
        }
        if (!bad || good || follows_operand(w, v)) continue;
        w->channels_last[v] = false;
        again = true;
    }
    return again;
}

/* A following convolution changes its result's layout only if its operand changes, or is cheap to copy: a network's
 * input image. */
static bool drop_stranded(Layout *w) {
    const CcGraph *g = w->g;
    bool again = false;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (!w->follows[i] || !w->channels_last[n->out0]) continue;
        const int x = cc_graph_source(g, n);
        const CcType *t = &g->val.at[x].type;
        const bool small = 2 * cc_type_numel(t) <= cc_type_numel(&g->val.at[n->out0].type);
        if (w->channels_last[x] || small || has_one_position(t) || t->stride[1] == 1) continue;
        w->channels_last[n->out0] = false;
        again = true;
    }
    return again;
}

/* Images with few channels gain nothing (Inductor's threshold). */
static bool all_small(const Layout *w) {
    for (int i = 0; i < w->g->node.n; i++) {
        const CcOperand *weight = w->follows[i] ? cc_graph_operand(w->g, &w->g->node.at[i], CC_AT(conv, weight)) : NULL;
        if (!weight || weight->kind != CC_IN_VALUE) continue;
        const CcType *t = &w->g->val.at[weight->value].type;
        if (t->size[0] > SMALL || t->size[1] > SMALL) return false;
    }
    return true;
}

static void move(CcVal *v) {
    cc_type_make_channels_last(&v->type);
    v->channels_last = true;
}

static void choose(Layout *w, bool *gains) {
    const CcGraph *g = w->g;
    memset(gains, 0, (size_t)g->val.n);
    for (int i = 0; i < g->node.n; i++) w->ours[i] = w->live[i] && (w->follows[i] || cc_separate_takes(g, i, w->rules));
    find_movable(w);
    spread_gain(w, gains);
    for (int v = 0; v < g->val.n; v++) w->channels_last[v] = w->channels_last[v] && gains[v];
    while (drop_slow(w) || drop_stranded(w)) {}
}

/* A few following convolutions do not pay for the kernels that reorder images at both ends. */
static int count_following(const Layout *w) {
    int n = 0;
    for (int i = 0; i < w->g->node.n; i++) n += w->follows[i] && w->channels_last[w->g->node.at[i].out0];
    return n;
}

static void find_all(Layout *w, bool *gains) {
    const CcGraph *g = w->g;
    cc_dce_mark(g, w->live);
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].window_of) w->whole[cc_graph_base(g, v)] = true;
    for (int i = 0; i < g->node.n; i++) w->follows[i] = w->live[i] && cc_layout_follows(g, i, w->rules);
    choose(w, gains);
    const int following = count_following(w);
    if (following == 0 || (following >= MANY && !all_small(w))) return;
    for (int i = 0; i < g->node.n; i++) w->follows[i] = false;
    choose(w, gains);
}

void cc_layout_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || cc_node_kind(&g->node.at[i]) == CC_K_CONV;
    bool *flags = any ? calloc(1, 3 * nodes + 3 * values) : NULL;
    if (!flags) return;
    Layout w = {.g = g, .rules = rules, .live = flags, .ours = flags + nodes};
    w.follows = w.ours + nodes;
    w.channels_last = w.follows + nodes;
    w.whole = w.channels_last + values;
    if (cc_readers_find(g, &w.readers)) {
        find_all(&w, w.whole + values);
        for (int v = 0; v < g->val.n; v++)
            if (w.channels_last[v]) move(cc_edit_val(g, v));
    }
    cc_readers_free(&w.readers);
    free(flags);
}
