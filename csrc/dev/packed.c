/* packed: weights that were copied into the form a primitive wants, kept from call to call.
 *
 * A copy is never changed: other weights, or another version of them, make a new one, and the old one goes with its
 * last reader.
 *
 * Large ones lie side by side in chunks of huge pages, and a chunk goes with its last one: most weights are smaller
 * than such a page (64x512x512 with weights in DRAM: 160 us on small pages, 154 on huge ones; Zen 4, 2 threads), and
 * one alone in it would waste the rest. What a chunk has not handed out is not touched. */
#include <pthread.h>
#include <stdatomic.h>

#include "dev_int.h"

enum {
    ALIGN = 64,
    HUGE_PAGE = 1 << 21,
    CHUNK = 1 << 24,
    LARGE = 1 << 16,
    FIRST = 64 /* bytes of a chunk that it needs itself */
};

struct CcPackChunk {
    size_t bytes, used;
    int packs; /* that lie in it and are alive; under `lock` */
};
_Static_assert(sizeof(CcPackChunk) <= FIRST, "a chunk's first pack lies behind it");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CcPackChunk *current; /* the one that has room, or NULL; under `lock` */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static void leave(CcPackChunk *chunk) {
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

CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version) {
    pthread_mutex_lock(&packed->lock);
    CcPack *pack = packed->now;
    if (pack && (pack->from != from || pack->version != version)) pack = NULL;
    if (pack) atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_unlock(&packed->lock);
    return pack;
}

/* ------------------------------------------------------------------ memory */

/* From the chunk that has room, or a new one. NULL: out of memory. */
static CcPack *carve(size_t bytes) {
    CcPack *pack = NULL;
    pthread_mutex_lock(&lock);
    if (!current || current->bytes - current->used < bytes) {
        const size_t whole = CC_MAX(CHUNK, round_up(FIRST + bytes, HUGE_PAGE));
        current = aligned_alloc(HUGE_PAGE, whole); /* the one before lives by its packs */
        if (current) {
            cc_pages_wish_huge(current, whole);
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

CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version) {
    const size_t rounded = round_up(sizeof(CcPack) + bytes, ALIGN);
    CcPack *pack = bytes < LARGE ? aligned_alloc(ALIGN, rounded) : carve(rounded);
    if (!pack) return NULL;
    if (bytes < LARGE) pack->chunk = NULL;
    pack->from = from;
    pack->version = version;
    atomic_init(&pack->readers, 1);
    return pack;
}

void cc_packed_keep(CcPacked *packed, CcPack *pack) {
    atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_lock(&packed->lock);
    CcPack *before = packed->now;
    packed->now = pack;
    pthread_mutex_unlock(&packed->lock);
    cc_packed_done(before);
}

void cc_packed_done(CcPack *pack) {
    if (!pack || atomic_fetch_sub(&pack->readers, 1) != 1) return;
    if (pack->chunk) leave(pack->chunk);
    else free(pack);
}
