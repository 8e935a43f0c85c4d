/* grad: the backward of a recorded graph.
 *
 * A graph that autograd must see is cut into stages (stage.c): sets of nodes that one node of autograd's graph stands
 * for. For each stage, joint.c makes two graphs from the derivatives of its nodes (rules.c):
 *
 *   forward:   inputs of the stage --> its outputs, and the values that the backward reads ("saved")
 *   backward:  saved values, gradients of the outputs --> gradients of the inputs
 *
 * Both number their values alike; a value that one graph does not make is an input of it. */
#ifndef CC_GRAD_H
#define CC_GRAD_H

#include "../ir/ir.h"

/* A set of nodes that run as one. Values and nodes are those of the whole graph, in program order. */
typedef struct CcStage {
    CC_VEC(int) node;
    CC_VEC(int) in;  /* values that it reads and does not make */
    CC_VEC(int) out; /* values that it makes and others read */
    bool frees;      /* eager saves tensors for its backward, so that it can't go through it twice */
} CcStage;
typedef struct CcStageStep {
    int node;  /* the host runs this node; -1: a stage */
    int stage; /* index into CcStages.stage */
} CcStageStep;
typedef struct CcStages {
    CC_VEC(CcStage) stage;
    CC_VEC(CcStageStep) step; /* in execution order */
} CcStages;

/* Cuts the graph. host[node]: the host must run this node; stages consist of others. No output of a stage is computed
 * from another output of the same stage: autograd treats all outputs of a node alike, so a gradient of one with
 * respect to the other, or a hook on it, would get a wrong gradient. And a backward through one output goes through
 * what another one depends on only if eager's does (apart.c). */
void cc_stage_split(const CcGraph *g, const bool *host, CcStages *out);
void cc_stage_free(CcStages *s);

/* draws.c: splits random ops into draws (CC_OP_draw), which the host makes, and pure ops. Values keep their numbers.
 * whole[node]: stays as it is. */
void cc_draws_split(CcGraph *g, const bool *whole);

/* batch.c: splits batch norms in training; the parts have no recorded action (host: -1). */
void cc_batch_split(CcGraph *g, const bool *whole);

/* versions.c: makes in-place ops on the graph's own memory pure; earlier versions of a value get new numbers, in the
 * order of their writes. */
typedef struct CcVersion {
    int node, value; /* an in-place op, and what it writes */
    int before;      /* the value as it was before */
} CcVersion;
typedef struct CcVersions {
    bool *kept; /* [CcNode.origin] in-place ops that stay */
    CC_VEC(CcVersion) write;
} CcVersions;
void cc_versions_split(CcGraph *g, CcVersions *out);
int cc_versions_of(const CcVersions *s, int value);    /* the value that this one is an earlier version of; -1: none */
int cc_versions_count(const CcVersions *s, int value); /* number of its earlier versions */

/* Whether rules.c can differentiate the node, with respect to the operands that require gradients. */
bool cc_rules_take(const CcGraph *g, int node);
/* Whether autograd computes a gradient for this value. */
bool cc_rules_needs(const CcGraph *g, int value);

typedef struct CcJoint {
    CcGraph *forward, *backward;
    CC_VEC(int) node; /* [node of `forward`] the node of the whole graph; -1: torch cannot run it */
    CC_VEC(int) of;   /* [node of `forward`] the node of the whole graph that it is a part of; -1: unknown */
    CC_VEC(int) by;   /* [node of `backward`] the node of the whole graph whose derivative needs it; -1: unknown */
    /* values of `forward` that `backward` reads; inputs and outputs of the stage may be among them */
    CC_VEC(int) saved;
    CC_VEC(int) seed; /* [output of the stage] value of `backward` that holds its gradient; -1: it has none */
    /* [input of the stage] value of `backward`, its gradient; -1: none, or nobody wants it */
    CC_VEC(int) grad;
} CcJoint;
/* given[k]: output k has a gradient. wanted[k]: the gradient of input k is needed, if it can have one. first: the
 * joint graph whose forward runs: `saved` is among its own; NULL: this one's does, and has all gradients. False: a node
 * has no derivative. */
bool cc_joint_make(const CcGraph *g, const CcStage *stage, const bool *given, const bool *wanted, const CcJoint *first,
                   CcJoint *out);
void cc_joint_free(CcJoint *j);

#endif
