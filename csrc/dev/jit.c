/* jit: text to machine code. What is on disk is loaded; else a process of its own compiles it (compiler.c), so that
 * neither LLVM's memory (46 MB of a process' resident set when a first kernel is compiled, llvmlite 0.50) nor its
 * globals and crashes are this process'; where that can't be started LLVM is loaded here. One mutex guards all of it.
 * Code is never freed: kernels are cached for the life of the process.
 *
 * Objects are kept on disk, by CPU, library and text, and later processes load them without LLVM. */
#include <pthread.h>
#include <sys/stat.h>

#include "dev_int.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;
    bool here; /* LLVM is loaded here */
    bool used; /* since the last cc_jit_forget */
    char text[48];
} jit;

void cc_jit_library(const char *path, const char *compiler) {
    pthread_mutex_lock(&lock);
    free(jit.path);
    jit.path = path ? strdup(path) : NULL;
    cc_worker_program(compiler);
    pthread_mutex_unlock(&lock);
}

/* What an object is kept under; false: LLVM is not installed. */
static bool make_key(const char *ir, CcSbuf *key) {
    struct stat st;
    if (!jit.path || stat(jit.path, &st) < 0) return false;
    cc_sbuf_add(key, "; %lld bytes of LLVM, %lld.%09ld\n; ", (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                st.st_mtim.tv_nsec);
    cc_cpu_describe(key);
    cc_sbuf_add(key, "\n%s", ir);
    return true;
}

static void *load_kept(const CcSbuf *key, const char *name) {
    CcBlob object;
    if (!cc_disk_get(CC_DISK_KERNEL, key->text, key->n, &object)) return NULL;
    void *address = cc_object_load(&object, name);
    if (!address) cc_log_add(CC_LOG_FALLBACK, "%s: its object on disk can't be loaded; compiled again", name);
    free(object.at);
    return address;
}

static void *compile_here(const char *ir, const char *name, CcBlob *object, CcErr *err) {
    if (cc_llvm_ready(jit.path, err) < 0) return NULL;
    jit.here = jit.used = true;
    return cc_llvm_compile(ir, name, object, err);
}

static void *compile(const char *ir, const char *name, CcBlob *object, CcErr *err) {
    if (jit.here) return compile_here(ir, name, object, err);
    CcErr why = {0};
    const CcWorkerEnd end = cc_worker_compile(jit.path, ir, name, object, &why);
    void *address = end == CC_WORKER_DONE ? cc_object_load(object, name) : NULL;
    if (address) return address;
    if (end == CC_WORKER_REFUSED) {
        if (err) *err = why;
        return NULL;
    }
    if (end == CC_WORKER_DONE) cc_err_set(&why, CC_E_BACKEND, "%s: its object can't be loaded", name);
    if (why.status) cc_log_add(CC_LOG_FALLBACK, "%s; LLVM is loaded into this process", why.text);
    free(object->at);
    *object = (CcBlob){0};
    return compile_here(ir, name, object, err);
}

void *cc_jit_compile(const char *ir, const char *name, CcErr *err) {
    CcSbuf key = {0};
    CcBlob object = {0};
    cc_settle_begin();
    pthread_mutex_lock(&lock);
    void *address = make_key(ir, &key) ? load_kept(&key, name) : NULL;
    if (!address) {
        address = compile(ir, name, &object, err);
        if (address && key.n && object.at) cc_disk_put(CC_DISK_KERNEL, key.text, key.n, &object);
    }
    pthread_mutex_unlock(&lock);
    free(object.at);
    cc_sbuf_free(&key);
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
    if (!jit.text[0] && !jit.here && jit.path && cc_worker_compile(jit.path, "", "", &said, &ignored) == CC_WORKER_DONE)
        snprintf(jit.text, sizeof jit.text, "%.*s", (int)said.n, said.at);
    if (!jit.text[0] && cc_llvm_ready(jit.path, &ignored) == 0) {
        snprintf(jit.text, sizeof jit.text, "%s", cc_llvm_describe());
        jit.here = true;
    }
    pthread_mutex_unlock(&lock);
    free(said.at);
    return jit.text[0] ? jit.text : NULL;
}
