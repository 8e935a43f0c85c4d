/* narrow: computes only what a later select keeps. A classifier that reads a single token
 *
 *   a = linear(r); b = add(x, a); c = layer_norm(b); y = select(c, dim, index)
 *
 * needs one row of a, b and c. These nodes treat each index of the dim independently, so the select moves up through
 * them, and they run without the dim: in part. Values that other nodes need whole (x, r) are read through a window:
 * their memory at the index.
 *
 * Value and node numbers stay; windows are appended to the graph's values. */
#include "pass_int.h"

enum { WHOLE = 1, PART = 2 }; /* how a value is needed, as bits */

typedef struct Narrow {
    CcGraph *g;
    int select;          /* node */
    int right;           /* its dim, counted from the last; the same for all partial values */
    int64_t size, index; /* size: of the dim */
    const CcGroupRules *rules;
    bool *live, *part; /* by node */
    uint8_t *want;     /* by value */
} Narrow;

static const CcType *type_at(const Narrow *w, int value) { return &w->g->val.at[value].type; }

static bool has_dim(const Narrow *w, const CcType *t) { return t->ndim > w->right; }

static int64_t size_there(const Narrow *w, const CcType *t) { return t->size[t->ndim - 1 - w->right]; }

static void drop_dim(CcType *t, int right) { *t = cc_type_without_dim(t, t->ndim - 1 - right); }

static bool plain_node(const CcGraph *g, const CcNode *n) {
    const CcType *t = &g->val.at[n->out0].type;
    return n->n_out == 1 && !n->flags && t->ndim >= 0 && t->device == 1 && cc_type_contiguous(t);
}

/* The rows of attention: the last dim but one of q, of the mask and of the merged result. */
static bool attends_by_row(const Narrow *w, const CcNode *n) {
    CcIn_attend in;
    return n->op == CC_OP_attend && w->right == 1 && cc_in_attend(w->g, n, &in) && in.merged.i == 2 &&
           size_there(w, type_at(w, in.q.value)) == w->size;
}

/* Does this node treat each index of the dim independently? */
static bool by_index(const Narrow *w, const CcNode *n) {
    const CcOpKind kind = cc_node_kind(n);
    const CcType *out = type_at(w, n->out0);
    const CcExpr *e = cc_op_expr(w->g, n);
    if (!plain_node(w->g, n) || !has_dim(w, out) || size_there(w, out) != w->size || (e && cc_expr_counts(e)))
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (cc_graph_operand(w->g, n, i)->kind == CC_IN_VALUE &&
            type_at(w, cc_graph_operand(w->g, n, i)->value)->ndim < 0)
            return false;
    if (kind == CC_K_POINTWISE) return n->op != CC_OP_fill && n->op != CC_OP_fill_like && n->op != CC_OP_cast_like;
    if (kind == CC_K_ATTENTION) return attends_by_row(w, n);
    const int v = cc_graph_value(w->g, n, 0);
    if (v < 0 || type_at(w, v)->ndim != out->ndim) return false;
    if (n->op == CC_OP_linear) return w->right >= 1;
    if (kind != CC_K_NORM && kind != CC_K_SOFTMAX) return false;
    for (int i = 1; i < n->n_in; i++) /* weights stay whole */
        if (cc_graph_operand(w->g, n, i)->kind == CC_IN_VALUE &&
            has_dim(w, type_at(w, cc_graph_operand(w->g, n, i)->value)))
            return false;
    const int dims = cc_op_dims(w->g, n);
    return dims >= 0 && dims < 1 << w->right;
}

/* Does a partial node need this operand in part (or, if broadcast, without the dim)? */
static bool sliced(const Narrow *w, const CcNode *n, int i) {
    const int v = cc_graph_value(w->g, n, i);
    if (v < 0 || !has_dim(w, type_at(w, v))) return false;
    return i == 0 || cc_node_kind(n) == CC_K_POINTWISE || (n->op == CC_OP_attend && i == CC_AT(attend, mask));
}

/* Goes backwards: all readers of a value follow it, so its needs are complete when its node comes up. */
static void mark(Narrow *w) {
    const CcGraph *g = w->g;
    memset(w->part, 0, (size_t)g->node.n);
    for (int v = 0; v < g->val.n; v++) w->want[v] = g->val.at[v].is_output ? WHOLE : 0;
    for (int i = g->node.n - 1; i >= 0; i--) {
        const CcNode *n = &g->node.at[i];
        if (!w->live[i]) continue;
        w->part[i] = i < w->select && n->n_out == 1 && w->want[n->out0] == PART &&
                     !cc_group_banned(w->g, i, w->rules) && by_index(w, n);
        for (int k = 0; k < n->n_in; k++) {
            const int x = cc_graph_value(g, n, k);
            if (x < 0) continue;
            const bool some =
                (w->part[i] && sliced(w, n, k) && size_there(w, type_at(w, x)) == w->size) || i == w->select;
            w->want[x] |= some ? PART : WHOLE;
            if (g->val.at[x].window_of) w->want[cc_graph_base(g, x)] |= WHOLE;
        }
    }
}

static bool in_part(const Narrow *w, int value) {
    const int def = w->g->val.at[value].def;
    return def >= 0 && w->part[def];
}

/* It pays if a product shrinks. */
static bool worthwhile(const Narrow *w) {
    const CcNode *n = &w->g->node.at[w->select];
    bool product = false;
    for (int i = 0; i < w->select; i++) product = product || (w->part[i] && w->g->node.at[i].op == CC_OP_linear);
    return product && in_part(w, cc_graph_source(w->g, n));
}

/* A select whose result may be a fresh tensor: nothing depends on its strides or storage. */
static bool begin(Narrow *w, int node) {
    const CcGraph *g = w->g;
    const CcNode *n = &g->node.at[node];
    CcIn_select in;
    if (n->op != CC_OP_select || !w->live[node] || n->n_out != 1 || n->flags || g->val.at[n->out0].is_output ||
        !cc_in_select(g, n, &in) || in.dim.kind != CC_IN_INT || in.index.kind != CC_IN_INT)
        return false;
    const CcType *t = type_at(w, in.x.value);
    if (t->ndim < 2 || g->val.at[in.x.value].def < 0) return false;
    for (int i = node + 1; i < g->node.n; i++)
        for (int k = 0; w->live[i] && k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            const CcOpKind kind = cc_node_kind(&g->node.at[i]);
            if (v == n->out0 &&
                ((kind != CC_K_POINTWISE && kind != CC_K_MATMUL && kind != CC_K_NORM && kind != CC_K_SOFTMAX) ||
                 !plain_node(g, &g->node.at[i])))
                return false;
        }
    const int d = cc_graph_dim(t, &in.dim);
    if (d < 0) return false;
    w->select = node;
    w->right = t->ndim - 1 - d;
    w->size = t->size[d];
    w->index = in.index.i < 0 ? in.index.i + w->size : in.index.i;
    return w->index >= 0 && w->index < w->size;
}

/* A window of a value that stays whole; a broadcast dim is just dropped. */
static int add_window(const Narrow *w, int value) {
    CcVal v = w->g->val.at[value];
    const int d = v.type.ndim - 1 - w->right;
    const int64_t index = v.type.size[d] == 1 ? 0 : w->index;
    /* the base has memory; the value itself may be a window (queries beside keys and values) */
    v.window_of = cc_graph_base(w->g, value) + 1;
    v.offset += index * v.type.stride[d] * cc_dtype_size(v.type.dtype);
    v.is_output = false;
    drop_dim(&v.type, w->right);
    cc_vec_push(&w->g->val, v);
    return w->g->val.n - 1;
}

static void narrow_value(const Narrow *w, CcVal *v) {
    drop_dim(&v->type, w->right);
    cc_type_make_contiguous(&v->type);
    v->narrowed = true;
}

/* Makes windows first, while the types still show which operands need them. */
static void rewrite(const Narrow *w) {
    CcGraph *g = w->g;
    for (int i = 0; i < w->select; i++)
        for (int k = 0; w->part[i] && k < g->node.at[i].n_in; k++) {
            const int value = cc_graph_operand(g, &g->node.at[i], k)->value;
            if (!sliced(w, &g->node.at[i], k) || in_part(w, value)) continue;
            cc_edit_operand(g, i, k, value_of(add_window(w, value)));
        }
    for (int i = 0; i < w->select; i++) {
        if (!w->part[i]) continue;
        narrow_value(w, cc_edit_val(g, g->node.at[i].out0));
        if (g->node.at[i].op == CC_OP_attend) cc_edit_operand(g, i, CC_AT(attend, merged), int_of(1));
    }
    const CcOperand x = *cc_graph_operand(g, &g->node.at[w->select], 0);
    cc_edit_rewrite(g, w->select, CC_OP_copy, &x, 1);
    CcVal *made = cc_edit_val(g, g->node.at[w->select].out0);
    cc_type_make_contiguous(&made->type);
    made->narrowed = true;
}

void cc_narrow_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const size_t nodes = (size_t)g->node.n;
    bool any = false, done = false;
    for (int i = 0; i < g->node.n; i++) any = any || g->node.at[i].op == CC_OP_select;
    bool *flags = any ? calloc(2, nodes) : NULL;
    uint8_t *want = any ? malloc((size_t)g->val.n) : NULL;
    Narrow w = {.g = g, .rules = rules, .live = flags, .want = want};
    if (flags && want) {
        w.part = flags + nodes;
        cc_dce_mark(g, w.live);
        for (int i = g->node.n - 1; i >= 0 && !done; i--) {
            if (cc_group_banned(g, i, rules) || !begin(&w, i)) continue;
            mark(&w);
            done = worthwhile(&w);
            if (done) rewrite(&w);
        }
    }
    free(flags);
    free(want);
}
