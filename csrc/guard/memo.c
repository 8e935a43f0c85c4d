/* Memos: the few words of memory that decide whether a guard program that has passed would pass again.
 *
 * Most of a program walks through dicts of modules. While a dict's version is unchanged, so are the values found in it;
 * while a type's version tag is unchanged, so are its attributes. Hence a guard is one of
 *
 *   FREE   implied by words: a dict's version, an instance's dict pointer, an object's type, a type's tag ...
 *   ROOT   an argument or a slot: read and checked first in each run; guards below it are FREE or PROBE only
 *          while it is the same object
 *   PROBE  read and checked in each run (a list item, a cell); guards below it are FREE only while it is the same object
 *   LIVE   read and checked last in each run
 *
 * Words are compared in the order in which guards reached them, so the words before it prove that each one's object
 * still exists. The memo keeps nothing alive: an object that died and another one at its address pass for the same only
 * if all words agree. An object without words of its own (a tuple, a bound method) is trusted while the dict that
 * references it is unchanged. If that dict has changed elsewhere (recheck), the value must be a tuple of constants,
 * which the memo does keep alive, or the memo is dropped.
 *
 * A dict that changed does not end a memo: the guards that read it are checked again, and its new version is stored. */
#include "guard_int.h"

typedef uint64_t __attribute__((may_alias)) Word;

enum { LIVE, FREE, PROBE, ROOT };
enum { STAGES = 12 }; /* the most probes on the path to a guard; guards behind more are LIVE */

typedef struct Dep { /* list of guards to check again when a version differs */
    int guard, next;
} Dep;

typedef struct Fact {
    const Word *at;
    uint64_t want;
} Fact;
typedef struct Tag {
    PyTypeObject *type;
    unsigned want;
    int dep;
} Tag;
typedef struct TensorFact {
    int guard;
    CcTensFingerprint mark;
} TensorFact;

struct CcMemo {
    PyObject **gv;     /* [guard] borrowed values */
    bool *child;       /* [guard] other guards are read from its value or compared with it */
    bool *trusted;     /* [guard] ... and assume that it is the same object */
    bool *pinned;      /* [guard] its value must be the same object as in gv */
    bool *late;        /* [guard] LIVE: what it is compared with may differ from gv's */
    CC_VEC(int) early; /* guards whose values a run copies to its gv first */
    CC_VEC(int) root, live;
    CC_VEC(int) take; /* guards other than LIVE ones whose values a run keeps references to */
    CC_VEC(Dep) dep;
    CC_VEC(int) probe;
    CC_VEC(Fact) fact;
    CC_VEC(int) fact_dep; /* first entry in dep; -1: a difference ends the memo */
    CC_VEC(Tag) tag;
    CC_VEC(TensorFact) tensor;
    int probe_to[STAGES], fact_to[STAGES], tag_to[STAGES], tensor_to[STAGES], stages;
    CC_VEC(const uint64_t *) watch;
    CC_VEC(PyObject *) keep; /* strong: tuples of constants */
    uint64_t hits;
    int running;
};

/* ------------------------------------------------------------------ building */

typedef struct Build {
    CcMemo *m;
    const CcGuards *gs;
    PyObject *const *gv;
    const bool *changing;
    uint8_t *mode, *stage;
    bool *steady;  /* [guard] the facts imply that it is the same object */
    CcMap fact_at; /* address -> fact */
    CcMap tag_at;
    CcMap version_at; /* dict -> fact */
    CC_VEC(uint8_t) fact_stage, tag_stage, tensor_stage, probe_stage;
} Build;

static int add_fact(Build *b, const void *at, uint64_t want, int stage) {
    const int64_t *known = cc_map_find(&b->fact_at, at);
    if (known != NULL && b->fact_stage.at[*known] <= stage) return (int)*known;
    cc_vec_push(&b->m->fact, (Fact){at, want});
    cc_vec_push(&b->m->fact_dep, -1);
    cc_vec_push(&b->fact_stage, (uint8_t)stage);
    cc_map_put(&b->fact_at, at, b->m->fact.n - 1);
    return b->m->fact.n - 1;
}

static void add_word(Build *b, const void *at, int stage) { add_fact(b, at, *(const Word *)at, stage); }

static int add_dep(CcMemo *m, int guard, int next) {
    cc_vec_push(&m->dep, (Dep){guard, next});
    return m->dep.n - 1;
}

/* Adds the dict's version, which implies `guard` (-1: none). */
static bool add_version(Build *b, PyObject *dict, int guard, int stage) {
    const int64_t *known = cc_map_find(&b->version_at, dict);
    int fact = known != NULL ? (int)*known : -1;
    if (fact < 0 || b->fact_stage.at[fact] > stage) {
        const uint64_t *version = cc_watch_begin(dict);
        if (version == NULL) return false;
        cc_vec_push(&b->m->watch, version);
        fact = add_fact(b, version, *version, stage);
        cc_map_put(&b->version_at, dict, fact);
    }
    if (guard >= 0) b->m->fact_dep.at[fact] = add_dep(b->m, guard, b->m->fact_dep.at[fact]);
    return true;
}

static bool add_tag(Build *b, PyTypeObject *type, int guard, int stage) {
    const int64_t *known = cc_map_find(&b->tag_at, type);
    int tag = known != NULL ? (int)*known : -1;
    if (tag < 0 || b->tag_stage.at[tag] > stage) {
        const unsigned version = cc_type_version(type);
        if (version == 0) return false;
        cc_vec_push(&b->m->tag, (Tag){type, version, -1});
        cc_vec_push(&b->tag_stage, (uint8_t)stage);
        tag = b->m->tag.n - 1;
        cc_map_put(&b->tag_at, type, tag);
    }
    b->m->tag.at[tag].dep = add_dep(b->m, guard, b->m->tag.at[tag].dep);
    return true;
}

/* Whether code can assign its __class__. */
static bool class_assignable(PyObject *o) { return (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(o); }

/* The type must be compared before any other word of the object. */
static void add_type(Build *b, PyObject *o, bool steady, int stage) {
    if (class_assignable(o) || !steady) add_word(b, &o->ob_type, stage);
}

/* Adds the instance's dict pointer. *dict NULL: it has no dict. */
static bool add_dict_pointer(Build *b, int parent, int stage, PyObject **dict) {
    PyObject *o = b->gv[parent], *const *at = cc_obj_dict_at(o);
    if (at == NULL) return false;
    add_type(b, o, b->steady[parent], stage);
    add_word(b, at, stage);
    *dict = *at;
    return true;
}

/* A guard's value, if it is a type that the program keeps alive. Tags are compared before the facts of their stage have
 * shown that the path to the type is unchanged, so any other type might be freed memory by then. */
static PyTypeObject *held_type(const CcGuard *g) {
    PyObject *o = g->source == CC_SRC_CONST ? g->key : g->check == CC_CHK_IDENT ? g->want : NULL;
    return o != NULL && PyType_Check(o) ? (PyTypeObject *)o : NULL;
}

/* Adds the words that imply the source of a guard whose parent is pinned. False: it must be read in each run. */
static bool imply_source(Build *b, int i, int stage) {
    const CcGuard *g = &b->gs->g.at[i];
    PyObject *parent = b->gv[g->parent], *dict;
    const bool steady = b->steady[g->parent];
    PyTypeObject *type;
    switch ((CcSource)g->source) {
    case CC_SRC_DICTOF:
        if (!add_dict_pointer(b, g->parent, stage, &dict) || dict == NULL || dict != b->gv[i]) return false;
        add_word(b, &dict->ob_type, stage);
        return add_version(b, dict, -1, stage);
    case CC_SRC_OWN: return add_dict_pointer(b, g->parent, stage, &dict) && dict == NULL;
    case CC_SRC_KEY_AT: return PyDict_CheckExact(parent) && add_version(b, parent, i, stage);
    case CC_SRC_KEY: return PyDict_Check(parent) && add_version(b, parent, i, stage);
    case CC_SRC_ADDRESS_KEY: return PyDict_Check(parent) && b->m->pinned[g->index] && add_version(b, parent, i, stage);
    case CC_SRC_TYPE: add_type(b, parent, steady, stage); return true;
    case CC_SRC_TLOOK:
        return (type = held_type(&b->gs->g.at[g->parent])) != NULL && steady && add_tag(b, type, i, stage);
    case CC_SRC_CLASS: return (type = held_type(&b->gs->g.at[g->parent])) != NULL && add_tag(b, type, i, stage);
    case CC_SRC_MRO:
        if ((type = held_type(&b->gs->g.at[g->parent])) == NULL) return false;
        add_word(b, &type->tp_mro, stage);
        return true;
    case CC_SRC_CACHED:
        if (steady) add_word(b, cc_cache_result_at(parent), stage);
        return steady;
    case CC_SRC_ITEM:
        if (!steady || !PyTuple_Check(parent)) return false;
        break;
    case CC_SRC_PROXIED:
    case CC_SRC_MSELF:
    case CC_SRC_MFUNC:
        if (!steady) return false;
        break;
    case CC_SRC_SIZE:
        if (PyTuple_Check(parent) && !steady) return false;
        if (!PyTuple_Check(parent)) return true;
        break;
    case CC_SRC_KEYS:
    case CC_SRC_FUNCTION: return true;
    default: return false;
    }
    b->m->trusted[g->parent] = true;
    return true;
}

static bool add_tensor(Build *b, int i, int stage) {
    TensorFact fact = {.guard = i};
    cc_tens_fingerprint(b->gv[i], &fact.mark);
    cc_vec_push(&b->m->tensor, fact);
    cc_vec_push(&b->tensor_stage, (uint8_t)stage);
    return true;
}

/* Adds the word with an object's length. Earlier words have shown that the object exists and has this type. */
static bool imply_size(Build *b, PyObject *v, int stage) {
    if (PyTuple_Check(v)) return true;
    if (PyDict_Check(v)) add_word(b, &((PyDictObject *)v)->ma_used, stage);
    else if (PyList_Check(v)) add_word(b, &((PyVarObject *)v)->ob_size, stage);
    else return false;
    return true;
}

/* Adds the words that imply the check of a guard whose value is implied. False: it must be made in each run. */
static bool imply_check(Build *b, int i, int stage) {
    const CcGuard *g = &b->gs->g.at[i];
    PyObject *v = b->gv[i];
    switch ((CcCheck)g->check) {
    case CC_CHK_NONE:
    case CC_CHK_IDENT:
    case CC_CHK_IS_NOT:
    case CC_CHK_VALUE:
    case CC_CHK_ANY:
    case CC_CHK_ABSENT:
    case CC_CHK_MRO:
    case CC_CHK_SPECIALS:
    case CC_CHK_COMPARE:
    case CC_CHK_METHOD: return true;
    case CC_CHK_ALIAS:
    case CC_CHK_DISTINCT: return b->m->pinned[g->other];
    case CC_CHK_TYPE:
        if (v != NULL) add_type(b, v, true, stage);
        return v != NULL;
    case CC_CHK_TENSOR: return g->dynamic == 0 && add_tensor(b, i, stage);
    case CC_CHK_SIZE: return imply_size(b, v, stage);
    case CC_CHK_KEYS: return PyDict_Check(v) && !PyODict_Check(v) && add_version(b, v, i, stage);
    case CC_CHK_FUNCTION: {
        PyFunctionObject *f = (PyFunctionObject *)v;
        if (!PyFunction_Check(v)) return false;
        add_word(b, &f->func_code, stage);
        add_word(b, &f->func_defaults, stage);
        add_word(b, &f->func_kwdefaults, stage);
        /* so that no other tuple gets its address; it holds constants, or objects that the program keeps alive anyway */
        if (PyTuple_GET_ITEM(g->want, 1) != Py_Ellipsis && f->func_defaults != NULL)
            cc_vec_push(&b->m->keep, Py_NewRef(f->func_defaults));
        return true;
    }
    case CC_CHK_ADDRESS:
    case CC_CHK_HOLDS: /* another instance of that class may get its address */
    case CC_CHK_EQUALSET:
    case CC_CHK_SCOPE:
    case CC_CHK_QUIET:
    case CC_CHK_LAYOUT:
    case CC_CHK_SUSPENDED:
    case CC_CHK_POSITION:
    case CC_CHK_ALONE:
    case CC_CHK_COUNT: break;
    }
    return false;
}

static bool is_instance(PyObject *o) {
    return o != NULL && (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !cc_tens_is(o) && !PyTuple_Check(o) &&
           !PyList_Check(o) && !PyDict_Check(o) && !PyAnySet_Check(o);
}

/* Whether a run has no value for `other` (-1: none) yet when it checks guards of this mode; for LIVE guards, whether
 * the value may have changed since the memo was made. */
static bool unavailable(const Build *b, int other, int mode) {
    if (other < 0) return false;
    return mode == LIVE ? !b->m->pinned[other] && b->mode[other] != ROOT
                        : b->mode[other] == LIVE || b->mode[other] == PROBE;
}

static bool needs_unavailable(const Build *b, const CcGuard *g, int mode) {
    return unavailable(b, cc_guard_compared(g), mode) || unavailable(b, cc_guard_keyed(g), mode);
}

/* Sets mode, stage, pinned and steady of a guard. */
static void place_guard(Build *b, int i) {
    const CcGuard *g = &b->gs->g.at[i];
    CcMemo *m = b->m;
    if (g->source == CC_SRC_CONST) {
        b->mode[i] = FREE;
        m->pinned[i] = b->steady[i] = imply_check(b, i, 0);
        if (!m->pinned[i]) b->mode[i] = LIVE;
        return;
    }
    if (g->source == CC_SRC_ARG || g->source == CC_SRC_SLOT) {
        b->mode[i] = ROOT;
        const bool deferred = needs_unavailable(b, g, ROOT);
        if (deferred) b->mode[i] = LIVE;
        m->pinned[i] = !deferred && m->child[i] && (b->changing == NULL || !b->changing[i]) &&
                       (is_instance(b->gv[i]) || g->check == CC_CHK_IDENT);
        b->steady[i] = m->pinned[i] && g->check == CC_CHK_IDENT; /* the program keeps it alive */
        return;
    }
    b->mode[i] = LIVE;
    if (g->parent < 0 || !m->pinned[g->parent] || g->owned) return;
    const int key = cc_guard_keyed(g), stage = CC_MAX(b->stage[g->parent], key < 0 ? 0 : b->stage[key]);
    if (needs_unavailable(b, g, LIVE)) return;
    const bool implied = imply_source(b, i, stage);
    b->stage[i] = (uint8_t)stage;
    if (implied && imply_check(b, i, stage)) {
        b->mode[i] = FREE;
        m->pinned[i] = true;
        const bool same = g->source == CC_SRC_SIZE || g->source == CC_SRC_KEYS || g->source == CC_SRC_FUNCTION;
        b->steady[i] = same ? b->steady[g->parent] : true;
        return;
    }
    if (!m->child[i] || needs_unavailable(b, g, PROBE) || stage + 1 >= STAGES) return;
    b->mode[i] = PROBE;
    b->stage[i] = (uint8_t)(stage + 1);
    m->pinned[i] = true;
    cc_vec_push(&m->probe, i);
    cc_vec_push(&b->probe_stage, (uint8_t)(stage + 1));
}

/* Lists the FREE guards whose values other guards read from or compare with; only the memo has those values. */
static void list_early(Build *b) {
    const CcGuards *gs = b->gs;
    bool *listed = cc_mem_get(((size_t)gs->g.n + 1) * sizeof *listed);
    for (int i = 0; i < gs->g.n; i++) {
        if (b->mode[i] == FREE) continue;
        const CcGuard *g = &gs->g.at[i];
        const int from[] = {g->parent, cc_guard_compared(g), cc_guard_keyed(g)};
        for (int k = 0; k < CC_COUNT(from); k++) {
            if (from[k] < 0 || listed[from[k]] || b->mode[from[k]] != FREE) continue;
            listed[from[k]] = true;
            cc_vec_push(&b->m->early, from[k]);
        }
    }
    free(listed);
}

static bool all_constants(PyObject *tuple) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *o = PyTuple_GET_ITEM(tuple, i);
        if (o != Py_None && !PyLong_CheckExact(o) && !PyFloat_CheckExact(o) && !PyBool_Check(o) &&
            !PyUnicode_CheckExact(o))
            return false;
    }
    return true;
}

static void list_guards(Build *b) {
    CcMemo *m = b->m;
    for (int i = 0; i < b->gs->g.n; i++) {
        const CcGuard *g = &b->gs->g.at[i];
        if (b->mode[i] == ROOT) cc_vec_push(&m->root, i);
        else if (b->mode[i] == LIVE) cc_vec_push(&m->live, i);
        m->late[i] = b->mode[i] == LIVE;
        if (g->used && b->mode[i] != LIVE) cc_vec_push(&m->take, i);
        if (m->trusted[i] && PyTuple_CheckExact(b->gv[i]) && all_constants(b->gv[i])) {
            cc_vec_push(&m->keep, Py_NewRef(b->gv[i]));
            m->trusted[i] = false;
        }
    }
    list_early(b);
}

/* Sorts an array by stage (stable); to[s]: one behind the last element of stage s. */
static void sort_by_stage(void *at, size_t size, int n, const uint8_t *stage, int stages, int *to) {
    char *from = cc_mem_get(size * (size_t)n), *out = at;
    if (n > 0) memcpy(from, at, size * (size_t)n);
    int done = 0;
    for (int s = 0; s < stages; s++) {
        for (int i = 0; i < n; i++)
            if (stage[i] == s) memcpy(out + size * (size_t)done++, from + size * (size_t)i, size);
        to[s] = done;
    }
    free(from);
}

static void sort_all(Build *b) {
    CcMemo *m = b->m;
    m->stages = 1;
    for (int i = 0; i < b->gs->g.n; i++) m->stages = CC_MAX(m->stages, b->stage[i] + 1);
    sort_by_stage(m->fact_dep.at, sizeof *m->fact_dep.at, m->fact_dep.n, b->fact_stage.at, m->stages, m->fact_to);
    sort_by_stage(m->fact.at, sizeof *m->fact.at, m->fact.n, b->fact_stage.at, m->stages, m->fact_to);
    sort_by_stage(m->tag.at, sizeof *m->tag.at, m->tag.n, b->tag_stage.at, m->stages, m->tag_to);
    sort_by_stage(m->tensor.at, sizeof *m->tensor.at, m->tensor.n, b->tensor_stage.at, m->stages, m->tensor_to);
    sort_by_stage(m->probe.at, sizeof *m->probe.at, m->probe.n, b->probe_stage.at, m->stages, m->probe_to);
}

CcMemo *cc_memo_new(const CcGuards *gs, PyObject *const *gv, const bool *changing) {
    const size_t n = (size_t)gs->g.n;
    CcMemo *m = cc_mem_get(sizeof *m);
    m->gv = cc_mem_get(sizeof *m->gv * n);
    memcpy(m->gv, gv, sizeof *gv * n);
    m->child = cc_mem_get(n);
    m->trusted = cc_mem_get(n);
    m->pinned = cc_mem_get(n);
    m->late = cc_mem_get(n);
    Build b = {.m = m,
               .gs = gs,
               .gv = m->gv,
               .changing = changing,
               .mode = cc_mem_get(n),
               .stage = cc_mem_get(n),
               .steady = cc_mem_get(n)};
    for (int i = 0; i < gs->g.n; i++) {
        const CcGuard *g = &gs->g.at[i];
        if (g->parent >= 0) m->child[g->parent] = true;
        if (cc_guard_compared(g) >= 0) m->child[g->other] = true;
        if (cc_guard_keyed(g) >= 0) m->child[g->index] = true;
    }
    for (int i = 0; i < gs->g.n; i++) place_guard(&b, i);
    list_guards(&b);
    sort_all(&b);
    cc_map_free(&b.fact_at);
    cc_map_free(&b.tag_at);
    cc_map_free(&b.version_at);
    cc_vec_free(&b.fact_stage);
    cc_vec_free(&b.tag_stage);
    cc_vec_free(&b.tensor_stage);
    cc_vec_free(&b.probe_stage);
    free(b.mode);
    free(b.stage);
    free(b.steady);
    return m;
}

void cc_memo_free(CcMemo *m) {
    if (m == NULL) return;
    for (int i = 0; i < m->watch.n; i++) cc_watch_end(m->watch.at[i]);
    for (int i = 0; i < m->keep.n; i++) Py_DECREF(m->keep.at[i]);
    cc_vec_free(&m->early);
    cc_vec_free(&m->root);
    cc_vec_free(&m->live);
    cc_vec_free(&m->take);
    cc_vec_free(&m->dep);
    cc_vec_free(&m->probe);
    cc_vec_free(&m->fact);
    cc_vec_free(&m->fact_dep);
    cc_vec_free(&m->tag);
    cc_vec_free(&m->tensor);
    cc_vec_free(&m->watch);
    cc_vec_free(&m->keep);
    free(m->gv);
    free(m->child);
    free(m->trusted);
    free(m->pinned);
    free(m->late);
    free(m);
}

uint64_t cc_memo_hits(const CcMemo *m) { return m->hits; }

int cc_memo_steps(const CcMemo *m) { return m->root.n + m->probe.n + m->fact.n + m->tag.n + m->tensor.n + m->live.n; }

bool cc_memo_running(const CcMemo *m) { return m->running > 0; }

/* ------------------------------------------------------------------ running */

enum { PASSED = -1 };

/* Whether words of the value imply its check (imply_check): those of another value are not among the facts. */
static bool has_words(const CcGuard *g, PyObject *v) {
    switch ((CcCheck)g->check) {
    case CC_CHK_TYPE: return v != NULL && class_assignable(v);
    case CC_CHK_SIZE:
    case CC_CHK_KEYS:
    case CC_CHK_FUNCTION: return true;
    default: return false;
    }
}

/* A dict or type has changed: checks the guards that read from it. */
static int recheck(CcMemo *m, const CcGuards *gs, const CcGuardState *state, int dep) {
    if (dep < 0) return CC_MEMO_MISS;
    for (; dep >= 0; dep = m->dep.at[dep].next) {
        const int id = m->dep.at[dep].guard;
        const CcGuard *g = &gs->g.at[id];
        if (m->late[id]) continue; /* this run will check it */
        PyObject *v = cc_guard_read(g, state, m->gv);
        if (!cc_guard_holds(g, v, m->gv)) return id;
        if (m->trusted[id] || (v != m->gv[id] && (m->child[id] || has_words(g, v)))) return CC_MEMO_MISS;
        m->gv[id] = v;
    }
    return PASSED;
}

static int run_facts(CcMemo *m, const CcGuards *gs, const CcGuardState *state, int from, int to) {
    for (int i = from; i < to; i++) {
        Fact *f = &m->fact.at[i];
        if (*f->at == f->want) continue;
        const int r = recheck(m, gs, state, m->fact_dep.at[i]);
        if (r != PASSED) return r;
        f->want = *f->at;
    }
    return PASSED;
}

static int run_tags(CcMemo *m, const CcGuards *gs, const CcGuardState *state, int from, int to) {
    for (int i = from; i < to; i++) {
        Tag *t = &m->tag.at[i];
        if (t->type->tp_version_tag == t->want) continue;
        const int r = recheck(m, gs, state, t->dep);
        if (r != PASSED) return r;
        t->want = cc_type_version(t->type);
        if (t->want == 0) return CC_MEMO_MISS;
    }
    return PASSED;
}

static int run_tensors(CcMemo *m, const CcGuards *gs, int from, int to) {
    for (int i = from; i < to; i++) {
        TensorFact *s = &m->tensor.at[i];
        const CcGuard *g = &gs->g.at[s->guard];
        PyObject *o = m->gv[s->guard];
        if (cc_tens_same_fingerprint(o, (PyTypeObject *)g->want, &s->mark)) {
            if (!g->grad || cc_tens_requires_grad(o) == g->type->requires_grad) continue;
            return s->guard;
        }
        if (!cc_guard_holds(g, o, m->gv)) return s->guard;
        if (s->mark.n > 0) cc_tens_fingerprint(o, &s->mark);
    }
    return PASSED;
}

/* Reads and checks a root or probe; a pinned one must be the same object as before. */
static int run_guard(CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv, int id) {
    const CcGuard *g = &gs->g.at[id];
    gv[id] = cc_guard_read(g, state, gv);
    if (!cc_guard_holds(g, gv[id], gv)) return id;
    return m->pinned[id] && gv[id] != m->gv[id] ? CC_MEMO_MISS : PASSED;
}

static int run_stages(CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv) {
    int r = PASSED;
    for (int s = 0, probe = 0, fact = 0, tag = 0, tensor = 0; s < m->stages; s++) {
        for (; probe < m->probe_to[s]; probe++)
            if ((r = run_guard(m, gs, state, gv, m->probe.at[probe])) != PASSED) return r;
        if ((r = run_tags(m, gs, state, tag, m->tag_to[s])) != PASSED) return r;
        if ((r = run_facts(m, gs, state, fact, m->fact_to[s])) != PASSED) return r;
        if ((r = run_tensors(m, gs, tensor, m->tensor_to[s])) != PASSED) return r;
        fact = m->fact_to[s];
        tag = m->tag_to[s];
        tensor = m->tensor_to[s];
    }
    return PASSED;
}

static void release(const CcMemo *m, const CcGuards *gs, PyObject **gv, int n_live) {
    for (int i = 0; i < m->take.n; i++) Py_CLEAR(gv[m->take.at[i]]);
    for (int i = 0; i < n_live; i++)
        if (gs->g.at[m->live.at[i]].owned || gs->g.at[m->live.at[i]].used) Py_CLEAR(gv[m->live.at[i]]);
}

static int run_live(const CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv) {
    for (int i = 0; i < m->take.n; i++) {
        const int id = m->take.at[i];
        if (m->pinned[id]) gv[id] = m->gv[id];
        Py_XINCREF(gv[id]);
    }
    for (int i = 0; i < m->live.n; i++) {
        const int id = m->live.at[i];
        const CcGuard *g = &gs->g.at[id];
        gv[id] = cc_guard_read(g, state, gv);
        if (g->used && !g->owned) Py_XINCREF(gv[id]);
        if (cc_guard_holds(g, gv[id], gv)) continue;
        release(m, gs, gv, i + 1);
        return id;
    }
    return PASSED;
}

static int run_all(CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv, int *changed) {
    for (int i = 0; i < m->early.n; i++) gv[m->early.at[i]] = m->gv[m->early.at[i]];
    for (int i = 0; i < m->root.n; i++) {
        const int r = run_guard(m, gs, state, gv, m->root.at[i]);
        if (r == PASSED) continue;
        if (r == CC_MEMO_MISS) *changed = m->root.at[i];
        return r;
    }
    const int r = run_stages(m, gs, state, gv);
    return r == PASSED ? run_live(m, gs, state, gv) : r;
}

int cc_memo_run(CcMemo *m, const CcGuards *gs, const CcGuardState *state, PyObject **gv, int *changed) {
    *changed = -1;
    m->running++;
    const int r = run_all(m, gs, state, gv, changed);
    m->running--;
    m->hits += r == PASSED;
    return r;
}
