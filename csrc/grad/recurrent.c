/* recurrent: recurrent layers under autograd. A stage has a node for each layer and direction, which keeps what its
 * backward reads:
 *
 *   y, h_n = gru(x, h, weights)   ->   for each layer, for each direction d:   y_d, gates = recur(x, h[i], weights of i)
 *                                      x = cat(y_0, y_1), the next layer's    ...    h_n = cat(last step of each y)
 *
 * Dropout between layers is drawn before (draws.c).
 *
 * The backward of a node gives the gradients of the sums that enter the gates, s; what follows from them are products
 * over all steps: dx = s @ w_x, dw_x = s^T @ x, dw_h = s^T @ (h of the step before), db = sum(s). */
#include "grad_int.h"

static CcOperand operand_of(const CcGraph *g, const CcNode *n, int i) { return *cc_graph_operand(g, n, i); }

/* All in f32, without projections. */
static bool read_layers(const CcGraph *g, const CcNode *n, CcRoles *l) {
    if (cc_node_kind(n) != CC_K_RNN || !cc_roles_read(g, n, l)) return false;
    const CcOperand x = operand_of(g, n, CC_ROLE_X), w = operand_of(g, n, l->first + 1);
    if (x.kind != CC_IN_VALUE || w.kind != CC_IN_VALUE) return false;
    const CcType *of_x = &g->val.at[x.value].type, *y = &g->val.at[n->out0].type;
    const int64_t *size = of_x->size, batch = size[!l->batch_first], hidden = g->val.at[w.value].type.size[1];
    const int64_t wide = hidden * l->directions, sums = cc_cell_gates(l->cell) * hidden;
    const int parts = l->layers * l->directions;
    if (!cc_adjoint_is_f32(g, x, 3, size[0], size[1], size[2]) || cc_type_numel(of_x) == 0 || hidden == 0) return false;
    if (!cc_adjoint_is_f32(g, value_of(n->out0), 3, size[0], size[1], wide) || !cc_type_dense(y)) return false;
    for (int k = 0; k < l->states; k++)
        if (!cc_adjoint_is_f32(g, operand_of(g, n, CC_ROLE_H + k), 3, parts, batch, hidden) ||
            !cc_adjoint_is_f32(g, value_of(n->out0 + 1 + k), 3, parts, batch, hidden))
            return false;
    for (int i = 0; i < parts * l->weights; i++) {
        const CcOperand o = operand_of(g, n, l->first + i);
        const int which = i % l->weights; /* weights of x, of h, and two biases */
        const int64_t in = which == 1 ? hidden : i < l->directions * l->weights ? size[2] : wide;
        if (!cc_adjoint_is_f32(g, o, which < 2 ? 2 : 1, sums, which < 2 ? in : 0, 0)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ the forward's parts */

typedef struct Split {
    Adjoint a; /* inserts before the node */
    const CcRoles *l;
    CcNode n;
    int64_t steps, batch, hidden;
} Split;

typedef CC_VEC(CcOperand) Operands;

static CcType shaped(int ndim, int64_t a, int64_t b, int64_t c) {
    CcType t = {.dtype = CC_DT_F32, .device = 1, .ndim = (int8_t)ndim, .size = {a, b, c}};
    cc_type_make_contiguous(&t);
    return t;
}

/* v, copied if its columns are not dense. */
static int with_dense_rows(Adjoint *a, int v) {
    const CcType t = *type_of(a, v), dense = cc_adjoint_dense(&t);
    return t.size[t.ndim - 1] == 1 || t.stride[t.ndim - 1] == 1 ? v : emit(a, CC_OP_copy, &dense, value_of(v));
}

/* Part i of states [parts, batch, hidden] */
static CcOperand part_of(Split *s, int role, int i) {
    const CcOperand states = operand_of(s->a.g, &s->n, role);
    CcType t = *type_of(&s->a, states.value);
    for (int d = 0; d < 2; d++) {
        t.size[d] = t.size[d + 1];
        t.stride[d] = t.stride[d + 1];
    }
    t.ndim = 2;
    const int v = make(&s->a, select, &t, .x = states, .dim = int_of(0), .index = int_of(i));
    return value_of(with_dense_rows(&s->a, v));
}

/* [a, b, n] as [b, a, n] */
static int turned(Adjoint *a, int v) { return cc_adjoint_swapped(a, v, 0, 1); }

/* A layer in one direction, part i. -> its y; appends its last states [1, batch, hidden] */
static int insert_part(Split *s, int x, int i, Operands *last_h, Operands *last_c) {
    const CcRoles *l = s->l;
    CcGraph *g = s->a.g;
    const int at = s->n.in0 + l->first + i * l->weights, reversed = i % l->directions;
    CcOperand in[] = {value_of(x), part_of(s, CC_ROLE_H, i), none(),          none(), none(), none(),
                      none(),      int_of(l->cell),          int_of(reversed)};
    if (l->cell == CC_CELL_LSTM) in[2] = part_of(s, CC_ROLE_C, i);
    for (int k = 0; k < l->weights; k++) in[3 + k] = g->operand.at[at + k];
    const int y = g->val.n;
    const CcType state = shaped(2, s->batch, s->hidden, 0), steps = shaped(3, s->steps, s->batch, s->hidden),
                 gates = shaped(3, s->steps, s->batch, 4 * s->hidden), one = shaped(3, 1, s->batch, s->hidden);
    cc_vec_push(&g->val, (CcVal){.type = steps});
    if (l->cell == CC_CELL_LSTM) cc_vec_push(&g->val, (CcVal){.type = state});
    if (l->cell == CC_CELL_LSTM || l->cell == CC_CELL_GRU) cc_vec_push(&g->val, (CcVal){.type = gates});
    if (l->cell == CC_CELL_LSTM) cc_vec_push(&g->val, (CcVal){.type = steps});
    cc_adjoint_insert(&s->a, CC_OP_recur, in, CC_COUNT(in), y, g->val.n - y);
    cc_vec_push(last_h, value_of(cc_adjoint_part(&s->a, y, 0, reversed ? 0 : s->steps - 1, 1)));
    if (l->cell == CC_CELL_LSTM) cc_vec_push(last_c, value_of(make(&s->a, view, &one, .x = value_of(y + 1))));
    return y;
}

/* Makes an existing value of one or several others, joined along a dim. */
static void join(Split *s, Operands *parts, int dim, int out) {
    if (parts->n > 1) cc_vec_push(parts, int_of(dim));
    cc_adjoint_insert(&s->a, parts->n > 1 ? CC_OP_cat : CC_OP_copy, parts->at, parts->n, out, 1);
}

static int joined(Split *s, Operands *parts) {
    if (parts->n == 1) return parts->at[0].value;
    const CcType wide = shaped(3, s->steps, s->batch, s->hidden * parts->n);
    cc_vec_push(&s->a.g->val, (CcVal){.type = wide});
    const int v = s->a.g->val.n - 1;
    join(s, parts, 2, v);
    return v;
}

/* The result of a layer, if dropout follows it with the elements that are not kept as 0. */
static int dropped(Split *s, int y, int layer) {
    if (s->l->masks < 0) return y;
    const CcType t = *type_of(&s->a, y);
    const CcOperand kept = s->a.g->operand.at[s->n.in0 + s->l->masks + layer];
    return make(&s->a, dropped, &t, .x = value_of(y), .kept = kept, .p = s->l->kept);
}

static void insert_layers(Split *s) {
    const CcRoles *l = s->l;
    Operands last_h = {0}, last_c = {0}, y = {0};
    int x = operand_of(s->a.g, &s->n, CC_ROLE_X).value;
    if (l->batch_first) { /* a copy, of which all products of the backward are one matrix */
        const CcType t = shaped(3, s->steps, s->batch, type_of(&s->a, x)->size[2]);
        x = emit(&s->a, CC_OP_copy, &t, value_of(turned(&s->a, x)));
    }
    for (int layer = 0; layer < l->layers; layer++) {
        if (layer > 0) x = dropped(s, joined(s, &y), layer - 1);
        y.n = 0;
        x = with_dense_rows(&s->a, x);
        for (int d = 0; d < l->directions; d++)
            cc_vec_push(&y, value_of(insert_part(s, x, layer * l->directions + d, &last_h, &last_c)));
    }
    for (int d = 0; d < y.n && l->batch_first; d++) y.at[d] = value_of(turned(&s->a, y.at[d].value));
    join(s, &y, 2, s->n.out0);
    join(s, &last_h, 0, s->n.out0 + 1);
    if (l->cell == CC_CELL_LSTM) join(s, &last_c, 0, s->n.out0 + 2);
    cc_vec_free(&last_h);
    cc_vec_free(&last_c);
    cc_vec_free(&y);
}

static void split(CcGraph *g, int node, const CcRoles *l) {
    Split s = {.a = {.g = g, .before = node}, .l = l, .n = g->node.at[node]};
    const CcType *x = type_of(&s.a, operand_of(g, &s.n, CC_ROLE_X).value),
                 *h = type_of(&s.a, operand_of(g, &s.n, CC_ROLE_H).value);
    const int first_node = g->node.n, first_value = g->val.n;
    s.steps = x->size[l->batch_first];
    s.batch = h->size[1];
    s.hidden = h->size[2];
    insert_layers(&s);
    cc_adjoint_replaced(&s.a, &s.n, first_node, first_value);
    for (int i = first_node; i < g->node.n; i++) { /* what is only kept for the backward */
        const CcNode *n = &g->node.at[i];
        for (int k = n->op != CC_OP_recur ? n->n_out : n->n_out == 4 ? 2 : 1; k < n->n_out; k++)
            g->val.at[n->out0 + k].type.requires_grad = false;
    }
}

void cc_recurrent_split(CcGraph *g) {
    const int n = g->node.n;
    CcRoles l;
    cc_edit_settle(g);
    for (int i = 0; i < n; i++)
        if (read_layers(g, &g->node.at[i], &l)) split(g, i, &l);
    cc_edit_settle(g);
}

/* ------------------------------------------------------------------ the backward of a part */

/* dw_h: the sums of each step with h of the step before. */
static void add_weights_of_state(Adjoint *a, const CcIn_recur *in, int sums, int y) {
    const int64_t steps = type_of(a, y)->size[0];
    const bool reversed = in->reversed.i != 0;
    const int first = cc_adjoint_part(a, sums, 0, reversed ? steps - 1 : 0, 1);
    cc_adjoint_add(
        a, in->w_h.value,
        cc_adjoint_product(a, cc_adjoint_transposed(a, cc_adjoint_matrix(a, first)), in->h.value, in->w_h.value));
    if (steps == 1) return;
    const int rest = cc_adjoint_part(a, sums, 0, reversed ? 0 : 1, steps - 1),
              before = cc_adjoint_part(a, y, 0, reversed ? 1 : 0, steps - 1);
    cc_adjoint_add(a, in->w_h.value,
                   cc_adjoint_product(a, cc_adjoint_transposed(a, cc_adjoint_matrix(a, rest)),
                                      cc_adjoint_matrix(a, before), in->w_h.value));
}

static void add_bias(Adjoint *a, CcOperand bias, int sums, int *made) {
    if (!wants(a, bias)) return;
    if (*made < 0) *made = cc_adjoint_summed(a, sums, *type_of(a, bias.value));
    cc_adjoint_add(a, bias.value, *made);
}

bool cc_recurrent_apply(Adjoint *a, const CcNode *n) {
    CcIn_recur in;
    if (!cc_in_recur(a->g, n, &in)) return false;
    const CcCell cell = (CcCell)in.cell.i;
    const int y = n->out0, grad_y = a->grad[y], grad_c = cell == CC_CELL_LSTM ? a->grad[y + 1] : -1;
    const CcType t = *type_of(a, y), state = shaped(2, t.size[1], t.size[2], 0),
                 gates = shaped(3, t.size[0], t.size[1], cc_cell_gates(cell) * t.size[2]);
    const CcOperand kept = cell == CC_CELL_LSTM ? value_of(y + 2) : cell == CC_CELL_GRU ? value_of(y + 1) : none();
    const CcOperand operands[] = {grad_y >= 0 ? value_of(with_dense_rows(a, grad_y)) : none(),
                                  grad_c >= 0 ? value_of(with_dense_rows(a, grad_c)) : none(),
                                  value_of(y),
                                  kept,
                                  cell == CC_CELL_LSTM ? value_of(y + 3) : none(),
                                  in.h,
                                  in.c,
                                  in.w_h,
                                  in.cell,
                                  in.reversed};
    const CcType types[] = {gates, state, cell == CC_CELL_LSTM ? state : gates};
    const int n_out = cell == CC_CELL_LSTM || cell == CC_CELL_GRU ? 3 : 2;
    const int node = cc_graph_node(a->g, CC_OP_recur_grad, 0, -1, operands, CC_COUNT(operands), types, n_out);
    const int out = a->g->node.at[node].out0;
    const int sums = cc_adjoint_matrix(a, out), of_h = cell == CC_CELL_GRU ? out + 2 : out;
    if (wants(a, in.h)) cc_adjoint_add(a, in.h.value, out + 1);
    if (wants(a, in.c)) cc_adjoint_add(a, in.c.value, out + 2);
    if (wants(a, in.x)) {
        const int dx = cc_adjoint_product(a, sums, in.w_x.value, -1);
        cc_adjoint_add(a, in.x.value, cc_adjoint_reshaped(a, dx, type_of(a, in.x.value)));
    }
    if (wants(a, in.w_x))
        cc_adjoint_add(
            a, in.w_x.value,
            cc_adjoint_product(a, cc_adjoint_transposed(a, sums), cc_adjoint_matrix(a, in.x.value), in.w_x.value));
    if (wants(a, in.w_h)) add_weights_of_state(a, &in, of_h, y);
    int bias = -1, other = -1;
    add_bias(a, in.b_x, sums, &bias);
    add_bias(a, in.b_h, of_h == out ? sums : cc_adjoint_matrix(a, of_h), of_h == out ? &bias : &other);
    return true;
}
