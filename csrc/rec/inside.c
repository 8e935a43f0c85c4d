/* Guards on containers from outside: on the whole content, on the members only, or on the structure only. */
#include "rec_events.h"

void cc_inside_size(CcRec *rec, int parent, Py_ssize_t n) {
    cc_guard_once(&rec->trace->guards, CC_SRC_SIZE, parent, NULL, (int)n, CC_CHK_SIZE, NULL);
}

void cc_inside_length(CcRec *rec, int parent, PyObject *const *items, Py_ssize_t n) {
    cc_inside_size(rec, parent, n);
    if (n > 0 && cc_sym_number(items[n - 1]) && rec->hints != NULL &&
        cc_hint_size_taken(rec->hints, &rec->trace->guards, parent, rec->salt))
        rec->differs = true;
}

static bool sequence_content(CcRec *rec, PyObject *o, int parent, int depth) {
    PyObject *const *items = PySequence_Fast_ITEMS(o);
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    if (parent >= 0) cc_inside_length(rec, parent, items, n);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (rec->trace->guards.g.n > CC_MAX_GUARDS) return false;
        if (parent >= 0) cc_value_read(rec, CC_SRC_ITEM, parent, NULL, 0, (int)i, items[i]);
        if (depth > 1 && !cc_inside_guard(rec, items[i], depth - 1)) return false;
    }
    return true;
}

static bool keys_are_simple(PyObject *keys);

/* Guards compare such keys by value; a tuple is compared item by item, with the items' types. */
static bool key_is_simple(PyObject *key) {
    if (PyTuple_CheckExact(key)) return keys_are_simple(key);
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBool_Check(key) || key == Py_None ||
           key == Py_Ellipsis || cc_value_ident(key) || PyFloat_CheckExact(key) || cc_tens_constant(key);
}

static bool keys_are_simple(PyObject *keys) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++)
        if (!key_is_simple(PyTuple_GET_ITEM(keys, i))) return false;
    return true;
}

/* A tuple that is a key is a constant of the trace. One that also comes from elsewhere has to be the same object there and
 * here in later calls, too. */
static void tuples_are_constants(CcRec *rec, PyObject *keys) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyTuple_GET_ITEM(keys, i);
        if (!PyTuple_CheckExact(key)) continue;
        if (cc_value_find(rec, key) == NULL) cc_value_const_source(rec, key);
        else cc_value_which(rec, key);
    }
}

/* Guards keys by value. keys: of a dict, or the layout of a set. */
static bool guard_by_value(CcRec *rec, int parent, int index, CcCheck check, PyObject *keys) {
    if (keys == NULL || !keys_are_simple(keys)) return false;
    const int id = cc_guard_once(&rec->trace->guards, CC_SRC_KEYS, parent, NULL, index, check, keys);
    tuples_are_constants(rec, keys);
    if (cc_same_asked_any(rec, keys)) rec->trace->guards.g.at[id].other = 1;
    return true;
}

enum { FEW_KEYS = 64 }; /* each is read by its place, and costs a guard */

/* Guards keys that are tuples or objects by their places in the dict, so that they are the same objects as elsewhere in the
 * trace. False: there are too many, none is a tuple or an object, or a guard can't tell how one is hashed and compared. */
static bool keys_by_place(CcRec *rec, PyObject *o, int parent) {
    bool simple = true;
    Py_ssize_t pos = 0;
    PyObject *key;
    if (PyODict_Check(o) || PyDict_GET_SIZE(o) > FEW_KEYS) return false;
    while (PyDict_Next(o, &pos, &key, NULL)) {
        const bool by_address = cc_value_by_address(key);
        if (!by_address && !key_is_simple(key)) return false;
        simple = simple && !by_address && !PyTuple_CheckExact(key);
    }
    if (simple) return false;
    cc_inside_size(rec, parent, PyDict_GET_SIZE(o));
    pos = 0;
    for (int i = 0; PyDict_Next(o, &pos, &key, NULL); i++) {
        cc_value_read(rec, CC_SRC_KEY_AT, parent, NULL, 0, i, key);
        if (PyTuple_CheckExact(key) && !cc_inside_guard(rec, key, 4)) return false;
    }
    return true;
}

static bool keys_by_value(CcRec *rec, PyObject *o, int parent) {
    PyObject *list = cc_dict_keys(o), *keys = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    const bool ok = guard_by_value(rec, parent, 0, CC_CHK_KEYS, keys);
    Py_XDECREF(keys);
    return ok;
}

static bool dict_content(CcRec *rec, PyObject *o, int parent, int depth) {
    if (parent >= 0 && !keys_by_place(rec, o, parent) && !keys_by_value(rec, o, parent)) return false;
    Py_ssize_t pos = 0;
    PyObject *key, *value;
    while (depth > 0 && PyDict_Next(o, &pos, &key, &value)) {
        if (parent >= 0) (void)cc_value_read_key(rec, parent, key, value);
        if (depth > 1 && !cc_inside_guard(rec, value, depth - 1)) return false;
    }
    return true;
}

/* Guards cc_guard_layout(): the members, and the order of iteration now and after changes. */
static bool set_content(CcRec *rec, PyObject *layout, int parent) {
    return parent < 0 || guard_by_value(rec, parent, 2, CC_CHK_LAYOUT, layout);
}

/* Guards the members, but not their order. */
static bool set_members(CcRec *rec, PyObject *layout, int parent) {
    if (layout == NULL || !keys_are_simple(layout)) return false;
    bool is_new;
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_KEYS, parent, NULL, 0, 1, &is_new);
    if (!is_new) return true;
    PyObject *members, *none = Py_None;
    CC_RETRY_ALLOC(members, PySet_New(NULL));
    for (Py_ssize_t i = CC_LAYOUT_HEAD + 1; i < PyTuple_GET_SIZE(layout); i += 2)
        if (PyTuple_GET_ITEM(layout, i) != Py_Ellipsis)
            CC_RETRY_ALLOC(none, PySet_Add(members, PyTuple_GET_ITEM(layout, i)) == 0 ? Py_None : NULL);
    cc_guard_check(&rec->trace->guards, id, CC_CHK_EQUALSET, members);
    Py_XDECREF(members);
    return true;
}

bool cc_inside_members(CcRec *rec, PyObject *set) {
    const int parent = PyAnySet_CheckExact(set) ? cc_value_source(rec, set) : -1;
    if (parent < 0 || cc_value_dirty(rec, set) != CC_DIRTY_NO) return false;
    if (cc_value_known(rec, set)) return true;
    PyObject *layout = cc_guard_layout(set);
    const bool ok = set_members(rec, layout, parent);
    Py_XDECREF(layout);
    return ok;
}

/* C types whose text and order depend only on identity, or on parts that other guards cover. */
static bool same_by_address(const PyTypeObject *t) {
    return t == &PyMethod_Type || t == &PyCell_Type || t == &PyFrame_Type || t == &PyGen_Type ||
           PyType_IsSubtype((PyTypeObject *)t, (PyTypeObject *)PyExc_BaseException);
}

/* A type whose C code defines a length, items, truth, text or an order that no guard can read (array, date ...). */
static bool opaque_content(const PyTypeObject *t) {
    if (same_by_address(t)) return false;
    /* cc_value_held */
    if (t == &PyLong_Type || t == &PyFloat_Type || t == &PyComplex_Type || t == &PyUnicode_Type || t == &PyBytes_Type)
        return false;
    if (t->tp_repr != PyBaseObject_Type.tp_repr || t->tp_str != PyBaseObject_Type.tp_str ||
        t->tp_hash != PyBaseObject_Type.tp_hash || t->tp_richcompare != PyBaseObject_Type.tp_richcompare)
        return true;
    return t->tp_iter != NULL || (t->tp_as_sequence != NULL && t->tp_as_sequence->sq_length != NULL) ||
           (t->tp_as_mapping != NULL && t->tp_as_mapping->mp_length != NULL) ||
           (t->tp_as_number != NULL && t->tp_as_number->nb_bool != NULL);
}

/* A dict view: from outside, of a class's __dict__, or of a known dict. Guards the dict behind it. */
static bool proxy_content(CcRec *rec, PyObject *o, int depth) {
    PyObject *behind = cc_obj_proxy_target(o);
    const int source = cc_value_source(rec, o);
    if (source >= 0) {
        if (!PyDict_CheckExact(behind) && !PyODict_CheckExact(behind)) return false;
        cc_value_read(rec, CC_SRC_PROXIED, source, NULL, 0, 0, behind);
        return cc_inside_guard(rec, behind, depth);
    }
    if (cc_value_origin(rec, behind) != CC_O_UNKNOWN) return cc_inside_guard(rec, behind, depth);
    return PyDict_Check(behind) && dict_content(rec, behind, cc_value_const_source(rec, behind), depth);
}

static bool deque_content(CcRec *rec, PyObject *items, PyObject *deque, int parent, int depth) {
    if (parent >= 0) { /* maxlen decides what an append drops */
        PyObject *limit;
        CC_RETRY_ALLOC(limit, PyObject_GetAttrString(deque, "maxlen"));
        cc_value_read_member(rec, parent, Py_TYPE(deque), "maxlen", limit);
        Py_DECREF(limit);
        cc_inside_length(rec, parent, PySequence_Fast_ITEMS(items), PyList_GET_SIZE(items));
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (parent >= 0) cc_value_read(rec, CC_SRC_AT, parent, NULL, 0, (int)i, item);
        if (depth > 1 && !cc_inside_guard(rec, item, depth - 1)) return false;
    }
    return true;
}

bool cc_inside_before(CcRec *rec, const CcProv *p) {
    const int id = p->id;
    for (int i = 0; i < rec->before.n; i++) {
        if (rec->before.at[i].object != p->object) continue;
        PyObject *copy = rec->before.at[i].copy;
        if (cc_known_is(p->object, CC_KNOWN_DEQUE)) return deque_content(rec, copy, p->object, id, 1);
        if (PyAnySet_Check(p->object)) return set_members(rec, copy, id);
        return PyList_Check(copy) ? sequence_content(rec, copy, id, 1) : dict_content(rec, copy, id, 1);
    }
    return false;
}

static bool slice_content(CcRec *rec, PyObject *o, int parent) {
    static const char *const names[] = {"start", "stop", "step"};
    const PySliceObject *s = (PySliceObject *)o;
    PyObject *const parts[] = {s->start, s->stop, s->step};
    for (int i = 0; i < CC_COUNT(names); i++) {
        cc_value_read_member(rec, parent, &PySlice_Type, names[i], parts[i]);
        if (!cc_value_const(parts[i])) return false;
    }
    return true;
}

typedef struct Through {
    CcRec *rec;
    int depth, levels;
    bool known;
} Through;

/* Skips iterators and tuples that C code made in between. */
static int content_through(PyObject *o, void *arg) {
    Through *t = arg;
    const bool holds =
        PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || cc_known_is(o, CC_KNOWN_DEQUE);
    if (cc_inside_passes_on(o) || (holds && cc_value_find(t->rec, o) == NULL)) {
        const int deeper = cc_args_looks((PyObject *)Py_TYPE(o)) == CC_LOOKS_ITEMS; /* chain() */
        t->depth += deeper;
        if (--t->levels >= 0 && Py_TYPE(o)->tp_traverse != NULL) (void)Py_TYPE(o)->tp_traverse(o, content_through, t);
        t->levels++;
        t->depth -= deeper;
    } else if (holds) {
        t->known = t->known && cc_inside_guard(t->rec, o, t->depth);
    }
    return 0;
}

bool cc_inside_guard(CcRec *rec, PyObject *o, int depth) {
    if (cc_value_const(o) || cc_value_ident(o)) return true;
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL) return false;
    if (p->origin == CC_O_SOURCE && p->dirty && p->dirty != CC_DIRTY_KNOWN) return false;
    const int parent = p->origin == CC_O_SOURCE && !p->dirty ? p->id : -1;
    const bool sequence = PyList_Check(o) || PyTuple_Check(o);
    if (parent < 0 && depth <= 1 && (sequence || PyDict_Check(o) || cc_known_is(o, CC_KNOWN_DEQUE))) return true;
    if (cc_plain(rec, o)) return true;
    if (sequence) return sequence_content(rec, o, parent, depth);
    if (PyDict_Check(o)) return dict_content(rec, o, parent, depth);
    if (PyAnySet_Check(o)) {
        PyObject *layout = parent >= 0 ? cc_guard_layout(o) : NULL;
        /* written to, and only its members are guarded */
        for (int i = 0; parent < 0 && p->origin == CC_O_SOURCE && i < rec->before.n; i++)
            if (rec->before.at[i].object == o && !set_content(rec, rec->before.at[i].copy, p->id)) return false;
        const bool ok = set_content(rec, layout, parent);
        Py_XDECREF(layout);
        return ok;
    }
    if (PySlice_Check(o) && parent >= 0) return slice_content(rec, o, parent);
    if (PyExceptionInstance_Check(o)) return cc_inside_exception(rec, o, depth);
    if (cc_known_is(o, CC_KNOWN_DEQUE)) {
        PyObject *items = PySequence_List(o);
        const bool ok = items != NULL && deque_content(rec, items, o, parent, depth);
        Py_XDECREF(items);
        return ok;
    }
    const bool pattern = cc_known_is(o, CC_KNOWN_PATTERN);
    if (p->origin == CC_O_SOURCE && (pattern || cc_known_is(o, CC_KNOWN_MATCH))) {
        const bool constant = rec->trace->guards.g.at[p->id].source == CC_SRC_CONST;
        if (!constant && pattern) cc_guard_add_check(&rec->trace->guards, p->id, CC_CHK_IDENT, o, -1);
        return constant || pattern; /* a match object is new for each text */
    }
    if (Py_IS_TYPE(o, &PyDictProxy_Type) && (p->origin == CC_O_FRESH || parent >= 0))
        return proxy_content(rec, o, depth);
    if (p->origin == CC_O_FRESH && depth > 1 &&
        cc_inside_passes_on(o)) { /* the first level was guarded when it was made */
        Through t = {rec, depth, 8, true};
        (void)content_through(o, &t);
        return t.known;
    }
    return p->origin == CC_O_FRESH || cc_tens_is(o) || (parent >= 0 && !opaque_content(cc_value_base(Py_TYPE(o))));
}

/* Fields besides the arguments that determine a C type's text (OSError.errno, SyntaxError.lineno). */
static bool text_fields(CcRec *rec, PyObject *o, int source) {
    const reprfunc plain = ((PyTypeObject *)PyExc_BaseException)->tp_str;
    PyObject *mro = Py_TYPE(o)->tp_mro, *name, *descr;
    bool known = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro) && known; i++) {
        PyTypeObject *t = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        if (cc_python_class(t) || t->tp_str == plain) continue;
        Py_ssize_t pos = 0;
        while (known && PyDict_Next(cc_type_dict(t), &pos, &name, &descr)) {
            PyObject *v = Py_IS_TYPE(descr, &PyMemberDescr_Type)
                              ? Py_TYPE(descr)->tp_descr_get(descr, o, (PyObject *)Py_TYPE(o))
                              : NULL;
            cc_raised_clear();
            if (v == NULL) continue;
            cc_vec_push(&rec->keep, v);
            cc_sym_settle(rec, v, 3);
            if (source < 0) continue;
            cc_value_read(rec, CC_SRC_MEMBER, source, descr, 0, 0, v);
            known = cc_inside_guard(rec, v, 2);
        }
    }
    return known;
}

/* Guards the content of the arguments of an exception that the trace made. */
static bool arguments_known(CcRec *rec, PyObject *args, int depth) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *o = PyTuple_GET_ITEM(args, i);
        const CcProv *p = cc_value_find(rec, o);
        if (p != NULL && p->origin == CC_O_SOURCE && !cc_inside_guard(rec, o, CC_MAX(depth - 1, 1))) return false;
    }
    return true;
}

bool cc_inside_exception(CcRec *rec, PyObject *o, int depth) {
    PyObject *args = ((PyBaseExceptionObject *)o)->args;
    const int source = cc_value_source(rec, o);
    cc_sym_settle(rec, args, 3);
    if (!text_fields(rec, o, source)) return false;
    if (args == NULL) return true;
    if (source < 0) return arguments_known(rec, args, depth);
    cc_value_read_member(rec, source, (PyTypeObject *)PyExc_BaseException, "args", args);
    return cc_inside_guard(rec, args, CC_MAX(depth - 1, 1));
}

bool cc_inside_structure(CcRec *rec, PyObject *o, int depth) {
    const int source = cc_value_source(rec, o);
    if (source < 0 || depth == 0 || cc_value_dirty(rec, o) || cc_value_known(rec, o) ||
        !(PyList_CheckExact(o) || PyTuple_CheckExact(o)))
        return false;
    CcGuards *gs = &rec->trace->guards;
    cc_inside_size(rec, source, PySequence_Fast_GET_SIZE(o));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(o, i);
        if (PyFloat_CheckExact(item) || PyLong_CheckExact(item) || PyBool_Check(item)) {
            /* with a key, which is not used: not the guard of code that reads the item, which has to learn its value */
            PyObject *type = (PyObject *)Py_TYPE(item);
            cc_guard_once(gs, CC_SRC_ITEM, source, type, (int)i, CC_CHK_TYPE, type);
        } else {
            cc_value_read(rec, CC_SRC_ITEM, source, NULL, 0, (int)i, item);
            if (!cc_inside_structure(rec, item, depth - 1)) return false;
        }
    }
    return true;
}
