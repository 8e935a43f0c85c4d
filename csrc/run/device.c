/* device: the device that a plan's kernels run on. All kernels of a graph run on one device; the host runs nodes
 * with tensors elsewhere.
 *
 * Passes, groups and loops know a single device, number 1 (the CPU's). So for a GPU they get a copy of the graph in
 * which values on that GPU have number 1, and all others, CPU tensors included, another one. As in torch, 0-dim CPU
 * tensors may be mixed with a GPU's: kernels get their number as an argument. */
#include "run_int.h"

enum { CPU = 1, CUDA = 2, MAX_INDEX = 256, LONG_SCAN = 1 << 13 };

/* The GPU that holds most values, the first one in a tie; -1: none. */
static int most_used(const CcGraph *g) {
    int count[MAX_INDEX] = {0}, best = -1;
    for (int v = 0; v < g->val.n; v++) {
        const CcType *t = &g->val.at[v].type;
        if (t->ndim >= 0 && t->device == CUDA) count[t->device_index]++;
    }
    for (int i = 0; i < MAX_INDEX; i++)
        if (count[i] && (best < 0 || count[i] > count[best])) best = i;
    return best;
}

int cc_device_choose(const CcGraph *g, CcOnDevice *out, CcErr *err) {
    const char *backend = getenv("CCOMPILE_BACKEND");
    const int index = most_used(g);
    const bool forced = index < 0 && backend && strcmp(backend, "cuda") == 0;
    *out = (CcOnDevice){.index = CC_MAX(index, 0), .waits = forced};
    if (index < 0 && !forced) return 0;
    out->cuda = cc_cuda_device(out->index, err);
    if (!out->cuda) return -1;
    if (forced && !out->cuda->pageable)
        return cc_err_set(err, CC_E_UNSUPPORTED,
                          "CCOMPILE_BACKEND=cuda: kernels of this GPU can't touch memory of the CPU");
    return 0;
}

bool cc_device_can(const CcGraph *g, int node, CcDtype deflt) {
    return cc_build_can(g, node, deflt, false) && cc_boxes_pay(g, &g->node.at[node]);
}

bool cc_device_can_map(const CcGraph *g, int node, CcDtype deflt) { return cc_build_can(g, node, deflt, true); }

/* On a GPU one block scans a row; torch (CUB) scans a single long row with all blocks. */
bool cc_device_can_cuda(const CcGraph *g, int node, CcDtype deflt) {
    const CcNode *n = &g->node.at[node];
    const CcExpr *e = cc_op_expr(g, n);
    bool scans = false;
    if (n->flags && !cc_into_is_write(g, n)) return false;
    for (int i = 0; e && i < e->n; i++)
        scans = scans || (e->node[i].kind == CC_X_OP && cc_scalar_info((CcScalarId)e->node[i].op)->kind == 'P');
    if (scans) {
        const CcSpace f = cc_space_of(g, n);
        if (f.shape.ndim < 0 || (cc_space_rows(&f) == 1 && cc_type_numel(&f.shape) > LONG_SCAN)) return false;
    }
    return cc_build_can(g, node, deflt, true);
}

CcGraph *cc_device_graph(const CcGraph *g, const CcOnDevice *on) {
    if (!on->cuda || on->waits) return NULL;
    CcGraph *out = cc_graph_copy(g);
    out->gpu = true;
    for (int v = 0; v < out->val.n; v++) {
        CcType *t = &out->val.at[v].type;
        out->val.at[v].scalar = t->device == CPU && t->ndim == 0 && (t->dtype == CC_DT_F32 || t->dtype == CC_DT_F64);
        const bool here = t->device == CUDA && t->device_index == on->index;
        t->device = here || out->val.at[v].scalar ? CPU : CUDA;
    }
    return out;
}

void cc_device_restore(const CcOnDevice *on, CcType *t) {
    if (on->cuda && !on->waits) t->device = CUDA;
}
