/* Advice to the kernel about memory. */
#include <malloc.h>
#include <sys/mman.h>

#include "base.h"

enum { HUGE_PAGE = 1 << 21 };

/* Only huge pages that lie entirely within the block, so that its neighbours do not grow. */
void cc_pages_advise_huge(void *at, size_t bytes) {
    const uintptr_t mask = HUGE_PAGE - 1, begin = ((uintptr_t)at + mask) & ~mask, end = ((uintptr_t)at + bytes) & ~mask;
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void cc_pages_trim(void) { malloc_trim(0); }
