/* few: convolutions with one output of few inputs, as in maps of attention over places, by own code (image.c's FEW):
 * lanes are columns, a band of rows is copied with its padding first. Batch 8, 2 channels, 64x64, 3x3: 0.04 ms, oneDNN
 * 0.42 (Zen 4, one thread). */
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
    const CcImage *im;
    const CcImageCall *call;
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
    int64_t lanes;
    void (*row)(const Row *r);
    atomic_bool failed; /* no memory */
} Job;

static int64_t lanes_of_cpu(void) { return cc_cpu_info()->vector_bytes / (int64_t)sizeof(float); }
static int64_t taps_of(const CcImage *im) { return im->kernel[0] * im->kernel[1]; }
static int64_t bands_of(const CcImage *im) { return (im->out_size[0] + BAND - 1) / BAND; }

/* Rows of the window that rows of outputs see: of a channel, with zeros around what exists. */
static void copy_padded(const Job *j, const float *from, int64_t first, int64_t rows, float *to, int64_t width) {
    const CcImage *im = j->im;
    const int64_t columns = CC_MIN(im->size[1], width - im->before[1]);
    memset(to, 0, sizeof *to * (size_t)(rows * width));
    for (int64_t r = 0; r < rows; r++)
        if (first + r >= 0 && first + r < im->size[0])
            memcpy(to + r * width + im->before[1], from + (first + r) * im->src_stride[2],
                   sizeof *to * (size_t)columns);
}

/* Units: bands of outputs' rows. */
static void bands(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const CcImage *im = j->im;
    const int64_t n_bands = bands_of(im), wide = PANEL * j->lanes;
    const int64_t reach[] = {im->dilation[0] * (im->kernel[0] - 1), im->dilation[1] * (im->kernel[1] - 1)};
    const int64_t most = (BAND - 1) * im->step[0] + reach[0] + 1;
    const int64_t width = (im->out_size[1] + wide - 1) / wide * wide + CC_MAX(reach[1], im->before[1]);
    float *at = cc_scratch_thread(sizeof *at * (size_t)(im->in * most * width));
    if (!at) {
        atomic_store(&j->failed, true);
        return;
    }
    Row f = {.w = j->call->weights,
             .call = j->call,
             .in = im->in,
             .plane = most * width,
             .row = width,
             .columns = im->out_size[1],
             .w_in = im->w_taps_first ? 1 : taps_of(im),
             .w_tap = im->w_taps_first ? im->in : 1,
             .im = im};
    for (int64_t u = begin; u < end; u++) {
        const int64_t n = u / n_bands, y0 = u % n_bands * BAND, y1 = CC_MIN(y0 + BAND, im->out_size[0]);
        const int64_t first = y0 * im->step[0] - im->before[0], rows = (y1 - 1 - y0) * im->step[0] + reach[0] + 1;
        for (int64_t c = 0; c < im->in; c++)
            copy_padded(j, j->call->src + n * im->src_stride[0] + c * im->src_stride[1], first, rows, at + c * f.plane,
                        width);
        for (int64_t y = y0; y < y1; y++) {
            const int64_t to = (n * im->out_size[0] + y) * im->out_size[1];
            f.src = at + (y - y0) * im->step[0] * width;
            f.dst = j->call->dst + to;
            f.more = j->call->more ? j->call->more + to : NULL;
            j->row(&f);
        }
    }
}

/* Zeros around an image are multiplied too, which no weight may notice. */
static bool finite_weights(const CcImage *im, const CcImageCall *call) {
    for (int64_t i = 0; i < im->in * taps_of(im); i++)
        if (!isfinite(call->weights[i])) return false;
    return true;
}

static float one_at(const CcImage *im, const CcImageCall *call, int64_t n, int64_t y, int64_t x) {
    float sum = 0;
    for (int64_t c = 0; c < im->in; c++)
        for (int64_t tap = 0; tap < taps_of(im); tap++) {
            const int64_t row = y * im->step[0] - im->before[0] + tap / im->kernel[1] * im->dilation[0];
            const int64_t column = x - im->before[1] + tap % im->kernel[1] * im->dilation[1];
            if (row < 0 || row >= im->size[0] || column < 0 || column >= im->size[1]) continue;
            sum += call->weights[im->w_taps_first ? tap * im->in + c : c * taps_of(im) + tap] *
                   call->src[n * im->src_stride[0] + c * im->src_stride[1] + row * im->src_stride[2] + column];
        }
    return sum;
}

static void run_carefully(const CcImage *im, const CcImageCall *call) {
    for (int64_t i = 0; i < im->batch * im->out_size[0] * im->out_size[1]; i++) {
        const int64_t row = i / im->out_size[1];
        float y = one_at(im, call, row / im->out_size[0], row % im->out_size[0], i % im->out_size[1]);
        y = y * call->scale[0] + call->shift[0] + (call->more ? call->more[i] : 0);
        call->dst[i] = y < im->low ? im->low : y > im->high ? im->high : y;
    }
}

bool cc_few_can(const CcImage *im) {
    return im->out == 1 && im->in * taps_of(im) <= MAX_TAPS && im->src_stride[3] == 1 && im->step[1] == 1 &&
           im->out_size[1] >= lanes_of_cpu();
}

int cc_few_run(const CcImage *im, const CcImageCall *call) {
    if (!finite_weights(im, call)) {
        run_carefully(im, call);
        return 0;
    }
    Job j = {.im = im, .call = call, .lanes = lanes_of_cpu(), .row = CC_CPU_WIDEST(row)};
    const int64_t work = im->batch * im->out_size[0] * im->out_size[1] * im->in * taps_of(im);
    cc_omp_run(bands, &j, im->batch * bands_of(im), work <= SMALL ? 1 : cc_omp_width());
    return atomic_load(&j.failed) ? -1 : 0;
}
