/* Arguments of C code: guards what a callable with a row in callee.def reads of them, according to its traits. */
#include "rec_events.h"

static bool has(const CcBuiltin *b, CcTrait trait) { return cc_callee_has(b->callee, trait); }

static CcGo stop(const CcBuiltin *b, CcReason reason, const char *what) {
    return cc_rec_break(b->rec, b->act, reason, what);
}

PyTypeObject *cc_args_class(PyObject *callable) {
    if (PyType_Check(callable)) return (PyTypeObject *)callable;
    if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type))
        return PyDescr_TYPE(callable);
    PyObject *self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : NULL; /* dict.__new__ */
    return self != NULL && PyType_Check(self) ? (PyTypeObject *)self : NULL;
}

static bool is_set_class(PyTypeObject *of) {
    return of != NULL && (PyType_IsSubtype(of, &PySet_Type) || PyType_IsSubtype(of, &PyFrozenSet_Type));
}

static bool is_dict_class(PyTypeObject *of) { return of != NULL && PyType_IsSubtype(of, &PyDict_Type); }

CcLooks cc_args_looks(PyObject *callable) {
    static const CcTrait all[] = {CC_TRAIT_LOOKS_INSIDE, CC_TRAIT_READS_SELF, CC_TRAIT_ORDERS, CC_TRAIT_MAKES_SET,
                                  CC_TRAIT_COMPARES};
    PyObject *unbound = cc_callee_self(callable) != NULL ? cc_callee_unbound(callable) : NULL;
    if (unbound != NULL) callable = unbound;
    const CcCallee callee = cc_callee_find(callable);
    if (callee.kind == CC_CALLEE_SETDEFAULT)
        return CC_LOOKS_NOT; /* it passes on what Python code has done in its place */
    if (cc_callee_has(&callee, CC_TRAIT_CHAINS)) return CC_LOOKS_ITEMS;
    if (cc_callee_has(&callee, CC_TRAIT_TESTS) || cc_callee_has(&callee, CC_TRAIT_ASKS_LEN)) return CC_LOOKS_TRUTH;
    for (int i = 0; i < CC_COUNT(all); i++)
        if (cc_callee_has(&callee, all[i])) return CC_LOOKS_ALL;
    PyTypeObject *of = cc_args_class(callable);
    return is_set_class(of) ? CC_LOOKS_ALL : is_dict_class(of) ? CC_LOOKS_KEYS : CC_LOOKS_NOT;
}

/* ------------------------------------------------------------------ kinds of arguments */

/* Finds arguments that C code calls: sorted(key=...), map(f, ...). Stores their indices. */
int cc_args_callbacks(const CcBuiltin *b, int at[CC_CALLBACKS]) {
    const CcCalled *c = b->c;
    const int positional = cc_call_positional(c);
    int n = 0;
    if (has(b, CC_TRAIT_CALLS_FIRST) && positional > 0) at[n++] = 0;
    if (has(b, CC_TRAIT_CALLS_SECOND) && positional > 1) at[n++] = 1;
    for (int i = positional; has(b, CC_TRAIT_CALLS_KEY) && i < c->n && n < CC_CALLBACKS; i++) {
        PyObject *name = PyTuple_GET_ITEM(c->kwnames, i - positional);
        if (cc_text_is(name, "key") || cc_text_is(name, "func")) at[n++] = i;
    }
    return n;
}

static bool callbacks_known(const CcBuiltin *b) {
    int at[CC_CALLBACKS];
    const int n = cc_args_callbacks(b, at);
    for (int i = 0; i < n; i++)
        if (cc_backcall_kind(b->rec, b->c->in[at[i]]) == CC_BACK_NOT) return false;
    if (!has(b, CC_TRAIT_CALLS_LATER) || cc_call_positional(b->c) == 0 || PyType_Check(b->c->in[0])) return true;
    return cc_backcall_kind(b->rec, b->c->in[0]) == CC_BACK_SEEN;
}

CcGo cc_args_known(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    if (c->n > 1 && PySlice_Check(c->in[1]) && !cc_tens_is(c->in[0]) && !cc_inside_guard(b->rec, c->in[1], 1))
        return stop(b, CC_R_UNKNOWN_VALUE, "slice");
    if (!callbacks_known(b)) return stop(b, CC_R_UNKNOWN_CALL, b->callee->name);
    for (int i = 0; i < c->n; i++)
        if (cc_value_unknown(b->rec, c->in[i]) && !PyTraceBack_Check(c->in[i]))
            return stop(b, CC_R_UNKNOWN_VALUE, cc_type_name(c->in[i]));
    const int hashed = has(b, CC_TRAIT_HASHES_ALL) ? c->n : has(b, CC_TRAIT_HASHES) ? 2 : 0;
    for (int i = 1; i < CC_MIN(hashed, c->n); i++) {
        cc_same_met(b->rec, c->in[i]);
        if (!cc_number_settle(b->rec, c->in[i], 2)) return stop(b, CC_R_DATA_SCALAR, b->callee->name);
    }
    return CC_OK;
}

/* ------------------------------------------------------------------ content of arguments */

CcGo cc_args_guard(const CcBuiltin *b, int from, int depth) {
    for (int i = from; i < b->c->n; i++) {
        PyObject *o = b->c->in[i];
        if (depth > 1) cc_number_which(b->rec, o, depth);
        if (cc_value_const(o) || cc_value_ident(o)) continue;
        if (PyExceptionInstance_Check(o)) {
            if (!cc_inside_exception(b->rec, o, CC_MAX(depth, 3))) return stop(b, CC_R_UNKNOWN_VALUE, cc_type_name(o));
            continue;
        }
        if (cc_value_dirty(b->rec, o) != CC_DIRTY_NO) return stop(b, CC_R_DIRTY_READ, cc_type_name(o));
        if (PyIter_Check(o) && cc_value_origin(b->rec, o) != CC_O_FRESH && !cc_op_python_method(o, "__next__"))
            return stop(b, CC_R_OUTSIDE_ITER, cc_type_name(o));
        if (!cc_inside_guard(b->rec, o, depth)) return stop(b, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    }
    return CC_OK;
}

/* False: a text cannot be pinned, because a node makes it. */
static bool pin_all(const CcBuiltin *b) {
    for (int i = 0; i < b->c->n; i++) {
        if (cc_number_text(b->rec, b->c->in[i])) return false;
        if (cc_value_symbolic(b->rec, b->c->in[i])) cc_value_pin(b->rec, b->c->in[i]);
        cc_sym_pin(b->rec, b->c->in[i]);
    }
    return true;
}

bool cc_args_computed(const CcBuiltin *b) {
    for (int i = 0; i < b->c->n; i++)
        if (!cc_number_settle(b->rec, b->c->in[i], 4)) return true;
    return false;
}

bool cc_args_moved(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    bool known = true;
    const bool moves = has(b, CC_TRAIT_TAKES_OUT) || has(b, CC_TRAIT_MOVES);
    const int last = has(b, CC_TRAIT_HOLDS) && c->kwnames == NULL ? CC_MIN(c->n, 2) : c->n;
    for (int i = c->n > 0 && moves && cc_value_origin(b->rec, c->in[0]) == CC_O_FRESH; i < last; i++) {
        cc_sym_settle(b->rec, c->in[i], 4);
        known = known && (!cc_value_symbolic(b->rec, c->in[i]) || cc_number_settle(b->rec, c->in[i], 0));
    }
    return known;
}

/* C code that iterates over a dict reads only its keys: tensors among its values don't matter. */
static bool keys_only(const CcBuiltin *b) {
    if (!has(b, CC_TRAIT_ITERATES) || b->c->n != 1 || !PyDict_CheckExact(b->c->in[0])) return false;
    Py_ssize_t pos = 0;
    PyObject *key;
    while (PyDict_Next(b->c->in[0], &pos, &key, NULL))
        if (!cc_value_const(key)) return false;
    return true;
}

/* list.index(o) stops at the first element that is o or equals it, so it does not read tensors after that. */
static bool found_before_tensor(PyObject *list, PyObject *o) {
    if (!PyList_Check(list) && !PyTuple_Check(list)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        if (item == o) return true;
        if (!cc_value_const(item) || !cc_value_const(o)) return false;
        if (PyObject_RichCompareBool(item, o, Py_EQ) == 1) return true;
    }
    return false;
}

/* C code that compares, hashes or formats objects exposes the addresses of those whose class does not define this.
 * False: it would expose the address of an object made in this trace. */
static bool addresses(const CcBuiltin *b) {
    const bool text = has(b, CC_TRAIT_AS_TEXT);
    bool known = true;
    for (int i = 0; (text || has(b, CC_TRAIT_BY_ADDRESS)) && i < b->c->n; i++)
        known &= cc_number_addresses(b->rec, b->c->in[i], 4, text);
    return known || !(text || has(b, CC_TRAIT_TELLS));
}

bool cc_args_state(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    for (int i = 1; has(b, CC_TRAIT_CODEC) && i < c->n; i++)
        if (!cc_state_codec(c->in[i])) return false;
    if (!has(b, CC_TRAIT_LOOKS_INSIDE)) return true;
    const bool numpy =
        cc_known_is(c->func, CC_KNOWN_UFUNC) || cc_known_number((PyTypeObject *)c->func); /* or not a type */
    return (!numpy || cc_state_numpy(b->rec)) &&
           cc_state_read(b->rec, c->in, c->n, has(b, CC_TRAIT_AS_TEXT) || has(b, CC_TRAIT_CONVERTS));
}

/* A format string that reads attributes: it has a dot in braces, before the field's own format. */
static bool names_attributes(PyObject *format) {
    Py_ssize_t size = 0;
    const char *p = PyUnicode_Check(format) ? PyUnicode_AsUTF8AndSize(format, &size) : NULL;
    bool field = false;
    for (Py_ssize_t i = 0; p != NULL && i < size; i++) {
        if (p[i] == '{') field = true;
        else if (p[i] == '}' || p[i] == ':' || p[i] == '!') field = false;
        else if (p[i] == '.' && field) return true;
    }
    if (p == NULL) cc_raised_clear();
    return p == NULL;
}

void cc_args_hashed(const CcBuiltin *b) {
    cc_distinct_call(b);
    PyTypeObject *of = cc_args_class(b->c->func);
    const bool dict = is_dict_class(of);
    if (!dict && !is_set_class(of) && !has(b, CC_TRAIT_COUNTS)) return;
    for (int i = 0; i < b->c->n; i++) cc_same_taken(b->rec, b->c->in[i], dict && !has(b, CC_TRAIT_MAKES_SET));
}

/* The keys of zip(keys, values): its first iterator. */
static bool zipped_keys_known(CcRec *rec, PyObject *zip) {
    PyObject *reduced = cc_iterator_reduce(zip);
    PyObject *args = reduced != NULL && PyTuple_Check(reduced) ? PyTuple_GET_ITEM(reduced, 1) : NULL;
    const bool some = args != NULL && PyTuple_Check(args) && PyTuple_GET_SIZE(args) > 0;
    const bool known = !some || cc_number_settle(rec, PyTuple_GET_ITEM(args, 0), 3);
    cc_raised_clear();
    Py_XDECREF(reduced);
    return known;
}

bool cc_args_keys_known(CcRec *rec, PyObject *pairs) {
    if (Py_IS_TYPE(pairs, &PyZip_Type)) return zipped_keys_known(rec, pairs);
    if (!PyList_CheckExact(pairs) && !PyTuple_CheckExact(pairs)) return true;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(pairs); i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(pairs, i);
        const bool items = (PyList_Check(pair) || PyTuple_Check(pair)) && PySequence_Fast_GET_SIZE(pair) > 0;
        if (items && !cc_number_settle(rec, PySequence_Fast_GET_ITEM(pair, 0), 3)) return false;
    }
    return true;
}

static bool keys_known(const CcBuiltin *b) {
    const int n = cc_call_positional(b->c);
    return n == 0 || !PyType_Check(b->c->func) || cc_args_keys_known(b->rec, b->c->in[n - 1]);
}

CcGo cc_args_read(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    const char *name = b->callee->name;
    const bool gives = c->n == 1 && cc_number_str_gives(c->func, c->in[0]);
    const bool inside = has(b, CC_TRAIT_LOOKS_INSIDE) && !gives, orders = has(b, CC_TRAIT_ORDERS),
               tests = has(b, CC_TRAIT_TESTS);
    const bool looks = inside || orders || has(b, CC_TRAIT_COMPARES);
    if (inside && cc_call_any_tensor(c, 3) && !keys_only(b)) {
        if (has(b, CC_TRAIT_DISPATCHES)) return CC_OK;
        if (c->n == 2 && has(b, CC_TRAIT_FINDS) && found_before_tensor(c->in[0], c->in[1]))
            return cc_args_guard(b, 0, 2);
        return stop(b, CC_R_TENSOR_VALUE, name);
    }
    if (orders && c->n > 0 && !PyDict_Check(c->in[0]) && !cc_plain(b->rec, c->in[0]) && cc_call_any_tensor(c, 2))
        return stop(b, CC_R_TENSOR_VALUE, name);
    if (has(b, CC_TRAIT_CONVERTS) && c->n > 0 && c->in[0] == Py_NotImplemented)
        return stop(b, CC_R_UNKNOWN_CALL, "NotImplemented's truth, which warns");
    if (looks && cc_args_computed(b)) return stop(b, CC_R_DATA_SCALAR, name);
    for (int i = 0; has(b, CC_TRAIT_ASKS_ITEMS) && i < c->n; i++)
        if (cc_item_fills(b->rec, c->in[i])) return stop(b, CC_R_DIRTY_READ, "a defaultdict that C code may fill");
    if (has(b, CC_TRAIT_FIELDS) && names_attributes(c->in[0]))
        return stop(b, CC_R_UNKNOWN_CALL, "a format string that reads attributes");
    if (!has(b, CC_TRAIT_HOLDS) && !pin_all(b)) return stop(b, CC_R_DATA_SCALAR, name);
    if (has(b, CC_TRAIT_HOLDS) && !keys_known(b)) return stop(b, CC_R_DATA_SCALAR, "key");
    for (int i = 0; i < (looks ? c->n : CC_MIN(c->n, has(b, CC_TRAIT_MAKES_SET))); i++)
        if (!cc_number_settle(b->rec, c->in[i], 4)) return stop(b, CC_R_DATA_SCALAR, name);
    const bool itself =
        !has(b, CC_TRAIT_CALLS_FIRST) || c->in[0] == Py_None; /* or the truth of what a function gives */
    for (int i = 0; tests && itself && !looks && i < c->n; i++)
        if (!cc_number_truths(b->rec, c->in[i])) return stop(b, CC_R_DATA_SCALAR, name);
    if (!addresses(b)) return stop(b, CC_R_ADDRESS, name);
    if (inside && c->n > 1 && !cc_value_const(c->in[0])) cc_same_met(b->rec, c->in[1]); /* list.count */
    return cc_args_guard(b, 0, looks ? 4 : tests || has(b, CC_TRAIT_CHAINS) ? 2 : 1);
}

CcGo cc_args_before(const CcBuiltin *b) {
    cc_given_call(b->rec, b->c, b->callee);
    if (!cc_args_state(b)) return stop(b, CC_R_UNKNOWN_CALL, b->callee->name);
    CcGo go = cc_args_known(b);
    if (go == CC_OK) go = cc_args_read(b);
    if (go == CC_OK) cc_args_hashed(b);
    return go;
}
