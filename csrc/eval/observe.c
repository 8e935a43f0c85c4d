/* Whoever watches calls. Queued events go to the listener, a Python callable, at moments when Python code may run: after
 * a call that is not inside another one, and at a graph break. Spans become ranges of torch's profiler while it is
 * active; Python code tells that by a module attribute, and the version of the module's dict tells when it changes. */
#include "eval_int.h"

bool cc_observe_on;
static const uint64_t NEVER;
const uint64_t *cc_observe_profiler = &NEVER;
uint64_t cc_observe_profiler_seen;

static bool timing;          /* calls, for metrics */
static PyObject *profiler;   /* strong: dict of torch.autograd.profiler; NULL: not known */
static PyObject *make_range; /* strong: torch._C._profiler._RecordFunctionFast */
static PyObject *listener;   /* strong; NULL: none */
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
    if (delivering || !((cc_log_pending && listener != NULL) || cc_repro_waits())) return;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    delivering = true;
    CcLogNews *news;
    const int n = cc_log_take(&news);
    for (int i = 0; i < n && listener != NULL; i++) tell(&news[i]);
    cc_log_drop(news, n);
    if (!cc_eval_recording()) cc_repro_deliver();
    delivering = false;
    PyErr_Restore(type, value, tb);
}

void cc_observe_settle(void) { cc_observe_on = cc_log_wanted != 0 || cc_span_on != 0 || timing || cc_repro_wanted(); }

void cc_observe_metrics(bool on) {
    timing = on;
    cc_observe_settle();
}

void cc_observe_listen(PyObject *callable, uint64_t kinds) {
    cc_observe_deliver();
    cc_log_wanted = callable != NULL ? kinds : 0;
    CcLogNews *rest;
    const int n = cc_log_take(&rest);
    cc_log_drop(rest, n);
    Py_XSETREF(listener, Py_XNewRef(callable));
    cc_observe_settle();
}

/* ------------------------------------------------------------------ spans */

static void *enter_range(const char *name) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *range = PyObject_CallFunction(make_range, "s", name);
    PyObject *r = range != NULL ? PyObject_CallMethod(range, "__enter__", NULL) : NULL;
    if (r == NULL) Py_CLEAR(range);
    Py_XDECREF(r);
    cc_raised_clear();
    PyErr_Restore(type, value, tb);
    return range;
}

static void leave_range(void *range) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *r = PyObject_CallMethod(range, "__exit__", "OOO", Py_None, Py_None, Py_None);
    Py_XDECREF(r);
    cc_raised_clear();
    Py_DECREF((PyObject *)range);
    PyErr_Restore(type, value, tb);
}

int cc_observe_init(void) {
    PyObject *m = PyImport_ImportModule("torch.autograd.profiler");
    make_range = cc_obj_of_module("torch._C._profiler", "_RecordFunctionFast");
    cc_raised_clear(); /* another torch: there are no ranges */
    profiler = m != NULL && make_range != NULL ? Py_NewRef(PyModule_GetDict(m)) : NULL;
    const uint64_t *version = profiler != NULL ? cc_watch_begin(profiler) : NULL;
    if (version != NULL) {
        cc_observe_profiler = version;
        cc_observe_profiler_seen = *version;
        cc_span_set_ranges(&(CcSpanRanges){enter_range, leave_range});
    }
    Py_XDECREF(m);
    return 0;
}

static void read_profiler(void) {
    cc_observe_profiler_seen = *cc_observe_profiler;
    const bool active = profiler != NULL && cc_obj_item(profiler, "_is_profiler_enabled") == Py_True;
    if (active) cc_span_on |= CC_SPANS_PROFILER;
    else cc_span_on &= ~(unsigned)CC_SPANS_PROFILER;
    cc_observe_settle();
}

int cc_observe_timeline(const char *path) {
    CcErr err = {0};
    if (path == NULL) cc_timeline_close();
    else if (cc_timeline_open(path, &err) < 0)
        PyErr_SetString(err.status == CC_E_UNSUPPORTED ? PyExc_RuntimeError : PyExc_OSError, err.text);
    cc_observe_settle();
    return err.status == CC_E_OK ? 0 : -1;
}

void cc_observe_begin(CcObserved *o, CcRoot *root) {
    if (*cc_observe_profiler != cc_observe_profiler_seen) read_profiler();
    o->root = root;
    o->span.start_ns = 0;
    if (cc_span_on) cc_span_open(&o->span, CC_SPAN_CALL, "%s", cc_root_name(root));
    o->start_ns = timing ? cc_log_now_ns() : 0;
}

void cc_observe_end(CcObserved *o, bool raised) {
    if (o->start_ns > 0) cc_metrics_call(o->root, cc_log_now_ns() - o->start_ns, raised);
    cc_span_close(&o->span);
    cc_observe_deliver();
}
