/* formula: which formula torch has for a derivative, where its versions differ (formula.def). The front asks torch for
 * the gradients at a grid of points, of which some are kinks or NaN; what it gives there tells which formula it has. */
#include <math.h>

#include "ir.h"

/* How the operands behind the first one are given in the grid: numbers; none: tensors. */
typedef struct Formula {
    CcOpId op;
    int n_number;
    double number[2];
} Formula;
static const Formula FORMULA[] = {
#define CC_FORMULA(id, op, numbers, asked, doc) {CC_OP_##op, numbers},
#include "formula.def"
#undef CC_FORMULA
};

static enum { UNKNOWN, EARLIER, LATER, NEITHER } answer[CC_FORMULA_COUNT];

/* ------------------------------------------------------------------ the value of an expression */

static double literal(int lit) {
    if (lit == CC_LIT_inf || lit == CC_LIT_top) return INFINITY;
    return lit == CC_LIT_bottom ? -INFINITY : NAN;
}

/* Only what the rows of formula.def are written in. */
static double primitive(CcScalarId op, double a, double b, double c) {
    switch (op) {
    case CC_S_select: return a != 0 ? b : c;
    case CC_S_and: return a != 0 && b != 0;
    case CC_S_or: return a != 0 || b != 0;
    case CC_S_div: return a / b;
    case CC_S_mul: return a * b;
    case CC_S_sub: return a - b;
    case CC_S_eq: return a == b;
    case CC_S_lt: return a < b;
    case CC_S_le: return a <= b;
    case CC_S_gt: return a > b;
    case CC_S_ge: return a >= b;
    case CC_S_isnan: return isnan(a);
    default: return NAN;
    }
}

static double value_of(const CcExpr *e, const double *operand) {
    double v[CC_COUNT(e->node)];
    for (int i = 0; i < e->n; i++) {
        const CcExprNode *x = &e->node[i];
        double kid[3] = {0};
        for (int k = 0; k < 3; k++)
            if (x->kid[k] >= 0) kid[k] = v[x->kid[k]];
        v[i] = x->kind == CC_X_ARG   ? operand[x->arg]
               : x->kind == CC_X_NUM ? x->num
               : x->kind == CC_X_LIT ? literal(x->arg)
               : x->kind == CC_X_OP  ? primitive((CcScalarId)x->op, kid[0], kid[1], kid[2])
                                     : kid[0];
    }
    return v[e->n - 1];
}

/* ------------------------------------------------------------------ the grid */

double cc_formula_point(CcFormula f, int operand, int i) {
    static const double VALUE[] = {0, 1, NAN, 2, -INFINITY, INFINITY, -1, 0.5};
    const int tensors = cc_formula_tensors(f), n = tensors == 3 ? 4 : 8;
    if (operand >= tensors) return FORMULA[f].number[operand - 1];
    for (int k = 0; k < operand; k++) i /= n;
    return VALUE[i % n];
}

int cc_formula_operands(CcFormula f) { return cc_op_grad_at(FORMULA[f].op); }
int cc_formula_tensors(CcFormula f) { return FORMULA[f].n_number ? 1 : cc_formula_operands(f); }

/* ------------------------------------------------------------------ which formula torch has */

static bool near(double x, double y) { return x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1e-5 * fabs(y); }

/* Whether the row gives the operand's gradients, for gradients of 1. */
static bool gives(CcFormula f, CcOpId row, const float *grad) {
    double operand[CC_FORMULA_OPERANDS + 2];
    const CcExpr *e = cc_op_expr_row(row);
    const int n = cc_formula_operands(f);
    for (int i = 0; e != NULL && i < CC_FORMULA_POINTS; i++) {
        for (int k = 0; k < n; k++) operand[k] = cc_formula_point(f, k, i);
        operand[n] = 1;
        operand[n + 1] = NAN;
        if (!near(grad[i], value_of(e, operand))) return false;
    }
    return e != NULL;
}

void cc_formula_learn(CcFormula f, const float *const grad[CC_FORMULA_OPERANDS]) {
    bool earlier = true, later = true;
    for (int k = 0; k < cc_formula_tensors(f); k++) {
        earlier = earlier && gives(f, cc_op_grad(FORMULA[f].op, k), grad[k]);
        later = later && gives(f, cc_op_grad_later(FORMULA[f].op, k, f), grad[k]);
    }
    const int is = earlier ? EARLIER : later ? LATER : NEITHER;
    answer[f] = answer[f] == UNKNOWN || (int)answer[f] == is ? is : NEITHER;
}

void cc_formula_forget(void) { memset(answer, 0, sizeof answer); }
bool cc_formula_is_neither(CcFormula f) { return answer[f] == NEITHER; }
const char *cc_formula_name(CcFormula f) {
    static const char *const NAME[] = {
#define CC_FORMULA(id, ...) #id,
#include "formula.def"
#undef CC_FORMULA
    };
    return NAME[f];
}

/* ------------------------------------------------------------------ rows by formula */

static bool takes_number(const CcGraph *g, const CcNode *n) {
    bool any = false;
    for (int k = 1; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, n, k);
        any = any || (o->kind != CC_IN_VALUE && o->kind != CC_IN_NONE);
    }
    return any;
}

/* Whether the op has a derivative with a later formula; most have not. */
static bool varies(CcOpId op) {
    static bool known, any[CC_OP_ROWS];
    for (int row = 1; !known && row < CC_OP_ROWS; row++)
        if (cc_op_is_later((CcOpId)row)) any[cc_op_base((CcOpId)row)] = true;
    known = true;
    return any[op];
}

CcOpId cc_formula_grad(const CcGraph *g, const CcNode *n, int operand) {
    for (CcFormula f = 0; f < CC_FORMULA_COUNT && varies((CcOpId)n->op); f++) {
        const CcOpId later = cc_op_grad_later((CcOpId)n->op, operand, f);
        if (later == CC_OP_host || takes_number(g, n) != (FORMULA[f].n_number > 0)) continue;
        if (answer[f] == NEITHER) return CC_OP_host;
        if (answer[f] == LATER) return later;
    }
    return cc_op_grad((CcOpId)n->op, operand);
}
