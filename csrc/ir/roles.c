/* roles: what the operands of recurrent layers mean (ops.def: lstm, gru, rnn_tanh, rnn_relu, layers_dropped). */
#include "ir.h"

static bool read_cell(const CcNode *n, CcOperand cell, CcCell *out) {
    switch (n->op) {
    case CC_OP_lstm: *out = CC_CELL_LSTM; return true;
    case CC_OP_gru: *out = CC_CELL_GRU; return true;
    case CC_OP_rnn_tanh: *out = CC_CELL_TANH; return true;
    case CC_OP_rnn_relu: *out = CC_CELL_RELU; return true;
    default: *out = (CcCell)cell.i; return cell.kind == CC_IN_INT && cell.i >= CC_CELL_LSTM && cell.i <= CC_CELL_RELU;
    }
}

/* As operands of layers_dropped; `states` are all tensors behind x. */
static bool read_row(const CcGraph *g, const CcNode *n, CcIn_layers_dropped *out) {
    CcIn_lstm lstm;
    CcIn_gru gru;
    if (n->op == CC_OP_layers_dropped) return cc_in_layers_dropped(g, n, out);
    *out = (CcIn_layers_dropped){.p = {.kind = CC_IN_NONE}, .cell = {.kind = CC_IN_NONE}};
    if (n->op == CC_OP_lstm) {
        if (!cc_in_lstm(g, n, &lstm)) return false;
        out->states = (CcOperandRange){1, 2 + lstm.weights.n};
        out->has_biases = lstm.has_biases;
        out->layers = lstm.layers;
        out->bidirectional = lstm.bidirectional;
        out->batch_first = lstm.batch_first;
        return true;
    }
    if (!cc_in_gru(g, n, &gru)) return false;
    out->states = (CcOperandRange){1, 1 + gru.weights.n};
    out->has_biases = gru.has_biases;
    out->layers = gru.layers;
    out->bidirectional = gru.bidirectional;
    out->batch_first = gru.batch_first;
    return true;
}

static bool is_flag(CcOperand o) { return o.kind == CC_IN_BOOL || o.kind == CC_IN_INT; }

bool cc_roles_read(const CcGraph *g, const CcNode *n, CcRoles *r) {
    CcIn_layers_dropped in;
    if (!read_row(g, n, &in) || !read_cell(n, in.cell, &r->cell)) return false;
    if (!is_flag(in.has_biases) || !is_flag(in.bidirectional) || !is_flag(in.batch_first)) return false;
    const bool drops = n->op == CC_OP_layers_dropped;
    r->states = r->cell == CC_CELL_LSTM ? 2 : 1;
    r->first = in.states.first + r->states;
    r->bias = in.has_biases.i != 0;
    r->weights = r->bias ? 4 : 2;
    r->directions = in.bidirectional.i ? 2 : 1;
    r->batch_first = in.batch_first.i != 0;
    r->layers = (int)CC_MIN(in.layers.i, n->n_in);
    const int all = r->layers * r->directions * r->weights;
    r->masks = drops ? r->first + all : -1;
    r->kept = in.p;
    return n->n_out == 1 + r->states && in.layers.i > 0 && in.states.n == r->states + all + (drops ? r->layers - 1 : 0);
}
