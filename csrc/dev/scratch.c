/* scratch: temporary memory of a call.
 *
 *   blocks       belong to a call; any thread may use them. One spare block waits for the next call: its pages are mapped
 *                and its latest contents may still be cached.
 *   thread       belongs to one thread, until its next request. */
#include <pthread.h>
#include <stdatomic.h>

#include "dev.h"

enum { ALIGN = 64, PAGE = 4096, HUGE_PAGE = 1 << 21, KEEP_THREAD = 1 << 22, KEEP = 1 << 28 };

static _Atomic(CcScratch *) spare;

CcScratch *cc_scratch_take(size_t bytes) {
    CcScratch *block = atomic_exchange(&spare, NULL);
    if (block && block->bytes >= bytes) return block;
    free(block);
    /* rounds to small pages: rounding to huge pages would hold up to 2 MiB unused */
    const size_t rounded = (sizeof *block + bytes + PAGE - 1) / PAGE * PAGE;
    void *at = NULL;
    if (posix_memalign(&at, bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE, rounded)) return NULL;
    block = at;
    cc_pages_advise_huge(block, rounded);
    block->bytes = rounded - sizeof *block;
    return block;
}

void cc_scratch_give(CcScratch *block) {
    if (!block) return;
    free(block->bytes > KEEP ? block : atomic_exchange(&spare, block));
}

void cc_scratch_trim(void) { free(atomic_exchange(&spare, NULL)); }

/* ------------------------------------------------------------------ per thread, freed when it exits */

static _Thread_local struct {
    void *at;
    size_t bytes;
} mine;
static pthread_key_t key;
static bool has_key;

static void make_key(void) { has_key = pthread_key_create(&key, free) == 0; }

static void set_mine(void *at, size_t bytes) {
    free(mine.at);
    mine.at = at;
    mine.bytes = at ? bytes : 0;
    pthread_setspecific(key, at);
}

void *cc_scratch_thread(size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (bytes <= mine.bytes) return mine.at;
    pthread_once(&once, make_key);
    if (!has_key) return NULL;
    set_mine(NULL, 0); /* frees the old memory first: never holds both */
    set_mine(aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN), bytes);
    return mine.at;
}

void cc_scratch_thread_trim(void) {
    if (mine.bytes > KEEP_THREAD) set_mine(NULL, 0);
}
