/* draws: splits random ops into a draw, which torch makes, and a pure op.
 *
 *   y = dropout(x, p)    ->    kept = draw(1 - p); y = dropped(x, kept, 1 - p)
 *
 * attention_dropout becomes attention_dropped in the same way, and layers_dropout layers_dropped. The draw takes the same numbers from the generator, in the same order, as eager's op: torch's CPU kernels draw for
 * the elements of an op in order of memory, whatever their dtype. */
#include "grad_int.h"

/* Inserts a draw of bools before a node. -> their value */
static int draw(CcGraph *g, int node, CcType type, double p) {
    CcNode draw = {
        .op = CC_OP_draw, .flags = CC_N_RANDOM, .in0 = g->operand.n, .n_in = 1, .out0 = g->val.n, .n_out = 1};
    type.dtype = CC_DT_BOOL;
    type.requires_grad = 0;
    draw.host = -1;
    draw.origin = g->node.at[node].origin;
    cc_vec_push(&g->operand, float_of(p));
    const int def = cc_edit_insert(g, node, &draw);
    cc_vec_push(&g->val, (CcVal){.type = type, .def = def});
    return draw.out0;
}

/* The node is pure now. */
static void settle(CcNode *n) {
    n->flags = 0;
    n->rewritten = false;
}

static bool draws(const CcOperand *p) { return number_of(p) > 0 && number_of(p) < 1; }

static bool is_plain_float(const CcType *t) {
    return t->ndim >= 0 && t->device == 1 && cc_dtype_info((CcDtype)t->dtype)->kind == 'f' && cc_type_numel(t) > 0;
}

/* A number for each channel of each sample. */
static CcType of_channels(CcType x) {
    for (int d = 2; d < x.ndim; d++) x.size[d] = 1;
    cc_type_make_contiguous(&x);
    return x;
}

/* torch.empty_like(x) has x's strides if x is dense. With p = 0 or 1, or no elements, eager draws nothing. */
static void split_dropout(CcGraph *g, int node) {
    CcIn_dropout in;
    const CcNode *n = &g->node.at[node];
    const bool channels = n->op == CC_OP_feature_dropout;
    if (n->n_out != 1 || !cc_operands_read(g, n, CC_OP_dropout, &in) || !draws(&in.p)) return;
    const CcType x = g->val.at[in.x.value].type;
    const double keep = 1 - number_of(&in.p);
    if (!is_plain_float(&x) || !cc_type_dense(&x) || !cc_type_same_layout(&x, &g->val.at[n->out0].type)) return;
    if (channels && x.ndim < 2) return;
    const int kept = draw(g, node, channels ? of_channels(x) : x, keep);
    cc_edit_make(g, node, dropped, .x = in.x, .kept = value_of(kept), .p = float_of(keep));
    settle(&g->node.at[node]);
}

/* F.scaled_dot_product_attention spells itself out where it drops probabilities. */
static void split_attention(CcGraph *g, int node) {
    CcIn_attention_dropout in;
    const CcNode *n = &g->node.at[node];
    if (n->n_out != 1 || !cc_in_attention_dropout(g, n, &in) || !draws(&in.p)) return;
    const CcType q = g->val.at[in.q.value].type, *k = &g->val.at[in.k.value].type;
    if (!is_plain_float(&q) || q.ndim < 2 || k->ndim != q.ndim || cc_type_numel(k) == 0) return;
    CcType scores = q;
    scores.size[q.ndim - 1] = k->size[k->ndim - 2];
    cc_type_make_contiguous(&scores);
    const double keep = 1 - number_of(&in.p);
    const int kept = draw(g, node, scores, keep);
    cc_edit_make(g, node, attention_dropped, .q = in.q, .k = in.k, .v = in.v, .mask = in.mask,
                 .is_causal = in.is_causal, .scale = in.scale, .enable_gqa = in.enable_gqa, .kept = value_of(kept),
                 .p = float_of(keep));
    settle(&g->node.at[node]);
}

/* A draw for each layer but the last, of its result: steps first. */
static void split_layers(CcGraph *g, int node) {
    CcIn_layers_dropout in;
    const CcNode *n = &g->node.at[node];
    if (!cc_in_layers_dropout(g, n, &in) || in.layers.kind != CC_IN_INT || in.layers.i < 1 || !draws(&in.p)) return;
    const CcType y = g->val.at[n->out0].type;
    if (y.ndim != 3 || !is_plain_float(&y)) return;
    const bool turned = in.batch_first.i != 0;
    CcType layer = y;
    layer.size[0] = y.size[turned];
    layer.size[1] = y.size[!turned];
    cc_type_make_contiguous(&layer);
    const double keep = 1 - number_of(&in.p);
    CC_VEC(CcOperand) to = {0};
    cc_vec_push(&to, in.x);
    for (int i = 0; i < in.states.n; i++) cc_vec_push(&to, *cc_graph_operand(g, n, in.states.first + i));
    for (int64_t i = 1; i < in.layers.i; i++) cc_vec_push(&to, value_of(draw(g, node, layer, keep)));
    const CcOperand rest[] = {in.has_biases, in.layers, float_of(keep), in.bidirectional, in.batch_first, in.cell};
    for (int i = 0; i < (int)(sizeof rest / sizeof *rest); i++) cc_vec_push(&to, rest[i]);
    cc_edit_rewrite(g, node, CC_OP_layers_dropped, to.at, to.n);
    settle(&g->node.at[node]);
    cc_vec_free(&to);
}

void cc_draws_split(CcGraph *g, const bool *whole) {
    const int n = g->node.n;
    cc_edit_settle(g);
    for (int i = 0; i < n; i++) {
        if (whole[i]) continue;
        if (g->node.at[i].op == CC_OP_dropout || g->node.at[i].op == CC_OP_feature_dropout) split_dropout(g, i);
        else if (g->node.at[i].op == CC_OP_attention_dropout) split_attention(g, i);
        else if (g->node.at[i].op == CC_OP_layers_dropout) split_layers(g, i);
    }
    cc_edit_settle(g);
}
