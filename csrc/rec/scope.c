/* Blocks of torch.inference_mode. Below lies an object of C++, torch._C._InferenceMode: made, entered and left. All
 * three are nodes that keep their place in the graph, and the object is a value of the graph, so a break may stand
 * inside of a block.
 *
 * Which tensors are inference tensors follows from where they are made. A plan keeps that: no kernel reaches across a
 * node that sets state, and what could be made anew elsewhere (views, writes in place) is the host's where it is of the
 * other kind. */
#include "rec_int.h"

static PyObject *method(PyObject *object, const char *name) {
    return PyObject_CallMethod(object, name, strcmp(name, "__exit__") == 0 ? "OOO" : NULL, Py_None, Py_None, Py_None);
}

static PyObject *enter(PyObject *unused, PyObject *object) {
    (void)unused;
    return method(object, "__enter__");
}
static PyObject *leave(PyObject *unused, PyObject *object) {
    (void)unused;
    return method(object, "__exit__");
}

static PyMethodDef definition[] = {
    {"inference_mode.__enter__", enter, METH_O, NULL},
    {"inference_mode.__exit__", leave, METH_O, NULL},
};
static PyObject *function[CC_COUNT(definition)]; /* what replays call */

int cc_scope_init(void) {
    for (int i = 0; i < CC_COUNT(definition); i++)
        if (function[i] == NULL && (function[i] = PyCFunction_New(&definition[i], NULL)) == NULL) return -1;
    return 0;
}

static int which(const CcTorch *t) {
    const char *dot = strrchr(t->name, '.');
    return strcmp(dot, ".__enter__") == 0 ? 0 : strcmp(dot, ".__exit__") == 0 ? 1 : -1;
}

CcGo cc_scope_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t) {
    bool known = c->n > 0 && c->kwnames == NULL && cc_node_nameable(rec, c->in[0], 0) &&
                 (which(t) >= 0 || PyBool_Check(c->in[0]));
    /* What a block that was entered before the call goes back to is not known. */
    if (which(t) == 1 && cc_value_origin(rec, c->in[0]) == CC_O_SOURCE)
        known = known && rec->frame.n > 0 && rec->frame.at[0].kept;
    return known ? CC_OK
                 : cc_rec_break(rec, act, CC_R_TORCH_EFFECT,
                                "torch.inference_mode leaves a block that was entered before");
}

CcGo cc_scope_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t, PyObject *result) {
    const int f = which(t);
    CcCallSpec spec = {.form = CC_F_CALL,
                       .target = c->func,
                       .in = c->in,
                       .n = 1,
                       .name = t->name,
                       .flags = CC_N_EFFECT,
                       .state = true};
    if (f >= 0) { /* what an exit is told of the exception does not matter to it */
        spec.target = function[f];
        rec->trace->scoped = true;
    }
    return cc_node_add(rec, act, &spec, result);
}

bool cc_scope_made(const CcCallSpec *spec, PyObject *result) {
    return spec->state && PyType_Check(spec->target) && Py_IS_TYPE(result, (PyTypeObject *)spec->target);
}

/* Is one of the tensors of another kind than what is made now? */
static bool odd(PyObject *o, bool inference) {
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (odd(PySequence_Fast_GET_ITEM(o, i), inference)) return true;
        return false;
    }
    return cc_tens_any(o) && cc_tens_inference(o) != inference;
}

bool cc_scope_is_hosts(CcRec *rec, const CcCallSpec *spec, PyObject *result) {
    if (!rec->trace->scoped) return false;
    CcMode now;
    cc_mode_read(&now);
    const bool inference = cc_mode_inference(&now);
    if (result != NULL && odd(result, inference)) return true;
    if (!(spec->flags & CC_N_WRITES) || spec->n == 0 || !cc_tens_any(spec->in[0])) return false;
    /* A trace that begins in inference mode takes both kinds of tensors: torch says which it may write outside of
     * it. */
    return cc_mode_inference(&rec->mode) ||
           (cc_value_origin(rec, spec->in[0]) == CC_O_VALUE && odd(spec->in[0], inference));
}

PyObject *cc_scope_opposite(const CcAction *a) {
    for (int i = 0; i < CC_COUNT(function); i++)
        if (a->state && a->target == function[i]) return function[1 - i];
    return NULL;
}
