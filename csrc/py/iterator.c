/* Iterators over dicts and sets that wait: where they stand, and others that are made to stand there. They have no
 * public struct; those of dictobject.c (dictiterobject) and setobject.c (setiterobject) are the same in 3.11 to 3.13.
 *
 *   entries   a  .  b  c  .  d          given: entries before `at` that hold something, in the order of the iterator
 *                      ^ at             (a place may be another one in a dict that was made again) */
#include "py_int.h"

typedef struct Walk {
    PyObject_HEAD PyObject *over; /* NULL: it is exhausted */
    Py_ssize_t used, at;
    union {
        Py_ssize_t of_set;
        struct {
            PyObject *pair; /* what items() gives, while nobody else has it */
            Py_ssize_t left;
        } of_dict;
    } u;
} Walk;

static bool backwards(const PyTypeObject *t) {
    return t == &PyDictRevIterKey_Type || t == &PyDictRevIterValue_Type || t == &PyDictRevIterItem_Type;
}

static bool of_dict(const PyTypeObject *t) {
    return t == &PyDictIterKey_Type || t == &PyDictIterValue_Type || t == &PyDictIterItem_Type || backwards(t);
}

static bool pairs(const PyTypeObject *t) { return t == &PyDictIterItem_Type || t == &PyDictRevIterItem_Type; }

bool cc_iterator_is(PyObject *o) { return of_dict(Py_TYPE(o)) || Py_IS_TYPE(o, &PySetIter_Type); }

/* The next entry from *place on: *place is one behind it. */
static bool next_entry(PyObject *over, Py_ssize_t *place, PyObject **key, PyObject **value) {
    if (PyDict_Check(over)) return PyDict_Next(over, place, key, value);
    *value = NULL;
    do {
        if (!cc_set_next(over, place, key)) return false;
        ++*place;
    } while (*key == NULL);
    return true;
}

bool cc_iterator_next(const CcIterator *it, Py_ssize_t *place, PyObject **key, PyObject **value) {
    while (next_entry(it->over, place, key, value))
        if (it->back ? *place <= it->at + 1 : *place > it->at) return true;
    return false;
}

bool cc_iterator_read(PyObject *o, CcIterator *out) {
    const Walk *w = (Walk *)o;
    if (!cc_iterator_is(o)) return false;
    const PyTypeObject *t = Py_TYPE(o);
    *out = (CcIterator){.over = w->over,
                        .used = w->used,
                        .at = w->at,
                        .left = of_dict(t) ? w->u.of_dict.left : w->u.of_set,
                        .back = backwards(t),
                        .values = of_dict(t) && t != &PyDictIterKey_Type && t != &PyDictRevIterKey_Type};
    Py_ssize_t place = 0, last = 0; /* one behind the last entry up to its place */
    PyObject *key, *value;
    while (w->over != NULL && next_entry(w->over, &place, &key, &value)) {
        const bool before = place <= w->at + out->back;
        if (before) last = place;
        out->given += before != out->back;
    }
    out->behind = w->over == NULL || last == w->at + out->back;
    return true;
}

PyObject *cc_iterator_over(PyObject *o) { return ((Walk *)o)->over; }

/* The place where it goes on when it has given so many. */
static Py_ssize_t place_behind(PyObject *over, Py_ssize_t given, bool back) {
    Py_ssize_t place = 0, at = back ? -1 : 0, n = back ? PyDict_GET_SIZE(over) - given : given;
    PyObject *key, *value;
    for (; n > 0 && next_entry(over, &place, &key, &value); n--) at = back ? place - 1 : place;
    return at;
}

PyObject *cc_iterator_new(PyTypeObject *type, PyObject *over, Py_ssize_t given, Py_ssize_t used, Py_ssize_t left) {
    PyObject *pair = NULL;
    if (pairs(type) && (pair = PyTuple_Pack(2, Py_None, Py_None)) == NULL) return NULL;
    Walk *w = PyObject_GC_New(Walk, type);
    if (w == NULL) {
        Py_XDECREF(pair);
        return NULL;
    }
    w->over = Py_XNewRef(over);
    w->used = used;
    w->at = over != NULL ? place_behind(over, given, backwards(type)) : 0;
    if (of_dict(type)) {
        w->u.of_dict.pair = pair;
        w->u.of_dict.left = left;
    } else {
        w->u.of_set = left;
    }
    PyObject_GC_Track(w);
    return (PyObject *)w;
}
