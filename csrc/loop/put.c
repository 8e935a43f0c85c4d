/* put: lowers writes at indices to loop IR. The loop iterates over the space of the write; each iteration computes
 * how far after its own address in x it stores:
 *
 *   put_at(x [5, D], source [K, D], how, index [K, 1], 5, false, D)     over [K, D]; x: strides 0, 1
 *       %0 = load index; %1 = %0 * D; %2 = load source; store x + %1, %2
 *
 * Strides are arguments of the kernel, so new sizes reuse it. Several iterations may store to one address; `how`
 * says how they combine. */
#include "loop_int.h"

enum { EACH = 4, BY = 3 }; /* operands of an index */

bool cc_put_has(CcOpId op) { return op == CC_OP_put_at; }

int cc_put_lower(CcBuild *b, const CcNode *n) {
    const CcDtype out = (CcDtype)b->g->val.at[n->out0].type.dtype;
    int where = -1;
    CcIn_put_at in;
    if (!cc_in_put_at(b->g, n, &in) || b->space.reduced || b->where >= 0)
        return cc_build_refuse(b, "a write at indices that does not stand alone");
    for (int at = in.indices.first; at + EACH <= n->n_in; at += EACH) {
        const int by = cc_build_param(b, at, cc_graph_operand(b->g, n, at + BY)->i);
        const int behind = cc_term_op(b, CC_S_mul, cc_build_index(b, n, at), by, -1);
        where = where < 0 ? behind : cc_term_op(b, CC_S_add, where, behind, -1);
        if (where < 0) return -1;
    }
    if (where < 0) return cc_build_refuse(b, "a write without indices");
    b->where = where;
    b->how = (int)in.how.i;
    return cc_build_operand(b, &in.source, out);
}
