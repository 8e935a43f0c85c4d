/* Hints for automatic dynamic shapes: everything is static first; if a guard fails because a size or number differs,
 * that one becomes symbolic in the next recording. Hints identify sources by path, since each recording numbers its
 * guards anew. */
#include "guard_int.h"

/* Strings and numbers by value: names that are not interned equal their interned twins, and a size in a key is another
 * object in each recording. Their hashes are constant within the process. */
static uint64_t key_word(PyObject *key) {
    if (key == NULL) return 0;
    if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyFloat_CheckExact(key))
        return (uint64_t)PyObject_Hash(key);
    if (!PyTuple_Check(key)) return (uintptr_t)key;
    uint64_t hash = (uint64_t)PyTuple_GET_SIZE(key);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++) {
        const uint64_t word = key_word(PyTuple_GET_ITEM(key, i));
        hash = cc_map_hash(&word, sizeof word, hash);
    }
    return hash;
}

uint64_t cc_guard_path(const CcGuards *gs, int id, uint64_t salt) {
    uint64_t hash = salt;
    for (; id >= 0; id = gs->g.at[id].parent) {
        const CcGuard *g = &gs->g.at[id];
        const uint64_t index =
            cc_guard_keyed(g) >= 0 ? cc_guard_path(gs, g->index, salt) : (uint64_t)(uint32_t)g->index;
        const uint64_t words[] = {g->source, key_word(g->key), (uint64_t)g->level, index};
        hash = cc_map_hash(words, sizeof words, hash);
    }
    return hash;
}

static uint64_t part_path(const CcGuards *gs, int parent, CcSource source, PyObject *key, int index, uint64_t salt) {
    const uint64_t words[] = {source, key_word(key), 0, (uint32_t)index};
    return cc_guard_path(gs, parent, cc_map_hash(words, sizeof words, salt));
}

uint64_t cc_guard_part_path(const CcGuards *gs, int parent, CcSource source, int index, uint64_t salt) {
    return part_path(gs, parent, source, NULL, index, salt);
}

enum {
    ANY = -1,
    SIBLINGS = 2, /* so many items of a sequence differed: all others are expected to */
    TAKEN = 4,    /* calls whose recordings may take a number for a constant: half of recompile_limit */
};

const CcHint *cc_hint_find(const CcHints *hints, uint64_t path) {
    for (int i = 0; i < hints->at.n; i++)
        if (hints->at.at[i].path == path) return &hints->at.at[i];
    return NULL;
}

static CcHint *find_or_add(CcHints *hints, uint64_t path) {
    for (int i = 0; i < hints->at.n; i++)
        if (hints->at.at[i].path == path) return &hints->at.at[i];
    cc_vec_push(&hints->at, (CcHint){.path = path});
    return &cc_vec_last(&hints->at);
}

/* The path of all items of the sequence in which this guard reads one; 0: it reads something else. */
static uint64_t siblings_path(const CcGuards *gs, int id, uint64_t salt) {
    const CcGuard *g = &gs->g.at[id];
    return g->source == CC_SRC_ITEM || g->source == CC_SRC_AT
               ? cc_guard_part_path(gs, g->parent, (CcSource)g->source, ANY, salt)
               : 0;
}

/* siblings: 0: there are none */
static bool differs(const CcHints *hints, uint64_t path, uint64_t siblings) {
    const CcHint *own = cc_hint_find(hints, path);
    if (own != NULL && own->number) return true;
    const CcHint *all = siblings != 0 ? cc_hint_find(hints, siblings) : NULL;
    return all != NULL && all->items >= SIBLINGS;
}

bool cc_hint_differs(const CcHints *hints, const CcGuards *gs, int id, uint64_t salt) {
    return hints->at.n > 0 && differs(hints, cc_guard_path(gs, id, salt), siblings_path(gs, id, salt));
}

bool cc_hint_part_differs(const CcHints *hints, const CcGuards *gs, int parent, PyObject *key, int index,
                          uint64_t salt) {
    if (hints->at.n == 0) return false;
    if (key != NULL) return differs(hints, part_path(gs, parent, CC_SRC_KEY, key, index, salt), 0);
    return differs(hints, cc_guard_part_path(gs, parent, CC_SRC_ITEM, index, salt),
                   cc_guard_part_path(gs, parent, CC_SRC_ITEM, ANY, salt));
}

static bool taken(CcHints *hints, uint64_t path) {
    CcHint *hint = find_or_add(hints, path);
    if (hint->last != hints->call) hint->taken += hint->taken < TAKEN;
    hint->last = hints->call;
    return hint->taken == TAKEN;
}

bool cc_hint_taken(CcHints *hints, const CcGuards *gs, int id, uint64_t salt) {
    return !hints->fullgraph && taken(hints, cc_guard_path(gs, id, salt));
}

bool cc_hint_size_taken(CcHints *hints, const CcGuards *gs, int container, uint64_t salt) {
    if (hints->fullgraph || hints->at.n == 0) return false;
    const uint64_t path = cc_guard_part_path(gs, container, CC_SRC_SIZE, ANY, salt);
    const CcHint *hint = cc_hint_find(hints, path);
    return hint != NULL && hint->number && taken(hints, path);
}

/* The dims whose sizes differ, provided that all of those are above 1 on both sides; 0 and 1 behave differently when
 * broadcast. */
static int changed_dims(const CcGuard *g, PyObject *v) {
    if (v == NULL) return 0;
    const int dims = cc_tens_resized(v, (PyTypeObject *)g->want, g->type, g->grad);
    if (dims <= 0) return 0;
    CcTensor t;
    cc_tens_read(v, false, &t);
    for (int d = 0; d < t.type.ndim; d++)
        if (dims >> d & 1 && (t.type.size[d] < 2 || g->type->size[d] < 2)) return 0;
    return dims;
}

static bool changed_number(const CcGuard *g, PyObject *v) {
    return v != NULL && Py_TYPE(v) == Py_TYPE(g->want) &&
           (PyLong_CheckExact(v) || PyFloat_CheckExact(v) || cc_known_number(Py_TYPE(v)));
}

/* The same for a torch.Size, whose items are numbers (a nested tensor's may be SymInts). */
static int changed_items(const CcGuard *g, PyObject *v) {
    const PyTypeObject *size = cc_tens_size_type();
    if (v == NULL || Py_TYPE(v) != size || Py_TYPE(g->want) != size) return 0;
    const Py_ssize_t n = PyTuple_GET_SIZE(v);
    if (n != PyTuple_GET_SIZE(g->want) || n > CC_MAX_DIMS) return 0;
    int dims = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *is = PyTuple_GET_ITEM(v, i), *was = PyTuple_GET_ITEM(g->want, i);
        if (!PyLong_CheckExact(is) || !PyLong_CheckExact(was)) return 0;
        if (PyObject_RichCompareBool(is, was, Py_NE) == 1) dims |= 1 << i; /* may exceed 64 bits */
    }
    return dims;
}

void cc_hint_number(CcHints *hints, uint64_t path) { find_or_add(hints, path)->number = true; }

static void learn_number(CcHints *hints, const CcGuards *gs, int id, uint64_t salt) {
    CcHint *hint = find_or_add(hints, cc_guard_path(gs, id, salt));
    if (hint->number) return;
    hint->number = true;
    const uint64_t path = siblings_path(gs, id, salt);
    CcHint *all = path != 0 ? find_or_add(hints, path) : NULL;
    if (all != NULL) all->items += all->items < SIBLINGS;
}

/* False: something other than a size or a number differs. The length of a container does not become a symbol. */
static bool learn(CcHints *hints, const CcGuards *gs, int id, PyObject *v, uint64_t salt) {
    const CcGuard *g = &gs->g.at[id];
    if (g->check == CC_CHK_SIZE && v != NULL)
        cc_hint_number(hints, cc_guard_part_path(gs, g->parent, CC_SRC_SIZE, ANY, salt));
    const int dims = g->check == CC_CHK_TENSOR  ? changed_dims(g, v)
                     : g->check == CC_CHK_VALUE ? changed_items(g, v)
                                                : 0;
    const bool number = g->check == CC_CHK_VALUE && changed_number(g, v);
    if (dims == 0 && !number) return false;
    find_or_add(hints, cc_guard_path(gs, id, salt))->dims |= (uint8_t)dims;
    if (number) learn_number(hints, gs, id, salt);
    return true;
}

bool cc_hint_learn(CcHints *hints, const CcGuards *gs, const CcGuardState *state, uint64_t salt) {
    PyObject **gv = cc_mem_get(((size_t)gs->g.n + 1) * sizeof *gv);
    int n = 0;
    bool ok = true, learnt = false;
    for (; ok && n < gs->g.n; n++) {
        const CcGuard *g = &gs->g.at[n];
        gv[n] = cc_guard_read(g, state, gv);
        if (g->used && !g->owned) Py_XINCREF(gv[n]);
        if (cc_guard_holds(g, gv[n], gv)) continue;
        ok = learn(hints, gs, n, gv[n], salt);
        learnt = learnt || ok;
    }
    cc_guard_release_to(gs, gv, n);
    free(gv);
    return ok && learnt;
}
