/* runner: executes plans. A plan is only read here, so threads may share it; nothing is allocated
 * for kernels. */
#include "run_int.h"

static int run_step(const CcStep *step, const CcHost *host, CcErr *err) {
    if (step->kind == CC_STEP_KERNEL) return cc_launch_run(step->work, host, err);
    if (step->kind == CC_STEP_PRIMITIVE) return cc_prim_run(step->work, host, err);
    if (host->call(host->ctx, step->node[0]) < 0)
        return cc_err_set(err, CC_E_HOST, "node %d failed", step->node[0]);
    return 0;
}

int cc_run_exec(const CcPlan *plan, const CcHost *host, int *step_out, CcErr *err) {
    const int n = plan->step.n;
    for (int s = 0; s < n; s++) {
        const CcStep *step = &plan->step.at[s];
        if (step_out) *step_out = s;
        if (run_step(step, host, err) < 0) return -1;
        for (int i = 0; i < step->n_drop; i++)
            host->drop(host->ctx, plan->drop.at[step->drop0 + i]);
    }
    if (step_out) *step_out = n;
    return 0;
}
