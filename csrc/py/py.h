/* py: CPython's internals. The decoder, the frame doors (one file per version), and the evaluator, which runs a REAL
 * frame instruction by instruction, reports each step to an observer, and can hand the frame to CPython at any
 * instruction.
 *
 *   hook (PEP 523) --> CcAct (one real frame that we run) --> before(event) - perform - after(event) --> observer
 *
 * Knows nothing of torch, guards or graphs. Everything here is called with the GIL held. CPython's internal headers are
 * included only by frame.inc; PY_VERSION_HEX is tested only in this directory. */
#ifndef CC_PY_H
#define CC_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../base/base.h"

/* ------------------------------------------------------------------ decoded code */

/* Neutral instructions: one set for every CPython version (insn.def). */
typedef enum CcOp {
#define CC_INSN(id, ...) CC_INSN_##id,
#include "insn.def"
#undef CC_INSN
    CC_INSN_COUNT
} CcOp;

typedef struct CcInsn {
    uint8_t op;     /* CcOp */
    uint8_t flags;  /* insn.def */
    int32_t arg;    /* version-neutral oparg, with flag bits split off */
    int32_t aux;    /* second operand: index of the kwnames constant, second local ...; -1: unused */
    int32_t target; /* instruction index of the jump target; -1: no jump */
    /* first code unit, including EXTENDED_ARG prefixes, KW_NAMES and PRECALL; frames are handed over here */
    int32_t at;
    int32_t real;  /* code unit of the opcode itself: what f_lineno and tb_lasti show while it executes */
    int32_t next;  /* code unit of the following instruction */
    int32_t depth; /* value-stack depth before it; -1: unreachable */
} CcInsn;

typedef struct CcCode {
    PyCodeObject *co; /* borrowed: the CcCode is stored in this code object's co_extra */
    int n;            /* instructions */
    CcInsn *insn;
    int n_units;
    int32_t *by_unit; /* code unit -> instruction index; -1: inside an instruction */
    int n_locals;     /* co_nlocalsplus: locals, cells, free variables */
    /* liveness of locals before each instruction, live_words words per instruction; see cc_code_live() */
    uint64_t *live;
    int live_words;
} CcCode;

/* Decodes each code object once and keeps the result in its co_extra. NULL with an exception set when out of memory. */
CC_MUST const CcCode *cc_code_get(PyCodeObject *co);
/* Whether instruction `pc` or a later one (handlers included) may read local `slot`. Cells and free variables are
 * always live; in a function that may inspect its own frame (locals(), eval, exec, ...) every local is live. */
bool cc_code_live(const CcCode *code, int pc, int slot);
/* Whether the code uses a name that gives access to other functions' frames (_getframe, f_back, tb_frame ...). */
bool cc_code_inspects_frames(PyCodeObject *co);
/* Where an exception raised at `pc` goes within this code: -1: to an `except` or `finally`; else the number of `with`
 * blocks that it leaves. exits[i] is the stack depth of the i-th block's __exit__. */
int cc_code_catches(const CcCode *code, int pc, int *exits, int max);
/* Whether close() of a generator suspended at `pc` runs none of its handlers: every enclosing handler is an `except` of
 * builtin exceptions that do not match GeneratorExit. */
bool cc_code_closes_quietly(const CcCode *code, int pc, PyObject *globals);
/* The instruction behind this one as long as nothing jumps by a value; -1: the frame leaves, or raises. */
int cc_code_onward(const CcCode *code, int pc);
int cc_code_at(const CcCode *code, int unit); /* the instruction of this code unit; -1: none begins there */
int cc_code_line(const CcCode *code, int pc); /* source line; -1: unknown */
/* The name of a local, cell or free variable; NULL (no error): a slot of the stack. */
CC_NEW PyObject *cc_code_variable(PyCodeObject *co, int slot);
bool cc_code_writes(const CcInsn *insn); /* x[0] = y, del x[0], x += y */
const char *cc_op_name(CcOp op);

/* ------------------------------------------------------------------ events */

typedef enum CcEv {
#define CC_EV(id, doc) CC_EV_##id,
#include "events.def"
#undef CC_EV
    CC_EV_COUNT
} CcEv;

/* CcEvent.flags */
enum {
    CC_EV_INNER = 1, /* a later step of a multi-step instruction: before() must not answer CC_BREAK */
    /* ATTR: LOAD_METHOD form; an unbound function as the result keeps `self` on the stack */
    CC_EV_METHOD = 2,
    CC_EV_INPLACE = 4, /* BINOP: a += b */
    CC_EV_JUMP = 8,    /* TRUTH: decides a conditional jump, as opposed to `not x` */
};

typedef struct CcEvent {
    CcEv kind;
    int flags;
    int arg;             /* BINOP: CcBinop; COMPARE: Py_LT..Py_GE; others as events.def says */
    PyObject *const *in; /* operands (borrowed), as listed in events.def; entries may be NULL */
    int n;
    PyObject *name; /* attribute or global name; CALL: tuple of keyword names or NULL */
    /* after(): borrowed; NULL if the step raised (the error is set) or has no result. before() may store a NEW
     * reference here and answer CC_DONE. */
    PyObject *result;
    PyObject **out; /* UNPACK: the values in target order; after() may replace them with other new references */
    int n_out;
} CcEvent;

/* BINARY_OP's operators without the in-place forms; the numbers equal CPython's NB_* */
typedef enum CcBinop {
    CC_NB_ADD,
    CC_NB_AND,
    CC_NB_FLOOR_DIVIDE,
    CC_NB_LSHIFT,
    CC_NB_MATRIX_MULTIPLY,
    CC_NB_MULTIPLY,
    CC_NB_REMAINDER,
    CC_NB_OR,
    CC_NB_POWER,
    CC_NB_RSHIFT,
    CC_NB_SUBTRACT,
    CC_NB_TRUE_DIVIDE,
    CC_NB_XOR,
    CC_NB_COUNT
} CcBinop;
CC_MUST CC_NEW PyObject *cc_ex_binop(CcBinop op, bool inplace, PyObject *a, PyObject *b);

/* ------------------------------------------------------------------ activations */

/* the observer's answers */
typedef enum CcGo {
    CC_OK = 0,      /* continue */
    CC_BREAK = 1,   /* before(): perform this one instruction unobserved, then call resume() */
    CC_GIVE_UP = 2, /* hand this frame to CPython at this instruction; the observer gets no more events from it */
    /* before(): the observer performed the step; event->result holds a new reference (NULL if the event has no result,
     * or with the error set; UNPACK: a tuple of the values). after() is not called. */
    CC_DONE = 3,
    /* resume(), enter(), rewind(): slots and pc have been set; perform that instruction unobserved, then call
     * resume() */
    CC_PERFORM = 4,
    /* the same, but the instruction at pc is a call whose callee's frame is rebuilt: descend() gives its result */
    CC_DESCEND = 5,
    CC_RETURN = 6,   /* the same three: leave the frame at once and return act->retval (a new reference) */
    CC_UNWIND = 7,   /* the same three: leave the frame at once; rewind() is called for the act below */
    CC_PASS = 8,     /* enter(): CPython runs this frame unobserved */
    CC_PASS_ALL = 9, /* enter(): the same for everything that it calls, too */
} CcGo;

typedef struct CcAct CcAct;
typedef struct CcObserver CcObserver;

struct CcAct {
    CcAct *prev; /* the act that was running when this frame was entered; NULL for the outermost */
    CcObserver *obs;
    PyThreadState *ts;
    void *frame;            /* struct _PyInterpreterFrame *: opaque outside py/ */
    PyCodeObject *co;       /* borrowed from the frame */
    PyFunctionObject *func; /* borrowed from the frame */
    const CcCode *code;
    int pc; /* index of the current instruction */
    /* values on the stack; valid in every callback. During before() and after() the instruction's operands are still on
     * the stack and its result is not yet. */
    int depth;
    bool observed;        /* events are reported; the evaluator sets it after each answer */
    bool generator;       /* a generator's frame, resumed or new */
    bool started;         /* the frame was entered at its first instruction */
    bool rebuilt;         /* cc_act_call_rebuilt made the frame: enter() fills it */
    bool thrown;          /* an exception was thrown into the frame; enter() finds it on top of the stack */
    const CcEvent *event; /* the event in progress; NULL between events */
    PyObject *retval;     /* CC_RETURN */
    void *data;           /* belongs to the observer */
    uint64_t stored[4];   /* cc_act_stored */
};

CC_BORROW PyObject *
/* the generator that owns the frame; NULL: a function's frame, or the generator does not exist yet */
cc_act_generator(const CcAct *act);
bool cc_act_collecting(const CcAct *act); /* the garbage collector is running, maybe in another thread */

/* Slots 0 .. n_locals-1 are locals, cells and free variables; the value stack follows, bottom first. */
CC_BORROW PyObject *cc_act_get(const CcAct *act, int slot); /* NULL: unset */
/* drops the old value; `value` may be NULL */
void cc_act_put(CcAct *act, int slot, CC_STEAL(1) PyObject *value);
/* Whether code has stored to or deleted this local since cc_act_clear_stored; always true for locals beyond those
 * tracked. */
bool cc_act_stored(const CcAct *act, int slot);
void cc_act_clear_stored(CcAct *act);
/* How many references to o the frame holds in slots that nothing reads any more: dead locals and, if the frame waits in
 * a call, that call's operands. */
int cc_act_dead_refs(const CcAct *act, bool waits, PyObject *o);
int cc_act_depth_after_call(const CcAct *act); /* stack slots that are still needed once that call has returned */
/* Sets pc and depth together; only resume(), enter() and rewind() may call it. Drops the stack slots at and above the
 * new depth; the caller must fill those below before the next instruction runs. */
void cc_act_move(CcAct *act, int pc, int depth);

struct CcObserver {
    void *ctx;
    /* A Python frame is entered while the hook is armed on this thread. act->pc is 0, for a resumed generator the
     * instruction where it continues, and its handler after throw() or close(). */
    CcGo (*enter)(CcObserver *obs, CcAct *act);
    CcGo (*before)(CcObserver *obs, CcAct *act, CcEvent *ev);
    /* Called after each observed event, also if it raised. Must preserve the error indicator. Answers CC_OK, or
     * CC_GIVE_UP: CPython continues behind the instruction, exceptions included. */
    CcGo (*after)(CcObserver *obs, CcAct *act, CcEvent *ev);
    /* Called after an instruction that was performed unobserved because of CC_BREAK or CC_PERFORM. act->pc is the next
     * instruction (the handler's first one after an exception). */
    CcGo (*resume)(CcObserver *obs, CcAct *act);
    /* The frame ends: with a value (borrowed), or with NULL if an exception leaves it (error set) or it is handed over.
     * `how` is CC_LEAVE_*; YIELD also covers the creation of a generator. */
    void (*leave)(CcObserver *obs, CcAct *act, int how, PyObject *value);
    /* An observed frame dropped its reference to o, of which exactly one other reference remained; o may be freed by
     * now, so it serves as an address only. o NULL: an exception was freed, and with it the frames of its traceback.
     * May be NULL. */
    void (*released)(CcObserver *obs, PyObject *o);
    /* The call that act is performing returned while obs->unwinding: says how act continues. */
    CcGo (*rewind)(CcObserver *obs, CcAct *act);
    /* CC_DESCEND: rebuilds the callee's frame (cc_act_call_rebuilt), runs it and returns its result; NULL with the
     * error set, or while obs->unwinding. */
    CC_NEW PyObject *(*descend)(CcObserver *obs, CcAct *act);
    /* A function is called while the observer is `dead`: returns the call's result, or NULL without an error to let
     * CPython run the function. May be NULL. */
    CC_NEW PyObject *(*answer)(CcObserver *obs, PyObject *func);
    /* An instruction that is performed unobserved calls this object: whether enter() is told of the frames inside. May be
     * NULL: it isn't. */
    bool (*listens)(CcObserver *obs, PyObject *callable);
    bool unwinding; /* set by resume()/rewind() together with CC_UNWIND */
    /* the observer is done: every act hands its frame to CPython at the next instruction */
    bool dead;
};

enum { CC_LEAVE_RETURN, CC_LEAVE_RAISE, CC_LEAVE_YIELD, CC_LEAVE_HANDOVER, CC_LEAVE_UNWIND };

/* Calls func with None for each parameter, so that the next frame to be entered is this call's: enter() sees
 * act->rebuilt, must fill every slot, and answers CC_PERFORM or CC_DESCEND. */
CC_MUST CC_NEW PyObject *cc_act_call_rebuilt(PyFunctionObject *func);

/* ------------------------------------------------------------------ types by identity (known.c) */

typedef enum CcKnown {
#define CC_KNOWN(id, module, path) CC_KNOWN_##id,
#include "known.def"
#undef CC_KNOWN
} CcKnown;
PyTypeObject *cc_known_type(CcKnown id); /* NULL: nobody has imported its module */
static inline bool cc_known_is(PyObject *o, CcKnown id) { return Py_TYPE(o) == cc_known_type(id); }
bool cc_known_number(const PyTypeObject *type); /* one of numpy's */
bool cc_known_typing(const PyTypeObject *type); /* a TypeVar and its kin */

/* ------------------------------------------------------------------ random.Random's generators (twister.c) */

enum { CC_TWISTER_WORDS = 625 };
typedef struct CcTwister {
    unsigned char state[4 * CC_TWISTER_WORDS];
} CcTwister;
/* Whether the functions below may be used with instances of random.Random. */
bool cc_twister_known(void);
void cc_twister_save(PyObject *generator, CcTwister *to);
void cc_twister_restore(PyObject *generator, const CcTwister *from);
/* Draws an int in range(n), n > 0, with the same draws from the stream as Random._randbelow(n). */
CC_MUST CC_NEW PyObject *cc_twister_below(PyObject *generator, PyObject *n);

/* ------------------------------------------------------------------ suspended generators (generator.c) */

typedef struct CcGen {
    PyFunctionObject *func; /* borrowed */
    const CcCode *code;
    void *frame;
    int unit, state; /* where it continues: a code unit, and CPython's frame state */
    int pc, depth;
} CcGen;
/* False: not a plain generator, or one that was renamed, is running or finished, is suspended inside an exception
 * handler, or whose frame object is referenced elsewhere. */
bool cc_generator_read(PyObject *generator, CcGen *out);

/* What any plain generator does now. Reads no attribute, of which CPython would tell audit hooks. */
typedef struct CcGenNow {
    enum { CC_GEN_CREATED, CC_GEN_SUSPENDED, CC_GEN_RUNNING, CC_GEN_ENDED } state;
    PyCodeObject *co;  /* borrowed */
    PyObject *globals; /* borrowed; NULL: it has ended */
    int lasti;         /* SUSPENDED: the code unit of the instruction that suspended it */
    PyObject *inner;   /* borrowed; SUSPENDED: the iterator of its `yield from`; NULL: none */
} CcGenNow;
CcGenNow cc_generator_now(PyObject *generator);
/* Whether the end of a generator that takes values from this iterator by `yield from` calls a close() of the iterator's
 * class or instance. A generator's own close() only resumes its frame: asks what that one takes values from. Runs no
 * code; true if unknown. */
bool cc_generator_calls_close(PyObject *iterator);
CC_BORROW PyObject *cc_generator_get(const CcGen *g, int slot); /* slots as an act's */
/* A generator of func that has not started, with None in each parameter's slot. The caller fills it with the next
 * two. */
CC_MUST CC_NEW PyObject *cc_generator_new(PyFunctionObject *func);
/* slots as an act's: locals, then the stack from its bottom */
void cc_generator_put(PyObject *generator, int slot, CC_STEAL(1) PyObject *value);
void cc_generator_suspend(PyObject *generator, int state, int unit, int depth);
/* A rebuilt generator has replaced this suspended one: finalizing it must not run its code. */
void cc_generator_retire(PyObject *generator);

/* ------------------------------------------------------------------ partly consumed iterators (iterator.c) */

/* An iterator over a dict (keys, values or items, reversed or not) or a set. */
typedef struct CcIterator {
    PyObject *container;       /* borrowed; NULL: exhausted */
    Py_ssize_t used;           /* the size that the container must still have; -1: it has changed */
    Py_ssize_t consumed, left; /* entries before its position that are still present; its own count of items left */
    Py_ssize_t at;             /* its position in the table */
    bool reversed, values;     /* goes backwards; yields values */
    bool adjacent;             /* the entry that it yielded last is still present right before its position */
} CcIterator;
bool cc_iterator_is(PyObject *o);
bool cc_iterator_read(PyObject *o, CcIterator *out); /* false: not such an iterator */
CC_BORROW PyObject *cc_iterator_container(PyObject *o);
/* Enumerates the entries that it has not yielded yet, in table order; *place starts at 0. A set's values are NULL. */
bool cc_iterator_next(const CcIterator *it, Py_ssize_t *place, CC_BORROW PyObject **key, CC_BORROW PyObject **value);
/* container NULL: an exhausted iterator */
CC_MUST CC_NEW PyObject *cc_iterator_new(PyTypeObject *type, PyObject *container, Py_ssize_t consumed, Py_ssize_t used,
                                         Py_ssize_t left);
/* What an equal iterator is made from, without consuming items: (callable, arguments[, state]). Other iterators describe
 * it by __reduce__; itertools.chain's warns since 3.12 and is gone in 3.14. NULL: error set. */
CC_MUST CC_NEW PyObject *cc_iterator_reduce(PyObject *o);

/* ------------------------------------------------------------------ the hook */

/* Arms the hook on this thread for one region: obs->enter sees every frame that the thread enters. The first armed
 * region of the interpreter installs the process-wide eval function, the last one removes it. Regions nest; the
 * thread's innermost observer gets the events. -1 with RuntimeError set if a foreign PEP 523 hook is installed (the
 * error names its module where that can be found). Each arm needs one disarm. */
CC_MUST int cc_hook_arm(CcObserver *obs);
void cc_hook_disarm(CcObserver *obs);
/* Tolerates the hook of the shared library whose file name begins with `module` while it does nothing (torch._dynamo's,
 * when no callback is set): as long as `idle` says so, ours displaces it while armed and restores it afterwards. */
typedef bool (*CcHookIdle)(void);
void cc_hook_set_guest(const char *module, CcHookIdle idle);
/* The guest hook is installed and active: the frames that run now belong to it. */
bool cc_hook_occupied(void);
/* Innermost observer of this thread; NULL when none is armed. */
CcObserver *cc_hook_current(void);
/* Pauses or resumes observation of new frames on this thread (CPython's evaluator runs them meanwhile); returns the
 * previous value. */
bool cc_hook_pause(CcObserver *obs, bool paused);
bool cc_hook_paused(const CcObserver *obs);
/* True if a tracer, profiler or sys.monitoring tool is active for this thread: nothing is recorded then, and no frame is
 * run by our evaluator, which sends no events. */
bool cc_hook_traced(void);
/* Only profilers are (sys.setprofile, cProfile, torch.profiler with stacks): they measure compiled code as it is. Tracers,
 * debuggers and coverage want every line. */
bool cc_hook_profiled(void);
/* Why no region may begin now: the interpreter shuts down, so imports fail, or a greenlet other than the thread's main
 * one runs. NULL: one may. */
const char *cc_hook_refusal(void);
/* In the child of a fork, which has no thread but the one that called fork: the other threads' regions are gone. */
void cc_hook_forked(void);
/* Number of armed regions in this interpreter, for tests of balance. */
int cc_hook_armed(void);
/* Recursion levels that this thread has left: Python calls, and C calls where CPython counts them (else 0). For
 * tests. */
void cc_hook_levels(int *python, int *c);
/* Whether the C stack has room for a compiled call, which needs more of it than CPython: every frame run here takes
 * some. */
bool cc_hook_has_room(void);
bool cc_hook_has_least_room(void); /* room for a call by CPython's evaluator; false with RecursionError set */

/* Once per process: looks up opcode numbers by name and reserves a co_extra index. -1 with an ImportError on an
 * unsupported interpreter. */
CC_MUST int cc_py_init(void);

/* ---- cache.c: functools.lru_cache ---- */
bool cc_cache_type(const PyTypeObject *t); /* the type of lru_cache's wrappers */
static inline bool cc_cache_is(PyObject *o) { return cc_cache_type(Py_TYPE(o)); }
CC_BORROW PyObject *cc_cache_dict(PyObject *cache); /* its entries; the same dict for its whole lifetime */
/* The key under which it caches the result of such a call; NULL with the error set when out of memory. */
CC_MUST CC_NEW PyObject *cc_cache_key(PyObject *cache, PyObject *const *in, int n, PyObject *kwnames);
/* For a value o of the cache's dict: the address of the result inside it if the cache has a size limit; NULL: o is the
 * result. */
PyObject *const *cc_cache_result_at(PyObject *o);

/* Instead of PyErr_Clear. Clears the exception, if any; a KeyboardInterrupt, which a signal may raise in any Python code that
 * we run, is raised again where CPython next looks for signals. */
void cc_raised_clear(void);

/* A RuntimeWarning at the caller's line, which never becomes an exception of the user's call: where the program's
 * filters make it one, the logger "ccompile" gets the text. text: a new reference, or NULL with an error, which is
 * cleared. */
void cc_raised_warn(CC_STEAL(1) PyObject *text);

/* ------------------------------------------------------------------ object internals that guards read */

/* Creates a small object that the caller can't do without; if memory runs out, retries with the reserve
 * (cc_mem_release_reserve). */
#define CC_RETRY_ALLOC(o, make)                                                                                        \
    do {                                                                                                               \
        (o) = (make);                                                                                                  \
    } while ((o) == NULL && cc_obj_retry_alloc())
bool cc_obj_retry_alloc(
    void); /* true: out of memory was the cause and the reserve is free now; otherwise ends the process */
/* Which version of its filters the warnings module has: their registries name the version for which they hold. */
long cc_frame_warnings_version(void);
/* An attribute of a module, which is imported; NULL without an error: there is none. */
CC_NEW PyObject *cc_obj_of_module(const char *module, const char *name);
CC_NEW PyObject *cc_obj_run(const char *source); /* the globals of a module with this source; NULL: error set */
/* Code of such a module. It runs in place of C code, which has no frame in eager's traceback. */
bool cc_obj_is_ours(const PyCodeObject *co);
void cc_obj_hide_frame(void); /* drops the newest entry of the raised exception's traceback if it is of such code */
CC_NEW PyObject *cc_obj_intern(const char *text); /* interned; never NULL */
/* As strstr, for a text of n bytes that may contain NULs, with one behind them. */
static inline bool cc_text_has(const char *s, Py_ssize_t n, const char *part) {
    for (const char *p = s; p < s + n; p += strlen(p) + 1)
        if (strstr(p, part) != NULL) return true;
    return false;
}

static inline bool cc_text_is(PyObject *s, const char *ascii) {
    return PyUnicode_GET_LENGTH(s) == (Py_ssize_t)strlen(ascii) && PyUnicode_CompareWithASCIIString(s, ascii) == 0;
}
static inline bool cc_text_among(PyObject *s, const char *const *ascii, int n) {
    for (int i = 0; i < n; i++)
        if (cc_text_is(s, ascii[i])) return true;
    return false;
}
static inline bool cc_text_starts(PyObject *s, const char *ascii, size_t n) {
    return PyUnicode_IS_COMPACT_ASCII(s) && (size_t)PyUnicode_GET_LENGTH(s) >= n &&
           memcmp(PyUnicode_1BYTE_DATA(s), ascii, n) == 0;
}
static inline int cc_obj_count(PyObject *tuple) { return tuple != NULL ? (int)PyTuple_GET_SIZE(tuple) : 0; }
void cc_obj_dict_set(PyObject *dict, PyObject *key, PyObject *value); /* never fails */
/* A dict's value for a string; NULL without an error: it has none. An exception that is set stays. Unlike
 * PyDict_GetItemString, which hands an error to sys.unraisablehook (3.14): Python code in the middle of a recording. */
CC_BORROW PyObject *cc_obj_item(PyObject *dict, const char *key);

/* The instance dict, or NULL if it has none. Materialises inline values, because guards need the dict object. Never
 * sets an error. */
CC_BORROW PyObject *cc_obj_dict(PyObject *o);
int cc_obj_set_dict(PyObject *o, PyObject *dict); /* `dict` becomes its instance dict; -1: error set */
/* Where a function keeps the function that makes its annotations; NULL: this interpreter has none (before 3.14). */
PyObject **cc_obj_annotate(PyObject *func);
/* a range's start, stop and step, owned by it */
PyObject *const *cc_obj_range_parts(PyObject *range);
CC_BORROW PyObject *cc_obj_proxy_target(PyObject *proxy); /* the mapping behind a types.MappingProxyType */
/* The class whose MRO a super object searches, and the class behind which the search begins; NULL: unbound. */
CC_BORROW PyTypeObject *cc_obj_super(PyObject *super, PyTypeObject **behind);
/* What a context variable holds in the current context, regardless of its default; NULL (no error): nothing. */
CC_NEW PyObject *cc_obj_context_value(PyObject *var);
CC_BORROW PyObject *cc_obj_local_dict(PyObject *o); /* the attributes of a threading.local in this thread */
bool cc_obj_may_have_dict(PyObject *o); /* whether it has an instance dict, or gets one when an attribute is set */
/* Where the object stores its dict pointer; NULL: nowhere, or at an offset that depends on the object's size. */
PyObject *const *cc_obj_dict_at(PyObject *o);
/* Starts watching a dict. The word returned changes whenever a key, a value or the length changes, and when the dict is
 * freed and another one takes its address. Valid until cc_watch_end, while some dict exists at this address. NULL: the
 * object can't be watched. */
const uint64_t *cc_watch_begin(PyObject *dict);
void cc_watch_end(const uint64_t *version);
/* whether destroying o may run code: a finalizer, or handlers of a suspended generator */
bool cc_obj_has_finalizer(PyObject *o);
/* whether a weak reference to o has a callback */
bool cc_obj_has_weak_callback(PyObject *o);
bool cc_obj_has_weakref(PyObject *o); /* whether any weak reference to o exists */
/* Whether dropping one reference to each of these objects (NULL entries are skipped) would destroy anything that has a
 * finalizer or a weakref callback, or, if `weak`, any weak reference. True as well when too many objects would have to
 * be visited. */
bool cc_obj_drop_notifies(PyObject *const *dropped, int n, bool weak);
/* A type's tp_version_tag, assigned if needed; 0: none available. */
unsigned cc_type_version(PyTypeObject *type);
/* Facts that hold for all instances of a type, as bits; computed once per type version. */
enum { CC_FACTS = 512 };
typedef struct CcFacts {
    unsigned (*ask)(PyTypeObject *type);
    struct CcFact {
        unsigned version, facts;
    } of[CC_FACTS];
} CcFacts;
unsigned cc_type_compute_facts(CcFacts *f, PyTypeObject *type);
static inline unsigned cc_type_facts(CcFacts *f, PyTypeObject *type) {
    const struct CcFact *of = &f->of[type->tp_version_tag % CC_FACTS];
    return type->tp_version_tag != 0 && of->version == type->tp_version_tag ? of->facts
                                                                            : cc_type_compute_facts(f, type);
}
/* A type's own dict (3.12 stores those of static types outside tp_dict); never NULL for a ready type. */
CC_BORROW PyObject *cc_type_dict(PyTypeObject *type);
/* A new object equal to an exact int or float. Unlike CPython's cached small ints it has an identity of its own. */
CC_NEW PyObject *cc_obj_copy_number(PyObject *number);
PyObject *cc_obj_copy_text(PyObject *text); /* a separate object (not of the empty text); new reference */
/* Replaces a copy of one of CPython's cached small ints by the cached one; returns any other object unchanged. */
CC_NEW PyObject *cc_obj_canonical_int(CC_STEAL(1) PyObject *o);
/* A weak reference's target; NULL: it is dead. */
CC_BORROW PyObject *cc_weak_target(PyObject *weak);
/* The keys in iteration order, which an OrderedDict keeps separately. New list; NULL, without an error set, when out of
 * memory. */
CC_NEW PyObject *cc_dict_keys(PyObject *dict);
/* Walks a set's hash table; *place starts at 0. Gives the member in the next used slot, or NULL for a deleted entry;
 * false at the end. Sets with equal tables behave alike from now on, including iteration order. */
bool cc_set_next(PyObject *set, Py_ssize_t *place, CC_BORROW PyObject **member);
/* The size of its hash table, and the slot where pop() continues. */
void cc_set_table(PyObject *set, Py_ssize_t *size, Py_ssize_t *finger);
/* A set (or frozenset) with the same members at the same places of a table of the same size, so that it iterates, pops
 * and grows as this one. */
CC_NEW PyObject *cc_set_clone(PyObject *set);
void cc_set_put(PyObject *set, Py_ssize_t place, PyObject *equal); /* replaces a member by an object that equals it */
/* _PyType_Lookup; NULL without an error: absent */
CC_BORROW PyObject *cc_type_lookup(PyTypeObject *type, PyObject *name);

#endif
