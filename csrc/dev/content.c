/* content: the fingerprint of what stands in memory. It hangs on every byte and its place, in 64 bits; for equal content
 * it is the same in one process. What was made of the content (packed weights) is known by it, so nobody has to say when
 * a weight was written: not torch's `_version`, which fused optimizers, `.data`, numpy and DLPack pass by.
 *
 * Where the kernel tells which pages were written (base/written.c), what was read twice and was the same is only read
 * again where it was; the ends of a range, which share their pages with others, are read each time. Elsewhere all is
 * read each time, at the speed of memory. */
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>

#include "dev.h"

enum {
    PAGE = 4096,
    LANES = 8,
    STRIPE = LANES * 8,
    STIR = 16, /* stripes after which lanes are stirred */
    CHUNK = 1 << 16,
    FOLLOWED = 1 << 15, /* bytes from which on the kernel is asked: it takes 0.3 us */
    PARALLEL = 16,      /* chunks from which on all threads read */
    ENOUGH = 1024
};

typedef struct Known {
    const char *at;
    size_t bytes;
    uint64_t inner; /* fingerprint of the whole pages */
    bool noted;     /* writes to them since then are */
    bool shared;    /* the kernel can't tell */
    bool used;      /* since the last sweep */
} Known;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Known) known;
static CcMap known_at; /* address -> where in `known`: one range each */
static int enough = ENOUGH;

/* ------------------------------------------------------------------ fingerprints */

#define PRIME UINT64_C(0x9E3779B185EBCA87)
#define STEP UINT64_C(0xD6E8FEB86659FD93)

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * STEP;
    x = (x ^ x >> 29) * PRIME;
    return x ^ x >> 32;
}

static uint64_t rotate(uint64_t x) { return x << 32 | x >> 32; }

/* Each lane adds a product of its halves, with a key of its place (the way of NH and XXH3), and itself. */
static uint64_t stripes_base(const char *at, size_t stripes, uint64_t acc[LANES], uint64_t key) {
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

__attribute__((target("avx2"))) static uint64_t stripes_avx2(const char *at, size_t stripes, uint64_t acc[LANES],
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

/* place: of the chunk in what it is a part of. */
static uint64_t of_chunk(const char *at, size_t bytes, uint64_t place) {
    uint64_t acc[LANES], key = mix(place + 1);
    char rest[STRIPE] = {0};
    for (int l = 0; l < LANES; l++) acc[l] = PRIME * (uint64_t)(l + 1);
    const size_t stripes = bytes / STRIPE;
    key = (cc_cpu_info()->vector_bytes >= 32 ? stripes_avx2 : stripes_base)(at, stripes, acc, key);
    if (bytes % STRIPE) memcpy(rest, at + stripes * STRIPE, bytes % STRIPE);
    if (bytes % STRIPE) (void)stripes_base(rest, 1, acc, key);
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
        sum += of_chunk(job->at + i * CHUNK, CC_MIN(CHUNK, job->bytes - i * CHUNK), i);
    atomic_fetch_add(&job->sum, sum);
}

static uint64_t fingerprint(const char *at, size_t bytes) {
    Job job = {.at = at, .bytes = bytes};
    const int64_t chunks = (int64_t)((bytes + CHUNK - 1) / CHUNK);
    cc_omp_run(read_chunks, &job, chunks, chunks < PARALLEL ? 1 : cc_omp_width());
    return mix(atomic_load(&job.sum) ^ bytes);
}

/* ------------------------------------------------------------------ what is known */

static const char *first_page(const char *at) { return (const char *)(((uintptr_t)at + PAGE - 1) / PAGE * PAGE); }
static const char *last_page(const char *at, size_t bytes) {
    return (const char *)(((uintptr_t)at + bytes) / PAGE * PAGE);
}

static void forget(Known *k) {
    if (k->noted) cc_written_end(first_page(k->at), (size_t)(last_page(k->at, k->bytes) - first_page(k->at)));
    k->noted = false;
}

/* Those that nobody asked for since the last time. */
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
    enough = CC_MAX(ENOUGH, 2 * n);
}

/* *met: with an `inner` of this range */
static Known *find(const char *at, size_t bytes, bool *met) {
    if (known.n >= enough) sweep();
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

/* What is noted is one for all: notes of pages that are also another range's are forgotten for it, too. */
static void begin_notes(Known *k, const char *begin, size_t bytes) {
    for (int i = 0; i < known.n; i++) {
        Known *other = &known.at[i];
        if (other->noted && other->at < begin + bytes && begin < other->at + other->bytes) other->noted = false;
    }
    k->noted = cc_written_begin(begin, bytes) == 0;
    k->shared = !k->noted;
}

/* Notes are begun when the content is what it was before: a weight that changes with each call would only pay for them,
 * with a fault of each page. */
static uint64_t inner_of(Known *k, bool met, const char *begin, size_t bytes) {
    if (k->noted && !cc_written_since(begin, bytes)) return k->inner;
    uint64_t now = fingerprint(begin, bytes);
    const bool same = met && now == k->inner;
    k->noted = false;
    if (same && !k->shared) {
        begin_notes(k, begin, bytes);
        now = fingerprint(begin, bytes); /* what was written in between is not noted */
        if (k->noted && !cc_written_private(begin, bytes)) {
            forget(k);
            k->shared = true;
        }
    }
    return k->inner = now;
}

uint64_t cc_content_of(const void *memory, size_t bytes) {
    const char *at = memory, *begin = first_page(at), *end = last_page(at, bytes);
    if (bytes < FOLLOWED || !cc_written_told()) return fingerprint(at, bytes);
    pthread_mutex_lock(&lock);
    bool met;
    Known *k = find(at, bytes, &met);
    k->used = true;
    const uint64_t inner = inner_of(k, met, begin, (size_t)(end - begin));
    pthread_mutex_unlock(&lock);
    const uint64_t head = of_chunk(at, (size_t)(begin - at), 1), tail = of_chunk(end, (size_t)(at + bytes - end), 2);
    return mix(mix(inner + head) ^ tail);
}

bool cc_content_told(void) { return cc_written_told(); }
