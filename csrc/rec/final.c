/* What the trace made and eager finalises behind its end: a suspended generator in a `try` or `with`, an object whose
 * class has __del__, in a local that nobody reads any more or in a cycle. A replay makes neither such an object nor its
 * end, unless the result, an effect or the snapshot of a break needs it. */
#include "rec_int.h"

static bool catches(const CcCode *code, int pc) {
    int exits[1];
    return cc_code_catches(code, pc, exits, 1) != 0;
}

static bool catches_anywhere(const CcCode *code) {
    for (int pc = 0; pc < code->n; pc++)
        if (catches(code, pc)) return true;
    return false;
}

typedef enum CcWhen { NOW, EVER } CcWhen;

/* Whether close() runs code of the user's: an `except`, `finally` or `with` around the suspension, or around that of
 * what it waits for by `yield from`. EVER: also of one that has not begun, and may. True when it can't be told. */
static bool close_runs_code(PyObject *generator, CcWhen when) {
    PyObject *frame = PyObject_GetAttrString(generator, "gi_frame"),
             *inner = PyObject_GetAttrString(generator, "gi_yieldfrom");
    PyObject *suspended = PyObject_GetAttrString(generator, "gi_suspended"),
             *co = PyObject_GetAttrString(generator, "gi_code");
    PyObject *last = frame != NULL && frame != Py_None ? PyObject_GetAttrString(frame, "f_lasti") : NULL;
    const CcCode *code = co != NULL ? cc_code_get((PyCodeObject *)co) : NULL;
    const long unit = last != NULL ? PyLong_AsLong(last) / (long)sizeof(uint16_t) : -1;
    bool runs = true;
    if (frame == Py_None) runs = false; /* it has ended */
    else if (code != NULL && suspended == Py_False) runs = when == EVER && catches_anywhere(code);
    else if (code != NULL && inner != NULL && unit >= 0 && unit < code->n_units && code->by_unit[unit] >= 0) {
        runs = catches(code, code->by_unit[unit]);
        if (!runs && inner != Py_None)
            runs = PyGen_CheckExact(inner) ? close_runs_code(inner, when) : PyObject_HasAttrString(inner, "close");
    }
    PyErr_Clear();
    Py_XDECREF(frame);
    Py_XDECREF(inner);
    Py_XDECREF(suspended);
    Py_XDECREF(co);
    Py_XDECREF(last);
    return runs;
}

bool cc_final_has(PyObject *o) { return Py_TYPE(o)->tp_finalize != NULL; }

static bool runs_code(PyObject *o, CcWhen when) {
    return cc_final_has(o) && (!PyGen_CheckExact(o) || close_runs_code(o, when));
}

bool cc_final_slot(const CcAct *act, int slot) {
    if (slot >= act->code->n_locals || cc_code_live(act->code, act->pc, slot)) return true;
    PyObject *o = cc_act_get(act, slot);
    return o != NULL && runs_code(o, EVER);
}

bool cc_final_died(CcRec *rec, const CcAct *act) {
    const bool paused = cc_hook_pause(act->obs, true);
    cc_value_sweep(rec, 0); /* what held it may be held by the map alone */
    cc_hook_pause(act->obs, paused);
    for (int i = 0; i < rec->prov.n && !rec->died; i++) {
        const CcProv *p = &rec->prov.at[i];
        rec->died = p->weak != NULL && p->origin == CC_O_SOURCE && cc_weak_target(p->weak) == NULL;
    }
    return rec->died;
}

bool cc_final_left(CcRec *rec, CcMap *memo) {
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object == NULL || p->origin != CC_O_FRESH || (p->weak != NULL && cc_weak_target(p->weak) == NULL))
            continue;
        if (cc_map_find(memo, p->object) != NULL || !runs_code(p->object, NOW)) continue;
        rec->unbuildable = p->object;
        return true;
    }
    return false;
}
