/* rec: the recorder. The evaluator (csrc/py) tells it each event of a region that runs on real objects. From these the
 * recorder builds a trace: guards on what was read from outside, a graph of tensor ops, effects on objects that existed
 * before, and recipes that make the result or, at a break, the value of each live slot of each frame of the region.
 *
 *   begin --> (enter before after leave)* --> BREAK or root returned --> cc_rec_take() : CcTrace
 *
 * A trace that starts after a break takes its inputs from the frames' slots and assumes nothing about the trace before
 * it. */
#ifndef CC_REC_H
#define CC_REC_H

#include "../guard/guard.h"

typedef enum CcReason {
#define CC_REASON(id, name, why, advice) CC_R_##id,
#include "breaks.def"
#undef CC_REASON
    CC_R_COUNT
} CcReason;
const char *cc_reason_name(CcReason r);
const char *cc_reason_advice(CcReason r);

/* Where and why the recording broke: filled in when it happens, never recomputed. Strings are owned. */
typedef struct CcBreakInfo {
    CcReason reason;
    uint64_t site; /* hash of (code, source position): distinguishes two breaks on one line */
    char *text;    /* why, with the name of the callable, attribute or type */
    char *what;    /* that name; NULL: none */
    int n_stack;
    struct CcPlace {
        PyObject *file, *function; /* strong str */
        int line;
        const char *library; /* "torch" or "ccompile"; NULL: the user's code */
    } *stack;                /* innermost last */
} CcBreakInfo;
/* The innermost place in the user's code; else the innermost one. NULL: none is known. */
const struct CcPlace *cc_break_place(const CcBreakInfo *info);
/* The rows of CC_REWRITE for it, from row *row on (first 0), which is moved behind the one found. False: no more. */
bool cc_break_rewrite(const CcBreakInfo *info, int *row, const char **before, const char **after);
void cc_break_clear(CcBreakInfo *info);
void cc_break_copy(CcBreakInfo *to, const CcBreakInfo *from);
void cc_break_text(const CcBreakInfo *info, CcSbuf *out); /* the reason's id, the stack, the advice: a line each */

/* ---- recipe.c: how a replay rebuilds values ---- */
typedef enum CcMake {
    CC_MAKE_NULL,   /* an unset or dead slot */
    CC_MAKE_CONST,  /* object */
    CC_MAKE_SOURCE, /* id = guard that read it */
    CC_MAKE_VALUE,  /* id = graph value */
    CC_MAKE_EFFECT, /* id = effect whose result it is */
    CC_MAKE_SYMBOL, /* id = symbol */
    CC_MAKE_TUPLE,
    CC_MAKE_LIST,
    CC_MAKE_SET, /* object = a set of the same members, with its tuples as kids; NULL: they differ between replays */
    CC_MAKE_DICT,
    CC_MAKE_SLICE,
    CC_MAKE_CELL,
    CC_MAKE_METHOD,
    CC_MAKE_FUNCTION,
    CC_MAKE_GENERATOR, /* kids: function, slots; id = unit, aux = state: CcGen */
    CC_MAKE_ITERATOR,  /* object = type, given, used, left: CcIterator; kid: the dict or set, or NULL */
    CC_MAKE_OBJECT,    /* object = type; kids: kind of base, base items, dict items, slots: CC_OWN_DICT */
    /* object = callable, kids = arguments: pure constructors (range iterator, super, partial) */
    CC_MAKE_CALL,
} CcMake;

typedef struct CcRecipe {
    uint8_t make;
    bool shared; /* several places hold the object: it is made once per run */
    int32_t id, aux;
    int32_t kid0, n;  /* kids: CcRecipes.kid[kid0 .. kid0+n) */
    PyObject *object; /* strong */
} CcRecipe;

typedef struct CcRecipes {
    CC_VEC(CcRecipe) r;
    CC_VEC(int) kid;
} CcRecipes;

/* What a run provides to recipes. `built` caches shared objects (n = r.n, zeroed); NULL: nothing is shared. */
typedef struct CcMaker {
    const CcRecipes *recipes;
    PyObject **gv, **value, **effect, **built, **symbol;
} CcMaker;
/* NULL: error set, or CC_MAKE_NULL */
CC_MUST CC_NEW PyObject *cc_maker_make(const CcMaker *m, int recipe);
void cc_recipe_free(CcRecipes *rs);
/* Whether the recipe needs only constants, graph values and tensors that are graph inputs. */
bool cc_recipe_self_contained(const CcRecipes *rs, int recipe);

/* ---- actions: calls of Python objects that a replay makes (host nodes of the graph, and effects) ---- */
typedef enum CcActionForm {
    CC_F_CALL,
    CC_F_BINOP,
    CC_F_INPLACE,
    CC_F_UNARY,
    CC_F_COMPARE,
    CC_F_GETITEM,
    CC_F_SETITEM,
    CC_F_DELITEM,
    CC_F_GETATTR,
    CC_F_SETATTR,
    CC_F_DELATTR,
    CC_F_SETCELL,
    CC_F_FORMAT,
    CC_F_JOIN,
    CC_F_ASSERT,
} CcActionForm;

/* Why a failing replay can run again eagerly although a node wrote to a tensor: undo.c. LOCAL: to memory that the graph
 * made; OBJECT: to the object alone, which the graph made. */
typedef enum CcUndo {
    CC_UNDO_NOT,
    CC_UNDO_LOCAL,
    CC_UNDO_OBJECT,
    CC_UNDO_SAVED,
    CC_UNDO_REPEATS,
    CC_UNDO_MOVES
} CcUndo;
/* The memory of a tensor to save: sets the first byte, returns the number of bytes; -1: unknown. */
int64_t cc_undo_bytes(PyObject *tensor, void **begin);
bool cc_undo_overlap(PyObject *a, PyObject *b); /* whether two tensors may share memory */

/* A node's kernel: C code; Python code that only accesses its operands; or any Python code. */
typedef enum CcKernel { CC_KERNEL_C, CC_KERNEL_KEEPS, CC_KERNEL_PYTHON } CcKernel;

typedef struct CcAction {
    uint8_t form;
    uint8_t arg;       /* operator number */
    bool asserts;      /* raises or has no effect */
    bool state;        /* sets ambient state: running it again restores what a failed run changed */
    bool sequence;     /* the result is a sequence whose items are the node's values */
    bool leaves;       /* made in a torch.utils.checkpoint, and seen behind it */
    uint8_t kernel;    /* CcKernel; PYTHON: avoid running it a second time */
    bool checked;      /* a replay compares its results' metadata with the recorded ones */
    bool fixed;        /* ... and their sizes are not symbolic: the recorded ones hold for every key */
    bool follows;      /* only torch knows its results' sizes: guessed for new keys, and each run checks the guess */
    uint8_t undo;      /* CcUndo */
    bool redraws;      /* it draws from the CPU's default generator alone, whose state a run keeps before it does */
    int16_t gives;     /* 1 + the operand that it returned; 0: none, or its results are values */
    PyObject *target;  /* strong: CALL: callable; GETATTR..: name; SETCELL: unused */
    PyObject *kwnames; /* strong or NULL */
    int32_t args0, n;  /* recipes: CcTrace.args[args0 .. args0+n) */
    const char *name;  /* for reports; owned */
    PyCodeObject *co;  /* strong: the innermost code outside torch that causes it; NULL: unknown */
    int32_t pc;        /* of co */
    int32_t after;     /* effects, symbolic steps: number of graph nodes before it */
} CcAction;
int cc_action_line(const CcAction *a); /* user line, 0 unknown */
bool cc_scope_is(const CcAction *a);   /* enters or leaves a block of torch.inference_mode or torch.device */
bool cc_scope_enters(const CcAction *a);
/* Leaves the block that `a` has entered, or enters again the one that it has left. in: a's operands. -1 with an error
 * set. */
CC_MUST int cc_scope_undo(const CcAction *a, PyObject *const *in);
/* Binds an action's call again (tens.h: cc_bind_*). 0, or -1: no row fits. */
int cc_action_bind(const CcAction *a, PyObject *const *args, CcBound *out);
/* args: n references, not stolen. New reference, or NULL with an error set. */
CC_MUST CC_NEW PyObject *cc_action_run(const CcAction *a, PyObject *const *args);

/* ---- symbols: sizes and numbers that vary between calls (sym.c) ---- */
/* An action on symbols, constants and metadata of tensors. Its result becomes new symbols; or the step is a guard,
 * which requires the recorded result. */
typedef struct CcSymStep {
    CcAction action;
    /* strong: the result that a guard requires; NULL: the result becomes symbols [symbol0 .. symbol0+n) (its items, if
     * action.sequence) */
    PyObject *want;
    int32_t symbol0, n;
    int16_t same; /* a guard: the result is this operand, plus 1; 0: none */
    /* reads a node's result: runs between nodes (action.after); all other steps run before the first node */
    bool late;
    /* depends on the key alone: evaluated once per key; otherwise in every call */
    bool keyed;
} CcSymStep;
/* Bounds of a symbolic size. */
typedef struct CcSymRange {
    int32_t guard, dim;
    int64_t min, max;
} CcSymRange;
/* A number read from outside that is a symbol. */
typedef struct CcSymSource {
    int32_t guard, symbol;
    bool keyed;   /* the graph depends on its value */
    bool written; /* while recording: the trace has since written another number there */
} CcSymSource;

/* Whether kernels read a number anew in each call, and with which range. Where it is out of range (infinite, or too
 * large for the dtype, for which eager may raise), torch runs the nodes instead. */
typedef enum CcSymKernel { CC_SYM_NOT, CC_SYM_WIDE, CC_SYM_HALF } CcSymKernel;

/* ---- traces ---- */
typedef struct CcSnapshotFrame { /* one frame of a snapshot */
    int32_t func;                /* recipe of its function */
    PyCodeObject *co;            /* strong */
    int32_t pc, depth;
    bool kept;        /* the same act was at this level when the trace began */
    bool touched;     /* it has run instructions since then: its slots must be written */
    int32_t slot0, n; /* recipes of its slots: CcTrace.slots[slot0 .. slot0+n), n = n_locals + depth */
} CcSnapshotFrame;
enum { CC_SLOT_STAYS = -1 }; /* in place of a recipe, in a kept frame: the slot keeps its object */

enum {
    CC_HANDLED_SAME = -1,
    CC_HANDLED_OUTER = -2
}; /* the exception handled when the trace began; when the call began */

typedef enum CcEnd { CC_END_RETURN, CC_END_BREAK } CcEnd;

typedef struct CcTrace {
    CcGuards guards;
    CcGraph *graph;
    CC_VEC(int) input;       /* source of each graph input, in order of the inputs */
    CC_VEC(int) input_value; /* its value number */
    CC_VEC(struct CcSaved {
        int value; /* a graph input whose bytes are restored when a replay fails */
        int node;  /* that writes it */
    }) saved;
    CC_VEC(int) rewritten; /* graph inputs of which only `_version` is restored; their data will be overwritten */
    /* items of result sequences that were already known (torch._foreach_add_ returns the tensors it wrote to) */
    CC_VEC(struct CcGave {
        int item;  /* the node's result */
        int value; /* the value of that object; -1: not a graph value */
    }) gave;
    /* writes to tensors from outside, in ways that can be undone (CcUndo): the self-check can't run it */
    bool writes;
    CC_VEC(CcAction) node; /* by CcNode.host */
    CC_VEC(CcAction) effect;
    CC_VEC(int) args;
    CcRecipes recipes;
    /* The key: sizes and strides of the tensors with symbolic sizes, and numbers that nodes depend on. Types and plan
     * belong to one key; each key has its own (eval/shape.c). */
    CC_VEC(int) resized;      /* guards of the tensors with symbolic sizes */
    CC_VEC(CcSymRange) range; /* bounds of sizes, where known */
    CC_VEC(CcSymSource) number;
    CC_VEC(CcSymStep) step; /* in order */
    CC_VEC(int) ahead;      /* guards of ints (DRAW) that a run draws before it begins, in order */
    CC_VEC(struct CcSymbol {
        PyObject *value; /* strong: the recorded one */
        bool late;       /* known only after nodes have run, not before the first one */
        bool keyed;
        uint8_t kernel; /* whether kernels take it as an argument (CC_IN_NUMBER): CcSymKernel */
    }) symbol;
    CcEnd end;
    int result; /* recipe, CC_END_RETURN */
    /* CC_END_RETURN: variables of the root's frame that have since been deleted; a traceback may keep the frame */
    CC_VEC(int) deleted;
    /* CC_END_BREAK: recipe of the exception being handled at the break, or CC_HANDLED_* */
    int handled;
    CC_VEC(CcSnapshotFrame) level; /* CC_END_BREAK */
    CC_VEC(int) slots;
    CcBreakInfo brk;
    CcMode mode; /* ambient state when the trace began */
    /* ... and when the call began: the end of a block of inference mode restores it */
    CcMode outer;
    /* Results that nodes wrote in place, in memory that the graph allocated: kernels omit these writes, but `_version`
     * counts them. */
    CC_VEC(struct CcWritten {
        int value;
        uint64_t version;
    }) written;
    CC_VEC(struct CcWritten) born; /* results that torch itself has written to by `version` (a batch-first GRU's) */
    bool needs_grad;               /* autograd must see its ops */
    bool scoped;                   /* a block of scope.c begins or ends in it */
    /* a guard after such nodes may fail, or code may catch an exception: a run for a new key saves what it writes */
    bool retry;
    /* its graph writes to tensors from outside or draws random numbers: it can't run twice */
    bool impure;
    bool lasting;        /* ... and does more than draw from the CPU's default generator, whose state can be restored */
    bool raises;         /* a node may raise */
    bool python;         /* a node has a kernel in Python (CC_KERNEL_PYTHON) */
    bool draws;          /* a node draws from a generator of Python (random.random) */
    bool other_autocast; /* sets autocast's state on a device without a row in mode.def */
    int ops;             /* nodes that are tensor ops */
    /* guards of generators that a run replaces or drops: cc_generator_retire */
    CC_VEC(int) adopted;
    CC_VEC(struct CcKept {
        int value;
        PyObject *tensor; /* strong */
    }) kept;              /* recorded inputs and outputs of the graph; cc_trace_forget */
    struct CcPlace start; /* of the function, or behind the break */
    uint64_t record_ns;   /* time that recording took, with the ops that ran meanwhile */
    int instructions;
} CcTrace;
/* A symbolic guard as readable text: "x.size(0) > 32 is True". */
void cc_symtext_step(const CcTrace *t, int step, CcSbuf *out);
enum { CC_KEY_MAX = 192 }; /* maximal words of a key; a trace that would need more has no symbols */
/* Calls `visit` with each recipe that makes an action's operands. */
void cc_sym_visit(const CcTrace *t, const CcAction *a, void (*visit)(void *ctx, const CcRecipe *r), void *ctx);
/* Calls `tell` with each value that late steps read, and the last node before such a read. */
void cc_trace_late_reads(const CcTrace *t, void (*tell)(void *ctx, int value, int node), void *ctx);
static inline bool cc_trace_symbolic(const CcTrace *t) { return t->resized.n + t->number.n > 0; }
/* Whether a run may be undone: a node raises, or sizes turn out not to fit the trace. Others keep neither statistics nor the
 * generator's state. */
static inline bool cc_trace_undone(const CcTrace *t) { return t->raises || cc_trace_symbolic(t); }
/* Whether a run can undo an action's writes, or its draws. */
static inline bool cc_action_undoes(const CcTrace *t, const CcAction *a) {
    return a->undo != CC_UNDO_NOT && (a->undo != CC_UNDO_MOVES || cc_trace_undone(t));
}
static inline bool cc_action_redraws(const CcTrace *t, const CcAction *a) { return a->redraws && cc_trace_undone(t); }
void cc_trace_free(CcTrace *t);
void cc_trace_forget(CcTrace *t); /* drops `kept` */
int cc_trace_visit(const CcTrace *t, visitproc visit, void *arg);
/* A copy of these nodes [node of the graph] alone, with what makes their operands; it may outlive the trace. */
CC_NEW CcTrace *cc_trace_part(const CcTrace *t, const bool *node);

/* ---- sites: instructions at which a recording of this root must break ---- */
typedef struct CcSites {
    CC_VEC(struct CcSite {
        PyCodeObject *co; /* strong */
        int pc;
        CcBreakInfo why;
    }) at;
    bool addresses;  /* its code has taken the address of an object: lists and dicts keep theirs */
    bool tracebacks; /* its code reads frames of tracebacks: exceptions with a traceback are not rebuilt */
} CcSites;
void cc_sites_free(CcSites *sites);
void cc_sites_cut(CcSites *sites, int n); /* keeps only the first n */

/* ---- recording ---- */
typedef struct CcRec CcRec;
/* keep_tensors: the trace keeps its recorded inputs and outputs (CcTrace.kept), for the self-check.
 * freezing: parameters up to this many bytes are marked as frozen. */
CcRec *cc_rec_new(CcSites *sites, bool keep_tensors, int64_t freezing, CcHints *hints);
void cc_rec_free(CcRec *rec);

/* Begins the first trace of a call: the next frame that enters is the root's. args: the call's arguments (positional,
 * then keyword values); they must stay alive while recording. */
void cc_rec_begin_call(CcRec *rec, PyObject *const *args, int n, PyObject *kwnames, PyFunctionObject *root,
                       const CcMode *mode);
/* A float, text or numpy scalar: if it varies between calls, a recording behind a break has a copy of it. */
bool cc_value_copyable(PyObject *o);
/* Whether the one in a slot is known to vary. */
typedef bool (*CcVaries)(void *ctx, int level, int slot);
/* Begins a trace after a break: acts[0..n) is the region's chain of frames, innermost last, each at its pc. salt: the
 * resume point's (cc_guard_path). CC_OK, or CC_GIVE_UP when this state can't be recorded. */
CC_MUST CcGo cc_rec_begin_resume(CcRec *rec, CcAct *const *acts, int n, const CcMode *mode, CcVaries varies, void *ctx,
                                 uint64_t salt);
bool cc_rec_active(const CcRec *rec);

/* The observer's callbacks while active. before(): CC_BREAK ends the trace (take it); CC_GIVE_UP: the recording is
 * given up (cc_rec_why tells why). leave() of the root with a value also ends the trace. */
CcGo cc_rec_enter(CcRec *rec, CcAct *act);
CcGo cc_rec_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_rec_after(CcRec *rec, CcAct *act, CcEvent *ev);
void cc_rec_released(CcRec *rec, PyObject *o);
void cc_rec_leave(CcRec *rec, CcAct *act, int how, PyObject *value);
bool cc_rec_done(const CcRec *rec); /* a finished trace waits to be taken */
/* The finished trace, owned by the caller; NULL when there is none. */
CcTrace *cc_rec_take(CcRec *rec);
bool cc_rec_told(const CcRec *rec); /* code asked whether it is being compiled, and the answer was yes */
/* After a recording that ended in an exception: the next ones break at the instruction that raised it. False: they do. */
bool cc_rec_break_at_raise(CcRec *rec);
const CcBreakInfo *cc_rec_why(const CcRec *rec); /* reason of the last break or give-up; NULL: none */
/* Answers torch.compiler.is_compiling and its kin for code that CPython runs after a recording of the same call has
 * answered yes to other code: new reference. NULL (no error): func is another function, or the code gets eager's
 * answer. */
CC_NEW PyObject *cc_intrin_answer(PyObject *func);
bool cc_library_hands(PyFunctionObject *func); /* a row HANDED of library.def */
bool cc_library_keeps(const PyCodeObject *co); /* a row KEEPS */
/* Sets the result of cc_rec_why: why the recorder records nothing at act's instruction. */
void cc_site_why(CcRec *rec, const CcAct *act, CcReason reason, const char *what);
/* Callables, or types of callables, at which every recording breaks (ccompile.disable, ccompile.graph_break). */
void cc_call_special(PyObject *callable_or_type, CcReason reason);
/* Returns the function that a compiled function wraps: a recording handles a call of it as a call of the wrapped
 * function. NULL: not a compiled function. */
typedef PyObject *(*CcCallUnwrap)(PyObject *callable);
void cc_call_set_unwrap(CcCallUnwrap unwrap);

bool cc_state_has_hooks(void); /* whether hooks of saved tensors are active, or this torch does not tell */

CC_MUST int cc_rec_init(void); /* callee table, intrinsics */

#endif
