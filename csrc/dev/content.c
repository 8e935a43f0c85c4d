/* content: 64-bit fingerprints of memory. A fingerprint depends on every byte and its position; equal contents have
 * equal fingerprints within one process. Data derived from a weight (its packed copy) is keyed by the fingerprint, so
 * it never goes stale: torch's `_version` misses writes by fused optimizers, `.data`, numpy and DLPack.
 *
 * If the kernel reports written pages (base/written.c), a range that was read twice with equal contents is tracked, and
 * re-read only after a write to it. The ends of a range share their pages with other data and are read every time.
 * Without that report every call reads the whole range at memory bandwidth. */
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>

#include "dev.h"

enum {
    PAGE = 4096,
    LANES = 8,
    STRIPE = LANES * 8,
    STIR = 16, /* stripes between two rounds of mixing the lanes */
    CHUNK = 1 << 16,
    TRACKED = 1 << 15, /* least bytes worth tracking: asking the kernel takes 0.3 us */
    PARALLEL = 16,     /* least chunks to read with all threads */
    MIN_KNOWN = 1024   /* ranges kept before the first sweep */
};

typedef struct Known {
    const char *at;
    size_t bytes;
    uint64_t inner; /* fingerprint of the range's whole pages */
    bool tracked;   /* the kernel tracks writes to these pages since `inner` was taken */
    bool shared;    /* shared or otherwise untrackable pages */
    bool used;      /* read since the last sweep */
} Known;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Known) known;
static CcMap known_at; /* address -> index in `known`; one range per address */
static int max_known = MIN_KNOWN;

/* ------------------------------------------------------------------ fingerprints */

#define PRIME UINT64_C(0x9E3779B185EBCA87)
#define STEP UINT64_C(0xD6E8FEB86659FD93)

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * STEP;
    x = (x ^ x >> 29) * PRIME;
    return x ^ x >> 32;
}

static uint64_t rotate(uint64_t x) { return x << 32 | x >> 32; }

/* Each lane accumulates the product of its halves, keyed by position (as in NH and XXH3), plus its own value. */
static uint64_t add_stripes_base(const char *at, size_t stripes, uint64_t acc[LANES], uint64_t key) {
    for (size_t i = 0; i < stripes; i++, at += STRIPE, key += STEP) {
        for (int l = 0; l < LANES; l++) {
            uint64_t x, d;
            memcpy(&x, at + 8 * l, sizeof x);
            d = x ^ (key + (uint64_t)l * PRIME);
            acc[l] += (d & UINT32_MAX) * (d >> 32) + rotate(x);
        }
        if (i % STIR != STIR - 1) continue;
        for (int l = 0; l < LANES; l++) acc[l] = (acc[l] ^ acc[l] >> 47 ^ key) * (PRIME & UINT32_MAX);
    }
    return key;
}

__attribute__((target("avx2"))) static uint64_t add_stripes_avx2(const char *at, size_t stripes, uint64_t acc[LANES],
                                                                 uint64_t key) {
    const __m256i step = _mm256_set1_epi64x((long long)STEP), prime = _mm256_set1_epi64x(PRIME & UINT32_MAX);
    __m256i a[2], k[2];
    for (int h = 0; h < 2; h++) {
        const uint64_t l = 4 * (uint64_t)h;
        a[h] = _mm256_loadu_si256((const __m256i *)(acc + l));
        k[h] = _mm256_setr_epi64x((long long)(key + l * PRIME), (long long)(key + (l + 1) * PRIME),
                                  (long long)(key + (l + 2) * PRIME), (long long)(key + (l + 3) * PRIME));
    }
    for (size_t i = 0; i < stripes; i++, at += STRIPE, key += STEP) {
        for (int h = 0; h < 2; h++) {
            const __m256i x = _mm256_loadu_si256((const __m256i *)at + h), d = _mm256_xor_si256(x, k[h]);
            const __m256i product = _mm256_mul_epu32(d, _mm256_srli_epi64(d, 32));
            a[h] = _mm256_add_epi64(a[h], _mm256_add_epi64(product, _mm256_shuffle_epi32(x, 0xB1)));
            k[h] = _mm256_add_epi64(k[h], step);
        }
        if (i % STIR != STIR - 1) continue;
        const __m256i here = _mm256_set1_epi64x((long long)key);
        for (int h = 0; h < 2; h++) {
            const __m256i m = _mm256_xor_si256(_mm256_xor_si256(a[h], _mm256_srli_epi64(a[h], 47)), here);
            const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(m, 32), prime);
            a[h] = _mm256_add_epi64(_mm256_mul_epu32(m, prime), _mm256_slli_epi64(high, 32));
        }
    }
    for (int h = 0; h < 2; h++) _mm256_storeu_si256((__m256i *)(acc + 4 * h), a[h]);
    return key;
}

/* place: index of the chunk within its range. */
static uint64_t hash_chunk(const char *at, size_t bytes, uint64_t place) {
    uint64_t acc[LANES], key = mix(place + 1);
    char rest[STRIPE] = {0};
    for (int l = 0; l < LANES; l++) acc[l] = PRIME * (uint64_t)(l + 1);
    const size_t stripes = bytes / STRIPE;
    key = (cc_cpu_info()->vector_bytes >= 32 ? add_stripes_avx2 : add_stripes_base)(at, stripes, acc, key);
    if (bytes % STRIPE) memcpy(rest, at + stripes * STRIPE, bytes % STRIPE);
    if (bytes % STRIPE) (void)add_stripes_base(rest, 1, acc, key);
    uint64_t sum = mix(bytes ^ key);
    for (int l = 0; l < LANES; l++) sum = mix(sum ^ acc[l]) + PRIME * (uint64_t)l;
    return mix(sum + place);
}

typedef struct Job {
    const char *at;
    size_t bytes;
    _Atomic uint64_t sum;
} Job;

static void read_chunks(void *ctx, int64_t begin, int64_t end) {
    Job *job = ctx;
    uint64_t sum = 0;
    for (size_t i = (size_t)begin; i < (size_t)end; i++)
        sum += hash_chunk(job->at + i * CHUNK, CC_MIN(CHUNK, job->bytes - i * CHUNK), i);
    atomic_fetch_add(&job->sum, sum);
}

static uint64_t fingerprint(const char *at, size_t bytes) {
    Job job = {.at = at, .bytes = bytes};
    const int64_t chunks = (int64_t)((bytes + CHUNK - 1) / CHUNK);
    cc_omp_run(read_chunks, &job, chunks, chunks < PARALLEL ? 1 : cc_omp_width());
    return mix(atomic_load(&job.sum) ^ bytes);
}

/* ------------------------------------------------------------------ tracked ranges */

static const char *first_page(const char *at) { return (const char *)(((uintptr_t)at + PAGE - 1) / PAGE * PAGE); }
static const char *last_page(const char *at, size_t bytes) {
    return (const char *)(((uintptr_t)at + bytes) / PAGE * PAGE);
}

static void forget(Known *k) {
    if (k->tracked) cc_written_end(first_page(k->at), (size_t)(last_page(k->at, k->bytes) - first_page(k->at)));
    k->tracked = false;
}

/* Forgets ranges that were not read since the last sweep. */
static void sweep(void) {
    int n = 0;
    cc_map_free(&known_at);
    for (int i = 0; i < known.n; i++) {
        Known *k = &known.at[i];
        if (!k->used) {
            forget(k);
            continue;
        }
        k->used = false;
        cc_map_put(&known_at, k->at, n);
        known.at[n++] = *k;
    }
    known.n = n;
    max_known = CC_MAX(MIN_KNOWN, 2 * n);
}

/* The record of this range; *met: it existed, so `inner` is valid. */
static Known *find(const char *at, size_t bytes, bool *met) {
    if (known.n >= max_known) sweep();
    const int64_t *where = cc_map_find(&known_at, at);
    *met = where && known.at[*where].bytes == bytes;
    if (*met) return &known.at[*where];
    const Known fresh = {.at = at, .bytes = bytes};
    if (where) {
        forget(&known.at[*where]);
        known.at[*where] = fresh;
        return &known.at[*where];
    }
    cc_map_put(&known_at, at, known.n);
    cc_vec_push(&known, fresh);
    return &known.at[known.n - 1];
}

/* Starts tracking. Tracking state is per page, so restarting it invalidates that of overlapping ranges. */
static void start_tracking(Known *k, const char *begin, size_t bytes) {
    for (int i = 0; i < known.n; i++) {
        Known *other = &known.at[i];
        if (other->tracked && other->at < begin + bytes && begin < other->at + other->bytes) other->tracked = false;
    }
    k->tracked = cc_written_begin(begin, bytes) == 0;
    k->shared = !k->tracked;
}

/* Starts tracking only when two reads agree: for a weight that every call changes, tracking would just cost a page
 * fault per page. */
static uint64_t inner_of(Known *k, bool met, const char *begin, size_t bytes) {
    if (k->tracked && !cc_written_since(begin, bytes)) return k->inner;
    uint64_t now = fingerprint(begin, bytes);
    const bool same = met && now == k->inner;
    k->tracked = false;
    if (same && !k->shared) {
        start_tracking(k, begin, bytes);
        now = fingerprint(begin, bytes); /* catches writes made before tracking began */
        if (k->tracked && !cc_written_private(begin, bytes)) {
            forget(k);
            k->shared = true;
        }
    }
    return k->inner = now;
}

uint64_t cc_content_of(const void *memory, size_t bytes) {
    const char *at = memory, *begin = first_page(at), *end = last_page(at, bytes);
    if (bytes < TRACKED || !cc_written_supported()) return fingerprint(at, bytes);
    pthread_mutex_lock(&lock);
    bool met;
    Known *k = find(at, bytes, &met);
    k->used = true;
    const uint64_t inner = inner_of(k, met, begin, (size_t)(end - begin));
    pthread_mutex_unlock(&lock);
    const uint64_t head = hash_chunk(at, (size_t)(begin - at), 1),
                   tail = hash_chunk(end, (size_t)(at + bytes - end), 2);
    return mix(mix(inner + head) ^ tail);
}

bool cc_content_tracks_writes(void) { return cc_written_supported(); }
