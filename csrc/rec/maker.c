/* The recipes' executor: makes the objects that they describe in a replay. Makes shared and cyclic objects once:
 * containers and functions enter `built` before they are filled. Each cycle leads through one of these, since
 * cc_recipe_of() refuses those through CC_MAKE_CALL. */
#include "rec_int.h"

static PyObject *make_items(const CcMaker *m, const CcRecipe *r, bool list, bool shared, int index) {
    PyObject *o = list ? PyList_New(r->n) : PyTuple_New(r->n);
    if (o == NULL) return NULL;
    if (shared) m->built[index] = Py_NewRef(o); /* a tuple may hold a list that holds the tuple */
    for (int i = 0; i < r->n; i++) {
        PyObject *item = cc_maker_make(m, m->recipes->kid.at[r->kid0 + i]);
        if (item == NULL) {
            /* if others already refer to it, it has NULL items when dropped, which CPython allows */
            Py_DECREF(o);
            return NULL;
        }
        if (list) PyList_SET_ITEM(o, i, item);
        else PyTuple_SET_ITEM(o, i, item);
    }
    return o;
}

static int fill_pairs(const CcMaker *m, const CcRecipe *r, int from, int to, PyObject *o,
                      int (*put)(PyObject *, PyObject *, PyObject *)) {
    for (int i = from; i < to; i += 2) {
        PyObject *key = cc_maker_make(m, m->recipes->kid.at[r->kid0 + i]);
        PyObject *value = key != NULL ? cc_maker_make(m, m->recipes->kid.at[r->kid0 + i + 1]) : NULL;
        const int status = value != NULL ? put(o, key, value) : -1;
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (status < 0) return -1;
    }
    return 0;
}

static int put_slot(PyObject *o, PyObject *descr, PyObject *value) {
    return Py_TYPE(descr)->tp_descr_set(descr, o, value);
}

static int put_odict(PyObject *o, PyObject *key, PyObject *value) { return PyODict_SetItem(o, key, value); }

bool cc_maker_plain(const PyTypeObject *base) {
    return base == &PyLong_Type || base == &PyFloat_Type || base == &PyUnicode_Type || base == &PyBytes_Type;
}

/* A bare instance from the base's tp_new, without running a Python __new__ or __init__. */
static PyObject *bare_instance(const CcMaker *m, const CcRecipe *r) {
    PyTypeObject *type = (PyTypeObject *)r->object, *base = cc_value_base(type);
    PyObject *args;
    if (PyType_IsSubtype(type, &PyTuple_Type)) {
        const CcRecipe items = {.kid0 = r->kid0, .n = r->aux};
        PyObject *tuple = make_items(m, &items, false, false, 0);
        args = tuple != NULL ? PyTuple_Pack(1, tuple) : NULL;
        Py_XDECREF(tuple);
    } else if (cc_maker_plain(base) || PyType_IsSubtype(type, (PyTypeObject *)PyExc_BaseException)) {
        const CcRecipe items = {.kid0 = r->kid0, .n = r->aux};
        args = make_items(m, &items, false, false, 0);
    } else {
        args = PyTuple_New(0);
    }
    PyObject *o = args != NULL ? base->tp_new(type, args, NULL) : NULL;
    /* OSError's tp_new leaves args to an __init__ that the class defines (3.11-3.13, oserror_use_init) */
    if (o != NULL && PyExceptionInstance_Check(o)) Py_XSETREF(((PyBaseExceptionObject *)o)->args, Py_NewRef(args));
    Py_XDECREF(args);
    return o;
}

static int fill_base(const CcMaker *m, const CcRecipe *r, PyObject *o) {
    if (PyODict_Check(o)) return fill_pairs(m, r, 0, r->aux, o, put_odict);
    if (PyDict_Check(o)) return fill_pairs(m, r, 0, r->aux, o, PyDict_SetItem);
    if (!PyList_Check(o) && !PyAnySet_Check(o)) return 0;
    for (int i = 0; i < r->aux; i++) {
        PyObject *item = cc_maker_make(m, m->recipes->kid.at[r->kid0 + i]);
        if (item == NULL) return -1;
        const int status = PyList_Check(o) ? PyList_Append(o, item) : PySet_Add(o, item);
        Py_DECREF(item);
        if (status < 0) return -1;
    }
    return 0;
}

static int fill_dict(const CcMaker *m, const CcRecipe *r, PyObject *o) {
    if (r->id == 0) return 0;
    PyObject *dict = r->id == CC_OWN_DICT ? cc_maker_make(m, m->recipes->kid.at[r->kid0 + r->aux])
                                          : PyObject_GenericGetDict(o, NULL);
    const int status = dict == NULL           ? -1
                       : r->id == CC_OWN_DICT ? cc_obj_set_dict(o, dict)
                                              : fill_pairs(m, r, r->aux, r->aux + r->id, dict, PyDict_SetItem);
    Py_XDECREF(dict);
    return status;
}

static PyObject *make_object(const CcMaker *m, const CcRecipe *r, int index) {
    PyObject *o = bare_instance(m, r);
    if (o == NULL) return NULL;
    if (r->shared && m->built != NULL) m->built[index] = Py_NewRef(o);
    const int n_dict = r->id == CC_OWN_DICT ? 1 : r->id;
    if (fill_base(m, r, o) == 0 && fill_dict(m, r, o) == 0 && fill_pairs(m, r, r->aux + n_dict, r->n, o, put_slot) == 0)
        return o;
    Py_DECREF(o);
    return NULL;
}

static void replace(PyObject **field, PyObject *v) { Py_XSETREF(*field, Py_XNewRef(v)); }

static PyObject *bare_function(const CcMaker *m, const CcRecipe *r) {
    PyObject *globals = cc_maker_make(m, m->recipes->kid.at[r->kid0 + CC_FN_GLOBALS]);
    PyObject *name = globals != NULL ? cc_maker_make(m, m->recipes->kid.at[r->kid0 + CC_FN_QUALNAME]) : NULL;
    PyObject *o = name != NULL ? PyFunction_NewWithQualName(r->object, globals, name) : NULL;
    Py_XDECREF(globals);
    Py_XDECREF(name);
    return o;
}

/* Makes the function before the objects in its cells, which may refer to it. */
static PyObject *make_function(const CcMaker *m, const CcRecipe *r, int index) {
    PyObject *kid[CC_FN_COUNT] = {0}, *o = bare_function(m, r);
    if (o == NULL) return NULL;
    if (r->shared && m->built != NULL) m->built[index] = Py_NewRef(o);
    for (int i = 0; i < CC_FN_COUNT; i++) {
        if (i == CC_FN_GLOBALS || i == CC_FN_QUALNAME) continue;
        kid[i] = cc_maker_make(m, m->recipes->kid.at[r->kid0 + i]);
        if (kid[i] == NULL && PyErr_Occurred()) goto fail;
    }
    PyFunctionObject *f = (PyFunctionObject *)o;
    if (kid[CC_FN_DEFAULTS] != NULL && PyFunction_SetDefaults(o, kid[CC_FN_DEFAULTS]) < 0) goto fail;
    if (kid[CC_FN_KWDEFAULTS] != NULL && PyFunction_SetKwDefaults(o, kid[CC_FN_KWDEFAULTS]) < 0) goto fail;
    if (kid[CC_FN_CLOSURE] != NULL && PyFunction_SetClosure(o, kid[CC_FN_CLOSURE]) < 0) goto fail;
    if (kid[CC_FN_NAME] != NULL) replace(&f->func_name, kid[CC_FN_NAME]);
    if (kid[CC_FN_DICT] != NULL) replace(&f->func_dict, kid[CC_FN_DICT]);
    replace(&f->func_annotations, kid[CC_FN_ANNOTATIONS]);
    if (cc_obj_annotate(o) != NULL) replace(cc_obj_annotate(o), kid[CC_FN_ANNOTATE]);
    replace(&f->func_doc, kid[CC_FN_DOC]);
    replace(&f->func_module, kid[CC_FN_MODULE]);
    goto done;
fail:
    Py_CLEAR(o);
done:
    for (int i = 0; i < CC_FN_COUNT; i++) Py_XDECREF(kid[i]);
    return o;
}

/* kids: arguments; aux = 1: the last kid is the state for __setstate__ */
static PyObject *make_call(const CcMaker *m, const CcRecipe *r) {
    const CcRecipe args = {.kid0 = r->kid0, .n = r->n - r->aux};
    PyObject *tuple = make_items(m, &args, false, false, 0);
    PyObject *o = tuple != NULL ? PyObject_CallObject(r->object, tuple) : NULL;
    Py_XDECREF(tuple);
    if (o == NULL || r->aux == 0) return o;
    PyObject *state = cc_maker_make(m, m->recipes->kid.at[r->kid0 + r->n - 1]);
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__setstate__");
    PyObject *done = state != NULL ? PyObject_CallMethodOneArg(o, name, state) : NULL;
    Py_XDECREF(state);
    if (done == NULL) Py_CLEAR(o);
    Py_XDECREF(done);
    return o;
}

static PyObject *make_pair(const CcMaker *m, const CcRecipe *r, PyObject *(*join)(PyObject *, PyObject *)) {
    PyObject *a = cc_maker_make(m, m->recipes->kid.at[r->kid0]);
    PyObject *b = a != NULL ? cc_maker_make(m, m->recipes->kid.at[r->kid0 + 1]) : NULL;
    PyObject *o = b != NULL ? join(a, b) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return o;
}

static PyObject *make_slice(const CcMaker *m, const CcRecipe *r) {
    PyObject *part[3] = {0}, *o = NULL;
    for (int i = 0; i < 3; i++)
        if ((part[i] = cc_maker_make(m, m->recipes->kid.at[r->kid0 + i])) == NULL) goto done;
    o = PySlice_New(part[0], part[1], part[2]);
done:
    for (int i = 0; i < 3; i++) Py_XDECREF(part[i]);
    return o;
}

static PyObject *make_cell(const CcMaker *m, const CcRecipe *r, int index) {
    PyObject *cell = PyCell_New(NULL);
    if (cell == NULL) return NULL;
    if (r->shared && m->built != NULL) m->built[index] = Py_NewRef(cell);
    PyObject *content = cc_maker_make(m, m->recipes->kid.at[r->kid0]);
    if (content == NULL && PyErr_Occurred()) {
        Py_DECREF(cell);
        return NULL;
    }
    PyCell_SET(cell, content);
    return cell;
}

/* Makes the generator before the objects in its slots, which may refer to it. */
static PyObject *make_generator(const CcMaker *m, const CcRecipe *r, int index) {
    PyObject *func = cc_maker_make(m, m->recipes->kid.at[r->kid0]);
    if (func == NULL) return NULL;
    PyObject *o = cc_generator_new((PyFunctionObject *)func);
    const int n = r->n - 1, n_locals = ((PyCodeObject *)((PyFunctionObject *)func)->func_code)->co_nlocalsplus;
    Py_DECREF(func);
    if (o == NULL) return NULL;
    if (r->shared && m->built != NULL) m->built[index] = Py_NewRef(o);
    for (int i = 0; i < n; i++) {
        PyObject *v = cc_maker_make(m, m->recipes->kid.at[r->kid0 + 1 + i]);
        if (v == NULL && PyErr_Occurred()) {
            /* so that it drops the objects on its stack */
            if (i > n_locals) cc_generator_suspend(o, r->aux, r->id, i - n_locals);
            Py_DECREF(o);
            return NULL;
        }
        cc_generator_put(o, i, v);
    }
    cc_generator_suspend(o, r->aux, r->id, n - n_locals);
    return o;
}

static PyObject *make_iterator(const CcMaker *m, const CcRecipe *r) {
    PyObject *over = cc_maker_make(m, m->recipes->kid.at[r->kid0]), *type;
    Py_ssize_t given, used, left;
    if ((over == NULL && PyErr_Occurred()) || !PyArg_ParseTuple(r->object, "Onnn", &type, &given, &used, &left))
        return NULL;
    PyObject *o = cc_iterator_new((PyTypeObject *)type, over, given, used, left);
    Py_XDECREF(over);
    return o;
}

/* A set of constants, place by place; kids: its tuples, in the order of their places. */
static PyObject *make_set(const CcMaker *m, const CcRecipe *r) {
    PyObject *o = cc_set_clone(r->object), *member;
    int kid = r->kid0;
    for (Py_ssize_t place = 0; o != NULL && cc_set_next(o, &place, &member); place++) {
        if (member == NULL || !PyTuple_CheckExact(member)) continue;
        PyObject *tuple = cc_maker_make(m, m->recipes->kid.at[kid++]);
        if (tuple != NULL) cc_set_put(o, place, tuple);
        else Py_CLEAR(o);
        Py_XDECREF(tuple);
    }
    return o;
}

static PyObject *make_new(const CcMaker *m, const CcRecipe *r, int index) {
    const bool shared = r->shared && m->built != NULL;
    switch ((CcMake)r->make) {
    case CC_MAKE_TUPLE: return make_items(m, r, false, shared, index);
    case CC_MAKE_LIST: return make_items(m, r, true, shared, index);
    case CC_MAKE_SLICE: return make_slice(m, r);
    case CC_MAKE_CELL: return make_cell(m, r, index);
    case CC_MAKE_METHOD: return make_pair(m, r, PyMethod_New);
    case CC_MAKE_FUNCTION: return make_function(m, r, index);
    case CC_MAKE_GENERATOR: return make_generator(m, r, index);
    case CC_MAKE_ITERATOR: return make_iterator(m, r);
    case CC_MAKE_CALL: return make_call(m, r);
    case CC_MAKE_OBJECT: return make_object(m, r, index);
    case CC_MAKE_SET:
    case CC_MAKE_DICT: {
        if (r->object != NULL) return make_set(m, r);
        PyObject *o = r->make == CC_MAKE_SET ? PySet_New(NULL) : PyDict_New();
        if (o == NULL) return NULL;
        if (shared) m->built[index] = Py_NewRef(o);
        const CcRecipe base = {.kid0 = r->kid0, .n = r->n, .aux = r->n};
        if (fill_base(m, &base, o) < 0) Py_CLEAR(o);
        return o;
    }
    default: break;
    }
    PyErr_Format(PyExc_SystemError, "ccompile: recipe of kind %d cannot be made", r->make);
    return NULL;
}

PyObject *cc_maker_make(const CcMaker *m, int recipe) {
    const CcRecipe *r = &m->recipes->r.at[recipe];
    switch ((CcMake)r->make) {
    case CC_MAKE_NULL: return NULL;
    case CC_MAKE_CONST: return Py_NewRef(r->object);
    case CC_MAKE_SOURCE: return Py_NewRef(m->gv[r->id]);
    case CC_MAKE_VALUE: return Py_XNewRef(m->value[r->id]); /* NULL: a node has failed (segment.c) */
    case CC_MAKE_EFFECT: return Py_XNewRef(m->effect[r->id]);
    case CC_MAKE_SYMBOL: return Py_XNewRef(m->symbol[r->id]); /* NULL: it was to come behind that node */
    default: break;
    }
    if (r->shared && m->built != NULL && m->built[recipe] != NULL) return Py_NewRef(m->built[recipe]);
    PyObject *o = make_new(m, r, recipe);
    if (o == NULL || !r->shared || m->built == NULL) return o;
    if (m->built[recipe] == NULL) m->built[recipe] = Py_NewRef(o);
    if (m->built[recipe] != o) Py_SETREF(o, Py_NewRef(m->built[recipe])); /* an object that it holds needed it first */
    return o;
}
