/* batch: splits batch norms in training into statistics of the batch, writes of the running statistics, and the
 * normalisation, whose derivative takes into account that it moves the statistics:
 *
 *   y = batch_norm_train(x, w, b, r, q)   ->   n = batch_mean(x)   m = batch_centre(x, n)   v = batch_spread(x, n)
 *                                              running(r, m)   running(q, v)   y = batch_normed(x, w, b, m, v) */
#include "grad_int.h"

/* Statistics of half-precision tensors are f32, as weights are under autocast. */
static uint8_t dtype_of_statistics(const CcType *x) { return cc_dtype_is_half(x->dtype) ? CC_DT_F32 : x->dtype; }

static bool is_vector(const CcGraph *g, CcOperand o, const CcType *x) {
    if (o.kind == CC_IN_NONE) return true;
    const CcType *t = o.kind == CC_IN_VALUE ? &g->val.at[o.value].type : NULL;
    return t != NULL && t->ndim == 1 && t->dtype == dtype_of_statistics(x) && t->device == 1 &&
           t->size[0] == x->size[1];
}

/* An input of the graph that only this node reads: nothing depends on when it is written. */
static bool is_own(const CcGraph *g, int node, CcOperand o) {
    int reads = 0;
    if (o.kind != CC_IN_VALUE || g->val.at[o.value].def >= 0) return false;
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            reads += v >= 0 && v == o.value ? 1 + (i != node) : 0;
        }
    return reads == 1;
}

static bool is_number(CcOperand o) { return o.kind == CC_IN_FLOAT || o.kind == CC_IN_INT || o.kind == CC_IN_NUMBER; }

static bool understand(const CcGraph *g, int node, CcIn_batch_norm_train *in) {
    const CcNode *n = &g->node.at[node];
    if (n->op != CC_OP_batch_norm_train || n->n_out != 1 || !cc_in_batch_norm_train(g, n, in)) return false;
    const CcType *x = &g->val.at[in->x.value].type, *y = &g->val.at[n->out0].type;
    const bool moves = in->mean.kind == CC_IN_VALUE;
    if (cc_dtype_is_half(x->dtype) && in->weight.kind == CC_IN_NONE && !moves)
        return false; /* then torch's are not f32 */
    if (x->ndim < 2 || x->device != 1 || !cc_dtype_is_float(x->dtype) || x->dtype != y->dtype ||
        !cc_type_same_shape(x, y) || cc_type_numel(x) == 0 || in->eps.kind != CC_IN_FLOAT ||
        moves != (in->var.kind == CC_IN_VALUE) || n->flags != (moves ? CC_N_WRITES : 0))
        return false;
    if (moves && (!is_number(in->momentum) || !is_own(g, node, in->mean) || !is_own(g, node, in->var))) return false;
    return is_vector(g, in->weight, x) && is_vector(g, in->bias, x) && is_vector(g, in->mean, x) &&
           is_vector(g, in->var, x);
}

/* A number for each channel: [1, C, 1, ..] */
static CcType channels(const CcType *x) {
    CcType t = cc_adjoint_channels(x);
    t.dtype = dtype_of_statistics(x);
    return t;
}

static CcType vector(const CcType *x) {
    CcType t = channels(x);
    t.ndim = 1;
    t.size[0] = x->size[1];
    t.stride[0] = 1;
    return t;
}

/* All dims but the channels, as bits. */
static int dims_of(const CcType *x) { return ((1 << x->ndim) - 1) & ~(1 << (x->ndim - 2)); }

/* running = momentum * statistic * unbias + (1 - momentum) * running, as torch writes it: uncounted. */
static void move(CcGraph *g, int node, CcOperand running, int statistic, CcOperand momentum, double unbias) {
    CcNode n = {.op = CC_OP_running, .flags = CC_N_WRITES, .in0 = g->operand.n, .n_in = 4, .out0 = g->val.n};
    n.host = -1;
    n.origin = g->node.at[node].origin;
    n.uncounted = true;
    const CcOperand in[] = {running, value_of(statistic), momentum, float_of(unbias)};
    for (int i = 0; i < 4; i++) cc_vec_push(&g->operand, in[i]);
    cc_edit_insert(g, node, &n);
}

static void split(CcGraph *g, int node, const CcIn_batch_norm_train *in) {
    Adjoint a = {.g = g, .before = node};
    const CcType x = g->val.at[in->x.value].type, one = channels(&x), flat = vector(&x);
    const double count = (double)(cc_type_numel(&x) / x.size[1]);
    const int first = g->node.n;
    const CcOperand dims = int_of(dims_of(&x));
    const CcOperand near = value_of(make(&a, batch_mean, &one, .x = in->x, .dims = dims));
    const int mean = make(&a, batch_centre, &one, .x = in->x, .dims = dims, .mean = near);
    const int var = make(&a, batch_spread, &one, .x = in->x, .dims = dims, .mean = near);
    const int m = make(&a, view, &flat, .x = value_of(mean)), v = make(&a, view, &flat, .x = value_of(var));
    for (int i = first; i < g->node.n; i++) g->node.at[i].origin = g->node.at[node].origin;
    if (in->mean.kind == CC_IN_VALUE) {
        move(g, node, in->mean, m, in->momentum, 1);
        move(g, node, in->var, v, in->momentum, count / (count - 1));
    }
    cc_edit_make(g, node, batch_normed, .x = in->x, .weight = in->weight, .bias = in->bias, .mean = value_of(m),
                 .var = value_of(v), .eps = in->eps);
    g->node.at[node].flags = 0;
    g->node.at[node].rewritten = false;
    g->node.at[node].host = -1;
}

void cc_batch_split(CcGraph *g, const bool *whole) {
    const int n = g->node.n;
    CcIn_batch_norm_train in;
    cc_edit_settle(g);
    for (int i = 0; i < n; i++)
        if (!whole[g->node.at[i].origin] && understand(g, i, &in)) split(g, i, &in);
    cc_edit_settle(g);
}

void cc_batch_lower(CcGraph *g) {
    for (int i = 0; i < g->node.n; i++)
        if (g->node.at[i].op == CC_OP_batch_normed) g->node.at[i].op = CC_OP_batch_norm;
}

/* With s = sum(grad) and p = sum(grad * (x - m)) over all dims but the channels, k = 1 / sqrt(v + eps), n elements a
 * channel: dx = (grad - s / n - (x - m) * k * k * p / n) * k * w, dw = p * k, db = s. */
bool cc_batch_apply(Adjoint *a, const CcNode *n) {
    CcIn_batch_norm in;
    if (!cc_operands_read(a->g, n, CC_OP_batch_norm, &in) || in.mean.kind != CC_IN_VALUE) return false;
    const int g = a->grad[n->out0];
    const CcType x = cc_adjoint_like(type_of(a, in.x.value)), one = channels(&x);
    CcType wide = x;
    wide.dtype = one.dtype;
    const CcOperand mean = value_of(cc_adjoint_reshaped(a, in.mean.value, &one)),
                    var = value_of(cc_adjoint_reshaped(a, in.var.value, &one));
    const CcOperand centred = value_of(emit(a, CC_OP_sub, &wide, in.x, mean));
    const CcOperand with = value_of(emit(a, CC_OP_mul, &wide, value_of(g), centred));
    const CcOperand s = value_of(emit(a, CC_OP_sum, &one, value_of(g), int_of(dims_of(&x)))),
                    p = value_of(emit(a, CC_OP_sum, &one, with, int_of(dims_of(&x))));
    if (wants(a, in.x)) {
        CcOperand weight = in.weight;
        if (weight.kind == CC_IN_VALUE) weight.value = cc_adjoint_reshaped(a, weight.value, &one);
        const CcOperand count = float_of((double)(cc_type_numel(&x) / x.size[1]));
        /* in the dtype of the statistics, which half precision would round: then the sum of dx is not 0 */
        const int dx = emit(a, CC_OP_batch_dx, &wide, value_of(g), in.x, mean, var, s, p, weight, in.eps, count);
        cc_adjoint_add(a, in.x.value, cc_adjoint_cast(a, dx, x.dtype));
    }
    if (wants(a, in.weight)) {
        const int dw = emit(a, CC_OP_batch_dw, &one, p, var, in.eps);
        cc_adjoint_add(a, in.weight.value, cc_adjoint_reshaped(a, dw, type_of(a, in.weight.value)));
    }
    if (wants(a, in.bias)) cc_adjoint_add(a, in.bias.value, cc_adjoint_reshaped(a, s.value, type_of(a, in.bias.value)));
    return true;
}
