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
        memcpy(in->kernel, whole.size, sizeof in->kernel);
    } else if (cc_window_is_max(n)) {
        if (!cc_in_max_pool(g, n, &most)) return false;
        memcpy(in->kernel, most.kernel, sizeof in->kernel);
        memcpy(in->stride, most.stride, sizeof in->stride);
        memcpy(in->padding, most.padding, sizeof in->padding);
        memcpy(dilation, most.dilation, sizeof most.dilation);
    } else return cc_in_avg_pool(g, n, in);
    return true;
}

int cc_window_read(const CcGraph *g, const CcNode *n, CcWindow *w, int64_t *divisor) {
    CcIn_avg_pool in;
    CcOperand dilation[CC_SPATIAL] = {{.i = 1}, {.i = 1}, {.i = 1}};
    const bool adaptive = is_adaptive(n);
    int dims = 0;
    if (!read_pool(g, n, &in, dilation) || (in.divisor.kind != CC_IN_NONE && in.divisor.kind != CC_IN_INT) ||
        in.divisor.i < 0)
        return 0;
    *divisor = in.divisor.i;
    for (; dims < CC_SPATIAL && in.kernel[dims].kind != CC_IN_NONE; dims++) {
        const int64_t kernel = in.kernel[dims].i, stride = in.stride[dims].i;
        w[dims] = (CcWindow){kernel,   stride ? stride : kernel,   in.padding[dims].i, dilation[dims].i,
                             adaptive, in.count_include_pad.i != 0};
        if (!adaptive && (w[dims].kernel < 1 || w[dims].stride < 1 || w[dims].padding < 0 || w[dims].dilation < 1))
            return 0;
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

bool cc_window_inside(CcWindow *w, int64_t in, int64_t out) {
    if (w->adaptive && in % out) return false;
    if (w->adaptive) *w = (CcWindow){.kernel = in / out, .stride = in / out, .dilation = 1};
    return w->padding == 0 && (out - 1) * w->stride + w->dilation * (w->kernel - 1) < in;
}
