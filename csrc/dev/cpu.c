/* cpu: detects the vector width of this machine. CCOMPILE_CPU=avx2 (or base) restricts it, to test what other machines
 * run; CCOMPILE_LIBMVEC=0 disables glibc's vector math functions. */
#include <cpuid.h>
#include <pthread.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dev.h"

enum {
    CACHE_LINE = 64,
    UNTOLD_CACHE = 1 << 20, /* if the system does not tell its size */
    PAGE = 4096,
    PAGES = 4096 /* more than a core's translation cache holds (2,048 on Golden Cove, 3,072 on Zen 4) */
};

static CcCpu cpu;
static bool flushes_unordered; /* it has clflushopt */
static void *mvec;

/* Does the environment restrict oneDNN to an ISA below AVX-512? As in oneDNN (getenv_string_user, init_max_cpu_isa). */
static bool onednn_is_restricted(void) {
    static const char *const ISA[] = {"sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2"};
    const char *wish = getenv("ONEDNN_MAX_CPU_ISA");
    if (!wish || !*wish) wish = getenv("DNNL_MAX_CPU_ISA");
    for (int i = 0; wish && i < CC_COUNT(ISA); i++)
        if (strcasecmp(wish, ISA[i]) == 0) return true;
    return false;
}

static void detect(void) {
    int level = 0; /* 0 base, 1 avx2, 2 avx512 */
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) level = 1;
    if (level && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        level = 2;
    unsigned a = 0, b = 0, c = 0, d = 0;
    flushes_unordered = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT);
#endif
    cpu.wide_torch = level == 2 && !onednn_is_restricted();
    static const char *const NAME[] = {"base", "avx2", "avx512"};
    const char *wish = getenv("CCOMPILE_CPU");
    for (int i = 0; wish && i < level; i++)
        if (strcmp(wish, NAME[i]) == 0) {
            level = i;
            cpu.narrowed = true;
        }
    cpu.name = NAME[level];
    cpu.vector_bytes = 16 << level;
    cpu.f16 = level > 0; /* every CPU with AVX2 has F16C */
    const char *off = getenv("CCOMPILE_LIBMVEC");
    if (!off || strcmp(off, "0") != 0) mvec = cc_dl_open("libmvec.so.1", false, NULL);
}

#if defined(__x86_64__)
static CcSbuf described;

/* All that LLVM reads: vendor, model, and the instruction sets that the CPU has and the OS enables. */
static void describe(void) {
    static const unsigned LEAF[][2] = {{0, 0},    {1, 0},    {7, 0},    {7, 1},          {0xd, 0},       {0xd, 1},
                                       {0x14, 0}, {0x19, 0}, {0x24, 0}, {0x80000001, 0}, {0x80000008, 0}};
    cc_sbuf_add(&described, "%s%s", cc_cpu_info()->name, cc_cpu_info()->narrowed ? " narrowed" : "");
    for (int i = 0; i < CC_COUNT(LEAF); i++) {
        unsigned a = 0, b = 0, c = 0, d = 0;
        __get_cpuid_count(LEAF[i][0], LEAF[i][1], &a, &b, &c, &d);
        if (LEAF[i][0] == 1) b = 0;                  /* holds the APIC id, which differs between cores */
        if (LEAF[i][0] == 0xd) b = 0;                /* bytes of state currently enabled */
        if (LEAF[i][0] == 0x80000008) a = c = d = 0; /* keeps only the feature bits */
        cc_sbuf_add(&described, " %x.%x.%x.%x", a, b, c, d);
    }
    unsigned low = 0, high = 0, a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE) __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    cc_sbuf_add(&described, " %x.%x", low, high);
}

/* Once, as each kernel's key holds it: on a virtual machine every CPUID instruction is an exit to the host, and all of
 * them take 180 us (Xeon, KVM). */
void cc_cpu_describe(CcSbuf *out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, describe);
    cc_sbuf_add(out, "%s", cc_sbuf_text(&described));
}
#endif

int64_t cc_cpu_core_cache_bytes(void) {
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? bytes : UNTOLD_CACHE;
}

#if defined(__x86_64__)
/* Not ordered among themselves: several times as fast as clflush. */
__attribute__((target("clflushopt"))) static void flush_unordered(const char *at, int64_t n) {
    for (int64_t i = 0; i < n; i += CACHE_LINE) __builtin_ia32_clflushopt(at + i);
}

static void flush_ordered(const char *at, int64_t n) {
    for (int64_t i = 0; i < n; i += CACHE_LINE) __builtin_ia32_clflush(at + i);
}
#endif

void cc_cpu_evict(const void *at, int64_t n) {
#if defined(__x86_64__)
    cc_cpu_info();
    if (n <= 0) return;
    (flushes_unordered ? flush_unordered : flush_ordered)(at, n);
    __builtin_ia32_clflush((const char *)at + n - 1);
    __builtin_ia32_mfence();
#else
    (void)at, (void)n;
#endif
}

/* Only read, all its pages are the system's zero page, and take no memory. */
static const volatile char *zeros;

static void map_zeros(void) {
    void *at = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    madvise(at, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE);
    zeros = at;
}

void cc_cpu_evict_pages(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, map_zeros);
    for (int i = 0; zeros && i < PAGES; i++) (void)zeros[(int64_t)i * PAGE];
}

const CcCpu *cc_cpu_info(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect);
    return &cpu;
}

void *cc_cpu_vector_function(const char *name) {
    cc_cpu_info();
    return mvec ? cc_dl_symbol(mvec, name) : NULL;
}

bool cc_cpu_has_vector_function(const char *name) { return cc_cpu_vector_function(name) != NULL; }
