/* concat: cat and stack as one copy kernel a piece, each into its part of the result. */
#include "run_int.h"

typedef struct Piece {
    CcLaunch launch;
    int value;             /* read; what it is a window of */
    int64_t from, to;      /* bytes: where the piece lies in its value, and in the result */
} Piece;

typedef struct Concat {
    int dst, n;
    Piece *piece;
} Concat;

static bool plain(const CcType *t) { return t->ndim >= 0 && t->device == 1 && t->dtype != CC_DT_OTHER; }

/* The dim of the result along which pieces lie; -1: not for this family. */
static int dim_of(const CcGraph *g, const CcNode *n) {
    const CcType *out = &g->val.at[n->out0].type;
    const CcOperand *dim = n->n_in > 1 ? cc_graph_operand(g, n, n->n_in - 1) : NULL;
    return dim && plain(out) && cc_type_dense(out) ? cc_graph_dim(out, dim) : -1;
}

/* A piece as the result sees it: stack gives it a dim of size 1. False: it does not fit. */
static bool seen_as(const CcGraph *g, const CcNode *n, int i, int dim, CcType *t) {
    const CcType *out = &g->val.at[n->out0].type;
    const CcOperand *o = cc_graph_operand(g, n, i);
    if (o->kind != CC_IN_VALUE) return false;
    *t = g->val.at[o->value].type;
    if (!plain(t) || t->dtype != out->dtype) return false;
    if (n->op == CC_OP_stack) {
        if (t->ndim != out->ndim - 1) return false;
        for (int d = t->ndim++; d > dim; d--) {
            t->size[d] = t->size[d - 1];
            t->stride[d] = t->stride[d - 1];
        }
        t->size[dim] = 1;
        t->stride[dim] = 0;
    }
    if (t->ndim != out->ndim) return false; /* cat takes empty vectors of old */
    for (int d = 0; d < t->ndim; d++)
        if (d != dim && t->size[d] != out->size[d]) return false;
    return true;
}

static bool can(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    const int dim = dim_of(g, n);
    int64_t total = 0;
    CcType t;
    for (int i = 0; i + 1 < n->n_in; i++) {
        if (dim < 0 || !seen_as(g, n, i, dim, &t)) return false;
        total += t.size[dim];
    }
    return dim >= 0 && total == g->val.at[n->out0].type.size[dim];
}

/* The kernel that copies one piece: of a graph of one node. */
static int add_piece(Piece *p, const CcType *src, const CcType *out, CcArena *arena, CcErr *err) {
    CcGraph *g = cc_graph_new();
    const CcOperand in = {.kind = CC_IN_VALUE, .value = cc_graph_input(g, src)};
    CcType dst = *src;
    memcpy(dst.stride, out->stride, sizeof dst.stride);
    const int node = cc_graph_node(g, CC_OP_copy, 0, -1, &in, 1, &dst, 1);
    const bool made[2] = {false, true};
    const int status = cc_launch_make(&p->launch, cc_build_group(g, &node, 1, made, CC_DT_OTHER, arena, err), err);
    cc_graph_free(g);
    return status;
}

static void *build(const CcGraph *g, const int *chain, int n_chain, CcArena *arena, CcErr *err) {
    (void)n_chain; /* no post-ops */
    const CcNode *n = &g->node.at[chain[0]];
    const CcType *out = &g->val.at[n->out0].type;
    const int dim = dim_of(g, n);
    const int64_t step = out->stride[dim] * cc_dtype_info((CcDtype)out->dtype)->size;
    Concat *c = cc_arena_alloc(arena, sizeof *c);
    if (c) c->piece = cc_arena_alloc(arena, sizeof *c->piece * (size_t)n->n_in);
    if (!c || !c->piece) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    c->dst = n->out0;
    c->n = 0;
    int64_t at = 0;
    for (int i = 0; i + 1 < n->n_in; i++) {
        const int value = cc_graph_operand(g, n, i)->value;
        Piece *p = &c->piece[c->n];
        CcType t;
        if (!seen_as(g, n, i, dim, &t)) { /* can() said otherwise */
            cc_err_set(err, CC_E_UNSUPPORTED, "%s: tensor %d does not fit the result", cc_op_info((CcOpId)n->op)->name, i);
            return NULL;
        }
        *p = (Piece){.value = cc_graph_base(g, value), .from = g->val.at[value].offset, .to = at * step};
        at += t.size[dim];
        if (cc_type_numel(&t) == 0) continue;
        if (add_piece(p, &t, out, arena, err) < 0) return NULL;
        c->n++;
    }
    return c;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const Concat *c = work;
    char *dst = host->make(host->ctx, c->dst);
    if (!dst && c->n) return cc_err_set(err, CC_E_HOST, "no memory for value %d", c->dst);
    for (int i = 0; i < c->n; i++) {
        const Piece *p = &c->piece[i];
        char *src = host->data(host->ctx, p->value);
        if (!src) return cc_err_set(err, CC_E_HOST, "no data of value %d", p->value);
        cc_launch_at(&p->launch, (char *const[]){src + p->from, dst + p->to});
    }
    return 0;
}

const CcPrimFamily CC_CONCATS = {.name = "concat", .llvm = true, .can = can, .build = build, .run = run};
