/* eval: compiled functions at run time. A root (one compiled callable) holds entries for its calls and segments for
 * what follows its breaks; a call checks guards, runs plans and effects, and makes the result; what has no segment yet
 * is recorded.
 *
 *   call --> entry guards hit --> plan, effects --> RETURN: result, no frame was made
 *      |                                       '--> BREAK: frames are made from the snapshot, the instruction is performed
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
extern CcKnobs cc_policy; /* the process's defaults */
enum { CC_KNOB_BOOL, CC_KNOB_INT };
typedef struct CcKnobInfo {
    const char *name, *doc;
    int kind;
    size_t offset;
} CcKnobInfo;
const CcKnobInfo *cc_policy_knobs(int *n);

typedef struct CcFreeze CcFreeze;
typedef struct CcCaptures CcCaptures;
/* What holds for one key of a trace (its sizes and numbers, rec.h): types, plan, values of symbols. A trace without
 * symbols has one. */
typedef struct CcShape {
    int n_key;
    int64_t *key;
    int misfit;           /* 1 + the symbolic guard that does not hold: then there is nothing below */
    CcGraph *graph;       /* owned, or the trace's own */
    CcPlan *plan;         /* NULL: the nodes are run by torch */
    CcFreeze *freeze;     /* NULL: no input is frozen */
    CcRing *ring;         /* NULL: results are allocated */
    CcCaptures *captures; /* NULL: plans are not captured as CUDA graphs */
    PyObject **symbol;    /* [symbol] strong; NULL: evaluated in every call */
    bool used;            /* its plan has run */
    bool derived;         /* its types were found by rules */
    int running;
} CcShape;

/* Whether types of new keys are found by rules: not before they gave what torch gave for one. */
typedef enum CcRules { CC_RULES_NEW, CC_RULES_HOLD, CC_RULES_WRONG } CcRules;

typedef struct CcSegment {
    CcTrace *trace;
    CC_VEC(CcShape *) shape; /* most recently used first */
    CC_VEC(uint64_t) hash;   /* of their keys */
    CcMap dropped;           /* hashes of keys whose plans were dropped */
    int returned;            /* of those, since the limit was raised */
    CcRunOptions options;
    CC_VEC(int) made; /* the graph's outputs that nodes make; cc_eval_idle */
    int shape_limit, most_shapes;
    uint64_t lot;        /* state of the generator that says which shape is dropped */
    uint64_t run_ns;     /* what torch's ops took at best, in a first call of some sizes */
    uint64_t planned_ns; /* what rules, a plan and its run took at best instead */
    int credit;          /* dear plans that are made before their sizes come a second time (shape.c) */
    bool verify, reuse_results, cuda_graphs;
    uint8_t rules;       /* CcRules */
    CcGraph *example;    /* of the first key that torch ran, for ops that have no rule; NULL: there are none */
    const char *unknown; /* node for which there was no rule; NULL: none */
    int id;
    uint64_t hits;
    bool broken; /* its plan failed: not used any more */
} CcSegment;

/* Where a break leaves off: the chain of frames and the instruction that comes next. */
typedef struct CcPoint {
    int n;
    struct CcPointLevel {
        PyCodeObject *co; /* strong */
        int pc;
    } *level;
    CC_VEC(CcSegment *) segment;
    int last;   /* the one that followed last: asked first */
    bool full;  /* the limit was reached: CPython goes on from here */
    int raised; /* recordings from here that an exception ended */
} CcPoint;

typedef struct CcEntry {
    CcSegment *segment;
    int n_args;
    PyObject *kwnames; /* strong tuple or NULL */
    bool hinted;       /* the recording at hand has a symbol for all that differs from this one */
    bool covered;      /* so a later entry serves its calls as well */
} CcEntry;

/* pace.c: compiled calls and eager ones, timed in pairs */
enum { CC_PACE_PAIRS = 16 };
typedef struct CcPace {
    uint64_t from; /* CcRoot.calls at which the next pairs begin */
    uint64_t rest; /* calls between them */
    uint64_t ns[2][CC_PACE_PAIRS];
    int n[2], tries; /* laps of each kind, calls for them */
    uint32_t lot;
    bool slow;                /* it runs eagerly */
    bool doubted;             /* these pairs have to tell once more what others have told */
    bool open, disturbed;     /* a lap is being timed; and another call of the function fell into it */
    double ours_us, eager_us; /* of the last pairs that were judged; 0: none */
} CcPace;
typedef struct CcLap {
    uint64_t start, firsts;
    bool timed, eager;
} CcLap;

typedef struct CcRoot {
    PyObject *callable;     /* borrowed from the owner */
    PyFunctionObject *func; /* strong */
    CcKnobs knobs;
    CcHints hints; /* what is symbolic in the next recording */
    bool fullgraph;
    CC_VEC(CcEntry *) entry; /* most recently used first */
    CC_VEC(CcPoint *) point;
    CcSites sites;
    CC_VEC(CcBreakInfo) seen; /* breaks met in the last recorded call, in order */
    CC_VEC(CcBreakInfo) gave_up;
    uint64_t calls, hits, recordings, eager_calls;
    char *last_failure;               /* text of the guard that failed last */
    int failed_segment, failed_guard; /* the same by numbers (symbolic guards count on); -1: none */
    int give_ups;                     /* in a row */
    CcPace pace;
    int waited, patience; /* calls past recompile_limit: so far, and until an entry makes room */
    int running, next_id;
    /* the region that records, one at a time: what is symbolic shows in what was recorded before; NULL: none */
    const void *recorder;
    bool eager_only, warned, reset_pending;
    bool forgave; /* the last recording ended in an exception that reached the caller */
    bool told;    /* some of its code asked whether it is compiled, and was told so */
} CcRoot;

/* callable: Python function, bound method, or an object with a Python __call__. -1 with TypeError set when it is
 * none. */
CC_MUST int cc_root_init(CcRoot *root, PyObject *callable);
void cc_root_clear(CcRoot *root); /* entries, segments, sites */
void cc_root_free(CcRoot *root);
int cc_root_visit(const CcRoot *root, visitproc visit, void *arg);
CC_MUST CC_NEW PyObject *cc_root_call(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames);
CC_MUST CC_NEW PyObject *cc_root_report(const CcRoot *root);

/* For tests: a call that is to tell how long a lap took, in ns, given whether it was eager; None: the clock. */
void cc_pace_set_clock(PyObject *clock);

extern struct CcEvalCounts {
    uint64_t calls, hits, misses;
} cc_eval_counts;
/* Measurements of what a call costs beside its work: plans are not run, and results are left as memory is. Traces with
 * symbols run as ever. */
extern bool cc_eval_idle;
extern _Thread_local int cc_eval_disabled;       /* depth of `with ccompile.disable()` */
bool cc_eval_recording(void);                    /* this thread is inside a region */
bool cc_eval_compiling(void);                    /* and what runs now is being recorded */
CC_MUST int cc_eval_init(PyObject *unsupported); /* exception class for fullgraph */

#endif
