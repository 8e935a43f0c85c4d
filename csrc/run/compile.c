/* compile: the pipeline, as a list of calls. What no back-end can do becomes HOST steps. */
#include <pthread.h>

#include "run_int.h"

enum {
    /* the reference executor runs at most this many elements if LLVM is missing; for more, the host is faster */
    REF_MAX = 4096,
    MAX_ROUNDS = 8
};

/* A kernel that LLVM is compiling: one loop, or one per box. */
typedef struct Started {
    CcLaunch *part;
    int n;          /* 0: not a kernel */
    CcBoxes *boxes; /* NULL: one loop */
} Started;

typedef struct Compile {
    const CcGraph *g;
    CcPlan *plan;
    CcRunOptions want; /* host_only also where kernels can't be used: host_why */
    CcOnDevice on;
    bool ref_always;
    bool *live, *made;
    Started *started;  /* [group] */
    CcLaunch **launch; /* [group] */
    void **prim;       /* [group]; NULL: no library call */
    int *step_of;
    bool *banned; /* [CcNode.origin]: a back-end has refused it */
    bool *apart;  /* [CcNode.origin]: a library has refused it as a post-op, and it is not a kernel yet */
    /* a HOST step would have to do what only kernels and products can: compile again with these nodes banned or
     * apart */
    bool stuck;
    const char *host_why; /* host_only: why */
    unsigned skipped;     /* skipped passes (CcGroupRules) */
} Compile;

/* Logs each text once per process: a missing library or a refused op is one line, not thousands. */
static void say_once(CcEventKind kind, const CcErr *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static CcMap said;
    const uint64_t hash = cc_map_hash(err->text, strlen(err->text), kind) | 1;
    pthread_mutex_lock(&lock);
    const bool fresh = !cc_map_find(&said, (const void *)(uintptr_t)hash);
    if (fresh) cc_map_put(&said, (const void *)(uintptr_t)hash, 1);
    pthread_mutex_unlock(&lock);
    if (fresh) cc_log_add(err->status == CC_E_MISSING ? CC_LOG_MISSING : kind, "%s", err->text);
}

static void add_step(const Compile *c, CcStepKind kind, const int *node, int n_node, void *work) {
    const CcStep step = {
        .kind = kind, .node = node, .n_node = n_node, .host = c->g->node.at[node[0]].origin, .work = work};
    cc_vec_push(&c->plan->step, step);
}

static bool reads_window(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v >= 0 && g->val.at[v].window_of) return true;
    }
    return false;
}

static CcDtype deflt_of(const Compile *c) { return (CcDtype)c->want.default_dtype; }

static CcGroupRules rules_of(const Compile *c) {
    CcGroupRules rules = {.deflt = deflt_of(c),
                          .banned = c->banned,
                          .apart = c->apart,
                          .gathers = c->on.cuda || c->ref_always,
                          .into = !c->want.host_only,
                          .ordered = c->want.ordered,
                          .skipped = c->skipped,
                          .asserts = c->on.cuda && !c->on.waits};
    rules.follows = c->on.cuda && !c->want.host_only && c->want.convolves;
    if ((!c->on.cuda || c->on.waits) && !c->want.no_library) rules.gelu = cc_cpu_info()->wide_torch ? 1 : 2;
    rules.scatters = rules.gathers && !c->want.host_only;
    if (!c->want.host_only)
        rules.loop = c->on.cuda ? cc_device_can_cuda : rules.gathers ? cc_device_can_map : cc_device_can;
    if (!c->want.host_only && !c->want.no_dnnl && !c->on.cuda) {
        rules.prim = cc_prim_can;
        rules.post = cc_prim_can_post;
        rules.gains_transposed = cc_product_gains_transposed;
    }
    return rules;
}

/* Is the value's layout unknown to the host, which knows recorded values? `follows`: channels-last is fine
 * (CcHost.convolve). */
static bool is_foreign(const CcVal *v, bool follows) {
    return cc_transposed(v) || (v->channels_last && !follows) || v->hidden;
}

static bool touches_foreign(const CcGraph *g, int node, bool follows) {
    const CcNode *n = &g->node.at[node];
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(g, n, i);
        if (v >= 0 && is_foreign(&g->val.at[v], follows)) return true;
    }
    return n->n_out > 0 && is_foreign(&g->val.at[n->out0], follows);
}

/* Nodes that replaying on the host would not reproduce: a narrowed select is a copy now, and attention replaces its
 * last node. */
static bool is_rewritten(const CcGraph *g, int node) {
    const CcNode *n = &g->node.at[node];
    return n->rewritten || (n->op == CC_OP_copy && g->val.at[n->out0].narrowed) || n->op == CC_OP_attend;
}

static void add_host_steps(Compile *c, const CcGroup *group) {
    const CcGroupRules rules = rules_of(c);
    for (int i = 0; i < group->n; i++) {
        const int node = group->node[i];
        const bool stuck = reads_window(c->g, node) || is_rewritten(c->g, node) ||
                           touches_foreign(c->g, node, cc_layout_follows(c->g, node, &rules));
        if (stuck) c->banned[c->g->node.at[node].origin] = true;
        c->stuck = c->stuck || stuck;
        add_step(c, CC_STEP_HOST, &group->node[i], 1, NULL);
        cc_vec_last(&c->plan->step).why = c->want.host_only ? c->host_why : cc_why_torch(c->g, node, &rules);
    }
}

/* Is the value made by another part of the same op? */
static bool is_own(const CcGraph *g, const CcNode *n, int value) {
    const int def = g->val.at[value].def;
    return def >= 0 && g->node.at[def].origin == n->origin;
}

static CcLoop *build_loop(const Compile *c, const CcGroup *group, const CcBox *box, CcErr *err) {
    CcLoop *loop = cc_build_group(c->g, group->node, group->n, box, c->made, deflt_of(c), c->plan->arena, err);
    const bool compiled = c->on.cuda || (cc_kcache_on() && !c->ref_always);
    return loop && compiled && cc_nest_numel(loop) ? cc_vary_constants(loop, c->plan->arena) : loop;
}

/* Starts LLVM's work on the kernel. */
static void start_kernel(const Compile *c, CcLaunch *launch, const CcLoop *loop) {
    cc_launch_init(launch, loop);
    if (!c->on.cuda && !c->ref_always && launch->numel) cc_kcache_need(loop);
}

static int start_boxes(const Compile *c, const CcGroup *group, const CcBox *box, int n, Started *out, CcErr *err) {
    out->boxes = cc_boxes_make(n, c->plan->arena, &out->part);
    if (!out->boxes) return -1;
    for (; out->n < n; out->n++) {
        const CcLoop *loop = build_loop(c, group, &box[out->n], err);
        if (!loop) return -1;
        start_kernel(c, &out->part[out->n], loop);
    }
    return 0;
}

static int list_writes(const Compile *c, const CcGroup *group, CcLaunch *launch) {
    CcWritten *written = cc_arena_alloc(c->plan->arena, sizeof *written * (size_t)group->n);
    if (!written) return -1;
    launch->written = written;
    for (int i = 0; i < group->n; i++) {
        const CcNode *n = &c->g->node.at[group->node[i]];
        if (!cc_into_is_write(c->g, n)) continue;
        const int value = cc_graph_base(c->g, n->out0);
        written[launch->n_written++] = (CcWritten){value, is_own(c->g, n, value) ? -1 : n->origin, !n->uncounted};
    }
    return 0;
}

static int start_parts(const Compile *c, const CcGroup *group, Started *out, CcErr *err) {
    CcArena *arena = c->plan->arena;
    CcBox *box = NULL;
    const int n_box = rules_of(c).gathers ? 0 : cc_build_boxes(c->g, group->node, group->n, arena, &box);
    if (n_box < 0) return -1;
    if (n_box > 1) return start_boxes(c, group, box, n_box, out, err);
    CcLoop *loop = build_loop(c, group, box, err);
    CcLaunch *launch = loop ? cc_arena_alloc(arena, sizeof *launch) : NULL;
    if (!launch) return -1;
    start_kernel(c, launch, loop);
    if (list_writes(c, group, launch) < 0) return -1;
    *out = (Started){.part = launch, .n = 1};
    return 0;
}

/* Returns nothing, and logs why, if the group is not a kernel. */
static Started start(const Compile *c, const CcGroup *group) {
    CcErr why = {0};
    Started started = {0};
    if (group->kind != CC_G_LOOP || start_parts(c, group, &started, &why) == 0) return started;
    say_once(CC_LOG_FALLBACK, &why);
    return (Started){0};
}

static int find_cuda(const Compile *c, CcLaunch *launch, CcErr *err) {
    const CcLoop *loop = launch->loop;
    CcCudaTuning tuning = {0};
    if (c->want.autotune) cc_cudatune_choose(&c->on, &loop, &tuning, 1);
    launch->cuda = cc_cudalaunch_make(&c->on, loop, &tuning, c->plan->arena, err);
    return launch->cuda ? 0 : -1;
}

/* Finds machine code or falls back to the reference executor. -1: neither. */
static int find_code(const Compile *c, CcLaunch *launch, CcErr *err) {
    CcErr why = {0};
    if (c->on.cuda && launch->numel) return find_cuda(c, launch, err);
    if (cc_kcache_on() && !c->ref_always && launch->numel) launch->fn = cc_kcache_get(launch->loop, &why);
    if (launch->fn || launch->numel <= REF_MAX || c->ref_always) {
        if (why.status) say_once(CC_LOG_FALLBACK, &why);
        return 0;
    }
    if (err) *err = why.status ? why : (CcErr){.status = CC_E_UNSUPPORTED, .text = "LLVM is disabled"};
    return -1;
}

/* NULL: nothing was started, or no back-end can do it, which is logged. */
static CcLaunch *finish(const Compile *c, const Started *started) {
    CcErr why = {0};
    for (int i = 0; i < started->n; i++) {
        if (find_code(c, &started->part[i], &why) == 0) continue;
        say_once(CC_LOG_FALLBACK, &why);
        return NULL;
    }
    if (!started->boxes) return started->part;
    CcLaunch *launch = cc_arena_alloc(c->plan->arena, sizeof *launch);
    if (!launch) return NULL;
    cc_boxes_settle(started->boxes);
    *launch = started->part[0];
    launch->boxes = started->boxes;
    return launch;
}

/* Marks post-ops that a library refused and that are not yet pointwise (batch norm): the passes make nodes pointwise
 * that are known not to be post-ops. */
static bool set_apart(Compile *c, const CcGroup *group) {
    const CcGroupRules rules = rules_of(c);
    bool any = false;
    for (int i = 0; i < group->n; i++) {
        if (rules.loop && rules.loop(c->g, group->node[i], deflt_of(c))) continue;
        any = c->apart[c->g->node.at[group->node[i]].origin] = true;
    }
    c->stuck = c->stuck || any;
    return any;
}

/* NULL: no library call, or the library refuses, which is logged. */
static void *try_prim(const Compile *c, const CcGroup *group) {
    CcErr why = {0};
    const CcPrimFamily *family = group->kind == CC_G_PRIM ? cc_prim_family(c->g, group->node[0]) : NULL;
    if (!family) return NULL;
    void *prim = family->build(c->g, group->node, group->n, c->plan->arena, &why);
    if (!prim) say_once(CC_LOG_FALLBACK, &why);
    return prim;
}

static void lower(Compile *c, const CcGroup *group, CcLaunch *launch, void *prim) {
    if (launch || prim) {
        add_step(c, prim ? CC_STEP_PRIMITIVE : CC_STEP_KERNEL, group->node, group->n, prim ? prim : (void *)launch);
        if (prim) cc_vec_last(&c->plan->step).family = cc_prim_family(c->g, group->node[0]);
        return;
    }
    if (group->kind == CC_G_PRIM && group->n > 1) { /* its post-ops can still be a kernel */
        const CcGroup first = {CC_G_PRIM, group->node, 1}, rest = {CC_G_LOOP, group->node + 1, group->n - 1};
        lower(c, &first, NULL, try_prim(c, &first));
        const Started started = set_apart(c, &rest) ? (Started){0} : start(c, &rest);
        lower(c, &rest, finish(c, &started), NULL);
        return;
    }
    add_host_steps(c, group);
}

/* Compiles all GPU kernels of a graph as one program, since a program costs NVRTC about 50 ms regardless of its
 * size. */
static void compile_program(const Compile *c, const CcGroups *groups) {
    CC_VEC(const CcLoop *) loops = {0};
    CcErr ignored;
    /* twice: the first pass finds out which constants vary */
    for (int i = 0; i < 2 * groups->n; i++) {
        const CcGroup *group = &groups->at[i % groups->n];
        if (group->kind != CC_G_LOOP) continue;
        CcLoop *loop = build_loop(c, group, NULL, &ignored);
        if (loop && cc_nest_numel(loop) && i >= groups->n) cc_vec_push(&loops, loop);
    }
    CcCudaTuning *tunings = calloc((size_t)loops.n + 1, sizeof *tunings);
    if (tunings && c->want.autotune) cc_cudatune_choose(&c->on, loops.at, tunings, loops.n);
    if (tunings) cc_cudakernel_need(c->on.cuda, loops.at, tunings, loops.n);
    free(tunings);
    cc_vec_free(&loops);
}

/* LLVM has its own process, which works while this one prints more loops and makes primitives. If LLVM is loaded
 * into this process, kernels compile as soon as they start, so LLVM's pages can be freed before oneDNN needs memory:
 * alternating the two raised the peak of ResNet-50's first call by 18 MiB. Within a series of compiles only the
 * first frees them, since reading them back takes 4 ms (Zen 4). */
static void make_work(Compile *c, const CcGroups *groups) {
    const bool first = !cc_reclaim_pending();
    const uint64_t begin = cc_log_now_ns();
    if (c->on.cuda) compile_program(c, groups);
    for (int i = 0; i < groups->n; i++) c->started[i] = start(c, &groups->at[i]);
    if (first) cc_jit_forget();
    const uint64_t between = cc_log_now_ns();
    for (int i = 0; i < groups->n; i++) c->prim[i] = try_prim(c, &groups->at[i]);
    const uint64_t primitives = cc_log_now_ns() - between;
    for (int i = 0; i < groups->n; i++) c->launch[i] = finish(c, &c->started[i]);
    c->plan->primitives_ms += (double)primitives * 1e-6;
    c->plan->kernels_ms += (double)(cc_log_now_ns() - begin - primitives) * 1e-6;
}

static int prepare(Compile *c, CcErr *err) {
    const CcGraph *g = c->g;
    c->banned = cc_arena_alloc(c->plan->arena, (size_t)g->node.n + 1);
    c->apart = cc_arena_alloc(c->plan->arena, (size_t)g->node.n + 1);
    if (!c->banned || !c->apart) return cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
    memset(c->banned, 0, (size_t)g->node.n + 1);
    for (int i = 0; c->want.fills && i < g->node.n; i++) c->banned[i] = g->node.at[i].op == CC_OP_empty;
    return 0;
}

/* Allocates the tables by node and value of the rewritten graph. */
static int prepare_round(Compile *c, CcErr *err) {
    const CcGraph *g = c->g;
    CcPlan *plan = c->plan;
    const size_t nodes = (size_t)g->node.n + 1;
    c->live = cc_arena_alloc(plan->arena, nodes);
    c->step_of = cc_arena_alloc(plan->arena, sizeof *c->step_of * nodes);
    c->made = cc_arena_alloc(plan->arena, (size_t)g->val.n + 1);
    c->started = cc_arena_alloc(plan->arena, sizeof *c->started * nodes);
    c->launch = cc_arena_alloc(plan->arena, sizeof *c->launch * nodes);
    c->prim = cc_arena_alloc(plan->arena, sizeof *c->prim * nodes);
    plan->node = cc_arena_alloc(plan->arena, sizeof *plan->node * nodes);
    if (!c->live || !c->step_of || !c->made || !c->started || !c->launch || !c->prim || !plan->node)
        return cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
    for (int i = 0; i < g->node.n; i++) {
        plan->node[i].op = g->node.at[i].op;
        plan->node[i].origin = g->node.at[i].origin;
    }
    return 0;
}

/* Hooks of saved tensors see what eager saves, also for results that nothing reads: a checkpoint counts them. */
static void keep_what_autograd_sees(const CcGraph *g, bool *live) {
    for (int i = g->node.n - 1; i >= 0; i--) {
        const CcNode *n = &g->node.at[i];
        for (int k = 0; k < n->n_out; k++) live[i] = live[i] || g->val.at[n->out0 + k].type.requires_grad;
        for (int k = 0; live[i] && k < n->n_in; k++) {
            const int v = cc_graph_value(g, n, k);
            const int def = v >= 0 ? g->val.at[cc_graph_base(g, v)].def : -1;
            if (def >= 0) live[def] = true;
        }
    }
}

/* What reports say of a step's results, and whether the host has to follow its operand's layout. */
static void mark_layout(const CcGraph *g, CcStep *step) {
    const CcNode *first = &g->node.at[step->node[0]], *last = &g->node.at[step->node[step->n_node - 1]];
    const CcVal *made = first->n_out > 0 ? &g->val.at[first->out0] : NULL;
    const int x = cc_graph_source(g, last);
    step->transposed = made && cc_transposed(made);
    step->narrowed = made && made->narrowed && !step->transposed;
    step->channels_last = last->n_out > 0 && g->val.at[last->out0].channels_last;
    step->follows = step->kind == CC_STEP_HOST && last->op == CC_OP_conv &&
                    (step->channels_last || (x >= 0 && g->val.at[x].channels_last));
}

static int build(Compile *c, CcErr *err) {
    const CcGraph *g = c->g;
    CcPlan *plan = c->plan;
    const CcGroupRules rules = rules_of(c);
    c->stuck = false;
    cc_plan_clear(plan);
    if (prepare_round(c, err) < 0) return -1;
    CcGroups groups;
    cc_dce_mark(g, c->live);
    if (c->want.host_only) keep_what_autograd_sees(g, c->live);
    if (cc_group_build(g, c->live, &rules, plan->arena, &groups, err) < 0) return -1;
    /* First one step per group, to see which values exist between groups; then the real steps. */
    for (int i = 0; i < groups.n; i++) {
        const CcStepKind kind = groups.at[i].kind == CC_G_HOST ? CC_STEP_HOST : CC_STEP_KERNEL;
        add_step(c, kind, groups.at[i].node, groups.at[i].n, NULL);
    }
    cc_plan_made(plan, g, c->live, c->made, c->step_of);
    plan->step.n = 0;
    make_work(c, &groups);
    for (int i = 0; i < groups.n; i++) lower(c, &groups.at[i], c->launch[i], c->prim[i]);
    for (int s = 0; s < plan->step.n; s++) mark_layout(g, &plan->step.at[s]);
    cc_plan_made(plan, g, c->live, c->made, c->step_of);
    if (c->stuck) return 0;
    if (cc_plan_apart(plan, g, err) < 0) return -1;
    if (cc_plan_lifetimes(plan, g, c->made, err) < 0) return -1;
    return cc_memory_plan(plan, g, err);
}

/* Records the types that differ from the host's. */
static void keep_types(CcPlan *plan, const CcGraph *g) {
    for (int v = 0; v < g->val.n; v++) {
        if ((!g->val.at[v].narrowed && !g->val.at[v].channels_last) || g->val.at[v].window_of) continue;
        cc_vec_push(&plan->narrowed, (CcNarrowed){v, g->val.at[v].type});
        cc_device_restore(&plan->on, &cc_vec_last(&plan->narrowed).type);
    }
}

static CcGraph *rewrite(const CcGraph *g, const CcGroupRules *rules) {
    CcGraph *own = cc_graph_copy(g);
    CcErr err = {0};
    cc_order_rewrite(own, rules);
    if (cc_graph_check_windows(own, &err) == 0) return own;
    CC_ASSERT(false);
    cc_log_add(CC_LOG_VERIFY, "compiled without passes: %s", err.text);
    cc_graph_free(own);
    return NULL;
}

/* The graph after all passes: for a listener, and with CCOMPILE_DUMP=graph for reports. */
static void show_graph(CcPlan *plan, const CcGraph *g) {
    const char *dump = getenv("CCOMPILE_DUMP");
    const bool keep = dump && strcmp(dump, "graph") == 0;
    if (!keep && !cc_log_wants(CC_LOG_REWRITTEN)) return;
    CcSbuf text = {0};
    cc_graph_print(g, &text);
    cc_log_more(CC_LOG_REWRITTEN, (CcLogExtra){.detail = cc_sbuf_text(&text)}, "%d ops after all passes", g->node.n);
    free(plan->rewritten);
    plan->rewritten = keep ? text.text : NULL;
    if (!keep) cc_sbuf_free(&text);
}

/* Bytes of all inputs: what a call reads from memory if no cache holds them. */
static int64_t input_bytes(const CcGraph *g) {
    int64_t bytes = 0;
    for (int v = 0; v < g->val.n; v++) {
        const CcType *t = &g->val.at[v].type;
        if (g->val.at[v].def < 0) bytes += cc_type_numel(t) * cc_dtype_size(t->dtype);
    }
    return bytes;
}

/* Compiles with passes if possible. If a back-end refuses a node too late for the host to run it, the next round
 * knows that. */
static int build_best(Compile *c, CcErr *err) {
    const CcGraph *g = c->g;
    if (prepare(c, err) < 0) return -1;
    const CcGroupRules rules = rules_of(c);
    int status = 0;
    c->stuck = true;
    for (int round = 0; status == 0 && c->stuck; round++) {
        if (round == MAX_ROUNDS && !c->want.host_only)
            cc_log_add(CC_LOG_FALLBACK, "back-ends refused nodes in %d rounds of passes: compiled without passes",
                       MAX_ROUNDS);
        const uint64_t begin = cc_log_now_ns();
        CcGraph *own = c->want.host_only || round == MAX_ROUNDS ? NULL : rewrite(g, &rules);
        c->plan->passes_ms += (double)(cc_log_now_ns() - begin) * 1e-6;
        if (own && c->want.measures) {
            own->measures = true;
            own->input_bytes = input_bytes(g);
        }
        c->g = own ? own : g;
        status = build(c, err);
        if (status == 0 && !c->stuck) {
            keep_types(c->plan, c->g);
            show_graph(c->plan, c->g);
        }
        if (own) cc_graph_free(own);
    }
    c->g = g;
    return status;
}

static void tell_setting(const CcErr *err) { say_once(CC_LOG_IGNORED, err); }

static CcPlan *new_plan(CcErr *err) {
    CcPlan *plan = calloc(1, sizeof *plan);
    if (plan) plan->arena = cc_arena_new();
    if (plan && plan->arena) return plan;
    free(plan);
    cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
    return NULL;
}

/* Leaves all nodes to the host if the graph is wrong or its GPU can't be used. */
static void check(Compile *c) {
    CcErr why = {0};
    if (!c->want.host_only && (cc_op_init(&why) < 0 || cc_graph_check(c->g, &why) < 0)) {
        cc_log_add(CC_LOG_VERIFY, "%s", why.text);
        c->want.host_only = true;
        c->host_why = "the graph is not well-formed (see events)";
    }
    if (!c->want.host_only && cc_device_choose(c->g, &c->on, &why) < 0) {
        say_once(CC_LOG_FALLBACK, &why);
        c->want.host_only = true;
        c->host_why = "its GPU cannot be used (see events)";
        c->on = (CcOnDevice){0};
    }
}

static int compile(Compile *c, CcErr *err) {
    CcSpan span = {.start_ns = 0};
    CcGraph *own = cc_device_graph(c->g, &c->on);
    if (own) c->g = own;
    cc_kcache_switch(!c->want.no_llvm);
    if (cc_span_on) cc_span_open(&span, CC_SPAN_COMPILE, "%d ops", c->g->node.n);
    const int status = cc_graph_check_structure(c->g, err) < 0 ? -1 : build_best(c, err);
    cc_span_close(&span);
    cc_kcache_switch(true);
    if (own) cc_graph_free(own);
    return status;
}

CcPlan *cc_run_compile(const CcGraph *g, const CcRunOptions *options, CcErr *err) {
    const uint64_t start = cc_log_now_ns();
    const char *backend = getenv("CCOMPILE_BACKEND"), *profile = getenv("CCOMPILE_PROFILE");
    CcErr why = {0};
    Compile c = {.g = g,
                 .host_why = "torch runs all ops of this plan",
                 .skipped = cc_order_skipped(getenv("CCOMPILE_SKIP_PASSES"), &why),
                 .ref_always = backend && strcmp(backend, "ref") == 0};
    if (options) c.want = *options;
    if (why.status) tell_setting(&why);
    cc_settings_check(tell_setting);
    c.plan = new_plan(err);
    if (!c.plan) return NULL;
    check(&c);
    c.plan->on = c.on;
    if (compile(&c, err) < 0) {
        cc_run_free(c.plan);
        return NULL;
    }
    if (profile && *profile == '1') c.plan->spent_ns = calloc((size_t)c.plan->step.n + 1, sizeof *c.plan->spent_ns);
    c.plan->compile_ms = (double)(cc_log_now_ns() - start) * 1e-6;
    return c.plan;
}

void cc_run_libraries(const char *llvmlite, const char *compiler, const char *onednn, const char *nvrtc) {
    cc_jit_library(llvmlite, compiler);
    cc_dnnl_library(onednn);
    cc_nvrtc_library(nvrtc);
}

void cc_run_blas(void *sgemm, const char *torch) { cc_blas_use(sgemm, torch); }

void cc_run_threads(int n) { cc_omp_threads(n); }

int cc_run_bernoulli(uint32_t state[CC_RUN_RANDOM_WORDS], int left, double p, uint8_t *out, int64_t n) {
    return cc_mersenne_bernoulli(state, left, p, out, n);
}

uint64_t cc_run_content(const void *at, int64_t bytes) {
    return CC_VERSION_UNIQUE | cc_content_of(at, (size_t)bytes) >> 2;
}

int64_t cc_run_freezes(void) { return cc_content_tracks_writes() ? INT64_MAX : CC_CONTENT_CHEAP; }

void cc_run_describe(CcSbuf *out) {
    const char *llvm = cc_jit_describe(), *dnnl = cc_dnnl_describe(), *nvrtc = cc_nvrtc_describe();
    cc_sbuf_add(out, "%s, %s, %s%s%d thread%s of %s, %s, %s", llvm ? llvm : "no LLVM", dnnl ? dnnl : "no oneDNN",
                nvrtc ? nvrtc : "", nvrtc ? ", " : "", cc_omp_width(), cc_omp_width() == 1 ? "" : "s",
                cc_omp_describe(), cc_cpu_info()->name,
                cc_content_tracks_writes() ? "memory writes are tracked" : "memory writes are not tracked");
}
