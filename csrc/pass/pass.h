/* pass: from a graph to groups of nodes, one group per step of the plan. Assumes a graph that cc_graph_check
 * accepts. Back-ends answer through CcGroupRules what they can take, so this layer knows no back-end. */
#ifndef CC_PASS_H
#define CC_PASS_H

#include "../ir/ir.h"

/* live[node], g->node.n entries: set for what outputs and effects need. */
void cc_dce_mark(const CcGraph *g, bool *live);
/* uses[value], zeroed by the caller: number of operands of live nodes that read the value or a window of it. */
void cc_dce_uses(const CcGraph *g, const bool *live, int *uses);

/* readers.c: node[begin[v]] .. node[begin[v + 1] - 1] read value v, in program order; a node that reads v twice
 * appears twice. */
typedef struct CcReaders {
    int *begin, *node;
} CcReaders;
bool cc_readers_find(const CcGraph *g, CcReaders *out); /* false: out of memory; nothing to free */
void cc_readers_free(CcReaders *r);

/* Questions to the back-ends; a NULL function answers "never". */
typedef struct CcGroupRules {
    CcDtype deflt;      /* torch's default dtype, CC_DT_OTHER when unknown */
    const bool *banned; /* [CcNode.origin]: only the host may run it; may be NULL */
    const bool *apart;  /* [CcNode.origin]: may not be a post-op; may be NULL */
    bool (*loop)(const CcGraph *g, int node, CcDtype deflt);
    bool (*prim)(const CcGraph *g, int node);
    /* May `node` become the next post-op of the library call chain[0] with post-ops chain[1..n)? */
    bool (*post)(const CcGraph *g, const int *chain, int n, int node);
    bool gathers;  /* GPU: a load from any address costs as much as one from the next address */
    bool into;     /* kernels may write memory that existed before the graph */
    bool scatters; /* kernels do writes at indices (pass/writes.c) */
    bool ordered;  /* kernels that write at indices must be deterministic */
    bool asserts;  /* a wrong index stops the kernel, as in eager; no fallback to eager */
    /* torch's convolutions give a channels-last result for a channels-last operand (cuDNN) */
    bool follows;
    unsigned skipped; /* passes to skip, as bits (order.c) */
    /* the variant of f32 gelu that torch's library computes (ops.def); 0: torch does not call a library */
    int gelu;
    bool (*gains_transposed)(const CcGraph *g, int node); /* is this product faster with its result transposed? */
} CcGroupRules;
/* Will this node be a kernel or a library call, or part of one? */
bool cc_group_takes(const CcGraph *g, int node, const CcGroupRules *rules);
/* For a node that was just rewritten: if no back-end takes it, undoes everything since the mark. */
bool cc_group_keeps(CcGraph *g, int node, CcEditMark mark, const CcGroupRules *rules);
bool cc_group_apart(const CcGraph *g, int node, const CcGroupRules *rules);
bool cc_group_banned(const CcGraph *g, int node, const CcGroupRules *rules);

/* pass.def: rewriting passes change the graph in place (ir/edit.c). Their graphs have windows and changed strides,
 * which cc_graph_check rejects; cc_graph_check_rewritten accepts them. */
#define CC_PASS(name, doc) void cc_##name##_rewrite(CcGraph *g, const CcGroupRules *rules);
#include "pass.def"
#undef CC_PASS
/* order.c: all passes */
void cc_order_rewrite(CcGraph *g, const CcGroupRules *rules);
/* Parses CCOMPILE_SKIP_PASSES, names separated by ',', for CcGroupRules.skipped. Sets *err for an unknown name. */
unsigned cc_order_skipped(const char *names, CcErr *err);

/* ---- what other code asks about nodes that a pass rewrites, or has rewritten ---- */
/* autocast.c: has autocast cast the operands of this pointwise node? The graph still has the uncast ones. */
bool cc_autocast_mixes(const CcGraph *g, const CcNode *n);
/* The dtype that eager's autocast cast operand `i` to, judging by the recorded types; CC_DT_OTHER: it did not.
 * parameters: also for inputs of the graph that a product casts itself. */
CcDtype cc_autocast_to(const CcGraph *g, const CcNode *n, int i, bool parameters);

/* pure.c: does this node write its first operand, and nothing else? */
bool cc_pure_is_write(const CcGraph *g, const CcNode *n);
/* Would the out-of-place op give what such a node leaves there? */
bool cc_pure_writes_same(const CcGraph *g, const CcNode *n);
/* Does this node put the view back where it comes from? */
bool cc_pure_puts_back(const CcGraph *g, int node, int value, int view);

/* contract.c: is this an einsum of one tensor that sums nothing? */
bool cc_contract_is_view(const CcGraph *g, const CcNode *n);
/* A sum of products over named dims: labels of all dims of each operand, and, as number n, of the result. */
enum { CC_TERMS_MAX = 5 };
typedef struct CcNamedSum {
    int n, value[CC_TERMS_MAX + 1], label[CC_TERMS_MAX + 1][CC_MAX_DIMS];
} CcNamedSum;
bool cc_contract_read(const CcGraph *g, const CcNode *n, CcNamedSum *out); /* einsum, tensordot, inner, multi_dot */

/* norms.c: would the pass turn this node into a kernel? (Tries the rewrite and undoes it.) */
bool cc_norms_takes(CcGraph *g, int node, const CcGroupRules *rules);

/* index.c: may a node that checks indices be a kernel at this position? */
bool cc_index_may(const CcGraph *g, int node);

/* into.c: a node rewritten by that pass: its result is the memory that it writes */
bool cc_into_is_write(const CcGraph *g, const CcNode *n);
/* Are these the same elements of the same memory? */
bool cc_into_same(const CcGraph *g, int a, int b);
/* The value whose memory this one may be, through windows and views. */
int cc_into_root(const CcGraph *g, int value);
/* May other memory that the graph names be this root's? Inputs are compared in each call (cc_plan_apart). */
bool cc_into_unknown(const CcGraph *g, int root);
bool cc_into_non_overlapping(const CcType *t); /* does no element share memory with another? */

/* views.c: a new value, a window of `value` with this type (and the same dtype). -> its number */
int cc_views_window(CcGraph *g, int value, const CcType *type);
int cc_views_part(CcGraph *g, int value, const CcType *type, int64_t offset); /* from that element on */
/* A window for a node to make instead of its result `value`: it is an output if that is one. */
int cc_views_result(CcGraph *g, int value, const CcType *type);
/* Elements between the first element of a view's operand and of the view. False: unknown. */
bool cc_views_offset(const CcGraph *g, const CcNode *view, int64_t *offset);

bool cc_transposed(const CcVal *v); /* transpose.c: stored column by column */
/* layout.c: is this one of torch's convolutions, whose operand and result may be channels-last (rules->follows)? */
bool cc_layout_follows(const CcGraph *g, int node, const CcGroupRules *rules);
/* separate.c: does a back-end take the node, or the parts that the pass will make of it? */
bool cc_separate_takes(const CcGraph *g, int node, const CcGroupRules *rules);

/* reach.c: the elements of tensor x that an op reads or writes, as a nest. Strides count elements. */
typedef struct CcReachIndex {
    int value;
    bool ends, mask;   /* ends: negative indices count from the end. mask: bools that select elements, not indices */
    int64_t count, by; /* in x: number of valid indices, elements from one index to the next */
    int64_t step[CC_MAX_DIMS];
} CcReachIndex;
typedef struct CcReach {
    CcType space;   /* sizes, and x's strides; stride 0 where an index determines the position */
    int64_t offset; /* x's first element */
    int n;
    CcReachIndex index[CC_MAX_DIMS];
} CcReach;
/* False: the op is not understood. `x`: the type of the tensor that is indexed or written. */
bool cc_reach_read(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *out);
/* A window with these strides over the space, from an element on; dims with stride 0 have size 1. */
CcOperand cc_reach_window(CcGraph *g, const CcReach *r, int value, const int64_t *step, int64_t offset);

/* How a written element combines with the old one, numbered as in scatter and put_at (ops.def). If several elements go
 * to one position, SET keeps any one of them. */
typedef enum CcPutHow { CC_PUT_SET, CC_PUT_SUM, CC_PUT_PROD, CC_PUT_MEAN, CC_PUT_MAX, CC_PUT_MIN } CcPutHow;

/* dropout.c: what a random op takes from torch's generator: a bool for each element of this type, in order of memory, which is
 * true with probability `keep`. False: not dropout, or nothing is drawn. */
typedef struct CcDraw {
    CcType type;
    double keep;
} CcDraw;
bool cc_dropout_read(const CcGraph *g, const CcNode *n, CcDraw *out);

/* store.c: what an op writes to the elements that cc_reach_read() finds. False: it does not write, or is not
 * understood. */
typedef struct CcStore {
    CcOperand source; /* a tensor, or one number for all elements */
    CcPutHow how;
    bool fresh;   /* x's own elements do not take part */
    bool sorted;  /* eager sums in a defined order */
    double scale; /* factor of the source */
} CcStore;
bool cc_store_read(const CcGraph *g, const CcNode *n, CcStore *out);
/* Strides of the source, a tensor, in the space of cc_reach_read(), in elements. False: its shape does not fit. */
bool cc_store_steps(const CcGraph *g, const CcNode *n, const CcStore *s, const CcType *space, int64_t *step);
/* The number that a sum, a product ... starts from. */
CcOperand cc_store_neutral(CcPutHow how, CcDtype dt);

/* pieces.c: the parts that joins, padding and rolling consist of. */
enum { CC_PIECES_MAX = 64 };
typedef struct CcPiece {
    int64_t begin, end; /* range in the result's dim */
    int64_t from;       /* first element in the operand's dim */
    int step;           /* 1, 0, -1 */
    int operand;        /* -1: the constant */
} CcPiece;
typedef struct CcCut {
    int dim, n;
    CcPiece *piece;
} CcCut;
typedef struct CcPieces {
    int n, n_piece;
    CcCut cut[CC_MAX_DIMS]; /* at most one per dim */
    CcPiece piece[CC_PIECES_MAX];
    bool flat;      /* the only dim is all elements, flattened */
    CcOperand fill; /* the constant */
} CcPieces;
bool cc_pieces_read(const CcGraph *g, const CcNode *n, CcPieces *p); /* false: the op is not understood */
/* The type of an operand in the result's dims: those of `stack` get the new dim. */
bool cc_pieces_type(const CcGraph *g, const CcNode *n, int operand, int dim, CcType *t);
/* Parts of the result that consist of elements of one operand, or of the constant; 0: there are no such parts. */
int cc_pieces_boxes(const CcPieces *p);

/* window.c: the windows of a pool, one entry per spatial dim; spatial dims are the last ones. */
enum { CC_WINDOW_DIMS = 3 };
typedef struct CcWindow {
    int64_t kernel, stride, padding, dilation;
    bool adaptive; /* windows of several sizes: no other field is set */
    bool count_padding;
} CcWindow;
bool cc_window_is_max(const CcNode *n); /* a max pool or its indices; else an average pool */
/* -> number of dims; 0: not understood. divisor 0: divide by the number of elements */
int cc_window_read(const CcGraph *g, const CcNode *n, CcWindow *w, int64_t *divisor);
/* max size of a window, in elements */
int64_t cc_window_widest(const CcWindow *w, int64_t in, int64_t out, int64_t *narrowest);
/* Do all windows have one size and lie inside x? */
bool cc_window_inside(const CcWindow *w, int64_t in, int64_t out);
/* Do results differ from x along this dim? */
bool cc_window_pools(const CcWindow *w);
int64_t cc_window_taps(const CcGraph *g, const CcNode *n); /* elements in the largest window of a pool */
bool cc_window_overlaps(const CcWindow *w);                /* do neighbours share elements? */

/* space.c: the loop nest that reductions and pointwise nodes share. */
typedef struct CcSpace {
    CcType shape;     /* ndim < 0: there is none */
    unsigned reduced; /* reduced dims as bits; bit 0 is the last dim */
} CcSpace;
typedef enum CcSpaceLevel { CC_LEVEL_NONE, CC_LEVEL_FULL, CC_LEVEL_KEPT, CC_LEVEL_DROPPED } CcSpaceLevel;
bool cc_space_reduces(const CcGraph *g, const CcNode *n);
CcSpace cc_space_of(const CcGraph *g, const CcNode *n); /* for this node alone */
bool cc_space_reduced(const CcSpace *f, int dim);
int64_t cc_space_rows(const CcSpace *f);
bool cc_space_spent(const CcGraph *g, const CcNode *n); /* a variance without degrees of freedom: torch warns of each */
bool cc_space_few_rows(const CcSpace *f);               /* one thread would do all rows while the others idle */
int cc_space_own_dim(const CcSpace *f, const CcType *t, bool dropped, int d);
CcSpaceLevel cc_space_level(const CcSpace *f, const CcType *t);
CcSpaceLevel cc_space_node(const CcSpace *f, const CcGraph *g, const CcNode *n);
/* May `reader` read a value that the same loop makes? */
bool cc_space_meets(const CcSpace *f, const CcGraph *g, const CcNode *reader, int value);

typedef struct CcGroup {
    enum { CC_G_HOST, CC_G_LOOP, CC_G_PRIM } kind;
    /* in program order; for a prim, the library op first, then its post-ops */
    int *node;
    int n;
} CcGroup;

typedef struct CcGroups {
    CcGroup *at; /* in execution order */
    int n;
} CcGroups;

/* The arena holds all of *out. -1: out of memory. */
CC_MUST int cc_group_build(const CcGraph *g, const bool *live, const CcGroupRules *rules, CcArena *arena, CcGroups *out,
                           CcErr *err);

#endif
