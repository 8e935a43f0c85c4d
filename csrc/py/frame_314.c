/* Doors to the frames of CPython 3.14; py_int.h documents them, and frame.inc has those that are the same in all versions.
 *
 * 3.14: as 3.13, but slots are _PyStackRef (py_int.h), and so are the frame's code and function; `stackpointer` replaces
 * `stacktop`, and has to be right whenever the frame is linked, because the collector of 3.14's first releases walks all
 * linked frames; C calls are not counted, CPython compares addresses of the C stack instead. */
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030E0000 && PY_VERSION_HEX < 0x030F0000

#    define INSTRUCTION instr_ptr
#    define STORED_BEFORE 0
#    include "frame.inc"

static PyCodeObject *code_of(Frame *f) { return _PyFrame_GetCode(f); }

static PyFunctionObject *function_of(Frame *f) { return (PyFunctionObject *)PyStackRef_AsPyObjectBorrow(f->f_funcobj); }

static int used_slots(Frame *f) { return (int)(f->stackpointer - f->localsplus); }

static void set_used_slots(Frame *f, int n) { f->stackpointer = f->localsplus + n; }

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

static Frame **current_frame(PyThreadState *ts) { return &ts->current_frame; }

static int *python_levels(PyThreadState *ts) { return &ts->py_recursion_remaining; }

static int *c_levels(PyThreadState *ts) { return (void)ts, NULL; }

int cc_frame_grant_wanted(void) { return 0; }

static void set_function_version(PyFunctionObject *func, PyCodeObject *code) {
    _PyFunction_SetVersion(func, code->co_version);
}

/* It checks the owner, so it handles generator frames as well. */
void cc_frame_finish(PyThreadState *ts, void *frame) { _PyEval_FrameClearAndPop(ts, frame); }

#endif
