/* gen_cuda_text: prints the kernels of a loop according to its plan (gen_cuda.c). Names: arg.a3 is access 3, p3 its
 * pointer at the kept indices, q3 its pointer at the chunk, t7 the value of node 7, x7 a chunk that it loads, y3 a
 * chunk to store, i1 the index of dim 1. */
#include "gen_int.h"

void cc_text_line(CcText *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    cc_sbuf_add(t->out, "%*s", 4 * t->depth, "");
    cc_sbuf_vadd(t->out, fmt, args);
    cc_sbuf_add(t->out, "\n");
    va_end(args);
}

void cc_text_close(CcText *t) {
    t->depth--;
    cc_text_line(t, "}");
}

static const char *index_type(const CcText *t) { return t->plan->wide ? "long long" : "int"; }
const char *cc_text_count(const CcText *t) { return t->plan->wide ? "unsigned long long" : "unsigned"; }

static const char *memory_of(const CcText *t, int a) { return cc_gen_cuda_memory((CcDtype)t->loop->access[a].dtype); }

/* ------------------------------------------------------------------ the argument */

static void field(CcText *t, const CcCudaField *f) {
    const CcLoopAccess *a = &t->loop->access[f->a];
    const char *count = cc_text_count(t);
    switch (f->kind) {
    case CC_FIELD_ACCESS:
        if (a->place) cc_text_line(t, "long long a%d;", f->a);
        else cc_text_line(t, "%s%s *a%d;", a->is_store ? "" : "const ", memory_of(t, f->a), f->a);
        break;
    case CC_FIELD_NUMBER: cc_text_line(t, "double a%d;", f->a); break;
    case CC_FIELD_LOW: cc_text_line(t, "long long low%d;", f->a); break;
    case CC_FIELD_HIGH: cc_text_line(t, "long long high%d;", f->a); break;
    case CC_FIELD_ALSO: cc_text_line(t, "long long also%d;", f->a); break;
    case CC_FIELD_WORKSPACE: cc_text_line(t, "char *workspace;"); break;
    case CC_FIELD_N:
        cc_text_line(t, "%s n;  // %s", count, t->plan->kind == CC_CUDA_POINT ? "chunks" : "sets of kept indices");
        break;
    case CC_FIELD_CHUNKS: cc_text_line(t, "%s chunks;  // of a row", count); break;
    case CC_FIELD_ACROSS: cc_text_line(t, "%s across;  // chunks of the inner dim", count); break;
    case CC_FIELD_INNER: cc_text_line(t, "%s inner;  // elements of the inner dim", count); break;
    case CC_FIELD_COUNT: cc_text_line(t, "long long count;  // elements of a row"); break;
    case CC_FIELD_PIECE: cc_text_line(t, "%s piece;  // chunks of a piece", count); break;
    case CC_FIELD_PIECES: cc_text_line(t, "%s pieces;", count); break;
    case CC_FIELD_SIZE: cc_text_line(t, "%s size%d;", count, f->d); break;
    default: cc_text_line(t, "%s s%d_%d;", index_type(t), f->a, f->d);
    }
}

static void argument(CcText *t, const char *name) {
    CcCudaFields fields = {0};
    cc_gen_cuda_fields(t->loop, t->plan, &fields);
    cc_text_line(t, "struct %s_arg {", name);
    t->depth++;
    for (int i = 0; i < fields.n; i++) field(t, &fields.at[i]);
    t->depth--;
    cc_text_line(t, "};");
    cc_vec_free(&fields);
}

/* ------------------------------------------------------------------ addresses */

void cc_text_decode(CcText *t, int first, int last, const char *of) {
    if (first == last) {
        cc_text_line(t, "const %s i%d = %s;", index_type(t), first, of);
        return;
    }
    cc_text_line(t, "%s left%d = %s;", cc_text_count(t), last, of);
    for (int d = last; d > first; d--) {
        char size[16];
        if (d == cc_text_inner(t)) snprintf(size, sizeof size, "across");
        else snprintf(size, sizeof size, "size%d", d);
        cc_text_line(t, "const %s i%d = left%d %% arg.%s;", index_type(t), d, last, size);
        cc_text_line(t, "left%d /= arg.%s;", last, size);
    }
    cc_text_line(t, "const %s i%d = left%d;", index_type(t), first, last);
}

/* Prints " + i0 * arg.s3_0 ..." for dims [first, last]. */
static void offset(CcText *t, int a, int first, int last) {
    for (int d = first; d <= last; d++) {
        if (cc_gen_cuda_stride(t->loop, t->plan, a, d) == 0) continue;
        if (d < cc_text_inner(t)) cc_sbuf_add(t->out, " + i%d * arg.s%d_%d", d, a, d);
        else if (cc_gen_cuda_step(t->loop, t->plan, a) == CC_STEP_ONE) cc_sbuf_add(t->out, " + at");
        else cc_sbuf_add(t->out, " + at * arg.s%d_%d", a, d);
    }
}

void cc_text_place(CcText *t, char letter, const char *from, int a, int first, int last) {
    const CcLoopAccess *access = &t->loop->access[a];
    cc_sbuf_add(t->out, "%*s", 4 * t->depth, "");
    if (access->place) cc_sbuf_add(t->out, "const long long %c%d = ", letter, a);
    else cc_sbuf_add(t->out, "%s%s *const %c%d = ", access->is_store ? "" : "const ", memory_of(t, a), letter, a);
    cc_sbuf_add(t->out, "%s%d", from, a);
    offset(t, a, first, last);
    cc_sbuf_add(t->out, ";\n");
}

bool cc_text_along(const CcText *t, int a) {
    return t->plan->kind != CC_CUDA_POINT && cc_sweep_along(t->loop, &t->loop->access[a]);
}

static char letter_of(const CcText *t, int a) { return cc_text_along(t, a) ? 'q' : 'p'; }

/* ------------------------------------------------------------------ nodes */

/* Prints an element as a value: memory holds bools as bytes. */
static void value_of(CcText *t, CcDtype dt, const char *fmt, ...) CC_PRINTF(3, 4);
static void value_of(CcText *t, CcDtype dt, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    cc_sbuf_vadd(t->out, fmt, args);
    va_end(args);
    cc_sbuf_add(t->out, dt == CC_DT_BOOL ? " != 0;\n" : ";\n");
}

static void begin_node(CcText *t, int i) {
    cc_sbuf_add(t->out, "%*sconst %s t%d = ", 4 * t->depth, "", cc_gen_cuda_type(cc_text_dtype(t, i)), i);
}

/* Prints the range checks of a loaded index or probability. */
static void checks(CcText *t, int i, bool in_pack) {
    const CcLoopAccess *a = &t->loop->access[t->loop->node[i].a[0]];
    for (int c = 0; c < t->loop->n_check; c++) {
        const CcLoopCheck *check = &t->loop->check[c];
        if (a->value != check->value || a->offset != check->offset) continue;
        if (cc_gen_cuda_share(check)) cc_text_line(t, "%scc_share(t%d);", in_pack ? "if (k < valid) " : "", i);
        else
            cc_text_line(t, "%scc_check(t%d, arg.low%d, arg.high%d, arg.also%d);", in_pack ? "if (k < valid) " : "", i,
                         c, c, c);
    }
}

/* The only reader of node i; -1: none, or several. */
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

/* The condition "t5 && !t3 && " under which selects use a gathered element; the gather is skipped otherwise. */
static const char *guard(const CcText *t, int take, char *out, size_t n) {
    size_t used = 0;
    *out = 0;
    for (int i = take, reader; (reader = only_reader(t->loop, i)) >= 0; i = reader) {
        const CcLoopNode *r = &t->loop->node[reader];
        if (r->op == CC_S_cast) continue;
        if (r->op != CC_S_select || r->a[0] == i) break;
        if (r->a[0] >= take || (t->later && t->later[r->a[0]]) || used + 24 > n) continue;
        used += (size_t)snprintf(out + used, n - used, "%s%s && ", r->a[1] == i ? "" : "!",
                                 cc_gen_cuda_ref(t->loop, r->a[0]));
    }
    return out;
}

/* Prints a gather. in_pack: element k of a chunk. */
static void take(CcText *t, int i, bool in_pack) {
    char when[256];
    const CcLoopNode *n = &t->loop->node[i];
    const int a = n->a[1];
    const CcStepClass step = cc_gen_cuda_step(t->loop, t->plan, a);
    begin_node(t, i);
    const bool guarded = *guard(t, i, when, sizeof when) != 0;
    if (in_pack) cc_sbuf_add(t->out, "%sk < valid ? ", when);
    else if (guarded) cc_sbuf_add(t->out, "%.*s ? ", (int)strlen(when) - 4, when);
    cc_sbuf_add(t->out, "%c%d[%s * %lldLL", letter_of(t, a), a, cc_gen_cuda_ref(t->loop, n->a[0]),
                (long long)n->bits / cc_dtype_size(n->dtype));
    if (in_pack && step == CC_STEP_ONE) cc_sbuf_add(t->out, " + k");
    if (in_pack && step == CC_STEP_ANY) cc_sbuf_add(t->out, " + k * arg.s%d_%d", a, cc_text_inner(t));
    value_of(t, (CcDtype)n->dtype, in_pack || guarded ? "] : cc_none<%s>()" : "]",
             cc_gen_cuda_memory((CcDtype)n->dtype));
}

/* Matches 1 / sqrt(x), which eager computes by rsqrt -> x, or -1. Not if registers hold sqrt(x) for later sweeps. */
static int inverse_root(const CcText *t, const CcLoopNode *n) {
    if (n->op != CC_S_div || n->dtype != CC_DT_F32) return -1;
    const CcLoopNode *one = &t->loop->node[n->a[0]], *root = &t->loop->node[n->a[1]];
    const bool is = one->op == CC_S_konst && cc_loop_number(one->bits) == 1 && root->op == CC_S_sqrt;
    return is && !t->plan->sweeps.kept[n->a[1]] ? root->a[0] : -1;
}

static int compute(CcText *t, int i) {
    const CcLoopNode *n = &t->loop->node[i];
    const CcScalarInfo *info = cc_scalar_info((CcScalarId)n->op);
    const char *x[3] = {"", "", ""};
    for (int k = 0; k < info->arity; k++) x[k] = cc_gen_cuda_ref(t->loop, n->a[k]);
    if (n->op == CC_S_konst) return 0;
    begin_node(t, i);
    const CcDtype dt = (CcDtype)n->dtype, from = info->arity ? cc_text_dtype(t, n->a[0]) : dt;
    const int squared = inverse_root(t, n);
    int status = 0;
    if (squared >= 0) cc_sbuf_add(t->out, "rsqrtf(%s)", cc_gen_cuda_ref(t->loop, squared));
    else if (n->op == CC_S_count) cc_sbuf_add(t->out, "(%s)arg.count", cc_gen_cuda_type(dt));
    else if (n->op == CC_S_cast) cc_sbuf_add(t->out, "%s", cc_gen_cuda_cast(from, dt, x[0]));
    else if (n->op == CC_S_select) cc_sbuf_add(t->out, "%s ? %s : %s", x[0], x[1], x[2]);
    else status = cc_gen_cuda_scalar((CcScalarId)n->op, info->kind == 'C' ? from : dt, x, t->out, t->err);
    cc_sbuf_add(t->out, ";\n");
    return status;
}

int cc_text_node(CcText *t, int i, bool in_pack) {
    const CcLoopNode *n = &t->loop->node[i];
    const int a = cc_loop_access(n);
    if (n->op == CC_S_take) {
        take(t, i, in_pack);
    } else if (n->op == CC_S_place) {
        begin_node(t, i);
        cc_sbuf_add(t->out, "%c%d", letter_of(t, a), a);
        if (in_pack) cc_sbuf_add(t->out, " + k * arg.s%d_%d", a, cc_text_inner(t));
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

void cc_text_varying(const CcText *t, bool *varies) {
    for (int i = 0; i < t->loop->n_node; i++) {
        const CcLoopNode *n = &t->loop->node[i];
        const int a = cc_loop_access(n);
        varies[i] = a >= 0 && (t->plan->kind == CC_CUDA_POINT || cc_text_along(t, a)) &&
                    cc_gen_cuda_step(t->loop, t->plan, a) != CC_STEP_ZERO;
        for (int k = 0; k < cc_scalar_info((CcScalarId)n->op)->arity; k++) varies[i] = varies[i] || varies[n->a[k]];
    }
}

/* Do registers hold the node since an earlier sweep? */
static bool later(const CcText *t, const CcTextChunk *c, int i) {
    return t->plan->sweeps.kept[i] && t->plan->sweeps.first[i] < c->sweep;
}

static bool stored_here(const CcText *t, const CcTextChunk *c, int a) {
    return t->loop->access[a].is_store && c->stores && (t->plan->kind == CC_CUDA_POINT || cc_text_along(t, a));
}

/* Prints a vector load of a chunk. */
static void load_pack(CcText *t, int i) {
    char when[256] = "";
    const CcLoopNode *n = &t->loop->node[i];
    const int a = cc_loop_access(n), v = t->plan->vector;
    const char letter = letter_of(t, a), *type = cc_gen_cuda_memory((CcDtype)n->dtype);
    char at[80];
    if (n->op == CC_S_take)
        snprintf(at, sizeof at, "%c%d + %s * %lldLL", letter, a, cc_gen_cuda_ref(t->loop, n->a[0]),
                 (long long)n->bits / cc_dtype_size(n->dtype));
    else snprintf(at, sizeof at, "%c%d", letter, a);
    if (t->plan->sweeps.kept[i]) cc_sbuf_add(t->out, "%*sh%d[h] = ", 4 * t->depth, "", i);
    else cc_sbuf_add(t->out, "%*sconst cc_pack<%s, %d> x%d = ", 4 * t->depth, "", type, v, i);
    if (n->op == CC_S_take) guard(t, i, when, sizeof when);
    if (*when) cc_sbuf_add(t->out, "cc_load<%d>(%s, %.*s ? valid : 0, aligned);\n", v, at, (int)strlen(when) - 4, when);
    else if (cc_gen_cuda_packed(t->loop, t->plan, a)) cc_sbuf_add(t->out, "cc_load<%d>(%s, valid, aligned);\n", v, at);
    else cc_sbuf_add(t->out, "cc_gather<%d>(%s, arg.s%d_%d, valid);\n", v, at, a, cc_text_inner(t));
}

/* Is the node's chunk loaded as a vector, before the loop over its elements? */
static bool in_packs(const CcText *t, const CcTextChunk *c, int i) {
    const CcLoopNode *n = &t->loop->node[i];
    if (!c->varies[i] || t->plan->vector == 1) return false;
    return n->op == CC_S_load || (n->op == CC_S_take && cc_gen_cuda_packed(t->loop, t->plan, n->a[1]));
}

bool cc_text_ahead(const CcText *t, const CcTextChunk *c, int i) {
    return t->plan->held && t->plan->vector > 1 && t->plan->sweeps.kept[i] && c->need[i] && c->varies[i] &&
           t->plan->sweeps.first[i] == c->sweep && t->loop->node[i].op == CC_S_load;
}

static void kept_element(CcText *t, int i) {
    begin_node(t, i);
    value_of(t, cc_text_dtype(t, i), t->plan->vector > 1 ? "h%d[h].v[k]" : "h%d[h]", i);
}

static int pair(CcText *t, int i, const char *condition, const char *x, const char *y) {
    const char *operands[3] = {x, y, ""};
    cc_sbuf_add(t->out, "%*s%st%d = ", 4 * t->depth, "", condition, i);
    const int status = cc_gen_cuda_scalar(cc_scalar_combine((CcScalarId)t->loop->node[i].op), cc_text_dtype(t, i),
                                          operands, t->out, t->err);
    cc_sbuf_add(t->out, ";\n");
    return status;
}

/* Prints the scan across a warp, or across the part of a warp that shares a row. */
static int scan_lanes(CcText *t, int i, int lanes) {
    char own[16];
    snprintf(own, sizeof own, "t%d", i);
    if (lanes == 1) return 0;
    cc_text_line(t, "#pragma unroll");
    cc_text_line(t, "for (int by = 1; by < %d; by *= 2) {", lanes);
    t->depth++;
    cc_text_line(t, "const %s before = cc_before(t%d, by);", cc_gen_cuda_type(cc_text_dtype(t, i)), i);
    if (pair(t, i, lanes == 32 ? "if (threadIdx.x % 32 >= by) " : "if (lane >= by) ", "before", own) < 0) return -1;
    cc_text_close(t);
    return 0;
}

/* Prints the scan of one group's width of elements: across the lanes, then the earlier warps, then `carry`. */
static int scan(CcText *t, const CcTextChunk *c, int i) {
    const int group = t->plan->group, warps = t->plan->threads / 32;
    const char *type = cc_gen_cuda_type(cc_text_dtype(t, i));
    char own[16], carry[32];
    snprintf(own, sizeof own, "t%d", i);
    snprintf(carry, sizeof carry, group > 32 ? "scan%d[%d]" : "carry%d_%d", i, group > 32 ? warps : c->sweep);
    cc_text_line(t, "%s t%d = %s;", type, i, cc_gen_cuda_ref(t->loop, t->loop->node[i].a[0]));
    if (scan_lanes(t, i, CC_MIN(group, 32)) < 0) return -1;
    if (group > 32) {
        cc_text_line(t, "if (threadIdx.x %% 32 == 31) scan%d[threadIdx.x / 32] = t%d;", i, i);
        cc_text_line(t, "__syncthreads();");
        cc_text_line(t, "for (int w = (int)threadIdx.x / 32 - 1; w >= 0; w--) {");
        t->depth++;
        cc_text_line(t, "const %s before = scan%d[w];", type, i);
        if (pair(t, i, "", "before", own) < 0) return -1;
        cc_text_close(t);
    }
    cc_text_line(t, "if (%s > 0) {", group == 1 ? "c" : "base");
    t->depth++;
    cc_text_line(t, "const %s before = %s;", type, carry);
    if (pair(t, i, "", "before", own) < 0) return -1;
    cc_text_close(t);
    if (group > 32) {
        cc_text_line(t, "__syncthreads();  // all threads have read the carry");
        cc_text_line(t, "if (threadIdx.x == %d) %s = t%d;", t->plan->threads - 1, carry, i);
    } else if (group > 1) {
        cc_text_line(t, "%s = cc_from(t%d, threadIdx.x %% 32 | %d);", carry, i, group - 1);
    } else {
        cc_text_line(t, "%s = t%d;", carry, i);
    }
    return 0;
}

/* Is it a scatter, element by element? */
static bool is_put(const CcText *t, int a) {
    return t->loop->access[a].where && !(t->plan->vector > 1 && cc_gen_cuda_packed(t->loop, t->plan, a));
}

/* Prints the scatter of an element. in_pack: element k of a chunk. */
static void put(CcText *t, int a, bool in_pack) {
    const CcLoopAccess *access = &t->loop->access[a];
    const CcStepClass step = cc_gen_cuda_step(t->loop, t->plan, a);
    char at[80], along[40] = "";
    if (in_pack && step == CC_STEP_ONE) snprintf(along, sizeof along, " + k");
    if (in_pack && step == CC_STEP_ANY) snprintf(along, sizeof along, " + k * arg.s%d_%d", a, cc_text_inner(t));
    snprintf(at, sizeof at, "p%d + %s%s", a, cc_gen_cuda_ref(t->loop, access->where - 1), along);
    const char *x = cc_gen_cuda_ref(t->loop, access->node), *condition = in_pack ? "if (k < valid) " : "";
    if (access->how == CC_PUT_SET) cc_text_line(t, "%s*(%s) = %s;", condition, at, x);
    else cc_text_line(t, "%scc_atomic<%d>(%s, %s);", condition, access->how, at, x);
}

/* Prints the computation of one element of a chunk. */
static int element(CcText *t, const CcTextChunk *c) {
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
            value_of(t, cc_text_dtype(t, i), kept ? "h%d[h].v[k]" : "x%d.v[k]", i);
            if (loop->node[i].op == CC_S_load) checks(t, i, true);
        } else {
            if (cc_text_node(t, i, pack) < 0) return -1;
            if (kept) cc_text_line(t, pack ? "h%d[h].v[k] = t%d;" : "h%d[h] = t%d;", i, i);
        }
    }
    for (int a = 0; a < loop->n_access && pack; a++)
        if (stored_here(t, c, a) && is_put(t, a)) put(t, a, true);
        else if (stored_here(t, c, a))
            cc_text_line(t, "y%d.v[k] = %s;", a, cc_gen_cuda_ref(loop, loop->access[a].node));
    return 0;
}

int cc_text_combine(CcText *t, int i, const char *x, const char *condition) {
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

/* Combines the element into the reductions of a sweep. */
static int accumulate(CcText *t, const CcTextChunk *c) {
    for (int i = 0; i < t->loop->n_node; i++) {
        const CcLoopNode *n = &t->loop->node[i];
        if (!cc_text_reduces(n) || t->plan->sweeps.stage[n->a[0]] != c->sweep) continue;
        const char *condition = t->plan->vector > 1 ? "if (k < valid) " : c->all ? "if (active) " : "";
        if (cc_text_combine(t, i, cc_gen_cuda_ref(t->loop, n->a[0]), condition) < 0) return -1;
    }
    return 0;
}

/* Does this pass over the chunk read the node? */
static bool in_pass(const CcText *t, const CcTextChunk *c, int i) {
    if (!c->need[i] || later(t, c, i)) return false;
    return c->loads == CC_LOADS_HERE || cc_text_ahead(t, c, i) == (c->loads == CC_LOADS_ONLY);
}

static bool reads(const CcText *t, const CcTextChunk *c, int a) {
    for (int i = 0; i < t->loop->n_node; i++)
        if (in_pass(t, c, i) && cc_loop_access(&t->loop->node[i]) == a) return true;
    return false;
}

static int packs(CcText *t, const CcTextChunk *c) {
    const CcLoop *loop = t->loop;
    const int v = t->plan->vector;
    t->later = c->varies;
    for (int i = 0; i < loop->n_node; i++) {
        if (!in_pass(t, c, i)) continue;
        if (in_packs(t, c, i)) load_pack(t, i);
        else if (!c->varies[i] && cc_text_node(t, i, false) < 0) return -1;
    }
    for (int a = 0; a < loop->n_access; a++)
        if (stored_here(t, c, a) && !is_put(t, a)) cc_text_line(t, "cc_pack<%s, %d> y%d;", memory_of(t, a), v, a);
    t->later = NULL;
    cc_text_line(t, "#pragma unroll");
    cc_sbuf_add(t->out, "%*sfor (int k = 0; k < %d; k++) {\n", 4 * t->depth, "", v);
    t->depth++;
    if (element(t, c) < 0 || accumulate(t, c) < 0) return -1;
    cc_text_close(t);
    for (int a = 0; a < loop->n_access; a++) {
        if (!stored_here(t, c, a) || is_put(t, a)) continue;
        const char letter = letter_of(t, a),
                   *where = loop->access[a].where ? cc_gen_cuda_ref(loop, loop->access[a].where - 1) : NULL;
        if (where)
            cc_text_line(t, "cc_store<%d>(p%d + %s, y%d, valid, aligned && %s %% %d == 0);", v, a, where, a, where, v);
        else if (cc_gen_cuda_packed(loop, t->plan, a))
            cc_text_line(t, "cc_store<%d>(%c%d, y%d, valid, aligned);", v, letter, a, a);
        else cc_text_line(t, "cc_scatter<%d>(%c%d, y%d, arg.s%d_%d, valid);", v, letter, a, a, a, cc_text_inner(t));
    }
    return 0;
}

int cc_text_chunk(CcText *t, const CcTextChunk *c) {
    const CcLoop *loop = t->loop;
    const int v = t->plan->vector, last = cc_text_inner(t);
    const bool point = t->plan->kind == CC_CUDA_POINT;
    if (v > 1) cc_text_line(t, "const %s at = i%d * %d;", index_type(t), last, v);
    else cc_text_line(t, "const %s at = i%d;", index_type(t), last);
    if (v > 1) cc_text_line(t, "const int valid = arg.inner - at < %d ? arg.inner - at : %d;", v, v);
    for (int a = 0; a < loop->n_access; a++) {
        if (loop->access[a].number || !((stored_here(t, c, a) && c->loads != CC_LOADS_ONLY) || reads(t, c, a)))
            continue;
        if (point) cc_text_place(t, 'p', "arg.a", a, 0, last);
        else if (cc_text_along(t, a)) cc_text_place(t, 'q', "p", a, t->plan->n_kept, last);
    }
    for (int i = 0; c->loads == CC_LOADS_ONLY && i < loop->n_node; i++)
        if (in_pass(t, c, i)) load_pack(t, i);
    if (c->loads == CC_LOADS_ONLY) return 0;
    if (v > 1) return packs(t, c);
    if (element(t, c) < 0 || accumulate(t, c) < 0) return -1;
    for (int a = 0; a < loop->n_access; a++)
        if (stored_here(t, c, a) && loop->access[a].where) put(t, a, false);
        else if (stored_here(t, c, a))
            cc_text_line(t, "%s*%c%d = %s;", c->all ? "if (active) " : "", letter_of(t, a), a,
                         cc_gen_cuda_ref(loop, loop->access[a].node));
    return 0;
}

/* ------------------------------------------------------------------ kernels */

void cc_text_begin(CcText *t, const char *name, int part) {
    cc_text_line(t, "extern \"C\" __global__ void __launch_bounds__(%d) %s_%d(const %s_arg arg) {", t->plan->threads,
                 name, part, name);
    t->depth++;
    if (t->plan->vector == 1) return;
    cc_sbuf_add(t->out, "%*sconst bool aligned = ", 4 * t->depth, "");
    const char *and = "";
    for (int a = 0; a < t->loop->n_access; a++) {
        if (!cc_gen_cuda_packed(t->loop, t->plan, a)) continue;
        cc_sbuf_add(t->out, "%scc_aligned<%d>(arg.a%d)", and, t->plan->vector, a);
        and = " && ";
    }
    cc_sbuf_add(t->out, ";\n");
}

static int points(CcText *t, const char *name) {
    CcTextChunk *c = calloc(1, sizeof *c);
    if (!c) return cc_err_set(t->err, CC_E_MEMORY, "no memory for a kernel's text");
    memset(c->need, true, sizeof c->need);
    cc_text_varying(t, c->varies);
    c->stores = true;
    cc_text_begin(t, name, 0);
    const char *type = cc_text_count(t);
    cc_text_line(t, "const %s threads = (%s)gridDim.x * blockDim.x;", type, type);
    cc_text_line(t, "for (%s i = (%s)blockIdx.x * blockDim.x + threadIdx.x; i < arg.n; i += threads) {", type, type);
    t->depth++;
    cc_text_decode(t, 0, cc_text_inner(t), "i");
    const int status = cc_text_chunk(t, c);
    cc_text_close(t);
    cc_text_close(t);
    free(c);
    return status;
}

int cc_gen_cuda_text(const CcLoop *loop, const CcCudaPlan *plan, const char *name, CcSbuf *out, CcErr *err) {
    CcText t = {.loop = loop, .plan = plan, .out = out, .err = err};
    argument(&t, name);
    if (plan->kind == CC_CUDA_POINT) return points(&t, name);
    for (int part = 0; part < plan->parts; part++)
        if (cc_text_rows(&t, name, part) < 0) return -1;
    return 0;
}
