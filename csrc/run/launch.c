/* launch: runs a kernel over a nest. The kernel does the two innermost loops; here are the outer
 * ones, and the split into threads: by rows, or by pieces of rows when there are few. */
#include "run_int.h"

enum {
    GRAIN = 40000,
    PIECE = 512
}; /* additions that are worth a thread; rows are cut at multiples of this many elements */

typedef struct Job {
    const CcLaunch *launch;
    int64_t rows, pieces, piece; /* units = rows * pieces; a piece of a row has `piece` elements */
    char *at[CC_LOOP_MAX_ACCESS];
} Job;

static void call(const CcLaunch *launch, const CcKernelArg *arg) {
    if (launch->fn) launch->fn(arg);
    else cc_gen_ref(launch->loop, arg);
}

/* Fills the argument for row number `row` (over all dims but the last) and for what follows in the
 * last outer dim. */
static int64_t locate(const Job *job, int64_t row, CcKernelArg *arg) {
    const CcLoop *loop = job->launch->loop;
    int64_t at[CC_MAX_DIMS] = {0}, left = 1;
    const int outer = loop->ndim - 1;
    for (int d = outer - 1; d >= 0; d--) {
        at[d] = row % loop->size[d];
        row /= loop->size[d];
    }
    if (outer > 0) left = loop->size[outer - 1] - at[outer - 1];
    for (int a = 0; a < loop->n_access; a++) {
        int64_t offset = 0;
        for (int d = 0; d < outer; d++) offset += at[d] * loop->stride[a][d];
        arg->a[a].at = job->at[a] + offset;
        arg->a[a].row = outer > 0 ? loop->stride[a][outer - 1] : 0;
        arg->a[a].step = loop->stride[a][outer];
    }
    return left;
}

static void run_units(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    const CcLoop *loop = job->launch->loop;
    const int64_t inner = loop->size[loop->ndim - 1];
    CcKernelArg arg;
    while (begin < end) {
        const int64_t left = locate(job, begin / job->pieces, &arg);
        if (job->pieces == 1) {
            arg.n = inner;
            arg.rows = CC_MIN(left, end - begin);
            begin += arg.rows;
        } else {
            const int64_t from = begin % job->pieces * job->piece;
            arg.n = CC_MIN(job->piece, inner - from);
            arg.rows = 1;
            for (int a = 0; a < loop->n_access; a++) arg.a[a].at += from * arg.a[a].step;
            begin++;
        }
        call(job->launch, &arg);
    }
}

void cc_launch_at(const CcLaunch *launch, char *const *at) {
    const CcLoop *loop = launch->loop;
    Job job;
    job.launch = launch;
    memcpy(job.at, at, sizeof *at * (size_t)loop->n_access);
    const int64_t inner = loop->size[loop->ndim - 1];
    job.rows = launch->numel / inner;
    job.pieces = 1;
    job.piece = inner;
    int parts = 1;
    const float work = (float)launch->numel * loop->cost;
    if (work >= 2 * GRAIN) parts = (int)CC_MIN((float)cc_omp_width(), work / GRAIN);
    if (parts > 1 && job.rows < 4 * parts && inner > PIECE) {
        const int64_t wanted = (4 * parts + job.rows - 1) / job.rows;
        job.piece = CC_MAX(PIECE, ((inner + wanted - 1) / wanted + PIECE - 1) / PIECE * PIECE);
        job.pieces = (inner + job.piece - 1) / job.piece;
    }
    if (parts > 1) cc_omp_run(run_units, &job, job.rows * job.pieces, parts);
    else run_units(&job, 0, job.rows);
}

int cc_launch_run(const CcLaunch *launch, const CcHost *host, CcErr *err) {
    const CcLoop *loop = launch->loop;
    char *at[CC_LOOP_MAX_ACCESS];
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *access = &loop->access[a];
        at[a] = access->is_store ? host->make(host->ctx, access->value)
                                 : host->data(host->ctx, access->value);
        if (!at[a] && launch->numel)
            return cc_err_set(err, CC_E_HOST, "no memory for value %d", access->value);
        if (at[a]) at[a] += access->offset;
    }
    if (launch->numel) cc_launch_at(launch, at);
    return 0;
}

int cc_launch_make(CcLaunch *launch, const CcLoop *loop, CcErr *err) {
    if (!loop) return -1;
    *launch = (CcLaunch){.loop = loop, .numel = cc_nest_numel(loop)};
    launch->fn = launch->numel ? cc_kcache_get(loop, err) : NULL;
    return launch->fn || !launch->numel ? 0 : -1;
}
