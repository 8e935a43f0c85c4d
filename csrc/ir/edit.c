/* edit: rewrites a graph in place. What a change overwrites is kept, so a pass tries a rewrite and takes it back where no
 * back-end wants the result; both cost what the rewrite touches, not what the graph has.
 *
 *   mark = cc_edit_mark(g); rewrite(g, node); if (!cc_group_takes(g, node, rules)) cc_edit_undo(g, mark);
 *
 * New nodes stand at the end of the graph's until the pass is over: so numbers of nodes stay, and putting them in their
 * places is done once. */
#include "ir.h"

CcEditMark cc_edit_mark(const CcGraph *g) {
    return (CcEditMark){g->undo.n, g->node.n, g->val.n, g->operand.n, g->moved.n};
}

void cc_edit_undo(CcGraph *g, CcEditMark mark) {
    while (g->undo.n > mark.undo) {
        const CcEdit *e = &g->undo.at[--g->undo.n];
        if (e->what == CC_EDIT_NODE) g->node.at[e->at] = e->was.node;
        else if (e->what == CC_EDIT_VAL) g->val.at[e->at] = e->was.val;
        else g->operand.at[e->at] = e->was.operand;
    }
    g->node.n = mark.node;
    g->val.n = mark.val;
    g->operand.n = mark.operand;
    g->moved.n = mark.moved;
}

CcNode *cc_edit_node(CcGraph *g, int node) {
    cc_vec_push(&g->undo, (CcEdit){CC_EDIT_NODE, node, {.node = g->node.at[node]}});
    return &g->node.at[node];
}

CcVal *cc_edit_val(CcGraph *g, int value) {
    cc_vec_push(&g->undo, (CcEdit){CC_EDIT_VAL, value, {.val = g->val.at[value]}});
    return &g->val.at[value];
}

CcOperand *cc_edit_operand(CcGraph *g, int node, int i) {
    const int at = g->node.at[node].in0 + i;
    cc_vec_push(&g->undo, (CcEdit){CC_EDIT_OPERAND, at, {.operand = g->operand.at[at]}});
    return &g->operand.at[at];
}

void cc_edit_rewrite(CcGraph *g, int node, CcOpId op, const CcOperand *in, int n_in) {
    CcNode *n = cc_edit_node(g, node);
    n->op = (uint16_t)op;
    n->in0 = g->operand.n;
    n->n_in = n_in;
    n->rewritten = true;
    for (int i = 0; i < n_in; i++) cc_vec_push(&g->operand, in[i]);
}

int cc_edit_insert(CcGraph *g, int before, const CcNode *n) {
    cc_vec_push(&g->node, *n);
    cc_vec_push(&g->moved, (CcEditPlace){g->node.n - 1, before});
    return g->node.n - 1;
}

void cc_edit_drop(CcGraph *g, int node) {
    CcNode *n = cc_edit_node(g, node);
    n->op = CC_OP_host;
    n->flags = 0;
    n->n_in = n->n_out = 0;
    cc_vec_push(&g->moved, (CcEditPlace){node, -1});
}

/* Nodes in program order; to[node]: where it stands now. What named a dropped node names the first one in its place. */
static void put_in_order(CcGraph *g, int *to) {
    const int n = g->node.n;
    CcNode *was = cc_mem_get(sizeof *was * (size_t)n);
    bool *dropped = cc_mem_get((size_t)n);
    int *first = cc_mem_get(sizeof *first * (size_t)n), *next = cc_mem_get(sizeof *next * (size_t)n); /* 0: none */
    int kept = n;
    memcpy(was, g->node.at, sizeof *was * (size_t)n);
    for (int i = g->moved.n - 1; i >= 0; i--) {
        const CcEditPlace m = g->moved.at[i];
        if (m.before < 0) {
            dropped[m.node] = true;
            continue;
        }
        next[m.node] = first[m.before];
        first[m.before] = m.node;
        kept--;
    }
    g->node.n = 0;
    for (int i = 0; i < kept; i++) {
        to[i] = g->node.n;
        for (int k = first[i]; k; k = next[k]) {
            to[k] = g->node.n;
            g->node.at[g->node.n++] = was[k];
        }
        if (dropped[i]) continue;
        to[i] = g->node.n;
        g->node.at[g->node.n++] = was[i];
    }
    free(was);
    free(dropped);
    free(first);
    free(next);
}

void cc_edit_settle(CcGraph *g) {
    if (g->moved.n) {
        int *to = cc_mem_get(sizeof *to * (size_t)g->node.n);
        put_in_order(g, to);
        for (int v = 0; v < g->val.n; v++)
            if (g->val.at[v].def >= 0) g->val.at[v].def = to[g->val.at[v].def];
        free(to);
    }
    g->moved.n = g->undo.n = 0;
}
