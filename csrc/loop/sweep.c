/* sweep: assigns nodes to sweeps over a row. A reduction's operand may need results of other reductions; a node's
 * stage is the longest chain of reductions before it. Sweep k does the reductions whose operands have stage k; the
 * last sweep does all stores of elements, so that a result may reuse the memory of an operand.
 *
 * An element that several sweeps need is recomputed in each, or kept in a scratch line if recomputing is expensive. */
#include "loop.h"

enum { DEAR = 3, MAX_KEPT = 4 }; /* additions; lines */

float cc_sweep_cost(const CcLoopNode *n) {
    const CcScalarInfo *info = cc_scalar_info((CcScalarId)n->op);
    const char *lower = info->lower[cc_dtype_is_float(n->dtype) ? 0 : 1];
    if (n->op == CC_S_div || n->op == CC_S_sqrt || n->op == CC_S_rem) return 3;
    if (n->op == CC_S_plse) return 100;
    if (info->kind == 'P') return 3.5f; /* log2(lanes) steps */
    if (info->kind != 'A' || n->op == CC_S_max || n->op == CC_S_min) return 0.25f;
    return *lower == '$' || *lower == '!' ? 8 : 0.25f;
}

bool cc_sweep_along(const CcLoop *loop, const CcLoopAccess *a) {
    return a->line || (!loop->columns && a->step != CC_STEP_ZERO);
}

static int arity(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->arity; }
bool cc_sweep_scans(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'P'; }
static bool is_reduction(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'R'; }

/* Marks what the sweep computes for node i and its operands; operands precede their nodes. */
static void close_need(const CcLoop *loop, const CcSweeps *plan, int sweep, bool *need) {
    for (int i = loop->n_node - 1; i >= 0; i--) {
        const CcLoopNode *n = &loop->node[i];
        if (!need[i] || (plan->kept[i] && plan->first[i] < sweep)) continue;
        for (int k = 0; k < arity(n); k++) need[n->a[k]] = need[n->a[k]] || plan->element[n->a[k]];
    }
}

void cc_sweep_need(const CcLoop *loop, const CcSweeps *plan, int sweep, bool *need) {
    for (int i = 0; i < loop->n_node; i++) need[i] = false;
    for (int i = 0; i < loop->n_node; i++) {
        const int x = loop->node[i].a[0];
        if (is_reduction(&loop->node[i]) && plan->stage[x] == sweep) need[x] = plan->element[x];
    }
    for (int a = 0; a < loop->n_access && sweep == plan->n - 1; a++)
        if (loop->access[a].is_store && cc_sweep_along(loop, &loop->access[a]))
            need[loop->access[a].node] = plan->element[loop->access[a].node];
    close_need(loop, plan, sweep, need);
}

/* Counts the sweeps that need each node. */
static void count_times(const CcLoop *loop, const CcSweeps *plan, uint8_t *times) {
    bool need[CC_LOOP_MAX_NODES];
    for (int i = 0; i < loop->n_node; i++) times[i] = 0;
    for (int s = 0; s < plan->n; s++) {
        cc_sweep_need(loop, plan, s, need);
        for (int i = 0; i < loop->n_node; i++) times[i] = (uint8_t)(times[i] + need[i]);
    }
}

static void find_first(const CcLoop *loop, CcSweeps *plan) {
    bool need[CC_LOOP_MAX_NODES];
    for (int s = plan->n - 1; s >= 0; s--) {
        cc_sweep_need(loop, plan, s, need);
        for (int i = 0; i < loop->n_node; i++)
            if (need[i]) plan->first[i] = (uint8_t)s;
    }
}

/* Starts at the end of a chain: a kept node spares the nodes before it. */
static void keep_dear(const CcLoop *loop, CcSweeps *plan) {
    uint8_t times[CC_LOOP_MAX_NODES];
    if (plan->n == 1) return;
    find_first(loop, plan);
    while (plan->n_kept < MAX_KEPT) {
        count_times(loop, plan, times);
        int i = loop->n_node - 1;
        while (i >= 0 && (times[i] < 2 || plan->kept[i] || cc_sweep_cost(&loop->node[i]) < DEAR)) i--;
        if (i < 0) return;
        plan->kept[i] = (uint8_t)++plan->n_kept;
    }
}

void cc_sweep_plan(const CcLoop *loop, CcSweeps *plan) {
    memset(plan, 0, sizeof *plan);
    plan->n = 1;
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        if (cc_loop_access(n) >= 0) plan->element[i] = cc_sweep_along(loop, &loop->access[cc_loop_access(n)]);
        for (int k = 0; k < arity(n); k++) {
            plan->stage[i] = CC_MAX(plan->stage[i], plan->stage[n->a[k]]);
            plan->element[i] = plan->element[i] || plan->element[n->a[k]];
        }
        /* includes nodes that are the same for a whole row */
        plan->element[i] = plan->element[i] || cc_sweep_scans(n);
        if (!is_reduction(n)) continue;
        plan->element[i] = false;
        plan->stage[i]++;
        plan->n = CC_MAX(plan->n, plan->stage[i]);
    }
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && cc_sweep_along(loop, &loop->access[a]))
            plan->n = CC_MAX(plan->n, plan->stage[loop->access[a].node] + 1);
    keep_dear(loop, plan);
}
