/* stage: cuts a graph into stages and nodes that the host runs.
 *
 * Each node has a level: the nodes of the host at level k run before stage k. A value is exposed if code outside of
 * stages sees it: an output of the graph, or an operand of a host node. A node that reads an exposed value is in a
 * later stage than the node that made it. Host nodes that write, or touch other state, are barriers: all nodes stay on
 * their side. Random nodes keep their order.
 *
 * A stage gives all its gradients at its end. One with large parameters is cut where a single value crosses, so that
 * autograd can add up, and DistributedDataParallel send, the gradients of its later part while the earlier one runs. */
#include "grad_int.h"

enum { ENOUGH_BYTES = 32 << 20 }; /* of gradients, in a stage; DistributedDataParallel's buckets have 25 MiB */

typedef struct Cut {
    const CcGraph *g;
    const bool *host;
    bool *exposed; /* [value] */
    int *level;    /* [node] */
    int least;     /* level of the last barrier */
    int random;    /* level of the last random node */
    int most;      /* greatest level so far */
    CcParts parts;
} Cut;

static void find_exposed(Cut *c) {
    const CcGraph *g = c->g;
    for (int v = 0; v < g->val.n; v++) c->exposed[v] = g->val.at[v].is_output;
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; c->host[i] && k < g->node.at[i].n_in; k++) {
            const int x = cc_graph_value(g, &g->node.at[i], k);
            if (x >= 0) c->exposed[x] = true;
        }
}

/* The least level at which a node can read this value. */
static int ready(const Cut *c, int value) {
    const int def = c->g->val.at[value].def;
    if (def < 0) return 0;
    return c->level[def] + (!c->host[def] && c->exposed[value] ? 1 : 0);
}

/* Does no other node depend on what this one writes? True for a counter in a graph that reads no other integers. */
static bool is_counter(const CcGraph *g, const CcNode *n) {
    const int x = cc_graph_source(g, n);
    if (n->flags != CC_N_WRITES || n->n_out > 0 || x < 0 || g->val.at[x].def >= 0) return false;
    const CcType *t = &g->val.at[x].type;
    if (t->ndim != 0 || cc_dtype_info((CcDtype)t->dtype)->kind != 'i') return false;
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            if (v < 0 || g->val.at[v].type.dtype != t->dtype) continue;
            const bool counts = k == 0 && g->node.at[i].flags == CC_N_WRITES && g->node.at[i].n_out == 0;
            if (!counts || (v == x && &g->node.at[i] != n)) return false;
        }
    return true;
}

static void place(Cut *c, int node) {
    const CcNode *n = &c->g->node.at[node];
    const bool barrier = c->host[node] && n->flags & (CC_N_WRITES | CC_N_EFFECT) && !is_counter(c->g, n);
    int level = barrier ? c->most : c->least;
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(c->g, n, k);
        if (v >= 0) level = CC_MAX(level, ready(c, v));
    }
    if (cc_node_in_order(n)) level = c->random = CC_MAX(level, c->random);
    c->level[node] = level;
    /* a barrier at level k runs before stage k, so nodes of stage k - 1 precede it */
    if (barrier) c->least = level;
    c->most = CC_MAX(c->most, level + (c->host[node] ? 0 : 1));
}

static bool within(const Cut *c, int value, int level) {
    const int def = c->g->val.at[value].def;
    return def >= 0 && !c->host[def] && c->level[def] == level;
}

/* Lists the values that cross the border of a stage. seen: [value], zeroed; zeroed again on return. */
static void find_border(const Cut *c, int level, CcStage *s, bool *seen) {
    const CcGraph *g = c->g;
    for (int i = 0; i < s->node.n; i++) {
        const CcNode *n = &g->node.at[s->node.at[i]];
        for (int k = 0; k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            if (v < 0 || seen[v] || within(c, v, level)) continue;
            seen[v] = true;
            cc_vec_push(&s->in, v);
        }
    }
    for (int i = 0; i < s->in.n; i++) seen[s->in.at[i]] = false;
}

/* crosses: [value]; those of them that have a gradient, or the others */
static void push_outputs(const Cut *c, const bool *crosses, bool differentiable, CcStages *out) {
    for (int v = 0; v < c->g->val.n; v++) {
        const int def = c->g->val.at[v].def;
        if (def < 0 || c->host[def] || !crosses[v] || cc_rules_needs(c->g, v) != differentiable) continue;
        cc_vec_push(&out->stage.at[c->level[def]].out, v);
    }
}

/* Values that a node of another stage reads, or anything outside. Those that have gradients come first: torch cannot
 * write to a result whose gradient is retained if it is not the first of its node (an internal error). */
static void find_outputs(const Cut *c, CcStages *out) {
    const CcGraph *g = c->g;
    bool *crosses = cc_mem_get((size_t)g->val.n + 1);
    for (int v = 0; v < g->val.n; v++) crosses[v] = c->exposed[v];
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int value = cc_graph_value(g, &g->node.at[i], k);
            if (value >= 0 && !within(c, value, c->level[i])) crosses[value] = true;
        }
    push_outputs(c, crosses, true, out);
    push_outputs(c, crosses, false, out);
    free(crosses);
}

/* Is a value of the stage that needs a gradient computed from this output, and in turn read by another output? Values
 * that later stages read, without being exposed, may be. */
static bool feeds_output(const Cut *c, const CcStage *s, int value, bool *depends) {
    const CcGraph *g = c->g;
    memset(depends, 0, (size_t)g->val.n);
    depends[value] = true;
    for (int i = 0; i < s->node.n; i++) {
        const CcNode *n = &g->node.at[s->node.at[i]];
        bool any = false;
        for (int k = 0; k < n->n_in && !any; k++) {
            const int v = cc_graph_value(g, n, k);
            any = v >= 0 && depends[v];
        }
        for (int k = 0; any && k < n->n_out; k++) depends[n->out0 + k] = true;
    }
    for (int i = 0; i < s->out.n; i++)
        if (s->out.at[i] != value && depends[s->out.at[i]] && g->val.at[s->out.at[i]].type.requires_grad) return true;
    return false;
}

/* Exposes outputs that other outputs depend on. True: the levels have to be found again. */
static bool expose_more(Cut *c, const CcStages *s) {
    bool *depends = cc_mem_get((size_t)c->g->val.n + 1), any = false;
    for (int i = 0; i < s->stage.n; i++)
        for (int k = 0; k < s->stage.at[i].out.n; k++) {
            const int v = s->stage.at[i].out.at[k];
            if (c->exposed[v] || !c->g->val.at[v].type.requires_grad) continue;
            if (feeds_output(c, &s->stage.at[i], v, depends)) any = c->exposed[v] = true;
        }
    free(depends);
    return any;
}

/* Bytes of the gradients of inputs that this node is the first of the stage to read. seen: [value] */
static int64_t gradient_bytes(const Cut *c, int node, int level, bool *seen) {
    const CcGraph *g = c->g;
    int64_t bytes = 0;
    for (int k = 0; k < g->node.at[node].n_in; k++) {
        const int v = cc_graph_value(g, &g->node.at[node], k);
        if (v < 0 || seen[v] || within(c, v, level)) continue;
        seen[v] = true;
        const CcType *t = &g->val.at[v].type;
        if (t->requires_grad) bytes += cc_type_numel(t) * cc_dtype_size(t->dtype);
    }
    return bytes;
}

/* reads[value]: how many operands of the stage's nodes it is. */
static void count_reads(const Cut *c, const CcStage *s, int *reads) {
    for (int i = 0; i < s->node.n; i++)
        for (int k = 0; k < c->g->node.at[s->node.at[i]].n_in; k++) {
            const int v = cc_graph_value(c->g, &c->g->node.at[s->node.at[i]], k);
            if (v >= 0) reads[v]++;
        }
}

/* Exposes the values between parts of the stage that have gradients of ENOUGH_BYTES: values that alone lead from the
 * nodes up to one to those behind it. */
static bool expose_waists(Cut *c, const CcStage *s, int level) {
    const CcGraph *g = c->g;
    bool *seen = cc_mem_get((size_t)g->val.n + 1), any = false;
    int *reads = cc_mem_get(sizeof *reads * ((size_t)g->val.n + 1)), open = 0;
    int64_t bytes = 0;
    count_reads(c, s, reads);
    for (int i = 0; i + 1 < s->node.n; i++) {
        const CcNode *n = &g->node.at[s->node.at[i]];
        bytes += gradient_bytes(c, s->node.at[i], level, seen);
        for (int k = 0; k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            if (v >= 0 && --reads[v] == 0 && within(c, v, level)) open -= g->val.at[v].type.requires_grad;
        }
        for (int k = 0; k < n->n_out; k++)
            if (reads[n->out0 + k] > 0) open += g->val.at[n->out0 + k].type.requires_grad;
        if (bytes < ENOUGH_BYTES || open != 1 || reads[n->out0] == 0 || cc_op_is_view(n->op)) continue;
        if (!g->val.at[n->out0].type.requires_grad) continue;
        any = c->exposed[n->out0] = true;
        bytes = 0;
    }
    free(seen);
    free(reads);
    return any;
}

static bool expose_all_waists(Cut *c, const CcStages *s) {
    bool any = false;
    for (int i = 0; i < s->stage.n; i++) any = expose_waists(c, &s->stage.at[i], i) || any;
    return any;
}

/* Makes the stages from the levels. */
static void list_stages(const Cut *c, CcStages *out) {
    const CcGraph *g = c->g;
    for (int level = 0; level <= c->most; level++) cc_vec_push(&out->stage, (CcStage){0});
    for (int i = 0; i < g->node.n; i++)
        if (!c->host[i]) cc_vec_push(&out->stage.at[c->level[i]].node, i);
    bool *seen = cc_mem_get((size_t)g->val.n + 1);
    for (int level = 0; level <= c->most; level++) find_border(c, level, &out->stage.at[level], seen);
    free(seen);
    find_outputs(c, out);
}

static void cut(Cut *c, CcStages *out) {
    c->least = c->random = c->most = 0;
    for (int i = 0; i < c->g->node.n; i++) place(c, i);
    list_stages(c, out);
}

static void settle(Cut *c, CcStages *out) {
    for (cut(c, out); expose_more(c, out); cut(c, out)) cc_stage_free(out);
}

/* Makes a level of each part of a stage; first[level]: of its first part. */
static void renumber(Cut *c, const int *part, const int *first) {
    for (int i = 0; i < c->g->node.n; i++) c->level[i] = first[c->level[i]] + (c->host[i] ? 0 : part[i]);
    c->most = first[c->most];
}

/* False: values were exposed. */
static bool divide(Cut *c, CcStages *out) {
    int *part = cc_mem_get(sizeof *part * ((size_t)c->g->node.n + 1));
    int *first = cc_mem_get(sizeof *first * ((size_t)c->most + 2));
    bool settled = true, several = false;
    for (int level = 0; level <= c->most; level++) {
        const int n = cc_apart_divide(&c->parts, &out->stage.at[level], c->exposed, part);
        first[level + 1] = first[level] + CC_MAX(n, 1);
        settled = settled && n > 0;
        several = several || n > 1;
    }
    if (settled && several) {
        renumber(c, part, first);
        cc_stage_free(out);
        list_stages(c, out);
    }
    free(part);
    free(first);
    return settled;
}

/* Does a node that gradients flow through save tensors in eager? Sets flows[value]. */
static bool frees(const CcGraph *g, const CcStage *s, bool *flows) {
    bool any = false;
    for (int k = 0; k < s->out.n; k++) flows[s->out.at[k]] = cc_rules_needs(g, s->out.at[k]);
    for (int i = s->node.n - 1; i >= 0; i--) {
        const CcNode *n = &g->node.at[s->node.at[i]];
        bool through = false;
        for (int k = 0; k < n->n_out; k++) through = through || flows[n->out0 + k];
        for (int k = 0; through && k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            if (v >= 0 && cc_rules_needs(g, v)) flows[v] = true;
        }
        any = any || (through && cc_rules_saves(g, s->node.at[i]));
    }
    return any;
}

static void divide_stages(Cut *c, CcStages *out) {
    for (; !divide(c, out); settle(c, out)) cc_stage_free(out);
    bool *flows = cc_mem_get((size_t)c->g->val.n + 1);
    for (int i = 0; i < out->stage.n; i++) out->stage.at[i].frees = frees(c->g, &out->stage.at[i], flows);
    free(flows);
}

static void list_steps(const Cut *c, CcStages *out) {
    for (int level = 0; level <= c->most; level++) {
        for (int i = 0; i < c->g->node.n; i++)
            if (c->host[i] && c->level[i] == level) cc_vec_push(&out->step, (CcStageStep){i, -1});
        if (out->stage.at[level].node.n > 0) cc_vec_push(&out->step, (CcStageStep){-1, level});
    }
}

void cc_stage_split(const CcGraph *g, const bool *host, CcStages *out) {
    Cut c = {.g = g, .host = host, .parts = {.g = g}};
    c.exposed = cc_mem_get((size_t)g->val.n + 1);
    c.level = cc_mem_get(sizeof *c.level * ((size_t)g->node.n + 1));
    find_exposed(&c);
    *out = (CcStages){0};
    settle(&c, out);
    if (expose_all_waists(&c, out)) {
        cc_stage_free(out);
        settle(&c, out);
    }
    divide_stages(&c, out);
    list_steps(&c, out);
    cc_apart_free(&c.parts);
    free(c.exposed);
    free(c.level);
}

void cc_stage_free(CcStages *s) {
    for (int i = 0; i < s->stage.n; i++) {
        cc_vec_free(&s->stage.at[i].node);
        cc_vec_free(&s->stage.at[i].in);
        cc_vec_free(&s->stage.at[i].out);
    }
    cc_vec_free(&s->stage);
    cc_vec_free(&s->step);
}
