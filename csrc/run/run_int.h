/* run, private: what a plan is made of. A plan is immutable but for the spare call states of its
 * primitives and, where asked for, its profile. */
#ifndef CC_RUN_INT_H
#define CC_RUN_INT_H

#include "../dev/dev.h"
#include "../gen/gen.h"
#include "../pass/pass.h"
#include "run.h"

/* device.c: what a plan's kernels run on. */
typedef struct CcOnDevice {
    const CcCudaDevice *cuda; /* NULL: the CPU */
    int index;                /* torch's number of it */
    bool waits;               /* a GPU for tensors of the CPU: each kernel is waited for */
} CcOnDevice;
/* -1 with *err set: the graph is on a GPU that can't be used. */
CC_MUST int cc_device_choose(const CcGraph *g, CcOnDevice *out, CcErr *err);
/* CcGroupRules.loop: of the CPU, and of what gathers. */
bool cc_device_can(const CcGraph *g, int node, CcDtype deflt);
bool cc_device_can_map(const CcGraph *g, int node, CcDtype deflt); /* the reference executor */
bool cc_device_can_cuda(const CcGraph *g, int node, CcDtype deflt);
CcGraph *cc_device_graph(const CcGraph *g, const CcOnDevice *on); /* as passes see it; NULL: as it is */
void cc_device_restore(const CcOnDevice *on, CcType *t);          /* of such a graph, as the host knows it */

typedef struct CcPrimFamily CcPrimFamily;
typedef enum CcStepKind { CC_STEP_HOST, CC_STEP_KERNEL, CC_STEP_PRIMITIVE } CcStepKind;

typedef struct CcStep {
    CcStepKind kind;
    const int *node; /* nodes that this step does, in program order; HOST: one. Of the rewritten graph, */
    int32_t n_node;
    int32_t host;               /* HOST: that node in the given graph */
    bool narrowed;              /* computes only a part of what the graph says */
    bool turned;                /* its result lies in memory column by column */
    bool last;                  /* its result has channels innermost */
    bool follows;               /* HOST: a convolution whose operand or result has */
    int32_t drop0, n_drop;      /* values that die with this step: plan->drop[drop0 ..] */
    const CcPrimFamily *family; /* PRIMITIVE */
    void *work;                 /* KERNEL: CcLaunch; PRIMITIVE: what its family built */
    int64_t scratch;            /* where in the call's block it has what its family asked for */
} CcStep;

/* A value that the plan makes smaller than the graph says (pass/narrow.c). */
typedef struct CcNarrowed {
    int value;
    CcType type;
} CcNarrowed;

/* Two inputs, and the bytes that each takes from its first element on. */
typedef struct CcApart {
    int value[2];
    int64_t bytes[2];
} CcApart;

struct CcPlan {
    CC_VEC(CcStep) step;
    CC_VEC(int) drop;
    CC_VEC(CcNarrowed) narrowed;
    /* [value]: where it lies in the call's block; -1: the host makes it; -2 - v: in value v, which the host makes
     * (memory.c) */
    CC_VEC(int64_t) place;
    CC_VEC(bool) early; /* [value]: another one lies in it before it is made */
    int64_t block_bytes;
    CC_VEC(CcApart) apart; /* inputs of which one is written while the other is read: they may not overlap */
    CcArena *arena;        /* what the steps point to */
    CcOnDevice on;
    struct {
        uint16_t op;
        int32_t origin;
    } *node; /* of the rewritten graph, for cc_run_print */
    double compile_ms;
    uint64_t *spent_ns; /* [step], with CCOMPILE_PROFILE=1, else NULL */
    char *rewritten;    /* the graph behind all passes, with CCOMPILE_DUMP=graph, else NULL */
    uint64_t runs;
};

/* kcache.c: the machine code of a loop's body, from the cache of the process or compiled. NULL with
 * *err set. */
CcKernelFn cc_kcache_get(const CcLoop *loop, CcErr *err);
/* Whether plans that this thread makes may have kernels by LLVM. */
void cc_kcache_switch(bool on);
bool cc_kcache_on(void);
void cc_kcache_text(const CcLoop *loop, CcSbuf *out); /* its LLVM IR */
/* What it is compiled from, of the heap; NULL: there is no memory. */
void *cc_kcache_key(const CcLoop *loop, int *n_bytes);

/* vary.c: the loop, or the same one that reads those constants from memory in which it differs from others. */
CcLoop *cc_vary_constants(CcLoop *loop, CcArena *arena);

/* cudakernel.c: kernels of GPUs. */
typedef struct CcCudaKernel CcCudaKernel;
/* Compiles what is not there yet, as one program. _get tells what fails. */
void cc_cudakernel_need(const CcCudaDevice *device, CcLoop *const *loops, const CcCudaTuning *tunings, int n);
/* NULL with *err set */
const CcCudaKernel *cc_cudakernel_get(const CcCudaDevice *device, const CcLoop *loop, const CcCudaTuning *tuning,
                                      CcErr *err);
/* One of the kernels that a launch is made of, and its name. NULL with *err set. */
void *cc_cudakernel_part(const CcCudaKernel *kernel, int part, char *name, size_t n, CcErr *err);
void cc_cudakernel_text(const CcLoop *loop, const CcCudaTuning *tuning, CcSbuf *out); /* its CUDA C */

/* cudatune.c: the tuning of each loop on this device; all 0 is the printer's own. Measures what is not known yet. */
void cc_cudatune_choose(const CcOnDevice *on, CcLoop *const *loops, CcCudaTuning *out, int n);

/* launch.c: a kernel over the nest of its loop. */
typedef struct CcCudaWork CcCudaWork;
typedef struct CcLaunch {
    const CcLoop *loop;
    const CcCudaWork *cuda; /* NULL: on the CPU */
    CcKernelFn fn;          /* NULL: the reference executor */
    int64_t numel, rows;
    int64_t count;    /* elements that a reduction takes */
    int sweeps, kept; /* loop/sweep.c */
    /* the value whose memory it writes, by which node of the given graph. into -1: it makes what it stores; node -1:
     * the op made that value itself */
    int into, node;
    bool uncounted; /* CcNode.uncounted */
} CcLaunch;
void cc_launch_init(CcLaunch *launch, const CcLoop *loop); /* without its machine code */
/* Takes the loop (NULL: *err is set already) and finds its machine code, or leaves it to the reference executor. */
CC_MUST int cc_launch_make(CcLaunch *launch, const CcLoop *loop, CcErr *err);
/* A kernel that copies what lies as `from` says to where `to` says, or (NULL) fills it with a number. What is copied is
 * access 0, the result the last one. */
CC_MUST int cc_launch_copy(CcLaunch *launch, const CcType *from, const CcOperand *fill, const CcType *to,
                           CcArena *arena, CcErr *err);
void cc_launch_at(const CcLaunch *launch, char *const *at); /* [access]: its first element */
/* The same of some rows, by this thread: of a loop that does not reduce. */
void cc_launch_rows(const CcLaunch *launch, char *const *at, int64_t begin, int64_t end);
/* Where a kernel of the CPU finds an access that is a number: in `room`. */
char *cc_launch_number(const CcLoopAccess *access, const CcHost *host, double *room);
CC_MUST int cc_launch_run(const CcLaunch *launch, const CcHost *host, CcErr *err);

/* cudalaunch.c: its launch on a GPU; NULL with *err set. at, number: by access. */
CcCudaWork *cc_cudalaunch_make(const CcOnDevice *on, const CcLoop *loop, const CcCudaTuning *tuning, CcArena *arena,
                               CcErr *err);
const CcCudaTuning *cc_cudalaunch_tuning(const CcCudaWork *work);
/* Measures it, on memory of the bench. */
CC_MUST int cc_cudalaunch_time(const CcCudaWork *work, const CcLoop *loop, const CcCudaBench *bench, char *const *at,
                               const double *number, char *scratch, float *ms, CcErr *err);
bool cc_cudalaunch_waits(const CcCudaWork *work);        /* CcOnDevice.waits */
int64_t cc_cudalaunch_workspace(const CcCudaWork *work); /* bytes that it finds at host->scratch */
CC_MUST int cc_cudalaunch_run(const CcLaunch *launch, const CcHost *host, char *const *at, const double *number,
                              CcErr *err);

/* A family of library calls: what a group of kind CC_G_PRIM may become. The first node of a chain says the family
 * (prim.c). */
struct CcPrimFamily {
    const char *name;
    bool llvm; /* its calls are kernels */
    /* NULL: never. Where its first operand dies, may the result have that one's memory? */
    bool (*over)(const CcNode *node);
    bool several; /* its nodes may have several results, and it makes only those that somebody reads */
    bool (*can)(const CcGraph *g, int node);
    /* May `node` become the next post-op of chain[0..n)? NULL: no post-ops. */
    bool (*can_post)(const CcGraph *g, const int *chain, int n, int node);
    /* What `run` is called with, in the arena; NULL with *err set. */
    void *(*build)(const CcGraph *g, const int *chain, int n, CcArena *arena, CcErr *err);
    size_t (*scratch)(const void *work); /* bytes that `run` finds at host->scratch; NULL: none */
    int (*run)(const void *work, const CcHost *host, CcErr *err);
    void (*free)(void *work); /* what does not lie in the arena; NULL: nothing */
};
extern const CcPrimFamily CC_PRODUCTS, CC_CONCATS, CC_ATTENTIONS; /* product.c, concat.c, attn.c */
extern const CcPrimFamily CC_CONVS, CC_POOLS;                     /* conv.c, pool.c */
extern const CcPrimFamily CC_RESAMPLES, CC_CREATES;               /* resample.c, create.c */
extern const CcPrimFamily CC_RNNS, CC_SCATTERS;                   /* rnn.c, scatter.c */
const CcPrimFamily *cc_prim_family(const CcGraph *g, int node);   /* NULL: none for this op */
bool cc_prim_can(const CcGraph *g, int node);
bool cc_prim_can_post(const CcGraph *g, const int *chain, int n, int node);

/* Of a node; NULL when it has no such operand. */
const CcOperand *cc_prim_operand(const CcGraph *g, const CcNode *n, int i);
/* `count` ints from operand `at` on. */
bool cc_prim_ints(const CcGraph *g, const CcNode *n, int at, int count, int64_t *out);
/* f32, bf16 or f16 on the CPU with 1 to CC_DNNL_MAX_NDIM dims, none of them empty. */
bool cc_prim_float(const CcType *t);
bool cc_prim_plain(const CcType *t);      /* f32 */
bool cc_prim_operand_of(const CcType *t); /* may a post-op read it? */
CcTensorDesc cc_prim_desc(const CcType *t);
/* A value, -1 for none, becomes what it is a window of; -> the offset in it, bytes. */
int64_t cc_prim_base(const CcGraph *g, int *value);
/* Results that nobody reads become -1. */
void cc_prim_unread(const CcGraph *g, int *const *result, int n, CcArena *arena);
/* May the weights be kept packed? */
bool cc_prim_frozen(const CcGraph *g, int value);
/* May what they are cast to be kept? */
bool cc_prim_cast_once(const CcGraph *g, int value, CcDtype to);
/* Lets a call use what is kept packed (NULL: nothing) of this version of the weights, and drops that of weights that
 * have none. */
void cc_prim_version(CcPrimCall *call, CcPacked *packed, const CcHost *host, int weights);
const void *cc_prim_data(const CcHost *host, int value, int64_t offset); /* NULL for value -1 */
/* The post-op that an op of one operand is; -1: none. */
int cc_prim_unary(const CcNode *n);

/* product.c: is this product faster with its result turned (pass/turn.c)? */
bool cc_product_gains_turned(const CcGraph *g, int node);

/* choose.c: is the product of these weights, packed, faster by cc_gemm_run than by oneDNN? Measured once for each size,
 * and logged. */
bool cc_choose_own(const CcGemm *g);

/* plan.c */
void cc_plan_clear(CcPlan *plan); /* no steps */
/* made[value]: it exists outside the step that makes it (an output, or read by another step). */
void cc_plan_made(const CcPlan *plan, const CcGraph *g, const bool *live, bool *made, int *step_of);
/* Fills plan->drop and the steps' drop lists from the last uses in the order of the steps. */
void cc_plan_apart(CcPlan *plan, const CcGraph *g); /* fills plan->apart */
CC_MUST int cc_plan_lifetimes(CcPlan *plan, const CcGraph *g, const bool *made, CcErr *err);

/* memory.c */
/* Places for the values that only kernels and library calls touch; after lifetimes, whose drop lists it shortens. */
CC_MUST int cc_memory_plan(CcPlan *plan, const CcGraph *g, CcErr *err);

#endif
