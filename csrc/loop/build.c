/* build: lowers a group of pointwise and reducing nodes with one space to a loop body. Instantiates the expressions
 * of the op table in the type T of their row's rule and shares equal nodes, so rows may repeat subexpressions
 * freely. Refuses whatever would not match eager exactly; the caller then leaves the node to the host.
 *
 * bf16 and f16 compute in f32: each node's result is cast to its dtype and back, which rounds as eager does. */
#include <math.h>

#include "loop_int.h"

enum { MAX_BOXES = CC_PIECES_MAX };

int cc_build_refuse(CcBuild *b, const char *why) { return cc_err_set(b->err, CC_E_UNSUPPORTED, "%s", why); }

static char kind_of(CcDtype dt) { return cc_dtype_info(dt)->kind; }

static int see(CcBuild *b, int value, int node, int dropped) {
    if (b->n_value == CC_BUILD_VALUES) return cc_build_refuse(b, "too many values");
    b->seen[b->n_value].value = value;
    b->seen[b->n_value].dropped = dropped;
    b->seen[b->n_value++].node = node;
    return 0;
}

/* -> the new access; -1: there are too many */
static int add_access(CcBuild *b, CcLoopAccess access) {
    if (b->n_access == CC_LOOP_MAX_ACCESS) return cc_build_refuse(b, "too many tensors");
    b->access[b->n_access] = access;
    return b->n_access++;
}

/* The node that reads a new access. */
static int read_new(CcBuild *b, CcScalarId op, CcLoopAccess access) {
    const int a = add_access(b, access);
    return a < 0 ? -1 : cc_term_add(b, op, (CcDtype)access.dtype, a, -1, -1, 0);
}

/* The loop node of a graph value in its own dtype: computed by this group, or loaded. */
int cc_build_value(CcBuild *b, int value) {
    for (int i = 0; i < b->n_value; i++)
        if (b->seen[i].value == value && (b->seen[i].dropped < 0 || b->seen[i].dropped == b->dropped))
            return b->seen[i].node;
    const CcVal *v = &b->g->val.at[value];
    const int node =
        read_new(b, CC_S_load,
                 (CcLoopAccess){
                     .dtype = v->type.dtype, .node = -1, .value = value, .dropped = b->dropped, .number = -v->scalar});
    return node < 0 || see(b, value, node, b->dropped) < 0 ? -1 : node;
}

/* The position of an element, counted over some dims of the space. */
int cc_build_place(CcBuild *b, unsigned dims) {
    for (int i = 0; i < b->n_node; i++)
        if (b->node[i].op == CC_S_place && b->access[b->node[i].a[0]].dims == dims && !b->access[b->node[i].a[0]].param)
            return i;
    return read_new(b, CC_S_place,
                    (CcLoopAccess){.dtype = CC_DT_I64, .place = 1, .dims = (uint8_t)dims, .node = -1, .value = -1});
}

int cc_build_param(CcBuild *b, int what, int64_t v) {
    for (int i = 0; i < b->n_node; i++) {
        const CcLoopAccess *a = &b->access[b->node[i].op == CC_S_place ? b->node[i].a[0] : 0];
        if (b->node[i].op == CC_S_place && a->param == what && a->offset == v) return i;
    }
    return read_new(
        b, CC_S_place,
        (CcLoopAccess){.dtype = CC_DT_I64, .place = 1, .param = what, .offset = v, .node = -1, .value = -1});
}

static int add_seen(CcBuild *b, int value, const CcType *seen, int64_t offset, CcTaken taken) {
    for (int a = 0; a < b->n_access; a++) {
        const CcLoopAccess *x = &b->access[a];
        if (x->seen && x->value == value && x->offset == offset && x->taken == taken && x->dropped == b->dropped &&
            cc_type_same_layout(x->seen, seen))
            return a;
    }
    const int a = add_access(b, (CcLoopAccess){.dtype = seen->dtype,
                                               .taken = (uint8_t)taken,
                                               .offset = offset,
                                               .node = -1,
                                               .value = value,
                                               .dropped = b->dropped});
    if (a < 0) return -1;
    b->type[a] = *seen;
    b->access[a].seen = &b->type[a];
    return a;
}

int cc_build_seen(CcBuild *b, int value, const CcType *seen) { return add_seen(b, value, seen, 0, CC_TAKEN_LANES); }

int cc_build_part(CcBuild *b, int value, const CcType *seen, int64_t shift) {
    const CcDtype dt = (CcDtype)seen->dtype;
    const int access = add_seen(b, value, seen, shift * cc_dtype_size(dt), CC_TAKEN_NOT);
    return access < 0 ? -1 : cc_term_add(b, CC_S_load, dt, access, -1, -1, 0);
}

int cc_build_take(CcBuild *b, int access, int index, int64_t elements) {
    if (access < 0 || index < 0) return -1;
    const CcDtype dt = (CcDtype)b->access[access].dtype;
    return cc_term_add(b, CC_S_take, dt, cc_term_cast(b, index, CC_DT_I64), access, -1, elements * cc_dtype_size(dt));
}

int cc_build_take_apart(CcBuild *b, int access, int index, int64_t elements) {
    if (access < 0 || index < 0) return -1;
    const int at = cc_term_cast(b, index, CC_DT_I64);
    for (int i = 0; i < b->n_node; i++) {
        const CcLoopNode *n = &b->node[i];
        if (n->op == CC_S_take && n->a[0] == at && b->access[n->a[1]].seen == b->access[access].seen) return i;
    }
    return cc_build_take(b, add_access(b, b->access[access]), at, elements);
}

/* Dims of the space that a position counts: all of the node's own, all that it reduces, or one, numbered from the
 * right. */
static unsigned counted_dims(const CcBuild *b, CcExprLit lit) {
    const unsigned all = (1u << b->space.shape.ndim) - 1;
    const unsigned own = b->reduces ? b->space.reduced : b->level == CC_LEVEL_FULL ? all : all & ~b->space.reduced;
    if (lit == CC_LIT_place) return own;
    int behind = lit == CC_LIT_row; /* the node's dims to the right of this one */
    for (int d = 0; d < b->space.shape.ndim; d++) {
        if (b->dropped && b->space.reduced >> d & 1) continue;
        if (behind-- == 0) return 1u << d & own;
    }
    return 0;
}

/* A size or stride: an argument of the kernel, since it changes with the sizes. */
static int extent(CcBuild *b, int64_t v) {
    /* never shared between accesses: their values may differ for other sizes */
    return cc_build_param(b, CC_OF_SIZES + b->n_access, v);
}

/* index(c): operand c, checked before the loop runs. The two operands after it say which indices are valid. */
int cc_build_index(CcBuild *b, const CcNode *n, int operand) {
    const CcOperand *o = &b->g->operand.at[n->in0 + operand], *size = o + 1, *how = o + 2;
    if (operand + 3 > n->n_in || o->kind != CC_IN_VALUE || b->n_check == CC_LOOP_MAX_CHECKS)
        return cc_build_refuse(b, "an index that can't be checked here");
    const CcType *t = &b->g->val.at[o->value].type;
    const bool ends = how->kind == CC_IN_BOOL && how->i, other = how->kind == CC_IN_INT;
    if (t->dtype != CC_DT_I64 && t->dtype != CC_DT_I32) return cc_build_refuse(b, "indices of another dtype");
    b->check[b->n_check++] = (CcLoopCheck){o->value, 0, *t, ends ? -size->i : 0, size->i, other ? how->i : 0};
    const int index = cc_term_cast(b, cc_build_value(b, o->value), CC_DT_I64);
    if (!ends && !other) return index;
    const int zero = cc_term_int(b, CC_DT_I64, 0);
    if (other)
        return cc_term_op(b, CC_S_select, cc_term_op(b, CC_S_eq, index, cc_term_int(b, CC_DT_I64, how->i), -1), zero,
                          index);
    const int from_end = cc_term_op(b, CC_S_add, index, extent(b, size->i), -1);
    return cc_term_op(b, CC_S_select, cc_term_op(b, CC_S_lt, index, zero, -1), from_end, index);
}

/* share(a): operand a, checked before the loop runs. */
static int share_node(CcBuild *b, const CcOperand *o, CcDtype dt) {
    if (!o || o->kind != CC_IN_VALUE || b->n_check == CC_LOOP_MAX_CHECKS)
        return cc_build_refuse(b, "an operand that can't be range-checked");
    const CcType *t = &b->g->val.at[o->value].type;
    if (t->dtype != dt || (dt != CC_DT_F32 && dt != CC_DT_F64))
        return cc_build_refuse(b, "a range check of another dtype");
    b->check[b->n_check++] = (CcLoopCheck){.value = o->value, .type = *t};
    return cc_build_value(b, o->value);
}

/* at(a, i): operand a, read i * s elements further on; operand a + 1 gives s. */
static int at_node(CcBuild *b, const CcNode *n, int operand, int index) {
    const CcOperand *o = &b->g->operand.at[n->in0 + operand], *step = o + 1;
    if (operand + 2 > n->n_in || o->kind != CC_IN_VALUE || step->kind != CC_IN_INT || index < 0)
        return cc_build_refuse(b, "an operand that can't be read at an index");
    const CcDtype dt = (CcDtype)b->g->val.at[o->value].type.dtype;
    const int access = add_access(
        b, (CcLoopAccess){
               .dtype = (uint8_t)dt, .taken = CC_TAKEN_LANES, .node = -1, .value = o->value, .dropped = b->dropped});
    if (access < 0) return -1;
    const int at = step->i == 1 ? index : cc_term_op(b, CC_S_mul, index, extent(b, step->i), -1);
    return at < 0 ? -1 : cc_term_add(b, CC_S_take, dt, at, access, -1, cc_dtype_size(dt));
}

static bool fits(CcDtype dt, int64_t v) {
    const int bits = cc_dtype_size(dt) * 8;
    if (dt == CC_DT_BOOL) return v == 0 || v == 1;
    if (kind_of(dt) == 'u') return v >= 0 && v < INT64_C(1) << bits;
    return bits == 64 || (v >= -(INT64_C(1) << (bits - 1)) && v < INT64_C(1) << (bits - 1));
}

/* A number from the host, read from memory like a 0-dim tensor, so that the kernel does not depend on its value.
 * `bits` NULL: the host supplies it in each call. */
static int host_number(CcBuild *b, CcDtype dt, int number, const int64_t *bits) {
    for (int i = 0; i < b->n_node; i++) {
        if (b->node[i].op != CC_S_load || b->node[i].dtype != dt) continue;
        const CcLoopAccess *a = &b->access[b->node[i].a[0]];
        if (a->number == 1 + number && a->fixed == (bits != NULL) && (!bits || a->bits == *bits)) return i;
    }
    return read_new(b, CC_S_load,
                    (CcLoopAccess){.dtype = (uint8_t)dt,
                                   .node = -1,
                                   .value = -1,
                                   .number = 1 + number,
                                   .fixed = bits != NULL,
                                   .bits = bits ? *bits : 0});
}

/* A number that Python computed from sizes changes with them: an argument of the kernel. GPUs get doubles. */
static bool computed(const CcOperand *o) {
    return (o->kind == CC_IN_INT && o->value > 0 && o->i < 1LL << 53 && o->i > -(1LL << 53)) ||
           (o->kind == CC_IN_FLOAT && o->value > 0);
}

static int int_number(CcBuild *b, CcDtype dt, const CcOperand *o, int64_t v) {
    if (!computed(o) || dt == CC_DT_BOOL) return cc_term_int(b, dt, v);
    return cc_term_cast(b, host_number(b, CC_DT_I64, o->value - 1, &v), dt);
}

static int float_number(CcBuild *b, CcDtype dt, const CcOperand *o) {
    const double whole = dt == CC_DT_F32 && !computed(o) ? (double)(float)o->i : (double)o->i; /* rounded once */
    const double v = o->kind == CC_IN_FLOAT ? o->f : whole;
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (o->kind == CC_IN_NUMBER) return host_number(b, dt, o->value, NULL);
    return computed(o) ? host_number(b, dt, o->value - 1, &bits) : cc_term_float(b, dt, v);
}

int cc_build_fixed(CcBuild *b, CcDtype dt, double v) {
    int64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return host_number(b, dt, 0, &bits);
}

int cc_build_number(CcBuild *b, const CcOperand *o, CcDtype dt, bool round_first) {
    const CcDtype compute = cc_term_compute(dt);
    int node;
    if (kind_of(dt) != 'f' && o->kind == CC_IN_NUMBER)
        return cc_build_refuse(b, "a number from the host in integer arithmetic");
    if (kind_of(dt) == 'f') {
        node = float_number(b, compute, o);
        return round_first && compute != dt ? cc_term_cast(b, cc_term_cast(b, node, dt), compute) : node;
    }
    if (o->kind == CC_IN_FLOAT) {
        if (o->f != floor(o->f) || fabs(o->f) > 9e15 || !fits(dt, (int64_t)o->f))
            return cc_build_refuse(b, "a float in integer arithmetic");
        return int_number(b, dt, o, (int64_t)o->f);
    }
    return fits(dt, o->i) ? int_number(b, dt, o, o->i) : cc_build_refuse(b, "a number out of the dtype's range");
}

/* `wide`: a tensor is not rounded to half precision first. */
static int operand_node(CcBuild *b, const CcOperand *o, CcDtype dt, bool round_first, bool wide) {
    if (o->kind != CC_IN_VALUE) return cc_build_number(b, o, dt, round_first);
    const int x = cc_build_value(b, o->value);
    return cc_term_cast(b, wide && cc_dtype_is_half(dt) ? x : cc_term_cast(b, x, dt), cc_term_compute(dt));
}

int cc_build_operand(CcBuild *b, const CcOperand *o, CcDtype dt) { return operand_node(b, o, dt, false, false); }

static int literal_node(CcBuild *b, const CcNode *n, CcExprLit lit, CcDtype dt) {
    static const double MAX[CC_DT_COUNT] = {[CC_DT_F32] = 0x1.fffffep127,
                                            [CC_DT_F64] = 0x1.fffffffffffffp1023,
                                            [CC_DT_BF16] = 0x1.fep127,
                                            [CC_DT_F16] = 65504};
    const CcDtype compute = cc_term_compute(dt);
    const int bits = cc_dtype_size(dt) * 8;
    if (lit == CC_LIT_place || lit == CC_LIT_row || lit == CC_LIT_col) return cc_build_place(b, counted_dims(b, lit));
    if (lit == CC_LIT_most) return cc_term_int(b, CC_DT_I64, INT64_MAX);
    if (lit == CC_LIT_first) return cc_term_int(b, CC_DT_I64, 0);
    if (lit == CC_LIT_count && !b->reduces) return cc_term_cast(b, extent(b, cc_op_count(b->g, n)), compute);
    if (lit == CC_LIT_count) return cc_term_add(b, CC_S_count, compute, -1, -1, -1, 0);
    if (lit == CC_LIT_bits)
        return kind_of(dt) == 'f' ? cc_build_refuse(b, "bits of a float") : cc_term_int(b, dt, bits);
    if (kind_of(dt) == 'f') {
        const double v[CC_LIT_COUNT] = {[CC_LIT_inf] = INFINITY,
                                        [CC_LIT_top] = INFINITY,
                                        [CC_LIT_bottom] = -INFINITY,
                                        [CC_LIT_nan] = NAN,
                                        [CC_LIT_huge] = MAX[dt],
                                        [CC_LIT_lowest] = -MAX[dt],
                                        [CC_LIT_epsilon] = compute == CC_DT_F64 ? 0x1p-52 : 0x1p-23};
        return cc_term_float(b, compute, v[lit]);
    }
    const int64_t top = dt == CC_DT_BOOL     ? 1
                        : kind_of(dt) == 'u' ? (INT64_C(1) << bits) - 1
                                             : (int64_t)(UINT64_MAX >> (65 - bits));
    if (lit == CC_LIT_huge || lit == CC_LIT_top) return cc_term_int(b, dt, top);
    if (lit == CC_LIT_lowest || lit == CC_LIT_bottom) return cc_term_int(b, dt, kind_of(dt) == 'i' ? -top - 1 : 0);
    return cc_build_refuse(b, "inf or nan in integer arithmetic");
}

/* The type T of a node's expression, by the rule of its row. */
static CcDtype type_by_rule(CcBuild *b, const CcNode *n) {
    const char *rule = cc_op_info((CcOpId)n->op)->promote;
    if (strncmp(rule, "cmp", 3) == 0) return cc_op_common(b->g, n, b->deflt);
    const CcOperand *first = &b->g->operand.at[n->in0];
    if (strncmp(rule, "test", 4) == 0)
        return n->n_in && first->kind == CC_IN_VALUE ? (CcDtype)b->g->val.at[first->value].type.dtype : CC_DT_OTHER;
    return (CcDtype)b->g->val.at[n->out0].type.dtype;
}

/* Marks of the row: see ops.def. */
static int arg_node(CcBuild *b, const CcNode *n, const CcOperand *o, int arg, CcDtype dt) {
    const CcOpId op = (CcOpId)n->op, base = cc_op_base(op);
    const bool statistics =
        base == CC_OP_layer_norm || base == CC_OP_norm_by || base == CC_OP_norm_eval || base == CC_OP_running;
    const bool one = o->kind == CC_IN_VALUE && cc_type_numel(&b->g->val.at[o->value].type) == 1;
    const bool round_first = cc_op_marks(op, '~') || (arg == 0 && op == base && cc_op_marks(op, '^'));
    const bool wide =
        arg == 0 ? op == base && cc_op_marks(op, '+') : statistics || (arg == 1 && one && cc_op_marks(base, '^'));
    return operand_node(b, o, dt, round_first, wide);
}

static int expr_node(CcBuild *b, const CcNode *n, const CcExprNode *x, CcDtype dt, const int *at) {
    const CcOperand *o = x->arg < n->n_in ? &b->g->operand.at[n->in0 + x->arg] : NULL;
    switch (x->kind) {
    case CC_X_ARG:
        if (o && o->kind != CC_IN_NONE) return arg_node(b, n, o, x->arg, dt);
        return x->dflt >= 0 ? at[x->dflt] : cc_build_refuse(b, "an operand is missing");
    case CC_X_BOOL_ARG:
        if (!o || o->kind == CC_IN_NONE) return cc_build_refuse(b, "an operand is missing");
        if (o->kind == CC_IN_VALUE) return cc_term_cast(b, cc_build_value(b, o->value), CC_DT_BOOL);
        if (o->kind == CC_IN_NUMBER) return cc_build_refuse(b, "a number from the host as a bool");
        return cc_term_int(b, CC_DT_BOOL, o->kind == CC_IN_FLOAT ? o->f != 0 : o->i != 0);
    case CC_X_INT_ARG:
        if (!o || o->kind == CC_IN_NONE)
            return x->dflt >= 0 ? at[x->dflt] : cc_build_refuse(b, "an operand is missing");
        if (o->kind == CC_IN_VALUE) return cc_term_cast(b, cc_build_value(b, o->value), CC_DT_I64);
        return o->kind != CC_IN_INT && o->kind != CC_IN_BOOL ? cc_build_refuse(b, "a float as an index")
                                                             : int_number(b, CC_DT_I64, o, o->i);
    case CC_X_INDEX_ARG: return cc_build_index(b, n, x->arg);
    case CC_X_SHARE_ARG: return share_node(b, o, dt);
    case CC_X_NUMBER: return cc_term_cast(b, at[x->kid[0]], cc_term_compute(dt));
    case CC_X_AT:
        return cc_term_cast(b, cc_term_cast(b, at_node(b, n, x->arg, at[x->kid[0]]), dt), cc_term_compute(dt));
    case CC_X_NUM: return cc_term_number(b, cc_term_compute(dt), x->num);
    case CC_X_ROUND: return cc_term_cast(b, cc_term_cast(b, at[x->kid[0]], dt), cc_term_compute(dt));
    case CC_X_LIT: return literal_node(b, n, (CcExprLit)x->arg, dt);
    default:
        return cc_term_op(b, (CcScalarId)x->op, at[x->kid[0]], x->kid[1] < 0 ? -1 : at[x->kid[1]],
                          x->kid[2] < 0 ? -1 : at[x->kid[2]]);
    }
}

/* Parameters (weights) used after a reduction must have the result's dtype, unless they are indices. */
static bool plain_operands(const CcBuild *b, const CcNode *n, const CcExpr *e, CcDtype out) {
    for (int i = 0; i < e->n; i++) {
        const CcExprNode *x = &e->node[i];
        if ((x->kind != CC_X_ARG && x->kind != CC_X_AT) || x->arg == 0 || x->arg >= n->n_in) continue;
        const int v = cc_graph_value(b->g, n, x->arg);
        if (v < 0 || b->g->val.at[v].type.dtype == out) continue;
        /* In half precision eager's layer norm also accepts f32 weights. */
        if (cc_op_base((CcOpId)n->op) != CC_OP_layer_norm || !cc_dtype_is_half(out) ||
            b->g->val.at[v].type.dtype != CC_DT_F32)
            return false;
    }
    return true;
}

static bool all_of(const CcBuild *b, const CcNode *n, CcDtype dt) {
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(b->g, n, i);
        if (v >= 0 && b->g->val.at[v].type.dtype != dt) return false;
    }
    return true;
}

/* A mark '%'. */
static bool exact_numbers(const CcBuild *b, const CcNode *n, CcDtype dt) {
    for (int i = 0; cc_dtype_is_half(dt) && i < n->n_in; i++) {
        const CcOperand *o = &b->g->operand.at[n->in0 + i];
        const double v = o->kind == CC_IN_FLOAT ? o->f : o->kind == CC_IN_INT ? (double)o->i : 0;
        if ((double)cc_dtype_widen(dt, cc_dtype_narrow(dt, (float)v)) != v) return false;
    }
    return true;
}

/* Why the expression would not give what eager does for these types; NULL: it does. */
static const char *unlike_eager(const CcBuild *b, const CcNode *n, const CcExpr *e, CcDtype dt, CcDtype out) {
    const CcOpId op = (CcOpId)n->op;
    if (cc_op_marks(op, '!') && !all_of(b, n, out)) return "operands of another dtype";
    if (strchr(cc_op_info(op)->promote, '-') && cc_dtype_is_half(dt)) return "half precision that eager rounds";
    if (cc_op_marks(op, '%') && !exact_numbers(b, n, out)) return "a number that this dtype rounds";
    if (b->reduces && !plain_operands(b, n, e, out)) return "parameters of another dtype";
    if (strncmp(cc_op_info(op)->promote, "int", 3) == 0 && kind_of(dt) == 'f') return "bits of a float";
    return NULL;
}

static int lower_node(CcBuild *b, int node) {
    const CcNode *n = &b->g->node.at[node];
    const CcExpr *e = cc_op_expr(b->g, n);
    const CcDtype dt = type_by_rule(b, n), out = (CcDtype)b->g->val.at[n->out0].type.dtype;
    const bool reduces = cc_space_reduces(b->g, n);
    const CcSpaceLevel level = cc_space_node(&b->space, b->g, n);
    b->dropped = !reduces && level == CC_LEVEL_DROPPED;
    b->level = level;
    b->reduces = reduces;
    if (level == CC_LEVEL_NONE) return cc_build_refuse(b, "a result of another shape");
    if (cc_put_has((CcOpId)n->op)) {
        const int put = cc_term_cast(b, cc_put_lower(b, n), out);
        return put < 0 ? -1 : see(b, n->out0, put, -1);
    }
    const bool joins = cc_join_has((CcOpId)n->op);
    if (joins || cc_tap_has((CcOpId)n->op)) {
        const int mapped = out == CC_DT_OTHER ? cc_build_refuse(b, "no dtype")
                                              : cc_term_cast(b, (joins ? cc_join_lower : cc_tap_lower)(b, n), out);
        return mapped < 0 ? -1 : see(b, n->out0, mapped, -1);
    }
    if (!e || dt == CC_DT_OTHER || out == CC_DT_OTHER) return cc_build_refuse(b, "no expression or no dtype");
    const char *unlike = unlike_eager(b, n, e, dt, out);
    if (unlike) return cc_build_refuse(b, unlike);
    int at[CC_COUNT(e->node)];
    for (int i = 0; i < e->n; i++) {
        const bool is_default = i + 1 < e->n && e->node[i + 1].dflt == i;
        at[i] = expr_node(b, n, &e->node[i], dt, at);
        if (at[i] < 0 && !is_default) return -1;
        if (at[i] < 0) { /* a default that this type lacks matters only if it is used */
            const CcExprNode *user = &e->node[i + 1];
            const bool given = user->arg < n->n_in && b->g->operand.at[n->in0 + user->arg].kind != CC_IN_NONE;
            if (!given) return -1;
        }
    }
    const int result = cc_term_cast(b, at[e->n - 1], out);
    return result < 0 ? -1 : see(b, n->out0, result, -1);
}

/* `back`: negative strides are allowed. */
static bool good_type(const CcType *t, bool back) {
    if (!cc_type_known(t)) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->stride[d] < 0 && !back) return false;
    return true;
}

/* Does the result have the recorded shape? cc_graph_check has checked pointwise rows. */
static bool good_reduction(const CcGraph *g, const CcNode *n) {
    const CcSpace f = cc_space_of(g, n);
    /* an empty reduction has special cases: left to the host */
    if (f.shape.ndim < 0 || !cc_type_numel(&f.shape) || cc_space_spent(g, n)) return false;
    for (int i = 1; i < n->n_in; i++) { /* weights broadcast to the space */
        const int v = cc_graph_value(g, n, i);
        if (v < 0) continue;
        const CcType *t = &g->val.at[v].type;
        for (int d = 0; d < t->ndim; d++) {
            const int at = f.shape.ndim - t->ndim + d;
            if (at < 0 || (t->size[d] != 1 && t->size[d] != f.shape.size[at])) return false;
        }
    }
    return cc_space_node(&f, g, n) != CC_LEVEL_NONE;
}

/* Initialises only the counters: the arrays, 40 KiB, are filled on demand. */
static void begin(CcBuild *b, const CcGraph *g, CcSpace space, CcDtype deflt, CcErr *err) {
    b->g = g;
    b->space = space;
    b->box = NULL;
    b->deflt = deflt;
    b->err = err;
    b->n_node = b->n_access = b->n_value = b->n_check = 0;
    b->where = -1;
    b->how = 0;
}

/* An op without an expression that this back-end has loops for? Without gathers, half precision is not interpolated
 * dim by dim (pass/separate.c). */
static bool moves(const CcGraph *g, const CcNode *n, bool gathers) {
    const CcOpId op = (CcOpId)n->op;
    const bool near = op == CC_OP_upsample_nearest || op == CC_OP_upsample_exact;
    if (cc_join_has(op)) return true;
    if (gathers) return cc_put_has(op) || cc_tap_has(op);
    const CcOpKind kind = cc_op_info(op)->kind;
    return kind == CC_K_POOL || (kind == CC_K_RESAMPLE && (near || !cc_dtype_is_half(g->val.at[n->out0].type.dtype)));
}

bool cc_build_can(const CcGraph *g, int node, CcDtype deflt, bool gathers) {
    const CcNode *n = &g->node.at[node];
    const bool moved = moves(g, n, gathers), put = moved && cc_put_has((CcOpId)n->op);
    if ((!*cc_op_info((CcOpId)n->op)->expr && !moved) || n->n_out != 1) return false;
    const bool reduces = cc_space_reduces(g, n);
    if (!reduces && !moved && cc_node_kind(n) != CC_K_POINTWISE) return false;
    const CcType *out = &g->val.at[n->out0].type;
    const bool lies = put                      ? cc_into_is_write(g, n)
                      : cc_into_is_write(g, n) ? cc_into_non_overlapping(out)
                                               : cc_type_dense(out);
    if (!good_type(out, false) || !lies || g->val.at[n->out0].scalar) return false;
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v >= 0 && !good_type(&g->val.at[v].type, g->val.at[v].window_of)) return false;
    }
    if (reduces && !good_reduction(g, n)) return false;
    CcErr err;
    CcBuild b;
    CcBox whole = {.from = {0}};
    CcPieces pieces;
    begin(&b, g, cc_space_of(g, n), deflt, &err);
    if (moved && !gathers) {
        memcpy(whole.size, b.space.shape.size, sizeof whole.size);
        b.box = &whole;
        if (cc_join_has((CcOpId)n->op) && (!cc_pieces_read(g, n, &pieces) || cc_pieces_boxes(&pieces) > MAX_BOXES))
            return false;
    }
    return lower_node(&b, node) == 0;
}

static CcSpace space_of(const CcGraph *g, const int *nodes, int n) {
    CcSpace space = cc_space_of(g, &g->node.at[nodes[0]]);
    for (int i = 1; i < n && !space.reduced; i++)
        if (cc_space_reduces(g, &g->node.at[nodes[i]])) space = cc_space_of(g, &g->node.at[nodes[i]]);
    return space;
}

/* Splits each box into one box per piece of the cut. */
static int cut_boxes(CcBox *box, int n, const CcCut *cut) {
    for (int k = n - 1; k >= 0; k--)
        for (int i = cut->n - 1; i >= 0; i--) {
            CcBox part = box[k];
            part.from[cut->dim] = cut->piece[i].begin;
            part.size[cut->dim] = cut->piece[i].end - cut->piece[i].begin;
            box[k * cut->n + i] = part;
        }
    return n * cut->n;
}

int cc_build_boxes(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcBox **out) {
    CcPieces pieces = {.n = 0};
    for (int i = 0; i < n; i++) /* a group has at most one node with pieces (group.c) */
        if (cc_pieces_read(g, &g->node.at[nodes[i]], &pieces)) break;
    CcBox *box = *out = cc_arena_alloc(arena, sizeof *box * (size_t)(cc_pieces_boxes(&pieces) + 1));
    if (!box) return -1;
    const CcSpace space = space_of(g, nodes, n);
    *box = (CcBox){.from = {0}};
    memcpy(box->size, space.shape.size, sizeof box->size);
    int n_box = 1;
    for (int k = 0; k < pieces.n && !pieces.flat; k++) n_box = cut_boxes(box, n_box, &pieces.cut[k]);
    return n_box;
}

static float cost_of(const CcLoop *loop) {
    float cost = 0.5f * (float)loop->n_access;
    for (int i = 0; i < loop->n_node; i++) cost += cc_sweep_cost(&loop->node[i]);
    return cost;
}

static int copy_checks(const CcBuild *b, CcLoop *loop, CcArena *arena) {
    loop->check = cc_arena_alloc(arena, sizeof *loop->check * (size_t)(b->n_check + 1));
    if (!loop->check) return -1;
    for (int i = 0; i < b->n_check; i++) {
        CcLoopCheck *c = &loop->check[loop->n_check++];
        *c = b->check[i];
        c->offset = b->g->val.at[c->value].offset;
        c->value = cc_graph_base(b->g, c->value);
    }
    return 0;
}

static int arity(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->arity; }

/* needed[node]: a store needs it. */
static void mark_needed(const CcBuild *b, int16_t *needed) {
    for (int a = 0; a < b->n_access; a++) {
        if (!b->access[a].is_store) continue;
        needed[b->access[a].node] = 1;
        if (b->access[a].where) needed[b->access[a].where - 1] = 1;
    }
    for (int i = b->n_node - 1; i >= 0; i--)
        for (int k = 0; needed[i] && k < arity(&b->node[i]); k++) needed[b->node[i].a[k]] = 1;
}

/* Copies the nodes that are needed, and what they read; number[node] becomes its number in the loop. access[a]: 1 +
 * the number of the access; 0: not copied yet, as several takes may share one. */
static void copy_nodes(const CcBuild *b, CcLoop *loop, int16_t *number, int16_t *access) {
    for (int i = 0; i < b->n_node; i++) {
        if (!number[i]) continue;
        CcLoopNode *n = &loop->node[loop->n_node];
        *n = b->node[i];
        loop->scans = loop->scans || cc_sweep_scans(n);
        loop->reduces = loop->reduces || loop->scans || cc_scalar_info((CcScalarId)n->op)->kind == 'R';
        int16_t *read = n->op == CC_S_take ? &n->a[1] : cc_loop_access(n) >= 0 ? &n->a[0] : NULL;
        if (read && !access[*read]) {
            loop->access[loop->n_access] = b->access[*read];
            access[*read] = (int16_t)++loop->n_access;
        }
        if (read) *read = (int16_t)(access[*read] - 1);
        for (int k = 0; k < arity(n); k++) n->a[k] = number[n->a[k]];
        number[i] = (int16_t)loop->n_node++;
    }
}

static void copy_stores(const CcBuild *b, CcLoop *loop, const int16_t *number) {
    for (int a = 0; a < b->n_access; a++) {
        if (!b->access[a].is_store) continue;
        CcLoopAccess *store = &loop->access[loop->n_access++];
        *store = b->access[a];
        store->node = number[store->node];
        if (store->where) store->where = (int16_t)(1 + number[store->where - 1]);
    }
}

/* The loop of what stores need, renumbered, so that equal groups have equal structures byte by byte. */
static CcLoop *finish(CcBuild *b, CcArena *arena) {
    CcLoop *loop = cc_arena_alloc(arena, sizeof *loop);
    int16_t *number = cc_arena_alloc(arena, sizeof *number * (size_t)(b->n_node + 1));
    int16_t *access = cc_arena_alloc(arena, sizeof *access * (size_t)(b->n_access + 1));
    if (!loop || !number || !access || copy_checks(b, loop, arena) < 0) return NULL;
    loop->node = cc_arena_alloc(arena, sizeof *loop->node * (size_t)(b->n_node + 1));
    loop->access = cc_arena_alloc(arena, sizeof *loop->access * (size_t)(b->n_access + 1));
    if (!loop->node || !loop->access) return NULL;
    mark_needed(b, number);
    copy_nodes(b, loop, number, access);
    copy_stores(b, loop, number);
    loop->cost = cost_of(loop);
    return loop;
}

static int add_store(CcBuild *b, const CcNode *n) {
    const int value = n->out0;
    const CcLoopAccess store = {.dtype = b->g->val.at[value].type.dtype,
                                .is_store = 1,
                                .node = (int16_t)cc_build_value(b, value),
                                .where = (int16_t)(1 + b->where),
                                .how = (uint8_t)b->how,
                                .value = value,
                                .dropped = cc_space_node(&b->space, b->g, n) == CC_LEVEL_DROPPED};
    return add_access(b, store) < 0 ? -1 : 0;
}

/* Of several writes to one place in one loop (mul_, then add_), only the last is stored. */
static bool is_overwritten(const CcGraph *g, const int *nodes, int n, int i) {
    const CcNode *first = &g->node.at[nodes[i]];
    for (int k = i + 1; cc_into_is_write(g, first) && k < n; k++)
        if (cc_into_is_write(g, &g->node.at[nodes[k]]) && cc_into_same(g, first->out0, g->node.at[nodes[k]].out0))
            return true;
    return false;
}

CcLoop *cc_build_group(const CcGraph *g, const int *nodes, int n, const CcBox *box, const bool *made, CcDtype deflt,
                       CcArena *arena, CcErr *err) {
    CcBuild b;
    const CcSpace space = space_of(g, nodes, n);
    begin(&b, g, space, deflt, err);
    b.box = box;
    int status = 0;
    for (int i = 0; i < n && status == 0; i++) status = lower_node(&b, nodes[i]);
    for (int i = 0; i < n && status == 0; i++)
        if (made[cc_graph_base(g, g->node.at[nodes[i]].out0)] && !is_overwritten(g, nodes, n, i))
            status = add_store(&b, &g->node.at[nodes[i]]);
    CcLoop *loop = status == 0 ? finish(&b, arena) : NULL;
    if (!loop && status == 0) status = cc_err_set(err, CC_E_MEMORY, "no memory for a loop");
    if (loop && cc_nest_build(loop, g, &space, box, arena, err) < 0) loop = NULL;
    for (int a = 0; loop && a < loop->n_access; a++) { /* from here on the host's values */
        if (loop->access[a].value < 0) continue;
        loop->access[a].offset += g->val.at[loop->access[a].value].offset;
        loop->access[a].seen = NULL; /* memory of b, which goes away */
        loop->access[a].value = cc_graph_base(g, loop->access[a].value);
    }
    return loop && cc_lcheck_run(loop, err) < 0 ? NULL : loop;
}
