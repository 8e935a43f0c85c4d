/* few: convolutions with one output of few inputs, as in maps of attention over places, by own code (image.c's FEW):
 * lanes are columns, a band of rows is copied with its padding first. Batch 8, 2 channels, 64x64, 3x3: 0.04 ms, oneDNN
 * 0.42 (Zen 4, one thread). Depthwise ones whose columns are innermost are many of these, with weights of their own; half
 * precision is widened as it is copied. */
#include <immintrin.h>
#include <math.h>

#include "dev_int.h"

enum {
    MAX_TAPS = 128, /* of all inputs */
    PANEL = 4,      /* vectors of columns */
    BAND = 16,      /* rows that are one unit */
    SMALL = 1 << 19 /* multiplications that a second thread is not worth its barrier for */
};

typedef struct Row {             /* of outputs */
    const float *src, *w, *more; /* the window's first row, of the first channel */
    float *dst;
    int64_t in, plane, row, columns; /* src: strides of channels and rows */
    int64_t w_in, w_tap;             /* strides of w */
    float scale, shift;
    const CcImage *im;
} Row;

#define LANES 16
#include "few.inc"

#define LANES 8
#include "few.inc"

#define LANES 4
#include "few.inc"

typedef struct Job {
    const CcImage *im;
    const CcImageCall *call;
    const float *weights; /* of all images, side by side */
    int64_t lanes;
    void (*row)(const Row *r);
    atomic_bool failed; /* no memory */
} Job;

static int64_t lanes_of_cpu(void) { return cc_cpu_info()->vector_bytes / (int64_t)sizeof(float); }
static int64_t taps_of(const CcImage *im) { return im->kernel[0] * im->kernel[1]; }
static int64_t numbers_of(const CcImage *im) { return im->in * taps_of(im); } /* of an image's weights */
static int64_t bands_of(const CcImage *im) { return (im->out_size[0] + BAND - 1) / BAND; }

/* Rows of the window that rows of outputs see: of the channel that begins at `from`, with zeros around what exists. */
static void copy_padded(const Job *j, int64_t from, int64_t first, int64_t rows, float *to, int64_t width) {
    const CcImage *im = j->im;
    const int64_t columns = CC_MIN(im->size[1], width - im->before[1]), size = cc_dtype_info(im->dtype)->size;
    memset(to, 0, sizeof *to * (size_t)(rows * width));
    for (int64_t r = 0; r < rows; r++)
        if (first + r >= 0 && first + r < im->size[0])
            cc_halves_widen(im->dtype, (const char *)j->call->src + (from + (first + r) * im->src_stride[2]) * size,
                            to + r * width + im->before[1], columns);
}

/* Units: bands of outputs' rows. */
static void bands(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const CcImage *im = j->im;
    const int64_t n_bands = bands_of(im), wide = PANEL * j->lanes;
    const int64_t reach[] = {im->dilation[0] * (im->kernel[0] - 1), im->dilation[1] * (im->kernel[1] - 1)};
    const int64_t most = (BAND - 1) * im->step[0] + reach[0] + 1;
    const int64_t width = (im->out_size[1] + wide - 1) / wide * wide + CC_MAX(reach[1], im->before[1]);
    const bool half = im->dtype != CC_DT_F32;
    float *at = cc_scratch_thread(sizeof *at * (size_t)(im->in * most * width + im->out_size[1]));
    if (!at) {
        atomic_store(&j->failed, true);
        return;
    }
    Row f = {.in = im->in,
             .plane = most * width,
             .row = width,
             .columns = im->out_size[1],
             .w_in = im->w_taps_first ? 1 : taps_of(im),
             .w_tap = im->w_taps_first ? im->in : 1,
             .im = im};
    for (int64_t u = begin; u < end; u++) {
        const int64_t n = u / n_bands, y0 = u % n_bands * BAND, y1 = CC_MIN(y0 + BAND, im->out_size[0]);
        const int64_t first = y0 * im->step[0] - im->before[0], rows = (y1 - 1 - y0) * im->step[0] + reach[0] + 1;
        f.w = j->weights + n % im->each * numbers_of(im);
        f.scale = j->call->scale[n % im->each];
        f.shift = j->call->shift[n % im->each];
        for (int64_t c = 0; c < im->in; c++)
            copy_padded(j, n * im->src_stride[0] + c * im->src_stride[1], first, rows, at + c * f.plane, width);
        for (int64_t y = y0; y < y1; y++) {
            const int64_t to = (n * im->out_size[0] + y) * im->out_size[1];
            f.src = at + (y - y0) * im->step[0] * width;
            f.dst = half ? at + im->in * most * width : j->call->dst + to;
            f.more = j->call->more ? j->call->more + to : NULL;
            j->row(&f);
            if (half) cc_halves_narrow(im->dtype, f.dst, (uint16_t *)j->call->dst + to, im->out_size[1]);
        }
    }
}

/* Zeros around an image are multiplied too, which no weight may notice. */
static bool finite_weights(const Job *j) {
    for (int64_t i = 0; i < j->im->each * numbers_of(j->im); i++)
        if (!isfinite(j->weights[i])) return false;
    return true;
}

static float number_at(const Job *j, int64_t at) {
    float x;
    cc_halves_widen(j->im->dtype, (const char *)j->call->src + at * cc_dtype_info(j->im->dtype)->size, &x, 1);
    return x;
}

static float one_at(const Job *j, int64_t n, int64_t y, int64_t x) {
    const CcImage *im = j->im;
    const float *w = j->weights + n % im->each * numbers_of(im);
    float sum = 0;
    for (int64_t c = 0; c < im->in; c++)
        for (int64_t tap = 0; tap < taps_of(im); tap++) {
            const int64_t row = y * im->step[0] - im->before[0] + tap / im->kernel[1] * im->dilation[0];
            const int64_t column = x - im->before[1] + tap % im->kernel[1] * im->dilation[1];
            if (row < 0 || row >= im->size[0] || column < 0 || column >= im->size[1]) continue;
            sum += w[im->w_taps_first ? tap * im->in + c : c * taps_of(im) + tap] *
                   number_at(j, n * im->src_stride[0] + c * im->src_stride[1] + row * im->src_stride[2] + column);
        }
    return sum;
}

static void run_carefully(const Job *j) {
    const CcImage *im = j->im;
    for (int64_t i = 0; i < im->batch * im->out_size[0] * im->out_size[1]; i++) {
        const int64_t row = i / im->out_size[1], n = row / im->out_size[0];
        float y = one_at(j, n, row % im->out_size[0], i % im->out_size[1]);
        y = y * j->call->scale[n % im->each] + j->call->shift[n % im->each] + (j->call->more ? j->call->more[i] : 0);
        y = y < im->low ? im->low : y > im->high ? im->high : y;
        cc_halves_narrow(im->dtype, &y, (char *)j->call->dst + i * cc_dtype_info(im->dtype)->size, 1);
    }
}

bool cc_few_can(const CcImage *im) {
    return im->out == 1 && im->in * taps_of(im) <= MAX_TAPS && im->src_stride[3] == 1 && im->step[1] == 1 &&
           im->out_size[1] >= lanes_of_cpu();
}

static int run_all(Job *j) {
    const CcImage *im = j->im;
    const int64_t work = im->batch * im->out_size[0] * im->out_size[1] * numbers_of(im);
    if (finite_weights(j)) cc_omp_run(bands, j, im->batch * bands_of(im), work <= SMALL ? 1 : cc_omp_width());
    else run_carefully(j);
    return atomic_load(&j->failed) ? -1 : 0;
}

int cc_few_run(const CcImage *im, const CcImageCall *call) {
    Job j = {.im = im, .call = call, .weights = call->weights, .lanes = lanes_of_cpu(), .row = CC_CPU_WIDEST(row)};
    const int64_t size = cc_dtype_info(im->dtype)->size, numbers = numbers_of(im);
    if (im->dtype == CC_DT_F32 && (im->each == 1 || im->w_out == numbers)) return run_all(&j);
    CcScratch *room = cc_scratch_take(sizeof(float) * (size_t)(im->each * numbers));
    if (!room) return -1;
    for (int64_t i = 0; i < im->each; i++)
        cc_halves_widen(im->dtype, (const char *)call->weights + i * im->w_out * size, (float *)room->at + i * numbers,
                        numbers);
    j.weights = (float *)room->at;
    const int status = run_all(&j);
    cc_scratch_give(room);
    return status;
}
