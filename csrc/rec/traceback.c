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

bool cc_traceback_looked(CcRec *rec, PyObject *exception) {
    PyObject *first = traceback_of(exception);
    Py_XDECREF(first);
    if (first != NULL && cc_idle_looked(rec)) rec->sites->tracebacks = true;
    return first != NULL && rec->sites->tracebacks;
}

/* Copies the entries from `first` up to `end`, in front of `rest`. The outermost MAX_ENTRIES, if there are more. */
static CC_NEW PyObject *copy_entries(PyObject *first, PyObject *end, PyObject *rest) {
    PyObject *copy = Py_NewRef(rest);
    PyTracebackObject *at[MAX_ENTRIES];
    int n = 0;
    for (PyObject *tb = first; tb != NULL && tb != end && n < MAX_ENTRIES; tb = (PyObject *)at[n - 1]->tb_next)
        at[n++] = (PyTracebackObject *)tb;
    while (n > 0 && copy != NULL) {
        PyObject *longer = copy_entry(at[--n], copy);
        Py_SETREF(copy, longer);
    }
    if (copy == NULL) cc_raised_clear();
    return copy;
}

PyObject *cc_traceback_copy(PyObject *exception) {
    PyObject *first = traceback_of(exception), *copy = copy_entries(first, NULL, Py_None);
    Py_XDECREF(first);
    return copy;
}

/* Called by replays: puts copies of `entries` in front of the exception's traceback. */
static PyObject *extend(PyObject *entries, PyObject *exception) {
    PyObject *now = traceback_of(exception), *longer = copy_entries(entries, NULL, now != NULL ? now : Py_None);
    const bool ok = longer != NULL && PyException_SetTraceback(exception, longer) == 0;
    Py_XDECREF(now);
    Py_XDECREF(longer);
    return ok ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef EXTEND = {"extend_traceback", extend, METH_O, NULL};

static bool ends_with(PyObject *tb, const PyObject *begin) {
    while (tb != NULL && tb != begin) tb = (PyObject *)((PyTracebackObject *)tb)->tb_next;
    return tb == begin;
}

/* An earlier exception at the same address is dead. */
static void note(CcRec *rec, PyObject *exception) {
    int i = 0;
    while (i < rec->exceptions.n && rec->exceptions.at[i].object != exception) i++;
    if (i == rec->exceptions.n) cc_vec_push(&rec->exceptions, ((struct CcException){.object = exception}));
    Py_XSETREF(rec->exceptions.at[i].traceback, traceback_of(exception));
}

void cc_traceback_begin(CcRec *rec) {
    rec->handled_start = PyErr_GetHandledException();
    if (rec->handled_start != NULL) note(rec, rec->handled_start);
}

void cc_traceback_read(CcRec *rec, PyObject *o) {
    if (PyExceptionInstance_Check(o) && o != rec->handled_start && cc_value_find(rec, o) == NULL) note(rec, o);
}

void cc_traceback_forget(CcRec *rec) {
    for (int i = 0; i < rec->exceptions.n; i++) Py_XDECREF(rec->exceptions.at[i].traceback);
    rec->exceptions.n = 0;
}

/* Raising it again has put entries in front of its traceback: so does an effect. */
static void extend_in_replays(CcRec *rec, CcAct *act, const struct CcException *e) {
    PyObject *now = traceback_of(e->object);
    const bool longer = now != e->traceback && ends_with(now, e->traceback);
    PyObject *added = longer ? copy_entries(now, e->traceback, Py_None) : NULL;
    Py_XDECREF(now);
    if (added == NULL) return;
    PyObject *function;
    CC_RETRY_ALLOC(function, PyCFunction_New(&EXTEND, added));
    Py_DECREF(added); /* function holds it */
    cc_vec_push(&rec->keep, function);
    const CcCallSpec spec = {.form = CC_F_CALL, .target = function, .in = &e->object, .n = 1, .name = EXTEND.ml_name};
    (void)cc_node_effect(rec, act, &spec, NULL);
}

void cc_traceback_end(CcRec *rec, CcAct *act) {
    for (int i = 0; i < rec->exceptions.n; i++) {
        const struct CcException e = rec->exceptions.at[i]; /* its guard may be noted as another one */
        const CcProv *p = cc_value_find(rec, e.object);     /* NULL, or another object: it is dead */
        if (p != NULL && p->origin == CC_O_SOURCE && PyExceptionInstance_Check(p->object))
            extend_in_replays(rec, act, &e);
    }
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
