/* gen_cuda_expr: scalar primitives as CUDA C. Expressions come from the reference columns of scalar.def, with operands
 * substituted for a, b and c, and F(exp) printed as expf or exp; WRAP and DIVIDE are macros of the prelude. */
#include "gen_int.h"

enum { RING = 8, ROOM = 160 };

static char *ring(void) {
    static _Thread_local char text[RING][ROOM];
    static _Thread_local unsigned at;
    return text[at++ % RING];
}

static const struct {
    const char *floats, *integers;
} EXPRESSION[] = {
#define CC_SCALAR(id, arity, kind, fl, sl, ul, fref, iref, doc) {#fref, #iref},
#include "../ir/scalar.def"
#undef CC_SCALAR
};

const char *cc_gen_cuda_type(CcDtype dt) {
    static const char *const NAME[CC_DT_COUNT] = {
        [CC_DT_BOOL] = "bool", [CC_DT_U8] = "unsigned char", [CC_DT_I8] = "signed char", [CC_DT_I16] = "short",
        [CC_DT_I32] = "int",   [CC_DT_I64] = "long long",    [CC_DT_F16] = "cc_half",    [CC_DT_BF16] = "cc_bfloat",
        [CC_DT_F32] = "float", [CC_DT_F64] = "double"};
    return NAME[dt];
}

const char *cc_gen_cuda_memory(CcDtype dt) { return dt == CC_DT_BOOL ? "unsigned char" : cc_gen_cuda_type(dt); }

static const char *float_text(CcDtype dt, double v) {
    char *out = ring();
    const bool single = dt == CC_DT_F32;
    if (v != v) return single ? "CC_NANF" : "CC_NAN";
    if (v - v != 0) return v > 0 ? (single ? "CC_INFF" : "CC_INF") : single ? "(-CC_INFF)" : "(-CC_INF)";
    char digits[40];
    snprintf(digits, sizeof digits, single ? "%.9g" : "%.17g", v);
    const char *point = strpbrk(digits, ".e") ? "" : ".0", *suffix = single ? "f" : "";
    snprintf(out, ROOM, *digits == '-' ? "(%s%s%s)" : "%s%s%s", digits, point, suffix);
    return out;
}

const char *cc_gen_cuda_konst(const CcLoopNode *n) {
    const CcDtype dt = (CcDtype)n->dtype;
    if (cc_dtype_is_float(dt)) return float_text(dt, cc_loop_number(n->bits));
    if (dt == CC_DT_BOOL) return n->bits ? "true" : "false";
    if (n->bits == INT64_MIN) return "(-9223372036854775807LL - 1)";
    char *out = ring();
    snprintf(out, ROOM, n->bits < 0 ? "(%lld%s)" : "%lld%s", (long long)n->bits, dt == CC_DT_I64 ? "LL" : "");
    return out;
}

const char *cc_gen_cuda_ref(const CcLoop *loop, int node) {
    if (loop->node[node].op == CC_S_konst) return cc_gen_cuda_konst(&loop->node[node]);
    char *out = ring();
    snprintf(out, ROOM, "t%d", node);
    return out;
}

const char *cc_gen_cuda_cast(CcDtype from, CcDtype to, const char *x) {
    const CcDtypeInfo *f = cc_dtype_info(from), *t = cc_dtype_info(to);
    char *out = ring();
    if (cc_dtype_is_half(from)) snprintf(out, ROOM, "cc_float(%s)", x);
    else if (to == CC_DT_F16) snprintf(out, ROOM, "cc_to_half(%s)", x);
    else if (to == CC_DT_BF16) snprintf(out, ROOM, "cc_to_bfloat(%s)", x);
    else if (to == CC_DT_BOOL) snprintf(out, ROOM, "%s != 0", x);
    else if (f->kind == 'f' && t->kind != 'f' && t->size < 4) /* via int, as eager converts */
        snprintf(out, ROOM, "(%s)(int)%s", cc_gen_cuda_type(to), x);
    else snprintf(out, ROOM, "(%s)%s", cc_gen_cuda_type(to), x);
    return out;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_word(char c) { return is_letter(c) || (c >= '0' && c <= '9'); }

/* Translates identifiers of the reference columns to those of CUDA and the prelude. */
static const char *own_name(const char *word, int n, bool single) {
    static const struct {
        const char *from, *to;
    } NAME[] = {
        {"WRAP", "CC_WRAP"}, {"DIVIDE", "CC_DIVIDE"}, {"int64_t", "long long"}, {"uint64_t", "unsigned long long"}};
    char *out = ring();
    snprintf(out, ROOM, "%.*s", n, word);
    if (strcmp(out, "INFINITY") == 0) return single ? "CC_INFF" : "CC_INF";
    for (int i = 0; i < CC_COUNT(NAME); i++)
        if (strcmp(out, NAME[i].from) == 0) return NAME[i].to;
    return out;
}

/* Substitutes operands for a, b, c and functions for F(function). */
static void substitute(const char *pattern, bool single, const char *const *x, CcSbuf *out) {
    for (const char *p = pattern; *p;) {
        int n = 0;
        while (is_word(p[n])) n++;
        if (n == 0 || !is_letter(*p)) {
            /* clang-format prints binary operators of macro arguments as "a *b" */
            const bool tight = (*p == '*' || *p == '&') && p > pattern && p[-1] == ' ' && is_word(p[1]);
            cc_sbuf_add(out, "%.*s%s", CC_MAX(n, 1), p, tight ? " " : "");
            p += CC_MAX(n, 1);
        } else if (n == 1 && *p >= 'a' && *p <= 'c') {
            cc_sbuf_add(out, "%s", x[*p - 'a']);
            p++;
        } else if (n == 1 && *p == 'F') {
            const int name = (int)strcspn(p + 2, ")");
            cc_sbuf_add(out, "%.*s%s", name, p + 2, single ? "f" : "");
            p += name + 3;
        } else {
            cc_sbuf_add(out, "%s", own_name(p, n, single));
            p += n;
        }
    }
}

int cc_gen_cuda_scalar(CcScalarId op, CcDtype dt, const char *const *x, CcSbuf *out, CcErr *err) {
    const CcScalarInfo *info = cc_scalar_info(op);
    const bool is_float = cc_dtype_is_float(dt);
    if (info->kind == 'X' || info->kind == 'R' || !*info->lower[is_float ? 0 : 1])
        return cc_err_set(err, CC_E_UNSUPPORTED, "%s of %s", info->name, cc_dtype_info(dt)->name);
    if (is_float && (op == CC_S_max || op == CC_S_min)) { /* one instruction each, wrapped by the prelude */
        cc_sbuf_add(out, "cc_%s(%s, %s)", info->name, x[0], x[1]);
        return 0;
    }
    const bool narrowed = !is_float && info->kind != 'C', is_bool = narrowed && dt == CC_DT_BOOL;
    if (is_bool) cc_sbuf_add(out, "((");
    else if (narrowed) cc_sbuf_add(out, "(%s)(", cc_gen_cuda_type(dt));
    substitute(is_float ? EXPRESSION[op].floats : EXPRESSION[op].integers, dt == CC_DT_F32, x, out);
    if (narrowed) cc_sbuf_add(out, is_bool ? ") & 1) != 0" : ")");
    return 0;
}
