/* rnn: torch.lstm, gru, rnn_tanh and rnn_relu (nn.LSTM and its like), layer by layer. Only f32, without dropout and
 * without projections (LSTM's proj_size).
 *
 *   x [T, B, I] -> layer 0: forwards, backwards -> [T, B, D * H] -> layer 1 ... -> y; h_n, c_n [L * D, B, H] */
#include "run_int.h"

/* What a layer does in one direction. */
typedef struct Part {
    CcRecur recur;
    int wi, wh, bi, bh; /* values; bi, bh -1: none */
    int64_t wi_at, wh_at, bi_at, bh_at; /* bytes: they may be windows */
    CcPacked *packed_wi, *packed_wh;    /* of frozen weights, else NULL */
} Part;

typedef struct CcRnn {
    int layers, directions;
    int64_t steps, batch, hidden, in;
    int x, h, c, y, last_h, last_c; /* values; -1: there is none, or nobody reads it */
    int64_t x_at, h_at, c_at;       /* bytes */
    int64_t h_part, c_part;         /* elements from part to part */
    int64_t x_step, x_row, x_col;
    size_t own; /* bytes of a part's own scratch */
    Part *part; /* [layer][direction] */
} CcRnn;

/* Where the operands are: x, h, [c,] weights ..., then six numbers. */
typedef struct Roles {
    CcCell cell;
    int states, weights, first, numbers; /* weights: of a part; first, numbers: operands */
    int layers, directions;
    bool bias, batch_first;
} Roles;
enum { HAS_BIAS, LAYERS, DROPOUT, BIDIRECTIONAL, BATCH_FIRST, NUMBERS };

static const CcType *type_of(const CcGraph *g, const CcNode *n, int i) {
    const CcOperand *o = cc_prim_operand(g, n, i);
    return o && o->kind == CC_IN_VALUE ? &g->val.at[o->value].type : NULL;
}

static int value_of(const CcGraph *g, const CcNode *n, int i) { return cc_prim_operand(g, n, i)->value; }

static bool columns_touch(const CcType *t) { return t->size[t->ndim - 1] == 1 || t->stride[t->ndim - 1] == 1; }

/* f32 of these sizes, columns side by side. */
static bool is_like(const CcType *t, int ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t size[3] = {a, b, c};
    return t && cc_prim_plain(t) && t->ndim == ndim && memcmp(t->size, size, sizeof *size * (size_t)ndim) == 0 &&
           columns_touch(t);
}

static bool read_roles(const CcGraph *g, const CcNode *n, Roles *r) {
    r->cell = n->op == CC_OP_lstm  ? CC_CELL_LSTM
              : n->op == CC_OP_gru ? CC_CELL_GRU
              : n->op == CC_OP_rnn_tanh ? CC_CELL_TANH
                                        : CC_CELL_RELU;
    r->states = r->cell == CC_CELL_LSTM ? 2 : 1;
    r->first = 1 + r->states;
    r->numbers = n->n_in - NUMBERS;
    if (r->numbers <= r->first || n->n_out != 1 + r->states) return false;
    int64_t x[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) {
        const CcOperand *o = cc_prim_operand(g, n, r->numbers + i);
        if (i != DROPOUT && o->kind != CC_IN_BOOL && o->kind != CC_IN_INT) return false;
        x[i] = o->i;
    }
    r->bias = x[HAS_BIAS];
    r->layers = (int)x[LAYERS];
    r->directions = x[BIDIRECTIONAL] ? 2 : 1;
    r->batch_first = x[BATCH_FIRST];
    r->weights = r->bias ? 4 : 2;
    return x[LAYERS] > 0 && x[LAYERS] <= n->n_in && r->numbers - r->first == r->layers * r->directions * r->weights;
}

/* Types of all results, and of the states at the beginning. */
static bool read_ends(const CcGraph *g, const CcNode *n, const Roles *r, CcRnn *rnn) {
    const CcType *x = type_of(g, n, 0), *y = &g->val.at[n->out0].type;
    const int parts = r->layers * r->directions, t = r->batch_first, b = !t;
    if (!x || !cc_prim_plain(x) || x->ndim != 3) return false;
    *rnn = (CcRnn){.layers = r->layers, .directions = r->directions, .steps = x->size[t], .batch = x->size[b],
                   .in = x->size[2], .x_step = x->stride[t], .x_row = x->stride[b],
                   .x_col = x->size[2] == 1 ? 1 : x->stride[2], .x = value_of(g, n, 0), .c = -1, .y = n->out0,
                   .last_c = -1};
    const CcType *w = type_of(g, n, r->first + 1);
    if (!w || w->ndim != 2) return false;
    rnn->hidden = w->size[1];
    const int64_t size[2] = {x->size[0], x->size[1]}, hidden = rnn->hidden;
    if (!is_like(y, 3, size[0], size[1], hidden * r->directions) || !cc_type_dense(y)) return false;
    for (int i = 0; i < r->states; i++) {
        const CcType *last = &g->val.at[n->out0 + 1 + i].type, *h = type_of(g, n, 1 + i);
        if (!is_like(h, 3, parts, rnn->batch, hidden) || !is_like(last, 3, parts, rnn->batch, hidden) ||
            !cc_type_contiguous(last))
            return false;
        *(i ? &rnn->c : &rnn->h) = value_of(g, n, 1 + i);
        *(i ? &rnn->last_c : &rnn->last_h) = n->out0 + 1 + i;
        *(i ? &rnn->c_part : &rnn->h_part) = h->stride[0];
    }
    return true;
}

/* One part; its weights start at operand `at`. False: not for this family. */
static bool read_part(const CcGraph *g, const CcNode *n, const Roles *r, const CcRnn *rnn, int number, Part *p) {
    const int at = r->first + number * r->weights, layer = number / r->directions;
    const int64_t in = layer ? rnn->hidden * r->directions : rnn->in, gates = cc_recur_gates(r->cell) * rnn->hidden;
    const CcType *wi = type_of(g, n, at), *wh = type_of(g, n, at + 1), *y = &g->val.at[n->out0].type;
    if (!is_like(wi, 2, gates, in, 0) || !is_like(wh, 2, gates, rnn->hidden, 0)) return false;
    for (int i = 2; i < r->weights; i++)
        if (!is_like(type_of(g, n, at + i), 1, gates, 0, 0)) return false;
    *p = (Part){.wi = value_of(g, n, at), .wh = value_of(g, n, at + 1), .bi = -1, .bh = -1};
    if (r->bias) {
        p->bi = value_of(g, n, at + 2);
        p->bh = value_of(g, n, at + 3);
    }
    const int64_t wide = rnn->hidden * r->directions; /* a row between layers */
    const bool first = layer == 0, last = layer == r->layers - 1, copied = rnn->x_col != 1;
    p->recur = (CcRecur){.cell = r->cell, .backward = number % r->directions == 1, .steps = rnn->steps,
                         .batch = rnn->batch, .in = in, .hidden = rnn->hidden, .wi_row = wi->stride[0],
                         .wh_row = wh->stride[0], .x_step = first && !copied ? rnn->x_step : in * rnn->batch,
                         .x_row = first && !copied ? rnn->x_row : in,
                         .y_step = last ? y->stride[r->batch_first] : wide * rnn->batch,
                         .y_row = last ? y->stride[!r->batch_first] : wide};
    p->recur.h_row = type_of(g, n, 1)->stride[1];
    if (rnn->c >= 0) p->recur.c_row = type_of(g, n, 2)->stride[1];
    return true;
}

static bool can(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    Roles r;
    CcRnn rnn;
    Part p;
    if (!read_roles(g, n, &r) || !read_ends(g, n, &r, &rnn)) return false;
    for (int i = 0; i < r.layers * r.directions; i++)
        if (!read_part(g, n, &r, &rnn, i, &p)) return false;
    return true;
}

static void finish_part(const CcGraph *g, Part *p) {
    if (cc_prim_frozen(g, p->wi)) p->packed_wi = cc_packed_new();
    if (cc_prim_frozen(g, p->wh)) p->packed_wh = cc_packed_new();
    p->wi_at = cc_prim_base(g, &p->wi);
    p->wh_at = cc_prim_base(g, &p->wh);
    p->bi_at = cc_prim_base(g, &p->bi);
    p->bh_at = cc_prim_base(g, &p->bh);
}

static void *build(const CcGraph *g, const int *chain, int n_chain, CcArena *arena, CcErr *err) {
    (void)n_chain; /* no post-ops */
    const CcNode *n = &g->node.at[chain[0]];
    CcRnn *rnn = cc_arena_alloc(arena, sizeof *rnn);
    Roles r;
    if (!rnn) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    if (!read_roles(g, n, &r) || !read_ends(g, n, &r, rnn)) return NULL; /* can() said otherwise */
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
    rnn->x_at = cc_prim_base(g, &rnn->x);
    rnn->h_at = cc_prim_base(g, &rnn->h);
    rnn->c_at = cc_prim_base(g, &rnn->c);
    cc_prim_unread(g, (int *const[]){&rnn->y, &rnn->last_h, &rnn->last_c}, 3, arena);
    return rnn;
}

/* ------------------------------------------------------------------ running */

/* What a run reads and writes. */
typedef struct Ends {
    const float *x, *h, *c;
    float *y, *last_h, *last_c; /* y NULL: the last layer's result goes to a buffer as well */
    char *own;
    float *buffer[2]; /* results between layers; [0] first holds a copy of x where that is needed */
} Ends;

static size_t buffer_bytes(const CcRnn *rnn) {
    const int64_t wide = CC_MAX(rnn->hidden * rnn->directions, rnn->in), floats = rnn->steps * rnn->batch * wide;
    return ((size_t)floats * sizeof(float) + 63) / 64 * 64;
}

static int buffers(const CcRnn *rnn) {
    return CC_MIN(2, rnn->layers - (rnn->y >= 0) + (rnn->x_col != 1));
}

static int find_ends(const CcRnn *rnn, const CcHost *host, Ends *e) {
    const int out[] = {rnn->y, rnn->last_h, rnn->last_c};
    float **const to[] = {&e->y, &e->last_h, &e->last_c};
    e->x = cc_prim_data(host, rnn->x, rnn->x_at);
    e->h = cc_prim_data(host, rnn->h, rnn->h_at);
    e->c = cc_prim_data(host, rnn->c, rnn->c_at);
    if (!e->x || !e->h || (rnn->c >= 0 && !e->c)) return -1;
    for (int i = 0; i < CC_COUNT(out); i++) {
        *to[i] = out[i] < 0 ? NULL : host->make(host->ctx, out[i]);
        if (out[i] >= 0 && !*to[i]) return -1;
    }
    return 0;
}

static void copy_x(const CcRnn *rnn, const float *x, float *to) {
    for (int64_t t = 0; t < rnn->steps; t++)
        for (int64_t b = 0; b < rnn->batch; b++)
            for (int64_t i = 0; i < rnn->in; i++) *to++ = x[t * rnn->x_step + b * rnn->x_row + i * rnn->x_col];
}

static uint64_t version_of(const CcHost *host, const CcPacked *packed, int value) {
    return packed ? host->version(host->ctx, value) : CC_NO_VERSION;
}

static int run_part(const CcRnn *rnn, const CcHost *host, const Ends *e, int number, const float *x, float *y,
                    CcErr *err) {
    const Part *p = &rnn->part[number];
    const int64_t last = number * rnn->batch * rnn->hidden;
    CcRecurCall call = {.x = x, .h = e->h + number * rnn->h_part, .c = e->c ? e->c + number * rnn->c_part : NULL,
                        .wi = cc_prim_data(host, p->wi, p->wi_at), .wh = cc_prim_data(host, p->wh, p->wh_at),
                        .bi = cc_prim_data(host, p->bi, p->bi_at), .bh = cc_prim_data(host, p->bh, p->bh_at),
                        .version_wi = version_of(host, p->packed_wi, p->wi),
                        .version_wh = version_of(host, p->packed_wh, p->wh), .scratch = e->own, .y = y,
                        .last_h = e->last_h ? e->last_h + last : NULL, .last_c = e->last_c ? e->last_c + last : NULL};
    if (!call.wi || !call.wh || (p->bi >= 0 && (!call.bi || !call.bh)))
        return cc_err_set(err, CC_E_HOST, "no data of the weights, value %d", p->wi);
    if (call.version_wi != CC_NO_VERSION) call.packed_wi = p->packed_wi;
    if (call.version_wh != CC_NO_VERSION) call.packed_wh = p->packed_wh;
    return cc_recur_run(&p->recur, &call, err);
}

static int run_layers(const CcRnn *rnn, const CcHost *host, const Ends *e, CcErr *err) {
    const float *x = e->x;
    int next = 0;
    if (rnn->x_col != 1) {
        copy_x(rnn, x, e->buffer[0]);
        x = e->buffer[0];
        next = 1;
    }
    for (int layer = 0; layer < rnn->layers; layer++, next = !next) {
        float *y = layer == rnn->layers - 1 && e->y ? e->y : e->buffer[next];
        for (int d = 0; d < rnn->directions; d++)
            if (run_part(rnn, host, e, layer * rnn->directions + d, x, y + d * rnn->hidden, err) < 0) return -1;
        x = y;
    }
    return 0;
}

static size_t scratch(const void *work) {
    const CcRnn *rnn = work;
    return rnn->own + buffer_bytes(rnn) * (size_t)buffers(rnn);
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcRnn *rnn = work;
    Ends e = {0};
    if (find_ends(rnn, host, &e) < 0)
        return cc_err_set(err, CC_E_HOST, "no data for the recurrent layers of value %d", rnn->x);
    e.own = host->scratch;
    for (int i = 0; i < buffers(rnn); i++) e.buffer[i] = (float *)(e.own + rnn->own + buffer_bytes(rnn) * (size_t)i);
    return run_layers(rnn, host, &e, err);
}

static void free_rnn(void *work) {
    const CcRnn *rnn = work;
    for (int i = 0; i < rnn->layers * rnn->directions; i++) {
        cc_packed_free(rnn->part[i].packed_wi);
        cc_packed_free(rnn->part[i].packed_wh);
    }
}

const CcPrimFamily CC_RNNS = {.name = "rnn", .several = true, .can = can, .build = build,
                              .scratch = scratch, .run = run, .free = free_rnn};
