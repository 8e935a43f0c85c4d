/* turns: the order in which a stage's node names its inputs, so that hooks on parameters run in eager's order.
 *
 * Eager accumulates a parameter's gradient when all nodes that use it have run, and runs the node that was made last first.
 * A stage returns all gradients at once. Autograd's engine then accumulates them before anything else, in the order in
 * which they leave its queue: a std::priority_queue in which all of them are equal, so that their order follows from
 * their places in the heap (libstdc++'s; elsewhere the order of hooks is another one, but nothing else). */
#include "eval_training.h"

/* ------------------------------------------------------------------ eager's order */

/* The operands of a node in the order of the edges of eager's node. */
static int edge(const CcNode *n, int k) {
    const bool bias_first = n->op == CC_OP_linear && n->n_in == CC_AT(linear, bias) + 1;
    return bias_first ? (k + CC_AT(linear, bias)) % n->n_in : k;
}

/* [value] by how late eager accumulates its gradient; 0: no node of the stage reads it. */
static void find_turns(const CcTraining *t, const Stage *s, int *turn) {
    int n_turn = 0;
    for (int i = 0; i < s->cut->node.n; i++) {
        const CcNode *n = &t->graph->node.at[s->cut->node.at[i]];
        for (int k = n->n_in - 1; k >= 0; k--) {
            const CcOperand *o = cc_graph_operand(t->graph, n, edge(n, k));
            if (o->kind == CC_IN_VALUE && turn[o->value] == 0) turn[o->value] = ++n_turn;
        }
    }
}

/* ------------------------------------------------------------------ the engine's queue */

typedef struct Task {
    int place;
    bool leaf;
} Task;

static bool before(Task a, Task b) { return a.leaf && !b.leaf; }

static void sift_up(Task *heap, int at, Task task) {
    for (; at > 0 && before(task, heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = task;
}

/* std::pop_heap: the hole at the top sinks to the bottom, on the right where both children are equal. */
static Task pop(Task *heap, int *n) {
    const Task top = heap[0], last = heap[--*n];
    int hole = 0;
    while (2 * hole + 2 < *n) {
        const int child = before(heap[2 * hole + 1], heap[2 * hole + 2]) ? 2 * hole + 1 : 2 * hole + 2;
        heap[hole] = heap[child];
        hole = child;
    }
    if (2 * hole + 1 < *n) {
        heap[hole] = heap[2 * hole + 1];
        hole = 2 * hole + 1;
    }
    if (*n > 0) sift_up(heap, hole, last);
    return top;
}

/* place[i]: where the i-th task that leaves the queue was pushed, if `n_leaf` leaves and then the others are pushed. */
static void simulate(int n_leaf, int n, int *place) {
    Task *heap = cc_mem_get(sizeof *heap * ((size_t)n + 1));
    for (int i = 0; i < n; i++) sift_up(heap, i, (Task){i, i < n_leaf});
    for (int left = n, i = 0; i < n; i++) place[i] = pop(heap, &left).place;
    free(heap);
}

/* ------------------------------------------------------------------ the inputs */

/* An argument may be a leaf; what the graph computes is none. */
static bool is_leaf(const CcTraining *t, const Stage *s, int input) {
    return t->graph->val.at[s->cut->in.at[input]].def < 0;
}

/* Lists the inputs that have gradients, leaves first, by eager's order; returns the number of leaves. */
static int list(const CcTraining *t, const Stage *s, int *wanted) {
    int *turn = cc_mem_get(sizeof *turn * ((size_t)t->graph->val.n + 1));
    int *by_turn = cc_mem_get(sizeof *by_turn * ((size_t)t->graph->val.n + 1)); /* an input's number + 1 */
    int n = 0, n_leaf = 0;
    find_turns(t, s, turn);
    for (int i = 0; i < s->diff.n; i++) by_turn[turn[s->cut->in.at[s->diff.at[i]]]] = s->diff.at[i] + 1;
    for (int leaf = 1; leaf >= 0; leaf--) {
        for (int i = t->graph->val.n; i > 0; i--)
            if (by_turn[i] > 0 && is_leaf(t, s, by_turn[i] - 1) == leaf) wanted[n++] = by_turn[i] - 1;
        if (leaf) n_leaf = n;
    }
    free(turn);
    free(by_turn);
    return n_leaf;
}

void cc_turns_order(const CcTraining *t, Stage *s) {
    int *wanted = cc_mem_get(sizeof *wanted * ((size_t)s->diff.n + 1)),
        *place = cc_mem_get(sizeof *place * ((size_t)s->diff.n + 1));
    simulate(list(t, s, wanted), s->diff.n, place);
    for (int i = 0; i < s->diff.n; i++) s->diff.at[place[i]] = wanted[i];
    free(wanted);
    free(place);
}
