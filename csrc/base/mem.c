/* Small allocations that callers have no way to do without. A reserve of a few MB of address space is set aside for the
 * case that memory runs out; it is then unmapped, so that the current call can finish. The next call begins by setting
 * it aside again, and runs eagerly if that fails. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base.h"

enum { RESERVE = 4 << 20 }; /* CPython's arenas for small objects are 1 MB each */

static _Atomic(void *) reserve; /* never touched, so no page of it is resident */
static _Atomic bool low;

bool cc_mem_low(void) { return atomic_load_explicit(&low, memory_order_relaxed); }

bool cc_mem_reserve(void) {
    void *at = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return false;
    void *before = atomic_exchange(&reserve, at);
    if (before != NULL) munmap(before, RESERVE);
    atomic_store(&low, false);
    return true;
}

bool cc_mem_release_reserve(void) {
    atomic_store(&low, true);
    void *at = atomic_exchange(&reserve, NULL);
    return at != NULL && munmap(at, RESERVE) == 0;
}

void cc_mem_exhausted(const char *what) {
    fprintf(stderr, "ccompile: out of memory (%s), and the reserve is used up\n", what);
    abort();
}

void *cc_mem_get(size_t n) {
    void *p = calloc(1, n + (n == 0));
    while (p == NULL && cc_mem_release_reserve()) p = calloc(1, n);
    if (p == NULL) cc_mem_exhausted("a small block");
    return p;
}

char *cc_mem_text(const char *text) {
    const size_t n = strlen(text) + 1;
    return memcpy(cc_mem_get(n), text, n);
}

void *cc_mem_grow(void *at, size_t n) {
    void *p;
    do p = realloc(at, n); /* `at` stays valid if it fails */
    while (p == NULL && cc_mem_release_reserve());
    if (p == NULL) cc_mem_exhausted("a growing array");
    return p;
}

int64_t cc_mem_resident(void) {
    char text[128] = "";
    long long pages = 0;
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && sscanf(text, "%*s %lld", &pages) == 1 ? pages * sysconf(_SC_PAGESIZE) : 0;
}
