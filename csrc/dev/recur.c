/* recur: recurrent layers (LSTM, GRU, RNN). Hidden units are processed in blocks of one vector. All gates of a block
 * are stored together, so that a step's product and its cell function meet in L1.
 *
 *   for chunks of steps:                          as many as fit their gates in L2
 *     gates[step][row][block][gate][lane]         = bi + x @ wi^T, all rows at once
 *     for each step, blocks x tiles of rows:      sum = bh + h @ wh^T; h, c = cell(gates, sum)
 *
 * If the weights fit each core's L2, threads divide the batch and never wait for each other; else they divide the
 * blocks. Weights are packed into panels [block][k][gate][lane]; with a single row they are read in place. */
#include <immintrin.h>

#include "dev_int.h"

enum {
    MAX_GATES = 4,
    MAX_ROWS = 6,
    MAX_LANES = 16,
    CHUNK = 1 << 17, /* most floats of a chunk's gates: 512 KB */
    DIRECT_ROWS = 2, /* most rows over all steps for which packing does not pay */
    /* the same for steps of batch 1 (LSTM of 256: 8 steps in place 0.155 ms, packed 0.174; 64 steps 1.04, 0.96; Zen 4) */
    DIRECT_STEPS = 16,
    SMALL = 1 << 19, /* multiply-adds below which a second thread is not worth its barrier */
    /* Most floats of recurrent weights that stay in each core's L2 (512 KB of 1 MB). 16 steps of an LSTM, divided by
     * blocks and by rows, ms: 32 units, batch 8 0.032, 0.023; 64, 8 0.081, 0.056; 128, 4 0.141, 0.109; 128, 64 1.395,
     * 1.362; 192, 4 0.223, 0.249; 256, 4 0.375, 0.446; Zen 4, 2 threads. */
    WEIGHTS_L2 = 1 << 17
};

typedef struct Product {
    const float *a, *w, *first;
    float *dst;
    int64_t a_row, dst_row, n;
} Product;

typedef struct Cell {
    int rows;
    int64_t units; /* hidden units in the block */
    const float *gates, *sum, *h;
    float *c, *y, *kept, *cells;
    int64_t gates_row, h_row, c_row, y_row, cells_row, hidden;
} Cell;

/* The backward of a step for rows of a block of units. */
typedef struct Uncell {
    int rows;
    int64_t units;
    const float *sum, *grad_y, *y, *kept, *cells; /* sum: what the next step gives h; NULL: none; grad_y: NULL: 0 */
    const float *before;                          /* h, or an LSTM's cells, before the step */
    float *dx, *dh, *carry; /* carry: what the next step gives to the cells (LSTM), or to h past the gates (GRU) */
    int64_t sum_row, grad_row, y_row, before_row, hidden;
} Uncell;

typedef struct Kernels {
    int lanes, rows;
    void (*product[MAX_ROWS][MAX_GATES])(const Product *p); /* [rows - 1][gates - 1] */
    void (*direct)(const Product *p, int gates, int64_t w_row, int64_t gate_row, int64_t units);
    void (*pack)(const float *w, int64_t w_row, int64_t gate_row, int gates, int64_t units, int64_t n, float *to);
    void (*cell[4])(const Cell *c);
    void (*kept[4])(const Cell *c); /* the same, which keeps what the backward reads; NULL: nothing */
    void (*back[4])(const Uncell *c);
} Kernels;

#define LANES 16
#define ROWS 6
#include "recur.inc"

#define LANES 8
#define ROWS 3
#include "recur.inc"

#define LANES 4
#define ROWS 2
#include "recur.inc"

static const Kernels *kernels_of_cpu(void) { return CC_CPU_WIDEST(&KERNELS); }

/* The weights of one product. */
typedef struct Matrix {
    const float *at, *panels; /* panels NULL: read in place */
    int64_t row, n;
    CcPack *kept;
    const float *bias; /* [block][gate][lane] */
} Matrix;

typedef struct Layer {
    const CcRecur *r;
    const CcRecurCall *call;
    const Kernels *k;
    int gates;
    int64_t blocks, width; /* width: floats of a block's gates */
    Matrix wi, wh;
    float *at, *c;           /* gates, [chunk][batch][blocks * width]; c [batch][blocks * lanes] */
    int64_t row0, rows;      /* batch rows of this thread, or of all threads */
    int64_t t0, chunk;       /* first step of the chunk in memory, and its number of steps */
    int64_t t, tiles, h_row; /* the current step */
    const float *h;
} Layer;

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t units_of(const Layer *l, int64_t block) {
    return CC_MIN(l->k->lanes, l->r->hidden - block * l->k->lanes);
}
static int parts_for(int64_t work) { return work < SMALL ? 1 : cc_omp_width(); }

/* Steps of a chunk. */
static int64_t chunk_of(const CcRecur *r, int64_t gates_row) {
    return CC_MAX(1, CC_MIN(r->steps, CHUNK / (gates_row * r->batch)));
}

size_t cc_recur_bytes(const CcRecur *r) {
    const int64_t hidden = round_up(r->hidden, kernels_of_cpu()->lanes), row = hidden * cc_cell_gates(r->cell);
    const int64_t floats = row * (r->in + r->hidden + 2 + chunk_of(r, row) * r->batch) + hidden * r->batch;
    return (size_t)floats * sizeof(float);
}

/* ------------------------------------------------------------------ weights */

typedef struct Packing {
    const Layer *l;
    const Matrix *m;
    float *to;
} Packing;

static void pack_blocks(void *ctx, int64_t begin, int64_t end) {
    const Packing *p = ctx;
    const Layer *l = p->l;
    const int64_t gate_row = l->r->hidden * p->m->row;
    for (int64_t b = begin; b < end; b++)
        l->k->pack(p->m->at + b * l->k->lanes * p->m->row, p->m->row, gate_row, l->gates, units_of(l, b), p->m->n,
                   p->to + b * l->width * p->m->n);
}

/* Finds or packs the panels. Panels that are not kept go to *scratch. */
static int find_panels(const Layer *l, Matrix *m, CcPacked *packed, uint64_t version, bool direct, float **scratch) {
    const int64_t floats = l->blocks * l->width * m->n;
    const CcPackForm form = {CC_PACK_RECUR, {m->row, m->n, l->gates, l->r->hidden, l->k->lanes}};
    m->kept = packed ? cc_packed_find(packed, m->at, version, &form) : NULL;
    if (m->kept) m->panels = (const float *)m->kept->at;
    if (m->kept || (direct && !packed)) return 0;
    float *to = *scratch;
    if (packed) {
        m->kept = cc_packed_make((size_t)floats * sizeof *to, m->at, version, &form);
        if (!m->kept) return -1;
        to = (float *)m->kept->at;
    } else {
        *scratch += floats;
    }
    m->panels = to;
    cc_omp_run(pack_blocks, &(Packing){l, m, to}, l->blocks, parts_for(floats));
    if (packed) cc_packed_keep(packed, m->kept);
    return 0;
}

static const float *pack_bias(const Layer *l, const float *bias, float **scratch) {
    float *to = *scratch, *at = to;
    for (int64_t b = 0; b < l->blocks; b++)
        for (int g = 0; g < l->gates; g++)
            for (int lane = 0; lane < l->k->lanes; lane++)
                *at++ = bias && lane < units_of(l, b) ? bias[g * l->r->hidden + b * l->k->lanes + lane] : 0;
    *scratch = at;
    return to;
}

/* ------------------------------------------------------------------ work units: blocks of hidden units */

/* The gates of one block for n rows. */
static void multiply(const Layer *l, const Matrix *m, int64_t block, Product p, int64_t n) {
    p.first = m->bias + block * l->width;
    p.n = m->n;
    p.w = m->panels ? m->panels + block * l->width * m->n : m->at + block * l->k->lanes * m->row;
    if (!m->panels) {
        for (int64_t r = 0; r < n; r++, p.a += p.a_row, p.dst += p.dst_row)
            l->k->direct(&p, l->gates, m->row, l->r->hidden * m->row, units_of(l, block));
        return;
    }
    for (int64_t tiles = (n + l->k->rows - 1) / l->k->rows; tiles > 0; tiles--) {
        const int64_t rows = (n + tiles - 1) / tiles;
        l->k->product[rows - 1][l->gates - 1](&p);
        p.a += rows * p.a_row;
        p.dst += rows * p.dst_row;
        n -= rows;
    }
}

/* Units: [block][steps or batch rows, whichever are fewer]. */
static void project(void *ctx, int64_t begin, int64_t end) {
    const Layer *l = ctx;
    const CcRecur *r = l->r;
    const int64_t row = l->blocks * l->width;
    const bool by_step = l->rows >= l->chunk; /* all rows of a step at once */
    const int64_t outer = by_step ? l->chunk : l->rows;
    const float *x = l->call->x + l->t0 * r->x_step + l->row0 * r->x_row;
    for (int64_t u = begin; u < end; u++) {
        const int64_t block = u / outer, i = u % outer;
        Product p = {.a = x + i * (by_step ? r->x_step : r->x_row),
                     .a_row = by_step ? r->x_row : r->x_step,
                     .dst = l->at + i * (by_step ? l->rows * row : row) + block * l->width,
                     .dst_row = by_step ? row : l->rows * row};
        multiply(l, &l->wi, block, p, by_step ? l->rows : l->chunk);
    }
}

/* A work unit of a step: a block of hidden units, and a tile of rows. */
typedef struct Tile {
    int64_t block, from, rows;
} Tile;

static Tile tile_of(int64_t unit, int64_t tiles, int64_t rows) {
    const int64_t tile = unit % tiles, from = rows * tile / tiles;
    return (Tile){unit / tiles, from, rows * (tile + 1) / tiles - from};
}

/* Where a row of this step keeps `each` numbers per unit; any address if nothing is kept. */
static float *kept_at(const Layer *l, float *kept, int each, int64_t row) {
    const int64_t at = l->t * l->r->batch + l->row0 + row;
    return kept ? kept + at * each * l->r->hidden : l->call->y;
}

/* Units: [block][tile of rows]. */
static void step(void *ctx, int64_t begin, int64_t end) {
    const Layer *l = ctx;
    const CcRecur *r = l->r;
    const int64_t row = l->blocks * l->width, lanes = l->k->lanes;
    _Alignas(64) float sum[MAX_ROWS * MAX_GATES * MAX_LANES];
    for (int64_t u = begin; u < end; u++) {
        const Tile tile = tile_of(u, l->tiles, l->rows);
        const int64_t block = tile.block, from = tile.from;
        const Product p = {.a = l->h + from * l->h_row, .a_row = l->h_row, .dst = sum, .dst_row = l->width};
        multiply(l, &l->wh, block, p, tile.rows);
        const Cell c = {.rows = (int)tile.rows,
                        .units = units_of(l, block),
                        .sum = sum,
                        .gates_row = row,
                        .gates = l->at + ((l->t - l->t0) * l->rows + from) * row + block * l->width,
                        .h = l->h + from * l->h_row + block * lanes,
                        .h_row = l->h_row,
                        .c = l->c + (from * l->blocks + block) * lanes,
                        .c_row = l->blocks * lanes,
                        .y = l->call->y + l->t * r->y_step + (l->row0 + from) * r->y_row + block * lanes,
                        .y_row = r->y_row,
                        .kept = kept_at(l, l->call->kept, CC_RECUR_KEPT, from) + block * lanes,
                        .cells = kept_at(l, l->call->cells, 1, from) + block * lanes,
                        .cells_row = r->hidden,
                        .hidden = r->hidden};
        (l->call->kept ? l->k->kept : l->k->cell)[r->cell](&c);
    }
}

/* ------------------------------------------------------------------ all steps */

static void run_steps(Layer *l) {
    const CcRecur *r = l->r;
    const int64_t weights = l->blocks * l->width, most = chunk_of(r, weights);
    const int parts = parts_for(weights * r->hidden * l->rows);
    l->tiles = (l->rows + l->k->rows - 1) / l->k->rows;
    l->h = l->call->h + l->row0 * r->h_row;
    l->h_row = r->h_row;
    for (int64_t s = 0; s < r->steps; s++) {
        l->t = r->backward ? r->steps - 1 - s : s;
        if (s % most == 0) {
            l->chunk = CC_MIN(most, r->steps - s);
            l->t0 = r->backward ? l->t - l->chunk + 1 : l->t;
            cc_omp_run(project, l, l->blocks * CC_MIN(l->chunk, l->rows),
                       parts_for(weights * r->in * l->rows * l->chunk));
        }
        cc_omp_run(step, l, l->blocks * l->tiles, parts);
        l->h = l->call->y + l->t * r->y_step + l->row0 * r->y_row;
        l->h_row = r->y_row;
    }
}

/* Should threads divide the batch, so that no step waits for another thread? weights: floats of the recurrent ones */
static bool by_rows(const CcRecur *r, int64_t weights) {
    const int64_t parts = cc_omp_width();
    return parts > 1 && (r->batch % parts == 0 || r->batch >= 2 * parts) && weights <= WEIGHTS_L2 &&
           weights * r->batch * r->steps >= SMALL / 8;
}

/* All steps of batch rows [begin, end), on one thread (cc_omp_run does not nest). */
static void run_rows(void *ctx, int64_t begin, int64_t end) {
    Layer l = *(const Layer *)ctx;
    const int64_t weights = l.blocks * l.width;
    l.at += begin * chunk_of(l.r, weights) * weights;
    l.c += begin * l.blocks * l.k->lanes;
    l.row0 = begin;
    l.rows = end - begin;
    run_steps(&l);
}

static void copy_rows(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * to_row, from + i * from_row, sizeof *to * (size_t)n);
}

int cc_recur_run(const CcRecur *r, const CcRecurCall *call, CcErr *err) {
    Layer l = {.r = r, .call = call, .k = kernels_of_cpu(), .gates = cc_cell_gates(r->cell), .rows = r->batch};
    float *scratch = call->scratch;
    l.blocks = (r->hidden + l.k->lanes - 1) / l.k->lanes;
    l.width = l.gates * l.k->lanes;
    const int64_t c_row = l.blocks * l.k->lanes, rows = r->steps * r->batch;
    l.wi = (Matrix){.at = call->wi, .row = r->wi_row, .n = r->in, .bias = pack_bias(&l, call->bi, &scratch)};
    l.wh = (Matrix){.at = call->wh, .row = r->wh_row, .n = r->hidden, .bias = pack_bias(&l, call->bh, &scratch)};
    l.c = scratch;
    scratch += c_row * r->batch;
    int status = find_panels(&l, &l.wi, call->packed_wi, call->version_wi, rows <= DIRECT_ROWS, &scratch);
    const bool direct = rows <= (r->batch == 1 ? DIRECT_STEPS : DIRECT_ROWS);
    if (!status) status = find_panels(&l, &l.wh, call->packed_wh, call->version_wh, direct, &scratch);
    l.at = scratch;
    if (!status) {
        if (r->cell == CC_CELL_LSTM) {
            memset(l.c, 0, sizeof *l.c * (size_t)(c_row * r->batch));
            copy_rows(l.c, c_row, call->c, r->c_row, r->batch, r->hidden);
        }
        if (by_rows(r, l.blocks * l.width * r->hidden)) cc_omp_run(run_rows, &l, r->batch, cc_omp_width());
        else run_steps(&l);
        const float *h = call->y + (r->backward ? 0 : r->steps - 1) * r->y_step;
        if (call->last_h) copy_rows(call->last_h, r->hidden, h, r->y_row, r->batch, r->hidden);
        if (call->last_c) copy_rows(call->last_c, r->hidden, l.c, c_row, r->batch, r->hidden);
    }
    cc_packed_done(l.wi.kept);
    cc_packed_done(l.wh.kept);
    return status ? cc_err_set(err, CC_E_MEMORY, "no memory for packed weights") : 0;
}

/* ------------------------------------------------------------------ the backward */

/* Steps are gone through in the reverse order. The gradient of h before a step is a product of the gradients of all its
 * gates' sums with the weights, so that a step waits for all blocks of the step behind it; the rest is a matter of single
 * units. A block has MAX_GATES vectors of units, for registers' sake. */
typedef struct Back {
    const CcRecur *r;
    const CcRecurBack *call;
    const Kernels *k;
    int gates;
    int64_t blocks, width; /* width: units of a block */
    float *panels;         /* [block][gates * hidden][width] */
    const float *zeros;
    float *carry; /* [batch][hidden] */
    int64_t row0, rows, t, tiles;
} Back;

/* The step before t, in the forward's order; -1: there is none. */
static int64_t step_before(const CcRecur *r, int64_t t) {
    if (r->backward) return t + 1 < r->steps ? t + 1 : -1;
    return t - 1;
}

static bool is_last(const CcRecur *r, int64_t t) { return t == (r->backward ? 0 : r->steps - 1); }

static int64_t back_blocks(const CcRecur *r, int64_t width) { return (r->hidden + width - 1) / width; }

size_t cc_recur_back_bytes(const CcRecur *r) {
    const int64_t width = MAX_GATES * kernels_of_cpu()->lanes;
    const int64_t panels = back_blocks(r, width) * width * cc_cell_gates(r->cell) * r->hidden;
    return (size_t)(panels + width + r->batch * r->hidden) * sizeof(float);
}

static void pack_turned(void *ctx, int64_t begin, int64_t end) {
    const Back *b = ctx;
    const int64_t rows = b->gates * b->r->hidden;
    for (int64_t block = begin; block < end; block++) {
        const int64_t units = CC_MIN(b->width, b->r->hidden - block * b->width);
        float *to = b->panels + block * rows * b->width;
        for (int64_t k = 0; k < rows; k++, to += b->width) {
            memcpy(to, b->call->wh + k * b->r->wh_row + block * b->width, sizeof *to * (size_t)units);
            memset(to + units, 0, sizeof *to * (size_t)(b->width - units));
        }
    }
}

/* What step t gives to h before it, of a tile's rows: sum [rows][width]. */
static void sum_of(const Back *b, int64_t t, const Tile *tile, float *sum) {
    const int64_t gates = b->gates * b->r->hidden;
    const Product p = {.a = b->call->dh + (t * b->r->batch + b->row0 + tile->from) * gates,
                       .a_row = gates,
                       .w = b->panels + tile->block * gates * b->width,
                       .first = b->zeros,
                       .dst = sum,
                       .dst_row = b->width,
                       .n = gates};
    b->k->product[tile->rows - 1][MAX_GATES - 1](&p);
}

/* Units: [block][tile of rows]. */
static void unstep(void *ctx, int64_t begin, int64_t end) {
    const Back *b = ctx;
    const CcRecur *r = b->r;
    const CcRecurBack *call = b->call;
    const int64_t before = step_before(r, b->t);
    const bool last = is_last(r, b->t);
    _Alignas(64) float sum[MAX_ROWS * MAX_GATES * MAX_LANES];
    for (int64_t u = begin; u < end; u++) {
        const Tile tile = tile_of(u, b->tiles, b->rows);
        const int64_t unit = tile.block * b->width, row = b->row0 + tile.from;
        const int64_t at = b->t * r->batch + row, gates = b->gates * r->hidden;
        if (!last) sum_of(b, r->backward ? b->t - 1 : b->t + 1, &tile, sum);
        Uncell c = {.rows = (int)tile.rows,
                    .units = CC_MIN(b->width, r->hidden - unit),
                    .sum = last ? NULL : sum,
                    .sum_row = b->width,
                    .grad_y = call->grad_y ? call->grad_y + b->t * call->grad_step + row * call->grad_row + unit : NULL,
                    .grad_row = call->grad_row,
                    .y = call->y + b->t * r->y_step + row * r->y_row + unit,
                    .y_row = r->y_row,
                    .hidden = r->hidden,
                    .kept = call->y, /* RNNs keep nothing else */
                    .dx = call->dx + at * gates + unit,
                    .dh = call->dh + at * gates + unit,
                    .carry = b->carry + row * r->hidden + unit};
        if (call->kept) c.kept = call->kept + at * CC_RECUR_KEPT * r->hidden + unit;
        if (r->cell == CC_CELL_LSTM) {
            c.cells = call->cells + at * r->hidden + unit;
            c.before = before < 0 ? call->c + row * r->c_row + unit
                                  : call->cells + (before * r->batch + row) * r->hidden + unit;
            c.before_row = before < 0 ? r->c_row : r->hidden;
        } else if (r->cell == CC_CELL_GRU) {
            c.before =
                before < 0 ? call->h + row * r->h_row + unit : call->y + before * r->y_step + row * r->y_row + unit;
            c.before_row = before < 0 ? r->h_row : r->y_row;
        }
        b->k->back[r->cell](&c);
    }
}

/* The gradient of h, from the first step, to which `t` was set last. Units as unstep's. */
static void finish(void *ctx, int64_t begin, int64_t end) {
    const Back *b = ctx;
    const int64_t hidden = b->r->hidden;
    _Alignas(64) float sum[MAX_ROWS * MAX_GATES * MAX_LANES];
    for (int64_t u = begin; u < end; u++) {
        const Tile tile = tile_of(u, b->tiles, b->rows);
        const int64_t unit = tile.block * b->width, units = CC_MIN(b->width, hidden - unit);
        sum_of(b, b->t, &tile, sum);
        for (int64_t i = 0; i < tile.rows; i++) {
            const int64_t at = (b->row0 + tile.from + i) * hidden + unit;
            for (int64_t k = 0; k < units; k++)
                b->call->first_h[at + k] = sum[i * b->width + k] + (b->r->cell == CC_CELL_GRU ? b->carry[at + k] : 0);
        }
    }
}

static void run_back(Back *b) {
    const CcRecur *r = b->r;
    const int parts = parts_for(b->blocks * b->width * b->gates * r->hidden * b->rows);
    b->tiles = (b->rows + b->k->rows - 1) / b->k->rows;
    for (int64_t s = 0; s < r->steps; s++) {
        b->t = r->backward ? s : r->steps - 1 - s;
        cc_omp_run(unstep, b, b->blocks * b->tiles, parts);
    }
    if (b->call->first_h) cc_omp_run(finish, b, b->blocks * b->tiles, parts);
}

/* All steps of batch rows [begin, end), on one thread. */
static void run_back_rows(void *ctx, int64_t begin, int64_t end) {
    Back b = *(const Back *)ctx;
    b.row0 = begin;
    b.rows = end - begin;
    run_back(&b);
}

void cc_recur_back(const CcRecur *r, const CcRecurBack *call) {
    Back b = {.r = r, .call = call, .k = kernels_of_cpu(), .gates = cc_cell_gates(r->cell), .rows = r->batch};
    b.width = MAX_GATES * b.k->lanes;
    b.blocks = back_blocks(r, b.width);
    const int64_t weights = b.blocks * b.width * b.gates * r->hidden;
    b.panels = call->scratch;
    float *zeros = b.panels + weights;
    b.zeros = memset(zeros, 0, sizeof *zeros * (size_t)b.width);
    b.carry = memset(zeros + b.width, 0, sizeof *zeros * (size_t)(r->batch * r->hidden));
    if (call->grad_c) copy_rows(b.carry, r->hidden, call->grad_c, call->grad_c_row, r->batch, r->hidden);
    cc_omp_run(pack_turned, &b, b.blocks, parts_for(weights));
    if (by_rows(r, weights)) cc_omp_run(run_back_rows, &b, r->batch, cc_omp_width());
    else run_back(&b);
    if (call->first_c) copy_rows(call->first_c, r->hidden, b.carry, r->hidden, r->batch, r->hidden);
}
