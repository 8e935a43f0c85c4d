/* sums: the backward of sums of products over named dims (einsum, tensordot, multi_dot). For an operand it is a sum of
 * products, too, where the gradient stands in for the operand, and the operand for the result:
 *
 *   y = einsum("bij,bjk->bik", a, b)   ->   da = einsum("bik,bjk->bij", g, b)    db = einsum("bij,bik->bjk", a, g) */
#include "../pass/pass.h"
#include "grad_int.h"

enum { MOST_LETTERS = 52, MOST_DIMS = (CC_TERMS_MAX + 1) * CC_MAX_DIMS };

/* Labels as letters. */
typedef struct Letters {
    int n, label[MOST_DIMS];
} Letters;

static int letter_of(Letters *l, int label) {
    int i = 0;
    while (i < l->n && l->label[i] != label) i++;
    if (i == l->n) l->label[l->n++] = label;
    return i < MOST_LETTERS / 2 ? 'a' + i : 'A' + i - MOST_LETTERS / 2;
}

static bool has_label(const CcNamedSum *s, const Adjoint *a, int term, int label) {
    for (int d = 0; d < type_of(a, s->value[term])->ndim; d++)
        if (s->label[term][d] == label) return true;
    return false;
}

/* A diagonal of the operand is the result's. */
static bool repeats(const CcNamedSum *s, const Adjoint *a, int term) {
    for (int d = 0; d < type_of(a, s->value[term])->ndim; d++)
        for (int e = 0; e < d; e++)
            if (s->label[term][e] == s->label[term][d]) return true;
    return false;
}

/* Is the dim one of the gradient's sum? Others are broadcast to, or from, the operand. */
static bool is_summed_into(const CcNamedSum *s, const Adjoint *a, int term, int d) {
    bool any = false;
    if (type_of(a, s->value[term])->size[d] == 1) return false;
    for (int i = 0; i <= s->n; i++) any = any || (i != term && has_label(s, a, i, s->label[term][d]));
    return any;
}

static CcOperand letter(Letters *l, int label) { return int_of(letter_of(l, label)); }

/* s->value[s->n] is the gradient. -> that of one operand, in the dims that the sum has */
static int grad_of(Adjoint *a, const CcNamedSum *s, int term) {
    Letters letters = {0};
    CC_VEC(CcOperand) in = {0};
    const CcType x = cc_adjoint_dense(type_of(a, s->value[term]));
    CcType t = x;
    for (int i = 0; i <= s->n; i++)
        if (i != term) cc_vec_push(&in, value_of(s->value[i]));
    for (int i = 0, k = 0; i <= s->n; i++) {
        if (i == term) continue;
        if (k++ > 0) cc_vec_push(&in, int_of(','));
        for (int d = 0; d < type_of(a, s->value[i])->ndim; d++) cc_vec_push(&in, letter(&letters, s->label[i][d]));
    }
    cc_vec_push(&in, int_of('-'));
    cc_vec_push(&in, int_of('>'));
    t.ndim = 0;
    for (int d = 0; d < x.ndim; d++) {
        if (!is_summed_into(s, a, term, d)) continue;
        t.size[t.ndim++] = x.size[d];
        cc_vec_push(&in, letter(&letters, s->label[term][d]));
    }
    cc_type_make_contiguous(&t);
    const int r = letters.n <= MOST_LETTERS ? cc_adjoint_in(a, CC_OP_einsum, &t, in.at, in.n) : -1;
    cc_vec_free(&in);
    return r;
}

/* The same for a sum of one operand: nothing is multiplied, and dims are moved. */
static int moved(Adjoint *a, const CcNamedSum *s) {
    const CcType x = cc_adjoint_dense(type_of(a, s->value[0]));
    CcType all = cc_adjoint_dense(type_of(a, s->value[1]));
    int from[CC_MAX_DIMS];
    const int own = all.ndim;
    for (int d = 0; d < x.ndim; d++) {
        from[d] = -1;
        for (int e = 0; e < own; e++)
            if (s->label[1][e] == s->label[0][d]) from[d] = e;
        if (from[d] >= 0) continue;
        from[d] = all.ndim;
        all.size[all.ndim++] = 1;
    }
    if (all.ndim != x.ndim) return -1;
    cc_type_make_contiguous(&all);
    const int g = cc_adjoint_reshaped(a, s->value[1], &all);
    CcType t = *type_of(a, g);
    all = t;
    for (int d = 0; d < x.ndim; d++) {
        t.size[d] = all.size[from[d]];
        t.stride[d] = all.stride[from[d]];
    }
    return make(a, permute, &t, .x = value_of(g));
}

static bool operand(Adjoint *a, const CcNamedSum *s, int term) {
    const CcType x = cc_adjoint_dense(type_of(a, s->value[term]));
    CcType kept = x;
    if (repeats(s, a, term)) return false;
    const int g = s->n == 1 ? moved(a, s) : grad_of(a, s, term);
    if (g < 0) return false;
    for (int d = 0; d < x.ndim; d++)
        if (!is_summed_into(s, a, term, d)) kept.size[d] = 1;
    cc_type_make_contiguous(&kept);
    const int r = cc_adjoint_reshaped(a, g, &kept);
    cc_adjoint_add(a, s->value[term], cc_type_same_shape(&kept, &x) ? r : cc_adjoint_expanded(a, r, &x));
    return true;
}

bool cc_sums_apply(Adjoint *a, const CcNode *n) {
    CcNamedSum s;
    if (!cc_contract_read(a->g, n, &s)) return false;
    s.value[s.n] = a->grad[n->out0];
    for (int i = 0; i < s.n; i++)
        if (type_of(a, s.value[i])->dtype != type_of(a, s.value[s.n])->dtype) return false;
    for (int i = 0; i < s.n; i++)
        if (a->wanted[s.value[i]] && !operand(a, &s, i)) return false;
    return true;
}
