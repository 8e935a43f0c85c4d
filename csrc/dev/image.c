/* image: convolutions of images with channels innermost, by own code, where what follows them (scale and shift of each
 * channel, a sum, bounds) is done while results are in registers. oneDNN's relu makes 0 of NaN, eager's does not.
 *
 *   DIRECT  a product: rows are outputs' pixels, read where they lie, `run` numbers at each of the window's taps
 *           (padding: from a row of zeros); columns are output channels, in panels [tap][k][width] of up to 4 vectors
 *   DEPTH   each channel for itself, weights [tap][channel]
 *   WINO    Winograd's F(4x4, 3x3) (Lavin and Gray 2015): 36 products for 16 outputs instead of 144,
 *
 *               y = A^T ((G g G^T) * (B^T d B)) A        d 6x6 inputs, g 3x3 weights, y 4x4 outputs
 *
 *           with the points 0, +-1/sqrt(2), +-sqrt(2), inf (4 times the rounding errors of a direct convolution; 0,
 *           +-1, +-2, inf: 10 times; 64 to 256 channels), for weights that are kept. F(2x2, 3x3), 16 for 4 instead of
 *           36, with 0, +-1, inf has 0.6 to 0.9 of a direct convolution's errors (16 to 512 channels), since its sums
 *           are shorter, and weights are transformed as fast as they are packed. Sums of inputs overflow where single
 *           ones don't, and an inf among them makes NaN of its neighbours.
 *
 * A DIRECT of one tap and the DEPTH that alone reads it are done row by row: what lies between them stays in L2.
 * A result of WINO, or with padding, that is not finite has the whole call done again by DIRECT that leaves padding
 * out. */
#include <immintrin.h>
#include <math.h>

#include "dev_int.h"

enum {
    MAX_ROWS = 6,
    MAX_TAPS = 128,
    MAX_RUN = 8192,
    PANEL = 4,     /* vectors */
    MAX_WINO = 36, /* products */
    /* bytes of pixels that are read again for each panel, where weights stay in L2, */
    NEAR = 24 << 10,
    FAR = 256 << 10, /* and where they don't */
    WEIGHTS_NEAR = 512 << 10,
    /* numbers of a panel's weights that are packed and multiplied while they are in L2, */
    SLICE = 32 << 10,
    SLICE_FROM = 1 << 19, /* for calls with at least so many (twice a core's L2) and */
    /* no more outputs, whose sums are kept in between. 3x3 of 512x512, 7x7, with oneDNN's: one thread 2.8 ms, 3.0; two
     * 1.45, 1.3, but what follows is done as well, and 9 MB less are written. Fewer weights: 3x3 of 128x128, 56x56,
     * 1.17, 1.06 (Zen 4) */
    SLICE_PIXELS = 1 << 10,
    WINO_NEAR = 640 << 10, /* bytes of transformed tiles: of a core's L2 (1 MB) */
    UNITS = 8,             /* for each thread */
    /* fewer: reading 4 times as many weights costs more than it saves (512 channels, 7x7: 1.57 ms against 1.22; 256,
     * 14x14: 0.70 against 1.01; Zen 4, 2 threads), */
    WINO_TILES = 8,
    WINO_WEIGHTS = 1 << 22, /* as do more of them than this: 16 MB */
    /* F(2x2): least multiplications that it saves for each weight of 9, if weights are kept, */
    WINO_SAVED = 80,
    /* and if not: then they are transformed in each call. Direct and F(2x2), ms: 64 channels 56x56 1.02, 0.56; 128,
     * 28x28 1.01, 0.56; 256, 14x14 1.03, 0.73; 512, 7x7 1.46, 2.00 (185 saved; kept 1.19, 0.80), two images 2.18, 2.30
     * (370), four 3.92, 3.53 (740) */
    WINO_SAVED_UNPACKED = 400,
    PAIR_FROM = 1 << 18, /* numbers between a pair, from which they had better stay in L2 (1 MB) */
    FEW_CHANNELS = 16,   /* fewer make short runs at each tap */
    /* taps from which oneDNN is faster (5x5: 4.9 to 5.7 ms against 5.9, 7x7: 8.4 to 11.0 against 11.5; layers of
     * ComplexModel) */
    LARGE_WINDOW = 25,
    SMALL = 1 << 19 /* multiplications that a second thread is not worth its barrier for */
};

typedef struct Finish {
    const float *scale, *shift;
    float low, high;
} Finish;

typedef struct Tile {
    const float *const *a; /* [tap][MAX_ROWS] */
    int64_t taps, run, dst_row;
    const float *w, *more;
    const float *sum; /* rows of as many vectors as dst's: what the sums begin with; NULL: zeros */
    float *dst;
    const Finish *finish; /* NULL: sums are stored as they are */
    int64_t c;            /* first channel */
    bool *odd;            /* becomes true where a sum is not finite; NULL: not asked */
} Tile;

typedef struct Line { /* a row of outputs; steps are of columns */
    const float *src[MAX_TAPS], *w[MAX_TAPS], *more;
    float *dst;
    const Finish *finish;
    int rows; /* of the window, that are inside */
    int64_t columns, channels, width, src_width, src_x, step, dilation, before, inner0, inner1;
} Line;

typedef struct Spread { /* Winograd's sums of tiles side by side, to where their outputs lie */
    const float *from, *more;
    float *dst;
    const Finish *finish;
    int64_t plane, channels, c, dst_y, dst_x;
    int64_t dst_c;            /* 0: channels are innermost; else columns are */
    int tiles, rows, columns; /* outputs that exist; at most a vector's lanes of columns */
} Spread;

typedef struct Kernels {
    int lanes, rows;
    void (*tile[MAX_ROWS][PANEL])(const Tile *t);
    void (*pack)(const float *w, int64_t w_out, int outs, int64_t in, int64_t taps, float *to, int64_t width);
    void (*depth)(const Line *l);
    /* [tile == 4] */
    void (*scatter[2])(const float *const *at, int64_t channels, float *to, int64_t plane);
    bool (*gather[2])(const Spread *s);
    void (*wino_pack[2])(const float *w, int64_t w_out, bool taps_first, int64_t in, float *to, int64_t width,
                         int64_t plane);
} Kernels;

#define LANES 16
#define ROWS 6
#include "image.inc"

#define LANES 8
#define ROWS 3
#include "image.inc"

#define LANES 4
#define ROWS 2
#include "image.inc"

static const Kernels *kernels_of_cpu(void) { return CC_CPU_WIDEST(&KERNELS); }

static const float ZEROS[MAX_RUN];

typedef struct Job {
    const CcImage *im;
    const CcImageCall *call;
    const Kernels *k;
    Finish finish;
    const float *src, *w;
    int64_t n, y, x; /* strides of src */
    bool flat;       /* DIRECT: pixel p of dst is made of pixel p of src alone */
    int64_t vecs, panels, pixels;
    int64_t chunks, tiles; /* DIRECT: of pixels; WINO: blocks of tiles, all tiles */
    /* DIRECT: weights are packed by who multiplies with them, a slice at a time */
    bool sliced;
    bool careful; /* DIRECT: padding is left out, not multiplied: inf * 0 is NaN */
    /* units of work: panels and in them chunks, or chunks and in them panels */
    bool by_panel;
    atomic_bool failed, odd; /* no memory; something is not finite */
} Job;

static int64_t first_vec(const Job *j, int64_t panel) { return j->vecs * panel / j->panels; }
static int products_of(const CcImage *im) { return (im->tile + 2) * (im->tile + 2); } /* of WINO */
static int64_t taps_of(const CcImage *im) { return im->kernel[0] * im->kernel[1]; }
static int64_t depth_of(const CcImage *im) { return taps_of(im) * im->in; }
static int64_t pixels_of(const CcImage *im) { return im->batch * im->out_size[0] * im->out_size[1]; }

/* ------------------------------------------------------------------ weights */

/* Planes are a little apart, so that they don't all fall on the same sets of the caches. */
static int64_t weights_plane(const CcImage *im, int64_t width) { return im->in * width + 16; }

/* Where a panel begins. */
static int64_t wino_weights(const Job *j, int64_t panel) {
    return products_of(j->im) * (first_vec(j, panel) * j->k->lanes * j->im->in + 16 * panel);
}

/* Units: vectors of outputs. */
static void pack_vecs(void *ctx, int64_t begin, int64_t end) {
    const Job *j = ctx;
    const CcImage *im = j->im;
    const int64_t depth = depth_of(im), taps = im->w_taps_first ? 1 : taps_of(im);
    const int64_t lanes = j->k->lanes;
    float *to = (float *)j->w;
    for (int64_t p = 0; p < j->panels; p++) {
        const int64_t v0 = first_vec(j, p), v1 = first_vec(j, p + 1), width = (v1 - v0) * lanes;
        for (int64_t v = CC_MAX(v0, begin); v < CC_MIN(v1, end); v++) {
            const float *w = j->call->weights + v * lanes * im->w_out;
            const int outs = (int)CC_MIN(lanes, im->out - v * lanes);
            float *vec = to + (v - v0) * lanes;
            if (im->way == CC_IMAGE_WINO)
                j->k->wino_pack[im->tile == 4](w, im->w_out, im->w_taps_first, im->in, vec + wino_weights(j, p), width,
                                               weights_plane(im, width));
            else j->k->pack(w, im->w_out, outs, depth / taps, taps, vec + v0 * lanes * depth, width);
        }
    }
}

/* [channel][tap] -> [tap][channel] */
static void pack_depth(const Job *j) {
    const int64_t taps = j->im->kernel[0] * j->im->kernel[1];
    float *to = (float *)j->w;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < j->im->out; c++) *to++ = j->call->weights[c * j->im->w_out + t];
}

static int64_t packed_floats(const CcImage *im, const Kernels *k) {
    if (im->way == CC_IMAGE_FEW) return 0;
    const int64_t vecs = (im->out + k->lanes - 1) / k->lanes, taps = im->kernel[0] * im->kernel[1];
    if (im->way == CC_IMAGE_DEPTH) return im->out * taps;
    if (im->way != CC_IMAGE_WINO) return vecs * k->lanes * im->in * taps;
    return products_of(im) * (vecs * k->lanes * im->in + 16 * ((vecs + PANEL - 1) / PANEL));
}

/* Few outputs of many weights: packing all of them first would bring them through memory twice more. */
static bool can_slice(const CcImage *im, const Kernels *k) {
    return im->way == CC_IMAGE_DIRECT && packed_floats(im, k) >= SLICE_FROM && pixels_of(im) <= SLICE_PIXELS;
}

/* Floats that a call needs for its weights, where they are not kept. */
static int64_t floats_of(const CcImage *im, const Kernels *k) { return (packed_floats(im, k) + 15) / 16 * 16; }
static int64_t room_for(const Job *j) { return j->call->packed || j->sliced ? 0 : floats_of(j->im, j->k); }

size_t cc_image_bytes(const CcImage *im, bool pair) {
    const Kernels *k = kernels_of_cpu();
    return !pair && can_slice(im, k) ? 0 : sizeof(float) * (size_t)floats_of(im, k);
}

/* That memory: the caller's, or a block that is given back after the call. */
static float *take_room(const CcImageCall *call, int64_t floats, CcScratch **block) {
    *block = call->scratch ? NULL : cc_scratch_take(sizeof(float) * (size_t)floats);
    return call->scratch ? call->scratch : *block ? (float *)(*block)->at : NULL;
}

/* Sets j->w, and *pack: to be given back after the call. -1: no memory. */
static int find_weights(Job *j, float *room, CcPack **pack) {
    const CcImageCall *call = j->call;
    const int64_t floats = packed_floats(j->im, j->k);
    *pack = NULL;
    if (j->sliced) {
        j->w = call->weights;
        return 0;
    }
    const CcImage *im = j->im;
    const CcPackForm form = {CC_PACK_IMAGE,
                             {im->way, im->in, im->out, im->kernel[0], im->kernel[1], im->w_out,
                              im->way == CC_IMAGE_WINO ? im->tile : 0, im->w_taps_first}};
    *pack = call->packed ? cc_packed_find(call->packed, call->weights, call->version, &form) : NULL;
    const bool found = *pack != NULL;
    if (call->packed && !found)
        *pack = cc_packed_make((size_t)floats * sizeof(float), call->weights, call->version, &form);
    if (call->packed && !*pack) return -1;
    j->w = *pack ? (const float *)(*pack)->at : room;
    if (found) return 0;
    if (j->im->way == CC_IMAGE_DEPTH) pack_depth(j);
    else cc_omp_run(pack_vecs, j, j->vecs, floats < SMALL / 8 ? 1 : cc_omp_width());
    if (*pack) cc_packed_keep(call->packed, *pack);
    return 0;
}

/* ------------------------------------------------------------------ DIRECT */

/* Where the window of pixels [p, p + rows) lies, from channel c on: a [tap][MAX_ROWS]. */
static void find_taps(const Job *j, int64_t p, int rows, int64_t c, const float **a) {
    const CcImage *im = j->im;
    for (int r = 0; j->flat && r < rows; r++) a[r] = j->src + (p + r) * j->x + c;
    if (j->flat) return;
    const int64_t area = im->out_size[0] * im->out_size[1];
    int64_t n = p / area, oy = p % area / im->out_size[1], ox = p % im->out_size[1];
    for (int r = 0; r < rows; r++) {
        const int64_t y0 = oy * im->step[0] - im->before[0], x0 = ox * im->step[1] - im->before[1];
        const float *image = j->src + n * j->n + c;
        const float **to = a + r;
        for (int64_t ky = 0; ky < im->kernel[0]; ky++) {
            const int64_t y = y0 + ky * im->dilation[0];
            const bool inside = y >= 0 && y < im->size[0];
            for (int64_t kx = 0; kx < im->kernel[1]; kx++, to += MAX_ROWS) {
                const int64_t x = x0 + kx * im->dilation[1];
                *to = inside && x >= 0 && x < im->size[1] ? image + y * j->y + x * j->x : ZEROS;
            }
        }
        if (++ox < im->out_size[1]) continue;
        ox = 0;
        if (++oy == im->out_size[0]) oy = 0, n++;
    }
}

/* Rows of `from` and `to` lie from_row and to_row apart. */
static void copy_block(float *to, int64_t to_row, const float *from, int64_t from_row, int rows, int64_t n) {
    for (int r = 0; r < rows; r++) memcpy(to + r * to_row, from + r * from_row, sizeof *to * (size_t)n);
}

/* A tile that is wider than what exists of dst. */
static void narrow_tile(const Job *j, Tile t, int rows, int64_t vecs, int64_t cols) {
    enum { WIDTH = PANEL * 16 };
    _Alignas(64) float out[MAX_ROWS * WIDTH], more[MAX_ROWS * WIDTH] = {0};
    float *dst = t.dst;
    if (t.more) copy_block(more, WIDTH, t.more, t.dst_row, rows, cols);
    t.more = t.more ? more : NULL;
    t.dst = out;
    t.dst_row = WIDTH;
    j->k->tile[rows - 1][vecs - 1](&t);
    copy_block(dst, j->im->out, out, WIDTH, rows, cols);
}

static float bounded(float x, const Finish *f) {
    const float y = x < f->low ? f->low : x;
    return y > f->high ? f->high : y;
}

/* One pixel of a tile, tap by tap. */
static void careful_pixel(const Job *j, Tile t, int64_t vecs) {
    enum { WIDTH = PANEL * 16 };
    const int64_t width = vecs * j->k->lanes, cols = CC_MIN(width, j->im->out - t.c);
    _Alignas(64) float part[WIDTH], sum[WIDTH] = {0};
    Tile one = {.taps = 1, .run = t.run, .dst = part, .dst_row = WIDTH};
    for (int64_t tap = 0; tap < t.taps; tap++) {
        if (t.a[tap * MAX_ROWS] == ZEROS) continue;
        one.a = t.a + tap * MAX_ROWS;
        one.w = t.w + tap * t.run * width;
        j->k->tile[0][vecs - 1](&one);
        for (int64_t c = 0; c < cols; c++) sum[c] += part[c];
    }
    const float *scale = t.finish->scale + t.c, *shift = t.finish->shift + t.c;
    for (int64_t c = 0; c < cols; c++)
        t.dst[c] = bounded(sum[c] * scale[c] + shift[c] + (t.more ? t.more[c] : 0), t.finish);
}

static void careful_tile(const Job *j, Tile t, int rows, int64_t vecs) {
    for (int r = 0; r < rows; r++, t.a++, t.dst += t.dst_row) {
        careful_pixel(j, t, vecs);
        if (t.more) t.more += t.dst_row;
    }
}

static int64_t first_pixel(const Job *j, int64_t tile) { return j->pixels * tile / j->tiles; }

/* The results of a panel of `vecs` vectors for pixels [p, p + rows), but for what t says already. */
static void finish_tile(const Job *j, Tile t, int64_t p, int rows, int64_t vecs) {
    t.dst_row = j->im->out;
    t.dst = j->call->dst + p * t.dst_row + t.c;
    t.more = j->call->more ? j->call->more + p * t.dst_row + t.c : NULL;
    t.finish = &j->finish;
    if (j->careful) careful_tile(j, t, rows, vecs);
    else if (t.c + vecs * j->k->lanes <= t.dst_row) j->k->tile[rows - 1][vecs - 1](&t);
    else narrow_tile(j, t, rows, vecs, t.dst_row - t.c);
}

/* -> all sums were finite, as far as that was asked. */
static bool direct_unit(const Job *j, int64_t panel, int64_t chunk) {
    bool odd = false;
    const int64_t v0 = first_vec(j, panel), vecs = first_vec(j, panel + 1) - v0, c = v0 * j->k->lanes;
    const float *a[MAX_TAPS * MAX_ROWS];
    const Tile t = {.a = a,
                    .taps = taps_of(j->im),
                    .run = j->im->in,
                    .w = j->w + c * depth_of(j->im),
                    .c = c,
                    .odd = j->flat ? NULL : &odd};
    const int64_t first = j->tiles * chunk / j->chunks, last = j->tiles * (chunk + 1) / j->chunks;
    for (int64_t i = first; i < last; i++) {
        const int64_t p = first_pixel(j, i);
        const int rows = (int)(first_pixel(j, i + 1) - p);
        find_taps(j, p, rows, 0, a);
        finish_tile(j, t, p, rows, vecs);
    }
    return !odd;
}

static void direct(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    bool odd = false;
    for (int64_t u = begin; u < end; u++) {
        const bool whole =
            j->by_panel ? direct_unit(j, u / j->chunks, u % j->chunks) : direct_unit(j, u % j->panels, u / j->panels);
        odd = odd || !whole;
    }
    if (odd) atomic_store(&j->odd, true);
}

/* Weights of `n` channels from i on, of a panel that begins with vector v0. */
static void pack_slice(const Job *j, int64_t v0, int64_t vecs, int64_t i, int64_t n, float *to) {
    const CcImage *im = j->im;
    const int64_t lanes = j->k->lanes, width = vecs * lanes, taps = taps_of(im);
    for (int64_t v = v0; v < v0 + vecs; v++, to += lanes) {
        const float *w = j->w + v * lanes * im->w_out;
        const int outs = (int)CC_MIN(lanes, im->out - v * lanes);
        if (!im->w_taps_first) j->k->pack(w + i * taps, im->w_out, outs, n, taps, to, width);
        for (int64_t tap = 0; im->w_taps_first && tap < taps; tap++)
            j->k->pack(w + tap * im->in + i, im->w_out, outs, n, 1, to + tap * n * width, width);
    }
}

/* direct_unit, where weights are packed slice by slice; sums: of the unit's pixels. */
static bool sliced_unit(const Job *j, int64_t panel, int64_t chunk, float *slice, float *sums) {
    bool odd = false;
    const int64_t v0 = first_vec(j, panel), vecs = first_vec(j, panel + 1) - v0, width = vecs * j->k->lanes;
    const int64_t first = j->tiles * chunk / j->chunks, last = j->tiles * (chunk + 1) / j->chunks;
    const float *a[MAX_TAPS * MAX_ROWS];
    Tile t = {.a = a, .taps = taps_of(j->im), .w = slice, .c = v0 * j->k->lanes, .dst_row = width};
    for (int64_t i = 0; i < j->im->in; i += t.run) {
        t.run = CC_MIN(j->im->in - i, CC_MAX(1, SLICE / (t.taps * width)));
        pack_slice(j, v0, vecs, i, t.run, slice);
        t.odd = i + t.run == j->im->in && !j->flat ? &odd : NULL;
        for (int64_t k = first; k < last; k++) {
            const int64_t p = first_pixel(j, k);
            const int rows = (int)(first_pixel(j, k + 1) - p);
            find_taps(j, p, rows, i, a);
            t.dst = sums + (p - first_pixel(j, first)) * width;
            t.sum = i ? t.dst : NULL;
            if (i + t.run == j->im->in) finish_tile(j, t, p, rows, vecs);
            else j->k->tile[rows - 1][vecs - 1](&t);
        }
    }
    return !odd;
}

/* Units: [panel][chunk]. */
static void direct_sliced(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const int64_t wide = PANEL * j->k->lanes, most = (j->tiles + j->chunks - 1) / j->chunks * j->k->rows;
    const int64_t numbers = CC_MAX(SLICE, taps_of(j->im) * wide);
    float *slice = cc_scratch_thread(sizeof *slice * (size_t)(numbers + most * wide));
    bool odd = false;
    if (!slice) atomic_store(&j->failed, true);
    for (int64_t u = begin; slice && u < end; u++)
        odd = !sliced_unit(j, u / j->chunks, u % j->chunks, slice, slice + numbers) || odd;
    if (odd) atomic_store(&j->odd, true);
}

static void divide_direct(Job *j, int parts) {
    const CcImage *im = j->im;
    j->tiles = (j->pixels + j->k->rows - 1) / j->k->rows;
    if (j->sliced) { /* a panel's weights are packed once, unless there are more threads than panels */
        j->chunks = CC_MIN(j->tiles, (parts + j->panels - 1) / j->panels);
        return;
    }
    const int64_t bytes = (int64_t)sizeof(float) * im->in * im->step[0] * im->step[1] * j->pixels;
    const int64_t weights = im->out * depth_of(im) * (int64_t)sizeof(float);
    j->by_panel = weights > bytes;
    j->chunks = CC_MAX(1, bytes / (weights <= WEIGHTS_NEAR ? NEAR : FAR));
    if (j->chunks * j->panels < UNITS * parts) j->chunks = (UNITS * parts + j->panels - 1) / j->panels;
    j->chunks = CC_MIN(j->chunks, j->tiles);
}

/* ------------------------------------------------------------------ DEPTH */

/* Rows of an image that come one after the other; the last ones stay. */
typedef struct Ring {
    float *at;
    int64_t rows, row; /* floats of a row */
} Ring;

static Line make_line(const Job *j) {
    const CcImage *im = j->im;
    const int64_t reach = (im->kernel[1] - 1) * im->dilation[1];
    Line l = {.finish = &j->finish,
              .columns = im->kernel[1],
              .channels = im->out,
              .width = im->out_size[1],
              .src_width = im->size[1],
              .src_x = j->x,
              .step = im->step[1],
              .dilation = im->dilation[1],
              .before = im->before[1]};
    l.inner0 = CC_MIN(l.width, (CC_MAX(0, l.before) + l.step - 1) / l.step);
    const int64_t room = l.src_width - reach - 1 + l.before; /* x * step <= room */
    l.inner1 = room < 0 ? 0 : CC_MIN(l.width, room / l.step + 1);
    return l;
}

/* Row u of all outputs; ring NULL: the inputs lie in memory. */
static void depth_row(const Job *j, Line *l, int64_t u, const Ring *ring) {
    const CcImage *im = j->im;
    const int64_t n = u / im->out_size[0], y = u % im->out_size[0] * im->step[0] - im->before[0];
    const int64_t at = u * im->out_size[1] * im->out;
    l->rows = 0;
    for (int64_t k = 0; k < im->kernel[0]; k++) {
        const int64_t row = y + k * im->dilation[0];
        if (row < 0 || row >= im->size[0]) continue;
        l->src[l->rows] = ring ? ring->at + row % ring->rows * ring->row : j->src + n * j->n + row * j->y;
        l->w[l->rows++] = j->w + k * im->kernel[1] * im->out;
    }
    l->dst = j->call->dst + at;
    l->more = j->call->more ? j->call->more + at : NULL;
    j->k->depth(l);
}

/* Units: rows of all outputs. */
static void depthwise(void *ctx, int64_t begin, int64_t end) {
    const Job *j = ctx;
    Line l = make_line(j);
    for (int64_t u = begin; u < end; u++) depth_row(j, &l, u, NULL);
}

/* ------------------------------------------------------------------ DIRECT and behind it DEPTH, row by row */

typedef struct Pair {
    Job wide, deep;
    atomic_bool failed;
} Pair;

/* Pixels [p, p + n) of a flat DIRECT. */
static void direct_pixels(const Job *j, int64_t p, int64_t n, float *to) {
    const int64_t tiles = (n + j->k->rows - 1) / j->k->rows, out = j->im->out;
    const float *a[MAX_ROWS];
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t first = n * i / tiles, rows = n * (i + 1) / tiles - first;
        find_taps(j, p + first, (int)rows, 0, a);
        for (int64_t panel = 0; panel < j->panels; panel++) {
            const int64_t v0 = first_vec(j, panel), c = v0 * j->k->lanes;
            const Tile t = {.a = a,
                            .taps = 1,
                            .run = j->im->in,
                            .dst_row = out,
                            .w = j->w + c * j->im->in,
                            .dst = to + first * out + c,
                            .finish = &j->finish,
                            .c = c};
            j->k->tile[rows - 1][first_vec(j, panel + 1) - v0 - 1](&t);
        }
    }
}

/* Units: rows of all outputs. */
static void run_pair(void *ctx, int64_t begin, int64_t end) {
    Pair *p = ctx;
    const CcImage *im = p->deep.im;
    const int64_t reach = (im->kernel[0] - 1) * im->dilation[0];
    Ring ring = {.rows = reach + 1, .row = im->size[1] * im->out};
    Line l = make_line(&p->deep);
    ring.at = cc_scratch_thread(sizeof *ring.at * (size_t)(ring.rows * ring.row));
    if (!ring.at) {
        atomic_store(&p->failed, true);
        return;
    }
    for (int64_t u = begin, image = -1, next = 0; u < end; u++) {
        const int64_t n = u / im->out_size[0], y = u % im->out_size[0] * im->step[0] - im->before[0];
        if (n != image) next = 0;
        image = n;
        for (next = CC_MAX(next, y); next <= CC_MIN(y + reach, im->size[0] - 1); next++)
            direct_pixels(&p->wide, (n * im->size[0] + next) * im->size[1], im->size[1],
                          ring.at + next % ring.rows * ring.row);
        depth_row(&p->deep, &l, u, &ring);
    }
}

/* ------------------------------------------------------------------ WINO */

static int64_t tiles_along(const CcImage *im, int d) { return (im->out_size[d] + im->tile - 1) / im->tile; }

/* Planes are a little apart, so that they don't all fall on the same sets of the caches. */
static int64_t plane_of(int64_t tiles, int64_t channels) { return tiles * channels + 16; }

static void divide_wino(Job *j, int parts) {
    const CcImage *im = j->im;
    const int64_t bytes = (int64_t)sizeof(float) * products_of(im) * (im->in + PANEL * j->k->lanes);
    j->tiles = im->batch * tiles_along(im, 0) * tiles_along(im, 1);
    const int64_t most = CC_MAX(WINO_NEAR / bytes, 2 * j->k->rows);
    j->chunks = (j->tiles + most - 1) / most;
    /* Few tiles: threads take panels of all of them, and each its own copy of what becomes of the inputs. */
    j->by_panel = j->chunks < 2 * parts && j->panels >= parts;
    if (!j->by_panel) j->chunks = (j->chunks + parts - 1) / parts * parts;
}

/* The inputs of tiles [first, last). */
static void scatter(const Job *j, int64_t first, int64_t last, float *to, int64_t plane) {
    const CcImage *im = j->im;
    const int64_t down = tiles_along(im, 0), along = tiles_along(im, 1);
    const int side = im->tile + 2;
    for (int64_t t = first; t < last; t++, to += im->in) {
        const float *at[MAX_WINO], *image = j->src + t / (down * along) * j->n;
        const int64_t y0 = t / along % down * im->tile - im->before[0], x0 = t % along * im->tile - im->before[1];
        for (int i = 0; i < side * side; i++) {
            const int64_t y = y0 + i / side, x = x0 + i % side;
            at[i] = y >= 0 && y < im->size[0] && x >= 0 && x < im->size[1] ? image + y * j->y + x * j->x : ZEROS;
        }
        j->k->scatter[im->tile == 4](at, im->in, to, plane);
    }
}

static bool gather(const Job *j, int64_t first, int64_t last, Spread s) {
    const CcImage *im = j->im;
    const int64_t down = tiles_along(im, 0), along = tiles_along(im, 1);
    const int64_t most = j->k->lanes / im->tile; /* tiles at a time */
    bool odd = false;
    s.finish = &j->finish;
    const int64_t apart = im->channels_first ? 1 : im->out; /* pixels */
    s.dst_x = apart;
    s.dst_y = apart * im->out_size[1];
    s.dst_c = im->channels_first ? im->out_size[0] * im->out_size[1] : 0;
    for (int64_t t = first; t < last; t += s.tiles, s.from += s.tiles * s.channels) {
        const int64_t y = t / along % down * im->tile, x = t % along * im->tile;
        const int64_t image = im->out_size[0] * im->out_size[1] * im->out * (t / (down * along));
        const int64_t at = image + y * s.dst_y + x * s.dst_x + s.c * (s.dst_c ? s.dst_c : 1);
        s.dst = j->call->dst + at;
        s.more = j->call->more ? j->call->more + at : NULL;
        s.tiles = (int)CC_MIN(CC_MIN(most, along - t % along), last - t);
        s.rows = (int)CC_MIN(im->tile, im->out_size[0] - y);
        s.columns = (int)CC_MIN(s.tiles * im->tile, im->out_size[1] - x);
        odd = j->k->gather[im->tile == 4](&s) || odd;
    }
    return odd;
}

/* The products of `tiles` tiles and a panel. */
static void multiply(const Job *j, int64_t panel, int64_t tiles, const float *from, int64_t from_plane, float *to,
                     int64_t to_plane) {
    const int64_t v0 = first_vec(j, panel), vecs = first_vec(j, panel + 1) - v0, width = vecs * j->k->lanes;
    const int64_t in = j->im->in, groups = (tiles + j->k->rows - 1) / j->k->rows;
    const float *a[MAX_ROWS];
    Tile t = {.a = a, .taps = 1, .run = in, .dst_row = width, .w = j->w + wino_weights(j, panel)};
    for (int i = 0; i < products_of(j->im); i++, from += from_plane, to += to_plane, t.w += weights_plane(j->im, width))
        for (int64_t g = 0; g < groups; g++) {
            const int64_t first = tiles * g / groups, rows = tiles * (g + 1) / groups - first;
            for (int64_t r = 0; r < rows; r++) a[r] = from + (first + r) * in;
            t.dst = to + first * width;
            j->k->tile[rows - 1][vecs - 1](&t);
        }
}

/* Units: [chunk][panel], or chunks with all their panels. */
static void winograd(void *ctx, int64_t begin, int64_t end) {
    Job *j = ctx;
    const int64_t in = j->im->in, most = (j->tiles + j->chunks - 1) / j->chunks, wide = PANEL * j->k->lanes;
    const int products = products_of(j->im);
    float *at = cc_scratch_thread(sizeof *at * (size_t)(products * (plane_of(most, in) + plane_of(most, wide))));
    float *sums = at + products * plane_of(most, in);
    if (!at) {
        atomic_store(&j->failed, true);
        return;
    }
    const int64_t panels = j->by_panel ? j->panels : 1;
    bool odd = false;
    for (int64_t u = begin, before = -1; u < end; u++) {
        const int64_t chunk = u / panels;
        const int64_t first = j->tiles * chunk / j->chunks, n = j->tiles * (chunk + 1) / j->chunks - first;
        const int64_t from = j->by_panel ? u % panels : 0, to = j->by_panel ? from + 1 : j->panels;
        if (chunk != before) scatter(j, first, first + n, at, plane_of(n, in));
        before = chunk;
        for (int64_t p = from; p < to; p++) {
            const int64_t v0 = first_vec(j, p), width = (first_vec(j, p + 1) - v0) * j->k->lanes;
            multiply(j, p, n, at, plane_of(n, in), sums, plane_of(n, width));
            odd =
                gather(j, first, first + n,
                       (Spread){.from = sums, .plane = plane_of(n, width), .channels = width, .c = v0 * j->k->lanes}) ||
                odd;
        }
    }
    if (odd) atomic_store(&j->odd, true);
}

/* ------------------------------------------------------------------ a call */

bool cc_image_can(const CcImage *im) {
    const Kernels *k = kernels_of_cpu();
    const int64_t taps = taps_of(im);
    const bool last = im->src_stride[1] == 1, whole = im->out % k->lanes == 0;
    if (taps > MAX_TAPS || im->in > MAX_RUN) return false;
    switch (im->way) {
    case CC_IMAGE_DIRECT: return last && !im->channels_first;
    case CC_IMAGE_DEPTH: return last && whole && !im->channels_first;
    case CC_IMAGE_WINO:
        for (int d = 0; d < 2; d++)
            if (im->kernel[d] != 3 || im->step[d] != 1 || im->dilation[d] != 1) return false;
        return last && whole && im->in % k->lanes == 0;
    case CC_IMAGE_FEW: return cc_few_can(im);
    }
    return false;
}

bool cc_image_pays(const CcImage *im, bool packed) {
    const int64_t tiles = im->way == CC_IMAGE_WINO ? im->batch * tiles_along(im, 0) * tiles_along(im, 1) : 0;
    const int64_t pixels = pixels_of(im);
    switch (im->way) {
    case CC_IMAGE_DEPTH:
    case CC_IMAGE_FEW: return true;
    case CC_IMAGE_DIRECT:
        return taps_of(im) == 1 ||
               ((packed || can_slice(im, kernels_of_cpu())) && im->in >= FEW_CHANNELS && taps_of(im) < LARGE_WINDOW);
    case CC_IMAGE_WINO:
        if (im->tile == 2) return 9 * pixels - products_of(im) * tiles >= (packed ? WINO_SAVED : WINO_SAVED_UNPACKED);
        return packed && tiles >= WINO_TILES && products_of(im) * im->in * im->out <= WINO_WEIGHTS;
    }
    return false;
}

int64_t cc_image_channels(int64_t out) {
    const int64_t lanes = kernels_of_cpu()->lanes;
    return (out + lanes - 1) / lanes * lanes;
}

static Job make_job(const CcImage *im, const CcImageCall *call) {
    Job j = {.im = im,
             .call = call,
             .k = kernels_of_cpu(),
             .src = call->src,
             .finish = {call->scale, call->shift, im->low, im->high},
             .n = im->src_stride[0],
             .y = im->src_stride[2],
             .x = im->src_stride[3],
             .pixels = pixels_of(im)};
    j.flat = taps_of(im) == 1 && (im->size[0] == 1 || j.y == j.x * im->size[1]) &&
             (im->batch == 1 || j.n == j.x * im->size[0] * im->size[1]);
    for (int d = 0; d < 2; d++)
        j.flat = j.flat && im->step[d] == 1 && im->before[d] == 0 && im->size[d] == im->out_size[d];
    j.vecs = (im->out + j.k->lanes - 1) / j.k->lanes;
    j.panels = (j.vecs + PANEL - 1) / PANEL;
    return j;
}

static int perform(Job *j) {
    const CcImage *im = j->im;
    const int64_t work = j->pixels * im->out * im->kernel[0] * im->kernel[1] * (im->way == CC_IMAGE_DEPTH ? 1 : im->in);
    const int parts = work <= SMALL ? 1 : cc_omp_width();
    switch (im->way) {
    case CC_IMAGE_DIRECT:
        divide_direct(j, parts);
        cc_omp_run(j->sliced ? direct_sliced : direct, j, j->chunks * j->panels, parts);
        break;
    case CC_IMAGE_FEW: break; /* few.c */
    case CC_IMAGE_DEPTH: cc_omp_run(depthwise, j, im->batch * im->out_size[0], parts); break;
    case CC_IMAGE_WINO:
        divide_wino(j, parts);
        cc_omp_run(winograd, j, j->chunks * (j->by_panel ? j->panels : 1), parts);
        break;
    }
    return atomic_load(&j->failed) ? -1 : 0;
}

/* The whole call; -> 1: something is not finite. */
static int run_once(const CcImage *im, const CcImageCall *call, bool careful) {
    Job j = make_job(im, call);
    j.careful = careful;
    j.sliced = !careful && !call->packed && can_slice(im, j.k);
    CcScratch *block;
    float *room = take_room(call, room_for(&j), &block);
    CcPack *pack = NULL;
    int status = room ? find_weights(&j, room, &pack) : -1;
    if (!status) status = perform(&j);
    cc_packed_done(pack);
    cc_scratch_give(block);
    return status ? status : atomic_load(&j.odd);
}

static int run_carefully(const CcImage *im, const CcImageCall *call) {
    CcImage other = *im;
    CcImageCall directly = *call;
    const int64_t area = im->out_size[0] * im->out_size[1], images = im->channels_first ? im->batch : 0;
    other.way = CC_IMAGE_DIRECT;
    other.channels_first = false;
    if (im->way != CC_IMAGE_DIRECT) directly.packed = NULL;
    directly.scratch = NULL; /* it was asked for another way */
    if (images) directly.dst = malloc(sizeof(float) * (size_t)(images * area * im->out));
    const int status = directly.dst ? run_once(&other, &directly, true) : -1;
    for (int64_t n = 0; n < images && status >= 0; n++)
        for (int64_t c = 0; c < im->out; c++)
            for (int64_t p = 0; p < area; p++)
                call->dst[(n * im->out + c) * area + p] = directly.dst[(n * area + p) * im->out + c];
    if (images) free(directly.dst);
    return status;
}

int cc_image_run(const CcImage *im, const CcImageCall *call, CcErr *err) {
    int status = im->way == CC_IMAGE_FEW ? cc_few_run(im, call) : run_once(im, call, false);
    if (status > 0) status = run_carefully(im, call);
    return status < 0 ? cc_err_set(err, CC_E_MEMORY, "no memory for a convolution") : 0;
}

bool cc_image_can_pair(const CcImage *wide, const CcImage *deep) {
    const CcImage *const both[] = {wide, deep};
    const int64_t numbers = wide->batch * wide->out_size[0] * wide->out_size[1] * wide->out;
    const CcImageCall none = {0};
    return cc_image_can(both[0]) && cc_image_can(both[1]) && wide->way == CC_IMAGE_DIRECT &&
           deep->way == CC_IMAGE_DEPTH && wide->out == deep->out && make_job(wide, &none).flat && numbers >= PAIR_FROM;
}

int cc_image_run_pair(const CcImage *wide, const CcImageCall *first, const CcImage *deep, const CcImageCall *second,
                      CcErr *err) {
    Pair p = {.wide = make_job(wide, first), .deep = make_job(deep, second)};
    const int64_t rooms[] = {room_for(&p.wide), room_for(&p.deep)};
    CcScratch *block;
    float *room = take_room(first, rooms[0] + rooms[1], &block);
    CcPack *packs[2] = {NULL};
    int status = room ? find_weights(&p.wide, room, &packs[0]) : -1;
    if (!status) status = find_weights(&p.deep, room + rooms[0], &packs[1]);
    if (!status) cc_omp_run(run_pair, &p, deep->batch * deep->out_size[0], cc_omp_width());
    if (atomic_load(&p.failed)) status = -1;
    for (int i = 0; i < 2; i++) cc_packed_done(packs[i]);
    cc_scratch_give(block);
    return status ? cc_err_set(err, CC_E_MEMORY, "no memory for two convolutions") : 0;
}
