/* writes: at indices, to slices and to diagonals, as kernels of a GPU. Where elements lie is reach.c's form; a kernel
 * goes over what is written and finds its place in x, which may be one for several of them:
 *
 *   y = index_add(x, 0, i, s)   ->   y = copy(x); put_at(y, s, sum, i ...)            put_at writes y's memory
 *   x.index_copy_(1, i, s)      ->   put_at(x, s, set, i ...)
 *   y = slice_scatter(x, s)     ->   y = copy(x); fill_like(y[a:b], s)
 *
 * Which of several elements of one place stays, and in which order floats are summed, is left open, as by eager's
 * kernels of GPUs. Left to torch: sums of floats by index_put, which its kernel sorts first; means; with
 * CcGroupRules.ordered all that is left open. */
#include <math.h>

#include "pass_int.h"

typedef enum How { HOW_SET, HOW_SUM, HOW_PROD, HOW_MEAN, HOW_MAX, HOW_MIN } How; /* ops.def: scatter */

typedef struct Write {
    CcReach r;
    CcOperand source;
    How how;
    bool fresh;                /* x's own elements do not take part */
    bool sorted;               /* eager's sums have an order */
    double scale;              /* of the source */
    int64_t step[CC_MAX_DIMS]; /* of the source, elements */
} Write;

/* ------------------------------------------------------------------ understanding a node */

static int source_of(const CcNode *n) {
    switch (n->op) {
    case CC_OP_scatter:
    case CC_OP_index_add:
    case CC_OP_index_copy:
    case CC_OP_index_fill: return 3;
    case CC_OP_index_put: return n->n_in - 2;
    case CC_OP_put:
    case CC_OP_slice_scatter:
    case CC_OP_diagonal_scatter: return 1;
    default: return -1;
    }
}

static bool read_how(const CcGraph *g, const CcNode *n, Write *w) {
    const CcOperand *last = cc_graph_operand(g, n, n->n_in - 1);
    w->scale = 1;
    if (n->op == CC_OP_scatter) {
        const CcOperand *own = cc_graph_operand(g, n, 4);
        if (n->n_in != 6 || last->kind != CC_IN_INT || own->kind == CC_IN_VALUE || last->i < HOW_SET ||
            last->i > HOW_MIN)
            return false;
        w->how = (How)last->i;
        w->fresh = w->how != HOW_SET && !own->i;
    } else if (n->op == CC_OP_index_add) {
        if (n->n_in != 5 || (last->kind != CC_IN_INT && last->kind != CC_IN_FLOAT)) return false;
        w->how = HOW_SUM;
        w->scale = last->kind == CC_IN_INT ? (double)last->i : last->f;
    } else if (n->op == CC_OP_index_put) {
        if (last->kind == CC_IN_VALUE || last->kind == CC_IN_NONE) return false;
        w->how = last->i ? HOW_SUM : HOW_SET;
        w->sorted = last->i;
    }
    return w->how != HOW_MEAN;
}

/* How the source is seen by the space: from the right; scatter's may be larger. */
static bool read_source(const CcGraph *g, const CcNode *n, CcDtype dt, Write *w) {
    const CcOperand *o = &w->source;
    const CcType *space = &w->r.space;
    if (o->kind == CC_IN_NONE) return false;
    if (o->kind != CC_IN_VALUE) return true;
    const CcType *t = &g->val.at[o->value].type;
    if (t->ndim < 0 || t->device != 1 || t->dtype == CC_DT_OTHER || (t->dtype != dt && n->op != CC_OP_put))
        return false;
    const int behind = space->ndim - t->ndim;
    for (int d = 0; d < -behind; d++)
        if (t->size[d] != 1) return false;
    for (int d = CC_MAX(0, behind); d < space->ndim; d++) {
        const int64_t own = t->size[d - behind];
        if (n->op == CC_OP_scatter ? own < space->size[d] : own != 1 && own != space->size[d]) return false;
        w->step[d] = own == 1 ? 0 : t->stride[d - behind];
    }
    return true;
}

/* Is the same left there, whatever comes first? */
static bool is_ordered(const CcGraph *g, const Write *w, CcDtype dt) {
    const bool number = w->source.kind != CC_IN_VALUE || cc_type_numel(&g->val.at[w->source.value].type) == 1;
    if (w->r.n == 0) return true;
    if (w->how == HOW_SET) return number;
    return cc_dtype_info(dt)->kind != 'f' || w->how == HOW_MAX || w->how == HOW_MIN;
}

static bool can_meet(How how, CcDtype dt) {
    const bool half = dt == CC_DT_F16 || dt == CC_DT_BF16;
    return how == HOW_SET || half || dt == CC_DT_F32 || dt == CC_DT_F64 || dt == CC_DT_I32 || dt == CC_DT_I64;
}

/* x: what is written, as the op knows it. */
static bool understand(const CcGraph *g, const CcNode *n, const CcType *x, const CcGroupRules *rules, Write *w) {
    *w = (Write){0};
    const int source = source_of(n);
    const CcDtype dt = (CcDtype)x->dtype;
    if (!rules->scatters || source < 0 || source >= n->n_in || x->ndim < 0 || x->device != 1 || dt == CC_DT_OTHER)
        return false;
    w->source = *cc_graph_operand(g, n, source);
    if (!cc_reach_read(g, n, x, &w->r) || (w->r.n && w->r.index[0].mask) || cc_type_numel(&w->r.space) == 0)
        return false;
    for (int k = 0; k < w->r.n; k++)
        if (g->val.at[w->r.index[k].value].type.device != 1 || g->val.at[w->r.index[k].value].scalar) return false;
    w->r.space.dtype = x->dtype;
    if (!read_how(g, n, w) || !read_source(g, n, dt, w) || !can_meet(w->how, dt)) return false;
    if (w->scale != 1 && (w->source.kind != CC_IN_VALUE || dt == CC_DT_F16 || dt == CC_DT_BF16)) return false;
    if (w->sorted && cc_dtype_info(dt)->kind == 'f') return false;
    return !rules->ordered || is_ordered(g, w, dt);
}

/* ------------------------------------------------------------------ making nodes */

/* A window with these steps: of one element where it does not move. */
static int window_of(CcGraph *g, const Write *w, int value, const int64_t *step) {
    CcType t = g->val.at[value].type;
    t.ndim = w->r.space.ndim;
    for (int d = 0; d < t.ndim; d++) {
        t.size[d] = step[d] ? w->r.space.size[d] : 1;
        t.stride[d] = step[d];
    }
    return cc_views_window(g, value, &t);
}

static CcOperand seen_source(CcGraph *g, const Write *w) {
    return w->source.kind == CC_IN_VALUE ? value_of(window_of(g, w, w->source.value, w->step)) : w->source;
}

/* The place in x as the node's result. */
static void set_result(CcGraph *g, int node, int x, const Write *w) {
    CcVal v = g->val.at[x];
    v.type = w->r.space;
    v.def = node;
    v.is_output = v.frozen = v.narrowed = false;
    v.hidden = true;
    v.window_of = cc_graph_base(g, x) + 1;
    v.offset += w->r.offset * cc_dtype_info((CcDtype)v.type.dtype)->size;
    CcNode *n = cc_edit_node(g, node);
    n->out0 = g->val.n;
    n->n_out = 1;
    n->flags = CC_N_WRITES;
    n->rewritten = true;
    cc_vec_push(&g->val, v);
}

/* The node writes x. */
static void set_write(CcGraph *g, int node, int x, const Write *w, CcOperand source, How how) {
    int index[CC_MAX_DIMS];
    for (int k = 0; k < w->r.n; k++) index[k] = window_of(g, w, w->r.index[k].value, w->r.index[k].step);
    const int in0 = g->operand.n;
    cc_vec_push(&g->operand, value_of(x));
    cc_vec_push(&g->operand, source);
    if (w->r.n) cc_vec_push(&g->operand, int_of(how));
    for (int k = 0; k < w->r.n; k++) {
        cc_vec_push(&g->operand, value_of(index[k]));
        cc_vec_push(&g->operand, int_of(w->r.index[k].count));
        cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_BOOL, .i = w->r.index[k].ends});
        cc_vec_push(&g->operand, int_of(w->r.index[k].by));
    }
    cc_edit_slots(g, node, in0, g->operand.n - in0);
    g->node.at[node].op = w->r.n ? CC_OP_put_at : CC_OP_fill_like;
    set_result(g, node, x, w);
}

/* Memory that the op itself made: that it is written is nobody's business. */
static void add_write(Parts *p, const Write *w, CcOperand source, How how) {
    cc_parts_add(p, CC_OP_put_at, -1, &w->r.space, 0);
    const int node = p->first + p->n - 1;
    set_write(p->g, node, p->whole.out0, w, source, how);
    p->g->node.at[node].again = true;
}

/* What a product, or the greatest, begins with. */
static CcOperand neutral(How how, CcDtype dt) {
    const bool wide = dt == CC_DT_I64;
    if (how == HOW_PROD || how == HOW_SUM) return int_of(how == HOW_PROD);
    if (cc_dtype_info(dt)->kind == 'f') return float_of(how == HOW_MAX ? -INFINITY : INFINITY);
    return int_of(how == HOW_MAX ? (wide ? INT64_MIN : INT32_MIN) : wide ? INT64_MAX : INT32_MAX);
}

bool cc_writes_may(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    Write w;
    if (n->n_out != 1 || n->flags || source_of(n) < 0 || cc_graph_operand(g, n, 0)->kind != CC_IN_VALUE) return false;
    const CcType *x = &g->val.at[cc_graph_operand(g, n, 0)->value].type, *out = &g->val.at[n->out0].type;
    if (x->dtype != out->dtype || !cc_type_same_shape(x, out) || !cc_type_dense(out) ||
        !understand(g, n, out, rules, &w))
        return false;
    if (w.r.n == 0) return n->op != CC_OP_put; /* one loop does it (loop/tap.c) */
    return rules->asserts || cc_index_may(g, (int)(n - g->node.at));
}

bool cc_writes_make(Parts *p) {
    static const CcGroupRules ALL = {.scatters = true};
    Write w;
    const CcType out = p->g->val.at[p->whole.out0].type;
    if (!understand(p->g, &p->whole, &out, &ALL, &w)) return false;
    if (w.scale != 1) {
        const CcType t = type_of(p, w.source);
        CcType made = t;
        cc_type_make_contiguous(&made);
        w.source = cc_parts_add(p, CC_OP_mul, -1, &made, 2, w.source, float_of(w.scale));
        if (!read_source(p->g, &p->whole, (CcDtype)out.dtype, &w)) return false;
    }
    cc_parts_add(p, CC_OP_copy, p->whole.out0, NULL, 1, operand(p, 0));
    if (w.fresh) add_write(p, &w, neutral(w.how, (CcDtype)out.dtype), HOW_SET);
    add_write(p, &w, seen_source(p->g, &w), w.how);
    return true;
}

bool cc_writes_into(CcGraph *g, int node, const CcGroupRules *rules) {
    Write w;
    const CcNode *n = &g->node.at[node];
    const int x = cc_graph_operand(g, n, 0)->value;
    if (!understand(g, n, &g->val.at[x].type, rules, &w) || w.fresh || w.scale != 1) return false;
    if (w.r.n && !rules->asserts && !cc_index_may(g, node)) return false;
    set_write(g, node, x, &w, seen_source(g, &w), w.how);
    return true;
}
