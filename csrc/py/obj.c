/* Object internals that guards read: instance dicts, type versions, sets, weak references, finalizers. */
#include "py_int.h"

#include <structmember.h>

bool cc_obj_retry_alloc(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Print();
        Py_FatalError(
            "ccompile: an operation that can fail only for lack of memory raised another error; please report this");
    }
    if (!cc_mem_release_reserve()) cc_mem_exhausted("an object of Python's");
    cc_raised_clear();
    return true;
}

PyObject *cc_obj_intern(const char *text) {
    PyObject *name;
    CC_RETRY_ALLOC(name, PyUnicode_InternFromString(text));
    return name;
}

PyObject *cc_obj_of_module(const char *module, const char *name) {
    PyObject *m = PyImport_ImportModule(module), *o = m != NULL ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    if (o == NULL) cc_raised_clear();
    return o;
}

static const char FILE_NAME[] = "<ccompile>";

bool cc_obj_is_ours(const PyCodeObject *co) { return cc_text_is(co->co_filename, FILE_NAME); }

void cc_obj_hide_frame(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (traceback != NULL) {
        PyTracebackObject *tb = (PyTracebackObject *)traceback;
        PyCodeObject *co = PyFrame_GetCode(tb->tb_frame);
        if (cc_obj_is_ours(co)) {
            traceback = Py_XNewRef((PyObject *)tb->tb_next);
            /* 3.14's PyErr_Restore keeps the exception's own traceback if it is given none. */
            if (traceback == NULL && value != NULL && PyExceptionInstance_Check(value))
                (void)PyException_SetTraceback(value, Py_None);
            Py_DECREF(tb);
        }
        Py_DECREF(co);
    }
    PyErr_Restore(type, value, traceback);
}

PyObject *cc_obj_run(const char *source) {
    PyObject *code = Py_CompileString(source, FILE_NAME, Py_file_input), *globals = PyDict_New(), *r = NULL;
    PyObject *builtins = PyImport_AddModule("builtins"); /* the running frame may have others */
    if (code != NULL && globals != NULL && builtins != NULL &&
        PyDict_SetItemString(globals, "__builtins__", builtins) == 0)
        r = PyEval_EvalCode(code, globals, globals);
    if (r == NULL) Py_CLEAR(globals);
    Py_XDECREF(code);
    Py_XDECREF(r);
    return globals;
}

void cc_obj_dict_set(PyObject *dict, PyObject *key, PyObject *value) {
    while (PyDict_SetItem(dict, key, value) < 0) (void)cc_obj_retry_alloc();
}

PyObject *cc_obj_item(PyObject *dict, const char *key) {
    const bool raised = PyErr_Occurred() != NULL;
    PyObject *name = cc_obj_intern(key), *found = PyDict_GetItemWithError(dict, name);
    Py_DECREF(name);
    if (found == NULL && !raised) cc_raised_clear();
    return found;
}

PyObject *cc_obj_dict(PyObject *o) {
    PyObject **at = cc_frame_instance_dict(o);
    return at != NULL ? *at : NULL;
}

PyObject *cc_obj_context_value(PyObject *var) {
    static PyObject *nothing;
    if (nothing == NULL) CC_RETRY_ALLOC(nothing, PyList_New(0));
    PyObject *v = NULL;
    if (PyContextVar_Get(var, nothing, &v) < 0) cc_raised_clear();
    if (v == nothing) Py_CLEAR(v);
    return v;
}

PyObject *cc_obj_local_dict(PyObject *o) {
    PyObject *dict = cc_known_is(o, CC_KNOWN_LOCAL) ? PyObject_GetAttrString(o, "__dict__") : NULL;
    if (dict == NULL) cc_raised_clear();
    Py_XDECREF(dict); /* this thread's state holds it */
    return dict;
}

/* 3.13's PyObject_GenericSetDict leaves the inline values valid: attributes set later would not be in the new dict. */
int cc_obj_set_dict(PyObject *o, PyObject *dict) {
#if PY_VERSION_HEX >= 0x030D0000
    if (Py_TYPE(o)->tp_flags & Py_TPFLAGS_MANAGED_DICT) return _PyObject_SetManagedDict(o, dict);
#endif
    return PyObject_GenericSetDict(o, dict, NULL);
}

bool cc_obj_may_have_dict(PyObject *o) { return !PyType_Check(o) && cc_frame_instance_dict(o) != NULL; }

PyObject *const *cc_obj_dict_at(PyObject *o) {
    return PyType_Check(o) || Py_TYPE(o)->tp_itemsize != 0 ? NULL : cc_frame_instance_dict(o);
}

#if PY_VERSION_HEX >= 0x030E0000
PyObject **cc_obj_annotate(PyObject *func) { return &((PyFunctionObject *)func)->func_annotate; }
#else
PyObject **cc_obj_annotate(PyObject *func) {
    (void)func;
    return NULL;
}
#endif

PyObject *const *cc_obj_range_parts(PyObject *range) {
    return (PyObject *const *)((char *)range + PyRange_Type.tp_members[0].offset); /* rangeobject.start, 3.11-3.14 */
}

PyTypeObject *cc_obj_super(PyObject *super, PyTypeObject **behind) {
    PyTypeObject *const *parts = (PyTypeObject *const *)((char *)super + PySuper_Type.tp_members[0].offset);
    *behind = parts[0]; /* superobject.type, obj, obj_type: 3.11-3.14 */
    return parts[2];
}

PyObject *cc_obj_proxy_target(PyObject *proxy) {
    return *(PyObject **)((char *)proxy + sizeof(PyObject)); /* mappingproxyobject.mapping, 3.11-3.14 */
}

/* _PyType_Lookup takes an exception that is being raised for one of its own, and clears it. */
PyObject *cc_type_lookup(PyTypeObject *type, PyObject *name) {
    if (!PyErr_Occurred()) return _PyType_Lookup(type, name);
    PyObject *error, *value, *traceback;
    PyErr_Fetch(&error, &value, &traceback);
    PyObject *found = _PyType_Lookup(type, name);
    PyErr_Restore(error, value, traceback);
    return found;
}

/* A lookup (Objects/typeobject.c _PyType_Lookup) assigns the tag unless tags have run out; a change of the type resets
 * it to 0. */
unsigned cc_type_version(PyTypeObject *type) {
    static PyObject *probe;
    if (type->tp_version_tag) return type->tp_version_tag;
    if (!probe) probe = PyUnicode_InternFromString("__class__");
    if (probe) (void)cc_type_lookup(type, probe);
    else cc_raised_clear();
    return type->tp_version_tag;
}

unsigned cc_type_compute_facts(CcFacts *f, PyTypeObject *type) {
    const unsigned version = cc_type_version(type), facts = f->ask(type);
    if (version != 0 && version == type->tp_version_tag) f->of[version % CC_FACTS] = (struct CcFact){version, facts};
    return facts;
}

PyObject *cc_weak_target(PyObject *weak) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *o = NULL;
    if (PyWeakref_GetRef(weak, &o) < 0) cc_raised_clear();
    Py_XDECREF(o); /* borrowed: other references keep it alive */
    return o;
#else
    PyObject *o = PyWeakref_GET_OBJECT(weak);
    return o != Py_None ? o : NULL;
#endif
}

PyObject *cc_type_dict(PyTypeObject *type) {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict); /* borrowed: the type owns it */
    return dict;
#else
    return type->tp_dict;
#endif
}

PyObject *cc_dict_keys(PyObject *dict) {
    PyObject *keys = NULL;
    if (PyODict_Check(dict)) { /* bypasses an __iter__ of a subclass */
        PyObject *it = PyODict_Type.tp_iter(dict);
        keys = it != NULL ? PySequence_List(it) : NULL;
        Py_XDECREF(it);
    } else {
        keys = PyDict_Keys(dict);
    }
    if (keys == NULL) cc_raised_clear();
    return keys;
}

/* Objects/setobject.c, 3.11 to 3.14: a deleted entry has the hash -1, which no object has. */
bool cc_set_next(PyObject *set, Py_ssize_t *place, PyObject **member) {
    const PySetObject *so = (PySetObject *)set;
    for (; *place <= so->mask; ++*place) {
        const setentry *e = &so->table[*place];
        if (e->key == NULL) continue;
        *member = e->hash == -1 ? NULL : e->key;
        return true;
    }
    return false;
}

void cc_set_table(PyObject *set, Py_ssize_t *size, Py_ssize_t *finger) {
    const PySetObject *so = (PySetObject *)set;
    *size = so->mask + 1;
    *finger = so->finger & so->mask;
}

void cc_set_put(PyObject *set, Py_ssize_t place, PyObject *equal) {
    Py_SETREF(((PySetObject *)set)->table[place].key, Py_NewRef(equal));
}

/* A dummy (a removed member's place, hash -1) holds no reference. */
PyObject *cc_set_clone(PyObject *set) {
    const PySetObject *from = (PySetObject *)set;
    PySetObject *to = (PySetObject *)(PyFrozenSet_Check(set) ? PyFrozenSet_New(NULL) : PySet_New(NULL));
    if (to == NULL) return NULL;
    const size_t n = (size_t)from->mask + 1;
    if (from->table != from->smalltable) {
        setentry *table = PyMem_Malloc(n * sizeof *table);
        if (table == NULL) {
            Py_DECREF(to);
            return PyErr_NoMemory();
        }
        to->table = table;
    }
    memcpy(to->table, from->table, n * sizeof *to->table);
    for (size_t i = 0; i < n; i++)
        if (to->table[i].hash != -1) Py_XINCREF(to->table[i].key);
    to->fill = from->fill;
    to->used = from->used;
    to->mask = from->mask;
    to->finger = from->finger;
    return (PyObject *)to;
}

#if PY_VERSION_HEX >= 0x030C0000
#    define DIGIT(o) ((PyLongObject *)(o))->long_value.ob_digit[0]
static void set_small(PyObject *o, long v) {
    /* number of digits and sign; see cpython/longintrepr.h */
    ((PyLongObject *)o)->long_value.lv_tag = v == 0 ? 1 : 1 << 3 | (v < 0 ? 2 : 0);
}
#else
#    define DIGIT(o) ((PyLongObject *)(o))->ob_digit[0]
static void set_small(PyObject *o, long v) { Py_SET_SIZE(o, v < 0 ? -1 : v > 0); }
#endif

PyObject *cc_obj_copy_text(PyObject *text) {
    const Py_ssize_t n = PyUnicode_GET_LENGTH(text);
    PyObject *o = PyUnicode_New(n, PyUnicode_MAX_CHAR_VALUE(text));
    if (o != NULL && n > 0) memcpy(PyUnicode_DATA(o), PyUnicode_DATA(text), (size_t)n * PyUnicode_KIND(text));
    return o;
}

PyObject *cc_obj_copy_number(PyObject *number) {
    if (PyFloat_CheckExact(number)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(number));
    int overflow;
    const long v = PyLong_AsLongAndOverflow(number, &overflow);
    if (overflow != 0 || v < -5 || v > 256) return _PyLong_Copy((PyLongObject *)number);
    /* _PyLong_Copy returns cached small ints; each fits in one digit, as does this int, which is never cached */
    PyObject *o = PyLong_FromLong(1L << 29);
    if (o == NULL) return NULL;
    DIGIT(o) = (digit)(v < 0 ? -v : v);
    set_small(o, v);
    return o;
}

/* Whether closing the generator may run code: an `except`, `finally` or `with` may enclose the point where it is
 * suspended. */
static bool closing_runs_code(PyObject *generator) {
    CcGen g;
    if (!cc_generator_read(generator, &g)) return cc_generator_now(generator).state != CC_GEN_ENDED;
    for (int pc = 0; pc < g.code->n; pc++)
        if (!cc_code_closes_quietly(g.code, pc, g.func->func_globals)) return true;
    return cc_generator_calls_close(generator);
}

bool cc_obj_has_finalizer(PyObject *o) {
    return PyGen_CheckExact(o) ? closing_runs_code(o) : Py_TYPE(o)->tp_finalize != NULL;
}

bool cc_obj_has_weak_callback(PyObject *o) {
    const Py_ssize_t at = Py_TYPE(o)->tp_weaklistoffset; /* negative from 3.12 on: in front of the object */
    if (at == 0 || PyType_Check(o)) return false;
    for (PyWeakReference *w = *(PyWeakReference **)((char *)o + at); w != NULL; w = w->wr_next)
        if (w->wr_callback != NULL) return true;
    return false;
}

/* A simulated cascade of dropped references: how many each object has lost so far. Searched linearly while short, by
 * map later. */
typedef struct Cascade {
    CC_VEC(struct Lost {
        PyObject *o;
        Py_ssize_t n;
    }) of;
    CcMap at; /* object -> index into `of` */
    int depth;
    bool weak, notifies; /* weak references count, too; a finalizer or callback would run */
} Cascade;

static struct Lost *lost_by(Cascade *f, PyObject *o) {
    enum { SHORT = 16 };
    const int64_t *at = f->of.n > SHORT ? cc_map_find(&f->at, o) : NULL;
    if (at != NULL) return &f->of.at[*at];
    for (int i = 0; i < f->of.n && f->of.n <= SHORT; i++)
        if (f->of.at[i].o == o) return &f->of.at[i];
    cc_vec_push(&f->of, (struct Lost){o, 0});
    for (int i = f->of.n == SHORT + 1 ? 0 : f->of.n - 1; i < f->of.n && f->of.n > SHORT; i++)
        cc_map_put(&f->at, f->of.at[i].o, i);
    return &cc_vec_last(&f->of);
}

bool cc_obj_has_weakref(PyObject *o) {
    const Py_ssize_t at = Py_TYPE(o)->tp_weaklistoffset;
    return at != 0 && !PyType_Check(o) && *(PyObject **)((char *)o + at) != NULL;
}

/* Simulates dropping one reference to o; an object that has lost all of them drops its own references in turn. */
static int drop(PyObject *o, void *ctx) {
    enum { MAX_OBJECTS = 10000, MAX_DEPTH = 32 };
    Cascade *f = ctx;
    if (f->notifies || PyType_Check(o) || !(PyObject_IS_GC(o) || Py_TYPE(o)->tp_weaklistoffset != 0)) return 0;
    if (++lost_by(f, o)->n < Py_REFCNT(o)) return 0;
    f->notifies = f->of.n > MAX_OBJECTS || f->depth >= MAX_DEPTH || cc_obj_has_finalizer(o) ||
                  cc_obj_has_weak_callback(o) || (f->weak && cc_obj_has_weakref(o));
    if (f->notifies || !PyObject_IS_GC(o)) return 0;
    f->depth++;
    (void)Py_TYPE(o)->tp_traverse(o, drop, f);
    f->depth--;
    return 0;
}

bool cc_obj_drop_notifies(PyObject *const *dropped, int n, bool weak) {
    Cascade f = {.weak = weak};
    for (int i = 0; i < n; i++)
        if (dropped[i] != NULL) (void)drop(dropped[i], &f);
    cc_vec_free(&f.of);
    cc_map_free(&f.at);
    return f.notifies;
}

PyObject *cc_obj_canonical_int(PyObject *o) {
    if (o == NULL || !PyLong_CheckExact(o)) return o;
    int overflow;
    const long v = PyLong_AsLongAndOverflow(o, &overflow);
    if (overflow != 0 || v < -5 || v > 256) return o;
    Py_DECREF(o);
    return PyLong_FromLong(v);
}
