/* layout: keeps images with channels innermost between convolutions.
 *
 *   a = conv(x)  b = relu(a)  c = max_pool(b)  d = conv(c)  e = add(b', d) ...
 *
 * Convolutions work so (run/conv.c) and copy what lies otherwise, so a value between two of them is
 * given such strides, and so are those of pointwise nodes and poolings in between: strides are free
 * between steps. What torch or the caller sees keeps the recorded strides. Value and node numbers
 * stay. */
#include "pass.h"

typedef struct Layout {
    const CcGraph *g;
    const CcGroupRules *rules;
    bool *live, *ours; /* by node: it is needed; it is no host step */
    bool *last;        /* by value: gets channels innermost */
    bool *whole;       /* by value: a window looks into it */
} Layout;

static CcOpKind kind_of(const CcNode *n) { return cc_op_info((CcOpId)n->op)->kind; }

/* Does this node take its k-th operand, and with k -1 make its result, with any strides? */
static bool any_strides(const CcNode *n, int k) {
    switch (kind_of(n)) {
    case CC_K_POINTWISE: return true;
    case CC_K_CONCAT: return n->op != CC_OP_stack && (n->op != CC_OP_roll || n->n_in > 2);
    case CC_K_CONV:
    case CC_K_POOL:
    case CC_K_RESAMPLE: return k <= 0;
    case CC_K_REDUCE: return (n->op == CC_OP_batch_mean || n->op == CC_OP_batch_spread) && k >= 0;
    default: return n->op == CC_OP_batch_norm && k <= 0;
    }
}

/* May this value have other strides, as far as the node that makes it is concerned? */
static bool can_move(const Layout *w, int value) {
    const CcVal *v = &w->g->val.at[value];
    const CcType *t = &v->type;
    if (v->def < 0 || !w->live[v->def] || !w->ours[v->def] || !any_strides(&w->g->node.at[v->def], -1) ||
        v->is_output || v->window_of || v->narrowed || w->whole[value] || t->ndim < 3 || t->ndim > 5 ||
        t->device != 1 || t->size[1] == 1 || !cc_type_contiguous(t))
        return false;
    int64_t spots = 1;
    for (int d = 2; d < t->ndim; d++) spots *= t->size[d];
    return spots > 1 && w->g->node.at[v->def].n_out == 1;
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
            if (!w->ours[i] || !any_strides(n, k)) w->last[cc_graph_base(g, o->value)] = false;
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

/* A kernel from one layout to another is slow. A value that only such kernels would read stays. */
static bool drop_losers(Layout *w) {
    const CcGraph *g = w->g;
    bool again = false;
    for (int v = 0; v < g->val.n; v++) {
        bool good = false, bad = false;
        if (!w->last[v]) continue;
        for (int i = g->val.at[v].def + 1; i < g->node.n; i++) {
            const CcNode *n = &g->node.at[i];
            for (int k = 0; w->live[i] && k < n->n_in; k++) {
                if (cc_graph_operand(g, n, k)->kind != CC_IN_VALUE || cc_graph_operand(g, n, k)->value != v) continue;
                if (kind_of(n) == CC_K_CONV || w->last[n->out0] || !same_shape(w, v, n->out0)) good = true;
                else bad = true;
            }
        }
        if (!bad || good) continue;
        w->last[v] = false;
        again = true;
    }
    return again;
}

static void move(CcVal *v) {
    CcType *t = &v->type;
    int64_t stride = t->size[1];
    t->stride[1] = 1;
    for (int d = t->ndim - 1; d > 1; stride *= t->size[d--]) t->stride[d] = stride;
    t->stride[0] = stride;
    v->last = true;
}

static CcGraph *apply(Layout *w, bool *gains) {
    const CcGraph *g = w->g;
    CcGraph *out = NULL;
    cc_dce_mark(g, w->live);
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].window_of) w->whole[cc_graph_base(g, v)] = true;
    for (int i = 0; i < g->node.n; i++) w->ours[i] = w->live[i] && cc_group_takes(g, i, w->rules);
    find_movable(w);
    spread_gain(w, gains);
    for (int v = 0; v < g->val.n; v++) w->last[v] = w->last[v] && gains[v];
    while (drop_losers(w)) {}
    for (int v = 0; v < g->val.n; v++) {
        if (!w->last[v]) continue;
        if (!out) out = cc_graph_copy(g);
        move(&out->val.at[v]);
    }
    return out;
}

CcGraph *cc_layout_graph(const CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || kind_of(&g->node.at[i]) == CC_K_CONV;
    if (!any) return NULL;
    bool *flags = calloc(1, 2 * nodes + 3 * values);
    if (!flags) return NULL;
    Layout w = {.g = g, .rules = rules, .live = flags, .ours = flags + nodes};
    w.last = w.ours + nodes;
    w.whole = w.last + values;
    CcGraph *out = apply(&w, w.whole + values);
    free(flags);
    return out;
}
