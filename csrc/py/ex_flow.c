/* Jumps, iteration, unpacking and returning. */
#include "py_int.h"

CcDo cc_ex_JUMP(CcRun *r, const CcInsn *in) {
    r->next = in->target;
    return CC_DO_NEXT;
}
CcDo cc_ex_JUMP_BACK(CcRun *r, const CcInsn *in) {
    r->next = in->target;
    return CC_DO_NEXT;
}
CcDo cc_ex_JUMP_IF(CcRun *r, const CcInsn *in) {
    int truth;
    CcDo done = cc_ex_truth(r, cc_top(r, 1), CC_EV_JUMP, &truth);
    if (done != CC_DO_NEXT) return done;
    cc_drop(r, 1);
    if (truth == in->arg) r->next = in->target;
    return CC_DO_NEXT;
}
CcDo cc_ex_JUMP_IF_NONE(CcRun *r, const CcInsn *in) {
    bool none = cc_top(r, 1) == Py_None;
    cc_drop(r, 1);
    if (none == (in->arg != 0)) r->next = in->target;
    return CC_DO_NEXT;
}
CcDo cc_ex_JUMP_OR_POP(CcRun *r, const CcInsn *in) {
    int truth;
    CcDo done = cc_ex_truth(r, cc_top(r, 1), CC_EV_JUMP, &truth);
    if (done != CC_DO_NEXT) return done;
    if (truth == in->arg) r->next = in->target;
    else cc_drop(r, 1);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ iteration */

CcDo cc_ex_ITER(CcRun *r, const CcInsn *in) {
    (void)in;
    CcEvent ev = {.kind = CC_EV_ITER, .in = cc_peek(r, 1), .n = 1};
    CC_STEP(r, &ev, PyObject_GetIter(cc_top(r, 1)));
    return cc_replace(r, 1, ev.result);
}

/* The next value; NULL without an error: exhausted. */
static PyObject *next_value(PyObject *iterator) {
    PyObject *value = Py_TYPE(iterator)->tp_iternext(iterator);
    if (!value && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_StopIteration)) cc_raised_clear();
    return value;
}

CcDo cc_ex_NEXT(CcRun *r, const CcInsn *in) {
    CcEvent ev = {.kind = CC_EV_NEXT, .in = cc_peek(r, 1), .n = 1};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_PERFORM) {
        ev.result = next_value(cc_top(r, 1));
        done = cc_run_after(r, &ev, !ev.result && PyErr_Occurred());
    } else if (done == CC_DO_RAISED && PyErr_ExceptionMatches(PyExc_StopIteration)) {
        cc_raised_clear(); /* from a rebuilt __next__ */
        done = CC_DO_NEXT;
    }
    if (done != CC_DO_NEXT) return done;
    if (ev.result) {
        cc_push(r, ev.result);
    } else {
        cc_drop(r, 1);
        r->next = in->target;
    }
    return CC_DO_NEXT;
}

CcDo cc_ex_YIELD_FROM_ITER(CcRun *r, const CcInsn *in) {
    if (PyCoro_CheckExact(cc_top(r, 1))) return CC_DO_HAND; /* TypeError: CPython raises it */
    return PyGen_CheckExact(cc_top(r, 1)) ? CC_DO_NEXT : cc_ex_ITER(r, in);
}

CcDo cc_ex_SEND(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, 2), cc_top(r, 1)};
    CcEvent ev = {.kind = CC_EV_SEND, .in = ops, .n = 2};
    CcDo done = cc_run_before(r, &ev);
    PySendResult how = PYGEN_ERROR;
    if (done == CC_DO_PERFORM) {
        how = PyIter_Send(ops[0], ops[1], &ev.result);
        done = cc_run_after(r, &ev, how == PYGEN_ERROR);
    }
    if (done != CC_DO_NEXT) return done;
    if (how == PYGEN_RETURN) r->next = in->target;
    return cc_replace(r, how == PYGEN_RETURN && in->arg == 1 ? 2 : 1, ev.result);
}

CcDo cc_ex_END_SEND(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject *value = cc_pop(r);
    return cc_replace(r, 1, value);
}

/* 3.12: the handler that CPython's compiler adds around `yield from`. After throw() or close() on a delegating
 * generator it catches what leaves the inner iterator; StopIteration means that the iterator returned. */
CcDo cc_ex_SEND_RAISED(CcRun *r, const CcInsn *in) {
    (void)in;
    PyObject *raised = cc_top(r, 1), *ops[] = {cc_top(r, 3), raised};
    if (!PyErr_GivenExceptionMatches(raised, PyExc_StopIteration)) {
        PyErr_Restore(Py_NewRef(Py_TYPE(raised)), Py_NewRef(raised), PyException_GetTraceback(raised));
        return CC_DO_RERAISED;
    }
    CcEvent ev = {.kind = CC_EV_SEND, .in = ops, .n = 2};
    CC_STEP(r, &ev, Py_NewRef(((PyStopIterationObject *)raised)->value));
    cc_drop(r, 3);
    cc_push(r, Py_NewRef(Py_None));
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ unpacking */

static void not_enough(int before, int after, Py_ssize_t got) {
    if (after < 0) PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %d, got %zd)", before, got);
    else
        PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %zd)", before + after,
                     got);
}

/* Takes the first `before` values; -1 with the error set. */
static int take(PyObject *iterator, int before, int after, PyObject **out) {
    for (int i = 0; i < before; i++) {
        out[i] = PyIter_Next(iterator);
        if (out[i]) continue;
        if (!PyErr_Occurred()) not_enough(before, after, i);
        return -1;
    }
    return 0;
}

/* Takes the rest: a list for the starred target, then the last `after` values. */
static int take_rest(PyObject *iterator, int before, int after, PyObject **out) {
    PyObject *list = PySequence_List(iterator);
    if (!list) return -1;
    out[before] = list;
    Py_ssize_t n = PyList_GET_SIZE(list);
    if (n < after) {
        not_enough(before, after, before + n);
        return -1;
    }
    for (int i = 0; i < after; i++) out[before + 1 + i] = Py_NewRef(PyList_GET_ITEM(list, n - after + i));
    return after ? PyList_SetSlice(list, n - after, n, NULL) : 0;
}

/* From 3.14 on the message says how many there are if that is known. */
static void too_many(PyObject *iterable, int before) {
    const bool counted = PyTuple_CheckExact(iterable) || PyList_CheckExact(iterable) || PyDict_CheckExact(iterable);
    const Py_ssize_t got = PY_VERSION_HEX >= 0x030E0000 && counted ? PyObject_Size(iterable) : -1;
    if (got > before) PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d, got %zd)", before, got);
    else PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", before);
}

static int take_end(PyObject *iterable, PyObject *iterator, int before) {
    PyObject *extra = PyIter_Next(iterator);
    if (!extra) return PyErr_Occurred() ? -1 : 0;
    Py_DECREF(extra);
    too_many(iterable, before);
    return -1;
}

/* As unpack_iterable in CPython's evaluator; `after` is -1 without a starred target. The caller initialises `out` to
 * NULL. */
static int unpack(PyObject *iterable, int before, int after, PyObject **out) {
    PyObject *iterator = PyObject_GetIter(iterable);
    if (!iterator) {
        if (PyErr_ExceptionMatches(PyExc_TypeError) && !Py_TYPE(iterable)->tp_iter && !PySequence_Check(iterable))
            PyErr_Format(PyExc_TypeError, "cannot unpack non-iterable %.200s object", Py_TYPE(iterable)->tp_name);
        return -1;
    }
    int status = take(iterator, before, after, out);
    if (status == 0)
        status = after < 0 ? take_end(iterable, iterator, before) : take_rest(iterator, before, after, out);
    Py_DECREF(iterator);
    return status;
}

/* A tuple or list of exactly the right length needs no iterator. */
static bool unpack_exact(PyObject *seq, int n, PyObject **out) {
    bool tuple = PyTuple_CheckExact(seq), list = PyList_CheckExact(seq);
    if ((!tuple && !list) || Py_SIZE(seq) != n) return false;
    for (int i = 0; i < n; i++) out[i] = Py_NewRef(tuple ? PyTuple_GET_ITEM(seq, i) : PyList_GET_ITEM(seq, i));
    return true;
}

/* CC_DONE: takes the values from the observer's tuple. */
static bool unpack_result(PyObject *given, int n, PyObject **out) {
    bool good = given && PyTuple_CheckExact(given) && unpack_exact(given, n, out);
    Py_XDECREF(given);
    return good;
}

static CcDo unpack_step(CcRun *r, int before, int after, PyObject **out, int n) {
    PyObject *seq = cc_top(r, 1);
    CcEvent ev = {.kind = CC_EV_UNPACK, .in = &seq, .n = 1, .arg = n};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_NEXT) return unpack_result(ev.result, n, out) ? CC_DO_NEXT : CC_DO_RAISED;
    if (done != CC_DO_PERFORM) return done;
    int status = after < 0 && unpack_exact(seq, n, out) ? 0 : unpack(seq, before, after, out);
    ev.out = out;
    ev.n_out = status < 0 ? 0 : n;
    return cc_run_after(r, &ev, status < 0);
}

static CcDo unpack_to_stack(CcRun *r, int before, int after) {
    enum { INLINE = 16 };
    int n = before + (after < 0 ? 0 : after + 1);
    PyObject *local[INLINE] = {NULL}, **out = n <= INLINE ? local : PyMem_Calloc((size_t)n, sizeof *out);
    CcDo done = out ? unpack_step(r, before, after, out, n) : CC_DO_RAISED;
    if (done == CC_DO_NEXT) {
        PyObject *seq = cc_pop(r);
        for (int i = n - 1; i >= 0; i--) cc_push(r, out[i]);
        cc_release(r, seq);
    } else {
        for (int i = 0; out && i < n; i++) Py_XDECREF(out[i]);
    }
    if (out != local) PyMem_Free(out);
    return done;
}

CcDo cc_ex_UNPACK(CcRun *r, const CcInsn *in) { return unpack_to_stack(r, in->arg, -1); }
CcDo cc_ex_UNPACK_EX(CcRun *r, const CcInsn *in) { return unpack_to_stack(r, in->arg, in->aux); }

/* ------------------------------------------------------------------ returning */

CcDo cc_ex_RETURN(CcRun *r, const CcInsn *in) {
    (void)in;
    r->value = cc_pop(r);
    return CC_DO_LEAVE;
}
CcDo cc_ex_RETURN_CONST(CcRun *r, const CcInsn *in) {
    CcEvent ev = {.kind = CC_EV_CONST, .arg = in->arg, .result = PyTuple_GET_ITEM(r->consts, in->arg)};
    cc_run_report_made(r, &ev);
    r->value = Py_NewRef(ev.result);
    return CC_DO_LEAVE;
}
