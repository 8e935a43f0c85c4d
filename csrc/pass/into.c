/* into: turns writes to memory that the graph does not own (a KV cache, a counter, an argument) into kernels and
 * library calls.
 *
 *   mul_(%1, 2)        ->   %9 = mul(%1, 2)               %9: a window of %1, the same memory
 *   put(%1, %2)        ->   %9 = fill_like(%1, %2)        copy_, fill_, zero_
 *   put(%1, %2, key)   ->   %9 = put(%1, %2, key)         on a GPU a window of the written part (writes.c)
 *
 * The node still writes, so it stands alone and no node moves across it (group.c): at each node memory is as in
 * eager, whoever shares it. Within a node an element is read before it is written, and only by its own iteration: an
 * operand must be the written memory exactly or not overlap it. This pass checks views and values that the graph
 * makes; each call checks whether inputs overlap (run/runner.c). */
#include "pass_int.h"

bool cc_into_is_write(const CcGraph *g, const CcNode *n) {
    return n->flags == CC_N_WRITES && n->n_out == 1 && n->rewritten && n->n_in > 0 &&
           g->operand.at[n->in0].kind == CC_IN_VALUE &&
           g->val.at[n->out0].window_of == cc_graph_base(g, g->operand.at[n->in0].value) + 1;
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
static int root_of(const CcGraph *g, int value) {
    for (;;) {
        const CcVal *v = &g->val.at[value];
        const CcNode *n = v->def < 0 ? NULL : &g->node.at[v->def];
        if (v->window_of) value = v->window_of - 1;
        else if (n && cc_op_is_view(n->op) && n->n_in > 0 && g->operand.at[n->in0].kind == CC_IN_VALUE)
            value = g->operand.at[n->in0].value;
        else return value;
    }
}

void cc_into_exclusive(const CcGraph *g, bool *alone) {
    int *named = calloc((size_t)g->val.n + 1, sizeof *named); /* per value: number of nodes that name its memory */
    for (int i = 0; i < g->node.n; i++) alone[i] = false;
    for (int i = 0; named && i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, &g->node.at[i], k);
            if (o->kind == CC_IN_VALUE) named[root_of(g, o->value)]++;
        }
    for (int i = 0; named && i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (!cc_into_is_write(g, n) || cc_op_info((CcOpId)n->op)->kind == CC_K_SCATTER) continue;
        const int root = root_of(g, g->operand.at[n->in0].value);
        int own = 0;
        for (int k = 0; k < n->n_in; k++)
            own +=
                cc_graph_operand(g, n, k)->kind == CC_IN_VALUE && root_of(g, cc_graph_operand(g, n, k)->value) == root;
        alone[i] = g->val.at[root].def < 0 && own == named[root];
    }
    free(named);
}

/* Memory that nothing else shares: results of ops with a row. */
static bool is_fresh(const CcGraph *g, int root) {
    const int def = g->val.at[root].def;
    return def >= 0 && cc_op_info((CcOpId)g->node.at[def].op)->kind != CC_K_HOST && !g->node.at[def].flags;
}

/* Results of the host may share memory with anything. */
static bool is_known(const CcGraph *g, int root) { return g->val.at[root].def < 0 || is_fresh(g, root); }

/* May a node that writes x read this operand? */
static bool keeps_apart(const CcGraph *g, int x, int other) {
    const int a = root_of(g, x), b = root_of(g, other);
    return a != b && is_known(g, a) && is_known(g, b);
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
    const CcOperand *x = cc_graph_operand(g, n, 0), *from = cc_graph_operand(g, n, 1);
    return from->kind != CC_IN_VALUE || broadcasts(&g->val.at[from->value].type, &g->val.at[x->value].type);
}

static bool understand(const CcGraph *g, const CcNode *n) {
    if (!cc_pure_is_write(g, n)) return false;
    const int x = cc_graph_source(g, n);
    const CcType *t = &g->val.at[x].type;
    const bool each = cc_op_info((CcOpId)n->op)->kind == CC_K_POINTWISE || is_fill(g, n);
    if (t->ndim < 0 || t->device != 1 || cc_type_numel(t) == 0 || !cc_into_non_overlapping(t)) return false;
    if (!is_fill(g, n) && !cc_pure_writes_same(g, n)) return false;
    for (int k = 1; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, n, k);
        if (o->kind == CC_IN_VALUE && !keeps_apart(g, x, o->value) && !(each && o->value == x)) return false;
    }
    return true;
}

/* x[a:b] += y puts the view, which was written, back where it comes from: no element moves, but torch counts one
 * more write. */
static bool puts_back(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    const CcOperand *from = n->n_in > 1 ? cc_graph_operand(g, n, 1) : NULL;
    if (n->op != CC_OP_put || !cc_pure_is_write(g, n) || !from || from->kind != CC_IN_VALUE) return false;
    const int def = g->val.at[from->value].def;
    return def >= 0 && cc_op_is_view(g->node.at[def].op) && !g->node.at[def].flags && g->node.at[def].n_out == 1 &&
           cc_pure_puts_back(g, node, cc_graph_source(g, n), from->value);
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

void cc_into_rewrite(CcGraph *g, const CcGroupRules *rules) {
    for (int i = 0; i < g->node.n && rules->into; i++) {
        const bool nothing = puts_back(g, i);
        if (cc_group_banned(g, i, rules) || (!nothing && !understand(g, &g->node.at[i]))) continue;
        const CcEditMark mark = cc_edit_mark(g);
        if (nothing) write_nothing(g, i);
        else if (is_fill(g, &g->node.at[i]) || !cc_writes_into(g, i, rules)) rewrite(g, i);
        (void)cc_group_keeps(g, i, mark, rules);
    }
}
