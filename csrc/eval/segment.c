/* One segment: its scratch memory, guards, plan and effects; and the plan's host callbacks, which find, make and drop
 * tensors by graph value, and replay host nodes. */
#include "eval_int.h"

typedef CcSegmentHost Host;

enum { CPU = 1, CUDA = 2 }; /* CcType.device */

/* ------------------------------------------------------------------ scratch */

void cc_segment_open(const CcSegment *s, CcCallState *x) {
    const CcTrace *t = s->trace;
    const int n_gv = t->guards.g.n;
    x->n_value = t->graph->val.n;
    x->n_effect = t->effect.n;
    x->n_built = t->recipes.r.n;
    x->n_symbol = t->symbol.n;
    x->shape = NULL;
    x->unfit = false;
    x->undo = NULL;
    x->ahead = NULL;
    const size_t total = (size_t)(n_gv + x->n_value + x->n_effect + x->n_built + x->n_symbol);
    x->heap = NULL;
    PyObject **at = x->small;
    if (total > CC_COUNT(x->small)) {
        at = x->heap = cc_mem_grow(NULL, sizeof *at * total);
    }
    x->gv = at;
    x->value = at + n_gv;
    x->effect = x->value + x->n_value;
    x->built = x->effect + x->n_effect;
    x->symbol = x->built + x->n_built;
    memset(x->value, 0, sizeof *at * (total - (size_t)n_gv));
}

static void drop(PyObject **at, int n) {
    for (int i = 0; i < n; i++) Py_CLEAR(at[i]);
}

void cc_segment_drop(CcCallState *x) {
    if (x->shape != NULL) x->shape->held--;
    x->shape = NULL;
    drop(x->value, x->n_value);
    drop(x->effect, x->n_effect);
    drop(x->built, x->n_built);
    drop(x->symbol, x->n_symbol);
}

void cc_segment_close(CcCallState *x) {
    cc_segment_drop(x);
    cc_ahead_free(x);
    free(x->heap);
    x->heap = NULL;
}

int cc_segment_check(CcSegment *s, CcCallState *x, const CcGuardState *state) {
    CcGuards *gs = &s->trace->guards;
    int failed = cc_guard_run(gs, state, x->gv);
    if (failed >= 0) return failed;
    if (!cc_trace_symbolic(s->trace)) {
        cc_shape_hold(x, s->shape.at[0]);
        return -1;
    }
    failed = cc_ahead_draw(s->trace, x);
    if (failed >= 0) {
        cc_guard_release(gs, x->gv);
        return failed;
    }
    failed = cc_shape_find(s, x);
    if (failed < 0) return -1;
    cc_ahead_undo(x);
    cc_guard_release(gs, x->gv);
    drop(x->symbol, x->n_symbol);
    return gs->g.n + failed;
}

/* ------------------------------------------------------------------ host callbacks */

static void *host_data(void *ctx, int value) {
    const Host *h = ctx;
    CcTensor t;
    cc_tens_read_as(h->x->value[value], false, true, &t); /* kernels may read inference tensors in any mode */
    return t.data;
}

static void *host_make(void *ctx, int value) {
    const Host *h = ctx;
    void *data = NULL;
    /* a captured run has its own memory */
    CcRing *ring = h->capturing != NULL ? NULL : h->shape->ring;
    PyObject *o = cc_ring_empty(ring, value, cc_run_type(h->shape->plan, h->shape->graph, value), &data);
    if (o == NULL) return NULL;
    Py_XSETREF(h->x->value[value], o);
    return data;
}

static uint64_t host_version(void *ctx, int value) {
    const Host *h = ctx;
    return cc_freeze_stamp(h->shape->freeze, value, h->x->value[value]);
}

/* Like torch's in-place ops, a kernel increments the tensor's version; for captured kernels, replays do. */
static int host_writing(void *ctx, int value, int node, bool counted) {
    Host *h = ctx;
    h->at = node;
    if (value < 0) return 0;
    if (h->capturing != NULL) return cc_capture_wrote(h->capturing, h->x->value[value], counted);
    return counted ? cc_tens_bump_version(h->x->value[value]) : 0;
}

static double host_number(void *ctx, int number) {
    const Host *h = ctx;
    PyObject *o = h->x->symbol[number];
    return PyFloat_CheckExact(o) ? PyFloat_AS_DOUBLE(o) : PyLong_AsDouble(o);
}

static int host_stream(void *ctx, int device, void **out) {
    (void)ctx;
    return cc_tens_stream(device, out);
}

static void *host_block(void *ctx, int device, int64_t bytes, void **data) {
    const Host *h = ctx;
    const CcType type = {.dtype = CC_DT_U8,
                         .ndim = 1,
                         .device = device < 0 ? CPU : CUDA,
                         .device_index = (uint8_t)CC_MAX(device, 0),
                         .size = {bytes},
                         .stride = {1}};
    PyObject *block = cc_tens_empty(&type, data);
    if (block != NULL && h->capturing != NULL) cc_capture_keep(h->capturing, block);
    return block;
}

static void host_unblock(void *ctx, void *block) {
    (void)ctx;
    Py_DECREF((PyObject *)block);
}

static void host_drop(void *ctx, int value) {
    const Host *h = ctx;
    Py_CLEAR(h->x->value[value]);
}

int cc_segment_operands(const CcTrace *t, const CcMaker *m, const CcAction *a, PyObject **in) {
    if (a->n > CC_CALL_MAX) {
        PyErr_Format(PyExc_SystemError, "ccompile: a node with %d operands", a->n);
        return -1;
    }
    for (int i = 0; i < a->n; i++) {
        in[i] = cc_maker_make(m, t->args.at[a->args0 + i]);
        if (in[i] == NULL) {
            drop(in, i);
            return -1;
        }
    }
    return 0;
}

static PyObject *run_action(const CcTrace *t, const CcMaker *m, const CcAction *a) {
    PyObject *in[CC_CALL_MAX];
    if (cc_segment_operands(t, m, a, in) < 0) return NULL;
    PyObject *r = cc_action_run(a, in);
    drop(in, a->n);
    return r;
}

static int store_sequence(Host *h, const CcNode *node, PyObject *r) {
    PyObject *items = PySequence_Fast(r, "ccompile: a node did not return a sequence");
    if (items == NULL) return -1;
    if (PySequence_Fast_GET_SIZE(items) != node->n_out) {
        h->mismatch = true;
        PyErr_Format(PyExc_RuntimeError, "ccompile: a node returned %zd results instead of %d",
                     PySequence_Fast_GET_SIZE(items), node->n_out);
        Py_DECREF(items);
        return -1;
    }
    for (int i = 0; i < node->n_out; i++)
        Py_XSETREF(h->x->value[node->out0 + i], Py_NewRef(PySequence_Fast_GET_ITEM(items, i)));
    Py_DECREF(items);
    return 0;
}

int cc_segment_store(CcSegmentHost *h, int n, PyObject *r) {
    const CcNode *node = &h->trace->graph->node.at[n];
    if (h->trace->node.at[node->host].sequence) return store_sequence(h, node, r);
    if (node->n_out == 1) Py_XSETREF(h->x->value[node->out0], Py_NewRef(r));
    return 0;
}

/* Of two types of the same shape: the stride of a dim of size 1 moves no element. */
static bool same_places(const CcType *a, const CcType *b) {
    bool same = true;
    for (int d = 0; d < b->ndim && same; d++) same = b->size[d] == 1 || a->stride[d] == b->stride[d];
    return same || cc_type_numel(b) == 0;
}

/* Can a kernel read this tensor as one of that type? */
static bool readable(PyObject *o, const CcType *type) {
    CcTensor t;
    cc_tens_read_as(o, false, true, &t);
    return t.type.dtype == type->dtype && t.type.device == type->device && t.type.device_index == type->device_index &&
           cc_type_same_shape(&t.type, type) && same_places(&t.type, type);
}

/* The trace after a node, and the kernels that read its results, are valid only for results of the recorded types.
 * guessed: data may decide the sizes, and code may have read any of the metadata. */
static int check_results(Host *h, const CcNode *node, const CcAction *a, bool guessed) {
    for (int i = node->out0; i < node->out0 + node->n_out; i++) {
        PyObject *o = h->x->value[i];
        const CcPlan *plan = h->shape->plan; /* NULL: torch runs all nodes (torchgrad.c) */
        const CcType *type = plan != NULL ? cc_run_type(plan, h->shape->graph, i) : &h->shape->graph->val.at[i].type;
        if (!guessed && (plan == NULL || type->ndim < 0)) continue; /* no kernel reads it */
        if (o != NULL && (cc_tens_match(o, Py_TYPE(o), type, false) || (!guessed && readable(o, type)))) continue;
        h->mismatch = true;
        PyErr_Format(PyExc_RuntimeError, "ccompile: %s returned a tensor of another shape or dtype than recorded",
                     a->name);
        return -1;
    }
    return 0;
}

/* Returns the tensor, or a copy with the type's strides. */
static PyObject *laid_out(PyObject *o, const CcType *type) {
    CcTensor t;
    cc_tens_read(o, false, &t);
    if (!cc_type_same_shape(&t.type, type) || same_places(&t.type, type)) return Py_NewRef(o);
    PyObject *made = cc_tens_empty(type, NULL), *r = made != NULL ? PyObject_CallMethod(made, "copy_", "O", o) : NULL;
    if (r == NULL) Py_CLEAR(made);
    Py_XDECREF(r);
    return made;
}

/* Gives operand x of a convolution the memory layout of its result. */
static int match_layout(const Host *h, const CcNode *node, PyObject **in, int n) {
    const CcOperand *operand = cc_graph_operand(h->trace->graph, node, 0);
    const CcType *out = cc_run_type(h->shape->plan, h->shape->graph, node->out0);
    PyObject *x = operand->kind == CC_IN_VALUE ? h->x->value[operand->value] : NULL;
    if (x == NULL || out->stride[1] != 1) return 0;
    CcTensor t;
    cc_tens_read(x, false, &t);
    if (t.type.ndim != out->ndim) return 0;
    cc_type_make_channels_last(&t.type);
    for (int i = 0; i < n; i++) {
        if (in[i] != x) continue;
        PyObject *matched = laid_out(x, &t.type);
        if (matched == NULL) return -1;
        Py_SETREF(in[i], matched);
    }
    return 0;
}

/* Eager's backward of a checkpoint reads what it computes again, so that its results may be written. Here torch runs the
 * ops, and their backward reads what they have saved: others get a copy. */
static PyObject *apart(PyObject *result) {
    PyObject *r = cc_tens_is(result) && cc_tens_requires_grad(result) ? PyObject_CallMethod(result, "clone", NULL)
                                                                      : Py_NewRef(result);
    Py_DECREF(result);
    return r;
}

void **cc_segment_drawing(const CcSegmentHost *h, int node) {
    CcRollback *u = h->x->undo;
    const CcAction *a = &h->trace->node.at[h->trace->graph->node.at[node].host];
    if (!cc_action_redraws(h->trace, a) || u == NULL || (u->draw.n > 0 && !h->trace->lasting)) return NULL;
    cc_vec_push(&u->draw, (struct CcRollbackDraw){.node = node});
    return &cc_vec_last(&u->draw).before;
}

int cc_segment_draws(const CcSegmentHost *h, int node) {
    void **before = cc_segment_drawing(h, node);
    return before != NULL ? cc_draw_keep(before) : 0;
}

static int call_node(Host *h, int n, bool convolves) {
    const CcNode *node = &h->trace->graph->node.at[n];
    const CcAction *a = &h->trace->node.at[node->host];
    h->at = n;
    PyObject *in[CC_CALL_MAX];
    if (cc_segment_draws(h, n) < 0 || cc_segment_operands(h->trace, &h->maker, a, in) < 0) return -1;
    const bool may = h->capturing == NULL || cc_capture_call(h->capturing, node, a, in) == 0;
    PyObject *r = may && (!convolves || match_layout(h, node, in, a->n) == 0) ? cc_action_run(a, in) : NULL;
    drop(in, a->n);
    if (r != NULL && convolves) Py_SETREF(r, laid_out(r, cc_run_type(h->shape->plan, h->shape->graph, node->out0)));
    if (r != NULL && a->leaves) r = apart(r);
    if (r == NULL) return -1;
    const int status = cc_segment_store(h, n, r);
    Py_DECREF(r);
    if (status < 0 || h->shape == NULL) return status;
    return check_results(h, node, a, a->checked || (a->follows && h->shape->derived));
}

static int host_call(void *ctx, int n) { return call_node(ctx, n, false); }

static int host_convolve(void *ctx, int n) { return call_node(ctx, n, true); }

static int host_draw(void *ctx, int node, double p, void *out, int64_t n) {
    Host *h = ctx;
    h->at = node;
    return cc_draw_into(out, n, p, cc_segment_drawing(h, node));
}

/* ------------------------------------------------------------------ running */

CcHost cc_segment_host(CcSegmentHost *h, const CcTrace *t, const CcShape *shape, CcCallState *x) {
    *h = (Host){.trace = t, .shape = shape, .x = x, .maker = cc_segment_maker(t, x, false), .at = -1};
    return (CcHost){.ctx = h,
                    .data = host_data,
                    .make = host_make,
                    .call = host_call,
                    .convolve = host_convolve,
                    .draw = host_draw,
                    .version = host_version,
                    .writing = host_writing,
                    .number = host_number,
                    .stream = host_stream,
                    .block = host_block,
                    .unblock = host_unblock,
                    .drop = host_drop};
}

static int run_effects(const CcTrace *t, const CcMaker *m, CcCallState *x) {
    for (int e = 0; e < t->effect.n; e++) {
        PyObject *r = run_action(t, m, &t->effect.at[e]);
        if (r == NULL) return -1;
        Py_XSETREF(x->effect[e], r);
    }
    return 0;
}

CcMaker cc_segment_maker(const CcTrace *t, CcCallState *x, bool shared) {
    return (CcMaker){.recipes = &t->recipes,
                     .gv = x->gv,
                     .value = x->value,
                     .effect = x->effect,
                     .built = shared ? x->built : NULL,
                     .symbol = x->symbol};
}

int cc_segment_set_states(CcSegmentHost *h) {
    for (int n = 0; n < h->trace->graph->node.n; n++) {
        const int action = h->trace->graph->node.at[n].host;
        if (action >= 0 && h->trace->node.at[action].state && host_call(h, n) < 0) return -1;
    }
    return 0;
}

/* The action of a node that sets ambient state; NULL: it does not. */
static const CcAction *state_of(const CcTrace *t, int n) {
    const int action = t->graph->node.at[n].host;
    return action >= 0 && t->node.at[action].state ? &t->node.at[action] : NULL;
}

static void undo_scope(CcSegmentHost *h, const CcAction *a) {
    PyObject *in[CC_CALL_MAX];
    const bool made = cc_segment_operands(h->trace, &h->maker, a, in) == 0;
    if (!made || cc_scope_undo(a, in) < 0) cc_raised_clear();
    if (made) drop(in, a->n);
}

/* Leaves blocks of inference mode that were entered, and enters those that were left, last one first. The failed node
 * may be a kernel after h->at; repeating a step changes nothing. */
static void reverse_scopes(CcSegmentHost *h) {
    for (int n = h->at; n >= 0; n--) {
        const CcAction *a = state_of(h->trace, n);
        if (a != NULL && cc_scope_is(a)) undo_scope(h, a);
    }
}

void cc_segment_restore(CcSegmentHost *h) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    if (h->trace->scoped) reverse_scopes(h);
    for (int n = h->at; n >= 0; n--)
        if (state_of(h->trace, n) != NULL) cc_mode_undo_nesting(state_of(h->trace, n)->target);
    cc_mode_restore(&h->trace->mode);
    PyErr_Restore(type, value, tb);
}

static void set_state(Host *h, const CcAction *a) {
    PyObject *r = run_action(h->trace, &h->maker, a);
    if (r == NULL) cc_raised_clear();
    Py_XDECREF(r);
}

/* Leaves the blocks of inference mode and devices that this run has entered and not left. -> how many */
static int leave_inner(Host *h) {
    int closed = 0, left = 0;
    for (int n = h->at; n >= 0; n--) {
        const CcAction *a = state_of(h->trace, n);
        if (a == NULL || !cc_scope_is(a)) continue;
        if (!cc_scope_enters(a)) {
            closed++;
        } else if (closed > 0) {
            closed--;
        } else {
            undo_scope(h, a);
            left++;
        }
    }
    return left;
}

/* Leaves those that were entered before the run, if nodes behind the failed one would. inner: blocks that were open within
 * them, which the first of these nodes would leave. */
static void leave_outer(Host *h, int inner) {
    int deep = inner;
    for (int n = h->at + 1; n < h->trace->graph->node.n; n++) {
        const CcAction *a = state_of(h->trace, n);
        if (a == NULL || !cc_scope_is(a)) continue;
        if (cc_scope_enters(a)) deep++;
        else if (deep > 0) deep--;
        else set_state(h, a);
    }
}

/* A node failed for good inside `with torch.no_grad()` or the like: sets the state that the ends of the blocks would
 * set. */
static void leave_blocks(Host *h) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    for (int n = h->at + 1; n < h->trace->graph->node.n; n++) {
        const CcAction *a = state_of(h->trace, n);
        if (a != NULL && h->trace->graph->node.at[n].n_out == 0 && !cc_scope_is(a)) set_state(h, a);
    }
    const int inner = h->trace->scoped ? leave_inner(h) : 0;
    cc_mode_restore_grad(&h->trace->mode);
    if (h->trace->scoped) leave_outer(h, inner);
    PyErr_Restore(type, value, tb);
}

/* Whether autograd refused the failed node's write, to a leaf or to a view that may not be written. It checks before it
 * writes (check_inplace in torch/csrc/autograd/VariableTypeUtils.h); only its texts tell these errors from others. */
static bool refused(void) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *text =
        value != NULL && PyErr_GivenExceptionMatches(type, PyExc_RuntimeError) ? PyObject_Str(value) : NULL;
    const char *s = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    const bool is = s != NULL && (strstr(s, "leaf Variable that requires grad is being used in an in-place") != NULL ||
                                  strstr(s, "is being modified inplace") != NULL);
    Py_XDECREF(text);
    cc_raised_clear();
    PyErr_Restore(type, value, tb);
    return is;
}

/* What a node does that can't be undone, of CC_N_*. */
static unsigned lasting_flags(const Host *h, int n) {
    const CcNode *node = &h->trace->graph->node.at[n];
    const CcAction *a = &h->trace->node.at[node->host];
    if (a->state || a->asserts) return 0;
    const unsigned written = cc_action_undoes(h->trace, a) ? CC_N_WRITES | CC_N_EFFECT : 0u;
    const unsigned drawn = cc_action_redraws(h->trace, a) ? CC_N_RANDOM : 0u;
    return node->flags & (CC_N_WRITES | CC_N_EFFECT | CC_N_RANDOM) & ~(written | drawn);
}

/* Whether something that can't be repeated ran before the failed node, or the node itself may have written. */
static bool done_for_good(const Host *h) {
    if (!h->trace->impure || h->at < 0 || h->undone) return false;
    const bool draws = lasting_flags(h, h->at) & CC_N_RANDOM; /* before autograd refuses what it writes */
    const int end = refused() && !draws ? h->at : h->at + 1;
    for (int n = 0; n < end; n++)
        if (lasting_flags(h, n) & (n < h->at ? ~0u : CC_N_WRITES)) return true;
    return false;
}

/* The exception will leave the call: makes the results of nodes before the failed one visible outside. */
static void strand(Host *h) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const CcMaker m = cc_segment_maker(h->trace, h->x, true);
    for (int e = 0; e < h->trace->effect.n && h->trace->effect.at[e].after <= h->at; e++) {
        PyObject *r = run_action(h->trace, &m, &h->trace->effect.at[e]);
        if (r == NULL) break;
        Py_XSETREF(h->x->effect[e], r);
    }
    cc_raised_clear();
    PyErr_Restore(type, value, tb);
}

/* Whether Python code that the node ran raised the exception: a saved-tensor hook (torch.utils.checkpoint stops its
 * second run in this way), a custom op, a signal handler. Its earlier side effects are unknown, and it may not raise
 * again. */
static bool raised_by_python(const Host *h) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const int action = h->at >= 0 ? h->trace->graph->node.at[h->at].host : -1;
    const bool keeps = action >= 0 && h->trace->node.at[action].kernel == CC_KERNEL_KEEPS;
    const bool repeats = keeps && !cc_state_has_hooks(); /* which see what the kernel saves */
    const bool frames = tb != NULL && !cc_torch_traced(tb);
    const bool python = (frames && !repeats) || !PyErr_GivenExceptionMatches(type, PyExc_Exception);
    PyErr_Restore(type, value, tb);
    return python;
}

/* Whether a node up to the failed one has run Python code with unknown effects. A node whose result has an unexpected
 * shape is nevertheless repeated: the trace after it is only valid for the recorded shape. */
static bool ran_python(const Host *h) {
    for (int n = 0; h->trace->python && !h->mismatch && n <= h->at; n++) {
        const int action = h->trace->graph->node.at[n].host;
        if (action >= 0 && h->trace->node.at[action].kernel == CC_KERNEL_PYTHON) return true;
    }
    return false;
}

/* The call ends at the failed node: does what eager has done up to there, and undoes what it has not done. */
static void settle(Host *h) {
    if (h->by_kernel) cc_again_raise(h);
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    if (cc_rollback_later(h->x->undo, h) < 0) {
        cc_log_add(CC_LOG_FALLBACK, "an op failed; what ops behind it had drawn or written could not be put back");
        cc_raised_clear();
    }
    PyErr_Restore(type, value, tb);
    cc_again_compute(h);
}

/* A node failed. */
static CcRan fail(Host *h) {
    const bool python = !h->unsaved && raised_by_python(h);
    if (!h->lost && !python && !ran_python(h) && !done_for_good(h)) {
        cc_segment_restore(h);
        return CC_RAN_NOTHING;
    }
    leave_blocks(h);
    if (!h->lost && !python) settle(h);
    strand(h);
    return CC_RAN_FAILED;
}

/* cc_eval_skip_kernels: makes uninitialised results. */
static CcRan make_results(CcSegment *s, Host *h) {
    const CcGraph *g = s->trace->graph;
    const bool known = s->made.n > 0;
    for (int v = 0; !known && v < g->val.n; v++)
        if (g->val.at[v].is_output && g->val.at[v].def >= 0) cc_vec_push(&s->made, v);
    for (int i = 0; i < s->made.n; i++)
        if (host_make(h, s->made.at[i]) == NULL && PyErr_Occurred()) return CC_RAN_FAILED;
    return CC_RAN;
}

static CcRan run_nodes(CcSegment *s, CcCallState *x) {
    if (x->shape != NULL && s->trace->graph->node.n == 0) return CC_RAN;
    Host host;
    const CcHost h = cc_segment_host(&host, s->trace, x->shape, x);
    CcErr err = {0};
    if (cc_eval_skip_kernels && !cc_trace_symbolic(s->trace) && x->shape->plan != NULL) return make_results(s, &host);
    const bool planned = x->shape != NULL && x->shape->plan != NULL && !x->unfit;
    const uint64_t start = planned ? 0 : cc_log_now_ns();
    if (!planned && cc_shape_derive(s, &host, x) < 0) {
        const CcRan ran = cc_shape_explore(s, &host, x);
        if (ran == CC_RAN_FAILED) return fail(&host);
        if (ran != CC_RAN_MISFIT) return ran;
        if (!done_for_good(&host)) {
            cc_segment_restore(&host);
            return ran;
        }
        leave_blocks(&host);
        PyErr_SetString(PyExc_RuntimeError,
                        "ccompile: an op after a write returned a result of another dtype or number of dims than "
                        "recorded; compile this function with dynamic=False");
        return CC_RAN_FAILED;
    }
    if (!cc_freeze_begin(x->shape->freeze, x->value)) {
        cc_log_add(CC_LOG_EAGER, "segment %d: a parameter was written to after autocast cast it in this block", s->id);
        return CC_RAN_NOTHING;
    }
    CcSpan span;
    span.start_ns = 0;
    if (cc_span_on) cc_span_open(&span, CC_SPAN_GRAPH, "%s, segment %d", cc_root_name(s->root), s->id);
    x->shape->running++;
    int status = x->shape->captures != NULL   ? cc_capture_run(s, &host, &h)
                 : x->shape->training != NULL ? cc_training_run(x->shape->training, &host)
                                              : CC_CAPTURE_NOT;
    if (status == CC_CAPTURE_NOT) status = cc_run_exec(x->shape->plan, &h, NULL, &err);
    x->shape->running--;
    cc_span_close(&span);
    if (status == 0 && !planned) cc_shape_charge(s, cc_log_now_ns() - start);
    const bool alone = x->shape->running == 0 && x->shape->captures == NULL;
    if (status == 0 && alone && cc_freeze_end(x->shape->freeze, x->shape->graph)) cc_shape_repack(s, x->shape);
    if (status == 0) return CC_RAN;
    if (host.mismatch) cc_shape_reject_derived(s, x->shape);
    host.by_kernel = host.by_kernel || !PyErr_Occurred();
    if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "ccompile: %s", err.text);
    return fail(&host);
}

static int count_writes(const CcTrace *t, const CcCallState *x) {
    for (int i = 0; i < t->written.n; i++) {
        PyObject *o = x->value[t->written.at[i].value];
        if (o == NULL) continue;
        for (uint64_t n = cc_tens_version(o); n < t->written.at[i].version; n++)
            if (cc_tens_bump_version(o) < 0) return -1;
    }
    return 0;
}

void cc_segment_inputs(const CcTrace *t, CcCallState *x) {
    for (int i = 0; i < t->input.n; i++) {
        PyObject **value = &x->value[t->input_value.at[i]];
        if (*value == NULL) *value = Py_NewRef(x->gv[t->input.at[i]]);
    }
}

CcRan cc_segment_exec(CcSegment *s, CcCallState *x) {
    const CcTrace *t = s->trace;
    cc_segment_inputs(t, x);
    CcRollback undo = {0};
    for (int i = 0; i < t->saved.n; i++) {
        const struct CcSaved *w = &t->saved.at[i];
        if (cc_action_undoes(t, &t->node.at[t->graph->node.at[w->node].host]))
            cc_rollback_bytes(&undo, x->value[w->value], w->node);
    }
    for (int i = 0; i < t->rewritten.n; i++) cc_rollback_count(&undo, x->value[t->rewritten.at[i]]);
    x->undo = &undo;
    CcRan ran = run_nodes(s, x);
    x->undo = NULL;
    if ((ran == CC_RAN_NOTHING || ran == CC_RAN_MISFIT) && cc_rollback_all(&undo) < 0) ran = CC_RAN_FAILED;
    cc_rollback_free(&undo);
    if (ran == CC_RAN_NOTHING || ran == CC_RAN_MISFIT) cc_ahead_undo(x);
    if (ran != CC_RAN) return ran;
    if (count_writes(t, x) < 0) return CC_RAN_FAILED;
    s->hits++;
    const CcMaker m = cc_segment_maker(t, x, true);
    return run_effects(t, &m, x) < 0 ? CC_RAN_FAILED : CC_RAN;
}

PyObject *cc_segment_make(const CcSegment *s, CcCallState *x, int recipe) {
    const CcMaker m = cc_segment_maker(s->trace, x, true);
    return cc_maker_make(&m, recipe);
}

/* ------------------------------------------------------------------ life */

CcSegment *cc_segment_new(CcRoot *root, CcTrace *trace) {
    CcSegment *s = cc_mem_get(sizeof *s);
    s->root = root;
    s->trace = trace;
    s->id = root->next_id++;
    cc_tell_segment(s);
    cc_shape_first(root, s);
    return s;
}

int64_t cc_segment_memory(const CcSegment *s) {
    int64_t most = 0;
    for (int i = 0; i < s->shape.n; i++)
        if (s->shape.at[i]->plan != NULL) most = CC_MAX(most, cc_run_memory(s->shape.at[i]->plan));
    return most;
}

int cc_segment_traverse(const CcSegment *s, visitproc visit, void *arg) {
    int status = cc_trace_visit(s->trace, visit, arg);
    for (int i = 0; i < s->shape.n && status == 0; i++)
        if (s->shape.at[i]->training != NULL) status = cc_training_traverse(s->shape.at[i]->training, visit, arg);
    return status;
}

void cc_segment_free(CcSegment *s) {
    if (s == NULL) return;
    for (int i = 0; i < s->shape.n; i++) cc_shape_free(s->trace, s->shape.at[i]);
    cc_vec_free(&s->hash);
    cc_map_free(&s->dropped);
    cc_vec_free(&s->shape);
    if (s->example != NULL) cc_graph_free(s->example);
    cc_vec_free(&s->made);
    cc_trace_free(s->trace);
    free(s);
}
