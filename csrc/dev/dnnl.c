/* dnnl: oneDNN 3.x through its C API, declared here (no header of it is needed to build).
 * Primitives are cached by description. A primitive is shared by threads; what a call needs for
 * itself (memory objects, stream) is a State: each primitive keeps one spare, and a second thread
 * at the same time makes its own. Buffers (the scratchpad, tensors in the form that the primitive
 * wants them in) lie in one block of memory that all primitives share: what a reorder has just
 * written is still in the cache when the primitive reads it, and weights are not held twice.
 *
 *   call.src -> [reorder -> buffer] -> primitive -> [buffer -> reorder] -> call.dst
 *   call.weights -> [reorder -> buffer] ---^      in brackets: where the form differs
 */
#include <pthread.h>
#include <stdatomic.h>

#include "dev_int.h"

typedef struct DnnlOpaque *Handle;
typedef const struct DnnlOpaque *Borrowed;
typedef struct ExecArg {
    int arg;
    Handle memory;
} ExecArg;

enum { /* values of dnnl_types.h, the same in all of 3.x unless said */
       DNNL_CPU = 1,
       DNNL_F32 = 3,
       DNNL_STREAM_DEFAULT = 1,
       DNNL_SCRATCHPAD_USER = 1,
       DNNL_ISA_AVX2 = 7,
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
    int arg, md; /* of an execution, of a query */
} ROLE[ROLES] = {{1, 129}, {33, QUERY_WEIGHTS_MD}, {41, 0}, {17, 133}};

typedef struct Version {
    int major, minor, patch;
} Version;

static struct {
    const Version *(*version)(void);
    int (*set_isa)(int isa);
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
    int (*matmul_desc)(Handle *pd, Handle engine, Borrowed src, Borrowed weights, Borrowed bias,
                       Borrowed dst, Borrowed attr);
    int (*conv_desc)(Handle *pd, Handle engine, int prop, int alg, Borrowed src, Borrowed weights,
                     Borrowed bias, Borrowed dst, const int64_t *strides, const int64_t *dilates,
                     const int64_t *before, const int64_t *after, Borrowed attr);
    int (*deconv_desc)(Handle *pd, Handle engine, int prop, int alg, Borrowed src, Borrowed weights,
                       Borrowed bias, Borrowed dst, const int64_t *strides, const int64_t *dilates,
                       const int64_t *before, const int64_t *after, Borrowed attr);
    int (*reorder_desc)(Handle *pd, Borrowed from, Handle from_engine, Borrowed to,
                        Handle to_engine, Borrowed attr);
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

/* [CcPostKind]: dnnl_alg_kind_t and its alpha; 0 is none */
static const struct {
    int alg;
    float alpha;
    bool binary;
} POST[] = {
    [CC_POST_GELU_ERF] = {0x31, 0, false}, [CC_POST_GELU_TANH] = {0x2b, 0, false},
    [CC_POST_SILU] = {0x2c, 1, false},     [CC_POST_SIGMOID] = {0x29, 0, false},
    [CC_POST_TANH] = {0x21, 0, false},     [CC_POST_SCALE] = {0x26, 0, false},
    [CC_POST_SUM] = {0, 0, false},         [CC_POST_ADD] = {0x1fff0, 0, true},
    [CC_POST_MUL] = {0x1fff1, 0, true},
};

typedef struct State {
    Handle stream, memory[MAX_ARGS], outside[ROLES]; /* outside: the caller's, of a role that is converted */
    ExecArg arg[MAX_ARGS];
    int n, at[ROLES], post[CC_DNNL_MAX_POST], scratchpad; /* indices of memory; -1: none */
} State;

enum {
    SMALL = 1 << 19 /* multiplications that a second thread is not worth its barrier for: about 10 us */
};

typedef struct Convert {
    Handle primitive; /* NULL: this role is used as it lies in memory */
    size_t offset;    /* of its buffer in the block */
    size_t bytes;
} Convert;

struct CcPrim {
    CcPrimDesc desc;
    bool small;
    uint64_t hash;
    Handle primitive, pd;
    Convert convert[ROLES];
    size_t scratchpad, bytes; /* offset in the block, whole block */
    _Atomic(State *) spare;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;
    int state; /* 0 not tried, 1 ready, -1 failed */
    CcErr err;
    Handle engine;
    int post_base; /* DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE: it moved within 3.x, so it is found by
                      trying; 0: not yet */
    char text[48];
    CC_VEC(CcPrim *) made;
} lib;

void cc_dnnl_library(const char *path) {
    pthread_mutex_lock(&lock);
    free(lib.path);
    lib.path = path ? strdup(path) : NULL;
    if (lib.state < 0) lib.state = 0;
    pthread_mutex_unlock(&lock);
}

static int load(CcErr *err) {
    cc_omp_describe(); /* promotes torch's libgomp, so that oneDNN's OpenMP calls end there */
    void *handle = cc_dl_open(lib.path, false, err);
    if (!handle || cc_dl_bind(handle, ROWS, CC_COUNT(ROWS), err) < 0) return -1;
    const Version *v = dnnl.version();
    if (v->major != 3)
        return cc_err_set(err, CC_E_MISSING, "oneDNN %d.%d is not supported, 3.x is", v->major,
                          v->minor);
    snprintf(lib.text, sizeof lib.text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (cc_cpu_info()->narrowed) dnnl.set_isa(DNNL_ISA_AVX2);
    return dnnl.engine_create(&lib.engine, DNNL_CPU, 0)
               ? cc_err_set(err, CC_E_BACKEND, "oneDNN has no CPU engine")
               : 0;
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

static Handle make_md(const CcTensorDesc *t) {
    Handle md = NULL;
    return t->ndim && dnnl.md_create(&md, t->ndim, t->size, DNNL_F32, t->stride) == 0 ? md : NULL;
}

/* dnnl_ABc16b16a and its like: blocks of a vector's width of inputs and outputs. */
static int blocked_tag(int ndim) {
    static const int TAG[2][3] = {{72, 107, 147}, {57, 79, 122}};
    const int bytes = cc_cpu_info()->vector_bytes;
    return ndim < 3 || ndim > 5 || bytes < 32 ? DNNL_FORMAT_ANY : TAG[bytes == 64][ndim - 3];
}

/* As the primitive is to see it. */
static Handle make_form(const CcTensorDesc *t, CcForm form) {
    Handle md = NULL;
    if (form == CC_FORM_GIVEN || !t->ndim) return make_md(t);
    if (form != CC_FORM_LAST) {
        const int tag = form == CC_FORM_BLOCKED ? blocked_tag(t->ndim) : DNNL_FORMAT_ANY;
        return dnnl.md_create_tag(&md, t->ndim, t->size, DNNL_F32, tag) ? NULL : md;
    }
    CcTensorDesc last = *t;
    int64_t stride = t->size[1];
    last.stride[1] = 1;
    for (int d = t->ndim - 1; d > 1; d--) {
        last.stride[d] = stride;
        stride *= t->size[d];
    }
    last.stride[0] = stride;
    return make_md(&last);
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
    case CC_PRIM_MATMUL:
        return dnnl.matmul_desc(pd, lib.engine, md[SRC], md[WEIGHTS], md[BIAS], md[DST], attr);
    case CC_PRIM_CONV:
        return dnnl.conv_desc(pd, lib.engine, DNNL_FORWARD_INFERENCE, DNNL_CONVOLUTION_DIRECT,
                              md[SRC], md[WEIGHTS], md[BIAS], md[DST], d->step, dilation, d->before,
                              d->after, attr);
    case CC_PRIM_DECONV:
        return dnnl.deconv_desc(pd, lib.engine, DNNL_FORWARD_INFERENCE, DNNL_DECONVOLUTION_DIRECT,
                                md[SRC], md[WEIGHTS], md[BIAS], md[DST], d->step, dilation,
                                d->before, d->after, attr);
    }
    return -1;
}

/* A reorder between how a role lies in memory and how the primitive has it; none where that is the
 * same. */
static int make_convert(CcPrim *p, int role) {
    const CcTensorDesc *t = tensor_of(&p->desc, role);
    if (!t->ndim || t->form == CC_FORM_GIVEN) return 0;
    const Borrowed inside = dnnl.desc_query_md(p->pd, ROLE[role].md, 0);
    Handle outside = make_md(t), pd = NULL;
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

static int create(CcPrim *p, CcErr *err) {
    const CcPrimDesc *d = &p->desc;
    Handle md[ROLES], attr = make_attr(d);
    for (int i = 0; i < ROLES; i++) md[i] = make_form(tensor_of(d, i), tensor_of(d, i)->form);
    int status = attr ? 0 : -1;
    for (int i = 0; i < ROLES; i++)
        if (tensor_of(d, i)->ndim && !md[i]) status = -1;
    if (!status) status = describe(d, md, attr, &p->pd);
    if (status && attr && d->weights.form == CC_FORM_BLOCKED) { /* no code for this form here */
        if (md[WEIGHTS]) dnnl.md_destroy(md[WEIGHTS]);
        md[WEIGHTS] = make_form(&d->weights, CC_FORM_ANY);
        status = md[WEIGHTS] ? describe(d, md, attr, &p->pd) : -1;
    }
    const char *info = "";
    if (!status) status = dnnl.desc_query(p->pd, QUERY_IMPL, 0, &info);
    free_mds(md, ROLES);
    if (attr) dnnl.attr_destroy(attr);
    if (status)
        return cc_err_set(err, CC_E_BACKEND, "oneDNN refuses a %s (status %d)", KIND[d->kind],
                          status);
    if (strncmp(info, "ref", 3) == 0)
        return cc_err_set(err, CC_E_UNSUPPORTED, "oneDNN only has a slow %s for these strides",
                          KIND[d->kind]);
    for (int i = 0; i < ROLES; i++)
        if (make_convert(p, i))
            return cc_err_set(err, CC_E_BACKEND, "oneDNN can't copy a tensor of a %s",
                              KIND[d->kind]);
    const Borrowed scratch = dnnl.desc_query_md(p->pd, QUERY_SCRATCHPAD_MD, 0);
    p->scratchpad = p->bytes;
    p->bytes += scratch ? (dnnl.md_size(scratch) + 63) / 64 * 64 : 0;
    if (dnnl.create(&p->primitive, p->pd))
        return cc_err_set(err, CC_E_BACKEND, "oneDNN can't create a %s", KIND[d->kind]);
    return 0;
}

static void free_state(State *s);

static void destroy(CcPrim *p) {
    for (int i = 0; i < ROLES; i++)
        if (p->convert[i].primitive) dnnl.destroy(p->convert[i].primitive);
    if (p->primitive) dnnl.destroy(p->primitive);
    if (p->pd) dnnl.desc_destroy(p->pd);
    free_state(atomic_exchange(&p->spare, NULL));
}

/* 2 * 3 + 4 with each base; a wrong one is refused. */
static int find_post_base(CcErr *err) {
    static const int BASE[] = {16384, 32768};
    const CcTensorDesc one = {.ndim = 2, .size = {1, 1}, .stride = {1, 1}};
    CcPrim probe = {.desc = {.src = one,
                             .weights = one,
                             .dst = one,
                             .n_post = 1,
                             .post = {{CC_POST_ADD, 0, one}}}};
    float x = 2, y = 3, z = 4, out = 0;
    if (lib.post_base) return 0;
    if (create(&probe, err) < 0) return -1;
    void *scratch = aligned_alloc(64, probe.bytes + 64);
    for (int i = 0; i < CC_COUNT(BASE) && out != 10; i++) {
        lib.post_base = BASE[i];
        const CcPrimCall call = {.src = &x, .weights = &y, .post = {&z}, .dst = &out, .scratch = scratch};
        if (cc_dnnl_run(&probe, &call, NULL) < 0) out = 0;
        free_state(atomic_exchange(&probe.spare, NULL));
    }
    destroy(&probe);
    free(scratch);
    return out == 10 ? 0
                     : cc_err_set(err, CC_E_UNSUPPORTED, "oneDNN takes no operands of post-ops");
}

static bool is_small(const CcPrimDesc *d) {
    int64_t work = 1;
    if (d->kind == CC_PRIM_MATMUL) work = d->src.size[d->src.ndim - 1];
    const CcTensorDesc *each = d->kind == CC_PRIM_DECONV ? &d->src : &d->dst;
    for (int i = 0; i < each->ndim; i++) work *= each->size[i];
    for (int i = 1; d->kind >= CC_PRIM_CONV && i < d->weights.ndim; i++)
        if (d->weights.ndim == d->dst.ndim || i != 1) work *= d->weights.size[i];
    return work <= SMALL;
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
    p->small = is_small(desc);
    const int threads = p->small ? cc_omp_limit(1) : 0; /* oneDNN plans for them here */
    const int status = create(p, err);
    if (p->small) cc_omp_limit(threads);
    if (status < 0) {
        destroy(p);
        free(p);
        return NULL;
    }
    cc_vec_push(&lib.made, p);
    cc_log_add(CC_LOG_PRIMITIVE, "%s, %d post-ops, %.2f ms", KIND[desc->kind], desc->n_post,
               (double)(cc_log_now_ns() - start) * 1e-6);
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
        if (lib.made.at[i]->hash == hash && memcmp(&lib.made.at[i]->desc, desc, sizeof *desc) == 0)
            p = lib.made.at[i];
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

/* -> index of the memory object; -1 on failure. */
static int add_arg(State *s, int arg, Borrowed md) {
    if (!md || dnnl.memory_create(&s->memory[s->n], md, lib.engine, NULL)) return -1;
    s->arg[s->n] = (ExecArg){arg, s->memory[s->n]};
    return s->n++;
}

static int add_role(State *s, const CcPrim *p, int role) {
    const CcTensorDesc *t = tensor_of(&p->desc, role);
    if (!t->ndim) return 0;
    Handle md = make_md(t);
    int status = md ? 0 : -1;
    if (!status && p->convert[role].primitive) {
        status = dnnl.memory_create(&s->outside[role], md, lib.engine, NULL);
        s->at[role] = add_arg(s, ROLE[role].arg, dnnl.desc_query_md(p->pd, ROLE[role].md, 0));
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
        s->scratchpad =
            add_arg(s, ARG_SCRATCHPAD, dnnl.desc_query_md(p->pd, QUERY_SCRATCHPAD_MD, 0));
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

/* The weights of a call from those that are kept; *status: it failed. NULL: they are used as they are, or converted. */
static CcPack *find_pack(const CcPrim *p, State *s, const CcPrimCall *call, int *status) {
    const Convert *convert = &p->convert[WEIGHTS];
    if (!call->packed || !convert->primitive) return NULL;
    CcPack *pack = cc_packed_find(call->packed, call->weights, call->version);
    if (pack) return pack;
    pack = cc_packed_make(convert->bytes, call->weights, call->version);
    if (!pack) return NULL;
    dnnl.memory_set(s->outside[WEIGHTS], (void *)call->weights);
    dnnl.memory_set(s->memory[s->at[WEIGHTS]], pack->at);
    *status = reorder(p, s, WEIGHTS);
    if (!*status) cc_packed_keep(call->packed, pack);
    return pack;
}

static int execute(const CcPrim *p, State *s, const CcPrimCall *call) {
    void *const given[ROLES] = {(void *)call->src, (void *)call->weights, (void *)call->bias,
                                call->dst};
    int status = 0;
    CcPack *pack = find_pack(p, s, call, &status);
    for (int i = 0; i < ROLES; i++) {
        if (!tensor_of(&p->desc, i)->ndim) continue;
        const Convert *convert = &p->convert[i];
        if (i == WEIGHTS && pack) {
            dnnl.memory_set(s->memory[s->at[i]], pack->at);
            continue;
        }
        if (convert->primitive) dnnl.memory_set(s->outside[i], given[i]);
        dnnl.memory_set(s->memory[s->at[i]],
                        convert->primitive ? call->scratch + convert->offset : given[i]);
        if (convert->primitive && i != DST && !status) status = reorder(p, s, i);
    }
    for (int i = 0; i < p->desc.n_post; i++)
        if (POST[p->desc.post[i].kind].binary)
            dnnl.memory_set(s->memory[s->post[i]], (void *)call->post[i]);
    if (s->scratchpad >= 0) dnnl.memory_set(s->memory[s->scratchpad], call->scratch + p->scratchpad);
    if (!status) status = dnnl.execute(p->primitive, s->stream, s->n, s->arg);
    if (!status && p->convert[DST].primitive) status = reorder(p, s, DST);
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
    free_state(atomic_exchange(&p->spare, s)); /* two threads at once: one spare is enough */
    return status ? cc_err_set(err, CC_E_BACKEND, "oneDNN: a %s failed (status %d)",
                               KIND[p->desc.kind], status)
                  : 0;
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
