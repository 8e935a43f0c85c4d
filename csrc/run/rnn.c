/* rnn: torch.lstm, gru, rnn_tanh and rnn_relu (nn.LSTM and the like), layer by layer, without dropout and
 * projections (LSTM's proj_size). Computes in f32: bf16 and f16 operands are widened in each call, results are
 * rounded once.
 *
 *   x [T, B, I] -> layer 0: forwards, backwards -> [T, B, D * H] -> layer 1 ... -> y; h_n, c_n [L * D, B, H] */
#include "run_int.h"

/* Where oneDNN multiplies bf16, eager's products are twice as fast as in f32, but each of its time steps takes many
 * calls. So half precision needs a minimum number of steps to pay for widening the weights, and a maximum number of
 * multiplications per step. GRU, ms, eager and here (Zen 4, 1 thread): 16 steps of 128 units 0.60, 0.08; 32 of 256,
 * batch 8, 2.77, 2.31; 4 of 512, batch 2, 0.61, 0.76; LSTM of the second, which oneDNN does in one call, 1.66, 2.9. */
enum { WIDENED_A_STEP = 1 << 17, STEP_MOST = 1 << 22 };

/* One direction of one layer. */
typedef struct Part {
    CcRecur recur;
    CcDtype type[4]; /* of wi, wh, bi, bh */
    CcSlot wi, wh, bi, bh;
    int64_t wi_row, wh_row;          /* strides between rows */
    CcPacked *packed_wi, *packed_wh; /* for frozen weights, else NULL */
} Part;

typedef struct CcRnn {
    int layers, directions;
    int64_t steps, batch, hidden, in;
    CcSlot x, h, c;
    int y, last_h, last_c;  /* values; -1: not read */
    int64_t h_part, c_part; /* elements between parts */
    int64_t x_step, x_row, x_col, y_step, y_row, h_row, c_row;
    CcDtype x_type, h_type, c_type, y_type; /* y_type: of all results */
    size_t own;                             /* bytes of a part's own scratch memory */
    size_t widened;                         /* bytes for widened operands and unrounded results */
    Part *part;                             /* [layer][direction] */
} CcRnn;

static const CcType *type_of(const CcGraph *g, const CcNode *n, int i) {
    const CcOperand *o = cc_prim_operand(g, n, i);
    return o && o->kind == CC_IN_VALUE ? &g->val.at[o->value].type : NULL;
}

static int value_of(const CcGraph *g, const CcNode *n, int i) { return cc_prim_operand(g, n, i)->value; }

static bool columns_touch(const CcType *t) { return t->size[t->ndim - 1] == 1 || t->stride[t->ndim - 1] == 1; }

/* Has these sizes, with contiguous columns. */
static bool is_like(const CcType *t, int ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t size[3] = {a, b, c};
    return t && cc_prim_float(t) && t->ndim == ndim && memcmp(t->size, size, sizeof *size * (size_t)ndim) == 0 &&
           columns_touch(t);
}

static bool read_roles(const CcGraph *g, const CcNode *n, CcRoles *r) { return cc_roles_read(g, n, r) && r->masks < 0; }

/* Has the result's dtype, or is f32 that autocast would cast. */
static bool fits(const CcType *t, const CcType *result) { return t->dtype == result->dtype || t->dtype == CC_DT_F32; }

/* Types of all results and of the initial states. */
static bool read_ends(const CcGraph *g, const CcNode *n, const CcRoles *r, CcRnn *rnn) {
    const CcType *x = type_of(g, n, CC_ROLE_X), *y = &g->val.at[n->out0].type;
    const int parts = r->layers * r->directions, t = r->batch_first, b = !t;
    if (!x || !cc_prim_float(x) || x->ndim != 3) return false;
    *rnn = (CcRnn){.layers = r->layers,
                   .directions = r->directions,
                   .steps = x->size[t],
                   .batch = x->size[b],
                   .in = x->size[2],
                   .x_step = x->stride[t],
                   .x_row = x->stride[b],
                   .x_col = x->size[2] == 1 ? 1 : x->stride[2],
                   .x = {value_of(g, n, CC_ROLE_X), 0},
                   .c = {-1, 0},
                   .y = n->out0,
                   .y_step = y->stride[t],
                   .y_row = y->stride[b],
                   .x_type = (CcDtype)x->dtype,
                   .y_type = (CcDtype)y->dtype,
                   .last_c = -1};
    const CcType *w = type_of(g, n, r->first + 1);
    if (!w || w->ndim != 2) return false;
    rnn->hidden = w->size[1];
    const int64_t size[2] = {x->size[0], x->size[1]}, hidden = rnn->hidden;
    if (!is_like(y, 3, size[0], size[1], hidden * r->directions) || !cc_type_dense(y) || !fits(x, y)) return false;
    for (int i = 0; i < r->states; i++) {
        const CcType *last = &g->val.at[n->out0 + 1 + i].type, *h = type_of(g, n, CC_ROLE_H + i);
        if (!is_like(h, 3, parts, rnn->batch, hidden) || !is_like(last, 3, parts, rnn->batch, hidden) ||
            !cc_type_contiguous(last) || last->dtype != y->dtype || !fits(h, y))
            return false;
        (i ? &rnn->c : &rnn->h)->value = value_of(g, n, CC_ROLE_H + i);
        *(i ? &rnn->last_c : &rnn->last_h) = n->out0 + 1 + i;
        *(i ? &rnn->c_type : &rnn->h_type) = (CcDtype)h->dtype;
        *(i ? &rnn->c_part : &rnn->h_part) = h->stride[0];
        *(i ? &rnn->c_row : &rnn->h_row) = h->stride[1];
    }
    return true;
}

/* Must x be copied first, so that its rows are contiguous? */
static bool is_copied(const CcRnn *rnn) { return rnn->x_col != 1 || rnn->x_type != CC_DT_F32; }

static bool gains(const CcRnn *rnn, const Part *p) {
    const CcRecur *r = &p->recur;
    if (rnn->y_type != CC_DT_BF16 || !cc_dnnl_native(CC_DT_BF16)) return true;
    const int64_t weights = cc_cell_gates(r->cell) * r->hidden * (r->in + r->hidden);
    return r->cell != CC_CELL_LSTM && weights / r->steps <= WIDENED_A_STEP && weights * r->batch <= STEP_MOST;
}

/* Fills one part; its weights start at operand `at`. False: this family can't do it. */
static bool read_part(const CcGraph *g, const CcNode *n, const CcRoles *r, const CcRnn *rnn, int number, Part *p) {
    const int at = r->first + number * r->weights, layer = number / r->directions;
    const int64_t in = layer ? rnn->hidden * r->directions : rnn->in, gates = cc_cell_gates(r->cell) * rnn->hidden;
    const CcType *wi = type_of(g, n, at), *wh = type_of(g, n, at + 1), *y = &g->val.at[n->out0].type;
    if (!is_like(wi, 2, gates, in, 0) || !is_like(wh, 2, gates, rnn->hidden, 0)) return false;
    for (int i = 2; i < r->weights; i++)
        if (!is_like(type_of(g, n, at + i), 1, gates, 0, 0)) return false;
    *p = (Part){.wi = {value_of(g, n, at), 0},
                .wh = {value_of(g, n, at + 1), 0},
                .bi = {r->bias ? value_of(g, n, at + 2) : -1, 0},
                .bh = {r->bias ? value_of(g, n, at + 3) : -1, 0},
                .wi_row = wi->stride[0],
                .wh_row = wh->stride[0]};
    for (int i = 0; i < r->weights; i++) {
        if (!fits(type_of(g, n, at + i), y)) return false;
        p->type[i] = (CcDtype)type_of(g, n, at + i)->dtype;
    }
    const int64_t wide = rnn->hidden * r->directions; /* elements of a row between layers */
    const bool first = layer == 0, last = layer == r->layers - 1 && rnn->y_type == CC_DT_F32, copied = is_copied(rnn);
    p->recur = (CcRecur){.cell = r->cell,
                         .backward = number % r->directions == 1,
                         .steps = rnn->steps,
                         .batch = rnn->batch,
                         .in = in,
                         .hidden = rnn->hidden,
                         .wi_row = p->type[0] == CC_DT_F32 ? wi->stride[0] : in,
                         .wh_row = p->type[1] == CC_DT_F32 ? wh->stride[0] : rnn->hidden,
                         .x_step = first && !copied ? rnn->x_step : in * rnn->batch,
                         .x_row = first && !copied ? rnn->x_row : in,
                         .y_step = last ? y->stride[r->batch_first] : wide * rnn->batch,
                         .y_row = last ? y->stride[!r->batch_first] : wide};
    p->recur.h_row = rnn->h_type == CC_DT_F32 ? rnn->h_row : rnn->hidden;
    p->recur.c_row = rnn->c_type == CC_DT_F32 ? rnn->c_row : rnn->hidden;
    return gains(rnn, p);
}

static bool can(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    CcRoles r;
    CcRnn rnn;
    Part p;
    if (!read_roles(g, n, &r) || !read_ends(g, n, &r, &rnn)) return false;
    for (int i = 0; i < r.layers * r.directions; i++)
        if (!read_part(g, n, &r, &rnn, i, &p)) return false;
    return true;
}

static void finish_part(const CcGraph *g, Part *p) {
    if (p->type[0] == CC_DT_F32 && cc_prim_frozen(g, p->wi.value)) p->packed_wi = cc_packed_new();
    if (p->type[1] == CC_DT_F32 && cc_prim_frozen(g, p->wh.value)) p->packed_wh = cc_packed_new();
    CcSlot *const slot[] = {&p->wi, &p->wh, &p->bi, &p->bh};
    for (int i = 0; i < CC_COUNT(slot); i++) cc_prim_settle(g, slot[i]);
}

/* Floats for widened states, for final states before rounding, and for the widened weights of a part. */
static int64_t state_floats(const CcRnn *rnn) { return rnn->layers * rnn->directions * rnn->batch * rnn->hidden; }

static int64_t part_floats(const Part *p) {
    const int64_t gates = cc_cell_gates(p->recur.cell) * p->recur.hidden;
    int64_t floats = 0;
    if (p->type[0] != CC_DT_F32) floats += gates * p->recur.in;
    if (p->type[1] != CC_DT_F32) floats += gates * p->recur.hidden;
    return floats + 2 * gates;
}

static size_t widened_bytes(const CcRnn *rnn) {
    int64_t most = 0;
    if (rnn->y_type == CC_DT_F32) return 0;
    for (int i = 0; i < rnn->layers * rnn->directions; i++) most = CC_MAX(most, part_floats(&rnn->part[i]));
    return ((size_t)(most + 4 * state_floats(rnn)) * sizeof(float) + 63) / 64 * 64;
}

static void *build(const CcGraph *g, const int *chain, int n_chain, CcArena *arena, CcErr *err) {
    (void)n_chain; /* no post-ops */
    const CcNode *n = &g->node.at[chain[0]];
    CcRnn *rnn = cc_arena_alloc(arena, sizeof *rnn);
    CcRoles r;
    if (!rnn) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    if (!read_roles(g, n, &r) || !read_ends(g, n, &r, rnn)) return NULL; /* can() has accepted them */
    const int parts = r.layers * r.directions;
    rnn->part = cc_arena_alloc(arena, sizeof *rnn->part * (size_t)parts);
    if (!rnn->part) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    for (int i = 0; i < parts; i++)
        if (!read_part(g, n, &r, rnn, i, &rnn->part[i])) return NULL;
    for (int i = 0; i < parts; i++) {
        finish_part(g, &rnn->part[i]);
        rnn->own = CC_MAX(rnn->own, cc_recur_bytes(&rnn->part[i].recur));
    }
    rnn->own = (rnn->own + 63) / 64 * 64;
    rnn->widened = widened_bytes(rnn);
    cc_prim_settle(g, &rnn->x);
    cc_prim_settle(g, &rnn->h);
    cc_prim_settle(g, &rnn->c);
    cc_prim_unread(g, (int *const[]){&rnn->y, &rnn->last_h, &rnn->last_c}, 3, arena);
    return rnn;
}

/* ------------------------------------------------------------------ running */

/* Memory that a run reads and writes. */
typedef struct Ends {
    const void *x;
    const float *h, *c;
    int64_t h_part, c_part;
    float *y, *last_h, *last_c; /* y NULL: the last layer's result goes to a buffer as well */
    void *half[3];              /* y, last_h and last_c in half precision, or NULL */
    char *own;
    float *weights;   /* widened weights of a part */
    float *buffer[2]; /* results between layers; [0] first holds a copy of x if one is needed */
} Ends;

static size_t buffer_bytes(const CcRnn *rnn) {
    const int64_t wide = CC_MAX(rnn->hidden * rnn->directions, rnn->in), floats = rnn->steps * rnn->batch * wide;
    return ((size_t)floats * sizeof(float) + 63) / 64 * 64;
}

static int buffers(const CcRnn *rnn) {
    return CC_MIN(2, rnn->layers - (rnn->y >= 0 && rnn->y_type == CC_DT_F32) + is_copied(rnn));
}

/* Copies `parts` matrices with gaps between rows into one contiguous f32 block. */
static const float *widen(CcDtype dtype, const void *from, int64_t parts, int64_t part, int64_t rows, int64_t row,
                          int64_t n, float **room) {
    const int64_t size = cc_dtype_size(dtype);
    float *to = *room;
    for (int64_t p = 0; p < parts; p++)
        for (int64_t r = 0; r < rows; r++, *room += n)
            cc_halves_widen(dtype, (const char *)from + (p * part + r * row) * size, *room, n);
    return to;
}

static int find_ends(const CcRnn *rnn, const CcHost *host, Ends *e) {
    const int out[] = {rnn->y, rnn->last_h, rnn->last_c};
    float **const to[] = {&e->y, &e->last_h, &e->last_c};
    e->x = cc_prim_data(host, rnn->x);
    e->h = cc_prim_data(host, rnn->h);
    e->c = cc_prim_data(host, rnn->c);
    if (!e->x || !e->h || (rnn->c.value >= 0 && !e->c)) return -1;
    for (int i = 0; i < CC_COUNT(out); i++) {
        void *made = out[i] < 0 ? NULL : host->make(host->ctx, out[i]);
        if (out[i] >= 0 && !made) return -1;
        if (rnn->y_type == CC_DT_F32) *to[i] = made;
        else e->half[i] = made;
    }
    return 0;
}

/* Widens the states to f32 and allocates room for results before rounding. */
static void widen_ends(const CcRnn *rnn, Ends *e, float *room) {
    const int64_t parts = rnn->layers * rnn->directions;
    e->h_part = rnn->h_part;
    e->c_part = rnn->c_part;
    if (rnn->y_type == CC_DT_F32) return;
    if (rnn->h_type != CC_DT_F32)
        e->h = widen(rnn->h_type, e->h, parts, rnn->h_part, rnn->batch, rnn->h_row, rnn->hidden, &room);
    if (e->c && rnn->c_type != CC_DT_F32)
        e->c = widen(rnn->c_type, e->c, parts, rnn->c_part, rnn->batch, rnn->c_row, rnn->hidden, &room);
    if (rnn->h_type != CC_DT_F32) e->h_part = rnn->batch * rnn->hidden;
    if (rnn->c_type != CC_DT_F32) e->c_part = rnn->batch * rnn->hidden;
    if (e->half[1]) e->last_h = room;
    if (e->half[2]) e->last_c = room + state_floats(rnn);
    e->weights = room + 2 * state_floats(rnn);
}

static void copy_x(const CcRnn *rnn, const char *x, float *to) {
    const int64_t size = cc_dtype_size(rnn->x_type);
    for (int64_t t = 0; t < rnn->steps; t++)
        for (int64_t b = 0; b < rnn->batch; b++, to += rnn->in)
            cc_halves_gather(rnn->x_type, x + (t * rnn->x_step + b * rnn->x_row) * size, rnn->x_col, to, rnn->in);
}

static uint64_t version_of(const CcHost *host, const CcPacked *packed, int value) {
    return packed ? host->version(host->ctx, value) : CC_NO_VERSION;
}

static void widen_weights(const Part *p, CcRecurCall *call, float *room) {
    const CcRecur *r = &p->recur;
    const int64_t gates = cc_cell_gates(r->cell) * r->hidden, n[] = {r->in, r->hidden, gates, gates};
    const int64_t row[] = {p->wi_row, p->wh_row, 0, 0};
    const float **at[] = {&call->wi, &call->wh, &call->bi, &call->bh};
    for (int i = 0; i < 4; i++)
        if (*at[i] && p->type[i] != CC_DT_F32)
            *at[i] = widen(p->type[i], *at[i], 1, 0, i < 2 ? gates : 1, row[i], n[i], &room);
}

static int run_part(const CcRnn *rnn, const CcHost *host, const Ends *e, int number, const float *x, float *y,
                    CcErr *err) {
    const Part *p = &rnn->part[number];
    const int64_t last = number * rnn->batch * rnn->hidden;
    CcRecurCall call = {.x = x,
                        .h = e->h + number * e->h_part,
                        .c = e->c ? e->c + number * e->c_part : NULL,
                        .wi = cc_prim_data(host, p->wi),
                        .wh = cc_prim_data(host, p->wh),
                        .bi = cc_prim_data(host, p->bi),
                        .bh = cc_prim_data(host, p->bh),
                        .version_wi = version_of(host, p->packed_wi, p->wi.value),
                        .version_wh = version_of(host, p->packed_wh, p->wh.value),
                        .scratch = e->own,
                        .y = y,
                        .last_h = e->last_h ? e->last_h + last : NULL,
                        .last_c = e->last_c ? e->last_c + last : NULL};
    if (!call.wi || !call.wh || (p->bi.value >= 0 && (!call.bi || !call.bh)))
        return cc_err_set(err, CC_E_HOST, "no data of the weights, value %d", p->wi.value);
    if (rnn->y_type != CC_DT_F32) widen_weights(p, &call, e->weights);
    if (call.version_wi != CC_NO_VERSION) call.packed_wi = p->packed_wi;
    if (call.version_wh != CC_NO_VERSION) call.packed_wh = p->packed_wh;
    return cc_recur_run(&p->recur, &call, err);
}

/* Copies y, stored as [T, B, wide], to its real layout. */
static void round_y(const CcRnn *rnn, const float *y, char *to) {
    const int64_t n = rnn->hidden * rnn->directions;
    for (int64_t t = 0; t < rnn->steps; t++)
        for (int64_t b = 0; b < rnn->batch; b++, y += n)
            cc_halves_narrow(rnn->y_type, y, to + (t * rnn->y_step + b * rnn->y_row) * 2, n);
}

static int run_layers(const CcRnn *rnn, const CcHost *host, const Ends *e, CcErr *err) {
    const float *x = e->x;
    int next = 0;
    if (is_copied(rnn)) {
        copy_x(rnn, e->x, e->buffer[0]);
        x = e->buffer[0];
        next = 1;
    }
    for (int layer = 0; layer < rnn->layers; layer++, next = !next) {
        float *y = layer == rnn->layers - 1 && e->y ? e->y : e->buffer[next];
        for (int d = 0; d < rnn->directions; d++)
            if (run_part(rnn, host, e, layer * rnn->directions + d, x, y + d * rnn->hidden, err) < 0) return -1;
        x = y;
    }
    if (e->half[0]) round_y(rnn, x, e->half[0]);
    if (e->half[1]) cc_halves_narrow(rnn->y_type, e->last_h, e->half[1], state_floats(rnn));
    if (e->half[2]) cc_halves_narrow(rnn->y_type, e->last_c, e->half[2], state_floats(rnn));
    return 0;
}

static size_t scratch(const void *work) {
    const CcRnn *rnn = work;
    return rnn->own + rnn->widened + buffer_bytes(rnn) * (size_t)buffers(rnn);
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcRnn *rnn = work;
    Ends e = {0};
    if (find_ends(rnn, host, &e) < 0)
        return cc_err_set(err, CC_E_HOST, "no data for the recurrent layers of value %d", rnn->x.value);
    e.own = host->scratch;
    widen_ends(rnn, &e, (float *)(e.own + rnn->own));
    for (int i = 0; i < buffers(rnn); i++)
        e.buffer[i] = (float *)(e.own + rnn->own + rnn->widened + buffer_bytes(rnn) * (size_t)i);
    return run_layers(rnn, host, &e, err);
}

static void free_rnn(void *work) {
    const CcRnn *rnn = work;
    for (int i = 0; i < rnn->layers * rnn->directions; i++) {
        cc_packed_free(rnn->part[i].packed_wi);
        cc_packed_free(rnn->part[i].packed_wh);
    }
}

const CcPrimFamily CC_RNNS = {
    .name = "rnn", .several = true, .can = can, .build = build, .scratch = scratch, .run = run, .free = free_rnn};
