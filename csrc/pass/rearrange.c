/* rearrange: turns ops that only move or repeat elements into copies. Windows give operand and result one common
 * shape:
 *
 *   upsample_nearest by 2   x [N, C, H, 1, W, 1] of [N, C, H, W]   ->   result [N, C, H, 2, W, 2] of [N, C, 2 H, 2 W]
 *
 * A dim that the other side has in two is split; a repeated dim has stride 0 in the operand, a flipped one a
 * negative stride. glu, diff, prelu and outer are expressions over such windows. */
#include "pass_int.h"

typedef struct Axes {
    int n;
    bool good;
    int64_t size[CC_MAX_DIMS], from[CC_MAX_DIMS], to[CC_MAX_DIMS]; /* strides, in elements */
    int64_t offset;                                                /* first element, in the operand */
} Axes;

static void axis(Axes *a, int64_t size, int64_t from, int64_t to) {
    if (size == 1) return;
    a->good = a->good && a->n < CC_MAX_DIMS;
    if (!a->good) return;
    a->size[a->n] = size;
    a->from[a->n] = from;
    a->to[a->n++] = to;
}

static void same(Axes *a, const CcType *x, const CcType *out, int d) {
    axis(a, x->size[d], x->stride[d], out->stride[d]);
}

/* Repeats each index of the dim `times` times. */
static void repeat_each(Axes *a, const CcType *x, const CcType *out, int d, int64_t times) {
    axis(a, x->size[d], x->stride[d], out->stride[d] * times);
    axis(a, times, 0, out->stride[d]);
}

/* Factors are powers of two or 3: there eager's index, floor(i * (1 / times)) in float, is i / times. Eager uses a
 * given scale instead, so that must be the same number. */
static void upsample(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    CcIn_upsample_nearest in;
    a->good = x->ndim >= 2 && cc_in_upsample_nearest(g, n, &in) && (in.factors.n == 0 || in.factors.n == x->ndim - 2);
    for (int d = 0; d < x->ndim && a->good; d++) {
        if (d < 2) {
            same(a, x, out, d);
            continue;
        }
        const int64_t times = out->size[d] / CC_MAX(1, x->size[d]);
        const CcOperand *scale = in.factors.n ? cc_graph_operand(g, n, in.factors.first + d - 2) : NULL;
        a->good = times >= 1 && times * x->size[d] == out->size[d] && (times == 3 || (times & (times - 1)) == 0) &&
                  (!scale || cc_operand_number(scale) == (double)times);
        repeat_each(a, x, out, d, times);
    }
}

/* pixel_shuffle and pixel_unshuffle: the side with many channels [.., C r r, H, W] has strides ms, the large image
 * [.., C, H r, W r] strides ls. */
static void pixels(const CcType *many, const int64_t *ms, const int64_t *ls, int64_t r, bool shuffle, Axes *a) {
    const int c = many->ndim - 3, h = c + 1, w = c + 2;
    const int64_t size[] = {many->size[c] / (r * r), many->size[h], r, many->size[w], r};
    const int64_t in_many[] = {ms[c] * r * r, ms[h], ms[c] * r, ms[w], ms[c]};
    const int64_t in_large[] = {ls[c], ls[h] * r, ls[h], ls[w] * r, ls[w]};
    for (int i = 0; i < 5; i++)
        axis(a, size[i], shuffle ? in_many[i] : in_large[i], shuffle ? in_large[i] : in_many[i]);
}

static void shuffle_pixels(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    const bool shuffle = n->op == CC_OP_pixel_shuffle;
    CcIn_pixel_shuffle in;
    const int64_t r = cc_in_pixel_shuffle(g, n, &in) ? in.factor.i : 0;
    a->good = r >= 1 && x->ndim >= 3 && x->ndim == out->ndim;
    for (int d = 0; d < x->ndim - 3 && a->good; d++) same(a, x, out, d);
    if (a->good)
        pixels(shuffle ? x : out, shuffle ? x->stride : out->stride, shuffle ? out->stride : x->stride, r, shuffle, a);
}

static void shuffle_channels(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    CcIn_channel_shuffle in;
    const int64_t groups = cc_in_channel_shuffle(g, n, &in) ? in.groups.i : 0;
    a->good = groups >= 1 && x->ndim >= 2 && x->size[1] % groups == 0;
    for (int d = 0; d < x->ndim && a->good; d++) {
        if (d != 1) {
            same(a, x, out, d);
            continue;
        }
        axis(a, x->size[1] / groups, x->stride[1], out->stride[1] * groups);
        axis(a, groups, x->stride[1] * (x->size[1] / groups), out->stride[1]);
    }
}

/* repeat: one number per dim of the result; tile may omit leading ones. */
static void repeat(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    CcIn_repeat in;
    const int fresh = out->ndim - x->ndim;
    a->good = fresh >= 0 && cc_in_repeat(g, n, &in) && in.times.n <= out->ndim;
    for (int d = 0; d < out->ndim && a->good; d++) {
        const int at = in.times.n - out->ndim + d;
        const CcOperand given = at < 0 ? int_of(1) : *cc_graph_operand(g, n, in.times.first + at);
        const int64_t times = given.kind == CC_IN_INT ? given.i : 0, size = d < fresh ? 1 : x->size[d - fresh];
        a->good = times >= 1 && times * size == out->size[d];
        axis(a, times, 0, out->stride[d] * size);
        if (d >= fresh) axis(a, size, x->stride[d - fresh], out->stride[d]);
    }
}

static void interleave(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    CcIn_repeat_interleave in;
    a->good = cc_in_repeat_interleave(g, n, &in);
    if (!a->good) return;
    const int64_t times = in.times.i;
    const int dim = cc_graph_dim(x, &in.dim);
    a->good = times >= 1 && dim >= 0 && x->ndim == out->ndim;
    for (int d = 0; d < x->ndim && a->good; d++) {
        if (d == dim) repeat_each(a, x, out, d, times);
        else same(a, x, out, d);
    }
}

static void flip(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    CcIn_flip in;
    unsigned backwards = 0;
    a->good = cc_in_flip(g, n, &in);
    for (int i = 0; a->good && i < in.dims.n; i++) {
        const int d = cc_graph_dim(x, cc_graph_operand(g, n, in.dims.first + i));
        a->good = d >= 0;
        if (d >= 0) backwards |= 1u << d;
    }
    for (int d = 0; d < x->ndim && a->good; d++) {
        const bool back = backwards >> d & 1;
        axis(a, x->size[d], back ? -x->stride[d] : x->stride[d], out->stride[d]);
        if (back) a->offset += (x->size[d] - 1) * x->stride[d];
    }
}

/* Windows of an image [N, C, H, W], or without N, side by side: [N, C * kernel, windows]. */
static void unfold(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    CcIn_im2col in;
    const int h = x->ndim - 2, rows = out->ndim - 2;
    int64_t windows[2];
    a->good = cc_in_im2col(g, n, &in) && (x->ndim == 3 || x->ndim == 4) && out->ndim == x->ndim - 1;
    for (int i = 0; i < 2 && a->good; i++) {
        const int64_t reach = in.dilation[i].i * (in.kernel[i].i - 1) + 1, by = in.stride[i].i;
        a->good =
            in.dilation[i].i >= 0 && in.kernel[i].i >= 0 && in.padding[i].i == 0 && by > 0 && reach <= x->size[h + i];
        windows[i] = a->good ? (x->size[h + i] - reach) / by + 1 : 0;
    }
    if (!a->good) return;
    if (x->ndim == 4) same(a, x, out, 0);
    const int64_t kernel[] = {in.kernel[0].i, in.kernel[1].i};
    axis(a, x->size[h - 1], x->stride[h - 1], out->stride[rows] * kernel[0] * kernel[1]);
    for (int i = 0; i < 2; i++)
        axis(a, kernel[i], x->stride[h + i] * in.dilation[i].i, out->stride[rows] * (i ? 1 : kernel[1]));
    for (int i = 0; i < 2; i++)
        axis(a, windows[i], x->stride[h + i] * in.stride[i].i, out->stride[rows + 1] * (i ? 1 : windows[1]));
}

static bool axes_of(const CcGraph *g, const CcNode *n, const CcType *x, const CcType *out, Axes *a) {
    *a = (Axes){.good = true};
    switch (n->op) {
    case CC_OP_upsample_nearest: upsample(g, n, x, out, a); break;
    case CC_OP_pixel_shuffle:
    case CC_OP_pixel_unshuffle: shuffle_pixels(g, n, x, out, a); break;
    case CC_OP_channel_shuffle: shuffle_channels(g, n, x, out, a); break;
    case CC_OP_repeat: repeat(g, n, x, out, a); break;
    case CC_OP_repeat_interleave: interleave(g, n, x, out, a); break;
    case CC_OP_flip: flip(g, n, x, out, a); break;
    case CC_OP_im2col: unfold(g, n, x, out, a); break;
    default: return false;
    }
    int64_t numel = 1;
    for (int i = 0; i < a->n; i++) numel *= a->size[i];
    return a->good && numel == cc_type_numel(out);
}

static CcOperand window_at(CcGraph *g, int value, const CcType *type, int64_t offset) {
    return value_of(cc_views_part(g, value, type, offset));
}

static void rewrite_copy(CcGraph *g, int node, const Axes *a) {
    const CcNode n = g->node.at[node];
    const int x = cc_graph_source(g, &n), result = n.out0;
    CcType from = g->val.at[x].type, to = g->val.at[result].type;
    from.ndim = to.ndim = (int8_t)a->n;
    for (int i = 0; i < a->n; i++) {
        from.size[i] = to.size[i] = a->size[i];
        from.stride[i] = a->from[i];
        to.stride[i] = a->to[i];
    }
    const CcOperand in = window_at(g, x, &from, a->offset);
    cc_edit_rewrite(g, node, CC_OP_copy, &in, 1);
    const int window = cc_views_result(g, result, &to);
    cc_edit_node(g, node)->out0 = window;
}

/* ------------------------------------------------------------------ expressions over windows */

static bool glu(CcGraph *g, int node) {
    CcIn_glu in;
    if (!cc_in_glu(g, &g->node.at[node], &in)) return false;
    const int x = in.x.value;
    CcType half = g->val.at[x].type;
    const int d = cc_graph_dim(&half, &in.dim);
    if (d < 0 || half.size[d] % 2) return false;
    half.size[d] /= 2;
    const CcOperand a = window_at(g, x, &half, 0), b = window_at(g, x, &half, half.size[d] * half.stride[d]);
    cc_edit_rewrite(g, node, CC_OP_gated, (const CcOperand[]){a, b}, 2);
    return true;
}

static bool diff(CcGraph *g, int node) {
    CcIn_diff in;
    if (!cc_in_diff(g, &g->node.at[node], &in)) return false;
    const int x = in.x.value;
    CcType t = g->val.at[x].type;
    const int d = cc_graph_dim(&t, &in.dim);
    if (d < 0 || t.size[d] < 2 || t.dtype == CC_DT_BOOL) return false; /* torch compares these instead */
    t.size[d]--;
    const CcOperand from = window_at(g, x, &t, 0), next = window_at(g, x, &t, t.stride[d]);
    cc_edit_rewrite(g, node, CC_OP_sub, (const CcOperand[]){next, from}, 2);
    return true;
}

/* One weight per channel, which is dim 1, or one for all. */
static bool prelu(CcGraph *g, int node) {
    CcIn_prelu in;
    if (!cc_in_prelu(g, &g->node.at[node], &in)) return false;
    const CcOperand x = in.x, w = in.weight;
    const int ndim = g->val.at[x.value].type.ndim;
    CcType t = g->val.at[w.value].type;
    if (t.ndim > 1 || ndim < 1 ||
        (cc_type_numel(&t) != 1 && (ndim < 2 || t.size[0] != g->val.at[x.value].type.size[1])))
        return false;
    const int64_t size = t.ndim ? t.size[0] : 1, step = t.ndim ? t.stride[0] : 0;
    t.ndim = (int8_t)CC_MAX(1, ndim - 1);
    for (int d = 0; d < t.ndim; d++) {
        t.size[d] = d == 0 ? size : 1;
        t.stride[d] = d == 0 ? step : 0;
    }
    cc_edit_rewrite(g, node, CC_OP_leaky_by, (const CcOperand[]){x, window_at(g, w.value, &t, 0)}, 2);
    return true;
}

static bool outer(CcGraph *g, int node) {
    CcIn_outer in;
    if (!cc_in_outer(g, &g->node.at[node], &in)) return false;
    const CcType *x = &g->val.at[in.x.value].type;
    if (x->ndim != 1 || g->val.at[in.y.value].type.ndim != 1) return false;
    const CcType t = cc_type_with_dim(x, 1);
    cc_edit_rewrite(g, node, CC_OP_mul, (const CcOperand[]){window_at(g, in.x.value, &t, 0), in.y}, 2);
    return true;
}

/* A pool whose windows stay inside x is a reduction of a window of x: [.., out.., window..]. */
static bool pool(CcGraph *g, int node) {
    const CcNode n = g->node.at[node];
    const int x = cc_graph_source(g, &n);
    const CcType from = g->val.at[x].type, to = g->val.at[n.out0].type;
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor;
    const int dims = cc_window_read(g, &n, w, &divisor), lead = from.ndim - dims;
    if (!dims || divisor || lead < 1 || to.ndim != from.ndim || from.ndim + dims > CC_MAX_DIMS) return false;
    CcType t = from;
    t.ndim = (int8_t)(from.ndim + dims);
    for (int d = 0; d < from.ndim; d++) {
        if (d < lead && from.size[d] != to.size[d]) return false;
        if (d < lead) continue;
        const CcWindow *of = &w[d - lead];
        if (!cc_window_inside(of, from.size[d], to.size[d])) return false;
        t.size[d] = to.size[d];
        t.stride[d] = from.stride[d] * of->stride;
        t.size[d + dims] = of->kernel;
        t.stride[d + dims] = from.stride[d] * of->dilation;
    }
    cc_edit_rewrite(g, node, cc_window_is_max(&n) ? CC_OP_amax : CC_OP_mean,
                    (const CcOperand[]){window_at(g, x, &t, 0), last_dims(dims)}, 2);
    return true;
}

static bool rewrite(CcGraph *g, int node) {
    Axes a;
    const CcNode *n = &g->node.at[node];
    switch (n->op) {
    case CC_OP_glu: return glu(g, node);
    case CC_OP_diff: return diff(g, node);
    case CC_OP_prelu: return prelu(g, node);
    case CC_OP_outer: return outer(g, node);
    case CC_OP_max_pool:
    case CC_OP_adaptive_max_pool:
    case CC_OP_avg_pool:
    case CC_OP_adaptive_avg_pool: return pool(g, node);
    default: break;
    }
    if (!axes_of(g, n, &g->val.at[cc_graph_source(g, n)].type, &g->val.at[n->out0].type, &a)) return false;
    rewrite_copy(g, node, &a);
    return true;
}

static bool overlaps(const CcGraph *g, const CcNode *n) {
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor;
    bool any = false;
    for (int i = cc_window_read(g, n, w, &divisor) - 1; i >= 0; i--) any = any || cc_window_overlaps(&w[i]);
    return any;
}

/* Pools whose windows are too large to unroll (loop/tap.c). Overlapping ones are split where that pays. */
static bool may_be(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    const int x = cc_graph_source(g, n);
    const CcOpKind kind = cc_node_kind(n);
    const bool pools =
        kind == CC_K_POOL && !cc_group_takes(g, node, rules) && !(overlaps(g, n) && cc_separate_takes(g, node, rules));
    if ((kind != CC_K_REARRANGE && n->op != CC_OP_upsample_nearest && !pools) || n->flags || n->n_out != 1 || x < 0)
        return false;
    const CcType *from = &g->val.at[x].type, *to = &g->val.at[n->out0].type;
    return from->ndim >= 0 && to->ndim >= 0 && from->dtype == to->dtype && cc_type_numel(to) > 0;
}

void cc_rearrange_rewrite(CcGraph *g, const CcGroupRules *rules) {
    for (int i = 0; i < g->node.n; i++) {
        if (cc_group_banned(g, i, rules) || !may_be(g, i, rules)) continue;
        const CcEditMark mark = cc_edit_mark(g);
        if (rewrite(g, i)) (void)cc_group_keeps(g, i, mark, rules);
        else cc_edit_undo(g, mark);
    }
}
