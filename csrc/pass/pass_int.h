/* pass_int: for passes that make several nodes of one (expand.c, contract.c). What they put in its place are its parts;
 * values keep their numbers, nodes do not (CcNode.origin), and what lies between the parts is hidden from the host.
 * Where a back-end refuses a part, the whole op is the host's. */
#ifndef CC_PASS_INT_H
#define CC_PASS_INT_H

#include "pass.h"

typedef struct Parts {
    CcGraph *g;
    CcNode whole; /* what they stand for */
    int at;       /* where it stands */
    int first, n; /* the parts' numbers begin here */
    const CcGroupRules *rules;
} Parts;

static inline CcOperand value_of(int v) { return (CcOperand){.kind = CC_IN_VALUE, .value = v}; }
static inline CcOperand int_of(int64_t i) { return (CcOperand){.kind = CC_IN_INT, .i = i}; }
static inline CcOperand float_of(double f) { return (CcOperand){.kind = CC_IN_FLOAT, .f = f}; }
static inline CcOperand none(void) { return (CcOperand){.kind = CC_IN_NONE}; }

static inline CcOperand operand(const Parts *p, int i) { return *cc_graph_operand(p->g, &p->whole, i); }
static inline CcType type_of(const Parts *p, CcOperand o) { return p->g->val.at[o.value].type; }
static inline CcOperand window(Parts *p, CcOperand o, CcType type) {
    return value_of(cc_views_window(p->g, o.value, &type));
}

/* The next part. It makes `result` (which may be a window of what the whole makes), or if that is negative a new value
 * of this type. -> its result */
CcOperand cc_parts_add(Parts *p, CcOpId op, int result, const CcType *type, int n_in, ...);

/* A dim of one element more, or one less. */
CcType cc_parts_with_dim(const CcType *t, int dim);
CcType cc_parts_without_dim(const CcType *t, int dim);

/* What expand.c makes of one kind of op. false: the host does it. */
bool cc_losses_make(Parts *p);
bool cc_layers_make(Parts *p, const bool *needed);
bool cc_moments_make(Parts *p);
bool cc_moments_groups(Parts *p);
bool cc_writes_make(Parts *p);
bool cc_writes_may(const CcGraph *g, const CcNode *n, const CcGroupRules *rules); /* is it worth a try? */
/* writes.c, for into.c: a node that writes at indices, or to slices, what was there before is a kernel's. false: it is
 * as it was. */
bool cc_writes_into(CcGraph *g, int node, const CcGroupRules *rules);

/* equation.c: einsum's text. Labels are letters, and behind them, up to CC_LETTERS + CC_MAX_DIMS, what ellipses hide. */
enum { CC_LETTERS = 52 };
/* How many letters this part of an equation has, which ends before ',' or '-'; -1: torch would not take it. dots: has
 * it an ellipsis? */
int cc_equation_letters(const char *text, bool *dots);
/* Labels of a part of the equation for a tensor of this many dims, of which `hidden` stand behind the ellipsis. -> what
 * follows it */
const char *cc_equation_labels(const char *text, int hidden, int *label);
/* "->" left away: what the ellipses hide, then letters that stand once, in their order. */
int cc_equation_implicit(const char *text, int hidden, int *label);

enum { PARTS_RESULTS = 8 }; /* of a whole, at most */

typedef struct PartsRules {
    /* is it worth a try? */
    bool (*may_be)(const CcGraph *g, const CcNode *n, const CcGroupRules *rules);
    /* needed: by result of the whole */
    bool (*make)(Parts *p, const bool *needed);
    /* is this part rewritten once more, by another pass? */
    bool (*later)(const CcNode *n);
    /* may it have parts, though it writes? */
    bool (*writes)(const CcNode *n, const CcGroupRules *rules);
} PartsRules;
void cc_parts_rewrite(CcGraph *g, const CcGroupRules *rules, const PartsRules *own);

#endif
