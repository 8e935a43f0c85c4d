/* expand: ops that are several nodes of other rows. Values keep their numbers, nodes do not (CcNode.origin), and what lies
 * between the parts is hidden from the host. Where a back-end refuses a part, the whole op is the host's.
 *
 *   v, i = max(x, dim)         ->   v = amax(x); i = argmax(x)                          one loop, as both reduce x
 *   l = cross_entropy(x, t)    ->   r = nll(x, t); l = nll_mean(r, t)                   a loop over x, one over its rows
 *   y = gelu(x)                ->   y = gelu(x, 1)                                      as oneDNN does it
 *   h = rnn_tanh_cell(x, h, ..)->   a = linear(h); b = linear(x); s = a + b; h = tanh(s)        and those of LSTM and GRU
 *   y = encoder_layer(x, ..)   ->   linear, attend, linear, add, layer_norm ...         nn.TransformerEncoderLayer in eval
 *   y = batch_norm(x), train   ->   m = batch_mean(x); v = batch_spread(x, m); y = norm_by(x, m, v); running(mean, m) ...
 *   y = softmax(x)             ->   m = amax(x); e = exp(x - m); s = sum(e); y = e * (1 / s)
 *
 * The last where x has few rows but long ones: a row whose loop goes through it several times is one thread's, and these
 * loops are all threads'. */
#include <math.h>

#include "pass_int.h"

/* ------------------------------------------------------------------ two results */

static const struct {
    CcOpId op, result[2];
    int n_in[2]; /* operands of the whole that each takes */
} PAIRS[] = {
    {CC_OP_max_dim, {CC_OP_amax, CC_OP_argmax}, {2, 2}},
    {CC_OP_min_dim, {CC_OP_amin, CC_OP_argmin}, {2, 2}},
    {CC_OP_aminmax, {CC_OP_amin, CC_OP_amax}, {2, 2}},
    {CC_OP_var_mean, {CC_OP_var, CC_OP_mean}, {3, 2}},
    {CC_OP_std_mean, {CC_OP_std, CC_OP_mean}, {3, 2}},
    {CC_OP_cummax, {CC_OP_so_far_max, CC_OP_so_far_argmax}, {2, 2}},
    {CC_OP_cummin, {CC_OP_so_far_min, CC_OP_so_far_argmin}, {2, 2}},
};

static bool pair(Parts *p, const bool *needed) {
    for (int i = 0; i < CC_COUNT(PAIRS); i++) {
        if (PAIRS[i].op != p->whole.op || p->whole.n_out != 2) continue;
        for (int k = 0; k < 2; k++) {
            if (!needed[k]) continue;
            if (PAIRS[i].n_in[k] == 2) cc_parts_add(p, PAIRS[i].result[k], p->whole.out0 + k, NULL, 2, operand(p, 0), operand(p, 1));
            else cc_parts_add(p, PAIRS[i].result[k], p->whole.out0 + k, NULL, 3, operand(p, 0), operand(p, 1), operand(p, 2));
        }
        return p->n > 0;
    }
    return false;
}

/* A part with all operands of the whole. */
static void same_part(Parts *p, CcOpId op, int result) {
    cc_parts_add(p, op, result, NULL, 0);
    CcNode *n = &p->g->node.at[p->first + p->n - 1];
    n->in0 = p->whole.in0;
    n->n_in = p->whole.n_in;
}

/* Windows' greatest, and where they stand. */
static bool pool(Parts *p, const bool *needed) {
    const bool adaptive = p->whole.op == CC_OP_adaptive_max_pool;
    if (needed[0]) same_part(p, adaptive ? CC_OP_adaptive_max_pool : CC_OP_max_pool, p->whole.out0);
    if (needed[1]) same_part(p, adaptive ? CC_OP_adaptive_max_pool_at : CC_OP_max_pool_at, p->whole.out0 + 1);
    return p->n > 0;
}

/* ------------------------------------------------------------------ losses of classes */

typedef struct Loss {
    CcOperand x, target, weight;
    CcOperand ignored, classes;
    int64_t reduction;
    int dim;        /* of x: the classes */
    CcType rows;    /* one number for each target */
} Loss;

static bool understand(const Parts *p, Loss *l) {
    *l = (Loss){.x = operand(p, 0), .target = operand(p, 1), .weight = operand(p, 2), .ignored = operand(p, 4)};
    if (l->x.kind != CC_IN_VALUE || l->target.kind != CC_IN_VALUE || l->ignored.kind != CC_IN_INT || p->whole.n_out != 1) return false;
    const CcType x = type_of(p, l->x), t = type_of(p, l->target), out = p->g->val.at[p->whole.out0].type;
    l->reduction = operand(p, 3).i;
    l->dim = x.ndim == 1 ? 0 : 1;
    if (x.ndim < 1 || t.ndim != x.ndim - 1 || t.dtype != CC_DT_I64 || out.dtype != x.dtype || l->reduction < 0 ||
        l->reduction > 2 || !cc_type_numel(&x))
        return false;
    for (int d = 0; d < t.ndim; d++)
        if (t.size[d] != x.size[d + (d >= l->dim)]) return false;
    const CcType w = l->weight.kind == CC_IN_VALUE ? type_of(p, l->weight) : x;
    if (l->weight.kind == CC_IN_VALUE ? w.ndim != 1 || w.size[0] != x.size[l->dim] || w.dtype != x.dtype : l->weight.kind != CC_IN_NONE)
        return false;
    l->classes = int_of(x.size[l->dim]);
    l->rows = t;
    l->rows.dtype = x.dtype;
    cc_type_make_contiguous(&l->rows);
    return true;
}

/* With the classes' dim, of one element (of all others: not at all). */
static CcType with_dim(const CcType *t, int dim) {
    CcType out = *t;
    for (int d = out.ndim++; d > dim; d--) {
        out.size[d] = t->size[d - 1];
        out.stride[d] = t->stride[d - 1];
    }
    out.size[dim] = 1;
    out.stride[dim] = 0;
    return out;
}

static CcType without_dim(const CcType *t, int dim) {
    CcType out = *t;
    out.ndim--;
    for (int d = dim; d < out.ndim; d++) {
        out.size[d] = t->size[d + 1];
        out.stride[d] = t->stride[d + 1];
    }
    return out;
}

/* Of each row the element of x (or of the weights) that its target names. */
static CcOperand at_target(Parts *p, const Loss *l, CcOperand of, int dim) {
    CcType from = type_of(p, of), at = type_of(p, l->target), seen = l->rows;
    const CcOperand step = int_of(from.stride[dim]);
    if (from.ndim > 1) seen = without_dim(&from, dim);
    for (int d = 0; d < seen.ndim && from.ndim == 1; d++) {
        seen.size[d] = 1;
        seen.stride[d] = 0;
    }
    return cc_parts_add(p, CC_OP_take, -1, &l->rows, 5, window(p, of, seen), step, window(p, l->target, at), l->classes, l->ignored);
}

/* From rows, weighted, to what the op gives. */
static void reduce(Parts *p, const Loss *l, CcOperand rows, CcOperand weights) {
    const int result = p->whole.out0;
    const CcOperand all = int_of((1 << CC_MAX_DIMS) - 1);
    if (l->reduction == 0) cc_parts_add(p, CC_OP_unless, result, NULL, 3, rows, l->target, l->ignored);
    else if (l->reduction == 1) cc_parts_add(p, CC_OP_nll_mean, result, NULL, 5, rows, all, l->target, l->ignored, weights);
    else cc_parts_add(p, CC_OP_sum, result, NULL, 2, cc_parts_add(p, CC_OP_unless, -1, &l->rows, 3, rows, l->target, l->ignored), all);
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
        w = window(p, w, with_dim(&t, t.ndim));
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
    if (x.ndim < 1 || !cc_type_same_shape(&x, &t) || t.dtype != x.dtype || out.dtype != x.dtype || l.reduction < 0 || l.reduction > 2 ||
        (x.dtype != CC_DT_F32 && x.dtype != CC_DT_F64) || !cc_type_numel(&x) ||
        (l.weight.kind == CC_IN_VALUE && (w.ndim != 1 || w.size[0] != x.size[l.dim] || w.dtype != x.dtype)))
        return false;
    l.rows = without_dim(&x, l.dim);
    cc_type_make_contiguous(&l.rows);
    const CcOperand dims = int_of(INT64_C(1) << (x.ndim - 1 - l.dim)), all = int_of((1 << CC_MAX_DIMS) - 1);
    const CcOperand keep = share > 0 ? float_of(1 - share) : none(), spread = share > 0 ? float_of(share / (double)x.size[l.dim]) : none();
    const CcOperand weights = weight_seen(p, &l, &x);
    const CcOperand rows = cc_parts_add(p, CC_OP_nll_soft, l.reduction == 0 ? p->whole.out0 : -1, &l.rows, 6, l.x, dims, l.target, weights, keep, spread);
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
                          window(p, l.target, with_dim(&target, l.dim)), l.classes, l.ignored);
    const CcOperand weights = weigh(p, &l, &rows);
    if (share != 0) {
        const CcOperand w = weight_seen(p, &l, &x);
        const CcOperand whole = cc_parts_add(p, CC_OP_nll_whole, -1, &l.rows, 3, l.x, dims, w);
        rows = cc_parts_add(p, CC_OP_blend, -1, &l.rows, 4, rows, float_of(1 - share), whole, float_of(share / (double)l.classes.i));
    }
    reduce(p, &l, rows, weights);
    return true;
}

/* What is checked before the kernel runs is read through a window, so that it is made before. */
static bool bce_loss(Parts *p) {
    static const CcOpId ROW[] = {CC_OP_bce_each, CC_OP_bce_each_mean, CC_OP_bce_each_sum};
    const CcOperand x = operand(p, 0), reduction = operand(p, 3);
    if (p->whole.n_in != 4 || p->whole.n_out != 1 || reduction.kind != CC_IN_INT || reduction.i < 0 || reduction.i > 2) return false;
    const CcType t = type_of(p, x);
    if (!cc_type_numel(&t)) return false;
    if (reduction.i == 0) cc_parts_add(p, ROW[0], p->whole.out0, NULL, 3, window(p, x, t), operand(p, 1), operand(p, 2));
    else cc_parts_add(p, ROW[reduction.i], p->whole.out0, NULL, 4, window(p, x, t), operand(p, 1), operand(p, 2), int_of((1 << CC_MAX_DIMS) - 1));
    return true;
}

/* ------------------------------------------------------------------ losses of rows */

/* From rows to what the op gives. */
static void reduce_rows(Parts *p, int64_t reduction, CcOperand rows) {
    if (reduction) cc_parts_add(p, reduction == 1 ? CC_OP_mean : CC_OP_sum, p->whole.out0, NULL, 2, rows, int_of((1 << CC_MAX_DIMS) - 1));
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
    CcType rows = without_dim(&x, x.ndim - 1);
    cc_type_make_contiguous(&rows);
    return rows;
}

static bool cosine_embedding(Parts *p) {
    const CcOperand reduction = operand(p, 4);
    CcOperand target = operand(p, 2);
    if (p->whole.n_in != 5 || p->whole.n_out != 1 || target.kind != CC_IN_VALUE || !alike(p, 2, &reduction)) return false;
    const CcType rows = rows_of(p), given = type_of(p, target);
    if (rows.ndim > 1 || !cc_type_same_shape(&rows, &given) || given.dtype == CC_DT_OTHER) return false;
    if (given.dtype != rows.dtype) target = cc_parts_add(p, CC_OP_cast, -1, &rows, 1, target);
    const CcType t = type_of(p, target);
    const int result = reduction.i ? -1 : p->whole.out0;
    reduce_rows(p, reduction.i, cc_parts_add(p, CC_OP_cosine_target, result, &rows, 5, operand(p, 0), operand(p, 1), int_of(1),
                                     window(p, target, with_dim(&t, t.ndim)), operand(p, 3)));
    return true;
}

static double number_of(CcOperand o) { return o.kind == CC_IN_FLOAT ? o.f : o.kind == CC_IN_NONE || o.kind == CC_IN_NUMBER ? -1 : (double)o.i; }

static bool triplet_margin(Parts *p) {
    const CcOperand eps = operand(p, 5), swap = operand(p, 6), reduction = operand(p, 7);
    const double power = number_of(operand(p, 4));
    if (p->whole.n_in != 8 || p->whole.n_out != 1 || (power != 1 && power != 2) || swap.kind != CC_IN_BOOL || !alike(p, 3, &reduction)) return false;
    const CcOpId distance = power == 1 ? CC_OP_pairwise_l1 : CC_OP_pairwise_distance;
    const CcType rows = rows_of(p);
    const CcOperand a = operand(p, 0), b = operand(p, 1), c = operand(p, 2);
    const CcOperand near = cc_parts_add(p, distance, -1, &rows, 4, a, b, eps, int_of(1));
    CcOperand far = cc_parts_add(p, distance, -1, &rows, 4, a, c, eps, int_of(1));
    if (swap.i) {
        const CcOperand other = cc_parts_add(p, distance, -1, &rows, 4, b, c, eps, int_of(1));
        far = cc_parts_add(p, CC_OP_minimum, -1, &rows, 2, far, other);
    }
    reduce_rows(p, reduction.i, cc_parts_add(p, CC_OP_beyond, reduction.i ? -1 : p->whole.out0, &rows, 3, near, far, operand(p, 3)));
    return true;
}

static bool multi_margin(Parts *p) {
    const CcOperand reduction = operand(p, 5);
    const double power = number_of(operand(p, 2));
    Loss l = {.x = operand(p, 0), .target = operand(p, 1), .weight = operand(p, 4), .ignored = none()};
    if (p->whole.n_in != 6 || p->whole.n_out != 1 || (power != 1 && power != 2) || l.target.kind != CC_IN_VALUE || !alike(p, 1, &reduction)) return false;
    const CcType x = type_of(p, l.x), target = type_of(p, l.target), w = l.weight.kind == CC_IN_VALUE ? type_of(p, l.weight) : x;
    l.rows = rows_of(p);
    l.dim = x.ndim - 1;
    l.classes = int_of(x.size[l.dim]);
    if (x.ndim > 2 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_F64) || target.dtype != CC_DT_I64 || !cc_type_same_shape(&target, &l.rows) ||
        (l.weight.kind == CC_IN_VALUE && (w.ndim != 1 || w.size[0] != l.classes.i || w.dtype != x.dtype)))
        return false;
    CcType first = x;
    first.size[l.dim] = 1;
    first.stride[l.dim] = 0;
    const bool last = !reduction.i && l.weight.kind != CC_IN_VALUE;
    CcOperand rows = cc_parts_add(p, power == 1 ? CC_OP_class_margin : CC_OP_class_margin_square, last ? p->whole.out0 : -1, &l.rows, 8, l.x, int_of(1),
                          window(p, l.x, first), int_of(x.stride[l.dim]), window(p, l.target, with_dim(&target, l.dim)), l.classes, none(), operand(p, 3));
    if (l.weight.kind == CC_IN_VALUE) {
        const CcOperand weights = at_target(p, &l, l.weight, 0);
        rows = cc_parts_add(p, CC_OP_mul, reduction.i ? -1 : p->whole.out0, &l.rows, 2, rows, weights);
    }
    reduce_rows(p, reduction.i, rows);
    return true;
}

/* ------------------------------------------------------------------ few long rows */

static bool long_rows(const CcGraph *g, const CcNode *n) {
    if (n->n_out != 1 || n->n_in != 2) return false;
    const CcSpace f = cc_space_of(g, n);
    const int dtype = g->val.at[n->out0].type.dtype;
    return f.shape.ndim > 0 && cc_space_few_rows(&f) &&
           (n->op == CC_OP_argmax || n->op == CC_OP_argmin || ((dtype == CC_DT_F32 || dtype == CC_DT_F64) && f.shape.dtype == dtype));
}

static CcType kept(const CcSpace *f) {
    CcType t = f->shape;
    for (int d = 0; d < t.ndim; d++)
        if (cc_space_reduced(f, d)) t.size[d] = 1;
    cc_type_make_contiguous(&t);
    return t;
}

static void softmax(Parts *p) {
    const CcSpace f = cc_space_of(p->g, &p->whole);
    const CcOperand x = operand(p, 0), dims = operand(p, 1);
    const CcType row = kept(&f), whole = p->g->val.at[p->whole.out0].type;
    const bool logs = p->whole.op == CC_OP_log_softmax;
    const CcOperand greatest = cc_parts_add(p, CC_OP_amax, -1, &row, 2, x, dims);
    const CcOperand d = cc_parts_add(p, CC_OP_sub, -1, &whole, 2, x, greatest), e = cc_parts_add(p, CC_OP_exp, -1, &whole, 1, d);
    const CcOperand sum = cc_parts_add(p, CC_OP_sum, -1, &row, 2, e, dims);
    const CcOperand scale = cc_parts_add(p, logs ? CC_OP_log : CC_OP_reciprocal, -1, &row, 1, sum);
    cc_parts_add(p, logs ? CC_OP_sub : CC_OP_mul, p->whole.out0, NULL, 2, logs ? d : e, scale);
}

static void arg(Parts *p) {
    const CcSpace f = cc_space_of(p->g, &p->whole);
    const CcOperand x = operand(p, 0), dims = operand(p, 1);
    const CcType row = kept(&f);
    const CcOperand extreme = cc_parts_add(p, p->whole.op == CC_OP_argmax ? CC_OP_amax : CC_OP_amin, -1, &row, 2, x, dims);
    cc_parts_add(p, CC_OP_place_of, p->whole.out0, NULL, 3, x, dims, extreme);
}

/* ------------------------------------------------------------------ gelu */

/* Where eager calls oneDNN (use_mkldnn in ATen/native/cpu/Activation.cpp; of bfloat16 it depends on the CPU), gelu(inf) is NaN. */
static bool gelu_of_library(const CcGraph *g, const CcNode *n) {
    const CcType *t = &g->val.at[cc_graph_operand(g, n, 0)->value].type;
    return n->n_in == 1 && t->dtype == CC_DT_F32 && t->device == 1 && cc_type_numel(t) > 1 && cc_type_contiguous(t);
}

/* ------------------------------------------------------------------ linear */

/* Rows that no single step leads through (an image of another dim first): eager copies them, too. */
static bool scattered(const CcGraph *g, const CcNode *n) {
    const CcOperand *x = cc_graph_operand(g, n, 0);
    if (x->kind != CC_IN_VALUE || n->n_in != 3) return false;
    const CcType *t = &g->val.at[x->value].type;
    int64_t size = 1, stride = 0;
    for (int d = t->ndim - 2; d >= 0; d--) {
        if (t->size[d] == 1) continue;
        if (size > 1 && t->stride[d] != stride * size) return cc_type_numel(t) > 0;
        if (size == 1) stride = t->stride[d];
        size *= t->size[d];
    }
    return false;
}

static bool copied_rows(Parts *p) {
    CcType t = type_of(p, operand(p, 0));
    cc_type_make_contiguous(&t);
    cc_parts_add(p, CC_OP_linear, p->whole.out0, NULL, 3, cc_parts_add(p, CC_OP_copy, -1, &t, 1, operand(p, 0)), operand(p, 1), operand(p, 2));
    return true;
}

static CcOperand linear(Parts *p, CcOperand x, CcOperand weight, CcOperand bias, int result) {
    CcType t = type_of(p, x);
    t.size[t.ndim - 1] = type_of(p, weight).size[0];
    cc_type_make_contiguous(&t);
    return cc_parts_add(p, CC_OP_linear, result, &t, 3, x, weight, bias);
}

/* ------------------------------------------------------------------ cells of recurrent layers: one step */

/* Part `which` of the gates that lie side by side in each row. */
static CcOperand gate(Parts *p, CcOperand gates, int64_t width, int which) {
    CcType t = type_of(p, gates);
    t.size[1] = width;
    const CcOperand seen = window(p, gates, t);
    p->g->val.at[seen.value].offset += which * width * cc_dtype_info((CcDtype)t.dtype)->size;
    return seen;
}

static CcOperand unary(Parts *p, CcOpId op, CcOperand x, const CcType *t) { return cc_parts_add(p, op, -1, t, 1, x); }
static CcOperand binary(Parts *p, CcOpId op, int result, CcOperand a, CcOperand b, const CcType *t) { return cc_parts_add(p, op, result, t, 2, a, b); }

static void lstm_cell(Parts *p, const bool *needed, CcOperand c, CcOperand gates, const CcType *t) {
    const int64_t width = t->size[1];
    const CcOperand in = unary(p, CC_OP_sigmoid, gate(p, gates, width, 0), t), forget = unary(p, CC_OP_sigmoid, gate(p, gates, width, 1), t);
    const CcOperand cell = unary(p, CC_OP_tanh, gate(p, gates, width, 2), t);
    const CcOperand kept = binary(p, CC_OP_mul, -1, forget, c, t), added = binary(p, CC_OP_mul, -1, in, cell, t);
    const CcOperand now = binary(p, CC_OP_add, p->whole.out0 + 1, kept, added, t);
    if (!needed[0]) return;
    const CcOperand out = unary(p, CC_OP_sigmoid, gate(p, gates, width, 3), t);
    binary(p, CC_OP_mul, p->whole.out0, out, unary(p, CC_OP_tanh, now, t), t);
}

static void gru_cell(Parts *p, CcOperand h, CcOperand from_x, CcOperand from_h, const CcType *t) {
    const int64_t width = t->size[1];
    CcOperand sum[2];
    for (int i = 0; i < 2; i++) {
        sum[i] = binary(p, CC_OP_add, -1, gate(p, from_h, width, i), gate(p, from_x, width, i), t);
        sum[i] = unary(p, CC_OP_sigmoid, sum[i], t);
    }
    const CcOperand reset = binary(p, CC_OP_mul, -1, gate(p, from_h, width, 2), sum[0], t);
    const CcOperand fresh = unary(p, CC_OP_tanh, binary(p, CC_OP_add, -1, gate(p, from_x, width, 2), reset, t), t);
    const CcOperand rest = binary(p, CC_OP_mul, -1, binary(p, CC_OP_sub, -1, h, fresh, t), sum[1], t);
    binary(p, CC_OP_add, p->whole.out0, rest, fresh, t);
}

/* x, h, [c,] the weights of both, their biases: of [B, ..], all of one dtype. */
static bool cell(Parts *p, const bool *needed) {
    const bool lstm = p->whole.op == CC_OP_lstm_cell, gru = p->whole.op == CC_OP_gru_cell;
    const int first = lstm ? 3 : 2;
    CcType t = p->g->val.at[p->whole.out0].type;
    if (p->whole.n_in != first + 4 || p->whole.n_out != 1 + lstm || t.ndim != 2 || !cc_type_numel(&t) || (lstm && !needed[1] && !needed[0])) return false;
    for (int i = 0; i < first + 4; i++) {
        const CcOperand o = operand(p, i);
        if (i >= first + 2 && o.kind == CC_IN_NONE) continue;
        if (o.kind != CC_IN_VALUE || type_of(p, o).ndim != (i < first + 2 ? 2 : 1) || type_of(p, o).dtype != t.dtype) return false;
        if (i > 0 && i < first && !cc_type_same_shape(&t, &p->g->val.at[o.value].type)) return false;
    }
    cc_type_make_contiguous(&t);
    const CcOperand x = operand(p, 0), h = operand(p, 1);
    if (type_of(p, operand(p, first)).size[0] != (lstm ? 4 : gru ? 3 : 1) * t.size[1] || type_of(p, x).size[0] != t.size[0]) return false;
    const CcOperand from_x = linear(p, x, operand(p, first), operand(p, first + 2), -1);
    const CcOperand from_h = linear(p, h, operand(p, first + 1), operand(p, first + 3), -1);
    const CcType all = type_of(p, from_h);
    if (gru) {
        gru_cell(p, h, from_x, from_h, &t);
        return true;
    }
    const CcOperand sum = binary(p, CC_OP_add, -1, from_h, from_x, &all);
    if (lstm) lstm_cell(p, needed, operand(p, 2), sum, &t);
    else cc_parts_add(p, p->whole.op == CC_OP_rnn_tanh_cell ? CC_OP_tanh : CC_OP_relu, p->whole.out0, NULL, 1, sum);
    return true;
}

/* ------------------------------------------------------------------ nn.MultiheadAttention and nn.TransformerEncoderLayer in eval */

/* Of queries, keys and values [B, L, 3 D] side by side one as [B, heads, L, D / heads]. */
static CcOperand heads_of(Parts *p, CcOperand all, int64_t heads, int which) {
    const CcType from = type_of(p, all);
    const int64_t width = from.size[2] / 3, each = width / heads;
    const CcType t = {.dtype = from.dtype, .ndim = 4, .device = from.device, .device_index = from.device_index,
                      .size = {from.size[0], heads, from.size[1], each}, .stride = {from.stride[0], each, from.stride[1], 1}};
    const CcOperand seen = window(p, all, t);
    p->g->val.at[seen.value].offset += which * width * cc_dtype_info((CcDtype)t.dtype)->size;
    return seen;
}

/* Who must not be seen: bools of [B or 1, heads or 1, L or 1, L], one for each of [B, L] (type 1) or of [B, heads, L, L]. Other
 * dtypes: what is not 0, as eager's conversion has it. False: a mask that is not understood. */
static bool read_mask(Parts *p, CcOperand o, CcOperand type, int64_t heads, CcOperand *mask) {
    const CcType x = type_of(p, operand(p, 0));
    *mask = none();
    if (o.kind == CC_IN_NONE) return true;
    if (o.kind != CC_IN_VALUE || type.kind != CC_IN_INT) return false;
    const CcType m = type_of(p, o);
    const int64_t whole[] = {x.size[0], heads, x.size[1], x.size[1]}, keys[] = {x.size[0], x.size[1]};
    const bool flat = m.ndim == 2;
    if (flat ? type.i != 1 : m.ndim != 4 || type.i != 2) return false;
    if (memcmp(m.size, flat ? keys : whole, sizeof *whole * (size_t)m.ndim) != 0) return false;
    CcType t = m;
    t.ndim = 4;
    for (int d = 0; d < 4; d++) {
        const int from = !flat ? d : d == 0 ? 0 : d == 3 ? 1 : -1;
        const bool one = from < 0 || m.size[from] == 1 || m.stride[from] == 0;
        t.size[d] = one && d < 3 ? 1 : m.size[from];
        t.stride[d] = one ? 0 : m.stride[from];
    }
    *mask = window(p, o, t);
    if (t.dtype == CC_DT_BOOL) return true;
    t.dtype = CC_DT_BOOL;
    cc_type_make_contiguous(&t);
    *mask = cc_parts_add(p, CC_OP_ne, -1, &t, 2, *mask, int_of(0));
    return true;
}

/* softmax(q @ k^T * scale, masked) @ v with the weights kept, over all heads or their mean: as [B, L, D]. */
static CcOperand attend_and_tell(Parts *p, CcOperand q, CcOperand k, CcOperand v, CcOperand mask, CcOperand scale, const CcType *out,
                                 bool average, int weights) {
    const CcType tq = type_of(p, q);
    CcType kt = type_of(p, k), s = tq, y = tq, swapped;
    kt.size[2] = kt.size[3];
    kt.size[3] = tq.size[2];
    kt.stride[3] = kt.stride[2];
    kt.stride[2] = 1;
    s.size[3] = tq.size[2];
    cc_type_make_contiguous(&s);
    cc_type_make_contiguous(&y);
    CcOperand scores = cc_parts_add(p, CC_OP_matmul, -1, &s, 2, q, window(p, k, kt));
    scores = cc_parts_add(p, CC_OP_mul, -1, &s, 2, scores, scale);
    if (mask.kind == CC_IN_VALUE) scores = cc_parts_add(p, CC_OP_masked_fill, -1, &s, 3, scores, mask, float_of(-INFINITY));
    scores = cc_parts_add(p, CC_OP_softmax, average ? -1 : weights, &s, 2, scores, int_of(1));
    if (average) cc_parts_add(p, CC_OP_mean, weights, NULL, 2, scores, int_of(1 << 2));
    const CcOperand each = cc_parts_add(p, CC_OP_matmul, -1, &y, 2, scores, v);
    swapped = y;
    swapped.size[1] = y.size[2];
    swapped.stride[1] = y.stride[2];
    swapped.size[2] = y.size[1];
    swapped.stride[2] = y.stride[1];
    y = swapped;
    cc_type_make_contiguous(&y);
    return window(p, cc_parts_add(p, CC_OP_copy, -1, &y, 1, window(p, each, swapped)), *out);
}

typedef struct Attending {
    int at;         /* operands on: width, heads, weights and biases */
    int mask, type; /* operands: and what it is of */
    int weights;    /* the value that they are; -1: nobody reads them */
    bool average;
} Attending;

/* False: a mask that is not understood. */
static bool attend_to_self(Parts *p, const Attending *a, CcOperand x, int result, CcOperand *made) {
    const int at = a->at;
    const int64_t heads = operand(p, at + 1).i;
    CcType t = type_of(p, x);
    CcOperand mask;
    if (!read_mask(p, operand(p, a->mask), operand(p, a->type), heads, &mask)) return false;
    cc_type_make_contiguous(&t);
    const CcOperand all = linear(p, x, operand(p, at + 2), operand(p, at + 3), -1), scale = float_of(1 / sqrt((double)(t.size[2] / heads)));
    const CcOperand q = heads_of(p, all, heads, 0), k = heads_of(p, all, heads, 1), v = heads_of(p, all, heads, 2);
    const CcOperand fill = mask.kind == CC_IN_VALUE ? float_of(-INFINITY) : none();
    const CcOperand y = a->weights >= 0 ? attend_and_tell(p, q, k, v, mask, scale, &t, a->average, a->weights)
                                        : cc_parts_add(p, CC_OP_attend, -1, &t, 7, q, k, v, mask, fill, scale, int_of(2));
    *made = linear(p, y, operand(p, at + 4), operand(p, at + 5), result);
    return true;
}

/* [B, L, D], and weights [3 D, D] of heads that divide D. */
static bool may_attend(const Parts *p, int at) {
    const CcOperand o = operand(p, 0), heads = operand(p, at + 1), weight = operand(p, at + 2);
    const CcType x = type_of(p, o), out = p->g->val.at[p->whole.out0].type;
    if (x.ndim != 3 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_BF16 && x.dtype != CC_DT_F16) || !cc_type_same_shape(&x, &out) ||
        !cc_type_contiguous(&out) || !cc_type_numel(&x))
        return false;
    if (heads.kind != CC_IN_INT || heads.i < 1 || x.size[2] % heads.i || weight.kind != CC_IN_VALUE) return false;
    const CcType w = type_of(p, weight);
    return w.ndim == 2 && w.size[0] == 3 * x.size[2] && w.size[1] == x.size[2];
}

static bool self_attention(Parts *p, const bool *needed) {
    enum { FIRST = 3, MASK = 9, AVERAGE, TYPE, N };
    const CcOperand q = operand(p, 0), k = operand(p, 1), v = operand(p, 2);
    if (p->whole.n_in != N || k.kind != CC_IN_VALUE || v.kind != CC_IN_VALUE || k.value != q.value || v.value != q.value) return false;
    if (!needed[0] || !may_attend(p, FIRST)) return false;
    const Attending a = {.at = FIRST, .mask = MASK, .type = TYPE, .weights = p->whole.n_out > 1 && needed[1] ? p->whole.out0 + 1 : -1,
                         .average = operand(p, AVERAGE).i != 0};
    CcOperand made;
    return attend_to_self(p, &a, q, p->whole.out0, &made);
}

static CcOperand norm(Parts *p, CcOperand x, int at, int result) {
    CcType t = type_of(p, x);
    cc_type_make_contiguous(&t);
    return cc_parts_add(p, CC_OP_layer_norm, result, &t, 5, x, int_of(1), operand(p, at), operand(p, at + 1), operand(p, 9));
}

static CcOperand plus(Parts *p, CcOperand a, CcOperand b, int result) {
    CcType t = type_of(p, a);
    return cc_parts_add(p, CC_OP_add, result, &t, 2, a, b);
}

static bool encoder_layer(Parts *p, const bool *needed) {
    enum { HEADS = 1, GELU = 7, FIRST, EPS, NORM_1, NORM_2 = NORM_1 + 2, FFN_1 = NORM_2 + 2, FFN_2 = FFN_1 + 2, MASK = FFN_2 + 2, N = MASK + 2 };
    const CcOperand x = operand(p, 0), eps = operand(p, EPS);
    if (p->whole.n_in != N || p->whole.n_out != 1 || !needed[0] || !may_attend(p, HEADS) || eps.kind != CC_IN_FLOAT) return false;
    const bool first = operand(p, FIRST).i != 0, gelu = operand(p, GELU).i != 0;
    const int result = p->whole.out0;
    CcOperand y;
    if (!attend_to_self(p, &(Attending){.at = HEADS, .mask = MASK, .type = MASK + 1, .weights = -1}, first ? norm(p, x, NORM_1, -1) : x, -1, &y))
        return false;
    y = plus(p, y, x, -1);
    if (!first) y = norm(p, y, NORM_1, -1);
    CcOperand z = linear(p, first ? norm(p, y, NORM_2, -1) : y, operand(p, FFN_1), operand(p, FFN_1 + 1), -1);
    const CcType t = type_of(p, z);
    z = gelu ? cc_parts_add(p, CC_OP_gelu, -1, &t, 2, z, int_of(1)) : cc_parts_add(p, CC_OP_relu, -1, &t, 1, z);
    y = plus(p, linear(p, z, operand(p, FFN_2), operand(p, FFN_2 + 1), -1), y, first ? result : -1);
    if (!first) norm(p, y, NORM_2, result);
    return true;
}

/* ------------------------------------------------------------------ what is seen and moved */

/* Each result is a view of its own operand. */
static bool meshgrid(Parts *p, const bool *needed) {
    if (p->whole.n_in != p->whole.n_out + 1) return false;
    for (int k = 0; k < p->whole.n_out; k++) {
        if (operand(p, k).kind != CC_IN_VALUE || type_of(p, operand(p, k)).ndim > 1) return false;
        if (needed[k]) cc_parts_add(p, CC_OP_expand, p->whole.out0 + k, NULL, 1, operand(p, k));
    }
    return p->n > 0;
}

/* F.unfold: of what is padded first. */
static bool padded_windows(Parts *p) {
    enum { KERNEL = 1, PADDING = 5, STRIDE = 7 };
    if (p->whole.n_in != 9) return false;
    CcType t = type_of(p, operand(p, 0));
    const CcOperand rows = operand(p, PADDING), columns = operand(p, PADDING + 1), zero = int_of(0);
    if ((t.ndim != 3 && t.ndim != 4) || rows.i < 0 || columns.i < 0) return false;
    t.size[t.ndim - 2] += 2 * rows.i;
    t.size[t.ndim - 1] += 2 * columns.i;
    cc_type_make_contiguous(&t);
    const CcOperand x = cc_parts_add(p, CC_OP_pad, -1, &t, 6, operand(p, 0), columns, columns, rows, rows, zero);
    cc_parts_add(p, CC_OP_im2col, p->whole.out0, NULL, 9, x, operand(p, KERNEL), operand(p, KERNEL + 1), operand(p, KERNEL + 2),
                 operand(p, KERNEL + 3), zero, zero, operand(p, STRIDE), operand(p, STRIDE + 1));
    return true;
}

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
        o = window(p, o, with_dim(&t, t.ndim));
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
        const CcType one = without_dim(&flat, 0);
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

static bool train(Parts *p) {
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

/* ------------------------------------------------------------------ the pass */

static bool expand(Parts *p, const bool *needed) {
    switch (p->whole.op) {
    case CC_OP_nll_loss: return cc_index_may(p->g, p->first) && needed[0] && nll_loss(p);
    case CC_OP_cross_entropy: return cc_index_may(p->g, p->first) && needed[0] && cross_entropy(p);
    case CC_OP_bce_loss: return cc_index_may(p->g, p->first) && needed[0] && bce_loss(p);
    case CC_OP_multi_margin: return cc_index_may(p->g, p->first) && needed[0] && multi_margin(p);
    case CC_OP_cosine_embedding: return needed[0] && cosine_embedding(p);
    case CC_OP_triplet_margin: return needed[0] && triplet_margin(p);
    case CC_OP_batch_norm_train:
    case CC_OP_instance_norm_train: return train(p);
    case CC_OP_softmax:
    case CC_OP_log_softmax: softmax(p); return true;
    case CC_OP_argmax:
    case CC_OP_argmin: arg(p); return true;
    case CC_OP_linear: return copied_rows(p);
    case CC_OP_meshgrid: return meshgrid(p, needed);
    case CC_OP_im2col: return padded_windows(p);
    case CC_OP_lstm_cell:
    case CC_OP_gru_cell:
    case CC_OP_rnn_tanh_cell:
    case CC_OP_rnn_relu_cell: return cell(p, needed);
    case CC_OP_self_attention: return self_attention(p, needed);
    case CC_OP_encoder_layer: return encoder_layer(p, needed);
    case CC_OP_max_pool:
    case CC_OP_adaptive_max_pool: return pool(p, needed);
    case CC_OP_gelu: cc_parts_add(p, CC_OP_gelu, p->whole.out0, NULL, 2, operand(p, 0), int_of(1)); return true;
    default: return pair(p, needed);
    }
}

/* Is it worth a copy of the graph? */
static bool may_be(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    switch (n->op) {
    case CC_OP_max_pool:
    case CC_OP_adaptive_max_pool: return rules->gathers && n->n_out == 2;
    case CC_OP_softmax:
    case CC_OP_log_softmax:
    case CC_OP_argmax:
    case CC_OP_argmin: return long_rows(g, n);
    case CC_OP_nll_loss:
    case CC_OP_bce_loss:
    case CC_OP_lstm_cell:
    case CC_OP_gru_cell:
    case CC_OP_rnn_tanh_cell:
    case CC_OP_rnn_relu_cell:
    case CC_OP_multi_margin:
    case CC_OP_cosine_embedding:
    case CC_OP_triplet_margin:
    case CC_OP_batch_norm_train:
    case CC_OP_instance_norm_train:
    case CC_OP_self_attention:
    case CC_OP_encoder_layer:
    case CC_OP_cross_entropy: return true;
    case CC_OP_linear: return scattered(g, n);
    case CC_OP_meshgrid: return true;
    case CC_OP_im2col: return n->n_in == 9 && (cc_graph_operand(g, n, 5)->i > 0 || cc_graph_operand(g, n, 6)->i > 0);
    case CC_OP_gelu: return cc_graph_operand(g, n, 0)->kind == CC_IN_VALUE && gelu_of_library(g, n);
    default: break;
    }
    for (int i = 0; i < CC_COUNT(PAIRS); i++)
        if (PAIRS[i].op == n->op) return true;
    return false;
}

/* Pools of large windows and windows of images are rewritten once more (pass/rearrange.c), views are windows (pass/views.c). */
static bool later(const CcNode *n) {
    return n->op == CC_OP_max_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_im2col || n->op == CC_OP_expand;
}

/* It writes running statistics, as pass/into.c does. */
static bool trains(const CcNode *n, const CcGroupRules *rules) {
    return (n->op == CC_OP_batch_norm_train || n->op == CC_OP_instance_norm_train) && n->flags == CC_N_WRITES && rules->prim;
}

CcGraph *cc_expand_graph(const CcGraph *g, const CcGroupRules *rules) {
    return cc_parts_graph(g, rules, &(PartsRules){may_be, expand, later, trains});
}
