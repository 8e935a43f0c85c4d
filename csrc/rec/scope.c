/* Blocks of torch.inference_mode and of torch.device. Entering and leaving them are nodes with a fixed place in the
 * graph. inference_mode uses a C++ object, torch._C._InferenceMode, which a third node makes. It is a graph value, so a
 * break inside a block is possible. A device is a constant, and leaving its block takes the mode on top off the stack
 * (tens/devmode.c), which guards know.
 *
 * Where a tensor is made decides whether it is an inference tensor. A plan preserves this: no kernel spans a node that
 * sets state, and operations that a plan could move (views, in-place writes) are host nodes if their tensors are of the
 * other kind. */
#include "rec_events.h"

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
    {"__enter__", enter, METH_O, NULL},
    {"__exit__", leave, METH_O, NULL},
};
static PyObject *function[CC_COUNT(definition)]; /* called by replays */

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
    /* The state that a block of inference mode entered before the call restores is unknown. */
    if (which(t) == 1 && !cc_tens_constant(c->in[0]) && cc_value_origin(rec, c->in[0]) == CC_O_SOURCE)
        known = known && rec->frame.n > 0 && rec->frame.at[0].kept;
    return known ? CC_OK
                 : cc_rec_break(rec, act, CC_R_TORCH_EFFECT,
                                "torch.inference_mode leaves a block that was entered before the call");
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
    if (f >= 0) { /* __exit__ ignores its arguments */
        spec.target = function[f];
        rec->trace->scoped = true;
    }
    return cc_node_add(rec, act, &spec, result);
}

bool cc_scope_made(const CcCallSpec *spec, PyObject *result) {
    return spec->state && PyType_Check(spec->target) && Py_IS_TYPE(result, (PyTypeObject *)spec->target);
}

/* Is a tensor in o of another kind than tensors made now? */
static bool other_kind(PyObject *o, bool inference) {
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (other_kind(PySequence_Fast_GET_ITEM(o, i), inference)) return true;
        return false;
    }
    return cc_tens_is(o) && cc_tens_inference(o) != inference;
}

bool cc_scope_is_hosts(CcRec *rec, const CcCallSpec *spec, PyObject *result) {
    if (!rec->trace->scoped) return false;
    CcMode now;
    cc_mode_read(&now);
    const bool inference = cc_mode_inference(&now);
    if (result != NULL && other_kind(result, inference)) return true;
    if (!(spec->flags & CC_N_WRITES) || spec->n == 0 || !cc_tens_is(spec->in[0])) return false;
    /* A trace that begins in inference mode may get both kinds of tensors: outside the mode, only torch knows which it
     * may write to. */
    return cc_mode_inference(&rec->mode) ||
           (cc_value_origin(rec, spec->in[0]) == CC_O_VALUE && other_kind(spec->in[0], inference));
}

PyObject *cc_scope_opposite(const CcAction *a) {
    for (int i = 0; i < CC_COUNT(function); i++)
        if (a->state && a->target == function[i]) return function[1 - i];
    return NULL;
}
