/* jit: text to machine code by LLVM, through the C symbols of llvmlite's libllvmlite.so (LLVMPY_*,
 * checked with 0.44 to 0.50). No llvmlite Python code runs. LLVM gets a context of our own; one
 * mutex guards all of it. Code is never freed: kernels are cached for the life of the process.
 *
 * Objects that LLVM makes are kept on disk, by CPU, library and text, and later processes load them without LLVM: its code
 * alone is 46 MB of a process' resident set when it compiles a first kernel (20 ms), 12 of them looked at (llvmlite 0.50,
 * Linux maps what lies around). */
#include <pthread.h>
#include <sys/stat.h>

#include "dev.h"

typedef struct Opaque *Ref;
struct Made { /* an object, for as long as the call lasts (llvmlite: ffi/executionengine.cpp) */
    Ref module;
    const char *at;
    size_t n;
};

static struct {
    void (*init_target)(void), (*init_asm)(void), (*link_mcjit)(void);
    unsigned (*version)(void);
    Ref (*context)(void);
    Ref (*parse)(Ref context, const char *ir, const char **message);
    int (*verify)(Ref module, char **message);
    void (*dispose_module)(Ref module);
    void (*dispose_string)(const char *text);
    void (*triple)(const char **out);
    Ref (*target)(const char *triple, const char **message);
    void (*cpu_name)(const char **out);
    int (*cpu_features)(const char **out);
    Ref (*machine)(Ref target, const char *triple, const char *cpu, const char *features, int opt,
                   const char *reloc, const char *model, int print_mc, int jit, const char *abi);
    Ref (*engine)(Ref module, Ref machine, bool own_memory, const char **message);
    void (*add_module)(Ref engine, Ref module);
    void (*finalize)(Ref engine);
    uint64_t (*address)(Ref engine, const char *name);
    Ref (*object_cache)(void (*made)(void *ctx, const struct Made *made), void *found, void *ctx);
    void (*set_object_cache)(Ref engine, Ref cache);
    bool (*load_library)(const char *path, const char **message);
} llvm;

static const CcDlRow ROWS[] = {
#define ROW(name, slot) {"LLVMPY_" name, (void **)&llvm.slot}
    ROW("InitializeNativeTarget", init_target),
    ROW("InitializeNativeAsmPrinter", init_asm),
    ROW("LinkInMCJIT", link_mcjit),
    ROW("GetVersionInfo", version),
    ROW("ContextCreate", context),
    ROW("ParseAssembly", parse),
    ROW("VerifyModule", verify),
    ROW("DisposeModule", dispose_module),
    ROW("DisposeString", dispose_string),
    ROW("GetProcessTriple", triple),
    ROW("GetTargetFromTriple", target),
    ROW("GetHostCPUName", cpu_name),
    ROW("GetHostCPUFeatures", cpu_features),
    ROW("CreateTargetMachine", machine),
    ROW("CreateMCJITCompiler", engine),
    ROW("AddModule", add_module),
    ROW("FinalizeObject", finalize),
    ROW("GetFunctionAddress", address),
    ROW("CreateObjectCache", object_cache),
    ROW("SetObjectCache", set_object_cache),
    ROW("LoadLibraryPermanently", load_library),
#undef ROW
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *path;
    int state; /* 0 not tried, 1 ready, -1 failed */
    CcErr err; /* why it failed */
    bool used; /* since the last cc_jit_forget */
    Ref context, engine;
    CcBlob object; /* the last one; `at` NULL: none */
    char text[48];
} jit;

void cc_jit_library(const char *path) {
    pthread_mutex_lock(&lock);
    free(jit.path);
    jit.path = path ? strdup(path) : NULL;
    if (jit.state < 0) jit.state = 0;
    pthread_mutex_unlock(&lock);
}

static void take_object(void *ctx, const struct Made *made) {
    (void)ctx;
    free(jit.object.at);
    jit.object = (CcBlob){malloc(made->n), made->n};
    if (jit.object.at) memcpy(jit.object.at, made->at, made->n);
}

/* The engine owns its machine and its first module. */
static int make_engine(CcErr *err) {
    const char *message = NULL, *triple = NULL, *name = NULL, *host = NULL;
    llvm.triple(&triple);
    const Ref target = llvm.target(triple, &message);
    if (!target) return cc_err_set(err, CC_E_BACKEND, "LLVM: %s", message ? message : "no target");
    llvm.cpu_name(&name);
    llvm.cpu_features(&host);
    CcSbuf features = {0};
    const CcCpu *cpu = cc_cpu_info();
    /* 512-bit registers are wanted where there are some; a narrowed CPU is described by its level
     * alone. */
    if (!cpu->narrowed) cc_sbuf_add(&features, "%s,-prefer-256-bit", host);
    const char *level = strcmp(cpu->name, "avx2") == 0 ? "x86-64-v3" : "x86-64-v2";
    const Ref machine = llvm.machine(target, triple, cpu->narrowed ? level : name,
                                     cc_sbuf_text(&features), 2, "default", "jitdefault", 0, 1, "");
    cc_sbuf_free(&features);
    llvm.dispose_string(triple);
    llvm.dispose_string(name);
    llvm.dispose_string(host);
    if (!machine) return cc_err_set(err, CC_E_BACKEND, "LLVM: no target machine");
    const Ref first = llvm.parse(jit.context, "", &message);
    jit.engine = first ? llvm.engine(first, machine, false, &message) : NULL;
    if (jit.engine) llvm.set_object_cache(jit.engine, llvm.object_cache(take_object, NULL, NULL));
    return jit.engine ? 0
                      : cc_err_set(err, CC_E_BACKEND, "LLVM: %s", message ? message : "no engine");
}

static void forget(void) { cc_dl_forget((void (*)(void))llvm.version); }

static int load(CcErr *err) {
    void *handle = cc_dl_open(jit.path, false, err);
    if (!handle || cc_dl_bind(handle, ROWS, CC_COUNT(ROWS), err) < 0) return -1;
    forget(); /* 37 MB were read to relocate it */
    llvm.init_target();
    llvm.init_asm();
    llvm.link_mcjit();
    const char *message = NULL;
    llvm.load_library("libmvec.so.1",
                      &message); /* absent: the printer asks for none of its functions */
    llvm.load_library("libm.so.6", &message);
    jit.context = llvm.context();
    const unsigned v = llvm.version();
    snprintf(jit.text, sizeof jit.text, "LLVM %u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
    return make_engine(err);
}

static int ready(CcErr *err) {
    if (jit.state == 0) jit.state = load(&jit.err) < 0 ? -1 : 1;
    if (jit.state < 0 && err) *err = jit.err;
    return jit.state < 0 ? -1 : 0;
}

static void *compile(const char *ir, const char *name, CcErr *err) {
    const char *message = NULL;
    const Ref module = llvm.parse(jit.context, ir, &message);
    if (!module) {
        cc_err_set(err, CC_E_BACKEND, "LLVM: %s", message ? message : "parse");
        if (message) llvm.dispose_string(message);
        return NULL;
    }
    char *complaint = NULL;
    if (CC_DEBUG >= 2 && llvm.verify(module, &complaint)) {
        cc_err_set(err, CC_E_BACKEND, "LLVM: %s", complaint ? complaint : "verify");
        llvm.dispose_module(module);
        return NULL;
    }
    llvm.add_module(jit.engine, module);
    llvm.finalize(jit.engine);
    const uint64_t address = llvm.address(jit.engine, name);
    if (!address) cc_err_set(err, CC_E_BACKEND, "LLVM: no address for %s", name);
    return (void *)(uintptr_t)address;
}

/* What an object is kept under; false: LLVM is not installed. */
static bool make_key(const char *ir, CcSbuf *key) {
    struct stat st;
    if (!jit.path || stat(jit.path, &st) < 0) return false;
    cc_sbuf_add(key, "; %lld bytes of LLVM, %lld.%09ld\n; ", (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
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

static void *compile_and_keep(const char *ir, const char *name, const CcSbuf *key, CcErr *err) {
    if (ready(err) < 0) return NULL;
    jit.used = true;
    void *address = compile(ir, name, err);
    if (address && key->n && jit.object.at) cc_disk_put(CC_DISK_KERNEL, key->text, key->n, &jit.object);
    free(jit.object.at);
    jit.object = (CcBlob){NULL, 0};
    return address;
}

void *cc_jit_compile(const char *ir, const char *name, CcErr *err) {
    CcSbuf key = {0};
    pthread_mutex_lock(&lock);
    void *address = make_key(ir, &key) ? load_kept(&key, name) : NULL;
    if (!address) address = compile_and_keep(ir, name, &key, err);
    pthread_mutex_unlock(&lock);
    cc_sbuf_free(&key);
    return address;
}

void cc_jit_forget(void) {
    pthread_mutex_lock(&lock);
    if (jit.used) forget();
    jit.used = false;
    pthread_mutex_unlock(&lock);
}

const char *cc_jit_describe(void) {
    pthread_mutex_lock(&lock);
    const char *text = ready(NULL) < 0 ? NULL : jit.text;
    pthread_mutex_unlock(&lock);
    return text;
}
