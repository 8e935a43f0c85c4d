/* adjoint: the nodes that derivatives consist of. */
#include "grad_int.h"

CcType cc_adjoint_dense(const CcType *t) {
    CcType out = *t;
    cc_type_make_contiguous(&out);
    out.requires_grad = 0;
    return out;
}

bool cc_adjoint_is_f32(const CcGraph *g, CcOperand o, int ndim, int64_t a, int64_t b, int64_t c) {
    const int64_t size[3] = {a, b, c};
    const CcType *t = o.kind == CC_IN_VALUE ? &g->val.at[o.value].type : NULL;
    return t != NULL && t->dtype == CC_DT_F32 && t->device == 1 && t->ndim == ndim &&
           memcmp(t->size, size, sizeof *size * (size_t)ndim) == 0;
}

CcType cc_adjoint_like(const CcType *t) {
    CcType out = *t;
    if (!cc_type_dense(t)) cc_type_make_contiguous(&out);
    out.requires_grad = 0;
    return out;
}

void cc_adjoint_insert(Adjoint *a, CcOpId op, const CcOperand *in, int n_in, int out, int n_out) {
    CcGraph *g = a->g;
    const CcNode n = {.op = (uint16_t)op, .in0 = g->operand.n, .n_in = n_in, .out0 = out, .n_out = n_out, .host = -1};
    for (int i = 0; i < n_in; i++) cc_vec_push(&g->operand, in[i]);
    const int def = cc_edit_insert(g, a->before, &n);
    for (int i = 0; i < n_out; i++) g->val.at[out + i].def = def;
}

int cc_adjoint_in(Adjoint *a, CcOpId op, const CcType *type, const CcOperand *in, int n_in) {
    CcGraph *g = a->g;
    if (a->before < 0) {
        cc_graph_node(g, op, 0, -1, in, n_in, type, 1);
        return g->val.n - 1;
    }
    cc_vec_push(&g->val, (CcVal){.type = *type});
    cc_adjoint_insert(a, op, in, n_in, g->val.n - 1, 1);
    return g->val.n - 1;
}

int cc_adjoint_make_in(Adjoint *a, CcOpId op, const CcType *type, const void *in) {
    CcOperand out[CC_OPERANDS_MAX];
    const int n = cc_operands_write(op, in, out);
    return cc_adjoint_in(a, op, type, out, n);
}

void cc_adjoint_replaced(Adjoint *a, const CcNode *by, int first_node, int first_value) {
    CcGraph *g = a->g;
    const bool grad = g->val.at[by->out0].type.requires_grad;
    for (int v = first_value; v < g->val.n; v++) g->val.at[v].type.requires_grad = grad;
    for (int i = first_node; i < g->node.n; i++) {
        g->node.at[i].origin = by->origin;
        g->node.at[i].checkpoint = by->checkpoint;
    }
    cc_edit_drop(g, a->before);
}

/* ------------------------------------------------------------------ views */

/* The elements of v in another shape: a copy if v is not contiguous. */
int cc_adjoint_reshaped(Adjoint *a, int v, const CcType *shape) {
    if (cc_type_same_shape(type_of(a, v), shape)) return v;
    CcType t = cc_adjoint_dense(shape);
    t.dtype = type_of(a, v)->dtype;
    if (!cc_type_contiguous(type_of(a, v))) {
        const CcType all = cc_adjoint_dense(type_of(a, v));
        v = emit(a, CC_OP_copy, &all, value_of(v));
    }
    return make(a, view, &t, .x = value_of(v));
}

int cc_adjoint_swapped(Adjoint *a, int v, int d, int e) {
    CcType t = cc_type_swapped(type_of(a, v), d, e);
    t.requires_grad = 0;
    return make(a, transpose, &t, .x = value_of(v), .dim0 = int_of(d), .dim1 = int_of(e));
}

/* Rows and columns of a matrix, or of each matrix of a batch, exchanged. */
int cc_adjoint_transposed(Adjoint *a, int v) {
    const int n = type_of(a, v)->ndim;
    return cc_adjoint_swapped(a, v, n - 2, n - 1);
}

int cc_adjoint_part(Adjoint *a, int v, int dim, int64_t from, int64_t size) {
    CcType t = *type_of(a, v);
    t.size[dim] = size;
    t.requires_grad = 0;
    return emit(a, CC_OP_slice, &t, value_of(v), int_of(dim), int_of(from));
}

int cc_adjoint_expanded(Adjoint *a, int v, const CcType *x) {
    CcType t = *type_of(a, v);
    for (int d = 0; d < t.ndim; d++) {
        if (t.size[d] != x->size[d]) t.stride[d] = 0;
        t.size[d] = x->size[d];
    }
    return make(a, expand, &t, .x = value_of(v));
}

static CcType matrix(const CcType *t) {
    CcType out = cc_adjoint_dense(t);
    out.ndim = 2;
    out.size[1] = t->ndim > 0 ? t->size[t->ndim - 1] : 1;
    out.size[0] = 1;
    for (int d = 0; d < t->ndim - 1; d++) out.size[0] *= t->size[d];
    cc_type_make_contiguous(&out);
    return out;
}

/* All leading dims as one. */
int cc_adjoint_matrix(Adjoint *a, int v) {
    const CcType t = matrix(type_of(a, v));
    return cc_adjoint_reshaped(a, v, &t);
}

CcType cc_adjoint_channels(const CcType *x) {
    CcType t = cc_adjoint_dense(x);
    for (int d = 0; d < t.ndim; d++) t.size[d] = d == 1 ? x->size[1] : 1;
    cc_type_make_contiguous(&t);
    return t;
}

/* ------------------------------------------------------------------ casts and sums */

int cc_adjoint_cast(Adjoint *a, int v, uint8_t dtype) {
    CcType t = cc_adjoint_like(type_of(a, v));
    if (t.dtype == dtype) return v;
    t.dtype = dtype;
    return emit(a, CC_OP_cast, &t, value_of(v));
}

static CcDtype wider(const CcType *a, const CcType *b) {
    const CcDtypeInfo *x = cc_dtype_info((CcDtype)a->dtype), *y = cc_dtype_info((CcDtype)b->dtype);
    return (CcDtype)(y->kind == 'f' && y->size > x->size ? b->dtype : a->dtype);
}

int cc_adjoint_summed(Adjoint *a, int v, CcType to) {
    CcType t = cc_adjoint_dense(type_of(a, v));
    const CcDtype sums = wider(&t, &to);
    const int lead = t.ndim - to.ndim;
    int dims = 0;
    bool leading = true; /* only dims that `to` lacks */
    for (int d = 0; d < t.ndim; d++) {
        if (d >= lead && to.size[d - lead] == t.size[d]) continue;
        dims |= 1 << (t.ndim - 1 - d);
        leading = leading && d < lead;
        t.size[d] = 1;
    }
    const CcType dropped = cc_adjoint_dense(&to);
    if (leading && dims) t = dropped;
    t.dtype = (uint8_t)sums;
    cc_type_make_contiguous(&t);
    if (dims) v = emit(a, CC_OP_sum, &t, value_of(v), int_of(dims));
    v = cc_adjoint_reshaped(a, v, &to);
    return cc_adjoint_cast(a, v, to.dtype);
}

void cc_adjoint_add(Adjoint *a, int value, int by) {
    if (!a->wanted[value]) return;
    const CcType t = cc_adjoint_like(type_of(a, value));
    a->grad[value] = a->grad[value] < 0 ? by : emit(a, CC_OP_add, &t, value_of(a->grad[value]), value_of(by));
}

void cc_adjoint_add_summed(Adjoint *a, int value, int by) {
    if (a->wanted[value]) cc_adjoint_add(a, value, cc_adjoint_summed(a, by, *type_of(a, value)));
}

int cc_adjoint_product(Adjoint *a, int x, int y, int like) {
    const CcType *s = type_of(a, x), *t = type_of(a, y);
    CcType out = s->ndim >= t->ndim ? *s : *t;
    out.dtype = s->dtype;
    for (int d = 1; d <= out.ndim - 2; d++) { /* leading dims, from the last one */
        const int i = s->ndim - 2 - d, k = t->ndim - 2 - d;
        const int64_t m = i >= 0 ? s->size[i] : 1, n = k >= 0 ? t->size[k] : 1;
        out.size[out.ndim - 2 - d] = m == 1 ? n : m;
    }
    out.size[out.ndim - 2] = s->size[s->ndim - 2];
    out.size[out.ndim - 1] = t->size[t->ndim - 1];
    cc_type_make_contiguous(&out);
    out.requires_grad = 0;
    const CcType *to = like >= 0 ? type_of(a, like) : &out;
    if (cc_type_same_shape(to, &out) && to->stride[to->ndim - 1] == 1) out = cc_adjoint_like(to);
    return make(a, matmul, &out, .a = value_of(x), .b = value_of(y));
}
