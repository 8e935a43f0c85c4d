/* Numbers and texts that leave a recording. A symbol is a separate object (sym.c), and so is a number that varies
 * (resume.c). Code that runs after the recording must not see them: `is` distinguishes them from the objects that they
 * were copied from, and from the int that CPython caches for each of -5 .. 256. So whenever a recording ends, the
 * originals replace them in everything it leaves behind: slots of its frames, objects it made, and objects that it wrote
 * to or put symbols into. */
#include "rec_int.h"

/* A new reference to CPython's cached int, or to what o is a copy of; NULL: it is not a copy. */
static PyObject *original(CcRec *rec, PyObject *o) {
    if (o == NULL) return NULL;
    if (cc_sym_is(rec, o) && cc_sym_small(o)) return PyLong_FromLong(PyLong_AsLong(o));
    PyObject *given;
    return cc_sym_given(rec, o, &given) >= 0 && given != o ? Py_NewRef(given) : NULL;
}

static void restore_items(CcRec *rec, PyObject *sequence) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); i++) {
        PyObject *own = original(rec, PySequence_Fast_ITEMS(sequence)[i]);
        if (own != NULL) Py_SETREF(PySequence_Fast_ITEMS(sequence)[i], own); /* equal, so the hash stays the same */
    }
}

static void restore_dict(CcRec *rec, PyObject *dict) {
    Py_ssize_t pos = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &pos, &key, &value)) {
        PyObject *own = original(rec, value);
        if (own == NULL) continue;
        Py_INCREF(key);
        if (PyDict_SetItem(dict, key, own) < 0) cc_raised_clear(); /* an existing key, so iteration may continue */
        Py_DECREF(key);
        Py_DECREF(own);
    }
}

static void restore_deque(CcRec *rec, PyObject *deque) {
    PyObject *items = PySequence_List(deque);
    if (items == NULL) cc_raised_clear();
    for (Py_ssize_t i = 0; items != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *own = original(rec, PyList_GET_ITEM(items, i));
        if (own != NULL && PySequence_SetItem(deque, i, own) < 0) cc_raised_clear();
        Py_XDECREF(own);
    }
    Py_XDECREF(items);
}

static void restore_inside(CcRec *rec, PyObject *o) {
    if (PyList_CheckExact(o) || PyTuple_Check(o)) restore_items(rec, o);
    else if (PyDict_CheckExact(o) || PyODict_CheckExact(o)) restore_dict(rec, o);
    else if (cc_known_is(o, CC_KNOWN_DEQUE)) restore_deque(rec, o);
    else if (PyCell_Check(o)) {
        PyObject *own = original(rec, PyCell_GET(o));
        if (own != NULL && PyCell_Set(o, own) < 0) cc_raised_clear();
        Py_XDECREF(own);
    } else if (cc_python_class(Py_TYPE(o)) && !PyType_Check(o)) {
        PyObject *dict = cc_obj_dict(o);
        if (dict != NULL) restore_dict(rec, dict);
    }
}

static bool may_be_copy(const CcRec *rec, const CcProv *p) {
    if (p->origin == CC_O_SYMBOL) return true;
    return p->origin == CC_O_SOURCE && rec->copies.n > 0 && cc_value_copyable(p->object);
}

/* Whether anything besides this recording holds a copy. */
static bool any_left(const CcRec *rec) {
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object != NULL && Py_REFCNT(p->object) > 1 && may_be_copy(rec, p)) return true;
    }
    return false;
}

/* The event at which the recording ends may have its results already, which go to the stack afterwards. */
static void restore_results(CcRec *rec, CcEvent *ev) {
    PyObject *own = ev != NULL ? original(rec, ev->result) : NULL;
    if (own != NULL) Py_SETREF(ev->result, own);
    for (int i = 0; ev != NULL && i < ev->n_out; i++)
        if ((own = original(rec, ev->out[i])) != NULL) Py_SETREF(ev->out[i], own);
}

void cc_escape_restore(CcRec *rec) {
    if (rec->trace == NULL || (rec->trace->symbol.n == 0 && rec->copies.n == 0) || !any_left(rec)) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    const bool paused = cc_hook_pause(rec->obs, true); /* putting a value into a dict may run __hash__ */
    restore_results(rec, rec->event);
    for (int i = 0; i < rec->frame.n; i++) {
        CcAct *act = rec->frame.at[i].act;
        for (int slot = 0; slot < act->code->n_locals + act->depth; slot++) {
            PyObject *o = cc_act_get(act, slot), *own = original(rec, o);
            if (own == NULL) continue;
            cc_vec_push(&rec->spent, Py_NewRef(o)); /* C code called by this frame may still read it */
            cc_act_put(act, slot, own);
        }
    }
    for (int i = 0, n = rec->prov.n; i < n; i++) {
        const CcProv p = rec->prov.at[i];
        PyObject *o = p.weak != NULL ? cc_weak_target(p.weak) : p.object;
        if (o != NULL && (p.origin == CC_O_FRESH || p.dirty)) restore_inside(rec, o);
    }
    for (int i = 0; i < rec->filled.n; i++) restore_inside(rec, rec->filled.at[i]);
    for (int i = 0; i < rec->effect.n; i++)
        if (rec->effect.at[i].n > 0 && rec->effect.at[i].in[0] != NULL) restore_inside(rec, rec->effect.at[i].in[0]);
    cc_hook_pause(rec->obs, paused);
    PyErr_Restore(type, value, traceback);
}
