/* cuda: devices, programs and launches through the driver API (libcuda.so.1), in the primary contexts that torch uses,
 * too. The CUDA Runtime is not needed: its streams are the driver's, so no Runtime version has to agree with torch's.
 *
 * Nothing here runs before the first plan for a GPU: a process that forks earlier has no CUDA state. A function makes
 * the device's context current only while it runs, so torch's current device stays unchanged. */
#include <pthread.h>

#include "dev.h"

enum { OLDEST_DRIVER = 12000, MAX_DEVICES = 64 };
enum { ATTR_PROCESSORS = 16, ATTR_MAJOR = 75, ATTR_MINOR = 76, ATTR_PAGEABLE = 88 }; /* CUdevice_attribute */

static struct {
    int (*init)(unsigned);
    int (*version)(int *);
    int (*count)(int *);
    int (*device)(int *, int);
    int (*attribute)(int *, int, int);
    int (*retain)(void **, int);
    int (*push)(void *);
    int (*pop)(void **);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    int (*wait)(void *);
    int (*capture_mode)(int *);
    int (*alloc)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*fill)(uint64_t, unsigned char, size_t, void *);
    int (*stream)(void **, unsigned);
    int (*stream_free)(void *);
    int (*event)(void **, unsigned);
    int (*event_free)(void *);
    int (*record)(void *, void *);
    int (*event_wait)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*error_name)(int, const char **);
    int (*error_text)(int, const char **);
} cu;

typedef struct Device {
    CcCudaDevice seen;
    void *context;
    int state; /* 0: not initialised, 1: usable, -1: failed */
    CcErr err;
} Device;

static struct {
    int state; /* as Device.state */
    int n;
    Device device[MAX_DEVICES];
    CcErr err;
} lib;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------ libraries */

static void *open_in(const char *folder, const char *const *names, int n) {
    static const char *const UNDER[] = {"", "/lib64", "/lib"};
    char path[1024];
    CcErr ignored;
    void *handle = NULL;
    for (int u = 0; folder && *folder && u < CC_COUNT(UNDER); u++)
        for (int i = 0; !handle && i < n; i++)
            if (snprintf(path, sizeof path, "%s%s/%s", folder, UNDER[u], names[i]) < (int)sizeof path)
                handle = cc_dl_open(path, false, &ignored);
    return handle;
}

void *cc_cuda_open(const char *const *names, int n, const char *found, CcErr *err) {
    CcErr ignored;
    void *handle = open_in(getenv("CCOMPILE_CUDA_PATH"), names, n);
    if (!handle && found) handle = cc_dl_open(found, false, &ignored);
    for (int i = 0; !handle && i < n; i++) handle = cc_dl_open(names[i], false, &ignored);
    if (!handle) handle = open_in(getenv("CUDA_HOME"), names, n);
    if (!handle) handle = open_in(getenv("CUDA_PATH"), names, n);
    if (!handle) handle = open_in("/usr/local/cuda", names, n);
    if (!handle) cc_err_set(err, CC_E_MISSING, "%s was not found: set CCOMPILE_CUDA_PATH to its folder", names[0]);
    return handle;
}

/* Sets *err with CUDA's name and text of the error; returns -1. */
static int fail(int status, const char *what, CcErr *err) {
    const char *name = NULL, *text = NULL;
    if (cu.error_name(status, &name) || !name) name = "an unknown error";
    if (cu.error_text(status, &text) || !text) text = "";
    return cc_err_set(err, CC_E_BACKEND, "CUDA: %s: %s (%d): %s", what, name, status, text);
}

static int load(CcErr *err) {
    static const char *const NAME[] = {"libcuda.so.1"};
    const CcDlRow rows[] = {
        {"cuInit", (void **)&cu.init},
        {"cuDriverGetVersion", (void **)&cu.version},
        {"cuDeviceGetCount", (void **)&cu.count},
        {"cuDeviceGet", (void **)&cu.device},
        {"cuDeviceGetAttribute", (void **)&cu.attribute},
        {"cuDevicePrimaryCtxRetain", (void **)&cu.retain},
        {"cuCtxPushCurrent_v2", (void **)&cu.push},
        {"cuCtxPopCurrent_v2", (void **)&cu.pop},
        {"cuModuleLoadData", (void **)&cu.load},
        {"cuModuleGetFunction", (void **)&cu.function},
        {"cuLaunchKernel", (void **)&cu.launch},
        {"cuStreamSynchronize", (void **)&cu.wait},
        {"cuThreadExchangeStreamCaptureMode", (void **)&cu.capture_mode},
        {"cuMemAlloc_v2", (void **)&cu.alloc},
        {"cuMemFree_v2", (void **)&cu.free},
        {"cuMemsetD8Async", (void **)&cu.fill},
        {"cuStreamCreate", (void **)&cu.stream},
        {"cuStreamDestroy_v2", (void **)&cu.stream_free},
        {"cuEventCreate", (void **)&cu.event},
        {"cuEventDestroy_v2", (void **)&cu.event_free},
        {"cuEventRecord", (void **)&cu.record},
        {"cuEventSynchronize", (void **)&cu.event_wait},
        {"cuEventElapsedTime", (void **)&cu.elapsed},
        {"cuGetErrorName", (void **)&cu.error_name},
        {"cuGetErrorString", (void **)&cu.error_text},
    };
    void *handle = cc_cuda_open(NAME, CC_COUNT(NAME), NULL, err);
    if (!handle || cc_dl_bind(handle, rows, CC_COUNT(rows), err) < 0) return -1;
    int version = 0, status = cu.init(0);
    if (status) return fail(status, "the driver fails to initialise", err);
    if ((status = cu.version(&version)) || (status = cu.count(&lib.n))) return fail(status, "no devices", err);
    if (version < OLDEST_DRIVER)
        return cc_err_set(err, CC_E_MISSING, "the CUDA driver is for CUDA %d.%d: 12.0 or later is needed",
                          version / 1000, version % 1000 / 10);
    return 0;
}

/* ------------------------------------------------------------------ devices */

static int look_at(Device *d, int index, CcErr *err) {
    int device = 0, major = 0, minor = 0, pageable = 0;
    int status = cu.device(&device, index);
    if (!status) status = cu.attribute(&major, ATTR_MAJOR, device);
    if (!status) status = cu.attribute(&minor, ATTR_MINOR, device);
    if (!status) status = cu.attribute(&d->seen.processors, ATTR_PROCESSORS, device);
    if (!status) status = cu.attribute(&pageable, ATTR_PAGEABLE, device);
    if (!status) status = cu.retain(&d->context, device);
    if (status) return fail(status, "a device can't be used", err);
    d->seen.arch = 10 * major + minor;
    d->seen.pageable = pageable != 0;
    return 0;
}

static Device *find_device(int index, CcErr *err) {
    if (lib.state == 0) lib.state = load(&lib.err) < 0 ? -1 : 1;
    if (lib.state < 0) {
        if (err) *err = lib.err;
        return NULL;
    }
    if (index < 0 || index >= CC_MIN(lib.n, MAX_DEVICES)) {
        cc_err_set(err, CC_E_BACKEND, "CUDA: there is no device %d; the driver has %d", index, lib.n);
        return NULL;
    }
    Device *d = &lib.device[index];
    if (d->state == 0) d->state = look_at(d, index, &d->err) < 0 ? -1 : 1;
    if (d->state < 0 && err) *err = d->err;
    return d->state < 0 ? NULL : d;
}

const CcCudaDevice *cc_cuda_device(int index, CcErr *err) {
    pthread_mutex_lock(&lock);
    const Device *d = find_device(index, err);
    pthread_mutex_unlock(&lock);
    return d ? &d->seen : NULL;
}

/* ------------------------------------------------------------------ programs */

static int enter(const CcCudaDevice *device, CcErr *err) {
    const int status = cu.push(((const Device *)device)->context);
    return status ? fail(status, "a device's context", err) : 0;
}

static void leave(void) {
    void *left;
    (void)cu.pop(&left);
}

enum { RELAXED = 2 }; /* CU_STREAM_CAPTURE_MODE_RELAXED */

/* This or another thread may be capturing a stream. In relaxed mode this thread may still allocate memory and load
 * programs without invalidating the capture. */
static int enter_relaxed(const CcCudaDevice *device, int *mode, CcErr *err) {
    *mode = RELAXED;
    if (enter(device, err) < 0) return -1;
    const int status = cu.capture_mode(mode);
    if (status) leave();
    return status ? fail(status, "a thread's capture mode", err) : 0;
}

static void leave_relaxed(int mode) {
    (void)cu.capture_mode(&mode);
    leave();
}

void *cc_cuda_load(const CcCudaDevice *device, const CcCubin *image, CcErr *err) {
    void *program = NULL;
    int mode;
    if (enter_relaxed(device, &mode, err) < 0) return NULL;
    const int status = cu.load(&program, image->at);
    leave_relaxed(mode);
    if (status) fail(status, "a program can't be loaded", err);
    return status ? NULL : program;
}

void *cc_cuda_function(const CcCudaDevice *device, void *program, const char *name, CcErr *err) {
    void *function = NULL;
    int mode;
    if (enter_relaxed(device, &mode, err) < 0) return NULL; /* CUDA_MODULE_LOADING=LAZY defers loading to here */
    const int status = cu.function(&function, program, name);
    leave_relaxed(mode);
    if (status) fail(status, name, err);
    return status ? NULL : function;
}

int cc_cuda_launch(const CcCudaDevice *device, const CcCudaCall *call, void *stream, CcErr *err) {
    void *parameter[] = {call->argument};
    if (enter(device, err) < 0) return -1;
    const int status = cu.launch(call->function, (unsigned)call->grid, 1, 1, (unsigned)call->threads, 1, 1,
                                 (unsigned)call->shared, stream, parameter, NULL);
    leave();
    return status ? fail(status, call->name, err) : 0;
}

int cc_cuda_wait(const CcCudaDevice *device, void *stream, CcErr *err) {
    if (enter(device, err) < 0) return -1;
    const int status = cu.wait(stream);
    leave();
    return status ? fail(status, "a stream", err) : 0;
}

/* ------------------------------------------------------------------ timing */

enum { NON_BLOCKING = 1 }; /* CU_STREAM_NON_BLOCKING */
enum { ROUNDS = 5, CALLS = 4 };

struct CcCudaBench {
    const CcCudaDevice *device;
    uint64_t memory;
    void *stream, *begin, *end;
};

static void free_bench(CcCudaBench *b) {
    if (b->memory) (void)cu.free(b->memory);
    if (b->begin) (void)cu.event_free(b->begin);
    if (b->end) (void)cu.event_free(b->end);
    if (b->stream) (void)cu.stream_free(b->stream);
    free(b);
}

CcCudaBench *cc_cuda_bench(const CcCudaDevice *device, int64_t bytes, CcErr *err) {
    CcCudaBench *b = calloc(1, sizeof *b);
    int mode;
    if (!b || enter_relaxed(device, &mode, err) < 0) {
        free(b);
        return NULL;
    }
    b->device = device;
    int status = cu.alloc(&b->memory, (size_t)bytes);
    if (!status) status = cu.stream(&b->stream, NON_BLOCKING);
    if (!status) status = cu.event(&b->begin, 0);
    if (!status) status = cu.event(&b->end, 0);
    if (!status) status = cu.fill(b->memory, 0, (size_t)bytes, b->stream);
    if (status) {
        free_bench(b);
        fail(status, "memory for timing kernels", err);
    }
    leave_relaxed(mode);
    return status ? NULL : b;
}

char *cc_cuda_bench_memory(const CcCudaBench *b) { return (char *)(uintptr_t)b->memory; }

void cc_cuda_bench_close(CcCudaBench *b) {
    CcErr ignored;
    int mode;
    if (!b || enter_relaxed(b->device, &mode, &ignored) < 0) return;
    free_bench(b);
    leave_relaxed(mode);
}

static int launch_all(const CcCudaBench *b, const CcCudaCall *calls, int n) {
    int status = 0;
    for (int i = 0; i < n && !status; i++) {
        void *parameter[] = {calls[i].argument};
        status = cu.launch(calls[i].function, (unsigned)calls[i].grid, 1, 1, (unsigned)calls[i].threads, 1, 1,
                           (unsigned)calls[i].shared, b->stream, parameter, NULL);
    }
    return status;
}

/* The best of several rounds. Each round enqueues several passes, to hide the host's launch overhead. A warm-up pass
 * loads the kernels. */
int cc_cuda_bench_time(const CcCudaBench *b, const CcCudaCall *calls, int n, float *ms, CcErr *err) {
    int mode;
    if (enter_relaxed(b->device, &mode, err) < 0) return -1;
    int status = launch_all(b, calls, n);
    for (int round = 0; round < ROUNDS && !status; round++) {
        float each = 0;
        status = cu.record(b->begin, b->stream);
        for (int i = 0; i < CALLS && !status; i++) status = launch_all(b, calls, n);
        if (!status) status = cu.record(b->end, b->stream);
        if (!status) status = cu.event_wait(b->end);
        if (!status) status = cu.elapsed(&each, b->begin, b->end);
        *ms = round ? CC_MIN(*ms, each / CALLS) : each / CALLS;
    }
    leave_relaxed(mode);
    return status ? fail(status, n ? calls[0].name : "a kernel", err) : 0;
}
