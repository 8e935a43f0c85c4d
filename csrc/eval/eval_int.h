/* eval_int: what eval's files share. */
#ifndef CC_EVAL_INT_H
#define CC_EVAL_INT_H

#include "eval.h"

/* Scratch of one segment run: guard values, graph values, effect results, shared objects of recipes. */
typedef struct CcScratch {
    PyObject **gv, **value, **effect, **built, **symbol;
    int n_value, n_effect, n_built, n_symbol;
    CcShape *shape; /* of this run's key; NULL: a new key */
    int misfit;     /* CC_RAN_MISFIT: the symbolic guard */
    bool odd;       /* a number is none that kernels take (CcSymKernel) */
    int64_t key[CC_KEY_MAX];
    int n_key;
    PyObject **heap;
    PyObject *small[160];
} CcScratch;

void cc_segment_open(const CcSegment *s, CcScratch *x); /* arrays, zeroed */
void cc_segment_drop(CcScratch *x);                     /* drops what they hold */
void cc_segment_close(CcScratch *x);                    /* the same, and frees them */
/* Guards: -1 pass, else the failing guard; symbolic ones count on. gv is filled on a pass. */
int cc_segment_check(CcSegment *s, CcScratch *x, const CcGuardState *state);
/* Plan and effects; for a new key the nodes are run by torch, and a plan is made. */
typedef enum CcRan {
    CC_RAN,
    CC_RAN_MISFIT,  /* a symbolic guard does not hold for this key; nothing happened, no error is set */
    CC_RAN_FAILED,  /* the error is set */
    CC_RAN_NOTHING, /* the same, but nothing was changed yet: it may be done again eagerly */
} CcRan;
CC_MUST CcRan cc_segment_exec(CcSegment *s, CcScratch *x);
CC_MUST CC_NEW PyObject *cc_segment_make(const CcSegment *s, CcScratch *x, int recipe);
/* Runs a shape's plan on inputs that eager has run on, and compares with what it gave. False: they differ (an event
 * says how). kept: by graph value, NULL: unknown. symbol: all of the run's. */
bool cc_verify_shape(const CcSegment *s, CcShape *shape, PyObject *const *kept, PyObject *const *symbol);
typedef struct CcCapturing CcCapturing;
/* Host callbacks for one run. */
typedef struct CcSegmentHost {
    const CcTrace *trace;
    const CcShape *shape;
    CcScratch *x;
    CcMaker maker;
    int at;                 /* node that was run last by the host, or wrote what was there before */
    CcCapturing *capturing; /* NULL, but while the run is captured */
    bool unsaved;           /* what a node would write could not be saved: it did not run */
    bool undone;            /* what nodes did was undone */
    bool lost;              /* that was tried and failed */
    bool unlike;            /* a node gave a tensor of another shape than when it was recorded */
} CcSegmentHost;
CcHost cc_segment_host(CcSegmentHost *h, const CcTrace *t, const CcShape *shape, CcScratch *x);
CC_MUST int cc_segment_set_states(CcSegmentHost *h); /* what nodes set of torch's own state, once more */
/* The call is done in another way: what this graph has set is as it was where it began. */
void cc_segment_restore(CcSegmentHost *h);
CcMaker cc_segment_maker(const CcTrace *t, CcScratch *x, bool shared);
/* Operands of an action as new references in `in`, which has room for CC_CALL_MAX. -1 with the error set. */
enum { CC_CALL_MAX = 256 };
CC_MUST int cc_segment_operands(const CcTrace *t, const CcMaker *m, const CcAction *a, PyObject **in);
/* Keeps a node's result in x->value. */
CC_MUST int cc_segment_store(CcSegmentHost *h, int node, PyObject *result);

/* capture.c: CUDA graphs of a shape's plan. NULL: it is none for a GPU */
CcCaptures *cc_capture_new(const CcSegment *s, const CcShape *shape);
void cc_capture_free(CcCaptures *c);
/* Runs the plan as a graph: 0; -1 with the error set; or it is to be run as it is, and nothing happened yet. */
enum { CC_CAPTURE_NOT = 1 };
CC_MUST int cc_capture_run(CcSegment *s, CcSegmentHost *h, const CcHost *host);
/* "2 CUDA graphs, 17 replays", or why there is none */
void cc_capture_describe(const CcCaptures *c, CcSbuf *out);
void cc_capture_keep(CcCapturing *c, PyObject *block); /* it lives as long as the graph */
/* A kernel that is captured will write this tensor. counted: and torch counts it. */
CC_MUST int cc_capture_wrote(CcCapturing *c, PyObject *o, bool counted);
/* before a host step */
CC_MUST int cc_capture_call(CcCapturing *c, const CcNode *node, const CcAction *a, PyObject *const *in);

/* unrun.c: what a run wrote, and the random numbers that it drew */
struct CcUnrunWrite {
    PyObject *tensor, *saved; /* strong; saved NULL: the bytes below, if any */
    uint64_t version;
    void *at;
    int64_t n;
    char *copy;
};
typedef struct CcUnrun {
    CC_VEC(struct CcUnrunWrite) write;
    PyObject *random; /* strong; NULL: none were drawn */
} CcUnrun;
CC_MUST int cc_unrun_random(CcUnrun *u);
CC_MUST int cc_unrun_write(CcUnrun *u, PyObject *tensor); /* it will be written */
void cc_unrun_bytes(CcUnrun *u, PyObject *tensor);        /* the same, for a small one on the CPU */
void cc_unrun_count(CcUnrun *u, PyObject *tensor);        /* what is written again needs no more */
/* 0: all is as before, and an error that is set stays so. -1: something is not, with an error of its own. */
CC_MUST int cc_unrun_all(CcUnrun *u);
void cc_unrun_free(CcUnrun *u);

/* shape.c */
void cc_shape_first(CcRoot *root, CcSegment *s); /* the recorded one */
/* Finds the shape of this run's key and evaluates its symbols. -1; else the symbolic guard that does not hold (past the
 * last one: a size is below 2, or a result is of another kind). */
int cc_shape_find(CcSegment *s, CcScratch *x);
/* Runs the nodes by torch for a new key and makes its shape. The host's `at` tells how far it came. */
CC_MUST CcRan cc_shape_explore(CcSegment *s, CcSegmentHost *host, CcScratch *x);
/* The same without a run, where rules hold: 0; -1: not known, or a plan is not worth it, and nothing happened. */
int cc_shape_derive(CcSegment *s, CcSegmentHost *host, CcScratch *x);
void cc_shape_paid(CcSegment *s, uint64_t ns); /* and what that took, with the run */
void cc_shape_free(const CcTrace *t, CcShape *shape);
/* A node gave something else than its types say: where rules gave them, torch runs the nodes from now on. */
void cc_shape_unlike(CcSegment *s, CcShape *shape);
/* True: done, or its guard holds. False without an error: it does not hold. */
bool cc_shape_step(const CcTrace *t, const CcMaker *m, const CcSymStep *step, CcScratch *x);
bool cc_shape_odd(const CcTrace *t, const CcScratch *x); /* a number is none that kernels take */
/* The node's op and operands as its arguments are now; a node that does not bind any more is the host's. */
void cc_shape_bind(const CcTrace *t, const CcScratch *x, CcGraph *g, int node, PyObject *const *in);
/* contiguous() and its kind, when there is nothing to do: one object where there were two, or two where there was
 * one. */
bool cc_shape_others(const CcTrace *t, const CcScratch *x, const CcNode *n);
bool cc_shape_length(const CcNode *n, PyObject *r); /* a sequence of as many results */
/* Results as torch gave them. False: other kinds of results than in the recording. */
bool cc_shape_take(const CcTrace *t, const CcScratch *x, CcGraph *g, int node);

/* derive.c: the graph of a new key by rules. NULL: not known. Symbols are evaluated; no error is set. */
CcGraph *cc_derive_graph(CcSegment *s, CcSegmentHost *host, CcScratch *x);
bool cc_derive_same(const CcGraph *a, const CcGraph *b, int *node); /* and where they differ */
/* Takes over the trace. NULL with MemoryError. */
CcSegment *cc_segment_new(CcRoot *root, CcTrace *trace);

/* freeze.c: NULL when the graph has no frozen input */
CcFreeze *cc_freeze_new(const CcGraph *g);
void cc_freeze_free(CcFreeze *f);
/* A run with these values; NULL: nothing. false: eager uses casts that autocast has made of parameters before they were
 * written. */
bool cc_freeze_begin(CcFreeze *f, PyObject *const *value);
/* CcHost.version of a frozen value. */
uint64_t cc_freeze_stamp(CcFreeze *f, int value, PyObject *tensor);

void cc_segment_free(CcSegment *s);

/* Records, or continues from an entry that ended in a break (x holds its values). */
CC_MUST CC_NEW PyObject *cc_region_record(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames,
                                          const CcMode *mode);
CC_MUST CC_NEW PyObject *cc_region_continue(CcRoot *root, CcSegment *s, CcScratch *x);

/* pace.c: a call from CcPace.from on. True: it is to be made eagerly; and its end is told. */
void cc_pace_start(CcRoot *root);
CC_MUST bool cc_pace_begin(CcRoot *root, CcLap *lap);
void cc_pace_end(CcRoot *root, const CcLap *lap, bool ok);

void cc_root_publish_entry(CcRoot *root, CcTrace *trace, int n_args, PyObject *kwnames);
CcPoint *cc_root_point(CcRoot *root, CcAct *const *acts, int n, bool create);
void cc_root_failure(CcRoot *root, const CcSegment *s, int guard);

#endif
