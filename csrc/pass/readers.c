/* readers: lists the nodes that read each value, for the graph at the start of a pass. */
#include "pass.h"

bool cc_readers_find(const CcGraph *g, CcReaders *out) {
    size_t all = 0;
    for (int i = 0; i < g->node.n; i++) all += (size_t)g->node.at[i].n_in;
    out->begin = calloc((size_t)g->val.n + 2, sizeof *out->begin);
    out->node = malloc(sizeof *out->node * (all + 1));
    if (!out->begin || !out->node) {
        cc_readers_free(out);
        return false;
    }
    int *begin = out->begin + 1; /* begin[v]: first the count of readers, then the slot of v's next reader */
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int x = cc_graph_value(g, &g->node.at[i], k);
            if (x >= 0) begin[x]++;
        }
    for (int v = 0, end = 0; v < g->val.n; v++) {
        const int n = begin[v];
        begin[v] = end;
        end += n;
    }
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int named = cc_graph_value(g, &g->node.at[i], k);
            if (named >= 0) out->node[begin[named]++] = i;
        }
    return true; /* begin[v] has moved to the end of v's list, which is the start of v + 1's list in out->begin */
}

void cc_readers_free(CcReaders *r) {
    free(r->begin);
    free(r->node);
    *r = (CcReaders){0};
}
