/* again: a replay has failed for good, at a node that eager reaches after others which the plan runs later, or within a
 * kernel. torch computes the values of those nodes, because the program may have stored them before the failure. If a
 * kernel failed, the first node that raises is the failed one.
 *
 * Nodes that write are not run. Neither are nodes that lack an operand, or whose operand a later node may have
 * written. */
#include "eval_int.h"

typedef struct Reads {
    CcSegmentHost *h;
    int node;
    bool ok;
} Reads;

static const CcAction *action_of(const CcSegmentHost *h, int n) {
    return &h->trace->node.at[h->trace->graph->node.at[n].host];
}

/* Whether node n may write to this tensor. */
static bool writes(const CcSegmentHost *h, int n, PyObject *tensor) {
    const CcGraph *g = h->trace->graph;
    const CcNode *node = &g->node.at[n];
    const CcAction *a = action_of(h, n);
    if (!(node->flags & CC_N_WRITES) || a->undo == CC_UNDO_LOCAL || a->undo == CC_UNDO_OBJECT) return false;
    for (int k = 0; k < node->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, node, k);
        if (o->kind != CC_IN_VALUE || (a->undo == CC_UNDO_MOVES && g->val.at[o->value].def >= 0)) continue;
        PyObject *to = h->x->value[o->value];
        if (to == NULL || cc_undo_overlap(to, tensor)) return true;
    }
    return false;
}

bool cc_again_written(CcSegmentHost *h, int first, int end, PyObject *tensor) {
    cc_segment_inputs(h->trace, h->x);
    for (int n = first; n < end; n++)
        if (writes(h, n, tensor)) return true;
    return false;
}

static void look_at(void *ctx, const CcRecipe *r) {
    Reads *reads = ctx;
    const CcCallState *x = reads->h->x;
    if (r->make == CC_MAKE_SYMBOL && x->symbol[r->id] == NULL) reads->ok = false;
    if (r->make == CC_MAKE_EFFECT && x->effect[r->id] == NULL) reads->ok = false;
    if (r->make != CC_MAKE_VALUE || !reads->ok) return;
    PyObject *o = x->value[r->id];
    reads->ok = o != NULL &&
                (!cc_tens_is(o) || !cc_again_written(reads->h, reads->node + 1, reads->h->trace->graph->node.n, o));
}

/* Whether the operands are what they were for eager. */
static bool has_operands(CcSegmentHost *h, int n) {
    Reads reads = {.h = h, .node = n, .ok = true};
    cc_sym_visit(h->trace, action_of(h, n), look_at, &reads);
    return reads.ok;
}

/* Has nothing computed this node's results, as far as is known? */
static bool is_missing(const CcSegmentHost *h, int n) {
    const CcNode *node = &h->trace->graph->node.at[n];
    for (int k = 0; k < node->n_out; k++)
        if (h->x->value[node->out0 + k] == NULL) return true;
    return false;
}

static bool may_run(CcSegmentHost *h, int n) {
    const unsigned flags = h->trace->graph->node.at[n].flags;
    const CcAction *a = action_of(h, n);
    if (flags & (CC_N_WRITES | CC_N_EFFECT) || (flags & CC_N_RANDOM && !cc_action_redraws(h->trace, a))) return false;
    return a->kernel == CC_KERNEL_C && is_missing(h, n) && has_operands(h, n);
}

/* The state from which node n has drawn; NULL: it has not drawn yet. */
static const void *drawn_from(const CcSegmentHost *h, int n) {
    for (int i = 0; i < h->x->undo->draw.n; i++)
        if (h->x->undo->draw.at[i].node == n) return h->x->undo->draw.at[i].before;
    return NULL;
}

/* A node that has drawn draws the same again. */
static int run(CcSegmentHost *h, const CcHost *host, int n) {
    const void *before = drawn_from(h, n);
    void *now = NULL;
    if (before == NULL) return host->call(host->ctx, n);
    int status = cc_draw_keep(&now) < 0 || cc_draw_restore(before) < 0 ? -1 : host->call(host->ctx, n);
    if (now != NULL && cc_draw_restore(now) < 0) status = -1;
    free(now);
    return status;
}

/* Does a node set ambient state, or write to what the graph has made? Then values can't be computed anew. */
static bool is_involved(const CcSegmentHost *h) {
    const CcGraph *g = h->trace->graph;
    for (int n = 0; n < g->node.n; n++) {
        const int x = cc_graph_source(g, &g->node.at[n]);
        const bool local = g->node.at[n].flags & CC_N_WRITES && x >= 0 && g->val.at[x].def >= 0;
        if (action_of(h, n)->state || (local && action_of(h, n)->undo != CC_UNDO_MOVES)) return true;
    }
    return h->capturing != NULL;
}

/* -> the first node before `end` that raises: its exception is set; -1: none. */
static int catch_up(CcSegmentHost *h, int end) {
    CcSegmentHost again;
    if (h->shape == NULL || h->shape->graph == NULL || is_involved(h)) return -1;
    cc_segment_inputs(h->trace, h->x);
    const CcHost host = cc_segment_host(&again, h->trace, h->shape, h->x);
    for (int n = 0; n < end; n++) {
        if (!may_run(h, n) || run(h, &host, n) == 0) continue;
        if (!again.mismatch) return n;
        cc_raised_clear();
        break;
    }
    return -1;
}

void cc_again_raise(CcSegmentHost *h) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const int n = catch_up(h, h->trace->graph->node.n);
    if (n < 0) {
        PyErr_Restore(type, value, tb);
        return;
    }
    h->at = n;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(tb);
}

void cc_again_compute(CcSegmentHost *h) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    if (catch_up(h, h->at) >= 0) cc_raised_clear(); /* the exception that the call ends with is the first one's */
    PyErr_Restore(type, value, tb);
}
