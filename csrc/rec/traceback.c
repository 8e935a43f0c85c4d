/* Tracebacks of exceptions that a recording raised and caught, and that are still alive when it ends. A replay raises
 * nothing, so its exceptions get a copy of the recorded traceback: the same functions and lines, with empty frames,
 * since the real ones hold the recorded call's tensors. If code of the chain inspects frames, the raise is a break
 * instead. */
#include "rec_int.h"

#include <frameobject.h>

enum { MAX_ENTRIES = 64 };

static PyObject *copy_entry(PyTracebackObject *tb, PyObject *next) {
    PyCodeObject *co = PyFrame_GetCode(tb->tb_frame);
    PyObject *globals = PyObject_GetAttrString((PyObject *)tb->tb_frame, "f_globals");
    PyObject *line = PyObject_GetAttrString((PyObject *)tb, "tb_lineno"); /* tb->tb_lineno may not be computed yet */
    PyFrameObject *frame = globals != NULL && line != NULL ? PyFrame_New(PyThreadState_Get(), co, globals, NULL) : NULL;
    PyObject *copy = frame != NULL ? PyObject_CallFunction((PyObject *)&PyTraceBack_Type, "OOiO", next,
                                                           (PyObject *)frame, tb->tb_lasti, line)
                                   : NULL;
    Py_XDECREF((PyObject *)frame);
    Py_XDECREF(line);
    Py_XDECREF(globals);
    Py_DECREF((PyObject *)co);
    return copy;
}

/* NULL: it has none. with_traceback(None) leaves None in the exception. */
static CC_NEW PyObject *traceback_of(PyObject *exception) {
    PyObject *tb = PyException_GetTraceback(exception);
    if (tb == Py_None) Py_CLEAR(tb);
    return tb;
}

bool cc_traceback_read(CcRec *rec, PyObject *exception) {
    PyObject *first = traceback_of(exception);
    Py_XDECREF(first);
    if (first != NULL && cc_idle_looked(rec)) rec->sites->tracebacks = true;
    return first != NULL && rec->sites->tracebacks;
}

PyObject *cc_traceback_copy(PyObject *exception) {
    PyObject *first = traceback_of(exception), *copy = Py_NewRef(Py_None);
    PyTracebackObject *at[MAX_ENTRIES];
    int n = 0;
    for (PyTracebackObject *tb = (PyTracebackObject *)first; tb != NULL && n < MAX_ENTRIES; tb = tb->tb_next)
        at[n++] = tb;
    while (n > 0 && copy != NULL) {
        PyObject *longer = copy_entry(at[--n], copy);
        Py_SETREF(copy, longer);
    }
    Py_XDECREF(first);
    if (copy == NULL) cc_raised_clear();
    return copy;
}

/* Where the exception was raised: the innermost entry of its traceback. */
CC_NEW PyCodeObject *cc_traceback_origin(PyObject *traceback, int *pc) {
    PyTracebackObject *tb = (PyTracebackObject *)traceback;
    while (tb != NULL && tb->tb_next != NULL) tb = tb->tb_next;
    PyCodeObject *co = tb != NULL ? PyFrame_GetCode(tb->tb_frame) : NULL;
    const CcCode *code = co != NULL ? cc_code_get(co) : NULL;
    *pc = code != NULL ? cc_code_at(code, tb->tb_lasti / 2) : -1; /* a code unit has two bytes */
    if (*pc < 0) Py_CLEAR(co);
    return co;
}
