/* cudalaunch: a GPU kernel at the sizes of its loop. Its argument is assembled once; a call only fills in pointers
 * and numbers. Launches on the host's current stream and does not wait. */
#include "run_int.h"

enum { NAME_BYTES = 40 };

struct CcCudaWork {
    CcOnDevice on;
    CcCudaLaunch sizes;
    CcCudaCall call[CC_CUDA_MAX_PARTS];
    char *argument; /* the parts that are the same in each call */
    int bytes;
    char name[CC_CUDA_MAX_PARTS][NAME_BYTES];
};

static int fill_argument(CcCudaWork *work, const CcLoop *loop, CcArena *arena, CcErr *err) {
    static const double zero[CC_LOOP_MAX_ACCESS];
    char *at[CC_LOOP_MAX_ACCESS];
    for (int a = 0; a < loop->n_access; a++)
        at[a] = loop->access[a].place ? CC_PLACE_ZERO + loop->access[a].offset : NULL;
    _Alignas(16) char argument[CC_CUDA_MAX_ARG];
    work->bytes = cc_gen_cuda_argument(loop, &work->sizes, at, zero, NULL, argument);
    work->argument = cc_arena_alloc(arena, (size_t)work->bytes);
    if (!work->argument) return cc_err_set(err, CC_E_MEMORY, "no memory for a kernel's argument");
    memcpy(work->argument, argument, (size_t)work->bytes);
    return 0;
}

CcCudaWork *cc_cudalaunch_make(const CcOnDevice *on, const CcLoop *loop, const CcCudaTuning *tuning, CcArena *arena,
                               CcErr *err) {
    const CcCudaKernel *kernel = cc_cudakernel_get(on->cuda, loop, tuning, err);
    CcCudaWork *work = kernel ? cc_arena_alloc(arena, sizeof *work) : NULL;
    if (!work) return NULL;
    work->on = *on;
    cc_gen_cuda_launch(loop, tuning, on->cuda->processors, &work->sizes);
    if (fill_argument(work, loop, arena, err) < 0) return NULL;
    for (int p = 0; p < work->sizes.n; p++) {
        CcCudaCall *call = &work->call[p];
        *call = (CcCudaCall){.name = work->name[p],
                             .grid = work->sizes.part[p].grid,
                             .threads = work->sizes.part[p].threads,
                             .shared = work->sizes.part[p].shared};
        call->function = cc_cudakernel_part(kernel, p, work->name[p], NAME_BYTES, err);
        if (!call->function) return NULL;
    }
    return work;
}

bool cc_cudalaunch_waits(const CcCudaWork *work) { return work->on.waits; }

int64_t cc_cudalaunch_workspace(const CcCudaWork *work) { return work->sizes.workspace; }

const CcCudaTuning *cc_cudalaunch_tuning(const CcCudaWork *work) { return &work->sizes.tuning; }

/* The calls of all parts; `argument` has room for CC_CUDA_MAX_ARG bytes. */
static void fill_calls(const CcCudaWork *work, const CcLoop *loop, char *const *at, const double *number,
                       const char *scratch, char *argument, CcCudaCall *calls) {
    const int n = loop->n_access;
    memcpy(argument, work->argument, (size_t)work->bytes);
    for (int a = 0; a < n; a++) {
        const CcLoopAccess *access = &loop->access[a];
        if (!access->place) memcpy(argument + 8 * a, access->number ? (const void *)&number[a] : &at[a], 8);
    }
    if (work->sizes.workspace) memcpy(argument + 8 * n, &scratch, 8);
    for (int p = 0; p < work->sizes.n; p++) {
        calls[p] = work->call[p];
        calls[p].argument = argument;
    }
}

int cc_cudalaunch_run(const CcLaunch *launch, const CcHost *host, char *const *at, const double *number, CcErr *err) {
    const CcCudaWork *work = launch->cuda;
    _Alignas(16) char argument[CC_CUDA_MAX_ARG];
    CcCudaCall calls[CC_CUDA_MAX_PARTS];
    fill_calls(work, launch->loop, at, number, host->scratch, argument, calls);
    void *stream = NULL;
    if (!work->on.waits && host->stream(host->ctx, work->on.index, &stream) < 0)
        return cc_err_set(err, CC_E_HOST, "torch does not give the current stream of GPU %d", work->on.index);
    for (int p = 0; p < work->sizes.n; p++)
        if (cc_cuda_launch(work->on.cuda, &calls[p], stream, err) < 0) return -1;
    return work->on.waits ? cc_cuda_wait(work->on.cuda, stream, err) : 0;
}

int cc_cudalaunch_time(const CcCudaWork *work, const CcLoop *loop, const CcCudaBench *bench, char *const *at,
                       const double *number, char *scratch, float *ms, CcErr *err) {
    _Alignas(16) char argument[CC_CUDA_MAX_ARG];
    CcCudaCall calls[CC_CUDA_MAX_PARTS];
    fill_calls(work, loop, at, number, scratch, argument, calls);
    return cc_cuda_bench_time(bench, calls, work->sizes.n, ms, err);
}
