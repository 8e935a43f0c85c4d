/* eval_int: declarations shared by eval's files. */
#ifndef CC_EVAL_INT_H
#define CC_EVAL_INT_H

#include "eval.h"

/* Scratch of one segment run: guard values, graph values, effect results, shared objects of recipes. */
typedef struct CcCallState {
    PyObject **gv, **value, **effect, **built, **symbol;
    int n_value, n_effect, n_built, n_symbol;
    CcShape *shape;          /* the shape of this run's key, held; NULL: a new key */
    int misfit;              /* CC_RAN_MISFIT: the symbolic guard */
    bool unfit;              /* a number is out of range for kernels (CcSymKernel) */
    struct CcRollback *undo; /* borrowed: what this run can undo */
    struct CcAhead *ahead;   /* ahead.c; NULL: nothing drawn */
    int64_t key[CC_KEY_MAX];
    int n_key;
    PyObject **heap;
    PyObject *small[160];
} CcCallState;

/* ahead.c: draws ints into gv: -1, or the guard of one that could not be drawn, with nothing drawn. */
int cc_ahead_draw(const CcTrace *t, CcCallState *x);
void cc_ahead_undo(CcCallState *x); /* puts the generators' states back */
void cc_ahead_free(CcCallState *x); /* keeps what was drawn */

void cc_segment_open(const CcSegment *s, CcCallState *x); /* arrays, zeroed */
void cc_segment_drop(CcCallState *x);                     /* drops the references in them */
void cc_segment_close(CcCallState *x);                    /* the same, and frees them */
/* Checks the guards: -1: all pass, and gv is filled; else the failing guard (symbolic guards follow the others). */
int cc_segment_check(CcSegment *s, CcCallState *x, const CcGuardState *state);
/* Runs the plan and effects; for a new key, torch runs the nodes, and a plan is made. */
typedef enum CcRan {
    CC_RAN,
    CC_RAN_MISFIT,  /* a symbolic guard fails for this key; nothing has happened, no error is set */
    CC_RAN_FAILED,  /* the error is set */
    CC_RAN_NOTHING, /* the same, but nothing has changed yet: the call may run again eagerly */
} CcRan;
CC_MUST CcRan cc_segment_exec(CcSegment *s, CcCallState *x);
CC_MUST CC_NEW PyObject *cc_segment_make(const CcSegment *s, CcCallState *x, int recipe);
/* Runs a shape's plan on the inputs of an eager run and compares the results. False: they differ (an event says how).
 * kept: the run's values by graph value, NULL: unknown. symbol: all its symbols. */
bool cc_verify_shape(const CcSegment *s, CcShape *shape, PyObject *const *kept, PyObject *const *symbol);
/* Whether a result is eager's, but for rounding; half: half precision has limited its accuracy. */
bool cc_verify_close(PyObject *got, PyObject *want, CcDtype dtype, bool half);
double cc_verify_largest(PyObject *tensor); /* its largest element by amount; 0 if one is not finite */
/* Whether both are what rounding leaves of sums of such terms that cancel. */
bool cc_verify_cancelled(PyObject *got, PyObject *want, double terms);
typedef struct CcCapturing CcCapturing;
/* Host callbacks for one run. */
typedef struct CcSegmentHost {
    const CcTrace *trace;
    const CcShape *shape;
    CcCallState *x;
    CcMaker maker;
    int at;                 /* the last node that the host ran, or that wrote to existing memory */
    CcCapturing *capturing; /* NULL unless the run is being captured */
    bool unsaved;           /* the memory that a node writes could not be saved, so the node did not run */
    bool undone;            /* the nodes' writes were rolled back */
    bool lost;              /* the rollback failed */
    bool by_kernel;         /* a kernel failed, of a node that is not known */
    bool mismatch;          /* a node returned a tensor of another shape than recorded */
} CcSegmentHost;
CcHost cc_segment_host(CcSegmentHost *h, const CcTrace *t, const CcShape *shape, CcCallState *x);
void cc_segment_inputs(const CcTrace *t, CcCallState *x); /* the values of the graph's inputs that x lacks */
CC_MUST int cc_segment_set_states(CcSegmentHost *h);      /* repeats what nodes have set of torch's own state */
/* This node is going to draw random numbers: where to keep the generator's state; NULL: it need not be kept. */
void **cc_segment_drawing(const CcSegmentHost *h, int node);
CC_MUST int cc_segment_draws(const CcSegmentHost *h, int node); /* the same, and keeps it. 0, or -1 with an error set */
/* The call continues in another way: restores the state of torch that this graph has set. */
void cc_segment_restore(CcSegmentHost *h);
CcMaker cc_segment_maker(const CcTrace *t, CcCallState *x, bool shared);
/* Makes an action's operands as new references in `in`, which has room for CC_CALL_MAX. -1 with an error set. */
enum { CC_CALL_MAX = 256 };
CC_MUST int cc_segment_operands(const CcTrace *t, const CcMaker *m, const CcAction *a, PyObject **in);
/* Keeps a node's result in x->value. */
CC_MUST int cc_segment_store(CcSegmentHost *h, int node, PyObject *result);

/* capture.c: CUDA graphs of a shape's plan. NULL: the plan is not for a GPU */
CcCaptures *cc_capture_new(const CcSegment *s, const CcShape *shape);
void cc_capture_free(CcCaptures *c);
/* Runs the plan as a graph. 0; -1 with an error set; CC_CAPTURE_NOT: nothing has happened, run the plan itself. */
enum { CC_CAPTURE_NOT = 1 };
CC_MUST int cc_capture_run(CcSegment *s, CcSegmentHost *h, const CcHost *host);
/* "2 CUDA graphs, 17 replays", or why there are none */
void cc_capture_describe(const CcCaptures *c, CcSbuf *out);
void cc_capture_keep(CcCapturing *c, PyObject *block); /* keeps it alive as long as the graph */
/* A captured kernel will write to this tensor. counted: `_version` counts the write. */
CC_MUST int cc_capture_wrote(CcCapturing *c, PyObject *o, bool counted);
/* before a host step */
CC_MUST int cc_capture_call(CcCapturing *c, const CcNode *node, const CcAction *a, PyObject *const *in);

/* observe.c: around a call of a root, if anybody watches it */
typedef struct CcObserved {
    CcSpan span;
    CcRoot *root;
    uint64_t start_ns;
} CcObserved;
void cc_observe_begin(CcObserved *o, CcRoot *root);
void cc_observe_end(CcObserved *o, bool raised);

/* metrics.c: a call of the root took so long */
void cc_metrics_call(CcRoot *root, uint64_t ns, bool raised);
int64_t cc_segment_memory(const CcSegment *s); /* the bytes that a run needs at most for values between its steps */

/* repro.c */
bool cc_repro_wanted(void);
bool cc_repro_waits(void); /* there are descriptions to deliver */
void cc_repro_deliver(void);
/* Describes a graph that failed, given an eager run's values and symbols. Keeps a pending error. */
void cc_repro_keep(const CcSegment *s, PyObject *const *kept, PyObject *const *symbol, const char *why);

/* tell.c */
void cc_tell_segment(const CcSegment *s);
void cc_tell_plan(const CcSegment *s, const CcShape *shape);

/* rollback.c: undo log of a run: its writes and random numbers */
struct CcRollbackWrite {
    PyObject *tensor, *saved; /* strong; saved NULL: its bytes are below, if any */
    uint64_t version;
    void *at;
    int64_t n;
    char *copy;
    int node; /* that writes it; of bytes */
};
typedef struct CcRollback {
    CC_VEC(struct CcRollbackWrite) write;
    PyObject *random; /* strong: all generators' states, before nodes that may draw from any; NULL: there were none */
    CC_VEC(struct CcRollbackDraw {
        void *before; /* draw.c: the state of the CPU's default generator */
        int node;     /* that drew from there */
    }) draw;
} CcRollback;
CC_MUST int cc_rollback_random(CcRollback *u);
CC_MUST int cc_rollback_write(CcRollback *u, PyObject *tensor);    /* it will be written to */
void cc_rollback_bytes(CcRollback *u, PyObject *tensor, int node); /* the same, for a small tensor on the CPU */
void cc_rollback_count(CcRollback *u, PyObject *tensor); /* saves only `_version`; the data will be overwritten */
/* 0: everything is restored, and a pending error stays set. -1: something is not, and an error about it is set. */
CC_MUST int cc_rollback_all(CcRollback *u);
void cc_rollback_free(CcRollback *u);

/* What a node behind `node`, where the run ends, has drawn or written before its turn. 0, or -1 with an error set. */
CC_MUST int cc_rollback_later(CcRollback *u, CcSegmentHost *h);

/* again.c: the run has failed for good at h->at */
void cc_again_raise(CcSegmentHost *h);   /* in a kernel: finds the node that raises, and its exception */
void cc_again_compute(CcSegmentHost *h); /* values of nodes before, which the plan computes later or keeps in kernels */
/* Whether one of nodes [first, end) may have written to the tensor. */
bool cc_again_written(CcSegmentHost *h, int first, int end, PyObject *tensor);

/* shape.c */
void cc_shape_first(CcRoot *root, CcSegment *s); /* makes the recorded shape */
/* Finds the shape of this run's key and evaluates its symbols. -1: all hold; else the symbolic guard that fails (past
 * the last one: a size is below 2, or a result is of another kind). */
int cc_shape_find(CcSegment *s, CcCallState *x);
/* This run's shape from now on: nobody drops it before the run ends. */
void cc_shape_hold(CcCallState *x, CcShape *shape);
/* Makes the plan, which does not run, anew, with the packed copies that pay by now. */
void cc_shape_repack(CcSegment *s, CcShape *shape);
/* Lets torch run the nodes for a new key, and makes its shape. The host's `at` tells how far it got. */
CC_MUST CcRan cc_shape_explore(CcSegment *s, CcSegmentHost *host, CcCallState *x);
/* The same by rules, without a run: 0; -1: types are unknown, or a plan is not worth it; nothing has happened. */
int cc_shape_derive(CcSegment *s, CcSegmentHost *host, CcCallState *x);
void cc_shape_charge(CcSegment *s, uint64_t ns); /* reports the time that this took, including the run */
void cc_shape_free(const CcTrace *t, CcShape *shape);
/* A node returned something that its types don't describe: if rules derived them, torch runs the nodes from now on. */
void cc_shape_reject_derived(CcSegment *s, CcShape *shape);
/* Runs a step. False without an error: its guard does not hold. */
bool cc_shape_step(const CcTrace *t, const CcMaker *m, const CcSymStep *step, CcCallState *x);
bool cc_shape_out_of_range(const CcTrace *t, const CcCallState *x); /* a number is out of range for kernels */
/* Binds the node's op and operands to its current arguments; a node that no longer binds becomes a host node. */
void cc_shape_bind(const CcTrace *t, const CcCallState *x, CcGraph *g, int node, PyObject *const *in);
/* contiguous() and its kin return their operand or a new tensor depending on the layout: whether the node has other
 * identities among its operands and results than recorded. */
bool cc_shape_identities_differ(const CcTrace *t, const CcCallState *x, const CcNode *n);
bool cc_shape_length(const CcNode *n, PyObject *r); /* r is a sequence with the recorded number of results */
/* The type of input i now. requires_grad is the recording's: guards compare what it is when the call begins, and the trace
 * may change it (x.requires_grad_()). */
CcType cc_shape_input(const CcTrace *t, const CcCallState *x, int i);
/* Takes the types of torch's results. False: the results are of other kinds than recorded. */
bool cc_shape_take(const CcTrace *t, const CcCallState *x, CcGraph *g, int node);

/* derive.c: the graph of a new key by rules. NULL: unknown. Evaluates symbols; sets no error. */
CcGraph *cc_derive_graph(CcSegment *s, CcSegmentHost *host, CcCallState *x);
/* grad: values must agree in requires_grad, too; node: where they differ */
bool cc_derive_same(const CcGraph *a, const CcGraph *b, bool grad, int *node);
/* Takes ownership of the trace. NULL with MemoryError. */
CcSegment *cc_segment_new(CcRoot *root, CcTrace *trace);

/* copies.c: whether packed copies of a plan's parameters pay */
typedef struct CcCopies {
    uint64_t ns[3];       /* shortest run of each kind; 0: not timed yet */
    double changed, same; /* runs of late, by whether a parameter had changed */
    bool plain;           /* the plan has no copies of what changes */
    int runs, wait;       /* runs since the plan changed; least runs until it may change again */
    int next;             /* runs without copies after they were given up */
} CcCopies;
enum { CC_RUN_PACKS, CC_RUN_REUSES, CC_RUN_PLAIN }; /* CcCopies.ns */
/* Counts a run that took `ns`. True: the other kind of plan is needed; c->plain tells which. */
bool cc_copies_ran(CcCopies *c, bool changed, uint64_t ns);
void cc_copies_count(double *sum, bool one);         /* adds a run to a count of recent runs */
void cc_copies_tell(const CcCopies *c, int segment); /* an event, after it turned */

/* freeze.c: NULL when the graph has no frozen input. adapts: copies that do not pay are given up */
CcFreeze *cc_freeze_new(const CcGraph *g, bool adapts);
void cc_freeze_free(CcFreeze *f);
/* Begins a run with these values; f may be NULL. False: eager would use casts that autocast made of parameters before
 * they were written to. */
bool cc_freeze_begin(CcFreeze *f, PyObject *const *value);
/* CcHost.version of a frozen value. */
uint64_t cc_freeze_stamp(CcFreeze *f, int value, PyObject *tensor);
/* Ends a run that succeeded. True: marks in the graph (CcVal.changes) have changed, so another plan is faster. */
bool cc_freeze_end(CcFreeze *f, CcGraph *g);
void cc_freeze_fix(CcFreeze *f);                     /* the plan stays as it is; f may be NULL */
void cc_freeze_tell(const CcFreeze *f, int segment); /* why the marks have changed, as an event */

void cc_segment_free(CcSegment *s);
int cc_segment_traverse(const CcSegment *s, visitproc visit, void *arg);

/* ---- autograd.c: nodes of autograd's graph that run C functions ---- */
typedef struct CcAutogradResults {
    CC_VEC(PyObject *) out, saved; /* new references; inputs and outputs may be saved */
    CC_VEC(bool) differentiable;   /* [out] */
    bool frees;                    /* a second backward without retain_graph raises */
} CcAutogradResults;
typedef struct CcAutogradKind {
    /* Runs with grad mode off. 0, or -1 with an error set; what is in *r is released in any case. */
    int (*forward)(void *run, CcAutogradResults *r);
    /* given[i]: the gradient of output i, or None. Fills grad[i], a new reference, for each input that wants one; NULL:
     * it has none. May take references out of saved[], so that memory is freed early. 0, or -1 with an error set. */
    int (*backward)(void *run, PyObject **saved, PyObject *const *given, const bool *wanted, PyObject **grad);
    void (*free)(void *run);
} CcAutogradKind;
bool cc_autograd_ready(void); /* false: this torch has no such nodes */
/* Runs kind->forward as a node with these differentiable inputs, and owns `run` from now on. Fills out[0..n_out) with
 * new references. 0, or -1 with an error set. */
CC_MUST int cc_autograd_apply(const CcAutogradKind *kind, void *run, PyObject *const *in, int n_in, PyObject **out,
                              int n_out);

/* ---- formulas.c ---- */
/* Makes sure that torch has been asked for its formulas. False: that failed for now, so no derivative is known. */
bool cc_formulas_ask(void);

/* ---- draw.c ---- */
/* torch.empty(type).bernoulli_(p) of bools on the CPU; the type is dense. before: becomes a copy of the generator's
 * state before the draw, for cc_draw_restore, which the caller frees; NULL: not wanted. */
CC_MUST CC_NEW PyObject *cc_draw_bools(const CcType *type, double p, void **before);
/* the same, into memory. 0, or -1 with an error set */
CC_MUST int cc_draw_into(uint8_t *out, int64_t n, double p, void **before);
CC_MUST int cc_draw_keep(void **before); /* only the copy: torch is going to draw */
CC_MUST int cc_draw_restore(const void *before);

/* ---- repeat.c ---- */
bool cc_repeat_takes(const CcNode *n); /* a node that draws.c or batch.c made, which has no recorded action */
/* Sets the node's results, new references. -1 with an error set. */
CC_MUST int cc_repeat_node(const CcGraph *g, const CcNode *n, PyObject **value);

/* ---- aten.c ---- */
bool cc_aten_takes(const CcNode *n); /* a derivative that torch's own kernels compute */
/* The node's result. NULL with an error set. */
CC_MUST CC_NEW PyObject *cc_aten_call(const CcGraph *g, const CcNode *n, PyObject *const *value);

/* ---- training.c: plans of graphs that autograd must see ---- */
/* NULL: no stage of the graph is worth it, or can be compiled; torch runs the nodes. */
CcTraining *cc_training_new(const CcSegment *s, const CcGraph *g);
void cc_training_free(CcTraining *t); /* nodes of autograd's graph that still use it keep it */
int cc_training_traverse(const CcTraining *t, visitproc visit, void *arg); /* the objects that only its segment holds */
/* Runs stages and host nodes. 0; -1 with an error set, and h->at says where; CC_TRAINING_NOT: nothing has happened,
 * torch must run all nodes. */
enum { CC_TRAINING_NOT = CC_CAPTURE_NOT };
CC_MUST int cc_training_run(CcTraining *t, CcSegmentHost *h);
bool cc_training_outside(const CcTraining *t); /* a backward has run after the call of its forward had ended */
void cc_training_print(const CcTraining *t, CcSbuf *out);
/* For reports: a plan of a stage, or a node that torch runs between stages. */
typedef struct CcTrainingPart {
    const char *kind;      /* "forward", "backward", "torch" */
    int stage;             /* -1: a node */
    const CcPlan *plan;    /* NULL: torch runs it */
    int *origin, n_origin; /* [node of the plan's graph] the trace's node, or -1; none for a backward */
    int node;              /* the trace's node */
    const char *op, *why;  /* why torch runs it */
    int saved;             /* tensors that the forward saves; bytes: of all, and of those that the stage makes */
    int64_t saved_bytes, made_bytes;
} CcTrainingPart;
typedef void (*CcTrainingTell)(void *ctx, const CcTrainingPart *part);
void cc_training_visit(const CcTraining *t, CcTrainingTell tell, void *ctx); /* in the order of the forward */

/* listing.c: plain Python data for reports */
CC_MUST int cc_listing_put(PyObject *dict, const char *key, PyObject *value); /* steals value; NULL: -1 */
/* Steals the reference; if the item is NULL, or memory is short, clears the list. */
void cc_listing_add(PyObject **list, PyObject *item);
CC_MUST PyObject *cc_listing_text(CcSbuf *sb); /* frees sb */
typedef struct CcListed {                      /* where a segment belongs */
    const CcRoot *root;
    const CcEntry *entry; /* NULL: behind a break */
    const CcPoint *point; /* NULL: an entry's */
} CcListed;
/* Adds the keys nodes, inputs, result and plans (_core.pyi). shape: NULL: none was planned. */
CC_MUST int cc_listing_fill(PyObject *dict, const CcSegment *s, const CcShape *shape, const CcListed *of);

/* Records a call, or continues from an entry that ended in a break (x has its values). */
CC_MUST CC_NEW PyObject *cc_region_record(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames,
                                          const CcMode *mode);
bool cc_region_is_here(const void *region); /* one of this thread's */
bool cc_eval_deep(void);                    /* a region more would take too much C stack */
CC_MUST CC_NEW PyObject *cc_region_continue(CcRoot *root, CcSegment *s, CcCallState *x);

/* ---- handed.c ---- */
CC_MUST CC_NEW PyObject *cc_handed_list(const CcRoot *root); /* the root's, as a list of _core.Compiled */
bool cc_handed_inside(PyObject *callable);                   /* whether a call of it may hand a function to torch */
/* If torch keeps a function that is an argument of this frame, replaces the argument with a compiled function; false: it
 * doesn't, or there is no memory. */
bool cc_handed_replace(CcRoot *root, CcAct *act);

/* ---- stretch.c ---- */
/* Whether the act's next instruction, which follows a break, still belongs to the break. *arrays: the act that works on
 * numpy arrays. */
bool cc_stretch_goes_on(const CcAct *act, const CcAct **arrays);

/* pace.c: a call from CcPace.from on. True: it should run eagerly. Its end is reported. */
void cc_pace_start(CcRoot *root);
CC_MUST bool cc_pace_begin(CcRoot *root, CcLap *lap);
void cc_pace_end(CcRoot *root, const CcLap *lap, bool ok);
uint64_t cc_pace_time(const char *kind, uint64_t ns); /* ns, or what the clock of tests says */

void cc_root_publish_entry(CcRoot *root, CcTrace *trace, int n_args, PyObject *kwnames);
/* Nobody frees entries and segments before cc_root_leave; a reset waits for it. */
void cc_root_enter(CcRoot *root);
void cc_root_leave(CcRoot *root);
bool cc_root_defers(CcRoot *root); /* whether a knob leaves code that no entry fits to eager, this time */
CcPoint *cc_root_point(CcRoot *root, CcAct *const *acts, int n, bool create);
void cc_root_failure(CcRoot *root, const CcSegment *s, int guard);

#endif
