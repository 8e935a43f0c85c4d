/* Dict versions. CPython 3.11 stores a version in each dict, drawn from one global counter, so that no two states of
 * any dicts share a version. 3.12 deprecates that and offers watchers instead; this file then keeps a counter for each
 * watched dict, which outlives the dict. */
#include "py_int.h"

#if PY_VERSION_HEX < 0x030C0000

const uint64_t *cc_watch_begin(PyObject *dict) {
    return PyDict_Check(dict) ? &((PyDictObject *)dict)->ma_version_tag : NULL;
}

void cc_watch_end(const uint64_t *version) { (void)version; }

#else

typedef struct Watched {
    uint64_t version; /* must come first: callers hold its address */
    PyObject *dict;   /* borrowed; NULL: freed */
    int users;
} Watched;

static CcMap watched; /* dict -> Watched *, as a number */
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
/* In 3.13.0, setting an attribute does not notify watchers of a dict that shares inline values with its instance.
 * popitem() permanently gives the dict a table of its own before it removes the item. That table has 64 slots and
 * shared keys are at most 30, so reinserting the item needs no memory (tested with 1 to 30 attributes under
 * _testcapi.set_nomemory). */
static bool own_table(PyObject *dict) {
    if (((PyDictObject *)dict)->ma_values == NULL) return true;
    /* popitem() takes the last item, so the order is preserved */
    PyObject *item = PyObject_CallMethod((PyObject *)&PyDict_Type, "popitem", "O", dict);
    if (item == NULL) { /* empty, or out of memory, in which case popitem has not removed the item */
        cc_raised_clear();
        return false;
    }
    cc_obj_dict_set(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1));
    Py_DECREF(item);
    return ((PyDictObject *)dict)->ma_values == NULL;
}
#    else
static bool own_table(PyObject *dict) {
    (void)dict;
    return true;
}
#    endif

const uint64_t *cc_watch_begin(PyObject *dict) {
    if (!PyDict_Check(dict)) return NULL;
    Watched *w = find(dict);
    if (w == NULL) {
        if (!own_table(dict)) return NULL;
        if (watcher < 0 && (watcher = PyDict_AddWatcher(on_event)) < 0) { /* an interpreter has only eight */
            cc_raised_clear();
            return NULL;
        }
        if (PyDict_Watch(watcher, dict) < 0) {
            cc_raised_clear();
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
        if (PyDict_Unwatch(watcher, w->dict) < 0) cc_raised_clear();
    }
    free(w);
}

#endif
