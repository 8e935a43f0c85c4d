/* Pattern matching: match_class and match_keys of CPython's evaluator, as observed steps. */
#include "py_int.h"

/* The attribute for a sub-pattern; NULL without an error: the pattern does not match. */
static PyObject *class_attr(PyObject *subject, PyTypeObject *type, PyObject *name, PyObject *seen) {
    int known = PySet_Contains(seen, name);
    if (known == 0) known = PySet_Add(seen, name);
    if (known) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s() got multiple sub-patterns for attribute %R", type->tp_name, name);
        return NULL;
    }
    PyObject *attr = PyObject_GetAttr(subject, name);
    if (!attr && PyErr_ExceptionMatches(PyExc_AttributeError)) cc_raised_clear();
    return attr;
}

/* Appends the named attributes; 1: done, 0: no match, -1: raised. */
static int class_attrs(PyObject *attrs, PyObject *subject, PyTypeObject *type, PyObject *names, Py_ssize_t n,
                       PyObject *seen) {
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (!PyUnicode_CheckExact(name)) {
            PyErr_Format(PyExc_TypeError, "__match_args__ elements must be strings (got %s)", Py_TYPE(name)->tp_name);
            return -1;
        }
        PyObject *attr = class_attr(subject, type, name, seen);
        int status = attr ? PyList_Append(attrs, attr) : 0;
        Py_XDECREF(attr);
        if (!attr || status < 0) return PyErr_Occurred() ? -1 : 0;
    }
    return 1;
}

static int class_positional(PyObject *attrs, PyObject *subject, PyTypeObject *type, int n, PyObject *seen) {
    bool self = false;
    PyObject *names = PyObject_GetAttrString((PyObject *)type, "__match_args__");
    if (!names && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        cc_raised_clear();
        names = PyTuple_New(0);
        self = PyType_HasFeature(type, _Py_TPFLAGS_MATCH_SELF);
    }
    if (!names) return -1;
    int status = -1;
    Py_ssize_t allowed = self ? 1 : PyTuple_CheckExact(names) ? PyTuple_GET_SIZE(names) : 0;
    if (!PyTuple_CheckExact(names)) {
        PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)", type->tp_name,
                     Py_TYPE(names)->tp_name);
    } else if (allowed < n) {
        PyErr_Format(PyExc_TypeError, "%s() accepts %zd positional sub-pattern%s (%d given)", type->tp_name, allowed,
                     allowed == 1 ? "" : "s", n);
    } else if (self) {
        status = PyList_Append(attrs, subject) < 0 ? -1 : 1;
    } else {
        status = class_attrs(attrs, subject, type, names, n, seen);
    }
    Py_DECREF(names);
    return status;
}

/* The attributes as a tuple; None: the pattern does not match. */
static PyObject *match_class(PyObject *subject, PyObject *type, PyObject *names, int n_pos) {
    int status = PyObject_IsInstance(subject, type);
    if (status <= 0) return status < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *seen = PySet_New(NULL), *attrs = seen ? PyList_New(0) : NULL, *result = NULL;
    PyTypeObject *tp = (PyTypeObject *)type;
    status = attrs ? 1 : -1;
    if (status > 0 && n_pos) status = class_positional(attrs, subject, tp, n_pos, seen);
    if (status > 0) status = class_attrs(attrs, subject, tp, names, PyTuple_GET_SIZE(names), seen);
    if (status >= 0) result = status ? PyList_AsTuple(attrs) : Py_NewRef(Py_None);
    Py_XDECREF(attrs);
    Py_XDECREF(seen);
    return result;
}

CcDo cc_ex_MATCH_CLASS(CcRun *r, const CcInsn *in) {
    PyObject **ops = cc_peek(r, 3);
    if (!PyType_Check(ops[1])) return CC_DO_HAND; /* TypeError: CPython composes the message */
    CcEvent ev = {.kind = CC_EV_MATCH, .arg = in->op, .in = ops, .n = 3};
    CC_STEP(r, &ev, match_class(ops[0], ops[1], ops[2], in->arg));
    return cc_replace(r, 3, ev.result);
}

/* Fills values[i] = subject.get(keys[i]); 1: done, 0: a key is absent, -1: raised. */
static int keys_values(PyObject *subject, PyObject *keys, PyObject *get, bool unbound, PyObject *seen, PyObject *absent,
                       PyObject *values) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i), *args[] = {subject, key, absent};
        int known = PySet_Contains(seen, key);
        if (known == 0) known = PySet_Add(seen, key);
        if (known) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "mapping pattern checks duplicate key (%R)", key);
            return -1;
        }
        PyObject *value =
            unbound ? PyObject_Vectorcall(get, args, 3, NULL) : PyObject_Vectorcall(get, args + 1, 2, NULL);
        if (!value) return -1;
        if (value == absent) {
            Py_DECREF(value);
            return 0;
        }
        PyTuple_SET_ITEM(values, i, value);
    }
    return 1;
}

static PyObject *match_keys(PyObject *subject, PyObject *keys) {
    if (!PyTuple_GET_SIZE(keys)) return PyTuple_New(0);
    PyObject *name = PyUnicode_InternFromString("get"), *get = NULL, *result = NULL;
    int unbound = name ? cc_frame_method(subject, name, &get) : 0;
    PyObject *seen = get ? PySet_New(NULL) : NULL;
    PyObject *absent = seen ? PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type) : NULL;
    PyObject *values = absent ? PyTuple_New(PyTuple_GET_SIZE(keys)) : NULL;
    int status = values ? keys_values(subject, keys, get, unbound, seen, absent, values) : -1;
    if (status >= 0) result = Py_NewRef(status ? values : Py_None);
    Py_XDECREF(values);
    Py_XDECREF(absent);
    Py_XDECREF(seen);
    Py_XDECREF(get);
    Py_XDECREF(name);
    return result;
}

CcDo cc_ex_MATCH_KEYS(CcRun *r, const CcInsn *in) {
    PyObject **ops = cc_peek(r, 2);
    CcEvent ev = {.kind = CC_EV_MATCH, .arg = in->op, .in = ops, .n = 2};
    CC_STEP(r, &ev, match_keys(ops[0], ops[1]));
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}

static CcDo has_feature(CcRun *r, const CcInsn *in, unsigned long feature) {
    PyObject *subject = cc_top(r, 1);
    CcEvent ev = {.kind = CC_EV_MATCH, .arg = in->op, .in = &subject, .n = 1};
    CC_STEP(r, &ev, Py_NewRef(PyType_HasFeature(Py_TYPE(subject), feature) ? Py_True : Py_False));
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}
CcDo cc_ex_MATCH_MAPPING(CcRun *r, const CcInsn *in) { return has_feature(r, in, Py_TPFLAGS_MAPPING); }
CcDo cc_ex_MATCH_SEQUENCE(CcRun *r, const CcInsn *in) { return has_feature(r, in, Py_TPFLAGS_SEQUENCE); }

static PyObject *length(PyObject *o) {
    Py_ssize_t n = PyObject_Size(o);
    return n < 0 ? NULL : PyLong_FromSsize_t(n);
}
CcDo cc_ex_GET_LEN(CcRun *r, const CcInsn *in) {
    CcEvent ev = {.kind = CC_EV_MATCH, .arg = in->op, .in = cc_peek(r, 1), .n = 1};
    CC_STEP(r, &ev, length(cc_top(r, 1)));
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}
