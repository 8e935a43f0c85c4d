/* expr: parses the expression column of ops.def, once. The grammar of a row:
 *
 *   row   = { name "=" sum ";" } sum
 *   sum   = prod { ("+" | "-" | "&" | "|" | "^") prod }      (one level: rows use parentheses where precedence matters)
 *   prod  = unary { ("*" | "/") unary }
 *   unary = "-" unary | number | literal | "grad" | "result" | name | operand ["=" number-or-literal] | "(" sum ")"
 *         | "bool(" operand ")" | "int(" operand ")" | "index(" operand ")" | "share(" operand ")"
 *         | "rounded(" sum ")" | "number(" sum ")" | "at(" operand "," sum ")" | primitive "(" sum {"," sum} ")"
 *
 * Names and operands are single lower-case letters: a to j are operands unless the row defined that name earlier. */
#include <ctype.h>
#include <math.h>
#include <pthread.h>

#include "ir.h"

typedef struct Parser {
    const char *row, *at;
    CcExpr *out;
    int named[26]; /* letter -> node + 1 */
    int grad;      /* the operand "grad"; "result" follows it. -1: the row is no derivative */
    CcErr *err;
} Parser;

static const char *const LITERAL[CC_LIT_COUNT] = {"inf",   "nan",     "huge",  "lowest", "top", "bottom", "bits",
                                                  "count", "epsilon", "place", "row",    "col", "most",   "first"};

typedef struct Case {
    CcOpId op;
    int operand;
    double value;
    const char *text;
    bool half; /* a CC_OPCASE_HALF: only for float16 on the CPU */
} Case;
#define SINGLE NAN
static const Case CASES[] = {
#define CC_OPROW(...)
#define CC_OPCASE(id, operand, value, text) {CC_OP_##id, operand, value, text, false},
#define CC_OPCASE_HALF(id, operand, value, text) {CC_OP_##id, operand, value, text, true},
#include "ops.def"
#undef CC_OPROW
#undef CC_OPCASE
#undef CC_OPCASE_HALF
};

static struct {
    CcExpr row[CC_OP_ROWS];
    CcExpr special[CC_COUNT(CASES)];
    bool has_case[CC_OP_ROWS];
    CcErr err;
    int status;
} parsed;

static int sum(Parser *p);

static int fail(Parser *p, const char *what) {
    return cc_err_set(p->err, CC_E_VERIFY, "ops.def: %s in \"%s\" at \"%.20s\"", what, p->row, p->at);
}

static char peek(Parser *p) {
    while (*p->at == ' ') p->at++;
    return *p->at;
}

static bool take(Parser *p, char c) {
    if (peek(p) != c) return false;
    p->at++;
    return true;
}

static int push(Parser *p, CcExprNode n) {
    if (p->out->n >= CC_COUNT(p->out->node)) return fail(p, "too long");
    p->out->node[p->out->n] = n;
    return p->out->n++;
}

static int push_op(Parser *p, CcScalarId op, int a, int b, int c) {
    if (a < 0 || b < -1 || c < -1) return -1;
    return push(p,
                (CcExprNode){.kind = CC_X_OP, .op = (uint8_t)op, .dflt = -1, .kid = {(int8_t)a, (int8_t)b, (int8_t)c}});
}

static int number(Parser *p) {
    char *end;
    const double v = strtod(p->at, &end);
    if (end == p->at) return fail(p, "a number is missing");
    p->at = end;
    return push(p, (CcExprNode){.kind = CC_X_NUM, .dflt = -1, .num = v});
}

static int literal(Parser *p, int n) {
    for (int i = 0; i < CC_LIT_COUNT; i++)
        if (strncmp(LITERAL[i], p->at, (size_t)n) == 0 && LITERAL[i][n] == 0) {
            p->at += n;
            return push(p, (CcExprNode){.kind = CC_X_LIT, .arg = (int8_t)i, .dflt = -1});
        }
    return fail(p, "unknown name");
}

/* grad, result: the last two operands of a derivative. -> node; -1: failed, -2: another word */
static int after_operands(Parser *p, int n) {
    const bool grad = n == 4 && memcmp(p->at, "grad", 4) == 0, result = n == 6 && memcmp(p->at, "result", 6) == 0;
    if (p->grad < 0 || (!grad && !result)) return -2;
    p->at += n;
    return push(p, (CcExprNode){.kind = CC_X_ARG, .arg = (int8_t)(p->grad + result), .dflt = -1});
}

static int word_length(const char *s) {
    int n = 0;
    while (isalnum((unsigned char)s[n])) n++;
    return n;
}

static int operand(Parser *p, int kind) {
    const char letter = peek(p);
    if (letter < 'a' || letter > 'j') return fail(p, "an operand is missing");
    p->at++;
    int dflt = -1;
    if (take(p, '=')) {
        const char c = peek(p);
        dflt = isdigit((unsigned char)c) || c == '-' ? number(p) : literal(p, word_length(p->at));
        if (dflt < 0) return -1;
    }
    return push(p, (CcExprNode){.kind = kind, .arg = (int8_t)(letter - 'a'), .dflt = (int8_t)dflt});
}

/* bool(a), int(a), index(a): the operand in another type; share(a): range-checked; rounded(x), number(x): x in T;
 * at(a, i): element i of the operand. */
static int conversion(Parser *p, int kind) {
    int v = -1;
    int8_t arg = 0;
    if (kind == CC_X_BOOL_ARG || kind == CC_X_INT_ARG || kind == CC_X_INDEX_ARG || kind == CC_X_SHARE_ARG) {
        v = operand(p, kind);
        return v < 0 || take(p, ')') ? v : fail(p, "')' is missing");
    }
    if (kind == CC_X_AT) {
        arg = (int8_t)(peek(p) - 'a');
        p->at++;
        if (arg < 0 || arg > 9 || !take(p, ',')) return fail(p, "an operand and an index are missing");
    }
    if ((v = sum(p)) < 0) return -1;
    if (!take(p, ')')) return fail(p, "')' is missing");
    return push(p, (CcExprNode){.kind = kind, .arg = arg, .dflt = -1, .kid = {(int8_t)v, -1, -1}});
}

static int call(Parser *p, int n) {
    static const struct {
        const char *name;
        int kind;
    } CONVERSION[] = {{"bool", CC_X_BOOL_ARG},
                      {"int", CC_X_INT_ARG},
                      {"index", CC_X_INDEX_ARG},
                      {"share", CC_X_SHARE_ARG},
                      {"rounded", CC_X_ROUND},
                      {"number", CC_X_NUMBER},
                      {"at", CC_X_AT}};
    for (int i = 0; i < CC_COUNT(CONVERSION); i++)
        if ((int)strlen(CONVERSION[i].name) == n && strncmp(p->at, CONVERSION[i].name, (size_t)n) == 0) {
            p->at += n + 1;
            return conversion(p, CONVERSION[i].kind);
        }
    const CcScalarId op = cc_scalar_find(p->at, n);
    if (op == CC_S_COUNT) return fail(p, "unknown primitive");
    p->at += n + 1;
    int kid[3] = {-1, -1, -1}, count = 0;
    do {
        if (count == 3) return fail(p, "too many operands");
        if ((kid[count++] = sum(p)) < 0) return -1;
    } while (take(p, ','));
    if (!take(p, ')')) return fail(p, "')' is missing");
    if (count != cc_scalar_info(op)->arity) return fail(p, "wrong number of operands");
    return push_op(p, op, kid[0], kid[1], kid[2]);
}

static int unary(Parser *p) {
    const char c = peek(p);
    if (take(p, '-')) {
        const int at = p->out->n, v = unary(p);
        if (v >= 0 && v == at && p->out->node[v].kind == CC_X_NUM) {
            p->out->node[v].num = -p->out->node[v].num;
            return v;
        }
        return v < 0 ? -1 : push_op(p, CC_S_neg, v, -1, -1);
    }
    if (take(p, '(')) {
        const int v = sum(p);
        return v < 0 || take(p, ')') ? v : fail(p, "')' is missing");
    }
    if (isdigit((unsigned char)c)) return number(p);
    const int n = word_length(p->at);
    if (n == 0) return fail(p, "an operand is missing");
    if (p->at[n] == '(') return call(p, n);
    if (n > 1) {
        const int v = after_operands(p, n);
        return v == -2 ? literal(p, n) : v;
    }
    const int named = p->named[c - 'a'];
    if (named) {
        p->at++;
        return named - 1;
    }
    return operand(p, CC_X_ARG);
}

static int prod(Parser *p) {
    int v = unary(p);
    while (v >= 0) {
        const CcScalarId op = take(p, '*') ? CC_S_mul : take(p, '/') ? CC_S_div : CC_S_COUNT;
        if (op == CC_S_COUNT) break;
        const int w = unary(p);
        v = w < 0 ? -1 : push_op(p, op, v, w, -1);
    }
    return v;
}

static int sum(Parser *p) {
    int v = prod(p);
    while (v >= 0) {
        const CcScalarId op = take(p, '+')   ? CC_S_add
                              : take(p, '-') ? CC_S_sub
                              : take(p, '&') ? CC_S_and
                              : take(p, '|') ? CC_S_or
                              : take(p, '^') ? CC_S_xor
                                             : CC_S_COUNT;
        if (op == CC_S_COUNT) break;
        const int w = prod(p);
        v = w < 0 ? -1 : push_op(p, op, v, w, -1);
    }
    return v;
}

static int parse(CcOpId op, const char *row, CcExpr *out, CcErr *err) {
    Parser p = {.row = row, .at = row, .out = out, .err = err};
    p.grad = cc_op_base(op) == op ? -1 : cc_op_grad_at(op);
    for (;;) {
        peek(&p);
        const char name = *p.at;
        const bool part = islower((unsigned char)name) && p.at[1] == ' ' && p.at[2] == '=';
        if (part) p.at += 3;
        const int v = sum(&p);
        if (v < 0) return -1;
        if (part) {
            if (!take(&p, ';')) return fail(&p, "';' is missing");
            p.named[name - 'a'] = v + 1;
            continue;
        }
        if (peek(&p)) return fail(&p, "text follows the expression");
        /* The result must be the last node, so a row may not end in an already parsed named part or bare operand. */
        return v == out->n - 1 ? 0 : fail(&p, "the result is not the last node");
    }
}

static void parse_all(void) {
    for (int i = 0; i < CC_OP_ROWS; i++) {
        const CcOpInfo *info = cc_op_info((CcOpId)i);
        if (*info->expr && parse((CcOpId)i, info->expr, &parsed.row[i], &parsed.err) < 0) parsed.status = -1;
    }
    for (int i = 0; i < CC_COUNT(CASES); i++) {
        if (parse(CASES[i].op, CASES[i].text, &parsed.special[i], &parsed.err) < 0) parsed.status = -1;
        parsed.has_case[CASES[i].op] = true;
    }
}

int cc_op_init(CcErr *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse_all);
    if (parsed.status < 0 && err) *err = parsed.err;
    return parsed.status;
}

bool cc_expr_counts(const CcExpr *e) {
    for (int i = 0; i < e->n; i++)
        if (e->node[i].kind == CC_X_LIT && e->node[i].arg >= CC_LIT_place && e->node[i].arg <= CC_LIT_col) return true;
    return false;
}

bool cc_expr_reads(const CcExpr *e, int operand) {
    for (int i = 0; i < e->n; i++) {
        const CcExprNode *x = &e->node[i];
        if (x->arg == operand && (x->kind <= CC_X_SHARE_ARG || x->kind == CC_X_AT)) return true;
    }
    return false;
}

const CcExpr *cc_op_expr_row(CcOpId op) {
    return *cc_op_info(op)->expr && cc_op_init(NULL) == 0 ? &parsed.row[op] : NULL;
}

const CcExpr *cc_op_expr_as(const CcGraph *g, const CcNode *node, CcOpId op) {
    if (!*cc_op_info(op)->expr || cc_op_init(NULL) < 0) return NULL;
    for (int i = 0; i < CC_COUNT(CASES) && parsed.has_case[op]; i++) {
        if (CASES[i].op != op || CASES[i].operand >= node->n_in) continue;
        if (CASES[i].half && (g->gpu || !node->n_out || g->val.at[node->out0].type.dtype != CC_DT_F16)) continue;
        if (CASES[i].operand < 0) {
            if (CASES[i].half || (node->n_out && !cc_dtype_is_float(g->val.at[node->out0].type.dtype)))
                return &parsed.special[i];
            continue;
        }
        const CcOperand *o = &g->operand.at[node->in0 + CASES[i].operand];
        const bool number = o->kind != CC_IN_VALUE && o->kind != CC_IN_NONE;
        if (isnan(CASES[i].value) &&
            (number || (o->kind == CC_IN_VALUE && cc_type_numel(&g->val.at[o->value].type) == 1)))
            return &parsed.special[i];
        if ((o->kind == CC_IN_INT && (double)o->i == CASES[i].value) ||
            (o->kind == CC_IN_FLOAT && o->f == CASES[i].value))
            return &parsed.special[i];
    }
    return &parsed.row[op];
}

const CcExpr *cc_op_expr(const CcGraph *g, const CcNode *node) { return cc_op_expr_as(g, node, (CcOpId)node->op); }
