/* resample: splits interpolation in several dims into one node per dim, for back-ends where consecutive loads are
 * faster than gathers (not CcGroupRules.gathers). Dims that shrink come first, then dims that grow, each from the
 * last dim on: so the last dim, which needs gathers, runs while there are few elements.
 *
 *   upsample_linear(x [1, C, 28, 28], false)                           to [1, C, 56, 56]
 *   ->  y = upsample_linear(x, false, None, 0.0)                       to [1, C, 28, 56]; None: an unchanged dim
 *       upsample_linear(y, false, 0.0, None)                           0: the sizes give the factor
 *
 * 64 channels of 28x28 to 56x56 took 219 us by tables of positions and weights for all dims at once and take 137
 * like this, channels-last 67 and 39; bicubic, 3 of 128x128 to 224x224, 322 and 228. If the last dim shrinks nothing
 * is gained (3 of 500x375 to 224x224: 165 and 225, torch 1275; gathers dominate; Zen 4, one thread).
 *
 * f32 and f64 intermediates round as eager's do, which also sums one dim after the other. */
#include "pass_int.h"

/* Collects the dims, from 2 on, that are interpolated, in the order of execution. -> how many */
static int changed(const CcType *in, const CcType *out, bool cubic, int *dim) {
    int n = 0;
    for (int d = out->ndim - 1; d >= 2; d--) {
        if (in->size[d] == out->size[d] && !cubic) continue;
        int at = n++;
        /* sort by growth: out / in */
        for (; at > 0 && out->size[dim[at - 1]] * in->size[d] > out->size[d] * in->size[dim[at - 1]]; at--)
            dim[at] = dim[at - 1];
        dim[at] = d;
    }
    return n;
}

static bool may_be(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    int dim[CC_MAX_DIMS];
    const CcType *out = &g->val.at[n->out0].type;
    CcIn_upsample_linear in;
    if (rules->gathers || (n->op != CC_OP_upsample_linear && n->op != CC_OP_upsample_cubic) ||
        !cc_in_upsample_linear(g, n, &in))
        return false;
    const CcType *x = &g->val.at[in.x.value].type;
    const int sides = out->ndim - 2;
    return x->ndim == out->ndim && sides <= CC_SPATIAL && (in.factors.n == 0 || in.factors.n == sides) &&
           changed(x, out, n->op == CC_OP_upsample_cubic, dim) > 1;
}

static bool make(Parts *p, const bool *needed) {
    (void)needed;
    const CcType out = p->g->val.at[p->whole.out0].type;
    const bool last = out.ndim > 2 && out.stride[1] == 1;
    int dim[CC_MAX_DIMS];
    CcIn_upsample_linear in;
    if (!cc_in_upsample_linear(p->g, &p->whole, &in)) return false;
    CcOperand x = in.x;
    CcType t = type_of(p, x);
    const int n = changed(&t, &out, p->whole.op == CC_OP_upsample_cubic, dim);
    for (int i = 0; i < n; i++) {
        CcOperand part[2 + CC_SPATIAL] = {x, in.align_corners, none(), none(), none()}, *factor = part + 2;
        factor[dim[i] - 2] = in.factors.n ? operand(p, in.factors.first + dim[i] - 2) : float_of(0);
        t.size[dim[i]] = out.size[dim[i]];
        (last ? cc_type_make_channels_last : cc_type_make_contiguous)(&t);
        x = cc_parts_add_in(p, (CcOpId)p->whole.op, i + 1 < n ? -1 : p->whole.out0, &t, part, out.ndim);
    }
    return true;
}

void cc_resample_rewrite(CcGraph *g, const CcGroupRules *rules) {
    cc_parts_rewrite(g, rules, &(PartsRules){.may_be = may_be, .make = make});
}
