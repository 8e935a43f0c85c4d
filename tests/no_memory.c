/* Preloaded by tests/no_memory.py: the n-th allocation fails, of those that ccompile._core makes of the C library, or of
 * those that anybody makes of CPython's allocators. Or it succeeds, and a SIGINT is pending from then on. An allocation is _core's if it returns into _core's code; what others
 * call on its behalf (CPython, torch, oneDNN) is theirs. glibc's own names stand behind those that are replaced here. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t n);
void *__libc_realloc(void *at, size_t n);
void *__libc_memalign(size_t alignment, size_t n);

static uintptr_t begin, end; /* of _core's code */
static atomic_long seen, first = -1, last;
static _Atomic uintptr_t where; /* what failed last returns to there, as an offset into the code */

void failing_code(uintptr_t from, uintptr_t to) { begin = from, end = to; }

/* Allocations number `from` to `to` - 1 fail, counted from now on from 1; from 0: none. */
void failing_arm(long from, long to) {
    where = 0;
    last = to;
    seen = 0;
    first = from;
}

long failing_disarm(void) {
    first = -1;
    return seen;
}

uintptr_t failing_where(void) { return where; }

static void (*interrupt)(int signal); /* PyErr_SetInterruptEx: called in place of a failure; NULL: allocations fail */

void failing_interrupts(void (*how)(int signal)) { interrupt = how; }

static bool counts(uintptr_t at) {
    enum { SIGNAL = 2 };
    if (first < 0) return false;
    const long n = atomic_fetch_add(&seen, 1) + 1;
    if (n < first || n >= last) return false;
    where = at;
    if (interrupt == NULL) return true;
    interrupt(SIGNAL);
    return false;
}

static bool fails(const void *caller) {
    const uintptr_t at = (uintptr_t)caller;
    if (at < begin || at >= end || !counts(at - begin)) return false;
    errno = ENOMEM;
    return true;
}

#define FAILS fails(__builtin_return_address(0))

void *malloc(size_t n) { return FAILS ? NULL : __libc_malloc(n); }
void *calloc(size_t count, size_t n) { return FAILS ? NULL : __libc_calloc(count, n); }
void *realloc(void *at, size_t n) { return FAILS ? NULL : __libc_realloc(at, n); }
void *aligned_alloc(size_t alignment, size_t n) { return FAILS ? NULL : __libc_memalign(alignment, n); }

int posix_memalign(void **at, size_t alignment, size_t n) {
    if (FAILS) return ENOMEM;
    void *made = __libc_memalign(alignment, n);
    if (made == NULL) return ENOMEM;
    *at = made;
    return 0;
}

char *strdup(const char *text) {
    const size_t n = strlen(text) + 1;
    char *made = FAILS ? NULL : __libc_malloc(n);
    return made != NULL ? memcpy(made, text, n) : NULL;
}

void *mmap(void *at, size_t n, int protection, int flags, int file, off_t offset) {
    return FAILS ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}

/* ---- CPython's: PyMemAllocatorEx, one for each domain ---- */

typedef struct Allocator {
    void *ctx;
    void *(*malloc)(void *ctx, size_t n);
    void *(*calloc)(void *ctx, size_t count, size_t n);
    void *(*realloc)(void *ctx, void *at, size_t n);
    void (*free)(void *ctx, void *at);
} Allocator;

static void *hooked_malloc(void *ctx, size_t n) {
    const Allocator *own = ctx;
    return counts(0) ? NULL : own->malloc(own->ctx, n);
}

static void *hooked_calloc(void *ctx, size_t count, size_t n) {
    const Allocator *own = ctx;
    return counts(0) ? NULL : own->calloc(own->ctx, count, n);
}

static void *hooked_realloc(void *ctx, void *at, size_t n) {
    const Allocator *own = ctx;
    return counts(0) ? NULL : own->realloc(own->ctx, at, n);
}

static void hooked_free(void *ctx, void *at) {
    const Allocator *own = ctx;
    own->free(own->ctx, at);
}

typedef void AllocatorFn(int domain, Allocator *of);

void failing_python(bool on, AllocatorFn *get, AllocatorFn *set) {
    enum { DOMAINS = 3 };
    static Allocator own[DOMAINS];
    for (int d = 0; d < DOMAINS; d++) {
        Allocator hook = {&own[d], hooked_malloc, hooked_calloc, hooked_realloc, hooked_free};
        if (on) get(d, &own[d]);
        set(d, on ? &hook : &own[d]);
    }
}
