/* kcache: caches CPU kernels by structure. The key is the body of the loop (nodes and accesses, no sizes), so equal
 * layers and new shapes share a kernel. Process-wide, guarded by a mutex; entries are never evicted: code is small
 * and bounded by the number of distinct bodies. */
#include <pthread.h>

#include "run_int.h"

typedef struct Entry {
    uint64_t hash;
    int n_bytes;
    void *bytes;
    CcKernelFn fn;
    CcJitJob *job;  /* NULL: compilation has finished */
    uint64_t start; /* ns */
} Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Entry) entries;

/* Bytes of an access, which has no numbers of the graph's values, and of the last fields of a key. */
enum { ACCESS_BYTES = 3 * sizeof(int16_t), END_BYTES = 3 };

void *cc_kcache_key(const CcLoop *loop, int *n_bytes) {
    const size_t nodes = sizeof *loop->node * (size_t)loop->n_node, access = ACCESS_BYTES * (size_t)loop->n_access;
    unsigned char *key = calloc(1, nodes + access + END_BYTES);
    if (!key) return NULL;
    memcpy(key, loop->node, nodes);
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *x = &loop->access[a];
        const int16_t row[3] = {(int16_t)(x->dtype | x->step << 8),
                                (int16_t)(x->is_store | x->place << 1 | x->taken << 2 | x->across << 4 | x->line << 8),
                                x->node};
        memcpy(key + nodes + ACCESS_BYTES * (size_t)a, row, sizeof row);
    }
    key[nodes + access] = loop->reduces;
    key[nodes + access + 1] = loop->columns;
    key[nodes + access + 2] = (unsigned char)(loop->ndim - loop->lane);
    *n_bytes = (int)(nodes + access + END_BYTES);
    return key;
}

static CcTarget target_of(void) {
    const CcCpu *cpu = cc_cpu_info();
    return (CcTarget){.vector_bytes = cpu->vector_bytes, .has_symbol = cc_cpu_has_vector_function, .f16 = cpu->f16};
}

void cc_kcache_text(const CcLoop *loop, CcSbuf *out) {
    const CcTarget target = target_of();
    CcErr err;
    if (cc_gen_llvm(loop, &target, "kernel", out, &err) < 0) cc_sbuf_add(out, "; %s\n", err.text);
}

/* The name is the same in every process, since the key on disk contains it. */
static CcJitJob *start_job(const CcLoop *loop, uint64_t hash, CcErr *err) {
    const CcTarget target = target_of();
    char name[48];
    int same = 0;
    for (int i = 0; i < entries.n; i++) same += entries.at[i].hash == hash;
    snprintf(name, sizeof name, "cc_kernel_%016llx_%d", (unsigned long long)hash, same);
    CcSbuf text = {0};
    CcJitJob *job = NULL;
    if (cc_gen_llvm(loop, &target, name, &text, err) == 0 && !(job = cc_jit_begin(cc_sbuf_text(&text), name)))
        cc_err_set(err, CC_E_MEMORY, "no memory for a kernel");
    cc_sbuf_free(&text);
    return job;
}

static _Thread_local bool off;

void cc_kcache_switch(bool on) { off = !on; }
bool cc_kcache_on(void) { return !off; }

/* The loop's entry, which may still be compiling; -1: there can't be one. */
static int find(const CcLoop *loop, CcErr *err) {
    Entry mine = {.start = cc_log_now_ns()};
    mine.bytes = cc_kcache_key(loop, &mine.n_bytes);
    if (!mine.bytes) return cc_err_set(err, CC_E_MEMORY, "no memory for a kernel");
    mine.hash = cc_map_hash(mine.bytes, (size_t)mine.n_bytes, 1);
    for (int i = 0; i < entries.n; i++) {
        const Entry *e = &entries.at[i];
        if (e->hash != mine.hash || e->n_bytes != mine.n_bytes || memcmp(e->bytes, mine.bytes, (size_t)e->n_bytes))
            continue;
        free(mine.bytes);
        return i;
    }
    mine.job = start_job(loop, mine.hash, err);
    if (mine.job) cc_vec_push(&entries, mine);
    else free(mine.bytes);
    return mine.job ? entries.n - 1 : -1;
}

void cc_kcache_need(const CcLoop *loop) {
    CcErr ignored;
    if (off) return;
    pthread_mutex_lock(&lock);
    (void)find(loop, &ignored);
    pthread_mutex_unlock(&lock);
}

/* Entries that fail to compile are dropped. */
static CcKernelFn end_job(int entry, const CcLoop *loop, CcErr *err) {
    Entry *e = &entries.at[entry];
    void *address = cc_jit_end(e->job, err);
    e->job = NULL;
    if (!address) {
        free(e->bytes);
        *e = entries.at[--entries.n];
        return NULL;
    }
    memcpy(&e->fn, &address, sizeof e->fn); /* ISO C has no cast from an object pointer to a function pointer */
    cc_log_more(CC_LOG_KERNEL, (CcLogExtra){.start_ns = e->start},
                "cc_kernel_%016llx: %d primitives, %d tensors, %.2f ms", (unsigned long long)e->hash, loop->n_node,
                loop->n_access, (double)(cc_log_now_ns() - e->start) * 1e-6);
    return e->fn;
}

CcKernelFn cc_kcache_get(const CcLoop *loop, CcErr *err) {
    if (off) {
        cc_err_set(err, CC_E_UNSUPPORTED, "LLVM is disabled");
        return NULL;
    }
    pthread_mutex_lock(&lock);
    const int entry = find(loop, err);
    CcKernelFn fn = NULL;
    if (entry >= 0) fn = entries.at[entry].job ? end_job(entry, loop, err) : entries.at[entry].fn;
    pthread_mutex_unlock(&lock);
    return fn;
}
