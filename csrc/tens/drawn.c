/* The state of torch.default_generator, from which torch draws random numbers on the CPU. */
#include "tens_int.h"

static struct {
    PyObject *get, *set; /* its methods */
} D;

int cc_drawn_init(void) {
    PyObject *generator = cc_obj_of_module("torch", "default_generator");
    D.get = generator != NULL ? PyObject_GetAttrString(generator, "get_state") : NULL;
    D.set = generator != NULL ? PyObject_GetAttrString(generator, "set_state") : NULL;
    Py_XDECREF(generator);
    return D.get != NULL && D.set != NULL ? 0 : -1;
}

PyObject *cc_drawn_state(void) { return PyObject_CallNoArgs(D.get); }

int cc_drawn_restore(PyObject *state) {
    PyObject *r = PyObject_CallOneArg(D.set, state);
    Py_XDECREF(r);
    return r != NULL ? 0 : -1;
}

bool cc_drawn_since(PyObject *state) {
    PyObject *now = cc_drawn_state();
    CcTensor a, b;
    bool differs = now == NULL;
    if (now != NULL) {
        cc_tens_read(state, false, &a);
        cc_tens_read(now, false, &b);
        differs = memcmp(a.data, b.data, (size_t)cc_type_numel(&a.type)) != 0;
    }
    cc_raised_clear();
    Py_XDECREF(now);
    return differs;
}
