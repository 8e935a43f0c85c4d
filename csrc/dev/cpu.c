/* cpu: which vectors this machine has. CCOMPILE_CPU=avx2 (or base) narrows it, to test what other
 * machines run; CCOMPILE_LIBMVEC=0 does without glibc's vector functions. */
#include <pthread.h>

#include "dev.h"

static CcCpu cpu;
static void *mvec;

static void detect(void) {
    int level = 0; /* 0 base, 1 avx2, 2 avx512 */
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) level = 1;
    if (level && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        level = 2;
#endif
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

const CcCpu *cc_cpu_info(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect);
    return &cpu;
}

bool cc_cpu_has_vector_function(const char *name) {
    cc_cpu_info();
    return mvec && cc_dl_symbol(mvec, name);
}
