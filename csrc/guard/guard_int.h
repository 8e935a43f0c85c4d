/* Private to guard/: what its files share. */
#ifndef CC_GUARD_INT_H
#define CC_GUARD_INT_H

#include "guard.h"

void cc_guard_release_to(const CcGuards *gs, PyObject **gv, int upto); /* only guards below `upto` */

/* Guards whose values a guard needs besides its parent's: the one it is compared with, and the one that is its key. -1:
 * none. */
static inline int cc_guard_compared(const CcGuard *g) {
    return g->check == CC_CHK_ALIAS || g->check == CC_CHK_DISTINCT ? g->other : -1;
}
static inline int cc_guard_keyed(const CcGuard *g) {
    return g->source == CC_SRC_ADDRESS_KEY || g->source == CC_SRC_HAS ? g->index : -1;
}

/* memo.c: a program that has passed, reduced to the words of memory that must be unchanged for it to pass again. */
typedef struct CcMemo CcMemo;
enum { CC_MEMO_MISS = -2 };
/* gv: the values of the run. changing: [guard] roots that differ in each call; NULL: none known. */
CcMemo *cc_memo_new(const CcGuards *gs, PyObject *const *gv, const bool *changing);
void cc_memo_free(CcMemo *m);
/* As cc_guard_run, but sets only those entries of gv that a run keeps references to. CC_MEMO_MISS: the memo can't
 * decide, and no references are kept; *changed is the root that is another object now, or -1. */
int cc_memo_run(CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv, int *changed);
uint64_t cc_memo_hits(const CcMemo *m);
int cc_memo_steps(const CcMemo *m); /* how many words and guards a run looks at */
bool cc_memo_running(const CcMemo *m);

#endif
