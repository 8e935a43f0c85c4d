/* gen_math: expands functions without a machine instruction into LLVM vector code. exp, and erf with AVX-512, have
 * their own single-precision code because it is faster than libmvec's. log and tanh serve machines whose libmvec lacks
 * them (it got tanh and erf in glibc 2.35; where it has them it is up to 1.7 times faster and compiles sooner).
 * Polynomials and range reductions are Cephes' (log, tanh), N. Juffa's (erf) or fitted (exp, erf by table), within 3
 * ulp. No fast-math flags are used, so that NaN, infinities and signs come out as in libm; comparisons are ordered such
 * that NaN passes through every clamp. */
#include <math.h>

#include "gen_int.h"

#define T cc_emit_type(e, CC_DT_F32)
#define I cc_emit_type(e, CC_DT_I32)

/* Horner's scheme: out = (...((c0 * x + c1) * x + c2)...). */
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

/* out = 2^(n / 2) * 2^(n - n / 2) * y. Two steps keep each factor in range, so that only the last product rounds. */
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

/* out = y * 2^n by vscalefps, rounded once. */
static void scale_by_instruction(CcEmit *e, const char *y, const char *n, CcRef out) {
    const bool wide = e->lanes == 16;
    char name[64];
    snprintf(name, sizeof name, "llvm.x86.avx512.mask.scalef.ps.%d", e->lanes * 32);
    const char *mask = wide ? "i16" : "i8", *round = wide ? ", i32" : "";
    cc_emit_declare(e, name, "declare %s @%s(%s, %s, %s, %s%s)\n", T, name, T, T, T, mask, round);
    cc_emit_op(e, out, "call %s @%s(%s %s, %s %s, %s zeroinitializer, %s -1%s)", T, name, T, y, T, n, T, mask,
               wide ? ", i32 4" : "");
}

static bool has_avx512(const CcEmit *e) { return e->target->vector_bytes == 64 && e->lanes >= 4 && e->lanes <= 16; }

/* e^r = 1 + r * (1 + r * P(r)), a minimax fit of relative error 3e-9 on |r| <= ln(2) / 2. */
static void expand_exp(CcEmit *e, const CcRef *x, CcRef out) {
    static const double P[] = {1.3814610e-3, 8.3687110e-3, 4.16683890e-2, 1.666652113e-1, 4.999999404e-1};
    CcRef c, m, v, t, n, r, p, bits;
    konst(-105, c);
    cc_emit_op(e, m, "fcmp ogt %s %s, %s", T, c, x[0]);
    f32_select(e, m, c, x[0], v);
    konst(89, c);
    cc_emit_op(e, m, "fcmp olt %s %s, %s", T, c, v);
    f32_select(e, m, c, v, r);
    strcpy(v, r);
    /* Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits, without a float-to-int conversion,
     * which is undefined for NaN. */
    CcRef magic;
    konst(12582912, magic);
    konst(1.44269504088896341, c);
    fma3(e, v, c, magic, t);
    f32_op(e, "fsub", t, magic, n);
    konst(-0.693147182464599609375, c);
    fma3(e, n, c, v, r);
    konst(1.904654299957767878e-9, c);
    fma3(e, n, c, r, v);
    polynomial(e, v, P, CC_COUNT(P), p);
    konst(1, c);
    fma3(e, p, v, c, r);
    fma3(e, r, v, c, p);
    if (has_avx512(e)) {
        scale_by_instruction(e, p, n, out);
        return;
    }
    cc_emit_op(e, bits, "bitcast %s %s to %s", T, t, I);
    cc_emit_op(e, n, "sub %s %s, splat (i32 1262485504)", I, bits);
    scale(e, p, n, out);
}

static void expand_log(CcEmit *e, const CcRef *x, CcRef out) {
    static const double P[] = {7.0376836292e-2,  -1.1514610310e-1, 1.1676998740e-1,  -1.2420140846e-1, 1.4249322787e-1,
                               -1.6668057665e-1, 2.0000714765e-1,  -2.4999993993e-1, 3.3333331174e-1};
    CcRef c, tiny, v, r, bits, n, f, z, p, q, m;
    konst(0x1p-126, c); /* scales denormals up first */
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
    /* log(inf) = inf, log(NaN) = NaN, log(0) = -inf, log(negative) = NaN. */
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

static void absolute(CcEmit *e, const CcRef *x, CcRef out) { cc_emit_intrinsic(e, "fabs", CC_DT_F32, 1, x, out); }

static void with_sign(CcEmit *e, const CcRef magnitude, const CcRef sign, CcRef out) {
    CcRef arg[2];
    strcpy(arg[0], magnitude);
    strcpy(arg[1], sign);
    cc_emit_intrinsic(e, "copysign", CC_DT_F32, 2, (const CcRef *)arg, out);
}

static void expand_tanh(CcEmit *e, const CcRef *x, CcRef out) {
    static const double P[] = {-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
                               -3.33332819422e-1};
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

/* [power][k]: erf(x) / x around k / 8 as a polynomial, highest power first; minimax fits, relative error 3e-9. */
static const float ERF[5][32] = {
    {0.112680621,   0.106458448,   0.0888992399,   0.0628347397,    0.0323289298,  0.00180507882, -0.0248047598,
     -0.0447114669, -0.0565943941, -0.0605790988,  -0.0579087734,   -0.0505159609, -0.0404984392, -0.0297433846,
     -0.0196792446, -0.0111895232, -0.00465324195, -6.18814083e-05, 0.00283748726, 0.00441076886, 0.00503809284,
     0.00505333766, 0.00471718656, 0.00421394361,  0.00366188469,   0.00312899915, 0.00264870329, 0.00223285705,
     0.00188125449, 0.00158786948, 0.00134457753,  0.00114314666},
    {-8.55537863e-13, 0.0552828722,   0.104546487,    0.142760739,   0.166655928,   0.175119042,    0.169156983,
     0.151477456,     0.125822365,    0.0962270796,   0.066366531,   0.0391031615,  0.0162746478,   -0.00129179552,
     -0.0136049939,   -0.0212529171,  -0.02513602,    -0.0262420382, -0.0254876595, -0.0236300863,  -0.0212367177,
     -0.0186946411,   -0.016241705,   -0.014004644,   -0.0120351007, -0.0103387907, -0.00889665913, -0.0076787835,
     -0.00665264158,  -0.00578746619, -0.00505613908, -0.00443568733},
    {-0.37612617,  -0.365645349, -0.33535096,  -0.288496375, -0.229913756, -0.165263668, -0.100217454, -0.0397286937,
     0.0124856345, 0.0541936122, 0.0846300647, 0.104268044,  0.114465095,  0.117074467,  0.114094339,  0.10740082,
     0.0985815674, 0.0888630152, 0.0791099593, 0.0698712617, 0.0614471585, 0.0539598018, 0.0474155135, 0.041753687,
     0.0368814953, 0.0326962881, 0.0290985554, 0.0259983763, 0.023317758,  0.020990679,  0.0189620163, 0.0171860345},
    {2.09487426e-15, -0.0931548551, -0.181165561, -0.259445876, -0.324434102, -0.373897165,  -0.407035083,
     -0.424389303,   -0.427593231,  -0.419026196, -0.40143922,  -0.377613485, -0.350093275,  -0.3210136,
     -0.292021424,   -0.264275014,  -0.238497123, -0.215058133, -0.194067582, -0.175459579,  -0.159063578,
     -0.144657627,   -0.132004902,  -0.120876245, -0.111062236, -0.102378257, -0.0946651623, -0.0877875537,
     -0.0816310495,  -0.0760992467, -0.071110867, -0.0665972009},
    {1.12837923,  1.12252963,  1.10530555,  1.07764506,  1.04099977,  0.997185409, 0.948207498, 0.896085799,
     0.842700779, 0.789678454, 0.738320112, 0.689578235, 0.644070089, 0.602119207, 0.563812375, 0.529061377,
     0.497661144, 0.469339281, 0.44379434,  0.420722961, 0.399837226, 0.380874157, 0.363599777, 0.347809434,
     0.333325982, 0.319996834, 0.307690978, 0.296295762, 0.28571406,  0.275861979, 0.266666651, 0.258064508},
};

static void load_table(CcEmit *e, int row, int half, CcRef out) {
    char name[24];
    CcSbuf text = {0};
    snprintf(name, sizeof name, "cc_erf_%d_%d", row, half);
    for (int i = 0; i < 16; i++) {
        CcRef number;
        cc_emit_number(CC_DT_F32, (double)ERF[row][half * 16 + i], number);
        number[strlen(number) - 1] = 0; /* "splat (float 0x...)" */
        cc_sbuf_add(&text, "%s%s", i ? ", " : "", number + strlen("splat ("));
    }
    cc_emit_declare(e, name, "@%s = internal constant %s <%s>, align 64\n", name, T, cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    cc_emit_op(e, out, "load %s, ptr @%s, align 64", T, name);
}

/* erf with coefficients from 32-entry tables, which one vpermi2ps looks up: gelu of 32768 values takes half the time of
 * libmvec's erf (Zen 4). */
static void erf_by_table(CcEmit *e, const CcRef *x, CcRef out) {
    CcRef t, c, d, s, k, index, low, high, p = "", q, far, one, m;
    absolute(e, x, t);
    konst(8388608, c); /* 2^23: rounds to an integer in the low bits */
    konst(8, d);
    fma3(e, t, d, c, s);
    cc_emit_op(e, index, "bitcast %s %s to %s", T, s, I);
    f32_op(e, "fsub", s, c, k);
    konst(-0.125, c);
    fma3(e, k, c, t, d);
    cc_emit_declare(e, "llvm.x86.avx512.vpermi2var.ps.512",
                    "declare %s @llvm.x86.avx512.vpermi2var.ps.512(%s, %s, %s)\n", T, T, I, T);
    for (int i = 0; i < 5; i++) {
        load_table(e, i, 0, low);
        load_table(e, i, 1, high);
        cc_emit_op(e, q, "call %s @llvm.x86.avx512.vpermi2var.ps.512(%s %s, %s %s, %s %s)", T, T, low, I, index, T,
                   high);
        if (i) fma3(e, p, d, q, s);
        strcpy(p, i ? s : q);
    }
    f32_op(e, "fmul", p, x[0], q);
    konst(1, one);
    with_sign(e, one, x[0], far);
    konst(3.9375, c); /* erf rounds to 1 from here on */
    cc_emit_op(e, m, "fcmp oge %s %s, %s", T, t, c);
    f32_select(e, m, far, q, out);
}

static void expand_erf(CcEmit *e, const CcRef *x, CcRef out) {
    if (has_avx512(e) && e->lanes == 16) {
        erf_by_table(e, x, out);
        return;
    }
    static const double NEAR[] = {-5.96761703e-4, 4.99119423e-3,  -2.67681349e-2,
                                  1.12819925e-1,  -3.76125336e-1, 1.28379166e-1};
    static const double FAR[] = {-1.06777877e-1, -6.34846687e-1, -1.28717512e-1};
    CcRef c, d, t, s, r, u, near, m, arg[1];
    absolute(e, x, t);
    f32_op(e, "fmul", x[0], x[0], s);
    polynomial(e, s, NEAR, CC_COUNT(NEAR), r);
    fma3(e, r, x[0], x[0], near);
    konst(5, c); /* erf(5) rounds to 1; the polynomial is valid up to here */
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

/* max or min by compare and select, which gives x[0] if either operand is NaN; so x[1]'s NaN is handled separately. */
static void extreme(CcEmit *e, CcDtype dt, const char *compare, const CcRef *x, CcRef out) {
    CcRef m, y;
    const char *t = cc_emit_type(e, dt), *mask = cc_emit_vector(e, "i1");
    cc_emit_op(e, m, "fcmp %s %s %s, %s", compare, t, x[1], x[0]);
    cc_emit_op(e, y, "select %s %s, %s %s, %s %s", mask, m, t, x[1], t, x[0]);
    if (x[1][0] == 's' && !strstr(x[1], "0x7FF8")) { /* a constant other than NaN */
        strcpy(out, y);
        return;
    }
    cc_emit_op(e, m, "fcmp uno %s %s, %s", t, x[1], x[1]);
    cc_emit_op(e, out, "select %s %s, %s %s, %s %s", mask, m, t, x[1], t, y);
}

/* Is our code faster than libmvec's? On Zen 4, libmvec's exp is a call that saves registers, and a single lane of -inf
 * or below -87, common in masked softmax, sends it to a path several times slower. */
static bool is_faster(const CcEmit *e, const char *name) {
    if (strcmp(name, "exp") == 0) return e->target->vector_bytes >= 32; /* narrower targets lack fma */
    return strcmp(name, "erf") == 0 && has_avx512(e) && e->lanes == 16;
}

/* log(e^a + e^b) = max(a, b) + log1p(e^-|a - b|); two equal infinities give themselves. Differences too large to
 * matter, as with -inf, are clamped: libmvec's exp is slow for all lanes if one is out of range. This halves the time
 * of a scan along rows (Zen 4). */
static int log_sum(CcEmit *e, CcDtype dt, const CcRef *x, CcRef out) {
    CcRef d, f, number, great, size, same, far;
    char t[24], mask[24]; /* copies, as cc_emit_type's ring buffer recycles its texts */
    snprintf(t, sizeof t, "%s", cc_emit_type(e, dt));
    snprintf(mask, sizeof mask, "%s", cc_emit_vector(e, "i1"));
    cc_emit_op(e, d, "fsub %s %s, %s", t, x[0], x[1]);
    cc_emit_intrinsic(e, "fabs", dt, 1, (const CcRef *)&d, size);
    cc_emit_op(e, d, "fneg %s %s", t, size);
    cc_emit_number(dt, -700, number);
    cc_emit_op(e, far, "fcmp olt %s %s, %s", t, d, number);
    cc_emit_op(e, d, "select %s %s, %s %s, %s %s", mask, far, t, number, t, d);
    if (cc_emit_scalar(e, CC_S_exp, dt, (const CcRef *)&d, f) < 0 ||
        cc_emit_scalar(e, CC_S_log1p, dt, (const CcRef *)&f, d) < 0 || cc_emit_scalar(e, CC_S_max, dt, x, great) < 0)
        return -1;
    cc_emit_op(e, d, "select %s %s, %s zeroinitializer, %s %s", mask, far, t, t, d);
    cc_emit_op(e, f, "fadd %s %s, %s", t, great, d);
    cc_emit_intrinsic(e, "fabs", dt, 1, x, size);
    cc_emit_number(dt, INFINITY, number);
    cc_emit_op(e, same, "fcmp oeq %s %s, %s", t, x[0], x[1]);
    cc_emit_op(e, far, "fcmp oeq %s %s, %s", t, size, number);
    cc_emit_op(e, far, "and %s %s, %s", mask, same, far);
    cc_emit_op(e, out, "select %s %s, %s %s, %s %s", mask, far, t, x[0], t, f);
    return 0;
}

/* fmod of f32 by long division in f64, where each step is exact: q is truncated to 24 bits, so q * y has at most 48,
 * and x / y / 2 <= q <= x / y. Every step but the last shrinks x by 2^22; mostly there is just one. LLVM's frem calls
 * libm for each lane. */
static const char FMOD[] = "define internal %1$s @%4$s(%1$s %%a, %1$s %%b) noinline nounwind {\n"
                           "  %%a64 = fpext %1$s %%a to %2$s\n"
                           "  %%b64 = fpext %1$s %%b to %2$s\n"
                           "  %%x0 = call %2$s @llvm.fabs.v%6$df64(%2$s %%a64)\n"
                           "  %%y = call %2$s @llvm.fabs.v%6$df64(%2$s %%b64)\n"
                           "  %%finite = fcmp olt %2$s %%x0, splat (double 0x7FF0000000000000)\n"
                           "  %%divides = fcmp ogt %2$s %%y, zeroinitializer\n"
                           "  %%good = and %5$s %%finite, %%divides\n"
                           "  br label %%test\n"
                           "test:\n"
                           "  %%x = phi %2$s [%%x0, %%0], [%%next, %%step]\n"
                           "  %%above = fcmp oge %2$s %%x, %%y\n"
                           "  %%more = and %5$s %%above, %%good\n"
                           "  %%any = call i1 @llvm.vector.reduce.or.v%6$di1(%5$s %%more)\n"
                           "  br i1 %%any, label %%step, label %%done\n"
                           "step:\n"
                           "  %%ratio = fdiv %2$s %%x, %%y\n"
                           "  %%below = fmul %2$s %%ratio, splat (double 0x3FEFFFFFFFFFFFFE)\n"
                           "  %%bits = bitcast %2$s %%below to %3$s\n"
                           "  %%high = and %3$s %%bits, splat (i64 -536870912)\n"
                           "  %%short = bitcast %3$s %%high to %2$s\n"
                           "  %%whole = call %2$s @llvm.trunc.v%6$df64(%2$s %%short)\n"
                           "  %%some = fcmp ogt %2$s %%whole, splat (double 1.0)\n"
                           "  %%q = select %5$s %%some, %2$s %%whole, %2$s splat (double 1.0)\n"
                           "  %%product = fmul %2$s %%q, %%y\n"
                           "  %%rest = fsub %2$s %%x, %%product\n"
                           "  %%next = select %5$s %%more, %2$s %%rest, %2$s %%x\n"
                           "  br label %%test\n"
                           "done:\n"
                           "  %%r = fptrunc %2$s %%x to %1$s\n"
                           "  %%signed = call %1$s @llvm.copysign.v%6$df32(%1$s %%r, %1$s %%a)\n"
                           "  %%result = select %5$s %%good, %1$s %%signed, %1$s splat (float 0x7FF8000000000000)\n"
                           "  ret %1$s %%result\n"
                           "}\n";

static void fmod_of(CcEmit *e, CcDtype dt, const CcRef *x, CcRef out) {
    char name[24], f32[24], f64[24];
    snprintf(f32, sizeof f32, "%s", T);
    if (dt != CC_DT_F32) {
        cc_emit_op(e, out, "frem %s %s, %s", cc_emit_type(e, dt), x[0], x[1]);
        return;
    }
    snprintf(f64, sizeof f64, "%s", cc_emit_vector(e, "double"));
    snprintf(name, sizeof name, "cc_fmod_%d", e->lanes);
    static const char *const UNARY[] = {"fabs", "trunc"};
    for (int i = 0; i < CC_COUNT(UNARY); i++) {
        char intrinsic[32];
        snprintf(intrinsic, sizeof intrinsic, "llvm.%s.v%df64", UNARY[i], e->lanes);
        cc_emit_declare(e, intrinsic, "declare %s @%s(%s)\n", f64, intrinsic, f64);
    }
    char any[40], sign[40];
    snprintf(any, sizeof any, "llvm.vector.reduce.or.v%di1", e->lanes);
    cc_emit_declare(e, any, "declare i1 @%s(%s)\n", any, cc_emit_vector(e, "i1"));
    snprintf(sign, sizeof sign, "llvm.copysign.v%df32", e->lanes);
    cc_emit_declare(e, sign, "declare %s @%s(%s, %s)\n", f32, sign, f32, f32);
    cc_emit_declare(e, name, FMOD, f32, f64, cc_emit_vector(e, "i64"), name, cc_emit_vector(e, "i1"), e->lanes);
    cc_emit_op(e, out, "call %s @%s(%s %s, %s %s)", f32, name, f32, x[0], f32, x[1]);
}

int cc_math_expand(CcEmit *e, const char *name, CcDtype dt, const CcRef *x, CcRef out) {
    static const struct {
        const char *name;
        void (*expand)(CcEmit *e, const CcRef *x, CcRef out);
    } F32[] = {{"exp", expand_exp}, {"log", expand_log}, {"tanh", expand_tanh}, {"erf", expand_erf}};
    for (int i = 0; i < CC_COUNT(F32); i++) {
        if (strcmp(F32[i].name, name) != 0) continue;
        if (dt != CC_DT_F32 || (!is_faster(e, name) && cc_emit_has_vector(e, name, dt)))
            return cc_emit_libm(e, name, dt, 1, x, out);
        F32[i].expand(e, x, out);
        return 0;
    }
    if (strcmp(name, "fmax") == 0) return extreme(e, dt, "ogt", x, out), 0;
    if (strcmp(name, "fmod") == 0) return fmod_of(e, dt, x, out), 0;
    if (strcmp(name, "lse") == 0) return log_sum(e, dt, x, out);
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
                   dt == CC_DT_BOOL ? 1 : cc_dtype_size(dt) * 8);
        return 0;
    }
    if (strcmp(name, "abs") == 0) {
        CcRef negative, m;
        const char *t = cc_emit_type(e, dt);
        cc_emit_op(e, negative, "sub %s zeroinitializer, %s", t, x[0]);
        cc_emit_op(e, m, "icmp slt %s %s, zeroinitializer", t, x[0]);
        cc_emit_op(e, out, "select %s %s, %s %s, %s %s", cc_emit_vector(e, "i1"), m, t, negative, t, x[0]);
        return 0;
    }
    return cc_err_set(e->err, CC_E_UNSUPPORTED, "no expansion of %s", name);
}
