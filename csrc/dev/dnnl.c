/* dnnl: oneDNN 3.x through its C API, declared here (its headers are not needed to build). Primitives are cached by
 * description and shared by threads. The per-call objects (memory objects, stream) form a State: each primitive keeps
 * one spare State, and a concurrent call makes its own. Buffers (scratchpad, reordered tensors) are in one scratch
 * block, common to all primitives: a primitive then finds what a reorder has just written in the cache, and weights are
 * not held twice.
 *
 *   call.src -> [widen -> buffer] -> [reorder -> buffer] -> primitive -> [buffer -> reorder] -> [buffer -> narrow] -> call.dst
 *   call.weights -> [..] -> [reorder -> buffer] --------------^      in brackets: if the layout or the dtype differs
 *
 * halves.c widens and narrows, as oneDNN's reorders of f16 are slow (589824 elements: 18 ms against 0.1; 3.2, Zen 4).
 *
 * vet.c checks every primitive before its first use. */
#include <pthread.h>
#include <sys/stat.h>
#include <stdatomic.h>

#include "dev_int.h"

typedef struct DnnlOpaque *Handle;
typedef const struct DnnlOpaque *Borrowed;
typedef struct ExecArg {
    int arg;
    Handle memory;
} ExecArg;

/* Values of dnnl_types.h; the same in all of 3.x unless noted. */
enum {
    DNNL_CPU = 1,
    DNNL_F16 = 1,
    DNNL_BF16 = 2,
    DNNL_F32 = 3,
    DNNL_STREAM_DEFAULT = 1,
    DNNL_SCRATCHPAD_USER = 1,
    DNNL_ISA_AVX2 = 7,
    DNNL_ISA_AVX512 = 0x27, /* avx512_core */
    DNNL_FORWARD_INFERENCE = 96,
    DNNL_CONVOLUTION_DIRECT = 1,
    DNNL_DECONVOLUTION_DIRECT = 0xa,
    DNNL_FORMAT_ANY = 1,
    QUERY_IMPL = 8,
    QUERY_WEIGHTS_MD = 131,
    QUERY_SCRATCHPAD_MD = 136,
    ARG_SCRATCHPAD = 80,
    ARG_SRC_1 = 2,
    ARG_FROM = 1,
    ARG_TO = 17,
    SRC = 0,
    WEIGHTS,
    BIAS,
    DST,
    ROLES,
    MAX_ARGS = ROLES + 1 + CC_DNNL_MAX_POST,
};
static const struct {
    int arg, md, index; /* DNNL_ARG_* of an execution; what and index of a memory descriptor query */
} ROLE[ROLES] = {{1, 129, 0}, {33, QUERY_WEIGHTS_MD, 0}, {41, QUERY_WEIGHTS_MD, 1}, {17, 133, 0}};

typedef struct Version {
    int major, minor, patch;
    const char *hash; /* git commit */
} Version;

static struct {
    const Version *(*version)(void);
    int (*set_isa)(int isa);
    int (*effective_isa)(void);
    int (*math_mode)(int *mode);
    int (*engine_create)(Handle *engine, int kind, size_t index);
    int (*stream_create)(Handle *stream, Handle engine, unsigned flags);
    int (*stream_destroy)(Handle stream);
    int (*md_create)(Handle *md, int ndim, const int64_t *dims, int dtype, const int64_t *strides);
    int (*md_create_tag)(Handle *md, int ndim, const int64_t *dims, int dtype, int tag);
    int (*md_destroy)(Handle md);
    int (*md_equal)(Borrowed a, Borrowed b);
    size_t (*md_size)(Borrowed md);
    int (*memory_create)(Handle *memory, Borrowed md, Handle engine, void *data);
    int (*memory_destroy)(Handle memory);
    int (*memory_set)(Handle memory, void *data);
    int (*attr_create)(Handle *attr);
    int (*attr_destroy)(Handle attr);
    int (*attr_scratchpad)(Handle attr, int mode);
    int (*attr_post_ops)(Handle attr, Borrowed post_ops);
    int (*post_create)(Handle *post_ops);
    int (*post_destroy)(Handle post_ops);
    int (*post_eltwise)(Handle post_ops, int alg, float alpha, float beta);
    int (*post_sum)(Handle post_ops, float scale, int32_t zero_point, int dtype);
    int (*post_binary)(Handle post_ops, int alg, Borrowed md);
    int (*matmul_desc)(Handle *pd, Handle engine, Borrowed src, Borrowed weights, Borrowed bias, Borrowed dst,
                       Borrowed attr);
    int (*conv_desc)(Handle *pd, Handle engine, int prop, int alg, Borrowed src, Borrowed weights, Borrowed bias,
                     Borrowed dst, const int64_t *strides, const int64_t *dilates, const int64_t *before,
                     const int64_t *after, Borrowed attr);
    int (*deconv_desc)(Handle *pd, Handle engine, int prop, int alg, Borrowed src, Borrowed weights, Borrowed bias,
                       Borrowed dst, const int64_t *strides, const int64_t *dilates, const int64_t *before,
                       const int64_t *after, Borrowed attr);
    int (*reorder_desc)(Handle *pd, Borrowed from, Handle from_engine, Borrowed to, Handle to_engine, Borrowed attr);
    int (*desc_destroy)(Handle pd);
    int (*desc_query)(Borrowed pd, int what, int index, void *out);
    Borrowed (*desc_query_md)(Borrowed pd, int what, int index);
    int (*create)(Handle *primitive, Borrowed pd);
    int (*destroy)(Handle primitive);
    int (*execute)(Borrowed primitive, Handle stream, int n, const ExecArg *args);
} dnnl;

static const CcDlRow ROWS[] = {
#define ROW(name, slot) {"dnnl_" name, (void **)&dnnl.slot}
    ROW("version", version),
    ROW("set_max_cpu_isa", set_isa),
    ROW("get_effective_cpu_isa", effective_isa),
    ROW("get_default_fpmath_mode", math_mode),
    ROW("engine_create", engine_create),
    ROW("stream_create", stream_create),
    ROW("stream_destroy", stream_destroy),
    ROW("memory_desc_create_with_strides", md_create),
    ROW("memory_desc_create_with_tag", md_create_tag),
    ROW("memory_desc_destroy", md_destroy),
    ROW("memory_desc_equal", md_equal),
    ROW("memory_desc_get_size", md_size),
    ROW("memory_create", memory_create),
    ROW("memory_destroy", memory_destroy),
    ROW("memory_set_data_handle", memory_set),
    ROW("primitive_attr_create", attr_create),
    ROW("primitive_attr_destroy", attr_destroy),
    ROW("primitive_attr_set_scratchpad_mode", attr_scratchpad),
    ROW("primitive_attr_set_post_ops", attr_post_ops),
    ROW("post_ops_create", post_create),
    ROW("post_ops_destroy", post_destroy),
    ROW("post_ops_append_eltwise", post_eltwise),
    ROW("post_ops_append_sum", post_sum),
    ROW("post_ops_append_binary", post_binary),
    ROW("matmul_primitive_desc_create", matmul_desc),
    ROW("convolution_forward_primitive_desc_create", conv_desc),
    ROW("deconvolution_forward_primitive_desc_create", deconv_desc),
    ROW("reorder_primitive_desc_create", reorder_desc),
    ROW("primitive_desc_destroy", desc_destroy),
    ROW("primitive_desc_query", desc_query),
    ROW("primitive_desc_query_md", desc_query_md),
    ROW("primitive_create", create),
    ROW("primitive_destroy", destroy),
    ROW("primitive_execute", execute),
#undef ROW
};

static const char *const KIND[] = {"product", "convolution", "transposed convolution"};

/* [CcPostKind]: dnnl_alg_kind_t (0: none) and its alpha. */
static const struct {
    int alg;
    float alpha;
    bool binary;
} POST[] = {
    [CC_POST_GELU_ERF] = {0x31, 0, false}, [CC_POST_GELU_TANH] = {0x2b, 0, false}, [CC_POST_SILU] = {0x2c, 1, false},
    [CC_POST_SIGMOID] = {0x29, 0, false},  [CC_POST_TANH] = {0x21, 0, false},      [CC_POST_SCALE] = {0x26, 0, false},
    [CC_POST_SUM] = {0, 0, false},         [CC_POST_ADD] = {0x1fff0, 0, true},     [CC_POST_MUL] = {0x1fff1, 0, true},
};

typedef struct State {
    Handle stream, memory[MAX_ARGS], outside[ROLES]; /* outside: the caller's tensor, of a role that is reordered */
    ExecArg arg[MAX_ARGS];
    int n, at[ROLES], post[CC_DNNL_MAX_POST], scratchpad; /* indices of memory; -1: none */
} State;

enum {
    SPAN_UNIT = 4096, /* elements that a thread converts at a time */
    MOST_APART = 8,   /* largest ratio of a strided tensor's extent to its elements; q, k, v of one product have 3 */
    SMALL = 1 << 19   /* multiply-adds (about 10 us) below which a second thread is not worth its barrier */
};

typedef struct Convert {
    Handle primitive; /* the reorder; NULL: the primitive uses the tensor in place */
    size_t offset;    /* of its buffer in the scratch block */
    size_t bytes;
} Convert;

typedef struct Wide { /* the f32 copy of a bf16 or f16 tensor */
    size_t offset;    /* in the scratch block */
    int64_t n;        /* elements, gaps included; 0: not widened */
} Wide;

struct CcPrim {
    CcPrimDesc desc;
    Wide wide[ROLES];
    bool small;       /* runs on one thread */
    const char *code; /* name of oneDNN's implementation */
    CcDtype inner;    /* dtype of src, weights and dst inside the primitive */
    uint64_t hash;
    Handle primitive, pd;
    Convert convert[ROLES];
    int weights_form;         /* index of the first primitive with the same weight layouts outside and inside */
    size_t scratchpad, bytes; /* scratch block: offset of the scratchpad, total size */
    _Atomic(State *) spare;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;
    int state; /* 0 not tried, 1 ready, -1 failed */
    CcErr err;
    Handle engine;
    int native[CC_DT_COUNT]; /* 0 not tried, -1 no code, 1 code, 2 code for the CPU's matrix unit */
    /* DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE: its value changed within 3.x, so it is found by trial; 0: not yet */
    int post_base;
    char text[48];
    CcSbuf where; /* library and CPU, part of a verdict's key */
    CC_VEC(CcPrim *) made;
} lib;

void cc_dnnl_library(const char *path) {
    pthread_mutex_lock(&lock);
    free(lib.path);
    lib.path = path ? cc_mem_text(path) : NULL;
    if (lib.state < 0) lib.state = 0;
    pthread_mutex_unlock(&lock);
}

static int load(CcErr *err) {
    cc_omp_describe(); /* makes torch's libgomp global, so that oneDNN binds to it */
    void *handle = cc_dl_open(lib.path, false, err);
    if (!handle || cc_dl_bind(handle, ROWS, CC_COUNT(ROWS), err) < 0) return -1;
    /* drop the pages that relocation touched: otherwise ResNet-50's first call has its memory peak here */
    cc_dl_forget((void (*)(void))dnnl.version);
    const Version *v = dnnl.version();
    if (v->major != 3)
        return cc_err_set(err, CC_E_MISSING, "oneDNN %d.%d is not supported: 3.x is needed", v->major, v->minor);
    snprintf(lib.text, sizeof lib.text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    cc_sbuf_add(&lib.where, "%s %s %s\n", lib.text, v->hash, lib.path);
    cc_cpu_describe(&lib.where);
    if (cc_cpu_info()->narrowed) dnnl.set_isa(DNNL_ISA_AVX2);
    return dnnl.engine_create(&lib.engine, DNNL_CPU, 0) ? cc_err_set(err, CC_E_BACKEND, "oneDNN has no CPU engine") : 0;
}

static int ready(CcErr *err) {
    if (lib.state == 0) lib.state = load(&lib.err) < 0 ? -1 : 1;
    if (lib.state < 0 && err) *err = lib.err;
    return lib.state < 0 ? -1 : 0;
}

static const CcTensorDesc *tensor_of(const CcPrimDesc *d, int role) {
    const CcTensorDesc *const by_role[ROLES] = {&d->src, &d->weights, &d->bias, &d->dst};
    return by_role[role];
}

static int code_of(CcDtype dtype) { return dtype == CC_DT_BF16 ? DNNL_BF16 : dtype == CC_DT_F16 ? DNNL_F16 : DNNL_F32; }

static Handle make_md(const CcTensorDesc *t) {
    Handle md = NULL;
    return t->ndim && dnnl.md_create(&md, t->ndim, t->size, code_of(t->dtype), t->stride) == 0 ? md : NULL;
}

/* Weights: dnnl_ABc16b16a and similar tags, blocks of one vector of inputs by one of outputs; for bf16 ABc8b16a2b. Others:
 * dnnl_aBc16b and similar ones, blocks of one vector of channels. */
static int blocked_tag(int role, int ndim, CcDtype inner) {
    static const int OF_WEIGHTS[3][3] = {{72, 107, 147}, {57, 79, 122}, {70, 104, 143}};
    static const int OF_IMAGES[2][3] = {{69, 102, 142}, {56, 78, 121}};
    const int bytes = cc_dnnl_vector_bytes();
    if (ndim < 3 || ndim > 5 || bytes < 32) return DNNL_FORMAT_ANY;
    return role == WEIGHTS ? OF_WEIGHTS[(bytes == 64) + (inner == CC_DT_BF16)][ndim - 3]
                           : OF_IMAGES[bytes == 64][ndim - 3];
}

/* A role's tensor before any reorder: the caller's, or its f32 copy, which has the same strides. */
static CcTensorDesc outside_of(const CcPrim *p, int role) {
    CcTensorDesc t = *tensor_of(&p->desc, role);
    if (p->inner == CC_DT_F32) t.dtype = CC_DT_F32;
    return t;
}

/* Is the f32 operand of a product in lower precision, that autocast casts, to be rounded to it? */
static bool is_rounded(const CcPrim *p, int role) {
    const CcDtype dst = p->desc.dst.dtype;
    return p->inner == CC_DT_F32 && (role == SRC || role == WEIGHTS) && cc_dtype_is_half(dst) &&
           tensor_of(&p->desc, role)->dtype == CC_DT_F32;
}

/* Reserves scratch for the f32 copies. -1: a tensor's elements are too far apart. */
static int place_wide(CcPrim *p) {
    for (int i = 0; i < ROLES; i++) {
        const CcTensorDesc *t = tensor_of(&p->desc, i);
        if (!t->ndim || (t->dtype == outside_of(p, i).dtype && !is_rounded(p, i))) continue;
        int64_t n = 1, elements = 1;
        for (int d = 0; d < t->ndim; d++) {
            n += (t->size[d] - 1) * t->stride[d];
            elements *= t->size[d];
        }
        if (n > (i == DST ? elements : MOST_APART * elements)) return -1;
        p->wide[i] = (Wide){p->bytes, n};
        p->bytes += ((size_t)n * sizeof(float) + 63) / 64 * 64;
    }
    return 0;
}

/* A dense layout: row-major, or with channels innermost. */
static Handle make_dense(const CcTensorDesc *t, bool last, CcDtype dtype) {
    CcTensorDesc dense = *t;
    int64_t stride = last ? t->size[1] : 1;
    dense.dtype = dtype;
    if (last) dense.stride[1] = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        if (last && d == 1) continue;
        dense.stride[d] = stride;
        stride *= t->size[d];
    }
    return make_md(&dense);
}

/* Does the primitive use another dtype than the tensor has? Bias and dst may be f32 beside lower-precision operands. */
static bool converts(const CcTensorDesc *t, int role, CcDtype inner) {
    return t->dtype != inner && !((role == BIAS || role == DST) && t->dtype == CC_DT_F32);
}

/* The layout and dtype to request from oneDNN. */
static Handle make_form(const CcTensorDesc *t, int role, CcFormat form, CcDtype inner) {
    Handle md = NULL;
    const bool other = converts(t, role, inner);
    if (!t->ndim || (form == CC_FORMAT_GIVEN && !other)) return make_md(t);
    if (form == CC_FORMAT_LAST || (form == CC_FORMAT_GIVEN && role != WEIGHTS))
        return make_dense(t, form == CC_FORMAT_LAST, other ? inner : t->dtype);
    const int tag = form == CC_FORMAT_BLOCKED ? blocked_tag(role, t->ndim, inner) : DNNL_FORMAT_ANY;
    return dnnl.md_create_tag(&md, t->ndim, t->size, code_of(inner), tag) ? NULL : md;
}

static void free_mds(Handle *md, int n) {
    for (int i = 0; i < n; i++)
        if (md[i]) dnnl.md_destroy(md[i]);
}

static Handle make_attr(const CcPrimDesc *desc) {
    Handle attr = NULL, post = NULL;
    if (dnnl.attr_create(&attr)) return NULL;
    int status = dnnl.attr_scratchpad(attr, DNNL_SCRATCHPAD_USER) | dnnl.post_create(&post);
    for (int i = 0; i < desc->n_post && !status; i++) {
        const CcPostKind kind = desc->post[i].kind;
        if (kind == CC_POST_SUM) {
            status = dnnl.post_sum(post, 1, 0, DNNL_F32);
            continue;
        }
        if (!POST[kind].binary) {
            const float alpha = kind == CC_POST_SCALE ? desc->post[i].scale : POST[kind].alpha;
            status = dnnl.post_eltwise(post, POST[kind].alg, alpha, 0);
            continue;
        }
        Handle md = make_md(&desc->post[i].operand);
        status = md ? dnnl.post_binary(post, POST[kind].alg, md) : 1;
        if (md) dnnl.md_destroy(md);
    }
    if (!status) status = dnnl.attr_post_ops(attr, post);
    if (post) dnnl.post_destroy(post);
    if (!status) return attr;
    dnnl.attr_destroy(attr);
    return NULL;
}

static int describe(const CcPrimDesc *d, Handle *md, Borrowed attr, Handle *pd) {
    int64_t dilation[CC_DNNL_SPATIAL];
    for (int i = 0; i < CC_DNNL_SPATIAL; i++) dilation[i] = d->dilation[i] - 1;
    switch (d->kind) {
    case CC_PRIM_MATMUL: return dnnl.matmul_desc(pd, lib.engine, md[SRC], md[WEIGHTS], md[BIAS], md[DST], attr);
    case CC_PRIM_CONV:
        return dnnl.conv_desc(pd, lib.engine, DNNL_FORWARD_INFERENCE, DNNL_CONVOLUTION_DIRECT, md[SRC], md[WEIGHTS],
                              md[BIAS], md[DST], d->stride, dilation, d->pad_before, d->pad_after, attr);
    case CC_PRIM_DECONV:
        return dnnl.deconv_desc(pd, lib.engine, DNNL_FORWARD_INFERENCE, DNNL_DECONVOLUTION_DIRECT, md[SRC], md[WEIGHTS],
                                md[BIAS], md[DST], d->stride, dilation, d->pad_before, d->pad_after, attr);
    }
    return -1;
}

/* Creates the reorder between a role's tensor and the primitive's layout, unless the two are equal. */
static int make_convert(CcPrim *p, int role) {
    const CcTensorDesc t = outside_of(p, role);
    if (!t.ndim || (t.form == CC_FORMAT_GIVEN && !converts(&t, role, p->inner))) return 0;
    const Borrowed inside = dnnl.desc_query_md(p->pd, ROLE[role].md, ROLE[role].index);
    Handle outside = make_md(&t), pd = NULL;
    int status = inside && outside ? 0 : -1;
    if (!status && !dnnl.md_equal(inside, outside)) {
        const Borrowed from = role == DST ? inside : outside, to = role == DST ? outside : inside;
        status = dnnl.reorder_desc(&pd, from, lib.engine, to, lib.engine, NULL);
        if (!status) status = dnnl.create(&p->convert[role].primitive, pd);
        p->convert[role].offset = p->bytes;
        p->convert[role].bytes = dnnl.md_size(inside);
        p->bytes += (p->convert[role].bytes + 63) / 64 * 64;
    }
    if (pd) dnnl.desc_destroy(pd);
    if (outside) dnnl.md_destroy(outside);
    return status;
}

/* Creates the primitive descriptor for dtype p->inner. */
static int find_code(CcPrim *p, CcErr *err) {
    const CcPrimDesc *d = &p->desc;
    cc_reclaim_begin();
    Handle md[ROLES], attr = make_attr(d);
    for (int i = 0; i < ROLES; i++) {
        const CcTensorDesc t = outside_of(p, i);
        md[i] = make_form(&t, i, t.form, p->inner);
    }
    int status = attr ? 0 : -1;
    for (int i = 0; i < ROLES; i++)
        if (tensor_of(d, i)->ndim && !md[i]) status = -1;
    if (!status) status = describe(d, md, attr, &p->pd);
    if (status && attr && d->weights.form == CC_FORMAT_BLOCKED) { /* no implementation takes this layout */
        if (md[WEIGHTS]) dnnl.md_destroy(md[WEIGHTS]);
        const CcTensorDesc t = outside_of(p, WEIGHTS);
        md[WEIGHTS] = make_form(&t, WEIGHTS, CC_FORMAT_ANY, p->inner);
        status = md[WEIGHTS] ? describe(d, md, attr, &p->pd) : -1;
    }
    p->code = "";
    if (!status) status = dnnl.desc_query(p->pd, QUERY_IMPL, 0, &p->code);
    free_mds(md, ROLES);
    if (attr) dnnl.attr_destroy(attr);
    if (status) return cc_err_set(err, CC_E_BACKEND, "oneDNN refuses a %s (status %d)", KIND[d->kind], status);
    if (strncmp(p->code, "ref", 3) == 0)
        return cc_err_set(err, CC_E_UNSUPPORTED, "oneDNN has only its slow reference code for a %s with these strides",
                          KIND[d->kind]);
    return 0;
}

static int create(CcPrim *p, CcDtype inner, CcErr *err) {
    const CcPrimDesc *d = &p->desc;
    p->inner = inner;
    if (find_code(p, err) < 0) return -1;
    if (place_wide(p) < 0)
        return cc_err_set(err, CC_E_UNSUPPORTED, "a %s of half-precision tensors whose elements are too far apart",
                          KIND[d->kind]);
    for (int i = 0; i < ROLES; i++)
        if (make_convert(p, i))
            return cc_err_set(err, CC_E_BACKEND, "oneDNN can't reorder a tensor of a %s", KIND[d->kind]);
    const Borrowed scratch = dnnl.desc_query_md(p->pd, QUERY_SCRATCHPAD_MD, 0);
    p->scratchpad = p->bytes;
    p->bytes += scratch ? (dnnl.md_size(scratch) + 63) / 64 * 64 : 0;
    if (dnnl.create(&p->primitive, p->pd))
        return cc_err_set(err, CC_E_BACKEND, "oneDNN can't create a %s", KIND[d->kind]);
    return 0;
}

static void free_state(State *s);

/* Undoes `create`. */
static void destroy(CcPrim *p) {
    for (int i = 0; i < ROLES; i++)
        if (p->convert[i].primitive) dnnl.destroy(p->convert[i].primitive);
    if (p->primitive) dnnl.destroy(p->primitive);
    if (p->pd) dnnl.desc_destroy(p->pd);
    free_state(atomic_exchange(&p->spare, NULL));
    *p = (CcPrim){.desc = p->desc, .hash = p->hash, .small = p->small};
}

/* Computes 2 * 3 + 4 with each candidate; oneDNN refuses a wrong one. */
static int find_post_base(CcErr *err) {
    static const int BASE[] = {16384, 32768};
    const CcTensorDesc one = {.ndim = 2, .dtype = CC_DT_F32, .size = {1, 1}, .stride = {1, 1}};
    CcPrim probe = {.desc = {.src = one, .weights = one, .dst = one, .n_post = 1, .post = {{CC_POST_ADD, 0, one}}}};
    float x = 2, y = 3, z = 4, out = 0;
    if (lib.post_base) return 0;
    if (create(&probe, CC_DT_F32, err) < 0) return -1;
    void *scratch = aligned_alloc(64, probe.bytes + 64);
    for (int i = 0; i < CC_COUNT(BASE) && out != 10; i++) {
        lib.post_base = BASE[i];
        const CcPrimCall call = {.src = &x, .weights = &y, .post = {&z}, .dst = &out, .scratch = scratch};
        if (cc_dnnl_run(&probe, &call, NULL) < 0) out = 0;
        free_state(atomic_exchange(&probe.spare, NULL));
    }
    destroy(&probe);
    free(scratch);
    return out == 10 ? 0 : cc_err_set(err, CC_E_UNSUPPORTED, "oneDNN does not accept operands of post-ops");
}

/* Intel's tiles are the only matrix units that oneDNN uses on CPUs; its implementations' names tell. */
static int probe_native(CcDtype dtype) {
    const CcTensorDesc square = {.ndim = 2, .dtype = dtype, .size = {64, 64}, .stride = {64, 1}};
    CcPrim probe = {
        .inner = dtype,
        .desc = {.src = square, .weights = square, .dst = square, .n_post = 1, .post = {{CC_POST_ADD, 0, square}}}};
    CcErr ignored;
    const int native = find_code(&probe, &ignored) < 0 ? -1 : strstr(probe.code, "amx") ? 2 : 1;
    if (probe.pd) dnnl.desc_destroy(probe.pd);
    return native;
}

static int native(CcDtype dtype) {
    pthread_mutex_lock(&lock);
    if (ready(NULL) == 0 && !lib.native[dtype]) lib.native[dtype] = probe_native(dtype);
    const int is = lib.native[dtype];
    pthread_mutex_unlock(&lock);
    return is;
}

bool cc_dnnl_native(CcDtype dtype) { return native(dtype) > 0; }

bool cc_dnnl_tiles(CcDtype dtype) { return native(dtype) == 2; }

int cc_dnnl_vector_bytes(void) {
    if (ready(NULL) < 0) return 0;
    const int isa = dnnl.effective_isa(); /* a bit for each instruction set, those that it includes among them */
    return (isa & DNNL_ISA_AVX512) == DNNL_ISA_AVX512 ? 64 : (isa & DNNL_ISA_AVX2) == DNNL_ISA_AVX2 ? 32 : 16;
}

static int find_weights_form(const CcPrim *p) {
    const Borrowed inside = dnnl.desc_query_md(p->pd, ROLE[WEIGHTS].md, ROLE[WEIGHTS].index);
    int i = 0;
    for (; i < lib.made.n; i++) {
        const CcPrim *q = lib.made.at[i];
        if (memcmp(&q->desc.weights, &p->desc.weights, sizeof p->desc.weights) == 0 &&
            dnnl.md_equal(inside, dnnl.desc_query_md(q->pd, ROLE[WEIGHTS].md, ROLE[WEIGHTS].index)))
            break;
    }
    return i;
}

/* The scope of a verdict: this implementation in this library on this CPU, for these tensors. */
static void write_key(const CcPrim *p, const CcPrimDesc *d, CcSbuf *out) {
    int math = 0; /* fpmath mode: may f32 be computed in lower precision? */
    dnnl.math_mode(&math);
    cc_sbuf_add(out, "%s\n%s as %s, %d threads, math %d\n", cc_sbuf_text(&lib.where), p->code,
                cc_dtype_info(p->inner)->name, p->small ? 1 : cc_omp_width(), math);
    const unsigned char *bytes = (const unsigned char *)d;
    for (size_t i = 0; i < sizeof *d; i++) {
        size_t zeros = 0;
        while (i + zeros < sizeof *d && bytes[i + zeros] == 0) zeros++;
        if (zeros > 2) cc_sbuf_add(out, ".");
        if (zeros > 2) i += zeros - 1;
        else cc_sbuf_add(out, "%02x", bytes[i]);
    }
}

/* Checks a large primitive by a smaller one if oneDNN uses the same implementation for both. */
static int run_check(CcPrim *p, const CcPrimDesc *less, CcErr *err) {
    CcPrim smaller = {.desc = *less, .small = p->small};
    CcErr ignored;
    const bool other = memcmp(less, &p->desc, sizeof *less) != 0;
    const bool same = other && create(&smaller, p->inner, &ignored) == 0 && strcmp(smaller.code, p->code) == 0;
    const int status = same ? cc_vet_run(&smaller, less, err) : cc_vet_run(p, &p->desc, err);
    destroy(&smaller);
    return status;
}

/* -1: the primitive is wrong or fails to run. */
static int vet(CcPrim *p, CcErr *err) {
    CcPrimDesc less;
    CcSbuf key = {0};
    CcErr why = {0};
    (void)cc_vet_smaller(&p->desc, &less);
    write_key(p, &less, &key);
    int verdict = cc_vet_known(cc_sbuf_text(&key), key.n, &why);
    if (verdict == 0) {
        verdict = run_check(p, &less, &why) < 0 ? -1 : 1;
        if (verdict > 0 || why.status == CC_E_VERIFY) cc_vet_keep(cc_sbuf_text(&key), key.n, verdict > 0 ? NULL : &why);
    }
    cc_sbuf_free(&key);
    if (verdict > 0) return 0;
    const CcDtype dtype = p->desc.dst.dtype;
    cc_log_add(CC_LOG_BAN, "%s: banned a %s of %s with %d post-ops by %s in %s: %s", lib.text, KIND[p->desc.kind],
               cc_dtype_info(dtype)->name, p->desc.n_post, p->code, cc_dtype_info(p->inner)->name, why.text);
    return cc_err_set(err, CC_E_UNSUPPORTED, "a %s of %s by %s is banned: %s", KIND[p->desc.kind],
                      cc_dtype_info(dtype)->name, lib.text, why.text);
}

/* Creates a primitive in dst's dtype if the CPU has correct code for it, else in f32. A primitive that is wrong only
 * with post-ops fails: it may be right without them, and then is faster than f32. Without AVX512-FP16 or AMX-FP16, or
 * with CCOMPILE_CPU=avx2, f16 has no code; bf16 needs avx512. */
static int create_right(CcPrim *p, CcErr *err) {
    const CcDtype way[] = {p->desc.dst.dtype, CC_DT_F32};
    for (int i = way[0] == CC_DT_F32; i < CC_COUNT(way); i++) {
        const bool is = create(p, way[i], err) == 0;
        if (is && vet(p, err) == 0) return 0;
        destroy(p);
        if (is && p->desc.n_post) break;
    }
    return -1;
}

static CcPrim *make(const CcPrimDesc *desc, uint64_t hash, CcErr *err) {
    const uint64_t start = cc_log_now_ns();
    CcPrim *p = calloc(1, sizeof *p);
    if (!p) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a primitive");
        return NULL;
    }
    p->desc = *desc;
    p->hash = hash;
    p->small = cc_vet_work(desc) <= SMALL;
    const int threads = p->small ? cc_omp_limit(1) : 0; /* oneDNN fixes its thread count at creation */
    const int status = create_right(p, err);
    if (p->small) cc_omp_limit(threads);
    if (status < 0) {
        free(p);
        return NULL;
    }
    p->weights_form = find_weights_form(p);
    cc_vec_push(&lib.made, p);
    cc_log_more(CC_LOG_PRIMITIVE, (CcLogExtra){.start_ns = start}, "%s, %d post-ops, %.2f ms", KIND[desc->kind],
                desc->n_post, (double)(cc_log_now_ns() - start) * 1e-6);
    return p;
}

CcPrim *cc_dnnl_get(const CcPrimDesc *desc, CcErr *err) {
    const uint64_t hash = cc_map_hash(desc, sizeof *desc, 3);
    CcPrim *p = NULL;
    pthread_mutex_lock(&lock);
    int status = ready(err);
    for (int i = 0; i < desc->n_post && status == 0; i++)
        if (POST[desc->post[i].kind].binary) status = find_post_base(err);
    for (int i = 0; i < lib.made.n && !p && status == 0; i++)
        if (lib.made.at[i]->hash == hash && memcmp(&lib.made.at[i]->desc, desc, sizeof *desc) == 0) p = lib.made.at[i];
    if (!p && status == 0) p = make(desc, hash, err);
    pthread_mutex_unlock(&lock);
    return p;
}

static void free_state(State *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) dnnl.memory_destroy(s->memory[i]);
    for (int i = 0; i < ROLES; i++)
        if (s->outside[i]) dnnl.memory_destroy(s->outside[i]);
    if (s->stream) dnnl.stream_destroy(s->stream);
    free(s);
}

/* -> index of the new memory object; -1 on failure. */
static int add_arg(State *s, int arg, Borrowed md) {
    if (!md || dnnl.memory_create(&s->memory[s->n], md, lib.engine, NULL)) return -1;
    s->arg[s->n] = (ExecArg){arg, s->memory[s->n]};
    return s->n++;
}

static int add_role(State *s, const CcPrim *p, int role) {
    const CcTensorDesc t = outside_of(p, role);
    if (!t.ndim) return 0;
    Handle md = make_md(&t);
    int status = md ? 0 : -1;
    if (!status && p->convert[role].primitive) {
        status = dnnl.memory_create(&s->outside[role], md, lib.engine, NULL);
        s->at[role] = add_arg(s, ROLE[role].arg, dnnl.desc_query_md(p->pd, ROLE[role].md, ROLE[role].index));
    } else if (!status) {
        s->at[role] = add_arg(s, ROLE[role].arg, md);
    }
    if (md) dnnl.md_destroy(md);
    return status || s->at[role] < 0 ? -1 : 0;
}

static State *make_state(const CcPrim *p) {
    State *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    int status = dnnl.stream_create(&s->stream, lib.engine, DNNL_STREAM_DEFAULT);
    for (int i = 0; i < ROLES && !status; i++) status = add_role(s, p, i);
    for (int i = 0; i < p->desc.n_post && !status; i++) {
        if (!POST[p->desc.post[i].kind].binary) continue;
        Handle md = make_md(&p->desc.post[i].operand);
        s->post[i] = add_arg(s, lib.post_base * (i + 1) | ARG_SRC_1, md);
        if (md) dnnl.md_destroy(md);
        status = s->post[i] < 0;
    }
    s->scratchpad = -1;
    if (!status && p->bytes > p->scratchpad) {
        s->scratchpad = add_arg(s, ARG_SCRATCHPAD, dnnl.desc_query_md(p->pd, QUERY_SCRATCHPAD_MD, 0));
        status = s->scratchpad < 0;
    }
    if (!status) return s;
    free_state(s);
    return NULL;
}

static int reorder(const CcPrim *p, State *s, int role) {
    const bool in = role != DST;
    const ExecArg arg[] = {{ARG_FROM, in ? s->outside[role] : s->memory[s->at[role]]},
                           {ARG_TO, in ? s->memory[s->at[role]] : s->outside[role]}};
    return dnnl.execute(p->convert[role].primitive, s->stream, 2, arg);
}

typedef struct Span { /* elements outside and their copies in f32 */
    CcDtype half;
    enum { WIDEN, NARROW, ROUND } how; /* ROUND: both are f32 */
    char *outside;
    float *wide;
} Span;

static void round_span(const Span *s, int64_t from, int64_t n) {
    uint16_t bits[SPAN_UNIT];
    for (int64_t at = from; at < from + n; at += SPAN_UNIT) {
        const int64_t some = CC_MIN(from + n - at, SPAN_UNIT);
        cc_halves_narrow(s->half, (const float *)s->outside + at, bits, some);
        cc_halves_widen(s->half, bits, s->wide + at, some);
    }
}

static void convert_range(const Span *s, int64_t from, int64_t n) {
    if (s->how == ROUND) round_span(s, from, n);
    else if (s->how == NARROW) cc_halves_narrow(s->half, s->wide + from, s->outside + 2 * from, n);
    else cc_halves_widen(s->half, s->outside + 2 * from, s->wide + from, n);
}

static void convert_span(void *ctx, int64_t begin, int64_t end) {
    convert_range(ctx, begin * SPAN_UNIT, (end - begin) * SPAN_UNIT);
}

/* Converts between a role's tensor and its f32 copy. -> the copy; the tensor itself if it has none. */
static void *convert_half(const CcPrim *p, const CcPrimCall *call, int role, void *given, bool back) {
    const Wide *wide = &p->wide[role];
    if (!wide->n) return given;
    const bool rounds = is_rounded(p, role);
    Span s = {.half = rounds ? p->desc.dst.dtype : tensor_of(&p->desc, role)->dtype,
              .how = rounds ? ROUND
                     : back ? NARROW
                            : WIDEN,
              .outside = given,
              .wide = (float *)(call->scratch + wide->offset)};
    const int64_t units = wide->n / SPAN_UNIT, rest = wide->n % SPAN_UNIT;
    cc_omp_run(convert_span, &s, units, (int)CC_MIN(units / 8 + 1, p->small ? 1 : cc_omp_width()));
    convert_range(&s, units * SPAN_UNIT, rest);
    return s.wide;
}

/* The kept weights of a call, packed now if need be; *status nonzero: packing failed. NULL: the call keeps none. */
static CcPack *find_pack(const CcPrim *p, State *s, const CcPrimCall *call, int *status) {
    const Convert *convert = &p->convert[WEIGHTS];
    const bool copies = is_rounded(p, WEIGHTS) && !convert->primitive;
    if (!call->packed || (!convert->primitive && !copies)) return NULL;
    const size_t bytes = copies ? sizeof(float) * (size_t)p->wide[WEIGHTS].n : convert->bytes;
    const CcPackForm form = {CC_PACK_DNNL, {p->weights_form, (int64_t)bytes}};
    CcPack *pack = cc_packed_find(call->packed, call->weights, call->version, &form);
    if (pack) return pack;
    pack = cc_packed_make(bytes, call->weights, call->version, &form);
    if (!pack) return NULL;
    void *const given = convert_half(p, call, WEIGHTS, (void *)call->weights, false);
    if (copies) {
        memcpy(pack->at, given, bytes);
    } else {
        dnnl.memory_set(s->outside[WEIGHTS], given);
        dnnl.memory_set(s->memory[s->at[WEIGHTS]], pack->at);
        *status = reorder(p, s, WEIGHTS);
    }
    if (!*status) cc_packed_keep(call->packed, pack);
    return pack;
}

static int execute(const CcPrim *p, State *s, const CcPrimCall *call) {
    void *const given[ROLES] = {(void *)call->src, (void *)call->weights, (void *)call->bias, call->dst};
    int status = 0;
    CcPack *pack = find_pack(p, s, call, &status);
    for (int i = 0; i < ROLES; i++) {
        if (!tensor_of(&p->desc, i)->ndim) continue;
        const Convert *convert = &p->convert[i];
        if (i == WEIGHTS && pack) {
            dnnl.memory_set(s->memory[s->at[i]], pack->at);
            continue;
        }
        void *const at = i == DST && p->wide[i].n ? call->scratch + p->wide[i].offset
                         : i == DST               ? given[i]
                                                  : convert_half(p, call, i, given[i], false);
        if (convert->primitive) dnnl.memory_set(s->outside[i], at);
        dnnl.memory_set(s->memory[s->at[i]], convert->primitive ? call->scratch + convert->offset : at);
        if (convert->primitive && i != DST && !status) status = reorder(p, s, i);
    }
    for (int i = 0; i < p->desc.n_post; i++)
        if (POST[p->desc.post[i].kind].binary) dnnl.memory_set(s->memory[s->post[i]], (void *)call->post[i]);
    if (s->scratchpad >= 0) dnnl.memory_set(s->memory[s->scratchpad], call->scratch + p->scratchpad);
    if (!status) status = dnnl.execute(p->primitive, s->stream, s->n, s->arg);
    if (!status && p->convert[DST].primitive) status = reorder(p, s, DST);
    if (!status) (void)convert_half(p, call, DST, given[DST], true);
    cc_packed_done(pack);
    return status;
}

size_t cc_dnnl_bytes(const CcPrim *p) { return p->bytes; }

int cc_dnnl_run(CcPrim *p, const CcPrimCall *call, CcErr *err) {
    State *s = atomic_exchange(&p->spare, NULL);
    if (!s) s = make_state(p);
    int status = s && (call->scratch || !p->bytes) ? 0 : -1;
    if (!status) {
        const int threads = p->small ? cc_omp_limit(1) : 0;
        status = execute(p, s, call);
        if (p->small) cc_omp_limit(threads);
    }
    free_state(atomic_exchange(&p->spare, s)); /* after concurrent calls one spare is enough */
    return status ? cc_err_set(err, CC_E_BACKEND, "oneDNN: a %s failed (status %d)", KIND[p->desc.kind], status) : 0;
}

void cc_dnnl_identify(CcSbuf *out) {
    struct stat st;
    pthread_mutex_lock(&lock);
    if (lib.path && stat(lib.path, &st) == 0) cc_sbuf_add(out, "%s of %lld bytes", lib.path, (long long)st.st_size);
    else cc_sbuf_add(out, "%s", lib.path ? lib.path : "no oneDNN");
    pthread_mutex_unlock(&lock);
}

const char *cc_dnnl_describe(void) {
    pthread_mutex_lock(&lock);
    const char *text = ready(NULL) < 0 ? NULL : lib.text;
    pthread_mutex_unlock(&lock);
    return text;
}

void cc_dnnl_forget(void) {
    pthread_mutex_lock(&lock);
    if (lib.state > 0) cc_dl_forget((void (*)(void))dnnl.version);
    pthread_mutex_unlock(&lock);
}
