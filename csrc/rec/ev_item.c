/* Items: x[key], x[key] = value and `item in x`, of tensors and containers. Guards on an item, present or absent, are
 * made before Python code (__getitem__, __missing__, a factory) can store it. */
#include "rec_events.h"

static bool is_heap(PyObject *o) { return cc_python_class(Py_TYPE(o)); }
static bool dirty(CcRec *rec, PyObject *o) { return cc_value_dirty(rec, o) != CC_DIRTY_NO; }

/* ------------------------------------------------------------------ tensors */

/* x[:n], x[0, n:] where n is a tensor, which C code reads. */
static bool sliced(PyObject *key) {
    for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); i++)
        if (sliced(PyTuple_GET_ITEM(key, i))) return true;
    const PySliceObject *slice = PySlice_Check(key) ? (PySliceObject *)key : NULL;
    return slice != NULL && (cc_tens_is(slice->start) || cc_tens_is(slice->stop) || cc_tens_is(slice->step));
}

/* An index with a mask: the size of the selection depends on data. */
static bool selects(PyObject *key) {
    if (cc_tens_is(key)) {
        CcTensor t;
        cc_tens_read(key, false, &t);
        return t.type.dtype == CC_DT_BOOL || t.type.dtype == CC_DT_U8;
    }
    if (PyTuple_Check(key) || PyList_Check(key))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); i++)
            if (selects(PySequence_Fast_GET_ITEM(key, i))) return true;
    return false;
}

static CcGo tensor_read(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *key = ev->in[1];
    if (ev->result == NULL) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises");
    CcBound bound;
    const CcCallSpec spec = {.form = CC_F_GETITEM,
                             .in = ev->in,
                             .n = 2,
                             .name = "getitem",
                             .dynamic = selects(key),
                             .safe = !cc_value_has_tensor(key, 2),
                             .bound = cc_bind_getitem(ev->in[0], key, &bound) == 0 ? &bound : NULL};
    return cc_node_add(rec, act, &spec, ev->result);
}

static CcGo tensor_write(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (rec->raised) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises");
    CcBound bound;
    const int status = cc_bind_setitem(ev->in[0], ev->in[1], ev->in[2], &bound);
    const CcCallSpec spec = {.form = ev->in[2] != NULL ? CC_F_SETITEM : CC_F_DELITEM,
                             .in = ev->in,
                             .n = ev->in[2] != NULL ? 3 : 2,
                             .name = "setitem",
                             .flags = CC_N_WRITES,
                             .safe = !cc_value_has_tensor(ev->in[1], 2),
                             .bound = status == 0 ? &bound : NULL};
    return cc_node_add(rec, act, &spec, NULL);
}

/* ------------------------------------------------------------------ containers: before */

/* Looks a key up in a dict. If Python code hashes the key (an enum's), that run is not recorded. */
static PyObject *lookup(const CcAct *act, PyObject *dict, PyObject *key) {
    const bool plain = PyUnicode_CheckExact(key); /* no Python code hashes it */
    const bool paused = !plain && cc_hook_pause(act->obs, true);
    PyObject *v = PyDict_GetItemWithError(dict, key);
    if (v == NULL) cc_raised_clear();
    if (!plain) cc_hook_pause(act->obs, paused);
    return v;
}

/* An access to one item of a list, which leaves its size as it is. */
static bool by_place(PyObject *o, PyObject *key) { return PyList_Check(o) && PyLong_CheckExact(key); }

/* Whether one key of a dict, or item of a list, can be read although others were written. */
static bool key_readable(CcRec *rec, PyObject *o, PyObject *key) {
    CcDirty d = cc_value_dirty_key(rec, o);
    if (d == CC_DIRTY_ALL) d = cc_value_dirty(rec, o);
    if (d == CC_DIRTY_KEYS) return PyDict_Check(o) ? cc_number_dict_key(rec, key) : by_place(o, key);
    return d == CC_DIRTY_NO;
}

/* Reading the bounds runs no __index__. */
static bool plain_bounds(PyObject *slice) {
    const PySliceObject *s = (const PySliceObject *)slice;
    PyObject *const bounds[] = {s->start, s->stop, s->step};
    for (int i = 0; i < CC_COUNT(bounds); i++)
        if (bounds[i] != Py_None && !PyLong_CheckExact(bounds[i])) return false;
    return true;
}

/* Guards the items that a slice takes of a list or tuple from outside. False: nothing is guarded. */
static bool look_in_slice(CcRec *rec, PyObject *o, PyObject *slice) {
    const int source = cc_value_known(rec, o) ? -1 : cc_value_source(rec, o);
    Py_ssize_t start, stop, step;
    if (source < 0 || !(PyTuple_CheckExact(o) || PyList_CheckExact(o)) || dirty(rec, o)) return false;
    if (!plain_bounds(slice)) return false;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0) {
        cc_raised_clear();
        return false;
    }
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(o);
    const bool last = PyList_CheckExact(o) && step == 1 && start < 0 && start >= -size && stop == PY_SSIZE_T_MAX;
    const bool within = step > 0 && start >= 0 && stop >= 0 && stop <= size; /* what lies behind does not matter */
    const Py_ssize_t n = PySlice_AdjustIndices(size, &start, &stop, step);
    if (rec->trace->guards.g.n + n > CC_MAX_GUARDS) return false;
    if (!within && !last) cc_inside_length(rec, source, PySequence_Fast_ITEMS(o), size);
    for (Py_ssize_t k = 0, i = start; k < n; k++, i += step) /* l[-3:] takes the last three, whatever the length is */
        cc_value_read(rec, CC_SRC_ITEM, source, NULL, 0, (int)(last ? i - size : i), PySequence_Fast_GET_ITEM(o, i));
    return true;
}

/* Whether the item can be read at all. */
static CcGo readable(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *key = ev->in[1];
    if (sliced(key)) return cc_rec_break(rec, act, CC_R_TENSOR_ITER, "a tensor as a bound of a slice");
    if (cc_tens_is(key) && PyDict_CheckExact(o) && cc_value_origin(rec, o) == CC_O_FRESH &&
        cc_distinct_members(rec, o, key))
        return CC_OK; /* the guard finds it by identity */
    if (cc_value_found_by_address(rec, o, key)) {
        if (lookup(act, o, key) != NULL) return CC_OK;
        /* this trace, which ends here, is for calls that make the item: an optimizer's first step */
        cc_value_read_key(rec, cc_value_source(rec, o), key, NULL);
    }
    if (cc_tens_is(key))
        return PyDict_Check(o) ? cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "a dict's item for a tensor")
                               : cc_rec_break(rec, act, CC_R_TENSOR_ITER, "a tensor as an index");
    if (cc_value_unknown(rec, o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    if (!key_readable(rec, o, key)) return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    if (!cc_number_settle(rec, key, 1)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, "key");
    if (PyDict_Check(o)) cc_same_met(rec, key);
    if (PySlice_Check(key) && !cc_inside_guard(rec, key, 1)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "slice");
    if (PyDict_Check(o) && cc_value_source(rec, o) >= 0 && !cc_op_python_method(o, "__getitem__") &&
        !cc_number_key(rec, key))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "key");
    /* reading the item would store it */
    if (cc_known_is(o, CC_KNOWN_DEFAULTDICT) && cc_value_known(rec, o) && lookup(act, o, key) == NULL)
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    if (PyDict_Check(o) && cc_value_origin(rec, o) == CC_O_FRESH && !cc_distinct_members(rec, o, key))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "key");
    if (PyType_Check(o) || cc_value_const(o) || cc_op_bare(o) || cc_op_python_method(o, "__getitem__")) return CC_OK;
    if (PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o)) {
        if (PySlice_Check(key)) cc_sym_fill(rec, o);
        if (PySlice_Check(key) && !look_in_slice(rec, o, key) && !cc_inside_guard(rec, o, 1))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
        return CC_OK;
    }
    if ((is_heap(o) || cc_op_container(o)) && cc_inside_guard(rec, o, 1)) return CC_OK;
    return cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
}

/* Guards what the dict has for the key. -> the guard; -1: the trace knows what it has */
static int look(CcRec *rec, CcAct *act, PyObject *dict, PyObject *key) {
    const int source = cc_value_known(rec, dict) ? -1 : cc_value_source(rec, dict);
    return source >= 0 ? cc_value_read_key(rec, source, key, lookup(act, dict, key)) : -1;
}

void cc_item_look(CcRec *rec, CcAct *act, PyObject *dict, PyObject *key) {
    const int guard = look(rec, act, dict, key);
    if (guard >= 0) cc_rec_gives(rec, act, guard);
}

/* Guards one item of a list or tuple. False: the index is unknown. */
static bool look_in_sequence(CcRec *rec, CcAct *act, PyObject *o, PyObject *key) {
    const int source = cc_value_known(rec, o) ? -1 : cc_value_source(rec, o);
    if (source < 0) return true;
    if (!PyLong_Check(key)) return !PyIndex_Check(key) || cc_inside_guard(rec, o, 1);
    Py_ssize_t i = PyNumber_AsSsize_t(key, NULL);
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    const bool from_end = PyList_Check(o) && i < 0 && i >= -n; /* whatever the length is then */
    if (!from_end && (i < 0 || i >= n)) {                      /* depends on the length */
        cc_inside_size(rec, source, n);
        if (i < 0) i += n;
    }
    PyObject *const *items = PySequence_Fast_ITEMS(o);
    if (from_end || (i >= 0 && i < n))
        cc_rec_gives(rec, act, cc_value_read(rec, CC_SRC_ITEM, source, NULL, 0, (int)i, items[i < 0 ? i + n : i]));
    return true;
}

/* __missing__ of a dict's class; NULL: none. */
static PyObject *missing_of(PyObject *o) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__missing__");
    return PyDict_CheckExact(o) ? NULL : cc_type_lookup(Py_TYPE(o), name);
}

bool cc_item_stores(const CcAct *act, PyObject *dict, PyObject *key) {
    PyObject *missing = PyDict_Check(dict) ? missing_of(dict) : NULL;
    return missing != NULL && !PyFunction_Check(missing) && lookup(act, dict, key) == NULL;
}

static bool fills_visit(void *ctx, PyObject *o, int depth) {
    PyObject *missing = o != NULL && PyDict_Check(o) ? missing_of(o) : NULL;
    return (missing != NULL && !PyFunction_Check(missing)) ||
           (o != NULL && depth > 0 && cc_number_any(ctx, o, fills_visit, ctx, depth - 1));
}

bool cc_item_fills(CcRec *rec, PyObject *o) { return fills_visit(rec, o, 3); }

/* A defaultdict from outside makes an item and stores it: the factory's call is recorded, the store is an effect. */
static CcGo make_item(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *missing) {
    PyObject *o = ev->in[0], *name = cc_obj_intern("default_factory");
    PyObject *d =
        name != NULL && Py_IS_TYPE(missing, &PyMethodDescr_Type) ? cc_type_lookup(PyDescr_TYPE(missing), name) : NULL;
    Py_XDECREF(name);
    if (d == NULL || !Py_IS_TYPE(d, &PyMemberDescr_Type))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
    PyObject *factory;
    CC_RETRY_ALLOC(factory, Py_TYPE(d)->tp_descr_get(d, o, (PyObject *)Py_TYPE(o)));
    Py_DECREF(factory); /* the dict holds it */
    cc_value_read(rec, CC_SRC_MEMBER, cc_value_source(rec, o), d, 0, 0, factory);
    return factory == Py_None ? CC_OK : cc_backcall_missing(rec, ev, factory);
}

/* Bounds, indices and masks in a tensor's index decide the sizes of the result, and a view's place. */
static CcGo guard_index(CcRec *rec, CcAct *act, PyObject *key) {
    if (cc_tens_is(key) || cc_value_const(key)) return CC_OK;
    if (cc_value_dirty(rec, key) != CC_DIRTY_NO) return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(key));
    return cc_inside_guard(rec, key, 4) ? CC_OK : cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(key));
}

CcGo cc_item_before(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyObject *o = ev->in[0], *key = ev->in[1];
    if (cc_tens_is(o) && !sliced(key)) {
        const CcGo go = cc_op_operator(rec, act, ev);
        return go == CC_OK ? guard_index(rec, act, key) : go;
    }
    const CcGo go = readable(rec, act, ev);
    if (go != CC_OK || PySlice_Check(key) || cc_op_python_method(o, "__getitem__")) return go;
    if (PyList_Check(o) || PyTuple_Check(o)) {
        if (!look_in_sequence(rec, act, o, key)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    } else if (PyDict_Check(o)) {
        cc_item_look(rec, act, o, key);
        if (cc_value_source(rec, o) < 0 || PyDict_CheckExact(o) || lookup(act, o, key) != NULL) return CC_OK;
        if (cc_item_stores(act, o, key)) return make_item(rec, act, ev, missing_of(o));
    }
    return CC_OK;
}

/* ------------------------------------------------------------------ after */

/* An item that a defaultdict of this trace has just made by calling list, dict or set in C. */
static bool made_by_default(CcRec *rec, PyObject *o) {
    if (!cc_known_is(o, CC_KNOWN_DEFAULTDICT) || cc_value_origin(rec, o) != CC_O_FRESH) return false;
    PyObject *factory = PyObject_GetAttrString(o, "default_factory");
    Py_XDECREF(factory); /* the dict holds it */
    return factory == (PyObject *)&PyList_Type || factory == (PyObject *)&PyDict_Type ||
           factory == (PyObject *)&PySet_Type;
}

CcGo cc_item_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *key = ev->in[1], *v = ev->result;
    if (cc_tens_is(o)) return tensor_read(rec, act, ev);
    if (PyType_Check(o)) {
        if (v != NULL && cc_value_origin(rec, v) == CC_O_UNKNOWN) cc_value_fresh(rec, v);
        return CC_OK;
    }
    if (v != NULL && !PyExceptionInstance_Check(v) && cc_value_origin(rec, v) == CC_O_UNKNOWN) {
        if (!PySlice_Check(key) && Py_REFCNT(v) > 1 && !made_by_default(rec, o))
            return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
        cc_value_fresh(rec, v);
    }
    return CC_OK;
}

static CcGo store_in_tensor_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (!cc_tens_plain(ev->in[0])) return cc_rec_break(rec, act, CC_R_TENSOR_SUBCLASS, cc_type_name(ev->in[0]));
    if (!cc_node_nameable(rec, ev->in[1], 3) || (ev->in[2] != NULL && !cc_node_nameable(rec, ev->in[2], 3)))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "index");
    return guard_index(rec, act, ev->in[1]);
}

/* A slice of a list from outside: a replay makes the whole list anew, so all of it is guarded. */
static CcGo store_slice_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *items = ev->in[2];
    const bool sequence = items != NULL && (PyList_CheckExact(items) || PyTuple_CheckExact(items));
    const bool reads = items == NULL || (sequence && !dirty(rec, items) && cc_inside_guard(rec, items, 1));
    if (dirty(rec, o) || !reads || !cc_number_settle(rec, ev->in[1], 1) || !cc_inside_guard(rec, o, 1))
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, "a slice of a list that existed before");
    cc_value_will_write(rec, o);
    return CC_OK;
}

/* What l[i] or d[k] holds. Borrowed; NULL: nothing, or a lookup would run Python code. */
static PyObject *replaced(PyObject *o, PyObject *key) {
    if (PyDict_Check(o)) return cc_value_const(key) || cc_value_ident(key) ? PyDict_GetItemWithError(o, key) : NULL;
    if (!PyLong_CheckExact(key)) return NULL;
    const Py_ssize_t size = PyList_GET_SIZE(o), i = PyNumber_AsSsize_t(key, NULL), at = i < 0 ? i + size : i;
    return at >= 0 && at < size ? PyList_GET_ITEM(o, at) : NULL;
}

static CcGo store_item_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *key = ev->in[1];
    const bool outside = cc_value_source(rec, o) >= 0;
    if (outside && !cc_number_dict_key(rec, key)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "key");
    if (cc_value_symbolic(rec, key)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, "key");
    const bool deletes = PyDict_Check(o) && ev->in[2] == NULL && outside; /* a replay, too, must find the key */
    const bool places = cc_value_dirty_key(rec, o) == CC_DIRTY_KEYS && by_place(o, key) && ev->in[2] != NULL;
    if ((PyList_Check(o) && !places && dirty(rec, o)) ||
        (deletes && (!PyDict_CheckExact(o) || dirty(rec, o) || !cc_inside_guard(rec, o, 1))))
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    if (cc_finalizers_replaces(rec, replaced(o, key), ev->in[2])) return cc_rec_break(rec, act, CC_R_FINALISED, NULL);
    cc_value_will_write(rec, o);
    return CC_OK;
}

CcGo cc_item_store_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0], *key = ev->in[1];
    if (!cc_tens_is(o)) cc_sym_settle(rec, key, 3);
    for (int i = 0; i < 3; i++)
        if (cc_value_unknown(rec, ev->in[i]))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(ev->in[i]));
    if (sliced(key)) return cc_rec_break(rec, act, CC_R_TENSOR_ITER, "a tensor as a bound of a slice");
    if (cc_tens_is(o)) return store_in_tensor_before(rec, act, ev);
    if (PySlice_Check(key) && !cc_inside_guard(rec, key, 1)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "slice");
    if (ev->in[2] == o && PyList_Check(o) && PySlice_Check(key)) /* after() no longer knows what was stored */
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    if (!PyODict_Check(o) && cc_op_python_method(o, "__setitem__")) return CC_OK;
    if (!PyList_Check(o) && !PyDict_Check(o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
    if (PyDict_Check(o) && !cc_distinct_members(rec, o, key))
        return cc_rec_break(rec, act, CC_R_TENSOR_ITER, "a tensor as a key");
    if (!PySlice_Check(key) || !PyList_CheckExact(o)) return store_item_before(rec, act, ev);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); i++)
        if (cc_finalizers_replaces(rec, PyList_GET_ITEM(o, i), NULL))
            return cc_rec_break(rec, act, CC_R_FINALISED, NULL);
    return cc_value_source(rec, o) >= 0 ? store_slice_before(rec, act, ev) : store_item_before(rec, act, ev);
}

/* l[a:b] = items, del l[a:b] on a list from outside whose whole content is guarded. */
static CcGo store_slice(CcRec *rec, CcAct *act, const CcEvent *ev, int source) {
    PyObject *items = ev->in[2] != NULL ? PySequence_Tuple(ev->in[2]) : NULL; /* its current items */
    if (items != NULL) {
        cc_vec_push(&rec->keep, items);
        cc_value_fresh(rec, items);
    }
    cc_raised_clear();
    cc_value_wrote(rec, ev->in[0], CC_DIRTY_KNOWN);
    cc_vec_push(&rec->written, source);
    PyObject *const in[] = {ev->in[0], ev->in[1], items};
    return cc_node_effect(
        rec, act,
        &(CcCallSpec){.form = items ? CC_F_SETITEM : CC_F_DELITEM, .in = in, .n = items ? 3 : 2, .name = "setitem"},
        NULL);
}

CcGo cc_item_store_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0];
    if (cc_tens_is(o)) return tensor_write(rec, act, ev);
    const int source = cc_value_source(rec, o);
    if (source < 0 || (!PyList_Check(o) && !PyDict_Check(o))) return CC_OK;
    if (rec->raised) {
        /* nothing was written: the index is out of range, or the key is absent */
        cc_inside_guard(rec, o, 1);
        return CC_OK;
    }
    if (PyList_CheckExact(o) && PySlice_Check(ev->in[1])) return store_slice(rec, act, ev, source);
    if (PyList_Check(o) && !cc_value_known(rec, o)) /* a replay, too, must find the item */
        cc_inside_size(rec, source, PyList_GET_SIZE(o) + (ev->in[2] == NULL));
    if (PyDict_Check(o)) {
        cc_value_written(rec, CC_SRC_KEY, source, ev->in[1], ev->in[2] == NULL);
        cc_value_wrote(rec, o, ev->in[2] != NULL ? CC_DIRTY_KEYS : CC_DIRTY_KNOWN);
    } else if (by_place(o, ev->in[1]) && ev->in[2] != NULL) {
        cc_value_written_item(rec, source, PyLong_AsSsize_t(ev->in[1]), PyList_GET_SIZE(o));
        cc_value_wrote(rec, o, CC_DIRTY_KEYS);
    } else {
        cc_value_wrote(rec, o, CC_DIRTY_ALL);
    }
    cc_vec_push(&rec->written, source);
    const CcCallSpec spec = {.form = ev->in[2] != NULL ? CC_F_SETITEM : CC_F_DELITEM,
                             .in = ev->in,
                             .n = ev->in[2] != NULL ? 3 : 2,
                             .name = "setitem"};
    return cc_node_effect(rec, act, &spec, NULL);
}

/* The members of a set or keys of a dict as a new list, those of a list or tuple as they are; NULL: it is of another kind,
 * or what it holds is unknown. */
static PyObject *listed(CcRec *rec, PyObject *o) {
    if (cc_op_python_method(o, "__contains__") || cc_value_unknown(rec, o) || dirty(rec, o)) return NULL;
    if (PyList_Check(o) || PyTuple_Check(o)) return Py_NewRef(o);
    PyObject *items = PyDict_Check(o)                                                  ? cc_dict_keys(o)
                      : PyAnySet_CheckExact(o) || cc_value_view(o) == &PyDictKeys_Type ? PySequence_List(o)
                                                                                       : NULL;
    if (items == NULL) cc_raised_clear();
    return items;
}

/* `step in milestones`: a number that varies, and is not among a few constants, need not become a constant itself. */
static bool symbol_absent(CcRec *rec, CcAct *act, PyObject *o, PyObject *item) {
    enum { FEW = 32 };
    PyObject *items = cc_sym_is(rec, item) ? listed(rec, o) : NULL;
    bool absent = items != NULL && PySequence_Fast_GET_SIZE(items) <= FEW;
    absent = absent && cc_sym_differs(rec, item, PySequence_Fast_ITEMS(items), PySequence_Fast_GET_SIZE(items));
    absent = absent && (cc_inside_members(rec, o) || cc_inside_guard(rec, o, PyDict_Check(o) ? 0 : 1));
    absent = absent && cc_sym_absent(rec, act, item, PySequence_Fast_ITEMS(items), PySequence_Fast_GET_SIZE(items));
    Py_XDECREF(items);
    return absent;
}

/* `module in modules`: a guard looks the object up in the set by its address. */
static bool member_by_address(CcRec *rec, PyObject *set, PyObject *item) {
    PyObject *member;
    Py_ssize_t place = 0;
    if (!PyAnySet_CheckExact(set) || !cc_value_by_address(item)) return false;
    const int source = cc_value_source(rec, set), key = cc_value_source(rec, item);
    if (source < 0 || key < 0 || cc_value_dirty_key(rec, set) != CC_DIRTY_NO || cc_value_known(rec, set)) return false;
    for (; cc_set_next(set, &place, &member); place++) /* no code compares them, be it only after a collision */
        if (member != NULL && !cc_value_by_address(member) && !cc_value_const(member)) return false;
    const int has = PySet_Contains(set, item);
    if (has < 0) cc_raised_clear();
    if (has >= 0) cc_value_read(rec, CC_SRC_HAS, source, NULL, 0, key, has ? Py_True : Py_False);
    return has >= 0;
}

static CcGo findable(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyObject *o = ev->in[0], *item = ev->in[1];
    if (cc_value_found_by_address(rec, o, item) || member_by_address(rec, o, item)) return CC_OK;
    cc_sym_settle(rec, item, 3);
    cc_same_met(rec, item);
    const bool by_hash = PyDict_Check(o) || PyAnySet_Check(o) || cc_value_view(o) == &PyDictKeys_Type;
    if (by_hash && !cc_value_const(item) && !cc_value_ident(item) && !dirty(rec, o) &&
        (cc_inside_members(rec, o) || cc_inside_guard(rec, o, 1)) && cc_distinct_members(rec, o, item) &&
        cc_tens_is(item))
        return CC_OK;
    if (cc_tens_is(item) || (!by_hash && cc_value_has_tensor(o, 2)))
        return cc_rec_break(rec, act, CC_R_TENSOR_ITER, "in");
    if (cc_value_symbolic(rec, o) || cc_value_symbolic(rec, item))
        return cc_rec_break(rec, act, CC_R_DATA_SCALAR, "in");
    if (PyDict_Check(o) && !cc_value_unknown(rec, o) && key_readable(rec, o, item) && cc_number_dict_key(rec, item))
        return CC_OK;
    const CcEvent one = {.kind = CC_EV_CONTAINS, .in = &item, .n = 1};
    return cc_op_plain(rec, act, cc_inside_members(rec, o) ? &one : ev, 3);
}

CcGo cc_item_contains_before(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyObject *o = ev->in[0], *item = ev->in[1];
    if (PyIter_Check(o) && !is_heap(o) && cc_value_origin(rec, o) == CC_O_FRESH && !cc_value_unknown(rec, item)) {
        ev->result = cc_backcall_contains(rec, o, item);
        return CC_DONE;
    }
    if (symbol_absent(rec, act, o, item)) return CC_OK;
    const CcGo go = findable(rec, act, ev);
    if (go != CC_OK) return go;
    if (PyDict_Check(o) && !cc_op_python_method(o, "__contains__") &&
        (cc_number_dict_key(rec, item) || cc_value_found_by_address(rec, o, item))) {
        const int guard = look(rec, act, o, item);
        if (guard >= 0) cc_sym_unread(rec, guard);
    }
    return CC_OK;
}
