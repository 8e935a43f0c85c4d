/* mersenne: torch's random numbers on the CPU, many at once: the 32-bit Mersenne Twister (Matsumoto and Nishimura 1998) as
 * at::mt19937 has it, and Tensor.bernoulli_(p) on top of it, bit for bit.
 *
 * torch draws one number at a time, 5.9 ns an element; all but a few instructions of the recurrence and of the tempering
 * work on whole vectors, 0.5 ns with AVX-512 (Zen 4). */
#include <math.h>

#include "dev.h"

enum { WORDS = 624, APART = 397 };

#define INLINE inline __attribute__((always_inline))

static INLINE uint32_t twist(uint32_t u, uint32_t v) {
    return (((u & 0x80000000U) | (v & 0x7fffffffU)) >> 1) ^ ((uint32_t)-(int32_t)(v & 1) & 0x9908b0dfU);
}

static INLINE void next_block(uint32_t *restrict s) {
    for (int i = 0; i < WORDS - APART; i++) s[i] = s[i + APART] ^ twist(s[i], s[i + 1]);
    for (int i = WORDS - APART; i < WORDS - 1; i++) s[i] = s[i + APART - WORDS] ^ twist(s[i], s[i + 1]);
    s[WORDS - 1] = s[APART - 1] ^ twist(s[WORDS - 1], s[0]);
}

static INLINE void temper(const uint32_t *restrict s, uint32_t *restrict out, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t y = s[i];
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c5680U;
        y ^= (y << 15) & 0xefc60000U;
        out[i] = y ^ (y >> 18);
    }
}

/* A pair of words makes a number of 53 bits: the high half comes first. */
static INLINE void compare(const uint32_t *restrict words, int64_t below, uint8_t *restrict out, int n) {
    for (int i = 0; i < n; i++) {
        uint64_t w;
        memcpy(&w, words + 2 * i, sizeof w);
        out[i] = (int64_t)((w << 32 | w >> 32) & ((UINT64_C(1) << 53) - 1)) < below;
    }
}

/* `words` holds the tempered rest of a block, behind the word that the previous block left over. */
static INLINE int draw(uint32_t *restrict state, int left, int64_t below, uint8_t *restrict out, int64_t n) {
    uint32_t words[WORDS + 1];
    int over = 0; /* words left over: 0 or 1 */
    while (n > 0) {
        if (left == 1) {
            next_block(state);
            left = WORDS + 1;
        }
        const int have = left - 1, now = (int)CC_MIN(n, (over + have) / 2);
        temper(state + WORDS - have, words + over, have);
        compare(words, below, out, now);
        out += now;
        n -= now;
        left -= 2 * now - over;
        if (n == 0) break;
        words[0] = words[over + have - 1];
        over = left - 1;
        left = 1;
    }
    return left;
}

/* GCC's -O2 vectorises hardly any loop. */
#define DRAW(name, TARGET)                                                                                             \
    __attribute__((optimize("O3"))) TARGET static int name(uint32_t *state, int left, int64_t below, uint8_t *out,     \
                                                           int64_t n) {                                                \
        return draw(state, left, below, out, n);                                                                       \
    }
DRAW(draw_base, )
DRAW(draw_avx2, __attribute__((target("avx2"))))
DRAW(draw_avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))))

int cc_mersenne_bernoulli(uint32_t *state, int left, double p, uint8_t *out, int64_t n) {
    /* torch compares x / 2^53 with p; scaled by 2^53, p is exact */
    const int64_t below = (int64_t)ceil(ldexp(p, 53));
    const int bytes = cc_cpu_info()->vector_bytes;
    return (bytes >= 64 ? draw_avx512 : bytes >= 32 ? draw_avx2 : draw_base)(state, left, below, out, n);
}
