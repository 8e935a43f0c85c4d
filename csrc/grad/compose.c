/* compose: ops whose derivative is that of the ops which they consist of. The backward spells such an op out and
 * differentiates what it wrote, node by node; of the spelled-out forward, only what the derivatives read is computed
 * again.
 *
 *   l = cross_entropy(x, t)   ->   r = nll(x, t); l = nll_mean(r, t)   ->   dr = nll_mean'(t); dx = nll'(x, t, dr)
 *
 * The forward stays one node, which pass/expand.c splits in its own way. */
#include "grad_int.h"

enum { MOST_RESULTS = 2 };
enum { LOSS_NONE, LOSS_MEAN, LOSS_SUM };

static CcType dense(const Adjoint *a, CcOperand o) { return cc_adjoint_dense(type_of(a, o.value)); }

static CcOperand shaped(Adjoint *a, CcOperand o, const CcType *t) {
    return o.kind == CC_IN_VALUE ? value_of(cc_adjoint_reshaped(a, o.value, t)) : o;
}

static CcType with_dim(const CcType *t, int dim) {
    CcType out = cc_type_with_dim(t, dim);
    cc_type_make_contiguous(&out);
    return out;
}

static CcType without_dim(const CcType *t, int dim) {
    CcType out = cc_type_without_dim(t, dim);
    cc_type_make_contiguous(&out);
    return out;
}

static CcOperand all_dims(void) { return int_of((1 << CC_MAX_DIMS) - 1); }

static CcType no_dims(uint8_t dtype) { return (CcType){.dtype = dtype, .device = 1}; }

/* ------------------------------------------------------------------ losses over classes */

typedef struct Loss {
    CcOperand x, target, weight, ignored;
    int64_t reduction;
    double smoothing;
    int dim; /* of the classes, in x */
    CcType rows;
} Loss;

static bool fits_weight(const Adjoint *a, const Loss *l) {
    const CcType x = dense(a, l->x);
    if (l->weight.kind == CC_IN_NONE) return true;
    const CcType w = dense(a, l->weight);
    return !wants(a, l->weight) && w.ndim == 1 && w.size[0] == x.size[l->dim] && w.dtype == x.dtype;
}

static bool fits(const Adjoint *a, Loss *l, uint8_t dtype) {
    const CcType x = dense(a, l->x);
    if (x.ndim < 1 || x.ndim == CC_MAX_DIMS || x.dtype != dtype || l->reduction < LOSS_NONE ||
        l->reduction > LOSS_SUM || cc_type_numel(&x) == 0)
        return false;
    l->dim = x.ndim == 1 ? 0 : 1;
    l->rows = without_dim(&x, l->dim);
    return fits_weight(a, l);
}

static bool has_classes(const Adjoint *a, const Loss *l) {
    const CcType t = dense(a, l->target);
    return t.dtype == CC_DT_I64 && cc_type_same_shape(&t, &l->rows);
}

/* The weight of each class, along x. */
static CcOperand weight_along(Adjoint *a, const Loss *l) {
    CcType t = dense(a, l->x);
    for (int d = 0; d < t.ndim; d++) t.size[d] = d == l->dim ? t.size[d] : 1;
    cc_type_make_contiguous(&t);
    return shaped(a, l->weight, &t);
}

/* The weight of each row's class. */
static CcOperand weight_of_rows(Adjoint *a, const Loss *l) {
    CcType line = l->rows, index, flags;
    if (l->weight.kind == CC_IN_NONE) return none();
    line.ndim = 1;
    line.size[0] = cc_type_numel(&l->rows);
    cc_type_make_contiguous(&line);
    index = line;
    index.dtype = CC_DT_I64;
    flags = line;
    flags.dtype = CC_DT_BOOL;
    const CcOperand target = shaped(a, l->target, &index);
    const CcOperand is_ignored = value_of(emit(a, CC_OP_eq, &flags, target, l->ignored));
    const CcOperand valid = value_of(emit(a, CC_OP_where, &index, is_ignored, int_of(0), target));
    const CcOperand w = value_of(make(a, index_select, &line, .x = l->weight, .dim = int_of(0), .index = valid));
    return shaped(a, w, &l->rows);
}

static CcOperand dims_of(const Adjoint *a, const Loss *l) {
    return int_of(INT64_C(1) << (type_of(a, l->x.value)->ndim - 1 - l->dim));
}

/* From rows to the op's result. */
static int reduce(Adjoint *a, const Loss *l, CcOperand rows, CcOperand weights) {
    const CcType one = no_dims(l->rows.dtype);
    if (l->reduction == LOSS_MEAN)
        return make(a, nll_mean, &one, .rows = rows, .dims = all_dims(), .target = l->target, .ignored = l->ignored,
                    .weight = weights);
    const int kept = emit(a, CC_OP_unless, &l->rows, rows, l->target, l->ignored);
    return l->reduction == LOSS_NONE ? kept : emit(a, CC_OP_sum, &one, value_of(kept), all_dims());
}

static int weighted(Adjoint *a, const Loss *l, int rows, CcOperand weights) {
    return weights.kind == CC_IN_NONE ? rows : emit(a, CC_OP_mul, &l->rows, value_of(rows), weights);
}

/* Derivatives read the target, not the element of x that it names (the operand `at`). */
static int hard_cross_entropy(Adjoint *a, const Loss *l) {
    const CcOperand weights = weight_of_rows(a, l), classes = int_of(type_of(a, l->x.value)->size[l->dim]);
    const CcType seen = with_dim(&l->rows, l->dim);
    int rows = make(a, nll, &l->rows, .x = l->x, .dims = dims_of(a, l), .step = int_of(1),
                    .target = shaped(a, l->target, &seen), .classes = classes, .ends = l->ignored);
    rows = weighted(a, l, rows, weights);
    if (l->smoothing != 0) {
        const int whole = emit(a, CC_OP_nll_whole, &l->rows, l->x, dims_of(a, l), weight_along(a, l));
        rows = emit(a, CC_OP_blend, &l->rows, value_of(rows), float_of(1 - l->smoothing), value_of(whole),
                    float_of(l->smoothing / (double)classes.i));
    }
    return reduce(a, l, value_of(rows), weights);
}

static int soft_cross_entropy(Adjoint *a, const Loss *l) {
    const CcType one = no_dims(l->rows.dtype);
    const bool smooth = l->smoothing != 0;
    const double classes = (double)type_of(a, l->x.value)->size[l->dim];
    const int rows = make(a, nll_soft, &l->rows, .x = l->x, .dims = dims_of(a, l), .target = l->target,
                          .weight = weight_along(a, l), .keep = smooth ? float_of(1 - l->smoothing) : none(),
                          .spread = smooth ? float_of(l->smoothing / classes) : none());
    if (l->reduction == LOSS_NONE) return rows;
    return emit(a, l->reduction == LOSS_MEAN ? CC_OP_mean : CC_OP_sum, &one, value_of(rows), all_dims());
}

static int cross_entropy(Adjoint *a, const CcNode *n) {
    CcIn_cross_entropy in;
    if (!cc_in_cross_entropy(a->g, n, &in)) return -1;
    Loss l = {in.x, in.target, in.weight, in.ignored, in.reduction.i, cc_operand_number(&in.smoothing), 0, {0}};
    if (!fits(a, &l, type_of(a, n->out0)->dtype)) return -1;
    if (has_classes(a, &l)) return hard_cross_entropy(a, &l);
    const CcType x = dense(a, l.x), t = dense(a, l.target);
    if (!cc_dtype_is_float(t.dtype) || t.dtype != x.dtype || !cc_type_same_shape(&t, &x)) return -1;
    return soft_cross_entropy(a, &l);
}

static int nll_loss(Adjoint *a, const CcNode *n) {
    CcIn_nll_loss in;
    if (!cc_in_nll_loss(a->g, n, &in)) return -1;
    Loss l = {in.x, in.target, in.weight, in.ignored, in.reduction.i, 0, 0, {0}};
    if (!fits(a, &l, type_of(a, n->out0)->dtype) || !has_classes(a, &l)) return -1;
    const CcType seen = with_dim(&l.rows, l.dim);
    const CcOperand weights = weight_of_rows(a, &l);
    const int rows =
        make(a, nll_class, &l.rows, .x = l.x, .dims = dims_of(a, &l), .target = shaped(a, l.target, &seen));
    return reduce(a, &l, value_of(weighted(a, &l, rows, weights)), weights);
}

/* ------------------------------------------------------------------ losses over rows */

static int mean_or_sum(Adjoint *a, int64_t reduction, int rows) {
    const CcType one = no_dims(type_of(a, rows)->dtype);
    if (reduction == LOSS_NONE) return rows;
    return emit(a, reduction == LOSS_MEAN ? CC_OP_mean : CC_OP_sum, &one, value_of(rows), all_dims());
}

static int bce_loss(Adjoint *a, const CcNode *n) {
    static const CcOpId ROW[] = {CC_OP_bce_each, CC_OP_bce_each_mean, CC_OP_bce_each_sum};
    CcIn_bce_loss in;
    if (!cc_in_bce_loss(a->g, n, &in) || in.reduction.i < LOSS_NONE || in.reduction.i > LOSS_SUM) return -1;
    const CcType x = dense(a, in.x), t = dense(a, in.target), one = no_dims(x.dtype);
    if (cc_type_numel(&x) == 0 || !cc_type_same_shape(&x, &t) || x.dtype != t.dtype) return -1;
    return emit(a, ROW[in.reduction.i], in.reduction.i == LOSS_NONE ? &x : &one, in.x, in.target, in.weight,
                in.reduction.i == LOSS_NONE ? none() : all_dims());
}

static bool has_rows(const Adjoint *a, const CcNode *n, CcOperand x, int64_t reduction) {
    const CcType t = dense(a, x);
    return t.ndim >= 1 && cc_dtype_is_float(t.dtype) && t.dtype == type_of(a, n->out0)->dtype &&
           cc_type_numel(&t) > 0 && reduction >= LOSS_NONE && reduction <= LOSS_SUM;
}

static bool alike(const Adjoint *a, CcOperand x, CcOperand y) {
    const CcType s = dense(a, x), t = dense(a, y);
    return cc_type_same_shape(&s, &t) && s.dtype == t.dtype;
}

static CcType rows_of(const Adjoint *a, CcOperand x) {
    const CcType t = dense(a, x);
    return without_dim(&t, t.ndim - 1);
}

static int cosine_embedding(Adjoint *a, const CcNode *n) {
    CcIn_cosine_embedding in;
    if (!cc_in_cosine_embedding(a->g, n, &in) || !has_rows(a, n, in.a, in.reduction.i) || !alike(a, in.a, in.b) ||
        wants(a, in.target))
        return -1;
    const CcType rows = rows_of(a, in.a), given = dense(a, in.target);
    if (rows.ndim > 1 || !cc_type_same_shape(&rows, &given)) return -1;
    const CcType seen = with_dim(&rows, rows.ndim);
    const CcOperand target = value_of(cc_adjoint_cast(a, in.target.value, rows.dtype));
    return mean_or_sum(a, in.reduction.i,
                       make(a, cosine_target, &rows, .a = in.a, .b = in.b, .dims = int_of(1),
                            .target = shaped(a, target, &seen), .margin = in.margin));
}

static int triplet_margin(Adjoint *a, const CcNode *n) {
    CcIn_triplet_margin in;
    if (!cc_in_triplet_margin(a->g, n, &in) || !has_rows(a, n, in.anchor, in.reduction.i) ||
        !alike(a, in.anchor, in.positive) || !alike(a, in.anchor, in.negative))
        return -1;
    const double power = cc_operand_number(&in.p);
    if (power != 1 && power != 2) return -1;
    const CcOpId distance = power == 1 ? CC_OP_pairwise_l1 : CC_OP_pairwise_distance;
    const CcType rows = rows_of(a, in.anchor);
    const int near = emit(a, distance, &rows, in.anchor, in.positive, in.eps, int_of(1));
    int far = emit(a, distance, &rows, in.anchor, in.negative, in.eps, int_of(1));
    if (in.swap.i) {
        const int other = emit(a, distance, &rows, in.positive, in.negative, in.eps, int_of(1));
        far = emit(a, CC_OP_minimum, &rows, value_of(far), value_of(other));
    }
    return mean_or_sum(a, in.reduction.i, emit(a, CC_OP_beyond, &rows, value_of(near), value_of(far), in.margin));
}

static int multi_margin(Adjoint *a, const CcNode *n) {
    CcIn_multi_margin in;
    if (!cc_in_multi_margin(a->g, n, &in) || !has_rows(a, n, in.x, in.reduction.i)) return -1;
    const double power = cc_operand_number(&in.p);
    Loss l = {in.x, in.target, in.weight, int_of(-1), in.reduction.i, 0, 0, {0}};
    if ((power != 1 && power != 2) || !fits(a, &l, type_of(a, n->out0)->dtype) || !has_classes(a, &l) ||
        type_of(a, in.x.value)->ndim > 2)
        return -1;
    const CcType seen = with_dim(&l.rows, l.dim), x = *type_of(a, in.x.value);
    CcType first = x;
    first.size[l.dim] = 1;
    first.stride[l.dim] = 0;
    first.requires_grad = 0;
    /* the derivative for x takes both operands into account */
    const CcIn_class_margin of = {.x = in.x,
                                  .dims = int_of(1),
                                  .at = value_of(make(a, detach, &first, .x = in.x)),
                                  .step = int_of(x.stride[l.dim]),
                                  .target = shaped(a, in.target, &seen),
                                  .classes = int_of(x.size[l.dim]),
                                  .margin = in.margin};
    const CcOpId op = power == 1 ? CC_OP_class_margin : CC_OP_class_margin_square;
    const int rows = weighted(a, &l, cc_adjoint_make_in(a, op, &l.rows, &of), weight_of_rows(a, &l));
    return mean_or_sum(a, l.reduction, rows);
}

/* ------------------------------------------------------------------ others */

/* One weight for each channel, or one for all. */
static int prelu(Adjoint *a, const CcNode *n) {
    CcIn_prelu in;
    if (!cc_in_prelu(a->g, n, &in)) return -1;
    const CcType x = dense(a, in.x), w = dense(a, in.weight);
    CcType along = x;
    if (x.ndim < 1 || w.ndim > 1 || x.dtype != w.dtype) return -1;
    for (int d = 0; d < x.ndim; d++) along.size[d] = d == 1 ? cc_type_numel(&w) : 1;
    cc_type_make_contiguous(&along);
    if (cc_type_numel(&along) != cc_type_numel(&w) || (cc_type_numel(&w) != 1 && along.size[1] != x.size[1])) return -1;
    return emit(a, CC_OP_leaky_by, &x, in.x, shaped(a, in.weight, &along));
}

static const struct {
    CcOpId op, result[MOST_RESULTS];
    int n_in[MOST_RESULTS]; /* max number of the node's operands that each part takes */
} PAIRS[] = {
    {CC_OP_aminmax, {CC_OP_amin, CC_OP_amax}, {2, 2}},
    {CC_OP_var_mean, {CC_OP_var, CC_OP_mean}, {3, 2}},
    {CC_OP_std_mean, {CC_OP_std, CC_OP_mean}, {3, 2}},
};

static bool pair(Adjoint *a, const CcNode *n, int *result) {
    for (int i = 0; i < CC_COUNT(PAIRS); i++) {
        if (PAIRS[i].op != n->op || n->n_out != 2) continue;
        for (int k = 0; k < 2; k++) {
            CcOperand in[CC_OPERANDS_MAX];
            const int n_in = CC_MIN(n->n_in, PAIRS[i].n_in[k]);
            const CcType t = cc_adjoint_dense(type_of(a, n->out0 + k));
            for (int j = 0; j < n_in; j++) in[j] = *cc_graph_operand(a->g, n, j);
            result[k] = cc_adjoint_in(a, PAIRS[i].result[k], &t, in, n_in);
        }
        return true;
    }
    return false;
}

/* Each head of k or v as often as there are heads of q for it. */
static CcOperand for_heads(Adjoint *a, CcOperand k, int64_t heads) {
    CcType t = dense(a, k);
    const int dim = t.ndim - 3;
    const int64_t times = dim >= 0 && t.size[dim] > 0 && heads % t.size[dim] == 0 ? heads / t.size[dim] : 1;
    if (times == 1) return k;
    t.size[dim] = heads;
    cc_type_make_contiguous(&t);
    return value_of(make(a, repeat_interleave, &t, .x = k, .times = int_of(times), .dim = int_of(dim)));
}

/* Several heads of q share one of k and v. */
static int grouped_attention(Adjoint *a, const CcNode *n) {
    CcIn_attention in;
    const CcType y = cc_adjoint_dense(type_of(a, n->out0));
    if (!cc_in_attention(a->g, n, &in) || in.enable_gqa.kind != CC_IN_BOOL || !in.enable_gqa.i) return -1;
    const CcType q = dense(a, in.q);
    if (q.ndim < 3) return -1;
    in.k = for_heads(a, in.k, q.size[q.ndim - 3]);
    in.v = for_heads(a, in.v, q.size[q.ndim - 3]);
    in.enable_gqa.i = 0;
    return cc_adjoint_make_in(a, CC_OP_attention, &y, &in);
}

/* ------------------------------------------------------------------ the derivative */

static bool spell(Adjoint *a, const CcNode *n, int *result) {
    if (cc_graph_source(a->g, n) < 0) return false;
    switch (n->op) {
    case CC_OP_cross_entropy: result[0] = cross_entropy(a, n); break;
    case CC_OP_nll_loss: result[0] = nll_loss(a, n); break;
    case CC_OP_bce_loss: result[0] = bce_loss(a, n); break;
    case CC_OP_cosine_embedding: result[0] = cosine_embedding(a, n); break;
    case CC_OP_triplet_margin: result[0] = triplet_margin(a, n); break;
    case CC_OP_multi_margin: result[0] = multi_margin(a, n); break;
    case CC_OP_prelu: result[0] = prelu(a, n); break;
    case CC_OP_attention: result[0] = grouped_attention(a, n); break;
    default: return pair(a, n, result);
    }
    return result[0] >= 0;
}

/* The new values have gradients, too. */
static void follow(Adjoint *a, int first) {
    const int n = a->g->val.n;
    a->grad = cc_mem_grow(a->grad, sizeof *a->grad * ((size_t)n + 1));
    a->wanted = cc_mem_grow(a->wanted, (size_t)n + 1);
    for (int v = a->n_val; v < n; v++) {
        a->grad[v] = -1;
        a->wanted[v] = false;
    }
    a->n_val = n;
    for (int i = first; i < a->g->node.n; i++) {
        const CcNode *node = &a->g->node.at[i];
        bool any = false;
        for (int k = 0; k < node->n_in && node->op != CC_OP_detach; k++)
            any = any || wants(a, *cc_graph_operand(a->g, node, k));
        for (int k = 0; k < node->n_out; k++)
            a->wanted[node->out0 + k] = any && cc_dtype_is_float(type_of(a, node->out0 + k)->dtype);
    }
}

bool cc_compose_apply(Adjoint *a, const CcNode *n) {
    const int first = a->g->node.n;
    int result[MOST_RESULTS] = {-1, -1};
    if (a->before >= 0 || n->n_out > MOST_RESULTS || !spell(a, n, result)) return false;
    const int last = a->g->node.n;
    follow(a, first);
    for (int k = 0; k < n->n_out; k++) {
        if (a->grad[n->out0 + k] < 0) continue;
        a->grad[result[k]] = a->grad[n->out0 + k];
        a->wanted[result[k]] = true;
    }
    for (int i = last - 1; i >= first; i--)
        if (!cc_rules_apply(a, i)) return false;
    return true;
}
