/* pass: from a graph to groups of nodes, one group a step of the plan. Assumes a graph that
 * cc_graph_check accepts; changes nothing in it. What a back-end can take is asked through
 * CcGroupRules, so this layer knows no back-end. */
#ifndef CC_PASS_H
#define CC_PASS_H

#include "../ir/ir.h"

/* live[node] of g->node.n entries: what outputs and effects need. */
void cc_dce_mark(const CcGraph *g, bool *live);

/* A copy of the graph in which nodes compute only the part that a later select keeps; NULL when
 * that changes nothing. cc_graph_check does not know its windows. */
CcGraph *cc_narrow_graph(const CcGraph *g);

/* A copy of the graph in which results of products that gain from it lie in memory column by
 * column; NULL when there are none. */
CcGraph *cc_turn_graph(const CcGraph *g, bool (*gains)(const CcGraph *g, int node));
bool cc_turned(const CcVal *v);

typedef struct CcGroup {
    enum { CC_G_HOST, CC_G_LOOP, CC_G_PRIM } kind;
    int *node; /* in program order; of a prim the first is the library's
                  op, the others are its post-ops */
    int n;
} CcGroup;

typedef struct CcGroups {
    CcGroup *at; /* in the order of execution */
    int n;
} CcGroups;

/* Questions to the back-ends; NULL = never. */
typedef struct CcGroupRules {
    CcDtype deflt; /* torch's default dtype, CC_DT_OTHER when unknown */
    bool (*loop)(const CcGraph *g, int node, CcDtype deflt);
    bool (*prim)(const CcGraph *g, int node);
    /* May `node` become the next post-op of the library's op and post-ops chain[0..n)? */
    bool (*post)(const CcGraph *g, const int *chain, int n, int node);
} CcGroupRules;

/* All of *out lies in the arena. -1: out of memory. */
CC_MUST int cc_group_build(const CcGraph *g, const bool *live, const CcGroupRules *rules,
                           CcArena *arena, CcGroups *out, CcErr *err);

#endif
