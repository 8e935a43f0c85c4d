/* choose: decides which of two implementations runs a product of frozen weights. Runs both once, on memory of its
 * own, when the first such product is compiled; the choice serves the process. */
#include <pthread.h>

#include "run_int.h"

enum {
    TRIES = 4,
    /* our own loops win if they are at most 1/20 slower: they take more post-ops and need no library objects */
    FAVOUR = 20,
    MOST_COLUMNS = 2048, /* columns of the weights that are measured; wider ones behave the same */
    MOST_ROWS = 1024
};
static const uint64_t ENOUGH_NS = 4000000;

typedef struct Chosen {
    int64_t m, n, k, x_row, w_row, w_col;
    int threads;
    bool own;
} Chosen;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Chosen) chosen;

typedef struct Trial {
    const CcGemm *gemm;
    CcPrim *prim; /* NULL: gemm */
    float *x, *w, *y;
    void *scratch;
    CcPacked *packed;
} Trial;

static int run_once(const Trial *t) {
    if (!t->prim)
        return cc_gemm_run(
            t->gemm, &(CcGemmCall){.x = t->x, .w = t->w, .y = t->y, .packed = t->packed, .scratch = t->scratch}, NULL);
    return cc_dnnl_run(
        t->prim, &(CcPrimCall){.src = t->x, .weights = t->w, .dst = t->y, .packed = t->packed, .scratch = t->scratch},
        NULL);
}

/* The minimum time of some runs, after one that packs; 0: failed. */
static uint64_t least(Trial *t) {
    uint64_t best = UINT64_MAX;
    t->packed = cc_packed_new();
    int status = t->packed ? run_once(t) : -1;
    const uint64_t begin = cc_log_now_ns();
    for (int i = 0; i < TRIES && status == 0 && cc_log_now_ns() - begin < ENOUGH_NS; i++) {
        const uint64_t start = cc_log_now_ns();
        status = run_once(t);
        best = CC_MIN(best, CC_MAX(1, cc_log_now_ns() - start));
    }
    cc_packed_free(t->packed);
    return status ? 0 : best;
}

static CcPrim *library(const CcGemm *g, CcErr *err) {
    return cc_dnnl_get(
        &(CcPrimDesc){.src = {.ndim = 2, .dtype = CC_DT_F32, .size = {g->m, g->k}, .stride = {g->x_row, 1}},
                      .weights = {.ndim = 2,
                                  .dtype = CC_DT_F32,
                                  .form = CC_FORMAT_ANY,
                                  .size = {g->k, g->n},
                                  .stride = {g->w_col, g->w_row}},
                      .dst = {.ndim = 2, .dtype = CC_DT_F32, .size = {g->m, g->n}, .stride = {g->y_row, 1}}},
        err);
}

static bool measure(const CcGemm *whole) {
    CcGemm g = *whole;
    CcErr why = {0};
    g.m = CC_MIN(g.m, MOST_ROWS);
    g.n = CC_MIN(g.n, MOST_COLUMNS);
    g.y_row = g.n;
    g.n_post = 0;
    if (g.w_row == 1) g.w_col = g.n;
    const int64_t sizes[] = {g.m * g.x_row, g.w_row == 1 ? g.k * g.w_col : g.n * g.w_row, g.m * g.n};
    Trial t = {.gemm = &g, .prim = library(&g, &why)};
    CcPrim *const prim = t.prim;
    float **const at[] = {&t.x, &t.w, &t.y};
    bool ok = prim != NULL;
    const size_t bytes = CC_MAX(cc_gemm_bytes(&g), prim ? cc_dnnl_bytes(prim) : 0);
    ok = (t.scratch = aligned_alloc(64, bytes / 64 * 64 + 64)) != NULL && ok;
    for (int i = 0; i < CC_COUNT(at); i++) ok = (*at[i] = calloc((size_t)sizes[i], sizeof(float))) != NULL && ok;
    t.prim = NULL;
    const uint64_t own = ok ? least(&t) : 0;
    t.prim = prim;
    const uint64_t theirs = ok ? least(&t) : 0;
    for (int i = 0; i < CC_COUNT(at); i++) free(*at[i]);
    free(t.scratch);
    const bool take = theirs == 0 || (own != 0 && own <= theirs + theirs / FAVOUR);
    cc_log_add(CC_LOG_CHOICE, "product %lldx%lldx%lld of packed weights: %s (own %.1f us, oneDNN %.1f us)",
               (long long)g.m, (long long)g.k, (long long)g.n, take ? "own" : "oneDNN", (double)own * 1e-3,
               (double)theirs * 1e-3);
    return take;
}

bool cc_choose_own(const CcGemm *g) {
    const int threads = cc_omp_width();
    const Chosen want = {g->m, g->n, g->k, g->x_row, g->w_row, g->w_col, threads, false};
    int found = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < chosen.n && found < 0; i++) {
        const Chosen *c = &chosen.at[i];
        if (c->m == want.m && c->n == want.n && c->k == want.k && c->x_row == want.x_row && c->w_row == want.w_row &&
            c->w_col == want.w_col && c->threads == threads)
            found = i;
    }
    if (found < 0) {
        found = chosen.n;
        cc_vec_push(&chosen, want);
        chosen.at[found].own = measure(g);
    }
    const bool own = chosen.at[found].own;
    pthread_mutex_unlock(&lock);
    return own;
}
