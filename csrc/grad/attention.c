/* attention: the backward of attention, and attention with dropout in the forward, as products, a softmax and pointwise
 * nodes:
 *
 *   s = q @ k^T * scale (+ mask)    p = softmax(s)    r = dropped(p, kept)    y = r @ v
 *
 * All of it in f32 where tensors are of half precision: eager's kernels do not round scores and probabilities either.
 * The backward computes p again: it has rows x rows elements a head, which would be most of what a layer saves. */
#include <math.h>

#include "grad_int.h"

typedef struct Attention {
    CcOperand q, k, v, mask, causal, scale, gqa;
    CcOperand kept, p; /* CC_IN_NONE: no dropout */
} Attention;

static bool read(const CcGraph *g, const CcNode *n, Attention *out) {
    CcIn_attention in;
    CcIn_attention_dropped drops;
    if (n->op == CC_OP_attention && cc_in_attention(g, n, &in)) {
        *out = (Attention){in.q, in.k, in.v, in.mask, in.is_causal, in.scale, in.enable_gqa, none(), none()};
        return true;
    }
    if (n->op != CC_OP_attention_dropped || !cc_in_attention_dropped(g, n, &drops)) return false;
    *out = (Attention){drops.q,     drops.k,          drops.v,    drops.mask, drops.is_causal,
                       drops.scale, drops.enable_gqa, drops.kept, drops.p};
    return true;
}

static bool is_true(CcOperand o) { return o.kind == CC_IN_BOOL && o.i; }

/* Heads of q, k and v correspond. */
static bool is_regular(const CcGraph *g, const Attention *in) {
    const CcType *q = &g->val.at[in->q.value].type, *k = &g->val.at[in->k.value].type,
                 *v = &g->val.at[in->v.value].type;
    if (q->ndim < 2 || q->ndim != k->ndim || k->ndim != v->ndim || is_true(in->gqa)) return false;
    if (q->dtype != k->dtype || k->dtype != v->dtype) return false; /* under autocast */
    for (int d = 0; d < q->ndim - 2; d++)
        if (q->size[d] != k->size[d] || k->size[d] != v->size[d]) return false;
    const bool scaled = in->scale.kind == CC_IN_NONE || in->scale.kind == CC_IN_FLOAT || in->scale.kind == CC_IN_INT;
    return scaled && (in->mask.kind == CC_IN_NONE || in->mask.kind == CC_IN_VALUE);
}

static double scale_of(const Adjoint *a, const Attention *in) {
    const CcType *q = type_of(a, in->q.value);
    return in->scale.kind == CC_IN_NONE ? 1 / sqrt((double)q->size[q->ndim - 1]) : cc_operand_number(&in->scale);
}

static int widened(Adjoint *a, int v) {
    return cc_dtype_is_half(type_of(a, v)->dtype) ? cc_adjoint_cast(a, v, CC_DT_F32) : v;
}

static void widen(Adjoint *a, Attention *in) {
    in->q.value = widened(a, in->q.value);
    in->k.value = widened(a, in->k.value);
    in->v.value = widened(a, in->v.value);
}

/* 1 on and below the diagonal. */
static int causal_mask(Adjoint *a, const CcType *scores) {
    CcType t = cc_adjoint_dense(scores);
    t.ndim = 2;
    t.size[0] = scores->size[scores->ndim - 2];
    t.size[1] = scores->size[scores->ndim - 1];
    cc_type_make_contiguous(&t);
    return emit(a, CC_OP_tril, &t, value_of(emit(a, CC_OP_fill, &t, float_of(1))), int_of(0));
}

/* p, but 0 in the rows of x that are -inf throughout. */
static int unless_masked(Adjoint *a, int p, int x) {
    const CcType t = cc_adjoint_dense(type_of(a, p));
    CcType row = t, flags;
    row.size[t.ndim - 1] = 1;
    cc_type_make_contiguous(&row);
    flags = row;
    flags.dtype = CC_DT_BOOL;
    const int most = make(a, amax, &row, .x = value_of(x), .dims = int_of(1));
    const int masked = emit(a, CC_OP_eq, &flags, value_of(most), float_of(-HUGE_VAL));
    return emit(a, CC_OP_where, &t, value_of(masked), float_of(0), value_of(p));
}

/* softmax(q @ k^T * scale, masked). As in eager, a row that may not attend anywhere is 0. */
static int probabilities(Adjoint *a, const Attention *in) {
    int x = cc_adjoint_product(a, in->q.value, cc_adjoint_transposed(a, in->k.value), -1), mask = -1;
    bool adds = false;
    const CcType t = cc_adjoint_dense(type_of(a, x));
    x = emit(a, CC_OP_mul, &t, value_of(x), float_of(scale_of(a, in)));
    if (is_true(in->causal)) mask = causal_mask(a, &t);
    if (in->mask.kind == CC_IN_VALUE) {
        if (type_of(a, in->mask.value)->dtype == CC_DT_BOOL) mask = in->mask.value;
        else x = emit(a, CC_OP_add, &t, value_of(x), in->mask);
        adds = mask != in->mask.value;
    }
    if (mask >= 0) x = emit(a, CC_OP_where, &t, value_of(mask), value_of(x), float_of(-HUGE_VAL));
    const int p = make(a, softmax, &t, .x = value_of(x), .dims = int_of(1));
    if (adds) return unless_masked(a, p, x);
    return mask < 0 ? p : emit(a, CC_OP_where, &t, value_of(mask), value_of(p), float_of(0));
}

static int dropped(Adjoint *a, const Attention *in, int p) {
    if (in->kept.kind != CC_IN_VALUE) return p;
    const CcType t = cc_adjoint_dense(type_of(a, p));
    return make(a, dropped, &t, .x = value_of(p), .kept = in->kept, .p = in->p);
}

/* The gradient of the scores with the mask, given that of the probabilities. */
static int scores_grad(Adjoint *a, const Attention *in, int p, int dp) {
    const CcType t = cc_adjoint_dense(type_of(a, p));
    if (in->kept.kind == CC_IN_VALUE)
        dp = emit(a, cc_op_grad(CC_OP_dropped, 0), &t, none(), in->kept, in->p, value_of(dp), none());
    return emit(a, cc_op_grad(CC_OP_softmax, 0), &t, none(), int_of(1), value_of(dp), value_of(p));
}

static void add(Adjoint *a, CcOperand to, int grad) {
    cc_adjoint_add(a, to.value, cc_adjoint_cast(a, grad, type_of(a, to.value)->dtype));
}

bool cc_attention_apply(Adjoint *a, const CcNode *n) {
    Attention of, in;
    if (!read(a->g, n, &of) || !is_regular(a->g, &of)) return false;
    in = of;
    widen(a, &in);
    const int g = widened(a, a->grad[n->out0]), p = probabilities(a, &in);
    if (wants(a, of.v))
        add(a, of.v, cc_adjoint_product(a, cc_adjoint_transposed(a, dropped(a, &in, p)), g, in.v.value));
    if (!wants(a, of.q) && !wants(a, of.k) && !wants(a, of.mask)) return true;
    int ds = scores_grad(a, &in, p, cc_adjoint_product(a, g, cc_adjoint_transposed(a, in.v.value), p));
    if (wants(a, of.mask)) cc_adjoint_add_summed(a, of.mask.value, ds);
    const CcType t = cc_adjoint_dense(type_of(a, ds));
    ds = emit(a, CC_OP_mul, &t, value_of(ds), float_of(scale_of(a, &in)));
    if (wants(a, of.q)) add(a, of.q, cc_adjoint_product(a, ds, in.k.value, in.q.value));
    if (wants(a, of.k)) add(a, of.k, cc_adjoint_product(a, cc_adjoint_transposed(a, ds), in.q.value, in.k.value));
    return true;
}

void cc_attention_lower(CcGraph *g) {
    Adjoint a = {.g = g};
    Attention in;
    cc_edit_settle(g);
    for (int i = 0, n = g->node.n; i < n; i++) {
        if (g->node.at[i].op != CC_OP_attention_dropped || !read(g, &g->node.at[i], &in)) continue;
        const int made = g->node.n;
        a.before = i;
        widen(&a, &in);
        const int r = dropped(&a, &in, probabilities(&a, &in));
        if (cc_dtype_is_half(type_of(&a, g->node.at[i].out0)->dtype)) {
            const CcOperand wide = value_of(cc_adjoint_product(&a, r, in.v.value, -1));
            cc_edit_rewrite(g, i, CC_OP_cast, &wide, 1);
        } else cc_edit_make(g, i, matmul, .a = value_of(r), .b = in.v);
        g->node.at[i].rewritten = false;
        g->node.at[i].host = -1;
        for (int k = made; k < g->node.n; k++) g->node.at[k].origin = g->node.at[i].origin;
    }
    cc_edit_settle(g);
}
