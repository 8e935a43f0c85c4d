/* moves: the backward of ops that move elements, read them at indices, or scan them; as cc_rules_apply. A read
 * at indices becomes a sum at these indices; what was repeated is summed over its copies. */
#include <math.h>

#include "grad_int.h"

static CcType dense(const Adjoint *a, int v) { return cc_adjoint_dense(type_of(a, v)); }

static int zeros(Adjoint *a, const CcType *t) { return emit(a, CC_OP_fill, t, float_of(0)); }

static bool is_empty(const Adjoint *a, const CcNode *n) {
    return cc_type_numel(type_of(a, cc_graph_source(a->g, n))) == 0 || cc_type_numel(type_of(a, n->out0)) == 0;
}

static int add(Adjoint *a, int x, int y) {
    const CcType t = dense(a, x);
    return emit(a, CC_OP_add, &t, value_of(x), value_of(y));
}

/* ------------------------------------------------------------------ parts of a dim */

/* v among zeros: from `at` on, in a dim of this size. */
static int placed(Adjoint *a, int v, int dim, int64_t at, int64_t size) {
    CcOperand in[2 + 2 * CC_MAX_DIMS] = {value_of(v)};
    CcType t = dense(a, v);
    const int64_t own = t.size[dim];
    int n = 1;
    for (int d = t.ndim - 1; d >= dim; d--) {
        in[n++] = int_of(d == dim ? at : 0);
        in[n++] = int_of(d == dim ? size - own - at : 0);
    }
    in[n++] = float_of(0);
    t.size[dim] = size;
    cc_type_make_contiguous(&t);
    return cc_adjoint_in(a, CC_OP_pad, &t, in, n);
}

static int flipped(Adjoint *a, int v, int dim) {
    const CcType t = dense(a, v);
    return emit(a, CC_OP_flip, &t, value_of(v), int_of(dim));
}

static int sum_along(Adjoint *a, int v, int dim) {
    CcType t = dense(a, v);
    t.size[dim] = 1;
    cc_type_make_contiguous(&t);
    return emit(a, CC_OP_sum, &t, value_of(v), int_of(INT64_C(1) << (t.ndim - 1 - dim)));
}

/* ------------------------------------------------------------------ slices */

/* Along each dim of x, what a slice takes: `size` elements from `from` on. */
typedef struct Taken {
    int64_t from, size, step;
} Taken;

static bool takes(const CcType *x, int d, int64_t size, int64_t stride, Taken *t) {
    if (x->size[d] == 1 || x->stride[d] == 0 || stride % x->stride[d] != 0) return false;
    t->size = size;
    t->step = stride / x->stride[d];
    return t->step > 0 && t->from + (size - 1) * t->step < x->size[d];
}

/* Dims of size 1 of the result are no matter: an index drops a dim, None adds one. First indices of 0 need not be
 * named. If a dim of the result could be that
 * of two dims of x, both lead to the same elements. */
static bool find_taken(const Adjoint *a, const CcNode *n, int x, Taken *out) {
    const CcType *t = type_of(a, x), *y = type_of(a, n->out0);
    int e = 0;
    for (int d = 0; d < t->ndim; d++) out[d] = (Taken){0, 1, 1};
    for (int i = 1; i + 1 < n->n_in; i += 2) {
        const int d = cc_graph_dim(t, cc_graph_operand(a->g, n, i));
        const CcOperand *at = cc_graph_operand(a->g, n, i + 1);
        if (d < 0 || at->kind != CC_IN_INT) return false;
        out[d].from = at->i < 0 ? at->i + t->size[d] : at->i;
    }
    for (int d = 0; d < t->ndim; d++) {
        while (e < y->ndim && y->size[e] == 1) e++;
        if (e < y->ndim && takes(t, d, y->size[e], y->stride[e], &out[d])) {
            e++;
            continue;
        }
        out[d] = (Taken){out[d].from, 1, 1};
    }
    while (e < y->ndim && y->size[e] == 1) e++;
    return e == y->ndim;
}

/* Joined, not padded: padding of a few elements on each side is not a kernel's work (run/boxes.c). */
int cc_moves_spread(Adjoint *a, int v, int dim, int64_t step, int64_t at, int64_t room) {
    CcType wide = dense(a, v), t = wide;
    const int64_t size = wide.size[dim];
    CcOperand in[4];
    int n = 0;
    t.ndim = 3; /* elements, room for zeros, what is behind the dim: few dims, since loops have few */
    t.size[0] = t.size[1] = t.size[2] = 1;
    for (int d = 0; d < wide.ndim; d++) t.size[d <= dim ? 0 : 2] *= wide.size[d];
    cc_type_make_contiguous(&t);
    const int each = cc_adjoint_reshaped(a, v, &t);
    const int64_t length[] = {at, 1, step - 1 - at};
    for (int i = 0; i < CC_COUNT(length); i++) {
        t.size[1] = length[i];
        cc_type_make_contiguous(&t);
        if (length[i] > 0) in[n++] = value_of(i == 1 ? each : zeros(a, &t));
    }
    in[n++] = int_of(1);
    t.size[1] = step;
    cc_type_make_contiguous(&t);
    const int apart = cc_adjoint_in(a, CC_OP_cat, &t, in, n);
    wide.size[dim] = size * step;
    cc_type_make_contiguous(&wide);
    const int r = cc_adjoint_reshaped(a, apart, &wide);
    return size * step > room ? cc_adjoint_part(a, r, dim, 0, room) : r;
}

bool cc_moves_slice(Adjoint *a, const CcNode *n, int x) {
    Taken taken[CC_MAX_DIMS];
    CcType t = dense(a, x);
    if (!find_taken(a, n, x, taken)) return false;
    CcType all = t;
    for (int d = 0; d < t.ndim; d++) all.size[d] = taken[d].size;
    cc_type_make_contiguous(&all);
    int g = cc_adjoint_reshaped(a, a->grad[n->out0], &all);
    for (int d = 0; d < t.ndim; d++) {
        const int64_t at = taken[d].from % taken[d].step, from = taken[d].from - at;
        if (taken[d].step > 1) g = cc_moves_spread(a, g, d, taken[d].step, at, t.size[d] - from);
        if (type_of(a, g)->size[d] != t.size[d]) g = placed(a, g, d, from, t.size[d]);
    }
    cc_adjoint_add(a, x, g);
    return true;
}

/* ------------------------------------------------------------------ moves */

static bool roll(Adjoint *a, const CcNode *n) {
    CcIn_roll in;
    CcOperand out[1 + 2 * CC_MAX_DIMS];
    if (!cc_in_roll(a->g, n, &in) || in.shifts_and_dims.n > 2 * CC_MAX_DIMS) return false;
    const bool flat = in.shifts_and_dims.n == 1;
    const int shifts = flat ? 1 : in.shifts_and_dims.n / 2, g = a->grad[n->out0];
    CcType t = dense(a, in.x.value), line = t;
    line.ndim = 1;
    line.size[0] = cc_type_numel(&t);
    line.stride[0] = 1;
    out[0] = value_of(flat ? cc_adjoint_reshaped(a, g, &line) : g);
    for (int i = 0; i < in.shifts_and_dims.n; i++) {
        const CcOperand *o = cc_graph_operand(a->g, n, in.shifts_and_dims.first + i);
        if (o->kind != CC_IN_INT) return false;
        out[1 + i] = int_of(i < shifts ? -o->i : o->i);
    }
    const int r = cc_adjoint_in(a, CC_OP_roll, flat ? &line : &t, out, 1 + in.shifts_and_dims.n);
    cc_adjoint_add(a, in.x.value, cc_adjoint_reshaped(a, r, &t));
    return true;
}

static bool flip(Adjoint *a, const CcNode *n) {
    CcIn_flip in;
    CcOperand out[1 + CC_MAX_DIMS] = {value_of(a->grad[n->out0])};
    if (!cc_in_flip(a->g, n, &in) || in.dims.n > CC_MAX_DIMS) return false;
    for (int i = 0; i < in.dims.n; i++) out[1 + i] = *cc_graph_operand(a->g, n, in.dims.first + i);
    const CcType t = dense(a, in.x.value);
    cc_adjoint_add(a, in.x.value, cc_adjoint_in(a, CC_OP_flip, &t, out, 1 + in.dims.n));
    return true;
}

/* Dim d of the result consists of `outer[d]` copies of dim d of x, each of whose elements stands `inner[d]` times in a
 * row. x may lack leading dims. */
static bool copies(Adjoint *a, const CcNode *n, const int64_t *outer, const int64_t *inner) {
    const CcType x = dense(a, cc_graph_source(a->g, n)), *y = type_of(a, n->out0);
    const int lead = y->ndim - x.ndim;
    CcType split = x, one;
    bool copied[CC_MAX_DIMS];
    int dims = 0;
    for (int d = 0; d < y->ndim; d++) {
        const int64_t sizes[] = {outer[d], d < lead ? 1 : x.size[d - lead], inner[d]};
        for (int k = 0; k < 3; k++) {
            if (k != 1 && sizes[k] == 1) continue;
            if (dims == CC_MAX_DIMS) return false;
            copied[dims] = k != 1;
            split.size[dims++] = sizes[k];
        }
    }
    split.ndim = (int8_t)dims;
    cc_type_make_contiguous(&split);
    one = split;
    for (int d = 0; d < dims; d++)
        if (copied[d]) one.size[d] = 1;
    cc_type_make_contiguous(&one);
    const int sum = cc_adjoint_summed(a, cc_adjoint_reshaped(a, a->grad[n->out0], &split), one);
    cc_adjoint_add(a, cc_graph_source(a->g, n), cc_adjoint_reshaped(a, sum, &x));
    return true;
}

static bool repeat(Adjoint *a, const CcNode *n) {
    CcIn_repeat in;
    int64_t outer[CC_MAX_DIMS], inner[CC_MAX_DIMS];
    if (!cc_in_repeat(a->g, n, &in) || in.times.n != type_of(a, n->out0)->ndim) return false;
    for (int d = 0; d < in.times.n; d++) {
        const CcOperand *o = cc_graph_operand(a->g, n, in.times.first + d);
        if (o->kind != CC_IN_INT) return false;
        outer[d] = o->i;
        inner[d] = 1;
    }
    return copies(a, n, outer, inner);
}

static bool repeat_interleave(Adjoint *a, const CcNode *n) {
    CcIn_repeat_interleave in;
    int64_t outer[CC_MAX_DIMS], inner[CC_MAX_DIMS];
    if (!cc_in_repeat_interleave(a->g, n, &in)) return false;
    const CcType *x = type_of(a, in.x.value);
    const int dim = cc_graph_dim(x, &in.dim);
    if (dim < 0 || x->ndim != type_of(a, n->out0)->ndim) return false;
    for (int d = 0; d < x->ndim; d++) {
        outer[d] = 1;
        inner[d] = d == dim ? in.times.i : 1;
    }
    return copies(a, n, outer, inner);
}

/* The same op with another number, which undoes it. */
static bool inverse(Adjoint *a, const CcNode *n, CcOpId op, int64_t by) {
    const CcType t = dense(a, cc_graph_source(a->g, n));
    cc_adjoint_add(a, cc_graph_source(a->g, n), emit(a, op, &t, value_of(a->grad[n->out0]), int_of(by)));
    return true;
}

static bool shuffle(Adjoint *a, const CcNode *n) {
    const CcType *x = type_of(a, cc_graph_source(a->g, n));
    const CcOperand *by = cc_graph_operand(a->g, n, 1);
    if (by->kind != CC_IN_INT || by->i < 1) return false;
    if (n->op == CC_OP_pixel_shuffle) return inverse(a, n, CC_OP_pixel_unshuffle, by->i);
    if (n->op == CC_OP_pixel_unshuffle) return inverse(a, n, CC_OP_pixel_shuffle, by->i);
    return x->ndim > 1 && inverse(a, n, CC_OP_channel_shuffle, x->size[1] / by->i);
}

/* y = a * sigmoid(b), where a and b are the halves of x */
static bool glu(Adjoint *a, const CcNode *n) {
    CcIn_glu in;
    const int g = a->grad[n->out0];
    if (!cc_in_glu(a->g, n, &in)) return false;
    const CcType x = dense(a, in.x.value), half = dense(a, g);
    const int dim = cc_graph_dim(&x, &in.dim);
    if (dim < 0 || x.dtype != half.dtype) return false;
    const CcOperand p = value_of(cc_adjoint_part(a, in.x.value, dim, 0, half.size[dim])),
                    q = value_of(cc_adjoint_part(a, in.x.value, dim, half.size[dim], half.size[dim]));
    const int dp = emit(a, cc_op_grad(CC_OP_gated, 0), &half, none(), q, value_of(g), none()),
              dq = emit(a, cc_op_grad(CC_OP_gated, 1), &half, p, q, value_of(g), none());
    cc_adjoint_add(a, in.x.value, emit(a, CC_OP_cat, &x, value_of(dp), value_of(dq), int_of(dim)));
    return true;
}

/* ------------------------------------------------------------------ padding with elements of x */

/* One dim: the gradient of what was copied from x into the margins is added to that of its origin. */
static int unpadded(Adjoint *a, int op, int g, int dim, int64_t before, int64_t after, int64_t size) {
    int r = cc_adjoint_part(a, g, dim, before, size);
    for (int end = 0; end < 2; end++) {
        const int64_t width = end ? after : before;
        if (width == 0) continue;
        int margin = cc_adjoint_part(a, g, dim, end ? before + size : 0, width);
        int64_t at = end ? 0 : size - width; /* circular */
        if (op == CC_OP_pad_replicate) {
            margin = sum_along(a, margin, dim);
            at = end ? size - 1 : 0;
        } else if (op == CC_OP_pad_reflect) {
            margin = flipped(a, margin, dim);
            at = end ? size - 1 - width : 1;
        }
        r = add(a, r, placed(a, margin, dim, at, size));
    }
    return r;
}

static bool pad(Adjoint *a, const CcNode *n) {
    CcIn_pad_reflect in;
    if (!cc_operands_read(a->g, n, CC_OP_pad_reflect, &in)) return false;
    const CcType x = dense(a, in.x.value);
    int64_t width[2 * CC_MAX_DIMS];
    if (in.widths.n % 2 || in.widths.n > 2 * x.ndim) return false;
    for (int i = 0; i < in.widths.n; i++) {
        const CcOperand *o = cc_graph_operand(a->g, n, in.widths.first + i);
        const int64_t size = x.size[x.ndim - 1 - i / 2];
        const int64_t most = n->op == CC_OP_pad_replicate ? INT32_MAX : n->op == CC_OP_pad_reflect ? size - 1 : size;
        if (o->kind != CC_IN_INT || o->i < 0 || o->i > most) return false;
        width[i] = o->i;
    }
    int g = a->grad[n->out0];
    for (int i = 0; i < in.widths.n; i += 2) {
        const int d = x.ndim - 1 - i / 2;
        g = unpadded(a, n->op, g, d, width[i], width[i + 1], x.size[d]);
    }
    cc_adjoint_add(a, in.x.value, g);
    return true;
}

/* ------------------------------------------------------------------ scans */

/* The dim that this operand names as bits; -1: it names no dim, or several. */
static int the_dim(const CcType *t, const CcOperand *dims) {
    for (int d = 0; d < t->ndim; d++)
        if (dims->kind == CC_IN_INT && dims->i == INT64_C(1) << (t->ndim - 1 - d)) return d;
    return -1;
}

static int scanned(const Adjoint *a, const CcNode *n) {
    return the_dim(type_of(a, n->out0), cc_graph_operand(a->g, n, 1));
}

/* The same scan from the other end. */
static int back(Adjoint *a, CcOpId op, int v, int dim) {
    const CcType t = dense(a, v);
    const int scan = emit(a, op, &t, value_of(flipped(a, v, dim)), int_of(INT64_C(1) << (t.ndim - 1 - dim)));
    return flipped(a, scan, dim);
}

static bool cumsum(Adjoint *a, const CcNode *n) {
    const int dim = scanned(a, n);
    if (dim < 0) return false;
    cc_adjoint_add_summed(a, cc_graph_source(a->g, n), back(a, CC_OP_cumsum, a->grad[n->out0], dim));
    return true;
}

/* 1 where x is this number. */
static int is_number(Adjoint *a, int x, double number) {
    CcType flags = dense(a, x);
    flags.dtype = CC_DT_BOOL;
    return emit(a, CC_OP_eq, &flags, value_of(x), float_of(number));
}

/* Before the first zero of a row, dx = sum(g * y from here on) / x; at it, y is taken without this factor; behind it, all
 * products contain a zero. */
static bool cumprod(Adjoint *a, const CcNode *n) {
    const int dim = scanned(a, n), x = cc_graph_source(a->g, n), g = a->grad[n->out0];
    if (dim < 0 || type_of(a, x)->dtype != type_of(a, g)->dtype) return false;
    const CcType t = dense(a, x);
    CcType flags = t;
    flags.dtype = CC_DT_BOOL;
    const CcOperand bits = *cc_graph_operand(a->g, n, 1), zero = value_of(is_number(a, x, 0));
    const int count = emit(a, CC_OP_cumsum, &t, value_of(emit(a, CC_OP_cast, &t, zero)), bits);
    const int first = emit(a, CC_OP_logical_and, &flags, zero, value_of(is_number(a, count, 1)));
    const int other = emit(a, CC_OP_where, &t, value_of(first), float_of(1), value_of(x));
    const int without = emit(a, CC_OP_cumprod, &t, value_of(other), bits);
    const int sums = back(a, CC_OP_cumsum, emit(a, CC_OP_mul, &t, value_of(g), value_of(n->out0)), dim),
              rest = back(a, CC_OP_cumsum, emit(a, CC_OP_mul, &t, value_of(g), value_of(without)), dim);
    const int plain = emit(a, CC_OP_div, &t, value_of(sums), value_of(x)),
              at = emit(a, CC_OP_where, &t, value_of(first), value_of(rest), float_of(0));
    cc_adjoint_add(a, x, emit(a, CC_OP_where, &t, value_of(is_number(a, count, 0)), value_of(plain), value_of(at)));
    return true;
}

/* Of the gradients of one sign: exp(x + log(sum(exp(log |g| - y) from here on))). */
static int shares(Adjoint *a, int x, int y, int g, int dim, bool positive) {
    const CcType t = dense(a, x);
    CcType flags = t;
    flags.dtype = CC_DT_BOOL;
    const int own = emit(a, positive ? CC_OP_gt : CC_OP_lt, &flags, value_of(g), float_of(0));
    const int size = positive ? g : emit(a, CC_OP_neg, &t, value_of(g));
    const int logs =
        emit(a, CC_OP_where, &t, value_of(own), value_of(emit(a, CC_OP_log, &t, value_of(size))), float_of(-HUGE_VAL));
    const int sums = back(a, CC_OP_logcumsumexp, emit(a, CC_OP_sub, &t, value_of(logs), value_of(y)), dim);
    return emit(a, CC_OP_exp, &t, value_of(add(a, sums, x)));
}

static bool logcumsumexp(Adjoint *a, const CcNode *n) {
    const int dim = scanned(a, n), x = cc_graph_source(a->g, n), g = a->grad[n->out0];
    if (dim < 0 || type_of(a, x)->dtype != type_of(a, g)->dtype) return false;
    const CcType t = dense(a, x);
    const int plus = shares(a, x, n->out0, g, dim, true), minus = shares(a, x, n->out0, g, dim, false);
    cc_adjoint_add(a, x, emit(a, CC_OP_sub, &t, value_of(plus), value_of(minus)));
    return true;
}

static bool diff(Adjoint *a, const CcNode *n) {
    CcIn_diff in;
    if (!cc_in_diff(a->g, n, &in)) return false;
    const CcType x = dense(a, in.x.value);
    const int dim = cc_graph_dim(&x, &in.dim), g = a->grad[n->out0];
    if (dim < 0 || type_of(a, g)->size[dim] != x.size[dim] - 1) return false;
    cc_adjoint_add(a, in.x.value,
                   emit(a, CC_OP_sub, &x, value_of(placed(a, g, dim, 1, x.size[dim])),
                        value_of(placed(a, g, dim, 0, x.size[dim]))));
    return true;
}

/* ------------------------------------------------------------------ reads at indices */

/* zeros(x), with v added, or written, at the indices along a dim; one index an element. */
static int scattered(Adjoint *a, int x, int dim, CcOperand index, int v, bool sums) {
    const CcType t = dense(a, x);
    return make(a, scatter, &t, .x = value_of(zeros(a, &t)), .dim = int_of(dim), .index = index, .source = value_of(v),
                .include_self = {.kind = CC_IN_BOOL, .i = 1}, .how = int_of(sums));
}

static bool gather(Adjoint *a, const CcNode *n) {
    CcIn_gather in;
    const int dim = cc_in_gather(a->g, n, &in) ? cc_graph_dim(type_of(a, in.x.value), &in.dim) : -1;
    if (dim < 0 || type_of(a, in.index.value)->ndim != type_of(a, in.x.value)->ndim) return false;
    cc_adjoint_add(a, in.x.value, scattered(a, in.x.value, dim, in.index, a->grad[n->out0], true));
    return true;
}

static bool index_select(Adjoint *a, const CcNode *n) {
    CcIn_index_select in;
    const int dim = cc_in_index_select(a->g, n, &in) ? cc_graph_dim(type_of(a, in.x.value), &in.dim) : -1;
    if (dim < 0 || type_of(a, in.index.value)->ndim != 1) return false;
    const CcType t = dense(a, in.x.value);
    cc_adjoint_add(a, in.x.value,
                   make(a, index_add, &t, .x = value_of(zeros(a, &t)), .dim = int_of(dim), .index = in.index,
                        .source = value_of(a->grad[n->out0]), .alpha = int_of(1)));
    return true;
}

/* Indices that count from the end, from the start. */
static CcOperand from_start(Adjoint *a, CcOperand index, int64_t size) {
    const CcType t = dense(a, index.value);
    CcType flags = t;
    flags.dtype = CC_DT_BOOL;
    const int negative = emit(a, CC_OP_lt, &flags, index, int_of(0)),
              added = emit(a, CC_OP_add, &t, index, int_of(size));
    return value_of(emit(a, CC_OP_where, &t, value_of(negative), value_of(added), index));
}

/* gather, where x and index broadcast in the other dims */
static bool take_along(Adjoint *a, const CcNode *n) {
    CcIn_take_along in;
    const int g = a->grad[n->out0];
    if (!cc_in_take_along(a->g, n, &in)) return false;
    const CcType y = dense(a, n->out0);
    CcType all = y;
    const int dim = cc_graph_dim(&y, &in.dim);
    if (dim < 0 || type_of(a, in.x.value)->ndim != y.ndim || type_of(a, in.index.value)->ndim != y.ndim) return false;
    all.size[dim] = type_of(a, in.x.value)->size[dim];
    cc_type_make_contiguous(&all);
    const CcOperand index = from_start(a, in.index, all.size[dim]);
    const int sums = make(a, scatter, &all, .x = value_of(zeros(a, &all)), .dim = int_of(dim),
                          .index = value_of(cc_adjoint_expanded(a, index.value, &y)), .source = value_of(g),
                          .include_self = {.kind = CC_IN_BOOL, .i = 1}, .how = int_of(1));
    cc_adjoint_add_summed(a, in.x.value, sums);
    return true;
}

/* x flattened, at indices */
static bool take_flat(Adjoint *a, const CcNode *n) {
    CcIn_take_flat in;
    if (!cc_in_take_flat(a->g, n, &in)) return false;
    const CcType x = dense(a, in.x.value);
    CcType flat = x, index = dense(a, in.index.value), part;
    index.size[0] = cc_type_numel(&index);
    flat.size[0] = cc_type_numel(&x);
    flat.ndim = index.ndim = 1;
    flat.stride[0] = index.stride[0] = 1;
    part = index;
    part.dtype = x.dtype;
    const CcOperand at = from_start(a, value_of(cc_adjoint_reshaped(a, in.index.value, &index)), flat.size[0]);
    const int sums = make(a, index_add, &flat, .x = value_of(zeros(a, &flat)), .dim = int_of(0), .index = at,
                          .source = value_of(cc_adjoint_reshaped(a, a->grad[n->out0], &part)), .alpha = int_of(1));
    cc_adjoint_add(a, in.x.value, cc_adjoint_reshaped(a, sums, &x));
    return true;
}

/* x[key]; not a mask, for which the result's size depends on data. */
static bool index_key(Adjoint *a, const CcNode *n) {
    CcIn_index in;
    CcOperand out[CC_OPERANDS_MAX];
    if (!cc_in_index(a->g, n, &in) || in.key.n + 2 > CC_OPERANDS_MAX) return false;
    const CcType t = dense(a, in.x.value);
    for (int i = 0; i < in.key.n; i++) {
        out[2 + i] = *cc_graph_operand(a->g, n, in.key.first + i);
        if (out[2 + i].kind == CC_IN_VALUE && type_of(a, out[2 + i].value)->dtype == CC_DT_BOOL) return false;
    }
    out[0] = value_of(zeros(a, &t));
    out[1] = value_of(a->grad[n->out0]);
    cc_adjoint_add(a, in.x.value, cc_adjoint_in(a, CC_OP_put_add, &t, out, 2 + in.key.n));
    return true;
}

/* The gradient goes where the second result says. many: the first one has the dim, with any size. */
static bool from_places(Adjoint *a, const CcNode *n, int dim, bool many, bool sums) {
    const int x = cc_graph_source(a->g, n);
    CcType kept = dense(a, x), at;
    if (n->n_out != 2 || dim < 0) return false;
    kept.size[dim] = many ? type_of(a, n->out0)->size[dim] : 1;
    cc_type_make_contiguous(&kept);
    at = kept;
    at.dtype = CC_DT_I64;
    cc_adjoint_add(a, x,
                   scattered(a, x, dim, value_of(cc_adjoint_reshaped(a, n->out0 + 1, &at)),
                             cc_adjoint_reshaped(a, a->grad[n->out0], &kept), sums));
    return true;
}

/* max and min along one dim, and cummax */
static bool extreme(Adjoint *a, const CcNode *n, bool sums) {
    const CcType *x = type_of(a, cc_graph_source(a->g, n));
    return from_places(a, n, the_dim(x, cc_graph_operand(a->g, n, 1)), sums, sums);
}

/* sort, topk, kthvalue, median, mode */
static bool picked(Adjoint *a, const CcNode *n) {
    const CcType *x = type_of(a, cc_graph_source(a->g, n));
    return from_places(a, n, cc_graph_dim(x, cc_graph_operand(a->g, n, 1)), type_of(a, n->out0)->ndim == x->ndim,
                       false);
}

bool cc_moves_apply(Adjoint *a, const CcNode *n) {
    if (cc_graph_source(a->g, n) < 0 || is_empty(a, n)) return false;
    switch (n->op) {
    case CC_OP_roll: return roll(a, n);
    case CC_OP_flip: return flip(a, n);
    case CC_OP_repeat: return repeat(a, n);
    case CC_OP_repeat_interleave: return repeat_interleave(a, n);
    case CC_OP_pixel_shuffle:
    case CC_OP_pixel_unshuffle:
    case CC_OP_channel_shuffle: return shuffle(a, n);
    case CC_OP_glu: return glu(a, n);
    case CC_OP_pad_reflect:
    case CC_OP_pad_replicate:
    case CC_OP_pad_circular: return pad(a, n);
    case CC_OP_cumsum: return cumsum(a, n);
    case CC_OP_diff: return diff(a, n);
    case CC_OP_gather: return gather(a, n);
    case CC_OP_index_select: return index_select(a, n);
    case CC_OP_index: return index_key(a, n);
    case CC_OP_picked: return picked(a, n);
    case CC_OP_max_dim:
    case CC_OP_min_dim: return extreme(a, n, false);
    case CC_OP_cummax:
    case CC_OP_cummin: return extreme(a, n, true);
    case CC_OP_take_along: return take_along(a, n);
    case CC_OP_take_flat: return take_flat(a, n);
    case CC_OP_cumprod: return cumprod(a, n);
    case CC_OP_logcumsumexp: return logcumsumexp(a, n);
    default: return false;
    }
}
