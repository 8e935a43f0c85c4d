/* gcheck: the graph verifier. The compile pipeline runs it before anything reads the graph, so passes may assume a
 * valid graph; debug builds also check the graph after each rewrite and each pass. */
#include "ir.h"

static int check_operands(const CcGraph *g, int id, const CcNode *n, CcErr *err) {
    if (n->in0 < 0 || n->n_in < 0 || n->in0 + n->n_in > g->operand.n)
        return cc_err_set(err, CC_E_VERIFY, "node %d: operands out of range", id);
    if (n->out0 < 0 || n->n_out < 0 || n->out0 + n->n_out > g->val.n)
        return cc_err_set(err, CC_E_VERIFY, "node %d: results out of range", id);
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = &g->operand.at[n->in0 + i];
        if ((int)o->kind < CC_IN_NONE || o->kind > CC_IN_NUMBER)
            return cc_err_set(err, CC_E_VERIFY, "node %d: operand %d has no kind", id, i);
        if (o->kind != CC_IN_VALUE) continue;
        if (o->value < 0 || o->value >= g->val.n)
            return cc_err_set(err, CC_E_VERIFY, "node %d: operand %d names value %d", id, i, o->value);
        if (g->val.at[o->value].def >= id)
            return cc_err_set(err, CC_E_VERIFY, "node %d: operand %%%d is made by a later node", id, o->value);
    }
    for (int i = 0; i < n->n_out; i++)
        if (g->val.at[n->out0 + i].def != id)
            return cc_err_set(err, CC_E_VERIFY, "node %d: result %%%d names node %d as its maker", id, n->out0 + i,
                              g->val.at[n->out0 + i].def);
    return 0;
}

/* Does the expression read this operand, or only name it for the host (fill_like)? */
static bool reads(const CcGraph *g, const CcNode *n, int operand) {
    const CcExpr *e = cc_op_expr(g, n);
    return !e || cc_expr_reads(e, operand);
}

/* The result's shape is the broadcast of the tensor operands. A fill has no tensor operands and takes the recorded
 * shape; an expression that computes positions may have a larger result. */
static int check_broadcast(const CcGraph *g, int id, const CcNode *n, CcErr *err) {
    const CcType *out = &g->val.at[n->out0].type;
    bool any = false;
    int64_t size[CC_MAX_DIMS];
    for (int i = 0; i < CC_MAX_DIMS; i++) size[i] = 1;
    int ndim = 0;
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v < 0 || !reads(g, n, i)) continue;
        const CcType *t = &g->val.at[v].type;
        if (t->ndim < 0) return 0;
        any = true;
        ndim = CC_MAX(ndim, t->ndim);
        for (int d = 0; d < t->ndim; d++) {
            int64_t *s = &size[CC_MAX_DIMS - 1 - d];
            const int64_t mine = t->size[t->ndim - 1 - d];
            if (mine == 1 || mine == *s) continue;
            if (*s != 1)
                return cc_err_set(err, CC_E_VERIFY, "node %d (%s): operand %d does not broadcast", id,
                                  cc_op_info((CcOpId)n->op)->name, i);
            *s = mine;
        }
    }
    const CcExpr *e = cc_op_expr(g, n);
    const bool places = e && cc_expr_counts(e);
    bool equal = !any || ndim == out->ndim;
    for (int d = 0; any && equal && d < ndim; d++) {
        const int64_t wanted = size[CC_MAX_DIMS - 1 - d];
        equal = out->size[out->ndim - 1 - d] == wanted || (places && wanted == 1);
    }
    return equal ? 0
                 : cc_err_set(err, CC_E_VERIFY, "node %d (%s): the result's shape is not the operands' broadcast", id,
                              cc_op_info((CcOpId)n->op)->name);
}

static int check_dtype(const CcGraph *g, int id, const CcNode *n, CcErr *err) {
    const CcOpInfo *info = cc_op_info((CcOpId)n->op);
    const CcDtype out = (CcDtype)g->val.at[n->out0].type.dtype;
    const CcDtype common = cc_op_common(g, n, CC_DT_OTHER);
    const char *rule = info->promote;
    const char kind = cc_dtype_info(out)->kind, from = cc_dtype_info(common)->kind;
    bool good = true;
    if (out == CC_DT_OTHER) return 0;
    if (strncmp(rule, "cmp", 3) == 0 || strncmp(rule, "test", 4) == 0) good = kind == 'b';
    else if (strncmp(rule, "same", 4) == 0) good = common == CC_DT_OTHER || common == out;
    else if (strncmp(rule, "int", 3) == 0) good = kind != 'f' && (common == CC_DT_OTHER || common == out);
    else if (strncmp(rule, "float", 5) == 0) good = kind == 'f' && (from != 'f' || common == out);
    /* autocast has cast the operands (pass/autocast.c) */
    good = good || (kind == 'f' && from == 'f' && out != CC_DT_F64 && common != CC_DT_F64);
    return good ? 0
                : cc_err_set(err, CC_E_VERIFY, "node %d (%s): result dtype %s does not follow from the operands (%s)",
                             id, info->name, cc_dtype_info(out)->name, cc_dtype_info(common)->name);
}

static int check_rules(const CcGraph *g, int id, CcErr *err) {
    const CcNode *n = &g->node.at[id];
    if (n->op >= CC_OP_ROWS) return cc_err_set(err, CC_E_VERIFY, "node %d: no op %d exists", id, n->op);
    const CcOpInfo *info = cc_op_info((CcOpId)n->op);
    int ints, rest;
    if (!cc_operands_count(n, &ints, &rest))
        return cc_err_set(err, CC_E_VERIFY, "node %d (%s): the op has no form with %d operands", id, info->name,
                          n->n_in);
    if (info->kind != CC_K_POINTWISE && info->kind != CC_K_MATMUL) return 0;
    const bool in_place = n->n_out == 0 && n->flags & CC_N_WRITES && info->kind == CC_K_POINTWISE;
    if (n->n_out != 1 && !in_place)
        return cc_err_set(err, CC_E_VERIFY, "node %d (%s): %d results, 1 expected", id, info->name, n->n_out);
    /* In-place and out= forms convert to the dtype and shape of the written tensor; the host runs them. */
    if (info->kind == CC_K_MATMUL || (n->flags & CC_N_WRITES) || g->val.at[n->out0].type.ndim < 0) return 0;
    return check_broadcast(g, id, n, err) < 0 ? -1 : check_dtype(g, id, n, err);
}

/* Byte range of a value's elements in memory, relative to its first element. */
static void reach(const CcType *t, int64_t *from, int64_t *to) {
    const int64_t each = cc_dtype_size(t->dtype);
    int64_t least = 0, most = 0;
    for (int d = 0; d < t->ndim; d++) {
        const int64_t step = (t->size[d] - 1) * t->stride[d];
        if (step < 0) least += step;
        else most += step;
    }
    *from = least * each;
    *to = (most + 1) * each;
}

/* A window needs a base with memory and stays inside it. */
static int check_window(const CcGraph *g, int v, CcErr *err) {
    const int base = cc_graph_base(g, v);
    if (base < 0 || base >= g->val.n || (base != v && g->val.at[base].window_of))
        return cc_err_set(err, CC_E_VERIFY, "value %%%d: window of value %d, which has no memory", v, base);
    const CcType *t = &g->val.at[v].type, *whole = &g->val.at[base].type;
    if (base == v || t->ndim < 0 || whole->ndim < 0 || !cc_type_numel(t) || !cc_type_numel(whole)) return 0;
    int64_t from, to, begin, end;
    reach(t, &from, &to);
    reach(whole, &begin, &end);
    if (from + g->val.at[v].offset >= begin && to + g->val.at[v].offset <= end) return 0;
    return cc_err_set(err, CC_E_VERIFY,
                      "value %%%d: window of bytes %lld to %lld of %%%d, which has bytes %lld to %lld", v,
                      (long long)(from + g->val.at[v].offset), (long long)(to + g->val.at[v].offset), base,
                      (long long)begin, (long long)end);
}

int cc_graph_check_windows(const CcGraph *g, CcErr *err) {
    for (int v = 0; v < g->val.n; v++)
        if (check_window(g, v, err) < 0) return -1;
    return 0;
}

/* The operands of a product agree on the size of the summed dim. */
static int check_inner(const CcGraph *g, int id, const CcNode *n, CcErr *err) {
    const bool linear = n->op == CC_OP_linear, plain = n->op == CC_OP_matmul || n->op == CC_OP_mm || n->op == CC_OP_bmm;
    const CcOperand *a = n->n_in > 1 ? cc_graph_operand(g, n, 0) : NULL, *b = a ? cc_graph_operand(g, n, 1) : NULL;
    if ((!linear && !plain) || !b || a->kind != CC_IN_VALUE || b->kind != CC_IN_VALUE) return 0;
    const CcType *x = &g->val.at[a->value].type, *w = &g->val.at[b->value].type;
    const int row = linear || w->ndim == 1 ? w->ndim - 1 : w->ndim - 2;
    if (x->ndim < 1 || w->ndim < 1 || x->size[x->ndim - 1] == w->size[row]) return 0;
    return cc_err_set(err, CC_E_VERIFY, "node %d (%s): the operands' summed dims differ: %lld and %lld elements", id,
                      cc_op_info((CcOpId)n->op)->name, (long long)x->size[x->ndim - 1], (long long)w->size[row]);
}

/* Checks the result's sizes as far as they follow from the operands. A product may store its result in another shape
 * (pass/views.c). */
static int check_sizes(const CcGraph *g, int id, const CcNode *n, CcErr *err) {
    CcType out;
    if (n->n_out != 1 || !cc_infer_node(g, id, g, &out)) return 0;
    const CcType *t = &g->val.at[n->out0].type;
    const bool product = cc_node_kind(n) == CC_K_MATMUL;
    if (product ? cc_type_numel(t) == cc_type_numel(&out) : cc_type_same_shape(t, &out)) return 0;
    return cc_err_set(err, CC_E_VERIFY, "node %d (%s): the result's sizes do not follow from the operands", id,
                      cc_op_info((CcOpId)n->op)->name);
}

int cc_graph_check_node(const CcGraph *g, int id, CcErr *err) {
    const CcNode *n = &g->node.at[id];
    if (n->in0 < 0 || n->n_in < 0 || n->in0 + n->n_in > g->operand.n || n->out0 < 0 || n->n_out < 0 ||
        n->out0 + n->n_out > g->val.n)
        return cc_err_set(err, CC_E_VERIFY, "node %d: operands or results out of range", id);
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind != CC_IN_VALUE) continue;
        if (o->value < 0 || o->value >= g->val.n)
            return cc_err_set(err, CC_E_VERIFY, "node %d: operand %d names value %d", id, i, o->value);
        if (check_window(g, o->value, err) < 0) return -1;
    }
    for (int i = 0; i < n->n_out; i++)
        if (check_window(g, n->out0 + i, err) < 0) return -1;
    if (check_rules(g, id, err) < 0) return -1;
    const CcOperandSpec *wrong = cc_operands_wrong(g, n);
    if (wrong)
        return cc_err_set(err, CC_E_VERIFY, "node %d (%s): operand '%s' is missing or has the wrong kind", id,
                          cc_op_info((CcOpId)n->op)->name, wrong->name);
    if (check_inner(g, id, n, err) < 0) return -1;
    return check_sizes(g, id, n, err);
}

/* Is this value a result of its `def` node, or a window of memory that this node makes or writes? */
static bool is_made(const CcGraph *g, int value, int node) {
    const CcNode *n = &g->node.at[node];
    for (int i = 0; i < n->n_out; i++)
        if (n->out0 + i == value || cc_graph_base(g, n->out0 + i) == cc_graph_base(g, value)) return true;
    return false;
}

/* Each slot of CcGraph.operand belongs to one node: cc_edit_operand() would change a shared slot for all owners. */
static int check_slots(const CcGraph *g, CcErr *err) {
    bool *taken = cc_mem_get((size_t)g->operand.n + 1);
    int shared = -1;
    for (int id = 0; id < g->node.n; id++)
        for (int i = 0; i < g->node.at[id].n_in; i++) {
            bool *slot = &taken[g->node.at[id].in0 + i];
            if (*slot) shared = id;
            *slot = true;
        }
    free(taken);
    return shared < 0 ? 0 : cc_err_set(err, CC_E_VERIFY, "node %d: shares its operand slots with another node", shared);
}

int cc_graph_check_rewritten(const CcGraph *g, const bool *live, CcErr *err) {
    if (cc_graph_check_windows(g, err) < 0 || check_slots(g, err) < 0) return -1;
    for (int id = 0; id < g->node.n; id++) {
        const CcNode *n = &g->node.at[id];
        if (!live[id]) continue;
        if (cc_graph_check_node(g, id, err) < 0) return -1;
        for (int i = 0; i < n->n_in; i++) {
            const int v = cc_graph_value(g, n, i);
            const int def = v >= 0 ? g->val.at[cc_graph_base(g, v)].def : -1;
            if (def >= id) return cc_err_set(err, CC_E_VERIFY, "node %d: operand %%%d is made by node %d", id, v, def);
            if (def >= 0 && !is_made(g, v, def))
                return cc_err_set(err, CC_E_VERIFY, "node %d: operand %%%d is not a result of node %d", id, v, def);
        }
    }
    return 0;
}

int cc_graph_check_structure(const CcGraph *g, CcErr *err) {
    for (int i = 0; i < g->val.n; i++) {
        const CcVal *v = &g->val.at[i];
        if (v->type.ndim > CC_MAX_DIMS) return cc_err_set(err, CC_E_VERIFY, "value %%%d: too many dims", i);
        if (v->def < -1 || v->def >= g->node.n)
            return cc_err_set(err, CC_E_VERIFY, "value %%%d: bad def %d", i, v->def);
        if (v->def < 0) continue;
        const CcNode *n = &g->node.at[v->def];
        if (i < n->out0 || i >= n->out0 + n->n_out)
            return cc_err_set(err, CC_E_VERIFY, "value %%%d is not a result of node %d", i, v->def);
    }
    for (int i = 0; i < g->node.n; i++)
        if (check_operands(g, i, &g->node.at[i], err) < 0) return -1;
    return 0;
}

int cc_graph_check(const CcGraph *g, CcErr *err) {
    if (cc_graph_check_structure(g, err) < 0) return -1;
    for (int i = 0; i < g->node.n; i++)
        if (check_rules(g, i, err) < 0) return -1;
    return 0;
}
