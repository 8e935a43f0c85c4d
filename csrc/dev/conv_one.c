/* conv_one: convolutions with one output channel and few input channels (conv.c's ONE), such as spatial attention maps.
 * Vector lanes are output columns; each band of rows is first copied with its padding. Batch 8, 2 channels, 64x64, 3x3:
 * 0.04 ms, oneDNN 0.42 (Zen 4, one thread). A depthwise convolution with columns innermost runs as batch * channels
 * such problems with separate weights. The copy widens bf16 and f16 to f32. */
#include <immintrin.h>
#include <math.h>

#include "dev_int.h"

enum {
    MAX_TAPS = 128, /* over all input channels */
    PANEL = 4,      /* vectors of columns */
    BAND = 16,      /* output rows in a unit of work */
    SMALL = 1 << 19 /* multiply-adds below which a second thread is not worth its barrier */
};

typedef struct Row {                 /* one row of outputs */
    const float *src, *w, *residual; /* src: the window's first row in the first channel */
    float *dst;
    int64_t in, plane, row, columns; /* plane, row: src's strides of channels and rows */
    int64_t w_in, w_tap;             /* w's strides of channels and taps */
    float scale, shift;
    const CcConvShape *shape;
} Row;

#define LANES 16
#include "conv_one.inc"

#define LANES 8
#include "conv_one.inc"

#define LANES 4
#include "conv_one.inc"

typedef struct Job {
    const CcConvShape *shape;
    const CcConvCall *call;
    const float *weights; /* f32, [each][in][tap] or [each][tap][in], dense */
    int64_t lanes;
    void (*row)(const Row *r);
    atomic_bool failed; /* out of memory */
} Job;

static int64_t lanes_of_cpu(void) { return cc_cpu_info()->vector_bytes / (int64_t)sizeof(float); }
static int64_t taps_of(const CcConvShape *shape) { return shape->kernel[0] * shape->kernel[1]; }
static int64_t weights_of(const CcConvShape *shape) { return shape->in * taps_of(shape); } /* weights of one input */
static int64_t bands_of(const CcConvShape *shape) { return (shape->out_size[0] + BAND - 1) / BAND; }

/* Copies input rows [first, first + rows) of the channel at offset `from`, widened, with zeros as padding. */
static void copy_padded(const Job *j, int64_t from, int64_t first, int64_t rows, float *to, int64_t width) {
    const CcConvShape *shape = j->shape;
    const int64_t columns = CC_MIN(shape->size[1], width - shape->pad[1]), size = cc_dtype_size(shape->dtype);
    memset(to, 0, sizeof *to * (size_t)(rows * width));
    for (int64_t r = 0; r < rows; r++)
        if (first + r >= 0 && first + r < shape->size[0])
            cc_halves_widen(shape->dtype,
                            (const char *)j->call->src + (from + (first + r) * shape->src_stride[2]) * size,
                            to + r * width + shape->pad[1], columns);
}

/* Units: bands of output rows. */
static void bands(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const CcConvShape *shape = j->shape;
    const int64_t n_bands = bands_of(shape), wide = PANEL * j->lanes;
    const int64_t reach[] = {shape->dilation[0] * (shape->kernel[0] - 1), shape->dilation[1] * (shape->kernel[1] - 1)};
    const int64_t most = (BAND - 1) * shape->stride[0] + reach[0] + 1;
    const int64_t width = (shape->out_size[1] + wide - 1) / wide * wide + CC_MAX(reach[1], shape->pad[1]);
    const bool half = shape->dtype != CC_DT_F32;
    float *at = cc_scratch_thread(sizeof *at * (size_t)(shape->in * most * width + shape->out_size[1]));
    if (!at) {
        atomic_store(&j->failed, true);
        return;
    }
    Row f = {.in = shape->in,
             .plane = most * width,
             .row = width,
             .columns = shape->out_size[1],
             .w_in = shape->w_taps_first ? 1 : taps_of(shape),
             .w_tap = shape->w_taps_first ? shape->in : 1,
             .shape = shape};
    for (int64_t u = begin; u < end; u++) {
        const int64_t n = u / n_bands, y0 = u % n_bands * BAND, y1 = CC_MIN(y0 + BAND, shape->out_size[0]);
        const int64_t first = y0 * shape->stride[0] - shape->pad[0],
                      rows = (y1 - 1 - y0) * shape->stride[0] + reach[0] + 1;
        f.w = j->weights + n % shape->each * weights_of(shape);
        f.scale = j->call->scale[n % shape->each];
        f.shift = j->call->shift[n % shape->each];
        for (int64_t c = 0; c < shape->in; c++)
            copy_padded(j, n * shape->src_stride[0] + c * shape->src_stride[1], first, rows, at + c * f.plane, width);
        for (int64_t y = y0; y < y1; y++) {
            const int64_t to = (n * shape->out_size[0] + y) * shape->out_size[1];
            f.src = at + (y - y0) * shape->stride[0] * width;
            f.dst = half ? at + shape->in * most * width : j->call->dst + to;
            f.residual = j->call->residual ? j->call->residual + to : NULL;
            j->row(&f);
            if (half) cc_halves_narrow(shape->dtype, f.dst, (uint16_t *)j->call->dst + to, shape->out_size[1]);
        }
    }
}

/* The band multiplies padding zeros, too: right only if all weights are finite (0 * inf is NaN). */
static bool finite_weights(const Job *j) {
    for (int64_t i = 0; i < j->shape->each * weights_of(j->shape); i++)
        if (!isfinite(j->weights[i])) return false;
    return true;
}

static float input_at(const Job *j, int64_t at) {
    float x;
    cc_halves_widen(j->shape->dtype, (const char *)j->call->src + at * cc_dtype_size(j->shape->dtype), &x, 1);
    return x;
}

static float output_at(const Job *j, int64_t n, int64_t y, int64_t x) {
    const CcConvShape *shape = j->shape;
    const float *w = j->weights + n % shape->each * weights_of(shape);
    float sum = 0;
    for (int64_t c = 0; c < shape->in; c++)
        for (int64_t tap = 0; tap < taps_of(shape); tap++) {
            const int64_t row = y * shape->stride[0] - shape->pad[0] + tap / shape->kernel[1] * shape->dilation[0];
            const int64_t column = x - shape->pad[1] + tap % shape->kernel[1] * shape->dilation[1];
            if (row < 0 || row >= shape->size[0] || column < 0 || column >= shape->size[1]) continue;
            sum +=
                w[shape->w_taps_first ? tap * shape->in + c : c * taps_of(shape) + tap] *
                input_at(j, n * shape->src_stride[0] + c * shape->src_stride[1] + row * shape->src_stride[2] + column);
        }
    return sum;
}

/* Scalar fallback for non-finite weights: skips padding. */
static void run_unpadded(const Job *j) {
    const CcConvShape *shape = j->shape;
    for (int64_t i = 0; i < shape->batch * shape->out_size[0] * shape->out_size[1]; i++) {
        const int64_t row = i / shape->out_size[1], n = row / shape->out_size[0];
        float y = output_at(j, n, row % shape->out_size[0], i % shape->out_size[1]);
        y = y * j->call->scale[n % shape->each] + j->call->shift[n % shape->each] +
            (j->call->residual ? j->call->residual[i] : 0);
        y = y < shape->low ? shape->low : y > shape->high ? shape->high : y;
        cc_halves_narrow(shape->dtype, &y, (char *)j->call->dst + i * cc_dtype_size(shape->dtype), 1);
    }
}

bool cc_conv_one_can(const CcConvShape *shape) {
    return shape->out == 1 && shape->in * taps_of(shape) <= MAX_TAPS && shape->src_stride[3] == 1 &&
           shape->stride[1] == 1 && shape->out_size[1] >= lanes_of_cpu();
}

static int run_all(Job *j) {
    const CcConvShape *shape = j->shape;
    const int64_t work = shape->batch * shape->out_size[0] * shape->out_size[1] * weights_of(shape);
    if (finite_weights(j)) cc_omp_run(bands, j, shape->batch * bands_of(shape), work <= SMALL ? 1 : cc_omp_width());
    else run_unpadded(j);
    return atomic_load(&j->failed) ? -1 : 0;
}

int cc_conv_one_run(const CcConvShape *shape, const CcConvCall *call) {
    Job j = {
        .shape = shape, .call = call, .weights = call->weights, .lanes = lanes_of_cpu(), .row = CC_CPU_WIDEST(row)};
    const int64_t size = cc_dtype_size(shape->dtype), numbers = weights_of(shape);
    if (shape->dtype == CC_DT_F32 && (shape->each == 1 || shape->w_out == numbers)) return run_all(&j);
    CcScratch *room = cc_scratch_take(sizeof(float) * (size_t)(shape->each * numbers));
    if (!room) return -1;
    for (int64_t i = 0; i < shape->each; i++)
        cc_halves_widen(shape->dtype, (const char *)call->weights + i * shape->w_out * size,
                        (float *)room->at + i * numbers, numbers);
    j.weights = (float *)room->at;
    const int status = run_all(&j);
    cc_scratch_give(room);
    return status;
}
