/* window: reads the operands of a pool. */
#include "pass.h"

bool cc_window_is_max(const CcNode *n) {
    return n->op == CC_OP_max_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_max_pool_at ||
           n->op == CC_OP_adaptive_max_pool_at;
}

static bool is_adaptive(const CcNode *n) {
    return n->op == CC_OP_adaptive_avg_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_adaptive_max_pool_at;
}

/* Reads any pool as an average pool, which shares most operands with the others; *dilation: of a max pool. */
static bool read_pool(const CcGraph *g, const CcNode *n, CcIn_avg_pool *in, CcOperand *dilation) {
    CcIn_max_pool most;
    CcIn_adaptive_max_pool whole;
    *in = (CcIn_avg_pool){.ceil_mode = {.kind = CC_IN_NONE}};
    if (is_adaptive(n)) {
        if (!cc_in_adaptive_max_pool(g, n, &whole)) return false;
        in->x = whole.x;
        memcpy(in->kernel, whole.size, sizeof in->kernel);
    } else if (cc_window_is_max(n)) {
        if (!cc_in_max_pool(g, n, &most)) return false;
        in->x = most.x;
        memcpy(in->kernel, most.kernel, sizeof in->kernel);
        memcpy(in->stride, most.stride, sizeof in->stride);
        memcpy(in->padding, most.padding, sizeof in->padding);
        memcpy(dilation, most.dilation, sizeof most.dilation);
    } else return cc_in_avg_pool(g, n, in);
    return true;
}

/* An adaptive pool whose windows have one size is a plain one, unless the size differs between calls. */
static CcWindow adaptive_window(int64_t in, int64_t out, bool resizes) {
    const bool fixed = out == 1 || out == in || !resizes;
    if (out == 0 || in % out || !fixed) return (CcWindow){.adaptive = true};
    return (CcWindow){.kernel = in / out, .stride = in / out, .dilation = 1};
}

int cc_window_read(const CcGraph *g, const CcNode *n, CcWindow *w, int64_t *divisor) {
    CcIn_avg_pool in;
    CcOperand dilation[CC_SPATIAL] = {{.i = 1}, {.i = 1}, {.i = 1}};
    int dims = 0;
    if (!read_pool(g, n, &in, dilation) || (in.divisor.kind != CC_IN_NONE && in.divisor.kind != CC_IN_INT) ||
        in.divisor.i < 0)
        return 0;
    const CcType *x = &g->val.at[in.x.value].type, *out = &g->val.at[n->out0].type;
    *divisor = in.divisor.i;
    while (dims < CC_SPATIAL && in.kernel[dims].kind != CC_IN_NONE) dims++;
    if (x->ndim < dims || x->ndim != out->ndim) return 0;
    for (int i = 0; i < dims; i++) {
        const int64_t kernel = in.kernel[i].i, stride = in.stride[i].i;
        const int d = x->ndim - dims + i;
        w[i] = (CcWindow){kernel, stride ? stride : kernel,   in.padding[i].i, dilation[i].i,
                          false,  in.count_include_pad.i != 0};
        if (is_adaptive(n)) w[i] = adaptive_window(x->size[d], out->size[d], g->resizes);
        if (!w[i].adaptive && (w[i].kernel < 1 || w[i].stride < 1 || w[i].padding < 0 || w[i].dilation < 1)) return 0;
    }
    return dims;
}

/* Window o of an adaptive pool is [o in / out, ((o + 1) in + out - 1) / out). */
int64_t cc_window_widest(const CcWindow *w, int64_t in, int64_t out, int64_t *narrowest) {
    int64_t most = w->kernel, least = w->kernel;
    for (int64_t o = 0; w->adaptive && o < out; o++) {
        const int64_t n = ((o + 1) * in + out - 1) / out - o * in / out;
        most = o ? CC_MAX(most, n) : n;
        least = o ? CC_MIN(least, n) : n;
    }
    *narrowest = least;
    return most;
}

bool cc_window_inside(const CcWindow *w, int64_t in, int64_t out) {
    return !w->adaptive && w->padding == 0 && (out - 1) * w->stride + w->dilation * (w->kernel - 1) < in;
}

bool cc_window_pools(const CcWindow *w) { return w->adaptive || w->kernel > 1 || w->stride > 1 || w->padding > 0; }

bool cc_window_overlaps(const CcWindow *w) { return w->adaptive || w->dilation * (w->kernel - 1) >= w->stride; }

int64_t cc_window_taps(const CcGraph *g, const CcNode *n) {
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor, taps = 1, narrowest;
    const int dims = cc_window_read(g, n, w, &divisor);
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type, *out = &g->val.at[n->out0].type;
    for (int i = 0; i < dims; i++) {
        const int d = x->ndim - dims + i;
        taps *= CC_MIN(1 << 16, cc_window_widest(&w[i], x->size[d], out->size[d], &narrowest));
    }
    return taps;
}
