/* layout: keeps images with channels innermost between convolutions.
 *
 *   a = conv(x)  b = relu(a)  c = max_pool(b)  d = conv(c)  e = add(b', d) ...
 *
 * Convolutions work so (run/conv.c) and copy what lies otherwise, so a value between two of them is
 * given such strides, and so are those of pointwise nodes and poolings in between: strides are free
 * between steps. What torch or the caller sees keeps the recorded strides. Value and node numbers
 * stay. */
#include "pass.h"

enum { MANY = 4, SMALL = 64 };

typedef struct Layout {
    const CcGraph *g;
    const CcGroupRules *rules;
    bool *live, *ours; /* by node: it is needed; it is no host step, or one that follows */
    bool *led;         /* by node: it is one that follows */
    bool *last;        /* by value: gets channels innermost */
    bool *whole;       /* by value: a window looks into it */
    CcReaders readers;
} Layout;

static CcOpKind kind_of(const CcNode *n) { return cc_op_info((CcOpId)n->op)->kind; }

static bool has_one_spot(const CcType *t) {
    int64_t spots = 1;
    for (int d = 2; d < t->ndim; d++) spots *= t->size[d];
    return spots == 1;
}

/* Torch's convolution of images, which follows what it reads. Of groups (depthwise ones are the usual) it has kernels
 * of its own for images as they are recorded; f64 is not turned by cuDNN. */
bool cc_layout_follows(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    if (!rules->follows || n->op != CC_OP_conv || n->flags || n->rewritten || n->n_out != 1 || n->n_in < 4 ||
        cc_group_takes(g, node, rules))
        return false;
    const CcOperand *x = cc_graph_operand(g, n, 0), *groups = cc_graph_operand(g, n, n->n_in - 1);
    const CcType *out = &g->val.at[n->out0].type;
    return x->kind == CC_IN_VALUE && groups->kind == CC_IN_INT && groups->i == 1 &&
           g->val.at[x->value].type.ndim == 4 && out->ndim == 4 && out->dtype != CC_DT_F64;
}

/* A global pooling, say. On the CPU a kernel goes down columns where channels are innermost, which is as good if it is
 * whole planes that are reduced. */
static bool shrinks(const Layout *w, const CcNode *n) {
    const CcOperand *x = cc_graph_operand(w->g, n, 0), *dims = x + 1;
    if (n->n_out != 1 || n->n_in < 2 || x->kind != CC_IN_VALUE) return false;
    const CcType *t = &w->g->val.at[x->value].type;
    const bool planes = t->ndim > 2 && dims->kind == CC_IN_INT && dims->i == (1 << (t->ndim - 2)) - 1;
    return (w->rules->gathers || planes) && !cc_type_same_shape(t, &w->g->val.at[n->out0].type);
}

/* Does this node take its k-th operand, and with k -1 make its result, with any strides? */
static bool any_strides(const Layout *w, const CcNode *n, int k) {
    switch (kind_of(n)) {
    case CC_K_POINTWISE: return true;
    case CC_K_CONCAT: return n->op != CC_OP_stack && (n->op != CC_OP_roll || n->n_in > 2);
    case CC_K_CONV:
    case CC_K_POOL:
    case CC_K_RESAMPLE: return k <= 0;
    case CC_K_REDUCE:
        return k >= 0 && (n->op == CC_OP_batch_mean || n->op == CC_OP_batch_spread || (k == 0 && shrinks(w, n)));
    default: return n->op == CC_OP_batch_norm && k <= 0;
    }
}

/* May this value have other strides, as far as the node that makes it is concerned? */
static bool can_move(const Layout *w, int value) {
    const CcVal *v = &w->g->val.at[value];
    const CcType *t = &v->type;
    if (v->def < 0 || !w->live[v->def] || !w->ours[v->def] || !any_strides(w, &w->g->node.at[v->def], -1) ||
        v->is_output || v->window_of || v->narrowed || w->whole[value] || t->ndim < 3 || t->ndim > 5 ||
        t->device != 1 || t->size[1] == 1 || !cc_type_contiguous(t))
        return false;
    return !has_one_spot(t) && w->g->node.at[v->def].n_out == 1;
}

static bool same_shape(const Layout *w, int a, int b) {
    return cc_type_same_shape(&w->g->val.at[a].type, &w->g->val.at[b].type);
}

/* Values that may move: all their readers are ours and take any strides. */
static void find_movable(Layout *w) {
    const CcGraph *g = w->g;
    for (int v = 0; v < g->val.n; v++) w->last[v] = can_move(w, v);
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        for (int k = 0; w->live[i] && k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, n, k);
            if (o->kind != CC_IN_VALUE) continue;
            if (!w->ours[i] || !any_strides(w, n, k)) w->last[cc_graph_base(g, o->value)] = false;
        }
    }
}

/* A convolution to one channel is no reason to turn what it reads: one of few channels reads columns innermost
 * (dev/image.c FEW), and for one of many the kernel before it, which would have to turn its input, loses more than
 * oneDNN's copy takes. relu and 3x3 of 64 channels, 8x64x64: 4.5 ms, turned 6.1; cat before it 4.7, 5.0; max_pool2d
 * 3.4, 3.2 (Zen 4, two threads). */
static bool gathers(const CcGraph *g, const CcNode *n) {
    const CcType *t = &g->val.at[n->out0].type;
    return kind_of(n) == CC_K_CONV && t->ndim > 1 && t->size[1] == 1;
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
            bool any = kind_of(n) == CC_K_CONV || gains[n->out0];
            for (int k = 0; k < n->n_in && !any; k++)
                any = cc_graph_operand(g, n, k)->kind == CC_IN_VALUE && gains[cc_graph_operand(g, n, k)->value];
            for (int k = -1; any && k < n->n_in; k++) {
                if (k >= 0 && cc_graph_operand(g, n, k)->kind != CC_IN_VALUE) continue;
                const int v = k < 0 ? n->out0 : cc_graph_operand(g, n, k)->value;
                if (!w->last[v] || gains[v]) continue;
                gains[v] = again = true;
            }
        }
    }
}

/* Does a convolution that follows make it, of what has channels innermost? Then it has them without more ado. */
static bool is_led(const Layout *w, int value) {
    const int def = w->g->val.at[value].def;
    return w->led[def] && w->last[cc_graph_operand(w->g, &w->g->node.at[def], 0)->value];
}

/* A kernel from one layout to another is slow. A value that only such kernels would read stays. */
static bool drop_losers(Layout *w) {
    const CcGraph *g = w->g;
    bool again = false;
    for (int v = 0; v < g->val.n; v++) {
        bool good = false, bad = false;
        if (!w->last[v]) continue;
        for (int r = w->readers.begin[v]; r < w->readers.begin[v + 1]; r++) {
            const int i = w->readers.node[r];
            const CcNode *n = &g->node.at[i];
            if (!w->live[i]) continue;
            if (w->last[n->out0] || has_one_spot(&g->val.at[n->out0].type)) good = true;
            else if (!w->led[i] && (kind_of(n) == CC_K_CONV || !same_shape(w, v, n->out0))) good = true;
            else bad = true;
        }
        if (!bad || good || is_led(w, v)) continue;
        w->last[v] = false;
        again = true;
    }
    return again;
}

/* A convolution that follows turns its result only if what it reads is turned, or is copied so for little: the image
 * that a network begins with. */
static bool drop_stranded(Layout *w) {
    const CcGraph *g = w->g;
    bool again = false;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (!w->led[i] || !w->last[n->out0]) continue;
        const int x = cc_graph_operand(g, n, 0)->value;
        const CcType *t = &g->val.at[x].type;
        const bool small = 2 * cc_type_numel(t) <= cc_type_numel(&g->val.at[n->out0].type);
        if (w->last[x] || small || has_one_spot(t) || t->stride[1] == 1) continue;
        w->last[n->out0] = false;
        again = true;
    }
    return again;
}

/* Images of few channels gain nothing by it (Inductor's threshold). */
static bool all_small(const Layout *w) {
    for (int i = 0; i < w->g->node.n; i++) {
        const CcOperand *weight = w->led[i] ? cc_graph_operand(w->g, &w->g->node.at[i], 1) : NULL;
        if (!weight || weight->kind != CC_IN_VALUE) continue;
        const CcType *t = &w->g->val.at[weight->value].type;
        if (t->size[0] > SMALL || t->size[1] > SMALL) return false;
    }
    return true;
}

static void move(CcVal *v) {
    cc_type_make_last(&v->type);
    v->last = true;
}

static void choose(Layout *w, bool *gains) {
    const CcGraph *g = w->g;
    memset(gains, 0, (size_t)g->val.n);
    for (int i = 0; i < g->node.n; i++) w->ours[i] = w->live[i] && (w->led[i] || cc_group_takes(g, i, w->rules));
    find_movable(w);
    spread_gain(w, gains);
    for (int v = 0; v < g->val.n; v++) w->last[v] = w->last[v] && gains[v];
    while (drop_losers(w) || drop_stranded(w)) {}
}

/* Convolutions that follow are not worth the kernels that turn images at both ends if there are but a few of them. */
static int count_led(const Layout *w) {
    int n = 0;
    for (int i = 0; i < w->g->node.n; i++) n += w->led[i] && w->last[w->g->node.at[i].out0];
    return n;
}

static void find_all(Layout *w, bool *gains) {
    const CcGraph *g = w->g;
    cc_dce_mark(g, w->live);
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].window_of) w->whole[cc_graph_base(g, v)] = true;
    for (int i = 0; i < g->node.n; i++) w->led[i] = w->live[i] && cc_layout_follows(g, i, w->rules);
    choose(w, gains);
    const int led = count_led(w);
    if (led == 0 || (led >= MANY && !all_small(w))) return;
    for (int i = 0; i < g->node.n; i++) w->led[i] = false;
    choose(w, gains);
}

void cc_layout_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || kind_of(&g->node.at[i]) == CC_K_CONV;
    bool *flags = any ? calloc(1, 3 * nodes + 3 * values) : NULL;
    if (!flags) return;
    Layout w = {.g = g, .rules = rules, .live = flags, .ours = flags + nodes};
    w.led = w.ours + nodes;
    w.last = w.led + nodes;
    w.whole = w.last + values;
    if (cc_readers_find(g, &w.readers)) {
        find_all(&w, w.whole + values);
        for (int v = 0; v < g->val.n; v++)
            if (w.last[v]) move(cc_edit_val(g, v));
    }
    cc_readers_free(&w.readers);
    free(flags);
}
