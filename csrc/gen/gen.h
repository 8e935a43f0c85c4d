/* gen: prints loop IR as LLVM IR or CUDA C, and executes it (the reference executor). A CPU kernel has up to three
 * loops: blocks of rows, rows, elements of a row. The launcher (run) iterates over the outer dims, so one kernel serves
 * every rank. */
#ifndef CC_GEN_H
#define CC_GEN_H

#include "../loop/loop.h"

/* A loop of one sweep may split its rows into pieces: a PIECE call stores its partial results in `state`; the FINISH
 * call, which reads no elements, combines them. */
typedef enum CcSplit { CC_SPLIT_WHOLE, CC_SPLIT_PIECE, CC_SPLIT_FINISH } CcSplit;

/* A kernel's argument. Only the loop's own accesses are filled. The members behind `blocks` serve loops that reduce,
 * which have one block. */
typedef struct CcKernelArg {
    int64_t n, rows, blocks; /* all >= 1 */
    int64_t count;           /* elements reduced into one result */
    int64_t split;           /* CcSplit */
    int64_t pieces;          /* FINISH: partial results in `state` */
    char *state;             /* PIECE, FINISH: cc_gen_state_bytes for each piece */
    int64_t state_bytes;
    char *scratch; /* one line of scratch_bytes for each node that the sweep plan keeps */
    int64_t scratch_bytes;
    int64_t line[CC_LOOP_MAX_LINES]; /* sizes of the reduced dims outside the vector loop */
    struct {
        char *at;                 /* first element of the first row */
        int64_t block, row, step; /* byte strides of blocks, rows, and (CC_STEP_ANY) elements */
        int64_t line[CC_LOOP_MAX_LINES];
    } a[CC_LOOP_MAX_ACCESS];
} CcKernelArg;
typedef void (*CcKernelFn)(const CcKernelArg *arg);

/* The CPU that LLVM IR is printed for. */
typedef struct CcTarget {
    int vector_bytes;                     /* 64, 32 or 16 */
    bool (*has_symbol)(const char *name); /* does libmvec have this function? */
    bool f16;                             /* converts float16 in hardware */
} CcTarget;

/* Bytes of one row's partial results, and of a scratch line. n as in CcKernelArg; elements: length of a row. */
int64_t cc_gen_state_bytes(const CcLoop *loop, int64_t n);
int64_t cc_gen_scratch_bytes(const CcLoop *loop, int64_t n, int64_t elements);

/* LLVM IR of a kernel `void name(ptr arg)`. -1 with *err set if the target does not support it. */
CC_MUST int cc_gen_llvm(const CcLoop *loop, const CcTarget *target, const char *name, CcSbuf *out, CcErr *err);

/* ---- CUDA C. A program is the prelude and kernels `extern "C" __global__ void name_0(const name_arg)`, name_1 ...
 * The argument holds sizes and strides; the text depends only on ranks, step classes and the schedule, so equal text is
 * an equal kernel. Compile with --fmad=false: eager rounds products before it adds them. */
enum { CC_CUDA_MAX_ARG = 4000, CC_CUDA_MAX_PARTS = 4 };

typedef struct CcCudaTuning {
    /* threads of a block; elements that a thread processes at a time. Powers of 2; 0: the printer chooses */
    int threads, vector;
} CcCudaTuning;

typedef struct CcCudaLaunch {
    int n; /* kernels to launch in order: name_0, name_1 ...; 0: the loop is empty */
    struct {
        int64_t grid;
        int threads, shared; /* shared: dynamic shared memory, bytes */
    } part[CC_CUDA_MAX_PARTS];
    int64_t workspace; /* bytes of device memory that the parts share; 0: none */
    CcCudaTuning tuning;
} CcCudaLaunch;

/* The prelude of every program: helper functions, half-precision types. */
void cc_gen_cuda_prelude(CcSbuf *out);
/* Prints the kernels of a loop. tuning NULL: the printer chooses. -1 with *err set: unsupported. */
CC_MUST int cc_gen_cuda(const CcLoop *loop, const CcCudaTuning *tuning, const char *name, CcSbuf *out, CcErr *err);
/* Launch configuration for a device with `processors` multiprocessors. */
void cc_gen_cuda_launch(const CcLoop *loop, const CcCudaTuning *tuning, int processors, CcCudaLaunch *out);
/* Writes the argument of all parts to `out` (CC_CUDA_MAX_ARG bytes) -> its size, a multiple of 8. at: pointer of each
 * access as for a CPU kernel, offset included (CC_PLACE_ZERO + offset for a place; unread for a number). number: value
 * of each access that is a number; may be NULL if none is. The argument starts with one word per access: pointer,
 * place, or number as a double; then the workspace, if the launch has one. The rest is the same in every call. */
int cc_gen_cuda_argument(const CcLoop *loop, const CcCudaLaunch *launch, char *const *at, const double *number,
                         char *workspace, void *out);

/* Interprets the loop IR: the test oracle, and the fallback without LLVM. */
void cc_gen_ref(const CcLoop *loop, const CcKernelArg *arg);

#endif
