/* layers: splits layers that torch runs as one call, for pass/expand.c.
 *
 *   h = rnn_tanh_cell(x, h, ..)->   a = linear(h); b = linear(x); s = a + b; h = tanh(s)    also cells of LSTM and GRU
 *   y = encoder_layer(x, ..)   ->   linear, attend, linear, add, layer_norm ...    nn.TransformerEncoderLayer in eval */
#include <math.h>

#include "pass_int.h"

static CcOperand linear(Parts *p, CcOperand x, CcOperand weight, CcOperand bias, int result) {
    CcType t = type_of(p, x);
    t.size[t.ndim - 1] = type_of(p, weight).size[0];
    cc_type_make_contiguous(&t);
    return cc_parts_make(p, linear, result, &t, .x = x, .weight = weight, .bias = bias);
}

/* ------------------------------------------------------------------ cells of recurrent layers: one time step */

/* Gate `which`; the gates are stored side by side in each row. */
static CcOperand gate(Parts *p, CcOperand gates, int64_t width, int which) {
    CcType t = type_of(p, gates);
    t.size[1] = width;
    return value_of(cc_views_part(p->g, gates.value, &t, which * width));
}

static CcOperand unary(Parts *p, CcOpId op, CcOperand x, const CcType *t) { return cc_parts_add(p, op, -1, t, x); }
static CcOperand binary(Parts *p, CcOpId op, int result, CcOperand a, CcOperand b, const CcType *t) {
    return cc_parts_add(p, op, result, t, a, b);
}

static void lstm_cell(Parts *p, CcOperand c, CcOperand gates, const CcType *t) {
    const int64_t width = t->size[1];
    const CcOperand in = unary(p, CC_OP_sigmoid, gate(p, gates, width, 0), t),
                    forget = unary(p, CC_OP_sigmoid, gate(p, gates, width, 1), t);
    const CcOperand cell = unary(p, CC_OP_tanh, gate(p, gates, width, 2), t);
    const CcOperand kept = binary(p, CC_OP_mul, -1, forget, c, t), added = binary(p, CC_OP_mul, -1, in, cell, t);
    const CcOperand now = binary(p, CC_OP_add, p->whole.out0 + 1, kept, added, t);
    if (!p->needed[0]) return;
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

/* Operands of an LSTM cell; other cells have no c. */
static bool read_cell(const Parts *p, CcIn_lstm_cell *in) {
    CcIn_gru_cell other;
    if (p->whole.op == CC_OP_lstm_cell) return cc_in_lstm_cell(p->g, &p->whole, in);
    if (!cc_in_gru_cell(p->g, &p->whole, &other)) return false;
    *in = (CcIn_lstm_cell){
        .x = other.x, .h = other.h, .w_x = other.w_x, .w_h = other.w_h, .b_x = other.b_x, .b_h = other.b_h};
    return true;
}

static bool is_of(const Parts *p, CcOperand o, int ndim, int dtype) {
    return o.kind == CC_IN_NONE || (type_of(p, o).ndim == ndim && type_of(p, o).dtype == dtype);
}

/* All have one dtype; x, h and c are [B, ..]. */
static bool cell(Parts *p) {
    const bool lstm = p->whole.op == CC_OP_lstm_cell, gru = p->whole.op == CC_OP_gru_cell;
    const int gates = lstm ? 4 : gru ? 3 : 1;
    CcIn_lstm_cell in;
    CcType t = p->g->val.at[p->whole.out0].type;
    if (!read_cell(p, &in) || p->whole.n_out != 1 + lstm || t.ndim != 2 || !cc_type_numel(&t) ||
        (lstm && !p->needed[1] && !p->needed[0]))
        return false;
    const CcOperand matrix[] = {in.x, in.h, in.c, in.w_x, in.w_h};
    for (int i = 0; i < CC_COUNT(matrix); i++)
        if (!is_of(p, matrix[i], 2, t.dtype)) return false;
    if (!is_of(p, in.b_x, 1, t.dtype) || !is_of(p, in.b_h, 1, t.dtype)) return false;
    if (!cc_type_same_shape(&t, &p->g->val.at[in.h.value].type) ||
        (lstm && !cc_type_same_shape(&t, &p->g->val.at[in.c.value].type)))
        return false;
    cc_type_make_contiguous(&t);
    if (type_of(p, in.w_x).size[0] != gates * t.size[1] || type_of(p, in.x).size[0] != t.size[0]) return false;
    const CcOperand from_x = linear(p, in.x, in.w_x, in.b_x, -1);
    const CcOperand from_h = linear(p, in.h, in.w_h, in.b_h, -1);
    const CcType all = type_of(p, from_h);
    if (gru) {
        gru_cell(p, in.h, from_x, from_h, &t);
        return true;
    }
    const CcOperand sum = binary(p, CC_OP_add, -1, from_h, from_x, &all);
    if (lstm) lstm_cell(p, in.c, sum, &t);
    else cc_parts_add(p, p->whole.op == CC_OP_rnn_tanh_cell ? CC_OP_tanh : CC_OP_relu, p->whole.out0, NULL, sum);
    return true;
}

/* ------------------------------------------------------------------ nn.MultiheadAttention, TransformerEncoderLayer */

/* One of queries, keys and values, stored side by side as [B, L, 3 D], as [B, heads, L, D / heads]. */
static CcOperand heads_of(Parts *p, CcOperand all, int64_t heads, int which) {
    const CcType from = type_of(p, all);
    const int64_t width = from.size[2] / 3, each = width / heads;
    const CcType t = {.dtype = from.dtype,
                      .ndim = 4,
                      .device = from.device,
                      .device_index = from.device_index,
                      .size = {from.size[0], heads, from.size[1], each},
                      .stride = {from.stride[0], each, from.stride[1], 1}};
    return value_of(cc_views_part(p->g, all.value, &t, which * width));
}

/* The mask as bools of [B or 1, heads or 1, L or 1, L]: true hides a key. torch gives one per [B, L] (type 1) or per
 * [B, heads, L, L]. For other dtypes, nonzero is true, as in eager's conversion. False: unknown kind of mask. */
static bool read_mask(Parts *p, const CcType *x, CcOperand o, CcOperand type, int64_t heads, CcOperand *mask) {
    *mask = none();
    if (o.kind == CC_IN_NONE) return true;
    if (o.kind != CC_IN_VALUE || type.kind != CC_IN_INT) return false;
    const CcType m = type_of(p, o);
    const int64_t whole[] = {x->size[0], heads, x->size[1], x->size[1]}, keys[] = {x->size[0], x->size[1]};
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
    *mask = cc_parts_add(p, CC_OP_ne, -1, &t, *mask, int_of(0));
    return true;
}

/* softmax(q @ k^T * scale, masked) @ v with the weights kept, per head or averaged: as [B, L, D]. */
static CcOperand attend_and_tell(Parts *p, CcOperand q, CcOperand k, CcOperand v, CcOperand mask, CcOperand scale,
                                 const CcType *out, bool average, int weights) {
    const CcType tq = type_of(p, q), tk = type_of(p, k);
    CcType s = tq, y = tq;
    s.size[3] = tq.size[2];
    cc_type_make_contiguous(&s);
    cc_type_make_contiguous(&y);
    CcOperand scores = cc_parts_add(p, CC_OP_matmul, -1, &s, q, window(p, k, cc_type_swapped(&tk, 2, 3)));
    scores = cc_parts_add(p, CC_OP_mul, -1, &s, scores, scale);
    if (mask.kind == CC_IN_VALUE)
        scores = cc_parts_add(p, CC_OP_masked_fill, -1, &s, scores, mask, float_of(-INFINITY));
    scores = cc_parts_make(p, softmax, average ? -1 : weights, &s, .x = scores, .dims = last_dims(1));
    if (average) cc_parts_add(p, CC_OP_mean, weights, NULL, scores, int_of(1 << 2));
    const CcOperand each = cc_parts_add(p, CC_OP_matmul, -1, &y, scores, v);
    const CcType swapped = cc_type_swapped(&y, 1, 2);
    y = swapped;
    cc_type_make_contiguous(&y);
    return window(p, cc_parts_add(p, CC_OP_copy, -1, &y, window(p, each, swapped)), *out);
}

typedef struct Attending {
    int64_t heads;
    CcOperand in_weight, in_bias, out_weight, out_bias;
    CcOperand mask, mask_type;
    int weights; /* the value of the weights; -1: not read */
    bool average;
} Attending;
/* The rows of both ops name these operands alike. */
#define ATTENDING(in)                                                                                                  \
    .heads = (in).heads.i, .in_weight = (in).in_weight, .in_bias = (in).in_bias, .out_weight = (in).out_weight,        \
    .out_bias = (in).out_bias, .mask = (in).mask, .mask_type = (in).mask_type

/* False: unknown kind of mask. */
static bool attend_to_self(Parts *p, const Attending *a, CcOperand x, int result, CcOperand *made) {
    CcType t = type_of(p, x);
    CcOperand mask;
    if (!read_mask(p, &t, a->mask, a->mask_type, a->heads, &mask)) return false;
    cc_type_make_contiguous(&t);
    const CcOperand all = linear(p, x, a->in_weight, a->in_bias, -1),
                    scale = float_of(1 / sqrt((double)(t.size[2] / a->heads)));
    const CcOperand q = heads_of(p, all, a->heads, 0), k = heads_of(p, all, a->heads, 1),
                    v = heads_of(p, all, a->heads, 2);
    const CcOperand fill = mask.kind == CC_IN_VALUE ? float_of(-INFINITY) : none();
    const CcOperand y = a->weights >= 0 ? attend_and_tell(p, q, k, v, mask, scale, &t, a->average, a->weights)
                                        : cc_parts_make(p, attend, -1, &t, .q = q, .k = k, .v = v, .mask = mask,
                                                        .fill = fill, .scale = scale, .merged = int_of(2));
    *made = linear(p, y, a->out_weight, a->out_bias, result);
    return true;
}

/* x is [B, L, D], weights are [3 D, D], and the number of heads divides D. */
static bool may_attend(const Parts *p, CcOperand in, const Attending *a) {
    const CcType x = type_of(p, in), out = p->g->val.at[p->whole.out0].type, w = type_of(p, a->in_weight);
    if (x.ndim != 3 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_BF16 && x.dtype != CC_DT_F16) ||
        !cc_type_same_shape(&x, &out) || !cc_type_contiguous(&out) || !cc_type_numel(&x))
        return false;
    return a->heads >= 1 && x.size[2] % a->heads == 0 && w.ndim == 2 && w.size[0] == 3 * x.size[2] &&
           w.size[1] == x.size[2];
}

static bool self_attention(Parts *p) {
    CcIn_self_attention in;
    if (!cc_in_self_attention(p->g, &p->whole, &in) || in.k.value != in.q.value || in.v.value != in.q.value)
        return false;
    const Attending a = {ATTENDING(in), .weights = p->whole.n_out > 1 && p->needed[1] ? p->whole.out0 + 1 : -1,
                         .average = in.average.i != 0};
    CcOperand made;
    return p->needed[0] && may_attend(p, in.q, &a) && attend_to_self(p, &a, in.q, p->whole.out0, &made);
}

static CcOperand norm(Parts *p, CcOperand x, CcOperand weight, CcOperand bias, CcOperand eps, int result) {
    CcType t = type_of(p, x);
    cc_type_make_contiguous(&t);
    return cc_parts_make(p, layer_norm, result, &t, .x = x, .dims = last_dims(1), .weight = weight, .bias = bias,
                         .eps = eps);
}

static CcOperand plus(Parts *p, CcOperand a, CcOperand b, int result) {
    CcType t = type_of(p, a);
    return cc_parts_add(p, CC_OP_add, result, &t, a, b);
}

static bool encoder_layer(Parts *p) {
    CcIn_encoder_layer in;
    if (!cc_in_encoder_layer(p->g, &p->whole, &in) || p->whole.n_out != 1 || !p->needed[0] ||
        in.eps.kind != CC_IN_FLOAT)
        return false;
    const Attending a = {ATTENDING(in), .weights = -1};
    if (!may_attend(p, in.x, &a)) return false;
    const bool first = in.norm_first.i != 0, gelu = in.gelu.i != 0;
    const int result = p->whole.out0;
    CcOperand y;
    if (!attend_to_self(p, &a, first ? norm(p, in.x, in.weight_1, in.bias_1, in.eps, -1) : in.x, -1, &y)) return false;
    y = plus(p, y, in.x, -1);
    if (!first) y = norm(p, y, in.weight_1, in.bias_1, in.eps, -1);
    CcOperand z = first ? norm(p, y, in.weight_2, in.bias_2, in.eps, -1) : y;
    z = linear(p, z, in.ffn_weight_1, in.ffn_bias_1, -1);
    const CcType t = type_of(p, z);
    z = gelu ? cc_parts_add(p, CC_OP_gelu, -1, &t, z, int_of(1)) : cc_parts_add(p, CC_OP_relu, -1, &t, z);
    y = plus(p, linear(p, z, in.ffn_weight_2, in.ffn_bias_2, -1), y, first ? result : -1);
    if (!first) norm(p, y, in.weight_2, in.bias_2, in.eps, result);
    return true;
}

bool cc_layers_make(Parts *p) {
    switch (p->whole.op) {
    case CC_OP_self_attention: return self_attention(p);
    case CC_OP_encoder_layer: return encoder_layer(p);
    default: return cell(p);
    }
}
