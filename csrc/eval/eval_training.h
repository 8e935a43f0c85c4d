/* eval_training: a stage's plans, and what one run of it keeps; for training.c, turns.c, staged.c and torchgrad.c. */
#ifndef CC_EVAL_TRAINING_H
#define CC_EVAL_TRAINING_H

#include "../grad/grad.h"
#include "eval_int.h"

/* The backward for some of the outputs' gradients, and some of the inputs'. */
typedef struct Backward {
    bool *given, *wanted; /* [output], [differentiable input] */
    CcJoint joint;
    CcPlan *plan;
    int refused;          /* without a plan: the node whose derivative no kernel computes; -1: unknown */
    bool verified, wrong; /* with the knob `verify`: compared with torch's; differs: torch computes the gradients */
} Backward;

typedef CC_VEC(int) GuardIds;

typedef struct Stage {
    const CcStage *cut;
    const CcJoint *joint; /* of the first backward, which has all gradients: `saved` and the forward are those of all */
    CcPlan *forward;
    CC_VEC(Backward *) backward;
    CC_VEC(int) diff; /* indices into cut->in: inputs that gradients flow to, as turns.c sorts them */
    int last_write;   /* index into cut->node; 0: there is none */
    bool plain;       /* none of its results has a gradient */
    bool functions;   /* custom autograd.Functions are among its nodes */
    /* for torchgrad.c */
    GuardIds source;      /* objects that nodes take, other than tensors */
    CC_VEC(int) saved_at; /* [input] index into joint.saved; -1: not saved */
    CC_VEC(int) kept;     /* inputs that are not saved, and from which saved values are computed */
    int keeper;           /* index into joint.saved: a value that nobody else has; joint.saved.n: an extra tensor */
} Stage;

struct CcTraining {
    int refs;
    bool open;            /* its segment still exists */
    const CcTrace *trace; /* while it is open */
    const CcRoot *root;   /* ... */
    CcTrace *part;        /* owned: the recorded nodes of its stages, for torchgrad.c */
    int n_gv, n_symbol;   /* of the trace */
    CcGraph *graph;       /* CcNode.origin: the trace's node */
    CcRunOptions options;
    CcVersions versions;
    int *unseen; /* [value] the last node that writes to its memory through `.data`; 0: none. NULL: no node does */
    CC_VEC(int) refused; /* nodes that no stage can have, because no kernel computes them or their derivative */
    CcStages cut;
    CC_VEC(Stage) stage; /* [stage of cut] */
    bool *moved;         /* [value] an input that a stage writes (running statistics); NULL: there is none */
    int *drop;           /* values, by the last step that reads them */
    int *drop_end;       /* [step] where its values end in `drop` */
    int id;              /* of the segment */
    bool verify;
    bool told_hooks, told_shared; /* events of is_hooked() and is_shared() (training.c) */
    bool outside;                 /* a backward has run after the call of its forward had ended */
    /* after a backward with create_graph=True: calls that run op by op, and how many of them are left */
    int rest, resting;
};

/* What a node of autograd's graph keeps. */
typedef struct Run {
    CcTraining *training;
    int stage;
    CC_VEC(PyObject *) symbol; /* strong: the call's */
    /* for torchgrad.c */
    CC_VEC(PyObject *) source; /* strong; lists and tuples are copies, with None for inputs of the stage */
    CC_VEC(int) place;         /* for each item of those: which input it was; -1: none */
    CC_VEC(uint64_t) version;  /* [kept input] when the forward ran */
    CcMode mode;               /* while the forward ran */
    uint64_t ended;            /* CcRoot.ended, while the forward ran */
    bool twice;                /* a backward's gradients could be differentiated */
    /* while the forward runs */
    CC_VEC(PyObject *) in; /* borrowed: the stage's inputs */
    CcSegmentHost *host;
} Run;

/* ---- training.c ---- */
void cc_training_release(CcTraining *t); /* one reference less */
/* A backward of the run begins; twice: its gradients will be differentiated. */
void cc_training_rest(Run *run, bool twice);
/* The backward for these gradients. Its plan is NULL if none could be made; torch computes them then. */
Backward *cc_training_backward(const CcTraining *t, Stage *s, const bool *given, const bool *wanted);

/* ---- staged.c: runs stage `stage` on the values of h, and sets its outputs there. 0, or -1 with an error set ---- */
CC_MUST int cc_staged_apply(CcTraining *t, int stage, CcSegmentHost *h);

/* Whether torch can run this node of a backward: derivatives of aten.c, products that no library takes (f64), and views
 * and reshapes of what they read. */
bool cc_staged_can(const CcGraph *g, const CcNode *n);
void cc_staged_drop(PyObject **value, int n); /* drops the references, and frees the array */

/* ---- turns.c ---- */
void cc_turns_order(const CcTraining *t, Stage *s); /* sorts `diff` */

/* ---- rejoin.c: second derivatives that eager computes through a result ---- */
/* Puts aliases of the tensors in their places. NULL with an error set; else what cc_rejoin_hand_on takes. */
CC_MUST CC_NEW PyObject *cc_rejoin_aliases(PyObject **in, int n_in, PyObject *const *y, int n_y);
/* The gradient of this result, computed again from the aliases, is from now on y[at]'s. 0, or -1 with an error set. */
CC_MUST int cc_rejoin_hand_on(PyObject *handed, int at, PyObject *result);

/* ---- torchgrad.c: a stage's gradients as torch computes them from its recorded nodes ---- */
void cc_torchgrad_plan(const CcTraining *t, Stage *s); /* which inputs it needs, given joint.saved */
/* Adds an object that nodes take, NULL if it does not exist, to the run's sources. 0, or -1 with an error set. */
CC_MUST int cc_torchgrad_note(Run *run, PyObject *source);
/* Keeps those inputs with the saved tensors, at the end of the forward. 0, or -1 with an error set. */
CC_MUST int cc_torchgrad_keep(Run *run, CcAutogradResults *r);
/* Differentiable if grad mode is on. Arguments as in CcAutogradKind.backward. */
CC_MUST int cc_torchgrad_make(Run *run, PyObject *const *saved, PyObject *const *given, const bool *wanted,
                              PyObject **grad);
/* Compares gradients with torch's; those are kept if they differ. False: they do. */
bool cc_torchgrad_verify(Run *run, PyObject *const *saved, PyObject *const *given, const bool *wanted, PyObject **grad);

#endif
