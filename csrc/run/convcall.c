/* convcall: runs a convolution and what follows it: by our own code (dev/conv.c), or by oneDNN with a clamp behind it.
 * Tensors that neither should read as they are get channels-last copies. */
#include <math.h>

#include "run_int.h"

enum {
    NORM_LANES = 16,
    FEW_NUMBERS = 1 << 15 /* a clamp of fewer runs on one thread */
};

/* y = x * scale + shift, as eager's CPU code computes it (batch_norm_cpu_collect_linear_and_constant_terms). */
static int fill_norm(const CcConvNorm *norm, const CcHost *host, float *scale, float *shift) {
    const int value[] = {norm->weight, norm->bias, norm->mean, norm->var};
    const char *from[4];
    for (int i = 0; i < 4; i++) from[i] = cc_prim_data(host, (CcSlot){value[i], 0});
    if (!from[2] || !from[3]) return -1;
    for (int64_t at = 0; at < norm->channels; at += NORM_LANES) {
        const int64_t n = CC_MIN(NORM_LANES, norm->channels - at);
        float part[4][NORM_LANES] = {{0}}, *s = part[3];
        for (int i = 0; i < 4; i++)
            if (from[i])
                cc_halves_widen(norm->dtype[i], from[i] + at * cc_dtype_info(norm->dtype[i])->size, part[i], n);
        for (int k = 0; k < NORM_LANES; k++) s[k] = 1 / sqrtf(s[k] + norm->eps);
        for (int k = 0; k < n; k++) {
            scale[at + k] = from[0] ? s[k] * part[0][k] : s[k];
            shift[at + k] = part[1][k] - part[2][k] * scale[at + k];
        }
    }
    return 0;
}

/* Scale and shift for our own code: those of the norm, if any, combined with a bias. */
static int fill_finish(const CcConv *conv, const CcHost *host, float *scale, float *shift) {
    const void *bias = cc_prim_data(host, conv->bias);
    const int64_t out = conv->image.out * conv->image.each, whole = cc_conv_channels(out);
    float more[CC_CONV_MAX_NORM];
    const bool norm = conv->norm.post >= 0;
    if (norm && fill_norm(&conv->norm, host, scale, shift) < 0) return -1;
    for (int64_t c = norm ? out : 0; c < whole; c++) {
        scale[c] = 1;
        shift[c] = 0;
    }
    if (bias) cc_halves_widen(conv->bias_dtype, bias, more, out);
    for (int64_t c = 0; bias && c < out; c++) shift[c] += more[c] * scale[c];
    return 0;
}

/* scale and shift: CC_CONV_MAX_NORM floats each, which the call reads. */
static int fill_call(const CcConv *conv, const CcHost *host, float *scale, float *shift, CcConvCall *call, CcErr *err) {
    if (fill_finish(conv, host, scale, shift) < 0)
        return cc_err_set(err, CC_E_HOST, "no data of a batch norm's statistics");
    *call = (CcConvCall){.weights = cc_prim_data(host, conv->weights),
                         .residual = cc_prim_data(host, conv->more),
                         .scale = scale,
                         .shift = shift};
    if (!call->weights) return cc_err_set(err, CC_E_HOST, "no data of value %d", conv->weights.value);
    const uint64_t version = conv->packed ? host->version(host->ctx, conv->weights.value) : CC_NO_VERSION;
    if (version == CC_NO_VERSION) return 0;
    call->packed = conv->packed;
    call->version = version;
    return 0;
}

static int64_t reorder_bytes(const CcConv *conv) { return conv->reorder[0].bytes + conv->reorder[1].bytes; }

/* If weights are kept packed, a call that can't use them (unknown version) allocates its own memory. */
static size_t inner_scratch(const CcConv *conv) {
    const CcConv *wide = conv->wide;
    if (conv->prim) return cc_dnnl_bytes(conv->prim);
    if (conv->packed || (wide && wide->packed)) return 0;
    return cc_conv_bytes(&conv->image, wide) + (wide ? cc_conv_bytes(&wide->image, true) : 0);
}

/* Copies come first. */
size_t cc_convcall_bytes(const CcConv *conv) { return (size_t)reorder_bytes(conv) + inner_scratch(conv); }

/* src, or its channels-last copy at `scratch`. */
static const void *reorder_src(const CcConv *conv, char *scratch, const void *src) {
    const CcConvReorder *t = &conv->reorder[0];
    char *const to = scratch + t->at;
    if (!t->is || !src) return src;
    cc_launch_at(&t->launch, (char *[]){(char *)src, to});
    return to;
}

static int run_own(const CcConv *conv, const CcHost *host, void *dst, char *scratch, CcErr *err) {
    float scale[2][CC_CONV_MAX_NORM], shift[2][CC_CONV_MAX_NORM];
    const CcConv *first = conv->wide ? conv->wide : conv;
    CcConvCall call, wide;
    if (fill_call(conv, host, scale[0], shift[0], &call, err) < 0 ||
        (conv->wide && fill_call(conv->wide, host, scale[1], shift[1], &wide, err) < 0))
        return -1;
    call.src = wide.src = reorder_src(conv, scratch, cc_prim_data(host, first->src));
    if (!call.src) return cc_err_set(err, CC_E_HOST, "no data of value %d", first->src.value);
    call.dst = dst;
    call.scratch = wide.scratch = inner_scratch(conv) ? (float *)(scratch + reorder_bytes(conv)) : NULL;
    return conv->wide ? cc_conv_run_pair(&conv->wide->image, &wide, &conv->image, &call, err)
                      : cc_conv_run(&conv->image, &call, err);
}

typedef struct Clamp {
    float *at, low, high;
} Clamp;

static void clamp(void *ctx, int64_t begin, int64_t end) {
    const Clamp *c = ctx;
    cc_clamp(c->at + begin, end - begin, c->low, c->high);
}

static int run_library(const CcConv *conv, const CcHost *host, void *dst, char *scratch, CcErr *err) {
    float scale[CC_CONV_MAX_NORM], shift[CC_CONV_MAX_NORM];
    CcPrimCall call = {.src = reorder_src(conv, scratch, cc_prim_data(host, conv->src)),
                       .weights = cc_prim_data(host, conv->weights),
                       .bias = cc_prim_data(host, conv->bias),
                       .dst = dst,
                       .scratch = scratch ? scratch + reorder_bytes(conv) : NULL};
    for (int i = 0; i < CC_DNNL_MAX_POST; i++) call.post[i] = cc_prim_data(host, conv->post[i]);
    if (conv->norm.post >= 0) {
        if (fill_norm(&conv->norm, host, scale, shift) < 0)
            return cc_err_set(err, CC_E_HOST, "no data of a batch norm's statistics");
        call.post[conv->norm.post] = scale;
        call.post[conv->norm.post + 1] = shift;
    }
    if (!call.src || !call.weights) return cc_err_set(err, CC_E_HOST, "no data of a convolution's operands");
    cc_prim_version(&call, conv->packed, host, conv->weights.value);
    if (cc_dnnl_run(conv->prim, &call, err) < 0) return -1;
    Clamp c = {dst, conv->image.low, conv->image.high};
    int64_t n = 1;
    for (int i = 0; conv->clamps && i < conv->desc->dst.ndim; i++) n *= conv->desc->dst.size[i];
    if (conv->clamps) cc_omp_run(clamp, &c, n, n < FEW_NUMBERS ? 1 : cc_omp_width());
    return 0;
}

int cc_convcall_run(const CcConv *conv, const CcHost *host, void *dst, char *scratch, CcErr *err) {
    const CcConvReorder *t = &conv->reorder[1];
    void *to = t->is ? scratch + t->at : dst; /* the result is copied from there */
    const int status = conv->prim ? run_library(conv, host, to, scratch, err) : run_own(conv, host, to, scratch, err);
    if (t->is && status == 0) cc_launch_at(&t->launch, (char *[]){to, dst});
    return status;
}
