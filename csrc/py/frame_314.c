/* Doors to the frames of CPython 3.14; py_int.h documents them. Only the frame_3xx.c files include CPython's internal
 * headers, and a build compiles exactly one of them to code.
 *
 * 3.14: as 3.13, but slots are _PyStackRef (py_int.h), and so are the frame's code and function; `stackpointer`
 * replaces `stacktop`, and has to be right whenever the frame is linked, because the collector of 3.14's first releases
 * walks all linked frames; C calls are not counted, CPython compares addresses of the C stack instead. Throwing into a frame looks up
 * the handler one unit before instr_ptr, so cc_frame_throw is exact only where both units have the same handler. */
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030E0000 && PY_VERSION_HEX < 0x030F0000

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
#    include <internal/pycore_ceval.h>
#    include <internal/pycore_code.h>
#    include <internal/pycore_frame.h>
#    include <internal/pycore_function.h>
#    include <internal/pycore_instruments.h>
#    include <internal/pycore_interp.h>
#    include <internal/pycore_interpframe.h>
#    include <internal/pycore_object.h>
#    include <internal/pycore_pystate.h>
#    include <internal/pycore_stackref.h>
#    pragma GCC diagnostic pop

#    include "py_int.h"

typedef _PyInterpreterFrame Frame;

PyCodeObject *cc_frame_code(void *frame) { return _PyFrame_GetCode(frame); }

PyFunctionObject *cc_frame_func(void *frame) {
    return (PyFunctionObject *)PyStackRef_AsPyObjectBorrow(((Frame *)frame)->f_funcobj);
}

PyObject *cc_frame_globals(void *frame) { return ((Frame *)frame)->f_globals; }

PyObject *cc_frame_builtins(void *frame) { return ((Frame *)frame)->f_builtins; }

PyObject **cc_frame_slots(void *frame) { return (PyObject **)((Frame *)frame)->localsplus; }

int cc_frame_depth(void *frame) { return (int)(((Frame *)frame)->stackpointer - _PyFrame_Stackbase(frame)); }

bool cc_frame_in_generator(void *frame) { return ((Frame *)frame)->owner == FRAME_OWNED_BY_GENERATOR; }

bool cc_frame_in_thread(void *frame) { return ((Frame *)frame)->owner == FRAME_OWNED_BY_THREAD; }

PyObject *cc_frame_generator(void *frame) { return (PyObject *)((char *)frame - offsetof(PyGenObject, gi_iframe)); }

bool cc_frame_collecting(const PyThreadState *ts) { return ts->interp->gc.collecting != 0; }

int cc_frame_next_unit(void *frame) { return _PyInterpreterFrame_LASTI((Frame *)frame); }

int cc_frame_lasti(void *frame) { return cc_frame_next_unit(frame); }

/* Borrowed references become owned ones, and the stack gets the evaluator's form. */
void cc_frame_take(void *frame) {
    Frame *f = frame;
    _PyStackRef *base = _PyFrame_Stackbase(f);
    for (_PyStackRef *ref = f->localsplus; ref < f->stackpointer; ref++) {
        if (PyStackRef_IsTaggedInt(*ref)) {
            PyObject *unit = PyLong_FromSsize_t(PyStackRef_UntagInt(*ref));
            ref->bits = (uintptr_t)(unit != NULL ? unit : Py_None);
            continue;
        }
        *ref = PyStackRef_MakeHeapSafe(*ref);
        if (ref >= base && !PyStackRef_IsNull(*ref)) ref->bits = (uintptr_t)PyStackRef_AsPyObjectBorrow(*ref);
    }
}

void cc_frame_return(void *frame, int depth, uint64_t offsets) {
    _PyStackRef *base = _PyFrame_Stackbase(frame);
    for (int i = 0; i < depth; i++) {
        if (PyStackRef_IsNull(base[i])) continue;
        PyObject *o = PyStackRef_AsPyObjectBorrow(base[i]);
        const bool offset = i < 64 && (offsets >> i & 1) && PyLong_Check(o);
        base[i] = offset ? PyStackRef_TagInt(PyLong_AsLong(o)) : PyStackRef_FromPyObjectSteal(o);
        if (offset) Py_DECREF(o);
    }
}

void cc_frame_set_position(void *frame, int unit, int depth) {
    Frame *f = frame;
    PyCodeObject *co = _PyFrame_GetCode(f);
    f->instr_ptr = _PyCode_CODE(co) + unit;
    f->stackpointer = f->localsplus + co->co_nlocalsplus + depth;
}

void cc_frame_link(PyThreadState *ts, void *frame) {
    ((Frame *)frame)->previous = ts->current_frame;
    ts->current_frame = frame;
}

void cc_frame_unlink(PyThreadState *ts, void *frame) { ts->current_frame = ((Frame *)frame)->previous; }

bool cc_frame_enter_level(PyThreadState *ts) {
    if (ts->py_recursion_remaining <= 1) return false;
    ts->py_recursion_remaining--;
    return true;
}

void cc_frame_leave_level(PyThreadState *ts) { ts->py_recursion_remaining++; }

void cc_frame_levels(PyThreadState *ts, int *python, int *c) {
    *python = ts->py_recursion_remaining;
    *c = 0;
}

PyObject *cc_frame_resume(PyThreadState *ts, void *frame, int unit, int depth) {
    cc_frame_set_position(frame, unit, depth);
    return _PyEval_EvalFrameDefault(ts, frame, 0);
}

void *cc_frame_of_generator(PyObject *generator, int *state) {
    PyGenObject *g = (PyGenObject *)generator;
    *state = g->gi_frame_state;
    Frame *f = &g->gi_iframe;
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
    cc_frame_set_position(&g->gi_iframe, unit, depth);
    g->gi_frame_state = (int8_t)state;
}

PyObject *cc_frame_throw(PyThreadState *ts, void *frame) { return _PyEval_EvalFrameDefault(ts, frame, 1); }

bool cc_frame_owns_locals(void *frame) {
    PyFrameObject *frame_object = ((Frame *)frame)->frame_obj;
    return frame_object == NULL || Py_REFCNT(frame_object) == 1;
}

/* It checks the owner, so it handles generator frames as well. */
void cc_frame_finish(PyThreadState *ts, void *frame) { _PyEval_FrameClearAndPop(ts, frame); }

/* Excludes tools 6 and 7, sys.setprofile and sys.settrace: they leave marks in code objects after they are turned
 * off. */
enum { USER_TOOLS = (1 << PY_MONITORING_SYS_PROFILE_ID) - 1 };

/* Tools that listen to all code. */
static uint8_t global_tools(PyThreadState *ts) {
    const _Py_GlobalMonitors *all = &ts->interp->monitors;
    uint8_t tools = 0;
    for (size_t i = 0; i < sizeof all->tools; i++) tools |= all->tools[i];
    return tools & USER_TOOLS;
}

bool cc_frame_traced(PyThreadState *ts, PyCodeObject *co) {
    if (ts->c_tracefunc || ts->c_profilefunc || global_tools(ts) != 0) return true;
    if (!co || !co->_co_monitoring) return false;
    const _Py_LocalMonitors *own = &co->_co_monitoring->local_monitors;
    uint8_t tools = 0;
    for (size_t i = 0; i < sizeof own->tools; i++) tools |= own->tools[i];
    return (tools & USER_TOOLS) != 0;
}

/* cProfile is a tool; sys.setprofile's functions have an id of their own, which USER_TOOLS leaves out. */
bool cc_frame_profiled(PyThreadState *ts) {
    return !ts->c_tracefunc && (global_tools(ts) & ~(1 << PY_MONITORING_PROFILER_ID)) == 0;
}

int cc_frame_poll(PyThreadState *ts) {
    if (!(_Py_atomic_load_uintptr_relaxed(&ts->eval_breaker) & _PY_EVAL_EVENTS_MASK)) return 0;
    return _Py_HandlePending(ts);
}

void cc_frame_grant(PyThreadState *ts, int units) { (void)ts, (void)units; }

int cc_frame_grant_wanted(void) { return 0; }

void *cc_frame_get_extra(PyCodeObject *co, Py_ssize_t index) {
    void *data = NULL;
    if (PyUnstable_Code_GetExtra((PyObject *)co, index, &data) < 0) PyErr_Clear();
    return data;
}

int cc_frame_set_extra(PyCodeObject *co, Py_ssize_t index, void *data) {
    return PyUnstable_Code_SetExtra((PyObject *)co, index, data);
}

Py_ssize_t cc_frame_extra_index(freefunc release) { return PyUnstable_Eval_RequestCodeExtraIndex(release); }

PyObject *cc_frame_function(PyObject *code, PyObject *globals) {
    PyObject *func = PyFunction_New(code, globals);
    if (func) _PyFunction_SetVersion((PyFunctionObject *)func, ((PyCodeObject *)code)->co_version);
    return func;
}

int cc_frame_method(PyObject *o, PyObject *name, PyObject **method) { return _PyObject_GetMethod(o, name, method); }

PyObject **cc_frame_instance_dict(PyObject *o) { return _PyObject_GetDictPtr(o); /* materialises inline values */ }

#endif
