/* match statements: guards on what a pattern reads of its subject; except clauses: guards on an exception's classes. */
#include "rec_events.h"

static PyObject *str_match_args(void) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__match_args__");
    return name;
}

/* Borrowed. Not by attribute access, which would run a property of the class's metaclass once more. */
static PyObject *match_args(PyObject *cls) {
    return PyType_Check(cls) ? cc_type_lookup((PyTypeObject *)cls, str_match_args()) : NULL;
}

/* The names that a class pattern may read: its keywords, and all of __match_args__, because the number of positional
 * patterns is not known here. New list or NULL. */
static PyObject *pattern_names(const CcEvent *ev) {
    PyObject *args = match_args(ev->in[1]), *names = PyList_New(0);
    for (int i = 0; names != NULL && i < 2; i++) {
        PyObject *from = i == 0 ? args : ev->in[2];
        for (Py_ssize_t k = 0; from != NULL && PyTuple_CheckExact(from) && k < PyTuple_GET_SIZE(from); k++)
            if (PyUnicode_CheckExact(PyTuple_GET_ITEM(from, k)) && PyList_Append(names, PyTuple_GET_ITEM(from, k)) < 0)
                cc_raised_clear();
    }
    return names;
}

/* __getattribute__, a property, a Python descriptor or __getattr__: recorded as frames. */
static bool python_lookup(PyObject *o, PyObject *name) {
    if (cc_op_python_method(o, "__getattribute__")) return true;
    PyObject *d = cc_type_lookup(Py_TYPE(o), name), *dict = cc_obj_dict(o);
    if (d != NULL) return Py_IS_TYPE(d, &PyProperty_Type) || cc_python_class(Py_TYPE(d));
    return dict == NULL || PyDict_GetItemWithError(dict, name) == NULL;
}

static CcGo class_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *names = pattern_names(ev);
    (void)cc_given_class(rec, o, 0);
    (void)cc_given_class(rec, ev->in[1], 0);
    CcGo go = PyType_Check(ev->in[1]) ? cc_attr_before(rec, act, ev->in[1], str_match_args()) : CC_OK;
    PyObject *args = match_args(ev->in[1]);
    if (go == CC_OK && args != NULL && !cc_inside_guard(rec, args, 1)) /* the names and their order */
        go = cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "__match_args__");
    if (Py_TYPE(ev->in[1]) == &PyType_Type && PyObject_IsInstance(o, ev->in[1]) == 1)
        for (Py_ssize_t i = 0; go == CC_OK && names != NULL && i < PyList_GET_SIZE(names); i++)
            go = cc_attr_before(rec, act, o, PyList_GET_ITEM(names, i));
    cc_raised_clear();
    Py_XDECREF(names);
    return go;
}

static CcGo class_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *names = ev->result != NULL && ev->result != Py_None ? pattern_names(ev) : NULL;
    CcGo go = CC_OK;
    if (names != NULL && match_args(ev->in[1]) != NULL)
        go = cc_attr_after(rec, act, ev->in[1], str_match_args(), match_args(ev->in[1]));
    for (Py_ssize_t i = 0; go == CC_OK && names != NULL && i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        if (cc_tens_is(o) || python_lookup(o, name)) continue;
        PyObject *v = PyObject_GetAttr(o, name);
        cc_raised_clear();
        if (v != NULL) cc_vec_push(&rec->keep, v);
        go = cc_attr_after(rec, act, o, name, v);
    }
    Py_XDECREF(names);
    return go;
}

CcGo cc_match_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0];
    if (!PyExceptionInstance_Check(o) && cc_value_origin(rec, o) == CC_O_UNKNOWN)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    if (ev->arg == CC_INSN_MATCH_SEQUENCE || ev->arg == CC_INSN_MATCH_MAPPING) {
        /* depends on type flags, which registration with an abstract base class sets */
        if (cc_mutable_class(Py_TYPE(o)) && !cc_tens_is(o)) cc_value_guard_module_call(rec, "_abc", "get_cache_token");
        return CC_OK;
    }
    if (ev->arg == CC_INSN_MATCH_CLASS) return class_before(rec, act, ev);
    if (cc_tens_is(o)) return cc_rec_break(rec, act, CC_R_TENSOR_ITER, "match");
    if (cc_value_dirty(rec, o) != CC_DIRTY_NO) return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    cc_sym_fill(rec, o);
    if (cc_value_base(Py_TYPE(o)) != &PyBaseObject_Type && !cc_inside_guard(rec, o, 1))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
    return CC_OK;
}

CcGo cc_match_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (ev->arg == CC_INSN_GET_LEN) cc_attr_dunder(rec, ev->in[0], "__len__");
    const CcGo go = ev->arg == CC_INSN_MATCH_CLASS ? class_after(rec, act, ev) : CC_OK;
    if (go == CC_OK) cc_value_fresh(rec, ev->result);
    return go;
}

CcGo cc_match_exception(CcRec *rec, CcAct *act, const CcEvent *ev) {
    for (int i = 0; i < 2; i++)
        if (!cc_given_class(rec, ev->in[i], 1))
            return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, "classes of exceptions");
    return CC_OK;
}
