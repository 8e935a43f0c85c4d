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
           (vector.kind == CC_IN_VALUE &&
            (same_dtype(a, vector.value, x) ||
             (type_of(a, vector.value)->dtype == CC_DT_F32 && cc_dtype_is_half(type_of(a, x)->dtype))));
}

/* The type of a weight's gradient before it is summed, given that of x. */
static CcType for_weight(const Adjoint *a, CcType x, CcOperand weight) {
    x.dtype = type_of(a, weight.value)->dtype;
    return x;
}

static CcType type_for(const Adjoint *a, int value) { return cc_adjoint_like(type_of(a, value)); }

/* ------------------------------------------------------------------ planes */

enum { PLANE = 2 };

/* torch's kernels take batches of planes or volumes: what has no batch is a batch of one, and a line is a plane of one
 * row. False: it has other dims. least: 0: a line stays one */
static bool find_framed(CcType t, int dims, int least, CcType *out) {
    const bool lacks_batch = t.ndim == 1 + dims, is_line = dims < least;
    const int more = lacks_batch + is_line;
    if (dims < 1 || t.ndim != 2 + dims - lacks_batch || t.ndim + more > CC_MAX_DIMS) return false;
    *out = t;
    for (int d = t.ndim - 1; d >= 0; d--) out->size[d + lacks_batch + (is_line && d == t.ndim - 1)] = t.size[d];
    out->ndim += (int8_t)more;
    if (lacks_batch) out->size[0] = 1;
    if (is_line) out->size[2] = 1;
    if (more > 0) cc_type_make_contiguous(out);
    return true;
}

/* The value as such a batch; not negative, since find_framed accepted one of its shape. */
static int framed(Adjoint *a, int v, int dims, int least) {
    CcType t;
    return find_framed(*type_of(a, v), dims, least, &t) ? cc_adjoint_reshaped(a, v, &t) : v;
}

static bool is_framed(const Adjoint *a, int v, int dims, int least) {
    CcType t;
    return find_framed(*type_of(a, v), dims, least, &t);
}

static void add_framed(Adjoint *a, int x, int by) { cc_adjoint_add(a, x, cc_adjoint_reshaped(a, by, type_of(a, x))); }

/* A number for each dim of a plane, given those of a line. */
static void widen(CcOperand *list, int dims, int64_t first) {
    if (dims >= PLANE) return;
    list[1] = list[0];
    list[0] = int_of(first);
}

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
    return is_framed(a, x.value, dims, 0) && same_dtype(a, x.value, g) && same_dtype(a, w.value, g) &&
           (b.kind == CC_IN_NONE || (b.kind == CC_IN_VALUE && same_dtype(a, b.value, g)));
}

static void copy(CcOperand *to, const CcOperand *from) { memcpy(to, from, CC_SPATIAL * sizeof *to); }

/* Is it a product in each position? Where channels are planes, products of these are faster than torch's derivatives, which
 * reorder them: those of 256 channels by 128 of 4x56x56 take 15 and 4.6 ms, products 3.1 and 3.6 (Xeon, 2 threads). A
 * convolution with strides is a product of every n-th row and column: both derivatives of 256 channels by 512 of 4x56x56
 * take 9.8 ms by torch, 6.5 so (Zen 5, 2 threads). Products of half precision would be rounded before images are summed. */
static bool is_product(const Adjoint *a, const CcIn_conv *in, int image, int y, int dims) {
    const CcType *x = type_of(a, image), *w = type_of(a, in->weight.value);
    bool single = in->groups.i == 1 && w->ndim == 2 + dims;
    for (int d = 0; d < dims && single; d++) single = w->size[2 + d] == 1 && in->padding[d].i == 0;
    return single && x->device == 1 && x->dtype == CC_DT_F32 && cc_type_contiguous(x) &&
           cc_type_contiguous(type_of(a, y)) && cc_type_contiguous(w) && cc_type_numel(x) > 0 &&
           cc_type_numel(type_of(a, y)) > 0;
}

static bool has_strides(const CcIn_conv *in, int dims) {
    bool any = false;
    for (int d = 0; d < dims; d++) any = any || in->stride[d].i > 1;
    return any;
}

/* The positions of the image that the convolution reads, as a view; the image itself if these are all. */
static int picked(Adjoint *a, const CcIn_conv *in, int image, int dims) {
    if (!has_strides(in, dims)) return image;
    CcType t = *type_of(a, image);
    CcOperand list[1 + 2 * CC_SPATIAL] = {value_of(image)};
    t.requires_grad = 0;
    for (int d = 0; d < dims; d++) {
        const int64_t stride = in->stride[d].i;
        t.size[2 + d] = (t.size[2 + d] + stride - 1) / stride;
        t.stride[2 + d] *= stride;
        list[1 + 2 * d] = int_of(2 + d);
        list[2 + 2 * d] = int_of(0);
    }
    return cc_adjoint_in(a, CC_OP_slice, &t, list, 1 + 2 * dims);
}

/* The gradient of the image, given that of the picked positions. */
static int unpicked(Adjoint *a, const CcIn_conv *in, int v, const CcType *image, int dims) {
    for (int d = 0; d < dims; d++)
        if (in->stride[d].i > 1) v = cc_moves_spread(a, v, 2 + d, in->stride[d].i, 0, image->size[2 + d]);
    return v;
}

/* [images, channels, positions] */
static int planes(Adjoint *a, int v) {
    CcType t = cc_adjoint_dense(type_of(a, v));
    for (int d = 3; d < t.ndim; d++) t.size[2] *= t.size[d];
    t.ndim = 3;
    cc_type_make_contiguous(&t);
    return cc_adjoint_reshaped(a, v, &t);
}

/* [channels, images and positions], given planes */
static int rows_of_planes(Adjoint *a, int v) {
    CcType t = *type_of(a, v), rows;
    for (int d = 0; d < 2; d++) {
        t.size[d] = type_of(a, v)->size[1 - d];
        t.stride[d] = type_of(a, v)->stride[1 - d];
    }
    rows = cc_adjoint_dense(&t);
    rows.size[1] *= rows.size[2];
    rows.ndim = 2;
    cc_type_make_contiguous(&rows);
    return cc_adjoint_reshaped(a, make(a, transpose, &t, .x = value_of(v), .dim0 = int_of(0), .dim1 = int_of(1)),
                               &rows);
}

/* A product for each image, summed, or, if those would be larger than both operands, one of reordered operands. */
static int product_dw(Adjoint *a, int g, int x, const CcType *w) {
    CcType to = cc_adjoint_dense(w);
    to.ndim = 2;
    cc_type_make_contiguous(&to);
    const CcType *p = type_of(a, g), *q = type_of(a, x);
    const int64_t partial = p->size[0] * p->size[1] * q->size[1];
    if (p->size[0] > 1 && partial > cc_type_numel(p) + cc_type_numel(q)) {
        g = rows_of_planes(a, g);
        x = rows_of_planes(a, x);
    }
    return cc_adjoint_summed(a, cc_adjoint_product(a, g, cc_adjoint_transposed(a, x), -1), to);
}

static void conv_by_products(Adjoint *a, const CcIn_conv *in, int image, int y, int dims) {
    const CcType w = cc_adjoint_dense(type_of(a, in->weight.value)), whole = *type_of(a, image);
    const int g = planes(a, y);
    if (wants(a, in->x)) {
        CcType to = w, part = cc_adjoint_dense(type_of(a, y));
        to.ndim = 2;
        cc_type_make_contiguous(&to);
        part.size[1] = whole.size[1];
        cc_type_make_contiguous(&part);
        const int weight = cc_adjoint_reshaped(a, in->weight.value, &to);
        const int product = cc_adjoint_product(a, cc_adjoint_transposed(a, weight), g, -1);
        add_framed(a, in->x.value, unpicked(a, in, cc_adjoint_reshaped(a, product, &part), &whole, dims));
    }
    if (wants(a, in->weight)) {
        const int x = planes(a, picked(a, in, image, dims));
        cc_adjoint_add(a, in->weight.value, cc_adjoint_reshaped(a, product_dw(a, g, x, &w), &w));
    }
}

bool cc_spatial_conv(Adjoint *a, const CcNode *n) {
    CcIn_conv in;
    const int g = a->grad[n->out0];
    if (!cc_in_conv(a->g, n, &in) || in.padding_after[0].kind != CC_IN_NONE) return false;
    const int dims = spatial_dims(in.stride);
    if (!fits(a, in.x, in.weight, in.bias, g, dims) || !find_padding(a, &in, dims)) return false;
    const int y = framed(a, g, dims, 0), image = framed(a, in.x.value, dims, 0);
    bias(a, in.bias, y);
    if (is_product(a, &in, image, y, dims)) {
        conv_by_products(a, &in, image, y, dims);
        return true;
    }
    CcIn_conv_dx d = {.grad = value_of(y), .x = value_of(image), .weight = in.weight, .groups = in.groups};
    copy(d.stride, in.stride);
    copy(d.padding, in.padding);
    copy(d.dilation, in.dilation);
    const CcType x = type_for(a, image), w = type_for(a, in.weight.value);
    if (wants(a, in.x)) add_framed(a, in.x.value, cc_adjoint_make_in(a, CC_OP_conv_dx, &x, &d));
    if (wants(a, in.weight)) cc_adjoint_add(a, in.weight.value, cc_adjoint_make_in(a, CC_OP_conv_dw, &w, &d));
    return true;
}

bool cc_spatial_conv_transpose(Adjoint *a, const CcNode *n) {
    CcIn_conv_transpose in;
    const int g = a->grad[n->out0];
    const int dims = cc_in_conv_transpose(a->g, n, &in) ? spatial_dims(in.stride) : 0;
    if (dims == 0 || !fits(a, in.x, in.weight, in.bias, g, dims)) return false;
    const int y = framed(a, g, dims, 0), image = framed(a, in.x.value, dims, 0);
    CcIn_conv_transpose_dx d = {.grad = value_of(y), .x = value_of(image), .weight = in.weight, .groups = in.groups};
    copy(d.stride, in.stride);
    copy(d.padding, in.padding);
    copy(d.dilation, in.dilation);
    copy(d.output_padding, in.output_padding);
    const CcType x = type_for(a, image), w = type_for(a, in.weight.value);
    if (wants(a, in.x)) add_framed(a, in.x.value, cc_adjoint_make_in(a, CC_OP_conv_transpose_dx, &x, &d));
    if (wants(a, in.weight)) cc_adjoint_add(a, in.weight.value, cc_adjoint_make_in(a, CC_OP_conv_transpose_dw, &w, &d));
    bias(a, in.bias, y);
    return true;
}

/* ------------------------------------------------------------------ pools */

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
    const int dims = cc_in_max_pool(a->g, n, &in) ? spatial_dims(in.kernel) : 0;
    if (!is_bool(in.ceil_mode) || !is_framed(a, in.x.value, dims, PLANE)) return false;
    const int image = framed(a, in.x.value, dims, PLANE), g = framed(a, a->grad[n->out0], dims, PLANE);
    CcIn_max_pool_at at = {.x = value_of(image), .ceil_mode = as_bool(in.ceil_mode)};
    copy(at.kernel, in.kernel);
    stride_of(at.stride, in.stride, in.kernel);
    copy(at.padding, in.padding);
    copy(at.dilation, in.dilation);
    widen(at.kernel, dims, 1);
    widen(at.stride, dims, 1);
    widen(at.padding, dims, 0);
    widen(at.dilation, dims, 1);
    const CcType x = type_for(a, image);
    CcType index;
    if (!find_framed(indices_of(a, n->out0), dims, PLANE, &index)) return false;
    CcIn_max_pool_dx d = {.grad = value_of(g), .x = at.x, .ceil_mode = at.ceil_mode};
    d.index = value_of(n->n_out > 1 ? framed(a, n->out0 + 1, dims, PLANE)
                                    : cc_adjoint_make_in(a, CC_OP_max_pool_at, &index, &at));
    copy(d.kernel, at.kernel);
    copy(d.stride, at.stride);
    copy(d.padding, at.padding);
    copy(d.dilation, at.dilation);
    add_framed(a, in.x.value, cc_adjoint_make_in(a, CC_OP_max_pool_dx, &x, &d));
    return true;
}

bool cc_spatial_avg_pool(Adjoint *a, const CcNode *n) {
    CcIn_avg_pool in;
    const int dims = cc_in_avg_pool(a->g, n, &in) ? spatial_dims(in.kernel) : 0;
    if (!is_bool(in.ceil_mode) || !is_bool(in.count_include_pad) || !is_framed(a, in.x.value, dims, PLANE))
        return false;
    if (in.divisor.kind != CC_IN_NONE && in.divisor.kind != CC_IN_INT) return false;
    const int image = framed(a, in.x.value, dims, PLANE), g = framed(a, a->grad[n->out0], dims, PLANE);
    CcIn_avg_pool_dx d = {.grad = value_of(g), .x = value_of(image), .ceil_mode = as_bool(in.ceil_mode)};
    d.count_include_pad = as_bool(in.count_include_pad);
    d.divisor = in.divisor.kind == CC_IN_INT && in.divisor.i != 0 ? in.divisor : none();
    copy(d.kernel, in.kernel);
    stride_of(d.stride, in.stride, in.kernel);
    copy(d.padding, in.padding);
    widen(d.kernel, dims, 1);
    widen(d.stride, dims, 1);
    widen(d.padding, dims, 0);
    const CcType x = type_for(a, image);
    add_framed(a, in.x.value, cc_adjoint_make_in(a, CC_OP_avg_pool_dx, &x, &d));
    return true;
}

bool cc_spatial_adaptive_max_pool(Adjoint *a, const CcNode *n) {
    CcIn_adaptive_max_pool in;
    const int dims = cc_in_adaptive_max_pool(a->g, n, &in) ? spatial_dims(in.size) : 0;
    if (!is_framed(a, in.x.value, dims, PLANE)) return false;
    const int image = framed(a, in.x.value, dims, PLANE), g = framed(a, a->grad[n->out0], dims, PLANE);
    CcIn_adaptive_max_pool_at at = {.x = value_of(image)};
    copy(at.size, in.size);
    widen(at.size, dims, 1);
    const CcType x = type_for(a, image);
    CcType t;
    if (!find_framed(indices_of(a, n->out0), dims, PLANE, &t)) return false;
    const int index =
        n->n_out > 1 ? framed(a, n->out0 + 1, dims, PLANE) : cc_adjoint_make_in(a, CC_OP_adaptive_max_pool_at, &t, &at);
    add_framed(a, in.x.value,
               make(a, adaptive_max_pool_dx, &x, .grad = value_of(g), .x = at.x, .index = value_of(index)));
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
    const int dims = spatial_dims(in.size);
    if (!is_framed(a, in.x.value, dims, PLANE)) return false;
    const int image = framed(a, in.x.value, dims, PLANE);
    const CcType all = type_for(a, image);
    add_framed(a, in.x.value,
               make(a, adaptive_avg_pool_dx, &all, .grad = value_of(framed(a, g, dims, PLANE)), .x = value_of(image)));
    return true;
}

/* ------------------------------------------------------------------ resampling */

/* The factors, behind x and `skip` more operands, for a plane at least; -1: there are others than none or all. */
static int factors(const Adjoint *a, const CcNode *n, int skip, CcOperand out[CC_SPATIAL]) {
    const int dims = type_of(a, n->out0)->ndim - 2, given = n->n_in - 1 - skip;
    int at = 0;
    if (dims < 1 || dims > CC_SPATIAL || type_of(a, cc_graph_source(a->g, n))->ndim != 2 + dims) return -1;
    if (given != 0 && given != dims) return -1;
    for (int i = 0; i < given; i++) {
        const CcOperand o = *cc_graph_operand(a->g, n, 1 + skip + i);
        if (o.kind == CC_IN_VALUE || o.kind == CC_IN_NUMBER) return -1;
        if (i == 0 && dims < PLANE) out[at++] = o.kind == CC_IN_NONE ? none() : float_of(1);
        out[at++] = o;
    }
    while (at < CC_MAX(dims, PLANE)) out[at++] = none();
    return at;
}

/* Each element of x is repeated a whole number of times in each dim: sums over its copies. */
static bool add_copies(Adjoint *a, int x, int g) {
    const CcType t = cc_adjoint_dense(type_of(a, x)), big = *type_of(a, g);
    CcType split = t, one;
    if (2 * t.ndim - 2 > CC_MAX_DIMS) return false;
    split.ndim = 2;
    for (int d = 2; d < t.ndim; d++) {
        if (big.size[d] % t.size[d] != 0) return false;
        split.size[split.ndim++] = t.size[d];
        split.size[split.ndim++] = big.size[d] / t.size[d];
    }
    cc_type_make_contiguous(&split);
    one = split;
    for (int d = 3; d < one.ndim; d += 2) one.size[d] = 1;
    cc_type_make_contiguous(&one);
    const int sum = cc_adjoint_summed(a, cc_adjoint_reshaped(a, g, &split), one);
    cc_adjoint_add(a, x, cc_adjoint_reshaped(a, sum, &t));
    return true;
}

/* The derivative that torch's kernel computes: op(grad, lead.., factors..) */
static bool resampled(Adjoint *a, const CcNode *n, CcOpId op, const CcOperand *corners, const CcOperand *by, int n_by) {
    const int x = cc_graph_source(a->g, n), dims = type_of(a, x)->ndim - 2;
    CcOperand in[2 + CC_SPATIAL] = {value_of(framed(a, a->grad[n->out0], dims, PLANE))};
    CcType t;
    int n_in = 1;
    if (!find_framed(type_for(a, x), dims, PLANE, &t)) return false;
    if (corners != NULL) in[n_in++] = *corners;
    for (int i = 0; i < n_by; i++) in[n_in++] = by[i];
    add_framed(a, x, cc_adjoint_in(a, op, &t, in, n_in));
    return true;
}

bool cc_spatial_nearest(Adjoint *a, const CcNode *n) {
    CcOperand by[CC_SPATIAL];
    const int n_by = factors(a, n, 0, by);
    if (n_by < 0) return false;
    const int x = cc_graph_source(a->g, n), g = a->grad[n->out0], dims = type_of(a, x)->ndim - 2;
    const CcType t = type_for(a, x), *big = type_of(a, g);
    bool regular = true;
    for (int d = 0; d < dims; d++) {
        const CcOperand *o = &by[n_by - dims + d];
        regular = regular &&
                  (o->kind == CC_IN_NONE || cc_operand_number(o) * (double)t.size[2 + d] == (double)big->size[2 + d]);
    }
    if (regular && add_copies(a, x, g)) return true;
    return resampled(a, n, n->op == CC_OP_upsample_exact ? CC_OP_upsample_exact_dx : CC_OP_upsample_nearest_dx, NULL,
                     by, n_by);
}

bool cc_spatial_interpolation(Adjoint *a, const CcNode *n) {
    CcOperand by[CC_SPATIAL];
    const int n_by = n->n_in < 2 ? -1 : factors(a, n, 1, by);
    if (n_by < 0 || !is_bool(*cc_graph_operand(a->g, n, 1))) return false;
    const CcOperand corners = as_bool(*cc_graph_operand(a->g, n, 1));
    if (n->op == CC_OP_upsample_cubic)
        return n_by == PLANE && resampled(a, n, CC_OP_upsample_cubic_dx, &corners, by, n_by);
    return resampled(a, n, n_by == PLANE ? CC_OP_upsample_linear_dx : CC_OP_upsample_trilinear_dx, &corners, by, n_by);
}

/* ------------------------------------------------------------------ windows side by side */

bool cc_spatial_im2col(Adjoint *a, const CcNode *n) {
    CcIn_im2col in;
    if (!cc_in_im2col(a->g, n, &in) || !is_framed(a, in.x.value, PLANE, PLANE)) return false;
    CcType x, y = cc_adjoint_dense(type_of(a, n->out0));
    if (!find_framed(type_for(a, in.x.value), PLANE, PLANE, &x) || !find_framed(y, 1, 0, &y)) return false;
    CcIn_im2col_dx d = {.grad = value_of(cc_adjoint_reshaped(a, a->grad[n->out0], &y)),
                        .size = {int_of(x.size[2]), int_of(x.size[3])}};
    copy(d.kernel, in.kernel);
    copy(d.dilation, in.dilation);
    copy(d.padding, in.padding);
    copy(d.stride, in.stride);
    add_framed(a, in.x.value, cc_adjoint_make_in(a, CC_OP_im2col_dx, &x, &d));
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
    CcType all = cc_type_with_dim(&x, 2);
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

/* Negative widths, in the way of CC_OP_pad: zeros where the op cut x. */
static int cut_back(Adjoint *a, int v, const CcOperand *width, int n, const CcType *x) {
    CcOperand in[2 + 2 * CC_MAX_DIMS] = {value_of(v)};
    bool any = false;
    for (int k = 0; k < n; k++) {
        in[1 + k] = int_of(CC_MAX(0, -width[k].i));
        any = any || width[k].i < 0;
    }
    in[1 + n] = float_of(0);
    return any ? cc_adjoint_in(a, CC_OP_pad, x, in, 2 + n) : v;
}

bool cc_spatial_pad(Adjoint *a, const CcNode *n) {
    CcIn_pad in;
    CcOperand out[1 + 2 * CC_MAX_DIMS] = {value_of(a->grad[n->out0])}, width[2 * CC_MAX_DIMS];
    if (!cc_in_pad(a->g, n, &in) || wants(a, in.value) || in.widths.n > 2 * CC_MAX_DIMS || in.widths.n % 2 != 0)
        return false;
    const CcType x = cc_adjoint_dense(type_of(a, in.x.value));
    CcType t = *type_of(a, a->grad[n->out0]);
    if (t.dtype != x.dtype || in.widths.n > 2 * x.ndim) return false;
    int n_out = 1;
    for (int k = 0; k < in.widths.n; k += 2) {
        const int d = x.ndim - 1 - k / 2;
        for (int end = 0; end < 2; end++) {
            width[k + end] = *cc_graph_operand(a->g, n, in.widths.first + k + end);
            if (width[k + end].kind != CC_IN_INT) return false;
            t.size[d] -= CC_MAX(0, width[k + end].i);
        }
        if (t.size[d] < 0) return false;
        out[n_out++] = int_of(d);
        out[n_out++] = int_of(CC_MAX(0, width[k].i));
    }
    const int kept = cc_adjoint_in(a, CC_OP_slice, &t, out, n_out);
    cc_adjoint_add(a, in.x.value, cut_back(a, kept, width, in.widths.n, &x));
    return true;
}
