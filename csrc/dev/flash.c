/* flash: fused attention. For each head and range of query rows, blocks of keys and values are packed into panels. Each
 * tile of rows computes its scores (registers -> L1), applies an online softmax (running maximum and sum, Milakov and
 * Gimelshein 2018; tiling as in FlashAttention-2, Dao 2023), and accumulates weights @ values.
 *
 *   unit = (head, rows [row0, row1))       threads take units from a shared counter
 *     for blocks of keys:                  packed once for all rows of the unit
 *       for tiles of rows:                 scores, weights (s), o = o * alpha + weights @ values
 *
 * If there are too few units for the threads, the keys are divided, too: such a unit stores its rows before the
 * division by their sums, and merge() combines them (as in FlashDecoding, Dao 2023).
 *
 * bf16 and f16 operands are widened while a block is packed, or as they are loaded; results are rounded once.
 *
 * A NaN or +inf among the scores of a row makes the row NaN, as in eager's softmax. (torch's own fused kernel loses NaN
 * in rows with fewer keys than vector lanes. A NaN in a masked value reaches the row only if the kernel multiplies it:
 * torch's within its block of keys, this one within its tile.) */
#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>

#include "dev.h"

enum {
    /* leading dimension of q and s in floats: an odd number of cache lines (33), so that rows map to different sets */
    LD = 528,
    BLOCK_KEYS = 256,       /* most keys of a block: the scores of 12 rows take 12 KB of L1 */
    BLOCK_FLOATS = 1 << 16, /* most floats of a block's keys and values: 256 KB, which stay in L2 */
    UNIT_ROWS = 192,        /* most rows of a unit */
    UNIT_LEAST = 24,        /* least rows of a unit */
    MAX_ROWS = 12,
    MAX_PANEL = 32,
    DIRECT_ROWS = 3, /* most rows that read keys and values in place, without packing */
    PART_KEYS = 512, /* least keys of a unit that sees only part of them */
    SMALL = 1 << 20  /* multiply-adds below which a second thread is not worth its barrier */
};

typedef struct Scratch { /* per thread */
    float *q, *s, *k, *v, *o, *alpha;
    float *top, *total;     /* running maximum and sum: one vector per tile of rows */
    float *wide_k, *wide_v; /* f32 copies of a block's keys and values if these are bf16 or f16 */
} Scratch;

typedef struct Block { /* keys or values of a block, before packing */
    const void *at;
    int64_t row, col;
    CcDtype dtype; /* F32, or a dtype of load_half */
} Block;

typedef struct Unit {
    const char *q, *k, *v, *mask;
    char *out;
    float *partial; /* NULL: the unit sees all keys; else, per row, its largest score, its sum, and `width` floats */
    int64_t partial_row; /* row stride of `partial` */
    int64_t row0, row1, key0, key1, block_keys;
    bool scale_first;
    bool direct; /* reads keys and values in place */
    float c;     /* weight = 2^((score - top) * c) */
    const Scratch *scratch;
} Unit;

/* vreduceps gives x - floor(x) (0 for -inf), vscalefps multiplies by 2^floor(x). */
static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) __m512
exp2_avx512(__m512 x) {
    const __m512 f = _mm512_reduce_ps(x, 1);
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0x1.ec320ap-10f), _mm512_set1_ps(0x1.26900cp-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c95446p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebd5a8p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e4f6p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fffffep-1f));
    return _mm512_scalef_ps(p, x);
}

static int64_t size_of(const CcStrided *s) { return cc_dtype_size(s->dtype); }

/* Are the columns contiguous? */
static bool is_transposed(const CcStrided *s) { return s->row == 1 && s->col != 1; }

/* Rows [first, first + n) of keys or values, `width` columns, widened into `room` if need be. lanes: vector width of
 * kernels that load bf16 and f16 directly; 0: always widen. */
static Block block_of(const CcStrided *s, const char *at, int64_t first, int64_t n, int64_t width, float *room,
                      int lanes) {
    at += first * s->row * size_of(s);
    if (s->dtype == CC_DT_F32 || (lanes && s->col == 1 && width % lanes == 0))
        return (Block){at, s->row, s->col, s->dtype};
    const bool transposed = is_transposed(s);
    if (s->col == 1 && s->row == width) {
        cc_halves_widen(s->dtype, at, room, n * width);
        return (Block){room, width, 1, CC_DT_F32};
    }
    for (int64_t i = 0; i < (transposed ? width : n); i++)
        cc_halves_gather(s->dtype, at + i * (transposed ? s->col : s->row) * size_of(s), transposed ? 1 : s->col,
                         room + i * (transposed ? n : width), transposed ? n : width);
    return transposed ? (Block){room, 1, n, CC_DT_F32} : (Block){room, width, 1, CC_DT_F32};
}

#define LANES 16
#define ROWS 12
#define EXP2(x) ((V)exp2_avx512((__m512)(x)))
#include "flash.inc"

#define LANES 8
#define ROWS 6
#include "flash.inc"

#define LANES 4
#define ROWS 4
#include "flash.inc"

static void (*unit_of_cpu(void))(const CcFlash *, const Unit *) { return CC_CPU_WIDEST(unit); }

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* ------------------------------------------------------------------ units */

typedef struct Job {
    const CcFlash *flash;
    const CcFlashCall *call;
    int64_t unit_rows, per_head, unit_keys, per_rows, n, block_keys;
    CcScratch *partial; /* [heads][rows][per_rows][width + 2]; NULL if per_rows is 1 */
    void (*unit)(const CcFlash *, const Unit *);
    atomic_llong next;
    atomic_bool failed;
} Job;

static bool make_scratch(const Job *job, Scratch *w) {
    const CcFlash *f = job->flash;
    const int64_t width = round_up(f->width, MAX_PANEL), rows = round_up(job->unit_rows, 16);
    const int64_t part[] = {MAX_ROWS * LD,
                            MAX_ROWS * LD,
                            job->block_keys * f->depth,
                            job->block_keys * width,
                            rows * width,
                            2 * rows,
                            2 * rows,
                            16,
                            f->k.dtype == CC_DT_F32 ? 0 : job->block_keys * f->depth,
                            f->v.dtype == CC_DT_F32 ? 0 : job->block_keys * f->width};
    float **at[] = {&w->q, &w->s, &w->k, &w->v, &w->o, &w->top, &w->total, &w->alpha, &w->wide_k, &w->wide_v};
    int64_t total = 0;
    for (int i = 0; i < CC_COUNT(part); i++) total += round_up(part[i], 16);
    float *memory = cc_scratch_thread((size_t)total * sizeof *memory);
    for (int i = 0; memory && i < CC_COUNT(part); i++) {
        *at[i] = memory;
        memory += round_up(part[i], 16);
    }
    return memory != NULL;
}

/* The partial result of a row (counted over all heads) for a range of keys. */
static float *partial_of(const Job *job, int64_t row, int64_t part) {
    return (float *)job->partial->at + (row * job->per_rows + part) * (job->flash->width + 2);
}

static void place_head(const Job *job, int64_t head, Unit *u) {
    const CcFlash *f = job->flash;
    u->q = job->call->q;
    u->k = job->call->k;
    u->v = job->call->v;
    u->out = job->call->out;
    u->mask = job->call->mask;
    for (int d = f->n_lead - 1; d >= 0; d--) {
        const int64_t i = head % f->lead[d];
        head /= f->lead[d];
        u->q += i * f->q.lead[d] * size_of(&f->q);
        u->k += i * f->k.lead[d] * size_of(&f->k);
        u->v += i * f->v.lead[d] * size_of(&f->v);
        u->out += i * f->out.lead[d] * size_of(&f->out);
        if (u->mask) u->mask += i * f->mask.lead[d] * size_of(&f->mask);
    }
}

static void place(const Job *job, int64_t number, Unit *u) {
    const CcFlash *f = job->flash;
    const int64_t part = number % job->per_rows, rows = number / job->per_rows;
    int64_t head = rows / job->per_head;
    u->row0 = rows % job->per_head * job->unit_rows;
    u->row1 = CC_MIN(f->rows, u->row0 + job->unit_rows);
    u->key0 = part * job->unit_keys;
    u->key1 = CC_MIN(f->keys, u->key0 + job->unit_keys);
    u->partial = job->partial ? partial_of(job, head * f->rows + u->row0, part) : NULL;
    u->partial_row = job->per_rows * (f->width + 2);
    u->direct = u->row1 - u->row0 <= DIRECT_ROWS && (f->k.col == 1 || f->k.row == 1 || f->k.dtype != CC_DT_F32) &&
                (f->v.col == 1 || f->v.dtype != CC_DT_F32) && !is_transposed(&f->v);
    place_head(job, head, u);
}

/* Must the scale be applied before the maximum is taken? A scale <= 0 reverses the order of scores; masks follow it. */
static bool scales_first(const CcFlash *f) { return f->mask_kind || !(f->scale > 0 && f->scale < 1e30f); }

static float exponent(const CcFlash *f) { return (scales_first(f) ? 1 : f->scale) * 1.44269504088896340736f; }

static void work(void *ctx, int64_t begin, int64_t end) {
    (void)begin, (void)end;
    Job *job = ctx;
    const CcFlash *f = job->flash;
    Scratch scratch;
    if (!make_scratch(job, &scratch)) {
        atomic_store(&job->failed, true);
        return;
    }
    Unit u = {.block_keys = job->block_keys, .scratch = &scratch};
    u.scale_first = scales_first(f);
    u.c = exponent(f);
    for (int64_t i; (i = atomic_fetch_add(&job->next, 1)) < job->n;) {
        place(job, i, &u);
        job->unit(f, &u);
    }
}

/* Units are heads, divided by rows if these are many or heads too few, then by keys. */
static void divide(Job *job, int64_t heads, int threads) {
    const CcFlash *f = job->flash;
    int64_t parts = (f->rows + UNIT_ROWS - 1) / UNIT_ROWS;
    if (heads % threads) parts = CC_MAX(parts, (4 * threads + heads - 1) / heads);
    parts = CC_MAX(1, CC_MIN(parts, f->rows / UNIT_LEAST));
    job->unit_rows = round_up((f->rows + parts - 1) / parts, MAX_ROWS);
    job->per_head = (f->rows + job->unit_rows - 1) / job->unit_rows;
    job->n = heads * job->per_head;
    const bool uneven = job->n % threads && job->n < 4 * threads && !f->causal;
    job->per_rows = uneven ? CC_MIN((4 * threads + job->n - 1) / job->n, f->keys / PART_KEYS) : 1;
    job->unit_keys = round_up(f->keys / CC_MAX(1, job->per_rows), MAX_PANEL);
    job->per_rows = (f->keys + job->unit_keys - 1) / job->unit_keys;
    job->n *= job->per_rows;
    const int64_t most_keys = CC_MIN(BLOCK_KEYS, CC_MAX(MAX_PANEL, BLOCK_FLOATS / (f->depth + f->width)));
    const int64_t keys = CC_MIN(f->keys, job->unit_keys), blocks = (keys + most_keys - 1) / most_keys;
    job->block_keys = round_up((keys + blocks - 1) / blocks, MAX_PANEL);
}

/* Combines the partial results of rows [begin, end), counted over all heads. */
static void merge(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    const CcFlash *f = job->flash;
    for (int64_t row = begin; row < end; row++) {
        float *sum = partial_of(job, row, 0), top = -INFINITY, total = 0;
        for (int64_t p = 0; p < job->per_rows; p++) top = CC_MAX(top, partial_of(job, row, p)[0]);
        const float finite = top == -INFINITY ? 0 : top, c = exponent(f);
        for (int64_t p = 0; p < job->per_rows; p++) {
            const float *from = partial_of(job, row, p), factor = exp2f((from[0] - finite) * c);
            total += from[1] * factor;
            for (int64_t i = 2; i < f->width + 2; i++) sum[i] = (p ? sum[i] : 0) + from[i] * factor;
        }
        const float inverse = total == 0 ? f->masked_row : 1 / total;
        for (int64_t i = 2; i < f->width + 2; i++) sum[i] *= inverse;
        Unit u;
        place_head(job, row / f->rows, &u);
        cc_halves_narrow(f->out.dtype, sum + 2, u.out + row % f->rows * f->out.row * size_of(&f->out), f->width);
    }
}

int cc_flash_run(const CcFlash *f, const CcFlashCall *call, CcErr *err) {
    int64_t heads = 1;
    for (int d = 0; d < f->n_lead; d++) heads *= f->lead[d];
    const int64_t cost = heads * f->rows * f->keys * (f->depth + f->width);
    const int threads = cost < SMALL ? 1 : cc_omp_width();
    Job job = {.flash = f, .call = call, .unit = unit_of_cpu()};
    divide(&job, heads, threads);
    const int64_t partial_floats = heads * f->rows * job.per_rows * (f->width + 2); /* floats of partial results */
    if (job.per_rows > 1) {
        job.partial = cc_scratch_take(sizeof(float) * (size_t)partial_floats);
        if (!job.partial) return cc_err_set(err, CC_E_MEMORY, "no memory for attention");
    }
    const int parts = (int)CC_MIN(threads, job.n);
    cc_omp_run(work, &job, parts, parts);
    if (job.partial && !atomic_load(&job.failed))
        cc_omp_run(merge, &job, heads * f->rows, partial_floats < SMALL ? 1 : threads);
    cc_scratch_give(job.partial);
    return atomic_load(&job.failed) ? cc_err_set(err, CC_E_MEMORY, "no memory for attention") : 0;
}
