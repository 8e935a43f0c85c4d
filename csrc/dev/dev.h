/* dev: what touches the machine. Shared libraries, CPU features, LLVM, oneDNN, the OpenMP pool.
 * Everything is loaded when first used, and what is missing or fails is an error value: the caller
 * falls back. */
#ifndef CC_DEV_H
#define CC_DEV_H

#include "../ir/ir.h"

/* ---- dl.c: the only user of dlopen ---- */
void *cc_dl_open(const char *path, bool global, CcErr *err); /* NULL with *err set */
/* handle of a loaded library whose file name contains `part`, promoted to global; NULL: none */
void *cc_dl_loaded(const char *part);
/* The library of this name in the folder of the one that holds `inside`; NULL: there is none. */
void *cc_dl_beside(const void *inside, const char *name);
void *cc_dl_symbol(void *handle, const char *name); /* handle NULL: anywhere in the process */
typedef struct CcDlRow {                            /* one function to find */
    const char *name;
    void **slot;
} CcDlRow;
CC_MUST int cc_dl_bind(void *handle, const CcDlRow *rows, int n, CcErr *err); /* -1: one is missing */

/* Gives back the pages of the library that has this function, as far as they are only read: who needs them next finds
 * them in the page cache. At any time, on any thread. */
void cc_dl_forget(void (*inside)(void));

/* ---- cpu.c ---- */
typedef struct CcCpu {
    const char *name; /* "avx512", "avx2", "base" */
    int vector_bytes; /* 64, 32, 16 */
    bool f16;         /* float16 conversions */
    bool narrowed;    /* by CCOMPILE_CPU */
    /* torch's oneDNN, which CCOMPILE_CPU does not narrow, has its code for AVX-512 */
    bool wide_torch;
} CcCpu;
const CcCpu *cc_cpu_info(void); /* CCOMPILE_CPU=avx2 or base narrows it, read once */
/* What is compiled once for each width of vectors (dev/lanes.inc), by the widest this machine has: name_avx512,
 * name_avx2 or name_base. */
#define CC_CPU_WIDEST(name)                                                                                            \
    (cc_cpu_info()->vector_bytes == 64 ? name##_avx512 : cc_cpu_info()->vector_bytes == 32 ? name##_avx2 : name##_base)
void cc_cpu_describe(CcSbuf *out);              /* for keys of what is compiled for it */
void *cc_cpu_vector_function(const char *name); /* in libmvec.so.1; NULL: none */
bool cc_cpu_has_vector_function(const char *name);

/* ---- disk.c: machine code kept from process to process; any thread ---- */
typedef struct CcBlob { /* the reader's to free */
    char *at;
    size_t n;
} CcBlob;
typedef enum CcDiskKind { CC_DISK_KERNEL, CC_DISK_CUBIN, CC_DISK_TUNING, CC_DISK_VERDICT } CcDiskKind;
bool cc_disk_get(CcDiskKind kind, const char *key, size_t n, CcBlob *out); /* false: it is not there */
void cc_disk_put(CcDiskKind kind, const char *key, size_t n, const CcBlob *blob);
/* ---- object.c: a relocatable object into memory, for good; -> the function. NULL: not this one ---- */
void *cc_object_load(const CcBlob *blob, const char *name);

/* ---- jit.c: machine code of LLVM's, which a process of its own makes (compiler.c) ---- */
/* Path of libllvmlite.so, NULL: not installed; of the compiler's program, NULL: LLVM is loaded into this process. */
void cc_jit_library(const char *path, const char *compiler);
/* Address of the function, compiled or from disk; never freed. */
void *cc_jit_compile(const char *ir, const char *name, CcErr *err);
void cc_jit_forget(void);          /* LLVM's pages in this process, until it is needed again */
const char *cc_jit_describe(void); /* "LLVM 20.1.8"; NULL when there is none */

/* ---- omp.c: torch's OpenMP pool ---- */
void cc_omp_threads(int n);
int cc_omp_width(void); /* threads a kernel may use; 1 without an OpenMP library */
/* Threads that libraries may use in what this thread calls next; what was set before. */
int cc_omp_limit(int n);
/* Calls work(ctx, begin, end) over a partition of [0, n) into at most `parts` ranges, on the pool.
 */
void cc_omp_run(void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx, int64_t n, int parts);
const char *cc_omp_describe(void);

/* ---- settle.c: the memory of compilers; any thread ---- */
void cc_settle_begin(void);   /* code is about to be made */
bool cc_settle_pending(void); /* was some made since the last run? */
void cc_settle_end(void);     /* before a run */

/* ---- scratch.c ---- */
typedef struct CcScratch {
    size_t bytes;
    _Alignas(64) char at[];
} CcScratch;
/* At least so many bytes, contents undefined; NULL: out of memory. */
CcScratch *cc_scratch_take(size_t bytes);
void cc_scratch_give(CcScratch *block); /* NULL is fine */
void cc_scratch_trim(void);             /* gives back what waits for the next call */
/* Memory of the calling thread, at a multiple of 64, until it calls this again; NULL: out of memory. */
void *cc_scratch_thread(size_t bytes);
void cc_scratch_thread_trim(void); /* large ones are given back */

/* ---- content.c ---- */
/* A fingerprint of these bytes; reads as little of them as it can. Any thread. */
uint64_t cc_content_of(const void *at, size_t bytes);
bool cc_content_told(void); /* it reads again only what was written */
/* Bytes that are read in 2 us: nothing beside what a product of them takes. */
#define CC_CONTENT_CHEAP (1 << 16)

/* ---- packed.c ---- */
/* Weights in the form that a primitive wants, kept from call to call for as long as they stand at one place and have one
 * version. Any thread may use it, also at the same time. Copies of one form are shared by all who keep one (a
 * layer that is called twice, the plans of other sizes), where the version is unique (CC_VERSION_UNIQUE). */
typedef struct CcPacked CcPacked;
CcPacked *cc_packed_new(void);
void cc_packed_free(CcPacked *packed);
void cc_packed_drop(CcPacked *packed); /* what is kept now (NULL: nothing) */

/* ---- halves.c: n elements side by side of dtype F32, BF16 or F16, as f32 and back ---- */
void cc_halves_widen(CcDtype dtype, const void *from, float *to, int64_t n);
void cc_halves_narrow(CcDtype dtype, const float *from, void *to, int64_t n);
/* `step` apart in `from` */
void cc_halves_gather(CcDtype dtype, const void *from, int64_t step, float *to, int64_t n);

/* ---- flash.c: softmax(q @ k^T * scale, masked) @ v, fused; in f32, and rounded once ---- */
enum { CC_FLASH_MAX_LEAD = 8, CC_FLASH_MAX_DEPTH = 512 };
typedef enum CcFlashMask {
    CC_FLASH_NO_MASK,
    CC_FLASH_ADD,  /* floats: added to the scaled scores */
    CC_FLASH_KEEP, /* bools: -inf is added where false */
    CC_FLASH_FILL  /* bools: the scaled score becomes `fill` where true */
} CcFlashMask;
typedef struct CcStrided { /* in elements; 0 where it is broadcast */
    int64_t lead[CC_FLASH_MAX_LEAD], row, col;
    CcDtype dtype; /* F32, BF16, F16; of a mask also BOOL */
} CcStrided;
typedef struct CcFlash {
    int n_lead;
    int64_t lead[CC_FLASH_MAX_LEAD]; /* batches, heads */
    /* q [rows, depth], k [keys, depth], v [keys, width], mask [rows, keys]; > 0 */
    int64_t rows, keys, depth, width;
    CcStrided q, k, v, mask, out; /* out.col is 1 */
    CcFlashMask mask_kind;
    bool causal; /* row i sees keys 0..i */
    float scale, fill;
    float masked_row; /* 0 or NaN: what a row gives whose scores are all -inf */
} CcFlash;
typedef struct CcFlashCall {
    const void *q, *k, *v, *mask;
    void *out;
} CcFlashCall;
/* any thread; -1: no memory */
CC_MUST int cc_flash_run(const CcFlash *flash, const CcFlashCall *call, CcErr *err);

/* ---- gemv.c: weights times one vector ---- */
typedef struct CcGemv {
    int64_t n, k;     /* outputs; elements of x, which lie side by side, as do y's and the bias' */
    int64_t row, col; /* strides of the weights [n, k]; one of them is 1, col where they are BF16 or F16 */
    CcDtype dtype;    /* of weights, x, y and bias */
} CcGemv;
bool cc_gemv_can(const CcGemv *g);
/* bias may be NULL; -1: no memory */
CC_MUST int cc_gemv_run(const CcGemv *g, const void *w, const void *x, const void *bias, void *y);

/* ---- recur.c: one recurrent layer in one direction, over all its steps; f32 ---- */
typedef enum CcCell { CC_CELL_LSTM, CC_CELL_GRU, CC_CELL_TANH, CC_CELL_RELU } CcCell;
/* Distances in elements from step to step and from row to row of the batch; columns lie side by side. All sizes > 0. */
typedef struct CcRecur {
    CcCell cell;
    bool backward; /* from the last step to the first */
    int64_t steps, batch, in, hidden;
    int64_t x_step, x_row, y_step, y_row, h_row, c_row;
    /* weights [gates * hidden][in], [gates * hidden][hidden]; gates in torch's order */
    int64_t wi_row, wh_row;
} CcRecur;
typedef struct CcRecurCall {
    const float *x, *h, *c;          /* c: LSTM only, as last_c */
    const float *wi, *wh, *bi, *bh;  /* biases: both or none */
    CcPacked *packed_wi, *packed_wh; /* NULL: packed in each call */
    uint64_t version_wi, version_wh;
    float *y, *last_h, *last_c; /* last: contiguous, NULL where it is not wanted */
    void *scratch;              /* cc_recur_bytes of them, at a multiple of 64 */
} CcRecurCall;
int cc_recur_gates(CcCell cell);
size_t cc_recur_bytes(const CcRecur *r);
/* any thread; -1: no memory */
CC_MUST int cc_recur_run(const CcRecur *r, const CcRecurCall *call, CcErr *err);

/* ---- image.c: convolutions of images, channels innermost; f32 ---- */
typedef enum CcImageWay { CC_IMAGE_DIRECT, CC_IMAGE_DEPTH, CC_IMAGE_WINO, CC_IMAGE_FEW } CcImageWay;
/* [2]: rows, columns. Strides in elements, of [n, channel, row, column]; dst and `more` are dense, channels innermost,
 * or with channels_first (WINO only) columns, and there is no `more`. Weights of one output lie dense, [in][tap], or
 * [tap][in] where taps come first. DEPTH: in == 1. FEW: out == 1, and columns of src are innermost, as they are in dst; a
 * depthwise convolution is one of batch * channels images with weights of their own. */
typedef struct CcImage {
    CcImageWay way;
    int64_t batch, in, out;
    int64_t size[2], out_size[2], kernel[2], step[2], dilation[2], before[2];
    int64_t src_stride[4], w_out;
    bool w_taps_first, channels_first;
    int64_t each;    /* FEW: image n has weights, scale and shift number n % each */
    CcDtype dtype;   /* of src, weights and dst; FEW only: other than F32 */
    int tile;        /* WINO: outputs in a row of a tile, 2 or 4 */
    float low, high; /* bounds of the result; NaN stays */
} CcImage;
/* dst = bounded(conv(src) * scale + shift + more). Both vectors have cc_image_channels elements. */
typedef struct CcImageCall {
    const float *src, *weights, *scale, *shift,
        *more; /* more: NULL, or as dst. src, weights, dst: of the image's dtype */
    float *dst;
    CcPacked *packed; /* NULL: weights are packed in each call */
    uint64_t version; /* of the weights */
    float *scratch;   /* cc_image_bytes of them, at a multiple of 64; NULL: it finds memory itself */
} CcImageCall;
/* For the packed weights of a call; pair: of two convolutions. */
size_t cc_image_bytes(const CcImage *im, bool pair);
bool cc_image_can(const CcImage *im);
bool cc_image_pays(const CcImage *im, bool packed); /* is it faster than oneDNN's? packed: weights are kept */
int64_t cc_image_channels(int64_t out);             /* rounded up */
/* any thread; -1: no memory */
CC_MUST int cc_image_run(const CcImage *im, const CcImageCall *call, CcErr *err);
/* `deep` of what `wide` makes, which is large and exists nowhere as a whole: first->dst and second->src are not used,
 * first->scratch is for both. */
bool cc_image_can_pair(const CcImage *wide, const CcImage *deep);
CC_MUST int cc_image_run_pair(const CcImage *wide, const CcImageCall *first, const CcImage *deep,
                              const CcImageCall *second, CcErr *err);

/* ---- dnnl.c: oneDNN. Tensors are f32, bf16 or f16, also mixed; sums are made in f32 and rounded once, into dst. What
 * the CPU has no code for in its own dtype is converted to f32 and back by each call (weights that are kept: once).
 * ---- */
enum { CC_DNNL_MAX_POST = 6, CC_DNNL_MAX_NDIM = 6, CC_DNNL_SPATIAL = 3 };
typedef enum CcPrimKind {
    CC_PRIM_MATMUL, /* dst = src @ weights + bias */
    /* src and dst [N, C, ...]; weights [O, I, ...], with groups [G, O / G, I / G, ...]; bias [O] */
    CC_PRIM_CONV,
    CC_PRIM_DECONV /* transposed; weights described in the same order of dims */
} CcPrimKind;
typedef enum CcPostKind {
    CC_POST_GELU_ERF,
    CC_POST_GELU_TANH,
    CC_POST_SILU,
    CC_POST_SIGMOID,
    CC_POST_TANH,
    CC_POST_RELU,  /* NaN stays; only cc_gemm_run's: oneDNN's gives 0 */
    CC_POST_SCALE, /* times a number */
    CC_POST_SUM,   /* plus what dst held before */
    CC_POST_ADD,
    CC_POST_MUL
} CcPostKind;
/* How the library is to see a tensor. Where that is not how it lies in memory, each call copies it
 * into a buffer of that form, or out of it. */
typedef enum CcForm {
    CC_FORM_GIVEN,  /* by its strides */
    CC_FORM_LAST,   /* channels innermost */
    CC_FORM_ANY,    /* as the primitive likes best (weights) */
    CC_FORM_BLOCKED /* weights in blocks of a vector's width of inputs and outputs, where it can */
} CcForm;
typedef struct CcTensorDesc {
    int ndim; /* 0: there is none */
    CcForm form;
    CcDtype dtype; /* F32, BF16, F16 */
    int64_t size[CC_DNNL_MAX_NDIM], stride[CC_DNNL_MAX_NDIM];
} CcTensorDesc;
/* Descriptions are compared as bytes: what is not used is 0. */
typedef struct CcPrimDesc {
    CcPrimKind kind;
    CcTensorDesc src, weights, bias, dst;
    int64_t step[CC_DNNL_SPATIAL], dilation[CC_DNNL_SPATIAL]; /* CONV, DECONV; dilation as torch counts it */
    int64_t before[CC_DNNL_SPATIAL], after[CC_DNNL_SPATIAL];  /* padding */
    int n_post;
    struct {
        CcPostKind kind;
        float scale;          /* SCALE */
        CcTensorDesc operand; /* ADD, MUL: with dst's ndim; its sizes are dst's or 1 */
    } post[CC_DNNL_MAX_POST];
} CcPrimDesc;
typedef struct CcPrim CcPrim;
typedef struct CcPrimCall {
    const void *src, *weights, *bias, *post[CC_DNNL_MAX_POST];
    void *dst;
    CcPacked *packed; /* NULL: weights are converted in each call that has to */
    uint64_t version; /* of the weights */
    char *scratch;    /* cc_dnnl_bytes of them, at a multiple of 64 */
} CcPrimCall;
void cc_dnnl_library(const char *path);
/* Primitives are cached by description and never freed: equal descriptions give the same one. Each has been run on
 * numbers whose result is known (vet.c), on this machine or with this folder of verdicts; one that was wrong is not
 * used: another dtype is tried where it has no post-ops, so who has some asks again without. NULL with *err set. */
CcPrim *cc_dnnl_get(const CcPrimDesc *desc, CcErr *err);
size_t cc_dnnl_bytes(const CcPrim *p);
CC_MUST int cc_dnnl_run(CcPrim *p, const CcPrimCall *call, CcErr *err); /* any thread, also at the same time */
/* has this CPU code for products of bf16 or f16, and for operands of it? */
bool cc_dnnl_native(CcDtype dtype);
void cc_dnnl_forget(void); /* the library's pages, until they are needed again */
const char *cc_dnnl_describe(void);

/* ---- nvrtc.c: CUDA C to machine code; needs no GPU ---- */
typedef CcBlob CcCubin;                  /* or PTX */
void cc_nvrtc_library(const char *path); /* that the package found; NULL: none */
/* What a program for devices of this architecture (90: sm_90) is compiled with, a line each. */
CC_MUST int cc_nvrtc_options(int arch, CcSbuf *out, CcErr *err);
/* any thread */
CC_MUST int cc_nvrtc_compile(const char *source, const char *options, CcCubin *out, CcErr *err);
const char *cc_nvrtc_describe(void); /* "NVRTC 12.9"; NULL when there is none */

/* ---- cubin.c: the same, kept on disk ---- */
CC_MUST int cc_cubin_get(const char *source, int arch, CcCubin *out, CcErr *err); /* any thread */

/* ---- cuda.c: the driver. Any thread; the current device stays what it is ---- */
typedef struct CcCudaDevice {
    int arch; /* 90: sm_90 */
    int processors;
    bool pageable; /* kernels may touch memory of the CPU */
} CcCudaDevice;
typedef struct CcCudaCall {
    void *function;
    const char *name; /* for errors */
    int64_t grid;
    int threads, shared; /* a block's; bytes */
    void *argument;      /* copied */
} CcCudaCall;
/* A library of NVIDIA's, by any of these file names: from CCOMPILE_CUDA_PATH, at `found` (may be NULL), from where the
 * loader looks, from a toolkit. NULL with *err set. */
void *cc_cuda_open(const char *const *names, int n, const char *found, CcErr *err);
const CcCudaDevice *cc_cuda_device(int index, CcErr *err); /* lives on; NULL with *err set */
/* a program, never unloaded */
void *cc_cuda_load(const CcCudaDevice *device, const CcCubin *image, CcErr *err);
void *cc_cuda_function(const CcCudaDevice *device, void *program, const char *name, CcErr *err);
/* After what was given to the stream before; returns at once. stream NULL: the default one. */
CC_MUST int cc_cuda_launch(const CcCudaDevice *device, const CcCudaCall *call, void *stream, CcErr *err);
CC_MUST int cc_cuda_wait(const CcCudaDevice *device, void *stream, CcErr *err);
/* To measure: memory, all of it 0, and a stream that waits for no other. NULL with *err set. */
typedef struct CcCudaBench CcCudaBench;
CcCudaBench *cc_cuda_bench(const CcCudaDevice *device, int64_t bytes, CcErr *err);
char *cc_cuda_bench_memory(const CcCudaBench *b);
/* of all, at best */
CC_MUST int cc_cuda_bench_time(const CcCudaBench *b, const CcCudaCall *calls, int n, float *ms, CcErr *err);
void cc_cuda_bench_close(CcCudaBench *b); /* NULL is fine */

/* ---- gemm.c: y = x @ w^T + bias, then post-ops in turn. All f32; columns of x, y and operands lie side by side
 * ---- */
typedef struct CcGemmPost {
    CcPostKind kind; /* not SUM */
    float scale;
    int64_t row; /* ADD, MUL: of the operand */
} CcGemmPost;
typedef struct CcGemm {
    int64_t m, n, k;                    /* x [m, k], w [n, k], y [m, n]; > 0 */
    int64_t x_row, y_row, w_row, w_col; /* one of w's is 1 */
    int n_post;
    CcGemmPost post[CC_DNNL_MAX_POST];
} CcGemm;
typedef struct CcGemmCall {
    const float *x, *w, *bias, *post[CC_DNNL_MAX_POST]; /* bias may be NULL */
    float *y;
    CcPacked *packed; /* NULL: the weights are read as they lie, where w_col is 1, else packed in each call */
    uint64_t version; /* of the weights */
    float *scratch;   /* cc_gemm_bytes of them, at a multiple of 64 */
} CcGemmCall;
size_t cc_gemm_bytes(const CcGemm *g);
int cc_gemm_lanes(void); /* plain: rows of x are taken in so many at a time */
CC_MUST int cc_gemm_run(const CcGemm *g, const CcGemmCall *call, CcErr *err); /* any thread; -1: no memory */

/* ---- move.c: elements from one place to another, by indices ---- */
enum { CC_MOVE_DIMS = 8 };
typedef enum CcMoveHow {
    CC_MOVE_SET,
    CC_MOVE_SUM,
    CC_MOVE_SCALED,
    CC_MOVE_PROD,
    CC_MOVE_MAX,
    CC_MOVE_MIN,
    CC_MOVE_HOWS
} CcMoveHow;
typedef enum CcMoveType { CC_MOVE_F32, CC_MOVE_F64, CC_MOVE_I32, CC_MOVE_I64, CC_MOVE_OTHER } CcMoveType;
typedef struct CcMoveIndex {
    int64_t step[CC_MOVE_DIMS]; /* bytes of its own */
    int64_t low, count;         /* indices have to lie in [low, count); a negative one counts from the end */
    int64_t by;                 /* bytes from index to index */
    bool wide;                  /* int64, else int32 */
    bool mask;                  /* bools: elements where it is false stay away */
} CcMoveIndex;
typedef struct CcMove {
    int ndim;
    int64_t size[CC_MOVE_DIMS], dst[CC_MOVE_DIMS], src[CC_MOVE_DIMS]; /* steps in bytes */
    int n_index;
    CcMoveIndex index[CC_MOVE_DIMS];
    bool reads;     /* indices say where elements come from, else where they go */
    int64_t packed; /* not 0: what a mask takes lies side by side in src; after cc_move_plan: bytes of each */
    int bytes;      /* of an element */
    CcMoveHow how;
    CcMoveType type;
    double scale; /* SCALED: of what comes */
    int rows;     /* cc_move_plan: dims from here on may be gone through in any order */
} CcMove;
bool cc_move_can(CcMoveHow how, CcMoveType type);
void cc_move_plan(CcMove *m); /* before its first run */
/* On any thread. -1: an index is out of range; then only a part of dst is what it has to be. */
CC_MUST int cc_move_run(const CcMove *m, char *dst, const char *src, const char *const *index);
/* are all indices in range? Of a nest that has elements. */
bool cc_move_good(const CcMove *m, const char *const *index);
int64_t cc_move_count(const CcMove *m, const char *mask); /* true elements of a mask that is its only index */

#endif
