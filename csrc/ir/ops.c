/* ops: the op table, lookups, and torch's rule for the common dtype of operands. */
#include "ir.h"

static const CcOpInfo TABLE[] = {
    {"host", CC_K_HOST, -1, "", "", "no row: replayed by the host"},
#define CC_OPROW(id, kind, arity, promote, expr, doc) {#id, kind, arity, promote, expr, doc},
#define CC_OPCASE(...)
#define CC_OPCASE_HALF(...)
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

static bool is_float(CcDtype dt) { return cc_dtype_info(dt)->kind == 'f'; }

/* c10::promoteTypes for the dtypes of the table; OTHER stands for "undefined" and yields to
 * anything. */
static CcDtype promote(CcDtype a, CcDtype b) {
    if (a == b || b == CC_DT_OTHER) return a;
    if (a == CC_DT_OTHER) return b;
    if (is_float(a) != is_float(b)) return is_float(a) ? a : b;
    if (is_float(a)) {
        if (a == CC_DT_F64 || b == CC_DT_F64) return CC_DT_F64;
        return CC_DT_F32; /* two of f32, f16, bf16 that differ */
    }
    if (a == CC_DT_BOOL) return b;
    if (b == CC_DT_BOOL) return a;
    if ((a == CC_DT_U8 && b == CC_DT_I8) || (a == CC_DT_I8 && b == CC_DT_U8)) return CC_DT_I16;
    return cc_dtype_info(a)->size >= cc_dtype_info(b)->size ? a : b;
}

/* at::native::result_type's combine_categories: a category of lower priority only matters by its
 * class. */
static CcDtype combine(CcDtype higher, CcDtype lower) {
    if (is_float(higher)) return higher;
    if (higher == CC_DT_BOOL || is_float(lower)) return promote(higher, lower);
    return higher != CC_DT_OTHER ? higher : lower;
}

/* Parameters (alpha, value, weight): operands that the row gives a numeric default. */
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
    if (float_number && !is_float(dims) && !is_float(zero)) return deflt;
    return combine(dims, combine(zero, number));
}

bool cc_op_number(const CcGraph *g, const CcNode *node, int operand) {
    const char *rule = cc_op_info((CcOpId)node->op)->promote;
    const CcOperand *first = node->n_in ? &g->operand.at[node->in0] : NULL;
    if (!strchr(rule, '#') || node->n_out > 1 || !first) return false;
    if (node->n_out == 0 && first->kind != CC_IN_VALUE) return false; /* what it writes */
    const char *named = strchr(rule, '#') + 1;
    const CcDtype own = (CcDtype)g->val.at[node->n_out ? node->out0 : first->value].type.dtype;
    const CcDtype t = strncmp(rule, "cmp", 3) == 0 ? cc_op_common(g, node, CC_DT_OTHER) : own;
    if (*named) return operand == *named - 'a' && is_float(own);
    const CcExpr *e = is_float(t) ? cc_op_expr(g, node) : NULL;
    bool reads = false; /* by its value alone */
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

int cc_op_dims(const CcGraph *g, const CcNode *node) {
    const char *at = strchr(cc_op_info((CcOpId)node->op)->promote, '/');
    const int operand = at ? at[1] - 'a' : node->n_in;
    if (operand >= node->n_in) return -1;
    const CcOperand *o = &g->operand.at[node->in0 + operand];
    return o->kind == CC_IN_INT && o->i >= 0 && o->i < 1 << CC_MAX_DIMS ? (int)o->i : -1;
}
