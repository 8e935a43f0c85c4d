/* pool: max, average and adaptive pooling with any strides. Windows are tables, one entry per output index of a dim,
 * so all kinds share the loops:
 *
 *   channels-last        for each position of the result: its channels op= those of each position in the window;
 *                        half precision, few channels and overlapping windows work like the next way, where a column is
 *                        a position's channels (112x112x64, 5x5: 1.68 ms by positions, 0.63 like this, Zen 5)
 *   else                 first combines the rows of a window into one row, then that row's columns
 *   max with indices     the same, with an index beside each element
 *
 * oneDNN's max pooling is not used: eager's gives NaN for a window with a NaN. bf16 and f16 are summed in f32 and
 * rounded once, as in eager: one row of positions, or one plane, is widened at a time. */
#include <stdatomic.h>

#include "run_int.h"

enum {
    SIDES = 3,           /* spatial dims; missing ones have size 1 */
    MAX_PLANE = 1 << 22, /* elements of a plane in half precision */
    MAX_ROW = 4096,      /* columns of a combined row, which is on the stack */
    LANES = 16,
    ALL = 256,      /* windows that are computed at a time */
    FAR = 8,        /* stride between windows up to which all windows are computed and some thrown away */
    FEW_ROWS = 64,  /* rows of positions from which a unit of work takes all channels of a position */
    CHUNK = 64,     /* channels per unit otherwise, */
    SPOTS = 8192,   /* or as many as rows of this many elements hold, where rows are combined */
    ROW = 64,       /* fixed cost of a row of the result, in elements */
    GRAIN = 1 << 16 /* elements read per thread, to pay for its barrier */
};
typedef enum Kind { MAX, AVG } Kind;

typedef struct Side {
    int64_t in, out, step;    /* step: distance between elements of a window */
    int32_t *from, *to, *all; /* [out]; all: the window's share of the divisor */
    /* a range of outputs whose windows have one size and start `stride` apart */
    int64_t alike, alike_end, stride;
} Side;

typedef struct CcPool {
    Kind kind;
    int src, dst;          /* values */
    int index;             /* value of the indices of maxima; -1: none, or not read */
    int64_t src_at;        /* bytes: src may be a window */
    int64_t span;          /* elements of memory between the first and the last of a plane */
    int64_t n, c, divisor; /* divisor 0: the number of elements in the window */
    Side side[SIDES];
    int64_t from[2 + SIDES], to[2 + SIDES]; /* strides of src and dst: n, c, sides */
    int64_t index_to[2 + SIDES];
    bool last;             /* both are channels-last */
    bool joins;            /* combines rows of positions */
    bool across;           /* goes_across */
    CcDtype dtype;         /* of both */
    int64_t chunks, width; /* channels of a position are split into `chunks` units of `width` */
    int parts;             /* number of threads */
} CcPool;

typedef struct Job {
    const CcPool *p;
    const char *src;
    char *dst;
    atomic_bool failed;
    int64_t *index; /* if set, dst may be NULL */
} Job;

/* Compilers vectorise loops over LANES for the target of the function that inlines all this (unlike vector types,
 * which gcc 12 lowers before inlining). */
#define ALWAYS inline __attribute__((always_inline))

/* Compares as eager does: a NaN stays. */
static ALWAYS float larger(float x, float y) { return (y > x) | (y != y) ? y : x; }

/* The same without an unpredictable branch: with one, 100 images of 8 channels took 20 times as long as 3 of them. */
static ALWAYS float larger_of(float x, float y) {
    uint32_t a, b, mask = -(uint32_t)((y > x) | (y != y));
    memcpy(&a, &x, sizeof a);
    memcpy(&b, &y, sizeof b);
    a = (b & mask) | (a & ~mask);
    memcpy(&x, &a, sizeof x);
    return x;
}

/* to[i] op= from[i] for n consecutive elements. */
static ALWAYS void combine(Kind kind, float *restrict to, const float *restrict from, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            to[i + k] = kind == AVG ? to[i + k] + from[i + k] : larger(to[i + k], from[i + k]);
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) to[i + k] = kind == AVG ? to[i + k] + from[i + k] : larger(to[i + k], from[i + k]);
    for (; i < n; i++) to[i] = kind == AVG ? to[i] + from[i] : larger_of(to[i], from[i]);
}

static ALWAYS void divide(float *at, float by, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) at[i + k] /= by;
    for (; i < n; i++) at[i] /= by;
}

/* Sum or maximum of n >= LANES consecutive elements. */
static ALWAYS float fold(Kind kind, const float *at, int64_t n) {
    float lane[LANES];
    int64_t i = LANES;
    memcpy(lane, at, sizeof lane);
    for (; i + LANES <= n; i += LANES) combine(kind, lane, at + i, LANES);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            lane[k] = kind == AVG ? lane[k] + lane[k + half] : larger(lane[k], lane[k + half]);
    for (; i < n; i++) lane[0] = kind == AVG ? lane[0] + at[i] : larger(lane[0], at[i]);
    return lane[0];
}

/* Output indices of sides 0 and 1 (and 2) of a unit. */
typedef struct Spot {
    int64_t at[SIDES];
} Spot;

static float divisor_of(const CcPool *p, const Spot *s) {
    if (p->divisor) return (float)p->divisor;
    return (float)((int64_t)p->side[0].all[s->at[0]] * p->side[1].all[s->at[1]] * p->side[2].all[s->at[2]]);
}

/* The result of an empty window. */
static float nothing(Kind kind) { return kind == AVG ? 0 : -__builtin_inff(); }

/* n channels of one position. */
static ALWAYS void pool_spot(const CcPool *p, Kind kind, const float *src, float *dst, const Spot *s, int64_t n) {
    const Side *a = &p->side[0], *b = &p->side[1], *c = &p->side[2];
    bool first = true;
    for (int64_t i = a->from[s->at[0]]; i < a->to[s->at[0]]; i += a->step)
        for (int64_t j = b->from[s->at[1]]; j < b->to[s->at[1]]; j += b->step)
            for (int64_t k = c->from[s->at[2]]; k < c->to[s->at[2]]; k += c->step) {
                const float *at = src + i * p->from[2] + j * p->from[3] + k * p->from[4];
                if (first) memcpy(dst, at, sizeof *dst * (size_t)n);
                else combine(kind, dst, at, n);
                first = false;
            }
    for (int64_t i = 0; first && i < n; i++) dst[i] = nothing(kind);
    if (kind == AVG && !first) divide(dst, divisor_of(p, s), n);
}

/* Combines the rows of a window; returns the row itself if there is only one and it is contiguous. NULL: the window
 * has no rows. */
static ALWAYS const float *join_rows(const CcPool *p, Kind kind, const float *src, const Spot *s, float *row) {
    const Side *a = &p->side[0], *b = &p->side[1];
    const float *only = NULL;
    int rows = 0;
    for (int64_t i = a->from[s->at[0]]; i < a->to[s->at[0]]; i += a->step)
        for (int64_t j = b->from[s->at[1]]; j < b->to[s->at[1]]; j += b->step) {
            const float *at = src + i * p->from[2] + j * p->from[3];
            const int64_t width = p->side[2].in, step = p->from[4];
            if (rows++ == 0 && step == 1) {
                only = at;
                continue;
            }
            if (only) memcpy(row, only, sizeof *row * (size_t)width);
            only = NULL;
            if (step == 1) combine(kind, row, at, width);
            for (int64_t k = 0; step != 1 && k < width; k++) {
                const float y = at[k * step];
                row[k] = rows == 1 ? y : kind == AVG ? row[k] + y : larger(row[k], y);
            }
        }
    return rows == 0 ? NULL : only ? only : row;
}

/* One window in a row of positions. */
static ALWAYS void pool_wide(Kind kind, const Side *side, int64_t out, int64_t wide, const float *row, float *dst) {
    const int64_t from = side->from[out], to = side->to[out];
    for (int64_t i = 0; from >= to && i < wide; i++) dst[i] = nothing(kind);
    if (from < to) memcpy(dst, row + from * wide, sizeof *dst * (size_t)wide);
    for (int64_t i = from + side->step; i < to; i += side->step) combine(kind, dst, row + i * wide, wide);
}

/* The same for single columns. */
static ALWAYS float pool_window(Kind kind, const Side *side, int64_t out, const float *row) {
    const int64_t from = side->from[out], to = side->to[out];
    float x = nothing(kind);
    if (side->step == 1 && to - from >= LANES) return fold(kind, row + from, to - from);
    for (int64_t i = from; i < to; i += side->step) x = kind == AVG ? x + row[i] : larger(x, row[i]);
    return x;
}

/* `n` windows of `many` elements with distance `step`; consecutive windows start one element apart. */
static ALWAYS void pool_close(Kind kind, const float *at, int64_t many, int64_t step, float *dst, int64_t n) {
    if (n < LANES) {
        memcpy(dst, at, sizeof *dst * (size_t)n);
        for (int64_t i = 1; i < many; i++) combine(kind, dst, at + i * step, n);
        return;
    }
    for (int64_t k = 0; k < n; k += LANES) { /* the last vector may repeat work of the one before it */
        const int64_t x = k + LANES <= n ? k : n - LANES;
        float lane[LANES];
        memcpy(lane, at + x, sizeof lane);
        for (int64_t i = 1; i < many; i++) combine(kind, lane, at + x + i * step, LANES);
        memcpy(dst + x, lane, sizeof lane);
    }
}

/* The same for positions of `wide` elements, with windows `stride` positions apart: vectors also compute the windows
 * between them, which are left out. */
static ALWAYS void pool_alike(Kind kind, const float *at, int64_t many, int64_t step, int64_t stride, int64_t wide,
                              float *dst, int64_t n) {
    if (stride == 1) {
        pool_close(kind, at, many, step * wide, dst, n * wide);
        return;
    }
    for (int64_t x = 0, m; x < n; x += m) { /* stride 0: all windows are the same */
        float all[ALL];
        m = stride <= FAR ? CC_MIN(n - x, (ALL / wide - 1) / CC_MAX(1, stride) + 1) : 1;
        pool_close(kind, at + x * stride * wide, many, step * wide, all, ((m - 1) * stride + 1) * wide);
        for (int64_t k = 0; k < m; k++)
            for (int64_t i = 0; i < wide; i++) dst[(x + k) * wide + i] = all[k * stride * wide + i];
    }
}

/* The windows of a row of positions, as sums or maxima. */
static ALWAYS void pool_columns(Kind kind, const Side *side, int64_t wide, const float *row, float *dst) {
    const int64_t step = side->step, from = side->from[side->alike],
                  many = (side->to[side->alike] - from + step - 1) / step;
    const bool narrow = many > 0 && many < LANES && wide < LANES;
    for (int64_t x = 0; x < side->out; x++) {
        if (narrow && x == side->alike) {
            const int64_t n = side->alike_end - x;
            pool_alike(kind, row + from * wide, many, step, side->stride, wide, dst + x * wide, n);
            x = side->alike_end - 1;
        } else if (wide > 1) pool_wide(kind, side, x, wide, row, dst + x * wide);
        else dst[x] = pool_window(kind, side, x, row);
    }
}

/* Turns sums of a row of positions into means, except of empty windows. s: any position of the row. */
static ALWAYS void divide_row(const CcPool *p, Spot *s, int64_t wide, float *dst) {
    const Side *side = &p->side[2];
    for (int64_t x = 0; x < side->out; x++) {
        const int64_t n = x == side->alike ? side->alike_end - x : 1;
        s->at[2] = x;
        if (side->from[x] < side->to[x]) divide(dst + x * wide, divisor_of(p, s), n * wide);
        x += n - 1;
    }
}

/* Widens n channels of each position of a row, with distance `step`, to f32. */
static ALWAYS void take_spots(const CcPool *p, const char *src, int64_t n, float *to) {
    const int64_t spots = p->side[2].in, step = p->from[4], size = p->dtype == CC_DT_F32 ? 4 : 2;
    if (step == n) cc_halves_widen(p->dtype, src, to, spots * n);
    for (int64_t i = 0; step != n && i < spots; i++) cc_halves_widen(p->dtype, src + i * step * size, to + i * n, n);
}

static ALWAYS void give_spots(const CcPool *p, const float *from, int64_t n, char *dst) {
    const int64_t spots = p->side[2].out, step = p->to[4], size = p->dtype == CC_DT_F32 ? 4 : 2;
    if (step == n) cc_halves_narrow(p->dtype, from, dst, spots * n);
    for (int64_t i = 0; step != n && i < spots; i++) cc_halves_narrow(p->dtype, from + i * n, dst + i * step * size, n);
}

/* A row of positions of the result, n channels each. room: for two rows of the source and one of the result. */
static ALWAYS void pool_spots(const CcPool *p, Kind kind, const char *src, char *dst, Spot *s, int64_t n, float *room) {
    const Side *a = &p->side[0], *b = &p->side[1];
    const int64_t whole = p->side[2].in * n, size = p->dtype == CC_DT_F32 ? 4 : 2;
    float *next = room + whole, *out = next + whole;
    bool any = false;
    for (int64_t i = a->from[s->at[0]]; i < a->to[s->at[0]]; i += a->step)
        for (int64_t j = b->from[s->at[1]]; j < b->to[s->at[1]]; j += b->step) {
            take_spots(p, src + (i * p->from[2] + j * p->from[3]) * size, n, any ? next : room);
            if (any) combine(kind, room, next, whole);
            any = true;
        }
    if (any) pool_columns(kind, &p->side[2], n, room, out);
    for (int64_t i = 0; !any && i < p->side[2].out * n; i++) out[i] = nothing(kind);
    if (any && kind == AVG) divide_row(p, s, n, out);
    give_spots(p, out, n, dst);
}

/* Units: [n][side 0][side 1][chunk of channels]; a unit is a row of positions. */
static ALWAYS void pool_last(Job *job, Kind kind, int64_t begin, int64_t end) {
    const CcPool *p = job->p;
    const int64_t size = p->dtype == CC_DT_F32 ? 4 : 2, floats = (2 * p->side[2].in + p->side[2].out) * p->width;
    float *room = p->joins ? cc_scratch_thread(sizeof *room * (size_t)floats) : NULL;
    if (p->joins && !room) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int64_t u = begin; u < end; u++) {
        const int64_t c = u % p->chunks * p->width, row = u / p->chunks;
        Spot s = {{row / p->side[1].out % p->side[0].out, row % p->side[1].out, 0}};
        const int64_t n = row / p->side[1].out / p->side[0].out;
        const char *src = job->src + (n * p->from[0] + c) * size;
        char *dst = job->dst + (n * p->to[0] + s.at[0] * p->to[2] + s.at[1] * p->to[3] + c) * size;
        const int64_t few = CC_MIN(p->width, p->c - c);
        if (p->joins) pool_spots(p, kind, src, dst, &s, few, room);
        for (; !p->joins && s.at[2] < p->side[2].out; s.at[2]++, dst += p->to[4] * size)
            pool_spot(p, kind, (const float *)src, (float *)dst, &s, few);
    }
}

static ALWAYS void store_row(const CcPool *p, const float *row, char *dst, int64_t at) {
    const int64_t n = p->side[2].out, step = p->to[4];
    if (p->dtype == CC_DT_F32)
        for (int64_t x = 0; x < n; x++) ((float *)dst)[at + x * step] = row[x];
    else if (step == 1) cc_halves_narrow(p->dtype, row, (uint16_t *)dst + at, n);
    else
        for (int64_t x = 0; x < n; x++) cc_halves_narrow(p->dtype, row + x, (uint16_t *)dst + at + x * step, 1);
}

/* Units: [n][c][side 0][side 1]; a unit is a row of the result. */
static ALWAYS void pool_rows(Job *job, Kind kind, int64_t begin, int64_t end) {
    const CcPool *p = job->p;
    const Side *side = &p->side[2];
    const bool half = p->dtype != CC_DT_F32, straight = !half && p->to[4] == 1;
    float row[MAX_ROW], *room = straight ? NULL : cc_scratch_thread(sizeof *room * (size_t)(p->span + side->out));
    int64_t widened = -1;
    if (!straight && !room) {
        atomic_store(&job->failed, true);
        return;
    }
    if (begin >= end) return; /* here sides may be 0 */
    /* incremented from unit to unit: divisions take longer than a short row */
    Spot s = {{begin / p->side[1].out % p->side[0].out, begin % p->side[1].out, 0}};
    int64_t plane = begin / p->side[1].out / p->side[0].out, c = plane % p->c, n = plane / p->c;
    for (int64_t u = begin; u < end; u++) {
        const int64_t from_at = n * p->from[0] + c * p->from[1];
        if (half && plane != widened) cc_halves_widen(p->dtype, job->src + 2 * from_at, room, p->span);
        widened = plane;
        const float *joined = join_rows(p, kind, half ? room : (const float *)job->src + from_at, &s, row);
        const int64_t to_at = n * p->to[0] + c * p->to[1] + s.at[0] * p->to[2] + s.at[1] * p->to[3];
        float *out = straight ? (float *)job->dst + to_at : room + p->span;
        if (joined) pool_columns(kind, side, 1, joined, out);
        for (int64_t x = 0; !joined && x < side->out; x++) out[x] = nothing(kind);
        if (joined && kind == AVG) divide_row(p, &s, 1, out);
        if (!straight) store_row(p, out, job->dst, to_at);
        if (++s.at[1] < p->side[1].out) continue;
        s.at[1] = 0;
        if (++s.at[0] < p->side[0].out) continue;
        s.at[0] = 0;
        plane++;
        if (++c == p->c) c = 0, n++;
    }
}

/* Does y replace the maximum x so far? The first of equal elements wins, and the last NaN, as in eager. */
static ALWAYS bool takes_over(float y, float x) { return (y > x) | (y != y); }

/* Index of an element in its plane. */
static ALWAYS int32_t place_in(const CcPool *p, int64_t i, int64_t j, int64_t k) {
    return (int32_t)((i * p->side[1].in + j) * p->side[2].in + k);
}

/* n <= LANES channels of one position, consecutive. */
static ALWAYS void place_lanes(const CcPool *p, const float *src, const Spot *s, float *dst, int64_t *index, int n) {
    const Side *a = &p->side[0], *b = &p->side[1], *c = &p->side[2];
    const int32_t first = place_in(p, a->from[s->at[0]], b->from[s->at[1]], c->from[s->at[2]]);
    float x[LANES], y[LANES] = {0};
    int32_t place[LANES];
    for (int l = 0; l < LANES; l++) x[l] = nothing(MAX), place[l] = first;
    for (int64_t i = a->from[s->at[0]]; i < a->to[s->at[0]]; i += a->step)
        for (int64_t j = b->from[s->at[1]]; j < b->to[s->at[1]]; j += b->step)
            for (int64_t k = c->from[s->at[2]]; k < c->to[s->at[2]]; k += c->step) {
                const int32_t here = place_in(p, i, j, k);
                memcpy(y, src + i * p->from[2] + j * p->from[3] + k * p->from[4], sizeof *y * (size_t)n);
                for (int l = 0; l < LANES; l++) place[l] = takes_over(y[l], x[l]) ? here : place[l];
                for (int l = 0; l < LANES; l++) x[l] = takes_over(y[l], x[l]) ? y[l] : x[l];
            }
    for (int l = 0; l < n; l++) index[l] = place[l];
    if (dst) memcpy(dst, x, sizeof *x * (size_t)n);
}

/* n <= LANES positions of a row, starting with `s`. Outside its own window a lane reads -inf, which replaces
 * nothing. */
static ALWAYS void place_across(const CcPool *p, const float *src, const Spot *s, float *x, int32_t *place, int n) {
    const Side *a = &p->side[0], *b = &p->side[1], *c = &p->side[2];
    int32_t from[LANES] = {0}, width[LANES] = {0}, widest = 0;
    for (int l = 0; l < n; l++) {
        from[l] = c->from[s->at[2] + l];
        width[l] = c->to[s->at[2] + l] - from[l];
        widest = CC_MAX(widest, width[l]);
    }
    for (int l = 0; l < LANES; l++) {
        x[l] = nothing(MAX);
        place[l] = place_in(p, a->from[s->at[0]], b->from[s->at[1]], from[l]);
    }
    for (int64_t i = a->from[s->at[0]]; i < a->to[s->at[0]]; i += a->step)
        for (int64_t j = b->from[s->at[1]]; j < b->to[s->at[1]]; j += b->step)
            for (int32_t t = 0; t < widest; t += (int32_t)c->step) {
                const float *row = src + i * p->from[2] + j * p->from[3];
                const int32_t first = place_in(p, i, j, 0);
                int32_t at[LANES];
                float y[LANES];
                for (int l = 0; l < LANES; l++) at[l] = from[l] + (t < width[l] ? t : 0);
                for (int l = 0; l < LANES; l++) y[l] = row[at[l] * p->from[4]];
                for (int l = 0; l < LANES; l++) y[l] = t < width[l] ? y[l] : nothing(MAX);
                for (int l = 0; l < LANES; l++) place[l] = takes_over(y[l], x[l]) ? first + at[l] : place[l];
                for (int l = 0; l < LANES; l++) x[l] = takes_over(y[l], x[l]) ? y[l] : x[l];
            }
}

/* Per column, the maximum over the rows of a window, and its index. False: there are no rows. */
static ALWAYS bool join_places(const CcPool *p, const float *src, const Spot *s, float *restrict x,
                               int32_t *restrict place) {
    const Side *a = &p->side[0], *b = &p->side[1];
    const int64_t width = p->side[2].in, step = p->from[4];
    bool any = false;
    for (int64_t i = a->from[s->at[0]]; i < a->to[s->at[0]]; i += a->step)
        for (int64_t j = b->from[s->at[1]]; j < b->to[s->at[1]]; j += b->step) {
            const float *at = src + i * p->from[2] + j * p->from[3];
            const int32_t here = place_in(p, i, j, 0);
            int64_t k = 0;
            for (; any && step == 1 && k + LANES <= width; k += LANES) {
                const int32_t first = here + (int32_t)k;
                for (int l = 0; l < LANES; l++)
                    place[k + l] = takes_over(at[k + l], x[k + l]) ? first + l : place[k + l];
                for (int l = 0; l < LANES; l++) x[k + l] = takes_over(at[k + l], x[k + l]) ? at[k + l] : x[k + l];
            }
            for (; k < width; k++) {
                const bool other = !any || takes_over(at[k * step], x[k]);
                place[k] = other ? here + (int32_t)k : place[k];
                x[k] = other ? at[k * step] : x[k];
            }
            any = true;
        }
    return any;
}

/* The maximum of a window's columns: the first of equal ones, and the last NaN. */
static ALWAYS float join_columns(const Side *side, int64_t out, const float *x, const int32_t *place, int64_t *index) {
    float best = nothing(MAX);
    int32_t where = place[side->from[out]];
    for (int64_t k = side->from[out]; k < side->to[out]; k += side->step) {
        if (x[k] < best) continue; /* the usual case; a chain of selects takes three times as long (Zen 4) */
        const bool nan = (x[k] != x[k]) & ((best == best) | (place[k] > where));
        const bool other = (x[k] > best) | ((x[k] == best) & (place[k] < where)) | nan;
        if (!other) continue;
        best = x[k];
        where = place[k];
    }
    *index = where;
    return best;
}

/* The same for a window with one row. */
static ALWAYS float scan_row(const Side *side, int64_t out, const float *row, int64_t step, int64_t *where) {
    float best = nothing(MAX);
    int64_t at = side->from[out];
    for (int64_t k = at; k < side->to[out]; k += side->step) {
        const float y = row[k * step];
        if (!takes_over(y, best)) continue;
        best = y;
        at = k;
    }
    *where += at - side->from[out];
    return best;
}

/* Many narrow windows, one per lane of a vector. 32x56x56, 3x3, stride 2: 136 us, by combined rows 225 (Zen 4, two
 * threads). */
static bool goes_across(const CcPool *p) {
    const Side *side = &p->side[2];
    int64_t widest = 0;
    for (int64_t o = 0; o < side->out; o++) widest = CC_MAX(widest, side->to[o] - side->from[o]);
    return side->out > LANES / 2 && widest < LANES / 2;
}

/* Does the window of this position lie in one row? */
static ALWAYS bool in_one_row(const CcPool *p, const Spot *s) {
    for (int i = 0; i < 2; i++)
        if (p->side[i].to[s->at[i]] - p->side[i].from[s->at[i]] != 1) return false;
    return true;
}

/* Units of pool_last and pool_rows. */
static ALWAYS void place_last(const Job *job, int64_t begin, int64_t end) {
    const CcPool *p = job->p;
    const int64_t *to = p->index_to;
    for (int64_t u = begin; u < end; u++) {
        const int64_t first = u % p->chunks * p->width, last = CC_MIN(p->c, first + p->width), row = u / p->chunks;
        Spot s = {{row / p->side[1].out % p->side[0].out, row % p->side[1].out, 0}};
        const int64_t n = row / p->side[1].out / p->side[0].out;
        const float *src = (const float *)job->src + n * p->from[0];
        float *dst = (float *)job->dst + n * p->to[0] + s.at[0] * p->to[2] + s.at[1] * p->to[3];
        int64_t *index = job->index + n * to[0] + s.at[0] * to[2] + s.at[1] * to[3];
        for (; s.at[2] < p->side[2].out; s.at[2]++, dst += p->to[4], index += to[4])
            for (int64_t c = first; c < last; c += LANES) {
                float *here = job->dst ? dst + c : NULL;
                if (last - c >= LANES) place_lanes(p, src + c, &s, here, index + c, LANES);
                else place_lanes(p, src + c, &s, here, index + c, (int)(last - c));
            }
    }
}

static ALWAYS void place_rows(const Job *job, int64_t begin, int64_t end) {
    const CcPool *p = job->p;
    const int64_t *to = p->index_to;
    const Side *side = &p->side[2];
    float x[MAX_ROW];
    int32_t place[MAX_ROW];
    for (int64_t u = begin; u < end; u++) {
        Spot s = {{u / p->side[1].out % p->side[0].out, u % p->side[1].out, 0}};
        const int64_t plane = u / p->side[1].out / p->side[0].out, c = plane % p->c, n = plane / p->c;
        const float *src = (const float *)job->src + n * p->from[0] + c * p->from[1];
        float *dst = (float *)job->dst + n * p->to[0] + c * p->to[1] + s.at[0] * p->to[2] + s.at[1] * p->to[3];
        int64_t *index = job->index + n * to[0] + c * to[1] + s.at[0] * to[2] + s.at[1] * to[3];
        const int64_t a = p->side[0].from[s.at[0]], b = p->side[1].from[s.at[1]];
        for (; p->across && s.at[2] < side->out; s.at[2] += LANES) {
            const int m = (int)CC_MIN(LANES, side->out - s.at[2]);
            place_across(p, src, &s, x, place, m);
            for (int l = 0; l < m; l++) index[(s.at[2] + l) * to[4]] = place[l];
            for (int l = 0; l < m && job->dst; l++) dst[(s.at[2] + l) * p->to[4]] = x[l];
        }
        const bool row = in_one_row(p, &s), any = !p->across && !row && join_places(p, src, &s, x, place);
        for (; s.at[2] < side->out; s.at[2]++) {
            int64_t where = place_in(p, a, b, side->from[s.at[2]]);
            float best = nothing(MAX);
            if (row) best = scan_row(side, s.at[2], src + a * p->from[2] + b * p->from[3], p->from[4], &where);
            else if (any && side->from[s.at[2]] < side->to[s.at[2]])
                best = join_columns(side, s.at[2], x, place, &where);
            index[s.at[2] * to[4]] = where;
            if (job->dst) dst[s.at[2] * p->to[4]] = best;
        }
    }
}

static ALWAYS void pool_units(Job *job, int64_t begin, int64_t end) {
    if (job->index && job->p->last) place_last(job, begin, end);
    else if (job->index) place_rows(job, begin, end);
    else if (job->p->last && job->p->kind == AVG) pool_last(job, AVG, begin, end);
    else if (job->p->last) pool_last(job, MAX, begin, end);
    else if (job->p->kind == AVG) pool_rows(job, AVG, begin, end);
    else pool_rows(job, MAX, begin, end);
}

/* The same loops for each vector extension. */
__attribute__((target("avx512f,avx512vl,avx512dq,fma"))) static void pool_avx512(void *job, int64_t begin,
                                                                                 int64_t end) {
    pool_units(job, begin, end);
}
__attribute__((target("avx2,fma"))) static void pool_avx2(void *job, int64_t begin, int64_t end) {
    pool_units(job, begin, end);
}
static void pool_base(void *job, int64_t begin, int64_t end) { pool_units(job, begin, end); }

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcPool *p = work;
    Job job = {.p = p, .src = cc_prim_data(host, p->src, p->src_at)};
    if (p->dst >= 0) job.dst = host->make(host->ctx, p->dst);
    if (p->index >= 0) job.index = host->make(host->ctx, p->index);
    if (!job.src || (p->dst >= 0 && !job.dst) || (p->index >= 0 && !job.index))
        return cc_err_set(err, CC_E_HOST, "no memory for value %d", p->dst);
    const int64_t rows = p->n * p->side[0].out * p->side[1].out;
    cc_omp_run(CC_CPU_WIDEST(pool), &job, rows * (p->last ? p->chunks : p->c), CC_MIN(p->parts, cc_omp_width()));
    return atomic_load(&job.failed) ? cc_err_set(err, CC_E_MEMORY, "no memory for a pooling") : 0;
}

/* ---- building ---- */

static int make_side(const CcWindow *w, Side *side, CcArena *arena) {
    int32_t *table = cc_arena_alloc(arena, sizeof *table * 3 * (size_t)side->out);
    if (!table) return -1;
    side->step = w->dilation;
    for (int64_t o = 0; o < side->out; o++) {
        int64_t from = o * w->stride - w->padding, to = from + w->dilation * (w->kernel - 1) + 1;
        if (w->adaptive) {
            from = o * side->in / side->out;
            to = ((o + 1) * side->in + side->out - 1) / side->out;
        }
        int64_t all = CC_MIN(to, side->in + w->padding) - from;
        while (from < 0) from += w->dilation;
        to = CC_MIN(to, side->in);
        if (!w->count_padding) all = CC_MAX(0, to - from);
        table[o] = (int32_t)from;
        table[side->out + o] = (int32_t)CC_MAX(from, to);
        table[2 * side->out + o] = (int32_t)all;
    }
    side->from = table;
    side->to = table + side->out;
    side->all = table + 2 * side->out;
    return 0;
}

/* A plane under a single window counts as one row. */
static void merge_sides(CcPool *p) {
    Side *side = p->side;
    for (int i = 0; i < SIDES; i++)
        if (side[i].out != 1 || side[i].from[0] != 0 || side[i].to[0] != side[i].in || side[i].all[0] != side[i].in ||
            side[i].step != 1)
            return;
    if (p->last || p->kind != AVG || p->from[4] != 1 || (side[1].in > 1 && p->from[3] != side[2].in) ||
        (side[0].in > 1 && p->from[2] != side[1].in * side[2].in))
        return;
    side[2].in *= side[1].in * side[0].in;
    side[0].in = side[1].in = 1;
    for (int i = 0; i < SIDES; i++) side[i].to[0] = side[i].all[0] = (int32_t)side[i].in;
}

/* Finds the largest middle part of a side whose windows have one size and stride. */
static void find_alike(Side *side) {
    const int64_t middle = (side->out - 1) / 2, last = side->out - 1;
    const int32_t *from = side->from, *to = side->to, *all = side->all;
    side->alike = middle;
    side->alike_end = middle + 1;
    if (last < 1) return;
    side->stride = from[middle + 1] - from[middle];
    for (int64_t x = middle; x >= 0 && to[x] - from[x] == to[middle] - from[middle] && all[x] == all[middle] &&
                             from[middle] - from[x] == (middle - x) * side->stride;
         x--)
        side->alike = x;
    for (int64_t x = middle; x <= last && to[x] - from[x] == to[middle] - from[middle] && all[x] == all[middle] &&
                             from[x] - from[middle] == (x - middle) * side->stride;
         x++)
        side->alike_end = x + 1;
}

/* -1: this family can't do it. An image without a batch is a batch of one. */
static int describe(const CcGraph *g, const CcNode *n, CcPool *p, CcWindow window[SIDES]) {
    const int x = cc_graph_source(g, n);
    if (x < 0) return -1;
    const CcType *s = &g->val.at[x].type, *o = &g->val.at[n->out0].type;
    CcWindow read[CC_WINDOW_DIMS];
    int64_t divisor;
    const int dims = cc_window_read(g, n, read, &divisor), lead = s->ndim - dims, skip = SIDES - dims;
    const bool only_places = n->op == CC_OP_max_pool_at || n->op == CC_OP_adaptive_max_pool_at;
    if (!cc_prim_float(s) || (only_places ? cc_type_numel(o) == 0 : !cc_prim_float(o) || s->dtype != o->dtype) ||
        !cc_type_dense(o) || dims < 1 || lead < 1 || lead > 2 || o->ndim != s->ndim || o->size[0] != s->size[0] ||
        o->size[lead - 1] != s->size[lead - 1])
        return -1;
    const bool max = cc_window_is_max(n), places = n->n_out == 2 || only_places;
    const CcType *index = places && max ? &g->val.at[n->out0 + !only_places].type : NULL;
    if (n->n_out != 1 + (index != NULL && !only_places) || (index && s->dtype != CC_DT_F32)) return -1;
    if (index && cc_type_numel(s) > INT32_MAX) return -1;
    if (index &&
        (index->dtype != CC_DT_I64 || index->device != 1 || !cc_type_same_shape(index, o) || !cc_type_dense(index)))
        return -1;
    *p = (CcPool){.kind = max ? MAX : AVG,
                  .src = x,
                  .dst = only_places ? -1 : n->out0,
                  .index = index ? n->out0 + !only_places : -1,
                  .n = lead == 2 ? s->size[0] : 1,
                  .c = s->size[lead - 1],
                  .dtype = (CcDtype)s->dtype,
                  .divisor = divisor,
                  .span = 1};
    for (int i = 0; i < skip; i++) {
        window[i] = (CcWindow){.adaptive = true, .dilation = 1};
        p->side[i].in = p->side[i].out = 1;
    }
    for (int d = 0; d < s->ndim; d++) {
        const int to = d < lead ? d + 2 - lead : d - lead + 2 + skip;
        p->from[to] = s->stride[d];
        p->to[to] = o->stride[d];
        if (index) p->index_to[to] = index->stride[d];
        if (d < lead) continue;
        const CcWindow *w = &window[to - 2];
        window[to - 2] = read[d - lead];
        p->span += (s->size[d] - 1) * s->stride[d];
        p->side[to - 2].in = s->size[d];
        p->side[to - 2].out = o->size[d];
        if (s->size[d] > INT32_MAX / 2 || (!w->adaptive && (o->size[d] - 1) * w->stride >= s->size[d] + w->padding))
            return -1;
    }
    p->last = p->from[1] == 1 && p->to[1] == 1 && (!index || p->index_to[1] == 1) && p->c > 1;
    return 0;
}

static bool can(const CcGraph *g, int node) {
    CcPool p;
    CcWindow window[SIDES];
    return describe(g, &g->node.at[node], &p, window) == 0 &&
           (p.last || (p.side[2].in <= MAX_ROW && (p.dtype == CC_DT_F32 || p.span <= MAX_PLANE)));
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    CcWindow window[SIDES];
    CcPool *p = cc_arena_alloc(arena, sizeof *p);
    if (!p || n != 1 || describe(g, &g->node.at[nodes[0]], p, window) < 0) {
        cc_err_set(err, CC_E_UNSUPPORTED, "this kind of pooling");
        return NULL;
    }
    for (int i = 0; i < SIDES; i++)
        if (make_side(&window[i], &p->side[i], arena) < 0) {
            cc_err_set(err, CC_E_MEMORY, "no memory for a pooling's windows");
            return NULL;
        }
    int64_t work = p->n * p->c, rows = p->n;
    for (int i = 0; i < SIDES; i++) work *= CC_MAX(p->side[i].in, p->side[i].out);
    for (int i = 0; i < SIDES - 1; i++) rows *= p->side[i].out;
    p->src_at = cc_prim_base(g, &p->src);
    if (p->index >= 0) cc_prim_unread(g, (int *const[]){&p->dst, &p->index}, 2, arena);
    merge_sides(p);
    find_alike(&p->side[SIDES - 1]);
    p->across = goes_across(p);
    p->joins = p->last && (p->dtype != CC_DT_F32 || p->c < LANES || p->side[SIDES - 1].stride == 1);
    p->width = rows >= FEW_ROWS ? p->c : CHUNK;
    if (p->joins) p->width = CC_MIN(p->width, CC_MAX(CHUNK, SPOTS / CC_MAX(1, p->side[SIDES - 1].in) / CHUNK * CHUNK));
    p->chunks = (p->c + p->width - 1) / p->width;
    p->parts = work + ROW * rows * (p->last ? p->chunks : p->c) < GRAIN ? 1 : INT32_MAX;
    return p;
}

const CcPrimFamily CC_POOLS = {.name = "pool", .several = true, .can = can, .build = build, .run = run};
