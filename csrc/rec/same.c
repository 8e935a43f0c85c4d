/* Identity of equal numbers and strings. Guards check their values, because hardly any code depends on the identity:
 * only `is`, id(), and containers that find a NaN, which equals nothing, by identity. In these cases, the guards of
 * reads that gave the object require the same object. Constants of code objects and computed results need no guard. */
#include "rec_int.h"

bool cc_same_asked(CcRec *rec, PyObject *o) { return rec->asked.n > 0 && cc_map_find(&rec->asked, o) != NULL; }

bool cc_same_asked_any(CcRec *rec, PyObject *tuple) {
    for (Py_ssize_t i = 0; rec->asked.n > 0 && i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        if (cc_same_asked(rec, item) || (PyTuple_CheckExact(item) && cc_same_asked_any(rec, item))) return true;
    }
    return false;
}

bool cc_same_nan(PyObject *o) {
    if (PyFloat_Check(o)) return PyFloat_AS_DOUBLE(o) != PyFloat_AS_DOUBLE(o);
    if (PyComplex_CheckExact(o)) {
        const Py_complex v = ((PyComplexObject *)o)->cval;
        return v.real != v.real || v.imag != v.imag;
    }
    if (!cc_value_numpy(o)) return false;
    PyObject *differs = PyObject_RichCompare(o, o, Py_NE);
    const bool nan = differs != NULL && PyObject_IsTrue(differs) == 1;
    if (differs == NULL) cc_raised_clear();
    Py_XDECREF(differs);
    return nan;
}

static bool among(PyObject *tuple, PyObject *o) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        if (item == o || (PyTuple_CheckExact(item) && among(item, o))) return true;
    }
    return false;
}

static bool gave(const CcGuard *g, PyObject *o) { return g->check == CC_CHK_VALUE && g->want == o; }

int cc_same_giver(const CcRec *rec, PyObject *o) {
    const CcGuards *gs = &rec->trace->guards;
    int found = -1;
    for (int i = 0; i < gs->g.n; i++) {
        if (!gave(&gs->g.at[i], o)) continue;
        if (found >= 0) return -1;
        found = i;
    }
    return found;
}

/* Guards the identity of the object in keys of dicts and members of sets. */
static void guard_keys(CcGuards *gs, PyObject *o) {
    for (int i = 0; i < gs->g.n; i++) {
        CcGuard *g = &gs->g.at[i];
        if ((g->check == CC_CHK_KEYS || g->check == CC_CHK_LAYOUT) && among(g->want, o)) g->other = 1;
    }
}

void cc_same_which(CcRec *rec, PyObject *o) {
    if (rec->trace == NULL || !(cc_value_const(o) || PyTuple_CheckExact(o))) return;
    CcGuards *gs = &rec->trace->guards;
    for (int i = 0; i < gs->g.n; i++)
        if (gave(&gs->g.at[i], o)) cc_guard_check(gs, i, CC_CHK_IDENT, o);
    guard_keys(gs, o);
    if (cc_same_asked(rec, o)) return;
    cc_map_put(&rec->asked, o, 1);
    cc_vec_push(&rec->keep, Py_NewRef(o));
}

/* An object from outside whose class in C hashes and compares what is in it (a date, a Decimal, a frozenset), which no
 * guard can read. */
static bool hides_value(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL || p->origin != CC_O_SOURCE || cc_value_const(o) || cc_value_ident(o) || cc_tens_is(o)) return false;
    const PyTypeObject *t = cc_value_base(Py_TYPE(o));
    const bool by_value =
        t->tp_hash != PyBaseObject_Type.tp_hash || t->tp_richcompare != PyBaseObject_Type.tp_richcompare;
    return by_value && !PyWeakref_Check(o) && !PyList_Check(o) && !PyDict_Check(o) && !cc_inside_guard(rec, o, 4);
}

static void met(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL || PyUnicode_CheckExact(o)) return;
    if (PyTuple_Check(o)) {
        (void)cc_inside_guard(rec, o, 4); /* an object that can't be guarded is not a constant, and has provenance */
        for (Py_ssize_t i = 0; depth > 0 && i < PyTuple_GET_SIZE(o); i++) met(rec, PyTuple_GET_ITEM(o, i), depth - 1);
    } else if (cc_same_nan(o)) {
        cc_value_which(rec, o);
    } else if (hides_value(rec, o)) {
        rec->opaque = Py_TYPE(o)->tp_name;
    }
}

void cc_same_met(CcRec *rec, PyObject *o) {
    if (rec->trace != NULL) met(rec, o, 4);
}

void cc_same_taken(CcRec *rec, PyObject *iterable, bool pairs) {
    if (!PyList_CheckExact(iterable) && !PyTuple_CheckExact(iterable)) return;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(iterable); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(iterable, i);
        const bool pair = pairs && (PyList_CheckExact(item) || PyTuple_Check(item));
        if (pair) (void)cc_inside_guard(rec, item, 1);
        if (!pair) cc_same_met(rec, item);
        else if (PySequence_Fast_GET_SIZE(item) > 0) cc_same_met(rec, PySequence_Fast_GET_ITEM(item, 0));
    }
}

void cc_same_hashed(CcRec *rec, PyObject *o) {
    Py_ssize_t pos = 0;
    PyObject *key;
    if (PyDict_Check(o))
        while (PyDict_Next(o, &pos, &key, NULL)) cc_same_met(rec, key);
    else if (PyAnySet_Check(o))
        for (; cc_set_next(o, &pos, &key); pos++) cc_same_met(rec, key);
}

static void guard_other(CcRec *rec, PyObject *a, PyObject *b) {
    CcGuards *gs = &rec->trace->guards;
    guard_keys(gs, a);
    for (int i = 0, n = gs->g.n; i < n; i++) {
        if (!gave(&gs->g.at[i], a)) continue;
        cc_guard_add_check(gs, i, CC_CHK_IS_NOT, b, -1);
        for (int k = 0; k < n; k++)
            if (gave(&gs->g.at[k], b)) cc_guard_add_check(gs, CC_MAX(i, k), CC_CHK_DISTINCT, NULL, CC_MIN(i, k));
    }
}

/* A tuple that is a dict's key or a set's member: equal ones may be other objects in later calls. */
static bool is_key(const CcRec *rec, PyObject *o) {
    const CcGuards *gs = &rec->trace->guards;
    for (int i = 0; PyTuple_CheckExact(o) && i < gs->g.n; i++)
        if ((gs->g.at[i].check == CC_CHK_KEYS || gs->g.at[i].check == CC_CHK_LAYOUT) && among(gs->g.at[i].want, o))
            return true;
    return false;
}

static void compared(CcRec *rec, PyObject *a, PyObject *b) {
    if (rec->trace == NULL) return;
    if (is_key(rec, a) || is_key(rec, b)) {
        cc_value_which(rec, a);
        cc_value_which(rec, b);
        return;
    }
    PyObject *given;
    if (cc_sym_given(rec, a, &given) >= 0 && cc_sym_given(rec, b, &given) >= 0) return; /* cc_sym_identical asks */
    cc_value_distinct(rec, a, b);
    const CcProv *p = cc_value_find(rec, a), *q = cc_value_find(rec, b);
    const bool known = (p == NULL && cc_value_const(a)) && (q == NULL && cc_value_const(b));
    if (known && a == b) {
        cc_same_which(rec, a);
    } else if (known && cc_guard_same_value(a, b)) {
        guard_other(rec, a, b);
        guard_other(rec, b, a);
    } else if ((p == NULL) != (q == NULL) && PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b)) { /* read by a break */
        const CcProv *read = p != NULL ? p : q;
        CcGuards *gs = &rec->trace->guards;
        if (read->origin == CC_O_SOURCE && gs->g.at[read->id].source != CC_SRC_CONST)
            cc_guard_add_check(gs, read->id, CC_CHK_IS_NOT, p != NULL ? b : a, -1);
    }
}

bool cc_same_is(CcRec *rec, CcAct *act, PyObject *const *in) {
    compared(rec, in[0], in[1]);
    return cc_sym_identical(rec, act, in);
}
