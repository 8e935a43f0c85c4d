/* gen_cuda_rows: prints kernels of loops that reduce or scan, around the chunks that gen_cuda_text.c prints. */
#include <math.h>

#include "gen_int.h"

/* ------------------------------------------------------------------ reductions */

static void identity(const CcText *t, int i, char *out, size_t n) {
    const CcDtype dt = cc_text_dtype(t, i);
    const CcDtypeInfo *info = cc_dtype_info(dt);
    const CcScalarId op = cc_scalar_combine((CcScalarId)t->loop->node[i].op);
    const int64_t top = INT64_MAX >> (64 - 8 * info->size);
    CcLoopNode konst = {.dtype = (uint8_t)dt};
    double v = op == CC_S_mul ? 1 : op == CC_S_max ? -HUGE_VAL : op == CC_S_min ? HUGE_VAL : 0;
    if (info->kind == 'f') memcpy(&konst.bits, &v, sizeof v);
    else if (op == CC_S_mul || op == CC_S_and) konst.bits = 1;
    else if (op == CC_S_max) konst.bits = info->kind == 'u' ? 0 : -top - 1;
    else if (op == CC_S_min) konst.bits = info->kind == 'u' ? 2 * top + 1 : top;
    snprintf(out, n, "%s", cc_gen_cuda_konst(&konst));
}

static bool reduces_in(const CcText *t, int i, int sweep) {
    const CcLoopNode *n = &t->loop->node[i];
    return cc_text_reduces(n) && t->plan->sweeps.stage[n->a[0]] == sweep;
}

static int columns_of(const CcText *t) { return t->plan->threads / t->plan->group; } /* rows of a block */

/* Reduces across `lanes` adjacent lanes; each gets the result. */
static int across_lanes(CcText *t, int i, int lanes) {
    if (lanes == 1) return 0;
    cc_text_line(t, "#pragma unroll");
    cc_text_line(t, "for (int bit = %d; bit > 0; bit /= 2) {", lanes / 2);
    t->depth++;
    cc_text_line(t, "const %s other = cc_other(t%d, bit);", cc_gen_cuda_type(cc_text_dtype(t, i)), i);
    if (cc_text_combine(t, i, "other", "") < 0) return -1;
    cc_text_close(t);
    return 0;
}

/* Warps store their results to shared memory; then each warp combines all of them. */
static int across_warps(CcText *t, int sweep) {
    const int warps = t->plan->threads / 32;
    char none[48];
    for (int i = 0; i < t->loop->n_node; i++)
        if (reduces_in(t, i, sweep))
            cc_text_line(t, "if (threadIdx.x %% 32 == 0) shared%d[threadIdx.x / 32] = t%d;", i, i);
    cc_text_line(t, "__syncthreads();");
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!reduces_in(t, i, sweep)) continue;
        identity(t, i, none, sizeof none);
        if (warps == 32) cc_text_line(t, "t%d = shared%d[threadIdx.x %% 32];", i, i);
        else cc_text_line(t, "t%d = threadIdx.x %% 32 < %d ? shared%d[threadIdx.x %% 32] : %s;", i, warps, i, none);
        if (across_lanes(t, i, 32) < 0) return -1;
    }
    cc_text_line(t, "__syncthreads();  // shared memory may be written again");
    return 0;
}

/* Reduces down a column, whose threads are in different warps, through shared memory. */
static int down_columns(CcText *t, int sweep) {
    const int columns = columns_of(t);
    for (int i = 0; i < t->loop->n_node; i++)
        if (reduces_in(t, i, sweep)) cc_text_line(t, "shared%d[threadIdx.x] = t%d;", i, i);
    cc_text_line(t, "__syncthreads();");
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!reduces_in(t, i, sweep)) continue;
        cc_text_line(t, "t%d = shared%d[own];", i, i);
        cc_text_line(t, "for (int k = 1; k < %d; k++) {", t->plan->group);
        t->depth++;
        cc_text_line(t, "const %s other = shared%d[k * %d + own];", cc_gen_cuda_type(cc_text_dtype(t, i)), i, columns);
        if (cc_text_combine(t, i, "other", "") < 0) return -1;
        cc_text_close(t);
    }
    cc_text_line(t, "__syncthreads();  // shared memory may be written again");
    return 0;
}

/* Combines the threads' results of a sweep; all threads of a row get them. */
static int across_group(CcText *t, int sweep) {
    bool any = false;
    const bool rows = t->plan->kind == CC_CUDA_ROWS;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!reduces_in(t, i, sweep)) continue;
        any = true;
        if (rows && across_lanes(t, i, CC_MIN(32, t->plan->group)) < 0) return -1;
    }
    if (!any || t->plan->group == 1 || (rows && t->plan->group <= 32)) return 0;
    return rows ? across_warps(t, sweep) : down_columns(t, sweep);
}

static void declare_shared(CcText *t) {
    const bool rows = t->plan->kind == CC_CUDA_ROWS;
    const int n = rows ? t->plan->threads / 32 : t->plan->threads;
    if (t->plan->group == 1 || (rows && t->plan->group <= 32)) return;
    for (int i = 0; i < t->loop->n_node; i++)
        if (cc_sweep_scans(&t->loop->node[i]))
            cc_text_line(t, "__shared__ %s scan%d[%d];", cc_gen_cuda_type(cc_text_dtype(t, i)), i, n + 1);
    for (int i = 0; i < t->loop->n_node; i++)
        if (cc_text_reduces(&t->loop->node[i]))
            cc_text_line(t, "__shared__ %s shared%d[%d];", cc_gen_cuda_type(cc_text_dtype(t, i)), i, n);
}

static void begin_results(CcText *t, int sweep) {
    char none[48];
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!reduces_in(t, i, sweep)) continue;
        identity(t, i, none, sizeof none);
        cc_text_line(t, "%s t%d = %s;", cc_gen_cuda_type(cc_text_dtype(t, i)), i, none);
    }
}

/* Declares the scans' carries that are in registers, not in shared memory. -> does the sweep scan? */
static bool declare_carry(CcText *t, const CcTextChunk *c) {
    bool any = false;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!c->need[i] || !cc_sweep_scans(&t->loop->node[i])) continue;
        if (t->plan->group <= 32)
            cc_text_line(t, "%s carry%d_%d = 0;", cc_gen_cuda_type(cc_text_dtype(t, i)), i, c->sweep);
        any = true;
    }
    return any;
}

/* Prints the loop over this thread's chunks of a row. */
static int chunks(CcText *t, const CcTextChunk *c) {
    const CcCudaPlan *p = t->plan;
    if (c->all) {
        cc_text_line(t, "for (%s base = 0; base < arg.chunks; base += %d) {", cc_text_count(t), p->group);
        cc_text_line(t, "    const bool active = base + lane < end;");
        cc_text_line(t, "    const %s c = active ? base + lane : arg.chunks - 1;", cc_text_count(t));
    } else if (p->held) {
        cc_text_line(t, "#pragma unroll");
        cc_text_line(t, "for (int h = 0; h < %d; h++) {", p->held);
        t->depth++;
        cc_text_line(t, "const %s c = h * %d + lane;", cc_text_count(t), p->group);
        cc_text_line(t, "if (c < end) {");
    } else {
        if (!c->stores || p->sweeps.n == 1) cc_text_line(t, "#pragma unroll 4");
        cc_text_line(t, "for (%s c = %slane; c < end; c += %d) {", cc_text_count(t), p->split ? "begin + " : "",
                     p->group);
    }
    t->depth++;
    cc_text_decode(t, p->n_kept, cc_text_inner(t), "c");
    if (cc_text_chunk(t, c) < 0) return -1;
    cc_text_close(t);
    if (p->held) cc_text_close(t);
    return 0;
}

/* Prints a sweep over the elements of a row. */
static int elements(CcText *t, CcTextChunk *c, int sweep) {
    const CcCudaPlan *p = t->plan;
    bool ahead = false;
    c->sweep = sweep;
    c->stores = sweep == p->sweeps.n - 1;
    cc_sweep_need(t->loop, &p->sweeps, sweep, c->need);
    begin_results(t, sweep);
    c->all = declare_carry(t, c) && p->group > 1;
    for (int i = 0; i < t->loop->n_node; i++) ahead = ahead || cc_text_ahead(t, c, i);
    if (ahead) {
        c->loads = CC_LOADS_ONLY;
        if (chunks(t, c) < 0) return -1;
    }
    c->loads = ahead ? CC_LOADS_DONE : CC_LOADS_HERE;
    return chunks(t, c);
}

/* Prints the per-row nodes that are computable after `stage` sweeps. */
static int row_nodes(CcText *t, int stage) {
    const CcSweeps *s = &t->plan->sweeps;
    t->later = s->element;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (s->element[i] || s->stage[i] != stage || cc_text_reduces(&t->loop->node[i])) continue;
        if (cc_text_node(t, i, false) < 0) return -1;
    }
    t->later = NULL;
    return 0;
}

static void store_rows(CcText *t) {
    const CcLoop *loop = t->loop;
    bool any = false;
    for (int a = 0; a < loop->n_access; a++) any = any || (loop->access[a].is_store && !cc_text_along(t, a));
    if (!any) return;
    cc_text_line(t, "if (lane == 0 && alive) {");
    t->depth++;
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && !cc_text_along(t, a))
            cc_text_line(t, "*p%d = %s;", a, cc_gen_cuda_ref(loop, loop->access[a].node));
    cc_text_close(t);
}

/* Declares arrays for nodes that stay in registers between sweeps. */
static void declare_held(CcText *t) {
    const CcCudaPlan *p = t->plan;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!p->sweeps.kept[i]) continue;
        const char *type = cc_gen_cuda_memory(cc_text_dtype(t, i));
        if (p->vector > 1) cc_text_line(t, "cc_pack<%s, %d> h%d[%d];", type, p->vector, i, p->held);
        else cc_text_line(t, "%s h%d[%d];", type, i, p->held);
    }
}

/* The workspace slot of a partial result: [reduction][piece][row], 8 bytes each for any type. */
static void slot(CcText *t, int number, int i, const char *piece, char *out, size_t n) {
    snprintf(out, n, "*(%s *)(arg.workspace + ((%dLL * arg.pieces + %s) * arg.n + row) * 8)",
             cc_gen_cuda_type(cc_text_dtype(t, i)), number, piece);
}

static bool has_reductions(const CcText *t, int sweep) {
    for (int i = 0; i < t->loop->n_node; i++)
        if (reduces_in(t, i, sweep)) return true;
    return false;
}

static void store_partial(CcText *t, int sweep) {
    char at[160];
    int number = 0;
    cc_text_line(t, "if (lane == 0 && alive) {");
    t->depth++;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!cc_text_reduces(&t->loop->node[i])) continue;
        slot(t, number++, i, "piece", at, sizeof at);
        if (reduces_in(t, i, sweep)) cc_text_line(t, "%s = t%d;", at, i);
    }
    cc_text_close(t);
}

static int combine_partials(CcText *t, int sweep) {
    char at[160], part[16];
    int number = 0;
    begin_results(t, sweep);
    cc_text_line(t, "for (%s other = lane; other < arg.pieces; other += %d) {", cc_text_count(t), t->plan->group);
    t->depth++;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!cc_text_reduces(&t->loop->node[i])) continue;
        slot(t, number++, i, "other", at, sizeof at);
        if (!reduces_in(t, i, sweep)) continue;
        cc_text_line(t, "const %s part%d = %s;", cc_gen_cuda_type(cc_text_dtype(t, i)), i, at);
        snprintf(part, sizeof part, "part%d", i);
        if (cc_text_combine(t, i, part, "") < 0) return -1;
    }
    cc_text_close(t);
    return 0;
}

/* Prints the loop over the block's rows. Threads without a row stay in the loop, as barriers and shuffles need them. */
static void begin_rows(CcText *t, int part) {
    const CcCudaPlan *p = t->plan;
    const int columns = columns_of(t);
    const char *type = cc_text_count(t);
    declare_shared(t);
    if (p->kind == CC_CUDA_COLUMNS)
        cc_text_line(t, "const int own = threadIdx.x %% %d, lane = threadIdx.x / %d;", columns, columns);
    else if (columns > 1)
        cc_text_line(t, "const int own = threadIdx.x / %d, lane = threadIdx.x %% %d;", p->group, p->group);
    else cc_text_line(t, "const int lane = threadIdx.x;");
    const bool pieces = p->split && part < p->sweeps.n;
    const char *block = "blockIdx.x";
    if (pieces) {
        cc_text_line(t, "const %s piece = blockIdx.x %% arg.pieces;", type);
        cc_text_line(t, "const %s begin = piece * arg.piece < arg.chunks ? piece * arg.piece : arg.chunks;", type);
        cc_text_line(t, "const %s last = arg.chunks - begin < arg.piece ? arg.chunks : begin + arg.piece;", type);
        block = "blockIdx.x / arg.pieces";
    }
    cc_text_line(t, "for (%s first = (%s)(%s) * %d; first < arg.n; first += (%s)gridDim.x * %d) {", type, type, block,
                 columns, type, columns);
    t->depth++;
    if (columns > 1) {
        cc_text_line(t, "const bool alive = first + own < arg.n;");
        cc_text_line(t, "const %s row = alive ? first + own : arg.n - 1;", type);
        if (part < p->sweeps.n) cc_text_line(t, "const %s end = alive ? %s : 0;", type, pieces ? "last" : "arg.chunks");
    } else {
        cc_text_line(t, "const bool alive = true;");
        cc_text_line(t, "const %s row = first;", type);
        if (part < p->sweeps.n) cc_text_line(t, "const %s end = %s;", type, pieces ? "last" : "arg.chunks");
    }
    if (p->n_kept) cc_text_decode(t, 0, p->n_kept - 1, "row");
    for (int a = 0; a < t->loop->n_access; a++)
        if (!t->loop->access[a].number) cc_text_place(t, 'p', "arg.a", a, 0, p->n_kept - 1);
}

/* Prints all sweeps. split: earlier parts did the sweeps before this one; combines their partial results. */
static int sweeps(CcText *t, CcTextChunk *c, int part) {
    const CcCudaPlan *p = t->plan;
    if (row_nodes(t, 0) < 0) return -1;
    for (int s = 0; s < p->sweeps.n && (!p->split || s <= part); s++) {
        if ((p->split && s < part ? combine_partials(t, s) : elements(t, c, s)) < 0 || across_group(t, s) < 0)
            return -1;
        if (!p->split || s < part) {
            if (row_nodes(t, s + 1) < 0) return -1;
        } else if (has_reductions(t, s)) {
            store_partial(t, s);
        }
    }
    if (!p->split || part == p->sweeps.n) store_rows(t);
    return 0;
}

int cc_text_rows(CcText *t, const char *name, int part) {
    CcTextChunk *c = calloc(1, sizeof *c);
    if (!c) return cc_err_set(t->err, CC_E_MEMORY, "no memory for a kernel's text");
    cc_text_varying(t, c->varies);
    cc_text_begin(t, name, part);
    begin_rows(t, part);
    declare_held(t);
    const int status = sweeps(t, c, part);
    cc_text_close(t);
    cc_text_close(t);
    free(c);
    return status;
}
