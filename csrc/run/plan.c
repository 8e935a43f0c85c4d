/* plan: which values exist between steps, when each dies, and the text form of a plan. */
#include "run_int.h"

void cc_plan_made(const CcPlan *plan, const CcGraph *g, const bool *live, bool *made, int *step_of) {
    for (int s = 0; s < plan->step.n; s++)
        for (int i = 0; i < plan->step.at[s].n_node; i++) step_of[plan->step.at[s].node[i]] = s;
    for (int v = 0; v < g->val.n; v++) made[v] = g->val.at[v].is_output;
    for (int s = 0; s < plan->step.n; s++) {
        const CcStep *step = &plan->step.at[s];
        const CcNode *n = &g->node.at[step->node[step->kind == CC_STEP_HOST ? 0 : step->n_node - 1]];
        /* the host makes all results of a node, and a library call that is there for its checks alone the single one */
        const bool makes = step->kind == CC_STEP_HOST || (step->kind == CC_STEP_PRIMITIVE && n->n_out == 1);
        for (int k = 0; makes && k < n->n_out; k++)
            if (step->kind == CC_STEP_HOST || !g->val.at[n->out0].window_of) made[n->out0 + k] = true;
    }
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; live[i] && k < g->node.at[i].n_in; k++) {
            const int x = cc_graph_value(g, &g->node.at[i], k);
            if (x < 0) continue;
            const int value = cc_graph_base(g, x), def = g->val.at[value].def;
            if (def < 0 || step_of[def] != step_of[i]) made[value] = true;
        }
}

static int64_t bytes_of(const CcType *t) { return cc_type_extent(t) * cc_dtype_size(t->dtype); }

/* What cc_plan_apart has found so far. */
typedef struct Apart {
    CcPlan *plan;
    const CcGraph *g;
    int *known; /* [value]: 1 + the last value that was compared with it: once per node that writes */
    int *range; /* [value]: 1 + its place in plan->range; 0: none yet */
} Apart;

static int range_of(Apart *a, int value) {
    if (a->range[value] == 0) {
        cc_vec_push(&a->plan->range, (CcRange){value, bytes_of(&a->g->val.at[value].type)});
        a->range[value] = a->plan->range.n;
    }
    return a->range[value] - 1;
}

static void add_apart(Apart *a, int written, int read) {
    const CcVal *x = &a->g->val.at[written], *y = &a->g->val.at[read];
    if (written == read || x->def >= 0 || y->def >= 0 || a->known[read] == written + 1) return;
    a->known[read] = written + 1;
    const int first = range_of(a, written), second = range_of(a, read);
    cc_vec_push(&a->plan->apart, (CcApart){{first, second}});
}

static void add_read(Apart *a, int written, const CcNode *reader) {
    for (int k = 0; k < reader->n_in; k++) {
        const int v = cc_graph_value(a->g, reader, k);
        if (v >= 0) add_apart(a, written, cc_into_root(a->g, v));
    }
}

/* Values that nodes of the same step read, other parts of the op, and nodes that it was moved across (group.c). */
static void compare_with_all(Apart *a, int s, int node) {
    const CcPlan *plan = a->plan;
    const CcNode *n = &a->g->node.at[node];
    const int written = cc_into_root(a->g, n->out0); /* a view that torch makes writes the memory of its base */
    for (int t = 0; t < plan->step.n; t++)
        for (int i = 0; i < plan->step.at[t].n_node; i++) {
            const int other = plan->step.at[t].node[i];
            const CcNode *m = &a->g->node.at[other];
            if (t == s || (t < s) != (other < node) || m->origin == n->origin) add_read(a, written, m);
        }
}

int cc_plan_apart(CcPlan *plan, const CcGraph *g, CcErr *err) {
    int *values = calloc(2 * ((size_t)g->val.n + 1), sizeof *values);
    if (!values) return cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
    Apart a = {plan, g, values, values + g->val.n + 1};
    for (int s = 0; s < plan->step.n; s++)
        for (int i = 0; i < plan->step.at[s].n_node; i++)
            if (cc_into_is_write(g, &g->node.at[plan->step.at[s].node[i]]))
                compare_with_all(&a, s, plan->step.at[s].node[i]);
    free(values);
    return 0;
}

int cc_plan_lifetimes(CcPlan *plan, const CcGraph *g, const bool *made, CcErr *err) {
    int *last = malloc(sizeof(int) * (size_t)(g->val.n + 1));
    if (!last) return cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
    for (int v = 0; v < g->val.n; v++) last[v] = -1;
    for (int s = 0; s < plan->step.n; s++)
        for (int i = 0; i < plan->step.at[s].n_node; i++) {
            const CcNode *n = &g->node.at[plan->step.at[s].node[i]];
            for (int k = 0; k < n->n_in; k++) {
                const int value = cc_graph_value(g, n, k);
                if (value >= 0) last[cc_graph_base(g, value)] = s;
            }
            for (int k = 0; k < n->n_out; k++) last[n->out0 + k] = s;
        }
    /* Counting sort of the values by the step that ends them; values inside a fused step never existed. */
    for (int s = 0; s < plan->step.n; s++) plan->step.at[s].n_drop = 0;
    int total = 0;
    for (int v = 0; v < g->val.n; v++) {
        if (last[v] < 0 || !made[v] || g->val.at[v].is_output) last[v] = -1;
        else plan->step.at[last[v]].n_drop++, total++;
    }
    cc_vec_reserve(&plan->drop, total + 1);
    plan->drop.n = total;
    for (int s = 0, at = 0; s < plan->step.n; s++) {
        plan->step.at[s].drop0 = at;
        at += plan->step.at[s].n_drop;
        plan->step.at[s].n_drop = 0;
    }
    for (int v = 0; v < g->val.n; v++) {
        if (last[v] < 0) continue;
        CcStep *step = &plan->step.at[last[v]];
        plan->drop.at[step->drop0 + step->n_drop++] = v;
    }
    free(last);
    return 0;
}

void cc_plan_clear(CcPlan *plan) {
    for (int s = 0; s < plan->step.n; s++) {
        const CcStep *step = &plan->step.at[s];
        if (step->family && step->family->free) step->family->free(step->work);
    }
    plan->step.n = plan->drop.n = plan->range.n = plan->apart.n = 0;
}

void cc_run_free(CcPlan *plan) {
    if (!plan) return;
    cc_plan_clear(plan);
    cc_vec_free(&plan->step);
    cc_vec_free(&plan->drop);
    cc_vec_free(&plan->narrowed);
    cc_vec_free(&plan->place);
    cc_vec_free(&plan->range);
    cc_vec_free(&plan->apart);
    free(plan->spent_ns);
    free(plan->rewritten);
    cc_arena_free(plan->arena);
    free(plan);
}

int cc_run_gpu(const CcPlan *plan, bool *forced) {
    *forced = plan->on.cuda && plan->on.waits;
    return plan->on.cuda ? plan->on.index : -1;
}

const CcType *cc_run_type(const CcPlan *plan, const CcGraph *g, int value) {
    for (int i = 0; i < plan->narrowed.n; i++)
        if (plan->narrowed.at[i].value == value) return &plan->narrowed.at[i].type;
    return &g->val.at[value].type;
}

static bool is_view(const CcPlan *plan, const CcStep *step) {
    return step->n_node > 0 && cc_op_is_view(plan->node[step->node[0]].op);
}

int cc_run_hosted(const CcPlan *plan, int *step) {
    while (*step < plan->step.n) {
        const CcStep *s = &plan->step.at[(*step)++];
        if (s->kind == CC_STEP_HOST) return s->host;
    }
    return -1;
}

int64_t cc_run_memory(const CcPlan *plan) { return plan->block_bytes; }

void cc_run_stats(const CcPlan *plan, CcPlanStats *out) {
    *out = (CcPlanStats){.steps = plan->step.n,
                         .compile_ms = plan->compile_ms,
                         .passes_ms = plan->passes_ms,
                         .kernels_ms = plan->kernels_ms,
                         .primitives_ms = plan->primitives_ms,
                         .block_bytes = plan->block_bytes,
                         .apart_bytes = plan->apart_bytes};
    for (int s = 0; s < plan->step.n; s++) {
        const CcStep *step = &plan->step.at[s];
        if (step->kind == CC_STEP_HOST) out->host_steps++;
        else out->fused_nodes += step->n_node;
        out->kernels += step->kind == CC_STEP_KERNEL;
        out->primitives += step->kind == CC_STEP_PRIMITIVE;
        if (step->kind != CC_STEP_HOST) out->launches++;
        else if (!is_view(plan, step)) out->launches += 2;
    }
}

void cc_plan_ops_text(const CcPlan *plan, int s, CcSbuf *out) {
    const CcStep *step = &plan->step.at[s];
    for (int i = 0; i < step->n_node; i++)
        cc_sbuf_add(out, "%s%s#%d", i ? " " : "", cc_op_info((CcOpId)plan->node[step->node[i]].op)->name,
                    plan->node[step->node[i]].origin);
}

/* "3 kernel mul#1 add#2" */
static void print_step(const CcPlan *plan, int s, CcSbuf *out) {
    static const char *const KIND[] = {"host", "kernel", ""};
    const CcStep *step = &plan->step.at[s];
    cc_sbuf_add(out, "%d %s ", s, step->family ? step->family->name : KIND[step->kind]);
    cc_plan_ops_text(plan, s, out);
}

static void print_loop(const CcLaunch *launch, CcSbuf *out) {
    cc_ltext_print(launch->loop, out);
    if (launch->boxes) cc_boxes_print(launch->boxes, out);
}

static void print_code(const CcLaunch *launch, CcSbuf *out) {
    if (launch->cuda) cc_cudakernel_text(launch->loop, cc_cudalaunch_tuning(launch->cuda), out);
    else cc_kcache_text(launch->loop, out);
}

static double mean_ms(const CcPlan *plan, int step) {
    return plan->runs ? (double)plan->spent_ns[step] * 1e-6 / (double)plan->runs : 0;
}

CcPlanStep cc_run_step(const CcPlan *plan, int step) {
    const CcStep *s = &plan->step.at[step];
    const char *kind = s->kind == CC_STEP_KERNEL ? "kernel" : s->kind == CC_STEP_HOST ? "torch" : s->family->name;
    const char *way = s->family && s->family->way ? s->family->way(s->work) : NULL;
    return (CcPlanStep){.kind = kind, .way = way, .why = s->why, .n_node = s->n_node, .ms = mean_ms(plan, step)};
}

int cc_run_step_node(const CcPlan *plan, int step, int i, const char **op) {
    const int node = plan->step.at[step].node[i];
    *op = cc_op_info((CcOpId)plan->node[node].op)->name;
    return plan->node[node].origin;
}

static void print_dumped(const CcStep *step, CcSbuf *out) {
    const char *dump = getenv("CCOMPILE_DUMP");
    if (step->kind != CC_STEP_KERNEL || !dump || strcmp(dump, "graph") == 0) return;
    print_loop(step->work, out);
    if (strcmp(dump, "kernels") == 0) print_code(step->work, out);
}

void cc_run_step_text(const CcPlan *plan, int step, CcSbuf *out) { print_dumped(&plan->step.at[step], out); }

void cc_run_print(const CcPlan *plan, CcSbuf *out) {
    if (plan->rewritten) cc_sbuf_add(out, "%s", plan->rewritten);
    if (plan->block_bytes) cc_sbuf_add(out, "memory: %lld bytes\n", (long long)plan->block_bytes);
    for (int s = 0; s < plan->step.n; s++) {
        const CcStep *step = &plan->step.at[s];
        print_step(plan, s, out);
        if (step->narrowed) cc_sbuf_add(out, " narrowed");
        if (step->transposed) cc_sbuf_add(out, " transposed");
        if (step->channels_last) cc_sbuf_add(out, " channels_last");
        for (int i = 0; i < step->n_drop; i++)
            cc_sbuf_add(out, "%s%%%d", i ? " " : " drop ", plan->drop.at[step->drop0 + i]);
        if (plan->runs) cc_sbuf_add(out, " %.3f ms", mean_ms(plan, s));
        cc_sbuf_add(out, "\n");
        print_dumped(step, out);
    }
}

void cc_run_print_fused(const CcPlan *plan, CcSbuf *out) {
    for (int s = 0; s < plan->step.n; s++) {
        if (plan->step.at[s].kind == CC_STEP_HOST || plan->step.at[s].n_node < 2) continue;
        print_step(plan, s, out);
        cc_sbuf_add(out, "\n");
    }
}

void cc_run_print_code(const CcPlan *plan, CcSbuf *out) {
    for (int s = 0; s < plan->step.n; s++) {
        if (plan->step.at[s].kind != CC_STEP_KERNEL) continue;
        print_step(plan, s, out);
        cc_sbuf_add(out, "\n");
        print_loop(plan->step.at[s].work, out);
        print_code(plan->step.at[s].work, out);
    }
}
