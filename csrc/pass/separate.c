/* separate: splits pools and interpolation in several dims into one node per dim, for back-ends where consecutive
 * loads are faster than gathers (not CcGroupRules.gathers).
 *
 *   upsample_linear(x [1, C, 28, 28], false)                           to [1, C, 56, 56]
 *   ->  y = upsample_linear(x, false, None, 0.0)                       to [1, C, 28, 56]; None: an unchanged dim
 *       upsample_linear(y, false, 0.0, None)                           0: the sizes give the factor
 *
 *   max_pool(x [1, C, 56, 56], kernel [3, 3], stride [1, 1] ..)
 *   ->  y = max_pool(x, kernel [3, 1] ..), max_pool(y, kernel [1, 3] ..)
 *
 * A pool combines rows first, since all dims but the last read consecutive elements. Of interpolated dims those that
 * shrink come first, then those that grow, each from the last dim on: so the last dim, which needs gathers, runs while
 * there are few elements.
 *
 * Bilinear, 64 channels of 28x28 to 56x56, took 219 us by tables of positions and weights for all dims at once and
 * takes 137 like this, channels-last 67 and 39; bicubic, 3 of 128x128 to 224x224, 322 and 228. If the last dim shrinks
 * nothing is gained (3 of 500x375 to 224x224: 165 and 225, torch 1275; gathers dominate). Maxima, 32 channels of
 * 56x56, 3x3, 325 and 39; 64 of 112x112, stride 2, 702 and 309 (Zen 4, one thread).
 *
 * f32 and f64 intermediates of interpolation round as eager's do, which also sums one dim after the other. */
#include "pass_int.h"

/* ------------------------------------------------------------------ pools */

/* A pool's windows, of the last `dims` dims. Those in `dim` change x: a node each. */
typedef struct Pool {
    CcWindow window[CC_WINDOW_DIMS];
    int64_t divisor;
    int dims, n, dim[CC_WINDOW_DIMS];
} Pool;

static bool read_pool(const CcGraph *g, const CcNode *n, Pool *p) {
    const CcOpKind kind = cc_node_kind(n);
    if (kind != CC_K_POOL || n->n_out != 1 || g->val.at[n->out0].type.dtype == CC_DT_I64) return false;
    p->dims = cc_window_read(g, n, p->window, &p->divisor);
    p->n = 0;
    for (int i = 0; i < p->dims; i++)
        if (cc_window_pools(&p->window[i])) p->dim[p->n++] = i;
    return p->n > 1;
}

/* How many elements the parts, or the whole, read for an element of the result. */
static double reads(const CcType *x, const CcType *out, const Pool *p, bool parts) {
    double all = !parts;
    for (int k = 0; k < p->n; k++) {
        const int i = p->dim[k], d = x->ndim - p->dims + i;
        int64_t narrowest;
        const double own = (double)cc_window_widest(&p->window[i], x->size[d], out->size[d], &narrowest);
        all = parts ? all * (double)x->size[d] / (double)out->size[d] + own : all * own;
    }
    return all;
}

/* If the last dim is innermost, the whole window takes gathers or short rows. Otherwise all loads are alike, and the
 * parts also store and load what is between them. */
static bool pool_pays(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    Pool p;
    if (rules->gathers || !read_pool(g, n, &p)) return false;
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type, *out = &g->val.at[n->out0].type;
    if (cc_type_numel(out) == 0) return false;
    const bool innermost = out->stride[out->ndim - 1] == 1 && p.dim[p.n - 1] == p.dims - 1;
    return innermost || reads(x, out, &p, true) + 2 * (p.n - 1) < reads(x, out, &p, false) ||
           !cc_group_takes(g, (int)(n - g->node.at), rules);
}

/* The part for the pool's k-th dim. */
static CcOperand pool_part(Parts *p, const Pool *pool, int k, CcOperand x, const CcType *t) {
    const CcWindow *w = &pool->window[pool->dim[k]];
    const int result = k + 1 < pool->n ? -1 : p->whole.out0, lead = t->ndim - pool->dims;
    const bool max = cc_window_is_max(&p->whole), divided = k > 0 && pool->divisor;
    const CcOperand no = bool_of(false), padded = bool_of(w->count_padding);
    CcIn_adaptive_avg_pool adaptive = {.x = x};
    CcIn_max_pool most = {.x = x, .ceil_mode = no};
    CcIn_avg_pool mean = {.x = x, .ceil_mode = no, .count_include_pad = padded};
    mean.divisor = !pool->divisor ? none() : int_of(divided ? 1 : pool->divisor);
    for (int i = 0; i < pool->dims; i++) {
        const CcWindow one = {.kernel = 1, .stride = 1, .dilation = 1}, *own = i == pool->dim[k] ? w : &one;
        adaptive.size[i] = int_of(t->size[lead + i]);
        mean.kernel[i] = most.kernel[i] = int_of(own->kernel);
        mean.stride[i] = most.stride[i] = int_of(own->stride);
        mean.padding[i] = most.padding[i] = int_of(own->padding);
        most.dilation[i] = int_of(own->dilation);
    }
    if (w->adaptive)
        return cc_parts_make_in(p, max ? CC_OP_adaptive_max_pool : CC_OP_adaptive_avg_pool, result, t, &adaptive);
    return max ? cc_parts_make_in(p, CC_OP_max_pool, result, t, &most)
               : cc_parts_make_in(p, CC_OP_avg_pool, result, t, &mean);
}

/* Sums in half precision stay in f32 until the last part. */
static bool make_pool(Parts *p) {
    Pool pool;
    if (!read_pool(p->g, &p->whole, &pool)) return false;
    const CcType out = p->g->val.at[p->whole.out0].type;
    const bool last = out.ndim == pool.dims + 2 && out.stride[1] == 1 && out.size[1] > 1;
    CcOperand x = value_of(cc_graph_source(p->g, &p->whole));
    CcType t = type_of(p, x);
    if (!cc_window_is_max(&p->whole) && t.dtype != CC_DT_F64) t.dtype = CC_DT_F32;
    for (int k = 0; k < pool.n; k++) {
        const int d = out.ndim - pool.dims + pool.dim[k];
        t.size[d] = out.size[d];
        (last ? cc_type_make_channels_last : cc_type_make_contiguous)(&t);
        x = pool_part(p, &pool, k, x, &t);
    }
    return true;
}

/* ------------------------------------------------------------------ interpolation */

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

static bool interpolates(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
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

static bool interpolate(Parts *p) {
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

/* ------------------------------------------------------------------ the pass */

static bool may_be(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    return interpolates(g, n, rules) || pool_pays(g, n, rules);
}

bool cc_separate_takes(const CcGraph *g, int node, const CcGroupRules *rules) {
    return cc_group_takes(g, node, rules) || (!cc_group_banned(g, node, rules) && may_be(g, &g->node.at[node], rules));
}

static bool make(Parts *p) { return cc_node_kind(&p->whole) == CC_K_POOL ? make_pool(p) : interpolate(p); }

void cc_separate_rewrite(CcGraph *g, const CcGroupRules *rules) {
    cc_parts_rewrite(g, rules, &(PartsRules){.may_be = may_be, .make = make});
}
