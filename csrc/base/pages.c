/* What the kernel is told about memory. */
#include <malloc.h>
#include <sys/mman.h>

#include "base.h"

enum { HUGE_PAGE = 1 << 21 };

/* Only pages that lie in the block as a whole: nothing else gets larger. */
void cc_pages_wish_huge(void *at, size_t bytes) {
    const uintptr_t mask = HUGE_PAGE - 1, begin = ((uintptr_t)at + mask) & ~mask, end = ((uintptr_t)at + bytes) & ~mask;
    if (begin < end) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void cc_pages_trim(void) { malloc_trim(0); }
