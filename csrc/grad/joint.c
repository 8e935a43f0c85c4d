/* joint: a stage's forward and backward graphs.
 *
 * The joint graph holds the stage's nodes, and behind them the backward's. The backward reads values of the forward:
 * inputs and outputs of the stage, which exist anyway, views, which are made again, and values that the forward has to
 * save. The two halves are the joint graph without the nodes of the other half; values keep their numbers. */
#include "grad_int.h"

/* ------------------------------------------------------------------ parts of a graph */

typedef CC_VEC(int) Nodes;

/* g with only these nodes, in this order; a value whose node is missing becomes an input. No value is an output yet. */
static CcGraph *part_of(const CcGraph *g, const Nodes *nodes) {
    CcGraph *out = cc_graph_new();
    cc_vec_copy(&out->val, &g->val);
    cc_vec_copy(&out->operand, &g->operand);
    cc_functions_share(out, g);
    for (int v = 0; v < out->val.n; v++) {
        out->val.at[v].def = -1;
        out->val.at[v].is_output = false;
    }
    for (int i = 0; i < nodes->n; i++) {
        cc_vec_push(&out->node, g->node.at[nodes->at[i]]);
        const CcNode *n = &cc_vec_last(&out->node);
        for (int k = 0; k < n->n_out; k++) out->val.at[n->out0 + k].def = i;
    }
    return out;
}

/* ------------------------------------------------------------------ the joint graph */

static void find_wanted(Adjoint *a, const CcStage *s, const bool *wanted) {
    for (int i = 0; i < s->in.n; i++) a->wanted[s->in.at[i]] = wanted[i] && cc_rules_needs(a->g, s->in.at[i]);
    for (int i = 0; i < a->g->node.n; i++) {
        const CcNode *n = &a->g->node.at[i];
        bool any = false;
        for (int k = 0; k < n->n_in; k++) {
            const int v = cc_graph_value(a->g, n, k);
            any = any || (v >= 0 && a->wanted[v]);
        }
        for (int k = 0; k < n->n_out; k++) a->wanted[n->out0 + k] = any && cc_rules_needs(a->g, n->out0 + k);
        if (any && cc_function_is_mark(n)) cc_function_wants(a, n);
    }
}

static int seed(Adjoint *a, int value) {
    const CcType t = cc_adjoint_like(&a->g->val.at[value].type);
    return cc_graph_input(a->g, &t);
}

/* Builds the joint graph. -> number of nodes of the forward; -1: a node has no derivative */
static int build(Adjoint *a, const CcStage *s, const bool *given, const bool *wanted, CcJoint *out) {
    const int n_forward = a->g->node.n;
    a->n_val = a->g->val.n;
    a->grad = cc_mem_get(sizeof *a->grad * ((size_t)a->n_val + 1));
    a->wanted = cc_mem_get((size_t)a->n_val + 1);
    for (int v = 0; v < a->n_val; v++) a->grad[v] = -1;
    find_wanted(a, s, wanted);
    for (int k = 0; k < s->out.n; k++) {
        const int v = s->out.at[k];
        const bool has = a->wanted[v] && given[k];
        cc_vec_push(&out->seed, has ? seed(a, v) : -1);
        if (has) cc_adjoint_add(a, v, cc_vec_last(&out->seed));
    }
    for (int i = n_forward - 1; i >= 0; i--) {
        const int first = a->g->node.n;
        if (!cc_rules_apply(a, i)) return -1;
        for (int k = first; k < a->g->node.n; k++) {
            a->g->node.at[k].origin = a->g->node.at[i].origin;
            a->g->node.at[k].checkpoint = a->g->node.at[i].checkpoint;
        }
    }
    for (int k = 0; k < s->in.n; k++) cc_vec_push(&out->grad, a->wanted[s->in.at[k]] ? a->grad[s->in.at[k]] : -1);
    return n_forward;
}

/* ------------------------------------------------------------------ what is saved */

typedef struct Cut {
    const CcGraph *g;
    int n_forward;
    bool *exists; /* [value] an input or output of the stage */
    bool *saved;  /* [value] */
    bool *kept;   /* [value] the forward that exists saves it, and no others; NULL: there is none yet */
    bool *again;  /* [node] of the forward, which the backward repeats */
    bool *leaves; /* [value] made in a checkpoint, and read behind it */
    bool *shown;  /* [value] an output of the stage that code outside may write to */
    bool *pinned; /* [value] saved if the backward reads it, as its operands may be written to meanwhile */
    bool *anew;   /* [value] shown, and read by the backward of the checkpoint that made it, which computes it anew */
} Cut;

/* The backward reads this value, in a node of this checkpoint (0: of none). Eager's backward of a checkpoint reads what it
 * computes again, so that a write to a result of it is no error. */
static void need(Cut *c, int value, int checkpoint) {
    const int def = c->g->val.at[value].def;
    if (c->saved[value] || def >= c->n_forward) return;
    if (c->shown[value] && def >= 0 && checkpoint != 0 && c->g->node.at[def].checkpoint == checkpoint) {
        c->anew[value] = true;
        return;
    }
    if (def < 0 && !c->exists[value]) return; /* a seed */
    if (def >= 0 && !c->exists[value] && cc_op_is_view(c->g->node.at[def].op)) {
        if (c->again[def]) return;
        c->again[def] = true;
        need(c, cc_graph_source(c->g, &c->g->node.at[def]), checkpoint);
        return;
    }
    c->saved[value] = true;
}

/* live[node]: the backward's nodes that the gradients depend on. */
static void find_live(const CcGraph *g, int n_forward, const CcJoint *j, bool *live) {
    bool *read = cc_mem_get((size_t)g->val.n + 1);
    for (int k = 0; k < j->grad.n; k++)
        if (j->grad.at[k] >= 0) read[j->grad.at[k]] = true;
    for (int i = g->node.n - 1; i >= n_forward; i--) {
        const CcNode *n = &g->node.at[i];
        for (int k = 0; k < n->n_out; k++) live[i] = live[i] || read[n->out0 + k];
        for (int k = 0; live[i] && k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            if (v >= 0) read[v] = true;
        }
    }
    free(read);
}

static void find_saved(Cut *c, const bool *live) {
    for (int i = c->n_forward; i < c->g->node.n; i++) {
        const CcNode *n = &c->g->node.at[i];
        for (int k = 0; live[i] && k < n->n_in; k++) {
            const int v = cc_graph_value(c->g, n, k);
            if (v >= 0) need(c, v, n->checkpoint);
        }
    }
}

/* ------------------------------------------------------------------ what is computed again */

enum { MOST_REPEATED = 4 }; /* nodes for one value */

/* An op that costs little more than writing its result: the backward computes it in the loop that reads it. */
static bool is_cheap(const CcNode *n) {
    const CcOpKind kind = cc_node_kind(n);
    return (kind == CC_K_POINTWISE || kind == CC_K_NORM) && n->flags == 0 && n->n_out == 1;
}

/* Eager saves the operands of a norm, if one of them has a gradient; else code may write to them. */
static bool saves_operands(const CcGraph *g, const CcNode *n) {
    return cc_node_kind(n) == CC_K_NORM && cc_rules_needs(g, n->out0);
}

static bool may_save(const Cut *c, const CcNode *n, int value) {
    if (c->kept != NULL) return c->kept[value];
    return c->saved[value] || (c->exists[value] && saves_operands(c->g, n));
}

/* How many nodes the backward has to repeat for this value; more than MOST_REPEATED: it can't, or should not. */
static int repeats(const Cut *c, int value) {
    const int def = c->g->val.at[value].def;
    const CcNode *n = def >= 0 ? &c->g->node.at[def] : NULL;
    if (n == NULL || c->exists[value] || c->leaves[value] || c->pinned[value] || !(is_cheap(n) || cc_op_is_view(n->op)))
        return MOST_REPEATED + 1;
    int count = cc_op_is_view(n->op) ? 0 : 1;
    for (int k = 0; k < n->n_in && count <= MOST_REPEATED; k++) {
        const int v = cc_graph_value(c->g, n, k);
        if (v < 0 || may_save(c, n, v)) continue;
        const int from = c->g->val.at[v].def;
        if (from < 0 || !c->again[from]) count += repeats(c, v);
    }
    return count;
}

static void repeat(Cut *c, int value) {
    const int def = c->g->val.at[value].def;
    const CcNode *n = &c->g->node.at[def];
    c->saved[value] = false;
    c->again[def] = true;
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(c->g, n, k);
        if (v < 0) continue;
        if (may_save(c, n, v)) c->saved[v] = true;
        else if (!c->again[c->g->val.at[v].def]) repeat(c, v);
    }
}

/* Saves memory: values that follow from others that are saved, by cheap ops, are not saved themselves. What the caller
 * sees stays saved: autograd notices writes to it. */
static void repeat_cheap(Cut *c) {
    for (int i = c->n_forward - 1; i >= 0; i--)
        for (int k = 0; k < c->g->node.at[i].n_out; k++) {
            const int v = c->g->node.at[i].out0 + k;
            if (c->saved[v] && repeats(c, v) <= MOST_REPEATED) repeat(c, v);
        }
}

/* ------------------------------------------------------------------ checkpoints */

static void find_leaving(Cut *c) {
    const CcGraph *g = c->g;
    for (int i = 0; i < c->n_forward; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            const int def = v >= 0 ? g->val.at[v].def : -1;
            if (def < 0 || g->node.at[def].checkpoint == 0) continue;
            if (g->node.at[def].checkpoint != g->node.at[i].checkpoint) c->leaves[v] = true;
        }
}

static bool is_inside(const Cut *c, int value) {
    const int def = c->g->val.at[value].def;
    return def >= 0 && !c->exists[value] && !c->leaves[value] && c->g->node.at[def].checkpoint != 0;
}

/* What the backward needs of the inside of a checkpoint follows from what enters it, as in eager. The backward lists repeated
 * nodes where it first needs them, so the inside of one checkpoint is alive at a time. */
static void repeat_checkpoints(Cut *c) {
    find_leaving(c);
    for (int i = c->n_forward - 1; i >= 0; i--) {
        const CcNode *n = &c->g->node.at[i];
        for (int k = 0; k < n->n_out; k++) {
            const int v = n->out0 + k;
            if (c->anew[v] && !c->saved[v]) c->again[i] = true;
            if (!c->saved[v] || !is_inside(c, v)) continue;
            c->saved[v] = false;
            c->again[i] = true;
        }
        for (int k = 0; c->again[i] && n->checkpoint != 0 && k < n->n_in; k++) {
            const int value = cc_graph_value(c->g, n, k);
            if (value >= 0)
                need(c, value, n->checkpoint); /* what an earlier node of the inside makes is repeated in turn */
        }
    }
}

/* What the forward that exists does not save follows from what it does, since it was found to be cheap. */
static void repeat_unkept(Cut *c) {
    for (int i = c->n_forward - 1; i >= 0; i--)
        for (int k = 0; k < c->g->node.at[i].n_out; k++) {
            const int v = c->g->node.at[i].out0 + k;
            if (c->anew[v] && c->kept[v]) c->saved[v] = true;
            if ((c->saved[v] || c->anew[v]) && !c->kept[v]) repeat(c, v);
        }
}

/* The gradient of a transposed input stays transposed in eager, as that of batch-first layers. */
static CcType own_type(const CcGraph *g, int input, int grad) {
    const int def = g->val.at[grad].def;
    const bool turned = def >= 0 && (g->node.at[def].op == CC_OP_transpose || g->node.at[def].op == CC_OP_permute);
    return cc_adjoint_like(&g->val.at[turned ? grad : input].type);
}

/* A gradient that is a seed, or the gradient of several inputs, is copied: each result is a tensor of its own. */
static void own_grads(CcGraph *g, const CcStage *s, CcJoint *j) {
    for (int k = 0; k < j->grad.n; k++) {
        bool shared = j->grad.at[k] >= 0 && g->val.at[j->grad.at[k]].def < 0;
        for (int i = 0; i < k; i++) shared = shared || (j->grad.at[k] >= 0 && j->grad.at[i] == j->grad.at[k]);
        const CcOperand in = {.kind = CC_IN_VALUE, .value = j->grad.at[k]};
        if (shared || (j->grad.at[k] >= 0 && cc_op_is_view(g->node.at[g->val.at[j->grad.at[k]].def].op))) {
            const CcType t = own_type(g, s->in.at[k], j->grad.at[k]);
            const int node = cc_graph_node(g, CC_OP_copy, 0, -1, &in, 1, &t, 1);
            j->grad.at[k] = g->node.at[node].out0;
        }
    }
}

static int in_whole(const CcStage *s, const CcNode *n) {
    return n->origin >= 0 && n->origin < s->node.n ? s->node.at[n->origin] : -1;
}

/* The forward as kernels and library calls can run it. */
static void lower(CcGraph *forward, const CcStage *s, CcJoint *out) {
    cc_attention_lower(forward);
    cc_batch_lower(forward);
    for (int i = 0; i < forward->node.n; i++) {
        CcNode *n = &forward->node.at[i];
        const bool recorded = n->host >= 0 && n->op != CC_OP_dropped && !n->rewritten;
        cc_vec_push(&out->of, in_whole(s, n));
        cc_vec_push(&out->node, recorded ? cc_vec_last(&out->of) : -1);
        n->origin = i;
        n->rewritten = false;
    }
}

static void lower_backward(CcGraph *backward, const CcStage *s, CcJoint *out) {
    cc_attention_lower(backward); /* a checkpoint's, which is repeated */
    for (int i = 0; i < backward->node.n; i++) {
        cc_vec_push(&out->by, in_whole(s, &backward->node.at[i]));
        backward->node.at[i].origin = i;
    }
    cc_batch_lower(backward);
}

/* Lists a node of the backward behind the repeated nodes that it needs. left[node]: not listed yet. */
static void list_behind(const CcGraph *g, int node, bool *left, Nodes *out) {
    if (!left[node]) return;
    left[node] = false;
    for (int k = 0; k < g->node.at[node].n_in; k++) {
        const int v = cc_graph_value(g, &g->node.at[node], k);
        const int def = v >= 0 ? g->val.at[v].def : -1;
        if (def >= 0) list_behind(g, def, left, out);
    }
    cc_vec_push(out, node);
}

/* Where the weight is that eager saves even if no derivative reads it (x needs no gradient): a write to it between
 * forward and backward raises. */
static int weight_at(CcOpId op) {
    switch (op) {
    case CC_OP_layer_norm: return CC_AT(layer_norm, weight);
    case CC_OP_group_norm: return CC_AT(group_norm, weight);
    case CC_OP_batch_norm: return CC_AT(batch_norm, weight);
    case CC_OP_batch_normed: return CC_AT(batch_normed, weight);
    case CC_OP_conv: return CC_AT(conv, weight);
    case CC_OP_conv_transpose: return CC_AT(conv_transpose, weight);
    case CC_OP_prelu: return CC_AT(prelu, weight);
    default: return -1;
    }
}

static void save_weights(Cut *c) {
    bool *kept = cc_mem_get((size_t)c->g->val.n + 1);
    for (int i = 0; i < c->n_forward; i++) {
        const CcNode *n = &c->g->node.at[i];
        const int at = weight_at((CcOpId)n->op);
        if (cc_function_is_mark(n)) cc_function_kept(c->g, n, kept);
        if (at < 0 || at >= n->n_in || !cc_rules_needs(c->g, n->out0)) continue;
        const int value = cc_graph_value(c->g, n, at);
        if (value >= 0) kept[value] = true;
    }
    for (int v = 0; v < c->g->val.n; v++) c->saved[v] = c->saved[v] || (kept[v] && c->exists[v]);
    free(kept);
}

/* Chooses what is saved, among what `first` saves. */
static void choose_saved(Cut *c, const bool *live, const CcJoint *first) {
    find_saved(c, live);
    if (first == NULL) {
        save_weights(c);
        repeat_checkpoints(c);
        repeat_cheap(c);
        return;
    }
    c->kept = cc_mem_get((size_t)c->g->val.n + 1);
    for (int i = 0; i < first->saved.n; i++) c->kept[first->saved.at[i]] = true;
    repeat_unkept(c);
    free(c->kept);
}

/* whole: the graph that the stage is a part of. Code outside may write to its results, and to what a view shows or a
 * node writes. */
static void find_shown(Cut *c, const CcGraph *whole, const CcStage *s) {
    for (int k = 0; k < s->out.n; k++) c->shown[s->out.at[k]] = whole->val.at[s->out.at[k]].is_output;
    for (int i = 0; i < whole->node.n; i++) {
        const CcNode *n = &whole->node.at[i];
        const int v = cc_graph_source(whole, n);
        if (v >= 0 && (n->flags != 0 || n->op == CC_OP_host || cc_op_is_view(n->op))) c->shown[v] = true;
    }
    for (int v = 0; v < whole->val.n; v++) c->shown[v] = c->shown[v] && c->exists[v];
}

static void halve(const CcGraph *g, int n_forward, const CcGraph *whole, const CcStage *s, const CcJoint *first,
                  CcJoint *out) {
    bool *live = cc_mem_get((size_t)g->node.n + 1);
    Nodes forward = {0}, backward = {0};
    Cut c = {.g = g, .n_forward = n_forward};
    c.exists = cc_mem_get((size_t)g->val.n + 1);
    c.saved = cc_mem_get((size_t)g->val.n + 1);
    c.leaves = cc_mem_get((size_t)g->val.n + 1);
    c.shown = cc_mem_get((size_t)g->val.n + 1);
    c.anew = cc_mem_get((size_t)g->val.n + 1);
    c.pinned = cc_mem_get((size_t)g->val.n + 1);
    for (int i = 0; i < n_forward; i++)
        if (cc_function_is_mark(&g->node.at[i])) cc_function_pinned(g, &g->node.at[i], c.pinned);
    c.again = live;
    for (int k = 0; k < s->in.n; k++) c.exists[s->in.at[k]] = true;
    for (int k = 0; k < s->out.n; k++) c.exists[s->out.at[k]] = true;
    find_shown(&c, whole, s);
    find_live(g, n_forward, out, live);
    choose_saved(&c, live, first);
    for (int i = 0; i < n_forward; i++)
        if (!cc_function_is_mark(&g->node.at[i])) cc_vec_push(&forward, i);
    for (int i = n_forward; i < g->node.n; i++) list_behind(g, i, live, &backward);
    out->forward = part_of(g, &forward);
    out->backward = part_of(g, &backward);
    lower(out->forward, s, out);
    lower_backward(out->backward, s, out);
    for (int v = 0; v < g->val.n; v++)
        if (c.saved[v]) {
            cc_vec_push(&out->saved, v);
            out->forward->val.at[v].is_output = g->val.at[v].def >= 0;
        }
    for (int k = 0; k < s->out.n; k++) out->forward->val.at[s->out.at[k]].is_output = true;
    for (int k = 0; k < out->grad.n; k++)
        if (out->grad.at[k] >= 0) out->backward->val.at[out->grad.at[k]].is_output = true;
    free(live);
    cc_vec_free(&forward);
    cc_vec_free(&backward);
    free(c.exists);
    free(c.saved);
    free(c.leaves);
    free(c.shown);
    free(c.anew);
    free(c.pinned);
}

void cc_joint_spell(CcGraph *g) {
    bool recurrent = false;
    cc_function_split(g);
    cc_casts_split(g);
    for (int i = 0; i < g->node.n; i++) recurrent |= cc_node_kind(&g->node.at[i]) == CC_K_RNN;
    if (!recurrent) return;
    cc_recurrent_split(g);
    cc_cell_split(g);
}

/* The nodes of the stage, spelled out. CcNode.origin: index into s->node */
static CcGraph *stage_graph(const CcGraph *g, const CcStage *s) {
    Nodes nodes = {0};
    cc_vec_copy(&nodes, &s->node);
    CcGraph *out = part_of(g, &nodes);
    cc_vec_free(&nodes);
    for (int i = 0; i < out->node.n; i++) out->node.at[i].origin = i;
    cc_joint_spell(out);
    return out;
}

bool cc_joint_make(const CcGraph *g, const CcStage *s, const bool *given, const bool *wanted, const CcJoint *first,
                   CcJoint *out) {
    Adjoint a = {.g = stage_graph(g, s), .before = -1};
    *out = (CcJoint){0};
    const int n_forward = build(&a, s, given, wanted, out);
    if (n_forward >= 0) {
        own_grads(a.g, s, out);
        halve(a.g, n_forward, g, s, first, out);
    } else {
        cc_joint_free(out);
    }
    cc_graph_free(a.g);
    free(a.grad);
    free(a.wanted);
    return n_forward >= 0;
}

void cc_joint_free(CcJoint *j) {
    if (j->forward != NULL) cc_graph_free(j->forward);
    if (j->backward != NULL) cc_graph_free(j->backward);
    cc_vec_free(&j->node);
    cc_vec_free(&j->of);
    cc_vec_free(&j->by);
    cc_vec_free(&j->saved);
    cc_vec_free(&j->seed);
    cc_vec_free(&j->grad);
    *j = (CcJoint){0};
}
