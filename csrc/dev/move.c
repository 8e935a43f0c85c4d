/* move: gathers and scatters: writes at indices (scatter, index_add, index_put), reads at several indices, and copies
 * of regions. A nest of dims, each with a stride in both tensors; an index addresses one of the two:
 *
 *     for d0 ..: for d1 ..:  dst[d0 * dst[0] + d1 * dst[1] + index(d0, d1) * by]  <-  src[d0 * src[0] + d1 * src[1]]
 *
 * Dims along which an index changes, or along which several elements share a destination, are ordered: one thread runs
 * them in sequence, so the last write wins and sums add up in eager's order. The remaining dims are `rows`; threads
 * divide one of them. */
#include <stdatomic.h>

#include "dev.h"

enum {
    GRAIN = 16384,  /* least elements per thread */
    BLOCK = 256,    /* addresses computed at a time */
    CHECKED = 1024, /* indices range-checked before use, while they stay in the cache */
    LINE = 128      /* least bytes of a row per thread */
};

/* Arguments of a kernel for a block of rows. */
typedef struct Rows {
    char *dst;
    const char *src;
    int64_t to[BLOCK], from[BLOCK]; /* byte offsets of the rows */
    int64_t m, n;                   /* rows; elements of each */
    int64_t dst_step, src_step;     /* byte strides within a row */
    int64_t taken;                  /* packed: rows consumed by earlier blocks */
    /* the *_each kernels: one index per element, in place of `to` and `from` */
    const int64_t *index;
    int64_t by;
    bool reads;
    double scale;
} Rows;
typedef void (*RowsFn)(const Rows *r);

#if defined(__clang__)
#    define FAST
#else
#    define FAST __attribute__((optimize("O3"))) /* gcc 12 vectorises loops of unknown length only with -O3 */
#endif
/* Defines `name` for rows (contiguous, from one repeated element, or strided) and `name_each` for one index per
 * element. `value` computes the new element from d, the old one, and s, the source. */
#define MOVER(name, T, value)                                                                                          \
    FAST static void name(const Rows *r) {                                                                             \
        const T scale = (T)r->scale;                                                                                   \
        const bool dense = r->n > 1 && r->dst_step == sizeof(T);                                                       \
        (void)scale;                                                                                                   \
        for (int64_t i = 0; i < r->m; i++) {                                                                           \
            T *restrict to = (T *)(r->dst + r->to[i]);                                                                 \
            const T *restrict from = (const T *)(r->src + r->from[i]);                                                 \
            if (dense && r->src_step == sizeof(T))                                                                     \
                for (int64_t k = 0; k < r->n; k++) ELEMENT(T, to + k, from[k], value)                                  \
            else if (dense && r->src_step == 0)                                                                        \
                for (int64_t k = 0; k < r->n; k++) ELEMENT(T, to + k, *from, value)                                    \
            else                                                                                                       \
                for (int64_t k = 0; k < r->n; k++)                                                                     \
                    ELEMENT(T, (T *)((char *)to + k * r->dst_step),                                                    \
                            *(const T *)((const char *)from + k * r->src_step), value)                                 \
        }                                                                                                              \
    }                                                                                                                  \
    FAST static void name##_each(const Rows *r) {                                                                      \
        const T scale = (T)r->scale;                                                                                   \
        const int64_t *restrict at = r->index, size = sizeof(T), by = r->by / size, dst = r->dst_step / size,          \
                                src = r->src_step / size;                                                              \
        T *to = (T *)r->dst;                                                                                           \
        const T *from = (const T *)r->src;                                                                             \
        (void)scale;                                                                                                   \
        if (r->reads && dst == 1 && by == 1 && src == 0)                                                               \
            for (int64_t i = 0; i < r->m; i++) ELEMENT(T, to + i, from[at[i]], value)                                  \
        else if (r->reads && dst == 1)                                                                                 \
            for (int64_t i = 0; i < r->m; i++) ELEMENT(T, to + i, from[at[i] * by + i * src], value)                   \
        else if (r->reads)                                                                                             \
            for (int64_t i = 0; i < r->m; i++) ELEMENT(T, to + i * dst, from[at[i] * by + i * src], value)             \
        else if (src == 1 && by == 1 && dst == 0)                                                                      \
            for (int64_t i = 0; i < r->m; i++) ELEMENT(T, to + at[i], from[i], value)                                  \
        else if (src == 1)                                                                                             \
            for (int64_t i = 0; i < r->m; i++) ELEMENT(T, to + at[i] * by + i * dst, from[i], value)                   \
        else                                                                                                           \
            for (int64_t i = 0; i < r->m; i++) ELEMENT(T, to + at[i] * by + i * dst, from[i * src], value)             \
    }
#define ELEMENT(T, into, comes, value)                                                                                 \
    {                                                                                                                  \
        T *const e = into;                                                                                             \
        const T s = comes, d = *e;                                                                                     \
        (void)d;                                                                                                       \
        *e = (T)(value);                                                                                               \
    }

MOVER(set1, uint8_t, s)
MOVER(set2, uint16_t, s)
MOVER(set4, uint32_t, s)
MOVER(set8, uint64_t, s)
/* NaN wins max and min, as in eager. */
#define FLOATS(T, id)                                                                                                  \
    MOVER(sum_##id, T, d + s)                                                                                          \
    MOVER(scaled_##id, T, d + s * scale)                                                                               \
    MOVER(prod_##id, T, d *s)                                                                                          \
    MOVER(max_##id, T, s != s ? s : d < s ? s : d)                                                                     \
    MOVER(min_##id, T, s != s ? s : s < d ? s : d)
/* Integers wrap around. */
#define INTEGERS(T, U, id)                                                                                             \
    MOVER(sum_##id, T, (U)d + (U)s)                                                                                    \
    MOVER(scaled_##id, T, (U)d + (U)s * (U)scale)                                                                      \
    MOVER(prod_##id, T, (U)d *(U)s)                                                                                    \
    MOVER(max_##id, T, d < s ? s : d)                                                                                  \
    MOVER(min_##id, T, s < d ? s : d)
FLOATS(float, f32)
FLOATS(double, f64)
INTEGERS(int32_t, uint32_t, i32)
INTEGERS(int64_t, uint64_t, i64)

typedef struct Mover {
    RowsFn rows, each;
} Mover;
#define BOTH(name) {name, name##_each}

/* The kernels of a reduction; NULLs: none. */
static Mover mover(CcPutHow how, CcDtype dt, int bytes, double scale) {
    static const Mover SET[] = {BOTH(set1), BOTH(set2), BOTH(set4), BOTH(set8)};
#define ALL(how)                                                                                                       \
    {                                                                                                                  \
        [CC_DT_F32] = BOTH(how##_f32), [CC_DT_F64] = BOTH(how##_f64), [CC_DT_I32] = BOTH(how##_i32),                   \
        [CC_DT_I64] = BOTH(how##_i64)                                                                                  \
    }
    static const Mover SCALED[CC_DT_COUNT] = ALL(scaled);
    static const Mover BY[][CC_DT_COUNT] = {
        [CC_PUT_SUM] = ALL(sum), [CC_PUT_PROD] = ALL(prod), [CC_PUT_MAX] = ALL(max), [CC_PUT_MIN] = ALL(min)};
#undef ALL
    if (how == CC_PUT_SET) return SET[bytes == 8 ? 3 : bytes == 4 ? 2 : bytes - 1];
    return how == CC_PUT_SUM && scale != 1 ? SCALED[dt] : BY[how][dt];
}

bool cc_move_can(CcPutHow how, CcDtype dt) { return how == CC_PUT_SET || mover(how, dt, 0, 1).rows; }

/* ------------------------------------------------------------------ the nest */

/* Must this dim run in sequence? Its index changes, or several of its elements share a destination. */
static bool ordered(const CcMove *m, int d) {
    for (int k = 0; k < m->n_index; k++)
        if (m->index[k].step[d]) return true;
    return m->packed ? m->src[d] == 0 : !m->reads && m->dst[d] == 0;
}

static void swap_dims(CcMove *m, int a, int b) {
#define SWAP(at)                                                                                                       \
    do {                                                                                                               \
        const int64_t t = (at)[a];                                                                                     \
        (at)[a] = (at)[b];                                                                                             \
        (at)[b] = t;                                                                                                   \
    } while (0)
    SWAP(m->size);
    SWAP(m->dst);
    SWAP(m->src);
    for (int k = 0; k < m->n_index; k++) SWAP(m->index[k].step);
#undef SWAP
}

static bool one_dim(const CcMove *m, int a, int b) {
    bool one = m->dst[a] == m->dst[b] * m->size[b] && m->src[a] == m->src[b] * m->size[b];
    for (int k = 0; k < m->n_index; k++) one = one && m->index[k].step[a] == m->index[k].step[b] * m->size[b];
    return one;
}

static void drop_dim(CcMove *m, int d) {
    for (m->ndim--; d < m->ndim; d++) swap_dims(m, d, d + 1);
}

/* Drops dims of size 1, moves ordered dims to the front in their order, sorts the rows behind them by dst stride, and
 * merges dims that are contiguous in memory. */
void cc_move_plan(CcMove *m) {
    int64_t row = m->bytes;
    /* each mask entry selects a whole row */
    for (int d = m->ndim - 1; m->packed && d >= 0 && m->index[0].step[d] == 0; d--) {
        m->src[d] = row;
        row *= m->size[d];
    }
    if (m->packed) m->packed = row;
    for (int d = m->ndim - 1; d >= 0; d--)
        if (m->size[d] == 1) drop_dim(m, d);
    for (int i = 1; i < m->ndim; i++)
        for (int k = i; k > 0; k--) {
            const bool here = ordered(m, k), before = ordered(m, k - 1);
            if (before || (!here && m->dst[k] <= m->dst[k - 1])) break;
            swap_dims(m, k - 1, k);
        }
    for (int d = m->ndim - 2; d >= 0; d--) {
        if (ordered(m, d) != ordered(m, d + 1) || !one_dim(m, d, d + 1)) continue;
        m->size[d + 1] *= m->size[d];
        drop_dim(m, d);
    }
    m->rows = m->ndim;
    while (m->rows > 0 && !ordered(m, m->rows - 1)) m->rows--;
}

/* ------------------------------------------------------------------ running */

typedef struct Job {
    const CcMove *m;
    Mover fn;
    bool each; /* rows are single elements, and the only index is contiguous along the block */
    char *dst;
    const char *src;
    const char *const *index;
    atomic_bool *wrong; /* an index is out of range */
    int cut;            /* the dim that threads divide; -1: none */
    int row, block;     /* dims that the kernels run over; -1: none */
} Job;

/* Are all indices in range? Then neither v - low nor high - v has the sign bit set. 65536 indices take 15 us, 8 with
 * AVX2 (Zen 4). */
#define GOOD(name, TARGET)                                                                                             \
    FAST TARGET static bool name(const CcMoveIndex *x, const int64_t *v, int64_t n) {                                  \
        const uint64_t low = (uint64_t)x->low, high = (uint64_t)x->count - 1;                                          \
        uint64_t bad = 0;                                                                                              \
        for (int64_t i = 0; i < n; i++) bad |= ((uint64_t)v[i] - low) | (high - (uint64_t)v[i]);                       \
        return !(bad >> 63);                                                                                           \
    }
GOOD(good_base, )
GOOD(good_avx2, __attribute__((target("avx2"))))

static bool good_indices(const CcMoveIndex *x, const int64_t *v, int64_t n) {
    return (cc_cpu_info()->vector_bytes >= 32 ? good_avx2 : good_base)(x, v, n);
}

/* The indices with negative ones resolved, in `own` if there may be any. */
static const int64_t *resolve_negative(const CcMoveIndex *x, const int64_t *v, int64_t n, int64_t *own) {
    if (x->low == 0) return v;
    for (int64_t i = 0; i < n; i++) own[i] = v[i] + (v[i] >> 63 & x->count);
    return own;
}

static bool all_good(const CcMove *m, const CcMoveIndex *x, const char *at, int d) {
    while (d < m->ndim && x->step[d] == 0) d++;
    if (d == m->ndim) {
        int32_t narrow;
        int64_t v;
        if (x->wide) memcpy(&v, at, sizeof v);
        else memcpy(&narrow, at, sizeof narrow), v = narrow;
        return good_indices(x, &v, 1);
    }
    bool contiguous = x->wide && x->step[d] == 8;
    for (int e = d + 1; e < m->ndim; e++) contiguous = contiguous && x->step[e] == 0;
    if (contiguous) return good_indices(x, (const int64_t *)at, m->size[d]);
    for (int64_t i = 0; i < m->size[d]; i++)
        if (!all_good(m, x, at + i * x->step[d], d + 1)) return false;
    return true;
}

bool cc_move_good(const CcMove *m, const char *const *index) {
    for (int k = 0; k < m->n_index; k++)
        if (!m->index[k].mask && !all_good(m, &m->index[k], index[k], 0)) return false;
    return true;
}

/* Adds an index's byte offsets to the addresses of a block. false: an index is out of range. */
static bool add_index(const CcMoveIndex *x, const char *at, int64_t step, int64_t *place, int64_t n) {
    int64_t own[BLOCK];
    const bool contiguous = x->wide && step == 8;
    const int64_t *v = contiguous ? (const int64_t *)at : own, different = step ? n : 1;
    for (int64_t i = 0; !contiguous && i < different; i++) {
        int32_t narrow;
        if (x->wide) memcpy(&own[i], at + i * step, sizeof *own);
        else memcpy(&narrow, at + i * step, sizeof narrow), own[i] = narrow;
    }
    if (!good_indices(x, v, different)) return false;
    v = resolve_negative(x, v, different, own);
    if (different == n)
        for (int64_t i = 0; i < n; i++) place[i] += v[i] * x->by;
    else
        for (int64_t i = 0; i < n; i++) place[i] += v[0] * x->by;
    return true;
}

/* Keeps the addresses where the mask is true -> their number. */
static int64_t compact(const char *mask, int64_t step, int64_t *to, int64_t *from, int64_t n) {
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        to[kept] = to[i];
        from[kept] = from[i];
        kept += mask[i * step] != 0;
    }
    return kept;
}

static bool fill_places(const Job *j, Rows *r, int64_t first, int64_t n, const char *const *at) {
    const CcMove *m = j->m;
    const int b = j->block;
    const int64_t dst = b < 0 ? 0 : m->dst[b], src = b < 0 ? 0 : m->src[b];
    for (int64_t i = 0; i < n; i++) {
        r->to[i] = (first + i) * dst;
        r->from[i] = (first + i) * src;
    }
    r->m = n;
    for (int k = 0; k < m->n_index; k++) {
        const CcMoveIndex *x = &m->index[k];
        const int64_t step = b < 0 ? 0 : x->step[b];
        if (x->mask) r->m = compact(at[k] + first * step, step, r->to, r->from, r->m);
        else if (!add_index(x, at[k] + first * step, step, m->reads ? r->from : r->to, n)) return false;
    }
    for (int64_t i = 0; m->packed && i < r->m; i++) r->from[i] = r->taken++ * m->packed;
    return true;
}

static bool move_each(const Job *j, Rows *r, int64_t from, int64_t to, const char *index) {
    const CcMove *m = j->m;
    int64_t own[CHECKED];
    const int64_t *at = (const int64_t *)index;
    r->dst_step = m->dst[j->block];
    r->src_step = m->src[j->block];
    r->by = m->index[0].by;
    r->reads = m->reads;
    r->dst += from * r->dst_step;
    r->src += from * r->src_step;
    for (int64_t i = from; i < to; i += r->m) {
        r->m = CC_MIN(CHECKED, to - i);
        if (!good_indices(&m->index[0], at + i, r->m)) return false;
        r->index = resolve_negative(&m->index[0], at + i, r->m, own);
        j->fn.each(r);
        r->dst += r->m * r->dst_step;
        r->src += r->m * r->src_step;
    }
    return true;
}

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const Job *j = ctx;
    const CcMove *m = j->m;
    int64_t low[CC_MOVE_DIMS] = {0}, high[CC_MOVE_DIMS], at[CC_MOVE_DIMS];
    const char *index[CC_MOVE_DIMS];
    Rows r = {.n = 1, .scale = m->scale};
    for (int d = 0; d < m->ndim; d++) high[d] = m->size[d];
    if (j->cut >= 0) low[j->cut] = begin, high[j->cut] = end;
    memcpy(at, low, sizeof at);
    if (j->row >= 0) {
        at[j->row] = low[j->row];
        r.n = high[j->row] - low[j->row];
        r.dst_step = m->dst[j->row];
        r.src_step = m->src[j->row];
    }
    for (;;) {
        r.dst = j->dst;
        r.src = j->src;
        for (int k = 0; k < m->n_index; k++) index[k] = j->index[k];
        for (int d = 0; d < m->ndim; d++) {
            if (d == j->block) continue;
            r.dst += at[d] * m->dst[d];
            r.src += at[d] * m->src[d];
            for (int k = 0; k < m->n_index; k++) index[k] += at[d] * m->index[k].step[d];
        }
        const int64_t from = j->block < 0 ? 0 : low[j->block], to = j->block < 0 ? 1 : high[j->block];
        bool good = !j->each || move_each(j, &r, from, to, index[0]);
        for (int64_t i = from; good && i < to && !j->each; i += BLOCK) {
            good = fill_places(j, &r, i, CC_MIN(BLOCK, to - i), index);
            if (good) j->fn.rows(&r);
        }
        if (!good) {
            atomic_store_explicit(j->wrong, true, memory_order_relaxed);
            return;
        }
        int d = m->ndim - 1;
        for (; d >= 0; d--) {
            if (d == j->block || d == j->row) continue;
            if (++at[d] < high[d]) break;
            at[d] = low[d];
        }
        if (d < 0) return;
    }
}

/* The first dim that threads may divide and that is long enough. */
static int find_cut(const Job *j, int parts) {
    const CcMove *m = j->m;
    for (int d = 0; d < m->ndim; d++) {
        const int64_t least = d == j->row ? parts * CC_MAX(1, LINE / m->bytes) : parts;
        if (m->size[d] >= least && (m->reads || m->dst[d] != 0)) return d;
    }
    return -1;
}

int cc_move_run(const CcMove *m, char *dst, const char *src, const char *const *index) {
    atomic_bool wrong = false;
    Job j = {.m = m,
             .fn = mover(m->how, m->dtype, m->bytes, m->scale),
             .dst = dst,
             .src = src,
             .index = index,
             .wrong = &wrong,
             .cut = -1,
             .row = -1,
             .block = -1};
    int64_t numel = 1;
    for (int d = 0; d < m->ndim; d++) numel *= m->size[d];
    if (numel == 0) return 0;
    if (m->rows < m->ndim) j.row = m->ndim - 1;
    if (m->rows > 0) j.block = m->rows - 1;
    else if (m->ndim > 1) j.block = m->ndim - 2;
    j.each = j.row < 0 && j.block >= 0 && m->n_index == 1 && m->index[0].wide && !m->index[0].mask &&
             m->index[0].step[j.block] == 8;
    const int parts = m->packed ? 1 : (int)CC_MIN(cc_omp_width(), numel / GRAIN);
    if (parts > 1) j.cut = find_cut(&j, parts);
    if (j.cut >= 0) cc_omp_run(run_range, &j, m->size[j.cut], parts);
    else run_range(&j, 0, 0);
    return wrong ? -1 : 0;
}

int64_t cc_move_count(const CcMove *m, const char *mask) {
    int64_t at[CC_MOVE_DIMS] = {0}, found = 0;
    for (int d = 0; d < m->ndim; d++)
        if (m->size[d] == 0) return 0;
    for (;;) {
        const char *row = mask;
        for (int d = 0; d + 1 < m->ndim; d++) row += at[d] * m->index[0].step[d];
        const int last = m->ndim - 1;
        for (int64_t i = 0; i < (m->ndim ? m->size[last] : 1); i++)
            found += row[m->ndim ? i * m->index[0].step[last] : 0] != 0;
        int d = last - 1;
        for (; d >= 0; d--) {
            if (++at[d] < m->size[d]) break;
            at[d] = 0;
        }
        if (d < 0) return found;
    }
}
