/* run, private: what a plan is made of. A plan is immutable but for the spare call states of its
 * primitives. */
#ifndef CC_RUN_INT_H
#define CC_RUN_INT_H

#include "../dev/dev.h"
#include "../gen/gen.h"
#include "../pass/pass.h"
#include "run.h"

typedef enum CcStepKind { CC_STEP_HOST, CC_STEP_KERNEL, CC_STEP_PRIMITIVE } CcStepKind;

typedef struct CcStep {
    CcStepKind kind;
    const int *node; /* nodes that this step does, in program order; HOST: one */
    int32_t n_node;
    bool narrowed;         /* computes only a part of what the graph says */
    bool turned;           /* its result lies in memory column by column */
    int32_t drop0, n_drop; /* values that die with this step: plan->drop[drop0 ..] */
    void *work;            /* KERNEL: CcLaunch; PRIMITIVE: CcPrimStep */
} CcStep;

/* A value that the plan makes smaller than the graph says (pass/narrow.c). */
typedef struct CcNarrowed {
    int value;
    CcType type;
} CcNarrowed;

struct CcPlan {
    CC_VEC(CcStep) step;
    CC_VEC(int) drop;
    CC_VEC(CcNarrowed) narrowed;
    CC_VEC(int) reuse; /* [value]: the value whose memory it takes over, -1: none */
    CcArena *arena;     /* what the steps point to */
    const uint16_t *op; /* [node], for cc_run_print */
    double compile_ms;
};

/* kcache.c: the machine code of a loop's body, from the cache of the process or compiled. NULL with
 * *err set. */
CcKernelFn cc_kcache_get(const CcLoop *loop, CcErr *err);
void cc_kcache_text(const CcLoop *loop, CcSbuf *out); /* its LLVM IR */

/* launch.c: a kernel over the nest of its loop. */
typedef struct CcLaunch {
    const CcLoop *loop;
    CcKernelFn fn; /* NULL: the reference executor */
    int64_t numel;
} CcLaunch;
CC_MUST int cc_launch_run(const CcLaunch *launch, const CcHost *host, CcErr *err);

/* prim.c: products by oneDNN. */
typedef struct CcPrim {
    CcMatmul *matmul;
    int src, weights, bias, dst, post[CC_DNNL_MAX_POST], n_post; /* values; -1: none */
    bool turned, back;   /* dst is made transposed; and then written back as it should be */
    bool softmax;        /* no product, but softmax of src over its last dim */
    int64_t rows, cols;  /* turned: of the transposed dst, whose rows are first filled with their
                            bias; softmax: of dst */
    int64_t src_at, post_at[CC_DNNL_MAX_POST];                   /* bytes: they may be windows */
} CcPrim;
bool cc_prim_can(const CcGraph *g, int node);
/* Is this product faster with its result turned (pass/turn.c)? */
bool cc_prim_gains_turned(const CcGraph *g, int node);
bool cc_prim_can_post(const CcGraph *g, const int *chain, int n, int node);
CcPrim *cc_prim_build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err);
CC_MUST int cc_prim_run(const CcPrim *prim, const CcHost *host, CcErr *err);

/* plan.c */
/* made[value]: it exists outside the step that makes it (an output, or read by another step). */
void cc_plan_made(const CcPlan *plan, const CcGraph *g, const bool *live, bool *made, int *step_of);
/* Fills plan->drop and the steps' drop lists from the last uses in the order of the steps. */
CC_MUST int cc_plan_lifetimes(CcPlan *plan, const CcGraph *g, const bool *made, CcErr *err);
void cc_plan_reuse(CcPlan *plan, const CcGraph *g); /* after lifetimes */

#endif
