/* Finds out from the kernel's page tables whether memory has been written to. Linux 6.7's asynchronous userfaultfd
 * write-protects pages; the first write to a page silently lifts its protection, and PAGEMAP_SCAN finds the pages
 * without protection (34 us for 100 MB, Zen 4). It sees every writer: code of this process, system calls, ptrace from
 * other processes. It misses writes through other mappings of the same memory, so memory has to be private and
 * anonymous, and writes by devices to pages that a driver has pinned.
 *
 * All callers share the state of a range. Memory that was unmapped and mapped again is no longer tracked and counts as
 * written; a child of fork starts with nothing tracked. On older kernels, and in containers that forbid userfaultfd,
 * everything counts as written. The constants repeat the kernel's ABI (userfaultfd(2), PAGEMAP_SCAN) because installed
 * headers may be older. */
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
    WRITE_PROTECT = 2,     /* UFFDIO_REGISTER_MODE_WP */
    PAGE_WRITTEN = 1 << 1, /* PAGE_IS_WRITTEN */
    PAGE_OF_FILE = 1 << 2, /* PAGE_IS_FILE */
    PROTECT_MATCHING = 1,  /* PM_SCAN_WP_MATCHING */
    ONLY_TRACKED = 1 << 1  /* PM_SCAN_CHECK_WPASYNC: the scan fails on pages that are not tracked */
};
#define FEATURES                                                                                                       \
    (UINT64_C(1) << 0 | UINT64_C(1) << 13 | UINT64_C(1) << 15) /* PAGEFAULT_FLAG_WP, WP_UNPOPULATED, WP_ASYNC */

typedef struct Api {
    uint64_t api, features, ioctls;
} Api;
typedef struct Registration {
    uint64_t start, len, mode, ioctls;
} Registration;
typedef struct Range {
    uint64_t start, len;
} Range;
typedef struct PageRegion {
    uint64_t start, end, categories;
} PageRegion;
typedef struct Scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
} Scan;
#define UFFD_API _IOWR(0xAA, 0x3F, Api)
#define UFFD_REGISTER _IOWR(0xAA, 0x00, Registration)
#define UFFD_UNREGISTER _IOR(0xAA, 0x01, Range)
#define SCAN _IOWR('f', 16, Scan)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool probed, supported;
    int uffd, pagemap; /* userfaultfd, /proc/self/pagemap */
} kernel = {.uffd = -1, .pagemap = -1};

/* The open descriptors describe the parent's memory. */
static void forked(void) {
    pthread_mutex_init(&lock, NULL);
    if (kernel.uffd >= 0) close(kernel.uffd);
    if (kernel.pagemap >= 0) close(kernel.pagemap);
    kernel.uffd = kernel.pagemap = -1;
    kernel.probed = kernel.supported = false;
}

static void probe(void) {
    static bool registered;
    const char *wanted = getenv("CCOMPILE_WRITTEN");
    kernel.probed = true;
    if (!registered && pthread_atfork(NULL, NULL, forked) != 0) return;
    registered = true;
    if (wanted && strcmp(wanted, "0") == 0) return;
    kernel.uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | USER_MODE_ONLY);
    if (kernel.uffd < 0) return;
    Api api = {.api = VERSION, .features = FEATURES};
    if (ioctl(kernel.uffd, UFFD_API, &api) < 0) return;
    kernel.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    kernel.supported = kernel.pagemap >= 0;
}

bool cc_written_supported(void) {
    pthread_mutex_lock(&lock);
    if (!kernel.probed) probe();
    const bool supported = kernel.supported;
    pthread_mutex_unlock(&lock);
    return supported;
}

static Scan scan_of(const void *at, size_t bytes) {
    return (Scan){.size = sizeof(Scan), .start = (uintptr_t)at, .end = (uintptr_t)at + bytes};
}

/* Whether the range has a page of this category; true also if the kernel can't say. */
static bool any_page(const void *at, size_t bytes, uint64_t category) {
    PageRegion first;
    Scan s = scan_of(at, bytes);
    s.flags = ONLY_TRACKED;
    s.vec = (uintptr_t)&first;
    s.vec_len = s.max_pages = 1;
    s.category_mask = s.return_mask = category;
    return ioctl(kernel.pagemap, SCAN, &s) != 0 || s.walk_end != s.end;
}

bool cc_written_since(const void *at, size_t bytes) {
    return !cc_written_supported() || any_page(at, bytes, PAGE_WRITTEN);
}

int cc_written_begin(const void *at, size_t bytes) {
    if (!cc_written_supported()) return -1;
    Registration r = {.start = (uintptr_t)at, .len = bytes, .mode = WRITE_PROTECT};
    if (ioctl(kernel.uffd, UFFD_REGISTER, &r) < 0) return -1;
    Scan s = scan_of(at, bytes);
    s.flags = PROTECT_MATCHING | ONLY_TRACKED;
    s.category_mask = PAGE_WRITTEN;
    return ioctl(kernel.pagemap, SCAN, &s) < 0 || s.walk_end != s.end ? -1 : 0;
}

bool cc_written_private(const void *at, size_t bytes) {
    return cc_written_supported() && !any_page(at, bytes, PAGE_OF_FILE);
}

void cc_written_end(const void *at, size_t bytes) {
    Range r = {.start = (uintptr_t)at, .len = bytes};
    if (cc_written_supported()) (void)ioctl(kernel.uffd, UFFD_UNREGISTER, &r);
}
