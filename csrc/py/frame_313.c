/* Doors to the frames of CPython 3.13; py_int.h documents them, and frame.inc has those that are the same in all versions.
 *
 * 3.13: a frame stores the instruction itself (instr_ptr: the next one, or the one being executed). The evaluator clears a
 * finished frame (_PyEval_FrameClearAndPop, exported). */
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030E0000

#    define INSTRUCTION instr_ptr
#    define STORED_BEFORE 0
#    include "frame.inc"

static PyCodeObject *code_of(Frame *f) { return (PyCodeObject *)f->f_executable; }

static PyFunctionObject *function_of(Frame *f) { return (PyFunctionObject *)f->f_funcobj; }

static int used_slots(Frame *f) { return f->stacktop; }

static void set_used_slots(Frame *f, int n) { f->stacktop = n; }

void cc_frame_take(void *frame) { (void)frame; }

void cc_frame_return(void *frame, int depth, uint64_t offsets) { (void)frame, (void)depth, (void)offsets; }

static Frame **current_frame(PyThreadState *ts) { return &ts->current_frame; }

static int *python_levels(PyThreadState *ts) { return &ts->py_recursion_remaining; }

static int *c_levels(PyThreadState *ts) { return &ts->c_recursion_remaining; }

int cc_frame_grant_wanted(void) { return 0; /* 3.13's limit is 10000, enough at two per Python call under a hook */ }

static void set_function_version(PyFunctionObject *func, PyCodeObject *code) {
    _PyFunction_SetVersion(func, code->co_version);
}

/* It checks the owner, so it handles generator frames as well. */
void cc_frame_finish(PyThreadState *ts, void *frame) { _PyEval_FrameClearAndPop(ts, frame); }

#endif
