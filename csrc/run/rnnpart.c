/* rnnpart: one recurrent layer in one direction and its backward, as grad/recurrent.c makes them for training. f32. */
#include "run_int.h"

enum { X, H, C, W_X, W_H, B_X, B_H, GRAD_Y, GRAD_C, Y, KEPT, CELLS, ENDS }; /* operands of either op */
enum { RESULTS = 4 };

typedef struct Work {
    CcRecur recur;
    bool back;
    CcSlot in[ENDS], out[RESULTS]; /* -1: missing, or not read */
    /* bytes of scratch memory for a result that nobody reads, but the steps go through; else 0 */
    int64_t spare[RESULTS];
    int64_t grad_step, grad_row, grad_c_row;
} Work;

static const CcType *type_of(const CcGraph *g, CcOperand o) {
    return o.kind == CC_IN_VALUE ? &g->val.at[o.value].type : NULL;
}

static bool is_matrix(const CcType *t, int64_t rows, int64_t columns) {
    return t && cc_prim_f32(t) && t->ndim == 2 && t->size[0] == rows && t->size[1] == columns &&
           (columns == 1 || t->stride[1] == 1);
}

static bool is_vector(const CcType *t, int64_t n) {
    return t && cc_prim_f32(t) && t->ndim == 1 && t->size[0] == n && (n == 1 || t->stride[0] == 1);
}

/* [steps, batch, n] */
static bool is_steps(const CcType *t, const CcRecur *r, int64_t n) {
    return t && cc_prim_f32(t) && t->ndim == 3 && t->size[0] == r->steps && t->size[1] == r->batch && t->size[2] == n &&
           (n == 1 || t->stride[2] == 1);
}

static bool is_kept(const CcType *t, const CcRecur *r, int64_t n) { return is_steps(t, r, n) && cc_type_contiguous(t); }

static bool read_kind(CcOperand cell, CcOperand reversed, CcRecur *r) {
    if (cell.kind != CC_IN_INT || reversed.kind != CC_IN_INT) return false;
    r->cell = (CcCell)cell.i;
    r->backward = reversed.i != 0;
    return cell.i >= CC_CELL_LSTM && cell.i <= CC_CELL_RELU;
}

/* Sizes from h and y; strides of both. */
static bool read_states(const CcGraph *g, CcOperand h, CcOperand c, const CcType *y, CcRecur *r) {
    const CcType *from = type_of(g, h), *cells = type_of(g, c);
    if (!from || from->ndim != 2 || !y || y->ndim != 3) return false;
    r->steps = y->size[0];
    r->batch = from->size[0];
    r->hidden = from->size[1];
    r->y_step = y->stride[0];
    r->y_row = y->stride[1];
    r->h_row = from->stride[0];
    r->c_row = cells ? cells->stride[0] : 0;
    return is_matrix(from, r->batch, r->hidden) && is_steps(y, r, r->hidden) &&
           (r->cell == CC_CELL_LSTM ? is_matrix(cells, r->batch, r->hidden) : c.kind == CC_IN_NONE);
}

/* Results from the second one on. LSTM: states, gates, cells; GRU: gates. */
static bool keeps_well(const CcGraph *g, const CcNode *n, const CcRecur *r) {
    const bool lstm = r->cell == CC_CELL_LSTM;
    const int kept = lstm ? 2 : 1;
    if (n->n_out != (lstm ? 4 : r->cell == CC_CELL_GRU ? 2 : 1)) return false;
    if (lstm && !is_matrix(&g->val.at[n->out0 + 1].type, r->batch, r->hidden)) return false;
    if (lstm && !cc_type_contiguous(&g->val.at[n->out0 + 1].type)) return false;
    if (n->n_out > kept && !is_kept(&g->val.at[n->out0 + kept].type, r, CC_RECUR_KEPT * r->hidden)) return false;
    return !lstm || is_kept(&g->val.at[n->out0 + 3].type, r, r->hidden);
}

static void place(Work *w, int end, CcOperand o) { w->in[end].value = o.kind == CC_IN_VALUE ? o.value : -1; }

static bool read_forward(const CcGraph *g, const CcNode *n, Work *w) {
    CcIn_recur in;
    CcRecur *r = &w->recur;
    if (!cc_in_recur(g, n, &in) || !read_kind(in.cell, in.reversed, r) ||
        !read_states(g, in.h, in.c, &g->val.at[n->out0].type, r) || !keeps_well(g, n, r))
        return false;
    const CcType *x = type_of(g, in.x), *w_x = type_of(g, in.w_x), *w_h = type_of(g, in.w_h);
    const int64_t gates = cc_cell_gates(r->cell) * r->hidden;
    r->in = x && x->ndim == 3 ? x->size[2] : 0;
    if (!is_steps(x, r, r->in) || !is_matrix(w_x, gates, r->in) || !is_matrix(w_h, gates, r->hidden)) return false;
    if (in.b_x.kind != in.b_h.kind) return false;
    if (in.b_x.kind != CC_IN_NONE && (!is_vector(type_of(g, in.b_x), gates) || !is_vector(type_of(g, in.b_h), gates)))
        return false;
    r->x_step = x->stride[0];
    r->x_row = x->stride[1];
    r->wi_row = w_x->stride[0];
    r->wh_row = w_h->stride[0];
    const CcOperand of[] = {in.x, in.h, in.c, in.w_x, in.w_h, in.b_x, in.b_h};
    for (int i = 0; i < CC_COUNT(of); i++) place(w, X + i, of[i]);
    return true;
}

/* Results: gradients of sums and of h; LSTM: of c; GRU: of the sums' other part. */
static bool gives_well(const CcGraph *g, const CcNode *n, const CcRecur *r) {
    const int64_t gates = cc_cell_gates(r->cell) * r->hidden;
    const CcVal *out = &g->val.at[n->out0];
    if (n->n_out != (r->cell == CC_CELL_LSTM || r->cell == CC_CELL_GRU ? 3 : 2)) return false;
    if (!is_kept(&out[0].type, r, gates) || !is_matrix(&out[1].type, r->batch, r->hidden)) return false;
    if (!cc_type_contiguous(&out[1].type)) return false;
    if (r->cell == CC_CELL_GRU) return is_kept(&out[2].type, r, gates);
    return r->cell != CC_CELL_LSTM ||
           (is_matrix(&out[2].type, r->batch, r->hidden) && cc_type_contiguous(&out[2].type));
}

static bool read_back(const CcGraph *g, const CcNode *n, Work *w) {
    CcIn_recur_grad in;
    CcRecur *r = &w->recur;
    w->back = true;
    if (!cc_in_recur_grad(g, n, &in) || !read_kind(in.cell, in.reversed, r) ||
        !read_states(g, in.h, in.c, type_of(g, in.y), r) || !gives_well(g, n, r))
        return false;
    const CcType *grad_y = type_of(g, in.grad_y), *grad_c = type_of(g, in.grad_c), *w_h = type_of(g, in.w_h);
    const bool gated = r->cell == CC_CELL_LSTM || r->cell == CC_CELL_GRU;
    if (grad_y && !is_steps(grad_y, r, r->hidden)) return false;
    if (grad_c && !is_matrix(grad_c, r->batch, r->hidden)) return false;
    if (!is_matrix(w_h, cc_cell_gates(r->cell) * r->hidden, r->hidden)) return false;
    if (gated && !is_kept(type_of(g, in.gates), r, CC_RECUR_KEPT * r->hidden)) return false;
    if (r->cell == CC_CELL_LSTM && !is_kept(type_of(g, in.cells), r, r->hidden)) return false;
    if (grad_y) w->grad_step = grad_y->stride[0], w->grad_row = grad_y->stride[1];
    if (grad_c) w->grad_c_row = grad_c->stride[0];
    r->wh_row = w_h->stride[0];
    const CcOperand of[] = {in.grad_y, in.grad_c, in.y, in.gates, in.cells};
    for (int i = 0; i < CC_COUNT(of); i++) place(w, GRAD_Y + i, of[i]);
    place(w, H, in.h);
    place(w, C, in.c);
    place(w, W_H, in.w_h);
    return true;
}

static bool read(const CcGraph *g, const CcNode *n, Work *w) {
    *w = (Work){.back = false};
    for (int i = 0; i < ENDS; i++) w->in[i].value = -1;
    for (int i = 0; i < RESULTS; i++) w->out[i].value = i < n->n_out ? n->out0 + i : -1;
    return n->op == CC_OP_recur ? read_forward(g, n, w) : read_back(g, n, w);
}

static bool can(const CcGraph *g, int node) {
    Work w;
    return read(g, &g->node.at[node], &w);
}

/* The steps go through these results, read or not. */
static bool is_path(const Work *w, int i) { return i == 0 || (w->back && w->recur.cell == CC_CELL_GRU && i == 2); }

static void find_results(const CcGraph *g, Work *w, CcArena *arena) {
    int *out[RESULTS], was[RESULTS];
    for (int i = 0; i < RESULTS; i++) was[i] = w->out[i].value, out[i] = &w->out[i].value;
    cc_prim_unread(g, out, RESULTS, arena);
    for (int i = 0; i < RESULTS; i++) {
        if (w->out[i].value < 0 && is_path(w, i))
            w->spare[i] = (cc_type_numel(&g->val.at[was[i]].type) * (int64_t)sizeof(float) + 63) / 64 * 64;
        cc_prim_settle(g, &w->out[i]);
    }
}

static void *build(const CcGraph *g, const int *chain, int n, CcArena *arena, CcErr *err) {
    Work *w = cc_arena_alloc(arena, sizeof *w);
    (void)n; /* no post-ops */
    if (!w) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    if (!read(g, &g->node.at[chain[0]], w)) return NULL; /* can() has accepted it */
    for (int i = 0; i < ENDS; i++) cc_prim_settle(g, &w->in[i]);
    find_results(g, w, arena);
    return w;
}

static size_t own_bytes(const Work *w) {
    const size_t bytes = w->back ? cc_recur_back_bytes(&w->recur) : cc_recur_bytes(&w->recur);
    return (bytes + 63) / 64 * 64;
}

static size_t scratch(const void *work) {
    const Work *w = work;
    size_t bytes = own_bytes(w);
    for (int i = 0; i < RESULTS; i++) bytes += (size_t)w->spare[i];
    return bytes;
}

static int run_forward(const Work *w, const void *const *in, void *const *out, void *room, CcErr *err) {
    const bool lstm = w->recur.cell == CC_CELL_LSTM;
    CcRecurCall call = {.x = in[X],
                        .h = in[H],
                        .c = in[C],
                        .wi = in[W_X],
                        .wh = in[W_H],
                        .bi = in[B_X],
                        .bh = in[B_H],
                        .version_wi = CC_NO_VERSION,
                        .version_wh = CC_NO_VERSION,
                        .scratch = room,
                        .y = out[0],
                        .last_c = lstm ? out[1] : NULL,
                        .kept = out[lstm ? 2 : 1],
                        .cells = lstm ? out[3] : NULL};
    if (lstm && (!call.kept || !call.cells)) call.kept = call.cells = NULL; /* no backward follows */
    return cc_recur_run(&w->recur, &call, err);
}

static void run_back(const Work *w, const void *const *in, void *const *out, void *room) {
    const CcRecurBack call = {.grad_y = in[GRAD_Y],
                              .grad_c = in[GRAD_C],
                              .grad_step = w->grad_step,
                              .grad_row = w->grad_row,
                              .grad_c_row = w->grad_c_row,
                              .y = in[Y],
                              .kept = in[KEPT],
                              .cells = in[CELLS],
                              .h = in[H],
                              .c = in[C],
                              .wh = in[W_H],
                              .dx = out[0],
                              .dh = w->recur.cell == CC_CELL_GRU ? out[2] : out[0],
                              .first_h = out[1],
                              .first_c = w->recur.cell == CC_CELL_LSTM ? out[2] : NULL,
                              .scratch = room};
    cc_recur_back(&w->recur, &call);
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const Work *w = work;
    const void *in[ENDS];
    void *out[RESULTS];
    for (int i = 0; i < ENDS; i++) {
        in[i] = cc_prim_data(host, w->in[i]);
        if (w->in[i].value >= 0 && !in[i]) return cc_err_set(err, CC_E_HOST, "no data of value %d", w->in[i].value);
    }
    char *spare = (char *)host->scratch + own_bytes(w);
    for (int i = 0; i < RESULTS; spare += w->spare[i++]) {
        char *made = w->out[i].value < 0 ? NULL : host->make(host->ctx, w->out[i].value);
        if (w->out[i].value >= 0 && !made) return cc_err_set(err, CC_E_HOST, "no memory for value %d", w->out[i].value);
        out[i] = made ? made + w->out[i].at : w->spare[i] > 0 ? spare : NULL;
    }
    if (!w->back) return run_forward(w, in, out, host->scratch, err);
    run_back(w, in, out, host->scratch);
    return 0;
}

const CcPrimFamily CC_RECURS = {
    .name = "recurrent", .several = true, .can = can, .build = build, .scratch = scratch, .run = run};
