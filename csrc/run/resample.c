/* resample: interpolate by nearest, linear and cubic in one to three dims, over any strides. What an index of the
 * result is made of, elements and weights, is a table for each dim, made as torch makes it (ATen's UpSample.h and
 * UpSampleKernel.cpp, 2.13), in float; so all modes share the loops:
 *
 *   channels innermost   for each spot of the result: its channels are a sum of those of the spots it is made of
 *   else                 the rows that a row is made of are summed up first, into one row; then its columns
 *
 * A weight of 0 is multiplied with, as in eager: of an infinite element it makes NaN. Only f32. */
#include <math.h>

#include "run_int.h"

enum {
    SIDES = 3,      /* spatial dims; missing ones have size 1 */
    MAX_TAPS = 4,   /* elements of a dim that one is made of */
    MAX_ROW = 4096, /* columns of a row that is summed up on the stack */
    LANES = 16,
    GRAIN = 1 << 15 /* elements that a second thread is not worth its barrier for */
};

typedef enum Mode { COPIED, NEAREST, NEAREST_EXACT, LINEAR, CUBIC } Mode;

typedef struct Side {
    int64_t in, out;
    int taps;
    int32_t *at;   /* [out][taps] */
    float *weight; /* the same; NULL: the element itself */
} Side;

typedef struct CcResample {
    int src, dst;   /* values */
    int64_t src_at; /* bytes: it may be a window */
    int64_t n, c;
    Side side[SIDES];
    int64_t from[2 + SIDES], to[2 + SIDES]; /* strides of src and dst: n, c, sides */
    bool last;                              /* channels innermost in both */
    int parts;                              /* threads */
} CcResample;

typedef struct Job {
    const CcResample *p;
    const float *src;
    float *dst;
} Job;

/* One of the rows, or spots, that something is made of. */
typedef struct Tap {
    const float *at;
    float weight;
} Tap;

/* As in pool.c: compilers make vectors of loops over LANES for the function that this is inlined into. */
#define ALWAYS inline __attribute__((always_inline))

/* Their weighted sum, n elements side by side. */
static ALWAYS void weigh(float *restrict to, const Tap *tap, int taps, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float sum[LANES];
        for (int k = 0; k < LANES; k++) sum[k] = tap->at[i + k] * tap->weight;
        for (int t = 1; t < taps; t++)
            for (int k = 0; k < LANES; k++) sum[k] += tap[t].at[i + k] * tap[t].weight;
        memcpy(to + i, sum, sizeof sum);
    }
    for (; i < n; i++) {
        float sum = tap->at[i] * tap->weight;
        for (int t = 1; t < taps; t++) sum += tap[t].at[i] * tap[t].weight;
        to[i] = sum;
    }
}

static ALWAYS float weight_of(const Side *s, int64_t o, int tap) {
    return s->weight ? s->weight[o * s->taps + tap] : 1;
}

/* The rows that a row is made of: taps of sides 0 and 1. -> how many */
static ALWAYS int find_rows(const CcResample *p, const float *src, const int64_t *o, Tap *tap) {
    const Side *a = &p->side[0], *b = &p->side[1];
    int n = 0;
    for (int i = 0; i < a->taps; i++)
        for (int j = 0; j < b->taps; j++)
            tap[n++] = (Tap){src + a->at[o[0] * a->taps + i] * p->from[2] + b->at[o[1] * b->taps + j] * p->from[3],
                             weight_of(a, o[0], i) * weight_of(b, o[1], j)};
    return n;
}

static bool is_copy(const CcResample *p, int sides) {
    for (int i = 0; i < sides; i++)
        if (p->side[i].weight) return false;
    return true;
}

static ALWAYS void do_spots(const CcResample *p, const Tap *row, int rows, float *dst, bool copy) {
    const Side *side = &p->side[2];
    Tap tap[MAX_TAPS * MAX_TAPS * MAX_TAPS];
    for (int64_t o = 0; o < side->out; o++, dst += p->to[4]) {
        int n = 0;
        for (int k = 0; k < side->taps; k++) {
            const int64_t at = side->at[o * side->taps + k] * p->from[4];
            const float weight = weight_of(side, o, k);
            for (int i = 0; i < rows; i++) tap[n++] = (Tap){row[i].at + at, row[i].weight * weight};
        }
        if (copy) memcpy(dst, tap->at, sizeof *dst * (size_t)p->c);
        else if (n == 4) weigh(dst, tap, 4, p->c);
        else weigh(dst, tap, n, p->c);
    }
}

/* Units: [n][side 0][side 1]; a unit is a row of spots. */
static ALWAYS void resample_last(const Job *job, int64_t begin, int64_t end) {
    const CcResample *p = job->p;
    const bool copy = is_copy(p, SIDES);
    Tap tap[MAX_TAPS * MAX_TAPS];
    for (int64_t u = begin; u < end; u++) {
        const int64_t o[SIDES] = {u / p->side[1].out % p->side[0].out, u % p->side[1].out, 0};
        const int64_t n = u / p->side[1].out / p->side[0].out;
        const int rows = find_rows(p, job->src + n * p->from[0], o, tap);
        do_spots(p, tap, rows, job->dst + n * p->to[0] + o[0] * p->to[2] + o[1] * p->to[3], copy);
    }
}

/* The rows of a window, summed up; -> the row, elements `*step` apart. */
static ALWAYS const float *sum_rows(const CcResample *p, const Tap *tap, int taps, float *row, int64_t *step) {
    const int64_t width = p->side[2].in;
    *step = p->from[4];
    if (taps == 1 && is_copy(p, SIDES - 1)) return tap->at;
    if (*step == 1 && taps == 2) weigh(row, tap, 2, width);
    else if (*step == 1) weigh(row, tap, taps, width);
    for (int64_t k = 0; k < width && *step != 1; k++) {
        row[k] = tap->at[k * *step] * tap->weight;
        for (int i = 1; i < taps; i++) row[k] += tap[i].at[k * *step] * tap[i].weight;
    }
    *step = 1;
    return row;
}

static ALWAYS void do_columns(const Side *s, const float *row, int64_t step, float *dst, int64_t to, int taps) {
    for (int64_t o = 0; o < s->out; o++) {
        const int32_t *at = s->at + o * taps;
        float x = row[at[0] * step];
        if (taps > 1) x *= s->weight[o * taps];
        for (int k = 1; k < taps; k++) x += row[at[k] * step] * s->weight[o * taps + k];
        dst[o * to] = x;
    }
}

static ALWAYS void do_row(const Side *s, const float *row, int64_t step, float *dst, int64_t to) {
    if (s->taps == 1) do_columns(s, row, step, dst, to, 1);
    else if (s->taps == 2 && step == 1 && to == 1) do_columns(s, row, 1, dst, 1, 2);
    else if (s->taps == 2) do_columns(s, row, step, dst, to, 2);
    else do_columns(s, row, step, dst, to, MAX_TAPS);
}

/* Units: [n][c][side 0][side 1]; a unit is a row of the result. */
static ALWAYS void resample_rows(const Job *job, int64_t begin, int64_t end) {
    const CcResample *p = job->p;
    float row[MAX_ROW];
    Tap tap[MAX_TAPS * MAX_TAPS];
    for (int64_t u = begin; u < end; u++) {
        const int64_t o[SIDES] = {u / p->side[1].out % p->side[0].out, u % p->side[1].out, 0};
        const int64_t plane = u / p->side[1].out / p->side[0].out, c = plane % p->c, n = plane / p->c;
        const int taps = find_rows(p, job->src + n * p->from[0] + c * p->from[1], o, tap);
        float *dst = job->dst + n * p->to[0] + c * p->to[1] + o[0] * p->to[2] + o[1] * p->to[3];
        int64_t step;
        const float *sum = sum_rows(p, tap, taps, row, &step);
        do_row(&p->side[2], sum, step, dst, p->to[4]);
    }
}

static ALWAYS void resample_units(const Job *job, int64_t begin, int64_t end) {
    if (job->p->last) resample_last(job, begin, end);
    else resample_rows(job, begin, end);
}

/* The same loops for each kind of vectors. */
__attribute__((target("avx512f,avx512vl,avx512dq,fma"))) static void resample_avx512(void *job, int64_t begin,
                                                                                     int64_t end) {
    resample_units(job, begin, end);
}
__attribute__((target("avx2,fma"))) static void resample_avx2(void *job, int64_t begin, int64_t end) {
    resample_units(job, begin, end);
}
static void resample_base(void *job, int64_t begin, int64_t end) { resample_units(job, begin, end); }

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcResample *p = work;
    Job job = {.p = p, .src = cc_prim_data(host, p->src, p->src_at), .dst = host->make(host->ctx, p->dst)};
    if (!job.src || !job.dst) return cc_err_set(err, CC_E_HOST, "no memory for value %d", p->dst);
    const int64_t rows = p->n * p->side[0].out * p->side[1].out;
    cc_omp_run(CC_CPU_WIDEST(resample), &job, rows * (p->last ? 1 : p->c), CC_MIN(p->parts, cc_omp_width()));
    return 0;
}

/* ------------------------------------------------------------------ tables */

/* Steps of the source for one of the result. `given`: what the call names as the factor, NULL: nothing. */
static float scale_of(const Side *s, bool corners, const CcOperand *given) {
    if (corners) return s->out > 1 ? (float)(s->in - 1) / (float)(s->out - 1) : 0;
    const double factor = !given ? 0 : given->kind == CC_IN_FLOAT ? given->f : (double)given->i;
    return factor > 0 ? (float)(1.0 / factor) : (float)s->in / (float)s->out;
}

static float near_part(float x) { return ((-0.75f + 2) * x - (-0.75f + 3)) * x * x + 1; }
static float far_part(float x) { return ((-0.75f * x - 5 * -0.75f) * x + 8 * -0.75f) * x - 4 * -0.75f; }

/* One index of the result; `x`: where it stands in the source. */
static void fill_taps(Side *s, Mode mode, int64_t o, float x) {
    int32_t *at = s->at + o * s->taps;
    const int32_t last = (int32_t)s->in - 1, first = CC_MIN((int32_t)floorf(x), last);
    const float part = CC_MIN(CC_MAX(x - (float)first, 0.0f), 1.0f);
    at[0] = CC_MAX(first, 0);
    if (mode == LINEAR) {
        at[1] = first + (first < last && s->in != s->out);
        s->weight[2 * o] = 1 - part;
        s->weight[2 * o + 1] = part;
    }
    if (mode != CUBIC) return;
    for (int k = 0; k < MAX_TAPS; k++) at[k] = CC_MAX(0, CC_MIN(first + k - 1, last));
    const float weight[] = {far_part(part + 1), near_part(part), near_part(1 - part), far_part(1 - part + 1)};
    memcpy(s->weight + o * MAX_TAPS, weight, sizeof weight);
}

static int make_side(Side *s, Mode mode, bool corners, bool plane, const CcOperand *given, CcArena *arena) {
    const float scale = scale_of(s, corners, given);
    s->taps = mode == CUBIC ? 4 : mode == LINEAR ? 2 : 1;
    s->at = cc_arena_alloc(arena, sizeof *s->at * (size_t)(s->out * s->taps));
    s->weight = s->taps > 1 ? cc_arena_alloc(arena, sizeof *s->weight * (size_t)(s->out * s->taps)) : NULL;
    if (!s->at || (s->taps > 1 && !s->weight)) return -1;
    for (int64_t o = 0; o < s->out; o++) {
        float x = scale * (float)o;
        if (mode == COPIED || (mode == LINEAR && s->in == s->out)) x = (float)o;
        /* nearest_idx, of images alone */
        else if (mode == NEAREST && plane && s->out == 2 * s->in) x = (float)(o / 2);
        else if (mode == NEAREST_EXACT) x = scale * ((float)o + 0.5f);
        /* as compilers make it of eager's vector code */
        else if (mode >= LINEAR && !corners) x = fmaf(scale, (float)o + 0.5f, -0.5f);
        fill_taps(s, mode, o, mode == LINEAR ? CC_MAX(x, 0.0f) : x);
    }
    return 0;
}

/* ------------------------------------------------------------------ building */

static Mode mode_of(const CcNode *n) {
    return n->op == CC_OP_upsample_nearest  ? NEAREST
           : n->op == CC_OP_upsample_exact  ? NEAREST_EXACT
           : n->op == CC_OP_upsample_linear ? LINEAR
                                            : CUBIC;
}

/* Operands: x, for linear and cubic whether corners are aligned, and a factor for each dim or none. */
static bool describe(const CcGraph *g, const CcNode *n, CcResample *p) {
    const CcOperand *x = cc_prim_operand(g, n, 0);
    if (!x || x->kind != CC_IN_VALUE) return false;
    const CcType *s = &g->val.at[x->value].type, *o = &g->val.at[n->out0].type;
    const int dims = s->ndim - 2, skip = SIDES - dims, given = mode_of(n) >= LINEAR ? 2 : 1;
    if (!cc_prim_plain(s) || !cc_prim_plain(o) || !cc_type_dense(o) || dims < 1 || dims > SIDES || o->ndim != s->ndim ||
        o->size[0] != s->size[0] || o->size[1] != s->size[1] || (n->n_in != given && n->n_in != given + dims))
        return false;
    if (given == 2 && cc_graph_operand(g, n, 1)->kind != CC_IN_BOOL) return false;
    for (int i = given; i < n->n_in; i++) {
        const CcOperand *f = cc_graph_operand(g, n, i);
        if (f->kind != CC_IN_FLOAT && f->kind != CC_IN_INT) return false;
    }
    *p = (CcResample){.src = x->value, .dst = n->out0, .n = s->size[0], .c = s->size[1]};
    for (int i = 0; i < skip; i++) p->side[i].in = p->side[i].out = 1;
    for (int d = 0; d < s->ndim; d++) {
        const int to = d < 2 ? d : d + skip;
        p->from[to] = s->stride[d];
        p->to[to] = o->stride[d];
        if (d < 2) continue;
        p->side[to - 2].in = s->size[d];
        p->side[to - 2].out = o->size[d];
        if (CC_MAX(s->size[d], o->size[d]) > 1 << 24) return false; /* places are exact in float */
    }
    p->last = p->from[1] == 1 && p->to[1] == 1 && p->c > 1;
    return true;
}

static bool can(const CcGraph *g, int node) {
    CcResample p;
    return describe(g, &g->node.at[node], &p) && (p.last || p.side[2].in <= MAX_ROW);
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    const CcNode *node = &g->node.at[nodes[0]];
    CcResample *p = cc_arena_alloc(arena, sizeof *p);
    if (!p || n != 1 || !describe(g, node, p)) {
        cc_err_set(err, CC_E_UNSUPPORTED, "an interpolation of this kind");
        return NULL;
    }
    const Mode mode = mode_of(node);
    const int dims = g->val.at[p->src].type.ndim - 2, first = mode >= LINEAR ? 2 : 1;
    const bool corners = mode >= LINEAR && cc_graph_operand(g, node, 1)->i;
    int64_t work = p->n * p->c;
    for (int i = 0; i < SIDES; i++) {
        const int d = i - (SIDES - dims);
        const CcOperand *given = d >= 0 && node->n_in > first ? cc_graph_operand(g, node, first + d) : NULL;
        work *= p->side[i].out;
        if (make_side(&p->side[i], d < 0 ? COPIED : mode, corners, dims == 2, given, arena) == 0) continue;
        cc_err_set(err, CC_E_MEMORY, "no memory for an interpolation's tables");
        return NULL;
    }
    p->src_at = cc_prim_base(g, &p->src);
    p->parts = work < GRAIN ? 1 : INT32_MAX;
    return p;
}

const CcPrimFamily CC_RESAMPLES = {.name = "resample", .can = can, .build = build, .run = run};
