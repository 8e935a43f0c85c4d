/* nest: the loops around a body. Dims of size 1 go; the others are sorted so that the first store
 * runs through memory in order; neighbours that every access steps through as one are merged. What
 * is left innermost becomes the vector loop. */
#include "loop.h"

int64_t cc_nest_numel(const CcLoop *loop) {
    int64_t n = 1;
    for (int d = 0; d < loop->ndim; d++) n *= loop->size[d];
    return n;
}

/* Bytes from one element to the next along dim d of the shape; a dim that is broadcast does not
 * move. */
static int64_t stride_of(const CcType *t, const CcType *shape, int d) {
    const int own = d - (shape->ndim - t->ndim);
    if (own < 0 || t->size[own] == 1) return 0;
    return t->stride[own] * cc_dtype_info((CcDtype)t->dtype)->size;
}

static const CcType *type_of(const CcLoop *loop, const CcGraph *g, int access) {
    return &g->val.at[loop->access[access].value].type;
}

int cc_nest_build(CcLoop *loop, const CcGraph *g, const CcType *shape, CcArena *arena) {
    loop->stride = cc_arena_alloc(arena, sizeof *loop->stride * (size_t)loop->n_access);
    if (!loop->stride) return -1;
    int order[CC_MAX_DIMS], n = 0, first = 0;
    while (first < loop->n_access - 1 && !loop->access[first].is_store) first++;
    const CcType *lead = type_of(loop, g, first);
    for (int d = 0; d < shape->ndim; d++) {
        if (shape->size[d] == 1) continue;
        int at = n++;
        for (; at > 0 && stride_of(lead, shape, order[at - 1]) < stride_of(lead, shape, d); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    loop->ndim = 0;
    for (int k = 0; k < n; k++) {
        const int64_t size = shape->size[order[k]];
        bool joins = loop->ndim > 0;
        for (int a = 0; joins && a < loop->n_access; a++)
            joins = loop->stride[a][loop->ndim - 1] ==
                    stride_of(type_of(loop, g, a), shape, order[k]) * size;
        if (!joins) loop->size[loop->ndim++] = 1;
        loop->size[loop->ndim - 1] *= size;
        for (int a = 0; a < loop->n_access; a++)
            loop->stride[a][loop->ndim - 1] = stride_of(type_of(loop, g, a), shape, order[k]);
    }
    if (n == 0) loop->size[loop->ndim++] = 1; /* one element */
    for (int a = 0; a < loop->n_access; a++) {
        CcLoopAccess *access = &loop->access[a];
        const int64_t step = loop->stride[a][loop->ndim - 1];
        const int64_t size = cc_dtype_info((CcDtype)access->dtype)->size;
        access->step = n == 0 || step == size ? CC_STEP_ONE
                       : step == 0            ? CC_STEP_ZERO
                                              : CC_STEP_ANY;
    }
    return 0;
}
