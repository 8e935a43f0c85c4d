/* views: a view that only kernels and library calls read needs no step. Its value becomes a window: the memory of
 * its base from an offset on, with the recorded sizes and strides.
 *
 *   q = linear(x)  h = view(q)  t = transpose(h)  s = matmul(t, ...)     t: a window of q; h and t are never made
 *
 * A product whose result is only read in another shape writes that shape, so that the readers can be its post-ops.
 *
 * A reshape that has to copy becomes a copy in the shape of its operand, and a window of that.
 *
 * The host reads tensors only, so a view that a host node reads stays a step, and so does its operand. */
#include "pass_int.h"

/* slice: x, then pairs of a dim and its first index. */
static bool slice_offset(const CcGraph *g, const CcNode *n, const CcType *x, int64_t *offset) {
    for (int i = 1; i + 1 < n->n_in; i += 2) {
        const int d = cc_graph_dim(x, cc_graph_operand(g, n, i));
        const CcOperand *at = cc_graph_operand(g, n, i + 1);
        if (d < 0 || at->kind != CC_IN_INT) return false;
        const int64_t index = at->i < 0 ? at->i + x->size[d] : at->i;
        if (index < 0 || index > x->size[d]) return false;
        *offset += index * x->stride[d];
    }
    return n->n_in % 2 == 1;
}

/* split, unbind: results 0 .. k-1 precede result k. tensor_split with odd indices drops or repeats elements; then
 * the sizes do not add up. */
static bool split_offset(const CcGraph *g, const CcNode *n, const CcType *x, int k, int64_t *offset) {
    CcIn_split in;
    const int d = cc_in_split(g, n, &in) ? cc_graph_dim(x, &in.dim) : -1;
    int64_t left = d < 0 || n->op == CC_OP_unbind ? 0 : x->size[d];
    for (int i = 0; i < n->n_out && left; i++) left -= g->val.at[n->out0 + i].type.size[d];
    if (d < 0 || left != 0) return false;
    for (int i = 0; i < k; i++) {
        const CcType *before = &g->val.at[n->out0 + i].type;
        *offset += x->stride[d] * (n->op == CC_OP_unbind ? 1 : before->size[d]);
    }
    return true;
}

static bool diagonal_offset(const CcGraph *g, const CcNode *n, const CcType *x, int64_t *offset) {
    CcIn_diagonal in;
    if (!cc_in_diagonal(g, n, &in) || in.offset.kind != CC_IN_INT) return false;
    const int64_t right = in.offset.i; /* how far right of the main diagonal */
    const int row = cc_graph_dim(x, &in.dim1), col = cc_graph_dim(x, &in.dim2);
    if (row < 0 || col < 0 || row == col) return false;
    if (cc_type_numel(&g->val.at[n->out0].type) > 0)
        *offset = right > 0 ? right * x->stride[col] : -right * x->stride[row];
    return true;
}

/* Elements between the first element of the operand and of result k. False: unknown. */
static bool offset_of(const CcGraph *g, const CcNode *n, int k, int64_t *offset) {
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type;
    *offset = 0;
    switch (n->op) {
    case CC_OP_select:
    case CC_OP_slice: return slice_offset(g, n, x, offset);
    case CC_OP_split:
    case CC_OP_unbind: return split_offset(g, n, x, k, offset);
    case CC_OP_diagonal: return diagonal_offset(g, n, x, offset);
    case CC_OP_reshape: return cc_type_reshapes(x, &g->val.at[n->out0].type);
    case CC_OP_einsum_one: return cc_contract_is_view(g, n);
    case CC_OP_as_strided: return false;
    default: return true;
    }
}

bool cc_views_offset(const CcGraph *g, const CcNode *n, int64_t *offset) { return offset_of(g, n, 0, offset); }

static bool is_view(const CcGraph *g, const CcNode *n) {
    return cc_op_is_view(n->op) && !n->flags && cc_graph_source(g, n) >= 0;
}

/* Does it share memory with its operand, at a known offset? reshape and its like may copy; a copy has strides that
 * the binding refuses. */
static bool known_view(const CcGraph *g, const CcNode *n) {
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type;
    int64_t offset;
    bool known = cc_type_known(x);
    for (int k = 0; k < n->n_out && known; k++) {
        const CcType *t = &g->val.at[n->out0 + k].type;
        known = cc_type_known(t) && t->dtype == x->dtype && offset_of(g, n, k, &offset);
    }
    return known;
}

/* A reshape that is not a view is as pointwise as a copy, unless the front end wants its result. */
static bool copies(const CcGraph *g, const CcNode *n) {
    if (n->op != CC_OP_reshape || !is_view(g, n) || n->n_out != 1 || g->val.at[n->out0].is_output) return false;
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type, *to = &g->val.at[n->out0].type;
    return cc_type_known(x) && cc_type_known(to) && !cc_type_reshapes(x, to) && cc_type_contiguous(to);
}

static bool reads_view(const CcGraph *g, const CcNode *n) {
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(g, n, k);
        if (v >= 0 && g->val.at[v].def >= 0 && is_view(g, &g->node.at[g->val.at[v].def])) return true;
    }
    return false;
}

/* by_host[value], for results of views: does a host node or the front end read the value, so that it must be a
 * tensor? Goes backwards, since a view that stays a step is read by the host, too. */
static void mark_by_host(const CcGraph *g, const bool *live, const CcGroupRules *rules, bool *by_host) {
    for (int v = 0; v < g->val.n; v++) by_host[v] = g->val.at[v].is_output;
    for (int i = g->node.n - 1; i >= 0; i--) {
        const CcNode *n = &g->node.at[i];
        if (!live[i]) continue;
        bool host;
        if (is_view(g, n) && known_view(g, n) && !cc_group_banned(g, i, rules)) {
            host = false;
            for (int k = 0; k < n->n_out; k++) host = host || by_host[n->out0 + k];
            /* a split makes all of its results or none */
            for (int k = 0; k < n->n_out; k++) by_host[n->out0 + k] = host;
        } else if (copies(g, n) && !cc_group_banned(g, i, rules)) {
            host = by_host[n->out0];
        } else if (is_view(g, n)) {
            host = !cc_group_takes(g, i, rules);
            for (int k = 0; k < n->n_out; k++) by_host[n->out0 + k] = true;
        } else {
            host = reads_view(g, n) && !cc_separate_takes(g, i, rules);
        }
        for (int k = 0; k < n->n_in && host; k++)
            if (cc_graph_operand(g, n, k)->kind == CC_IN_VALUE) by_host[cc_graph_operand(g, n, k)->value] = true;
    }
}

/* Turns the results of a view into windows; an identity view (detach, a reshape to the same shape) is its operand. */
static void fold(CcGraph *g, const CcNode *n, int *same) {
    const int x = same[cc_graph_source(g, n)];
    const CcVal from = g->val.at[x];
    for (int k = 0; k < n->n_out; k++) {
        int64_t offset;
        const bool known = offset_of(g, n, k, &offset);
        CC_ASSERT(known); /* known_view() has checked */
        if (!known) continue;
        if (offset == 0 && cc_type_same_layout(&g->val.at[n->out0 + k].type, &from.type)) {
            same[n->out0 + k] = x;
            continue;
        }
        CcVal *v = cc_edit_val(g, n->out0 + k);
        v->window_of = cc_graph_base(g, x) + 1;
        v->offset = from.offset + offset * cc_dtype_size(v->type.dtype);
    }
}

/* Is this view the only reader of a product's result, with the same elements in the same order? */
static bool only_shape(const CcGraph *g, const CcNode *n, const int *uses) {
    const int x = cc_graph_source(g, n);
    const CcVal *from = &g->val.at[x], *to = &g->val.at[n->out0];
    if (n->op != CC_OP_view || from->def < 0 || from->is_output || from->window_of || from->narrowed || uses[x] != 1)
        return false;
    if (g->node.at[from->def].out0 != x) return false; /* made through a window, in another order */
    return cc_node_kind(&g->node.at[from->def]) == CC_K_MATMUL && cc_type_contiguous(&from->type) &&
           cc_type_contiguous(&to->type) && cc_type_numel(&to->type) == cc_type_numel(&from->type);
}

/* Lets the product write the view's result if a back-end accepts that shape; the view then does nothing. */
static bool absorb(CcGraph *g, int view, const CcGroupRules *rules) {
    const int result = g->node.at[view].out0, product = g->val.at[cc_graph_source(g, &g->node.at[view])].def;
    const CcEditMark mark = cc_edit_mark(g);
    CcNode *n = cc_edit_node(g, product);
    n->out0 = result;
    n->rewritten = true; /* the host would make the recorded shape */
    if (!cc_group_keeps(g, product, mark, rules)) return false;
    cc_edit_val(g, result)->def = product;
    cc_edit_node(g, view)->n_out = 0;
    return true;
}

/* Updates everything that names a value which became another value or a window. Earlier windows (pass/narrow.c) may
 * be windows of a new one. n: the number of values that `same` covers. */
static void follow(CcGraph *g, const int *same, int n) {
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int x = cc_graph_value(g, &g->node.at[i], k);
            if (x < 0 || x >= n || same[x] == x) continue;
            cc_edit_operand(g, i, k, value_of(same[x]));
            cc_edit_node(g, i)->rewritten = true; /* the host would expect the view */
        }
    for (int v = 0; v < g->val.n; v++) {
        const int32_t of = g->val.at[v].window_of;
        if (!of || of > n) continue;
        const int base = same[of - 1];
        const CcVal *into = &g->val.at[base];
        CcVal *window = cc_edit_val(g, v);
        window->window_of = into->window_of ? into->window_of : base + 1;
        window->offset += into->offset;
    }
}

/* The node becomes a copy into a new value, and its result a window of that. */
static void fold_copy(CcGraph *g, int node) {
    cc_edit_slots(g, node, g->node.at[node].in0, 1);
    CcNode *n = &g->node.at[node];
    CcVal copy = {.type = g->val.at[cc_graph_source(g, n)].type, .def = node, .narrowed = true};
    cc_type_make_contiguous(&copy.type);
    cc_edit_val(g, n->out0)->window_of = g->val.n + 1;
    n->op = CC_OP_copy;
    n->out0 = g->val.n;
    cc_vec_push(&g->val, copy);
}

static void fold_all(CcGraph *g, const CcGroupRules *rules, const bool *live, const bool *by_host, const int *uses,
                     int *same) {
    const int values = g->val.n;
    bool any = false;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (!live[i] || !is_view(g, n) || n->n_out == 0 || by_host[n->out0]) continue;
        any = true;
        if (copies(g, n)) fold_copy(g, i);
        else if (!only_shape(g, n, uses) || !absorb(g, i, rules)) fold(g, &g->node.at[i], same);
    }
    if (any) follow(g, same, values);
}

int cc_views_window(CcGraph *g, int value, const CcType *type) {
    CcVal v = g->val.at[value];
    v.window_of = cc_graph_base(g, value) + 1;
    v.is_output = v.frozen = false;
    v.type = *type;
    cc_vec_push(&g->val, v);
    return g->val.n - 1;
}

int cc_views_part(CcGraph *g, int value, const CcType *type, int64_t offset) {
    const int window = cc_views_window(g, value, type);
    g->val.at[window].offset += offset * cc_dtype_size(type->dtype);
    return window;
}

int cc_views_result(CcGraph *g, int value, const CcType *type) {
    const int window = cc_views_window(g, value, type);
    g->val.at[window].is_output = g->val.at[value].is_output;
    return window;
}

void cc_views_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n, values = (size_t)g->val.n;
    bool *flags = calloc(1, nodes + values + 1);
    int *numbers = calloc(2 * values + 1, sizeof *numbers);
    if (flags && numbers) {
        bool *live = flags, *by_host = flags + nodes;
        int *uses = numbers, *same = numbers + values;
        for (int v = 0; v < g->val.n; v++) same[v] = v;
        cc_dce_mark(g, live);
        mark_by_host(g, live, rules, by_host);
        cc_dce_uses(g, live, uses);
        fold_all(g, rules, live, by_host, uses, same);
    }
    free(flags);
    free(numbers);
}
