/* The special methods that C code finds on a class: present or absent, own or inherited. */
#include "guard_int.h"

enum { MAX_NAMES = 128 };

static PyObject *names[MAX_NAMES]; /* interned, for the life of the process */
static int n_names;

static const char *const rows[] = {
#define CC_SPECIAL(names) names,
#include "special.def"
#undef CC_SPECIAL
};

static void read_names(void) {
    for (int r = 0; r < CC_COUNT(rows); r++) {
        for (const char *p = rows[r]; *p != '\0';) {
            const size_t n = strcspn(p, " ");
            PyObject *name;
            CC_RETRY_ALLOC(name, PyUnicode_FromStringAndSize(p, (Py_ssize_t)n));
            CC_ASSERT(n_names < MAX_NAMES);
            PyUnicode_InternInPlace(&name);
            names[n_names++] = name;
            p += n + (p[n] == ' ');
        }
    }
}

/* The method, or Ellipsis if it is absent; no class uses Ellipsis as a special method. */
static PyObject *find_method(PyTypeObject *type, int i) {
    PyObject *v = cc_type_lookup(type, names[i]);
    return v != NULL ? v : Py_Ellipsis;
}

PyObject *cc_special_of(PyTypeObject *type) {
    if (n_names == 0) read_names();
    PyObject *all = PyTuple_New(n_names);
    for (int i = 0; all != NULL && i < n_names; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(find_method(type, i)));
    return all;
}

bool cc_special_same(PyTypeObject *type, PyObject *want) {
    for (int i = 0; i < n_names; i++)
        if (find_method(type, i) != PyTuple_GET_ITEM(want, i)) return false;
    return true;
}

bool cc_special_listed(PyObject *name) {
    if (n_names == 0) read_names();
    for (int i = 0; i < n_names; i++)
        if (names[i] == name) return true;
    return false;
}
