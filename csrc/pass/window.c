/* window: what the operands of a pool say. */
#include "pass.h"

bool cc_window_greatest(const CcNode *n) {
    return n->op == CC_OP_max_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_max_pool_at ||
           n->op == CC_OP_adaptive_max_pool_at;
}

static bool is_adaptive(const CcNode *n) {
    return n->op == CC_OP_adaptive_avg_pool || n->op == CC_OP_adaptive_max_pool || n->op == CC_OP_adaptive_max_pool_at;
}

static bool ints(const CcGraph *g, const CcNode *n, int at, int count, int64_t *out) {
    for (int i = 0; i < count; i++) {
        const CcOperand *o = cc_graph_operand(g, n, at + i);
        if (o->kind != CC_IN_INT && o->kind != CC_IN_BOOL) return false;
        out[i] = o->i;
    }
    return true;
}

/* Operands: x, kernel, stride, padding, of the greatest dilation; ceil_mode, of the mean also count_include_pad and
 * divisor. */
int cc_window_read(const CcGraph *g, const CcNode *n, CcWindow *w, int64_t *divisor) {
    const bool greatest = cc_window_greatest(n), adaptive = is_adaptive(n);
    const int lists = adaptive ? 1 : greatest ? 4 : 3, others = adaptive ? 1 : greatest ? 2 : 4;
    const int dims = n->n_in > others && (n->n_in - others) % lists == 0 ? (n->n_in - others) / lists : 0;
    int64_t v[4][CC_WINDOW_DIMS] = {{0}, {0}, {0}, {1, 1, 1}}, count = 0;
    *divisor = 0;
    if (dims < 1 || dims > CC_WINDOW_DIMS) return 0;
    for (int k = 0; k < lists; k++)
        if (!ints(g, n, 1 + k * dims, dims, v[k])) return 0;
    if (!greatest && !adaptive) {
        const CcOperand *by = cc_graph_operand(g, n, n->n_in - 1);
        if (!ints(g, n, n->n_in - 2, 1, &count) || (by->kind != CC_IN_NONE && by->kind != CC_IN_INT) ||
            (by->kind == CC_IN_INT && by->i < 0))
            return 0;
        if (by->kind == CC_IN_INT) *divisor = by->i;
    }
    for (int i = 0; i < dims; i++) {
        w[i] = (CcWindow){v[0][i], v[1][i] ? v[1][i] : v[0][i], v[2][i], v[3][i], adaptive, count != 0};
        if (!adaptive && (w[i].kernel < 1 || w[i].stride < 1 || w[i].padding < 0 || w[i].dilation < 1)) return 0;
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
