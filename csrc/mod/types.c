/* Compiled: a compiled callable. Disabled: a callable that always runs eagerly and is a graph break in compiled code.
 * Both behave like what they wrap: vectorcall; __get__ makes a method if the wrapped callable's does; they are copied and
 * pickled as it is; and they have __wrapped__, its name, its docstring and, of a function or method, its attributes. */
#include "mod.h"

#include <pthread.h>
#include <structmember.h>

/* What objects of both types begin with. */
typedef struct {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *fn; /* _orig_fn, and __wrapped__ unless other code sets it (functools.wraps) */
    PyObject *dict, *weak;
} Wrapper;

typedef struct Compiled {
    Wrapper base;
    PyObject *through;             /* makes `called` of fn; NULL: fn itself is called */
    PyObject *called;              /* root.callable */
    struct Compiled *lender;       /* whose entries it uses while both wrap the same callable; NULL: its own */
    struct Compiled *next, **link; /* list of all instances, for reset() */
    CcRoot root;
} Compiled;

typedef struct {
    Wrapper base;
    PyObject *reason;
    PyObject *by_torch; /* NULL: Dynamo has not asked yet */
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
    return compiled_type != NULL && Py_IS_TYPE(o, compiled_type) ? ((Compiled *)o)->called : NULL;
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

/* ------------------------------------------------------------------ what both types do */

/* Adds fn's attributes. Those of an object are its state, which changes: programs read them from the object. */
static int copy_attributes(PyObject *self, PyObject *fn) {
    if (!PyFunction_Check(fn) && !PyMethod_Check(fn)) return 0;
    PyObject *from = PyObject_GetAttrString(fn, "__dict__"), *to = PyObject_GenericGetDict(self, NULL);
    const int status = from != NULL && to != NULL ? PyDict_Update(to, from) : -1;
    Py_XDECREF(from);
    Py_XDECREF(to);
    return status;
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
    if (copy_attributes(self, fn) < 0) cc_raised_clear();
    if (PyObject_SetAttrString(self, "__wrapped__", fn) < 0) cc_raised_clear();
}

/* A class attribute that is a function makes methods; one that is code in C, a method or an object does not. */
static PyObject *bind(PyObject *o, PyObject *instance, PyObject *owner) {
    (void)owner;
    PyObject *fn = ((Wrapper *)o)->fn;
    const bool binds = Py_TYPE(fn)->tp_descr_get != NULL && !PyMethod_Check(fn);
    return instance == NULL || instance == Py_None || !binds ? Py_NewRef(o) : PyMethod_New(o, instance);
}

/* A function of these names becomes a classmethod with its class (type_new_classmethod in CPython), by its type. */
static PyObject *wrapper_set_name(PyObject *o, PyObject *args) {
    PyObject *owner, *name;
    if (!PyArg_ParseTuple(args, "OU:__set_name__", &owner, &name)) return NULL;
    const bool by_class = PyUnicode_CompareWithASCIIString(name, "__init_subclass__") == 0 ||
                          PyUnicode_CompareWithASCIIString(name, "__class_getitem__") == 0;
    if (!by_class || !PyFunction_Check(((Wrapper *)o)->fn)) Py_RETURN_NONE;
    PyObject *method = PyClassMethod_New(o);
    const int status = method != NULL ? PyObject_SetAttr(owner, name, method) : -1;
    Py_XDECREF(method);
    return status == 0 ? Py_NewRef(Py_None) : NULL;
}

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
static PyObject *wrapper_reduce(PyObject *o, PyObject *unused) {
    (void)unused;
    PyObject *name = PyObject_GetAttrString(o, "__qualname__");
    if (name != NULL && PyUnicode_Check(name) && is_named(o, name)) return name;
    Py_XDECREF(name);
    cc_raised_clear();
    /* unpickles as copy.copy(original), which does not need ccompile */
    PyObject *copy = PyImport_ImportModule("copy"),
             *copy_function = copy != NULL ? PyObject_GetAttrString(copy, "copy") : NULL;
    Py_XDECREF(copy);
    return copy_function != NULL ? Py_BuildValue("N(O)", copy_function, ((Wrapper *)o)->fn) : NULL;
}

static PyObject *compile_alike(const Compiled *self, PyObject *fn);
static PyObject *disable_alike(const Disabled *self, PyObject *fn);

/* A function is copied as itself. Other callables are copied, and the copy is compiled or disabled in the same way. */
static PyObject *copy_wrapper(PyObject *o, const char *how, PyObject *memo) {
    const Wrapper *self = (Wrapper *)o;
    if (PyFunction_Check(self->fn)) return Py_NewRef(o);
    PyObject *copy = PyImport_ImportModule("copy");
    PyObject *fn = copy != NULL ? PyObject_CallMethod(copy, how, memo != NULL ? "OO" : "O", self->fn, memo) : NULL;
    Py_XDECREF(copy);
    if (fn == NULL || fn == self->fn) { /* code in C is copied as itself, too */
        Py_XDECREF(fn);
        return fn != NULL ? Py_NewRef(o) : NULL;
    }
    PyObject *made = cc_types_unwrap(o) != NULL ? compile_alike((Compiled *)o, fn) : disable_alike((Disabled *)o, fn);
    if (made != NULL && self->dict != NULL) ((Wrapper *)made)->dict = PyDict_Copy(self->dict);
    if (made != NULL && PyObject_SetAttrString(made, "__wrapped__", fn) < 0) Py_CLEAR(made);
    Py_DECREF(fn);
    return made;
}

static PyObject *wrapper_copy(PyObject *o, PyObject *unused) {
    (void)unused;
    return copy_wrapper(o, "copy", NULL);
}

static PyObject *wrapper_deepcopy(PyObject *o, PyObject *memo) { return copy_wrapper(o, "deepcopy", memo); }

/* isinstance(wrapper, types.FunctionType) is true if it is for the wrapped callable: torch.fx, torch.jit.script and inspect
 * check this before they look at __code__ and its like. */
static PyObject *wrapped_class(PyObject *o, void *unused) {
    (void)unused;
    return Py_NewRef(PyFunction_Check(((Wrapper *)o)->fn) ? &PyFunction_Type : Py_TYPE(o));
}

static PyObject *wrapped_attribute(PyObject *o, void *name) { return PyObject_GetAttrString(((Wrapper *)o)->fn, name); }

/* clang-format off */
#define WRAPPER_METHODS                                     \
    {"__copy__", wrapper_copy, METH_NOARGS, NULL},          \
    {"__deepcopy__", wrapper_deepcopy, METH_O, NULL},       \
    {"__reduce__", wrapper_reduce, METH_NOARGS, NULL},      \
    {"__set_name__", wrapper_set_name, METH_VARARGS, NULL}
#define WRAPPER_MEMBERS                                                                  \
    {"_orig_fn", T_OBJECT, offsetof(Wrapper, fn), READONLY, NULL},                       \
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Wrapper, vectorcall), READONLY, NULL}, \
    {"__dictoffset__", T_PYSSIZET, offsetof(Wrapper, dict), READONLY, NULL},             \
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Wrapper, weak), READONLY, NULL}
#define WRAPPER_GETSET                                                            \
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},   \
    {"__code__", wrapped_attribute, NULL, NULL, "__code__"},                      \
    {"__globals__", wrapped_attribute, NULL, NULL, "__globals__"},                \
    {"__closure__", wrapped_attribute, NULL, NULL, "__closure__"},                \
    {"__defaults__", wrapped_attribute, NULL, NULL, "__defaults__"},              \
    {"__kwdefaults__", wrapped_attribute, NULL, NULL, "__kwdefaults__"}
/* clang-format on */

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
    return self->lender != NULL && same_callable(self->base.fn, self->lender->base.fn) ? &self->lender->root
                                                                                       : &self->root;
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

/* through: makes a function in Python that calls fn, if fn is none: frames are what can be recorded. Else NULL. */
static Compiled *make_compiled(PyTypeObject *type, PyObject *fn, PyObject *through, PyObject *name) {
    Compiled *self = (Compiled *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->base.vectorcall = compiled_call;
    self->base.fn = Py_NewRef(fn);
    self->through = Py_XNewRef(through);
    self->called = through != NULL ? PyObject_CallOneArg(through, fn) : Py_NewRef(fn);
    if (self->called == NULL || cc_root_init(&self->root, self->called, name) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->link = &all_compiled;
    self->next = all_compiled;
    if (self->next != NULL) self->next->link = &self->next;
    all_compiled = self;
    return self;
}

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fn", "fullgraph", "dynamic", "mode", "options", "name", "lender", "through", NULL};
    PyObject *fn, *dynamic = Py_None, *options = NULL, *name = NULL, *lender = Py_None, *through = Py_None;
    int fullgraph = 0;
    const char *mode = "default";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$pOsO!UOO:Compiled", names, &fn, &fullgraph, &dynamic, &mode,
                                     &PyDict_Type, &options, &name, &lender, &through))
        return NULL;
    Compiled *self = make_compiled(type, fn, through != Py_None ? through : NULL, name);
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
    Py_VISIT(self->base.fn);
    Py_VISIT(self->base.dict);
    Py_VISIT(self->through);
    Py_VISIT(self->called);
    Py_VISIT(self->lender);
    return cc_root_visit(&self->root, visit, arg);
}

static void drop_objects(Compiled *self) {
    Py_CLEAR(self->base.fn);
    Py_CLEAR(self->base.dict);
    Py_CLEAR(self->through);
    Py_CLEAR(self->called);
    Py_CLEAR(self->lender);
}

static int compiled_clear(PyObject *o) {
    Compiled *self = (Compiled *)o;
    cc_root_clear(&self->root);
    drop_objects(self);
    return 0;
}

static void compiled_dealloc(PyObject *o) {
    Compiled *self = (Compiled *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (self->link != NULL) *self->link = self->next; /* before any code runs that could reset all */
    if (self->next != NULL) self->next->link = self->link;
    if (self->base.weak != NULL) PyObject_ClearWeakRefs(o);
    cc_root_free(&self->root);
    drop_objects(self);
    type->tp_free(o);
    Py_DECREF(type);
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
    return PyUnicode_FromFormat("<ccompile.Compiled of %R>", ((Wrapper *)o)->fn);
}

static PyObject *compile_alike(const Compiled *self, PyObject *fn) {
    Compiled *made = make_compiled(compiled_type, fn, self->through, self->root.name);
    if (made == NULL) return NULL;
    made->root.knobs = self->root.knobs;
    made->root.fullgraph = self->root.fullgraph;
    made->root.hints.fullgraph = self->root.hints.fullgraph;
    made->root.hints.all = self->root.hints.all;
    made->root.hints.none = self->root.hints.none;
    made->root.hints.declared = Py_XNewRef(self->root.hints.declared);
    return (PyObject *)made;
}

static PyMethodDef compiled_methods[] = {
    WRAPPER_METHODS,
    {"metrics", compiled_metrics, METH_NOARGS,
     "metrics() -> dict: counts and times since reset_metrics(); see _core.pyi"},
    {"reset_metrics", compiled_reset_metrics, METH_NOARGS, "reset_metrics(): counts and times begin at 0"},
    {"report", compiled_report, METH_NOARGS, "report() -> dict: entries, segments, guards, breaks; see _core.pyi"},
    {"reset", compiled_reset, METH_NOARGS, "reset(): drops all entries; the next call records again"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef compiled_members[] = {
    {"_called", T_OBJECT, offsetof(Compiled, called), READONLY, NULL}, /* rec/ev_call.c reads it */
    WRAPPER_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

/* torch.compile and torch.export unwrap compiled callables: innermost_fn in torch 2.13's _dynamo/eval_frame.py also
 * checks the wrapper's id, and expects a module's __call__. */
static PyObject *orig_callable(PyObject *o, void *unused) {
    (void)unused;
    PyObject *called = ((Compiled *)o)->called;
    const bool is_itself = PyFunction_Check(called) || PyMethod_Check(called);
    return is_itself ? Py_NewRef(called) : PyObject_GetAttrString(called, "__call__");
}

static PyObject *own_id(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromVoidPtr(o);
}

static PyGetSetDef compiled_getset[] = {
    WRAPPER_GETSET,
    {"__class__", wrapped_class, NULL, NULL, NULL},
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
    PyObject *r = PyObject_Vectorcall(self->base.fn, args, nargsf, kwnames);
    cc_eval_disabled--;
    Py_DECREF(self);
    return r;
}

static PyObject *make_disabled(PyTypeObject *type, PyObject *fn, PyObject *reason) {
    Disabled *self = (Disabled *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->base.vectorcall = disabled_call;
    self->base.fn = Py_NewRef(fn);
    self->reason = Py_NewRef(reason);
    return (PyObject *)self;
}

static PyObject *disabled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fn", "reason", NULL};
    PyObject *fn, *reason = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:Disabled", names, &fn, &reason)) return NULL;
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "Disabled takes a callable, not %.100s", Py_TYPE(fn)->tp_name);
        return NULL;
    }
    PyObject *self = make_disabled(type, fn, reason);
    if (self != NULL) copy_names(self, fn, NULL);
    return self;
}

static int disabled_traverse(PyObject *o, visitproc visit, void *arg) {
    Disabled *self = (Disabled *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(self->base.fn);
    Py_VISIT(self->base.dict);
    Py_VISIT(self->reason);
    Py_VISIT(self->by_torch);
    return 0;
}

static int disabled_clear(PyObject *o) {
    Disabled *self = (Disabled *)o;
    Py_CLEAR(self->base.fn);
    Py_CLEAR(self->base.dict);
    Py_CLEAR(self->reason);
    Py_CLEAR(self->by_torch);
    return 0;
}

static void disabled_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (((Wrapper *)o)->weak != NULL) PyObject_ClearWeakRefs(o);
    disabled_clear(o);
    type->tp_free(o);
    Py_DECREF(type);
}

/* Dynamo takes a function with this attribute for a wrapper, and traces what it gives: a call of what torch.compiler.disable
 * has made, which is a graph break for it, too. One object: Dynamo's guards compare it. */
static PyObject *disabled_by_torch(PyObject *o, void *unused) {
    (void)unused;
    Disabled *self = (Disabled *)o;
    PyObject *module = self->by_torch == NULL ? PyImport_ImportModule("torch._dynamo.decorators") : NULL;
    if (module != NULL) self->by_torch = PyObject_CallMethod(module, "disable", "O", self->base.fn);
    Py_XDECREF(module);
    return Py_XNewRef(self->by_torch);
}

static PyObject *disabled_repr(PyObject *o) {
    return PyUnicode_FromFormat("<ccompile.disable of %R>", ((Wrapper *)o)->fn);
}

static PyObject *disable_alike(const Disabled *self, PyObject *fn) {
    return make_disabled(Py_TYPE(self), fn, self->reason);
}

static PyMethodDef disabled_methods[] = {
    WRAPPER_METHODS,
    {NULL, NULL, 0, NULL},
};

static PyMemberDef disabled_members[] = {
    {"reason", T_OBJECT, offsetof(Disabled, reason), READONLY, NULL},
    WRAPPER_MEMBERS,
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef disabled_getset[] = {
    WRAPPER_GETSET,
    {"__class__", wrapped_class, NULL, NULL, NULL},
    {"_torchdynamo_inline", disabled_by_torch, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot disabled_slots[] = {
    {Py_tp_new, disabled_new},
    {Py_tp_dealloc, disabled_dealloc},
    {Py_tp_traverse, disabled_traverse},
    {Py_tp_clear, disabled_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, bind},
    {Py_tp_repr, disabled_repr},
    {Py_tp_methods, disabled_methods},
    {Py_tp_members, disabled_members},
    {Py_tp_getset, disabled_getset},
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
