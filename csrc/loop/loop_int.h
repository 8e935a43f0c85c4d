/* loop, private: what a group's loop is built with (build.c), which tap.c lowers its ops with. */
#ifndef CC_LOOP_INT_H
#define CC_LOOP_INT_H

#include "loop.h"

enum { CC_BUILD_VALUES = 256 };

typedef struct CcBuild {
    const CcGraph *g;
    CcSpace space;
    bool dropped;  /* how the node that is lowered reads its operands */
    CcLevel level; /* where its result stands; FULL if it reduces */
    bool reduces;
    int n_check;
    CcLoopCheck check[CC_LOOP_MAX_CHECKS];
    CcDtype deflt;
    CcErr *err;
    int n_node, n_access, n_value;
    CcLoopNode node[CC_LOOP_MAX_NODES];
    CcLoopAccess access[CC_LOOP_MAX_ACCESS];
    CcType type[CC_LOOP_MAX_ACCESS]; /* access.seen */
    /* of the node that writes at indices (put.c), which stands alone; where -1: there is none */
    int where, how;
    struct {
        int value, node, dropped; /* dropped -1: made here, the same for all readers */
    } seen[CC_BUILD_VALUES];      /* graph values that have a loop node */
} CcBuild;

/* All return a loop node, or -1 with b->err set; an operand of -1 gives -1. */
int cc_build_refuse(CcBuild *b, const char *why);
int cc_build_op(CcBuild *b, CcScalarId op, int x, int y, int z);
int cc_build_cast(CcBuild *b, int node, CcDtype to);
int cc_build_int(CcBuild *b, CcDtype dt, int64_t v);
int cc_build_float(CcBuild *b, CcDtype dt, double v);
CcDtype cc_build_compute(CcDtype dt); /* what it is computed in: half precision in f32 */
/* A number operand in the type that dt is computed in. */
int cc_build_number(CcBuild *b, const CcOperand *o, CcDtype dt, bool round_first);
/* where an element stands, counted over these dims of the space */
int cc_build_place(CcBuild *b, unsigned dims);
/* An integer that is given to the kernel and no part of its text. `what`: equal ones of equal meaning are one. */
int cc_build_param(CcBuild *b, int what, int64_t v);
int cc_build_value(CcBuild *b, int value); /* its element, in its own dtype */
/* -> an access of a value, seen as this type, that is read at indices */
int cc_build_seen(CcBuild *b, int value, const CcType *seen);
int cc_build_take(CcBuild *b, int access, int index, int64_t elements);

/* checked; the operands behind it say which there are */
int cc_build_index(CcBuild *b, const CcNode *n, int operand);
/* An operand as one of this dtype, in what that is computed in. */
int cc_build_operand(CcBuild *b, const CcOperand *o, CcDtype dt);

/* put.c */
bool cc_put_has(CcOpId op);
int cc_put_lower(CcBuild *b, const CcNode *n); /* -> what is written; b->where, b->how */

/* tap.c */
bool cc_tap_has(CcOpId op);
int cc_tap_lower(CcBuild *b, const CcNode *n); /* -> the result, in whatever type */

#endif
