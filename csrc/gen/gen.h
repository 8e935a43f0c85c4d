/* gen: printers of loop IR, and the reference executor. A kernel is up to three loops, blocks of rows, rows and
 * elements of a row; the launcher (run) walks the dims outside of them, so one kernel serves every rank. */
#ifndef CC_GEN_H
#define CC_GEN_H

#include "../loop/loop.h"

/* A loop of one sweep may be cut into pieces of its rows: each call leaves its partial results in `state`, and a last
 * one, which sees no elements, combines them. */
typedef enum CcSplit { CC_SPLIT_WHOLE, CC_SPLIT_PIECE, CC_SPLIT_FINISH } CcSplit;

/* What a kernel is called with. Only the accesses that the loop has are filled; what follows `blocks` is for loops that
 * reduce, and they have one block. */
typedef struct CcKernelArg {
    int64_t n, rows, blocks; /* all >= 1 */
    int64_t count;           /* elements that a reduction takes */
    int64_t split;           /* CcSplit */
    int64_t pieces;          /* FINISH: of `state` */
    char *state;             /* PIECE, FINISH: cc_gen_state_bytes each */
    int64_t state_bytes;
    char *scratch; /* as many lines as the plan of sweeps keeps nodes, of scratch_bytes each */
    int64_t scratch_bytes;
    int64_t line[CC_LOOP_MAX_LINES]; /* sizes of the reduced dims that are not the vector loop */
    struct {
        char *at;                 /* first element of the first row */
        int64_t block, row, step; /* bytes to the next block; row; element (for CC_STEP_ANY) */
        int64_t line[CC_LOOP_MAX_LINES];
    } a[CC_LOOP_MAX_ACCESS];
} CcKernelArg;
typedef void (*CcKernelFn)(const CcKernelArg *arg);

/* What LLVM text is printed for. */
typedef struct CcTarget {
    int vector_bytes;                     /* 64, 32 or 16 */
    bool (*has_symbol)(const char *name); /* is there such a vector function (libmvec)? */
    bool f16;                             /* converts float16 in hardware */
} CcTarget;

/* Bytes of a partial result of one row; of a scratch line. n as in the argument; elements: of a row. */
int64_t cc_gen_state_bytes(const CcLoop *loop, int64_t n);
int64_t cc_gen_scratch_bytes(const CcLoop *loop, int64_t n, int64_t elements);

/* LLVM IR of a kernel `void name(ptr arg)`. -1 with *err set where the target can't. */
CC_MUST int cc_gen_llvm(const CcLoop *loop, const CcTarget *target, const char *name, CcSbuf *out, CcErr *err);

/* ---- CUDA C. A program is the prelude and kernels `extern "C" __global__ void name_0(const name_arg)`, name_1 ...
 * Sizes and strides are in the argument: the text knows ranks, how accesses step and which schedule the sizes ask for,
 * and no more, so equal text is an equal kernel. Compile with --fmad=false: eager rounds products, too. */
enum { CC_CUDA_MAX_ARG = 4000, CC_CUDA_MAX_PARTS = 4 };

typedef struct CcCudaTuning {
    /* of a block; elements that a thread takes at once. Powers of 2; 0: the printer's own choice */
    int threads, vector;
} CcCudaTuning;

typedef struct CcCudaLaunch {
    int n; /* kernels that run one after the other: name_0, name_1 ...; 0: there is nothing to do */
    struct {
        int64_t grid;
        int threads, shared; /* shared: dynamic shared memory, bytes */
    } part[CC_CUDA_MAX_PARTS];
    int64_t workspace; /* bytes of device memory that the parts share; 0: none */
    CcCudaTuning tuning;
} CcCudaLaunch;

/* What every program begins with: helper functions, types of half precision. */
void cc_gen_cuda_prelude(CcSbuf *out);
/* The kernels of a loop. NULL as tuning: the printer's choice. -1 with *err set where it is refused. */
CC_MUST int cc_gen_cuda(const CcLoop *loop, const CcCudaTuning *tuning, const char *name, CcSbuf *out, CcErr *err);
/* How they are launched on a device of so many multiprocessors. */
void cc_gen_cuda_launch(const CcLoop *loop, const CcCudaTuning *tuning, int processors, CcCudaLaunch *out);
/* The argument of all parts -> bytes, a multiple of 8. at: of each access, as a kernel is launched on the CPU (offset
 * included; CC_PLACE_ZERO + offset for a place; not read for a number). number: of each access that has one; may be
 * NULL when none has. out: CC_CUDA_MAX_ARG bytes. The first words are the accesses', one each: the pointer, the place,
 * or the number as a double; then, if the launch has a workspace, that. All that follows is the same in each call. */
int cc_gen_cuda_argument(const CcLoop *loop, const CcCudaLaunch *launch, char *const *at, const double *number,
                         char *workspace, void *out);

/* Does what the kernel does, by interpreting the loop IR: the oracle, and what serves when LLVM is
 * absent. */
void cc_gen_ref(const CcLoop *loop, const CcKernelArg *arg);

#endif
