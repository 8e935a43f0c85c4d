/* handed: functions that torch keeps and calls again in a backward, outside of every compiled call (rows KEEPS of
 * library.def). In a call that a break makes, torch gets a compiled function instead (ccompile/handed.py), which has the
 * knobs of the root and is freed with the root's entries. */
#include "eval_int.h"

enum { FUNCTION = 1 }; /* its place among the callee's arguments */

static PyObject *new_table(const CcRoot *root) {
    PyObject *type = cc_obj_of_module("ccompile.handed", "Handed"),
             *knobs = type != NULL ? cc_policy_dict(&root->knobs) : NULL;
    PyObject *dynamic = root->hints.all ? Py_True : root->hints.none ? Py_False : Py_None, *table = NULL;
    PyObject *none = knobs != NULL ? PyTuple_New(0) : NULL;
    PyObject *settings = none != NULL ? Py_BuildValue("{sOsO}", "options", knobs, "dynamic", dynamic) : NULL;
    if (settings != NULL) table = PyObject_Call(type, none, settings);
    Py_XDECREF(settings);
    Py_XDECREF(none);
    Py_XDECREF(knobs);
    Py_XDECREF(type);
    return table;
}

PyObject *cc_handed_list(const CcRoot *root) {
    return root->handed != NULL ? PyObject_CallMethod(root->handed, "all", NULL) : PyList_New(0);
}

bool cc_handed_inside(PyObject *callable) {
    PyObject *f;
    if (cc_known_is(callable, CC_KNOWN_PARTIAL)) CC_RETRY_ALLOC(f, PyObject_GetAttrString(callable, "func"));
    else f = Py_NewRef(callable);
    const bool inside = PyFunction_Check(f) && cc_library_hands((PyFunctionObject *)f);
    Py_DECREF(f);
    return inside;
}

bool cc_handed_replace(CcRoot *root, CcAct *act) {
    if (!cc_library_keeps(act->co)) return false;
    const bool paused = cc_hook_pause(act->obs, true);
    if (root->handed == NULL) root->handed = new_table(root);
    PyObject *compiled =
        root->handed != NULL ? PyObject_CallMethod(root->handed, "compiled", "O", cc_act_get(act, FUNCTION)) : NULL;
    cc_hook_pause(act->obs, paused);
    if (compiled != NULL) {
        cc_act_put(act, FUNCTION, compiled);
    } else {
        cc_log_add(CC_LOG_EAGER, "%s: a function that torch keeps could not be compiled on its own",
                   cc_root_name(root));
        cc_raised_clear();
    }
    return compiled != NULL;
}
