/* run: the pipeline from a graph to a plan, and the plan's executor.
 *
 * A plan is a list of steps over the graph's values: HOST (the host replays a node by callback), KERNEL (one fused
 * loop nest), PRIMITIVE (one library call with post-ops). The core never touches Python: the host makes, finds and
 * drops tensors. A compiled plan is immutable, except that
 * its first run may change how products are computed (choose.c); several threads may run it at once. */
#ifndef CC_RUN_H
#define CC_RUN_H

#include "../ir/ir.h"

typedef struct CcPlan CcPlan;

typedef struct CcRunOptions {
    /* the host runs every node (autograd is on, verification failed, backend="eager" ...) */
    bool host_only;
    bool no_llvm, no_dnnl; /* disabled by option or missing */
    /* CcDtype of torch.get_default_dtype(). 0: unknown; comparing an integer tensor with a float number is then a
     * HOST step */
    uint8_t default_dtype;
    bool autotune; /* measures block sizes and vector widths of GPU kernels (cudatune.c) */
    bool measures; /* measures in the first run which implementation of a product is the fastest (choose.c) */
    /* torch.use_deterministic_algorithms: torch runs writes at indices where kernels would leave open which element
     * stays, or the order of sums */
    bool ordered;
    bool fills;      /* deterministic mode also makes torch run torch.empty, which then fills the memory */
    bool convolves;  /* the host has `convolve` */
    bool no_library; /* torch's own oneDNN is disabled */
} CcRunOptions;

#define CC_NO_VERSION UINT64_MAX
/* Callbacks of one run. Values are numbered as in the graph. */
typedef struct CcHost {
    void *ctx;
    /* Data pointer of the value's first element; the value exists (an input, or made before). NULL on failure. */
    void *(*data)(void *ctx, int value);
    /* Makes the output tensor for a value (of type cc_run_type: size, stride, dtype, device; dense) and returns its
     * data pointer. */
    void *(*make)(void *ctx, int value);
    /* Replays a node; its inputs exist. 0 or -1. */
    int (*call)(void *ctx, int node);
    /* Takes n bools, each true with probability p, from torch's generator on the CPU, as Tensor.bernoulli_ does, on behalf of
     * this node. 0 or -1. */
    int (*draw)(void *ctx, int node, double p, void *out, int64_t n);
    /* Replays a convolution and gives the result the layout of cc_run_type. torch does that itself for a
     * channels-last operand, so the host copies an operand in another layout. */
    int (*convolve)(void *ctx, int node);
    /* Changes with every write to an input's memory that torch counts; CC_NO_VERSION: unknown. Versions from
     * CC_VERSION_UNIQUE on belong to this tensor alone, in the whole process. */
    uint64_t (*version)(void *ctx, int value);
    /* A step is about to write pre-existing memory on behalf of this node. The value has a tensor, or is -1: memory
     * that only the plan knows. counted: torch counts the write in `_version`. 0 or -1; NULL in hosts without
     * versions. */
    int (*writing)(void *ctx, int value, int node, bool counted);
    /* A number that may differ in each call (CC_IN_NUMBER). */
    double (*number)(void *ctx, int number);
    /* The current stream of a GPU, given by its number; kernels are launched on it. 0 or -1. NULL in CPU graphs. */
    int (*stream)(void *ctx, int device, void **out);
    /* Allocates memory that the call owns until `unblock`; work on the stream may still use it after that. NULL on
     * failure. device -1: CPU memory. */
    void *(*block)(void *ctx, int device, int64_t bytes, void **data);
    void (*unblock)(void *ctx, void *block);
    /* The value is not used any more and is not an output. */
    void (*drop)(void *ctx, int value);
    void *scratch; /* scratch memory of the current step, set by the runner; NULL otherwise */
} CcHost;

/* Compiles. NULL with *err set only when out of memory: what no back-end can do becomes HOST steps, with an event. */
CC_MUST CcPlan *cc_run_compile(const CcGraph *g, const CcRunOptions *options, CcErr *err);
/* The type that `make` must give a value: the graph's type, or a smaller one if only part of the value is ever read.
 * `g`: the graph that was compiled. */
const CcType *cc_run_type(const CcPlan *plan, const CcGraph *g, int value);
/* Runs the plan; 0, or -1 with *err set (CC_E_HOST: a callback failed and set its own error). *step (may be NULL)
 * receives the number of finished steps. */
CC_MUST int cc_run_exec(const CcPlan *plan, const CcHost *host, int *step, CcErr *err);
void cc_run_free(CcPlan *plan);
/* The GPU that the kernels run on; -1: none. *forced: it processes CPU tensors (CCOMPILE_BACKEND=cuda). */
int cc_run_gpu(const CcPlan *plan, bool *forced);
void cc_memory_trim(void); /* frees the memory that is kept for the next call */

typedef struct CcPlanStats {
    int steps, host_steps, kernels, primitives, fused_nodes;
    int launches; /* host cost of a run, in kernel launches; torch's own calls count as about two */
    /* passes, kernels and primitives are parts of the whole; LLVM's own process compiles kernels meanwhile */
    double compile_ms, passes_ms, kernels_ms, primitives_ms;
    int64_t block_bytes, apart_bytes; /* memory of intermediate results in a call; without reuse */
} CcPlanStats;
/* The next node of the graph that the host runs, from step *step on (first 0), which is moved behind it; -1: none. */
int cc_run_hosted(const CcPlan *plan, int *step);
int64_t cc_run_memory(const CcPlan *plan); /* bytes of the block for values between steps */
void cc_run_stats(const CcPlan *plan, CcPlanStats *out);
/* For reports: one step of a plan. */
typedef struct CcPlanStep {
    const char *kind; /* "kernel", the family of a library call, or "torch" */
    const char *way;  /* which implementation of several; NULL: there is one */
    const char *why;  /* torch: why not a kernel */
    int n_node;
    double ms; /* with CCOMPILE_PROFILE=1, the mean; else 0 */
} CcPlanStep;
CcPlanStep cc_run_step(const CcPlan *plan, int step); /* 0 <= step < CcPlanStats.steps */
/* The node of the given graph that the step's i-th node implements, wholly or in part; *op: what it computes. */
int cc_run_step_node(const CcPlan *plan, int step, int i, const char **op);
/* The source of the step's kernel, with CCOMPILE_DUMP=kernels: loop, and LLVM IR or CUDA C */
void cc_run_step_text(const CcPlan *plan, int step, CcSbuf *out);
/* prints steps and groups; with CCOMPILE_PROFILE=1 the mean ms of each; with CCOMPILE_DUMP=kernels the LLVM IR */
void cc_run_print(const CcPlan *plan, CcSbuf *out);
void cc_run_print_fused(const CcPlan *plan, CcSbuf *out); /* steps that perform several ops */
void cc_run_print_code(const CcPlan *plan, CcSbuf *out);  /* loops, and the LLVM IR or CUDA C of each kernel */

/* Paths of the shared libraries, set once by the package before the first compile (NULL: not installed). Libraries
 * are loaded lazily. */
void cc_run_libraries(const char *llvmlite, const char *compiler, const char *onednn, const char *nvrtc);
/* Fortran's sgemm of the BLAS that torch uses (NULL: none), and torch's version. */
void cc_run_blas(void *sgemm, const char *torch);
/* Number of threads for kernels, as in torch.set_num_threads; the front end keeps it up to date. */
void cc_run_threads(int n);
/* n elements of Tensor.bernoulli_(p) as bytes, from the state of torch's generator on the CPU (at::mt19937), which
 * advances. left: 1 + the words of the block that are not used yet. -> `left` after that */
enum { CC_RUN_RANDOM_WORDS = 624 };
int cc_run_bernoulli(uint32_t state[CC_RUN_RANDOM_WORDS], int left, double p, uint8_t *out, int64_t n);
/* A version for contents of CPU memory, like a unique CcHost.version. */
uint64_t cc_run_content(const void *at, int64_t bytes);
/* Freezing pays for parameters up to this many bytes: each call would read a larger one completely. */
int64_t cc_run_freezes(void);
/* ---- artifacts.c: files of the kernel cache, to be moved to another machine ---- */
typedef struct CcRunFile {
    const char *kind;  /* "kernel", "verdict", "cubin", "tuning" */
    char *key, *image; /* freed by cc_artifacts_free */
    size_t n_key, n_image;
} CcRunFile;
/* File number i of those that this process has used; false: there are not so many. key NULL: it is gone. */
bool cc_artifacts_used(int i, CcRunFile *out);
/* Adds a file to the cache. false: it can't be written. */
bool cc_artifacts_add(const CcRunFile *file);
void cc_artifacts_free(CcRunFile *file);
/* The CPU, as keys of files name it; the caller frees the text. */
char *cc_artifacts_machine(void);
/* "LLVM 20.1 (llvmlite), oneDNN 3.2.0 (gomp), 2 threads, avx512": for `doctor` and reports. Loads libraries that are
 * not loaded yet. */
void cc_run_describe(CcSbuf *out);

#endif
