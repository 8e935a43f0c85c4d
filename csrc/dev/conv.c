/* conv: hand-written 2-d convolutions in f32, channels innermost. The epilogue (per-channel scale and shift, residual,
 * clamp) runs while the sums are in registers. oneDNN's fused relu maps NaN to 0, eager's keeps it.
 *
 *   DIRECT     implicit GEMM: rows are output pixels, whose inputs are read in place, `inputs` channels at each tap of
 *              the window (padding reads a row of zeros); columns are output channels, in panels [tap][k][width] of up
 *              to 4 vectors
 *   DEPTHWISE  each channel by itself, weights [tap][channel]
 *   WINOGRAD   F(4x4, 3x3) (Lavin and Gray 2015): 36 products for 16 outputs instead of 144,
 *
 *                  y = A^T ((G g G^T) * (B^T d B)) A        d 6x6 inputs, g 3x3 weights, y 4x4 outputs
 *
 *              with the points 0, +-1/sqrt(2), +-sqrt(2), inf, for weights that stay packed. At 64 to 256 channels
 *              these points have 4 times the rounding error of a direct convolution; the usual 0, +-1, +-2, inf have 10
 *              times. F(2x2, 3x3) needs 16 products for 4 outputs instead of 36. With 0, +-1, inf it has 0.6 to 0.9 of
 *              a direct convolution's error (16 to 512 channels), as its sums are shorter, and its weight transform
 *              costs no more than packing. Sums of inputs may overflow where single inputs do not, and an inf among
 *              them turns its neighbours into NaN.
 *
 * A pair of a pointwise DIRECT and the DEPTHWISE that alone reads it runs row by row: the intermediate stays in L2.
 * If WINOGRAD, or DIRECT with padding, gives a non-finite result, the whole call is redone by a DIRECT that skips
 * padding instead of multiplying zeros. */
#include <immintrin.h>
#include <math.h>

#include "dev_int.h"

enum {
    MAX_ROWS = 6,
    MAX_TAPS = 128,
    MAX_INPUTS = 8192,
    PANEL = 4,     /* vectors */
    MAX_WINO = 36, /* products of a tile */
    /* Cache blocking: input bytes of a chunk of pixels, which every panel re-reads. From L1 if the weights fit L2 ... */
    CHUNK_L1 = 24 << 10,
    CHUNK_L2 = 256 << 10, /* ... else from L2 */
    WEIGHTS_L2 = 512 << 10,
    /* Slicing packs a panel's weights SLICE floats at a time and multiplies them while they are in L2. */
    SLICE = 32 << 10,
    SLICE_FROM = 1 << 19, /* weights from which slicing pays: twice a core's L2 */
    /* Most output pixels for slicing, as their partial sums are kept between slices. 3x3 of 512x512 channels, 7x7
     * pixels, sliced and oneDNN: 2.8, 3.0 ms on one thread; 1.45, 1.3 on two, but the epilogue is fused and 9 MB less
     * are written. With fewer weights, 3x3 of 128x128, 56x56: 1.17, 1.06 (Zen 4). */
    SLICE_PIXELS = 1 << 10,
    WINO_L2 = 640 << 10, /* bytes of transformed tiles in a chunk, of a core's L2 (1 MB) */
    UNITS = 8,           /* units of work per thread, for load balance */
    /* Least tiles for F(4x4): with fewer, reading 4 times as many weights costs more than it saves. 512 channels,
     * 7x7: 1.57 ms against 1.22 direct; 256, 14x14: 0.70 against 1.01 (Zen 4, 2 threads). */
    WINO_TILES = 8,
    WINO_WEIGHTS = 1 << 22, /* most transformed weights for F(4x4): 16 MB */
    /* F(2x2): least multiplications saved per 3x3 kernel if the weights stay packed ... */
    WINO_SAVED = 80,
    /* ... and if each call transforms them. Direct and F(2x2), ms: 64 channels, 56x56 1.02, 0.56; 128, 28x28 1.01,
     * 0.56; 256, 14x14 1.03, 0.73; 512, 7x7 1.46, 2.00 (185 saved; packed 1.19, 0.80), batch 2 2.18, 2.30 (370), batch
     * 4 3.92, 3.53 (740). */
    WINO_SAVED_UNPACKED = 400,
    PAIR_FROM = 1 << 18, /* floats between the two of a pair (1 MB) from which fusing them pays */
    FEW_CHANNELS = 16,   /* fewer channels make the loop over one tap too short */
    /* Taps from which oneDNN is faster: 5x5 4.9 to 5.7 ms against 5.9, 7x7 8.4 to 11.0 against 11.5 (ComplexModel). */
    LARGE_WINDOW = 25,
    SMALL = 1 << 19 /* multiply-adds below which a second thread is not worth its barrier */
};

typedef struct Epilogue {
    const float *scale, *shift;
    float low, high;
} Epilogue;

typedef struct Tile {
    const float *const *a; /* [tap][MAX_ROWS] */
    int64_t taps, inputs, dst_row;
    const float *w, *residual;
    const float *sum; /* initial accumulators, rows as wide as dst's; NULL: zeros */
    float *dst;
    const Epilogue *epilogue; /* NULL: stores the plain sums */
    int64_t c;                /* first output channel */
    bool *nonfinite;          /* set to true if a sum is not finite; NULL: unchecked */
} Tile;

typedef struct OutputRow { /* DEPTHWISE: one row of outputs; the last line of members is in columns */
    const float *src[MAX_TAPS], *w[MAX_TAPS], *residual;
    float *dst;
    const Epilogue *epilogue;
    int rows; /* rows of the window inside the input */
    int64_t columns, channels, width, src_width, src_x, stride, dilation, pad, inner0, inner1;
} OutputRow;

typedef struct TileOutput { /* WINOGRAD's output transform: sums of adjacent tiles -> dst */
    const float *from, *residual;
    float *dst;
    const Epilogue *epilogue;
    int64_t plane, channels, c, dst_y, dst_x;
    int64_t dst_c;            /* channel stride if columns are innermost; 0: channels are innermost */
    int tiles, rows, columns; /* rows, columns: existing outputs, at most LANES columns */
} TileOutput;

typedef struct Kernels {
    int lanes, rows;
    void (*tile[MAX_ROWS][PANEL])(const Tile *t);
    void (*pack)(const float *w, int64_t w_out, int outs, int64_t in, int64_t taps, float *to, int64_t width);
    void (*depth)(const OutputRow *l);
    /* Winograd: [0] F(2x2, 3x3), [1] F(4x4, 3x3) */
    void (*transform_inputs[2])(const float *const *at, int64_t channels, float *to, int64_t plane);
    bool (*transform_outputs[2])(const TileOutput *s);
    void (*transform_weights[2])(const float *w, int64_t w_out, bool taps_first, int64_t in, float *to, int64_t width,
                                 int64_t plane);
} Kernels;

#define LANES 16
#define ROWS 6
#include "conv.inc"

#define LANES 8
#define ROWS 3
#include "conv.inc"

#define LANES 4
#define ROWS 2
#include "conv.inc"

static const Kernels *kernels_of_cpu(void) { return CC_CPU_WIDEST(&KERNELS); }

static const float ZEROS[MAX_INPUTS];

typedef struct Job {
    const CcConvShape *shape;
    const CcConvCall *call;
    const Kernels *k;
    Epilogue epilogue;
    const float *src, *w;
    int64_t n, y, x; /* strides of src in floats */
    bool flat;       /* DIRECT: pixel p of dst reads pixel p of src only */
    int64_t vecs, panels, pixels;
    int64_t chunks, tiles; /* DIRECT: register tiles of pixels; WINOGRAD: image tiles; chunks: blocks of tiles */
    /* DIRECT: each thread packs its weights slice by slice, just before multiplying */
    bool sliced;
    bool skip_padding; /* DIRECT: skips padding; multiplying it would give inf * 0 = NaN */
    /* DIRECT: units are [panel][chunk], else [chunk][panel]. WINOGRAD: units are [chunk][panel], else chunks */
    bool by_panel;
    atomic_bool failed, nonfinite; /* out of memory; a sum is not finite */
} Job;

static int64_t first_vec(const Job *j, int64_t panel) { return j->vecs * panel / j->panels; }
static int products_of(const CcConvShape *shape) { return (shape->tile + 2) * (shape->tile + 2); } /* WINOGRAD */
static int64_t taps_of(const CcConvShape *shape) { return shape->kernel[0] * shape->kernel[1]; }
static int64_t depth_of(const CcConvShape *shape) { return taps_of(shape) * shape->in; }
static int64_t pixels_of(const CcConvShape *shape) { return shape->batch * shape->out_size[0] * shape->out_size[1]; }

/* ------------------------------------------------------------------ weights */

/* Padded, so that the planes do not all map to the same cache sets. */
static int64_t weights_plane(const CcConvShape *shape, int64_t width) { return shape->in * width + 16; }

/* Offset of a panel's transformed weights. */
static int64_t wino_weights(const Job *j, int64_t panel) {
    return products_of(j->shape) * (first_vec(j, panel) * j->k->lanes * j->shape->in + 16 * panel);
}

/* Units: vectors of output channels. */
static void pack_vecs(void *ctx, int64_t begin, int64_t end) {
    const Job *j = ctx;
    const CcConvShape *shape = j->shape;
    const int64_t depth = depth_of(shape), taps = shape->w_taps_first ? 1 : taps_of(shape);
    const int64_t lanes = j->k->lanes;
    float *to = (float *)j->w;
    for (int64_t p = 0; p < j->panels; p++) {
        const int64_t v0 = first_vec(j, p), v1 = first_vec(j, p + 1), width = (v1 - v0) * lanes;
        for (int64_t v = CC_MAX(v0, begin); v < CC_MIN(v1, end); v++) {
            const float *w = j->call->weights + v * lanes * shape->w_out;
            const int outs = (int)CC_MIN(lanes, shape->out - v * lanes);
            float *vec = to + (v - v0) * lanes;
            if (shape->way == CC_CONV_WINOGRAD)
                j->k->transform_weights[shape->tile == 4](w, shape->w_out, shape->w_taps_first, shape->in,
                                                          vec + wino_weights(j, p), width, weights_plane(shape, width));
            else j->k->pack(w, shape->w_out, outs, depth / taps, taps, vec + v0 * lanes * depth, width);
        }
    }
}

/* [channel][tap] -> [tap][channel] */
static void pack_depth(const Job *j) {
    const int64_t taps = j->shape->kernel[0] * j->shape->kernel[1];
    float *to = (float *)j->w;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < j->shape->out; c++) *to++ = j->call->weights[c * j->shape->w_out + t];
}

static int64_t packed_floats(const CcConvShape *shape, const Kernels *k) {
    if (shape->way == CC_CONV_ONE) return 0;
    const int64_t vecs = (shape->out + k->lanes - 1) / k->lanes, taps = shape->kernel[0] * shape->kernel[1];
    if (shape->way == CC_CONV_DEPTHWISE) return shape->out * taps;
    if (shape->way != CC_CONV_WINOGRAD) return vecs * k->lanes * shape->in * taps;
    return products_of(shape) * (vecs * k->lanes * shape->in + 16 * ((vecs + PANEL - 1) / PANEL));
}

/* Few outputs, many weights: packing all weights first would move them through memory two extra times. */
static bool can_slice(const CcConvShape *shape, const Kernels *k) {
    return shape->way == CC_CONV_DIRECT && packed_floats(shape, k) >= SLICE_FROM && pixels_of(shape) <= SLICE_PIXELS;
}

/* Floats of scratch for packed weights that are not kept, rounded to whole cache lines. */
static int64_t floats_of(const CcConvShape *shape, const Kernels *k) {
    return (packed_floats(shape, k) + 15) / 16 * 16;
}
static int64_t scratch_floats(const Job *j) { return j->call->packed || j->sliced ? 0 : floats_of(j->shape, j->k); }

size_t cc_conv_bytes(const CcConvShape *shape, bool pair) {
    const Kernels *k = kernels_of_cpu();
    return !pair && can_slice(shape, k) ? 0 : sizeof(float) * (size_t)floats_of(shape, k);
}

/* The caller's scratch, or *block, which the caller gives back. NULL: out of memory. */
static float *take_scratch(const CcConvCall *call, int64_t floats, CcScratch **block) {
    *block = call->scratch ? NULL : cc_scratch_take(sizeof(float) * (size_t)floats);
    return call->scratch ? call->scratch : *block ? (float *)(*block)->at : NULL;
}

/* Sets j->w, and *pack if the weights are kept; the caller drops that reference. -1: out of memory. */
static int find_weights(Job *j, float *room, CcPack **pack) {
    const CcConvCall *call = j->call;
    const int64_t floats = packed_floats(j->shape, j->k);
    *pack = NULL;
    if (j->sliced) {
        j->w = call->weights;
        return 0;
    }
    const CcConvShape *shape = j->shape;
    const CcPackForm form = {CC_PACK_CONV,
                             {shape->way, shape->in, shape->out, shape->kernel[0], shape->kernel[1], shape->w_out,
                              shape->way == CC_CONV_WINOGRAD ? shape->tile : 0, shape->w_taps_first}};
    *pack = call->packed ? cc_packed_find(call->packed, call->weights, call->version, &form) : NULL;
    const bool found = *pack != NULL;
    if (call->packed && !found)
        *pack = cc_packed_make((size_t)floats * sizeof(float), call->weights, call->version, &form);
    if (call->packed && !*pack) return -1;
    j->w = *pack ? (const float *)(*pack)->at : room;
    if (found) return 0;
    if (j->shape->way == CC_CONV_DEPTHWISE) pack_depth(j);
    else cc_omp_run(pack_vecs, j, j->vecs, floats < SMALL / 8 ? 1 : cc_omp_width());
    if (*pack) cc_packed_keep(call->packed, *pack);
    return 0;
}

/* ------------------------------------------------------------------ DIRECT */

/* Fills a [tap][MAX_ROWS] with the addresses of input channel c for output pixels [p, p + rows). */
static void find_taps(const Job *j, int64_t p, int rows, int64_t c, const float **a) {
    const CcConvShape *shape = j->shape;
    for (int r = 0; j->flat && r < rows; r++) a[r] = j->src + (p + r) * j->x + c;
    if (j->flat) return;
    const int64_t area = shape->out_size[0] * shape->out_size[1];
    int64_t n = p / area, oy = p % area / shape->out_size[1], ox = p % shape->out_size[1];
    for (int r = 0; r < rows; r++) {
        const int64_t y0 = oy * shape->stride[0] - shape->pad[0], x0 = ox * shape->stride[1] - shape->pad[1];
        const float *image = j->src + n * j->n + c;
        const float **to = a + r;
        for (int64_t ky = 0; ky < shape->kernel[0]; ky++) {
            const int64_t y = y0 + ky * shape->dilation[0];
            const bool inside = y >= 0 && y < shape->size[0];
            for (int64_t kx = 0; kx < shape->kernel[1]; kx++, to += MAX_ROWS) {
                const int64_t x = x0 + kx * shape->dilation[1];
                *to = inside && x >= 0 && x < shape->size[1] ? image + y * j->y + x * j->x : ZEROS;
            }
        }
        if (++ox < shape->out_size[1]) continue;
        ox = 0;
        if (++oy == shape->out_size[0]) oy = 0, n++;
    }
}

/* Copies `rows` rows of n floats. */
static void copy_block(float *to, int64_t to_row, const float *from, int64_t from_row, int rows, int64_t n) {
    for (int r = 0; r < rows; r++) memcpy(to + r * to_row, from + r * from_row, sizeof *to * (size_t)n);
}

/* A tile that overhangs the last channel of dst, through a buffer. */
static void edge_tile(const Job *j, Tile t, int rows, int64_t vecs, int64_t cols) {
    enum { WIDTH = PANEL * 16 };
    _Alignas(64) float out[MAX_ROWS * WIDTH], residual[MAX_ROWS * WIDTH] = {0};
    float *dst = t.dst;
    if (t.residual) copy_block(residual, WIDTH, t.residual, t.dst_row, rows, cols);
    t.residual = t.residual ? residual : NULL;
    t.dst = out;
    t.dst_row = WIDTH;
    j->k->tile[rows - 1][vecs - 1](&t);
    copy_block(dst, j->shape->out, out, WIDTH, rows, cols);
}

static float clamp(float x, const Epilogue *f) {
    const float y = x < f->low ? f->low : x;
    return y > f->high ? f->high : y;
}

/* One pixel of a tile, tap by tap, without the taps in the padding. */
static void unpadded_pixel(const Job *j, Tile t, int64_t vecs) {
    enum { WIDTH = PANEL * 16 };
    const int64_t width = vecs * j->k->lanes, cols = CC_MIN(width, j->shape->out - t.c);
    _Alignas(64) float part[WIDTH], sum[WIDTH] = {0};
    Tile one = {.taps = 1, .inputs = t.inputs, .dst = part, .dst_row = WIDTH};
    for (int64_t tap = 0; tap < t.taps; tap++) {
        if (t.a[tap * MAX_ROWS] == ZEROS) continue;
        one.a = t.a + tap * MAX_ROWS;
        one.w = t.w + tap * t.inputs * width;
        j->k->tile[0][vecs - 1](&one);
        for (int64_t c = 0; c < cols; c++) sum[c] += part[c];
    }
    const float *scale = t.epilogue->scale + t.c, *shift = t.epilogue->shift + t.c;
    for (int64_t c = 0; c < cols; c++)
        t.dst[c] = clamp(sum[c] * scale[c] + shift[c] + (t.residual ? t.residual[c] : 0), t.epilogue);
}

static void unpadded_tile(const Job *j, Tile t, int rows, int64_t vecs) {
    for (int r = 0; r < rows; r++, t.a++, t.dst += t.dst_row) {
        unpadded_pixel(j, t, vecs);
        if (t.residual) t.residual += t.dst_row;
    }
}

static int64_t first_pixel(const Job *j, int64_t tile) { return j->pixels * tile / j->tiles; }

/* Runs tile t with its epilogue for pixels [p, p + rows) and a panel of `vecs` vectors. Sets t's dst, residual and
 * epilogue. */
static void run_tile(const Job *j, Tile t, int64_t p, int rows, int64_t vecs) {
    t.dst_row = j->shape->out;
    t.dst = j->call->dst + p * t.dst_row + t.c;
    t.residual = j->call->residual ? j->call->residual + p * t.dst_row + t.c : NULL;
    t.epilogue = &j->epilogue;
    if (j->skip_padding) unpadded_tile(j, t, rows, vecs);
    else if (t.c + vecs * j->k->lanes <= t.dst_row) j->k->tile[rows - 1][vecs - 1](&t);
    else edge_tile(j, t, rows, vecs, t.dst_row - t.c);
}

/* -> false: a sum is not finite (checked only if padding is multiplied). */
static bool direct_unit(const Job *j, int64_t panel, int64_t chunk) {
    bool nonfinite = false;
    const int64_t v0 = first_vec(j, panel), vecs = first_vec(j, panel + 1) - v0, c = v0 * j->k->lanes;
    const float *a[MAX_TAPS * MAX_ROWS];
    const Tile t = {.a = a,
                    .taps = taps_of(j->shape),
                    .inputs = j->shape->in,
                    .w = j->w + c * depth_of(j->shape),
                    .c = c,
                    .nonfinite = j->flat ? NULL : &nonfinite};
    const int64_t first = j->tiles * chunk / j->chunks, last = j->tiles * (chunk + 1) / j->chunks;
    for (int64_t i = first; i < last; i++) {
        const int64_t p = first_pixel(j, i);
        const int rows = (int)(first_pixel(j, i + 1) - p);
        find_taps(j, p, rows, 0, a);
        run_tile(j, t, p, rows, vecs);
    }
    return !nonfinite;
}

static void direct(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    bool nonfinite = false;
    for (int64_t u = begin; u < end; u++) {
        const bool whole =
            j->by_panel ? direct_unit(j, u / j->chunks, u % j->chunks) : direct_unit(j, u % j->panels, u / j->panels);
        nonfinite = nonfinite || !whole;
    }
    if (nonfinite) atomic_store(&j->nonfinite, true);
}

/* Packs the weights of input channels [i, i + n) for the panel of output vectors [v0, v0 + vecs). */
static void pack_slice(const Job *j, int64_t v0, int64_t vecs, int64_t i, int64_t n, float *to) {
    const CcConvShape *shape = j->shape;
    const int64_t lanes = j->k->lanes, width = vecs * lanes, taps = taps_of(shape);
    for (int64_t v = v0; v < v0 + vecs; v++, to += lanes) {
        const float *w = j->w + v * lanes * shape->w_out;
        const int outs = (int)CC_MIN(lanes, shape->out - v * lanes);
        if (!shape->w_taps_first) j->k->pack(w + i * taps, shape->w_out, outs, n, taps, to, width);
        for (int64_t tap = 0; shape->w_taps_first && tap < taps; tap++)
            j->k->pack(w + tap * shape->in + i, shape->w_out, outs, n, 1, to + tap * n * width, width);
    }
}

/* direct_unit with weights packed slice by slice; `sums` holds the partial sums of the unit's pixels. */
static bool sliced_unit(const Job *j, int64_t panel, int64_t chunk, float *slice, float *sums) {
    bool nonfinite = false;
    const int64_t v0 = first_vec(j, panel), vecs = first_vec(j, panel + 1) - v0, width = vecs * j->k->lanes;
    const int64_t first = j->tiles * chunk / j->chunks, last = j->tiles * (chunk + 1) / j->chunks;
    const float *a[MAX_TAPS * MAX_ROWS];
    Tile t = {.a = a, .taps = taps_of(j->shape), .w = slice, .c = v0 * j->k->lanes, .dst_row = width};
    for (int64_t i = 0; i < j->shape->in; i += t.inputs) {
        t.inputs = CC_MIN(j->shape->in - i, CC_MAX(1, SLICE / (t.taps * width)));
        pack_slice(j, v0, vecs, i, t.inputs, slice);
        t.nonfinite = i + t.inputs == j->shape->in && !j->flat ? &nonfinite : NULL;
        for (int64_t k = first; k < last; k++) {
            const int64_t p = first_pixel(j, k);
            const int rows = (int)(first_pixel(j, k + 1) - p);
            find_taps(j, p, rows, i, a);
            t.dst = sums + (p - first_pixel(j, first)) * width;
            t.sum = i ? t.dst : NULL;
            if (i + t.inputs == j->shape->in) run_tile(j, t, p, rows, vecs);
            else j->k->tile[rows - 1][vecs - 1](&t);
        }
    }
    return !nonfinite;
}

/* Units: [panel][chunk]. */
static void direct_sliced(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const int64_t wide = PANEL * j->k->lanes, most = (j->tiles + j->chunks - 1) / j->chunks * j->k->rows;
    const int64_t numbers = CC_MAX(SLICE, taps_of(j->shape) * wide);
    float *slice = cc_scratch_thread(sizeof *slice * (size_t)(numbers + most * wide));
    bool nonfinite = false;
    if (!slice) atomic_store(&j->failed, true);
    for (int64_t u = begin; slice && u < end; u++)
        nonfinite = !sliced_unit(j, u / j->chunks, u % j->chunks, slice, slice + numbers) || nonfinite;
    if (nonfinite) atomic_store(&j->nonfinite, true);
}

static void divide_direct(Job *j, int parts) {
    const CcConvShape *shape = j->shape;
    j->tiles = (j->pixels + j->k->rows - 1) / j->k->rows;
    if (j->sliced) { /* packs a panel's weights once, unless threads outnumber panels */
        j->chunks = CC_MIN(j->tiles, (parts + j->panels - 1) / j->panels);
        return;
    }
    const int64_t bytes = (int64_t)sizeof(float) * shape->in * shape->stride[0] * shape->stride[1] * j->pixels;
    const int64_t weights = shape->out * depth_of(shape) * (int64_t)sizeof(float);
    j->by_panel = weights > bytes;
    j->chunks = CC_MAX(1, bytes / (weights <= WEIGHTS_L2 ? CHUNK_L1 : CHUNK_L2));
    if (j->chunks * j->panels < UNITS * parts) j->chunks = (UNITS * parts + j->panels - 1) / j->panels;
    j->chunks = CC_MIN(j->chunks, j->tiles);
}

/* ------------------------------------------------------------------ DEPTHWISE */

/* A ring buffer of the last input rows. */
typedef struct Ring {
    float *at;
    int64_t rows, row; /* row: floats in a row */
} Ring;

static OutputRow make_line(const Job *j) {
    const CcConvShape *shape = j->shape;
    const int64_t reach = (shape->kernel[1] - 1) * shape->dilation[1];
    OutputRow l = {.epilogue = &j->epilogue,
                   .columns = shape->kernel[1],
                   .channels = shape->out,
                   .width = shape->out_size[1],
                   .src_width = shape->size[1],
                   .src_x = j->x,
                   .stride = shape->stride[1],
                   .dilation = shape->dilation[1],
                   .pad = shape->pad[1]};
    l.inner0 = CC_MIN(l.width, (CC_MAX(0, l.pad) + l.stride - 1) / l.stride);
    const int64_t room = l.src_width - reach - 1 + l.pad; /* x * stride <= room */
    l.inner1 = room < 0 ? 0 : CC_MIN(l.width, room / l.stride + 1);
    return l;
}

/* Output row u, counted over the batch. ring NULL: inputs come from src. */
static void depth_row(const Job *j, OutputRow *l, int64_t u, const Ring *ring) {
    const CcConvShape *shape = j->shape;
    const int64_t n = u / shape->out_size[0], y = u % shape->out_size[0] * shape->stride[0] - shape->pad[0];
    const int64_t at = u * shape->out_size[1] * shape->out;
    l->rows = 0;
    for (int64_t k = 0; k < shape->kernel[0]; k++) {
        const int64_t row = y + k * shape->dilation[0];
        if (row < 0 || row >= shape->size[0]) continue;
        l->src[l->rows] = ring ? ring->at + row % ring->rows * ring->row : j->src + n * j->n + row * j->y;
        l->w[l->rows++] = j->w + k * shape->kernel[1] * shape->out;
    }
    l->dst = j->call->dst + at;
    l->residual = j->call->residual ? j->call->residual + at : NULL;
    j->k->depth(l);
}

/* Units: output rows of the whole batch. */
static void depthwise(void *ctx, int64_t begin, int64_t end) {
    const Job *j = ctx;
    OutputRow l = make_line(j);
    for (int64_t u = begin; u < end; u++) depth_row(j, &l, u, NULL);
}

/* ------------------------------------------------------------------ DIRECT fused with DEPTHWISE, row by row */

typedef struct Pair {
    Job wide, deep;
    atomic_bool failed;
} Pair;

/* Pixels [p, p + n) of a flat DIRECT, all channels, into `to`. */
static void direct_pixels(const Job *j, int64_t p, int64_t n, float *to) {
    const int64_t tiles = (n + j->k->rows - 1) / j->k->rows, out = j->shape->out;
    const float *a[MAX_ROWS];
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t first = n * i / tiles, rows = n * (i + 1) / tiles - first;
        find_taps(j, p + first, (int)rows, 0, a);
        for (int64_t panel = 0; panel < j->panels; panel++) {
            const int64_t v0 = first_vec(j, panel), c = v0 * j->k->lanes;
            const Tile t = {.a = a,
                            .taps = 1,
                            .inputs = j->shape->in,
                            .dst_row = out,
                            .w = j->w + c * j->shape->in,
                            .dst = to + first * out + c,
                            .epilogue = &j->epilogue,
                            .c = c};
            j->k->tile[rows - 1][first_vec(j, panel + 1) - v0 - 1](&t);
        }
    }
}

/* Units: output rows of the whole batch. Computes each intermediate row once per range of units. */
static void run_pair(void *ctx, int64_t begin, int64_t end) {
    Pair *p = ctx;
    const CcConvShape *shape = p->deep.shape;
    const int64_t reach = (shape->kernel[0] - 1) * shape->dilation[0];
    Ring ring = {.rows = reach + 1, .row = shape->size[1] * shape->out};
    OutputRow l = make_line(&p->deep);
    ring.at = cc_scratch_thread(sizeof *ring.at * (size_t)(ring.rows * ring.row));
    if (!ring.at) {
        atomic_store(&p->failed, true);
        return;
    }
    for (int64_t u = begin, image = -1, next = 0; u < end; u++) {
        const int64_t n = u / shape->out_size[0], y = u % shape->out_size[0] * shape->stride[0] - shape->pad[0];
        if (n != image) next = 0;
        image = n;
        for (next = CC_MAX(next, y); next <= CC_MIN(y + reach, shape->size[0] - 1); next++)
            direct_pixels(&p->wide, (n * shape->size[0] + next) * shape->size[1], shape->size[1],
                          ring.at + next % ring.rows * ring.row);
        depth_row(&p->deep, &l, u, &ring);
    }
}

/* ------------------------------------------------------------------ WINOGRAD */

static int64_t tiles_along(const CcConvShape *shape, int d) {
    return (shape->out_size[d] + shape->tile - 1) / shape->tile;
}

/* Padded, so that the planes do not all map to the same cache sets. */
static int64_t plane_of(int64_t tiles, int64_t channels) { return tiles * channels + 16; }

static void divide_wino(Job *j, int parts) {
    const CcConvShape *shape = j->shape;
    const int64_t bytes = (int64_t)sizeof(float) * products_of(shape) * (shape->in + PANEL * j->k->lanes);
    j->tiles = shape->batch * tiles_along(shape, 0) * tiles_along(shape, 1);
    const int64_t most = CC_MAX(WINO_L2 / bytes, 2 * j->k->rows);
    j->chunks = (j->tiles + most - 1) / most;
    /* Few tiles: divide by panels, too; each thread then transforms the chunk's inputs for itself. */
    j->by_panel = j->chunks < 2 * parts && j->panels >= parts;
    if (!j->by_panel) j->chunks = (j->chunks + parts - 1) / parts * parts;
}

/* Input transform of tiles [first, last): planes [product][tile][channel]. */
static void transform_inputs(const Job *j, int64_t first, int64_t last, float *to, int64_t plane) {
    const CcConvShape *shape = j->shape;
    const int64_t down = tiles_along(shape, 0), along = tiles_along(shape, 1);
    const int side = shape->tile + 2;
    for (int64_t t = first; t < last; t++, to += shape->in) {
        const float *at[MAX_WINO], *image = j->src + t / (down * along) * j->n;
        const int64_t y0 = t / along % down * shape->tile - shape->pad[0], x0 = t % along * shape->tile - shape->pad[1];
        for (int i = 0; i < side * side; i++) {
            const int64_t y = y0 + i / side, x = x0 + i % side;
            at[i] = y >= 0 && y < shape->size[0] && x >= 0 && x < shape->size[1] ? image + y * j->y + x * j->x : ZEROS;
        }
        j->k->transform_inputs[shape->tile == 4](at, shape->in, to, plane);
    }
}

/* Output transform and epilogue of tiles [first, last). -> true: a result is not finite. */
static bool transform_outputs(const Job *j, int64_t first, int64_t last, TileOutput s) {
    const CcConvShape *shape = j->shape;
    const int64_t down = tiles_along(shape, 0), along = tiles_along(shape, 1);
    const int64_t most = j->k->lanes / shape->tile; /* tiles per vector of output columns */
    bool nonfinite = false;
    s.epilogue = &j->epilogue;
    const int64_t apart = shape->channels_first ? 1 : shape->out; /* pixels */
    s.dst_x = apart;
    s.dst_y = apart * shape->out_size[1];
    s.dst_c = shape->channels_first ? shape->out_size[0] * shape->out_size[1] : 0;
    for (int64_t t = first; t < last; t += s.tiles, s.from += s.tiles * s.channels) {
        const int64_t y = t / along % down * shape->tile, x = t % along * shape->tile;
        const int64_t image = shape->out_size[0] * shape->out_size[1] * shape->out * (t / (down * along));
        const int64_t at = image + y * s.dst_y + x * s.dst_x + s.c * (s.dst_c ? s.dst_c : 1);
        s.dst = j->call->dst + at;
        s.residual = j->call->residual ? j->call->residual + at : NULL;
        s.tiles = (int)CC_MIN(CC_MIN(most, along - t % along), last - t);
        s.rows = (int)CC_MIN(shape->tile, shape->out_size[0] - y);
        s.columns = (int)CC_MIN(s.tiles * shape->tile, shape->out_size[1] - x);
        nonfinite = j->k->transform_outputs[shape->tile == 4](&s) || nonfinite;
    }
    return nonfinite;
}

/* One GEMM per product: [tiles][in] @ [in][panel]. */
static void multiply(const Job *j, int64_t panel, int64_t tiles, const float *from, int64_t from_plane, float *to,
                     int64_t to_plane) {
    const int64_t v0 = first_vec(j, panel), vecs = first_vec(j, panel + 1) - v0, width = vecs * j->k->lanes;
    const int64_t in = j->shape->in, groups = (tiles + j->k->rows - 1) / j->k->rows;
    const float *a[MAX_ROWS];
    Tile t = {.a = a, .taps = 1, .inputs = in, .dst_row = width, .w = j->w + wino_weights(j, panel)};
    for (int i = 0; i < products_of(j->shape);
         i++, from += from_plane, to += to_plane, t.w += weights_plane(j->shape, width))
        for (int64_t g = 0; g < groups; g++) {
            const int64_t first = tiles * g / groups, rows = tiles * (g + 1) / groups - first;
            for (int64_t r = 0; r < rows; r++) a[r] = from + (first + r) * in;
            t.dst = to + first * width;
            j->k->tile[rows - 1][vecs - 1](&t);
        }
}

/* Units: [chunk][panel] if by_panel, else chunks with all their panels. */
static void winograd(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const int64_t in = j->shape->in, most = (j->tiles + j->chunks - 1) / j->chunks, wide = PANEL * j->k->lanes;
    const int products = products_of(j->shape);
    float *at = cc_scratch_thread(sizeof *at * (size_t)(products * (plane_of(most, in) + plane_of(most, wide))));
    float *sums = at + products * plane_of(most, in);
    if (!at) {
        atomic_store(&j->failed, true);
        return;
    }
    const int64_t panels = j->by_panel ? j->panels : 1;
    bool nonfinite = false;
    for (int64_t u = begin, last = -1; u < end; u++) {
        const int64_t chunk = u / panels;
        const int64_t first = j->tiles * chunk / j->chunks, n = j->tiles * (chunk + 1) / j->chunks - first;
        const int64_t from = j->by_panel ? u % panels : 0, to = j->by_panel ? from + 1 : j->panels;
        if (chunk != last) transform_inputs(j, first, first + n, at, plane_of(n, in));
        last = chunk;
        for (int64_t p = from; p < to; p++) {
            const int64_t v0 = first_vec(j, p), width = (first_vec(j, p + 1) - v0) * j->k->lanes;
            multiply(j, p, n, at, plane_of(n, in), sums, plane_of(n, width));
            nonfinite = transform_outputs(
                            j, first, first + n,
                            (TileOutput){
                                .from = sums, .plane = plane_of(n, width), .channels = width, .c = v0 * j->k->lanes}) ||
                        nonfinite;
        }
    }
    if (nonfinite) atomic_store(&j->nonfinite, true);
}

/* ------------------------------------------------------------------ entry points */

bool cc_conv_can(const CcConvShape *shape) {
    const Kernels *k = kernels_of_cpu();
    const int64_t taps = taps_of(shape);
    const bool last = shape->src_stride[1] == 1, whole = shape->out % k->lanes == 0;
    if (taps > MAX_TAPS || shape->in > MAX_INPUTS) return false;
    switch (shape->way) {
    case CC_CONV_DIRECT: return last && !shape->channels_first;
    case CC_CONV_DEPTHWISE: return last && whole && !shape->channels_first;
    case CC_CONV_WINOGRAD:
        for (int d = 0; d < 2; d++)
            if (shape->kernel[d] != 3 || shape->stride[d] != 1 || shape->dilation[d] != 1) return false;
        return last && whole && shape->in % k->lanes == 0;
    case CC_CONV_ONE: return cc_conv_one_can(shape);
    }
    return false;
}

bool cc_conv_pays(const CcConvShape *shape, bool packed) {
    const int64_t tiles =
        shape->way == CC_CONV_WINOGRAD ? shape->batch * tiles_along(shape, 0) * tiles_along(shape, 1) : 0;
    const int64_t pixels = pixels_of(shape);
    switch (shape->way) {
    case CC_CONV_DEPTHWISE:
    case CC_CONV_ONE: return true;
    case CC_CONV_DIRECT:
        return taps_of(shape) == 1 || ((packed || can_slice(shape, kernels_of_cpu())) && shape->in >= FEW_CHANNELS &&
                                       taps_of(shape) < LARGE_WINDOW);
    case CC_CONV_WINOGRAD:
        if (shape->tile == 2)
            return 9 * pixels - products_of(shape) * tiles >= (packed ? WINO_SAVED : WINO_SAVED_UNPACKED);
        return packed && tiles >= WINO_TILES && products_of(shape) * shape->in * shape->out <= WINO_WEIGHTS;
    }
    return false;
}

int64_t cc_conv_channels(int64_t out) {
    const int64_t lanes = kernels_of_cpu()->lanes;
    return (out + lanes - 1) / lanes * lanes;
}

static Job make_job(const CcConvShape *shape, const CcConvCall *call) {
    Job j = {.shape = shape,
             .call = call,
             .k = kernels_of_cpu(),
             .src = call->src,
             .epilogue = {call->scale, call->shift, shape->low, shape->high},
             .n = shape->src_stride[0],
             .y = shape->src_stride[2],
             .x = shape->src_stride[3],
             .pixels = pixels_of(shape)};
    j.flat = taps_of(shape) == 1 && (shape->size[0] == 1 || j.y == j.x * shape->size[1]) &&
             (shape->batch == 1 || j.n == j.x * shape->size[0] * shape->size[1]);
    for (int d = 0; d < 2; d++)
        j.flat = j.flat && shape->stride[d] == 1 && shape->pad[d] == 0 && shape->size[d] == shape->out_size[d];
    j.vecs = (shape->out + j.k->lanes - 1) / j.k->lanes;
    j.panels = (j.vecs + PANEL - 1) / PANEL;
    return j;
}

static int run_parts(Job *j) {
    const CcConvShape *shape = j->shape;
    const int64_t work = j->pixels * shape->out * shape->kernel[0] * shape->kernel[1] *
                         (shape->way == CC_CONV_DEPTHWISE ? 1 : shape->in);
    const int parts = work <= SMALL ? 1 : cc_omp_width();
    switch (shape->way) {
    case CC_CONV_DIRECT:
        divide_direct(j, parts);
        cc_omp_run(j->sliced ? direct_sliced : direct, j, j->chunks * j->panels, parts);
        break;
    case CC_CONV_ONE: break; /* conv_one.c */
    case CC_CONV_DEPTHWISE: cc_omp_run(depthwise, j, shape->batch * shape->out_size[0], parts); break;
    case CC_CONV_WINOGRAD:
        divide_wino(j, parts);
        cc_omp_run(winograd, j, j->chunks * (j->by_panel ? j->panels : 1), parts);
        break;
    }
    return atomic_load(&j->failed) ? -1 : 0;
}

/* Runs the whole call. -> 1: a result is not finite; -1: out of memory. */
static int run_once(const CcConvShape *shape, const CcConvCall *call, bool skip_padding) {
    Job j = make_job(shape, call);
    j.skip_padding = skip_padding;
    j.sliced = !skip_padding && !call->packed && can_slice(shape, j.k);
    CcScratch *block;
    float *room = take_scratch(call, scratch_floats(&j), &block);
    CcPack *pack = NULL;
    int status = room ? find_weights(&j, room, &pack) : -1;
    if (!status) status = run_parts(&j);
    cc_packed_done(pack);
    cc_scratch_give(block);
    return status ? status : atomic_load(&j.nonfinite);
}

/* Redoes the call by a DIRECT that skips padding. */
static int run_unpadded(const CcConvShape *shape, const CcConvCall *call) {
    CcConvShape other = *shape;
    CcConvCall direct_call = *call;
    const int64_t area = shape->out_size[0] * shape->out_size[1], images = shape->channels_first ? shape->batch : 0;
    other.way = CC_CONV_DIRECT;
    other.channels_first = false;
    if (shape->way != CC_CONV_DIRECT) direct_call.packed = NULL;
    direct_call.scratch = NULL; /* its size is the other way's */
    if (images) direct_call.dst = malloc(sizeof(float) * (size_t)(images * area * shape->out));
    const int status = direct_call.dst ? run_once(&other, &direct_call, true) : -1;
    for (int64_t n = 0; n < images && status >= 0; n++)
        for (int64_t c = 0; c < shape->out; c++)
            for (int64_t p = 0; p < area; p++)
                call->dst[(n * shape->out + c) * area + p] = direct_call.dst[(n * area + p) * shape->out + c];
    if (images) free(direct_call.dst);
    return status;
}

int cc_conv_run(const CcConvShape *shape, const CcConvCall *call, CcErr *err) {
    int status = shape->way == CC_CONV_ONE ? cc_conv_one_run(shape, call) : run_once(shape, call, false);
    if (status > 0) status = run_unpadded(shape, call);
    return status < 0 ? cc_err_set(err, CC_E_MEMORY, "no memory for a convolution") : 0;
}

bool cc_conv_can_pair(const CcConvShape *wide, const CcConvShape *deep) {
    const CcConvShape *const both[] = {wide, deep};
    const int64_t numbers = wide->batch * wide->out_size[0] * wide->out_size[1] * wide->out;
    const CcConvCall none = {0};
    return cc_conv_can(both[0]) && cc_conv_can(both[1]) && wide->way == CC_CONV_DIRECT &&
           deep->way == CC_CONV_DEPTHWISE && wide->out == deep->out && make_job(wide, &none).flat &&
           numbers >= PAIR_FROM;
}

int cc_conv_run_pair(const CcConvShape *wide, const CcConvCall *first, const CcConvShape *deep,
                     const CcConvCall *second, CcErr *err) {
    Pair p = {.wide = make_job(wide, first), .deep = make_job(deep, second)};
    const int64_t rooms[] = {scratch_floats(&p.wide), scratch_floats(&p.deep)};
    CcScratch *block;
    float *room = take_scratch(first, rooms[0] + rooms[1], &block);
    CcPack *packs[2] = {NULL};
    int status = room ? find_weights(&p.wide, room, &packs[0]) : -1;
    if (!status) status = find_weights(&p.deep, room + rooms[0], &packs[1]);
    if (!status) cc_omp_run(run_pair, &p, deep->batch * deep->out_size[0], cc_omp_width());
    if (atomic_load(&p.failed)) status = -1;
    for (int i = 0; i < 2; i++) cc_packed_done(packs[i]);
    cc_scratch_give(block);
    return status ? cc_err_set(err, CC_E_MEMORY, "no memory for a pair of convolutions") : 0;
}
