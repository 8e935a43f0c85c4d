/* infer: infers sizes and strides of a node's results from its operands, as torch does (infer.def). A rule answers
 * "unknown" where torch would raise and where the rule is not certain. dtypes, devices and numbers of dims are as
 * recorded. Functions carry the names of torch 2.13's. */
#include "ir.h"

enum { MOST = 8 }; /* max number of tensors of a pointwise op */

/* A node, and the same node as recorded: the recording shows what no operand says (a memory format, keepdim). */
typedef struct Ask {
    const CcGraph *g, *was;
    const CcNode *n, *old;
    CcType *out; /* as recorded */
} Ask;

typedef bool Rule(const Ask *a);

static const CcType *type_of(const CcGraph *g, const CcNode *n, int i) {
    const CcOperand *o = i < n->n_in ? cc_graph_operand(g, n, i) : NULL;
    return o && o->kind == CC_IN_VALUE ? &g->val.at[o->value].type : NULL;
}

static const CcType *in(const Ask *a, int i) { return type_of(a->g, a->n, i); }

static const CcType *was(const Ask *a, int i) { return type_of(a->was, a->old, i); }

static const CcOperand *operand(const Ask *a, int i) { return cc_graph_operand(a->g, a->n, i); }

static bool none(const Ask *a, int i) { return i >= a->n->n_in || operand(a, i)->kind == CC_IN_NONE; }

static bool lays(CcType *t, const CcType *as) {
    if (t->ndim != as->ndim) return false;
    memcpy(t->size, as->size, sizeof t->size);
    memcpy(t->stride, as->stride, sizeof t->stride);
    return true;
}

/* ------------------------------------------------------------------ strides of pointwise ops */

/* TensorIteratorBase::compute_shape, infer_size. */
static bool broadcast(CcType *out, const CcType *const *t, int n) {
    int ndim = 0;
    for (int i = 0; i < n; i++) ndim = CC_MAX(ndim, t[i]->ndim);
    if (ndim != out->ndim) return false;
    for (int d = 0; d < ndim; d++) {
        out->size[d] = 1;
        for (int i = 0; i < n; i++) {
            const int own = d - (ndim - t[i]->ndim);
            const int64_t size = own < 0 ? 1 : t[i]->size[own];
            if (size == 1) continue;
            if (out->size[d] != 1 && out->size[d] != size) return false;
            out->size[d] = size;
        }
    }
    return true;
}

/* TensorIteratorBase::reorder_dimensions, should_swap: 1, -1, or 0 for "ambiguous". */
static int after(const CcType *shape, int64_t stride[][CC_MAX_DIMS], int n, int d, int e) {
    for (int i = 0; i < n; i++) {
        const int64_t s = stride[i][d], t = stride[i][e];
        if (s == 0 || t == 0) continue;
        if (s != t) return s < t ? -1 : 1;
        if (shape->size[d] > shape->size[e]) return 1;
    }
    return 0;
}

/* Also compatible_stride. `out` has its sizes; none is 0. */
static void lay_ordered(CcType *out, int64_t stride[][CC_MAX_DIMS], int n) {
    int perm[CC_MAX_DIMS];
    for (int i = 0; i < out->ndim; i++) perm[i] = out->ndim - 1 - i;
    for (int i = 1; i < out->ndim; i++)
        for (int to = i, at = i - 1; at >= 0; at--) {
            const int order = after(out, stride, n, perm[at], perm[to]);
            if (order < 0) break;
            if (order == 0) continue;
            const int d = perm[at];
            perm[at] = perm[to];
            perm[to] = d;
            to = at;
        }
    int64_t next = 1;
    for (int i = 0; i < out->ndim; next *= out->size[perm[i++]]) out->stride[perm[i]] = next;
}

static void lay_slow(CcType *out, const CcType *const *t, int n) {
    int64_t stride[MOST][CC_MAX_DIMS] = {{0}};
    for (int i = 0; i < n; i++)
        for (int d = 0; d < t[i]->ndim; d++) {
            const int at = d + out->ndim - t[i]->ndim;
            stride[i][at] = t[i]->size[d] == 1 && out->size[at] != 1 ? 0 : t[i]->stride[d];
        }
    lay_ordered(out, stride, n);
}

/* is_contiguous(MemoryFormat::ChannelsLast) */
static bool channels_last(const CcType *t) {
    static const int order[] = {1, 3, 2, 0};
    int64_t expect = 1;
    for (int i = 0; t->ndim == 4 && i < 4; i++) {
        const int d = order[i];
        if (t->size[d] == 1) continue;
        if (t->stride[d] != expect) return false;
        expect *= t->size[d];
    }
    return t->ndim == 4;
}

/* TensorIteratorBase::compute_fast_setup_type. False: none applies. */
static bool lay_fast(CcType *out, const CcType *const *t, int n) {
    bool contiguous = true, last = true, dense = true;
    for (int i = 0; i < n; i++) {
        if (!cc_type_same_shape(t[i], out)) return false;
        contiguous = contiguous && cc_type_contiguous(t[i]);
        last = last && channels_last(t[i]);
        dense = dense && cc_type_dense(t[i]) && cc_type_same_layout(t[i], t[0]);
    }
    if (contiguous) cc_type_make_contiguous(out);
    else if (last) cc_type_make_channels_last(out);
    else if (dense) return lays(out, t[0]);
    return contiguous || last || dense;
}

/* Lays out the result only if neither the order of the tensors nor further 0-dim tensors matter. */
static bool lay_surely(CcType *out, const CcType *const *t, int n) {
    lay_slow(out, t, n);
    CcType other = *out;
    if (lay_fast(&other, t, n) && !cc_type_same_layout(&other, out)) return false;
    for (int shift = 0; n > 1 && shift < 2 * n; shift++) {
        const CcType *rotated[MOST];
        for (int i = 0; i < n; i++) rotated[shift < n ? i : n - 1 - i] = t[(i + shift) % n];
        lay_slow(&other, rotated, n);
        if (!cc_type_same_layout(&other, out)) return false;
    }
    return n < 4;
}

static bool is_number(const Ask *a, int i) { return i < a->n->n_in && !in(a, i) && !none(a, i); }

/* The value at the root of a chain of views. */
static int root(const CcGraph *g, int value) {
    for (int def; (def = g->val.at[value].def) >= 0;) {
        const CcNode *n = &g->node.at[def];
        const bool view = cc_op_is_view(n->op) && type_of(g, n, 0);
        if (!view) return value;
        value = cc_graph_operand(g, n, 0)->value;
    }
    return value;
}

/* torch refuses to write a tensor whose elements share memory with one another (assert_no_internal_overlap) or
 * partly with an input (assert_no_partial_overlap). */
static bool may_write(const Ask *a) {
    const CcType *t = in(a, 0);
    if (!t || cc_type_repeats(t)) return false;
    const int written = operand(a, 0)->value, own = root(a->g, written);
    for (int i = 1; i < a->n->n_in; i++)
        if (in(a, i) && operand(a, i)->value != written && root(a->g, operand(a, i)->value) == own) return false;
    return true;
}

/* Collects the tensors and the sizes of the result. 0: torch would not run a pointwise op on these operands. */
static int take_tensors(const Ask *a, const CcType **t, CcType *out) {
    int n = 0;
    for (int i = 0; i < a->n->n_in; i++) {
        if (!in(a, i)) continue;
        if (n == MOST) return 0;
        t[n++] = in(a, i);
    }
    const bool writes = a->n->flags & CC_N_WRITES;
    if (n == 0 || a->n->n_out != !writes || (writes && !may_write(a))) return 0;
    *out = writes ? *in(a, 0) : a->out[0];
    return broadcast(out, t, n) && (!writes || cc_type_same_shape(out, in(a, 0))) ? n : 0;
}

static bool pointwise(const Ask *a, bool wraps) {
    const CcType *t[MOST];
    CcType out;
    const int n = take_tensors(a, t, &out);
    if (n == 0) return false;
    if (a->n->n_out == 0) return true;
    if (wraps || !lay_fast(&out, t, n)) lay_slow(&out, t, n);
    a->out[0] = out;
    return true;
}

static bool rule_binary(const Ask *a) { return pointwise(a, is_number(a, 0) || is_number(a, 1)); }

static bool rule_unary(const Ask *a) { return in(a, 0) && pointwise(a, false); }

static bool rule_mixed(const Ask *a) {
    const CcType *t[MOST];
    CcType out;
    const int n = take_tensors(a, t, &out);
    if (n == 0) return false;
    if (a->n->n_out == 0) return true;
    a->out[0] = out;
    return lay_surely(&a->out[0], t, n);
}

/* Tensor.to, clone with MemoryFormat::Preserve; infer_dense_strides. */
static void lay_preserved(CcType *out, const CcType *t) {
    int64_t stride[1][CC_MAX_DIMS];
    memcpy(stride[0], t->stride, sizeof stride[0]);
    if (cc_type_dense(t)) memcpy(out->stride, t->stride, sizeof out->stride);
    else lay_ordered(out, stride, 1);
}

static bool rule_plain(const Ask *a) {
    if (!rule_mixed(a)) return false;
    CcType copy = a->out[0], plain = a->out[0];
    if (a->n->n_out == 0) return true;
    if (!in(a, 0) || !cc_type_same_shape(in(a, 0), &copy)) return false;
    lay_preserved(&copy, in(a, 0));
    cc_type_make_contiguous(&plain);
    return cc_type_same_layout(&plain, &copy) && cc_type_same_layout(&plain, &a->out[0]);
}

/* ------------------------------------------------------------------ copies */

static void lay_contiguous(CcType *out, const CcType *t) {
    (void)t;
    cc_type_make_contiguous(out);
}

static void lay_channels_last(CcType *out, const CcType *t) {
    (void)t;
    if (out->ndim == 4) cc_type_make_channels_last(out);
    else cc_type_make_contiguous(out);
}

/* The recorded result shows which memory format the call requested; if several formats explain it, they must agree
 * for the new sizes. torch may return a tensor itself if it already has the format; then the recording must have
 * seen that case. */
static bool rule_copy(const Ask *a) {
    static void (*const lay[])(CcType *, const CcType *) = {lay_preserved, lay_contiguous, lay_channels_last};
    const CcType *t = in(a, 0), *old = was(a, 0), *gave = &a->was->val.at[a->old->out0].type;
    if (!t || !old || a->n->n_out != 1 || a->n->flags & CC_N_WRITES || t->ndim != a->out->ndim) return false;
    CcType first = a->out[0], now = first, then = *gave;
    memcpy(first.size, t->size, sizeof first.size);
    int found = 0;
    for (int i = 0; i < CC_COUNT(lay); i++) {
        lay[i](&then, old);
        if (memcmp(then.stride, gave->stride, sizeof *then.stride * (size_t)then.ndim) != 0) continue;
        memcpy(now.size, t->size, sizeof now.size);
        lay[i](&now, t);
        if (found++ == 0) first = now;
        else if (!cc_type_same_layout(&first, &now)) return false;
    }
    const bool may_be_itself = t->dtype == first.dtype, was_itself = cc_type_contiguous(old) || channels_last(old);
    if (found == 0 || (may_be_itself && !was_itself && (cc_type_contiguous(t) || channels_last(t)))) return false;
    a->out[0] = first;
    return true;
}

/* ------------------------------------------------------------------ contiguous results */

static bool give(CcType *out, const int64_t *size, int ndim) {
    if (ndim != out->ndim) return false;
    if (ndim > 0) memcpy(out->size, size, sizeof *size * (size_t)ndim);
    cc_type_make_contiguous(out);
    return true;
}

static bool like(const Ask *a, int operand) {
    const CcType *t = in(a, operand);
    return t && a->n->n_out == 1 && give(a->out, t->size, t->ndim);
}

static bool rule_like(const Ask *a) { return like(a, 0); }

/* meta::pow.Scalar gives no strides. */
static bool rule_pow(const Ask *a) { return is_number(a, 0) ? like(a, 1) : rule_unary(a); }

static bool rule_norm(const Ask *a) {
    const CcType *t = in(a, 0), *old = was(a, 0);
    const CcOperand *dims = operand(a, CC_AT(layer_norm, dims));
    if (!t || !old || t->ndim != old->ndim || dims->kind != CC_IN_INT) return false;
    for (int d = 0; d < t->ndim; d++)
        if (dims->i >> (t->ndim - 1 - d) & 1 && t->size[d] != old->size[d]) return false;
    for (int i = CC_AT(layer_norm, weight); i < a->n->n_in; i++)
        if (in(a, i) && (!was(a, i) || !cc_type_same_layout(in(a, i), was(a, i)))) return false;
    if (!rule_like(a)) return false;
    CcType steps = a->out[0]; /* strides if eager runs the op as several pointwise steps */
    return a->n->op != CC_OP_rms_norm || (lay_surely(&steps, &t, 1) && cc_type_same_layout(&steps, &a->out[0]));
}

static bool rule_reduce(const Ask *a) {
    const CcType *t = in(a, 0);
    int dims = cc_op_dims(a->g, a->n);
    CcIn_max_dim pair; /* two results, so no expression says which operand holds the dims */
    CcIn_var_mean moments;
    if (dims < 0 && cc_in_max_dim(a->g, a->n, &pair)) dims = (int)pair.dims.i;
    else if (dims < 0 && cc_in_var_mean(a->g, a->n, &moments)) dims = (int)moments.dims.i;
    if (!t || dims < 0) return false;
    for (int k = 0; k < a->n->n_out; k++) {
        int64_t size[CC_MAX_DIMS];
        int n = 0;
        const bool keeps = a->out[k].ndim == t->ndim;
        for (int d = 0; d < t->ndim; d++) {
            const bool goes = dims >> (t->ndim - 1 - d) & 1;
            if (!goes || keeps) size[n++] = goes ? 1 : t->size[d];
        }
        if (!give(&a->out[k], size, n)) return false;
    }
    return a->n->n_out > 0;
}

static bool rule_embedding(const Ask *a) {
    const CcType *weight = in(a, CC_AT(embedding, weight)), *index = in(a, CC_AT(embedding, index));
    if (!weight || !index || weight->ndim != 2 || index->ndim >= CC_MAX_DIMS) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, index->size, sizeof size);
    size[index->ndim] = weight->size[1];
    return give(a->out, size, index->ndim + 1);
}

static bool rule_index_select(const Ask *a) {
    const CcType *t = in(a, CC_AT(index_select, x)), *index = in(a, CC_AT(index_select, index));
    const int dim = t ? cc_graph_dim(t, operand(a, CC_AT(index_select, dim))) : -1;
    if (dim < 0 || !index || index->ndim != 1) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, t->size, sizeof size);
    size[dim] = index->size[0];
    return give(a->out, size, t->ndim);
}

/* x[i, j]: make_info, build_index_op. The indices are contiguous, and so is the result. If the indices cover only
 * the leading dims, x determines the order of the others. */
static bool rule_index(const Ask *a) {
    CcIn_index op;
    if (!cc_in_index(a->g, a->n, &op)) return false;
    const CcType *x = in(a, CC_AT(index, x)), *t[CC_MAX_DIMS + 1];
    const int key = op.key.first, n = op.key.n / 2, rest = x->ndim - n, head = a->out->ndim - rest;
    if (n < 1 || rest < 0 || head < 0 || op.key.n % 2 || a->n->n_out != 1) return false;
    CcType all = *a->out, spread[CC_MAX_DIMS + 1];
    for (int i = 0; i < n; i++) {
        t[i] = in(a, key + 1 + 2 * i);
        if (operand(a, key + 2 * i)->i != CC_KEY_TENSOR || !t[i] || t[i]->dtype != CC_DT_I64) return false;
        if (t[i]->ndim == 0) return false; /* applySlicing selects: the result is a view */
        CcType plain = *t[i];
        cc_type_make_contiguous(&plain);
        if (!cc_type_same_layout(&plain, t[i])) return false;
    }
    all.ndim = (uint8_t)head;
    if (!broadcast(&all, t, n)) return false;
    memcpy(a->out->size, all.size, sizeof all.size);
    for (int d = 0; d < rest; d++) a->out->size[head + d] = x->size[n + d];
    if (cc_type_numel(a->out) < 2) return false;
    for (int i = 0; i < n; i++) /* expand() gives a new dim of size 1 a stride other than 0 */
        for (int d = 0; d < head - t[i]->ndim; d++)
            if (a->out->size[d] == 1) return false;
    /* x gets strides of 0 for the first dims, the indices dims of size 1. */
    for (int i = 0; rest > 0 && i <= n; i++) {
        spread[i] = *a->out;
        for (int d = 0; d < a->out->ndim; d++) {
            const bool own = i > 0 && d < head, other = i == 0 && d >= head;
            if (a->out->size[d] < 2 || (own && t[i - 1]->ndim != head)) return false;
            spread[i].size[d] = own ? t[i - 1]->size[d] : i > 0 ? 1 : a->out->size[d];
            spread[i].stride[d] = own ? t[i - 1]->stride[d] : other ? x->stride[n + d - head] : 0;
        }
    }
    for (int i = 0; rest > 0 && i <= n; i++) t[i] = &spread[i];
    CcType ordered = *a->out;
    lay_slow(&ordered, t, rest > 0 ? n + 1 : n);
    cc_type_make_contiguous(a->out);
    return cc_type_same_layout(&ordered, a->out);
}

static bool rule_gather(const Ask *a) {
    const CcType *t = in(a, CC_AT(gather, x)), *index = in(a, CC_AT(gather, index));
    const int dim = t ? cc_graph_dim(t, operand(a, CC_AT(gather, dim))) : -1;
    if (dim < 0 || !index || index->ndim != t->ndim) return false;
    for (int d = 0; d < t->ndim; d++)
        if (d != dim && index->size[d] > t->size[d]) return false;
    return give(a->out, index->size, index->ndim);
}

static bool rule_repeat(const Ask *a) {
    CcIn_repeat own;
    if (!cc_in_repeat(a->g, a->n, &own)) return false;
    const CcType *t = in(a, CC_AT(repeat, x));
    const int n = own.times.n;
    if (n < t->ndim || n > CC_MAX_DIMS) return false;
    int64_t size[CC_MAX_DIMS];
    for (int d = 0; d < n; d++) {
        const CcOperand *times = operand(a, own.times.first + d);
        if (times->kind != CC_IN_INT || times->i < 0) return false;
        size[d] = times->i * (d < n - t->ndim ? 1 : t->size[d - (n - t->ndim)]);
    }
    return give(a->out, size, n);
}

/* ------------------------------------------------------------------ products */

static bool rule_linear(const Ask *a) {
    const CcType *x = in(a, CC_AT(linear, x)), *w = in(a, CC_AT(linear, weight)), *b = in(a, CC_AT(linear, bias));
    if (!x || !w || x->ndim < 1 || w->ndim != 2 || x->size[x->ndim - 1] != w->size[1]) return false;
    if (b ? b->ndim != 1 || b->size[0] != w->size[0] : !none(a, CC_AT(linear, bias))) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, x->size, sizeof size);
    size[x->ndim - 1] = w->size[0];
    return give(a->out, size, x->ndim);
}

static bool rule_matmul(const Ask *a) {
    const CcType *x = in(a, CC_AT(matmul, a)), *y = in(a, CC_AT(matmul, b));
    if (!x || !y || x->ndim < 2 || y->ndim < 2 || x->size[x->ndim - 1] != y->size[y->ndim - 2]) return false;
    /* should_fold decides between a transposed and a contiguous result */
    if (x->ndim == 2 && y->ndim > 2) return false;
    CcType rows = *x, columns = *y;
    rows.size[rows.ndim - 1] = columns.size[columns.ndim - 2] = 1; /* broadcast the batch dims only */
    const CcType *const both[] = {&rows, &columns};
    CcType out = a->out[0];
    if (!broadcast(&out, both, 2)) return false;
    if (a->n->op == CC_OP_bmm && (x->ndim != 3 || y->ndim != 3 || x->size[0] != y->size[0])) return false;
    return give(a->out, out.size, out.ndim);
}

static bool rule_mm(const Ask *a) {
    const CcType *x = in(a, CC_AT(mm, a)), *y = in(a, CC_AT(mm, b));
    return x && y && x->ndim == 2 && y->ndim == 2 && rule_matmul(a);
}

static bool rule_addmm(const Ask *a) {
    const CcType *b = in(a, CC_AT(addmm, bias)), *x = in(a, CC_AT(addmm, a)), *y = in(a, CC_AT(addmm, b));
    if (!b || !x || !y || x->ndim != 2 || y->ndim != 2 || x->size[1] != y->size[0] || b->ndim > 2) return false;
    const int64_t size[] = {x->size[0], y->size[1]};
    for (int d = 0; d < b->ndim; d++)
        if (b->size[d] != 1 && b->size[d] != size[d + 2 - b->ndim]) return false;
    return give(a->out, size, 2);
}

/* The inputs to torch's choice of attention algorithm (use_flash_attention_cpp), as bits. */
static unsigned features(const CcType *const *t) {
    unsigned bits = 0, n = 0;
    for (int i = 0; i < 4; i++) bits |= (unsigned)(t[i] && t[i]->stride[t[i]->ndim - 1] == 1) << n++;
    for (int d = 0; d < t[0]->ndim; d++) {
        bits |= (unsigned)(t[1]->size[d] == t[2]->size[d]) << n++;
        bits |= (unsigned)(d == t[0]->ndim - 2 || t[0]->size[d] == t[1]->size[d]) << n++;
        const int at = t[3] ? d - (t[0]->ndim - t[3]->ndim) : -1;
        bits |= (unsigned)(at >= 0 && t[3]->size[at] == 1) << n++;
    }
    return bits;
}

/* The flash kernel stores its result as [batch, rows, heads, width]. */
static void lay_heads(CcType *out) {
    cc_type_make_contiguous(out);
    out->stride[1] = out->size[3];
    out->stride[2] = out->size[1] * out->size[3];
}

/* enable_gqa: several query heads share one key/value head. */
static bool groups_heads(const Ask *a) {
    CcIn_attention own;
    return cc_in_attention(a->g, a->n, &own) && own.enable_gqa.kind == CC_IN_BOOL && own.enable_gqa.i;
}

static bool rule_attention(const Ask *a) {
    const CcType *t[4], *old[4];
    for (int i = 0; i < 4; i++) {
        t[i] = in(a, i);
        old[i] = was(a, i);
        if ((!t[i] || !old[i]) && (i < 3 || !none(a, i))) return false;
        if (t[i] && (t[i]->ndim != old[i]->ndim || t[i]->ndim < 2 || t[i]->ndim > t[0]->ndim)) return false;
        if (i < 3 && t[i]->ndim != t[0]->ndim) return false;
    }
    const int ndim = t[0]->ndim, row = ndim - 2, col = ndim - 1;
    CcType *out = a->out, scores = *t[0], then = a->was->val.at[a->old->out0].type;
    if (ndim > 4 || features(t) != features(old) || t[1]->size[row] != t[2]->size[row]) return false;
    if (t[0]->size[col] != t[1]->size[col]) return false;
    for (int d = 0; d < row; d++) {
        const bool shared = d == row - 1 && groups_heads(a) && t[0]->size[d] % t[1]->size[d] == 0;
        if (t[1]->size[d] != t[2]->size[d] || (t[0]->size[d] != t[1]->size[d] && !shared)) return false;
    }
    scores.size[col] = t[1]->size[row];
    const CcType *const masked[] = {&scores, t[3]};
    CcType all = scores;
    if (t[3] && (!broadcast(&all, masked, 2) || !cc_type_same_shape(&all, &scores))) return false;
    CcType heads = then, plain = then;
    cc_type_make_contiguous(&plain);
    if (ndim == 4) lay_heads(&heads);
    const bool was_plain = cc_type_same_layout(&plain, &then), was_heads = cc_type_same_layout(&heads, &then);
    int64_t size[CC_MAX_DIMS];
    memcpy(size, t[0]->size, sizeof size);
    size[col] = t[2]->size[col];
    if (!give(out, size, ndim) || (!was_plain && (!was_heads || ndim != 4))) return false;
    plain = *out;
    if (was_heads && ndim == 4) lay_heads(out);
    return was_plain != was_heads || ndim != 4 || cc_type_same_layout(&plain, out);
}

/* Dropout takes the math path: a product of probabilities and v. */
static bool rule_attention_dropout(const Ask *a) {
    const CcType *q = in(a, CC_AT(attention_dropout, q)), *k = in(a, CC_AT(attention_dropout, k)),
                 *v = in(a, CC_AT(attention_dropout, v)), *mask = in(a, CC_AT(attention_dropout, mask));
    if (!q || !k || !v || (!mask && !none(a, CC_AT(attention_dropout, mask)))) return false;
    const int ndim = q->ndim, row = ndim - 2, col = ndim - 1;
    if (ndim < 3 || k->ndim != ndim || v->ndim != ndim || (mask && mask->ndim > ndim)) return false;
    for (int d = 0; d < row; d++)
        if (k->size[d] != q->size[d] || v->size[d] != q->size[d]) return false;
    if (k->size[col] != q->size[col] || v->size[row] != k->size[row]) return false;
    CcType scores = *q;
    scores.size[col] = k->size[row];
    for (int d = 0; mask && d < mask->ndim; d++) {
        const int64_t size = mask->size[mask->ndim - 1 - d];
        if (size != 1 && size != scores.size[col - d]) return false;
    }
    int64_t size[CC_MAX_DIMS];
    memcpy(size, q->size, sizeof size);
    size[col] = v->size[col];
    return give(a->out, size, ndim);
}

/* ------------------------------------------------------------------ dropout, losses */

/* A product with random numbers that lie as x does. For p = 0 torch returns x itself. */
static bool rule_dropout(const Ask *a) {
    CcIn_dropout own;
    if (!cc_in_dropout(a->g, a->n, &own) || own.p.kind != CC_IN_FLOAT || !(own.p.f > 0 && own.p.f < 1)) return false;
    return in(a, 0) && cc_type_dense(in(a, 0)) && pointwise(a, false);
}

/* A mean or sum over all samples; x: [C], [N, C] or [N, C, ...]. */
static bool rule_loss(const Ask *a) {
    const CcType *x = in(a, CC_AT(nll_loss, x)), *target = in(a, CC_AT(nll_loss, target)),
                 *weight = in(a, CC_AT(nll_loss, weight));
    if (!x || !target || x->ndim < 1 || a->n->n_out != 1 || a->out->ndim != 0) return false;
    const int channels = x->ndim > 1 ? 1 : 0;
    if (weight ? weight->ndim != 1 || weight->size[0] != x->size[channels] : !none(a, CC_AT(nll_loss, weight)))
        return false;
    if (target->dtype == x->dtype) return cc_type_same_shape(x, target); /* probabilities of classes */
    if (target->ndim != x->ndim - 1) return false;
    for (int d = 0; d < target->ndim; d++)
        if (target->size[d] != x->size[d < channels ? d : d + 1]) return false;
    return true;
}

/* ------------------------------------------------------------------ images */

static bool suggests_last(const CcType *t);

/* Convolutions, pools and norms give contiguous results for these; other layouts depend on the kernel that torch
 * chooses. */
static bool is_plain_image(const CcType *t) {
    if (t == NULL || suggests_last(t)) return false;
    CcType plain = *t;
    cc_type_make_contiguous(&plain); /* dims of size 1 with another stride count as well */
    return cc_type_same_layout(t, &plain);
}

static bool same_operand(const Ask *a, int i) {
    return in(a, i) ? was(a, i) && cc_type_same_layout(in(a, i), was(a, i)) : none(a, i);
}

/* x is [N, C, ...], and all other operands are as recorded. */
static bool rule_image(const Ask *a) {
    const CcType *x = in(a, 0), *old = was(a, 0);
    if (!is_plain_image(x) || !is_plain_image(old) || x->ndim < 2 || x->ndim != old->ndim) return false;
    if (x->size[1] != old->size[1]) return false;
    for (int i = 1; i < a->n->n_in; i++)
        if (operand(a, i)->kind == CC_IN_VALUE && !same_operand(a, i)) return false;
    int64_t rest = 1; /* torch refuses one value a channel */
    for (int d = 0; d < x->ndim; d++) rest *= d == 1 ? 1 : x->size[d];
    return rest > 1 && x->ndim > 2 && rule_like(a);
}

typedef struct Window {
    int64_t kernel, stride, padding, dilation;
    bool ceil;
} Window;

/* pooling_output_shape; 0: the window does not fit. */
static int64_t windows(int64_t size, const Window *w) {
    const int64_t reach = w->dilation * (w->kernel - 1) + 1, room = size + 2 * w->padding - reach;
    if (w->stride < 1 || room < 0) return 0;
    const int64_t n = (room + (w->ceil ? w->stride - 1 : 0)) / w->stride + 1;
    return w->ceil && (n - 1) * w->stride >= size + w->padding ? n - 1 : n;
}

static bool rule_conv(const Ask *a) {
    const CcType *x = in(a, CC_AT(conv, x)), *old = was(a, CC_AT(conv, x)), *w = in(a, CC_AT(conv, weight));
    CcIn_conv own;
    if (!is_plain_image(x) || !old || x->ndim != old->ndim || !is_plain_image(w) || !cc_in_conv(a->g, a->n, &own))
        return false;
    if (!same_operand(a, CC_AT(conv, weight)) || !same_operand(a, CC_AT(conv, bias))) return false;
    if (own.padding_after[0].kind != CC_IN_NONE) return false;
    const int n = w->ndim - 2, first = x->ndim - n;
    if (first < 1 || x->size[first - 1] != old->size[first - 1]) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, x->size, sizeof size);
    size[first - 1] = w->size[0];
    for (int d = 0; d < n; d++) {
        const bool same = own.padding[d].i < 0;
        const Window window = {w->size[2 + d], own.stride[d].i, same ? 0 : own.padding[d].i, own.dilation[d].i, false};
        if (!same) size[first + d] = windows(x->size[first + d], &window);
        if (size[first + d] < 1) return false;
    }
    return give(a->out, size, x->ndim);
}

/* The trailing dims are those of the windows, as many as `kernel` has. */
static bool pool(const Ask *a, const CcOperand *kernel, const CcOperand *stride, const CcOperand *padding,
                 const CcOperand *dilation, const CcOperand *ceil) {
    const CcType *x = in(a, 0);
    int n = 0;
    while (n < CC_SPATIAL && kernel[n].kind == CC_IN_INT) n++;
    if (!is_plain_image(x) || n < 1 || x->ndim <= n || ceil->kind != CC_IN_BOOL) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, x->size, sizeof size);
    for (int d = 0; d < n; d++) {
        Window w = {kernel[d].i, stride[d].i, padding[d].i, dilation != NULL ? dilation[d].i : 1, ceil->i != 0};
        if (w.stride == 0) w.stride = w.kernel;
        if (w.kernel < 1 || w.dilation < 1 || w.padding < 0 || 2 * w.padding > w.kernel) return false;
        size[x->ndim - n + d] = windows(x->size[x->ndim - n + d], &w);
    }
    for (int k = 0; k < a->n->n_out; k++)
        if (!give(&a->out[k], size, x->ndim)) return false;
    return a->n->n_out > 0;
}

static bool rule_max_pool(const Ask *a) {
    CcIn_max_pool own;
    return cc_in_max_pool(a->g, a->n, &own) &&
           pool(a, own.kernel, own.stride, own.padding, own.dilation, &own.ceil_mode);
}

static bool rule_avg_pool(const Ask *a) {
    CcIn_avg_pool own;
    return cc_in_avg_pool(a->g, a->n, &own) && pool(a, own.kernel, own.stride, own.padding, NULL, &own.ceil_mode);
}

static bool rule_adaptive_avg_pool(const Ask *a) {
    CcIn_adaptive_avg_pool own;
    const CcType *x = in(a, 0);
    int n = 0;
    if (!is_plain_image(x) || !cc_in_adaptive_avg_pool(a->g, a->n, &own)) return false;
    while (n < CC_SPATIAL && own.size[n].kind == CC_IN_INT) n++;
    if (n < 1 || x->ndim <= n) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, x->size, sizeof size);
    for (int d = 0; d < n; d++) size[x->ndim - n + d] = own.size[d].i;
    return give(a->out, size, x->ndim);
}

/* ------------------------------------------------------------------ joins */

/* TensorImpl's is_channels_last_strides_2d, 3d, which suggest_memory_format reads. */
static bool suggests_last(const CcType *t) {
    static const int order[2][5] = {{1, 3, 2, 0, -1}, {1, 4, 3, 2, 0}};
    int64_t least = 0;
    if ((t->ndim != 4 && t->ndim != 5) || t->stride[1] == 0) return false;
    for (int i = 0; i < t->ndim; i++) {
        const int d = order[t->ndim - 4][i];
        if (t->size[d] == 0 || t->stride[d] < least || (d == 0 && least == t->stride[1])) return false;
        least = t->stride[d] * CC_MAX(1, t->size[d]);
    }
    return true;
}

/* cat_should_skip_tensor: empty vectors, such as the initial state of a cache */
static bool skips(const CcType *t) { return t && t->ndim == 1 && t->size[0] == 0; }

static bool rule_cat(const Ask *a) {
    CcIn_cat own;
    if (!cc_in_cat(a->g, a->n, &own)) return false;
    const int n = own.tensors.n;
    int begin = 0;
    while (begin < n && skips(in(a, begin))) begin++;
    const CcType *first = begin < n ? in(a, begin) : NULL;
    const int dim = first ? cc_graph_dim(first, &own.dim) : -1;
    if (dim < 0) return false;
    int64_t size[CC_MAX_DIMS];
    memcpy(size, first->size, sizeof size);
    size[dim] = 0;
    bool last = true;
    for (int i = 0; i < n; i++) {
        const CcType *t = in(a, i);
        if (!t || t->dtype != first->dtype) return false;
        last = last && suggests_last(t);
        if (skips(t)) continue;
        for (int d = 0; d < first->ndim; d++)
            if (t->ndim != first->ndim || (d != dim && t->size[d] != first->size[d])) return false;
        size[dim] += t->size[dim];
    }
    if (!give(a->out, size, first->ndim)) return false;
    if (last) cc_type_make_channels_last(a->out);
    return true;
}

static bool rule_stack(const Ask *a) {
    CcIn_stack own;
    const CcType *first = in(a, 0);
    if (!first || first->ndim >= CC_MAX_DIMS || !cc_in_stack(a->g, a->n, &own)) return false;
    const int n = own.tensors.n;
    const int64_t given = own.dim.i, dim = given < 0 ? given + first->ndim + 1 : given;
    if (dim < 0 || dim > first->ndim) return false;
    for (int i = 0; i < n; i++) {
        const CcType *t = in(a, i);
        if (!t || !cc_type_same_shape(t, first) || t->dtype != first->dtype) return false;
        if (t->ndim > 2 && !cc_type_contiguous(t)) return false; /* cat may treat it as channels-last */
    }
    int64_t size[CC_MAX_DIMS];
    for (int d = 0; d <= first->ndim; d++) size[d] = d == dim ? n : first->size[d - (d > dim)];
    return give(a->out, size, first->ndim + 1);
}

/* constant_pad_nd */
static bool rule_pad(const Ask *a) {
    CcIn_pad own;
    if (!cc_in_pad(a->g, a->n, &own)) return false;
    const CcType *t = in(a, CC_AT(pad, x));
    const int n = own.widths.n;
    if (n < 2 || n % 2 != 0 || n / 2 > t->ndim) return false;
    int64_t size[CC_MAX_DIMS], added = 0;
    memcpy(size, t->size, sizeof size);
    for (int i = 0; i < n; i++) {
        const CcOperand *o = operand(a, own.widths.first + i);
        if (o->kind != CC_IN_INT || o->i < 0) return false;
        size[t->ndim - 1 - i / 2] += o->i;
        added += o->i;
    }
    if (added == 0 || !give(a->out, size, t->ndim)) return false;
    if (suggests_last(t)) cc_type_make_channels_last(a->out);
    return true;
}

/* ------------------------------------------------------------------ table */

static bool rule_asked(const Ask *a) {
    (void)a;
    return false;
}

static Rule *const RULE[CC_OP_ROWS] = {
#define CC_INFER(op, rule) [CC_OP_##op] = rule_##rule,
#include "infer.def"
#undef CC_INFER
};

bool cc_infer_asks(CcOpId op) { return RULE[op] == rule_asked; }

/* Sizes of 0 have special rules almost everywhere. */
static bool usual(const CcType *t) { return t->ndim >= 0 && cc_type_numel(t) > 0; }

bool cc_infer_node(const CcGraph *g, int node, const CcGraph *recorded, CcType *out) {
    const Ask a = {g, recorded, &g->node.at[node], &recorded->node.at[node], out};
    if (!RULE[a.n->op] || a.n->n_out != a.old->n_out || a.n->op != a.old->op) return false;
    if (a.n->flags & CC_N_EFFECT) return false;
    for (int i = 0; i < a.n->n_in; i++)
        if (in(&a, i) && !usual(in(&a, i)) && !(a.n->op == CC_OP_cat && skips(in(&a, i)))) return false;
    for (int k = 0; k < a.n->n_out; k++) out[k] = recorded->val.at[a.old->out0 + k].type;
    if (!RULE[a.n->op](&a)) return false;
    for (int k = 0; k < a.n->n_out; k++)
        if (!usual(&out[k])) return false;
    return true;
}
