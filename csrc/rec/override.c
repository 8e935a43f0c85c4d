/* torch's functions in Python under a default device (tens/devmode.c). While a torch-function mode is active, they find
 * that they are overridden: has_torch_function() is true, and handle_torch_function() takes the mode off the stack, calls
 * them again and puts it back. As a recording, that would be two graph breaks. A DeviceContext changes nothing but calls
 * of factories, so a function that calls none does the same at once: here the modes don't make has_torch_function()
 * true. */
#include "rec_events.h"

static PyObject *factories; /* the names of functions that a DeviceContext gives a device */

static bool find_factories(void) {
    if (factories != NULL) return true;
    PyObject *ns = cc_obj_run("from torch.utils._device import _device_constructors\n"
                              "names = frozenset(f.__name__ for f in _device_constructors())\n");
    if (ns == NULL) PyErr_Clear();
    else factories = Py_XNewRef(PyDict_GetItemString(ns, "names"));
    Py_XDECREF(ns);
    return factories != NULL;
}

/* Whether the code names a factory; torch's functions call them as attributes of torch. */
static bool makes_tensors(const CcAct *act) {
    for (int i = 0; i < act->code->n; i++) {
        const CcInsn *insn = &act->code->insn[i];
        if (insn->op == CC_INSN_ATTR && PySet_Contains(factories, PyTuple_GET_ITEM(act->co->co_names, insn->arg)) != 0)
            return true;
    }
    return false;
}

static bool of_torch(const CcAct *act) {
    const char *name = cc_rec_module(act->func->func_globals);
    return name != NULL && (strcmp(name, "torch") == 0 || strncmp(name, "torch.", 6) == 0);
}

bool cc_override_asks(const CcTorch *t) { return t->name != NULL && strstr(t->name, "_has_torch_function") != NULL; }

CcGo cc_override_before(const CcAct *act, CcEvent *ev, const CcCalled *c) {
    if (!cc_mode_device_now() || !of_torch(act)) return CC_OK;
    const bool paused = cc_hook_pause(act->obs, true);
    const bool same = find_factories() && !makes_tensors(act);
    if (same) ev->result = cc_devmode_call_without(c->func, c->in, (size_t)c->n, NULL);
    cc_hook_pause(act->obs, paused);
    return same ? CC_DONE : CC_OK;
}

/* A device of several (cuda) gets the index of the current one, which no guard knows: the function is recorded. */
CcGo cc_override_device(CcRec *rec, const CcAct *act, CcEvent *ev, const CcCalled *c) {
    if (c->n > 0 || !PyFunction_Check(c->func) || !cc_mode_device_now() ||
        !cc_library_device((PyFunctionObject *)c->func) || cc_value_source(rec, c->func) < 0)
        return CC_OK;
    PyObject *device = cc_call_unseen(act, c->func, NULL, 0, NULL);
    PyObject *index = device != NULL ? PyObject_GetAttrString(device, "index") : NULL;
    if (index == NULL) PyErr_Clear();
    Py_XDECREF(index);
    if (index != Py_None) {
        Py_XDECREF(device);
        return CC_OK;
    }
    cc_guard_add_check(&rec->trace->guards, cc_value_source(rec, c->func), CC_CHK_IDENT, c->func, -1);
    cc_vec_push(&rec->keep, Py_NewRef(c->func));
    ev->result = device;
    return CC_DONE;
}
