/* random: bools for dropout (pass/dropout.c), for which the host asks the generator of torch. */
#include "run_int.h"

typedef struct CcDraws {
    int dst, node;
    double p;
    int64_t n;
} CcDraws;

static bool can(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    const CcType *t = &g->val.at[n->out0].type;
    CcIn_draw in;
    return cc_in_draw(g, n, &in) && in.p.kind == CC_IN_FLOAT && t->ndim >= 0 && t->device == 1 &&
           t->dtype == CC_DT_BOOL && cc_type_dense(t);
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    CcDraws *d = n == 1 ? cc_arena_alloc(arena, sizeof *d) : NULL;
    CcIn_draw in;
    const CcNode *node = &g->node.at[nodes[0]];
    if (!d || !cc_in_draw(g, node, &in)) {
        cc_err_set(err, CC_E_UNSUPPORTED, "no memory for a step that draws random numbers");
        return NULL;
    }
    *d = (CcDraws){node->out0, node->origin, in.p.f, cc_type_numel(&g->val.at[node->out0].type)};
    return d;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcDraws *d = work;
    void *dst = host->make(host->ctx, d->dst);
    if (!dst) return cc_err_set(err, CC_E_HOST, "no memory for value %d", d->dst);
    return host->draw(host->ctx, d->node, d->p, dst, d->n) == 0 ? 0
                                                                : cc_err_set(err, CC_E_HOST, "node %d failed", d->node);
}

const CcPrimFamily CC_DRAWS = {.name = "draw", .can = can, .build = build, .run = run};
