/* into: turns writes to memory that the graph does not own (a KV cache, a counter, an argument) into kernels and
 * library calls.
 *
 *   mul_(%1, 2)        ->   %9 = mul(%1, 2)               %9: a window of %1, the same memory
 *   put(%1, %2)        ->   %9 = fill_like(%1, %2)        copy_, fill_, zero_
 *   put(%1, %2, key)   ->   %9 = put(%1, %2, key)         on a GPU a window of the written part (writes.c)
 *
 * The node still writes: a kernel keeps its place among nodes that name the same memory, all other nodes that write are
 * barriers (group.c). Within a node an element is read before it is written, and only by its own iteration: an
 * operand must be the written memory exactly or not overlap it. This pass checks views and values that the graph
 * makes; each call checks whether inputs overlap (run/runner.c). */
#include "pass_int.h"

bool cc_into_is_write(const CcGraph *g, const CcNode *n) {
    const int x = cc_graph_source(g, n);
    return n->flags == CC_N_WRITES && n->n_out == 1 && n->rewritten && x >= 0 &&
           g->val.at[n->out0].window_of == cc_graph_base(g, x) + 1;
}

/* Does no element share memory with another? Goes through dims by stride: each must exceed the extent of the dims
 * inside it. */
bool cc_into_non_overlapping(const CcType *t) {
    int64_t stride[CC_MAX_DIMS], size[CC_MAX_DIMS], end = 1;
    int n = 0;
    for (int d = 0; d < t->ndim; d++) {
        if (t->size[d] == 1) continue;
        int k = n++;
        for (; k > 0 && stride[k - 1] > t->stride[d]; k--) {
            stride[k] = stride[k - 1];
            size[k] = size[k - 1];
        }
        stride[k] = t->stride[d];
        size[k] = t->size[d];
    }
    for (int k = 0; k < n; k++) {
        if (stride[k] < end) return false;
        end += (size[k] - 1) * stride[k];
    }
    return true;
}

/* The root of a chain of views; a reshape that copies counts as a view, too. */
int cc_into_root(const CcGraph *g, int value) {
    for (;;) {
        const CcVal *v = &g->val.at[value];
        const CcNode *n = v->def < 0 ? NULL : &g->node.at[v->def];
        if (v->window_of) value = v->window_of - 1;
        else if (n && cc_op_is_view(n->op) && cc_graph_source(g, n) >= 0) value = cc_graph_source(g, n);
        else return value;
    }
}

bool cc_into_same(const CcGraph *g, int a, int b) {
    const CcVal *x = &g->val.at[a], *y = &g->val.at[b];
    return cc_graph_base(g, a) == cc_graph_base(g, b) && x->offset == y->offset &&
           cc_type_same_layout(&x->type, &y->type);
}

/* Memory that nothing else shares: results of ops with a row. */
static bool is_fresh(const CcGraph *g, int root) {
    const int def = g->val.at[root].def;
    return def >= 0 && cc_node_kind(&g->node.at[def]) != CC_K_HOST && !g->node.at[def].flags;
}

/* Results of the host may share memory with anything. */
bool cc_into_unknown(const CcGraph *g, int root) { return g->val.at[root].def >= 0 && !is_fresh(g, root); }

/* May a node that writes x read this operand? */
static bool keeps_apart(const CcGraph *g, int x, int other) {
    const int a = cc_into_root(g, x), b = cc_into_root(g, other);
    return a != b && !cc_into_unknown(g, a) && !cc_into_unknown(g, b);
}

static bool broadcasts(const CcType *from, const CcType *to) {
    if (from->ndim < 0 || from->ndim > to->ndim) return false;
    for (int d = 1; d <= from->ndim; d++)
        if (from->size[from->ndim - d] != 1 && from->size[from->ndim - d] != to->size[to->ndim - d]) return false;
    return true;
}

/* copy_ and the like: one value for all of x. */
static bool is_fill(const CcGraph *g, const CcNode *n) {
    if (n->op != CC_OP_put || n->n_in != 2) return false;
    const int x = cc_graph_value(g, n, 0), from = cc_graph_value(g, n, 1);
    return from < 0 || broadcasts(&g->val.at[from].type, &g->val.at[x].type);
}

static bool understand(const CcGraph *g, const CcNode *n) {
    if (!cc_pure_is_write(g, n)) return false;
    const int x = cc_graph_source(g, n);
    const CcType *t = &g->val.at[x].type;
    const bool each = cc_node_kind(n) == CC_K_POINTWISE || is_fill(g, n);
    if (t->ndim < 0 || t->device != 1 || cc_type_numel(t) == 0 || !cc_into_non_overlapping(t)) return false;
    if (!is_fill(g, n) && !cc_pure_writes_same(g, n)) return false;
    for (int k = 1; k < n->n_in; k++) {
        const int v = cc_graph_value(g, n, k);
        if (v >= 0 && !keeps_apart(g, x, v) && !(each && v == x)) return false;
    }
    return true;
}

/* x[a:b] += y puts the view, which was written, back where it comes from: no element moves, but torch counts one
 * more write. */
static bool puts_back(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    const int from = n->n_in > 1 ? cc_graph_value(g, n, 1) : -1;
    if (n->op != CC_OP_put || !cc_pure_is_write(g, n) || from < 0) return false;
    const int def = g->val.at[from].def;
    return def >= 0 && cc_op_is_view(g->node.at[def].op) && !g->node.at[def].flags && g->node.at[def].n_out == 1 &&
           cc_pure_puts_back(g, node, cc_graph_source(g, n), from);
}

static void rewrite(CcGraph *g, int node) {
    CcNode *n = cc_edit_node(g, node);
    const int x = cc_graph_source(g, n);
    CcVal v = {.type = g->val.at[x].type, .def = node, .hidden = true, .scalar = g->val.at[x].scalar};
    v.window_of = cc_graph_base(g, x) + 1;
    v.offset = g->val.at[x].offset;
    if (is_fill(g, n)) n->op = CC_OP_fill_like;
    n->out0 = g->val.n;
    n->n_out = 1;
    n->rewritten = true;
    cc_vec_push(&g->val, v);
}

/* Nothing is written to x, but the host must count a write. */
static void write_nothing(CcGraph *g, int node) {
    const int x = cc_graph_source(g, &g->node.at[node]);
    CcType none = {.dtype = g->val.at[x].type.dtype, .device = g->val.at[x].type.device, .ndim = 1, .stride = {1}};
    none.device_index = g->val.at[x].type.device_index;
    const int window = cc_views_window(g, x, &none);
    cc_edit_rewrite(g, node, CC_OP_put, (const CcOperand[]){value_of(window), int_of(0)}, 2);
    rewrite(g, node);
}

/* ------------------------------------------------------------------ values written more than once */

/* Lets a kernel read what an earlier one wrote as that one's result, so both can be one loop:
 *
 *   %9 = mul(%1, 2)   %10 = add(%1, %2)   ->   %9 = mul(%1, 2)   %10 = add(%9, %2)
 */
typedef struct Versions {
    CC_VEC(int) value; /* written values, by number of the given graph */
    int *of;           /* per such value: the result of the last kernel that wrote it; 0: none */
    int n;
} Versions;

/* The memory of this root, or (-1) any, may have changed in another way. */
static void forget(Versions *v, const CcGraph *g, int root) {
    int kept = 0;
    for (int i = 0; i < v->value.n; i++) {
        const int value = v->value.at[i];
        if (root < 0 || cc_into_root(g, value) == root) v->of[value] = 0;
        else v->value.at[kept++] = value;
    }
    v->value.n = kept;
}

static bool is_kernel(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    return cc_node_kind(n) == CC_K_POINTWISE && n->n_out == 1 && cc_group_takes(g, node, rules) &&
           !cc_autocast_mixes(g, n);
}

static void read_versions(const Versions *v, CcGraph *g, int node) {
    for (int k = 0; k < g->node.at[node].n_in; k++) {
        const int value = cc_graph_value(g, &g->node.at[node], k);
        if (value >= 0 && value < v->n && v->of[value]) cc_edit_operand(g, node, k, value_of(v->of[value]));
    }
}

/* After node `node`, which wrote `to` if it is a kernel's. */
static void follow(Versions *v, CcGraph *g, int node, int to, const CcGroupRules *rules) {
    const bool kernel = is_kernel(g, node, rules), writes = cc_into_is_write(g, &g->node.at[node]);
    if (kernel && (writes || !g->node.at[node].flags)) read_versions(v, g, node);
    if (writes && kernel && to >= 0 && to < v->n && cc_into_same(g, to, g->node.at[node].out0)) {
        forget(v, g, cc_into_root(g, to));
        v->of[to] = g->node.at[node].out0;
        cc_vec_push(&v->value, to);
    } else if (g->node.at[node].flags & (CC_N_WRITES | CC_N_EFFECT)) {
        forget(v, g, -1);
    }
}

static void try_write(CcGraph *g, int node, const CcGroupRules *rules) {
    const bool nothing = puts_back(g, node);
    if (cc_group_banned(g, node, rules) || (!nothing && !understand(g, &g->node.at[node]))) return;
    const CcEditMark mark = cc_edit_mark(g);
    if (nothing) write_nothing(g, node);
    else if (is_fill(g, &g->node.at[node]) || !cc_writes_into(g, node, rules)) rewrite(g, node);
    (void)cc_group_keeps(g, node, mark, rules);
}

void cc_into_rewrite(CcGraph *g, const CcGroupRules *rules) {
    Versions v = {.of = calloc((size_t)g->val.n + 1, sizeof *v.of), .n = g->val.n};
    for (int i = 0; i < g->node.n && rules->into && v.of; i++) {
        const int to = g->node.at[i].flags == CC_N_WRITES ? cc_graph_source(g, &g->node.at[i]) : -1;
        try_write(g, i, rules);
        follow(&v, g, i, to, rules);
    }
    cc_vec_free(&v.value);
    free(v.of);
}
