/* kcache: kernels by structure. The key is the body of the loop (nodes and accesses, no sizes), so
 * equal layers and new shapes share one kernel. Process-wide, guarded by a mutex; nothing is ever
 * evicted: code is small and bounded by the number of distinct bodies. */
#include <pthread.h>

#include "run_int.h"

typedef struct Entry {
    uint64_t hash;
    int n_bytes;
    void *bytes;
    CcKernelFn fn;
} Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(Entry) entries;

/* Accesses without the graph's value numbers. */
void *cc_kcache_key(const CcLoop *loop, int *n_bytes) {
    const size_t nodes = sizeof *loop->node * (size_t)loop->n_node, access = 6 * (size_t)loop->n_access;
    unsigned char *key = calloc(1, nodes + access + 3);
    if (!key) return NULL;
    memcpy(key, loop->node, nodes);
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *x = &loop->access[a];
        const int16_t row[3] = {(int16_t)(x->dtype | x->step << 8),
                                (int16_t)(x->is_store | x->place << 1 | x->taken << 2 | x->across << 4 | x->line << 8),
                                x->node};
        memcpy(key + nodes + 6 * (size_t)a, row, sizeof row);
    }
    key[nodes + access] = loop->reduces;
    key[nodes + access + 1] = loop->columns;
    key[nodes + access + 2] = (unsigned char)(loop->ndim - loop->lane);
    *n_bytes = (int)(nodes + access + 3);
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

/* The name is the same in each process: it is part of what is kept on disk. */
static CcKernelFn compile(const CcLoop *loop, uint64_t hash, CcErr *err) {
    const uint64_t start = cc_log_now_ns();
    const CcTarget target = target_of();
    char name[48];
    int same = 0;
    for (int i = 0; i < entries.n; i++) same += entries.at[i].hash == hash;
    snprintf(name, sizeof name, "cc_kernel_%016llx_%d", (unsigned long long)hash, same);
    CcSbuf text = {0};
    void *address = NULL;
    if (cc_gen_llvm(loop, &target, name, &text, err) == 0) address = cc_jit_compile(cc_sbuf_text(&text), name, err);
    cc_sbuf_free(&text);
    if (address)
        cc_log_add(CC_LOG_KERNEL, "%s: %d primitives, %d tensors, %.2f ms", name, loop->n_node, loop->n_access,
                   (double)(cc_log_now_ns() - start) * 1e-6);
    CcKernelFn fn;
    memcpy(&fn, &address, sizeof fn); /* ISO C has no cast from an object pointer to a function */
    return fn;
}

static _Thread_local bool off;

void cc_kcache_switch(bool on) { off = !on; }
bool cc_kcache_on(void) { return !off; }

CcKernelFn cc_kcache_get(const CcLoop *loop, CcErr *err) {
    Entry mine = {0};
    if (off) {
        cc_err_set(err, CC_E_UNSUPPORTED, "LLVM is switched off");
        return NULL;
    }
    mine.bytes = cc_kcache_key(loop, &mine.n_bytes);
    if (!mine.bytes) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a kernel");
        return NULL;
    }
    mine.hash = cc_map_hash(mine.bytes, (size_t)mine.n_bytes, 1);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < entries.n; i++) {
        const Entry *e = &entries.at[i];
        if (e->hash != mine.hash || e->n_bytes != mine.n_bytes || memcmp(e->bytes, mine.bytes, (size_t)e->n_bytes))
            continue;
        mine.fn = e->fn;
        break;
    }
    if (mine.fn || !(mine.fn = compile(loop, mine.hash, err))) free(mine.bytes);
    else cc_vec_push(&entries, mine);
    pthread_mutex_unlock(&lock);
    return mine.fn;
}
