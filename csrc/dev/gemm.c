/* gemm: y = x @ w^T + bias with post-ops, for the weights of a linear layer. One register tile (gemm.inc) serves two
 * ways:
 *
 *   packed    w stays packed between calls: panels [k][2 vectors of outputs]; the rows of x are read in place
 *   plain     w is read in place, one row per output; x, which is small, is packed by the call: panels [k][2 vectors of
 *             rows], in groups that fit L2; tiles come out transposed, and are transposed again on the way to y. A few
 *             rows that are left over are multiplied as they are (padded to a vector, 197 rows took 5 % longer, and 5
 *             rows of 768x768 twice as long)
 *
 * Libraries pack w in each call. Zen 4 (avx512, 2 threads, peak 237 GFLOP/s), packed and plain: 64x512x512 149 us, 158;
 * 64x1376x512 389, 412; 128x3072x768 2.70 ms, 2.78. */
#include <immintrin.h>

#include "dev_int.h"

enum {
    GROUP = 1 << 17,        /* floats of panels: 512 KB */
    PACK_GRAIN = 1 << 13,   /* least floats per packing thread */
    PACK_STEP = 64,         /* columns of a packing unit: a multiple of all vector widths */
    GRAIN = 1 << 16,        /* least multiply-adds per thread */
    FINISH_GRAIN = 1 << 13, /* least results per thread of an epilogue alone */
    /* a panel read by at least PREFETCH_FROM and fewer than PREFETCH_TO tiles is prefetched (gemm.inc) */
    PREFETCH_FROM = 8,
    PREFETCH_TO = 16
};

typedef struct Matrix {
    const float *at;
    int64_t row, col; /* strides */
} Matrix;

typedef struct Panel { /* the operand of one tile */
    const float *at, *first;
    int64_t k;
    const char *ahead; /* prefetched into L2, `lines` cache lines per iteration of the unrolled loop */
    int lines;
} Panel;

typedef struct Job Job;
typedef struct Kernels {
    int lanes;
    void (*pack)(const Matrix *m, int64_t first, int64_t n, int64_t vectors, int64_t begin, int64_t end, float *to);
    void (*broadcast_x)(const Job *job, int64_t row, int64_t panel);
    void (*broadcast_w)(const Job *job, int64_t col);
    void (*finish)(const Job *job, int64_t row);
} Kernels;

struct Job {
    const CcGemm *g;
    Matrix x, w;
    const float *bias, *post[CC_DNNL_MAX_POST], *panels;
    float *y;
    const Kernels *kernels;
    int64_t first, rows, rest; /* plain: rows of x in the current group; the last ones, which are not packed */
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

/* Floats of n packed rows. */
static int64_t packed_size(const Kernels *kernels, int64_t n, int64_t k) {
    return ceil_div(n, kernels->lanes) * kernels->lanes * k;
}

/* ------------------------------------------------------------------ the two ways */

static void multiply_packed(void *ctx, int64_t begin, int64_t end) { /* units: [panel][rows of a tile] */
    const Job *job = ctx;
    const int64_t tile = job->kernels->lanes / 2, tiles = ceil_div(job->g->m, tile);
    for (int64_t u = begin; u < end; u++) job->kernels->broadcast_x(job, u % tiles * tile, u / tiles);
}

static CcPackForm form_of(const Job *job) {
    const CcGemm *g = job->g;
    return (CcPackForm){CC_PACK_GEMM, {g->n, g->k, g->w_row, g->w_col, job->kernels->lanes}};
}

static CcPack *pack_weights(const Job *job, const CcGemmCall *call) {
    const CcGemm *g = job->g;
    const CcPackForm form = form_of(job);
    CcPack *pack =
        cc_packed_make(sizeof(float) * (size_t)packed_size(job->kernels, g->n, g->k), call->w, call->version, &form);
    if (!pack) return NULL;
    pack_rows(&(Packing){.m = job->w, .n = g->n, .k = g->k, .kernels = job->kernels, .to = (float *)pack->at});
    if (call->packed) cc_packed_keep(call->packed, pack);
    return pack;
}

static int run_packed(Job *job, const CcGemmCall *call) {
    const CcGemm *g = job->g;
    const int64_t lanes = job->kernels->lanes;
    const CcPackForm form = form_of(job);
    CcPack *pack = call->packed ? cc_packed_find(call->packed, call->w, call->version, &form) : NULL;
    if (!pack) pack = pack_weights(job, call);
    if (!pack) return -1;
    job->panels = (const float *)pack->at;
    cc_omp_run(multiply_packed, job, ceil_div(g->n, 2 * lanes) * ceil_div(g->m, lanes / 2),
               parts_for(g->m * g->k * g->n, GRAIN));
    cc_packed_done(pack);
    return 0;
}

static void multiply_plain(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    for (int64_t b = begin; b < end; b++) job->kernels->broadcast_w(job, b * job->kernels->lanes);
}

/* Rows of x in a group. */
static int64_t group_of(const CcGemm *g, const Kernels *kernels) {
    const int64_t panel = 2 * kernels->lanes;
    return CC_MAX(1, CC_MIN(GROUP / (panel * g->k), ceil_div(g->m, panel))) * panel;
}

static void run_plain(Job *job, float *panels) {
    const CcGemm *g = job->g;
    const int64_t group = group_of(g, job->kernels);
    job->panels = panels;
    for (; job->first < g->m; job->first += group) {
        job->rows = CC_MIN(group, g->m - job->first);
        job->rest = rest_of(job->kernels, job->rows);
        pack_rows(&(Packing){job->x, job->first, job->rows - job->rest, g->k, job->kernels, panels});
        cc_omp_run(multiply_plain, job, ceil_div(g->n, job->kernels->lanes), parts_for(job->rows * g->k * g->n, GRAIN));
    }
}

int64_t cc_gemm_padding(int64_t m) {
    const int64_t lanes = kernels_of_cpu()->lanes;
    return rest_of(kernels_of_cpu(), m) ? 0 : (lanes - m % lanes) % lanes;
}

size_t cc_gemm_bytes(const CcGemm *g) { return sizeof(float) * (size_t)(group_of(g, kernels_of_cpu()) * g->k); }

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

int cc_gemm_run(const CcGemm *g, const CcGemmCall *call, CcErr *err) {
    Job job = job_of(g, call);
    if (!call->packed && g->w_col == 1) {
        run_plain(&job, call->scratch);
        return 0;
    }
    if (run_packed(&job, call) == 0) return 0;
    return cc_err_set(err, CC_E_MEMORY, "no memory for packed operands of a product");
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
