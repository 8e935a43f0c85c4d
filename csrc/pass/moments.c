/* moments: norms by the statistics of what they are given, for pass/expand.c.
 *
 *   y = batch_norm(x), train   ->   m = batch_mean(x); v = batch_spread(x, m); y = norm_by(x, m, v); running(mean, m) ...
 *
 * A group norm where channels are innermost goes by the statistics of channels: groups of few of them would make short
 * vectors, and as rows of all of them, convolutions around it keep them innermost (pass/layout.c).
 *
 *   y = group_norm(x)   ->   m, v as above, of each image; M = batch_mean(m); V = batch_mean(v) + batch_spread(m, M), over the
 *                            channels of a group; y = norm_by(x, M, V) */
#include "pass_int.h"

/* ------------------------------------------------------------------ batch norm in training, instance norm with running
 * statistics */

typedef struct Train {
    CcOperand x, weight, bias, running[2], momentum, eps;
    bool images;        /* statistics of each image alone */
    CcType stat;        /* of one statistic, as x sees it */
    CcOperand value[2]; /* mean, variance */
} Train;

/* A number for each channel, of x's dtype or, where that is half precision, f32. */
static bool of_channels(const Parts *p, CcOperand o, const CcType *x) {
    if (o.kind != CC_IN_VALUE) return o.kind == CC_IN_NONE;
    const CcType t = type_of(p, o);
    const bool half = x->dtype == CC_DT_BF16 || x->dtype == CC_DT_F16;
    return t.ndim == 1 && t.size[0] == x->size[1] && t.device == x->device &&
           (t.dtype == x->dtype || (half && t.dtype == CC_DT_F32));
}

static bool understand_training(const Parts *p, Train *t) {
    *t = (Train){.x = operand(p, 0),
                 .weight = operand(p, 1),
                 .bias = operand(p, 2),
                 .running = {operand(p, 3), operand(p, 4)},
                 .momentum = operand(p, 5),
                 .eps = operand(p, 6),
                 .images = p->whole.op == CC_OP_instance_norm_train};
    const CcType x = type_of(p, t->x), out = p->g->val.at[p->whole.out0].type;
    const bool moves = t->running[0].kind == CC_IN_VALUE;
    if (x.ndim < 2 + t->images || cc_dtype_info((CcDtype)x.dtype)->kind != 'f' || !cc_type_same_shape(&x, &out) ||
        x.dtype != out.dtype || !cc_type_numel(&x) || t->eps.kind != CC_IN_FLOAT ||
        moves != (t->running[1].kind == CC_IN_VALUE))
        return false;
    for (int i = 1; i < 5; i++)
        if (!of_channels(p, operand(p, i), &x)) return false;
    for (int k = 0; k < 2 && moves; k++) {
        const CcType r = type_of(p, t->running[k]);
        if (!cc_into_apart(&r)) return false;
    }
    t->stat = x;
    for (int d = 0; d < x.ndim; d++) t->stat.size[d] = d == 1 || (d == 0 && t->images) ? x.size[d] : 1;
    t->stat.dtype = x.dtype == CC_DT_F64 ? CC_DT_F64 : CC_DT_F32;
    cc_type_make_contiguous(&t->stat);
    return true;
}

/* A vector of channels as the image sees it. */
static CcOperand seen_by_image(Parts *p, CcOperand o, int ndim) {
    for (int d = 2; d < ndim && o.kind == CC_IN_VALUE; d++) {
        const CcType t = type_of(p, o);
        o = window(p, o, cc_parts_with_dim(&t, t.ndim));
    }
    return o;
}

/* Will x have channels innermost? */
static bool channels_last(const Parts *p, const CcType *x) {
    bool last = x->ndim == 2 || (x->stride[1] == 1 && x->size[1] > 1);
    for (int i = 0; i < p->g->node.n && !last && x->ndim > 2; i++)
        last = cc_op_info((CcOpId)p->g->node.at[i].op)->kind == CC_K_CONV; /* pass/layout.c */
    return last;
}

/* With channels innermost a loop over rows of them is one over columns, 64 a thread: where there are few, each sweep
 * has a loop of its own, which all threads share. */
static bool one_loop(const Parts *p, const CcType *x) {
    enum { ENOUGH = 512, WORTH_THREADS = 1 << 15 };
    return !channels_last(p, x) || x->size[1] >= ENOUGH || cc_type_numel(x) < WORTH_THREADS;
}

/* running = momentum * statistic + (1 - momentum) * running, which nothing waits for. */
static void move(Parts *p, const Train *t, int which, double unbias) {
    const CcOperand to = t->running[which];
    const CcType r = type_of(p, to);
    const int rows = t->images ? 2 : 1;
    CcType flat = t->stat;
    flat.ndim = (int8_t)rows;
    for (int d = 0; d < rows; d++) flat.size[d] = t->stat.size[d + 2 - rows];
    cc_type_make_contiguous(&flat);
    CcOperand from = window(p, t->value[which], flat);
    if (t->images) {
        const CcType one = cc_parts_without_dim(&flat, 0);
        from = cc_parts_add(p, CC_OP_batch_mean, -1, &one, 2, from, int_of(2));
    }
    cc_parts_add(p, CC_OP_running, -1, &r, 4, to, from, t->momentum, float_of(unbias));
    CcNode *n = &p->g->node.at[p->first + p->n - 1];
    CcVal *v = &p->g->val.at[n->out0];
    n->flags = CC_N_WRITES;
    n->uncounted = !t->images;
    v->narrowed = false;
    v->window_of = cc_graph_base(p->g, to.value) + 1;
    v->offset = p->g->val.at[to.value].offset;
}

bool cc_moments_make(Parts *p) {
    Train t;
    if (p->whole.n_in != 7 || p->whole.n_out != 1 || !understand_training(p, &t)) return false;
    const CcType x = type_of(p, t.x);
    const bool together = one_loop(p, &x);
    CcOperand *value = t.value;
    p->whole.flags = 0;
    int64_t count = 1, dims = 0;
    for (int d = 0; d < x.ndim; d++) {
        if (d == 1 || (d == 0 && t.images)) continue;
        count *= x.size[d];
        dims |= INT64_C(1) << (x.ndim - 1 - d);
    }
    value[0] = cc_parts_add(p, CC_OP_batch_mean, -1, &t.stat, 2, t.x, int_of(dims));
    const CcOperand mean = together ? value[0] : window(p, value[0], t.stat);
    value[1] = cc_parts_add(p, CC_OP_batch_spread, -1, &t.stat, 3, t.x, int_of(dims), mean);
    const CcOperand spread = together ? value[1] : window(p, value[1], t.stat);
    cc_parts_add(p, CC_OP_norm_by, p->whole.out0, NULL, 6, t.x, seen_by_image(p, t.weight, x.ndim),
                 seen_by_image(p, t.bias, x.ndim), mean, spread, t.eps);
    for (int k = 0; k < 2 && t.running[0].kind == CC_IN_VALUE; k++)
        move(p, &t, k, k ? (double)count / (double)(count - 1) : 1);
    return true;
}

/* ------------------------------------------------------------------ group norm, channels innermost */

typedef struct Groups {
    /* stat: of each channel, as x sees it; split: so, [N, G, C / G]; one: of each group */
    CcType x, stat, split, one;
} Groups;

static bool understand_groups(const Parts *p, Groups *t) {
    enum { WORTH_IT = 1 << 15 }; /* elements; fewer are one loop over short vectors */
    const CcOperand groups = operand(p, 1);
    const CcType x = type_of(p, operand(p, 0)), out = p->g->val.at[p->whole.out0].type;
    if (x.ndim < 3 || cc_dtype_info((CcDtype)x.dtype)->kind != 'f' || !cc_type_same_shape(&x, &out) ||
        x.dtype != out.dtype || cc_type_numel(&x) < WORTH_IT || groups.kind != CC_IN_INT || groups.i < 1 ||
        x.size[1] % groups.i || operand(p, 4).kind != CC_IN_FLOAT || !channels_last(p, &x))
        return false;
    for (int i = 2; i < 4; i++)
        if (!of_channels(p, operand(p, i), &x)) return false;
    *t = (Groups){.x = x, .stat = x};
    for (int d = 2; d < x.ndim; d++) t->stat.size[d] = 1;
    t->stat.dtype = x.dtype == CC_DT_F64 ? CC_DT_F64 : CC_DT_F32;
    cc_type_make_contiguous(&t->stat);
    t->split = t->stat;
    t->split.ndim = 3;
    t->split.size[1] = groups.i;
    t->split.size[2] = x.size[1] / groups.i;
    t->one = t->split;
    t->one.size[2] = 1;
    cc_type_make_contiguous(&t->split);
    cc_type_make_contiguous(&t->one);
    return true;
}

/* A number of each group, for each of its channels. */
static CcOperand for_channels(Parts *p, CcOperand o, const Groups *t) {
    CcType type = t->split;
    type.stride[1] = 1;
    type.stride[0] = type.size[1];
    type.stride[2] = 0;
    return window(p, o, type);
}

bool cc_moments_groups(Parts *p) {
    Groups t;
    if (p->whole.n_in != 5 || p->whole.n_out != 1 || !understand_groups(p, &t)) return false;
    const CcOperand x = operand(p, 0), image = int_of((INT64_C(1) << (t.x.ndim - 2)) - 1), last = int_of(1);
    const CcOperand mean = cc_parts_add(p, CC_OP_batch_mean, -1, &t.stat, 2, x, image);
    const CcOperand spread = cc_parts_add(p, CC_OP_batch_spread, -1, &t.stat, 3, x, image, window(p, mean, t.stat));
    const CcOperand means = window(p, mean, t.split), spreads = window(p, spread, t.split);
    const CcOperand middle = cc_parts_add(p, CC_OP_batch_mean, -1, &t.one, 2, means, last);
    const CcOperand within = cc_parts_add(p, CC_OP_batch_mean, -1, &t.one, 2, spreads, last);
    const CcOperand between = cc_parts_add(p, CC_OP_batch_spread, -1, &t.one, 3, means, last, middle);
    const CcOperand mean_of = cc_parts_add(p, CC_OP_copy, -1, &t.split, 1, for_channels(p, middle, &t));
    const CcOperand spread_of =
        cc_parts_add(p, CC_OP_add, -1, &t.split, 2, for_channels(p, within, &t), for_channels(p, between, &t));
    cc_parts_add(p, CC_OP_norm_by, p->whole.out0, NULL, 6, x, seen_by_image(p, operand(p, 2), t.x.ndim),
                 seen_by_image(p, operand(p, 3), t.x.ndim), window(p, mean_of, t.stat), window(p, spread_of, t.stat),
                 operand(p, 4));
    return true;
}
