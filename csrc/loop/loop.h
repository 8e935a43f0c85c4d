/* loop: loop IR. A loop nest over the space of a group; in its middle loads, an expression DAG and stores.
 *
 *     for d0 in size[0]: for d1 in size[1]: ... for i in size[lane]:         the nest: sizes and strides, which are
 *         %0 = load a0; %1 = konst 2.0; %2 = mul %0 %1; store a1, %2         arguments; the body: what is compiled
 *
 * The body knows an access's dtype and how the vector loop steps through it (by one element forward or back, not at
 * all, by a stride), but no sizes: a new shape reuses the kernel.
 *
 * With reductions (rsum, rmax ... in scalar.def), dims are either kept or reduced. A row is what one set of kept
 * indices reduces. It takes several sweeps (sweep.c), because a reduction's result is known only at the end of a
 * sweep:
 *
 *     for kept ...:  m = rmax(x)                   sweep 0      by rows: the last reduced dim is the vector loop
 *                    e = exp(x - m); s = rsum(e)   sweep 1      by columns: the last kept dim is the vector loop, and all
 *                    store e * (1 / s)             sweep 2      reduced dims are loops inside it
 *
 * A scan (psum, pmax ... in scalar.def) gives one value per element; each sweep that needs it recomputes it from the
 * first to the last element of the row, which has one reduced dim.
 *
 * Positions need no counters: an access without memory ("place") moves like any other, and its address is the
 * position. An access may be read at an index ("taken"), which is checked before the loop runs, or written at one
 * ("where", in loops without reductions, for the reference executor and GPUs).
 *
 * The compile's arena holds all of it. */
#ifndef CC_LOOP_H
#define CC_LOOP_H

#include "../pass/pass.h"

enum { CC_LOOP_MAX_ACCESS = 96, CC_LOOP_MAX_NODES = 1024, CC_LOOP_MAX_LINES = 3, CC_LOOP_MAX_CHECKS = 8 };

/* Step along the vector loop. BACK: minus one element; never a store's. */
typedef enum CcStepClass { CC_STEP_ONE, CC_STEP_ZERO, CC_STEP_ANY, CC_STEP_BACK } CcStepClass;

/* ROW: one index for the whole vector loop, step one */
typedef enum CcTaken { CC_TAKEN_NOT, CC_TAKEN_LANES, CC_TAKEN_ROW } CcTaken;
#define CC_PLACE_ZERO ((char *)((uintptr_t)1 << 40))

typedef struct CcLoopNode {
    uint8_t op;    /* CcScalarId */
    uint8_t dtype; /* of the result. bf16 and f16 are only loaded, stored and cast from and to f32 */
    int16_t a[3];  /* operands: earlier nodes; -1: none. load, place: a[0] = access; take: a[1] = access */
    int64_t bits;  /* konst: the integer, or the double's bits; take: bytes */
} CcLoopNode;

/* What a body loads or stores, or a position that it counts. */
typedef struct CcLoopAccess {
    /* ---- the structure: loops that agree in this, and in their nodes, share a kernel ---- */
    uint8_t dtype;
    uint8_t step; /* CcStepClass */
    uint8_t is_store;
    uint8_t line; /* moves along a reduced dim other than the vector loop */
    int16_t node; /* store: the stored node */
    /* store: 1 + the node that says how many elements after its own address it stores; 0: at the address */
    int16_t where;
    uint8_t how;   /* how such a store combines with memory: CcPutHow */
    uint8_t place; /* no memory: its address is a number; CC_PLACE_ZERO is 0 */
    uint8_t taken; /* CcTaken */
    /* load: strided along the vector loop but contiguous from row to row, with enough of both to transpose in tiles */
    uint8_t across;

    /* ---- what one nest reads and writes ---- */
    int32_t value;  /* of the graph; -1: none: a place, or a number of the host */
    int64_t offset; /* bytes from the value's first element, for a window; a place with `param`: its number */
    int32_t param;  /* place: nonzero for an argument of the kernel, not a position */
    uint8_t dims;   /* place: counted dims as bits, bit 0 the last */
    /* 1 + the host's number that is read; 0: memory; -1: the number in `value`, which is on the CPU while the kernel
     * is not */
    int32_t number;
    /* `bits` is the host's number for all calls of this nest (other sizes have another): an integer if dtype is one,
     * else a double */
    bool fixed;
    int64_t bits;
    uint8_t dropped;    /* how its dims align with the space (DROPPED) */
    const CcType *seen; /* while building: the type that the value is viewed as; NULL: its own */
} CcLoopAccess;

/* A check before the loop runs: every element of a tensor must be an index in [low, high), or equal `also`. Floats
 * must be in [0, 1]. */
typedef struct CcLoopCheck {
    int32_t value;
    int64_t offset; /* bytes */
    CcType type;
    int64_t low, high, also;
} CcLoopCheck;

typedef struct CcLoop {
    int n_check;
    CcLoopCheck *check;
    int n_node, n_access;
    CcLoopNode *node;
    CcLoopAccess *access;
    int ndim;              /* >= 1 */
    int lane;              /* the dim of the vector loop; dims after it, at most CC_LOOP_MAX_LINES, are reduced */
    bool reduces, columns; /* reduces: also set for scans */
    /* has primitives of kind P, whose values carry over to the next element of the row */
    bool scans;
    int64_t size[CC_MAX_DIMS + 1];
    int64_t (*stride)[CC_MAX_DIMS + 1]; /* [access][dim], bytes */
    float cost;                         /* per element, in additions */
} CcLoop;

/* A part of a space: `size` elements of each dim, starting here. */
typedef struct CcBox {
    int64_t from[CC_MAX_DIMS], size[CC_MAX_DIMS];
} CcBox;

/* build.c: can loop IR express this node's op with these dtypes? `deflt`: torch's default dtype or CC_DT_OTHER.
 * gathers: also allow ops that read at any address (tap.c, put.c), for devices where gathers are as fast as
 * consecutive loads; without it joins are read by boxes (join.c), and resampling is limited to one dim. */
bool cc_build_can(const CcGraph *g, int node, CcDtype deflt, bool gathers);
/* The boxes that a group's join cuts its space into, in the arena; without a join, the whole space. -1: out of
 * memory. */
int cc_build_boxes(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcBox **out);
/* The nest of a group of nodes of one space, or of a box of it (NULL: the whole space); made[value] says which
 * results are needed outside. NULL with *err set. */
CcLoop *cc_build_group(const CcGraph *g, const int *nodes, int n, const CcBox *box, const bool *made, CcDtype deflt,
                       CcArena *arena, CcErr *err);
/* nest.c: sets sizes, strides and step classes of loop->access over the space or a box of it (NULL: all); sorts dims
 * by the first store, or by the reduced tensor; drops and merges dims. -1 with *err set. */
CC_MUST int cc_nest_build(CcLoop *loop, const CcGraph *g, const CcSpace *space, const CcBox *box, CcArena *arena,
                          CcErr *err);

/* sweep.c: which sweep computes which node. */
typedef struct CcSweeps {
    int n;                            /* >= 1 */
    bool element[CC_LOOP_MAX_NODES];  /* varies along a row */
    uint8_t stage[CC_LOOP_MAX_NODES]; /* number of sweeps that must finish before the node is known */
    uint8_t first[CC_LOOP_MAX_NODES]; /* varying nodes: the first sweep that computes it */
    /* 1 + the scratch line that holds it after that; 0: none */
    uint8_t kept[CC_LOOP_MAX_NODES];
    int n_kept;
} CcSweeps;
void cc_sweep_plan(const CcLoop *loop, CcSweeps *out);
/* Varying nodes that a sweep computes or reads from their scratch line. */
void cc_sweep_need(const CcLoop *loop, const CcSweeps *plan, int sweep, bool *need);
bool cc_sweep_scans(const CcLoopNode *n);                       /* is it of kind P? */
bool cc_sweep_along(const CcLoop *loop, const CcLoopAccess *a); /* does the access move along a row? */
float cc_sweep_cost(const CcLoopNode *n);                       /* cost of a primitive, in additions */

int64_t cc_nest_numel(const CcLoop *loop);
void cc_ltext_print(const CcLoop *loop, CcSbuf *out);
CC_MUST int cc_lcheck_run(const CcLoop *loop, CcErr *err);
int cc_loop_access(const CcLoopNode *n); /* the access that a node reads; -1: none */
double cc_loop_number(int64_t bits);     /* bits of a float konst -> value */

#endif
