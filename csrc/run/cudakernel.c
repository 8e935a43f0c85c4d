/* cudakernel: caches GPU kernels by their text. Equal texts share a kernel, so equal layers and new shapes do; its
 * name is a hash of the text, so a program has the same text in every process, and its machine code is found on
 * disk.
 *
 * The kernels of a graph are compiled as one program. If that fails, each is compiled alone, so that only the faulty
 * one is lost. Process-wide, guarded by a mutex; entries are never evicted. */
#include <pthread.h>

#include "run_int.h"

enum { NAME_BYTES = 32 };

struct CcCudaKernel {
    const CcCudaDevice *device;
    uint64_t hash;
    char *text; /* the source, with TEXT_NAME as the kernel's name */
    char name[NAME_BYTES];
    void *program; /* NULL: `err` gives the reason */
    CcErr err;
};
static const char TEXT_NAME[] = "kernel";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CC_VEC(CcCudaKernel *) kernels;

void cc_cudakernel_text(const CcLoop *loop, const CcCudaTuning *tuning, CcSbuf *out) {
    CcErr err;
    if (cc_gen_cuda(loop, tuning, TEXT_NAME, out, &err) < 0) cc_sbuf_add(out, "// %s\n", err.text);
}

static CcCudaKernel *find(const CcCudaDevice *device, const char *text, uint64_t hash) {
    for (int i = 0; i < kernels.n; i++) {
        CcCudaKernel *k = kernels.at[i];
        if (k->hash == hash && k->device == device && strcmp(k->text, text) == 0) return k;
    }
    return NULL;
}

/* A kernel not yet compiled; NULL: the loop can't be printed, or out of memory. */
static CcCudaKernel *make(const CcCudaDevice *device, const CcLoop *loop, const CcCudaTuning *tuning, CcErr *err) {
    CcSbuf text = {0};
    CcCudaKernel *k = cc_gen_cuda(loop, tuning, TEXT_NAME, &text, err) < 0 ? NULL : calloc(1, sizeof *k);
    if (!k) {
        cc_sbuf_free(&text);
        return NULL;
    }
    k->device = device;
    k->text = text.text;
    k->hash = cc_map_hash(text.text, text.n, 1);
    snprintf(k->name, sizeof k->name, "cc_%016llx", (unsigned long long)k->hash);
    return k;
}

static void drop(CcCudaKernel *k) {
    free(k->text);
    free(k);
}

/* Compiles and loads a program; -> the program */
static void *compile(const CcCudaDevice *device, const char *text, CcErr *err) {
    CcSbuf source = {0};
    CcCubin image;
    cc_gen_cuda_prelude(&source);
    cc_sbuf_add(&source, "%s", text);
    void *program = NULL;
    if (cc_cubin_get(cc_sbuf_text(&source), device->arch, &image, err) == 0) {
        program = cc_cuda_load(device, &image, err);
        free(image.at);
    }
    cc_sbuf_free(&source);
    return program;
}

void cc_cudakernel_need(const CcCudaDevice *device, const CcLoop *const *loops, const CcCudaTuning *tunings, int n) {
    CC_VEC(CcCudaKernel *) fresh = {0};
    CcSbuf text = {0};
    CcErr ignored;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n; i++) {
        CcCudaKernel *k = make(device, loops[i], &tunings[i], &ignored);
        if (!k) continue;
        bool known = find(device, k->text, k->hash) != NULL;
        for (int j = 0; j < fresh.n && !known; j++) known = fresh.at[j]->hash == k->hash;
        if (known || cc_gen_cuda(loops[i], &tunings[i], k->name, &text, &ignored) < 0) drop(k);
        else cc_vec_push(&fresh, k);
    }
    void *program = fresh.n ? compile(device, cc_sbuf_text(&text), &ignored) : NULL;
    for (int i = 0; i < fresh.n; i++) {
        fresh.at[i]->program = program;
        if (program) cc_vec_push(&kernels, fresh.at[i]);
        else drop(fresh.at[i]);
    }
    pthread_mutex_unlock(&lock);
    cc_sbuf_free(&text);
    cc_vec_free(&fresh);
}

const CcCudaKernel *cc_cudakernel_get(const CcCudaDevice *device, const CcLoop *loop, const CcCudaTuning *tuning,
                                      CcErr *err) {
    pthread_mutex_lock(&lock);
    CcCudaKernel *made = make(device, loop, tuning, err), *k = made ? find(device, made->text, made->hash) : NULL;
    if (k) {
        drop(made);
    } else if (made) {
        k = made;
        CcSbuf text = {0};
        if (cc_gen_cuda(loop, tuning, k->name, &text, &k->err) == 0)
            k->program = compile(device, cc_sbuf_text(&text), &k->err);
        cc_sbuf_free(&text);
        cc_vec_push(&kernels, k);
    }
    pthread_mutex_unlock(&lock);
    if (k && !k->program && err) *err = k->err;
    return k && k->program ? k : NULL;
}

void *cc_cudakernel_part(const CcCudaKernel *kernel, int part, char *name, size_t n, CcErr *err) {
    snprintf(name, n, "%s_%d", kernel->name, part);
    return cc_cuda_function(kernel->device, kernel->program, name, err);
}
