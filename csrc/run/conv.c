/* conv: convolutions, transposed or not, by own code (dev/image.c) or as calls of oneDNN, with what follows: batch norm
 * of eval mode as a scale and a shift of each channel, a residual sum, activations.
 *
 * Both work with channels innermost: on ResNet-50's and MobileNetV2's layers that is as fast as oneDNN's blocked
 * layouts (67.9 ms each for the convolutions of ResNet-50; depthwise ones 0 to 12 % slower; oneDNN 3.2, Zen 4, one
 * thread), and any other code reads it by strides. Values that lie otherwise are copied by dnnl.c, as are weights:
 * their data may change between calls.
 *
 * Own code is for convolutions without groups and for depthwise ones, of one or two dims, whose results have channels
 * innermost (or have one): it does relu as eager does. It takes [norm] [sum] [bounds] in this order; any other chain is
 * oneDNN's. It is f32 only; oneDNN's are bf16 and f16 as well. */
#include <math.h>

#include "run_int.h"

enum {
    MAX_NORM = 4096, /* channels of a batch norm: its scale and shift lie on the stack */
    NORM_LANES = 16,
    /* Weights from which the blocked form is asked for: oneDNN's reorder to what it likes best is slow
     * (from cold memory 1x1 of 1024x2048: 5.4 ms against 0.33 while the convolution takes 1.8; 3x3 of
     * 256x256: 0.55 against 0.18 of 1.8; 128x512: 0.011 against 0.006 of 0.9; same machine). Not for transposed ones,
     * which it then does without vectors (128 to 64 channels, 8x8, 4x4: 1180 ms instead of 1). */
    BLOCKED_FROM = 1 << 15,
};

typedef struct Norm {            /* values */
    int weight, bias, mean, var; /* -1: none */
    CcDtype dtype[4];            /* theirs */
    float eps;
    int64_t channels;
    int post; /* its scale; the shift is the next one; -1: no batch norm */
} Norm;

/* A copy with channels innermost, in the step's scratch memory. */
typedef struct Turned {
    bool is;
    CcLaunch launch;
    int64_t at, bytes;
} Turned;

typedef struct CcConv {
    Turned turned[2]; /* of src, which is copied before; of dst, which is copied after */
    CcPacked *packed; /* of frozen weights, else NULL */
    CcPrim *prim;     /* NULL: own code */
    CcImage image;
    struct CcConv *wide; /* own code: the convolution before it, done row by row; NULL: none */
    int more;            /* own code: what is added */
    int64_t more_at;
    CcDtype bias_dtype;
    int src, weights, bias, dst, post[CC_DNNL_MAX_POST];            /* values; -1: none */
    int64_t src_at, weights_at, bias_at, post_at[CC_DNNL_MAX_POST]; /* bytes: they may be windows */
    Norm norm;
} CcConv;

/* The strides of channels innermost, and of dims of size 1 what they would be: oneDNN looks at
 * those, torch leaves anything there. */
static void last_strides(const CcTensorDesc *t, int64_t *stride) {
    int64_t s = t->size[1];
    stride[1] = 1;
    for (int d = t->ndim - 1; d > 1; s *= t->size[d--]) stride[d] = s;
    stride[0] = s;
}

static bool is_last(const CcTensorDesc *t) {
    int64_t stride[CC_DNNL_MAX_NDIM];
    last_strides(t, stride);
    for (int d = 0; d < t->ndim; d++)
        if (t->size[d] > 1 && t->stride[d] != stride[d]) return false;
    return true;
}

static bool is_first(const CcTensorDesc *t) {
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; stride *= t->size[d--])
        if (t->size[d] > 1 && t->stride[d] != stride) return false;
    return true;
}

/* Elements may be apart, not on top of each other. */
static bool apart(const CcType *t) {
    if (!cc_prim_float(t)) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->size[d] > 1 && t->stride[d] == 0) return false;
    return true;
}

/* An activation; -1: not for oneDNN. */
static int describe_image(const CcType *t, CcTensorDesc *d) {
    if (!apart(t)) return -1;
    *d = cc_prim_desc(t);
    d->form = CC_FORM_LAST;
    if (is_last(d)) last_strides(d, d->stride);
    for (int i = d->ndim - 1; i >= 0 && !is_last(d); i--)
        if (d->size[i] == 1) d->stride[i] = i + 1 < d->ndim ? d->size[i + 1] * d->stride[i + 1] : 1;
    return 0;
}

static int describe_weights(const CcType *t, bool transposed, int64_t groups, CcTensorDesc *w) {
    if (!apart(t) || t->size[0] % groups) return -1;
    CcTensorDesc d = cc_prim_desc(t);
    int64_t dense = 1;
    for (int i = d.ndim - 1; i >= 0; dense *= d.size[i--])
        if (d.size[i] == 1) d.stride[i] = dense;
    if (groups > 1 && d.ndim == CC_DNNL_MAX_NDIM) return -1;
    memset(w, 0, sizeof *w);
    const int extra = groups > 1;
    w->ndim = d.ndim + extra;
    w->dtype = d.dtype;
    for (int i = 0; i < d.ndim; i++) {
        const int to = i + extra, from = transposed && i < 2 ? 1 - i : i;
        w->size[to] = from == 0 ? d.size[0] / groups : d.size[from];
        w->stride[to] = d.stride[from];
    }
    if (extra) {
        w->size[0] = groups;
        w->stride[0] = d.stride[0] * (d.size[0] / groups);
    }
    int64_t numbers = 1;
    for (int i = 0; i < w->ndim; i++) numbers *= w->size[i];
    const bool blocks = !extra && !transposed && w->size[0] % 16 == 0 && w->size[1] % 16 == 0;
    w->form = blocks && numbers >= BLOCKED_FROM ? CC_FORM_BLOCKED : CC_FORM_ANY;
    return 0;
}

/* Padding of each side, checked against the sizes that eager gave. */
static int describe_window(CcPrimDesc *d, const CcType *x, const CcType *w, const CcType *out, const int64_t *padding,
                           const int64_t *behind, const int64_t *more) {
    for (int i = 0; i < x->ndim - 2; i++) {
        const int64_t reach = d->dilation[i] * (w->size[2 + i] - 1), step = d->step[i];
        if (step < 1 || d->dilation[i] < 1 || (padding[i] < 0 && step != 1)) return -1;
        d->before[i] = padding[i] < 0 ? reach / 2 : padding[i];
        d->after[i] = padding[i] < 0 ? reach - reach / 2 : behind[i] - (more ? more[i] : 0);
        const int64_t wide = more ? out->size[2 + i] : x->size[2 + i];
        const int64_t few = more ? x->size[2 + i] : out->size[2 + i];
        if ((wide + d->before[i] + d->after[i] - reach - 1) / step + 1 != few) return -1;
    }
    return 0;
}

static int vector_of(const CcGraph *g, const CcOperand *o, int64_t size) {
    if (!o || o->kind != CC_IN_VALUE) return -1;
    const CcVal *v = &g->val.at[o->value];
    return cc_prim_float(&v->type) && v->type.ndim == 1 && v->type.size[0] == size &&
                   (size == 1 || v->type.stride[0] == 1)
               ? o->value
               : -1;
}

static bool given(const CcOperand *o) { return o && o->kind != CC_IN_NONE; }

/* The convolution alone. -1: not for oneDNN. */
static int describe(const CcGraph *g, const CcNode *n, CcPrimDesc *d, CcConv *conv) {
    const bool transposed = n->op == CC_OP_conv_transpose;
    const CcOperand *x = cc_prim_operand(g, n, 0), *w = cc_prim_operand(g, n, 1), *bias = cc_prim_operand(g, n, 2);
    if (!x || !w || x->kind != CC_IN_VALUE || w->kind != CC_IN_VALUE) return -1;
    const CcType *s = &g->val.at[x->value].type, *k = &g->val.at[w->value].type, *o = &g->val.at[n->out0].type;
    const int dims = s->ndim - 2;
    if (dims < 1 || dims > CC_DNNL_SPATIAL || k->ndim != s->ndim || o->ndim != s->ndim) return -1;
    int64_t padding[CC_DNNL_SPATIAL], behind[CC_DNNL_SPATIAL], more[CC_DNNL_SPATIAL], groups;
    memset(d, 0, sizeof *d);
    d->kind = transposed ? CC_PRIM_DECONV : CC_PRIM_CONV;
    for (int i = 0; i < CC_DNNL_SPATIAL; i++) d->dilation[i] = 1;
    const int at = 3 + (transposed ? 3 : 2) * dims; /* behind stride, padding, output_padding */
    if (!cc_prim_ints(g, n, 3, dims, d->step) || !cc_prim_ints(g, n, 3 + dims, dims, padding) ||
        (transposed && !cc_prim_ints(g, n, 3 + 2 * dims, dims, more)) ||
        !cc_prim_ints(g, n, transposed ? at : at + dims, 1, &groups) || groups < 1 ||
        !cc_prim_ints(g, n, transposed ? at + 1 : at, dims, d->dilation))
        return -1;
    const bool sides = !transposed && n->n_in > at + dims + 1;
    if (!cc_prim_ints(g, n, sides ? at + dims + 1 : 3 + dims, dims, behind)) return -1;
    if (!cc_type_dense(o) || describe_image(s, &d->src) < 0 || describe_image(o, &d->dst) < 0 ||
        describe_weights(k, transposed, groups, &d->weights) < 0 ||
        describe_window(d, s, k, o, padding, behind, transposed ? more : NULL) < 0)
        return -1;
    const int extra = groups > 1;
    if (s->size[0] != o->size[0] || s->size[1] != groups * d->weights.size[1 + extra] ||
        o->size[1] != groups * d->weights.size[extra])
        return -1;
    *conv = (CcConv){.src = x->value, .weights = w->value, .bias = -1, .dst = n->out0};
    for (int i = 0; i < CC_DNNL_MAX_POST; i++) conv->post[i] = -1;
    conv->norm.post = -1;
    if (!given(bias)) return 0;
    conv->bias = vector_of(g, bias, o->size[1]);
    if (conv->bias < 0) return -1;
    conv->bias_dtype = (CcDtype)g->val.at[conv->bias].type.dtype;
    d->bias = (CcTensorDesc){.ndim = 1, .dtype = conv->bias_dtype, .size = {o->size[1]}, .stride = {1}};
    return 0;
}

/* One number a channel. */
static CcTensorDesc channels_desc(const CcTensorDesc *dst) {
    CcTensorDesc d = {.ndim = dst->ndim, .dtype = CC_DT_F32};
    for (int i = 0; i < dst->ndim; i++) {
        d.size[i] = i == 1 ? dst->size[1] : 1;
        d.stride[i] = i == 0 ? dst->size[1] : 1;
    }
    return d;
}

static int add_norm(const CcGraph *g, const CcNode *n, CcPrimDesc *d, CcConv *conv) {
    const int64_t channels = d->dst.size[1];
    const CcOperand *weight = cc_prim_operand(g, n, 1), *bias = cc_prim_operand(g, n, 2),
                    *eps = cc_prim_operand(g, n, 5);
    if (conv->norm.post >= 0 || d->n_post + 2 > CC_DNNL_MAX_POST || channels > MAX_NORM || !eps ||
        eps->kind != CC_IN_FLOAT)
        return -1;
    Norm norm = {.weight = vector_of(g, weight, channels),
                 .bias = vector_of(g, bias, channels),
                 .mean = vector_of(g, cc_prim_operand(g, n, 3), channels),
                 .var = vector_of(g, cc_prim_operand(g, n, 4), channels),
                 .eps = (float)eps->f,
                 .channels = channels,
                 .post = d->n_post};
    const int all[] = {norm.weight, norm.bias, norm.mean, norm.var};
    for (int i = 0; i < CC_COUNT(all); i++)
        if (all[i] >= 0 && g->val.at[all[i]].window_of) return -1;
    if (norm.mean < 0 || norm.var < 0 || (given(weight) && norm.weight < 0) || (given(bias) && norm.bias < 0))
        return -1;
    for (int i = 0; i < CC_COUNT(all); i++)
        if (all[i] >= 0) norm.dtype[i] = (CcDtype)g->val.at[all[i]].type.dtype;
    conv->norm = norm;
    for (int i = 0; i < 2; i++) {
        d->post[d->n_post].kind = i == 0 ? CC_POST_MUL : CC_POST_ADD;
        d->post[d->n_post++].operand = channels_desc(&d->dst);
    }
    return 0;
}

/* A sum or product with a tensor of dst's shape and layout. */
static int add_binary(const CcGraph *g, const CcNode *last, const CcNode *n, CcPrimDesc *d, CcConv *conv) {
    const CcOperand *a = cc_prim_operand(g, n, 0), *b = cc_prim_operand(g, n, 1), *alpha = cc_prim_operand(g, n, 2);
    CcTensorDesc other;
    if (!a || !b || a->kind != CC_IN_VALUE || b->kind != CC_IN_VALUE || a->value == b->value ||
        (given(alpha) && !(alpha->kind == CC_IN_INT && alpha->i == 1)))
        return -1;
    const int value = a->value == last->out0 ? b->value : a->value;
    const CcVal *v = &g->val.at[value];
    if (!cc_type_same_shape(&v->type, &g->val.at[n->out0].type) || !cc_prim_operand_of(&v->type) ||
        describe_image(&v->type, &other) < 0 || !is_last(&other) || !is_last(&d->dst))
        return -1;
    other.form = CC_FORM_GIVEN;
    conv->post[d->n_post] = value;
    d->post[d->n_post].kind = n->op == CC_OP_add ? CC_POST_ADD : CC_POST_MUL;
    d->post[d->n_post++].operand = other;
    return 0;
}

static int add_post(const CcGraph *g, const CcNode *last, const CcNode *n, CcPrimDesc *d, CcConv *conv) {
    const CcType *out = &g->val.at[n->out0].type, *before = &g->val.at[last->out0].type;
    const CcOperand *first = cc_prim_operand(g, n, 0);
    if (d->n_post == CC_DNNL_MAX_POST || !cc_prim_float(out) || out->dtype != before->dtype ||
        !cc_type_same_layout(out, before))
        return -1;
    conv->dst = n->out0;
    if (n->op == CC_OP_add || n->op == CC_OP_mul) return add_binary(g, last, n, d, conv);
    if (!first || first->kind != CC_IN_VALUE || first->value != last->out0) return -1;
    if (n->op == CC_OP_batch_norm) return add_norm(g, n, d, conv);
    const int kind = cc_prim_unary(n);
    if (kind < 0) return -1;
    d->post[d->n_post++].kind = (CcPostKind)kind;
    return 0;
}

static int describe_chain(const CcGraph *g, const int *nodes, int n, CcPrimDesc *d, CcConv *conv) {
    if (describe(g, &g->node.at[nodes[0]], d, conv) < 0) return -1;
    for (int i = 1; i < n; i++)
        if (add_post(g, &g->node.at[nodes[i - 1]], &g->node.at[nodes[i]], d, conv) < 0) return -1;
    return 0;
}

/* ------------------------------------------------------------------ own code */

/* How the numbers of one output's weights lie, [in][tap] or [tap][in]; false: otherwise. */
static bool find_order(const CcTensorDesc *w, int extra, CcImage *im) {
    const int dims = w->ndim - extra - 2;
    const int64_t *size = w->size + extra, *stride = w->stride + extra;
    int64_t taps = 1;
    bool dense = true, first = size[1] == 1 || stride[1] == 1;
    for (int d = dims + 1; d > 1; taps *= size[d--]) {
        dense = dense && (size[d] == 1 || stride[d] == taps);
        first = first && (size[d] == 1 || stride[d] == taps * size[1]);
    }
    dense = dense && (size[1] == 1 || stride[1] == taps);
    im->w_taps_first = !dense;
    return dense || first;
}

/* A depthwise convolution with columns innermost: of batch * channels images. */
static bool find_each(const CcPrimDesc *d, CcImage *im) {
    CcImage few = *im;
    few.way = CC_IMAGE_FEW;
    few.each = im->out;
    few.batch = im->batch * im->out;
    few.in = few.out = 1;
    few.src_stride[0] = im->src_stride[1];
    few.dtype = d->dst.dtype;
    if ((im->batch > 1 && im->src_stride[0] != im->out * im->src_stride[1]) || d->src.dtype != few.dtype ||
        d->weights.dtype != few.dtype || !cc_image_can(&few))
        return false;
    *im = few;
    return true;
}

/* The same as d, without what follows; `frozen`: weights are packed once. false: not for own code. */
static bool describe_image_call(const CcPrimDesc *d, bool frozen, CcImage *im) {
    const int dims = d->src.ndim - 2, extra = d->weights.ndim - d->src.ndim;
    const CcTensorDesc *w = &d->weights;
    const bool plain = d->src.dtype == CC_DT_F32 && w->dtype == CC_DT_F32 && d->dst.dtype == CC_DT_F32 &&
                       (!d->bias.ndim || d->bias.dtype == CC_DT_F32);
    if (d->kind != CC_PRIM_CONV || dims > 2 || d->dst.size[1] > MAX_NORM) return false;
    *im = (CcImage){.batch = d->src.size[0],
                    .in = d->src.size[1],
                    .out = d->dst.size[1],
                    .src_stride = {d->src.stride[0], d->src.stride[1]},
                    .w_out = w->stride[0],
                    .each = 1,
                    .dtype = CC_DT_F32,
                    .channels_first = !is_last(&d->dst),
                    .low = -INFINITY,
                    .high = INFINITY};
    for (int i = 0; i < 2; i++) {
        const int from = i - (2 - dims); /* a line is an image of one row */
        const bool is = from >= 0;
        im->size[i] = is ? d->src.size[2 + from] : 1;
        im->out_size[i] = is ? d->dst.size[2 + from] : 1;
        im->kernel[i] = is ? w->size[extra + 2 + from] : 1;
        im->step[i] = is ? d->step[from] : 1;
        im->dilation[i] = is ? d->dilation[from] : 1;
        im->before[i] = is ? d->before[from] : 0;
        im->src_stride[2 + i] = is ? d->src.stride[2 + from] : 0;
        if (im->before[i] < 0) return false;
    }
    if (!find_order(w, extra, im) || (im->channels_first && !is_first(&d->dst))) return false;
    const bool depth = extra && w->size[1] == 1 && w->size[2] == 1;
    if (depth && im->channels_first && find_each(d, im)) return true;
    if (!plain || (extra && !depth)) return false;
    im->way = depth ? CC_IMAGE_DEPTH : CC_IMAGE_DIRECT;
    if (depth) im->in = 1;
    CcImage few = *im;
    few.way = CC_IMAGE_FEW;
    if (!extra && cc_image_can(&few)) {
        *im = few;
        return true;
    }
    for (int tile = 4; tile >= 2 && !depth; tile -= 2) {
        CcImage fast = *im;
        fast.way = CC_IMAGE_WINO;
        fast.tile = tile;
        if (!cc_image_can(&fast) || !cc_image_pays(&fast, frozen)) continue;
        *im = fast;
        break;
    }
    return cc_image_can(im) && cc_image_pays(im, frozen);
}

/* The number that an operand is; `none`: what stands for no operand. */
static bool number_of(const CcOperand *o, float none, float *out) {
    if (!given(o)) *out = none;
    else if (o->kind == CC_IN_FLOAT) *out = (float)o->f;
    else if (o->kind == CC_IN_INT) *out = (float)o->i;
    else return false;
    return !isnan(*out);
}

static bool find_bounds(const CcGraph *g, const CcNode *n, CcImage *im) {
    const CcOperand *low = cc_prim_operand(g, n, 1), *high = cc_prim_operand(g, n, 2);
    im->low = 0;
    switch (n->op) {
    case CC_OP_relu: return true;
    case CC_OP_relu6: im->high = 6; return true;
    case CC_OP_hardtanh: return number_of(low, -1, &im->low) && number_of(high, 1, &im->high);
    case CC_OP_clamp: return number_of(low, -INFINITY, &im->low) && number_of(high, INFINITY, &im->high);
    default: return false;
    }
}

/* Has a tensor to be turned, which is a kernel? Then it is described as it is then. */
static bool turn(CcTensorDesc *t) {
    if (is_last(t) || !cc_kcache_on()) return false;
    last_strides(t, t->stride);
    return true;
}

/* The convolution by own code: as the tensors lie, or where `turns` with src turned, or both. */
static bool find_image(CcPrimDesc *d, bool frozen, bool turns, CcConv *conv) {
    if (describe_image_call(d, frozen, &conv->image)) return true;
    if (!turns) return false;
    conv->turned[0].is = turn(&d->src);
    if (conv->turned[0].is && describe_image_call(d, frozen, &conv->image)) return true;
    conv->turned[1].is = turn(&d->dst);
    return conv->turned[1].is && describe_image_call(d, frozen, &conv->image);
}

/* A whole chain; d and conv are spoilt where it is false. */
static bool describe_own(const CcGraph *g, const int *nodes, int n, bool turns, CcPrimDesc *d, CcConv *conv) {
    enum { CONV, NORM, SUM, BOUNDS } done = CONV;
    if (describe(g, &g->node.at[nodes[0]], d, conv) < 0 ||
        !find_image(d, cc_prim_frozen(g, conv->weights), turns, conv))
        return false;
    conv->more = -1;
    for (int i = 1; i < n; i++) {
        const CcNode *node = &g->node.at[nodes[i]], *last = &g->node.at[nodes[i - 1]];
        const CcOperand *first = cc_prim_operand(g, node, 0);
        const CcType *out = &g->val.at[node->out0].type;
        if (!cc_prim_plain(out) || !cc_type_same_layout(out, &g->val.at[last->out0].type) || !first) return false;
        const bool ours = first->kind == CC_IN_VALUE && first->value == last->out0;
        if (node->op == CC_OP_batch_norm && done < NORM && ours && add_norm(g, node, d, conv) == 0) {
            done = NORM;
        } else if (node->op == CC_OP_add && done < SUM && add_binary(g, last, node, d, conv) == 0) {
            if (d->post[d->n_post - 1].operand.dtype != CC_DT_F32) return false;
            conv->more = conv->post[d->n_post - 1];
            done = SUM;
        } else if (done < BOUNDS && ours && find_bounds(g, node, &conv->image)) {
            done = BOUNDS;
        } else {
            return false;
        }
        conv->dst = node->out0;
    }
    return true;
}

/* A chain that is two: behind the second convolution nothing of the first is read. */
static bool describe_pair(const CcGraph *g, const int *nodes, int n, CcPrimDesc *d, CcConv *wide, CcConv *deep) {
    int first = 1;
    while (first < n && g->node.at[nodes[first]].op != CC_OP_conv) first++;
    return first < n && describe_own(g, nodes, first, false, d, wide) && wide->more < 0 &&
           describe_own(g, nodes + first, n - first, false, d, deep) && deep->src == wide->dst &&
           deep->more != wide->dst && cc_image_can_pair(&wide->image, &deep->image);
}

/* ------------------------------------------------------------------ the family */

static bool can(const CcGraph *g, int node) {
    CcPrimDesc d;
    CcConv conv;
    return describe_chain(g, &node, 1, &d, &conv) == 0;
}

static bool can_post(const CcGraph *g, const int *chain, int n, int node) {
    CcPrimDesc d;
    CcConv conv, other;
    int longer[1 + CC_DNNL_MAX_POST];
    if (n < CC_COUNT(longer)) {
        memcpy(longer, chain, sizeof *chain * (size_t)n);
        longer[n] = node;
        if (describe_own(g, longer, n + 1, true, &d, &conv) || describe_pair(g, longer, n + 1, &d, &other, &conv))
            return true;
    }
    /* own code for one output is so much faster that what it can't do had better stand alone */
    if (describe_own(g, chain, n, true, &d, &conv) && conv.image.way == CC_IMAGE_FEW) return false;
    return describe_chain(g, chain, n, &d, &conv) == 0 &&
           add_post(g, &g->node.at[chain[n - 1]], &g->node.at[node], &d, &conv) == 0;
}

static const char *const WAY[] = {[CC_IMAGE_DIRECT] = "direct",
                                  [CC_IMAGE_DEPTH] = "depthwise",
                                  [CC_IMAGE_WINO] = "Winograd",
                                  [CC_IMAGE_FEW] = "one-output"};

/* Values become what they are windows of. */
static void find_bases(const CcGraph *g, CcConv *conv, bool own) {
    conv->src_at = cc_prim_base(g, &conv->src);
    conv->weights_at = cc_prim_base(g, &conv->weights);
    conv->bias_at = cc_prim_base(g, &conv->bias);
    if (own) conv->more_at = cc_prim_base(g, &conv->more);
    for (int i = 0; i < CC_DNNL_MAX_POST; i++) conv->post_at[i] = cc_prim_base(g, &conv->post[i]);
    if (cc_prim_frozen(g, conv->weights) ||
        cc_prim_cast_once(g, conv->weights, (CcDtype)g->val.at[conv->dst].type.dtype))
        conv->packed = cc_packed_new();
}

/* Before values become what they are windows of. */
static int make_turned(const CcGraph *g, CcConv *conv, const CcPrimDesc *d, CcArena *arena, CcErr *err) {
    int64_t at = 0;
    for (int i = 0; i < 2; i++) {
        Turned *t = &conv->turned[i];
        const CcTensorDesc *as = i ? &d->dst : &d->src;
        CcType lies = g->val.at[i ? conv->dst : conv->src].type, last = lies;
        if (!t->is) continue;
        memcpy(last.stride, as->stride, sizeof *last.stride * (size_t)last.ndim);
        if (cc_launch_copy(&t->launch, i ? &last : &lies, NULL, i ? &lies : &last, arena, err) < 0) return -1;
        t->at = at;
        t->bytes = (cc_type_numel(&last) * cc_dtype_info((CcDtype)last.dtype)->size + 63) / 64 * 64;
        at += t->bytes;
    }
    return 0;
}

/* A chain by oneDNN. */
static int build_library(const CcGraph *g, CcPrimDesc *d, CcConv *conv, CcArena *arena, CcErr *err) {
    const CcPrimDesc given = *d;
    CcErr why;
    conv->turned[0].is = turn(&d->src);
    conv->turned[1].is = turn(&d->dst);
    conv->prim = cc_dnnl_get(d, err);
    if (conv->prim && make_turned(g, conv, d, arena, &why) == 0) return 0;
    if (conv->prim) cc_log_add(CC_LOG_FALLBACK, "a convolution's tensors are turned by oneDNN: %s", why.text);
    conv->turned[0].is = conv->turned[1].is = false;
    conv->prim = cc_dnnl_get(&given, err);
    return conv->prim ? 0 : -1;
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    CcPrimDesc d;
    CcConv *conv = cc_arena_alloc(arena, sizeof *conv), *wide = cc_arena_alloc(arena, sizeof *wide);
    const bool pair = conv && wide && describe_pair(g, nodes, n, &d, wide, conv);
    bool own = pair || (conv && describe_own(g, nodes, n, true, &d, conv));
    if (own && make_turned(g, conv, &d, arena, err) < 0) {
        cc_log_add(CC_LOG_FALLBACK, "a convolution's tensors can't be turned for own code: %s", err->text);
        own = describe_own(g, nodes, n, false, &d, conv);
    }
    if (!conv || (!own && describe_chain(g, nodes, n, &d, conv) < 0)) {
        cc_err_set(err, CC_E_UNSUPPORTED, "a convolution that oneDNN can't do");
        return NULL;
    }
    if (!own && build_library(g, &d, conv, arena, err) < 0) return NULL;
    find_bases(g, conv, own);
    if (pair) {
        find_bases(g, wide, true);
        conv->wide = wide;
    }
    if (own)
        cc_log_add(CC_LOG_PRIMITIVE, "%s convolution by own code%s, %d ops", WAY[conv->image.way],
                   pair ? " with the one before it" : "", n);
    return conv;
}

/* y = x * scale + shift, as eager's CPU code computes it (batch_norm_cpu_collect_linear_and_constant_terms). */
static int fill_norm(const Norm *norm, const CcHost *host, float *scale, float *shift) {
    const int value[] = {norm->weight, norm->bias, norm->mean, norm->var};
    const char *from[4];
    for (int i = 0; i < 4; i++) from[i] = cc_prim_data(host, value[i], 0);
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

/* scale and shift of own code: those of the norm, if there is one, around a bias. */
static int fill_finish(const CcConv *conv, const CcHost *host, float *scale, float *shift) {
    const void *bias = cc_prim_data(host, conv->bias, conv->bias_at);
    const int64_t out = conv->image.out * conv->image.each, whole = cc_image_channels(out);
    float more[MAX_NORM];
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

/* scale and shift: of MAX_NORM floats, that the call reads. */
static int fill_call(const CcConv *conv, const CcHost *host, float *scale, float *shift, CcImageCall *call,
                     CcErr *err) {
    if (fill_finish(conv, host, scale, shift) < 0)
        return cc_err_set(err, CC_E_HOST, "no data of a batch norm's statistics");
    *call = (CcImageCall){.weights = cc_prim_data(host, conv->weights, conv->weights_at),
                          .more = cc_prim_data(host, conv->more, conv->more_at),
                          .scale = scale,
                          .shift = shift};
    if (!call->weights) return cc_err_set(err, CC_E_HOST, "no data of value %d", conv->weights);
    const uint64_t version = conv->packed ? host->version(host->ctx, conv->weights) : CC_NO_VERSION;
    if (version == CC_NO_VERSION) return 0;
    call->packed = conv->packed;
    call->version = version;
    return 0;
}

static int64_t turned_bytes(const CcConv *conv) { return conv->turned[0].bytes + conv->turned[1].bytes; }

/* Where parameters are kept packed, a call that can't (of unknown version) finds memory itself. */
static size_t inner_scratch(const CcConv *conv) {
    const CcConv *wide = conv->wide;
    if (conv->prim) return cc_dnnl_bytes(conv->prim);
    if (conv->packed || (wide && wide->packed)) return 0;
    return cc_image_bytes(&conv->image, wide) + (wide ? cc_image_bytes(&wide->image, true) : 0);
}

/* Copies come first. */
static size_t scratch(const void *work) {
    const CcConv *conv = work;
    return (size_t)turned_bytes(conv) + inner_scratch(conv);
}

static const void *turn_src(const CcConv *conv, const CcHost *host, const void *src) {
    const Turned *t = &conv->turned[0];
    char *const to = host->scratch + t->at;
    if (!t->is || !src) return src;
    cc_launch_at(&t->launch, (char *[]){(char *)src, to});
    return to;
}

/* Where the result is made, and then taken from. */
static void *place_dst(const CcConv *conv, const CcHost *host, void *dst) {
    return conv->turned[1].is && dst ? host->scratch + conv->turned[1].at : dst;
}
static void turn_dst(const CcConv *conv, const CcHost *host, void *dst) {
    const Turned *t = &conv->turned[1];
    if (t->is) cc_launch_at(&t->launch, (char *[]){host->scratch + t->at, dst});
}

static int run_own(const CcConv *conv, const CcHost *host, CcErr *err) {
    float scale[2][MAX_NORM], shift[2][MAX_NORM];
    const CcConv *first = conv->wide ? conv->wide : conv;
    CcImageCall call, wide;
    if (fill_call(conv, host, scale[0], shift[0], &call, err) < 0 ||
        (conv->wide && fill_call(conv->wide, host, scale[1], shift[1], &wide, err) < 0))
        return -1;
    const void *src = turn_src(conv, host, cc_prim_data(host, first->src, first->src_at));
    void *dst = host->make(host->ctx, conv->dst);
    if (!src || !dst) return cc_err_set(err, CC_E_HOST, "no memory for value %d", conv->dst);
    call.src = wide.src = src;
    call.dst = place_dst(conv, host, dst);
    call.scratch = wide.scratch = inner_scratch(conv) ? (float *)(host->scratch + turned_bytes(conv)) : NULL;
    const int status = conv->wide ? cc_image_run_pair(&conv->wide->image, &wide, &conv->image, &call, err)
                                  : cc_image_run(&conv->image, &call, err);
    if (status == 0) turn_dst(conv, host, dst);
    return status;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcConv *conv = work;
    if (!conv->prim) return run_own(conv, host, err);
    float scale[MAX_NORM], shift[MAX_NORM];
    CcPrimCall call = {.src = turn_src(conv, host, cc_prim_data(host, conv->src, conv->src_at)),
                       .weights = cc_prim_data(host, conv->weights, conv->weights_at),
                       .bias = cc_prim_data(host, conv->bias, conv->bias_at),
                       .scratch = host->scratch ? host->scratch + turned_bytes(conv) : NULL};
    for (int i = 0; i < CC_DNNL_MAX_POST; i++) call.post[i] = cc_prim_data(host, conv->post[i], conv->post_at[i]);
    if (conv->norm.post >= 0) {
        if (fill_norm(&conv->norm, host, scale, shift) < 0)
            return cc_err_set(err, CC_E_HOST, "no data of a batch norm's statistics");
        call.post[conv->norm.post] = scale;
        call.post[conv->norm.post + 1] = shift;
    }
    void *dst = host->make(host->ctx, conv->dst);
    call.dst = place_dst(conv, host, dst);
    if (!call.src || !call.weights || !call.dst) return cc_err_set(err, CC_E_HOST, "no memory for value %d", conv->dst);
    cc_prim_version(&call, conv->packed, host, conv->weights);
    if (cc_dnnl_run(conv->prim, &call, err) < 0) return -1;
    turn_dst(conv, host, dst);
    return 0;
}

static void free_conv(void *work) {
    CcConv *conv = work;
    cc_packed_free(conv->packed);
    if (conv->wide) cc_packed_free(conv->wide->packed);
}

const CcPrimFamily CC_CONVS = {.name = "conv",
                               .can = can,
                               .can_post = can_post,
                               .build = build,
                               .scratch = scratch,
                               .run = run,
                               .free = free_conv};
