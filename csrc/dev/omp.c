/* omp: runs our loops on torch's OpenMP threads. libgomp keeps one pool per calling thread, so calling its entry point
 * (GOMP_parallel, which compilers emit) reuses the threads that torch has started. Without libgomp: one thread. */
#include <pthread.h>
#include <stdatomic.h>

#include "dev.h"

static struct {
    void (*parallel)(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread_num)(void), (*num_threads)(void), (*in_parallel)(void), (*max_threads)(void);
    void (*set_threads)(int n);
} omp;
static atomic_int threads = 1;

static void find(void) {
    /* torch's copy may be renamed (libgomp-a34b3233.so.1) and local; global symbols let oneDNN bind to it. */
    void *handle = cc_dl_loaded("libgomp");
    const CcDlRow rows[] = {
        {"omp_get_thread_num", (void **)&omp.thread_num},   {"omp_get_num_threads", (void **)&omp.num_threads},
        {"omp_in_parallel", (void **)&omp.in_parallel},     {"omp_get_max_threads", (void **)&omp.max_threads},
        {"omp_set_num_threads", (void **)&omp.set_threads}, {"GOMP_parallel", (void **)&omp.parallel},
    };
    if (cc_dl_bind(handle, rows, CC_COUNT(rows), NULL) < 0) omp.parallel = NULL;
}

static bool ready(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    return omp.parallel != NULL;
}

void cc_omp_threads(int n) { atomic_store_explicit(&threads, n < 1 ? 1 : n, memory_order_relaxed); }

int cc_omp_width(void) { return ready() ? atomic_load_explicit(&threads, memory_order_relaxed) : 1; }

int cc_omp_limit(int n) {
    if (!ready()) return 1;
    const int before = omp.max_threads();
    if (n != before) omp.set_threads(n);
    return before;
}

struct Job {
    void (*work)(void *ctx, int64_t begin, int64_t end);
    void *ctx;
    int64_t n;
};

static void run_part(void *data) {
    const struct Job *job = data;
    const int64_t id = omp.thread_num(), parts = omp.num_threads();
    const int64_t begin = job->n * id / parts, end = job->n * (id + 1) / parts;
    if (begin < end) job->work(job->ctx, begin, end);
}

void cc_omp_run(void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx, int64_t n, int parts) {
    struct Job job = {work, ctx, n};
    if (parts > n) parts = (int)n;
    if (parts <= 1 || !ready() || omp.in_parallel()) work(ctx, 0, n);
    else omp.parallel(run_part, &job, (unsigned)parts, 0);
}

const char *cc_omp_describe(void) { return ready() ? "libgomp" : "no OpenMP"; }
