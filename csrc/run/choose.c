/* choose: measures which of several ways of running a step is the fastest on this machine.
 *
 * The ways run in turn, in the first run of a plan, on the operands of that run: so weights have their real alignment
 * and strides. If the plan's inputs exceed the cores' own caches, each timed run finds the weights in memory, as in a call
 * of the whole model. Choices are kept in memory and on disk, per CPU, library and number of threads. What the ways are, and
 * what a choice is kept for, is the family's: ways.c (products), convways.c (convolutions). */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "run_int.h"

enum {
    ROUNDS = 3,
    /* A way is repeated within a round until it has run for so many ns: its first run finds the caches full of the other
     * ways' buffers, whereas in a call of the model it uses its own again. */
    BRIEF = 300 * 1000,
    ENOUGH = 100 * 1000 * 1000, /* ns: no further round after this */
    /* the way that the rule picks is kept unless another one takes at most 63/64 of its time */
    FAVOUR = 64,
    SLOW = 2,   /* a way that takes longer than the best by 1/2 is not run again */
    STEADY = 8, /* the two best runs of the fastest way may differ by 1/8 */
    VOTES = 3   /* so many processes that chose the same way settle a choice; an undisturbed one settles it alone */
};

/* What is on disk: how many processes chose each way. */
typedef struct Votes {
    uint8_t of[CC_CHOICE_WAYS];
} Votes;

typedef struct Known {
    CcSbuf key;
    int way; /* -1: not settled on disk */
} Known;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Known) known;
static CcSbuf here; /* libraries and CPU: the part that all keys share */

/* ------------------------------------------------------------------ the key */

/* A cache that cores share is not counted on: other programs, or other guests of the host, use it, too. */
static bool is_cold(const CcChoice *c) { return c->input_bytes > cc_omp_width() * cc_cpu_core_cache_bytes(); }

static void write_here(void) {
    cc_sbuf_add(&here, "choice 10\n%s, ", cc_blas_describe());
    cc_dnnl_identify(&here);
    cc_sbuf_add(&here, "\n");
    cc_cpu_describe(&here);
}

static void write_key(const CcChoice *c, CcSbuf *out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_here);
    cc_sbuf_add(out, "%s\n", cc_sbuf_text(&here));
    c->kind->write_key(c->desc, out);
    cc_sbuf_add(out, ", ways %x, %d threads, %s", c->ways, cc_omp_width(), is_cold(c) ? "cold" : "warm");
}

/* Several ways, and is the step large enough? */
static bool pays(const CcChoice *c) { return c->pays && (c->ways & (c->ways - 1)) != 0; }

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
static int wanted(const CcChoiceKind *kind) {
    const char *name = getenv("CCOMPILE_WAY");
    for (int i = 0; name && i < kind->n; i++)
        if (strcmp(name, kind->way[i]) == 0) return i;
    return -1;
}

static Votes read_votes(const CcSbuf *key) {
    Votes votes = {0};
    CcBlob blob;
    if (!cc_disk_get(CC_DISK_TUNING, cc_sbuf_text((CcSbuf *)key), key->n, &blob)) return votes;
    if (blob.n == sizeof votes) memcpy(&votes, blob.at, sizeof votes);
    free(blob.at);
    return votes;
}

static void vote(const CcSbuf *key, int way, int weight) {
    Votes votes = read_votes(key);
    votes.of[way] = (uint8_t)CC_MIN(votes.of[way] + weight, VOTES);
    cc_disk_put(CC_DISK_TUNING, cc_sbuf_text((CcSbuf *)key), key->n, &(CcBlob){(char *)&votes, sizeof votes});
}

static int settled(const Votes *votes) {
    for (int i = 0; i < CC_CHOICE_WAYS; i++)
        if (votes->of[i] >= VOTES) return i;
    return -1;
}

static int known_here(const CcChoice *c) {
    CcSbuf key = {0};
    write_key(c, &key);
    pthread_mutex_lock(&lock);
    if (!find(&key)) {
        const Votes votes = read_votes(&key);
        keep(&key, settled(&votes));
    }
    const int way = find(&key)->way;
    pthread_mutex_unlock(&lock);
    cc_sbuf_free(&key);
    return way;
}

int cc_choose_known(const CcChoice *c) {
    const int wish = wanted(c->kind);
    if (wish >= 0 && (c->ways >> wish & 1)) return wish;
    const int way = pays(c) ? known_here(c) : -1;
    return way >= 0 && way < c->kind->n && (c->ways >> way & 1) ? way : -1;
}

bool cc_choose_may(const CcChoice *c) { return pays(c) && wanted(c->kind) < 0; }

/* ------------------------------------------------------------------ measuring */

typedef struct Trial {
    CcScratch *scratch;
    uint64_t best, second; /* ns; 0: not timed */
    bool preempted;        /* the kernel took a CPU from the process in the best run */
    bool out;              /* it can't run, or fails */
} Trial;

static int run_way(const CcChoice *c, int way, const Trial *t, void *ctx, CcErr *err) {
    return c->kind->run(ctx, way, t->scratch ? t->scratch->at : NULL, err);
}

/* The first run packs, and makes threads and buffers. */
static int prepare(const CcChoice *c, int way, Trial *t, void *ctx, CcErr *err) {
    size_t bytes = 0;
    if (c->kind->make(ctx, way, &bytes, err) < 0) return -1;
    if (bytes && !(t->scratch = cc_scratch_take(bytes))) return cc_err_set(err, CC_E_MEMORY, "no memory to measure it");
    return run_way(c, way, t, ctx, err);
}

static void begin(const CcChoice *c, int way, Trial *t, void *ctx) {
    CcErr why = {0};
    t->out = !(c->ways >> way & 1);
    if (t->out) return;
    t->out = prepare(c, way, t, ctx, &why) < 0;
    if (t->out)
        cc_log_add(CC_LOG_FALLBACK, "a %s by %s is not measured: %s", c->kind->name, c->kind->way[way], why.text);
}

/* Times at which the kernel took a CPU from a thread of this process that wanted to go on. */
static long preemptions(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

static void evict_pages(void *ctx, int64_t begin, int64_t end) {
    (void)ctx, (void)begin, (void)end;
    cc_cpu_evict_pages();
}

/* -> ns; 0: it fails. */
static uint64_t time_once(const CcChoice *c, int way, Trial *t, void *ctx) {
    c->kind->advance(ctx, way, is_cold(c));
    if (is_cold(c)) cc_omp_run(evict_pages, NULL, cc_omp_width(), cc_omp_width());
    const long before = preemptions();
    const uint64_t start = cc_log_now_ns();
    CcErr why; /* it ran before: begin() */
    if (run_way(c, way, t, ctx, &why) < 0) t->out = true;
    const uint64_t spent = CC_MAX(1, cc_log_now_ns() - start);
    if (t->out) return 0;
    if (!t->best || spent < t->best) {
        t->second = t->best;
        t->best = spent;
        t->preempted = preemptions() > before;
    } else if (!t->second || spent < t->second) {
        t->second = spent;
    }
    return spent;
}

static uint64_t time_way(const CcChoice *c, int way, Trial *t, void *ctx) {
    for (uint64_t spent = 0, once = 1; once && spent < BRIEF; spent += once) once = time_once(c, way, t, ctx);
    return t->out ? UINT64_MAX : t->best;
}

static int fastest(const CcChoice *c, const Trial *trial) {
    int best = c->rule;
    for (int i = 0; i < c->kind->n; i++) {
        const uint64_t now = trial[best].best;
        const uint64_t enough = best == c->rule ? now - now / FAVOUR : now;
        if (trial[i].best && !trial[i].out && (!now || trial[i].best < enough)) best = i;
    }
    return best;
}

/* Did nothing else disturb the best runs? Under load another way may be the fastest, so a disturbed choice serves this
 * process and is one vote on disk: later processes measure again until VOTES of them agree. */
static bool is_steady(const CcChoice *c, const Trial *trial, int way) {
    const Trial *t = &trial[way];
    for (int i = 0; i < c->kind->n; i++)
        if (trial[i].best && trial[i].preempted) return false;
    return !t->second || t->second - t->best <= t->best / STEADY; /* long runs have one round */
}

static void report(const CcChoice *c, const Trial *trial, int best) {
    CcSbuf text = {0}, sizes = {0};
    for (int i = 0; i < c->kind->n; i++)
        if (trial[i].best)
            cc_sbuf_add(&text, "%s%s %.1f us", text.n ? ", " : "", c->kind->way[i], (double)trial[i].best * 1e-3);
    c->kind->write_sizes(c->desc, &sizes);
    cc_log_add(CC_LOG_CHOICE, "%s %s, %s weights: %s of %s", c->kind->name, cc_sbuf_text(&sizes),
               is_cold(c) ? "cold" : "warm", c->kind->way[best], cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    cc_sbuf_free(&sizes);
}

int cc_choose_measure(const CcChoice *c, void *ctx) {
    Trial trial[CC_CHOICE_WAYS] = {0};
    uint64_t best = UINT64_MAX;
    const uint64_t start = cc_log_now_ns();
    for (int i = 0; i < c->kind->n; i++) begin(c, i, &trial[i], ctx);
    for (int round = 0; round == 0 || (round < ROUNDS && cc_log_now_ns() - start < ENOUGH); round++)
        for (int i = 0; i < c->kind->n; i++) {
            if (trial[i].out || (round && trial[i].best > best + best / SLOW)) continue;
            best = CC_MIN(best, time_way(c, i, &trial[i], ctx));
        }
    for (int i = 0; i < c->kind->n; i++) cc_scratch_give(trial[i].scratch);
    const int way = fastest(c, trial);
    CcSbuf key = {0};
    write_key(c, &key);
    pthread_mutex_lock(&lock);
    keep(&key, way);
    pthread_mutex_unlock(&lock);
    vote(&key, way, is_steady(c, trial, way) ? VOTES : 1);
    cc_sbuf_free(&key);
    report(c, trial, way);
    return way;
}

/* ------------------------------------------------------------------ what was chosen after the plan was laid out */

int cc_choose_take(_Atomic(char *) *spare, size_t bytes, char **out, CcErr *err) {
    *out = atomic_exchange(spare, NULL);
    if (bytes && !*out && !(*out = aligned_alloc(64, (bytes + 63) / 64 * 64)))
        return cc_err_set(err, CC_E_MEMORY, "no memory for a step's scratch");
    return 0;
}

void cc_choose_give(_Atomic(char *) *spare, char *scratch) { free(atomic_exchange(spare, scratch)); }
