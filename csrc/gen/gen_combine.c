/* gen_combine: combines vectors of a reduction or a scan, for gen_sweep.c's loops. A scan along a row computes a vector
 * in log2(lanes) steps (Hillis and Steele, Data parallel algorithms, CACM 1986): step i combines each lane with the one
 * 2^i lanes before it. The last lane of the previous vector is then combined with all. */
#include <math.h>

#include "gen_int.h"

void cc_combine_identity(CcScalarId fold, CcDtype dt, CcRef out) {
    const CcDtypeInfo *info = cc_dtype_info(dt);
    const CcScalarId op = cc_scalar_combine(fold);
    const bool least = op == CC_S_max || op == CC_S_lse, is_float = info->kind == 'f';
    const int64_t top = INT64_MAX >> (64 - 8 * info->size);
    if (op == CC_S_add || op == CC_S_or) strcpy(out, "zeroinitializer");
    else if (op == CC_S_and) strcpy(out, "splat (i1 true)");
    else if (is_float) cc_emit_number(dt, op == CC_S_mul ? 1 : least ? -HUGE_VAL : HUGE_VAL, out);
    else {
        const int64_t high = info->kind == 'u' ? 2 * top + 1 : top, low = info->kind == 'u' ? 0 : -top - 1;
        snprintf(out, sizeof(CcRef), "splat (i%d %lld)", 8 * info->size,
                 (long long)(op == CC_S_mul ? 1
                             : least        ? low
                                            : high));
    }
}

int cc_combine_two(CcEmit *e, CcScalarId fold, CcDtype dt, const char *x, const char *y, CcRef out) {
    CcRef arg[2];
    strcpy(arg[0], x);
    strcpy(arg[1], y);
    return cc_emit_scalar(e, cc_scalar_combine(fold), dt, (const CcRef *)arg, out);
}

/* order[lane]: a lane of x, or (from `lanes` on) of y. */
static void shuffle(CcEmit *e, CcDtype dt, const char *x, const char *y, const int *order, CcRef out) {
    const char *t = cc_emit_type(e, dt);
    char list[CC_COMBINE_LANES * 9] = "";
    size_t at = 0;
    for (int i = 0; i < e->lanes; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%si32 %d", i ? ", " : "", order[i]);
    cc_emit_op(e, out, "shufflevector %s %s, %s %s, <%d x i32> <%s>", t, x, t, y, e->lanes, list);
}

int cc_combine_lanes(CcEmit *e, CcScalarId fold, CcDtype dt, CcRef x) {
    for (int step = e->lanes / 2; step > 0; step /= 2) {
        int order[CC_COMBINE_LANES];
        CcRef other;
        for (int i = 0; i < e->lanes; i++) order[i] = i ^ step;
        shuffle(e, dt, x, "poison", order, other);
        if (cc_combine_two(e, fold, dt, x, other, x) < 0) return -1;
    }
    return 0;
}

/* The earlier value is the second operand: of 0 and -0, which compare equal, the later one wins, as by eager's `>=`. */
int cc_combine_scan(CcEmit *e, const CcLoopNode *n, bool along, const char *x, CcRef carry, CcRef out) {
    const CcScalarId fold = (CcScalarId)n->op;
    const CcDtype dt = (CcDtype)n->dtype;
    int order[CC_COMBINE_LANES];
    CcRef sum, none, before;
    strcpy(sum, x);
    cc_combine_identity(fold, dt, none);
    for (int step = 1; step < e->lanes && along; step *= 2) {
        for (int i = 0; i < e->lanes; i++) order[i] = i < step ? e->lanes + i : i - step;
        shuffle(e, dt, sum, none, order, before);
        if (cc_combine_two(e, fold, dt, sum, before, sum) < 0) return -1;
    }
    if (cc_combine_two(e, fold, dt, sum, carry, out) < 0) return -1;
    for (int i = 0; i < e->lanes; i++) order[i] = e->lanes - 1;
    if (along) shuffle(e, dt, out, "poison", order, carry);
    else strcpy(carry, out);
    return 0;
}
