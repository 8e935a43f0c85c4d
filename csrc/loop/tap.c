/* tap: ops whose elements come from elsewhere in their operands, as loop IR: joins, padding, rolling, pooling,
 * resampling, writes to slices and under masks. For each dim that an op maps, a side says which elements of it (taps)
 * an element of the result is made of: where they stand, whether they are there, and their weight. All of it is
 * computed from where the element itself stands:
 *
 *   pad by 2        tap i - 2, there if 0 <= i - 2 < size       max_pool 3, stride 2     taps 2 i - 1, 2 i, 2 i + 1
 *   linear          taps floor(x), floor(x) + 1 of weights 1 - (x - floor(x)), x - floor(x), where x = scale * (i + 0.5) - 0.5
 *
 * A tap that is not there is read at the nearest place that is, and not taken. Sizes and steps are given to the kernel,
 * so new ones need no other. Windows are unrolled; larger ones than MAX_WINDOW are reductions, or not for a loop. */
#include <math.h>

#include "loop_int.h"

enum {
    ALWAYS = -2,     /* in the place of a node: it is there; its weight is 1 */
    NONE = -3,       /* no node yet; -1 is a failure */
    MAX_TAPS = 36,   /* of a dim */
    MAX_WINDOW = 36, /* of all dims: 6x6, 3x3x3 */
    MAX_PIECES = 16, /* that are joined: each element looks which one is its own */
    MAX_UNIT = 8     /* places are counted in so many elements, if they may: then 16 bytes can be loaded at once */
};
/* cc_build_param: and a dim, or a piece */
typedef enum What { SIZE = 1, LAST, STEP, BEFORE, SHIFT, END, AREA, KINDS } What;

typedef struct Tap {
    int at, good, weight; /* nodes */
} Tap;

typedef struct Side {
    int dim, n;
    Tap tap[MAX_TAPS];
    int first; /* pools: where the first tap that is there stands */
    int count; /* pools: taps that the mean divides by */
} Side;

typedef struct Map {
    CcBuild *b;
    const CcNode *n;
    int value; /* x */
    const CcType *in, *out;
    CcDtype index; /* of places: 32 bits where they fit */
    CcDtype real;  /* of weights and sums */
    int access, n_side;
    int64_t unit;
    Side *side;
} Map;

/* ------------------------------------------------------------------ short forms */

static int op(Map *m, CcScalarId id, int x, int y) { return cc_build_op(m->b, id, x, y, -1); }
static int num(Map *m, int64_t v) { return cc_build_int(m->b, m->index, v); }
static int real(Map *m, double v) { return cc_build_float(m->b, m->real, v); }
static int pick(Map *m, int condition, int x, int y) {
    return condition == ALWAYS ? x : cc_build_op(m->b, CC_S_select, condition, x, y);
}
static int plus(Map *m, int x, int64_t v) { return v ? op(m, CC_S_add, x, num(m, v)) : x; }

static int param(Map *m, What what, int which, int64_t v) {
    return cc_build_cast(m->b, cc_build_param(m->b, (which * KINDS + what) << 12 | (m->value & 0xfff), v), m->index);
}

static int both(Map *m, int x, int y) {
    if (x == ALWAYS) return y;
    return y == ALWAYS ? x : op(m, CC_S_and, x, y);
}

static const CcOperand *operand(const Map *m, int i) {
    return i < m->n->n_in ? cc_graph_operand(m->b->g, m->n, i) : NULL;
}

static bool ints(const Map *m, int at, int n, int64_t *out) {
    for (int i = 0; i < n; i++) {
        const CcOperand *o = operand(m, at + i);
        if (!o || (o->kind != CC_IN_INT && o->kind != CC_IN_BOOL)) return false;
        out[i] = o->i;
    }
    return true;
}

/* Where the element stands in a dim of the result. */
static int place(Map *m, int dim) {
    const CcSpace *f = &m->b->space;
    for (int d = 0; d < f->shape.ndim; d++)
        if (cc_space_own_dim(f, m->out, m->b->dropped, d) == dim &&
            (m->b->level == CC_LEVEL_FULL || !cc_space_reduced(f, d)))
            return cc_build_cast(m->b, cc_build_place(m->b, 1u << (f->shape.ndim - 1 - d)), m->index);
    return num(m, 0);
}

static int clamp(Map *m, int x, bool below, bool above, int last) {
    if (below) x = op(m, CC_S_max, x, num(m, 0));
    return above ? op(m, CC_S_min, x, last) : x;
}

static Side *add_side(Map *m, int dim, int taps) {
    Side *s = &m->side[m->n_side++];
    *s = (Side){.dim = dim, .n = taps};
    for (int i = 0; i < taps; i++) s->tap[i].good = s->tap[i].weight = ALWAYS;
    return s;
}

static int size_of(Map *m, int dim) { return param(m, SIZE, dim, m->in->size[dim]); }
static int last_of(Map *m, int dim) { return param(m, LAST, dim, m->in->size[dim] - 1); }

/* ------------------------------------------------------------------ reading */

/* The largest number of elements, a power of two, that all these steps are multiples of. */
static int64_t unit_of(const CcType *t, const Side *side, int n) {
    int64_t unit = MAX_UNIT;
    for (int i = 0; i < n; i++)
        while (t->stride[side[i].dim] % unit) unit /= 2;
    return unit;
}

/* x, which does not move along its mapped dims. */
static int begin_reading(Map *m) {
    CcType seen = *m->in;
    for (int i = 0; i < m->n_side; i++) {
        seen.size[m->side[i].dim] = 1;
        seen.stride[m->side[i].dim] = 0;
    }
    m->unit = unit_of(m->in, m->side, m->n_side);
    return m->access = cc_build_seen(m->b, m->value, &seen);
}

/* Adds what a tap moves the place on. */
static int add_place(Map *m, int at, const Side *s, int tap) {
    const int64_t step = m->in->stride[s->dim] / m->unit;
    const int here = step == 1 ? tap : op(m, CC_S_mul, tap, param(m, STEP, s->dim, step));
    return at == NONE ? here : op(m, CC_S_add, at, here);
}

static int element(Map *m, int at) {
    return cc_build_cast(m->b, cc_build_take(m->b, m->access, at, m->unit), cc_build_compute((CcDtype)m->in->dtype));
}

/* The one element that each element is, or the number where there is none. */
static int read_one(Map *m, const CcOperand *fill) {
    int at = NONE, good = ALWAYS;
    if (begin_reading(m) < 0) return -1;
    for (int i = 0; i < m->n_side; i++) {
        at = add_place(m, at, &m->side[i], m->side[i].tap[0].at);
        good = both(m, good, m->side[i].tap[0].good);
    }
    if (m->n_side == 0) at = num(m, 0);
    const int x = element(m, at);
    return good == ALWAYS ? x : pick(m, good, x, cc_build_number(m->b, fill, (CcDtype)m->in->dtype, false));
}

/* ------------------------------------------------------------------ joins */

/* A piece as the result sees it, without its dim. */
static bool seen_as(const Map *m, const CcOperand *o, int dim, CcType *t, int64_t *length, int64_t *step) {
    if (o->kind != CC_IN_VALUE) return false;
    *t = m->b->g->val.at[o->value].type;
    if (t->ndim < 0 || t->device != 1 || t->dtype == CC_DT_OTHER) return false;
    *length = 1;
    *step = 0;
    if (m->n->op == CC_OP_stack && t->ndim + 1 != m->out->ndim) return false;
    for (int d = m->n->op == CC_OP_stack ? t->ndim++ : -1; d > dim; d--) {
        t->size[d] = t->size[d - 1];
        t->stride[d] = t->stride[d - 1];
    }
    if (t->ndim != m->out->ndim) return false; /* cat takes empty vectors of old */
    if (m->n->op != CC_OP_stack) {
        *length = t->size[dim];
        *step = t->stride[dim];
    }
    t->size[dim] = 1;
    t->stride[dim] = 0;
    for (int d = 0; d < t->ndim; d++)
        if (d != dim && t->size[d] != m->out->size[d]) return false;
    return true;
}

static int join_piece(Map *m, int i, int p, int64_t start, bool ends, int dim) {
    CcType t;
    int64_t length, step;
    const CcOperand *o = operand(m, i);
    if (!seen_as(m, o, dim, &t, &length, &step)) return cc_build_refuse(m->b, "pieces that do not fit");
    int64_t unit = MAX_UNIT;
    while (step % unit) unit /= 2;
    int at = p;
    if (start) at = op(m, CC_S_max, op(m, CC_S_sub, p, param(m, END, i - 1, start)), num(m, 0));
    if (ends) at = op(m, CC_S_min, at, param(m, LAST, i, length - 1));
    if (length == 1) at = num(m, 0);
    else if (step != unit) at = op(m, CC_S_mul, at, param(m, STEP, i, step / unit));
    const int x = cc_build_take(m->b, cc_build_seen(m->b, o->value, &t), at, unit);
    const CcDtype out = (CcDtype)m->out->dtype;
    return cc_build_cast(m->b, cc_build_cast(m->b, x, out), cc_build_compute(out));
}

static int join(Map *m) {
    const int n = m->n->n_in - 1, dim = n < 1 ? -1 : cc_graph_dim(m->out, operand(m, n));
    int64_t start[MAX_PIECES + 1] = {0};
    if (dim < 0 || n > MAX_PIECES) return cc_build_refuse(m->b, "too many pieces, or no dim");
    for (int i = 0; i < n; i++) {
        CcType t;
        int64_t length, step;
        if (!seen_as(m, operand(m, i), dim, &t, &length, &step)) return cc_build_refuse(m->b, "pieces that do not fit");
        start[i + 1] = start[i] + length;
    }
    if (start[n] != m->out->size[dim]) return cc_build_refuse(m->b, "pieces that are not the whole");
    int result = NONE, before[MAX_PIECES]; /* the element is one of piece i, or of one before it */
    const int p = place(m, dim);
    for (int i = 0; i < n; i++) before[i] = op(m, CC_S_lt, p, param(m, END, i, start[i + 1]));
    for (int i = n - 1; i >= 0; i--) {
        if (start[i] == start[i + 1]) continue;
        const int x = join_piece(m, i, p, start[i], result != NONE, dim);
        if (x < 0) return -1;
        result = result == NONE ? x : pick(m, before[i], x, result);
    }
    return result;
}

/* ------------------------------------------------------------------ padding, rolling */

static int pad_side(Map *m, int dim, int64_t before, int64_t behind) {
    Side *s = add_side(m, dim, 1);
    const bool front = before > 0, back = behind > 0;
    const int q = before ? op(m, CC_S_sub, place(m, dim), param(m, BEFORE, dim, before)) : place(m, dim);
    const int size = size_of(m, dim), last = last_of(m, dim), low = num(m, 0);
    int *at = &s->tap[0].at;
    *at = q;
    switch (m->n->op) {
    case CC_OP_pad:
        if (front) s->tap[0].good = op(m, CC_S_ge, q, low);
        if (back) s->tap[0].good = both(m, s->tap[0].good, op(m, CC_S_lt, q, size));
        *at = clamp(m, q, front, back, last);
        break;
    case CC_OP_pad_reflect:
        if (front) *at = op(m, CC_S_max, q, op(m, CC_S_sub, low, q));
        if (back) *at = op(m, CC_S_min, *at, op(m, CC_S_sub, op(m, CC_S_add, last, last), *at));
        break;
    case CC_OP_pad_replicate: *at = clamp(m, q, front, back, last); break;
    default: /* circular */
        if (front) *at = pick(m, op(m, CC_S_lt, q, low), op(m, CC_S_add, q, size), *at);
        if (back) *at = pick(m, op(m, CC_S_gt, q, last), op(m, CC_S_sub, q, size), *at);
    }
    return *at;
}

/* Operands: x, before and behind of the last dim, of the one before ..., and of a constant that. */
static int pad(Map *m) {
    static const CcOperand ZERO = {.kind = CC_IN_INT};
    const bool constant = m->n->op == CC_OP_pad;
    const int pads = m->n->n_in - 1 - constant;
    const CcOperand *fill = constant ? operand(m, m->n->n_in - 1) : &ZERO;
    if (pads < 0 || pads % 2 || pads / 2 > m->in->ndim || m->in->ndim != m->out->ndim || fill->kind == CC_IN_VALUE)
        return cc_build_refuse(m->b, "padding of this kind");
    if (fill->kind == CC_IN_NONE) fill = &ZERO;
    for (int d = m->in->ndim - 1; d >= 0; d--) {
        const int i = m->in->ndim - 1 - d;
        int64_t by[2] = {0, 0};
        const int64_t size = m->in->size[d];
        if (i < pads / 2 && !ints(m, 1 + 2 * i, 2, by)) return cc_build_refuse(m->b, "padding by no number");
        const int64_t most = m->n->op == CC_OP_pad_reflect    ? size - 1
                             : m->n->op == CC_OP_pad_circular ? size
                                                              : INT64_MAX;
        if (size + by[0] + by[1] != m->out->size[d] || CC_MAX(by[0], by[1]) > most ||
            (!constant && CC_MIN(by[0], by[1]) < 0))
            return cc_build_refuse(m->b, "padding that does not fit");
        if ((by[0] || by[1]) && pad_side(m, d, by[0], by[1]) < 0) return -1;
    }
    return read_one(m, fill);
}

/* q in [0, size) that is rolled on: where it was. */
static int roll_back(Map *m, int q, int64_t shift, int64_t size, int which) {
    const int64_t by = (shift % size + size) % size;
    if (by == 0) return q;
    const int at = op(m, CC_S_sub, q, param(m, SHIFT, which, by));
    return pick(m, op(m, CC_S_lt, at, num(m, 0)), op(m, CC_S_add, at, param(m, SIZE, which, size)), at);
}

/* Of all elements in their order: x is a vector. */
static int roll_flat(Map *m, int64_t shift) {
    const CcSpace *f = &m->b->space;
    const unsigned all = ((1u << f->shape.ndim) - 1) & ~(m->b->level == CC_LEVEL_FULL ? 0 : f->reduced);
    if (!cc_type_contiguous(m->in)) return cc_build_refuse(m->b, "rolling of this kind");
    CcType seen = *m->in;
    for (int d = 0; d < seen.ndim; d++) {
        seen.size[d] = 1;
        seen.stride[d] = 0;
    }
    const int at = roll_back(m, cc_build_cast(m->b, cc_build_place(m->b, all), m->index), shift, cc_type_numel(m->in),
                             CC_MAX_DIMS);
    m->access = cc_build_seen(m->b, m->value, &seen);
    m->unit = 1;
    return element(m, at);
}

/* Operands: x, as many shifts, as many dims; or one shift of all elements. */
static int roll(Map *m) {
    const int dims = (m->n->n_in - 1) / 2;
    int64_t shift;
    unsigned seen = 0;
    if (!cc_type_same_shape(m->in, m->out) || !ints(m, 1, 1, &shift) || (m->n->n_in % 2 == 0 && m->n->n_in != 2))
        return cc_build_refuse(m->b, "rolling of this kind");
    if (m->n->n_in == 2) return roll_flat(m, shift);
    for (int i = 0; i < dims; i++) {
        const int d = cc_graph_dim(m->in, operand(m, 1 + dims + i));
        if (d < 0 || seen >> d & 1 || !ints(m, 1 + i, 1, &shift)) return cc_build_refuse(m->b, "rolling of this kind");
        seen |= 1u << d;
        if (shift % m->in->size[d] == 0) continue;
        Side *s = add_side(m, d, 1);
        s->tap[0].at = roll_back(m, place(m, d), shift, m->in->size[d], d);
    }
    return read_one(m, NULL);
}

/* ------------------------------------------------------------------ pooling */

static bool is_place(const CcNode *n) { return n->op == CC_OP_max_pool_at || n->op == CC_OP_adaptive_max_pool_at; }

static int adaptive_side(Map *m, int dim, int64_t taps, int64_t narrowest) {
    const int64_t in = m->in->size[dim], out = m->out->size[dim];
    Side *s = add_side(m, dim, (int)taps);
    const int p = place(m, dim), size = num(m, out);
    const bool even = in % out == 0;
    int begin = p, end = -1;
    if (even && in != out) begin = op(m, CC_S_mul, p, param(m, AREA, dim, in / out));
    if (!even) {
        const int at = op(m, CC_S_mul, p, size_of(m, dim));
        begin = op(m, CC_S_div, at, size);
        end = op(m, CC_S_div, plus(m, op(m, CC_S_add, at, size_of(m, dim)), out - 1), size);
    }
    s->first = begin;
    s->count = even ? num(m, taps) : op(m, CC_S_sub, end, begin);
    for (int i = 0; i < taps; i++) {
        s->tap[i].at = plus(m, begin, i);
        if (i < narrowest) continue;
        s->tap[i].good = op(m, CC_S_lt, s->tap[i].at, end);
        s->tap[i].at = op(m, CC_S_min, s->tap[i].at, last_of(m, dim));
    }
    return s->tap[0].at;
}

/* What the mean counts: of a window that hangs over, all of it that is x or its padding, or x alone. */
static int count_of(Map *m, const CcWindow *w, int dim, int start, bool low, bool high) {
    const int64_t in = m->in->size[dim];
    const bool over = (m->out->size[dim] - 1) * w->stride - w->padding + w->kernel > in + w->padding;
    if (w->count_padding ? !over : !low && !high) return num(m, w->kernel);
    const int end =
        op(m, CC_S_min, plus(m, start, w->kernel), plus(m, size_of(m, dim), w->count_padding ? w->padding : 0));
    const int begin = w->count_padding ? start : op(m, CC_S_max, start, num(m, 0));
    return op(m, CC_S_max, op(m, CC_S_sub, end, begin), num(m, 1));
}

static int window_side(Map *m, const CcWindow *w, int dim) {
    const int64_t in = m->in->size[dim], out = m->out->size[dim];
    Side *s = add_side(m, dim, (int)w->kernel);
    int start = place(m, dim);
    bool low = false, high = false;
    if (w->stride != 1) start = op(m, CC_S_mul, start, num(m, w->stride));
    start = plus(m, start, -w->padding);
    for (int i = 0; i < s->n; i++) {
        Tap *t = &s->tap[i];
        const int64_t from = i * w->dilation - w->padding;
        const bool below = from < 0, above = (out - 1) * w->stride + from >= in;
        const int at = plus(m, start, i * w->dilation);
        if (below) t->good = op(m, CC_S_ge, at, num(m, 0));
        if (above) t->good = both(m, t->good, op(m, CC_S_lt, at, size_of(m, dim)));
        t->at = clamp(m, at, below, above, last_of(m, dim));
        low = low || below;
        high = high || above;
    }
    s->first = s->tap[s->n - 1].at; /* of those that are not before x */
    for (int i = s->n - 2; i >= 0; i--) {
        const bool below = i * w->dilation < w->padding;
        s->first = below ? pick(m, op(m, CC_S_ge, plus(m, start, i * w->dilation), num(m, 0)), s->tap[i].at, s->first)
                         : s->tap[i].at;
    }
    s->count = count_of(m, w, dim, start, low, high);
    return s->tap[0].at;
}

typedef struct Pooled {
    int sum, most, where; /* so far */
} Pooled;

/* Of equal ones the first stays, and the last NaN, as in eager. */
static void add_element(Map *m, Pooled *p, int x, int good, int flat) {
    if (!cc_window_greatest(m->n)) {
        x = pick(m, good, x, real(m, 0));
        p->sum = p->sum == NONE ? x : op(m, CC_S_add, p->sum, x);
        return;
    }
    x = pick(m, good, x, real(m, -INFINITY));
    if (is_place(m->n)) {
        const int before = p->most == NONE ? real(m, -INFINITY) : p->most;
        const int over = op(m, CC_S_or, op(m, CC_S_gt, x, before), op(m, CC_S_isnan, x, -1));
        p->where = pick(m, over, flat, p->where);
    }
    p->most = p->most == NONE ? x : op(m, CC_S_max, p->most, x);
}

/* All taps of the sides from `s` on. flat: where it stands in its plane. */
static void walk(Map *m, int s, int at, int good, int flat, Pooled *p) {
    if (s == m->n_side) {
        add_element(m, p, element(m, at), good, flat);
        return;
    }
    for (int i = 0; i < m->side[s].n; i++) {
        const Tap *t = &m->side[s].tap[i];
        const int row =
            is_place(m->n) && s ? op(m, CC_S_add, op(m, CC_S_mul, flat, size_of(m, m->side[s].dim)), t->at) : t->at;
        walk(m, s + 1, add_place(m, at, &m->side[s], t->at), both(m, good, t->good), row, p);
    }
}

static int mean_of(Map *m, int sum, int64_t divisor) {
    int count = divisor ? num(m, divisor) : m->side[0].count;
    for (int s = 1; s < m->n_side && !divisor; s++) count = op(m, CC_S_mul, count, m->side[s].count);
    return op(m, CC_S_div, sum, cc_build_cast(m->b, count, m->real));
}

static bool pool_fits(const Map *m, int dims, const CcWindow *w) {
    int64_t taps = 1;
    if (m->in->ndim != m->out->ndim || m->in->ndim <= dims || cc_dtype_info((CcDtype)m->in->dtype)->kind != 'f')
        return false;
    for (int d = 0; d < m->in->ndim - dims; d++)
        if (m->in->size[d] != m->out->size[d]) return false;
    for (int i = 0; i < dims; i++) {
        const int d = m->in->ndim - dims + i;
        int64_t narrowest;
        taps *= CC_MIN(MAX_WINDOW + 1, cc_window_widest(&w[i], m->in->size[d], m->out->size[d], &narrowest));
    }
    return taps <= MAX_WINDOW && m->out->dtype == (is_place(m->n) ? CC_DT_I64 : m->in->dtype);
}

static int pool(Map *m) {
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor;
    const int dims = cc_window_read(m->b->g, m->n, w, &divisor);
    if (!dims || !pool_fits(m, dims, w)) return cc_build_refuse(m->b, "a pooling of this kind");
    for (int i = 0; i < dims; i++) {
        const int dim = m->in->ndim - dims + i;
        int64_t narrowest;
        const int64_t taps = cc_window_widest(&w[i], m->in->size[dim], m->out->size[dim], &narrowest);
        if ((w[i].adaptive ? adaptive_side(m, dim, taps, narrowest) : window_side(m, &w[i], dim)) < 0) return -1;
    }
    if (begin_reading(m) < 0) return -1;
    Pooled p = {NONE, NONE, m->side[0].first};
    for (int s = 1; s < dims; s++)
        p.where = op(m, CC_S_add, op(m, CC_S_mul, p.where, size_of(m, m->side[s].dim)), m->side[s].first);
    walk(m, 0, NONE, ALWAYS, NONE, &p);
    return is_place(m->n) ? p.where : cc_window_greatest(m->n) ? p.most : mean_of(m, p.sum, divisor);
}

/* ------------------------------------------------------------------ resampling */

/* Steps of the source for one of the result (ATen's UpSample.cuh: area_pixel_compute_scale). */
static int scale_of(Map *m, int dim, bool corners, const CcOperand *given) {
    const double factor = !given ? 0 : given->kind == CC_IN_FLOAT ? given->f : (double)given->i;
    const int in = param(m, corners ? LAST : SIZE, dim, m->in->size[dim] - corners);
    const int out = param(m, corners ? BEFORE : AREA, dim, m->out->size[dim] - corners);
    if (corners && m->out->size[dim] == 1) return real(m, 0);
    if (!corners && factor > 0) return real(m, 1.0 / factor);
    return op(m, CC_S_div, cc_build_cast(m->b, in, m->real), cc_build_cast(m->b, out, m->real));
}

static int nearest_side(Map *m, int dim, bool exact, const CcOperand *given) {
    Side *s = add_side(m, dim, 1);
    const int o = cc_build_cast(m->b, place(m, dim), m->real), scale = scale_of(m, dim, false, given);
    const int x = op(m, CC_S_mul, scale, exact ? op(m, CC_S_add, o, real(m, 0.5)) : o);
    return s->tap[0].at = op(m, CC_S_min, cc_build_cast(m->b, op(m, CC_S_floor, x, -1), m->index), last_of(m, dim));
}

/* Where the element stands in x, and how far behind the first of its taps: `part` in [0, 1]. */
static int source_of(Map *m, int dim, bool corners, bool cubic, const CcOperand *given, int *part) {
    const int o = cc_build_cast(m->b, place(m, dim), m->real), scale = scale_of(m, dim, corners, given);
    int x = op(m, CC_S_mul, scale, o);
    /* as compilers make it */
    if (!corners) x = cc_build_op(m->b, CC_S_fma, scale, op(m, CC_S_add, o, real(m, 0.5)), real(m, -0.5));
    if (!corners && !cubic) x = op(m, CC_S_max, x, real(m, 0));
    const int first = op(m, CC_S_min, cc_build_cast(m->b, op(m, CC_S_floor, x, -1), m->index), last_of(m, dim));
    const int behind = op(m, CC_S_sub, x, cc_build_cast(m->b, first, m->real));
    *part = op(m, CC_S_min, op(m, CC_S_max, behind, real(m, 0)), real(m, 1));
    return first;
}

static int linear_side(Map *m, int dim, bool corners, const CcOperand *given) {
    if (m->in->size[dim] == m->out->size[dim]) return add_side(m, dim, 1)->tap[0].at = place(m, dim);
    Side *s = add_side(m, dim, 2);
    s->tap[0].at = source_of(m, dim, corners, false, given, &s->tap[1].weight);
    s->tap[0].weight = op(m, CC_S_sub, real(m, 1), s->tap[1].weight);
    return s->tap[1].at = op(m, CC_S_min, plus(m, s->tap[0].at, 1), last_of(m, dim));
}

/* ((a x + b) x + c) x + d */
static int cubic(Map *m, int x, double a, double b, double c, double d) {
    const int y = op(m, CC_S_mul, op(m, CC_S_add, op(m, CC_S_mul, real(m, a), x), real(m, b)), x);
    return op(m, CC_S_add, op(m, CC_S_mul, op(m, CC_S_add, y, real(m, c)), x), real(m, d));
}
static int near_part(Map *m, int x) { return cubic(m, x, 1.25, -2.25, 0, 1); }
static int far_part(Map *m, int x) { return cubic(m, x, -0.75, 3.75, -6, 3); }

static int cubic_side(Map *m, int dim, bool corners, const CcOperand *given) {
    int part;
    const int first = source_of(m, dim, corners, true, given, &part), rest = op(m, CC_S_sub, real(m, 1), part);
    Side *s = add_side(m, dim, 4);
    for (int i = 0; i < 4; i++) s->tap[i].at = clamp(m, plus(m, first, i - 1), true, true, last_of(m, dim));
    s->tap[0].weight = far_part(m, op(m, CC_S_add, part, real(m, 1)));
    s->tap[1].weight = near_part(m, part);
    s->tap[2].weight = near_part(m, rest);
    return s->tap[3].weight = far_part(m, op(m, CC_S_add, rest, real(m, 1)));
}

/* The weighted sum over the sides from `s` on. */
static int weigh(Map *m, int s, int at) {
    if (s == m->n_side) return cc_build_cast(m->b, element(m, at), m->real);
    int sum = -1;
    for (int i = 0; i < m->side[s].n; i++) {
        const Tap *t = &m->side[s].tap[i];
        int x = weigh(m, s + 1, add_place(m, at, &m->side[s], t->at));
        if (t->weight != ALWAYS) x = op(m, CC_S_mul, x, t->weight);
        if (x < 0) return -1;
        sum = i ? op(m, CC_S_add, sum, x) : x;
    }
    return sum;
}

/* Operands: x, for linear and cubic whether corners are aligned, and a factor for each dim or none. */
static int resample(Map *m) {
    const bool near = m->n->op == CC_OP_upsample_nearest || m->n->op == CC_OP_upsample_exact;
    const int dims = m->in->ndim - 2, first = near ? 1 : 2;
    const CcDtype dt = (CcDtype)m->in->dtype;
    int64_t corners = 0;
    if (dims < 1 || dims > 3 || m->out->ndim != m->in->ndim || (m->n->n_in != first && m->n->n_in != first + dims) ||
        (!near && (!ints(m, 1, 1, &corners) || cc_dtype_info(dt)->kind != 'f')) || dt != m->out->dtype)
        return cc_build_refuse(m->b, "an interpolation of this kind");
    m->real = near || dt != CC_DT_F64 ? CC_DT_F32 : CC_DT_F64;
    for (int d = 0; d < m->in->ndim; d++) {
        const CcOperand *given = d >= 2 && m->n->n_in > first ? operand(m, first + d - 2) : NULL;
        const bool number = !given || given->kind == CC_IN_FLOAT || given->kind == CC_IN_INT;
        if ((d < 2 && m->in->size[d] != m->out->size[d]) || !number ||
            CC_MAX(m->in->size[d], m->out->size[d]) > 1 << 24)
            return cc_build_refuse(m->b, "an interpolation of this kind");
        if (d < 2) continue;
        const int good = near ? nearest_side(m, d, m->n->op == CC_OP_upsample_exact, given)
                         : m->n->op == CC_OP_upsample_cubic ? cubic_side(m, d, corners, given)
                                                            : linear_side(m, d, corners, given);
        if (good < 0) return -1;
    }
    return near ? read_one(m, NULL) : begin_reading(m) < 0 ? -1 : weigh(m, 0, NONE);
}

/* ------------------------------------------------------------------ writes to slices and under masks */

/* Which elements of x are written, and where in what is written each finds its own. */
typedef struct Written {
    int good, n; /* dims of what is written */
    int64_t size[CC_MAX_DIMS];
    int at[CC_MAX_DIMS];
    bool masked; /* only one number fits */
} Written;

static bool add_written(Written *w, int64_t size, int at) {
    if (w->n == CC_MAX_DIMS || size == 0) return false;
    w->size[w->n] = size;
    w->at[w->n++] = at;
    return true;
}

static bool written_slice(Map *m, Written *w, int dim, int64_t first, int64_t length, int64_t step) {
    const int64_t size = m->in->size[dim];
    int at = place(m, dim);
    if (first < 0 || length < 1 || step < 1 || first + (length - 1) * step >= size) return false;
    if (first) {
        at = op(m, CC_S_sub, at, param(m, BEFORE, dim, first));
        w->good = both(m, w->good, op(m, CC_S_ge, at, num(m, 0)));
        at = op(m, CC_S_max, at, num(m, 0));
    }
    if (step != 1) {
        w->good = both(m, w->good, op(m, CC_S_eq, op(m, CC_S_rem, at, num(m, step)), num(m, 0)));
        at = op(m, CC_S_div, at, num(m, step));
    }
    if (first + length * step < size) {
        w->good = both(m, w->good, op(m, CC_S_lt, at, param(m, SIZE, dim, length)));
        at = op(m, CC_S_min, at, param(m, LAST, dim, length - 1));
    }
    return add_written(w, length, at);
}

static bool written_one(Map *m, Written *w, int dim, int64_t index) {
    if (index < 0 || index >= m->in->size[dim]) return false;
    w->good = both(m, w->good, op(m, CC_S_eq, place(m, dim), param(m, SHIFT, dim, index)));
    return true;
}

/* -> dims of x that the mask has; 0: not for a loop */
static int written_masked(Map *m, Written *w, int dim, const CcOperand *o) {
    const CcType *t = o->kind == CC_IN_VALUE ? &m->b->g->val.at[o->value].type : NULL;
    if (!t || t->dtype != CC_DT_BOOL || t->ndim < 1 || dim + t->ndim > m->in->ndim || t->device != 1) return 0;
    CcType seen = *t;
    seen.ndim = m->in->ndim;
    for (int d = 0; d < m->in->ndim; d++) {
        const int own = d - dim;
        const bool has = own >= 0 && own < t->ndim;
        if (has && t->size[own] != m->in->size[d]) return 0;
        seen.size[d] = has ? t->size[own] : 1;
        seen.stride[d] = has ? t->stride[own] : 0;
    }
    w->masked = true;
    w->good = both(m, w->good, cc_build_take(m->b, cc_build_seen(m->b, o->value, &seen), num(m, 0), 1));
    return t->ndim;
}

/* The parts of a key from operand `at` on (CcKeyPart). */
static bool written_key(Map *m, Written *w, int at) {
    int d = 0;
    while (at < m->n->n_in) {
        int64_t code, v[3];
        if (!ints(m, at++, 1, &code) || (code != CC_KEY_NEW && d >= m->in->ndim)) return false;
        if (code == CC_KEY_NEW && !add_written(w, 1, num(m, 0))) return false;
        if (code == CC_KEY_NEW) continue;
        int dims = 1;
        if (code == CC_KEY_TENSOR) {
            if (w->masked || !(dims = written_masked(m, w, d, operand(m, at++)))) return false;
        } else if (code == CC_KEY_SLICE) {
            if (!ints(m, at, 3, v) || !written_slice(m, w, d, v[0], v[1], v[2])) return false;
            at += 3;
        } else if (code == CC_KEY_INT) {
            if (!ints(m, at++, 1, v) || !written_one(m, w, d, v[0])) return false;
        } else if (!add_written(w, m->in->size[d], place(m, d))) {
            return false;
        }
        d += dims;
    }
    for (; d < m->in->ndim; d++)
        if (!add_written(w, m->in->size[d], place(m, d))) return false;
    return true;
}

/* The element of what is written: its dims are those of `w` from the right, or are broadcast to them. */
static int written_element(Map *m, const Written *w, const CcOperand *o) {
    const CcDtype out = (CcDtype)m->out->dtype;
    if (o->kind == CC_IN_NONE) return cc_build_refuse(m->b, "nothing to write");
    if (o->kind != CC_IN_VALUE) return cc_build_number(m->b, o, out, false);
    const CcType *t = &m->b->g->val.at[o->value].type;
    if (t->ndim < 0 || t->device != 1 || t->dtype == CC_DT_OTHER || (w->masked && cc_type_numel(t) != 1))
        return cc_build_refuse(m->b, "a write of this kind");
    int at = NONE;
    for (int d = 0; d < t->ndim; d++) {
        const int own = w->n - t->ndim + d;
        if (t->size[d] == 1) continue;
        if (own < 0 || t->size[d] != w->size[own]) return cc_build_refuse(m->b, "a write that does not fit");
        const int step = op(m, CC_S_mul, w->at[own], param(m, STEP, own, t->stride[d]));
        at = at == NONE ? step : op(m, CC_S_add, at, step);
    }
    CcType seen = *m->in;
    seen.dtype = t->dtype;
    for (int d = 0; d < seen.ndim; d++) {
        seen.size[d] = 1;
        seen.stride[d] = 0;
    }
    const int x = cc_build_take(m->b, cc_build_seen(m->b, o->value, &seen), at == NONE ? num(m, 0) : at, 1);
    return cc_build_cast(m->b, cc_build_cast(m->b, x, out), cc_build_compute(out));
}

/* x with some elements of another tensor, or one number. */
static int write(Map *m) {
    Written w = {.good = ALWAYS};
    int64_t v[3] = {0};
    bool good = cc_type_same_shape(m->in, m->out) && m->in->dtype == m->out->dtype;
    const int dim = m->n->n_in > 2 ? cc_graph_dim(m->in, operand(m, 2)) : -1;
    if (m->n->op == CC_OP_put) {
        good = good && written_key(m, &w, 2);
    } else if (m->n->op == CC_OP_index_put) { /* x, mask, value, is it added */
        good = good && m->n->n_in == 4 && ints(m, 3, 1, v) && !v[0] && written_masked(m, &w, 0, operand(m, 1));
    } else { /* select_scatter: x, source, dim, index */
        good = good && dim >= 0 && m->n->n_in == 4 && ints(m, 3, 1, v);
        for (int d = 0; d < m->in->ndim && good; d++)
            good = d == dim ? written_one(m, &w, d, v[0] < 0 ? v[0] + m->in->size[d] : v[0])
                            : add_written(&w, m->in->size[d], place(m, d));
    }
    if (!good) return cc_build_refuse(m->b, "a write of this kind");
    const int x = cc_build_cast(m->b, cc_build_value(m->b, m->value), cc_build_compute((CcDtype)m->in->dtype));
    const int y = written_element(m, &w, operand(m, m->n->op == CC_OP_index_put ? 2 : 1));
    return w.good == ALWAYS ? y : pick(m, w.good, y, x);
}

/* ------------------------------------------------------------------ what is mapped */

bool cc_tap_has(CcOpId id) {
    const CcOpKind kind = cc_op_info(id)->kind;
    const bool writes = id == CC_OP_put || id == CC_OP_index_put || id == CC_OP_select_scatter;
    return kind == CC_K_CONCAT || kind == CC_K_POOL || kind == CC_K_RESAMPLE || writes;
}

/* Places, and products of a place and a size, in 32 bits? */
static bool is_small(const CcGraph *g, const CcNode *n) {
    const int64_t most = INT64_C(1) << 30;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind == CC_IN_VALUE && cc_type_extent(&g->val.at[o->value].type) > most) return false;
        if (o->kind == CC_IN_INT && (o->i > 1 << 20 || o->i < -(1 << 20))) return false;
    }
    const CcType *out = &g->val.at[n->out0].type;
    const CcOpKind kind = cc_op_info((CcOpId)n->op)->kind;
    for (int d = 0; d < out->ndim; d++)
        if (out->size[d] > 1 << 14 && kind == CC_K_POOL) return false; /* adaptive ones multiply sizes */
    return cc_type_numel(out) < most;
}

int cc_tap_lower(CcBuild *b, const CcNode *n) {
    Side side[CC_MAX_DIMS];
    Map m = {.b = b, .n = n, .out = &b->g->val.at[n->out0].type, .side = side, .unit = 1};
    const CcOperand *x = n->n_in ? cc_graph_operand(b->g, n, 0) : NULL;
    if (!x || x->kind != CC_IN_VALUE) return cc_build_refuse(b, "no tensor to read");
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(b->g, n, i);
        if (o->kind == CC_IN_VALUE && b->g->val.at[o->value].scalar) return cc_build_refuse(b, "memory of the CPU");
    }
    m.value = x->value;
    m.in = &b->g->val.at[x->value].type;
    m.index = is_small(b->g, n) ? CC_DT_I32 : CC_DT_I64;
    m.real = cc_build_compute((CcDtype)m.in->dtype);
    if (m.in->ndim < 0 || cc_type_numel(m.out) == 0) return cc_build_refuse(b, "an empty result");
    if (n->op == CC_OP_cat || n->op == CC_OP_stack) return join(&m);
    if (cc_type_numel(m.in) == 0) return cc_build_refuse(b, "nothing to read");
    switch (cc_op_info((CcOpId)n->op)->kind) {
    case CC_K_POOL: return pool(&m);
    case CC_K_RESAMPLE: return resample(&m);
    case CC_K_SCATTER: return write(&m);
    default: break;
    }
    if (m.in->dtype != m.out->dtype) return cc_build_refuse(b, "a result of another dtype");
    return n->op == CC_OP_roll ? roll(&m) : pad(&m);
}
