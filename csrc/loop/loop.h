/* loop: loop IR. One loop nest over the space of a group; in its middle loads, an expression DAG, stores.
 *
 *     for d0 in size[0]: for d1 in size[1]: ... for i in size[lane]:         the nest: numbers, given to a kernel as
 *         %0 = load a0; %1 = konst 2.0; %2 = mul %0 %1; store a1, %2         arguments; the body: what it is compiled from
 *
 * The body knows of an access its dtype and how the innermost loop steps through it (by one element, on or back, not at
 * all, by a stride), and nothing of sizes: a new shape reuses the kernel.
 *
 * With reductions (rsum, rmax ... in scalar.def) the dims are kept or reduced ones. A row is what one set of kept
 * indices reduces; it is gone through in sweeps (sweep.c), as a reduction's result is known only at the end of one:
 *
 *     for kept ...:  m = rmax(x)        sweep 0                 by rows: the last reduced dim is the vector loop
 *                    e = exp(x - m); s = rsum(e)   sweep 1      by columns: the last kept dim is, and all reduced dims
 *                    store e * (1 / s)  sweep 2                 are loops inside of it
 *
 * A scan (psum, pmax ... in scalar.def) is an element that each sweep which needs it makes anew, from the first of the
 * row to the last; the row has one reduced dim then.
 *
 * Where an element stands is known without counting: an access without memory ("place") is moved along as all others
 * are, and what it points at is the number. An access may be read at an index, which is checked before the loop runs
 * ("taken"), or written at one ("where", in loops that do not reduce, for the reference executor and GPUs).
 *
 * All of it lies in the arena of the compile. */
#ifndef CC_LOOP_H
#define CC_LOOP_H

#include "../pass/pass.h"

enum { CC_LOOP_MAX_ACCESS = 96, CC_LOOP_MAX_NODES = 1024, CC_LOOP_MAX_LINES = 3, CC_LOOP_MAX_CHECKS = 8 };

/* Along the vector loop. BACK: by minus one element; no store does. */
typedef enum CcStepClass { CC_STEP_ONE, CC_STEP_ZERO, CC_STEP_ANY, CC_STEP_BACK } CcStepClass;

/* ROW: the vector loop has one index, step one */
typedef enum CcTaken { CC_TAKEN_NOT, CC_TAKEN_LANES, CC_TAKEN_ROW } CcTaken;
/* as ops.def: scatter */
typedef enum CcPutHow { CC_PUT_SET, CC_PUT_SUM, CC_PUT_PROD, CC_PUT_MEAN, CC_PUT_MAX, CC_PUT_MIN } CcPutHow;
#define CC_PLACE_ZERO ((char *)((uintptr_t)1 << 40))

typedef struct CcLoopNode {
    uint8_t op;    /* CcScalarId */
    uint8_t dtype; /* of the result. bf16 and f16 are only loaded, stored and cast from and to f32 */
    int16_t a[3];  /* operands: earlier nodes; -1: none. load, place: a[0] = access; take: a[1] = access */
    int64_t bits;  /* konst: the integer, or the double's bits; take: bytes */
} CcLoopNode;

typedef struct CcLoopAccess {
    uint8_t dtype;
    uint8_t step; /* CcStepClass */
    uint8_t is_store;
    uint8_t line;  /* moves along a reduced dim that is not the vector loop */
    int16_t node;  /* store: what is stored */
    int16_t where; /* store: 1 + the node that says how many elements behind its place; 0: just there */
    uint8_t how;   /* of such a store: CcPutHow */
    uint8_t place; /* has no memory: points at a number, CC_PLACE_ZERO is 0 */
    uint8_t taken; /* CcTaken */
    /* load: steps by a stride along the vector loop, and by one element from row to row, with enough of both to be turned
     * in tiles */
    uint8_t across;
    /* place: dims that are counted, a bit each, bit 0 the last one; no part of the structure */
    uint8_t dims;
    uint8_t dropped; /* how its dims stand in the space; no part of the structure */
    int32_t value;   /* of the graph, -1: none; no part of the structure */
    /* 1 + the host's number that is read, 0: memory, -1: the number that `value` holds, which is on the CPU and the
     * kernel is not; no part of the structure */
    int32_t number;
    /* the host's number is `bits` in all calls of this nest (of other sizes it is another one): an integer where dtype
     * is one, else a double; no part of the structure */
    bool fixed;
    int64_t bits;
    int32_t param;      /* place: not 0: no place, but the number that `offset` is; no part of the structure */
    int64_t offset;     /* bytes from its first element: a window; no part of the structure */
    const CcType *seen; /* while it is built: the type that its value is seen as; NULL: its own */
} CcLoopAccess;

/* An index that has to be in [low, high), or to be `also`, for the loop to run: all elements of a tensor. Floats have
 * to be in [0, 1]. */
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
    int ndim; /* >= 1 */
    int lane; /* the dim of the vector loop; those behind it, at most CC_LOOP_MAX_LINES, are reduced ones */
    bool reduces, columns; /* reduces: or scans */
    /* has primitives of kind P, each a value that the next element along the row needs */
    bool scans;
    int64_t size[CC_MAX_DIMS + 1];
    int64_t (*stride)[CC_MAX_DIMS + 1]; /* [access][dim], bytes */
    float cost;                         /* of one element, in additions */
} CcLoop;

/* build.c: is this node of an op that loop IR can express, with these dtypes? `deflt`: torch's
 * default dtype or CC_DT_OTHER. maps: or of one whose elements come from elsewhere in its operands (tap.c), which is
 * for devices where a load at any place is as good as one at the next. */
bool cc_build_can(const CcGraph *g, int node, CcDtype deflt, bool maps);
/* The nest of a group of nodes of one space; made[value] says which results exist
 * outside. NULL with *err set. */
CcLoop *cc_build_group(const CcGraph *g, const int *nodes, int n, const bool *made, CcDtype deflt, CcArena *arena,
                       CcErr *err);
/* nest.c: sizes, strides and step classes of loop->access over the space; sorts dims by the first
 * store, or by what is reduced, drops and merges. -1 with *err set. */
CC_MUST int cc_nest_build(CcLoop *loop, const CcGraph *g, const CcSpace *space, CcArena *arena, CcErr *err);

/* sweep.c: what is computed when. */
typedef struct CcSweeps {
    int n;                            /* >= 1 */
    bool element[CC_LOOP_MAX_NODES];  /* differs along a row */
    uint8_t stage[CC_LOOP_MAX_NODES]; /* sweeps that must be over before the node is known */
    uint8_t first[CC_LOOP_MAX_NODES]; /* element: the sweep that computes it first */
    /* 1 + number of the scratch line that holds it from then on; 0: none */
    uint8_t kept[CC_LOOP_MAX_NODES];
    int n_kept;
} CcSweeps;
void cc_sweep_plan(const CcLoop *loop, CcSweeps *out);
/* Elements' nodes that a sweep computes or reads from their scratch line. */
void cc_sweep_need(const CcLoop *loop, const CcSweeps *plan, int sweep, bool *need);
bool cc_sweep_scans(const CcLoopNode *n);                       /* is it of kind P? */
bool cc_sweep_along(const CcLoop *loop, const CcLoopAccess *a); /* does the access move along a row? */
float cc_sweep_cost(const CcLoopNode *n);                       /* of a primitive, in additions */

int64_t cc_nest_numel(const CcLoop *loop);
void cc_ltext_print(const CcLoop *loop, CcSbuf *out);
CC_MUST int cc_lcheck_run(const CcLoop *loop, CcErr *err);
int cc_loop_access(const CcLoopNode *n); /* the access that a node reads; -1: none */
double cc_loop_number(int64_t bits);     /* bits of a float konst -> value */

#endif
