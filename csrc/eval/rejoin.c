/* rejoin: second derivatives that eager computes through a result, where torch has run a stage's nodes again.
 *
 *     forward:    x ──▶ stage ──▶ y                   x, y ──▶ rejoin ──▶ alias of x ──▶ nodes, run again ──▶ y'
 *
 * Eager's derivative of tanh reads its result, so a second backward goes through y: a hook on y sees that gradient, and
 * may change it. Here the derivative reads y'. No node but those of derivatives reads y', as no output of a stage is
 * computed from another one; so the node that made y' hands what comes from them to `rejoin`, which runs behind all
 * nodes that were run again, and gives it to y. */
#include "eval_training.h"

typedef struct Rejoin {
    PyObject *const *in; /* borrowed, while the forward runs */
    int n_in, n_out;
    PyObject *handed; /* list: for each y, (backward, gradient) or None */
} Rejoin;

/* The number of the backward that this thread runs. */
static PyObject *this_backward(void) {
    PyObject *f = cc_obj_of_module("torch._C", "_current_graph_task_id");
    PyObject *r = f != NULL ? PyObject_CallNoArgs(f) : NULL;
    Py_XDECREF(f);
    return r;
}

static int forward(void *at, CcAutogradResults *r) {
    const Rejoin *j = at;
    for (int i = 0; i < j->n_in; i++) {
        PyObject *alias = PyObject_CallMethod(j->in[i], "detach", NULL);
        if (alias == NULL) return -1;
        cc_vec_push(&r->out, alias);
        cc_vec_push(&r->differentiable, true);
    }
    return 0;
}

/* What was handed on in a backward that failed is not this one's. */
static PyObject *take_handed(const Rejoin *j, int k, PyObject *backward) {
    PyObject *pair = PyList_GET_ITEM(j->handed, k), *grad = NULL;
    if (pair != Py_None && PyObject_RichCompareBool(PyTuple_GET_ITEM(pair, 0), backward, Py_EQ) == 1)
        grad = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    PyList_SetItem(j->handed, k, Py_NewRef(Py_None));
    return grad;
}

static int backward(void *at, PyObject **saved, PyObject *const *given, const bool *wanted, PyObject **grad) {
    const Rejoin *j = at;
    PyObject *now = this_backward();
    (void)saved;
    if (now == NULL) return -1;
    for (int i = 0; i < j->n_in; i++)
        if (wanted[i] && given[i] != Py_None) grad[i] = Py_NewRef(given[i]);
    for (int k = 0; k < j->n_out; k++) grad[j->n_in + k] = take_handed(j, k, now);
    Py_DECREF(now);
    return 0;
}

static void free_rejoin(void *at) {
    Rejoin *j = at;
    Py_XDECREF(j->handed);
    free(j);
}

static const CcAutogradKind KIND = {forward, backward, free_rejoin};

PyObject *cc_rejoin_aliases(PyObject **in, int n_in, PyObject *const *y, int n_y) {
    PyObject *handed = PyList_New(n_y);
    if (handed == NULL) return NULL;
    for (int k = 0; k < n_y; k++) PyList_SET_ITEM(handed, k, Py_NewRef(Py_None));
    PyObject **all = cc_mem_get(sizeof *all * ((size_t)n_in + (size_t)n_y + 1));
    PyObject **out = cc_mem_get(sizeof *out * ((size_t)n_in + 1));
    for (int i = 0; i < n_in; i++) all[i] = in[i];
    for (int k = 0; k < n_y; k++) all[n_in + k] = y[k];
    Rejoin *j = cc_mem_get(sizeof *j);
    *j = (Rejoin){.in = all, .n_in = n_in, .n_out = n_y, .handed = Py_NewRef(handed)};
    const int status = cc_autograd_apply(&KIND, j, all, n_in + n_y, out, n_in);
    for (int i = 0; i < n_in && status == 0; i++) Py_SETREF(in[i], out[i]);
    free(out);
    free(all);
    if (status < 0) Py_CLEAR(handed);
    return handed;
}

/* hook((list, index, number of the output), gradients of the outputs): those without that one's */
static PyObject *hand_on(PyObject *self, PyObject *grads) {
    const Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(self, 1));
    const Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GET_ITEM(self, 2)), n = PyTuple_GET_SIZE(grads);
    PyObject *grad = PyTuple_GET_ITEM(grads, number), *now = this_backward(), *rest = PyTuple_New(n);
    PyObject *pair = now != NULL ? PyTuple_Pack(2, now, grad) : NULL;
    Py_XDECREF(now);
    if (rest == NULL || pair == NULL) {
        Py_XDECREF(rest);
        Py_XDECREF(pair);
        return NULL;
    }
    if (grad == Py_None) Py_DECREF(pair);
    else PyList_SetItem(PyTuple_GET_ITEM(self, 0), at, pair);
    for (Py_ssize_t i = 0; i < n; i++)
        PyTuple_SET_ITEM(rest, i, Py_NewRef(i == number ? Py_None : PyTuple_GET_ITEM(grads, i)));
    return rest;
}

static PyMethodDef HAND_ON = {"hand_on", hand_on, METH_O, NULL};

int cc_rejoin_hand_on(PyObject *handed, int at, PyObject *result) {
    PyObject *node = PyObject_GetAttrString(result, "grad_fn"), *self = NULL, *hook = NULL, *r = NULL;
    PyObject *number = node != NULL ? PyObject_GetAttrString(result, "output_nr") : NULL;
    if (number != NULL) self = Py_BuildValue("(OiO)", handed, at, number);
    if (self != NULL) hook = PyCFunction_New(&HAND_ON, self);
    if (hook != NULL) r = node == Py_None ? Py_NewRef(node) : PyObject_CallMethod(node, "register_prehook", "O", hook);
    Py_XDECREF(node);
    Py_XDECREF(number);
    Py_XDECREF(self);
    Py_XDECREF(hook);
    if (r == NULL) return -1;
    Py_DECREF(r);
    return 0;
}
