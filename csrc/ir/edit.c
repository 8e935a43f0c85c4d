/* edit: rewrites a graph in place. The undo log keeps what a change overwrites, so a pass can try a rewrite and undo
 * it if no back-end takes the result. Both cost what the rewrite touches, not the size of the graph.
 *
 *   mark = cc_edit_mark(g); rewrite(g, node); cc_group_keeps(g, node, mark, rules);      or cc_edit_undo(g, mark)
 *
 * New nodes are appended and stay at the end until the pass is over: node numbers stay valid, and cc_edit_settle()
 * moves all new nodes into place at once. */
#include "ir.h"

/* ------------------------------------------------------------------ who reads what */

static void count_operand(CcGraph *g, const CcOperand *o, int by) {
    if (o->kind != CC_IN_VALUE) return;
    const int value = cc_graph_base(g, o->value);
    if (value < g->n_reads) g->reads[value] += by;
}

static void count_node(CcGraph *g, const CcNode *n, int by) {
    for (int i = 0; i < n->n_in; i++) count_operand(g, cc_graph_operand(g, n, i), by);
}

/* `reads` does not count values that the pass itself made; their readers are searched. */
int cc_edit_reads(const CcGraph *g, int value) {
    if (value < g->n_reads) return g->reads[value];
    int reads = 0;
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            reads += v >= 0 && cc_graph_base(g, v) == value;
        }
    return reads;
}

static void count_all(CcGraph *g) {
    g->n_reads = g->val.n;
    g->reads = cc_mem_grow(g->reads, sizeof *g->reads * ((size_t)g->n_reads + 1));
    memset(g->reads, 0, sizeof *g->reads * (size_t)g->n_reads);
    for (int i = 0; i < g->node.n; i++) count_node(g, &g->node.at[i], 1);
}

/* Does `reads` match the graph? (If the pass turned values into windows, the counts belong to other values.) */
static void check_counts(CcGraph *g) {
    for (int i = 0; i < g->undo.n; i++) {
        const CcEdit *e = &g->undo.at[i];
        if (e->what == CC_EDIT_VAL && e->was.val.window_of != g->val.at[e->at].window_of) return;
    }
    int *counted = cc_mem_get(sizeof *counted * ((size_t)g->n_reads + 1));
    const int n = g->n_reads;
    memcpy(counted, g->reads, sizeof *counted * (size_t)n);
    count_all(g);
    CC_ASSERT(memcmp(counted, g->reads, sizeof *counted * (size_t)n) == 0);
    free(counted);
}

/* ------------------------------------------------------------------ changes */

CcEditMark cc_edit_mark(const CcGraph *g) {
    return (CcEditMark){g->undo.n, g->node.n, g->val.n, g->operand.n, g->moved.n};
}

/* Undo nodes first: the values they read may be windows that this undo removes. */
void cc_edit_undo(CcGraph *g, CcEditMark mark) {
    while (g->node.n > mark.node) count_node(g, &g->node.at[--g->node.n], -1);
    while (g->undo.n > mark.undo) {
        const CcEdit *e = &g->undo.at[--g->undo.n];
        if (e->what == CC_EDIT_NODE) {
            count_node(g, &g->node.at[e->at], -1);
            g->node.at[e->at] = e->was.node;
            count_node(g, &e->was.node, 1);
        } else if (e->what == CC_EDIT_VAL) {
            g->val.at[e->at] = e->was.val;
        } else {
            count_operand(g, &g->operand.at[e->at], -1);
            g->operand.at[e->at] = e->was.operand;
            count_operand(g, &e->was.operand, 1);
        }
    }
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

void cc_edit_operand(CcGraph *g, int node, int i, CcOperand o) {
    const int at = g->node.at[node].in0 + i;
    cc_vec_push(&g->undo, (CcEdit){CC_EDIT_OPERAND, at, {.operand = g->operand.at[at]}});
    count_operand(g, &g->operand.at[at], -1);
    g->operand.at[at] = o;
    count_operand(g, &o, 1);
}

void cc_edit_slots(CcGraph *g, int node, int in0, int n_in) {
    CcNode *n = cc_edit_node(g, node);
    count_node(g, n, -1);
    n->in0 = in0;
    n->n_in = n_in;
    count_node(g, n, 1);
}

void cc_edit_operands(CcGraph *g, int node, const CcOperand *in, int n_in) {
    const int in0 = g->operand.n;
    for (int i = 0; i < n_in; i++) cc_vec_push(&g->operand, in[i]);
    cc_edit_slots(g, node, in0, n_in);
}

void cc_edit_rewrite(CcGraph *g, int node, CcOpId op, const CcOperand *in, int n_in) {
    cc_edit_operands(g, node, in, n_in);
    g->node.at[node].op = (uint16_t)op;
    g->node.at[node].rewritten = true;
}

void cc_edit_make_in(CcGraph *g, int node, CcOpId op, const void *in) {
    CcOperand out[CC_OPERANDS_MAX];
    cc_edit_rewrite(g, node, op, out, cc_operands_write(op, in, out));
}

int cc_edit_insert(CcGraph *g, int before, const CcNode *n) {
    cc_vec_push(&g->node, *n);
    cc_vec_push(&g->moved, (CcEditPlace){g->node.n - 1, before});
    count_node(g, n, 1);
    return g->node.n - 1;
}

void cc_edit_drop(CcGraph *g, int node) {
    cc_edit_operands(g, node, NULL, 0);
    CcNode *n = &g->node.at[node];
    n->op = CC_OP_host;
    n->flags = 0;
    n->n_out = 0;
    cc_vec_push(&g->moved, (CcEditPlace){node, -1});
}

/* ------------------------------------------------------------------ the end of a pass */

/* Puts nodes in program order; to[node] is the new position. References to a dropped node move to the first node
 * that replaced it. */
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
    if (CC_DEBUG >= 2 && g->reads) check_counts(g);
    if (g->moved.n) {
        int *to = cc_mem_get(sizeof *to * (size_t)g->node.n);
        put_in_order(g, to);
        for (int v = 0; v < g->val.n; v++)
            if (g->val.at[v].def >= 0) g->val.at[v].def = to[g->val.at[v].def];
        free(to);
    }
    g->moved.n = g->undo.n = 0;
    count_all(g);
}
