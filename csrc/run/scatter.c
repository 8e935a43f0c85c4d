/* scatter: writes at indices, to slices and under masks, and reads at indices that no loop does (three indices, or
 * one per element for many elements). All are one nest (pass/reach.c), which dev/move.c runs without compiling a
 * kernel.
 *
 * A write makes x anew with some elements changed: the rest is copied, unless x dies here and the result has its
 * memory already (memory.c). Several elements for one position are processed in eager's order; only for many
 * elements (32768) do index_put and index_copy leave open which one stays. */
#include <math.h>

#include "run_int.h"

typedef struct Scatter {
    CcMove move, copy;
    /* x: changed by a write, or read; src -1: a number; dst: from the first written element on */
    CcSlot dst, x, src;
    int into; /* the node of the given graph that writes x itself; -1: makes dst */
    CcSlot index[CC_MOVE_DIMS];
    bool may_fail; /* an index may be wrong: the host runs it if eager could not start over */
    bool fresh;    /* x's own elements do not take part */
    _Alignas(8) char number[8], neutral[8], one[8];
    CcMove reset; /* fresh: initialises the written elements */
    bool mean;
    CcMove counting;
    int64_t numel, moved; /* number of elements of the result, and of those changed or read */
    int64_t packed;       /* masked_scatter: number of source elements; -1: another op */
} Scatter;

static bool reads(CcOpId op) { return cc_op_info(op)->kind == CC_K_INDEX; }

/* ------------------------------------------------------------------ numbers */

/* Converts a number to an element; false: eager's result could differ. */
static bool as_element(const CcOperand *o, CcDtype dt, char *out) {
    const double v = cc_operand_number(o);
    const bool whole = o->kind != CC_IN_FLOAT || (v >= -9e15 && v <= 9e15 && v == (double)(int64_t)v);
    const int64_t i = o->kind == CC_IN_FLOAT ? (whole ? (int64_t)v : 0) : o->i;
    const float f = o->kind == CC_IN_FLOAT ? (float)v : (float)o->i; /* rounded once */
    const int bits = 8 * cc_dtype_size(dt);
    const char kind = cc_dtype_info(dt)->kind;
    if (o->kind != CC_IN_INT && o->kind != CC_IN_FLOAT && o->kind != CC_IN_BOOL) return false;
    if (dt == CC_DT_F32) memcpy(out, &f, sizeof f);
    else if (dt == CC_DT_F64) memcpy(out, &v, sizeof v);
    else if (kind == 'b') out[0] = v != 0;
    else if (kind == 'f') { /* half precision: only 0, which has all bits 0 */
        if (v != 0 || signbit(v)) return false;
        memset(out, 0, 8);
    } else {
        const int64_t low = kind == 'u' ? 0 : bits == 64 ? INT64_MIN : -(INT64_C(1) << (bits - 1));
        const int64_t high = bits == 64    ? INT64_MAX
                             : kind == 'u' ? (INT64_C(1) << bits) - 1
                                           : (INT64_C(1) << (bits - 1)) - 1;
        if (!whole || i < low || i > high) return false;
        memcpy(out, &i, sizeof i); /* little endian */
    }
    return true;
}

static bool neutral_element(CcPutHow how, CcDtype dt, char *out) {
    const CcOperand o = cc_store_neutral(how, dt);
    return as_element(&o, dt, out);
}

/* ------------------------------------------------------------------ understanding a node */

/* False: a mean that writes x in place. */
static bool read_how(const CcStore *store, Scatter *s) {
    s->fresh = store->fresh;
    s->move.scale = store->scale;
    s->mean = store->how == CC_PUT_MEAN;
    s->move.how = s->mean ? CC_PUT_SUM : store->how;
    return !s->mean || s->into < 0;
}

/* Strides of the source in bytes. */
static bool read_source(const CcGraph *g, const CcNode *n, const CcStore *store, const CcReach *r, Scatter *s) {
    const CcOperand *o = &store->source;
    const CcType *out = &g->val.at[n->out0].type;
    if (o->kind != CC_IN_VALUE) return as_element(o, (CcDtype)out->dtype, s->number);
    const CcType *t = &g->val.at[o->value].type;
    s->src.value = o->value;
    if (!cc_type_known(t) || t->dtype != out->dtype) return false;
    if (n->op == CC_OP_masked_scatter) {
        s->packed = cc_type_numel(t);
        return cc_type_contiguous(t);
    }
    if (!cc_store_steps(g, n, store, &r->space, s->move.src)) return false;
    for (int d = 0; d < r->space.ndim; d++) s->move.src[d] *= s->move.bytes;
    return true;
}

/* The order of dims decides which of several elements for one position stays; for indices of several dims, eager's
 * order depends on strides. */
static bool order_known(const CcNode *n, const CcReach *r, const Scatter *s) {
    if (s->move.how != CC_PUT_SET || s->src.value < 0 || (n->op != CC_OP_put && n->op != CC_OP_index_put)) return true;
    int64_t before[CC_MOVE_DIMS + 1];
    for (int k = 0; k <= r->n; k++) before[k] = INT64_MAX;
    for (int d = 0; d < r->space.ndim; d++) {
        if (r->space.stride[d] || r->space.size[d] == 1) continue;
        for (int k = 0; k <= r->n; k++) {
            const int64_t step = k < r->n ? r->index[k].step[d] : s->move.src[d];
            if (step > before[k]) return false;
            if (step) before[k] = step;
        }
    }
    return true;
}

static bool read_indices(const CcGraph *g, const CcReach *r, Scatter *s) {
    s->move.n_index = r->n;
    for (int k = 0; k < r->n; k++) {
        const CcReachIndex *x = &r->index[k];
        const CcType *t = &g->val.at[x->value].type;
        const int size = cc_dtype_size(t->dtype);
        if (!cc_type_known(t)) return false;
        s->move.index[k] = (CcMoveIndex){.by = x->by * s->move.bytes,
                                         .low = x->ends ? -x->count : 0,
                                         .count = x->count,
                                         .wide = t->dtype == CC_DT_I64,
                                         .mask = x->mask};
        for (int d = 0; d < r->space.ndim; d++) s->move.index[k].step[d] = x->step[d] * size;
        s->index[k].value = x->value;
        cc_prim_settle(g, &s->index[k]);
        s->may_fail = s->may_fail || !x->mask;
    }
    return true;
}

static void read_copy(const CcType *x, const CcType *out, Scatter *s) {
    s->copy = (CcMove){.ndim = out->ndim, .bytes = s->move.bytes};
    for (int d = 0; d < out->ndim; d++) {
        s->copy.size[d] = out->size[d];
        s->copy.dst[d] = out->stride[d] * s->move.bytes;
        s->copy.src[d] = x->stride[d] * s->move.bytes;
    }
    cc_move_plan(&s->copy);
}

/* The extra nests of a mean, or of a write without x's own elements: the nest itself, with a number as source. */
static bool read_more(const CcType *out, CcPutHow how, Scatter *s) {
    CcMove m = s->move;
    memset(m.src, 0, sizeof m.src);
    m.how = CC_PUT_SET;
    s->reset = m;
    m.how = CC_PUT_SUM;
    s->counting = m;
    return (!s->fresh || neutral_element(how, (CcDtype)out->dtype, s->neutral)) &&
           (!s->mean || neutral_element(CC_PUT_PROD, (CcDtype)out->dtype, s->one));
}

/* What a mask entry selects is one row in memory, since the kernel takes rows from the source one after the other. */
static bool has_one_row(CcMove move) {
    cc_move_plan(&move);
    return move.ndim - move.rows <= 1;
}

static bool understand(const CcGraph *g, const CcNode *n, Scatter *s) {
    CcReach r;
    CcStore store;
    *s = (Scatter){.dst = {n->out0, 0}, .into = cc_into_is_write(g, n) ? n->origin : -1, .src = {-1, 0}, .packed = -1};
    const int source = cc_graph_source(g, n);
    if (source < 0 || n->n_out != 1 || (n->flags && s->into < 0)) return false;
    const CcType *x = &g->val.at[source].type, *out = &g->val.at[n->out0].type;
    const bool reading = reads((CcOpId)n->op);
    if (!cc_type_known(x) || !cc_type_known(out) ||
        !(s->into < 0 ? cc_type_dense(out) : cc_into_non_overlapping(out)) || x->dtype != out->dtype ||
        (!reading && !cc_store_read(g, n, &store)))
        return false;
    if (!reading && !cc_type_same_shape(x, out)) return false;
    if (!cc_reach_read(g, n, reading ? x : out, &r) || r.space.ndim > CC_MOVE_DIMS) return false;
    s->x.value = source;
    cc_prim_settle(g, &s->x);
    s->move.bytes = cc_dtype_size(out->dtype);
    s->move.dtype = (CcDtype)out->dtype;
    s->move.reads = reading;
    s->move.ndim = r.space.ndim;
    s->numel = cc_type_numel(out);
    s->moved = cc_type_numel(&r.space);
    for (int d = 0; d < r.space.ndim; d++) {
        s->move.size[d] = r.space.size[d];
        (reading ? s->move.src : s->move.dst)[d] = r.space.stride[d] * s->move.bytes;
        if (reading) s->move.dst[d] = out->stride[d] * s->move.bytes;
    }
    if (!read_indices(g, &r, s)) return false;
    if (reading) {
        s->x.at += r.offset * s->move.bytes;
        return cc_type_same_shape(&r.space, out) && !(r.n && r.index[0].mask);
    }
    cc_prim_settle(g, &s->dst);
    s->dst.at += r.offset * s->move.bytes;
    if (!read_how(&store, s) || !read_source(g, n, &store, &r, s) || !order_known(n, &r, s)) return false;
    if (r.n && r.index[0].mask && n->op != CC_OP_masked_scatter) { /* a single number under a mask */
        if (store.how != CC_PUT_SET || (s->src.value >= 0 && cc_type_numel(&g->val.at[s->src.value].type) != 1))
            return false;
    }
    s->move.packed = s->packed >= 0;
    if (s->packed >= 0 && !has_one_row(s->move)) return false;
    s->may_fail = s->may_fail || s->packed >= 0;
    read_copy(x, out, s);
    cc_prim_settle(g, &s->src);
    return cc_move_can(s->move.how, s->move.dtype) && read_more(out, store.how, s);
}

static bool can(const CcGraph *g, int node) {
    Scatter s;
    return understand(g, &g->node.at[node], &s) && (!s.may_fail || cc_index_may(g, node));
}

static void *build(const CcGraph *g, const int *chain, int n, CcArena *arena, CcErr *err) {
    (void)n; /* no post-ops */
    Scatter *s = cc_arena_alloc(arena, sizeof *s);
    if (!s) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    if (!understand(g, &g->node.at[chain[0]], s)) { /* can() has accepted it */
        cc_err_set(err, CC_E_UNSUPPORTED, "%s: its operands do not fit the result",
                   cc_op_info((CcOpId)g->node.at[chain[0]].op)->name);
        return NULL;
    }
    cc_move_plan(&s->move);
    cc_move_plan(&s->reset);
    cc_move_plan(&s->counting);
    return s;
}

/* ------------------------------------------------------------------ running */

static size_t scratch(const void *work) {
    const Scatter *s = work;
    return s->mean ? (size_t)s->numel * (size_t)s->move.bytes : 0;
}

/* Integers round towards -inf, as in eager. */
#define DIVIDE(T, quotient)                                                                                            \
    do {                                                                                                               \
        T *sum = (T *)at;                                                                                              \
        const T *count = counts;                                                                                       \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const T a = sum[i], b = count[i] == 0 ? 1 : count[i];                                                      \
            sum[i] = quotient;                                                                                         \
        }                                                                                                              \
    } while (0)

static void divide(CcDtype dt, void *at, const void *counts, int64_t n) {
    if (dt == CC_DT_F32) DIVIDE(float, a / b);
    else if (dt == CC_DT_F64) DIVIDE(double, a / b);
    else if (dt == CC_DT_I32) DIVIDE(int32_t, a / b - (a % b < 0));
    else DIVIDE(int64_t, a / b - (a % b < 0));
}

/* Counts the elements per position; counts have the result's layout. */
static int take_mean(const Scatter *s, char *dst, const char *const *index, char *counts) {
    char *first = counts;
    for (int64_t i = 0; i < s->numel; i++, first += s->move.bytes)
        memcpy(first, s->fresh ? "\0\0\0\0\0\0\0" : s->one, (size_t)s->move.bytes);
    if (cc_move_run(&s->counting, counts + s->dst.at, s->one, index) < 0) return -1;
    divide(s->move.dtype, dst, counts, s->numel);
    return 0;
}

static int missing(CcErr *err, int value) { return cc_err_set(err, CC_E_HOST, "no data of value %d", value); }

/* Copies what a write leaves unchanged. */
static int copy(const Scatter *s, char *dst, const char *x) {
    return dst != x && !s->move.reads ? cc_move_run(&s->copy, dst, x, NULL) : 0;
}

static int writing(const Scatter *s, const CcHost *host, CcErr *err) {
    if (host->writing(host->ctx, s->dst.value, s->into, true) == 0) return 0;
    return cc_err_set(err, CC_E_HOST, "value %d can't be written", s->dst.value);
}

/* Changes or reads elements; there is at least one. */
static int move(const Scatter *s, char *dst, const char *x, const CcHost *host, CcErr *err) {
    const char *index[CC_MOVE_DIMS] = {NULL}, *src = s->src.value < 0 ? s->number : cc_prim_data(host, s->src);
    for (int k = 0; k < s->move.n_index; k++)
        if (!(index[k] = cc_prim_data(host, s->index[k]))) return missing(err, s->index[k].value);
    if (!src && s->packed != 0) return missing(err, s->src.value);
    if (s->packed >= 0 && cc_move_count(&s->move, index[0]) > s->packed)
        return cc_err_set(err, CC_E_HOST, "the mask selects more elements than the source has");
    if (s->into >= 0 && !cc_move_good(&s->move, index)) return cc_err_set(err, CC_E_HOST, "an index is out of range");
    if (s->into >= 0 && writing(s, host, err) < 0) return -1;
    if ((s->into < 0 && copy(s, dst, x) < 0) ||
        (s->fresh && cc_move_run(&s->reset, dst + s->dst.at, s->neutral, index) < 0) ||
        cc_move_run(&s->move, dst + s->dst.at, s->move.reads ? x : src, index) < 0 ||
        (s->mean && take_mean(s, dst, index, host->scratch) < 0))
        return cc_err_set(err, CC_E_HOST, "an index is out of range"); /* eager starts over */
    return 0;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const Scatter *s = work;
    char *dst = (s->into < 0 ? host->make : host->data)(host->ctx, s->dst.value);
    if (s->numel == 0) return s->moved ? cc_err_set(err, CC_E_HOST, "an index into an empty dim") : 0;
    const char *x = cc_prim_data(host, s->x);
    if (!dst || !x) return missing(err, dst ? s->x.value : s->dst.value);
    if (s->moved) return move(s, dst, x, host, err);
    if (s->into >= 0) return writing(s, host, err);
    return copy(s, dst, x) < 0 ? cc_err_set(err, CC_E_HOST, "an index is out of range") : 0;
}

/* A read can't reuse its operand's memory: it reads elements after it has written others. */
static bool over(const CcNode *n) { return !reads((CcOpId)n->op); }

const CcPrimFamily CC_SCATTERS = {
    .name = "scatter", .over = over, .can = can, .build = build, .scratch = scratch, .run = run};
