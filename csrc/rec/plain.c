/* Containers of plain constants that the trace made. When C code reads a container, the recorder looks at each of its
 * items (symbols, classes, finalisers ...), so a loop around a heap, a queue or an `in` would take quadratic time. A
 * container that is known to hold nothing but constants is not looked through again until an event may have put
 * another object somewhere. */
#include "rec_int.h"

static bool is_container(PyObject *o) {
    return PyList_CheckExact(o) || PyDict_CheckExact(o) || PySet_CheckExact(o) || cc_known_is(o, CC_KNOWN_DEQUE);
}

/* A constant that is no symbol and was not read from a tensor, or a tuple of such that the trace made. */
static bool is_plain(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (PyTuple_CheckExact(o) && p != NULL && p->origin == CC_O_FRESH) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
            if (!is_plain(rec, PyTuple_GET_ITEM(o, i))) return false;
        return true;
    }
    return p == NULL && (o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyUnicode_CheckExact(o) ||
                         PyBytes_CheckExact(o) || (PyFloat_CheckExact(o) && !cc_same_nan(o)));
}

static int is_other(PyObject *o, void *rec) { return !is_plain(rec, o); }

bool cc_plain(CcRec *rec, PyObject *container) {
    CcProv *p = is_container(container) ? cc_value_find(rec, container) : NULL;
    if (p == NULL || p->origin != CC_O_FRESH) return false;
    if (p->plain == rec->puts) return true;
    PyObject *key;
    for (Py_ssize_t pos = 0; PyDict_Check(container) && PyDict_Next(container, &pos, &key, NULL);)
        if (!is_plain(rec, key)) return false; /* tp_traverse leaves texts out */
    if (Py_TYPE(container)->tp_traverse(container, is_other, rec) != 0) return false;
    p->plain = rec->puts;
    return true;
}

static bool iterates_over_data(PyObject *o) {
    return Py_IS_TYPE(o, &PyRangeIter_Type) || Py_IS_TYPE(o, &PyListIter_Type) || Py_IS_TYPE(o, &PyTupleIter_Type);
}

/* Only constants meet one container at most, in C code. */
static bool puts_constants(CcRec *rec, const CcEvent *ev) {
    int first = 0, containers = 0;
    if (ev->kind == CC_EV_CALL) {
        PyObject *f = ev->in[first++], *self = PyCFunction_Check(f) ? PyCFunction_GET_SELF(f) : NULL;
        const bool type = PyType_Check(f) && !PyType_HasFeature((PyTypeObject *)f, Py_TPFLAGS_HEAPTYPE);
        if (!type && !PyCFunction_Check(f) && !Py_IS_TYPE(f, &PyMethodDescr_Type)) return false;
        if (self != NULL && !PyModule_Check(self) && (!is_container(self) || ++containers > 1)) return false;
    }
    for (int i = first; i < ev->n; i++)
        if (ev->in[i] != NULL && !is_plain(rec, ev->in[i]) && (!is_container(ev->in[i]) || ++containers > 1))
            return false;
    return true;
}

void cc_plain_after(CcRec *rec, const CcEvent *ev) {
    bool harmless = false;
    switch (ev->kind) {
    case CC_EV_CONST:
    case CC_EV_GLOBAL:
    case CC_EV_DEREF:
    case CC_EV_STORE_DEREF:
    case CC_EV_ATTR:
    case CC_EV_SUBSCR:
    case CC_EV_UNARY:
    case CC_EV_COMPARE:
    case CC_EV_IS:
    case CC_EV_CONTAINS:
    case CC_EV_TRUTH:
    case CC_EV_ITER:
    case CC_EV_UNPACK:
    case CC_EV_BUILD:
    case CC_EV_FORMAT: harmless = true; break;
    case CC_EV_NEXT: harmless = iterates_over_data(ev->in[0]); break;
    case CC_EV_STORE_ATTR: harmless = ev->in[1] == NULL || is_plain(rec, ev->in[1]); break;
    case CC_EV_BINOP: harmless = !(ev->flags & CC_EV_INPLACE) || puts_constants(rec, ev); break;
    case CC_EV_CALL:
    case CC_EV_STORE_SUBSCR:
    case CC_EV_UPDATE: harmless = puts_constants(rec, ev); break;
    default: break;
    }
    if (!harmless) rec->puts++;
}
