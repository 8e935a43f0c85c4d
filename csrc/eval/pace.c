/* Pace: is a compiled function slower than eager? It may be if breaks cut it into many small pieces, if it has no
 * kernels, or if most calls have new sizes, for which torch runs its nodes; only timing can tell. So a few pairs of calls, one eager and one compiled, are timed and compared. The
 * order within a pair is random, because callers may alternate, too. A slower function runs eagerly. In both cases the
 * comparison is repeated, at growing intervals.
 *
 *   calls ... | pairs, at most PAIRS | rest, twice as long each time | pairs | ...
 *
 * No clock is read outside pairs. Calls that record or compile, raise, or overlap other calls of the function don't
 * count as laps. */
#include "eval_int.h"

enum {
    FIRST = 32,  /* calls before the first pairs */
    REST = 256,  /* calls between pairs */
    LONG = 4096, /* ... after a clear verdict */
    LONGEST = 1 << 20,
    CLEARLY_FASTER = 4, /* so many pairs suffice if all differ by a fifth */
    CLEARLY_SLOWER = 6,
    TRIES = 8, /* most calls per lap */
};

static PyObject *clock_of_tests;

void cc_pace_set_clock(PyObject *clock) { Py_XSETREF(clock_of_tests, clock == Py_None ? NULL : Py_NewRef(clock)); }

void cc_pace_start(CcRoot *root) { root->pace = (CcPace){.from = root->calls + FIRST, .rest = REST, .random = 1}; }

/* ------------------------------------------------------------------ which functions */

/* A GPU is still working when the call returns, so its time means nothing. */
static bool on_gpu(const CcSegment *s) {
    enum { CUDA = 2 };
    const CcGraph *g = s->trace->graph;
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].type.device == CUDA) return true;
    return false;
}

/* The plan has no kernels of ours: it can only save Python's part. */
static bool without_kernels(const CcSegment *s) {
    const CcPlan *plan = s->shape.n > 0 ? s->shape.at[0]->plan : NULL;
    if (plan == NULL) return true;
    CcPlanStats stats;
    cc_run_stats(plan, &stats);
    return stats.kernels + stats.primitives == 0;
}

/* Its backward runs after the call has returned, so the call's time does not say whether it is faster. It does without a
 * backward (many evaluate a model without torch.no_grad()), and if the call is a whole training step. */
static bool ends_outside(const CcSegment *s) {
    for (int i = 0; i < s->shape.n; i++)
        if (s->shape.at[i]->training != NULL && cc_training_outside(s->shape.at[i]->training)) return true;
    return false;
}

static bool cannot_time(const CcSegment *s) { return on_gpu(s) || ends_outside(s); }

/* Its sizes rarely recur: torch runs its nodes in most calls. */
static bool rarely_planned(const CcSegment *s) { return 2 * s->unplanned > s->hits; }

static bool any_untimed(const CcRoot *root) {
    for (int i = 0; i < root->entry.n; i++)
        if (cannot_time(root->entry.at[i]->segment)) return true;
    for (int i = 0; i < root->point.n; i++)
        for (int k = 0; k < root->point.at[i]->segment.n; k++)
            if (cannot_time(root->point.at[i]->segment.at[k])) return true;
    return false;
}

static bool worth_asking(const CcRoot *root) {
    CcMode mode;
    cc_mode_read(&mode);
    if (!root->knobs.eager_if_slower || root->knobs.verify || root->fullgraph || cc_eval_skip_kernels ||
        cc_mode_deterministic(&mode))
        return false;
    bool wanted = root->warned;
    for (int i = 0; i < root->entry.n; i++) {
        const CcSegment *s = root->entry.at[i]->segment;
        wanted |= s->trace->end == CC_END_BREAK || without_kernels(s) || rarely_planned(s);
    }
    return wanted;
}

/* ------------------------------------------------------------------ laps */

static uint64_t plans_of(const CcRoot *root) {
    uint64_t n = 0;
    for (int i = 0; i < root->entry.n; i++) n += root->entry.at[i]->segment->plans;
    for (int i = 0; i < root->point.n; i++)
        for (int k = 0; k < root->point.at[i]->segment.n; k++) n += root->point.at[i]->segment.at[k]->plans;
    return n;
}

/* Counts one-time costs (recording, compiling). A run for new sizes without a plan is none: it may be every call's. */
static uint64_t firsts(const CcRoot *root) {
    static const CcEventKind kind[] = {CC_LOG_RECORD, CC_LOG_RECOMPILE, CC_LOG_GIVE_UP,
                                       CC_LOG_KERNEL, CC_LOG_FALLBACK,  CC_LOG_PRIMITIVE,
                                       CC_LOG_CHOICE, CC_LOG_BAN,       CC_LOG_CAPTURE};
    uint64_t n = plans_of(root);
    for (int i = 0; i < CC_COUNT(kind); i++) n += cc_log_count(kind[i]);
    return n;
}

static void close_pairs(CcPace *p) {
    p->n[0] = p->n[1] = p->tries = 0;
    p->confirming = false;
}

static void rest(CcRoot *root, uint64_t least) {
    CcPace *p = &root->pace;
    close_pairs(p);
    p->rest = CC_MAX(p->rest, least);
    p->from = root->calls + p->rest;
    p->rest = CC_MIN(p->rest * 2, (uint64_t)LONGEST);
}

/* Whether the next lap is eager: random for the first lap of a pair (with the same seed in each process), the other
 * kind for the second. */
static bool next_is_eager(CcPace *p) {
    if (p->n[0] != p->n[1]) return p->n[0] > p->n[1];
    p->random = p->random * UINT32_C(1664525) + UINT32_C(1013904223);
    return p->random >> 31;
}

bool cc_pace_begin(CcRoot *root, CcLap *lap) {
    CcPace *p = &root->pace;
    lap->timed = false;
    if (p->open || root->running > 0) {
        p->disturbed = true;
        return p->slow;
    }
    const bool untimed = any_untimed(root);
    if (untimed) p->slow = false; /* a backward may have run since the verdict */
    if (untimed || (p->tries == 0 && !worth_asking(root)) || ++p->tries > TRIES * 2 * CC_PACE_PAIRS) {
        rest(root, 0);
        return p->slow;
    }
    p->open = lap->timed = true;
    p->disturbed = false;
    lap->eager = next_is_eager(p);
    lap->firsts = firsts(root);
    lap->start = cc_log_now_ns();
    return lap->eager;
}

uint64_t cc_pace_time(const char *kind, uint64_t ns) {
    if (clock_of_tests == NULL) return ns;
    PyObject *time = PyObject_CallFunction(clock_of_tests, "s", kind);
    ns = time != NULL ? PyLong_AsUnsignedLongLong(time) : 0;
    Py_XDECREF(time);
    cc_raised_clear();
    return ns;
}

/* ------------------------------------------------------------------ the verdict */

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The lap with rank `shorter` among n. Low ranks, because other work on the machine can only lengthen a lap. */
static uint64_t rank_of(const uint64_t *ns, int n, int shorter) {
    uint64_t at[CC_PACE_PAIRS];
    memcpy(at, ns, sizeof *at * (size_t)n);
    qsort(at, (size_t)n, sizeof *at, by_size);
    return at[shorter];
}

/* Whether laps of one kind are longer than those of the other by more than noise, both at the lower quartile and at the
 * median. */
static bool longer(const CcPace *p, bool eager, int n) {
    const uint64_t *a = p->ns[eager], *b = p->ns[!eager];
    int won = 0;
    for (int i = 0; i < n; i++) won += a[i] > b[i];
    if (won * 3 < n * 2) return false;
    for (int shorter = n / 4; shorter <= n / 2; shorter += n / 4)
        if (rank_of(a, n, shorter) < rank_of(b, n, shorter) * 103 / 100) return false;
    return true;
}

/* 1: slower, -1: faster, 0: undecided (so far). */
static int compare(const CcPace *p) {
    const int n = p->n[0];
    int far_slower = 0, far_faster = 0;
    for (int i = 0; i < n; i++) {
        const uint64_t ours = p->ns[0][i], eager = p->ns[1][i];
        far_slower += ours > eager + eager / 5;
        far_faster += ours + ours / 5 < eager;
    }
    if (n >= CLEARLY_FASTER && far_faster == n) return -1;
    if (n >= CLEARLY_SLOWER && far_slower == n) return 1;
    if (n < CC_PACE_PAIRS) return 0;
    return longer(p, false, n) ? 1 : longer(p, true, n) ? -1 : 0;
}

/* A verdict that would change the mode must be confirmed by a second series of pairs. */
static void judge(CcRoot *root) {
    CcPace *p = &root->pace;
    const int verdict = compare(p);
    if (verdict == 0 && p->n[0] < CC_PACE_PAIRS) return;
    const bool changes = verdict != 0 && (verdict > 0) != p->slow;
    if (changes && !p->confirming) {
        close_pairs(p);
        p->confirming = true;
        return;
    }
    p->ours_us = (double)rank_of(p->ns[0], p->n[0], p->n[0] / 2) * 1e-3;
    p->eager_us = (double)rank_of(p->ns[1], p->n[1], p->n[1] / 2) * 1e-3;
    if (changes) {
        p->slow = verdict > 0;
        cc_log_add(CC_LOG_EAGER, "%s: %s than eager (%.0f us per call, eager %.0f us): runs %s", cc_root_name(root),
                   p->slow ? "slower" : "no slower", p->ours_us, p->eager_us, p->slow ? "eagerly" : "compiled again");
    }
    rest(root, verdict != 0 ? LONG : 0);
}

void cc_pace_end(CcRoot *root, const CcLap *lap, bool ok) {
    CcPace *p = &root->pace;
    if (!lap->timed || !p->open) return; /* also if the pairs were reset meanwhile */
    const uint64_t ns = cc_log_now_ns() - lap->start;
    p->open = false;
    if (!ok || p->disturbed || firsts(root) != lap->firsts) return;
    p->ns[lap->eager][p->n[lap->eager]++] = cc_pace_time(lap->eager ? "eager" : "compiled", ns);
    if (p->n[0] == p->n[1]) judge(root);
}
