/* Provenance of a frame's parameters: known arguments, defaults, and objects that C code or a class made for the
 * call. */
#include "rec_events.h"

bool cc_param_is_default(const PyFunctionObject *func, PyObject *v) {
    for (Py_ssize_t i = 0; func->func_defaults != NULL && i < PyTuple_GET_SIZE(func->func_defaults); i++)
        if (PyTuple_GET_ITEM(func->func_defaults, i) == v) return true;
    Py_ssize_t pos = 0;
    PyObject *value;
    while (func->func_kwdefaults != NULL && PyDict_Next(func->func_kwdefaults, &pos, NULL, &value))
        if (value == v) return true;
    return false;
}

/* The function's guard fixes the identity of its defaults: neither has the trace made it, nor is it known by its code. */
static bool fixes_defaults(CcRec *rec, const PyFunctionObject *func) {
    const CcProv *p = cc_value_find(rec, (PyObject *)func);
    return p == NULL || (p->origin == CC_O_SOURCE && rec->trace->guards.g.at[p->id].check != CC_CHK_TYPE);
}

/* The content of defaults may change. */
static void read_default(CcRec *rec, const PyFunctionObject *func, PyObject *v) {
    PyObject *defaults = func->func_defaults;
    for (Py_ssize_t i = 0; defaults != NULL && i < PyTuple_GET_SIZE(defaults); i++) {
        if (PyTuple_GET_ITEM(defaults, i) != v) continue;
        cc_value_read(rec, CC_SRC_ITEM, cc_value_const_source(rec, defaults), NULL, 0, (int)i, v);
        return;
    }
    Py_ssize_t pos = 0;
    PyObject *key, *value;
    while (PyDict_Next(func->func_kwdefaults, &pos, &key, &value)) {
        if (value != v) continue;
        cc_value_read(rec, CC_SRC_KEY, cc_value_const_source(rec, func->func_kwdefaults), key, 0, 0, v);
        return;
    }
}

/* Keyword defaults are in a dict that can be changed in place: guards cover its content as well as its identity. */
static void guard_kwdefaults(CcRec *rec, PyFunctionObject *func, bool called) {
    if (func->func_kwdefaults == NULL || cc_value_source(rec, (PyObject *)func) < 0) return;
    cc_value_const_source(rec, func->func_kwdefaults);
    if (!called) cc_sym_fill(rec, func->func_kwdefaults);
    cc_inside_guard(rec, func->func_kwdefaults, 1);
    cc_sym_drop_pending(rec); /* before a break in the callee, whose frame holds these numbers as constants */
}

void cc_param_call(CcRec *rec, PyFunctionObject *func) { guard_kwdefaults(rec, func, false); }

/* A class has made the object and calls __init__. */
static void made_by_caller(CcRec *rec, PyObject *self) {
    cc_value_fresh(rec, self);
    CcProv *p = cc_value_find(rec, self);
    if (p == NULL || p->origin != CC_O_FRESH || rec->frame.n < 2) return;
    const CcAct *caller = rec->frame.at[rec->frame.n - 2].act;
    p->site_co = caller->co;
    p->site_pc = caller->pc;
}

/* If the trace made the function, but not its defaults, which a break left, no guard has read what is in them. */
static void read_given_defaults(CcRec *rec, PyFunctionObject *func) {
    PyObject *defaults[] = {func->func_defaults, func->func_kwdefaults};
    const bool made = cc_value_origin(rec, (PyObject *)func) == CC_O_FRESH;
    for (int i = 0; made && i < CC_COUNT(defaults); i++) {
        const CcProv *p = defaults[i] != NULL ? cc_value_find(rec, defaults[i]) : NULL;
        if (p != NULL && p->origin == CC_O_SOURCE && !cc_inside_guard(rec, defaults[i], 1)) rec->unseen = true;
    }
    cc_sym_drop_pending(rec);
}

void cc_param_learn(CcRec *rec, CcAct *act, bool by_c) {
    guard_kwdefaults(rec, act->func, true);
    const bool fixed = fixes_defaults(rec, act->func);
    if (!fixed) read_given_defaults(rec, act->func);
    const PyCodeObject *co = act->co;
    const int named = co->co_argcount + co->co_kwonlyargcount;
    const int n = named + !!(co->co_flags & CO_VARARGS) + !!(co->co_flags & CO_VARKEYWORDS);
    for (int i = 0; i < n; i++) {
        PyObject *v = cc_act_get(act, i);
        const CcProv *p = v != NULL ? cc_value_find(rec, v) : NULL;
        if (fixed && p != NULL && p->origin == CC_O_SOURCE && cc_param_is_default(act->func, v) &&
            rec->trace->guards.g.at[p->id].source !=
                CC_SRC_CONST) /* the caller passed the object that is also the default: guards that it still is */
            cc_guard_add_check(&rec->trace->guards, p->id, CC_CHK_IDENT, v, -1);
        if (i == named && v != NULL && PyTuple_CheckExact(v) && p == NULL &&
            (cc_sym_within(rec, v, 1) || cc_number_varies(rec, v, 1)))
            cc_value_set(rec, v, CC_O_FRESH, -1); /* *args of numbers that vary is no constant */
        if (v == NULL || cc_value_origin(rec, v) != CC_O_UNKNOWN) continue;
        /* enumerate and zip make the tuple */
        if (i >= named || (by_c && PyTuple_CheckExact(v))) cc_value_fresh(rec, v);
        else if (cc_param_is_default(act->func, v)) read_default(rec, act->func, v);
        else if (i == 0 && cc_text_is(co->co_name, "__init__")) made_by_caller(rec, v);
        else if (by_c && i <= 1 && cc_opaque_context(v)) cc_value_fresh(rec, v); /* behind a class method's class */
    }
}
