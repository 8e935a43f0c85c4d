/* vet: verifies oneDNN's primitives before their first use. Each runs once, with its bias and post-ops, on generated
 * numbers; samples all over dst (corners and edges, where kernels have their tails) are compared with sums in double. A
 * large problem is checked by a smaller one: fewer rows, columns, batches or lines by whole blocks, which keeps the
 * remainders at the ends, and only if oneDNN uses the same implementation for it (dnnl.c checks).
 *
 * Numbers are small integers times a power of two, which bf16 and f16 hold exactly. Sums of products are near 1, and no
 * bias or operand is 0, so a primitive that drops one of them is caught. */
#include <math.h>

#include "dev_int.h"

enum {
    TILE = 8191,         /* period of the generated numbers; a prime, so that rows differ */
    BLOCK = 64,          /* granularity of shrinking rows and columns: keeps their remainder */
    LINES = 8,           /* the same for lines of a convolution */
    MOST_WORK = 1 << 25, /* multiply-adds of a check */
    MOST_SAMPLES = 96,
    LEAST_SAMPLES = 12,
    SAMPLED_WORK = 1 << 16, /* multiply-adds in double over all samples */
    CHUNK = 256,
    PAD = 64
};
enum { SRC, WEIGHTS, BIAS, DST, POST, PARTS = POST + CC_DNNL_MAX_POST };

typedef struct Vet {
    const CcPrimDesc *d;
    const CcTensorDesc *part[PARTS]; /* NULL: absent */
    char *at[PARTS];
    char *scratch;
    bool sums;                       /* a post-op adds dst's previous contents */
    int64_t depth;                   /* products summed into one result */
    int64_t index[CC_DNNL_MAX_NDIM]; /* the current sample in dst */
} Vet;

/* ------------------------------------------------------------------ the problem to run */

static int64_t product_of(const CcTensorDesc *t, int from) {
    int64_t n = 1;
    for (int i = from; i < t->ndim; i++) n *= t->size[i];
    return n;
}

static int64_t depth_of(const CcPrimDesc *d) {
    if (d->kind == CC_PRIM_MATMUL) return d->src.size[d->src.ndim - 1];
    return product_of(&d->weights, d->weights.ndim - d->dst.ndim + 1);
}

int64_t cc_vet_work(const CcPrimDesc *d) {
    return product_of(d->kind == CC_PRIM_DECONV ? &d->src : &d->dst, 0) * depth_of(d);
}

void cc_vet_resize(CcPrimDesc *d, int dim, int64_t size) {
    d->dst.size[dim] = size;
    for (int i = 0; i < d->n_post; i++)
        if (d->post[i].operand.ndim && d->post[i].operand.size[dim] > 1) d->post[i].operand.size[dim] = size;
}

/* `blocks` blocks and n's remainder; n itself if it has no more. */
static int64_t fewer(int64_t n, int64_t block, int64_t blocks) {
    return n < (blocks + 1) * block ? n : blocks * block + n % block;
}

static void shrink_product(CcPrimDesc *d) {
    const int r = d->dst.ndim - 2, c = d->dst.ndim - 1;
    for (int i = 0; i < r; i++) {
        const int64_t most = CC_MIN(2, d->dst.size[i]);
        d->src.size[i] = CC_MIN(most, d->src.size[i]);
        d->weights.size[i] = CC_MIN(most, d->weights.size[i]);
        cc_vet_resize(d, i, most);
    }
    const int64_t rows = fewer(d->dst.size[r], BLOCK, 1), columns = fewer(d->dst.size[c], BLOCK, 4);
    d->src.size[r] = rows;
    cc_vet_resize(d, r, rows);
    d->weights.size[c] = columns;
    if (d->bias.ndim) d->bias.size[d->bias.ndim - 1] = columns;
    cc_vet_resize(d, c, columns);
}

/* Batch 1; fewer lines in 2 and 3 dims; fewer output channels. */
static void shrink_conv(CcPrimDesc *d) {
    const bool groups = d->weights.ndim > d->dst.ndim;
    d->src.size[0] = 1;
    cc_vet_resize(d, 0, 1);
    if (d->dst.ndim > 3) {
        const int64_t reach = d->dilation[0] * (d->weights.size[2 + groups] - 1),
                      edge = d->pad_before[0] + d->pad_after[0];
        int64_t few = d->kind == CC_PRIM_DECONV ? d->src.size[2] : d->dst.size[2];
        few = fewer(few, LINES, 1);
        const int64_t wide = (few - 1) * d->stride[0] + reach + 1 - edge;
        if (d->kind == CC_PRIM_CONV && wide > 0 && wide <= d->src.size[2]) {
            d->src.size[2] = wide;
            cc_vet_resize(d, 2, few);
        } else if (d->kind == CC_PRIM_DECONV && wide > 0 && wide <= d->dst.size[2]) {
            d->src.size[2] = few;
            cc_vet_resize(d, 2, wide);
        }
    }
    if (groups) return;
    const int64_t outputs = fewer(d->dst.size[1], BLOCK, 2);
    d->weights.size[0] = outputs;
    if (d->bias.ndim) d->bias.size[0] = outputs;
    cc_vet_resize(d, 1, outputs);
}

static int64_t extent(const CcTensorDesc *t) { /* elements from the first to the last, gaps included */
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n += (t->size[i] - 1) * t->stride[i];
    return n;
}

/* Makes a shrunk tensor dense if the original was: oneDNN uses other code for gaps. */
static void close_gaps(const CcTensorDesc *was, CcTensorDesc *now) {
    if (extent(was) != product_of(was, 0)) return;
    for (int i = 0; i < was->ndim; i++) {
        now->stride[i] = 1;
        for (int k = 0; k < was->ndim; k++)
            if (was->stride[k] < was->stride[i] || (was->stride[k] == was->stride[i] && k > i))
                now->stride[i] *= now->size[k];
    }
}

bool cc_vet_smaller(const CcPrimDesc *d, CcPrimDesc *out) {
    *out = *d;
    if (cc_vet_work(d) <= MOST_WORK) return false;
    if (d->kind == CC_PRIM_MATMUL) shrink_product(out);
    else shrink_conv(out);
    close_gaps(&d->src, &out->src);
    close_gaps(&d->weights, &out->weights);
    close_gaps(&d->bias, &out->bias);
    close_gaps(&d->dst, &out->dst);
    for (int i = 0; i < d->n_post; i++) close_gaps(&d->post[i].operand, &out->post[i].operand);
    return cc_vet_work(out) < cc_vet_work(d);
}

/* ------------------------------------------------------------------ verdicts */

enum { RIGHT = 1, WRONG };
static CcMap known; /* hash of a key -> RIGHT or WRONG */

int cc_vet_known(const char *key, size_t n, CcErr *err) {
    const void *const hash = (const void *)(uintptr_t)(cc_map_hash(key, n, 5) | 1);
    const int64_t *const found = cc_map_find(&known, hash);
    int verdict = found ? (int)*found : 0;
    CcBlob blob;
    if (verdict != RIGHT && cc_disk_get(CC_DISK_VERDICT, key, n, &blob)) {
        verdict = blob.at[0];
        if (verdict == WRONG) cc_err_set(err, CC_E_VERIFY, "%.*s", (int)blob.n - 1, blob.at + 1);
        free(blob.at);
        cc_map_put(&known, hash, verdict);
    } else if (verdict == WRONG) {
        cc_err_set(err, CC_E_VERIFY, "it failed an earlier check");
    }
    return verdict == RIGHT ? 1 : verdict == WRONG ? -1 : 0;
}

void cc_vet_keep(const char *key, size_t n, const CcErr *wrong) {
    char text[1 + sizeof wrong->text];
    text[0] = wrong ? WRONG : RIGHT;
    const size_t more = wrong ? strlen(wrong->text) : 0;
    if (wrong) memcpy(text + 1, wrong->text, more);
    cc_map_put(&known, (const void *)(uintptr_t)(cc_map_hash(key, n, 5) | 1), text[0]);
    cc_disk_put(CC_DISK_VERDICT, key, n, &(CcBlob){text, 1 + more});
}

/* ------------------------------------------------------------------ generated numbers */

static size_t bytes_of(const CcTensorDesc *t) { return (size_t)extent(t) * (size_t)cc_dtype_size(t->dtype); }

/* Fills with +-(1 .. most) * 2^-shift. */
static void fill(const CcTensorDesc *t, char *at, uint32_t seed, int most, int shift) {
    float tile[TILE];
    uint16_t half[TILE];
    const float unit = ldexpf(1, -shift);
    const int n = (int)CC_MIN(TILE, extent(t));
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        const int number = 1 + (int)((seed >> 8) % (uint32_t)most);
        tile[i] = (float)(seed >> 31 ? -number : number) * unit;
    }
    const bool wide = t->dtype == CC_DT_F32;
    if (!wide) cc_halves_narrow(t->dtype, tile, half, n);
    const char *const from = wide ? (const char *)tile : (const char *)half;
    const size_t whole = wide ? sizeof tile : sizeof half, bytes = bytes_of(t);
    for (size_t i = 0; i < bytes; i += whole) memcpy(at + i, from, CC_MIN(whole, bytes - i));
}

/* -1: out of memory */
static int make_numbers(Vet *v, size_t scratch) {
    const CcPrimDesc *d = v->d;
    bool half = false;
    size_t bytes = (scratch + PAD - 1) / PAD * PAD, place[PARTS];
    for (int i = 0; i < PARTS; i++) {
        place[i] = bytes;
        if (!v->part[i]) continue;
        half = half || v->part[i]->dtype != CC_DT_F32;
        bytes += (bytes_of(v->part[i]) + PAD - 1) / PAD * PAD;
    }
    v->scratch = aligned_alloc(PAD, bytes + PAD);
    if (!v->scratch) return -1;
    /* The largest number is 15 / 8 or 2047 / 1024. A sum of n products grows as sqrt(n), which `less` compensates. */
    const int most = half ? 15 : 2047, shift = half ? 3 : 10, less = ilogb(sqrt((double)v->depth)) + 1;
    for (int i = 0; i < PARTS; i++) {
        if (!v->part[i]) continue;
        v->at[i] = v->scratch + place[i];
        if (i == DST && !v->sums) memset(v->at[i], 0xff, bytes_of(&d->dst)); /* NaN: reveals unwritten results */
        else fill(v->part[i], v->at[i], (uint32_t)i * 7919 + 1, most, shift + (i == WEIGHTS ? less : 0));
    }
    return 0;
}

static int64_t bytes_each(const CcTensorDesc *t) { return cc_dtype_size(t->dtype); }

static int64_t place_of(const CcTensorDesc *t, const int64_t *index) {
    int64_t at = 0;
    for (int i = 0; i < t->ndim; i++) at += t->size[i] > 1 ? index[i] * t->stride[i] : 0;
    return at * bytes_each(t);
}

static double load(const Vet *v, int part, const int64_t *index) {
    const CcTensorDesc *t = v->part[part];
    float value;
    cc_halves_widen(t->dtype, v->at[part] + place_of(t, index), &value, 1);
    return value;
}

/* ------------------------------------------------------------------ expected results */

typedef struct Result {
    double value, error; /* error: bound of rounding errors in f32 */
} Result;

/* Adds n products along these dims from these indices on to *sum, and their absolute values to *size. */
static void add_products(const Vet *v, const int64_t *src, int src_dim, const int64_t *weights, int weights_dim,
                         int64_t n, double *sum, double *size) {
    float a[CHUNK], b[CHUNK];
    const CcTensorDesc *s = v->part[SRC], *w = v->part[WEIGHTS];
    const char *const from = v->at[SRC] + place_of(s, src), *const by = v->at[WEIGHTS] + place_of(w, weights);
    const int64_t step = s->stride[src_dim], w_step = w->stride[weights_dim];
    for (int64_t at = 0; at < n; at += CHUNK) {
        const int64_t some = CC_MIN(CHUNK, n - at);
        cc_halves_gather(s->dtype, from + at * step * bytes_each(s), step, a, some);
        cc_halves_gather(w->dtype, by + at * w_step * bytes_each(w), w_step, b, some);
        for (int64_t i = 0; i < some; i++) {
            *sum += (double)a[i] * b[i];
            *size += fabs((double)a[i] * b[i]);
        }
    }
}

static void multiply_rows(const Vet *v, double *sum, double *size) {
    const int c = v->d->dst.ndim - 1;
    int64_t src[CC_DNNL_MAX_NDIM], weights[CC_DNNL_MAX_NDIM];
    memcpy(src, v->index, sizeof src);
    memcpy(weights, v->index, sizeof weights);
    src[c] = weights[c - 1] = 0;
    add_products(v, src, c, weights, c - 1, v->depth, sum, size);
}

/* The input position *in that an output and a tap of the kernel read. false: padding, or between two strides of a
 * transposed convolution. */
static bool find_input(const Vet *v, int dim, int64_t out, int64_t tap, int64_t *in) {
    const CcPrimDesc *d = v->d;
    const int64_t far = tap * d->dilation[dim] - d->pad_before[dim];
    *in = d->kind == CC_PRIM_CONV ? out * d->stride[dim] + far : out - far;
    if (d->kind == CC_PRIM_DECONV && *in % d->stride[dim]) return false;
    if (d->kind == CC_PRIM_DECONV) *in /= d->stride[dim];
    return *in >= 0 && *in < d->src.size[2 + dim];
}

static void convolve(const Vet *v, double *sum, double *size) {
    const CcPrimDesc *d = v->d;
    const int extra = d->weights.ndim - d->dst.ndim, dims = d->dst.ndim - 2;
    const int64_t outputs = d->weights.size[extra], inputs = d->weights.size[extra + 1];
    const int64_t group = v->index[1] / outputs;
    int64_t src[CC_DNNL_MAX_NDIM] = {v->index[0]}, weights[CC_DNNL_MAX_NDIM + 1] = {group};
    weights[extra] = v->index[1] % outputs;
    for (int64_t tap = 0, taps = v->depth / inputs; tap < taps; tap++) {
        bool inside = true;
        int64_t rest = tap;
        for (int i = dims - 1; i >= 0; i--) {
            const int64_t n = d->weights.size[extra + 2 + i];
            weights[extra + 2 + i] = rest % n;
            inside = find_input(v, i, v->index[2 + i], rest % n, &src[2 + i]) && inside;
            rest /= n;
        }
        src[1] = group * inputs;
        if (inside) add_products(v, src, 1, weights, extra + 1, inputs, sum, size);
    }
}

static double apply(CcPostKind kind, double x) {
    switch (kind) {
    case CC_POST_GELU_ERF: return x / 2 * (1 + erf(x * M_SQRT1_2));
    case CC_POST_GELU_TANH: return x / 2 * (1 + tanh(M_SQRT1_2 * M_2_SQRTPI * (x + 0.044715 * x * x * x)));
    case CC_POST_SILU: return x / (1 + exp(-x));
    case CC_POST_SIGMOID: return 1 / (1 + exp(-x));
    default: return tanh(x);
    }
}

/* before: dst's previous value */
static Result expect(const Vet *v, double before) {
    const CcPrimDesc *d = v->d;
    const double unit = ldexp(1, -23);
    double value = 0, size = 0;
    if (d->kind == CC_PRIM_MATMUL) multiply_rows(v, &value, &size);
    else convolve(v, &value, &size);
    double error = unit * (4 + sqrt((double)v->depth)) * size;
    if (d->bias.ndim) value += load(v, BIAS, d->kind == CC_PRIM_MATMUL ? v->index : &v->index[1]);
    for (int i = 0; i < d->n_post; i++) {
        const CcPostKind kind = d->post[i].kind;
        const double other = d->post[i].operand.ndim ? load(v, POST + i, v->index) : d->post[i].scale;
        error += unit * fabs(value);
        if (kind == CC_POST_SUM) value += before;
        else if (kind == CC_POST_ADD) value += other;
        if (kind == CC_POST_SUM || kind == CC_POST_ADD) continue;
        if (kind == CC_POST_MUL || kind == CC_POST_SCALE) {
            value *= other;
            error *= fabs(other);
        } else { /* activations: no slope exceeds 1.2; oneDNN approximates them */
            error = 1.2 * error + 1e-5 * (1 + fabs(value));
            value = apply(kind, value);
        }
    }
    return (Result){value, error};
}

/* Picks a sample: two corners first; then each dim is at an edge with probability 1/2. */
static void choose_index(Vet *v, int sample, uint32_t *seed) {
    for (int i = 0; i < v->d->dst.ndim; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        const int64_t n = v->d->dst.size[i], pick = *seed >> 30;
        const int64_t inner = (int64_t)(((uint64_t)(*seed << 2) * (uint64_t)n) >> 32);
        v->index[i] = sample == 0 || (sample > 1 && pick == 0) ? 0 : sample == 1 || pick == 1 ? n - 1 : inner;
    }
}

static bool is_right(const Vet *v, const Result *want, double *got) {
    const CcDtype to = v->d->dst.dtype;
    const double unit = to == CC_DT_BF16 ? 0x1p-8 : to == CC_DT_F16 ? 0x1p-11 : 0x1p-24;
    const double most = to == CC_DT_F16 ? 65000 : 3e38;
    *got = load(v, DST, v->index);
    if (!(fabs(want->value) < most)) return true; /* out of dst's range */
    return fabs(*got - want->value) <= 4 * want->error + 4 * unit * fabs(want->value) + ldexp(unit, -12);
}

static int compare(Vet *v, CcPrim *p, CcErr *err) {
    const int n = (int)CC_MAX(LEAST_SAMPLES, CC_MIN(MOST_SAMPLES, SAMPLED_WORK / v->depth));
    Result want[MOST_SAMPLES];
    uint32_t seed = 1;
    for (int i = 0; i < n; i++) { /* before the run, which overwrites dst */
        choose_index(v, i, &seed);
        want[i] = expect(v, v->sums ? load(v, DST, v->index) : 0);
    }
    CcPrimCall call = {
        .src = v->at[SRC], .weights = v->at[WEIGHTS], .bias = v->at[BIAS], .dst = v->at[DST], .scratch = v->scratch};
    for (int i = 0; i < v->d->n_post; i++) call.post[i] = v->at[POST + i];
    if (cc_dnnl_run(p, &call, err) < 0) return -1;
    seed = 1;
    for (int i = 0; i < n; i++) {
        double got;
        choose_index(v, i, &seed);
        if (!is_right(v, &want[i], &got))
            return cc_err_set(err, CC_E_VERIFY, "it gives %g instead of %g", got, want[i].value);
    }
    return 0;
}

int cc_vet_run(CcPrim *p, const CcPrimDesc *d, CcErr *err) {
    Vet v = {.d = d, .depth = depth_of(d), .part = {&d->src, &d->weights, d->bias.ndim ? &d->bias : NULL, &d->dst}};
    for (int i = 0; i < d->n_post; i++) {
        v.part[POST + i] = d->post[i].operand.ndim ? &d->post[i].operand : NULL;
        v.sums = v.sums || d->post[i].kind == CC_POST_SUM;
    }
    if (make_numbers(&v, cc_dnnl_bytes(p)) < 0) return cc_err_set(err, CC_E_MEMORY, "no memory to verify a primitive");
    const int status = compare(&v, p, err);
    free(v.scratch);
    return status;
}
