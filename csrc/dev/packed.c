/* packed: weights packed into the layout of a primitive, kept between calls.
 *
 * A packed copy is immutable: other weights, or another version of them, get a new copy, and the old one is freed with
 * its last reference. Copies that others may share are published in a hash table until then.
 *
 * Large copies are carved from chunks of huge pages, since most weights are smaller than a huge page and one alone in
 * it would waste the rest (64x512x512 with weights in DRAM: 160 us on small pages, 154 on huge ones; Zen 4, 2 threads).
 * A chunk is freed with its last copy. The unused rest of a chunk is never touched, so it costs no memory. */
#include <pthread.h>
#include <stdatomic.h>

#include "dev_int.h"

enum {
    ALIGN = 64,
    HUGE_PAGE = 1 << 21,
    CHUNK = 1 << 24,
    LARGE = 1 << 16, /* least bytes of a copy in a chunk */
    FIRST = 64,      /* offset of a chunk's first copy, behind its header */
    BUCKETS = 1024
};

struct CcPackChunk {
    size_t bytes, used;
    int packs; /* live copies in it; under `lock` */
};
_Static_assert(sizeof(CcPackChunk) <= FIRST, "the first copy starts behind the chunk's header");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CcPackChunk *current;    /* the chunk to carve from, or NULL; under `lock` */
static CcPack *bucket[BUCKETS]; /* published copies by weights and version; under `lock` */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static void release_chunk(CcPackChunk *chunk) {
    pthread_mutex_lock(&lock);
    const bool last = --chunk->packs == 0;
    if (last && chunk == current) current = NULL;
    pthread_mutex_unlock(&lock);
    if (last) free(chunk);
}

struct CcPacked {
    pthread_mutex_t lock;
    CcPack *now;
};

CcPacked *cc_packed_new(void) {
    CcPacked *packed = calloc(1, sizeof *packed);
    if (packed) pthread_mutex_init(&packed->lock, NULL);
    return packed;
}

void cc_packed_free(CcPacked *packed) {
    if (!packed) return;
    cc_packed_done(packed->now);
    pthread_mutex_destroy(&packed->lock);
    free(packed);
}

void cc_packed_drop(CcPacked *packed) {
    if (!packed) return;
    pthread_mutex_lock(&packed->lock);
    CcPack *before = packed->now;
    packed->now = NULL;
    pthread_mutex_unlock(&packed->lock);
    cc_packed_done(before);
}

void cc_packed_evict(CcPacked *packed) {
    pthread_mutex_lock(&packed->lock);
    if (packed->now) cc_cpu_evict(packed->now->at, (int64_t)packed->now->bytes);
    pthread_mutex_unlock(&packed->lock);
}

/* ------------------------------------------------------------------ shared copies */

static CcPack **bucket_of(const void *from, uint64_t version) {
    const uint64_t at[] = {(uint64_t)(uintptr_t)from, version};
    return &bucket[cc_map_hash(at, sizeof at, 0) % BUCKETS];
}

static bool may_share(uint64_t version) { return version >= CC_VERSION_UNIQUE && version != UINT64_MAX; }

/* Takes a reference, unless the last one has just been dropped. */
static bool add_reader(CcPack *pack) {
    int n = atomic_load(&pack->readers);
    while (n > 0 && !atomic_compare_exchange_weak(&pack->readers, &n, n + 1)) {}
    return n > 0;
}

static CcPack *find_shared(const void *from, uint64_t version, const CcPackForm *form) {
    pthread_mutex_lock(&lock);
    CcPack *pack = *bucket_of(from, version);
    while (pack && (pack->from != from || pack->version != version || memcmp(&pack->form, form, sizeof *form) != 0 ||
                    !add_reader(pack)))
        pack = pack->next;
    pthread_mutex_unlock(&lock);
    return pack;
}

static void publish(CcPack *pack) {
    CcPack **at = bucket_of(pack->from, pack->version);
    pthread_mutex_lock(&lock);
    if (!pack->published) {
        pack->next = *at;
        *at = pack;
        pack->published = true;
    }
    pthread_mutex_unlock(&lock);
}

static void unpublish(CcPack *pack) {
    CcPack **at = bucket_of(pack->from, pack->version);
    pthread_mutex_lock(&lock);
    if (pack->published) {
        while (*at != pack) at = &(*at)->next;
        *at = pack->next;
        pack->published = false;
    }
    pthread_mutex_unlock(&lock);
}

/* Keeps the copy, with a reference. If the same version now has another address (`.data` was replaced), the previous
 * copy is stale: no new owner may find it. */
static void hold(CcPacked *packed, CcPack *pack) {
    atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_lock(&packed->lock);
    CcPack *before = packed->now;
    packed->now = pack;
    pthread_mutex_unlock(&packed->lock);
    if (before && before->version == pack->version && before->from != pack->from) unpublish(before);
    cc_packed_done(before);
}

CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version, const CcPackForm *form) {
    pthread_mutex_lock(&packed->lock);
    CcPack *pack = packed->now;
    if (pack && (pack->from != from || pack->version != version || memcmp(&pack->form, form, sizeof *form) != 0))
        pack = NULL;
    if (pack) atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_unlock(&packed->lock);
    if (pack || !may_share(version)) return pack;
    pack = find_shared(from, version, form);
    if (pack) hold(packed, pack);
    return pack;
}

/* ------------------------------------------------------------------ memory */

/* Carves a copy from the current chunk or a new one. NULL: out of memory. */
static CcPack *carve(size_t bytes) {
    CcPack *pack = NULL;
    pthread_mutex_lock(&lock);
    if (!current || current->bytes - current->used < bytes) {
        const size_t whole = CC_MAX(CHUNK, round_up(FIRST + bytes, HUGE_PAGE));
        current = aligned_alloc(HUGE_PAGE, whole); /* the copies in the previous chunk keep it alive */
        if (current) {
            cc_pages_advise_huge(current, whole);
            *current = (CcPackChunk){.bytes = whole, .used = FIRST};
        }
    }
    if (current) {
        pack = (CcPack *)((char *)current + current->used);
        pack->chunk = current;
        current->used += bytes;
        current->packs++;
    }
    pthread_mutex_unlock(&lock);
    return pack;
}

CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version, const CcPackForm *form) {
    const size_t rounded = round_up(sizeof(CcPack) + bytes, ALIGN);
    CcPack *pack = bytes < LARGE ? aligned_alloc(ALIGN, rounded) : carve(rounded);
    if (!pack) return NULL;
    if (bytes < LARGE) pack->chunk = NULL;
    pack->bytes = bytes;
    pack->from = from;
    pack->version = version;
    pack->form = *form;
    pack->published = false;
    atomic_init(&pack->readers, 1);
    return pack;
}

void cc_packed_keep(CcPacked *packed, CcPack *pack) {
    if (may_share(pack->version)) publish(pack);
    hold(packed, pack);
}

void cc_packed_done(CcPack *pack) {
    if (!pack || atomic_fetch_sub(&pack->readers, 1) != 1) return;
    if (may_share(pack->version)) unpublish(pack);
    if (pack->chunk) release_chunk(pack->chunk);
    else free(pack);
}
