/* jit: LLVM IR to machine code. A kernel is loaded from disk if it is cached. Otherwise a worker process compiles it
 * (compiler.c), which keeps LLVM's memory (46 MB of resident set at the first kernel, llvmlite 0.50), globals and
 * crashes out of this process; if no worker can be started, LLVM is loaded here. One mutex guards all state. Code is
 * never freed: kernels stay cached for the life of the process.
 *
 * Objects are cached on disk by CPU, library and IR; later processes load them without LLVM. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dev_int.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;
    CcLlvm *here; /* LLVM is loaded into this process */
    bool used;    /* LLVM has run since the last cc_jit_forget */
    char text[48];
} jit;

void cc_jit_library(const char *path, const char *compiler) {
    pthread_mutex_lock(&lock);
    free(jit.path);
    jit.path = path ? cc_mem_text(path) : NULL;
    cc_worker_program(compiler);
    pthread_mutex_unlock(&lock);
}

/* What tells builds of a library apart on any machine: its size, and its beginning and end, which hold the build ID, the
 * program headers and the section headers. */
static uint64_t fingerprint(const char *path, const struct stat *st) {
    enum { BYTES = 1 << 16 };
    static struct stat of;
    static uint64_t found;
    if (found && of.st_size == st->st_size && of.st_mtim.tv_sec == st->st_mtim.tv_sec &&
        of.st_mtim.tv_nsec == st->st_mtim.tv_nsec)
        return found;
    static char bytes[BYTES];
    uint64_t hash = (uint64_t)st->st_size;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const off_t at[] = {0, CC_MAX(0, st->st_size - BYTES)};
    for (int i = 0; fd >= 0 && i < CC_COUNT(at); i++) {
        const ssize_t n = pread(fd, bytes, BYTES, at[i]);
        if (n > 0) hash = cc_map_hash(bytes, (size_t)n, hash);
    }
    if (fd >= 0) close(fd);
    of = *st;
    return found = hash | 1;
}

struct CcJitJob {
    CcSbuf key; /* the object's cache key, which ends with the IR */
    size_t n_head;
    bool cached; /* LLVM is installed, so objects are cached */
    char name[64];
    void *address;
    uint64_t serial; /* of the request that the worker has not answered yet, or 0 */
    CcErr err;       /* why there is no address */
};

static bool make_key(const char *ir, CcJitJob *job) {
    struct stat st;
    job->cached = jit.path && stat(jit.path, &st) == 0;
    if (job->cached) {
        cc_sbuf_add(&job->key, "; LLVM %016llx\n; ", (unsigned long long)fingerprint(jit.path, &st));
        cc_cpu_describe(&job->key);
        cc_sbuf_add(&job->key, "\n");
    }
    job->n_head = job->key.n;
    cc_sbuf_add(&job->key, "%s", ir);
    return job->cached;
}

static const char *text_of(const CcJitJob *job) { return cc_sbuf_text(&job->key) + job->n_head; }

static void *load_cached(const CcSbuf *key, const char *name) {
    CcBlob object;
    if (!cc_disk_get(CC_DISK_KERNEL, key->text, key->n, &object)) return NULL;
    void *address = cc_object_load(&object, name);
    if (!address) cc_log_add(CC_LOG_FALLBACK, "%s: the cached object can't be loaded; compiling it again", name);
    free(object.at);
    return address;
}

static void *load_object(const CcBlob *object, const char *name, CcErr *err) {
    void *address = cc_object_load(object, name);
    if (!address) cc_err_set(err, CC_E_BACKEND, "%s: its object can't be loaded", name);
    return address;
}

static void *compile_here(const CcJitJob *job, CcBlob *object, CcErr *err) {
    if (!jit.here && !(jit.here = cc_llvm_new(jit.path, err))) return NULL;
    jit.used = true;
    return cc_llvm_compile(jit.here, text_of(job), object, err) < 0 ? NULL : load_object(object, job->name, err);
}

static void *compile(const CcJitJob *job, CcBlob *object, CcErr *err) {
    if (jit.here) return compile_here(job, object, err);
    CcErr why = {0};
    const CcWorkerOutcome outcome = cc_worker_compile(jit.path, text_of(job), job->name, job->serial, object, &why);
    void *address = outcome == CC_WORKER_DONE ? load_object(object, job->name, &why) : NULL;
    if (address) return address;
    if (outcome == CC_WORKER_REFUSED) {
        if (err) *err = why;
        return NULL;
    }
    if (why.status) cc_log_add(CC_LOG_FALLBACK, "%s; LLVM is loaded into this process", why.text);
    free(object->at);
    *object = (CcBlob){0};
    return compile_here(job, object, err);
}

static void finish(CcJitJob *job) {
    CcBlob object = {0};
    job->address = compile(job, &object, &job->err);
    job->serial = 0;
    if (job->address && job->cached && object.at) cc_disk_put(CC_DISK_KERNEL, job->key.text, job->key.n, &object);
    free(object.at);
}

CcJitJob *cc_jit_begin(const char *ir, const char *name) {
    CcJitJob *job = calloc(1, sizeof *job);
    if (!job) return NULL;
    cc_reclaim_begin();
    pthread_mutex_lock(&lock);
    snprintf(job->name, sizeof job->name, "%s", name);
    if (make_key(ir, job)) job->address = load_cached(&job->key, name);
    if (!job->address && !jit.here) job->serial = cc_worker_send(jit.path, text_of(job));
    if (!job->address && !job->serial) finish(job);
    pthread_mutex_unlock(&lock);
    return job;
}

void *cc_jit_end(CcJitJob *job, CcErr *err) {
    pthread_mutex_lock(&lock);
    if (job->serial) finish(job);
    pthread_mutex_unlock(&lock);
    void *address = job->address;
    if (!address && err) *err = job->err;
    cc_sbuf_free(&job->key);
    free(job);
    return address;
}

void cc_jit_forget(void) {
    pthread_mutex_lock(&lock);
    if (jit.used) cc_llvm_forget();
    jit.used = false;
    pthread_mutex_unlock(&lock);
}

const char *cc_jit_describe(void) {
    CcErr ignored;
    CcBlob said = {0};
    pthread_mutex_lock(&lock);
    if (!jit.text[0] && !jit.here && jit.path &&
        cc_worker_compile(jit.path, "", "", 0, &said, &ignored) == CC_WORKER_DONE)
        snprintf(jit.text, sizeof jit.text, "%.*s", (int)said.n, said.at);
    if (!jit.text[0] && (jit.here || (jit.here = cc_llvm_new(jit.path, &ignored))))
        snprintf(jit.text, sizeof jit.text, "%s", cc_llvm_describe());
    pthread_mutex_unlock(&lock);
    free(said.at);
    return jit.text[0] ? jit.text : NULL;
}
