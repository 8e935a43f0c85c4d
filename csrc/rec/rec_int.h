/* rec_int: what the recorder's files share. */
#ifndef CC_REC_INT_H
#define CC_REC_INT_H

#include "rec.h"

typedef enum CcOrigin {
    CC_O_UNKNOWN, /* nothing is known: using it is a break */
    CC_O_CONST,   /* constant under guards; needs no entry in the map */
    CC_O_SOURCE,  /* reached again through a guard */
    CC_O_VALUE,   /* a graph value: tensor, or a number that a node computes */
    CC_O_FRESH,   /* made in this trace */
    CC_O_EFFECT,  /* result of an effect */
    CC_O_SYMBOL,  /* a number that is a symbol: an object of its own, never one of CPython's cached ints */
} CcOrigin;

typedef enum CcDirty {
    CC_DIRTY_NO,
    CC_DIRTY_KEYS,  /* single keys were written, and are known: other keys can be read, the whole can't */
    CC_DIRTY_ALL,   /* nothing of it can be read before the next break */
    CC_DIRTY_KNOWN, /* guarded whole as it was before: what it holds now is known, and read without guards */
} CcDirty;

typedef struct CcProv {
    /* strong, except tensors that nodes made: then `weak` tells whether it is still that object */
    PyObject *object;
    PyObject *weak;
    uint8_t origin;
    uint8_t dirty;         /* SOURCE: written in this trace; CcDirty */
    bool finalised;        /* it was when it was met: that happens once, also to what lived on */
    int32_t id;            /* guard, graph value or effect */
    PyCodeObject *site_co; /* FRESH: where it was made (borrowed from a running frame's code) */
    int32_t site_pc;
} CcProv;

/* One act of the region, as the recorder sees it. */
typedef struct CcRecFrame {
    CcAct *act;
    /* its caller's instruction is a direct call of it: a break here can rebuild both */
    bool transparent;
    bool kept; /* was at this level when the trace began */
    bool touched;
    int first_fresh;            /* provenance entries before it entered: swept when it leaves */
    int call_nodes;             /* graph nodes before the event that it performs */
    int call_stores;            /* CcRec.stores before it */
    Py_ssize_t call_size;       /* of the list that it extends, before it */
    const PyTypeObject *hashed; /* C code asks an object of this class for its hash, or whether it is equal */
    int first_stores;
    int gives; /* guard that reads what the event gives, looked at before it; -1: none */
} CcRecFrame;

enum { CC_FOUND = 64 };

struct CcRec {
    int64_t freezing; /* parameters of up to so many bytes are marked as frozen */
    CcTrace *trace;   /* being recorded; NULL when inactive */
    CcTrace *done;
    CcSites *sites;
    CcMode mode;
    CC_VEC(CcRecFrame) frame;
    CC_VEC(CcProv) prov;
    /* attributes of classes that guards know already */
    struct CcLooked {
        PyTypeObject *type;
        PyObject *name, *found;
        int guard;
    } looked[CC_FOUND];
    CcMap by_object; /* object -> index into prov */
    /* what by_object said last: an event asks for the same few objects again and again */
    struct CcFound {
        const PyObject *object;
        int place; /* 1 + its index; 0: it has none */
    } found[CC_FOUND];
    CC_VEC(int) loose;     /* of prov: cc_value_loose; some have gone, and a few stand twice */
    int leaves;            /* of frames since they were looked at */
    int64_t made;          /* bytes of what nodes gave, about, since memory was given back */
    CcMap input_of;        /* guard id + 1 -> graph value + 1 */
    CcAct *innermost;      /* cc_rec_begin_resume: last act of the chain */
    PyObject *unbuildable; /* borrowed: what the last recipe failed on */
    CC_VEC(struct CcRecEffect {
        /* strong operands: their recipes are built when the trace ends, from their last state */
        PyObject **in;
        int n;
    }) effect;
    /* containers as they were before they were written */
    CC_VEC(struct CcBefore {
        PyObject *object;
        PyObject *copy;
    }) before;
    CC_VEC(int) copied; /* guards of objects by whose id() the copy module looks for their copies */
    CcMap distinct;     /* pairs of guards that are checked to be two objects */
    /* tensor -> guard that reaches one which no guard can tell from others: it may be handed on, not used */
    CcMap handed;
    CcMap lost;    /* guard id + 1 of places that were written */
    CcMap asked;   /* constants of which it matters which object they are (same.c) */
    CcMap loud;    /* classes whose hash or equality writes: a replay must not ask for it once more */
    int stores;    /* writes so far, to what is fresh as well */
    CcMap unsized; /* graph value + 1: its shape depends on data, and so is not known to the trace */
    /* cc_rec_begin_resume: slots with functions and generators of this call */
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
    /* cc_final_begin: what slots held that hangs on more than itself; as addresses */
    CC_VEC(struct CcHeld {
        int level;
        int slot;
        const void *object;
        bool waits; /* an operand of a call that the frame waits in */
        bool moves; /* it is looked for at each event: */
        int now;    /* in this slot */
        bool shed;  /* in none */
        bool loud;  /* letting go of it alone is noticed */
        bool fell;  /* it was let go of, and that was noticed */
    }) held;
    /* that provenance holds, and what was written held before: as addresses */
    CC_VEC(PyObject *) loosed;
    CC_VEC(int) written; /* guards of containers that effects write */
    /* attributes of classes that effects write: both lie in the trace's guards */
    CC_VEC(struct CcOfClass {
        PyTypeObject *type;
        PyObject *name;
    }) of_class;
    CC_VEC(PyObject *) spent; /* strong: until the region ends (escape.c) */
    CC_VEC(PyObject *) keep;  /* constants and temporaries alive while recording */
    /* strong: exception being handled when the call, the trace began; NULL: none */
    PyObject *handled_outer, *handled_start;
    PyFunctionObject *root;
    PyObject *kwnames; /* borrowed: of the call's last arguments; NULL: none */
    int n_args;
    bool await_root;   /* the next frame is the root's */
    bool keep_tensors; /* results of nodes are held strongly, and go into CcTrace.kept */
    CcHints *hints;    /* borrowed */
    uint64_t salt;     /* of guard paths */
    CcMap sized;       /* graph value + 1: its sizes follow from symbols */
    /* numbers just read that are to be symbols */
    CC_VEC(struct CcPending {
        int guard;
        PyObject *object;
    }) pending;
    /* floats that slots held, of which this recording made others (resume.c) */
    CC_VEC(struct CcPending) floats;

    const char *rigid; /* why all symbols become constants; NULL: they don't */
    /* the first node that ran any Python code: where it was called, by what name; co NULL: none */
    struct CcRan {
        PyCodeObject *co; /* strong */
        int pc;
        char *name;
    } ran;
    bool read_grad; /* requires_grad was read: every tensor guard checks it */
    bool blind;     /* an effect lets go of nobody knows what */
    bool tells;     /* the next effect writes to a place that `lost` has */
    bool parted;    /* something with weak references went */
    bool
        fallen; /* since the last event frames let go of what existed before, and that is noticed: a replay does so where it ends */
    bool died;    /* the same, and nobody knows where */
    bool raised;  /* the event that after() is told of raised */
    bool unseen;  /* something that this trace made was read from outside, where no effect has put it */
    bool told;    /* code asked whether it is compiled, and was told so */
    bool by_code; /* functions are known by their code (resume.c) */
    bool no_more; /* no further ones will be: attributes of a function were written */
    CcBreakInfo why;
    int instructions;
};

/* It may go before the recording ends: tensors that nodes made, what has a finaliser, and what the trace made. */
static inline bool cc_value_loose(const CcProv *p) { return p->weak != NULL || p->origin == CC_O_FRESH; }

/* Is it hashed and compared for equality by the code of this type? PyBaseObject_Type's: by identity. */
static inline bool cc_value_compares_as(PyObject *o, const PyTypeObject *t) {
    return Py_TYPE(o)->tp_hash == t->tp_hash && Py_TYPE(o)->tp_richcompare == t->tp_richcompare;
}

/* A class made by Python code, which can be changed and whose methods may be Python. C code makes heap types, too
 * (3.12's deque), but marks them immutable. */
static inline bool cc_python_class(const PyTypeObject *type) {
    return (type->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_IMMUTABLETYPE)) == Py_TPFLAGS_HEAPTYPE;
}

/* ---- value.c: provenance ---- */
CC_MUST int cc_value_init(void);
CcProv *cc_value_find(CcRec *rec, PyObject *o); /* live entry or NULL */
CcOrigin cc_value_origin(CcRec *rec, PyObject *o);
/* Nothing is known of it: using it is a break. NULL and exceptions are known. */
static inline bool cc_value_unknown(CcRec *rec, PyObject *o) {
    return o != NULL && !PyExceptionInstance_Check(o) && cc_value_origin(rec, o) == CC_O_UNKNOWN;
}
bool cc_value_const(PyObject *o);     /* immutable, compared by value */
bool cc_value_numpy(PyObject *o);     /* a number of numpy's */
bool cc_value_structseq(PyObject *o); /* torch.return_types.max and its kind */
bool cc_value_deque(PyObject *o);     /* exactly collections.deque */
bool cc_value_wraps(PyObject *o);     /* a property, classmethod or staticmethod */
/* Which view of a dict or an OrderedDict: PyDictKeys_Type, PyDictValues_Type or PyDictItems_Type; NULL: none. */
const PyTypeObject *cc_value_view(PyObject *o);
bool cc_value_defaultdict(PyObject *o);
/* its class, or what C code made that this derives from */
const PyTypeObject *cc_value_base(PyObject *o);
/* a number or text of a derived class, as a plain one; else NULL without an error */
CC_NEW PyObject *cc_value_held(PyObject *o);
bool cc_value_annotation(PyObject *o); /* int | None, list[int] */
/* compared by identity: types, functions, modules ... */
bool cc_value_ident(PyObject *o);
/* Whether o was written and can't be read. A list or dict whose content before its first write was kept (will_write)
 * is guarded now, and becomes known. */
CcDirty cc_value_dirty(CcRec *rec, PyObject *o);
CcDirty cc_value_dirty_key(CcRec *rec, PyObject *o); /* for reading one key: changes nothing */
void cc_value_will_write(CcRec *rec, PyObject *o);   /* before a write to something from outside */
/* a container whose content before can be kept */
bool cc_value_tracked(PyObject *o);
void cc_value_wrote(CcRec *rec, PyObject *o, CcDirty how);
bool cc_value_known(CcRec *rec, PyObject *o); /* CC_DIRTY_KNOWN */
CcProv *cc_value_set(CcRec *rec, PyObject *o, CcOrigin origin, int id);
void cc_value_fresh(CcRec *rec, PyObject *o); /* unless it is a constant or known */
void cc_final_sweep(CcRec *rec, int first);   /* drops fresh objects that only the map holds */
void cc_value_drop(CcRec *rec, CcProv *p);
void cc_value_clear(CcRec *rec);
/* Guard id of what o is: its source, or a CONST source for objects compared by identity. -1: neither. */
int cc_value_source(CcRec *rec, PyObject *o);
int cc_value_const_source(CcRec *rec, PyObject *o);
/* Records that `source` of parent gave v (NULL: absent): adds the guard when it is new and learns v. Guard id. */
int cc_value_read(CcRec *rec, CcSource source, int parent, PyObject *key, int level, int index, PyObject *v);
/* Whether a guard can ask a dict from outside for a tensor from outside: it is found by address, no data is read
 * (optimizer.state[p]). */
bool cc_value_by_tensor(CcRec *rec, PyObject *dict, PyObject *key);
/* What a dict from outside has for a key; v NULL: nothing. */
int cc_value_read_key(CcRec *rec, int parent, PyObject *key, PyObject *v);
/* What a function without arguments says of the process, which is guarded to stay so. NULL without an error: it
 * raised. */
CC_NEW PyObject *cc_value_ask(CcRec *rec, PyObject *function);
/* nothing where there is none */
void cc_value_ask_module(CcRec *rec, const char *module, const char *function);
/* Two objects were compared by identity: when both came from outside and differ, they have to differ in a replay. */
void cc_value_distinct(CcRec *rec, PyObject *a, PyObject *b);
/* it is none of those that were copied before it */
void cc_value_copied(CcRec *rec, PyObject *o);
/* It matters which object from outside this is: a function that was known by its code (resume.c) is known by its identity
 * from now on, any other one by its address, as in what id() and repr() gave. */
void cc_value_which(CcRec *rec, PyObject *o);
void cc_value_function_written(CcRec *rec);
/* Marks that source as written by this trace: later reads of it carry no guard. */
void cc_value_written(CcRec *rec, CcSource source, int parent, PyObject *key, bool deleted);
/* Membership by identity (tensors, objects without __eq__ in sets and dict keys): guards that item, or with NULL every
 * member, is another object than the members that it is not. False: it can't be told, or there are too many. */
bool cc_value_membership(CcRec *rec, PyObject *container, PyObject *item);
/* Tuples in a list, tuple or deque that were taken from `iterable`: zip, enumerate, items() made them. */
void cc_value_pairs(CcRec *rec, PyObject *container, PyObject *iterable);
bool cc_value_has_tensor(PyObject *o, int depth);
bool cc_value_symbolic(CcRec *rec, PyObject *o); /* a number that is not constant under guards */
/* A symbolic number from outside is compared with a constant: guards the outcome. False: it is computed by a node. */
bool cc_value_compare(CcRec *rec, int op, PyObject *a, PyObject *b, bool outcome);
/* a symbolic number becomes a constant: value guard */
void cc_value_pin(CcRec *rec, PyObject *o);

/* ---- inside.c: what containers from outside hold ---- */
/* Guards all of it, `depth` levels deep (0: of a dict, its keys). False: it can't be guarded. */
bool cc_inside_guard(CcRec *rec, PyObject *o, int depth);
/* Guards a written container as it was before, if that was kept. */
bool cc_inside_before(CcRec *rec, const CcProv *p);
/* guards an exception's arguments, which its text is made of */
bool cc_inside_exception(CcRec *rec, PyObject *o);
/* Guards which members a set has, and no more, for `in`. False: it can't. */
bool cc_inside_members(CcRec *rec, PyObject *set);
/* Guards lengths and element types only: what torch.tensor(list) makes of a list depends on no more. */
bool cc_inside_structure(CcRec *rec, PyObject *o, int depth);
/* One of C's own iterators and views: it takes its items from what the garbage collector finds in it. */
bool cc_inside_passes_on(PyObject *o);

/* ---- number.c ---- */
/* Makes constants, under guards, of the symbolic numbers in o, `depth` levels of containers deep. False: a node
 * computes one. */
bool cc_number_settle(CcRec *rec, PyObject *o, int depth);
bool cc_number_truth(CcRec *rec, PyObject *o); /* guards whether a symbolic number is 0; false: a node computes it */
bool cc_number_truths(CcRec *rec, PyObject *items); /* the same of all that these hold */
/* As cc_number_settle, of those that a break gave alone: symbols stay symbols. */
bool cc_number_read(CcRec *rec, PyObject *o, int depth);
/* The numbers that a computed one hangs on are symbols in the next recording: steps go on with those. */
void cc_number_ask(CcRec *rec, PyObject *o);
void cc_number_which(CcRec *rec, PyObject *o, int depth); /* cc_value_which of the functions in it */
/* ... and of all whose text, or hash and equality, is that of their address. False: one was made here, and lies elsewhere in each call */
bool cc_number_addresses(CcRec *rec, PyObject *o, int depth, bool text);
/* Whether visit says so of anything that a container or one of C's iterators holds. */
typedef bool (*CcNumberVisit)(void *ctx, PyObject *o, int depth);
bool cc_number_any(PyObject *o, CcNumberVisit visit, void *ctx, int depth);
/* a dict or set was filled by C code: its keys become constants */
void cc_number_hashed(CcRec *rec, PyObject *o);
/* an int, or nothing but ints in a tuple or list */
bool cc_number_whole(PyObject *o);
/* every step-th of in[0..n): one is symbolic */
bool cc_number_in(CcRec *rec, PyObject *const *in, int n, int step);
/* Whether a lookup of key in a dict can be guarded: a constant, or a tuple of constants whose content is guarded
 * now. */
bool cc_number_key(CcRec *rec, PyObject *key);
/* the same, and one that is made again meets the one before */
bool cc_number_dict_key(CcRec *rec, PyObject *key);

/* ---- same.c: which one of equal numbers or strings it is ---- */
bool cc_same_nan(PyObject *o); /* one is equal to nothing, and found by its identity alone */
/* It matters which object this constant is: guards that reads gave this one. */
void cc_same_which(CcRec *rec, PyObject *o);
/* It is compared with others, or hashed: a tuple with all that it holds, a NaN by its identity. */
void cc_same_met(CcRec *rec, PyObject *o);
/* the same of what C code takes from a list or tuple, and puts into a set, or as pairs into a dict */
void cc_same_taken(CcRec *rec, PyObject *iterable, bool pairs);
void cc_same_hashed(CcRec *rec, PyObject *o); /* the same of the keys of a dict or set that C code has filled */
/* cc_same_which() was told of it: what gives it later is to give this one */
bool cc_same_asked(CcRec *rec, PyObject *o);
bool cc_same_asked_any(CcRec *rec, PyObject *tuple);
/* `a is b`: guards the outcome, where what is from outside decides it */
void cc_same_compared(CcRec *rec, PyObject *a, PyObject *b);
bool cc_same_is(CcRec *rec, CcAct *act, PyObject *const *in); /* the same, and what it is without symbols */

/* ---- escape.c ---- */
/* What is left of a recording that ends holds CPython's own small ints in place of symbols. */
void cc_escape_restore(CcRec *rec);

/* ---- recipe.c ---- */
bool cc_recipe_text_iterator(const PyTypeObject *t);    /* over str or bytes */
int cc_recipe_of(CcRec *rec, PyObject *o, CcMap *memo); /* -1: can't be rebuilt; rec->why is set */
/* What a function holds besides its code, in the order of a recipe's kids (NULL recipes where absent). */
enum {
    CC_FN_GLOBALS,
    CC_FN_DEFAULTS,
    CC_FN_KWDEFAULTS,
    CC_FN_CLOSURE,
    CC_FN_NAME,
    CC_FN_QUALNAME,
    CC_FN_DICT,
    CC_FN_ANNOTATIONS,
    CC_FN_DOC,
    CC_FN_MODULE,
    CC_FN_COUNT
};
/* OBJECT kids: `aux` base items (list items, dict key/value pairs, tuple items, exception arguments), then `id` items of the
 * instance dict (key, value) or, where `id` is CC_OWN_DICT, the dict itself, then slots (member descriptor, value). */
enum { CC_OWN_DICT = -1 };

/* ---- maker.c: cc_maker_make ---- */
PyTypeObject *cc_maker_base(PyTypeObject *type); /* what C code made that it derives from */
/* A base whose instances are one immutable value, which is its constructor's argument. */
bool cc_maker_plain(const PyTypeObject *base);

/* ---- snapshot.c ---- */
/* Recipes for all frames of the region. False: rec->unbuildable, of the frame *level. */
bool cc_snapshot_take(CcRec *rec, CcMap *memo, int *level);

/* ---- site.c: instructions at which the next recording is to break ---- */
const struct CcSite *cc_site_find(const CcSites *sites, const CcAct *act);
/* False: it is marked already, so marking it can't help. */
bool cc_site_mark(CcRec *rec, PyCodeObject *co, int pc);
/* Marks where rec->unbuildable was made; of a generator that was adopted, that it is not to be. */
bool cc_site_made(CcRec *rec);
/* rec->unbuildable is of the frame `level`: marks where it was made. Where that is not known, or did not help, the call of
 * that frame, or of one around it. */
void cc_site_before(CcRec *rec, int level);
/* Marks the outermost call of copy.deepcopy, if there is one: its memo is keyed by where this call's objects lie, so no frame
 * of it can be rebuilt for others. */
bool cc_site_copy(CcRec *rec);
/* in place of a site's instruction: generators of this code are not adopted */
enum { CC_SITE_ADOPTION = -1 };
bool cc_site_may_adopt(const CcRec *rec, const PyCodeObject *generator);

/* ---- resume.c ---- */
/* A cell was read behind a break that holds a function of a function: each call makes another, so it is known by its
 * code, defaults and cells. False: it is to be read like anything else. */
bool cc_resume_cell(CcRec *rec, int cell, PyObject *v);
/* The same of an item of a tuple or list that a slot holds: `out, pull = torch.func.vjp(f, x)`. */
bool cc_resume_item(CcRec *rec, int item, PyObject *v);

/* ---- final.c ---- */
bool cc_final_has(PyObject *o); /* its type has a finaliser: generators, classes with __del__ */
/* Whether a break has to keep what this slot holds: it is live, or the frame's end finalises it. */
bool cc_final_slot(const CcAct *act, int slot);
/* Something from outside that is finalised has gone: a replay would let go of it behind all that the trace does. Finalisers that
 * run meanwhile, at the end of the trace, are no part of it. */
bool cc_final_died(CcRec *rec, const CcAct *act);
/* A container is about to be written. Something that hangs on it alone is finalised, or there is a weak reference to it: whoever
 * keeps that alive is seen, so what provenance has of it is looked at behind the write (CcRec.loosed). */
bool cc_final_holds(CcRec *rec, PyObject *container);
/* Code runs because this object, or that of this weak reference, ends. False: it is no part of the recording, which did not make
 * it. */
bool cc_final_ends(CcRec *rec, PyObject *o);
bool cc_final_loud(const CcRec *rec, const PyObject *o); /* a slot held it, and somebody is told when it lets go */
void cc_final_begin(CcRec *rec);                         /* a trace that begins behind a break */
void cc_final_adopted(CcRec *rec);                       /* generators have been: their ends are recorded */
/* Before an event, and behind it: something went meanwhile of which somebody is told. The trace has to end here. */
bool cc_final_fallen(CcRec *rec);
void cc_final_settle(CcRec *rec); /* the trace ends here: what its frames hold yet goes with them */
/* The same, once it has its recipes: what its frames have let go of is to be nothing that anybody is told of. */
void cc_final_end(CcRec *rec);
void cc_final_loosed(CcRec *rec);             /* a write that was performed may have let go of what CcRec.loosed has */
void cc_final_written(CcRec *rec, int guard); /* its place was written */
void cc_final_effect(CcRec *rec, const CcAction *a);
/* A weak reference is about to be read, and its object may hang on what the trace has let go of: what it writes, or did finish.
 * What its frames let go of is guarded to be nothing that matters. */
bool cc_final_shed(CcRec *rec, PyObject *ref);
/* Something that the trace made is finalised behind its end, and is not among the objects with recipes:
 * rec->unbuildable. */
bool cc_final_left(CcRec *rec, CcMap *memo);

/* ---- uncalled.c ---- */
/* A frame has arrived. CC_PASS_ALL: no code of the recording has called it; CC_GIVE_UP: nobody can tell. */
CcGo cc_uncalled_enter(CcRec *rec, CcAct *act);

/* ---- idle.c: variables that nobody reads any more ---- */
void cc_idle_begin(CcRec *rec);
/* The slot is to be left as it is. */
bool cc_idle_stays(CcRec *rec, const CcRecFrame *f, int slot);
bool cc_idle_looked(const CcRec *rec); /* code of the chain looks at frames */
/* -1: it is to be absent */
int cc_idle_recipe(CcRec *rec, const CcAct *act, int slot, bool looked, CcMap *memo);

/* ---- traceback.c ---- */
/* It has a traceback, and code of the chain may look at the frames in it. */
bool cc_traceback_read(CcRec *rec, PyObject *exception);
/* None: it has no traceback; NULL (no error): it can't be made */
CC_NEW PyObject *cc_traceback_copy(PyObject *exception);

/* ---- node.c: graph nodes and effects ---- */
typedef struct CcCallSpec {
    CcForm form;
    int arg;
    PyObject *target, *kwnames;
    PyObject *const *in;
    int n;
    const char *name;
    unsigned flags;       /* CC_N_* */
    const CcBound *bound; /* NULL: host node */
    bool dynamic;         /* the shape of its results depends on data */
    bool state;           /* sets ambient state */
    bool safe;            /* whether it raises does not depend on data */
    CcKernel kernel;
    bool checked; /* a replay compares its results' metadata with the recorded ones */
} CcCallSpec;
/* CC_OK, or CC_GIVE_UP when an operand can't be named (the site is marked). */
CcGo cc_node_add(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result);
/* A node without results that only fails or not: the trace stays one that can be run again eagerly. */
CcGo cc_node_check(CcRec *rec, CcAct *act, const CcCallSpec *spec);
CcGo cc_node_effect(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result);
/* recipes of its operands; -1: rec->unbuildable */
int cc_node_args(CcRec *rec, const CcCallSpec *spec);
CcAction cc_node_action(const CcCallSpec *spec, CcAct *act, int args0);
void cc_action_free(CcAction *a);
bool cc_node_catches(CcRec *rec); /* code of the region would handle an exception here */
bool cc_node_pending(CcRec *rec); /* writes of Python state wait for the graph's end */
/* Can every operand of a node be named? Otherwise *bad is the first that can't. */
bool cc_node_nameable(CcRec *rec, PyObject *o, int depth);

/* A tensor whose shape depends on data: nothing may look at its metadata. */
bool cc_node_unsized(CcRec *rec, PyObject *o);
/* Whether a metadata reader of this name ("Tensor.size") tells sizes: dtype, device and rank don't depend on data. */
bool cc_node_tells_size(const char *name);
/* Builds the recipes of the effects' operands; false: rec->unbuildable. */
bool cc_node_finish_effects(CcRec *rec, CcMap *memo);
void cc_node_clear_effects(CcRec *rec);

/* ---- sym.c: symbols ---- */
int cc_sym_of(CcRec *rec, PyObject *o); /* its number; -1: none */
bool cc_sym_is(CcRec *rec, PyObject *o);
bool cc_sym_small(PyObject *number); /* an int that CPython has a single object for */
/* `a is b`, as it would be without symbols being objects of their own: guards what that depends on. */
bool cc_sym_identical(CcRec *rec, CcAct *act, PyObject *const *in);
/* Guards whether a number is 0, and whether it is 1: dropout gives back its operand at the one and draws nothing at the
 * other. False: it is a node's, so nobody knows. */
bool cc_sym_probability(CcRec *rec, CcAct *act, PyObject *o);
bool cc_sym_within(CcRec *rec, PyObject *o, int depth); /* o or something that it holds is one */
bool cc_sym_sized(CcRec *rec, PyObject *tensor);        /* its sizes follow from symbols */
bool cc_sym_value(CcRec *rec, int value);               /* the same of a graph value */
void cc_sym_mark(CcRec *rec, int value);
/* dims that are to be symbolic */
unsigned cc_sym_dims(CcRec *rec, int guard, PyObject *tensor, const CcType *type);
void cc_sym_resized(CcRec *rec, int guard, PyObject *tensor); /* it has symbolic dims */
/* A source was read that gave this number: true when it is, or is to be, a symbol. Then Python code gets another
 * object. */
bool cc_sym_wanted(CcRec *rec, int guard, PyObject *number);
/* what this source gives is another number now */
void cc_sym_written(CcRec *rec, int guard);
/* a guard: the symbol's value is what it is now */
void cc_sym_pin(CcRec *rec, PyObject *o);
void cc_sym_settle(CcRec *rec, PyObject *o, int depth); /* pins all that o holds */
/* gives a tensor back when its sizes and strides are right */
bool cc_sym_by_layout(const CcCallSpec *spec);
/* a call that gave back what it was given */
void cc_sym_same(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result);
CcGo cc_sym_operator(CcRec *rec, CcAct *act, CcEvent *ev); /* CC_DONE, or CC_OK: perform it as ever */
CcGo cc_sym_attr(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *tensor, PyObject *name);
CcGo cc_sym_call(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec);
/* C code that looks at numbers and nothing else */
CcGo cc_sym_pure(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec);
/* an iterator over these: C code among them may look at symbols */
void cc_sym_unseen(CcRec *rec, PyObject *const *in, int n);
/* what an event gave: a number that was waiting to be a symbol */
void cc_sym_after(CcRec *rec, CcEvent *ev, int first);
/* the same for what a guard found in a slot */
void cc_sym_slot(CcRec *rec, CcAct *act, int slot, int guard);
/* a tuple or torch.Size in a slot: where some of its numbers differed from call to call, one with symbols in their place */
void cc_sym_tuple(CcRec *rec, CcAct *act, int slot, int guard, PyObject *v);
/* the same for the call's arguments, which lie in the root's locals */
void cc_sym_arguments(CcRec *rec, CcAct *act);
void cc_sym_drop_pending(CcRec *rec); /* numbers that nobody took are constants */
void cc_sym_visit_recipe(const CcTrace *t, int recipe, void (*visit)(void *ctx, const CcRecipe *r), void *ctx);
void cc_sym_finish(CcRec *rec); /* symkey.c */
void cc_sym_free(CcTrace *t);

/* ---- rec.c ---- */
/* Ends the trace with a break before act's instruction, or, where C code stands between two frames of the chain, marks
 * the outermost instruction that can break and gives up. */
CcGo cc_rec_break(CcRec *rec, CcAct *act, CcReason reason, const char *what);
/* Something could not be recorded after it was performed: marks the instruction, so that the next recording breaks
 * there. */
CcGo cc_rec_poison(CcRec *rec, CcAct *act, CcReason reason, const char *what);
/* The same, and the next recording breaks at this instruction. */
CcGo cc_rec_give_up(CcRec *rec); /* without a site */
CcGo cc_rec_retry(CcRec *rec, const CcAct *act, PyCodeObject *co, int pc, CcReason reason, const char *what);
/* The innermost frame of which all callers can be rebuilt: its instruction is one at which a recording can break. NULL:
 * there is no frame. */
CcRecFrame *cc_rec_outer(CcRec *rec);
void cc_rec_gives(CcRec *rec, CcAct *act, int guard); /* what this guard reads is what the event will give */
CcRecFrame *cc_rec_frame(CcRec *rec, CcAct *act);
bool cc_rec_calls(const CcEvent *ev,
                  const CcAct *act); /* the act is what this event calls, without C code in between */
bool cc_rec_in_module(const CcAct *act, const char *name);        /* the act's function is of that module */
void cc_rec_begin(CcRec *rec, const CcMode *mode, uint64_t salt); /* a trace without inputs */
void cc_rec_guard_function(CcRec *rec, PyFunctionObject *func);   /* by code and defaults */

/* ---- resume.c: cc_rec_begin_resume ---- */

/* ---- ev_attr.c, ev_call.c, ev_op.c: one function an event kind ---- */
CcGo cc_attr_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name);
CcGo cc_attr_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
void cc_attr_not_there(CcRec *rec, CcAct *act, PyObject *o, PyObject *name); /* del o.name raised */
/* The same for object.__setattr__: past any Python-level __setattr__. */
CcGo cc_attr_generic_store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_generic_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
/* object.__getattribute__ */
CcGo cc_attr_generic_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name);
CcGo cc_attr_generic_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CC_MUST int cc_attr_init(void);
void cc_attr_dunder(CcRec *rec, PyObject *o, const char *name); /* guards type(o).name, be it there or not */
void cc_attr_class_of(CcRec *rec, PyObject *o);                 /* guards type(o), where o's own guard does not */
void cc_attr_mro(CcRec *rec, PyObject *type);                   /* guards type.__mro__ */
CcGo cc_call_before(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n, PyObject *kwnames);
/* Breaks at something of torch's; why: CcTorch.why, NULL is "changes torch's state". */
CcGo cc_call_torch(CcRec *rec, CcAct *act, const char *name, const char *why);
CcGo cc_call_after(CcRec *rec, CcAct *act, PyObject *const *in, int n, PyObject *kwnames, PyObject *result);
CcGo cc_call_with_before(CcRec *rec, CcAct *act, PyObject *manager);
CcGo cc_op_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_op_after(CcRec *rec, CcAct *act, CcEvent *ev);
bool cc_op_symbolic(CcRec *rec, const CcEvent *ev); /* an operand is a number that differs from call to call */
bool cc_op_tensors(const CcEvent *ev, int depth);   /* an operand is or holds a tensor */
/* Operands that only C code of builtin types sees; their content decides the result. */
CcGo cc_op_plain(CcRec *rec, CcAct *act, const CcEvent *ev, int depth);
CcGo cc_op_iter(CcRec *rec, CcAct *act, const CcEvent *ev); /* before an iterator of ev->in[0] is made */

/* ---- ev_display.c: what is built on the stack ---- */
CcGo cc_display_update_before(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_display_update_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_display_format_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_display_format_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_display_after(CcRec *rec, CcAct *act, const CcEvent *ev);
/* The Python function that a call of o runs first; NULL: none (C code, or a class). Unwraps methods and __call__. */
CC_BORROW PyFunctionObject *cc_call_function(PyObject *callable);
CC_MUST int cc_call_init(void);

/* Shared by ev_op.c's parts. */
bool cc_op_container(PyObject *o); /* of C's own types */
/* Its class has a method of that name in Python: what that does is recorded. */
bool cc_op_python_method(PyObject *o, const char *name);
/* An object of a Python class with nothing that C code could look at: what happens to it is said by its methods. */
bool cc_op_bare(PyObject *o);
CcGo cc_op_operator(CcRec *rec, CcAct *act, CcEvent *ev); /* before */

/* ev_item.c: items of tensors and containers */
CcGo cc_item_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_item_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_item_store_before(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_item_store_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_item_contains_before(CcRec *rec, CcAct *act, CcEvent *ev);
/* Guards what a dict from outside holds by this key, or that it holds nothing: the event's result, if it gives it. */
void cc_item_look(CcRec *rec, CcAct *act, PyObject *dict, PyObject *key);
/* Reading it makes C code store it (defaultdict). */
bool cc_item_stores(const CcAct *act, PyObject *dict, PyObject *key);

/* ev_name.c: globals, cells, closures, imports */
CcGo cc_name_store_cell(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_name_store_global(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_name_global(CcRec *rec, const CcEvent *ev);
CcGo cc_name_closure(CcRec *rec, const CcEvent *ev);
void cc_name_cell(CcRec *rec, PyObject *cell, PyObject *v); /* a cell was read, and gave v */
void cc_name_super(CcRec *rec, const CcAct *act);           /* super() reads its frame's cell __class__ */
CcGo cc_name_import(CcRec *rec, CcAct *act, CcEvent *ev);
/* `from package import name` gave a module that the package does not hold (yet): guards sys.modules. */
void cc_name_submodule(CcRec *rec, PyObject *package, PyObject *name);
/* Provenance of the parameters of a frame that begins. by_c: C code called it, with what it took from iterators that are
 * known. */
void cc_param_learn(CcRec *rec, CcAct *act, bool by_c);              /* param.c */
bool cc_param_is_default(const PyFunctionObject *func, PyObject *v); /* it is the default of some parameter */
CcGo cc_match_before(CcRec *rec, CcAct *act, const CcEvent *ev);     /* ev_match.c */
CcGo cc_match_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_match_exception(CcRec *rec, CcAct *act, const CcEvent *ev);

/* ---- backcall.c: C code that calls back ---- */
typedef enum CcBack {
    CC_BACK_SEEN, /* None, or Python code that is recorded */
    CC_BACK_WRAP, /* C code: cc_backcall_wrap */
    CC_BACK_NOT,  /* Python code that is not recorded, or of unknown origin */
} CcBack;
CcBack cc_backcall_kind(CcRec *rec, PyObject *f);
/* A Python function that calls f, for C code to call in its place; kept by the recording. NULL: out of memory. */
CC_BORROW PyObject *cc_backcall_wrap(CcRec *rec, PyObject *f);
CC_BORROW PyObject *cc_backcall_add(CcRec *rec); /* a Python function that adds two objects */
/* `o in iterator`, so that what gives the items, and compares them, is seen; a new reference, NULL: it raised */
CC_NEW PyObject *cc_backcall_contains(CcRec *rec, PyObject *iterator, PyObject *o);
/* A Python function that does what an itemgetter, attrgetter or methodcaller does; NULL (no error): f is none of them,
 * or holds what is no constant. */
CC_BORROW PyObject *cc_backcall_getter(CcRec *rec, CcAct *act, PyObject *f);
/* defaultdict[key] where there is no such key, performed */
CcGo cc_backcall_missing(CcRec *rec, CcEvent *ev, PyObject *factory);
/* sum() and functools.reduce(), performed: CC_DONE, or CC_OK when C code is to do it. */
CcGo cc_backcall_sum(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);
CcGo cc_backcall_reduce(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);
/* list.remove() on a list that existed before: which item goes is decided now, since what it is compared with may
 * change. */
CcGo cc_backcall_remove(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);

/* A call that made a generator which was alive at a break, and could not be rebuilt. CC_OK: it can't be listed. */
CcGo cc_backcall_listed(CcRec *rec, CcAct *act, CcEvent *ev);

/* of what functools.lru_cache made */
CcGo cc_backcall_cache(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
/* C code has just made it, of constants and of what is known */
void cc_backcall_made(CcRec *rec, PyObject *o);
/* What the result of a function of the standard library depends on, as library.def says. */
typedef enum CcPure { CC_PURE_NOT, CC_PURE_DATA, CC_PURE_CLASS } CcPure;
/* Calls such a function once; CC_OK: its arguments are more than that. */
CcGo cc_backcall_pure(CcRec *rec, CcAct *act, CcEvent *ev, CcPure pure, PyObject *f, PyObject *const *in, int n,
                      PyObject *kwnames);

/* ---- kernel.c: kernels in Python ---- */
CcKernel cc_kernel_of(CcRec *rec, const char *name); /* of torch.ops, by the name that it gives itself */
/* A node of the trace has just run any Python code: what this changes and is read behind it no guard knows, as guards
 * run before the graph. */
void cc_kernel_ran(CcRec *rec, const char *name);
/* This source gave v, and CcGuards.asked was `asked` before: functions, classes and modules are taken to be left as they
 * are by that code. */
void cc_kernel_read(CcRec *rec, int asked, CcSource source, PyObject *v);
/* Something else was read behind it: the recording gives up, and the next one breaks at the call. */
bool cc_kernel_lost(CcRec *rec, CcAct *act);
void cc_kernel_forget(CcRec *rec);

/* ---- state.c: state of the interpreter and of numpy that C code reads unseen ---- */
/* Guards the state that an operation on these operands reads; text: it makes text of numbers, or numbers of text. False:
 * there is such state, and no guard can ask for it. */
bool cc_state_read(CcRec *rec, PyObject *const *in, int n, bool text);
bool cc_state_event(CcRec *rec, const CcEvent *ev); /* of operators, and of what makes text */
bool cc_state_numpy(CcRec *rec);                    /* the same of a function of numpy's, whatever it is given */
/* Whether hooks of saved tensors are set; if not, a guard says so. */
bool cc_state_hooks(CcRec *rec);
bool cc_state_codec(PyObject *name); /* an encoding, or a way to handle errors, that nobody can replace */

/* ---- undo.c ---- */
CcUndo cc_undo_of(CcRec *rec, const CcCallSpec *spec);
bool cc_undo_outside(CcRec *rec, PyObject *tensor); /* whether it may lie in memory of a tensor from outside */

/* ---- opaque.c ---- */
CC_MUST int cc_opaque_init(PyObject *torch);
bool cc_opaque_is_op(PyObject *o); /* what torch.ops gives */
CcGo cc_opaque_op(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
/* Does the call set torch's own state, as one node? */
bool cc_opaque_sets(CcRec *rec, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
CcGo cc_opaque_set(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n);
bool cc_opaque_context(PyObject *o); /* the ctx that Function.apply makes for forward */
CcGo cc_opaque_apply_after(CcRec *rec, CcAct *act, PyObject *bound, PyObject *result);
CcGo cc_opaque_reduce(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);

/* ---- callee.def, callee.c ---- */
typedef enum CcCalleeKind {
#define CC_CALLEE_KIND(id, reads, doc) CC_CALLEE_##id,
#define CC_TRAIT(id, doc)
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
} CcCalleeKind;
typedef enum CcTrait {
#define CC_CALLEE_KIND(id, reads, doc)
#define CC_TRAIT(id, doc) CC_TRAIT_##id,
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
} CcTrait;
typedef enum CcReads { CC_READS_NOTHING, CC_READS_BASES, CC_READS_ALL } CcReads;
typedef struct CcCallee {
    CcCalleeKind kind;
    CcReads reads;   /* of its operands' classes */
    uint32_t traits; /* a bit each */
    const char *name;
} CcCallee;

/* A call, normalised: what is called in the end, and a plain list of its arguments. */
enum { CC_CALL_ARGS = 250 };
typedef struct CcCalled {
    PyObject *func;
    PyObject *in[CC_CALL_ARGS]; /* self, positional, keyword values: borrowed */
    int n;
    PyObject *kwnames; /* borrowed */
} CcCalled;
int cc_call_positional(const CcCalled *c);
bool cc_call_any_tensor(const CcCalled *c, int depth);
CcCallSpec cc_call_spec(const CcCalled *c, const char *name);
/* ev_row.c: of callables that have a row */
/* C code that compares, hashes or converts what it is given, or what it iterates over; KEYS: only those of pairs;
 * ITEMS: it takes what that holds; TRUTH: it asks whether that is true. */
typedef enum CcLooks { CC_LOOKS_NOT, CC_LOOKS_KEYS, CC_LOOKS_ITEMS, CC_LOOKS_TRUTH, CC_LOOKS_ALL } CcLooks;
CcLooks cc_row_looks(PyObject *callable);
CcGo cc_row_before(CcRec *rec, CcAct *act, CcEvent *ev, CcCalled *c, const CcCallee *callee);
/* What C code takes out of an operand and puts into `self`, which existed before: to be given to an effect. NULL: it can't be
 * told any more. The list's size was noted before (cc_row_will_take). */
CC_BORROW PyObject *cc_row_taken(CcRec *rec, CcAct *act, PyObject *self, PyObject *with);
void cc_row_will_take(CcRec *rec, CcAct *act, PyObject *self);
/* Python code that C code called since the event began has written: a replay would write twice. */
bool cc_row_stored(CcRec *rec, CcAct *act);
/* What the C callable c->func reads of its arguments, where it is not what is called. */
CcGo cc_row_reads(CcRec *rec, CcAct *act, const CcCalled *c);
CcGo cc_row_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcCallee *callee, PyObject *result);

/* ---- given.c: what C code asks of the classes of what it is given ---- */
/* o, and what it holds `depth` levels deep: guards all special methods of classes that Python code made. */
void cc_given(CcRec *rec, PyObject *o, int depth);
void cc_given_event(CcRec *rec, const CcEvent *ev);
void cc_given_call(CcRec *rec, const CcCalled *c, const CcCallee *callee);
void cc_given_arguments(CcRec *rec, const CcCalled *c); /* of a callable without a row */
void cc_given_entered(CcRec *rec, const CcAct *act);    /* C code called this frame's function, as a special method */
/* The frame `act` gives this to an event of `to`: what C code in between looks at is guarded. */
CcGo cc_given_back(CcRec *rec, CcAct *to, const CcAct *act, PyObject *value);
/* It is asked which class o is of, or what classes o holds: guards the bases. False: they can't be guarded. */
bool cc_given_class(CcRec *rec, PyObject *o, int depth);

CcCallee cc_callee_find(PyObject *callable);
/* bound builtin method or slot wrapper: its self; else NULL */
CC_BORROW PyObject *cc_callee_self(PyObject *callable);
/* The descriptor that such a bound callable was made from: takes self as its first argument. NULL: not found. */
CC_BORROW PyObject *cc_callee_unbound(PyObject *callable);
CC_MUST int cc_callee_init(void);
/* Whether a Python function is recorded: all are, but those of standard-library modules outside library.def. */
bool cc_library_recorded(PyFunctionObject *func);
bool cc_library_node(PyFunctionObject *func);
bool cc_library_listed(PyFunctionObject *func);
CcPure cc_library_pure(PyFunctionObject *func);
CC_MUST int cc_library_init(void);
/* torch.compiler.is_compiling and its kin: new reference to the answer, or NULL (no error): not an intrinsic. */
CC_NEW PyObject *cc_intrin_call(CcRec *rec, PyObject *callable, PyObject *const *in, int n, const CcAct *caller);
CC_MUST int cc_intrin_init(PyObject *torch);

/* ---- scope.c: blocks of torch.inference_mode ---- */
CC_MUST int cc_scope_init(void);
CcGo cc_scope_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t);
CcGo cc_scope_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t, PyObject *result);
/* the object below such a block */
bool cc_scope_made(const CcCallSpec *spec, PyObject *result);
/* only torch knows what kind of tensor it gives */
bool cc_scope_is_hosts(CcRec *rec, const CcCallSpec *spec, PyObject *result);

#endif
