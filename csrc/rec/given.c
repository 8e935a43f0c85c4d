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
    PyObject *all = cc_special_of(type);
    if (all == NULL) abort();
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
    if (o == NULL || cc_tens_any(o)) return;
    guard_class(rec, Py_TYPE(o));
    if (PyMethod_Check(o)) o = PyMethod_GET_SELF(o);
    if (depth == 0) return;
    Inside in = {rec, depth - 1};
    if (holds_unseen(o) && Py_TYPE(o)->tp_traverse != NULL) (void)Py_TYPE(o)->tp_traverse(o, visit_inside, &in);
    else (void)cc_number_any(o, given_visit, rec, depth - 1);
}

/* ------------------------------------------------------------------ steps of the interpreter */

/* A key is hashed, and compared with others of the same hash where it may be equal to one that is no constant. */
static void given_key(CcRec *rec, PyObject *container, PyObject *key) {
    cc_given(rec, key, DEEP);
    cc_given(rec, container, key == NULL || cc_value_const(key) ? 0 : 1);
    if (PyType_Check(container)) guard_class(rec, (PyTypeObject *)container); /* __class_getitem__ */
}

static void given_update(CcRec *rec, const CcEvent *ev) {
    const bool hashes = ev->arg == CC_OP_SET_ADD || ev->arg == CC_OP_MAP_ADD || ev->arg == CC_OP_SET_UPDATE;
    cc_given(rec, ev->in[1], hashes ? DEEP : 0);
    if (hashes && !cc_value_const(ev->in[1])) cc_given(rec, ev->in[0], 1);
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
    case CC_EV_UPDATE: given_update(rec, ev); return;
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
    for (int i = 0; i < ev->n; i++) cc_given(rec, ev->in[i], depth);
}

/* ------------------------------------------------------------------ calls of C code */

static bool has(const CcCallee *callee, CcTrait trait) { return callee->traits >> trait & 1; }

/* How far into its operands such a callable looks for objects that it asks. */
static int looks(const CcCallee *callee, const CcCalled *c) {
    if (callee->kind == CC_CALLEE_ASK || has(callee, CC_TRAIT_ASKS_LEN) || has(callee, CC_TRAIT_ASKS_ITER)) return 0;
    const bool by_key = has(callee, CC_TRAIT_HASHES) || callee->kind == CC_CALLEE_DICT_GET;
    return by_key && c->n > 1 && cc_value_const(c->in[1]) ? 0 : DEEP;
}

void cc_given_call(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    if (callee->reads != CC_READS_ALL) return;
    const int depth = looks(callee, c);
    for (int i = 0; i < c->n; i++) cc_given(rec, c->in[i], depth);
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
        bool known = cc_value_content(rec, o, 1);
        for (Py_ssize_t i = 0; known && depth > 0 && i < PyTuple_GET_SIZE(o); i++)
            known = cc_given_class(rec, PyTuple_GET_ITEM(o, i), depth - 1);
        return known;
    }
    PyTypeObject *type = PyType_Check(o) ? (PyTypeObject *)o : Py_TYPE(o);
    if (cc_python_class(type)) cc_attr_mro(rec, (PyObject *)type);
    if (!PyType_Check(o) || !cc_python_class(Py_TYPE(o))) return true;
    guard_class(rec, Py_TYPE(o));
    guard_class(rec, type); /* __subclasshook__ */
    return true;
}
