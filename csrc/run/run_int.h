/* run, private: what a plan consists of. A plan is immutable except for spare call states of its primitives, choices and its
 * optional profile. */
#ifndef CC_RUN_INT_H
#define CC_RUN_INT_H

#include "../dev/dev.h"
#include "../gen/gen.h"
#include "../pass/pass.h"
#include "run.h"

/* device.c: the device that a plan's kernels run on. */
typedef struct CcOnDevice {
    const CcCudaDevice *cuda; /* NULL: the CPU */
    int index;                /* torch's index of the GPU */
    bool waits;               /* the GPU processes CPU tensors: waits for each kernel */
} CcOnDevice;
/* -1 with *err set: the graph is on a GPU that can't be used. */
CC_MUST int cc_device_choose(const CcGraph *g, CcOnDevice *out, CcErr *err);
/* CcGroupRules.loop: for the CPU, and for devices with fast gathers. */
bool cc_device_can(const CcGraph *g, int node, CcDtype deflt);
bool cc_device_can_map(const CcGraph *g, int node, CcDtype deflt); /* for the reference executor */
bool cc_device_can_cuda(const CcGraph *g, int node, CcDtype deflt);
CcGraph *cc_device_graph(const CcGraph *g, const CcOnDevice *on); /* the graph as passes see it; NULL: unchanged */
void cc_device_restore(const CcOnDevice *on, CcType *t);          /* undoes that renumbering in a type, for the host */

typedef struct CcPrimFamily CcPrimFamily;
typedef enum CcStepKind { CC_STEP_HOST, CC_STEP_KERNEL, CC_STEP_PRIMITIVE } CcStepKind;

typedef struct CcStep {
    CcStepKind kind;
    const int *node; /* nodes of this step, in program order; HOST: one. Nodes of the rewritten graph */
    int32_t n_node;
    int32_t host;               /* HOST: the node in the given graph */
    bool narrowed;              /* computes only a part of the recorded result */
    bool transposed;            /* stores its result column by column */
    bool channels_last;         /* its result is channels-last */
    bool follows;               /* HOST: a convolution with a channels-last operand or result */
    const char *why;            /* HOST: why not a kernel */
    int32_t drop0, n_drop;      /* values that die with this step: plan->drop[drop0 ..] */
    const CcPrimFamily *family; /* PRIMITIVE */
    void *work;                 /* KERNEL: CcLaunch; PRIMITIVE: built by its family */
    int64_t scratch;            /* offset of the family's scratch memory in the call's block */
} CcStep;

/* A value that the plan makes smaller than recorded (pass/narrow.c). */
typedef struct CcNarrowed {
    int value;
    CcType type;
} CcNarrowed;

/* An input's memory: the bytes from its first element on. */
typedef struct CcRange {
    int value;
    int64_t bytes;
} CcRange;

typedef struct CcApart {
    int range[2]; /* in CcPlan.range */
} CcApart;

/* Where a value is in a call (memory.c). */
typedef struct CcPlace {
    int64_t at; /* offset in the call's block; -1: in memory of the host ... */
    int of;     /* ... that it makes for this value: mostly the value itself */
    bool early; /* the host has made it: another value uses its memory first */
} CcPlace;

struct CcPlan {
    CC_VEC(CcStep) step;
    CC_VEC(int) drop;
    CC_VEC(CcNarrowed) narrowed;
    CC_VEC(CcPlace) place; /* [value] */
    int64_t block_bytes;
    int64_t apart_bytes;   /* what the values in the block would take without reuse */
    CC_VEC(CcRange) range; /* inputs that `apart` names, each once */
    CC_VEC(CcApart) apart; /* inputs that must not overlap: one is written while the other is read */
    CcArena *arena;        /* owns everything that the steps point to */
    CcOnDevice on;
    struct {
        uint16_t op;
        int32_t origin;
    } *node; /* of the rewritten graph, for cc_run_print */
    double compile_ms, passes_ms, kernels_ms, primitives_ms;
    uint64_t *spent_ns; /* [step], with CCOMPILE_PROFILE=1, else NULL */
    char *rewritten;    /* the graph after all passes, with CCOMPILE_DUMP=graph, else NULL */
    uint64_t runs;
};

/* kcache.c: machine code of loop bodies, from the process's cache or compiled. */
void cc_kcache_need(const CcLoop *loop);                  /* starts compiling it in parallel to this thread */
CcKernelFn cc_kcache_get(const CcLoop *loop, CcErr *err); /* NULL with *err set */
/* May plans that this thread makes use LLVM kernels? */
void cc_kcache_switch(bool on);
bool cc_kcache_on(void);
void cc_kcache_text(const CcLoop *loop, CcSbuf *out); /* its LLVM IR */
/* The source that it is compiled from, on the heap; NULL: out of memory. */
void *cc_kcache_key(const CcLoop *loop, int *n_bytes);

/* vary.c: the loop itself, or one that reads from memory the constants in which it differs from others. */
CcLoop *cc_vary_constants(CcLoop *loop, CcArena *arena);

/* cudakernel.c: GPU kernels. */
typedef struct CcCudaKernel CcCudaKernel;
/* Compiles unknown kernels as one program. _get reports failures. */
void cc_cudakernel_need(const CcCudaDevice *device, const CcLoop *const *loops, const CcCudaTuning *tunings, int n);
/* NULL with *err set */
const CcCudaKernel *cc_cudakernel_get(const CcCudaDevice *device, const CcLoop *loop, const CcCudaTuning *tuning,
                                      CcErr *err);
/* One of the kernels of a launch, and its name. NULL with *err set. */
void *cc_cudakernel_part(const CcCudaKernel *kernel, int part, char *name, size_t n, CcErr *err);
void cc_cudakernel_text(const CcLoop *loop, const CcCudaTuning *tuning, CcSbuf *out); /* its CUDA C */

/* cudatune.c: the tuning of each loop on this device; all 0 means the printer's own. Measures unknown loops. */
void cc_cudatune_choose(const CcOnDevice *on, const CcLoop *const *loops, CcCudaTuning *out, int n);

/* launch.c: a kernel over the nest of its loop. */
typedef struct CcCudaWork CcCudaWork;
typedef struct CcBoxes CcBoxes;
typedef struct CcWritten {
    int value, node; /* node: of the given graph; -1: the op itself made that value */
    bool counted;    /* not CcNode.uncounted */
} CcWritten;
typedef struct CcLaunch {
    const CcLoop *loop;
    const CcCudaWork *cuda; /* NULL: on the CPU */
    CcKernelFn fn;          /* NULL: the reference executor */
    const CcBoxes *boxes;   /* several loops, of which `loop` is the first; NULL: one */
    int64_t numel, rows;
    int64_t count;            /* number of elements of a reduction */
    int sweeps, kept;         /* loop/sweep.c */
    const CcWritten *written; /* pre-existing values that the kernel writes, one per writing node, in program order */
    int n_written;
} CcLaunch;
bool cc_launch_writes(const CcLaunch *launch, int value);  /* is this one of them? Other stores make their results. */
void cc_launch_init(CcLaunch *launch, const CcLoop *loop); /* everything but machine code */
/* Takes the loop (NULL: *err is set already) and finds its machine code, or uses the reference executor. */
CC_MUST int cc_launch_make(CcLaunch *launch, const CcLoop *loop, CcErr *err);
/* A kernel that copies from the layout of `from` to that of `to`, or (NULL) fills `to` with a number. Access 0 is
 * copied, the last one is the result. */
CC_MUST int cc_launch_copy(CcLaunch *launch, const CcType *from, const CcOperand *fill, const CcType *to,
                           CcArena *arena, CcErr *err);
void cc_launch_at(const CcLaunch *launch, char *const *at); /* [access]: its first element */
/* The same for some rows, on this thread, for a loop without reductions. */
void cc_launch_rows(const CcLaunch *launch, char *const *at, int64_t begin, int64_t end);
/* Where a CPU kernel finds an access that is a number: in `room`. */
char *cc_launch_number(const CcLoopAccess *access, const CcHost *host, double *room);
/* Finds the addresses of all accesses, with numbers in `room`. made: per store, the memory that the host made for
 * it; `first`: the host still has to make it. */
CC_MUST int cc_launch_find(const CcLaunch *launch, const CcHost *host, char **made, bool first, char **at, double *room,
                           CcErr *err);
CC_MUST int cc_launch_run(const CcLaunch *launch, const CcHost *host, CcErr *err);

/* boxes.c: a kernel of several loops, one per box. Is this join, padding or rolling faster that way than in torch? */
bool cc_boxes_pay(const CcGraph *g, const CcNode *n);
/* The caller fills in the launches and then settles them. NULL: out of memory. */
CcBoxes *cc_boxes_make(int n, CcArena *arena, CcLaunch **launches);
void cc_boxes_settle(CcBoxes *b);
CC_MUST int cc_boxes_run(const CcBoxes *b, const CcHost *host, CcErr *err);
void cc_boxes_print(const CcBoxes *b, CcSbuf *out); /* the loops of all boxes but the first */

/* cudalaunch.c: a launch on a GPU; NULL with *err set. at, number: per access. */
CcCudaWork *cc_cudalaunch_make(const CcOnDevice *on, const CcLoop *loop, const CcCudaTuning *tuning, CcArena *arena,
                               CcErr *err);
const CcCudaTuning *cc_cudalaunch_tuning(const CcCudaWork *work);
/* Measures it on memory of the bench. */
CC_MUST int cc_cudalaunch_time(const CcCudaWork *work, const CcLoop *loop, const CcCudaBench *bench, char *const *at,
                               const double *number, char *scratch, float *ms, CcErr *err);
bool cc_cudalaunch_waits(const CcCudaWork *work);        /* CcOnDevice.waits */
int64_t cc_cudalaunch_workspace(const CcCudaWork *work); /* bytes of scratch memory that it needs at host->scratch */
CC_MUST int cc_cudalaunch_run(const CcLaunch *launch, const CcHost *host, char *const *at, const double *number,
                              CcErr *err);

/* An operand or result of a library call: a value, -1: none, and the bytes in its memory before the first element. A
 * family reads operands as values of the graph, with 0 bytes; cc_prim_settle makes them what a run finds. */
typedef struct CcSlot {
    int value;
    int64_t at;
} CcSlot;

/* A family of library calls: what a group of kind CC_G_PRIM may become. The first node of a chain determines the
 * family (prim.c). */
struct CcPrimFamily {
    const char *name;
    /* May the result reuse the memory of the first operand, if that dies? NULL: never. */
    bool (*over)(const CcNode *node);
    bool several; /* its nodes may have several results; it makes only those that are read */
    bool (*can)(const CcGraph *g, int node);
    /* May `node` become the next post-op of chain[0..n)? NULL: no post-ops. */
    bool (*can_post)(const CcGraph *g, const int *chain, int n, int node);
    /* Builds the argument of `run`, in the arena; NULL with *err set. */
    void *(*build)(const CcGraph *g, const int *chain, int n, CcArena *arena, CcErr *err);
    size_t (*scratch)(const void *work); /* bytes that `run` needs at host->scratch; NULL: none */
    int (*run)(const void *work, const CcHost *host, CcErr *err);
    const char *(*way)(const void *work); /* the implementation that runs, for reports; NULL: there is one */
    void (*free)(void *work);             /* frees what is not in the arena; NULL: nothing */
};
extern const CcPrimFamily CC_PRODUCTS, CC_ATTENTIONS;           /* product.c, attn.c */
extern const CcPrimFamily CC_CONVS;                             /* convolution.c */
extern const CcPrimFamily CC_RNNS, CC_SCATTERS;                 /* rnn.c, scatter.c */
const CcPrimFamily *cc_prim_family(const CcGraph *g, int node); /* NULL: none for this op */
bool cc_prim_can(const CcGraph *g, int node);
bool cc_prim_can_post(const CcGraph *g, const int *chain, int n, int node);

/* An operand of a node; NULL when it has no such operand. */
const CcOperand *cc_prim_operand(const CcGraph *g, const CcNode *n, int i);
/* f32, bf16 or f16 on the CPU with 1 to CC_DNNL_MAX_NDIM dims, none of size 0. */
bool cc_prim_float(const CcType *t);
bool cc_prim_f32(const CcType *t);        /* f32 */
bool cc_prim_operand_of(const CcType *t); /* may a post-op read it? */
CcTensorDesc cc_prim_desc(const CcType *t);
/* Lets an operand name the value that has the memory: the base, where it is a window. */
void cc_prim_settle(const CcGraph *g, CcSlot *slot);
/* Sets results that nobody reads to -1. */
void cc_prim_unread(const CcGraph *g, int *const *result, int n, CcArena *arena);
/* May the weights be kept packed? */
bool cc_prim_frozen(const CcGraph *g, int value);
/* May the cast weights be kept? */
bool cc_prim_cast_once(const CcGraph *g, int value, CcDtype to);
/* Lets a call use the packed copy (NULL: none) of this version of the weights, and drops copies of weights without a
 * version. */
void cc_prim_version(CcPrimCall *call, CcPacked *packed, const CcHost *host, int weights);
const void *cc_prim_data(const CcHost *host, CcSlot slot); /* NULL where there is no such operand, or no data */
bool cc_prim_binary(const CcGraph *g, const CcNode *n, CcIn_add *in); /* a + b (alpha 1) or a * b */
int cc_prim_unary(const CcNode *n);                                   /* the post-op of a unary op; -1: none */

/* product.c: is this product faster with its result transposed (pass/transpose.c)? */
bool cc_product_gains_transposed(const CcGraph *g, int node);

/* settings.c: tells of each environment variable that has an unknown value. */
void cc_settings_check(void (*tell)(const CcErr *err));

/* choose.c: which of several ways is the fastest here. */
enum { CC_CHOICE_WAYS = 8 };
/* What a family can choose from. `desc` describes a step, `ctx` is a call of it whose result is undefined afterwards. */
typedef struct CcChoiceKind {
    const char *name;                                   /* "product" */
    const char *const *way;                             /* names of the ways */
    int n;                                              /* of them, at most CC_CHOICE_WAYS */
    void (*write_sizes)(const void *desc, CcSbuf *out); /* for events */
    void (*write_key)(const void *desc,
                      CcSbuf *out); /* all that the times depend on; steps of equal keys share a choice */
    /* Before its first run; *bytes: of scratch memory that a run needs. */
    int (*make)(void *ctx, int way, size_t *bytes, CcErr *err);
    int (*run)(void *ctx, int way, char *scratch, CcErr *err);
    /* Before each timed run: the weights are as a model's call finds them. cold: evicted, unless runs do that. */
    void (*advance)(void *ctx, int way, bool cold);
} CcChoiceKind;
typedef struct CcChoice {
    const CcChoiceKind *kind;
    const void *desc;
    unsigned ways;       /* bits: the ways that can run it */
    int rule;            /* taken without a measurement, and where it is hardly slower */
    bool pays;           /* large enough to be measured, and not too large */
    int64_t input_bytes; /* of the plan: do its weights stay in the caches between calls? */
} CcChoice;
bool cc_choose_may(const CcChoice *c);  /* several ways, and does measuring pay? */
int cc_choose_known(const CcChoice *c); /* an earlier measurement's way, in this process or on disk; -1: none */
int cc_choose_measure(const CcChoice *c, void *ctx); /* any thread */
/* Scratch memory of a way that was chosen after the plan was laid out: `spare` keeps it between runs; NULL: one uses it. */
CC_MUST int cc_choose_take(_Atomic(char *) *spare, size_t bytes, char **out, CcErr *err);
void cc_choose_give(_Atomic(char *) *spare, char *scratch);

/* convcall.c: a convolution and what follows it, by our own code or oneDNN. */
enum { CC_CONV_MAX_NORM = 4096 }; /* channels of a batch norm: its scale and shift are on the stack */
typedef struct CcConvNorm {       /* values */
    int weight, bias, mean, var;  /* -1: none */
    CcDtype dtype[4];             /* theirs */
    float eps;
    int64_t channels;
    int post; /* post-op of the scale; the shift is the next one; -1: no batch norm */
} CcConvNorm;
typedef struct CcConvReorder { /* a channels-last copy in the step's scratch memory */
    bool is;
    CcLaunch launch;
    int64_t at, bytes;
} CcConvReorder;
typedef struct CcConv {
    CcConvReorder reorder[2]; /* of src, copied before; of dst, copied after */
    CcPacked *packed;         /* for frozen weights, else NULL */
    CcPrim *prim;             /* NULL: our own code */
    const CcPrimDesc *desc;   /* of a primitive that is made when it is needed */
    CcConvShape image;        /* of our own code */
    bool clamps;              /* a pass over the primitive's result clamps it to the image's bounds */
    struct CcConv *wide;      /* our own code: the convolution before this one, computed row by row; NULL: none */
    struct CcConvWays *ways;  /* other ways of running it; NULL: there is one */
    CcSlot more;              /* our own code: what is added */
    CcDtype bias_dtype;
    CcSlot src, weights, bias, post[CC_DNNL_MAX_POST];
    int dst; /* value */
    CcConvNorm norm;
} CcConv;
size_t cc_convcall_bytes(const CcConv *conv); /* of scratch memory that a run needs */
CC_MUST int cc_convcall_run(const CcConv *conv, const CcHost *host, void *dst, char *scratch, CcErr *err);

/* convways.c: which way of running a convolution is the fastest here. */
typedef struct CcConvWays CcConvWays;
/* One chain by our own code, by oneDNN on channels-last tensors, and by oneDNN in its blocked layouts, as eager runs it.
 * NULL: can't run it. */
typedef struct CcConvCandidates {
    CcConv *own, *library, *blocked;
    const CcConv *rule; /* one of them */
    bool layouts;       /* in half precision: `library` also with its weights in oneDNN's other layout */
} CcConvCandidates;
const CcChoiceKind *cc_convways_kind(void);
/* `desc` describes the chain. NULL: out of memory. */
CcConvWays *cc_convways_make(const CcConvCandidates *c, const CcPrimDesc *desc, int64_t input_bytes, CcArena *arena);
CcConv *cc_convways_known(CcConvWays *ways,
                          CcConv *rule); /* the way to begin with: of an earlier choice, or the rule's */
/* Runs it by the fastest way, which the first run finds. `rule`: the way that it began with. */
CC_MUST int cc_convways_run(CcConvWays *ways, CcConv *rule, const CcHost *host, void *dst, CcErr *err);
const char *cc_convways_name(const CcConvWays *ways, const CcConv *rule); /* of the way that runs; ways may be NULL */
void cc_convways_clear(CcConvWays *ways);                                 /* frees all that is not in the arena */

/* ways.c: the implementations of one product. Packed ones keep packed copies of frozen weights. */
typedef enum CcWayKind {
    CC_WAY_OWN, /* dev/gemm.c */
    CC_WAY_ONEDNN,
    CC_WAY_BLAS, /* dev/blas.c */
    CC_WAY_OWN_PACKED,
    CC_WAY_ONEDNN_PACKED,
    CC_WAYS
} CcWayKind;
#define CC_WAY_BIT(way) (1u << CC_WAY_##way)
typedef struct CcWay {
    CcWayKind kind;
    CcGemm gemm;      /* own loops and BLAS */
    CcPrim *prim;     /* oneDNN, else NULL */
    CcPacked *packed; /* of packed ways, else NULL */
} CcWay;
const char *cc_ways_name(CcWayKind kind);
const CcChoiceKind *cc_ways_kind(void);
/* The choice between them; `desc` has to outlive it. */
CcChoice cc_ways_choice(const CcPrimDesc *d, bool frozen, CcWayKind rule, int64_t input_bytes);
/* Measures on the operands of a call. Any thread. */
CcWayKind cc_ways_measure(const CcChoice *c, const CcPrimCall *call);
unsigned cc_ways_of(const CcPrimDesc *d, bool frozen); /* a bit for each way that can run it */
CC_MUST int cc_ways_make(CcWay *w, CcWayKind kind, const CcPrimDesc *d, CcErr *err);
void cc_ways_clear(CcWay *w);         /* frees what cc_ways_make has allocated */
size_t cc_ways_bytes(const CcWay *w); /* of scratch memory that a run needs */
CC_MUST int cc_ways_run(const CcWay *w, const CcPrimCall *call, CcErr *err);

/* why.c: why torch runs a node that no back-end takes. */
const char *cc_why_torch(const CcGraph *g, int node, const CcGroupRules *rules);

/* plan.c */
void cc_plan_clear(CcPlan *plan); /* removes all steps */
/* The step's ops with their numbers in the recording: "mul#1 add#2" */
void cc_plan_ops_text(const CcPlan *plan, int step, CcSbuf *out);
/* made[value]: it exists outside its step (an output, or read by another step). */
void cc_plan_made(const CcPlan *plan, const CcGraph *g, const bool *live, bool *made, int *step_of);
CC_MUST int cc_plan_apart(CcPlan *plan, const CcGraph *g, CcErr *err); /* fills plan->range and plan->apart */
/* Fills plan->drop and the steps' drop lists from the last uses, in step order. */
CC_MUST int cc_plan_lifetimes(CcPlan *plan, const CcGraph *g, const bool *made, CcErr *err);

/* memory.c */
/* Places the values that only kernels and library calls touch; runs after lifetimes and shortens its drop lists. */
CC_MUST int cc_memory_plan(CcPlan *plan, const CcGraph *g, CcErr *err);

#endif
