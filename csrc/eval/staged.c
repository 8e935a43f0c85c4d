/* staged: one run of a stage, as a node of autograd's graph: its forward now, its backward when autograd asks for it. */
#include "eval_training.h"

static void free_run(void *at) {
    Run *r = at;
    for (int i = 0; i < r->source.n; i++) Py_XDECREF(r->source.at[i]);
    for (int i = 0; i < r->symbol.n; i++) Py_XDECREF(r->symbol.at[i]);
    cc_vec_free(&r->source);
    cc_vec_free(&r->place);
    cc_vec_free(&r->version);
    cc_vec_free(&r->in);
    cc_vec_free(&r->symbol);
    cc_training_release(r->training);
    free(r);
}

/* The host of a stage's plan. */
typedef struct StageHost {
    const CcGraph *graph;
    const CcPlan *plan;
    PyObject **value;      /* [value of graph] */
    CcSegmentHost segment; /* for nodes that torch runs; forward only */
    CcCallState x;
    const CcJoint *joint;
    const CcGraph *whole; /* that the stage is a part of */
    CcHost base;
    bool by_kernel;          /* a kernel failed */
    PyObject *const *symbol; /* of the call that ran the forward; backward only */
} StageHost;

static void *stage_data(void *ctx, int value) {
    const StageHost *h = ctx;
    CcTensor t;
    cc_tens_read_as(h->value[value], false, true, &t);
    return t.data;
}

static void *stage_make(void *ctx, int value) {
    const StageHost *h = ctx;
    void *data = NULL;
    PyObject *o = cc_tens_empty(cc_run_type(h->plan, h->graph, value), &data);
    if (o == NULL) return NULL;
    Py_XSETREF(h->value[value], o);
    return data;
}

static void stage_drop(void *ctx, int value) {
    const StageHost *h = ctx;
    Py_CLEAR(h->value[value]);
}

static int stage_call(void *ctx, int node) {
    StageHost *h = ctx;
    return h->base.call(h->base.ctx, h->whole->node.at[h->joint->node.at[node]].origin);
}

static int stage_convolve(void *ctx, int node) {
    StageHost *h = ctx;
    return h->base.convolve(h->base.ctx, h->whole->node.at[h->joint->node.at[node]].origin);
}

/* The dim along which the node's results follow each other; -1: they don't, or leave something out. */
static int split_dim(const CcGraph *g, const CcNode *n) {
    CcIn_split in;
    if (n->op != CC_OP_split && n->op != CC_OP_unbind) return -1;
    const CcType *t = &g->val.at[cc_graph_source(g, n)].type;
    const int d = cc_in_split(g, n, &in) ? cc_graph_dim(t, &in.dim) : -1;
    int64_t left = d < 0 ? -1 : t->size[d];
    for (int k = 0; k < n->n_out && d >= 0; k++)
        left -= n->op == CC_OP_unbind ? 1 : g->val.at[n->out0 + k].type.size[d];
    return left == 0 ? d : -1;
}

/* Elements from the start of a view's operand to the start of result k. */
static int64_t start_of(const CcGraph *g, const CcNode *n, int k) {
    const CcType *t = &g->val.at[cc_graph_source(g, n)].type;
    const int split = split_dim(g, n);
    int64_t start = 0;
    for (int i = 0; i < k; i++)
        start += (n->op == CC_OP_unbind ? 1 : g->val.at[n->out0 + i].type.size[split]) * t->stride[split];
    for (int i = 1; (n->op == CC_OP_select || n->op == CC_OP_slice) && i + 1 < n->n_in; i += 2) {
        const int d = cc_graph_dim(t, cc_graph_operand(g, n, i));
        const int64_t at = cc_graph_operand(g, n, i + 1)->i;
        start += (at < 0 ? at + t->size[d] : at) * t->stride[d];
    }
    return start;
}

/* Result k of a node that makes views, by its type. */
static PyObject *make_view(const CcGraph *g, const CcNode *n, int k, PyObject *base) {
    const CcType *type = &g->val.at[n->out0 + k].type;
    PyObject *size = PyTuple_New(type->ndim), *stride = PyTuple_New(type->ndim), *r = NULL;
    PyObject *from = PyObject_CallMethod(base, "storage_offset", NULL);
    for (int d = 0; size != NULL && stride != NULL && d < type->ndim; d++) {
        PyTuple_SET_ITEM(size, d, PyLong_FromLongLong(type->size[d]));
        PyTuple_SET_ITEM(stride, d, PyLong_FromLongLong(type->stride[d]));
    }
    if (size != NULL && stride != NULL && from != NULL)
        r = PyObject_CallMethod(base, "as_strided", "OOL", size, stride, PyLong_AsLongLong(from) + start_of(g, n, k));
    Py_XDECREF(from);
    Py_XDECREF(size);
    Py_XDECREF(stride);
    return r;
}

/* A gradient may come with any strides, or as another kind of tensor; the plan wants the recorded type. NULL with an
 * error set. */
static PyObject *as_planned(PyObject *grad, const CcType *type) {
    CcTensor t;
    cc_tens_read(grad, false, &t);
    if (t.type.ndim >= 0 && t.type.dtype == type->dtype && cc_type_same_layout(&t.type, type)) return Py_NewRef(grad);
    PyObject *made = cc_tens_empty(type, NULL),
             *r = made != NULL ? PyObject_CallMethod(made, "copy_", "O", grad) : NULL;
    if (r == NULL) Py_CLEAR(made);
    Py_XDECREF(r);
    return made;
}

/* The same for a result of torch, which it takes over. */
static PyObject *as_dense(PyObject *o, const CcType *type) {
    PyObject *r = o != NULL ? as_planned(o, type) : NULL;
    Py_XDECREF(o);
    return r;
}

/* The elements of a tensor in the shape of `type`. */
static PyObject *make_reshaped(PyObject *a, const CcType *type) {
    PyObject *size = PyTuple_New(type->ndim), *r = NULL;
    for (int d = 0; size != NULL && d < type->ndim; d++) PyTuple_SET_ITEM(size, d, PyLong_FromLongLong(type->size[d]));
    if (size != NULL) r = PyObject_CallMethod(a, "reshape", "(O)", size);
    Py_XDECREF(size);
    return r;
}

bool cc_staged_can(const CcGraph *g, const CcNode *n) {
    if (cc_op_is_view(n->op)) return n->n_out == 1 || split_dim(g, n) >= 0;
    return n->op == CC_OP_matmul || cc_aten_takes(n);
}

/* A node of the backward that no kernel or library takes. */
static int backward_call(void *ctx, int node) {
    const StageHost *h = ctx;
    const CcNode *n = &h->graph->node.at[node];
    PyObject *a = h->value[cc_graph_source(h->graph, n)], *r;
    for (int k = 0; k < n->n_out; k++) {
        const CcType *type = &h->graph->val.at[n->out0 + k].type;
        if (cc_aten_takes(n)) r = cc_aten_call(h->graph, n, h->value);
        else if (n->op == CC_OP_reshape) r = make_reshaped(a, type);
        else if (cc_op_is_view(n->op)) r = make_view(h->graph, n, k, a);
        else r = PyObject_CallMethod(a, "matmul", "O", h->value[cc_graph_operand(h->graph, n, 1)->value]);
        r = as_dense(r, type); /* torch's result may have other strides than what the plan's kernels read */
        Py_XSETREF(h->value[n->out0 + k], r);
        if (r == NULL) return -1;
    }
    return 0;
}

/* Running statistics: torch counts no write of them either. */
static int stage_writing(void *ctx, int value, int node, bool counted) {
    const StageHost *h = ctx;
    (void)node;
    return counted && value >= 0 ? cc_tens_bump_version(h->value[value]) : 0;
}

static double stage_number(void *ctx, int number) {
    const StageHost *h = ctx;
    return h->base.number(h->base.ctx, number);
}

static double backward_number(void *ctx, int number) {
    const StageHost *h = ctx;
    PyObject *o = h->symbol[number];
    return PyFloat_CheckExact(o) ? PyFloat_AS_DOUBLE(o) : PyLong_AsDouble(o);
}

static uint64_t no_version(void *ctx, int value) {
    (void)ctx;
    (void)value;
    return CC_NO_VERSION;
}

static int run_plan(StageHost *h, const CcHost *base) {
    CcErr err = {0};
    CcHost host = {.ctx = h,
                   .data = stage_data,
                   .make = stage_make,
                   .call = base != NULL ? stage_call : backward_call,
                   .convolve = base != NULL ? stage_convolve : NULL,
                   .number = base != NULL ? stage_number : backward_number,
                   .version = no_version,
                   .writing = stage_writing,
                   .drop = stage_drop};
    CcSpan span;
    span.start_ns = 0;
    if (cc_span_on)
        cc_span_open(&span, base != NULL ? CC_SPAN_FORWARD : CC_SPAN_BACKWARD, "of %d ops", h->graph->node.n);
    const int status = cc_run_exec(h->plan, &host, NULL, &err);
    cc_span_close(&span);
    if (status == 0) return 0;
    h->by_kernel = !PyErr_Occurred();
    if (!PyErr_Occurred()) PyErr_Format(PyExc_RuntimeError, "ccompile: %s", err.text);
    return -1;
}

void cc_staged_drop(PyObject **value, int n) {
    for (int v = 0; v < n; v++) Py_XDECREF(value[v]);
    free(value);
}

/* Runs the forward plan. Fills value[], new references; the caller owns the array. */
static int run_forward(const CcTraining *t, const Stage *s, CcSegmentHost *outer, PyObject **value) {
    StageHost h = {.graph = s->joint->forward,
                   .plan = s->forward,
                   .value = value,
                   .joint = s->joint,
                   .whole = t->graph,
                   .x = *outer->x};
    h.x.value = value;
    h.base = cc_segment_host(&h.segment, t->trace, outer->shape, &h.x);
    for (int k = 0; k < s->cut->in.n; k++) value[s->cut->in.at[k]] = Py_NewRef(outer->x->value[s->cut->in.at[k]]);
    const int status = run_plan(&h, &h.base);
    outer->by_kernel = h.by_kernel;
    return status;
}

static int writes_of(const CcTraining *t, int value) {
    int n = cc_versions_count(&t->versions, value);
    for (int i = 0; i < t->trace->born.n; i++)
        if (t->trace->born.at[i].value == value) n += (int)t->trace->born.at[i].version;
    return n;
}

/* Eager has written to these outputs in place, before it saved them. */
static int count_writes(const CcTraining *t, const Stage *s, PyObject **value) {
    if (t->versions.write.n == 0 && t->trace->born.n == 0) return 0;
    for (int k = 0; k < s->cut->out.n; k++)
        for (int i = writes_of(t, s->cut->out.at[k]); i > 0; i--)
            if (cc_tens_bump_version(value[s->cut->out.at[k]]) < 0) return -1;
    return 0;
}

/* A result of torch's may be a view (a product's, in other dims), which nobody could write to as a result of this node:
 * autograd refuses that. */
static int detach_views(const Stage *s, PyObject **value) {
    int step = 0;
    if (cc_run_hosted(s->forward, &step) < 0) return 0;
    for (int k = 0; k < s->cut->out.n; k++) {
        PyObject **o = &value[s->cut->out.at[k]], *is = PyObject_CallMethod(*o, "_is_view", NULL);
        if (is == Py_True) Py_SETREF(*o, PyObject_GetAttrString(*o, "data"));
        Py_XDECREF(is);
        if (is == NULL || *o == NULL) return -1;
    }
    return 0;
}

/* The stage's results in value[], as eager has them. */
static int run_results(const CcTraining *t, const Stage *s, CcSegmentHost *outer, PyObject **value) {
    if (run_forward(t, s, outer, value) < 0 || detach_views(s, value) < 0) return -1;
    return count_writes(t, s, value);
}

static int forward(void *at, CcAutogradResults *r) {
    Run *run = at;
    const CcTraining *t = run->training;
    const Stage *s = &t->stage.at[run->stage];
    PyObject **value = cc_mem_get(sizeof *value * ((size_t)s->joint->forward->val.n + 1));
    int status = run_results(t, s, run->host, value);
    for (int k = 0; k < s->cut->in.n; k++) /* the plan drops inputs after their last use */
        Py_XSETREF(value[s->cut->in.at[k]], Py_NewRef(run->in.at[k]));
    for (int k = 0; status == 0 && k < s->cut->out.n; k++) {
        cc_vec_push(&r->differentiable, cc_rules_needs(t->graph, s->cut->out.at[k]));
        cc_vec_push(&r->out, Py_NewRef(value[s->cut->out.at[k]]));
    }
    for (int k = 0; status == 0 && k < s->joint->saved.n; k++)
        cc_vec_push(&r->saved, Py_NewRef(value[s->joint->saved.at[k]]));
    cc_staged_drop(value, s->joint->forward->val.n);
    const int kept = status == 0 ? cc_torchgrad_keep(run, r) : status;
    r->frees = s->cut->frees || r->saved.n > 0;
    cc_vec_free(&run->in);
    return kept;
}

/* ------------------------------------------------------------------ backward */

/* Takes the saved tensors, which the plan drops after their last use, unless `keep`. */
static int run_backward(const Run *run, const Stage *s, const Backward *b, PyObject **saved, bool keep,
                        PyObject *const *given, PyObject **grad) {
    const CcGraph *g = b->joint.backward;
    PyObject **value = cc_mem_get(sizeof *value * ((size_t)g->val.n + 1));
    StageHost h = {.graph = g, .plan = b->plan, .value = value, .symbol = run->symbol.at};
    int status = 0;
    for (int k = 0; k < s->joint->saved.n; k++) {
        value[s->joint->saved.at[k]] = saved[k];
        saved[k] = keep ? Py_NewRef(saved[k]) : NULL;
    }
    for (int k = 0; status == 0 && k < s->cut->out.n; k++) {
        if (b->joint.seed.at[k] < 0) continue;
        value[b->joint.seed.at[k]] = as_planned(given[k], &g->val.at[b->joint.seed.at[k]].type);
        if (value[b->joint.seed.at[k]] == NULL) status = -1;
    }
    if (status == 0) status = run_plan(&h, NULL);
    for (int i = 0; status == 0 && i < s->diff.n; i++) {
        const int v = b->joint.grad.at[s->diff.at[i]];
        if (v >= 0) grad[i] = Py_NewRef(value[v]);
    }
    cc_staged_drop(value, g->val.n);
    return status;
}

/* Whether torch has to run the backward: it is differentiated itself, or a mode sees its ops. */
static bool is_watched(Run *run) {
    CcMode now;
    cc_mode_read(&now);
    cc_training_rest(run, cc_mode_grad(&now));
    return cc_mode_grad(&now) || cc_mode_refusal(&now) != NULL;
}

/* A gradient that plans can't read: a sparse one, whose elements are not in memory like a tensor's. */
static bool any_sparse(const Stage *s, PyObject *const *given) {
    CcTensor t;
    for (int k = 0; k < s->cut->out.n; k++) {
        if (given[k] == Py_None) continue;
        cc_tens_read(given[k], false, &t);
        if (t.type.ndim < 0) return true;
    }
    return false;
}

static Backward *find_backward(const CcTraining *t, Stage *s, PyObject *const *given, const bool *wanted) {
    bool *has = cc_mem_get((size_t)s->cut->out.n);
    for (int k = 0; k < s->cut->out.n; k++) has[k] = given[k] != Py_None;
    Backward *b = cc_training_backward(t, s, has, wanted);
    free(has);
    return b;
}

static void note_outside(const Run *run) {
    CcTraining *t = run->training;
    if (t->open && t->root->ended != run->ended) t->outside = true;
}

static int differentiate(Run *run, PyObject **saved, PyObject *const *given, const bool *wanted, PyObject **grad) {
    Stage *s = &run->training->stage.at[run->stage];
    if (is_watched(run) || any_sparse(s, given)) return cc_torchgrad_make(run, saved, given, wanted, grad);
    Backward *b = find_backward(run->training, s, given, wanted);
    if (b->plan == NULL) return cc_torchgrad_make(run, saved, given, wanted, grad);
    const bool verify = run->training->verify && (!b->verified || b->wrong);
    const int status = run_backward(run, s, b, saved, verify, given, grad);
    if (status == 0 && verify) b->wrong = !cc_torchgrad_verify(run, saved, given, wanted, grad);
    b->verified = true;
    return status;
}

static PyObject *zeros_of(const CcGraph *g, int value) {
    PyObject *made = cc_tens_empty(&g->val.at[value].type, NULL);
    PyObject *r = made != NULL ? PyObject_CallMethod(made, "zero_", NULL) : NULL;
    Py_XDECREF(made);
    return r;
}

/* A custom Function behind the stage may give None for what the stage has made. Autograd comes through all outputs of a
 * stage or through none (grad/apart.c), and the backward of a custom Function gets zeros for an undefined gradient. */
static int backward_with_zeros(Run *run, PyObject **saved, PyObject *const *given, const bool *wanted,
                               PyObject **grad) {
    const CcGraph *g = run->training->graph;
    const CcStage *s = run->training->stage.at[run->stage].cut;
    PyObject **all = cc_mem_get(sizeof *all * ((size_t)s->out.n + 1));
    bool ok = true;
    for (int k = 0; k < s->out.n && ok; k++) {
        const bool lacks = given[k] == Py_None && cc_rules_needs(g, s->out.at[k]);
        all[k] = lacks ? zeros_of(g, s->out.at[k]) : Py_NewRef(given[k]);
        ok = all[k] != NULL;
    }
    const int status = ok ? differentiate(run, saved, all, wanted, grad) : -1;
    for (int k = 0; k < s->out.n; k++) Py_XDECREF(all[k]);
    free(all);
    return status;
}

static int backward(void *at, PyObject **saved, PyObject *const *given, const bool *wanted, PyObject **grad) {
    Run *run = at;
    note_outside(run);
    return run->training->stage.at[run->stage].functions ? backward_with_zeros(run, saved, given, wanted, grad)
                                                         : differentiate(run, saved, given, wanted, grad);
}

static const CcAutogradKind KIND = {forward, backward, free_run};

/* A stage without gradients is no node of autograd's graph. */
static int run_plain(const CcTraining *t, const Stage *s, CcSegmentHost *h) {
    PyObject **value = cc_mem_get(sizeof *value * ((size_t)s->joint->forward->val.n + 1));
    h->at = t->graph->node.at[s->cut->node.at[s->last_write]].origin;
    const int status = run_results(t, s, h, value);
    for (int k = 0; k < s->cut->out.n && status == 0; k++) {
        const int v = s->cut->out.at[k];
        Py_XSETREF(h->x->value[v], Py_NewRef(value[v]));
    }
    cc_staged_drop(value, s->joint->forward->val.n);
    return status;
}

int cc_staged_apply(CcTraining *t, int stage, CcSegmentHost *h) {
    const Stage *s = &t->stage.at[stage];
    if (s->plain) return run_plain(t, s, h);
    const int n_in = s->diff.n, n_out = s->cut->out.n;
    PyObject **in = cc_mem_get(sizeof *in * ((size_t)n_in + (size_t)n_out)), **out = in + n_in;
    Run *run = cc_mem_get(sizeof *run);
    *run = (Run){.training = t, .stage = stage, .host = h, .ended = t->root->ended};
    t->refs++;
    cc_mode_read(&run->mode);
    for (int k = 0; k < s->cut->in.n; k++) cc_vec_push(&run->in, h->x->value[s->cut->in.at[k]]);
    for (int i = 0; i < h->x->n_symbol; i++) cc_vec_push(&run->symbol, Py_XNewRef(h->x->symbol[i]));
    int status = 0;
    for (int i = 0; i < s->source.n && status == 0; i++) status = cc_torchgrad_note(run, h->x->gv[s->source.at[i]]);
    for (int i = 0; i < s->diff.n; i++) in[i] = run->in.at[s->diff.at[i]];
    h->at = t->graph->node.at[s->cut->node.at[s->last_write]].origin;
    if (status == 0) status = cc_autograd_apply(&KIND, run, in, n_in, out, n_out);
    else free_run(run);
    for (int k = 0; k < n_out && status == 0; k++) Py_XSETREF(h->x->value[s->cut->out.at[k]], out[k]);
    free(in);
    return status;
}
