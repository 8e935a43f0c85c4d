/* gen: printers of loop IR, and the reference executor. A kernel is one or two loops, rows and
 * elements of a row; the launcher (run) walks the dims outside of them, so one kernel serves every
 * rank. */
#ifndef CC_GEN_H
#define CC_GEN_H

#include "../loop/loop.h"

/* What a kernel is called with. Only the accesses that the loop has are filled. */
typedef struct CcKernelArg {
    int64_t n, rows; /* both >= 1 */
    struct {
        char *at;          /* first element of the first row */
        int64_t row, step; /* bytes to the next row; to the next element (for CC_STEP_ANY) */
    } a[CC_LOOP_MAX_ACCESS];
} CcKernelArg;
typedef void (*CcKernelFn)(const CcKernelArg *arg);

/* What LLVM text is printed for. */
typedef struct CcTarget {
    int vector_bytes;                     /* 64, 32 or 16 */
    bool (*has_symbol)(const char *name); /* is there such a vector function (libmvec)? */
    bool f16;                             /* converts float16 in hardware */
} CcTarget;

/* LLVM IR of a kernel `void name(ptr arg)`. -1 with *err set where the target can't. */
CC_MUST int cc_gen_llvm(const CcLoop *loop, const CcTarget *target, const char *name, CcSbuf *out,
                        CcErr *err);
/* Does what the kernel does, by interpreting the loop IR: the oracle, and what serves when LLVM is
 * absent. */
void cc_gen_ref(const CcLoop *loop, const CcKernelArg *arg);

#endif
