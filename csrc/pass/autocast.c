/* autocast: makes nodes of the casts that eager's autocast hides. The recorded types tell them: f32 operands of a
 * product or convolution with a bf16 result, half-precision operands of an f32 loss. So it does not matter where
 * autocast is switched on or off. Readers share a cast as long as memory does not change in between.
 *
 *   y = linear(x, w, b)      x, w, b f32, y bf16    ->    c = cast(x); y = linear(c, w, b)
 *
 * Parameters stay uncast: a product casts them when it packs them (run/product.c), once if they are frozen, and once
 * per autocast block that stays open over several calls (eval/freeze.c). */
#include "pass.h"

typedef struct Casts {
    CcGraph *g;
    int *made; /* per value of the given graph: its cast since the last memory write; 0: none */
} Casts;

static bool may_differ(int dtype) { return cc_dtype_is_half(dtype) || dtype == CC_DT_F32; }

bool cc_autocast_mixes(const CcGraph *g, const CcNode *n) {
    const CcOpInfo *info = cc_op_info((CcOpId)n->op);
    if (info->kind != CC_K_POINTWISE || n->n_out != 1 || n->flags & CC_N_WRITES) return false;
    if (strncmp(info->promote, "same", 4) != 0 && strncmp(info->promote, "float", 5) != 0) return false;
    const int out = g->val.at[n->out0].type.dtype, common = cc_op_common(g, n, CC_DT_OTHER);
    return may_differ(out) && may_differ(common) && out != common;
}

/* Is this tensor an input of the graph, or a view of one? */
static bool is_given(const CcGraph *g, int value) {
    while (g->val.at[value].def >= 0) {
        const CcNode *n = &g->node.at[g->val.at[value].def];
        if (!cc_op_is_view(n->op) || cc_graph_source(g, n) < 0) return false;
        value = cc_graph_source(g, n);
    }
    return true;
}

/* A loss, or another reduction of several tensors? */
static bool loss_mixes(const CcGraph *g, const CcNode *n, CcDtype out) {
    for (int i = 1; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v >= 0 && may_differ(g->val.at[v].type.dtype) && g->val.at[v].type.dtype != out) return true;
    }
    return false;
}

CcDtype cc_autocast_to(const CcGraph *g, const CcNode *n, int i, bool parameters) {
    const int v = cc_graph_value(g, n, i);
    const CcDtype out = (CcDtype)g->val.at[n->out0].type.dtype;
    if (v < 0 || !may_differ(out) || !may_differ(g->val.at[v].type.dtype) || g->val.at[v].type.dtype == out ||
        g->val.at[v].type.ndim < 0)
        return CC_DT_OTHER;
    switch (cc_node_kind(n)) {
    case CC_K_MATMUL:
    case CC_K_CONV: {
        const int src = n->op == CC_OP_addmm ? 1 : 0;
        const bool stays = !parameters && i != src && n->op != CC_OP_baddbmm && is_given(g, v);
        return cc_dtype_is_half(out) && !stays ? out : CC_DT_OTHER;
    }
    case CC_K_ATTENTION: return parameters && cc_dtype_is_half(out) ? out : CC_DT_OTHER;
    case CC_K_CONCAT: return cc_dtype_is_half(out) ? CC_DT_OTHER : out;
    case CC_K_REDUCE: return loss_mixes(g, n, out) ? out : CC_DT_OTHER;
    case CC_K_INDEX:
        return (n->op == CC_OP_cross_entropy || n->op == CC_OP_nll_loss) && !cc_dtype_is_half(out) ? out : CC_DT_OTHER;
    case CC_K_REARRANGE: return n->op == CC_OP_prelu ? out : CC_DT_OTHER;
    case CC_K_POINTWISE: return cc_autocast_mixes(g, n) ? out : CC_DT_OTHER;
    default: return CC_DT_OTHER;
    }
}

/* Inserts a cast before node `at`, as a part of it; -> its result. */
static int add_cast(Casts *c, int at, int value, CcDtype to) {
    CcGraph *g = c->g;
    if (c->made[value] && g->val.at[c->made[value]].type.dtype == to) return c->made[value];
    CcVal v = {.type = g->val.at[value].type, .narrowed = true, .hidden = true};
    v.type.dtype = (uint8_t)to;
    v.type.requires_grad = 0;
    if (!cc_type_dense(&v.type)) cc_type_make_contiguous(&v.type);
    CcNode cast = g->node.at[at];
    cast.op = CC_OP_cast;
    cast.in0 = g->operand.n;
    cast.n_in = 1;
    cast.out0 = g->val.n;
    cast.n_out = 1;
    cast.rewritten = true;
    cc_vec_push(&g->operand, (CcOperand){.kind = CC_IN_VALUE, .value = value});
    v.def = cc_edit_insert(g, at, &cast);
    cc_vec_push(&g->val, v);
    return c->made[value] = cast.out0;
}

/* A parameter of a product stays as it is: the product casts it when it packs it. */
static CcDtype wanted(const CcGraph *g, const CcNode *n, int i) { return cc_autocast_to(g, n, i, false); }

static void cast_operands(Casts *c, int at) {
    CcGraph *g = c->g;
    const CcNode n = g->node.at[at];
    bool any = false;
    for (int i = 0; i < n.n_in; i++) any = any || wanted(g, &n, i) != CC_DT_OTHER;
    if (!any) return;
    const int in0 = g->operand.n;
    for (int i = 0; i < n.n_in; i++) {
        const CcOperand o = *cc_graph_operand(g, &n, i);
        cc_vec_push(&g->operand, o);
    }
    for (int i = 0; i < n.n_in; i++) {
        const CcDtype to = wanted(g, &n, i); /* judged by the operands before any cast */
        if (to == CC_DT_OTHER) continue;
        const int cast = add_cast(c, at, g->operand.at[in0 + i].value, to);
        g->operand.at[in0 + i].value = cast;
    }
    cc_edit_slots(g, at, in0, n.n_in);
    g->node.at[at].rewritten = true;
}

void cc_autocast_rewrite(CcGraph *g, const CcGroupRules *rules) {
    const int nodes = g->node.n;
    const size_t values = (size_t)g->val.n;
    bool any = false;
    for (int i = 0; i < nodes && !any; i++)
        for (int k = 0; k < g->node.at[i].n_in && g->node.at[i].n_out == 1; k++)
            any = any || wanted(g, &g->node.at[i], k) != CC_DT_OTHER;
    Casts c = {.g = g};
    bool *live = any ? malloc((size_t)nodes + 1) : NULL;
    if (live) c.made = calloc(values + 1, sizeof *c.made);
    if (c.made) {
        cc_dce_mark(g, live);
        for (int i = 0; i < nodes; i++) {
            const CcNode *n = &g->node.at[i];
            if (n->flags & (CC_N_WRITES | CC_N_EFFECT)) memset(c.made, 0, sizeof *c.made * values);
            if (live[i] && !n->flags && n->n_out == 1 && !cc_group_banned(g, i, rules)) cast_operands(&c, i);
        }
    }
    free(live);
    free(c.made);
}
