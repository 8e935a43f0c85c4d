/* Private to py/: flags of neutral instructions, the doors that frame.inc and each frame_3xx.c implement, and what the
 * evaluator's files share. A door hides a difference between CPython versions. */
#ifndef CC_PY_INT_H
#define CC_PY_INT_H

#include "py.h"

/* CcInsn.flags; opcodes.def sets those from 32 on for single instructions */
enum {
    CC_IF_JUMP = 1,
    CC_IF_STOP = 2,
    CC_IF_RUNS = 4,
    CC_IF_POLL = 8,
    CC_IF_HAND = 16,
    CC_IF_NULL = 32,    /* GLOBAL, ATTR, SUPER_ATTR: push a second value for the CALL that follows */
    CC_IF_INPLACE = 32, /* BINOP */
    CC_IF_SPEC = 32,    /* FORMAT */
    CC_IF_SELF = 32,    /* WITH, WITH_EXCEPT: __exit__ takes two values, as a CALL's callable does */
    CC_IF_INNER = 32,   /* TO_BOOL: second half of the COMPARE before it; CPython can't start there */
    CC_IF_KW = 64,      /* CALL, CALL_EX */
};

/* ------------------------------------------------------------------ opcode tables (optab.c) */

typedef struct CcOpRow { /* one opcode of the running interpreter */
    uint8_t op, split;
    int k;
    uint8_t caches;
} CcOpRow;

typedef struct CcOpTab {
    CcOpRow row[256];
    int extended_arg, kw_names, precall, call; /* opcode numbers; -1: not in this interpreter */
    int not_taken, load_special, copy, swap;
    /* instructions behind a loop that an exhausted FOR_ITER skips */
    int for_skip;
    int to_tuple, positive, stop_error; /* CALL_INTRINSIC_1 arguments; -1: absent */
    PyObject *common;                   /* tuple: LOAD_COMMON_CONSTANT's table */
    bool null_last;                     /* stack layout of a call: callable, then self or NULL (from 3.13 on) */
} CcOpTab;
extern CcOpTab cc_optab;

enum { CC_NB_SUBSCR = 2 * CC_NB_COUNT }; /* BINARY_OP's argument for a subscription, from 3.14 on */

enum {
    CC_SPLIT_ARG,
    CC_SPLIT_FIXED,
    CC_SPLIT_SHIFT,
    CC_SPLIT_SHIFT_NULL,
    CC_SPLIT_COMPARE_BOOL,
    CC_SPLIT_FLAG,
    CC_SPLIT_FLAG_ONLY,
    CC_SPLIT_FLAG_IF_ODD,
    CC_SPLIT_BINOP,
    CC_SPLIT_PAIR,
    CC_SPLIT_FORMAT,
    CC_SPLIT_SUPER,
    CC_SPLIT_UNPACK_EX,
    CC_SPLIT_INTRINSIC,
    CC_SPLIT_RESUME,
    CC_SPLIT_FORWARD,
    CC_SPLIT_BACKWARD,
    CC_SPLIT_FOR,
    CC_SPLIT_SUSPEND,
};

CC_MUST int cc_optab_init(void);
uint8_t cc_optab_flags(CcOp op);
CC_BORROW PyObject *cc_optab_common(int i); /* NULL: this interpreter has no such constant */

/* ------------------------------------------------------------------ decoded code: the private part */

typedef struct CcHandler { /* one row of the exception table */
    int32_t start, end;    /* code units */
    int32_t target;        /* instruction index */
    int32_t level;         /* stack depth that the handler keeps */
    bool lasti;            /* push the raising instruction's offset, too */
} CcHandler;

typedef struct CcCodeFull {
    CcCode pub; /* must come first: CcCode * converts to CcCodeFull * */
    CcHandler *handlers;
    int n_handlers;
    int32_t *handler_of; /* instruction -> index into handlers; -1: none */
    /* instruction -> which stack slots (bit 0: the bottom) hold an offset that a handler's `lasti` has pushed */
    uint64_t *offsets;
} CcCodeFull;

CC_MUST int cc_decode_init(void);
CC_MUST int cc_extable_read(CcCodeFull *code);
/* The handler for an exception at pc; NULL: it leaves the frame. */
const CcHandler *cc_extable_find(const CcCode *code, int pc);
CC_MUST int cc_live_solve(CcCodeFull *code);
uint64_t cc_code_offsets(const CcCode *code, int pc);

/* ------------------------------------------------------------------ doors (frame.inc, frame_3xx.c) */
/* `frame` is a struct _PyInterpreterFrame * throughout. */

PyCodeObject *cc_frame_code(void *frame);
PyFunctionObject *cc_frame_func(void *frame);
PyObject *cc_frame_globals(void *frame);
PyObject *cc_frame_builtins(void *frame);
PyObject **cc_frame_slots(void *frame); /* see cc_slot_get */
/* Gives the slots of a frame that CPython has made or suspended the form that our evaluator wants, and back; `offsets`
 * is cc_code_offsets of the instruction where CPython continues. */
void cc_frame_take(void *frame);
void cc_frame_return(void *frame, int depth, uint64_t offsets);
int cc_frame_depth(void *frame);     /* valid while the frame is not running */
int cc_frame_next_unit(void *frame); /* code unit that runs next; 0 at the start */
int cc_frame_lasti(void *frame);     /* code unit that a suspended frame's traceback shows */
bool cc_frame_in_generator(void *frame);
bool cc_frame_in_thread(void *frame);
PyObject *cc_frame_generator(void *frame);         /* only if cc_frame_in_generator */
bool cc_frame_collecting(const PyThreadState *ts); /* the interpreter's garbage collector is running */

/* Records in the frame that the instruction at `unit` is executing with `depth` values on the stack: f_lineno, tb_lasti
 * and frame clearing read this. */
void cc_frame_set_position(void *frame, int unit, int depth);
void cc_frame_link(PyThreadState *ts, void *frame); /* makes it the thread's current frame */
void cc_frame_unlink(PyThreadState *ts, void *frame);
/* Takes one recursion level; false: none is left, and CPython's evaluator has to raise the error. */
bool cc_frame_enter_level(PyThreadState *ts);
void cc_frame_leave_level(PyThreadState *ts);
void cc_frame_levels(PyThreadState *ts, int *python, int *c);
/* Continues an unlinked frame at `unit` in CPython's evaluator. */
PyObject *cc_frame_resume(PyThreadState *ts, void *frame, int unit, int depth);
/* The same, at the instruction that raised the exception now set (as last given to cc_frame_set_position). */
PyObject *cc_frame_throw(PyThreadState *ts, void *frame);
bool cc_frame_owns_locals(void *frame); /* its locals die with it: no other reference to its frame object exists */
/* Clears an unlinked, finished frame (its stack is empty) as far as CPython's caller does not. */
void cc_frame_finish(PyThreadState *ts, void *frame);

/* The frame of a generator that has not started or is suspended outside exception handlers, and CPython's number for
 * its state; NULL: neither holds, or other code references the frame object. */
void *cc_frame_of_generator(PyObject *generator, int *state);
/* The frame of any generator; NULL: it has ended. `state` is CPython's number. */
void *cc_frame_of_any_generator(PyObject *generator, int *state);
bool cc_frame_executing(int state);
PyCodeObject *cc_frame_generator_code(PyObject *generator); /* borrowed; also of one that has ended */
/* What a suspended generator delegates to by `yield from`, borrowed; NULL: it does not. */
PyObject *cc_frame_delegate(void *frame);
/* Its own names, which may differ from its function's; borrowed. */
void cc_frame_generator_names(PyObject *generator, PyObject **name, PyObject **qualname);
int cc_frame_created_state(void); /* the state number of a generator that has not started */
/* Puts a generator whose slots have been filled into `state`, to continue at `unit`. */
void cc_frame_suspend(PyObject *generator, int state, int unit, int depth);

/* A tracer, profiler or monitoring tool is active; co may be NULL. */
bool cc_frame_traced(PyThreadState *ts, PyCodeObject *co);
/* Given that the thread is traced: nothing but profilers listens. */
bool cc_frame_profiled(PyThreadState *ts);
/* Handles signals, pending calls, GIL requests, async exceptions and due collections; -1 with the exception set. */
CC_MUST int cc_frame_poll(PyThreadState *ts);
/* Raises (or lowers) the limit on nested C calls by `units` where CPython counts them; see hook.c. */
void cc_frame_grant(PyThreadState *ts, int units);
int cc_frame_grant_wanted(void); /* how many a region should get on an 8 MiB stack */

bool cc_frame_finalizing(void); /* the interpreter shuts down */
void *cc_frame_get_extra(PyCodeObject *co, Py_ssize_t index);
CC_MUST int cc_frame_set_extra(PyCodeObject *co, Py_ssize_t index, void *data);
Py_ssize_t cc_frame_extra_index(freefunc release);
/* creates a function as MAKE_FUNCTION does */
CC_MUST CC_NEW PyObject *cc_frame_function(PyObject *code, PyObject *globals);
CC_MUST int cc_frame_method(PyObject *o, PyObject *name, PyObject **method); /* _PyObject_GetMethod */
PyObject **cc_frame_instance_dict(PyObject *o);

/* libpython 3.11 to 3.14 exports these, but from 3.13 on only internal headers declare them. */
PyAPI_FUNC(int) _PyDict_MergeEx(PyObject *, PyObject *, int);
PyAPI_FUNC(PyObject *) _PyObject_FunctionStr(PyObject *);
PyAPI_FUNC(int) _PySet_Update(PyObject *, PyObject *);
PyAPI_FUNC(PyObject *) _PyUnicode_JoinArray(PyObject *, PyObject *const *, Py_ssize_t);

/* ------------------------------------------------------------------ slots */

/* Before 3.14 a slot is an object or NULL. From 3.14 on it is a _PyStackRef, whose lowest bit says that it owns no
 * reference, and means NULL if nothing else is set. CPython sets it for immortal objects, and for values on the stack
 * that a local owns. Locals, which f_locals reads and writes while a frame runs, keep this form; cc_frame_take makes
 * borrowed references owned. Values on our stack are plain, so that events can list operands in place: collectors,
 * their only other readers, don't mind. */
#if PY_VERSION_HEX >= 0x030E0000
#    define CC_SLOT_NULL ((PyObject *)1)
static inline PyObject *cc_slot_get(PyObject *raw) { return (PyObject *)((uintptr_t)raw & ~(uintptr_t)1); }
static inline PyObject *cc_slot_of_stack(PyObject *o) { return o != NULL ? o : CC_SLOT_NULL; }
static inline PyObject *cc_slot_of_local(PyObject *o) {
    return o != NULL ? (PyObject *)((uintptr_t)o | (o->ob_flags & 1u)) : CC_SLOT_NULL; /* bit 0: immortal */
}
#else
#    define CC_SLOT_NULL NULL
static inline PyObject *cc_slot_get(PyObject *raw) { return raw; }
static inline PyObject *cc_slot_of_stack(PyObject *o) { return o; }
static inline PyObject *cc_slot_of_local(PyObject *o) { return o; }
#endif

enum { CC_LAST_LOCAL_FIRST = PY_VERSION_HEX >= 0x030E0000 }; /* the order in which a frame's end clears its locals */

/* ------------------------------------------------------------------ the evaluator (run.c, ex_*.c) */

/* how an instruction ended */
typedef enum CcDo {
    CC_DO_NEXT,     /* done: continue at run->next */
    CC_DO_PERFORM,  /* cc_run_before only: perform the step */
    CC_DO_RAISED,   /* an exception is set; operands may still be on the stack */
    CC_DO_RERAISED, /* the same, without a traceback entry for this frame */
    CC_DO_HAND,     /* nothing done: CPython takes the frame at this instruction */
    CC_DO_BREAK,    /* nothing done: before() answered CC_BREAK */
    CC_DO_REWIND,   /* the nested call returned while obs->unwinding; operands are untouched */
    CC_DO_LEAVE,    /* the frame returns run->value */
} CcDo;

typedef struct CcRun {
    CcAct act;        /* must come first: CcAct * converts to CcRun * */
    CcAct **top;      /* the region's innermost act */
    PyObject **slot;  /* localsplus of the frame; see cc_slot_get */
    PyObject **stack; /* its value stack */
    PyObject *names, *consts, *globals, *builtins;
    PyObject *value;       /* CC_DO_LEAVE: new reference */
    PyObject *call_result; /* CC_DESCEND: result of the next call; new reference, NULL: it raised */
    bool has_call_result;  /* the next call-like step takes call_result instead of being performed */
    bool stop;             /* hand over before the next instruction */
    bool entered;          /* enter() was called: leave() is due */
    int next;              /* index of the next instruction */
    /* RERAISE: code unit for the traceback and lasti; -1: the instruction's own */
    int raise_unit;
} CcRun;

/* Runs a frame for an observer. `top` is the region's innermost act; `throwing`: throw() or close() resumes a generator
 * with the exception that is set; `rebuilt`: cc_act_call_rebuilt made the frame. */
PyObject *cc_run_frame(CcObserver *obs, CcAct **top, void *frame, const CcCode *code, bool throwing, bool rebuilt);

/* Calls before(): CC_DO_PERFORM, CC_DO_NEXT (the observer has set event->result), RAISED, HAND or BREAK. */
CcDo cc_run_before(CcRun *r, CcEvent *ev);
/* Calls after(): CC_DO_NEXT, CC_DO_RAISED, or CC_DO_REWIND (result dropped, error cleared). */
CcDo cc_run_after(CcRun *r, CcEvent *ev, bool raised);
void cc_run_unobserved_call(CcRun *r, PyObject *callable); /* before an unobserved call: the observer may listen */
/* For events without before(): reports that ev->result was made. */
void cc_run_report_made(CcRun *r, CcEvent *ev);

/* One observed step: evaluates `expr` (a new reference, NULL if it raised) unless the observer performed it. */
#define CC_STEP(r, ev, expr)                                                                                           \
    do {                                                                                                               \
        CcDo step_ = cc_run_before((r), (ev));                                                                         \
        if (step_ == CC_DO_PERFORM) {                                                                                  \
            (ev)->result = (expr);                                                                                     \
            step_ = cc_run_after((r), (ev), (ev)->result == NULL);                                                     \
        }                                                                                                              \
        if (step_ != CC_DO_NEXT) return step_;                                                                         \
    } while (0)
/* The same for a step without a result: `expr` is negative if it raised. */
#define CC_STEP_INT(r, ev, expr)                                                                                       \
    do {                                                                                                               \
        CcDo step_ = cc_run_before((r), (ev));                                                                         \
        if (step_ == CC_DO_PERFORM) step_ = cc_run_after((r), (ev), (expr) < 0);                                       \
        Py_CLEAR((ev)->result);                                                                                        \
        if (step_ != CC_DO_NEXT) return step_;                                                                         \
    } while (0)

/* The value stack: cc_top(r, 1) is the topmost value. */
static inline PyObject **cc_peek(const CcRun *r, int n) { return r->stack + r->act.depth - n; }
static inline PyObject *cc_top(const CcRun *r, int n) { return cc_slot_get(r->stack[r->act.depth - n]); }
static inline void cc_push(CcRun *r, CC_STEAL(1) PyObject *value) {
    r->stack[r->act.depth++] = cc_slot_of_stack(value);
}
/* The slot is emptied, because a collector may still walk it: the frame's depth changes with the next instruction. */
static inline CC_NEW PyObject *cc_pop(CcRun *r) {
    PyObject **at = &r->stack[--r->act.depth], *value = cc_slot_get(*at);
    *at = CC_SLOT_NULL;
    return value;
}
static inline PyObject *cc_local(const CcRun *r, int i) { return cc_slot_get(r->slot[i]); }
/* Whether anything may die with the exception. Only frames that go on running hold the StopIteration that ends a loop or
 * a `with` over a generator. */
bool cc_exception_holds(PyObject *exception);
/* Drops a reference of the frame. Tells the observer if only one reference remains: should that be the observer's own,
 * the object would be dead in CPython by now. */
static inline void cc_release(CcRun *r, CC_STEAL(1) PyObject *o) {
    if (o == NULL) return;
    const CcObserver *obs = r->act.obs;
    const Py_ssize_t n = r->act.observed && obs->released != NULL ? Py_REFCNT(o) : 0;
    const bool ends = n == 1 && PyExceptionInstance_Check(o) && cc_exception_holds(o);
    Py_DECREF(o);
    if (n == 2 || ends) obs->released(r->act.obs, ends ? NULL : o);
}
/* Drops the n topmost values, top first as CPython does. */
static inline void cc_drop(CcRun *r, int n) {
    while (n-- > 0) cc_release(r, cc_pop(r));
}
/* Replaces the n topmost operands by one result. */
static inline CcDo cc_replace(CcRun *r, int n, CC_STEAL(1) PyObject *result) {
    if (n == 1) {
        PyObject *old = cc_top(r, 1);
        *cc_peek(r, 1) = result;
        cc_release(r, old);
        return CC_DO_NEXT;
    }
    cc_drop(r, n);
    cc_push(r, result);
    return CC_DO_NEXT;
}
static inline void cc_note_store(CcRun *r, int i) {
    if (i < 64 * CC_COUNT(r->act.stored)) r->act.stored[i >> 6] |= (uint64_t)1 << (i & 63);
}
static inline void cc_set_local(CcRun *r, int i, CC_STEAL(1) PyObject *value) {
    PyObject *old = cc_local(r, i);
    r->slot[i] = cc_slot_of_local(value);
    cc_note_store(r, i);
    cc_release(r, old);
}
static inline PyObject *cc_name(const CcRun *r, int i) { return PyTuple_GET_ITEM(r->names, i); }

typedef CcDo (*CcExec)(CcRun *r, const CcInsn *in);
#define CC_INSN(id, ...) CcDo cc_ex_##id(CcRun *r, const CcInsn *in);
#include "insn.def"
#undef CC_INSN
/* Truth of a value; an observed step unless it is an exact bool. *truth is 0 or 1 if it returns CC_DO_NEXT. */
CC_MUST CcDo cc_ex_truth(CcRun *r, PyObject *value, int flags, int *truth);
/* A callable that raises the exception now set; clears the error indicator. */
PyObject *cc_ex_raiser(void);

/* ------------------------------------------------------------------ threads and regions (hook.c) */
/* Calls an empty function in CPython's own evaluator, which handles whatever the eval breaker requests. */
CC_MUST int cc_hook_run_noop(void);
/* CPython runs a frame that is not recorded; one of our own code leaves no entry in a traceback. */
PyObject *cc_hook_run_unrecorded(PyThreadState *ts, void *frame, int throwing);
/* Calls func with None for each parameter, keyword-only ones by name. */
CC_MUST CC_NEW PyObject *cc_hook_call_with_nones(PyFunctionObject *func);

#endif
