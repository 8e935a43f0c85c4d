/* transpose: few rows times large weights are faster as W @ x^T, which stores the result column by column. Strides
 * between steps are free, so such a result stays transposed through pointwise ops, until another product takes it as
 * its source.
 *
 *   a = linear(x)  b = relu(a)  y = linear(b)     a, b: strides (1, rows); x, y: as recorded
 *
 * A transposed value is marked `narrowed`: its type differs from the recorded one. */
#include "pass.h"

typedef struct Transpose {
    const CcGraph *g;
    const CcGroupRules *rules;
    bool *live;      /* by node */
    bool *candidate; /* by value: transposed along with the current product */
    bool *chosen;    /* by value: transposed */
    bool *whole;     /* by value: a window of it exists */
} Transpose;

bool cc_transposed(const CcVal *v) { return v->narrowed && !cc_type_contiguous(&v->type); }

/* May this node's result have other strides? */
static bool can_transpose(const Transpose *t, const CcNode *n) {
    if (n->n_out != 1 || n->flags) return false;
    const CcVal *v = &t->g->val.at[n->out0];
    if (cc_group_banned(t->g, v->def, t->rules)) return false;
    return v->type.ndim >= 2 && v->type.device == 1 && cc_type_contiguous(&v->type) && !v->is_output && !v->window_of &&
           !t->whole[n->out0];
}

/* A pointwise node over transposed values and at most vectors; any other operand would be read across its rows. */
static bool follows(const Transpose *t, const CcNode *n) {
    if (cc_node_kind(n) != CC_K_POINTWISE || !can_transpose(t, n)) return false;
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(t->g, n, i);
        if (v < 0) continue;
        const CcType *type = &t->g->val.at[v].type;
        const bool transposed = t->candidate[v] && cc_type_same_shape(type, &t->g->val.at[n->out0].type);
        if (!transposed && (type->ndim < 0 || type->ndim > 1)) return false;
    }
    return true;
}

/* Marks what is transposed along with the result of `product`. False: a reader needs the recorded layout, or nothing
 * reads it. */
static bool flood(Transpose *t, int product) {
    const CcGraph *g = t->g;
    bool ends = false;
    memset(t->candidate, 0, (size_t)g->val.n);
    t->candidate[g->node.at[product].out0] = true;
    for (int i = product + 1; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        bool source = false, other = false;
        for (int k = 0; t->live[i] && k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            if (v < 0 || !t->candidate[v]) continue;
            if (k == 0) source = true;
            else other = true;
        }
        if (!source && !other) continue;
        if (n->op == CC_OP_linear && !other && !cc_group_banned(g, i, t->rules)) ends = true;
        else if (follows(t, n)) t->candidate[n->out0] = true;
        else return false;
    }
    return ends;
}

static void transpose_type(CcVal *v) {
    int64_t stride = 1;
    for (int d = v->type.ndim - 2; d >= 0; d--) {
        v->type.stride[d] = stride;
        stride *= v->type.size[d];
    }
    v->type.stride[v->type.ndim - 1] = stride;
    v->narrowed = true;
}

/* Decides for all products before changing any: a transposed operand must not influence the decision. */
static void find_all(Transpose *t) {
    const CcGraph *g = t->g;
    cc_dce_mark(g, t->live);
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].window_of) t->whole[cc_graph_base(g, v)] = true;
    for (int i = 0; i < g->node.n; i++) {
        if (!t->live[i] || !t->rules->gains_transposed(g, i) || !can_transpose(t, &g->node.at[i]) || !flood(t, i))
            continue;
        for (int v = 0; v < g->val.n; v++) t->chosen[v] = t->chosen[v] || t->candidate[v];
    }
}

void cc_transpose_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n && rules->gains_transposed && !any; i++) any = rules->gains_transposed(g, i);
    bool *flags = any ? calloc(1, nodes + 3 * values) : NULL;
    if (!flags) return; /* most graphs have no such product */
    Transpose t = {.g = g, .rules = rules, .live = flags, .candidate = flags + nodes};
    t.whole = t.candidate + values;
    t.chosen = t.whole + values;
    find_all(&t);
    for (int v = 0; v < g->val.n; v++)
        if (t.chosen[v]) transpose_type(cc_edit_val(g, v));
    free(flags);
}
