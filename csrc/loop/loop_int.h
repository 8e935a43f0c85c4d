/* loop, private: the builder of a group's loop (build.c), with which join.c, put.c and tap.c lower their ops,
 * and the terms of its expressions (term.c). */
#ifndef CC_LOOP_INT_H
#define CC_LOOP_INT_H

#include "loop.h"

enum { CC_BUILD_VALUES = 256 };

typedef struct CcBuild {
    const CcGraph *g;
    CcSpace space;
    const CcBox *box;   /* the part of the space that the loop covers; NULL: all */
    bool dropped;       /* how the current node reads its operands */
    CcSpaceLevel level; /* where its result fits into the space; FULL if it reduces */
    bool reduces;
    int n_check;
    CcLoopCheck check[CC_LOOP_MAX_CHECKS];
    CcDtype deflt;
    CcErr *err;
    int n_node, n_access, n_value;
    CcLoopNode node[CC_LOOP_MAX_NODES];
    CcLoopAccess access[CC_LOOP_MAX_ACCESS];
    CcType type[CC_LOOP_MAX_ACCESS]; /* access.seen */
    /* set by the node that writes at indices (put.c), which stands alone; where -1: there is none */
    int where, how;
    struct {
        int value, node, dropped; /* dropped -1: made here, the same for all readers */
    } seen[CC_BUILD_VALUES];      /* loop nodes of graph values */
} CcBuild;

/* All return a loop node, or -1 with b->err set; an operand of -1 gives -1. */
/* ---- term.c ---- */
int cc_term_op(CcBuild *b, CcScalarId op, int x, int y, int z);
int cc_term_cast(CcBuild *b, int node, CcDtype to);
int cc_term_int(CcBuild *b, CcDtype dt, int64_t v);
int cc_term_float(CcBuild *b, CcDtype dt, double v);
/* A number of an expression: refuses a fraction if dt is an integer type. */
int cc_term_number(CcBuild *b, CcDtype dt, double v);
/* Any node; an equal one is shared. */
int cc_term_add(CcBuild *b, CcScalarId op, CcDtype dt, int a0, int a1, int a2, int64_t bits);
CcDtype cc_term_compute(CcDtype dt); /* the dtype to compute in: f32 for half precision */

/* ---- build.c ---- */
int cc_build_refuse(CcBuild *b, const char *why);
/* A number operand in the compute type of dt. */
int cc_build_number(CcBuild *b, const CcOperand *o, CcDtype dt, bool round_first);
/* A float that is an argument of the kernel. */
int cc_build_fixed(CcBuild *b, CcDtype dt, double v);
/* the position of an element, counted over these dims of the space */
int cc_build_place(CcBuild *b, unsigned dims);
/* An integer argument of the kernel. Arguments with equal values and equal `what` are shared. */
int cc_build_param(CcBuild *b, int what, int64_t v);
int cc_build_value(CcBuild *b, int value); /* the element of a value, in its own dtype */
/* The element of a value, viewed as this type, `shift` elements further on. */
int cc_build_part(CcBuild *b, int value, const CcType *seen, int64_t shift);
/* -> an access of a value, viewed as this type, that is read at indices */
int cc_build_seen(CcBuild *b, int value, const CcType *seen);
int cc_build_take(CcBuild *b, int access, int index, int64_t elements);
/* The same through a copy of the access that belongs to this index alone. */
int cc_build_take_apart(CcBuild *b, int access, int index, int64_t elements);

/* an index operand, checked; the operands after it give the valid range */
int cc_build_index(CcBuild *b, const CcNode *n, int operand);
/* An operand converted to this dtype, in its compute type. */
int cc_build_operand(CcBuild *b, const CcOperand *o, CcDtype dt);

/* join.c */
bool cc_join_has(CcOpId op);
int cc_join_lower(CcBuild *b, const CcNode *n); /* -> the result */

/* put.c */
bool cc_put_has(CcOpId op);
int cc_put_lower(CcBuild *b, const CcNode *n); /* -> the stored node; sets b->where, b->how */

/* tap.c */
bool cc_tap_has(CcOpId op);
int cc_tap_lower(CcBuild *b, const CcNode *n); /* -> the result, in whatever type */

#endif
