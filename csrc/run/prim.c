/* prim: the families of library calls, by the kind of the op that a chain begins with. */
#include "run_int.h"

const CcPrimFamily *cc_prim_family(const CcGraph *g, int node) {
    switch (cc_op_info((CcOpId)g->node.at[node].op)->kind) {
    case CC_K_MATMUL: return &CC_PRODUCTS;
    case CC_K_CONCAT: return &CC_CONCATS;
    case CC_K_ATTENTION: return &CC_ATTENTIONS;
    default: return NULL;
    }
}

bool cc_prim_can(const CcGraph *g, int node) {
    const CcPrimFamily *family = cc_prim_family(g, node);
    return family && family->can(g, node);
}

bool cc_prim_can_post(const CcGraph *g, const int *chain, int n, int node) {
    const CcPrimFamily *family = cc_prim_family(g, chain[0]);
    return family && family->can_post && family->can_post(g, chain, n, node);
}
