/* dev: everything that depends on the machine: shared libraries, CPU features, LLVM, oneDNN, the OpenMP pool, CUDA, and
 * the hand-written kernels. Libraries load on first use. A missing or failing library yields an error value; the caller
 * falls back to another path. */
#ifndef CC_DEV_H
#define CC_DEV_H

#include "../pass/pass.h"

/* ---- dl.c: the only user of dlopen ---- */
void *cc_dl_open(const char *path, bool global, CcErr *err); /* NULL with *err set */
/* Handle of an already loaded library whose file name contains `part`; makes its symbols global. NULL: none. */
void *cc_dl_loaded(const char *part);
/* Loads `name` from the folder of the library that contains the address `inside`; NULL: not there. */
void *cc_dl_beside(const void *inside, const char *name);
void *cc_dl_symbol(void *handle, const char *name); /* handle NULL: anywhere in the process */
typedef struct CcDlRow {                            /* one function to resolve */
    const char *name;
    void **slot;
} CcDlRow;
CC_MUST int cc_dl_bind(void *handle, const CcDlRow *rows, int n, CcErr *err); /* -1: a function is missing */

/* Drops the resident read-only pages of the library that contains this function; the next access reloads them from the
 * page cache. Callable at any time from any thread. */
void cc_dl_forget(void (*inside)(void));

/* ---- cpu.c ---- */
typedef struct CcCpu {
    const char *name; /* "avx512", "avx2", "base" */
    int vector_bytes; /* 64, 32, 16 */
    bool f16;         /* has float16 conversions (F16C) */
    bool narrowed;    /* CCOMPILE_CPU restricts the instruction set */
    /* torch's oneDNN runs its AVX-512 code; CCOMPILE_CPU does not restrict it */
    bool wide_torch;
} CcCpu;
const CcCpu *cc_cpu_info(void); /* reads CCOMPILE_CPU (avx2, base) once */
/* Selects name_avx512, name_avx2 or name_base: the widest variant this machine runs (see dev/lanes.inc). */
#define CC_CPU_WIDEST(name)                                                                                            \
    (cc_cpu_info()->vector_bytes == 64 ? name##_avx512 : cc_cpu_info()->vector_bytes == 32 ? name##_avx2 : name##_base)
void cc_cpu_describe(CcSbuf *out);              /* part of the cache key of code compiled for this CPU */
int64_t cc_cpu_core_cache_bytes(void);          /* of the largest cache that a core has to itself */
void cc_cpu_evict(const void *at, int64_t n);   /* drops these bytes from all caches, for measurements */
void cc_cpu_evict_pages(void);                  /* fills this core's translation cache (TLB) with other pages */
void *cc_cpu_vector_function(const char *name); /* address in libmvec.so.1; NULL: none */
bool cc_cpu_has_vector_function(const char *name);

/* ---- disk.c: the on-disk cache of machine code and verdicts; any thread ---- */
typedef struct CcBlob { /* the reader frees `at` */
    char *at;
    size_t n;
} CcBlob;
typedef enum CcDiskKind { CC_DISK_KERNEL, CC_DISK_CUBIN, CC_DISK_TUNING, CC_DISK_VERDICT } CcDiskKind;
bool cc_disk_get(CcDiskKind kind, const char *key, size_t n, CcBlob *out); /* false: not cached */
void cc_disk_put(CcDiskKind kind, const char *key, size_t n, const CcBlob *blob);
/* File number i of those that this process has read or written, or added; false: there are not so many. key->at NULL: it
 * is gone. */
bool cc_disk_used(int i, const char **kind, CcBlob *key, CcBlob *image);
/* Adds a file of another cache. kind: as cc_disk_used gives it. false: there is no such kind, or it can't be written. */
bool cc_disk_add(const char *kind, const char *key, size_t n, const CcBlob *image);
/* ---- object.c: loads a relocatable object for the life of the process -> the function; NULL: unusable ---- */
void *cc_object_load(const CcBlob *blob, const char *name);

/* ---- jit.c: LLVM IR to machine code, compiled in a separate process (compiler.c) ---- */
/* path: libllvmlite.so (NULL: not installed). compiler: the worker program (NULL: load LLVM into this process). */
void cc_jit_library(const char *path, const char *compiler);
/* Loads a cached object, or sends the IR to the worker process without waiting for it. Where LLVM is loaded into this
 * process it compiles at once. NULL: out of memory. */
typedef struct CcJitJob CcJitJob;
CcJitJob *cc_jit_begin(const char *ir, const char *name);
/* Waits for the job and frees it -> the function, which is never freed. */
void *cc_jit_end(CcJitJob *job, CcErr *err);
void cc_jit_forget(void);          /* drops LLVM's resident pages; the next compilation reloads them */
const char *cc_jit_describe(void); /* "LLVM 20.1.8"; NULL: not installed */

/* ---- omp.c: torch's OpenMP pool ---- */
void cc_omp_threads(int n);
int cc_omp_width(void); /* number of threads a kernel may use; 1 without an OpenMP library */
/* Sets how many threads libraries called from this thread may use -> the previous limit. */
int cc_omp_limit(int n);
/* Partitions [0, n) into at most `parts` ranges and calls work(ctx, begin, end) for each, on the pool. */
void cc_omp_run(void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx, int64_t n, int parts);
const char *cc_omp_describe(void);

/* ---- reclaim.c: returns the compilers' memory; any thread ---- */
void cc_reclaim_begin(void);   /* call before compiling */
bool cc_reclaim_pending(void); /* has anything compiled since the last cc_reclaim_end? */
void cc_reclaim_end(void);     /* call before running a plan */

/* ---- scratch.c ---- */
typedef struct CcScratch {
    size_t bytes;
    _Alignas(64) char at[];
} CcScratch;
/* A block of at least `bytes` bytes, uninitialised; NULL: out of memory. */
CcScratch *cc_scratch_take(size_t bytes);
void cc_scratch_give(CcScratch *block); /* NULL is fine */
void cc_scratch_trim(void);             /* frees the spare block */
/* 64-byte aligned memory of the calling thread, valid until its next call of this function; NULL: out of memory. */
void *cc_scratch_thread(size_t bytes);
void cc_scratch_thread_trim(void); /* frees the calling thread's memory if it is large */

/* ---- content.c ---- */
/* A 64-bit fingerprint of these bytes; skips pages known to be unwritten. Any thread. */
uint64_t cc_content_of(const void *at, size_t bytes);
bool cc_content_tracks_writes(void); /* true: fingerprints re-read written pages only */
/* Fingerprinting this many bytes takes about 2 us, negligible beside a product with them. */
#define CC_CONTENT_CHEAP (1 << 16)

/* ---- packed.c ---- */
/* Keeps weights packed in a primitive's layout between calls, as long as their address and version stay the same.
 * Thread-safe. Owners that need the same layout (a layer called twice, plans of other sizes) share one copy if the
 * version is unique (CC_VERSION_UNIQUE). */
typedef struct CcPacked CcPacked;
CcPacked *cc_packed_new(void);
void cc_packed_free(CcPacked *packed);
void cc_packed_drop(CcPacked *packed);  /* releases the kept copy; NULL is fine */
void cc_packed_evict(CcPacked *packed); /* moves the kept copy out of the caches */

/* ---- clamp.c: x = min(max(x, low), high) in place; NaN stays NaN ---- */
void cc_clamp(float *at, int64_t n, float low, float high);

/* ---- halves.c: converts n contiguous elements of dtype F32, BF16 or F16 to f32 and back ---- */
void cc_halves_widen(CcDtype dtype, const void *from, float *to, int64_t n);
void cc_halves_narrow(CcDtype dtype, const float *from, void *to, int64_t n);
/* widens elements that are `step` elements apart in `from` */
void cc_halves_gather(CcDtype dtype, const void *from, int64_t step, float *to, int64_t n);

/* ---- flash.c: fused softmax(mask(q @ k^T * scale)) @ v; computes in f32, rounds once ---- */
enum { CC_FLASH_MAX_LEAD = 8, CC_FLASH_MAX_DEPTH = 512 };
typedef enum CcFlashMask {
    CC_FLASH_NO_MASK,
    CC_FLASH_ADD,  /* floats: added to the scaled scores */
    CC_FLASH_KEEP, /* bools: -inf is added where false */
    CC_FLASH_FILL  /* bools: the scaled score becomes `fill` where true */
} CcFlashMask;
typedef struct CcStrided { /* strides in elements; 0: broadcast */
    int64_t lead[CC_FLASH_MAX_LEAD], row, col;
    CcDtype dtype; /* F32, BF16, F16; masks also BOOL */
} CcStrided;
typedef struct CcFlash {
    int n_lead;
    int64_t lead[CC_FLASH_MAX_LEAD]; /* batches, heads */
    /* q [rows, depth], k [keys, depth], v [keys, width], mask [rows, keys]; > 0 */
    int64_t rows, keys, depth, width;
    CcStrided q, k, v, mask, out; /* out.col is 1 */
    CcFlashMask mask_kind;
    bool causal; /* row i attends to keys 0..i */
    float scale, fill;
    float masked_row; /* 0 or NaN: the result of a row whose scores are all -inf */
} CcFlash;
typedef struct CcFlashCall {
    const void *q, *k, *v, *mask;
    void *out;
} CcFlashCall;
/* any thread; -1: no memory */
CC_MUST int cc_flash_run(const CcFlash *flash, const CcFlashCall *call, CcErr *err);

/* ---- gemv.c: matrix-vector products, y = W x + bias ---- */
typedef struct CcGemv {
    int64_t n, k;     /* outputs; elements of x. x, y and bias are contiguous */
    int64_t row, col; /* strides of the weights [n, k]; one is 1: col for BF16 and F16 */
    CcDtype dtype;    /* of weights, x, y and bias */
} CcGemv;
bool cc_gemv_can(const CcGemv *g);
/* bias may be NULL; -1: no memory */
CC_MUST int cc_gemv_run(const CcGemv *g, const void *w, const void *x, const void *bias, void *y);

/* ---- recur.c: one recurrent layer in one direction, over all time steps; f32 ---- */
/* Strides in elements between time steps and between batch rows; columns are contiguous. All sizes > 0. */
typedef struct CcRecur {
    CcCell cell;
    bool backward; /* from the last step to the first */
    int64_t steps, batch, in, hidden;
    int64_t x_step, x_row, y_step, y_row, h_row, c_row;
    /* weights [gates * hidden][in], [gates * hidden][hidden]; gates in torch's order */
    int64_t wi_row, wh_row;
} CcRecur;
typedef struct CcRecurCall {
    const float *x, *h, *c;          /* c: LSTM only */
    const float *wi, *wh, *bi, *bh;  /* biases: both or none */
    CcPacked *packed_wi, *packed_wh; /* NULL: packed in each call */
    uint64_t version_wi, version_wh;
    float *y, *last_h, *last_c; /* last_*: contiguous; NULL: not needed; last_c: LSTM only */
    /* For the backward, contiguous: activated gates [steps][batch][CC_RECUR_KEPT][hidden], the last of a GRU h's part of
     * the candidate; an LSTM's cells [steps][batch][hidden]. NULL: not kept; never kept for RNNs */
    float *kept, *cells;
    void *scratch; /* cc_recur_bytes bytes, 64-byte aligned */
} CcRecurCall;
/* The backward. Gradients of the gates' sums are contiguous, [steps][batch][gates * hidden]. */
typedef struct CcRecurBack {
    const float *grad_y, *grad_c; /* of y and of the last cells; NULL: 0 */
    int64_t grad_step, grad_row, grad_c_row;
    const float *y, *kept, *cells, *h, *c, *wh; /* as in the forward */
    float *dx, *dh; /* of what x adds to the sums, and of what h adds: another array for a GRU, else dx again */
    float *first_h, *first_c; /* of h and c, contiguous; NULL: not needed */
    void *scratch;            /* cc_recur_back_bytes bytes, 64-byte aligned */
} CcRecurBack;
enum { CC_RECUR_KEPT = 4 };
size_t cc_recur_bytes(const CcRecur *r);
/* any thread; -1: no memory */
CC_MUST int cc_recur_run(const CcRecur *r, const CcRecurCall *call, CcErr *err);
size_t cc_recur_back_bytes(const CcRecur *r);
void cc_recur_back(const CcRecur *r, const CcRecurBack *call); /* any thread */

/* ---- conv.c: 2-d convolutions, channels innermost; f32 ---- */
typedef enum CcConvWay { CC_CONV_DIRECT, CC_CONV_DEPTHWISE, CC_CONV_WINOGRAD, CC_CONV_ONE } CcConvWay;
/* Arrays of 2: rows, columns. src_stride: elements, [n, channel, row, column]. dst and the residual are dense with
 * channels innermost; with channels_first (WINOGRAD, ONE) columns are innermost and there is no residual. The weights
 * of one output channel are dense, [in][tap], or [tap][in] if w_taps_first. DEPTHWISE: in == 1. ONE: out == 1, and
 * columns are innermost in src and dst; a depthwise convolution then counts as batch * channels inputs with `each`
 * weights. */
typedef struct CcConvShape {
    CcConvWay way;
    int64_t batch, in, out;
    int64_t size[2], out_size[2], kernel[2], stride[2], dilation[2], pad[2]; /* pad: before the first row, column */
    int64_t src_stride[4], w_out; /* w_out: floats between the weights of two output channels */
    bool w_taps_first, channels_first;
    int64_t each;    /* ONE: input n uses weights, scale and shift number n % each */
    CcDtype dtype;   /* of src, weights and dst; only ONE takes other dtypes than F32 */
    int tile;        /* WINOGRAD: output rows and columns of a tile, 2 or 4 */
    float low, high; /* clamps the result; NaN stays NaN */
} CcConvShape;
/* dst = clamp(conv(src) * scale + shift + residual). scale and shift have cc_conv_channels elements. */
typedef struct CcConvCall {
    const float *src, *weights; /* these two and dst point to elements of CcConvShape.dtype */
    const float *scale, *shift;
    const float *residual; /* laid out as dst; NULL: none */
    float *dst;
    CcPacked *packed; /* NULL: each call packs the weights */
    uint64_t version; /* of the weights */
    float *scratch;   /* cc_conv_bytes bytes, 64-byte aligned; NULL: the call allocates them */
} CcConvCall;
/* Scratch for the packed weights of one call, or (pair) of both convolutions' share of it. */
size_t cc_conv_bytes(const CcConvShape *shape, bool pair);
bool cc_conv_can(const CcConvShape *shape);
bool cc_conv_pays(const CcConvShape *shape, bool packed); /* faster than oneDNN? packed: weights stay packed */
int64_t cc_conv_channels(int64_t out);                    /* rounded up to whole vectors */
/* any thread; -1: no memory */
CC_MUST int cc_conv_run(const CcConvShape *shape, const CcConvCall *call, CcErr *err);
/* Fuses the depthwise convolution `deep` onto `wide`, whose large result is never materialised: first->dst and
 * second->src are unused, first->scratch serves both. */
bool cc_conv_can_pair(const CcConvShape *wide, const CcConvShape *deep);
CC_MUST int cc_conv_run_pair(const CcConvShape *wide, const CcConvCall *first, const CcConvShape *deep,
                             const CcConvCall *second, CcErr *err);

/* ---- dnnl.c: oneDNN. Tensors are f32, bf16 or f16, also mixed; accumulation is in f32, rounded once into dst. If the
 * CPU has no code for a dtype, each call converts its tensors to f32 and back (kept weights: once). ---- */
enum { CC_DNNL_MAX_POST = 6, CC_DNNL_MAX_NDIM = 6, CC_DNNL_SPATIAL = 3 };
typedef enum CcPrimKind {
    CC_PRIM_MATMUL, /* dst = src @ weights + bias */
    /* src and dst [N, C, ...]; weights [O, I, ...], with groups [G, O / G, I / G, ...]; bias [O] */
    CC_PRIM_CONV,
    CC_PRIM_DECONV /* transposed convolution; weights use the same order of dims */
} CcPrimKind;
typedef enum CcPostKind {
    CC_POST_GELU_ERF,
    CC_POST_GELU_TANH,
    CC_POST_SILU,
    CC_POST_SIGMOID,
    CC_POST_TANH,
    CC_POST_RELU,  /* NaN stays NaN; cc_gemm_run only, as oneDNN's relu maps NaN to 0 */
    CC_POST_SCALE, /* multiplies by a constant */
    CC_POST_SUM,   /* adds the previous contents of dst */
    CC_POST_ADD,
    CC_POST_MUL
} CcPostKind;
/* The memory layout that the primitive uses for a tensor. If memory has another one, each call reorders the tensor into
 * or out of a buffer. */
typedef enum CcFormat {
    CC_FORMAT_GIVEN, /* the tensor's own strides */
    CC_FORMAT_LAST,  /* channels innermost */
    CC_FORMAT_ANY,   /* the primitive's preferred layout */
    /* weights: in blocks of one vector of inputs by one of outputs; falls back to ANY. src, dst: in blocks of one vector of
     * channels */
    CC_FORMAT_BLOCKED
} CcFormat;
typedef struct CcTensorDesc {
    int ndim; /* 0: absent */
    CcFormat form;
    CcDtype dtype; /* F32, BF16, F16 */
    int64_t size[CC_DNNL_MAX_NDIM], stride[CC_DNNL_MAX_NDIM];
} CcTensorDesc;
/* Descriptions are compared bytewise: unused members are 0. */
typedef struct CcPrimDesc {
    CcPrimKind kind;
    CcTensorDesc src, weights, bias, dst;
    int64_t stride[CC_DNNL_SPATIAL], dilation[CC_DNNL_SPATIAL]; /* CONV, DECONV; no dilation is 1, as in torch */
    int64_t pad_before[CC_DNNL_SPATIAL], pad_after[CC_DNNL_SPATIAL];
    int n_post;
    struct {
        CcPostKind kind;
        float scale;          /* SCALE */
        CcTensorDesc operand; /* ADD, MUL: has dst's ndim; each size is dst's or 1 */
    } post[CC_DNNL_MAX_POST];
} CcPrimDesc;
typedef struct CcPrim CcPrim;
typedef struct CcPrimCall {
    const void *src, *weights, *bias, *post[CC_DNNL_MAX_POST];
    void *dst;
    CcPacked *packed; /* NULL: each call reorders the weights if it has to */
    uint64_t version; /* of the weights */
    char *scratch;    /* cc_dnnl_bytes bytes, 64-byte aligned */
} CcPrimCall;
void cc_dnnl_library(const char *path);
/* Primitives are cached by description and never freed. Each one was checked against known results (vet.c), on this
 * machine or according to a cached verdict. A wrong one is banned: without post-ops another dtype is tried, with
 * post-ops the call fails, and the caller retries without them. NULL with *err set. */
CcPrim *cc_dnnl_get(const CcPrimDesc *desc, CcErr *err);
size_t cc_dnnl_bytes(const CcPrim *p);
CC_MUST int cc_dnnl_run(CcPrim *p, const CcPrimCall *call, CcErr *err); /* thread-safe */
/* Does this CPU have oneDNN code for products of bf16 or f16 with a post-op operand of that dtype? */
bool cc_dnnl_native(CcDtype dtype);
bool cc_dnnl_tiles(CcDtype dtype); /* ... that uses the CPU's matrix unit? */
/* 64, 32 or 16: of oneDNN's code, which the environment or CCOMPILE_CPU may restrict; 0: there is no oneDNN */
int cc_dnnl_vector_bytes(void);
/* vet.c: sets a size of dst and of the post-ops' operands. */
void cc_vet_resize(CcPrimDesc *d, int dim, int64_t size);
void cc_dnnl_forget(void); /* drops the library's resident pages */
const char *cc_dnnl_describe(void);
void cc_dnnl_identify(CcSbuf *out); /* the library's file, which this does not load */

/* ---- nvrtc.c: CUDA C to machine code; needs no GPU ---- */
typedef CcBlob CcCubin;                  /* or PTX */
void cc_nvrtc_library(const char *path); /* the one that the Python package found; NULL: none */
/* Compiler options for this architecture (90: sm_90), one a line. */
CC_MUST int cc_nvrtc_options(int arch, CcSbuf *out, CcErr *err);
/* any thread */
CC_MUST int cc_nvrtc_compile(const char *source, const char *options, CcCubin *out, CcErr *err);
const char *cc_nvrtc_describe(void); /* "NVRTC 12.9"; NULL: not installed */

/* ---- cubin.c: NVRTC behind the on-disk cache ---- */
CC_MUST int cc_cubin_get(const char *source, int arch, CcCubin *out, CcErr *err); /* any thread */

/* ---- cuda.c: the CUDA driver. Any thread; leaves the current device unchanged ---- */
typedef struct CcCudaDevice {
    int arch; /* 90: sm_90 */
    int processors;
    bool pageable; /* kernels may access pageable host memory */
} CcCudaDevice;
typedef struct CcCudaCall {
    void *function;
    const char *name; /* for errors */
    int64_t grid;
    int threads, shared; /* per block; shared memory in bytes */
    void *argument;      /* the kernel's only parameter; the driver copies it */
} CcCudaCall;
/* Opens an NVIDIA library under any of these file names. Searches CCOMPILE_CUDA_PATH, `found` (may be NULL), the
 * loader's path, then the toolkit's folders. NULL with *err set. */
void *cc_cuda_open(const char *const *names, int n, const char *found, CcErr *err);
const CcCudaDevice *cc_cuda_device(int index, CcErr *err); /* lives as long as the process; NULL with *err set */
/* Loads a program; it is never unloaded. */
void *cc_cuda_load(const CcCudaDevice *device, const CcCubin *image, CcErr *err);
void *cc_cuda_function(const CcCudaDevice *device, void *program, const char *name, CcErr *err);
/* Enqueues the kernel on the stream (NULL: the default stream) and returns. */
CC_MUST int cc_cuda_launch(const CcCudaDevice *device, const CcCudaCall *call, void *stream, CcErr *err);
CC_MUST int cc_cuda_wait(const CcCudaDevice *device, void *stream, CcErr *err);
/* For timing kernels: zeroed device memory and a non-blocking stream. NULL with *err set. */
typedef struct CcCudaBench CcCudaBench;
CcCudaBench *cc_cuda_bench(const CcCudaDevice *device, int64_t bytes, CcErr *err);
char *cc_cuda_bench_memory(const CcCudaBench *b);
/* *ms: the shortest time of one pass over all n calls */
CC_MUST int cc_cuda_bench_time(const CcCudaBench *b, const CcCudaCall *calls, int n, float *ms, CcErr *err);
void cc_cuda_bench_close(CcCudaBench *b); /* NULL is fine */

/* ---- gemm.c: y = x @ w^T + bias, then the post-ops in order. f32; columns of x, y and operands are contiguous ---- */
typedef struct CcGemmPost {
    CcPostKind kind; /* not SUM */
    float scale;
    int64_t row; /* ADD, MUL: row stride of the operand, of the product's dtype */
} CcGemmPost;
typedef struct CcGemm {
    CcDtype dtype;   /* of all operands: F32, or BF16 or F16: computed in f32, rounded once */
    int64_t m, n, k; /* x [m, k], w [n, k], y [m, n]; > 0 */
    /* strides in elements; one of w's is 1, and one of x's, but gemm takes only x_col 1 */
    int64_t x_row, x_col, y_row, w_row, w_col;
    int n_post;
    CcGemmPost post[CC_DNNL_MAX_POST];
} CcGemm;
typedef struct CcGemmCall {
    const void *x, *w, *bias, *post[CC_DNNL_MAX_POST]; /* bias may be NULL */
    void *y;
    CcPacked *packed; /* NULL: the weights are read as they lie */
    uint64_t version; /* of the weights */
    float *scratch;   /* cc_gemm_bytes bytes, 64-byte aligned */
} CcGemmCall;
bool cc_gemm_can(const CcGemm *g);
size_t cc_gemm_bytes(const CcGemm *g);
int64_t cc_gemm_padding(int64_t m); /* rows that it computes beyond the m of x, with w in place */
CC_MUST int cc_gemm_run(const CcGemm *g, const CcGemmCall *call, CcErr *err); /* any thread; -1: no memory */

/* Adds the bias to the f32 product in y, and applies the post-ops in place. */
void cc_gemm_finish(const CcGemm *g, const CcGemmCall *call);

/* ---- blas.c: the same by torch's BLAS, with plain weights ---- */
void cc_blas_use(void *sgemm, const char *torch); /* NULL: none; torch's version */
const char *cc_blas_describe(void);
bool cc_blas_can(const CcGemm *g);
void cc_blas_run(const CcGemm *g, const CcGemmCall *call); /* any thread; reads neither packed nor scratch */

/* ---- move.c: gathers, scatters and strided copies ---- */
enum { CC_MOVE_DIMS = 8 };
typedef struct CcMoveIndex {
    int64_t step[CC_MOVE_DIMS]; /* strides of the index tensor itself, in bytes */
    int64_t low, count;         /* valid indices are [low, count); negative ones count from the end */
    int64_t by;                 /* bytes that an index of 1 moves in the indexed tensor */
    bool wide;                  /* true: int64, false: int32 */
    bool mask;                  /* a bool mask: skips elements where it is false */
} CcMoveIndex;
typedef struct CcMove {
    int ndim;
    int64_t size[CC_MOVE_DIMS], dst[CC_MOVE_DIMS], src[CC_MOVE_DIMS]; /* dst, src: strides in bytes */
    int n_index;
    CcMoveIndex index[CC_MOVE_DIMS];
    bool reads; /* true: gather, indices address src; false: scatter, they address dst */
    int64_t
        packed;   /* nonzero: src holds only the masked elements, contiguous; cc_move_plan sets bytes per mask entry */
    int bytes;    /* of an element */
    CcPutHow how; /* not MEAN */
    CcDtype dtype;
    double scale; /* SUM: factor of the source elements */
    int rows;     /* set by cc_move_plan: dims from here on may run in any order */
} CcMove;
bool cc_move_can(CcPutHow how, CcDtype dt);
void cc_move_plan(CcMove *m); /* normalises the nest; call once before cc_move_run */
/* Any thread. -1: an index is out of range, and dst is partly written. */
CC_MUST int cc_move_run(const CcMove *m, char *dst, const char *src, const char *const *index);
/* Are all indices in range? The nest must have elements. */
bool cc_move_good(const CcMove *m, const char *const *index);
int64_t cc_move_count(const CcMove *m, const char *mask); /* counts the true elements of m's only index, a mask */

/* ---- mersenne.c: as cc_run_bernoulli (run.h) ---- */
int cc_mersenne_bernoulli(uint32_t *state, int left, double p, uint8_t *out, int64_t n);

#endif
