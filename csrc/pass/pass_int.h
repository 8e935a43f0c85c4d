/* pass_int: for passes that replace one node by several (expand.c, contract.c), its parts. Values keep their
 * numbers, nodes do not (CcNode.origin), and the host does not know the intermediates. If a back-end refuses a part,
 * the host runs the whole op. */
#ifndef CC_PASS_INT_H
#define CC_PASS_INT_H

#include "pass.h"

enum { PARTS_RESULTS = 8 }; /* max number of results of the whole */

typedef struct Parts {
    CcGraph *g;
    CcNode whole;               /* the node that the parts replace */
    int at;                     /* its position */
    bool needed[PARTS_RESULTS]; /* [result of the whole] something reads it */
    int first, n;               /* number of the first part; how many there are */
    const CcGroupRules *rules;
} Parts;

static inline CcOperand value_of(int v) { return (CcOperand){.kind = CC_IN_VALUE, .value = v}; }
static inline CcOperand int_of(int64_t i) { return (CcOperand){.kind = CC_IN_INT, .i = i}; }
static inline CcOperand float_of(double f) { return (CcOperand){.kind = CC_IN_FLOAT, .f = f}; }
static inline CcOperand bool_of(bool b) { return (CcOperand){.kind = CC_IN_BOOL, .i = b}; }
static inline CcOperand none(void) { return (CcOperand){.kind = CC_IN_NONE}; }

static inline CcOperand operand(const Parts *p, int i) { return *cc_graph_operand(p->g, &p->whole, i); }
static inline CcType type_of(const Parts *p, CcOperand o) { return p->g->val.at[o.value].type; }
static inline CcOperand window(Parts *p, CcOperand o, CcType type) {
    return value_of(cc_views_window(p->g, o.value, &type));
}
/* Dims that a reduction reduces, as its operand: the last n, or all. */
static inline CcOperand last_dims(int n) { return int_of((INT64_C(1) << n) - 1); }
static inline CcOperand all_dims(void) { return last_dims(CC_MAX_DIMS); }

/* Adds a part: an op with these operands, for rows with an expression. It makes `result` (which may be a window of a
 * result of the whole), or, if that is negative, a new value of this type. -> its result */
#define cc_parts_add(p, op, result, type, ...)                                                                         \
    cc_parts_add_in(p, op, result, type, (const CcOperand[]){__VA_ARGS__},                                             \
                    (int)(sizeof((const CcOperand[]){__VA_ARGS__}) / sizeof(CcOperand)))
CcOperand cc_parts_add_in(Parts *p, CcOpId op, int result, const CcType *type, const CcOperand *in, int n_in);
/* The same for a row with operand names: cc_parts_make(p, linear, -1, &t, .x = x, .weight = w). */
#define cc_parts_make(p, op, result, type, ...)                                                                        \
    cc_parts_make_in(p, CC_OP_##op, result, type, &(const CcIn_##op){__VA_ARGS__})
CcOperand cc_parts_make_in(Parts *p, CcOpId op, int result, const CcType *type, const void *in);

/* norms.c. A number for each channel of x, of x's dtype or, where that is half precision, f32; a missing operand passes. */
bool cc_norms_of_channels(const CcGraph *g, CcOperand o, const CcType *x);
/* A vector [C] as a window that broadcasts along x [N, C, ..] of `ndim` dims: [C, 1 ..]; or, in groups, along x [N, G,
 * C / G, ..]: [G, C / G, 1 ..]. */
CcOperand cc_norms_see(CcGraph *g, CcOperand vector, int ndim, int64_t groups);

/* The rewrites of expand.c, one per kind of op. false: the host runs the op. */
bool cc_losses_make(Parts *p);
bool cc_layers_make(Parts *p);
bool cc_moments_make(Parts *p);
bool cc_moments_groups(Parts *p);
bool cc_writes_make(Parts *p);
bool cc_dropout_make(Parts *p);
bool cc_writes_may(const CcGraph *g, const CcNode *n, const CcGroupRules *rules); /* is a rewrite worth trying? */
/* writes.c, for into.c: turns a node that writes pre-existing memory at indices or slices into a kernel. false: the
 * node is unchanged. */
bool cc_writes_into(CcGraph *g, int node, const CcGroupRules *rules);

/* equation.c: einsum's text. Labels are letters and, after them, up to CC_LETTERS + CC_MAX_DIMS, the dims behind
 * ellipses. */
enum { CC_LETTERS = 52 };
/* Number of letters in this part of an equation, which ends at ',' or '-'; -1: torch would reject it. dots: does it
 * have an ellipsis? */
int cc_equation_letters(const char *text, bool *dots);
/* Labels of a part of the equation for a tensor of this many dims, `hidden` of them behind the ellipsis. -> the text
 * after it */
const char *cc_equation_labels(const char *text, int hidden, int *label);
/* Without "->": the ellipses' dims, then letters that occur once, in order. */
int cc_equation_implicit(const char *text, int hidden, int *label);

/* What a pass splits, and how; later and flagged may be NULL: no. */
typedef struct PartsRules {
    /* is a rewrite worth trying? */
    bool (*may_be)(const CcGraph *g, const CcNode *n, const CcGroupRules *rules);
    bool (*make)(Parts *p); /* false: the host runs the op */
    /* will another pass rewrite this part? */
    bool (*later)(const CcNode *n);
    /* may it have parts although it has flags: writes, draws? */
    bool (*flagged)(const CcNode *n, const CcGroupRules *rules);
} PartsRules;
void cc_parts_rewrite(CcGraph *g, const CcGroupRules *rules, const PartsRules *own);

#endif
