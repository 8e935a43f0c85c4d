/* nvrtc: compiles CUDA C for one architecture with NVIDIA's runtime compiler. Needs neither a driver nor a GPU, nor
 * CUDA's headers: the used part of NVRTC 12's and 13's API is declared here.
 *
 * If the library supports the device's architecture, the result is a cubin; if the GPU is newer than the library, it is
 * PTX for the nearest older architecture, which the driver compiles. */
#include <pthread.h>

#include "dev.h"

enum { MAX_ARCHS = 64, MAX_OPTIONS = 8, LOG_LINES = 8 };

typedef struct Program *ProgramRef;

static struct {
    int (*version)(int *, int *);
    int (*count_archs)(int *);
    int (*archs)(int *);
    int (*create)(ProgramRef *, const char *, const char *, int, const char *const *, const char *const *);
    int (*destroy)(ProgramRef *);
    int (*compile)(ProgramRef, int, const char *const *);
    int (*cubin_size)(ProgramRef, size_t *);
    int (*cubin)(ProgramRef, char *);
    int (*ptx_size)(ProgramRef, size_t *);
    int (*ptx)(ProgramRef, char *);
    int (*log_size)(ProgramRef, size_t *);
    int (*log)(ProgramRef, char *);
    const char *(*error)(int);
} nvrtc;

static struct {
    char *path; /* the one that the Python package found */
    int state;  /* 0: not loaded yet, 1: loaded, -1: missing */
    int arch[MAX_ARCHS], n_arch;
    char text[32];
    CcErr err;
} lib;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void cc_nvrtc_library(const char *path) {
    pthread_mutex_lock(&lock);
    free(lib.path);
    lib.path = path ? cc_mem_text(path) : NULL;
    if (lib.state < 0) lib.state = 0;
    pthread_mutex_unlock(&lock);
}

/* NVRTC opens its builtins library by bare name, and the libraries of NVIDIA's CUDA 13 wheels have no RPATH to their
 * own folder. Loading it here first makes that lookup succeed. */
static void open_builtins(int major, int minor) {
    char name[64];
    snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.%d", major, minor);
    (void)cc_dl_beside((const void *)(uintptr_t)nvrtc.version, name);
}

static int load(CcErr *err) {
    const CcDlRow rows[] = {
        {"nvrtcVersion", (void **)&nvrtc.version},
        {"nvrtcGetNumSupportedArchs", (void **)&nvrtc.count_archs},
        {"nvrtcGetSupportedArchs", (void **)&nvrtc.archs},
        {"nvrtcCreateProgram", (void **)&nvrtc.create},
        {"nvrtcDestroyProgram", (void **)&nvrtc.destroy},
        {"nvrtcCompileProgram", (void **)&nvrtc.compile},
        {"nvrtcGetCUBINSize", (void **)&nvrtc.cubin_size},
        {"nvrtcGetCUBIN", (void **)&nvrtc.cubin},
        {"nvrtcGetPTXSize", (void **)&nvrtc.ptx_size},
        {"nvrtcGetPTX", (void **)&nvrtc.ptx},
        {"nvrtcGetProgramLogSize", (void **)&nvrtc.log_size},
        {"nvrtcGetProgramLog", (void **)&nvrtc.log},
        {"nvrtcGetErrorString", (void **)&nvrtc.error},
    };
    static const char *const NAME[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    void *handle = cc_cuda_open(NAME, CC_COUNT(NAME), lib.path, err);
    if (!handle || cc_dl_bind(handle, rows, CC_COUNT(rows), err) < 0) return -1;
    int major = 0, minor = 0, n = 0;
    if (nvrtc.version(&major, &minor) || nvrtc.count_archs(&n) || n > MAX_ARCHS || nvrtc.archs(lib.arch))
        return cc_err_set(err, CC_E_BACKEND, "NVRTC does not report its architectures");
    if (major < 12)
        return cc_err_set(err, CC_E_MISSING, "NVRTC %d.%d is too old: 12.0 or later is needed", major, minor);
    open_builtins(major, minor);
    lib.n_arch = n;
    snprintf(lib.text, sizeof lib.text, "NVRTC %d.%d", major, minor);
    return 0;
}

static int ready(CcErr *err) {
    pthread_mutex_lock(&lock);
    if (lib.state == 0) lib.state = load(&lib.err) < 0 ? -1 : 1;
    pthread_mutex_unlock(&lock);
    if (lib.state < 0 && err) *err = lib.err;
    return lib.state < 0 ? -1 : 0;
}

const char *cc_nvrtc_describe(void) { return ready(NULL) < 0 ? NULL : lib.text; }

/* The nearest architecture at or before this one; 0: none. */
static int nearest(int arch) {
    int best = 0;
    for (int i = 0; i < lib.n_arch; i++)
        if (lib.arch[i] <= arch) best = CC_MAX(best, lib.arch[i]);
    return best;
}

int cc_nvrtc_options(int arch, CcSbuf *out, CcErr *err) {
    if (ready(err) < 0) return -1;
    const int known = nearest(arch);
    if (!known) return cc_err_set(err, CC_E_UNSUPPORTED, "%s does not support sm_%d", lib.text, arch);
    cc_sbuf_add(out, "--gpu-architecture=%s_%d\n--std=c++17\n--fmad=false\n", known == arch ? "sm" : "compute", known);
    return 0;
}

/* Logs the first lines of the compiler's log as events; *err gets the first error. */
static void explain(ProgramRef program, int status, CcErr *err) {
    size_t n = 0;
    char *text = nvrtc.log_size(program, &n) || n == 0 ? NULL : malloc(n + 1);
    char *first = NULL;
    if (text && nvrtc.log(program, text)) *text = 0;
    if (text) text[n] = 0;
    char *rest = text;
    for (int i = 0; rest && *rest && i < LOG_LINES; i++) {
        char *line = rest, *end = strchr(rest, '\n');
        if (end) *end = 0;
        rest = end ? end + 1 : NULL;
        if (!first && strstr(line, "error")) first = line;
        cc_log_add(CC_LOG_FALLBACK, "NVRTC: %s", line);
    }
    cc_err_set(err, CC_E_BACKEND, "NVRTC: %s: %s", nvrtc.error(status), first ? first : "");
    free(text);
}

static int take_image(ProgramRef program, bool ptx, CcCubin *out, CcErr *err) {
    size_t n = 0;
    int status = (ptx ? nvrtc.ptx_size : nvrtc.cubin_size)(program, &n);
    char *at = status || n == 0 ? NULL : malloc(n);
    if (at) status = (ptx ? nvrtc.ptx : nvrtc.cubin)(program, at);
    if (at && status == 0) {
        *out = (CcCubin){at, n};
        return 0;
    }
    free(at);
    return cc_err_set(err, CC_E_BACKEND, "NVRTC gave no machine code: %s",
                      status ? nvrtc.error(status) : "it is empty");
}

/* options: a line each. */
int cc_nvrtc_compile(const char *source, const char *options, CcCubin *out, CcErr *err) {
    const char *option[MAX_OPTIONS];
    int n = 0;
    cc_reclaim_begin();
    if (ready(err) < 0) return -1;
    char *copy = cc_mem_text(options), *rest = NULL;
    for (char *o = strtok_r(copy, "\n", &rest); o && n < CC_COUNT(option); o = strtok_r(NULL, "\n", &rest))
        option[n++] = o;
    ProgramRef program = NULL;
    int status = nvrtc.create(&program, source, "ccompile.cu", 0, NULL, NULL), result = -1;
    if (status) {
        cc_err_set(err, CC_E_BACKEND, "NVRTC: %s", nvrtc.error(status));
    } else {
        status = nvrtc.compile(program, n, option);
        if (status) explain(program, status, err);
        else result = take_image(program, strstr(options, "=compute_") != NULL, out, err);
        nvrtc.destroy(&program);
    }
    free(copy);
    return result;
}
