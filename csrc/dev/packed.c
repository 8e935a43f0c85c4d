/* packed: weights that were copied into the form a primitive wants, kept from call to call.
 *
 * A copy is never changed: other weights, or another version of them, make a new one, and the old one goes with its
 * last reader. Those that others may share stand on shelves until then.
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
    FIRST = 64, /* bytes of a chunk that it needs itself */
    SHELVES = 1024
};

struct CcPackChunk {
    size_t bytes, used;
    int packs; /* that lie in it and are alive; under `lock` */
};
_Static_assert(sizeof(CcPackChunk) <= FIRST, "a chunk's first pack lies behind it");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CcPackChunk *current;   /* the one that has room, or NULL; under `lock` */
static CcPack *shelf[SHELVES]; /* by what they are made from; under `lock` */

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

/* ------------------------------------------------------------------ shelves */

static CcPack **shelf_of(const void *from, uint64_t version) {
    const uint64_t at[] = {(uint64_t)(uintptr_t)from, version};
    return &shelf[cc_map_hash(at, sizeof at, 0) % SHELVES];
}

static bool may_share(uint64_t version) { return version >= CC_VERSION_UNIQUE && version != UINT64_MAX; }

/* One more reader, unless the last one has just gone. */
static bool read_too(CcPack *pack) {
    int n = atomic_load(&pack->readers);
    while (n > 0 && !atomic_compare_exchange_weak(&pack->readers, &n, n + 1)) {}
    return n > 0;
}

static CcPack *find_shared(const void *from, uint64_t version, const CcPackForm *form) {
    pthread_mutex_lock(&lock);
    CcPack *pack = *shelf_of(from, version);
    while (pack && (pack->from != from || pack->version != version || memcmp(&pack->form, form, sizeof *form) != 0 ||
                    !read_too(pack)))
        pack = pack->next;
    pthread_mutex_unlock(&lock);
    return pack;
}

static void put_on_shelf(CcPack *pack) {
    CcPack **at = shelf_of(pack->from, pack->version);
    pthread_mutex_lock(&lock);
    if (!pack->shelved) {
        pack->next = *at;
        *at = pack;
        pack->shelved = true;
    }
    pthread_mutex_unlock(&lock);
}

static void take_from_shelf(CcPack *pack) {
    CcPack **at = shelf_of(pack->from, pack->version);
    pthread_mutex_lock(&lock);
    if (pack->shelved) {
        while (*at != pack) at = &(*at)->next;
        *at = pack->next;
        pack->shelved = false;
    }
    pthread_mutex_unlock(&lock);
}

/* With a reader more. Where memory was exchanged under the same tensor (`.data`), nobody new finds the copy before. */
static void hold(CcPacked *packed, CcPack *pack) {
    atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_lock(&packed->lock);
    CcPack *before = packed->now;
    packed->now = pack;
    pthread_mutex_unlock(&packed->lock);
    if (before && before->version == pack->version && before->from != pack->from) take_from_shelf(before);
    cc_packed_done(before);
}

CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version, const CcPackForm *form) {
    pthread_mutex_lock(&packed->lock);
    CcPack *pack = packed->now;
    if (pack && (pack->from != from || pack->version != version)) pack = NULL;
    if (pack) atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_unlock(&packed->lock);
    if (pack || !may_share(version)) return pack;
    pack = find_shared(from, version, form);
    if (pack) hold(packed, pack);
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

CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version, const CcPackForm *form) {
    const size_t rounded = round_up(sizeof(CcPack) + bytes, ALIGN);
    CcPack *pack = bytes < LARGE ? aligned_alloc(ALIGN, rounded) : carve(rounded);
    if (!pack) return NULL;
    if (bytes < LARGE) pack->chunk = NULL;
    pack->from = from;
    pack->version = version;
    pack->form = *form;
    pack->shelved = false;
    atomic_init(&pack->readers, 1);
    return pack;
}

void cc_packed_keep(CcPacked *packed, CcPack *pack) {
    if (may_share(pack->version)) put_on_shelf(pack);
    hold(packed, pack);
}

void cc_packed_done(CcPack *pack) {
    if (!pack || atomic_fetch_sub(&pack->readers, 1) != 1) return;
    if (may_share(pack->version)) take_from_shelf(pack);
    if (pack->chunk) leave(pack->chunk);
    else free(pack);
}
