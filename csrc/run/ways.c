/* ways: the implementations that can run one product. The weights stay plain, or a call packs them once and keeps the
 * copy (frozen weights). */
#include "run_int.h"

static const char *const NAME[] = {[CC_WAY_OWN] = "own",
                                   [CC_WAY_ONEDNN] = "onednn",
                                   [CC_WAY_BLAS] = "blas",
                                   [CC_WAY_OWN_PACKED] = "own_packed",
                                   [CC_WAY_ONEDNN_PACKED] = "onednn_packed"};
_Static_assert(CC_COUNT(NAME) == CC_WAYS, "each way has a name");

const char *cc_ways_name(CcWayKind kind) { return NAME[kind]; }

static CcGemm gemm_of(const CcPrimDesc *d) {
    CcGemm g = {.m = d->dst.size[0],
                .n = d->dst.size[1],
                .k = d->src.size[1],
                .x_row = d->src.stride[0],
                .y_row = d->dst.stride[0],
                .w_row = d->weights.stride[1],
                .w_col = d->weights.stride[0],
                .n_post = d->n_post};
    for (int i = 0; i < d->n_post; i++)
        g.post[i] = (CcGemmPost){d->post[i].kind, d->post[i].scale, d->post[i].operand.stride[0]};
    return g;
}

static bool is_f32(const CcPrimDesc *d) {
    return d->src.dtype == CC_DT_F32 && d->weights.dtype == CC_DT_F32 && d->dst.dtype == CC_DT_F32 &&
           (d->bias.ndim == 0 || d->bias.dtype == CC_DT_F32);
}

unsigned cc_ways_of(const CcPrimDesc *d, bool frozen) {
    unsigned ways = 0;
    bool library = true, loops = d->dst.ndim == 2 && is_f32(d) && d->src.stride[1] == 1 && d->dst.stride[1] == 1;
    for (int i = 0; i < d->n_post; i++) {
        library = library && d->post[i].kind != CC_POST_RELU;
        loops = loops && d->post[i].kind != CC_POST_SUM &&
                (d->post[i].operand.ndim == 0 || d->post[i].operand.dtype == CC_DT_F32);
    }
    if (library) ways |= CC_WAY_BIT(ONEDNN) | (frozen && d->weights.ndim == 2 ? CC_WAY_BIT(ONEDNN_PACKED) : 0);
    if (!loops) return ways;
    const CcGemm g = gemm_of(d);
    return ways | (frozen ? CC_WAY_BIT(OWN_PACKED) : 0) | (g.w_col == 1 ? CC_WAY_BIT(OWN) : 0) |
           (cc_blas_can(&g) ? CC_WAY_BIT(BLAS) : 0);
}

int cc_ways_make(CcWay *w, CcWayKind kind, const CcPrimDesc *d, CcErr *err) {
    *w = (CcWay){.kind = kind};
    if (kind == CC_WAY_OWN_PACKED || kind == CC_WAY_ONEDNN_PACKED) {
        w->packed = cc_packed_new();
        if (!w->packed) return cc_err_set(err, CC_E_MEMORY, "no memory for a product");
    }
    if (kind != CC_WAY_ONEDNN && kind != CC_WAY_ONEDNN_PACKED) {
        w->gemm = gemm_of(d);
        return 0;
    }
    CcPrimDesc own = *d;
    if (kind == CC_WAY_ONEDNN_PACKED) own.weights.form = CC_FORMAT_ANY;
    w->prim = cc_dnnl_get(&own, err);
    if (w->prim) return 0;
    cc_ways_clear(w);
    return -1;
}

void cc_ways_clear(CcWay *w) {
    cc_packed_free(w->packed);
    w->packed = NULL;
}

size_t cc_ways_bytes(const CcWay *w) {
    return w->prim ? cc_dnnl_bytes(w->prim) : w->kind == CC_WAY_BLAS ? 0 : cc_gemm_bytes(&w->gemm);
}

int cc_ways_run(const CcWay *w, const CcPrimCall *call, CcErr *err) {
    if (w->prim) return cc_dnnl_run(w->prim, call, err);
    CcGemmCall own = {.x = call->src,
                      .w = call->weights,
                      .bias = call->bias,
                      .y = call->dst,
                      .packed = call->packed,
                      .version = call->version,
                      .scratch = (float *)call->scratch};
    for (int i = 0; i < w->gemm.n_post; i++) own.post[i] = call->post[i];
    if (w->kind != CC_WAY_BLAS) return cc_gemm_run(&w->gemm, &own, err);
    cc_blas_run(&w->gemm, &own);
    return 0;
}
