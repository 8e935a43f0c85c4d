/* runner: executes plans. Only reads the plan, so threads may share it; kernels need no allocation. */
#include "run_int.h"

static int run_step(const CcStep *step, const CcHost *host, CcErr *err) {
    if (step->kind == CC_STEP_KERNEL) return cc_launch_run(step->work, host, err);
    if (step->kind == CC_STEP_PRIMITIVE) return step->family->run(step->work, host, err);
    if ((step->follows ? host->convolve : host->call)(host->ctx, step->host) < 0)
        return cc_err_set(err, CC_E_HOST, "node %d failed", step->host);
    return 0;
}

static int run_watched(const CcPlan *plan, int s, const CcHost *host, CcErr *err) {
    static const CcSpanKind KIND[] = {
        [CC_STEP_HOST] = CC_SPAN_TORCH, [CC_STEP_KERNEL] = CC_SPAN_KERNEL, [CC_STEP_PRIMITIVE] = CC_SPAN_LIBRARY};
    CcSbuf name = {0};
    if (plan->step.at[s].family) cc_sbuf_add(&name, "%s ", plan->step.at[s].family->name);
    cc_plan_ops_text(plan, s, &name);
    CcSpan span;
    cc_span_open(&span, KIND[plan->step.at[s].kind], "%s", cc_sbuf_text(&name));
    cc_sbuf_free(&name);
    const int status = run_step(&plan->step.at[s], host, err);
    cc_span_close(&span);
    return status;
}

/* Totals over a plan's runs, for cc_run_print; concurrent threads may lose some counts. */
static void profile(CcPlan *plan, int s, uint64_t start) {
    plan->spent_ns[s] += cc_log_now_ns() - start;
    if (s == plan->step.n - 1) plan->runs++;
}

/* The host that steps see: finds values of the plan's block here and asks the front end for the others. */
typedef struct Run {
    const CcPlan *plan;
    const CcHost *host;
    char *block;
} Run;

static void *run_data(void *ctx, int value) {
    const Run *r = ctx;
    const CcPlace *p = &r->plan->place.at[value];
    return p->at >= 0 ? r->block + p->at : r->host->data(r->host->ctx, p->of);
}

static void *run_make(void *ctx, int value) {
    const Run *r = ctx;
    const CcPlace *p = &r->plan->place.at[value];
    if (p->at >= 0) return r->block + p->at;
    return (p->early ? r->host->data : r->host->make)(r->host->ctx, p->of);
}

static int run_call(void *ctx, int node) {
    const Run *r = ctx;
    return r->host->call(r->host->ctx, node);
}

static int run_convolve(void *ctx, int node) {
    const Run *r = ctx;
    return r->host->convolve(r->host->ctx, node);
}

static int run_draw(void *ctx, int node, double p, void *out, int64_t n) {
    const Run *r = ctx;
    return r->host->draw(r->host->ctx, node, p, out, n);
}

static uint64_t run_version(void *ctx, int value) {
    const Run *r = ctx;
    return r->host->version ? r->host->version(r->host->ctx, value) : CC_NO_VERSION;
}

static double run_number(void *ctx, int number) {
    const Run *r = ctx;
    return r->host->number(r->host->ctx, number);
}

static int run_writing(void *ctx, int value, int node, bool counted) {
    const Run *r = ctx;
    const CcPlace *p = value < 0 ? NULL : &r->plan->place.at[value];
    if (!r->host->writing) return 0;
    return r->host->writing(r->host->ctx, p && p->at < 0 ? p->of : -1, node, counted);
}

/* The memory of a CcRange in this call. */
typedef struct Extent {
    uintptr_t first, end;
} Extent;

static int by_address(const void *a, const void *b) {
    const Extent *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Sorts a copy behind the n extents. */
static bool none_overlap(Extent *at, int n) {
    Extent *sorted = memcpy(at + n, at, sizeof *at * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, by_address);
    for (int i = 1; i < n; i++)
        if (sorted[i].first < sorted[i - 1].end) return false;
    return true;
}

/* Inputs that are separate in one call may overlap in another. Pairs can be many more than inputs: a step of an
 * optimiser that updates all parameters op by op. */
static int check_apart(const CcPlan *plan, const CcHost *host, CcErr *err) {
    const int n = plan->range.n;
    if (n <= 0) return 0; /* never negative; gcc wants to know */
    Extent *at = cc_scratch_thread(2 * sizeof *at * (size_t)n);
    if (!at) return cc_err_set(err, CC_E_MEMORY, "no memory to compare %d inputs", n);
    for (int i = 0; i < n; i++) {
        at[i].first = (uintptr_t)host->data(host->ctx, plan->range.at[i].value);
        at[i].end = at[i].first + (uintptr_t)plan->range.at[i].bytes;
    }
    if (plan->apart.n > 4 * n && none_overlap(at, n)) return 0;
    for (int i = 0; i < plan->apart.n; i++) {
        const CcApart *p = &plan->apart.at[i];
        const Extent *a = &at[p->range[0]], *b = &at[p->range[1]];
        if (a->first < b->end && b->first < a->end)
            return cc_err_set(err, CC_E_HOST, "values %d and %d share memory", plan->range.at[p->range[0]].value,
                              plan->range.at[p->range[1]].value);
    }
    return 0;
}

static int run_stream(void *ctx, int device, void **out) {
    const Run *r = ctx;
    return r->host->stream(r->host->ctx, device, out);
}

static int run_steps(const Run *run, int *step_out, CcErr *err) {
    const CcPlan *plan = run->plan;
    CcHost host = {.ctx = (void *)run,
                   .data = run_data,
                   .make = run_make,
                   .call = run_call,
                   .convolve = run_convolve,
                   .draw = run_draw,
                   .version = run_version,
                   .writing = run_writing,
                   .number = run_number,
                   .stream = run_stream};
    const int n = plan->step.n;
    const bool watched = cc_span_on != 0;
    for (int s = 0; s < n; s++) {
        const CcStep *step = &plan->step.at[s];
        if (step_out) *step_out = s;
        const uint64_t start = plan->spent_ns ? cc_log_now_ns() : 0;
        host.scratch = run->block ? run->block + step->scratch : NULL;
        if ((watched ? run_watched(plan, s, &host, err) : run_step(step, &host, err)) < 0) return -1;
        if (plan->spent_ns) profile((CcPlan *)plan, s, start);
        for (int i = 0; i < step->n_drop; i++) run->host->drop(run->host->ctx, plan->drop.at[step->drop0 + i]);
    }
    if (step_out) *step_out = n;
    return 0;
}

static int no_memory(const CcPlan *plan, CcErr *err) {
    return cc_err_set(err, CC_E_MEMORY, "no memory for %lld bytes of intermediate values",
                      (long long)plan->block_bytes);
}

/* The block is GPU memory: torch's allocator takes it back at once and reuses it for later work on the stream. */
static int exec_on_gpu(const CcPlan *plan, const CcHost *host, int *step_out, CcErr *err) {
    const int device = plan->on.waits ? -1 : plan->on.index;
    void *data = NULL, *block = plan->block_bytes ? host->block(host->ctx, device, plan->block_bytes, &data) : NULL;
    if (plan->block_bytes && !block) return no_memory(plan, err);
    const Run run = {plan, host, data};
    const int status = run_steps(&run, step_out, err);
    if (block) host->unblock(host->ctx, block);
    return status;
}

int cc_run_exec(const CcPlan *plan, const CcHost *host, int *step_out, CcErr *err) {
    cc_reclaim_end();
    if (step_out) *step_out = 0;
    if (check_apart(plan, host, err) < 0) return -1;
    if (plan->on.cuda && host->block) return exec_on_gpu(plan, host, step_out, err);
    CcScratch *block = plan->block_bytes ? cc_scratch_take((size_t)plan->block_bytes) : NULL;
    if (plan->block_bytes && !block) return no_memory(plan, err);
    const Run run = {plan, host, block ? block->at : NULL};
    const int status = run_steps(&run, step_out, err);
    cc_scratch_give(block);
    return status;
}
