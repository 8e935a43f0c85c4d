/* scratch: a block of memory for what a call needs only while it runs. One block waits for the next call, of whatever
 * kind: what was written last is still in the caches, and memory is not held twice. */
#include <stdatomic.h>

#include "dev.h"

enum { PAGE = 4096 };
static const size_t KEEP_MAX = (size_t)1 << 26; /* bytes of a block that waits */
static _Atomic(CcScratch *) spare;

CcScratch *cc_scratch_take(size_t bytes) {
    CcScratch *block = atomic_exchange(&spare, NULL);
    if (block && block->bytes >= bytes) return block;
    free(block);
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    block = aligned_alloc(64, sizeof *block + bytes);
    if (block) block->bytes = bytes;
    return block;
}

void cc_scratch_give(CcScratch *block) {
    if (!block) return;
    free(block->bytes > KEEP_MAX ? block : atomic_exchange(&spare, block));
}

void cc_scratch_trim(void) { free(atomic_exchange(&spare, NULL)); }
