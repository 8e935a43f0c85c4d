/* Doors to the frames of CPython 3.12; py_int.h documents them, and frame.inc has those that are the same in all versions.
 *
 * 3.12: a frame stores the code unit BEFORE the next instruction (prev_instr); the caller's _PyCFrame points to the
 * current frame; C calls are counted separately from Python calls; the evaluator clears a finished frame, with hidden
 * functions that are repeated here (Python/ceval.c clear_thread_frame and clear_gen_frame, Python/frame.c). */
#include <patchlevel.h>
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000

#    define INSTRUCTION prev_instr
#    define STORED_BEFORE 1
#    include "frame.inc"

static PyCodeObject *code_of(Frame *f) { return f->f_code; }

static PyFunctionObject *function_of(Frame *f) { return (PyFunctionObject *)f->f_funcobj; }

static int used_slots(Frame *f) { return f->stacktop; }

static void set_used_slots(Frame *f, int n) { f->stacktop = n; }

void cc_frame_take(void *frame) { (void)frame; }

void cc_frame_return(void *frame, int depth, uint64_t offsets) { (void)frame, (void)depth, (void)offsets; }

static Frame **current_frame(PyThreadState *ts) { return &ts->cframe->current_frame; }

static int *python_levels(PyThreadState *ts) { return &ts->py_recursion_remaining; }

static int *c_levels(PyThreadState *ts) { return &ts->c_recursion_remaining; }

int cc_frame_grant_wanted(void) { return 5000; /* 3.12's limit is 1500, and each Python call under a hook takes two */ }

static void set_function_version(PyFunctionObject *func, PyCodeObject *code) { (void)func, (void)code; }

/* A due collection, an asynchronous exception. */
static bool work_is_due(PyThreadState *ts) {
    return _Py_atomic_load_relaxed(&ts->interp->ceval.gc_scheduled) || ts->async_exc;
}

/* As take_ownership in Python/frame.c: a frame object that outlives its frame gets a copy of it. The frame is already
 * unlinked, so the thread's current frame is the caller. */
static void move_to_object(PyThreadState *ts, PyFrameObject *seen, Frame *frame) {
    size_t size = (size_t)((char *)&frame->localsplus[frame->stacktop] - (char *)frame);
    Py_INCREF(frame->f_code);
    memcpy(seen->_f_frame_data, frame, size);
    Frame *copy = (Frame *)seen->_f_frame_data;
    seen->f_frame = copy;
    copy->owner = FRAME_OWNED_BY_FRAME_OBJECT;
    copy->previous = NULL;
    PyFrameObject *back = PyThreadState_GetFrame(ts);
    seen->f_back = back;
    if (!PyObject_GC_IsTracked((PyObject *)seen)) PyObject_GC_Track(seen);
}

/* As _PyFrame_ClearExceptCode in Python/frame.c. */
static void clear_but_code(PyThreadState *ts, Frame *frame) {
    PyFrameObject *seen = frame->frame_obj;
    if (seen) {
        frame->frame_obj = NULL;
        if (Py_REFCNT(seen) > 1) {
            move_to_object(ts, seen, frame);
            Py_DECREF(seen);
            return;
        }
        Py_DECREF(seen);
    }
    for (int i = 0; i < frame->stacktop; i++) Py_XDECREF(frame->localsplus[i]);
    Py_XDECREF(frame->f_locals);
    Py_DECREF(frame->f_funcobj);
}

/* As _PyThreadState_PopFrame in Python/pystate.c. */
static void pop_chunk(PyThreadState *ts, Frame *frame) {
    PyObject **base = (PyObject **)frame;
    _PyStackChunk *chunk = ts->datastack_chunk;
    if (base != &chunk->data[0]) {
        ts->datastack_top = base;
        return;
    }
    _PyStackChunk *previous = chunk->previous;
    ts->datastack_top = &previous->data[previous->top];
    ts->datastack_chunk = previous;
    PyObjectArenaAllocator arena;
    PyObject_GetArenaAllocator(&arena);
    arena.free(arena.ctx, chunk, chunk->size);
    ts->datastack_limit = (PyObject **)((char *)previous + previous->size);
}

static void finish_generator(PyThreadState *ts, Frame *frame) {
    PyGenObject *gen = _PyFrame_GetGenerator(frame);
    gen->gi_frame_state = FRAME_CLEARED;
    ts->exc_info = gen->gi_exc_state.previous_item;
    gen->gi_exc_state.previous_item = NULL;
    ts->c_recursion_remaining--;
    clear_but_code(ts, frame);
    Py_CLEAR(gen->gi_exc_state.exc_value);
    ts->c_recursion_remaining++;
    frame->previous = NULL; /* f_code stays: gen_dealloc reads and drops it */
}

void cc_frame_finish(PyThreadState *ts, void *frame) {
    Frame *f = frame;
    if (f->owner == FRAME_OWNED_BY_GENERATOR) {
        finish_generator(ts, f);
        return;
    }
    ts->c_recursion_remaining--;
    clear_but_code(ts, f);
    Py_DECREF(f->f_code);
    ts->c_recursion_remaining++;
    pop_chunk(ts, f);
}

#endif
