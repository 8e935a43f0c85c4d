/* eval: compiled functions at run time. A root (one compiled callable) has entries for its calls, and segments for the
 * code after its breaks. A call checks guards, runs plans and effects, and makes the result; code without a segment is
 * recorded.
 *
 *   call --> entry guards hit --> plan, effects --> RETURN: the result, without a frame
 *      |                                       '--> BREAK: makes frames from the snapshot, performs the instruction
 *      |                                                   --> resume: segments of that point, or record the next one
 *      '--> miss: call for real, recorded */
#ifndef CC_EVAL_H
#define CC_EVAL_H

#include "../rec/rec.h"
#include "../run/run.h"

typedef struct CcKnobs {
#define CC_KNOB(name, kind, value, doc) int name;
#include "policy.def"
#undef CC_KNOB
} CcKnobs;
extern CcKnobs cc_policy; /* process-wide defaults */
enum { CC_KNOB_BOOL, CC_KNOB_INT };
typedef struct CcKnobInfo {
    const char *name, *doc;
    int kind;
    size_t offset;
} CcKnobInfo;
const CcKnobInfo *cc_policy_knobs(int *n);
CC_MUST CC_NEW PyObject *cc_policy_dict(const CcKnobs *of); /* values by name, bool or int */

typedef struct CcFreeze CcFreeze;
typedef struct CcCaptures CcCaptures;
typedef struct CcTraining CcTraining;
/* The data of one key of a trace (its sizes and numbers, rec.h): types, plan, values of symbols. A trace without
 * symbols has one shape. */
typedef struct CcShape {
    int n_key;
    int64_t *key;
    int misfit;           /* 1 + the symbolic guard that fails for this key: the fields below are unset */
    CcGraph *graph;       /* owned, or the trace's own */
    CcPlan *plan;         /* NULL: torch runs the nodes */
    CcFreeze *freeze;     /* NULL: no input is frozen */
    CcRing *ring;         /* NULL: results are allocated */
    CcCaptures *captures; /* NULL: plans are not captured as CUDA graphs */
    CcTraining *training; /* stages with a backward, run instead of the plan; NULL: none */
    PyObject **symbol;    /* [symbol] strong; NULL: evaluated in every call */
    bool used;            /* its plan has run */
    bool derived;         /* its types come from rules */
    int running;          /* runs of its plan, and a compilation of it */
    int held;             /* calls that have found it, which may let other threads run */
} CcShape;

/* Whether rules derive the types of new keys: only after they have agreed with torch for one key. */
typedef enum CcRules { CC_RULES_NEW, CC_RULES_HOLD, CC_RULES_WRONG } CcRules;

typedef struct CcSegment {
    struct CcRoot *root; /* its owner */
    CcTrace *trace;
    CC_VEC(CcShape *) shape; /* most recently used first */
    CC_VEC(uint64_t) hash;   /* hashes of their keys */
    CcMap dropped;           /* hashes of keys whose plans were dropped */
    int returned;            /* dropped keys that were needed again since the limit was raised */
    CcRunOptions options;
    CC_VEC(int) made; /* graph outputs that nodes make; for cc_eval_skip_kernels */
    int shape_limit, most_shapes;
    uint64_t random;     /* state of the random generator that selects the shape to drop */
    uint64_t run_ns;     /* shortest run of the nodes by torch, for new sizes */
    uint64_t planned_ns; /* shortest time of rules, planning and the plan's run instead */
    int credit;          /* budget of expensive plans that may be made before their sizes recur (shape.c) */
    bool verify, reuse_results, cuda_graphs, trains;
    uint8_t rules;       /* CcRules */
    CcGraph *example;    /* graph of the first key that torch ran, for ops without a rule; NULL: no such ops */
    const char *unknown; /* node without a rule; NULL: none */
    int id;
    uint64_t hits;
    uint64_t plans, unplanned; /* plans made so far, also those dropped; runs that waited with one */
    bool broken;               /* its plan failed: no longer used */
} CcSegment;

/* A resume point: the chain of frames, each with its next instruction. */
typedef struct CcPoint {
    int n;
    struct CcPointLevel {
        PyCodeObject *co; /* strong */
        int pc;
    } *level;
    CC_VEC(CcSegment *) segment;
    int last;   /* index of the last segment used here: tried first */
    bool full;  /* the limit was reached: CPython continues from here */
    int missed; /* full: calls in a row that no segment fitted */
    int raised; /* recordings from here that ended in an exception */
} CcPoint;

typedef struct CcEntry {
    CcSegment *segment;
    int n_args;
    PyObject *kwnames; /* strong tuple or NULL */
    bool hinted;       /* the current recording has symbols for everything that differs from this entry */
    bool covered;      /* a later entry also serves its calls */
} CcEntry;

/* pace.c: compiled and eager calls, timed in pairs */
enum { CC_PACE_PAIRS = 16 };
typedef struct CcPace {
    uint64_t from; /* value of CcRoot.calls at which the next pairs begin */
    uint64_t rest; /* calls between series of pairs */
    uint64_t ns[2][CC_PACE_PAIRS];
    int n[2], tries; /* timed laps of each kind, calls spent on them */
    uint32_t random;
    bool slow;                /* it runs eagerly */
    bool confirming;          /* these pairs must confirm the previous verdict */
    bool open, disturbed;     /* a lap is being timed; another call of the function overlapped it */
    double ours_us, eager_us; /* of the last judged pairs; 0: none */
} CcPace;
typedef struct CcLap {
    uint64_t start, firsts;
    bool timed, eager;
} CcLap;

typedef struct CcTally {
    uint64_t calls, hits, eager_calls, recordings, recompiles, breaks, give_ups, recording_ns, compile_ns;
} CcTally;

typedef struct CcRoot {
    PyObject *callable;     /* borrowed from the owner */
    PyFunctionObject *func; /* strong */
    PyObject *name;         /* str, for reports and events; strong */
    CcKnobs knobs;
    CcHints hints; /* what becomes symbolic in the next recording */
    bool fullgraph;
    CC_VEC(CcEntry *) entry; /* most recently used first */
    CC_VEC(CcPoint *) point;
    CcSites sites;
    CC_VEC(CcBreakInfo) seen; /* breaks of the last recorded call, in order */
    CC_VEC(CcBreakInfo) gave_up;
    PyObject *handed; /* compiled functions that torch was handed (handed.c); NULL: none yet */
    uint64_t calls, hits, recordings, eager_calls;
    uint64_t ended; /* calls that are over, of those that were not eager */
    /* for metrics.c */
    uint64_t recompiles, breaks, give_ups_seen, recording_ns, compile_ns, errors;
    struct CcTally before;            /* at the last reset of metrics */
    CcHistogram *latency;             /* owned; NULL: no call has been timed */
    char *last_failure;               /* text of the last guard that failed */
    int failed_segment, failed_guard; /* the same as numbers (symbolic guards follow the others); -1: none */
    int give_ups;                     /* consecutive */
    CcPace pace;
    int64_t deferred;     /* calls that no entry fitted and that were left to eager, since the last recording */
    int waited, patience; /* calls past recompile_limit: so far, and until an entry is replaced */
    int running, next_id;
    /* the region that is recording; only one at a time, because earlier recordings decide what is symbolic; NULL:
     * none */
    const void *recorder;
    bool eager_only, warned, reset_pending;
    int raises;   /* recordings that ended in an exception since a raise last became a break */
    bool forgave; /* the last recording ended in an exception that reached the caller, and its sites were removed */
    bool told;    /* its code asked whether it is being compiled, and the answer was yes */
} CcRoot;

/* callable: Python function, bound method, or an object with a Python __call__. -1 with TypeError set: anything
 * else. name: a str; NULL: the function's __qualname__. */
CC_MUST int cc_root_init(CcRoot *root, PyObject *callable, PyObject *name);
const char *cc_root_name(const CcRoot *root);
void cc_root_clear(CcRoot *root); /* entries, segments, sites */
void cc_root_free(CcRoot *root);
/* In the child of a fork: the calls of other threads are gone. */
void cc_root_forked(CcRoot *root);
int cc_root_visit(const CcRoot *root, visitproc visit, void *arg);
CC_MUST CC_NEW PyObject *cc_root_call(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames);
CC_MUST CC_NEW PyObject *cc_root_report(CcRoot *root);

/* For tests: a callable that returns the time in ns of what was timed, given its kind: a lap ("eager", "compiled") or a
 * plan's run ("packs", "reuses", "plain"; copies.c); None: the real clock. */
void cc_pace_set_clock(PyObject *clock);

/* ---- metrics.c ---- */
/* calls, hits, recordings ... since the last reset, and the latency of calls that were timed; see _core.pyi */
CC_MUST CC_NEW PyObject *cc_metrics_dict(const CcRoot *root);
void cc_metrics_reset(CcRoot *root);

/* ---- repro.c: an object whose write(description) gets each graph that failed; NULL: none ---- */
void cc_repro_set_writer(PyObject *writer);

/* ---- observe.c: whoever watches calls ---- */
extern bool cc_observe_on;        /* a listener, someone who looks at spans, or metrics */
void cc_observe_metrics(bool on); /* times calls from now on */
void cc_observe_settle(void);     /* somebody began or ceased to watch */
/* The version of the dict that says whether torch's profiler is active, and its value when that was last read */
extern const uint64_t *cc_observe_profiler;
extern uint64_t cc_observe_profiler_seen;
static inline bool cc_observe_any(void) { return cc_observe_on || *cc_observe_profiler != cc_observe_profiler_seen; }
CC_MUST int cc_observe_init(void);
/* Writes the timeline to a file or into a folder (cc_timeline_open); NULL: ends it. -1 with OSError or RuntimeError set. */
CC_MUST int cc_observe_timeline(const char *path);
/* The listener is called as listener(event, detail) for events of these kinds (bits); NULL: none. */
void cc_observe_listen(PyObject *callable, uint64_t kinds);
void cc_observe_deliver(void); /* runs Python code; keeps a pending error */
/* list of (serial, kind, time_ns, text, start_ns, file or None, line), oldest first */
CC_MUST CC_NEW PyObject *cc_observe_events(uint64_t after);

/* What calls do instead of recording; of the process, like torch.compiler.set_stance's. */
typedef enum CcStance {
    CC_STANCE_DEFAULT,
    CC_STANCE_FORCE_EAGER,
    CC_STANCE_EAGER_ON_RECOMPILE, /* what is not compiled yet runs eagerly */
    CC_STANCE_FAIL_ON_RECOMPILE,  /* ... raises RuntimeError */
    CC_STANCE_EAGER_THEN_COMPILE, /* the first call of a root runs eagerly */
    CC_STANCE_FORCE_BACKEND,      /* what cc_eval_forced gives is called */
    CC_STANCE_COMPILE_NOW,        /* neither compile_after nor memory_limit defers a recording; for precompile */
    CC_STANCE_COUNT
} CcStance;
extern CcStance cc_eval_stance;
extern PyObject *cc_eval_forced; /* forced(callable, fullgraph) -> what torch has compiled; NULL in other stances */

extern struct CcEvalCounts {
    uint64_t calls, hits, misses;
} cc_eval_counts;
/* For measuring the overhead of a call: plans don't run, and results are uninitialised memory. Traces with symbols run
 * normally. */
extern bool cc_eval_skip_kernels;
extern _Thread_local int cc_eval_disabled;       /* depth of `with ccompile.disable()` */
bool cc_eval_recording(void);                    /* in a region, where calls of compiled functions are plain */
bool cc_eval_compiling(void);                    /* ... and the current code is being recorded */
extern PyObject *cc_eval_error_on_break;         /* a ContextVar: graph breaks raise; for error_on_graph_break */
CC_MUST int cc_eval_init(PyObject *unsupported); /* exception class for fullgraph */
void cc_eval_raise_as(PyObject *unsupported);    /* another one from now on */

#endif
