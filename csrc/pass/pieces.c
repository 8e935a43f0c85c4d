/* pieces: the parts of joins, padding, rolling and pools. Along each dim that such an op cuts, the result is a row of
 * pieces, each of consecutive elements of one operand, or a constant:
 *
 *   cat(x [2], y [3])       [0, 2) x from 0           [2, 5) y from 0
 *   pad(x [4], 2, 1)        [0, 2) constant           [2, 6) x from 0     [6, 7) constant
 *   pad_reflect(x [4], 2)   [0, 2) x from 2, back     [2, 6) x from 0
 *   roll(x [4], 1)          [0, 1) x from 3           [1, 4) x from 0
 *   max_pool(x [9], 3)      [0, 1) overhangs x        [1, 8) x            [8, 9) overhangs x */
#include "pass.h"

enum { INTERIOR = 8 }; /* least elements between a pool's borders that are worth a box of their own */

static bool read_int(const CcGraph *g, const CcNode *n, int i, int64_t *out) {
    const CcOperand *o = cc_graph_operand(g, n, i);
    *out = o->i;
    return o->kind == CC_IN_INT || o->kind == CC_IN_BOOL;
}

bool cc_pieces_type(const CcGraph *g, const CcNode *n, int operand, int dim, CcType *t) {
    const int v = cc_graph_value(g, n, operand);
    if (v < 0 || g->val.at[v].scalar) return false;
    *t = g->val.at[v].type;
    if (!cc_type_known(t)) return false;
    if (n->op != CC_OP_stack) return true;
    if (t->ndim + 1 != g->val.at[n->out0].type.ndim) return false;
    *t = cc_type_with_dim(t, dim);
    return true;
}

static CcCut *begin_cut(CcPieces *p, int dim) {
    CcCut *cut = &p->cut[p->n++];
    *cut = (CcCut){.dim = dim, .piece = p->piece + p->n_piece};
    return cut;
}

/* Appends `length` elements; an empty piece is dropped. */
static bool add(CcPieces *p, CcCut *cut, int64_t length, int operand, int64_t from, int step) {
    const int64_t begin = cut->n ? cut->piece[cut->n - 1].end : 0;
    if (length == 0) return true;
    if (length < 0 || p->n_piece == CC_PIECES_MAX) return false;
    cut->piece[cut->n++] = (CcPiece){begin, begin + length, from, step, operand};
    p->n_piece++;
    return true;
}

static bool fills(const CcPieces *p, const CcType *out) {
    for (int i = 0; i < p->n; i++) {
        const CcCut *cut = &p->cut[i];
        if (cut->n == 0 || cut->piece[cut->n - 1].end != (p->flat ? cc_type_numel(out) : out->size[cut->dim]))
            return false;
    }
    return true;
}

static bool join(const CcGraph *g, const CcNode *n, CcPieces *p) {
    const CcType *out = &g->val.at[n->out0].type;
    CcIn_cat in;
    const int dim = cc_in_cat(g, n, &in) ? cc_graph_dim(out, &in.dim) : -1;
    if (dim < 0) return false;
    CcCut *cut = begin_cut(p, dim);
    for (int i = 0; i < in.tensors.n; i++) {
        CcType t;
        /* cat still accepts empty vectors */
        if (!cc_pieces_type(g, n, i, dim, &t) || t.ndim != out->ndim) return false;
        for (int d = 0; d < t.ndim; d++)
            if (d != dim && t.size[d] != out->size[d]) return false;
        if (!add(p, cut, t.size[dim], i, 0, 1)) return false;
    }
    return true;
}

/* As many shifts as dims; or a single shift of the flattened tensor. */
static bool roll(const CcGraph *g, const CcNode *n, const CcType *x, CcPieces *p) {
    CcIn_roll in;
    unsigned seen = 0;
    int64_t by;
    if (!cc_in_roll(g, n, &in)) return false;
    const int shifts = in.shifts_and_dims.first, dims = in.shifts_and_dims.n / 2;
    p->flat = in.shifts_and_dims.n == 1;
    if (!cc_type_same_shape(x, &g->val.at[n->out0].type) || (in.shifts_and_dims.n % 2 && !p->flat)) return false;
    if (p->flat && (!cc_type_contiguous(x) || !cc_type_contiguous(&g->val.at[n->out0].type))) return false;
    for (int i = 0; i < (p->flat ? 1 : dims); i++) {
        const int d = p->flat ? 0 : cc_graph_dim(x, cc_graph_operand(g, n, shifts + dims + i));
        if (d < 0 || seen >> d & 1 || !read_int(g, n, shifts + i, &by)) return false;
        const int64_t size = p->flat ? cc_type_numel(x) : x->size[d];
        seen |= 1u << d;
        by = (by % size + size) % size;
        CcCut *cut = begin_cut(p, d);
        if (!add(p, cut, by, 0, size - by, 1) || !add(p, cut, size - by, 0, 0, 1)) return false;
    }
    return true;
}

/* Padding before or after x: `n` elements. */
static bool add_edge(const CcNode *node, CcPieces *p, CcCut *cut, int64_t size, int64_t n, bool behind) {
    switch (node->op) {
    case CC_OP_pad: return add(p, cut, CC_MAX(n, 0), -1, 0, 0);
    case CC_OP_pad_replicate: return n >= 0 && size > 0 && add(p, cut, n, 0, behind ? size - 1 : 0, 0);
    case CC_OP_pad_reflect: return n >= 0 && n < size && add(p, cut, n, 0, behind ? size - 2 : n, -1);
    default: return n >= 0 && n <= size && add(p, cut, n, 0, behind ? 0 : size - n, 1);
    }
}

/* Widths before and after of the last dim, of the dim before it ... Negative widths crop x. */
static bool pad(const CcGraph *g, const CcNode *n, const CcType *x, CcPieces *p) {
    const CcType *out = &g->val.at[n->out0].type;
    CcIn_pad in = {.value = {.kind = CC_IN_INT}};
    CcIn_pad_reflect other;
    if (n->op == CC_OP_pad ? !cc_in_pad(g, n, &in) : !cc_in_pad_reflect(g, n, &other)) return false;
    if (n->op != CC_OP_pad) in.widths = other.widths;
    p->fill = in.value;
    if (p->fill.kind == CC_IN_NONE) p->fill = (CcOperand){.kind = CC_IN_INT};
    if (in.widths.n % 2 || in.widths.n / 2 > x->ndim || x->ndim != out->ndim || p->fill.kind == CC_IN_VALUE)
        return false;
    for (int d = 0; d < x->ndim; d++) {
        const int at = 2 * (x->ndim - 1 - d), i = in.widths.first + at;
        int64_t front = 0, back = 0;
        if (at < in.widths.n && (!read_int(g, n, i, &front) || !read_int(g, n, i + 1, &back))) return false;
        if (x->size[d] + front + back != out->size[d]) return false;
        if (!front && !back) continue;
        CcCut *cut = begin_cut(p, d);
        const int64_t kept = x->size[d] + CC_MIN(front, 0) + CC_MIN(back, 0);
        if (kept < 0 || !add_edge(n, p, cut, x->size[d], front, false) || !add(p, cut, kept, 0, CC_MAX(-front, 0), 1) ||
            !add_edge(n, p, cut, x->size[d], back, true))
            return false;
    }
    return true;
}

/* Windows one element apart read consecutive elements, except where they overhang x. (Those further apart are not
 * worth boxes: 64 channels of 112x112, 3x3, stride 2: 364 us, in one piece 309; Zen 4, one thread.) */
static bool pool(const CcGraph *g, const CcNode *n, CcPieces *p) {
    CcWindow w[CC_WINDOW_DIMS];
    int64_t divisor;
    const CcType *x = &g->val.at[cc_graph_source(g, n)].type, *out = &g->val.at[n->out0].type;
    const int dims = cc_window_read(g, n, w, &divisor), d = out->ndim - 1;
    if (dims == 0) return false;
    const CcWindow *last = &w[dims - 1];
    const int64_t begin = CC_MIN(last->padding, out->size[d]),
                  end = CC_MIN(x->size[d] + last->padding - last->dilation * (last->kernel - 1), out->size[d]);
    if (out->stride[d] != 1 || last->adaptive || last->stride != 1 || end - begin < INTERIOR) return true;
    CcCut *cut = begin_cut(p, d);
    return add(p, cut, begin, 0, 0, 1) && add(p, cut, end - begin, 0, begin, 1) &&
           add(p, cut, out->size[d] - end, 0, end, 1);
}

bool cc_pieces_read(const CcGraph *g, const CcNode *n, CcPieces *p) {
    const CcOpKind kind = cc_node_kind(n);
    const CcType *out = &g->val.at[n->out0].type;
    CcType x;
    p->n = p->n_piece = 0;
    p->flat = false;
    if ((kind != CC_K_CONCAT && kind != CC_K_POOL) || n->n_in < 1 || !cc_type_known(out) || cc_type_numel(out) == 0)
        return false;
    bool good;
    if (kind == CC_K_POOL) good = pool(g, n, p);
    else if (n->op == CC_OP_cat || n->op == CC_OP_stack) good = join(g, n, p);
    else if (!cc_pieces_type(g, n, 0, 0, &x) || x.dtype != out->dtype) good = false;
    else if (n->op == CC_OP_roll) good = roll(g, n, &x, p);
    else good = pad(g, n, &x, p);
    return good && fills(p, out);
}

int cc_pieces_boxes(const CcPieces *p) {
    int64_t n = 1;
    for (int i = 0; i < p->n && n <= CC_PIECES_MAX; i++) n *= p->cut[i].n;
    return p->flat ? 0 : (int)CC_MIN(n, CC_PIECES_MAX + 1);
}
