/* clamp: x = min(max(x, low), high) in place, where NaN stays NaN as in eager's relu and clamp: behind a primitive of oneDNN,
 * whose relu maps NaN to 0. Four lanes suffice, as memory bounds it. */
#include <immintrin.h>

#include "dev.h"

#define LANES 4
#include "lanes.inc"

void cc_clamp(float *at, int64_t n, float low, float high) {
    const V lows = NAME(splat)(low), highs = NAME(splat)(high);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) NAME(store)(at + i, SMALLER(highs, LARGER(lows, NAME(load)(at + i))));
    for (; i < n; i++) {
        const float x = at[i] < low ? low : at[i];
        at[i] = x > high ? high : x;
    }
}

#define LANES_END
#include "lanes.inc"
