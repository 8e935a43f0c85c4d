/* turn: few rows times large weights are faster the other way round, W @ x^T, which leaves the
 * result column by column in memory. Strides are free between steps, so such a result stays turned
 * while pointwise ops work on it, until a next product takes it as its source.
 *
 *   a = linear(x)  b = relu(a)  y = linear(b)     a, b: strides (1, rows); x, y: as recorded
 *
 * A turned value is marked as narrowed: its type is not the recorded one. */
#include "pass.h"

typedef struct Turn {
    const CcGraph *g;
    const CcGroupRules *rules;
    bool *live;  /* by node */
    bool *now;   /* by value: turned with the product that is looked at */
    bool *turns; /* by value: turned */
    bool *whole; /* by value: a window looks into it */
} Turn;

bool cc_turned(const CcVal *v) { return v->narrowed && !cc_type_contiguous(&v->type); }

/* May this node's result have other strides? */
static bool can_turn(const Turn *t, const CcNode *n) {
    if (n->n_out != 1 || n->flags) return false;
    const CcVal *v = &t->g->val.at[n->out0];
    if (cc_group_banned(t->g, v->def, t->rules)) return false;
    return v->type.ndim >= 2 && v->type.device == 1 && cc_type_contiguous(&v->type) && !v->is_output && !v->window_of &&
           !t->whole[n->out0];
}

/* A pointwise node over turned values and at most vectors: anything else would be read across its
 * rows. */
static bool follows(const Turn *t, const CcNode *n) {
    if (cc_op_info((CcOpId)n->op)->kind != CC_K_POINTWISE || !can_turn(t, n)) return false;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = &t->g->operand.at[n->in0 + i];
        if (o->kind != CC_IN_VALUE) continue;
        const CcType *type = &t->g->val.at[o->value].type;
        const bool turned = t->now[o->value] && cc_type_same_shape(type, &t->g->val.at[n->out0].type);
        if (!turned && (type->ndim < 0 || type->ndim > 1)) return false;
    }
    return true;
}

/* Marks what turns with the result of `product`. False: a reader needs it as it is, or nothing
 * reads it. */
static bool flood(Turn *t, int product) {
    const CcGraph *g = t->g;
    bool ends = false;
    memset(t->now, 0, (size_t)g->val.n);
    t->now[g->node.at[product].out0] = true;
    for (int i = product + 1; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        bool source = false, other = false;
        for (int k = 0; t->live[i] && k < n->n_in; k++) {
            const CcOperand *o = &g->operand.at[n->in0 + k];
            if (o->kind != CC_IN_VALUE || !t->now[o->value]) continue;
            if (k == 0) source = true;
            else other = true;
        }
        if (!source && !other) continue;
        if (n->op == CC_OP_linear && !other && !cc_group_banned(g, i, t->rules)) ends = true;
        else if (follows(t, n)) t->now[n->out0] = true;
        else return false;
    }
    return ends;
}

static void turn_type(CcVal *v) {
    int64_t stride = 1;
    for (int d = v->type.ndim - 2; d >= 0; d--) {
        v->type.stride[d] = stride;
        stride *= v->type.size[d];
    }
    v->type.stride[v->type.ndim - 1] = stride;
    v->narrowed = true;
}

/* Nothing is turned before all is known: a turned operand is no reason for or against turning. */
static void find_all(Turn *t) {
    const CcGraph *g = t->g;
    cc_dce_mark(g, t->live);
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].window_of) t->whole[cc_graph_base(g, v)] = true;
    for (int i = 0; i < g->node.n; i++) {
        if (!t->live[i] || !t->rules->gains_turned(g, i) || !can_turn(t, &g->node.at[i]) || !flood(t, i)) continue;
        for (int v = 0; v < g->val.n; v++) t->turns[v] = t->turns[v] || t->now[v];
    }
}

void cc_turn_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n && rules->gains_turned && !any; i++) any = rules->gains_turned(g, i);
    bool *flags = any ? calloc(1, nodes + 3 * values) : NULL;
    if (!flags) return; /* most graphs have no such product */
    Turn t = {.g = g, .rules = rules, .live = flags, .now = flags + nodes};
    t.whole = t.now + values;
    t.turns = t.whole + values;
    find_all(&t);
    for (int v = 0; v < g->val.n; v++)
        if (t.turns[v]) turn_type(cc_edit_val(g, v));
    free(flags);
}
