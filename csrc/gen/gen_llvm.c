/* gen_llvm: prints a loop body as LLVM IR with explicit vectors, so that nothing depends on LLVM's auto-vectoriser.
 * This file prints primitives and vector loads and stores; gen_point.c and gen_sweep.c print the loops around them. */
#include <math.h>

#include "gen_int.h"

static const char *element_type(CcDtype dt) { /* of values; memory differs for bool */
    static const char *const NAME[CC_DT_COUNT] = {
        [CC_DT_BOOL] = "i1", [CC_DT_U8] = "i8",    [CC_DT_I8] = "i8",    [CC_DT_I16] = "i16",   [CC_DT_I32] = "i32",
        [CC_DT_I64] = "i64", [CC_DT_F16] = "half", [CC_DT_BF16] = "i16", [CC_DT_F32] = "float", [CC_DT_F64] = "double"};
    return NAME[dt];
}

static const char *memory_type(CcDtype dt) { return dt == CC_DT_BOOL ? "i8" : element_type(dt); }
const char *cc_emit_memory(CcDtype dt) { return memory_type(dt); }

const char *cc_emit_vector(const CcEmit *e, const char *element) {
    static _Thread_local char ring[8][24];
    static _Thread_local unsigned at;
    char *text = ring[at++ % 8];
    snprintf(text, sizeof ring[0], "<%d x %s>", e->lanes, element);
    return text;
}

const char *cc_emit_type(const CcEmit *e, CcDtype dt) { return cc_emit_vector(e, element_type(dt)); }

void cc_emit_op(CcEmit *e, CcRef out, const char *fmt, ...) {
    /* The operands may alias `out`: print them first. */
    const int id = e->next++;
    va_list args;
    va_start(args, fmt);
    cc_sbuf_add(e->body, "  %%t%d = ", id);
    cc_sbuf_vadd(e->body, fmt, args);
    cc_sbuf_add(e->body, "\n");
    va_end(args);
    snprintf(out, sizeof(CcRef), "%%t%d", id);
}

void cc_emit_number(CcDtype dt, double v, CcRef out) {
    uint64_t bits;
    if (dt == CC_DT_F32) v = (double)(float)v;
    if (v != v) v = NAN;
    memcpy(&bits, &v, sizeof bits);
    if (v != v) bits = UINT64_C(0x7FF8000000000000);
    snprintf(out, sizeof(CcRef), "splat (%s 0x%016llX)", element_type(dt), (unsigned long long)bits);
}

void cc_emit_declare(CcEmit *e, const char *name, const char *fmt, ...) {
    for (int i = 0; i < e->declared.n; i++)
        if (strcmp(e->declared.at[i], name) == 0) return;
    cc_vec_push(&e->declared, cc_mem_text(name));
    va_list args;
    va_start(args, fmt);
    cc_sbuf_vadd(&e->decl, fmt, args);
    va_end(args);
}

static void add_call(CcEmit *e, const char *name, const char *type, int arity, const CcRef *x, CcRef out) {
    char list[200] = "";
    size_t at = 0;
    for (int i = 0; i < arity; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s %s", i ? ", " : "", type, x[i]);
    cc_emit_op(e, out, "call %s @%s(%s)", type, name, list);
}

void cc_emit_intrinsic(CcEmit *e, const char *name, CcDtype dt, int arity, const CcRef *x, CcRef out) {
    char full[64];
    const char *suffix = cc_dtype_is_float(dt) ? "f" : "i", *type = cc_emit_type(e, dt);
    snprintf(full, sizeof full, "llvm.%s.v%d%s%d", name, e->lanes, suffix, cc_dtype_size(dt) * 8);
    cc_emit_declare(e, full, "declare %s @%s(%s%s%s%s%s)\n", type, full, type, arity > 1 ? ", " : "",
                    arity > 1 ? type : "", arity > 2 ? ", " : "", arity > 2 ? type : "");
    add_call(e, full, type, arity, x, out);
}

/* Defines a vector function that calls libm's scalar function for each lane. */
static void define_by_lanes(CcEmit *e, const char *name, const char *scalar, CcDtype dt, int arity) {
    const char *type = cc_emit_type(e, dt), *element = element_type(dt);
    cc_emit_declare(e, scalar, "declare %s @%s(%s%s%s)\n", element, scalar, element, arity > 1 ? ", " : "",
                    arity > 1 ? element : "");
    for (int i = 0; i < e->declared.n; i++)
        if (strcmp(e->declared.at[i], name) == 0) return;
    cc_emit_declare(e, name, "define internal %s @%s(%s %%x%s%s%s) noinline nounwind {\n", type, name, type,
                    arity > 1 ? ", " : "", arity > 1 ? type : "", arity > 1 ? " %y" : "");
    for (int i = 0; i < e->lanes; i++) {
        char last[16] = "poison", second[32] = "";
        if (i) snprintf(last, sizeof last, "%%r%d", i - 1);
        cc_sbuf_add(&e->decl, "  %%x%d = extractelement %s %%x, i32 %d\n", i, type, i);
        if (arity > 1) {
            cc_sbuf_add(&e->decl, "  %%y%d = extractelement %s %%y, i32 %d\n", i, type, i);
            snprintf(second, sizeof second, ", %s %%y%d", element, i);
        }
        cc_sbuf_add(&e->decl, "  %%c%d = call %s @%s(%s %%x%d%s)\n", i, element, scalar, element, i, second);
        cc_sbuf_add(&e->decl, "  %%r%d = insertelement %s %s, %s %%c%d, i32 %d\n", i, type, last, element, i, i);
    }
    cc_sbuf_add(&e->decl, "  ret %s %%r%d\n}\n", type, e->lanes - 1);
}

/* A vector function's name in the x86-64 vector ABI: _ZGV, instruction set, N (unmasked), lanes, one v per operand. ->
 * does libmvec have it? */
static bool vector_name(const CcEmit *e, const char *function, CcDtype dt, int arity, char *name, size_t n) {
    const int bytes = e->lanes * cc_dtype_size(dt);
    snprintf(name, n, "_ZGV%cN%d%s_%s%s",
             bytes == 64   ? 'e'
             : bytes == 32 ? 'd'
                           : 'b',
             e->lanes, arity > 1 ? "vv" : "v", function, dt == CC_DT_F32 ? "f" : "");
    return (bytes == 64 || bytes == 32 || bytes == 16) && bytes <= e->target->vector_bytes &&
           e->target->has_symbol(name);
}

bool cc_emit_has_vector(const CcEmit *e, const char *function, CcDtype dt) {
    char name[64];
    return vector_name(e, function, dt, 1, name, sizeof name);
}

int cc_emit_libm(CcEmit *e, const char *function, CcDtype dt, int arity, const CcRef *x, CcRef out) {
    const char *type = cc_emit_type(e, dt);
    char name[64], scalar[32];
    if (vector_name(e, function, dt, arity, name, sizeof name)) {
        cc_emit_declare(e, name, "declare %s @%s(%s%s%s)\n", type, name, type, arity > 1 ? ", " : "",
                        arity > 1 ? type : "");
    } else {
        snprintf(scalar, sizeof scalar, "%s%s", function, dt == CC_DT_F32 ? "f" : "");
        snprintf(name, sizeof name, "cc_lanes_%s", scalar);
        define_by_lanes(e, name, scalar, dt, arity);
    }
    add_call(e, name, type, arity, x, out);
    return 0;
}

static void cast_to_bfloat(CcEmit *e, const CcRef x, CcRef out) {
    const char *f = cc_emit_type(e, CC_DT_F32), *i = cc_emit_type(e, CC_DT_I32), *s = cc_emit_type(e, CC_DT_I16);
    CcRef u, r, odd, nan;
    cc_emit_op(e, u, "bitcast %s %s to %s", f, x, i);
    cc_emit_op(e, r, "lshr %s %s, splat (i32 16)", i, u);
    cc_emit_op(e, odd, "and %s %s, splat (i32 1)", i, r);
    cc_emit_op(e, r, "add %s %s, splat (i32 32767)", i, odd);
    cc_emit_op(e, odd, "add %s %s, %s", i, r, u);
    cc_emit_op(e, r, "lshr %s %s, splat (i32 16)", i, odd);
    cc_emit_op(e, nan, "fcmp uno %s %s, %s", f, x, x);
    cc_emit_op(e, odd, "select %s %s, %s splat (i32 32704), %s %s", cc_emit_vector(e, "i1"), nan, i, i, r);
    cc_emit_op(e, out, "trunc %s %s to %s", i, odd, s);
}

static void cast_from_bfloat(CcEmit *e, const CcRef x, CcRef out) {
    const char *f = cc_emit_type(e, CC_DT_F32), *i = cc_emit_type(e, CC_DT_I32), *s = cc_emit_type(e, CC_DT_I16);
    CcRef u, r;
    cc_emit_op(e, u, "zext %s %s to %s", s, x, i);
    cc_emit_op(e, r, "shl %s %s, splat (i32 16)", i, u);
    cc_emit_op(e, out, "bitcast %s %s to %s", i, r, f);
}

/* Is this f32 value exactly a bf16, so that a cast need not round? Follows at most `nodes` nodes. */
static bool is_bfloat(const CcLoop *loop, int node, int nodes) {
    const CcLoopNode *n = &loop->node[node];
    uint32_t bits;
    if (nodes-- == 0) return false;
    switch (n->op) {
    case CC_S_cast: return loop->node[n->a[0]].dtype == CC_DT_BF16;
    case CC_S_abs:
    case CC_S_neg: return is_bfloat(loop, n->a[0], nodes);
    case CC_S_max:
    case CC_S_min: return is_bfloat(loop, n->a[0], nodes) && is_bfloat(loop, n->a[1], nodes);
    case CC_S_select: return is_bfloat(loop, n->a[1], nodes) && is_bfloat(loop, n->a[2], nodes);
    case CC_S_konst: {
        const float v = (float)cc_loop_number(n->bits);
        memcpy(&bits, &v, sizeof bits);
        return (bits & 0xFFFF) == 0;
    }
    default: return false;
    }
}

static void truncate_to_bfloat(CcEmit *e, const CcRef x, CcRef out) {
    const char *f = cc_emit_type(e, CC_DT_F32), *i = cc_emit_type(e, CC_DT_I32);
    CcRef u;
    cc_emit_op(e, u, "bitcast %s %s to %s", f, x, i);
    cc_emit_op(e, u, "lshr %s %s, splat (i32 16)", i, u);
    cc_emit_op(e, out, "trunc %s %s to %s", i, u, cc_emit_type(e, CC_DT_I16));
}

/* LLVM takes a number out of range for impossible, and turns int64 -> f64 -> int32 into a truncation. It does not look
 * through this. */
static void fence(CcEmit *e, CcDtype dt, const CcRef x, CcRef out) {
    if (dt == CC_DT_F64) cc_emit_intrinsic(e, "arithmetic.fence", dt, 1, (const CcRef *)x, out);
    else memmove(out, x, sizeof(CcRef));
}

static int cast(CcEmit *e, CcDtype from, CcDtype to, const CcRef x, CcRef out) {
    const CcDtypeInfo *f = cc_dtype_info(from), *t = cc_dtype_info(to);
    const char *ft = cc_emit_type(e, from), *tt = cc_emit_type(e, to);
    const bool from_float = f->kind == 'f', to_float = t->kind == 'f';
    if (from == CC_DT_BF16) cast_from_bfloat(e, x, out);
    else if (to == CC_DT_BF16) cast_to_bfloat(e, x, out);
    else if ((from == CC_DT_F16 || to == CC_DT_F16) && !e->target->f16)
        return cc_err_set(e->err, CC_E_UNSUPPORTED, "no float16 on this CPU");
    else if (from_float && to_float)
        cc_emit_op(e, out, "%s %s %s to %s", f->size < t->size ? "fpext" : "fptrunc", ft, x, tt);
    else if (to == CC_DT_BOOL && from_float) cc_emit_op(e, out, "fcmp une %s %s, zeroinitializer", ft, x);
    else if (to == CC_DT_BOOL) cc_emit_op(e, out, "icmp ne %s %s, zeroinitializer", ft, x);
    else if (to_float) cc_emit_op(e, out, "%s %s %s to %s", f->kind == 'i' ? "sitofp" : "uitofp", ft, x, tt);
    else if (from_float && t->size >= 4) {
        CcRef own;
        fence(e, from, x, own);
        cc_emit_op(e, out, "fptosi %s %s to %s", ft, own, tt);
    } else if (from_float) { /* to small integers via i32, as eager's vector code; to u8 via i64 (c10's TypeCast.h) */
        const char *wt = cc_emit_type(e, from == CC_DT_F64 && to == CC_DT_U8 ? CC_DT_I64 : CC_DT_I32);
        CcRef own, wide;
        fence(e, from, x, own);
        cc_emit_op(e, wide, "fptosi %s %s to %s", ft, own, wt);
        cc_emit_op(e, out, "trunc %s %s to %s", wt, wide, tt);
    } else if (f->size == t->size && from != CC_DT_BOOL) memmove(out, x, sizeof(CcRef)); /* u8 and i8 */
    else if (f->size > t->size) cc_emit_op(e, out, "trunc %s %s to %s", ft, x, tt);
    else cc_emit_op(e, out, "%s %s %s to %s", f->kind == 'i' ? "sext" : "zext", ft, x, tt);
    return 0;
}

/* Replaces zero divisors by 1: lanes past a row's end hold 0, and integer division by 0 traps. */
static void emit_divisor(CcEmit *e, CcDtype dt, CcRef by) {
    if (strncmp(by, "splat", 5) == 0) return;
    const char *type = cc_emit_type(e, dt);
    CcRef nothing;
    cc_emit_op(e, nothing, "icmp eq %s %s, zeroinitializer", type, by);
    cc_emit_op(e, by, "select %s %s, %s splat (%s 1), %s %s", cc_emit_vector(e, "i1"), nothing, type, element_type(dt),
               type, by);
}

int cc_emit_scalar(CcEmit *e, CcScalarId op, CcDtype dt, const CcRef *x, CcRef out) {
    const CcScalarInfo *info = cc_scalar_info(op);
    const char kind = cc_dtype_info(dt)->kind;
    const char *lower = info->lower[kind == 'f' ? 0 : kind == 'i' ? 1 : 2], *type = cc_emit_type(e, dt);
    switch (lower[0]) {
    case '!': return cc_math_expand(e, lower + 1, dt, x, out);
    case '$': return cc_emit_libm(e, lower + 1, dt, info->arity, x, out);
    case '@': cc_emit_intrinsic(e, lower + 1, dt, info->arity, x, out); return 0;
    case 0: return cc_err_set(e->err, CC_E_UNSUPPORTED, "%s of %s", info->name, cc_dtype_info(dt)->name);
    default:
        cc_emit_op(e, out, "%s %s %s%s%s", lower, type, x[0], info->arity > 1 ? ", " : "", info->arity > 1 ? x[1] : "");
        return 0;
    }
}

static void emit_count(CcEmit *e, CcDtype dt, CcRef out) {
    const char *v = cc_emit_type(e, dt);
    CcRef one, put;
    if (cc_dtype_is_float(dt)) cc_emit_op(e, one, "sitofp i64 %%count to %s", element_type(dt));
    else if (cc_dtype_size(dt) < 8) cc_emit_op(e, one, "trunc i64 %%count to %s", element_type(dt));
    else strcpy(one, "%count");
    cc_emit_op(e, put, "insertelement %s poison, %s %s, i32 0", v, element_type(dt), one);
    cc_emit_op(e, out, "shufflevector %s %s, %s poison, <%d x i32> zeroinitializer", v, put, v, e->lanes);
}

int cc_emit_node(CcEmit *e, int i) {
    const CcLoopNode *n = &e->loop->node[i];
    const CcDtype dt = (CcDtype)n->dtype;
    char *out = e->ref[i];
    if (n->op == CC_S_konst) {
        if (cc_dtype_is_float(dt)) cc_emit_number(dt, cc_loop_number(n->bits), out);
        else snprintf(out, sizeof(CcRef), "splat (%s %lld)", element_type(dt), (long long)n->bits);
        return 0;
    }
    if (n->op == CC_S_cast && dt == CC_DT_BF16 && is_bfloat(e->loop, n->a[0], 6))
        return truncate_to_bfloat(e, e->ref[n->a[0]], out), 0;
    if (n->op == CC_S_cast) return cast(e, (CcDtype)e->loop->node[n->a[0]].dtype, dt, e->ref[n->a[0]], out);
    if (n->op == CC_S_select) {
        cc_emit_op(e, out, "select %s %s, %s %s, %s %s", cc_emit_vector(e, "i1"), e->ref[n->a[0]], cc_emit_type(e, dt),
                   e->ref[n->a[1]], cc_emit_type(e, dt), e->ref[n->a[2]]);
        return 0;
    }
    if (n->op == CC_S_count) return emit_count(e, dt, out), 0;
    const CcScalarInfo *info = cc_scalar_info((CcScalarId)n->op);
    CcRef x[3] = {"", "", ""};
    for (int k = 0; k < info->arity; k++) strcpy(x[k], e->ref[n->a[k]]);
    if ((n->op == CC_S_div || n->op == CC_S_rem) && !cc_dtype_is_float(dt)) emit_divisor(e, dt, x[1]);
    return cc_emit_scalar(e, (CcScalarId)n->op, info->kind == 'C' ? (CcDtype)e->loop->node[n->a[0]].dtype : dt,
                          (const CcRef *)x, out);
}

void cc_emit_loaded(CcEmit *e, CcDtype dt, CcRef ref) {
    if (dt == CC_DT_BOOL) cc_emit_op(e, ref, "icmp ne %s %s, zeroinitializer", cc_emit_vector(e, "i8"), ref);
}

void cc_emit_broadcast(CcEmit *e, CcDtype dt, const char *at, CcRef out) {
    const char *m = memory_type(dt), *v = cc_emit_vector(e, m);
    CcRef one, put;
    cc_emit_op(e, one, "load %s, ptr %s, align %d", m, at, cc_dtype_size(dt));
    cc_emit_op(e, put, "insertelement %s poison, %s %s, i32 0", v, m, one);
    cc_emit_op(e, out, "shufflevector %s %s, %s poison, <%d x i32> zeroinitializer", v, put, v, e->lanes);
    cc_emit_loaded(e, dt, out);
}

/* Four elements share an address, to which x86's addressing modes add one, two or three steps. */
void cc_emit_load_each(CcEmit *e, CcDtype dt, int access, const char *row, const char *index, CcRef out) {
    const char *m = memory_type(dt), *v = cc_emit_vector(e, m);
    CcRef at, near, x, all = "poison", step[5];
    snprintf(step[1], sizeof(CcRef), "%%s%d", access);
    cc_emit_op(e, step[2], "shl i64 %s, 1", step[1]);
    cc_emit_op(e, step[3], "add i64 %s, %s", step[2], step[1]);
    cc_emit_op(e, step[4], "shl i64 %s, 2", step[1]);
    cc_emit_op(e, at, "mul i64 %s, %s", index, step[1]);
    cc_emit_op(e, at, "getelementptr i8, ptr %s, i64 %s", row, at);
    for (int i = 0; i < e->lanes; i++) {
        if (i && i % 4 == 0) cc_emit_op(e, at, "getelementptr i8, ptr %s, i64 %s", at, step[4]);
        if (i % 4) cc_emit_op(e, near, "getelementptr i8, ptr %s, i64 %s", at, step[i % 4]);
        cc_emit_op(e, x, "load %s, ptr %s, align %d", m, i % 4 ? near : at, cc_dtype_size(dt));
        cc_emit_op(e, all, "insertelement %s %s, %s %s, i32 %d", v, all, m, x, i);
    }
    snprintf(out, sizeof(CcRef), "%s", all);
    cc_emit_loaded(e, dt, out);
}

void cc_emit_splat(CcEmit *e, CcDtype dt, const char *x, CcRef out) {
    const char *v = cc_emit_type(e, dt), *element = element_type(dt);
    CcRef one;
    snprintf(one, sizeof one, "%s", x);
    if (dt != CC_DT_I64) cc_emit_op(e, one, "trunc i64 %s to %s", x, element);
    cc_emit_op(e, out, "insertelement %s poison, %s %s, i32 0", v, element, one);
    cc_emit_op(e, out, "shufflevector %s %s, %s poison, <%d x i32> zeroinitializer", v, out, v, e->lanes);
}

void cc_emit_place(CcEmit *e, const char *at, CcRef out) {
    cc_emit_op(e, out, "ptrtoint ptr %s to i64", at);
    cc_emit_op(e, out, "sub i64 %s, %lld", out, (long long)(intptr_t)CC_PLACE_ZERO);
}

void cc_emit_reverse(CcEmit *e, const char *v, CcRef x) {
    CcSbuf order = {0};
    for (int i = e->lanes - 1; i >= 0; i--) cc_sbuf_add(&order, "i32 %d%s", i, i ? ", " : "");
    cc_emit_op(e, x, "shufflevector %s %s, %s poison, <%d x i32> <%s>", v, x, v, e->lanes, cc_sbuf_text(&order));
    cc_sbuf_free(&order);
}

void cc_emit_gather(CcEmit *e, CcDtype dt, const char *pointers, const char *mask, CcRef out) {
    const char *m = cc_emit_memory(dt), *v = cc_emit_vector(e, m);
    const int size = cc_dtype_size(dt), n = e->lanes;
    char name[64];
    snprintf(name, sizeof name, "llvm.masked.gather.v%d%c%d.v%dp0", n, m[0] == 'i' ? 'i' : 'f', size * 8, n);
    cc_emit_declare(e, name, "declare %s @%s(<%d x ptr>, i32, <%d x i1>, %s)\n", v, name, n, n, v);
    cc_emit_op(e, out, "call %s @%s(<%d x ptr> %s, i32 %d, <%d x i1> %s, %s zeroinitializer)", v, name, n, pointers,
               size, n, mask, v);
    cc_emit_loaded(e, dt, out);
}

static void masked_name(const CcEmit *e, const char *what, const char *element, int size, char *name, size_t n) {
    snprintf(name, n, "llvm.masked.%s.v%d%c%d.p0", what, e->lanes, element[0] == 'i' ? 'i' : 'f', size * 8);
}

void cc_emit_masked_load(CcEmit *e, const char *element, int size, const char *at, const char *mask, CcRef out) {
    const char *v = cc_emit_vector(e, element);
    char name[64];
    masked_name(e, "load", element, size, name, sizeof name);
    cc_emit_declare(e, name, "declare %s @%s(ptr, i32, <%d x i1>, %s)\n", v, name, e->lanes, v);
    cc_emit_op(e, out, "call %s @%s(ptr %s, i32 %d, <%d x i1> %s, %s zeroinitializer)", v, name, at, size, e->lanes,
               mask, v);
}

void cc_emit_masked_store(CcEmit *e, const char *element, int size, const char *x, const char *at, const char *mask) {
    const char *v = cc_emit_vector(e, element);
    char name[64];
    masked_name(e, "store", element, size, name, sizeof name);
    cc_emit_declare(e, name, "declare void @%s(%s, ptr, i32, <%d x i1>)\n", name, v, e->lanes);
    cc_sbuf_add(e->body, "  call void @%s(%s %s, ptr %s, i32 %d, <%d x i1> %s)\n", name, v, x, at, size, e->lanes,
                mask);
}

/* A vector of the widest type computed along a row fills a register; a loop of small types has more lanes. */
static int choose_lanes(const CcLoop *loop, const CcTarget *target) {
    bool invariant[CC_LOOP_MAX_NODES] = {false};
    int widest = 1;
    if (!loop->reduces) cc_gen_invariant(loop, invariant);
    for (int i = 0; i < loop->n_node; i++)
        if (!invariant[i]) widest = CC_MAX(widest, cc_dtype_size(loop->node[i].dtype));
    return CC_MAX(2, target->vector_bytes / widest);
}

int cc_gen_llvm(const CcLoop *loop, const CcTarget *target, const char *name, CcSbuf *out, CcErr *err) {
    CcSbuf body = {0};
    CcEmit e = {.loop = loop, .target = target, .lanes = choose_lanes(loop, target), .body = &body, .err = err};
    e.ref = calloc((size_t)loop->n_node + 1, sizeof *e.ref);
    int status = !e.ref          ? cc_err_set(err, CC_E_MEMORY, "no memory for a kernel's text")
                 : loop->reduces ? cc_gen_sweeps(&e)
                                 : cc_gen_point(&e);
    if (status == 0) {
        cc_sbuf_add(out, "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n%s", cc_sbuf_text(&e.decl));
        cc_sbuf_add(out, "define void @%s(ptr noalias readonly %%arg) nounwind {\n%s", name, cc_sbuf_text(&body));
    }
    for (int i = 0; i < e.declared.n; i++) free(e.declared.at[i]);
    cc_vec_free(&e.declared);
    cc_sbuf_free(&e.decl);
    cc_sbuf_free(&body);
    free(e.ref);
    return status;
}
