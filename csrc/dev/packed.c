/* packed: weights that were copied into the form a primitive wants, kept from call to call.
 *
 * A copy is never changed: other weights, or another version of them, make a new one, and the old one goes with its last
 * reader. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "dev_int.h"

enum { HUGE_PAGE = 1 << 21 };

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

CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version) {
    pthread_mutex_lock(&packed->lock);
    CcPack *pack = packed->now;
    if (pack && (pack->from != from || pack->version != version)) pack = NULL;
    if (pack) atomic_fetch_add(&pack->readers, 1);
    pthread_mutex_unlock(&packed->lock);
    return pack;
}

CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version) {
    const size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64, rounded = (sizeof(CcPack) + bytes + align - 1) / align * align;
    CcPack *pack = aligned_alloc(align, rounded);
    if (!pack) return NULL;
    if (align == HUGE_PAGE) madvise(pack, rounded, MADV_HUGEPAGE); /* a wish: without it pages are small */
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
    if (pack && atomic_fetch_sub(&pack->readers, 1) == 1) free(pack);
}
