/* training: runs a graph that autograd must see.
 *
 * The graph is cut into stages (grad/stage.c). A stage with gradients is one node of autograd's graph: its forward runs
 * one plan and saves what its backward reads; its backward runs another plan, made when it is first needed for these
 * gradients. torch runs the other nodes, and autograd records them as in eager.
 *
 *   x, w --> [stage 0: forward plan] --> h --> host node --> [stage 1] --> loss
 *                 | saved
 *   dx, dw <-- [backward plan] <-- dh
 *
 * This file cuts the graph and makes the plans; staged.c runs a stage, forward and backward. */
#include "eval_training.h"

/* A stage that replaces fewer than LEAST_OPS ops of eager's costs more as a node of autograd's graph than torch does without
 * it. One without gradients pays from LEAST_PLAIN on at any size: two ops on 16 elements take 2.3 us, and 3.9 in eager (Zen
 * 5, one thread). A single op pays if it is large only. */
enum { LEAST_OPS = 3, LEAST_PLAIN = 2 };
enum { MOST_REST = 63 }; /* calls */

/* ------------------------------------------------------------------ choosing stages */

static bool is_plain(const CcType *t) { return t->ndim >= 0 && t->device == 1 && t->dtype != CC_DT_OTHER; }

static bool is_input(const CcTrace *t, int guard) {
    for (int i = 0; i < t->input.n; i++)
        if (t->input.at[i] == guard) return true;
    return false;
}

/* Whether create_graph=True can make the object again; lists the guards that read what it consists of. */
static bool find_sources(const CcTrace *t, int recipe, GuardIds *out) {
    const CcRecipes *rs = &t->recipes;
    const CcRecipe *r = &rs->r.at[recipe];
    if (r->make == CC_MAKE_EFFECT) return false;
    if (r->make == CC_MAKE_SOURCE && !is_input(t, r->id)) cc_vec_push(out, r->id);
    for (int i = 0; i < r->n; i++)
        if (!find_sources(t, rs->kid.at[r->kid0 + i], out)) return false;
    return true;
}

static bool find_sources_of_node(const CcTrace *t, const CcNode *n, GuardIds *out) {
    const CcAction *a = &t->node.at[n->host];
    for (int k = 0; k < a->n; k++)
        if (!find_sources(t, t->args.at[a->args0 + k], out)) return false;
    return true;
}

static bool is_self_contained(const CcTrace *t, const CcNode *n) {
    GuardIds ignored = {0};
    const bool is = find_sources_of_node(t, n, &ignored);
    cc_vec_free(&ignored);
    return is;
}

/* The value that this one may be a view of; -1: it has memory of its own. */
static int viewed(const CcGraph *g, int value) {
    const int def = g->val.at[value].def;
    const CcNode *n = def >= 0 ? &g->node.at[def] : NULL;
    const bool may = n != NULL && (cc_op_is_view(n->op) || (n->op == CC_OP_host && n->flags == 0));
    return may ? cc_graph_source(g, n) : -1;
}

static int memory_of(const CcGraph *g, int value) {
    for (int of; (of = viewed(g, value)) >= 0;) value = of;
    return value;
}

/* Whether torch counts no writes to the value as writes to what it is a view of: `.data` is on the way. */
static bool is_data(const CcTrace *t, const CcGraph *g, int value) {
    for (; viewed(g, value) >= 0; value = viewed(g, value)) {
        const CcNode *n = &g->node.at[g->val.at[value].def];
        if (n->op == CC_OP_host && strcmp(t->node.at[n->host].name, "data") == 0) return true;
    }
    return false;
}

static void find_unseen(CcTraining *t) {
    const CcGraph *g = t->graph;
    free(t->unseen);
    t->unseen = NULL;
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        const int to = n->flags & CC_N_WRITES ? cc_graph_source(g, n) : -1;
        if (to < 0 || !is_data(t->trace, g, to)) continue;
        if (t->unseen == NULL) t->unseen = cc_mem_get(sizeof *t->unseen * ((size_t)g->val.n + 1));
        t->unseen[memory_of(g, to)] = i;
    }
}

/* Whether a node behind it writes through `.data` to an operand or result. A stage runs on what it was given when its
 * backward computes a value again, or when torch differentiates its nodes; there, nothing would tell of the write. */
static bool is_overtaken(const CcTraining *t, int node) {
    const CcGraph *g = t->graph;
    const CcNode *n = &g->node.at[node];
    bool is = false;
    if (t->unseen == NULL) return false;
    for (int k = 0; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, n, k);
        is = is || (o->kind == CC_IN_VALUE && t->unseen[memory_of(g, o->value)] > node);
    }
    for (int k = 0; k < n->n_out; k++) is = is || t->unseen[memory_of(g, n->out0 + k)] > node;
    return is;
}

/* Why no stage may contain the node; NULL: one may. It must be pure, of plain CPU tensors, and have a derivative where
 * one is needed. A view that is a result must share memory with its base, so torch makes it. */
static const char *refusal(const CcTraining *t, int node) {
    static const char *const no_derivative = "no derivative of ours";
    const CcGraph *g = t->graph;
    const CcNode *n = &g->node.at[node];
    if (is_overtaken(t, node)) return "an operand or result is written through .data later";
    for (int k = 0; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, n, k);
        if (o->kind == CC_IN_VALUE && g->val.at[o->value].grad_changed) return "requires_grad of an operand changes";
    }
    if (cc_repeat_takes(n)) return cc_rules_take(g, node) ? NULL : no_derivative;
    if (n->op == CC_OP_draw) return "torch's generator draws its random numbers";
    if (n->op == CC_OP_host && n->function == 0) return "only torch implements this op, or these arguments of it";
    if (n->flags & CC_N_RANDOM) return "torch's generator draws its random numbers";
    if (n->flags & CC_N_WRITES) return "it writes to existing memory";
    if (n->flags != 0 || n->n_out == 0) return "it may have effects that only torch knows";
    if (!is_self_contained(t->trace, n)) return "it takes an object that an effect makes";
    for (int k = 0; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(g, n, k);
        if (o->kind == CC_IN_VALUE && !is_plain(&g->val.at[o->value].type)) return "no kernel for an operand's dtype";
    }
    for (int k = 0; k < n->n_out; k++) {
        if (!is_plain(&g->val.at[n->out0 + k].type)) return "no kernel for its dtype";
        if (cc_op_is_view(n->op) && g->val.at[n->out0 + k].is_output) return "a view that is a result";
    }
    return cc_rules_take(g, node) ? NULL : no_derivative;
}

/* Views that host nodes read are made by torch, too. */
static void give_views_to_host(const CcGraph *g, bool *host) {
    for (int i = g->node.n - 1; i >= 0; i--)
        for (int k = 0; host[i] && k < g->node.at[i].n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, &g->node.at[i], k);
            const int def = o->kind == CC_IN_VALUE ? g->val.at[o->value].def : -1;
            if (def >= 0 && cc_op_is_view(g->node.at[def].op)) host[def] = true;
        }
}

static bool has_gradient(const CcGraph *g, const CcStage *s) {
    for (int k = 0; k < s->out.n; k++)
        if (cc_rules_needs(g, s->out.at[k])) return true;
    return false;
}

/* A view that another stage reads would be a result. */
static bool has_view_result(const CcGraph *g, const CcStage *s) {
    for (int k = 0; k < s->out.n; k++)
        if (cc_op_is_view(g->node.at[g->val.at[s->out.at[k]].def].op)) return true;
    return false;
}

/* How many nodes of autograd's graph, at least, eager makes of this one; views are made again. */
static int ops_of_eager(const CcNode *n) {
    if (n->function != 0) return LEAST_OPS; /* Python code forward and backward */
    switch (n->op) {
    case CC_OP_cross_entropy:
    case CC_OP_cosine_embedding:
    case CC_OP_triplet_margin: return 2;
    default: break;
    }
    /* several for each step, or one that is slower than ours */
    if (cc_op_info((CcOpId)n->op)->kind == CC_K_RNN) return LEAST_OPS;
    return cc_op_is_view(n->op) ? 0 : 1;
}

/* scale: how many times as many ops as usual it has to save */
static bool is_worth(const CcGraph *g, const CcStage *s, int scale) {
    int ops = 0;
    for (int i = 0; i < s->node.n; i++) ops += ops_of_eager(&g->node.at[s->node.at[i]]);
    return ops >= scale * (has_gradient(g, s) ? LEAST_OPS : LEAST_PLAIN);
}

static void give_to_host(const CcStage *s, bool *host) {
    for (int i = 0; i < s->node.n; i++) host[s->node.at[i]] = true;
}

/* Gives views at borders, or a whole stage, to the host. False: nothing was given. */
static bool refuse_stages(const CcGraph *g, const CcStages *cut, int scale, bool *host) {
    bool any = false;
    for (int i = 0; i < cut->stage.n; i++) {
        const CcStage *s = &cut->stage.at[i];
        if (s->node.n == 0) continue;
        for (int k = 0; k < s->out.n; k++) {
            const int def = g->val.at[s->out.at[k]].def;
            if (!cc_op_is_view(g->node.at[def].op)) continue;
            any = host[def] = true;
        }
        if (has_view_result(g, s) || is_worth(g, s, scale)) continue;
        give_to_host(s, host);
        any = true;
    }
    return any;
}

/* ------------------------------------------------------------------ making plans */

/* recorded[node]: >= 0 for recorded nodes, which torch can run; NULL: none of them is. *refused, without a plan: the
 * node that has no kernel; -1: it is not a single one that is to blame. */
static CcPlan *compile(const CcTraining *t, const CcGraph *g, const char *what, const int *recorded, int *refused) {
    CcErr err = {0};
    CcPlan *plan = cc_run_compile(g, &t->options, &err);
    bool ok = plan != NULL;
    *refused = -1;
    for (int step = 0, i; ok && (i = cc_run_hosted(plan, &step)) >= 0;) {
        ok = recorded != NULL ? recorded[i] >= 0 : cc_staged_can(g, &g->node.at[i]);
        if (ok) continue;
        cc_err_set(&err, CC_E_UNSUPPORTED, "%s has no kernel here", cc_op_info((CcOpId)g->node.at[i].op)->name);
        *refused = i;
    }
    if (ok) return plan;
    cc_log_add(CC_LOG_FALLBACK, "segment %d: %s of a stage is left to torch: %s", t->id, what, err.text);
    if (plan != NULL) cc_run_free(plan);
    return NULL;
}

static void free_backward(Backward *b) {
    if (b->plan != NULL) cc_run_free(b->plan);
    cc_joint_free(&b->joint);
    free(b->given);
    free(b->wanted);
    free(b);
}

/* wanted: by differentiable input; the stage's other inputs have no gradient. */
static Backward *make_backward(const CcTraining *t, Stage *s, const bool *given, const bool *wanted) {
    Backward *b = cc_mem_get(sizeof *b);
    bool *by_input = cc_mem_get((size_t)s->cut->in.n + 1);
    b->given = cc_mem_get((size_t)s->cut->out.n + 1);
    b->wanted = cc_mem_get((size_t)s->diff.n + 1);
    memcpy(b->given, given, (size_t)s->cut->out.n);
    memcpy(b->wanted, wanted, (size_t)s->diff.n);
    for (int i = 0; i < s->diff.n; i++) by_input[s->diff.at[i]] = wanted[i];
    b->refused = -1;
    if (cc_joint_make(t->graph, s->cut, given, by_input, s->joint, &b->joint)) {
        b->plan = compile(t, b->joint.backward, "the backward", NULL, &b->refused);
        if (b->refused >= 0) b->refused = b->joint.by.at[b->refused];
    }
    free(by_input);
    return b;
}

Backward *cc_training_backward(const CcTraining *t, Stage *s, const bool *given, const bool *wanted) {
    for (int i = 0; i < s->backward.n; i++) {
        Backward *b = s->backward.at[i];
        if (memcmp(b->given, given, (size_t)s->cut->out.n) == 0 && memcmp(b->wanted, wanted, (size_t)s->diff.n) == 0)
            return b;
    }
    cc_vec_push(&s->backward, make_backward(t, s, given, wanted));
    return cc_vec_last(&s->backward);
}

static void clear_stage(Stage *s) {
    for (int i = 0; i < s->backward.n; i++) free_backward(s->backward.at[i]);
    cc_vec_free(&s->backward);
    cc_vec_free(&s->diff);
    cc_vec_free(&s->source);
    cc_vec_free(&s->saved_at);
    cc_vec_free(&s->kept);
    if (s->forward != NULL) cc_run_free(s->forward);
    *s = (Stage){0};
}

/* The backward for all gradients. */
static const Backward *whole_backward(const CcTraining *t, Stage *s) {
    bool *given = cc_mem_get((size_t)s->cut->out.n), *wanted = cc_mem_get((size_t)s->diff.n);
    for (int k = 0; k < s->cut->out.n; k++) given[k] = cc_rules_needs(t->graph, s->cut->out.at[k]);
    for (int i = 0; i < s->diff.n; i++) wanted[i] = true;
    const Backward *b = cc_training_backward(t, s, given, wanted);
    free(given);
    free(wanted);
    return b;
}

/* Lists the inputs that gradients flow to. One that is only detached, or compared, is not among them: autograd would go
 * through what it was computed from, and free it, for a gradient that does not exist. */
static void find_differentiable(const CcTraining *t, Stage *s) {
    const CcGraph *g = t->graph;
    bool *flows = cc_mem_get((size_t)g->val.n + 1);
    for (int k = 0; k < s->cut->out.n; k++) flows[s->cut->out.at[k]] = true;
    for (int i = s->cut->node.n - 1; i >= 0; i--) {
        const CcNode *n = &g->node.at[s->cut->node.at[i]];
        bool any = false;
        for (int k = 0; k < n->n_out; k++) any = any || (flows[n->out0 + k] && cc_rules_needs(g, n->out0 + k));
        for (int k = 0; any && k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, n, k);
            if (o->kind == CC_IN_VALUE) flows[o->value] = true;
        }
    }
    for (int k = 0; k < s->cut->in.n; k++)
        if (flows[s->cut->in.at[k]] && cc_rules_needs(g, s->cut->in.at[k])) cc_vec_push(&s->diff, k);
    free(flows);
}

/* Makes the plans of the forward and of the whole backward. False: *refused is the node that prevents it, or -1. */
static bool prepare(const CcTraining *t, Stage *s, int *refused) {
    *refused = -1;
    s->plain = !has_gradient(t->graph, s->cut);
    find_differentiable(t, s);
    cc_turns_order(t, s);
    for (int i = 0; i < s->cut->node.n; i++) {
        const CcNode *n = &t->graph->node.at[s->cut->node.at[i]];
        if (n->flags & CC_N_WRITES) s->last_write = i;
        s->functions = s->functions || n->function != 0;
        if (n->host >= 0 && !cc_repeat_takes(n) && !find_sources_of_node(t->trace, n, &s->source)) return false;
    }
    const Backward *all = whole_backward(t, s);
    *refused = all->refused;
    if (all->plan == NULL) return false;
    s->joint = &all->joint;
    cc_torchgrad_plan(t, s);
    s->forward = compile(t, s->joint->forward, "the forward", s->joint->node.at, refused);
    if (*refused >= 0) *refused = s->joint->of.at[*refused];
    return s->forward != NULL;
}

/* Each stage's graphs have tables of all values (about 500 bytes each): a loop over 500 samples of audio, of 16,000 nodes
 * and 500 stages, would take 4 GB. */
static bool is_too_large(const CcTraining *t) {
    enum { MOST = 1 << 19 };
    int64_t n = 0;
    for (int i = 0; i < t->cut.stage.n; i++) n += t->cut.stage.at[i].node.n > 0;
    return n * t->graph->val.n > MOST;
}

static void cut_graph(CcTraining *t, bool *host) {
    int scale = 1;
    give_views_to_host(t->graph, host);
    cc_stage_split(t->graph, host, &t->cut);
    for (bool any; (any = refuse_stages(t->graph, &t->cut, scale, host)) || is_too_large(t);) {
        if (!any && scale == 1)
            cc_log_add(CC_LOG_FALLBACK, "segment %d: %d stages of a graph of %d values: small ones are left to torch",
                       t->id, t->cut.stage.n, t->graph->val.n);
        if (!any) scale *= 2;
        give_views_to_host(t->graph, host);
        cc_stage_free(&t->cut);
        cc_stage_split(t->graph, host, &t->cut);
    }
}

/* Prepares all stages. False: one was refused, and the node that prevents it, or all its nodes, are the host's now. */
static bool prepare_stages(CcTraining *t, bool *host) {
    bool ok = true;
    for (int i = 0, refused; i < t->cut.stage.n; i++) {
        cc_vec_push(&t->stage, (Stage){.cut = &t->cut.stage.at[i]});
        if (t->cut.stage.at[i].node.n == 0 || prepare(t, &cc_vec_last(&t->stage), &refused)) continue;
        ok = false;
        if (refused < 0) give_to_host(&t->cut.stage.at[i], host);
        else cc_vec_push(&t->refused, refused), host[refused] = true;
    }
    return ok;
}

static void clear_stages(CcTraining *t) {
    for (int i = 0; i < t->stage.n; i++) clear_stage(&t->stage.at[i]);
    cc_vec_free(&t->stage);
    cc_stage_free(&t->cut);
}

static bool any_stage(const CcTraining *t) {
    for (int i = 0; i < t->cut.stage.n; i++)
        if (t->cut.stage.at[i].node.n > 0) return true;
    return false;
}

/* last[value]: the last step that reads it; -1: it outlives the run, or no step does. */
static void find_last(const CcTraining *t, int *last) {
    const CcGraph *g = t->graph;
    for (int v = 0; v < g->val.n; v++) last[v] = -1;
    for (int i = 0; i < t->cut.step.n; i++) {
        const CcStageStep step = t->cut.step.at[i];
        for (int k = 0; step.node < 0 && k < t->cut.stage.at[step.stage].in.n; k++)
            last[t->cut.stage.at[step.stage].in.at[k]] = i;
        for (int k = 0; step.node >= 0 && k < g->node.at[step.node].n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, &g->node.at[step.node], k);
            if (o->kind == CC_IN_VALUE) last[o->value] = i;
        }
    }
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].is_output) last[v] = -1;
}

/* Lists the values that each step drops (a counting sort). */
static void find_drops(CcTraining *t) {
    const int n_val = t->graph->val.n, n_step = t->cut.step.n;
    int *last = cc_mem_get(sizeof *last * ((size_t)n_val + 1)), n = 0;
    find_last(t, last);
    t->drop_end = cc_mem_get(sizeof *t->drop_end * ((size_t)n_step + 1));
    for (int v = 0; v < n_val; v++)
        if (last[v] >= 0) t->drop_end[last[v]]++;
    for (int i = 0; i < n_step; i++) {
        const int at = n;
        n += t->drop_end[i];
        t->drop_end[i] = at;
    }
    t->drop = cc_mem_get(sizeof *t->drop * ((size_t)n + 1));
    for (int v = 0; v < n_val; v++)
        if (last[v] >= 0) t->drop[t->drop_end[last[v]]++] = v;
    free(last);
}

/* Marks the inputs that stages write. */
static void find_moved(CcTraining *t) {
    const CcGraph *g = t->graph;
    for (int i = 0; i < t->stage.n; i++)
        for (int k = 0; k < t->stage.at[i].cut->node.n; k++) {
            const CcNode *n = &g->node.at[t->stage.at[i].cut->node.at[k]];
            const int to = n->flags & CC_N_WRITES ? cc_graph_source(g, n) : -1;
            if (to < 0 || g->val.at[to].def >= 0) continue;
            if (t->moved == NULL) t->moved = cc_mem_get((size_t)g->val.n);
            t->moved[to] = true;
        }
}

void cc_training_release(CcTraining *t) {
    if (--t->refs > 0) return;
    clear_stages(t);
    cc_graph_free(t->graph);
    cc_vec_free(&t->versions.write);
    cc_vec_free(&t->refused);
    free(t->drop);
    free(t->drop_end);
    cc_trace_free(t->part);
    free(t->moved);
    free(t->unseen);
    free(t);
}

/* Marks the in-place ops on a value of which the host, or more than one stage, would know an earlier version. */
static bool mark_writes(const CcTraining *t, int value, bool *whole) {
    const CcVersions *s = &t->versions;
    const int of = cc_versions_of(s, value);
    for (int i = 0; of >= 0 && i < s->write.n; i++)
        if (s->write.at[i].value == of) whole[t->graph->node.at[s->write.at[i].node].origin] = true;
    return of >= 0;
}

static bool mark_known(const CcTraining *t, const bool *host, bool *whole) {
    bool any = false;
    for (int i = 0; i < t->graph->node.n; i++) {
        const CcNode *n = &t->graph->node.at[i];
        for (int k = 0; host[i] && k < n->n_out; k++) any = mark_writes(t, n->out0 + k, whole) || any;
        for (int k = 0; host[i] && k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(t->graph, n, k);
            any = (o->kind == CC_IN_VALUE && mark_writes(t, o->value, whole)) || any;
        }
    }
    for (int i = 0; i < t->cut.stage.n; i++)
        for (int k = 0; k < t->cut.stage.at[i].out.n; k++)
            any = mark_writes(t, t->cut.stage.at[i].out.at[k], whole) || any;
    return any;
}

/* Marks random ops whose pure part no stage contains: they stay whole. */
static bool mark_whole(const CcTraining *t, const bool *host, bool *whole) {
    bool any = mark_known(t, host, whole);
    for (int i = 0; i < t->graph->node.n; i++) {
        const CcNode *n = &t->graph->node.at[i];
        if (host[i] && cc_repeat_takes(n)) any = whole[n->origin] = true;
    }
    return any;
}

/* Cuts the graph and makes the plans of the stages. False: an op was split, or made pure, in vain. */
static bool build(CcTraining *t, const CcGraph *g, bool *whole) {
    t->graph = cc_graph_copy(g);
    cc_functions_fit(t->graph);
    cc_draws_split(t->graph, whole);
    cc_batch_split(t->graph, whole);
    t->versions.kept = whole;
    t->refused.n = 0;
    cc_versions_split(t->graph, &t->versions);
    bool *host = cc_mem_get((size_t)t->graph->node.n + 1);
    find_unseen(t);
    for (int i = 0; i < t->graph->node.n; i++) host[i] = refusal(t, i) != NULL;
    for (cut_graph(t, host); any_stage(t) && !prepare_stages(t, host); cut_graph(t, host)) clear_stages(t);
    const bool again = mark_whole(t, host, whole);
    free(host);
    return !again;
}

/* The recorded nodes that a backward may run again, when the trace may be gone. */
static CcTrace *make_part(const CcTraining *t) {
    bool *node = cc_mem_get((size_t)t->trace->graph->node.n + 1);
    for (int i = 0; i < t->stage.n; i++)
        for (int k = 0; k < t->stage.at[i].cut->node.n; k++)
            node[t->graph->node.at[t->stage.at[i].cut->node.at[k]].origin] = true;
    CcTrace *part = cc_trace_part(t->trace, node);
    free(node);
    return part;
}

CcTraining *cc_training_new(const CcSegment *s, const CcGraph *g) {
    if (!s->trace->needs_grad || !cc_autograd_ready() || !cc_formulas_ask()) return NULL;
    CcTraining *t = cc_mem_get(sizeof *t);
    bool *whole = cc_mem_get((size_t)g->node.n + 1);
    *t = (CcTraining){.refs = 1,
                      .open = true,
                      .trace = s->trace,
                      .root = s->root,
                      .n_gv = s->trace->guards.g.n,
                      .n_symbol = s->trace->symbol.n,
                      .options = s->options,
                      .id = s->id,
                      .verify = s->verify};
    t->options.host_only = false;
    while (!build(t, g, whole)) {
        clear_stages(t);
        cc_graph_free(t->graph);
    }
    free(whole);
    if (!any_stage(t)) {
        cc_training_release(t);
        return NULL;
    }
    find_drops(t);
    find_moved(t);
    t->part = make_part(t);
    return t;
}

void cc_training_free(CcTraining *t) {
    if (t == NULL) return;
    t->open = false;
    t->trace = NULL;
    t->root = NULL;
    cc_training_release(t);
}

/* A node of autograd's graph is a holder that the garbage collector does not see: what it uses stays alive. */
int cc_training_traverse(const CcTraining *t, visitproc visit, void *arg) {
    return t->refs > 1 ? 0 : cc_trace_visit(t->part, visit, arg);
}

/* ------------------------------------------------------------------ a call */

static int draw(const CcGraph *g, const CcNode *n, PyObject **value, void **before) {
    PyObject *r = cc_draw_bools(&g->val.at[n->out0].type, cc_graph_operand(g, n, 0)->f, before);
    Py_XSETREF(value[n->out0], r);
    return r != NULL ? 0 : -1;
}

static int run_step(CcTraining *t, const CcStageStep *step, CcSegmentHost *h, const CcHost *host) {
    if (step->node < 0) return cc_staged_apply(t, step->stage, h);
    const CcNode *n = &t->graph->node.at[step->node];
    if (n->op != CC_OP_draw) return host->call(host->ctx, n->origin);
    h->at = n->origin;
    return draw(t->graph, n, h->x->value, cc_segment_drawing(h, n->origin));
}

static int run_steps(CcTraining *t, CcSegmentHost *h, const CcHost *host) {
    for (int i = 0, k = 0; i < t->cut.step.n; i++) {
        if (run_step(t, &t->cut.step.at[i], h, host) < 0) return -1;
        for (; k < t->drop_end[i]; k++) Py_CLEAR(h->x->value[t->drop[k]]);
    }
    return 0;
}

bool cc_training_outside(const CcTraining *t) { return t->outside; }

/* Says, once for each reason, why torch runs a call. -> true */
static bool is_left(const CcTraining *t, bool *told, const char *why) {
    if (!*told) cc_log_add(CC_LOG_EAGER, "segment %d: %s: torch runs its ops one by one", t->id, why);
    return *told = true;
}

/* Hooks of saved tensors (save_on_cpu, torch.utils.checkpoint) see each tensor that eager saves. */
static bool is_hooked(CcTraining *t) {
    return cc_state_has_hooks() && is_left(t, &t->told_hooks, "hooks of saved tensors are active");
}

/* With create_graph=True torch runs a stage's nodes again to differentiate them, so the stage is worth nothing. One call
 * in many finds out whether that has changed. */
void cc_training_rest(Run *run, bool twice) {
    CcTraining *t = run->training;
    if (run->twice) return; /* a backward through what the first one has differentiated */
    run->twice = twice;
    if (twice && t->rest == 0)
        cc_log_add(CC_LOG_EAGER, "segment %d: gradients of its gradients are computed: torch runs its ops one by one",
                   t->id);
    t->rest = twice ? CC_MIN(2 * t->rest + 1, MOST_REST) : 0;
    t->resting = t->rest;
}

static bool is_resting(CcTraining *t) { return t->resting > 0 && t->resting-- > 0; }

/* The memory of an input. */
typedef struct Extent {
    uintptr_t first, end;
    bool moved;
} Extent;

static int by_address(const void *a, const void *b) {
    const Extent *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Lists the inputs' memory. -> how many have some */
static int find_memory(const CcTraining *t, const CcSegmentHost *h, Extent *out) {
    int n = 0;
    for (int i = 0; i < h->trace->input.n; i++) {
        const int value = h->trace->input_value.at[i];
        void *first;
        const int64_t bytes = cc_undo_bytes(h->x->value[value], &first);
        if (bytes <= 0) continue;
        out[n++] = (Extent){(uintptr_t)first, (uintptr_t)first + (uintptr_t)bytes, t->moved[value]};
    }
    return n;
}

/* Stages write running statistics at any time, as only the batch norm reads them (grad/batch.c). Whether another input
 * of this call shares their memory. */
static bool is_shared(CcTraining *t, const CcSegmentHost *h) {
    if (t->moved == NULL) return false;
    Extent *at = cc_mem_get(sizeof *at * ((size_t)h->trace->input.n + 1));
    const int n = find_memory(t, h, at);
    uintptr_t end = 0, moved = 0; /* of the extents so far */
    bool shared = false;
    qsort(at, (size_t)n, sizeof *at, by_address);
    for (int i = 0; i < n && !shared; i++) {
        shared = at[i].first < (at[i].moved ? end : moved);
        end = CC_MAX(end, at[i].end);
        if (at[i].moved) moved = CC_MAX(moved, at[i].end);
    }
    free(at);
    return shared && is_left(t, &t->told_shared, "an input shares memory with running statistics");
}

int cc_training_run(CcTraining *t, CcSegmentHost *outer) {
    if (is_hooked(t) || is_resting(t) || is_shared(t, outer)) return CC_TRAINING_NOT;
    /* the graph has more values than the trace: draws */
    const int n_trace = outer->x->n_value, n = t->graph->val.n;
    PyObject **trace = outer->x->value, **value = cc_mem_get(sizeof *value * ((size_t)n + 1));
    CcSegmentHost h;
    memcpy(value, trace, sizeof *value * (size_t)n_trace);
    outer->x->value = value;
    const CcHost host = cc_segment_host(&h, outer->trace, outer->shape, outer->x);
    t->refs++;
    const int status = run_steps(t, &h, &host);
    cc_training_release(t);
    outer->x->value = trace;
    memcpy(trace, value, sizeof *value * (size_t)n_trace);
    for (int v = n_trace; v < n; v++) Py_XDECREF(value[v]);
    free(value);
    outer->at = h.at;
    outer->mismatch = h.mismatch;
    outer->by_kernel = h.by_kernel;
    return status;
}

/* ------------------------------------------------------------------ reports */

static void measure_saved(const Stage *s, CcTrainingPart *part) {
    const CcGraph *g = s->joint->forward;
    part->saved = s->joint->saved.n;
    for (int i = 0; i < s->joint->saved.n; i++) {
        const CcVal *v = &g->val.at[s->joint->saved.at[i]];
        const int64_t bytes = cc_type_numel(&v->type) * cc_dtype_info((CcDtype)v->type.dtype)->size;
        part->saved_bytes += bytes;
        if (v->def >= 0) part->made_bytes += bytes;
    }
}

static void tell_torchs(const CcTraining *t, int node, CcTrainingTell tell, void *ctx) {
    const CcNode *n = &t->graph->node.at[node];
    const char *why = refusal(t, node);
    for (int i = 0; i < t->refused.n && why == NULL; i++)
        if (t->refused.at[i] == node) why = "no kernel computes it, or its derivative";
    if (why == NULL && cc_op_is_view(n->op)) why = "a view at the border of a stage";
    tell(ctx, &(CcTrainingPart){.kind = "torch",
                                .stage = -1,
                                .op = cc_op_info((CcOpId)n->op)->name,
                                .node = n->origin,
                                .why = why != NULL ? why : "a stage of so few ops does not pay"});
}

static void tell_stage(const CcTraining *t, int stage, CcTrainingTell tell, void *ctx) {
    const Stage *s = &t->stage.at[stage];
    CcTrainingPart part = {.kind = "forward", .stage = stage, .plan = s->forward};
    part.origin = cc_mem_get(((size_t)s->joint->of.n + 1) * sizeof *part.origin);
    part.n_origin = s->joint->of.n;
    for (int i = 0; i < s->joint->of.n; i++) {
        const int node = s->joint->of.at[i];
        part.origin[i] = node >= 0 ? t->graph->node.at[node].origin : -1;
    }
    measure_saved(s, &part);
    tell(ctx, &part);
    free(part.origin);
    for (int k = 0; k < s->backward.n; k++) {
        const CcPlan *plan = s->backward.at[k]->plan;
        const char *why = plan == NULL ? "no plan: torch differentiates the stage's ops" : NULL;
        tell(ctx, &(CcTrainingPart){.kind = "backward", .stage = stage, .plan = plan, .node = -1, .why = why});
    }
}

void cc_training_visit(const CcTraining *t, CcTrainingTell tell, void *ctx) {
    for (int i = 0; i < t->cut.step.n; i++) {
        const CcStageStep step = t->cut.step.at[i];
        if (step.node >= 0) tell_torchs(t, step.node, tell, ctx);
        else tell_stage(t, step.stage, tell, ctx);
    }
}

void cc_training_print(const CcTraining *t, CcSbuf *out) {
    for (int i = 0; i < t->cut.step.n; i++) {
        const CcStageStep step = t->cut.step.at[i];
        if (step.node >= 0) {
            cc_sbuf_add(out, "torch: %s\n", cc_op_info((CcOpId)t->graph->node.at[step.node].op)->name);
            continue;
        }
        const Stage *s = &t->stage.at[step.stage];
        cc_sbuf_add(out, "stage %d: %d nodes, %d inputs, %d outputs, %d tensors saved\nforward:\n", step.stage,
                    s->cut->node.n, s->cut->in.n, s->cut->out.n, s->joint->saved.n);
        cc_run_print(s->forward, out);
        for (int k = 0; k < s->backward.n; k++) {
            const CcPlan *plan = s->backward.at[k]->plan;
            cc_sbuf_add(out, plan != NULL ? "backward:\n" : "backward: torch\n");
            if (plan != NULL) cc_run_print(plan, out);
        }
    }
}
