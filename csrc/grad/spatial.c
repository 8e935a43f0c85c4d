/* spatial: the backward of convolutions, pools, resampling, norms of channels and padding. Most are nodes that torch's own kernels run
 * (eval/aten.c); where rows of pointwise ops and sums are as fast, they fuse with their neighbours. */
#include "grad_int.h"

static bool same_dtype(const Adjoint *a, int x, int y) { return type_of(a, x)->dtype == type_of(a, y)->dtype; }

static int spatial_dims(const CcOperand *list) {
    int n = 0;
    while (n < CC_SPATIAL && list[n].kind != CC_IN_NONE) n++;
    return n;
}

/* Norms of half-precision tensors may have f32 vectors: weights, statistics. */
static bool fits_norm(const Adjoint *a, CcOperand vector, int x) {
    return vector.kind == CC_IN_NONE ||
           (vector.kind == CC_IN_VALUE && (same_dtype(a, vector.value, x) ||
                                           (type_of(a, vector.value)->dtype == CC_DT_F32 && is_half(type_of(a, x)))));
}

/* The type of a weight's gradient before it is summed, given that of x. */
static CcType for_weight(const Adjoint *a, CcType x, CcOperand weight) {
    x.dtype = type_of(a, weight.value)->dtype;
    return x;
}

static CcType type_for(const Adjoint *a, int value) { return cc_adjoint_like(type_of(a, value)); }

/* ------------------------------------------------------------------ convolutions */

/* Adds v, summed to this type, to the gradient of an operand with as many elements. */
static void add_sums(Adjoint *a, CcOperand operand, int v, CcType to) {
    to.dtype = type_of(a, operand.value)->dtype;
    const int sum = cc_adjoint_summed(a, v, to);
    cc_adjoint_add(a, operand.value, cc_adjoint_reshaped(a, sum, type_of(a, operand.value)));
}

/* The sum of the gradient over all dims but the channels. */
static void bias(Adjoint *a, CcOperand bias, int g) {
    if (wants(a, bias)) add_sums(a, bias, g, cc_adjoint_channels(type_of(a, g)));
}

/* padding="same" as numbers. False: the end needs more than the start. */
static bool find_padding(const Adjoint *a, CcIn_conv *in, int dims) {
    const CcType *w = type_of(a, in->weight.value);
    for (int d = 0; d < dims; d++) {
        if (in->padding[d].i >= 0) continue;
        const int64_t all = in->dilation[d].i * (w->size[2 + d] - 1);
        if (all % 2 != 0) return false;
        in->padding[d] = int_of(all / 2);
    }
    return true;
}

static bool fits(const Adjoint *a, CcOperand x, CcOperand w, CcOperand b, int g, int dims) {
    return type_of(a, x.value)->ndim == 2 + dims && same_dtype(a, x.value, g) && same_dtype(a, w.value, g) &&
           (b.kind == CC_IN_NONE || (b.kind == CC_IN_VALUE && same_dtype(a, b.value, g)));
}

static void copy(CcOperand *to, const CcOperand *from) { memcpy(to, from, CC_SPATIAL * sizeof *to); }

bool cc_spatial_conv(Adjoint *a, const CcNode *n) {
    CcIn_conv in;
    const int g = a->grad[n->out0];
    if (!cc_in_conv(a->g, n, &in) || in.padding_after[0].kind != CC_IN_NONE) return false;
    const int dims = spatial_dims(in.stride);
    if (!fits(a, in.x, in.weight, in.bias, g, dims) || !find_padding(a, &in, dims)) return false;
    CcIn_conv_dx d = {.grad = value_of(g), .x = in.x, .weight = in.weight, .groups = in.groups};
    copy(d.stride, in.stride);
    copy(d.padding, in.padding);
    copy(d.dilation, in.dilation);
    const CcType x = type_for(a, in.x.value), w = type_for(a, in.weight.value);
    if (wants(a, in.x)) cc_adjoint_add(a, in.x.value, cc_adjoint_make_in(a, CC_OP_conv_dx, &x, &d));
    if (wants(a, in.weight)) cc_adjoint_add(a, in.weight.value, cc_adjoint_make_in(a, CC_OP_conv_dw, &w, &d));
    bias(a, in.bias, g);
    return true;
}

bool cc_spatial_conv_transpose(Adjoint *a, const CcNode *n) {
    CcIn_conv_transpose in;
    const int g = a->grad[n->out0];
    if (!cc_in_conv_transpose(a->g, n, &in)) return false;
    if (!fits(a, in.x, in.weight, in.bias, g, spatial_dims(in.stride))) return false;
    CcIn_conv_transpose_dx d = {.grad = value_of(g), .x = in.x, .weight = in.weight, .groups = in.groups};
    copy(d.stride, in.stride);
    copy(d.padding, in.padding);
    copy(d.dilation, in.dilation);
    copy(d.output_padding, in.output_padding);
    const CcType x = type_for(a, in.x.value), w = type_for(a, in.weight.value);
    if (wants(a, in.x)) cc_adjoint_add(a, in.x.value, cc_adjoint_make_in(a, CC_OP_conv_transpose_dx, &x, &d));
    if (wants(a, in.weight)) cc_adjoint_add(a, in.weight.value, cc_adjoint_make_in(a, CC_OP_conv_transpose_dw, &w, &d));
    bias(a, in.bias, g);
    return true;
}

/* ------------------------------------------------------------------ pools */

/* torch's pools have kernels for two and three spatial dims. */
static bool is_image(const Adjoint *a, int x, int dims) {
    return (dims == 2 || dims == 3) && type_of(a, x)->ndim == 2 + dims;
}

static void stride_of(CcOperand *to, const CcOperand *stride, const CcOperand *kernel) {
    for (int d = 0; d < CC_SPATIAL; d++)
        to[d] = stride[d].kind == CC_IN_INT && stride[d].i == 0 ? kernel[d] : stride[d];
}

static CcType indices_of(const Adjoint *a, int result) {
    CcType t = type_for(a, result);
    t.dtype = CC_DT_I64;
    return t;
}

static bool is_bool(CcOperand o) { return o.kind == CC_IN_BOOL || o.kind == CC_IN_INT; }
static CcOperand as_bool(CcOperand o) { return (CcOperand){.kind = CC_IN_BOOL, .i = o.i != 0}; }

/* The backward finds the indices again, unless they are a result anyway: the forward's kernels do without. */
bool cc_spatial_max_pool(Adjoint *a, const CcNode *n) {
    CcIn_max_pool in;
    if (!cc_in_max_pool(a->g, n, &in) || !is_bool(in.ceil_mode) || !is_image(a, in.x.value, spatial_dims(in.kernel)))
        return false;
    CcIn_max_pool_at at = {.x = in.x, .ceil_mode = as_bool(in.ceil_mode)};
    copy(at.kernel, in.kernel);
    stride_of(at.stride, in.stride, in.kernel);
    copy(at.padding, in.padding);
    copy(at.dilation, in.dilation);
    const CcType index = indices_of(a, n->out0), x = type_for(a, in.x.value);
    CcIn_max_pool_dx d = {.grad = value_of(a->grad[n->out0]), .x = in.x, .ceil_mode = at.ceil_mode};
    d.index = value_of(n->n_out > 1 ? n->out0 + 1 : cc_adjoint_make_in(a, CC_OP_max_pool_at, &index, &at));
    copy(d.kernel, at.kernel);
    copy(d.stride, at.stride);
    copy(d.padding, at.padding);
    copy(d.dilation, at.dilation);
    cc_adjoint_add(a, in.x.value, cc_adjoint_make_in(a, CC_OP_max_pool_dx, &x, &d));
    return true;
}

bool cc_spatial_avg_pool(Adjoint *a, const CcNode *n) {
    CcIn_avg_pool in;
    if (!cc_in_avg_pool(a->g, n, &in) || !is_bool(in.ceil_mode) || !is_bool(in.count_include_pad) ||
        !is_image(a, in.x.value, spatial_dims(in.kernel)))
        return false;
    CcIn_avg_pool_dx d = {.grad = value_of(a->grad[n->out0]), .x = in.x, .ceil_mode = as_bool(in.ceil_mode)};
    d.count_include_pad = as_bool(in.count_include_pad);
    d.divisor = in.divisor.kind == CC_IN_INT && in.divisor.i != 0 ? in.divisor : none();
    if (in.divisor.kind != CC_IN_NONE && in.divisor.kind != CC_IN_INT) return false;
    copy(d.kernel, in.kernel);
    stride_of(d.stride, in.stride, in.kernel);
    copy(d.padding, in.padding);
    const CcType x = type_for(a, in.x.value);
    cc_adjoint_add(a, in.x.value, cc_adjoint_make_in(a, CC_OP_avg_pool_dx, &x, &d));
    return true;
}

bool cc_spatial_adaptive_max_pool(Adjoint *a, const CcNode *n) {
    CcIn_adaptive_max_pool in;
    if (!cc_in_adaptive_max_pool(a->g, n, &in) || !is_image(a, in.x.value, spatial_dims(in.size))) return false;
    CcIn_adaptive_max_pool_at at = {.x = in.x};
    copy(at.size, in.size);
    const CcType t = indices_of(a, n->out0), x = type_for(a, in.x.value);
    const int index = n->n_out > 1 ? n->out0 + 1 : cc_adjoint_make_in(a, CC_OP_adaptive_max_pool_at, &t, &at);
    cc_adjoint_add(
        a, in.x.value,
        make(a, adaptive_max_pool_dx, &x, .grad = value_of(a->grad[n->out0]), .x = in.x, .index = value_of(index)));
    return true;
}

/* The mean of a whole plane spreads its gradient evenly. */
bool cc_spatial_adaptive_avg_pool(Adjoint *a, const CcNode *n) {
    CcIn_adaptive_avg_pool in;
    const int g = a->grad[n->out0];
    if (!cc_in_adaptive_avg_pool(a->g, n, &in)) return false;
    const CcType x = type_for(a, in.x.value), t = cc_adjoint_dense(type_of(a, g));
    const int first = x.ndim - spatial_dims(in.size); /* 1 where there is no batch */
    if (x.ndim != t.ndim || first < 1) return false;
    int64_t spots = 1;
    bool whole = true;
    for (int d = first; d < x.ndim; d++) {
        spots *= x.size[d];
        whole = whole && t.size[d] == 1;
    }
    if (whole) {
        const int each = emit(a, CC_OP_div, &t, value_of(g), float_of((double)spots));
        cc_adjoint_add(a, in.x.value, cc_adjoint_expanded(a, each, &x));
        return true;
    }
    if (!is_image(a, in.x.value, spatial_dims(in.size))) return false;
    cc_adjoint_add(a, in.x.value, make(a, adaptive_avg_pool_dx, &x, .grad = value_of(g), .x = in.x));
    return true;
}

/* ------------------------------------------------------------------ resampling */

/* The numbers behind x and `skip` more operands: none or two. */
static bool factors(const Adjoint *a, const CcNode *n, int skip, CcOperand out[2]) {
    const int left = n->n_in - 1 - skip;
    out[0] = out[1] = none();
    for (int i = 0; i < left && i < 2; i++) out[i] = *cc_graph_operand(a->g, n, 1 + skip + i);
    const bool plain = out[0].kind != CC_IN_VALUE && out[0].kind != CC_IN_NUMBER && out[0].kind == out[1].kind;
    return (left == 0 || left == 2) && plain;
}

static bool is_resampled(const Adjoint *a, const CcNode *n) {
    return n->n_in > 0 && type_of(a, cc_graph_source(a->g, n))->ndim == 4 && type_of(a, n->out0)->ndim == 4;
}

/* Each element of x is repeated a whole number of times: sums over its copies. */
static bool add_copies(Adjoint *a, int x, int g) {
    CcType t = cc_adjoint_dense(type_of(a, x));
    const CcType big = *type_of(a, g);
    if (big.size[2] % t.size[2] != 0 || big.size[3] % t.size[3] != 0) return false;
    CcType split = t;
    split.ndim = 6;
    split.size[3] = big.size[2] / t.size[2];
    split.size[4] = t.size[3];
    split.size[5] = big.size[3] / t.size[3];
    cc_type_make_contiguous(&split);
    CcType one = split;
    one.size[3] = one.size[5] = 1;
    cc_type_make_contiguous(&one);
    const int sum = cc_adjoint_summed(a, cc_adjoint_reshaped(a, g, &split), one);
    cc_adjoint_add(a, x, cc_adjoint_reshaped(a, sum, &t));
    return true;
}

bool cc_spatial_nearest(Adjoint *a, const CcNode *n) {
    CcOperand by[2];
    const int x = cc_graph_source(a->g, n), g = a->grad[n->out0];
    if (!is_resampled(a, n) || !factors(a, n, 0, by)) return false;
    const CcType t = type_for(a, x);
    const CcType *big = type_of(a, g);
    bool regular = true;
    for (int d = 0; d < 2; d++)
        regular = regular &&
                  (by[d].kind == CC_IN_NONE || number_of(&by[d]) * (double)t.size[2 + d] == (double)big->size[2 + d]);
    if (regular && add_copies(a, x, g)) return true;
    const bool exact = n->op == CC_OP_upsample_exact;
    cc_adjoint_add(a, x,
                   emit(a, exact ? CC_OP_upsample_exact_dx : CC_OP_upsample_nearest_dx, &t, value_of(g), by[0], by[1]));
    return true;
}

bool cc_spatial_interpolation(Adjoint *a, const CcNode *n) {
    CcOperand by[2];
    const int x = cc_graph_source(a->g, n);
    if (!is_resampled(a, n) || n->n_in < 2 || !factors(a, n, 1, by)) return false;
    const CcOperand corners = *cc_graph_operand(a->g, n, 1);
    if (!is_bool(corners)) return false;
    const CcType t = type_for(a, x);
    const bool cubic = n->op == CC_OP_upsample_cubic;
    cc_adjoint_add(a, x,
                   emit(a, cubic ? CC_OP_upsample_cubic_dx : CC_OP_upsample_linear_dx, &t, value_of(a->grad[n->out0]),
                        as_bool(corners), by[0], by[1]));
    return true;
}

/* ------------------------------------------------------------------ norms of channels */

/* An instance norm is a group norm with a channel a group. */
static bool read_groups(const Adjoint *a, const CcNode *n, CcIn_group_norm *in) {
    CcIn_instance_norm one;
    if (n->op == CC_OP_group_norm) return cc_in_group_norm(a->g, n, in);
    if (!cc_in_instance_norm(a->g, n, &one) || type_of(a, one.x.value)->ndim < 2) return false;
    *in = (CcIn_group_norm){one.x, int_of(type_of(a, one.x.value)->size[1]), one.weight, one.bias, one.eps};
    return true;
}

/* A layer norm of x as [N, groups, C / groups, ..], over the dims after the groups. */
bool cc_spatial_group_norm(Adjoint *a, const CcNode *n) {
    CcIn_group_norm in;
    const int g = a->grad[n->out0];
    if (!read_groups(a, n, &in) || in.eps.kind != CC_IN_FLOAT) return false;
    const CcType x = cc_adjoint_dense(type_of(a, in.x.value));
    if (x.ndim < 2 || x.ndim == CC_MAX_DIMS || in.groups.i < 1 || x.size[1] % in.groups.i != 0 ||
        !fits_norm(a, in.weight, g) || !fits_norm(a, in.bias, g) || !same_dtype(a, in.x.value, g) ||
        cc_type_numel(&x) == 0)
        return false;
    CcType all = x;
    all.ndim++;
    for (int d = x.ndim; d > 2; d--) all.size[d] = x.size[d - 1];
    all.size[1] = in.groups.i;
    all.size[2] = x.size[1] / in.groups.i;
    cc_type_make_contiguous(&all);
    CcType one = all;
    for (int d = 0; d < all.ndim; d++) one.size[d] = d == 1 || d == 2 ? all.size[d] : 1;
    cc_type_make_contiguous(&one);
    const CcOperand dims = int_of((INT64_C(1) << (all.ndim - 2)) - 1),
                    split = value_of(cc_adjoint_reshaped(a, in.x.value, &all)),
                    grad = value_of(cc_adjoint_reshaped(a, g, &all));
    CcOperand weight = in.weight;
    if (weight.kind == CC_IN_VALUE) weight.value = cc_adjoint_reshaped(a, weight.value, &one);
    if (wants(a, in.x)) {
        const int dx = emit(a, cc_op_grad(CC_OP_layer_norm, CC_AT(layer_norm, x)), &all, split, dims, weight, none(),
                            in.eps, grad, none());
        cc_adjoint_add(a, in.x.value, cc_adjoint_reshaped(a, dx, &x));
    }
    if (wants(a, in.weight)) {
        const CcType t = for_weight(a, all, in.weight);
        const int dw = emit(a, cc_op_grad(CC_OP_layer_norm, CC_AT(layer_norm, weight)), &t, split, dims, none(), none(),
                            in.eps, value_of(cc_adjoint_cast(a, grad.value, t.dtype)), none());
        add_sums(a, in.weight, dw, one);
    }
    bias(a, in.bias, g);
    return true;
}

/* In eval mode the statistics are constants. */
bool cc_spatial_batch_norm(Adjoint *a, const CcNode *n) {
    CcIn_batch_norm in;
    const int g = a->grad[n->out0];
    if (!cc_in_batch_norm(a->g, n, &in) || in.mean.kind != CC_IN_VALUE || in.var.kind != CC_IN_VALUE ||
        in.eps.kind != CC_IN_FLOAT || wants(a, in.mean) || wants(a, in.var))
        return false;
    const CcType x = type_for(a, in.x.value);
    const CcOperand all[] = {in.weight, in.bias, in.mean, in.var};
    for (int i = 0; i < CC_COUNT(all); i++)
        if (!fits_norm(a, all[i], g)) return false;
    if (x.ndim < 2 || !same_dtype(a, in.x.value, g)) return false;
    const CcType one = cc_adjoint_channels(&x);
    const CcOperand mean = value_of(cc_adjoint_reshaped(a, in.mean.value, &one)),
                    var = value_of(cc_adjoint_reshaped(a, in.var.value, &one)), grad = value_of(g);
    CcOperand weight = in.weight;
    if (weight.kind == CC_IN_VALUE) weight.value = cc_adjoint_reshaped(a, weight.value, &one);
    if (wants(a, in.x))
        cc_adjoint_add(a, in.x.value,
                       emit(a, cc_op_grad(CC_OP_norm_eval, CC_AT(norm_eval, x)), &x, none(), weight, none(), none(),
                            var, in.eps, grad, none()));
    if (wants(a, in.weight)) {
        const CcType t = for_weight(a, x, in.weight);
        const int dw = emit(a, cc_op_grad(CC_OP_norm_eval, CC_AT(norm_eval, weight)), &t, in.x, none(), none(), mean,
                            var, in.eps, grad, none());
        add_sums(a, in.weight, dw, one);
    }
    bias(a, in.bias, g);
    return true;
}

/* ------------------------------------------------------------------ padding */

bool cc_spatial_pad(Adjoint *a, const CcNode *n) {
    CcIn_pad in;
    CcOperand out[1 + 2 * CC_MAX_DIMS] = {value_of(a->grad[n->out0])};
    if (!cc_in_pad(a->g, n, &in) || wants(a, in.value) || in.widths.n > 2 * CC_MAX_DIMS) return false;
    const CcType *x = type_of(a, in.x.value);
    CcType t = *type_of(a, a->grad[n->out0]);
    int n_out = 1;
    for (int k = 0; k + 1 < in.widths.n; k += 2) {
        const int d = x->ndim - 1 - k / 2;
        const CcOperand *before = cc_graph_operand(a->g, n, in.widths.first + k), *after = before + 1;
        if (d < 0 || before->kind != CC_IN_INT || after->kind != CC_IN_INT || before->i < 0 || after->i < 0)
            return false;
        out[n_out++] = int_of(d);
        out[n_out++] = int_of(before->i);
        t.size[d] = x->size[d];
    }
    if (!cc_type_same_shape(&t, x) || t.dtype != x->dtype) return false;
    cc_adjoint_add(a, in.x.value, cc_adjoint_in(a, CC_OP_slice, &t, out, n_out));
    return true;
}
