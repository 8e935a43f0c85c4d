/* pass: from a graph to groups of nodes, one group a step of the plan. Assumes a graph that
 * cc_graph_check accepts; changes nothing in it. What a back-end can take is asked through
 * CcGroupRules, so this layer knows no back-end. */
#ifndef CC_PASS_H
#define CC_PASS_H

#include "../ir/ir.h"

/* live[node] of g->node.n entries: what outputs and effects need. */
void cc_dce_mark(const CcGraph *g, bool *live);
/* uses[value], 0 before: operands of live nodes that read it, or a window of it. */
void cc_dce_uses(const CcGraph *g, const bool *live, int *uses);

/* readers.c: node[begin[v]] .. node[begin[v + 1] - 1] read value v, in program order; one that does so twice, twice. */
typedef struct CcReaders {
    int *begin, *node;
} CcReaders;
bool cc_readers_find(const CcGraph *g, CcReaders *out); /* false: no memory; nothing is held */
void cc_readers_free(CcReaders *r);

/* Questions to the back-ends; NULL = never. */
typedef struct CcGroupRules {
    CcDtype deflt;      /* torch's default dtype, CC_DT_OTHER when unknown */
    const bool *banned; /* [CcNode.origin]: only the host may take it; may be NULL */
    const bool *apart;  /* [CcNode.origin]: it is no post-op; may be NULL */
    bool (*loop)(const CcGraph *g, int node, CcDtype deflt);
    bool (*prim)(const CcGraph *g, int node);
    /* May `node` become the next post-op of the library's op and post-ops chain[0..n)? */
    bool (*post)(const CcGraph *g, const int *chain, int n, int node);
    bool gathers;  /* a load at any place is as good as one at the next: a GPU */
    bool into;     /* kernels may write memory that was there before */
    bool scatters; /* writes at indices are kernels (pass/writes.c) */
    bool ordered;  /* and so that the same is left there each time */
    bool asserts;  /* an index that is wrong stops the kernel, as it stops eager's: eager is not asked again */
    /* torch's convolutions leave their results with channels innermost if what they read lies so (cuDNN) */
    bool follows;
    unsigned skipped; /* passes that are left out, a bit each (order.c) */
    int gelu;         /* which gelu of f32 torch's library has (ops.def); 0: torch does not ask it */
    bool (*gains_turned)(const CcGraph *g, int node); /* is this product faster with its result turned? */
} CcGroupRules;
/* Will this node be a kernel or a library call, or part of one? */
bool cc_group_takes(const CcGraph *g, int node, const CcGroupRules *rules);
/* Of a node that was just rewritten: if not, all since the mark is undone. */
bool cc_group_keeps(CcGraph *g, int node, CcEditMark mark, const CcGroupRules *rules);
bool cc_group_apart(const CcGraph *g, int node, const CcGroupRules *rules);
bool cc_group_banned(const CcGraph *g, int node, const CcGroupRules *rules);

/* order.c: rewriting passes change the graph in place (ir/edit.c). cc_graph_check does not know what they make (windows,
 * other strides); cc_graph_check_rewritten does. */
void cc_order_rewrite(CcGraph *g, const CcGroupRules *rules);
/* For CcGroupRules.skipped, of names with ',' between them (CCOMPILE_SKIP_PASSES). *err is set where there is none such. */
unsigned cc_order_skipped(const char *names, CcErr *err);
void cc_autocast_rewrite(CcGraph *g, const CcGroupRules *rules); /* autocast's casts are nodes */
void cc_pure_rewrite(CcGraph *g, const CcGroupRules *rules);     /* in-place ops on the graph's own are pure */
/* Does this node write its first operand, and nothing else? Then: does the op with a result of its own give what it
 * leaves there? */
bool cc_pure_is_write(const CcGraph *g, const CcNode *n);
bool cc_pure_writes_same(const CcGraph *g, const CcNode *n);
/* Does this node put the view just where it comes from? */
bool cc_pure_puts_back(const CcGraph *g, int node, int value, int view);
/* einsum and its like are products */
void cc_contract_rewrite(CcGraph *g, const CcGroupRules *rules);
/* an einsum of one tensor that sums nothing up */
bool cc_contract_is_view(const CcGraph *g, const CcNode *n);
/* attention that is written out is one node */
void cc_attend_rewrite(CcGraph *g, const CcGroupRules *rules);
/* losses, max with indices: several nodes */
void cc_expand_rewrite(CcGraph *g, const CcGroupRules *rules);
/* only the part that a later select keeps */
void cc_narrow_rewrite(CcGraph *g, const CcGroupRules *rules);
/* convolutions do the padding before them */
void cc_fold_rewrite(CcGraph *g, const CcGroupRules *rules);
void cc_norms_rewrite(CcGraph *g, const CcGroupRules *rules); /* batch norm is pointwise */
/* Will this node be rewritten there, and be a kernel then? (It is tried, and undone.) */
bool cc_norms_takes(CcGraph *g, int node, const CcGroupRules *rules);
void cc_index_rewrite(CcGraph *g, const CcGroupRules *rules); /* reads at indices are pointwise */
/* what moves and repeats elements is a copy */
void cc_rearrange_rewrite(CcGraph *g, const CcGroupRules *rules);
/* writes to what is not the graph's own are kernels */
void cc_into_rewrite(CcGraph *g, const CcGroupRules *rules);
bool cc_into_is(const CcGraph *g, const CcNode *n); /* such a node: its result is the memory that it writes */
/* alone[node]: such a node, a kernel that always works, and no other node of the graph names the memory. */
void cc_into_alone(const CcGraph *g, bool *alone);
bool cc_into_apart(const CcType *t);                          /* has each element memory of its own? */
void cc_views_rewrite(CcGraph *g, const CcGroupRules *rules); /* views are windows */
void cc_turn_rewrite(CcGraph *g, const CcGroupRules *rules);  /* products column by column */
/* channels innermost between convolutions */
void cc_layout_rewrite(CcGraph *g, const CcGroupRules *rules);
/* Is this a convolution of torch's whose operand and result may have channels innermost (rules->follows)? */
bool cc_layout_follows(const CcGraph *g, int node, const CcGroupRules *rules);
bool cc_turned(const CcVal *v);
/* Autocast has cast the operands of this pointwise node, which are still as they were (autocast.c). */
bool cc_autocast_mixes(const CcGraph *g, const CcNode *n);
/* May a node that checks indices be a kernel here (index.c)? */
bool cc_index_may(const CcGraph *g, int node);
/* A new value: the memory of another one, seen as this type (of its dtype). -> its number */
int cc_views_window(CcGraph *g, int value, const CcType *type);

/* Elements from the first one of a view's operand to its own first one. False: not known. */
bool cc_views_offset(const CcGraph *g, const CcNode *view, int64_t *offset);

/* reach.c: which elements of tensor x an op names, as a nest. Steps are in elements. */
typedef struct CcReachIndex {
    int value;
    bool ends, mask;   /* may count from the end; bools that say which elements, and no index */
    int64_t count, by; /* of x's elements: indices there are, elements from one to the next */
    int64_t step[CC_MAX_DIMS];
} CcReachIndex;
typedef struct CcReach {
    CcType space;   /* sizes, and x's strides: 0 where an index says it */
    int64_t offset; /* of x's first element */
    int n;
    CcReachIndex index[CC_MAX_DIMS];
} CcReach;
/* False: not known of this node. `x`: the type of what is read at indices, or written. */
bool cc_reach_read(const CcGraph *g, const CcNode *n, const CcType *x, CcReach *out);

/* window.c: of a pool, for each dim that it has windows in: the last ones. */
enum { CC_WINDOW_DIMS = 3 };
typedef struct CcWindow {
    int64_t kernel, stride, padding, dilation;
    bool adaptive, count_padding; /* adaptive: nothing else is known */
} CcWindow;
bool cc_window_greatest(const CcNode *n); /* the greatest, or where it stands; else the mean */
/* -> how many dims; 0: not known. divisor: 0: the number of elements */
int cc_window_read(const CcGraph *g, const CcNode *n, CcWindow *w, int64_t *divisor);
int64_t cc_window_widest(const CcWindow *w, int64_t in, int64_t out, int64_t *narrowest); /* elements */
/* Are all windows of one size, and inside of x? Tells an adaptive one's. */
bool cc_window_inside(CcWindow *w, int64_t in, int64_t out);

/* space.c: the common loop of reductions and pointwise nodes. */
typedef struct CcSpace {
    CcType shape;     /* ndim < 0: none */
    unsigned reduced; /* dims, a bit each, bit 0 is the last one */
} CcSpace;
typedef enum CcLevel { CC_LEVEL_NONE, CC_LEVEL_FULL, CC_LEVEL_KEPT, CC_LEVEL_DROPPED } CcLevel;
bool cc_space_reduces(const CcGraph *g, const CcNode *n);
CcSpace cc_space_of(const CcGraph *g, const CcNode *n); /* of this node alone */
bool cc_space_reduced(const CcSpace *f, int dim);
int64_t cc_space_rows(const CcSpace *f);
bool cc_space_few_rows(const CcSpace *f); /* a loop over them in one thread leaves the others idle */
int cc_space_own_dim(const CcSpace *f, const CcType *t, bool dropped, int d);
CcLevel cc_space_level(const CcSpace *f, const CcType *t);
CcLevel cc_space_node(const CcSpace *f, const CcGraph *g, const CcNode *n);
/* May `reader` read a value that the same loop makes? */
bool cc_space_meets(const CcSpace *f, const CcGraph *g, const CcNode *reader, int value);

typedef struct CcGroup {
    enum { CC_G_HOST, CC_G_LOOP, CC_G_PRIM } kind;
    /* in program order; of a prim the first is the library's op, the others are its post-ops */
    int *node;
    int n;
} CcGroup;

typedef struct CcGroups {
    CcGroup *at; /* in the order of execution */
    int n;
} CcGroups;

/* All of *out lies in the arena. -1: out of memory. */
CC_MUST int cc_group_build(const CcGraph *g, const bool *live, const CcGroupRules *rules, CcArena *arena, CcGroups *out,
                           CcErr *err);

#endif
