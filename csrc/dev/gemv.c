/* gemv: y = W x + bias for one x, bound by the memory bandwidth of reading W once. Two forms, by W's contiguous dim:
 *
 *   rows      y[j] = dot(W[j], x)            4 rows at a time, 2 accumulators each
 *   columns   y[j..] += W[.., k] * x[k]      DEEP values of k at a time, each a sequential stream; y stays in L1
 *
 * bf16 and f16 weights are widened: rows as they are loaded, or without avx512 row by row into a buffer that stays in
 * the cache; columns always into such a buffer, DEEP times HALF_WIDE of them at a time.
 *
 * The kernels prefetch the next rows into L2, as the hardware prefetcher stops at page ends. Without and with it (Zen
 * 5, one thread): 1x4096x4096 in half precision 2.4 ms, 0.9; in f32 3.5, 2.5.
 *
 * Threads divide the outputs. oneDNN packs plain weights before it multiplies, which costs more than the product with
 * one row: 1x512x512 takes 34 us there, 24 in MKL's gemv (Zen 4, one thread). */
#include <immintrin.h>
#include <stdatomic.h>

#include "dev.h"

enum {
    UNIT = 64, /* outputs in a unit of work */
    ROWS = 4,
    DEEP = 8,
    WIDE = 2048,     /* outputs per pass of the columns form: 8 KB of L1 */
    HALF_WIDE = 512, /* of half precision: DEEP widened rows are 16 KB of L1 */
    LINE = 64,
    MOST_K = 1 << 15, /* most columns of half-precision weights: ROWS widened rows fit L2 */
    GRAIN = 1 << 15   /* least multiply-adds per thread */
};

typedef struct Job {
    const CcGemv *g;
    const float *w, *x, *bias;
    float *y;
} Job;

typedef struct HalfJob {
    const CcGemv *g;
    const uint16_t *w, *bias;
    uint16_t *y;
    const float *x;
    atomic_bool failed;
} HalfJob;

#define AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma")))
#define AVX2 __attribute__((target("avx2,fma")))

/* ------------------------------------------------------------------ avx512 */

static inline AVX512 __mmask16 first16(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

static AVX512 void rows_avx512(const Job *job, int64_t j, int64_t n) {
    const CcGemv *g = job->g;
    const float *w[4];
    __m512 sum[4][2];
    for (int r = 0; r < 4; r++) {
        w[r] = job->w + (j + (r < n ? r : 0)) * g->row;
        sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    }
    int64_t k = 0;
    for (; k + 32 <= g->k; k += 32) {
        const __m512 a = _mm512_loadu_ps(job->x + k), b = _mm512_loadu_ps(job->x + k + 16);
        for (int r = 0; r < 4; r++) {
            _mm_prefetch((const char *)(w[r] + 4 * g->row + k), _MM_HINT_T1);
            _mm_prefetch((const char *)(w[r] + 4 * g->row + k + 16), _MM_HINT_T1);
            sum[r][0] = _mm512_fmadd_ps(_mm512_loadu_ps(w[r] + k), a, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(_mm512_loadu_ps(w[r] + k + 16), b, sum[r][1]);
        }
    }
    for (; k < g->k; k += 16) {
        const __mmask16 m = first16(g->k - k);
        const __m512 a = _mm512_maskz_loadu_ps(m, job->x + k);
        for (int r = 0; r < 4; r++) sum[r][0] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, w[r] + k), a, sum[r][0]);
    }
    for (int r = 0; r < n; r++)
        job->y[j + r] = _mm512_reduce_add_ps(_mm512_add_ps(sum[r][0], sum[r][1])) + (job->bias ? job->bias[j + r] : 0);
}

static inline __attribute__((always_inline)) AVX512 __m512 widen16(const uint16_t *at, bool brain) {
    const __m256i h = _mm256_loadu_si256((const __m256i *)at);
    return brain ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)) : _mm512_cvtph_ps(h);
}

/* y[ROWS] = dots of the rows of w with x; k is a multiple of 32. */
static inline __attribute__((always_inline)) AVX512 void halves_avx512(const uint16_t *const *w, const float *x,
                                                                       int64_t k, bool brain, float *y) {
    __m512 sum[ROWS][2];
    const int64_t next = ROWS * (w[1] - w[0]); /* distance of the next rows, to prefetch */
    for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += 32) {
        const __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + 16);
        for (int r = 0; r < ROWS; r++) {
            _mm_prefetch((const char *)(w[r] + next + i), _MM_HINT_T1);
            sum[r][0] = _mm512_fmadd_ps(widen16(w[r] + i, brain), a, sum[r][0]);
            sum[r][1] = _mm512_fmadd_ps(widen16(w[r] + i + 16, brain), b, sum[r][1]);
        }
    }
    for (int r = 0; r < ROWS; r++) y[r] = _mm512_reduce_add_ps(_mm512_add_ps(sum[r][0], sum[r][1]));
}

static AVX512 void brain_avx512(const uint16_t *const *w, const float *x, int64_t k, float *y) {
    halves_avx512(w, x, k, true, y);
}
static AVX512 void half_avx512(const uint16_t *const *w, const float *x, int64_t k, float *y) {
    halves_avx512(w, x, k, false, y);
}

/* y[j, j + n) += sum of W[.., k + d] * x[k + d] over d < DEEP; k = 0 overwrites y. */
static AVX512 void columns_avx512(const Job *job, int64_t j, int64_t n, int64_t k) {
    const int64_t col = job->g->col;
    const float *w = job->w + k * col + j;
    __m512 x[DEEP];
    for (int d = 0; d < DEEP; d++) x[d] = _mm512_set1_ps(job->x[k + d]);
    for (int64_t c = 0; c < n; c += 16, w += 16) {
        const __mmask16 m = first16(n - c);
        __m512 a = k ? _mm512_maskz_loadu_ps(m, job->y + j + c) : _mm512_setzero_ps(), b = _mm512_setzero_ps();
        for (int d = 0; d < DEEP; d += 2) {
            a = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, w + d * col), x[d], a);
            b = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, w + (d + 1) * col), x[d + 1], b);
        }
        _mm512_mask_storeu_ps(job->y + j + c, m, _mm512_add_ps(a, b));
    }
}

/* ------------------------------------------------------------------ avx2: whole vectors, then a scalar tail */

static AVX2 void rows_avx2(const Job *job, int64_t j, int64_t n) {
    const CcGemv *g = job->g;
    for (int64_t r = j; r < j + n; r++) {
        const float *w = job->w + r * g->row;
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        int64_t k = 0;
        for (; k + 32 <= g->k; k += 32)
            for (int u = 0; u < 4; u++)
                sum[u] = _mm256_fmadd_ps(_mm256_loadu_ps(w + k + 8 * u), _mm256_loadu_ps(job->x + k + 8 * u), sum[u]);
        float lane[8], total = 0;
        _mm256_storeu_ps(lane, _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3])));
        for (int i = 0; i < 8; i++) total += lane[i];
        for (; k < g->k; k++) total += w[k] * job->x[k];
        job->y[r] = total + (job->bias ? job->bias[r] : 0);
    }
}

static void columns_base(const Job *job, int64_t j, int64_t n, int64_t k);

static AVX2 void columns_avx2(const Job *job, int64_t j, int64_t n, int64_t k) {
    const int64_t col = job->g->col;
    const float *w = job->w + k * col + j;
    __m256 x[DEEP];
    int64_t c = 0;
    for (int d = 0; d < DEEP; d++) x[d] = _mm256_set1_ps(job->x[k + d]);
    for (; c + 8 <= n; c += 8, w += 8) {
        __m256 a = k ? _mm256_loadu_ps(job->y + j + c) : _mm256_setzero_ps(), b = _mm256_setzero_ps();
        for (int d = 0; d < DEEP; d += 2) {
            a = _mm256_fmadd_ps(_mm256_loadu_ps(w + d * col), x[d], a);
            b = _mm256_fmadd_ps(_mm256_loadu_ps(w + (d + 1) * col), x[d + 1], b);
        }
        _mm256_storeu_ps(job->y + j + c, _mm256_add_ps(a, b));
    }
    if (c < n) columns_base(job, j + c, n - c, k);
}

/* ------------------------------------------------------------------ any CPU */

static void rows_base(const Job *job, int64_t j, int64_t n) {
    enum { SUMS = 8 };
    for (int64_t r = j; r < j + n; r++) {
        const float *w = job->w + r * job->g->row;
        float sum[SUMS] = {0}, total = 0;
        int64_t k = 0;
        for (; k + SUMS <= job->g->k; k += SUMS)
            for (int u = 0; u < SUMS; u++) sum[u] += w[k + u] * job->x[k + u];
        for (; k < job->g->k; k++) total += w[k] * job->x[k];
        for (int u = 0; u < SUMS; u++) total += sum[u];
        job->y[r] = total + (job->bias ? job->bias[r] : 0);
    }
}

static void columns_base(const Job *job, int64_t j, int64_t n, int64_t k) {
    const int64_t col = job->g->col;
    const float *w = job->w + k * col + j, *x = job->x + k;
    for (int64_t c = 0; c < n; c++) {
        float sum = k ? job->y[j + c] : 0;
        for (int d = 0; d < DEEP; d++) sum += w[d * col + c] * x[d];
        job->y[j + c] = sum;
    }
}

/* ------------------------------------------------------------------ units of outputs */

static void by_columns(const Job *job, int64_t j, int64_t n) {
    const CcGemv *g = job->g;
    int64_t k = 0;
    for (; k + DEEP <= g->k; k += DEEP) CC_CPU_WIDEST(columns)(job, j, n, k);
    if (k == 0) memset(job->y + j, 0, sizeof *job->y * (size_t)n);
    for (; k < g->k; k++)
        for (int64_t c = j; c < j + n; c++) job->y[c] += job->w[k * g->col + c] * job->x[k];
    for (int64_t c = j; job->bias && c < j + n; c++) job->y[c] += job->bias[c];
}

static void work(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    const bool columns = job->g->row == 1;
    void (*const part)(const Job *, int64_t, int64_t) = columns ? by_columns : CC_CPU_WIDEST(rows);
    const int64_t last = CC_MIN(end * UNIT, job->g->n), step = columns ? WIDE : 4;
    for (int64_t j = begin * UNIT; j < last; j += step) part(job, j, CC_MIN(step, last - j));
}

/* The dots of n <= ROWS rows from j on; `room` holds ROWS rows in f32. */
static void sums_of(const HalfJob *job, int64_t j, int64_t n, float *room, float *y) {
    const CcGemv *g = job->g;
    const uint16_t *w[ROWS];
    for (int r = 0; r < ROWS; r++) w[r] = job->w + (j + (r < n ? r : 0)) * g->row;
    if (cc_cpu_info()->vector_bytes == 64 && g->k % 32 == 0) {
        (g->dtype == CC_DT_BF16 ? brain_avx512 : half_avx512)(w, job->x, g->k, y);
        return;
    }
    const CcGemv few = {.n = ROWS, .k = g->k, .row = g->k, .col = 1, .dtype = CC_DT_F32};
    const Job part = {&few, room, job->x, NULL, y};
    for (int64_t r = 0; r < n; r++) cc_halves_widen(g->dtype, w[r], room + r * g->k, g->k);
    CC_CPU_WIDEST(rows)(&part, 0, n);
}

/* Adds the bias and rounds n outputs. */
static void finish_halves(const HalfJob *job, int64_t j, int64_t n, float *y) {
    float bias[HALF_WIDE];
    if (job->bias) cc_halves_widen(job->g->dtype, job->bias + j, bias, n);
    for (int64_t i = 0; job->bias && i < n; i++) y[i] += bias[i];
    cc_halves_narrow(job->g->dtype, y, job->y + j, n);
}

/* Outputs [j, j + n), n <= HALF_WIDE. A pass reads DEEP rows of W, the first one at row 0 and later ones at row DEEP of
 * `wide`, as columns() adds to y from row 1 on. */
static void columns_of(const HalfJob *job, int64_t j, int64_t n) {
    const CcGemv *g = job->g, pass = {.n = n, .k = 2 * DEEP, .row = 1, .col = HALF_WIDE, .dtype = CC_DT_F32};
    _Alignas(64) float wide[2 * DEEP * HALF_WIDE], y[HALF_WIDE] = {0};
    int64_t k = 0;
    for (; k + DEEP <= g->k; k += DEEP) {
        const int64_t at = k ? DEEP : 0;
        const Job part = {&pass, wide, job->x + k - at, NULL, y};
        for (int64_t d = 0; d < DEEP; d++) {
            const uint16_t *const from = job->w + (k + d) * g->col + j;
            cc_halves_widen(g->dtype, from, wide + (at + d) * HALF_WIDE, n);
            for (int64_t i = 0; k + d + DEEP < g->k && i < n; i += LINE / 2)
                __builtin_prefetch(from + DEEP * g->col + i, 0, 2);
        }
        CC_CPU_WIDEST(columns)(&part, 0, n, at);
    }
    for (; k < g->k; k++) {
        cc_halves_widen(g->dtype, job->w + k * g->col + j, wide, n);
        for (int64_t i = 0; i < n; i++) y[i] += wide[i] * job->x[k];
    }
    finish_halves(job, j, n, y);
}

static void work_halves(void *ctx, int64_t begin, int64_t end) {
    HalfJob *job = ctx;
    const CcGemv *g = job->g;
    const int64_t last = CC_MIN(end * UNIT, g->n);
    for (int64_t j = begin * UNIT; g->col != 1 && j < last; j += HALF_WIDE)
        columns_of(job, j, CC_MIN(HALF_WIDE, last - j));
    if (g->col != 1) return;
    float *room = cc_scratch_thread(sizeof *room * (size_t)(ROWS * g->k)), y[ROWS];
    if (!room) {
        atomic_store(&job->failed, true);
        return;
    }
    for (int64_t j = begin * UNIT; j < last; j += ROWS) {
        const int64_t n = CC_MIN(ROWS, last - j);
        sums_of(job, j, n, room, y);
        finish_halves(job, j, n, y);
    }
}

bool cc_gemv_can(const CcGemv *g) {
    return g->n > 0 && g->k > 0 && (g->col == 1 || g->row == 1) && (g->dtype == CC_DT_F32 || g->k <= MOST_K);
}

static int run_halves(const CcGemv *g, const void *w, const void *x, const void *bias, void *y, int parts) {
    CcScratch *room = cc_scratch_take(sizeof(float) * (size_t)g->k);
    if (!room) return -1;
    HalfJob job = {.g = g, .w = w, .bias = bias, .y = y, .x = (float *)room->at};
    cc_halves_widen(g->dtype, x, (float *)room->at, g->k);
    cc_omp_run(work_halves, &job, (g->n + UNIT - 1) / UNIT, parts);
    cc_scratch_give(room);
    return atomic_load(&job.failed) ? -1 : 0;
}

int cc_gemv_run(const CcGemv *g, const void *w, const void *x, const void *bias, void *y) {
    Job job = {g, w, x, bias, y};
    const int64_t units = (g->n + UNIT - 1) / UNIT, worth = g->n * g->k / GRAIN;
    const int parts = (int)CC_MIN(CC_MIN(units, worth), (int64_t)cc_omp_width());
    if (g->dtype != CC_DT_F32) return run_halves(g, w, x, bias, y, parts);
    if (parts > 1) cc_omp_run(work, &job, units, parts);
    else work(&job, 0, units);
    return 0;
}
