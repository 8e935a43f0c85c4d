/* Functions of ccompile._core. */
#include "mod.h"

static const char *path_of(PyObject *o) { return o == Py_None ? NULL : PyUnicode_AsUTF8(o); }

/* Whether torch._dynamo's frame hook, which may stay installed after a use of torch.compile, has no callback and so
 * does nothing. */
static bool dynamo_idle(void) {
    static PyObject *get;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb); /* a pause may end with an exception pending */
    if (get == NULL) {
        PyObject *m = PyImport_ImportModule("torch._C._dynamo.eval_frame");
        get = m != NULL ? PyObject_GetAttrString(m, "get_eval_frame_callback") : NULL;
        Py_XDECREF(m);
    }
    PyObject *callback = get != NULL ? PyObject_CallNoArgs(get) : NULL;
    if (callback == NULL) cc_raised_clear();
    Py_XDECREF(callback);
    PyErr_Restore(type, value, tb);
    return callback == Py_None;
}

static PyObject *api_init(PyObject *m, PyObject *args, PyObject *kwargs) {
    (void)m;
    static char *names[] = {"torch_module", "llvmlite", "onednn", "nvrtc", "compiler", NULL};
    PyObject *torch, *llvmlite = Py_None, *onednn = Py_None, *nvrtc = Py_None, *compiler = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOOO:init", names, &torch, &llvmlite, &onednn, &nvrtc,
                                     &compiler))
        return NULL;
    if (cc_tens_init(torch) < 0 || cc_rec_init() < 0 || cc_observe_init() < 0) return NULL;
    cc_hook_set_guest("libtorch_python", dynamo_idle);
    cc_run_libraries(path_of(llvmlite), path_of(compiler), path_of(onednn), path_of(nvrtc));
    if (PyErr_Occurred()) return NULL;
    PyObject *version = PyObject_GetAttrString(torch, "__version__");
    const char *text = version != NULL ? PyUnicode_AsUTF8(version) : NULL;
    if (text != NULL) cc_run_blas(cc_tsym_sgemm(), text);
    Py_XDECREF(version);
    if (text == NULL) return NULL;
    const char *verify = getenv("CCOMPILE_VERIFY");
    if (verify != NULL && *verify != '\0' && strcmp(verify, "0") != 0) cc_policy.verify = 1;
    Py_RETURN_NONE;
}

static PyObject *api_disable_push(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    cc_eval_disabled++;
    Py_RETURN_NONE;
}

static PyObject *api_disable_pop(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    if (cc_eval_disabled == 0) {
        PyErr_SetString(PyExc_RuntimeError, "ccompile.disable was exited more often than entered on this thread");
        return NULL;
    }
    cc_eval_disabled--;
    Py_RETURN_NONE;
}

static PyObject *api_break_at(PyObject *m, PyObject *callable_or_type) {
    (void)m;
    cc_call_special(callable_or_type, PyType_Check(callable_or_type) ? CC_R_DISABLED : CC_R_LIBRARY);
    Py_RETURN_NONE;
}

static PyObject *api_raise_as(PyObject *m, PyObject *unsupported) {
    (void)m;
    cc_eval_raise_as(unsupported);
    Py_RETURN_NONE;
}

static PyObject *api_note(PyObject *m, PyObject *text) {
    (void)m;
    const char *s = PyUnicode_AsUTF8(text);
    if (s == NULL) return NULL;
    cc_log_add(CC_LOG_IGNORED, "%s", s);
    if (!cc_eval_recording()) cc_observe_deliver();
    Py_RETURN_NONE;
}

static const char *const STANCE[CC_STANCE_COUNT] = {
    [CC_STANCE_DEFAULT] = "default",
    [CC_STANCE_FORCE_EAGER] = "force_eager",
    [CC_STANCE_EAGER_ON_RECOMPILE] = "eager_on_recompile",
    [CC_STANCE_FAIL_ON_RECOMPILE] = "fail_on_recompile",
    [CC_STANCE_EAGER_THEN_COMPILE] = "eager_then_compile",
    [CC_STANCE_FORCE_BACKEND] = "force_backend",
    [CC_STANCE_COMPILE_NOW] = "compile_now",
};

static PyObject *api_stance(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return PyUnicode_FromString(STANCE[cc_eval_stance]);
}

/* -> the stance that this name or callable stands for; -1 with an exception set: none */
static int stance_of(PyObject *o) {
    if (PyCallable_Check(o)) return CC_STANCE_FORCE_BACKEND;
    const char *s = PyUnicode_AsUTF8(o);
    for (int i = 0; s != NULL && i < CC_STANCE_COUNT; i++)
        if (i != CC_STANCE_FORCE_BACKEND && strcmp(s, STANCE[i]) == 0) return i;
    if (s != NULL) PyErr_Format(PyExc_ValueError, "unknown stance %s", s);
    return -1;
}

static PyObject *api_set_stance(PyObject *m, PyObject *o) {
    const int stance = stance_of(o);
    PyObject *before = stance < 0 ? NULL : cc_eval_forced != NULL ? Py_NewRef(cc_eval_forced) : api_stance(m, NULL);
    if (before == NULL) return NULL;
    cc_eval_stance = (CcStance)stance;
    Py_XSETREF(cc_eval_forced, stance == CC_STANCE_FORCE_BACKEND ? Py_NewRef(o) : NULL);
    return before;
}

static PyObject *api_graph_break(PyObject *m, PyObject *args, PyObject *kwargs) {
    (void)m;
    static char *names[] = {"msg", NULL};
    const char *msg = "";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|s:graph_break", names, &msg)) return NULL;
    Py_RETURN_NONE; /* the recorder breaks at the call, so the function itself does nothing */
}

static PyObject *api_is_compiling(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return PyBool_FromLong(cc_eval_compiling());
}

static PyObject *api_skip_kernels(PyObject *m, PyObject *on) {
    (void)m;
    const int yes = PyObject_IsTrue(on);
    if (yes < 0) return NULL;
    cc_eval_skip_kernels = yes != 0;
    Py_RETURN_NONE;
}

static PyObject *api_set_lap_clock(PyObject *m, PyObject *clock) {
    (void)m;
    cc_pace_set_clock(clock);
    Py_RETURN_NONE;
}

static int count(PyObject *d, const char *name, uint64_t n) {
    PyObject *v = PyLong_FromUnsignedLongLong(n);
    const int status = v != NULL ? PyDict_SetItemString(d, name, v) : -1;
    Py_XDECREF(v);
    return status;
}

static PyObject *api_counters(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    PyObject *d = PyDict_New();
    if (d == NULL) return NULL;
    int status = count(d, "calls", cc_eval_counts.calls) | count(d, "hits", cc_eval_counts.hits) |
                 count(d, "misses", cc_eval_counts.misses);
    for (int k = 0; k < CC_LOG_COUNT; k++)
        status |= count(d, cc_log_name((CcEventKind)k), cc_log_count((CcEventKind)k));
    if (status < 0) Py_CLEAR(d);
    return d;
}

static PyObject *api_reset(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    cc_types_reset_all();
    cc_memory_trim();
    cc_log_reset();
    memset(&cc_eval_counts, 0, sizeof cc_eval_counts);
    Py_RETURN_NONE;
}

static PyObject *api_events(PyObject *m, PyObject *args) {
    (void)m;
    unsigned long long after = 0;
    if (!PyArg_ParseTuple(args, "|K:events", &after)) return NULL;
    return cc_observe_events(after);
}

static PyObject *api_event_kinds(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    PyObject *d = PyDict_New();
    for (int k = 0; d != NULL && k < CC_LOG_COUNT; k++) {
        PyObject *v = Py_BuildValue("(si)", cc_log_topic((CcEventKind)k), cc_log_level((CcEventKind)k));
        if (v == NULL || PyDict_SetItemString(d, cc_log_name((CcEventKind)k), v) < 0) Py_CLEAR(d);
        Py_XDECREF(v);
    }
    return d;
}

static PyObject *api_listen(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *listener, *kinds;
    if (!PyArg_ParseTuple(args, "OO!:listen", &listener, &PySet_Type, &kinds)) return NULL;
    uint64_t wanted = 0;
    for (int k = 0; k < CC_LOG_COUNT; k++) {
        PyObject *name = PyUnicode_FromString(cc_log_name((CcEventKind)k));
        const int has = name != NULL ? PySet_Contains(kinds, name) : -1;
        Py_XDECREF(name);
        if (has < 0) return NULL;
        wanted |= (uint64_t)has << k;
    }
    cc_observe_listen(listener != Py_None ? listener : NULL, wanted);
    Py_RETURN_NONE;
}

static PyObject *api_timeline(PyObject *m, PyObject *path) {
    (void)m;
    const char *s = path != Py_None ? PyUnicode_AsUTF8(path) : NULL;
    if (PyErr_Occurred() || cc_observe_timeline(s) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *api_set_repro_writer(PyObject *m, PyObject *writer) {
    (void)m;
    cc_repro_set_writer(writer != Py_None ? writer : NULL);
    cc_observe_settle();
    Py_RETURN_NONE;
}

static PyObject *api_time_calls(PyObject *m, PyObject *on) {
    (void)m;
    const int yes = PyObject_IsTrue(on);
    if (yes < 0) return NULL;
    cc_observe_metrics(yes != 0);
    Py_RETURN_NONE;
}

static PyObject *api_all_compiled(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return cc_types_all();
}

static PyObject *api_deliver(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    cc_observe_deliver();
    Py_RETURN_NONE;
}

static PyObject *api_describe(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    CcSbuf sb = {0};
    cc_run_describe(&sb);
    PyObject *s = PyUnicode_FromString(cc_sbuf_text(&sb));
    cc_sbuf_free(&sb);
    return s;
}

static PyObject *api_cached_files(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    PyObject *list = PyList_New(0);
    CcRunFile file;
    for (int i = 0; list != NULL && cc_artifacts_used(i, &file); i++) {
        if (file.key == NULL) continue;
        PyObject *row =
            Py_BuildValue("(sy#y#)", file.kind, file.key, (Py_ssize_t)file.n_key, file.image, (Py_ssize_t)file.n_image);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
        cc_artifacts_free(&file);
    }
    return list;
}

static PyObject *api_add_cached_file(PyObject *m, PyObject *args) {
    (void)m;
    CcRunFile file = {0};
    Py_ssize_t n_key, n_image;
    if (!PyArg_ParseTuple(args, "sy#y#:add_cached_file", &file.kind, &file.key, &n_key, &file.image, &n_image))
        return NULL;
    file.n_key = (size_t)n_key;
    file.n_image = (size_t)n_image;
    return PyBool_FromLong(n_key > 0 && n_image > 0 && cc_artifacts_add(&file));
}

static PyObject *api_machine(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    char *text = cc_artifacts_machine();
    PyObject *s = PyUnicode_FromString(text);
    free(text);
    return s;
}

static PyObject *api_get_config(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    return cc_policy_dict(&cc_policy);
}

static PyObject *api_set_config(PyObject *m, PyObject *args) {
    (void)m;
    const char *name;
    PyObject *v;
    if (!PyArg_ParseTuple(args, "sO:set_config", &name, &v)) return NULL;
    int n;
    const CcKnobInfo *info = cc_policy_knobs(&n);
    for (int i = 0; i < n; i++) {
        if (strcmp(info[i].name, name) != 0) continue;
        const long value = info[i].kind == CC_KNOB_BOOL ? PyObject_IsTrue(v) : PyLong_AsLong(v);
        if (value == -1 && PyErr_Occurred()) return NULL;
        *(int *)((char *)&cc_policy + info[i].offset) = (int)value;
        Py_RETURN_NONE;
    }
    PyErr_Format(PyExc_ValueError, "unknown knob %s; get_config() lists all", name);
    return NULL;
}

PyMethodDef cc_api_methods[] = {
    {"init", (PyCFunction)(void (*)(void))api_init, METH_VARARGS | METH_KEYWORDS,
     "init(torch_module, *, llvmlite, onednn, nvrtc, compiler)"},
    {"disable_push", api_disable_push, METH_NOARGS,
     "compiled functions run eagerly on this thread until disable_pop()"},
    {"disable_pop", api_disable_pop, METH_NOARGS, "ends disable_push()"},
    {"raise_as", api_raise_as, METH_O, "raise_as(class): a subclass of Unsupported, raised in its place from now on"},
    {"break_at", api_break_at, METH_O,
     "break_at(callable_or_type): recordings break at calls of it, and at `with` blocks of that type"},
    {"note", api_note, METH_O, "note(text): adds an `ignored` event"},
    {"stance", api_stance, METH_NOARGS, "stance() -> what set_stance has set"},
    {"set_stance", api_set_stance, METH_O, "set_stance(name or forced) -> the previous one; for ccompile.set_stance"},
    {"graph_break", (PyCFunction)(void (*)(void))api_graph_break, METH_VARARGS | METH_KEYWORDS,
     "graph_break(msg=\"\")\n--\n\nBreaks the graph at this call in compiled code; does nothing in eager code."},
    {"is_compiling", api_is_compiling, METH_NOARGS,
     "is_compiling()\n--\n\nTrue in code that is being recorded, and hence in replays of it; False in eager code."},
    {"skip_kernels", api_skip_kernels, METH_O,
     "skip_kernels(on)\n--\n\nFor measurements: while on, compiled calls check guards and allocate results but run no kernel, so results "
     "contain arbitrary data."},
    {"set_lap_clock", api_set_lap_clock, METH_O,
     "set_lap_clock(clock)\n--\n\nFor tests: clock(kind) returns how many ns a timed call or run took; None restores the real clock."},
    {"counters", api_counters, METH_NOARGS, "counters() -> dict: events by kind, calls, hits, misses"},
    {"reset", api_reset, METH_NOARGS,
     "reset()\n--\n\nDrops everything that has been compiled and sets all counters to 0."},
    {"events", api_events, METH_VARARGS,
     "events(after=0) -> list of (serial, kind, time_ns, text, start_ns, file or None, line)"},
    {"event_kinds", api_event_kinds, METH_NOARGS, "event_kinds() -> dict: kind -> (topic, level)"},
    {"listen", api_listen, METH_VARARGS,
     "listen(listener, kinds)\n--\n\nlistener(event, detail) gets events of these kinds (a set of names) when calls end and at graph "
     "breaks; None: no listener."},
    {"timeline", api_timeline, METH_O, "timeline(path or None): begins or ends the timeline; for ccompile.timeline"},
    {"set_repro_writer", api_set_repro_writer, METH_O,
     "set_repro_writer(writer)\n--\n\nwriter.write(description) gets each graph that fails the self-check; None: nobody."},
    {"time_calls", api_time_calls, METH_O, "time_calls(on): whether calls are timed; for ccompile.metrics"},
    {"all_compiled", api_all_compiled, METH_NOARGS,
     "all_compiled() -> list of the instances of Compiled that have entries of their own"},
    {"deliver", api_deliver, METH_NOARGS, "deliver(): hands events that are queued to the listener now"},
    {"describe", api_describe, METH_NOARGS, "describe() -> str: back-ends, versions, threads"},
    {"cached_files", api_cached_files, METH_NOARGS,
     "cached_files() -> list of (kind, key, image): files of the kernel cache that this process has used"},
    {"add_cached_file", api_add_cached_file, METH_VARARGS,
     "add_cached_file(kind, key, image) -> bool: false: there is no cache, or no such kind"},
    {"machine", api_machine, METH_NOARGS, "machine() -> str: the CPU, as keys of the kernel cache name it"},
    {"get_config", api_get_config, METH_NOARGS, "get_config() -> dict of knobs"},
    {"set_config", api_set_config, METH_VARARGS, "set_config(name, value)"},
    {NULL, NULL, 0, NULL},
};
