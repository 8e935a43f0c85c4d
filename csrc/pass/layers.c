/* layers: layers that torch does as one call, for pass/expand.c.
 *
 *   h = rnn_tanh_cell(x, h, ..)->   a = linear(h); b = linear(x); s = a + b; h = tanh(s)        and those of LSTM and GRU
 *   y = encoder_layer(x, ..)   ->   linear, attend, linear, add, layer_norm ...         nn.TransformerEncoderLayer in eval */
#include <math.h>

#include "pass_int.h"

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
static CcOperand binary(Parts *p, CcOpId op, int result, CcOperand a, CcOperand b, const CcType *t) {
    return cc_parts_add(p, op, result, t, 2, a, b);
}

static void lstm_cell(Parts *p, const bool *needed, CcOperand c, CcOperand gates, const CcType *t) {
    const int64_t width = t->size[1];
    const CcOperand in = unary(p, CC_OP_sigmoid, gate(p, gates, width, 0), t),
                    forget = unary(p, CC_OP_sigmoid, gate(p, gates, width, 1), t);
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
    if (p->whole.n_in != first + 4 || p->whole.n_out != 1 + lstm || t.ndim != 2 || !cc_type_numel(&t) ||
        (lstm && !needed[1] && !needed[0]))
        return false;
    for (int i = 0; i < first + 4; i++) {
        const CcOperand o = operand(p, i);
        if (i >= first + 2 && o.kind == CC_IN_NONE) continue;
        if (o.kind != CC_IN_VALUE || type_of(p, o).ndim != (i < first + 2 ? 2 : 1) || type_of(p, o).dtype != t.dtype)
            return false;
        if (i > 0 && i < first && !cc_type_same_shape(&t, &p->g->val.at[o.value].type)) return false;
    }
    cc_type_make_contiguous(&t);
    const CcOperand x = operand(p, 0), h = operand(p, 1);
    if (type_of(p, operand(p, first)).size[0] != (lstm  ? 4
                                                  : gru ? 3
                                                        : 1) *
                                                     t.size[1] ||
        type_of(p, x).size[0] != t.size[0])
        return false;
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

/* ------------------------------------------------------------------ nn.MultiheadAttention and
 * nn.TransformerEncoderLayer in eval */

/* Of queries, keys and values [B, L, 3 D] side by side one as [B, heads, L, D / heads]. */
static CcOperand heads_of(Parts *p, CcOperand all, int64_t heads, int which) {
    const CcType from = type_of(p, all);
    const int64_t width = from.size[2] / 3, each = width / heads;
    const CcType t = {.dtype = from.dtype,
                      .ndim = 4,
                      .device = from.device,
                      .device_index = from.device_index,
                      .size = {from.size[0], heads, from.size[1], each},
                      .stride = {from.stride[0], each, from.stride[1], 1}};
    const CcOperand seen = window(p, all, t);
    p->g->val.at[seen.value].offset += which * width * cc_dtype_info((CcDtype)t.dtype)->size;
    return seen;
}

/* Who must not be seen: bools of [B or 1, heads or 1, L or 1, L], one for each of [B, L] (type 1) or of [B, heads, L,
 * L]. Other dtypes: what is not 0, as eager's conversion has it. False: a mask that is not understood. */
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
static CcOperand attend_and_tell(Parts *p, CcOperand q, CcOperand k, CcOperand v, CcOperand mask, CcOperand scale,
                                 const CcType *out, bool average, int weights) {
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
    if (mask.kind == CC_IN_VALUE)
        scores = cc_parts_add(p, CC_OP_masked_fill, -1, &s, 3, scores, mask, float_of(-INFINITY));
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
    const CcOperand all = linear(p, x, operand(p, at + 2), operand(p, at + 3), -1),
                    scale = float_of(1 / sqrt((double)(t.size[2] / heads)));
    const CcOperand q = heads_of(p, all, heads, 0), k = heads_of(p, all, heads, 1), v = heads_of(p, all, heads, 2);
    const CcOperand fill = mask.kind == CC_IN_VALUE ? float_of(-INFINITY) : none();
    const CcOperand y = a->weights >= 0
                            ? attend_and_tell(p, q, k, v, mask, scale, &t, a->average, a->weights)
                            : cc_parts_add(p, CC_OP_attend, -1, &t, 7, q, k, v, mask, fill, scale, int_of(2));
    *made = linear(p, y, operand(p, at + 4), operand(p, at + 5), result);
    return true;
}

/* [B, L, D], and weights [3 D, D] of heads that divide D. */
static bool may_attend(const Parts *p, int at) {
    const CcOperand o = operand(p, 0), heads = operand(p, at + 1), weight = operand(p, at + 2);
    const CcType x = type_of(p, o), out = p->g->val.at[p->whole.out0].type;
    if (x.ndim != 3 || (x.dtype != CC_DT_F32 && x.dtype != CC_DT_BF16 && x.dtype != CC_DT_F16) ||
        !cc_type_same_shape(&x, &out) || !cc_type_contiguous(&out) || !cc_type_numel(&x))
        return false;
    if (heads.kind != CC_IN_INT || heads.i < 1 || x.size[2] % heads.i || weight.kind != CC_IN_VALUE) return false;
    const CcType w = type_of(p, weight);
    return w.ndim == 2 && w.size[0] == 3 * x.size[2] && w.size[1] == x.size[2];
}

static bool self_attention(Parts *p, const bool *needed) {
    enum { FIRST = 3, MASK = 9, AVERAGE, TYPE, N };
    const CcOperand q = operand(p, 0), k = operand(p, 1), v = operand(p, 2);
    if (p->whole.n_in != N || k.kind != CC_IN_VALUE || v.kind != CC_IN_VALUE || k.value != q.value ||
        v.value != q.value)
        return false;
    if (!needed[0] || !may_attend(p, FIRST)) return false;
    const Attending a = {.at = FIRST,
                         .mask = MASK,
                         .type = TYPE,
                         .weights = p->whole.n_out > 1 && needed[1] ? p->whole.out0 + 1 : -1,
                         .average = operand(p, AVERAGE).i != 0};
    CcOperand made;
    return attend_to_self(p, &a, q, p->whole.out0, &made);
}

static CcOperand norm(Parts *p, CcOperand x, int at, int result) {
    CcType t = type_of(p, x);
    cc_type_make_contiguous(&t);
    return cc_parts_add(p, CC_OP_layer_norm, result, &t, 5, x, int_of(1), operand(p, at), operand(p, at + 1),
                        operand(p, 9));
}

static CcOperand plus(Parts *p, CcOperand a, CcOperand b, int result) {
    CcType t = type_of(p, a);
    return cc_parts_add(p, CC_OP_add, result, &t, 2, a, b);
}

static bool encoder_layer(Parts *p, const bool *needed) {
    enum {
        HEADS = 1,
        GELU = 7,
        FIRST,
        EPS,
        NORM_1,
        NORM_2 = NORM_1 + 2,
        FFN_1 = NORM_2 + 2,
        FFN_2 = FFN_1 + 2,
        MASK = FFN_2 + 2,
        N = MASK + 2
    };
    const CcOperand x = operand(p, 0), eps = operand(p, EPS);
    if (p->whole.n_in != N || p->whole.n_out != 1 || !needed[0] || !may_attend(p, HEADS) || eps.kind != CC_IN_FLOAT)
        return false;
    const bool first = operand(p, FIRST).i != 0, gelu = operand(p, GELU).i != 0;
    const int result = p->whole.out0;
    CcOperand y;
    if (!attend_to_self(p, &(Attending){.at = HEADS, .mask = MASK, .type = MASK + 1, .weights = -1},
                        first ? norm(p, x, NORM_1, -1) : x, -1, &y))
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

bool cc_layers_make(Parts *p, const bool *needed) {
    switch (p->whole.op) {
    case CC_OP_self_attention: return self_attention(p, needed);
    case CC_OP_encoder_layer: return encoder_layer(p, needed);
    default: return cell(p, needed);
    }
}
