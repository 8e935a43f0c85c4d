/* Types that have no name in C, by identity (known.def): found once, when their module is there. */
#include "py_int.h"

static const struct {
    const char *module, *path;
} rows[] = {
#define CC_KNOWN(id, module, path) {module, path},
#include "known.def"
#undef CC_KNOWN
};

static PyTypeObject *found[CC_COUNT(rows)]; /* strong */
static Py_ssize_t looked[CC_COUNT(rows)];   /* how many modules there were when it was not found */

/* The module's own dict, without its __getattr__: no Python code runs. */
static PyObject *first_step(PyObject *module, PyObject *name) {
    PyObject *dict = module != NULL && PyModule_Check(module) ? PyModule_GetDict(module) : NULL;
    return dict != NULL ? Py_XNewRef(PyDict_GetItemWithError(dict, name)) : NULL;
}

static PyObject *follow(PyObject *modules, const char *module, const char *path) {
    PyObject *o = cc_obj_item(modules, module);
    for (bool first = true; *path != '\0' && (first || o != NULL); first = false) {
        const size_t n = strcspn(path, ".");
        const bool call = path[n - 1] == ')';
        PyObject *name, *next;
        CC_RETRY_ALLOC(name, PyUnicode_FromStringAndSize(path, (Py_ssize_t)(call ? n - 2 : n)));
        next = first ? first_step(o, name) : call ? PyObject_CallMethodNoArgs(o, name) : PyObject_GetAttr(o, name);
        Py_DECREF(name);
        if (!first) Py_DECREF(o);
        o = next;
        path += n + (path[n] == '.');
    }
    return o;
}

PyTypeObject *cc_known_type(CcKnown id) {
    if (found[id] != NULL) return found[id];
    PyObject *modules = PyImport_GetModuleDict();
    if (PyDict_GET_SIZE(modules) == looked[id]) return NULL;
    looked[id] = PyDict_GET_SIZE(modules);
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject *o = follow(modules, rows[id].module, rows[id].path);
    if (o != NULL && PyType_Check(o)) found[id] = (PyTypeObject *)Py_NewRef(o);
    Py_XDECREF(o);
    PyErr_Restore(type, value, tb); /* one that the search set is dropped */
    return found[id];
}

bool cc_known_typing(const PyTypeObject *type) {
    for (int id = CC_KNOWN_TYPE_VAR; id <= CC_KNOWN_FORWARD_REF; id++)
        if (type == cc_known_type((CcKnown)id)) return true;
    return false;
}

bool cc_known_number(const PyTypeObject *type) {
    for (int id = CC_KNOWN_FLOAT64; id <= CC_KNOWN_BOOL; id++)
        if (type == cc_known_type((CcKnown)id)) return true;
    return false;
}
