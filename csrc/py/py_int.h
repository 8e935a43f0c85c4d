/* Private to py/: the neutral instruction flags, the doors that each frame_3xx.c implements, and what the evaluator's
 * files share. A door hides what differs between CPython versions; nothing else in this directory looks at a
 * version. */
#ifndef CC_PY_INT_H
#define CC_PY_INT_H

#include "py.h"

/* CcInsn.flags; the upper three are set per instruction by opcodes.def */
enum {
    CC_IF_JUMP = 1,
    CC_IF_STOP = 2,
    CC_IF_RUNS = 4,
    CC_IF_POLL = 8,
    CC_IF_HAND = 16,
    CC_IF_NULL = 32,    /* GLOBAL, ATTR, SUPER_ATTR: a second value is pushed for the CALL that follows */
    CC_IF_INPLACE = 32, /* BINOP */
    CC_IF_SPEC = 32,    /* FORMAT */
    CC_IF_INNER = 32,   /* TO_BOOL: the end of the instruction before it, at which CPython can't begin */
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
    /* instructions behind a loop that an exhausted FOR_ITER passes */
    int for_skip;
    int to_tuple, positive, stop_error; /* CALL_INTRINSIC_1 arguments; -1 */
    bool null_last;                     /* stack of a call: callable, self-or-NULL (3.13) */
} CcOpTab;
extern CcOpTab cc_optab;

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

/* ------------------------------------------------------------------ decoded code: what py.h does not show */

typedef struct CcHandler { /* one row of the exception table */
    int32_t start, end;    /* code units */
    int32_t target;        /* instruction index */
    int32_t level;         /* values kept on the stack */
    bool lasti;            /* the raising instruction's offset is pushed too */
} CcHandler;

typedef struct CcCodeFull {
    CcCode pub; /* first: CcCode * is CcCodeFull * */
    CcHandler *handlers;
    int n_handlers;
    int32_t *handler_of; /* instruction -> index in handlers, -1 none */
} CcCodeFull;

CC_MUST int cc_decode_init(void);
CC_MUST int cc_extable_read(CcCodeFull *code);
/* NULL: an exception at pc leaves the frame */
const CcHandler *cc_extable_find(const CcCode *code, int pc);
CC_MUST int cc_live_solve(CcCodeFull *code);

/* ------------------------------------------------------------------ doors (frame_3xx.c) */
/* `frame` is a struct _PyInterpreterFrame *. */

PyCodeObject *cc_frame_code(void *frame);
PyFunctionObject *cc_frame_func(void *frame);
PyObject *cc_frame_globals(void *frame);
PyObject *cc_frame_builtins(void *frame);
PyObject **cc_frame_slots(void *frame);
int cc_frame_depth(void *frame);     /* valid while the frame does not run */
int cc_frame_next_unit(void *frame); /* code unit that would run next; 0 at its start */
int cc_frame_lasti(void *frame);     /* code unit that a traceback of a suspended frame names */
bool cc_frame_in_generator(void *frame);
bool cc_frame_in_thread(void *frame);
PyObject *cc_frame_generator(void *frame);         /* of cc_frame_in_generator */
bool cc_frame_collecting(const PyThreadState *ts); /* the interpreter's collector is at work */

/* "Instruction at `unit` is being executed with `depth` values": what f_lineno, tb_lasti and clearing see. */
void cc_frame_at(void *frame, int unit, int depth);
void cc_frame_link(PyThreadState *ts, void *frame); /* becomes the thread's current frame */
void cc_frame_unlink(PyThreadState *ts, void *frame);
/* Takes one level of the recursion limit: false when none is left (CPython's evaluator then raises the error). */
bool cc_frame_enter_level(PyThreadState *ts);
void cc_frame_leave_level(PyThreadState *ts);
void cc_frame_levels(PyThreadState *ts, int *python, int *c);
/* CPython's evaluator goes on with an unlinked frame at `unit`. */
PyObject *cc_frame_resume(PyThreadState *ts, void *frame, int unit, int depth);
/* The same at the place where the set exception was raised (cc_frame_at tells where). */
PyObject *cc_frame_throw(PyThreadState *ts, void *frame);
bool cc_frame_own(void *frame); /* its locals go with it: nobody holds a frame object of it */
/* The unlinked frame is over (its stack is empty): clears it as far as its caller does not do it. */
void cc_frame_finish(PyThreadState *ts, void *frame);

/* The frame of a generator that has not begun or is suspended, outside of handlers of exceptions, and CPython's number
 * for which of them; NULL: it is neither, or somebody holds the frame. */
void *cc_frame_of_generator(PyObject *generator, int *state);
int cc_frame_unbegun(void); /* that number for one that has not begun */
/* its slots are filled: it is to go on at `unit` */
void cc_frame_wait(PyObject *generator, int state, int unit, int depth);

/* tracer, profiler or monitoring; co may be NULL */
bool cc_frame_traced(PyThreadState *ts, PyCodeObject *co);
/* Signals, pending calls, GIL requests, async exceptions, due collections; -1 with the exception set. */
CC_MUST int cc_frame_poll(PyThreadState *ts);
/* Allows `units` more (or less) nested C calls where CPython counts them; see hook.c. */
void cc_frame_grant(PyThreadState *ts, int units);
int cc_frame_grant_wanted(void); /* how many a region should ask for on a stack of 8 MiB */

void *cc_frame_get_extra(PyCodeObject *co, Py_ssize_t index);
CC_MUST int cc_frame_set_extra(PyCodeObject *co, Py_ssize_t index, void *data);
Py_ssize_t cc_frame_extra_index(freefunc release);
/* what MAKE_FUNCTION makes */
CC_MUST CC_NEW PyObject *cc_frame_function(PyObject *code, PyObject *globals);
CC_MUST int cc_frame_method(PyObject *o, PyObject *name, PyObject **method); /* _PyObject_GetMethod */
PyObject **cc_frame_instance_dict(PyObject *o);

/* Exported by libpython 3.11 to 3.13, but declared only in internal headers from 3.13 on. */
PyAPI_FUNC(int) _PyDict_MergeEx(PyObject *, PyObject *, int);
PyAPI_FUNC(PyObject *) _PyObject_FunctionStr(PyObject *);
PyAPI_FUNC(int) _PySet_Update(PyObject *, PyObject *);
PyAPI_FUNC(PyObject *) _PyUnicode_JoinArray(PyObject *, PyObject *const *, Py_ssize_t);

/* ------------------------------------------------------------------ the evaluator (run.c, ex_*.c) */

/* how an instruction ended */
typedef enum CcDo {
    CC_DO_NEXT,     /* done: go on at run->next */
    CC_DO_PERFORM,  /* (cc_run_before only) perform it */
    CC_DO_RAISED,   /* the exception is set; operands may still lie on the stack */
    CC_DO_RERAISED, /* the same, without a traceback entry for this frame */
    CC_DO_HAND,     /* nothing was done: CPython takes the frame at this instruction */
    CC_DO_BREAK,    /* nothing was done: before() answered CC_BREAK */
    CC_DO_REWIND,   /* the call inside came back while obs->unwinding; operands are untouched */
    CC_DO_LEAVE,    /* run->value leaves the frame */
} CcDo;

typedef struct CcRun {
    CcAct act;        /* first: CcAct * is CcRun * */
    CcAct **top;      /* the region's innermost act */
    PyObject **slot;  /* localsplus of the frame */
    PyObject **stack; /* its value stack */
    PyObject *names, *consts, *globals, *builtins;
    PyObject *value; /* CC_DO_LEAVE: new reference */
    PyObject *given; /* CC_DESCEND: result of the call to be performed next; new reference */
    bool has_given;  /* given (NULL: it raised) stands for the next CALL-like step */
    bool stop;       /* hand over before the next instruction */
    bool told;       /* enter() was answered: leave() is due */
    int next;        /* instruction to go on with */
    /* RERAISE: code unit that the traceback and lasti speak of; -1: the instruction's own */
    int raise_unit;
} CcRun;

/* Runs a frame for an observer. `top` is the region's innermost act; `throwing`: a generator is resumed by the
 * exception that is set (throw, close). */
PyObject *cc_run_frame(CcObserver *obs, CcAct **top, void *frame, const CcCode *code, bool throwing);

/* Tells before(): CC_DO_PERFORM, CC_DO_NEXT (event->result is set by the observer), RAISED, HAND or BREAK. */
CcDo cc_run_before(CcRun *r, CcEvent *ev);
/* Tells after(): CC_DO_NEXT, CC_DO_RAISED, or CC_DO_REWIND (result dropped, error cleared). */
CcDo cc_run_after(CcRun *r, CcEvent *ev, bool raised);
/* For events without before(): tells that ev->result was made. */
void cc_run_made(CcRun *r, CcEvent *ev);

/* One told step: performs `expr` (a new reference, NULL when it raised) unless the observer did. */
#define CC_STEP(r, ev, expr)                                                                                           \
    do {                                                                                                               \
        CcDo step_ = cc_run_before((r), (ev));                                                                         \
        if (step_ == CC_DO_PERFORM) {                                                                                  \
            (ev)->result = (expr);                                                                                     \
            step_ = cc_run_after((r), (ev), (ev)->result == NULL);                                                     \
        }                                                                                                              \
        if (step_ != CC_DO_NEXT) return step_;                                                                         \
    } while (0)
/* The same for what has no result: `expr` is negative when it raised. */
#define CC_STEP_INT(r, ev, expr)                                                                                       \
    do {                                                                                                               \
        CcDo step_ = cc_run_before((r), (ev));                                                                         \
        if (step_ == CC_DO_PERFORM) step_ = cc_run_after((r), (ev), (expr) < 0);                                       \
        Py_CLEAR((ev)->result);                                                                                        \
        if (step_ != CC_DO_NEXT) return step_;                                                                         \
    } while (0)

/* The value stack: cc_top(r, 1) is the topmost value. */
static inline PyObject **cc_peek(const CcRun *r, int n) { return r->stack + r->act.depth - n; }
static inline PyObject *cc_top(const CcRun *r, int n) { return r->stack[r->act.depth - n]; }
static inline void cc_push(CcRun *r, CC_STEAL(1) PyObject *value) { r->stack[r->act.depth++] = value; }
static inline CC_NEW PyObject *cc_pop(CcRun *r) { return r->stack[--r->act.depth]; }
/* A reference of the frame's goes. The object whose last one that would be in CPython must not live on in what the
 * observer remembers. */
static inline void cc_release(CcRun *r, CC_STEAL(1) PyObject *o) {
    if (o == NULL) return;
    const CcObserver *obs = r->act.obs;
    const Py_ssize_t n = r->act.observed && obs->let_go != NULL ? Py_REFCNT(o) : 0;
    const bool ends = n == 1 && PyExceptionInstance_Check(o); /* and the frames of its traceback */
    Py_DECREF(o);
    if (n == 2 || ends) obs->let_go(r->act.obs, ends ? NULL : o);
}
/* Drops the n topmost values, last pushed first as CPython does. */
static inline void cc_drop(CcRun *r, int n) {
    while (n-- > 0) cc_release(r, r->stack[--r->act.depth]);
}
/* The n topmost operands make way for one result. */
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
    PyObject *old = r->slot[i];
    r->slot[i] = value;
    cc_note_store(r, i);
    cc_release(r, old);
}
static inline PyObject *cc_name(const CcRun *r, int i) { return PyTuple_GET_ITEM(r->names, i); }

typedef CcDo (*CcExec)(CcRun *r, const CcInsn *in);
#define CC_INSN(id, ...) CcDo cc_ex_##id(CcRun *r, const CcInsn *in);
#include "insn.def"
#undef CC_INSN
/* Shared between ex_*.c: truth of a value that is no exact bool as a told step; *truth is 0 or 1 when it returns
 * NEXT. */
CC_MUST CcDo cc_ex_truth(CcRun *r, PyObject *value, int flags, int *truth);
/* a callable that raises the exception that is set now (takes it) */
PyObject *cc_ex_raiser(void);

/* ------------------------------------------------------------------ threads and regions (hook.c) */
/* Runs a function that does nothing in CPython's own evaluator: it deals with whatever the eval breaker asks for. */
CC_MUST int cc_hook_idle(void);
/* Calls func with None for each parameter that has to be given; keyword-only ones by name. */
CC_MUST CC_NEW PyObject *cc_hook_call_with_nones(PyFunctionObject *func);

#endif
