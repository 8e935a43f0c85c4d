/* reclaim: returns memory that only compilers need before the next run, and unused memory before compilers start.
 * Compiling sets a flag, the next run clears it: a call that compiles many graphs reclaims once (3 ms after ResNet-50,
 * Zen 4), and a new plan whose code is all cached, as for recurring sizes, never does. */
#include <stdatomic.h>

#include "dev_int.h"

static atomic_bool made;

/* Keeps the compiler's peak from adding to the recorder's. */
void cc_reclaim_begin(void) {
    if (!atomic_exchange(&made, true)) cc_pages_trim();
}

bool cc_reclaim_pending(void) { return atomic_load_explicit(&made, memory_order_relaxed); }

void cc_reclaim_end(void) {
    if (!cc_reclaim_pending() || !atomic_exchange(&made, false)) return;
    cc_jit_forget();
    cc_dnnl_forget();
    cc_pages_trim();
}
