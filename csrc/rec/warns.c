/* warnings.warn(). The filters, and the registry of the module that a warning is attributed to, may keep it silent; the call
 * has no effect then. A guard asks them in each call, as CPython's C code does (_warnings.c: setup_context, already_warned,
 * get_filter). Where the warning would be shown, or raised, the call is a break; the guard then says that it is not silent, so
 * that a call in which it is gets a trace without the break.
 *
 * What this file does not know counts as a warning that is shown. */
#include "rec_events.h"

enum { TEXT, CATEGORY, LINE, MODULE, GLOBALS, PARTS };

/* The registry has shown this warning under the current filters. */
static bool shown_before(PyObject *self) {
    PyObject *registry = cc_obj_item(PyTuple_GET_ITEM(self, GLOBALS), "__warningregistry__");
    PyObject *version = registry != NULL && PyDict_CheckExact(registry) ? cc_obj_item(registry, "version") : NULL;
    if (version == NULL || !PyLong_CheckExact(version) || PyLong_AsLong(version) != cc_frame_warnings_version())
        return false;
    PyObject *key =
        PyTuple_GetSlice(self, TEXT, MODULE); /* of a text, a class and an int: hashing runs no Python code */
    PyObject *shown = key != NULL ? PyDict_GetItemWithError(registry, key) : NULL;
    Py_XDECREF(key);
    return shown == Py_True;
}

/* 1: the filter's text or pattern accepts this one; -1: unknown. */
static int accepts(PyObject *filter, PyObject *text) {
    if (filter == Py_None) return 1;
    if (PyUnicode_CheckExact(filter)) return PyUnicode_Compare(filter, text) == 0;
    if (!cc_known_is(filter, CC_KNOWN_PATTERN)) return -1;
    static PyObject *match;
    if (match == NULL) match = cc_obj_intern("match");
    PyObject *found = PyObject_CallMethodOneArg(filter, match, text);
    const int is = found == NULL ? -1 : found != Py_None;
    Py_XDECREF(found);
    return is;
}

/* Whether (action, text, category, module, line) applies; -1: unknown. */
static int applies(PyObject *filter, PyObject *self) {
    if (!PyTuple_CheckExact(filter) || PyTuple_GET_SIZE(filter) != 5) return -1;
    PyObject *category = PyTuple_GET_ITEM(filter, 2), *line = PyTuple_GET_ITEM(filter, 4);
    if (!Py_IS_TYPE(category, &PyType_Type) || !PyLong_CheckExact(line)) return -1;
    const int text = accepts(PyTuple_GET_ITEM(filter, 1), PyTuple_GET_ITEM(self, TEXT)),
              module = accepts(PyTuple_GET_ITEM(filter, 3), PyTuple_GET_ITEM(self, MODULE));
    if (text < 0 || module < 0) return -1;
    const bool here =
        PyObject_IsTrue(line) == 0 || PyObject_RichCompareBool(line, PyTuple_GET_ITEM(self, LINE), Py_EQ) == 1;
    return text && module && here &&
           PyType_IsSubtype((PyTypeObject *)PyTuple_GET_ITEM(self, CATEGORY), (PyTypeObject *)category);
}

/* From 3.14 on, a context variable may hold further filters. The process's flags don't change. */
static bool by_context(void) {
    static int is = -1;
    if (is >= 0) return is;
    PyObject *flags = PySys_GetObject("flags");
    PyObject *on = flags != NULL ? PyObject_GetAttrString(flags, "context_aware_warnings") : NULL;
    is = on != NULL && PyObject_IsTrue(on) != 0;
    cc_raised_clear();
    Py_XDECREF(on);
    return is;
}

/* The first filter that applies ignores the warning. */
static bool ignored(PyObject *self) {
    PyObject *filters = cc_obj_of_module("warnings", "filters");
    int found = filters != NULL && PyList_CheckExact(filters) && !by_context() ? 0 : -1;
    for (Py_ssize_t i = 0; found == 0 && i < PyList_GET_SIZE(filters); i++) {
        PyObject *filter = Py_NewRef(PyList_GET_ITEM(filters, i));
        found = applies(filter, self);
        PyObject *action = found == 1 ? PyTuple_GET_ITEM(filter, 0) : NULL;
        if (action != NULL && !(PyUnicode_CheckExact(action) && cc_text_is(action, "ignore"))) found = -1;
        Py_DECREF(filter);
    }
    Py_XDECREF(filters);
    return found == 1;
}

/* What the guard calls. self: the parts of the warning. */
static PyObject *is_silent(PyObject *self, PyObject *none) {
    (void)none;
    const bool silent = shown_before(self) || ignored(self);
    cc_raised_clear();
    return Py_NewRef(silent ? Py_True : Py_False);
}

static PyMethodDef asks = {"warning_is_silent", is_silent, METH_NOARGS, NULL};

/* ------------------------------------------------------------------ the call's arguments */

typedef struct Call {
    PyObject *text, *category, *level;
} Call;

/* False: they are not of the usual types. */
static bool read_call(const CcCalled *c, Call *out) {
    static const char *const names[] = {"message", "category", "stacklevel", "source"};
    PyObject *v[CC_COUNT(names)] = {NULL};
    const int positional = cc_call_positional(c);
    if (positional > CC_COUNT(names)) return false;
    for (int i = 0; i < positional; i++) v[i] = c->in[i];
    for (int k = positional; k < c->n; k++) {
        int at = 0;
        while (at < CC_COUNT(names) && !cc_text_is(PyTuple_GET_ITEM(c->kwnames, k - positional), names[at])) at++;
        if (at == CC_COUNT(names) || v[at] != NULL) return false; /* skip_file_prefixes; or the C code raises */
        v[at] = c->in[k];
    }
    *out = (Call){v[0], v[1] == NULL || v[1] == Py_None ? PyExc_UserWarning : v[1], v[2]};
    return out->text != NULL && PyUnicode_CheckExact(out->text) && Py_IS_TYPE(out->category, &PyType_Type) &&
           PyType_IsSubtype((PyTypeObject *)out->category, (PyTypeObject *)PyExc_Warning) &&
           (out->level == NULL || PyLong_CheckExact(out->level));
}

/* C code skips frames of importlib. */
static bool of_importlib(const CcAct *act) {
    const char *path = PyUnicode_AsUTF8(act->co->co_filename);
    if (path == NULL) cc_raised_clear();
    return path == NULL || strstr(path, "importlib") != NULL;
}

/* The frame that the warning is attributed to; NULL: outside the region, or unknown. */
static const CcAct *attributed(const CcAct *act, PyObject *level) {
    long up = level != NULL ? PyLong_AsLong(level) : 1;
    if (up == -1 && PyErr_Occurred() != NULL) cc_raised_clear();
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    for (; act != NULL; act = act->prev) {
        PyCodeObject *co = frame != NULL ? PyFrame_GetCode(frame) : NULL;
        const bool same = co == act->co; /* else CPython runs frames in between */
        Py_XDECREF((PyObject *)co);
        if (!same || of_importlib(act) || --up <= 0) {
            if (!same || of_importlib(act)) act = NULL;
            break;
        }
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    Py_XDECREF((PyObject *)frame);
    return act;
}

/* The function that tells whether the warning is silent; NULL: unknown. */
static PyObject *asker(const CcAct *act, const Call *call) {
    const CcAct *at = attributed(act, call->level);
    PyObject *globals = at != NULL ? at->func->func_globals : NULL;
    PyObject *module = globals != NULL && PyDict_CheckExact(globals) ? cc_obj_item(globals, "__name__") : NULL;
    const int line = module != NULL && PyUnicode_CheckExact(module) ? cc_code_line(at->code, at->pc) : -1;
    if (line < 0) return NULL;
    PyObject *self, *f;
    CC_RETRY_ALLOC(self, Py_BuildValue("(OOiOO)", call->text, call->category, line, module, globals));
    CC_RETRY_ALLOC(f, PyCFunction_New(&asks, self));
    Py_DECREF(self);
    return f;
}

CcGo cc_warns_before(const CcBuiltin *b) {
    Call call;
    if (cc_args_computed(b)) return cc_rec_break(b->rec, b->act, CC_R_DATA_SCALAR, b->callee->name);
    PyObject *f = read_call(b->c, &call) ? asker(b->act, &call) : NULL;
    PyObject *answer = f != NULL ? cc_value_guard_call(b->rec, f) : NULL;
    const bool silent = answer == Py_True;
    Py_XDECREF(answer);
    Py_XDECREF(f);
    if (silent) return CC_OK;
    PyObject *said = b->c->in[0];
    const char *text = PyUnicode_Check(said) ? PyUnicode_AsUTF8(said) : NULL;
    if (text == NULL) cc_raised_clear();
    return cc_rec_break(b->rec, b->act, CC_R_WARNS, text != NULL ? text : cc_type_name(said));
}
