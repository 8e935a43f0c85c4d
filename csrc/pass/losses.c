/* losses: splits losses over classes and over rows, for pass/expand.c.
 *
 *   l = cross_entropy(x, t)    ->   r = nll(x, t); l = nll_mean(r, t)    a loop over x, one over its rows */
#include "pass_int.h"

/* ------------------------------------------------------------------ losses over classes */

typedef struct Loss {
    CcOperand x, target, weight;
    CcOperand ignored, classes;
    int64_t reduction;
    int dim;     /* the class dim of x */
    CcType rows; /* one number per target */
} Loss;

static bool understand(const Parts *p, Loss *l) {
    if (p->whole.n_out != 1) return false;
    const CcType x = type_of(p, l->x), t = type_of(p, l->target), out = p->g->val.at[p->whole.out0].type;
    l->dim = x.ndim == 1 ? 0 : 1;
    if (x.ndim < 1 || t.ndim != x.ndim - 1 || t.dtype != CC_DT_I64 || out.dtype != x.dtype || l->reduction < 0 ||
        l->reduction > 2 || !cc_type_numel(&x))
        return false;
    for (int d = 0; d < t.ndim; d++)
        if (t.size[d] != x.size[d + (d >= l->dim)]) return false;
    const CcType w = l->weight.kind == CC_IN_VALUE ? type_of(p, l->weight) : x;
    if (l->weight.kind == CC_IN_VALUE ? w.ndim != 1 || w.size[0] != x.size[l->dim] || w.dtype != x.dtype
                                      : l->weight.kind != CC_IN_NONE)
        return false;
    l->classes = int_of(x.size[l->dim]);
    l->rows = t;
    l->rows.dtype = x.dtype;
    cc_type_make_contiguous(&l->rows);
    return true;
}

/* Per row, the element of x (or of the weights) at the row's target. */
static CcOperand at_target(Parts *p, const Loss *l, CcOperand of, int dim) {
    CcType from = type_of(p, of), at = type_of(p, l->target), seen = l->rows;
    const CcOperand step = int_of(from.stride[dim]);
    if (from.ndim > 1) seen = cc_type_without_dim(&from, dim);
    for (int d = 0; d < seen.ndim && from.ndim == 1; d++) {
        seen.size[d] = 1;
        seen.stride[d] = 0;
    }
    return cc_parts_make(p, take, -1, &l->rows, .x = window(p, of, seen), .step = step,
                         .index = window(p, l->target, at), .count = l->classes, .ends = l->ignored);
}

/* From weighted rows to the op's result. */
static void reduce(Parts *p, const Loss *l, CcOperand rows, CcOperand weights) {
    const int result = p->whole.out0;
    const CcOperand all = all_dims();
    if (l->reduction == 0) cc_parts_add(p, CC_OP_unless, result, NULL, rows, l->target, l->ignored);
    else if (l->reduction == 1)
        cc_parts_make(p, nll_mean, result, NULL, .rows = rows, .dims = all, .target = l->target, .ignored = l->ignored,
                      .weight = weights);
    else
        cc_parts_add(p, CC_OP_sum, result, NULL,
                     cc_parts_add(p, CC_OP_unless, -1, &l->rows, rows, l->target, l->ignored), all);
}

static CcOperand weigh(Parts *p, const Loss *l, CcOperand *rows) {
    if (l->weight.kind != CC_IN_VALUE) return none();
    const CcOperand weights = at_target(p, l, l->weight, 0);
    *rows = cc_parts_add(p, CC_OP_mul, -1, &l->rows, *rows, weights);
    return weights;
}

static bool nll_loss(Parts *p) {
    CcIn_nll_loss in;
    if (!cc_in_nll_loss(p->g, &p->whole, &in)) return false;
    Loss l = {.x = in.x, .target = in.target, .weight = in.weight, .ignored = in.ignored, .reduction = in.reduction.i};
    if (!understand(p, &l)) return false;
    CcOperand rows = cc_parts_add(p, CC_OP_neg, -1, &l.rows, at_target(p, &l, l.x, l.dim));
    const CcOperand weights = weigh(p, &l, &rows);
    reduce(p, &l, rows, weights);
    return true;
}

/* The weight of each class, broadcast to x. */
static CcOperand weight_seen(Parts *p, const Loss *l, const CcType *x) {
    CcOperand w = l->weight;
    for (int d = l->dim + 1; d < x->ndim && w.kind == CC_IN_VALUE; d++) {
        const CcType t = type_of(p, w);
        w = window(p, w, cc_type_with_dim(&t, t.ndim));
    }
    return w;
}

/* Targets that are probabilities of all classes. */
static bool soft_cross_entropy(Parts *p, const CcIn_cross_entropy *in, double share) {
    Loss l = {.x = in->x, .target = in->target, .weight = in->weight, .reduction = in->reduction.i};
    const CcType x = type_of(p, l.x), t = type_of(p, l.target), out = p->g->val.at[p->whole.out0].type;
    const CcType w = l.weight.kind == CC_IN_VALUE ? type_of(p, l.weight) : x;
    l.dim = x.ndim == 1 ? 0 : 1;
    if (x.ndim < 1 || !cc_type_same_shape(&x, &t) || t.dtype != x.dtype || out.dtype != x.dtype || l.reduction < 0 ||
        l.reduction > 2 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_F64) || !cc_type_numel(&x) ||
        (l.weight.kind == CC_IN_VALUE && (w.ndim != 1 || w.size[0] != x.size[l.dim] || w.dtype != x.dtype)))
        return false;
    l.rows = cc_type_without_dim(&x, l.dim);
    cc_type_make_contiguous(&l.rows);
    const CcOperand dims = int_of(INT64_C(1) << (x.ndim - 1 - l.dim)), all = all_dims();
    const CcOperand keep = share > 0 ? float_of(1 - share) : none(),
                    spread = share > 0 ? float_of(share / (double)x.size[l.dim]) : none();
    const CcOperand weights = weight_seen(p, &l, &x);
    const CcOperand rows =
        cc_parts_make(p, nll_soft, l.reduction == 0 ? p->whole.out0 : -1, &l.rows, .x = l.x, .dims = dims,
                      .target = l.target, .weight = weights, .keep = keep, .spread = spread);
    if (l.reduction) cc_parts_add(p, l.reduction == 1 ? CC_OP_mean : CC_OP_sum, p->whole.out0, NULL, rows, all);
    return true;
}

/* Smoothing adds the weighted mean over all classes, which eager computes separately. */
static bool cross_entropy(Parts *p) {
    CcIn_cross_entropy in;
    if (!cc_in_cross_entropy(p->g, &p->whole, &in)) return false;
    const double share = cc_operand_number(&in.smoothing);
    if (cc_dtype_is_float(type_of(p, in.target).dtype)) return soft_cross_entropy(p, &in, share);
    Loss l = {.x = in.x, .target = in.target, .weight = in.weight, .ignored = in.ignored, .reduction = in.reduction.i};
    if (!understand(p, &l)) return false;
    const CcType x = type_of(p, l.x), target = type_of(p, l.target);
    const CcOperand dims = int_of(INT64_C(1) << (x.ndim - 1 - l.dim)), step = int_of(x.stride[l.dim]);
    CcType first = x;
    first.size[l.dim] = 1;
    first.stride[l.dim] = 0;
    CcOperand rows = cc_parts_make(p, nll, -1, &l.rows, .x = l.x, .dims = dims, .at = window(p, l.x, first),
                                   .step = step, .target = window(p, l.target, cc_type_with_dim(&target, l.dim)),
                                   .classes = l.classes, .ends = l.ignored);
    const CcOperand weights = weigh(p, &l, &rows);
    if (share != 0) {
        const CcOperand w = weight_seen(p, &l, &x);
        const CcOperand whole = cc_parts_add(p, CC_OP_nll_whole, -1, &l.rows, l.x, dims, w);
        rows = cc_parts_add(p, CC_OP_blend, -1, &l.rows, rows, float_of(1 - share), whole,
                            float_of(share / (double)l.classes.i));
    }
    reduce(p, &l, rows, weights);
    return true;
}

/* The kernel reads checked indices through a window, so that an earlier step makes them. */
static bool bce_loss(Parts *p) {
    static const CcOpId ROW[] = {CC_OP_bce_each, CC_OP_bce_each_mean, CC_OP_bce_each_sum};
    CcIn_bce_loss in;
    if (!cc_in_bce_loss(p->g, &p->whole, &in) || p->whole.n_out != 1) return false;
    const int64_t reduction = in.reduction.i;
    const CcType t = type_of(p, in.x);
    if (reduction < 0 || reduction > 2 || !cc_type_numel(&t)) return false;
    const CcOperand x = window(p, in.x, t), all = all_dims();
    if (reduction == 0) cc_parts_add(p, ROW[0], p->whole.out0, NULL, x, in.target, in.weight);
    else cc_parts_add(p, ROW[reduction], p->whole.out0, NULL, x, in.target, in.weight, all);
    return true;
}

/* ------------------------------------------------------------------ losses over rows */

/* From rows to the op's result. */
static void reduce_rows(Parts *p, int64_t reduction, CcOperand rows) {
    if (reduction) cc_parts_add(p, reduction == 1 ? CC_OP_mean : CC_OP_sum, p->whole.out0, NULL, rows, all_dims());
}

/* Rows of a float dtype, which is also the result's. */
static bool has_rows(const Parts *p, CcOperand x, CcOperand reduction) {
    const CcType t = type_of(p, x), out = p->g->val.at[p->whole.out0].type;
    return p->whole.n_out == 1 && t.ndim >= 1 && cc_dtype_is_float(t.dtype) && out.dtype == t.dtype &&
           cc_type_numel(&t) && reduction.i >= 0 && reduction.i <= 2;
}

static bool alike(const Parts *p, CcOperand a, CcOperand b) {
    const CcType x = type_of(p, a), y = type_of(p, b);
    return cc_type_same_shape(&x, &y) && x.dtype == y.dtype;
}

static CcType rows_of(const Parts *p, CcOperand o) {
    const CcType x = type_of(p, o);
    CcType rows = cc_type_without_dim(&x, x.ndim - 1);
    cc_type_make_contiguous(&rows);
    return rows;
}

static bool cosine_embedding(Parts *p) {
    CcIn_cosine_embedding in;
    if (!cc_in_cosine_embedding(p->g, &p->whole, &in) || !has_rows(p, in.a, in.reduction) || !alike(p, in.a, in.b))
        return false;
    const CcType rows = rows_of(p, in.a), given = type_of(p, in.target);
    if (rows.ndim > 1 || !cc_type_same_shape(&rows, &given) || given.dtype == CC_DT_OTHER) return false;
    if (given.dtype != rows.dtype) in.target = cc_parts_add(p, CC_OP_cast, -1, &rows, in.target);
    const CcType t = type_of(p, in.target);
    reduce_rows(p, in.reduction.i,
                cc_parts_make(p, cosine_target, in.reduction.i ? -1 : p->whole.out0, &rows, .a = in.a, .b = in.b,
                              .dims = last_dims(1), .target = window(p, in.target, cc_type_with_dim(&t, t.ndim)),
                              .margin = in.margin));
    return true;
}

static bool triplet_margin(Parts *p) {
    CcIn_triplet_margin in;
    if (!cc_in_triplet_margin(p->g, &p->whole, &in)) return false;
    const CcOperand a = in.anchor, b = in.positive, c = in.negative;
    const double power = cc_operand_number(&in.p);
    if ((power != 1 && power != 2) || !has_rows(p, a, in.reduction) || !alike(p, a, b) || !alike(p, a, c)) return false;
    const CcOpId distance = power == 1 ? CC_OP_pairwise_l1 : CC_OP_pairwise_distance;
    const CcType rows = rows_of(p, a);
    const CcOperand near = cc_parts_add(p, distance, -1, &rows, a, b, in.eps, int_of(1));
    CcOperand far = cc_parts_add(p, distance, -1, &rows, a, c, in.eps, int_of(1));
    if (in.swap.i) {
        const CcOperand other = cc_parts_add(p, distance, -1, &rows, b, c, in.eps, int_of(1));
        far = cc_parts_add(p, CC_OP_minimum, -1, &rows, far, other);
    }
    reduce_rows(p, in.reduction.i,
                cc_parts_add(p, CC_OP_beyond, in.reduction.i ? -1 : p->whole.out0, &rows, near, far, in.margin));
    return true;
}

static bool multi_margin(Parts *p) {
    CcIn_multi_margin in;
    if (!cc_in_multi_margin(p->g, &p->whole, &in)) return false;
    const double power = cc_operand_number(&in.p);
    if ((power != 1 && power != 2) || !has_rows(p, in.x, in.reduction)) return false;
    const bool weighted = in.weight.kind == CC_IN_VALUE;
    const CcType x = type_of(p, in.x), target = type_of(p, in.target), w = weighted ? type_of(p, in.weight) : x;
    const Loss l = {.x = in.x,
                    .target = in.target,
                    .weight = in.weight,
                    .ignored = none(),
                    .rows = rows_of(p, in.x),
                    .dim = x.ndim - 1,
                    .classes = int_of(x.size[x.ndim - 1])};
    if (x.ndim > 2 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_F64) || target.dtype != CC_DT_I64 ||
        !cc_type_same_shape(&target, &l.rows) ||
        (weighted && (w.ndim != 1 || w.size[0] != l.classes.i || w.dtype != x.dtype)))
        return false;
    CcType first = x;
    first.size[l.dim] = 1;
    first.stride[l.dim] = 0;
    const CcIn_class_margin of = {.x = l.x,
                                  .dims = last_dims(1),
                                  .at = window(p, l.x, first),
                                  .step = int_of(x.stride[l.dim]),
                                  .target = window(p, l.target, cc_type_with_dim(&target, l.dim)),
                                  .classes = l.classes,
                                  .margin = in.margin};
    const int result = in.reduction.i ? -1 : p->whole.out0;
    CcOperand rows = cc_parts_make_in(p, power == 1 ? CC_OP_class_margin : CC_OP_class_margin_square,
                                      weighted ? -1 : result, &l.rows, &of);
    if (weighted) {
        const CcOperand weights = at_target(p, &l, l.weight, 0);
        rows = cc_parts_add(p, CC_OP_mul, result, &l.rows, rows, weights);
    }
    reduce_rows(p, in.reduction.i, rows);
    return true;
}

bool cc_losses_make(Parts *p) {
    if (!p->needed[0]) return false;
    switch (p->whole.op) {
    case CC_OP_cosine_embedding: return cosine_embedding(p);
    case CC_OP_triplet_margin: return triplet_margin(p);
    default: break;
    }
    if (!cc_index_may(p->g, p->at)) return false;
    switch (p->whole.op) {
    case CC_OP_nll_loss: return nll_loss(p);
    case CC_OP_cross_entropy: return cross_entropy(p);
    case CC_OP_bce_loss: return bce_loss(p);
    case CC_OP_multi_margin: return multi_margin(p);
    default: return false;
    }
}
