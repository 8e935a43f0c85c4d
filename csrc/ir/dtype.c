/* dtype: facts about element types and tensor types. Pure functions, no state. */
#include "ir.h"

static const CcDtypeInfo TABLE[] = {
#define CC_DTYPE(id, name, torch, size, kind, code, bits) {name, torch, size, kind, code, bits},
#include "dtype.def"
#undef CC_DTYPE
};

const CcDtypeInfo *cc_dtype_info(CcDtype dt) {
    return &TABLE[(unsigned)dt < CC_DT_COUNT ? dt : CC_DT_OTHER];
}

CcDtype cc_dtype_from_dl(int code, int bits) {
    for (int i = 1; i < CC_DT_COUNT; i++)
        if (TABLE[i].dl_code == code && TABLE[i].dl_bits == bits) return (CcDtype)i;
    return CC_DT_OTHER;
}

int64_t cc_type_numel(const CcType *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

bool cc_type_contiguous(const CcType *t) {
    if (t->ndim < 0) return false;
    if (cc_type_numel(t) == 0) return true;
    int64_t expect = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->size[i] == 1) continue;
        if (t->stride[i] != expect) return false;
        expect *= t->size[i];
    }
    return true;
}

bool cc_type_same_shape(const CcType *a, const CcType *b) {
    if (a->ndim != b->ndim || a->ndim < 0) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->size[i] != b->size[i]) return false;
    return true;
}

bool cc_type_same_layout(const CcType *a, const CcType *b) {
    return cc_type_same_shape(a, b) && memcmp(a->stride, b->stride, sizeof *a->stride * (size_t)a->ndim) == 0;
}

void cc_type_make_contiguous(CcType *t) {
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->stride[d] = stride;
        stride *= CC_MAX(1, t->size[d]);
    }
}

bool cc_type_dense(const CcType *t) {
    if (t->ndim < 0) return false;
    if (cc_type_numel(t) == 0) return true;
    /* Walk the dims from the smallest stride up: each must begin where the ones below end. */
    bool done[CC_MAX_DIMS] = {false};
    int64_t expect = 1;
    for (int k = 0; k < t->ndim; k++) {
        int next = -1;
        for (int i = 0; i < t->ndim; i++)
            if (!done[i] && t->size[i] != 1 && t->stride[i] == expect) next = i;
        if (next < 0) break;
        done[next] = true;
        expect *= t->size[next];
    }
    return expect == cc_type_numel(t);
}
