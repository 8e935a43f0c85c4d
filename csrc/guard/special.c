/* The special methods of a class, as C code finds them: present or absent, its own or inherited. */
#include "guard_int.h"

enum { MOST = 128 };

static PyObject *names[MOST]; /* interned, for the life of the process */
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
            CC_SURE(name, PyUnicode_FromStringAndSize(p, (Py_ssize_t)n));
            CC_ASSERT(n_names < MOST);
            PyUnicode_InternInPlace(&name);
            names[n_names++] = name;
            p += n + (p[n] == ' ');
        }
    }
}

/* What stands for a method that is absent: no class has it for one. */
static PyObject *found(PyTypeObject *type, int i) {
    PyObject *v = cc_type_lookup(type, names[i]);
    return v != NULL ? v : Py_Ellipsis;
}

PyObject *cc_special_of(PyTypeObject *type) {
    if (n_names == 0) read_names();
    PyObject *all = PyTuple_New(n_names);
    for (int i = 0; all != NULL && i < n_names; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(found(type, i)));
    return all;
}

bool cc_special_same(PyTypeObject *type, PyObject *want) {
    for (int i = 0; i < n_names; i++)
        if (found(type, i) != PyTuple_GET_ITEM(want, i)) return false;
    return true;
}

bool cc_special_is(PyObject *name) {
    if (n_names == 0) read_names();
    for (int i = 0; i < n_names; i++)
        if (names[i] == name) return true;
    return false;
}
