/* torchgrad: the gradients of a stage as torch computes them: it runs the stage's recorded nodes again, and autograd
 * differentiates those. For create_graph=True, where the backward itself must be differentiable, and for the
 * self-check. */
#include "eval_training.h"

static const char *const KEPT = "_ccompile_kept"; /* attribute of a saved tensor */

/* ------------------------------------------------------------------ which inputs are needed */

static int index_of(const CcJoint *j, int value) {
    for (int i = 0; i < j->saved.n; i++)
        if (j->saved.at[i] == value) return i;
    return -1;
}

static bool is_output(const CcStage *s, int value) {
    for (int k = 0; k < s->out.n; k++)
        if (s->out.at[k] == value) return true;
    return false;
}

/* Marks a value of the stage's forward, or, if the stage has made it of a node (a cast, a layer of a recurrent op), what
 * it was computed from. */
static void need(const CcTraining *t, const CcGraph *forward, int value, bool *needed) {
    if (needed[value]) return;
    needed[value] = true;
    if (value < t->graph->val.n) return;
    const CcNode *n = &forward->node.at[forward->val.at[value].def];
    for (int k = 0; k < n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(forward, n, k);
        if (o->kind == CC_IN_VALUE) need(t, forward, o->value, needed);
    }
}

/* needed[value of the forward]: it must be computed as it was, because the backward reads it or a value computed from it. Other values
 * are operands of linear ops alone. */
static void find_needed(const CcTraining *t, const Stage *s, bool *needed) {
    const CcGraph *forward = s->joint->forward;
    for (int i = 0; i < s->joint->saved.n; i++) need(t, forward, s->joint->saved.at[i], needed);
    for (int i = s->cut->node.n - 1; i >= 0; i--) {
        const CcNode *n = &t->graph->node.at[s->cut->node.at[i]];
        bool any = false;
        for (int k = 0; k < n->n_out; k++) any = any || needed[n->out0 + k];
        for (int k = 0; any && k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(t->graph, n, k);
            if (o->kind == CC_IN_VALUE) needed[o->value] = true;
        }
    }
}

/* Inputs that are needed and not saved have to live as long as what is saved: a saved tensor that nobody else has holds
 * them. */
void cc_torchgrad_plan(const CcTraining *t, Stage *s) {
    const CcGraph *forward = s->joint->forward;
    bool *needed = cc_mem_get((size_t)forward->val.n + 1);
    find_needed(t, s, needed);
    for (int k = 0; k < s->cut->in.n; k++) {
        cc_vec_push(&s->saved_at, index_of(s->joint, s->cut->in.at[k]));
        if (cc_vec_last(&s->saved_at) < 0 && needed[s->cut->in.at[k]]) cc_vec_push(&s->kept, k);
    }
    s->keeper = s->joint->saved.n;
    for (int i = 0; i < s->joint->saved.n; i++) {
        const int v = s->joint->saved.at[i], def = forward->val.at[v].def;
        if (def >= 0 && !cc_op_is_view(forward->node.at[def].op) && !is_output(s->cut, v)) s->keeper = i;
    }
    free(needed);
}

/* The kept inputs become an attribute of the keeper, so that they die when autograd frees the saved tensors. If they
 * were saved themselves, a write to them would make the backward raise, as it does not in eager. */
int cc_torchgrad_keep(Run *run, CcAutogradResults *r) {
    const Stage *s = &run->training->stage.at[run->stage];
    if (s->kept.n == 0) return 0;
    if (s->keeper == r->saved.n) {
        PyObject *extra = cc_tens_empty(&(CcType){.dtype = CC_DT_BOOL, .device = 1, .ndim = 1}, NULL);
        if (extra == NULL) return -1;
        cc_vec_push(&r->saved, extra);
    }
    PyObject *kept = PyTuple_New(s->kept.n);
    for (int i = 0; kept != NULL && i < s->kept.n; i++) {
        PyObject *in = run->in.at[s->kept.at[i]];
        PyTuple_SET_ITEM(kept, i, Py_NewRef(in));
        cc_vec_push(&run->version, cc_tens_version(in));
    }
    const int status = kept != NULL ? PyObject_SetAttrString(r->saved.at[s->keeper], KEPT, kept) : -1;
    Py_XDECREF(kept);
    return status;
}

/* The index of an input among the kept ones; -1: it is not one. */
static int kept_at(const Stage *s, int input) {
    for (int i = 0; i < s->kept.n; i++)
        if (s->kept.at[i] == input) return i;
    return -1;
}

static PyObject *zeros(const CcType *type, bool grad) {
    PyObject *made = cc_tens_empty(type, NULL), *r = made != NULL ? PyObject_CallMethod(made, "zero_", NULL) : NULL;
    if (r == NULL || grad) Py_XSETREF(made, r != NULL ? PyObject_CallMethod(r, "requires_grad_", NULL) : NULL);
    Py_XDECREF(r);
    return made;
}

/* An input as it was. One that is neither saved nor kept is zeros: no derivative depends on it. */
static PyObject *find_input(const Run *run, const Stage *s, PyObject *const *saved, PyObject *kept, int k) {
    const CcGraph *g = run->training->graph;
    const int value = s->cut->in.at[k], at = kept_at(s, k);
    if (s->saved_at.at[k] >= 0) return Py_NewRef(saved[s->saved_at.at[k]]);
    if (at < 0) return zeros(&g->val.at[value].type, cc_rules_needs(g, value));
    PyObject *in = PyTuple_GET_ITEM(kept, at);
    if (cc_tens_version(in) == run->version.at[at]) return Py_NewRef(in);
    PyErr_SetString(
        PyExc_RuntimeError,
        "ccompile: create_graph=True after a tensor that a compiled function had read was written to; compile "
        "it with options={\"training\": False}");
    return NULL;
}

/* One gradient that torch computes. */
typedef struct Again {
    PyObject *const *saved, *const *given;
    bool create;      /* it will be differentiated */
    PyObject **value; /* [value of the graph] */
    PyObject *handed; /* for rejoin.c; NULL: no gradient is handed on */
} Again;

/* The stage's results that the backward reads, and that have a gradient: [output] index into `saved`; -1: not one. */
static int read_result(const Run *run, const Stage *s, const Again *a, int k) {
    const int v = s->cut->out.at[k];
    return a->given[k] != Py_None && cc_rules_needs(run->training->graph, v) ? index_of(s->joint, v) : -1;
}

static int make_aliases(const Run *run, const Stage *s, Again *a, PyObject **in, int n) {
    PyObject **y = cc_mem_get(sizeof *y * ((size_t)s->cut->out.n + 1));
    int n_y = 0, status = 0;
    for (int k = 0; a->create && k < s->cut->out.n; k++)
        if (read_result(run, s, a, k) >= 0) y[n_y++] = a->saved[read_result(run, s, a, k)];
    if (n_y > 0) a->handed = cc_rejoin_aliases(in, n, y, n_y);
    if (n_y > 0 && a->handed == NULL) status = -1;
    for (int i = 0; n_y == 0 && status == 0 && i < n; i++) {
        Py_SETREF(in[i], PyObject_CallMethod(in[i], "view_as", "O", in[i]));
        if (in[i] == NULL) status = -1;
    }
    free(y);
    return status;
}

static int find_inputs(const Run *run, const Stage *s, Again *a) {
    PyObject *kept = s->kept.n > 0 ? PyObject_GetAttrString(a->saved[s->keeper], KEPT) : NULL;
    PyObject **in = cc_mem_get(sizeof *in * ((size_t)s->cut->in.n + 1));
    int status = s->kept.n > 0 && kept == NULL ? -1 : 0, n = 0;
    for (int k = 0; k < s->cut->in.n && status == 0; k++) {
        PyObject *o = find_input(run, s, a->saved, kept, k);
        if (o == NULL) status = -1;
        else if (cc_tens_requires_grad(o)) in[n++] = o;
        else a->value[s->cut->in.at[k]] = o;
    }
    if (status == 0) status = make_aliases(run, s, a, in, n);
    for (int k = 0, i = 0; k < s->cut->in.n && i < n; k++)
        if (a->value[s->cut->in.at[k]] == NULL) a->value[s->cut->in.at[k]] = in[i++];
    free(in);
    Py_XDECREF(kept);
    return status;
}

/* The results that torch has computed again stand for those that it was given, from now on. */
static int hand_on(const Run *run, const Stage *s, const Again *a) {
    int at = 0, status = 0;
    for (int k = 0; a->handed != NULL && status == 0 && k < s->cut->out.n; k++)
        if (read_result(run, s, a, k) >= 0) status = cc_rejoin_hand_on(a->handed, at++, a->value[s->cut->out.at[k]]);
    return status;
}

/* ------------------------------------------------------------------ objects that nodes take */

/* An input of the stage that this object is, looked for from `from` on: lists often have the order of the inputs. -1:
 * it is none. */
static int input_of(const Run *run, PyObject *o, int from) {
    for (int i = 0; cc_tens_is(o) && i < run->in.n; i++) {
        const int k = (from + i) % run->in.n;
        if (run->in.at[k] == o) return k;
    }
    return -1;
}

static bool has_items(PyObject *o) { return o != NULL && (PyList_CheckExact(o) || PyTuple_CheckExact(o)); }

/* The function may write to a list before the backward, and tensors must not live longer than what autograd saved. */
int cc_torchgrad_note(Run *run, PyObject *source) {
    PyObject *items = has_items(source) ? PySequence_List(source) : NULL;
    if (has_items(source) && items == NULL) return -1;
    for (Py_ssize_t i = 0, k = 0; items != NULL && i < PyList_GET_SIZE(items); i++) {
        const int at = input_of(run, PyList_GET_ITEM(items, i), (int)k);
        cc_vec_push(&run->place, at);
        if (at < 0) continue;
        k = at + 1;
        PyList_SetItem(items, i, Py_NewRef(Py_None));
    }
    PyObject *kept =
        items != NULL && PyTuple_CheckExact(source) ? PyList_AsTuple(items) : Py_XNewRef(items ? items : source);
    Py_XDECREF(items);
    if (kept == NULL && source != NULL) return -1;
    cc_vec_push(&run->source, kept);
    return 0;
}

/* The sources, where the aliases stand for the inputs: new references in gv. */
static int find_sources(const Run *run, const Stage *s, PyObject *const *value, PyObject **gv) {
    const int *place = run->place.at;
    for (int i = 0; i < s->source.n; i++) {
        PyObject *was = run->source.at[i], *now = has_items(was) ? PySequence_List(was) : Py_XNewRef(was);
        if (now == NULL && was != NULL) return -1;
        for (Py_ssize_t k = 0; has_items(was) && k < PyList_GET_SIZE(now); k++, place++)
            if (*place >= 0) PyList_SetItem(now, k, Py_XNewRef(value[s->cut->in.at[*place]]));
        if (was != NULL && PyTuple_CheckExact(was)) Py_SETREF(now, PyList_AsTuple(now));
        if (now == NULL && was != NULL) return -1;
        Py_XSETREF(gv[s->source.at[i]], now); /* two nodes may take it */
    }
    return 0;
}

/* ------------------------------------------------------------------ gradients */

/* Runs the stage's recorded nodes by torch, on aliases of its inputs: gradients with respect to an alias are partial
 * derivatives, even if one input was computed from another. */
static int repeat_nodes(Run *run, Again *a) {
    PyObject **value = a->value;
    CcTraining *t = run->training;
    const Stage *s = &t->stage.at[run->stage];
    CcCallState x = {.n_value = t->graph->val.n, .value = value};
    x.gv = cc_mem_get(sizeof *x.gv * (size_t)(t->n_gv + t->n_symbol + 1));
    x.symbol = x.gv + t->n_gv;
    CcShape shape = {.graph = t->graph};
    CcSegmentHost segment;
    const CcHost h = cc_segment_host(&segment, t->part, &shape, &x);
    int status = find_inputs(run, s, a);
    if (status == 0) status = find_sources(run, s, value, x.gv);
    for (int i = 0; i < t->part->input.n; i++) x.gv[t->part->input.at[i]] = value[t->part->input_value.at[i]];
    for (int i = 0; i < t->n_symbol; i++) x.symbol[i] = run->symbol.n > 0 ? run->symbol.at[i] : NULL;
    for (int i = 0; i < s->cut->node.n && status == 0; i++) {
        const CcNode *n = &t->graph->node.at[s->cut->node.at[i]];
        const int of = n->n_out > 0 ? cc_versions_of(&t->versions, n->out0) : -1;
        status = cc_repeat_takes(n) ? cc_repeat_node(t->graph, n, value) : h.call(h.ctx, n->origin);
        /* torch writes in place: all versions are one tensor */
        const int from = cc_repeat_takes(n) ? n->out0 : of, to = cc_repeat_takes(n) ? of : n->out0;
        if (of >= 0 && status == 0) Py_XSETREF(value[to], Py_XNewRef(value[from]));
    }
    for (int i = 0; i < s->source.n; i++) Py_CLEAR(x.gv[s->source.at[i]]);
    free(x.gv);
    return status;
}

/* The same under the ambient state of the forward: grad mode is on, and autocast may be. */
static int repeat_as_then(Run *run, Again *a) {
    CcMode now;
    PyObject *type, *error, *trace;
    cc_mode_read(&now);
    cc_mode_restore(&run->mode);
    const int status = repeat_nodes(run, a);
    PyErr_Fetch(&type, &error, &trace);
    cc_mode_restore(&now);
    PyErr_Restore(type, error, trace);
    return status;
}

static int push(PyObject *list, PyObject *o) { return PyList_Append(list, o); }

/* torch.autograd.grad(outputs, inputs, given, create_graph=create, allow_unused=True) */
static PyObject *differentiate(PyObject *outputs, PyObject *inputs, PyObject *given, PyObject *create) {
    PyObject *f = cc_obj_of_module("torch.autograd", "grad");
    PyObject *args = f != NULL ? PyTuple_Pack(3, outputs, inputs, given) : NULL;
    PyObject *kw = args != NULL ? Py_BuildValue("{s:O,s:O}", "create_graph", create, "allow_unused", Py_True) : NULL;
    PyObject *r = kw != NULL ? PyObject_Call(f, args, kw) : NULL;
    Py_XDECREF(kw);
    Py_XDECREF(args);
    Py_XDECREF(f);
    return r;
}

int cc_torchgrad_make(Run *run, PyObject *const *saved, PyObject *const *given, const bool *wanted, PyObject **grad) {
    const Stage *s = &run->training->stage.at[run->stage];
    const int n_val = run->training->graph->val.n;
    PyObject **value = cc_mem_get(sizeof *value * ((size_t)n_val + 1));
    PyObject *outputs = PyList_New(0), *inputs = PyList_New(0), *grads = PyList_New(0), *r = NULL;
    Again a = {.saved = saved, .given = given, .create = cc_mode_grad_now(), .value = value};
    int status = outputs != NULL && inputs != NULL && grads != NULL ? repeat_as_then(run, &a) : -1;
    for (int k = 0; status == 0 && k < s->cut->out.n; k++)
        if (given[k] != Py_None && (push(outputs, value[s->cut->out.at[k]]) < 0 || push(grads, given[k]) < 0))
            status = -1;
    for (int i = 0; status == 0 && i < s->diff.n; i++)
        if (wanted[i] && push(inputs, value[s->cut->in.at[s->diff.at[i]]]) < 0) status = -1;
    if (status == 0) r = differentiate(outputs, inputs, grads, a.create ? Py_True : Py_False);
    if (r != NULL && hand_on(run, s, &a) < 0) Py_CLEAR(r);
    for (int i = 0, at = 0; r != NULL && i < s->diff.n; i++) {
        PyObject *o = wanted[i] ? PyTuple_GET_ITEM(r, at++) : Py_None;
        grad[i] = o == Py_None ? NULL : Py_NewRef(o);
    }
    if (r == NULL) status = -1;
    Py_XDECREF(r);
    Py_XDECREF(outputs);
    Py_XDECREF(inputs);
    Py_XDECREF(grads);
    Py_XDECREF(a.handed);
    cc_staged_drop(value, n_val);
    return status;
}

/* ---- the self-check ---- */

/* The gradients that torch computes from the stage's inputs, unless these were written to since the forward. False:
 * unknown */
static bool ask_torch(Run *run, PyObject *const *saved, PyObject *const *given, const bool *wanted, PyObject **want) {
    const int status = cc_torchgrad_make(run, saved, given, wanted, want);
    cc_raised_clear();
    return status == 0;
}

/* Does the stage compute in half precision? Then gradients of f32 inputs are no more accurate. */
static bool is_coarse(const CcGraph *g, const CcStage *s) {
    for (int i = 0; i < s->node.n; i++) {
        const CcNode *n = &g->node.at[s->node.at[i]];
        for (int k = 0; k < n->n_out; k++) {
            const int dtype = g->val.at[n->out0 + k].type.dtype;
            if (cc_dtype_is_half(dtype)) return true;
        }
    }
    return false;
}

/* The largest element of the gradients. Such terms cancel in the gradient of a bias in front of a batch norm, which is 0. */
static double largest_of(PyObject *const *grad, int n) {
    double most = 0;
    for (int i = 0; i < n; i++) most = grad[i] != NULL ? CC_MAX(most, cc_verify_largest(grad[i])) : most;
    return most;
}

static bool same_gradient(const Run *run, int i, PyObject *got, PyObject *want, double terms) {
    const CcGraph *g = run->training->graph;
    const CcStage *cut = run->training->stage.at[run->stage].cut;
    const CcDtype dtype = (CcDtype)g->val.at[cut->in.at[run->training->stage.at[run->stage].diff.at[i]]].type.dtype;
    if (got == NULL || want == NULL) return got == want;
    PyObject *plain = PyObject_CallMethod(want, "detach", NULL);
    const bool same = plain != NULL &&
                      (cc_verify_close(got, plain, dtype, is_coarse(g, cut)) || cc_verify_cancelled(got, plain, terms));
    Py_XDECREF(plain);
    return same;
}

/* Compares the first gradients of a plan with torch's; those are kept if they differ. False: they do. */
bool cc_torchgrad_verify(Run *run, PyObject *const *saved, PyObject *const *given, const bool *wanted,
                         PyObject **grad) {
    const int n = run->training->stage.at[run->stage].diff.n;
    PyObject **want = cc_mem_get(sizeof *want * ((size_t)n + 1));
    const bool known = ask_torch(run, saved, given, wanted, want);
    const double terms = known ? largest_of(want, n) : 0;
    bool same = true;
    for (int i = 0; i < n; i++) {
        if (known && !same_gradient(run, i, grad[i], want[i], terms)) {
            cc_log_add(CC_LOG_VERIFY, "segment %d, stage %d: the gradient of input %d differs from torch's",
                       run->training->id, run->stage, i);
            Py_XSETREF(grad[i], Py_XNewRef(want[i]));
            same = false;
        }
        Py_XDECREF(want[i]);
    }
    free(want);
    return same;
}
