/* Numbers and texts read from tensors, in containers and as keys. C code that compares, hashes or formats a container's
 * content depends on them: they become constants under guards, or the instruction is a break. */
#include "rec_events.h"

static bool settle_number(CcRec *rec, PyObject *o) {
    if (cc_sym_often_pinned(rec, o)) rec->differs = true; /* the event becomes a break */
    else cc_sym_pin(rec, o);
    if (!cc_value_symbolic(rec, o)) return true;
    if (cc_value_find(rec, o)->origin == CC_O_VALUE) return false;
    cc_value_pin(rec, o);
    return true;
}

/* Builtin iterators (zip, enumerate, chain ...) take their items from the objects that tp_traverse visits. */
typedef struct Inside {
    CcNumberVisit visit;
    void *ctx;
    int depth;
} Inside;

static int visit_inside(PyObject *o, void *arg) {
    const Inside *in = arg;
    const bool looks = cc_sym_varies(o) || PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o) || cc_tens_is(o) ||
                       PyIter_Check(o) || PyFunction_Check(o);
    return looks && in->visit(in->ctx, o, in->depth);
}

/* Its content is that of a dict. */
static bool views_dict(PyObject *o) { return cc_value_view(o) != NULL || Py_IS_TYPE(o, &PyDictProxy_Type); }

bool cc_number_any(CcRec *rec, PyObject *o, CcNumberVisit visit, void *ctx, int depth) {
    if (rec != NULL && cc_plain(rec, o)) return false;
    if (PyList_Check(o) || PyTuple_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (visit(ctx, PySequence_Fast_GET_ITEM(o, i), depth)) return true;
    } else if (PySlice_Check(o)) {
        const PySliceObject *s = (PySliceObject *)o;
        return visit(ctx, s->start, 0) || visit(ctx, s->stop, 0) || visit(ctx, s->step, 0);
    } else if (PyDict_Check(o)) {
        Py_ssize_t pos = 0;
        PyObject *key, *value;
        while (PyDict_Next(o, &pos, &key, &value))
            if (visit(ctx, key, CC_MAX(depth, 1)) || visit(ctx, value, depth)) return true;
    } else if (PyAnySet_Check(o)) {
        PyObject *member;
        for (Py_ssize_t place = 0; cc_set_next(o, &place, &member); place++)
            if (member != NULL && visit(ctx, member, depth)) return true;
    } else if (PyExceptionInstance_Check(o)) {
        return visit(ctx, ((PyBaseExceptionObject *)o)->args, depth);
    } else if (cc_known_is(o, CC_KNOWN_NAMESPACE)) {
        return visit(ctx, cc_obj_dict(o), depth);
    } else if (cc_known_is(o, CC_KNOWN_DEQUE) || cc_known_is(o, CC_KNOWN_PARTIAL) || views_dict(o)) {
        Inside in = {visit, ctx, depth + views_dict(o)};
        return Py_TYPE(o)->tp_traverse(o, visit_inside, &in) != 0;
    } else if (cc_inside_iterates(o) && Py_TYPE(o)->tp_traverse != NULL) {
        Inside in = {visit, ctx, depth};
        return Py_TYPE(o)->tp_traverse(o, visit_inside, &in) != 0;
    }
    return false;
}

static bool settle_visit(void *ctx, PyObject *o, int depth) {
    cc_same_met(ctx, o);
    return !cc_number_settle(ctx, o, depth);
}

bool cc_number_settle(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL || (cc_value_const(o) && !PyTuple_Check(o))) return o == NULL || settle_number(rec, o);
    if (PyFunction_Check(o)) cc_value_which(rec, o);
    if (PySlice_Check(o)) depth = CC_MAX(depth, 1);
    return depth == 0 || !cc_number_any(rec, o, settle_visit, rec, depth - 1);
}

bool cc_number_truth(CcRec *rec, PyObject *o) {
    if (!cc_value_symbolic(rec, o) || !PyFloat_CheckExact(o)) return cc_number_settle(rec, o, 0);
    PyObject *zero = PyFloat_FromDouble(0.0);
    cc_vec_push(&rec->keep, zero);
    return cc_value_compare(rec, Py_NE, o, zero, PyFloat_AS_DOUBLE(o) != 0.0);
}

static bool truth_visit(void *ctx, PyObject *o, int depth) {
    (void)depth;
    return !cc_number_truth(ctx, o);
}

bool cc_number_truths(CcRec *rec, PyObject *items) { return !cc_number_any(rec, items, truth_visit, rec, 0); }

static bool varies_visit(void *ctx, PyObject *o, int depth) { return cc_number_varies(ctx, o, depth); }

bool cc_number_varies(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL) return false;
    return cc_value_symbolic(rec, o) || (depth > 0 && cc_number_any(rec, o, varies_visit, rec, depth - 1));
}

static bool read_visit(void *ctx, PyObject *o, int depth) { return !cc_number_read(ctx, o, depth); }

bool cc_number_read(CcRec *rec, PyObject *o, int depth) {
    if (cc_value_symbolic(rec, o)) return settle_number(rec, o);
    return depth == 0 || !cc_number_any(rec, o, read_visit, rec, depth - 1);
}

static void pin_read(CcRec *rec, PyObject *o, int depth);

static bool pin_visit(void *ctx, PyObject *o, int depth) {
    pin_read(ctx, o, depth);
    return false;
}

static void pin_read(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL) return;
    if (PyUnicode_CheckExact(o)) cc_sym_pin(rec, o);
    if ((PyUnicode_CheckExact(o) || cc_value_numpy(o)) && cc_value_symbolic(rec, o)) cc_value_pin(rec, o);
    else if (depth > 0) (void)cc_number_any(rec, o, pin_visit, rec, depth - 1);
}

/* Keeps what it is given without hashing it, or using it as an index: list.append(o), and dict.update(d), as the keys of d
 * have been hashed. */
static bool keeps(const CcCallee *c, const CcEvent *ev) {
    bool dicts = true;
    for (int i = 1; i < ev->n; i++) dicts = dicts && PyDict_CheckExact(ev->in[i]);
    return (!cc_callee_has(c, CC_TRAIT_TAKES_ITEMS) || dicts) && !cc_callee_has(c, CC_TRAIT_SETS_ITEM) &&
           !cc_callee_has(c, CC_TRAIT_HASHES) && !cc_callee_has(c, CC_TRAIT_HASHES_ALL);
}

/* Exceptions of most classes just keep their arguments; OSError and its kin look at them. */
static bool keeps_arguments(PyObject *callable) {
    return PyExceptionClass_Check(callable) &&
           ((PyTypeObject *)callable)->tp_init == ((PyTypeObject *)PyExc_BaseException)->tp_init &&
           ((PyTypeObject *)callable)->tp_new == ((PyTypeObject *)PyExc_BaseException)->tp_new;
}

bool cc_number_str_gives(PyObject *callable, PyObject *o) {
    if (callable != (PyObject *)&PyUnicode_Type || !PyExceptionInstance_Check(o)) return false;
    PyObject *args = ((PyBaseExceptionObject *)o)->args;
    return Py_TYPE(o)->tp_str == ((PyTypeObject *)PyExc_BaseException)->tp_str && args != NULL &&
           PyTuple_GET_SIZE(args) == 1 && PyUnicode_CheckExact(PyTuple_GET_ITEM(args, 0));
}

/* A call that stores its arguments unread, that is recorded as a frame, or that is a break: of a Python function without
 * a row, of C code without one, of print. */
static bool carries_call(const CcEvent *ev) {
    PyObject *callable = ev->in[0];
    if (keeps_arguments(callable)) return ev->kind == CC_EV_CALL;
    if (ev->kind == CC_EV_CALL && ev->n == 2 && cc_number_str_gives(callable, ev->in[1])) return true;
    const CcCallee callee = cc_callee_find(callable);
    if (callee.kind == CC_CALLEE_PRINT) return true;
    if (callee.kind == CC_CALLEE_WRITE) return ev->kind == CC_EV_CALL && keeps(&callee, ev);
    PyObject *f = (PyObject *)cc_call_function(callable);
    return callee.kind == CC_CALLEE_UNKNOWN && !PyType_Check(callable) &&
           cc_torch_call(f != NULL ? f : callable, NULL, 0, NULL).cls == CC_T_NONE;
}

/* text + text, list + list, list += tuple */
static bool joins(const CcEvent *ev) {
    PyObject *a = ev->in[0], *b = ev->in[1];
    if (ev->arg != CC_NB_ADD) return false;
    if (PyUnicode_CheckExact(a)) return PyUnicode_CheckExact(b);
    return (PyList_CheckExact(a) || PyTuple_CheckExact(a)) && (PyList_CheckExact(b) || PyTuple_CheckExact(b));
}

enum { CARRIES = -1, ALONE = 0, INSIDE = 3 };

/* How deep into its operands an event reads. CARRIES: it moves them, or has a rule for texts among them (ev_display.c,
 * cc_sym_operator). */
static int reads(const CcEvent *ev) {
    switch (ev->kind) {
    case CC_EV_CALL:
    case CC_EV_CALL_EX: return carries_call(ev) ? CARRIES : INSIDE;
    case CC_EV_BINOP: return joins(ev) ? CARRIES : INSIDE;
    case CC_EV_COMPARE:
    case CC_EV_CONTAINS:
    case CC_EV_MATCH: return INSIDE;
    case CC_EV_STORE_ATTR:
    case CC_EV_STORE_GLOBAL:
    case CC_EV_STORE_DEREF:
    case CC_EV_CELL:
    case CC_EV_IS:
    case CC_EV_BUILD:
    case CC_EV_FORMAT: return CARRIES;
    case CC_EV_UPDATE:
        if (ev->arg == CC_INSN_LIST_EXTEND) return PyUnicode_Check(ev->in[1]) ? ALONE : CARRIES;
        return ev->arg == CC_INSN_LIST_APPEND ? CARRIES : INSIDE;
    default: return ALONE;
    }
}

void cc_number_pin_read(CcRec *rec, const CcEvent *ev) {
    const int depth = rec->lazy ? reads(ev) : CARRIES;
    if (depth == CARRIES) return;
    const bool keyed = ev->kind == CC_EV_SUBSCR || ev->kind == CC_EV_STORE_SUBSCR;
    const int n = keyed ? 2 : ev->n; /* a container moves a value that it gets */
    for (int i = 0; i < n; i++) pin_read(rec, ev->in[i], keyed && i == 1 ? INSIDE : depth);
}

bool cc_number_text(CcRec *rec, PyObject *o) {
    return PyUnicode_CheckExact(o) && cc_value_symbolic(rec, o) && cc_value_origin(rec, o) == CC_O_VALUE;
}

/* Calls and operators have rules of their own. */
bool cc_number_reads_text(CcRec *rec, const CcEvent *ev) {
    const bool call = ev->kind == CC_EV_CALL || ev->kind == CC_EV_CALL_EX;
    if (!rec->lazy || call || ev->kind == CC_EV_BINOP || reads(ev) == CARRIES) return false;
    const int n = ev->kind == CC_EV_STORE_SUBSCR ? 2 : ev->n;
    for (int i = 0; i < n; i++)
        if (ev->in[i] != NULL && cc_number_text(rec, ev->in[i])) return true;
    return false;
}

typedef struct Behind {
    CcRec *rec;
    int depth;
} Behind;

static void ask_behind(CcRec *rec, int value, int depth);

static void ask_visit(void *ctx, const CcRecipe *r) {
    const Behind *b = ctx;
    const CcGuards *gs = &b->rec->trace->guards;
    if (r->make == CC_MAKE_VALUE) ask_behind(b->rec, r->id, b->depth - 1);
    else if (r->make == CC_MAKE_SOURCE && gs->g.at[r->id].check == CC_CHK_TYPE &&
             gs->g.at[r->id].want == (PyObject *)&PyFloat_Type)
        cc_hint_number(b->rec->hints, cc_guard_path(gs, r->id, b->rec->salt));
}

static void ask_behind(CcRec *rec, int value, int depth) {
    const CcTrace *t = rec->trace;
    const int def = t->graph->val.at[value].def;
    Behind b = {rec, depth};
    if (def >= 0 && depth > 0) cc_sym_visit(t, &t->node.at[t->graph->node.at[def].host], ask_visit, &b);
}

void cc_number_request_symbols(CcRec *rec, PyObject *o) {
    enum { DEEP = 8 };
    const CcProv *p = cc_value_symbolic(rec, o) ? cc_value_find(rec, o) : NULL;
    if (p != NULL && p->origin == CC_O_VALUE && rec->hints != NULL && !rec->hints->none) ask_behind(rec, p->id, DEEP);
}

static bool which_visit(void *ctx, PyObject *o, int depth) {
    cc_number_which(ctx, o, depth);
    return false;
}

void cc_number_which(CcRec *rec, PyObject *o, int depth) {
    if (!rec->by_code || o == NULL) return;
    if (PyFunction_Check(o)) cc_value_which(rec, o);
    else if (depth > 0) (void)cc_number_any(rec, o, which_visit, rec, depth - 1);
}

typedef struct Shows {
    CcRec *rec;
    bool text, made;
} Shows;

static bool address_visit(void *ctx, PyObject *o, int depth) {
    Shows *s = ctx;
    s->made |= !cc_number_addresses(s->rec, o, depth, s->text);
    return false;
}

bool cc_number_addresses(CcRec *rec, PyObject *o, int depth, bool text) {
    if (o != NULL && PyMethod_Check(o)) o = PyMethod_GET_SELF(o);
    if (o == NULL || cc_tens_is(o)) return true;
    const PyTypeObject *t = Py_TYPE(o);
    const bool shows = text ? t->tp_repr == PyBaseObject_Type.tp_repr : cc_value_compares_as(o, &PyBaseObject_Type);
    const bool tells = PyFunction_Check(o) || (shows && !cc_value_ident(o));
    if (tells) cc_value_which(rec, o);
    if (!text) cc_same_met(rec, o);
    Shows s = {rec, text, tells && cc_value_origin(rec, o) == CC_O_FRESH};
    if (depth > 0) (void)cc_number_any(rec, o, address_visit, &s, depth - 1);
    return !s.made;
}

void cc_number_hashed(CcRec *rec, PyObject *o) {
    if (o == NULL || rec->trace == NULL || (rec->trace->symbol.n == 0 && rec->innermost == NULL)) return;
    if (cc_value_origin(rec, o) == CC_O_SOURCE) return;
    Py_ssize_t pos = 0;
    PyObject *key;
    while (PyDict_Check(o) && PyDict_Next(o, &pos, &key, NULL)) (void)cc_number_settle(rec, key, 3);
    for (pos = 0; PyAnySet_Check(o) && cc_set_next(o, &pos, &key); pos++)
        if (key != NULL) cc_sym_settle(rec, key, 3);
}

/* An object of this kind, or a tuple, a list or a view of a dict's values that holds only such. */
static bool only(PyObject *o, bool (*is_kind)(PyObject *o)) {
    if (cc_value_view(o) == &PyDictValues_Type) {
        PyObject *items;
        CC_RETRY_ALLOC(items, PySequence_List(o));
        const bool all = only(items, is_kind);
        Py_DECREF(items);
        return all;
    }
    if (!PyTuple_Check(o) && !PyList_CheckExact(o)) return is_kind(o);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
        if (!is_kind(PySequence_Fast_GET_ITEM(o, i))) return false;
    return true;
}

static bool is_int(PyObject *o) { return PyLong_CheckExact(o); }

static bool is_term(PyObject *o) { return PyLong_CheckExact(o) || PyFloat_CheckExact(o) || cc_tens_is(o); }

bool cc_number_whole(PyObject *o) { return only(o, is_int); }

bool cc_number_terms(PyObject *o) { return only(o, is_term); }

bool cc_number_in(CcRec *rec, PyObject *const *in, int n, int step) {
    for (int i = 0; i < n; i += step)
        if (in[i] != NULL && cc_number_varies(rec, in[i], PyTuple_Check(in[i]) ? 3 : 0)) return true;
    return false;
}

static bool plain_key(PyObject *key, int depth) {
    if (cc_value_const(key) || cc_value_ident(key)) return true;
    if (!PyTuple_CheckExact(key) || depth == 0) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
        if (!plain_key(PyTuple_GET_ITEM(key, i), depth - 1)) return false;
    return true;
}

bool cc_number_key(CcRec *rec, PyObject *key) {
    if (!plain_key(key, 3) || !cc_number_settle(rec, key, 3)) return false;
    return !PyTuple_CheckExact(key) || cc_inside_guard(rec, key, 4);
}

/* An equal object made again compares equal (a NaN does not). */
static bool meets_itself(PyObject *o) {
    return PyUnicode_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o) || o == Py_None || cc_tens_constant(o) ||
           Py_TYPE(o) == cc_tens_size_type();
}

/* A key that a guard can look up in a dict, and that equals itself when made again: strings, numbers, sizes, dtypes and
 * devices, also in a tuple. */
bool cc_number_dict_key(CcRec *rec, PyObject *key) {
    const CcProv *p = PyFunction_Check(key) ? cc_value_find(rec, key) : NULL;
    /* each call makes a new function */
    if (p != NULL && p->origin == CC_O_SOURCE && rec->trace->guards.g.at[p->id].check == CC_CHK_TYPE) return false;
    if (cc_value_const(key) || cc_value_ident(key)) return true;
    for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); i++)
        if (!meets_itself(PyTuple_GET_ITEM(key, i))) return false;
    return PyTuple_CheckExact(key) && cc_number_key(rec, key);
}
