/* guard: guard programs. A program is a list of sources in the order in which the trace read them; each is reached from
 * an earlier one and has one check. Running it is a single pass that stops at the first failure: no Python code runs.
 *
 *   ARG 0 --TYPE Net--> DICTOF --KEY "weight"--> TENSOR f32[8, 64]
 *
 * Programs hold strong references to strings, functions, types and constants, never to modules' or users' instances or
 * tensors. The values that a run has reached stay in the caller's array: plans and recipes take their inputs from
 * it. */
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
    bool owned; /* running it makes a new reference */
    bool grad;  /* TENSOR: requires_grad counts */
    /* TENSOR: dims whose sizes may differ, a bit each; then strides may differ as well */
    uint8_t dynamic;
    bool used; /* a plan or recipe reads the value: a run holds a reference to it */
    /* SLOT: which act of the chain; GENREFS: how many slots of the generator that will be read hold the object */
    int16_t level;
    int32_t parent; /* -1: none */
    /* ARG, SLOT, ITEM: index; SIZE: expected size; REFS: how many places that will be read hold it; BY: the source of the key, a
     * tensor */
    int32_t index;
    /* ALIAS, DISTINCT: the other source; ALONE: how many references the run itself has; FALLS: its own number; KEYS, LAYOUT: 1, the keys are to
     * be the same objects */
    int32_t other;
    PyObject *key;  /* strong: dict key, attribute name, descriptor, constant */
    PyObject *want; /* strong: expected object, value, type, key tuple */
    CcType *type;   /* TENSOR, owned */
} CcGuard;

typedef struct CcGuards {
    CC_VEC(CcGuard) g;
    CcMap index;          /* hash of (source, parent, key, index) -> first guard with it; while building */
    CC_VEC(int) chain;    /* next guard of the same hash, -1 */
    CC_VEC(int) held;     /* guards whose values a run holds; sealed programs */
    struct CcMemo *memo;  /* memo.c; NULL: none (yet) */
    int passes, patience; /* passes until one is made; what that begins with next time */
    int asked;            /* while building: times that a source of STATE was asked for, new or not */
    bool verify;          /* what a memo passes is asked of the program itself now and then */
    bool classes;         /* it looks at all special methods of a class, which a memo knows by one word */
    bool *moving;         /* [guard] roots that are other objects from call to call; NULL: none is known */
    /* 1 + the guard that failed last, which is asked first; runs that passed since */
    int suspect, cleared;
} CcGuards;

/* Where a run starts from: arguments of the call, or the chain of acts after a break. */
typedef struct CcGuardState {
    PyObject *const *args;
    int n_args;
    CcAct *const *acts;
    int n_acts;
} CcGuardState;

/* The source with these operands; *is_new tells that it was added (without a check). key is borrowed. */
int cc_guard_source(CcGuards *gs, CcSource source, int parent, PyObject *key, int level, int index, bool *is_new);
void cc_guard_check(CcGuards *gs, int id, CcCheck check, PyObject *want);
void cc_guard_alias(CcGuards *gs, int id, CcCheck check, int other);
void cc_guard_tensor(CcGuards *gs, int id, PyTypeObject *cls, const CcType *type, bool grad, unsigned dynamic);
/* Nothing but the frames' slots, and `n` places that will be read, holds what the source gives. */
void cc_guard_alone(CcGuards *gs, int id, int n);
/* An additional check of a source that gives a number: (number `op` want) or, swapped, (want `op` number) is
 * `outcome`. */
void cc_guard_compare(CcGuards *gs, int id, int op, bool swapped, PyObject *want, bool outcome);
/* An additional check of an existing source that has one already. */
int cc_guard_also(CcGuards *gs, int id, CcCheck check, PyObject *want, int other);
/* Ends building: frees the index. */
void cc_guard_seal(CcGuards *gs);
void cc_guard_free(CcGuards *gs);
int cc_guard_visit(const CcGuards *gs, visitproc visit, void *arg);

/* Returns -1 when all hold, else the index of one that failed, with everything released. gv[0 .. g.n) then has the
 * values of those that are `used`, held until cc_guard_release; the others may be unset. Leaves no error set. */
int cc_guard_run(CcGuards *gs, const CcGuardState *state, PyObject **gv);
/* Asks the guard that failed last, and those on the way to it: -1, or the one that fails. Variants of one function
 * differ in few guards, behind all that they have in common: so that is looked at once, by the one that fits. */
int cc_guard_refuse(const CcGuards *gs, const CcGuardState *state);
void cc_guard_release(const CcGuards *gs, PyObject **gv);
int cc_guard_steps(const CcGuards *gs); /* what a run looks at: guards, or words of memory (memo.c) */
/* ---- hint.c: what differs from call to call, and so is to be symbolic in the next recording ---- */
typedef struct CcHint {
    uint64_t path; /* cc_guard_path */
    uint8_t dims;  /* a tensor's, a bit each */
    bool number;
} CcHint;
typedef struct CcHints {
    CC_VEC(CcHint) at;
    bool all;           /* dynamic=True: all sizes above 1 of tensors that arguments hold */
    bool none;          /* dynamic=False */
    PyObject *declared; /* strong: dynamic={argument: marks}, or NULL; marks as in rec/sym.c */
} CcHints;
/* How a source is reached, as a number that is the same in each recording. `salt`: where programs begin (a point). */
uint64_t cc_guard_path(const CcGuards *gs, int id, uint64_t salt);
/* The same of an item of a sequence, which need not be a source yet. */
uint64_t cc_guard_item_path(const CcGuards *gs, int parent, int index, uint64_t salt);
const CcHint *cc_hint_find(const CcHints *hints, uint64_t path); /* NULL: none */
void cc_hint_number(CcHints *hints, uint64_t path); /* the number there is to be a symbol in the next recording */
/* Runs a program that failed and notes the sizes above 1 and the numbers that differ, as long as nothing else does. */
bool cc_hint_learn(CcHints *hints, const CcGuards *gs, const CcGuardState *state, uint64_t salt);
/* What LAYOUT compares a set with: its table, as a tuple (size, finger, place, member, place, member ...), Ellipsis where a
 * member was taken out. NULL: no memory. */
CC_NEW PyObject *cc_guard_layout(PyObject *set);
enum { CC_LAYOUT_HEAD = 2 };
/* Equal numbers, strings ...: values of one exact built-in type; floats, real and complex ones by bits. */
bool cc_guard_same_value(PyObject *a, PyObject *b);
/* Whether the guard's check holds of v; gv as in a run. */
bool cc_guard_holds(const CcGuard *g, PyObject *v, PyObject *const *gv);
CC_BORROW PyObject *cc_guard_read(const CcGuard *g, const CcGuardState *state, PyObject *const *gv);

/* special.c: what C code finds on a class, in the order of special.def; a new tuple. */
CC_NEW PyObject *cc_special_of(PyTypeObject *type);
bool cc_special_same(PyTypeObject *type, PyObject *want);
bool cc_special_is(PyObject *name); /* an interned name of special.def */

/* Text of one guard, as "self.layers[0].weight is f32[8, 64] cpu". */
void cc_guard_text(const CcGuards *gs, int id, CcSbuf *out);
/* what its source gives now */
void cc_guard_now(const CcGuards *gs, int id, const CcGuardState *state, CcSbuf *out);
void cc_guard_source_text(const CcGuards *gs, int id, CcSbuf *out); /* its source alone */

#endif
