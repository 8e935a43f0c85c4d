/* concat: cat, stack, roll and pad: the result is made of pieces, and a kernel copies (or fills) each.
 *
 *   cat    each tensor is a piece; stack gives it a dim of size 1 before
 *   roll   two pieces for each dim that is rolled, four of an image that is rolled both ways
 *   pad    the tensor, and what lies before and behind it in each dim, all of the dims after it but the tensor's part of
 *          those before: each element is written once. Of x's own elements (reflect, replicate, circular): the tensor, and
 *          for each padded dim the edges of what there is, read backwards, in place or from the other end */
#include "run_int.h"

/* Many rows with a few elements before and behind each are stores apart from one another: 64 images of 56x56 with a
 * border of 1 took 36 us, torch 26, which fills everything first; 3 images of 224x224, border 3, 17 and 20 (Zen 4). */
enum { MAX_PIECES = 64, NARROW = 16, MANY_ROWS = 2048 };

/* Of reflect and replicate torch has loops that make an image at a time: 64 of 56x56, border 1: 63 us, torch 30; 3 of
 * 224x224, border 3: 25 and 17; 16 of 8x8: 4.1 and 4.8. One dim is better in pieces (2048 rows of 64: 26 and 58), and
 * so is circular, which torch copies piece by piece too (42 to 75 and 35 to 80, 34 and 49; Zen 4). */
enum { OWN_ROWS = 256 };

/* Bytes: of a row that memcpy is better at than a kernel (images of 64x56x56, 20 and 20: 1.19 ms, by kernels 1.50, Zen 5);
 * of rows that kernels of shorter ones write before the next piece's do, of an L2 (28571 rows of 7 and 7 floats: 71 us,
 * 312 one piece after the other; fewer rows at a time are slower where all of it is in memory); that are worth a thread. */
enum { LONG_ROW = 1 << 11, NEAR = 1 << 17, GRAIN = 1 << 17 };

typedef struct Piece {
    CcLaunch launch;
    int value;                       /* read; what it is a window of; -1: none */
    int64_t from, to;                /* bytes: where the piece lies in its value, and in the result */
    int64_t width, from_row, to_row; /* bytes of a row, and from row to row */
} Piece;

typedef struct Concat {
    int dst, n;
    int64_t rows; /* > 1: each piece is so many rows, and the result is written from one end to the other; */
    bool copies;  /* by memcpy */
    Piece *piece;
} Concat;

/* A piece before it has a kernel: offsets in elements. */
typedef struct Part {
    int value; /* -1: filled */
    CcType type;
    int64_t from, to;
} Part;

typedef struct Parts {
    int n;
    CcType out; /* the result as its pieces see it */
    CcOperand fill;
    Part *part; /* MAX_PIECES */
} Parts;

static bool plain(const CcType *t) { return t->ndim >= 0 && t->device == 1 && t->dtype != CC_DT_OTHER; }

/* The dim of the result along which pieces lie; -1: not for this family. */
static int dim_of(const CcGraph *g, const CcNode *n) {
    const CcType *out = &g->val.at[n->out0].type;
    const CcOperand *dim = n->n_in > 1 ? cc_graph_operand(g, n, n->n_in - 1) : NULL;
    return dim && plain(out) && cc_type_dense(out) ? cc_graph_dim(out, dim) : -1;
}

/* A piece as the result sees it: stack gives it a dim of size 1. False: it does not fit. */
static bool seen_as(const CcGraph *g, const CcNode *n, int i, int dim, CcType *t) {
    const CcType *out = &g->val.at[n->out0].type;
    const CcOperand *o = cc_graph_operand(g, n, i);
    if (o->kind != CC_IN_VALUE) return false;
    *t = g->val.at[o->value].type;
    if (!plain(t) || t->dtype != out->dtype) return false;
    if (n->op == CC_OP_stack) {
        if (t->ndim != out->ndim - 1) return false;
        for (int d = t->ndim++; d > dim; d--) {
            t->size[d] = t->size[d - 1];
            t->stride[d] = t->stride[d - 1];
        }
        t->size[dim] = 1;
        t->stride[dim] = 0;
    }
    if (t->ndim != out->ndim) return false; /* cat takes empty vectors of old */
    for (int d = 0; d < t->ndim; d++)
        if (d != dim && t->size[d] != out->size[d]) return false;
    return true;
}

static bool add(Parts *p, int value, const CcType *type, int64_t from, int64_t to) {
    if (p->n == MAX_PIECES) return false;
    p->part[p->n++] = (Part){value, *type, from, to};
    return true;
}

static bool join(const CcGraph *g, const CcNode *n, Parts *p) {
    const CcType *out = &g->val.at[n->out0].type;
    const int dim = dim_of(g, n);
    int64_t at = 0;
    for (int i = 0; i + 1 < n->n_in; i++) {
        CcType t;
        if (dim < 0 || !seen_as(g, n, i, dim, &t) ||
            !add(p, cc_graph_operand(g, n, i)->value, &t, 0, at * out->stride[dim]))
            return false;
        at += t.size[dim];
    }
    return dim >= 0 && at == out->size[dim];
}

/* Each dim that is rolled cuts the pieces that there are in two. */
static bool roll_dim(const CcType *x, int d, const CcOperand *shift, Parts *p) {
    if (shift->kind != CC_IN_INT || x->size[d] == 0) return false;
    const int64_t size = x->size[d], by = (shift->i % size + size) % size;
    for (int k = p->n - 1; k >= 0 && by; k--) {
        Part *first = &p->part[k]; /* what stays in front of the end, and what comes round */
        CcType second = first->type;
        second.size[d] = by;
        first->type.size[d] = size - by;
        const int64_t from = first->from + (size - by) * x->stride[d], to = first->to;
        first->to += by * p->out.stride[d];
        if (!add(p, first->value, &second, from, to)) return false;
    }
    return true;
}

static void flatten(CcType *t) {
    t->size[0] = cc_type_numel(t);
    t->stride[0] = t->ndim = 1;
}

/* Operands: x, as many shifts, as many dims; or one shift of all elements. */
static bool roll(const CcGraph *g, const CcNode *n, Parts *p) {
    CcType x = g->val.at[cc_graph_operand(g, n, 0)->value].type;
    const int dims = (n->n_in - 1) / 2;
    unsigned seen = 0;
    if (!cc_type_same_shape(&x, &p->out) || (n->n_in % 2 == 0 && n->n_in != 2)) return false;
    if (n->n_in == 2) {
        if (!cc_type_contiguous(&x) || !cc_type_contiguous(&p->out)) return false;
        flatten(&x);
        flatten(&p->out);
    }
    if (!add(p, cc_graph_operand(g, n, 0)->value, &x, 0, 0)) return false;
    if (n->n_in == 2) return roll_dim(&x, 0, cc_graph_operand(g, n, 1), p);
    for (int i = 0; i < dims; i++) {
        const int d = cc_graph_dim(&x, cc_graph_operand(g, n, 1 + dims + i));
        if (d < 0 || seen >> d & 1 || !roll_dim(&x, d, cc_graph_operand(g, n, 1 + i), p)) return false;
        seen |= 1u << d;
    }
    return true;
}

/* Operands: x, before and behind of the last dim, of the one before ..., value. Less than none: so many of x are left
 * out. */
static bool pad(const CcGraph *g, const CcNode *n, Parts *p) {
    const CcType *out = &p->out, *x = &g->val.at[cc_graph_operand(g, n, 0)->value].type;
    const int dims = (n->n_in - 2) / 2;
    CcType left = *out, kept = *x; /* what is not yet told of; what of x is in the result */
    int64_t to = 0, from = 0;
    p->fill = *cc_graph_operand(g, n, n->n_in - 1);
    if (p->fill.kind == CC_IN_NONE) p->fill = (CcOperand){.kind = CC_IN_INT};
    if (n->n_in % 2 || dims > x->ndim || p->fill.kind == CC_IN_VALUE || x->ndim != out->ndim) return false;
    for (int i = 0; i < dims; i++) {
        const CcOperand *before = cc_graph_operand(g, n, 1 + 2 * i), *behind = before + 1;
        const int d = x->ndim - 1 - i;
        if (before->kind != CC_IN_INT || behind->kind != CC_IN_INT) return false;
        const int64_t front = CC_MAX(before->i, 0), back = CC_MAX(behind->i, 0), edges = front + back;
        if (out->stride[d] == 1 && edges > 0 && edges < NARROW &&
            cc_type_numel(out) / CC_MAX(1, out->size[d]) > MANY_ROWS)
            return false;
        kept.size[d] += CC_MIN(before->i, 0) + CC_MIN(behind->i, 0);
        if (kept.size[d] < 0 || kept.size[d] + edges != out->size[d]) return false;
        CcType edge = left;
        edge.size[d] = front;
        if (front && !add(p, -1, &edge, 0, to)) return false;
        edge.size[d] = back;
        if (back && !add(p, -1, &edge, 0, to + (front + kept.size[d]) * out->stride[d])) return false;
        left.size[d] = kept.size[d];
        to += front * out->stride[d];
        from += (front - before->i) * x->stride[d];
    }
    return cc_type_same_shape(&left, &kept) && add(p, cc_graph_operand(g, n, 0)->value, &kept, from, to);
}

/* Padding with x's own elements: of `n` at an edge of a dim of this size, which one is first, and how far are they
 * apart? */
static bool own_edge(int op, int64_t size, int64_t n, bool behind, int64_t *at, int64_t *step) {
    switch (op) {
    case CC_OP_pad_replicate:
        *at = behind ? size - 1 : 0;
        *step = 0;
        return size > 0;
    case CC_OP_pad_reflect:
        *at = behind ? size - 2 : n;
        *step = -1;
        return n < size;
    default: /* circular */
        *at = behind ? 0 : size - n;
        *step = 1;
        return n <= size;
    }
}

/* Adds what lies at one edge of part k, `to` elements behind it. */
static bool add_edge(const CcNode *node, const CcType *x, int d, int64_t n, bool behind, int k, int64_t to, Parts *p) {
    Part edge = p->part[k];
    int64_t at, step;
    if (n == 0) return true;
    if (n < 0 || !own_edge(node->op, x->size[d], n, behind, &at, &step)) return false;
    edge.type.size[d] = n;
    edge.type.stride[d] = step * x->stride[d];
    return add(p, edge.value, &edge.type, edge.from + at * x->stride[d], edge.to + to);
}

/* Operands: x, before and behind of the last dim, of the one before ... Each dim gives the pieces that there are
 * edges. */
static bool pad_by_own(const CcGraph *g, const CcNode *n, Parts *p) {
    const CcType *out = &p->out, *x = &g->val.at[cc_graph_operand(g, n, 0)->value].type;
    const int dims = (n->n_in - 1) / 2;
    if (n->n_in % 2 == 0 || dims > x->ndim || x->ndim != out->ndim) return false;
    CcType all = *x;
    if (!add(p, cc_graph_operand(g, n, 0)->value, x, 0, 0)) return false;
    for (int i = 0; i < dims; i++) {
        const CcOperand *before = cc_graph_operand(g, n, 1 + 2 * i), *behind = before + 1;
        const int d = x->ndim - 1 - i, parts = p->n;
        if (before->kind != CC_IN_INT || behind->kind != CC_IN_INT) return false;
        all.size[d] += before->i + behind->i;
        for (int k = 0; k < parts; k++) {
            if (!add_edge(n, x, d, before->i, false, k, 0, p) ||
                !add_edge(n, x, d, behind->i, true, k, (before->i + x->size[d]) * out->stride[d], p))
                return false;
            p->part[k].to += before->i * out->stride[d];
        }
    }
    const int last = out->ndim - 1;
    if (n->op != CC_OP_pad_circular && p->n > 3 && out->stride[last] == 1 &&
        cc_type_numel(out) > OWN_ROWS * out->size[last])
        return false;
    return cc_type_same_shape(&all, out);
}

static bool understand(const CcGraph *g, const CcNode *n, Parts *p) {
    p->n = 0;
    const CcType *out = &g->val.at[n->out0].type;
    p->out = *out;
    if (n->op == CC_OP_cat || n->op == CC_OP_stack) return join(g, n, p);
    const CcOperand *o = n->n_in ? cc_graph_operand(g, n, 0) : NULL;
    if (!o || o->kind != CC_IN_VALUE || !plain(out) || !cc_type_dense(out)) return false;
    const CcType *x = &g->val.at[o->value].type;
    if (!plain(x) || x->dtype != out->dtype) return false;
    switch (n->op) {
    case CC_OP_roll: return roll(g, n, p);
    case CC_OP_pad: return pad(g, n, p);
    default: return pad_by_own(g, n, p);
    }
}

static bool can(const CcGraph *g, int node) {
    Part part[MAX_PIECES];
    return understand(g, &g->node.at[node], &(Parts){.part = part});
}

/* The kernel that copies or fills one piece. */
static int add_piece(Piece *p, const Part *part, const CcOperand *fill, const CcType *out, CcArena *arena, CcErr *err) {
    CcType dst = part->type;
    memcpy(dst.stride, out->stride, sizeof dst.stride);
    return cc_launch_copy(&p->launch, part->value < 0 ? NULL : &part->type, fill, &dst, arena, err);
}

/* Have all pieces the same rows? */
static int64_t rows_of(Concat *c) {
    const int64_t rows = c->n > 1 ? c->piece[0].launch.rows : 1;
    c->copies = true;
    for (int i = 0; i < c->n; i++) {
        Piece *p = &c->piece[i];
        const CcLoop *loop = p->launch.loop;
        const int store = loop->n_access - 1, size = cc_dtype_info(loop->access[store].dtype)->size;
        if (loop->lane != 1 || p->launch.rows != rows) return 1;
        p->width = loop->size[1] * size;
        p->to_row = loop->stride[store][0];
        if (loop->stride[store][1] != size || p->width > p->to_row) return 1;
        c->copies = c->copies && p->value >= 0 && loop->n_access == 2 && loop->stride[0][1] == size;
        if (c->copies) p->from_row = loop->stride[0][0];
        c->copies = c->copies && p->width >= LONG_ROW;
    }
    return rows;
}

static void *build(const CcGraph *g, const int *chain, int n_chain, CcArena *arena, CcErr *err) {
    (void)n_chain; /* no post-ops */
    const CcNode *n = &g->node.at[chain[0]];
    const CcType *out = &g->val.at[n->out0].type;
    const int size = cc_dtype_info((CcDtype)out->dtype)->size;
    Part part[MAX_PIECES];
    Parts parts = {.part = part};
    Concat *c = cc_arena_alloc(arena, sizeof *c);
    if (!understand(g, n, &parts)) { /* can() said otherwise */
        cc_err_set(err, CC_E_UNSUPPORTED, "%s: its operands do not fit the result", cc_op_info((CcOpId)n->op)->name);
        return NULL;
    }
    if (c) c->piece = cc_arena_alloc(arena, sizeof *c->piece * (size_t)(parts.n + 1));
    if (!c || !c->piece) {
        cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
        return NULL;
    }
    c->dst = n->out0;
    c->n = 0;
    for (int i = 0; i < parts.n; i++) {
        Piece *p = &c->piece[c->n];
        if (cc_type_numel(&part[i].type) == 0) continue;
        const int value = part[i].value;
        *p = (Piece){.value = -1, .from = part[i].from * size, .to = part[i].to * size};
        if (value >= 0) p->value = cc_graph_base(g, value), p->from += g->val.at[value].offset;
        if (add_piece(p, &part[i], &parts.fill, &parts.out, arena, err) < 0) return NULL;
        c->n++;
    }
    c->rows = rows_of(c);
    return c;
}

typedef struct Job {
    const Concat *c;
    char *const (*at)[2];
} Job;

static void copy_rows(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    for (int64_t r = begin; r < end; r++)
        for (int i = 0; i < job->c->n; i++) {
            const Piece *p = &job->c->piece[i];
            memcpy(job->at[i][1] + r * p->to_row, job->at[i][0] + r * p->from_row, (size_t)p->width);
        }
}

/* So many rows that what is written stays in the L2: of each, what the pieces have of it. */
static void write_rows(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    const Concat *c = job->c;
    const int64_t step = CC_MAX(1, NEAR / c->piece[0].to_row);
    for (int64_t r = begin; r < end; r += step)
        for (int i = 0; i < c->n; i++) cc_launch_rows(&c->piece[i].launch, job->at[i], r, CC_MIN(r + step, end));
}

/* Threads that write rows; 0: there are too few rows for them, the kernels divide them. */
static int parts_of(const Concat *c) {
    int64_t bytes = 0;
    for (int i = 0; i < c->n; i++) bytes += c->piece[i].width * c->rows;
    const int parts = (int)CC_MAX(1, CC_MIN(cc_omp_width(), bytes / GRAIN));
    return c->rows > 1 && (parts == 1 || c->rows >= 4 * parts) ? parts : 0;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const Concat *c = work;
    char *dst = host->make(host->ctx, c->dst);
    if (!dst && c->n) return cc_err_set(err, CC_E_HOST, "no memory for value %d", c->dst);
    char *at[MAX_PIECES][2];
    double fill[MAX_PIECES];
    for (int i = 0; i < c->n; i++) {
        const Piece *p = &c->piece[i];
        const CcLoop *loop = p->launch.loop;
        char *src = p->value < 0 ? NULL : host->data(host->ctx, p->value);
        if (!src && p->value >= 0) return cc_err_set(err, CC_E_HOST, "no data of value %d", p->value);
        for (int k = 0; k < loop->n_access; k++)
            at[i][k] = loop->access[k].is_store ? dst + p->to
                       : src                    ? src + p->from
                                                : cc_launch_number(&loop->access[k], host, &fill[i]);
    }
    const int parts = parts_of(c);
    if (parts) cc_omp_run(c->copies ? copy_rows : write_rows, &(Job){c, (char *const(*)[2])at}, c->rows, parts);
    for (int i = 0; i < c->n && !parts; i++) cc_launch_at(&c->piece[i].launch, at[i]);
    return 0;
}

const CcPrimFamily CC_CONCATS = {.name = "concat", .llvm = true, .can = can, .build = build, .run = run};
