/* One segment: its scratch, guards, plan and effects. The plan's host callbacks live here: they find, make and drop
 * tensors by graph value, and replay host nodes. */
#include "eval_int.h"

enum { MAX_CALL = 256 };

typedef CcSegmentHost Host;

/* ------------------------------------------------------------------ scratch */

void cc_segment_open(const CcSegment *s, CcScratch *x)
{
    const CcTrace *t = s->trace;
    const int n_gv = t->guards.g.n;
    x->n_value = t->graph->val.n;
    x->n_effect = t->effect.n;
    x->n_built = t->recipes.r.n;
    const size_t total = (size_t)(n_gv + x->n_value + x->n_effect + x->n_built);
    x->heap = NULL;
    PyObject **at = x->small;
    if (total > CC_COUNT(x->small)) {
        at = x->heap = malloc(sizeof *at * total);
        if (at == NULL) abort();
    }
    x->gv = at;
    x->value = at + n_gv;
    x->effect = x->value + x->n_value;
    x->built = x->effect + x->n_effect;
    memset(x->value, 0, sizeof *at * (total - (size_t)n_gv));
}

static void drop(PyObject **at, int n)
{
    for (int i = 0; i < n; i++) Py_CLEAR(at[i]);
}

void cc_segment_drop(CcScratch *x)
{
    drop(x->value, x->n_value);
    drop(x->effect, x->n_effect);
    drop(x->built, x->n_built);
}

void cc_segment_close(CcScratch *x)
{
    cc_segment_drop(x);
    free(x->heap);
    x->heap = NULL;
}

int cc_segment_check(const CcSegment *s, CcScratch *x, const CcGuardState *state)
{
    return cc_guard_run(&s->trace->guards, state, x->gv);
}

/* ------------------------------------------------------------------ host callbacks */

static void *host_data(void *ctx, int value)
{
    const Host *h = ctx;
    CcTensor t;
    cc_tens_read(h->x->value[value], false, &t);
    return t.data;
}

static void *host_make(void *ctx, int value)
{
    const Host *h = ctx;
    void *data = NULL;
    PyObject *o = cc_tens_empty(cc_run_type(h->plan, h->trace->graph, value), &data);
    if (o == NULL) return NULL;
    Py_XSETREF(h->x->value[value], o);
    return data;
}

static uint64_t host_version(void *ctx, int value)
{
    const Host *h = ctx;
    return cc_freeze_stamp(h->freeze, value, h->x->value[value]);
}

static void host_drop(void *ctx, int value)
{
    const Host *h = ctx;
    Py_CLEAR(h->x->value[value]);
}

/* Operands of an action: new references in `in`. */
static int make_operands(const CcTrace *t, const CcMaker *m, const CcAction *a, PyObject **in)
{
    for (int i = 0; i < a->n; i++) {
        in[i] = cc_recipe_make(m, t->args.at[a->args0 + i]);
        if (in[i] == NULL) {
            drop(in, i);
            return -1;
        }
    }
    return 0;
}

static PyObject *run_action(const CcTrace *t, const CcMaker *m, const CcAction *a)
{
    PyObject *in[MAX_CALL];
    if (a->n > MAX_CALL || make_operands(t, m, a, in) < 0) return NULL;
    PyObject *r = cc_action_run(a, in);
    drop(in, a->n);
    return r;
}

static int store_sequence(Host *h, const CcNode *node, PyObject *r)
{
    PyObject *items = PySequence_Fast(r, "ccompile: a node gave no sequence");
    if (items == NULL) return -1;
    if (PySequence_Fast_GET_SIZE(items) != node->n_out) {
        PyErr_Format(PyExc_RuntimeError, "ccompile: a node gave %zd results instead of %d", PySequence_Fast_GET_SIZE(items),
                     node->n_out);
        Py_DECREF(items);
        return -1;
    }
    for (int i = 0; i < node->n_out; i++)
        Py_XSETREF(h->x->value[node->out0 + i], Py_NewRef(PySequence_Fast_GET_ITEM(items, i)));
    Py_DECREF(items);
    return 0;
}

/* What was recorded behind this node holds for tensors like these only. */
static int check_results(const Host *h, const CcNode *node, const CcAction *a)
{
    for (int i = node->out0; i < node->out0 + node->n_out; i++) {
        PyObject *o = h->x->value[i];
        if (o != NULL && cc_tens_match(o, Py_TYPE(o), &h->trace->graph->val.at[i].type, false)) continue;
        PyErr_Format(PyExc_RuntimeError, "ccompile: %s gave a tensor of another shape or dtype than when it was recorded", a->name);
        return -1;
    }
    return 0;
}

static int host_call(void *ctx, int n)
{
    Host *h = ctx;
    const CcNode *node = &h->trace->graph->node.at[n];
    const CcAction *a = &h->trace->node.at[node->host];
    h->at = n;
    PyObject *r = run_action(h->trace, &h->maker, a);
    if (r == NULL) return -1;
    int status = 0;
    if (a->sequence) status = store_sequence(h, node, r);
    else if (node->n_out == 1) Py_XSETREF(h->x->value[node->out0], Py_NewRef(r));
    Py_DECREF(r);
    return status == 0 && a->checked ? check_results(h, node, a) : status;
}

/* ------------------------------------------------------------------ running */

static CcMaker maker(const CcTrace *t, CcScratch *x, bool shared);

CcHost cc_segment_host(CcSegmentHost *h, const CcSegment *s, CcScratch *x)
{
    *h = (Host){.trace = s->trace, .plan = s->plan, .freeze = s->freeze, .x = x, .maker = maker(s->trace, x, false), .at = -1};
    return (CcHost){.ctx = h, .data = host_data, .make = host_make, .call = host_call, .version = host_version,
                    .drop = host_drop};
}

static int run_effects(const CcTrace *t, const CcMaker *m, CcScratch *x)
{
    for (int e = 0; e < t->effect.n; e++) {
        PyObject *r = run_action(t, m, &t->effect.at[e]);
        if (r == NULL) return -1;
        Py_XSETREF(x->effect[e], r);
    }
    return 0;
}

static CcMaker maker(const CcTrace *t, CcScratch *x, bool shared)
{
    return (CcMaker){.recipes = &t->recipes, .gv = x->gv, .value = x->value, .effect = x->effect,
                     .built = shared ? x->built : NULL};
}

/* A node failed inside of `with torch.no_grad()` or its kind: what the blocks' ends set is set now. */
static void restore_state(Host *h)
{
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    for (int n = h->at + 1; n < h->trace->graph->node.n; n++) {
        const int action = h->trace->graph->node.at[n].host;
        if (action < 0 || !h->trace->node.at[action].state) continue;
        PyObject *r = run_action(h->trace, &h->maker, &h->trace->node.at[action]);
        if (r == NULL) PyErr_Clear();
        Py_XDECREF(r);
    }
    cc_mode_restore_grad(&h->trace->mode);
    PyErr_Restore(type, value, tb);
}

/* Whether something ran before the node that failed that can't be done again. */
static bool done_for_good(const Host *h)
{
    const CcGraph *g = h->trace->graph;
    if (!h->trace->impure || h->at < 0) return h->trace->impure;
    for (int n = 0; n <= h->at; n++) {
        const CcNode *node = &g->node.at[n];
        if (node->host >= 0 && (h->trace->node.at[node->host].state || h->trace->node.at[node->host].local)) continue;
        if (node->flags & (CC_N_WRITES | (n < h->at ? CC_N_RANDOM | CC_N_EFFECT : 0))) return true;
    }
    return false;
}

/* The exception will leave the call: what came before the node that failed has to be seen outside. */
static void strand(Host *h)
{
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const CcMaker m = maker(h->trace, h->x, true);
    for (int e = 0; e < h->trace->effect.n && h->trace->effect.at[e].after <= h->at; e++) {
        PyObject *r = run_action(h->trace, &m, &h->trace->effect.at[e]);
        if (r == NULL) break;
        Py_XSETREF(h->x->effect[e], r);
    }
    PyErr_Clear();
    PyErr_Restore(type, value, tb);
}

int cc_segment_exec(CcSegment *s, CcScratch *x, bool *pure_failure)
{
    const CcTrace *t = s->trace;
    s->hits++;
    *pure_failure = !t->impure;
    for (int i = 0; i < t->input.n; i++) x->value[t->input_value.at[i]] = Py_NewRef(x->gv[t->input.at[i]]);
    if (t->graph->node.n > 0) {
        Host host;
        const CcHost h = cc_segment_host(&host, s, x);
        CcErr err = {0};
        if (cc_run_exec(s->plan, &h, NULL, &err) < 0) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "ccompile: %s", err.text);
            restore_state(&host);
            *pure_failure = !done_for_good(&host);
            if (!*pure_failure) strand(&host);
            return -1;
        }
    }
    const CcMaker m = maker(t, x, true);
    *pure_failure = false;
    return run_effects(t, &m, x);
}

PyObject *cc_segment_make(const CcSegment *s, CcScratch *x, int recipe)
{
    const CcMaker m = maker(s->trace, x, true);
    return cc_recipe_make(&m, recipe);
}

/* ------------------------------------------------------------------ life */

CcSegment *cc_segment_new(CcRoot *root, CcTrace *trace)
{
    CcSegment *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    s->trace = trace;
    s->id = root->next_id++;
    s->freeze = cc_freeze_new(trace->graph);
    const CcRunOptions options = {.host_only = trace->needs_grad || cc_mode_autocast(&trace->mode),
                                  .no_llvm = !root->knobs.backend_llvm, .no_dnnl = !root->knobs.backend_onednn,
                                  .default_dtype = cc_mode_default_dtype()};
    CcErr err = {0};
    s->plan = cc_run_compile(trace->graph, &options, &err);
    if (s->plan == NULL) {
        cc_log_add(CC_LOG_FALLBACK, "segment %d: %s", s->id, err.text);
        s->broken = true;
    }
    if (trace->kept.n > 0) {
        if (s->plan != NULL && !options.host_only && !trace->impure && !cc_verify_segment(s)) {
            cc_run_free(s->plan);
            s->plan = cc_run_compile(trace->graph, &(CcRunOptions){.host_only = true}, &err);
            s->broken = s->plan == NULL;
        }
        cc_trace_forget(trace);
    }
    return s;
}

void cc_segment_free(CcSegment *s)
{
    if (s == NULL) return;
    if (s->plan != NULL) cc_run_free(s->plan);
    cc_freeze_free(s->freeze);
    cc_trace_free(s->trace);
    free(s);
}
