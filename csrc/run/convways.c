/* convways: the ways of running one convolution with what follows it: the algorithms of our own code, and oneDNN. A rule
 * picks one (convolution.c); choose.c measures all of them. A large batch is measured by fewer of its images. */
#include <math.h>
#include <stdatomic.h>

#include "run_int.h"

typedef enum Way {
    DIRECT,
    DEPTHWISE,
    WINOGRAD_2, /* edge of a tile */
    WINOGRAD_4,
    ONEDNN,
    ONE_OUTPUT, /* each channel by its own weights, columns innermost */
    ONEDNN_BLOCKED,
    ONEDNN_PREFERRED, /* in half precision: weights in the layout that oneDNN prefers, not in blocks */
    WAYS
} Way;

static const char *const NAME[] = {[DIRECT] = "direct",
                                   [DEPTHWISE] = "depthwise",
                                   [WINOGRAD_2] = "winograd_2",
                                   [WINOGRAD_4] = "winograd_4",
                                   [ONEDNN] = "onednn",
                                   [ONE_OUTPUT] = "one_output",
                                   [ONEDNN_BLOCKED] = "onednn_blocked",
                                   [ONEDNN_PREFERRED] = "onednn_preferred"};
_Static_assert(CC_COUNT(NAME) == WAYS, "each way has a name");
_Static_assert((int)WAYS <= (int)CC_CHOICE_WAYS, "choose.c has room for them");

static const int64_t LEAST_WORK = 1 << 20; /* multiply-adds; smaller convolutions follow the rule */
static const int64_t MOST_WORK = 1 << 26;  /* of a measured run, 1 ms at 130 GFLOP/s, unless one image has more ... */
static const int64_t IMAGE_WORK = 1 << 30; /* ... and one of more follows the rule */

struct CcConvWays {
    CcChoice choice;
    CcPrimDesc desc;
    int64_t work; /* of one image */
    bool frozen;
    bool copies[2];    /* do src and dst lie otherwise than `desc` says? */
    CcConv *way[WAYS]; /* NULL: can't run it */
    /* Measured in the first run, which other runs do not wait for: `measures` is taken by one of them, `better` is the
     * way that it found, or NULL: the rule's. */
    atomic_bool measures;
    _Atomic(CcConv *) better;
    _Atomic(char *) spare; /* scratch memory of `better` (cc_choose_take) */
};

/* ------------------------------------------------------------------ keys */

static void write_shape(const CcTensorDesc *t, CcSbuf *out) {
    for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? "x" : "", (long long)t->size[i]);
}

static void write_sizes(const void *desc, CcSbuf *out) {
    const CcConvWays *w = desc;
    write_shape(&w->desc.src, out);
    cc_sbuf_add(out, " by ");
    write_shape(&w->desc.weights, out);
    cc_sbuf_add(out, " (%s)", w->frozen ? "packed" : "plain");
}

static void write_key(const void *desc, CcSbuf *out) {
    const CcConvWays *w = desc;
    const CcPrimDesc *d = &w->desc;
    cc_sbuf_add(out, "convolution ");
    write_sizes(desc, out);
    cc_sbuf_add(out, " to ");
    write_shape(&d->dst, out);
    for (int i = 0; i < d->src.ndim - 2; i++)
        cc_sbuf_add(out, ", %lld %lld %lld", (long long)d->stride[i], (long long)d->dilation[i],
                    (long long)d->pad_before[i]);
    cc_sbuf_add(out, ", channels %lld to %lld, copies %d%d, posts", (long long)d->src.stride[1],
                (long long)d->dst.stride[1], w->copies[0], w->copies[1]);
    for (int i = 0; i < d->n_post; i++) cc_sbuf_add(out, " %d", (int)d->post[i].kind);
    if (d->weights.dtype != CC_DT_F32) cc_sbuf_add(out, ", %s", cc_dtype_info(d->weights.dtype)->name);
}

/* ------------------------------------------------------------------ measuring */

typedef struct Contest {
    const CcConvWays *ways;
    const CcHost *host;
    void *dst;
    int64_t batch; /* that is measured */
    CcPrimDesc desc[WAYS];
    CcConv part[WAYS];
} Contest;

static int make(void *ctx, int way, size_t *bytes, CcErr *err) {
    Contest *t = ctx;
    CcConv *part = &t->part[way];
    *part = *t->ways->way[way];
    part->image.batch = t->batch * part->image.each;
    if (part->desc) {
        CcPrimDesc *desc = &t->desc[way];
        *desc = *part->desc;
        desc->src.size[0] = t->batch;
        cc_vet_resize(desc, 0, t->batch);
        part->desc = desc;
        part->prim = cc_dnnl_get(desc, err);
        if (!part->prim) return -1;
    }
    *bytes = cc_convcall_bytes(part);
    return 0;
}

static int run(void *ctx, int way, char *scratch, CcErr *err) {
    const Contest *t = ctx;
    return cc_convcall_run(&t->part[way], t->host, t->dst, scratch, err);
}

static void advance(void *ctx, int way, bool cold) {
    const Contest *t = ctx;
    const CcConv *any = t->ways->way[way];
    const CcTensorDesc *w = &t->ways->desc.weights;
    int64_t last = 0;
    if (!cold) return;
    if (any->packed) cc_packed_evict(any->packed);
    for (int i = 0; i < w->ndim; i++) last += (w->size[i] - 1) * w->stride[i];
    cc_cpu_evict(cc_prim_data(t->host, any->weights), (last + 1) * cc_dtype_size(w->dtype));
}

static const CcChoiceKind CONVOLUTION = {.name = "convolution",
                                         .way = NAME,
                                         .n = WAYS,
                                         .write_sizes = write_sizes,
                                         .write_key = write_key,
                                         .make = make,
                                         .run = run,
                                         .advance = advance};

const CcChoiceKind *cc_convways_kind(void) { return &CONVOLUTION; }

static bool reorders(const CcConvWays *w) {
    bool any = false;
    for (int i = 0; i < WAYS; i++) any |= w->way[i] && (w->way[i]->reorder[0].is || w->way[i]->reorder[1].is);
    return any;
}

/* -> the fastest way of this call, whose result is undefined afterwards. */
static CcConv *measure(CcConvWays *w, const CcHost *host, void *dst) {
    const int64_t whole = w->desc.src.size[0];
    Contest t = {.ways = w, .host = host, .dst = dst, .batch = CC_MAX(1, MOST_WORK / w->work)};
    if (t.batch > whole || reorders(w)) t.batch = whole; /* copies are of all images */
    return w->way[cc_choose_measure(&w->choice, &t)];
}

/* ------------------------------------------------------------------ the ways */

static Way way_of(const CcConvShape *image) {
    switch (image->way) {
    case CC_CONV_DIRECT: return DIRECT;
    case CC_CONV_DEPTHWISE: return DEPTHWISE;
    case CC_CONV_ONE: return ONE_OUTPUT;
    case CC_CONV_WINOGRAD: break;
    }
    return image->tile == 2 ? WINOGRAD_2 : WINOGRAD_4;
}

static CcConv *copy_of(const CcConv *conv, CcArena *arena) {
    CcConv *copy = cc_arena_alloc(arena, sizeof *copy);
    if (!copy) return NULL;
    *copy = *conv;
    if (conv->packed) copy->packed = cc_packed_new();
    return copy;
}

/* Our own code's other algorithms, for what is not depthwise. */
static void add_others(CcConvWays *w, CcConv *own, CcArena *arena) {
    static const struct {
        CcConvWay way;
        int tile;
    } OTHER[] = {{CC_CONV_DIRECT, 0}, {CC_CONV_WINOGRAD, 2}, {CC_CONV_WINOGRAD, 4}};
    const bool depthwise = own->image.way == CC_CONV_DEPTHWISE || own->image.way == CC_CONV_ONE;
    w->way[way_of(&own->image)] = own;
    for (int i = 0; i < CC_COUNT(OTHER) && !depthwise; i++) {
        CcConvShape image = own->image;
        image.way = OTHER[i].way;
        image.tile = OTHER[i].tile;
        const Way way = way_of(&image);
        /* F(4x4) rounds worse: only where the rule would take it for its speed */
        if (w->way[way] || !cc_conv_can(&image) || (way == WINOGRAD_4 && !cc_conv_pays(&image, w->frozen))) continue;
        w->way[way] = copy_of(own, arena);
        if (w->way[way]) w->way[way]->image = image;
    }
}

/* The library's way of half precision, and the same with the weights in the other layout: in blocks, or as oneDNN prefers.
 * -> the first one. */
static Way add_layouts(CcConvWays *w, CcConv *library, CcArena *arena) {
    const bool preferred = w->desc.weights.form == CC_FORMAT_ANY;
    CcPrimDesc *desc = cc_arena_alloc(arena, sizeof *desc);
    CcConv *other = desc ? copy_of(library, arena) : NULL;
    if (other) {
        *desc = w->desc;
        desc->weights.form = preferred ? CC_FORMAT_BLOCKED : CC_FORMAT_ANY;
        other->prim = NULL;
        other->desc = desc;
    }
    w->way[preferred ? ONEDNN : ONEDNN_PREFERRED] = other;
    return preferred ? ONEDNN_PREFERRED : ONEDNN;
}

CcConvWays *cc_convways_make(const CcConvCandidates *c, const CcPrimDesc *desc, int64_t input_bytes, CcArena *arena) {
    CcConvWays *w = cc_arena_alloc(arena, sizeof *w);
    if (!w) return NULL;
    const CcTensorDesc *k = &desc->weights;
    *w = (CcConvWays){.desc = *desc, .frozen = c->rule->packed != NULL, .work = 1};
    for (int i = 1; i < desc->dst.ndim; i++) w->work *= desc->dst.size[i];
    for (int i = k->ndim - desc->dst.ndim + 1; i < k->ndim; i++) w->work *= k->size[i];
    for (int i = 0; i < 2; i++) w->copies[i] = c->rule->reorder[i].is;
    if (c->own) add_others(w, c->own, arena);
    const Way library = c->layouts ? add_layouts(w, c->library, arena) : ONEDNN;
    w->way[library] = c->library;
    w->way[ONEDNN_BLOCKED] = c->blocked;
    if (c->library == c->rule) c->library->desc = &w->desc;
    w->choice = (CcChoice){.kind = &CONVOLUTION,
                           .desc = w,
                           .rule = c->rule == c->own ? way_of(&c->own->image) : library,
                           .pays = w->work * desc->src.size[0] >= LEAST_WORK && w->work <= IMAGE_WORK,
                           .input_bytes = input_bytes};
    for (int i = 0; i < WAYS; i++) {
        if (!w->way[i]) continue;
        w->choice.ways |= 1u << i;
        w->way[i]->ways = w;
    }
    return w;
}

/* Makes its primitive. */
static bool is_ready(CcConv *conv) {
    CcErr why;
    if (conv->prim || !conv->desc) return true;
    conv->prim = cc_dnnl_get(conv->desc, &why);
    if (!conv->prim) cc_log_add(CC_LOG_FALLBACK, "a convolution is not by oneDNN: %s", why.text);
    return conv->prim != NULL;
}

CcConv *cc_convways_known(CcConvWays *w, CcConv *rule) {
    const int known = cc_choose_known(&w->choice);
    atomic_store(&w->measures, known < 0 && cc_choose_may(&w->choice));
    return known >= 0 && is_ready(w->way[known]) ? w->way[known] : rule;
}

static void change_to(CcConvWays *w, CcConv *rule, CcConv *best) {
    if (best == rule || !is_ready(best)) return;
    cc_packed_drop(rule->packed);
    atomic_store(&w->better, best);
}

static int run_better(CcConvWays *w, const CcConv *conv, const CcHost *host, void *dst, CcErr *err) {
    char *scratch;
    if (cc_choose_take(&w->spare, cc_convcall_bytes(conv), &scratch, err) < 0) return -1;
    const int status = cc_convcall_run(conv, host, dst, scratch, err);
    cc_choose_give(&w->spare, scratch);
    return status;
}

int cc_convways_run(CcConvWays *w, CcConv *rule, const CcHost *host, void *dst, CcErr *err) {
    if (w->measures && atomic_exchange(&w->measures, false)) {
        const int known = cc_choose_known(&w->choice); /* an equal convolution may have measured */
        change_to(w, rule, known < 0 ? measure(w, host, dst) : w->way[known]);
    }
    const CcConv *better = atomic_load_explicit(&w->better, memory_order_acquire);
    return better ? run_better(w, better, host, dst, err) : cc_convcall_run(rule, host, dst, host->scratch, err);
}

const char *cc_convways_name(const CcConvWays *w, const CcConv *rule) {
    const CcConv *better = w ? atomic_load((_Atomic(CcConv *) *)&w->better) : NULL;
    const CcConv *conv = better ? better : rule;
    if (!conv->prim) return NAME[way_of(&conv->image)];
    for (int i = 0; w && i < WAYS; i++)
        if (conv == w->way[i]) return NAME[i];
    return NAME[ONEDNN];
}

void cc_convways_clear(CcConvWays *w) {
    for (int i = 0; i < WAYS; i++)
        if (w->way[i]) cc_packed_free(w->way[i]->packed);
    free(atomic_load(&w->spare));
}
