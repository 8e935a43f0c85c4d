/* Object internals that guards read: instance dicts, versions of types. */
#include "py_int.h"

#include <structmember.h>

bool cc_obj_again(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Print();
        Py_FatalError("ccompile: what can't fail has failed; please report this");
    }
    if (!cc_mem_relieve()) cc_mem_lost("an object of Python's");
    PyErr_Clear();
    return true;
}

PyObject *cc_obj_name(const char *text) {
    PyObject *name;
    CC_SURE(name, PyUnicode_InternFromString(text));
    return name;
}

void cc_obj_put(PyObject *dict, PyObject *key, PyObject *value) {
    while (PyDict_SetItem(dict, key, value) < 0) (void)cc_obj_again();
}

PyObject *cc_obj_dict(PyObject *o) {
    PyObject **at = cc_frame_instance_dict(o);
    return at != NULL ? *at : NULL;
}

bool cc_obj_may_hold(PyObject *o) { return !PyType_Check(o) && cc_frame_instance_dict(o) != NULL; }

PyObject *const *cc_obj_dict_at(PyObject *o) {
    return PyType_Check(o) || Py_TYPE(o)->tp_itemsize != 0 ? NULL : cc_frame_instance_dict(o);
}

PyObject *const *cc_obj_range(PyObject *range) {
    return (PyObject *const *)((char *)range + PyRange_Type.tp_members[0].offset); /* rangeobject.start, 3.11-3.14 */
}

PyTypeObject *cc_obj_super(PyObject *super, PyTypeObject **behind) {
    PyTypeObject *const *parts = (PyTypeObject *const *)((char *)super + PySuper_Type.tp_members[0].offset);
    *behind = parts[0]; /* superobject.type, obj, obj_type: 3.11-3.14 */
    return parts[2];
}

PyObject *cc_obj_proxied(PyObject *proxy) {
    return *(PyObject **)((char *)proxy + sizeof(PyObject)); /* mappingproxyobject.mapping, 3.11-3.14 */
}

/* A lookup (Objects/typeobject.c _PyType_Lookup) assigns the tag, as long as tags last; a change makes it 0. */
unsigned cc_type_version(PyTypeObject *type) {
    static PyObject *probe;
    if (type->tp_version_tag) return type->tp_version_tag;
    if (!probe) probe = PyUnicode_InternFromString("__class__");
    if (probe) (void)_PyType_Lookup(type, probe);
    else PyErr_Clear();
    return type->tp_version_tag;
}

unsigned cc_type_ask(CcFacts *f, PyTypeObject *type) {
    const unsigned version = cc_type_version(type), facts = f->ask(type);
    if (version != 0 && version == type->tp_version_tag) f->of[version % CC_FACTS] = (struct CcFact){version, facts};
    return facts;
}

PyObject *cc_type_lookup(PyTypeObject *type, PyObject *name) { return _PyType_Lookup(type, name); }

PyObject *cc_weak_target(PyObject *weak) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *o = NULL;
    if (PyWeakref_GetRef(weak, &o) < 0) PyErr_Clear();
    Py_XDECREF(o); /* borrowed: whoever else holds it keeps it */
    return o;
#else
    PyObject *o = PyWeakref_GET_OBJECT(weak);
    return o != Py_None ? o : NULL;
#endif
}

PyTypeObject *cc_type_method_wrapper(void) {
    static PyTypeObject *type;
    if (type == NULL) {
        PyObject *bound = PyObject_GetAttrString(Py_None, "__str__");
        if (bound != NULL) type = Py_TYPE(bound); /* a static type */
        Py_XDECREF(bound);
    }
    return type;
}

PyObject *cc_type_dict(PyTypeObject *type) {
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict); /* borrowed: the type keeps it */
    return dict;
#else
    return type->tp_dict;
#endif
}

PyObject *cc_dict_keys(PyObject *dict) {
    PyObject *keys = NULL;
    if (PyODict_Check(dict)) { /* a subclass may iterate in yet another way: not asked */
        PyObject *it = PyODict_Type.tp_iter(dict);
        keys = it != NULL ? PySequence_List(it) : NULL;
        Py_XDECREF(it);
    } else {
        keys = PyDict_Keys(dict);
    }
    if (keys == NULL) PyErr_Clear();
    return keys;
}

/* Objects/setobject.c, 3.11 to 3.13: what was taken out leaves an entry whose hash is -1, which no object has. */
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

#if PY_VERSION_HEX >= 0x030C0000
#    define DIGIT(o) ((PyLongObject *)(o))->long_value.ob_digit[0]
static void set_small(PyObject *o, long v) {
    /* digits, sign: cpython/longintrepr.h */
    ((PyLongObject *)o)->long_value.lv_tag = v == 0 ? 1 : 1 << 3 | (v < 0 ? 2 : 0);
}
#else
#    define DIGIT(o) ((PyLongObject *)(o))->ob_digit[0]
static void set_small(PyObject *o, long v) { Py_SET_SIZE(o, v < 0 ? -1 : v > 0); }
#endif

PyObject *cc_obj_number(PyObject *number) {
    if (PyFloat_CheckExact(number)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(number));
    int overflow;
    const long v = PyLong_AsLongAndOverflow(number, &overflow);
    if (overflow != 0 || v < -5 || v > 256) return _PyLong_Copy((PyLongObject *)number);
    /* one digit holds any small int, which CPython would not copy */
    PyObject *o = (PyObject *)_PyLong_New(1);
    if (o == NULL) return NULL;
    DIGIT(o) = (digit)(v < 0 ? -v : v);
    set_small(o, v);
    return o;
}

/* The end of a generator runs code where an `except`, `finally` or `with` may stand around it. */
static bool catches(PyObject *generator) {
    CcGen g;
    if (!cc_generator_read(generator, &g)) {
        PyObject *frame = PyObject_GetAttrString(generator, "gi_frame");
        Py_XDECREF(frame);
        return frame != Py_None; /* else it is over */
    }
    for (int pc = 0; pc < g.code->n; pc++)
        if (!cc_code_closes_quietly(g.code, pc, g.func->func_globals)) return true;
    return false;
}

bool cc_obj_final(PyObject *o) { return PyGen_CheckExact(o) ? catches(o) : Py_TYPE(o)->tp_finalize != NULL; }

bool cc_obj_watched(PyObject *o) {
    const Py_ssize_t at = Py_TYPE(o)->tp_weaklistoffset; /* 3.12: below 0, in front of the object */
    if (at == 0 || PyType_Check(o)) return false;
    for (PyWeakReference *w = *(PyWeakReference **)((char *)o + at); w != NULL; w = w->wr_next)
        if (w->wr_callback != NULL) return true;
    return false;
}

/* References that go: few are looked through, of many there is a map. */
typedef struct Fall {
    CC_VEC(struct Fallen {
        PyObject *o;
        Py_ssize_t n;
    }) of;
    CcMap at; /* object -> index into of */
    int deep;
    bool weak, told;
} Fall;

static struct Fallen *fallen(Fall *f, PyObject *o) {
    enum { FEW = 16 };
    const int64_t *at = f->of.n > FEW ? cc_map_find(&f->at, o) : NULL;
    if (at != NULL) return &f->of.at[*at];
    for (int i = 0; i < f->of.n && f->of.n <= FEW; i++)
        if (f->of.at[i].o == o) return &f->of.at[i];
    cc_vec_push(&f->of, (struct Fallen){o, 0});
    for (int i = f->of.n == FEW + 1 ? 0 : f->of.n - 1; i < f->of.n && f->of.n > FEW; i++)
        cc_map_put(&f->at, f->of.at[i].o, i);
    return &cc_vec_last(&f->of);
}

bool cc_obj_weakly_held(PyObject *o) {
    const Py_ssize_t at = Py_TYPE(o)->tp_weaklistoffset;
    return at != 0 && !PyType_Check(o) && *(PyObject **)((char *)o + at) != NULL;
}

/* One reference to o goes. */
static int fall(PyObject *o, void *ctx) {
    enum { MANY = 10000, DEEP = 32 };
    Fall *f = ctx;
    if (f->told || PyType_Check(o) || !(PyObject_IS_GC(o) || Py_TYPE(o)->tp_weaklistoffset != 0)) return 0;
    if (++fallen(f, o)->n < Py_REFCNT(o)) return 0;
    f->told =
        f->of.n > MANY || f->deep >= DEEP || cc_obj_final(o) || cc_obj_watched(o) || (f->weak && cc_obj_weakly_held(o));
    if (f->told || !PyObject_IS_GC(o)) return 0;
    f->deep++;
    (void)Py_TYPE(o)->tp_traverse(o, fall, f);
    f->deep--;
    return 0;
}

bool cc_obj_fall(PyObject *const *dropped, int n, bool weak) {
    Fall f = {.weak = weak};
    for (int i = 0; i < n; i++)
        if (dropped[i] != NULL) (void)fall(dropped[i], &f);
    cc_vec_free(&f.of);
    cc_map_free(&f.at);
    return f.told;
}

PyObject *cc_obj_cached(PyObject *o) {
    if (o == NULL || !PyLong_CheckExact(o)) return o;
    int overflow;
    const long v = PyLong_AsLongAndOverflow(o, &overflow);
    if (overflow != 0 || v < -5 || v > 256) return o;
    Py_DECREF(o);
    return PyLong_FromLong(v);
}
