/* rules: the backward of each op, as nodes of ops.def. Pointwise ops, reductions and norms have derivative rows
 * (CC_OPGRAD); the others are written here: views, joins, casts and products.
 *
 * A gradient has the shape and dtype of its value, and any strides. An operand that was broadcast gets the sum over the
 * dims in which it was. */
#include <math.h>

#include "../pass/pass.h"
#include "grad_int.h"

/* ------------------------------------------------------------------ derivative rows */

/* The type of a row's result in the dims of x: reduced dims have size 1. */
static CcType kept(const CcType *row, const CcType *x, int dims) {
    CcType t = *row;
    if (row->ndim == x->ndim) return t;
    t.ndim = x->ndim;
    for (int d = x->ndim - 1, own = row->ndim - 1; d >= 0; d--) {
        const bool reduced = dims >> (x->ndim - 1 - d) & 1;
        t.size[d] = reduced ? 1 : row->size[own];
        t.stride[d] = reduced ? 1 : row->stride[own];
        own -= !reduced;
    }
    return t;
}

static int with_dims(Adjoint *a, int row, const CcType *x, int dims) {
    CcType t = kept(type_of(a, row), x, dims);
    t.requires_grad = 0;
    return t.ndim == type_of(a, row)->ndim ? row : make(a, view, &t, .x = value_of(row));
}

static bool is_arg(const CcExprNode *x, int operand) { return x->kind == CC_X_ARG && x->arg == operand; }

/* Is this an operand that the node lacks, and whose default is 1 (alpha)? */
static bool is_one(const CcExpr *e, const CcExprNode *x, const CcNode *n) {
    return x->kind == CC_X_ARG && x->arg >= n->n_in && x->dflt >= 0 && e->node[x->dflt].num == 1;
}

/* Whether the row is just `grad`, or `grad * (c=1)` without c. */
static bool passes(const Adjoint *a, const CcNode *n, CcOpId row) {
    const CcExpr *e = cc_op_expr_as(a->g, n, row);
    const int grad = cc_op_grad_at((CcOpId)n->op);
    if (e == NULL) return false;
    const CcExprNode *last = &e->node[e->n - 1];
    if (last->kind != CC_X_OP || last->op != CC_S_mul) return is_arg(last, grad);
    return is_arg(&e->node[last->kid[0]], grad) && is_one(e, &e->node[last->kid[1]], n);
}

/* dims < 0: pointwise. A reduction's gradient and result get the dims of its operand. */
static bool row_of_operand(Adjoint *a, const CcNode *n, int i, int dims) {
    const CcOpId row = cc_formula_grad(a->g, n, i);
    const int at = cc_op_grad_at((CcOpId)n->op), value = cc_graph_operand(a->g, n, i)->value;
    CcOperand in[CC_OPERANDS_MAX];
    if (row == CC_OP_host || at + 2 > CC_OPERANDS_MAX) return false;
    if (dims < 0 && passes(a, n, row)) {
        cc_adjoint_add_summed(a, value, a->grad[n->out0]);
        return true;
    }
    const CcType x = *type_of(a, dims < 0 ? n->out0 : cc_graph_source(a->g, n));
    for (int k = 0; k < at; k++)
        in[k] = k < n->n_in && cc_op_grad_reads(a->g, n, row, k) ? *cc_graph_operand(a->g, n, k) : none();
    const bool result = cc_op_grad_reads(a->g, n, row, at + 1);
    in[at] = value_of(a->grad[n->out0]);
    if (dims >= 0) in[at] = value_of(with_dims(a, a->grad[n->out0], &x, dims));
    if (dims >= 0 && in[0].kind == CC_IN_NONE) in[at] = value_of(cc_adjoint_expanded(a, in[at].value, &x));
    in[at + 1] = !result ? none() : value_of(dims < 0 ? n->out0 : with_dims(a, n->out0, &x, dims));
    CcType t = cc_adjoint_like(&x);
    t.dtype = type_of(a, n->out0)->dtype;
    /* a norm of half-precision tensors with f32 weights */
    if (dims >= 0 && cc_dtype_is_half(t.dtype) && type_of(a, value)->dtype == CC_DT_F32) {
        t.dtype = CC_DT_F32;
        in[at].value = cc_adjoint_cast(a, in[at].value, CC_DT_F32);
    }
    cc_adjoint_add_summed(a, value, cc_adjoint_in(a, row, &t, in, at + 2));
    return true;
}

static bool rows(Adjoint *a, const CcNode *n) {
    const int dims = cc_op_dims(a->g, n);
    if (n->n_out != 1) return false;
    for (int i = 0; i < n->n_in; i++)
        if (wants(a, *cc_graph_operand(a->g, n, i)) && !row_of_operand(a, n, i, dims)) return false;
    return true;
}

static int scaled(Adjoint *a, int v, CcOperand by) {
    const CcType t = cc_adjoint_dense(type_of(a, v));
    return cc_operand_number(&by) == 1 && by.kind != CC_IN_NUMBER ? v : emit(a, CC_OP_mul, &t, value_of(v), by);
}

/* Does torch compute this derivative in another way than the op's row, or not at all? */
static bool is_torchs(const Adjoint *a, const CcNode *n) {
    const CcOperand *second = n->n_in > 1 ? cc_graph_operand(a->g, n, 1) : NULL;
    switch (n->op) {
    case CC_OP_remainder: return cc_graph_operand(a->g, n, 0)->kind != CC_IN_VALUE;
    case CC_OP_xlogy:
    case CC_OP_xlog1py: return second && second->kind == CC_IN_FLOAT && isnan(second->f);
    default: return cc_space_spent(a->g, n);
    }
}

/* torch computes 1 - weight in double if the weight is a number. */
static bool lerp(Adjoint *a, const CcNode *n) {
    const CcOperand from = *cc_graph_operand(a->g, n, 0), to = *cc_graph_operand(a->g, n, 1),
                    weight = *cc_graph_operand(a->g, n, 2);
    const int g = a->grad[n->out0];
    if (weight.kind == CC_IN_VALUE) return rows(a, n);
    if (weight.kind == CC_IN_NUMBER || weight.value > 0) return false; /* it changes from call to call */
    if (wants(a, from)) cc_adjoint_add_summed(a, from.value, scaled(a, g, float_of(1 - cc_operand_number(&weight))));
    if (wants(a, to)) cc_adjoint_add_summed(a, to.value, scaled(a, g, weight));
    return true;
}

/* The norm of order 0 counts elements; its operand has no gradient, not even zeros. */
static bool norm(Adjoint *a, const CcNode *n) {
    const CcOperand order = *cc_graph_operand(a->g, n, 1);
    return (order.kind != CC_IN_NUMBER && cc_operand_number(&order) == 0) || rows(a, n);
}

/* clamp with one bound differs from clamp_min and clamp_max in nothing but the numbers of its operands. */
static bool clamp(Adjoint *a, const CcNode *n) {
    CcIn_clamp in;
    CcNode one = *n;
    if (!cc_in_clamp(a->g, n, &in)) return false;
    const CcOperand min = in.in[1], max = in.in[2];
    if (min.kind != CC_IN_NONE && max.kind != CC_IN_NONE) return rows(a, n);
    const CcOperand operands[] = {in.in[0], max.kind != CC_IN_NONE ? max : min};
    one.op = max.kind != CC_IN_NONE ? CC_OP_clamp_max : CC_OP_clamp_min;
    one.in0 = a->g->operand.n;
    one.n_in = CC_COUNT(operands);
    for (int k = 0; k < CC_COUNT(operands); k++) cc_vec_push(&a->g->operand, operands[k]);
    return rows(a, &one);
}

/* ------------------------------------------------------------------ views and joins of the forward */

/* The dim of x that each dim of the result is; false: dims that differ look alike. */
static bool find_order(const CcType *x, const CcType *y, int *from) {
    unsigned used = 0;
    if (x->ndim != y->ndim) return false;
    for (int d = 0; d < y->ndim; d++) {
        from[d] = -1;
        for (int e = 0; e < x->ndim; e++) {
            const bool same = x->size[e] == y->size[d] && (x->size[e] == 1 || x->stride[e] == y->stride[d]);
            if (!same || used >> e & 1) continue;
            if (from[d] >= 0 && y->size[d] != 1) return false;
            if (from[d] < 0) from[d] = e;
        }
        if (from[d] < 0) return false;
        used |= 1U << from[d];
    }
    return true;
}

static bool permute(Adjoint *a, const CcNode *n, int x) {
    int from[CC_MAX_DIMS];
    const CcType *g = type_of(a, a->grad[n->out0]);
    CcType t = *type_of(a, x);
    if (!find_order(type_of(a, x), type_of(a, n->out0), from)) return false;
    for (int d = 0; d < t.ndim; d++) t.stride[from[d]] = g->stride[d];
    t.requires_grad = 0;
    const int back = make(a, permute, &t, .x = value_of(a->grad[n->out0]));
    cc_adjoint_add(a, x, back);
    return true;
}

/* g behind `before` zeros in dim d, followed by as many as x has. */
static int padded(Adjoint *a, int g, const CcType *x, const int64_t *before) {
    CcOperand in[2 + 2 * CC_MAX_DIMS] = {value_of(g)};
    const CcType *t = type_of(a, g);
    int n = 1, last = x->ndim - 1;
    for (int d = 0; d < x->ndim; d++)
        if (t->size[d] != x->size[d]) {
            last = d;
            break;
        }
    for (int d = x->ndim - 1; d >= last; d--) {
        in[n++] = int_of(before[d]);
        in[n++] = int_of(x->size[d] - t->size[d] - before[d]);
    }
    in[n++] = float_of(0);
    const CcType out = cc_adjoint_dense(x);
    return cc_adjoint_in(a, CC_OP_pad, &out, in, n);
}

/* A step along a dim of stride 0 is not seen in strides. */
static bool is_range(const CcType *x, const CcType *y) {
    if (x->ndim != y->ndim) return false;
    for (int d = 0; d < x->ndim; d++) {
        if (y->size[d] > x->size[d] || (y->size[d] > 1 && y->stride[d] != x->stride[d])) return false;
        if (x->stride[d] == 0 && y->size[d] > 1 && y->size[d] < x->size[d]) return false;
    }
    return true;
}

/* Does no element share memory with one at another place of the dims that don't repeat? Then the strides of a slice
 * show which elements it takes. */
static bool places_differ(const CcType *x) {
    CcType one = *x;
    for (int d = 0; d < one.ndim; d++)
        if (one.stride[d] == 0) one.size[d] = 1;
    return cc_into_non_overlapping(&one);
}

static bool slice(Adjoint *a, const CcNode *n, int x) {
    const CcType t = *type_of(a, x);
    int64_t before[CC_MAX_DIMS] = {0};
    if (cc_type_numel(&t) == 0 || cc_type_numel(type_of(a, n->out0)) == 0 || !places_differ(&t)) return false;
    if (!is_range(&t, type_of(a, n->out0))) return cc_moves_slice(a, n, x);
    for (int i = 1; i + 1 < n->n_in; i += 2) {
        const int d = cc_graph_dim(&t, cc_graph_operand(a->g, n, i));
        const CcOperand *at = cc_graph_operand(a->g, n, i + 1);
        if (d < 0 || at->kind != CC_IN_INT) return false;
        before[d] = at->i < 0 ? at->i + t.size[d] : at->i;
    }
    cc_adjoint_add(a, x, padded(a, a->grad[n->out0], &t, before));
    return true;
}

/* g with the dim that select() and unbind() remove. */
static int with_dim(Adjoint *a, int g, const CcType *x, int dim) {
    CcType t = cc_adjoint_dense(x);
    t.size[dim] = 1;
    return cc_adjoint_reshaped(a, g, &t);
}

static bool select_one(Adjoint *a, const CcNode *n, int x) {
    const CcType t = *type_of(a, x);
    int64_t before[CC_MAX_DIMS] = {0};
    CcIn_select in;
    const int d = cc_in_select(a->g, n, &in) ? cc_graph_dim(&t, &in.dim) : -1;
    if (d < 0 || in.index.kind != CC_IN_INT || cc_type_numel(&t) == 0) return false;
    before[d] = in.index.i < 0 ? in.index.i + t.size[d] : in.index.i;
    cc_adjoint_add(a, x, padded(a, with_dim(a, a->grad[n->out0], &t, d), &t, before));
    return true;
}

/* split and unbind: the results follow each other along a dim; those without a gradient have zeros. */
static bool split(Adjoint *a, const CcNode *n, int x) {
    const CcType t = *type_of(a, x);
    CcIn_split in;
    const int d = cc_in_split(a->g, n, &in) ? cc_graph_dim(&t, &in.dim) : -1;
    const bool unbinds = n->op == CC_OP_unbind;
    CC_VEC(CcOperand) parts = {0};
    int64_t left = d < 0 ? -1 : t.size[d];
    for (int k = 0; k < n->n_out && d >= 0; k++) {
        CcType part = cc_adjoint_dense(type_of(a, n->out0 + k));
        left -= unbinds ? 1 : part.size[d];
        const int g = a->grad[n->out0 + k] >= 0 ? a->grad[n->out0 + k] : emit(a, CC_OP_fill, &part, float_of(0));
        cc_vec_push(&parts, value_of(unbinds ? with_dim(a, g, &t, d) : g));
    }
    cc_vec_push(&parts, int_of(d));
    const CcType out = cc_adjoint_dense(&t);
    if (left == 0) cc_adjoint_add(a, x, cc_adjoint_in(a, CC_OP_cat, &out, parts.at, parts.n));
    cc_vec_free(&parts);
    return left == 0; /* else tensor_split with indices that drop or repeat elements */
}

/* The gradient of a view as that of x: with the strides of x where these need no copy (a permuted x: channels last). */
static int viewed(Adjoint *a, int g, const CcType *x) {
    CcType t = cc_adjoint_like(x);
    t.dtype = type_of(a, g)->dtype;
    if (cc_type_same_shape(type_of(a, g), &t) || !cc_type_reshapes(type_of(a, g), &t))
        return cc_adjoint_reshaped(a, g, &t);
    return make(a, view, &t, .x = value_of(g));
}

static bool view(Adjoint *a, const CcNode *n, int x) {
    switch (n->op) {
    case CC_OP_view:
    case CC_OP_reshape:
    case CC_OP_squeeze:
    case CC_OP_unsqueeze:
        if (type_of(a, x)->dtype != type_of(a, n->out0)->dtype) return false;
        cc_adjoint_add(a, x, viewed(a, a->grad[n->out0], type_of(a, x)));
        return true;
    case CC_OP_transpose:
    case CC_OP_permute: return permute(a, n, x);
    case CC_OP_expand: cc_adjoint_add_summed(a, x, a->grad[n->out0]); return true;
    case CC_OP_slice: return slice(a, n, x);
    case CC_OP_select: return select_one(a, n, x);
    case CC_OP_split:
    case CC_OP_unbind: return split(a, n, x);
    default: return cc_puts_apply(a, n);
    }
}

/* An empty vector, which torch leaves out. */
static bool is_skipped(const CcType *t) { return t->ndim == 1 && t->size[0] == 0; }

/* vstack, column_stack and dstack give vectors and matrices the dim along which they join them. */
static CcType with_new_dim(const CcType *t, int dim) {
    const CcType out = cc_type_with_dim(t, dim);
    return cc_adjoint_dense(&out);
}

static bool cat(Adjoint *a, const CcNode *n) {
    CcIn_cat in;
    const int g = a->grad[n->out0];
    const int dim = cc_in_cat(a->g, n, &in) ? cc_graph_dim(type_of(a, g), &in.dim) : -1;
    int64_t at = 0;
    if (dim < 0) return false;
    for (int i = in.tensors.first; i < in.tensors.first + in.tensors.n; i++) {
        const CcOperand o = *cc_graph_operand(a->g, n, i);
        if (o.kind != CC_IN_VALUE) return false;
        CcType t = *type_of(a, o.value);
        t.requires_grad = 0;
        if (is_skipped(&t) && t.ndim != type_of(a, g)->ndim) {
            if (wants(a, o)) cc_adjoint_add(a, o.value, emit(a, CC_OP_fill, &t, float_of(0)));
            continue;
        }
        const CcType part = t.ndim + 1 == type_of(a, g)->ndim ? with_new_dim(&t, dim) : t;
        if (part.ndim != type_of(a, g)->ndim) return false;
        if (wants(a, o)) {
            const int piece = cc_adjoint_part(a, g, dim, at, part.size[dim]);
            cc_adjoint_add_summed(a, o.value, cc_adjoint_reshaped(a, piece, &t));
        }
        at += part.size[dim];
    }
    return true;
}

static bool stack(Adjoint *a, const CcNode *n) {
    CcIn_stack in;
    const int g = a->grad[n->out0];
    const int dim = cc_in_stack(a->g, n, &in) ? cc_graph_dim(type_of(a, g), &in.dim) : -1;
    if (dim < 0) return false;
    for (int i = 0; i < in.tensors.n; i++) {
        const CcOperand o = *cc_graph_operand(a->g, n, in.tensors.first + i);
        if (o.kind != CC_IN_VALUE) return false;
        if (!wants(a, o)) continue;
        const int piece = cc_adjoint_part(a, g, dim, i, 1);
        cc_adjoint_add_summed(a, o.value, cc_adjoint_reshaped(a, piece, type_of(a, o.value)));
    }
    return true;
}

/* ------------------------------------------------------------------ products */

/* y = x @ w^T + b: the weight's gradient is one product over all rows. */
static bool linear(Adjoint *a, const CcNode *n) {
    CcIn_linear in;
    const int g = a->grad[n->out0];
    if (!cc_in_linear(a->g, n, &in) || type_of(a, in.weight.value)->ndim != 2 || type_of(a, in.x.value)->ndim < 1 ||
        type_of(a, in.x.value)->dtype != type_of(a, g)->dtype ||
        type_of(a, in.weight.value)->dtype != type_of(a, g)->dtype)
        return false;
    if (wants(a, in.x)) {
        const int dx =
            cc_adjoint_product(a, type_of(a, g)->ndim > 1 ? g : cc_adjoint_matrix(a, g), in.weight.value, in.x.value);
        cc_adjoint_add(a, in.x.value, cc_adjoint_reshaped(a, dx, type_of(a, in.x.value)));
    }
    if (wants(a, in.weight))
        cc_adjoint_add(a, in.weight.value,
                       cc_adjoint_product(a, cc_adjoint_transposed(a, cc_adjoint_matrix(a, g)),
                                          cc_adjoint_matrix(a, in.x.value), in.weight.value));
    if (wants(a, in.bias)) cc_adjoint_add_summed(a, in.bias.value, g);
    return true;
}

/* A vector as a matrix of one row or column. */
static int as_rows(Adjoint *a, int v, bool column) {
    CcType t = *type_of(a, v);
    if (t.ndim != 1) return v;
    t = cc_adjoint_dense(&t);
    t.ndim = 2;
    t.size[column ? 1 : 0] = 1;
    t.size[column ? 0 : 1] = type_of(a, v)->size[0];
    cc_type_make_contiguous(&t);
    return cc_adjoint_reshaped(a, v, &t);
}

/* The gradient of x @ y, as a matrix where x or y is a vector. */
static int matrix_grad(Adjoint *a, int g, bool row, bool column) {
    CcType t = cc_adjoint_dense(type_of(a, g));
    if (column) t.size[t.ndim++] = 1;
    if (row) {
        t.size[t.ndim] = t.size[t.ndim - 1];
        t.size[t.ndim - 1] = 1;
        t.ndim++;
    }
    return cc_adjoint_reshaped(a, g, &t);
}

static void add_product(Adjoint *a, int value, int p) {
    const CcType *to = type_of(a, value);
    if (to->ndim == 1) { /* [.., 1, k] or [.., k, 1] */
        CcType t = cc_adjoint_dense(type_of(a, p));
        const int64_t k = to->size[0];
        t.ndim--;
        t.size[t.ndim - 1] = k;
        p = cc_adjoint_reshaped(a, p, &t);
    }
    cc_adjoint_add_summed(a, value, p);
}

static bool products(Adjoint *a, int g, int x, int y) {
    /* autocast multiplies in another dtype than that of the operands */
    if (type_of(a, g)->dtype != type_of(a, x)->dtype || type_of(a, g)->dtype != type_of(a, y)->dtype) return false;
    const bool row = type_of(a, x)->ndim == 1, column = type_of(a, y)->ndim == 1;
    if (type_of(a, g)->ndim + row + column > CC_MAX_DIMS || type_of(a, g)->ndim + row + column < 2) return false;
    const int m = as_rows(a, x, false), n = as_rows(a, y, true), dy = matrix_grad(a, g, row, column);
    /* one matrix for all rows of x, or a batch of products that are summed */
    const bool shared = type_of(a, n)->ndim == 2 && type_of(a, m)->ndim > 2;
    if (a->wanted[x]) add_product(a, x, cc_adjoint_product(a, dy, cc_adjoint_transposed(a, n), x));
    if (a->wanted[y] && shared)
        add_product(
            a, y,
            cc_adjoint_product(a, cc_adjoint_transposed(a, cc_adjoint_matrix(a, m)), cc_adjoint_matrix(a, dy), y));
    else if (a->wanted[y]) add_product(a, y, cc_adjoint_product(a, cc_adjoint_transposed(a, m), dy, y));
    return true;
}

static bool matmul(Adjoint *a, const CcNode *n) {
    CcIn_matmul in;
    return cc_in_matmul(a->g, n, &in) && products(a, a->grad[n->out0], in.a.value, in.b.value);
}

static bool addmm(Adjoint *a, const CcNode *n) {
    CcIn_addmm in;
    if (!cc_in_addmm(a->g, n, &in)) return false;
    if (wants(a, in.bias)) cc_adjoint_add_summed(a, in.bias.value, a->grad[n->out0]);
    return products(a, a->grad[n->out0], in.a.value, in.b.value);
}

/* u [m], v [n]: u[:, None] * v */
static bool outer_of(Adjoint *a, int g, int u, int v) {
    if (type_of(a, u)->dtype != type_of(a, g)->dtype || type_of(a, v)->dtype != type_of(a, g)->dtype) return false;
    const int column = as_rows(a, u, true), row = as_rows(a, v, false);
    if (a->wanted[u]) add_product(a, u, cc_adjoint_product(a, g, cc_adjoint_transposed(a, row), -1));
    if (a->wanted[v]) add_product(a, v, cc_adjoint_product(a, cc_adjoint_transposed(a, column), g, -1));
    return true;
}

/* beta * x + alpha * (a @ b), where x broadcasts */
static bool scaled_products(Adjoint *a, const CcNode *n) {
    CcIn_addmm_by in;
    int g = a->grad[n->out0];
    if (!cc_operands_read(a->g, n, CC_OP_addmm_by, &in)) return false;
    if (wants(a, in.x)) cc_adjoint_add_summed(a, in.x.value, scaled(a, g, in.beta));
    g = scaled(a, g, in.alpha);
    if (n->op == CC_OP_addr) return outer_of(a, g, in.a.value, in.b.value);
    if (n->op == CC_OP_addbmm) { /* summed over the batch */
        CcType t = cc_adjoint_dense(type_of(a, g));
        t.ndim = 3;
        t.size[2] = t.size[1];
        t.size[1] = t.size[0];
        t.size[0] = 1;
        g = cc_adjoint_reshaped(a, g, &t);
        t.size[0] = type_of(a, in.a.value)->size[0];
        g = cc_adjoint_expanded(a, g, &t);
    }
    return products(a, g, in.a.value, in.b.value);
}

/* x [.., k], y [.., k]: products of all rows of x with all rows of y */
static bool inner(Adjoint *a, const CcNode *n) {
    CcIn_inner in;
    const int g = a->grad[n->out0];
    if (!cc_in_inner(a->g, n, &in)) return false;
    const int x = in.a.value, y = in.b.value;
    if (type_of(a, x)->ndim < 1 || type_of(a, y)->ndim < 1 || type_of(a, x)->dtype != type_of(a, g)->dtype ||
        type_of(a, y)->dtype != type_of(a, g)->dtype || cc_type_numel(type_of(a, g)) == 0)
        return false;
    const int p = cc_adjoint_matrix(a, x), q = cc_adjoint_matrix(a, y);
    CcType t = cc_adjoint_dense(type_of(a, g));
    t.ndim = 2;
    t.size[0] = type_of(a, p)->size[0];
    t.size[1] = type_of(a, q)->size[0];
    const int d = cc_adjoint_reshaped(a, g, &t);
    if (a->wanted[x]) { /* a type moves when a node is made: it is asked for afterwards */
        const int dx = cc_adjoint_product(a, d, q, x);
        cc_adjoint_add(a, x, cc_adjoint_reshaped(a, dx, type_of(a, x)));
    }
    if (a->wanted[y]) {
        const int dy = cc_adjoint_product(a, cc_adjoint_transposed(a, d), p, y);
        cc_adjoint_add(a, y, cc_adjoint_reshaped(a, dy, type_of(a, y)));
    }
    return true;
}

/* ------------------------------------------------------------------ rows at indices */

/* rows [n, width], those whose index is the padding's as zeros */
static int without_padding(Adjoint *a, int rows, int index, CcOperand padding) {
    CcType flags = cc_adjoint_dense(type_of(a, index));
    const CcType t = cc_adjoint_dense(type_of(a, rows));
    flags.dtype = CC_DT_BOOL;
    const int is_padding = emit(a, CC_OP_eq, &flags, value_of(index), padding);
    flags.size[flags.ndim++] = 1;
    cc_type_make_contiguous(&flags);
    return emit(a, CC_OP_where, &t, value_of(cc_adjoint_reshaped(a, is_padding, &flags)), float_of(0), value_of(rows));
}

/* The rows of g, added to those of a weight of this type in eager's order. */
static int rows_added(Adjoint *a, const CcIn_embedding *in, int g, const CcType *weight) {
    CcType index = cc_adjoint_dense(type_of(a, in->index.value)), rows = *weight;
    index.size[0] = cc_type_numel(&index);
    index.ndim = 1;
    cc_type_make_contiguous(&index);
    rows.size[0] = index.size[0];
    cc_type_make_contiguous(&rows);
    const int at = cc_adjoint_reshaped(a, in->index.value, &index);
    int source = cc_adjoint_reshaped(a, g, &rows);
    if (in->padding_idx.i >= 0) source = without_padding(a, source, at, in->padding_idx);
    const int zeros = emit(a, CC_OP_fill, weight, float_of(0));
    return make(a, index_add, weight, .x = value_of(zeros), .dim = int_of(0), .index = value_of(at),
                .source = value_of(source), .alpha = int_of(1));
}

/* A call with sparse=True has neither of the last operands. torch's kernel writes its zeros with one thread, in small
 * pages (40 ms for 50257x768, ours 12: Xeon, 2 threads); it is left what is in half precision, which it rounds after each
 * addition, and what is divided by frequencies. */
static bool embedding(Adjoint *a, const CcNode *n) {
    CcIn_embedding in;
    if (!cc_in_embedding(a->g, n, &in) || in.padding_idx.kind != CC_IN_INT || in.by_frequency.kind != CC_IN_BOOL)
        return false;
    const int g = a->grad[n->out0];
    const CcType t = cc_adjoint_dense(type_of(a, in.weight.value));
    if (type_of(a, n->out0)->dtype != t.dtype) return false;
    const bool adds = t.device == 1 && (t.dtype == CC_DT_F32 || t.dtype == CC_DT_F64) && in.by_frequency.i == 0;
    cc_adjoint_add(a, in.weight.value,
                   adds ? rows_added(a, &in, g, &t)
                        : make(a, embedding_dw, &t, .grad = value_of(g), .index = in.index, .rows = int_of(t.size[0]),
                               .padding_idx = in.padding_idx, .by_frequency = in.by_frequency));
    return true;
}

/* ------------------------------------------------------------------ all ops */

static bool apply(Adjoint *a, const CcNode *n) {
    const int x = cc_graph_source(a->g, n);
    if (is_torchs(a, n)) return false;
    switch (n->op) {
    case CC_OP_lerp: return lerp(a, n);
    case CC_OP_norm: return norm(a, n);
    case CC_OP_linear: return linear(a, n);
    case CC_OP_matmul:
    case CC_OP_mm:
    case CC_OP_bmm: return matmul(a, n);
    case CC_OP_addmm: return addmm(a, n);
    case CC_OP_addmm_by:
    case CC_OP_baddbmm:
    case CC_OP_addbmm:
    case CC_OP_addmv:
    case CC_OP_addr: return scaled_products(a, n);
    case CC_OP_outer:
        return outer_of(a, a->grad[n->out0], cc_graph_source(a->g, n), cc_graph_operand(a->g, n, 1)->value);
    case CC_OP_inner: return inner(a, n);
    case CC_OP_einsum:
    case CC_OP_einsum_one:
    case CC_OP_tensordot:
    case CC_OP_multi_dot: return cc_sums_apply(a, n);
    case CC_OP_attention:
    case CC_OP_attention_dropped: return cc_attention_apply(a, n) || cc_compose_apply(a, n);
    case CC_OP_embedding: return embedding(a, n);
    case CC_OP_batch_normed: return cc_batch_apply(a, n);
    case CC_OP_recur: return cc_recurrent_apply(a, n);
    case CC_OP_conv: return cc_spatial_conv(a, n);
    case CC_OP_conv_transpose: return cc_spatial_conv_transpose(a, n);
    case CC_OP_max_pool: return cc_spatial_max_pool(a, n);
    case CC_OP_avg_pool: return cc_spatial_avg_pool(a, n);
    case CC_OP_adaptive_max_pool: return cc_spatial_adaptive_max_pool(a, n);
    case CC_OP_adaptive_avg_pool: return cc_spatial_adaptive_avg_pool(a, n);
    case CC_OP_im2col: return cc_spatial_im2col(a, n);
    case CC_OP_instance_norm:
    case CC_OP_group_norm: return cc_spatial_group_norm(a, n);
    case CC_OP_batch_norm: return cc_spatial_batch_norm(a, n);
    case CC_OP_pad: return cc_spatial_pad(a, n);
    case CC_OP_upsample_nearest:
    case CC_OP_upsample_exact: return cc_spatial_nearest(a, n);
    case CC_OP_upsample_linear:
    case CC_OP_upsample_cubic: return cc_spatial_interpolation(a, n);
    case CC_OP_cat: return cat(a, n);
    case CC_OP_stack: return stack(a, n);
    case CC_OP_clamp: return clamp(a, n);
    case CC_OP_cast:
    case CC_OP_cast_like:
    case CC_OP_copy: cc_adjoint_add_summed(a, x, a->grad[n->out0]); return true;
    default: break;
    }
    if (cc_op_is_view(n->op)) return x >= 0 && view(a, n, x);
    return cc_moves_apply(a, n) || cc_puts_apply(a, n) || rows(a, n) || cc_compose_apply(a, n);
}

bool cc_rules_apply(Adjoint *a, int node) {
    const CcNode n = a->g->node.at[node];
    const bool mark = cc_function_is_mark(&n);
    if (n.function != 0 && !mark) return true; /* its mark stands for the whole function */
    bool given = mark && cc_function_has_gradient(a, &n), wanted = false;
    for (int k = 0; k < n.n_out; k++) given = given || a->grad[n.out0 + k] >= 0;
    for (int k = 0; k < n.n_in; k++) wanted = wanted || wants(a, *cc_graph_operand(a->g, &n, k));
    return !given || !wanted || (mark ? cc_function_apply(a, &n) : apply(a, &n));
}

bool cc_rules_needs(const CcGraph *g, int value) {
    const CcType *t = &g->val.at[value].type;
    return t->requires_grad && t->ndim >= 0 && cc_dtype_is_float(t->dtype);
}

/* The first operand that is the same value as operand k. */
static int first_use(const CcGraph *g, const CcNode *n, int k) {
    for (int i = 0; i < k; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v >= 0 && v == cc_graph_value(g, n, k)) return i;
    }
    return k;
}

/* Copies a node to a graph of its own, as a stage spells it out. */
static CcGraph *alone(const CcGraph *g, const CcNode *n) {
    CcGraph *out = cc_graph_new();
    CcOperand *in = cc_mem_get(sizeof *in * ((size_t)n->n_in + 1));
    CcType *types = cc_mem_get(sizeof *types * ((size_t)n->n_out + 1));
    for (int k = 0; k < n->n_in; k++) {
        in[k] = *cc_graph_operand(g, n, k);
        if (in[k].kind != CC_IN_VALUE) continue;
        const int first = first_use(g, n, k);
        in[k].value = first < k ? in[first].value : cc_graph_input(out, &g->val.at[in[k].value].type);
    }
    for (int k = 0; k < n->n_out; k++) types[k] = g->val.at[n->out0 + k].type;
    cc_graph_node(out, (CcOpId)n->op, 0, -1, in, n->n_in, types, n->n_out);
    out->node.at[0].function = n->function;
    cc_functions_share(out, g);
    cc_joint_spell(out);
    free(in);
    free(types);
    return out;
}

/* The backward of a node alone. *n_forward: nodes before it */
static bool differentiate(const CcGraph *g, const CcNode *node, Adjoint *a, int *n_forward) {
    *a = (Adjoint){.g = alone(g, node), .before = -1};
    const int n = *n_forward = a->g->node.n;
    int made = 0; /* alone() numbers the results behind the operands */
    while (made < a->g->val.n && a->g->val.at[made].def < 0) made++;
    a->n_val = a->g->val.n;
    a->grad = cc_mem_get(sizeof *a->grad * ((size_t)a->n_val + 1));
    a->wanted = cc_mem_get((size_t)a->n_val + 1);
    for (int v = 0; v < a->n_val; v++) {
        a->grad[v] = -1;
        a->wanted[v] = cc_rules_needs(a->g, v);
    }
    for (int v = made; v < made + node->n_out; v++) {
        const CcType t = cc_adjoint_dense(type_of(a, v));
        if (a->wanted[v]) a->grad[v] = cc_graph_input(a->g, &t);
    }
    bool takes = true;
    for (int i = n - 1; i >= 0 && takes; i--) takes = cc_rules_apply(a, i);
    return takes;
}

static void drop(Adjoint *a) {
    cc_graph_free(a->g);
    free(a->grad);
    free(a->wanted);
}

bool cc_rules_take(const CcGraph *g, int node) {
    Adjoint a;
    int n_forward;
    const bool takes = differentiate(g, &g->node.at[node], &a, &n_forward);
    drop(&a);
    return takes;
}

/* Ops whose nodes a second backward of eager can't pass, although no derivative here reads a tensor of theirs: eager
 * saves a factor that is a number, or x for its sizes; pad_circular writes to slices. */
static bool saves_unread(const CcGraph *g, const CcNode *n) {
    switch (n->op) {
    case CC_OP_avg_pool:
    case CC_OP_adaptive_avg_pool:
    case CC_OP_pad_reflect:
    case CC_OP_pad_replicate:
    case CC_OP_pad_circular: return true;
    case CC_OP_mul:
    case CC_OP_div: return cc_graph_operand(g, n, 1)->kind != CC_IN_VALUE;
    default: return false;
    }
}

/* A value that is a view or a copy, made inside of the node, of one below `to`: that one. */
static int copied_from(const CcGraph *g, int value, int to) {
    for (int def; value >= to && (def = g->val.at[value].def) >= 0; value = cc_graph_source(g, &g->node.at[def]))
        if (!cc_op_is_view(g->node.at[def].op) && g->node.at[def].op != CC_OP_copy) break;
    return value;
}

/* Does the backward of a node read a value in [from, to) of the node's own graph? to < 0: all of the forward */
static bool backward_reads(const CcGraph *g, const CcNode *node, int from, int to) {
    Adjoint a;
    int n_forward;
    bool reads = false;
    differentiate(g, node, &a, &n_forward);
    if (to < 0) to = a.n_val;
    for (int i = n_forward; i < a.g->node.n && !reads; i++)
        for (int k = 0; k < a.g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(a.g, &a.g->node.at[i], k);
            const int value = v >= 0 ? copied_from(a.g, v, to) : -1;
            reads = reads || (value >= from && value < to);
        }
    drop(&a);
    return reads;
}

bool cc_rules_saves(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    if (n->function != 0) return cc_graph_function(g, n)->unpacks;
    return backward_reads(g, n, 0, -1) || saves_unread(g, n);
}

/* alone() numbers a node's operands in order, then its results. */
bool cc_rules_reads(const CcGraph *g, const CcNode *n, int value) {
    int at = 0;
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(g, n, k);
        if (v < 0 || first_use(g, n, k) < k) continue;
        if (v == value && (n->n_out == 0 || n->out0 != value) && backward_reads(g, n, at, at + 1)) return true;
        at++;
    }
    for (int k = 0; k < n->n_out; k++)
        if (n->out0 + k == value) return backward_reads(g, n, at + k, at + k + 1);
    return false;
}
