/* Exceptions that ccompile clears because it takes another path, and warnings that must not become exceptions. */
#include "py_int.h"

/* Runs in the main thread where CPython next looks for signals. */
static int raise_again(void *exception) {
    PyObject *e = exception;
    PyErr_SetObject((PyObject *)Py_TYPE(e), e);
    Py_DECREF(e);
    return -1;
}

static PyObject *taken(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value != NULL && traceback != NULL) PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

void cc_raised_clear(void) {
    if (PyErr_Occurred() == NULL) return;
    if (!PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        return;
    }
    PyObject *interrupt = taken();
    if (interrupt != NULL && Py_AddPendingCall(raise_again, interrupt) == 0) return;
    Py_XDECREF(interrupt); /* too many calls are pending */
    PyErr_SetInterrupt();
}

void cc_raised_warn(PyObject *text) {
    if (text == NULL || PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "%U", text) < 0) {
        cc_raised_clear();
        PyObject *logging = text != NULL ? PyImport_ImportModule("logging") : NULL;
        PyObject *log = logging != NULL ? PyObject_CallMethod(logging, "getLogger", "s", "ccompile") : NULL;
        Py_XDECREF(log != NULL ? PyObject_CallMethod(log, "warning", "sO", "%s", text) : NULL);
        Py_XDECREF(log);
        Py_XDECREF(logging);
        cc_raised_clear();
    }
    Py_XDECREF(text);
}
