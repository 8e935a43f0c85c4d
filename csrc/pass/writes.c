/* writes: turns writes at indices, to slices and to diagonals into GPU kernels. reach.c gives the written positions
 * as a space; a kernel iterates over the space and computes each position in x, which several iterations may share:
 *
 *   y = index_add(x, 0, i, s)   ->   y = copy(x); put_at(y, s, sum, i ...)            put_at writes y's memory
 *   x.index_copy_(1, i, s)      ->   put_at(x, s, set, i ...)
 *   y = slice_scatter(x, s)     ->   y = copy(x); fill_like(y[a:b], s)
 *
 * The order of iterations is open, as in eager's GPU kernels: it decides which of several elements for one position
 * stays, and how float sums round. Left to torch: float sums of index_put, whose kernel sorts first; means; under
 * CcGroupRules.ordered everything that depends on the order. */
#include "pass_int.h"

typedef struct Write {
    CcReach r;
    CcStore is;
    int64_t step[CC_MAX_DIMS]; /* strides of the source, in elements */
} Write;

/* ------------------------------------------------------------------ understanding a node */

static bool read_source(const CcGraph *g, const CcNode *n, CcDtype dt, Write *w) {
    const CcOperand *o = &w->is.source;
    if (o->kind == CC_IN_NONE) return false;
    if (o->kind != CC_IN_VALUE) return true;
    const CcType *t = &g->val.at[o->value].type;
    if (!cc_type_known(t) || (t->dtype != dt && n->op != CC_OP_put)) return false;
    return cc_store_steps(g, n, &w->is, &w->r.space, w->step);
}

/* Is the result independent of the order of iterations? */
static bool is_ordered(const CcGraph *g, const Write *w, CcDtype dt) {
    const bool number = w->is.source.kind != CC_IN_VALUE || cc_type_numel(&g->val.at[w->is.source.value].type) == 1;
    if (w->r.n == 0) return true;
    if (w->is.how == CC_PUT_SET) return number;
    return !cc_dtype_is_float(dt) || w->is.how == CC_PUT_MAX || w->is.how == CC_PUT_MIN;
}

static bool can_meet(CcPutHow how, CcDtype dt) {
    const bool half = cc_dtype_is_half(dt);
    return how == CC_PUT_SET || half || dt == CC_DT_F32 || dt == CC_DT_F64 || dt == CC_DT_I32 || dt == CC_DT_I64;
}

/* The written tensor, as the op names it. */
static bool understand(const CcGraph *g, const CcNode *n, const CcType *x, const CcGroupRules *rules, Write *w) {
    *w = (Write){0};
    const CcDtype dt = (CcDtype)x->dtype;
    if (!rules->scatters || !cc_type_known(x) || !cc_store_read(g, n, &w->is) || w->is.how == CC_PUT_MEAN) return false;
    if (!cc_reach_read(g, n, x, &w->r) || (w->r.n && w->r.index[0].mask) || cc_type_numel(&w->r.space) == 0)
        return false;
    for (int k = 0; k < w->r.n; k++)
        if (g->val.at[w->r.index[k].value].type.device != 1 || g->val.at[w->r.index[k].value].scalar) return false;
    w->r.space.dtype = x->dtype;
    if (!read_source(g, n, dt, w) || !can_meet(w->is.how, dt)) return false;
    if (w->is.scale != 1 && (w->is.source.kind != CC_IN_VALUE || cc_dtype_is_half(dt))) return false;
    if (w->is.sorted && cc_dtype_is_float(dt)) return false;
    return !rules->ordered || is_ordered(g, w, dt);
}

/* ------------------------------------------------------------------ making nodes */

static CcOperand seen_source(CcGraph *g, const Write *w) {
    return w->is.source.kind == CC_IN_VALUE ? cc_reach_window(g, &w->r, w->is.source.value, w->step, 0) : w->is.source;
}

/* The node's result: a window on the written positions of x. */
static void set_result(CcGraph *g, int node, int x, const Write *w) {
    CcVal v = g->val.at[x];
    v.type = w->r.space;
    v.def = node;
    v.is_output = v.frozen = v.narrowed = false;
    v.hidden = true;
    v.window_of = cc_graph_base(g, x) + 1;
    v.offset += w->r.offset * cc_dtype_size(v.type.dtype);
    CcNode *n = cc_edit_node(g, node);
    n->out0 = g->val.n;
    n->n_out = 1;
    n->flags = CC_N_WRITES;
    n->rewritten = true;
    cc_vec_push(&g->val, v);
}

/* The node writes x. */
static void set_write(CcGraph *g, int node, int x, const Write *w, CcOperand source, CcPutHow how) {
    CcOperand index[CC_MAX_DIMS];
    for (int k = 0; k < w->r.n; k++) index[k] = cc_reach_window(g, &w->r, w->r.index[k].value, w->r.index[k].step, 0);
    const int in0 = g->operand.n;
    cc_vec_push(&g->operand, value_of(x));
    cc_vec_push(&g->operand, source);
    if (w->r.n) cc_vec_push(&g->operand, int_of(how));
    for (int k = 0; k < w->r.n; k++) {
        cc_vec_push(&g->operand, index[k]);
        cc_vec_push(&g->operand, int_of(w->r.index[k].count));
        cc_vec_push(&g->operand, bool_of(w->r.index[k].ends));
        cc_vec_push(&g->operand, int_of(w->r.index[k].by));
    }
    cc_edit_slots(g, node, in0, g->operand.n - in0);
    g->node.at[node].op = w->r.n ? CC_OP_put_at : CC_OP_fill_like;
    set_result(g, node, x, w);
}

/* The op wrote memory that it made itself, so the write is not visible outside. */
static void add_write(Parts *p, const Write *w, CcOperand source, CcPutHow how) {
    cc_parts_add_in(p, CC_OP_put_at, -1, &w->r.space, NULL, 0);
    const int node = p->first + p->n - 1;
    set_write(p->g, node, p->whole.out0, w, source, how);
    p->g->node.at[node].repeatable = true;
}

bool cc_writes_may(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    Write w;
    if (n->n_out != 1 || n->flags || cc_node_kind(n) != CC_K_SCATTER || cc_graph_source(g, n) < 0) return false;
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type, *out = &g->val.at[n->out0].type;
    if (x->dtype != out->dtype || !cc_type_same_shape(x, out) || !cc_type_dense(out) ||
        !understand(g, n, out, rules, &w))
        return false;
    if (w.r.n == 0) return n->op != CC_OP_put && n->op != CC_OP_select_scatter; /* one loop does those (loop/tap.c) */
    return rules->asserts || cc_index_may(g, (int)(n - g->node.at));
}

bool cc_writes_make(Parts *p) {
    static const CcGroupRules ALL = {.scatters = true};
    Write w;
    const CcType out = p->g->val.at[p->whole.out0].type;
    if (!understand(p->g, &p->whole, &out, &ALL, &w)) return false;
    if (w.is.scale != 1) {
        const CcType t = type_of(p, w.is.source);
        CcType made = t;
        cc_type_make_contiguous(&made);
        w.is.source = cc_parts_add(p, CC_OP_mul, -1, &made, w.is.source, float_of(w.is.scale));
        if (!read_source(p->g, &p->whole, (CcDtype)out.dtype, &w)) return false;
    }
    cc_parts_add(p, CC_OP_copy, p->whole.out0, NULL, operand(p, 0));
    if (w.is.fresh) add_write(p, &w, cc_store_neutral(w.is.how, (CcDtype)out.dtype), CC_PUT_SET);
    add_write(p, &w, seen_source(p->g, &w), w.is.how);
    return true;
}

bool cc_writes_into(CcGraph *g, int node, const CcGroupRules *rules) {
    Write w;
    const CcNode *n = &g->node.at[node];
    const int x = cc_graph_source(g, n);
    if (!understand(g, n, &g->val.at[x].type, rules, &w) || w.is.fresh || w.is.scale != 1) return false;
    if (w.r.n && !rules->asserts && !cc_index_may(g, node)) return false;
    set_write(g, node, x, &w, seen_source(g, &w), w.is.how);
    return true;
}
