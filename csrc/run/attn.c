/* attn: runs attention nodes with the fused kernel (dev/flash.c): F.scaled_dot_product_attention, and spelled-out
 * attention that pass/attend.c found, including dropout in eval mode. Reads operands through their strides. */
#include <math.h>

#include "run_int.h"

typedef struct CcAttention {
    CcFlash flash;
    CcSlot in[4], out; /* in: q, k, v, mask */
} CcAttention;

enum { Q, K, V, MASK };

static bool readable(const CcType *t) {
    const bool known = t->dtype == CC_DT_F32 || cc_dtype_is_half(t->dtype);
    if (t->ndim < 1 || t->ndim > CC_MAX_DIMS || t->device != 1 || !known) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->size[d] <= 0 || t->stride[d] < 0) return false;
    return true;
}

static bool insert_dim(CcType *t, int at, int64_t size, int64_t stride) {
    if (t->ndim == CC_MAX_DIMS) return false;
    for (int i = t->ndim++; i > at; i--) {
        t->size[i] = t->size[i - 1];
        t->stride[i] = t->stride[i - 1];
    }
    t->size[at] = size;
    t->stride[at] = stride;
    return true;
}

/* Several query heads share keys and values: [.., heads, x, y] becomes [.., heads / group, group, x, y], and the
 * shared operand is broadcast along `group`. */
static bool group_heads(CcType *t, int64_t group, bool shared) {
    const int h = t->ndim - 3;
    if (h < 0) return true; /* broadcast */
    if (shared || t->size[h] == 1) return insert_dim(t, h + 1, shared ? group : 1, 0);
    if (t->size[h] % group) return false;
    const int64_t stride = t->stride[h];
    t->size[h] /= group;
    t->stride[h] *= group;
    return insert_dim(t, h + 1, group, stride);
}

static bool widen(CcFlash *f, const CcType *t) { /* f->lead by broadcasting */
    const int n = t->ndim - 2;
    if (n > CC_FLASH_MAX_LEAD) return false;
    while (f->n_lead < n) {
        memmove(f->lead + 1, f->lead, sizeof *f->lead * (size_t)f->n_lead++);
        f->lead[0] = 1;
    }
    for (int i = 0; i < n; i++) {
        int64_t *size = &f->lead[f->n_lead - n + i];
        if (t->size[i] != 1 && *size != 1 && *size != t->size[i]) return false;
        *size = CC_MAX(*size, t->size[i]);
    }
    return true;
}

static int64_t step(const CcType *t, int d) { return t->size[d] == 1 ? 0 : t->stride[d]; }

static void stride_of(const CcFlash *f, const CcType *t, CcStrided *s) {
    const int n = t->ndim - 2, skip = f->n_lead - n;
    for (int i = 0; i < f->n_lead; i++) s->lead[i] = i < skip ? 0 : step(t, i - skip);
    s->dtype = (CcDtype)t->dtype;
    s->row = step(t, n);
    s->col = step(t, n + 1);
}

/* A single row of several heads that share keys and values counts as several rows of one head, so keys and values
 * are read once. */
static void share_rows(CcFlash *f) {
    const int last = f->n_lead - 1;
    if (f->rows != 1 || f->causal || last < 0 || f->k.lead[last] || f->v.lead[last]) return;
    CcStrided *const strided[] = {&f->q, &f->mask, &f->out};
    for (int i = 0; i < CC_COUNT(strided); i++) strided[i]->row = strided[i]->lead[last];
    f->rows = f->lead[last];
    f->n_lead--;
}

/* Sizes and strides of the operands; *out is the result's type with rows and columns as the last dims. */
static bool shape(CcFlash *f, CcType t[4], CcType *out, bool grouped) {
    const bool mask = f->mask_kind != CC_FLASH_NO_MASK;
    while (mask && t[MASK].ndim < 2)
        if (!insert_dim(&t[MASK], 0, 1, 0)) return false;
    for (int i = Q; i <= V; i++)
        if (t[i].ndim < 2) return false;
    const int64_t heads = t[Q].ndim > 2 ? t[Q].size[t[Q].ndim - 3] : 1,
                  kept = t[K].ndim > 2 ? t[K].size[t[K].ndim - 3] : 1;
    if (grouped && heads != kept) {
        if (t[K].ndim < 3 || t[V].ndim < 3 || t[V].size[t[V].ndim - 3] != kept || heads % kept) return false;
        for (int i = Q; i <= (mask ? MASK : V); i++)
            if (!group_heads(&t[i], heads / kept, i == K || i == V)) return false;
        if (!group_heads(out, heads / kept, false)) return false;
    }
    const CcType *q = &t[Q], *k = &t[K], *v = &t[V], *m = &t[MASK];
    f->rows = q->size[q->ndim - 2];
    f->depth = q->size[q->ndim - 1];
    f->keys = k->size[k->ndim - 2];
    f->width = v->size[v->ndim - 1];
    for (int i = Q; i <= (mask ? MASK : V); i++)
        if (!widen(f, &t[i])) return false;
    if (k->size[k->ndim - 1] != f->depth || v->size[v->ndim - 2] != f->keys || f->depth > CC_FLASH_MAX_DEPTH)
        return false;
    if (mask && ((m->size[m->ndim - 2] != 1 && m->size[m->ndim - 2] != f->rows) ||
                 (m->size[m->ndim - 1] != 1 && m->size[m->ndim - 1] != f->keys)))
        return false;
    if (out->ndim != f->n_lead + 2 || out->size[out->ndim - 2] != f->rows || out->size[out->ndim - 1] != f->width ||
        (f->width > 1 && out->stride[out->ndim - 1] != 1))
        return false;
    for (int i = 0; i < f->n_lead; i++)
        if (out->size[i] != f->lead[i]) return false;
    CcStrided *strided[] = {&f->q, &f->k, &f->v, &f->mask};
    for (int i = Q; i <= (mask ? MASK : V); i++) stride_of(f, &t[i], strided[i]);
    stride_of(f, out, &f->out);
    f->out.col = 1;
    share_rows(f);
    return true;
}

/* The result of a spelled-out attention as [.., heads, rows, width]. `merged` counts the dims that hold heads, rows
 * and columns: 0 unchanged, 1 [heads * width] of a single row, 2 [rows, heads * width], 3 [rows, heads, width]. The
 * result must be contiguous for 1 to 3. */
static bool part_heads(CcType *t, int64_t heads, int merged) {
    if (!merged) return true;
    if (t->ndim < merged || !cc_type_contiguous(t) || heads < 1) return false;
    if (merged == 1 && !insert_dim(t, t->ndim - 1, 1, t->size[t->ndim - 1])) return false;
    if (merged <= 2) {
        const int c = t->ndim - 1;
        const int64_t width = t->size[c] / heads;
        if (t->size[c] % heads) return false;
        t->size[c] = heads;
        t->stride[c] = width;
        if (!insert_dim(t, c + 1, width, 1)) return false;
    }
    const int h = t->ndim - 2, r = t->ndim - 3;
    *t = cc_type_swapped(t, h, r);
    return t->size[r] == heads;
}

static bool number(const CcOperand *o, float *x) {
    if (o->kind != CC_IN_INT && o->kind != CC_IN_FLOAT && o->kind != CC_IN_BOOL) return false;
    *x = o->kind == CC_IN_FLOAT ? (float)o->f : (float)o->i;
    return true;
}

/* F.scaled_dot_product_attention. mask: its dtype. */
static bool read_whole(const CcIn_attention *in, CcDtype mask, const CcType *q, CcFlash *f) {
    const bool masked = in->mask.kind == CC_IN_VALUE;
    f->causal = in->is_causal.i != 0;
    f->masked_row = 0;
    if (masked) f->mask_kind = mask == CC_DT_BOOL ? CC_FLASH_KEEP : CC_FLASH_ADD;
    if (in->is_causal.kind != CC_IN_BOOL && in->is_causal.kind != CC_IN_INT) return false;
    if (in->enable_gqa.kind != CC_IN_BOOL && in->enable_gqa.kind != CC_IN_INT) return false;
    if (in->scale.kind == CC_IN_NONE) f->scale = (float)(1 / sqrt((double)q->size[q->ndim - 1]));
    else if (!number(&in->scale, &f->scale)) return false;
    /* eager fills with -inf before it scales, which then gives NaN */
    return !f->causal || (!masked && f->scale > 0);
}

/* Spelled-out attention: `fill` replaces the scores that a mask of bools selects. */
static bool read_written(const CcIn_attend *in, CcDtype mask, CcFlash *f) {
    f->masked_row = NAN;
    if (!number(&in->scale, &f->scale)) return false;
    if (in->mask.kind != CC_IN_VALUE) return true;
    f->mask_kind = mask == CC_DT_BOOL ? CC_FLASH_FILL : CC_FLASH_ADD;
    return mask == CC_DT_BOOL ? number(&in->fill, &f->fill) : in->fill.kind == CC_IN_NONE;
}

/* Types of q, k, v and the mask; a missing one has value -1. */
static bool read_tensors(const CcGraph *g, const CcOperand *const *in, CcAttention *a, CcType *t) {
    for (int i = Q; i <= MASK; i++) {
        a->in[i].value = in[i]->kind == CC_IN_VALUE ? in[i]->value : -1;
        if (a->in[i].value < 0) continue;
        t[i] = g->val.at[a->in[i].value].type;
        CcType seen = t[i];
        if (i == MASK && seen.dtype == CC_DT_BOOL) seen.dtype = CC_DT_F32;
        if (!readable(&seen)) return false;
    }
    return true;
}

static bool describe(const CcGraph *g, int node, CcAttention *a) {
    const CcNode *n = &g->node.at[node];
    const bool whole = n->op == CC_OP_attention;
    CcIn_attention op;
    CcIn_attend written;
    if (n->n_out != 1 || !(whole ? cc_in_attention(g, n, &op) : n->op == CC_OP_attend && cc_in_attend(g, n, &written)))
        return false;
    const CcOperand *const in[] = {whole ? &op.q : &written.q, whole ? &op.k : &written.k, whole ? &op.v : &written.v,
                                   whole ? &op.mask : &written.mask};
    CcType t[4], out = g->val.at[n->out0].type;
    *a = (CcAttention){.out = {n->out0, 0}};
    if (!readable(&out) || !read_tensors(g, in, a, t)) return false;
    const CcDtype mask = a->in[MASK].value < 0 ? CC_DT_OTHER : (CcDtype)t[MASK].dtype;
    if (whole) return read_whole(&op, mask, &t[Q], &a->flash) && shape(&a->flash, t, &out, op.enable_gqa.i != 0);
    if (!read_written(&written, mask, &a->flash)) return false;
    if (written.merged.i == 1) { /* pass/narrow.c dropped the dim of rows */
        if (!insert_dim(&t[Q], t[Q].ndim - 1, 1, 0)) return false;
        if (a->in[MASK].value >= 0 && !insert_dim(&t[MASK], t[MASK].ndim - 1, 1, 0)) return false;
    }
    const int64_t heads = t[Q].ndim > 2 ? t[Q].size[t[Q].ndim - 3] : 1;
    return part_heads(&out, heads, (int)written.merged.i) && shape(&a->flash, t, &out, false);
}

static bool can(const CcGraph *g, int node) {
    CcAttention a;
    return describe(g, node, &a);
}

static void *build(const CcGraph *g, const int *chain, int n, CcArena *arena, CcErr *err) {
    CcAttention *a = cc_arena_alloc(arena, sizeof *a);
    if (!a || n != 1 || !describe(g, chain[0], a)) {
        cc_err_set(err, CC_E_UNSUPPORTED, "attention that the fused kernel can't do");
        return NULL;
    }
    for (int i = Q; i <= MASK; i++) cc_prim_settle(g, &a->in[i]);
    cc_prim_settle(g, &a->out);
    return a;
}

static int run(const void *work, const CcHost *host, CcErr *err) {
    const CcAttention *a = work;
    const char *at[4] = {NULL};
    for (int i = Q; i <= MASK; i++) {
        at[i] = cc_prim_data(host, a->in[i]);
        if (!at[i] && a->in[i].value >= 0) return cc_err_set(err, CC_E_HOST, "no data of value %d", a->in[i].value);
    }
    char *out = host->make(host->ctx, a->out.value);
    if (!out) return cc_err_set(err, CC_E_HOST, "no memory for value %d", a->out.value);
    const CcFlashCall call = {at[Q], at[K], at[V], at[MASK], out + a->out.at};
    return cc_flash_run(&a->flash, &call, err);
}

const CcPrimFamily CC_ATTENTIONS = {.name = "attention", .can = can, .build = build, .run = run};
