/* draws: splits random ops into a draw, which torch makes, and a pure op.
 *
 *   y = dropout(x, p)    ->    kept = draw(1 - p); y = dropped(x, kept, 1 - p)
 *
 * attention_dropout becomes attention_dropped in the same way, and layers_dropout layers_dropped. pass/dropout.c says what is
 * drawn, and splits ops where autograd records nothing. */
#include "../pass/pass.h"
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

static bool is_plain_float(const CcType *t) {
    return t->ndim >= 0 && t->device == 1 && cc_dtype_is_float(t->dtype) && cc_type_numel(t) > 0;
}

static void split_dropout(CcGraph *g, int node, const CcDraw *d) {
    CcIn_dropout in;
    if (!cc_operands_read(g, &g->node.at[node], CC_OP_dropout, &in)) return;
    const int kept = draw(g, node, d->type, d->keep);
    cc_edit_make(g, node, dropped, .x = in.x, .kept = value_of(kept), .p = float_of(d->keep));
    settle(&g->node.at[node]);
}

static void split_attention(CcGraph *g, int node, const CcDraw *d) {
    CcIn_attention_dropout in;
    if (!cc_in_attention_dropout(g, &g->node.at[node], &in)) return;
    const int kept = draw(g, node, d->type, d->keep);
    cc_edit_make(g, node, attention_dropped, .q = in.q, .k = in.k, .v = in.v, .mask = in.mask,
                 .is_causal = in.is_causal, .scale = in.scale, .enable_gqa = in.enable_gqa, .kept = value_of(kept),
                 .p = float_of(d->keep));
    settle(&g->node.at[node]);
}

/* A draw for each layer but the last, of its result: steps first. */
static void split_layers(CcGraph *g, int node) {
    CcIn_layers_dropout in;
    const CcNode *n = &g->node.at[node];
    if (!cc_in_layers_dropout(g, n, &in) || in.layers.kind != CC_IN_INT || in.layers.i < 1) return;
    if (!(cc_operand_number(&in.p) > 0 && cc_operand_number(&in.p) < 1)) return; /* eager draws nothing */
    const CcType y = g->val.at[n->out0].type;
    if (y.ndim != 3 || !is_plain_float(&y)) return;
    const bool turned = in.batch_first.i != 0;
    CcType layer = y;
    layer.size[0] = y.size[turned];
    layer.size[1] = y.size[!turned];
    cc_type_make_contiguous(&layer);
    const double keep = 1 - cc_operand_number(&in.p);
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
        CcDraw d;
        if (whole[i]) continue;
        if (g->node.at[i].op == CC_OP_layers_dropout) split_layers(g, i);
        else if (!cc_dropout_read(g, &g->node.at[i], &d)) continue;
        else if (g->node.at[i].op == CC_OP_attention_dropout) split_attention(g, i, &d);
        else split_dropout(g, i, &d);
    }
    cc_edit_settle(g);
}
