/* moments: norms by the statistics of what they are given, for pass/expand.c.
 *
 *   y = batch_norm(x), train   ->   m = batch_mean(x); v = batch_spread(x, m); y = norm_by(x, m, v); running(mean, m) ... */
#include "pass_int.h"

/* ------------------------------------------------------------------ batch norm in training, instance norm with running statistics */

typedef struct Train {
    CcOperand x, weight, bias, running[2], momentum, eps;
    bool images;         /* statistics of each image alone */
    CcType stat;         /* of one statistic, as x sees it */
    CcOperand value[2];  /* mean, variance */
} Train;

/* A number for each channel, of x's dtype or, where that is half precision, f32. */
static bool of_channels(const Parts *p, CcOperand o, const CcType *x) {
    if (o.kind != CC_IN_VALUE) return o.kind == CC_IN_NONE;
    const CcType t = type_of(p, o);
    const bool half = x->dtype == CC_DT_BF16 || x->dtype == CC_DT_F16;
    return t.ndim == 1 && t.size[0] == x->size[1] && t.device == x->device && (t.dtype == x->dtype || (half && t.dtype == CC_DT_F32));
}

static bool understand_training(const Parts *p, Train *t) {
    *t = (Train){.x = operand(p, 0), .weight = operand(p, 1), .bias = operand(p, 2), .running = {operand(p, 3), operand(p, 4)},
                 .momentum = operand(p, 5), .eps = operand(p, 6), .images = p->whole.op == CC_OP_instance_norm_train};
    const CcType x = type_of(p, t->x), out = p->g->val.at[p->whole.out0].type;
    const bool moves = t->running[0].kind == CC_IN_VALUE;
    if (x.ndim < 2 + t->images || cc_dtype_info((CcDtype)x.dtype)->kind != 'f' || !cc_type_same_shape(&x, &out) || x.dtype != out.dtype ||
        !cc_type_numel(&x) || t->eps.kind != CC_IN_FLOAT || moves != (t->running[1].kind == CC_IN_VALUE))
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

/* With channels innermost a loop over rows of them is one over columns, 64 a thread: where there are few, each sweep has a loop of its
 * own, which all threads share. */
static bool one_loop(const Parts *p, const CcType *x) {
    enum { ENOUGH = 512, WORTH_THREADS = 1 << 15 };
    bool last = x->ndim == 2 || (x->stride[1] == 1 && x->size[1] > 1);
    for (int i = 0; i < p->g->node.n && !last && x->ndim > 2; i++)
        last = cc_op_info((CcOpId)p->g->node.at[i].op)->kind == CC_K_CONV; /* pass/layout.c */
    return !last || x->size[1] >= ENOUGH || cc_type_numel(x) < WORTH_THREADS;
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
    cc_parts_add(p, CC_OP_norm_by, p->whole.out0, NULL, 6, t.x, seen_by_image(p, t.weight, x.ndim), seen_by_image(p, t.bias, x.ndim), mean, spread, t.eps);
    for (int k = 0; k < 2 && t.running[0].kind == CC_IN_VALUE; k++) move(p, &t, k, k ? (double)count / (double)(count - 1) : 1);
    return true;
}
