/* launch: runs a kernel over a nest. The kernel does the three innermost loops or, if it reduces, the two innermost
 * kept ones and all reduced ones. This file does the outer loops and divides the work among threads: by rows, or by
 * pieces of rows if there are few. A row that is reduced in one sweep can be cut, too: each piece leaves partial
 * results, which a final call combines. */
#include <stdatomic.h>

#include "run_int.h"

enum {
    GRAIN = 40000, /* additions that are worth a thread */
    LOOK = 16384,  /* checked indices that are worth a thread */
    PIECE = 512,   /* rows are cut at multiples of this many elements, */
    COLUMNS = 64,  /* blocks of columns at multiples of this many */
    /* FEW long rows that alternate in memory (nest.c, swap_short) are computed together, TOGETHER elements of each
     * at a time, which fit into the L1 */
    FEW = 8,
    TOGETHER = 1024
};

typedef struct Job {
    const CcLaunch *launch;
    /* units = rows * pieces; a piece of a row has `piece` elements of the dim that is cut */
    int64_t rows, pieces, piece;
    bool partial;  /* pieces leave partial results */
    bool together; /* a unit is a piece of all rows */
    int cut;       /* the dim that is cut */
    char *state;
    int64_t state_bytes;
    char *at[CC_LOOP_MAX_ACCESS];
} Job;

/* A kernel that has no memory for its scratch lines can't run: the reference executor does. */
static void call(const CcLaunch *launch, const CcKernelArg *arg) {
    if (launch->fn && (!launch->kept || arg->scratch)) launch->fn(arg);
    else cc_gen_ref(launch->loop, arg);
}

/* Fills the argument for row number `row` (over all dims before the vector loop) and at most `most` rows of the last
 * two outer dims. */
static void locate(const Job *job, int64_t row, int64_t most, CcKernelArg *arg) {
    const CcLoop *loop = job->launch->loop;
    int64_t at[CC_MAX_DIMS] = {0};
    const int outer = loop->lane;
    for (int d = outer - 1; d >= 0; d--) {
        at[d] = row % loop->size[d];
        row /= loop->size[d];
    }
    arg->rows = outer > 0 ? CC_MIN(loop->size[outer - 1] - at[outer - 1], most) : 1;
    arg->blocks = 1;
    if (outer > 1 && !loop->reduces && arg->rows == loop->size[outer - 1])
        arg->blocks = CC_MIN(loop->size[outer - 2] - at[outer - 2], most / arg->rows);
    for (int a = 0; a < loop->n_access; a++) {
        int64_t offset = 0;
        for (int d = 0; d < outer; d++) offset += at[d] * loop->stride[a][d];
        arg->a[a].at = job->at[a] + offset;
        arg->a[a].block = outer > 1 ? loop->stride[a][outer - 2] : 0;
        arg->a[a].row = outer > 0 ? loop->stride[a][outer - 1] : 0;
        arg->a[a].step = loop->stride[a][outer];
        for (int d = outer + 1; d < loop->ndim; d++) arg->a[a].line[d - outer - 1] = loop->stride[a][d];
    }
}

static void begin_argument(const Job *job, CcKernelArg *arg) {
    const CcLoop *loop = job->launch->loop;
    arg->n = loop->size[loop->lane];
    if (!loop->reduces) return;
    for (int d = loop->lane + 1; d < loop->ndim; d++) arg->line[d - loop->lane - 1] = loop->size[d];
    arg->count = job->launch->count;
    arg->split = job->partial ? CC_SPLIT_PIECE : CC_SPLIT_WHOLE;
    arg->pieces = job->pieces;
    arg->state = job->state;
    arg->state_bytes = job->state_bytes;
    arg->scratch_bytes = job->launch->kept ? cc_gen_scratch_bytes(loop, arg->n, job->launch->count) : 0;
    arg->scratch = job->launch->kept ? cc_scratch_thread((size_t)(arg->scratch_bytes * job->launch->kept)) : NULL;
}

static void run_units(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    const CcLoop *loop = job->launch->loop;
    CcKernelArg arg;
    begin_argument(job, &arg);
    while (begin < end) {
        const int64_t most = job->together ? job->launch->rows : job->pieces == 1 ? end - begin : 1;
        locate(job, begin / job->pieces, most, &arg);
        if (job->pieces == 1) begin += arg.rows * arg.blocks;
        else {
            const int64_t from = begin % job->pieces * job->piece;
            const int64_t n = CC_MIN(job->piece, loop->size[job->cut] - from);
            *(job->cut == loop->lane ? &arg.n : &arg.line[0]) = n;
            for (int a = 0; a < loop->n_access; a++) arg.a[a].at += from * loop->stride[a][job->cut];
            if (job->partial) arg.state = job->state + begin * job->state_bytes;
            begin++;
        }
        call(job->launch, &arg);
    }
    if (job->launch->kept) cc_scratch_thread_trim();
}

static void finish_rows(const Job *job) {
    CcKernelArg arg;
    begin_argument(job, &arg);
    arg.split = CC_SPLIT_FINISH;
    for (int64_t row = 0; row < job->rows; row++) {
        locate(job, row, 1, &arg);
        arg.state = job->state + row * job->pieces * job->state_bytes;
        call(job->launch, &arg);
    }
}

static void cut(Job *job, int dim, int64_t piece) {
    const int64_t n = job->launch->loop->size[dim];
    job->cut = dim;
    job->piece = CC_MIN(piece, n);
    job->pieces = (n + job->piece - 1) / job->piece;
}

static int64_t multiple(int64_t n, int64_t of) { return CC_MAX(of, (n + of - 1) / of * of); }

/* Cuts rows that are reduced. */
static void cut_reduction(Job *job, int parts) {
    const CcLoop *loop = job->launch->loop;
    if (parts == 1 || job->launch->sweeps > 1 || loop->scans || !job->launch->fn) return;
    const bool lines = loop->ndim - 1 > loop->lane;
    const int dim = loop->lane + lines;
    const int64_t n = loop->size[dim], lanes = loop->size[loop->lane];
    const int64_t units = job->rows * (loop->columns ? (lanes + COLUMNS - 1) / COLUMNS : 1);
    if (units >= 2 * parts) return;
    const int64_t wanted = (4 * parts + units - 1) / units, each = (n + wanted - 1) / wanted;
    const int64_t piece = lines ? each : multiple(each, PIECE);
    if (piece >= n) return;
    cut(job, dim, piece);
    job->state_bytes = cc_gen_state_bytes(loop, lanes);
    job->state = cc_scratch_thread((size_t)(job->rows * job->pieces * job->state_bytes));
    job->partial = job->state != NULL;
    if (!job->partial) job->pieces = 1;
}

/* Cuts rows, or columns that are reduced, for threads. */
static void cut_lanes(Job *job, int parts) {
    const CcLoop *loop = job->launch->loop;
    const int64_t inner = loop->size[loop->lane], least = loop->reduces ? COLUMNS : PIECE;
    if (parts == 1 || job->rows >= 4 * parts || inner <= least) return;
    const int64_t wanted = (4 * parts + job->rows - 1) / job->rows;
    cut(job, loop->lane, multiple((inner + wanted - 1) / wanted, least));
}

/* Are there few long rows whose elements alternate in memory? */
static bool few_rows(const CcLoop *loop) {
    if (loop->reduces || loop->lane != 1 || loop->size[0] >= FEW || loop->size[1] < 2 * TOGETHER) return false;
    for (int a = 0; a < loop->n_access; a++)
        if (loop->stride[a][0] && llabs(loop->stride[a][0]) < llabs(loop->stride[a][1])) return true;
    return false;
}

/* Cuts all rows at the same elements. */
static void cut_together(Job *job, int parts) {
    const int64_t inner = job->launch->loop->size[1];
    cut(job, 1, multiple(CC_MIN(TOGETHER, inner / (4 * parts)), COLUMNS));
    job->together = true;
    job->rows = 1;
}

/* May several iterations store to one address? */
static bool meet(const CcLoop *loop) {
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].where) return true;
    return false;
}

void cc_launch_at(const CcLaunch *launch, char *const *at) {
    const CcLoop *loop = launch->loop;
    Job job = {.launch = launch, .rows = launch->rows, .pieces = 1};
    memcpy(job.at, at, sizeof *at * (size_t)loop->n_access);
    int parts = 1;
    const float work = (float)launch->numel * loop->cost;
    if (work >= 2 * GRAIN && !meet(loop)) parts = (int)CC_MIN((float)cc_omp_width(), work / GRAIN);
    if (loop->reduces) cut_reduction(&job, parts);
    if (few_rows(loop)) cut_together(&job, parts);
    else if (!job.partial && (!loop->reduces || loop->columns)) cut_lanes(&job, parts);
    if (parts > 1) cc_omp_run(run_units, &job, job.rows * job.pieces, parts);
    else run_units(&job, 0, job.rows * job.pieces);
    if (!job.partial) return;
    finish_rows(&job);
    cc_scratch_thread_trim();
}

void cc_launch_rows(const CcLaunch *launch, char *const *at, int64_t begin, int64_t end) {
    Job job = {.launch = launch, .rows = launch->rows, .pieces = 1};
    memcpy(job.at, at, sizeof *at * (size_t)launch->loop->n_access);
    run_units(&job, begin, end);
}

/* Checks four of n elements at a time: v - low and high - 1 - v are both nonnegative, or v is `also`. (Uses the
 * compiler's vector type, since -O2 does not vectorise such loops: 65536 indices took 30 us one by one, Zen 4.) */
typedef uint64_t Four __attribute__((vector_size(32)));

static bool row_in_range(const CcLoopCheck *c, const char *at, bool wide, int64_t n, int64_t step) {
    const uint64_t first = (uint64_t)c->low, last = (uint64_t)c->high - 1, also = (uint64_t)c->also;
    const Four firsts = {first, first, first, first}, lasts = {last, last, last, last},
               others = {also, also, also, also};
    Four out = {0};
    int64_t i = 0;
    for (; wide && step == 1 && i + 4 <= n; i += 4) {
        Four v;
        memcpy(&v, at + 8 * i, sizeof v);
        out |= ((v - firsts) | (lasts - v)) & (Four)(v != others);
    }
    uint64_t bad = out[0] | out[1] | out[2] | out[3];
    for (; i < n; i++) {
        int64_t v;
        int32_t narrow;
        if (wide) memcpy(&v, at + 8 * i * step, sizeof v);
        else memcpy(&narrow, at + 4 * i * step, sizeof narrow), v = narrow;
        if ((uint64_t)v != also) bad |= ((uint64_t)v - first) | (last - (uint64_t)v);
    }
    return !(bad >> 63);
}

static bool row_of_shares(const char *at, bool wide, int64_t n, int64_t step) {
    int bad = 0;
    for (int64_t i = 0; i < n; i++) {
        float narrow;
        double v;
        if (wide) memcpy(&v, at + 8 * i * step, sizeof v);
        else memcpy(&narrow, at + 4 * i * step, sizeof narrow), v = (double)narrow;
        bad |= !(v >= 0) | !(v <= 1); /* NaN fails, as in eager */
    }
    return !bad;
}

/* n elements of the tensor, `step` apart. */
static bool run_in_range(const CcLoopCheck *c, const char *at, int64_t n, int64_t step) {
    const CcDtypeInfo *info = cc_dtype_info((CcDtype)c->type.dtype);
    return info->kind == 'f' ? row_of_shares(at, info->size == 8, n, step)
                             : row_in_range(c, at, info->size == 8, n, step);
}

static bool in_range(const CcLoopCheck *c, const char *at, int d) {
    if (d + 1 >= c->type.ndim) {
        const int64_t step = c->type.ndim ? c->type.stride[d] : 1, n = c->type.ndim && step ? c->type.size[d] : 1;
        return run_in_range(c, at, n, step);
    }
    const int64_t step = c->type.stride[d] * cc_dtype_size(c->type.dtype);
    for (int64_t i = 0; i < (step ? c->type.size[d] : 1); i++)
        if (!in_range(c, at + i * step, d + 1)) return false;
    return true;
}

typedef struct Look {
    const CcLoopCheck *check;
    const char *at;
    atomic_bool wrong;
} Look;

static void look(void *ctx, int64_t begin, int64_t end) {
    Look *l = ctx;
    const int size = cc_dtype_size(l->check->type.dtype);
    if (!run_in_range(l->check, l->at + begin * size, end - begin, 1))
        atomic_store_explicit(&l->wrong, true, memory_order_relaxed);
}

/* All threads share the check of many contiguous indices. */
static bool all_in_range(const CcLoopCheck *check, const char *at) {
    const int64_t n = cc_type_numel(&check->type);
    const int parts = (int)CC_MIN(cc_omp_width(), n / LOOK);
    if (n == 0 || !cc_type_contiguous(&check->type)) return n == 0 || in_range(check, at, 0);
    if (parts < 2) return run_in_range(check, at, n, 1);
    Look l = {.check = check, .at = at};
    cc_omp_run(look, &l, n, parts);
    return !l.wrong;
}

/* Eager may raise for a wrong index: the plan fails before anything is written, and eager starts over. */
static int check_indices(const CcLoop *loop, const CcHost *host, CcErr *err) {
    for (int i = 0; i < loop->n_check; i++) {
        const char *at = host->data(host->ctx, loop->check[i].value);
        if (!at) return cc_err_set(err, CC_E_HOST, "no data of value %d", loop->check[i].value);
        if (!all_in_range(&loop->check[i], at + loop->check[i].offset))
            return cc_err_set(err, CC_E_HOST, "an index, or a number that must be in [0, 1], is out of range");
    }
    return 0;
}

/* Kernels read numbers of the host from memory: f32 rounds the double as torch rounds a Python number. */
static double number(const CcLoopAccess *access, const CcHost *host) {
    if (!access->fixed) return host->number(host->ctx, access->number - 1);
    const bool is_float = cc_dtype_is_float(access->dtype);
    return is_float ? cc_loop_number(access->bits) : (double)access->bits;
}

char *cc_launch_number(const CcLoopAccess *access, const CcHost *host, double *room) {
    const double v = number(access, host);
    const float narrow = (float)v;
    /* fixed: numbers from the host are floats. Little endian: the low bytes come first */
    if (!cc_dtype_is_float(access->dtype)) memcpy(room, &access->bits, sizeof *room);
    else if (access->dtype == CC_DT_F32) memcpy(room, &narrow, sizeof narrow);
    else *room = v;
    return (char *)room;
}

/* A GPU kernel gets a number as an argument, a CPU kernel reads it from memory. NULL: the host failed. */
static char *take_number(const CcLaunch *launch, const CcLoopAccess *access, const CcHost *host, double *room) {
    if (!launch->cuda) return cc_launch_number(access, host, room);
    if (access->fixed || access->number > 0) {
        *room = number(access, host);
        return (char *)room;
    }
    const char *at = host->data(host->ctx, access->value);
    float narrow = 0;
    if (at && access->dtype == CC_DT_F64) memcpy(room, at + access->offset, sizeof *room);
    else if (at) memcpy(&narrow, at + access->offset, sizeof narrow), *room = (double)narrow;
    return at ? (char *)room : NULL;
}

bool cc_launch_writes(const CcLaunch *launch, int value) {
    for (int i = 0; i < launch->n_written; i++)
        if (launch->written[i].value == value) return true;
    return false;
}

int cc_launch_find(const CcLaunch *launch, const CcHost *host, char **made, bool first, char **at, double *room,
                   CcErr *err) {
    const CcLoop *loop = launch->loop;
    int stores = 0;
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *access = &loop->access[a];
        const bool makes = access->is_store && !cc_launch_writes(launch, access->value);
        if (makes && first) made[stores] = host->make(host->ctx, access->value);
        at[a] = access->place    ? CC_PLACE_ZERO
                : access->number ? take_number(launch, access, host, &room[a])
                : makes          ? made[stores++]
                                 : host->data(host->ctx, access->value);
        if (!at[a] && launch->numel) return cc_err_set(err, CC_E_HOST, "no memory for value %d", access->value);
        if (at[a] && !access->number) at[a] += access->offset;
    }
    return 0;
}

int cc_launch_run(const CcLaunch *launch, const CcHost *host, CcErr *err) {
    char *at[CC_LOOP_MAX_ACCESS], *made[CC_LOOP_MAX_ACCESS];
    double room[CC_LOOP_MAX_ACCESS];
    /* a wrong index must fail before anything is written */
    const bool looks = !launch->cuda || (launch->n_written && cc_cudalaunch_waits(launch->cuda));
    if (looks && check_indices(launch->loop, host, err) < 0) return -1;
    if (launch->boxes) return cc_boxes_run(launch->boxes, host, err);
    if (cc_launch_find(launch, host, made, true, at, room, err) < 0) return -1;
    for (int i = 0; i < launch->n_written; i++) {
        const CcWritten *w = &launch->written[i];
        if (w->node >= 0 && host->writing(host->ctx, w->value, w->node, w->counted) < 0)
            return cc_err_set(err, CC_E_HOST, "value %d can't be written", w->value);
    }
    if (launch->numel && launch->cuda) return cc_cudalaunch_run(launch, host, at, room, err);
    if (launch->numel) cc_launch_at(launch, at);
    return 0;
}

void cc_launch_init(CcLaunch *launch, const CcLoop *loop) {
    CcSweeps plan;
    *launch = (CcLaunch){.loop = loop, .numel = cc_nest_numel(loop)};
    launch->rows = launch->count = 1;
    for (int d = 0; d < loop->lane; d++) launch->rows *= loop->size[d];
    for (int d = loop->lane + loop->columns; d < loop->ndim; d++) launch->count *= loop->size[d];
    if (!loop->reduces) return;
    cc_sweep_plan(loop, &plan);
    launch->sweeps = plan.n;
    launch->kept = plan.n_kept;
}

int cc_launch_make(CcLaunch *launch, const CcLoop *loop, CcErr *err) {
    if (!loop) return -1;
    cc_launch_init(launch, loop);
    launch->fn = launch->numel ? cc_kcache_get(loop, err) : NULL;
    return launch->fn || !launch->numel ? 0 : -1;
}

int cc_launch_copy(CcLaunch *launch, const CcType *from, const CcOperand *fill, const CcType *to, CcArena *arena,
                   CcErr *err) {
    CcGraph *g = cc_graph_new();
    const CcOperand in = from ? (CcOperand){.kind = CC_IN_VALUE, .value = cc_graph_input(g, from)} : *fill;
    const int node = cc_graph_node(g, from ? CC_OP_copy : CC_OP_fill, 0, -1, &in, 1, to, 1);
    const bool made[2] = {!from, true};
    const int status = cc_launch_make(launch, cc_build_group(g, &node, 1, NULL, made, CC_DT_OTHER, arena, err), err);
    cc_graph_free(g);
    return status;
}
