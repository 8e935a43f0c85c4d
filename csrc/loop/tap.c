/* tap: lowers ops that read elements at other positions to loop IR: pooling, resampling, writes to slices and under
 * masks (join.c has ops that only move elements). For each dim that an op maps, a side lists the operand's elements
 * (taps) that contribute to an element of the result: their positions, whether they exist, and their weights. All of
 * these are computed from the position of the result's element:
 *
 *   max_pool 3, stride 2    taps 2 i - 1, 2 i, 2 i + 1; a tap exists if 0 <= tap < size
 *   linear                  x = scale * (i + 0.5) - 0.5: taps floor(x), floor(x) + 1 with weights 1 - f, f; f = x - floor(x)
 *
 * A missing tap is read at the nearest existing position and then discarded. On the CPU a pool whose windows overhang
 * x is cut into boxes, border and interior (pass/pieces.c); in the interior each tap is a window of x, read with
 * consecutive loads. Sizes and strides are arguments of the kernel, so new sizes reuse it. Windows are unrolled; pools
 * with more taps become reductions, are split (pass/separate.c), or run elsewhere. */
#include <math.h>

#include "loop_int.h"

enum {
    ALWAYS = -2,     /* in place of a node: the tap exists; its weight is 1 */
    NONE = -3,       /* no node yet; -1 is a failure */
    MAX_TAPS = 64,   /* per dim */
    MAX_WINDOW = 36, /* over all dims: 6x6, 3x3x3; on the CPU MAX_TAPS */
    /* positions count units of up to this many elements if strides allow: then 16 bytes load at once */
    MAX_UNIT = 8
};
/* `what` of cc_build_param, with a dim or a piece */
typedef enum What { SIZE = 1, LAST, STEP, BEFORE, SHIFT, END, KINDS } What;

typedef struct Tap {
    int at, good, weight; /* nodes */
} Tap;

typedef struct Side {
    int dim, n;
    Tap tap[MAX_TAPS];
    /* pools */
    CcWindow window;
    int first;   /* position of the first existing tap */
    int count;   /* the divisor of the mean */
    bool inside; /* all taps exist, wherever the loop is */
} Side;

typedef struct Map {
    CcBuild *b;
    const CcNode *n;
    int value; /* x */
    const CcType *in, *out;
    CcDtype index; /* dtype of positions: 32 bits if they fit */
    CcDtype real;  /* dtype of weights and sums */
    int access, n_side;
    int64_t unit;
    Side *side;
} Map;

/* ------------------------------------------------------------------ abbreviations */

static int op(Map *m, CcScalarId id, int x, int y) { return cc_term_op(m->b, id, x, y, -1); }
static int num(Map *m, int64_t v) { return cc_term_int(m->b, m->index, v); }
static int real(Map *m, double v) { return cc_term_float(m->b, m->real, v); }
static int pick(Map *m, int condition, int x, int y) {
    return condition == ALWAYS ? x : cc_term_op(m->b, CC_S_select, condition, x, y);
}
static int plus(Map *m, int x, int64_t v) { return v ? op(m, CC_S_add, x, num(m, v)) : x; }

static int param(Map *m, What what, int which, int64_t v) {
    return cc_term_cast(m->b, cc_build_param(m->b, (which * KINDS + what) << 12 | (m->value & 0xfff), v), m->index);
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

/* Position of the element in a dim of the result. */
static int place(Map *m, int dim) {
    const CcSpace *f = &m->b->space;
    for (int d = 0; d < f->shape.ndim; d++)
        if (cc_space_own_dim(f, m->out, m->b->dropped, d) == dim &&
            (m->b->level == CC_LEVEL_FULL || !cc_space_reduced(f, d)))
            return cc_term_cast(m->b, cc_build_place(m->b, 1u << (f->shape.ndim - 1 - d)), m->index);
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

/* The largest power of two, up to MAX_UNIT, that divides all these strides. */
static int64_t unit_of(const CcType *t, const Side *side, int n) {
    int64_t unit = MAX_UNIT;
    for (int i = 0; i < n; i++)
        while (t->stride[side[i].dim] % unit) unit /= 2;
    return unit;
}

/* An access of x that does not move along its mapped dims. */
static int begin_reading(Map *m) {
    CcType seen = *m->in;
    for (int i = 0; i < m->n_side; i++) {
        seen.size[m->side[i].dim] = 1;
        seen.stride[m->side[i].dim] = 0;
    }
    m->unit = unit_of(m->in, m->side, m->n_side);
    return m->access = cc_build_seen(m->b, m->value, &seen);
}

/* Adds the offset of a tap to a position. */
static int add_place(Map *m, int at, const Side *s, int tap) {
    const int64_t step = m->in->stride[s->dim] / m->unit;
    const int here = step == 1 ? tap : op(m, CC_S_mul, tap, param(m, STEP, s->dim, step));
    return at == NONE ? here : op(m, CC_S_add, at, here);
}

/* In a loop over boxes each element has an access of its own: if all elements of a row have one index, the access
 * then reads whole rows like any other. */
static int element(Map *m, int at) {
    const int x = (m->b->box ? cc_build_take_apart : cc_build_take)(m->b, m->access, at, m->unit);
    return cc_term_cast(m->b, x, cc_term_compute((CcDtype)m->in->dtype));
}

/* The single operand element of each result element, or the fill value where there is none. */
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

/* ------------------------------------------------------------------ pooling */

static bool is_place(const CcNode *n) { return n->op == CC_OP_max_pool_at || n->op == CC_OP_adaptive_max_pool_at; }

/* Windows of several sizes; those of one size are not adaptive (cc_window_read). The first `certain` taps exist in
 * each window. */
static void adaptive_side(Map *m, Side *s, int64_t certain) {
    const int64_t out = m->out->size[s->dim];
    const int size = num(m, out), at = op(m, CC_S_mul, place(m, s->dim), size_of(m, s->dim));
    const int end = op(m, CC_S_div, plus(m, op(m, CC_S_add, at, size_of(m, s->dim)), out - 1), size);
    s->first = op(m, CC_S_div, at, size);
    s->count = op(m, CC_S_sub, end, s->first);
    for (int i = 0; i < s->n; i++) {
        s->tap[i].at = plus(m, s->first, i);
        if (i < certain) continue;
        s->tap[i].good = op(m, CC_S_lt, s->tap[i].at, end);
        s->tap[i].at = op(m, CC_S_min, s->tap[i].at, last_of(m, s->dim));
    }
}

/* The positions in a dim of the result where this loop begins and ends. */
static int64_t begin_of(const Map *m, int dim) { return m->b->box ? m->b->box->from[dim] : 0; }
static int64_t end_of(const Map *m, int dim) {
    return m->b->box ? m->b->box->from[dim] + m->b->box->size[dim] : m->out->size[dim];
}

/* The mean's divisor: all of an overhanging window that lies in x or its padding, or in x alone. */
static int count_of(Map *m, const Side *s, int start) {
    const CcWindow *w = &s->window;
    const bool over = (end_of(m, s->dim) - 1) * w->stride - w->padding + w->kernel > m->in->size[s->dim] + w->padding;
    if (w->count_padding ? !over : s->inside) return num(m, w->kernel);
    const int end =
        op(m, CC_S_min, plus(m, start, w->kernel), plus(m, size_of(m, s->dim), w->count_padding ? w->padding : 0));
    const int begin = w->count_padding ? start : op(m, CC_S_max, start, num(m, 0));
    return op(m, CC_S_max, op(m, CC_S_sub, end, begin), num(m, 1));
}

static void window_side(Map *m, Side *s) {
    const CcWindow *w = &s->window;
    const int64_t first = begin_of(m, s->dim) * w->stride - w->padding,
                  last = (end_of(m, s->dim) - 1) * w->stride - w->padding;
    const int place_of = place(m, s->dim);
    const int start = plus(m, w->stride == 1 ? place_of : op(m, CC_S_mul, place_of, num(m, w->stride)), -w->padding);
    s->inside = true;
    s->first = NONE;
    for (int i = s->n - 1; i >= 0; i--) {
        Tap *t = &s->tap[i];
        const int64_t from = i * w->dilation;
        const bool below = first + from < 0, above = last + from >= m->in->size[s->dim];
        const int at = plus(m, start, from), exists = below ? op(m, CC_S_ge, at, num(m, 0)) : ALWAYS;
        t->good = above ? both(m, exists, op(m, CC_S_lt, at, size_of(m, s->dim))) : exists;
        t->at = clamp(m, at, below, above, last_of(m, s->dim));
        /* of the taps that are not before the start of x */
        s->first = s->first == NONE ? t->at : pick(m, exists, t->at, s->first);
        s->inside = s->inside && !below && !above;
    }
    s->count = count_of(m, s, start);
}

typedef struct Pooled {
    int sum, most, where; /* running values */
} Pooled;

/* The first of equal elements wins, and the last NaN, as in eager. */
static void add_element(Map *m, Pooled *p, int x, int good, int flat) {
    if (!cc_window_is_max(m->n)) {
        x = pick(m, good, x, real(m, 0));
        p->sum = p->sum == NONE ? x : op(m, CC_S_add, p->sum, x);
        return;
    }
    x = pick(m, good, x, real(m, -INFINITY));
    if (!is_place(m->n)) {
        p->most = p->most == NONE ? x : op(m, CC_S_max, p->most, x);
        return;
    }
    const int before = p->most == NONE ? real(m, -INFINITY) : p->most;
    const int over = op(m, CC_S_or, op(m, CC_S_gt, x, before), op(m, CC_S_isnan, x, -1));
    p->where = pick(m, over, flat, p->where);
    p->most = pick(m, over, x, before);
}

/* All taps of the sides from `s` on. flat: position within the plane. */
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

/* The same for sides whose taps all exist: those of one position in the window are a window of x. */
static void walk_inside(Map *m, int s, const CcType *seen, int64_t shift, Pooled *p) {
    if (s == m->n_side) {
        add_element(m, p, cc_term_cast(m->b, cc_build_part(m->b, m->value, seen, shift), m->real), ALWAYS, NONE);
        return;
    }
    const Side *side = &m->side[s];
    CcType moved = *seen;
    moved.size[side->dim] = m->out->size[side->dim];
    moved.stride[side->dim] *= side->window.stride;
    for (int i = 0; i < side->n; i++) {
        const int64_t from = i * side->window.dilation - side->window.padding;
        walk_inside(m, s + 1, &moved, shift + from * m->in->stride[side->dim], p);
    }
}

static int mean_of(Map *m, int sum, int64_t divisor) {
    int count = num(m, divisor ? divisor : 1);
    for (int s = 0; s < m->n_side && !divisor; s++) count = op(m, CC_S_mul, count, m->side[s].count);
    return op(m, CC_S_div, sum, cc_term_cast(m->b, count, m->real));
}

/* Half precision may be summed in f32, whose part of a split pool then is not rounded. */
static bool good_types(const Map *m) {
    const CcDtype in = (CcDtype)m->in->dtype, out = (CcDtype)m->out->dtype;
    if (!cc_dtype_is_float(in)) return false;
    return is_place(m->n) ? out == CC_DT_I64
                          : in == out || (!cc_window_is_max(m->n) && m->real == cc_term_compute(out));
}

/* Kernels for sizes that differ between calls: one per power of two. */
static void round_taps(int64_t *widest, int64_t *certain) {
    int64_t taps = 1;
    while (taps < *widest) taps *= 2;
    *widest = taps;
    *certain = CC_MIN(*certain, taps / 4);
}

/* Adds a side for each dim that the pool changes. */
static bool add_windows(Map *m, const CcWindow *w, int dims) {
    const int lead = m->in->ndim - dims;
    if (!dims || cc_window_taps(m->b->g, m->n) > (m->b->box ? MAX_TAPS : MAX_WINDOW) || m->in->ndim != m->out->ndim ||
        lead < 1 || !good_types(m))
        return false;
    for (int d = 0; d < lead; d++)
        if (m->in->size[d] != m->out->size[d]) return false;
    for (int i = 0; i < dims; i++) {
        int64_t certain, widest = cc_window_widest(&w[i], m->in->size[lead + i], m->out->size[lead + i], &certain);
        if (w[i].adaptive && m->b->g->resizes) round_taps(&widest, &certain);
        if (!is_place(m->n) && !cc_window_pools(&w[i])) continue; /* x is read at the element's own position */
        Side *s = add_side(m, lead + i, (int)widest);
        s->window = w[i];
        if (w[i].adaptive) adaptive_side(m, s, certain);
        else window_side(m, s);
    }
    return true;
}

static bool all_inside(const Map *m) {
    for (int s = 0; s < m->n_side; s++)
        if (!m->side[s].inside) return false;
    return m->b->box && !is_place(m->n);
}

static int pool(Map *m) {
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor;
    const int dims = cc_window_read(m->b->g, m->n, w, &divisor);
    if (!add_windows(m, w, dims)) return cc_build_refuse(m->b, "this kind of pooling");
    Pooled p = {NONE, NONE, m->n_side ? m->side[0].first : NONE};
    for (int s = 1; s < m->n_side && is_place(m->n); s++)
        p.where = op(m, CC_S_add, op(m, CC_S_mul, p.where, size_of(m, m->side[s].dim)), m->side[s].first);
    if (all_inside(m)) walk_inside(m, 0, m->in, 0, &p);
    else {
        if (begin_reading(m) < 0) return -1;
        walk(m, 0, m->n_side ? NONE : num(m, 0), ALWAYS, NONE, &p);
    }
    return is_place(m->n) ? p.where : cc_window_is_max(m->n) ? p.most : mean_of(m, p.sum, divisor);
}

/* ------------------------------------------------------------------ resampling */

static double factor_of(const CcOperand *given) { return given ? cc_operand_number(given) : 0; }

/* Distance in the source per element of the result (ATen's UpSample.cuh: area_pixel_compute_scale). */
static int scale_of(Map *m, int dim, bool corners, const CcOperand *given) {
    const double factor = factor_of(given);
    const int64_t in = m->in->size[dim] - corners, out = m->out->size[dim] - corners;
    if (corners && out == 0) return real(m, 0);
    if (!corners && factor > 0) return real(m, 1.0 / factor);
    return cc_build_fixed(m->b, m->real,
                          m->real == CC_DT_F32 ? (double)((float)in / (float)out) : (double)in / (double)out);
}

/* If a dim keeps or doubles its size, some of torch's kernels of images and volumes ignore a factor (ATen's
 * UpSampleKernel.cpp: nearest_idx), and others do not. Which one runs depends on the strides, channels and sizes. */
static bool may_ignore(const Map *m, int dim, const CcOperand *given) {
    const int64_t in = m->in->size[dim], out = m->out->size[dim];
    const double factor = factor_of(given);
    return m->in->ndim > 3 && (out == in || out == 2 * in) && factor > 0 && factor * (double)in != (double)out;
}

static int nearest_side(Map *m, int dim, bool exact, const CcOperand *given) {
    if (!exact && may_ignore(m, dim, given)) return cc_build_refuse(m->b, "a factor that torch may ignore");
    Side *s = add_side(m, dim, 1);
    const int o = cc_term_cast(m->b, place(m, dim), m->real), scale = scale_of(m, dim, false, given);
    const int x = op(m, CC_S_mul, scale, exact ? op(m, CC_S_add, o, real(m, 0.5)) : o);
    return s->tap[0].at = op(m, CC_S_min, cc_term_cast(m->b, op(m, CC_S_floor, x, -1), m->index), last_of(m, dim));
}

/* The element's position in x, as the first tap and the fraction `part` in [0, 1] after it. */
static int source_of(Map *m, int dim, bool corners, bool cubic, const CcOperand *given, int *part) {
    const int o = cc_term_cast(m->b, place(m, dim), m->real), scale = scale_of(m, dim, corners, given);
    int x = op(m, CC_S_mul, scale, o);
    /* contracted to an fma, as compilers do */
    if (!corners) x = cc_term_op(m->b, CC_S_fma, scale, op(m, CC_S_add, o, real(m, 0.5)), real(m, -0.5));
    if (!corners && !cubic) x = op(m, CC_S_max, x, real(m, 0));
    const int first = op(m, CC_S_min, cc_term_cast(m->b, op(m, CC_S_floor, x, -1), m->index), last_of(m, dim));
    const int behind = op(m, CC_S_sub, x, cc_term_cast(m->b, first, m->real));
    *part = op(m, CC_S_min, op(m, CC_S_max, behind, real(m, 0)), real(m, 1));
    return first;
}

static int linear_side(Map *m, int dim, bool corners, const CcOperand *given) {
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
    if (s == m->n_side) return cc_term_cast(m->b, element(m, at == NONE ? num(m, 0) : at), m->real);
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

static bool read_resampling(const Map *m, bool near, bool *corners, CcOperandRange *factors) {
    CcIn_upsample_nearest nearest;
    CcIn_upsample_linear smooth; /* cubic has the same operands */
    *corners = false;
    if (near) {
        if (!cc_in_upsample_nearest(m->b->g, m->n, &nearest)) return false;
        *factors = nearest.factors;
        return true;
    }
    if (!cc_in_upsample_linear(m->b->g, m->n, &smooth)) return false;
    if (smooth.align_corners.kind != CC_IN_INT && smooth.align_corners.kind != CC_IN_BOOL) return false;
    *corners = smooth.align_corners.i != 0;
    *factors = smooth.factors;
    return true;
}

/* There is a factor per dim or none. A dim with factor None keeps its size. */
static int resample(Map *m) {
    const bool near = m->n->op == CC_OP_upsample_nearest || m->n->op == CC_OP_upsample_exact;
    const int dims = m->in->ndim - 2;
    const CcDtype dt = (CcDtype)m->in->dtype;
    bool corners;
    CcOperandRange factors;
    if (dims < 1 || dims > 3 || m->out->ndim != m->in->ndim || !read_resampling(m, near, &corners, &factors) ||
        (factors.n != 0 && factors.n != dims) || (!near && !cc_dtype_is_float(dt)) || dt != m->out->dtype)
        return cc_build_refuse(m->b, "an interpolation of this kind");
    m->real = near || dt != CC_DT_F64 ? CC_DT_F32 : CC_DT_F64;
    for (int d = 0; d < m->in->ndim; d++) {
        const CcOperand *given = d >= 2 && factors.n > 0 ? operand(m, factors.first + d - 2) : NULL;
        const bool number = !given || given->kind == CC_IN_FLOAT || given->kind == CC_IN_INT;
        const bool same = m->in->size[d] == m->out->size[d], stays = d < 2 || !number;
        if ((stays && (!same || (given && given->kind != CC_IN_NONE))) ||
            CC_MAX(m->in->size[d], m->out->size[d]) > 1 << 24)
            return cc_build_refuse(m->b, "an interpolation of this kind");
        if (stays || (same && m->n->op == CC_OP_upsample_linear)) continue;
        const int good = near ? nearest_side(m, d, m->n->op == CC_OP_upsample_exact, given)
                         : m->n->op == CC_OP_upsample_cubic ? cubic_side(m, d, corners, given)
                                                            : linear_side(m, d, corners, given);
        if (good < 0) return -1;
    }
    return near ? read_one(m, NULL) : begin_reading(m) < 0 ? -1 : weigh(m, 0, NONE);
}

/* ------------------------------------------------------------------ writes to slices and under masks */

/* The elements of x that the op writes, and the position of each in the source. */
typedef struct Written {
    int good, n; /* n: dims of the source */
    int64_t size[CC_MAX_DIMS];
    int at[CC_MAX_DIMS];
    bool masked; /* only a single number fits */
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

/* -> number of x's dims that the mask covers; 0: a loop can't do it */
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

/* The parts of a key (CcKeyPart). */
static bool written_key(Map *m, Written *w, CcOperandRange key) {
    int d = 0, at = key.first;
    while (at < key.first + key.n) {
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

/* The source's element: its dims align with those of `w` from the right, and broadcast. */
static int written_element(Map *m, const Written *w, const CcOperand *o) {
    const CcDtype out = (CcDtype)m->out->dtype;
    if (o->kind == CC_IN_NONE) return cc_build_refuse(m->b, "nothing to write");
    if (o->kind != CC_IN_VALUE) return cc_build_number(m->b, o, out, false);
    const CcType *t = &m->b->g->val.at[o->value].type;
    if (!cc_type_known(t) || (w->masked && cc_type_numel(t) != 1)) return cc_build_refuse(m->b, "a write of this kind");
    int at = NONE;
    for (int d = 0; d < t->ndim; d++) {
        const int own = w->n - t->ndim + d;
        if (t->size[d] == 1) continue;
        if (own < 0 || t->size[d] != w->size[own]) return cc_build_refuse(m->b, "a write whose source does not fit");
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
    return cc_term_cast(m->b, cc_term_cast(m->b, x, out), cc_term_compute(out));
}

/* x with some elements replaced by those of another tensor, or by a number. */
static int write(Map *m) {
    Written w = {.good = ALWAYS};
    bool good = cc_type_same_shape(m->in, m->out) && m->in->dtype == m->out->dtype;
    const CcGraph *g = m->b->g;
    CcStore store;
    CcIn_put put;
    CcIn_index_put masked;
    CcIn_select_scatter one;
    good = good && cc_store_read(g, m->n, &store) && store.how == CC_PUT_SET;
    if (good && m->n->op == CC_OP_put) {
        good = cc_in_put(g, m->n, &put) && written_key(m, &w, put.key);
    } else if (good && m->n->op == CC_OP_index_put) {
        good = cc_in_index_put(g, m->n, &masked) && masked.indices.n == 1 &&
               written_masked(m, &w, 0, operand(m, masked.indices.first));
    } else if (good) {
        good = cc_in_select_scatter(g, m->n, &one);
        const int dim = good ? cc_graph_dim(m->in, &one.dim) : -1;
        for (int d = 0; d < m->in->ndim && good; d++)
            good = d == dim ? written_one(m, &w, d, one.index.i + (one.index.i < 0 ? m->in->size[d] : 0))
                            : add_written(&w, m->in->size[d], place(m, d));
        good = good && dim >= 0;
    }
    if (!good) return cc_build_refuse(m->b, "a write of this kind");
    const int x = cc_term_cast(m->b, cc_build_value(m->b, m->value), cc_term_compute((CcDtype)m->in->dtype));
    const int y = written_element(m, &w, &store.source);
    return w.good == ALWAYS ? y : pick(m, w.good, y, x);
}

/* ------------------------------------------------------------------ mapped dims */

bool cc_tap_has(CcOpId id) {
    const CcOpKind kind = cc_op_info(id)->kind;
    const bool writes = id == CC_OP_put || id == CC_OP_index_put || id == CC_OP_select_scatter;
    return kind == CC_K_POOL || kind == CC_K_RESAMPLE || writes;
}

/* Does (position + 1) * size + a size fit into 32 bits in each dim (adaptive_side)? */
static bool small_products(const CcType *in, const CcType *out) {
    for (int d = 0; d < out->ndim; d++)
        if (in->size[d] >= INT32_MAX / (out->size[d] + 1)) return false;
    return true;
}

/* Do positions, and numbers computed from them, fit into 32 bits? */
static bool is_small(const CcGraph *g, const CcNode *n) {
    const int64_t most = INT64_C(1) << 30;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(g, n, i);
        if (o->kind == CC_IN_VALUE && cc_type_extent(&g->val.at[o->value].type) > most) return false;
        if (o->kind == CC_IN_INT && (o->i > 1 << 20 || o->i < -(1 << 20))) return false;
    }
    const CcType *out = &g->val.at[n->out0].type;
    const bool pools = cc_node_kind(n) == CC_K_POOL;
    if (pools && !small_products(&g->val.at[cc_graph_source(g, n)].type, out)) return false;
    return cc_type_numel(out) < most;
}

int cc_tap_lower(CcBuild *b, const CcNode *n) {
    Side side[CC_MAX_DIMS];
    Map m = {.b = b, .n = n, .out = &b->g->val.at[n->out0].type, .side = side, .unit = 1};
    const int x = cc_graph_source(b->g, n);
    if (x < 0) return cc_build_refuse(b, "no tensor to read");
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(b->g, n, i);
        if (v >= 0 && b->g->val.at[v].scalar) return cc_build_refuse(b, "CPU memory");
    }
    m.value = x;
    m.in = &b->g->val.at[x].type;
    m.index = is_small(b->g, n) ? CC_DT_I32 : CC_DT_I64;
    m.real = cc_term_compute((CcDtype)m.in->dtype);
    if (m.in->ndim < 0 || cc_type_numel(m.out) == 0) return cc_build_refuse(b, "an empty result");
    if (cc_type_numel(m.in) == 0) return cc_build_refuse(b, "nothing to read");
    switch (cc_node_kind(n)) {
    case CC_K_POOL: return pool(&m);
    case CC_K_RESAMPLE: return resample(&m);
    default: return write(&m);
    }
}
