/* store: reads what an op writes to elements of a tensor; reach.c reads to which ones. Serves the kernels of GPUs
 * (writes.c) and the nests of the CPU (run/scatter.c). */
#include <math.h>

#include "pass_int.h"

static bool read_scatter(const CcGraph *g, const CcNode *n, CcStore *s) {
    CcIn_scatter in;
    if (!cc_in_scatter(g, n, &in) || in.include_self.kind == CC_IN_VALUE || in.how.i < CC_PUT_SET ||
        in.how.i > CC_PUT_MIN)
        return false;
    s->source = in.source;
    s->how = (CcPutHow)in.how.i;
    s->fresh = s->how != CC_PUT_SET && !in.include_self.i;
    return true;
}

static bool read_index_add(const CcGraph *g, const CcNode *n, CcStore *s) {
    CcIn_index_add in;
    const int64_t exact = INT64_C(1) << 53; /* `scale` is a double */
    if (!cc_in_index_add(g, n, &in) || (in.alpha.kind != CC_IN_INT && in.alpha.kind != CC_IN_FLOAT) ||
        (in.alpha.kind == CC_IN_INT && (in.alpha.i > exact || in.alpha.i < -exact)))
        return false;
    s->source = in.source;
    s->how = CC_PUT_SUM;
    s->scale = cc_operand_number(&in.alpha);
    return true;
}

static bool read_index_put(const CcGraph *g, const CcNode *n, CcStore *s) {
    CcIn_index_put in;
    if (!cc_in_index_put(g, n, &in) || in.accumulate.kind == CC_IN_VALUE || in.accumulate.kind == CC_IN_NONE)
        return false;
    s->source = in.value;
    s->how = in.accumulate.i ? CC_PUT_SUM : CC_PUT_SET;
    s->sorted = in.accumulate.i;
    return true;
}

static bool read_put_add(const CcGraph *g, const CcNode *n, CcStore *s) {
    CcIn_put_add in;
    if (!cc_in_put_add(g, n, &in)) return false;
    s->source = in.value;
    s->how = CC_PUT_SUM;
    s->sorted = true;
    return true;
}

bool cc_store_read(const CcGraph *g, const CcNode *n, CcStore *s) {
    *s = (CcStore){.scale = 1, .how = CC_PUT_SET};
    switch (n->op) {
#define SET(op, operand)                                                                                               \
    case CC_OP_##op: {                                                                                                 \
        CcIn_##op in;                                                                                                  \
        if (!cc_in_##op(g, n, &in)) return false;                                                                      \
        s->source = in.operand;                                                                                        \
        return true;                                                                                                   \
    }
        SET(index_copy, source)
        SET(index_fill, value)
        SET(put, value)
        SET(select_scatter, source)
        SET(slice_scatter, source)
        SET(diagonal_scatter, source)
        SET(masked_scatter, source)
#undef SET
    case CC_OP_scatter: return read_scatter(g, n, s);
    case CC_OP_index_add: return read_index_add(g, n, s);
    case CC_OP_index_put: return read_index_put(g, n, s);
    case CC_OP_put_add: return read_put_add(g, n, s);
    default: return false;
    }
}

/* Aligned with the space's dims from the right. scatter's source may be larger than the space, others' are broadcast. */
bool cc_store_steps(const CcGraph *g, const CcNode *n, const CcStore *s, const CcType *space, int64_t *step) {
    const CcType *t = &g->val.at[s->source.value].type;
    const int behind = space->ndim - t->ndim;
    for (int d = 0; d < -behind; d++)
        if (t->size[d] != 1) return false;
    for (int d = CC_MAX(0, behind); d < space->ndim; d++) {
        const int64_t own = t->size[d - behind];
        if (n->op == CC_OP_scatter ? own < space->size[d] : own != 1 && own != space->size[d]) return false;
        step[d] = own == 1 ? 0 : t->stride[d - behind];
    }
    return true;
}

CcOperand cc_store_neutral(CcPutHow how, CcDtype dt) {
    const bool max = how == CC_PUT_MAX, wide = dt == CC_DT_I64;
    if (!max && how != CC_PUT_MIN) return int_of(how == CC_PUT_PROD);
    if (cc_dtype_is_float(dt)) return float_of(max ? -INFINITY : INFINITY);
    return int_of(max ? (wide ? INT64_MIN : INT32_MIN) : wide ? INT64_MAX : INT32_MAX);
}
