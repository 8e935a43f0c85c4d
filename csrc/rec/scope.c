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

/* (object, ...): the other operands are for cc_scope_undo. */
static PyObject *enter(PyObject *unused, PyObject *const *in, Py_ssize_t n) {
    (void)unused;
    (void)n;
    return method(in[0], "__enter__");
}
static PyObject *leave(PyObject *unused, PyObject *const *in, Py_ssize_t n) {
    (void)unused;
    (void)n;
    return method(in[0], "__exit__");
}

enum { ENTER, LEAVE };
static PyMethodDef definition[] = {
    [ENTER] = {"__enter__", (PyCFunction)(void (*)(void))enter, METH_FASTCALL, NULL},
    [LEAVE] = {"__exit__", (PyCFunction)(void (*)(void))leave, METH_FASTCALL, NULL},
};
static PyObject *function[CC_COUNT(definition)]; /* called by replays */

int cc_scope_init(void) {
    for (int i = 0; i < CC_COUNT(definition); i++)
        if (function[i] == NULL && (function[i] = PyCFunction_New(&definition[i], NULL)) == NULL) return -1;
    return 0;
}

static int which(const CcTorch *t) {
    const char *dot = strrchr(t->name, '.');
    return strcmp(dot, ".__enter__") == 0 ? ENTER : strcmp(dot, ".__exit__") == 0 ? LEAVE : -1;
}

/* The C++ object of a block that was entered before the trace began. */
static bool from_outside(CcRec *rec, PyObject *object) {
    return !cc_tens_constant(object) && cc_value_origin(rec, object) == CC_O_SOURCE;
}

static const char HOLDER[] = "_inference_mode_context"; /* the attribute of torch.inference_mode with the C++ object */

/* The torch.inference_mode whose __exit__ leaves the block of the C++ object; NULL: other code does. */
static PyObject *holder(CcRec *rec, const CcAct *act, PyObject *object) {
    PyObject *self = act->code->n_locals > 0 ? cc_act_get(act, 0) : NULL;
    PyObject *dict = self != NULL && cc_node_nameable(rec, self, 0) ? cc_obj_dict(self) : NULL;
    return dict != NULL && cc_obj_item(dict, HOLDER) == object ? self : NULL;
}

CcGo cc_scope_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t) {
    bool known = c->n > 0 && c->kwnames == NULL && cc_node_nameable(rec, c->in[0], 0) &&
                 (which(t) >= 0 || PyBool_Check(c->in[0]));
    /* The state that a block of inference mode entered before the call restores is unknown. */
    if (which(t) == LEAVE && from_outside(rec, c->in[0]))
        known = known && rec->frame.n > 0 && rec->frame.at[0].kept && holder(rec, act, c->in[0]) != NULL;
    return known ? CC_OK
                 : cc_rec_break(rec, act, CC_R_TORCH_EFFECT,
                                "torch.inference_mode leaves a block that was entered before the call");
}

CcGo cc_scope_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t, PyObject *result) {
    const int f = which(t);
    PyObject *self = f == LEAVE && from_outside(rec, c->in[0]) ? holder(rec, act, c->in[0]) : NULL;
    PyObject *const in[] = {c->in[0], self, cc_mode_grad_now() ? Py_True : Py_False};
    CcCallSpec spec = {.form = CC_F_CALL,
                       .target = c->func,
                       .in = in,
                       .n = self != NULL ? CC_COUNT(in) : 1,
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

bool cc_scope_is(const CcAction *a) {
    return a->state && (a->target == function[ENTER] || a->target == function[LEAVE]);
}

bool cc_scope_enters(const CcAction *a) { return a->target == function[ENTER]; }

/* A C++ object can be entered once. The torch.inference_mode that will leave the block gets another one, which restores
 * the state around the block, as grad mode was when the block was left. */
static PyObject *enter_again(PyObject *self, PyObject *left, bool grad) {
    PyObject *mode = PyObject_GetAttrString(self, "mode"), *made = NULL;
    cc_mode_set_grad(grad);
    if (mode != NULL) made = PyObject_CallOneArg((PyObject *)Py_TYPE(left), mode);
    Py_XDECREF(mode);
    if (made != NULL && PyObject_SetAttrString(self, HOLDER, made) < 0) Py_CLEAR(made);
    return made;
}

int cc_scope_undo(const CcAction *a, PyObject *const *in) {
    PyObject *r = a->target == function[ENTER] ? method(in[0], "__exit__")
                  : a->n > 1                   ? enter_again(in[1], in[0], in[2] == Py_True)
                                               : method(in[0], "__enter__");
    Py_XDECREF(r);
    return r != NULL ? 0 : -1;
}
