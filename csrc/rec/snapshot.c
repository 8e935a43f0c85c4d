/* The snapshot of a break: recipes for the slots of all frames of the region, and for the exception being handled. */
#include "rec_int.h"

/* A placeholder for an operand of the call that a frame is suspended in: the instruction only pops it, but requires a
 * tuple and a dict for f(*tuple, **dict). */
static int operand_recipe(CcRec *rec, PyObject *operand) {
    static PyObject *empty_dict;
    if (empty_dict == NULL) empty_dict = PyDict_New();
    PyObject *like = PyTuple_Check(operand)  ? PyTuple_New(0)
                     : PyDict_Check(operand) ? Py_NewRef(empty_dict)
                                             : Py_NewRef(Py_None);
    cc_vec_push(&rec->trace->recipes.r, (CcRecipe){.make = CC_MAKE_CONST, .object = like});
    return rec->trace->recipes.r.n - 1;
}

static int null_recipe(CcRec *rec) {
    cc_vec_push(&rec->trace->recipes.r, (CcRecipe){.make = CC_MAKE_NULL});
    return rec->trace->recipes.r.n - 1;
}

/* Recipe of a slot, or CC_SLOT_STAYS; < CC_SLOT_STAYS: rec->unbuildable is set. */
static int snapshot_slot(CcRec *rec, const CcRecFrame *f, int slot, int keep_to, bool looked, CcMap *memo) {
    PyObject *v = cc_act_get(f->act, slot);
    if (slot >= f->act->code->n_locals || cc_finalizers_slot(f->act, slot)) {
        const int r = v == NULL         ? null_recipe(rec)
                      : slot >= keep_to ? operand_recipe(rec, v)
                                        : cc_recipe_of(rec, v, memo);
        return r >= 0 ? r : CC_SLOT_STAYS - 1;
    }
    if (cc_idle_stays(rec, f, slot)) return CC_SLOT_STAYS;
    const int r = v != NULL ? cc_idle_recipe(rec, f->act, slot, looked, memo) : -1;
    return r >= 0 ? r : null_recipe(rec);
}

static bool snapshot_level(CcRec *rec, const CcRecFrame *f, bool innermost, bool looked, CcMap *memo) {
    CcTrace *t = rec->trace;
    CcAct *act = f->act;
    const int n_locals = act->code->n_locals, n = n_locals + act->depth;
    /* a kept frame is not made, and its recipe would hold a function that the call has made, with all in its cells */
    const int func = f->kept ? null_recipe(rec) : cc_recipe_of(rec, (PyObject *)act->func, memo);
    if (func < 0) return false;
    const int keep_to = innermost ? n : n_locals + cc_act_depth_after_call(act);
    CcSnapshotFrame level = {.func = func,
                             .co = (PyCodeObject *)Py_NewRef((PyObject *)act->co),
                             .pc = act->pc,
                             .depth = act->depth,
                             .kept = f->kept,
                             .touched = f->touched,
                             .slot0 = t->slots.n,
                             .n = n};
    cc_vec_push(&t->level, level);
    for (int slot = 0; slot < n; slot++) cc_vec_push(&t->slots, -1);
    for (int slot = 0; slot < n; slot++) {
        const int r = snapshot_slot(rec, f, slot, keep_to, looked, memo);
        if (r < CC_SLOT_STAYS) return false;
        t->slots.at[level.slot0 + slot] = r;
    }
    return true;
}

/* The exception that an `except` or `finally` handles is stored in the thread's state, not in a frame's slot. */
static bool snapshot_handled(CcRec *rec, CcMap *memo) {
    PyObject *handled = PyErr_GetHandledException();
    bool ok = true;
    if (handled != rec->handled_start) {
        rec->trace->handled = handled == rec->handled_outer ? CC_HANDLED_OUTER : cc_recipe_of(rec, handled, memo);
        ok = rec->trace->handled >= 0 || handled == rec->handled_outer;
    }
    Py_XDECREF(handled);
    return ok;
}

bool cc_snapshot_take(CcRec *rec, CcMap *memo, int *level) {
    const bool looked = cc_idle_looked(rec);
    for (int i = 0; i < rec->frame.n; i++) {
        *level = i;
        if (!snapshot_level(rec, &rec->frame.at[i], i == rec->frame.n - 1, looked, memo)) return false;
    }
    return snapshot_handled(rec, memo);
}
