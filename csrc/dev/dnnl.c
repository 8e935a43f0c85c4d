/* dnnl: oneDNN 3.x through its C API, declared here (no header of it is needed to build).
 * Primitives are cached by description. A primitive is shared by threads; what a call needs for
 * itself (memory objects, scratchpad, stream) is a State: each primitive keeps one spare, and a
 * second thread at the same time makes its own. */
#include <pthread.h>
#include <stdatomic.h>

#include "dev.h"

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
       DNNL_SOFTMAX_ACCURATE = 0x30000,
       QUERY_IMPL = 8,
       QUERY_SCRATCHPAD_MD = 136,
       ARG_SRC = 1,
       ARG_WEIGHTS = 33,
       ARG_BIAS = 41,
       ARG_DST = 17,
       ARG_SCRATCHPAD = 80,
       ARG_SRC_1 = 2,
       MAX_ARGS = 5 + CC_DNNL_MAX_POST,
};

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
    int (*md_destroy)(Handle md);
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
    int (*softmax_desc)(Handle *pd, Handle engine, int prop, int alg, Borrowed src, Borrowed dst,
                        int axis, Borrowed attr);
    int (*desc_destroy)(Handle pd);
    int (*desc_query)(Borrowed pd, int what, int index, void *out);
    Borrowed (*desc_query_md)(Borrowed pd, int what, int index);
    int (*create)(Handle *primitive, Borrowed pd);
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
    ROW("memory_desc_destroy", md_destroy),
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
    ROW("softmax_forward_primitive_desc_create", softmax_desc),
    ROW("primitive_desc_destroy", desc_destroy),
    ROW("primitive_desc_query", desc_query),
    ROW("primitive_desc_query_md", desc_query_md),
    ROW("primitive_create", create),
    ROW("primitive_execute", execute),
#undef ROW
};

/* [CcPostKind]: dnnl_alg_kind_t and its alpha */
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
    Handle stream, memory[MAX_ARGS];
    ExecArg arg[MAX_ARGS];
    void *scratch;
    int n;
} State;

/* Multiplications that a second thread is not worth its barrier for: about 10 us. */
enum { SMALL = 1 << 19 };

struct CcMatmul {
    CcMatmulDesc desc;
    bool small;
    uint64_t hash;
    Handle primitive, pd;
    size_t scratch_bytes;
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
    CC_VEC(CcMatmul *) made;
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

static Handle make_md(const CcTensorDesc *t) {
    Handle md = NULL;
    return t->ndim && dnnl.md_create(&md, t->ndim, t->size, DNNL_F32, t->stride) == 0 ? md : NULL;
}

static Handle make_attr(const CcMatmulDesc *desc) {
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

static int create(CcMatmul *m, CcErr *err) {
    const CcMatmulDesc *d = &m->desc;
    Handle md[4] = {make_md(&d->src), make_md(&d->weights), make_md(&d->bias), make_md(&d->dst)};
    Handle attr = make_attr(d);
    int status = attr && md[0] && (md[1] || d->softmax) && md[3] ? 0 : -1;
    if (!status && d->softmax)
        status = dnnl.softmax_desc(&m->pd, lib.engine, DNNL_FORWARD_INFERENCE,
                                   DNNL_SOFTMAX_ACCURATE, md[0], md[3], d->src.ndim - 1, attr);
    else if (!status)
        status = dnnl.matmul_desc(&m->pd, lib.engine, md[0], md[1], md[2], md[3], attr);
    const char *info = "";
    if (!status) status = dnnl.desc_query(m->pd, QUERY_IMPL, 0, &info);
    for (int i = 0; i < 4; i++)
        if (md[i]) dnnl.md_destroy(md[i]);
    if (attr) dnnl.attr_destroy(attr);
    if (status)
        return cc_err_set(err, CC_E_BACKEND, "oneDNN refuses a product (status %d)", status);
    if (strncmp(info, "ref", 3) == 0)
        return cc_err_set(err, CC_E_UNSUPPORTED,
                          "oneDNN only has a slow product for these strides");
    const Borrowed scratch = dnnl.desc_query_md(m->pd, QUERY_SCRATCHPAD_MD, 0);
    m->scratch_bytes = scratch ? dnnl.md_size(scratch) : 0;
    if (dnnl.create(&m->primitive, m->pd))
        return cc_err_set(err, CC_E_BACKEND, "oneDNN can't create a product");
    return 0;
}

static void free_state(State *s);
static State *make_state(const CcMatmul *m);

/* 2 * 3 + 4 with each base; a wrong one is refused. */
static int find_post_base(CcErr *err) {
    static const int BASE[] = {16384, 32768};
    const CcTensorDesc one = {2, {1, 1}, {1, 1}};
    CcMatmul probe = {
        .desc = {
            .src = one, .weights = one, .dst = one, .n_post = 1, .post = {{CC_POST_ADD, 0, one}}}};
    float x = 2, y = 3, z = 4, out = 0;
    if (lib.post_base) return 0;
    if (create(&probe, err) < 0) return -1;
    for (int i = 0; i < CC_COUNT(BASE) && out != 10; i++) {
        lib.post_base = BASE[i];
        const CcMatmulCall call = {.src = &x, .weights = &y, .post = {&z}, .dst = &out};
        if (cc_dnnl_run(&probe, &call, NULL) < 0) out = 0;
        free_state(atomic_exchange(&probe.spare, NULL));
    }
    return out == 10 ? 0
                     : cc_err_set(err, CC_E_UNSUPPORTED, "oneDNN takes no operands of post-ops");
}

static bool is_small(const CcMatmulDesc *d) {
    int64_t work = d->src.size[d->src.ndim - 1];
    for (int i = 0; i < d->dst.ndim; i++) work *= d->dst.size[i];
    return work <= SMALL;
}

CcMatmul *cc_dnnl_matmul(const CcMatmulDesc *desc, CcErr *err) {
    const uint64_t hash = cc_map_hash(desc, sizeof *desc, 3), start = cc_log_now_ns();
    CcMatmul *m = NULL;
    pthread_mutex_lock(&lock);
    if (ready(err) < 0) goto done;
    for (int i = 0; i < desc->n_post; i++)
        if (POST[desc->post[i].kind].binary && find_post_base(err) < 0) goto done;
    for (int i = 0; i < lib.made.n && !m; i++)
        if (lib.made.at[i]->hash == hash && memcmp(&lib.made.at[i]->desc, desc, sizeof *desc) == 0)
            m = lib.made.at[i];
    if (m) goto done;
    m = calloc(1, sizeof *m);
    if (!m) goto done;
    m->desc = *desc;
    m->hash = hash;
    m->small = is_small(desc);
    const int threads = m->small ? cc_omp_limit(1) : 0; /* oneDNN plans for them here */
    const int status = create(m, err);
    if (m->small) cc_omp_limit(threads);
    if (status < 0) {
        if (m->pd) dnnl.desc_destroy(m->pd);
        free(m);
        m = NULL;
        goto done;
    }
    cc_vec_push(&lib.made, m);
    cc_log_add(CC_LOG_PRIMITIVE, "%s, %d post-ops, %.2f ms", desc->softmax ? "softmax" : "matmul", desc->n_post,
               (double)(cc_log_now_ns() - start) * 1e-6);
done:
    pthread_mutex_unlock(&lock);
    return m;
}

static void free_state(State *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) dnnl.memory_destroy(s->memory[i]);
    if (s->stream) dnnl.stream_destroy(s->stream);
    free(s->scratch);
    free(s);
}

static int add_arg(State *s, int arg, const CcTensorDesc *t) {
    Handle md = make_md(t);
    if (!md || dnnl.memory_create(&s->memory[s->n], md, lib.engine, NULL)) {
        if (md) dnnl.md_destroy(md);
        return -1;
    }
    dnnl.md_destroy(md);
    s->arg[s->n] = (ExecArg){arg, s->memory[s->n]};
    s->n++;
    return 0;
}

/* Memory objects in the order in which cc_dnnl_run sets them. */
static State *make_state(const CcMatmul *m) {
    const CcMatmulDesc *d = &m->desc;
    State *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    int status = dnnl.stream_create(&s->stream, lib.engine, DNNL_STREAM_DEFAULT);
    if (!status)
        status = add_arg(s, ARG_SRC, &d->src) |
                 (d->softmax ? 0 : add_arg(s, ARG_WEIGHTS, &d->weights)) |
                 add_arg(s, ARG_DST, &d->dst);
    if (!status && d->bias.ndim) status = add_arg(s, ARG_BIAS, &d->bias);
    for (int i = 0; i < d->n_post && !status; i++)
        if (POST[d->post[i].kind].binary)
            status = add_arg(s, lib.post_base * (i + 1) | ARG_SRC_1, &d->post[i].operand);
    if (!status && m->scratch_bytes) {
        s->scratch = aligned_alloc(64, (m->scratch_bytes + 63) / 64 * 64);
        status = s->scratch ? dnnl.memory_create(&s->memory[s->n],
                                                 dnnl.desc_query_md(m->pd, QUERY_SCRATCHPAD_MD, 0),
                                                 lib.engine, s->scratch)
                            : -1;
        if (!status) {
            s->arg[s->n] = (ExecArg){ARG_SCRATCHPAD, s->memory[s->n]};
            s->n++;
        }
    }
    if (!status) return s;
    free_state(s);
    return NULL;
}

int cc_dnnl_run(CcMatmul *m, const CcMatmulCall *call, CcErr *err) {
    State *s = atomic_exchange(&m->spare, NULL);
    if (!s && !(s = make_state(m)))
        return cc_err_set(err, CC_E_BACKEND, "oneDNN: no memory for a call");
    int n = 0;
    dnnl.memory_set(s->memory[n++], (void *)call->src);
    if (!m->desc.softmax) dnnl.memory_set(s->memory[n++], (void *)call->weights);
    dnnl.memory_set(s->memory[n++], call->dst);
    if (m->desc.bias.ndim) dnnl.memory_set(s->memory[n++], (void *)call->bias);
    for (int i = 0; i < m->desc.n_post; i++)
        if (POST[m->desc.post[i].kind].binary)
            dnnl.memory_set(s->memory[n++], (void *)call->post[i]);
    const int threads = m->small ? cc_omp_limit(1) : 0;
    const int status = dnnl.execute(m->primitive, s->stream, s->n, s->arg);
    if (m->small) cc_omp_limit(threads);
    free_state(atomic_exchange(&m->spare, s)); /* two threads at once: one spare is enough */
    return status ? cc_err_set(err, CC_E_BACKEND, "oneDNN: a product failed (status %d)", status)
                  : 0;
}

const char *cc_dnnl_describe(void) {
    pthread_mutex_lock(&lock);
    const char *text = ready(NULL) < 0 ? NULL : lib.text;
    pthread_mutex_unlock(&lock);
    return text;
}
