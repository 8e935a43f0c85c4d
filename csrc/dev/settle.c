/* settle: what only compilers need is given back before the next run, and what nobody uses before they begin. Set by what
 * makes code, cleared by runs: so a call that compiles many graphs does this once (3 ms after ResNet-50, Zen 4), and a
 * plan whose code is all there, which sizes that keep coming need, not at all. */
#include <stdatomic.h>

#include "dev_int.h"

static atomic_bool made;

/* Its peak is not to be on top of what recording needed. */
void cc_settle_begin(void) {
    if (!atomic_exchange(&made, true)) cc_pages_trim();
}

bool cc_settle_pending(void) { return atomic_load_explicit(&made, memory_order_relaxed); }

void cc_settle_end(void) {
    if (!cc_settle_pending() || !atomic_exchange(&made, false)) return;
    cc_jit_forget();
    cc_dnnl_forget();
    cc_pages_trim();
}
