/* dev, private: what packed.c does for dnnl.c; LLVM, and the process that has it, for jit.c. */
#ifndef CC_DEV_INT_H
#define CC_DEV_INT_H

#include <stdatomic.h>

#include "dev.h"

typedef struct CcPackChunk CcPackChunk;
/* What a copy is made by, beside the weights: equal ones make equal copies. */
typedef enum CcPackKind { CC_PACK_DNNL, CC_PACK_GEMM, CC_PACK_IMAGE, CC_PACK_RECUR } CcPackKind;
typedef struct CcPackForm {
    int64_t kind, n[8];
} CcPackForm;
typedef struct CcPack {
    CcPackChunk *chunk; /* it lies in, NULL: in none */
    const void *from;
    uint64_t version;
    CcPackForm form;
    struct CcPack *next; /* on its shelf */
    bool shelved;
    atomic_int readers; /* and one for each CcPacked that keeps it */
    _Alignas(64) char at[];
} CcPack;

/* The copy of these weights, with a reader more; NULL: there is none. */
CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version, const CcPackForm *form);
/* with one reader; NULL: out of memory */
CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version, const CcPackForm *form);
void cc_packed_keep(CcPacked *packed, CcPack *pack); /* for the calls to come; it is filled */
void cc_packed_done(CcPack *pack);                   /* a reader less; NULL is fine */

/* ---- few.c: what cc_image_can and cc_image_run are for CC_IMAGE_FEW ---- */
bool cc_few_can(const CcImage *im);
CC_MUST int cc_few_run(const CcImage *im, const CcImageCall *call);

/* ---- vet.c: is a primitive right? Under dnnl.c's lock ---- */
int64_t cc_vet_work(const CcPrimDesc *d); /* multiplications */
/* A smaller one that is run in its place, where that pays. false: it is the same */
bool cc_vet_smaller(const CcPrimDesc *d, CcPrimDesc *out);
/* By key: 1 right; -1 wrong, *err says how; 0 not known */
CC_MUST int cc_vet_known(const char *key, size_t n, CcErr *err);
void cc_vet_keep(const char *key, size_t n, const CcErr *wrong); /* NULL: it is right */
/* -1: it can't be run; CC_E_VERIFY: it is wrong */
CC_MUST int cc_vet_run(CcPrim *p, const CcPrimDesc *d, CcErr *err);

/* ---- llvm.c; one thread at a time ---- */
CC_MUST int cc_llvm_ready(const char *path, CcErr *err); /* loads it, once */
/* Address of the function, never freed, and the object it came from (the caller's to free). */
void *cc_llvm_compile(const char *ir, const char *name, CcBlob *object, CcErr *err);
void cc_llvm_forget(void);
const char *cc_llvm_describe(void);

/* ---- worker.c: the other end of compiler.c; one thread at a time ---- */
/* What is written to the compiler's process, and what it answers; text or object follow. In memory of one machine. */
typedef struct CcWorkerAsk {
    uint64_t magic, bytes; /* of the text; 0: which LLVM is it? */
    char name[64];         /* of the function */
} CcWorkerAsk;
typedef struct CcWorkerAnswer {
    uint64_t magic, bytes;
    uint64_t failed; /* then it is a message */
} CcWorkerAnswer;
#define CC_WORKER_MAGIC UINT64_C(0x324b524f57434343)
typedef enum CcWorkerEnd {
    CC_WORKER_DONE,
    CC_WORKER_REFUSED, /* LLVM says no, or dies of this text: *err is why */
    CC_WORKER_ABSENT   /* there is no process: *err is why, or unset where none is wanted */
} CcWorkerEnd;
void cc_worker_program(const char *path); /* NULL: none */
CcWorkerEnd cc_worker_compile(const char *library, const char *ir, const char *name, CcBlob *object, CcErr *err);

#endif
