/* halves: converts bf16 and f16 to f32 and back, for kernels that compute in f32. Rounds as ir/dtype.c does
 * (lanes.inc). */
#include <immintrin.h>

#include "dev.h"

typedef struct Halves { /* convert n contiguous elements; brain: bf16, else f16 */
    void (*widen)(const uint16_t *from, float *to, int64_t n, bool brain),
        (*narrow)(const float *from, uint16_t *to, int64_t n, bool brain);
} Halves;

#define LANES 16
#include "halves.inc"
#define LANES 8
#include "halves.inc"

static const Halves *best(void) {
    static const Halves avx512 = {widen_avx512, narrow_avx512}, avx2 = {widen_avx2, narrow_avx2};
    const int bytes = cc_cpu_info()->vector_bytes;
    return bytes == 64 ? &avx512 : bytes == 32 ? &avx2 : NULL;
}

void cc_halves_widen(CcDtype dtype, const void *from, float *to, int64_t n) {
    const Halves *by = best();
    const uint16_t *half = from;
    if (dtype == CC_DT_F32) {
        memcpy(to, from, sizeof *to * (size_t)n);
        return;
    }
    if (by) by->widen(half, to, n, dtype == CC_DT_BF16);
    for (int64_t i = 0; i < n && !by; i++) to[i] = cc_dtype_widen(dtype, half[i]);
}

void cc_halves_narrow(CcDtype dtype, const float *from, void *to, int64_t n) {
    const Halves *by = best();
    uint16_t *half = to;
    if (dtype == CC_DT_F32) {
        memcpy(to, from, sizeof *from * (size_t)n);
        return;
    }
    if (by) by->narrow(from, half, n, dtype == CC_DT_BF16);
    for (int64_t i = 0; i < n && !by; i++) half[i] = cc_dtype_narrow(dtype, from[i]);
}

void cc_halves_gather(CcDtype dtype, const void *from, int64_t step, float *to, int64_t n) {
    if (step == 1) {
        cc_halves_widen(dtype, from, to, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = dtype == CC_DT_F32 ? ((const float *)from)[i * step]
                                   : cc_dtype_widen(dtype, ((const uint16_t *)from)[i * step]);
}
