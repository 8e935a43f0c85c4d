/* py: CPython's internals. The decoder, the frame doors (one file a version), and the evaluator that runs a REAL frame
 * instruction by instruction, tells an observer what it does, and can hand the frame to CPython at any instruction.
 *
 *   hook (PEP 523) --> CcAct (one real frame that we run) --> before(event) - perform - after(event) --> observer
 *
 * Knows nothing of torch, guards or graphs. Everything here is called with the GIL held. CPython's internal headers are
 * included only by frame_3xx.c; PY_VERSION_HEX is tested only in this directory. */
#ifndef CC_PY_H
#define CC_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../base/base.h"

/* ------------------------------------------------------------------ decoded code */

/* Neutral instructions: one set for every CPython version (insn.def). */
typedef enum CcOp {
#define CC_INSN(id, ...) CC_OP_##id,
#include "insn.def"
#undef CC_INSN
    CC_OP_COUNT
} CcOp;

typedef struct CcInsn {
    uint8_t op;     /* CcOp */
    uint8_t flags;  /* insn.def */
    int32_t arg;    /* oparg, made neutral (flag bits split off; version differences removed) */
    int32_t aux;    /* second operand: index of the kwnames constant, second local, ... ; -1 when unused */
    int32_t target; /* instruction index a jump goes to; -1 */
    /* first code unit: EXTENDED_ARG prefix, KW_NAMES or PRECALL included: here a frame is handed over */
    int32_t at;
    int32_t real;  /* code unit of the real opcode: what f_lineno and tb_lasti see while it is executed */
    int32_t next;  /* code unit of the following instruction */
    int32_t depth; /* value-stack depth before it; -1 when unreachable */
} CcInsn;

typedef struct CcCode {
    PyCodeObject *co; /* borrowed: this lives in the code object's co_extra */
    int n;            /* instructions */
    CcInsn *insn;
    int n_units;
    int32_t *by_unit; /* code unit -> instruction index, -1 between */
    int n_locals;     /* co_nlocalsplus: locals, cells, free variables */
    /* liveness of locals before each instruction, live_words words each: cc_code_live() */
    uint64_t *live;
    int live_words;
} CcCode;

/* Decoded once per code object and kept in co_extra. NULL with an exception set when memory ran out. */
CC_MUST const CcCode *cc_code_get(PyCodeObject *co);
/* Whether local `slot` may be read by instruction `pc` or a later one (handlers included). Cells and free variables
 * are always live; a function that may look at its own frame (locals(), eval, exec, ...) has every local live. */
bool cc_code_live(const CcCode *code, int pc, int slot);
/* Whether it uses names by which code looks at other functions' frames (_getframe, f_back, tb_frame ...). */
bool cc_code_looks(PyCodeObject *co);
/* Where an exception at instruction `pc` would go in this code: -1 to an `except` or `finally`, else how many `with`
 * blocks it leaves; exits: the depth at which each one's __exit__ lies on the stack. */
int cc_code_catches(const CcCode *code, int pc, int *exits, int max);
/* Whether close(), of a generator that waits at `pc`, runs none of its `except`, `finally` and `with`: each names builtin
 * exceptions that GeneratorExit is none of. */
bool cc_code_closes_quietly(const CcCode *code, int pc, PyObject *globals);
int cc_code_line(const CcCode *code, int pc); /* source line; -1 unknown */
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
    CC_EV_INNER = 1, /* second or later step of one instruction: before() may not answer CC_BREAK */
    /* ATTR: LOAD_METHOD form; when result is an unbound function, `self` stays below it */
    CC_EV_METHOD = 2,
    CC_EV_INPLACE = 4, /* BINOP: a += b */
    CC_EV_JUMP = 8,    /* TRUTH: decides a jump (not `not x`) */
};

typedef struct CcEvent {
    CcEv kind;
    int flags;
    int arg;             /* BINOP: CcBinop; COMPARE: Py_LT..Py_GE; others as events.def says */
    PyObject *const *in; /* operands, borrowed, meaning as events.def says; entries may be NULL */
    int n;
    PyObject *name; /* attribute or global name; CALL: tuple of keyword names or NULL */
    /* after(): borrowed; NULL when it raised (the error is set) or there is none. before() may answer CC_DONE after
     * putting a NEW reference here. */
    PyObject *result;
    PyObject **out; /* UNPACK: the values, in order of the targets; after() may put other new references there */
    int n_out;
} CcEvent;

/* neutral numbers of BINARY_OP, without the in-place bit; equal to CPython's NB_* */
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

/* answers of the observer */
typedef enum CcGo {
    CC_OK = 0,      /* go on */
    CC_BREAK = 1,   /* before(): perform this one instruction unobserved, then call resume() */
    CC_GIVE_UP = 2, /* hand this frame to CPython at this instruction; the observer hears no more of it */
    /* before(): the observer performed it; event->result holds the new reference (NULL where the event has none, or
     * with the error set; UNPACK: a tuple of the values). after() is not told of it. */
    CC_DONE = 3,
    /* resume(), enter(), rewind(): slots and pc were set; perform that instruction unobserved, then resume() */
    CC_PERFORM = 4,
    /* same, but the instruction at pc is a call whose callee is rebuilt: ask descend() for its result */
    CC_DESCEND = 5,
    CC_RETURN = 6,   /* same: leave the frame at once, returning act->retval (a new reference) */
    CC_UNWIND = 7,   /* same: leave the frame at once; the act below is told by rewind() */
    CC_PASS = 8,     /* enter(): not observed, CPython runs this frame */
    CC_PASS_ALL = 9, /* enter(): the same, with everything that it calls */
} CcGo;

typedef struct CcAct CcAct;
typedef struct CcObserver CcObserver;

struct CcAct {
    CcAct *prev; /* the act that was running when this frame came; NULL for the outermost */
    CcObserver *obs;
    PyThreadState *ts;
    void *frame;            /* struct _PyInterpreterFrame *: opaque outside py/ */
    PyCodeObject *co;       /* borrowed from the frame */
    PyFunctionObject *func; /* borrowed from the frame */
    const CcCode *code;
    int pc; /* index of the instruction being run */
    /* values on the stack: valid in every callback. In before() and after() the instruction's operands still lie there;
     * its result does not yet. */
    int depth;
    bool observed;        /* events are being told; set by the evaluator with each answer */
    bool generator;       /* a generator's frame (resumed or fresh) */
    bool started;         /* the frame came at its first instruction */
    bool thrown;          /* it came to be resumed by an exception, which enter() finds on top of the stack */
    const CcEvent *event; /* the event this act is performing; NULL between events */
    PyObject *retval;     /* CC_RETURN */
    void *data;           /* the observer's own */
    uint64_t stored[4];   /* cc_act_stored */
};

CC_BORROW PyObject *
cc_act_generator(const CcAct *act);       /* whose frame it is; NULL: a function's, or it is to be made yet */
bool cc_act_collecting(const CcAct *act); /* the garbage collector is at work, maybe in another thread */

/* Slots: 0 .. n_locals-1 are locals, cells, free variables; then the value stack, bottom first. */
CC_BORROW PyObject *cc_act_get(const CcAct *act, int slot); /* NULL: unset */
/* drops what was there; value may be NULL */
void cc_act_put(CcAct *act, int slot, CC_STEAL(1) PyObject *value);
/* Whether code has stored to this local, or deleted it, since cc_act_clear_stored (or it has too high a number). */
bool cc_act_stored(const CcAct *act, int slot);
void cc_act_clear_stored(CcAct *act);
/* How many slots hold o that nothing reads any more: dead locals and, where it waits in a call, that call's operands. */
int cc_act_idle(const CcAct *act, bool waits, PyObject *o);
int cc_act_waiting_depth(const CcAct *act); /* stack slots that are still needed when that call has ended */
/* Sets pc and depth at once (observer callbacks resume, enter, rewind only). Stack slots at and above the new depth are
 * dropped; those below must have been put before the next instruction runs. */
void cc_act_move(CcAct *act, int pc, int depth);

struct CcObserver {
    void *ctx;
    /* A Python frame arrived while the hook is armed on this thread (act->pc = 0 unless a generator is resumed; at its
     * handler when it is resumed by throw() or close()). */
    CcGo (*enter)(CcObserver *obs, CcAct *act);
    CcGo (*before)(CcObserver *obs, CcAct *act, CcEvent *ev);
    /* Told after each observed event, also when it raised. The error indicator must be left as it is found.
     * Answers CC_OK or CC_GIVE_UP (CPython then goes on behind the instruction, exceptions included). */
    CcGo (*after)(CcObserver *obs, CcAct *act, CcEvent *ev);
    /* After an instruction that was performed unobserved because before() answered CC_BREAK, or CC_PERFORM was
     * answered: act->pc is the instruction to run next (a handler's first one after an exception). */
    CcGo (*resume)(CcObserver *obs, CcAct *act);
    /* The frame ends: with a value (borrowed), or NULL: an exception leaves it (error set) or it was
     * handed over. `how` says which (YIELD: also when a generator is made). */
    void (*leave)(CcObserver *obs, CcAct *act, int how, PyObject *value);
    /* A frame let go of o, which is held once more: by whom? (An address: the object may be gone.) NULL: of frames, with
     * all their locals. Only while the frame is observed; NULL here: nobody asks. */
    void (*let_go)(CcObserver *obs, PyObject *o);
    /* The call that act is performing returned while obs->unwinding: the act is asked how to go on. */
    CcGo (*rewind)(CcObserver *obs, CcAct *act);
    /* CC_DESCEND: makes the callee's frame (cc_act_call_rebuilt) and gives its result; NULL with the error set, or
     * with obs->unwinding. */
    CC_NEW PyObject *(*descend)(CcObserver *obs, CcAct *act);
    /* A function is called while `dead`: a new reference is the call's result; NULL (no error): CPython runs it. NULL
     * here: nothing is answered. */
    CC_NEW PyObject *(*answer)(CcObserver *obs, PyObject *func);
    bool unwinding; /* set by resume()/rewind() together with CC_UNWIND */
    /* the observer is done: every act hands its frame over at the next instruction */
    bool dead;
};

enum { CC_LEAVE_RETURN, CC_LEAVE_RAISE, CC_LEAVE_YIELD, CC_LEAVE_HANDOVER, CC_LEAVE_UNWIND };

/* Calls func with placeholder arguments that bind (None for each parameter), so that the next frame that arrives is
 * func's own: enter() is told with act->func == func and must fill every slot and answer CC_PERFORM or CC_DESCEND. */
CC_MUST CC_NEW PyObject *cc_act_call_rebuilt(PyFunctionObject *func);

/* ------------------------------------------------------------------ generators that wait (generator.c) */

typedef struct CcGen {
    PyFunctionObject *func; /* borrowed */
    const CcCode *code;
    PyObject *const *slot; /* as an act's */
    int unit, state;       /* where it goes on, in numbers of CPython's */
    int pc, depth;
} CcGen;
/* False: not a plain generator, one that was renamed, or it runs, is over, or is suspended in a handler of an exception, or somebody holds
 * its frame. */
bool cc_generator_read(PyObject *generator, CcGen *out);
/* A generator of func that has not begun, with a placeholder in each parameter's slot. To be filled: */
CC_MUST CC_NEW PyObject *cc_generator_new(PyFunctionObject *func);
/* locals, then the stack from its bottom on */
void cc_generator_put(PyObject *generator, int slot, CC_STEAL(1) PyObject *value);
void cc_generator_wait(PyObject *generator, int state, int unit, int depth);
/* One that waits has been replaced by another: its end runs no code of its own any more. */
void cc_generator_retire(PyObject *generator);

/* ------------------------------------------------------------------ iterators that wait (iterator.c) */

/* Of a dict (keys, values, items, reversed or not) or a set. */
typedef struct CcIterator {
    PyObject *over;         /* borrowed; NULL: it is exhausted */
    Py_ssize_t used;        /* what the size has to be; -1: it was another one */
    Py_ssize_t given, left; /* entries before it that are there still; items that it says it has left */
    Py_ssize_t at;          /* its place */
    bool back, values;      /* reversed; it gives values */
    bool behind;            /* it stands right behind what it gave last, which is there still */
} CcIterator;
bool cc_iterator_is(PyObject *o);
bool cc_iterator_read(PyObject *o, CcIterator *out); /* false: another object */
CC_BORROW PyObject *cc_iterator_over(PyObject *o);
/* What it has not given, from *place = 0 on, in the dict's own order. A set's values are NULL. */
bool cc_iterator_next(const CcIterator *it, Py_ssize_t *place, CC_BORROW PyObject **key, CC_BORROW PyObject **value);
/* over NULL: an exhausted one */
CC_MUST CC_NEW PyObject *cc_iterator_new(PyTypeObject *type, PyObject *over, Py_ssize_t given, Py_ssize_t used,
                                         Py_ssize_t left);

/* ------------------------------------------------------------------ the hook */

/* Arms the hook on this thread for one region: frames that arrive on this thread are told to obs->enter. The
 * process-wide eval function is installed when the first region of the interpreter is armed and removed with the last
 * one. Regions nest: the innermost observer of the thread is asked. -1 with RuntimeError set when a foreign PEP 523
 * hook is installed (it is named by its module if it can be found). Each arm is matched by one disarm. */
CC_MUST int cc_hook_arm(CcObserver *obs);
void cc_hook_disarm(CcObserver *obs);
/* A hook of the shared library whose file name begins with `module` may stay installed while it does nothing
 * (torch._dynamo's, when no callback is set): asked `idle`, ours takes its place while armed and gives it back. */
typedef bool (*CcHookIdle)(void);
void cc_hook_set_guest(const char *module, CcHookIdle idle);
/* The guest is installed and at work: frames that run now are its. */
bool cc_hook_occupied(void);
/* Innermost observer of this thread; NULL when none is armed. */
CcObserver *cc_hook_current(void);
/* Suspends observation of new frames on this thread (they go to CPython's evaluator); returns the previous value. */
bool cc_hook_pause(CcObserver *obs, bool paused);
/* 1 when a tracer, profiler or sys.monitoring tool is active for this thread (compiled functions then run eagerly). */
bool cc_hook_traced(void);
/* How many regions are armed in this interpreter (for tests of balance). */
int cc_hook_armed(void);
/* Levels of recursion that this thread has left: Python calls, and C calls where CPython counts them, else 0 (for
 * tests). */
void cc_hook_levels(int *python, int *c);
/* The C stack has room for what a compiled call needs more of it than CPython: frames that are run here take some for
 * each. */
bool cc_hook_has_room(void);

/* Once per process: opcode numbers by name, co_extra index, symbols. -1 with ImportError on an interpreter that is not
 * supported (a clear sentence: which versions are). */
CC_MUST int cc_py_init(void);

/* ---- cache.c: functools.lru_cache ---- */
bool cc_cache_type(const PyTypeObject *t); /* of what lru_cache makes of a function */
static inline bool cc_cache_is(PyObject *o) { return cc_cache_type(Py_TYPE(o)); }
CC_BORROW PyObject *cc_cache_dict(PyObject *cache); /* what it keeps; the same dict for ever */
/* The key for the result of a call; NULL: no memory, with the error set. */
CC_MUST CC_NEW PyObject *cc_cache_key(PyObject *cache, PyObject *const *in, int n, PyObject *kwnames);
/* Where the result is, if the dict of a cache with a limit gave o; NULL: o is a result itself. */
PyObject *const *cc_cache_result_at(PyObject *o);

/* ------------------------------------------------------------------ object internals that guards read */

/* Small objects that nobody can do without: where there is no memory for one it is made again with what is kept for that
 * (cc_mem_relieve). */
#define CC_SURE(o, make)                                                                                               \
    do {                                                                                                               \
        (o) = (make);                                                                                                  \
    } while ((o) == NULL && cc_obj_again())
bool cc_obj_again(void); /* true: memory was what was missing, and there is some; else it ends the process */
CC_NEW PyObject *cc_obj_name(const char *text); /* interned; never NULL */
static inline bool cc_text_is(PyObject *s, const char *ascii) {
    return PyUnicode_GET_LENGTH(s) == (Py_ssize_t)strlen(ascii) && PyUnicode_CompareWithASCIIString(s, ascii) == 0;
}
void cc_obj_put(PyObject *dict, PyObject *key, PyObject *value); /* never fails */

/* Borrowed instance dict or NULL (never creates one... 3.11/3.12: materialises it when values are inline, because
 * guards need the dict object). Error never set. */
CC_BORROW PyObject *cc_obj_dict(PyObject *o);
/* a range's start, stop and step, which it holds */
PyObject *const *cc_obj_range(PyObject *range);
CC_BORROW PyObject *cc_obj_proxied(PyObject *proxy); /* what a types.MappingProxyType stands for */
/* What a super object searches the bases of, and the class behind which it begins; NULL: it is not bound. */
CC_BORROW PyTypeObject *cc_obj_super(PyObject *super, PyTypeObject **behind);
bool cc_obj_may_hold(PyObject *o); /* whether it has such a dict, or would when an attribute is set */
/* Where that dict hangs in the object; NULL: it has none, or the place depends on the object's size. */
PyObject *const *cc_obj_dict_at(PyObject *o);
/* A word that differs once anything in the dict has changed: a key, a value, the length; or once it is gone, with
 * another dict in its place. To be read while there is a dict at this address, until cc_watch_end. NULL: this object
 * can't be watched. */
const uint64_t *cc_watch_begin(PyObject *dict);
void cc_watch_end(const uint64_t *version);
bool cc_obj_final(PyObject *o); /* code may run when o itself goes: it is finalised */
/* Somebody is told when o goes: the callback of a weak reference. */
bool cc_obj_watched(PyObject *o);
bool cc_obj_weakly_held(PyObject *o); /* there is a weak reference to it */
/* Were these references dropped, one each (NULL: none): whether somebody would be told of what goes then: a finaliser, the
 * callback of a weak reference; weak: or whether there is a weak reference at all. True when that is too long to tell. */
bool cc_obj_fall(PyObject *const *dropped, int n, bool weak);
/* tp_version_tag of a type, assigned if needed; 0 = not available. */
unsigned cc_type_version(PyTypeObject *type);
/* What a type says of all its objects, as bits: asked once for each version of the type. */
enum { CC_FACTS = 512 };
typedef struct CcFacts {
    unsigned (*ask)(PyTypeObject *type);
    struct CcFact {
        unsigned version, facts;
    } of[CC_FACTS];
} CcFacts;
unsigned cc_type_ask(CcFacts *f, PyTypeObject *type);
static inline unsigned cc_type_facts(CcFacts *f, PyTypeObject *type) {
    const struct CcFact *of = &f->of[type->tp_version_tag % CC_FACTS];
    return type->tp_version_tag != 0 && of->version == type->tp_version_tag ? of->facts : cc_type_ask(f, type);
}
/* A type's own dict (3.12 keeps those of static types elsewhere than in tp_dict); never NULL for a ready type. */
CC_BORROW PyObject *cc_type_dict(PyTypeObject *type);
/* A new object equal to an exact int or float: one that has an identity, which CPython's cached small ints have not. */
CC_NEW PyObject *cc_obj_number(PyObject *number);
/* Takes an object and gives it back, or CPython's own int where it is a copy of one of those. */
CC_NEW PyObject *cc_obj_cached(CC_STEAL(1) PyObject *o);
/* What a weak reference refers to, or NULL: it is gone. */
CC_BORROW PyObject *cc_weak_target(PyObject *weak);
PyTypeObject *cc_type_method_wrapper(void); /* types.MethodWrapperType, which has no public name in C */
/* Keys in order; an OrderedDict has an order of its own. New list; NULL: no memory (no error is left set). */
CC_NEW PyObject *cc_dict_keys(PyObject *dict);
/* A set's table, place after place, from *place = 0 on: a member and where it lies, or NULL where one was taken out. False:
 * there is no more. Sets whose tables are equal do the same from now on: what they are asked, given or copied to. */
bool cc_set_next(PyObject *set, Py_ssize_t *place, CC_BORROW PyObject **member);
/* The size of its table, and where pop() goes on. */
void cc_set_table(PyObject *set, Py_ssize_t *size, Py_ssize_t *finger);
/* _PyType_Lookup; NULL: absent, no error */
CC_BORROW PyObject *cc_type_lookup(PyTypeObject *type, PyObject *name);

#endif
