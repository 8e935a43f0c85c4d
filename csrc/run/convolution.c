/* convolution: runs convolutions, transposed or not, with our own code (dev/conv.c) or oneDNN, and what follows as
 * post-ops: eval-mode batch norm as a scale and shift per channel, a residual sum, activations.
 *
 * Both work channels-last: on the layers of ResNet-50 and MobileNetV2 that is as fast as oneDNN's blocked layouts
 * (67.9 ms each for the convolutions of ResNet-50; depthwise ones 0 to 12 % slower; oneDNN 3.2, Zen 4, one thread),
 * and all other code reads it by strides. dnnl.c copies values in other layouts, and weights: their data may change
 * between calls.
 *
 * Our own code does ungrouped and depthwise convolutions of one or two dims with channels-last (or single-channel)
 * results, and computes relu as eager does. It takes post-ops [norm] [sum] [bounds] in this order; oneDNN does all
 * other chains. Our own code is f32 only; oneDNN also does bf16 and f16. */
#include <math.h>

#include "run_int.h"

enum {
    /* Size of weights from which oneDNN gets them in its blocked form: its reorder to its preferred layout is slow
     * (from cold memory 1x1 of 1024x2048: 5.4 ms against 0.33 while the convolution takes 1.8; 3x3 of 256x256: 0.55
     * against 0.18 of 1.8; 128x512: 0.011 against 0.006 of 0.9; same machine). Not for transposed convolutions,
     * which it then does without vectors (128 to 64 channels, 8x8, 4x4: 1180 ms instead of 1). */
    BLOCKED_FROM = 1 << 15,
};

/* Sets channels-last strides, regular ones also for dims of size 1: oneDNN reads those, torch leaves them arbitrary. */
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

/* Elements may have gaps but must not share memory. */
static bool apart(const CcType *t) { return cc_prim_float(t) && !cc_type_repeats(t); }

/* Describes an image or a result channels-last; -1: its elements share memory, or it is of no float dtype. */
static int describe_image(const CcType *t, CcTensorDesc *d) {
    if (!apart(t)) return -1;
    *d = cc_prim_desc(t);
    d->form = CC_FORMAT_LAST;
    if (is_last(d)) last_strides(d, d->stride);
    for (int i = d->ndim - 1; i >= 0 && !is_last(d); i--)
        if (d->size[i] == 1) d->stride[i] = i + 1 < d->ndim ? d->size[i + 1] * d->stride[i + 1] : 1;
    return 0;
}

/* Can oneDNN take these weights in blocks, and does it pay? */
static bool has_blocks(const CcTensorDesc *w, bool grouped) {
    int64_t numbers = 1;
    for (int i = 0; i < w->ndim; i++) numbers *= w->size[i];
    return !grouped && w->size[0] % 16 == 0 && w->size[1] % 16 == 0 && numbers >= BLOCKED_FROM;
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
    /* code for a matrix unit has layouts of its own: 3x3 of 64x128 in bf16 takes 1.5 ms instead of 22 (Xeon with AMX) */
    const bool blocks = !transposed && has_blocks(w, extra) && (w->dtype == CC_DT_F32 || !cc_dnnl_tiles(w->dtype));
    w->form = blocks ? CC_FORMAT_BLOCKED : CC_FORMAT_ANY;
    return 0;
}

/* Padding of each side, checked against the sizes that eager gave. */
static int describe_window(CcPrimDesc *d, const CcType *x, const CcType *w, const CcType *out, const int64_t *padding,
                           const int64_t *padding_after, const int64_t *more) {
    for (int i = 0; i < x->ndim - 2; i++) {
        const int64_t reach = d->dilation[i] * (w->size[2 + i] - 1), step = d->stride[i];
        if (step < 1 || d->dilation[i] < 1 || (padding[i] < 0 && step != 1)) return -1;
        d->pad_before[i] = padding[i] < 0 ? reach / 2 : padding[i];
        d->pad_after[i] = padding[i] < 0 ? reach - reach / 2 : padding_after[i] - (more ? more[i] : 0);
        const int64_t wide = more ? out->size[2 + i] : x->size[2 + i];
        const int64_t few = more ? x->size[2 + i] : out->size[2 + i];
        if ((wide + d->pad_before[i] + d->pad_after[i] - reach - 1) / step + 1 != few) return -1;
    }
    return 0;
}

static int vector_of(const CcGraph *g, const CcOperand *o, int64_t size) {
    if (o->kind != CC_IN_VALUE) return -1;
    const CcVal *v = &g->val.at[o->value];
    return cc_prim_float(&v->type) && v->type.ndim == 1 && v->type.size[0] == size &&
                   (size == 1 || v->type.stride[0] == 1)
               ? o->value
               : -1;
}

static bool given(const CcOperand *o) { return o->kind != CC_IN_NONE; }

/* Operands of conv and conv_transpose. */
typedef struct Operands {
    CcOperand x, weight, bias;
    int64_t groups, stride[CC_SPATIAL], padding[CC_SPATIAL], padding_after[CC_SPATIAL], dilation[CC_SPATIAL];
    int64_t output_padding[CC_SPATIAL]; /* of a transposed one */
    int dims;
} Operands;

static int ints_of(const CcOperand *from, int64_t *to) {
    int n = 0;
    for (; n < CC_SPATIAL && from[n].kind != CC_IN_NONE; n++) to[n] = from[n].i;
    return n;
}

static bool read_operands(const CcGraph *g, const CcNode *n, Operands *o) {
    CcIn_conv in;
    CcIn_conv_transpose other;
    if (n->op == CC_OP_conv) {
        if (!cc_in_conv(g, n, &in)) return false;
        *o = (Operands){.x = in.x, .weight = in.weight, .bias = in.bias, .groups = in.groups.i};
        o->dims = ints_of(in.stride, o->stride);
        (void)ints_of(in.padding, o->padding);
        (void)ints_of(given(in.padding_after) ? in.padding_after : in.padding, o->padding_after);
        (void)ints_of(in.dilation, o->dilation);
        return true;
    }
    if (n->op != CC_OP_conv_transpose || !cc_in_conv_transpose(g, n, &other)) return false;
    *o = (Operands){.x = other.x, .weight = other.weight, .bias = other.bias, .groups = other.groups.i};
    o->dims = ints_of(other.stride, o->stride);
    (void)ints_of(other.padding, o->padding);
    (void)ints_of(other.padding, o->padding_after);
    (void)ints_of(other.output_padding, o->output_padding);
    (void)ints_of(other.dilation, o->dilation);
    return true;
}

/* The convolution without post-ops. -1: oneDNN can't do it. */
static int describe(const CcGraph *g, const CcNode *n, CcPrimDesc *d, CcConv *conv) {
    const bool transposed = n->op == CC_OP_conv_transpose;
    Operands in;
    if (!read_operands(g, n, &in)) return -1;
    const CcType *s = &g->val.at[in.x.value].type, *k = &g->val.at[in.weight.value].type, *o = &g->val.at[n->out0].type;
    const int dims = s->ndim - 2;
    if (dims != in.dims || k->ndim != s->ndim || o->ndim != s->ndim || in.groups < 1) return -1;
    *d = (CcPrimDesc){.kind = transposed ? CC_PRIM_DECONV : CC_PRIM_CONV};
    for (int i = 0; i < CC_DNNL_SPATIAL; i++) {
        d->stride[i] = in.stride[i];
        d->dilation[i] = i < dims ? in.dilation[i] : 1;
    }
    if (!cc_type_dense(o) || describe_image(s, &d->src) < 0 || describe_image(o, &d->dst) < 0 ||
        describe_weights(k, transposed, in.groups, &d->weights) < 0 ||
        describe_window(d, s, k, o, in.padding, in.padding_after, transposed ? in.output_padding : NULL) < 0)
        return -1;
    const int extra = in.groups > 1;
    if (s->size[0] != o->size[0] || s->size[1] != in.groups * d->weights.size[1 + extra] ||
        o->size[1] != in.groups * d->weights.size[extra])
        return -1;
    *conv = (CcConv){.src = {in.x.value, 0}, .weights = {in.weight.value, 0}, .bias = {-1, 0}, .dst = n->out0};
    for (int i = 0; i < CC_DNNL_MAX_POST; i++) conv->post[i].value = -1;
    conv->norm.post = -1;
    if (!given(&in.bias)) return 0;
    conv->bias.value = vector_of(g, &in.bias, o->size[1]);
    if (conv->bias.value < 0) return -1;
    conv->bias_dtype = (CcDtype)g->val.at[conv->bias.value].type.dtype;
    d->bias = (CcTensorDesc){.ndim = 1, .dtype = conv->bias_dtype, .size = {o->size[1]}, .stride = {1}};
    return 0;
}

/* One number per channel. */
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
    CcIn_batch_norm in;
    if (conv->norm.post >= 0 || d->n_post + 2 > CC_DNNL_MAX_POST || channels > CC_CONV_MAX_NORM ||
        !cc_in_batch_norm(g, n, &in) || in.eps.kind != CC_IN_FLOAT)
        return -1;
    CcConvNorm norm = {.weight = vector_of(g, &in.weight, channels),
                       .bias = vector_of(g, &in.bias, channels),
                       .mean = vector_of(g, &in.mean, channels),
                       .var = vector_of(g, &in.var, channels),
                       .eps = (float)in.eps.f,
                       .channels = channels,
                       .post = d->n_post};
    const int all[] = {norm.weight, norm.bias, norm.mean, norm.var};
    for (int i = 0; i < CC_COUNT(all); i++)
        if (all[i] >= 0 && g->val.at[all[i]].window_of) return -1;
    if (norm.mean < 0 || norm.var < 0 || (given(&in.weight) && norm.weight < 0) || (given(&in.bias) && norm.bias < 0))
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
    CcIn_add in;
    CcTensorDesc other;
    if (!cc_prim_binary(g, n, &in)) return -1;
    const CcOperand *a = &in.in[0], *b = &in.in[1];
    if (a->kind != CC_IN_VALUE || b->kind != CC_IN_VALUE || a->value == b->value) return -1;
    const int value = a->value == last->out0 ? b->value : a->value;
    const CcVal *v = &g->val.at[value];
    if (!cc_type_same_shape(&v->type, &g->val.at[n->out0].type) || !cc_prim_operand_of(&v->type) ||
        describe_image(&v->type, &other) < 0 || !is_last(&other) || !is_last(&d->dst))
        return -1;
    other.form = CC_FORMAT_GIVEN;
    conv->post[d->n_post].value = value;
    d->post[d->n_post].kind = n->op == CC_OP_add ? CC_POST_ADD : CC_POST_MUL;
    d->post[d->n_post++].operand = other;
    return 0;
}

static int add_post(const CcGraph *g, const CcNode *last, const CcNode *n, CcPrimDesc *d, CcConv *conv) {
    const CcType *out = &g->val.at[n->out0].type, *before = &g->val.at[last->out0].type;
    if (d->n_post == CC_DNNL_MAX_POST || !cc_prim_float(out) || out->dtype != before->dtype ||
        !cc_type_same_layout(out, before))
        return -1;
    conv->dst = n->out0;
    if (n->op == CC_OP_add || n->op == CC_OP_mul) return add_binary(g, last, n, d, conv);
    if (cc_graph_source(g, n) != last->out0) return -1;
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

/* ------------------------------------------------------------------ our own code */

/* Are the weights of one output stored as [in][tap] or [tap][in]? false: neither. */
static bool find_order(const CcTensorDesc *w, int extra, CcConvShape *im) {
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

/* A depthwise convolution with columns innermost becomes one over batch * channels images. */
static bool find_each(const CcPrimDesc *d, CcConvShape *im) {
    CcConvShape few = *im;
    few.way = CC_CONV_ONE;
    few.each = im->out;
    few.batch = im->batch * im->out;
    few.in = few.out = 1;
    few.src_stride[0] = im->src_stride[1];
    few.dtype = d->dst.dtype;
    if ((im->batch > 1 && im->src_stride[0] != im->out * im->src_stride[1]) || d->src.dtype != few.dtype ||
        d->weights.dtype != few.dtype || !cc_conv_can(&few))
        return false;
    *im = few;
    return true;
}

/* What our own code is asked for. */
typedef struct Wish {
    bool frozen;   /* weights are packed once */
    bool reorders; /* it may reorder src and dst */
    bool any;      /* also where the rule says that oneDNN is faster */
} Wish;

/* Fills a CcConvShape from d, without post-ops. false: our own code can't do it. */
static bool describe_image_call(const CcPrimDesc *d, const Wish *wish, CcConvShape *im) {
    const int dims = d->src.ndim - 2, extra = d->weights.ndim - d->src.ndim;
    const CcTensorDesc *w = &d->weights;
    const bool plain = d->src.dtype == CC_DT_F32 && w->dtype == CC_DT_F32 && d->dst.dtype == CC_DT_F32 &&
                       (!d->bias.ndim || d->bias.dtype == CC_DT_F32);
    if (d->kind != CC_PRIM_CONV || dims > 2 || d->dst.size[1] > CC_CONV_MAX_NORM) return false;
    *im = (CcConvShape){.batch = d->src.size[0],
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
        const int from = i - (2 - dims); /* a 1d input is an image of one row */
        const bool is = from >= 0;
        im->size[i] = is ? d->src.size[2 + from] : 1;
        im->out_size[i] = is ? d->dst.size[2 + from] : 1;
        im->kernel[i] = is ? w->size[extra + 2 + from] : 1;
        im->stride[i] = is ? d->stride[from] : 1;
        im->dilation[i] = is ? d->dilation[from] : 1;
        im->pad[i] = is ? d->pad_before[from] : 0;
        im->src_stride[2 + i] = is ? d->src.stride[2 + from] : 0;
        if (im->pad[i] < 0) return false;
    }
    if (!find_order(w, extra, im) || (im->channels_first && !is_first(&d->dst))) return false;
    const bool depth = extra && w->size[1] == 1 && w->size[2] == 1;
    if (depth && im->channels_first && find_each(d, im)) return true;
    if (!plain || (extra && !depth)) return false;
    im->way = depth ? CC_CONV_DEPTHWISE : CC_CONV_DIRECT;
    if (depth) im->in = 1;
    CcConvShape few = *im;
    few.way = CC_CONV_ONE;
    if (!extra && cc_conv_can(&few)) {
        *im = few;
        return true;
    }
    for (int tile = 4; tile >= 2 && !depth; tile -= 2) {
        CcConvShape fast = *im;
        fast.way = CC_CONV_WINOGRAD;
        fast.tile = tile;
        if (!cc_conv_can(&fast) || !cc_conv_pays(&fast, wish->frozen)) continue;
        *im = fast;
        break;
    }
    return cc_conv_can(im) && (wish->any || cc_conv_pays(im, wish->frozen));
}

/* The number of an operand; `none`: for a missing operand. */
static bool number_of(const CcOperand *o, float none, float *out) {
    if (!given(o)) *out = none;
    else if (o->kind == CC_IN_FLOAT) *out = (float)o->f;
    else if (o->kind == CC_IN_INT) *out = (float)o->i;
    else return false;
    return !isnan(*out);
}

static bool find_bounds(const CcGraph *g, const CcNode *n, CcConvShape *im) {
    CcIn_clamp in;
    const CcOperand *low = &in.in[1], *high = &in.in[2];
    im->low = 0;
    if (n->op == CC_OP_relu6) im->high = 6;
    if (n->op == CC_OP_relu || n->op == CC_OP_relu6) return true;
    if ((n->op != CC_OP_hardtanh && n->op != CC_OP_clamp) || !cc_in_clamp(g, n, &in)) return false;
    if (n->op == CC_OP_hardtanh) return number_of(low, -1, &im->low) && number_of(high, 1, &im->high);
    return number_of(low, -INFINITY, &im->low) && number_of(high, INFINITY, &im->high);
}

/* If a kernel must reorder the tensor, describes the reordered copy. */
static bool channels_last(CcTensorDesc *t) {
    if (is_last(t) || !cc_kcache_on()) return false;
    last_strides(t, t->stride);
    return true;
}

/* The convolution by our own code: on the tensors as stored, or with src, dst or both reordered. */
static bool find_image(CcPrimDesc *d, const Wish *wish, CcConv *conv) {
    if (describe_image_call(d, wish, &conv->image)) return true;
    if (!wish->reorders) return false;
    conv->reorder[0].is = channels_last(&d->src);
    if (conv->reorder[0].is && describe_image_call(d, wish, &conv->image)) return true;
    conv->reorder[1].is = channels_last(&d->dst);
    return conv->reorder[1].is && describe_image_call(d, wish, &conv->image);
}

/* A whole chain; spoils d and conv if it fails. */
static bool describe_own(const CcGraph *g, const int *nodes, int n, Wish wish, CcPrimDesc *d, CcConv *conv) {
    enum { CONV, NORM, SUM, BOUNDS } done = CONV;
    if (describe(g, &g->node.at[nodes[0]], d, conv) < 0) return false;
    wish.frozen = cc_prim_frozen(g, conv->weights.value);
    if (!find_image(d, &wish, conv)) return false;
    conv->more.value = -1;
    for (int i = 1; i < n; i++) {
        const CcNode *node = &g->node.at[nodes[i]], *last = &g->node.at[nodes[i - 1]];
        const CcType *out = &g->val.at[node->out0].type;
        if (!cc_prim_f32(out) || !cc_type_same_layout(out, &g->val.at[last->out0].type)) return false;
        const bool ours = cc_graph_source(g, node) == last->out0;
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

/* A chain of two convolutions: nothing after the second reads results of the first. */
static bool describe_pair(const CcGraph *g, const int *nodes, int n, CcPrimDesc *d, CcConv *wide, CcConv *deep) {
    int first = 1;
    while (first < n && g->node.at[nodes[first]].op != CC_OP_conv) first++;
    return first < n && describe_own(g, nodes, first, (Wish){0}, d, wide) && wide->more.value < 0 &&
           describe_own(g, nodes + first, n - first, (Wish){0}, d, deep) && deep->src.value == wide->dst &&
           deep->more.value != wide->dst && cc_conv_can_pair(&wide->image, &deep->image);
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
        if (describe_own(g, longer, n + 1, (Wish){.reorders = true}, &d, &conv) ||
            describe_pair(g, longer, n + 1, &d, &other, &conv))
            return true;
    }
    /* for one output our own code is so much faster that other post-ops had better be separate */
    if (describe_own(g, chain, n, (Wish){.reorders = true}, &d, &conv) && conv.image.way == CC_CONV_ONE) return false;
    return describe_chain(g, chain, n, &d, &conv) == 0 &&
           add_post(g, &g->node.at[chain[n - 1]], &g->node.at[node], &d, &conv) == 0;
}

static const char *const WAY[] = {[CC_CONV_DIRECT] = "direct",
                                  [CC_CONV_DEPTHWISE] = "depthwise",
                                  [CC_CONV_WINOGRAD] = "Winograd",
                                  [CC_CONV_ONE] = "one-output"};

/* Replaces values by the bases of their windows. */
static void find_bases(const CcGraph *g, CcConv *conv, bool own) {
    CcSlot *const slot[] = {&conv->src, &conv->weights, &conv->bias};
    for (int i = 0; i < CC_COUNT(slot); i++) cc_prim_settle(g, slot[i]);
    for (int i = 0; i < CC_DNNL_MAX_POST; i++) cc_prim_settle(g, &conv->post[i]);
    if (own) cc_prim_settle(g, &conv->more);
    if (cc_prim_frozen(g, conv->weights.value) ||
        cc_prim_cast_once(g, conv->weights.value, (CcDtype)g->val.at[conv->dst].type.dtype))
        conv->packed = cc_packed_new();
}

/* Before values are replaced by the bases of their windows. */
static int make_reorders(const CcGraph *g, CcConv *conv, const CcPrimDesc *d, CcArena *arena, CcErr *err) {
    int64_t at = 0;
    for (int i = 0; i < 2; i++) {
        CcConvReorder *t = &conv->reorder[i];
        const CcTensorDesc *as = i ? &d->dst : &d->src;
        CcType lies = g->val.at[i ? conv->dst : conv->src.value].type, last = lies;
        if (!t->is) continue;
        memcpy(last.stride, as->stride, sizeof *last.stride * (size_t)last.ndim);
        if (cc_launch_copy(&t->launch, i ? &last : &lies, NULL, i ? &lies : &last, arena, err) < 0) return -1;
        t->at = at;
        t->bytes = (cc_type_numel(&last) * cc_dtype_size(last.dtype) + 63) / 64 * 64;
        at += t->bytes;
    }
    return 0;
}

/* A chain by oneDNN. */
static int build_library(const CcGraph *g, CcPrimDesc *d, CcConv *conv, CcArena *arena, CcErr *err) {
    const CcPrimDesc given = *d;
    CcErr why;
    conv->reorder[0].is = channels_last(&d->src);
    conv->reorder[1].is = channels_last(&d->dst);
    conv->prim = cc_dnnl_get(d, err);
    if (conv->prim && make_reorders(g, conv, d, arena, &why) == 0) return 0;
    if (conv->prim) cc_log_add(CC_LOG_FALLBACK, "oneDNN reorders a convolution's tensors: %s", why.text);
    conv->reorder[0].is = conv->reorder[1].is = false;
    *d = given;
    conv->prim = cc_dnnl_get(d, err);
    return conv->prim ? 0 : -1;
}

/* oneDNN in blocked layouts, to and from which it reorders src and dst: eager's way, the fastest where neither neighbour is
 * channels-last. Where whole vectors of channels make a block, oneDNN is told to take those, since it would often choose
 * channels-last. A residual would have to be in that layout. */
static bool take_blocked(CcPrimDesc *d, const CcConv *conv) {
    if (is_last(&d->src) && is_last(&d->dst)) return false;
    for (int i = 0; i < d->n_post; i++)
        if (conv->post[i].value >= 0) return false;
    const int extra = d->weights.ndim - d->src.ndim;
    const bool depthwise = extra && d->weights.size[1] == 1 && d->weights.size[2] == 1;
    const int64_t lanes = cc_dnnl_vector_bytes() / (int64_t)sizeof(float);
    if (lanes == 0) return false;
    CcTensorDesc *const image[] = {&d->src, &d->dst};
    for (int i = 0; i < CC_COUNT(image); i++) {
        const bool whole = (!extra || depthwise) && image[i]->size[1] % lanes == 0;
        image[i]->form = whole ? CC_FORMAT_BLOCKED : CC_FORMAT_ANY;
    }
    return true;
}

/* The chain by oneDNN, for the choice of ways: not made yet, and with a last clamp behind it. NULL: it can't run it. */
static CcConv *describe_library(const CcGraph *g, const int *nodes, int n, bool blocked, CcArena *arena) {
    CcConv *conv = cc_arena_alloc(arena, sizeof *conv);
    CcPrimDesc *desc = cc_arena_alloc(arena, sizeof *desc);
    const CcNode *last = &g->node.at[nodes[n - 1]];
    CcConvShape bounds = {.high = INFINITY};
    const bool clamps = n > 1 && find_bounds(g, last, &bounds);
    if (!conv || !desc || describe_chain(g, nodes, n - clamps, desc, conv) < 0) return NULL;
    if (clamps && cc_graph_source(g, last) != conv->dst) return NULL;
    conv->dst = last->out0;
    CcErr why;
    if (blocked && !take_blocked(desc, conv)) return NULL;
    conv->reorder[0].is = !blocked && channels_last(&desc->src);
    conv->reorder[1].is = !blocked && channels_last(&desc->dst);
    if (make_reorders(g, conv, desc, arena, &why) < 0) return NULL;
    conv->desc = desc;
    conv->clamps = clamps;
    conv->image = bounds;
    find_bases(g, conv, false);
    return conv;
}

/* The same by our own code, although the rule prefers oneDNN. NULL: it can't run it. */
static CcConv *describe_slower(const CcGraph *g, const int *nodes, int n, CcArena *arena) {
    CcConv *conv = cc_arena_alloc(arena, sizeof *conv);
    CcPrimDesc d;
    CcErr why;
    if (!conv || !describe_own(g, nodes, n, (Wish){.reorders = true, .any = true}, &d, conv) ||
        make_reorders(g, conv, &d, arena, &why) < 0)
        return NULL;
    find_bases(g, conv, true);
    return conv;
}

static bool is_all(const CcPrimDesc *d, CcDtype dtype) {
    return d->src.dtype == dtype && d->weights.dtype == dtype && d->dst.dtype == dtype;
}

/* The ways to choose from, if there are several. */
static void find_ways(const CcGraph *g, const int *nodes, int n, bool own, const CcPrimDesc *d, CcConv *rule,
                      CcArena *arena) {
    const bool f32 = is_all(d, CC_DT_F32), half = is_all(d, CC_DT_BF16) || is_all(d, CC_DT_F16);
    const bool single = own && rule->image.way == CC_CONV_ONE && rule->image.each == 1;
    if (!g->measures || d->kind != CC_PRIM_CONV || !(f32 || half) || single) return;
    CcConvCandidates c = {.library = rule, .rule = rule};
    if (half) {
        c.layouts = cc_dnnl_native(d->weights.dtype) && has_blocks(&d->weights, d->weights.ndim > d->src.ndim);
    } else {
        c.own = own ? rule : describe_slower(g, nodes, n, arena);
        c.blocked = describe_library(g, nodes, n, true, arena);
        if (own) c.library = describe_library(g, nodes, n, false, arena);
    }
    if (own || c.own || c.blocked || c.layouts) rule->ways = cc_convways_make(&c, d, g->input_bytes, arena);
}

static void *build(const CcGraph *g, const int *nodes, int n, CcArena *arena, CcErr *err) {
    CcPrimDesc d;
    CcConv *conv = cc_arena_alloc(arena, sizeof *conv), *wide = cc_arena_alloc(arena, sizeof *wide);
    const bool pair = conv && wide && describe_pair(g, nodes, n, &d, wide, conv);
    bool own = pair || (conv && describe_own(g, nodes, n, (Wish){.reorders = true}, &d, conv));
    if (own && make_reorders(g, conv, &d, arena, err) < 0) {
        cc_log_add(CC_LOG_FALLBACK, "a convolution's tensors can't be reordered for own code: %s", err->text);
        own = describe_own(g, nodes, n, (Wish){0}, &d, conv);
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
    } else {
        find_ways(g, nodes, n, own, &d, conv, arena);
    }
    if (conv->ways) conv = cc_convways_known(conv->ways, conv);
    if (!conv->prim)
        cc_log_add(CC_LOG_PRIMITIVE, "%s convolution by own code%s, %d ops", WAY[conv->image.way],
                   pair ? " with the one before it" : "", n);
    return conv;
}

static size_t scratch(const void *work) { return cc_convcall_bytes(work); }

static int run(const void *work, const CcHost *host, CcErr *err) {
    CcConv *conv = (CcConv *)work; /* its way changes once */
    void *dst = host->make(host->ctx, conv->dst);
    if (!dst) return cc_err_set(err, CC_E_HOST, "no memory for value %d", conv->dst);
    return conv->ways ? cc_convways_run(conv->ways, conv, host, dst, err)
                      : cc_convcall_run(conv, host, dst, host->scratch, err);
}

static const char *way(const void *work) {
    const CcConv *conv = work;
    return cc_convways_name(conv->ways, conv);
}

static void free_conv(void *work) {
    CcConv *conv = work;
    if (conv->ways) {
        cc_convways_clear(conv->ways);
        return;
    }
    cc_packed_free(conv->packed);
    if (conv->wide) cc_packed_free(conv->wide->packed);
}

const CcPrimFamily CC_CONVS = {.name = "conv",
                               .can = can,
                               .can_post = can_post,
                               .build = build,
                               .scratch = scratch,
                               .run = run,
                               .way = way,
                               .free = free_conv};
