/* Partly consumed iterators over dicts and sets, and itertools.chain: reads their position, and creates iterators at the
 * same position. Their structs are not public; those of dictobject.c (dictiterobject), setobject.c (setiterobject) and
 * itertoolsmodule.c (chainobject) are the same in 3.11 to 3.14.
 *
 *   entries   a  .  b  c  .  d          consumed: occupied entries before `at`, in iteration order
 *                      ^ at             (positions may differ in a rebuilt dict) */
#include "py_int.h"

typedef struct Walk {
    PyObject_HEAD PyObject *container; /* NULL: exhausted */
    Py_ssize_t used, at;
    union {
        Py_ssize_t of_set;
        struct {
            PyObject *pair; /* items(): the result tuple, reused while no one else references it */
            Py_ssize_t left;
        } of_dict;
    } u;
} Walk;

static bool is_reversed(const PyTypeObject *t) {
    return t == &PyDictRevIterKey_Type || t == &PyDictRevIterValue_Type || t == &PyDictRevIterItem_Type;
}

static bool is_dict_iterator(const PyTypeObject *t) {
    return t == &PyDictIterKey_Type || t == &PyDictIterValue_Type || t == &PyDictIterItem_Type || is_reversed(t);
}

static bool yields_pairs(const PyTypeObject *t) { return t == &PyDictIterItem_Type || t == &PyDictRevIterItem_Type; }

bool cc_iterator_is(PyObject *o) { return is_dict_iterator(Py_TYPE(o)) || Py_IS_TYPE(o, &PySetIter_Type); }

/* The next entry from *place on; moves *place one behind it. */
static bool next_entry(PyObject *container, Py_ssize_t *place, PyObject **key, PyObject **value) {
    if (PyDict_Check(container)) return PyDict_Next(container, place, key, value);
    *value = NULL;
    do {
        if (!cc_set_next(container, place, key)) return false;
        ++*place;
    } while (*key == NULL);
    return true;
}

bool cc_iterator_next(const CcIterator *it, Py_ssize_t *place, PyObject **key, PyObject **value) {
    while (next_entry(it->container, place, key, value))
        if (it->reversed ? *place <= it->at + 1 : *place > it->at) return true;
    return false;
}

bool cc_iterator_read(PyObject *o, CcIterator *out) {
    const Walk *w = (Walk *)o;
    if (!cc_iterator_is(o)) return false;
    const PyTypeObject *t = Py_TYPE(o);
    *out = (CcIterator){.container = w->container,
                        .used = w->used,
                        .at = w->at,
                        .left = is_dict_iterator(t) ? w->u.of_dict.left : w->u.of_set,
                        .reversed = is_reversed(t),
                        .values = is_dict_iterator(t) && t != &PyDictIterKey_Type && t != &PyDictRevIterKey_Type};
    Py_ssize_t place = 0, last = 0; /* `last`: one behind the last entry up to the iterator's position */
    PyObject *key, *value;
    while (w->container != NULL && next_entry(w->container, &place, &key, &value)) {
        const bool before = place <= w->at + out->reversed;
        if (before) last = place;
        out->consumed += before != out->reversed;
    }
    out->adjacent = w->container == NULL || last == w->at + out->reversed;
    return true;
}

PyObject *cc_iterator_container(PyObject *o) { return ((Walk *)o)->container; }

/* The position of an iterator that has yielded `consumed` entries. */
static Py_ssize_t position_after(PyObject *container, Py_ssize_t consumed, bool reversed) {
    Py_ssize_t place = 0, at = reversed ? -1 : 0, n = reversed ? PyDict_GET_SIZE(container) - consumed : consumed;
    PyObject *key, *value;
    for (; n > 0 && next_entry(container, &place, &key, &value); n--) at = reversed ? place - 1 : place;
    return at;
}

PyObject *cc_iterator_new(PyTypeObject *type, PyObject *container, Py_ssize_t consumed, Py_ssize_t used,
                          Py_ssize_t left) {
    PyObject *pair = NULL;
    if (yields_pairs(type) && (pair = PyTuple_Pack(2, Py_None, Py_None)) == NULL) return NULL;
    Walk *w = PyObject_GC_New(Walk, type);
    if (w == NULL) {
        Py_XDECREF(pair);
        return NULL;
    }
    w->container = Py_XNewRef(container);
    w->used = used;
    w->at = container != NULL ? position_after(container, consumed, is_reversed(type)) : 0;
    if (is_dict_iterator(type)) {
        w->u.of_dict.pair = pair;
        w->u.of_dict.left = left;
    } else {
        w->u.of_set = left;
    }
    PyObject_GC_Track(w);
    return (PyObject *)w;
}

/* ------------------------------------------------------------------ itertools.chain */

typedef struct Chain {
    PyObject_HEAD PyObject *source, *active; /* yields iterables; the iterator that it is in; NULL: none (left) */
} Chain;

static PyObject *or_none(PyObject *o) { return o != NULL ? o : Py_None; }
static PyObject *null_for_none(PyObject *o) { return o != Py_None ? Py_NewRef(o) : NULL; }

static PyObject *make_chain(PyObject *self, PyObject *const *part, Py_ssize_t n) {
    (void)self;
    if (n != 2) return PyErr_Format(PyExc_TypeError, "a chain is made of 2 iterators, not of %zd", n);
    PyObject *o = PyObject_CallNoArgs((PyObject *)cc_known_type(CC_KNOWN_CHAIN));
    if (o == NULL) return NULL;
    Py_XSETREF(((Chain *)o)->source, null_for_none(part[0]));
    Py_XSETREF(((Chain *)o)->active, null_for_none(part[1]));
    return o;
}

static PyObject *reduce_chain(const Chain *c) {
    static PyMethodDef def = {"chain", (PyCFunction)(void (*)(void))make_chain, METH_FASTCALL, NULL};
    static PyObject *maker;
    if (maker == NULL && (maker = PyCFunction_New(&def, NULL)) == NULL) return NULL;
    return Py_BuildValue("(O(OO))", maker, or_none(c->source), or_none(c->active));
}

PyObject *cc_iterator_reduce(PyObject *o) {
    static PyObject *name;
    if (cc_known_is(o, CC_KNOWN_CHAIN)) return reduce_chain((Chain *)o);
    if (name == NULL && (name = PyUnicode_InternFromString("__reduce__")) == NULL) return NULL;
    return PyObject_CallMethodNoArgs(o, name);
}
