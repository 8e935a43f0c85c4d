/* product: runs products (linear, matmul, mm, bmm, addmm) with oneDNN or our own loops (gemv, gemm), followed by
 * post-ops. Weights stay plain, since their data may change between calls, unless they are frozen. f32, bf16 and
 * f16, where the rule picks oneDNN; transposed results are f32 only. Operands that autocast would cast (f32 operands of a bf16
 * result) are cast while packing. */
#include <math.h>
#include <stdatomic.h>

#include "run_int.h"

enum {
    /* Where transposing the product gains, measured on Zen 4 (avx512) with 1 and 2 threads; oneDNN pads rows to
     * vectors. 32x512x512 took 167 and 86 us against 147 and 75, 16x512x512 95 and 50 against 74 and 38; with 24
     * rows 131 against 146 and with 8 59 against 74 (one thread); 32x1024x1024 692 against 698. */
    TURN_LANES = 16,
    TURN_MAX_ROWS = 48,
    TURN_MIN_WEIGHTS = 1 << 16,
    TURN_MAX_WEIGHTS = 1 << 20,
    /* Number of rows up to which the rule lets gemm multiply plain weights, and minimum sizes of the weights. */
    PLAIN_MAX_ROWS = 1024,
    PLAIN_MIN = 64,
    /* Minimum size of a result that is worth transposing back: 32x512x10 of a transposed source took 7.4 us, 3.6
     * untransposed. */
    BACK_MAX = 1024
};

/* A way that was chosen after the plan was laid out, so its scratch memory is its own. */
typedef struct Better {
    CcWay way;
    _Atomic(char *) spare; /* cc_choose_take */
} Better;

typedef struct CcProduct {
    CcWay way;
    /* Measured in the first run, which other runs do not wait for: `measures` is taken by one of them, `better` is the
     * way that it found, or NULL. */
    CcPrimDesc *desc;
    CcChoice choice;
    atomic_bool measures;
    _Atomic(Better *) better;
    bool single; /* one row: gemv */
    CcGemv gemv;
    bool own; /* the rule picks gemm */
    CcSlot src, weights, bias, dst, post[CC_DNNL_MAX_POST];
    int n_post;
    bool transposed, back; /* transposed: computes dst^T; back: then transposes it back */
    int64_t rows, cols;    /* transposed: of dst^T, whose rows are first filled with their bias */
} CcProduct;

/* Where a product of one row finds its operands. */
typedef struct Roles {
    CcOpId op;
    int src, weights, bias;
    bool transposed; /* weights are [out, in] */
} Roles;
static const Roles ROLES[] = {
    {CC_OP_linear, CC_AT(linear, x), CC_AT(linear, weight), CC_AT(linear, bias), true},
    {CC_OP_matmul, CC_AT(matmul, a), CC_AT(matmul, b), -1, false},
    {CC_OP_mm, CC_AT(mm, a), CC_AT(mm, b), -1, false},
    {CC_OP_bmm, CC_AT(bmm, a), CC_AT(bmm, b), -1, false},
    {CC_OP_addmm, CC_AT(addmm, a), CC_AT(addmm, b), CC_AT(addmm, bias), false},
};

static void insert_dim(CcTensorDesc *d, int at) { /* of size 1 */
    for (int i = d->ndim++; i > at; i--) {
        d->size[i] = d->size[i - 1];
        d->stride[i] = d->stride[i - 1];
    }
    d->size[at] = 1;
    d->stride[at] = 0;
}

static void swap_last(CcTensorDesc *d) {
    const int i = d->ndim - 1, k = d->ndim - 2;
    const int64_t size = d->size[i], stride = d->stride[i];
    d->size[i] = d->size[k];
    d->stride[i] = d->stride[k];
    d->size[k] = size;
    d->stride[k] = stride;
}

/* Merges all dims but the last. */
static bool flatten(CcTensorDesc *d) {
    int64_t size = 1, stride = 0;
    for (int i = d->ndim - 2; i >= 0; i--) {
        if (d->size[i] == 1) continue;
        if (size == 1) stride = d->stride[i];
        else if (d->stride[i] != stride * size) return false;
        size *= d->size[i];
    }
    d->size[1] = d->size[d->ndim - 1];
    d->stride[1] = d->stride[d->ndim - 1];
    d->size[0] = size;
    d->stride[0] = stride;
    for (int i = 2; i < d->ndim; i++) d->size[i] = d->stride[i] = 0; /* descriptors are compared as bytes */
    d->ndim = 2;
    return true;
}

/* A contiguous result may have any shape (pass/views.c): the product writes rows of n. */
static void as_rows(CcTensorDesc *d, int64_t n) {
    const int64_t numel = d->size[0] * d->size[1];
    if (numel % n == 0) *d = (CcTensorDesc){.ndim = 2, .dtype = d->dtype, .size = {numel / n, n}, .stride = {n, 1}};
}

/* The same for a batch: the dims before the last two are those of both operands. */
static void as_batch(CcTensorDesc *d, const CcTensorDesc *src, const CcTensorDesc *weights) {
    CcTensorDesc to = {.ndim = src->ndim, .dtype = d->dtype};
    int64_t numel = 1, step = 1;
    for (int i = 0; i < d->ndim; i++) numel *= d->size[i];
    for (int i = to.ndim - 1; i >= 0; i--) {
        to.size[i] = i == to.ndim - 1   ? weights->size[i]
                     : i == to.ndim - 2 ? src->size[i]
                                        : CC_MAX(src->size[i], weights->size[i]);
        to.stride[i] = step;
        step *= to.size[i];
    }
    if (step == numel) *d = to;
}

/* Normalises strides of dims of size 1, which oneDNN reads and torch leaves arbitrary. A broadcast batch also
 * becomes size 1. */
static bool normalise(CcTensorDesc *d) {
    const int r = d->ndim - 2, c = d->ndim - 1;
    for (int i = 0; i < r; i++)
        if (d->stride[i] == 0) d->size[i] = 1;
    if (d->size[r] == 1 && d->size[c] == 1) d->stride[c] = d->stride[r] = 1;
    else if (d->size[c] == 1) d->stride[c] = d->stride[r] == 1 ? d->size[r] : 1;
    else if (d->size[r] == 1) d->stride[r] = d->stride[c] == 1 ? d->size[c] : 1;
    if ((d->stride[r] != 1 && d->stride[c] != 1) || d->stride[r] == 0 || d->stride[c] == 0) return false;
    for (int i = r - 1; i >= 0; i--)
        if (d->size[i] == 1) d->stride[i] = i + 1 < r ? d->stride[i + 1] * d->size[i + 1] : d->size[r] * d->size[c];
    return true;
}

static const Roles *roles_of(const CcNode *n) {
    for (int i = 0; i < CC_COUNT(ROLES); i++)
        if (ROLES[i].op == n->op) return &ROLES[i];
    return NULL;
}

static int set_bias(const CcGraph *g, const CcOperand *o, CcTensorDesc *bias, const CcTensorDesc *dst) {
    const CcType *t = &g->val.at[o->value].type;
    if (!cc_prim_float(t) || t->ndim > 2 || t->size[t->ndim - 1] != dst->size[dst->ndim - 1]) return -1;
    if ((t->ndim == 2 && t->size[0] != 1) || (t->size[t->ndim - 1] > 1 && t->stride[t->ndim - 1] != 1)) return -1;
    bias->ndim = dst->ndim;
    bias->dtype = (CcDtype)t->dtype;
    for (int i = 0; i < bias->ndim; i++) {
        bias->size[i] = i == bias->ndim - 1 ? t->size[t->ndim - 1] : 1;
        bias->stride[i] = i == bias->ndim - 1 ? 1 : t->size[t->ndim - 1];
    }
    return 0;
}

/* dst^T = weights^T @ src^T. oneDNN has no bias along rows, so dst is filled with the bias first and the product
 * added. */
static void transpose(CcPrimDesc *d, CcProduct *product) {
    const CcTensorDesc src = d->src;
    const CcSlot was = product->src;
    d->src = d->weights;
    d->weights = src;
    product->src = product->weights;
    product->weights = was;
    swap_last(&d->src);
    swap_last(&d->weights);
    swap_last(&d->dst);
    product->transposed = true;
    product->rows = d->dst.size[0];
    product->cols = d->dst.size[1];
    if (product->back) {
        d->dst.stride[0] = product->cols;
        d->dst.stride[1] = 1;
    }
    if (product->bias.value < 0) return;
    memset(&d->bias, 0, sizeof d->bias);
    d->post[d->n_post++].kind = CC_POST_SUM;
    product->post[product->n_post++].value = -1;
}

/* A product of one row reads plain weights in place. */
static bool one_row(const CcPrimDesc *d, CcGemv *g) {
    const int r = d->src.ndim - 2, c = d->src.ndim - 1;
    for (int i = 0; i < r; i++)
        if (d->dst.size[i] != 1 || d->weights.size[i] != 1) return false;
    if (d->dst.size[r] != 1 || (d->src.size[c] > 1 && d->src.stride[c] != 1)) return false;
    *g = (CcGemv){.dtype = d->dst.dtype,
                  .n = d->weights.size[c],
                  .k = d->weights.size[r],
                  .row = d->weights.stride[c],
                  .col = d->weights.stride[r]};
    if (g->n == 1) g->row = g->col == 1 ? g->k : 1; /* a dim of size 1 may have any stride */
    if (g->k == 1) g->col = g->row == 1 ? g->n : 1;
    return cc_gemv_can(g);
}

/* Kept packed, half-precision weights [k, n] are read faster than in place: 1x4096x4096 of bf16 from memory 23.7 GFLOP/s
 * against 17.0, in default mode 11.9 by oneDNN against 16.0 (a Xeon with AVX512-BF16, 2 threads). */
static bool packs_better(const CcGemv *g, bool frozen) { return frozen && g->dtype != CC_DT_F32 && g->col != 1; }

/* Is gemm on plain weights [n, k] faster than oneDNN, which packs them? */
static bool gains_plain(const CcPrimDesc *d) {
    const int64_t m = d->dst.size[0];
    return d->weights.stride[0] == 1 && m > TURN_MAX_ROWS && m <= PLAIN_MAX_ROWS && d->dst.size[1] >= PLAIN_MIN &&
           d->src.size[1] >= PLAIN_MIN && cc_gemm_padding(m) * 10 <= m;
}

/* Does the rule pick gemm? Otherwise it picks oneDNN. */
static bool is_own(const CcPrimDesc *d, bool frozen) {
    const unsigned ways = cc_ways_of(d, frozen);
    return frozen ? ways & CC_WAY_BIT(OWN_PACKED) : ways & CC_WAY_BIT(OWN) && gains_plain(d);
}

/* Are the elements of each row next to each other? */
static bool has_rows(const CcType *t) { return t->ndim >= 2 && t->stride[t->ndim - 1] == 1; }

/* Gives the three operands the same number of dims, at least 2: vectors become matrices of one row or column, leading dims are
 * merged or filled up. `free`: the result is contiguous, so its shape need not be the product's. -1: no strides describe this. */
static int as_matrices(CcPrimDesc *d, bool free) {
    const int src_dims = d->src.ndim, weight_dims = d->weights.ndim;
    if (src_dims == 1) {
        insert_dim(&d->src, 0);
        insert_dim(&d->dst, d->dst.ndim - (weight_dims > 1));
    }
    if (weight_dims == 1) {
        insert_dim(&d->weights, 1);
        insert_dim(&d->dst, d->dst.ndim);
    }
    if (d->weights.ndim == 2) {
        if (d->src.ndim > 2 && !flatten(&d->src)) return -1;
        if (d->dst.ndim > 2 && !flatten(&d->dst)) return -1;
        if (free) as_rows(&d->dst, d->weights.size[1]);
    }
    while (d->src.ndim < d->weights.ndim) insert_dim(&d->src, 0);
    while (d->weights.ndim < d->src.ndim) insert_dim(&d->weights, 0);
    if (weight_dims > 2 && free) as_batch(&d->dst, &d->src, &d->weights);
    if (d->dst.ndim != d->src.ndim || !normalise(&d->src) || !normalise(&d->weights) || !normalise(&d->dst)) return -1;
    const int r = d->src.ndim - 2, c = d->src.ndim - 1;
    return d->src.size[c] == d->weights.size[r] && d->dst.size[r] == d->src.size[r] &&
                   d->dst.size[c] == d->weights.size[c]
               ? 0
               : -1;
}

/* A transposed source is read along its rows if the product is transposed, too; a small result is then transposed back. */
static bool gains_back(const CcGraph *g, const CcNode *n, const CcPrimDesc *d, int src) {
    return n->op == CC_OP_linear && cc_transposed(&g->val.at[src]) && d->dst.ndim == 2 &&
           d->dst.size[0] * d->dst.size[1] <= BACK_MAX;
}

/* What the rule picks: a transposed product, one row, our own loops or (none of these) the library. */
static void pick(const CcGraph *g, const CcNode *n, CcPrimDesc *d, CcProduct *product) {
    const bool transposed = cc_transposed(&g->val.at[n->out0]), frozen = cc_prim_frozen(g, product->weights.value);
    const bool same = d->src.dtype == d->dst.dtype && d->weights.dtype == d->dst.dtype &&
                      (product->bias.value < 0 || d->bias.dtype == d->dst.dtype);
    const bool plain = same && d->dst.dtype == CC_DT_F32;
    product->back = plain && !transposed && gains_back(g, n, d, product->src.value);
    if (transposed || product->back) transpose(d, product);
    else if (same && one_row(d, &product->gemv) && !packs_better(&product->gemv, frozen)) product->single = true;
    else product->own = plain && is_own(d, frozen);
}

/* The product without post-ops. -1: no back-end can do it. */
static int describe(const CcGraph *g, const CcNode *n, CcPrimDesc *d, CcProduct *product) {
    const Roles *roles = roles_of(n);
    if (!roles) return -1;
    const CcOperand *src = cc_prim_operand(g, n, roles->src), *weights = cc_prim_operand(g, n, roles->weights);
    const CcOperand *bias = cc_prim_operand(g, n, roles->bias);
    if (!src || !weights || src->kind != CC_IN_VALUE || weights->kind != CC_IN_VALUE) return -1;
    const CcType *s = &g->val.at[src->value].type, *w = &g->val.at[weights->value].type, *o = &g->val.at[n->out0].type;
    const bool transposed = cc_transposed(&g->val.at[n->out0]);
    /* a gradient with the strides of a permuted value (grad/adjoint.c) */
    const bool strided = !transposed && !cc_type_contiguous(o);
    if (!cc_prim_float(s) || !cc_prim_float(w) || !cc_prim_float(o) || (strided && !has_rows(o))) return -1;
    if (roles->transposed && w->ndim != 2) return -1;
    product->src.value = src->value;
    product->weights.value = weights->value;
    product->bias.value = -1;
    *d = (CcPrimDesc){.src = cc_prim_desc(s), .weights = cc_prim_desc(w), .dst = cc_prim_desc(o)};
    if (roles->transposed) swap_last(&d->weights);
    if (as_matrices(d, !transposed && !strided) < 0) return -1;
    if (bias && bias->kind != CC_IN_NONE) {
        product->bias.value = bias->value;
        if (bias->kind != CC_IN_VALUE || set_bias(g, bias, &d->bias, &d->dst) < 0) return -1;
    }
    pick(g, n, d, product);
    return 0;
}

bool cc_product_gains_transposed(const CcGraph *g, int node) {
    CcPrimDesc d;
    CcProduct product = {.bias = {-1, 0}};
    const CcNode *n = &g->node.at[node];
    if (n->op != CC_OP_linear || cc_cpu_info()->vector_bytes != TURN_LANES * (int)sizeof(float) ||
        describe(g, n, &d, &product) < 0 || d.dst.ndim != 2 || product.own || d.src.dtype != CC_DT_F32 ||
        d.weights.dtype != CC_DT_F32 || d.dst.dtype != CC_DT_F32)
        return false;
    const int64_t rows = d.dst.size[0], weights = d.weights.size[0] * d.weights.size[1];
    return !cc_prim_frozen(g, product.weights.value) && rows % TURN_LANES == 0 && rows <= TURN_MAX_ROWS &&
           weights >= TURN_MIN_WEIGHTS && weights < TURN_MAX_WEIGHTS && !g->val.at[product.src.value].window_of;
}

/* The number that a node multiplies `value` by; a division counts if the reciprocal is exact. */
static bool scale_of(const CcGraph *g, const CcNode *n, int value, float *scale) {
    CcIn_mul in;
    if ((n->op != CC_OP_mul && n->op != CC_OP_div) || !cc_in_mul(g, n, &in)) return false;
    const bool first = n->op == CC_OP_mul && in.in[0].kind != CC_IN_VALUE;
    const CcOperand *a = &in.in[first], *b = &in.in[!first];
    if (a->kind != CC_IN_VALUE || a->value != value) return false;
    if (b->kind != CC_IN_FLOAT && b->kind != CC_IN_INT) return false;
    const float number = b->kind == CC_IN_FLOAT ? (float)b->f : (float)b->i;
    int exponent;
    if (n->op == CC_OP_div && (fabsf(frexpf(number, &exponent)) != 0.5f || abs(exponent) > 100)) return false;
    *scale = n->op == CC_OP_mul ? number : 1 / number;
    return isfinite(*scale);
}

static int add_post(const CcGraph *g, const CcNode *last, const CcNode *n, CcPrimDesc *d, CcProduct *product) {
    if (product->single) return -1;
    int kind = cc_prim_unary(n);
    float scale = 0;
    if (n->op == CC_OP_add || n->op == CC_OP_mul) kind = n->op == CC_OP_add ? CC_POST_ADD : CC_POST_MUL;
    if (product->own && n->op == CC_OP_relu) kind = CC_POST_RELU;
    if (scale_of(g, n, last->out0, &scale)) kind = CC_POST_SCALE;
    /* For batches with gaps in memory oneDNN takes a path with slow post-ops: 128 products of 128x32x128 took 3.2 ms
     * with a scale, 1.8 without (Zen 4, one thread), a kernel 0.5. */
    if (kind == CC_POST_SCALE && d->src.ndim > 2 &&
        !(cc_type_dense(&g->val.at[product->src.value].type) && cc_type_dense(&g->val.at[product->weights.value].type)))
        return -1;
    const CcType *out = &g->val.at[n->out0].type, *before = &g->val.at[last->out0].type;
    const bool transposed = cc_transposed(&g->val.at[n->out0]);
    if (kind < 0 || d->n_post == CC_DNNL_MAX_POST || !cc_prim_float(out) || out->dtype != before->dtype ||
        (!transposed && !cc_type_contiguous(out)) || transposed != cc_transposed(&g->val.at[last->out0]) ||
        !cc_type_same_shape(out, before))
        return -1;
    int other = -1;
    if (kind == CC_POST_ADD || kind == CC_POST_MUL) {
        CcIn_add in;
        if (!cc_prim_binary(g, n, &in)) return -1;
        for (int i = 0; i < 2; i++) {
            if (in.in[i].kind != CC_IN_VALUE) return -1;
            if (in.in[i].value != last->out0) other = in.in[i].value;
        }
        if (other < 0) return -1;
        const CcType *t = &g->val.at[other].type;
        if (product->transposed || !cc_prim_operand_of(t) || !cc_type_contiguous(t) || !cc_type_same_shape(t, out))
            return -1;
        d->post[d->n_post].operand = d->dst;
        d->post[d->n_post].operand.dtype = (CcDtype)t->dtype;
    }
    d->post[d->n_post].scale = scale;
    d->post[d->n_post++].kind = (CcPostKind)kind;
    product->post[product->n_post++].value = other;
    return 0;
}

static int describe_chain(const CcGraph *g, const int *nodes, int n, CcPrimDesc *d, CcProduct *product) {
    *product = (CcProduct){.bias = {-1, 0}};
    if (describe(g, &g->node.at[nodes[0]], d, product) < 0) return -1;
    for (int i = 1; i < n; i++)
        if (add_post(g, &g->node.at[nodes[i - 1]], &g->node.at[nodes[i]], d, product) < 0) return -1;
    product->dst.value = g->node.at[nodes[n - 1]].out0;
    return 0;
}

static bool can(const CcGraph *g, int node) {
    CcPrimDesc d;
    CcProduct product;
    return describe_chain(g, &node, 1, &d, &product) == 0;
}

static bool can_post(const CcGraph *g, const int *chain, int n, int node) {
    CcPrimDesc d;
    CcProduct product;
    return describe_chain(g, chain, n, &d, &product) == 0 &&
           add_post(g, &g->node.at[chain[n - 1]], &g->node.at[node], &d, &product) == 0;
}

/* The way that needs no measurement. */
static CcWayKind rule_of(const CcGraph *g, const CcPrimDesc *d, const CcProduct *product) {
    const bool frozen = cc_prim_frozen(g, product->weights.value);
    if (product->own) return frozen ? CC_WAY_OWN_PACKED : CC_WAY_OWN;
    return frozen && d->weights.ndim == 2 && !product->transposed ? CC_WAY_ONEDNN_PACKED : CC_WAY_ONEDNN;
}

/* The rule's way, which serves where no measured one does. */
static int make_rule(const CcGraph *g, const CcPrimDesc *d, CcProduct *product, CcErr *err) {
    CcWay *way = &product->way;
    if (cc_ways_make(way, (CcWayKind)product->choice.rule, d, err) < 0) return -1;
    if (way->prim && !way->packed && cc_prim_cast_once(g, product->weights.value, d->dst.dtype))
        way->packed = cc_packed_new();
    return 0;
}

/* -1: the library refuses. */
static int make_way(const CcGraph *g, const CcPrimDesc *d, CcProduct *product, CcArena *arena, CcErr *err) {
    const bool frozen = cc_prim_frozen(g, product->weights.value);
    product->choice = cc_ways_choice(d, frozen, rule_of(g, d, product), g->input_bytes);
    const bool several = g->measures && !product->transposed && (product->choice.ways >> product->choice.rule & 1);
    if (!several) return make_rule(g, d, product, err);
    product->desc = cc_arena_alloc(arena, sizeof *d);
    if (!product->desc) return cc_err_set(err, CC_E_MEMORY, "no memory for a product");
    *product->desc = *d;
    product->choice.desc = product->desc;
    const int known = cc_choose_known(&product->choice);
    product->measures = known < 0 && cc_choose_may(&product->choice);
    if (known >= 0 && cc_ways_make(&product->way, (CcWayKind)known, d, err) == 0) return 0;
    if (known >= 0)
        cc_log_add(CC_LOG_FALLBACK, "a product is not by %s: %s", cc_ways_name((CcWayKind)known), err->text);
    return make_rule(g, d, product, err);
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    CcPrimDesc d;
    CcProduct *product = cc_arena_alloc(arena, sizeof *product);
    if (!product || describe_chain(g, nodes, n, &d, product) < 0) {
        cc_err_set(err, CC_E_UNSUPPORTED, "a product that oneDNN can't do");
        return NULL;
    }
    if (!product->single && make_way(g, &d, product, arena, err) < 0) return NULL;
    CcSlot *const slot[] = {&product->src, &product->weights, &product->bias, &product->dst};
    for (int i = 0; i < CC_COUNT(slot); i++) cc_prim_settle(g, slot[i]);
    for (int i = 0; i < product->n_post; i++) cc_prim_settle(g, &product->post[i]);
    return product;
}

/* In blocks of lanes, so that compilers vectorise; the number of columns is a multiple of them. */
static void fill_bias(const CcProduct *product, const float *bias, float *dst) {
    for (int64_t r = 0; r < product->rows; r++) {
        const float value = bias[r];
        for (int64_t i = 0; i < product->cols; i += TURN_LANES, dst += TURN_LANES)
            for (int k = 0; k < TURN_LANES; k++) dst[k] = value;
    }
}

static int run_transposed(const CcProduct *product, CcPrimCall *call, CcErr *err) {
    _Alignas(64) float buffer[BACK_MAX];
    float *dst = call->dst;
    if (product->back) call->dst = buffer;
    if (product->bias.value >= 0) fill_bias(product, call->bias, call->dst);
    const int status = cc_ways_run(&product->way, call, err);
    for (int64_t c = 0; product->back && c < product->cols; c++)
        for (int64_t r = 0; r < product->rows; r++) *dst++ = buffer[r * product->cols + c];
    return status;
}

static int run_better(const CcProduct *p, Better *better, CcPrimCall *call, const CcHost *host, CcErr *err) {
    char *scratch;
    if (cc_choose_take(&better->spare, cc_ways_bytes(&better->way), &scratch, err) < 0) return -1;
    call->scratch = scratch;
    cc_prim_version(call, better->way.packed, host, p->weights.value);
    const int status = cc_ways_run(&better->way, call, err);
    cc_choose_give(&better->spare, scratch);
    return status;
}

/* Finds out whether another way is faster here, for this run and later ones. An equal product may know already. */
static void measure(CcProduct *p, const CcPrimCall *call, const CcHost *host) {
    CcErr why;
    CcPrimCall own = *call;
    const int known = cc_choose_known(&p->choice);
    if (p->choice.ways & (CC_WAY_BIT(OWN_PACKED) | CC_WAY_BIT(ONEDNN_PACKED)))
        own.version = host->version(host->ctx, p->weights.value);
    const CcWayKind kind = known < 0 ? cc_ways_measure(&p->choice, &own) : (CcWayKind)known;
    Better *better = kind == p->way.kind ? NULL : calloc(1, sizeof *better);
    if (better && cc_ways_make(&better->way, kind, p->desc, &why) < 0) {
        cc_log_add(CC_LOG_FALLBACK, "a product stays with %s: %s", cc_ways_name(p->way.kind), why.text);
        free(better);
        better = NULL;
    }
    if (better) cc_packed_drop(p->way.packed);
    atomic_store(&p->better, better);
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    CcProduct *p = (CcProduct *)work; /* its choice changes once */
    CcPrimCall call = {.src = cc_prim_data(host, p->src),
                       .weights = cc_prim_data(host, p->weights),
                       .bias = cc_prim_data(host, p->bias),
                       .scratch = host->scratch};
    for (int i = 0; i < p->n_post; i++) call.post[i] = cc_prim_data(host, p->post[i]);
    char *dst = host->make(host->ctx, p->dst.value);
    call.dst = dst ? dst + p->dst.at : NULL;
    if (!call.src || !call.weights || !call.dst)
        return cc_err_set(err, CC_E_HOST, "no memory for value %d", p->dst.value);
    if (p->single) {
        return cc_gemv_run(&p->gemv, call.weights, call.src, call.bias, call.dst)
                   ? cc_err_set(err, CC_E_MEMORY, "no memory for a product of one row")
                   : 0;
    }
    if (p->measures && atomic_exchange(&p->measures, false)) measure(p, &call, host);
    Better *better = atomic_load_explicit(&p->better, memory_order_acquire);
    if (better) return run_better(p, better, &call, host, err);
    cc_prim_version(&call, p->way.packed, host, p->weights.value);
    return p->transposed ? run_transposed(p, &call, err) : cc_ways_run(&p->way, &call, err);
}

static size_t scratch(const void *work) {
    const CcProduct *p = work;
    return p->single ? 0 : cc_ways_bytes(&p->way);
}

static const char *way(const void *work) {
    const CcProduct *p = work;
    const Better *better = atomic_load((_Atomic(Better *) *)&p->better);
    return p->single ? "gemv" : cc_ways_name(better ? better->way.kind : p->way.kind);
}

static void free_product(void *work) {
    CcProduct *p = work;
    Better *better = atomic_load(&p->better);
    cc_ways_clear(&p->way);
    if (!better) return;
    cc_ways_clear(&better->way);
    free(atomic_load(&better->spare));
    free(better);
}

const CcPrimFamily CC_PRODUCTS = {.name = "product",
                                  .can = can,
                                  .can_post = can_post,
                                  .build = build,
                                  .scratch = scratch,
                                  .run = run,
                                  .way = way,
                                  .free = free_product};
