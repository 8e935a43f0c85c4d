/* gen_cuda: maps a loop to the threads of a GPU and computes its launches. gen_cuda_text.c prints the kernels.
 *
 *   POINT    a thread processes a chunk of the inner dim: `vector` elements, by one 16-byte load if they are contiguous;
 *            chunks are numbered over all dims
 *   ROWS     a group of threads, part of a warp or a whole block, processes a row; thread c % group gets chunk c. Between
 *            sweeps the elements stay in registers if they fit, else they are re-read (mostly from L2). A scan
 *            processes one group's width of elements at a time: shuffles, then the carry of what came before
 *   COLUMNS  adjacent threads process adjacent columns and walk down them together; `group` threads share a column (one
 *            for a scan)
 *
 * A reduction with few rows or columns is split into pieces. Kernel k computes the partial results of sweep k; each of
 * its blocks first combines those of the earlier sweeps, always in the same order, so that results are reproducible. A
 * separate last kernel stores per-row results, as their memory may overlap what other blocks still read. */
#include "gen_int.h"

/* Not measured yet, for lack of a GPU: these follow Inductor's and CUB's choices on sm_80 and sm_90. Tuning can set the
 * threads and vector width. */
enum {
    THREADS = 256,
    WIDE_LOAD = 16, /* bytes of the widest load */
    MAX_VECTOR = 8,
    SMALL = 1 << 15,     /* least chunks; below it smaller chunks keep more multiprocessors busy */
    REGISTERS = 64,      /* most elements in a thread's chunks of all accesses */
    WAVES = 16,          /* most waves of blocks; beyond that threads loop */
    RESIDENT_BLOCKS = 8, /* resident blocks of THREADS threads per multiprocessor */
    MAX_THREADS = 1024,
    BUSY_THREADS = 1 << 16, /* threads that keep a GPU busy: with fewer rows, more threads share each */
    /* most 4-byte words that a thread keeps in registers between sweeps; half of it in a large block */
    HELD = 32,
    ADJACENT = 32, /* most columns of a block */
    /* Rows are split if there are fewer blocks than this, and rows have at least LONG elements, columns LONG / 4. Rows
     * of several sweeps, which one block processes from registers or L2, need LONG_SWEEPS. */
    FEW_BLOCKS = 256,
    LONG = 4096,
    LONG_SWEEPS = 1 << 16,
    MAX_SHARED = 48 << 10,
    MAX_PIECES = 512,
    MIN_PIECE = 512 /* least elements of a piece; of columns an eighth of it */
};

static int64_t largest(int64_t a, int64_t b) { return CC_MAX(a, b); }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ------------------------------------------------------------------ accesses */

static int inner_of(const CcCudaPlan *p) { return p->dim[p->n_dim - 1]; }

int64_t cc_gen_cuda_stride(const CcLoop *loop, const CcCudaPlan *p, int a, int d) {
    const CcLoopAccess *access = &loop->access[a];
    if (access->number) return 0;
    const int64_t bytes = loop->stride[a][p->dim[d]];
    return access->place ? bytes : bytes / cc_dtype_size(access->dtype);
}

CcStepClass cc_gen_cuda_step(const CcLoop *loop, const CcCudaPlan *p, int a) {
    const int64_t stride = cc_gen_cuda_stride(loop, p, a, p->n_dim - 1);
    return stride == 0 ? CC_STEP_ZERO : stride == 1 && !loop->access[a].place ? CC_STEP_ONE : CC_STEP_ANY;
}

int64_t cc_gen_cuda_kept(const CcLoop *loop, const CcCudaPlan *p) {
    int64_t n = 1;
    for (int d = 0; d < p->n_kept; d++) n *= loop->size[p->dim[d]];
    return n;
}

/* Does the node vary along the inner dim? */
static bool moves(const CcLoop *loop, const CcCudaPlan *p, int node) {
    const CcLoopNode *n = &loop->node[node];
    const int access = cc_loop_access(n);
    if (access >= 0 && cc_gen_cuda_step(loop, p, access) != CC_STEP_ZERO) return true;
    for (int k = 0; k < cc_scalar_info((CcScalarId)n->op)->arity; k++)
        if (moves(loop, p, n->a[k])) return true;
    return false;
}

/* Elements gathered at an index are contiguous if the whole chunk shares one index. */
bool cc_gen_cuda_packed(const CcLoop *loop, const CcCudaPlan *p, int a) {
    if (cc_gen_cuda_step(loop, p, a) != CC_STEP_ONE) return false;
    if (p->kind == CC_CUDA_ROWS && !cc_sweep_along(loop, &loop->access[a])) return false;
    if (loop->access[a].where && (loop->access[a].how != CC_PUT_SET || moves(loop, p, loop->access[a].where - 1)))
        return false;
    for (int i = 0; loop->access[a].taken && i < loop->n_node; i++)
        if (loop->node[i].op == CC_S_take && loop->node[i].a[1] == a && moves(loop, p, loop->node[i].a[0]))
            return false;
    return true;
}

/* ------------------------------------------------------------------ the plan */

/* The access that decides the order of dims: the first store that is not at indices, else the one with most strides. */
static int lead_of(const CcLoop *loop) {
    int best = 0, most = -1;
    for (int a = 0; a < loop->n_access; a++) {
        int dims = 0;
        if (loop->access[a].is_store && !loop->access[a].where) return a;
        for (int d = 0; d < loop->ndim && !loop->access[a].place; d++) dims += loop->stride[a][d] != 0;
        if (dims > most) most = dims, best = a;
    }
    return best;
}

/* Orders dims by the strides of the first store: the nest's own order may end with a short dim. */
static void order_points(const CcLoop *loop, CcCudaPlan *p) {
    const int lead = lead_of(loop);
    for (int d = 0; d < loop->ndim; d++) {
        int at = d;
        for (; at > 0 && loop->stride[lead][p->dim[at - 1]] < loop->stride[lead][d]; at--) p->dim[at] = p->dim[at - 1];
        p->dim[at] = d;
    }
    p->n_dim = p->n_kept = loop->ndim;
}

/* Kept dims, then reduced ones; ROWS: the inner dim is the loop's vector dim. */
static void order_reduction(const CcLoop *loop, CcCudaPlan *p) {
    const int kept = loop->lane + loop->columns;
    for (int d = 0; d < kept; d++) p->dim[p->n_dim++] = d;
    for (int d = loop->lane + 1; d < loop->ndim; d++) p->dim[p->n_dim++] = d;
    if (!loop->columns) p->dim[p->n_dim++] = loop->lane;
    p->n_kept = kept;
}

/* Do all chunks of n elements start at multiples of n if the tensors do? */
static bool is_aligned(const CcLoop *loop, const CcCudaPlan *p, int n) {
    for (int a = 0; a < loop->n_access; a++) {
        if (!cc_gen_cuda_packed(loop, p, a)) continue;
        for (int d = 0; d + 1 < p->n_dim; d++)
            if (cc_gen_cuda_stride(loop, p, a, d) % n) return false;
        for (int i = 0; loop->access[a].taken && i < loop->n_node; i++)
            if (loop->node[i].op == CC_S_take && loop->node[i].a[1] == a &&
                loop->node[i].bits / cc_dtype_size(loop->access[a].dtype) % n)
                return false;
    }
    return true;
}

static int choose_vector(const CcLoop *loop, const CcCudaPlan *p, int wanted) {
    int widest = 0, packed = 0;
    for (int a = 0; a < loop->n_access; a++) {
        if (!cc_gen_cuda_packed(loop, p, a)) continue;
        widest = CC_MAX(widest, cc_dtype_size(loop->access[a].dtype));
        packed++;
    }
    if (!packed || p->kind == CC_CUDA_COLUMNS || loop->scans) return 1;
    const int64_t inner = loop->size[inner_of(p)], numel = cc_nest_numel(loop);
    int n = CC_MIN(MAX_VECTOR, WIDE_LOAD / widest);
    if (wanted) n = CC_MIN(wanted, MAX_VECTOR);
    while (n > 1 && (!is_aligned(loop, p, n) || (p->n_dim > 1 && inner < 2 * n) ||
                     (!wanted && (loop->n_access * n > REGISTERS || numel / n < SMALL))))
        n /= 2;
    return n;
}

/* Does an offset in elements, or a count of elements or chunks, need more than 32 bits? */
static bool is_wide(const CcLoop *loop, const CcCudaPlan *p) {
    if (cc_nest_numel(loop) > INT64_C(1) << 30) return true;
    for (int a = 0; a < loop->n_access; a++) {
        int64_t reach = 0;
        for (int d = 0; d < p->n_dim; d++)
            reach += (loop->size[p->dim[d]] - 1) * llabs(cc_gen_cuda_stride(loop, p, a, d));
        if (reach > INT32_MAX) return true;
    }
    return false;
}

static int64_t across_of(const CcLoop *loop, const CcCudaPlan *p) {
    return divide_up(loop->size[inner_of(p)], p->vector);
}

/* Chunks of a row; POINT: of the whole loop. */
static int64_t chunks_of(const CcLoop *loop, const CcCudaPlan *p) {
    int64_t n = across_of(loop, p);
    for (int d = p->kind == CC_CUDA_POINT ? 0 : p->n_kept; d + 1 < p->n_dim; d++) n *= loop->size[p->dim[d]];
    return n;
}

static int64_t count_of(const CcLoop *loop, const CcCudaPlan *p) {
    int64_t n = 1;
    for (int d = p->n_kept; d < p->n_dim; d++) n *= loop->size[p->dim[d]];
    return n;
}

static int power_from(int64_t n) { /* the least power of 2 >= n */
    int p = 1;
    while (p < n) p *= 2;
    return p;
}

static void hold_nothing(CcCudaPlan *p) {
    memset(p->sweeps.kept, 0, sizeof p->sweeps.kept);
    p->sweeps.n_kept = 0;
}

/* Keeps loads and expensive nodes that several sweeps use in registers, if there is room. Lifetimes rarely overlap
 * fully (softmax: exp(x) replaces x), so each array counts half. */
static void hold(const CcLoop *loop, CcCudaPlan *p, int64_t chunks) {
    CcSweeps *s = &p->sweeps;
    bool need[CC_LOOP_MAX_NODES];
    uint8_t times[CC_LOOP_MAX_NODES] = {0};
    int arrays = 0, words = 1;
    for (int sweep = 0; sweep < s->n; sweep++) {
        cc_sweep_need(loop, s, sweep, need);
        for (int i = 0; i < loop->n_node; i++) times[i] = (uint8_t)(times[i] + need[i]);
    }
    for (int i = 0; i < loop->n_node; i++) {
        const bool read = loop->node[i].op == CC_S_load || loop->node[i].op == CC_S_take;
        if (!s->kept[i] && read && times[i] > 1) s->kept[i] = (uint8_t)++s->n_kept;
        arrays += s->kept[i] != 0;
        if (s->kept[i]) words = CC_MAX(words, cc_dtype_size(loop->node[i].dtype) / 4);
    }
    const int held = power_from(divide_up(chunks, p->group)), most = p->threads > THREADS ? HELD / 2 : HELD;
    if (s->n > 1 && held * p->vector * words * CC_MAX(1, (arrays + 1) / 2) <= most) p->held = held;
    else hold_nothing(p);
}

/* Threads of a row: part of a warp for a short one, a block for long or few rows. */
static void assign_rows(const CcLoop *loop, CcCudaPlan *p, bool tuned) {
    const int64_t rows = cc_gen_cuda_kept(loop, p), chunks = chunks_of(loop, p);
    const int held = CC_MAX(1, HELD / p->vector);
    p->group = CC_MIN(32, power_from(chunks));
    if (chunks > 32 * held || (rows * p->group < BUSY_THREADS && chunks >= 64)) {
        const int64_t each = rows * THREADS < BUSY_THREADS ? 1 : CC_MAX(1, held / 2); /* chunks per thread */
        const int wanted = power_from(divide_up(chunks, each));
        if (!tuned)
            p->threads =
                CC_MAX(64, CC_MIN((p->sweeps.n > 1 || loop->scans) && !p->split ? MAX_THREADS : THREADS, wanted));
        p->group = p->threads;
    }
    if (p->split || loop->scans) hold_nothing(p);
    else hold(loop, p, chunks);
}

static void assign_columns(const CcLoop *loop, CcCudaPlan *p) {
    const int side = CC_MIN(ADJACENT, power_from(cc_gen_cuda_kept(loop, p)));
    p->group = loop->scans ? 1 : CC_MIN(p->threads / side, power_from(chunks_of(loop, p)));
    hold_nothing(p);
}

/* Should rows be split: few rows, each long? */
static bool is_split(const CcLoop *loop, const CcCudaPlan *p) {
    const int64_t rows = cc_gen_cuda_kept(loop, p), count = count_of(loop, p);
    if (p->sweeps.n + 1 > CC_CUDA_MAX_PARTS || loop->scans) return false;
    if (loop->columns) return divide_up(rows, ADJACENT) < FEW_BLOCKS && count >= LONG / 4;
    return p->sweeps.n == 1 ? rows < FEW_BLOCKS && count >= LONG : rows < FEW_BLOCKS / 4 && count >= LONG_SWEEPS;
}

/* Is a result stored once per row, or reduced in the last sweep? */
static bool ends_with_rows(const CcLoop *loop, const CcCudaPlan *p) {
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && !cc_sweep_along(loop, &loop->access[a])) return true;
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        if (cc_scalar_info((CcScalarId)n->op)->kind == 'R' && p->sweeps.stage[n->a[0]] == p->sweeps.n - 1) return true;
    }
    return false;
}

static int64_t blocks_of(const CcLoop *loop, const CcCudaPlan *p) {
    return divide_up(cc_gen_cuda_kept(loop, p), p->threads / p->group);
}

void cc_gen_cuda_plan(const CcLoop *loop, const CcCudaTuning *tuning, CcCudaPlan *p) {
    const bool tuned = tuning && tuning->threads;
    memset(p, 0, sizeof *p);
    p->kind = !loop->reduces ? CC_CUDA_POINT : loop->columns ? CC_CUDA_COLUMNS : CC_CUDA_ROWS;
    p->threads = tuned ? tuning->threads : THREADS;
    if (loop->reduces) order_reduction(loop, p);
    else order_points(loop, p);
    p->wide = is_wide(loop, p);
    p->vector = choose_vector(loop, p, tuning ? tuning->vector : 0);
    p->parts = 1;
    if (!loop->reduces) return;
    cc_sweep_plan(loop, &p->sweeps);
    for (int i = 0; i < loop->n_node; i++) {
        p->n_reduction += cc_scalar_info((CcScalarId)loop->node[i].op)->kind == 'R';
        p->n_scan += cc_sweep_scans(&loop->node[i]);
    }
    p->split = is_split(loop, p);
    if (p->split) p->parts = p->sweeps.n + ends_with_rows(loop, p);
    if (loop->columns) assign_columns(loop, p);
    else assign_rows(loop, p, tuned);
}

/* ------------------------------------------------------------------ the argument */

static void add_field(CcCudaFields *fields, int kind, int a, int d) {
    const CcCudaField field = {kind, a, d};
    cc_vec_push(fields, field);
}

int cc_gen_cuda_fields(const CcLoop *loop, const CcCudaPlan *p, CcCudaFields *out) {
    const bool reduces = p->kind != CC_CUDA_POINT;
    for (int a = 0; a < loop->n_access; a++)
        add_field(out, loop->access[a].number ? CC_FIELD_NUMBER : CC_FIELD_ACCESS, a, 0);
    if (p->split) add_field(out, CC_FIELD_WORKSPACE, 0, 0);
    for (int c = 0; c < loop->n_check; c++)
        for (int k = CC_FIELD_LOW; k <= CC_FIELD_ALSO && !cc_gen_cuda_share(&loop->check[c]); k++)
            add_field(out, k, c, 0);
    if (reduces) add_field(out, CC_FIELD_COUNT, 0, 0);
    const int wide = out->n;
    add_field(out, CC_FIELD_N, 0, 0);
    add_field(out, CC_FIELD_INNER, 0, 0);
    add_field(out, CC_FIELD_ACROSS, 0, 0);
    if (reduces) add_field(out, CC_FIELD_CHUNKS, 0, 0);
    if (p->split) add_field(out, CC_FIELD_PIECE, 0, 0);
    if (p->split) add_field(out, CC_FIELD_PIECES, 0, 0);
    for (int d = 1; d + 1 < p->n_dim; d++)
        if (d != p->n_kept) add_field(out, CC_FIELD_SIZE, 0, d);
    for (int a = 0; a < loop->n_access; a++)
        for (int d = 0; d < p->n_dim; d++) {
            const int64_t stride = cc_gen_cuda_stride(loop, p, a, d);
            const bool one = d + 1 == p->n_dim && cc_gen_cuda_step(loop, p, a) == CC_STEP_ONE;
            if (stride && !one) add_field(out, CC_FIELD_STRIDE, a, d);
        }
    return wide;
}

typedef struct Values {
    const CcLoop *loop;
    const CcCudaPlan *plan;
    char *const *at;
    const double *number;
    char *workspace;
    int64_t piece, pieces;
} Values;

static int64_t value_of(const Values *v, const CcCudaField *f) {
    const CcLoop *loop = v->loop;
    int64_t bits = 0;
    switch (f->kind) {
    case CC_FIELD_ACCESS:
        return loop->access[f->a].place ? v->at[f->a] - CC_PLACE_ZERO : (int64_t)(intptr_t)v->at[f->a];
    case CC_FIELD_NUMBER: memcpy(&bits, &v->number[f->a], sizeof bits); return bits;
    case CC_FIELD_LOW: return loop->check[f->a].low;
    case CC_FIELD_HIGH: return loop->check[f->a].high;
    case CC_FIELD_ALSO: return loop->check[f->a].also;
    case CC_FIELD_WORKSPACE: return (int64_t)(intptr_t)v->workspace;
    case CC_FIELD_N: return v->plan->kind == CC_CUDA_POINT ? chunks_of(loop, v->plan) : cc_gen_cuda_kept(loop, v->plan);
    case CC_FIELD_CHUNKS: return chunks_of(loop, v->plan);
    case CC_FIELD_ACROSS: return across_of(loop, v->plan);
    case CC_FIELD_INNER: return loop->size[inner_of(v->plan)];
    case CC_FIELD_COUNT: return count_of(loop, v->plan);
    case CC_FIELD_PIECE: return v->piece;
    case CC_FIELD_PIECES: return v->pieces;
    case CC_FIELD_SIZE: return loop->size[v->plan->dim[f->d]];
    default: return cc_gen_cuda_stride(loop, v->plan, f->a, f->d);
    }
}

/* Divides the chunks of a row evenly into the launch's pieces. */
static void cut(const CcLoop *loop, const CcCudaPlan *p, const CcCudaLaunch *launch, Values *out) {
    out->pieces = launch->part[0].grid / blocks_of(loop, p);
    out->piece = divide_up(chunks_of(loop, p), out->pieces);
}

static int argument_bytes(const CcCudaPlan *p, int wide, int n) {
    return (8 * wide + (p->wide ? 8 : 4) * (n - wide) + 7) / 8 * 8;
}

int cc_gen_cuda_argument(const CcLoop *loop, const CcCudaLaunch *launch, char *const *at, const double *number,
                         char *workspace, void *out) {
    CcCudaPlan plan;
    cc_gen_cuda_plan(loop, &launch->tuning, &plan);
    Values values = {loop, &plan, at, number, workspace, 1, 1};
    if (plan.split) cut(loop, &plan, launch, &values);
    CcCudaFields fields = {0};
    const int wide = cc_gen_cuda_fields(loop, &plan, &fields), bytes = argument_bytes(&plan, wide, fields.n);
    memset(out, 0, (size_t)bytes);
    char *to = out;
    for (int i = 0; i < fields.n; i++) {
        const int64_t v = value_of(&values, &fields.at[i]);
        const int32_t narrow = (int32_t)v;
        const bool whole = i < wide || plan.wide;
        memcpy(to, whole ? (const void *)&v : &narrow, whole ? 8 : 4);
        to += whole ? 8 : 4;
    }
    cc_vec_free(&fields);
    return bytes;
}

/* ------------------------------------------------------------------ launches */

/* The number of pieces for a device with `processors` multiprocessors. */
static int64_t pieces_for(const CcLoop *loop, const CcCudaPlan *p, int processors) {
    const int64_t blocks = blocks_of(loop, p), wanted = divide_up((int64_t)processors * RESIDENT_BLOCKS, blocks);
    const int64_t least = loop->columns ? MIN_PIECE / 8 : MIN_PIECE;
    return largest(1, CC_MIN(CC_MIN(wanted, MAX_PIECES), count_of(loop, p) / least));
}

void cc_gen_cuda_launch(const CcLoop *loop, const CcCudaTuning *tuning, int processors, CcCudaLaunch *out) {
    CcCudaPlan plan;
    memset(out, 0, sizeof *out);
    if (tuning) out->tuning = *tuning;
    if (cc_nest_numel(loop) == 0) return;
    cc_gen_cuda_plan(loop, tuning, &plan);
    const int64_t most = largest(1, (int64_t)processors * RESIDENT_BLOCKS * WAVES * THREADS / plan.threads);
    const int64_t blocks = loop->reduces ? blocks_of(loop, &plan) : divide_up(chunks_of(loop, &plan), plan.threads);
    out->n = plan.parts;
    const int64_t pieces = plan.split ? pieces_for(loop, &plan, processors) : 1;
    for (int i = 0; i < out->n; i++) {
        out->part[i].threads = plan.threads;
        out->part[i].grid = plan.split ? blocks * (i < plan.sweeps.n ? pieces : 1) : CC_MIN(most, blocks);
    }
    if (plan.split) out->workspace = pieces * cc_gen_cuda_kept(loop, &plan) * plan.n_reduction * 8;
}

/* Does every check apply to a value that the loop loads? */
static bool has_checks(const CcLoop *loop) {
    for (int c = 0; c < loop->n_check; c++) {
        bool found = false;
        for (int i = 0; i < loop->n_node && !found; i++) {
            const CcLoopAccess *a = &loop->access[CC_MAX(0, loop->node[i].a[0])];
            found =
                loop->node[i].op == CC_S_load && a->value == loop->check[c].value && a->offset == loop->check[c].offset;
        }
        if (!found) return false;
    }
    return true;
}

static int shared_bytes(const CcLoop *loop, const CcCudaPlan *p) {
    return p->n_reduction * 8 * (loop->columns ? p->threads : p->threads / 32) + p->n_scan * 8 * (p->threads / 32 + 1);
}

int cc_gen_cuda(const CcLoop *loop, const CcCudaTuning *tuning, const char *name, CcSbuf *out, CcErr *err) {
    CcCudaPlan plan;
    CcCudaFields fields = {0};
    cc_gen_cuda_plan(loop, tuning, &plan);
    const int wide = cc_gen_cuda_fields(loop, &plan, &fields), bytes = argument_bytes(&plan, wide, fields.n);
    cc_vec_free(&fields);
    if (bytes > CC_CUDA_MAX_ARG)
        return cc_err_set(err, CC_E_UNSUPPORTED, "a kernel of %d tensors needs an argument of %d bytes", loop->n_access,
                          bytes);
    if (shared_bytes(loop, &plan) > MAX_SHARED)
        return cc_err_set(err, CC_E_UNSUPPORTED, "%d reductions in one kernel exceed shared memory", plan.n_reduction);
    if (!has_checks(loop))
        return cc_err_set(err, CC_E_UNSUPPORTED, "a checked index or probability is computed, not loaded");
    return cc_gen_cuda_text(loop, &plan, name, out, err);
}
