/* space: the iteration space of a loop nest with reductions, and where values fit into it. The space is the shape of
 * the reduced operand and the set of its reduced dims; reductions with the same space, and pointwise nodes of three
 * shapes, fit into one nest:
 *
 *     space [8, 4, 32], dims {2}     FULL [8, 4, 32]     KEPT [8, 4, 1]     DROPPED [8, 4]
 *
 * FULL and KEPT values broadcast against each other (from the right). A DROPPED value aligns its dims differently
 * from a FULL one, so a node may read both only if that makes no difference (leading dims are reduced). */
#include "pass.h"

bool cc_space_reduces(const CcGraph *g, const CcNode *n) { return cc_op_dims(g, n) >= 0; }

CcSpace cc_space_of(const CcGraph *g, const CcNode *n) {
    const int dims = cc_op_dims(g, n);
    CcSpace f = {.shape = g->val.at[n->out0].type};
    if (dims < 0) return f;
    f.reduced = (unsigned)dims;
    /* a derivative has the shape of what its op reduces, and may not read that operand */
    if (cc_op_base((CcOpId)n->op) == n->op) {
        const int x = cc_graph_source(g, n);
        f.shape.ndim = -1;
        if (x >= 0) f.shape = g->val.at[x].type;
    }
    if (f.shape.ndim >= 0) f.reduced &= (1u << f.shape.ndim) - 1;
    return f;
}

bool cc_space_reduced(const CcSpace *f, int dim) { return f->reduced >> (f->shape.ndim - 1 - dim) & 1; }

int64_t cc_space_rows(const CcSpace *f) {
    int64_t rows = 1;
    for (int d = 0; d < f->shape.ndim; d++)
        if (!cc_space_reduced(f, d)) rows *= f->shape.size[d];
    return rows;
}

bool cc_space_spent(const CcGraph *g, const CcNode *n) {
    if (n->op != CC_OP_var && n->op != CC_OP_std) return false;
    const CcOperand *c = n->n_in > 2 ? cc_graph_operand(g, n, 2) : NULL;
    const double correction = c == NULL || c->kind == CC_IN_NONE ? 1 : cc_operand_number(c);
    const CcSpace f = cc_space_of(g, n);
    return (double)(cc_type_numel(&f.shape) / CC_MAX(1, cc_space_rows(&f))) <= correction;
}

enum {
    /* One thread computes a row. With few rows, pointwise nodes of at least this many elements get a nest of their
     * own, which all threads share. */
    FEW_ROWS = 8,
    WORTH_THREADS = 1 << 15
};

bool cc_space_few_rows(const CcSpace *f) {
    return cc_space_rows(f) < FEW_ROWS && cc_type_numel(&f->shape) >= WORTH_THREADS;
}

/* The dim of a type that aligns with dim `d` of the space; -1: none, the value is broadcast there. */
int cc_space_own_dim(const CcSpace *f, const CcType *t, bool dropped, int d) {
    int behind = 0; /* dims to the right of d in this alignment */
    for (int i = d + 1; i < f->shape.ndim; i++) behind += !dropped || !cc_space_reduced(f, i);
    if (dropped && cc_space_reduced(f, d)) return -1;
    return t->ndim - 1 - behind;
}

CcSpaceLevel cc_space_level(const CcSpace *f, const CcType *t) {
    if (cc_type_same_shape(&f->shape, t)) return CC_LEVEL_FULL;
    int n_kept = 0;
    bool kept = t->ndim == f->shape.ndim, dropped = true;
    for (int d = 0; d < f->shape.ndim; d++) n_kept += !cc_space_reduced(f, d);
    for (int d = 0; d < f->shape.ndim; d++) {
        const bool reduced = cc_space_reduced(f, d);
        kept = kept && t->size[d] == (reduced ? 1 : f->shape.size[d]);
        const int own = cc_space_own_dim(f, t, true, d);
        dropped = dropped && (reduced || (own >= 0 && t->size[own] == f->shape.size[d]));
    }
    if (kept) return CC_LEVEL_KEPT;
    return dropped && f->reduced && t->ndim == n_kept ? CC_LEVEL_DROPPED : CC_LEVEL_NONE;
}

/* The level of the node's result; operands align alike, except that reduced ones are FULL. */
CcSpaceLevel cc_space_node(const CcSpace *f, const CcGraph *g, const CcNode *n) {
    const CcSpaceLevel level = cc_space_level(f, &g->val.at[n->out0].type);
    if (!cc_space_reduces(g, n)) return level;
    const CcSpace own = cc_space_of(g, n);
    if (own.shape.ndim < 0 || own.reduced != f->reduced || !cc_type_same_shape(&own.shape, &f->shape))
        return CC_LEVEL_NONE;
    const bool by_row = cc_node_kind(n) == CC_K_REDUCE;
    const bool row = level == CC_LEVEL_KEPT || level == CC_LEVEL_DROPPED;
    if (level == CC_LEVEL_FULL && by_row) /* all reduced dims have size 1: both hold */
        for (int d = 0; d < f->shape.ndim; d++)
            if (cc_space_reduced(f, d) && f->shape.size[d] != 1) return CC_LEVEL_NONE;
    return row && !by_row ? CC_LEVEL_NONE : level;
}

bool cc_space_meets(const CcSpace *f, const CcGraph *g, const CcNode *reader, int value) {
    const CcType *t = &g->val.at[value].type;
    const bool here = cc_space_level(f, t) == CC_LEVEL_DROPPED;
    const bool there = !cc_space_reduces(g, reader) && cc_space_node(f, g, reader) == CC_LEVEL_DROPPED;
    for (int d = 0; here != there && d < f->shape.ndim; d++) {
        const int a = cc_space_own_dim(f, t, here, d), b = cc_space_own_dim(f, t, there, d);
        const int64_t m = a < 0 ? 1 : t->size[a], n = b < 0 ? 1 : t->size[b];
        if (a != b && (m != 1 || n != 1)) return false;
    }
    return true;
}
