/* Small memory that the code which asks for it has no way to do without. A few MB of address space are kept for the
 * case that there is no more; they are given back to the process then, so that the call at hand comes to its end. The
 * next one begins by keeping them anew, and is not compiled where that fails. */
#include <stdatomic.h>
#include <sys/mman.h>

#include "base.h"

enum { RESERVE = 4 << 20 }; /* CPython takes memory for small objects by the MB */

static _Atomic(void *) reserve; /* never touched: no page of it is there */
static _Atomic bool low;

bool cc_mem_low(void) { return atomic_load_explicit(&low, memory_order_relaxed); }

bool cc_mem_keep(void) {
    void *at = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return false;
    void *before = atomic_exchange(&reserve, at);
    if (before != NULL) munmap(before, RESERVE);
    atomic_store(&low, false);
    return true;
}

bool cc_mem_relieve(void) {
    atomic_store(&low, true);
    void *at = atomic_exchange(&reserve, NULL);
    return at != NULL && munmap(at, RESERVE) == 0;
}

void cc_mem_lost(const char *what) {
    fprintf(stderr, "ccompile: out of memory (%s), and the reserve is used up\n", what);
    abort();
}

void *cc_mem_get(size_t n) {
    void *p = calloc(1, n + (n == 0));
    while (p == NULL && cc_mem_relieve()) p = calloc(1, n);
    if (p == NULL) cc_mem_lost("a small block");
    return p;
}

void *cc_mem_grow(void *at, size_t n) {
    void *p = realloc(at, n);
    while (p == NULL && cc_mem_relieve()) p = realloc(at, n);
    if (p == NULL) cc_mem_lost("a growing array");
    return p;
}
