/* cudatune: measures block size and vector width of GPU kernels (the knob autotune).
 *
 * Each candidate runs on memory of its own that is all 0: so indices are in range, and numbers cost what others
 * cost. The key of a choice is the kernel's own text and the powers of two of its sizes, per GPU architecture and
 * number of processors; it serves the process and is kept on disk beside the machine code. All candidates of a graph
 * are one program. */
#include <pthread.h>

#include "run_int.h"

static const CcCudaTuning CANDIDATE[] = {/* the printer's own choice comes first */
                                         {0, 0},    {64, 0}, {128, 0}, {256, 0}, {512, 0},
                                         {1024, 0}, {0, 1},  {0, 2},   {0, 4},   {0, 8}};
enum { N = CC_COUNT(CANDIDATE), ALIGN = 256 };
static const int64_t MOST_BYTES = (int64_t)1 << 30; /* larger kernels keep the printer's choice */
/* a candidate must take at most this share of the printer's time; less is noise */
static const float GAIN = 0.97F;

typedef struct Choice {
    const CcCudaDevice *device;
    char *key;
    CcCudaTuning tuning;
} Choice;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Choice) choices;

static int bits(int64_t n) { return n > 0 ? 64 - __builtin_clzll((unsigned long long)n) : 0; }

static char *key_of(const CcCudaDevice *device, const CcLoop *loop) {
    CcSbuf sb = {0};
    const char *nvrtc = cc_nvrtc_describe();
    cc_sbuf_add(&sb, "// %s, sm_%d, %d processors, sizes of bits", nvrtc ? nvrtc : "", device->arch,
                device->processors);
    for (int d = 0; d < loop->ndim; d++) cc_sbuf_add(&sb, " %d", bits(loop->size[d]));
    cc_sbuf_add(&sb, "\n");
    cc_cudakernel_text(loop, &CANDIDATE[0], &sb);
    return sb.text;
}

static const Choice *find(const CcCudaDevice *device, const char *key) {
    for (int i = 0; i < choices.n; i++)
        if (choices.at[i].device == device && strcmp(choices.at[i].key, key) == 0) return &choices.at[i];
    return NULL;
}

static void keep(const CcCudaDevice *device, const char *key, const CcCudaTuning *tuning) {
    cc_vec_push(&choices, (Choice){device, cc_mem_text(key), *tuning});
}

static bool on_disk(const CcCudaDevice *device, const char *key) {
    CcBlob blob;
    CcCudaTuning tuning;
    if (!cc_disk_get(CC_DISK_TUNING, key, strlen(key), &blob)) return false;
    bool found = false;
    if (blob.n == sizeof tuning) memcpy(&tuning, blob.at, sizeof tuning);
    for (int i = 0; i < N && blob.n == sizeof tuning; i++)
        found = found || memcmp(&CANDIDATE[i], &tuning, sizeof tuning) == 0;
    free(blob.at);
    if (found) keep(device, key, &tuning);
    return found;
}

/* ------------------------------------------------------------------ measuring */

/* Bytes before and after an access's first element that the loop may touch. */
static void reach_of(const CcLoop *loop, int a, int64_t *before, int64_t *from) {
    *before = 0;
    *from = cc_dtype_size(loop->access[a].dtype);
    for (int d = 0; d < loop->ndim; d++) {
        const int64_t by = (loop->size[d] - 1) * loop->stride[a][d];
        *(by < 0 ? before : from) += by < 0 ? -by : by;
    }
}

/* Places the accesses behind one another in `memory` -> their total bytes. */
static int64_t place_all(const CcLoop *loop, char *memory, char **at) {
    int64_t top = 0, before, from;
    for (int a = 0; a < loop->n_access; a++) {
        at[a] = NULL;
        if (loop->access[a].place || loop->access[a].number) continue;
        reach_of(loop, a, &before, &from);
        top += (before + ALIGN - 1) / ALIGN * ALIGN;
        at[a] = memory ? memory + top : NULL;
        top += (from + ALIGN - 1) / ALIGN * ALIGN;
    }
    return top;
}

/* The candidates that change this kernel. */
static int distinct(const CcOnDevice *on, const CcLoop *loop, CcArena *arena, CcCudaWork **work, CcCudaTuning *tuning) {
    CcCudaLaunch seen[N];
    int n = 0;
    CcErr ignored;
    for (int i = 0; i < N; i++) {
        CcCudaLaunch sizes;
        cc_gen_cuda_launch(loop, &CANDIDATE[i], on->cuda->processors, &sizes);
        sizes.tuning = (CcCudaTuning){0, 0};
        bool known = false;
        for (int k = 0; k < n && !known; k++) known = memcmp(&seen[k], &sizes, sizeof sizes) == 0;
        if (known) continue;
        work[n] = cc_cudalaunch_make(on, loop, &CANDIDATE[i], arena, &ignored);
        seen[n] = sizes;
        tuning[n] = CANDIDATE[i];
        if (work[n]) n++;
        else if (i == 0) return 0;
    }
    return n;
}

static void tell(const CcLoop *loop, const CcCudaTuning *best, float least, float own) {
    CcSbuf sb = {0};
    for (int d = 0; d < loop->ndim; d++) cc_sbuf_add(&sb, "%s%lld", d ? "x" : "", (long long)loop->size[d]);
    if (!best->threads && !best->vector) cc_sbuf_add(&sb, ": default");
    if (best->threads) cc_sbuf_add(&sb, ": blocks of %d threads", best->threads);
    if (best->vector) cc_sbuf_add(&sb, ": %d elements at once", best->vector);
    cc_log_add(CC_LOG_CHOICE, "CUDA kernel of %s (%.1f us, default %.1f us)", cc_sbuf_text(&sb), (double)least * 1e3,
               (double)own * 1e3);
    cc_sbuf_free(&sb);
}

/* The best candidate; false: it could not be measured. */
static bool measure(const CcOnDevice *on, const CcLoop *loop, CcArena *arena, CcCudaTuning *best) {
    CcCudaWork *work[N];
    CcCudaTuning tuning[N];
    CcErr ignored;
    char *at[CC_LOOP_MAX_ACCESS];
    double number[CC_LOOP_MAX_ACCESS];
    for (int a = 0; a < loop->n_access; a++) number[a] = 1;
    const int n = distinct(on, loop, arena, work, tuning);
    int64_t scratch = 0;
    for (int i = 0; i < n; i++) scratch = CC_MAX(scratch, cc_cudalaunch_workspace(work[i]));
    const int64_t bytes = place_all(loop, NULL, at);
    if (n == 0 || bytes + scratch > MOST_BYTES) return false;
    CcCudaBench *bench = cc_cuda_bench(on->cuda, bytes + scratch + ALIGN, &ignored);
    if (!bench) return false;
    char *memory = cc_cuda_bench_memory(bench);
    place_all(loop, memory, at);
    float own = 0, least = 0;
    bool any = false;
    for (int i = 0; i < n; i++) {
        float ms = 0;
        if (cc_cudalaunch_time(work[i], loop, bench, at, number, memory + bytes, &ms, &ignored) < 0) {
            if (i == 0) break;
            continue;
        }
        if (i == 0) own = least = ms, *best = tuning[0], any = true;
        else if (ms < least && ms < own * GAIN) least = ms, *best = tuning[i];
    }
    cc_cuda_bench_close(bench);
    if (any) tell(loop, best, least, own);
    return any;
}

/* ------------------------------------------------------------------ */

/* Compiles the candidates of all unknown kernels as one program. */
static void compile_candidates(const CcOnDevice *on, const CcLoop *const *loops, char *const *key, int n) {
    CC_VEC(const CcLoop *) all = {0};
    CC_VEC(CcCudaTuning) tunings = {0};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < N && !find(on->cuda, key[i]); k++) {
            cc_vec_push(&all, loops[i]);
            cc_vec_push(&tunings, CANDIDATE[k]);
        }
    cc_cudakernel_need(on->cuda, all.at, tunings.at, all.n);
    cc_vec_free(&all);
    cc_vec_free(&tunings);
}

static void choose(const CcOnDevice *on, const CcLoop *const *loops, char **key, CcCudaTuning *out, int n) {
    bool all = true;
    for (int i = 0; i < n; i++) {
        key[i] = key_of(on->cuda, loops[i]);
        all = (find(on->cuda, key[i]) || on_disk(on->cuda, key[i])) && all;
    }
    CcArena *arena = all ? NULL : cc_arena_new();
    if (arena) compile_candidates(on, loops, key, n);
    for (int i = 0; i < n; i++) {
        const Choice *c = find(on->cuda, key[i]);
        if (!c && arena) {
            CcCudaTuning best = CANDIDATE[0];
            if (measure(on, loops[i], arena, &best))
                cc_disk_put(CC_DISK_TUNING, key[i], strlen(key[i]), &(CcBlob){(char *)&best, sizeof best});
            keep(on->cuda, key[i], &best);
            c = find(on->cuda, key[i]);
        }
        out[i] = c ? c->tuning : CANDIDATE[0];
    }
    if (arena) cc_arena_free(arena);
}

void cc_cudatune_choose(const CcOnDevice *on, const CcLoop *const *loops, CcCudaTuning *out, int n) {
    char **key = calloc((size_t)n + 1, sizeof *key);
    if (!key) return;
    pthread_mutex_lock(&lock);
    choose(on, loops, key, out, n);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n; i++) free(key[i]);
    free(key);
}
