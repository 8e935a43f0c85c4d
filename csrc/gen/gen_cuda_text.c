/* gen_cuda_text: prints the kernels of a loop by a plan (gen_cuda.c). Names: arg.a3 is access 3, p3 where it stands for the
 * set of kept indices, q3 for the chunk, t7 the value of node 7, x7 a chunk of elements that it reads, y3 one that is written, i1 the
 * index of dim 1. */
#include <math.h>

#include "gen_int.h"

typedef struct Text {
    const CcLoop *loop;
    const CcCudaPlan *plan;
    CcSbuf *out;
    CcErr *err;
    int depth; /* of braces */
    const bool *later; /* nodes that are not known here; NULL: all that come before */
} Text;

static void line(Text *t, const char *fmt, ...) CC_PRINTF(2, 3);
static void line(Text *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    cc_sbuf_add(t->out, "%*s", 4 * t->depth, "");
    cc_sbuf_vadd(t->out, fmt, args);
    cc_sbuf_add(t->out, "\n");
    va_end(args);
}

static void close(Text *t) {
    t->depth--;
    line(t, "}");
}

static const char *index_type(const Text *t) { return t->plan->wide ? "long long" : "int"; }
static const char *count_type(const Text *t) { return t->plan->wide ? "unsigned long long" : "unsigned"; }
static CcDtype dtype_of(const Text *t, int node) { return (CcDtype)t->loop->node[node].dtype; }
static int inner(const Text *t) { return t->plan->n_dim - 1; }

static const char *memory_of(const Text *t, int a) { return cc_gen_cuda_memory((CcDtype)t->loop->access[a].dtype); }

/* ------------------------------------------------------------------ the argument */

static void field(Text *t, const CcCudaField *f) {
    const CcLoopAccess *a = &t->loop->access[f->a];
    const char *count = count_type(t);
    switch (f->kind) {
    case CC_FIELD_ACCESS:
        if (a->place) line(t, "long long a%d;", f->a);
        else line(t, "%s%s *a%d;", a->is_store ? "" : "const ", memory_of(t, f->a), f->a);
        break;
    case CC_FIELD_NUMBER: line(t, "double a%d;", f->a); break;
    case CC_FIELD_LOW: line(t, "long long low%d;", f->a); break;
    case CC_FIELD_HIGH: line(t, "long long high%d;", f->a); break;
    case CC_FIELD_ALSO: line(t, "long long also%d;", f->a); break;
    case CC_FIELD_WORKSPACE: line(t, "char *workspace;"); break;
    case CC_FIELD_N:
        line(t, "%s n;  // %s", count, t->plan->kind == CC_CUDA_POINT ? "chunks" : "sets of kept indices");
        break;
    case CC_FIELD_CHUNKS: line(t, "%s chunks;  // of a row", count); break;
    case CC_FIELD_ACROSS: line(t, "%s across;  // chunks of the inner dim", count); break;
    case CC_FIELD_INNER: line(t, "%s inner;  // elements of the inner dim", count); break;
    case CC_FIELD_COUNT: line(t, "long long count;  // elements of a row"); break;
    case CC_FIELD_PIECE: line(t, "%s piece;  // chunks of a piece", count); break;
    case CC_FIELD_PIECES: line(t, "%s pieces;", count); break;
    case CC_FIELD_SIZE: line(t, "%s size%d;", count, f->d); break;
    default: line(t, "%s s%d_%d;", index_type(t), f->a, f->d);
    }
}

static void argument(Text *t, const char *name) {
    CcCudaFields fields = {0};
    cc_gen_cuda_fields(t->loop, t->plan, &fields);
    line(t, "struct %s_arg {", name);
    t->depth++;
    for (int i = 0; i < fields.n; i++) field(t, &fields.at[i]);
    t->depth--;
    line(t, "};");
    cc_vec_free(&fields);
}

/* ------------------------------------------------------------------ places */

/* Indices of the dims [first, last] from the number `of` of a set of them; the inner dim is counted in chunks. */
static void decode(Text *t, int first, int last, const char *of) {
    if (first == last) {
        line(t, "const %s i%d = %s;", index_type(t), first, of);
        return;
    }
    line(t, "%s left%d = %s;", count_type(t), last, of);
    for (int d = last; d > first; d--) {
        char size[16];
        if (d == inner(t)) snprintf(size, sizeof size, "across");
        else snprintf(size, sizeof size, "size%d", d);
        line(t, "const %s i%d = left%d %% arg.%s;", index_type(t), d, last, size);
        line(t, "left%d /= arg.%s;", last, size);
    }
    line(t, "const %s i%d = left%d;", index_type(t), first, last);
}

/* " + i0 * arg.s3_0 ..." for the dims [first, last] */
static void offset(Text *t, int a, int first, int last) {
    for (int d = first; d <= last; d++) {
        if (cc_gen_cuda_stride(t->loop, t->plan, a, d) == 0) continue;
        if (d < inner(t)) cc_sbuf_add(t->out, " + i%d * arg.s%d_%d", d, a, d);
        else if (cc_gen_cuda_step(t->loop, t->plan, a) == CC_STEP_ONE) cc_sbuf_add(t->out, " + at");
        else cc_sbuf_add(t->out, " + at * arg.s%d_%d", a, d);
    }
}

/* `<letter><a>`: where access a stands along the dims [first, last], counted from `<from><a>`. */
static void place(Text *t, char letter, const char *from, int a, int first, int last) {
    const CcLoopAccess *access = &t->loop->access[a];
    cc_sbuf_add(t->out, "%*s", 4 * t->depth, "");
    if (access->place) cc_sbuf_add(t->out, "const long long %c%d = ", letter, a);
    else cc_sbuf_add(t->out, "%s%s *const %c%d = ", access->is_store ? "" : "const ", memory_of(t, a), letter, a);
    cc_sbuf_add(t->out, "%s%d", from, a);
    offset(t, a, first, last);
    cc_sbuf_add(t->out, ";\n");
}

/* Reductions: does the access move along a row? */
static bool along(const Text *t, int a) {
    return t->plan->kind != CC_CUDA_POINT && cc_sweep_along(t->loop, &t->loop->access[a]);
}

static char letter_of(const Text *t, int a) { return along(t, a) ? 'q' : 'p'; }

/* ------------------------------------------------------------------ nodes */

/* An element as a value: bool is a byte in memory. */
static void value_of(Text *t, CcDtype dt, const char *fmt, ...) CC_PRINTF(3, 4);
static void value_of(Text *t, CcDtype dt, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    cc_sbuf_vadd(t->out, fmt, args);
    va_end(args);
    cc_sbuf_add(t->out, dt == CC_DT_BOOL ? " != 0;\n" : ";\n");
}

static void begin_node(Text *t, int i) {
    cc_sbuf_add(t->out, "%*sconst %s t%d = ", 4 * t->depth, "", cc_gen_cuda_type(dtype_of(t, i)), i);
}

/* Indices are checked where they are loaded. */
static void checks(Text *t, int i, bool in_pack) {
    const CcLoopAccess *a = &t->loop->access[t->loop->node[i].a[0]];
    for (int c = 0; c < t->loop->n_check; c++) {
        const CcLoopCheck *check = &t->loop->check[c];
        if (a->value != check->value || a->offset != check->offset) continue;
        line(t, "%scc_check(t%d, arg.low%d, arg.high%d, arg.also%d);", in_pack ? "if (k < there) " : "", i, c, c, c);
    }
}

/* The node that alone reads node i; -1: there is none, or there are several. */
static int only_reader(const CcLoop *loop, int i) {
    int reader = -1;
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && loop->access[a].node == i) return -1;
    for (int k = i + 1; k < loop->n_node; k++)
        for (int o = 0; o < cc_scalar_info((CcScalarId)loop->node[k].op)->arity; o++) {
            if (loop->node[k].a[o] != i) continue;
            if (reader >= 0) return -1;
            reader = k;
        }
    return reader;
}

/* "t5 && !t3 && ": of an element that is only read to be selected. */
static const char *guard(const Text *t, int take, char *out, size_t n) {
    size_t used = 0;
    *out = 0;
    for (int i = take, reader; (reader = only_reader(t->loop, i)) >= 0; i = reader) {
        const CcLoopNode *r = &t->loop->node[reader];
        if (r->op == CC_S_cast) continue;
        if (r->op != CC_S_select || r->a[0] == i) break;
        if (r->a[0] >= take || (t->later && t->later[r->a[0]]) || used + 24 > n) continue;
        used += (size_t)snprintf(out + used, n - used, "%s%s && ", r->a[1] == i ? "" : "!", cc_gen_cuda_ref(t->loop, r->a[0]));
    }
    return out;
}

/* The element of a take. in_pack: element k of a chunk. */
static void take(Text *t, int i, bool in_pack) {
    char when[256];
    const CcLoopNode *n = &t->loop->node[i];
    const int a = n->a[1];
    const CcStepClass step = cc_gen_cuda_step(t->loop, t->plan, a);
    begin_node(t, i);
    const bool guarded = *guard(t, i, when, sizeof when) != 0;
    if (in_pack) cc_sbuf_add(t->out, "%sk < there ? ", when);
    else if (guarded) cc_sbuf_add(t->out, "%.*s ? ", (int)strlen(when) - 4, when);
    cc_sbuf_add(t->out, "%c%d[%s * %lldLL", letter_of(t, a), a, cc_gen_cuda_ref(t->loop, n->a[0]),
                (long long)n->bits / cc_dtype_info((CcDtype)n->dtype)->size);
    if (in_pack && step == CC_STEP_ONE) cc_sbuf_add(t->out, " + k");
    if (in_pack && step == CC_STEP_ANY) cc_sbuf_add(t->out, " + k * arg.s%d_%d", a, inner(t));
    value_of(t, (CcDtype)n->dtype, in_pack || guarded ? "] : cc_none<%s>()" : "]", cc_gen_cuda_memory((CcDtype)n->dtype));
}

static int compute(Text *t, int i) {
    const CcLoopNode *n = &t->loop->node[i];
    const CcScalarInfo *info = cc_scalar_info((CcScalarId)n->op);
    const char *x[3] = {"", "", ""};
    for (int k = 0; k < info->arity; k++) x[k] = cc_gen_cuda_ref(t->loop, n->a[k]);
    if (n->op == CC_S_konst) return 0;
    begin_node(t, i);
    const CcDtype dt = (CcDtype)n->dtype, from = info->arity ? dtype_of(t, n->a[0]) : dt;
    int status = 0;
    if (n->op == CC_S_count) cc_sbuf_add(t->out, "(%s)arg.count", cc_gen_cuda_type(dt));
    else if (n->op == CC_S_cast) cc_sbuf_add(t->out, "%s", cc_gen_cuda_cast(from, dt, x[0]));
    else if (n->op == CC_S_select) cc_sbuf_add(t->out, "%s ? %s : %s", x[0], x[1], x[2]);
    else status = cc_gen_cuda_scalar((CcScalarId)n->op, info->kind == 'C' ? from : dt, x, t->out, t->err);
    cc_sbuf_add(t->out, ";\n");
    return status;
}

/* A node of one element, or of a row. in_pack: element k of a chunk of several. */
static int node(Text *t, int i, bool in_pack) {
    const CcLoopNode *n = &t->loop->node[i];
    const int a = cc_loop_access(n);
    if (n->op == CC_S_take) {
        take(t, i, in_pack);
    } else if (n->op == CC_S_place) {
        begin_node(t, i);
        cc_sbuf_add(t->out, "%c%d", letter_of(t, a), a);
        if (in_pack) cc_sbuf_add(t->out, " + k * arg.s%d_%d", a, inner(t));
        cc_sbuf_add(t->out, ";\n");
    } else if (n->op == CC_S_load) {
        begin_node(t, i);
        if (t->loop->access[a].number) cc_sbuf_add(t->out, "(%s)arg.a%d;\n", cc_gen_cuda_type((CcDtype)n->dtype), a);
        else if (in_pack) value_of(t, (CcDtype)n->dtype, "x%d.v[k]", i);
        else value_of(t, (CcDtype)n->dtype, "*%c%d", letter_of(t, a), a);
        checks(t, i, in_pack);
    } else {
        return compute(t, i);
    }
    return 0;
}

/* ------------------------------------------------------------------ chunks */

typedef struct Chunk {
    bool need[CC_LOOP_MAX_NODES];   /* what is computed for it */
    bool varies[CC_LOOP_MAX_NODES]; /* along the inner dim */
    int sweep;                      /* its number; POINT: 0 */
    bool stores;
    bool all; /* threads behind the end of the row go along, for a scan: `here` says which are not */
} Chunk;

static void find_varying(const Text *t, bool *varies) {
    for (int i = 0; i < t->loop->n_node; i++) {
        const CcLoopNode *n = &t->loop->node[i];
        const int a = cc_loop_access(n);
        varies[i] = a >= 0 && (t->plan->kind == CC_CUDA_POINT || along(t, a)) &&
                    cc_gen_cuda_step(t->loop, t->plan, a) != CC_STEP_ZERO;
        for (int k = 0; k < cc_scalar_info((CcScalarId)n->op)->arity; k++) varies[i] = varies[i] || varies[n->a[k]];
    }
}

static bool is_reduction(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'R'; }

/* Is it kept in registers since an earlier sweep? */
static bool later(const Text *t, const Chunk *c, int i) {
    return t->plan->sweeps.kept[i] && t->plan->sweeps.first[i] < c->sweep;
}

static bool stored_here(const Text *t, const Chunk *c, int a) {
    return t->loop->access[a].is_store && c->stores && (t->plan->kind == CC_CUDA_POINT || along(t, a));
}

/* Several elements at once. */
static void load_pack(Text *t, int i) {
    char when[256] = "";
    const CcLoopNode *n = &t->loop->node[i];
    const int a = cc_loop_access(n), v = t->plan->vector;
    const char letter = letter_of(t, a), *type = cc_gen_cuda_memory((CcDtype)n->dtype);
    char at[80];
    if (n->op == CC_S_take)
        snprintf(at, sizeof at, "%c%d + %s * %lldLL", letter, a, cc_gen_cuda_ref(t->loop, n->a[0]),
                 (long long)n->bits / cc_dtype_info((CcDtype)n->dtype)->size);
    else snprintf(at, sizeof at, "%c%d", letter, a);
    if (t->plan->sweeps.kept[i]) cc_sbuf_add(t->out, "%*sh%d[h] = ", 4 * t->depth, "", i);
    else cc_sbuf_add(t->out, "%*sconst cc_pack<%s, %d> x%d = ", 4 * t->depth, "", type, v, i);
    if (n->op == CC_S_take) guard(t, i, when, sizeof when);
    if (*when) cc_sbuf_add(t->out, "cc_load<%d>(%s, %.*s ? there : 0, even);\n", v, at, (int)strlen(when) - 4, when);
    else if (cc_gen_cuda_packed(t->loop, t->plan, a)) cc_sbuf_add(t->out, "cc_load<%d>(%s, there, even);\n", v, at);
    else cc_sbuf_add(t->out, "cc_gather<%d>(%s, arg.s%d_%d, there);\n", v, at, a, inner(t));
}

/* Is the node's chunk read as a whole, before its elements are gone through? */
static bool in_packs(const Text *t, const Chunk *c, int i) {
    const CcLoopNode *n = &t->loop->node[i];
    if (!c->varies[i] || t->plan->vector == 1) return false;
    return n->op == CC_S_load || (n->op == CC_S_take && cc_gen_cuda_packed(t->loop, t->plan, n->a[1]));
}

static void kept_element(Text *t, int i) {
    begin_node(t, i);
    value_of(t, dtype_of(t, i), t->plan->vector > 1 ? "h%d[h].v[k]" : "h%d[h]", i);
}

static int pair(Text *t, int i, const char *condition, const char *x, const char *y) {
    const char *operands[3] = {x, y, ""};
    cc_sbuf_add(t->out, "%*s%st%d = ", 4 * t->depth, "", condition, i);
    const int status = cc_gen_cuda_scalar(cc_scalar_combine((CcScalarId)t->loop->node[i].op), dtype_of(t, i), operands, t->out, t->err);
    cc_sbuf_add(t->out, ";\n");
    return status;
}

/* Of a warp, or the part of one that a row has: each lane takes what the lanes before have come to. */
static int scan_lanes(Text *t, int i, int lanes) {
    char own[16];
    snprintf(own, sizeof own, "t%d", i);
    if (lanes == 1) return 0;
    line(t, "#pragma unroll");
    line(t, "for (int by = 1; by < %d; by *= 2) {", lanes);
    t->depth++;
    line(t, "const %s before = cc_before(t%d, by);", cc_gen_cuda_type(dtype_of(t, i)), i);
    if (pair(t, i, lanes == 32 ? "if (threadIdx.x % 32 >= by) " : "if (lane >= by) ", "before", own) < 0) return -1;
    close(t);
    return 0;
}

/* The scan's element of each thread, of a group's width of them: what comes before is in the lanes before, then in the warps
 * before, then in `carry`. */
static int scan(Text *t, const Chunk *c, int i) {
    const int group = t->plan->group, warps = t->plan->threads / 32;
    const char *type = cc_gen_cuda_type(dtype_of(t, i));
    char own[16], carry[32];
    snprintf(own, sizeof own, "t%d", i);
    snprintf(carry, sizeof carry, group > 32 ? "scan%d[%d]" : "carry%d_%d", i, group > 32 ? warps : c->sweep);
    line(t, "%s t%d = %s;", type, i, cc_gen_cuda_ref(t->loop, t->loop->node[i].a[0]));
    if (scan_lanes(t, i, CC_MIN(group, 32)) < 0) return -1;
    if (group > 32) {
        line(t, "if (threadIdx.x %% 32 == 31) scan%d[threadIdx.x / 32] = t%d;", i, i);
        line(t, "__syncthreads();");
        line(t, "for (int w = (int)threadIdx.x / 32 - 1; w >= 0; w--) {");
        t->depth++;
        line(t, "const %s before = scan%d[w];", type, i);
        if (pair(t, i, "", "before", own) < 0) return -1;
        close(t);
    }
    line(t, "if (%s > 0) {", group == 1 ? "c" : "turn");
    t->depth++;
    line(t, "const %s before = %s;", type, carry);
    if (pair(t, i, "", "before", own) < 0) return -1;
    close(t);
    if (group > 32) {
        line(t, "__syncthreads();  // all have read it");
        line(t, "if (threadIdx.x == %d) %s = t%d;", t->plan->threads - 1, carry, i);
    } else if (group > 1) {
        line(t, "%s = cc_from(t%d, threadIdx.x %% 32 | %d);", carry, i, group - 1);
    } else {
        line(t, "%s = t%d;", carry, i);
    }
    return 0;
}

/* One element of a chunk. */
static int element(Text *t, const Chunk *c) {
    const CcLoop *loop = t->loop;
    const bool pack = t->plan->vector > 1;
    for (int i = 0; i < loop->n_node; i++) {
        const bool kept = t->plan->sweeps.kept[i] != 0;
        if (!c->need[i] || (pack && !c->varies[i])) continue;
        if (cc_sweep_scans(&loop->node[i])) {
            if (scan(t, c, i) < 0) return -1;
        } else if (later(t, c, i)) {
            kept_element(t, i);
        } else if (in_packs(t, c, i)) {
            begin_node(t, i);
            value_of(t, dtype_of(t, i), kept ? "h%d[h].v[k]" : "x%d.v[k]", i);
            if (loop->node[i].op == CC_S_load) checks(t, i, true);
        } else {
            if (node(t, i, pack) < 0) return -1;
            if (kept) line(t, pack ? "h%d[h].v[k] = t%d;" : "h%d[h] = t%d;", i, i);
        }
    }
    for (int a = 0; a < loop->n_access && pack; a++)
        if (stored_here(t, c, a)) line(t, "y%d.v[k] = %s;", a, cc_gen_cuda_ref(loop, loop->access[a].node));
    return 0;
}

/* t7 = t7 combined with x */
static int combine(Text *t, int i, const char *x, const char *condition) {
    const CcLoopNode *n = &t->loop->node[i];
    char own[16];
    snprintf(own, sizeof own, "t%d", i);
    const char *operands[3] = {own, x, ""};
    cc_sbuf_add(t->out, "%*s%s%s = ", 4 * t->depth, "", condition, own);
    const CcScalarId op = cc_scalar_combine((CcScalarId)n->op);
    const int status = cc_gen_cuda_scalar(op, (CcDtype)n->dtype, operands, t->out, t->err);
    cc_sbuf_add(t->out, ";\n");
    return status;
}

/* Adds the element to the partial results of a sweep. */
static int accumulate(Text *t, const Chunk *c) {
    for (int i = 0; i < t->loop->n_node; i++) {
        const CcLoopNode *n = &t->loop->node[i];
        if (!is_reduction(n) || t->plan->sweeps.stage[n->a[0]] != c->sweep) continue;
        const char *condition = t->plan->vector > 1 ? "if (k < there) " : c->all ? "if (here) " : "";
        if (combine(t, i, cc_gen_cuda_ref(t->loop, n->a[0]), condition) < 0) return -1;
    }
    return 0;
}

static bool reads(const Text *t, const Chunk *c, int a) {
    for (int i = 0; i < t->loop->n_node; i++)
        if (c->need[i] && !later(t, c, i) && cc_loop_access(&t->loop->node[i]) == a) return true;
    return false;
}

static int packs(Text *t, const Chunk *c) {
    const CcLoop *loop = t->loop;
    const int v = t->plan->vector;
    t->later = c->varies;
    for (int i = 0; i < loop->n_node; i++) {
        if (!c->need[i] || later(t, c, i)) continue;
        if (in_packs(t, c, i)) load_pack(t, i);
        else if (!c->varies[i] && node(t, i, false) < 0) return -1;
    }
    for (int a = 0; a < loop->n_access; a++)
        if (stored_here(t, c, a)) line(t, "cc_pack<%s, %d> y%d;", memory_of(t, a), v, a);
    t->later = NULL;
    line(t, "#pragma unroll");
    cc_sbuf_add(t->out, "%*sfor (int k = 0; k < %d; k++) {\n", 4 * t->depth, "", v);
    t->depth++;
    if (element(t, c) < 0 || accumulate(t, c) < 0) return -1;
    close(t);
    for (int a = 0; a < loop->n_access; a++) {
        if (!stored_here(t, c, a)) continue;
        const char letter = letter_of(t, a);
        if (cc_gen_cuda_packed(loop, t->plan, a)) line(t, "cc_store<%d>(%c%d, y%d, there, even);", v, letter, a, a);
        else line(t, "cc_scatter<%d>(%c%d, y%d, arg.s%d_%d, there);", v, letter, a, a, a, inner(t));
    }
    return 0;
}

/* The chunk whose indices are known. */
static int chunk(Text *t, const Chunk *c) {
    const CcLoop *loop = t->loop;
    const int v = t->plan->vector, last = inner(t);
    const bool point = t->plan->kind == CC_CUDA_POINT;
    if (v > 1) line(t, "const %s at = i%d * %d;", index_type(t), last, v);
    else line(t, "const %s at = i%d;", index_type(t), last);
    if (v > 1) line(t, "const int there = arg.inner - at < %d ? arg.inner - at : %d;", v, v);
    for (int a = 0; a < loop->n_access; a++) {
        if (loop->access[a].number || !(stored_here(t, c, a) || reads(t, c, a))) continue;
        if (point) place(t, 'p', "arg.a", a, 0, last);
        else if (along(t, a)) place(t, 'q', "p", a, t->plan->n_kept, last);
    }
    if (v > 1) return packs(t, c);
    if (element(t, c) < 0 || accumulate(t, c) < 0) return -1;
    for (int a = 0; a < loop->n_access; a++)
        if (stored_here(t, c, a))
            line(t, "%s*%c%d = %s;", c->all ? "if (here) " : "", letter_of(t, a), a, cc_gen_cuda_ref(loop, loop->access[a].node));
    return 0;
}

/* ------------------------------------------------------------------ kernels */

static void begin_kernel(Text *t, const char *name, int part) {
    line(t, "extern \"C\" __global__ void __launch_bounds__(%d) %s_%d(const %s_arg arg) {", t->plan->threads, name, part,
         name);
    t->depth++;
    if (t->plan->vector == 1) return;
    cc_sbuf_add(t->out, "%*sconst bool even = ", 4 * t->depth, "");
    const char *and = "";
    for (int a = 0; a < t->loop->n_access; a++) {
        if (!cc_gen_cuda_packed(t->loop, t->plan, a)) continue;
        cc_sbuf_add(t->out, "%scc_even<%d>(arg.a%d)", and, t->plan->vector, a);
        and = " && ";
    }
    cc_sbuf_add(t->out, ";\n");
}

static int points(Text *t, const char *name) {
    Chunk *c = calloc(1, sizeof *c);
    if (!c) return cc_err_set(t->err, CC_E_MEMORY, "no memory for a kernel's text");
    memset(c->need, true, sizeof c->need);
    find_varying(t, c->varies);
    c->stores = true;
    begin_kernel(t, name, 0);
    const char *type = count_type(t);
    line(t, "const %s threads = (%s)gridDim.x * blockDim.x;", type, type);
    line(t, "for (%s i = (%s)blockIdx.x * blockDim.x + threadIdx.x; i < arg.n; i += threads) {", type, type);
    t->depth++;
    decode(t, 0, inner(t), "i");
    const int status = chunk(t, c);
    close(t);
    close(t);
    free(c);
    return status;
}

/* ------------------------------------------------------------------ reductions */

static void identity(const Text *t, int i, char *out, size_t n) {
    const CcDtype dt = dtype_of(t, i);
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

static bool of_sweep(const Text *t, int i, int sweep) {
    const CcLoopNode *n = &t->loop->node[i];
    return is_reduction(n) && t->plan->sweeps.stage[n->a[0]] == sweep;
}

static int columns_of(const Text *t) { return t->plan->threads / t->plan->group; } /* rows of a block */

/* Each of `lanes` neighbours gets the result of all of them. */
static int across_lanes(Text *t, int i, int lanes) {
    if (lanes == 1) return 0;
    line(t, "#pragma unroll");
    line(t, "for (int bit = %d; bit > 0; bit /= 2) {", lanes / 2);
    t->depth++;
    line(t, "const %s other = cc_other(t%d, bit);", cc_gen_cuda_type(dtype_of(t, i)), i);
    if (combine(t, i, "other", "") < 0) return -1;
    close(t);
    return 0;
}

/* Warps leave their results in shared memory, and each combines all of them. */
static int across_warps(Text *t, int sweep) {
    const int warps = t->plan->threads / 32;
    char none[48];
    for (int i = 0; i < t->loop->n_node; i++)
        if (of_sweep(t, i, sweep)) line(t, "if (threadIdx.x %% 32 == 0) shared%d[threadIdx.x / 32] = t%d;", i, i);
    line(t, "__syncthreads();");
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!of_sweep(t, i, sweep)) continue;
        identity(t, i, none, sizeof none);
        if (warps == 32) line(t, "t%d = shared%d[threadIdx.x %% 32];", i, i);
        else line(t, "t%d = threadIdx.x %% 32 < %d ? shared%d[threadIdx.x %% 32] : %s;", i, warps, i, none);
        if (across_lanes(t, i, 32) < 0) return -1;
    }
    line(t, "__syncthreads();  // shared memory may be written again");
    return 0;
}

/* Threads of a column lie in different warps. */
static int down_columns(Text *t, int sweep) {
    const int columns = columns_of(t);
    for (int i = 0; i < t->loop->n_node; i++)
        if (of_sweep(t, i, sweep)) line(t, "shared%d[threadIdx.x] = t%d;", i, i);
    line(t, "__syncthreads();");
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!of_sweep(t, i, sweep)) continue;
        line(t, "t%d = shared%d[own];", i, i);
        line(t, "for (int k = 1; k < %d; k++) {", t->plan->group);
        t->depth++;
        line(t, "const %s other = shared%d[k * %d + own];", cc_gen_cuda_type(dtype_of(t, i)), i, columns);
        if (combine(t, i, "other", "") < 0) return -1;
        close(t);
    }
    line(t, "__syncthreads();  // shared memory may be written again");
    return 0;
}

/* All threads of a row get the results of the sweep. */
static int across_group(Text *t, int sweep) {
    bool any = false;
    const bool rows = t->plan->kind == CC_CUDA_ROWS;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!of_sweep(t, i, sweep)) continue;
        any = true;
        if (rows && across_lanes(t, i, CC_MIN(32, t->plan->group)) < 0) return -1;
    }
    if (!any || t->plan->group == 1 || (rows && t->plan->group <= 32)) return 0;
    return rows ? across_warps(t, sweep) : down_columns(t, sweep);
}

static void declare_shared(Text *t) {
    const bool rows = t->plan->kind == CC_CUDA_ROWS;
    const int n = rows ? t->plan->threads / 32 : t->plan->threads;
    if (t->plan->group == 1 || (rows && t->plan->group <= 32)) return;
    for (int i = 0; i < t->loop->n_node; i++)
        if (cc_sweep_scans(&t->loop->node[i]))
            line(t, "__shared__ %s scan%d[%d];", cc_gen_cuda_type(dtype_of(t, i)), i, n + 1);
    for (int i = 0; i < t->loop->n_node; i++)
        if (is_reduction(&t->loop->node[i]))
            line(t, "__shared__ %s shared%d[%d];", cc_gen_cuda_type(dtype_of(t, i)), i, n);
}

static void begin_results(Text *t, int sweep) {
    char none[48];
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!of_sweep(t, i, sweep)) continue;
        identity(t, i, none, sizeof none);
        line(t, "%s t%d = %s;", cc_gen_cuda_type(dtype_of(t, i)), i, none);
    }
}

/* What scans have come to, where it is in no shared memory. -> does the sweep scan? */
static bool declare_carry(Text *t, const Chunk *c) {
    bool any = false;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!c->need[i] || !cc_sweep_scans(&t->loop->node[i])) continue;
        if (t->plan->group <= 32) line(t, "%s carry%d_%d = 0;", cc_gen_cuda_type(dtype_of(t, i)), i, c->sweep);
        any = true;
    }
    return any;
}

/* The chunks of a row that are this thread's, in a sweep. */
static int elements(Text *t, Chunk *c, int sweep) {
    const CcCudaPlan *p = t->plan;
    c->sweep = sweep;
    c->stores = sweep == p->sweeps.n - 1;
    cc_sweep_need(t->loop, &p->sweeps, sweep, c->need);
    begin_results(t, sweep);
    c->all = declare_carry(t, c) && p->group > 1;
    if (c->all) {
        line(t, "for (%s turn = 0; turn < arg.chunks; turn += %d) {", count_type(t), p->group);
        line(t, "    const bool here = turn + lane < end;");
        line(t, "    const %s c = here ? turn + lane : arg.chunks - 1;", count_type(t));
    } else if (p->held) {
        line(t, "#pragma unroll");
        line(t, "for (int h = 0; h < %d; h++) {", p->held);
        t->depth++;
        line(t, "const %s c = h * %d + lane;", count_type(t), p->group);
        line(t, "if (c < end) {");
    } else {
        if (!c->stores || p->sweeps.n == 1) line(t, "#pragma unroll 4");
        line(t, "for (%s c = %slane; c < end; c += %d) {", count_type(t), p->split ? "begin + " : "", p->group);
    }
    t->depth++;
    decode(t, p->n_kept, inner(t), "c");
    if (chunk(t, c) < 0) return -1;
    close(t);
    if (p->held) close(t);
    return 0;
}

/* What is the same for a whole row, and known after so many sweeps. */
static int of_rows(Text *t, int stage) {
    const CcSweeps *s = &t->plan->sweeps;
    t->later = s->element;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (s->element[i] || s->stage[i] != stage || is_reduction(&t->loop->node[i])) continue;
        if (node(t, i, false) < 0) return -1;
    }
    t->later = NULL;
    return 0;
}

static void store_rows(Text *t) {
    const CcLoop *loop = t->loop;
    bool any = false;
    for (int a = 0; a < loop->n_access; a++) any = any || (loop->access[a].is_store && !along(t, a));
    if (!any) return;
    line(t, "if (lane == 0 && alive) {");
    t->depth++;
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && !along(t, a))
            line(t, "*p%d = %s;", a, cc_gen_cuda_ref(loop, loop->access[a].node));
    close(t);
}

/* Arrays for what stays in registers from sweep to sweep. */
static void declare_held(Text *t) {
    const CcCudaPlan *p = t->plan;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!p->sweeps.kept[i]) continue;
        const char *type = cc_gen_cuda_memory(dtype_of(t, i));
        if (p->vector > 1) line(t, "cc_pack<%s, %d> h%d[%d];", type, p->vector, i, p->held);
        else line(t, "%s h%d[%d];", type, i, p->held);
    }
}

/* Where a partial result lies: neighbouring rows side by side. 8 bytes each, of any type. */
static void slot(Text *t, int number, int i, const char *piece, char *out, size_t n) {
    snprintf(out, n, "*(%s *)(arg.workspace + ((%dLL * arg.pieces + %s) * arg.n + row) * 8)",
             cc_gen_cuda_type(dtype_of(t, i)), number, piece);
}

static bool has_reductions(const Text *t, int sweep) {
    for (int i = 0; i < t->loop->n_node; i++)
        if (of_sweep(t, i, sweep)) return true;
    return false;
}

static void leave_partial(Text *t, int sweep) {
    char at[160];
    int number = 0;
    line(t, "if (lane == 0 && alive) {");
    t->depth++;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!is_reduction(&t->loop->node[i])) continue;
        slot(t, number++, i, "piece", at, sizeof at);
        if (of_sweep(t, i, sweep)) line(t, "%s = t%d;", at, i);
    }
    close(t);
}

static int take_partial(Text *t, int sweep) {
    char at[160], part[16];
    int number = 0;
    begin_results(t, sweep);
    line(t, "for (%s other = lane; other < arg.pieces; other += %d) {", count_type(t), t->plan->group);
    t->depth++;
    for (int i = 0; i < t->loop->n_node; i++) {
        if (!is_reduction(&t->loop->node[i])) continue;
        slot(t, number++, i, "other", at, sizeof at);
        if (!of_sweep(t, i, sweep)) continue;
        line(t, "const %s part%d = %s;", cc_gen_cuda_type(dtype_of(t, i)), i, at);
        snprintf(part, sizeof part, "part%d", i);
        if (combine(t, i, part, "") < 0) return -1;
    }
    close(t);
    return 0;
}

/* Which rows are this thread's. Threads of a block stay together to its end, those without a row, too: barriers and
 * shuffles need them. */
static void begin_rows(Text *t, int part) {
    const CcCudaPlan *p = t->plan;
    const int columns = columns_of(t);
    const char *type = count_type(t);
    declare_shared(t);
    if (p->kind == CC_CUDA_COLUMNS)
        line(t, "const int own = threadIdx.x %% %d, lane = threadIdx.x / %d;", columns, columns);
    else if (columns > 1) line(t, "const int own = threadIdx.x / %d, lane = threadIdx.x %% %d;", p->group, p->group);
    else line(t, "const int lane = threadIdx.x;");
    const bool pieces = p->split && part < p->sweeps.n;
    const char *block = "blockIdx.x";
    if (pieces) {
        line(t, "const %s piece = blockIdx.x %% arg.pieces;", type);
        line(t, "const %s begin = piece * arg.piece < arg.chunks ? piece * arg.piece : arg.chunks;", type);
        line(t, "const %s last = arg.chunks - begin < arg.piece ? arg.chunks : begin + arg.piece;", type);
        block = "blockIdx.x / arg.pieces";
    }
    line(t, "for (%s first = (%s)(%s) * %d; first < arg.n; first += (%s)gridDim.x * %d) {", type, type, block, columns,
         type, columns);
    t->depth++;
    if (columns > 1) {
        line(t, "const bool alive = first + own < arg.n;");
        line(t, "const %s row = alive ? first + own : arg.n - 1;", type);
        if (part < p->sweeps.n) line(t, "const %s end = alive ? %s : 0;", type, pieces ? "last" : "arg.chunks");
    } else {
        line(t, "const bool alive = true;");
        line(t, "const %s row = first;", type);
        if (part < p->sweeps.n) line(t, "const %s end = %s;", type, pieces ? "last" : "arg.chunks");
    }
    if (p->n_kept) decode(t, 0, p->n_kept - 1, "row");
    for (int a = 0; a < t->loop->n_access; a++)
        if (!t->loop->access[a].number) place(t, 'p', "arg.a", a, 0, p->n_kept - 1);
}

/* All sweeps; split: those before this part's are done already, and left their partial results. */
static int sweeps(Text *t, Chunk *c, int part) {
    const CcCudaPlan *p = t->plan;
    if (of_rows(t, 0) < 0) return -1;
    for (int s = 0; s < p->sweeps.n && (!p->split || s <= part); s++) {
        if ((p->split && s < part ? take_partial(t, s) : elements(t, c, s)) < 0 || across_group(t, s) < 0) return -1;
        if (!p->split || s < part) {
            if (of_rows(t, s + 1) < 0) return -1;
        } else if (has_reductions(t, s)) {
            leave_partial(t, s);
        }
    }
    if (!p->split || part == p->sweeps.n) store_rows(t);
    return 0;
}

static int rows(Text *t, const char *name, int part) {
    Chunk *c = calloc(1, sizeof *c);
    if (!c) return cc_err_set(t->err, CC_E_MEMORY, "no memory for a kernel's text");
    find_varying(t, c->varies);
    begin_kernel(t, name, part);
    begin_rows(t, part);
    declare_held(t);
    const int status = sweeps(t, c, part);
    close(t);
    close(t);
    free(c);
    return status;
}

int cc_gen_cuda_text(const CcLoop *loop, const CcCudaPlan *plan, const char *name, CcSbuf *out, CcErr *err) {
    Text t = {.loop = loop, .plan = plan, .out = out, .err = err};
    argument(&t, name);
    if (plan->kind == CC_CUDA_POINT) return points(&t, name);
    for (int part = 0; part < plan->parts; part++)
        if (rows(&t, name, part) < 0) return -1;
    return 0;
}
