/* expand: splits ops into several nodes of other rows. Values keep their numbers, nodes do not (CcNode.origin), and
 * the host does not know the intermediates. If a back-end refuses a part, the host runs the whole op.
 *
 *   v, i = max(x, dim)         ->   v = amax(x); i = argmax(x)                          one loop, as both reduce x
 *   y = gelu(x)                ->   y = gelu(x, 1)                                      as oneDNN computes it
 *   y = softmax(x)             ->   m = amax(x); e = exp(x - m); s = sum(e); y = e * (1 / s)
 *
 * The table SPLIT lists the ops. losses.c, layers.c, moments.c, writes.c and dropout.c split losses, layers, norms in
 * training, writes and dropout. Softmax splits if x has few but long rows: one thread would sweep a row several times,
 * while all threads share these loops. */
#include "pass_int.h"

/* ------------------------------------------------------------------ two results */

static const struct {
    CcOpId op, result[2];
    int n_in[2]; /* max number of the node's operands that each part takes */
} PAIRS[] = {
    {CC_OP_max_dim, {CC_OP_amax, CC_OP_argmax}, {2, 2}},
    {CC_OP_min_dim, {CC_OP_amin, CC_OP_argmin}, {2, 2}},
    {CC_OP_aminmax, {CC_OP_amin, CC_OP_amax}, {2, 2}},
    {CC_OP_var_mean, {CC_OP_var, CC_OP_mean}, {3, 2}},
    {CC_OP_std_mean, {CC_OP_std, CC_OP_mean}, {3, 2}},
    {CC_OP_cummax, {CC_OP_so_far_max, CC_OP_so_far_argmax}, {2, 2}},
    {CC_OP_cummin, {CC_OP_so_far_min, CC_OP_so_far_argmin}, {2, 2}},
};

/* A part that makes result k from the node's first operands, at most `most` of them. */
static void same_part(Parts *p, CcOpId op, int k, int most) {
    CcOperand in[CC_OPERANDS_MAX];
    const int n = CC_MIN(p->whole.n_in, most);
    for (int i = 0; i < n; i++) in[i] = operand(p, i);
    cc_parts_add_in(p, op, p->whole.out0 + k, NULL, in, n);
}

static bool pair(Parts *p) {
    for (int i = 0; i < CC_COUNT(PAIRS); i++) {
        if (PAIRS[i].op != p->whole.op || p->whole.n_out != 2) continue;
        for (int k = 0; k < 2; k++)
            if (p->needed[k]) same_part(p, PAIRS[i].result[k], k, PAIRS[i].n_in[k]);
        return p->n > 0;
    }
    return false;
}

/* ------------------------------------------------------------------ pools */

static bool is_index(const CcNode *n, int result) {
    return result > 0 || n->op == CC_OP_max_pool_at || n->op == CC_OP_adaptive_max_pool_at;
}

/* The dims of a pool whose only window is the whole plane; 0: another one. */
static int plane_dims(const CcGraph *g, const CcNode *n) {
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor;
    const int dims = cc_window_read(g, n, w, &divisor);
    if (!dims || divisor) return 0;
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type, *y = &g->val.at[n->out0].type;
    if (x->ndim == dims || (x->dtype != y->dtype && !is_index(n, 0)) || cc_type_numel(x) == 0) return 0;
    for (int i = 0; i < dims; i++)
        if (w[i].adaptive || w[i].padding || w[i].kernel != x->size[x->ndim - dims + i]) return 0;
    return dims;
}

/* It is a reduction, as in eager; on a GPU if it is too large for a pool's loop, which unrolls windows. */
static bool is_plane(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    return plane_dims(g, n) && (!rules->gathers || (n->n_out == 1 && !cc_group_takes(g, (int)(n - g->node.at), rules)));
}

static bool pool_splits(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    return n->n_out == 2 || is_plane(g, n, rules);
}

/* Means or maxima of windows, and the indices of maxima. */
static bool pool(Parts *p) {
    const CcNode n = p->whole;
    /* pool_splits() found a pool of one result to be a plane; its node is gone by now, so is_plane() can't be asked */
    const int dims = n.n_out == 1 || !p->rules->gathers ? plane_dims(p->g, &n) : 0;
    const bool adaptive = n.op == CC_OP_adaptive_max_pool;
    for (int k = 0; k < n.n_out; k++) {
        const CcOpId values = cc_window_is_max(&n) ? CC_OP_amax : CC_OP_mean;
        if (!p->needed[k]) continue;
        if (dims)
            cc_parts_add(p, is_index(&n, k) ? CC_OP_plane_argmax : values, n.out0 + k, NULL,
                         value_of(cc_graph_source(p->g, &n)), last_dims(dims));
        else if (k == 0) same_part(p, (CcOpId)n.op, k, n.n_in);
        else same_part(p, adaptive ? CC_OP_adaptive_max_pool_at : CC_OP_max_pool_at, k, n.n_in);
    }
    return p->n > 0;
}

/* ------------------------------------------------------------------ few long rows */

static bool has_long_rows(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    (void)rules;
    CcIn_softmax in;
    if (n->n_out != 1 || !cc_in_softmax(g, n, &in)) return false;
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

static bool softmax(Parts *p) {
    CcIn_softmax in;
    if (!cc_in_softmax(p->g, &p->whole, &in)) return false;
    const CcSpace f = cc_space_of(p->g, &p->whole);
    const CcType row = kept(&f), whole = p->g->val.at[p->whole.out0].type;
    const bool logs = p->whole.op == CC_OP_log_softmax;
    const CcOperand max = cc_parts_make(p, amax, -1, &row, .x = in.x, .dims = in.dims);
    const CcOperand d = cc_parts_add(p, CC_OP_sub, -1, &whole, in.x, max),
                    e = cc_parts_add(p, CC_OP_exp, -1, &whole, d);
    const CcOperand sum = cc_parts_add(p, CC_OP_sum, -1, &row, e, in.dims);
    const CcOperand scale = cc_parts_add(p, logs ? CC_OP_log : CC_OP_reciprocal, -1, &row, sum);
    cc_parts_add(p, logs ? CC_OP_sub : CC_OP_mul, p->whole.out0, NULL, logs ? d : e, scale);
    return true;
}

static bool arg(Parts *p) {
    CcIn_argmax in;
    if (!cc_in_argmax(p->g, &p->whole, &in)) return false;
    const CcSpace f = cc_space_of(p->g, &p->whole);
    const CcType row = kept(&f);
    const CcOperand extreme =
        cc_parts_add(p, p->whole.op == CC_OP_argmax ? CC_OP_amax : CC_OP_amin, -1, &row, in.x, in.dims);
    cc_parts_make(p, place_of, p->whole.out0, NULL, .x = in.x, .dims = in.dims, .extreme = extreme);
    return true;
}

/* ------------------------------------------------------------------ gelu */

/* Does eager call oneDNN for this gelu? (use_mkldnn in ATen/native/cpu/Activation.cpp; for bfloat16 it depends on
 * the CPU.) */
static bool is_library_gelu(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    const int x = cc_graph_source(g, n);
    if (!rules->gelu || x < 0) return false;
    const CcType *t = &g->val.at[x].type;
    return n->n_in == 1 && t->dtype == CC_DT_F32 && t->device == 1 && cc_type_numel(t) > 1 && cc_type_contiguous(t);
}

static bool gelu(Parts *p) {
    cc_parts_add(p, CC_OP_gelu, p->whole.out0, NULL, operand(p, 0), int_of(p->rules->gelu));
    return true;
}

/* ------------------------------------------------------------------ linear */

/* Rows that no single stride covers (an image whose batch dim is not outermost): eager copies them, too. */
static bool is_scattered(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    (void)rules;
    CcIn_linear in;
    if (!cc_in_linear(g, n, &in)) return false;
    const CcType *t = &g->val.at[in.x.value].type;
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
    CcIn_linear in;
    if (!cc_in_linear(p->g, &p->whole, &in)) return false;
    CcType t = type_of(p, in.x);
    cc_type_make_contiguous(&t);
    in.x = cc_parts_add(p, CC_OP_copy, -1, &t, in.x);
    cc_parts_make_in(p, CC_OP_linear, p->whole.out0, NULL, &in);
    return true;
}

/* ------------------------------------------------------------------ views and moved elements */

/* Each result is a view of one operand. */
static bool meshgrid(Parts *p) {
    CcIn_meshgrid in;
    if (!cc_in_meshgrid(p->g, &p->whole, &in) || in.vectors.n != p->whole.n_out) return false;
    for (int k = 0; k < p->whole.n_out; k++) {
        const CcOperand vector = operand(p, in.vectors.first + k);
        if (vector.kind != CC_IN_VALUE || type_of(p, vector).ndim > 1) return false;
        if (p->needed[k]) cc_parts_add(p, CC_OP_expand, p->whole.out0 + k, NULL, vector);
    }
    return p->n > 0;
}

static bool is_padded(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    (void)rules;
    CcIn_im2col in;
    return cc_in_im2col(g, n, &in) && (in.padding[0].i > 0 || in.padding[1].i > 0);
}

/* F.unfold, after a pad. */
static bool padded_windows(Parts *p) {
    CcIn_im2col in;
    if (!cc_in_im2col(p->g, &p->whole, &in)) return false;
    CcType t = type_of(p, in.x);
    const CcOperand rows = in.padding[0], columns = in.padding[1], zero = int_of(0);
    if ((t.ndim != 3 && t.ndim != 4) || rows.i < 0 || columns.i < 0) return false;
    t.size[t.ndim - 2] += 2 * rows.i;
    t.size[t.ndim - 1] += 2 * columns.i;
    cc_type_make_contiguous(&t);
    in.x = cc_parts_add(p, CC_OP_pad, -1, &t, in.x, columns, columns, rows, rows, zero);
    in.padding[0] = in.padding[1] = zero;
    cc_parts_make_in(p, CC_OP_im2col, p->whole.out0, NULL, &in);
    return true;
}

/* ------------------------------------------------------------------ the pass */

static bool on_cpu(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    (void)g, (void)n;
    return !rules->gathers;
}

/* The ops that are split, besides those of PAIRS. may_be NULL: all of them. */
static const struct {
    CcOpId op;
    bool (*may_be)(const CcGraph *g, const CcNode *n, const CcGroupRules *rules);
    bool (*make)(Parts *p);
} SPLIT[] = {
    {CC_OP_avg_pool, pool_splits, pool},
    {CC_OP_adaptive_avg_pool, pool_splits, pool},
    {CC_OP_max_pool, pool_splits, pool},
    {CC_OP_max_pool_at, pool_splits, pool},
    {CC_OP_adaptive_max_pool, pool_splits, pool},
    {CC_OP_adaptive_max_pool_at, pool_splits, pool},
    {CC_OP_softmax, has_long_rows, softmax},
    {CC_OP_log_softmax, has_long_rows, softmax},
    {CC_OP_argmax, has_long_rows, arg},
    {CC_OP_argmin, has_long_rows, arg},
    {CC_OP_gelu, is_library_gelu, gelu},
    {CC_OP_linear, is_scattered, copied_rows},
    {CC_OP_meshgrid, NULL, meshgrid},
    {CC_OP_im2col, is_padded, padded_windows},
    {CC_OP_nll_loss, NULL, cc_losses_make},
    {CC_OP_cross_entropy, NULL, cc_losses_make},
    {CC_OP_bce_loss, NULL, cc_losses_make},
    {CC_OP_multi_margin, NULL, cc_losses_make},
    {CC_OP_cosine_embedding, NULL, cc_losses_make},
    {CC_OP_triplet_margin, NULL, cc_losses_make},
    {CC_OP_batch_norm_train, NULL, cc_moments_make},
    {CC_OP_instance_norm_train, NULL, cc_moments_make},
    {CC_OP_group_norm, on_cpu, cc_moments_groups}, /* on a GPU torch runs the convolutions and keeps their layouts */
    {CC_OP_lstm_cell, NULL, cc_layers_make},
    {CC_OP_gru_cell, NULL, cc_layers_make},
    {CC_OP_rnn_tanh_cell, NULL, cc_layers_make},
    {CC_OP_rnn_relu_cell, NULL, cc_layers_make},
    {CC_OP_self_attention, NULL, cc_layers_make},
    {CC_OP_encoder_layer, NULL, cc_layers_make},
    {CC_OP_dropout, on_cpu, cc_dropout_make}, /* torch's generator of a GPU is another one */
    {CC_OP_feature_dropout, on_cpu, cc_dropout_make},
    {CC_OP_attention_dropout, on_cpu, cc_dropout_make},
    {CC_OP_scatter, cc_writes_may, cc_writes_make},
    {CC_OP_index_add, cc_writes_may, cc_writes_make},
    {CC_OP_index_copy, cc_writes_may, cc_writes_make},
    {CC_OP_index_fill, cc_writes_may, cc_writes_make},
    {CC_OP_index_put, cc_writes_may, cc_writes_make},
    {CC_OP_put, cc_writes_may, cc_writes_make},
    {CC_OP_put_add, cc_writes_may, cc_writes_make},
    {CC_OP_slice_scatter, cc_writes_may, cc_writes_make},
    {CC_OP_diagonal_scatter, cc_writes_may, cc_writes_make},
};

static bool make(Parts *p) {
    for (int i = 0; i < CC_COUNT(SPLIT); i++)
        if (SPLIT[i].op == p->whole.op) return SPLIT[i].make(p);
    return pair(p);
}

static bool may_be(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    for (int i = 0; i < CC_COUNT(SPLIT); i++)
        if (SPLIT[i].op == n->op) return !SPLIT[i].may_be || SPLIT[i].may_be(g, n, rules);
    for (int i = 0; i < CC_COUNT(PAIRS); i++)
        if (PAIRS[i].op == n->op) return true;
    return false;
}

/* pass/rearrange.c rewrites pools with large windows and im2col; pass/views.c turns views into windows. */
static bool later(const CcNode *n) {
    return n->op == CC_OP_max_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_im2col ||
           n->op == CC_OP_expand;
}

/* Draws, or writes running statistics in the way of pass/into.c. */
static bool flagged(const CcNode *n, const CcGroupRules *rules) {
    if (n->op == CC_OP_dropout || n->op == CC_OP_feature_dropout || n->op == CC_OP_attention_dropout)
        return n->flags == CC_N_RANDOM;
    return (n->op == CC_OP_batch_norm_train || n->op == CC_OP_instance_norm_train) && n->flags == CC_N_WRITES &&
           rules->into;
}

void cc_expand_rewrite(CcGraph *g, const CcGroupRules *rules) {
    cc_parts_rewrite(g, rules, &(PartsRules){may_be, make, later, flagged});
}
