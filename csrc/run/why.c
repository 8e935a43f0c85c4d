/* why: for reports, why torch runs a node. The first row that holds says it. */
#include "run_int.h"

static bool is_any(const CcGraph *g, const CcNode *n, bool (*test)(const CcType *)) {
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(g, n, k);
        if (v >= 0 && test(&g->val.at[v].type)) return true;
    }
    for (int k = 0; k < n->n_out; k++)
        if (test(&g->val.at[n->out0 + k].type)) return true;
    return false;
}

static bool lacks_type(const CcType *t) { return t->ndim < 0 || t->dtype == CC_DT_OTHER; }
static bool is_elsewhere(const CcType *t) { return t->ndim >= 0 && t->device != 1; }
static bool is_f64(const CcType *t) { return t->dtype == CC_DT_F64; }
static bool is_library(const CcNode *n) {
    const CcOpKind kind = cc_node_kind(n);
    return kind == CC_K_MATMUL || kind == CC_K_CONV || kind == CC_K_ATTENTION || kind == CC_K_RNN;
}

static bool view(const CcGraph *g, const CcNode *n) { return g && cc_op_is_view(n->op); }
static bool random_op(const CcGraph *g, const CcNode *n) { return g && (n->flags & CC_N_RANDOM); }
static bool effect(const CcGraph *g, const CcNode *n) { return g && (n->flags & CC_N_EFFECT); }
static bool no_kernels(const CcGraph *g, const CcNode *n) { return is_any(g, n, lacks_type); }
static bool device(const CcGraph *g, const CcNode *n) { return is_any(g, n, is_elsewhere); }
static bool row(const CcGraph *g, const CcNode *n) { return g && cc_node_kind(n) == CC_K_HOST; }
static bool f64(const CcGraph *g, const CcNode *n) { return is_library(n) && is_any(g, n, is_f64); }
static bool write(const CcGraph *g, const CcNode *n) { return g && (n->flags & CC_N_WRITES); }
static bool library(const CcGraph *g, const CcNode *n) { return g && is_library(n); }

static const struct {
    bool (*holds)(const CcGraph *g, const CcNode *n);
    const char *text;
} WHY[] = {
    {view, "a view, which costs torch nothing but its call"},
    {random_op, "torch's generator draws its random numbers"},
    {effect, "it may have effects that only torch knows"},
    {no_kernels, "no kernels for a value: complex, float8, sparse ..., or its shape depends on data"},
    {device, "a tensor on another device than the kernels"},
    {row, "only torch implements this op, or these arguments of it"},
    {f64, "no library call for float64"},
    {write, "no kernel for this write to existing memory"},
};

const char *cc_why_torch(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    for (int i = 0; i < CC_COUNT(WHY); i++)
        if (WHY[i].holds(g, n)) return WHY[i].text;
    if (cc_group_banned(g, node, rules)) return "a back-end refused it (see events)";
    if (library(g, n) && !rules->prim && !rules->gathers) return "library calls are switched off or missing";
    return library(g, n) ? "no library call for these sizes, strides or arguments"
                         : "no kernel for these dtypes, sizes or arguments";
}
