/* written: which memory was written, told by the kernel's page tables: Linux 6.7's userfaultfd, whose write protection
 * is taken off a page by the first write to it, unseen and without a message to anybody, and PAGEMAP_SCAN, which looks
 * where it is off (34 us for 100 MB, Zen 4). Whoever writes is seen: any code of this process, system calls, other
 * processes' ptrace. Not seen are other mappings of the same memory, so it has to be private and no file's; and devices
 * that write to memory which a driver has pinned.
 *
 * A range's state is one for all who ask. What is unmapped and mapped again is not followed, and counts as written; in a
 * child of fork nothing is followed at first. Elsewhere (older kernels, containers that forbid userfaultfd), nothing is
 * ever told. The numbers are of the kernel's interface (userfaultfd(2), PAGEMAP_SCAN): headers may be older. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base.h"

#ifndef SYS_userfaultfd
#    define SYS_userfaultfd -1
#endif

enum {
    USER_MODE_ONLY = 1,
    VERSION = 0xAA,
    PROTECTS = 2,          /* UFFDIO_REGISTER_MODE_WP */
    PAGE_WRITTEN = 1 << 1, /* PAGE_IS_WRITTEN */
    PAGE_OF_FILE = 1 << 2, /* PAGE_IS_FILE */
    PROTECT_MATCHING = 1,  /* PM_SCAN_WP_MATCHING */
    ONLY_FOLLOWED = 1 << 1 /* PM_SCAN_CHECK_WPASYNC: else the scan fails */
};
#define FEATURES                                                                                                       \
    (UINT64_C(1) << 0 | UINT64_C(1) << 13 | UINT64_C(1) << 15) /* PAGEFAULT_FLAG_WP, WP_UNPOPULATED, WP_ASYNC */

typedef struct Api {
    uint64_t api, features, ioctls;
} Api;
typedef struct Registering {
    uint64_t start, len, mode, ioctls;
} Registering;
typedef struct Range {
    uint64_t start, len;
} Range;
typedef struct Found {
    uint64_t start, end, categories;
} Found;
typedef struct Scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
} Scan;
#define UFFD_API _IOWR(0xAA, 0x3F, Api)
#define UFFD_REGISTER _IOWR(0xAA, 0x00, Registering)
#define UFFD_UNREGISTER _IOR(0xAA, 0x01, Range)
#define SCAN _IOWR('f', 16, Scan)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool asked, told;
    int faults, pages; /* userfaultfd, /proc/self/pagemap */
} kernel = {.faults = -1, .pages = -1};

/* What is open is the parent's memory. */
static void forked(void) {
    pthread_mutex_init(&lock, NULL);
    if (kernel.faults >= 0) close(kernel.faults);
    if (kernel.pages >= 0) close(kernel.pages);
    kernel.faults = kernel.pages = -1;
    kernel.asked = kernel.told = false;
}

static void ask(void) {
    static bool watched;
    const char *wanted = getenv("CCOMPILE_WRITTEN");
    kernel.asked = true;
    if (!watched && pthread_atfork(NULL, NULL, forked) != 0) return;
    watched = true;
    if (wanted && strcmp(wanted, "0") == 0) return;
    kernel.faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
    if (kernel.faults < 0) return;
    Api api = {.api = VERSION, .features = FEATURES};
    if (ioctl(kernel.faults, UFFD_API, &api) < 0) return;
    kernel.pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    kernel.told = kernel.pages >= 0;
}

bool cc_written_told(void) {
    pthread_mutex_lock(&lock);
    if (!kernel.asked) ask();
    const bool told = kernel.told;
    pthread_mutex_unlock(&lock);
    return told;
}

static Scan scan_of(const void *at, size_t bytes) {
    return (Scan){.size = sizeof(Scan), .start = (uintptr_t)at, .end = (uintptr_t)at + bytes};
}

/* Is there such a page? Also if that can't be told. */
static bool finds(const void *at, size_t bytes, uint64_t category) {
    Found first;
    Scan s = scan_of(at, bytes);
    s.flags = ONLY_FOLLOWED;
    s.vec = (uintptr_t)&first;
    s.vec_len = s.max_pages = 1;
    s.category_mask = s.return_mask = category;
    return ioctl(kernel.pages, SCAN, &s) != 0 || s.walk_end != s.end;
}

bool cc_written_since(const void *at, size_t bytes) { return !cc_written_told() || finds(at, bytes, PAGE_WRITTEN); }

int cc_written_begin(const void *at, size_t bytes) {
    if (!cc_written_told()) return -1;
    Registering r = {.start = (uintptr_t)at, .len = bytes, .mode = PROTECTS};
    if (ioctl(kernel.faults, UFFD_REGISTER, &r) < 0) return -1;
    Scan s = scan_of(at, bytes);
    s.flags = PROTECT_MATCHING | ONLY_FOLLOWED;
    s.category_mask = PAGE_WRITTEN;
    return ioctl(kernel.pages, SCAN, &s) < 0 || s.walk_end != s.end ? -1 : 0;
}

bool cc_written_private(const void *at, size_t bytes) { return cc_written_told() && !finds(at, bytes, PAGE_OF_FILE); }

void cc_written_end(const void *at, size_t bytes) {
    Range r = {.start = (uintptr_t)at, .len = bytes};
    if (cc_written_told()) (void)ioctl(kernel.faults, UFFD_UNREGISTER, &r);
}
