/* fold: folds zero padding into the convolution that reads it.
 *
 *   b = pad(x, ...)  y = conv(b, ...)      y = conv(x, ..., padding at the start and the end)
 *
 * Value and node numbers stay. */
#include "pass.h"

/* Does x's memory stay unchanged between the two nodes? */
static bool memory_unchanged(const CcGraph *g, int pad, int conv) {
    for (int i = pad + 1; i < conv; i++)
        if (g->node.at[i].flags & (CC_N_WRITES | CC_N_EFFECT)) return false;
    return true;
}

/* Does this node pad the last `dims` dims with zeros, without cropping? */
static bool pads(const CcGraph *g, const CcNode *pad, int dims, CcIn_pad *in) {
    if (pad->op != CC_OP_pad || pad->flags || pad->n_out != 1 || !cc_in_pad(g, pad, in)) return false;
    const CcOperand *with = &in->value;
    if (in->widths.n % 2 || in->widths.n > 2 * dims || with->kind == CC_IN_VALUE || with->kind == CC_IN_BOOL ||
        (with->kind == CC_IN_FLOAT && with->f != 0) || (with->kind == CC_IN_INT && with->i != 0))
        return false;
    for (int i = 0; i < in->widths.n; i++) {
        const CcOperand *width = cc_graph_operand(g, pad, in->widths.first + i);
        if (width->kind != CC_IN_INT || width->i < 0) return false;
    }
    return true;
}

/* Number of spatial dims of a convolution with numeric padding ('same' is -1) that is equal on both sides; else 0. */
static int spatial_dims(const CcGraph *g, const CcNode *n, CcIn_conv *in) {
    if (n->op != CC_OP_conv || !cc_in_conv(g, n, in) || in->padding_after[0].kind != CC_IN_NONE) return 0;
    const int dims = g->val.at[in->x.value].type.ndim - 2;
    if (dims < 1 || dims > CC_SPATIAL) return 0;
    for (int d = 0; d < dims; d++)
        if (in->padding[d].kind == CC_IN_NONE || in->padding[d].i < 0) return 0;
    return dims;
}

/* torch lists widths from the last dim to the first: start, end, start, end. */
static void fold_pad(CcGraph *g, int node, CcIn_conv *in, int dims, const CcNode *pad, const CcIn_pad *by) {
    for (int d = 0; d < dims; d++) {
        const int at = 2 * (dims - 1 - d);
        in->padding_after[d] = in->padding[d];
        if (at + 1 >= by->widths.n) continue;
        in->padding[d].i += cc_graph_operand(g, pad, by->widths.first + at)->i;
        in->padding_after[d].i += cc_graph_operand(g, pad, by->widths.first + at + 1)->i;
    }
    in->x = by->x;
    cc_edit_make_in(g, node, CC_OP_conv, in);
}

void cc_fold_rewrite(CcGraph *g, const CcGroupRules *rules) {
    for (int i = 0; i < g->node.n; i++) {
        CcIn_conv in;
        CcIn_pad by;
        const int dims = spatial_dims(g, &g->node.at[i], &in), pad = dims ? g->val.at[in.x.value].def : -1;
        if (pad >= 0 && pads(g, &g->node.at[pad], dims, &by) && memory_unchanged(g, pad, i) &&
            cc_group_takes(g, i, rules))
            fold_pad(g, i, &in, dims, &g->node.at[pad], &by);
    }
}
