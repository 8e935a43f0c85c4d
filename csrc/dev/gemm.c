/* gemm: y = x @ w^T + bias with post-ops, for the weights of a linear layer, in f32 or half precision (computed in f32,
 * rounded once). One register tile (gemm.inc) serves these ways:
 *
 *   packed    w stays packed between calls: panels [k][2 vectors of outputs]; the rows of x are read in place
 *   plain     w is read in place, one row per output; x, which is small, is packed by the call: panels [k][2 vectors of
 *             rows], in groups that fit L2; tiles come out transposed, and are transposed again on the way to y. A few
 *             rows that are left over are multiplied as they are (padded to a vector, 197 rows took 5 % longer, and 5
 *             rows of 768x768 twice as long)
 *   turned    w is stored the other way round, outputs innermost: panels of w are packed as they are needed
 *
 * In half precision all of them widen the weights of 2 vectors of outputs at a time into a thread's own memory, which
 * stays in L2, and multiply all rows of x (of a large group) by them; packed weights stay half precision. That is faster
 * than the CPU's own product of bf16 where this is not faster than its f32 one: 128x3072x768 on a Xeon with AVX512-BF16
 * but without AMX, 2 threads: 156 GFLOP/s by oneDNN, 204 by these loops.
 *
 * Libraries pack w in each call. Zen 4 (avx512, 2 threads, peak 237 GFLOP/s), packed and plain: 64x512x512 149 us, 158;
 * 64x1376x512 389, 412; 128x3072x768 2.70 ms, 2.78. */
#include <immintrin.h>
#include <stdatomic.h>

#include "dev_int.h"

enum {
    GROUP = 1 << 17,        /* floats of panels: 512 KB */
    HALVES_GROUP = 1 << 20, /* floats of x in half precision: each group widens the weights again */
    MOST_K = 1 << 13,       /* in half precision: widened weights of 2 vectors of outputs fit L2 */
    PACK_GRAIN = 1 << 13,   /* least floats per packing thread */
    PACK_STEP = 64,         /* columns of a packing unit: a multiple of all vector widths */
    GRAIN = 1 << 16,        /* least multiply-adds per thread */
    FINISH_GRAIN = 1 << 13, /* least results per thread of an epilogue alone */
    LINE = 64,
    PREFETCH_FROM = 8, /* least tiles that read a packed panel which is prefetched */
    WIDE = 4           /* vectors of columns of y that plain weights' tiles are stored in together */
};

typedef struct Matrix {
    const float *at;
    int64_t row, col; /* strides */
} Matrix;

typedef struct Panel { /* the operand of one tile */
    const float *at, *first;
    int64_t k;
    const char *ahead; /* prefetched into L2: `lines` lines, `step` bytes apart, per iteration of the unrolled loop */
    int64_t step;
    int lines;
} Panel;

/* What comes next, which some tiles prefetch together. */
typedef struct Ahead {
    const char *at;
    int64_t step, lines, tiles;
} Ahead;

typedef struct Job Job;
typedef struct Kernels {
    int lanes;
    void (*pack)(const Matrix *m, int64_t first, int64_t n, int64_t vectors, int64_t begin, int64_t end, float *to);
    void (*widen)(const Job *job, int64_t col, int64_t n, float *to);
    void (*broadcast_x)(const Job *job, const float *w, int64_t row, int64_t col, const Ahead *ahead);
    void (*broadcast_w)(const Job *job, const Matrix *w, int64_t row, int64_t col, const Ahead *ahead, int64_t number,
                        float *to);
    void (*turn)(const Job *job, const float *tiles, int64_t apart, int64_t row, int64_t col, int64_t n);
    void (*rest)(const Job *job, const Matrix *w, int64_t col);
    void (*finish)(const Job *job, int64_t row);
} Kernels;

struct Job {
    const CcGemm *g;
    Matrix x, w;        /* in half precision x is a copy, w unused */
    const void *halves; /* half-precision weights, plain or packed */
    bool packed;
    const float *bias, *panels;
    const void *post[CC_DNNL_MAX_POST];
    void *y;
    const Kernels *kernels;
    int64_t first, rows, rest; /* plain: rows of x in the current group; the last ones, which are not packed */
    atomic_bool failed;
};

#define LANES 16
#include "gemm.inc"

#define LANES 8
#include "gemm.inc"

#define LANES 4
#include "gemm.inc"

static const Kernels *kernels_of_cpu(void) { return CC_CPU_WIDEST(&KERNELS); }

/* Of m rows of x, those that had better not be padded to a vector: at most half of one. */
static int64_t rest_of(const Kernels *kernels, int64_t m) {
    const int64_t rest = m % kernels->lanes;
    return rest <= kernels->lanes / 2 ? rest : 0;
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int parts_for(int64_t work, int64_t grain) {
    return (int)CC_MAX(1, CC_MIN(work / grain, (int64_t)cc_omp_width()));
}
static int64_t size_of(const CcGemm *g) { return cc_dtype_size(g->dtype); }

/* ------------------------------------------------------------------ packing */

typedef struct Packing {
    Matrix m;
    int64_t first, n, k;
    const Kernels *kernels;
    float *to;
} Packing;

static void pack_part(void *ctx, int64_t begin, int64_t end) { /* units: [panel][step of columns] */
    const Packing *p = ctx;
    const int64_t panel = 2 * p->kernels->lanes, steps = ceil_div(p->k, PACK_STEP);
    for (int64_t u = begin; u < end; u++) {
        const int64_t at = u / steps * panel, from = u % steps * PACK_STEP, n = CC_MIN(p->n - at, panel);
        p->kernels->pack(&p->m, p->first + at, n, n > p->kernels->lanes ? 2 : 1, from, CC_MIN(p->k, from + PACK_STEP),
                         p->to + at * p->k);
    }
}

static void pack_rows(Packing *p) {
    const int64_t units = ceil_div(p->n, 2 * p->kernels->lanes) * ceil_div(p->k, PACK_STEP);
    cc_omp_run(pack_part, p, units, parts_for(p->n * p->k, PACK_GRAIN));
}

/* Elements of n packed rows. */
static int64_t packed_size(const Kernels *kernels, int64_t n, int64_t k) {
    return ceil_div(n, kernels->lanes) * kernels->lanes * k;
}

static CcPackForm form_of(const Job *job) {
    const CcGemm *g = job->g;
    return (CcPackForm){CC_PACK_GEMM, {g->n, g->k, g->w_row, g->w_col, job->kernels->lanes, g->dtype}};
}

/* Half-precision panels: widened, packed, and narrowed to what they were. */
static void pack_halves(void *ctx, int64_t begin, int64_t end) { /* units: panels */
    Job *job = ctx;
    const CcGemm *g = job->g;
    const int64_t width = 2 * job->kernels->lanes;
    float *wide = cc_scratch_thread(sizeof *wide * (size_t)(2 * width * g->k)), *turned = wide + width * g->k;
    if (!wide) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int64_t p = begin; p < end; p++) {
        const int64_t col = p * width, n = CC_MIN(g->n - col, width), vectors = n > job->kernels->lanes ? 2 : 1;
        const Matrix rows = {wide, g->k, 1};
        for (int64_t r = 0; r < n; r++)
            cc_halves_gather(g->dtype, (const uint16_t *)job->halves + (col + r) * g->w_row, g->w_col, wide + r * g->k,
                             g->k);
        job->kernels->pack(&rows, 0, n, vectors, 0, g->k, turned);
        cc_halves_narrow(g->dtype, turned, (uint16_t *)job->y + col * g->k, vectors * job->kernels->lanes * g->k);
    }
}

static int fill_pack(const Job *job, const CcGemmCall *call, char *to) {
    const CcGemm *g = job->g;
    if (g->dtype == CC_DT_F32) {
        pack_rows(&(Packing){.m = job->w, .n = g->n, .k = g->k, .kernels = job->kernels, .to = (float *)to});
        return 0;
    }
    Job packing = {.g = g, .halves = call->w, .y = to, .kernels = job->kernels};
    cc_omp_run(pack_halves, &packing, ceil_div(g->n, 2 * job->kernels->lanes), parts_for(g->n * g->k, PACK_GRAIN));
    return atomic_load(&packing.failed) ? -1 : 0;
}

/* The call's packed weights, with a reference. NULL: no memory. */
static CcPack *pack_weights(const Job *job, const CcGemmCall *call) {
    const CcGemm *g = job->g;
    const CcPackForm form = form_of(job);
    CcPack *pack = cc_packed_find(call->packed, call->w, call->version, &form);
    if (pack) return pack;
    pack = cc_packed_make((size_t)(size_of(g) * packed_size(job->kernels, g->n, g->k)), call->w, call->version, &form);
    if (!pack) return NULL;
    if (fill_pack(job, call, pack->at) < 0) {
        cc_packed_done(pack);
        return NULL;
    }
    cc_packed_keep(call->packed, pack);
    return pack;
}

/* ------------------------------------------------------------------ panels of w */

static void multiply_packed(void *ctx, int64_t begin, int64_t end) { /* units: [panel][rows of a tile] */
    const Job *job = ctx;
    const CcGemm *g = job->g;
    const int64_t tile = job->kernels->lanes / 2, tiles = ceil_div(g->m, tile), width = 2 * job->kernels->lanes;
    /* The hardware prefetcher starts each panel late. Weights from DRAM on huge pages (dev/packed.c), without and with our
     * prefetching, 2 threads: 128x3072x768 403 GFLOP/s, 507, 128x768x3072 378, 456 (Zen 5); 64x512x512 154 us, 149.5,
     * 128x768x768 663, 658 (Zen 4). With fewer tiles each would fetch too much at once (32x512x512, cached: 72.7, 73.2). */
    const bool prefetches = tiles >= PREFETCH_FROM;
    for (int64_t u = begin; u < end; u++) {
        const int64_t col = u / tiles * width;
        const float *const panel = job->panels + col * g->k;
        const Ahead ahead = {.at = (const char *)(panel + width * g->k),
                             .step = LINE,
                             .lines =
                                 prefetches && col + width < g->n ? width * g->k * (int64_t)sizeof(float) / LINE : 0,
                             .tiles = tiles};
        job->kernels->broadcast_x(job, panel, u % tiles * tile, col, &ahead);
    }
}

/* The panel of w from column `col` on, made in `room`; *next: what the next one is made of. */
static void make_panel(const Job *job, int64_t col, float *room, Ahead *next) {
    const CcGemm *g = job->g;
    const int64_t lanes = job->kernels->lanes, n = CC_MIN(g->n - col, 2 * lanes), size = size_of(g);
    if (g->dtype == CC_DT_F32) {
        job->kernels->pack(&job->w, col, n, n > lanes ? 2 : 1, 0, g->k, room);
    } else if (job->packed) {
        const uint16_t *const at = (const uint16_t *)job->halves + col * g->k;
        cc_halves_widen(g->dtype, at, room, packed_size(job->kernels, n, g->k));
        *next = (Ahead){(const char *)(at + 2 * lanes * g->k), LINE, 2 * lanes * g->k * size / LINE, 0};
        return;
    } else {
        job->kernels->widen(job, col, n, room);
    }
    const char *const w = g->dtype == CC_DT_F32 ? (const char *)job->w.at : job->halves;
    *next = (Ahead){w + (col + 2 * lanes) * size, g->w_col * size, g->k, 0};
}

static void multiply_panels(void *ctx, int64_t begin, int64_t end) { /* units: panels */
    Job *job = ctx;
    const CcGemm *g = job->g;
    const int64_t width = 2 * job->kernels->lanes, tile = job->kernels->lanes / 2;
    float *room = cc_scratch_thread(sizeof *room * (size_t)(width * g->k));
    if (!room) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int64_t col = begin * width; col < CC_MIN(end * width, g->n); col += width) {
        Ahead next;
        make_panel(job, col, room, &next);
        next.tiles = ceil_div(g->m, tile);
        if (col + width >= g->n) next.lines = 0;
        for (int64_t row = 0; row < g->m; row += tile) job->kernels->broadcast_x(job, room, row, col, &next);
    }
}

static int run_panels(Job *job) {
    const CcGemm *g = job->g;
    cc_omp_run(multiply_panels, job, ceil_div(g->n, 2 * job->kernels->lanes), parts_for(g->m * g->k * g->n, GRAIN));
    return atomic_load(&job->failed) ? -1 : 0;
}

static int run_packed(Job *job, const CcGemmCall *call) {
    const CcGemm *g = job->g;
    const int64_t lanes = job->kernels->lanes;
    CcPack *pack = pack_weights(job, call);
    if (!pack) return -1;
    job->panels = (const float *)pack->at;
    cc_omp_run(multiply_packed, job, ceil_div(g->n, 2 * lanes) * ceil_div(g->m, lanes / 2),
               parts_for(g->m * g->k * g->n, GRAIN));
    cc_packed_done(pack);
    return 0;
}

/* ------------------------------------------------------------------ panels of x */

/* Floats of the tiles of a vector of columns, all packed rows of the group. A thread has WIDE of them. */
static int64_t tiles_size(const Job *job) {
    const int64_t lanes = job->kernels->lanes, panel = 2 * lanes;
    return lanes * panel * ceil_div(job->rows - job->rest, panel);
}

/* The weights of later columns: the tiles of column c prefetch those of the c-th of them. */
typedef struct Coming {
    const char *at;
    int64_t apart, columns; /* bytes from column to column; how many there are */
} Coming;

/* Columns [col, col + n) of y, n <= WIDE vectors, all rows of the group. The tiles prefetch, as the hardware's prefetcher
 * stops at the end of each page (128x768x768, weights in a shared cache: 600 us without, 520 with; Intel Xeon, 2
 * threads). They are stored when all are there: rows of y are often a multiple of 4 KB apart, where lines that are
 * written one a row evict each other (128x3072x768: 478 GFLOP/s tile by tile, 488 with all rows' tiles of one vector,
 * 501 with those of 4; Zen 5, 2 threads). */
static void multiply_columns(const Job *job, const Matrix *w, int64_t col, int64_t n, const Coming *coming,
                             float *tiles) {
    const int64_t lanes = job->kernels->lanes, packed = job->rows - job->rest, panel = 2 * lanes,
                  apart = tiles_size(job);
    for (int64_t c = 0; c < n; c += lanes) {
        const Matrix rows = {w->at + c * w->row, w->row, 1};
        const Ahead ahead = {.at = coming->at + c * coming->apart,
                             .step = LINE,
                             .lines = CC_MAX(CC_MIN(coming->columns - c, lanes), 0) * coming->apart / LINE,
                             .tiles = 2 * ceil_div(packed, panel)};
        for (int64_t row = 0; row < packed; row += panel)
            job->kernels->broadcast_w(job, &rows, row, col + c, &ahead, row / panel,
                                      tiles + c / lanes * apart + row * lanes);
        if (job->rest) job->kernels->rest(job, &rows, col + c);
    }
    for (int64_t row = 0; row < packed; row += panel) job->kernels->turn(job, tiles + row * lanes, apart, row, col, n);
}

static void multiply_plain(void *ctx, int64_t begin, int64_t end) { /* units: vectors of columns */
    Job *job = ctx;
    const CcGemm *g = job->g;
    const int64_t lanes = job->kernels->lanes, last = CC_MIN(end * lanes, g->n);
    float *tiles = cc_scratch_thread(sizeof *tiles * (size_t)(WIDE * tiles_size(job)));
    if (!tiles) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int64_t col = begin * lanes; col < last; col += WIDE * lanes) {
        const Matrix w = {job->w.at + col * job->w.row, job->w.row, 1};
        const Coming coming = {.at = (const char *)(w.at + lanes * w.row),
                               .apart = w.row * (int64_t)sizeof(float),
                               .columns = w.row == g->k ? g->n - col - lanes : 0};
        multiply_columns(job, &w, col, CC_MIN(last - col, WIDE * lanes), &coming, tiles);
    }
}

/* Rows of x in a group. */
static int64_t group_of(const CcGemm *g, const Kernels *kernels) {
    const int64_t panel = 2 * kernels->lanes, most = g->dtype == CC_DT_F32 ? GROUP : HALVES_GROUP;
    return CC_MAX(1, CC_MIN(most / (panel * g->k), ceil_div(g->m, panel))) * panel;
}

static int run_plain(Job *job, float *panels) {
    const CcGemm *g = job->g;
    const int64_t group = group_of(g, job->kernels);
    job->panels = panels;
    for (; job->first < g->m; job->first += group) {
        job->rows = CC_MIN(group, g->m - job->first);
        job->rest = rest_of(job->kernels, job->rows);
        pack_rows(&(Packing){job->x, job->first, job->rows - job->rest, g->k, job->kernels, panels});
        cc_omp_run(multiply_plain, job, ceil_div(g->n, job->kernels->lanes), parts_for(job->rows * g->k * g->n, GRAIN));
    }
    return atomic_load(&job->failed) ? -1 : 0;
}

/* Plain half-precision weights: 2 vectors of their rows are widened at a time, and each panel of x meets all of them. */
static void multiply_widened(void *ctx, int64_t begin, int64_t end) { /* units: 2 vectors of outputs */
    Job *job = ctx;
    const CcGemm *g = job->g;
    const int64_t lanes = job->kernels->lanes, width = 2 * lanes;
    float *room = cc_scratch_thread(sizeof *room * (size_t)(width * g->k + 2 * tiles_size(job)));
    if (!room) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int64_t col = begin * width; col < CC_MIN(end * width, g->n); col += width) {
        const int64_t n = CC_MIN(g->n - col, width);
        const uint16_t *const from = (const uint16_t *)job->halves + col * g->w_row;
        const Coming coming = {.at = (const char *)(from + width * g->w_row),
                               .apart = g->w_row * size_of(g),
                               .columns = g->n - col - width};
        for (int64_t r = 0; r < n; r++) cc_halves_widen(g->dtype, from + r * g->w_row, room + r * g->k, g->k);
        multiply_columns(job, &(Matrix){room, g->k, 1}, col, n, &coming, room + width * g->k);
    }
}

/* ------------------------------------------------------------------ half precision */

typedef struct Widening {
    const CcGemm *g;
    const uint16_t *from;
    float *to;
} Widening;

static void widen_rows(void *ctx, int64_t begin, int64_t end) {
    const Widening *w = ctx;
    for (int64_t r = begin; r < end; r++)
        cc_halves_widen(w->g->dtype, w->from + r * w->g->x_row, w->to + r * w->g->k, w->g->k);
}

/* A group of rows, that start at `first`. */
static int run_group(const CcGemm *g, const CcGemmCall *call, const Job *all, int64_t first, float *x, float *panels) {
    CcGemm part = *g;
    part.m = CC_MIN(group_of(g, all->kernels), g->m - first);
    Job job = {.g = &part,
               .x = {x, g->k, 1},
               .halves = all->halves,
               .packed = all->packed,
               .bias = all->bias,
               .panels = panels,
               .y = (uint16_t *)call->y + first * g->y_row,
               .kernels = all->kernels,
               .rows = part.m,
               .rest = rest_of(all->kernels, part.m)};
    for (int i = 0; i < g->n_post; i++)
        job.post[i] = call->post[i] ? (const uint16_t *)call->post[i] + first * g->post[i].row : NULL;
    Widening rows = {g, (const uint16_t *)call->x + first * g->x_row, x};
    cc_omp_run(widen_rows, &rows, part.m, parts_for(part.m * g->k, PACK_GRAIN));
    if (job.packed || g->w_col != 1) return run_panels(&job);
    pack_rows(&(Packing){job.x, 0, job.rows - job.rest, g->k, job.kernels, panels});
    cc_omp_run(multiply_widened, &job, ceil_div(g->n, 2 * job.kernels->lanes), parts_for(part.m * g->k * g->n, GRAIN));
    return atomic_load(&job.failed) ? -1 : 0;
}

static int run_halves(const CcGemm *g, const CcGemmCall *call) {
    Job job = {.g = g, .halves = call->w, .packed = call->packed, .kernels = kernels_of_cpu()};
    const int64_t group = group_of(g, job.kernels);
    float *const x = call->scratch, *const panels = x + group * g->k, *const bias = panels + group * g->k;
    CcPack *pack = call->packed ? pack_weights(&job, call) : NULL;
    if (call->packed && !pack) return -1;
    if (pack) job.halves = pack->at;
    if (call->bias) cc_halves_widen(g->dtype, call->bias, bias, g->n);
    job.bias = call->bias ? bias : NULL;
    int status = 0;
    for (int64_t first = 0; first < g->m && status == 0; first += group)
        status = run_group(g, call, &job, first, x, panels);
    cc_packed_done(pack);
    return status;
}

/* ------------------------------------------------------------------ calls */

int64_t cc_gemm_padding(int64_t m) {
    const int64_t lanes = kernels_of_cpu()->lanes;
    return rest_of(kernels_of_cpu(), m) ? 0 : (lanes - m % lanes) % lanes;
}

bool cc_gemm_can(const CcGemm *g) {
    return g->dtype == CC_DT_F32 || (cc_dtype_is_half(g->dtype) && kernels_of_cpu()->lanes > 4 && g->k <= MOST_K);
}

size_t cc_gemm_bytes(const CcGemm *g) {
    const int64_t x = group_of(g, kernels_of_cpu()) * g->k;
    return sizeof(float) * (size_t)(g->dtype == CC_DT_F32 ? x : 2 * x + g->n);
}

static Job job_of(const CcGemm *g, const CcGemmCall *call) {
    Job job = {.g = g,
               .x = {call->x, g->x_row, 1},
               .w = {call->w, g->w_row, g->w_col},
               .bias = call->bias,
               .y = call->y,
               .kernels = kernels_of_cpu()};
    memcpy(job.post, call->post, sizeof job.post);
    return job;
}

static int run_f32(const CcGemm *g, const CcGemmCall *call) {
    Job job = job_of(g, call);
    if (call->packed) return run_packed(&job, call);
    if (g->w_col != 1) return run_panels(&job);
    return run_plain(&job, call->scratch);
}

int cc_gemm_run(const CcGemm *g, const CcGemmCall *call, CcErr *err) {
    if ((g->dtype == CC_DT_F32 ? run_f32(g, call) : run_halves(g, call)) == 0) return 0;
    return cc_err_set(err, CC_E_MEMORY, "no memory for operands of a product");
}

static void finish_rows(void *ctx, int64_t begin, int64_t end) { /* units: rows of a tile */
    const Job *job = ctx;
    const int64_t tile = job->kernels->lanes / 2;
    for (int64_t u = begin; u < end; u++) job->kernels->finish(job, u * tile);
}

void cc_gemm_finish(const CcGemm *g, const CcGemmCall *call) {
    Job job = job_of(g, call);
    if (!call->bias && !g->n_post) return;
    cc_omp_run(finish_rows, &job, ceil_div(g->m, job.kernels->lanes / 2), parts_for(g->m * g->n, FINISH_GRAIN));
}
