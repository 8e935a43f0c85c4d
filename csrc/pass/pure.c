/* pure: in-place ops on memory that the graph made become ops with a result of their own.
 *
 *   %3 = conv(..)  relu_(%3)  %4 = max_pool(%3)      %9 = conv(..)  %3 = relu(%9)  %4 = max_pool(%3)
 *
 * The last version keeps the value's number, so the host finds it there; earlier ones are hidden from the host.
 * Nothing else may know the memory: up to the last write, all readers are ops whose results have memory of their
 * own, and none of them runs on the host. Views may be read before the next write, and x[a:b] += y becomes an
 * addition whose result is put into x. */
#include <limits.h>

#include "pass_int.h"

enum { MAX_STEPS = 8 };

/* x[a:b] += y: a view, nodes that write it, and the node that puts it back into its base. */
typedef struct Part {
    int view, put, n;
    int write[MAX_STEPS];
} Part;

typedef struct Pure {
    CcGraph *g;
    const CcGroupRules *rules;
    int *write; /* nodes that write the current value */
    int n_write;
    CC_VEC(Part) part; /* views of the value that are written */
    /* readers in the given graph, whose number of values `readers` covers: valid for nodes that are not yet
     * rewritten */
    CcReaders readers;
    int values;
} Pure;

bool cc_pure_is_write(const CcGraph *g, const CcNode *n) {
    return n->flags == CC_N_WRITES && n->n_out == 0 && cc_graph_source(g, n) >= 0 &&
           (cc_node_kind(n) == CC_K_POINTWISE || cc_node_kind(n) == CC_K_SCATTER);
}

/* Integers with an integer common dtype: no operand is fractional. */
static bool whole_numbers(const CcGraph *g, const CcNode *n, CcDtype dt) {
    const char kind = cc_dtype_info(dt)->kind;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind == CC_IN_FLOAT || o->kind == CC_IN_NUMBER) return false;
    }
    return (kind == 'i' || kind == 'u') && strncmp(cc_op_info((CcOpId)n->op)->promote, "same", 4) == 0;
}

static bool truths(const CcOpInfo *info, const CcType *to) {
    return to->dtype == CC_DT_BOOL && (strcmp(info->promote, "int") == 0 || strcmp(info->promote, "test") == 0);
}

/* Does the pure op give what the in-place op leaves? True for numbers of one dtype, broadcast to the target; for
 * scatters and masked fills, for all dtypes. */
bool cc_pure_writes_same(const CcGraph *g, const CcNode *n) {
    const CcOpInfo *info = cc_op_info((CcOpId)n->op);
    const CcType *to = &g->val.at[cc_graph_source(g, n)].type;
    const bool fills = n->op == CC_OP_masked_fill;
    if (info->kind == CC_K_SCATTER) return true;
    const bool alike = strncmp(info->promote, "same", 4) == 0 && cc_op_common(g, n, CC_DT_OTHER) == (CcDtype)to->dtype;
    const bool floats =
        cc_dtype_is_float(to->dtype) && strncmp(info->promote, "cmp", 3) != 0 && strncmp(info->promote, "test", 4) != 0;
    if (!fills && !floats && !whole_numbers(g, n, (CcDtype)to->dtype) && !truths(info, to)) return false;
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v < 0) continue;
        const CcType *t = &g->val.at[v].type;
        if ((t->dtype != to->dtype && !(fills && i == 1) && !alike) || t->ndim < 0 || t->ndim > to->ndim) return false;
        for (int d = 1; d <= t->ndim; d++)
            if (t->size[t->ndim - d] != 1 && t->size[t->ndim - d] != to->size[to->ndim - d]) return false;
    }
    return true;
}

/* Do this node's results have memory of their own, apart from its operands? */
static bool keeps_apart(const CcNode *n) {
    const CcOpKind kind = cc_node_kind(n);
    return kind != CC_K_HOST && kind != CC_K_VIEW && n->n_out == 1 && !n->flags;
}

static bool names(const CcGraph *g, const CcNode *n, int value) {
    for (int k = 0; k < n->n_in; k++)
        if (cc_graph_value(g, n, k) == value) return true;
    return false;
}

static bool is_view(const CcGraph *g, const CcNode *n) {
    return cc_op_is_view(n->op) && !n->flags && n->n_out == 1 && cc_graph_source(g, n) >= 0;
}

/* The last node that reads this view, or a view of it; INT_MAX: unknown readers may exist. Nodes that write the view
 * are added to `part`. */
static int last_read(const Pure *p, int view, Part *part) {
    const CcGraph *g = p->g;
    int last = g->val.at[view].def, before = -1;
    bool viewed = false;
    if (view >= p->values || g->val.at[view].is_output) return INT_MAX;
    for (int r = p->readers.begin[view]; r < p->readers.begin[view + 1] && last < INT_MAX; r++) {
        const int i = p->readers.node[r];
        const CcNode *n = &g->node.at[i];
        if (i == before || !names(g, n, view)) continue;
        before = i;
        last = CC_MAX(last, i);
        if (is_view(g, n)) {
            last = CC_MAX(last, last_read(p, n->out0, NULL));
            viewed = true;
        } else if (n->flags == CC_N_WRITES && n->n_out == 0 && cc_graph_source(g, n) != view) {
            continue; /* counted where it is written */
        } else if (part && cc_pure_is_write(g, n) && cc_pure_writes_same(g, n) && part->n < MAX_STEPS) {
            part->write[part->n++] = i;
        } else if (!keeps_apart(n)) {
            last = INT_MAX;
        }
    }
    return viewed && part && part->n ? INT_MAX : last;
}

/* Does this node put the view back where it comes from? */
bool cc_pure_puts_back(const CcGraph *g, int node, int value, int view) {
    const CcNode *n = &g->node.at[node], *def = &g->node.at[g->val.at[view].def];
    const CcType *x = &g->val.at[value].type, *v = &g->val.at[view].type;
    CcReach r;
    int64_t offset;
    if (n->op != CC_OP_put || n->n_in < 2 || cc_graph_source(g, n) != value || !cc_reach_read(g, n, x, &r) || r.n)
        return false;
    if (cc_graph_value(g, n, 1) != view || cc_graph_source(g, def) != value || !cc_views_offset(g, def, &offset) ||
        offset != r.offset || !cc_type_same_shape(v, &r.space))
        return false;
    for (int d = 0; d < v->ndim; d++)
        if (v->size[d] > 1 && v->stride[d] != r.space.stride[d]) return false;
    return true;
}

/* The root of a chain of views. */
static int root_of(const CcGraph *g, int value) {
    while (g->val.at[value].def >= 0 && is_view(g, &g->node.at[g->val.at[value].def]))
        value = cc_graph_source(g, &g->node.at[g->val.at[value].def]);
    return value;
}

static bool untouched(const CcGraph *g, int value, int but, int from, int to) {
    for (int i = from + 1; i < to; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            if (v >= 0 && v != but && root_of(g, v) == value) return false;
        }
    return true;
}

/* May this view be a view of the version that exists when the view is made? */
static bool view_passes(Pure *p, int node, int value) {
    const CcGraph *g = p->g;
    Part part = {.view = g->node.at[node].out0, .put = g->node.n};
    if (!is_view(g, &g->node.at[node])) return false;
    for (int r = p->readers.begin[value + 1] - 1; r >= p->readers.begin[value] && p->readers.node[r] > node; r--) {
        const int i = p->readers.node[r];
        if (g->node.at[i].flags & CC_N_WRITES && names(g, &g->node.at[i], value) &&
            cc_graph_source(g, &g->node.at[i]) == value)
            part.put = i;
    }
    const int last = last_read(p, part.view, &part);
    if (last > part.put || last == INT_MAX) return false;
    if (part.n == 0) return true;
    if (last != part.put || !cc_pure_puts_back(g, part.put, value, part.view) ||
        !untouched(g, value, part.view, part.write[0], part.put))
        return false;
    cc_vec_push(&p->part, part);
    return true;
}

/* The writes to a value before anything but the graph's own nodes can see its memory. */
static void find_writes(Pure *p, int value) {
    const CcGraph *g = p->g;
    int before = -1;
    p->n_write = p->part.n = 0;
    for (int r = p->readers.begin[value]; r < p->readers.begin[value + 1]; r++) {
        const int i = p->readers.node[r];
        const CcNode *n = &g->node.at[i];
        if (i == before || !names(g, n, value)) continue;
        before = i;
        if (keeps_apart(n) || view_passes(p, i, value)) continue;
        if (!cc_pure_is_write(g, n)) return;
        if (cc_graph_source(g, n) != value) continue; /* only reads it */
        if (!cc_pure_writes_same(g, n)) return;
        p->write[p->n_write++] = i;
    }
}

/* Redirects reads of the value by nodes [begin, end) to `version`. */
static void rename_reads(CcGraph *g, int value, int version, int begin, int end) {
    for (int i = begin; i <= end; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            if (v == value) cc_edit_operand(g, i, k, value_of(version));
        }
}

static void set_result(CcGraph *g, int node, int value) {
    CcNode *n = cc_edit_node(g, node);
    n->out0 = value;
    n->n_out = 1;
    n->flags = 0;
    n->rewritten = true;
    cc_edit_val(g, value)->def = node;
}

/* copy_ and fill_ overwrite everything. */
static void forget_target(CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    if (n->op != CC_OP_put || n->n_in != 2) return;
    const CcOperand from = *cc_graph_operand(g, n, 1);
    if (from.kind == CC_IN_VALUE && g->val.at[from.value].type.ndim > g->val.at[n->out0].type.ndim) return;
    cc_edit_rewrite(g, node, from.kind == CC_IN_VALUE ? CC_OP_cast : CC_OP_fill, &from, 1);
}

static void rewrite(CcGraph *g, int value, const int *write, int n_write) {
    int maker = g->val.at[value].def;
    for (int w = 0; w < n_write; w++) {
        CcVal version = g->val.at[value];
        version.is_output = false;
        version.hidden = true;
        cc_vec_push(&g->val, version);
        set_result(g, maker, g->val.n - 1);
        rename_reads(g, value, g->val.n - 1, maker + 1, write[w]);
        maker = write[w];
    }
    set_result(g, maker, value);
    for (int w = 0; w < n_write; w++) forget_target(g, write[w]);
}

/* A part that is written is no longer a view. */
static void rewrite_part(CcGraph *g, const Part *part) {
    rewrite(g, part->view, part->write, part->n);
    for (int w = 0; w < part->n; w++) {
        CcVal *v = cc_edit_val(g, g->node.at[part->write[w]].out0);
        cc_type_make_contiguous(&v->type);
        v->narrowed = v->hidden = true;
    }
}

static bool takes_all(const Pure *p, const int *node, int n) {
    for (int i = 0; i < n; i++)
        if (!cc_group_takes(p->g, node[i], p->rules)) return false;
    return true;
}

/* Later passes make norms pointwise ops and reductions. If that fails in the end, the node is banned and compilation
 * restarts. */
static bool will_take(CcGraph *g, int node, const CcGroupRules *rules) {
    return cc_group_takes(g, node, rules) || cc_norms_takes(g, node, rules);
}

static bool try_value(Pure *p, int value) {
    CcGraph *g = p->g;
    const CcVal *v = &g->val.at[value];
    const int maker = v->def;
    if (maker < 0 || v->type.ndim < 0 || !cc_type_dense(&v->type) || g->node.at[maker].n_out != 1 ||
        g->node.at[maker].out0 != value || !keeps_apart(&g->node.at[maker]))
        return false;
    find_writes(p, value);
    if (p->n_write == 0 || !will_take(g, maker, p->rules)) return false;
    const CcEditMark mark = cc_edit_mark(g);
    const int last = p->write[p->n_write - 1];
    rewrite(g, value, p->write, p->n_write);
    for (int i = 0; i < p->part.n; i++)
        if (p->part.at[i].put <= last) rewrite_part(g, &p->part.at[i]);
    bool good = will_take(g, maker, p->rules) && takes_all(p, p->write, p->n_write);
    for (int i = 0; i < p->part.n; i++)
        good = good && (p->part.at[i].put > last || takes_all(p, p->part.at[i].write, p->part.at[i].n));
    if (!good) cc_edit_undo(g, mark);
    return good;
}

/* Remaining writes may prevent checked indices after them: repeats as long as that makes progress. */
static bool try_all(Pure *p, bool *done) {
    bool any = false;
    for (int v = 0; v < p->values; v++) {
        if (done[v] || !try_value(p, v)) continue;
        any = done[v] = true;
    }
    return any;
}

void cc_pure_rewrite(CcGraph *g, const CcGroupRules *rules) {
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || cc_pure_is_write(g, &g->node.at[i]);
    if (!any) return;
    Pure p = {.g = g, .rules = rules, .values = g->val.n, .write = malloc(sizeof *p.write * (size_t)g->node.n)};
    bool *done = calloc(1, (size_t)p.values + 1);
    if (cc_readers_find(g, &p.readers))
        while (p.write && done && try_all(&p, done)) {}
    cc_readers_free(&p.readers);
    free(done);
    free(p.write);
    cc_vec_free(&p.part);
}
