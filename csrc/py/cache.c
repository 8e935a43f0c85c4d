/* Looks into functools.lru_cache's wrappers for the result that a call with given arguments would return, without
 * calling them. Their struct is not public; the one of _functoolsmodule.c (lru_cache_object, lru_list_elem) is the same
 * in 3.11 to 3.14, and callers check what is found here against the result of a real call. */
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
    PyObject *dict; /* key -> result; with a size limit: key -> Link */
    Py_ssize_t hits;
    PyObject *func;
    Py_ssize_t limit, misses;
    PyObject *mark; /* separates positional from keyword arguments in keys */
    PyTypeObject *link_type;
    PyObject *info_type, *attributes, *weak;
} Cache;

bool cc_cache_type(const PyTypeObject *t) {
    return t == cc_known_type(CC_KNOWN_LRU_CACHE) && t->tp_basicsize == (Py_ssize_t)sizeof(Cache);
}

static const PyTypeObject *link_type; /* caches name it; NULL: none was looked into */

PyObject *cc_cache_dict(PyObject *o) {
    link_type = ((Cache *)o)->link_type;
    return ((Cache *)o)->dict;
}

static Py_ssize_t append(PyObject *key, Py_ssize_t at, PyObject *o) {
    PyTuple_SET_ITEM(key, at, Py_NewRef(o));
    return at + 1;
}

/* As lru_cache_make_key in _functoolsmodule.c. */
PyObject *cc_cache_key(PyObject *o, PyObject *const *in, int n, PyObject *kwnames) {
    const Cache *cache = (Cache *)o;
    const int n_kw = cc_obj_count(kwnames), n_args = n - n_kw;
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
    const bool link = Py_TYPE(o) == link_type && link_type->tp_basicsize == (Py_ssize_t)sizeof(Link);
    return link ? &((Link *)o)->result : NULL;
}
