/* sorted(), list.sort() without a key, max(key=) and min(key=) of numbers that vary between calls. C code that compares
 * symbols makes constants of them, so Python code that is recorded calls the key function, and C code gets all keys at
 * once: a step, which gives the numbers in order, or the places of the items in that order, by the algorithm of C code
 * itself (it decides where a NaN ends up). */
#include "rec_events.h"

/* sorted(items, reverse=reverse), as a tuple: a step's result */
static PyObject *ranked(PyObject *self, PyObject *const *in, Py_ssize_t n) {
    (void)self;
    PyObject *list = n == 2 ? PySequence_List(in[0]) : NULL, *tuple = NULL;
    if (list == NULL) return NULL;
    const int reverse = PyObject_IsTrue(in[1]);
    const bool turned = reverse > 0 && PyList_Reverse(list) == 0; /* twice: equal items keep their order */
    if (reverse >= 0 && turned == (reverse > 0) && PyList_Sort(list) == 0 && (!turned || PyList_Reverse(list) == 0))
        tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    return tuple;
}

/* The places of keys in their order: sorted(range(len(keys)), key=keys.__getitem__, reverse=reverse) */
static PyObject *order(PyObject *self, PyObject *const *in, Py_ssize_t n) {
    (void)self;
    PyObject *range = n == 2 ? PyObject_CallFunction((PyObject *)&PyRange_Type, "n", PyObject_Size(in[0])) : NULL;
    PyObject *list = range != NULL ? PySequence_List(range) : NULL, *key = NULL, *sort = NULL, *named = NULL;
    PyObject *none = PyTuple_New(0), *done = NULL, *tuple = NULL;
    if (list != NULL && none != NULL) key = PyObject_GetAttrString(in[0], "__getitem__");
    if (key != NULL) sort = PyObject_GetAttrString(list, "sort");
    if (sort != NULL) named = Py_BuildValue("{s:O,s:O}", "key", key, "reverse", in[1]);
    if (named != NULL) done = PyObject_Call(sort, none, named);
    if (done != NULL) tuple = PyList_AsTuple(list);
    Py_XDECREF(range);
    Py_XDECREF(list);
    Py_XDECREF(key);
    Py_XDECREF(sort);
    Py_XDECREF(named);
    Py_XDECREF(none);
    Py_XDECREF(done);
    return tuple;
}

/* The place of the key that max() chooses, or min() (op: Py_GT, Py_LT) */
static PyObject *chosen(PyObject *const *in, Py_ssize_t n, int op) {
    if (n != 1 || !PyList_Check(in[0]) || PyList_GET_SIZE(in[0]) == 0) {
        PyErr_SetString(PyExc_ValueError, "ccompile: no keys");
        return NULL;
    }
    Py_ssize_t best = 0;
    for (Py_ssize_t i = 1; i < PyList_GET_SIZE(in[0]); i++) {
        const int better = PyObject_RichCompareBool(PyList_GET_ITEM(in[0], i), PyList_GET_ITEM(in[0], best), op);
        if (better < 0) return NULL;
        if (better) best = i;
    }
    return PyLong_FromSsize_t(best);
}

static PyObject *largest(PyObject *self, PyObject *const *in, Py_ssize_t n) {
    (void)self;
    return chosen(in, n, Py_GT);
}

static PyObject *least(PyObject *self, PyObject *const *in, Py_ssize_t n) {
    (void)self;
    return chosen(in, n, Py_LT);
}

enum { RANKED, ORDER, LARGEST, LEAST };
static PyMethodDef defs[] = {
    {"ranked", (PyCFunction)(void (*)(void))ranked, METH_FASTCALL, NULL},
    {"order", (PyCFunction)(void (*)(void))order, METH_FASTCALL, NULL},
    {"largest", (PyCFunction)(void (*)(void))largest, METH_FASTCALL, NULL},
    {"least", (PyCFunction)(void (*)(void))least, METH_FASTCALL, NULL},
};
static PyObject *functions[CC_COUNT(defs)]; /* immortal */

int cc_ordered_init(void) {
    for (int i = 0; i < CC_COUNT(defs); i++) {
        if (functions[i] == NULL && (functions[i] = PyCFunction_New(&defs[i], NULL)) == NULL) return -1;
        cc_callee_add(functions[i], CC_CALLEE_PURE, defs[i].ml_name);
    }
    return 0;
}

/* Numbers, texts and tuples of these, which C code compares. With a key function, tensors, too. A NaN is found by its
 * identity, which a symbol does not have. */
static bool plain(PyObject *o, bool keyed, int depth) {
    if (cc_same_nan(o)) return false;
    if (cc_value_const(o) && !PyTuple_Check(o)) return true;
    if (cc_sym_varies(o) || (keyed && cc_tens_is(o))) return true;
    if (!PyTuple_CheckExact(o) || depth == 0) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (!plain(PyTuple_GET_ITEM(o, i), keyed, depth - 1)) return false;
    return true;
}

/* Not numbers that nodes compute: those are breaks. */
static bool holds_plain(CcRec *rec, PyObject *items, bool keyed) {
    const bool whole = PyList_CheckExact(items) || PyTuple_CheckExact(items) || PyDict_CheckExact(items);
    if ((!whole && cc_value_view(items) == NULL) || cc_number_varies(rec, items, 3)) return false;
    PyObject *list;
    CC_RETRY_ALLOC(list, PySequence_List(items));
    bool all = PyList_GET_SIZE(list) > 0;
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(list); i++) all = plain(PyList_GET_ITEM(list, i), keyed, 2);
    Py_DECREF(list);
    return all;
}

/* A function whose results, for plain items, are most likely plain. */
static bool calls_known(PyObject *key) {
    return key == Py_None || cc_call_function(key) != NULL || PyCFunction_Check(key) ||
           cc_known_is(key, CC_KNOWN_ITEMGETTER) || cc_known_is(key, CC_KNOWN_ATTRGETTER);
}

/* The arguments key= and reverse=; false: there are others. */
static bool named_arguments(const CcCalled *c, PyObject **key, PyObject **reverse) {
    *key = Py_None;
    *reverse = Py_False;
    for (int i = 1; i < c->n; i++) {
        PyObject *name = PyTuple_GET_ITEM(c->kwnames, i - 1);
        if (cc_text_is(name, "key")) *key = c->in[i];
        else if (cc_text_is(name, "reverse")) *reverse = c->in[i];
        else return false;
    }
    return calls_known(*key) && cc_value_const(*reverse);
}

/* CC_OK: numbers of this function have not differed, or C code does it. in_place: list.sort(). */
CcGo cc_ordered_sort(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, bool in_place) {
    PyObject *key, *reverse;
    if (rec->hints == NULL || rec->hints->at.n == 0 || c->n == 0 || cc_call_positional(c) != 1) return CC_OK;
    if (!named_arguments(c, &key, &reverse) || !holds_plain(rec, c->in[0], key != Py_None)) return CC_OK;
    if (in_place && key != Py_None) return CC_OK; /* the key function sees an empty list, and may not change it */
    cc_sym_fill(rec, c->in[0]);
    if (key == Py_None && !cc_sym_within(rec, c->in[0], 3)) return CC_OK;
    const bool numbers = key == Py_None && cc_number_terms(c->in[0]);
    PyObject *f = cc_backcall_around(rec, numbers ? "ranker" : "sorter", functions[numbers ? RANKED : ORDER]);
    if (f != NULL && in_place) f = cc_backcall_around(rec, "resorter", f);
    if (f == NULL) return CC_OK;
    PyObject *const in[] = {c->in[0], key, reverse};
    return cc_backcall_instead(rec, act, ev, f, in, CC_COUNT(in));
}

CcGo cc_ordered_pick(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, bool max) {
    PyObject *key, *reverse;
    if (rec->hints == NULL || rec->hints->at.n == 0 || c->n != 2 || c->kwnames == NULL) return CC_OK;
    if (!cc_text_is(PyTuple_GET_ITEM(c->kwnames, 0), "key") || !named_arguments(c, &key, &reverse)) return CC_OK;
    if (key == Py_None || !holds_plain(rec, c->in[0], true)) return CC_OK;
    PyObject *f = cc_backcall_around(rec, "picker", functions[max ? LARGEST : LEAST]);
    PyObject *const in[] = {c->in[0], key};
    return f != NULL ? cc_backcall_instead(rec, act, ev, f, in, CC_COUNT(in)) : CC_OK;
}
