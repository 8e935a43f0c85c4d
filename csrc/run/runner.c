/* runner: executes plans. A plan is only read here, so threads may share it; nothing is allocated
 * for kernels. */
#include "run_int.h"

static int run_step(const CcStep *step, const CcHost *host, CcErr *err) {
    if (step->kind == CC_STEP_KERNEL) return cc_launch_run(step->work, host, err);
    if (step->kind == CC_STEP_PRIMITIVE) return step->family->run(step->work, host, err);
    if (host->call(host->ctx, step->node[0]) < 0)
        return cc_err_set(err, CC_E_HOST, "node %d failed", step->node[0]);
    return 0;
}

/* Sums of a plan's runs, for cc_run_print; threads that run at once may lose a little of it. */
static void profile(CcPlan *plan, int s, uint64_t start) {
    plan->spent_ns[s] += cc_log_now_ns() - start;
    if (s == plan->step.n - 1) plan->runs++;
}

int cc_run_exec(const CcPlan *plan, const CcHost *host, int *step_out, CcErr *err) {
    const int n = plan->step.n;
    for (int s = 0; s < n; s++) {
        const CcStep *step = &plan->step.at[s];
        if (step_out) *step_out = s;
        const uint64_t start = plan->spent_ns ? cc_log_now_ns() : 0;
        if (run_step(step, host, err) < 0) return -1;
        if (plan->spent_ns) profile((CcPlan *)plan, s, start);
        for (int i = 0; i < step->n_drop; i++)
            host->drop(host->ctx, plan->drop.at[step->drop0 + i]);
    }
    if (step_out) *step_out = n;
    return 0;
}
