// driver: NVRTC and the CUDA driver without a GPU, for tests. One shared object, which tests/cuda/emulated.py builds under
// the names libnvrtc.so.12 and libcuda.so.1, and an empty libnvrtc-builtins.so.12.99, into a folder that CCOMPILE_CUDA_PATH names.
//
//   nvrtcCompileProgram   the same text that NVRTC would get, by the system's C++ compiler with emulation.h before it
//   a "cubin"             a header and the bytes of that shared object
//   cuModuleLoadData      loads them; cuLaunchKernel runs all blocks and threads before it returns
//   memory                is the host's: the one kind of device says that it can touch pageable memory
//
//   events                tell times that a test gives: CCOMPILE_EMULATED_TIMES="128:0.5,256/7:2" is a launch's ms by its threads, or by
//                         threads and blocks; others take 1 ms
//   emulated_begin ...    a capture: launches are written down instead, with their arguments, and done by each replay. This stands
//                         in for torch.cuda.CUDAGraph (tests/cuda/capture.py); nothing of the product calls it
//
// What a real driver would punish is an error here: a launch without a context, of too many threads or too much shared memory.
// CCOMPILE_EMULATED_ORDER=1: blocks and threads run backwards. CCOMPILE_EMULATED_DEVICES: how many devices there are. CCOMPILE_EMULATED_LOG: a file to which each call adds a line.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, NO_BINARY = 209, NOT_FOUND = 500, ASSERT = 710, CAPTURE_UNSUPPORTED = 900 };
enum { PROCESSORS = 4, MAX_THREADS = 1024, MAX_SHARED = 48 << 10 };
enum { ARGUMENT = 4000 }; // bytes that are read of a kernel's one argument: CC_CUDA_MAX_ARG
constexpr uint64_t MAGIC = 0x6e6962756320756d;

struct Header {
    uint64_t magic, bytes;
};

struct Context {
    int device;
};
Context contexts[64];
thread_local std::vector<Context *> current;

struct Module {
    void *handle;
    Context *context;
};

struct Function {
    void *kernel;
    Module *module;
    std::string name;
};

struct Launched { // as a graph's node keeps it
    Function *function;
    unsigned grid, threads, shared;
    std::vector<char> argument;
};
std::vector<std::vector<Launched>> graphs;
double clock_ms; // what launches took, as CCOMPILE_EMULATED_TIMES says
enum { RELAXED = 2 };
thread_local int capture_mode;
thread_local bool capturing; // a stream of its own would be what captures

void note(const std::string &line) {
    const char *path = getenv("CCOMPILE_EMULATED_LOG");
    FILE *f = path && *path ? fopen(path, "a") : nullptr;
    if (!f) return;
    fprintf(f, "%s\n", line.c_str());
    fclose(f);
}

std::string folder() {
    Dl_info info;
    dladdr((void *)&note, &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

bool read_file(const std::string &path, std::string *out) {
    FILE *f = fopen(path.c_str(), "rb");
    if (!f) return false;
    char part[1 << 16];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) out->append(part, n);
    fclose(f);
    return true;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------- NVRTC

struct Program {
    std::string source, image, log;
};

API int nvrtcVersion(int *major, int *minor) { return *major = 12, *minor = 99, 0; }
API const char *nvrtcGetErrorString(int status) { return status ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS"; }
API int nvrtcGetNumSupportedArchs(int *n) { return *n = 3, 0; }
API int nvrtcGetSupportedArchs(int *archs) { return archs[0] = 80, archs[1] = 90, archs[2] = 100, 0; }

API int nvrtcCreateProgram(Program **out, const char *source, const char *, int, const char *const *, const char *const *) {
    *out = new Program{source, "", ""};
    return 0;
}

API int nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return 0;
}

// As NVRTC: the loader knows this name only if somebody has loaded it.
static bool has_builtins(Program *p) {
    if (dlopen("libnvrtc-builtins.so.12.99", RTLD_NOW | RTLD_LOCAL)) return true;
    p->log = "nvrtc: error: failed to open libnvrtc-builtins.so.12.99.";
    return false;
}

API int nvrtcCompileProgram(Program *p, int, const char *const *) {
    if (!has_builtins(p)) return 7; // NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
    char base[] = "/tmp/ccompile-cuda-XXXXXX";
    if (!mkdtemp(base)) return 1;
    const std::string at = base;
    FILE *f = fopen((at + "/program.cc").c_str(), "w");
    if (!f) return 1;
    fwrite(p->source.data(), 1, p->source.size(), f);
    fclose(f);
    const char *compiler = getenv("CXX");
    const std::string command = std::string(compiler && *compiler ? compiler : "c++") +
                                " -std=c++17 -O0 -shared -fPIC -w -include " + folder() + "/emulation.h -o " + at + "/program.so " + at +
                                "/program.cc 2> " + at + "/log";
    note("compile " + std::to_string(p->source.size()));
    const int status = system(command.c_str());
    read_file(at + "/log", &p->log);
    std::string library;
    const bool ok = status == 0 && read_file(at + "/program.so", &library);
    for (const char *name : {"/program.cc", "/program.so", "/log"}) unlink((at + name).c_str());
    rmdir(at.c_str());
    if (!ok) return 6;
    const Header h = {MAGIC, library.size()};
    p->image.assign((const char *)&h, sizeof h);
    p->image += library;
    return 0;
}

API int nvrtcGetCUBINSize(Program *p, size_t *n) { return *n = p->image.size(), 0; }
API int nvrtcGetCUBIN(Program *p, char *out) { return memcpy(out, p->image.data(), p->image.size()), 0; }
API int nvrtcGetPTXSize(Program *p, size_t *n) { return nvrtcGetCUBINSize(p, n); }
API int nvrtcGetPTX(Program *p, char *out) { return nvrtcGetCUBIN(p, out); }
API int nvrtcGetProgramLogSize(Program *p, size_t *n) { return *n = p->log.size() + 1, 0; }
API int nvrtcGetProgramLog(Program *p, char *out) { return memcpy(out, p->log.c_str(), p->log.size() + 1), 0; }

// ---------------------------------------------------------------------------------------------------- the driver

API int cuInit(unsigned) { return note("init"), OK; }
API int cuDriverGetVersion(int *version) { return *version = 12090, OK; }

API int cuDeviceGetCount(int *n) {
    const char *count = getenv("CCOMPILE_EMULATED_DEVICES");
    return *n = count ? atoi(count) : 1, OK;
}

API int cuDeviceGet(int *device, int index) { return *device = index, OK; }

API int cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case 16: *value = PROCESSORS; return OK;
    case 75: *value = 9; return OK;
    case 76: *value = 0; return OK;
    case 88: *value = 1; return OK;
    default: return INVALID_VALUE;
    }
}

API int cuDevicePrimaryCtxRetain(Context **out, int device) {
    contexts[device].device = device;
    return *out = &contexts[device], OK;
}

API int cuCtxPushCurrent_v2(Context *context) { return current.push_back(context), OK; }

API int cuCtxPopCurrent_v2(Context **out) {
    if (current.empty()) return INVALID_CONTEXT;
    *out = current.back();
    current.pop_back();
    return OK;
}

API int cuModuleLoadData(Module **out, const void *image) {
    Header h;
    memcpy(&h, image, sizeof h);
    if (current.empty()) return INVALID_CONTEXT;
    if (capturing && capture_mode != RELAXED) return CAPTURE_UNSUPPORTED;
    if (h.magic != MAGIC) return NO_BINARY;
    char path[] = "/tmp/ccompile-cuda-XXXXXX"; // the loader takes equal paths for one library
    const int fd = mkstemp(path);
    if (fd < 0) return INVALID_VALUE;
    const char *bytes = (const char *)image + sizeof h;
    for (uint64_t done = 0; done < h.bytes;) {
        const ssize_t n = write(fd, bytes + done, h.bytes - done);
        if (n <= 0) return INVALID_VALUE;
        done += (uint64_t)n;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fprintf(stderr, "emulated CUDA: %s\n", dlerror());
    close(fd);
    unlink(path);
    if (!handle) return NO_BINARY;
    *out = new Module{handle, current.back()};
    return OK;
}

API int cuModuleGetFunction(Function **out, Module *module, const char *name) {
    void *kernel = dlsym(module->handle, name);
    if (!kernel) return NOT_FOUND;
    *out = new Function{kernel, module, name};
    return OK;
}

// Not part of a number that is longer.
static bool told(const std::string &key, double *ms) {
    const char *times = getenv("CCOMPILE_EMULATED_TIMES");
    const std::string all = std::string(",") + (times ? times : ""), want = "," + key + ":";
    const size_t at = all.find(want);
    if (at != std::string::npos) *ms = atof(all.c_str() + at + want.size());
    return at != std::string::npos;
}

static double time_of(unsigned grid, unsigned threads) {
    double ms = 1;
    if (!told(std::to_string(threads) + "/" + std::to_string(grid), &ms)) told(std::to_string(threads), &ms);
    return ms;
}

struct Event {
    double at;
};
API int cuEventCreate(Event **out, unsigned) { return *out = new Event{0}, OK; }
API int cuEventDestroy_v2(Event *event) { return delete event, OK; }
API int cuEventRecord(Event *event, void *stream) { return event->at = clock_ms, stream ? (note("event"), OK) : INVALID_VALUE; }
API int cuEventSynchronize(Event *) { return OK; }
API int cuEventElapsedTime(float *ms, Event *begin, Event *end) { return *ms = (float)(end->at - begin->at), OK; }
API int cuStreamCreate(void **out, unsigned) { return *out = malloc(1), OK; }
API int cuStreamDestroy_v2(void *stream) { return free(stream), OK; }
API int cuThreadExchangeStreamCaptureMode(int *mode) {
    const int before = capture_mode;
    capture_mode = *mode;
    return *mode = before, OK;
}
API int cuMemAlloc_v2(uint64_t *out, size_t n) {
    const char *most = getenv("CCOMPILE_EMULATED_MEMORY");
    if (most && n > (size_t)atoll(most)) return OUT_OF_MEMORY;
    return *out = (uint64_t)(uintptr_t)aligned_alloc(256, (n + 255) / 256 * 256), OK;
}
API int cuMemFree_v2(uint64_t at) { return free((void *)(uintptr_t)at), OK; }
API int cuMemsetD8Async(uint64_t at, unsigned char value, size_t n, void *stream) {
    return memset((void *)(uintptr_t)at, value, n), stream ? OK : INVALID_VALUE;
}

static int run(Function *f, unsigned grid, unsigned threads, unsigned shared, const void *argument) {
    typedef int (*Launch)(void *, long long, int, int, const void *, int, int);
    const Launch launch = (Launch)dlsym(f->module->handle, "cc_emulation_launch");
    static const char *const order = getenv("CCOMPILE_EMULATED_ORDER");
    return launch ? launch(f->kernel, grid, (int)threads, (int)shared, argument, ARGUMENT, order && *order == '1') : NOT_FOUND;
}

API int cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                       void *stream, void **parameters, void **) {
    if (current.empty() || current.back() != f->module->context) return INVALID_CONTEXT;
    if (!gx || gy != 1 || gz != 1 || !bx || bx > MAX_THREADS || by != 1 || bz != 1 || shared > MAX_SHARED) return INVALID_VALUE;
    if (capturing) {
        const char *argument = (const char *)parameters[0];
        graphs.back().push_back({f, gx, bx, shared, std::vector<char>(argument, argument + ARGUMENT)});
        return OK;
    }
    clock_ms += time_of(gx, bx);
    note("threads " + std::to_string(bx));
    note("grid " + std::to_string(gx));
    note("launch " + f->name + " on " + std::to_string(current.back()->device) + " stream " + std::to_string((uintptr_t)stream));
    return run(f, gx, bx, shared, parameters[0]);
}

API void emulated_begin() { graphs.emplace_back(), capturing = true; }
API int emulated_end() { return capturing = false, (int)graphs.size() - 1; }
API int emulated_captured() { return (int)graphs.back().size(); } // launches so far
// Launches from..to of a graph.
API int emulated_replay(int graph, int from, int to) {
    for (int i = from; i < to; i++) {
        const Launched &l = graphs[(size_t)graph][(size_t)i];
        note("replay " + l.function->name);
        const int status = run(l.function, l.grid, l.threads, l.shared, l.argument.data());
        if (status) return status;
    }
    return OK;
}

API int cuStreamSynchronize(void *) { return current.empty() ? INVALID_CONTEXT : OK; }

API int cuGetErrorName(int status, const char **out) {
    switch (status) {
    case OK: *out = "CUDA_SUCCESS"; break;
    case INVALID_VALUE: *out = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *out = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case INVALID_CONTEXT: *out = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case NO_BINARY: *out = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case NOT_FOUND: *out = "CUDA_ERROR_NOT_FOUND"; break;
    case ASSERT: *out = "CUDA_ERROR_ASSERT"; break;
    case CAPTURE_UNSUPPORTED: *out = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: return INVALID_VALUE;
    }
    return OK;
}

API int cuGetErrorString(int, const char **out) { return *out = "said by the emulated driver", OK; }
