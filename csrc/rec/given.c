/* Special methods that C code looks up in the classes of its operands.
 *
 *   list(o)   bool(o)   f"{o}"   sorted(os)   o in d   isinstance(o, C)
 *
 * C code looks __iter__, __len__, __eq__ ... up in the class, unseen, and behaves differently if they are absent. So
 * when C code gets an instance of a Python class, one check guards all of them (guard/special.def), which memos reduce
 * to the class's version. If one of them is a method in C (pybind11, Cython), the event is a break. For isinstance() and
 * its kin, guards cover the bases. */
#include "rec_events.h"

enum { DEEP = 3 };

/* A special method in C: no frame shows what it reads. Methods of builtin types are known, and what is in their objects
 * is guarded. */
static bool runs_unseen(PyObject *d) {
    PyTypeObject *const known[] = {&PyFunction_Type,         &PyWrapperDescr_Type, &PyMethodDescr_Type,
                                   &PyClassMethodDescr_Type, &PyGetSetDescr_Type,  &PyMemberDescr_Type,
                                   &PyStaticMethod_Type,     &PyClassMethod_Type,  &PyProperty_Type};
    const PyTypeObject *t = Py_TYPE(d);
    bool is_known = t->tp_descr_get == NULL || cc_python_class(t);
    for (int i = 0; i < CC_COUNT(known); i++) is_known |= t == known[i];
    return !is_known;
}

/* C code that asks for a length as a hint takes a TypeError for "unknown": no frame starts if the arguments do not bind,
 * and nobody sees the error. */
static void guard_lengths(CcRec *rec, PyTypeObject *type) {
    static const char *const name[] = {"__len__", "__length_hint__"};
    for (int i = 0; i < CC_COUNT(name); i++) {
        PyObject *key = cc_obj_intern(name[i]), *method = key != NULL ? cc_type_lookup(type, key) : NULL;
        Py_XDECREF(key);
        if (method != NULL && PyFunction_Check(method)) cc_rec_guard_function(rec, (PyFunctionObject *)method);
    }
}

static void guard_class(CcRec *rec, PyTypeObject *type) {
    if (!cc_mutable_class(type)) return;
    CcGuards *gs = &rec->trace->guards;
    bool is_new, unseen = false;
    const int parent = cc_value_const_source(rec, (PyObject *)type);
    const int id = cc_guard_source(gs, CC_SRC_CLASS, parent, NULL, 0, 0, &is_new);
    if (!is_new) return;
    PyObject *all;
    CC_RETRY_ALLOC(all, cc_special_of(type));
    cc_guard_check(gs, id, CC_CHK_SPECIALS, all);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); i++) unseen |= runs_unseen(PyTuple_GET_ITEM(all, i));
    if (unseen) cc_vec_push(&rec->unseen_classes, type);
    Py_DECREF(all);
    guard_lengths(rec, type);
}

/* Enums of pybind11 are known by identity. */
static void look_for_unseen(CcRec *rec, PyObject *o) {
    for (int i = 0; i < rec->unseen_classes.n; i++)
        if (rec->unseen_classes.at[i] == Py_TYPE(o) && !cc_value_ident(o)) rec->opaque = Py_TYPE(o)->tp_name;
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

/* Builtin iterators and views, and sets: their content is whatever tp_traverse visits. */
static bool holds_unseen(PyObject *o) {
    return PyAnySet_Check(o) || cc_known_is(o, CC_KNOWN_DEQUE) || cc_inside_passes_on(o);
}

void cc_given(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL || cc_value_const(o) || cc_tens_is(o) || cc_plain(rec, o)) return;
    guard_class(rec, Py_TYPE(o));
    look_for_unseen(rec, o);
    if (depth == 0) return;
    Inside in = {rec, depth - 1};
    if (holds_unseen(o) && Py_TYPE(o)->tp_traverse != NULL) (void)Py_TYPE(o)->tp_traverse(o, visit_inside, &in);
    else (void)cc_number_any(rec, o, given_visit, rec, depth - 1);
}

/* ------------------------------------------------------------------ text */

static void read_fact(CcRec *rec, PyObject *o, PyTypeObject *described, const char *text) {
    PyObject *v = PyObject_GetAttrString(o, text);
    const int source = cc_value_source(rec, o);
    cc_raised_clear();
    if (v != NULL) cc_vec_push(&rec->keep, v);
    if (source >= 0) cc_value_read_member(rec, source, described, text, v);
}

static void read_factory(CcRec *rec, PyObject *o) {
    if (cc_known_is(o, CC_KNOWN_DEFAULTDICT)) read_fact(rec, o, Py_TYPE(o), "default_factory");
}

/* The default text of a class, its instances, and functions contains their names; a defaultdict's names its factory. */
static bool text_visit(void *ctx, PyObject *o, int depth) {
    static const char *const names[] = {"__name__", "__qualname__", "__module__"};
    CcRec *rec = ctx;
    if (o == NULL || cc_tens_is(o)) return false;
    PyObject *type = PyType_Check(o) ? o : (PyObject *)Py_TYPE(o);
    const reprfunc repr = Py_TYPE(o)->tp_repr;
    const bool named = repr == PyBaseObject_Type.tp_repr || repr == PyType_Type.tp_repr || PyExceptionInstance_Check(o);
    for (int i = 0; named && cc_python_class((PyTypeObject *)type) && i < CC_COUNT(names); i++)
        read_fact(rec, type, &PyType_Type, names[i]);
    if (PyFunction_Check(o)) read_fact(rec, o, &PyFunction_Type, "__qualname__");
    read_factory(rec, o);
    return depth > 0 && cc_number_any(rec, o, text_visit, rec, depth - 1);
}

/* ------------------------------------------------------------------ steps of the interpreter */

/* C code looks special methods up in a tensor's class, too, which can be patched. Operators have guards by name
 * (look_at_operators in ev_op.c). */
static void given_or_tensor(CcRec *rec, PyObject *o, int depth) {
    if (o != NULL && cc_tens_is(o)) guard_class(rec, Py_TYPE(o));
    else cc_given(rec, o, depth);
}

/* Items of a container were handled when they were put there, or no guard can check them. */
static void given_key(CcRec *rec, PyObject *container, PyObject *key) {
    cc_given(rec, key, DEEP);
    given_or_tensor(rec, container, 0);
    if (PyType_Check(container)) guard_class(rec, (PyTypeObject *)container); /* __class_getitem__ */
}

void cc_given_event(CcRec *rec, const CcEvent *ev) {
    int depth = 0;
    switch (ev->kind) {
    case CC_EV_SUBSCR:
    case CC_EV_STORE_SUBSCR: given_key(rec, ev->in[0], ev->in[1]); return;
    case CC_EV_CONTAINS:
        given_or_tensor(rec, ev->in[0], 0);
        if (cc_value_const(ev->in[1]) && (PyDict_Check(ev->in[0]) || PyAnySet_Check(ev->in[0]))) break;
        depth = DEEP;
        break;
    case CC_EV_BINOP: depth = ev->arg == CC_NB_REMAINDER ? DEEP : 0; break;
    case CC_EV_COMPARE:
    case CC_EV_FORMAT:
    case CC_EV_BUILD: depth = DEEP; break;
    case CC_EV_UPDATE: /* hashes an item, or unpacks a mapping; appending an item looks nothing up */
        if (ev->arg != CC_INSN_LIST_APPEND) given_or_tensor(rec, ev->in[1], DEEP);
        return;
    case CC_EV_TRUTH:
    case CC_EV_ITER:
    case CC_EV_TUPLE:
    case CC_EV_UNPACK: given_or_tensor(rec, ev->in[0], 0); return;
    case CC_EV_UNARY:
    case CC_EV_NEXT:
    case CC_EV_SEND:
    case CC_EV_MATCH: break;
    default: return;
    }
    const bool text = ev->kind == CC_EV_FORMAT || (ev->kind == CC_EV_BINOP && depth > 0);
    for (int i = 0; i < ev->n; i++) cc_given(rec, ev->in[i], depth);
    for (int i = 0; ev->kind == CC_EV_BINOP && i < ev->n; i++) read_factory(rec, ev->in[i]); /* d | other */
    for (int i = 0; text && i < ev->n; i++) (void)text_visit(rec, ev->in[i], DEEP);
}

/* ------------------------------------------------------------------ results that Python code returns to C code */

typedef struct Looks {
    CcLooks most;
    int levels;
} Looks;

/* filter(), groupby() and their kin read the items they pass on. */
static int looks_on_the_way(PyObject *o, void *arg) {
    Looks *l = arg;
    if (!PyTuple_Check(o) && !cc_inside_passes_on(o)) return 0;
    const CcLooks own = Py_IS_TYPE(o, &PyCallIter_Type) ? CC_LOOKS_ALL : cc_args_looks((PyObject *)Py_TYPE(o));
    if (!PyTuple_Check(o)) l->most = CC_MAX(l->most, own);
    if (--l->levels >= 0 && Py_TYPE(o)->tp_traverse != NULL) (void)Py_TYPE(o)->tp_traverse(o, looks_on_the_way, l);
    l->levels++;
    return 0;
}

/* f"{o}" gives what o.__format__, or __str__ without a format, has returned; it looks into what items of o return. */
static CcLooks looks_format(const CcAct *act, const CcEvent *ev) {
    const bool own = act->co->co_argcount > 0 && cc_act_get(act, 0) == ev->in[0];
    const bool plain = ev->n < 2 || ev->in[1] == NULL || PyUnicode_GET_LENGTH(ev->in[1]) == 0;
    return own && (plain || cc_text_is(act->co->co_name, "__format__")) ? CC_LOOKS_NOT : CC_LOOKS_ALL;
}

/* What the C code that called this frame reads of its result: __len__, a key function of sorted(), a generator under
 * max(). */
static CcLooks looked_at(const CcAct *act, const CcEvent *ev) {
    static const char *const converted[] = {"__len__",   "__bool__",        "__hash__",     "__index__", "__int__",
                                            "__float__", "__length_hint__", "__contains__", "__eq__"};
    for (int i = 0; i < CC_COUNT(converted); i++)
        if (cc_text_is(act->co->co_name, converted[i])) return CC_LOOKS_TRUTH;
    if (cc_op_formats(ev)) return CC_LOOKS_ALL;
    Looks looks = {CC_LOOKS_NOT, 8};
    switch (ev->kind) {
    case CC_EV_CALL:
    case CC_EV_CALL_EX:
        if (cc_call_function(ev->in[0]) != NULL) return CC_LOOKS_NOT;
        looks.most = cc_args_looks(ev->in[0]);
        break;
    case CC_EV_UPDATE:
        if (ev->arg == CC_INSN_SET_UPDATE) return CC_LOOKS_ALL; /* {*generator} */
        break;
    case CC_EV_CONTAINS:
    case CC_EV_TRUTH: return CC_LOOKS_TRUTH;
    case CC_EV_FORMAT: return looks_format(act, ev);
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
    case CC_EV_BINOP:
        if (cc_op_formats(ev)) break;
        return;
    default: return;
    }
    cc_given(rec, value, DEEP);
}

/* How many levels of the value it reads. */
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
    return cc_rec_poison(rec, to, CC_R_UNKNOWN_VALUE, cc_type_name(value));
}

/* ------------------------------------------------------------------ calls of C code */

static bool has(const CcCallee *callee, CcTrait trait) { return cc_callee_has(callee, trait); }

/* How many levels of an operand such a callable reads; -1: it does not read the operand. */
static int looks(const CcCallee *callee, int operand) {
    if (has(callee, CC_TRAIT_ASKS) || has(callee, CC_TRAIT_ASKS_LEN) || has(callee, CC_TRAIT_ASKS_ITER)) return 0;
    if (has(callee, CC_TRAIT_ORDERS) || has(callee, CC_TRAIT_EQUALS)) return DEEP;
    const bool by_key = has(callee, CC_TRAIT_HASHES), changes = has(callee, CC_TRAIT_CHANGES);
    if (changes && !by_key && !has(callee, CC_TRAIT_READS_SELF) && !has(callee, CC_TRAIT_TAKES_ITEMS)) return -1;
    return operand == 0 && (by_key || changes) ? 0 : DEEP;
}

void cc_given_call(CcRec *rec, const CcCalled *c, const CcCallee *callee) {
    for (int i = 0; callee->reads == CC_READS_ALL && i < c->n; i++) {
        const int depth = looks(callee, i);
        if (depth >= 0) given_or_tensor(rec, c->in[i], depth);
        if (has(callee, CC_TRAIT_AS_TEXT)) (void)text_visit(rec, c->in[i], DEEP);
    }
}

/* torch's functions get the objects themselves in each replay. */
void cc_given_arguments(CcRec *rec, const CcCalled *c) {
    for (int i = 0; i < c->n; i++) cc_given(rec, c->in[i], DEEP);
    rec->opaque = NULL;
}

void cc_given_entered(CcRec *rec, const CcAct *act) {
    PyObject *self = act->co->co_argcount > 0 ? cc_act_get(act, 0) : NULL;
    if (self == NULL || cc_tens_is(self) || !cc_special_listed(act->co->co_name)) return;
    if (cc_type_lookup(Py_TYPE(self), act->co->co_name) == (PyObject *)act->func) guard_class(rec, Py_TYPE(self));
}

/* ------------------------------------------------------------------ classes */

/* o: an object, a class, or (nested) tuples of classes. A class with another metaclass may define the check itself. */
bool cc_given_class(CcRec *rec, PyObject *o, int depth) {
    if (cc_tens_is(o)) return true;
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
        cc_raised_clear();
        Py_XDECREF(args);
        return true;
    }
    PyTypeObject *type = PyType_Check(o) ? (PyTypeObject *)o : Py_TYPE(o);
    cc_attr_class_of(rec, o);
    if (cc_mutable_class(type)) cc_attr_mro(rec, (PyObject *)type);
    if (!PyType_Check(o) || !cc_mutable_class(Py_TYPE(o))) return true;
    guard_class(rec, Py_TYPE(o));
    guard_class(rec, type); /* __subclasshook__ */
    return true;
}
