/* choose: measures which way of running a product is the fastest on this machine.
 *
 * The ways run in turn, in the first run of a plan, on the operands of that run: so weights have their real alignment
 * and strides. If the plan's inputs exceed the caches, each timed run finds the weights in memory, as in a call of the
 * whole model. A wide product is measured by fewer of its columns. Choices are kept in memory and on disk,
 * per CPU, library and number of threads; the number of rows counts in steps of half a power of two, so that sequences
 * of many lengths share a few choices. */
#include <pthread.h>

#include "run_int.h"

enum {
    ROUNDS = 3,
    /* the way that the rule picks is kept unless another one takes at most 31/32 of its time */
    FAVOUR = 32,
    SLOW = 2,   /* a way this many times slower than the best is not run again */
    STEADY = 8, /* the two best runs of the fastest way may differ by 1/8 */
    /* Products of more rows follow the rule: runs of one product after the other find its operands in other caches than
     * the model leaves them in (2048x1024x256: BLAS 23 % faster alone, MiniTransformer 8 % slower with it; Zen 4). */
    MOST_ROWS = 512,
    FEW_COLUMNS = 128 /* multiple of the columns that are measured */
};
static const int64_t MOST_WORK = 1 << 26;  /* multiply-adds of a measured run, 1 ms at 130 GFLOP/s */
static const int64_t LEAST_WORK = 1 << 20; /* smaller products follow the rule */

typedef struct Known {
    CcSbuf key;
    int way; /* -1: not on disk */
} Known;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Known) known;
static CcSbuf here; /* libraries and CPU: the part that all keys share */

/* ------------------------------------------------------------------ the key */

/* n rounded to 1 or 1.5 times a power of two. */
static int64_t step_of(int64_t n) {
    int64_t power = 1;
    while (power * 2 <= n) power *= 2;
    return n * 4 < power * 5 ? power : n * 4 < power * 7 ? power / 2 * 3 : power * 2;
}

static bool is_cold(const CcChoice *c) { return c->input_bytes > cc_cpu_cache_bytes(); }

static void write_here(void) {
    cc_sbuf_add(&here, "product 1\n%s, ", cc_blas_describe());
    cc_dnnl_identify(&here);
    cc_sbuf_add(&here, "\n");
    cc_cpu_describe(&here);
}

static void write_key(const CcChoice *c, CcSbuf *out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const CcPrimDesc *d = c->desc;
    const int r = d->dst.ndim - 2;
    pthread_once(&once, write_here);
    cc_sbuf_add(out, "%s\n%lld x %lld x %lld of %s [%s], ways %x, %d threads, %s", cc_sbuf_text(&here),
                (long long)step_of(d->dst.size[r]), (long long)d->src.size[r + 1], (long long)d->dst.size[r + 1],
                cc_dtype_info(d->weights.dtype)->name, d->weights.stride[r] == 1 ? "n, k" : "k, n", c->ways,
                cc_omp_width(), is_cold(c) ? "cold" : "warm");
}

static int64_t work_of(const CcPrimDesc *d) {
    const int r = d->dst.ndim - 2;
    return d->dst.size[r] * d->dst.size[r + 1] * d->src.size[r + 1];
}

/* Several ways, and large enough? */
static bool pays(const CcChoice *c) {
    const bool several = (c->ways & (c->ways - 1)) != 0;
    return several && c->desc->dst.ndim == 2 && c->desc->dst.size[0] <= MOST_ROWS && work_of(c->desc) >= LEAST_WORK;
}

static Known *find(const CcSbuf *key) {
    for (int i = 0; i < known.n; i++)
        if (known.at[i].key.n == key->n && memcmp(known.at[i].key.text, key->text, key->n) == 0) return &known.at[i];
    return NULL;
}

static void keep(const CcSbuf *key, int way) {
    Known *at = find(key);
    if (!at) {
        cc_vec_push(&known, (Known){0});
        at = &cc_vec_last(&known);
        cc_sbuf_add(&at->key, "%s", cc_sbuf_text((CcSbuf *)key));
    }
    at->way = way;
}

/* CCOMPILE_WAY: the way that tests want; -1: none. */
static int wanted(void) {
    const char *name = getenv("CCOMPILE_WAY");
    for (int i = 0; name && i < CC_WAYS; i++)
        if (strcmp(name, cc_ways_name((CcWayKind)i)) == 0) return i;
    return -1;
}

static int known_here(const CcChoice *c) {
    CcSbuf key = {0};
    CcBlob blob;
    write_key(c, &key);
    pthread_mutex_lock(&lock);
    if (!find(&key)) {
        int way = -1;
        if (cc_disk_get(CC_DISK_TUNING, cc_sbuf_text(&key), key.n, &blob)) {
            way = blob.n == 1 ? blob.at[0] : -1;
            free(blob.at);
        }
        keep(&key, way);
    }
    const int way = find(&key)->way;
    pthread_mutex_unlock(&lock);
    cc_sbuf_free(&key);
    return way;
}

int cc_choose_known(const CcChoice *c) {
    const int wish = wanted();
    if (wish >= 0 && (c->ways >> wish & 1)) return wish;
    const int way = pays(c) ? known_here(c) : -1;
    return way >= 0 && way < CC_WAYS && (c->ways >> way & 1) ? way : -1;
}

bool cc_choose_may(const CcChoice *c) { return pays(c) && wanted() < 0; }

/* ------------------------------------------------------------------ measuring */

typedef struct Trial {
    CcWay way;
    CcScratch *scratch;
    uint64_t best, second; /* ns; 0: not timed */
    bool out;              /* it fails */
} Trial;

/* The first columns of the product, in the same memory. */
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

/* Evicts the weights from the caches. */
static void evict(const CcTensorDesc *w, const char *at) {
    const int inner = w->stride[0] == 1 ? 0 : 1;
    const int64_t size = cc_dtype_info(w->dtype)->size;
    for (int64_t i = 0; i < w->size[!inner]; i++)
        cc_cpu_evict(at + i * w->stride[!inner] * size, w->size[inner] * size);
}

static int run_trial(const Trial *t, const CcPrimCall *call, CcErr *err) {
    CcPrimCall own = *call;
    own.packed = call->version == CC_NO_VERSION ? NULL : t->way.packed;
    own.scratch = t->scratch ? t->scratch->at : NULL;
    return cc_ways_run(&t->way, &own, err);
}

static int prepare(Trial *t, CcWayKind kind, const CcPrimDesc *part, const CcPrimCall *call, CcErr *err) {
    if (cc_ways_make(&t->way, kind, part, err) < 0) return -1;
    const size_t bytes = cc_ways_bytes(&t->way);
    if (bytes && !(t->scratch = cc_scratch_take(bytes))) return cc_err_set(err, CC_E_MEMORY, "no memory to measure it");
    return run_trial(t, call, err); /* packs, and makes threads and buffers */
}

static void begin(Trial *t, CcWayKind kind, const CcPrimDesc *part, const CcPrimCall *call) {
    CcErr why = {0};
    t->out = prepare(t, kind, part, call, &why) < 0;
    if (t->out) cc_log_add(CC_LOG_FALLBACK, "a product by %s is not measured: %s", cc_ways_name(kind), why.text);
}

static uint64_t time_trial(Trial *t, const CcPrimDesc *part, const CcPrimCall *call, bool cold) {
    if (cold) evict(&part->weights, call->weights);
    const uint64_t start = cc_log_now_ns();
    CcErr why; /* it ran before: begin() */
    if (run_trial(t, call, &why) < 0) t->out = true;
    const uint64_t spent = CC_MAX(1, cc_log_now_ns() - start);
    if (t->out) return UINT64_MAX;
    if (!t->best || spent < t->best) {
        t->second = t->best;
        t->best = spent;
    } else if (!t->second || spent < t->second) {
        t->second = spent;
    }
    return t->best;
}

static CcWayKind fastest(const Trial *trial, CcWayKind rule) {
    CcWayKind best = rule;
    for (int i = 0; i < CC_WAYS; i++) {
        const uint64_t now = trial[best].best;
        const uint64_t enough = best == rule ? now - now / FAVOUR : now;
        if (trial[i].best && (!now || trial[i].best < enough)) best = (CcWayKind)i;
    }
    return best;
}

/* Did nothing else disturb its best runs? Otherwise a busy machine's choice would be kept on disk. */
static bool is_steady(const Trial *t) { return t->second && t->second - t->best <= t->best / STEADY; }

static void report(const CcChoice *c, const Trial *trial, CcWayKind best) {
    const CcPrimDesc *d = c->desc;
    CcSbuf text = {0};
    for (int i = 0; i < CC_WAYS; i++)
        if (trial[i].best)
            cc_sbuf_add(&text, "%s%s %.1f us", text.n ? ", " : "", cc_ways_name((CcWayKind)i),
                        (double)trial[i].best * 1e-3);
    cc_log_add(CC_LOG_CHOICE, "product %lldx%lldx%lld (%s, %s weights): %s of %s", (long long)d->dst.size[0],
               (long long)d->src.size[1], (long long)d->dst.size[1], cc_dtype_info(d->weights.dtype)->name,
               is_cold(c) ? "cold" : "warm", cc_ways_name(best), cc_sbuf_text(&text));
    cc_sbuf_free(&text);
}

CcWayKind cc_choose_measure(const CcChoice *c, const CcPrimCall *call) {
    const CcPrimDesc part = part_of(c->desc);
    const bool cold = is_cold(c);
    Trial trial[CC_WAYS] = {0};
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < CC_WAYS; i++) {
        trial[i].out = !(c->ways >> i & 1);
        if (!trial[i].out) begin(&trial[i], (CcWayKind)i, &part, call);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CC_WAYS; i++) {
            Trial *t = &trial[i];
            if (t->out || (round && t->best > best * SLOW)) continue;
            best = CC_MIN(best, time_trial(t, &part, call, cold));
        }
    const CcWayKind way = fastest(trial, c->rule);
    CcSbuf key = {0};
    write_key(c, &key);
    pthread_mutex_lock(&lock);
    keep(&key, (int)way);
    pthread_mutex_unlock(&lock);
    char byte = (char)way;
    if (is_steady(&trial[way])) cc_disk_put(CC_DISK_TUNING, cc_sbuf_text(&key), key.n, &(CcBlob){&byte, 1});
    cc_sbuf_free(&key);
    report(c, trial, way);
    for (int i = 0; i < CC_WAYS; i++) {
        cc_ways_clear(&trial[i].way);
        cc_scratch_give(trial[i].scratch);
    }
    return way;
}
