/* eval_int: what eval's files share. */
#ifndef CC_EVAL_INT_H
#define CC_EVAL_INT_H

#include "eval.h"

/* Scratch of one segment run: guard values, graph values, effect results, shared objects of recipes. */
typedef struct CcScratch {
    PyObject **gv, **value, **effect, **built;
    int n_value, n_effect, n_built;
    PyObject **heap;
    PyObject *small[160];
} CcScratch;

void cc_segment_open(const CcSegment *s, CcScratch *x);     /* arrays, zeroed */
void cc_segment_drop(CcScratch *x);                         /* drops what they hold */
void cc_segment_close(CcScratch *x);                        /* the same, and frees them */
/* Guards: -1 pass, else the failing guard. gv is filled on a pass. */
int cc_segment_check(const CcSegment *s, CcScratch *x, const CcGuardState *state);
/* Plan and effects. 0; -1 with the error set; *pure_failure: nothing was changed yet, so it may be done again eagerly. */
CC_MUST int cc_segment_exec(CcSegment *s, CcScratch *x, bool *pure_failure);
CC_MUST CC_NEW PyObject *cc_segment_make(const CcSegment *s, CcScratch *x, int recipe);
/* Runs the plan on the recorded inputs and compares with the recorded outputs. False: they differ (an event says how). */
bool cc_verify_segment(CcSegment *s);
/* Host callbacks for one run. */
typedef struct CcSegmentHost {
    const CcTrace *trace;
    const CcPlan *plan;
    CcFreeze *freeze;
    CcRing *ring;
    CcScratch *x;
    CcMaker maker;
    int at;              /* node that was run last by the host */
} CcSegmentHost;
CcHost cc_segment_host(CcSegmentHost *h, const CcSegment *s, CcScratch *x);
/* Takes over the trace. NULL with MemoryError. */
CcSegment *cc_segment_new(CcRoot *root, CcTrace *trace);

/* freeze.c: NULL when the graph has no frozen input */
CcFreeze *cc_freeze_new(const CcGraph *g);
void cc_freeze_free(CcFreeze *f);
/* CcHost.version of a frozen value. */
uint64_t cc_freeze_stamp(CcFreeze *f, int value, PyObject *tensor);

void cc_segment_free(CcSegment *s);

/* Records, or continues from an entry that ended in a break (x holds its values). */
CC_MUST CC_NEW PyObject *cc_region_record(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames, const CcMode *mode);
CC_MUST CC_NEW PyObject *cc_region_continue(CcRoot *root, CcSegment *s, CcScratch *x);

void cc_root_publish_entry(CcRoot *root, CcTrace *trace, int n_args, PyObject *kwnames);
CcPoint *cc_root_point(CcRoot *root, CcAct *const *acts, int n, bool create);
void cc_root_failure(CcRoot *root, const CcSegment *s, int guard);
PyObject *cc_root_raise_unsupported(const CcBreakInfo *why);

#endif
