/* dtype: facts about element types and tensor types. Pure functions, no state. */
#include "ir.h"

static const CcDtypeInfo TABLE[] = {
#define CC_DTYPE(id, name, torch, size, kind, code, bits) {name, torch, size, kind, code, bits},
#include "dtype.def"
#undef CC_DTYPE
};

const CcDtypeInfo *cc_dtype_info(CcDtype dt) { return &TABLE[(unsigned)dt < CC_DT_COUNT ? dt : CC_DT_OTHER]; }

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

void cc_type_make_channels_last(CcType *t) {
    int64_t stride = t->size[1];
    t->stride[1] = 1;
    for (int d = t->ndim - 1; d > 1; stride *= t->size[d--]) t->stride[d] = stride;
    t->stride[0] = stride;
}

void cc_type_make_contiguous(CcType *t) {
    int64_t stride = 1;
    for (int d = t->ndim - 1; d >= 0; d--) {
        t->stride[d] = stride;
        stride *= CC_MAX(1, t->size[d]);
    }
}

CcType cc_type_with_dim(const CcType *t, int dim) {
    CcType out = *t;
    for (int d = out.ndim++; d > dim; d--) {
        out.size[d] = t->size[d - 1];
        out.stride[d] = t->stride[d - 1];
    }
    out.size[dim] = 1;
    out.stride[dim] = 0;
    return out;
}

CcType cc_type_without_dim(const CcType *t, int dim) {
    CcType out = *t;
    out.ndim--;
    for (int d = dim; d < out.ndim; d++) {
        out.size[d] = t->size[d + 1];
        out.stride[d] = t->stride[d + 1];
    }
    return out;
}

CcType cc_type_swapped(const CcType *t, int a, int b) {
    CcType out = *t;
    out.size[a] = t->size[b];
    out.stride[a] = t->stride[b];
    out.size[b] = t->size[a];
    out.stride[b] = t->stride[a];
    return out;
}

int64_t cc_type_extent(const CcType *t) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) {
        if (t->size[d] == 0) return 0;
        n += (t->size[d] - 1) * (t->stride[d] < 0 ? -t->stride[d] : t->stride[d]);
    }
    return n;
}

bool cc_type_repeats(const CcType *t) {
    for (int d = 0; d < t->ndim; d++)
        if (t->stride[d] == 0 && t->size[d] > 1) return true;
    return false;
}

bool cc_type_dense(const CcType *t) {
    if (t->ndim < 0) return false;
    if (cc_type_numel(t) == 0) return true;
    /* Walk the dims from the smallest stride up: each must start where the dims below end. */
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

/* ------------------------------------------------------------------ bfloat16 and float16 */

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float cc_dtype_widen(CcDtype half, uint16_t h) {
    if (half == CC_DT_BF16) return float_of((uint32_t)h << 16);
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | rest << 13);
    const float size = rest < 0x400 ? (float)rest * 0x1p-24f : float_of((rest << 13) + (112u << 23));
    return float_of(sign | bits_of(size));
}

uint16_t cc_dtype_narrow(CcDtype half, float f) {
    const uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (half == CC_DT_BF16) return f != f ? 0x7fc0 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (size >= 0x47800000) return (uint16_t)(sign | 0x7c00);
    /* Subnormal result: adding 0.5 leaves the rounded result in the lowest bits. */
    if (size < 0x38800000) return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));
    return (uint16_t)(sign | ((size + 0xfff + (size >> 13 & 1)) - (112u << 23)) >> 13);
}

bool cc_type_reshapes(const CcType *from, const CcType *to) {
    int64_t chunk = 1, taken = 1;
    int v = to->ndim - 1;
    if (cc_type_numel(from) == 0 || from->ndim == 0) return true; /* there is no other element to misplace */
    int64_t base = from->stride[from->ndim - 1];
    for (int d = from->ndim - 1; d >= 0; d--) {
        chunk *= from->size[d];
        if (d > 0 && (from->size[d - 1] == 1 || from->stride[d - 1] == chunk * base)) continue;
        for (; v >= 0 && (taken < chunk || to->size[v] == 1); v--) {
            if (to->stride[v] != taken * base && to->size[v] != 1) return false;
            taken *= to->size[v];
        }
        if (taken != chunk) return false;
        if (d > 0) base = from->stride[d - 1];
        chunk = taken = 1;
    }
    return v == -1;
}
