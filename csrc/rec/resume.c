/* Beginning behind a break: the slots of the chain's frames are the inputs of what follows. What only they hold was made by this
 * call: iterators, lists and dicts are adopted (their state is guarded, and they may be changed freely), and so are functions,
 * of which each call makes another. */
#include "rec_int.h"

static bool known_iterator(PyObject *o)
{
    PyTypeObject *t = Py_TYPE(o);
    return t == &PyListIter_Type || t == &PyTupleIter_Type || t == &PyRangeIter_Type || t == &PyEnum_Type ||
           t == &PyZip_Type || t == &PyReversed_Type || t == &PyListRevIter_Type || t == &PyDictIterKey_Type ||
           t == &PyDictIterValue_Type || t == &PyDictIterItem_Type;
}

/* An iterator that only this slot holds: its position becomes guarded, and the object may be advanced freely, because a
 * later snapshot puts a new one into the slot. False: what it gives can't be guarded (it goes over an array, a map ...). */
static bool adopt_iterator(CcRec *rec, PyObject *it, int source)
{
    PyObject *reduced = PyObject_CallMethod(it, "__reduce__", NULL);
    if (reduced == NULL || !PyTuple_Check(reduced) || PyTuple_GET_SIZE(reduced) < 2) {
        PyErr_Clear();
        Py_XDECREF(reduced);
        return false;
    }
    cc_vec_push(&rec->keep, reduced);
    bool whole = true;
    CcGuards *gs = &rec->trace->guards;
    const int top = cc_value_read(rec, CC_SRC_REDUCE, source, NULL, 0, 0, reduced);
    PyObject *args = PyTuple_GET_ITEM(reduced, 1);
    const int list = cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, 1, args);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *arg = PyTuple_GET_ITEM(args, i);
        const int id = cc_value_read(rec, CC_SRC_ITEM, list, NULL, 0, (int)i, arg);
        if (known_iterator(arg) && gs->g.at[id].check == CC_CHK_TYPE) whole = adopt_iterator(rec, arg, id) && whole;
        else if (PyList_Check(arg) || PyTuple_Check(arg)) cc_value_content(rec, arg, 2);
        else whole = whole && cc_value_const(arg);
    }
    for (Py_ssize_t i = 2; i < PyTuple_GET_SIZE(reduced); i++)
        cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, (int)i, PyTuple_GET_ITEM(reduced, i));
    if (whole) cc_value_set(rec, it, CC_O_FRESH, -1);
    return whole;
}

/* A float that differs between calls, found in a second place. Places that held one object when this was recorded may hold
 * two in a replay (best = v in a loop), so that each gets an object of its own. NULL: v is known in no other place. */
static PyObject *second_float(CcRec *rec, PyObject *v)
{
    if (cc_value_find(rec, v) == NULL) return NULL;
    PyObject *copy = cc_obj_number(v);
    if (copy == NULL) abort();
    return copy;
}

static void learn_float(CcRec *rec, PyObject *v, int source)
{
    CcGuards *gs = &rec->trace->guards;
    if (gs->g.at[source].check == CC_CHK_NONE) cc_guard_check(gs, source, CC_CHK_TYPE, (PyObject *)&PyFloat_Type);
    cc_value_set(rec, v, CC_O_SOURCE, source);
}

/* A list or dict that only the frames' slots hold was made by this call: its content becomes guarded (numbers in it stay
 * symbolic), and it may be changed freely, because a later snapshot puts a new one into the slots. */
static void adopt_container(CcRec *rec, PyObject *o, int source)
{
    CcGuards *gs = &rec->trace->guards;
    if (PyList_Check(o)) {
        bool is_new;
        const int size = cc_guard_source(gs, CC_SRC_SIZE, source, NULL, 0, (int)PyList_GET_SIZE(o), &is_new);
        if (is_new) cc_guard_check(gs, size, CC_CHK_SIZE, NULL);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); i++) {
            PyObject *item = PyList_GET_ITEM(o, i);
            if (!PyFloat_CheckExact(item)) {
                cc_value_read(rec, CC_SRC_ITEM, source, NULL, 0, (int)i, item);
                continue;
            }
            PyObject *own = second_float(rec, item);
            if (own != NULL) PyList_SetItem(o, i, own);
            learn_float(rec, own != NULL ? own : item, cc_guard_source(gs, CC_SRC_ITEM, source, NULL, 0, (int)i, &is_new));
        }
    } else {
        Py_ssize_t pos = 0;
        PyObject *key, *value;
        while (PyDict_Next(o, &pos, &key, &value)) {
            bool is_new;
            if (!PyFloat_CheckExact(value) || !cc_value_const(key)) continue;
            PyObject *own = second_float(rec, value);
            if (own != NULL && PyDict_SetItem(o, key, own) < 0) abort();   /* of a key that is there: the walk goes on */
            learn_float(rec, own != NULL ? own : value, cc_guard_source(gs, CC_SRC_KEY, source, key, 0, 0, &is_new));
            Py_XDECREF(own);
        }
        if (!cc_value_content(rec, o, 1)) return;
    }
    cc_value_set(rec, o, CC_O_FRESH, -1);
}

/* How many slots of the chain refer to o (a comprehension's iterator is in a local and on two stacks). None when two frames
 * will look at it again: one may change it while the other waits, and only slots of frames that ran get the new object. */
static int slots_holding(const CcRec *rec, PyObject *o)
{
    int n = 0, frames = 0;
    for (const CcAct *act = rec->innermost; act != NULL; act = act->prev) {
        const int n_locals = act->code->n_locals, depth = act == rec->innermost ? act->depth : cc_rec_waiting_depth(act);
        bool looks = false;
        for (int slot = 0; slot < n_locals + act->depth; slot++) {
            if (cc_act_get(act, slot) != o) continue;
            n++;
            looks = looks || (slot < n_locals ? cc_code_live(act->code, act->pc, slot) : slot < n_locals + depth);
        }
        frames += looks;
        if (act == rec->frame.at[0].act) break;
    }
    return frames < 2 ? n : 0;
}

/* A function that nothing but slots of the chain holds was made by this call, and each call makes another. */
static bool own_function(const CcRec *rec, PyObject *v)
{
    return v != NULL && PyFunction_Check(v) && Py_REFCNT(v) == slots_holding(rec, v);
}

/* So it is known by its code, defaults and cells. After all other slots, which hold its cells. */
static void adopt_function(CcRec *rec, PyObject *v, int level, int slot)
{
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    if (cc_value_find(rec, v) != NULL) {
        cc_value_read(rec, CC_SRC_SLOT, -1, NULL, level, slot, v);
        return;
    }
    const int id = cc_guard_source(gs, CC_SRC_SLOT, -1, NULL, level, slot, &is_new);
    cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)&PyFunction_Type);
    cc_value_set(rec, v, CC_O_SOURCE, id);
    cc_rec_guard_function(rec, (PyFunctionObject *)v);
    PyObject *closure = ((PyFunctionObject *)v)->func_closure, *name = PyUnicode_InternFromString("__closure__");
    if (name == NULL) abort();
    if (closure != NULL) {
        const int cells = cc_value_read(rec, CC_SRC_MEMBER, id, cc_type_lookup(&PyFunction_Type, name), 0, 0, closure);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); i++)
            cc_value_read(rec, CC_SRC_ITEM, cells, NULL, 0, (int)i, PyTuple_GET_ITEM(closure, i));
    }
    Py_DECREF(name);
}

/* symbolic: a number that differs from call to call; it becomes an input unless Python code looks at it. */
static void read_slot(CcRec *rec, CcAct *act, int level, int slot, bool symbolic)
{
    PyObject *v = cc_act_get(act, slot);
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    if (own_function(rec, v)) {
        cc_vec_push(&rec->own, (struct CcOwn){level, slot, v});
        return;
    }
    if (v != NULL && symbolic && PyFloat_CheckExact(v)) {
        PyObject *own = second_float(rec, v);
        if (own != NULL) cc_act_put(act, slot, own);
        learn_float(rec, own != NULL ? own : v, cc_guard_source(gs, CC_SRC_SLOT, -1, NULL, level, slot, &is_new));
        return;
    }
    const int id = cc_value_read(rec, CC_SRC_SLOT, -1, NULL, level, slot, v);
    cc_sym_slot(rec, act, slot, id);
    if (v != NULL && known_iterator(v) && gs->g.at[id].check == CC_CHK_TYPE && Py_REFCNT(v) <= 1 + slots_holding(rec, v))
        (void)adopt_iterator(rec, v, id);
    if (v != NULL && (PyList_CheckExact(v) || PyDict_CheckExact(v)) && gs->g.at[id].check == CC_CHK_TYPE &&
        Py_REFCNT(v) <= 1 + slots_holding(rec, v))
        adopt_container(rec, v, id);
}

CcGo cc_rec_begin_resume(CcRec *rec, CcAct *const *acts, int n, const CcMode *mode, CcVaries varies, void *ctx, uint64_t salt)
{
    cc_rec_begin(rec, mode, salt);
    rec->innermost = acts[n - 1];
    for (int level = 0; level < n; level++) {
        CcAct *act = acts[level];
        const bool innermost = level == n - 1;
        cc_vec_push(&rec->frame, (CcRecFrame){.act = act, .transparent = true, .kept = true, .touched = innermost});
        const int n_locals = act->code->n_locals;
        const int depth = innermost ? act->depth : cc_rec_waiting_depth(act);
        for (int slot = 0; slot < n_locals + depth; slot++)
            if (cc_final_slot(act, slot)) read_slot(rec, act, level, slot, varies(ctx, level, slot));
        act->observed = true;
    }
    for (int i = 0; i < rec->own.n; i++) adopt_function(rec, rec->own.at[i].function, rec->own.at[i].level, rec->own.at[i].slot);
    rec->own.n = 0;
    const CcAct *last = acts[n - 1];
    rec->trace->start_file = Py_NewRef(last->co->co_filename);
    rec->trace->start_line = cc_code_line(last->code, last->pc);
    for (int i = 0; i < rec->frame.n; i++) rec->frame.at[i].first_fresh = rec->prov.n;
    return CC_OK;
}
