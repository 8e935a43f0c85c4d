/* torch's functions in Python under a default device (tens/devmode.c). While a torch-function mode is active, they find
 * that they are overridden: has_torch_function() is true, and handle_torch_function() takes the mode off the stack, calls
 * them again and puts it back. As a recording, that would be two graph breaks. A DeviceContext changes nothing but calls
 * of factories without a device, so a function that has none does the same at once: here the modes don't make
 * has_torch_function() true. */
#include "rec_events.h"

static PyObject *factories; /* the names of functions that a DeviceContext gives a device */

static bool find_factories(void) {
    if (factories != NULL) return true;
    PyObject *ns = cc_obj_run("from torch.utils._device import _device_constructors\n"
                              "names = frozenset(f.__name__ for f in _device_constructors())\n");
    if (ns == NULL) cc_raised_clear();
    else factories = Py_XNewRef(cc_obj_item(ns, "names"));
    Py_XDECREF(ns);
    return factories != NULL;
}

static bool is_attr(const CcAct *act, const CcInsn *insn, const char *name) {
    return insn->op == CC_INSN_ATTR &&
           PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(act->co->co_names, insn->arg), name) == 0;
}

/* Whether the call of what instruction i loads ends in `device=x.device`: a tensor's device is never None, so the mode
 * changes nothing. The call is the first one that leaves its result where the attribute's object was, or in the slot
 * below, where a call that does not use the method form has a NULL. */
static bool has_device(const CcAct *act, int i) {
    const CcInsn *insn = act->code->insn, *end = insn + act->code->n - 1, *call = &insn[i + 1];
    while (call < end && call->depth >= insn[i].depth &&
           !(call->op == CC_INSN_CALL && (call[1].depth == insn[i].depth || call[1].depth == insn[i].depth - 1)))
        call++;
    if (call >= end || call->op != CC_INSN_CALL || call->depth < insn[i].depth) return false;
    const bool on_stack = call->aux < 0 && call[-1].op == CC_INSN_CONST; /* where CPython 3.13 has the names */
    const int names = on_stack ? call[-1].arg : call->aux;
    PyObject *tuple = names >= 0 ? PyTuple_GET_ITEM(act->co->co_consts, names) : NULL;
    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) == 0) return false;
    PyObject *last = PyTuple_GET_ITEM(tuple, PyTuple_GET_SIZE(tuple) - 1);
    return PyUnicode_Check(last) && PyUnicode_CompareWithASCIIString(last, "device") == 0 &&
           is_attr(act, &call[on_stack ? -2 : -1], "device");
}

/* Whether the code calls a factory without a device; torch's functions name factories as attributes of torch. */
static bool makes_tensors(const CcAct *act) {
    for (int i = 0; i < act->code->n; i++) {
        const CcInsn *insn = &act->code->insn[i];
        if (insn->op == CC_INSN_ATTR && !has_device(act, i) &&
            PySet_Contains(factories, PyTuple_GET_ITEM(act->co->co_names, insn->arg)) != 0)
            return true;
    }
    return false;
}

static bool of_torch(const CcAct *act) {
    const char *name = cc_rec_module(act->func->func_globals);
    return name != NULL && (strcmp(name, "torch") == 0 || strncmp(name, "torch.", 6) == 0);
}

/* handle_torch_function() calls what the module names now: a program may have replaced it and call the old one. */
static bool is_named(CcRec *rec, const CcAct *act) {
    PyObject *globals = act->func->func_globals, *name = act->co->co_name;
    PyObject *named = PyDict_GetItemWithError(globals, name);
    if (named == NULL) return true; /* a method */
    cc_value_read_key(rec, cc_value_const_source(rec, globals), name, named);
    return named == (PyObject *)act->func;
}

bool cc_override_asks(const CcTorch *t) { return t->name != NULL && strstr(t->name, "_has_torch_function") != NULL; }

CcGo cc_override_before(CcRec *rec, const CcAct *act, CcEvent *ev, const CcCalled *c) {
    if (!cc_mode_device_now() || !of_torch(act) || !is_named(rec, act)) return CC_OK;
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
    if (index == NULL) cc_raised_clear();
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
