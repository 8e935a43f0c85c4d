/* grad_int: a joint graph while rules add the backward of its nodes. */
#ifndef CC_GRAD_INT_H
#define CC_GRAD_INT_H

#include "grad.h"

typedef struct Adjoint {
    CcGraph *g; /* the stage's nodes, then nodes of the backward */
    /* [value] of the given graph, and of nodes that compose.c has differentiated since */
    int *grad;    /* its gradient so far, a value; -1: none */
    bool *wanted; /* its gradient is needed */
    int n_val;    /* length of these */
    int before;   /* new nodes are inserted before this one (cc_edit_insert); -1: appended */
} Adjoint;

static inline CcOperand value_of(int v) { return (CcOperand){.kind = CC_IN_VALUE, .value = v}; }
static inline CcOperand int_of(int64_t i) { return (CcOperand){.kind = CC_IN_INT, .i = i}; }
static inline CcOperand float_of(double f) { return (CcOperand){.kind = CC_IN_FLOAT, .f = f}; }
static inline CcOperand none(void) { return (CcOperand){.kind = CC_IN_NONE}; }

/* Valid until the next node is made. */
static inline CcType *type_of(const Adjoint *a, int value) { return &a->g->val.at[value].type; }
static inline bool wants(const Adjoint *a, CcOperand o) { return o.kind == CC_IN_VALUE && a->wanted[o.value]; }

/* ---- adjoint.c: nodes with one result. -> the result ---- */
int cc_adjoint_in(Adjoint *a, CcOpId op, const CcType *type, const CcOperand *in, int n_in);
#define emit(a, op, type, ...)                                                                                         \
    cc_adjoint_in(a, op, type, (const CcOperand[]){__VA_ARGS__},                                                       \
                  (int)(sizeof((const CcOperand[]){__VA_ARGS__}) / sizeof(CcOperand)))
/* The same by the names of the row's operands. */
int cc_adjoint_make_in(Adjoint *a, CcOpId op, const CcType *type, const void *in);
#define make(a, op, type, ...) cc_adjoint_make_in(a, CC_OP_##op, type, &(const CcIn_##op){__VA_ARGS__})
/* Inserts a node with several results, or with existing ones: the values from `out` on. */
void cc_adjoint_insert(Adjoint *a, CcOpId op, const CcOperand *in, int n_in, int out, int n_out);
/* Drops the node that a->before names, a copy of which is `by`: nodes and values from these on replace it in autograd's
 * graph. */
void cc_adjoint_replaced(Adjoint *a, const CcNode *by, int first_node, int first_value);
/* Is it an f32 tensor on the CPU with these sizes? At most 3 dims. */
bool cc_adjoint_is_f32(const CcGraph *g, CcOperand o, int ndim, int64_t a, int64_t b, int64_t c);
CcType cc_adjoint_dense(const CcType *t);    /* contiguous, without requires_grad */
CcType cc_adjoint_channels(const CcType *x); /* a number for each channel of x: [1, C, 1, ..] */
/* The type of a gradient: that of its value, with the same strides if these are dense; so what a permuted value was
 * computed from gets its gradient without a copy. */
CcType cc_adjoint_like(const CcType *t);
int cc_adjoint_reshaped(Adjoint *a, int v, const CcType *shape);             /* the elements of v in another shape */
int cc_adjoint_swapped(Adjoint *a, int v, int d, int e);                     /* two dims exchanged, as a view */
int cc_adjoint_part(Adjoint *a, int v, int dim, int64_t from, int64_t size); /* a slice, as a view */
int cc_adjoint_transposed(Adjoint *a, int v);          /* the last two dims exchanged, as a view */
int cc_adjoint_matrix(Adjoint *a, int v);              /* all leading dims as one */
int cc_adjoint_cast(Adjoint *a, int v, uint8_t dtype); /* v itself if it has the dtype */
/* x [.., m, k] @ y [.., k, n]; the result has the strides of a gradient of `like` if it has its shape, and its rows are
 * dense. like -1: it is contiguous */
int cc_adjoint_product(Adjoint *a, int x, int y, int like);
/* Adds to the gradient of a value. `by` has the value's shape, or, for _summed, one that it broadcasts to. */
void cc_adjoint_add(Adjoint *a, int value, int by);
void cc_adjoint_add_summed(Adjoint *a, int value, int by);

/* v, summed over the dims in which `to` was broadcast, with the dtype of `to`. */
int cc_adjoint_summed(Adjoint *a, int v, CcType to);
int cc_adjoint_expanded(Adjoint *a, int v, const CcType *x); /* a view with the sizes of x */

/* ---- spatial.c; as cc_rules_apply ---- */
bool cc_spatial_conv(Adjoint *a, const CcNode *n);
bool cc_spatial_conv_transpose(Adjoint *a, const CcNode *n);
bool cc_spatial_max_pool(Adjoint *a, const CcNode *n);
bool cc_spatial_avg_pool(Adjoint *a, const CcNode *n);
bool cc_spatial_adaptive_max_pool(Adjoint *a, const CcNode *n);
bool cc_spatial_adaptive_avg_pool(Adjoint *a, const CcNode *n);
bool cc_spatial_nearest(Adjoint *a, const CcNode *n);
bool cc_spatial_interpolation(Adjoint *a, const CcNode *n);
bool cc_spatial_im2col(Adjoint *a, const CcNode *n);
bool cc_spatial_group_norm(Adjoint *a, const CcNode *n);
bool cc_spatial_batch_norm(Adjoint *a, const CcNode *n);
bool cc_spatial_pad(Adjoint *a, const CcNode *n);

/* ---- sums.c ---- */
bool cc_sums_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */

/* ---- compose.c ---- */
bool cc_compose_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */

/* ---- moves.c ---- */
bool cc_moves_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */
/* Each element of a dim of v among step - 1 zeros, `at` of them before it; the last ones are cut off behind `room`
 * elements. */
int cc_moves_spread(Adjoint *a, int v, int dim, int64_t step, int64_t at, int64_t room);
/* A slice of x that drops dims or has steps. */
bool cc_moves_slice(Adjoint *a, const CcNode *n, int x);

/* ---- puts.c ---- */
bool cc_puts_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */

/* ---- casts.c: makes nodes of the casts that autocast hides. A node that reads one is marked as rewritten: the host
 * knows only the recorded operands ---- */
void cc_casts_split(CcGraph *g);

/* ---- recurrent.c ---- */
/* Replaces recurrent layers by nodes for each layer and direction. */
void cc_recurrent_split(CcGraph *g);
bool cc_recurrent_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */

/* ---- cell.c ---- */
void cc_cell_split(CcGraph *g); /* spells single steps of recurrent layers out */

/* ---- batch.c ---- */
bool cc_batch_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */
void cc_batch_lower(CcGraph *g);                  /* batch_normed is batch_norm for kernels */

/* ---- attention.c ---- */
bool cc_attention_apply(Adjoint *a, const CcNode *n); /* as cc_rules_apply */
/* Replaces attention_dropped by products, a softmax and pointwise nodes. */
void cc_attention_lower(CcGraph *g);

/* ---- function.c: custom autograd.Functions ---- */
void cc_function_split(CcGraph *g); /* replaces calls by their forward, with a mark behind it */
bool cc_function_is_mark(const CcNode *n);
bool cc_function_apply(Adjoint *a, const CcNode *mark);              /* as cc_rules_apply */
bool cc_function_has_gradient(const Adjoint *a, const CcNode *mark); /* one of the call's results has */
/* An operand's gradient is wanted: so are those of the results, whatever the forward computes in between: ints, bools. */
void cc_function_wants(Adjoint *a, const CcNode *mark);
/* Marks the values that eager saves for the backward. */
void cc_function_kept(const CcGraph *g, const CcNode *mark, bool *kept);
/* Marks what the forward has made, if an operand may be written to before the backward: this can't be computed again. */
void cc_function_pinned(const CcGraph *g, const CcNode *mark, bool *pinned);

/* ---- joint.c: replaces nodes by those that rules.c differentiates: with autocast's casts, and recurrent layers as their
 * parts ---- */
void cc_joint_spell(CcGraph *g);

/* Appends the backward of a node: adds to the gradients of its operands, given those of its results. False: there is
 * no rule; what was appended is not read. */
bool cc_rules_apply(Adjoint *a, int node);
/* Does eager save tensors for the node's backward, which it frees behind it? */
bool cc_rules_saves(const CcGraph *g, int node);
/* Does the node's backward read this operand or result? */
bool cc_rules_reads(const CcGraph *g, const CcNode *n, int value);

/* ---- apart.c: parts of a stage that autograd goes through one by one ---- */
typedef struct CcParts {
    const CcGraph *g;
    int words;         /* of a set of results */
    uint64_t *results; /* [value] NULL: not found yet */
    bool *unknown;     /* [value] */
} CcParts;
void cc_apart_free(CcParts *p);
/* Divides a stage: part[node], from 0 in the order in which they have to run. -> number of parts; 0: values were exposed,
 * and stages have to be cut again */
int cc_apart_divide(CcParts *p, const CcStage *s, bool *exposed, int *part);

#endif
