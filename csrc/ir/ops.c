/* ops: the op table, lookups, and torch's rule for the common dtype of operands. */
#include "ir.h"

#define CC_OPERAND(kind, name) {#name, CC_IS_##kind, CC_ROOM_##kind(name)},
#define CC_ROOM_TENSOR(name) 1
#define CC_ROOM_OPTIONAL(name) 1
#define CC_ROOM_INT(name) 1
#define CC_ROOM_BOOL(name) 1
#define CC_ROOM_NUMBER(name) 1
#define CC_ROOM_ANY(name) 1
#define CC_ROOM_INTS(name) CC_SPATIAL
#define CC_ROOM_MORE_INTS(name) CC_SPATIAL
#define CC_ROOM_REST(name) 0
#define CC_ROOM_IN(n) (n)
#define CC_OPROW(id, kind, operands, ...) static const CcOperandSpec IN_##id[] = {operands{NULL, CC_IS_ANY, 0}};
#define CC_OPCASE(...)
#define CC_OPCASE_HALF(...)
#include "ops.def"
#undef CC_OPROW

static const CcOperandSpec IN_host[] = {{"rest", CC_IS_REST, 0}, {NULL, CC_IS_ANY, 0}};
static const CcOpInfo TABLE[] = {
    {"host", CC_K_HOST, IN_host, "", "", "no row: the host replays it"},
#define CC_OPROW(id, kind, operands, promote, expr, doc) {#id, kind, IN_##id, promote, expr, doc},
#include "ops.def"
#undef CC_OPROW
#undef CC_OPCASE
#undef CC_OPCASE_HALF
};

/* a derivative's row -> the row of its op; 0: the row is no derivative */
static const uint16_t BASE[CC_OP_ROWS] = {
#define CC_OPROW(...)
#define CC_OPCASE(...)
#define CC_OPCASE_HALF(...)
#define CC_OPGRAD(id, operand, ...) [CC_OP_##id##_grad_##operand] = CC_OP_##id,
#define CC_OPGRAD_LATER(id, operand, formula, ...) [CC_OP_##id##_grad_##formula##_##operand] = CC_OP_##id,
#include "ops.def"
};

/* a derivative's row -> 1 + its formula, where torch has a later one; 0: the row is not such a one */
static const uint8_t LATER[CC_OP_ROWS] = {
#define CC_OPGRAD(...)
#define CC_OPGRAD_LATER(id, operand, formula, ...) [CC_OP_##id##_grad_##formula##_##operand] = 1 + CC_FORMULA_##formula,
#include "ops.def"
#undef CC_OPROW
#undef CC_OPCASE
#undef CC_OPCASE_HALF
};

const CcOpInfo *cc_op_info(CcOpId op) { return &TABLE[(unsigned)op < CC_OP_ROWS ? op : CC_OP_host]; }

CcOpId cc_op_find(const char *name) {
    for (int i = 1; i < CC_OP_ROWS; i++)
        if (strcmp(TABLE[i].name, name) == 0) return (CcOpId)i;
    return CC_OP_host;
}

CcOpId cc_op_base(CcOpId op) { return BASE[op] ? (CcOpId)BASE[op] : op; }

static CcOpId derivative(CcOpId op, int operand, int later) {
    for (int i = 1; i < CC_OP_ROWS; i++) /* a derivative's name ends in the operand's letter */
        if (BASE[i] == op && LATER[i] == later && TABLE[i].name[strlen(TABLE[i].name) - 1] == 'a' + operand)
            return (CcOpId)i;
    return CC_OP_host;
}

bool cc_op_is_later(CcOpId row) { return LATER[row] != 0; }
CcOpId cc_op_grad(CcOpId op, int operand) { return derivative(op, operand, 0); }
CcOpId cc_op_grad_later(CcOpId op, int operand, CcFormula f) { return derivative(op, operand, 1 + (int)f); }

int cc_op_grad_at(CcOpId op) {
    int n = 0;
    for (const CcOperandSpec *s = TABLE[cc_op_base(op)].operand; s->name; s++) n += s->room;
    return n;
}

bool cc_op_marks(CcOpId op, char mark) {
    if (mark == '~' && strchr(TABLE[op].promote, '=')) return false;
    return strchr(TABLE[cc_op_base(op)].promote, mark) != NULL;
}

/* c10::promoteTypes for the table's dtypes; OTHER means "undefined" and yields to any dtype. */
static CcDtype promote(CcDtype a, CcDtype b) {
    if (a == b || b == CC_DT_OTHER) return a;
    if (a == CC_DT_OTHER) return b;
    if (cc_dtype_is_float(a) != cc_dtype_is_float(b)) return cc_dtype_is_float(a) ? a : b;
    if (cc_dtype_is_float(a)) {
        if (a == CC_DT_F64 || b == CC_DT_F64) return CC_DT_F64;
        return CC_DT_F32; /* two of f32, f16, bf16 that differ */
    }
    if (a == CC_DT_BOOL) return b;
    if (b == CC_DT_BOOL) return a;
    if ((a == CC_DT_U8 && b == CC_DT_I8) || (a == CC_DT_I8 && b == CC_DT_U8)) return CC_DT_I16;
    return cc_dtype_size(a) >= cc_dtype_size(b) ? a : b;
}

/* combine_categories of at::native::result_type: a category of lower priority matters only through its class. */
static CcDtype combine(CcDtype higher, CcDtype lower) {
    if (cc_dtype_is_float(higher)) return higher;
    if (higher == CC_DT_BOOL || cc_dtype_is_float(lower)) return promote(higher, lower);
    return higher != CC_DT_OTHER ? higher : lower;
}

/* Parameters (alpha, value, weight): operands with a numeric default in the row. */
static bool is_parameter(const CcExpr *e, int operand) {
    for (int i = 0; e && i < e->n; i++)
        if (e->node[i].kind == CC_X_ARG && e->node[i].arg == operand && e->node[i].dflt >= 0)
            return e->node[e->node[i].dflt].kind == CC_X_NUM;
    return false;
}

CcDtype cc_op_common(const CcGraph *g, const CcNode *node, CcDtype deflt) {
    CcDtype dims = CC_DT_OTHER, zero = CC_DT_OTHER, number = CC_DT_OTHER;
    bool float_number = false;
    const CcExpr *e = cc_op_expr(g, node);
    for (int i = 0; i < node->n_in; i++) {
        const CcOperand *o = &g->operand.at[node->in0 + i];
        if (o->kind != CC_IN_VALUE && is_parameter(e, i)) continue;
        if (o->kind == CC_IN_VALUE) {
            const CcType *t = &g->val.at[o->value].type;
            if (t->dtype == CC_DT_OTHER) return CC_DT_OTHER;
            if (t->ndim > 0) dims = promote(dims, (CcDtype)t->dtype);
            else zero = promote(zero, (CcDtype)t->dtype);
        } else if (o->kind == CC_IN_FLOAT || o->kind == CC_IN_NUMBER) {
            float_number = true;
        } else if (o->kind == CC_IN_INT) {
            number = promote(number, CC_DT_I64);
        } else if (o->kind == CC_IN_BOOL) {
            number = promote(number, CC_DT_BOOL);
        }
    }
    if (float_number && !cc_dtype_is_float(dims) && !cc_dtype_is_float(zero)) return deflt;
    return combine(dims, combine(zero, number));
}

bool cc_op_number(const CcGraph *g, const CcNode *node, int operand) {
    const char *rule = cc_op_info(cc_op_base((CcOpId)node->op))->promote;
    const CcOperand *first = node->n_in ? &g->operand.at[node->in0] : NULL;
    if (!strchr(rule, '#') || node->n_out > 1 || !first) return false;
    if (node->n_out == 0 && first->kind != CC_IN_VALUE) return false; /* the operand that the node writes */
    const char *named = strchr(rule, '#') + 1;
    const CcDtype own = (CcDtype)g->val.at[node->n_out ? node->out0 : first->value].type.dtype;
    const CcDtype t = strncmp(rule, "cmp", 3) == 0 ? cc_op_common(g, node, CC_DT_OTHER) : own;
    if (*named) return operand == *named - 'a' && cc_dtype_is_float(own);
    const CcExpr *e = cc_dtype_is_float(t) ? cc_op_expr(g, node) : NULL;
    bool reads = false; /* is the operand read as a plain number? */
    for (int i = 0; e && i < e->n; i++) {
        const CcExprNode *x = &e->node[i];
        if (x->arg != operand) continue;
        if (x->kind == CC_X_BOOL_ARG || x->kind == CC_X_INT_ARG || x->kind == CC_X_INDEX_ARG ||
            x->kind == CC_X_SHARE_ARG || x->kind == CC_X_AT)
            return false;
        reads = reads || x->kind == CC_X_ARG;
    }
    return reads;
}

/* The dims that the node or, for a derivative, its op reduces over. */
static int dims_of(const CcGraph *g, const CcNode *node) {
    const char *at = strchr(cc_op_info(cc_op_base((CcOpId)node->op))->promote, '/');
    const int operand = at ? at[1] - 'a' : node->n_in;
    if (operand >= node->n_in) return -1;
    const CcOperand *o = &g->operand.at[node->in0 + operand];
    return o->kind == CC_IN_INT && o->i >= 0 && o->i < 1 << CC_MAX_DIMS ? (int)o->i : -1;
}

int cc_op_dims(const CcGraph *g, const CcNode *node) {
    return strchr(cc_op_info((CcOpId)node->op)->promote, '/') ? dims_of(g, node) : -1;
}

int64_t cc_op_count(const CcGraph *g, const CcNode *node) {
    const int dims = dims_of(g, node);
    const CcType *t = &g->val.at[node->out0].type;
    int64_t n = 1;
    for (int d = 0; d < t->ndim && dims >= 0; d++)
        if (dims >> (t->ndim - 1 - d) & 1) n *= t->size[d];
    return n;
}

bool cc_op_grad_reads(const CcGraph *g, const CcNode *forward, CcOpId grad, int operand) {
    const CcOperand *o = operand < forward->n_in ? &g->operand.at[forward->in0 + operand] : NULL;
    if (o && o->kind != CC_IN_VALUE) return true; /* dims, steps and sizes have no name of their own in an expression */
    const CcExpr *e = cc_op_expr_as(g, forward, grad);
    return e && cc_expr_reads(e, operand);
}
