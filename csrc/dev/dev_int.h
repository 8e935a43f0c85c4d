/* dev, private: packed weights, single-output convolutions, oneDNN's verifier, LLVM and its worker process. */
#ifndef CC_DEV_INT_H
#define CC_DEV_INT_H

#include <stdatomic.h>

#include "dev.h"

typedef struct CcPackChunk CcPackChunk;
/* The layout of a packed copy. Equal forms of equal weights give equal copies. */
typedef enum CcPackKind { CC_PACK_DNNL, CC_PACK_GEMM, CC_PACK_CONV, CC_PACK_RECUR } CcPackKind;
typedef struct CcPackForm {
    int64_t kind, n[8];
} CcPackForm;
typedef struct CcPack {
    CcPackChunk *chunk; /* owner of the memory; NULL: malloc'ed alone */
    size_t bytes;       /* of `at` */
    const void *from;
    uint64_t version;
    CcPackForm form;
    struct CcPack *next; /* in its bucket of shared copies */
    bool published;      /* other owners may find it */
    atomic_int readers;  /* running calls, and the CcPacked that keep it */
    _Alignas(64) char at[];
} CcPack;

/* The packed copy of these weights, with a reference for the caller; NULL: none. */
CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version, const CcPackForm *form);
/* An unfilled copy with one reference; NULL: out of memory. */
CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version, const CcPackForm *form);
void cc_packed_keep(CcPacked *packed, CcPack *pack); /* keeps a filled copy for later calls */
void cc_packed_done(CcPack *pack);                   /* drops a reference; NULL is fine */

/* ---- conv_one.c: cc_conv_can and cc_conv_run for CC_CONV_ONE ---- */
bool cc_conv_one_can(const CcConvShape *shape);
CC_MUST int cc_conv_one_run(const CcConvShape *shape, const CcConvCall *call);

/* ---- vet.c: checks that a primitive computes right results. Caller holds dnnl.c's lock ---- */
int64_t cc_vet_work(const CcPrimDesc *d); /* number of multiply-adds */
/* A smaller problem to check in place of a large one. false: *out equals *d. */
bool cc_vet_smaller(const CcPrimDesc *d, CcPrimDesc *out);
/* Looks a verdict up: 1 right; -1 wrong, *err says how; 0 unknown. */
CC_MUST int cc_vet_known(const char *key, size_t n, CcErr *err);
void cc_vet_keep(const char *key, size_t n, const CcErr *wrong); /* stores a verdict; wrong NULL: right */
/* -1: it fails to run, or (err->status CC_E_VERIFY) gives wrong results. */
CC_MUST int cc_vet_run(CcPrim *p, const CcPrimDesc *d, CcErr *err);

/* ---- llvm.c ---- */
typedef struct CcLlvm CcLlvm;                      /* a context of LLVM, for one thread at a time; never freed */
CcLlvm *cc_llvm_new(const char *path, CcErr *err); /* loads the library on the first call */
/* The caller frees the object. */
CC_MUST int cc_llvm_compile(const CcLlvm *own, const char *ir, CcBlob *object, CcErr *err);
void cc_llvm_alone(void); /* before cc_llvm_new: no one else uses LLVM in this process, so its options may be set */
void cc_llvm_forget(void);
const char *cc_llvm_describe(void); /* once cc_llvm_new has succeeded */

/* ---- worker.c: the client of compiler.c; one thread at a time ---- */
/* Headers of the protocol; the IR text, or the object or error message, follows. Replies come in any order. Both ends
 * run on one machine. */
typedef struct CcWorkerRequest {
    uint64_t magic, bytes; /* of the IR; 0: asks for LLVM's version */
    uint64_t serial;
} CcWorkerRequest;
typedef struct CcWorkerReply {
    uint64_t magic, bytes;
    uint64_t serial; /* of the request; 0: the greeting */
    uint64_t failed; /* 1: the payload is an error message */
} CcWorkerReply;
#define CC_WORKER_MAGIC UINT64_C(0x334b524f57434343)
typedef enum CcWorkerOutcome {
    CC_WORKER_DONE,
    CC_WORKER_REFUSED, /* LLVM rejects this IR or crashes on it; *err says why */
    CC_WORKER_ABSENT   /* no worker process; *err says why, unset if the worker is disabled */
} CcWorkerOutcome;
void cc_worker_program(const char *path); /* NULL: none */
/* Sends a request without waiting for its reply -> its serial; 0: not sent, and cc_worker_compile says why. */
uint64_t cc_worker_send(const char *library, const char *ir);
/* serial: of the request already sent for this IR, or 0. */
CcWorkerOutcome cc_worker_compile(const char *library, const char *ir, const char *name, uint64_t serial,
                                  CcBlob *object, CcErr *err);

#endif
