/* autograd: nodes of autograd's graph whose forward and backward are C functions of ours.
 *
 * torch makes such nodes through torch.autograd.Function. A subclass, made once, has C functions in place of `forward`
 * and of its nodes' `apply`; `_FunctionBase.apply` is called directly, without the Python code of Function.apply. What
 * autograd promises comes with it: saved tensors are freed after backward unless retain_graph is set, a second
 * backward raises, and so does one after a saved tensor was written to. */
#include "eval_int.h"

static struct {
    PyObject *apply; /* _FunctionBase.apply, bound to the subclass */
    PyObject *str_run, *str_to_save, *str_saved, *str_fixed, *str_materialize, *str_needs, *str_clear;
} A;

static const char *const CAPSULE = "ccompile.autograd";

typedef struct Node {
    const CcAutogradKind *kind;
    void *run;
    bool frees;
} Node;

static Node *node_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, CAPSULE); }

static void free_node(PyObject *capsule) {
    Node *n = node_of(capsule);
    n->kind->free(n->run);
    free(n);
}

/* ------------------------------------------------------------------ forward */

static PyObject *tuple_of(PyObject **at, int n) {
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t != NULL && i < n; i++) PyTuple_SET_ITEM(t, i, Py_NewRef(at[i]));
    return t;
}

/* The results that have no gradient. */
static PyObject *fixed(const CcAutogradResults *r) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < r->out.n; i++)
        if (!r->differentiable.at[i] && PyList_Append(list, r->out.at[i]) < 0) Py_CLEAR(list);
    PyObject *t = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return t;
}

static int set_new(PyObject *o, PyObject *name, PyObject *value) {
    const int status = value != NULL ? PyObject_SetAttr(o, name, value) : -1;
    Py_XDECREF(value);
    return status;
}

static PyObject *results(PyObject *ctx, PyObject *capsule, CcAutogradResults *r) {
    if (PyObject_SetAttr(ctx, A.str_run, capsule) < 0 || PyObject_SetAttr(ctx, A.str_materialize, Py_False) < 0 ||
        set_new(ctx, A.str_to_save, tuple_of(r->saved.at, r->saved.n)) < 0 || set_new(ctx, A.str_fixed, fixed(r)) < 0)
        return NULL;
    return tuple_of(r->out.at, r->out.n);
}

/* forward(ctx, capsule, *inputs) */
static PyObject *forward(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *ctx = PyTuple_GET_ITEM(args, 0), *capsule = PyTuple_GET_ITEM(args, 1);
    Node *n = node_of(capsule);
    if (n == NULL) return NULL;
    CcAutogradResults r = {0};
    PyObject *out = n->kind->forward(n->run, &r) == 0 ? results(ctx, capsule, &r) : NULL;
    n->frees = r.frees;
    for (int i = 0; i < r.out.n; i++) Py_DECREF(r.out.at[i]);
    for (int i = 0; i < r.saved.n; i++) Py_DECREF(r.saved.at[i]);
    cc_vec_free(&r.out);
    cc_vec_free(&r.saved);
    cc_vec_free(&r.differentiable);
    return out;
}

int cc_autograd_apply(const CcAutogradKind *kind, void *run, PyObject *const *in, int n_in, PyObject **out, int n_out) {
    Node *n = cc_mem_get(sizeof *n);
    *n = (Node){kind, run, false};
    PyObject *capsule = PyCapsule_New(n, CAPSULE, free_node);
    if (capsule == NULL) {
        kind->free(run);
        free(n);
        return -1;
    }
    PyObject *args = PyTuple_New(n_in + 1);
    if (args == NULL) {
        Py_DECREF(capsule);
        return -1;
    }
    PyTuple_SET_ITEM(args, 0, capsule);
    for (int i = 0; i < n_in; i++) PyTuple_SET_ITEM(args, i + 1, Py_NewRef(in[i]));
    PyObject *r = PyObject_Call(A.apply, args, NULL);
    Py_DECREF(args);
    if (r == NULL) return -1;
    for (int i = 0; i < n_out; i++) out[i] = Py_NewRef(PyTuple_GET_ITEM(r, i));
    Py_DECREF(r);
    return 0;
}

/* ------------------------------------------------------------------ backward */

/* The gradients as autograd wants them: None for the capsule, and where there is none. */
static PyObject *gradients(PyObject **grad, int n) {
    PyObject *t = PyTuple_New(n + 1);
    for (int i = 0; t != NULL && i <= n; i++)
        PyTuple_SET_ITEM(t, i, Py_NewRef(i == 0 || grad[i - 1] == NULL ? Py_None : grad[i - 1]));
    for (int i = 0; i < n; i++) Py_CLEAR(grad[i]);
    return t;
}

static PyObject *run_backward(Node *n, PyObject **saved, PyObject *needs, PyObject *const *given) {
    const int n_in = (int)PyTuple_GET_SIZE(needs) - 1;
    bool *wanted = cc_mem_get((size_t)n_in + 1);
    PyObject **grad = cc_mem_get(sizeof *grad * ((size_t)n_in + 1));
    for (int i = 0; i < n_in; i++) wanted[i] = PyTuple_GET_ITEM(needs, i + 1) == Py_True;
    const int status = n->kind->backward(n->run, saved, given, wanted, grad);
    PyObject *r = status == 0 ? gradients(grad, n_in) : NULL;
    free(wanted);
    free(grad);
    return r;
}

/* The saved tensors, new references, and their number. Without retain_graph they are the last ones. NULL with an error
 * set. */
static PyObject **take_saved(PyObject *ctx, const Node *node, int *n) {
    if (!node->frees) return cc_mem_get(sizeof(PyObject *));
    PyObject *tuple = PyObject_GetAttr(ctx, A.str_saved), *r;
    if (tuple == NULL) return NULL;
    PyObject **saved = cc_mem_get(sizeof *saved * (size_t)PyTuple_GET_SIZE(tuple));
    for (*n = 0; *n < PyTuple_GET_SIZE(tuple); ++*n) saved[*n] = Py_NewRef(PyTuple_GET_ITEM(tuple, *n));
    Py_DECREF(tuple);
    r = PyObject_CallMethodNoArgs(ctx, A.str_clear);
    if (r == NULL) cc_raised_clear(); /* this torch frees them only behind the backward */
    Py_XDECREF(r);
    return saved;
}

/* apply(self, *gradients of the outputs) */
static PyObject *backward(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *ctx = PyTuple_GET_ITEM(args, 0);
    PyObject *capsule = PyObject_GetAttr(ctx, A.str_run), *needs = PyObject_GetAttr(ctx, A.str_needs), *r = NULL;
    Node *n = capsule != NULL && needs != NULL ? node_of(capsule) : NULL;
    int n_saved = 0;
    PyObject **saved = n != NULL ? take_saved(ctx, n, &n_saved) : NULL;
    if (saved != NULL) r = run_backward(n, saved, needs, &PyTuple_GET_ITEM(args, 1));
    for (int i = 0; i < n_saved; i++) Py_XDECREF(saved[i]);
    free(saved);
    Py_XDECREF(needs);
    Py_XDECREF(capsule);
    return r;
}

/* ------------------------------------------------------------------ the class */

static PyMethodDef FORWARD = {"forward", forward, METH_VARARGS, NULL};
static PyMethodDef BACKWARD = {"apply", backward, METH_VARARGS, NULL};

/* class CompiledStage(torch.autograd.Function): forward = ... */
static PyObject *make_class(PyObject *function) {
    PyObject *f = PyCFunction_New(&FORWARD, NULL);
    PyObject *cls = f != NULL ? PyObject_CallFunction((PyObject *)Py_TYPE(function), "s(O){s:N,s:s}", "CompiledStage",
                                                      function, "forward", f, "__module__", "ccompile")
                              : NULL;
    PyObject *b = cls != NULL ? PyCFunction_New(&BACKWARD, NULL) : NULL;
    PyObject *method = b != NULL ? PyInstanceMethod_New(b) : NULL;
    PyObject *node = method != NULL ? PyObject_GetAttrString(cls, "_backward_cls") : NULL;
    const int status = node != NULL ? PyObject_SetAttrString(node, "apply", method) : -1;
    Py_XDECREF(node);
    Py_XDECREF(method);
    Py_XDECREF(b);
    if (status < 0) Py_CLEAR(cls);
    return cls;
}

static PyObject *make_apply(void) {
    PyObject *function = cc_obj_of_module("torch.autograd", "Function");
    PyObject *base = function != NULL ? cc_obj_of_module("torch._C", "_FunctionBase") : NULL;
    PyObject *cls = base != NULL ? make_class(function) : NULL, *bound = NULL;
    PyObject *apply = cls != NULL ? cc_obj_item(((PyTypeObject *)base)->tp_dict, "apply") : NULL;
    if (apply != NULL && Py_TYPE(apply)->tp_descr_get != NULL) bound = Py_TYPE(apply)->tp_descr_get(apply, NULL, cls);
    Py_XDECREF(cls);
    Py_XDECREF(base);
    Py_XDECREF(function);
    return bound;
}

bool cc_autograd_ready(void) {
    if (A.apply != NULL) return true;
    A.str_run = cc_obj_intern("ccompile_run");
    A.str_to_save = cc_obj_intern("to_save");
    A.str_saved = cc_obj_intern("saved_tensors");
    A.str_fixed = cc_obj_intern("non_differentiable");
    A.str_materialize = cc_obj_intern("materialize_grads");
    A.str_needs = cc_obj_intern("needs_input_grad");
    A.str_clear = cc_obj_intern("maybe_clear_saved_tensors");
    A.apply = make_apply();
    if (A.apply != NULL) return true;
    cc_raised_clear();
    cc_log_add(CC_LOG_MISSING, "torch.autograd.Function is not as expected: torch runs the ops that autograd records");
    return false;
}
