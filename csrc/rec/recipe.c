/* Builds recipes: from a real object that is alive at the end of a trace to a small plan that makes an equal object in
 * a replay (maker.c). */
#include "rec_events.h"

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
    int calls[MAX_DEPTH], n_calls; /* recipes of kind CALL whose operands are being built */
} Builder;

typedef int (*Build)(Builder *b, PyObject *o);

typedef struct Fresh {
    Build build;
    CcAdopt adopt;
} Fresh;

static int build(Builder *b, PyObject *o);
static const Fresh *fresh_row(PyObject *o);

static int add(Builder *b, const CcRecipe *r) {
    cc_vec_push(&b->rs->r, *r);
    return b->rs->r.n - 1;
}

static int leaf(Builder *b, CcMake make, int id, PyObject *object) {
    return add(b, &(CcRecipe){.make = (uint8_t)make, .id = id, .object = Py_XNewRef(object)});
}

/* Reserves n consecutive kids; nested ones come after them. */
static int reserve_kids(Builder *b, int n) {
    const int at = b->rs->kid.n;
    for (int i = 0; i < n; i++) cc_vec_push(&b->rs->kid, -1);
    return at;
}

static int fail(Builder *b, PyObject *o) {
    b->rec->unbuildable = o;
    return -1;
}

/* A recipe with kids from an array of objects (NULL entries become CC_MAKE_NULL). */
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
    if (make == CC_MAKE_CALL && b->n_calls == MAX_DEPTH) return fail(b, self);
    if (make == CC_MAKE_CALL) b->calls[b->n_calls++] = me;
    bool ok = true;
    for (int i = 0; i < n && ok; i++) {
        const int kid = kids[i] != NULL ? build(b, kids[i]) : leaf(b, CC_MAKE_NULL, 0, NULL);
        b->rs->kid.at[kid0 + i] = kid;
        ok = kid >= 0;
    }
    b->n_calls -= make == CC_MAKE_CALL;
    return ok ? me : -1;
}

typedef CC_VEC(PyObject *) Objects;

/* Adds items in order and without lookups: hashing a key may run Python code (Tensor.__hash__ is Python). */
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
    Py_XDECREF(keys); /* the dict keeps them alive */
}

static void add_base_items(Objects *out, PyObject *o) {
    if (PyList_Check(o) || PyTuple_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) cc_vec_push(out, PySequence_Fast_GET_ITEM(o, i));
    } else if (PyDict_Check(o)) {
        add_dict_items(out, o);
    } else if (PyAnySet_Check(o)) {
        PyObject *key; /* a subclass may have an __iter__ of its own */
        for (Py_ssize_t place = 0; cc_set_next(o, &place, &key); place++)
            if (key != NULL) cc_vec_push(out, key);
    } else if (PyExceptionInstance_Check(o)) {
        PyObject *args = ((PyBaseExceptionObject *)o)->args;
        for (Py_ssize_t i = 0; args != NULL && i < PyTuple_GET_SIZE(args); i++)
            cc_vec_push(out, PyTuple_GET_ITEM(args, i));
    }
}

/* A field that an exception's C type keeps besides its arguments (StopIteration.value, OSError.filename): None means
 * unset, and stays unset. */
static bool kept_by_c(PyTypeObject *type, PyObject *descr, PyObject *v) {
    return PyType_IsSubtype(type, (PyTypeObject *)PyExc_BaseException) && v != Py_None &&
           !(((PyMemberDescrObject *)descr)->d_member->flags & READONLY);
}

/* Adds member descriptors along the MRO (of __slots__ and exceptions) with the values that are set; rec->keep keeps
 * values alive. */
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
                cc_raised_clear();
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

/* An exception's cause, context and traceback, set through their descriptors, as slots are. */
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
    Py_XDECREF(tb); /* its provenance entry keeps it alive */
    cc_raised_clear();
}

/* Static bases whose instances consist only of their items, dict and slots. */
static bool known_base(PyTypeObject *base) {
    return base == &PyBaseObject_Type || base == &PyList_Type || base == &PyDict_Type || base == &PyTuple_Type ||
           base == &PySet_Type || base == &PyODict_Type || cc_maker_plain(base) ||
           base == cc_known_type(CC_KNOWN_NAMESPACE) || PyType_IsSubtype(base, (PyTypeObject *)PyExc_BaseException);
}

/* Its hash or equality writes: rebuilding a container of it would run this code again. */
static bool hash_writes(const CcRec *rec, PyObject *key, int depth) {
    if (cc_map_find(&rec->writing_types, Py_TYPE(key)) != NULL) return true;
    for (Py_ssize_t i = 0; depth > 0 && PyTuple_Check(key) && i < PyTuple_GET_SIZE(key); i++)
        if (hash_writes(rec, PyTuple_GET_ITEM(key, i), depth - 1)) return true;
    return false;
}

static bool loud_keys(const CcRec *rec, PyObject *o) {
    Py_ssize_t pos = 0;
    PyObject *key;
    if (rec->writing_types.n == 0) return false;
    while (PyDict_Check(o) && PyDict_Next(o, &pos, &key, NULL))
        if (hash_writes(rec, key, 4)) return true;
    for (; PyAnySet_Check(o) && cc_set_next(o, &pos, &key); pos++)
        if (key != NULL && hash_writes(rec, key, 4)) return true;
    return false;
}

/* Whether anything besides its object and the provenance map holds an instance's dict: vars(o) and its bound
 * methods. */
static bool dict_held(const Builder *b, PyObject *dict) {
    const CcProv *p = cc_value_find(b->rec, dict);
    return b->memo != NULL && p != NULL && Py_REFCNT(dict) > 1 + (p->weak == NULL);
}

static int build_object(Builder *b, PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    if (PyObject_GC_IsFinalized(o)) return fail(b, o); /* a copy would be finalised again */
    if (!known_base(cc_value_base(type)) || (PyExceptionInstance_Check(o) && cc_traceback_looked(b->rec, o)))
        return fail(b, o);
    Objects kids = {0};
    if (cc_maker_plain(cc_value_base(type))) {
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
    PyObject **annotate = cc_obj_annotate(o);
    /* CPython makes these on first use */
    if (f->func_dict != NULL) cc_value_fresh(b->rec, f->func_dict);
    if (f->func_annotations != NULL && PyDict_CheckExact(f->func_annotations))
        cc_value_fresh(b->rec, f->func_annotations);
    PyObject *const kids[CC_FN_COUNT] = {
        [CC_FN_DEFAULTS] = f->func_defaults,
        [CC_FN_KWDEFAULTS] = f->func_kwdefaults,
        [CC_FN_CLOSURE] = f->func_closure,
        [CC_FN_NAME] = f->func_name,
        [CC_FN_QUALNAME] = f->func_qualname,
        [CC_FN_DICT] = f->func_dict,
        [CC_FN_ANNOTATIONS] = f->func_annotations,
        [CC_FN_ANNOTATE] = annotate != NULL ? *annotate : NULL,
        [CC_FN_DOC] = f->func_doc,
        [CC_FN_MODULE] = f->func_module,
    };
    /* the globals are a constant */
    const int me = node(b, CC_MAKE_FUNCTION, o, f->func_code, kids, CC_COUNT(kids), 0, 0);
    if (me >= 0) b->rs->kid.at[b->rs->r.at[me].kid0 + CC_FN_GLOBALS] = leaf(b, CC_MAKE_CONST, 0, f->func_globals);
    return me;
}

/* A generator that has not started or is suspended. As in a snapshot's frames, variables that it will not read again
 * are left out. Fails if a slot holds an object with a finaliser: this would run after the break, when the last
 * reference is dropped, not at the generator's end. */
static int build_generator(Builder *b, PyObject *o) {
    CcGen g;
    /* calls of LISTED functions are handled without a rebuilt generator */
    if (!cc_generator_read(o, &g) || cc_library_listed(g.func)) return fail(b, o);
    for (int i = 0; i < g.code->n_locals + g.depth; i++) {
        PyObject *held = cc_generator_get(&g, i);
        if (held != NULL && cc_finalizers_has(held) && !PyGen_CheckExact(held)) return fail(b, o);
    }
    Objects kids = {0};
    cc_vec_push(&kids, (PyObject *)g.func);
    for (int i = 0; i < g.code->n_locals + g.depth; i++) {
        const bool kept = i >= g.code->n_locals || cc_code_live(g.code, g.pc, i);
        cc_vec_push(&kids, kept ? cc_generator_get(&g, i) : NULL);
    }
    const int me = node(b, CC_MAKE_GENERATOR, o, NULL, kids.at, kids.n, g.unit, g.state);
    cc_vec_free(&kids);
    return me >= 0 ? me : fail(b, o);
}

/* Whether a new set that is filled in this set's iteration order has the same iteration order. */
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
    cc_raised_clear();
    Py_XDECREF(again);
    return same;
}

/* An iterator over the same dict or set, advanced by as many items. */
static int build_walk(Builder *b, PyObject *o) {
    CcIterator it;
    if (!cc_iterator_read(o, &it) || !it.adjacent || (it.container != NULL && PyODict_Check(it.container)))
        return fail(b, o);
    /* a rebuilt dict has no gaps */
    if (it.container != NULL && cc_value_origin(b->rec, it.container) == CC_O_FRESH &&
        (PyAnySet_Check(it.container)
             ? !same_order_again(it.container)
             : it.at != (it.reversed ? PyDict_GET_SIZE(it.container) - it.consumed - 1 : it.consumed)))
        return fail(b, o);
    PyObject *what;
    CC_RETRY_ALLOC(what, Py_BuildValue("(Onnn)", Py_TYPE(o), it.consumed, it.used, it.left));
    const int me = node(b, CC_MAKE_ITERATOR, o, what, &it.container, 1, 0, 0);
    Py_DECREF(what);
    return me;
}

static int build_reduced(Builder *b, PyObject *o);
static int build_reversed_list(Builder *b, PyObject *o);

/* An iterator that is rebuilt from __reduce__ or as a walk, such as those that zip() makes for its arguments. */
static bool is_part(PyObject *o) {
    const Fresh *row = fresh_row(o);
    return row != NULL &&
           (row->build == build_walk || row->build == build_reduced || row->build == build_reversed_list);
}

/* zip() and its kin call iter() on what they get: Python code that a rebuilt one must not run again. */
static bool iterates_by_python(PyObject *args) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (cc_op_python_method(PyTuple_GET_ITEM(args, i), "__iter__")) return true;
    return false;
}

/* Iterators of builtin types describe their state by __reduce__, without consuming items. */
static int build_reduced(Builder *b, PyObject *o) {
    PyObject *r = cc_iterator_reduce(o);
    if (r == NULL || !PyTuple_Check(r) || PyTuple_GET_SIZE(r) < 2 || iterates_by_python(PyTuple_GET_ITEM(r, 1))) {
        cc_raised_clear();
        Py_XDECREF(r);
        return fail(b, o);
    }
    cc_vec_push(&b->rec->keep, r);
    Objects kids = {0};
    PyObject *args = PyTuple_GET_ITEM(r, 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) cc_vec_push(&kids, PyTuple_GET_ITEM(args, i));
    PyObject *state = PyTuple_GET_SIZE(r) > 2 && PyTuple_GET_ITEM(r, 2) != Py_None ? PyTuple_GET_ITEM(r, 2) : NULL;
    if (state != NULL) cc_vec_push(&kids, state);
    for (Py_ssize_t i = 0; state != NULL && PyTuple_Check(state) && i < PyTuple_GET_SIZE(state); i++) {
        PyObject *part = PyTuple_GET_ITEM(state, i); /* arguments of the partial object */
        if (PyTuple_CheckExact(part) || PyDict_CheckExact(part)) cc_value_fresh(b->rec, part);
    }
    /* lists that __reduce__ has just made are fresh */
    for (int i = 0; i < kids.n; i++)
        if (PyList_CheckExact(kids.at[i]) || PyTuple_CheckExact(kids.at[i]) || is_part(kids.at[i]))
            cc_value_fresh(b->rec, kids.at[i]);
    const int me = node(b, CC_MAKE_CALL, o, PyTuple_GET_ITEM(r, 0), kids.at, kids.n, 0, state != NULL);
    const CcProv *p = me < 0 ? cc_value_find(b->rec, b->rec->unbuildable) : NULL;
    if (me < 0 && (p == NULL || p->site_co == NULL)) b->rec->unbuildable = o;
    cc_vec_free(&kids);
    return me;
}

/* If the list has become shorter, __setstate__ would move the iterator to the list's end. */
static int build_reversed_list(Builder *b, PyObject *o) {
    PyObject *r = cc_iterator_reduce(o);
    const bool state = r != NULL && PyTuple_GET_SIZE(r) > 2;
    PyObject *list = state ? PyTuple_GET_ITEM(PyTuple_GET_ITEM(r, 1), 0) : NULL;
    const bool beyond = state && PyLong_AsSsize_t(PyTuple_GET_ITEM(r, 2)) >= PyList_GET_SIZE(list);
    cc_raised_clear();
    Py_XDECREF(r);
    return beyond ? fail(b, o) : build_reduced(b, o);
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
    const bool deque = cc_known_is(o, CC_KNOWN_DEQUE);
    PyObject *items = deque ? PySequence_List(o) : PyDict_New();
    PyObject *extra = PyObject_GetAttrString(o, deque ? "maxlen" : "default_factory");
    if (items == NULL || extra == NULL || (!deque && PyDict_Update(items, o) < 0)) {
        cc_raised_clear();
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

/* Binds the descriptor again. An attribute of this name may be another method: `super().append`. */
static int build_bound_builtin(Builder *b, PyObject *o) {
    PyObject *self = PyCFunction_GET_SELF(o), *bind;
    if (self == NULL || PyModule_Check(self)) return fail(b, o);
    PyObject *descr = cc_callee_unbound(o), *const of_class[] = {Py_None, self}; /* `__get__(None, cls)` */
    const bool is_class_method = descr == NULL;
    if (is_class_method) descr = cc_callee_class_method(o);
    if (descr == NULL) return fail(b, o);
    CC_RETRY_ALLOC(bind, PyObject_GetAttrString(descr, "__get__"));
    cc_vec_push(&b->rec->keep, bind);
    return node(b, CC_MAKE_CALL, o, bind, is_class_method ? of_class : &self, is_class_method ? 2 : 1, 0, 0);
}

/* Its hash is the same in each replay: a constant, a symbol that was pinned when it was hashed, or a tuple of these. */
static bool constant_member(CcRec *rec, PyObject *o, int depth) {
    if (!PyTuple_CheckExact(o)) {
        const bool pinned = cc_sym_is(rec, o) && cc_value_find(rec, o)->dirty;
        return (cc_value_const(o) || cc_value_ident(o)) && (pinned || !cc_number_varies(rec, o, 3));
    }
    const CcOrigin origin = cc_value_origin(rec, o);
    bool constant = depth > 0 && origin != CC_O_VALUE && origin != CC_O_EFFECT;
    for (Py_ssize_t i = 0; constant && i < PyTuple_GET_SIZE(o); i++) /* the hash of a NaN is its address */
        constant = !cc_same_nan(PyTuple_GET_ITEM(o, i)) && constant_member(rec, PyTuple_GET_ITEM(o, i), depth - 1);
    return constant;
}

static bool constant_members(CcRec *rec, PyObject *set) {
    PyObject *member;
    for (Py_ssize_t place = 0; cc_set_next(set, &place, &member); place++)
        if (member != NULL && !constant_member(rec, member, 4)) return false;
    return true;
}

/* The order of a set's members depends on how it came about. kids: its tuples, which may be made anew for each call. */
static int build_set(Builder *b, PyObject *o) {
    PyObject *clone, *member;
    Objects tuples = {0};
    CC_RETRY_ALLOC(clone, cc_set_clone(o));
    for (Py_ssize_t place = 0; cc_set_next(clone, &place, &member); place++) {
        if (member == NULL) continue;
        if (PyTuple_CheckExact(member)) cc_vec_push(&tuples, member);
        if (cc_sym_is(b->rec, member))
            cc_set_put(clone, place, b->rec->trace->symbol.at[cc_value_find(b->rec, member)->id].value);
    }
    const int me = node(b, CC_MAKE_SET, o, clone, tuples.at, tuples.n, 0, 0);
    cc_vec_free(&tuples);
    Py_DECREF(clone);
    return me;
}

static int build_frozenset(Builder *b, PyObject *o) {
    bool constant = true;
    PyObject *member, *items;
    for (Py_ssize_t place = 0; cc_set_next(o, &place, &member); place++)
        constant = constant && (member == NULL || cc_value_const(member) || cc_value_ident(member));
    if (constant) return leaf(b, CC_MAKE_CONST, 0, o);
    if (constant_members(b->rec, o)) return build_set(b, o);
    CC_RETRY_ALLOC(items, PySequence_List(o));
    cc_vec_push(&b->rec->keep, items);
    cc_value_fresh(b->rec, items);
    return node(b, CC_MAKE_CALL, o, (PyObject *)&PyFrozenSet_Type, &items, 1, 0, 0);
}

static int build_view(Builder *b, PyObject *o) {
    const PyTypeObject *of = cc_value_view(o);
    const char *method = of == &PyDictKeys_Type ? "keys" : of == &PyDictValues_Type ? "values" : "items";
    PyObject *dict = *(PyObject **)((char *)o + sizeof(PyObject)); /* _PyDictViewObject.dv_dict, 3.11-3.13 */
    PyObject *descr = PyObject_GetAttrString((PyObject *)(Py_TYPE(o) == of ? &PyDict_Type : &PyODict_Type), method);
    if (descr == NULL) return fail(b, o);
    cc_vec_push(&b->rec->keep, descr);
    return node(b, CC_MAKE_CALL, o, descr, &dict, 1, 0, 0);
}

/* property(get, set, delete), staticmethod(f): only if the object equals what its class makes from these, including
 * docstring and dict. */
static int build_wrapper(Builder *b, PyObject *o) {
    static const char *const parts[] = {"fget", "fset", "fdel"}, *const wrapped[] = {"__func__"};
    static const char *const facts[] = {"__doc__", "__dict__"};
    const bool property = Py_IS_TYPE(o, &PyProperty_Type);
    PyObject *kids[3] = {NULL}, *args;
    const int n = property ? CC_COUNT(parts) : CC_COUNT(wrapped);
    CC_RETRY_ALLOC(args, PyTuple_New(n));
    cc_vec_push(&b->rec->keep, args);
    for (int i = 0; i < n; i++) {
        CC_RETRY_ALLOC(kids[i], PyObject_GetAttrString(o, property ? parts[i] : wrapped[i]));
        PyTuple_SET_ITEM(args, i, kids[i]);
    }
    PyObject *again = PyObject_CallObject((PyObject *)Py_TYPE(o), args);
    PyObject *const had = PyObject_GetAttrString(o, facts[!property]);
    PyObject *const has = again != NULL ? PyObject_GetAttrString(again, facts[!property]) : NULL;
    const bool same = had != NULL && has != NULL && PyObject_RichCompareBool(had, has, Py_EQ) == 1;
    cc_raised_clear();
    Py_XDECREF(again);
    Py_XDECREF(had);
    Py_XDECREF(has);
    return same ? node(b, CC_MAKE_CALL, o, (PyObject *)Py_TYPE(o), kids, n, 0, 0) : fail(b, o);
}

static int build_items(Builder *b, PyObject *o) {
    if (PySet_CheckExact(o) && constant_members(b->rec, o)) return build_set(b, o);
    Objects kids = {0};
    add_base_items(&kids, o);
    const CcMake make = PyTuple_Check(o)  ? CC_MAKE_TUPLE
                        : PyList_Check(o) ? CC_MAKE_LIST
                        : PyDict_Check(o) ? CC_MAKE_DICT
                                          : CC_MAKE_SET;
    const int me = node(b, make, o, NULL, kids.at, kids.n, 0, 0);
    cc_vec_free(&kids);
    return me;
}

static int build_slice(Builder *b, PyObject *o) {
    const PySliceObject *s = (PySliceObject *)o;
    PyObject *const kids[] = {s->start, s->stop, s->step};
    return node(b, CC_MAKE_SLICE, o, NULL, kids, 3, 0, 0);
}

static int build_cell(Builder *b, PyObject *o) {
    PyObject *const kids[] = {PyCell_GET(o)};
    return node(b, CC_MAKE_CELL, o, NULL, kids, 1, 0, 0);
}

static int build_method(Builder *b, PyObject *o) {
    PyObject *const kids[] = {PyMethod_GET_FUNCTION(o), PyMethod_GET_SELF(o)};
    return node(b, CC_MAKE_METHOD, o, NULL, kids, 2, 0, 0);
}

static CC_VEC(Fresh) fresh;
static CcMap fresh_place; /* type -> index among the rows */

static void add_fresh(PyTypeObject *type, Build how, CcAdopt adopt) {
    cc_map_put(&fresh_place, type, fresh.n);
    cc_vec_push(&fresh, ((Fresh){how, adopt}));
}

static const Fresh *fresh_row(PyObject *o) {
    if (fresh.n == 0) {
#define CC_FRESH(type, build, adopt) add_fresh(type, build_##build, CC_ADOPT_##adopt);
#include "fresh.def"
#undef CC_FRESH
    }
    const int64_t *place = cc_map_find(&fresh_place, Py_TYPE(o));
    return place != NULL ? &fresh.at[*place] : NULL;
}

CcAdopt cc_recipe_adopts(PyObject *o) {
    const Fresh *row = fresh_row(o);
    return row != NULL ? row->adopt : CC_ADOPT_NO;
}

static int build_fresh(Builder *b, PyObject *o) {
    const Fresh *row = fresh_row(o);
    if (loud_keys(b->rec, o)) return fail(b, o);
    if (row != NULL) return row->build(b, o);
    if (cc_value_structseq(o)) return build_structseq(b, o);
    return cc_python_class(Py_TYPE(o)) || known_base(Py_TYPE(o)) ? build_object(b, o) : fail(b, o);
}

static int source(Builder *b, int guard, PyObject *o) {
    b->rec->trace->guards.g.at[guard].used = true;
    /* aux: whether it is a tensor */
    return add(b, &(CcRecipe){.make = CC_MAKE_SOURCE, .id = guard, .aux = cc_tens_is(o)});
}

/* A tuple of constants, such as the keys of {(0, 1): x}, may be part of a tuple in co_consts. Code that gets a NaN (not a
 * node) may look for it by identity. */
static bool constant(const Builder *b, PyObject *o, int depth) {
    if (cc_value_find(b->rec, o) != NULL) return false; /* a symbol */
    if (b->memo != NULL && cc_same_nan(o)) cc_same_which(b->rec, o);
    if (!PyTuple_CheckExact(o)) return cc_value_const(o) || cc_value_ident(o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (depth == 0 || !constant(b, PyTuple_GET_ITEM(o, i), depth - 1)) return false;
    return true;
}

static int build(Builder *b, PyObject *o) {
    CcRec *rec = b->rec;
    if (b->memo != NULL) {
        const int64_t *known = cc_map_find(b->memo, o);
        for (int i = 0; known != NULL && i < b->n_calls; i++)
            if (b->calls[i] == *known) return fail(b, o); /* the callable gets an object that holds its result */
        if (known != NULL) return (int)*known;
    }
    PyObject *given;
    const int tuple = b->memo != NULL ? cc_sym_tuple_given(rec, o, &given) : -1;
    if (tuple >= 0) return source(b, tuple, given);
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL) {
        const int giver = b->memo != NULL && cc_same_nan(o) ? cc_same_giver(rec, o) : -1;
        if (giver >= 0) return source(b, giver, o); /* this call's */
        if (constant(b, o, 4)) return leaf(b, CC_MAKE_CONST, 0, o);
        const int64_t *handed = cc_map_find(&rec->handed, o);
        if (handed != NULL) return source(b, (int)*handed, o);
        if (!PyExceptionInstance_Check(o)) return fail(b, o);
    } else {
        CcGuards *gs = &rec->trace->guards;
        switch ((CcOrigin)p->origin) {
        case CC_O_SOURCE:
            /* A node runs before the effects, so it gets a new container with the current content instead of the
             * written one. */
            if (p->dirty && b->memo == NULL && cc_value_tracked(o)) {
                if (cc_value_dirty(rec, o) != CC_DIRTY_NO) return fail(b, o);
                break;
            }
            /* it depends on the symbols that are in it while the recording lasts */
            if (b->memo == NULL && cc_sym_filled(rec, o)) break;
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
