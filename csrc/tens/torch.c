/* What a torch callable does: init resolves torch.def and plain.def to addresses, so that each call takes one hash
 * lookup.
 *
 * init walks torch's namespaces and registers each C callable under its PyMethodDef (which identifies a method
 * descriptor, a bound builtin and a function that share one) with the fact that the tables list for its name. Other C
 * callables of torch are recognised by module or type name and become CC_T_UNKNOWN, which promises nothing. */
#include "tens_int.h"

/* torch.def */
enum { W = 1, R = 2, D = 4, N = 8, S = 16, M = 32, B = 64, Z = 128, G = 256, K = 512, P = 1024, T = 2048 };

typedef struct Fact {
    const char *name;
    CcTorchClass cls;
    int flags, position;
    const char *argument, *why;
} Fact;

static const Fact FACT[] = {
    {"", CC_T_UNKNOWN, 0, 0, NULL, NULL}, /* 0: no row */
    {"", CC_T_OP, 0, 0, NULL, NULL},      /* 1: CC_PLAIN */
    {"", CC_T_OP, W, 0, NULL, NULL},      /* 2: CC_PLAIN_WRITES */
#define CC_TORCH(name, cls, flags, position, argument, why) {name, CC_T_##cls, flags, position, argument, why},
#define CC_TORCH_TYPE(path, prefix, cls, why) {path, CC_T_##cls, 0, 0, prefix, why},
#define CC_TORCH_ATTR(name, cls, flags, why) {"." name, CC_T_##cls, flags, 0, NULL, why},
#include "torch.def"
#undef CC_TORCH
#undef CC_TORCH_TYPE
#undef CC_TORCH_ATTR
};
enum { F_UNKNOWN, F_PLAIN, F_PLAIN_WRITES };

static const struct Plain {
    const char *names;
    int fact;
} PLAIN[] = {
#define CC_PLAIN(names) {names, F_PLAIN},
#define CC_PLAIN_WRITES(names) {names, F_PLAIN_WRITES},
#include "plain.def"
#undef CC_PLAIN
#undef CC_PLAIN_WRITES
};

enum { RAISES_NOT, RAISES_ALWAYS, RAISES_INTEGERS }; /* what of data may raise */
static const struct {
    const char *names;
    int when;
} RAISES[] = {
#define CC_RAISES(names) {names, RAISES_ALWAYS},
#define CC_RAISES_INTEGERS(names) {names, RAISES_INTEGERS},
#include "raises.def"
#undef CC_RAISES
#undef CC_RAISES_INTEGERS
};

/* Namespaces with C callables: path, name shown to users, prefix of their rows in torch.def. */
static const struct Space {
    const char *path, *show, *prefix;
} SPACE[] = {
    {"torch._C._VariableFunctionsClass", "torch.", ""},
    {"torch._C._nn", "torch._C._nn.", ""},
    {"torch._C._linalg", "torch._C._linalg.", ""},
    {"torch._C._fft", "torch._C._fft.", ""},
    {"torch._C._special", "torch._C._special.", ""},
    {"torch._C._sparse", "torch._C._sparse.", ""},
    {"torch._C._nested", "torch._C._nested.", ""},
    {"torch._C.TensorBase", "Tensor.", ""},
    {"torch.Tensor", "Tensor.", ""},
    {"torch._C._functorch", "torch._C._functorch.", "_C._functorch."},
    {"torch._C._InferenceMode", "torch._C._InferenceMode.", "_InferenceMode."},
    {"torch.device", "torch.device.", "device."},
    {"torch._C", "torch._C.", "_C."},
    {"torch", "torch.", "torch."},
};

typedef struct Entry {
    int fact;
    int raises; /* RAISES_* */
    const char *name;
} Entry;

static struct {
    CcArena *arena; /* names; lives as long as the process */
    CcMap facts;    /* interned name -> fact: "relu", "_C.fork" */
    CcMap raises;   /* interned names of raises.def */
    CcMap attrs;    /* interned attribute name -> fact */
    CcMap known;    /* cc_torch_key -> entry */
    CC_VEC(Entry) entry;
    PyObject *keep; /* list: keeps names and callables alive whose addresses are keys */
} X;

/* ------------------------------------------------------------------ keys */

/* For a method-wrapper such as x.__getitem__: the slot wrapper behind it, found by name in its class. */
static const void *wrapped_slot(PyObject *o, PyObject **self) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *owner = PyObject_GetAttrString(o, "__objclass__");
    PyObject *name = PyObject_GetAttrString(o, "__name__");
    *self = PyObject_GetAttrString(o, "__self__");
    Py_XDECREF(*self); /* borrowed: o keeps it alive */
    PyObject *wrapper = owner && name && PyType_Check(owner) ? _PyType_Lookup((PyTypeObject *)owner, name) : NULL;
    Py_XDECREF(owner);
    Py_XDECREF(name);
    PyErr_Restore(type, value, tb);
    return wrapper ? wrapper : o;
}

const void *cc_torch_key(PyObject *o, PyObject **self) {
    *self = NULL;
    if (PyCFunction_Check(o)) {
        *self = PyCFunction_GET_SELF(o);
        return ((PyCFunctionObject *)o)->m_ml;
    }
    PyTypeObject *type = Py_TYPE(o);
    if (type == &PyMethodDescr_Type || type == &PyClassMethodDescr_Type) return ((PyMethodDescrObject *)o)->d_method;
    return type == cc_known_type(CC_KNOWN_METHOD_WRAPPER) ? wrapped_slot(o, self) : o;
}

static bool is_torch_module(PyObject *text) {
    const char *s = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    if (!s) cc_raised_clear();
    return s && strncmp(s, "torch", 5) == 0 && (s[5] == 0 || s[5] == '.');
}

static bool torch_type(const PyTypeObject *type) {
    return type == cc_known_type(CC_KNOWN_TENSOR) || strncmp(type->tp_name, "torch.", 6) == 0; /* C's: by package */
}

/* The name of an unlisted C callable if it belongs to torch, else NULL. */
static const char *foreign_name(PyObject *o, PyObject *self) {
    if (PyCFunction_Check(o)) {
        PyCFunctionObject *f = (PyCFunctionObject *)o;
        bool ours = is_torch_module(f->m_module) || (self && !PyModule_Check(self) && torch_type(Py_TYPE(self))) ||
                    (self && PyType_Check(self) && torch_type((PyTypeObject *)self));
        return ours ? f->m_ml->ml_name : NULL;
    }
    PyTypeObject *type = Py_TYPE(o);
    if (type == &PyMethodDescr_Type || type == &PyClassMethodDescr_Type || type == &PyWrapperDescr_Type ||
        type == &PyGetSetDescr_Type) {
        PyDescrObject *d = (PyDescrObject *)o;
        return torch_type(d->d_type) ? PyUnicode_AsUTF8(d->d_name) : NULL;
    }
    return NULL;
}

/* ------------------------------------------------------------------ facts that depend on arguments */

static bool falsy(PyObject *o) {
    if (o == Py_False || o == Py_None) return true;
    if (PyLong_CheckExact(o)) return PyObject_IsTrue(o) == 0;
    return PyFloat_CheckExact(o) && PyFloat_AS_DOUBLE(o) == 0.0;
}

static PyObject *argument(PyObject *const *args, Py_ssize_t n, PyObject *kwnames, int position, const char *name) {
    if (position >= 0 && position < n) return args[position];
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), name) == 0) return args[n + i];
    return NULL;
}

static bool is_mask(PyObject *o) {
    if (!cc_tens_is(o)) return false;
    CcTensor t;
    cc_tens_read(o, false, &t);
    return t.type.ndim < 0 || t.type.dtype == CC_DT_BOOL || t.type.dtype == CC_DT_U8;
}

static bool mask_index(PyObject *o, int depth) {
    if (PySlice_Check(o)) {
        PySliceObject *s = (PySliceObject *)o;
        return cc_tens_is(s->start) || cc_tens_is(s->stop) || cc_tens_is(s->step);
    }
    if (depth < 4 && (PyTuple_Check(o) || PyList_Check(o)))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (mask_index(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return true;
    return is_mask(o);
}

bool cc_torch_within(PyObject *o, int depth) {
    if (depth < 3 && (PyTuple_Check(o) || PyList_Check(o)))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (cc_torch_within(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return true;
    return cc_tens_is(o);
}

static bool shaped_by_tensor(PyObject *const *args, Py_ssize_t n, PyObject *kwnames, int position) {
    for (Py_ssize_t i = CC_MAX(position, 0); i < n; i++)
        if (cc_torch_within(args[i], 0)) return true;
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (PyUnicode_CompareWithASCIIString(name, "input") && PyUnicode_CompareWithASCIIString(name, "out") &&
            PyUnicode_CompareWithASCIIString(name, "prepend") && /* arguments of diff: data, not sizes */
            PyUnicode_CompareWithASCIIString(name, "append") && cc_torch_within(args[n + i], 0))
            return true;
    }
    return false;
}

static bool plain_data(PyObject *o, int depth) {
    if (PyTuple_Check(o) || PyList_Check(o)) {
        if (depth > 8) return false;
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!plain_data(PySequence_Fast_GET_ITEM(o, i), depth + 1)) return false;
        return true;
    }
    return o == Py_None || PyLong_Check(o) || PyFloat_Check(o) || PyComplex_Check(o) || PyUnicode_Check(o) ||
           cc_tens_is(o) || cc_tens_constant(o) || o == (PyObject *)&PyLong_Type || o == (PyObject *)&PyFloat_Type ||
           o == (PyObject *)&PyBool_Type; /* dtype=int */
}

static int tensors_in(PyObject *const *args, Py_ssize_t n) {
    int count = 0;
    for (Py_ssize_t i = 0; i < n; i++) count += cc_tens_is(args[i]);
    return count;
}

static void apply_arguments(const Fact *f, int bound, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                            CcTorch *out) {
    int flags = f->flags;
    Py_ssize_t total = n + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
    if (f->argument && (flags & (W | R))) {
        PyObject *value = argument(args, n, kwnames, f->position - bound, f->argument);
        if (!value || falsy(value)) flags &= ~(W | R);
        PyObject *before = flags & P ? argument(args, n, kwnames, f->position - 1 - bound, "dropout") : NULL;
        if (before && falsy(before)) flags &= ~R;
        PyObject *kept = flags & K ? argument(args, n, kwnames, f->position - 2 - bound, "running_mean") : NULL;
        if (flags & K && (!kept || kept == Py_None)) flags &= ~W;
    }
    if (kwnames) {
        PyObject *result = argument(args, n, kwnames, -1, "out");
        if (result && result != Py_None) flags |= W;
    }
    if ((flags & N) && tensors_in(args, total) + bound == 1 && total + bound == 1) flags |= D;
    if ((flags & S) && shaped_by_tensor(args, n, kwnames, f->position - bound)) flags |= D;
    if ((flags & M) && n > 1 - bound && mask_index(args[1 - bound], 0)) flags |= D;
    if ((flags & Z) && total + bound <= 1) out->cls = CC_T_META;
    if (flags & T && n > 0 && cc_tens_is(args[0])) {
        out->cls = CC_T_BREAK;
        out->why = f->why;
    }
    if (flags & B)
        for (Py_ssize_t i = 0; i < total; i++)
            if (!plain_data(args[i], 0)) {
                out->cls = CC_T_BREAK;
                out->why = f->why;
            }
    out->node_flags = (flags & W ? CC_N_WRITES : 0) | (flags & R ? CC_N_RANDOM : 0);
    out->dynamic_shape = (flags & D) != 0;
    out->draws = (f->flags & R) != 0;
}

bool cc_torch_of_type(const char *name) {
    const size_t n = strlen(name);
    return n >= 12 && strncmp(name, "torch.", 6) == 0 && strcmp(name + n - 6, "Tensor") == 0;
}

bool cc_torch_takes_float(PyObject *const *args, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n && i < 2; i++) {
        CcTensor t;
        if (PyFloat_CheckExact(args[i])) return true;
        if (!cc_tens_is(args[i])) continue;
        cc_tens_read(args[i], false, &t);
        if (t.type.ndim >= 0 && cc_dtype_info((CcDtype)t.type.dtype)->kind == 'f') return true;
    }
    return false;
}

static const Entry *find(PyObject *callable, PyObject **self) {
    const int64_t *at = cc_map_find(&X.known, cc_torch_key(callable, self));
    return at ? &X.entry.at[*at] : NULL;
}

CcTorch cc_torch_call(PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    CcTorch out = {.cls = CC_T_NONE};
    n = PyVectorcall_NARGS((size_t)n);
    PyObject *self;
    const Entry *e = find(callable, &self);
    out.name = e ? e->name : foreign_name(callable, self);
    if (!out.name) return out;
    if (!*out.name) out.name = "torch.ops"; /* pybind gives operators no name */
    const Fact *f = &FACT[e ? e->fact : F_UNKNOWN];
    out.cls = f->cls;
    if (f->cls == CC_T_VALUE || f->cls == CC_T_BREAK || f->cls == CC_T_RESHAPES) out.why = f->why;
    if (f->cls == CC_T_UNKNOWN) {
        out.node_flags = CC_N_WRITES | CC_N_RANDOM | CC_N_EFFECT;
        out.dynamic_shape = true;
    }
    if (f->cls == CC_T_OP || f->cls == CC_T_MAKE) apply_arguments(f, self && cc_tens_is(self), args, n, kwnames, &out);
    out.raises = out.dynamic_shape || e == NULL || e->raises == RAISES_ALWAYS ||
                 (e->raises == RAISES_INTEGERS && !cc_torch_takes_float(args, n));
    return out;
}

static bool is_call_of(PyTypeObject *type, PyCodeObject *code) {
    PyObject *name = cc_obj_intern("__call__"), *call = type != NULL ? cc_type_lookup(type, name) : NULL;
    Py_DECREF(name);
    return call != NULL && PyFunction_Check(call) && ((PyFunctionObject *)call)->func_code == (PyObject *)code;
}

bool cc_torch_traced(PyObject *tb) {
    const PyTracebackObject *t = (PyTracebackObject *)tb;
    for (; t != NULL; t = t->tb_next) {
        PyCodeObject *code = PyFrame_GetCode(t->tb_frame);
        const bool passes_on = cc_devmode_runs(code) || is_call_of(cc_known_type(CC_KNOWN_OP_PACKET), code) ||
                               is_call_of(cc_known_type(CC_KNOWN_OP_OVERLOAD), code);
        Py_DECREF(code);
        if (!passes_on) return false;
    }
    return tb != NULL;
}

/* ------------------------------------------------------------------ attributes */

static bool bound_to(PyObject *value, PyObject *tensor) {
    if (PyMethod_Check(value)) return PyMethod_GET_SELF(value) == tensor;
    return PyCFunction_Check(value) && PyCFunction_GET_SELF(value) == tensor;
}

/* An attribute that is not one of torch's getsets. The guard on the type covers methods of the class. */
static CcTorchClass class_attribute(PyObject *tensor, PyObject *name) {
    PyObject *d = _PyType_Lookup(Py_TYPE(tensor), name);
    if (!d) return CC_T_UNKNOWN; /* an instance attribute, or an AttributeError */
    PyTypeObject *type = Py_TYPE(d);
    if (type == &PyProperty_Type) return CC_T_NONE; /* Python code, whose frame the hook sees */
    if (type == &PyMethodDescr_Type || type == &PyFunction_Type || type == &PyWrapperDescr_Type) {
        /* the tensor's __dict__ may shadow the method */
        PyObject *value = PyObject_GetAttr(tensor, name);
        bool method = value && (bound_to(value, tensor) || cc_known_is(value, CC_KNOWN_METHOD_WRAPPER));
        Py_XDECREF(value);
        cc_raised_clear();
        return method ? CC_T_META : CC_T_UNKNOWN;
    }
    return CC_T_UNKNOWN;
}

CcTorch cc_torch_attr(PyObject *tensor, PyObject *name) {
    CcTorch out = {.cls = CC_T_UNKNOWN};
    if (!PyUnicode_CheckExact(name) || !cc_tens_plain(tensor)) return out;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    Py_INCREF(name);
    if (!PyUnicode_CHECK_INTERNED(name)) PyUnicode_InternInPlace(&name);
    const int64_t *at = cc_map_find(&X.attrs, name);
    if (at) {
        const Fact *f = &FACT[*at];
        out.cls = f->cls;
        out.name = f->name + 1;
        if (f->cls == CC_T_BREAK || f->cls == CC_T_HELD) out.why = f->why;
        if (f->flags & G) {
            CcTensor t;
            cc_tens_read(tensor, true, &t);
            out.by_grad = true;
            if (t.type.ndim < 0 || t.type.requires_grad) {
                out.cls = CC_T_BREAK;
                out.why = f->why;
            }
        }
    } else {
        out.cls = class_attribute(tensor, name);
    }
    Py_DECREF(name);
    PyErr_Restore(type, value, tb);
    return out;
}

/* ------------------------------------------------------------------ init */

/* An interned, immortal string, for use as a key; NULL with an error set. */
static PyObject *intern(const char *text, Py_ssize_t n) {
    PyObject *name = PyUnicode_FromStringAndSize(text, n);
    if (!name) return NULL;
    PyUnicode_InternInPlace(&name);
    int rc = PyList_Append(X.keep, name);
    Py_DECREF(name);
    return rc ? NULL : name;
}

/* Registers names separated by spaces. */
static int load_names(CcMap *map, const char *names, int fact) {
    for (const char *s = names; *s;) {
        size_t n = strcspn(s, " ");
        PyObject *name = intern(s, (Py_ssize_t)n);
        if (!name) return -1;
        cc_map_put(map, name, fact);
        s += n + strspn(s + n, " ");
    }
    return 0;
}

static int load_facts(void) {
    for (int i = 0; i < CC_COUNT(PLAIN); i++)
        if (load_names(&X.facts, PLAIN[i].names, PLAIN[i].fact)) return -1;
    for (int i = 0; i < CC_COUNT(RAISES); i++)
        if (load_names(&X.raises, RAISES[i].names, RAISES[i].when)) return -1;
    for (int i = F_PLAIN_WRITES + 1; i < CC_COUNT(FACT); i++) {
        bool attr = FACT[i].name[0] == '.';
        PyObject *name = intern(FACT[i].name + attr, (Py_ssize_t)strlen(FACT[i].name + attr));
        if (!name) return -1;
        cc_map_put(attr ? &X.attrs : &X.facts, name, i);
    }
    return 0;
}

bool cc_torch_computes(PyObject *name) {
    const int64_t *at = cc_map_find(&X.facts, name); /* names in code objects are interned */
    return at != NULL && FACT[*at].cls == CC_T_OP && !(FACT[*at].flags & (W | R));
}

static int raises_when(const char *name) {
    PyObject *key = PyUnicode_FromString(name);
    if (key) PyUnicode_InternInPlace(&key);
    const int64_t *when = key ? cc_map_find(&X.raises, key) : NULL;
    Py_XDECREF(key);
    return when ? (int)*when : RAISES_NOT;
}

static int add_callable(PyObject *callable, int fact, const char *show, const char *name) {
    PyObject *self;
    const void *key = cc_torch_key(callable, &self);
    if (cc_map_find(&X.known, key)) return 0;
    if (PyList_Append(X.keep, callable)) return -1;
    size_t n = strlen(show) + strlen(name) + 1;
    char *text = cc_arena_alloc(X.arena, n);
    if (!text) {
        PyErr_NoMemory();
        return -1;
    }
    snprintf(text, n, "%s%s", show, name);
    cc_map_put(&X.known, key, X.entry.n);
    cc_vec_push(&X.entry, (Entry){fact, raises_when(name), text});
    return 0;
}

static bool c_callable(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    return type == &PyMethodDescr_Type || type == &PyClassMethodDescr_Type || type == &PyWrapperDescr_Type ||
           PyCFunction_Check(o);
}

static int fact_of(const char *prefix, const char *name) {
    char full[160];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    PyObject *key = PyUnicode_FromString(full);
    if (key) PyUnicode_InternInPlace(&key);
    const int64_t *at = key ? cc_map_find(&X.facts, key) : NULL;
    int fact = at ? (int)*at : F_UNKNOWN;
    Py_XDECREF(key);
    return fact;
}

/* Registers every C callable in the own dict of a module or type; inherited ones belong to their type. */
static int walk(PyObject *space, const char *show, const char *prefix, int fallback) {
    PyObject *dict = PyType_Check(space) ? cc_type_dict((PyTypeObject *)space) : PyModule_GetDict(space);
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (dict && PyDict_Next(dict, &at, &name, &value)) {
        const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
        if (!text) continue;
        if (Py_TYPE(value) == &PyStaticMethod_Type) value = PyObject_GetAttr(space, name);
        else value = Py_NewRef(PyInstanceMethod_Check(value) ? PyInstanceMethod_GET_FUNCTION(value) : value);
        int fact = value && (c_callable(value) || PyType_Check(value)) ? fact_of(prefix, text) : -1;
        if (fact == F_UNKNOWN) fact = c_callable(value) ? fallback : -1;
        int rc = fact >= 0 ? add_callable(value, fact, show, text) : 0;
        Py_XDECREF(value);
        if (rc) return -1;
    }
    cc_raised_clear();
    return 0;
}

static int walk_types(void) {
    for (int i = 0; i < CC_COUNT(FACT); i++) {
        const Fact *f = &FACT[i];
        if (!f->argument || strncmp(f->name, "torch.", 6)) continue; /* CC_TORCH_TYPE rows */
        PyObject *type = cc_tsym_path(f->name);
        char show[64], prefix[64];
        snprintf(show, sizeof show, "%s.", f->argument);
        snprintf(prefix, sizeof prefix, "%s.", f->argument);
        int rc = type && PyType_Check(type) ? walk(type, show, prefix, i) : 0;
        Py_XDECREF(type);
        if (rc) return -1;
    }
    return 0;
}

int cc_torch_init(void) {
    if (X.keep) return 0;
    X.keep = PyList_New(0);
    X.arena = cc_arena_new();
    if (!X.keep || !X.arena || load_facts()) return -1;
    for (int i = 0; i < CC_COUNT(SPACE); i++) {
        PyObject *space = cc_tsym_path(SPACE[i].path);
        int rc = space && (PyType_Check(space) || PyModule_Check(space))
                     ? walk(space, SPACE[i].show, SPACE[i].prefix, F_UNKNOWN)
                     : 0;
        Py_XDECREF(space);
        if (rc) return -1;
    }
    return walk_types();
}
