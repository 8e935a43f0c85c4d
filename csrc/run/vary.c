/* vary: keeps constants that differ between loops of one structure out of their kernels. Otherwise `x @ w + i` in a
 * loop that Python unrolls would compile one kernel per iteration (11 ms each by LLVM).
 *
 *     the first loop of a structure         max(x, 0.1)      all constants are in the text: most structures occur once
 *     later ones with other constants       max(x, number)   constants that have differed so far are read from memory,
 *                                                            like numbers from the host (CcLoopAccess.fixed)
 *
 * So a structure with n constants has at most n + 1 kernels. Constants for which the printers emit shorter code stay
 * in the text. Process-wide, guarded by a mutex; entries are never evicted. */
#include <math.h>
#include <pthread.h>

#include "run_int.h"

typedef struct Family {
    uint64_t hash;
    int n_bytes, n;
    void *bytes;    /* the structure */
    int64_t *first; /* [n]: the constants of the structure's first loop */
    bool *varies;   /* [n] */
} Family;

/* Collects the constants of a loop that may vary. */
typedef struct Constants {
    int n;
    int16_t node[CC_LOOP_MAX_NODES];
} Constants;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Family) families;

static bool power_of_two(double v) {
    int exponent;
    return fabs(frexp(v, &exponent)) == 0.5;
}

/* Constants with special code stay in the text: neutral elements, integer divisors and powers of two (products),
 * shifts, exponents. GPU kernels get doubles. */
static bool own_code(const CcLoop *loop, int node) {
    const CcLoopNode *n = &loop->node[node];
    const bool is_float = cc_dtype_is_float(n->dtype);
    const double v = is_float ? cc_loop_number(n->bits) : (double)n->bits;
    if (v == 0 || fabs(v) == 1 || !isfinite(v) || n->dtype == CC_DT_BOOL) return true;
    if (!is_float && fabs(v) >= 0x1p53) return true;
    for (int i = node + 1; i < loop->n_node; i++) {
        const CcLoopNode *user = &loop->node[i];
        if (cc_scalar_info((CcScalarId)user->op)->arity < 2 || user->a[1] != node) continue;
        if (user->op == CC_S_pow || user->op == CC_S_shl || user->op == CC_S_shr) return true;
        if ((user->op == CC_S_div || user->op == CC_S_rem) && (!is_float || power_of_two(v))) return true;
    }
    return false;
}

static void find_constants(const CcLoop *loop, Constants *out) {
    out->n = 0;
    for (int i = 0; i < loop->n_node; i++)
        if (loop->node[i].op == CC_S_konst && !own_code(loop, i)) out->node[out->n++] = (int16_t)i;
}

/* The loop's structure without those constants. */
static void *make_key(const CcLoop *loop, const Constants *c, int *n_bytes) {
    CcLoop bare = *loop;
    bare.node = malloc(sizeof *bare.node * (size_t)loop->n_node);
    if (!bare.node) return NULL;
    memcpy(bare.node, loop->node, sizeof *bare.node * (size_t)loop->n_node);
    for (int i = 0; i < c->n; i++) {
        CcLoopNode *n = &bare.node[c->node[i]];
        n->bits = 0;
        n->a[0] = 0; /* marks a varying constant: no other constant has operand 0 */
    }
    void *key = cc_kcache_key(&bare, n_bytes);
    free(bare.node);
    return key;
}

static Family *find(const void *bytes, int n_bytes, uint64_t hash) {
    for (int i = 0; i < families.n; i++) {
        Family *f = &families.at[i];
        if (f->hash == hash && f->n_bytes == n_bytes && memcmp(f->bytes, bytes, (size_t)n_bytes) == 0) return f;
    }
    return NULL;
}

/* Takes ownership of `bytes`. */
static void add_family(const CcLoop *loop, const Constants *c, void *bytes, int n_bytes, uint64_t hash) {
    Family f = {.hash = hash, .n_bytes = n_bytes, .n = c->n, .bytes = bytes};
    f.first = malloc(sizeof *f.first * (size_t)c->n);
    f.varies = calloc((size_t)c->n, sizeof *f.varies);
    if (!f.first || !f.varies) {
        free(f.first);
        free(f.varies);
        free(bytes);
        return;
    }
    for (int i = 0; i < c->n; i++) f.first[i] = loop->node[c->node[i]].bits;
    cc_vec_push(&families, f);
}

/* Keeps in c the constants that must be read from memory; none for a structure's first loop. */
static void keep_varying(const CcLoop *loop, Constants *c, Family *f) {
    bool differs = false;
    int n = 0;
    for (int i = 0; i < f->n; i++) {
        const bool other = loop->node[c->node[i]].bits != f->first[i];
        f->varies[i] = f->varies[i] || other;
        differs = differs || other;
    }
    for (int i = 0; i < c->n && differs; i++)
        if (f->varies[i]) c->node[n++] = c->node[i];
    c->n = n;
}

static int first_store(const CcLoop *loop) {
    int a = 0;
    while (!loop->access[a].is_store) a++;
    return a;
}

/* The loop with accesses in place of these constants, inserted before the stores. */
static CcLoop *read_constants(const CcLoop *loop, const Constants *c, CcArena *arena) {
    CcLoop *out = cc_arena_alloc(arena, sizeof *out);
    if (!out) return NULL;
    *out = *loop;
    out->n_access += c->n;
    out->node = cc_arena_alloc(arena, sizeof *out->node * (size_t)out->n_node);
    out->access = cc_arena_alloc(arena, sizeof *out->access * (size_t)out->n_access);
    out->stride = cc_arena_alloc(arena, sizeof *out->stride * (size_t)out->n_access);
    if (!out->node || !out->access || !out->stride) return NULL;
    const int at = first_store(loop);
    const size_t before = (size_t)at, behind = (size_t)(loop->n_access - at);
    memcpy(out->node, loop->node, sizeof *out->node * (size_t)out->n_node);
    memcpy(out->access, loop->access, sizeof *out->access * before);
    memcpy(out->stride, loop->stride, sizeof *out->stride * before);
    memcpy(out->access + at + c->n, loop->access + at, sizeof *out->access * behind);
    memcpy(out->stride + at + c->n, loop->stride + at, sizeof *out->stride * behind);
    for (int i = 0; i < c->n; i++) {
        CcLoopNode *n = &out->node[c->node[i]];
        out->access[at + i] = (CcLoopAccess){.dtype = n->dtype,
                                             .step = CC_STEP_ZERO,
                                             .node = -1,
                                             .value = -1,
                                             .number = 1,
                                             .fixed = true,
                                             .bits = n->bits};
        *n = (CcLoopNode){.op = CC_S_load, .dtype = n->dtype, .a = {(int16_t)(at + i), -1, -1}};
    }
    return out;
}

CcLoop *cc_vary_constants(CcLoop *loop, CcArena *arena) {
    Constants c;
    int n_bytes;
    find_constants(loop, &c);
    void *bytes = c.n ? make_key(loop, &c, &n_bytes) : NULL;
    if (!bytes) return loop;
    const uint64_t hash = cc_map_hash(bytes, (size_t)n_bytes, 1);
    pthread_mutex_lock(&lock);
    Family *f = find(bytes, n_bytes, hash);
    if (f) {
        keep_varying(loop, &c, f);
        free(bytes);
    } else {
        add_family(loop, &c, bytes, n_bytes, hash);
        c.n = 0;
    }
    pthread_mutex_unlock(&lock);
    if (c.n == 0 || loop->n_access + c.n > CC_LOOP_MAX_ACCESS) return loop;
    CcLoop *read = read_constants(loop, &c, arena);
    return read ? read : loop;
}
