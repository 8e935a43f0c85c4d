/* guard_int: what guard's files share. */
#ifndef CC_GUARD_INT_H
#define CC_GUARD_INT_H

#include "guard.h"

void cc_guard_release_to(const CcGuards *gs, PyObject **gv, int upto); /* of guards below upto */

/* What a guard needs beside its parent's value: that of the guard which it is compared with, and of the one which is its key.
 * -1: none. */
static inline int cc_guard_compared(const CcGuard *g) {
    return g->check == CC_CHK_ALIAS || g->check == CC_CHK_DISTINCT ? g->other : -1;
}
static inline int cc_guard_keyed(const CcGuard *g) { return g->source == CC_SRC_BY ? g->index : -1; }

/* memo.c: a program that has passed, as the few words of memory that have to be unchanged for it to pass again. */
typedef struct CcMemo CcMemo;
enum { CC_MEMO_MISS = -2 };
/* gv: what the run has reached. moving: roots (by guard) that are other objects in each call; NULL: none is known. */
CcMemo *cc_memo_new(const CcGuards *gs, PyObject *const *gv, const bool *moving);
void cc_memo_free(CcMemo *m);
/* As cc_guard_run, where only the values that a run holds are put into gv. CC_MEMO_MISS: it can't tell, and nothing is
 * held; *moved (if it is not -1) is the root that is another object now. */
int cc_memo_run(CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv, int *moved);
uint64_t cc_memo_hits(const CcMemo *m);
int cc_memo_steps(const CcMemo *m); /* what a run looks at */
bool cc_memo_running(const CcMemo *m);

#endif
