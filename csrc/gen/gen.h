/* gen: printers of loop IR, and the reference executor. A kernel is one or two loops, rows and
 * elements of a row; the launcher (run) walks the dims outside of them, so one kernel serves every
 * rank. */
#ifndef CC_GEN_H
#define CC_GEN_H

#include "../loop/loop.h"

/* A loop of one sweep may be cut into pieces of its rows: each call leaves its partial results in `state`, and a last
 * one, which sees no elements, combines them. */
typedef enum CcSplit { CC_SPLIT_WHOLE, CC_SPLIT_PIECE, CC_SPLIT_FINISH } CcSplit;

/* What a kernel is called with. Only the accesses that the loop has are filled; what follows `rows` is for loops that
 * reduce. */
typedef struct CcKernelArg {
    int64_t n, rows; /* both >= 1 */
    int64_t count;   /* elements that a reduction takes */
    int64_t split;   /* CcSplit */
    int64_t pieces;  /* FINISH: of `state` */
    char *state;     /* PIECE, FINISH: cc_gen_state_bytes each */
    int64_t state_bytes;
    char *scratch; /* as many lines as the plan of sweeps keeps nodes, of scratch_bytes each */
    int64_t scratch_bytes;
    int64_t line[CC_LOOP_MAX_LINES]; /* sizes of the reduced dims that are not the vector loop */
    struct {
        char *at;          /* first element of the first row */
        int64_t row, step; /* bytes to the next row; to the next element (for CC_STEP_ANY) */
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
CC_MUST int cc_gen_llvm(const CcLoop *loop, const CcTarget *target, const char *name, CcSbuf *out,
                        CcErr *err);
/* Does what the kernel does, by interpreting the loop IR: the oracle, and what serves when LLVM is
 * absent. */
void cc_gen_ref(const CcLoop *loop, const CcKernelArg *arg);

#endif
