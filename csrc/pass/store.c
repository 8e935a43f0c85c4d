/* store: reads what an op writes to elements of a tensor; reach.c reads to which ones. */
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
    if (!cc_in_index_add(g, n, &in) || (in.alpha.kind != CC_IN_INT && in.alpha.kind != CC_IN_FLOAT)) return false;
    s->source = in.source;
    s->how = CC_PUT_SUM;
    s->scale = number_of(&in.alpha);
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
