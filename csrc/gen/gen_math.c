/* gen_math: what has no instruction, as LLVM vector code. The functions that matter most have their
 * own single-precision code for machines whose libmvec lacks them (it got tanh and erf in
 * glibc 2.35; where it has them it is up to 1.7 times faster and compiles sooner). Polynomials and
 * reductions are Cephes' (exp, log, tanh) and N. Juffa's (erf), within 2 ulp. No fast-math flag is
 * used, so that NaN, infinities and signs come out as in libm: comparisons are ordered such that a
 * NaN passes through every clamp. */
#include <math.h>

#include "gen_int.h"

#define T cc_emit_type(e, CC_DT_F32)
#define I cc_emit_type(e, CC_DT_I32)

/* sum = (...((c0 * x + c1) * x + c2)...) */
static void polynomial(CcEmit *e, const CcRef x, const double *c, int n, CcRef out) {
    CcRef arg[3];
    cc_emit_number(CC_DT_F32, c[0], arg[0]);
    strcpy(arg[1], x);
    for (int i = 1; i < n; i++) {
        cc_emit_number(CC_DT_F32, c[i], arg[2]);
        cc_emit_intrinsic(e, "fma", CC_DT_F32, 3, (const CcRef *)arg, out);
        strcpy(arg[0], out);
    }
}

static void fma3(CcEmit *e, const char *x, const char *y, const char *z, CcRef out) {
    CcRef arg[3];
    strcpy(arg[0], x);
    strcpy(arg[1], y);
    strcpy(arg[2], z);
    cc_emit_intrinsic(e, "fma", CC_DT_F32, 3, (const CcRef *)arg, out);
}

static void f32_op(CcEmit *e, const char *op, const char *x, const char *y, CcRef out) {
    cc_emit_op(e, out, "%s %s %s, %s", op, T, x, y);
}

static void f32_select(CcEmit *e, const char *mask, const char *x, const char *y, CcRef out) {
    const char *m = cc_emit_vector(e, "i1");
    cc_emit_op(e, out, "select %s %s, %s %s, %s %s", m, mask, T, x, T, y);
}

static void konst(double v, CcRef out) { cc_emit_number(CC_DT_F32, v, out); }

/* 2^(n / 2) * 2^(n - n / 2) * y: two steps, so that overflow and denormals round once, at the end.
 */
static void scale(CcEmit *e, const CcRef y, const CcRef n, CcRef out) {
    CcRef half, rest, a, b;
    cc_emit_op(e, half, "ashr %s %s, splat (i32 1)", I, n);
    cc_emit_op(e, rest, "sub %s %s, %s", I, n, half);
    char *part[] = {half, rest};
    for (int i = 0; i < 2; i++) {
        cc_emit_op(e, a, "add %s %s, splat (i32 127)", I, part[i]);
        cc_emit_op(e, b, "shl %s %s, splat (i32 23)", I, a);
        cc_emit_op(e, part[i], "bitcast %s %s to %s", I, b, T);
    }
    f32_op(e, "fmul", y, half, a);
    f32_op(e, "fmul", a, rest, out);
}

static void expand_exp(CcEmit *e, const CcRef *x, CcRef out) {
    static const double P[] = {1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
                               4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1};
    CcRef c, m, v, t, n, r, p, bits;
    konst(-105, c);
    cc_emit_op(e, m, "fcmp ogt %s %s, %s", T, c, x[0]);
    f32_select(e, m, c, x[0], v);
    konst(89, c);
    cc_emit_op(e, m, "fcmp olt %s %s, %s", T, c, v);
    f32_select(e, m, c, v, r);
    strcpy(v, r);
    /* Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits: no conversion,
     * so no trap for NaN. */
    CcRef magic;
    konst(12582912, magic);
    konst(1.44269504088896341, c);
    fma3(e, v, c, magic, t);
    f32_op(e, "fsub", t, magic, n);
    konst(-0.693359375, c);
    fma3(e, n, c, v, r);
    konst(2.12194440e-4, c);
    fma3(e, n, c, r, v);
    polynomial(e, v, P, CC_COUNT(P), p);
    f32_op(e, "fmul", v, v, r);
    CcRef sum;
    fma3(e, p, r, v, sum);
    konst(1, c);
    f32_op(e, "fadd", sum, c, p);
    cc_emit_op(e, bits, "bitcast %s %s to %s", T, t, I);
    cc_emit_op(e, n, "sub %s %s, splat (i32 1262485504)", I, bits);
    scale(e, p, n, out);
}

static void expand_log(CcEmit *e, const CcRef *x, CcRef out) {
    static const double P[] = {7.0376836292e-2,  -1.1514610310e-1, 1.1676998740e-1,
                               -1.2420140846e-1, 1.4249322787e-1,  -1.6668057665e-1,
                               2.0000714765e-1,  -2.4999993993e-1, 3.3333331174e-1};
    CcRef c, tiny, v, r, bits, n, f, z, p, q, m;
    konst(0x1p-126, c); /* denormals are scaled up first */
    cc_emit_op(e, tiny, "fcmp olt %s %s, %s", T, x[0], c);
    konst(0x1p23, c);
    f32_op(e, "fmul", x[0], c, r);
    f32_select(e, tiny, r, x[0], v);
    /* x = 2^n * m with m in [sqrt(1/2), sqrt(2)) */
    cc_emit_op(e, bits, "bitcast %s %s to %s", T, v, I);
    cc_emit_op(e, r, "sub %s %s, splat (i32 1060439283)", I, bits);
    cc_emit_op(e, n, "ashr %s %s, splat (i32 23)", I, r);
    cc_emit_op(e, r, "shl %s %s, splat (i32 23)", I, n);
    cc_emit_op(e, f, "sub %s %s, %s", I, bits, r);
    cc_emit_op(e, r, "bitcast %s %s to %s", I, f, T);
    konst(1, c);
    f32_op(e, "fsub", r, c, f);
    cc_emit_op(e, r, "sitofp %s %s to %s", I, n, T);
    konst(23, c);
    f32_op(e, "fsub", r, c, q);
    f32_select(e, tiny, q, r, n);
    polynomial(e, f, P, CC_COUNT(P), p);
    f32_op(e, "fmul", f, f, z);
    f32_op(e, "fmul", p, f, q);
    f32_op(e, "fmul", q, z, p);
    konst(-2.12194440e-4, c);
    fma3(e, n, c, p, q);
    konst(-0.5, c);
    fma3(e, z, c, q, p);
    f32_op(e, "fadd", f, p, q);
    konst(0.693359375, c);
    fma3(e, n, c, q, r);
    /* inf and NaN give themselves, 0 gives -inf, less gives NaN. */
    CcRef zero, inf, special;
    konst(0, zero);
    konst(INFINITY, inf);
    cc_emit_op(e, m, "fcmp ult %s %s, %s", T, x[0], inf);
    f32_select(e, m, r, x[0], q);
    cc_emit_op(e, m, "fcmp uno %s %s, %s", T, x[0], x[0]);
    f32_select(e, m, x[0], q, r);
    cc_emit_op(e, m, "fcmp olt %s %s, %s", T, x[0], zero);
    konst(NAN, special);
    f32_select(e, m, special, r, q);
    cc_emit_op(e, m, "fcmp oeq %s %s, %s", T, x[0], zero);
    konst(-INFINITY, special);
    f32_select(e, m, special, q, out);
}

static void absolute(CcEmit *e, const CcRef *x, CcRef out) {
    cc_emit_intrinsic(e, "fabs", CC_DT_F32, 1, x, out);
}

static void with_sign(CcEmit *e, const CcRef magnitude, const CcRef sign, CcRef out) {
    CcRef arg[2];
    strcpy(arg[0], magnitude);
    strcpy(arg[1], sign);
    cc_emit_intrinsic(e, "copysign", CC_DT_F32, 2, (const CcRef *)arg, out);
}

static void expand_tanh(CcEmit *e, const CcRef *x, CcRef out) {
    static const double P[] = {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2,
                               1.33314422036e-1, -3.33332819422e-1};
    CcRef c, t, z, p, q, small, big[1], m;
    absolute(e, x, t);
    f32_op(e, "fmul", x[0], x[0], z);
    polynomial(e, z, P, CC_COUNT(P), p);
    f32_op(e, "fmul", p, z, q);
    fma3(e, q, x[0], x[0], small);
    f32_op(e, "fadd", t, t, big[0]);
    expand_exp(e, (const CcRef *)big, p);
    konst(1, c);
    f32_op(e, "fadd", p, c, q);
    CcRef two;
    konst(2, two);
    f32_op(e, "fdiv", two, q, p);
    f32_op(e, "fsub", c, p, q);
    with_sign(e, q, x[0], p);
    konst(0.625, c);
    cc_emit_op(e, m, "fcmp olt %s %s, %s", T, t, c);
    f32_select(e, m, small, p, out);
}

static void expand_erf(CcEmit *e, const CcRef *x, CcRef out) {
    static const double NEAR[] = {-5.96761703e-4, 4.99119423e-3,  -2.67681349e-2,
                                  1.12819925e-1,  -3.76125336e-1, 1.28379166e-1};
    static const double FAR[] = {-1.06777877e-1, -6.34846687e-1, -1.28717512e-1};
    CcRef c, d, t, s, r, u, near, m, arg[1];
    absolute(e, x, t);
    f32_op(e, "fmul", x[0], x[0], s);
    polynomial(e, s, NEAR, CC_COUNT(NEAR), r);
    fma3(e, r, x[0], x[0], near);
    konst(5, c); /* erf(5) is 1; the polynomial is not asked for more */
    cc_emit_op(e, m, "fcmp olt %s %s, %s", T, c, t);
    f32_select(e, m, c, t, u);
    strcpy(t, u);
    f32_op(e, "fmul", t, t, s);
    konst(-1.72853470e-5, c);
    konst(3.83197126e-4, d);
    fma3(e, c, t, d, r);
    konst(-3.88396438e-3, c);
    konst(2.42546219e-2, d);
    fma3(e, c, t, d, u);
    fma3(e, r, s, u, m);
    strcpy(r, m);
    for (int i = 0; i < CC_COUNT(FAR); i++) {
        konst(FAR[i], c);
        fma3(e, r, t, c, u);
        strcpy(r, u);
    }
    cc_emit_op(e, u, "fneg %s %s", T, t);
    fma3(e, r, t, u, arg[0]);
    expand_exp(e, (const CcRef *)arg, u);
    konst(1, c);
    f32_op(e, "fsub", c, u, r);
    with_sign(e, r, x[0], u);
    konst(0.927734375, c);
    absolute(e, x, t);
    cc_emit_op(e, m, "fcmp ogt %s %s, %s", T, t, c);
    f32_select(e, m, u, near, out);
}

/* As vmaxps / vminps, whose second operand is the result when one is NaN; b's NaN is looked at
 * apart. */
static void extreme(CcEmit *e, CcDtype dt, const char *compare, const CcRef *x, CcRef out) {
    CcRef m, y;
    const char *t = cc_emit_type(e, dt), *mask = cc_emit_vector(e, "i1");
    cc_emit_op(e, m, "fcmp %s %s %s, %s", compare, t, x[1], x[0]);
    cc_emit_op(e, y, "select %s %s, %s %s, %s %s", mask, m, t, x[1], t, x[0]);
    if (x[1][0] == 's' && !strstr(x[1], "0x7FF8")) { /* a constant, and not NaN */
        strcpy(out, y);
        return;
    }
    cc_emit_op(e, m, "fcmp uno %s %s, %s", t, x[1], x[1]);
    cc_emit_op(e, out, "select %s %s, %s %s, %s %s", mask, m, t, x[1], t, y);
}

int cc_math_expand(CcEmit *e, const char *name, CcDtype dt, const CcRef *x, CcRef out) {
    static const struct {
        const char *name;
        void (*expand)(CcEmit *e, const CcRef *x, CcRef out);
    } F32[] = {
        {"exp", expand_exp}, {"log", expand_log}, {"tanh", expand_tanh}, {"erf", expand_erf}};
    for (int i = 0; i < CC_COUNT(F32); i++) {
        if (strcmp(F32[i].name, name) != 0) continue;
        if (dt != CC_DT_F32 || cc_emit_has_vector(e, name, dt))
            return cc_emit_libm(e, name, dt, 1, x, out);
        F32[i].expand(e, x, out);
        return 0;
    }
    if (strcmp(name, "fmax") == 0) return extreme(e, dt, "ogt", x, out), 0;
    if (strcmp(name, "fmin") == 0) return extreme(e, dt, "olt", x, out), 0;
    if (strcmp(name, "isnan") == 0) {
        cc_emit_op(e, out, "fcmp uno %s %s, %s", cc_emit_type(e, dt), x[0], x[0]);
        return 0;
    }
    if (strcmp(name, "isinf") == 0) {
        CcRef magnitude, inf;
        cc_emit_intrinsic(e, "fabs", dt, 1, x, magnitude);
        cc_emit_number(dt, INFINITY, inf);
        cc_emit_op(e, out, "fcmp oeq %s %s, %s", cc_emit_type(e, dt), magnitude, inf);
        return 0;
    }
    if (strcmp(name, "not") == 0) {
        cc_emit_op(e, out, "xor %s %s, splat (i%d -1)", cc_emit_type(e, dt), x[0],
                   dt == CC_DT_BOOL ? 1 : cc_dtype_info(dt)->size * 8);
        return 0;
    }
    if (strcmp(name, "abs") == 0) {
        CcRef negative, m;
        const char *t = cc_emit_type(e, dt);
        cc_emit_op(e, negative, "sub %s zeroinitializer, %s", t, x[0]);
        cc_emit_op(e, m, "icmp slt %s %s, zeroinitializer", t, x[0]);
        cc_emit_op(e, out, "select %s %s, %s %s, %s %s", cc_emit_vector(e, "i1"), m, t, negative, t,
                   x[0]);
        return 0;
    }
    return cc_err_set(e->err, CC_E_UNSUPPORTED, "no expansion of %s", name);
}
