/* join: lowers joins, padding and rolling to loop IR, from the pieces that pass/pieces.c finds. There are two ways:
 *
 *   by boxes     the loop covers a part of the result that is one piece in each dim, so a load steps through its operand
 *                as usual. One loop per box (cc_build_boxes); for the CPU
 *   at indices   one loop covers the whole result: each element finds its piece and reads at the address that the piece
 *                gives. For GPUs and the reference executor
 *
 * Sizes are arguments of the kernel, so new sizes reuse it. */
#include "loop_int.h"

enum {
    MAX_CHOICES = 16, /* max number of pieces per dim that an element chooses from */
    /* positions count units of up to this many elements if strides allow: then 16 bytes load at once */
    MAX_UNIT = 8
};
typedef enum What { END = 1, SHIFT, LAST, STEP, KINDS } What; /* `what` of cc_build_param, per piece */

typedef struct Join {
    CcBuild *b;
    const CcNode *n;
    const CcType *out;
    const CcPieces *pieces;
    CcDtype index; /* dtype of positions: 32 bits if they fit */
} Join;

bool cc_join_has(CcOpId op) { return cc_op_info(op)->kind == CC_K_CONCAT; }

static int as_result(const Join *j, int node) {
    const CcDtype out = (CcDtype)j->out->dtype;
    return cc_term_cast(j->b, cc_term_cast(j->b, node, out), cc_term_compute(out));
}

static int the_number(const Join *j) { return cc_build_number(j->b, &j->pieces->fill, (CcDtype)j->out->dtype, false); }

/* ------------------------------------------------------------------ by boxes */

/* The piece of a cut that the loop's box lies in. */
static const CcPiece *piece_of_box(const Join *j, const CcCut *cut) {
    const CcPiece *p = cut->piece;
    while (p->end <= j->b->box->from[cut->dim]) p++;
    return p;
}

/* Only a join has pieces of several operands; a box in the padding is the constant. */
static int read_box(const Join *j) {
    CcType seen;
    int operand = 0;
    for (int i = 0; i < j->pieces->n; i++) {
        const CcPiece *p = piece_of_box(j, &j->pieces->cut[i]);
        if (p->operand < 0) return the_number(j);
        operand = CC_MAX(operand, p->operand);
    }
    if (!cc_pieces_type(j->b->g, j->n, operand, j->pieces->n ? j->pieces->cut[0].dim : 0, &seen))
        return cc_build_refuse(j->b, "no tensor to read");
    int64_t shift = 0;
    for (int i = 0; i < j->pieces->n; i++) {
        const CcCut *cut = &j->pieces->cut[i];
        const CcPiece *p = piece_of_box(j, cut);
        shift += (p->from - p->step * p->begin) * seen.stride[cut->dim];
        seen.stride[cut->dim] *= p->step;
        seen.size[cut->dim] = j->out->size[cut->dim];
    }
    const int value = cc_graph_operand(j->b->g, j->n, operand)->value;
    return as_result(j, cc_build_part(j->b, value, &seen, shift));
}

/* ------------------------------------------------------------------ at indices */

static int op(const Join *j, CcScalarId id, int x, int y) { return cc_term_op(j->b, id, x, y, -1); }
static int num(const Join *j, int64_t v) { return cc_term_int(j->b, j->index, v); }

static int param(const Join *j, What what, int dim, int piece, int64_t v) {
    const int which = (dim * CC_PIECES_MAX + piece) * KINDS + what;
    return cc_term_cast(j->b, cc_build_param(j->b, which << 12 | (j->n->out0 & 0xfff), v), j->index);
}

/* Position of the element in a dim of the result, or in the flattened result. */
static int place(const Join *j, int dim) {
    const CcSpace *f = &j->b->space;
    unsigned dims = 0;
    for (int d = 0; d < f->shape.ndim; d++)
        if ((j->pieces->flat || cc_space_own_dim(f, j->out, j->b->dropped, d) == dim) &&
            (j->b->level == CC_LEVEL_FULL || !cc_space_reduced(f, d)))
            dims |= 1u << (f->shape.ndim - 1 - d);
    return dims ? cc_term_cast(j->b, cc_build_place(j->b, dims), j->index) : num(j, 0);
}

static int64_t unit_of(int64_t step) {
    int64_t unit = MAX_UNIT;
    while (step % unit) unit /= 2;
    return unit;
}

/* Units between the operand's first element and the element at position `at`. */
static int units(const Join *j, int at, int dim, int64_t step, int64_t unit) {
    return step == unit ? at : op(j, CC_S_mul, at, param(j, STEP, dim, 0, step / unit));
}

/* Reads every operand, clamped to its nearest position, and selects the one that has the element. */
static int choose_operand(const Join *j) {
    const CcCut *cut = j->pieces->cut;
    const int p = place(j, cut->dim);
    int result = -1;
    if (cut->n > MAX_CHOICES) return cc_build_refuse(j->b, "too many pieces");
    for (int i = cut->n - 1; i >= 0; i--) {
        const CcPiece *piece = &cut->piece[i];
        CcType t;
        if (!cc_pieces_type(j->b->g, j->n, piece->operand, cut->dim, &t)) return cc_build_refuse(j->b, "no tensor");
        const int64_t step = t.stride[cut->dim], unit = unit_of(step), length = piece->end - piece->begin;
        const int which = piece->operand;
        int at = p;
        if (i) at = op(j, CC_S_max, op(j, CC_S_sub, p, param(j, SHIFT, cut->dim, which, piece->begin)), num(j, 0));
        if (i + 1 < cut->n) at = op(j, CC_S_min, at, param(j, LAST, cut->dim, which, length - 1));
        if (length == 1) at = num(j, 0);
        else if (step != unit) at = op(j, CC_S_mul, at, param(j, STEP, cut->dim, which, step / unit));
        t.size[cut->dim] = 1;
        t.stride[cut->dim] = 0;
        const int value = cc_graph_operand(j->b->g, j->n, piece->operand)->value;
        const int x = as_result(j, cc_build_take(j->b, cc_build_seen(j->b, value, &t), at, unit));
        if (x < 0) return -1;
        const int before = op(j, CC_S_lt, p, param(j, END, cut->dim, which, piece->end));
        result = i + 1 == cut->n ? x : cc_term_op(j->b, CC_S_select, before, x, result);
    }
    return result;
}

/* The element's position in the operand's dim; *good: does the operand have it? -1: always. */
static int choose_place(const Join *j, const CcCut *cut, int *good) {
    const int p = place(j, cut->dim);
    int result = -1;
    for (int i = cut->n - 1; i >= 0; i--) {
        const CcPiece *piece = &cut->piece[i];
        const int64_t shift = piece->from - piece->step * piece->begin;
        int at = p;
        if (piece->operand < 0) at = num(j, 0);
        else if (piece->step == 0) at = param(j, SHIFT, cut->dim, i, piece->from);
        else if (piece->step < 0) at = op(j, CC_S_sub, param(j, SHIFT, cut->dim, i, shift), p);
        else if (shift) at = op(j, CC_S_add, p, param(j, SHIFT, cut->dim, i, shift));
        const int before = op(j, CC_S_lt, p, param(j, END, cut->dim, i, piece->end));
        if (piece->operand < 0) { /* padding: before or after all other pieces */
            const int end = i ? param(j, END, cut->dim, i - 1, cut->piece[i - 1].end) : -1;
            const int here = i ? op(j, CC_S_lt, p, end) : op(j, CC_S_ge, p, param(j, END, cut->dim, i, piece->end));
            *good = *good < 0 ? here : op(j, CC_S_and, *good, here);
        }
        result = result < 0 ? at : cc_term_op(j->b, CC_S_select, before, at, result);
    }
    return result;
}

static int read_taken(const Join *j) {
    CcType seen;
    int at = -1, good = -1;
    int64_t unit = MAX_UNIT;
    if (!cc_pieces_type(j->b->g, j->n, 0, 0, &seen) || cc_type_numel(&seen) == 0)
        return cc_build_refuse(j->b, "nothing to read");
    const CcType t = seen;
    for (int i = 0; i < j->pieces->n; i++)
        unit = CC_MIN(unit, unit_of(j->pieces->flat ? 1 : t.stride[j->pieces->cut[i].dim]));
    for (int i = 0; i < j->pieces->n; i++) {
        const int d = j->pieces->cut[i].dim;
        const int here = choose_place(j, &j->pieces->cut[i], &good);
        const int behind = units(j, here, d, j->pieces->flat ? 1 : t.stride[d], unit);
        at = at < 0 ? behind : op(j, CC_S_add, at, behind);
        if (at < 0) return -1;
    }
    for (int d = 0; d < seen.ndim && j->pieces->flat; d++) seen.size[d] = 1, seen.stride[d] = 0;
    for (int i = 0; i < j->pieces->n && !j->pieces->flat; i++) {
        seen.size[j->pieces->cut[i].dim] = 1;
        seen.stride[j->pieces->cut[i].dim] = 0;
    }
    const int value = cc_graph_source(j->b->g, j->n);
    const int x = cc_build_take(j->b, cc_build_seen(j->b, value, &seen), at < 0 ? num(j, 0) : at, unit);
    return good < 0 ? as_result(j, x) : cc_term_op(j->b, CC_S_select, good, as_result(j, x), the_number(j));
}

/* Do positions fit into 32 bits? */
static bool is_small(const CcGraph *g, const CcNode *n) {
    const int64_t most = INT64_C(1) << 30;
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v >= 0 && cc_type_extent(&g->val.at[v].type) > most) return false;
    }
    return cc_type_numel(&g->val.at[n->out0].type) < most;
}

int cc_join_lower(CcBuild *b, const CcNode *n) {
    CcPieces pieces;
    const Join j = {.b = b,
                    .n = n,
                    .out = &b->g->val.at[n->out0].type,
                    .pieces = &pieces,
                    .index = is_small(b->g, n) ? CC_DT_I32 : CC_DT_I64};
    if (!cc_pieces_read(b->g, n, &pieces)) return cc_build_refuse(b, "pieces that do not cover the result");
    if (b->box && !pieces.flat) return read_box(&j);
    return n->op == CC_OP_cat || n->op == CC_OP_stack ? choose_operand(&j) : read_taken(&j);
}
