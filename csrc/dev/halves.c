/* halves: bfloat16 and float16 from and to f32, for code that computes in f32. Rounds as ir/dtype.c does.
 * The CPU's own instruction for bf16 is not used: it drops denormals. */
#include <immintrin.h>

#include "dev.h"

enum { LANES = 16 };

#define WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")))
#define NARROW __attribute__((target("avx2,fma,f16c")))

WIDE static __m512 widen_avx512(const uint16_t *from, bool brain) {
    const __m256i h = _mm256_loadu_si256((const __m256i *)from);
    return brain ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)) : _mm512_cvtph_ps(h);
}

WIDE static __m256i narrow_avx512(__m512 x, bool brain) {
    if (!brain) return _mm512_cvtps_ph(x, 0);
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(sum, 16), nan, _mm512_set1_epi32(0x7fc0)));
}

NARROW static __m256 widen_avx2(const uint16_t *from, bool brain) {
    const __m128i h = _mm_loadu_si128((const __m128i *)from);
    return brain ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)) : _mm256_cvtph_ps(h);
}

NARROW static __m128i narrow_avx2(__m256 x, bool brain) {
    if (!brain) return _mm256_cvtps_ph(x, 0);
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i r = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_set1_epi32(0x7fc0), _mm256_castps_si256(nan));
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}

/* -> elements done */
WIDE static int64_t widen_all_avx512(const uint16_t *from, float *to, int64_t n, bool brain) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) _mm512_storeu_ps(to + i, widen_avx512(from + i, brain));
    return i;
}

NARROW static int64_t widen_all_avx2(const uint16_t *from, float *to, int64_t n, bool brain) {
    int64_t i = 0;
    for (; i + LANES / 2 <= n; i += LANES / 2) _mm256_storeu_ps(to + i, widen_avx2(from + i, brain));
    return i;
}

WIDE static int64_t narrow_all_avx512(const float *from, uint16_t *to, int64_t n, bool brain) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_si256((__m256i *)(to + i), narrow_avx512(_mm512_loadu_ps(from + i), brain));
    return i;
}

NARROW static int64_t narrow_all_avx2(const float *from, uint16_t *to, int64_t n, bool brain) {
    int64_t i = 0;
    for (; i + LANES / 2 <= n; i += LANES / 2)
        _mm_storeu_si128((__m128i *)(to + i), narrow_avx2(_mm256_loadu_ps(from + i), brain));
    return i;
}

void cc_halves_widen(CcDtype dtype, const void *from, float *to, int64_t n) {
    const int bytes = cc_cpu_info()->vector_bytes;
    const uint16_t *half = from;
    const bool brain = dtype == CC_DT_BF16;
    if (dtype == CC_DT_F32) {
        memcpy(to, from, sizeof *to * (size_t)n);
        return;
    }
    int64_t i = bytes == 64 ? widen_all_avx512(half, to, n, brain) : bytes == 32 ? widen_all_avx2(half, to, n, brain) : 0;
    for (; i < n; i++) to[i] = cc_dtype_widen(dtype, half[i]);
}

void cc_halves_narrow(CcDtype dtype, const float *from, void *to, int64_t n) {
    const int bytes = cc_cpu_info()->vector_bytes;
    uint16_t *half = to;
    const bool brain = dtype == CC_DT_BF16;
    if (dtype == CC_DT_F32) {
        memcpy(to, from, sizeof *from * (size_t)n);
        return;
    }
    int64_t i = bytes == 64 ? narrow_all_avx512(from, half, n, brain) : bytes == 32 ? narrow_all_avx2(from, half, n, brain) : 0;
    for (; i < n; i++) half[i] = cc_dtype_narrow(dtype, from[i]);
}

void cc_halves_gather(CcDtype dtype, const void *from, int64_t step, float *to, int64_t n) {
    if (step == 1) {
        cc_halves_widen(dtype, from, to, n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = dtype == CC_DT_F32 ? ((const float *)from)[i * step] : cc_dtype_widen(dtype, ((const uint16_t *)from)[i * step]);
}
