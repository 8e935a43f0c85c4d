/* llvm: compiles LLVM IR to objects, through the C symbols of llvmlite's libllvmlite.so (LLVMPY_*, checked with 0.44 to
 * 0.50). No llvmlite Python code runs. The library is loaded once. Each CcLlvm has its own context and target machine, so
 * threads of the worker process (compiler.c) compile in parallel with one CcLlvm each. */
#include <pthread.h>

#include "dev_int.h"

typedef struct Opaque *Ref;

struct CcLlvm {
    Ref context, machine;
};

static struct {
    void (*option)(const char *program, const char *option);
    void (*init_target)(void), (*init_asm)(void);
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
    Ref (*emit)(Ref machine, Ref module, int object, const char **message);
    const char *(*buffer_start)(Ref buffer);
    size_t (*buffer_size)(Ref buffer);
    void (*dispose_buffer)(Ref buffer);
} llvm;

static const CcDlRow ROWS[] = {
#define ROW(name, slot) {"LLVMPY_" name, (void **)&llvm.slot}
    ROW("SetCommandLine", option),
    ROW("InitializeNativeTarget", init_target),
    ROW("InitializeNativeAsmPrinter", init_asm),
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
    ROW("TargetMachineEmitToMemory", emit),
    ROW("GetBufferStart", buffer_start),
    ROW("GetBufferSize", buffer_size),
    ROW("DisposeMemoryBuffer", dispose_buffer),
#undef ROW
};

static bool alone; /* no other user of LLVM in this process, such as numba */

static struct {
    pthread_mutex_t lock;
    int tried; /* 0 not yet, 1 ready, -1 failed */
    CcErr err; /* why it failed */
    char text[48];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Ref make_machine(CcErr *err) {
    const char *message = NULL, *triple = NULL, *name = NULL, *host = NULL;
    llvm.triple(&triple);
    const Ref target = llvm.target(triple, &message);
    if (!target) {
        cc_err_set(err, CC_E_BACKEND, "LLVM: %s", message ? message : "no target");
        return NULL;
    }
    llvm.cpu_name(&name);
    llvm.cpu_features(&host);
    CcSbuf features = {0};
    const CcCpu *cpu = cc_cpu_info();
    /* Use 512-bit registers if the CPU has them. A CPU narrowed by CCOMPILE_CPU is described by its level alone. */
    if (!cpu->narrowed) cc_sbuf_add(&features, "%s,-prefer-256-bit", host);
    const char *level = strcmp(cpu->name, "avx2") == 0 ? "x86-64-v3" : "x86-64-v2";
    const Ref machine = llvm.machine(target, triple, cpu->narrowed ? level : name, cc_sbuf_text(&features), 2,
                                     "default", "jitdefault", 0, 1, "");
    cc_sbuf_free(&features);
    llvm.dispose_string(triple);
    llvm.dispose_string(name);
    llvm.dispose_string(host);
    if (!machine) cc_err_set(err, CC_E_BACKEND, "LLVM: no target machine");
    return machine;
}

void cc_llvm_alone(void) { alone = true; }

void cc_llvm_forget(void) { cc_dl_forget((void (*)(void))llvm.version); }

static int load(const char *path, CcErr *err) {
    void *handle = cc_dl_open(path, false, err);
    if (!handle || cc_dl_bind(handle, ROWS, CC_COUNT(ROWS), err) < 0) return -1;
    cc_llvm_forget(); /* drops 37 MB of pages that relocation touched */
    /* Loop strength reduction takes a third of the time to compile most kernels, and 57 of them ran as fast on average
     * without it (Zen 4): the loops that gen/ prints have one index each, which x86's addressing modes scale. Options hold
     * for the whole process. */
    if (alone) llvm.option("ccompile", "-disable-lsr");
    llvm.init_target();
    llvm.init_asm();
    const unsigned v = llvm.version();
    snprintf(state.text, sizeof state.text, "LLVM %u.%u.%u", v >> 16, v >> 8 & 255, v & 255);
    return 0;
}

CcLlvm *cc_llvm_new(const char *path, CcErr *err) {
    pthread_mutex_lock(&state.lock);
    if (state.tried == 0) state.tried = load(path, &state.err) < 0 ? -1 : 1;
    pthread_mutex_unlock(&state.lock);
    if (state.tried < 0) {
        if (err) *err = state.err;
        return NULL;
    }
    CcLlvm *own = calloc(1, sizeof *own);
    if (!own) {
        cc_err_set(err, CC_E_MEMORY, "no memory for LLVM");
        return NULL;
    }
    own->machine = make_machine(err);
    own->context = own->machine ? llvm.context() : NULL;
    if (own->context) return own;
    free(own);
    return NULL;
}

const char *cc_llvm_describe(void) { return state.text; }

static int fail(const char *message, const char *otherwise, CcErr *err) {
    cc_err_set(err, CC_E_BACKEND, "LLVM: %s", message ? message : otherwise);
    if (message) llvm.dispose_string(message);
    return -1;
}

static int emit(const CcLlvm *own, Ref module, CcBlob *object, CcErr *err) {
    const char *message = NULL;
    char *complaint = NULL;
    if (CC_DEBUG >= 2 && llvm.verify(module, &complaint)) return fail(complaint, "verify", err);
    const Ref made = llvm.emit(own->machine, module, 1, &message);
    if (!made) return fail(message, "no object", err);
    const size_t n = llvm.buffer_size(made);
    *object = (CcBlob){malloc(n), n};
    if (object->at) memcpy(object->at, llvm.buffer_start(made), n);
    llvm.dispose_buffer(made);
    return object->at ? 0 : cc_err_set(err, CC_E_MEMORY, "no memory for an object");
}

int cc_llvm_compile(const CcLlvm *own, const char *ir, CcBlob *object, CcErr *err) {
    const char *message = NULL;
    *object = (CcBlob){NULL, 0};
    const Ref module = llvm.parse(own->context, ir, &message);
    if (!module) return fail(message, "parse", err);
    const int status = emit(own, module, object, err);
    llvm.dispose_module(module);
    return status;
}
