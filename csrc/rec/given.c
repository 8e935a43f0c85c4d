/* What C code asks of the classes of what it is given.
 *
 *   list(o)   bool(o)   f"{o}"   sorted(os)   o in d   isinstance(o, C)
 *
 * C code finds __iter__, __len__, __eq__ ... on the class, unseen, and does something else where they are absent. So an
 * object of a Python class that is given to C code guards all of them at once (guard/special.def), which a memo knows by
 * the class's version. What isinstance() and its kin look at is the bases. */
#include "rec_int.h"

enum { DEEP = 3 };

static void guard_class(CcRec *rec, PyTypeObject *type) {
    if (!cc_python_class(type)) return;
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    const int parent = cc_value_const_source(rec, (PyObject *)type);
    const int id = cc_guard_source(gs, CC_SRC_CLASS, parent, NULL, 0, 0, &is_new);
    if (!is_new) return;
    PyObject *all;
    CC_SURE(all, cc_special_of(type));
    cc_guard_check(gs, id, CC_CHK_SPECIALS, all);
    Py_DECREF(all);
}

static bool given_visit(void *rec, PyObject *o, int depth) {
    cc_given(rec, o, depth);
    return false;
}

typedef struct Inside {
    CcRec *rec;
    int depth;
} Inside;

static int visit_inside(PyObject *o, void *arg) {
    const Inside *in = arg;
    cc_given(in->rec, o, in->depth);
    return 0;
}

/* C's own iterators and views, sets: what the garbage collector finds in them. */
static bool holds_unseen(PyObject *o) {
    return PyAnySet_Check(o) || cc_value_view(o) != NULL || cc_value_deque(o) ||
           (PyIter_Check(o) && !PyGen_Check(o) && !cc_python_class(Py_TYPE(o)));
}

void cc_given(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL || cc_value_const(o) || cc_tens_any(o)) return;
    guard_class(rec, Py_TYPE(o));
    if (depth == 0) return;
    Inside in = {rec, depth - 1};
    if (holds_unseen(o) && Py_TYPE(o)->tp_traverse != NULL) (void)Py_TYPE(o)->tp_traverse(o, visit_inside, &in);
    else (void)cc_number_any(o, given_visit, rec, depth - 1);
}

/* ------------------------------------------------------------------ text */

static void read_fact(CcRec *rec, PyObject *o, PyTypeObject *described, const char *text) {
    PyObject *name = cc_obj_name(text), *v = name != NULL ? PyObject_GetAttr(o, name) : NULL;
    const int source = cc_value_source(rec, o);
    PyErr_Clear();
    if (v != NULL) cc_vec_push(&rec->keep, v);
    if (source >= 0) cc_value_read(rec, CC_SRC_MEMBER, source, cc_type_lookup(described, name), 0, 0, v);
    Py_DECREF(name);
}

/* C's text of a class, of its objects and of functions has their names in it. */
static bool text_visit(void *ctx, PyObject *o, int depth) {
    static const char *const names[] = {"__name__", "__qualname__", "__module__"};
    CcRec *rec = ctx;
    if (o == NULL || cc_tens_any(o)) return false;
    PyObject *type = PyType_Check(o) ? o : (PyObject *)Py_TYPE(o);
    const reprfunc repr = Py_TYPE(o)->tp_repr;
    const bool named = repr == PyBaseObject_Type.tp_repr || repr == PyType_Type.tp_repr || PyExceptionInstance_Check(o);
    for (int i = 0; named && cc_python_class((PyTypeObject *)type) && i < CC_COUNT(names); i++)
        read_fact(rec, type, &PyType_Type, names[i]);
    if (PyFunction_Check(o)) read_fact(rec, o, &PyFunction_Type, "__qualname__");
    return depth > 0 && cc_number_any(o, text_visit, rec, depth - 1);
}

/* ------------------------------------------------------------------ steps of the interpreter */

/* What a container holds was given when it was put there, or no guard can tell it. */
static void given_key(CcRec *rec, PyObject *container, PyObject *key) {
    cc_given(rec, key, DEEP);
    cc_given(rec, container, 0);
    if (PyType_Check(container)) guard_class(rec, (PyTypeObject *)container); /* __class_getitem__ */
}

void cc_given_event(CcRec *rec, const CcEvent *ev) {
    int depth = 0;
    switch (ev->kind) {
    case CC_EV_SUBSCR:
    case CC_EV_STORE_SUBSCR: given_key(rec, ev->in[0], ev->in[1]); return;
    case CC_EV_CONTAINS:
        if (cc_value_const(ev->in[1]) && (PyDict_Check(ev->in[0]) || PyAnySet_Check(ev->in[0]))) break;
        depth = DEEP;
        break;
    case CC_EV_BINOP: depth = ev->arg == CC_NB_REMAINDER ? DEEP : 0; break;
    case CC_EV_COMPARE:
    case CC_EV_FORMAT:
    case CC_EV_BUILD: depth = DEEP; break;
    case CC_EV_UPDATE: /* an item is hashed, or a mapping taken apart; where it is only appended nothing is asked */
        if (ev->arg != CC_OP_LIST_APPEND) cc_given(rec, ev->in[1], DEEP);
        return;
    case CC_EV_UNARY:
    case CC_EV_TRUTH:
    case CC_EV_ITER:
    case CC_EV_TUPLE:
    case CC_EV_NEXT:
    case CC_EV_SEND:
    case CC_EV_UNPACK:
    case CC_EV_MATCH: break;
    default: return;
    }
    const bool text = ev->kind == CC_EV_FORMAT || (ev->kind == CC_EV_BINOP && depth > 0);
    for (int i = 0; i < ev->n; i++) cc_given(rec, ev->in[i], depth);
    for (int i = 0; text && i < ev->n; i++) (void)text_visit(rec, ev->in[i], DEEP);
}

/* ------------------------------------------------------------------ what Python code gives back to C code */

typedef struct Looks {
    CcLooks most;
    int levels;
} Looks;

/* filter(), groupby() and their kin look at what they pass on. */
static int looks_on_the_way(PyObject *o, void *arg) {
    Looks *l = arg;
    if (!PyTuple_Check(o) && !cc_inside_passes_on(o)) return 0;
    const CcLooks own = Py_IS_TYPE(o, &PyCallIter_Type) ? CC_LOOKS_ALL : cc_row_looks((PyObject *)Py_TYPE(o));
    if (!PyTuple_Check(o)) l->most = CC_MAX(l->most, own);
    if (--l->levels >= 0 && Py_TYPE(o)->tp_traverse != NULL) (void)Py_TYPE(o)->tp_traverse(o, looks_on_the_way, l);
    l->levels++;
    return 0;
}

/* C code called this frame, and looks at what it gives: __len__, a key function of sorted(), a generator that max()
 * reads. */
static CcLooks looked_at(const CcAct *act, const CcEvent *ev) {
    static const char *const converted[] = {"__len__",   "__bool__",        "__hash__",     "__index__", "__int__",
                                            "__float__", "__length_hint__", "__contains__", "__eq__"};
    for (int i = 0; i < CC_COUNT(converted); i++)
        if (cc_text_is(act->co->co_name, converted[i])) return CC_LOOKS_TRUTH;
    Looks looks = {CC_LOOKS_NOT, 8};
    switch (ev->kind) {
    case CC_EV_CALL:
    case CC_EV_CALL_EX:
        if (cc_call_function(ev->in[0]) != NULL) return CC_LOOKS_NOT;
        looks.most = cc_row_looks(ev->in[0]);
        break;
    case CC_EV_UPDATE:
        if (ev->arg == CC_OP_SET_UPDATE) return CC_LOOKS_ALL; /* {*generator} */
        break;
    case CC_EV_CONTAINS:
    case CC_EV_TRUTH: return CC_LOOKS_TRUTH;
    case CC_EV_TUPLE:
    case CC_EV_UNPACK:
    case CC_EV_NEXT: break;
    default: return CC_LOOKS_NOT;
    }
    for (int i = 0; i < ev->n; i++)
        if (ev->in[i] != NULL) (void)looks_on_the_way(ev->in[i], &looks);
    return looks.most;
}

static void given_to(CcRec *rec, const CcEvent *ev, PyObject *value) {
    switch (ev->kind) {
    case CC_EV_CALL:
    case CC_EV_CALL_EX:
    case CC_EV_UPDATE:
    case CC_EV_CONTAINS: break;
    case CC_EV_ITER:
    case CC_EV_NEXT:
    case CC_EV_SEND:
        if (PyGen_Check(ev->in[0])) return;
        break;
    default: return;
    }
    cc_given(rec, value, DEEP);
}

/* How deep it looks into the value. */
static int depth_of(CcLooks looks) { return looks == CC_LOOKS_ALL ? 4 : looks >= CC_LOOKS_ITEMS ? 1 : 0; }

CcGo cc_given_back(CcRec *rec, CcAct *to, const CcAct *act, PyObject *value) {
    const CcLooks looks = looked_at(act, to->event);
    given_to(rec, to->event, value);
    const bool pair = looks == CC_LOOKS_KEYS && PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2;
    const bool decided = looks == CC_LOOKS_TRUTH ? cc_number_truth(rec, value)
                         : looks == CC_LOOKS_NOT || looks == CC_LOOKS_ITEMS
                             ? true
                             : cc_number_settle(rec, pair ? PyTuple_GET_ITEM(value, 0) : value, 3);
    if (!decided) return cc_rec_poison(rec, to, CC_R_DATA_SCALAR, "C code in between");
    if (depth_of(looks) == 0 || cc_value_const(value) || cc_value_ident(value)) return CC_OK;
    if (cc_value_dirty(rec, value) == CC_DIRTY_NO && cc_inside_guard(rec, value, depth_of(looks))) return CC_OK;
    return cc_rec_poison(rec, to, CC_R_UNKNOWN_VALUE, Py_TYPE(value)->tp_name);
}

/* ------------------------------------------------------------------ calls of C code */

static bool has(const CcCallee *callee, CcTrait trait) { return callee->traits >> trait & 1; }

/* How far into an operand such a callable looks for objects that it asks; -1: it does not look at it. */
static int looks(const CcCallee *callee, int operand) {
    if (callee->kind == CC_CALLEE_ASK || has(callee, CC_TRAIT_ASKS_LEN) || has(callee, CC_TRAIT_ASKS_ITER)) return 0;
    if (has(callee, CC_TRAIT_ORDERS) || has(callee, CC_TRAIT_EQUALS)) return DEEP;
    const bool by_key = has(callee, CC_TRAIT_HASHES) || callee->kind == CC_CALLEE_DICT_GET;
    if (callee->kind == CC_CALLEE_WRITE && !by_key && !has(callee, CC_TRAIT_TAKES_ITEMS)) return -1;
    const bool of_self = by_key || callee->kind == CC_CALLEE_WRITE || callee->kind == CC_CALLEE_READ_WRITE;
    return of_self && operand == 0 ? 0 : DEEP;
}

void cc_given_call(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    for (int i = 0; callee->reads == CC_READS_ALL && i < c->n; i++) {
        const int depth = looks(callee, i);
        if (depth >= 0) cc_given(rec, c->in[i], depth);
        if (has(callee, CC_TRAIT_AS_TEXT)) (void)text_visit(rec, c->in[i], DEEP);
    }
}

void cc_given_arguments(CcRec *rec, const CcCalled *c) {
    for (int i = 0; i < c->n; i++) cc_given(rec, c->in[i], DEEP);
}

void cc_given_entered(CcRec *rec, const CcAct *act) {
    PyObject *self = act->co->co_argcount > 0 ? cc_act_get(act, 0) : NULL;
    if (self == NULL || cc_tens_any(self) || !cc_special_is(act->co->co_name)) return;
    if (cc_type_lookup(Py_TYPE(self), act->co->co_name) == (PyObject *)act->func) guard_class(rec, Py_TYPE(self));
}

/* ------------------------------------------------------------------ which class it is */

/* An object, a class, or the tuples of classes that are asked for. A class of another metaclass answers itself. */
bool cc_given_class(CcRec *rec, PyObject *o, int depth) {
    if (cc_tens_any(o)) return true;
    if (PyTuple_Check(o)) {
        bool known = cc_inside_guard(rec, o, 1);
        for (Py_ssize_t i = 0; known && depth > 0 && i < PyTuple_GET_SIZE(o); i++)
            known = cc_given_class(rec, PyTuple_GET_ITEM(o, i), depth - 1);
        return known;
    }
    if (cc_value_annotation(o)) { /* int | C */
        PyObject *args = PyObject_GetAttrString(o, "__args__");
        for (Py_ssize_t i = 0; args != NULL && depth > 0 && i < PyTuple_GET_SIZE(args); i++)
            (void)cc_given_class(rec, PyTuple_GET_ITEM(args, i), depth - 1);
        PyErr_Clear();
        Py_XDECREF(args);
        return true;
    }
    PyTypeObject *type = PyType_Check(o) ? (PyTypeObject *)o : Py_TYPE(o);
    cc_attr_class_of(rec, o);
    if (cc_python_class(type)) cc_attr_mro(rec, (PyObject *)type);
    if (!PyType_Check(o) || !cc_python_class(Py_TYPE(o))) return true;
    guard_class(rec, Py_TYPE(o));
    guard_class(rec, type); /* __subclasshook__ */
    return true;
}
