/* puts: the backward of writes at indices, to slices and to diagonals, and of views that these undo; as cc_rules_apply.
 * What was written over has no gradient; what was written has that of the elements which it became. */
#include "grad_int.h"

enum { HOW_SET, HOW_SUM, HOW_PROD, HOW_MEAN, HOW_MAX, HOW_MIN }; /* ops.def: scatter */

static CcType dense(const Adjoint *a, int v) { return cc_adjoint_dense(type_of(a, v)); }

static int zeros(Adjoint *a, const CcType *t) { return emit(a, CC_OP_fill, t, float_of(0)); }

static CcOperand bool_of(bool b) { return (CcOperand){.kind = CC_IN_BOOL, .i = b}; }

static int binary(Adjoint *a, CcOpId op, int x, CcOperand y) {
    const CcType t = dense(a, x);
    return emit(a, op, &t, value_of(x), y);
}

/* ------------------------------------------------------------------ scatter */

typedef struct Scatter {
    CcIn_scatter in;
    CcType x, index; /* index: of the source's dtype */
    int dim, g, result;
} Scatter;

static int gathered(Adjoint *a, const Scatter *s, int v) {
    return make(a, gather, &s->index, .x = value_of(v), .dim = int_of(s->dim), .index = s->in.index);
}

static int scattered(Adjoint *a, const Scatter *s, int v, CcOperand source, int how) {
    return make(a, scatter, &s->x, .x = value_of(v), .dim = int_of(s->dim), .index = s->in.index, .source = source,
                .include_self = bool_of(true), .how = int_of(how));
}

/* x with these elements replaced by 0. */
static int without(Adjoint *a, const Scatter *s, int v) { return scattered(a, s, v, float_of(0), HOW_SET); }

static void add_scatter(Adjoint *a, const Scatter *s, int of_x, int of_source) {
    if (wants(a, s->in.source)) cc_adjoint_add(a, s->in.source.value, of_source);
    if (wants(a, s->in.x)) cc_adjoint_add(a, s->in.x.value, s->in.include_self.i ? of_x : without(a, s, of_x));
}

static void scatter_mean(Adjoint *a, const Scatter *s) {
    const int none_yet = emit(a, CC_OP_fill, &s->x, float_of(s->in.include_self.i ? 1 : 0));
    const int ones = emit(a, CC_OP_fill, &s->index, float_of(1));
    const CcOperand count =
        value_of(binary(a, CC_OP_clamp_min, scattered(a, s, none_yet, value_of(ones), HOW_SUM), int_of(1)));
    const int each = binary(a, CC_OP_div, s->g, count);
    add_scatter(a, s, each, gathered(a, s, each));
}

/* 1 where x is y. */
static int same(Adjoint *a, int x, int y) {
    CcType flags = dense(a, x);
    const CcType t = flags;
    flags.dtype = CC_DT_BOOL;
    return emit(a, CC_OP_cast, &t, value_of(emit(a, CC_OP_eq, &flags, value_of(x), value_of(y))));
}

/* All elements that are the maximum share its gradient. */
static void scatter_extreme(Adjoint *a, const Scatter *s) {
    const int x_is = same(a, s->in.x.value, s->result),
              source_is = same(a, s->in.source.value, gathered(a, s, s->result));
    const int each = binary(a, CC_OP_div, s->g, value_of(scattered(a, s, x_is, value_of(source_is), HOW_SUM)));
    add_scatter(a, s, binary(a, CC_OP_mul, each, value_of(x_is)),
                binary(a, CC_OP_mul, gathered(a, s, each), value_of(source_is)));
}

static bool scatter(Adjoint *a, const CcNode *n) {
    Scatter s = {.g = a->grad[n->out0], .result = n->out0};
    const int x = cc_graph_source(a->g, n);
    if (!cc_in_scatter(a->g, n, &s.in) || s.in.include_self.kind == CC_IN_VALUE) return false;
    s.x = dense(a, x);
    s.index = dense(a, s.in.index.value);
    s.index.dtype = s.x.dtype;
    s.dim = cc_graph_dim(&s.x, &s.in.dim);
    const bool has_source = s.in.source.kind == CC_IN_VALUE;
    if (s.dim < 0 || s.index.ndim != s.x.ndim ||
        (has_source && !cc_type_same_shape(type_of(a, s.in.source.value), &s.index)))
        return false;
    switch (s.in.how.i) {
    case HOW_SET:
        add_scatter(a, &s, wants(a, s.in.x) ? without(a, &s, s.g) : -1,
                    wants(a, s.in.source) ? gathered(a, &s, s.g) : -1);
        return true;
    case HOW_SUM: add_scatter(a, &s, s.g, wants(a, s.in.source) ? gathered(a, &s, s.g) : -1); return true;
    case HOW_MEAN: scatter_mean(a, &s); return has_source;
    case HOW_MAX:
    case HOW_MIN:
        if (has_source) scatter_extreme(a, &s);
        return has_source;
    default: return false;
    }
}

/* ------------------------------------------------------------------ along one dim */

/* The gradient where index_fill wrote, else 0: an index that occurs twice counts once, as in torch's derivative. */
static int filled_part(Adjoint *a, int g, const CcType *t, CcOperand dim, CcOperand index) {
    CcType flags = *t;
    flags.dtype = CC_DT_BOOL;
    const int ones =
        make(a, index_fill, t, .x = value_of(zeros(a, t)), .dim = dim, .index = index, .value = float_of(1));
    const int filled = emit(a, CC_OP_ne, &flags, value_of(ones), float_of(0));
    return emit(a, CC_OP_where, t, value_of(filled), value_of(g), float_of(0));
}

/* index_add, index_copy, index_fill: x along one dim. */
static bool write_along(Adjoint *a, const CcNode *n) {
    CcIn_index_add in;
    const int g = a->grad[n->out0], x = cc_graph_source(a->g, n);
    CcOperand alpha = none();
    if (n->n_in < 4) return false;
    const CcOperand dim = *cc_graph_operand(a->g, n, 1), index = *cc_graph_operand(a->g, n, 2),
                    source = *cc_graph_operand(a->g, n, 3);
    const int at = cc_graph_dim(type_of(a, x), &dim);
    if (n->op == CC_OP_index_add && cc_in_index_add(a->g, n, &in)) alpha = in.alpha;
    if (at < 0 || type_of(a, index.value)->ndim != 1) return false;
    if (wants(a, source) && n->op == CC_OP_index_fill) {
        const CcType t = dense(a, x);
        cc_adjoint_add_summed(a, source.value, filled_part(a, g, &t, dim, index));
    } else if (wants(a, source)) {
        CcType t = dense(a, x);
        t.size[at] = type_of(a, index.value)->size[0];
        cc_type_make_contiguous(&t);
        int part = make(a, index_select, &t, .x = value_of(g), .dim = dim, .index = index);
        if (alpha.kind != CC_IN_NONE) part = binary(a, CC_OP_mul, part, alpha);
        cc_adjoint_add_summed(a, source.value, part);
    }
    if (!wants(a, value_of(x))) return true;
    const CcType t = dense(a, x);
    const int kept = n->op == CC_OP_index_add
                         ? g
                         : make(a, index_fill, &t, .x = value_of(g), .dim = dim, .index = index, .value = float_of(0));
    cc_adjoint_add(a, x, kept);
    return true;
}

/* ------------------------------------------------------------------ index_put */

/* The indices as parts of a key; no masks, whose number of elements depends on data. -> number of operands; -1 */
static int key_of(const Adjoint *a, const CcNode *n, CcOperandRange indices, CcOperand *out) {
    if (indices.n * 2 + 2 > CC_OPERANDS_MAX) return -1;
    for (int i = 0; i < indices.n; i++) {
        out[2 * i] = int_of(CC_KEY_TENSOR);
        out[2 * i + 1] = *cc_graph_operand(a->g, n, indices.first + i);
        if (out[2 * i + 1].kind != CC_IN_VALUE || type_of(a, out[2 * i + 1].value)->dtype == CC_DT_BOOL) return -1;
    }
    return 2 * indices.n;
}

/* The shape of x[indices]: the indices', broadcast, then the dims that none names. */
static bool shape_at(const Adjoint *a, const CcNode *n, CcOperandRange indices, const CcType *x, CcType *out) {
    *out = *x;
    out->ndim = 0;
    for (int i = 0; i < indices.n; i++)
        out->ndim = CC_MAX(out->ndim, type_of(a, cc_graph_operand(a->g, n, indices.first + i)->value)->ndim);
    const int lead = out->ndim;
    for (int d = 0; d < lead; d++) out->size[d] = 1;
    for (int i = 0; i < indices.n; i++) {
        const CcType *t = type_of(a, cc_graph_operand(a->g, n, indices.first + i)->value);
        for (int d = 0; d < t->ndim; d++)
            if (t->size[d] != 1) out->size[lead - t->ndim + d] = t->size[d];
    }
    for (int d = indices.n; d < x->ndim && out->ndim < CC_MAX_DIMS; d++) out->size[out->ndim++] = x->size[d];
    cc_type_make_contiguous(out);
    return out->ndim == lead + x->ndim - indices.n;
}

static bool index_put(Adjoint *a, const CcNode *n) {
    CcIn_index_put in;
    CcOperand out[CC_OPERANDS_MAX + 2];
    const int g = a->grad[n->out0];
    if (!cc_in_index_put(a->g, n, &in) || in.accumulate.kind == CC_IN_VALUE || in.accumulate.kind == CC_IN_NONE)
        return false;
    const CcType x = dense(a, in.x.value);
    CcType part;
    const int key = key_of(a, n, in.indices, out + 1);
    if (key < 0 || in.indices.n > x.ndim || !shape_at(a, n, in.indices, &x, &part)) return false;
    if (wants(a, in.value)) {
        out[0] = value_of(g);
        cc_adjoint_add_summed(a, in.value.value, cc_adjoint_in(a, CC_OP_index, &part, out, 1 + key));
    }
    if (!wants(a, in.x)) return true;
    if (in.accumulate.i) {
        cc_adjoint_add(a, in.x.value, g);
        return true;
    }
    CcOperand put[CC_OPERANDS_MAX + 2] = {value_of(g)};
    int n_put = 1;
    for (int i = 0; i < in.indices.n; i++) put[n_put++] = *cc_graph_operand(a->g, n, in.indices.first + i);
    const CcType one = {.dtype = x.dtype, .device = x.device};
    put[n_put++] = value_of(zeros(a, &one));
    put[n_put++] = bool_of(false);
    cc_adjoint_add(a, in.x.value, cc_adjoint_in(a, CC_OP_index_put, &x, put, n_put));
    return true;
}

/* ------------------------------------------------------------------ slices and diagonals */

/* The first index of a slice, which counts from the end if negative. */
static int64_t start_in(CcOperand start, int64_t size) {
    if (start.kind != CC_IN_INT) return 0;
    const int64_t at = start.i < 0 ? start.i + size : start.i;
    return CC_MAX(0, CC_MIN(at, size));
}

/* The view of g that the op writes, copied. */
static int written(Adjoint *a, int view) {
    const CcType t = dense(a, view);
    return emit(a, CC_OP_copy, &t, value_of(view));
}

static bool select_scatter(Adjoint *a, const CcNode *n) {
    CcIn_select_scatter in;
    const int g = a->grad[n->out0];
    if (!cc_in_select_scatter(a->g, n, &in)) return false;
    const CcType x = dense(a, in.x.value), part = dense(a, in.source.value);
    const int dim = cc_graph_dim(&x, &in.dim);
    if (dim < 0) return false;
    const CcType t = cc_type_without_dim(type_of(a, g), dim);
    if (wants(a, in.source))
        cc_adjoint_add(a, in.source.value,
                       written(a, make(a, select, &t, .x = value_of(g), .dim = int_of(dim), .index = in.index)));
    if (wants(a, in.x))
        cc_adjoint_add(a, in.x.value,
                       make(a, select_scatter, &x, .x = value_of(g), .source = value_of(zeros(a, &part)),
                            .dim = int_of(dim), .index = in.index));
    return true;
}

static bool slice_scatter(Adjoint *a, const CcNode *n) {
    CcIn_slice_scatter in;
    const int g = a->grad[n->out0];
    if (!cc_in_slice_scatter(a->g, n, &in) || in.step.i < 1) return false;
    const CcType x = dense(a, in.x.value), part = dense(a, in.source.value);
    const int dim = cc_graph_dim(&x, &in.dim);
    CcType t = *type_of(a, g);
    if (dim < 0 || part.ndim != x.ndim) return false;
    const CcOperand start = int_of(start_in(in.start, x.size[dim]));
    t.size[dim] = part.size[dim];
    t.stride[dim] *= in.step.i;
    if (wants(a, in.source))
        cc_adjoint_add(a, in.source.value, written(a, emit(a, CC_OP_slice, &t, value_of(g), int_of(dim), start)));
    if (wants(a, in.x))
        cc_adjoint_add(a, in.x.value,
                       make(a, slice_scatter, &x, .x = value_of(g), .source = value_of(zeros(a, &part)),
                            .dim = int_of(dim), .start = start, .end = in.end, .step = in.step));
    return true;
}

/* The type of a diagonal of t, whose elements it shares. */
static CcType diagonal_type(CcType t, int row, int col, int64_t size) {
    const int64_t stride = t.stride[row] + t.stride[col];
    CcType out = t;
    out.ndim = 0;
    for (int d = 0; d < t.ndim; d++) {
        if (d == row || d == col) continue;
        out.size[out.ndim] = t.size[d];
        out.stride[out.ndim++] = t.stride[d];
    }
    out.size[out.ndim] = size;
    out.stride[out.ndim++] = stride;
    return out;
}

static bool diagonal_scatter(Adjoint *a, const CcNode *n) {
    CcIn_diagonal_scatter in;
    const int g = a->grad[n->out0];
    if (!cc_in_diagonal_scatter(a->g, n, &in)) return false;
    const CcType x = dense(a, in.x.value), part = dense(a, in.source.value);
    const int row = cc_graph_dim(&x, &in.dim1), col = cc_graph_dim(&x, &in.dim2);
    if (row < 0 || col < 0 || row == col) return false;
    const CcType t = diagonal_type(*type_of(a, g), row, col, part.size[part.ndim - 1]);
    if (wants(a, in.source))
        cc_adjoint_add(
            a, in.source.value,
            written(a, make(a, diagonal, &t, .x = value_of(g), .offset = in.offset, .dim1 = in.dim1, .dim2 = in.dim2)));
    if (wants(a, in.x))
        cc_adjoint_add(a, in.x.value,
                       make(a, diagonal_scatter, &x, .x = value_of(g), .source = value_of(zeros(a, &part)),
                            .offset = in.offset, .dim1 = in.dim1, .dim2 = in.dim2));
    return true;
}

static bool diagonal(Adjoint *a, const CcNode *n) {
    CcIn_diagonal in;
    if (!cc_in_diagonal(a->g, n, &in) || in.offset.kind != CC_IN_INT || in.dim1.kind != CC_IN_INT ||
        in.dim2.kind != CC_IN_INT)
        return false;
    const CcType x = dense(a, in.x.value), y = dense(a, n->out0);
    const int g = cc_adjoint_reshaped(a, a->grad[n->out0], &y);
    cc_adjoint_add(a, in.x.value,
                   make(a, diagonal_scatter, &x, .x = value_of(zeros(a, &x)), .source = value_of(g),
                        .offset = in.offset, .dim1 = in.dim1, .dim2 = in.dim2));
    return true;
}

/* ------------------------------------------------------------------ windows along a dim */

/* y [.., windows, .., size] = x.unfold(dim, size, step): the strides tell which dim it is. */
static bool unfold(Adjoint *a, const CcNode *n) {
    const int x = cc_graph_source(a->g, n);
    const CcType *t = type_of(a, x), *y = type_of(a, n->out0);
    const int64_t size = y->size[t->ndim];
    int dim = -1;
    int64_t step = 0;
    if (y->ndim != t->ndim + 1 || size < 1) return false;
    for (int d = 0; d < t->ndim; d++) {
        const bool alike = y->size[d] == t->size[d] && y->stride[d] == t->stride[d];
        if (y->stride[t->ndim] != t->stride[d] || t->stride[d] == 0 || y->stride[d] % t->stride[d] != 0) {
            if (!alike) return false;
            continue;
        }
        const int64_t by = y->stride[d] / t->stride[d];
        if (by < 1 || t->size[d] < size || (t->size[d] - size) / by + 1 != y->size[d]) {
            if (!alike) return false;
            continue;
        }
        if (dim >= 0) return false;
        dim = d;
        step = by;
    }
    if (dim < 0) return false;
    const CcType to = dense(a, x);
    cc_adjoint_add(a, x,
                   make(a, unfold_dx, &to, .grad = value_of(a->grad[n->out0]), .dim = int_of(dim), .size = int_of(size),
                        .step = int_of(step)));
    return true;
}

/* ------------------------------------------------------------------ masks */

static bool masked_scatter(Adjoint *a, const CcNode *n) {
    CcIn_masked_scatter in;
    const int g = a->grad[n->out0];
    if (!cc_in_masked_scatter(a->g, n, &in)) return false;
    const CcType x = dense(a, in.x.value), source = dense(a, in.source.value);
    if (wants(a, in.x)) cc_adjoint_add(a, in.x.value, emit(a, CC_OP_where, &x, in.mask, float_of(0), value_of(g)));
    if (wants(a, in.source))
        cc_adjoint_add(a, in.source.value, make(a, masked_scatter_ds, &source, .grad = value_of(g), .mask = in.mask));
    return true;
}

bool cc_puts_apply(Adjoint *a, const CcNode *n) {
    if (cc_graph_source(a->g, n) < 0 || cc_type_numel(type_of(a, cc_graph_source(a->g, n))) == 0) return false;
    switch (n->op) {
    case CC_OP_scatter: return scatter(a, n);
    case CC_OP_index_add:
    case CC_OP_index_copy:
    case CC_OP_index_fill: return write_along(a, n);
    case CC_OP_index_put: return index_put(a, n);
    case CC_OP_select_scatter: return select_scatter(a, n);
    case CC_OP_slice_scatter: return slice_scatter(a, n);
    case CC_OP_diagonal_scatter: return diagonal_scatter(a, n);
    case CC_OP_diagonal: return diagonal(a, n);
    case CC_OP_unfold: return unfold(a, n);
    case CC_OP_masked_scatter: return masked_scatter(a, n);
    default: return false;
    }
}
