/* moments: norms by statistics of their input, for pass/expand.c.
 *
 *   y = batch_norm(x), train   ->   n = batch_mean(x); m = batch_centre(x, n); v = batch_spread(x, n);
 *                                   y = norm_by(x, m, v); running(mean, m) ...
 *
 * A channels-last group norm starts from the statistics of single channels: a group has few channels, so reducing
 * over groups would use short vectors; and with all channels in a row, the convolutions around it stay channels-last
 * (pass/layout.c).
 *
 *   y = group_norm(x)   ->   m = batch_mean(x); v = batch_spread(x, m), per sample; M = batch_mean(m);
 *                            V = batch_mean(v) + batch_spread(m, M), over the channels of a group;
 *                            y = norm_by(x, M, V) */
#include "pass_int.h"

/* ------------------------------------------------------------------ batch and instance norm that update statistics */

typedef struct Train {
    CcIn_batch_norm_train in;
    CcOperand running[2];
    bool images;        /* one set of statistics per sample */
    CcType stat;        /* type of one statistic, broadcast to x */
    CcOperand value[2]; /* mean, variance */
} Train;

static bool understand_training(const Parts *p, Train *t) {
    *t = (Train){.images = p->whole.op == CC_OP_instance_norm_train};
    if (!cc_in_batch_norm_train(p->g, &p->whole, &t->in)) return false;
    t->running[0] = t->in.mean;
    t->running[1] = t->in.var;
    const CcType x = type_of(p, t->in.x), out = p->g->val.at[p->whole.out0].type;
    const bool moves = t->running[0].kind == CC_IN_VALUE;
    if (x.ndim < 2 + t->images || !cc_dtype_is_float(x.dtype) || !cc_type_same_shape(&x, &out) ||
        x.dtype != out.dtype || !cc_type_numel(&x) || t->in.eps.kind != CC_IN_FLOAT ||
        moves != (t->running[1].kind == CC_IN_VALUE) || !cc_norms_of_channels(p->g, t->in.weight, &x) ||
        !cc_norms_of_channels(p->g, t->in.bias, &x) || !cc_norms_of_channels(p->g, t->in.mean, &x) ||
        !cc_norms_of_channels(p->g, t->in.var, &x))
        return false;
    for (int k = 0; k < 2 && moves; k++) {
        const CcType r = type_of(p, t->running[k]);
        if (!cc_into_non_overlapping(&r)) return false;
    }
    t->stat = x;
    for (int d = 0; d < x.ndim; d++) t->stat.size[d] = d == 1 || (d == 0 && t->images) ? x.size[d] : 1;
    t->stat.dtype = x.dtype == CC_DT_F64 ? CC_DT_F64 : CC_DT_F32;
    cc_type_make_contiguous(&t->stat);
    return true;
}

/* Will x be channels-last? */
static bool channels_last(const Parts *p, const CcType *x) {
    bool last = x->ndim == 2 || (x->stride[1] == 1 && x->size[1] > 1);
    for (int i = 0; i < p->g->node.n && !last && x->ndim > 2; i++)
        last = cc_node_kind(&p->g->node.at[i]) == CC_K_CONV; /* pass/layout.c makes it channels-last */
    return last;
}

/* A channels-last reduction over rows runs down columns, 64 per thread. With few columns, each sweep gets a loop of
 * its own, which all threads share. */
static bool one_loop(const Parts *p, const CcType *x) {
    enum { ENOUGH = 512, WORTH_THREADS = 1 << 15 };
    return !channels_last(p, x) || x->size[1] >= ENOUGH || cc_type_numel(x) < WORTH_THREADS;
}

/* running = momentum * statistic + (1 - momentum) * running. No other node depends on it. */
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
        const CcType one = cc_type_without_dim(&flat, 0);
        from = cc_parts_make(p, batch_mean, -1, &one, .x = from, .dims = int_of(2));
    }
    cc_parts_add(p, CC_OP_running, -1, &r, to, from, t->in.momentum, float_of(unbias));
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
    if (p->whole.n_out != 1 || !understand_training(p, &t)) return false;
    const CcOperand in = t.in.x;
    const CcType x = type_of(p, in);
    const bool together = one_loop(p, &x);
    CcOperand *value = t.value;
    p->whole.flags = 0;
    int64_t count = 1, dims = 0;
    for (int d = 0; d < x.ndim; d++) {
        if (d == 1 || (d == 0 && t.images)) continue;
        count *= x.size[d];
        dims |= INT64_C(1) << (x.ndim - 1 - d);
    }
    const CcOperand rough = cc_parts_make(p, batch_mean, -1, &t.stat, .x = in, .dims = int_of(dims));
    const CcOperand near = together ? rough : window(p, rough, t.stat);
    value[0] = cc_parts_make(p, batch_centre, -1, &t.stat, .x = in, .dims = int_of(dims), .mean = near);
    value[1] = cc_parts_make(p, batch_spread, -1, &t.stat, .x = in, .dims = int_of(dims), .mean = near);
    const CcOperand mean = together ? value[0] : window(p, value[0], t.stat);
    const CcOperand spread = together ? value[1] : window(p, value[1], t.stat);
    const CcOperand weight = cc_norms_see(p->g, t.in.weight, x.ndim, 0),
                    bias = cc_norms_see(p->g, t.in.bias, x.ndim, 0);
    cc_parts_make(p, norm_by, p->whole.out0, NULL, .x = in, .weight = weight, .bias = bias, .mean = mean, .var = spread,
                  .eps = t.in.eps);
    for (int k = 0; k < 2 && t.running[0].kind == CC_IN_VALUE; k++)
        move(p, &t, k, k ? (double)count / (double)(count - 1) : 1);
    return true;
}

/* ------------------------------------------------------------------ group norm, channels-last */

typedef struct Groups {
    CcIn_group_norm in;
    /* stat: one number per channel, broadcast to x; split: the same as [N, G, C / G]; one: one number per group */
    CcType x, stat, split, one;
} Groups;

static bool understand_groups(const Parts *p, Groups *t) {
    enum { WORTH_IT = 1 << 15 }; /* elements; below this, one loop over short vectors is faster */
    CcIn_group_norm in;
    if (!cc_in_group_norm(p->g, &p->whole, &in)) return false;
    const int64_t groups = in.groups.i;
    const CcType x = type_of(p, in.x), out = p->g->val.at[p->whole.out0].type;
    if (x.ndim < 3 || !cc_dtype_is_float(x.dtype) || !cc_type_same_shape(&x, &out) || x.dtype != out.dtype ||
        cc_type_numel(&x) < WORTH_IT || groups < 1 || x.size[1] % groups || in.eps.kind != CC_IN_FLOAT ||
        !cc_norms_of_channels(p->g, in.weight, &x) || !cc_norms_of_channels(p->g, in.bias, &x) || !channels_last(p, &x))
        return false;
    *t = (Groups){.in = in, .x = x, .stat = x};
    for (int d = 2; d < x.ndim; d++) t->stat.size[d] = 1;
    t->stat.dtype = x.dtype == CC_DT_F64 ? CC_DT_F64 : CC_DT_F32;
    cc_type_make_contiguous(&t->stat);
    t->split = t->stat;
    t->split.ndim = 3;
    t->split.size[1] = groups;
    t->split.size[2] = x.size[1] / groups;
    t->one = t->split;
    t->one.size[2] = 1;
    cc_type_make_contiguous(&t->split);
    cc_type_make_contiguous(&t->one);
    return true;
}

/* Repeats each group's number for each channel of the group. */
static CcOperand for_channels(Parts *p, CcOperand o, const Groups *t) {
    CcType type = t->split;
    type.stride[1] = 1;
    type.stride[0] = type.size[1];
    type.stride[2] = 0;
    return window(p, o, type);
}

bool cc_moments_groups(Parts *p) {
    Groups t;
    if (p->whole.n_out != 1 || !understand_groups(p, &t)) return false;
    const CcOperand x = t.in.x, image = last_dims(t.x.ndim - 2), last = last_dims(1);
    const CcOperand mean = cc_parts_make(p, batch_mean, -1, &t.stat, .x = x, .dims = image);
    const CcOperand spread =
        cc_parts_make(p, batch_spread, -1, &t.stat, .x = x, .dims = image, .mean = window(p, mean, t.stat));
    const CcOperand means = window(p, mean, t.split), spreads = window(p, spread, t.split);
    const CcOperand middle = cc_parts_make(p, batch_mean, -1, &t.one, .x = means, .dims = last);
    const CcOperand within = cc_parts_make(p, batch_mean, -1, &t.one, .x = spreads, .dims = last);
    const CcOperand between = cc_parts_make(p, batch_spread, -1, &t.one, .x = means, .dims = last, .mean = middle);
    const CcOperand mean_of = cc_parts_add(p, CC_OP_copy, -1, &t.split, for_channels(p, middle, &t));
    const CcOperand all_within = for_channels(p, within, &t), all_between = for_channels(p, between, &t);
    const CcOperand spread_of = cc_parts_add(p, CC_OP_add, -1, &t.split, all_within, all_between);
    cc_parts_make(p, norm_by, p->whole.out0, NULL, .x = x, .weight = cc_norms_see(p->g, t.in.weight, t.x.ndim, 0),
                  .bias = cc_norms_see(p->g, t.in.bias, t.x.ndim, 0), .mean = window(p, mean_of, t.stat),
                  .var = window(p, spread_of, t.stat), .eps = t.in.eps);
    return true;
}
