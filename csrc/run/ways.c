/* ways: the implementations that can run one product. The weights stay plain, or a call packs them once and keeps the
 * copy (frozen weights). choose.c measures them; a very large product is measured by some of its columns at a time, and the
 * number of rows counts in steps of half a power of two, so that sequences of many lengths share a few choices. */
#include "run_int.h"

enum {
    /* products of more rows follow the rule, unless they are a weight's gradient: its rows are the weight's */
    MOST_ROWS = 8192,
    FEW_COLUMNS = 128 /* multiple of the columns that are measured */
};
/* Multiply-adds of a measured run, 35 ms at 250 GFLOP/s: the usual models' products are measured whole, a vocabulary of
 * 50,257 too. A part of their columns misled: oneDNN multiplies 128x768 by 768x3072 ([k, n]) at 140 GFLOP/s, by 2,688 of
 * its columns at 270, and 128x3072 by 3072x768 at 220, by 170 of its columns at 320 (Intel Xeon, two threads). */
static const int64_t MOST_WORK = (int64_t)1 << 32;
static const int64_t LEAST_WORK = 1 << 20; /* smaller products follow the rule */
static const int64_t STREAMED = 1 << 26;   /* bytes of weights that each run evicts by itself */

static const char *const NAME[] = {[CC_WAY_OWN] = "own",
                                   [CC_WAY_ONEDNN] = "onednn",
                                   [CC_WAY_BLAS] = "blas",
                                   [CC_WAY_OWN_PACKED] = "own_packed",
                                   [CC_WAY_ONEDNN_PACKED] = "onednn_packed"};
_Static_assert(CC_COUNT(NAME) == CC_WAYS, "each way has a name");

const char *cc_ways_name(CcWayKind kind) { return NAME[kind]; }

static CcGemm gemm_of(const CcPrimDesc *d) {
    CcGemm g = {.dtype = d->dst.dtype,
                .m = d->dst.size[0],
                .n = d->dst.size[1],
                .k = d->src.size[1],
                .x_row = d->src.stride[0],
                .x_col = d->src.stride[1],
                .y_row = d->dst.stride[0],
                .w_row = d->weights.stride[1],
                .w_col = d->weights.stride[0],
                .n_post = d->n_post};
    for (int i = 0; i < d->n_post; i++)
        g.post[i] = (CcGemmPost){d->post[i].kind, d->post[i].scale, d->post[i].operand.stride[0]};
    return g;
}

/* Are the source's columns contiguous, not its rows? So it is in a weight's gradient: grad^T @ x. */
static bool has_columns(const CcPrimDesc *d) { return d->src.stride[d->src.ndim - 1] != 1; }

static bool of_one_dtype(const CcPrimDesc *d) {
    const CcDtype dtype = d->dst.dtype;
    bool is = d->src.dtype == dtype && d->weights.dtype == dtype && (d->bias.ndim == 0 || d->bias.dtype == dtype);
    for (int i = 0; i < d->n_post; i++) is = is && (d->post[i].operand.ndim == 0 || d->post[i].operand.dtype == dtype);
    return is;
}

unsigned cc_ways_of(const CcPrimDesc *d, bool frozen) {
    unsigned ways = 0;
    bool library = true, loops = d->dst.ndim == 2 && of_one_dtype(d) && d->dst.stride[1] == 1;
    for (int i = 0; i < d->n_post; i++) {
        library = library && d->post[i].kind != CC_POST_RELU;
        loops = loops && d->post[i].kind != CC_POST_SUM;
    }
    if (library) ways |= CC_WAY_BIT(ONEDNN) | (frozen && d->weights.ndim == 2 ? CC_WAY_BIT(ONEDNN_PACKED) : 0);
    if (!loops) return ways;
    const CcGemm g = gemm_of(d);
    if (g.x_col == 1 && cc_gemm_can(&g)) ways |= CC_WAY_BIT(OWN) | (frozen ? CC_WAY_BIT(OWN_PACKED) : 0);
    return ways | (cc_blas_can(&g) ? CC_WAY_BIT(BLAS) : 0);
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

/* ------------------------------------------------------------------ the choice */

/* n rounded to 1 or 1.5 times a power of two. */
static int64_t step_of(int64_t n) {
    int64_t power = 1;
    while (power * 2 <= n) power *= 2;
    return n * 4 < power * 5 ? power : n * 4 < power * 7 ? power / 2 * 3 : power * 2;
}

static void write_sizes(const void *desc, CcSbuf *out) {
    const CcPrimDesc *d = desc;
    cc_sbuf_add(out, "%lldx%lldx%lld (%s)", (long long)d->dst.size[0], (long long)d->src.size[1],
                (long long)d->dst.size[1], cc_dtype_info(d->weights.dtype)->name);
}

static void write_key(const void *desc, CcSbuf *out) {
    const CcPrimDesc *d = desc;
    const int r = d->dst.ndim - 2;
    cc_sbuf_add(out, "product %lld x %lld x %lld of %s [%s]%s", (long long)step_of(d->dst.size[r]),
                (long long)d->src.size[r + 1], (long long)d->dst.size[r + 1], cc_dtype_info(d->weights.dtype)->name,
                d->weights.stride[r] == 1 ? "n, k" : "k, n", has_columns(d) ? " by columns" : "");
}

/* A measured call. */
typedef struct Contest {
    const CcPrimDesc *whole;
    CcPrimDesc part;
    const CcPrimCall *call;
    int64_t column; /* the first one of the part that the next run computes */
    CcWay way[CC_WAYS];
} Contest;

/* Some columns of the product. */
static CcPrimDesc part_of(const CcPrimDesc *d) {
    CcPrimDesc part = *d;
    const int64_t most = MOST_WORK / (d->dst.size[0] * d->src.size[1]);
    if (d->dst.size[1] <= CC_MAX(most, FEW_COLUMNS)) return part;
    const int64_t columns = CC_MAX(1, most / FEW_COLUMNS) * FEW_COLUMNS;
    part.weights.size[1] = columns;
    if (part.bias.ndim) part.bias.size[1] = columns;
    cc_vet_resize(&part, 1, columns);
    return part;
}

static const void *at_column(const void *from, const CcTensorDesc *t, int64_t column) {
    if (!from || t->ndim < 2 || t->size[1] == 1) return from;
    return (const char *)from + column * t->stride[1] * cc_dtype_size(t->dtype);
}

static CcPrimCall part_call(const Contest *t) {
    CcPrimCall call = *t->call;
    call.weights = at_column(call.weights, &t->whole->weights, t->column);
    call.bias = at_column(call.bias, &t->whole->bias, t->column);
    call.dst = (void *)at_column(call.dst, &t->whole->dst, t->column);
    for (int i = 0; i < t->whole->n_post; i++)
        call.post[i] = at_column(call.post[i], &t->whole->post[i].operand, t->column);
    return call;
}

static void evict_weights(const Contest *t) {
    const CcTensorDesc *w = &t->part.weights;
    const CcPrimCall call = part_call(t);
    const int inner = w->stride[0] == 1 ? 0 : 1;
    const int64_t size = cc_dtype_size(w->dtype);
    if (w->size[0] * w->size[1] * size >= STREAMED) return;
    for (int64_t i = 0; i < w->size[!inner]; i++)
        cc_cpu_evict((const char *)call.weights + i * w->stride[!inner] * size, w->size[inner] * size);
}

/* Each run takes the next columns, which the caches and the page table's cache know as little as in a model's call. A way
 * that packs keeps to its copy of the first ones. */
static void advance(void *ctx, int way, bool cold) {
    Contest *t = ctx;
    const int64_t columns = t->part.dst.size[1];
    CcPacked *packed = t->call->version == CC_NO_VERSION ? NULL : t->way[way].packed;
    t->column = packed || t->column + 2 * columns > t->whole->dst.size[1] ? 0 : t->column + columns;
    if (!cold) return;
    if (packed) cc_packed_evict(packed);
    else evict_weights(t);
}

static int make(void *ctx, int way, size_t *bytes, CcErr *err) {
    Contest *t = ctx;
    if (cc_ways_make(&t->way[way], (CcWayKind)way, &t->part, err) < 0) return -1;
    *bytes = cc_ways_bytes(&t->way[way]);
    return 0;
}

static int run(void *ctx, int way, char *scratch, CcErr *err) {
    const Contest *t = ctx;
    CcPrimCall own = part_call(t);
    own.packed = own.version == CC_NO_VERSION ? NULL : t->way[way].packed;
    own.scratch = scratch;
    return cc_ways_run(&t->way[way], &own, err);
}

static const CcChoiceKind PRODUCT = {.name = "product",
                                     .way = NAME,
                                     .n = CC_WAYS,
                                     .write_sizes = write_sizes,
                                     .write_key = write_key,
                                     .make = make,
                                     .run = run,
                                     .advance = advance};

const CcChoiceKind *cc_ways_kind(void) { return &PRODUCT; }

CcChoice cc_ways_choice(const CcPrimDesc *d, bool frozen, CcWayKind rule, int64_t input_bytes) {
    const int r = d->dst.ndim - 2;
    const int64_t work = d->dst.size[r] * d->dst.size[r + 1] * d->src.size[r + 1];
    return (CcChoice){.kind = &PRODUCT,
                      .desc = d,
                      .ways = cc_ways_of(d, frozen),
                      .rule = (int)rule,
                      .pays = d->dst.ndim == 2 && (d->dst.size[0] <= MOST_ROWS || has_columns(d)) && work >= LEAST_WORK,
                      .input_bytes = input_bytes};
}

CcWayKind cc_ways_measure(const CcChoice *c, const CcPrimCall *call) {
    Contest t = {.whole = c->desc, .part = part_of(c->desc), .call = call};
    const CcWayKind way = (CcWayKind)cc_choose_measure(c, &t);
    for (int i = 0; i < CC_WAYS; i++) cc_ways_clear(&t.way[i]);
    return way;
}
