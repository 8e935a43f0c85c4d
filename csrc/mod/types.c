/* Compiled: a compiled callable. Disabled: a callable that always runs eagerly and is a graph break in compiled code.
 * Both behave like functions: vectorcall, __get__ (methods), __wrapped__, and the name and docstring of the wrapped
 * callable. */
#include "mod.h"

#include <pthread.h>
#include <structmember.h>

typedef struct Compiled {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *fn; /* _orig_fn, and __wrapped__ unless other code sets it (functools.wraps) */
    PyObject *dict, *weak;
    struct Compiled *lender;       /* whose entries it uses while both wrap the same callable; NULL: its own */
    struct Compiled *next, **link; /* list of all instances, for reset() */
    CcRoot root;
} Compiled;

typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *fn, *reason;
    PyObject *dict, *weak;
} Disabled;

static PyTypeObject *compiled_type; /* for cc_types_unwrap; there is only one interpreter */
static Compiled *all_compiled;

/* What entries hold may hold the last references to this instance and to others: nothing is followed that may be gone. */
void cc_types_reset_all(void) {
    Compiled *c = (Compiled *)Py_XNewRef((PyObject *)all_compiled);
    while (c != NULL) {
        cc_root_clear(&c->root);
        Compiled *next = (Compiled *)Py_XNewRef((PyObject *)c->next);
        Py_DECREF(c);
        c = next;
    }
}

PyObject *cc_types_unwrap(PyObject *o) {
    return compiled_type != NULL && Py_IS_TYPE(o, compiled_type) ? ((Compiled *)o)->fn : NULL;
}

/* Runs in the child of a fork, before any Python code. */
static void forked(void) {
    cc_hook_forked();
    for (Compiled *c = all_compiled; c != NULL; c = c->next) cc_root_forked(&c->root);
}

int cc_types_register(CcModState *state) {
    static bool registered;
    if (!registered && pthread_atfork(NULL, NULL, forked) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    registered = true;
    compiled_type = state->compiled;
    cc_call_set_unwrap(cc_types_unwrap);
    cc_call_special((PyObject *)state->disabled, CC_R_DISABLED);
    cc_call_special(state->graph_break, CC_R_USER);
    return 0;
}

/* As functools.wraps, for the attributes that the callable has; one without a name gets `name`. */
static void copy_names(PyObject *self, PyObject *fn, PyObject *name) {
    static const char *const names[] = {"__module__", "__name__", "__qualname__", "__doc__", "__annotations__"};
    for (int i = 0; i < CC_COUNT(names); i++) {
        PyObject *v = PyObject_GetAttrString(fn, names[i]);
        if (v == NULL) {
            cc_raised_clear();
            if (name == NULL || strstr(names[i], "name__") == NULL) continue;
            v = Py_NewRef(name);
        }
        const int status = PyObject_SetAttrString(self, names[i], v);
        Py_DECREF(v);
        if (status < 0) cc_raised_clear();
    }
    if (PyObject_SetAttrString(self, "__wrapped__", fn) < 0) cc_raised_clear();
}

/* ------------------------------------------------------------------ Compiled */

static bool same_cells(PyObject *a, PyObject *b) {
    bool same = (a == NULL) == (b == NULL) && (a == NULL || PyTuple_GET_SIZE(a) == PyTuple_GET_SIZE(b));
    for (Py_ssize_t i = 0; same && a != NULL && i < PyTuple_GET_SIZE(a); i++)
        same = PyTuple_GET_ITEM(a, i) == PyTuple_GET_ITEM(b, i);
    return same;
}

/* Whether calls of a and b do the same. Parts of functions can be replaced, so each call asks. */
static bool same_callable(PyObject *a, PyObject *b) {
    if (a == b) return true;
    if (PyMethod_Check(a) && PyMethod_Check(b))
        return PyMethod_GET_SELF(a) == PyMethod_GET_SELF(b) &&
               same_callable(PyMethod_GET_FUNCTION(a), PyMethod_GET_FUNCTION(b));
    if (!PyFunction_Check(a) || !PyFunction_Check(b)) return false;
    const PyFunctionObject *f = (PyFunctionObject *)a, *g = (PyFunctionObject *)b;
    return f->func_code == g->func_code && f->func_globals == g->func_globals && f->func_builtins == g->func_builtins &&
           f->func_defaults == g->func_defaults && f->func_kwdefaults == g->func_kwdefaults &&
           same_cells(f->func_closure, g->func_closure);
}

static CcRoot *root_of(Compiled *self) {
    return self->lender != NULL && same_callable(self->fn, self->lender->fn) ? &self->lender->root : &self->root;
}

PyObject *cc_types_all(void) {
    PyObject *list = PyList_New(0);
    for (Compiled *c = all_compiled; list != NULL && c != NULL; c = c->next)
        if (root_of(c) == &c->root && PyList_Append(list, (PyObject *)c) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *compiled_call(PyObject *o, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Compiled *self = (Compiled *)Py_NewRef(o); /* the code that it runs may drop the last reference to it */
    PyObject *r = cc_root_call(root_of(self), args, nargsf, kwnames);
    Py_DECREF(self);
    return r;
}

static int set_knobs(CcRoot *root, PyObject *options) {
    int n;
    const CcKnobInfo *info = cc_policy_knobs(&n);
    for (int i = 0; options != NULL && i < n; i++) {
        PyObject *v = cc_obj_item(options, info[i].name);
        if (v == NULL) continue;
        const long value = info[i].kind == CC_KNOB_BOOL ? PyObject_IsTrue(v) : PyLong_AsLong(v);
        if (value == -1 && PyErr_Occurred()) return -1;
        *(int *)((char *)&root->knobs + info[i].offset) = (int)value;
    }
    return 0;
}

static Compiled *make_compiled(PyTypeObject *type, PyObject *fn, PyObject *name) {
    Compiled *self = (Compiled *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = compiled_call;
    if (cc_root_init(&self->root, fn, name) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->fn = Py_NewRef(fn);
    self->link = &all_compiled;
    self->next = all_compiled;
    if (self->next != NULL) self->next->link = &self->next;
    all_compiled = self;
    return self;
}

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fn", "fullgraph", "dynamic", "mode", "options", "name", "lender", NULL};
    PyObject *fn, *dynamic = Py_None, *options = NULL, *name = NULL, *lender = Py_None;
    int fullgraph = 0;
    const char *mode = "default";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$pOsO!UO:Compiled", names, &fn, &fullgraph, &dynamic, &mode,
                                     &PyDict_Type, &options, &name, &lender))
        return NULL;
    Compiled *self = make_compiled(type, fn, name);
    if (self == NULL || set_knobs(&self->root, options) < 0) {
        Py_XDECREF(self);
        return NULL;
    }
    self->root.fullgraph = fullgraph;
    self->root.hints.fullgraph = fullgraph;
    self->root.hints.all = dynamic == Py_True;
    self->root.hints.none = dynamic == Py_False;
    if (PyDict_Check(dynamic)) self->root.hints.declared = Py_NewRef(dynamic);
    if (Py_IS_TYPE(lender, type)) self->lender = (Compiled *)Py_NewRef(lender);
    copy_names((PyObject *)self, fn, name);
    return (PyObject *)self;
}

static int compiled_traverse(PyObject *o, visitproc visit, void *arg) {
    Compiled *self = (Compiled *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(self->fn);
    Py_VISIT(self->dict);
    Py_VISIT(self->lender);
    return cc_root_visit(&self->root, visit, arg);
}

static int compiled_clear(PyObject *o) {
    Compiled *self = (Compiled *)o;
    cc_root_clear(&self->root);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->dict);
    Py_CLEAR(self->lender);
    return 0;
}

static void compiled_dealloc(PyObject *o) {
    Compiled *self = (Compiled *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (self->link != NULL) *self->link = self->next; /* before any code runs that could reset all */
    if (self->next != NULL) self->next->link = self->link;
    if (self->weak != NULL) PyObject_ClearWeakRefs(o);
    cc_root_free(&self->root);
    Py_CLEAR(self->fn);
    Py_CLEAR(self->dict);
    Py_CLEAR(self->lender);
    type->tp_free(o);
    Py_DECREF(type);
}

static PyObject *bind(PyObject *o, PyObject *instance, PyObject *owner) {
    (void)owner;
    return instance == NULL || instance == Py_None ? Py_NewRef(o) : PyMethod_New(o, instance);
}

static PyObject *compiled_metrics(PyObject *o, PyObject *unused) {
    (void)unused;
    return cc_metrics_dict(root_of((Compiled *)o));
}

static PyObject *compiled_reset_metrics(PyObject *o, PyObject *unused) {
    (void)unused;
    cc_metrics_reset(root_of((Compiled *)o));
    Py_RETURN_NONE;
}

static PyObject *compiled_report(PyObject *o, PyObject *unused) {
    (void)unused;
    return cc_root_report(root_of((Compiled *)o));
}

static PyObject *compiled_reset(PyObject *o, PyObject *unused) {
    (void)unused;
    cc_root_clear(root_of((Compiled *)o));
    Py_RETURN_NONE;
}

static PyObject *compiled_repr(PyObject *o) {
    return PyUnicode_FromFormat("<ccompile.Compiled of %R>", ((Compiled *)o)->fn);
}

/* Copying a compiled function returns the same object; callable objects and methods are copied, and the copy is
 * compiled with the same settings. */
static PyObject *copy_compiled(PyObject *o, const char *how, PyObject *memo) {
    const Compiled *self = (Compiled *)o;
    if (PyFunction_Check(self->fn)) return Py_NewRef(o);
    PyObject *copy = PyImport_ImportModule("copy");
    PyObject *fn = copy != NULL ? PyObject_CallMethod(copy, how, memo != NULL ? "OO" : "O", self->fn, memo) : NULL;
    Compiled *made = fn != NULL ? make_compiled(Py_TYPE(o), fn, self->root.name) : NULL;
    Py_XDECREF(fn);
    Py_XDECREF(copy);
    if (made == NULL) return NULL;
    made->root.knobs = self->root.knobs;
    made->root.fullgraph = self->root.fullgraph;
    made->root.hints.fullgraph = self->root.hints.fullgraph;
    made->root.hints.all = self->root.hints.all;
    made->root.hints.none = self->root.hints.none;
    made->root.hints.declared = Py_XNewRef(self->root.hints.declared);
    if (self->dict != NULL) made->dict = PyDict_Copy(self->dict);
    if (PyObject_SetAttrString((PyObject *)made, "__wrapped__", made->fn) < 0) Py_CLEAR(made);
    return (PyObject *)made;
}

static PyObject *compiled_copy(PyObject *o, PyObject *unused) {
    (void)unused;
    return copy_compiled(o, "copy", NULL);
}

static PyObject *compiled_deepcopy(PyObject *o, PyObject *memo) { return copy_compiled(o, "deepcopy", memo); }

/* Whether looking the name up in its module finds this object. */
static bool is_named(PyObject *o, PyObject *name) {
    PyObject *module = PyObject_GetAttrString(o, "__module__"), *modules = PyImport_GetModuleDict();
    PyObject *at = module != NULL ? Py_XNewRef(PyDict_GetItemWithError(modules, module)) : NULL;
    PyObject *dot = PyUnicode_FromString("."), *parts = dot != NULL ? PyUnicode_Split(name, dot, -1) : NULL;
    for (Py_ssize_t i = 0; at != NULL && parts != NULL && i < PyList_GET_SIZE(parts); i++)
        Py_SETREF(at, PyObject_GetAttr(at, PyList_GET_ITEM(parts, i)));
    Py_XDECREF(module);
    Py_XDECREF(dot);
    Py_XDECREF(parts);
    Py_XDECREF(at);
    cc_raised_clear();
    return at == o;
}

/* Pickles by name, like a function, if the name leads to this object (it was used as a decorator); else pickles the
 * original. */
static PyObject *compiled_reduce(PyObject *o, PyObject *unused) {
    (void)unused;
    PyObject *name = PyObject_GetAttrString(o, "__qualname__");
    if (name != NULL && PyUnicode_Check(name) && is_named(o, name)) return name;
    Py_XDECREF(name);
    cc_raised_clear();
    /* unpickles as copy.copy(original), which does not need ccompile */
    PyObject *copy = PyImport_ImportModule("copy"),
             *copy_function = copy != NULL ? PyObject_GetAttrString(copy, "copy") : NULL;
    Py_XDECREF(copy);
    return copy_function != NULL ? Py_BuildValue("N(O)", copy_function, ((Compiled *)o)->fn) : NULL;
}

static PyMethodDef compiled_methods[] = {
    {"__copy__", compiled_copy, METH_NOARGS, NULL},
    {"__deepcopy__", compiled_deepcopy, METH_O, NULL},
    {"__reduce__", compiled_reduce, METH_NOARGS, NULL},
    {"metrics", compiled_metrics, METH_NOARGS,
     "metrics() -> dict: counts and times since reset_metrics(); see _core.pyi"},
    {"reset_metrics", compiled_reset_metrics, METH_NOARGS, "reset_metrics(): counts and times begin at 0"},
    {"report", compiled_report, METH_NOARGS, "report() -> dict: entries, segments, guards, breaks; see _core.pyi"},
    {"reset", compiled_reset, METH_NOARGS, "reset(): drops all entries; the next call records again"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef compiled_members[] = {
    {"_orig_fn", T_OBJECT, offsetof(Compiled, fn), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Compiled, vectorcall), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Compiled, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Compiled, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef dict_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* isinstance(compiled, types.FunctionType) is true if it is for the wrapped callable: torch.fx and inspect check this
 * before they look at __code__. */
static PyObject *compiled_class(PyObject *o, void *unused) {
    (void)unused;
    return Py_NewRef(PyFunction_Check(((Compiled *)o)->fn) ? &PyFunction_Type : Py_TYPE(o));
}

static PyObject *wrapped_attribute(PyObject *o, void *name) {
    return PyObject_GetAttrString(((Compiled *)o)->fn, name);
}

/* torch.compile and torch.export unwrap compiled callables: innermost_fn in torch 2.13's _dynamo/eval_frame.py also
 * checks the wrapper's id, and expects a module's __call__. */
static PyObject *orig_callable(PyObject *o, void *unused) {
    (void)unused;
    PyObject *fn = ((Compiled *)o)->fn;
    return PyFunction_Check(fn) || PyMethod_Check(fn) ? Py_NewRef(fn) : PyObject_GetAttrString(fn, "__call__");
}

static PyObject *own_id(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(o);
}

static PyGetSetDef compiled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"__class__", compiled_class, NULL, NULL, NULL},
    {"__code__", wrapped_attribute, NULL, NULL, "__code__"},
    {"__globals__", wrapped_attribute, NULL, NULL, "__globals__"},
    {"__closure__", wrapped_attribute, NULL, NULL, "__closure__"},
    {"__defaults__", wrapped_attribute, NULL, NULL, "__defaults__"},
    {"__kwdefaults__", wrapped_attribute, NULL, NULL, "__kwdefaults__"},
    {"_torchdynamo_orig_callable", orig_callable, NULL, NULL, NULL},
    {"_torchdynamo_wrapper_id", own_id, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot compiled_slots[] = {
    {Py_tp_new, compiled_new},
    {Py_tp_dealloc, compiled_dealloc},
    {Py_tp_traverse, compiled_traverse},
    {Py_tp_clear, compiled_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, bind},
    {Py_tp_repr, compiled_repr},
    {Py_tp_methods, compiled_methods},
    {Py_tp_members, compiled_members},
    {Py_tp_getset, compiled_getset},
    {Py_tp_doc, "A compiled callable, as returned by ccompile.compile."},
    {0, NULL},
};
PyType_Spec cc_types_compiled = {
    "ccompile._core.Compiled",
    sizeof(Compiled),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    compiled_slots,
};

/* ------------------------------------------------------------------ Disabled */

static PyObject *disabled_call(PyObject *o, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Disabled *self = (Disabled *)Py_NewRef(o);
    cc_eval_disabled++;
    PyObject *r = PyObject_Vectorcall(self->fn, args, nargsf, kwnames);
    cc_eval_disabled--;
    Py_DECREF(self);
    return r;
}

static PyObject *disabled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fn", "reason", NULL};
    PyObject *fn, *reason = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Disabled", names, &fn, &reason)) return NULL;
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "Disabled takes a callable, not %.100s", Py_TYPE(fn)->tp_name);
        return NULL;
    }
    Disabled *self = (Disabled *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->vectorcall = disabled_call;
    self->fn = Py_NewRef(fn);
    self->reason = Py_NewRef(reason);
    copy_names((PyObject *)self, fn, NULL);
    return (PyObject *)self;
}

static int disabled_traverse(PyObject *o, visitproc visit, void *arg) {
    Disabled *self = (Disabled *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(self->fn);
    Py_VISIT(self->reason);
    Py_VISIT(self->dict);
    return 0;
}

static int disabled_clear(PyObject *o) {
    Disabled *self = (Disabled *)o;
    Py_CLEAR(self->fn);
    Py_CLEAR(self->reason);
    Py_CLEAR(self->dict);
    return 0;
}

static void disabled_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (((Disabled *)o)->weak != NULL) PyObject_ClearWeakRefs(o);
    disabled_clear(o);
    type->tp_free(o);
    Py_DECREF(type);
}

static PyObject *disabled_repr(PyObject *o) {
    return PyUnicode_FromFormat("<ccompile.disable of %R>", ((Disabled *)o)->fn);
}

static PyMemberDef disabled_members[] = {
    {"_orig_fn", T_OBJECT, offsetof(Disabled, fn), READONLY, NULL},
    {"reason", T_OBJECT, offsetof(Disabled, reason), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Disabled, vectorcall), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Disabled, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Disabled, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot disabled_slots[] = {
    {Py_tp_new, disabled_new},
    {Py_tp_dealloc, disabled_dealloc},
    {Py_tp_traverse, disabled_traverse},
    {Py_tp_clear, disabled_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, bind},
    {Py_tp_repr, disabled_repr},
    {Py_tp_members, disabled_members},
    {Py_tp_getset, dict_getset},
    {Py_tp_doc, "A callable that runs eagerly, as returned by ccompile.disable."},
    {0, NULL},
};
PyType_Spec cc_types_disabled = {
    "ccompile._core.Disabled",
    sizeof(Disabled),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    disabled_slots,
};
