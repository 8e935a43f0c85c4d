/* llvm: text to machine code by LLVM, through the C symbols of llvmlite's libllvmlite.so (LLVMPY_*, checked with 0.44
 * to 0.50). No llvmlite Python code runs. LLVM gets a context of our own. One thread at a time: jit.c has a lock, and
 * in the compiler's own process (compiler.c) there is one thread. */
#include "dev_int.h"

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
    Ref (*machine)(Ref target, const char *triple, const char *cpu, const char *features, int opt, const char *reloc,
                   const char *model, int print_mc, int jit, const char *abi);
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

static struct {
    int tried; /* 0 not yet, 1 ready, -1 failed */
    CcErr err; /* why it failed */
    Ref context, engine;
    CcBlob *into; /* where the object of this compilation goes */
    char text[48];
} state;

static void take_object(void *ctx, const struct Made *made) {
    (void)ctx;
    CcBlob *into = state.into;
    if (!into) return;
    free(into->at);
    *into = (CcBlob){malloc(made->n), made->n};
    if (into->at) memcpy(into->at, made->at, made->n);
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
    const Ref machine = llvm.machine(target, triple, cpu->narrowed ? level : name, cc_sbuf_text(&features), 2,
                                     "default", "jitdefault", 0, 1, "");
    cc_sbuf_free(&features);
    llvm.dispose_string(triple);
    llvm.dispose_string(name);
    llvm.dispose_string(host);
    if (!machine) return cc_err_set(err, CC_E_BACKEND, "LLVM: no target machine");
    const Ref first = llvm.parse(state.context, "", &message);
    state.engine = first ? llvm.engine(first, machine, false, &message) : NULL;
    if (state.engine) llvm.set_object_cache(state.engine, llvm.object_cache(take_object, NULL, NULL));
    return state.engine ? 0 : cc_err_set(err, CC_E_BACKEND, "LLVM: %s", message ? message : "no engine");
}

void cc_llvm_forget(void) { cc_dl_forget((void (*)(void))llvm.version); }

static int load(const char *path, CcErr *err) {
    void *handle = cc_dl_open(path, false, err);
    if (!handle || cc_dl_bind(handle, ROWS, CC_COUNT(ROWS), err) < 0) return -1;
    cc_llvm_forget(); /* 37 MB were read to relocate it */
    llvm.init_target();
    llvm.init_asm();
    llvm.link_mcjit();
    const char *message = NULL;
    llvm.load_library("libmvec.so.1", &message); /* absent: the printer asks for none of its functions */
    llvm.load_library("libm.so.6", &message);
    state.context = llvm.context();
    const unsigned v = llvm.version();
    snprintf(state.text, sizeof state.text, "LLVM %u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
    return make_engine(err);
}

int cc_llvm_ready(const char *path, CcErr *err) {
    if (state.tried == 0) state.tried = load(path, &state.err) < 0 ? -1 : 1;
    if (state.tried < 0 && err) *err = state.err;
    return state.tried < 0 ? -1 : 0;
}

const char *cc_llvm_describe(void) { return state.text; }

static void *compile(const char *ir, const char *name, CcErr *err) {
    const char *message = NULL;
    const Ref module = llvm.parse(state.context, ir, &message);
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
    llvm.add_module(state.engine, module);
    llvm.finalize(state.engine);
    const uint64_t address = llvm.address(state.engine, name);
    if (!address) cc_err_set(err, CC_E_BACKEND, "LLVM: no address for %s", name);
    return (void *)(uintptr_t)address;
}

void *cc_llvm_compile(const char *ir, const char *name, CcBlob *object, CcErr *err) {
    *object = (CcBlob){NULL, 0};
    state.into = object;
    void *address = compile(ir, name, err);
    state.into = NULL;
    return address;
}
