/* put: writes at indices as loop IR. The loop goes over what is written; each element says how far behind its place in
 * x it goes:
 *
 *   put_at(x [5, D], source [K, D], how, index [K, 1], 5, false, D)     over [K, D]; x: steps 0, 1
 *       %0 = load index; %1 = %0 * D; %2 = load source; store x + %1, %2
 *
 * Distances are given to the kernel, so new sizes need no other. Several may meet in one place: what they leave there
 * is `how`. */
#include "loop_int.h"

enum { SOURCE = 1, HOW, FIRST, EACH = 4, BY = 3 }; /* operands; of an index */

bool cc_put_has(CcOpId op) { return op == CC_OP_put_at; }

int cc_put_lower(CcBuild *b, const CcNode *n) {
    const CcDtype out = (CcDtype)b->g->val.at[n->out0].type.dtype;
    int where = -1;
    if (b->space.reduced || b->where >= 0) return cc_build_refuse(b, "a write at indices among others");
    for (int at = FIRST; at + EACH <= n->n_in; at += EACH) {
        const int by = cc_build_param(b, at, cc_graph_operand(b->g, n, at + BY)->i);
        const int behind = cc_build_op(b, CC_S_mul, cc_build_index(b, n, at), by, -1);
        where = where < 0 ? behind : cc_build_op(b, CC_S_add, where, behind, -1);
        if (where < 0) return -1;
    }
    if (where < 0) return cc_build_refuse(b, "a write without indices");
    b->where = where;
    b->how = (int)cc_graph_operand(b->g, n, HOW)->i;
    return cc_build_operand(b, cc_graph_operand(b->g, n, SOURCE), out);
}
