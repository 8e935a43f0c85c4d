/* rec_int: declarations shared by the recorder's files. */
#ifndef CC_REC_INT_H
#define CC_REC_INT_H

#include "rec.h"

typedef enum CcOrigin {
    CC_O_UNKNOWN, /* unknown provenance: using it is a break */
    CC_O_CONST,   /* constant under guards; needs no entry in the map */
    CC_O_SOURCE,  /* reached again through a guard */
    CC_O_VALUE,   /* a graph value: tensor, or a number that a node computes */
    CC_O_FRESH,   /* made in this trace */
    CC_O_EFFECT,  /* result of an effect */
    CC_O_SYMBOL,  /* a symbolic number: a separate object, never one of CPython's cached ints */
} CcOrigin;

typedef enum CcDirty {
    CC_DIRTY_NO,
    /* some keys of a dict, or items of a list, were written and are known: others can be read, but not the whole */
    CC_DIRTY_KEYS,
    CC_DIRTY_ALL,   /* nothing in it can be read before the next break */
    CC_DIRTY_KNOWN, /* guards cover its content before the write: its content is known and read without guards */
} CcDirty;

typedef struct CcProv {
    /* strong, except for tensors that nodes made: for these, `weak` tells whether the object is still alive */
    PyObject *object;
    PyObject *weak;
    uint8_t origin;
    uint8_t dirty;  /* SOURCE: written in this trace; CcDirty */
    bool finalised; /* already finalised when first seen: this happens once, even to an object that survives it */
    int32_t id;     /* guard, graph value or effect */
    PyCodeObject *site_co; /* FRESH: where it was made (borrowed from a running frame's code) */
    int32_t site_pc;
    int plain; /* FRESH container: it holds only constants while CcRec.puts is this */
} CcProv;

/* The recorder's state of one act of the region. */
typedef struct CcRecFrame {
    CcAct *act;
    /* its caller's instruction calls it directly: a break can rebuild both frames */
    bool transparent;
    bool kept; /* at this level since the trace began */
    bool touched;
    bool ends_object; /* a finaliser, or a callback of a weak reference */
    int first_fresh;  /* provenance entries when it entered: later ones are swept when it leaves */
    int call_nodes, call_guards, call_stores; /* graph nodes, guards and CcRec.stores before the current event */
    Py_ssize_t call_size;                     /* ... and the size of the list that the event extends */
    const PyTypeObject *hashed;               /* C code hashes or compares an object of this class */
    int first_stores;
    int gives; /* guard, added before the event, that reads the event's result; -1: none */
} CcRecFrame;

/* What the trace did with a context variable (context.c). */
typedef struct CcContextEvent {
    PyObject *var, *token; /* borrowed: provenance holds both; token: of set() or reset() */
    int state;
    int guard;  /* ENTRY: that reads what the variable held; -1: none yet */
    int before; /* SET: the variable's last event before the set() that made the token; -1: none */
} CcContextEvent;

enum { CC_FOUND = 64 };
enum { CC_MAX_GUARDS = 200000 }; /* a recording with more ends */

/* References that a trace drops: pairs of a level and its slot, or of -1 and a guard whose place is overwritten. */
typedef CC_VEC(int) CcDrops;

struct CcRec {
    int64_t freezing; /* parameters up to this many bytes are marked as frozen */
    CcTrace *trace;   /* being recorded; NULL when inactive */
    CcTrace *done;
    CcSites *sites;
    CcMode mode;
    CC_VEC(CcRecFrame) frame;
    CcObserver *obs; /* borrowed: the observer of the recorded frames */
    CC_VEC(CcProv) prov;
    /* attributes of classes that already have a guard */
    struct CcLooked {
        PyTypeObject *type;
        PyObject *name, *found;
        int guard;
    } looked[CC_FOUND];
    CcMap by_object; /* object -> index into prov */
    CcMap read_by;   /* guard + 1 -> number of objects of prov that it read; cc_finalizers_written */
    /* cache of by_object: an event looks the same few objects up repeatedly */
    struct CcFound {
        const PyObject *object;
        int place; /* 1 + index into prov; 0: no entry */
    } found[CC_FOUND];
    CC_VEC(int) loose;     /* indices into prov: cc_value_loose; may hold stale entries and a few duplicates */
    CC_VEC(int) outside;   /* indices into prov: tensors from outside; may hold stale entries, as `loose` */
    int leaves;            /* frames left since the last sweep of `loose` */
    int64_t made;          /* approximate bytes of node results since memory was last looked at */
    int64_t resident;      /* of the process, beyond which free memory is returned (node.c); 0: not known yet */
    CcMap input_of;        /* guard id + 1 -> graph value + 1 */
    CcAct *innermost;      /* cc_rec_begin_resume: last act of the chain */
    PyObject *unbuildable; /* borrowed: the object for which the last recipe failed */
    CC_VEC(struct CcRecEffect {
        /* strong operands: their recipes are built when the trace ends, from their final state */
        PyObject **in;
        int n;
    }) effect;
    /* copies of containers from before their first write */
    CC_VEC(struct CcBefore {
        PyObject *object;
        PyObject *copy;
    }) before;
    CC_VEC(int) copied; /* guards of objects whose id() is a key of copy.deepcopy's memo */
    /* tensors from outside whose requires_grad (0 or 1) the trace has set, or whose gradient (-1) */
    CC_VEC(struct CcGradMark {
        int guard;
        int what;
    }) grad_mark;
    CC_VEC(CcContextEvent) context; /* reads and writes of context variables (context.c) */
    CcMap distinct;                 /* pairs of guards that must read different objects */
    /* tensor -> guard that reads a tensor which no guard can describe: it may be passed on, not used */
    CcMap handed;
    CcMap overwritten;   /* guard id + 1 of each place whose content the trace has replaced */
    CcMap asked;         /* constants whose identity matters (same.c) */
    CcMap writing_types; /* classes whose __hash__ or __eq__ writes: a replay must not run it again */
    int stores;          /* writes so far, including those to fresh objects */
    int puts;            /* 1 + events so far that may have put something into a container (plain.c) */
    CcMap unsized;       /* graph value + 1: its shape depends on data, so the trace does not know it */
    /* cc_rec_begin_resume: slots with functions and generators made in this call */
    CC_VEC(struct CcOwn {
        int level;
        int slot;
        PyObject *object;
    }) own;
    /* cc_idle_begin: variables that nobody read when the trace began */
    CC_VEC(struct CcIdle {
        int level;
        int slot;
    }) idle;
    /* lists and dicts that only slots held when the trace began, and that no event has taken; addresses */
    CC_VEC(struct CcAdoptable {
        const PyObject *object;
        int source;
        int holders; /* slots that hold it and will be read */
    }) adoptable;
    /* cc_finalizers_begin: objects that slots held when the trace began; addresses */
    CC_VEC(struct CcHeld {
        int level;
        int slot;
        const void *object; /* NULL: none or a constant; another call may find an object there */
        bool set;           /* the slot was not empty */
        bool in_call;       /* an operand of the call that the frame is suspended in */
        bool tracked;       /* each event looks up which slot holds it now */
        int slot_now;       /* valid if tracked */
        bool dropped;       /* no slot holds it any more */
        bool observed;      /* a finaliser or a weak-reference callback runs when the slot drops it */
        bool ended;         /* dropped, and that was observed */
    }) held;
    /* cc_finalizers_weakref_unknown: what was dropped when a weak reference was read; lists, each behind its length */
    CcDrops weak_drops;
    /* objects that provenance holds and that a write may have dropped; addresses */
    CC_VEC(PyObject *) maybe_freed;
    /* objects with finalisers that provenance holds because no weak reference can; addresses */
    CC_VEC(PyObject *) unweak;
    CC_VEC(int) written; /* guards of containers that effects write */
    /* attributes of classes that effects write: the trace's guards hold both */
    CC_VEC(struct CcOfClass {
        PyTypeObject *type;
        PyObject *name;
    }) of_class;
    CC_VEC(PyObject *) spent; /* strong: alive until the region ends (escape.c) */
    int checkpoint,
        n_checkpoint; /* the outermost torch.utils.checkpoint that is being performed (0: none), and their number */
    int before_checkpoint; /* provenance entries when it began */
    bool wrote_outside;    /* it has written to an object of the trace that existed before it */
    CC_VEC(struct CcClosed {
        /* borrowed from `keep`: a variable that a checkpointed function takes from the code around it, its content then,
         * and the instruction that must break if that changes */
        PyObject *cell;
        PyObject *content;
        PyCodeObject *co;
        int pc;
    }) closed;
    CC_VEC(PyObject *) keep; /* constants and temporaries alive while recording */
    /* strong: exception handled when the call began, and when the trace began; NULL: none */
    PyObject *handled_outer, *handled_start;
    CC_VEC(struct CcException {
        PyObject *object;    /* handled_start, or of the provenance map; no longer there: it may be dead */
        PyObject *traceback; /* strong; NULL: it had none */
    }) exceptions;           /* that existed before the trace, with their tracebacks when it met them */
    /* the trace has made objects with __del__: each event asks which objects only provenance still holds */
    bool made_finals;
    bool handled_read; /* handled_start has a guard: the trace has met it */
    PyFunctionObject *root;
    PyObject *kwnames; /* borrowed: names of the call's last arguments; NULL: none */
    int n_args;
    bool await_root;   /* the next frame is the root's */
    bool keep_tensors; /* results of nodes are strong references and go into CcTrace.kept */
    CcHints *hints;    /* borrowed */
    uint64_t salt;     /* for guard paths */
    CcMap sized;       /* graph value + 1: its sizes depend on symbols */
    /* numbers just read that will become symbols; strong references, as the event may replace them */
    CC_VEC(struct CcPending {
        int guard;
        PyObject *object;
    }) pending;
    /* floats and numpy scalars in slots that this recording has replaced by copies (resume.c) */
    CC_VEC(struct CcPending) copies; /* held by `keep` */
    /* tuples with symbols that code got in place of tuples which guards read */
    CC_VEC(struct CcStandIn {
        struct CcPending of;
        PyObject *given;
    }) tuples;                 /* held by `keep` */
    CC_VEC(PyObject *) filled; /* containers from outside, held by `keep`, with symbols for their numbers */
    bool lazy;                 /* numpy scalars or texts are among them, or a text is a symbol: cc_number_pin_read */

    const char *rigid; /* why all symbols must become constants; NULL: they need not */
    /* the first node that ran arbitrary Python code: its call site and name; co NULL: none */
    struct CcRan {
        PyCodeObject *co; /* strong */
        int pc;
        char *name;
    } ran;
    bool read_grad;        /* requires_grad was read: every tensor guard checks it */
    bool drops_unknown;    /* an effect drops references to unknown objects */
    PyObject *stays;       /* borrowed: the object that the current event stores where it already is; NULL: none */
    bool overwrites_known; /* the next effect writes to a place in `overwritten`, or drops nothing */
    bool weakref_freed;    /* an object with weak references was freed */
    /* a frame's drop of an object from outside was observed: the trace ends here, so a replay's last step drops it */
    bool observed_drop;
    bool died;   /* ... at an unknown place */
    bool raised; /* the current event of after() raised */
    /* the event that raised the exception which unwinds the frames now, a strong reference; NULL: none does */
    PyCodeObject *raising_co;
    int raising_pc;
    bool differs;   /* this event reads what differs in most calls: it becomes a break */
    bool judged;    /* in before() or after() of an event, which look at `differs` */
    CcEvent *event; /* the innermost one that before() or after() looks at; NULL: none */
    CC_VEC(PyTypeObject *)
    unseen_classes;         /* with special methods in C, whose reads no frame shows; the guards hold them */
    const char *opaque;     /* this event lets C code call a special method in C of this class, or hash or compare an
                               object of it that no guard can read: it becomes a break */
    bool unseen;            /* an object of this trace was read from outside, where no effect has stored it */
    bool told;              /* code asked whether it is being compiled, and the answer was yes */
    bool by_code;           /* functions are matched by code (resume.c) */
    bool functions_written; /* attributes of a function were written: no further function is matched by code */
    CcBreakInfo why;
    int instructions;
};

/* The object may be freed before the recording ends: results of nodes, objects with finalisers, and objects that the
 * trace made. */
static inline bool cc_value_loose(const CcProv *p) { return p->weak != NULL || p->origin == CC_O_FRESH; }

/* Do this type's functions hash and compare it? PyBaseObject_Type: by identity. */
static inline bool cc_value_compares_as(PyObject *o, const PyTypeObject *t) {
    return Py_TYPE(o)->tp_hash == t->tp_hash && Py_TYPE(o)->tp_richcompare == t->tp_richcompare;
}

/* A class whose attributes can change. Most C code marks the heap types that it makes immutable (3.12's deque), but not
 * pybind11's, for example. */
static inline bool cc_mutable_class(const PyTypeObject *type) {
    return (type->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_IMMUTABLETYPE)) == Py_TPFLAGS_HEAPTYPE;
}

/* A class that a class statement made: special methods that its bases in C do not have are Python functions. It is told
 * by tp_dealloc, which `class` sets, and torch sets for tensors. */
extern destructor cc_class_dealloc, cc_class_dealloc_of_tensors;
static inline bool cc_python_class(const PyTypeObject *type) {
    return cc_mutable_class(type) &&
           (type->tp_dealloc == cc_class_dealloc || type->tp_dealloc == cc_class_dealloc_of_tensors);
}

static inline const char *cc_type_name(PyObject *o) { return Py_TYPE(o)->tp_name; }

/* ---- value.c: provenance ---- */
CcProv *cc_value_find(CcRec *rec, PyObject *o); /* live entry or NULL */
CcOrigin cc_value_origin(CcRec *rec, PyObject *o);
/* Its provenance is unknown: using it is a break. NULL and exceptions count as known. */
static inline bool cc_value_unknown(CcRec *rec, PyObject *o) {
    return o != NULL && !PyExceptionInstance_Check(o) && cc_value_origin(rec, o) == CC_O_UNKNOWN;
}
bool cc_value_const(PyObject *o);     /* immutable, compared by value */
bool cc_value_consts(PyObject *o);    /* the same, or a tuple of them at any depth */
bool cc_value_numpy(PyObject *o);     /* a numpy scalar */
bool cc_value_structseq(PyObject *o); /* torch.return_types.max and its kind */
bool cc_value_wraps(PyObject *o);     /* a property, classmethod or staticmethod */
/* Which view of a dict or an OrderedDict: PyDictKeys_Type, PyDictValues_Type or PyDictItems_Type; NULL: none. */
const PyTypeObject *cc_value_view(PyObject *o);
PyTypeObject *cc_value_base(PyTypeObject *type); /* the type itself, or its nearest base that C code defines */
/* the plain value of a number or text of a derived class; NULL without an error: neither */
CC_NEW PyObject *cc_value_held(PyObject *o);
bool cc_value_annotation(PyObject *o); /* int | None, list[int] */
bool cc_value_ident(PyObject *o);      /* guarded by identity: types, functions, modules ... */
/* Whether o was written and can't be read. A list or dict whose earlier content was kept (will_write) is guarded now
 * and becomes known. */
CcDirty cc_value_dirty(CcRec *rec, PyObject *o);
CcDirty cc_value_dirty_key(CcRec *rec, PyObject *o); /* for reading one key; has no side effect */
void cc_value_will_write(CcRec *rec, PyObject *o);   /* before a write to something from outside */
bool cc_value_tracked(PyObject *o);                  /* a container whose earlier content can be kept */
void cc_value_wrote(CcRec *rec, PyObject *o, CcDirty how);
bool cc_value_known(CcRec *rec, PyObject *o); /* CC_DIRTY_KNOWN */
CcProv *cc_value_set(CcRec *rec, PyObject *o, CcOrigin origin, int id);
void cc_value_fresh(CcRec *rec, PyObject *o);    /* unless it is a constant or known */
void cc_finalizers_sweep(CcRec *rec, int first); /* drops fresh objects that only the map holds */
void cc_value_drop(CcRec *rec, CcProv *p);
void cc_value_clear(CcRec *rec);
/* Guard id of o's source, or of a CONST source for objects guarded by identity. -1: neither. */
int cc_value_source(CcRec *rec, PyObject *o);
int cc_value_const_source(CcRec *rec, PyObject *o);
void cc_value_met_const(CcRec *rec, PyObject *o); /* the code has loaded this constant, a tuple or the like */
/* Records that `source` of parent gave v (NULL: absent): adds a guard unless there is one, and learns v. Returns the
 * guard id. */
int cc_value_read(CcRec *rec, CcSource source, int parent, PyObject *key, int level, int index, PyObject *v);
/* The same, for the result v of type's descriptor of that name. */
int cc_value_read_member(CcRec *rec, int parent, PyTypeObject *type, const char *name, PyObject *v);
/* An instance of a Python class that leaves __hash__ and __eq__ to object: a module. */
bool cc_value_by_address(PyObject *o);
/* Whether a guard can look a tensor or such an object from outside up in a dict from outside: by address, without reading
 * data (optimizer.state[p]). */
bool cc_value_found_by_address(CcRec *rec, PyObject *dict, PyObject *key);
/* Guards that a dict from outside has v for a key; v NULL: the key is absent. */
int cc_value_read_key(CcRec *rec, int parent, PyObject *key, PyObject *v);
/* Calls a function that reads state of the process, and guards its result. NULL without an error: it raised. */
CC_NEW PyObject *cc_value_guard_call(CcRec *rec, PyObject *function);
/* The same for a function of a module; does nothing if there is none. */
void cc_value_guard_module_call(CcRec *rec, const char *module, const char *function);
/* Two objects were compared by identity: if both are from outside and differ, guards that they differ. */
void cc_value_distinct(CcRec *rec, PyObject *a, PyObject *b);
void cc_value_copied(CcRec *rec, PyObject *o); /* guards that it differs from those copied before */
/* The identity of this object from outside matters: a function that was matched by code (resume.c) is now guarded by
 * identity, any other object by address, which id() and repr() may have shown. */
void cc_value_which(CcRec *rec, PyObject *o);
void cc_value_function_written(CcRec *rec);
/* The trace has set o's requires_grad, or its gradient. Later reads of another tensor's (also by an op) guard that it is
 * another object, if it would be read differently. */
void cc_value_requires_set(CcRec *rec, PyObject *o);
void cc_value_gradient_set(CcRec *rec, PyObject *o);
void cc_value_requires_read(CcRec *rec, PyObject *o);
void cc_value_gradient_read(CcRec *rec, PyObject *o);
/* Marks the source as written by this trace: later reads of it add no guard. */
void cc_value_written(CcRec *rec, CcSource source, int parent, PyObject *key, bool deleted);
/* list[index] = ..., by the place from the start or the end; the list's size is guarded */
void cc_value_written_item(CcRec *rec, int parent, Py_ssize_t index, Py_ssize_t size);
/* Learns the tuples in a container that C code filled from `iterable`: zip, enumerate or items() made them. */
void cc_value_pairs(CcRec *rec, PyObject *container, PyObject *iterable);
bool cc_value_has_tensor(PyObject *o, int depth);
bool cc_value_plain(PyObject *o, int depth); /* all tensors in it are plain torch.Tensor or Parameter, not subclasses */
bool cc_value_symbolic(CcRec *rec, PyObject *o); /* a number that guards do not fix */
/* Guards the outcome of comparing a symbolic number from outside with a constant. False: a node computes the number. */
bool cc_value_compare(CcRec *rec, int op, PyObject *a, PyObject *b, bool outcome);
void cc_value_pin(CcRec *rec, PyObject *o); /* makes a symbolic number a constant by a value guard */

/* ---- inside.c: content of containers from outside ---- */
void cc_inside_size(CcRec *rec, int parent, Py_ssize_t n); /* guards the length */
/* The same for a sequence with these items. A log of numbers grows in each call; a list of tensors has few lengths. */
void cc_inside_length(CcRec *rec, int parent, PyObject *const *items, Py_ssize_t n);
/* Guards the whole content, `depth` levels deep (0: of a dict, its keys). False: it can't be guarded. */
bool cc_inside_guard(CcRec *rec, PyObject *o, int depth);
bool cc_inside_before(CcRec *rec, const CcProv *p); /* guards a written container's earlier content, if it was kept */
/* Guards an exception's arguments, which determine its text, and their content. */
bool cc_inside_exception(CcRec *rec, PyObject *o, int depth);
/* Guards which members a set has, not their order. False: they can't be guarded. */
bool cc_inside_members(CcRec *rec, PyObject *set);
/* Guards lengths and element types only: the type of torch.tensor(list) depends on nothing else. */
bool cc_inside_structure(CcRec *rec, PyObject *o, int depth);
/* A builtin iterator: its items come from objects that tp_traverse finds in it. */
static inline bool cc_inside_iterates(PyObject *o) {
    return PyIter_Check(o) && !PyGen_Check(o) && !cc_python_class(Py_TYPE(o));
}
static inline bool cc_inside_passes_on(PyObject *o) { return cc_value_view(o) != NULL || cc_inside_iterates(o); }

/* ---- number.c ---- */
/* Makes the symbolic numbers in o constants under guards, `depth` levels of containers deep. False: a node computes one
 * of them. */
bool cc_number_settle(CcRec *rec, PyObject *o, int depth);
bool cc_number_truth(CcRec *rec, PyObject *o); /* guards whether a symbolic number is 0; false: a node computes it */
bool cc_number_truths(CcRec *rec, PyObject *items); /* the same for each item */
/* Is it, or does it contain, a number that guards do not fix? */
bool cc_number_varies(CcRec *rec, PyObject *o, int depth);
/* Before an event that reads its operands: numpy scalars and texts among or within them, of which only the type is
 * guarded so far, and texts that are symbols become constants. One that keeps differing makes the event a break. */
void cc_number_pin_read(CcRec *rec, const CcEvent *ev);
/* Is callable(o) str(e) of an exception, which gives its only argument, a text, unread? */
bool cc_number_str_gives(PyObject *callable, PyObject *o);
bool cc_number_text(CcRec *rec, PyObject *o);             /* a text that a node makes: f"{x.item()}" */
bool cc_number_reads_text(CcRec *rec, const CcEvent *ev); /* ... is what the instruction looks into: for c in text */
/* As cc_number_settle, but only for numbers that a break has just read; symbols stay symbols. */
bool cc_number_read(CcRec *rec, PyObject *o, int depth);
/* The numbers from which a node computed this one become symbols in the next recording, which can compute with them. */
void cc_number_request_symbols(CcRec *rec, PyObject *o);
void cc_number_which(CcRec *rec, PyObject *o, int depth); /* cc_value_which for the functions in it */
/* ... and for all objects whose text, or hash and equality, derives from their address. False: this trace made one of
 * them, whose address differs in each call. */
bool cc_number_addresses(CcRec *rec, PyObject *o, int depth, bool text);
/* Whether `visit` returns true for anything in a container or builtin iterator. */
typedef bool (*CcNumberVisit)(void *ctx, PyObject *o, int depth);
bool cc_number_any(CcRec *rec, PyObject *o, CcNumberVisit visit, void *ctx, int depth);
void cc_number_hashed(CcRec *rec, PyObject *o); /* C code has filled a dict or set: its keys become constants */
bool cc_number_whole(PyObject *o);              /* an int, or a tuple, a list or a dict's values of ints */
bool cc_number_terms(PyObject *o);              /* the same, of ints, floats and tensors */
/* Whether any of every step-th in[0..n) is symbolic. */
bool cc_number_in(CcRec *rec, PyObject *const *in, int n, int step);
/* Whether a dict lookup by this key can be guarded: a constant, or a tuple of constants, which are guarded now. */
bool cc_number_key(CcRec *rec, PyObject *key);
bool cc_number_dict_key(CcRec *rec, PyObject *key); /* the same, and an equal key made again finds the entry */

/* ---- same.c: identity of equal numbers and strings ---- */
bool cc_same_nan(PyObject *o); /* equal to nothing, so containers find it only by identity */
int cc_same_giver(const CcRec *rec,
                  PyObject *o); /* the only guard that compares with o by value; -1: none, or several */
/* This constant's identity matters: guards that reads give this object. */
void cc_same_which(CcRec *rec, PyObject *o);
/* It is compared or hashed: guards what is in it and the identity of NaNs, also inside tuples; else rec->opaque tells. */
void cc_same_met(CcRec *rec, PyObject *o);
/* the same for items that C code moves from a list or tuple into a set, or as pairs into a dict */
void cc_same_taken(CcRec *rec, PyObject *iterable, bool pairs);
void cc_same_hashed(CcRec *rec, PyObject *o); /* the same for the keys of a dict or set that C code has filled */
/* cc_same_which() was called for it: later reads must also give this object. */
bool cc_same_asked(CcRec *rec, PyObject *o);
bool cc_same_asked_any(CcRec *rec, PyObject *tuple);
/* `a is b`, of the originals: guards the outcome if objects from outside decide it */
bool cc_same_is(CcRec *rec, CcAct *act, PyObject *const *in);

/* ---- escape.c ---- */
/* When a recording ends, puts originals, or CPython's cached ints, in place of copies and symbols in what it leaves behind. */
void cc_escape_restore(CcRec *rec);

/* ---- recipe.c ---- */
typedef enum CcAdopt { CC_ADOPT_NO, CC_ADOPT_REDUCE, CC_ADOPT_WALK, CC_ADOPT_CONTENT } CcAdopt;
CcAdopt cc_recipe_adopts(PyObject *o);                  /* fresh.def */
int cc_recipe_of(CcRec *rec, PyObject *o, CcMap *memo); /* -1: can't be rebuilt; rec->why is set */
/* The parts of a function besides its code, in the order of a recipe's kids (CC_MAKE_NULL where absent). */
enum { CC_FN_GLOBALS, CC_FN_DEFAULTS, CC_FN_KWDEFAULTS, CC_FN_CLOSURE, CC_FN_NAME, CC_FN_QUALNAME, CC_FN_DICT };
enum { CC_FN_ANNOTATIONS = CC_FN_DICT + 1, CC_FN_ANNOTATE, CC_FN_DOC, CC_FN_MODULE, CC_FN_COUNT };
/* OBJECT kids: `aux` base items (list items, dict key/value pairs, tuple items, exception arguments), then `id` items
 * of the instance dict (key, value) or, if `id` is CC_OWN_DICT, the dict itself, then slots (member descriptor,
 * value). */
enum { CC_OWN_DICT = -1 };

/* ---- maker.c: cc_maker_make ---- */
/* A base whose instances are one immutable value, the argument of its constructor. */
bool cc_maker_plain(const PyTypeObject *base);

/* ---- snapshot.c ---- */
/* Makes recipes for all frames of the region. False: sets rec->unbuildable, which frame *level holds. */
bool cc_snapshot_take(CcRec *rec, CcMap *memo, int *level);

/* ---- site.c: instructions at which the next recording must break ---- */
struct CcPlace cc_site_place(const CcAct *act, int line);
const struct CcSite *cc_site_find(const CcSites *sites, const CcAct *act);
/* False: it is already marked, so marking it can't help. */
bool cc_site_mark(CcRec *rec, PyCodeObject *co, int pc);
/* Marks the instruction that made rec->unbuildable. For an adopted generator: marks its code as not to be adopted. */
bool cc_site_made(CcRec *rec);
/* Frame `level` holds rec->unbuildable: marks the instruction that made it. If that is unknown, or did not help, marks
 * the call of that frame or of one around it. */
void cc_site_before(CcRec *rec, int level);
/* Marks the outermost call of copy.deepcopy, if any: addresses of this call's objects are keys of its memo, so its
 * frames can't be rebuilt in another call. */
bool cc_site_copy(CcRec *rec);
/* in place of a site's pc: generators of this code are not adopted; torch alone calls autograd.Functions with this forward */
enum { CC_SITE_ADOPTION = -1, CC_SITE_FUNCTION = -2 };
bool cc_site_may_adopt(const CcRec *rec, const PyCodeObject *generator);

/* ---- plain.c ---- */
/* The trace made this container, and nothing but constants is in it. */
bool cc_plain(CcRec *rec, PyObject *container);
void cc_plain_after(CcRec *rec, const CcEvent *ev);

/* ---- resume.c ---- */
void cc_resume_event(CcRec *rec, const CcEvent *ev); /* before an event: adopts the lists and dicts that it takes */
/* A cell read after a break, or of such a function, holds a nested function. Each call may make a new one, so the guard
 * matches its code, defaults and cells. False: read it like any other object. */
bool cc_resume_cell(CcRec *rec, int cell, PyObject *v);
/* The same for an argument (`optimizer.step(closure)`), and an item of a tuple or list in a slot: `out, pull =
 * torch.func.vjp(f, x)`. */
bool cc_resume_function(CcRec *rec, int id, PyObject *v);
/* The same for a staticmethod, classmethod or property, which is matched by what it wraps. */
bool cc_resume_wrapper(CcRec *rec, int id, PyObject *v);

/* ---- finalizers.c ---- */
bool cc_finalizers_has(PyObject *o); /* its type has a finaliser: generators, classes with __del__ */
/* Whether a break must keep the slot's object: the slot is live, or the end of the frame runs the object's
 * finaliser. */
bool cc_finalizers_slot(const CcAct *act, int slot);
/* An object from outside with a finaliser was freed: a replay would free it only after everything the trace does.
 * Finalisers that run during this check, at the end of the trace, are not recorded. */
bool cc_finalizers_died(CcRec *rec, const CcAct *act);
/* A container is about to be written. True: an object that only the container holds has a finaliser or a weak
 * reference, so it is observable what keeps it alive. cc_finalizers_check_freed checks these objects after the write
 * (CcRec.maybe_freed). */
bool cc_finalizers_in_container(CcRec *rec, PyObject *container);
/* Code runs because this object (or the object of this weak reference) is freed. False: the recording did not make the
 * object, so the code is not recorded. */
bool cc_finalizers_ends(CcRec *rec, PyObject *o);
/* Code that is not recorded runs because this object is freed: the recording must not drop it. */
void cc_finalizers_told(CcRec *rec, PyObject *o);
/* a slot held it, and a finaliser or callback observes when the slot drops it */
bool cc_finalizers_observed(const CcRec *rec, const PyObject *o);
/* act's generator takes values from the iterator by `yield from`: closes it when it ends, which calls the iterator's
 * close(). From here on the recording holds the generator, and so sees when everyone else has dropped it. */
void cc_finalizers_delegates(CcRec *rec, const CcAct *act, PyObject *iterator);
void cc_finalizers_begin(CcRec *rec);   /* begins a trace after a break */
void cc_finalizers_adopted(CcRec *rec); /* generators were adopted: code that their ends run is recorded */
/* Before and after an event: a frame has meanwhile dropped an object, and this was observed. The trace must end
 * here. */
bool cc_finalizers_drop_observed(CcRec *rec);
/* The last effect was given an object that it has not kept, and whose end, or that of what it holds, is noticed:
 * d.setdefault(k, [new]). */
bool cc_finalizers_not_kept(CcRec *rec);
void cc_finalizers_deleted(CcRec *rec, const CcAct *root); /* the root returns: CcTrace.deleted */
void cc_finalizers_settle(CcRec *rec); /* the trace ends here: objects that its frames still hold go with them */
/* The same, after recipes are made: guards that nothing observes when the frames drop their objects. */
void cc_finalizers_end(CcRec *rec);
/* the objects in CcRec.maybe_freed and CcRec.unweak may have been dropped */
void cc_finalizers_check_freed(CcRec *rec);
/* A store drops `old`: true if nothing has read it, and its end, or that of what only it holds, is noticed. */
bool cc_finalizers_replaces(CcRec *rec, PyObject *old, PyObject *now);
/* A place that these guards read (a list's item has two, from either end) was overwritten. */
void cc_finalizers_written(CcRec *rec, const int *guards, int n);
bool cc_finalizers_overwritten(const CcRec *rec, int guard); /* the trace has overwritten the place that it reads */
void cc_finalizers_effect(CcRec *rec, const CcAction *a);
/* A weak reference is about to be read. True: objects that the trace has dropped, by writes or by ending, may have held
 * its object, and no guard can tell. Otherwise a guard checks that what frames have dropped holds nothing with weak
 * references. */
bool cc_finalizers_weakref_unknown(CcRec *rec, PyObject *ref);
/* An object that the trace made has a finaliser that runs after the trace's end, and no recipe makes it: sets
 * rec->unbuildable. */
bool cc_finalizers_unbuildable(CcRec *rec, CcMap *memo);

/* ---- uncalled.c ---- */
CC_MUST int cc_uncalled_init(void);
/* A frame has been entered. CC_PASS_ALL: recorded code has not called it; CC_GIVE_UP: that can't be decided. */
CcGo cc_uncalled_enter(CcRec *rec, CcAct *act, bool *ends_object); /* ends_object: it is an end that is recorded */
/* Whether CPython hands what the end of an object raises to sys.unraisablehook. */
bool cc_uncalled_reports(const CcAct *act, int how);

/* ---- idle.c: variables that are no longer read ---- */
void cc_idle_begin(CcRec *rec);
/* A replay leaves the slot as it is. */
bool cc_idle_stays(CcRec *rec, const CcRecFrame *f, int slot);
bool cc_idle_looked(const CcRec *rec); /* code of the chain inspects frames */
int cc_idle_recipe(CcRec *rec, const CcAct *act, int slot, bool looked, CcMap *memo); /* -1: the variable is unset */

/* ---- checkpoint.c ---- */
void cc_checkpoint_end(CcTrace *t); /* marks what leaves checkpoints (CcAction.leaves) */

/* ---- traceback.c ---- */
/* It has a traceback, and code of the chain may inspect its frames. */
bool cc_traceback_looked(CcRec *rec, PyObject *exception);
/* None: it has no traceback; NULL (no error): it can't be copied. */
CC_NEW PyObject *cc_traceback_copy(PyObject *exception);
void cc_traceback_begin(CcRec *rec); /* sets rec->handled_start */
/* A guard is about to read o: notes an exception that is new to the trace. */
void cc_traceback_read(CcRec *rec, PyObject *o);
void cc_traceback_forget(CcRec *rec);
/* The trace ends: effects extend the tracebacks of exceptions met that it has raised again. */
void cc_traceback_end(CcRec *rec, CcAct *act);
/* The code and instruction at which the exception with this traceback was raised. New reference; NULL: unknown. */
CC_NEW PyCodeObject *cc_traceback_origin(PyObject *traceback, int *pc);

/* ---- node.c: graph nodes and effects ---- */
typedef struct CcCallSpec {
    CcActionForm form;
    int arg;
    PyObject *target, *kwnames;
    PyObject *const *in;
    int n;
    const char *name;
    unsigned flags;       /* CC_N_* */
    const CcBound *bound; /* NULL: host node */
    bool dynamic;         /* the shapes of its results depend on data */
    bool state;           /* sets ambient state */
    bool makes;           /* its result may be an object of torch's that no guard describes: a value of the graph */
    bool safe;            /* does not raise depending on data */
    CcKernel kernel;
    bool checked; /* its results have guessed metadata, which a replay that can be repeated compares with theirs */
    CcFunction *function; /* what it computes, which the node takes over; NULL: unknown */
} CcCallSpec;
/* CC_OK, or CC_GIVE_UP when an operand has no recipe (the site is marked). */
CcGo cc_node_add(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result);
/* Adds a node that raises or has no effect: the trace can still run again eagerly. */
CcGo cc_node_check(CcRec *rec, CcAct *act, const CcCallSpec *spec);
CcGo cc_node_effect(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result);
int cc_node_args(CcRec *rec, const CcCallSpec *spec); /* recipes of its operands; -1: rec->unbuildable */
CcAction cc_node_action(const CcCallSpec *spec, CcAct *act, int args0);
void cc_action_free(CcAction *a);
bool cc_node_catches(CcRec *rec); /* code of the region would catch an exception here */
bool cc_node_pending(CcRec *rec); /* effects (writes of Python state) are waiting for the end of the graph */
/* Can every operand of a node be made by a recipe, `depth` levels deep? */
bool cc_node_nameable(CcRec *rec, PyObject *o, int depth);

/* A tensor whose shape depends on data: its metadata can't be read. */
bool cc_node_unsized(CcRec *rec, PyObject *o);
/* Builds the recipes of the effects' operands; false: rec->unbuildable. */
bool cc_node_finish_effects(CcRec *rec, CcMap *memo);
void cc_node_clear_effects(CcRec *rec);

/* ---- symsource.c: where symbols come from ---- */
enum { CC_SYM_ITEMS = 16 }; /* maximal number of items of a tuple that may become symbols */
/* The guard that read this symbol, this tuple with symbols, or this copy of what a break left (resume.c), and the original
 * object; -1: a step computed it, or it is none of these. */
int cc_sym_given(CcRec *rec, PyObject *o, PyObject **given);
int cc_sym_tuple_given(const CcRec *rec, const PyObject *o, PyObject **given); /* the same, for tuples alone */
/* The empty text has one object only. */
static inline bool cc_sym_textual(PyObject *o) { return PyUnicode_CheckExact(o) && PyUnicode_GET_LENGTH(o) > 0; }
/* A fresh text of this content becomes a symbol, which a step with these operands computes. False: it can't be one. */
bool cc_sym_text(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *text);
static inline bool cc_sym_number(PyObject *o) { return PyLong_CheckExact(o) || PyFloat_CheckExact(o); }
/* One of numpy's real scalars. */
static inline bool cc_sym_scalar(PyObject *o) { return cc_value_numpy(o) && !cc_known_is(o, CC_KNOWN_BOOL); }
/* What may be a symbol, besides texts. */
static inline bool cc_sym_varies(PyObject *o) { return cc_sym_number(o) || cc_sym_scalar(o); }
CC_NEW PyObject *cc_sym_copy(PyObject *o); /* a separate object: of a number, a numpy scalar or a text */
/* What a node takes for operand o of a torch op on tensors: torch reads a numpy scalar that varies as the Python number of
 * its value, and so does a step. Other operands are taken as they are. Borrowed. */
PyObject *cc_sym_operand(CcRec *rec, CcAct *act, PyObject *o);
bool cc_sym_sized(CcRec *rec, PyObject *tensor); /* its sizes depend on symbols */
bool cc_sym_value(CcRec *rec, int value);        /* the same for a graph value */
void cc_sym_mark(CcRec *rec, int value);
/* Whether a metadata reader of this name ("Tensor.size") reads sizes: dtype, device and rank don't depend on data. */
bool cc_sym_tells_size(const char *name);
unsigned cc_sym_dims(CcRec *rec, int guard, PyObject *tensor,
                     const CcType *type);                     /* bit set of the dims that will be symbolic */
void cc_sym_resized(CcRec *rec, int guard, PyObject *tensor); /* it has symbolic dims */
/* A source gave this number. True: it is or will be a symbol, and Python code gets a separate object. */
bool cc_sym_wanted(CcRec *rec, int guard, PyObject *number);
void cc_sym_written(CcRec *rec, int guard); /* this source now gives another number */
/* the symbol for an int that a run draws ahead (chance.c) */
CC_NEW PyObject *cc_sym_drawn(CcRec *rec, int guard, PyObject *value);
/* late: nodes compute it */
CC_NEW PyObject *cc_sym_new(CcRec *rec, PyObject *value, bool late);
/* a tuple of items with symbols, or a torch.Size if `like` is one */
CC_NEW PyObject *cc_sym_items(CcRec *rec, PyObject *like, CC_STEAL(2) PyObject *items);
/* The same, in place of the one that this guard reads. */
CC_NEW PyObject *cc_sym_items_of(CcRec *rec, int guard, PyObject *read, CC_STEAL(3) PyObject *items);
/* A call with symbols in place of floats that a break gave and kernels can read in each call. False: it has none. */
typedef struct CcWithNumbers {
    CcCallSpec spec;
    CcBound bound;
    PyObject *in[8];
} CcWithNumbers;
bool cc_sym_numbers(CcRec *rec, const CcCallSpec *spec, PyObject *result, CcWithNumbers *out);
/* Replaces an event's result if it is a number that waits to become a symbol. */
void cc_sym_after(CcRec *rec, CcEvent *ev, int first);
void cc_sym_slot(CcRec *rec, CcAct *act, int slot, int guard); /* the same for a number that a guard read in a slot */
/* The event asks only whether there is something: the number that the guard reads stays a symbol. */
void cc_sym_unread(CcRec *rec, int guard);
/* a tuple or torch.Size in a slot: if some of its numbers varied between calls, a copy with symbols replaces it */
void cc_sym_tuple(CcRec *rec, CcAct *act, int slot, int guard, PyObject *v);
/* The same for a torch.Size that is an event's result. is_new: the event has made the guard that reads it. */
void cc_sym_after_size(CcRec *rec, CcEvent *ev, int guard, bool is_new);
/* C code is about to take items from o: if it is a list, tuple or dict from outside whose numbers differ between calls,
 * symbols replace these in it until the recording ends (escape.c). */
void cc_sym_fill(CcRec *rec, PyObject *o);
/* Reads item i of the list or tuple that this guard reads. -> the item, or a symbol if it varies; new reference. */
CC_NEW PyObject *cc_sym_read_item(CcRec *rec, PyObject *item, int guard, Py_ssize_t i);
/* Puts the symbol into the list or tuple until the recording ends. True: it is a symbol now. */
bool cc_sym_fill_item(CcRec *rec, PyObject *sequence, int guard, Py_ssize_t i);
bool cc_sym_filled(const CcRec *rec, const PyObject *container); /* it holds symbols until the recording ends */
void cc_sym_arguments(CcRec *rec, CcAct *act); /* the same for the call's arguments, which are in the root's locals */
void cc_sym_drop_pending(CcRec *rec);          /* numbers that no event delivered become constants */

/* ---- sym.c: computing with symbols ---- */
int cc_sym_of(CcRec *rec, PyObject *o); /* the symbol's number; -1: not a symbol */
bool cc_sym_is(CcRec *rec, PyObject *o);
bool cc_sym_within(CcRec *rec, PyObject *o, int depth); /* o is a symbol or contains one */
bool cc_sym_small(PyObject *number);                    /* an int that CPython caches */
/* `a is b`, as it would be if symbols were not separate objects: guards what the answer depends on. */
bool cc_sym_identical(CcRec *rec, CcAct *act, PyObject *const *in);
/* Guards whether a probability is 0, and whether it is 1: dropout returns its operand at 0 and draws nothing at 1.
 * False: a node computes the number, so no guard can. */
bool cc_sym_probability(CcRec *rec, CcAct *act, PyObject *o);
/* Whether o is a symbol, for a number from outside, that the recordings of several calls pinned: the event that asks should
 * rather be a break. False outside of events. */
bool cc_sym_often_pinned(CcRec *rec, PyObject *o);
void cc_sym_pin(CcRec *rec, PyObject *o);               /* guards the symbol's current value */
void cc_sym_settle(CcRec *rec, PyObject *o, int depth); /* pins each symbol in o */
/* One of the ops known to return as many tensors whatever the sizes of its operands are. (splits() in ev_call.c lists
 * those known not to; of any other a run for new sizes may have to be rolled back.) */
bool cc_sym_gives_as_many(const CcCallSpec *spec);
bool cc_sym_by_layout(const CcCallSpec *spec); /* returns its operand if sizes and strides already fit */
bool cc_sym_squeezes(const CcCallSpec *spec);  /* its rank depends on its operand's sizes */
/* guards that a call returned one of its operands */
void cc_sym_same(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result);
/* steps: CC_DONE, or CC_OK: perform the event normally */
CcGo cc_sym_operator(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_sym_format(CcRec *rec, CcAct *act, CcEvent *ev); /* of a symbol: f"step {i}" */
CcGo cc_sym_attr(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *tensor, PyObject *name);
CcGo cc_sym_call(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec);
/* Whether these are constants, none of which equals the symbol, a number. */
bool cc_sym_differs(CcRec *rec, PyObject *symbol, PyObject *const *items, Py_ssize_t n);
/* Guards that. False: only a part is guarded, which does no harm. */
CC_MUST bool cc_sym_absent(CcRec *rec, CcAct *act, PyObject *symbol, PyObject *const *items, Py_ssize_t n);
CcGo cc_sym_pure(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec); /* C code that only reads numbers */
/* an iterator over these: C iterators among them may read symbols */
void cc_sym_settle_iterated(CcRec *rec, PyObject *const *in, int n);
void cc_sym_visit_recipe(const CcTrace *t, int recipe, void (*visit)(void *ctx, const CcRecipe *r), void *ctx);
void cc_sym_free(CcTrace *t);

/* ---- symkey.c ---- */
void cc_sym_finish(CcRec *rec);

/* ---- rec.c ---- */
/* Ends the trace with a break before act's instruction. If C code is between two frames of the chain, marks the
 * outermost instruction that can break, and gives up. */
CcGo cc_rec_break(CcRec *rec, CcAct *act, CcReason reason, const char *what);
/* An event could not be recorded after it was performed: marks the instruction, so that the next recording breaks
 * there, and gives up. */
CcGo cc_rec_poison(CcRec *rec, CcAct *act, CcReason reason, const char *what);
CcGo cc_rec_give_up(CcRec *rec); /* without a site */
/* Gives up, and the next recording breaks at this instruction. */
CcGo cc_rec_retry(CcRec *rec, const CcAct *act, PyCodeObject *co, int pc, CcReason reason, const char *what);
/* The innermost frame whose callers can all be rebuilt: a recording can break at its instruction. NULL: there is no
 * frame. */
CcRecFrame *cc_rec_outer(CcRec *rec);
void cc_rec_gives(CcRec *rec, CcAct *act, int guard); /* this guard reads what will be the event's result */
CcRecFrame *cc_rec_frame(CcRec *rec, CcAct *act);
/* the event calls the act directly, without C code in between */
bool cc_rec_calls(const CcEvent *ev, const CcAct *act);
/* `__name__` among the globals; NULL: none, or no text. Leaves the error indicator as it is. */
const char *cc_rec_module(PyObject *globals);
/* An event has written, perhaps to a fresh object; to: what was written to, NULL: unknown. */
void cc_rec_stored(CcRec *rec, PyObject *to);
/* "torch" or "ccompile", if the frame's code is theirs; else NULL. */
const char *cc_rec_library(const CcAct *act);
bool cc_rec_in_module(const CcAct *act, const char *name);        /* the act's function belongs to that module */
void cc_rec_begin(CcRec *rec, const CcMode *mode, uint64_t salt); /* a trace without inputs */
void cc_rec_guard_function(CcRec *rec, PyFunctionObject *func);   /* by code and defaults */

/* ---- kernel.c: kernels in Python ---- */
CcKernel cc_kernel_of(CcRec *rec, const char *name); /* a callable of torch.ops, by the name that it reports */
/* Whether the forward of this Function.apply accesses only its operands, writes to none and draws no random numbers. */
bool cc_kernel_pure(const CcRec *rec, PyObject *apply, PyObject *const *in, int n);
/* Whether the backward of this autograd.Function, too, accesses only its operands, and its functions may run once more, on
 * aliases, without a trace: by the names that their code uses. */
bool cc_kernel_derives(PyObject *cls);
bool cc_kernel_sizes(PyObject *cls);                  /* it may read sizes of tensors as numbers */
CC_BORROW PyObject *cc_kernel_forward(PyObject *cls); /* the code of its forward; NULL: it has none in Python */
bool cc_kernel_sets_up_apart(PyObject *cls);          /* it has a setup_context, so that forward gets no context */
/* The name of an attribute or a function that writes to a tensor, draws random numbers, or sets torch's state. */
bool cc_kernel_impure_name(PyObject *name);
bool cc_kernel_plain(PyObject *o); /* a module of torch, or a builtin that reads only its operands */
bool cc_kernel_globals_written(const CcRec *rec);
/* Whether a call in the code with these constants passes an argument by one of these keywords. */
bool cc_kernel_names_keyword(PyObject *consts, const char *const *keywords, int n);
/* A node of the trace has just run arbitrary Python code. Guards run before the graph, so no guard covers what this
 * code changes and the trace reads later. */
void cc_kernel_ran(CcRec *rec, const char *name);
/* This source gave v, and CcGuards.asked was `asked` before. Assumes that such code leaves functions, classes and
 * modules unchanged. */
void cc_kernel_read(CcRec *rec, int asked, CcSource source, PyObject *v);
/* Something else was read after it: the recording gives up, and the next one breaks at the call. */
bool cc_kernel_lost(CcRec *rec, CcAct *act);
void cc_kernel_forget(CcRec *rec);

/* ---- state.c: state of the interpreter and of numpy that C code reads unseen ---- */
/* Guards the state that an operation on these operands reads; text: it converts between numbers and text. False: it
 * reads state that no guard can check. */
bool cc_state_read(CcRec *rec, PyObject *const *in, int n, bool text);
bool cc_state_event(CcRec *rec, const CcEvent *ev); /* for operators and string formatting */
bool cc_state_numpy(CcRec *rec);                    /* the same for a numpy function, whatever its arguments */
/* Whether saved-tensor hooks are set; if not, adds a guard. */
bool cc_state_hooks(CcRec *rec);
bool cc_state_codec(PyObject *name); /* an encoding or error handler that can't be replaced */

/* ---- undo.c ---- */
CcUndo cc_undo_of(CcRec *rec, const CcCallSpec *spec, bool redraws);
bool cc_undo_is_norm(int op); /* it writes running statistics, nothing else */
/* Whether a node only moves running statistics whose bytes can be saved: their values. */
bool cc_undo_moves(const CcGraph *g, const CcNode *n, int moved[2]);
bool cc_undo_outside(CcRec *rec, PyObject *tensor); /* whether it may share memory with a tensor from outside */

#endif
