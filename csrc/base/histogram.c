/* Histograms of times: buckets of equal width within each power of two of nanoseconds (as in HDR histograms), so that
 * each percentile is known to 1/16. */
#include "base.h"

enum { PARTS = 16, FIRST = 4 }; /* times below 2^FIRST ns have a bucket each */
_Static_assert(PARTS == 1 << FIRST, "the buckets of the first power of two are 1 ns wide");

static int bucket_of(uint64_t ns) {
    if (ns < PARTS) return (int)ns;
    const int shift = 63 - __builtin_clzll(ns) - FIRST;
    return CC_MIN((shift + 1) * PARTS + (int)((ns >> shift) - PARTS), CC_HISTOGRAM_BUCKETS - 1);
}

uint64_t cc_histogram_above(int bucket) {
    if (bucket < PARTS) return (uint64_t)bucket + 1;
    return (uint64_t)(PARTS + bucket % PARTS + 1) << (bucket / PARTS - 1);
}

void cc_histogram_add(CcHistogram *h, uint64_t ns) {
    h->n++;
    h->sum_ns += ns;
    h->max_ns = CC_MAX(h->max_ns, ns);
    h->bucket[bucket_of(ns)]++;
}
