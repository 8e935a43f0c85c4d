/* Pace: is a compiled function slower than eager? Where breaks cut it into many small pieces, or no kernel has a part in it,
 * it may be, and only the clock tells. So a few of its calls are made eagerly, each beside a compiled one (in which order
 * is drawn: callers alternate as well), and the two are compared. What is slower runs eagerly, and is compared again ever
 * more seldom; so is what is not.
 *
 *   calls ... | pairs, at most PAIRS | rest, twice as long each time | pairs | ...
 *
 * No clock is read in between. Calls that record or compile, raise, or meet other calls of the function are no laps. */
#include "eval_int.h"

enum {
    FIRST = 32,  /* calls before the first pairs */
    REST = 256,  /* behind them */
    LONG = 4096, /* where they were clear */
    LONGEST = 1 << 20,
    CLEARLY_FASTER = 4, /* pairs that tell by themselves, if all differ by a fifth */
    CLEARLY_SLOWER = 6,
    TRIES = 8, /* calls for each lap that is wanted */
};

static PyObject *clock_of_tests;

void cc_pace_set_clock(PyObject *clock) { Py_XSETREF(clock_of_tests, clock == Py_None ? NULL : Py_NewRef(clock)); }

void cc_pace_start(CcRoot *root) { root->pace = (CcPace){.from = root->calls + FIRST, .rest = REST, .lot = 1}; }

/* What costs a call once, and not again. */
static uint64_t firsts(void) {
    static const CcEventKind kind[] = {CC_LOG_RECORD,   CC_LOG_RECOMPILE, CC_LOG_GIVE_UP, CC_LOG_KERNEL,
                                       CC_LOG_FALLBACK, CC_LOG_PRIMITIVE, CC_LOG_SHAPE,   CC_LOG_CHOICE,
                                       CC_LOG_BAN,      CC_LOG_CAPTURE};
    uint64_t n = 0;
    for (int i = 0; i < CC_COUNT(kind); i++) n += cc_log_count(kind[i]);
    return n;
}

/* ------------------------------------------------------------------ which functions */

/* A GPU works on when the call has returned: the clock tells nothing. */
static bool on_gpu(const CcSegment *s) {
    enum { CUDA = 2 };
    const CcGraph *g = s->trace->graph;
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].type.device == CUDA) return true;
    return false;
}

/* Nothing of it is ours: all that it can save is Python's part. */
static bool without_kernels(const CcSegment *s) {
    const CcPlan *plan = s->shape.n > 0 ? s->shape.at[0]->plan : NULL;
    if (plan == NULL) return true;
    CcPlanStats stats;
    cc_run_stats(plan, &stats);
    return stats.kernels + stats.primitives == 0;
}

static bool worth_asking(const CcRoot *root) {
    CcMode mode;
    cc_mode_read(&mode);
    if (!root->knobs.eager_if_slower || root->knobs.verify || root->fullgraph || cc_eval_idle || cc_mode_ordered(&mode))
        return false;
    bool wanted = root->warned;
    for (int i = 0; i < root->entry.n; i++) {
        const CcSegment *s = root->entry.at[i]->segment;
        if (on_gpu(s)) return false;
        wanted |= s->trace->end == CC_END_BREAK || without_kernels(s);
    }
    for (int i = 0; i < root->point.n; i++)
        for (int k = 0; k < root->point.at[i]->segment.n; k++)
            if (on_gpu(root->point.at[i]->segment.at[k])) return false;
    return wanted;
}

/* ------------------------------------------------------------------ laps */

static void close_pairs(CcPace *p) {
    p->n[0] = p->n[1] = p->tries = 0;
    p->doubted = false;
}

static void rest(CcRoot *root, uint64_t least) {
    CcPace *p = &root->pace;
    close_pairs(p);
    p->rest = CC_MAX(p->rest, least);
    p->from = root->calls + p->rest;
    p->rest = CC_MIN(p->rest * 2, (uint64_t)LONGEST);
}

/* The first of a pair is drawn (the same ones in each process), the other one follows. */
static bool next_is_eager(CcPace *p) {
    if (p->n[0] != p->n[1]) return p->n[0] > p->n[1];
    p->lot = p->lot * UINT32_C(1664525) + UINT32_C(1013904223);
    return p->lot >> 31;
}

bool cc_pace_begin(CcRoot *root, CcLap *lap) {
    CcPace *p = &root->pace;
    lap->timed = false;
    if (p->open || root->running > 0) {
        p->disturbed = true;
        return p->slow;
    }
    if ((p->tries == 0 && !worth_asking(root)) || ++p->tries > TRIES * 2 * CC_PACE_PAIRS) {
        rest(root, 0);
        return p->slow;
    }
    p->open = lap->timed = true;
    p->disturbed = false;
    lap->eager = next_is_eager(p);
    lap->firsts = firsts();
    lap->start = cc_log_now_ns();
    return lap->eager;
}

/* What the tests' clock says of it. */
static uint64_t told_by_tests(const CcLap *lap) {
    PyObject *told = PyObject_CallFunction(clock_of_tests, "O", lap->eager ? Py_True : Py_False);
    const uint64_t said = told != NULL ? PyLong_AsUnsignedLongLong(told) : 0;
    Py_XDECREF(told);
    PyErr_Clear();
    return said;
}

/* ------------------------------------------------------------------ the verdict */

static int by_size(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Of n laps the one that so many are shorter than. What others do on the machine only ever adds to a lap. */
static uint64_t rank_of(const uint64_t *ns, int n, int shorter) {
    uint64_t at[CC_PACE_PAIRS];
    memcpy(at, ns, sizeof *at * (size_t)n);
    qsort(at, (size_t)n, sizeof *at, by_size);
    return at[shorter];
}

/* Are laps of the one kind longer than those of the other, and by more than noise: the short ones, and those in the
 * middle? */
static bool longer(const CcPace *p, bool eager, int n) {
    const uint64_t *a = p->ns[eager], *b = p->ns[!eager];
    int won = 0;
    for (int i = 0; i < n; i++) won += a[i] > b[i];
    if (won * 3 < n * 2) return false;
    for (int shorter = n / 4; shorter <= n / 2; shorter += n / 4)
        if (rank_of(a, n, shorter) < rank_of(b, n, shorter) * 103 / 100) return false;
    return true;
}

/* 1: slower, -1: faster, 0: not to be told (yet). */
static int tell(const CcPace *p) {
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

/* What would change is doubted: other pairs have to tell the same. */
static void judge(CcRoot *root) {
    CcPace *p = &root->pace;
    const int told = tell(p);
    if (told == 0 && p->n[0] < CC_PACE_PAIRS) return;
    const bool changes = told != 0 && (told > 0) != p->slow;
    if (changes && !p->doubted) {
        close_pairs(p);
        p->doubted = true;
        return;
    }
    p->ours_us = (double)rank_of(p->ns[0], p->n[0], p->n[0] / 2) * 1e-3;
    p->eager_us = (double)rank_of(p->ns[1], p->n[1], p->n[1] / 2) * 1e-3;
    if (changes) {
        p->slow = told > 0;
        cc_log_add(CC_LOG_EAGER, "%s: %s than eager (%.0f us a call, eager %.0f us): runs %s",
                   PyUnicode_AsUTF8(root->func->func_qualname), p->slow ? "slower" : "no slower", p->ours_us,
                   p->eager_us, p->slow ? "eagerly" : "compiled again");
    }
    rest(root, told != 0 ? LONG : 0);
}

void cc_pace_end(CcRoot *root, const CcLap *lap, bool ok) {
    CcPace *p = &root->pace;
    if (!lap->timed || !p->open) return; /* or it was reset meanwhile */
    const uint64_t ns = cc_log_now_ns() - lap->start;
    p->open = false;
    if (!ok || p->disturbed || firsts() != lap->firsts) return;
    p->ns[lap->eager][p->n[lap->eager]++] = clock_of_tests != NULL ? told_by_tests(lap) : ns;
    if (p->n[0] == p->n[1]) judge(root);
}
