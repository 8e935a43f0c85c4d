/* lcheck: the verifier of loop IR. Every printer may rely on it. */
#include "loop.h"

static int bad(CcErr *err, int i, const char *what) {
    return cc_err_set(err, CC_E_VERIFY, "loop node %d: %s", i, what);
}

static int check_node(const CcLoop *loop, int i, CcErr *err) {
    const CcLoopNode *n = &loop->node[i];
    if (n->op >= CC_S_COUNT) return bad(err, i, "no such primitive");
    const CcScalarInfo *info = cc_scalar_info((CcScalarId)n->op);
    const bool half = cc_dtype_is_half(n->dtype);
    if (n->dtype == CC_DT_OTHER || n->dtype >= CC_DT_COUNT) return bad(err, i, "no dtype");
    if (half && n->op != CC_S_load && n->op != CC_S_take && n->op != CC_S_cast)
        return bad(err, i, "arithmetic in half precision");
    if (n->op == CC_S_load || n->op == CC_S_place || n->op == CC_S_take) {
        const int a = cc_loop_access(n);
        if (a < 0 || a >= loop->n_access || loop->access[a].is_store ||
            loop->access[a].place != (n->op == CC_S_place) || (loop->access[a].taken != 0) != (n->op == CC_S_take))
            return bad(err, i, "bad access");
        if (n->op == CC_S_take && (n->a[0] < 0 || n->a[0] >= i || loop->node[n->a[0]].dtype != CC_DT_I64))
            return bad(err, i, "bad index");
        return loop->access[a].dtype == n->dtype ? 0 : bad(err, i, "load of another dtype");
    }
    uint8_t t[3] = {0};
    for (int k = 0; k < info->arity; k++) {
        if (n->a[k] < 0 || n->a[k] >= i) return bad(err, i, "operand is not an earlier node");
        t[k] = loop->node[n->a[k]].dtype;
    }
    bool good = true;
    if (n->op == CC_S_cast) {
        const bool from_half = cc_dtype_is_half(t[0]);
        good = t[0] != n->dtype && (!half || t[0] == CC_DT_F32) && (!from_half || n->dtype == CC_DT_F32);
    } else if (info->kind == 'S') {
        good = t[0] == CC_DT_BOOL && t[1] == n->dtype && t[2] == n->dtype;
    } else if (info->kind == 'C') {
        good = n->dtype == CC_DT_BOOL && t[0] != CC_DT_BOOL && (info->arity == 1 || t[0] == t[1]);
    } else if (info->kind != 'X') {
        for (int k = 0; k < info->arity; k++) good = good && t[k] == n->dtype;
        good = good && (n->dtype != CC_DT_BOOL || info->kind == 'L' || info->kind == 'R');
    }
    return good ? 0 : bad(err, i, "operand dtypes do not match");
}

int cc_lcheck_run(const CcLoop *loop, CcErr *err) {
    if (loop->lane < 0 || loop->lane >= loop->ndim || (!loop->reduces && loop->lane != loop->ndim - 1))
        return cc_err_set(err, CC_E_VERIFY, "loop without a vector dim");
    if (loop->n_access > CC_LOOP_MAX_ACCESS || loop->n_node > CC_LOOP_MAX_NODES || loop->ndim < 1)
        return cc_err_set(err, CC_E_VERIFY, "loop too large");
    for (int i = 0; i < loop->n_node; i++)
        if (check_node(loop, i, err) < 0) return -1;
    if (loop->scans && (!loop->reduces || loop->ndim - loop->lane - loop->columns != 1))
        return cc_err_set(err, CC_E_VERIFY, "scan along %d dims", loop->ndim - loop->lane - loop->columns);
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *access = &loop->access[a];
        if (!access->is_store) continue;
        if (access->node < 0 || access->node >= loop->n_node || loop->node[access->node].dtype != access->dtype)
            return cc_err_set(err, CC_E_VERIFY, "access %d stores another dtype", a);
        if (access->where) { /* several iterations may store to one address */
            if (access->where > loop->n_node || loop->node[access->where - 1].dtype != CC_DT_I64 || loop->reduces ||
                access->how > CC_PUT_MIN || access->how == CC_PUT_MEAN)
                return cc_err_set(err, CC_E_VERIFY, "access %d has no valid index to store at", a);
            continue;
        }
        /* One store per element: along every loop of more than one iteration the address must move, except reduced
         * loops around a store of one value per row. */
        const bool row = loop->reduces && !cc_sweep_along(loop, access);
        const int kept = loop->lane + (loop->columns || !loop->reduces);
        for (int d = 0; d < (row ? kept : loop->ndim) && cc_nest_numel(loop) > 0; d++)
            if (loop->size[d] > 1 && loop->stride[a][d] == 0)
                return cc_err_set(err, CC_E_VERIFY, "access %d stores an element twice", a);
    }
    return 0;
}
