/* reach: which elements of a tensor an op reads or writes that names them by indices, slices or a mask. All such ops
 * become one form, the elements' space, in which the tensor has steps and each index has its own:
 *
 *   x [A, B, C] at x[:, index [K], 3]     ->     space [A, K], x: steps C * B, 0, from element 3 on; index: 0, 1, by C
 *
 * Where the indices' dims stand in the space is torch's rule: at the place of the first one if they follow one another,
 * else in front. */
#include "pass.h"

/* The tensor after slices, ints and new dims: `index` of a dim is the number of the index that stands there, -1:
 * none. */
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

/* The sizes that all indices have together. */
static bool common_dims(const CcGraph *g, const CcReach *r, CcType *out) {
    out->ndim = 0;
    for (int k = 0; k < r->n; k++) out->ndim = CC_MAX(out->ndim, g->val.at[r->index[k].value].type.ndim);
    for (int d = 0; d < out->ndim; d++) out->size[d] = 1;
    for (int k = 0; k < r->n; k++) {
        const CcType *t = &g->val.at[r->index[k].value].type;
        for (int d = 0; d < t->ndim; d++) {
            int64_t *size = &out->size[out->ndim - t->ndim + d];
            if (t->size[d] != 1 && *size != 1 && *size != t->size[d]) return false;
            if (t->size[d] != 1) *size = t->size[d];
        }
    }
    return true;
}

/* The space of a view with indices. */
static bool lay_out(const CcGraph *g, const View *v, CcReach *r) {
    CcType common;
    int first = v->n, last = -1, count = 0;
    for (int d = 0; d < v->n; d++) {
        if (v->index[d] < 0) continue;
        first = CC_MIN(first, d);
        last = d;
        count++;
    }
    const int at = count && last - first == count - 1 ? first : 0;
    if (!common_dims(g, r, &common) || v->n - count + common.ndim > CC_MAX_DIMS) return false;
    int to = 0;
    for (int d = 0; d <= v->n; d++) {
        for (int i = 0; d == at && i < common.ndim; i++, to++) {
            r->space.size[to] = common.size[i];
            r->space.stride[to] = 0;
            for (int k = 0; k < r->n; k++) {
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

/* ------------------------------------------------------------------ keys of x[...] */

static bool int_operand(const CcGraph *g, const CcNode *n, int i, int64_t *out) {
    const CcOperand *o = i < n->n_in ? cc_graph_operand(g, n, i) : NULL;
    if (!o || o->kind != CC_IN_INT) return false;
    *out = o->i;
    return true;
}

/* A mask of dims [d, ..) of x: it stands in the space as these dims do. */
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

/* A tensor in a key. -> dims of x that it takes; 0: it can't be taken */
static int add_tensor(const CcGraph *g, CcReach *r, const CcType *x, int d, const CcOperand *o, View *v) {
    if (o->kind != CC_IN_VALUE || d >= x->ndim || (r->n && r->index[0].mask)) return 0;
    const CcType *t = &g->val.at[o->value].type;
    if (t->dtype == CC_DT_BOOL) return add_mask(g, r, x, d, o, v) ? t->ndim : 0;
    if (!add_index(g, r, o, x->size[d], x->stride[d], true)) return 0;
    return t->ndim == 0 || push(v, x->size[d], x->stride[d], r->n - 1);
}

/* The parts of a key from operand `at` on, as cc_bind_getitem lists them. */
static bool read_key(const CcGraph *g, const CcNode *n, int at, const CcType *x, CcReach *r) {
    View v = {0};
    int d = 0;
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
    if (r->n && r->index[0].mask) { /* no dims of its own */
        r->n = 0;
        const bool good = lay_out(g, &v, r);
        r->n = 1;
        return good;
    }
    return lay_out(g, &v, r);
}

/* ------------------------------------------------------------------ ops with a dim */

/* One index of any dims in the place of a dim. */
static bool along(const CcGraph *g, const CcNode *n, int dim, int index, bool ends, const CcType *x, CcReach *r) {
    View v = {0};
    if (dim < 0 || dim >= x->ndim || index >= n->n_in || !push_all(&v, x)) return false;
    if (!add_index(g, r, cc_graph_operand(g, n, index), x->size[dim], x->stride[dim], ends)) return false;
    v.index[dim] = 0;
    const bool single = g->val.at[r->index[0].value].type.ndim == 0 && n->op != CC_OP_embedding;
    if (!lay_out(g, &v, r)) return false;
    if (!single) return true;
    if (r->space.ndim == CC_MAX_DIMS) return false;
    for (int d = r->space.ndim++; d > dim; d--) { /* an index without dims is one of one */
        r->space.size[d] = r->space.size[d - 1];
        r->space.stride[d] = r->space.stride[d - 1];
    }
    r->space.size[dim] = 1;
    r->space.stride[dim] = 0;
    return true;
}

/* An index for each element: the space is the index's, broadcast to `shape` if there is one. */
static bool by_element(const CcGraph *g, const CcNode *n, int dim, int index, const CcType *shape, const CcType *x,
                       CcReach *r) {
    /* which takes any index modulo the size (torch 2.13): eager does the others */
    const bool ends = n->op == CC_OP_take_along;
    if (dim < 0 || index >= n->n_in ||
        !add_index(g, r, cc_graph_operand(g, n, index), x->size[dim], x->stride[dim], ends))
        return false;
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

/* take: the elements in their order, whatever their dims. */
static bool flat(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    if (!cc_type_contiguous(x) || !add_index(g, r, cc_graph_operand(g, n, 1), cc_type_numel(x), 1, true)) return false;
    const CcType *t = &g->val.at[r->index[0].value].type;
    r->space.ndim = t->ndim;
    for (int d = 0; d < t->ndim; d++) {
        r->space.size[d] = t->size[d];
        r->space.stride[d] = 0;
        r->index[0].step[d] = t->stride[d];
    }
    return true;
}

/* index_put: tensors of the first dims; operands: x, tensors, value, does it add. */
static bool leading(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    View v = {0};
    int d = 0;
    for (int i = 1; i + 2 < n->n_in; i++) {
        const int dims = add_tensor(g, r, x, d, cc_graph_operand(g, n, i), &v);
        if (dims == 0) return false;
        d += dims;
    }
    for (; d < x->ndim; d++)
        if (!push(&v, x->size[d], x->stride[d], -1)) return false;
    if (r->n == 0 || !r->index[0].mask) return lay_out(g, &v, r);
    r->n = 0;
    const bool good = lay_out(g, &v, r);
    r->n = 1;
    return good;
}

/* ------------------------------------------------------------------ parts without indices */

/* Operands: x, part, dim, index. */
static bool one_of(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    View v = {0};
    int64_t i;
    const int dim = n->n_in == 4 ? cc_graph_dim(x, cc_graph_operand(g, n, 2)) : -1;
    if (dim < 0 || !int_operand(g, n, 3, &i)) return false;
    i += i < 0 ? x->size[dim] : 0;
    if (i < 0 || i >= x->size[dim]) return false;
    r->offset = i * x->stride[dim];
    for (int d = 0; d < x->ndim; d++)
        if (d != dim && !push(&v, x->size[d], x->stride[d], -1)) return false;
    return lay_out(g, &v, r);
}

/* An end of a slice that may count from the end, or be none. */
static bool bound(const CcGraph *g, const CcNode *n, int i, int64_t size, int64_t none, int64_t *out) {
    if (i < n->n_in && cc_graph_operand(g, n, i)->kind == CC_IN_NONE) *out = none;
    else if (!int_operand(g, n, i, out)) return false;
    if (*out < 0) *out += size;
    *out = CC_MAX(0, CC_MIN(*out, size));
    return true;
}

/* Operands: x, part, dim, start, end, step. */
static bool slice_of(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    View v = {0};
    int64_t start, end, step;
    const int dim = n->n_in == 6 ? cc_graph_dim(x, cc_graph_operand(g, n, 2)) : -1;
    if (dim < 0 || !bound(g, n, 3, x->size[dim], 0, &start) || !bound(g, n, 4, x->size[dim], x->size[dim], &end) ||
        !int_operand(g, n, 5, &step) || step < 1 || !push_all(&v, x))
        return false;
    v.size[dim] = end > start ? (end - start + step - 1) / step : 0;
    v.stride[dim] *= step;
    r->offset = end > start ? start * x->stride[dim] : 0;
    return lay_out(g, &v, r);
}

/* Operands: x, part, offset, two dims. */
static bool diagonal_of(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    View v = {0};
    int64_t offset;
    if (n->n_in != 5 || !int_operand(g, n, 2, &offset)) return false;
    const int a = cc_graph_dim(x, cc_graph_operand(g, n, 3)), b = cc_graph_dim(x, cc_graph_operand(g, n, 4));
    if (a < 0 || b < 0 || a == b) return false;
    for (int d = 0; d < x->ndim; d++)
        if (d != a && d != b && !push(&v, x->size[d], x->stride[d], -1)) return false;
    const int64_t size =
        CC_MIN(offset >= 0 ? x->size[a] : x->size[a] + offset, offset >= 0 ? x->size[b] - offset : x->size[b]);
    r->offset = size > 0 ? offset >= 0 ? offset * x->stride[b] : -offset * x->stride[a] : 0;
    return push(&v, CC_MAX(0, size), x->stride[a] + x->stride[b], -1) && lay_out(g, &v, r);
}

/* A mask that is broadcast to x. */
static bool masked(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *r) {
    const CcOperand *o = cc_graph_operand(g, n, 1);
    const CcType *t = o->kind == CC_IN_VALUE ? &g->val.at[o->value].type : NULL;
    if (!t || t->dtype != CC_DT_BOOL || t->ndim > x->ndim) return false;
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
    *r = (CcReach){.space = *x};
    if (x->ndim < 0 || n->n_in < 2) return false;
    const int dim = cc_graph_dim(x, cc_graph_operand(g, n, 1));
    switch (n->op) {
    case CC_OP_embedding: return x->ndim > 0 && along(g, n, 0, 1, false, x, r);
    case CC_OP_index_select:
    case CC_OP_index_add:
    case CC_OP_index_copy: return along(g, n, dim, 2, false, x, r);
    case CC_OP_index_fill: return along(g, n, dim, 2, true, x, r);
    case CC_OP_gather:
    case CC_OP_scatter: return by_element(g, n, dim, 2, NULL, x, r);
    case CC_OP_take_along:
        return n->n_in == 3 &&
               by_element(g, n, cc_graph_dim(x, cc_graph_operand(g, n, 2)), 1, &g->val.at[n->out0].type, x, r);
    case CC_OP_take_flat: return flat(g, n, x, r);
    case CC_OP_index: return read_key(g, n, 1, x, r);
    case CC_OP_put: return read_key(g, n, 2, x, r);
    case CC_OP_index_put: return leading(g, n, x, r);
    case CC_OP_select_scatter: return one_of(g, n, x, r);
    case CC_OP_slice_scatter: return slice_of(g, n, x, r);
    case CC_OP_diagonal_scatter: return diagonal_of(g, n, x, r);
    case CC_OP_masked_scatter: return masked(g, n, x, r);
    default: return false;
    }
}
