/* fold: a convolution does the padding with zeros that was made for it.
 *
 *   b = pad(x, ...)  y = conv(b, ...)      y = conv(x, ..., padding before and behind)
 *
 * Value and node numbers stay. */
#include "pass.h"

enum { MAX_SPATIAL = 3, X = 0, STRIDE = 3, MAX_OPERANDS = STRIDE + 4 * MAX_SPATIAL + 1 }; /* of conv: ops.def */

/* Is x between the two still what was padded? */
static bool undisturbed(const CcGraph *g, int pad, int conv) {
    for (int i = pad + 1; i < conv; i++)
        if (g->node.at[i].flags & (CC_N_WRITES | CC_N_EFFECT)) return false;
    return true;
}

/* The pad node that makes this convolution's input, where it pads spatial dims with zeros; else NULL. */
static const CcNode *pad_before(const CcGraph *g, const CcNode *conv, int dims) {
    const CcOperand *x = cc_graph_operand(g, conv, X);
    const int def = g->val.at[x->value].def;
    const CcNode *pad = def < 0 ? NULL : &g->node.at[def];
    if (!pad || pad->op != CC_OP_pad || pad->flags || pad->n_out != 1 || pad->n_in % 2 || pad->n_in > 2 + 2 * dims ||
        cc_graph_operand(g, pad, 0)->kind != CC_IN_VALUE || !undisturbed(g, def, (int)(conv - g->node.at)))
        return NULL;
    const CcOperand *with = cc_graph_operand(g, pad, pad->n_in - 1);
    if (with->kind == CC_IN_VALUE || (with->kind == CC_IN_FLOAT && with->f != 0) ||
        (with->kind == CC_IN_INT && with->i != 0) || with->kind == CC_IN_BOOL)
        return NULL;
    for (int i = 1; i < pad->n_in - 1; i++)
        if (cc_graph_operand(g, pad, i)->kind != CC_IN_INT || cc_graph_operand(g, pad, i)->i < 0) return NULL;
    return pad;
}

static int spatial_dims(const CcGraph *g, const CcNode *conv) {
    if (conv->op != CC_OP_conv || conv->n_in < STRIDE || cc_graph_operand(g, conv, X)->kind != CC_IN_VALUE) return 0;
    const int dims = g->val.at[cc_graph_operand(g, conv, X)->value].type.ndim - 2;
    if (dims < 1 || dims > MAX_SPATIAL || conv->n_in != STRIDE + 3 * dims + 1) return 0;
    for (int d = 0; d < dims; d++) /* 'same' */
        if (cc_graph_operand(g, conv, STRIDE + dims + d)->kind != CC_IN_INT ||
            cc_graph_operand(g, conv, STRIDE + dims + d)->i < 0)
            return 0;
    return dims;
}

/* Padding of torch's list goes from the last dim to the first: before, behind, before, behind. */
static void fold_pad(CcGraph *g, int node, const CcNode *pad, int dims) {
    CcOperand in[MAX_OPERANDS];
    const CcNode *conv = &g->node.at[node];
    const int n = conv->n_in;
    for (int i = 0; i < n + dims; i++) in[i] = *cc_graph_operand(g, conv, i < n ? i : STRIDE + dims + i - n);
    for (int d = 0; d < dims; d++) {
        const int at = 1 + 2 * (dims - 1 - d);
        if (at + 1 >= pad->n_in - 1) continue;
        in[STRIDE + dims + d].i += cc_graph_operand(g, pad, at)->i;
        in[n + d].i += cc_graph_operand(g, pad, at + 1)->i;
    }
    in[X].value = cc_graph_operand(g, pad, 0)->value;
    cc_edit_rewrite(g, node, CC_OP_conv, in, n + dims);
}

void cc_fold_rewrite(CcGraph *g, const CcGroupRules *rules) {
    for (int i = 0; i < g->node.n; i++) {
        const int dims = spatial_dims(g, &g->node.at[i]);
        const CcNode *pad = dims ? pad_before(g, &g->node.at[i], dims) : NULL;
        if (pad && cc_group_takes(g, i, rules)) fold_pad(g, i, pad, dims);
    }
}
