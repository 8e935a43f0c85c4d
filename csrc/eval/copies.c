/* Copies: do packed copies of parameters pay? If something writes to the parameters between runs (a training loop that
 * evaluates the model after every step), packing them anew may cost more than the copies save. So while parameters
 * change, a plan's runs are timed: those that pack and those that reuse. Once parameters have changed in enough of them,
 * a plan without copies of what changes is tried, and timed as well. For the mix of packing and reusing runs of late, the
 * cheaper plan stays. When the mix changes, as at the end of training, so may the plan; each time that copies were given
 * up, the next attempt waits for twice as many runs. */
#include "eval_int.h"

enum {
    RECENT = 32, /* runs that make up the mix: older ones fade */
    ENOUGH = 3,  /* changes before the first trial */
    TRIAL = 3,   /* runs of it */
    CHEAP = 64,  /* no trial if copies serve so many runs */
    FIRST = 8,   /* runs without copies after they were given up, at first and at most */
    LONGEST = 4096
};
static const double FASTER = 0.97; /* a plan that takes less than this share of the other's time is faster */

void cc_copies_count(double *sum, bool one) { *sum += one - *sum / RECENT; }

static void note(CcCopies *c, bool changed, uint64_t ns) {
    static const char *const NAME[] = {"packs", "reuses", "plain"};
    cc_copies_count(&c->changed, changed);
    cc_copies_count(&c->same, !changed);
    const int kind = c->plain ? CC_RUN_PLAIN : changed ? CC_RUN_PACKS : CC_RUN_REUSES;
    ns = cc_pace_time(NAME[kind], ns);
    if (c->ns[kind] == 0 || ns < c->ns[kind]) c->ns[kind] = ns;
    c->runs++;
}

/* Expected time per run in the recent mix. What has not been timed yet is assumed to favour reuse: then it will be. */
static double with_copies(const CcCopies *c) {
    const double plain = (double)c->ns[CC_RUN_PLAIN];
    const double packs = c->ns[CC_RUN_PACKS] > 0 ? (double)c->ns[CC_RUN_PACKS] : 2 * plain;
    const double reuses = c->ns[CC_RUN_REUSES] > 0 ? (double)c->ns[CC_RUN_REUSES] : FASTER * FASTER * plain;
    return (c->changed * packs + c->same * reuses) / (c->changed + c->same);
}

static bool turn(CcCopies *c, bool plain, int wait) {
    c->plain = plain;
    c->runs = 0;
    c->wait = wait;
    return true;
}

/* Copies again: a new mix is taken, because without them not every change was seen. A few runs show whether this was
 * wrong; then the next attempt waits longer. */
static bool resume(CcCopies *c) {
    c->changed = c->same = 0;
    return turn(c, false, TRIAL);
}

static bool give_up(CcCopies *c) {
    c->next = CC_MIN(CC_MAX(2 * c->next, FIRST), LONGEST);
    return turn(c, true, c->next);
}

bool cc_copies_ran(CcCopies *c, bool changed, uint64_t ns) {
    note(c, changed, ns);
    if (c->ns[CC_RUN_PLAIN] == 0) /* no trial yet */
        return c->changed > ENOUGH - 1 && c->same < CHEAP * c->changed && turn(c, true, TRIAL);
    if (c->runs < c->wait) return false;
    const double with = with_copies(c), without = (double)c->ns[CC_RUN_PLAIN];
    if (c->plain) return with < FASTER * without && resume(c);
    return without < FASTER * with && give_up(c);
}

void cc_copies_tell(const CcCopies *c, int segment) {
    const double plain = (double)c->ns[CC_RUN_PLAIN] * 1e-6;
    if (!c->plain)
        cc_log_add(CC_LOG_CHOICE, "segment %d: packs copies of its parameters again (%.3f ms per run without)", segment,
                   plain);
    else if (plain == 0)
        cc_log_add(CC_LOG_CHOICE, "segment %d: parameters changed in %.0f runs: tries without packed copies of them",
                   segment, c->changed);
    else
        cc_log_add(CC_LOG_CHOICE,
                   "segment %d: parameters change too often for packed copies (%.3f ms per run with, %.3f without)",
                   segment, with_copies(c) * 1e-6, plain);
}
