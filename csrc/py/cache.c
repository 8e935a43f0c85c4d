/* functools.lru_cache's objects, from inside: what a call with these arguments would give, without a call. They have no
 * public struct; that of _functoolsmodule.c (lru_cache_object, lru_list_elem) is the same in 3.11 to 3.13, and whoever
 * asks compares what is found with what a call gave. */
#include "py_int.h"

typedef struct Link {
    PyObject_HEAD struct Link *prev, *next;
    Py_hash_t hash;
    PyObject *key, *result;
} Link;

typedef struct Cache {
    Link root;
    void *wrapper;
    int typed;
    PyObject *dict; /* key -> result, or where there is a limit -> Link */
    Py_ssize_t hits;
    PyObject *func;
    Py_ssize_t limit, misses;
    PyObject *mark; /* stands in keys before the keyword arguments */
    PyTypeObject *link_type;
    PyObject *info_type, *attributes, *weak;
} Cache;

bool cc_cache_type(const PyTypeObject *t) {
    static const PyTypeObject *type;
    if (t == type) return true;
    if (strcmp(t->tp_name, "functools._lru_cache_wrapper") != 0 || t->tp_basicsize != (Py_ssize_t)sizeof(Cache))
        return false;
    type = t;
    return true;
}

PyObject *cc_cache_dict(PyObject *o) { return ((Cache *)o)->dict; }

static Py_ssize_t append(PyObject *key, Py_ssize_t at, PyObject *o) {
    PyTuple_SET_ITEM(key, at, Py_NewRef(o));
    return at + 1;
}

/* lru_cache_make_key */
PyObject *cc_cache_key(PyObject *o, PyObject *const *in, int n, PyObject *kwnames) {
    const Cache *cache = (Cache *)o;
    const Py_ssize_t n_kw = kwnames != NULL ? PyTuple_GET_SIZE(kwnames) : 0, n_args = n - n_kw;
    if (!cache->typed && n_kw == 0 && n_args == 1 && (PyUnicode_CheckExact(in[0]) || PyLong_CheckExact(in[0])))
        return Py_NewRef(in[0]);
    PyObject *key = PyTuple_New(n_args + (n_kw > 0 ? 2 * n_kw + 1 : 0) + (cache->typed ? n : 0));
    Py_ssize_t at = 0;
    if (key == NULL) return NULL;
    for (Py_ssize_t i = 0; i < n_args; i++) at = append(key, at, in[i]);
    if (n_kw > 0) at = append(key, at, cache->mark);
    for (Py_ssize_t k = 0; k < n_kw; k++) {
        at = append(key, at, PyTuple_GET_ITEM(kwnames, k));
        at = append(key, at, in[n_args + k]);
    }
    for (int i = 0; cache->typed && i < n; i++) at = append(key, at, (PyObject *)Py_TYPE(in[i]));
    return key;
}

PyObject *const *cc_cache_result_at(PyObject *o) {
    static PyTypeObject *type;
    if (Py_TYPE(o) == type) return &((Link *)o)->result;
    if (strcmp(Py_TYPE(o)->tp_name, "functools._lru_list_elem") != 0 ||
        Py_TYPE(o)->tp_basicsize != (Py_ssize_t)sizeof(Link))
        return NULL;
    type = Py_TYPE(o);
    return &((Link *)o)->result;
}
