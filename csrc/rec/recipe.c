/* Recipes: from a real object that is alive at the end of a trace to a small plan that makes its equal in a replay
 * (maker.c). */
#include "rec_int.h"

#include <structmember.h>

enum { MAX_DEPTH = 64 };

bool cc_recipe_self_contained(const CcRecipes *rs, int recipe) {
    const CcRecipe *r = &rs->r.at[recipe];
    if (r->make == CC_MAKE_EFFECT || (r->make == CC_MAKE_SOURCE && !r->aux)) return false;
    for (int i = 0; i < r->n; i++)
        if (!cc_recipe_self_contained(rs, rs->kid.at[r->kid0 + i])) return false;
    return true;
}

void cc_recipe_free(CcRecipes *rs) {
    for (int i = 0; i < rs->r.n; i++) Py_CLEAR(rs->r.at[i].object);
    cc_vec_free(&rs->r);
    cc_vec_free(&rs->kid);
}

typedef struct Builder {
    CcRec *rec;
    CcRecipes *rs;
    CcMap *memo; /* object -> recipe; NULL: nothing is shared */
    int depth;
} Builder;

static int build(Builder *b, PyObject *o);

static int add(Builder *b, const CcRecipe *r) {
    cc_vec_push(&b->rs->r, *r);
    return b->rs->r.n - 1;
}

static int leaf(Builder *b, CcMake make, int id, PyObject *object) {
    return add(b, &(CcRecipe){.make = (uint8_t)make, .id = id, .object = Py_XNewRef(object)});
}

/* Reserves n kids, so that nested ones lie behind them. */
static int reserve_kids(Builder *b, int n) {
    const int at = b->rs->kid.n;
    for (int i = 0; i < n; i++) cc_vec_push(&b->rs->kid, -1);
    return at;
}

static int fail(Builder *b, PyObject *o) {
    b->rec->unbuildable = o;
    return -1;
}

/* A recipe with kids from an array of objects (NULL entries become NULL recipes). */
static int node(Builder *b, CcMake make, PyObject *self, PyObject *object, PyObject *const *kids, int n, int id,
                int aux) {
    const int kid0 = reserve_kids(b, n);
    const int me = add(b, &(CcRecipe){.make = (uint8_t)make,
                                      .shared = b->memo != NULL,
                                      .id = id,
                                      .aux = aux,
                                      .kid0 = kid0,
                                      .n = n,
                                      .object = Py_XNewRef(object)});
    if (b->memo != NULL) cc_map_put(b->memo, self, me);
    for (int i = 0; i < n; i++) {
        const int kid = kids[i] != NULL ? build(b, kids[i]) : leaf(b, CC_MAKE_NULL, 0, NULL);
        if (kid < 0) return -1;
        b->rs->kid.at[kid0 + i] = kid;
    }
    return me;
}

typedef CC_VEC(PyObject *) Objects;

/* In order, and without a look-up: the hash of a key may be Python code (that of a tensor is). */
static void add_dict_items(Objects *out, PyObject *dict) {
    CcMap values = {0};
    Py_ssize_t pos = 0;
    PyObject *key, *value, *keys = PyODict_Check(dict) ? cc_dict_keys(dict) : NULL;
    while (PyDict_Next(dict, &pos, &key, &value)) {
        if (keys != NULL) {
            cc_map_put(&values, key, (int64_t)(intptr_t)value);
            continue;
        }
        cc_vec_push(out, key);
        cc_vec_push(out, value);
    }
    for (Py_ssize_t i = 0; keys != NULL && i < PyList_GET_SIZE(keys); i++) {
        const int64_t *v = cc_map_find(&values, PyList_GET_ITEM(keys, i));
        if (v == NULL) continue;
        cc_vec_push(out, PyList_GET_ITEM(keys, i));
        cc_vec_push(out, (PyObject *)(intptr_t)*v);
    }
    cc_map_free(&values);
    Py_XDECREF(keys); /* the dict holds them */
}

static void add_base_items(Objects *out, PyObject *o) {
    if (PyList_Check(o) || PyTuple_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) cc_vec_push(out, PySequence_Fast_GET_ITEM(o, i));
    } else if (PyDict_Check(o)) {
        add_dict_items(out, o);
    } else if (PyAnySet_Check(o)) {
        PyObject *it = PyObject_GetIter(o), *key;
        while (it != NULL && (key = PyIter_Next(it)) != NULL) {
            cc_vec_push(out, key);
            Py_DECREF(key); /* the set holds it */
        }
        Py_XDECREF(it);
    } else if (PyExceptionInstance_Check(o)) {
        PyObject *args = ((PyBaseExceptionObject *)o)->args;
        for (Py_ssize_t i = 0; args != NULL && i < PyTuple_GET_SIZE(args); i++)
            cc_vec_push(out, PyTuple_GET_ITEM(args, i));
    }
}

/* What an exception's C type keeps beside its arguments (StopIteration.value, OSError.filename): unset is None there, and stays unset. */
static bool kept_by_c(PyTypeObject *type, PyObject *descr, PyObject *v) {
    return PyType_IsSubtype(type, (PyTypeObject *)PyExc_BaseException) && v != Py_None &&
           !(((PyMemberDescrObject *)descr)->d_member->flags & READONLY);
}

/* Member descriptors along the MRO, of __slots__ and of exceptions, with the values that are set; values are kept alive by rec->keep. */
static bool add_slots(CcRec *rec, Objects *out, PyObject *o) {
    PyObject *mro = Py_TYPE(o)->tp_mro;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *t = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        if (!cc_python_class(t) && !PyExceptionInstance_Check(o)) continue;
        Py_ssize_t pos = 0;
        PyObject *name, *descr;
        PyObject *dict = cc_type_dict(t);
        while (PyDict_Next(dict, &pos, &name, &descr)) {
            if (Py_TYPE(descr) != &PyMemberDescr_Type) continue;
            PyObject *v = Py_TYPE(descr)->tp_descr_get(descr, o, (PyObject *)Py_TYPE(o));
            if (v == NULL) {
                PyErr_Clear();
                continue;
            }
            cc_vec_push(&rec->keep, v);
            if (!cc_python_class(t) && !kept_by_c(t, descr, v)) continue;
            cc_vec_push(out, descr);
            cc_vec_push(out, v);
        }
    }
    return true;
}

/* An exception's cause, context and traceback, set through their descriptors as slots are. */
static void add_chain(CcRec *rec, Objects *out, PyObject *o) {
    static const char *const names[] = {"__context__", "__cause__"};
    for (int i = 0; PyExceptionInstance_Check(o) && i < CC_COUNT(names); i++) {
        PyObject *v = i == 0 ? PyException_GetContext(o) : PyException_GetCause(o);
        PyObject *descr = v != NULL ? PyObject_GetAttrString(PyExc_BaseException, names[i]) : NULL;
        if (v != NULL) cc_vec_push(&rec->keep, v);
        if (descr == NULL) continue;
        cc_vec_push(&rec->keep, descr);
        cc_vec_push(out, descr);
        cc_vec_push(out, v);
    }
    PyObject *tb = PyExceptionInstance_Check(o) ? cc_traceback_copy(o) : NULL;
    PyObject *descr = tb != NULL && tb != Py_None ? PyObject_GetAttrString(PyExc_BaseException, "__traceback__") : NULL;
    if (descr != NULL) {
        cc_value_const_source(rec, tb);
        cc_vec_push(&rec->keep, descr);
        cc_vec_push(out, descr);
        cc_vec_push(out, tb);
    }
    Py_XDECREF(tb); /* its entry in the map holds it */
    PyErr_Clear();
}

/* Static bases whose instances are nothing but their items, dict and slots. */
static bool known_base(PyTypeObject *base) {
    return base == &PyBaseObject_Type || base == &PyList_Type || base == &PyDict_Type || base == &PyTuple_Type ||
           base == &PySet_Type || base == &PyODict_Type || cc_maker_plain(base) ||
           strcmp(base->tp_name, "types.SimpleNamespace") == 0 ||
           PyType_IsSubtype(base, (PyTypeObject *)PyExc_BaseException);
}

/* Its hash or equality writes, which making its container again would ask for once more. */
static bool loud(const CcRec *rec, PyObject *key, int depth) {
    if (cc_map_find(&rec->loud, Py_TYPE(key)) != NULL) return true;
    for (Py_ssize_t i = 0; depth > 0 && PyTuple_Check(key) && i < PyTuple_GET_SIZE(key); i++)
        if (loud(rec, PyTuple_GET_ITEM(key, i), depth - 1)) return true;
    return false;
}

static bool loud_keys(const CcRec *rec, PyObject *o) {
    Py_ssize_t pos = 0;
    PyObject *key;
    if (rec->loud.n == 0) return false;
    while (PyDict_Check(o) && PyDict_Next(o, &pos, &key, NULL))
        if (loud(rec, key, 4)) return true;
    for (; PyAnySet_Check(o) && cc_set_next(o, &pos, &key); pos++)
        if (key != NULL && loud(rec, key, 4)) return true;
    return false;
}

/* Whether something besides its object and the recorder's map holds an instance's dict: vars(o) and its bound methods. */
static bool dict_held(const Builder *b, PyObject *dict) {
    const CcProv *p = cc_value_find(b->rec, dict);
    return b->memo != NULL && p != NULL && Py_REFCNT(dict) > 1 + (p->weak == NULL);
}

static int build_object(Builder *b, PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    if (PyObject_GC_IsFinalized(o)) return fail(b, o); /* one made anew would be finalised once more */
    if (!known_base(cc_maker_base(type)) || (PyExceptionInstance_Check(o) && cc_traceback_read(b->rec, o)))
        return fail(b, o);
    Objects kids = {0};
    if (cc_maker_plain(cc_maker_base(type))) {
        PyObject *value = cc_value_held(o);
        if (value == NULL) return fail(b, o);
        cc_vec_push(&b->rec->keep, value);
        cc_vec_push(&kids, value);
    }
    add_base_items(&kids, o);
    const int n_base = kids.n;
    PyObject *dict = cc_obj_dict(o);
    const bool own_dict = dict != NULL && dict_held(b, dict);
    if (own_dict) cc_vec_push(&kids, dict);
    else if (dict != NULL) add_dict_items(&kids, dict);
    const int n_dict = own_dict ? CC_OWN_DICT : kids.n - n_base;
    int me = -1;
    add_chain(b->rec, &kids, o);
    if (add_slots(b->rec, &kids, o)) me = node(b, CC_MAKE_OBJECT, o, (PyObject *)type, kids.at, kids.n, n_dict, n_base);
    cc_vec_free(&kids);
    return me;
}

static int build_function(Builder *b, PyObject *o) {
    const PyFunctionObject *f = (PyFunctionObject *)o;
    /* CPython makes these when they are first needed */
    if (f->func_dict != NULL) cc_value_fresh(b->rec, f->func_dict);
    if (f->func_annotations != NULL && PyDict_CheckExact(f->func_annotations))
        cc_value_fresh(b->rec, f->func_annotations);
    PyObject *const kids[CC_FN_COUNT] = {
        NULL /* globals: below */, f->func_defaults, f->func_kwdefaults,  f->func_closure, f->func_name,
        f->func_qualname,          f->func_dict,     f->func_annotations, f->func_doc,     f->func_module};
    const int me = node(b, CC_MAKE_FUNCTION, o, f->func_code, kids, CC_COUNT(kids), 0, 0);
    if (me >= 0) b->rs->kid.at[b->rs->r.at[me].kid0 + CC_FN_GLOBALS] = leaf(b, CC_MAKE_CONST, 0, f->func_globals);
    return me;
}

/* A generator that has not begun, or is suspended. What it will not read again is not kept, as in a snapshot's frames.
 * What it holds and its end finalises would be finalised behind the break by whoever lets go of it last. */
static int build_generator(Builder *b, PyObject *o) {
    CcGen g;
    /* what is listed goes on without a break */
    if (!cc_generator_read(o, &g) || cc_library_listed(g.func)) return fail(b, o);
    for (int i = 0; i < g.code->n_locals + g.depth; i++)
        if (g.slot[i] != NULL && cc_final_has(g.slot[i]) && !PyGen_CheckExact(g.slot[i])) return fail(b, o);
    Objects kids = {0};
    cc_vec_push(&kids, (PyObject *)g.func);
    for (int i = 0; i < g.code->n_locals + g.depth; i++) {
        const bool kept = i >= g.code->n_locals || cc_code_live(g.code, g.pc, i);
        cc_vec_push(&kids, kept ? g.slot[i] : NULL);
    }
    const int me = node(b, CC_MAKE_GENERATOR, o, NULL, kids.at, kids.n, g.unit, g.state);
    cc_vec_free(&kids);
    return me >= 0 ? me : fail(b, o);
}

bool cc_recipe_text_iterator(const PyTypeObject *t) {
    return t == &PyUnicodeIter_Type || t == &PyBytesIter_Type || strcmp(t->tp_name, "str_ascii_iterator") == 0;
}

static bool reducible(PyTypeObject *t) {
    return t == &PyListIter_Type || t == &PyTupleIter_Type || t == &PyRangeIter_Type || t == &PyEnum_Type ||
           t == &PyZip_Type || t == &PyMap_Type || t == &PyFilter_Type || t == &PyReversed_Type ||
           t == &PySeqIter_Type || cc_recipe_text_iterator(t) || t == &PyListRevIter_Type ||
           t == &PyLongRangeIter_Type ||
           strncmp(t->tp_name, "operator.", 9) == 0 || /* itemgetter, attrgetter, methodcaller */
           strcmp(t->tp_name, "functools.partial") == 0;
}

/* Members that are put into a new set in the order in which this one gives them are given in that order again. */
static bool same_order_again(PyObject *set) {
    PyObject *again = PySet_New(NULL), *key, *other;
    Py_ssize_t place = 0, at = 0;
    bool same = again != NULL;
    for (; same && cc_set_next(set, &place, &key); place++)
        same = key == NULL || (cc_value_const(key) && PySet_Add(again, key) == 0);
    for (place = 0; same && cc_set_next(set, &place, &key); place++) {
        if (key == NULL) continue;
        same = cc_set_next(again, &at, &other) && other == key;
        at++;
    }
    PyErr_Clear();
    Py_XDECREF(again);
    return same;
}

/* An iterator over the dict or set itself, as many items on. */
static int build_iterator(Builder *b, PyObject *o) {
    CcIterator it;
    if (!cc_iterator_read(o, &it)) return fail(b, o);
    if (!it.behind || (it.over != NULL && PyODict_Check(it.over))) return fail(b, o);
    /* a dict that is made again has no gaps */
    if (it.over != NULL && cc_value_origin(b->rec, it.over) == CC_O_FRESH &&
        (PyAnySet_Check(it.over) ? !same_order_again(it.over)
                                 : it.at != (it.back ? PyDict_GET_SIZE(it.over) - it.given - 1 : it.given)))
        return fail(b, o);
    PyObject *what;
    CC_SURE(what, Py_BuildValue("(Onnn)", Py_TYPE(o), it.given, it.used, it.left));
    const int me = node(b, CC_MAKE_ITERATOR, o, what, &it.over, 1, 0, 0);
    Py_DECREF(what);
    return me;
}

/* reversed(list) whose list has become shorter: __setstate__ would put it at the list's end. */
static bool beyond(PyObject *reduced) {
    PyObject *args = PyTuple_GET_ITEM(reduced, 1),
             *list = PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : NULL;
    return PyTuple_GET_SIZE(reduced) > 2 && list != NULL && PyList_Check(list) &&
           PyLong_AsSsize_t(PyTuple_GET_ITEM(reduced, 2)) >= PyList_GET_SIZE(list);
}

/* Iterators and views of builtin types know how to say what they are: __reduce__. Nothing is consumed. */
static int build_reduced(Builder *b, PyObject *o) {
    PyObject *r = PyObject_CallMethod(o, "__reduce__", NULL);
    if (r == NULL || !PyTuple_Check(r) || PyTuple_GET_SIZE(r) < 2) {
        PyErr_Clear();
        Py_XDECREF(r);
        return fail(b, o);
    }
    cc_vec_push(&b->rec->keep, r);
    Objects kids = {0};
    PyObject *args = PyTuple_GET_ITEM(r, 1);
    if (Py_IS_TYPE(o, &PyListRevIter_Type) && beyond(r)) return fail(b, o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) cc_vec_push(&kids, PyTuple_GET_ITEM(args, i));
    const bool state = PyTuple_GET_SIZE(r) > 2 && PyTuple_GET_ITEM(r, 2) != Py_None;
    if (state) cc_vec_push(&kids, PyTuple_GET_ITEM(r, 2));
    for (Py_ssize_t i = 0; state && PyTuple_Check(kids.at[kids.n - 1]) && i < PyTuple_GET_SIZE(kids.at[kids.n - 1]);
         i++) {
        PyObject *part = PyTuple_GET_ITEM(kids.at[kids.n - 1], i); /* partial's own arguments */
        if (PyTuple_CheckExact(part) || PyDict_CheckExact(part)) cc_value_fresh(b->rec, part);
    }
    /* lists that __reduce__ made for us are fresh */
    for (int i = 0; i < kids.n; i++) /* and so are the iterators inside of enumerate, zip, map */
        if (PyList_CheckExact(kids.at[i]) || PyTuple_CheckExact(kids.at[i]) || cc_iterator_is(kids.at[i]) ||
            reducible(Py_TYPE(kids.at[i])))
            cc_value_fresh(b->rec, kids.at[i]);
    const int me = node(b, CC_MAKE_CALL, o, PyTuple_GET_ITEM(r, 0), kids.at, kids.n, 0, state);
    const CcProv *p = me < 0 ? cc_value_find(b->rec, b->rec->unbuildable) : NULL;
    if (me < 0 && (p == NULL || p->site_co == NULL)) b->rec->unbuildable = o; /* zip() made the iterators in it */
    cc_vec_free(&kids);
    return me;
}

/* torch.return_types.max and its kind, torch.Size: made from a tuple. */
static int build_structseq(Builder *b, PyObject *o) {
    PyObject *items = PyTuple_GetSlice(o, 0, PyTuple_GET_SIZE(o));
    if (items == NULL || Py_TYPE(items) != &PyTuple_Type) return fail(b, o);
    cc_vec_push(&b->rec->keep, items);
    cc_value_fresh(b->rec, items);
    return node(b, CC_MAKE_CALL, o, (PyObject *)Py_TYPE(o), &items, 1, 0, 0);
}

/* deque(items, maxlen) and defaultdict(factory, items) */
static int build_collection(Builder *b, PyObject *o) {
    const bool deque = cc_value_deque(o);
    PyObject *items = deque ? PySequence_List(o) : PyDict_New();
    PyObject *extra = PyObject_GetAttrString(o, deque ? "maxlen" : "default_factory");
    if (items == NULL || extra == NULL || (!deque && PyDict_Update(items, o) < 0)) {
        PyErr_Clear();
        Py_XDECREF(items);
        Py_XDECREF(extra);
        return fail(b, o);
    }
    cc_vec_push(&b->rec->keep, items);
    cc_vec_push(&b->rec->keep, extra);
    cc_value_fresh(b->rec, items);
    PyObject *const kids[] = {deque ? items : extra, deque ? extra : items};
    return node(b, CC_MAKE_CALL, o, (PyObject *)Py_TYPE(o), kids, 2, 0, 0);
}

static int build_bound_builtin(Builder *b, PyObject *o) {
    PyObject *self = PyCFunction_GET_SELF(o);
    PyObject *name = PyUnicode_FromString(((PyCFunctionObject *)o)->m_ml->ml_name);
    PyObject *getattr_fn = PyDict_GetItemString(PyEval_GetBuiltins(), "getattr");
    if (name == NULL || getattr_fn == NULL) return fail(b, o);
    cc_vec_push(&b->rec->keep, name);
    PyObject *const kids[] = {self, name};
    return node(b, CC_MAKE_CALL, o, getattr_fn, kids, 2, 0, 0);
}

static int build_frozenset(Builder *b, PyObject *o) {
    PyObject *items;
    CC_SURE(items, PySequence_List(o));
    bool constant = true;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        constant = constant && (cc_value_const(item) || cc_value_ident(item));
    }
    cc_vec_push(&b->rec->keep, items);
    if (constant) return leaf(b, CC_MAKE_CONST, 0, o);
    cc_value_fresh(b->rec, items);
    return node(b, CC_MAKE_CALL, o, (PyObject *)&PyFrozenSet_Type, &items, 1, 0, 0);
}

static int build_view(Builder *b, PyObject *o, const char *method) {
    const bool ordered =
        Py_IS_TYPE(o, &PyODictKeys_Type) || Py_IS_TYPE(o, &PyODictValues_Type) || Py_IS_TYPE(o, &PyODictItems_Type);
    PyObject *descr = PyObject_GetAttrString((PyObject *)(ordered ? &PyODict_Type : &PyDict_Type), method);
    PyObject *mapping = PyObject_GetAttrString(o, "mapping"); /* a proxy; the dict itself is behind it */
    Py_XDECREF(mapping);
    /* _PyDictViewObject.dv_dict, 3.11-3.13 */
    PyObject *dict = *(PyObject **)((char *)o + sizeof(PyObject));
    if (descr == NULL) return fail(b, o);
    cc_vec_push(&b->rec->keep, descr);
    return node(b, CC_MAKE_CALL, o, descr, &dict, 1, 0, 0);
}

/* property(get, set, delete), staticmethod(f): as long as it is what its class makes of these, its text and dict included. */
static int build_wrapper(Builder *b, PyObject *o) {
    static const char *const parts[] = {"fget", "fset", "fdel"}, *const wrapped[] = {"__func__"};
    static const char *const facts[] = {"__doc__", "__dict__"};
    const bool property = Py_IS_TYPE(o, &PyProperty_Type);
    PyObject *kids[3] = {NULL}, *args;
    const int n = property ? CC_COUNT(parts) : CC_COUNT(wrapped);
    CC_SURE(args, PyTuple_New(n));
    cc_vec_push(&b->rec->keep, args);
    for (int i = 0; i < n; i++) {
        CC_SURE(kids[i], PyObject_GetAttrString(o, property ? parts[i] : wrapped[i]));
        PyTuple_SET_ITEM(args, i, kids[i]);
    }
    PyObject *again = PyObject_CallObject((PyObject *)Py_TYPE(o), args);
    PyObject *const had = PyObject_GetAttrString(o, facts[!property]);
    PyObject *const has = again != NULL ? PyObject_GetAttrString(again, facts[!property]) : NULL;
    const bool same = had != NULL && has != NULL && PyObject_RichCompareBool(had, has, Py_EQ) == 1;
    PyErr_Clear();
    Py_XDECREF(again);
    Py_XDECREF(had);
    Py_XDECREF(has);
    return same ? node(b, CC_MAKE_CALL, o, (PyObject *)Py_TYPE(o), kids, n, 0, 0) : fail(b, o);
}

static int build_fresh(Builder *b, PyObject *o) {
    PyTypeObject *t = Py_TYPE(o);
    if (loud_keys(b->rec, o)) return fail(b, o);
    if (t == &PyTuple_Type || t == &PyList_Type || t == &PyDict_Type || t == &PySet_Type) {
        Objects kids = {0};
        add_base_items(&kids, o);
        const CcMake make = t == &PyTuple_Type  ? CC_MAKE_TUPLE
                            : t == &PyList_Type ? CC_MAKE_LIST
                            : t == &PyDict_Type ? CC_MAKE_DICT
                                                : CC_MAKE_SET;
        const int me = node(b, make, o, NULL, kids.at, kids.n, 0, 0);
        cc_vec_free(&kids);
        return me;
    }
    if (PySlice_Check(o)) {
        const PySliceObject *s = (PySliceObject *)o;
        PyObject *const kids[] = {s->start, s->stop, s->step};
        return node(b, CC_MAKE_SLICE, o, NULL, kids, 3, 0, 0);
    }
    if (PyCell_Check(o)) {
        PyObject *const kids[] = {PyCell_GET(o)};
        return node(b, CC_MAKE_CELL, o, NULL, kids, 1, 0, 0);
    }
    if (PyMethod_Check(o)) {
        PyObject *const kids[] = {PyMethod_GET_FUNCTION(o), PyMethod_GET_SELF(o)};
        return node(b, CC_MAKE_METHOD, o, NULL, kids, 2, 0, 0);
    }
    if (PyFunction_Check(o)) return build_function(b, o);
    if (cc_value_wraps(o)) return build_wrapper(b, o);
    if (PyGen_CheckExact(o)) return build_generator(b, o);
    if (PyCFunction_Check(o)) return build_bound_builtin(b, o);
    if (cc_value_structseq(o) || t == cc_tens_size_type()) return build_structseq(b, o);
    if (cc_value_deque(o) || cc_value_defaultdict(o)) return build_collection(b, o);
    if (cc_iterator_is(o)) return build_iterator(b, o);
    if (reducible(t)) return build_reduced(b, o);
    if (cc_value_view(o) == &PyDictItems_Type) return build_view(b, o, "items");
    if (cc_value_view(o) == &PyDictKeys_Type) return build_view(b, o, "keys");
    if (cc_value_view(o) == &PyDictValues_Type) return build_view(b, o, "values");
    if (cc_python_class(t) || known_base(t)) return build_object(b, o);
    if (t == &PyFrozenSet_Type) return build_frozenset(b, o);
    return fail(b, o);
}

static int source(Builder *b, int guard, PyObject *o) {
    b->rec->trace->guards.g.at[guard].used = true;
    /* aux: a tensor */
    return add(b, &(CcRecipe){.make = CC_MAKE_SOURCE, .id = guard, .aux = cc_tens_any(o)});
}

/* A tuple of constants may be part of one that the code holds: the keys of {(0, 1): x}. */
static bool constant(CcRec *rec, PyObject *o, int depth) {
    if (cc_value_find(rec, o) != NULL) return false; /* a symbol */
    if (!PyTuple_CheckExact(o)) return cc_value_const(o) || cc_value_ident(o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (depth == 0 || !constant(rec, PyTuple_GET_ITEM(o, i), depth - 1)) return false;
    return true;
}

static int build(Builder *b, PyObject *o) {
    CcRec *rec = b->rec;
    if (b->memo != NULL) {
        const int64_t *known = cc_map_find(b->memo, o);
        if (known != NULL) return (int)*known;
    }
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL) {
        if (constant(rec, o, 4)) return leaf(b, CC_MAKE_CONST, 0, o);
        const int64_t *handed = cc_map_find(&rec->handed, o);
        if (handed != NULL) return source(b, (int)*handed, o);
        if (!PyExceptionInstance_Check(o)) return fail(b, o);
    } else {
        CcGuards *gs = &rec->trace->guards;
        switch ((CcOrigin)p->origin) {
        case CC_O_SOURCE:
            /* A node runs before the effects: it needs what a written container holds, not the container. */
            if (p->dirty && b->memo == NULL && cc_value_tracked(o)) {
                if (cc_value_dirty(rec, o) != CC_DIRTY_NO) return fail(b, o);
                break;
            }
            if (gs->g.at[p->id].source == CC_SRC_CONST) return leaf(b, CC_MAKE_CONST, 0, gs->g.at[p->id].key);
            return source(b, p->id, o);
        case CC_O_VALUE: return leaf(b, CC_MAKE_VALUE, p->id, NULL);
        case CC_O_EFFECT: return leaf(b, CC_MAKE_EFFECT, p->id, NULL);
        case CC_O_SYMBOL: return leaf(b, CC_MAKE_SYMBOL, p->id, NULL);
        case CC_O_CONST: return leaf(b, CC_MAKE_CONST, 0, o);
        default: break;
        }
    }
    if (b->depth >= MAX_DEPTH) return fail(b, o);
    b->depth++;
    const int me = build_fresh(b, o);
    b->depth--;
    return me;
}

int cc_recipe_of(CcRec *rec, PyObject *o, CcMap *memo) {
    Builder b = {.rec = rec, .rs = &rec->trace->recipes, .memo = memo};
    return build(&b, o);
}
