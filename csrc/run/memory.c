/* memory: one block of memory per call for all values that only kernels and library calls touch, and for the scratch
 * memory of library calls.
 *
 * Walks the steps once: results get a place, values that die free theirs. A result that a kernel may write over a
 * dying input takes the input's place; the operand that a scatter changes is made in the result's place from the
 * start. Of the free spans that are large enough, the most recently freed wins: it is still in cache (greedy by size
 * packs tighter, but a copy of 2 MB took 0.33 ms instead of 0.11 in MiniTransformer, Zen 4). */
#include "run_int.h"

/* Buffers whose addresses agree in the last 12 bits slow each other down when one is read and the other written (4K
 * aliasing; its share was not measured separately). So sizes of large ones are never multiples of a page. */
enum { ALIGN = 64, PAGE = 4096, SHIFT = 5 * ALIGN };

/* ------------------------------------------------------------------ the plan */

typedef struct Span {
    int64_t at, bytes;
    int freed; /* the step that freed it */
} Span;

typedef struct Layout {
    CcPlan *plan;
    const CcGraph *g;
    const bool *private; /* [value] */
    int *last;           /* [value]: the step in which it dies; -1: never, or its place was handed on */
    CcPlace *place;      /* [value] */
    CC_VEC(Span) free;   /* sorted by place; neighbours touch only if freed at different steps */
    int64_t top, apart;  /* bytes so far, and without reuse */
} Layout;

/* Values that kernels or library calls make and that only such steps read. */
static void mark_private(const CcPlan *plan, const CcGraph *g, bool *private) {
    for (int s = 0; s < plan->step.n; s++) {
        const CcStep *step = &plan->step.at[s];
        for (int i = 0; i < step->n_node; i++) {
            const CcNode *n = &g->node.at[step->node[i]];
            for (int k = 0; k < n->n_out && !cc_into_is_write(g, n); k++)
                private[cc_graph_base(g, n->out0 + k)] =
                    step->kind != CC_STEP_HOST && !g->val.at[n->out0 + k].is_output;
            for (int k = 0; k < n->n_in && step->kind == CC_STEP_HOST; k++) {
                const int v = cc_graph_value(g, n, k);
                if (v >= 0) private[cc_graph_base(g, v)] = false;
            }
        }
    }
}

static int64_t bytes_of(const CcType *t) {
    int64_t last = 0;
    for (int d = 0; d < t->ndim; d++) last += (CC_MAX(1, t->size[d]) - 1) * t->stride[d];
    const int64_t bytes = (last + 1) * cc_dtype_size(t->dtype);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN + (bytes >= PAGE ? SHIFT : 0);
}

static bool same_steps(const CcLoop *loop, int a, int b) {
    for (int d = 0; d < loop->ndim; d++)
        if (loop->stride[a][d] != loop->stride[b][d]) return false;
    return loop->access[a].dtype == loop->access[b].dtype;
}

/* May a kernel write the store over `input`? Only if each access of that input reads the very element that is
 * stored. */
static bool can_overwrite(const CcLoop *loop, int store, int input) {
    if (loop->access[store].offset) return false;
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *access = &loop->access[a];
        if (access->value == input &&
            (access->is_store || access->taken || access->offset || !same_steps(loop, a, store)))
            return false;
    }
    return true;
}

/* The dying input whose place the result of this store takes; -1: none. */
static int find_input(const Layout *l, int s, const CcLoop *loop, int store) {
    const CcType *out = &l->g->val.at[loop->access[store].value].type;
    for (int a = 0; a < loop->n_access; a++) {
        const int input = loop->access[a].value;
        if (loop->access[a].is_store || input < 0 || l->place[input].at < 0 || l->last[input] != s ||
            bytes_of(&l->g->val.at[input].type) != bytes_of(out) || !can_overwrite(loop, store, input))
            continue;
        return input;
    }
    return -1;
}

/* The value whose memory the result of step s may reuse (CcPrimFamily.over): its first operand, if that dies there
 * and no other operand of the step reads the memory. -1: none. */
static int find_over(const Layout *l, int s) {
    const CcStep *step = &l->plan->step.at[s];
    if (step->kind != CC_STEP_PRIMITIVE || !step->family->over) return -1;
    const CcGraph *g = l->g;
    const CcNode *n = &g->node.at[step->node[0]];
    if (!step->family->over(n)) return -1;
    const int x = cc_graph_source(g, n);
    if (x < 0 || n->n_out != 1 || g->val.at[n->out0].window_of || g->val.at[x].window_of) return -1;
    for (int k = 1; k < n->n_in; k++) {
        const int v = cc_graph_value(g, n, k);
        if (v >= 0 && cc_graph_base(g, v) == x) return -1;
    }
    const bool same = cc_type_same_layout(&g->val.at[x].type, &g->val.at[n->out0].type) &&
                      g->val.at[x].type.dtype == g->val.at[n->out0].type.dtype;
    return same && l->last[x] == s ? x : -1;
}

/* If the host makes such a result, the operand is made in the result's memory from the start. Goes backwards through
 * the steps, as results may form a chain. */
static void share_results(Layout *l, bool *private) {
    for (int s = l->plan->step.n - 1; s >= 0; s--) {
        const int x = find_over(l, s);
        const int result = x < 0 ? -1 : l->g->node.at[l->plan->step.at[s].node[0]].out0;
        if (x < 0 || !private[x] || private[result]) continue;
        l->place[x].of = l->place[result].of;
        l->place[result].early = true;
        private[x] = false;
    }
}

/* ------------------------------------------------------------------ spans */

static void remove_span(Layout *l, int i) {
    memmove(l->free.at + i, l->free.at + i + 1, sizeof(Span) * (size_t)(l->free.n - i - 1));
    l->free.n--;
}

static void merge_spans(Layout *l) {
    for (int i = 0; i + 1 < l->free.n;) {
        Span *a = &l->free.at[i], *b = a + 1;
        if (a->at + a->bytes != b->at) {
            i++;
            continue;
        }
        a->bytes += b->bytes;
        a->freed = CC_MAX(a->freed, b->freed);
        remove_span(l, i + 1);
    }
}

static void free_span(Layout *l, int64_t at, int64_t bytes, int step) {
    int i = l->free.n;
    cc_vec_push(&l->free, (Span){0});
    for (; i > 0 && l->free.at[i - 1].at > at; i--) l->free.at[i] = l->free.at[i - 1];
    l->free.at[i] = (Span){at, bytes, step};
}

/* The most recently freed span that is large enough, preferring those that are not much too large; -1: none. */
static int find_span(const Layout *l, int64_t bytes) {
    int best = -1;
    for (int i = 0; i < l->free.n; i++) {
        const Span *x = &l->free.at[i], *y = best < 0 ? NULL : &l->free.at[best];
        if (x->bytes < bytes) continue;
        const bool fits = x->bytes / 4 <= bytes, others = y && y->bytes / 4 <= bytes;
        if (!y || (fits != others ? fits : x->freed > y->freed)) best = i;
    }
    return best;
}

static int64_t take_span(Layout *l, int64_t bytes) {
    int i = find_span(l, bytes);
    if (i < 0) {
        merge_spans(l);
        i = find_span(l, bytes);
    }
    if (i < 0) { /* at the end, extending a free span there */
        const Span *end = l->free.n ? &l->free.at[l->free.n - 1] : NULL;
        const int64_t at = end && end->at + end->bytes == l->top ? end->at : l->top;
        if (at < l->top) l->free.n--;
        l->top = at + bytes;
        return at;
    }
    Span *span = &l->free.at[i];
    const int64_t at = span->at;
    span->at += bytes;
    span->bytes -= bytes;
    if (span->bytes == 0) remove_span(l, i);
    return at;
}

/* ------------------------------------------------------------------ walking the steps */

static int64_t bytes_of_value(const Layout *l, int value) { return bytes_of(&l->g->val.at[value].type); }

static void add_results(Layout *l, int s) {
    const CcStep *step = &l->plan->step.at[s];
    const CcLaunch *launch = step->kind == CC_STEP_KERNEL ? step->work : NULL;
    /* writing in place would destroy what another box reads */
    const CcLoop *loop = launch && !launch->boxes ? launch->loop : NULL;
    for (int a = 0; loop && a < loop->n_access; a++) {
        const int value = loop->access[a].value;
        const bool makes = loop->access[a].is_store && !cc_launch_writes(launch, value);
        const int input = makes && l->private[value] ? find_input(l, s, loop, a) : -1;
        if (input < 0) continue;
        l->place[value].at = l->place[input].at;
        l->last[input] = -1;
    }
    const int over = find_over(l, s), result = over < 0 ? -1 : l->g->node.at[step->node[0]].out0;
    if (over >= 0 && l->private[result] && l->place[over].at >= 0) {
        l->place[result].at = l->place[over].at;
        l->last[over] = -1;
    }
    for (int i = 0; i < step->n_node; i++) {
        const CcNode *n = &l->g->node.at[step->node[i]];
        for (int k = 0; k < n->n_out; k++) {
            const int value = cc_graph_base(l->g, n->out0 + k);
            if (!l->private[value] || l->last[value] < 0) continue;
            l->apart += bytes_of_value(l, value);
            if (l->place[value].at < 0) l->place[value].at = take_span(l, bytes_of_value(l, value));
        }
    }
}

static size_t scratch_of(const CcStep *step) {
    if (step->kind == CC_STEP_PRIMITIVE) return step->family->scratch ? step->family->scratch(step->work) : 0;
    const CcLaunch *launch = step->kind == CC_STEP_KERNEL ? step->work : NULL;
    return launch && launch->cuda ? (size_t)cc_cudalaunch_workspace(launch->cuda) : 0;
}

/* Scratch memory that a family or kernel asked for; it exists only while the step runs. */
static void add_scratch(Layout *l, int s) {
    CcStep *step = &l->plan->step.at[s];
    const size_t bytes = (scratch_of(step) + ALIGN - 1) / ALIGN * ALIGN;
    if (!bytes) return;
    l->apart += (int64_t)bytes;
    step->scratch = take_span(l, (int64_t)bytes);
    free_span(l, step->scratch, (int64_t)bytes, s);
}

static void free_dying(Layout *l, int s) {
    const CcStep *step = &l->plan->step.at[s];
    for (int i = 0; i < step->n_drop; i++) {
        const int value = l->plan->drop.at[step->drop0 + i];
        if (l->place[value].at >= 0 && l->last[value] == s)
            free_span(l, l->place[value].at, bytes_of_value(l, value), s);
    }
}

/* Keeps only the dying values that the host holds; others need no drop. */
static void keep_host_drops(CcPlan *plan) {
    for (int s = 0; s < plan->step.n; s++) {
        CcStep *step = &plan->step.at[s];
        const int n = step->n_drop;
        step->n_drop = 0;
        for (int i = 0; i < n; i++) {
            const int value = plan->drop.at[step->drop0 + i];
            if (plan->place.at[value].at < 0 && plan->place.at[value].of == value)
                plan->drop.at[step->drop0 + step->n_drop++] = value;
        }
    }
}

int cc_memory_plan(CcPlan *plan, const CcGraph *g, CcErr *err) {
    const size_t values = (size_t)g->val.n;
    bool *private = calloc(1, values + 1);
    int *last = malloc(sizeof *last * (values + 1));
    if (!private || !last) {
        free(private);
        free(last);
        return cc_err_set(err, CC_E_MEMORY, "no memory for a plan");
    }
    cc_vec_reserve(&plan->place, g->val.n + 1);
    plan->place.n = 0;
    for (int v = 0; v < g->val.n; v++) {
        last[v] = -1;
        cc_vec_push(&plan->place, (CcPlace){.at = -1, .of = v});
    }
    for (int s = 0; s < plan->step.n; s++)
        for (int i = 0; i < plan->step.at[s].n_drop; i++) last[plan->drop.at[plan->step.at[s].drop0 + i]] = s;
    mark_private(plan, g, private);
    Layout l = {.plan = plan, .g = g, .private = private, .last = last, .place = plan->place.at};
    share_results(&l, private);
    for (int s = 0; s < plan->step.n; s++) {
        add_results(&l, s);
        add_scratch(&l, s);
        free_dying(&l, s);
    }
    plan->block_bytes = l.top;
    plan->apart_bytes = l.apart;
    keep_host_drops(plan);
    cc_vec_free(&l.free);
    free(last);
    free(private);
    return 0;
}

void cc_memory_trim(void) { cc_scratch_trim(); }
