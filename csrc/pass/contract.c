/* contract: turns sums of products over named dims (einsum, tensordot, inner, multi_dot) into products, reductions
 * and windows.
 *
 *   y = einsum("bqhd,bkhd->bhqk", q, k)     y = matmul(q as [b, h, q, d], k as [b, h, d, k])
 *   y = einsum("bij,bj->bi", x, v)          y = dot(x, v as [b, 1, j])
 *   y = einsum("i,j->ij", a, b)             y = a as [i, 1] * b
 *   y = linear(x, w as [1, k], b)           p = dot(x, w); y = p + b
 *
 * Each tensor is a term: a size and a stride per letter. So a permuted operand, a diagonal (its strides add up) and
 * a broadcast dim (a missing letter) are only other strides, and the result is written with the recorded strides.
 * Terms are contracted in pairs as in torch's sumproduct_pair (ATen/native/Linear.cpp): kept letters of both are the
 * batch, kept letters of one are its rows or columns, the others are summed over. f32 terms are contracted in the
 * order with the fewest multiplications, others from left to right as in torch.
 *
 *   y = baddbmm(x, a, b, beta, alpha)       p = matmul(a, b); q = p * alpha; y = q + beta * x */
#include "pass_int.h"

enum {
    MAX_TERMS = CC_TERMS_MAX,
    MAX_LABELS = CC_LETTERS + CC_MAX_DIMS,
    MAX_TEXT = 64,
    KEEP_ROWS = 16,
    BLAS_MIN = 1 << 21
};

typedef struct Dim {
    int label;
    int64_t stride;
} Dim;

typedef struct Term {
    int value;
    int n;
    Dim dim[CC_MAX_DIMS];
    int label[CC_MAX_DIMS]; /* of all dims of the value */
} Term;

typedef struct Sum {
    Parts *p;
    int out;                  /* the value that the last step makes */
    int64_t size[MAX_LABELS]; /* 0: unused label */
    int n;
    Term term[MAX_TERMS], result;
} Sum;

/* The order of dims in which an operand is viewed, as labels. */
typedef struct Order {
    int n, label[CC_MAX_DIMS];
} Order;

static const Dim *dim_of(const Term *t, int label) {
    for (int i = 0; i < t->n; i++)
        if (t->dim[i].label == label) return &t->dim[i];
    return NULL;
}

static int64_t stride_of(const Term *t, int label) {
    const Dim *d = dim_of(t, label);
    return d ? d->stride : 0;
}

static bool put(Order *o, int label) {
    if (o->n == CC_MAX_DIMS) return false;
    o->label[o->n++] = label;
    return true;
}

static bool has(const Order *o, int label) {
    for (int i = 0; i < o->n; i++)
        if (o->label[i] == label) return true;
    return false;
}

/* Sorts by stride, largest first. */
static void sort(Order *o, const Term *by) {
    for (int i = 1; i < o->n; i++)
        for (int k = i; k > 0 && stride_of(by, o->label[k - 1]) < stride_of(by, o->label[k]); k--) {
            const int t = o->label[k];
            o->label[k] = o->label[k - 1];
            o->label[k - 1] = t;
        }
}

/* ------------------------------------------------------------------ terms of an op */

/* Labels the dims of a tensor. Dims of size 1 are dropped; dims with the same label must have the same size. */
static bool name_dims(Sum *s, Term *t, int value, const int *label, int n) {
    const CcType *type = &s->p->g->val.at[value].type;
    *t = (Term){.value = value};
    if (type->ndim != n) return false;
    for (int d = 0; d < n; d++) {
        const int64_t size = type->size[d];
        if (size < 1 || type->stride[d] < 0 || (s->size[label[d]] > 1 && size > 1 && s->size[label[d]] != size))
            return false;
        s->size[label[d]] = CC_MAX(s->size[label[d]], size);
        t->label[d] = label[d];
        if (size == 1) continue;
        Dim *same = (Dim *)dim_of(t, label[d]);
        if (same) same->stride += type->stride[d];
        else t->dim[t->n++] = (Dim){label[d], type->stride[d]};
    }
    return true;
}

static bool name_result(Sum *s, const int *label, int n) {
    const CcType *type = &s->p->g->val.at[s->out].type;
    if (type->ndim != n) return false;
    for (int d = 0; d < n; d++)
        if (s->size[label[d]] != type->size[d]) return false;
    return name_dims(s, &s->result, s->out, label, n);
}

/* The characters follow the tensors. */
static bool text_of(const Parts *p, int at, char *text) {
    int n = 0;
    for (int i = at; i < p->whole.n_in; i++) {
        const CcOperand o = operand(p, i);
        if (o.kind != CC_IN_INT || o.i <= 0 || o.i > 127 || n == MAX_TEXT - 1) return false;
        if (o.i != ' ') text[n++] = (char)o.i;
    }
    text[n] = 0;
    return true;
}

static bool einsum(Sum *s) {
    char text[MAX_TEXT];
    int label[MAX_TEXT + CC_MAX_DIMS], hidden = 0;
    bool dots, any = false;
    Parts *p = s->p;
    while (s->n < p->whole.n_in && operand(p, s->n).kind == CC_IN_VALUE) s->n++;
    if (s->n > MAX_TERMS || !text_of(p, s->n, text)) return false;
    const char *at = text;
    for (int i = 0; i < s->n; i++) {
        const CcType t = type_of(p, operand(p, i));
        const int n = cc_equation_letters(at, &dots), more = t.ndim - n;
        if (n < 0 || more < 0 || (more && !dots)) return false;
        hidden = CC_MAX(hidden, more);
        any = any || dots;
        at = cc_equation_labels(at, more, label);
        if (!name_dims(s, &s->term[i], operand(p, i).value, label, t.ndim)) return false;
        if (i + 1 < s->n && *at++ != ',') return false;
    }
    if (!*at) return name_result(s, label, cc_equation_implicit(text, hidden, label));
    if (at[0] != '-' || at[1] != '>') return false;
    const int n = cc_equation_letters(at + 2, &dots);
    if (n < 0 || n + (dots ? hidden : 0) > CC_MAX_DIMS || *cc_equation_labels(at + 2, hidden, label)) return false;
    return (any || !dots) && name_result(s, label, n + (dots ? hidden : 0));
}

/* dims: those of a, then as many of b. */
static bool tensordot(Sum *s) {
    const Parts *p = s->p;
    CcIn_tensordot in;
    if (!cc_in_tensordot(p->g, &p->whole, &in) || in.dims.n % 2) return false;
    const CcType ta = type_of(p, in.a), tb = type_of(p, in.b);
    int of_a[CC_MAX_DIMS], of_b[CC_MAX_DIMS], label[2 * CC_MAX_DIMS], n = 0;
    const int pairs = in.dims.n / 2;
    if (tb.ndim < 0) return false;
    for (int d = 0; d < ta.ndim; d++) of_a[d] = d;
    for (int d = 0; d < tb.ndim; d++) of_b[d] = CC_MAX_DIMS + d;
    for (int i = 0; i < pairs; i++) {
        const CcOperand oa = operand(p, in.dims.first + i), ob = operand(p, in.dims.first + pairs + i);
        const int da = cc_graph_dim(&ta, &oa), db = cc_graph_dim(&tb, &ob);
        if (da < 0 || db < 0 || of_b[db] < CC_MAX_DIMS) return false;
        of_b[db] = da;
    }
    for (int d = 0; d < ta.ndim; d++) {
        bool kept = true;
        for (int k = 0; k < tb.ndim; k++) kept = kept && of_b[k] != d;
        if (kept) label[n++] = d;
    }
    for (int d = 0; d < tb.ndim; d++)
        if (of_b[d] >= CC_MAX_DIMS) label[n++] = of_b[d];
    s->n = 2;
    return name_dims(s, &s->term[0], in.a.value, of_a, ta.ndim) &&
           name_dims(s, &s->term[1], in.b.value, of_b, tb.ndim) && name_result(s, label, n);
}

/* Sums over the last dim of both. */
static bool inner(Sum *s) {
    const Parts *p = s->p;
    CcIn_inner in;
    int of_a[CC_MAX_DIMS], of_b[CC_MAX_DIMS], label[2 * CC_MAX_DIMS], n = 0;
    if (!cc_in_inner(p->g, &p->whole, &in)) return false;
    const int last_a = type_of(p, in.a).ndim - 1, last_b = type_of(p, in.b).ndim - 1;
    if (last_a < 0 || last_b < 0) return false;
    for (int d = 0; d < last_a; d++) label[n++] = of_a[d] = d;
    for (int d = 0; d < last_b; d++) label[n++] = of_b[d] = CC_MAX_DIMS + d;
    of_a[last_a] = of_b[last_b] = 2 * CC_MAX_DIMS;
    s->n = 2;
    return name_dims(s, &s->term[0], in.a.value, of_a, last_a + 1) &&
           name_dims(s, &s->term[1], in.b.value, of_b, last_b + 1) && name_result(s, label, n);
}

/* Matrices; the first and the last may be vectors. */
static bool multi_dot(Sum *s) {
    const Parts *p = s->p;
    int label[2], n = 0;
    s->n = p->whole.n_in;
    if (s->n > MAX_TERMS) return false;
    for (int i = 0; i < s->n; i++) {
        const CcOperand o = operand(p, i);
        const int both[] = {i, i + 1}, ndim = o.kind == CC_IN_VALUE ? type_of(p, o).ndim : 0;
        const bool vector = ndim == 1 && (i == 0 || i == s->n - 1);
        if (ndim != 2 && !vector) return false;
        if (i == 0 && !vector) label[n++] = 0;
        if (i == s->n - 1 && !vector) label[n++] = s->n;
        if (!name_dims(s, &s->term[i], o.value, vector && i == 0 ? both + 1 : both, ndim)) return false;
    }
    return name_result(s, label, n);
}

/* ------------------------------------------------------------------ windows */

/* The type of a term in this order of dims; missing letters have size 1. */
static CcType seen(const Sum *s, const Term *t, const Order *o) {
    CcType type = s->p->g->val.at[t->value].type;
    type.ndim = (int8_t)o->n;
    for (int i = 0; i < o->n; i++) {
        const Dim *d = dim_of(t, o->label[i]);
        type.size[i] = d ? s->size[o->label[i]] : 1;
        type.stride[i] = d ? d->stride : 0;
    }
    return type;
}

/* The value with this type: itself if the type is its own, else a window. */
static CcOperand look(Sum *s, int value, const CcType *type) {
    CcGraph *g = s->p->g;
    if (cc_type_same_layout(&g->val.at[value].type, type)) return value_of(value);
    return value_of((value == s->result.value ? cc_views_result : cc_views_window)(g, value, type));
}

/* Merges dims [from, to) into one if they are contiguous with each other. */
static bool merge(CcType *t, int from, int to) {
    int64_t size = 1, stride = 0;
    for (int i = to - 1; i >= from; i--) {
        if (t->size[i] == 1) continue;
        if (size == 1) stride = t->stride[i];
        else if (t->stride[i] != stride * size) return false;
        size *= t->size[i];
    }
    const int gone = to - from - 1;
    for (int i = to; i < t->ndim; i++) {
        t->size[i - gone] = t->size[i];
        t->stride[i - gone] = t->stride[i];
    }
    t->size[from] = size;
    t->stride[from] = stride;
    t->ndim = (int8_t)(t->ndim - gone);
    for (int i = t->ndim; i < CC_MAX_DIMS; i++) t->size[i] = t->stride[i] = 0;
    return true;
}

/* A new contiguous term with these labels. */
static Term fresh(const Sum *s, const Order *o, CcType *type) {
    Term t = {.value = -1, .n = o->n};
    *type = s->p->g->val.at[s->out].type;
    type->ndim = (int8_t)o->n;
    for (int i = 0; i < o->n; i++) type->size[i] = s->size[o->label[i]];
    cc_type_make_contiguous(type);
    for (int i = 0; i < o->n; i++) t.dim[i] = (Dim){o->label[i], type->stride[i]};
    return t;
}

/* Where a step writes: the result, viewed in this order, or a new value in this order. */
static int target(Sum *s, const Order *o, bool last, Term *made, CcType *type) {
    *made = last ? s->result : fresh(s, o, type);
    if (!last) return -1;
    *type = seen(s, made, o);
    return look(s, made->value, type).value;
}

static Term copied(Sum *s, const Term *t, const Order *o) {
    CcType type;
    const CcType from = seen(s, t, o);
    Term made = fresh(s, o, &type);
    made.value = cc_parts_add(s->p, CC_OP_copy, -1, &type, look(s, t->value, &from)).value;
    return made;
}

/* ------------------------------------------------------------------ a step */

/* Sums a term over all letters after the first `kept`. */
static bool summed(Sum *s, Term *t, const Order *o, int kept, bool last) {
    CcType type;
    Order rest = *o;
    Term made;
    rest.n = kept;
    const CcType from = seen(s, t, o);
    const CcOperand x = look(s, t->value, &from);
    const int to = target(s, &rest, last, &made, &type);
    made.value = cc_parts_add(s->p, CC_OP_sum, to, &type, x, last_dims(o->n - kept)).value;
    *t = made;
    return true;
}

/* In the order of the result; for an intermediate, letters of `first` come before those of `second`. */
static bool kept_order(const Sum *s, const Term *first, const Term *second, const Order *over, bool last, Order *out) {
    const Term *const from[] = {last ? &s->result : first, last ? NULL : second};
    for (int i = 0; i < 2 && from[i]; i++)
        for (int k = 0; k < from[i]->n; k++) {
            const int label = from[i]->dim[k].label;
            if (!has(over, label) && !has(out, label) && !put(out, label)) return false;
        }
    return true;
}

static bool times(Sum *s, const Term *a, const Term *b, bool last, Term *made) {
    const Order nothing = {0};
    Order o = {0};
    CcType type;
    if (!kept_order(s, a, b, &nothing, last, &o)) return false;
    const CcType ta = seen(s, a, &o), tb = seen(s, b, &o);
    const CcOperand x = look(s, a->value, &ta), y = look(s, b->value, &tb);
    const int to = target(s, &o, last, made, &type);
    made->value = cc_parts_add(s->p, CC_OP_mul, to, &type, x, y).value;
    return true;
}

/* For a large matrix times a vector along its columns, BLAS is faster: 2000x2000 takes 520 us here, 440 there;
 * 500x500 15 and 34 (Zen 4, one thread). */
static bool is_blas(const Sum *s, const Term *a, const Term *b, const Order *over) {
    bool columns = a->n > over->n;
    double numel = 1;
    for (int i = 0; i < a->n; i++) {
        const int label = a->dim[i].label;
        numel *= (double)s->size[label];
        columns = columns && (has(over, label) ? a->dim[i].stride != 1 : !dim_of(b, label)); /* no batch */
    }
    return columns && numel > BLAS_MIN;
}

/* Requires that `a` has all kept letters. */
static bool dots(Sum *s, const Term *a, const Term *b, const Order *over, bool last, Term *made) {
    Order o = {0}, sum = *over;
    CcType type;
    if (is_blas(s, a, b, over)) return false;
    if (!kept_order(s, a, b, over, last, &o)) return false;
    Order rest = o;
    sort(&sum, a);
    for (int i = 0; i < sum.n; i++)
        if (!put(&o, sum.label[i])) return false;
    const CcType ta = seen(s, a, &o), tb = seen(s, b, &o);
    const CcOperand x = look(s, a->value, &ta), y = look(s, b->value, &tb);
    const int to = target(s, &rest, last, made, &type);
    made->value = cc_parts_add(s->p, CC_OP_dot, to, &type, x, y, last_dims(over->n)).value;
    return true;
}

/* ------------------------------------------------------------------ products */

/* Views a as [batch.., rows, over], b as [batch.., over, columns], the result as [batch.., rows, columns]. */
typedef struct Product {
    Order batch, rows, columns, over; /* over: what is summed over */
    bool last;
    Term a, b;
} Product;

static Order joined(const Order *x, const Order *y, const Order *z) {
    const Order *const part[] = {x, y, z};
    Order o = {0};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < part[i]->n; k++)
            if (!put(&o, part[i]->label[k])) return (Order){.n = CC_MAX_DIMS + 1};
    return o;
}

static bool one_step(const CcType *t) {
    const int r = t->ndim - 2, c = t->ndim - 1;
    return t->size[r] == 1 || t->size[c] == 1 || t->stride[r] == 1 || t->stride[c] == 1;
}

/* Copies to a new term [batch, x, y], or [batch, y, x] if x has the smallest stride. */
static Term copied_matrix(Sum *s, const Term *t, const Order *batch, const Order *x, const Order *y) {
    const Dim *least = &t->dim[0];
    for (int i = 1; i < t->n; i++)
        if (t->dim[i].stride < least->stride) least = &t->dim[i];
    const bool transposed = has(x, least->label);
    const Order all = joined(batch, transposed ? y : x, transposed ? x : y);
    Order there = {0}; /* only labels that the term has */
    for (int i = 0; i < all.n; i++)
        if (dim_of(t, all.label[i])) (void)put(&there, all.label[i]);
    return copied(s, t, &there);
}

/* Views a term as [batch.., x, y], merging x and y into one dim each; copies the term if strides do not allow that. */
static bool as_matrix(Sum *s, Term *t, const Order *batch, const Order *x, const Order *y, CcType *type) {
    const Order all = joined(batch, x, y);
    if (all.n > CC_MAX_DIMS) return false;
    for (int tries = 0; tries < 2; tries++) {
        *type = seen(s, t, &all);
        if (merge(type, batch->n + x->n, all.n) && merge(type, batch->n, batch->n + x->n) && one_step(type))
            return true;
        if (tries == 0) *t = copied_matrix(s, t, batch, x, y);
    }
    return false;
}

/* If the row dims of `a` do not merge, all but the last join the batch, along which b is broadcast. */
static void move_rows(const Sum *s, Product *m) {
    const CcType t = seen(s, &m->a, &m->rows);
    CcType merged = t;
    if (m->rows.n < 2 || merge(&merged, 0, m->rows.n) || t.size[m->rows.n - 1] < KEEP_ROWS ||
        m->batch.n + m->rows.n > CC_MAX_DIMS - 2)
        return;
    for (int i = 0; i + 1 < m->rows.n; i++) (void)put(&m->batch, m->rows.label[i]);
    m->rows = (Order){1, {m->rows.label[m->rows.n - 1]}};
}

/* Merges neighbouring batch dims that are contiguous in all three tensors. */
static void merge_batch(CcType *a, CcType *b, CcType *out) {
    for (int i = out->ndim - 4; i >= 0; i--) {
        CcType *const all[] = {a, b, out};
        CcType merged[3];
        bool good = true;
        for (int k = 0; k < 3; k++) {
            merged[k] = *all[k];
            /* a dim broadcast in only one of them does not merge */
            const bool first = merged[k].size[i] > 1, second = merged[k].size[i + 1] > 1;
            good = good && first == second && merge(&merged[k], i, i + 2);
        }
        for (int k = 0; k < 3 && good; k++) *all[k] = merged[k];
    }
}

/* Without a batch: x @ w with all row dims kept; `linear` if the weights are stored as [out, in]. */
static CcOperand add_flat(Sum *s, const Product *m, int to, const CcType *out, const CcType *tb) {
    const Order nothing = {0}, all = joined(&nothing, &m->rows, &m->over);
    const CcType transposed = cc_type_swapped(tb, 0, 1);
    CcType ta = seen(s, &m->a, &all);
    (void)merge(&ta, m->rows.n, all.n); /* as_matrix() has checked that this works */
    const CcOperand x = look(s, m->a.value, &ta);
    if (cc_type_same_layout(&s->p->g->val.at[m->b.value].type, &transposed))
        return cc_parts_add(s->p, CC_OP_linear, to, out, x, value_of(m->b.value), none());
    return cc_parts_add(s->p, CC_OP_matmul, to, out, x, look(s, m->b.value, tb));
}

/* Does the result consist of batch, rows and one column dim, in this order? Only then can post-ops follow. */
static bool is_own(const Sum *s, const Product *m, const CcType *out) {
    const bool simple = m->columns.n == 1 && (m->batch.n == 0 || m->rows.n == 1);
    return simple && (!m->last || cc_type_same_layout(out, &s->p->g->val.at[s->result.value].type));
}

/* The result is contiguous in this order of its dims. */
static bool add_product(Sum *s, Product *m, Term *made) {
    CcType ta, tb, out, merged;
    move_rows(s, m);
    const Order all = joined(&m->batch, &m->rows, &m->columns);
    if (all.n > CC_MAX_DIMS || m->batch.n > CC_MAX_DIMS - 2) return false;
    if (!as_matrix(s, &m->a, &m->batch, &m->rows, &m->over, &ta) ||
        !as_matrix(s, &m->b, &m->batch, &m->over, &m->columns, &tb))
        return false;
    *made = m->last ? s->result : fresh(s, &all, &out);
    if (m->last) out = seen(s, made, &all);
    merged = out;
    if (!merge(&merged, m->batch.n + m->rows.n, all.n) || !merge(&merged, m->batch.n, m->batch.n + m->rows.n))
        return false;
    const bool own = is_own(s, m, &out);
    if (!own) merge_batch(&ta, &tb, &merged);
    const CcType *type = own ? &out : &merged;
    const int to = m->last ? look(s, s->result.value, type).value : -1;
    made->value = (own && m->batch.n == 0
                       ? add_flat(s, m, to, type, &tb)
                       : cc_parts_add(s->p, CC_OP_matmul, to, type, look(s, m->a.value, &ta), look(s, m->b.value, &tb)))
                      .value;
    return true;
}

static bool without_gaps(const Sum *s, const Product *m) {
    const Order all = joined(&m->batch, &m->rows, &m->columns);
    if (all.n > CC_MAX_DIMS) return false;
    const CcType t = seen(s, &s->result, &all);
    return cc_type_contiguous(&t);
}

static void transpose(Product *m) {
    const Term a = m->a;
    const Order rows = m->rows;
    m->a = m->b;
    m->b = a;
    m->rows = m->columns;
    m->columns = rows;
}

/* If a product can't write the result's layout, the result is a copy of a product's result. */
static bool product(Sum *s, Product *m, Term *made) {
    if (m->last) {
        sort(&m->batch, &s->result);
        sort(&m->rows, &s->result);
        sort(&m->columns, &s->result);
        if (!without_gaps(s, m)) transpose(m);
    }
    sort(&m->over, &m->a);
    if (!m->last || without_gaps(s, m)) return add_product(s, m, made);
    m->last = false;
    CcType type;
    Order o = {0}, nothing = {0};
    if (!add_product(s, m, made) || !kept_order(s, NULL, NULL, &nothing, true, &o)) return false;
    const CcType from = seen(s, made, &o);
    const CcOperand x = look(s, made->value, &from);
    const int to = target(s, &o, true, made, &type);
    cc_parts_add(s->p, CC_OP_copy, to, &type, x);
    return true;
}

/* ------------------------------------------------------------------ all steps */

static uint64_t mask_of(const Term *t) {
    uint64_t mask = 0;
    for (int i = 0; i < t->n; i++) mask |= UINT64_C(1) << t->dim[i].label;
    return mask;
}

static bool in(uint64_t mask, int label) { return mask >> label & 1; }

/* Letters of this term that neither another term nor the result has. */
static bool sum_alone(Sum *s, int i, bool last) {
    uint64_t others = mask_of(&s->result);
    for (int k = 0; k < s->n; k++) others |= k == i ? 0 : mask_of(&s->term[k]);
    Order o = {0}, alone = {0};
    const Term *t = &s->term[i], *by = last ? &s->result : t;
    for (int k = 0; k < by->n; k++)
        if (in(others, by->dim[k].label)) (void)put(&o, by->dim[k].label);
    for (int k = 0; k < t->n; k++)
        if (!in(others, t->dim[k].label)) (void)put(&alone, t->dim[k].label);
    const int kept = o.n;
    sort(&alone, t);
    for (int k = 0; k < alone.n; k++)
        if (!put(&o, alone.label[k])) return false;
    return alone.n == 0 || summed(s, &s->term[i], &o, kept, last);
}

/* Contracts two terms; the result replaces the first. */
static bool contract(Sum *s, int i, int k) {
    const uint64_t a = mask_of(&s->term[i]), b = mask_of(&s->term[k]);
    uint64_t kept = mask_of(&s->result);
    Product m = {.last = s->n == 2, .a = s->term[i], .b = s->term[k]};
    Term made;
    for (int t = 0; t < s->n; t++) kept |= t == i || t == k ? 0 : mask_of(&s->term[t]);
    for (int d = 0; d < m.a.n; d++) {
        const int label = m.a.dim[d].label;
        (void)put(!in(b, label) ? &m.rows : in(kept, label) ? &m.batch : &m.over, label);
    }
    for (int d = 0; d < m.b.n; d++)
        if (!in(a, m.b.dim[d].label)) (void)put(&m.columns, m.b.dim[d].label);
    sort(&m.batch, &m.a);
    sort(&m.rows, &m.a);
    sort(&m.columns, &m.b);
    bool good;
    if (m.over.n == 0) good = times(s, &m.a, &m.b, m.last, &made);
    else if (m.columns.n == 0) good = dots(s, &m.a, &m.b, &m.over, m.last, &made);
    else if (m.rows.n == 0) good = dots(s, &m.b, &m.a, &m.over, m.last, &made);
    else good = product(s, &m, &made);
    if (!good) return false;
    s->term[i] = made;
    for (s->n--; k < s->n; k++) s->term[k] = s->term[k + 1];
    return true;
}

/* -> multiplications needed to contract the remaining terms in the best order, which starts with terms *i and *k */
static double best_order(const Sum *s, const uint64_t *mask, int n, int *i, int *k) {
    double least = -1;
    for (int x = 0; x < n; x++)
        for (int y = x + 1; y < n; y++) {
            uint64_t rest[MAX_TERMS], kept = mask_of(&s->result);
            double cost = 1;
            int m = 1, first, second;
            for (int t = 0; t < n; t++) {
                if (t == x || t == y) continue;
                kept |= mask[t];
                rest[m++] = mask[t];
            }
            rest[0] = (mask[x] | mask[y]) & kept;
            for (int label = 0; label < MAX_LABELS; label++)
                if (in(mask[x] | mask[y], label)) cost *= (double)s->size[label];
            if (m > 1) cost += best_order(s, rest, m, &first, &second);
            if (least >= 0 && cost >= least) continue;
            least = cost;
            *i = x;
            *k = y;
        }
    return least;
}

static bool all_steps(Sum *s) {
    for (int i = 0; i < s->n; i++)
        if (!sum_alone(s, i, s->n == 1)) return false;
    while (s->n > 1) {
        uint64_t mask[MAX_TERMS];
        int i = 0, k = 1;
        for (int t = 0; t < s->n; t++) mask[t] = mask_of(&s->term[t]);
        if (type_of(s->p, value_of(s->result.value)).dtype == CC_DT_F32) (void)best_order(s, mask, s->n, &i, &k);
        if (!contract(s, i, k)) return false;
    }
    return true;
}

/* All terms are floats of one dtype. */
static bool alike(const Sum *s) {
    const CcType out = type_of(s->p, value_of(s->result.value));
    bool good = cc_dtype_is_float(out.dtype);
    for (int i = 0; i < s->n; i++) {
        const CcType t = type_of(s->p, value_of(s->term[i].value));
        good = good && t.dtype == out.dtype && t.device == out.device;
    }
    return good;
}

/* ------------------------------------------------------------------ beta * x + alpha * (a @ b) */

/* Labels 1, 2 ...; 0 ends a list. */
static const struct {
    CcOpId op;
    char a[4], b[4], out[4];
} SCALED[] = {
    {CC_OP_addmm, {1, 2}, {2, 3}, {1, 3}},
    {CC_OP_addmm_by, {1, 2}, {2, 3}, {1, 3}},
    {CC_OP_baddbmm, {1, 2, 3}, {1, 3, 4}, {1, 2, 4}},
    {CC_OP_addbmm, {1, 2, 3}, {1, 3, 4}, {2, 4}},
    {CC_OP_addmv, {1, 2}, {2}, {1}},
    {CC_OP_addr, {1}, {2}, {1, 2}},
};

static int labels_from(const char *from, int *label) {
    int n = 0;
    for (; n < 4 && from[n]; n++) label[n] = from[n];
    return n;
}

/* The sum is not the node's result: further steps follow. */
static void make_apart(Sum *s) {
    CcVal made = {.type = type_of(s->p, value_of(s->out)), .def = s->p->first, .narrowed = true, .hidden = true};
    cc_type_make_contiguous(&made.type);
    s->out = s->p->g->val.n;
    cc_vec_push(&s->p->g->val, made);
}

static bool is_factor(CcOperand o) { return o.kind == CC_IN_FLOAT || o.kind == CC_IN_INT; }

/* addmm is the same with both factors 1. */
static bool read_scaled(const Parts *p, CcIn_addmm_by *in) {
    CcIn_addmm plain;
    if (p->whole.op != CC_OP_addmm)
        return cc_in_addmm_by(p->g, &p->whole, in) && is_factor(in->beta) && is_factor(in->alpha);
    if (!cc_in_addmm(p->g, &p->whole, &plain)) return false;
    *in = (CcIn_addmm_by){.x = plain.bias, .a = plain.a, .b = plain.b, .beta = int_of(1), .alpha = int_of(1)};
    return true;
}

/* Libraries ignore an operand whose factor is 0 (NaNs included): drop the term of beta = 0; the host does alpha = 0. */
static bool scaled(Sum *s, int row) {
    Parts *p = s->p;
    int label[3][4], n[3];
    CcIn_addmm_by in;
    if (!read_scaled(p, &in)) return false;
    const double beta = cc_operand_number(&in.beta), alpha = cc_operand_number(&in.alpha);
    const CcType out = type_of(p, value_of(p->whole.out0));
    const bool wide = out.dtype == CC_DT_F32 || out.dtype == CC_DT_F64;
    if (alpha == 0 || type_of(p, in.x).dtype != out.dtype || (!wide && p->whole.op != CC_OP_baddbmm)) return false;
    const bool alone = beta == 0 && alpha == 1;
    if (!alone) make_apart(s);
    n[0] = labels_from(SCALED[row].a, label[0]);
    n[1] = labels_from(SCALED[row].b, label[1]);
    n[2] = labels_from(SCALED[row].out, label[2]);
    s->n = 2;
    if (!name_dims(s, &s->term[0], in.a.value, label[0], n[0]) ||
        !name_dims(s, &s->term[1], in.b.value, label[1], n[1]) || !name_result(s, label[2], n[2]) || !alike(s) ||
        !all_steps(s) || alone)
        return alone && p->n > 0;
    CcOperand y = value_of(s->out);
    const CcType type = type_of(p, y);
    if (alpha != 1) y = cc_parts_add(p, CC_OP_mul, beta == 0 ? p->whole.out0 : -1, &type, y, in.alpha);
    if (beta == 1) cc_parts_add(p, CC_OP_add, p->whole.out0, NULL, y, in.x);
    else if (beta != 0) cc_parts_add(p, CC_OP_add, p->whole.out0, NULL, y, in.x, in.beta);
    return true;
}

/* ------------------------------------------------------------------ products of one column */

/* Reads a product as a linear; the caller accounts for the transposed weight. */
static bool read_product(const CcGraph *g, const CcNode *n, CcIn_linear *in) {
    CcIn_matmul plain;
    if (n->op == CC_OP_linear) return cc_in_linear(g, n, in);
    if ((n->op != CC_OP_matmul && n->op != CC_OP_mm && n->op != CC_OP_bmm) || !cc_in_matmul(g, n, &plain)) return false;
    *in = (CcIn_linear){.x = plain.a, .weight = plain.b, .bias = none()};
    return true;
}

/* oneDNN is slow for a single column, and a dot's loop fuses with its neighbours. After a softmax it may be
 * attention, which a later pass finds. */
static bool has_one_column(const CcGraph *g, const CcNode *n) {
    CcIn_linear in;
    if (!read_product(g, n, &in)) return false;
    const int def = g->val.at[in.x.value].def;
    if (def >= 0 && g->node.at[def].op == CC_OP_softmax) return false;
    const CcType *x = &g->val.at[in.x.value].type, *w = &g->val.at[in.weight.value].type;
    const int column = n->op == CC_OP_linear ? w->ndim - 2 : w->ndim - 1;
    return x->ndim > 1 && x->size[x->ndim - 2] > 1 && (w->ndim == 1 || (w->ndim > 1 && w->size[column] == 1));
}

/* a [.., rows, k], b [.., k, 1] or [k]; for linear [1, k] or [k], and a one-element bias. */
static bool one_column(Sum *s, const CcIn_linear *in) {
    enum { OVER = CC_MAX_DIMS, COLUMN };
    Parts *p = s->p;
    const bool linear = p->whole.op == CC_OP_linear, biased = in->bias.kind == CC_IN_VALUE;
    const CcType out = type_of(p, value_of(s->out));
    const int x = type_of(p, in->x).ndim, w = type_of(p, in->weight).ndim, y = out.ndim, rows = y - (w > 1 ? 2 : 1);
    int of_x[CC_MAX_DIMS], of_w[CC_MAX_DIMS], of_y[CC_MAX_DIMS];
    for (int d = 0; d < x; d++) of_x[d] = d == x - 1 ? OVER : x - 2 - d;
    for (int d = 0; d < w; d++) of_w[d] = d < w - 2 ? w - 2 - d : (d == w - 1) == (linear || w == 1) ? OVER : COLUMN;
    for (int d = 0; d < y; d++) of_y[d] = d > rows ? COLUMN : rows - d;
    if (biased) {
        if ((out.dtype != CC_DT_F32 && out.dtype != CC_DT_F64) || type_of(p, in->bias).dtype != out.dtype) return false;
        make_apart(s);
    }
    s->n = 2;
    if (!name_dims(s, &s->term[0], in->x.value, of_x, x) || !name_dims(s, &s->term[1], in->weight.value, of_w, w) ||
        !name_result(s, of_y, y) || !alike(s) || !all_steps(s))
        return false;
    if (biased) cc_parts_add(p, CC_OP_add, p->whole.out0, NULL, value_of(s->out), in->bias);
    return true;
}

/* ------------------------------------------------------------------ the pass */

static bool name_terms(Sum *s) {
    switch (s->p->whole.op) {
    case CC_OP_einsum:
    case CC_OP_einsum_one: return einsum(s);
    case CC_OP_tensordot: return tensordot(s);
    case CC_OP_inner: return inner(s);
    case CC_OP_multi_dot: return multi_dot(s);
    default: return false;
    }
}

bool cc_contract_is_view(const CcGraph *g, const CcNode *n) {
    Parts p = {.g = (CcGraph *)g, .whole = *n};
    Sum s = {.p = &p, .out = n->out0};
    int labels = 0;
    if (!einsum(&s) || s.n != 1) return false;
    for (int i = 0; i < MAX_LABELS; i++) labels += s.size[i] > 0;
    return labels == g->val.at[n->out0].type.ndim; /* no label is summed over */
}

bool cc_contract_read(const CcGraph *g, const CcNode *n, CcNamedSum *out) {
    Parts p = {.g = (CcGraph *)g, .whole = *n};
    Sum s = {.p = &p, .out = n->out0};
    if (n->n_out != 1 || !name_terms(&s)) return false;
    out->n = s.n;
    for (int i = 0; i <= s.n; i++) {
        const Term *t = i < s.n ? &s.term[i] : &s.result;
        out->value[i] = t->value;
        memcpy(out->label[i], t->label, sizeof t->label);
    }
    return true;
}

static bool make(Parts *p) {
    Sum s = {.p = p, .out = p->whole.out0};
    for (int i = 0; i < CC_COUNT(SCALED); i++)
        if (SCALED[i].op == p->whole.op) return p->needed[0] && p->whole.n_out == 1 && scaled(&s, i);
    CcIn_linear in;
    if (read_product(p->g, &p->whole, &in)) return p->needed[0] && one_column(&s, &in);
    if (!p->needed[0] || p->whole.n_out != 1 || !name_terms(&s) || !alike(&s)) return false;
    if (s.n == 1 && s.term[0].n <= s.result.n) return false; /* a view */
    return all_steps(&s) && p->n > 0;
}

static bool may_be(const CcGraph *g, const CcNode *n, const CcGroupRules *rules) {
    switch (n->op) {
    case CC_OP_addmm: return !cc_group_takes(g, (int)(n - g->node.at), rules); /* not a linear with x as its bias */
    case CC_OP_einsum:
    case CC_OP_einsum_one:
    case CC_OP_tensordot:
    case CC_OP_inner:
    case CC_OP_multi_dot:
    case CC_OP_addmm_by:
    case CC_OP_baddbmm:
    case CC_OP_addbmm:
    case CC_OP_addmv:
    case CC_OP_addr: return true;
    default: return !rules->gathers && has_one_column(g, n);
    }
}

void cc_contract_rewrite(CcGraph *g, const CcGroupRules *rules) {
    cc_parts_rewrite(g, rules, &(PartsRules){may_be, make, NULL, NULL});
}
