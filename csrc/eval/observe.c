/* Hands queued events to the listener, a Python callable, at moments when Python code may run: after a call that is not
 * inside another one, and at a graph break. */
#include "eval_int.h"

unsigned cc_observe_on;
static PyObject *listener; /* strong; NULL: none */
static _Thread_local bool delivering;

static PyObject *decoded(const char *s) {
    return s != NULL ? PyUnicode_DecodeUTF8(s, (Py_ssize_t)strlen(s), "replace") : Py_NewRef(Py_None);
}

static PyObject *event_tuple(const CcLogEvent *e, const char *text) {
    return Py_BuildValue("(KsKNKNi)", (unsigned long long)e->serial, cc_log_name(e->kind),
                         (unsigned long long)e->time_ns, decoded(text), (unsigned long long)e->start_ns,
                         decoded(*e->file != '\0' ? e->file : NULL), e->line);
}

PyObject *cc_observe_events(uint64_t after) {
    enum { MAX = 1024 };
    CcLogEvent *events = malloc(sizeof *events * MAX);
    if (events == NULL) return PyErr_NoMemory();
    const int n = cc_log_copy(events, MAX, after);
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject *e = event_tuple(&events[i], events[i].text);
        if (e == NULL || PyList_Append(list, e) < 0) Py_CLEAR(list);
        Py_XDECREF(e);
    }
    free(events);
    return list;
}

/* A listener that raises must not change what the call gives. */
static void tell(const CcLogNews *news) {
    PyObject *event = event_tuple(&news->event, news->text);
    PyObject *r = event != NULL ? PyObject_CallFunction(listener, "NN", event, decoded(news->detail)) : NULL;
    if (r == NULL) PyErr_WriteUnraisable(listener);
    Py_XDECREF(r);
}

void cc_observe_deliver(void) {
    if (!cc_log_pending || delivering || listener == NULL) return;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    delivering = true;
    CcLogNews *news;
    const int n = cc_log_take(&news);
    for (int i = 0; i < n && listener != NULL; i++) tell(&news[i]);
    cc_log_drop(news, n);
    delivering = false;
    PyErr_Restore(type, value, tb);
}

void cc_observe_listen(PyObject *callable, uint64_t kinds) {
    cc_observe_deliver();
    cc_log_wanted = callable != NULL ? kinds : 0;
    CcLogNews *rest;
    const int n = cc_log_take(&rest);
    cc_log_drop(rest, n);
    Py_XSETREF(listener, Py_XNewRef(callable));
    if (cc_log_wanted != 0) cc_observe_on |= CC_OBSERVE_LOGS;
    else cc_observe_on &= ~(unsigned)CC_OBSERVE_LOGS;
}

void cc_observe_end(void) {
    if (!cc_eval_recording()) cc_observe_deliver();
}
