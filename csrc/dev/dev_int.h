/* dev, private: what packed.c does for dnnl.c. */
#ifndef CC_DEV_INT_H
#define CC_DEV_INT_H

#include <stdatomic.h>

#include "dev.h"

typedef struct CcPackChunk CcPackChunk;
typedef struct CcPack {
    CcPackChunk *chunk; /* it lies in, NULL: in none */
    const void *from;
    uint64_t version;
    atomic_int readers; /* and one for the CcPacked that keeps it */
    _Alignas(64) char at[];
} CcPack;

/* The copy of these weights, with a reader more; NULL: there is none. */
CcPack *cc_packed_find(CcPacked *packed, const void *from, uint64_t version);
CcPack *cc_packed_make(size_t bytes, const void *from, uint64_t version); /* with one reader; NULL: out of memory */
void cc_packed_keep(CcPacked *packed, CcPack *pack);                      /* for the calls to come */
void cc_packed_done(CcPack *pack);                                        /* a reader less; NULL is fine */

#endif
