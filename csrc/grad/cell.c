/* cell: single steps of recurrent layers under autograd (nn.LSTMCell, GRUCell, RNNCell), spelled out in their stage:
 *
 *   h = rnn_tanh_cell(x, h, ..)   ->   s = linear(x, w_x, b_x) + linear(h, w_h, b_h)   h = tanh(s)
 *
 * The gates of LSTM and GRU are pieces of such sums, whose gradients join to one. */
#include "grad_int.h"

typedef struct Cell {
    Adjoint a; /* inserts before the node */
    CcCell kind;
    CcIn_lstm_cell in; /* c: LSTM only */
    CcNode n;
    CcType h; /* of states */
} Cell;

static bool read(const CcGraph *g, const CcNode *n, CcCell *kind, CcIn_lstm_cell *in) {
    CcIn_gru_cell other;
    *kind = n->op == CC_OP_gru_cell ? CC_CELL_GRU : n->op == CC_OP_rnn_tanh_cell ? CC_CELL_TANH : CC_CELL_RELU;
    if (n->op == CC_OP_lstm_cell) {
        *kind = CC_CELL_LSTM;
        return n->n_out == 2 && cc_in_lstm_cell(g, n, in);
    }
    if (!cc_in_gru_cell(g, n, &other)) return false;
    *in = (CcIn_lstm_cell){
        .x = other.x, .h = other.h, .w_x = other.w_x, .w_h = other.w_h, .b_x = other.b_x, .b_h = other.b_h};
    return n->n_out == 1;
}

static bool is_cell(const CcNode *n) {
    return n->op == CC_OP_lstm_cell || n->op == CC_OP_gru_cell || n->op == CC_OP_rnn_tanh_cell ||
           n->op == CC_OP_rnn_relu_cell;
}

static bool takes(const CcGraph *g, const CcNode *n) {
    CcIn_lstm_cell in;
    CcCell kind;
    const CcType *h = &g->val.at[n->out0].type;
    if (!is_cell(n) || !read(g, n, &kind, &in) || h->ndim != 2 || cc_type_numel(h) == 0) return false;
    const int64_t rows = h->size[0], width = h->size[1], sums = width * cc_cell_gates(kind);
    const int64_t inputs = g->val.at[in.x.value].type.size[1];
    for (int k = 0; k < n->n_out; k++)
        if (!cc_adjoint_is_f32(g, value_of(n->out0 + k), 2, rows, width, 0)) return false;
    const bool bare = in.b_x.kind == CC_IN_NONE && in.b_h.kind == CC_IN_NONE;
    return cc_adjoint_is_f32(g, in.x, 2, rows, inputs, 0) && cc_adjoint_is_f32(g, in.h, 2, rows, width, 0) &&
           cc_adjoint_is_f32(g, in.w_x, 2, sums, inputs, 0) && cc_adjoint_is_f32(g, in.w_h, 2, sums, width, 0) &&
           (kind != CC_CELL_LSTM || cc_adjoint_is_f32(g, in.c, 2, rows, width, 0)) &&
           (bare || (cc_adjoint_is_f32(g, in.b_x, 1, sums, 0, 0) && cc_adjoint_is_f32(g, in.b_h, 1, sums, 0, 0)));
}

static CcOperand linear(Cell *c, CcOperand x, CcOperand w, CcOperand b) {
    CcType t = c->h;
    t.size[1] *= cc_cell_gates(c->kind);
    cc_type_make_contiguous(&t);
    return value_of(make(&c->a, linear, &t, .x = x, .weight = w, .bias = b));
}

static CcOperand unary(Cell *c, CcOpId op, CcOperand x) {
    const CcType t = cc_adjoint_dense(type_of(&c->a, x.value));
    return value_of(emit(&c->a, op, &t, x));
}

static CcOperand binary(Cell *c, CcOpId op, CcOperand x, CcOperand y) {
    const CcType t = cc_adjoint_dense(type_of(&c->a, x.value));
    return value_of(emit(&c->a, op, &t, x, y));
}

/* The gates' columns of sums, as views. -> the first of them */
static int gates_of(Cell *c, CcOperand sums) {
    CcType t = *type_of(&c->a, sums.value);
    const int n = cc_cell_gates(c->kind), first = c->a.g->val.n;
    t.size[1] = c->h.size[1];
    for (int i = 0; i < n; i++) cc_vec_push(&c->a.g->val, (CcVal){.type = t});
    const CcOperand in[] = {sums, int_of(1)};
    cc_adjoint_insert(&c->a, CC_OP_split, in, 2, first, n);
    return first;
}

/* The node's result k is op(x, y). */
static void result(Cell *c, int k, CcOpId op, CcOperand x, CcOperand y) {
    const CcOperand in[] = {x, y};
    cc_adjoint_insert(&c->a, op, in, y.kind == CC_IN_NONE ? 1 : 2, c->n.out0 + k, 1);
}

static void lstm(Cell *c, CcOperand sums) {
    const int gate = gates_of(c, sums);
    const CcOperand in = unary(c, CC_OP_sigmoid, value_of(gate)), forget = unary(c, CC_OP_sigmoid, value_of(gate + 1)),
                    fresh = unary(c, CC_OP_tanh, value_of(gate + 2)), out = unary(c, CC_OP_sigmoid, value_of(gate + 3));
    result(c, 1, CC_OP_add, binary(c, CC_OP_mul, forget, c->in.c), binary(c, CC_OP_mul, in, fresh));
    result(c, 0, CC_OP_mul, out, unary(c, CC_OP_tanh, value_of(c->n.out0 + 1)));
}

static void gru(Cell *c, CcOperand of_x, CcOperand of_h) {
    const int x = gates_of(c, of_x), h = gates_of(c, of_h);
    const CcOperand reset = unary(c, CC_OP_sigmoid, binary(c, CC_OP_add, value_of(x), value_of(h)));
    const CcOperand update = unary(c, CC_OP_sigmoid, binary(c, CC_OP_add, value_of(x + 1), value_of(h + 1)));
    const CcOperand past = binary(c, CC_OP_mul, reset, value_of(h + 2));
    const CcOperand fresh = unary(c, CC_OP_tanh, binary(c, CC_OP_add, value_of(x + 2), past));
    result(c, 0, CC_OP_add, fresh, binary(c, CC_OP_mul, binary(c, CC_OP_sub, c->in.h, fresh), update));
}

static void split(CcGraph *g, int node) {
    Cell c = {.a = {.g = g, .before = node},
              .n = g->node.at[node],
              .h = cc_adjoint_dense(&g->val.at[g->node.at[node].out0].type)};
    const int first_node = g->node.n, first_value = g->val.n;
    if (!read(g, &c.n, &c.kind, &c.in)) return;
    const CcOperand of_x = linear(&c, c.in.x, c.in.w_x, c.in.b_x), of_h = linear(&c, c.in.h, c.in.w_h, c.in.b_h);
    if (c.kind == CC_CELL_LSTM) lstm(&c, binary(&c, CC_OP_add, of_x, of_h));
    else if (c.kind == CC_CELL_GRU) gru(&c, of_x, of_h);
    else result(&c, 0, c.kind == CC_CELL_TANH ? CC_OP_tanh : CC_OP_relu, binary(&c, CC_OP_add, of_x, of_h), none());
    cc_adjoint_replaced(&c.a, &c.n, first_node, first_value);
}

void cc_cell_split(CcGraph *g) {
    const int n = g->node.n;
    cc_edit_settle(g);
    for (int i = 0; i < n; i++)
        if (takes(g, &g->node.at[i])) split(g, i);
    cc_edit_settle(g);
}
