/* dropout: splits a random op into a draw, for which the host asks torch's generator, and nodes that are pure.
 *
 *   y = dropout(x, p)            ->   kept = draw(1 - p); y = dropped(x, kept, 1 - p)
 *   y = attention_dropout(q, ..) ->   s = q @ k^T * scale (+ mask); w = dropped(softmax(s), draw(1 - p), 1 - p); y = w @ v
 *
 * The draw takes the same numbers from the generator, in the same order, as eager's op: torch's CPU kernels draw for the
 * elements of an op in order of memory, whatever their dtype. */
#include <math.h>

#include "pass_int.h"

static bool is_plain_float(const CcType *t) {
    return t->ndim >= 0 && t->device == 1 && cc_dtype_is_float(t->dtype) && cc_type_numel(t) > 0;
}

/* A number for each channel of each sample. */
static CcType of_channels(CcType x) {
    for (int d = 2; d < x.ndim; d++) x.size[d] = 1;
    cc_type_make_contiguous(&x);
    return x;
}

/* torch.empty_like(x) has x's strides if x is dense. */
static bool read_dropout(const CcGraph *g, const CcNode *n, CcDraw *out) {
    CcIn_dropout in;
    const bool channels = n->op == CC_OP_feature_dropout;
    if (!cc_operands_read(g, n, CC_OP_dropout, &in)) return false;
    const CcType x = g->val.at[in.x.value].type;
    if (!is_plain_float(&x) || !cc_type_dense(&x) || !cc_type_same_layout(&x, &g->val.at[n->out0].type)) return false;
    if (channels && x.ndim < 2) return false;
    *out = (CcDraw){.type = channels ? of_channels(x) : x, .keep = 1 - cc_operand_number(&in.p)};
    return true;
}

/* F.scaled_dot_product_attention spells itself out where it drops probabilities. */
static bool read_attention(const CcGraph *g, const CcNode *n, CcDraw *out) {
    CcIn_attention_dropout in;
    if (!cc_in_attention_dropout(g, n, &in)) return false;
    CcType scores = g->val.at[in.q.value].type;
    const CcType *k = &g->val.at[in.k.value].type;
    if (!is_plain_float(&scores) || scores.ndim < 2 || k->ndim != scores.ndim || cc_type_numel(k) == 0) return false;
    scores.size[scores.ndim - 1] = k->size[k->ndim - 2];
    cc_type_make_contiguous(&scores);
    *out = (CcDraw){.type = scores, .keep = 1 - cc_operand_number(&in.p)};
    return true;
}

bool cc_dropout_read(const CcGraph *g, const CcNode *n, CcDraw *out) {
    if (n->n_out != 1) return false;
    const bool drops = n->op == CC_OP_dropout || n->op == CC_OP_feature_dropout;
    if (drops ? !read_dropout(g, n, out) : n->op != CC_OP_attention_dropout || !read_attention(g, n, out)) return false;
    out->type.dtype = CC_DT_BOOL;
    out->type.requires_grad = 0;
    return out->keep > 0 && out->keep < 1; /* else eager draws nothing */
}

/* ------------------------------------------------------------------ parts */

static CcOperand draw(Parts *p, const CcDraw *d) {
    return cc_parts_add(p, CC_OP_draw, -1, &d->type, float_of(d->keep));
}

static CcOperand dropped(Parts *p, CcOperand x, int result, const CcDraw *d, CcOperand kept) {
    const CcType t = type_of(p, x);
    return cc_parts_make(p, dropped, result, &t, .x = x, .kept = kept, .p = float_of(d->keep));
}

static bool split_dropout(Parts *p, const CcDraw *d) {
    const CcOperand x = operand(p, CC_AT(dropout, x));
    dropped(p, x, p->whole.out0, d, draw(p, d));
    return true;
}

/* f32, and heads of q, k and v correspond. */
static bool is_regular(const Parts *p, const CcIn_attention_dropout *in) {
    const CcType q = type_of(p, in->q), k = type_of(p, in->k), v = type_of(p, in->v);
    const bool grouped = in->enable_gqa.kind == CC_IN_BOOL && in->enable_gqa.i, masked = in->mask.kind != CC_IN_NONE;
    const bool scaled = in->scale.kind == CC_IN_NONE || in->scale.kind == CC_IN_FLOAT || in->scale.kind == CC_IN_INT;
    if (grouped || !scaled || (masked && in->mask.kind != CC_IN_VALUE)) return false;
    if (q.dtype != CC_DT_F32 || k.dtype != CC_DT_F32 || v.dtype != CC_DT_F32 || v.ndim != q.ndim) return false;
    for (int i = 0; i < q.ndim - 2; i++)
        if (q.size[i] != k.size[i] || k.size[i] != v.size[i]) return false;
    return cc_type_contiguous(&p->g->val.at[p->whole.out0].type);
}

static CcOperand transposed(Parts *p, CcOperand x) {
    const CcType t = type_of(p, x);
    return window(p, x, cc_type_swapped(&t, t.ndim - 1, t.ndim - 2));
}

/* 1 on and below the diagonal. */
static CcOperand causal_mask(Parts *p, const CcType *scores) {
    CcType t = *scores;
    t.ndim = 2;
    t.size[0] = scores->size[scores->ndim - 2];
    t.size[1] = scores->size[scores->ndim - 1];
    cc_type_make_contiguous(&t);
    return cc_parts_add(p, CC_OP_tril, -1, &t, cc_parts_add(p, CC_OP_fill, -1, &t, float_of(1)), int_of(0));
}

/* w, but 0 in the rows of s that are -inf throughout. */
static CcOperand unless_masked(Parts *p, CcOperand w, CcOperand s) {
    const CcType t = type_of(p, w);
    CcType row = t, flags;
    row.size[t.ndim - 1] = 1;
    cc_type_make_contiguous(&row);
    flags = row;
    flags.dtype = CC_DT_BOOL;
    const CcOperand most = cc_parts_make(p, amax, -1, &row, .x = s, .dims = last_dims(1));
    const CcOperand masked = cc_parts_add(p, CC_OP_eq, -1, &flags, most, float_of(-INFINITY));
    return cc_parts_add(p, CC_OP_where, -1, &t, masked, float_of(0), w);
}

/* softmax(q @ k^T * scale, masked). As in eager, a row that may not attend anywhere is 0. */
static CcOperand weights(Parts *p, const CcIn_attention_dropout *in, const CcType *t) {
    const CcType q = type_of(p, in->q);
    const double scale =
        in->scale.kind == CC_IN_NONE ? 1 / sqrt((double)q.size[q.ndim - 1]) : cc_operand_number(&in->scale);
    CcOperand s = cc_parts_add(p, CC_OP_matmul, -1, t, in->q, transposed(p, in->k)), mask = none();
    s = cc_parts_add(p, CC_OP_mul, -1, t, s, float_of(scale));
    if (in->is_causal.kind == CC_IN_BOOL && in->is_causal.i) mask = causal_mask(p, t);
    const bool bools = in->mask.kind == CC_IN_VALUE && type_of(p, in->mask).dtype == CC_DT_BOOL;
    if (bools) mask = in->mask;
    else if (in->mask.kind == CC_IN_VALUE) s = cc_parts_add(p, CC_OP_add, -1, t, s, in->mask);
    if (mask.kind == CC_IN_VALUE) s = cc_parts_add(p, CC_OP_where, -1, t, mask, s, float_of(-INFINITY));
    const CcOperand w = cc_parts_make(p, softmax, -1, t, .x = s, .dims = last_dims(1));
    return in->mask.kind == CC_IN_VALUE ? unless_masked(p, w, s) : w;
}

static bool split_attention(Parts *p, const CcDraw *d) {
    CcIn_attention_dropout in;
    if (!cc_in_attention_dropout(p->g, &p->whole, &in) || !is_regular(p, &in)) return false;
    CcType scores = d->type;
    scores.dtype = CC_DT_F32;
    const CcOperand kept = draw(p, d), w = dropped(p, weights(p, &in, &scores), -1, d, kept);
    cc_parts_add(p, CC_OP_matmul, p->whole.out0, NULL, w, in.v);
    return true;
}

bool cc_dropout_make(Parts *p) {
    CcDraw d;
    if (!cc_dropout_read(p->g, &p->whole, &d)) return false;
    return p->whole.op == CC_OP_attention_dropout ? split_attention(p, &d) : split_dropout(p, &d);
}
