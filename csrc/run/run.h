/* run: the pipeline from a graph to a plan, and the plan's executor.
 *
 * A plan is a list of steps over the graph's values: HOST (replay this node by calling back), KERNEL (one fused loop
 * nest), PRIMITIVE (one oneDNN call with post-ops). The core never touches Python: tensors are made, found and dropped
 * by the host. A plan is immutable once compiled and may be run from several threads at once. */
#ifndef CC_RUN_H
#define CC_RUN_H

#include "../ir/ir.h"

typedef struct CcPlan CcPlan;

typedef struct CcRunOptions {
    /* every node by the host (autograd is on, verification failed, backend="eager" ...) */
    bool host_only;
    bool no_llvm, no_dnnl; /* switched off by option or missing */
    /* CcDtype of torch.get_default_dtype(); 0 = unknown: an integer tensor compared with a float number is then a HOST
     * step */
    uint8_t default_dtype;
    bool autotune; /* kernels of GPUs: block sizes and vector widths are measured (cudatune.c) */
    /* torch.use_deterministic_algorithms: writes at indices are torch's where kernels would leave open which of several
     * stays, or in which order sums are made */
    bool ordered;
    bool fills;      /* and what torch.empty gives is torch's, which fills it */
    bool convolves;  /* the host has `convolve` */
    bool no_library; /* torch's own oneDNN is switched off */
} CcRunOptions;

#define CC_NO_VERSION UINT64_MAX
/* Callbacks of one run. Values are numbered as in the graph. */
typedef struct CcHost {
    void *ctx;
    /* Data pointer of the value's first element; the value is available (an input, or made before). NULL on failure. */
    void *(*data)(void *ctx, int value);
    /* Makes the output tensor for a value (of cc_run_type: size, stride, dtype, device; dense) and gives its data
     * pointer. */
    void *(*make)(void *ctx, int value);
    /* Replays a node by the host; its inputs are available. 0 or -1. */
    int (*call)(void *ctx, int node);
    /* As `call`, of a convolution; its result lies as cc_run_type says. It does so by itself if what it reads lies so,
     * which is copied if it does not. */
    int (*convolve)(void *ctx, int node);
    /* Changes with every write to an input's memory that torch counts; CC_NO_VERSION: not known. From CC_VERSION_UNIQUE
     * on no other tensor in the process has it. */
    uint64_t (*version)(void *ctx, int value);
    /* A step is about to write memory that was there before, as this node says. The value has a tensor, or is -1: only
     * the plan knows that memory. counted: by torch, in `_version`. 0 or -1; NULL in hosts that keep no versions. */
    int (*writing)(void *ctx, int value, int node, bool counted);
    /* A number that is another one in each call (CC_IN_NUMBER). */
    double (*number)(void *ctx, int number);
    /* Of a GPU, by its number. NULL in graphs of the CPU. Its current stream, which kernels are given to; 0 or -1: */
    int (*stream)(void *ctx, int device, void **out);
    /* Memory that is the call's until `unblock`, which what was given to the stream may outlive; NULL on failure.
     * device -1: of the CPU. */
    void *(*block)(void *ctx, int device, int64_t bytes, void **data);
    void (*unblock)(void *ctx, void *block);
    /* The value is not used from here on and is no output. */
    void (*drop)(void *ctx, int value);
    void *scratch; /* of a step, which the runner sets; elsewhere NULL */
} CcHost;

/* Compiles; NULL with *err set only when memory ran out: whatever a back-end can't do becomes HOST steps (with an
 * event). */
CC_MUST CcPlan *cc_run_compile(const CcGraph *g, const CcRunOptions *options, CcErr *err);
/* What `make` is to make for a value: the graph's type, or a smaller one when only a part of the value is ever read.
 * `g`: the graph that was compiled. */
const CcType *cc_run_type(const CcPlan *plan, const CcGraph *g, int value);
/* Runs; 0, or -1 with *err set (CC_E_HOST: a callback failed and has its own error set). *step (may be NULL) tells how
 * many steps were finished. */
CC_MUST int cc_run_exec(const CcPlan *plan, const CcHost *host, int *step, CcErr *err);
void cc_run_free(CcPlan *plan);
/* The GPU that its kernels are on; -1: none. *forced: they do tensors of the CPU (CCOMPILE_BACKEND=cuda). */
int cc_run_gpu(const CcPlan *plan, bool *forced);
void cc_memory_trim(void); /* gives back the memory that waits for the next call */

typedef struct CcPlanStats {
    int steps, host_steps, kernels, primitives, fused_nodes;
    int launches; /* what a run costs the host, as so many launches of a kernel: torch's own calls take it about two */
    double compile_ms;
} CcPlanStats;
void cc_run_stats(const CcPlan *plan, CcPlanStats *out);
/* steps, groups; with CCOMPILE_PROFILE=1 the mean ms of each; with CCOMPILE_DUMP=kernels the LLVM IR */
void cc_run_print(const CcPlan *plan, CcSbuf *out);

/* Paths of the shared libraries, given once by the package before the first compile (NULL: not installed). Loaded
 * lazily. */
void cc_run_libraries(const char *llvmlite, const char *compiler, const char *onednn, const char *nvrtc);
/* Threads for kernels: as torch.set_num_threads says; the front keeps it up to date. */
void cc_run_threads(int n);
/* What stands in memory of the CPU, as a CcHost.version of the kind that is unique. */
uint64_t cc_run_content(const void *at, int64_t bytes);
/* Parameters of up to so many bytes are worth to be frozen: others would be read as a whole in each call. */
int64_t cc_run_freezes(void);
/* "LLVM 20.1 (llvmlite), oneDNN 3.2.0 (gomp), 2 threads, avx512": for `doctor` and reports. Loads what is not loaded
 * yet. */
void cc_run_describe(CcSbuf *out);

#endif
