/* Calls of C callables that have a row in callee.def: before() decides by the row's kind what has to be known of the
 * arguments, after() writes down what the call did. */
#include "rec_int.h"

static const char *type_name(PyObject *o) { return Py_TYPE(o)->tp_name; }

static bool has(const CcCallee *callee, CcTrait trait) { return callee->traits >> trait & 1; }

/* ------------------------------------------------------------------ before */

static PyObject *dict_name(void) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_name("__dict__");
    return name;
}

static bool looks_inside(CcCalleeKind k) { return k == CC_CALLEE_PURE || k == CC_CALLEE_ARITH || k == CC_CALLEE_VALUE; }

/* The class that a call makes, or whose method is called; NULL: neither. */
static PyTypeObject *class_of(PyObject *callable) {
    if (PyType_Check(callable)) return (PyTypeObject *)callable;
    if (Py_IS_TYPE(callable, &PyMethodDescr_Type) || Py_IS_TYPE(callable, &PyWrapperDescr_Type))
        return PyDescr_TYPE(callable);
    PyObject *self = PyCFunction_Check(callable) ? PyCFunction_GET_SELF(callable) : NULL; /* dict.__new__ */
    return self != NULL && PyType_Check(self) ? (PyTypeObject *)self : NULL;
}

CcLooks cc_row_looks(PyObject *callable) {
    PyObject *unbound = cc_callee_self(callable) != NULL ? cc_callee_unbound(callable) : NULL;
    if (unbound != NULL) callable = unbound;
    const CcCallee callee = cc_callee_find(callable);
    if (has(&callee, CC_TRAIT_CHAINS)) return CC_LOOKS_ITEMS;
    if (has(&callee, CC_TRAIT_TESTS) || has(&callee, CC_TRAIT_ASKS_LEN)) return CC_LOOKS_TRUTH;
    if (looks_inside(callee.kind) || callee.kind == CC_CALLEE_READ_WRITE) return CC_LOOKS_ALL;
    if (has(&callee, CC_TRAIT_ORDERS) || has(&callee, CC_TRAIT_MAKES_SET) || has(&callee, CC_TRAIT_COMPARES))
        return CC_LOOKS_ALL;
    PyTypeObject *of = class_of(callable);
    if (of == NULL) return CC_LOOKS_NOT;
    if (PyType_IsSubtype(of, &PySet_Type) || PyType_IsSubtype(of, &PyFrozenSet_Type)) return CC_LOOKS_ALL;
    return PyType_IsSubtype(of, &PyDict_Type) ? CC_LOOKS_KEYS : CC_LOOKS_NOT;
}

static CcGo contents(CcRec *rec, CcAct *act, const CcCalled *c, int from, int depth) {
    for (int i = from; i < c->n; i++) {
        PyObject *o = c->in[i];
        if (depth > 1) cc_number_which(rec, o, depth);
        if (cc_value_const(o) || cc_value_ident(o)) continue;
        if (PyExceptionInstance_Check(o)) {
            if (!cc_inside_exception(rec, o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(o));
            continue;
        }
        if (cc_value_dirty(rec, o) != CC_DIRTY_NO) return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(o));
        if (PyIter_Check(o) && cc_value_origin(rec, o) != CC_O_FRESH && !cc_python_class(Py_TYPE(o)))
            return cc_rec_break(rec, act, CC_R_OUTSIDE_ITER, type_name(o));
        if (!cc_inside_guard(rec, o, depth)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(o));
    }
    return CC_OK;
}

static void pin_all(CcRec *rec, const CcCalled *c) {
    for (int i = 0; i < c->n; i++) {
        if (cc_value_symbolic(rec, c->in[i])) cc_value_pin(rec, c->in[i]);
        cc_sym_pin(rec, c->in[i]);
    }
}

static bool any_computed(CcRec *rec, const CcCalled *c) {
    for (int i = 0; i < c->n; i++)
        if (!cc_number_settle(rec, c->in[i], 4)) return true;
    return false;
}

enum { MAX_CALLBACKS = 4 };

/* What C code is given to call: sorted(key=...), map(f, ...). Their places among the arguments. */
static int callbacks(const CcCalled *c, const CcCallee *callee, int *at) {
    int n = 0;
    if (has(callee, CC_TRAIT_CALLS_FIRST) && cc_call_positional(c) > 0) at[n++] = 0;
    if (has(callee, CC_TRAIT_CALLS_SECOND) && cc_call_positional(c) > 1) at[n++] = 1;
    for (int i = cc_call_positional(c); i < c->n && n < MAX_CALLBACKS; i++) {
        PyObject *name = PyTuple_GET_ITEM(c->kwnames, i - cc_call_positional(c));
        if ((PyUnicode_CompareWithASCIIString(name, "key") == 0 ||
             PyUnicode_CompareWithASCIIString(name, "func") == 0) &&
            (callee->kind == CC_CALLEE_PURE || callee->kind == CC_CALLEE_ITER || has(callee, CC_TRAIT_ORDERS)))
            at[n++] = i;
    }
    return n;
}

static bool callbacks_known(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    int at[MAX_CALLBACKS];
    const int n = callbacks(c, callee, at);
    for (int i = 0; i < n; i++)
        if (cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_NOT) return false;
    if (!has(callee, CC_TRAIT_CALLS_LATER) || cc_call_positional(c) == 0 || PyType_Check(c->in[0])) return true;
    return cc_backcall_kind(rec, c->in[0]) == CC_BACK_SEEN;
}

/* A dict that C code iterates over gives its keys: tensors among its values are not looked at. */
static bool keys_only(const CcCalled *c, const CcCallee *callee) {
    if (!has(callee, CC_TRAIT_ITERATES) || c->n != 1 || !PyDict_CheckExact(c->in[0])) return false;
    Py_ssize_t pos = 0;
    PyObject *key;
    while (PyDict_Next(c->in[0], &pos, &key, NULL))
        if (!cc_value_const(key)) return false;
    return true;
}

/* list.index(o) stops at the first element that is o or equals it: tensors behind that are not looked at. */
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

/* What a container of this trace holds are symbols still, and so is what is put into one. False: a node computes what C
 * code looks at. */
static bool settle_moved(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    bool known = true;
    const bool moves = has(callee, CC_TRAIT_TAKES_OUT) || has(callee, CC_TRAIT_MOVES);
    const int last = has(callee, CC_TRAIT_HOLDS) && c->kwnames == NULL ? CC_MIN(c->n, 2) : c->n;
    for (int i = c->n > 0 && moves && cc_value_origin(rec, c->in[0]) == CC_O_FRESH; i < last; i++) {
        cc_sym_settle(rec, c->in[i], 4);
        known = known && (!cc_value_symbolic(rec, c->in[i]) || cc_number_settle(rec, c->in[i], 0));
    }
    return known;
}

/* C code that is called with symbols, or with tensors of symbolic sizes: CC_DONE when it is a step; what looks at
 * symbols in any other way makes constants of them. */
static CcGo symbols_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, const CcCallee *callee) {
    const CcCallSpec spec = cc_call_spec(c, callee->name);
    bool within = false;
    for (int i = 0; i < c->n; i++) within = within || cc_sym_within(rec, c->in[i], 4);
    switch (callee->kind) {
    case CC_CALLEE_GETATTR: return c->n == 2 ? cc_sym_attr(rec, act, ev, c->in[0], c->in[1]) : CC_OK;
    case CC_CALLEE_PURE:
    case CC_CALLEE_ARITH:
    case CC_CALLEE_VALUE:
        if (c->kwnames == NULL) return cc_sym_pure(rec, act, ev, &spec);
        cc_sym_unseen(rec, c->in, c->n);
        break;
    case CC_CALLEE_READ:
        if (c->n == 1 && has(callee, CC_TRAIT_ASKS_LEN) && cc_sym_sized(rec, c->in[0])) {
            cc_attr_dunder(rec, c->in[0], "__len__");
            return cc_sym_call(rec, act, ev, &spec);
        }
        if (c->kwnames != NULL && !has(callee, CC_TRAIT_HOLDS)) cc_sym_unseen(rec, c->in, c->n);
        break;
    case CC_CALLEE_READ_WRITE:
        if (c->kwnames != NULL) cc_sym_unseen(rec, c->in, c->n);
        if (!settle_moved(rec, c, callee)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
        break;
    case CC_CALLEE_WRITE:
        if (within && c->n > 1 && has(callee, CC_TRAIT_SETS_ITEM)) cc_sym_settle(rec, c->in[1], 3);
        break;
    case CC_CALLEE_ITER: cc_sym_unseen(rec, c->in, c->n); break;
    default: break;
    }
    return CC_OK;
}

/* operator.getitem and setitem of a tensor are what x[i] and x[i] = v are. */
static CcEvent item_event(const CcCalled *c, PyObject *result) {
    return (CcEvent){.kind = c->n == 2 ? CC_EV_SUBSCR : CC_EV_STORE_SUBSCR, .in = c->in, .n = c->n, .result = result};
}

static CcGo item_before(CcRec *rec, CcAct *act, const CcCalled *c) {
    CcEvent ev = item_event(c, NULL);
    return cc_op_before(rec, act, &ev);
}

static CcGo item_after(CcRec *rec, CcAct *act, const CcCalled *c, PyObject *result) {
    CcEvent ev = item_event(c, result);
    if (!cc_tens_any(c->in[0])) return CC_OK;
    return result == NULL ? cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises")
                          : cc_op_after(rec, act, &ev);
}

/* What it is given is known, and what it hashes is a constant. */
static CcGo operands_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee) {
    if (c->n > 1 && PySlice_Check(c->in[1]) && !cc_tens_any(c->in[0]) && !cc_inside_guard(rec, c->in[1], 1))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "slice");
    if (!callbacks_known(rec, c, callee)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    for (int i = 0; i < c->n; i++)
        if (!PyExceptionInstance_Check(c->in[i]) && !PyTraceBack_Check(c->in[i]) &&
            cc_value_origin(rec, c->in[i]) == CC_O_UNKNOWN)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(c->in[i]));
    const int hashed = has(callee, CC_TRAIT_HASHES_ALL) ? c->n : has(callee, CC_TRAIT_HASHES) ? 2 : 0;
    for (int i = 1; i < CC_MIN(hashed, c->n); i++) {
        cc_same_met(rec, c->in[i]);
        if (!cc_number_settle(rec, c->in[i], 2)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    }
    return CC_OK;
}

/* C code that compares or hashes objects, or gives their text: of some that is where they lie. False: it tells that of one
 * that was made here. */
static bool addresses(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    const bool text = has(callee, CC_TRAIT_AS_TEXT);
    bool known = true;
    for (int i = 0; (text || has(callee, CC_TRAIT_BY_ADDRESS)) && i < c->n; i++)
        known &= cc_number_addresses(rec, c->in[i], 4, text);
    return known || !(text || has(callee, CC_TRAIT_TELLS));
}

/* What C code reads beside its operands. False: no guard can tell that. */
static bool state_known(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    for (int i = 1; has(callee, CC_TRAIT_CODEC) && i < c->n; i++)
        if (!cc_state_codec(c->in[i])) return false;
    if (!looks_inside(callee->kind)) return true;
    const bool numpy = PyType_Check(c->func) ? strncmp(((PyTypeObject *)c->func)->tp_name, "numpy.", 6) == 0
                                             : strcmp(type_name(c->func), "numpy.ufunc") == 0;
    return (!numpy || cc_state_numpy(rec)) &&
           cc_state_read(rec, c->in, c->n, has(callee, CC_TRAIT_AS_TEXT) || callee->kind == CC_CALLEE_VALUE);
}

/* A format that has attributes read: a point inside of braces, in front of the format of the field itself. */
static bool names_attributes(PyObject *format) {
    const char *p = PyUnicode_Check(format) ? PyUnicode_AsUTF8(format) : NULL;
    bool field = false;
    for (; p != NULL && *p != '\0'; p++) {
        if (*p == '{') field = true;
        else if (*p == '}' || *p == ':' || *p == '!') field = false;
        else if (*p == '.' && field) return true;
    }
    if (p == NULL) PyErr_Clear();
    return p == NULL;
}

/* What it puts into a set, or as keys into a dict, is compared with what is there. */
static void hashed(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    const PyTypeObject *of = class_of(c->func);
    const bool dict = of != NULL && PyType_IsSubtype((PyTypeObject *)of, &PyDict_Type);
    const bool set = of != NULL && (PyType_IsSubtype((PyTypeObject *)of, &PySet_Type) ||
                                    PyType_IsSubtype((PyTypeObject *)of, &PyFrozenSet_Type));
    const bool counts = has(callee, CC_TRAIT_COUNTS);
    for (int i = 0; (dict || set || counts) && i < c->n; i++)
        cc_same_taken(rec, c->in[i], dict && !has(callee, CC_TRAIT_MAKES_SET));
}

/* dict(pairs): keys are compared with one another, and what is equal is there once. */
static bool keys_known(CcRec *rec, const CcCalled *c) {
    PyObject *pairs = cc_call_positional(c) > 0 && PyType_Check(c->func) ? c->in[cc_call_positional(c) - 1] : NULL;
    if (pairs == NULL || !(PyList_CheckExact(pairs) || PyTuple_CheckExact(pairs))) return true;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(pairs); i++) {
        PyObject *pair = PySequence_Fast_GET_ITEM(pairs, i);
        const bool items = (PyList_Check(pair) || PyTuple_Check(pair)) && PySequence_Fast_GET_SIZE(pair) > 0;
        if (items && !cc_number_settle(rec, PySequence_Fast_GET_ITEM(pair, 0), 3)) return false;
    }
    return true;
}

/* C code that may read whatever its operands hold. */
static CcGo contents_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee) {
    const CcCalleeKind k = callee->kind;
    const bool orders = has(callee, CC_TRAIT_ORDERS), tests = has(callee, CC_TRAIT_TESTS);
    const bool looks = looks_inside(k) || orders || has(callee, CC_TRAIT_COMPARES);
    if (looks_inside(k) && cc_call_any_tensor(c, 3) && !keys_only(c, callee)) {
        if (k == CC_CALLEE_ARITH) return CC_OK;
        if (c->n == 2 && has(callee, CC_TRAIT_FINDS) && found_before_tensor(c->in[0], c->in[1]))
            return contents(rec, act, c, 0, 2);
        return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, callee->name);
    }
    if (orders && c->n > 0 && !PyDict_Check(c->in[0]) && cc_call_any_tensor(c, 2))
        return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, callee->name);
    if (looks && any_computed(rec, c)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    if (has(callee, CC_TRAIT_FIELDS) && names_attributes(c->in[0]))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "a format that names attributes");
    if (!has(callee, CC_TRAIT_HOLDS)) pin_all(rec, c);
    else if (!keys_known(rec, c)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, "key");
    for (int i = 0; i < (looks ? c->n : CC_MIN(c->n, has(callee, CC_TRAIT_MAKES_SET))); i++)
        if (!cc_number_settle(rec, c->in[i], 4)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    for (int i = 0; tests && !looks && i < c->n; i++)
        if (!cc_number_truths(rec, c->in[i])) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    if (!addresses(rec, c, callee)) return cc_rec_break(rec, act, CC_R_ADDRESS, callee->name);
    if (k == CC_CALLEE_PURE && c->n > 1 && !cc_value_const(c->in[0])) cc_same_met(rec, c->in[1]); /* list.count */
    return contents(rec, act, c, 0, looks ? 4 : tests || has(callee, CC_TRAIT_CHAINS) ? 2 : 1);
}

/* descriptor.__get__(o): the name by which o's own lookup finds the descriptor; NULL: it does not, or o is a tensor. */
static PyObject *read_by(const CcCalled *c) {
    if (c->kwnames != NULL || cc_tens_any(c->in[1])) return NULL;
    if (!Py_IS_TYPE(c->in[0], &PyGetSetDescr_Type) && !Py_IS_TYPE(c->in[0], &PyMemberDescr_Type)) return NULL;
    PyObject *name = ((PyDescrObject *)c->in[0])->d_name;
    return cc_type_lookup(Py_TYPE(c->in[1]), name) == c->in[0] ? name : NULL;
}

/* A key that a guard can look up. */
static bool looked_up(CcRec *rec, PyObject *key) {
    return cc_value_const(key) || cc_value_ident(key) || cc_number_dict_key(rec, key);
}

/* Whether copy.deepcopy made the memo itself: its caller may read one that was given. */
static bool own_memo(CcRec *rec, const CcAct *act) {
    for (Py_ssize_t i = 0; i < act->co->co_nlocalsplus; i++) {
        PyObject *memo = cc_act_get(act, (int)i), *name = PyTuple_GET_ITEM(act->co->co_localsplusnames, i);
        if (memo == NULL || PyUnicode_CompareWithASCIIString(name, "memo") != 0) continue;
        const CcProv *p = cc_value_find(rec, memo);
        return p != NULL && p->origin == CC_O_FRESH && p->site_co != NULL &&
               PyUnicode_Compare(p->site_co->co_filename, act->co->co_filename) == 0;
    }
    return true; /* id(x) comes before there is one */
}

/* dict.get, __contains__ and __getitem__, which asks for __missing__. */
static CcGo key_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee) {
    if (!PyDict_Check(c->in[0])) return CC_OK;
    if (strcmp(callee->name, "dict.__getitem__") == 0 && cc_item_stores(act, c->in[0], c->in[1]))
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(c->in[0]));
    cc_item_look(rec, act, c->in[0], c->in[1]);
    return CC_OK;
}

/* Modules that keep ids only while they look for an object that holds itself. */
static bool looks_for_cycles(const CcAct *act) {
    return cc_rec_in_module(act, "dataclasses") || cc_rec_in_module(act, "inspect") || cc_rec_in_module(act, "reprlib");
}

static CcGo id_before(CcRec *rec, CcAct *act, const CcCalled *c) {
    if (c->n == 0) return CC_OK;
    if (cc_tens_any(c->in[0])) { /* Tensor.__hash__ asks for it as well: what is hashed is told apart by its identity */
        PyObject *name = cc_obj_name("__hash__");
        PyObject *f = name != NULL ? cc_type_lookup(Py_TYPE(c->in[0]), name) : NULL;
        Py_XDECREF(name);
        return f != NULL && PyFunction_Check(f) && PyFunction_GET_CODE(f) == (PyObject *)act->co
                   ? CC_OK
                   : cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "id of a tensor");
    }
    if (cc_rec_in_module(act, "copy") && own_memo(rec, act))
        cc_value_copied(rec, c->in[0]); /* a key of deepcopy()'s memo: which one it is tells it from the others alone */
    else if (cc_value_origin(rec, c->in[0]) == CC_O_FRESH && !looks_for_cycles(act))
        return cc_rec_break(rec, act, CC_R_ADDRESS, "id");
    else cc_value_which(rec, c->in[0]);
    return CC_OK;
}

static CcGo classes_before(CcRec *rec, CcAct *act, const CcCalled *c) {
    PyObject *self = PyCFunction_Check(c->func) ? PyCFunction_GET_SELF(c->func) : NULL; /* C.mro */
    if (self != NULL && PyType_Check(self)) (void)cc_given_class(rec, self, 0);
    for (int i = 0; i < c->n; i++)
        if (!cc_given_class(rec, c->in[i], 4)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(c->in[i]));
    return CC_OK;
}

/* len(), discard() and their like do not ask in which order a set gives its members. */
static bool asks_members(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    if (c->n == 0 ||
        !(has(callee, CC_TRAIT_ASKS_LEN) || (callee->kind == CC_CALLEE_READ_WRITE && !has(callee, CC_TRAIT_TAKES_OUT))))
        return false;
    if (!cc_inside_members(rec, c->in[0])) return false;
    if (callee->kind == CC_CALLEE_READ_WRITE) cc_value_will_write(rec, c->in[0]);
    return true;
}

/* dict.__delitem__ and its like leave the order of an OrderedDict as it was: none is made again like that. */
static bool spoils_order(const CcCalled *c, const CcCallee *callee) {
    const CcCalleeKind k = callee->kind;
    return c->n > 0 && (k == CC_CALLEE_WRITE || k == CC_CALLEE_READ_WRITE) && PyODict_Check(c->in[0]) &&
           class_of(c->func) == &PyDict_Type;
}

static CcGo row_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee) {
    const CcCalleeKind k = callee->kind;
    const CcGo go = operands_before(rec, act, c, callee);
    if (go != CC_OK) return go;
    if (spoils_order(c, callee)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    if (asks_members(rec, c, callee)) return contents(rec, act, c, 1, 1);
    switch (k) {
    case CC_CALLEE_PRINT: return cc_rec_break(rec, act, CC_R_PRINT, callee->name);
    case CC_CALLEE_CLASS: return cc_rec_break(rec, act, CC_R_CLASS, "class statement");
    case CC_CALLEE_VARS:
        return c->n == 1 ? cc_attr_before(rec, act, c->in[0], dict_name())
                         : cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "vars");
    case CC_CALLEE_DESCR_GET:
        return read_by(c) != NULL ? cc_attr_before(rec, act, c->in[1], read_by(c))
                                  : cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    case CC_CALLEE_TYPE:
        if (c->n != 1) return cc_rec_break(rec, act, CC_R_CLASS, "type()");
        cc_attr_class_of(rec, c->in[0]);
        return CC_OK;
    case CC_CALLEE_ID: return id_before(rec, act, c);
    case CC_CALLEE_STATE: return c->n == 0 ? CC_OK : cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    case CC_CALLEE_IS:
        if (c->n == 2) cc_same_compared(rec, c->in[0], c->in[1]);
        return CC_OK;
    case CC_CALLEE_LOOK:
    case CC_CALLEE_ABC: return classes_before(rec, act, c);
    case CC_CALLEE_ASK:
    case CC_CALLEE_SUPER:
    case CC_CALLEE_CALLS:
    case CC_CALLEE_CTX_GET:
    case CC_CALLEE_CTX_SET:
    case CC_CALLEE_PICKLE:
    case CC_CALLEE_NONE: return CC_OK;
    case CC_CALLEE_GETATTR:
    case CC_CALLEE_HASATTR: return c->n >= 2 ? cc_attr_before(rec, act, c->in[0], c->in[1]) : CC_OK;
    case CC_CALLEE_OBJ_GETATTR: return c->n >= 2 ? cc_attr_generic_before(rec, act, c->in[0], c->in[1]) : CC_OK;
    case CC_CALLEE_SETATTR:
        return c->n >= 2 ? cc_attr_store_before(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL) : CC_OK;
    case CC_CALLEE_OBJ_SETATTR:
        return c->n >= 2 ? cc_attr_generic_store_before(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL)
                         : CC_OK;
    case CC_CALLEE_DICT_GET: {
        if (cc_value_by_tensor(rec, c->in[0], c->in[1])) return key_before(rec, act, c, callee);
        const CcDirty d =
            cc_value_dirty_key(rec, c->in[0]) == CC_DIRTY_ALL ? cc_value_dirty(rec, c->in[0]) : CC_DIRTY_NO;
        if (cc_value_symbolic(rec, c->in[1])) cc_value_pin(rec, c->in[1]);
        cc_sym_settle(rec, c->in[1], 3);
        if (d == CC_DIRTY_ALL) return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(c->in[0]));
        if (cc_value_origin(rec, c->in[0]) == CC_O_FRESH && !cc_value_membership(rec, c->in[0], c->in[1]))
            return cc_rec_break(rec, act, CC_R_TENSOR_ITER, callee->name);
        return looked_up(rec, c->in[1]) ? key_before(rec, act, c, callee) : contents(rec, act, c, 0, 1);
    }
    case CC_CALLEE_INIT:
        if (has(callee, CC_TRAIT_FILLS) && c->n > 0 && cc_value_source(rec, c->in[0]) >= 0)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
        break;
    case CC_CALLEE_WRITE:
        cc_value_will_write(rec, c->in[0]);
        if (has(callee, CC_TRAIT_HASHES) && cc_call_positional(c) > 1 && !cc_value_membership(rec, c->in[0], c->in[1]))
            return cc_rec_break(rec, act, CC_R_TENSOR_ITER, callee->name);
        if (!has(callee, CC_TRAIT_TAKES_ITEMS) || cc_call_positional(c) < 2) return CC_OK;
        return cc_tens_any(c->in[1]) ? cc_rec_break(rec, act, CC_R_TENSOR_ITER, callee->name)
                                     : contents(rec, act, c, 1, 1);
    case CC_CALLEE_READ_WRITE: {
        if (has(callee, CC_TRAIT_ORDERS)) break;
        const CcGo read = contents(rec, act, c, 0, has(callee, CC_TRAIT_EQUALS) ? 4 : 1);
        if (read == CC_OK && c->n > 0) (void)cc_final_holds(rec, c->in[0]);
        return read;
    }
    case CC_CALLEE_SUM:
    case CC_CALLEE_REDUCE:
        if (!(c->n > 0 && cc_number_whole(c->in[c->n - 1]) && cc_number_whole(c->in[k == CC_CALLEE_REDUCE])) &&
            any_computed(rec, c))
            return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name); /* sums of symbols are symbols */
        return contents(rec, act, c, 0, 1);
    case CC_CALLEE_GROUP: return contents(rec, act, c, 0, 3);
    case CC_CALLEE_NEXT: {
        CcEvent ev = {.kind = CC_EV_NEXT, .in = c->in, .n = 1};
        return cc_op_before(rec, act, &ev);
    }
    case CC_CALLEE_SETITEM:
        if (c->n != 3 || !cc_tens_any(c->in[0])) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
        return item_before(rec, act, c);
    case CC_CALLEE_GETITEM:
        if (c->n == 2 && cc_tens_any(c->in[0])) return item_before(rec, act, c);
        if (c->n == 2 && cc_item_stores(act, c->in[0], c->in[1]))
            return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(c->in[0]));
        break;
    default: break;
    }
    return contents_before(rec, act, c, callee);
}

/* ------------------------------------------------------------------ after */

bool cc_row_stored(CcRec *rec, CcAct *act) { return rec->stores != cc_rec_frame(rec, act)->call_stores; }

void cc_row_will_take(CcRec *rec, CcAct *act, PyObject *self) {
    CcRecFrame *f = cc_rec_frame(rec, act);
    if (f != NULL && PyList_Check(self)) f->call_size = PyList_GET_SIZE(self);
}

/* In its own order. */
static PyObject *copy_dict(PyObject *dict) {
    PyObject *keys = PyODict_Check(dict) ? cc_dict_keys(dict) : NULL,
             *copy = keys != NULL ? PyDict_New() : PyDict_Copy(dict);
    for (Py_ssize_t i = 0; copy != NULL && keys != NULL && i < PyList_GET_SIZE(keys); i++) {
        PyObject *key = PyList_GET_ITEM(keys, i), *value = PyDict_GetItemWithError(dict, key);
        if (value == NULL || PyDict_SetItem(copy, key, value) < 0) Py_CLEAR(copy);
    }
    Py_XDECREF(keys);
    return copy;
}

PyObject *cc_row_taken(CcRec *rec, CcAct *act, PyObject *self, PyObject *with) {
    if (with == self) return self; /* a replay has it as it was then */
    PyObject *items = NULL;
    if (PyList_Check(self)) { /* what lies behind what it held */
        PyObject *tail = PyList_GetSlice(self, cc_rec_frame(rec, act)->call_size, PyList_GET_SIZE(self));
        items = tail != NULL ? PyList_AsTuple(tail) : NULL;
        Py_XDECREF(tail);
    } else if (!PyIter_Check(with) && !cc_op_python_method(with, "__iter__") && !cc_op_python_method(with, "keys")) {
        items = PyDict_Check(with) && PyDict_Check(self) ? copy_dict(with) : PySequence_Tuple(with);
    }
    PyErr_Clear();
    if (items == NULL) return NULL;
    cc_vec_push(&rec->keep, items);
    cc_value_pairs(rec, items, with);
    cc_value_fresh(rec, items);
    return items;
}

/* max(zip(a, b)) gives one of the tuples that zip made, which may hold the last one to use it again. */
static bool a_pair(const CcCalled *c, PyObject *result) {
    return c->n == 1 && PyTuple_CheckExact(result) &&
           (Py_IS_TYPE(c->in[0], &PyZip_Type) || Py_IS_TYPE(c->in[0], &PyEnum_Type));
}

static CcGo write_effect(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee, PyObject *result) {
    PyObject *self = c->in[0];
    const int source = cc_value_source(rec, self);
    if (source < 0) {
        if (has(callee, CC_TRAIT_TAKES_ITEMS) && c->n > 1) cc_value_pairs(rec, self, c->in[1]);
        return CC_OK;
    }
    PyObject *in[CC_CALL_ARGS];
    memcpy(in, c->in, sizeof *in * (size_t)c->n);
    const int n_pos = c->n - (c->kwnames != NULL ? (int)PyTuple_GET_SIZE(c->kwnames) : 0);
    for (int i = 1; has(callee, CC_TRAIT_TAKES_ITEMS) && i < n_pos; i++) {
        /* what it took is what the argument held then */
        in[i] = cc_row_taken(rec, act, self, in[i]);
        if (in[i] == NULL) return cc_rec_poison(rec, act, CC_R_OUTSIDE_ITER, callee->name);
    }
    if (cc_row_stored(rec, act)) return cc_rec_poison(rec, act, CC_R_DIRTY_READ, type_name(self));
    /* what is read and written was guarded whole before */
    cc_value_wrote(rec, self,
                   callee->kind == CC_CALLEE_READ_WRITE && cc_value_tracked(self) ? CC_DIRTY_KNOWN : CC_DIRTY_ALL);
    cc_vec_push(&rec->written, source);
    const CcCallSpec spec = {
        .form = CC_F_CALL, .target = c->func, .kwnames = c->kwnames, .in = in, .n = c->n, .name = callee->name};
    return cc_node_effect(rec, act, &spec, result);
}

static CcGo context_effect(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee, PyObject *result) {
    cc_value_written(rec, CC_SRC_CTXVAR, cc_value_const_source(rec, c->in[0]), NULL, false);
    const CcCallSpec spec = {.form = CC_F_CALL, .target = c->func, .in = c->in, .n = c->n, .name = callee->name};
    return cc_node_effect(rec, act, &spec, result);
}

static CcGo arith_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee, PyObject *result) {
    if (result == NULL || !cc_call_any_tensor(c, 2)) return CC_OK;
    const CcRecFrame *f = cc_rec_frame(rec, act);
    if (rec->trace->graph->node.n != f->call_nodes) return CC_OK;
    if (!cc_tens_any(result)) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, callee->name);
    for (int i = 0; i < c->n; i++)
        if (!cc_node_nameable(rec, c->in[i], 3)) return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callee->name);
    CcBound bound;
    const CcCallSpec spec = {
        .form = CC_F_CALL,
        .target = c->func,
        .kwnames = c->kwnames,
        .in = c->in,
        .n = c->n,
        .name = callee->name,
        .bound = cc_bind_call(c->func, c->in, cc_call_positional(c), c->kwnames, &bound) == 0 ? &bound : NULL};
    return cc_node_add(rec, act, &spec, result);
}

static CcGo size_guard(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    if (has(callee, CC_TRAIT_ASKS_LEN) && c->n == 1) cc_attr_dunder(rec, c->in[0], "__len__");
    if (has(callee, CC_TRAIT_ASKS_ITER) && c->n == 1) cc_attr_dunder(rec, c->in[0], "__iter__");
    return CC_OK;
}

/* ABCMeta.register changes what isinstance says; CPython counts all registrations in one number. */
static void guard_registrations(CcRec *rec) { cc_value_ask_module(rec, "_abc", "get_cache_token"); }

/* getattr(o, name, default) gave the default because there is no such attribute. One that is the default itself matters
 * only where C code holds it: all other lookups are followed anew. */
static bool is_default(const CcCalled *c, PyObject *result) {
    if (c->n < 3 || result != c->in[2]) return false;
    PyObject *d = PyUnicode_Check(c->in[1]) ? cc_type_lookup(Py_TYPE(c->in[0]), c->in[1]) : NULL;
    if (d == NULL || (!Py_IS_TYPE(d, &PyMemberDescr_Type) && !Py_IS_TYPE(d, &PyGetSetDescr_Type))) return true;
    PyObject *v = Py_TYPE(d)->tp_descr_get(d, c->in[0], (PyObject *)Py_TYPE(c->in[0]));
    if (v == NULL) PyErr_Clear();
    Py_XDECREF(v);
    return v == NULL;
}

static CcGo call_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee, PyObject *result) {
    cc_number_hashed(rec, result);
    if (c->n > 0) cc_number_hashed(rec, c->in[0]);
    CcGo go = CC_OK;
    switch (callee->kind) {
    case CC_CALLEE_GETATTR:
    case CC_CALLEE_HASATTR:
        if (c->n < 2) return CC_OK;
        go = cc_attr_after(rec, act, c->in[0], c->in[1],
                           callee->kind == CC_CALLEE_HASATTR || is_default(c, result) ? NULL : result);
        break;
    case CC_CALLEE_VARS: go = cc_attr_after(rec, act, c->in[0], dict_name(), result); break;
    case CC_CALLEE_DESCR_GET: go = cc_attr_after(rec, act, c->in[1], read_by(c), result); break;
    case CC_CALLEE_OBJ_GETATTR:
        if (c->n < 2) return CC_OK;
        go = cc_attr_generic_after(rec, act, c->in[0], c->in[1], result);
        break;
    case CC_CALLEE_SETATTR:
        if (result != NULL) go = cc_attr_store(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL);
        break;
    case CC_CALLEE_OBJ_SETATTR:
        if (result != NULL) go = cc_attr_generic_store(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL);
        break;
    case CC_CALLEE_ABC: guard_registrations(rec); break;
    case CC_CALLEE_SUPER:
        if (c->n == 0) cc_name_super(rec, act);
        break;
    case CC_CALLEE_STATE: cc_value_read(rec, CC_SRC_ASK, -1, c->func, 0, 0, result); break;
    case CC_CALLEE_GROUP:
        if (result != NULL) cc_backcall_made(rec, result);
        break;
    case CC_CALLEE_WRITE:
    case CC_CALLEE_READ_WRITE:
        if (result != NULL) go = write_effect(rec, act, c, callee, result);
        else if ((has(callee, CC_TRAIT_TAKES_ITEMS) || has(callee, CC_TRAIT_ORDERS)) && c->n > 0 &&
                 cc_value_source(rec, c->in[0]) >= 0)
            /* it may have written before it raised */
            go = cc_rec_poison(rec, act, CC_R_OUTSIDE_ITER, callee->name);
        break;
    case CC_CALLEE_CTX_GET:
        cc_value_read(rec, CC_SRC_CTXVAR, cc_value_const_source(rec, c->in[0]), NULL, 0, 0, result);
        break;
    case CC_CALLEE_CTX_SET:
        if (result != NULL) go = context_effect(rec, act, c, callee, result);
        break;
    case CC_CALLEE_SETITEM:
    case CC_CALLEE_GETITEM: go = item_after(rec, act, c, result); break;
    case CC_CALLEE_ARITH: go = arith_after(rec, act, c, callee, result); break;
    case CC_CALLEE_NEXT: {
        CcEvent ev = {.kind = CC_EV_NEXT, .in = c->in, .n = 1, .result = result};
        go = cc_op_after(rec, act, &ev);
        break;
    }
    default: go = size_guard(rec, c, callee); break;
    }
    if (go == CC_OK && result != NULL && cc_value_wraps(result)) cc_value_fresh(rec, result);
    if (go != CC_OK || result == NULL || PyExceptionInstance_Check(result) ||
        cc_value_origin(rec, result) != CC_O_UNKNOWN)
        return go;
    cc_same_hashed(rec, result);
    if (callee->kind == CC_CALLEE_READ && c->n > 0) cc_value_pairs(rec, result, c->in[0]);
    if ((PyAnySet_Check(result) || has(callee, CC_TRAIT_MAKES_SET)) && !cc_value_membership(rec, result, NULL))
        return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, callee->name);
    if (Py_REFCNT(result) == 1 || a_pair(c, result) || callee->kind == CC_CALLEE_NEW ||
        callee->kind == CC_CALLEE_ITER || callee->kind == CC_CALLEE_READ || callee->kind == CC_CALLEE_SUPER) {
        cc_value_fresh(rec, result);
        return CC_OK;
    }
    return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callee->name);
}

static bool writes(CcCalleeKind k) {
    return k == CC_CALLEE_WRITE || k == CC_CALLEE_READ_WRITE || k == CC_CALLEE_SETATTR || k == CC_CALLEE_OBJ_SETATTR ||
           k == CC_CALLEE_CTX_SET || k == CC_CALLEE_INIT;
}

CcGo cc_row_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee, PyObject *result) {
    const CcGo go = call_after(rec, act, c, callee, result);
    rec->stores += writes(callee->kind);
    return go;
}

/* Calls that give C code other C code to call: map(torch.sin, xs), sorted(rows, key=len). It gets Python functions
 * instead, whose calls are seen. CC_OK: there is nothing of the kind. */
static CcGo call_back(CcRec *rec, CcAct *act, CcEvent *ev, CcCalled *c, const CcCallee *callee) {
    int at[MAX_CALLBACKS], wraps = 0;
    const int n = callbacks(c, callee, at);
    for (int i = 0; i < n; i++) wraps += cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_WRAP;
    /* it adds, unseen */
    const bool adds = has(callee, CC_TRAIT_ADDS) && n == 0 && cc_call_positional(c) == 1 && c->kwnames == NULL;
    if (wraps == 0 && !adds) return CC_OK;
    for (int i = 0; i < n; i++)
        if (cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_WRAP &&
            (c->in[at[i]] = cc_backcall_wrap(rec, c->in[at[i]])) == NULL)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    if (adds) c->in[c->n++] = cc_backcall_add(rec);
    const CcGo go = row_before(rec, act, c, callee);
    if (go != CC_OK) return go;
    /* a recording that is given up drops what it keeps */
    for (int i = 0; i < c->n; i++) Py_INCREF(c->in[i]);
    PyObject *kwnames = Py_XNewRef(c->kwnames);
    ev->result = PyObject_Vectorcall(c->func, c->in, (size_t)cc_call_positional(c), kwnames);
    if (rec->trace != NULL && ev->result != NULL) (void)cc_row_after(rec, act, c, callee, ev->result);
    for (int i = 0; i < c->n; i++) Py_DECREF(c->in[i]);
    Py_XDECREF(kwnames);
    return CC_DONE;
}

CcGo cc_row_reads(CcRec *rec, CcAct *act, const CcCalled *c) {
    const CcCallee callee = cc_callee_find(c->func);
    cc_given_call(rec, c, &callee);
    if (!state_known(rec, c, &callee)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee.name);
    CcGo go = operands_before(rec, act, c, &callee);
    if (go == CC_OK) go = contents_before(rec, act, c, &callee);
    if (go == CC_OK) hashed(rec, c, &callee);
    return go;
}

/* Called with fewer operands than it takes: C code raises. */
static bool too_few(const CcCalled *c, const CcCallee *callee) {
    switch (callee->kind) {
    case CC_CALLEE_SETITEM: return c->n < 3;
    case CC_CALLEE_DESCR_GET:
    case CC_CALLEE_DICT_GET:
    case CC_CALLEE_GETITEM:
    case CC_CALLEE_REDUCE: return c->n < 2;
    case CC_CALLEE_CTX_GET:
    case CC_CALLEE_CTX_SET:
    case CC_CALLEE_NEXT:
    case CC_CALLEE_READ_WRITE:
    case CC_CALLEE_SUM:
    case CC_CALLEE_WRITE: return c->n < 1;
    default: return has(callee, CC_TRAIT_FIELDS) && c->n < 1;
    }
}

CcGo cc_row_before(CcRec *rec, CcAct *act, CcEvent *ev, CcCalled *c, const CcCallee *callee) {
    if (too_few(c, callee)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    if (has(callee, CC_TRAIT_TAKES_ITEMS) && c->n > 0) cc_row_will_take(rec, act, c->in[0]);
    cc_given_call(rec, c, callee);
    if (!state_known(rec, c, callee)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    CcGo go = call_back(rec, act, ev, c, callee);
    if (go == CC_OK) go = symbols_before(rec, act, ev, c, callee);
    if (go == CC_OK) go = row_before(rec, act, c, callee);
    if (go != CC_OK) return go;
    hashed(rec, c, callee);
    if (callee->kind == CC_CALLEE_PICKLE) return cc_opaque_reduce(rec, act, ev, c->in, c->n);
    if (has(callee, CC_TRAIT_EQUALS)) return cc_backcall_remove(rec, act, ev, c->in, c->n);
    return callee->kind == CC_CALLEE_SUM      ? cc_backcall_sum(rec, act, ev, c->in, c->n)
           : callee->kind == CC_CALLEE_REDUCE ? cc_backcall_reduce(rec, act, ev, c->in, c->n)
                                              : CC_OK;
}
