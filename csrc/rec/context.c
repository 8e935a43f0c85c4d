/* Context variables (contextvars.ContextVar). The trace knows what each variable that it touches holds now:
 *
 *   ENTRY   what it held when the trace began: a guard on that value, or that it had none
 *   SET     what the trace has set
 *   OLD     what it held before an earlier trace set it: reset(token) with that trace's token, which keeps the value
 *
 * reset() leads back to the state before the set() that made its token. */
#include "rec_events.h"

typedef enum State { ENTRY, SET, OLD } State;

/* The variable's last event; -1: none. */
static int last_event(const CcRec *rec, PyObject *var) {
    for (int i = rec->context.n - 1; i >= 0; i--)
        if (rec->context.at[i].var == var) return i;
    return -1;
}

/* Guards what the variable held when the trace began, and its default if it held nothing and the default was read. */
static void read_entry(CcRec *rec, PyObject *var, bool own_default, PyObject *result) {
    const int source = cc_value_const_source(rec, var);
    PyObject *v = cc_obj_context_value(var);
    const int id = cc_value_read(rec, CC_SRC_CTXSET, source, NULL, 0, 0, v);
    if (v == NULL && own_default) cc_value_read(rec, CC_SRC_CTXVAR, source, NULL, 0, 0, result);
    Py_XDECREF(v);
    cc_vec_push(&rec->context, ((CcContextEvent){.var = var, .state = ENTRY, .guard = id}));
}

/* Token.MISSING, for a variable that held nothing, is the only object of its class, so the guard on its class suffices. */
static void read_old(CcRec *rec, PyObject *token) {
    PyObject *old = PyObject_GetAttrString(token, "old_value");
    if (old == NULL) cc_raised_clear();
    cc_value_read_member(rec, cc_value_source(rec, token), Py_TYPE(token), "old_value", old);
    Py_XDECREF(old);
}

void cc_context_got(CcRec *rec, PyObject *var, PyObject *given, PyObject *result) {
    const int last = last_event(rec, var);
    const State state = last >= 0 ? (State)rec->context.at[last].state : ENTRY;
    if (state == ENTRY) read_entry(rec, var, given == NULL, result);
    else if (state == OLD) read_old(rec, rec->context.at[last].token);
}

void cc_context_set(CcRec *rec, PyObject *var, PyObject *token) {
    const int before = last_event(rec, var);
    const CcContextEvent *e = before >= 0 ? &rec->context.at[before] : NULL;
    if (e != NULL && e->state == ENTRY && e->guard >= 0) cc_finalizers_written(rec, &e->guard, 1);
    cc_vec_push(&rec->context, ((CcContextEvent){.var = var, .state = SET, .token = token, .before = before}));
}

bool cc_context_reset(CcRec *rec, PyObject *var, PyObject *token) {
    CcContextEvent now = {.var = var, .state = OLD, .token = token};
    int i = rec->context.n - 1;
    while (i >= 0 && (rec->context.at[i].state != SET || rec->context.at[i].token != token)) i--;
    if (i < 0 && cc_value_source(rec, token) < 0) return false;
    if (i >= 0) {
        const int before = rec->context.at[i].before;
        now = before >= 0 ? rec->context.at[before] : (CcContextEvent){.var = var, .state = ENTRY, .guard = -1};
    }
    cc_vec_push(&rec->context, now);
    return true;
}
