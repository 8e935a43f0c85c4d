/* gen_sweep: prints the body of a loop that reduces. It processes a row in sweeps (loop/sweep.c):
 *
 *   by rows      row:  for each sweep: for each line: vectors of the line, unrolled, each copy with its own accumulators;
 *                the line's tail one vector at a time, under a mask; then copies and lanes are combined; nodes that
 *                depend on the row alone are computed in all lanes
 *   by columns   row:  for each vector of columns, unrolled: for each sweep: for each reduced index ...
 *                lanes are independent; the last columns again one vector at a time, under a mask
 *
 * To be as accurate as eager, which uses cascade summation, long sums are divided into chunks: every chunk starts its
 * accumulators at zero and adds few terms to each, and Kahan summation adds the chunks.
 * A loop of a single sweep can stop with its partial results, or start from them (CcSplit). Scans cannot, as their
 * vectors depend on one another. */
#include <math.h>

#include "gen_int.h"

enum {
    LINES = 4, /* unroll factor over lines if there is one vector of columns */
    SLOT = 8,
    MAX_LANES = CC_COMBINE_LANES,
    CHUNK = 64, /* terms that a chunk adds to each accumulator */
};

#define TEXT(...) cc_sbuf_add(s->e->body, __VA_ARGS__)

int64_t cc_gen_state_bytes(const CcLoop *loop, int64_t n) {
    int reductions = 0;
    for (int i = 0; i < loop->n_node; i++) reductions += cc_scalar_info((CcScalarId)loop->node[i].op)->kind == 'R';
    return ((loop->columns ? n : 0) + MAX_LANES) * SLOT * reductions;
}

/* By columns a line holds, per element of a column, the vectors of one iteration, at most 64 bytes each. */
int64_t cc_gen_scratch_bytes(const CcLoop *loop, int64_t n, int64_t elements) {
    if (!loop->columns) return elements * SLOT + MAX_LANES * SLOT;
    return elements * CC_MAX(64, CC_MIN(64 * CC_SWEEP_COPIES, n * SLOT));
}

static void make_mask(CcSweep *s, const char *left) {
    const int n = s->e->lanes;
    CcRef narrow, put, all;
    cc_emit_op(s->e, narrow, "trunc i64 %s to i32", left);
    cc_emit_op(s->e, put, "insertelement <%d x i32> poison, i32 %s, i32 0", n, narrow);
    cc_emit_op(s->e, all, "shufflevector <%d x i32> %s, <%d x i32> poison, <%d x i32> zeroinitializer", n, put, n, n);
    cc_emit_op(s->e, s->mask, "icmp slt <%d x i32> %%iota, %s", n, all);
}

/* ------------------------------------------------------------------ loops */

/* Phis of the accumulators: from `pre` the identity (fresh) or their current value, from `back` "%l<id>.b<j>.<copy>". */
static void begin_partial(CcSweep *s, int id, const char *pre, const char *back, bool fresh) {
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < s->copies; u++) {
            CcRef from;
            if (fresh) cc_element_identity(s, j, from);
            else strcpy(from, s->acc[j][u]);
            TEXT("  %%l%d.a%d.%d = phi %s [%s, %%%s], [%%l%d.b%d.%d, %%%s]\n", id, j, u, cc_element_type(s, j), from,
                 pre, id, j, u, back);
            snprintf(s->acc[j][u], sizeof(CcRef), "%%l%d.a%d.%d", id, j, u);
        }
}

/* Binds the accumulators to the names that begin_partial's phis use. */
static void end_partial(CcSweep *s, int id) {
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < s->copies; u++) {
            const char *t = cc_element_type(s, j);
            TEXT("  %%l%d.b%d.%d = bitcast %s %s to %s\n", id, j, u, t, s->acc[j][u], t);
            snprintf(s->acc[j][u], sizeof(CcRef), "%%l%d.b%d.%d", id, j, u);
        }
}

static int combine_copies(CcSweep *s) {
    for (int j = 0; j < s->n; j++)
        for (int half = s->copies / 2; half > 0; half /= 2)
            for (int u = 0; u < half; u++)
                if (cc_element_combine(s, j, s->acc[j][u], s->acc[j][u + half], s->acc[j][u]) < 0) return -1;
    return 0;
}

/* The unrolled loop over whole vectors of a line. */
static int whole_vectors(CcSweep *s, int id) {
    char here[24], pre[24];
    snprintf(here, sizeof here, "l%d", id);
    snprintf(pre, sizeof pre, "l%d.pre", id);
    const int step = s->copies * s->e->lanes;
    TEXT("  %%l%d.last = sub i64 %s, %d\n  %%l%d.has = icmp sle i64 %s, %%l%d.last\n  br label %%%s\n%s:\n", id, s->end,
         step, id, s->begin, id, pre, pre);
    TEXT("  br i1 %%l%d.has, label %%%s, label %%l%d.rest\n%s:\n", id, here, id, here);
    TEXT("  %%l%d.i = phi i64 [%s, %%%s], [%%l%d.n, %%%s]\n", id, s->begin, pre, id, here);
    begin_partial(s, id, pre, here, true);
    snprintf(s->lane, sizeof s->lane, "%%l%d.i", id);
    *s->mask = 0;
    for (int u = 0; u < s->copies; u++)
        if (cc_element_compute(s, u) < 0) return -1;
    end_partial(s, id);
    TEXT("  %%l%d.n = add i64 %%l%d.i, %d\n  %%l%d.c = icmp sle i64 %%l%d.n, %%l%d.last\n", id, id, step, id, id, id);
    TEXT("  br i1 %%l%d.c, label %%%s, label %%l%d.sum\nl%d.sum:\n", id, here, id, id);
    return combine_copies(s);
}

/* The rest of a line, one vector at a time, under a mask. */
static int rest_of_line(CcSweep *s, int id) {
    const int m = s->e->next++, copies = s->copies;
    char here[24], pre[24];
    CcRef none, left;
    snprintf(here, sizeof here, "l%d", m);
    snprintf(pre, sizeof pre, "l%d.rest", id);
    TEXT("  br label %%%s\n%s:\n  %%l%d.r = phi i64 [%s, %%l%d.pre], [%%l%d.n, %%l%d.sum]\n", pre, pre, id, s->begin,
         id, id, id);
    for (int j = 0; j < s->n; j++) {
        cc_element_identity(s, j, none);
        TEXT("  %%l%d.z%d = phi %s [%s, %%l%d.pre], [%s, %%l%d.sum]\n", id, j, cc_element_type(s, j), none, id,
             s->acc[j][0], id);
        snprintf(s->acc[j][0], sizeof(CcRef), "%%l%d.z%d", id, j);
    }
    TEXT("  %%l%d.more = icmp slt i64 %%l%d.r, %s\n  br i1 %%l%d.more, label %%%s, label %%l%d.done\n%s:\n", id, id,
         s->end, id, here, id, here);
    TEXT("  %%l%d.i = phi i64 [%%l%d.r, %%%s], [%%l%d.n, %%%s]\n", m, id, pre, m, here);
    s->copies = 1;
    begin_partial(s, m, pre, here, false);
    snprintf(s->lane, sizeof s->lane, "%%l%d.i", m);
    cc_emit_op(s->e, left, "sub i64 %s, %%l%d.i", s->end, m);
    make_mask(s, left);
    if (cc_element_compute(s, 0) < 0) return -1;
    end_partial(s, m);
    TEXT("  %%l%d.n = add i64 %%l%d.i, %d\n  %%l%d.c = icmp slt i64 %%l%d.n, %s\n", m, m, s->e->lanes, m, m, s->end);
    TEXT("  br i1 %%l%d.c, label %%%s, label %%l%d.done\nl%d.done:\n", m, here, id, id);
    for (int j = 0; j < s->n; j++) {
        TEXT("  %%l%d.v%d = phi %s [%%l%d.z%d, %%%s], [%s, %%%s]\n", id, j, cc_element_type(s, j), id, j, pre,
             s->acc[j][0], here);
        snprintf(s->acc[j][0], sizeof(CcRef), "%%l%d.v%d", id, j);
    }
    s->copies = copies;
    *s->mask = 0;
    return 0;
}

static int one_line(CcSweep *s) {
    const int id = s->e->next++;
    return whole_vectors(s, id) < 0 ? -1 : rest_of_line(s, id);
}

/* Opens the loop over reduced dim d, which advances all pointers along it. */
static void open_line(CcSweep *s, int id, int d, const char *begin, bool partial) {
    char pre[24], back[24];
    snprintf(pre, sizeof pre, "l%d.pre", id);
    snprintf(back, sizeof back, "l%d.end", id);
    TEXT("  br label %%%s\n%s:\n  br label %%l%d\nl%d:\n  %%l%d.i = phi i64 [%s, %%%s], [%%l%d.n, %%%s]\n", pre, pre,
         id, id, id, begin, pre, id, back);
    for (int k = 0; k < s->loop->n_access; k++) {
        if (!s->loop->access[k].line) continue;
        TEXT("  %%l%d.p%d = phi ptr [%s, %%%s], [%%l%d.q%d, %%%s]\n", id, k, s->at[k], pre, id, k, back);
        snprintf(s->at[k], sizeof(CcRef), "%%l%d.p%d", id, k);
    }
    if (partial) begin_partial(s, id, pre, back, true);
    if (!s->plan.n_kept) return;
    CcRef before;
    cc_emit_op(s->e, before, "mul i64 %s, %%line%d", s->line, d);
    cc_emit_op(s->e, s->line, "add i64 %s, %%l%d.i", before, id);
}

static void close_line(CcSweep *s, int id, int d, const char *end) {
    TEXT("  br label %%l%d.end\nl%d.end:\n  %%l%d.n = add i64 %%l%d.i, 1\n", id, id, id, id);
    for (int k = 0; k < s->loop->n_access; k++)
        if (s->loop->access[k].line)
            TEXT("  %%l%d.q%d = getelementptr i8, ptr %%l%d.p%d, i64 %%g%d.l%d\n", id, k, id, k, k, d);
    TEXT("  %%l%d.c = icmp slt i64 %%l%d.n, %s\n  br i1 %%l%d.c, label %%l%d, label %%l%d.done\nl%d.done:\n", id, id,
         end, id, id, id, id);
}

/* Prints the elements of LINES successive lines. */
static int next_lines(CcSweep *s, int d) {
    CcRef *first = malloc(sizeof s->at);
    if (!first) return cc_err_set(s->e->err, CC_E_MEMORY, "no memory for a kernel's text");
    memcpy(first, s->at, sizeof s->at);
    int status = 0;
    for (int u = 0; u < LINES && status == 0; u++) {
        for (int k = 0; k < s->loop->n_access && u; k++)
            if (s->loop->access[k].line)
                cc_emit_op(s->e, s->at[k], "getelementptr i8, ptr %s, i64 %%g%d.l%d", s->at[k], k, d);
        status = cc_element_compute(s, u);
    }
    memcpy(s->at, first, sizeof s->at);
    free(first);
    return status;
}

/* Unrolls over LINES lines with accumulators of their own, as a single vector of columns would wait for the latency of
 * each addition: 6241 lines of 16 floats take 5 us instead of 25 (Zen 4). The remaining lines continue at label
 * "l<id>.rest" with the pointers and accumulators defined there. */
static int several_lines(CcSweep *s, int id) {
    const int m = s->e->next++, d = s->n_line - 1;
    char pre[24], here[24], sum[24];
    snprintf(pre, sizeof pre, "l%d.pre", id);
    snprintf(here, sizeof here, "l%d", m);
    snprintf(sum, sizeof sum, "l%d.sum", m);
    TEXT("  %%l%d.last = sub i64 %s, %d\n  %%l%d.has = icmp sle i64 %s, %%l%d.last\n  br label %%%s\n%s:\n", m, s->end,
         LINES, m, s->begin, m, pre, pre);
    TEXT("  br i1 %%l%d.has, label %%%s, label %%l%d.rest\n%s:\n", m, here, id, here);
    TEXT("  %%l%d.i = phi i64 [%s, %%%s], [%%l%d.n, %%%s]\n", m, s->begin, pre, m, here);
    CcRef *first = malloc(sizeof s->at);
    if (!first) return cc_err_set(s->e->err, CC_E_MEMORY, "no memory for a kernel's text");
    memcpy(first, s->at, sizeof s->at);
    for (int k = 0; k < s->loop->n_access; k++) {
        if (!s->loop->access[k].line) continue;
        TEXT("  %%l%d.p%d = phi ptr [%s, %%%s], [%%l%d.q%d, %%%s]\n", m, k, s->at[k], pre, m, k, here);
        snprintf(s->at[k], sizeof(CcRef), "%%l%d.p%d", m, k);
    }
    s->copies = LINES;
    s->by_lines = true;
    begin_partial(s, m, pre, here, true);
    int status = next_lines(s, d);
    if (status == 0) {
        end_partial(s, m);
        TEXT("  %%l%d.n = add i64 %%l%d.i, %d\n  %%l%d.c = icmp sle i64 %%l%d.n, %%l%d.last\n", m, m, LINES, m, m, m);
        for (int k = 0; k < s->loop->n_access; k++)
            if (s->loop->access[k].line)
                TEXT(
                    "  %%l%d.m%d = mul i64 %%g%d.l%d, %d\n  %%l%d.q%d = getelementptr i8, ptr %%l%d.p%d, i64 %%l%d.m%d\n",
                    m, k, k, d, LINES, m, k, m, k, m, k);
        TEXT("  br i1 %%l%d.c, label %%%s, label %%%s\n%s:\n", m, here, sum, sum);
        status = combine_copies(s);
    }
    s->copies = 1;
    s->by_lines = false;
    TEXT("  br label %%l%d.rest\nl%d.rest:\n  %%l%d.r = phi i64 [%s, %%%s], [%%l%d.n, %%%s]\n", id, id, id, s->begin,
         pre, m, sum);
    for (int k = 0; k < s->loop->n_access; k++) {
        if (!s->loop->access[k].line) continue;
        TEXT("  %%l%d.y%d = phi ptr [%s, %%%s], [%%l%d.q%d, %%%s]\n", id, k, first[k], pre, m, k, sum);
        snprintf(s->at[k], sizeof(CcRef), "%%l%d.y%d", id, k);
    }
    for (int j = 0; j < s->n; j++) {
        CcRef none;
        cc_element_identity(s, j, none);
        TEXT("  %%l%d.z%d = phi %s [%s, %%%s], [%s, %%%s]\n", id, j, cc_element_type(s, j), none, pre, s->acc[j][0],
             sum);
        snprintf(s->acc[j][0], sizeof(CcRef), "%%l%d.z%d", id, j);
    }
    free(first);
    return status;
}

/* The remaining lines, one by one. "%l<id>.q<access>" are the pointers behind them. */
static int other_lines(CcSweep *s, int id) {
    const int m = s->e->next++, d = s->n_line - 1;
    char rest[24], end[24];
    snprintf(rest, sizeof rest, "l%d.rest", id);
    snprintf(end, sizeof end, "l%d.end", m);
    TEXT("  %%l%d.more = icmp slt i64 %%l%d.r, %s\n  br i1 %%l%d.more, label %%l%d, label %%l%d.done\nl%d:\n", id, id,
         s->end, id, m, id, m);
    TEXT("  %%l%d.i = phi i64 [%%l%d.r, %%%s], [%%l%d.n, %%%s]\n", m, id, rest, m, end);
    for (int k = 0; k < s->loop->n_access; k++) {
        if (!s->loop->access[k].line) continue;
        TEXT("  %%l%d.p%d = phi ptr [%%l%d.y%d, %%%s], [%%l%d.q%d, %%%s]\n", m, k, id, k, rest, m, k, end);
        snprintf(s->at[k], sizeof(CcRef), "%%l%d.p%d", m, k);
    }
    begin_partial(s, m, rest, end, false);
    if (cc_element_compute(s, 0) < 0) return -1;
    end_partial(s, m);
    TEXT("  br label %%%s\n%s:\n  %%l%d.n = add i64 %%l%d.i, 1\n", end, end, m, m);
    for (int k = 0; k < s->loop->n_access; k++)
        if (s->loop->access[k].line)
            TEXT("  %%l%d.q%d = getelementptr i8, ptr %%l%d.p%d, i64 %%g%d.l%d\n", m, k, m, k, k, d);
    TEXT("  %%l%d.c = icmp slt i64 %%l%d.n, %s\n  br i1 %%l%d.c, label %%l%d, label %%l%d.done\nl%d.done:\n", m, m,
         s->end, m, m, id, id);
    for (int k = 0; k < s->loop->n_access; k++)
        if (s->loop->access[k].line)
            TEXT("  %%l%d.q%d = phi ptr [%%l%d.y%d, %%%s], [%%l%d.q%d, %%%s]\n", id, k, id, k, rest, m, k, end);
    for (int j = 0; j < s->n; j++) {
        TEXT("  %%l%d.v%d = phi %s [%%l%d.z%d, %%%s], [%s, %%%s]\n", id, j, cc_element_type(s, j), id, j, rest,
             s->acc[j][0], end);
        snprintf(s->acc[j][0], sizeof(CcRef), "%%l%d.v%d", id, j);
    }
    return 0;
}

/* Can lines be unrolled? Not scans, which depend on the line above, nor lines kept in scratch. */
static bool unrolls_lines(const CcSweep *s) {
    return s->loop->columns && s->copies == 1 && s->n && !s->plan.n_kept && !s->loop->scans;
}

/* The innermost loop of columns. */
static int down_columns(CcSweep *s) {
    const int id = s->e->next++, d = s->n_line - 1;
    strcpy(s->lane, "0");
    if (unrolls_lines(s)) return several_lines(s, id) < 0 ? -1 : other_lines(s, id);
    open_line(s, id, d, s->begin, true);
    for (int u = 0; u < s->copies; u++)
        if (cc_element_compute(s, u) < 0) return -1;
    end_partial(s, id);
    close_line(s, id, d, s->end);
    return 0;
}

static int copies_of_total(const CcSweep *s) { return s->loop->columns ? s->copies : 1; }
static bool by_kahan(const CcSweep *s, int j) {
    const CcLoopNode *n = &s->loop->node[s->reduction[j]];
    return n->op == CC_S_rsum && cc_dtype_is_float(n->dtype);
}

/* Kahan: total += chunk; the rounding error is subtracted from the next chunk. An infinite total has no error. */
static int add_chunk(CcSweep *s, int id, int j, int u) {
    const char *t = cc_element_type(s, j);
    CcRef y, sum, moved, lost, bad;
    if (!by_kahan(s, j)) {
        CcRef total;
        snprintf(total, sizeof total, "%%l%d.t%d.%d", id, j, u);
        if (cc_element_combine(s, j, total, s->acc[j][u], sum) < 0) return -1;
    } else {
        cc_emit_op(s->e, y, "fsub %s %s, %%l%d.k%d.%d", t, s->acc[j][u], id, j, u);
        cc_emit_op(s->e, sum, "fadd %s %%l%d.t%d.%d, %s", t, id, j, u, y);
        cc_emit_op(s->e, moved, "fsub %s %s, %%l%d.t%d.%d", t, sum, id, j, u);
        cc_emit_op(s->e, lost, "fsub %s %s, %s", t, moved, y);
        cc_emit_op(s->e, bad, "fcmp uno %s %s, %s", t, lost, lost);
        TEXT("  %%l%d.m%d.%d = select %s %s, %s zeroinitializer, %s %s\n", id, j, u, cc_emit_vector(s->e, "i1"), bad, t,
             t, lost);
    }
    TEXT("  %%l%d.s%d.%d = bitcast %s %s to %s\n", id, j, u, cc_element_type(s, j), sum, cc_element_type(s, j));
    snprintf(s->acc[j][u], sizeof(CcRef), "%%l%d.s%d.%d", id, j, u);
    return 0;
}

static void begin_totals(CcSweep *s, int id) {
    CcRef none;
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < copies_of_total(s); u++) {
            cc_element_identity(s, j, none);
            TEXT("  %%l%d.t%d.%d = phi %s [%s, %%l%d.pre], [%%l%d.s%d.%d, %%l%d.end]\n", id, j, u,
                 cc_element_type(s, j), none, id, id, j, u, id);
            if (by_kahan(s, j))
                TEXT("  %%l%d.k%d.%d = phi %s [zeroinitializer, %%l%d.pre], [%%l%d.m%d.%d, %%l%d.end]\n", id, j, u,
                     cc_element_type(s, j), id, id, j, u, id);
        }
}

/* The loop over chunks, around the vector loop of rows or the innermost loop of columns. */
static int in_chunks(CcSweep *s) {
    const int id = s->e->next++;
    char size[24] = "%n";
    if (s->loop->columns) snprintf(size, sizeof size, "%%line%d", s->n_line - 1);
    strcpy(s->begin, "0");
    strcpy(s->end, size);
    if (s->n == 0) return s->loop->columns ? down_columns(s) : one_line(s);
    TEXT("  br label %%l%d.pre\nl%d.pre:\n  br label %%l%d\nl%d:\n", id, id, id, id);
    TEXT("  %%l%d.i = phi i64 [0, %%l%d.pre], [%%l%d.n, %%l%d.end]\n", id, id, id, id);
    const int next = s->e->next; /* id of the loop down columns, whose end pointers start the next chunk */
    for (int k = 0; k < s->loop->n_access && s->loop->columns; k++) {
        if (!s->loop->access[k].line) continue;
        TEXT("  %%l%d.p%d = phi ptr [%s, %%l%d.pre], [%%l%d.q%d, %%l%d.end]\n", id, k, s->at[k], id, next, k, id);
        snprintf(s->at[k], sizeof(CcRef), "%%l%d.p%d", id, k);
    }
    begin_totals(s, id);
    TEXT("  %%l%d.f = add i64 %%l%d.i, %d\n  %%l%d.c = icmp slt i64 %%l%d.f, %s\n", id, id,
         CHUNK * (unrolls_lines(s)   ? LINES
                  : s->loop->columns ? 1
                                     : s->copies * s->e->lanes),
         id, id, size);
    TEXT("  %%l%d.n = select i1 %%l%d.c, i64 %%l%d.f, i64 %s\n", id, id, id, size);
    snprintf(s->begin, sizeof s->begin, "%%l%d.i", id);
    snprintf(s->end, sizeof s->end, "%%l%d.n", id);
    if ((s->loop->columns ? down_columns(s) : one_line(s)) < 0) return -1;
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < copies_of_total(s); u++)
            if (add_chunk(s, id, j, u) < 0) return -1;
    TEXT("  br label %%l%d.end\nl%d.end:\n  br i1 %%l%d.c, label %%l%d, label %%l%d.done\nl%d.done:\n", id, id, id, id,
         id, id);
    return 0;
}

/* Adds a line's accumulators, in registers, to the totals of all lines, in memory. */
static int add_to_totals(CcSweep *s) {
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < copies_of_total(s); u++) {
            const char *t = cc_element_type(s, j);
            CcRef total;
            cc_emit_op(s->e, total, "load %s, ptr %%tot%d.%d", t, s->reduction[j], u);
            if (cc_element_combine(s, j, total, s->acc[j][u], total) < 0) return -1;
            TEXT("  store %s %s, ptr %%tot%d.%d\n", cc_element_type(s, j), total, s->reduction[j], u);
        }
    return 0;
}

static int in_lines(CcSweep *s, int d, int until) {
    if (d == until) {
        if (in_chunks(s) < 0) return -1;
        return until > 0 ? add_to_totals(s) : 0;
    }
    const int id = s->e->next++;
    CcRef *before = malloc(sizeof s->at), line;
    char size[24];
    if (!before) return cc_err_set(s->e->err, CC_E_MEMORY, "no memory for a kernel's text");
    memcpy(before, s->at, sizeof s->at);
    strcpy(line, s->line);
    snprintf(size, sizeof size, "%%line%d", d);
    open_line(s, id, d, "0", false);
    const int status = in_lines(s, d + 1, until);
    close_line(s, id, d, size);
    memcpy(s->at, before, sizeof s->at);
    strcpy(s->line, line);
    free(before);
    return status;
}

static int lines(CcSweep *s) {
    const int until = s->loop->columns ? s->n_line - 1 : s->n_line;
    CcRef none;
    for (int j = 0; j < s->n && until > 0; j++)
        for (int u = 0; u < copies_of_total(s); u++) {
            cc_element_identity(s, j, none);
            TEXT("  store %s %s, ptr %%tot%d.%d\n", cc_element_type(s, j), none, s->reduction[j], u);
        }
    strcpy(s->line, "0");
    CcRef *before = malloc(sizeof s->at);
    if (!before) return cc_err_set(s->e->err, CC_E_MEMORY, "no memory for a kernel's text");
    memcpy(before, s->at, sizeof s->at);
    const int status = in_lines(s, 0, until);
    memcpy(s->at, before, sizeof s->at);
    free(before);
    for (int j = 0; j < s->n && until > 0; j++)
        for (int u = 0; u < copies_of_total(s); u++)
            cc_emit_op(s->e, s->acc[j][u], "load %s, ptr %%tot%d.%d", cc_element_type(s, j), s->reduction[j], u);
    return status;
}

/* ------------------------------------------------------------------ pieces of rows */

static int slot_of(const CcSweep *s, int j, int copy) { return (copy * s->n_reduction + j) * SLOT * s->e->lanes; }

/* Address of the current columns' partial results in %state. */
static void own_state(CcSweep *s, CcRef out) {
    CcRef offset;
    strcpy(out, "%state");
    if (!s->loop->columns) return;
    cc_emit_op(s->e, offset, "mul i64 %s, %d", s->origin, SLOT * s->n_reduction);
    cc_emit_op(s->e, out, "getelementptr i8, ptr %%state, i64 %s", offset);
}

/* PIECE: stores the partial results and skips the rest. FINISH: combines those of all pieces. */
static int pieces(CcSweep *s, int id) {
    CcRef at, x, state;
    TEXT("  br i1 %%ispiece, label %%l%d.leave, label %%l%d.go\nl%d.leave:\n", id, id, id);
    own_state(s, state);
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < copies_of_total(s); u++) {
            cc_emit_op(s->e, at, "getelementptr i8, ptr %s, i64 %d", state, slot_of(s, j, u));
            TEXT("  store %s %s, ptr %s, align 8\n", cc_element_type(s, j), s->acc[j][u], at);
        }
    TEXT("  br label %%%s\nl%d.go:\n  br label %%l%d.join\nl%d.finish:\n", s->skip, id, id, id);
    own_state(s, state);
    CcRef whole[CC_SWEEP_REDUCTIONS][CC_SWEEP_COPIES];
    memcpy(whole, s->acc, sizeof whole);
    TEXT("  br label %%l%d.pre\nl%d.pre:\n  br label %%l%d\nl%d:\n", id, id, id, id);
    TEXT("  %%l%d.i = phi i64 [0, %%l%d.pre], [%%l%d.n, %%l%d]\n", id, id, id, id);
    TEXT("  %%l%d.p = phi ptr [%s, %%l%d.pre], [%%l%d.q, %%l%d]\n", id, state, id, id, id);
    char pre[24], here[24];
    snprintf(pre, sizeof pre, "l%d.pre", id);
    snprintf(here, sizeof here, "l%d", id);
    const int copies = s->copies;
    s->copies = copies_of_total(s);
    begin_partial(s, id, pre, here, true);
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < s->copies; u++) {
            cc_emit_op(s->e, at, "getelementptr i8, ptr %%l%d.p, i64 %d", id, slot_of(s, j, u));
            cc_emit_op(s->e, x, "load %s, ptr %s, align 8", cc_element_type(s, j), at);
            if (cc_element_combine(s, j, s->acc[j][u], x, s->acc[j][u]) < 0) return -1;
        }
    end_partial(s, id);
    TEXT("  %%l%d.q = getelementptr i8, ptr %%l%d.p, i64 %%statebytes\n  %%l%d.n = add i64 %%l%d.i, 1\n", id, id, id,
         id);
    TEXT("  %%l%d.c = icmp slt i64 %%l%d.n, %%pieces\n  br i1 %%l%d.c, label %%l%d, label %%l%d.join\nl%d.join:\n", id,
         id, id, id, id, id);
    for (int j = 0; j < s->n; j++)
        for (int u = 0; u < s->copies; u++) {
            TEXT("  %%l%d.v%d.%d = phi %s [%s, %%l%d.go], [%s, %%l%d]\n", id, j, u, cc_element_type(s, j), whole[j][u],
                 id, s->acc[j][u], id);
            snprintf(s->acc[j][u], sizeof(CcRef), "%%l%d.v%d.%d", id, j, u);
        }
    s->copies = copies;
    return 0;
}

/* ------------------------------------------------------------------ rows */

static void begin_sweep(CcSweep *s, int number) {
    float cost = 0;
    s->number = number;
    s->n = 0;
    cc_sweep_need(s->loop, &s->plan, number, s->need);
    for (int i = 0; i < s->loop->n_node; i++) {
        const CcLoopNode *n = &s->loop->node[i];
        if (cc_element_reduces(n) && s->plan.stage[n->a[0]] == number) s->reduction[s->n++] = i;
        const bool later = s->plan.kept[i] && s->plan.first[i] < number;
        if (s->need[i] && !later) cost += cc_sweep_cost(n);
    }
    /* Unrolling hides the accumulators' latency; expensive elements hide it themselves. */
    if (!s->loop->columns) s->copies = cost <= 4 ? 4 : cost <= 9 ? 2 : 1;
}

static int do_sweep(CcSweep *s, int number) {
    const int id = s->e->next++;
    begin_sweep(s, number);
    cc_element_begin(s);
    const bool cut = s->plan.n == 1 && !s->loop->scans;
    if (cut) TEXT("  br i1 %%isfinish, label %%l%d.finish, label %%l%d.work\nl%d.work:\n", id, id, id);
    if (lines(s) < 0 || (cut && pieces(s, id) < 0)) return -1;
    for (int j = 0; j < s->n; j++) {
        if (!s->loop->columns &&
            cc_combine_lanes(s->e, cc_element_op(s, j), cc_element_dtype(s, s->reduction[j]), s->acc[j][0]) < 0)
            return -1;
        for (int u = 0; u < CC_SWEEP_COPIES; u++)
            strcpy(s->ref[u][s->reduction[j]], s->acc[j][s->loop->columns && s->copies > 1 ? u : 0]);
    }
    return 0;
}

/* Prints the per-row nodes that are computable after `stage` sweeps. */
static int row_nodes(CcSweep *s, int stage) {
    const CcLoop *loop = s->loop;
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        if (s->plan.element[i] || s->plan.stage[i] != stage || cc_element_reduces(n)) continue;
        for (int u = 0; u < (loop->columns ? s->copies : 1); u++) {
            s->e->ref = s->ref[u];
            strcpy(s->lane, "0");
            if (cc_loop_access(n) >= 0) cc_element_fetch(s, i, u);
            else if (cc_emit_node(s->e, i) < 0) return -1;
        }
        for (int u = 1; u < CC_SWEEP_COPIES && (!loop->columns || s->copies == 1); u++)
            strcpy(s->ref[u][i], s->ref[0][i]);
    }
    return 0;
}

static void store_rows(CcSweep *s) {
    strcpy(s->lane, "0");
    for (int k = 0; k < s->loop->n_access; k++) {
        const CcLoopAccess *a = &s->loop->access[k];
        if (!a->is_store || cc_sweep_along(s->loop, a)) continue;
        for (int u = 0; u < s->copies && s->loop->columns; u++) cc_element_store(s, k, u);
        if (s->loop->columns) continue;
        CcRef x;
        cc_emit_op(s->e, x, "extractelement %s %s, i32 0", cc_emit_type(s->e, (CcDtype)a->dtype), s->ref[0][a->node]);
        if (a->dtype == CC_DT_BOOL) cc_emit_op(s->e, x, "zext i1 %s to i8", x);
        TEXT("  store %s %s, ptr %s, align %d\n", cc_emit_memory((CcDtype)a->dtype), x, s->at[k],
             cc_dtype_size(a->dtype));
    }
}

/* Advances the pointers of rows that are gathered at an index. */
static void take_rows(CcSweep *s) {
    for (int i = 0; i < s->loop->n_node; i++) {
        const CcLoopNode *n = &s->loop->node[i];
        if (n->op != CC_S_take || s->loop->access[n->a[1]].taken != CC_TAKEN_ROW) continue;
        CcRef index, *at = &s->at[n->a[1]];
        cc_emit_op(s->e, index, "extractelement <%d x i64> %s, i32 0", s->e->lanes, s->ref[0][n->a[0]]);
        cc_emit_op(s->e, index, "mul i64 %s, %lld", index, (long long)n->bits);
        cc_emit_op(s->e, *at, "getelementptr i8, ptr %s, i64 %s", *at, index);
    }
}

static int sweeps(CcSweep *s) {
    if (row_nodes(s, 0) < 0) return -1;
    take_rows(s);
    for (int i = 0; i < s->plan.n; i++)
        if (do_sweep(s, i) < 0 || row_nodes(s, i + 1) < 0) return -1;
    store_rows(s);
    TEXT("  br label %%%s\n", s->skip);
    return 0;
}

static void move_to_column(CcSweep *s) {
    CcRef offset;
    for (int k = 0; k < s->loop->n_access; k++) {
        const CcLoopAccess *a = &s->loop->access[k];
        snprintf(s->at[k], sizeof(CcRef), "%%p%d", k);
        strcpy(offset, s->origin);
        if (a->step == CC_STEP_BACK) cc_emit_op(s->e, offset, "sub i64 0, %s", s->origin);
        if (a->step == CC_STEP_ONE || a->step == CC_STEP_BACK)
            cc_emit_op(s->e, s->at[k], "getelementptr %s, ptr %s, i64 %s", cc_emit_memory((CcDtype)a->dtype), s->at[k],
                       offset);
        if (a->step != CC_STEP_ANY) continue;
        cc_emit_op(s->e, offset, "mul i64 %%s%d, %s", k, s->origin);
        cc_emit_op(s->e, s->at[k], "getelementptr i8, ptr %s, i64 %s", s->at[k], offset);
    }
}

static int columns(CcSweep *s) {
    float cost = 0;
    for (int i = 0; i < s->loop->n_node; i++) cost += cc_sweep_cost(&s->loop->node[i]);
    s->copies = cost <= 8 ? 4 : cost <= 20 ? 2 : 1;
    const int step = s->copies * s->e->lanes;
    TEXT("  %%c.last = sub i64 %%n, %d\n  %%c.has = icmp sge i64 %%c.last, 0\n", step);
    TEXT("  br i1 %%c.has, label %%c, label %%c.rest\nc:\n  %%c.i = phi i64 [0, %%row], [%%c.n, %%c.next]\n");
    strcpy(s->origin, "%c.i");
    s->skip = "c.next";
    move_to_column(s);
    if (sweeps(s) < 0) return -1;
    TEXT("c.next:\n  %%c.n = add i64 %%c.i, %d\n  %%c.c = icmp sle i64 %%c.n, %%c.last\n", step);
    TEXT("  br i1 %%c.c, label %%c, label %%c.rest\nc.rest:\n  %%c.r = phi i64 [0, %%row], [%%c.n, %%c.next]\n");
    TEXT("  %%c.more = icmp slt i64 %%c.r, %%n\n  br i1 %%c.more, label %%d, label %%rowend\n");
    TEXT("d:\n  %%d.i = phi i64 [%%c.r, %%c.rest], [%%d.n, %%d.next]\n  %%d.left = sub i64 %%n, %%d.i\n");
    s->copies = 1;
    strcpy(s->origin, "%d.i");
    s->skip = "d.next";
    make_mask(s, "%d.left");
    move_to_column(s);
    if (sweeps(s) < 0) return -1;
    TEXT("d.next:\n  %%d.n = add i64 %%d.i, %d\n  %%d.c = icmp slt i64 %%d.n, %%n\n", s->e->lanes);
    TEXT("  br i1 %%d.c, label %%d, label %%rowend\n");
    return 0;
}

static void field(CcSweep *s, size_t at, const char *type, const char *fmt, ...) CC_PRINTF(4, 5);
static void field(CcSweep *s, size_t at, const char *type, const char *fmt, ...) {
    char name[32];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    TEXT("  %%%s.f = getelementptr i8, ptr %%arg, i64 %zu\n  %%%s = load %s, ptr %%%s.f\n", name, at, name, type, name);
}

static void accesses(CcSweep *s) {
    for (int k = 0; k < s->loop->n_access; k++) {
        const CcLoopAccess *a = &s->loop->access[k];
        const size_t at = offsetof(CcKernelArg, a) + (size_t)k * sizeof(((CcKernelArg *)0)->a[0]);
        field(s, at, "ptr", "b%d", k);
        field(s, at + 16, "i64", "r%d", k);
        if (a->step == CC_STEP_ANY) field(s, at + 24, "i64", "s%d", k);
        for (int d = 0; d < s->n_line && a->line; d++) field(s, at + 32 + 8 * (size_t)d, "i64", "g%d.l%d", k, d);
    }
}

static void entry(CcSweep *s) {
    const int n = s->e->lanes;
    TEXT("entry:\n");
    field(s, offsetof(CcKernelArg, n), "i64", "n");
    field(s, offsetof(CcKernelArg, rows), "i64", "rows");
    field(s, offsetof(CcKernelArg, count), "i64", "count");
    field(s, offsetof(CcKernelArg, split), "i64", "split");
    field(s, offsetof(CcKernelArg, pieces), "i64", "pieces");
    field(s, offsetof(CcKernelArg, state), "ptr", "state");
    field(s, offsetof(CcKernelArg, state_bytes), "i64", "statebytes");
    field(s, offsetof(CcKernelArg, scratch), "ptr", "scratch");
    field(s, offsetof(CcKernelArg, scratch_bytes), "i64", "scratchbytes");
    for (int d = 0; d < s->n_line; d++) field(s, offsetof(CcKernelArg, line) + 8 * (size_t)d, "i64", "line%d", d);
    accesses(s);
    TEXT("  %%ispiece = icmp eq i64 %%split, %d\n  %%isfinish = icmp eq i64 %%split, %d\n", CC_SPLIT_PIECE,
         CC_SPLIT_FINISH);
    TEXT("  %%iota = add <%d x i32> zeroinitializer, <", n);
    for (int i = 0; i < n; i++) TEXT("%si32 %d", i ? ", " : "", i);
    TEXT(">\n  %%iota64 = zext <%d x i32> %%iota to <%d x i64>\n", n, n);
    for (int i = 0; i < s->loop->n_node; i++)
        for (int u = 0; u < CC_SWEEP_COPIES && cc_element_reduces(&s->loop->node[i]) && s->n_line > s->loop->columns;
             u++)
            TEXT("  %%tot%d.%d = alloca %s, align 64\n", i, u, cc_emit_type(s->e, cc_element_dtype(s, i)));
    for (int i = 0; i < s->loop->n_node; i++)
        for (int u = 0; u < (s->loop->columns ? CC_SWEEP_COPIES : 1) && cc_sweep_scans(&s->loop->node[i]); u++)
            TEXT("  %%car%d.%d = alloca %s, align 64\n", i, u, cc_emit_type(s->e, cc_element_dtype(s, i)));
    TEXT("  br label %%row\n");
}

static int body(CcSweep *s) {
    const CcLoop *loop = s->loop;
    for (int i = 0; i < loop->n_node; i++) s->n_reduction += cc_element_reduces(&loop->node[i]);
    if (s->n_reduction > CC_SWEEP_REDUCTIONS)
        return cc_err_set(s->e->err, CC_E_UNSUPPORTED, "more than %d reductions in one loop", CC_SWEEP_REDUCTIONS);
    entry(s);
    TEXT("row:\n  %%row.i = phi i64 [0, %%entry], [%%row.n, %%rowend]\n");
    for (int k = 0; k < loop->n_access; k++) {
        TEXT("  %%p%d = phi ptr [%%b%d, %%entry], [%%q%d, %%rowend]\n", k, k, k);
        snprintf(s->at[k], sizeof(CcRef), "%%p%d", k);
    }
    s->skip = "rowend";
    if ((loop->columns ? columns(s) : sweeps(s)) < 0) return -1;
    TEXT("rowend:\n  %%row.n = add i64 %%row.i, 1\n");
    for (int k = 0; k < loop->n_access; k++) TEXT("  %%q%d = getelementptr i8, ptr %%p%d, i64 %%r%d\n", k, k, k);
    TEXT("  %%rows.more = icmp slt i64 %%row.n, %%rows\n  br i1 %%rows.more, label %%row, label %%exit\n");
    TEXT("exit:\n  ret void\n}\n");
    return 0;
}

int cc_gen_sweeps(CcEmit *e) {
    CcSweep *s = calloc(1, sizeof *s);
    int status = 0;
    CcRef *own = e->ref;
    if (!s) return cc_err_set(e->err, CC_E_MEMORY, "no memory for a kernel's text");
    s->e = e;
    s->loop = e->loop;
    s->n_line = e->loop->ndim - 1 - e->loop->lane;
    cc_sweep_plan(e->loop, &s->plan);
    s->ref[0] = own;
    for (int u = 1; u < CC_SWEEP_COPIES; u++)
        if (!(s->ref[u] = calloc((size_t)e->loop->n_node + 1, sizeof(CcRef)))) status = -1;
    status = status < 0 ? cc_err_set(e->err, CC_E_MEMORY, "no memory for a kernel's text") : body(s);
    for (int u = 1; u < CC_SWEEP_COPIES; u++) free(s->ref[u]);
    e->ref = own;
    free(s);
    return status;
}
