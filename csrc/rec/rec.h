/* rec: the recorder. Hears from the evaluator (csrc/py) what a region does on real objects, and writes down a trace:
 * guards on what was read from outside, a graph of tensor ops, effects on what existed before, and recipes that make
 * the result, or, at a break, the values of every live slot of every frame of the region.
 *
 *   begin --> (enter before after leave)* --> BREAK or root returned --> cc_rec_take() : CcTrace
 *
 * A trace that starts behind a break takes its inputs from the frames' slots; nothing of the trace before it is
 * assumed. */
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

/* Where and why: filled when it happens, never recomputed. Strings are owned. */
typedef struct CcBreakInfo {
    CcReason reason;
    uint64_t site; /* hash of (code, source position): tells two breaks of one line apart */
    char *text;    /* why, with the name of what it is about */
    int n_stack;
    struct CcPlace {
        PyObject *file, *function; /* strong str */
        int line;
    } *stack; /* innermost last */
} CcBreakInfo;
void cc_break_clear(CcBreakInfo *info);
void cc_break_copy(CcBreakInfo *to, const CcBreakInfo *from);

/* ---- recipe.c: plans that rebuild values ---- */
typedef enum CcMake {
    CC_MAKE_NULL,   /* an unset or dead slot */
    CC_MAKE_CONST,  /* object */
    CC_MAKE_SOURCE, /* id = guard whose value it is */
    CC_MAKE_VALUE,  /* id = graph value */
    CC_MAKE_EFFECT, /* id = effect whose result it is */
    CC_MAKE_SYMBOL, /* id = symbol */
    CC_MAKE_TUPLE,
    CC_MAKE_LIST,
    CC_MAKE_SET,
    CC_MAKE_DICT,
    CC_MAKE_SLICE,
    CC_MAKE_CELL,
    CC_MAKE_METHOD,
    CC_MAKE_FUNCTION,
    CC_MAKE_GENERATOR, /* kids: function, slots; id = unit, aux = state: CcGen */
    CC_MAKE_ITERATOR,  /* object = type, given, used, left: CcIterator; kid: the dict or set, or NULL */
    CC_MAKE_OBJECT,    /* object = type; kids: kind of base, base items, dict items, slots: CC_OWN_DICT */
    /* object = callable, kids = arguments: constructors that are pure (range iterator, super, partial) */
    CC_MAKE_CALL,
} CcMake;

typedef struct CcRecipe {
    uint8_t make;
    bool shared; /* one object of the trace: made once in a run */
    int32_t id, aux;
    int32_t kid0, n;  /* kids: CcRecipes.kid[kid0 .. kid0+n) */
    PyObject *object; /* strong */
} CcRecipe;

typedef struct CcRecipes {
    CC_VEC(CcRecipe) r;
    CC_VEC(int) kid;
} CcRecipes;

/* What a run has at hand for recipes. `built` caches shared objects (n = r.n, zeroed); NULL: nothing is shared. */
typedef struct CcMaker {
    const CcRecipes *recipes;
    PyObject **gv, **value, **effect, **built, **symbol;
} CcMaker;
/* NULL: error set, or CC_MAKE_NULL */
CC_MUST CC_NEW PyObject *cc_maker_make(const CcMaker *m, int recipe);
void cc_recipe_free(CcRecipes *rs);
/* Whether it needs nothing but constants, graph values and tensors that are graph inputs. */
bool cc_recipe_self_contained(const CcRecipes *rs, int recipe);

/* ---- actions: what is done by calling Python objects in a replay (host nodes of the graph, and effects) ---- */
typedef enum CcForm {
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
} CcForm;

/* Why a node that writes a tensor does not keep a failing replay from being done again eagerly: undo.c. */
typedef enum CcUndo { CC_UNDO_NOT, CC_UNDO_LOCAL, CC_UNDO_SAVED, CC_UNDO_REPEATS } CcUndo;
/* Memory of a tensor to save: its first byte, and how many; -1: it can't be told. */
int64_t cc_undo_bytes(PyObject *tensor, void **begin);
bool cc_undo_overlap(PyObject *a, PyObject *b); /* whether two tensors may share memory */

/* What a node's kernel is: of C; Python code that keeps to its operands; or any Python code. */
typedef enum CcKernel { CC_KERNEL_C, CC_KERNEL_KEEPS, CC_KERNEL_PYTHON } CcKernel;

typedef struct CcAction {
    uint8_t form;
    uint8_t arg;       /* operator number */
    bool state;        /* sets ambient state: done again, it restores what a failed run leaves behind */
    bool sequence;     /* the result is a sequence whose items are the node's values */
    uint8_t kernel;    /* CcKernel; PYTHON: not run a second time, if that can be helped */
    bool checked;      /* its results' metadata are compared with the recorded ones */
    bool fixed;        /* and their sizes are no symbols: they are the recorded ones for each key */
    bool follows;      /* torch's alone: sizes of its results are guessed for new keys, and compared where they were */
    uint8_t undo;      /* CcUndo */
    int16_t gives;     /* 1 + the operand that it gave back; 0: none, or its results are values */
    PyObject *target;  /* strong: CALL: callable; GETATTR..: name; SETCELL: unused */
    PyObject *kwnames; /* strong or NULL */
    int32_t args0, n;  /* recipes: CcTrace.args[args0 .. args0+n) */
    const char *name;  /* for reports; static or arena of the trace (strdup'ed: owned) */
    PyCodeObject *co;  /* strong: where the user's code asks for it; NULL: unknown */
    int32_t pc;        /* of co */
    int32_t after;     /* effects, symbolic steps: graph nodes before it */
} CcAction;
int cc_action_line(const CcAction *a); /* user line, 0 unknown */
/* What enters a block of torch.inference_mode that `a` left, or leaves one that it entered, given the block's object;
 * NULL: `a` is neither. */
CC_BORROW PyObject *cc_scope_opposite(const CcAction *a);
/* args: n new references are NOT stolen. New reference or NULL with the error set. */
/* Binds an action's call anew (tens.h: cc_bind_*). 0, or -1: no row fits. */
int cc_action_bind(const CcAction *a, PyObject *const *args, CcBound *out);
CC_MUST CC_NEW PyObject *cc_action_run(const CcAction *a, PyObject *const *args);

/* ---- symbols: sizes and numbers that differ from call to call (sym.c) ---- */
/* An action on symbols, constants and metadata of tensors. Its result becomes new symbols, or it is a guard: the result
 * has to be what it was. */
typedef struct CcSymStep {
    CcAction action;
    /* strong: a guard; NULL: the result is the symbols symbol0 .. symbol0+n) (its items, if action.sequence) */
    PyObject *want;
    int32_t symbol0, n;
    int16_t same; /* 1 + the operand that it gives back: a guard; 0: none */
    /* reads what a node made: runs between the nodes (action.after), others run before all of them */
    bool late;
    /* it follows from the key alone and is evaluated once for each; else in every call */
    bool keyed;
} CcSymStep;
/* Bounds of a symbolic size. */
typedef struct CcSymRange {
    int32_t guard, dim;
    int64_t min, max;
} CcSymRange;
/* A number from outside that is a symbol. */
typedef struct CcSymSource {
    int32_t guard, symbol;
    bool keyed;   /* the graph depends on its value */
    bool written; /* while recording: the trace wrote another number there since */
} CcSymSource;

/* Whether kernels take a number as it is in each call. What is no ordinary number there (infinite, or too large for the
 * dtype, where eager may raise) makes torch run the nodes. */
typedef enum CcSymKernel { CC_SYM_NOT, CC_SYM_WIDE, CC_SYM_HALF } CcSymKernel;

/* ---- traces ---- */
typedef struct CcLevel { /* one frame of a snapshot */
    int32_t func;        /* recipe of its function */
    PyCodeObject *co;    /* strong */
    int32_t pc, depth;
    bool kept;        /* it is the act that was at this level when the trace began */
    bool touched;     /* it ran instructions since: its slots are to be written */
    int32_t slot0, n; /* recipes of its slots: CcTrace.slots[slot0 .. slot0+n), n = n_locals + depth */
} CcLevel;
enum { CC_SLOT_STAYS = -1 }; /* in place of a recipe, of a kept frame: what lies there */

enum { CC_HANDLED_SAME = -1, CC_HANDLED_OUTER = -2 }; /* as when the trace began; as when the call began */

typedef enum CcEnd { CC_END_RETURN, CC_END_BREAK } CcEnd;

typedef struct CcTrace {
    CcGuards guards;
    CcGraph *graph;
    CC_VEC(int) input;       /* source of each graph input, in order of the inputs */
    CC_VEC(int) input_value; /* its value number */
    CC_VEC(int) saved;       /* graph inputs whose bytes are put back when a replay fails */
    CC_VEC(int) rewritten;   /* those that are written again: only their versions are */
    /* items of sequences that were known before (torch._foreach_add_ gives what it wrote) */
    CC_VEC(struct CcGave {
        int item;  /* the node's result */
        int value; /* whose object it was; -1: no value of the graph */
    }) gave;
    /* tensors from outside, in ways that can be undone (CcUndo): the self-check can't run it */
    bool writes;
    CC_VEC(CcAction) node; /* by CcNode.host */
    CC_VEC(CcAction) effect;
    CC_VEC(int) args;
    CcRecipes recipes;
    /* Its key: sizes and strides of the tensors with symbolic sizes, and numbers that nodes depend on. Types and plan
     * hold for one key; other keys have their own (eval/shape.c). */
    CC_VEC(int) resized;      /* guards of these tensors */
    CC_VEC(CcSymRange) range; /* bounds of sizes, where there are any */
    CC_VEC(CcSymSource) number;
    CC_VEC(CcSymStep) step; /* in order */
    CC_VEC(struct CcSymbol {
        PyObject *value; /* strong: the recorded one */
        bool late;       /* known once nodes have run, else before the first one */
        bool keyed;
        uint8_t kernel; /* kernels take it as an argument (CC_IN_NUMBER): CcSymKernel */
    }) symbol;
    CcEnd end;
    int result; /* recipe, CC_END_RETURN */
    /* CC_END_BREAK: recipe of the exception being handled there, or CC_HANDLED_* */
    int handled;
    CC_VEC(CcLevel) level; /* CC_END_BREAK */
    CC_VEC(int) slots;
    CcBreakInfo brk;
    CcMode mode; /* ambient state at its start */
    /* and at the call's: what the end of a block of inference mode goes back to */
    CcMode outer;
    /* Results that nodes wrote in place, in memory that the graph itself made: kernels do without the writes, which count */
    CC_VEC(struct CcWritten {
        int value;
        uint64_t version;
    }) written;
    bool needs_grad; /* autograd has to see its ops */
    bool scoped;     /* a block of torch.inference_mode begins or ends in it */
    /* a guard behind such nodes may fail, or an exception be caught: explored with undo */
    bool retry;
    /* its graph writes tensors from outside or draws random numbers: can't be run twice */
    bool impure;
    bool lasting; /* ... and not only numbers from the CPU's own generator, whose state can be put back */
    /* a node behind such numbers may raise where code catches: each run keeps that state, so that it can be done again */
    bool redraws;
    bool python; /* a node's kernel is (CC_KERNEL_PYTHON) */
    int ops;     /* nodes that are tensor ops */
    /* guards of generators that others, or nothing, take the place of: cc_generator_retire */
    CC_VEC(int) adopted;
    CC_VEC(struct CcKept {
        int value;
        PyObject *tensor; /* strong */
    }) kept;              /* recorded inputs and outputs of the graph; cc_trace_forget */
    int start_line;
    PyObject *start_file; /* strong */
    int instructions;
} CcTrace;
/* What a symbolic guard says, for people: "x.size(0) > 32 is True". */
void cc_symtext_step(const CcTrace *t, int step, CcSbuf *out);
enum { CC_KEY_MAX = 192 }; /* words of a key; a trace that would need more has no symbols */
/* Shows each recipe that an action's operands are made by. */
void cc_sym_visit(const CcTrace *t, const CcAction *a, void (*visit)(void *ctx, const CcRecipe *r), void *ctx);
/* Tells which values late steps read, and up to which node. */
void cc_trace_late_reads(const CcTrace *t, void (*tell)(void *ctx, int value, int node), void *ctx);
static inline bool cc_trace_symbolic(const CcTrace *t) { return t->resized.n + t->number.n > 0; }
void cc_trace_free(CcTrace *t);
void cc_trace_forget(CcTrace *t); /* drops `kept` */
int cc_trace_visit(const CcTrace *t, visitproc visit, void *arg);

/* ---- sites: instructions at which a recording of this root has to break ---- */
typedef struct CcSites {
    CC_VEC(struct CcSite {
        PyCodeObject *co; /* strong */
        int pc;
        CcBreakInfo why;
    }) at;
    bool tracebacks; /* its code looks at frames of tracebacks: exceptions that have one are not rebuilt */
} CcSites;
void cc_sites_free(CcSites *sites);
void cc_sites_cut(CcSites *sites, int n); /* only the first n stay */

/* ---- recording ---- */
typedef struct CcRec CcRec;
/* keep_tensors: the trace keeps its recorded inputs and outputs (CcTrace.kept), for the self-check.
 * freezing: parameters of up to so many bytes are marked as frozen. */
CcRec *cc_rec_new(CcSites *sites, bool keep_tensors, int64_t freezing, CcHints *hints);
void cc_rec_free(CcRec *rec);

/* Begins the first trace of a call: the next frame that enters is the root's. args: the call's values (positional, then
 * the keyword ones); they must stay alive while recording. */
void cc_rec_begin_call(CcRec *rec, PyObject *const *args, int n, PyObject *kwnames, PyFunctionObject *root,
                       const CcMode *mode);
/* Whether the number in a slot is known to differ from call to call. */
typedef bool (*CcVaries)(void *ctx, int level, int slot); /* floats */
/* Begins a trace behind a break: acts[0..n) is the region's chain, innermost last, each standing at its pc.
 * CC_OK, or CC_GIVE_UP when this state can't be recorded. */
/* salt: of the point (cc_guard_path). */
CC_MUST CcGo cc_rec_begin_resume(CcRec *rec, CcAct *const *acts, int n, const CcMode *mode, CcVaries varies, void *ctx,
                                 uint64_t salt);
bool cc_rec_active(const CcRec *rec);

/* The observer's callbacks while active. before(): CC_BREAK ends the trace (take it); CC_GIVE_UP: the recording is lost
 * (cc_rec_why tells why). leave() of the root with a value ends the trace too. */
CcGo cc_rec_enter(CcRec *rec, CcAct *act);
CcGo cc_rec_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_rec_after(CcRec *rec, CcAct *act, CcEvent *ev);
void cc_rec_let_go(CcRec *rec, PyObject *o);
void cc_rec_leave(CcRec *rec, CcAct *act, int how, PyObject *value);
bool cc_rec_done(const CcRec *rec); /* a finished trace waits to be taken */
/* The finished trace, owned by the caller; NULL when there is none. */
CcTrace *cc_rec_take(CcRec *rec);
bool cc_rec_told(const CcRec *rec);              /* code asked whether it is compiled, and was told so */
const CcBreakInfo *cc_rec_why(const CcRec *rec); /* reason of the last break or give-up; NULL: none */
/* torch.compiler.is_compiling and its kin, called by the code that CPython runs now, after a recording of the same call
 * has told other code that it is compiled: new reference to the answer. NULL (no error): another function, or code to
 * which eager's answer is given. */
CC_NEW PyObject *cc_intrin_answer(PyObject *func);
/* Sets what cc_rec_why says: why nothing is recorded at act's instruction. */
void cc_site_why(CcRec *rec, const CcAct *act, CcReason reason, const char *what);
/* Callables, or types of callables, at which every recording breaks (ccompile.disable, ccompile.graph_break). */
void cc_call_special(PyObject *callable_or_type, CcReason reason);
/* What a compiled function wraps: inside a recording it is as if that were called. NULL: not one of ours. */
typedef PyObject *(*CcCallUnwrap)(PyObject *callable);
void cc_call_set_unwrap(CcCallUnwrap unwrap);

CC_MUST int cc_rec_init(PyObject *torch); /* callee table, intrinsics */

#endif
