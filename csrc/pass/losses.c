/* losses: losses of classes and of rows, for pass/expand.c.
 *
 *   l = cross_entropy(x, t)    ->   r = nll(x, t); l = nll_mean(r, t)                   a loop over x, one over its rows */
#include "pass_int.h"

/* ------------------------------------------------------------------ losses of classes */

typedef struct Loss {
    CcOperand x, target, weight;
    CcOperand ignored, classes;
    int64_t reduction;
    int dim;     /* of x: the classes */
    CcType rows; /* one number for each target */
} Loss;

static bool understand(const Parts *p, Loss *l) {
    *l = (Loss){.x = operand(p, 0), .target = operand(p, 1), .weight = operand(p, 2), .ignored = operand(p, 4)};
    if (l->x.kind != CC_IN_VALUE || l->target.kind != CC_IN_VALUE || l->ignored.kind != CC_IN_INT ||
        p->whole.n_out != 1)
        return false;
    const CcType x = type_of(p, l->x), t = type_of(p, l->target), out = p->g->val.at[p->whole.out0].type;
    l->reduction = operand(p, 3).i;
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

/* Of each row the element of x (or of the weights) that its target names. */
static CcOperand at_target(Parts *p, const Loss *l, CcOperand of, int dim) {
    CcType from = type_of(p, of), at = type_of(p, l->target), seen = l->rows;
    const CcOperand step = int_of(from.stride[dim]);
    if (from.ndim > 1) seen = cc_parts_without_dim(&from, dim);
    for (int d = 0; d < seen.ndim && from.ndim == 1; d++) {
        seen.size[d] = 1;
        seen.stride[d] = 0;
    }
    return cc_parts_add(p, CC_OP_take, -1, &l->rows, 5, window(p, of, seen), step, window(p, l->target, at), l->classes,
                        l->ignored);
}

/* From rows, weighted, to what the op gives. */
static void reduce(Parts *p, const Loss *l, CcOperand rows, CcOperand weights) {
    const int result = p->whole.out0;
    const CcOperand all = int_of((1 << CC_MAX_DIMS) - 1);
    if (l->reduction == 0) cc_parts_add(p, CC_OP_unless, result, NULL, 3, rows, l->target, l->ignored);
    else if (l->reduction == 1)
        cc_parts_add(p, CC_OP_nll_mean, result, NULL, 5, rows, all, l->target, l->ignored, weights);
    else
        cc_parts_add(p, CC_OP_sum, result, NULL, 2,
                     cc_parts_add(p, CC_OP_unless, -1, &l->rows, 3, rows, l->target, l->ignored), all);
}

static CcOperand weigh(Parts *p, const Loss *l, CcOperand *rows) {
    if (l->weight.kind != CC_IN_VALUE) return none();
    const CcOperand weights = at_target(p, l, l->weight, 0);
    *rows = cc_parts_add(p, CC_OP_mul, -1, &l->rows, 2, *rows, weights);
    return weights;
}

static bool nll_loss(Parts *p) {
    Loss l;
    if (p->whole.n_in != 5 || !understand(p, &l)) return false;
    CcOperand rows = cc_parts_add(p, CC_OP_neg, -1, &l.rows, 1, at_target(p, &l, l.x, l.dim));
    const CcOperand weights = weigh(p, &l, &rows);
    reduce(p, &l, rows, weights);
    return true;
}

/* The weight of each class as x sees it. */
static CcOperand weight_seen(Parts *p, const Loss *l, const CcType *x) {
    CcOperand w = l->weight;
    for (int d = l->dim + 1; d < x->ndim && w.kind == CC_IN_VALUE; d++) {
        const CcType t = type_of(p, w);
        w = window(p, w, cc_parts_with_dim(&t, t.ndim));
    }
    return w;
}

/* Probabilities of all classes instead of one. */
static bool soft_cross_entropy(Parts *p, double share) {
    Loss l = {.x = operand(p, 0), .target = operand(p, 1), .weight = operand(p, 2), .reduction = operand(p, 3).i};
    if (l.target.kind != CC_IN_VALUE) return false;
    const CcType x = type_of(p, l.x), t = type_of(p, l.target), out = p->g->val.at[p->whole.out0].type;
    const CcType w = l.weight.kind == CC_IN_VALUE ? type_of(p, l.weight) : x;
    l.dim = x.ndim == 1 ? 0 : 1;
    if (x.ndim < 1 || !cc_type_same_shape(&x, &t) || t.dtype != x.dtype || out.dtype != x.dtype || l.reduction < 0 ||
        l.reduction > 2 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_F64) || !cc_type_numel(&x) ||
        (l.weight.kind == CC_IN_VALUE && (w.ndim != 1 || w.size[0] != x.size[l.dim] || w.dtype != x.dtype)))
        return false;
    l.rows = cc_parts_without_dim(&x, l.dim);
    cc_type_make_contiguous(&l.rows);
    const CcOperand dims = int_of(INT64_C(1) << (x.ndim - 1 - l.dim)), all = int_of((1 << CC_MAX_DIMS) - 1);
    const CcOperand keep = share > 0 ? float_of(1 - share) : none(),
                    spread = share > 0 ? float_of(share / (double)x.size[l.dim]) : none();
    const CcOperand weights = weight_seen(p, &l, &x);
    const CcOperand rows = cc_parts_add(p, CC_OP_nll_soft, l.reduction == 0 ? p->whole.out0 : -1, &l.rows, 6, l.x, dims,
                                        l.target, weights, keep, spread);
    if (l.reduction) cc_parts_add(p, l.reduction == 1 ? CC_OP_mean : CC_OP_sum, p->whole.out0, NULL, 2, rows, all);
    return true;
}

/* Smoothing adds the mean over all classes, weighted, which eager computes apart. */
static bool cross_entropy(Parts *p) {
    Loss l;
    const CcOperand smooth = operand(p, 5);
    const double share = smooth.kind == CC_IN_FLOAT ? smooth.f : (double)smooth.i;
    if (p->whole.n_in != 6) return false;
    if (operand(p, 1).kind == CC_IN_VALUE && cc_dtype_info((CcDtype)type_of(p, operand(p, 1)).dtype)->kind == 'f')
        return soft_cross_entropy(p, share);
    if (!understand(p, &l)) return false;
    const CcType x = type_of(p, l.x), target = type_of(p, l.target);
    const CcOperand dims = int_of(INT64_C(1) << (x.ndim - 1 - l.dim)), step = int_of(x.stride[l.dim]);
    CcType first = x;
    first.size[l.dim] = 1;
    first.stride[l.dim] = 0;
    CcOperand rows = cc_parts_add(p, CC_OP_nll, -1, &l.rows, 7, l.x, dims, window(p, l.x, first), step,
                                  window(p, l.target, cc_parts_with_dim(&target, l.dim)), l.classes, l.ignored);
    const CcOperand weights = weigh(p, &l, &rows);
    if (share != 0) {
        const CcOperand w = weight_seen(p, &l, &x);
        const CcOperand whole = cc_parts_add(p, CC_OP_nll_whole, -1, &l.rows, 3, l.x, dims, w);
        rows = cc_parts_add(p, CC_OP_blend, -1, &l.rows, 4, rows, float_of(1 - share), whole,
                            float_of(share / (double)l.classes.i));
    }
    reduce(p, &l, rows, weights);
    return true;
}

/* What is checked before the kernel runs is read through a window, so that it is made before. */
static bool bce_loss(Parts *p) {
    static const CcOpId ROW[] = {CC_OP_bce_each, CC_OP_bce_each_mean, CC_OP_bce_each_sum};
    const CcOperand x = operand(p, 0), reduction = operand(p, 3);
    if (p->whole.n_in != 4 || p->whole.n_out != 1 || reduction.kind != CC_IN_INT || reduction.i < 0 || reduction.i > 2)
        return false;
    const CcType t = type_of(p, x);
    if (!cc_type_numel(&t)) return false;
    if (reduction.i == 0)
        cc_parts_add(p, ROW[0], p->whole.out0, NULL, 3, window(p, x, t), operand(p, 1), operand(p, 2));
    else
        cc_parts_add(p, ROW[reduction.i], p->whole.out0, NULL, 4, window(p, x, t), operand(p, 1), operand(p, 2),
                     int_of((1 << CC_MAX_DIMS) - 1));
    return true;
}

/* ------------------------------------------------------------------ losses of rows */

/* From rows to what the op gives. */
static void reduce_rows(Parts *p, int64_t reduction, CcOperand rows) {
    if (reduction)
        cc_parts_add(p, reduction == 1 ? CC_OP_mean : CC_OP_sum, p->whole.out0, NULL, 2, rows,
                     int_of((1 << CC_MAX_DIMS) - 1));
}

/* Operands [0, n) are floats of one shape and dtype, the result of that dtype. */
static bool alike(const Parts *p, int n, const CcOperand *reduction) {
    const CcType x = type_of(p, operand(p, 0)), out = p->g->val.at[p->whole.out0].type;
    if (x.ndim < 1 || cc_dtype_info((CcDtype)x.dtype)->kind != 'f' || out.dtype != x.dtype || !cc_type_numel(&x) ||
        reduction->kind != CC_IN_INT || reduction->i < 0 || reduction->i > 2)
        return false;
    for (int i = 1; i < n; i++) {
        const CcOperand o = operand(p, i);
        if (o.kind != CC_IN_VALUE) return false;
        const CcType t = type_of(p, o);
        if (!cc_type_same_shape(&t, &x) || t.dtype != x.dtype) return false;
    }
    return true;
}

static CcType rows_of(const Parts *p) {
    const CcType x = type_of(p, operand(p, 0));
    CcType rows = cc_parts_without_dim(&x, x.ndim - 1);
    cc_type_make_contiguous(&rows);
    return rows;
}

static bool cosine_embedding(Parts *p) {
    const CcOperand reduction = operand(p, 4);
    CcOperand target = operand(p, 2);
    if (p->whole.n_in != 5 || p->whole.n_out != 1 || target.kind != CC_IN_VALUE || !alike(p, 2, &reduction))
        return false;
    const CcType rows = rows_of(p), given = type_of(p, target);
    if (rows.ndim > 1 || !cc_type_same_shape(&rows, &given) || given.dtype == CC_DT_OTHER) return false;
    if (given.dtype != rows.dtype) target = cc_parts_add(p, CC_OP_cast, -1, &rows, 1, target);
    const CcType t = type_of(p, target);
    const int result = reduction.i ? -1 : p->whole.out0;
    reduce_rows(p, reduction.i,
                cc_parts_add(p, CC_OP_cosine_target, result, &rows, 5, operand(p, 0), operand(p, 1), int_of(1),
                             window(p, target, cc_parts_with_dim(&t, t.ndim)), operand(p, 3)));
    return true;
}

static double number_of(CcOperand o) {
    return o.kind == CC_IN_FLOAT ? o.f : o.kind == CC_IN_NONE || o.kind == CC_IN_NUMBER ? -1 : (double)o.i;
}

static bool triplet_margin(Parts *p) {
    const CcOperand eps = operand(p, 5), swap = operand(p, 6), reduction = operand(p, 7);
    const double power = number_of(operand(p, 4));
    if (p->whole.n_in != 8 || p->whole.n_out != 1 || (power != 1 && power != 2) || swap.kind != CC_IN_BOOL ||
        !alike(p, 3, &reduction))
        return false;
    const CcOpId distance = power == 1 ? CC_OP_pairwise_l1 : CC_OP_pairwise_distance;
    const CcType rows = rows_of(p);
    const CcOperand a = operand(p, 0), b = operand(p, 1), c = operand(p, 2);
    const CcOperand near = cc_parts_add(p, distance, -1, &rows, 4, a, b, eps, int_of(1));
    CcOperand far = cc_parts_add(p, distance, -1, &rows, 4, a, c, eps, int_of(1));
    if (swap.i) {
        const CcOperand other = cc_parts_add(p, distance, -1, &rows, 4, b, c, eps, int_of(1));
        far = cc_parts_add(p, CC_OP_minimum, -1, &rows, 2, far, other);
    }
    reduce_rows(p, reduction.i,
                cc_parts_add(p, CC_OP_beyond, reduction.i ? -1 : p->whole.out0, &rows, 3, near, far, operand(p, 3)));
    return true;
}

static bool multi_margin(Parts *p) {
    const CcOperand reduction = operand(p, 5);
    const double power = number_of(operand(p, 2));
    Loss l = {.x = operand(p, 0), .target = operand(p, 1), .weight = operand(p, 4), .ignored = none()};
    if (p->whole.n_in != 6 || p->whole.n_out != 1 || (power != 1 && power != 2) || l.target.kind != CC_IN_VALUE ||
        !alike(p, 1, &reduction))
        return false;
    const CcType x = type_of(p, l.x), target = type_of(p, l.target),
                 w = l.weight.kind == CC_IN_VALUE ? type_of(p, l.weight) : x;
    l.rows = rows_of(p);
    l.dim = x.ndim - 1;
    l.classes = int_of(x.size[l.dim]);
    if (x.ndim > 2 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_F64) || target.dtype != CC_DT_I64 ||
        !cc_type_same_shape(&target, &l.rows) ||
        (l.weight.kind == CC_IN_VALUE && (w.ndim != 1 || w.size[0] != l.classes.i || w.dtype != x.dtype)))
        return false;
    CcType first = x;
    first.size[l.dim] = 1;
    first.stride[l.dim] = 0;
    const bool last = !reduction.i && l.weight.kind != CC_IN_VALUE;
    CcOperand rows =
        cc_parts_add(p, power == 1 ? CC_OP_class_margin : CC_OP_class_margin_square, last ? p->whole.out0 : -1, &l.rows,
                     8, l.x, int_of(1), window(p, l.x, first), int_of(x.stride[l.dim]),
                     window(p, l.target, cc_parts_with_dim(&target, l.dim)), l.classes, none(), operand(p, 3));
    if (l.weight.kind == CC_IN_VALUE) {
        const CcOperand weights = at_target(p, &l, l.weight, 0);
        rows = cc_parts_add(p, CC_OP_mul, reduction.i ? -1 : p->whole.out0, &l.rows, 2, rows, weights);
    }
    reduce_rows(p, reduction.i, rows);
    return true;
}

bool cc_losses_make(Parts *p) {
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
