/* attend: finds spelled-out attention and makes it one node.
 *
 *   s = q @ k^T                        s, t, u, p have no other readers
 *   t = s * number | s / number        optional, or applied to q
 *   u = t + mask | masked_fill(t, mask, number)       optional
 *   p = softmax(u, -1)
 *   o = p @ v
 *   y = o.transpose(1, 2), copied      optional: swaps heads and rows
 *   z = y as [.., rows, heads * width]     optional; may be a reshape that copies
 *
 * The attention replaces the last of these nodes; the others are dead. Value and node numbers stay. A k that no node
 * transposes is read through a window, which is appended to the graph's values. */
#include "pass_int.h"

typedef struct Attend {
    CcGraph *g;
    bool *live;  /* by node */
    int *uses;   /* by value: number of live operands that read it */
    int *reader; /* by value: one of the nodes that read it */
} Attend;

typedef struct Found {
    int first, last;       /* nodes */
    int q, k, kt, v, mask; /* values; k or mask -1: none. kt: k, transposed */
    CcOperand fill;
    double scale;
    int merged; /* operand `merged` of ops.def: 0, 2 or 3 dims */
} Found;

/* The node that makes a value with a single reader, or NULL; it has no other results and no flags. */
static const CcNode *made_for_one(const Attend *a, int value) {
    const CcVal *v = &a->g->val.at[value];
    if (v->def < 0 || a->uses[value] != 1 || v->is_output || v->window_of) return NULL;
    const CcNode *n = &a->g->node.at[v->def];
    return n->flags || n->n_out != 1 ? NULL : n;
}

static bool is_product(const CcGraph *g, const CcNode *n, CcIn_matmul *in) {
    return n && (n->op == CC_OP_matmul || n->op == CC_OP_bmm) && cc_in_matmul(g, n, in);
}

static bool same_shape(const Attend *a, int v, int w) {
    return cc_type_same_shape(&a->g->val.at[v].type, &a->g->val.at[w].type);
}

/* Reads x * number or x / number: x; else -1. */
static int scaled(const Attend *a, const CcNode *n, double *scale) {
    CcIn_mul in;
    if (!n || (n->op != CC_OP_mul && n->op != CC_OP_div) || !cc_in_mul(a->g, n, &in)) return -1;
    const bool first = n->op == CC_OP_mul && in.in[0].kind != CC_IN_VALUE;
    const CcOperand *x = &in.in[first], *s = &in.in[!first];
    if (x->kind != CC_IN_VALUE || (s->kind != CC_IN_FLOAT && s->kind != CC_IN_INT)) return -1;
    const double number = cc_operand_number(s);
    if (n->op == CC_OP_div && number == 0) return -1;
    *scale = n->op == CC_OP_mul ? number : 1 / number;
    return x->value;
}

/* The masked value, and the mask; -1: `n` does not mask. */
static int masked(const Attend *a, const CcNode *n, Found *f) {
    if (!n || (n->op != CC_OP_add && n->op != CC_OP_masked_fill)) return -1;
    const bool add = n->op == CC_OP_add;
    if (n->n_in != (add ? 2 : 3)) return -1;
    for (int i = 0; i < (add ? 2 : 1); i++) {
        const int x = cc_graph_value(a->g, n, i), mask = cc_graph_value(a->g, n, 1 - i);
        if (x < 0 || mask < 0 || !same_shape(a, x, n->out0)) continue;
        const CcNode *from = made_for_one(a, x);
        CcIn_matmul product;
        double scale;
        if (!is_product(a->g, from, &product) && scaled(a, from, &scale) < 0) continue;
        if (!add) f->fill = *cc_graph_operand(a->g, n, 2);
        if (!add && (f->fill.kind == CC_IN_VALUE || f->fill.kind == CC_IN_NONE || f->fill.kind == CC_IN_NUMBER))
            return -1;
        f->mask = mask;
        return x;
    }
    return -1;
}

/* Matches from the softmax back to the first product. */
static bool find_scores(const Attend *a, int value, Found *f) {
    const CcNode *n = made_for_one(a, value);
    const int under = masked(a, n, f);
    if (under >= 0) n = made_for_one(a, under);
    const int before = scaled(a, n, &f->scale);
    if (before >= 0) n = made_for_one(a, before);
    CcIn_matmul in;
    if (!is_product(a->g, n, &in)) return false;
    f->first = a->g->val.at[n->out0].def;
    f->q = in.a.value;
    f->kt = in.b.value;
    const CcNode *scaling = made_for_one(a, f->q);
    const int unscaled = before < 0 ? scaled(a, scaling, &f->scale) : -1;
    if (unscaled >= 0) {
        f->first = a->g->val.at[f->q].def;
        f->q = unscaled;
    }
    return true;
}

/* The operand of a node that only exchanges dims ndim - one and ndim - two; -1: another node. */
static int exchanges(const CcGraph *g, const CcNode *n, int one, int two) {
    CcIn_transpose in;
    if (n->op != CC_OP_transpose || n->n_out != 1 || n->flags || !cc_in_transpose(g, n, &in)) return -1;
    const CcType *t = &g->val.at[n->out0].type;
    const int ndim = t->ndim, a = cc_graph_dim(t, &in.dim0), b = cc_graph_dim(t, &in.dim1);
    const bool both = (a == ndim - one && b == ndim - two) || (a == ndim - two && b == ndim - one);
    return both ? in.x.value : -1;
}

static void find_keys(const Attend *a, Found *f) {
    const CcVal *kt = &a->g->val.at[f->kt];
    const bool made = kt->def >= 0 && !kt->window_of && kt->type.ndim >= 2;
    f->k = made ? exchanges(a->g, &a->g->node.at[kt->def], 1, 2) : -1;
}

/* The only node that reads a value; NULL if there are others, or it is an output. */
static const CcNode *only_reader(const Attend *a, int value) {
    const CcVal *v = &a->g->val.at[value];
    if (a->uses[value] != 1 || v->is_output || v->window_of) return NULL;
    const CcNode *n = &a->g->node.at[a->reader[value]];
    return n->flags || n->n_out != 1 || cc_graph_source(a->g, n) != value ? NULL : n;
}

/* Is y the same memory as x with dims ndim - 2 and ndim - 3 exchanged? */
static bool exchanged(const CcType *x, const CcType *y) {
    if (x->ndim != y->ndim || x->ndim < 3) return false;
    for (int d = 0; d < x->ndim; d++) {
        const int from = d == x->ndim - 3 ? d + 1 : d == x->ndim - 2 ? d - 1 : d;
        if (x->size[from] != y->size[d] || x->stride[from] != y->stride[d]) return false;
    }
    return true;
}

/* The value that has heads and rows swapped after the second product; -1: none. A product that writes through a
 * window (pass/contract.c) swaps them itself. */
static int find_exchange(const Attend *a, const Found *f) {
    const CcGraph *g = a->g;
    const int made = g->node.at[f->last].out0, base = cc_graph_base(g, made);
    if (made != base) return exchanged(&g->val.at[made].type, &g->val.at[base].type) ? base : -1;
    const CcNode *n = only_reader(a, made);
    return n && exchanges(g, n, 2, 3) >= 0 ? n->out0 : -1;
}

static void find_merge(const Attend *a, Found *f) {
    const CcGraph *g = a->g;
    const int exchange = find_exchange(a, f);
    if (exchange < 0) return;
    const CcType *y = &g->val.at[exchange].type;
    const CcNode *n = only_reader(a, exchange);
    if (n && n->op == CC_OP_copy && n->n_in == 1 && cc_type_contiguous(&g->val.at[n->out0].type)) {
        f->last = g->val.at[n->out0].def;
        f->merged = 3;
        n = only_reader(a, n->out0);
        if (n && n->op != CC_OP_view) return;
    } else if (n && n->op != CC_OP_reshape) return;
    if (!n || g->val.at[n->out0].is_output) return;
    const CcType *z = &g->val.at[n->out0].type;
    const int d = z->ndim - 1;
    if (z->ndim != y->ndim - 1 || !cc_type_contiguous(z) || z->size[d] != y->size[d] * y->size[d + 1]) return;
    for (int i = 0; i < d; i++)
        if (z->size[i] != y->size[i]) return;
    f->last = g->val.at[n->out0].def;
    f->merged = 2;
}

/* Does memory change between the first and the last node? */
static bool disturbed(const Attend *a, const Found *f) {
    for (int i = f->first; i <= f->last; i++)
        if (a->live[i] && a->g->node.at[i].flags & (CC_N_WRITES | CC_N_EFFECT)) return true;
    return false;
}

static bool find(const Attend *a, int node, Found *f) {
    const CcGraph *g = a->g;
    const CcNode *n = &g->node.at[node];
    *f = (Found){.last = node, .mask = -1, .scale = 1, .fill = {.kind = CC_IN_NONE}};
    CcIn_matmul product;
    CcIn_softmax in;
    if (!a->live[node] || n->flags || !is_product(g, n, &product)) return false;
    f->v = product.b.value;
    const CcNode *softmax = made_for_one(a, product.a.value);
    if (!softmax || softmax->op != CC_OP_softmax || !cc_in_softmax(g, softmax, &in)) return false;
    const CcType *t = &g->val.at[softmax->out0].type;
    const bool known = t->dtype == CC_DT_F32 || cc_dtype_is_half(t->dtype);
    if (t->ndim < 2 || in.dims.i != 1 || !known) return false;
    if (!find_scores(a, in.x.value, f)) return false;
    find_keys(a, f);
    find_merge(a, f);
    return !disturbed(a, f);
}

/* k [.., keys, depth] as a window of its transpose. */
static int turn_back(CcGraph *g, int kt) {
    CcVal v = g->val.at[kt];
    if (v.type.ndim < 2) return -1;
    v.type = cc_type_swapped(&v.type, v.type.ndim - 2, v.type.ndim - 1);
    if (!v.window_of) v.window_of = kt + 1;
    v.is_output = false;
    cc_vec_push(&g->val, v);
    return g->val.n - 1;
}

static void rewrite(CcGraph *g, const Found *f, const CcGroupRules *rules) {
    const CcEditMark mark = cc_edit_mark(g);
    const int k = f->k >= 0 ? f->k : turn_back(g, f->kt);
    if (k < 0) return;
    cc_edit_make(g, f->last, attend, .q = value_of(f->q), .k = value_of(k), .v = value_of(f->v),
                 .mask = f->mask < 0 ? none() : value_of(f->mask), .fill = f->fill, .scale = float_of(f->scale),
                 .merged = int_of(f->merged));
    (void)cc_group_keeps(g, f->last, mark, rules);
}

static void count_readers(Attend *a) {
    const CcGraph *g = a->g;
    cc_dce_mark(g, a->live);
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; a->live[i] && k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            if (v < 0) continue;
            a->uses[v]++;
            if (g->val.at[v].window_of) a->uses[cc_graph_base(g, v)]++;
            a->reader[v] = i;
        }
}

void cc_attend_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || g->node.at[i].op == CC_OP_softmax;
    if (!any) return;
    Attend a = {.g = g,
                .live = calloc(nodes, 1),
                .uses = calloc(values, sizeof *a.uses),
                .reader = calloc(values, sizeof *a.reader)};
    if (a.live && a.uses && a.reader) {
        Found f;
        count_readers(&a);
        for (int i = 0; i < g->node.n; i++)
            if (find(&a, i, &f)) rewrite(g, &f, rules);
    }
    free(a.live);
    free(a.uses);
    free(a.reader);
}
