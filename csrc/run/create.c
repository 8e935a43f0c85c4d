/* create: uninitialised memory (torch.empty). Making it costs nothing, but the plan then knows that nothing shares
 * it, so kernels may write it; memory that the host makes could be anywhere (pass/into.c). */
#include "run_int.h"

typedef struct CcCreate {
    int dst;
} CcCreate;

static bool can(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    const CcType *t = &g->val.at[n->out0].type;
    return n->op == CC_OP_empty && cc_type_known(t) && cc_type_numel(t) > 0 && cc_type_dense(t);
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    CcCreate *c = n == 1 ? cc_arena_alloc(arena, sizeof *c) : NULL;
    if (!c) {
        cc_err_set(err, CC_E_UNSUPPORTED, "no memory for a step of torch.empty");
        return NULL;
    }
    c->dst = g->node.at[nodes[0]].out0;
    return c;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const int dst = ((const CcCreate *)work)->dst;
    return host->make(host->ctx, dst) ? 0 : cc_err_set(err, CC_E_HOST, "no memory for value %d", dst);
}

const CcPrimFamily CC_CREATES = {.name = "memory", .can = can, .build = build, .run = run};
