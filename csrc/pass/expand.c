/* expand: ops that are several nodes of other rows. Values keep their numbers, nodes do not (CcNode.origin), and what
 * lies between the parts is hidden from the host. Where a back-end refuses a part, the whole op is the host's.
 *
 *   v, i = max(x, dim)         ->   v = amax(x); i = argmax(x)                          one loop, as both reduce x
 *   y = gelu(x)                ->   y = gelu(x, 1)                                      as oneDNN does it
 *   y = softmax(x)             ->   m = amax(x); e = exp(x - m); s = sum(e); y = e * (1 / s)
 *
 * Losses, layers, norms in training and writes stand in losses.c, layers.c, moments.c and writes.c. Softmax is such
 * where x has few rows but long ones: a row whose loop goes through it several times is one thread's, and these loops
 * are all threads'. */
#include "pass_int.h"

/* ------------------------------------------------------------------ two results */

static const struct {
    CcOpId op, result[2];
    int n_in[2]; /* the most operands of the whole that each takes */
} PAIRS[] = {
    {CC_OP_max_dim, {CC_OP_amax, CC_OP_argmax}, {2, 2}},
    {CC_OP_min_dim, {CC_OP_amin, CC_OP_argmin}, {2, 2}},
    {CC_OP_aminmax, {CC_OP_amin, CC_OP_amax}, {2, 2}},
    {CC_OP_var_mean, {CC_OP_var, CC_OP_mean}, {3, 2}},
    {CC_OP_std_mean, {CC_OP_std, CC_OP_mean}, {3, 2}},
    {CC_OP_cummax, {CC_OP_so_far_max, CC_OP_so_far_argmax}, {2, 2}},
    {CC_OP_cummin, {CC_OP_so_far_min, CC_OP_so_far_argmin}, {2, 2}},
};

/* A part that gives result k by the whole's first operands, at most so many. */
static void same_part(Parts *p, CcOpId op, int k, int most) {
    cc_parts_add(p, op, p->whole.out0 + k, NULL, 0);
    const int in0 = p->g->operand.n, n = CC_MIN(p->whole.n_in, most);
    for (int i = 0; i < n; i++) {
        const CcOperand o = operand(p, i);
        cc_vec_push(&p->g->operand, o);
    }
    cc_edit_slots(p->g, p->first + p->n - 1, in0, n);
}

static bool pair(Parts *p, const bool *needed) {
    for (int i = 0; i < CC_COUNT(PAIRS); i++) {
        if (PAIRS[i].op != p->whole.op || p->whole.n_out != 2) continue;
        for (int k = 0; k < 2; k++)
            if (needed[k]) same_part(p, PAIRS[i].result[k], k, PAIRS[i].n_in[k]);
        return p->n > 0;
    }
    return false;
}

/* Windows' greatest, and where they stand. */
static bool pool(Parts *p, const bool *needed) {
    const bool adaptive = p->whole.op == CC_OP_adaptive_max_pool;
    if (needed[0]) same_part(p, adaptive ? CC_OP_adaptive_max_pool : CC_OP_max_pool, 0, p->whole.n_in);
    if (needed[1]) same_part(p, adaptive ? CC_OP_adaptive_max_pool_at : CC_OP_max_pool_at, 1, p->whole.n_in);
    return p->n > 0;
}

/* Operands of an adaptive pool: x, and a size for each dim of the plane, which are x's last ones. */
static int plane_dims(const CcNode *n) { return n->n_in - 1; }

/* One window of the whole plane: a reduction, as in eager. (The pool family takes it row by row: 512 channels of 7x7
 * took 13.5 us and 3.2 so, 16 of 79x79 with channels innermost 27 and 5, Zen 5 and 4, one thread.) */
static bool whole_plane(const CcGraph *g, const CcNode *n) {
    if (n->n_out != 1 || cc_graph_operand(g, n, 0)->kind != CC_IN_VALUE) return false;
    const CcType *x = &g->val.at[cc_graph_operand(g, n, 0)->value].type, *y = &g->val.at[n->out0].type;
    const int dims = plane_dims(n);
    if (x->ndim <= dims || x->ndim != y->ndim || x->dtype != y->dtype || cc_type_numel(x) == 0) return false;
    for (int d = x->ndim - dims; d < x->ndim; d++)
        if (y->size[d] != 1) return false;
    return true;
}

/* A GPU's: what is no loop of its own, whose windows are unrolled. */
static bool long_plane(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    return whole_plane(g, n) && !cc_group_takes(g, (int)(n - g->node.at), rules);
}

static bool reduced_plane(Parts *p) {
    const int dims = plane_dims(&p->whole);
    const CcOpId op = p->whole.op == CC_OP_adaptive_avg_pool ? CC_OP_mean : CC_OP_amax;
    cc_parts_add(p, op, p->whole.out0, NULL, 2, operand(p, 0), int_of((1 << dims) - 1));
    return true;
}

/* ------------------------------------------------------------------ few long rows */

static bool long_rows(const CcGraph *g, const CcNode *n) {
    if (n->n_out != 1 || n->n_in != 2) return false;
    const CcSpace f = cc_space_of(g, n);
    const int dtype = g->val.at[n->out0].type.dtype;
    return f.shape.ndim > 0 && cc_space_few_rows(&f) &&
           (n->op == CC_OP_argmax || n->op == CC_OP_argmin ||
            ((dtype == CC_DT_F32 || dtype == CC_DT_F64) && f.shape.dtype == dtype));
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
    const CcOperand d = cc_parts_add(p, CC_OP_sub, -1, &whole, 2, x, greatest),
                    e = cc_parts_add(p, CC_OP_exp, -1, &whole, 1, d);
    const CcOperand sum = cc_parts_add(p, CC_OP_sum, -1, &row, 2, e, dims);
    const CcOperand scale = cc_parts_add(p, logs ? CC_OP_log : CC_OP_reciprocal, -1, &row, 1, sum);
    cc_parts_add(p, logs ? CC_OP_sub : CC_OP_mul, p->whole.out0, NULL, 2, logs ? d : e, scale);
}

static void arg(Parts *p) {
    const CcSpace f = cc_space_of(p->g, &p->whole);
    const CcOperand x = operand(p, 0), dims = operand(p, 1);
    const CcType row = kept(&f);
    const CcOperand extreme =
        cc_parts_add(p, p->whole.op == CC_OP_argmax ? CC_OP_amax : CC_OP_amin, -1, &row, 2, x, dims);
    cc_parts_add(p, CC_OP_place_of, p->whole.out0, NULL, 3, x, dims, extreme);
}

/* ------------------------------------------------------------------ gelu */

/* Where eager calls oneDNN (use_mkldnn in ATen/native/cpu/Activation.cpp; of bfloat16 it depends on the CPU). */
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
    cc_parts_add(p, CC_OP_linear, p->whole.out0, NULL, 3, cc_parts_add(p, CC_OP_copy, -1, &t, 1, operand(p, 0)),
                 operand(p, 1), operand(p, 2));
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
    cc_parts_add(p, CC_OP_im2col, p->whole.out0, NULL, 9, x, operand(p, KERNEL), operand(p, KERNEL + 1),
                 operand(p, KERNEL + 2), operand(p, KERNEL + 3), zero, zero, operand(p, STRIDE),
                 operand(p, STRIDE + 1));
    return true;
}

/* ------------------------------------------------------------------ the pass */

static bool expand(Parts *p, const bool *needed) {
    switch (p->whole.op) {
    case CC_OP_nll_loss:
    case CC_OP_cross_entropy:
    case CC_OP_bce_loss:
    case CC_OP_multi_margin:
    case CC_OP_cosine_embedding:
    case CC_OP_triplet_margin: return needed[0] && cc_losses_make(p);
    case CC_OP_batch_norm_train:
    case CC_OP_instance_norm_train: return cc_moments_make(p);
    case CC_OP_group_norm: return cc_moments_groups(p);
    case CC_OP_scatter:
    case CC_OP_index_add:
    case CC_OP_index_copy:
    case CC_OP_index_fill:
    case CC_OP_index_put:
    case CC_OP_put:
    case CC_OP_slice_scatter:
    case CC_OP_diagonal_scatter: return cc_writes_make(p);
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
    case CC_OP_rnn_relu_cell:
    case CC_OP_self_attention:
    case CC_OP_encoder_layer: return cc_layers_make(p, needed);
    case CC_OP_adaptive_avg_pool: return reduced_plane(p);
    case CC_OP_max_pool: return pool(p, needed);
    case CC_OP_adaptive_max_pool: return p->whole.n_out == 1 ? reduced_plane(p) : pool(p, needed);
    case CC_OP_gelu:
        cc_parts_add(p, CC_OP_gelu, p->whole.out0, NULL, 2, operand(p, 0), int_of(p->rules->gelu));
        return true;
    default: return pair(p, needed);
    }
}

/* Is it worth a try? */
static bool may_be(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    switch (n->op) {
    case CC_OP_max_pool: return rules->gathers && n->n_out == 2;
    case CC_OP_adaptive_max_pool: return n->n_out == 1 ? !rules->gathers && whole_plane(g, n) : rules->gathers;
    case CC_OP_adaptive_avg_pool: return rules->gathers ? long_plane(g, n, rules) : whole_plane(g, n);
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
    case CC_OP_group_norm: return !rules->gathers; /* a GPU's convolutions are torch's, whose layouts stay */
    case CC_OP_linear: return scattered(g, n);
    case CC_OP_meshgrid: return true;
    case CC_OP_im2col: return n->n_in == 9 && (cc_graph_operand(g, n, 5)->i > 0 || cc_graph_operand(g, n, 6)->i > 0);
    case CC_OP_gelu: return rules->gelu && cc_graph_operand(g, n, 0)->kind == CC_IN_VALUE && gelu_of_library(g, n);
    default: break;
    }
    for (int i = 0; i < CC_COUNT(PAIRS); i++)
        if (PAIRS[i].op == n->op) return true;
    return cc_writes_may(g, n, rules);
}

/* Pools of large windows and windows of images are rewritten once more (pass/rearrange.c), views are windows
 * (pass/views.c). */
static bool later(const CcNode *n) {
    return n->op == CC_OP_max_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_im2col ||
           n->op == CC_OP_expand;
}

/* It writes running statistics, as pass/into.c does. */
static bool trains(const CcNode *n, const CcGroupRules *rules) {
    return (n->op == CC_OP_batch_norm_train || n->op == CC_OP_instance_norm_train) && n->flags == CC_N_WRITES &&
           rules->into;
}

void cc_expand_rewrite(CcGraph *g, const CcGroupRules *rules) {
    cc_parts_rewrite(g, rules, &(PartsRules){may_be, expand, later, trains});
}
