/* guard: guard programs. A program is a list of sources in the order in which the trace read them. Each is reached from
 * an earlier one and has one check. A run is a single pass that stops at the first failure and runs no Python code.
 *
 *   ARG 0 --TYPE Net--> DICTOF --KEY "weight"--> TENSOR f32[8, 64]
 *
 * Programs hold strong references to strings, functions, types and constants, never to modules, user objects or
 * tensors. The values that a run reaches stay in the caller's array, from which plans and recipes take their inputs. */
#ifndef CC_GUARD_H
#define CC_GUARD_H

#include "../tens/tens.h"

typedef enum CcSource {
#define CC_SOURCE(id, reads, text) CC_SRC_##id,
#include "guard.def"
#undef CC_SOURCE
    CC_SRC_COUNT
} CcSource;

typedef enum CcCheck {
#define CC_CHECK(id, text) CC_CHK_##id,
#include "check.def"
#undef CC_CHECK
    CC_CHK_COUNT
} CcCheck;

typedef struct CcGuard {
    uint8_t source, check;
    bool owned; /* reading the source returns a new reference */
    bool grad;  /* TENSOR: requires_grad must match, too */
    /* TENSOR: bit per dim whose size may differ; if any is set, strides may differ, too */
    uint8_t dynamic;
    bool used; /* a plan or recipe reads the value, so a run keeps a reference to it */
    /* SLOT: index of the act in the chain; GENREFS: how many live slots of the generator reference the object */
    int16_t level;
    int32_t parent; /* -1: none */
    /* ARG, SLOT, ITEM: index; SIZE: expected size; REFS: how many live places reference the object; ADDRESS_KEY, HAS:
     * the source of the key; KEY_AT: its place */
    int32_t index;
    /* ALIAS, DISTINCT: the other source; ALONE: the number of references that the run itself holds; KEYS,
     * LAYOUT: 1: keys must be the same objects */
    int32_t other;
    PyObject *key;  /* strong: dict key, attribute name, descriptor, constant */
    PyObject *want; /* strong: expected object, value, type, key tuple */
    CcType *type;   /* TENSOR, owned */
} CcGuard;

typedef struct CcGuards {
    CC_VEC(CcGuard) g;
    CcMap index;          /* while building: hash of (source, parent, key, index) -> first guard with that hash */
    CC_VEC(int) chain;    /* next guard with the same hash; -1: none */
    CC_VEC(int) held;     /* after sealing: guards whose values a run keeps references to */
    struct CcMemo *memo;  /* memo.c; NULL: none yet */
    int passes, patience; /* successful runs until a memo is made; the next initial value of `passes` */
    int state_reads;      /* while building: number of requests for a STATE source, new or not */
    bool verify;          /* runs the whole program on a sample of the calls that the memo passes */
    bool specials;        /* it checks all special methods of a class, for which a memo needs a single word */
    bool *changing;       /* [guard] roots that differ from call to call; NULL: none known */
    /* 1 + the guard that failed last, which is checked first; runs that have passed since */
    int suspect, cleared;
} CcGuards;

/* Where a run starts: the call's arguments, or the chain of acts behind a break. */
typedef struct CcGuardState {
    PyObject *const *args;
    int n_args;
    CcAct *const *acts;
    int n_acts;
} CcGuardState;

/* The source with these operands; *is_new, unless NULL: it was added just now and has no check yet. key is borrowed. */
int cc_guard_source(CcGuards *gs, CcSource source, int parent, PyObject *key, int level, int index, bool *is_new);
int cc_guard_once(CcGuards *gs, CcSource source, int parent, PyObject *key, int index, CcCheck check, PyObject *want);
void cc_guard_check(CcGuards *gs, int id, CcCheck check, PyObject *want);
void cc_guard_alias(CcGuards *gs, int id, CcCheck check, int other);
void cc_guard_tensor(CcGuards *gs, int id, PyTypeObject *cls, const CcType *type, bool grad, unsigned dynamic);
/* Guards that no references to the source's value exist other than dead slots of the frames and `n` live places. */
void cc_guard_alone(CcGuards *gs, int id, int n);
/* Another check of a source that is a number: `number op want` (swapped: `want op number`) is `outcome`. */
void cc_guard_compare(CcGuards *gs, int id, int op, bool swapped, PyObject *want, bool outcome);
/* Another check of a source that already has one. */
int cc_guard_add_check(CcGuards *gs, int id, CcCheck check, PyObject *want, int other);
/* Ends building and frees the index. */
void cc_guard_seal(CcGuards *gs);
void cc_guard_free(CcGuards *gs);
int cc_guard_visit(const CcGuards *gs, visitproc visit, void *arg);

/* -1: all guards pass; gv[0 .. g.n) then has references to the values of `used` guards until cc_guard_release; other
 * entries may be unset. Else the index of a guard that failed, with all references dropped. Never sets an error. */
int cc_guard_run(CcGuards *gs, const CcGuardState *state, PyObject **gv);
/* Runs only the guard that failed last and those on its path: -1, or the guard that fails. Variants of a function
 * differ in a few guards behind many common ones; this way only the variant that fits checks the common ones. */
int cc_guard_run_suspect(const CcGuards *gs, const CcGuardState *state);
void cc_guard_release(const CcGuards *gs, PyObject **gv);
int cc_guard_steps(const CcGuards *gs); /* how many guards, or words of memory (memo.c), a run looks at */
/* ---- hint.c: sizes and numbers that differ between calls, to become symbols in the next recording ---- */
typedef struct CcHint {
    uint64_t path; /* cc_guard_path */
    uint8_t dims;  /* bit per dim of a tensor */
    bool number;   /* a number, or the length of a container */
    uint8_t items; /* path of all items of a sequence: how many differed, as numbers */
    uint8_t taken; /* calls whose recordings took it for a constant all the same, since C code reads it */
    uint64_t last; /* ... the last one */
} CcHint;
typedef struct CcHints {
    CC_VEC(CcHint) at;
    uint64_t call;      /* number of the call that records */
    bool all;           /* dynamic=True: all sizes above 1 of tensors reachable from arguments */
    bool none;          /* dynamic=False */
    bool constant;      /* a trace that drew ints had to make constants of all numbers: it draws none any more */
    bool fullgraph;     /* no instruction becomes a break because of what it reads */
    PyObject *declared; /* strong: dynamic={argument: marks}, or NULL; rec/sym.c describes marks */
} CcHints;
/* A hash of the path to a source, the same in every recording. `salt` identifies the program's starting point. */
uint64_t cc_guard_path(const CcGuards *gs, int id, uint64_t salt);
/* The same for a part of an object, which may not be a source yet: an item (index -1: any) or the length. */
uint64_t cc_guard_part_path(const CcGuards *gs, int parent, CcSource source, int index, uint64_t salt);
const CcHint *cc_hint_find(const CcHints *hints, uint64_t path); /* NULL: none */
/* Whether this number, or several items of the same sequence, differed. */
bool cc_hint_differs(const CcHints *hints, const CcGuards *gs, int id, uint64_t salt);
/* The same for a part that may not be a source yet: an item of a sequence, or (key != NULL) a dict's value. */
bool cc_hint_part_differs(const CcHints *hints, const CcGuards *gs, int parent, PyObject *key, int index,
                          uint64_t salt);
/* Counts a call whose recording takes this number for a constant (a loop around a break has many recordings in a call).
 * True: it differed after several such calls, so the next recording should rather break where it is read. */
bool cc_hint_taken(CcHints *hints, const CcGuards *gs, int id, uint64_t salt);
bool cc_hint_size_taken(CcHints *hints, const CcGuards *gs, int container, uint64_t salt); /* the same for its length */
void cc_hint_number(CcHints *hints, uint64_t path); /* makes the number at this path a symbol in the next recording */
/* Reruns a failed program and notes the sizes above 1 and the numbers that differ. False if anything else differs. */
bool cc_hint_learn(CcHints *hints, const CcGuards *gs, const CcGuardState *state, uint64_t salt);
/* A set's hash table for LAYOUT, as the tuple (size, finger, slot, member, slot, member ...), with Ellipsis for deleted
 * entries. NULL: out of memory. */
CC_NEW PyObject *cc_guard_layout(PyObject *set);
enum { CC_LAYOUT_HEAD = 2 };
/* Whether two numbers, strings ... of one exact built-in type are equal; floats and complex numbers compare by bits. */
bool cc_guard_same_value(PyObject *a, PyObject *b);
/* Whether v passes the guard's check; gv as in a run. */
bool cc_guard_holds(const CcGuard *g, PyObject *v, PyObject *const *gv);
CC_BORROW PyObject *cc_guard_read(const CcGuard *g, const CcGuardState *state, PyObject *const *gv);

/* special.c: the special methods that C code finds on a class, as a new tuple in the order of special.def. */
CC_NEW PyObject *cc_special_of(PyTypeObject *type);
bool cc_special_same(PyTypeObject *type, PyObject *want);
bool cc_special_listed(PyObject *name); /* whether special.def lists this interned name */

/* Text of a guard, such as "self.layers[0].weight is f32[8, 64] cpu". */
void cc_guard_text(const CcGuards *gs, int id, CcSbuf *out);
/* Text of its source's current value. */
void cc_guard_value_text(const CcGuards *gs, int id, const CcGuardState *state, CcSbuf *out);
void cc_guard_source_text(const CcGuards *gs, int id, CcSbuf *out); /* text of its source */

#endif
