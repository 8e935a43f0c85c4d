/* Special methods of a class that are C functions: `__getattr__ = dict.__getitem__`. CPython calls them inside its
 * slots, where neither a frame nor an event shows what they read or write. The recorder performs such an access by
 * Python code that calls them, which it records like any other. */
#include "rec_events.h"

static PyObject *str_get, *str_getattr, *str_getattribute, *str_setattr, *str_delattr;
static PyObject *str_getitem, *str_setitem, *str_delitem, *str_set, *str_delete;

int cc_dunder_init(void) {
    const struct {
        PyObject **at;
        const char *name;
    } names[] = {{&str_get, "__get__"},         {&str_getattr, "__getattr__"}, {&str_getattribute, "__getattribute__"},
                 {&str_setattr, "__setattr__"}, {&str_delattr, "__delattr__"}, {&str_getitem, "__getitem__"},
                 {&str_setitem, "__setitem__"}, {&str_delitem, "__delitem__"}, {&str_set, "__set__"},
                 {&str_delete, "__delete__"}};
    for (int i = 0; i < CC_COUNT(names); i++)
        if ((*names[i].at = cc_obj_intern(names[i].name)) == NULL) return -1;
    return 0;
}

/* ------------------------------------------------------------------ finding hooks */

/* A method of a C type, which a call through the class gives its self. */
static bool is_method(const PyObject *d) {
    return Py_IS_TYPE(d, &PyMethodDescr_Type) || Py_IS_TYPE(d, &PyWrapperDescr_Type);
}

static bool runs_python(PyObject *d) {
    if (!Py_IS_TYPE(d, &PyStaticMethod_Type) && !Py_IS_TYPE(d, &PyClassMethod_Type)) return cc_call_function(d) != NULL;
    PyObject *f = PyObject_GetAttrString(d, "__func__");
    const bool is = f != NULL && cc_call_function(f) != NULL;
    Py_XDECREF(f);
    cc_raised_clear();
    return is;
}

static bool python_defines(PyTypeObject *t, PyObject *name) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(t->tp_mro); i++) {
        PyTypeObject *at = (PyTypeObject *)PyTuple_GET_ITEM(t->tp_mro, i);
        if (PyDict_GetItemWithError(cc_type_dict(at), name) != NULL) return cc_python_class(at);
    }
    cc_raised_clear();
    return false;
}

/* The C function that a class in Python has as this special method. NULL: there is none, it is Python code, or it is
 * the C type's own method of that name, which the C type's slot stands for. */
static PyObject *in_c(PyTypeObject *t, PyObject *name) {
    PyObject *d = cc_python_class(t) ? cc_type_lookup(t, name) : NULL;
    if (d == NULL || d == Py_None || (is_method(d) && PyUnicode_Compare(PyDescr_NAME(d), name) == 0)) return NULL;
    return runs_python(d) || !python_defines(t, name) ? NULL : d;
}

bool cc_dunder_reads(PyTypeObject *t) { return in_c(t, str_getattr) != NULL || in_c(t, str_getattribute) != NULL; }

bool cc_dunder_describes(PyObject *d) {
    if (d == NULL || !cc_python_class(Py_TYPE(d))) return false;
    PyObject *const names[] = {str_get, str_set, str_delete};
    for (int i = 0; i < CC_COUNT(names); i++)
        if (in_c(Py_TYPE(d), names[i]) != NULL) return true;
    return false;
}

/* ------------------------------------------------------------------ performing accesses */

/* The class's own access to items, as an instruction: what it reads and writes is known by key, a method's is not. */
static PyObject *by_item(CcRec *rec, PyTypeObject *t, PyObject *hook) {
    PyObject *const names[] = {str_getitem, str_setitem, str_delitem};
    static const char *const template[] = {"item_getter", "item_setter", "item_deleter"};
    for (int i = 0; is_method(hook) && i < CC_COUNT(names); i++)
        if (PyUnicode_Compare(PyDescr_NAME(hook), names[i]) == 0 && cc_type_lookup(t, names[i]) == hook)
            return cc_backcall_template(rec, template[i], NULL);
    return NULL;
}

/* Each C type has a __getattribute__ of its own, mostly with the same code as object's, whose effects are known. */
static PyObject *as_of_object(PyObject *hook) {
    const bool generic = Py_IS_TYPE(hook, &PyWrapperDescr_Type) &&
                         ((PyWrapperDescrObject *)hook)->d_wrapped == (void *)PyObject_GenericGetAttr;
    return generic ? cc_type_lookup(&PyBaseObject_Type, str_getattribute) : hook;
}

/* Python code that does what the slot's call of the hook does; NULL: not known. */
static PyObject *callable(CcRec *rec, PyTypeObject *t, PyObject *hook) {
    cc_value_const_source(rec, hook);
    if (PyFunction_Check(hook)) return hook;
    PyObject *f = by_item(rec, t, hook);
    return f == NULL && is_method(hook) ? cc_backcall_wrap(rec, hook) : f;
}

/* A function that reads as CPython's slot does. */
static PyObject *reader(CcRec *rec, PyTypeObject *t) {
    PyObject *const hooks[] = {cc_type_lookup(t, str_getattribute), cc_type_lookup(t, str_getattr)};
    PyObject *parts[] = {Py_None, Py_None}, *args;
    for (int i = 0; i < CC_COUNT(hooks); i++) {
        if (hooks[i] != NULL) parts[i] = callable(rec, t, as_of_object(hooks[i]));
        if (parts[i] == NULL) return NULL;
    }
    CC_RETRY_ALLOC(args, PyTuple_Pack(2, parts[0], parts[1]));
    PyObject *f = cc_backcall_template(rec, "reader", args);
    Py_DECREF(args);
    return f;
}

CcGo cc_dunder_get(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n, bool asks) {
    PyTypeObject *t = Py_TYPE(in[0]);
    if (!PyUnicode_Check(in[1]) || n > (asks ? 2 : 3)) return CC_OK; /* raises */
    if (!cc_dunder_reads(t) || PyType_Check(in[0]) || PyModule_Check(in[0]) || cc_tens_is(in[0])) return CC_OK;
    if (cc_value_unknown(rec, in[0])) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, t->tp_name);
    cc_attr_dunder(rec, in[0], "__getattribute__");
    cc_attr_dunder(rec, in[0], "__getattr__");
    PyObject *f = reader(rec, t);
    if (f != NULL && asks) f = cc_backcall_around(rec, "asker", f);
    return f != NULL ? cc_backcall_perform(ev, f, in, n) : cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, t->tp_name);
}

/* in[0] has the hook, which takes `in`. */
static CcGo call_hook(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *name, PyObject *const *in, int n) {
    PyTypeObject *t = Py_TYPE(in[0]);
    PyObject *hook = cc_tens_is(in[0]) ? NULL : in_c(t, name);
    if (hook == NULL) return CC_OK;
    if (cc_value_unknown(rec, in[0])) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, t->tp_name);
    cc_attr_dunder(rec, in[0], PyUnicode_AsUTF8(name));
    PyObject *f = callable(rec, t, hook);
    return f != NULL ? cc_backcall_perform(ev, f, in, n) : cc_rec_break(rec, act, CC_R_UNKNOWN_ATTR, t->tp_name);
}

/* A statement has no result. */
static CcGo without_result(CcEvent *ev, CcGo go) {
    if (go == CC_DONE && ev->kind != CC_EV_CALL && ev->kind != CC_EV_CALL_EX) Py_CLEAR(ev->result);
    return go;
}

CcGo cc_dunder_set(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *o, PyObject *name, PyObject *v) {
    PyObject *const in[] = {o, name, v};
    if (!PyUnicode_Check(name)) return CC_OK; /* raises */
    return without_result(ev, call_hook(rec, act, ev, v != NULL ? str_setattr : str_delattr, in, v != NULL ? 3 : 2));
}

CcGo cc_dunder_item(CcRec *rec, CcAct *act, CcEvent *ev) {
    if (ev->kind == CC_EV_SUBSCR) return call_hook(rec, act, ev, str_getitem, ev->in, 2);
    const bool sets = ev->in[2] != NULL;
    return without_result(ev, call_hook(rec, act, ev, sets ? str_setitem : str_delitem, ev->in, sets ? 3 : 2));
}
