/* Doors to the frames of CPython 3.11; py_int.h documents them. Only the frame_3xx.c files include CPython's internal
 * headers, and a build compiles exactly one of them to code.
 *
 * 3.11: a frame stores the code unit BEFORE the next instruction (prev_instr); the caller's _PyCFrame points to the
 * current frame and says whether a tracer is active; a finished frame is cleared by its caller (_PyEval_Vector,
 * gen_send_ex2 in Objects/genobject.c). */
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

/* Core headers in an extension module: Py_BUILD_CORE_MODULE restricts them to exported symbols; NDEBUG, because their
 * asserts use hidden ones. */
#    define Py_BUILD_CORE_MODULE 1
#    define Py_BUILD_CORE 1
#    ifndef NDEBUG
#        define NDEBUG 1
#    endif
#    define PY_SSIZE_T_CLEAN
#    include <Python.h>

#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wunused-parameter"
#    pragma GCC diagnostic ignored "-Wshadow"
#    pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#    pragma GCC diagnostic ignored "-Wsign-compare"
#    pragma GCC diagnostic ignored "-Wstrict-prototypes"
#    include <internal/pycore_code.h>
#    include <internal/pycore_frame.h>
#    include <internal/pycore_interp.h>
#    include <internal/pycore_pystate.h>
#    pragma GCC diagnostic pop

#    include "py_int.h"

typedef _PyInterpreterFrame Frame;

PyCodeObject *cc_frame_code(void *frame) { return ((Frame *)frame)->f_code; }

PyFunctionObject *cc_frame_func(void *frame) { return (PyFunctionObject *)((Frame *)frame)->f_func; }

PyObject *cc_frame_globals(void *frame) { return ((Frame *)frame)->f_globals; }

PyObject *cc_frame_builtins(void *frame) { return ((Frame *)frame)->f_builtins; }

PyObject **cc_frame_slots(void *frame) { return ((Frame *)frame)->localsplus; }

int cc_frame_depth(void *frame) { return ((Frame *)frame)->stacktop - cc_frame_code(frame)->co_nlocalsplus; }

bool cc_frame_in_generator(void *frame) { return ((Frame *)frame)->owner == FRAME_OWNED_BY_GENERATOR; }

bool cc_frame_in_thread(void *frame) { return ((Frame *)frame)->owner == FRAME_OWNED_BY_THREAD; }

PyObject *cc_frame_generator(void *frame) { return (PyObject *)((char *)frame - offsetof(PyGenObject, gi_iframe)); }

bool cc_frame_collecting(const PyThreadState *ts) { return ts->interp->gc.collecting != 0; }

int cc_frame_next_unit(void *frame) {
    return (int)(((Frame *)frame)->prev_instr - _PyCode_CODE(((Frame *)frame)->f_code)) + 1;
}

int cc_frame_lasti(void *frame) { return cc_frame_next_unit(frame) - 1; }

void cc_frame_take(void *frame) { (void)frame; }

void cc_frame_return(void *frame, int depth, uint64_t offsets) { (void)frame, (void)depth, (void)offsets; }

void cc_frame_set_position(void *frame, int unit, int depth) {
    Frame *f = frame;
    f->prev_instr = _PyCode_CODE(f->f_code) + unit;
    f->stacktop = f->f_code->co_nlocalsplus + depth;
}

void cc_frame_link(PyThreadState *ts, void *frame) {
    ((Frame *)frame)->previous = ts->cframe->current_frame;
    ts->cframe->current_frame = frame;
}

void cc_frame_unlink(PyThreadState *ts, void *frame) { ts->cframe->current_frame = ((Frame *)frame)->previous; }

bool cc_frame_enter_level(PyThreadState *ts) {
    if (ts->recursion_remaining <= 1) return false;
    ts->recursion_remaining--;
    return true;
}

void cc_frame_leave_level(PyThreadState *ts) { ts->recursion_remaining++; }

void cc_frame_levels(PyThreadState *ts, int *python, int *c) {
    *python = ts->recursion_remaining;
    *c = 0;
}

PyObject *cc_frame_resume(PyThreadState *ts, void *frame, int unit, int depth) {
    cc_frame_set_position(frame, unit - 1, depth);
    return _PyEval_EvalFrameDefault(ts, frame, 0);
}

void *cc_frame_of_generator(PyObject *generator, int *state) {
    PyGenObject *g = (PyGenObject *)generator;
    *state = g->gi_frame_state;
    Frame *f = (Frame *)g->gi_iframe;
    if (*state >= FRAME_EXECUTING || g->gi_exc_state.exc_value != NULL) return NULL;
    return f->frame_obj == NULL || Py_REFCNT(f->frame_obj) == 1 ? f : NULL;
}

void cc_frame_generator_names(PyObject *generator, PyObject **name, PyObject **qualname) {
    *name = ((PyGenObject *)generator)->gi_name;
    *qualname = ((PyGenObject *)generator)->gi_qualname;
}

int cc_frame_created_state(void) { return FRAME_CREATED; }

void cc_frame_suspend(PyObject *generator, int state, int unit, int depth) {
    PyGenObject *g = (PyGenObject *)generator;
    cc_frame_set_position(g->gi_iframe, unit - 1, depth);
    g->gi_frame_state = (int8_t)state;
}

PyObject *cc_frame_throw(PyThreadState *ts, void *frame) {
    return _PyEval_EvalFrameDefault(ts, frame, 1); /* looks up the handler for prev_instr: exact */
}

bool cc_frame_owns_locals(void *frame) {
    PyFrameObject *frame_object = ((Frame *)frame)->frame_obj;
    return frame_object == NULL || Py_REFCNT(frame_object) == 1;
}

void cc_frame_finish(PyThreadState *ts, void *frame) {
    (void)ts;
    (void)frame; /* CPython's caller clears it */
}

bool cc_frame_traced(PyThreadState *ts, PyCodeObject *co) {
    (void)co;
    /* use_tracing is off inside a tracer */
    return ts->cframe->use_tracing || ts->c_tracefunc || ts->c_profilefunc;
}

bool cc_frame_profiled(PyThreadState *ts) { return !ts->c_tracefunc && ts->c_profilefunc; }

/* ceval.c's eval_frame_handle_pending is hidden. Instead, the public call handles signals and pending calls, releasing
 * the GIL serves a GIL request, and calling an empty function handles the rest (an asynchronous exception). */
int cc_frame_poll(PyThreadState *ts) {
    if (!_Py_atomic_load_relaxed(&ts->interp->ceval.eval_breaker)) return 0;
    if (Py_MakePendingCalls() < 0) return -1;
    if (_Py_atomic_load_relaxed(&ts->interp->ceval.gil_drop_request)) {
        Py_BEGIN_ALLOW_THREADS Py_END_ALLOW_THREADS
    }
    return ts->async_exc ? cc_hook_run_noop() : 0;
}

void cc_frame_grant(PyThreadState *ts, int units) {
    (void)ts;
    (void)units; /* 3.11 does not count C calls separately */
}

int cc_frame_grant_wanted(void) { return 0; }

void *cc_frame_get_extra(PyCodeObject *co, Py_ssize_t index) {
    void *data = NULL;
    if (_PyCode_GetExtra((PyObject *)co, index, &data) < 0) PyErr_Clear();
    return data;
}

int cc_frame_set_extra(PyCodeObject *co, Py_ssize_t index, void *data) {
    return _PyCode_SetExtra((PyObject *)co, index, data);
}

Py_ssize_t cc_frame_extra_index(freefunc release) { return _PyEval_RequestCodeExtraIndex(release); }

PyObject *cc_frame_function(PyObject *code, PyObject *globals) { return PyFunction_New(code, globals); }

int cc_frame_method(PyObject *o, PyObject *name, PyObject **method) { return _PyObject_GetMethod(o, name, method); }

PyObject **cc_frame_instance_dict(PyObject *o) { return _PyObject_GetDictPtr(o); /* materialises inline values */ }

#endif
