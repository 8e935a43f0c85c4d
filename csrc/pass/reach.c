/* reach: which elements of a tensor an op reads or writes by indices, slices or a mask. All such ops take one form:
 * an iteration space, in which the tensor and each index have strides:
 *
 *   x [A, B, C] at x[:, index [K], 3]     ->     space [A, K], x: strides C * B, 0, from element 3 on; index: 0, 1, by C
 *
 * Torch's rule places the dims of the indices in the space: at the first index if the indices are adjacent, else in
 * front. */
#include "pass.h"

/* The tensor after slices, ints and new dims: `index` of a dim is the number of the index there; -1: none. */
typedef struct View {
    int n;
    int64_t size[CC_MAX_DIMS], stride[CC_MAX_DIMS];
    int index[CC_MAX_DIMS];
} View;

static bool push(View *v, int64_t size, int64_t stride, int index) {
    if (v->n == CC_MAX_DIMS) return false;
    v->size[v->n] = size;
    v->stride[v->n] = stride;
    v->index[v->n++] = index;
    return true;
}

static bool push_all(View *v, const CcType *x) {
    for (int d = 0; d < x->ndim; d++)
        if (!push(v, x->size[d], x->stride[d], -1)) return false;
    return true;
}

static bool add_index(const CcGraph *g, CcReach *r, const CcOperand *o, int64_t count, int64_t by, bool ends) {
    if (o->kind != CC_IN_VALUE || r->n == CC_MAX_DIMS) return false;
    const CcType *t = &g->val.at[o->value].type;
    if (t->ndim < 0 || (t->dtype != CC_DT_I64 && t->dtype != CC_DT_I32)) return false;
    r->index[r->n++] = (CcReachIndex){.value = o->value, .count = count, .by = by, .ends = ends};
    return true;
}

/* The broadcast sizes of the first n indices. */
static bool common_dims(const CcGraph *g, const CcReach *r, int n, CcType *out) {
    out->ndim = 0;
    for (int k = 0; k < n; k++) out->ndim = CC_MAX(out->ndim, g->val.at[r->index[k].value].type.ndim);
    for (int d = 0; d < out->ndim; d++) out->size[d] = 1;
    for (int k = 0; k < n; k++) {
        const CcType *t = &g->val.at[r->index[k].value].type;
        for (int d = 0; d < t->ndim; d++) {
            int64_t *size = &out->size[out->ndim - t->ndim + d];
            if (t->size[d] != 1 && *size != 1 && *size != t->size[d]) return false;
            if (t->size[d] != 1) *size = t->size[d];
        }
    }
    return true;
}

/* The space of a view with indices. A mask, which stands alone, adds no dims: the view has those of x that it covers. */
static bool lay_out(const CcGraph *g, const View *v, CcReach *r) {
    const int indices = r->n && r->index[0].mask ? 0 : r->n;
    CcType common;
    int first = v->n, last = -1, count = 0;
    for (int d = 0; d < v->n; d++) {
        if (v->index[d] < 0) continue;
        first = CC_MIN(first, d);
        last = d;
        count++;
    }
    const int at = count && last - first == count - 1 ? first : 0;
    if (!common_dims(g, r, indices, &common) || v->n - count + common.ndim > CC_MAX_DIMS) return false;
    int to = 0;
    for (int d = 0; d <= v->n; d++) {
        for (int i = 0; d == at && i < common.ndim; i++, to++) {
            r->space.size[to] = common.size[i];
            r->space.stride[to] = 0;
            for (int k = 0; k < indices; k++) {
                const CcType *t = &g->val.at[r->index[k].value].type;
                const int own = i - (common.ndim - t->ndim);
                r->index[k].step[to] = own >= 0 && t->size[own] != 1 ? t->stride[own] : 0;
            }
        }
        if (d == v->n || v->index[d] >= 0) continue;
        r->space.size[to] = v->size[d];
        r->space.stride[to++] = v->stride[d];
    }
    r->space.ndim = (int8_t)to;
    return true;
}

CcOperand cc_reach_window(CcGraph *g, const CcReach *r, int value, const int64_t *step, int64_t offset) {
    CcType t = g->val.at[value].type;
    t.ndim = r->space.ndim;
    for (int d = 0; d < t.ndim; d++) {
        t.size[d] = step[d] ? r->space.size[d] : 1;
        t.stride[d] = step[d];
    }
    return (CcOperand){.kind = CC_IN_VALUE, .value = cc_views_part(g, value, &t, offset)};
}

/* ------------------------------------------------------------------ keys of x[...] */

static bool int_operand(const CcGraph *g, const CcNode *n, int i, int64_t *out) {
    const CcOperand *o = i < n->n_in ? cc_graph_operand(g, n, i) : NULL;
    if (!o || o->kind != CC_IN_INT) return false;
    *out = o->i;
    return true;
}

/* A mask of dims [d, ..) of x: its dims are those of the space. */
static bool add_mask(const CcGraph *g, CcReach *r, const CcType *x, int d, const CcOperand *o, View *v) {
    const CcType *t = &g->val.at[o->value].type;
    if (r->n || t->ndim < 1 || d + t->ndim > x->ndim) return false;
    r->index[r->n++] = (CcReachIndex){.value = o->value, .mask = true};
    for (int i = 0; i < t->ndim; i++) {
        if (t->size[i] != x->size[d + i] || v->n == CC_MAX_DIMS) return false;
        r->index[0].step[v->n] = t->stride[i];
        if (!push(v, x->size[d + i], x->stride[d + i], -1)) return false;
    }
    return true;
}

/* A tensor in a key. -> number of x's dims that it consumes; 0: not supported */
static int add_tensor(const CcGraph *g, CcReach *r, const CcType *x, int d, const CcOperand *o, View *v) {
    if (o->kind != CC_IN_VALUE || d >= x->ndim || (r->n && r->index[0].mask)) return 0;
    const CcType *t = &g->val.at[o->value].type;
    if (t->dtype == CC_DT_BOOL) return add_mask(g, r, x, d, o, v) ? t->ndim : 0;
    if (!add_index(g, r, o, x->size[d], x->stride[d], true)) return 0;
    return t->ndim == 0 || push(v, x->size[d], x->stride[d], r->n - 1);
}

/* The parts of a key, the trailing operands, as cc_bind_getitem lists them. */
static bool read_key(const CcGraph *g, const CcNode *n, CcOperandRange key, const CcType *x, CcReach *r) {
    View v = {0};
    int d = 0, at = key.first;
    while (at < n->n_in) {
        int64_t code, a, length, step;
        if (!int_operand(g, n, at++, &code) || (code != CC_KEY_NEW && d >= x->ndim)) return false;
        if (code == CC_KEY_NEW) {
            if (!push(&v, 1, 0, -1)) return false;
            continue;
        }
        if (code == CC_KEY_TENSOR) {
            const int dims = add_tensor(g, r, x, d, cc_graph_operand(g, n, at), &v);
            if (dims == 0) return false;
            d += dims;
            at++;
            continue;
        }
        if (code == CC_KEY_ALL) {
            if (!push(&v, x->size[d], x->stride[d], -1)) return false;
        } else if (code == CC_KEY_INT) {
            if (!int_operand(g, n, at++, &a) || a < 0 || a >= x->size[d]) return false;
            r->offset += a * x->stride[d];
        } else {
            if (!int_operand(g, n, at, &a) || !int_operand(g, n, at + 1, &length) || !int_operand(g, n, at + 2, &step))
                return false;
            at += 3;
            if (a < 0 || length < 0 || step < 1 || (length && a + (length - 1) * step >= x->size[d])) return false;
            r->offset += length ? a * x->stride[d] : 0;
            if (!push(&v, length, x->stride[d] * step, -1)) return false;
        }
        d++;
    }
    for (; d < x->ndim; d++)
        if (!push(&v, x->size[d], x->stride[d], -1)) return false;
    return lay_out(g, &v, r);
}

/* ------------------------------------------------------------------ ops with a dim */

/* An index of any shape replaces one dim. */
static bool along(const CcGraph *g, int dim, const CcOperand *index, bool ends, const CcType *x, CcReach *r) {
    View v = {0};
    if (dim < 0 || !push_all(&v, x) || !add_index(g, r, index, x->size[dim], x->stride[dim], ends)) return false;
    v.index[dim] = 0;
    return lay_out(g, &v, r);
}

/* The same; a 0-dim index counts as having one element. */
static bool along_kept(const CcGraph *g, int dim, const CcOperand *index, bool ends, const CcType *x, CcReach *r) {
    if (!along(g, dim, index, ends, x, r)) return false;
    if (g->val.at[r->index[0].value].type.ndim > 0) return true;
    if (r->space.ndim == CC_MAX_DIMS) return false;
    r->space = cc_type_with_dim(&r->space, dim);
    return true;
}

/* One index per element: the space is the index's shape, broadcast to `shape` if given. */
static bool by_element(const CcGraph *g, int dim, const CcOperand *index, bool ends, const CcType *shape,
                       const CcType *x, CcReach *r) {
    if (dim < 0 || !add_index(g, r, index, x->size[dim], x->stride[dim], ends)) return false;
    const CcType *t = &g->val.at[r->index[0].value].type;
    if (t->ndim != x->ndim) return false;
    r->space.ndim = x->ndim;
    for (int d = 0; d < x->ndim; d++) {
        r->space.size[d] = shape ? shape->size[d] : t->size[d];
        r->space.stride[d] = d == dim || x->size[d] == 1 ? 0 : x->stride[d];
        r->index[0].step[d] = t->size[d] == 1 ? 0 : t->stride[d];
        if (t->size[d] != 1 && t->size[d] != r->space.size[d]) return false;
        if (d != dim && r->space.size[d] > x->size[d] && x->size[d] != 1) return false;
    }
    return true;
}

/* take: indexes the flattened elements. */
static bool flat(const CcGraph *g, const CcOperand *index, const CcType *x, CcReach *r) {
    if (!cc_type_contiguous(x) || !add_index(g, r, index, cc_type_numel(x), 1, true)) return false;
    const CcType *t = &g->val.at[r->index[0].value].type;
    r->space.ndim = t->ndim;
    for (int d = 0; d < t->ndim; d++) {
        r->space.size[d] = t->size[d];
        r->space.stride[d] = 0;
        r->index[0].step[d] = t->stride[d];
    }
    return true;
}

/* index_put: one tensor per leading dim. */
static bool leading(const CcGraph *g, const CcNode *n, CcOperandRange indices, const CcType *x, CcReach *r) {
    View v = {0};
    int d = 0;
    for (int i = 0; i < indices.n; i++) {
        const int dims = add_tensor(g, r, x, d, cc_graph_operand(g, n, indices.first + i), &v);
        if (dims == 0) return false;
        d += dims;
    }
    for (; d < x->ndim; d++)
        if (!push(&v, x->size[d], x->stride[d], -1)) return false;
    return lay_out(g, &v, r);
}

/* ------------------------------------------------------------------ parts without indices */

static bool one_of(const CcGraph *g, const CcIn_select_scatter *in, const CcType *x, CcReach *r) {
    View v = {0};
    const int dim = cc_graph_dim(x, &in->dim);
    if (dim < 0) return false;
    const int64_t i = in->index.i + (in->index.i < 0 ? x->size[dim] : 0);
    if (i < 0 || i >= x->size[dim]) return false;
    r->offset = i * x->stride[dim];
    for (int d = 0; d < x->ndim; d++)
        if (d != dim && !push(&v, x->size[d], x->stride[d], -1)) return false;
    return lay_out(g, &v, r);
}

/* Start or end of a slice; may be negative or None. */
static bool bound(const CcOperand *o, int64_t size, int64_t none, int64_t *out) {
    if (o->kind != CC_IN_NONE && o->kind != CC_IN_INT) return false;
    *out = o->kind == CC_IN_NONE ? none : o->i;
    if (*out < 0) *out += size;
    *out = CC_MAX(0, CC_MIN(*out, size));
    return true;
}

static bool slice_of(const CcGraph *g, const CcIn_slice_scatter *in, const CcType *x, CcReach *r) {
    View v = {0};
    int64_t start, end;
    const int64_t step = in->step.i;
    const int dim = cc_graph_dim(x, &in->dim);
    if (dim < 0 || !bound(&in->start, x->size[dim], 0, &start) || !bound(&in->end, x->size[dim], x->size[dim], &end) ||
        step < 1 || !push_all(&v, x))
        return false;
    v.size[dim] = end > start ? (end - start + step - 1) / step : 0;
    v.stride[dim] *= step;
    r->offset = end > start ? start * x->stride[dim] : 0;
    return lay_out(g, &v, r);
}

static bool diagonal_of(const CcGraph *g, const CcIn_diagonal_scatter *in, const CcType *x, CcReach *r) {
    View v = {0};
    const int64_t offset = in->offset.i;
    const int a = cc_graph_dim(x, &in->dim1), b = cc_graph_dim(x, &in->dim2);
    if (a < 0 || b < 0 || a == b) return false;
    for (int d = 0; d < x->ndim; d++)
        if (d != a && d != b && !push(&v, x->size[d], x->stride[d], -1)) return false;
    const int64_t size =
        CC_MIN(offset >= 0 ? x->size[a] : x->size[a] + offset, offset >= 0 ? x->size[b] - offset : x->size[b]);
    r->offset = size > 0 ? offset >= 0 ? offset * x->stride[b] : -offset * x->stride[a] : 0;
    return push(&v, CC_MAX(0, size), x->stride[a] + x->stride[b], -1) && lay_out(g, &v, r);
}

/* A mask, broadcast to x. */
static bool masked(const CcGraph *g, const CcOperand *o, const CcType *x, CcReach *r) {
    const CcType *t = &g->val.at[o->value].type;
    if (t->dtype != CC_DT_BOOL || t->ndim > x->ndim) return false;
    r->n = 1;
    r->index[0] = (CcReachIndex){.value = o->value, .mask = true};
    for (int d = 0; d < x->ndim; d++) {
        const int own = d - (x->ndim - t->ndim);
        if (own >= 0 && t->size[own] != 1 && t->size[own] != x->size[d]) return false;
        r->index[0].step[d] = own >= 0 && t->size[own] != 1 ? t->stride[own] : 0;
    }
    return true;
}

bool cc_reach_read(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    union {
        CcIn_embedding embedding;
        CcIn_index_select index_select;
        CcIn_index_add index_add;
        CcIn_index_copy index_copy;
        CcIn_index_fill index_fill;
        CcIn_gather gather;
        CcIn_scatter scatter;
        CcIn_take_along take_along;
        CcIn_take_flat take_flat;
        CcIn_index index;
        CcIn_put put;
        CcIn_put_add put_add;
        CcIn_index_put index_put;
        CcIn_select_scatter select_scatter;
        CcIn_slice_scatter slice_scatter;
        CcIn_diagonal_scatter diagonal_scatter;
        CcIn_masked_scatter masked_scatter;
    } in;
    *r = (CcReach){.space = *x};
    if (x->ndim < 0) return false;
#define READ(op) cc_in_##op(g, n, &in.op)
#define DIM(op) cc_graph_dim(x, &in.op.dim)
    switch (n->op) {
    case CC_OP_embedding: return READ(embedding) && x->ndim > 0 && along(g, 0, &in.embedding.index, false, x, r);
    case CC_OP_index_select:
        return READ(index_select) && along_kept(g, DIM(index_select), &in.index_select.index, false, x, r);
    case CC_OP_index_add: return READ(index_add) && along_kept(g, DIM(index_add), &in.index_add.index, false, x, r);
    case CC_OP_index_copy: return READ(index_copy) && along_kept(g, DIM(index_copy), &in.index_copy.index, false, x, r);
    case CC_OP_index_fill: return READ(index_fill) && along_kept(g, DIM(index_fill), &in.index_fill.index, true, x, r);
    case CC_OP_gather: return READ(gather) && by_element(g, DIM(gather), &in.gather.index, false, NULL, x, r);
    case CC_OP_scatter: return READ(scatter) && by_element(g, DIM(scatter), &in.scatter.index, false, NULL, x, r);
    case CC_OP_take_along: /* reads any index modulo the size (torch 2.13): eager runs the others */
        return READ(take_along) &&
               by_element(g, DIM(take_along), &in.take_along.index, true, &g->val.at[n->out0].type, x, r);
    case CC_OP_take_flat: return READ(take_flat) && flat(g, &in.take_flat.index, x, r);
    case CC_OP_index: return READ(index) && read_key(g, n, in.index.key, x, r);
    case CC_OP_put: return READ(put) && read_key(g, n, in.put.key, x, r);
    case CC_OP_put_add: return READ(put_add) && read_key(g, n, in.put_add.key, x, r);
    case CC_OP_index_put: return READ(index_put) && leading(g, n, in.index_put.indices, x, r);
    case CC_OP_select_scatter: return READ(select_scatter) && one_of(g, &in.select_scatter, x, r);
    case CC_OP_slice_scatter: return READ(slice_scatter) && slice_of(g, &in.slice_scatter, x, r);
    case CC_OP_diagonal_scatter: return READ(diagonal_scatter) && diagonal_of(g, &in.diagonal_scatter, x, r);
    case CC_OP_masked_scatter: return READ(masked_scatter) && masked(g, &in.masked_scatter.mask, x, r);
    default: return false;
    }
#undef READ
#undef DIM
}
