/* rec_events: what the handlers of events (ev_*.c) and of calls declare to one another. */
#ifndef CC_REC_EVENTS_H
#define CC_REC_EVENTS_H

#include "rec_int.h"

/* ---- ev_attr.c: attributes; v NULL: absent, or to be deleted ---- */
CcGo cc_attr_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name);
/* Performs the read of a property whose getter is C code (operator.attrgetter) by Python code, which is recorded. */
CcGo cc_attr_computed(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_attr_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_not_there(CcRec *rec, CcAct *act, PyObject *o, PyObject *name); /* del o.name raised */
bool cc_attr_is_leaf(PyObject *tensor);                                      /* for autograd */
/* Before requires_grad of a tensor is set: guards that it is a leaf and no view, if it requires a gradient and is from
 * outside. False: it is no leaf, so setting raises, or it is a view, of which setting may do nothing. */
bool cc_attr_guard_leaf(CcRec *rec, const CcAct *act, PyObject *o);
/* The same for object.__getattribute__ and __setattr__, which skip Python methods of the class. */
CcGo cc_attr_generic_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name);
CcGo cc_attr_generic_after(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_generic_store_before(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_attr_generic_store(CcRec *rec, CcAct *act, PyObject *o, PyObject *name, PyObject *v);
CC_MUST int cc_attr_init(void);
void cc_attr_dunder(CcRec *rec, PyObject *o, const char *name); /* guards type(o).name, present or absent */
void cc_attr_class_of(CcRec *rec, PyObject *o);                 /* guards type(o), unless o's own guard implies it */
void cc_attr_mro(CcRec *rec, PyObject *type);                   /* guards type.__mro__ */

/* ---- ev_dunder.c: special methods that are C functions, as in `__getattr__ = dict.__getitem__` ---- */
CC_MUST int cc_dunder_init(void);
bool cc_dunder_reads(PyTypeObject *t); /* __getattr__ or __getattribute__ */
bool cc_dunder_describes(PyObject *d); /* __get__, __set__ or __delete__ of a descriptor; d NULL: false */
/* Perform the access by Python code, which is recorded. CC_OK: the object has no such hook.
 * in: o, name[, default] as of getattr(), or with `asks` of hasattr() */
CcGo cc_dunder_get(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n, bool asks);
CcGo cc_dunder_set(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *o, PyObject *name, PyObject *v);
CcGo cc_dunder_item(CcRec *rec, CcAct *act, CcEvent *ev);

/* ---- ev_call.c: calls ---- */
CcGo cc_call_before(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n, PyObject *kwnames);
CcGo cc_call_after(CcRec *rec, CcAct *act, PyObject *const *in, int n, PyObject *kwnames, PyObject *result);
CcGo cc_call_with_before(CcRec *rec, CcAct *act, PyObject *manager);
/* Breaks at a torch callable; why: CcTorch.why, NULL means "changes torch's state". */
CcGo cc_call_torch(CcRec *rec, CcAct *act, const char *name, const char *why);
/* The Python function that a call of o runs first; NULL: none (C code, or a class). Unwraps methods and __call__. */
CC_BORROW PyFunctionObject *cc_call_function(PyObject *callable);
bool cc_call_breaks(PyObject *callable); /* one of those that are always a break (cc_call_special) */
/* Calls f; Python code that runs meanwhile is not recorded. */
CC_NEW PyObject *cc_call_unseen(const CcAct *act, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
/* The same for a call that nothing is known of. draws: from the CPU's default generator */
CC_NEW PyObject *cc_opaque_call(const CcAct *act, PyObject *f, PyObject *const *in, int n, PyObject *kwnames,
                                bool *draws);
CC_MUST int cc_call_init(void);

/* ---- ev_op.c: operators, tests, iteration ---- */
CcGo cc_op_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_op_after(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_op_operator(CcRec *rec, CcAct *act, CcEvent *ev);
/* Before an iterator of ev->in[0] is made. values: of a dict, its values are read as well as its keys. */
CcGo cc_op_iter(CcRec *rec, CcAct *act, const CcEvent *ev, bool values);
/* Operands that only C code of builtin types reads; their content determines the result. */
CcGo cc_op_plain(CcRec *rec, CcAct *act, const CcEvent *ev, int depth);
bool cc_op_symbolic(CcRec *rec, const CcEvent *ev); /* an operand is a symbolic number */
/* text % values: items that the class of a mapping returns become text */
bool cc_op_formats(const CcEvent *ev);
bool cc_op_tensors(const CcEvent *ev, int depth); /* an operand is or holds a tensor */
bool cc_op_container(PyObject *o);                /* of a builtin type */
/* Its class defines this method in Python: the method is recorded. */
bool cc_op_python_method(PyObject *o, const char *name);
/* An instance of a Python class without content that C code could read: only its methods determine what an operation
 * does. */
bool cc_op_bare(PyObject *o);

/* ---- ev_display.c: containers and strings built from the stack ---- */
CcGo cc_display_update_before(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_display_update_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_display_format_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_display_format_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_display_after(CcRec *rec, CcAct *act, const CcEvent *ev);

/* ---- ev_item.c: items of tensors and containers ---- */
CcGo cc_item_before(CcRec *rec, CcAct *act, CcEvent *ev);
CcGo cc_item_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_item_store_before(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_item_store_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_item_contains_before(CcRec *rec, CcAct *act, CcEvent *ev);
/* Guards what a dict from outside has for this key, or that it has nothing: the event's result, if it returns it. */
void cc_item_look(CcRec *rec, CcAct *act, PyObject *dict, PyObject *key);
/* Reading the key makes C code store it (defaultdict). */
bool cc_item_stores(const CcAct *act, PyObject *dict, PyObject *key);
/* o is or holds a dict for which C code stores the items that it lacks. */
bool cc_item_fills(CcRec *rec, PyObject *o);

/* ---- ev_name.c: globals, cells, closures, imports ---- */
CcGo cc_name_store_before(CcRec *rec, CcAct *act, const CcEvent *ev); /* a break if what it replaces has a finaliser */
CcGo cc_name_store_cell(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_name_store_global(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_name_global(CcRec *rec, const CcEvent *ev);
CcGo cc_name_closure(CcRec *rec, const CcEvent *ev);
void cc_name_cell(CcRec *rec, PyObject *cell, PyObject *v); /* a cell was read, and gave v */
void cc_name_super(CcRec *rec, const CcAct *act);           /* super() reads the cell __class__ of its frame */
CcGo cc_name_import(CcRec *rec, CcAct *act, CcEvent *ev);
/* `from package import name` gave a module that is not (yet) an attribute of the package: guards sys.modules. */
void cc_name_submodule(CcRec *rec, PyObject *package, PyObject *name);

/* ---- ev_match.c: match statements, except clauses ---- */
CcGo cc_match_before(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_match_after(CcRec *rec, CcAct *act, const CcEvent *ev);
CcGo cc_match_exception(CcRec *rec, CcAct *act, const CcEvent *ev);

/* ---- context.c ---- */
/* var.get() returned or raised; given: the call's default, or NULL. */
void cc_context_got(CcRec *rec, PyObject *var, PyObject *given, PyObject *result);
void cc_context_set(CcRec *rec, PyObject *var, PyObject *token); /* var.set() returned the token */
/* var.reset(token) returned. False: the token is of unknown provenance. */
CC_MUST bool cc_context_reset(CcRec *rec, PyObject *var, PyObject *token);

/* ---- param.c ---- */
/* A Python function is called: its frame gets symbols for keyword defaults that vary. */
void cc_param_call(CcRec *rec, PyFunctionObject *func);
/* Learns the provenance of the parameters of a frame that begins. by_c: C code called it with items of known
 * iterators. */
void cc_param_learn(CcRec *rec, CcAct *act, bool by_c);
bool cc_param_is_default(const PyFunctionObject *func, PyObject *v); /* v is the default of some parameter */

/* ---- backcall.c: C code that calls back ---- */
typedef enum CcBack {
    CC_BACK_SEEN, /* None, or Python code that is recorded */
    CC_BACK_WRAP, /* C code: cc_backcall_wrap */
    CC_BACK_NOT,  /* Python code that is not recorded, or of unknown provenance */
} CcBack;
CcBack cc_backcall_kind(CcRec *rec, PyObject *f);
/* Calls a template of backcall.c. The function that it returns, and the function's closure, belong to this trace. NULL
 * (no error): out of memory. */
CC_BORROW PyObject *cc_backcall_template(CcRec *rec, const char *name, PyObject *args);
/* A Python function that calls f, which C code calls instead of f; the recording keeps it. NULL: out of memory.
 * template: of backcall.c; "wrap" passes the arguments on. */
CC_BORROW PyObject *cc_backcall_around(CcRec *rec, const char *template, PyObject *f);
CC_BORROW PyObject *cc_backcall_wrap(CcRec *rec, PyObject *f); /* by "wrap" */
/* Calls the forward of an autograd.Function: (class, whether it has a setup_context, which operands need gradients,
 * operands) -> (result, context). */
CC_BORROW PyObject *cc_backcall_function(CcRec *rec);
/* Performs the event by a call of f, which rec->keep holds. */
CcGo cc_backcall_perform(CcEvent *ev, PyObject *f, PyObject *const *in, int n);
CC_BORROW PyObject *cc_backcall_add(CcRec *rec); /* a Python function that adds two objects */
/* `o in iterator` in Python code, so that producing and comparing the items is recorded; NULL: it raised */
CC_NEW PyObject *cc_backcall_contains(CcRec *rec, PyObject *iterator, PyObject *o);
/* A Python function equivalent to an itemgetter, attrgetter or methodcaller; NULL (no error): f is none of these, or
 * holds something that is not constant. */
CC_BORROW PyObject *cc_backcall_getter(CcRec *rec, CcAct *act, PyObject *f);
/* Performs torch._foreach_* and torch.broadcast_tensors tensor by tensor, as torch does on the CPU: CC_DONE, or CC_OK to
 * leave it to torch. */
CcGo cc_backcall_foreach(CcRec *rec, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
/* Performs torch.utils.checkpoint.checkpoint(function, ...) and records the function: CC_DONE, or CC_OK to leave it to
 * torch. */
CcGo cc_checkpoint_call(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *checkpoint, PyObject *const *in, int positional,
                        PyObject *kwnames);
/* The trace has written to the object, or advanced it. */
void cc_checkpoint_stored(CcRec *rec, PyObject *to);
/* Whether a variable that a checkpointed function reads has another content now; marks the site. */
bool cc_checkpoint_outdated(CcRec *rec, const CcAct *act);
/* Performs a call of torch._disable_dynamo's wrapper as a call of the function that it wraps. */
CcGo cc_backcall_unwrapped(CcRec *rec, CcEvent *ev, PyObject *func, PyObject *const *in, int positional,
                           PyObject *kwnames);
/* performs defaultdict[key] for a missing key */
CcGo cc_backcall_missing(CcRec *rec, CcEvent *ev, PyObject *factory);
/* Perform sum() and functools.reduce(): CC_DONE, or CC_OK to let C code do it. */
CcGo cc_backcall_sum(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *sum, PyObject *const *in, int n);
CcGo cc_backcall_reduce(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);
/* Calls f, which a template has made, in place of the C function of the event. At most 3 arguments. CC_DONE */
CcGo cc_backcall_instead(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n);
/* f(list(iterator)), in Python code that is recorded */
CcGo cc_backcall_drain(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *iterator);
/* list.remove() on a list from outside: decides now which item is removed, because the operands of the comparisons may
 * change later. */
CcGo cc_backcall_remove(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);

/* A call whose generator was alive at a break and could not be rebuilt: takes all items at once. CC_OK: it can't be
 * listed. */
CcGo cc_backcall_listed(CcRec *rec, CcAct *act, CcEvent *ev);

CcGo cc_backcall_cache(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
void cc_backcall_made(CcRec *rec, PyObject *o); /* C code made it from constants and known objects */
/* What the result of a standard-library function depends on (library.def). */
typedef enum CcPure { CC_PURE_NOT, CC_PURE_DATA, CC_PURE_CLASS } CcPure;
/* Calls such a function once; CC_OK: its arguments are of other kinds. */
CcGo cc_backcall_pure(CcRec *rec, CcAct *act, CcEvent *ev, CcPure pure, PyObject *f, PyObject *const *in, int n,
                      PyObject *kwnames);

/* ---- distinct.c: objects that C code compares or hashes ---- */
/* C code hashes `item`, or (NULL) each member of a set or of a dict's keys: guards that it is not one of the other members.
 * False: there are too many members, or pairs. */
bool cc_distinct_members(CcRec *rec, PyObject *container, PyObject *item);
void cc_distinct_event(CcRec *rec, const CcEvent *ev);

/* ---- custom.c ---- */
/* Records what the class's forward and backward compute, for these operands; f->graph: NULL, if that can't be recorded.
 * result: what Function.apply has returned; wrote: it has written to an operand. False: the recording has ended. */
bool cc_custom_record(CcRec *rec, const CcAct *act, PyObject *cls, PyObject *const *in, int n, PyObject *result,
                      bool wrote, CcFunction *f);

/* ---- opaque.c ---- */
CC_MUST int cc_opaque_init(void);
bool cc_opaque_is_op(PyObject *o); /* an op of torch.ops */
/* Are these tensors whose metadata a replay can compare with the recorded ones? */
bool cc_opaque_checkable(PyObject *result);
CcGo cc_opaque_op(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
/* Does the call set torch's own state, as one node? */
bool cc_opaque_sets(CcRec *rec, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
CcGo cc_opaque_set(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n);
bool cc_opaque_context(PyObject *o); /* the ctx that Function.apply makes for forward */
/* Whether autograd makes a node for a Function.apply of these operands. */
bool cc_opaque_differentiates(CcRec *rec, PyObject *const *in, int n);
/* Such a call as one node; its forward is pure (cc_kernel_pure). */
CcGo cc_opaque_apply(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames);
CcGo cc_opaque_apply_after(CcRec *rec, CcAct *act, PyObject *bound, PyObject *result);
CcGo cc_opaque_reduce(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n);

/* ---- callee.def, callee.c ---- */
typedef enum CcCalleeKind {
#define CC_CALLEE_KIND(id, ...) CC_CALLEE_##id,
#define CC_TRAIT(id, doc)
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
} CcCalleeKind;
typedef enum CcTrait {
#define CC_CALLEE_KIND(id, ...)
#define CC_TRAIT(id, doc) CC_TRAIT_##id,
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
} CcTrait;
typedef enum CcReads { CC_READS_NOTHING, CC_READS_BASES, CC_READS_ALL } CcReads;
typedef struct CcCallee {
    CcCalleeKind kind;
    CcReads reads;   /* which methods of its operands' classes it looks up */
    uint64_t traits; /* a bit each */
    const char *name;
} CcCallee;
static inline bool cc_callee_has(const CcCallee *callee, CcTrait trait) { return callee->traits >> trait & 1; }

/* A normalised call: the final callable, and a flat list of its arguments. */
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

/* ---- chance.c: Random._randbelow(n); CC_OK: it can't be drawn ahead ---- */
CcGo cc_chance_below(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c);

/* ---- ordered.c: sorted(items), list.sort() and max(items, key=f) of numbers that vary; CC_OK: C code does it ---- */
CC_MUST int cc_ordered_init(void);
CcGo cc_ordered_sort(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, bool in_place);
/* max: of max(), else of min() */
CcGo cc_ordered_pick(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, bool max);

/* ---- args.c: guards on the operands of a callable that has a row ---- */
typedef struct CcBuiltin {
    CcRec *rec;
    CcAct *act;
    CcEvent *ev; /* before it */
    CcCalled *c;
    const CcCallee *callee;
    PyObject *result; /* after the call; NULL: it raised */
} CcBuiltin;
/* distinct.c: the operands of a C function of callee.def, before it runs. */
void cc_distinct_call(const CcBuiltin *b);
/* What C code reads of its arguments, or of the items it iterates over: ALL: it compares, hashes or converts them;
 * KEYS: only the keys of pairs; ITEMS: it takes their items; TRUTH: their truth. */
typedef enum CcLooks { CC_LOOKS_NOT, CC_LOOKS_KEYS, CC_LOOKS_ITEMS, CC_LOOKS_TRUTH, CC_LOOKS_ALL } CcLooks;
CcLooks cc_args_looks(PyObject *callable);
/* The class that a call instantiates, or whose method it calls; NULL: neither. */
PyTypeObject *cc_args_class(PyObject *callable);
/* Finds arguments that C code calls: sorted(key=...), map(f, ...). Stores their indices. */
enum { CC_CALLBACKS = 4 };
int cc_args_callbacks(const CcBuiltin *b, int at[CC_CALLBACKS]);
bool cc_args_state(const CcBuiltin *b); /* guards state that it reads besides its arguments; false: no guard can */
CcGo cc_args_known(const CcBuiltin *b); /* each is known, and each hashed one is a constant */
/* Guards the operands from index `from` on, `depth` levels deep. */
CcGo cc_args_guard(const CcBuiltin *b, int from, int depth);
/* dict(pairs) and d.update(pairs) compare the keys with one another: makes them constants. False: a node computes one. */
bool cc_args_keys_known(CcRec *rec, PyObject *pairs);
CcGo cc_args_read(const CcBuiltin *b);     /* guards what it may read of their content */
void cc_args_hashed(const CcBuiltin *b);   /* they become keys of a set or dict, which compares them */
bool cc_args_computed(const CcBuiltin *b); /* one is or contains a number that a node computes */
/* Pins symbols among the operands, except those in a container of this trace and those put into one. False: a node
 * computes a number that C code reads. */
bool cc_args_moved(const CcBuiltin *b);
/* The call passes these arguments on to the C callable c->func. */
CcGo cc_args_before(const CcBuiltin *b);

/* ---- ev_builtin.c: calls of callables that have a row ---- */
CcGo cc_builtin_before(CcRec *rec, CcAct *act, CcEvent *ev, CcCalled *c, const CcCallee *callee);
CcGo cc_builtin_after(CcRec *rec, CcAct *act, CcCalled *c, const CcCallee *callee, PyObject *result);
/* The items that C code has moved from operand `with` into `self`, which is from outside: the operand of an effect.
 * NULL: no longer known. cc_builtin_will_take noted the list's size before. */
CC_BORROW PyObject *cc_builtin_taken(CcRec *rec, CcAct *act, PyObject *self, PyObject *with);
void cc_builtin_will_take(CcRec *rec, CcAct *act, PyObject *self);
CcGo cc_builtin_extends(CcRec *rec, CcAct *act, PyObject *list, PyObject *items); /* before list += items */
/* Python code that C code has called since the event began has written something: a replay would write twice. */
bool cc_builtin_stored(CcRec *rec, CcAct *act);

/* ---- given.c: special methods that C code looks up in classes of its operands ---- */
/* Guards all special methods of o's class, if Python code made the class, and the same for its content, `depth` levels
 * deep. */
void cc_given(CcRec *rec, PyObject *o, int depth);
void cc_given_event(CcRec *rec, const CcEvent *ev);
void cc_given_call(CcRec *rec, const CcCalled *c, const CcCallee *callee);
void cc_given_arguments(CcRec *rec, const CcCalled *c); /* of a callable without a row */
void cc_given_entered(CcRec *rec, const CcAct *act);    /* C code called this frame's function, as a special method */
/* The frame `act` returns this value to an event of `to`: guards what C code in between reads of it. */
CcGo cc_given_back(CcRec *rec, CcAct *to, const CcAct *act, PyObject *value);
/* C code checks o's class, or the classes in o: guards their bases. False: they can't be guarded. */
bool cc_given_class(CcRec *rec, PyObject *o, int depth);

CcCallee cc_callee_find(PyObject *callable);
/* the self of a bound builtin method or slot wrapper; else NULL */
CC_BORROW PyObject *cc_callee_self(PyObject *callable);
/* The descriptor from which such a callable was bound; it takes self as its first argument. NULL: not found. */
CC_BORROW PyObject *cc_callee_unbound(PyObject *callable);
/* The same for a builtin class method of a class, such as dict.fromkeys. */
CC_BORROW PyObject *cc_callee_class_method(PyObject *callable);
CC_MUST int cc_callee_init(void);
/* A C function of the recorder's own, which templates call. */
void cc_callee_add(PyObject *o, CcCalleeKind kind, const char *name);
/* Whether a Python function is recorded: all except functions of standard-library modules without a row in
 * library.def. */
bool cc_library_recorded(PyFunctionObject *func);
bool cc_library_node(PyFunctionObject *func);
bool cc_library_below(PyFunctionObject *func);
bool cc_library_transform(PyFunctionObject *func);
bool cc_library_device(PyFunctionObject *func);
bool cc_library_listed(PyFunctionObject *func);
bool cc_library_through(PyFunctionObject *func);
bool cc_library_wraps(PyFunctionObject *func);
bool cc_library_unbroken(const PyCodeObject *co); /* graph_break() does nothing in this function */
CcPure cc_library_pure(PyFunctionObject *func);
CC_MUST int cc_library_init(void);
/* torch.compiler.is_compiling and its kin: new reference to the answer, or NULL (no error): not an intrinsic. */
CC_NEW PyObject *cc_intrin_call(CcRec *rec, PyObject *callable, PyObject *const *in, int n, const CcAct *caller);
CC_MUST int cc_intrin_init(void);

/* ---- override.c: torch's functions under a default device ---- */
/* A call of has_torch_function(). CC_DONE: the default device's modes don't count. */
bool cc_override_asks(const CcTorch *t);
CcGo cc_override_before(CcRec *rec, const CcAct *act, CcEvent *ev, const CcCalled *c);
/* A call of torch.get_default_device(). CC_DONE: guards know the result. */
CcGo cc_override_device(CcRec *rec, const CcAct *act, CcEvent *ev, const CcCalled *c);

/* ---- scope.c: blocks of torch.inference_mode and torch.device ---- */
CC_MUST int cc_scope_init(void);
CcGo cc_scope_before(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t);
CcGo cc_scope_after(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t, PyObject *result);
bool cc_scope_made(const CcCallSpec *spec, PyObject *result); /* the C++ guard object of such a block */
/* only torch knows whether its results are inference tensors */
bool cc_scope_is_hosts(CcRec *rec, const CcCallSpec *spec, PyObject *result);

/* ---- transform.c: torch.func's transforms ---- */
/* CC_DONE: the call is a node; CC_OK: it can't be one. */
CcGo cc_transform_call(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c);
CcGo cc_transform_script(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c); /* torch.jit.ScriptFunction */

/* ---- warns.c: warnings.warn ---- */
CcGo cc_warns_before(const CcBuiltin *b);

/* ---- reshape.c: ops that change a tensor's own sizes and strides ---- */
CcGo cc_reshape_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, const CcTorch *t);

#endif
