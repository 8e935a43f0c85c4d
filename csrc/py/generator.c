/* Suspended generators: reads their frames, and creates generators that are suspended at the same point. */
#include "py_int.h"

bool cc_generator_read(PyObject *generator, CcGen *out) {
    void *frame = PyGen_CheckExact(generator) ? cc_frame_of_generator(generator, &out->state) : NULL;
    if (frame == NULL) return false;
    out->func = cc_frame_func(frame);
    /* a rebuilt generator takes its name from the function */
    PyObject *name, *qualname;
    cc_frame_generator_names(generator, &name, &qualname);
    if (name != out->func->func_name || qualname != out->func->func_qualname) return false;
    out->code = cc_code_get(cc_frame_code(frame));
    if (out->code == NULL) {
        cc_raised_clear();
        return false;
    }
    out->unit = cc_frame_next_unit(frame);
    out->pc = cc_code_at(out->code, out->unit);
    out->depth = cc_frame_depth(frame);
    out->frame = frame;
    return out->pc >= 0;
}

CcGenNow cc_generator_now(PyObject *generator) {
    int state;
    void *frame = cc_frame_of_any_generator(generator, &state);
    if (frame == NULL) return (CcGenNow){.state = CC_GEN_ENDED, .co = cc_frame_generator_code(generator)};
    CcGenNow now = {.state = state == cc_frame_created_state() ? CC_GEN_CREATED
                             : cc_frame_executing(state)       ? CC_GEN_RUNNING
                                                               : CC_GEN_SUSPENDED,
                    .co = cc_frame_code(frame),
                    .globals = cc_frame_globals(frame)};
    if (now.state != CC_GEN_SUSPENDED) return now;
    now.lasti = cc_frame_lasti(frame);
    now.inner = cc_frame_delegate(frame);
    return now;
}

bool cc_generator_calls_close(PyObject *iterator) {
    static PyObject *name;
    if (PyGen_CheckExact(iterator)) {
        const CcGenNow now = cc_generator_now(iterator);
        return now.inner != NULL && cc_generator_calls_close(now.inner);
    }
    if (name == NULL) name = cc_obj_intern("close");
    if (Py_TYPE(iterator)->tp_getattro != PyObject_GenericGetAttr || cc_type_lookup(Py_TYPE(iterator), name) != NULL)
        return true;
    PyObject *dict = cc_obj_dict(iterator);
    return dict != NULL && PyDict_Contains(dict, name) != 0;
}

PyObject *cc_generator_get(const CcGen *g, int slot) { return cc_slot_get(cc_frame_slots(g->frame)[slot]); }

PyObject *cc_generator_new(PyFunctionObject *func) {
    CcObserver *obs = cc_hook_current();
    const bool paused = obs != NULL && cc_hook_pause(obs, true);
    PyObject *generator = cc_hook_call_with_nones(func);
    if (obs != NULL) cc_hook_pause(obs, paused);
    if (generator == NULL || PyGen_CheckExact(generator)) return generator;
    PyErr_SetString(PyExc_SystemError,
                    "ccompile: the function of a generator that is to be rebuilt did not return a generator");
    Py_DECREF(generator);
    return NULL;
}

void cc_generator_put(PyObject *generator, int slot, PyObject *value) {
    int state;
    void *frame = cc_frame_of_generator(generator, &state);
    PyObject **slots = cc_frame_slots(frame), *old = NULL;
    if (slot < cc_frame_code(frame)->co_nlocalsplus) old = cc_slot_get(slots[slot]);
    slots[slot] = cc_slot_of_local(value);
    Py_XDECREF(old);
}

/* Rewinds the generator to its start, where no handler encloses it. */
void cc_generator_retire(PyObject *generator) {
    CcGen g;
    if (!cc_generator_read(generator, &g)) return;
    int unit = 0, pc = 0;
    while (pc < g.code->n && g.code->insn[pc].op != CC_INSN_SUSPEND) pc++;
    if (pc < g.code->n) unit = g.code->insn[pc].next;
    cc_frame_take(g.frame); /* what the stack has borrowed is owned now, so it can be dropped */
    for (int i = g.depth; i > 0; i--) {
        PyObject *old = cc_generator_get(&g, g.code->n_locals + i - 1);
        cc_frame_suspend(generator, g.state, g.unit, i - 1);
        Py_XDECREF(old);
    }
    cc_frame_suspend(generator, cc_frame_created_state(), unit, 0);
}

void cc_generator_suspend(PyObject *generator, int state, int unit, int depth) {
    cc_frame_suspend(generator, state, unit, depth);
}
