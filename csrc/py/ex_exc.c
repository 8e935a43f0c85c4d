/* Exceptions and context managers. As in CPython, the thread's exc_info is the stack of handled exceptions. */
#include "py_int.h"

CcDo cc_ex_PUSH_EXC(CcRun *r, const CcInsn *in) {
    (void)in;
    _PyErr_StackItem *handled = r->act.ts->exc_info;
    PyObject *exception = cc_pop(r);
    cc_push(r, handled->exc_value ? handled->exc_value : Py_NewRef(Py_None));
    handled->exc_value = Py_NewRef(exception);
    cc_push(r, exception);
    return CC_DO_NEXT;
}

CcDo cc_ex_POP_EXC(CcRun *r, const CcInsn *in) {
    (void)in;
    _PyErr_StackItem *handled = r->act.ts->exc_info;
    PyObject *previous = cc_pop(r), *old = handled->exc_value;
    if (previous == Py_None) Py_CLEAR(previous); /* NULL and None both mean "none" */
    handled->exc_value = previous;
    cc_release(r, old);
    return CC_DO_NEXT;
}

/* As check_except_type_valid in CPython's evaluator. */
static bool catchable(PyObject *type) {
    if (!PyTuple_Check(type)) return PyExceptionClass_Check(type);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); i++) {
        if (!PyExceptionClass_Check(PyTuple_GET_ITEM(type, i))) return false;
    }
    return true;
}

CcDo cc_ex_EXC_MATCH(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject *type = cc_top(r, 1);
    if (!catchable(type)) return CC_DO_HAND; /* TypeError: CPython raises it */
    bool matches = PyErr_GivenExceptionMatches(cc_top(r, 2), type);
    CcEvent ev = {.kind = CC_EV_EXC_MATCH, .in = cc_peek(r, 2), .n = 2, .result = matches ? Py_True : Py_False};
    cc_run_report_made(r, &ev);
    return cc_replace(r, 1, Py_NewRef(ev.result));
}

/* As stopiteration_error() of CPython 3.12, for plain generators: the evaluator runs no other kind. */
CcDo cc_ex_STOP_ERROR(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject *left = cc_top(r, 1);
    if (!PyErr_GivenExceptionMatches(left, PyExc_StopIteration)) return CC_DO_NEXT;
    PyObject *error = PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration");
    if (!error) return CC_DO_RAISED;
    PyException_SetCause(error, Py_NewRef(left));
    PyException_SetContext(error, Py_NewRef(left));
    return cc_replace(r, 1, error);
}

/* ------------------------------------------------------------------ raising */

/* Instantiates an exception class in a stack slot, as an observed call; CPython handles other objects. The instance
 * replaces the class in its slot, so that the instruction can be restarted. */
static CcDo instantiate(CcRun *r, PyObject **slot) {
    if (PyExceptionInstance_Check(*slot)) return CC_DO_NEXT;
    if (!PyExceptionClass_Check(*slot)) return CC_DO_HAND;
    CcEvent ev = {.kind = CC_EV_CALL, .in = slot, .n = 1};
    CC_STEP(r, &ev, PyObject_CallNoArgs(*slot));
    if (!PyExceptionInstance_Check(ev.result)) {
        PyErr_Format(PyExc_TypeError, "calling %R should have returned an instance of BaseException, not %R", *slot,
                     Py_TYPE(ev.result));
        Py_DECREF(ev.result);
        return CC_DO_RAISED;
    }
    Py_SETREF(*slot, ev.result);
    return CC_DO_NEXT;
}

static CcDo raise_handled(void) {
    PyObject *value = PyErr_GetHandledException();
    if (!value || value == Py_None) {
        Py_XDECREF(value);
        return CC_DO_HAND; /* "No active exception to reraise" */
    }
    PyErr_Restore(Py_NewRef(Py_TYPE(value)), value, PyException_GetTraceback(value));
    return CC_DO_RERAISED;
}

/* As do_raise in CPython's evaluator. */
CcDo cc_ex_RAISE(CcRun *r, const CcInsn *in) {
    if (in->arg == 0) return raise_handled();
    PyObject **value = cc_peek(r, in->arg), **cause = in->arg == 2 ? cc_peek(r, 1) : NULL;
    bool bad_cause =
        cause && *cause != Py_None && !PyExceptionClass_Check(*cause) && !PyExceptionInstance_Check(*cause);
    if (bad_cause) return CC_DO_HAND; /* TypeError: CPython raises it */
    CcEvent ev = {.kind = CC_EV_RAISE, .in = value, .n = 1};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_BREAK || done == CC_DO_HAND) return done;
    done = instantiate(r, value);
    if (done != CC_DO_NEXT) return done;
    if (cause) {
        if (*cause != Py_None) done = instantiate(r, cause);
        if (done != CC_DO_NEXT) return done;
        PyException_SetCause(*value, *cause == Py_None ? NULL : Py_NewRef(*cause));
    }
    PyErr_SetObject((PyObject *)Py_TYPE(*value), *value);
    return CC_DO_RAISED;
}

/* Re-raises as if from the original instruction, whose offset is `arg` values below the exception. */
CcDo cc_ex_RERAISE(CcRun *r, const CcInsn *in) {
    if (in->arg) {
        PyObject *lasti = cc_top(r, in->arg + 1);
        if (!PyLong_Check(lasti)) return CC_DO_HAND;
        r->raise_unit = (int)PyLong_AsLong(lasti);
        cc_frame_set_position(r->act.frame, r->raise_unit, r->act.depth);
    }
    PyObject *value = cc_pop(r);
    PyErr_Restore(Py_NewRef(Py_TYPE(value)), value, PyException_GetTraceback(value));
    return CC_DO_RERAISED;
}

/* ------------------------------------------------------------------ context managers */

static PyObject *interned(PyObject **cache, const char *text) {
    if (!*cache) *cache = PyUnicode_InternFromString(text);
    return *cache;
}

/* As _PyObject_LookupSpecial: looks the name up on the type and binds it to the object; NULL without an error if
 * absent. */
static PyObject *bind_special(PyObject *o, PyObject *name) {
    PyObject *found = _PyType_Lookup(Py_TYPE(o), name);
    if (!found) return NULL;
    Py_INCREF(found);
    descrgetfunc get = Py_TYPE(found)->tp_descr_get;
    if (!get) return found;
    PyObject *bound = get(found, o, (PyObject *)Py_TYPE(o));
    Py_DECREF(found);
    return bound;
}

static CcDo special_step(CcRun *r, PyObject *manager, PyObject *name, PyObject **bound) {
    CcEvent ev = {.kind = CC_EV_SPECIAL, .in = &manager, .n = 1, .name = name, .flags = CC_EV_INNER};
    CC_STEP(r, &ev, bind_special(manager, name));
    *bound = ev.result;
    return CC_DO_NEXT;
}

static CcDo enter_step(CcRun *r, PyObject *enter, PyObject **entered) {
    CcEvent ev = {.kind = CC_EV_CALL, .in = &enter, .n = 1, .flags = CC_EV_INNER};
    CC_STEP(r, &ev, PyObject_CallNoArgs(enter));
    *entered = ev.result;
    return CC_DO_NEXT;
}

/* The manager stays on the stack until every step has succeeded, so that the instruction can be restarted (rewind).
 * SELF: the result has the form of a callable and its self; a bound method needs no self. */
CcDo cc_ex_WITH(CcRun *r, const CcInsn *in) {
    static PyObject *enter_name, *exit_name;
    PyObject *manager = cc_top(r, 1);
    PyObject *enter = interned(&enter_name, "__enter__"), *leave = interned(&exit_name, "__exit__");
    if (!enter || !leave) return CC_DO_RAISED;
    if (!_PyType_Lookup(Py_TYPE(manager), enter) || !_PyType_Lookup(Py_TYPE(manager), leave)) return CC_DO_HAND;
    CcEvent ev = {.kind = CC_EV_WITH, .in = &manager, .n = 1};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_BREAK || done == CC_DO_HAND) return done;
    PyObject *bound_enter = NULL, *bound_leave = NULL, *entered = NULL;
    done = special_step(r, manager, enter, &bound_enter);
    if (done == CC_DO_NEXT) done = special_step(r, manager, leave, &bound_leave);
    if (done == CC_DO_NEXT) done = enter_step(r, bound_enter, &entered);
    Py_XDECREF(bound_enter);
    if (done != CC_DO_NEXT) {
        Py_XDECREF(bound_leave);
        return done;
    }
    (void)cc_replace(r, 1, bound_leave);
    if (in->flags & CC_IF_SELF) cc_push(r, NULL);
    cc_push(r, entered);
    return CC_DO_NEXT;
}

/* The exit and its self, if it has one, are below lasti, the previous exception and the exception. */
CcDo cc_ex_WITH_EXCEPT(CcRun *r, const CcInsn *in) {
    PyObject *value = cc_top(r, 1), *traceback = PyException_GetTraceback(value);
    PyObject *ops[] = {NULL, cc_top(r, 4), (PyObject *)Py_TYPE(value), value, traceback ? traceback : Py_None};
    int first = 1;
    if (in->flags & CC_IF_SELF) {
        first = ops[1] != NULL ? 0 : 1;
        ops[first] = cc_top(r, 5);
    }
    CcEvent ev = {.kind = CC_EV_CALL, .in = ops + first, .n = CC_COUNT(ops) - first};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_PERFORM) {
        ev.result = PyObject_Vectorcall(ops[first], ops + first + 1, (size_t)ev.n - 1, NULL);
        done = cc_run_after(r, &ev, !ev.result);
    }
    Py_XDECREF(traceback);
    if (done == CC_DO_NEXT) cc_push(r, ev.result);
    return done;
}
