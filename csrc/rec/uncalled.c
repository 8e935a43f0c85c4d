/* Frames that are entered during a recording although recorded code has not called them: code that the interpreter can
 * run at any point. They, and everything they call, are not recorded.
 *
 *   callbacks of the collector and of signals; warnings from C code
 *   __del__, weak-reference callbacks, the ends of generators      if the recording did not make the object; otherwise
 *                                                                  they belong to the code that dropped it
 *   DeviceContext.__torch_function__ (tens/devmode.c)              calls what recorded code has called
 *   hooks of saved tensors that torch.utils.checkpoint sets        the checkpoint is recorded without them (checkpoint.c)
 *   any other frame that C code calls while the collector runs     unknown: the collector's (a C finaliser, a coroutine)
 *                                                                  or another thread's: the recording gives up */
#include "rec_events.h"

/* 3.13: a module that lacks an attribute reads its __spec__ for the error's text (_Py_module_getattro_impl), even if
 * its class has a __getattr__ and the error is discarded. */
static bool words_error(const CcAct *act, const CcEvent *ev) {
    if (ev == NULL || !cc_text_is(act->co->co_qualname, "ModuleSpec.has_location")) return false;
    for (int i = 0; i < ev->n; i++)
        if (ev->in[i] == cc_act_get(act, 0)) return false; /* the user's code reads it */
    return true;
}

static PyObject *callbacks; /* the list gc.callbacks, always the same object */

int cc_uncalled_init(void) {
    if (callbacks == NULL) callbacks = cc_obj_of_module("gc", "callbacks"); /* imports: not while frames are observed */
    return callbacks != NULL || !PyErr_Occurred() ? 0 : -1;
}

static bool collector_calls(const CcAct *act) {
    for (Py_ssize_t i = 0; callbacks != NULL && PyList_Check(callbacks) && i < PyList_GET_SIZE(callbacks); i++)
        if (cc_call_function(PyList_GET_ITEM(callbacks, i)) == act->func) return true;
    return false;
}

/* The function's last positional argument. */
static PyObject *last_given(const CcAct *act) {
    const PyCodeObject *co = act->co;
    const int at = co->co_argcount + co->co_kwonlyargcount;
    PyObject *more = co->co_flags & CO_VARARGS ? cc_act_get(act, at) : NULL;
    if (more != NULL && PyTuple_Check(more) && PyTuple_GET_SIZE(more) > 0)
        return PyTuple_GET_ITEM(more, PyTuple_GET_SIZE(more) - 1);
    int i = co->co_argcount - 1;
    while (i >= 0 && cc_param_is_default(act->func, cc_act_get(act, i))) i--;
    return i >= 0 ? cc_act_get(act, i) : NULL;
}

/* For a frame called by C code: the object whose end runs it, or the weak reference whose callback it is; NULL:
 * neither. A caller of close() holds a reference to the generator; a generator being finalised has none, or is marked
 * because it is garbage. */
static PyObject *ends(const CcAct *act) {
    static PyObject *del;
    if (del == NULL) del = cc_obj_intern("__del__");
    if (act->generator) {
        PyObject *generator = act->thrown ? cc_act_generator(act) : NULL;
        if (generator == NULL || !(Py_REFCNT(generator) == 1 || PyObject_GC_IsFinalized(generator))) return NULL;
        PyObject *thrown = cc_act_get(act, act->code->n_locals + act->depth - 1);
        return PyErr_GivenExceptionMatches(thrown, PyExc_GeneratorExit) ? generator : NULL;
    }
    PyObject *self = act->co->co_argcount > 0 ? cc_act_get(act, 0) : NULL;
    if (self != NULL && cc_type_lookup(Py_TYPE(self), del) == (PyObject *)act->func) return self;
    PyObject *ref = last_given(act);
    return ref != NULL && PyWeakref_Check(ref) && cc_weak_target(ref) == NULL ? ref : NULL;
}

static bool in_warnings(const CcAct *act) {
    const char *module = cc_rec_module(act->func->func_globals); /* since 3.14, _py_warnings holds its code */
    return module != NULL && (strcmp(module, "warnings") == 0 || strcmp(module, "_py_warnings") == 0);
}

/* CPython warns of a coroutine that nobody awaited when it dies (_PyGen_Finalize). */
static bool warns_of_coroutine(const CcAct *act) {
    return act->started && act->co->co_argcount > 0 && cc_text_is(act->co->co_name, "_warn_unawaited_coroutine") &&
           in_warnings(act);
}

CcGo cc_uncalled_enter(CcRec *rec, CcAct *act, bool *ends_object) {
    const CcAct *caller = act->prev;
    const CcEvent *ev = caller != NULL ? caller->event : NULL;
    if (cc_rec_calls(ev, act)) return CC_OK;
    if (cc_devmode_handles(act->func)) return CC_PASS_ALL;
    if (rec->checkpoint != 0 && cc_rec_in_module(act, "torch.utils.checkpoint")) return CC_PASS_ALL;
    if (warns_of_coroutine(act)) {
        cc_finalizers_told(rec, cc_act_get(act, 0));
        return CC_PASS_ALL;
    }
    PyObject *ending = act->started || act->thrown ? ends(act) : NULL;
    if (ending != NULL && PyWeakref_Check(ending) && cc_value_origin(rec, ending) == CC_O_SOURCE)
        /* a callback, or map() passes the reference on, whose call will be a break */
        return cc_rec_poison(rec, act, CC_R_WEAK, NULL);
    if (ending != NULL) {
        *ends_object = cc_finalizers_ends(rec, ending);
        return *ends_object ? CC_OK : CC_PASS_ALL;
    }
    if (act->started && !act->generator) {
        const bool by_c = ev != NULL && ev->n > 0 && cc_call_function(ev->in[0]) == NULL;
        if (collector_calls(act) || (by_c && in_warnings(act)) || words_error(act, ev) ||
            (rec->frame.n > 0 && caller == cc_vec_last(&rec->frame).act && ev == NULL))
            return CC_PASS_ALL;
    }
    if (rec->frame.n == 0 || !cc_act_collecting(act)) return CC_OK;
    cc_site_why(rec, act, CC_R_FINALISED, NULL); /* no instruction is at fault */
    return cc_rec_give_up(rec);
}

bool cc_uncalled_reports(const CcAct *act, int how) {
    return how == CC_LEAVE_RAISE && !(act->generator && (PyErr_ExceptionMatches(PyExc_GeneratorExit) ||
                                                         PyErr_ExceptionMatches(PyExc_StopIteration)));
}
