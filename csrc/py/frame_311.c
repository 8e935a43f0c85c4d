/* Doors to the frames of CPython 3.11; py_int.h documents them, and frame.inc has those that are the same in all versions.
 *
 * 3.11: a frame stores the code unit BEFORE the next instruction (prev_instr); the caller's _PyCFrame points to the
 * current frame and says whether a tracer is active; a finished frame is cleared by its caller (_PyEval_Vector,
 * gen_send_ex2 in Objects/genobject.c). */
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

#    define INSTRUCTION prev_instr
#    define STORED_BEFORE 1
/* 3.12's names */
#    define PyUnstable_Code_GetExtra _PyCode_GetExtra
#    define PyUnstable_Code_SetExtra _PyCode_SetExtra
#    define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#    include "frame.inc"

static PyCodeObject *code_of(Frame *f) { return f->f_code; }

static PyFunctionObject *function_of(Frame *f) { return (PyFunctionObject *)f->f_func; }

static int used_slots(Frame *f) { return f->stacktop; }

static void set_used_slots(Frame *f, int n) { f->stacktop = n; }

void cc_frame_take(void *frame) { (void)frame; }

void cc_frame_return(void *frame, int depth, uint64_t offsets) { (void)frame, (void)depth, (void)offsets; }

static Frame **current_frame(PyThreadState *ts) { return &ts->cframe->current_frame; }

static int *python_levels(PyThreadState *ts) { return &ts->recursion_remaining; }

static int *c_levels(PyThreadState *ts) { return (void)ts, NULL; }

int cc_frame_grant_wanted(void) { return 0; }

static void set_function_version(PyFunctionObject *func, PyCodeObject *code) { (void)func, (void)code; }

void cc_frame_finish(PyThreadState *ts, void *frame) { (void)ts, (void)frame; /* CPython's caller clears it */ }

bool cc_frame_traced(PyThreadState *ts, PyCodeObject *co) {
    (void)co;
    /* use_tracing is off inside a tracer */
    return ts->cframe->use_tracing || ts->c_tracefunc || ts->c_profilefunc;
}

bool cc_frame_profiled(PyThreadState *ts) { return !ts->c_tracefunc && ts->c_profilefunc; }

static bool work_is_due(PyThreadState *ts) { return ts->async_exc != NULL; }

#endif
