/* loop: loop IR. One loop nest over the extents of a group's results; in its middle loads, an
 * expression DAG, stores.
 *
 *     for d0 in size[0]: for d1 in size[1]: ... for i in size[ndim-1]:      the nest: numbers,
 * given to a kernel as arguments %0 = load a0; %1 = konst 2.0; %2 = mul %0 %1; store a1, %2 the
 * body: what a kernel is compiled from
 *
 * The body knows of an access its dtype and how the innermost loop steps through it (by one
 * element, not at all, by a stride), and nothing of sizes: a new shape reuses the kernel. All of it
 * lies in the arena of the compile. */
#ifndef CC_LOOP_H
#define CC_LOOP_H

#include "../ir/ir.h"

enum { CC_LOOP_MAX_ACCESS = 96, CC_LOOP_MAX_NODES = 1024 };

typedef enum CcStepClass { CC_STEP_ONE, CC_STEP_ZERO, CC_STEP_ANY } CcStepClass;

typedef struct CcLoopNode {
    uint8_t op; /* CcScalarId */
    uint8_t
        dtype;    /* of the result. bf16 and f16 are only loaded, stored and cast from and to f32 */
    int16_t a[3]; /* operands: earlier nodes; -1: none. load: a[0] = access */
    int64_t bits; /* konst: the integer, or the double's bits */
} CcLoopNode;

typedef struct CcLoopAccess {
    uint8_t dtype;
    uint8_t step; /* CcStepClass */
    uint8_t is_store;
    int16_t node;  /* store: what is stored */
    int32_t value; /* of the graph; no part of the structure */
    int64_t offset; /* bytes from its first element: a window; no part of the structure */
} CcLoopAccess;

typedef struct CcLoop {
    int n_node, n_access;
    CcLoopNode *node;
    CcLoopAccess *access;
    int ndim; /* >= 1 */
    int64_t size[CC_MAX_DIMS];
    int64_t (*stride)[CC_MAX_DIMS]; /* [access][dim], bytes */
    float cost;                     /* of one element, in additions */
} CcLoop;

/* build.c: is this node of an op that loop IR can express, with these dtypes? `deflt`: torch's
 * default dtype or CC_DT_OTHER. */
bool cc_build_can(const CcGraph *g, int node, CcDtype deflt);
/* The nest of a group of pointwise nodes of one shape; made[value] says which results exist
 * outside. NULL with *err set. */
CcLoop *cc_build_group(const CcGraph *g, const int *nodes, int n, const bool *made, CcDtype deflt,
                       CcArena *arena, CcErr *err);
/* nest.c: sizes, strides and step classes of loop->access over the shape; sorts dims by the first
 * store, drops and merges. */
CC_MUST int cc_nest_build(CcLoop *loop, const CcGraph *g, const CcType *shape, CcArena *arena);

int64_t cc_nest_numel(const CcLoop *loop);
void cc_ltext_print(const CcLoop *loop, CcSbuf *out);
CC_MUST int cc_lcheck_run(const CcLoop *loop, CcErr *err);
double cc_loop_number(int64_t bits); /* bits of a float konst -> value */

#endif
