/* Versions of dicts. CPython 3.11 keeps one in each dict, from a counter that all dicts share, so that no two states of
 * any dicts have the same one. 3.12 deprecates it and has watchers: each watched dict has a counter here, which
 * outlives the dict. */
#include "py_int.h"

#if PY_VERSION_HEX < 0x030C0000

const uint64_t *cc_watch_begin(PyObject *dict) {
    return PyDict_Check(dict) ? &((PyDictObject *)dict)->ma_version_tag : NULL;
}

void cc_watch_end(const uint64_t *version) { (void)version; }

#else

typedef struct Watched {
    uint64_t version; /* first: this is what callers hold */
    PyObject *dict;   /* borrowed; NULL: it is gone */
    int users;
} Watched;

static CcMap watched; /* dict -> Watched, as a number */
static int watcher = -1;

static Watched *find(PyObject *dict) {
    const int64_t *at = cc_map_find(&watched, dict);
    return at != NULL ? (Watched *)(intptr_t)*at : NULL;
}

static int on_event(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
    (void)key, (void)value;
    Watched *w = find(dict);
    if (w == NULL) return 0;
    w->version++;
    if (event != PyDict_EVENT_DEALLOCATED) return 0;
    cc_map_remove(&watched, dict);
    w->dict = NULL;
    return 0;
}

#    if PY_VERSION_HEX >= 0x030D0000
/* Of a dict that shares its values with its instance watchers are not told when the instance's attributes are set
 * (3.13.0). popitem() gives it a table of its own, for good, before it takes the item; that table has 64 places, and
 * shared keys are at most 30, so that putting the item back needs no memory (tried with 1 to 30 attributes under
 * _testcapi.set_nomemory). */
static bool apart(PyObject *dict) {
    if (((PyDictObject *)dict)->ma_values == NULL) return true;
    PyObject *item =
        PyObject_CallMethod((PyObject *)&PyDict_Type, "popitem", "O", dict); /* the last one: the order stays */
    if (item == NULL) { /* it is empty, or there is no memory: popitem makes the table before it takes the item */
        PyErr_Clear();
        return false;
    }
    cc_obj_put(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1));
    Py_DECREF(item);
    return ((PyDictObject *)dict)->ma_values == NULL;
}
#    else
static bool apart(PyObject *dict) {
    (void)dict;
    return true;
}
#    endif

const uint64_t *cc_watch_begin(PyObject *dict) {
    if (!PyDict_Check(dict)) return NULL;
    Watched *w = find(dict);
    if (w == NULL) {
        if (!apart(dict)) return NULL;
        if (watcher < 0 && (watcher = PyDict_AddWatcher(on_event)) < 0) { /* there are eight in a process */
            PyErr_Clear();
            return NULL;
        }
        if (PyDict_Watch(watcher, dict) < 0) {
            PyErr_Clear();
            return NULL;
        }
        w = cc_mem_get(sizeof *w);
        w->dict = dict;
        cc_map_put(&watched, dict, (int64_t)(intptr_t)w);
    }
    w->users++;
    return &w->version;
}

void cc_watch_end(const uint64_t *version) {
    Watched *w = (Watched *)(uintptr_t)version;
    if (--w->users > 0) return;
    if (w->dict != NULL) {
        cc_map_remove(&watched, w->dict);
        if (PyDict_Unwatch(watcher, w->dict) < 0) PyErr_Clear();
    }
    free(w);
}

#endif
