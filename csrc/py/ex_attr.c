/* Instructions that access names, attributes and items, and imports. */
#include "py_int.h"

/* ------------------------------------------------------------------ globals */

CcDo cc_ex_GLOBAL(CcRun *r, const CcInsn *in) {
    PyObject *name = cc_name(r, in->arg), *scopes[] = {r->globals, r->builtins};
    PyObject *value = PyDict_GetItemWithError(r->globals, name);
    if (!value && !PyErr_Occurred()) value = PyDict_GetItemWithError(r->builtins, name);
    if (!value) { /* NameError, or a key comparison raised: CPython repeats the lookup */
        cc_raised_clear();
        return CC_DO_HAND;
    }
    CcEvent ev = {.kind = CC_EV_GLOBAL, .in = scopes, .n = 2, .name = name};
    CC_STEP(r, &ev, Py_NewRef(value));
    bool null = in->flags & CC_IF_NULL;
    if (null && !cc_optab.null_last) cc_push(r, NULL);
    cc_push(r, ev.result);
    if (null && cc_optab.null_last) cc_push(r, NULL);
    return CC_DO_NEXT;
}

static int set_global(CcRun *r, PyObject *name, PyObject *value) {
    return value ? PyDict_SetItem(r->globals, name, value) : PyDict_DelItem(r->globals, name);
}

CcDo cc_ex_STORE_GLOBAL(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {r->globals, cc_top(r, 1)};
    CcEvent ev = {.kind = CC_EV_STORE_GLOBAL, .in = ops, .n = 2, .name = cc_name(r, in->arg)};
    CC_STEP_INT(r, &ev, set_global(r, ev.name, ops[1]));
    cc_drop(r, 1);
    return CC_DO_NEXT;
}
CcDo cc_ex_DELETE_GLOBAL(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {r->globals, NULL};
    CcEvent ev = {.kind = CC_EV_STORE_GLOBAL, .in = ops, .n = 2, .name = cc_name(r, in->arg)};
    if (PyDict_Contains(r->globals, ev.name) != 1) { /* NameError */
        cc_raised_clear();
        return CC_DO_HAND;
    }
    CC_STEP_INT(r, &ev, set_global(r, ev.name, NULL));
    return CC_DO_NEXT;
}
CcDo cc_ex_BUILD_CLASS(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject *builder = cc_obj_item(r->builtins, "__build_class__");
    if (!builder) return CC_DO_HAND;
    CcEvent ev = {.kind = CC_EV_BUILD_CLASS};
    CC_STEP(r, &ev, Py_NewRef(builder));
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ attributes */

/* Replaces `n` operands by a method form's two values: an unbound function and its self, or NULL and a callable. */
static CcDo replace_method(CcRun *r, int n, PyObject *value, PyObject *self) {
    cc_drop(r, n);
    bool null_first = !self && !cc_optab.null_last;
    cc_push(r, null_first ? NULL : value);
    cc_push(r, null_first ? value : self);
    return CC_DO_NEXT;
}

static PyObject *get_method(PyObject *o, PyObject *name, int *unbound) {
    PyObject *method = NULL;
    *unbound = cc_frame_method(o, name, &method);
    return method;
}

CcDo cc_ex_ATTR(CcRun *r, const CcInsn *in) {
    PyObject *o = cc_top(r, 1);
    CcEvent ev = {.kind = CC_EV_ATTR, .in = cc_peek(r, 1), .n = 1, .name = cc_name(r, in->arg)};
    if (!(in->flags & CC_IF_NULL)) {
        CC_STEP(r, &ev, PyObject_GetAttr(o, ev.name));
        return cc_replace(r, 1, ev.result);
    }
    ev.flags = CC_EV_METHOD;
    CC_STEP(r, &ev, get_method(o, ev.name, &ev.arg));
    return replace_method(r, 1, ev.result, ev.arg ? Py_NewRef(o) : NULL);
}

/* super().name or super(C, self).name in one instruction (3.12): reported as a call and an attribute access. */
CcDo cc_ex_SUPER_ATTR(CcRun *r, const CcInsn *in) {
    PyObject **ops = cc_peek(r, 3);
    CcEvent call = {.kind = CC_EV_CALL, .in = ops, .n = 1 + in->aux};
    CC_STEP(r, &call, PyObject_Vectorcall(ops[0], ops + 1, (size_t)in->aux, NULL));
    PyObject *object = call.result;
    CcEvent ev = {.kind = CC_EV_ATTR, .in = &object, .n = 1, .name = cc_name(r, in->arg), .flags = CC_EV_INNER};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_PERFORM) {
        ev.result = PyObject_GetAttr(object, ev.name);
        done = cc_run_after(r, &ev, !ev.result);
    }
    Py_DECREF(object);
    if (done != CC_DO_NEXT) return done;
    return in->flags & CC_IF_NULL ? replace_method(r, 3, ev.result, NULL) : cc_replace(r, 3, ev.result);
}

CcDo cc_ex_STORE_ATTR(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, 1), cc_top(r, 2)};
    CcEvent ev = {.kind = CC_EV_STORE_ATTR, .in = ops, .n = 2, .name = cc_name(r, in->arg)};
    CC_STEP_INT(r, &ev, PyObject_SetAttr(ops[0], ev.name, ops[1]));
    cc_drop(r, 2);
    return CC_DO_NEXT;
}
CcDo cc_ex_DELETE_ATTR(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, 1), NULL};
    CcEvent ev = {.kind = CC_EV_STORE_ATTR, .in = ops, .n = 2, .name = cc_name(r, in->arg)};
    CC_STEP_INT(r, &ev, PyObject_SetAttr(ops[0], ev.name, NULL));
    cc_drop(r, 1);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ imports */

/* As import_name in CPython's evaluator: calls builtins.__import__ without locals, since functions have no locals
 * dict. */
static PyObject *import_name(CcRun *r, PyObject *importer, PyObject *name, PyObject *level, PyObject *fromlist) {
    PyObject *args[] = {name, r->globals, Py_None, fromlist, level};
    return PyObject_Vectorcall(importer, args, 5, NULL);
}

CcDo cc_ex_IMPORT_NAME(CcRun *r, const CcInsn *in) {
    PyObject *importer = cc_obj_item(r->builtins, "__import__");
    if (!importer) return CC_DO_HAND;
    PyObject **ops = cc_peek(r, 2);
    CcEvent ev = {.kind = CC_EV_IMPORT, .in = ops, .n = 2, .name = cc_name(r, in->arg)};
    CC_STEP(r, &ev, import_name(r, importer, ev.name, ops[0], ops[1]));
    return cc_replace(r, 2, ev.result);
}

/* A submodule whose import is in progress may not be an attribute yet (bpo-17636), but is in sys.modules. */
static PyObject *import_from(PyObject *module, PyObject *name) {
    PyObject *value = PyObject_GetAttr(module, name);
    if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    cc_raised_clear();
    PyObject *package = PyObject_GetAttrString(module, "__name__");
    PyObject *full = package && PyUnicode_Check(package) ? PyUnicode_FromFormat("%U.%U", package, name) : NULL;
    value = full ? PyImport_GetModule(full) : NULL;
    Py_XDECREF(full);
    Py_XDECREF(package);
    return value;
}

CcDo cc_ex_IMPORT_FROM(CcRun *r, const CcInsn *in) {
    PyObject *module = cc_top(r, 1);
    CcEvent ev = {.kind = CC_EV_ATTR, .in = &module, .n = 1, .name = cc_name(r, in->arg)};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_PERFORM) {
        ev.result = import_from(module, ev.name);
        if (!ev.result && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_AttributeError))) {
            cc_raised_clear();
            r->act.event = NULL;
            return CC_DO_HAND; /* ImportError: CPython composes the message */
        }
        done = cc_run_after(r, &ev, !ev.result);
    }
    if (done == CC_DO_NEXT) cc_push(r, ev.result);
    return done;
}

/* ------------------------------------------------------------------ items */

CcDo cc_ex_SUBSCR(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject **ops = cc_peek(r, 2);
    CcEvent ev = {.kind = CC_EV_SUBSCR, .in = ops, .n = 2};
    CC_STEP(r, &ev, PyObject_GetItem(ops[0], ops[1]));
    return cc_replace(r, 2, ev.result);
}
CcDo cc_ex_STORE_SUBSCR(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject **at = cc_peek(r, 3), *ops[] = {at[1], at[2], at[0]};
    CcEvent ev = {.kind = CC_EV_STORE_SUBSCR, .in = ops, .n = 3};
    CC_STEP_INT(r, &ev, PyObject_SetItem(ops[0], ops[1], ops[2]));
    cc_drop(r, 3);
    return CC_DO_NEXT;
}
CcDo cc_ex_DELETE_SUBSCR(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject **at = cc_peek(r, 2), *ops[] = {at[0], at[1], NULL};
    CcEvent ev = {.kind = CC_EV_STORE_SUBSCR, .in = ops, .n = 3};
    CC_STEP_INT(r, &ev, PyObject_DelItem(ops[0], ops[1]));
    cc_drop(r, 2);
    return CC_DO_NEXT;
}

/* A subscription with a slice object that is dropped after the step. */
static CcDo slice_step(CcRun *r, CcEvent *ev, PyObject **ops) {
    CcDo done = cc_run_before(r, ev);
    if (done == CC_DO_PERFORM) {
        int status = 0;
        if (ev->kind == CC_EV_SUBSCR) {
            ev->result = PyObject_GetItem(ops[0], ops[1]);
            status = ev->result ? 0 : -1;
        } else {
            status = PyObject_SetItem(ops[0], ops[1], ops[2]);
        }
        done = cc_run_after(r, ev, status < 0);
    }
    Py_DECREF(ops[1]);
    return done;
}

CcDo cc_ex_SLICE(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject **at = cc_peek(r, 3), *ops[] = {at[0], PySlice_New(at[1], at[2], NULL)};
    if (!ops[1]) return CC_DO_RAISED;
    CcEvent ev = {.kind = CC_EV_SUBSCR, .in = ops, .n = 2};
    CcDo done = slice_step(r, &ev, ops);
    return done == CC_DO_NEXT ? cc_replace(r, 3, ev.result) : done;
}
CcDo cc_ex_STORE_SLICE(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject **at = cc_peek(r, 4), *ops[] = {at[1], PySlice_New(at[2], at[3], NULL), at[0]};
    if (!ops[1]) return CC_DO_RAISED;
    CcEvent ev = {.kind = CC_EV_STORE_SUBSCR, .in = ops, .n = 3};
    CcDo done = slice_step(r, &ev, ops);
    if (done != CC_DO_NEXT) return done;
    Py_CLEAR(ev.result);
    cc_drop(r, 4);
    return CC_DO_NEXT;
}
