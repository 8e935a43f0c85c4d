/* term: the scalar terms that a loop body is made of: numbers, casts and primitives (ir/scalar.def). Shares equal terms and
 * folds arithmetic of constants as the kernel would compute it. */
#include <math.h>

#include "loop_int.h"

static char kind_of(CcDtype dt) { return cc_dtype_info(dt)->kind; }
CcDtype cc_term_compute(CcDtype dt) { return cc_dtype_is_half(dt) ? CC_DT_F32 : dt; }

int cc_term_add(CcBuild *b, CcScalarId op, CcDtype dt, int a0, int a1, int a2, int64_t bits) {
    const CcLoopNode n = {(uint8_t)op, (uint8_t)dt, {(int16_t)a0, (int16_t)a1, (int16_t)a2}, bits};
    _Static_assert(sizeof n == 16, "no padding: equal nodes have equal bytes");
    for (int i = b->n_node - 1; i >= 0; i--)
        if (memcmp(&b->node[i], &n, sizeof n) == 0) return i;
    if (b->n_node == CC_LOOP_MAX_NODES) return cc_build_refuse(b, "the expression is too large");
    b->node[b->n_node] = n;
    return b->n_node++;
}

int cc_term_int(CcBuild *b, CcDtype dt, int64_t v) {
    const int bits = cc_dtype_size(dt) * 8;
    if (dt == CC_DT_BOOL) v = v != 0;
    else if (bits < 64)
        v = kind_of(dt) == 'u' ? v & ((INT64_C(1) << bits) - 1) : (int64_t)((uint64_t)v << (64 - bits)) >> (64 - bits);
    return cc_term_add(b, CC_S_konst, dt, -1, -1, -1, v);
}

int cc_term_float(CcBuild *b, CcDtype dt, double v) {
    if (dt == CC_DT_F32) v = (double)(float)v;
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return cc_term_add(b, CC_S_konst, dt, -1, -1, -1, bits);
}

int cc_term_number(CcBuild *b, CcDtype dt, double v) {
    if (kind_of(dt) == 'f') return cc_term_float(b, dt, v);
    if (dt == CC_DT_BOOL) return cc_term_int(b, dt, v != 0);
    if (v != floor(v) || fabs(v) > 9e15) return cc_build_refuse(b, "a fraction in integer arithmetic");
    return cc_term_int(b, dt, (int64_t)v);
}

int cc_term_cast(CcBuild *b, int node, CcDtype to) {
    if (node < 0) return -1;
    const CcDtype from = (CcDtype)b->node[node].dtype;
    if (from == to) return node;
    /* Half precision converts from and to f32 only, as in torch (c10/util/BFloat16.h: through float). */
    if ((cc_dtype_is_half(to) || cc_dtype_is_half(from)) && from != CC_DT_F32 && to != CC_DT_F32)
        node = cc_term_cast(b, node, CC_DT_F32);
    const CcLoopNode *n = &b->node[node];
    if (n->op == CC_S_konst && !cc_dtype_is_half(to)) {
        if (kind_of(from) != 'f' && kind_of(to) == 'f') return cc_term_float(b, to, (double)n->bits);
        if (kind_of(from) == 'f' && kind_of(to) == 'f') return cc_term_float(b, to, cc_loop_number(n->bits));
        if (kind_of(from) != 'f') return cc_term_int(b, to, n->bits);
    }
    return node < 0 ? -1 : cc_term_add(b, CC_S_cast, to, node, -1, -1, 0);
}

static bool is_number(const CcBuild *b, int node, double v) {
    const CcLoopNode *n = &b->node[node];
    if (n->op != CC_S_konst) return false;
    return kind_of((CcDtype)n->dtype) == 'f' ? cc_loop_number(n->bits) == v : (double)n->bits == v;
}

static bool both_konst(const CcBuild *b, int x, int y) {
    return b->node[x].op == CC_S_konst && (y < 0 || b->node[y].op == CC_S_konst);
}

/* Folds arithmetic of two constants as the kernel would compute it; LLVM folds integers. */
static int fold(CcBuild *b, CcScalarId op, CcDtype dt, int x, int y) {
    const double p = cc_loop_number(b->node[x].bits), q = y < 0 ? 0 : cc_loop_number(b->node[y].bits);
    const bool f32 = dt == CC_DT_F32;
    switch (op) {
    case CC_S_neg: return cc_term_float(b, dt, -p);
    case CC_S_add: return cc_term_float(b, dt, f32 ? (double)((float)p + (float)q) : p + q);
    case CC_S_sub: return cc_term_float(b, dt, f32 ? (double)((float)p - (float)q) : p - q);
    case CC_S_mul: return cc_term_float(b, dt, f32 ? (double)((float)p * (float)q) : p * q);
    case CC_S_div: return cc_term_float(b, dt, f32 ? (double)((float)p / (float)q) : p / q);
    default: return -1;
    }
}

/* torch's arithmetic on bools: + is or, * is and. */
static CcScalarId bool_arith(CcScalarId op) {
    switch (op) {
    case CC_S_add:
    case CC_S_max:
    case CC_S_or: return CC_S_or;
    case CC_S_rmax:
    case CC_S_ror: return CC_S_ror;
    case CC_S_rmin:
    case CC_S_rand: return CC_S_rand;
    case CC_S_mul:
    case CC_S_min:
    case CC_S_and: return CC_S_and;
    case CC_S_xor:
    case CC_S_not: return op;
    default: return CC_S_COUNT;
    }
}

static int compare(CcBuild *b, CcScalarId op, int x, int y) {
    if (b->node[x].dtype == CC_DT_BOOL) {
        x = cc_term_cast(b, x, CC_DT_U8);
        y = y < 0 ? -1 : cc_term_cast(b, y, CC_DT_U8);
    }
    if (y >= 0 && b->node[x].dtype != b->node[y].dtype) return cc_build_refuse(b, "comparison of different types");
    if ((op == CC_S_isnan || op == CC_S_isinf) && kind_of((CcDtype)b->node[x].dtype) != 'f')
        return cc_term_int(b, CC_DT_BOOL, 0);
    return cc_term_add(b, op, CC_DT_BOOL, x, y, -1, 0);
}

/* The node's integer, if it is the same for all elements; 0: it varies. */
static int64_t known_int(const CcBuild *b, int node) {
    const CcLoopNode *n = &b->node[node];
    if (n->op == CC_S_cast && b->node[n->a[0]].dtype == CC_DT_I64) n = &b->node[n->a[0]];
    if (n->op == CC_S_konst) return n->bits;
    return n->op == CC_S_load && b->access[n->a[0]].fixed ? b->access[n->a[0]].bits : 0;
}

static int integer_division(CcBuild *b, CcScalarId op, CcDtype dt, int x, int y) {
    /* Eager raises for division by zero, and INT_MIN / -1 traps: only a constant rules both out. */
    const int64_t by = known_int(b, y);
    if (by == 0 || by == -1) return cc_build_refuse(b, "integer division by a tensor, 0 or -1");
    return cc_term_add(b, op, dt, x, y, -1, 0);
}

/* fma rounds once, as eager's vector code does for a + alpha * b; with alpha 1 or -1 it is a plain sum. */
static int fused(CcBuild *b, CcDtype dt, int x, int y, int z) {
    if (is_number(b, y, 1)) return cc_term_op(b, CC_S_add, x, z, -1);
    if (is_number(b, x, 1)) return cc_term_op(b, CC_S_add, y, z, -1);
    if (kind_of(dt) == 'f' && is_number(b, y, -1)) return cc_term_op(b, CC_S_sub, z, x, -1);
    if (kind_of(dt) == 'f') return cc_term_add(b, CC_S_fma, dt, x, y, z, 0);
    const int product = cc_term_op(b, CC_S_mul, x, y, -1);
    return product < 0 ? -1 : cc_term_op(b, CC_S_add, product, z, -1);
}

/* Scans accumulate sums and products of f32 in f64, as eager does (at::acc_type), bools as bytes. A scan of one
 * element accumulates nothing. */
static int scan(CcBuild *b, CcScalarId op, int x) {
    const CcDtype dt = (CcDtype)b->node[x].dtype;
    const bool extreme = op == CC_S_pmax || op == CC_S_pmin, alike = dt == CC_DT_BOOL;
    if (alike && !extreme) return cc_build_refuse(b, "arithmetic on bools");
    if (!*cc_scalar_info(op)->lower[kind_of(dt) == 'f' ? 0 : 1])
        return cc_build_refuse(b, "no such scan for this dtype");
    int64_t turns = 1;
    for (int d = 0; d < b->space.shape.ndim; d++)
        if (cc_space_reduced(&b->space, d)) turns *= b->space.shape.size[d];
    if (turns == 1) return x;
    const CcDtype wide = alike ? CC_DT_U8 : dt == CC_DT_F32 && !extreme ? CC_DT_F64 : dt;
    return cc_term_cast(b, cc_term_add(b, op, wide, cc_term_cast(b, x, wide), -1, -1, 0), dt);
}

int cc_term_op(CcBuild *b, CcScalarId op, int x, int y, int z) {
    const CcScalarInfo *info = cc_scalar_info(op);
    if (x < 0 || (info->arity > 1 && y < 0) || (info->arity > 2 && z < 0)) return -1;
    if (info->kind == 'C') return compare(b, op, x, y);
    if (info->kind == 'P') return scan(b, op, x);
    if (op == CC_S_select) {
        if (b->node[x].dtype != CC_DT_BOOL || b->node[y].dtype != b->node[z].dtype)
            return cc_build_refuse(b, "bad select");
        if (y == z) return y;
        return cc_term_add(b, op, (CcDtype)b->node[y].dtype, x, y, z, 0);
    }
    const CcDtype dt = (CcDtype)b->node[x].dtype;
    if (y >= 0 && b->node[y].dtype != dt) return cc_build_refuse(b, "operands of different types");
    if (dt == CC_DT_BOOL) {
        if (op == CC_S_fma) return fused(b, dt, x, y, z);
        op = bool_arith(op);
        return op == CC_S_COUNT ? cc_build_refuse(b, "arithmetic on bools") : cc_term_add(b, op, dt, x, y, z, 0);
    }
    const char *lower = info->lower[kind_of(dt) == 'f' ? 0 : kind_of(dt) == 'i' ? 1 : 2];
    if (lower[0] == 0) return cc_build_refuse(b, "no such primitive for this dtype");
    if (strcmp(lower, "=") == 0) return x;
    if (info->kind == 'R') return cc_term_add(b, op, dt, x, -1, -1, 0);
    if (kind_of(dt) == 'f' && both_konst(b, x, y)) {
        const int folded = fold(b, op, dt, x, y);
        if (folded >= 0) return folded;
    }
    if (op == CC_S_fma) return fused(b, dt, x, y, z);
    if (op == CC_S_mul && is_number(b, y, 1)) return x;
    if (op == CC_S_mul && is_number(b, x, 1)) return y;
    if (kind_of(dt) == 'f' &&
        ((op == CC_S_min && is_number(b, y, INFINITY)) || (op == CC_S_max && is_number(b, y, -INFINITY))))
        return x; /* clamp without this bound */
    if ((op == CC_S_div || op == CC_S_rem) && kind_of(dt) != 'f') return integer_division(b, op, dt, x, y);
    if (op == CC_S_neg && kind_of(dt) != 'f') return cc_term_add(b, CC_S_sub, dt, cc_term_int(b, dt, 0), x, -1, 0);
    return cc_term_add(b, op, dt, x, y, z, 0);
}
