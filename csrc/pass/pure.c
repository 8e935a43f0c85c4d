/* pure: ops that write in place what the graph itself has made become ops with a result of their own.
 *
 *   %3 = conv(..)  relu_(%3)  %4 = max_pool(%3)      %9 = conv(..)  %3 = relu(%9)  %4 = max_pool(%3)
 *
 * The last version keeps the value's number, so the host finds there what it expects; earlier ones
 * are hidden from it. Nothing else may know the memory: up to there all that read the value are ops
 * whose results have memory of their own, and none of it is left to the host. */
#include "pass.h"

typedef struct Pure {
    const CcGraph *g; /* as given */
    CcGraph *out;     /* rewritten; NULL: nothing so far */
    const CcGroupRules *rules;
    int *write; /* nodes that write the value that is looked at */
    int n_write;
} Pure;

static bool is_write(const CcGraph *g, const CcNode *n) {
    const CcOperand *to = &g->operand.at[n->in0];
    return n->flags == CC_N_WRITES && n->n_out == 0 && n->n_in > 0 && to->kind == CC_IN_VALUE &&
           (cc_op_info((CcOpId)n->op)->kind == CC_K_POINTWISE || cc_op_info((CcOpId)n->op)->kind == CC_K_SCATTER);
}

/* The pure op gives what the one in place leaves: floats of one dtype, broadcast to the target. Of a scatter, and where a mask
 * says which elements are filled, that is so for all dtypes. */
static bool writes_same(const CcGraph *g, const CcNode *n) {
    const CcOpInfo *info = cc_op_info((CcOpId)n->op);
    const CcType *to = &g->val.at[g->operand.at[n->in0].value].type;
    const bool fills = n->op == CC_OP_masked_fill;
    if (info->kind == CC_K_SCATTER) return true;
    if (!fills && (cc_dtype_info((CcDtype)to->dtype)->kind != 'f' || strncmp(info->promote, "cmp", 3) == 0 ||
        strncmp(info->promote, "test", 4) == 0))
        return false;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = &g->operand.at[n->in0 + i];
        if (o->kind != CC_IN_VALUE) continue;
        const CcType *t = &g->val.at[o->value].type;
        if ((t->dtype != to->dtype && !(fills && i == 1)) || t->ndim < 0 || t->ndim > to->ndim) return false;
        for (int d = 1; d <= t->ndim; d++)
            if (t->size[t->ndim - d] != 1 && t->size[t->ndim - d] != to->size[to->ndim - d])
                return false;
    }
    return true;
}

/* Does this node leave the memory of what it reads to itself? */
static bool keeps_apart(const CcNode *n) {
    const CcOpKind kind = cc_op_info((CcOpId)n->op)->kind;
    return kind != CC_K_HOST && kind != CC_K_VIEW && n->n_out == 1 && !n->flags;
}

/* The writes to a value before anything else than ours learns of its memory. */
static void find_writes(Pure *p, int value) {
    const CcGraph *g = p->g;
    p->n_write = 0;
    for (int i = g->val.at[value].def + 1; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        bool reads = false;
        for (int k = 0; k < n->n_in; k++) {
            const CcOperand *o = &g->operand.at[n->in0 + k];
            reads = reads || (o->kind == CC_IN_VALUE && o->value == value);
        }
        if (!reads || keeps_apart(n)) continue;
        if (!is_write(g, n)) return;
        if (g->operand.at[n->in0].value != value) continue; /* reads it only */
        if (!writes_same(g, n)) return;
        p->write[p->n_write++] = i;
    }
}

/* Reads of the value before node `end` (from `begin` on) are reads of `version`. */
static void rename_reads(CcGraph *g, int value, int version, int begin, int end) {
    for (int i = begin; i <= end; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            CcOperand *o = &g->operand.at[g->node.at[i].in0 + k];
            if (o->kind == CC_IN_VALUE && o->value == value) o->value = version;
        }
}

static void set_result(CcGraph *g, int node, int value) {
    CcNode *n = &g->node.at[node];
    n->out0 = value;
    n->n_out = 1;
    n->flags = 0;
    n->rewritten = true;
    g->val.at[value].def = node;
}

static void rewrite(Pure *p, CcGraph *g, int value) {
    int maker = p->g->val.at[value].def;
    for (int w = 0; w < p->n_write; w++) {
        CcVal version = g->val.at[value];
        version.is_output = false;
        version.hidden = true;
        cc_vec_push(&g->val, version);
        set_result(g, maker, g->val.n - 1);
        rename_reads(g, value, g->val.n - 1, maker + 1, p->write[w]);
        maker = p->write[w];
    }
    set_result(g, maker, value);
}

static void try_value(Pure *p, int value) {
    const CcGraph *before = p->out ? p->out : p->g;
    const CcVal *v = &p->g->val.at[value];
    if (v->def < 0 || v->type.ndim < 0 || !cc_type_dense(&v->type) ||
        !keeps_apart(&p->g->node.at[v->def]))
        return;
    find_writes(p, value);
    if (p->n_write == 0 || !cc_group_takes(before, before->val.at[value].def, p->rules)) return;
    CcGraph *g = cc_graph_copy(before);
    rewrite(p, g, value);
    bool good = cc_group_takes(g, p->g->val.at[value].def, p->rules);
    for (int w = 0; w < p->n_write; w++) good = good && cc_group_takes(g, p->write[w], p->rules);
    if (good) {
        if (p->out) cc_graph_free(p->out);
        p->out = g;
    } else {
        cc_graph_free(g);
    }
}

CcGraph *cc_pure_graph(const CcGraph *g, const CcGroupRules *rules) {
    bool any = false;
    for (int i = 0; i < g->node.n; i++) any = any || is_write(g, &g->node.at[i]);
    if (!any) return NULL;
    Pure p = {.g = g, .rules = rules, .write = malloc(sizeof *p.write * (size_t)g->node.n)};
    for (int v = 0; p.write && v < g->val.n; v++) try_value(&p, v);
    free(p.write);
    return p.out;
}
