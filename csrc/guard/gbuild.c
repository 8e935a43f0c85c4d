/* Builds guard programs: each source is added once; its check is set when the recorder learns about the value. */
#include "guard_int.h"

/* Strings, ints and tuples of them compare by value, so that an attribute name that is not interned equals its interned
 * twin, and a key that is created again equals the earlier one. Other keys compare by identity. */
static bool by_value(PyObject *key) {
    if (!PyTuple_CheckExact(key)) return PyUnicode_CheckExact(key) || PyLong_CheckExact(key);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
        if (!by_value(PyTuple_GET_ITEM(key, i))) return false;
    return true;
}

static uint64_t source_hash(CcSource source, int parent, PyObject *key, int level, int index) {
    const uint64_t k = key == NULL ? 0 : by_value(key) ? (uint64_t)PyObject_Hash(key) : (uint64_t)(uintptr_t)key;
    const uint64_t place = (uint64_t)source << 48 | (uint64_t)(uint16_t)level << 32 | (uint32_t)index;
    const uint64_t h = (k ^ place * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return (h ^ h >> 32 ^ (uint64_t)(uint32_t)parent << 1) | 1;
}

static bool same_key(PyObject *a, PyObject *b) {
    if (a == b) return true;
    return a != NULL && b != NULL && Py_IS_TYPE(a, Py_TYPE(b)) && by_value(a) && by_value(b) &&
           PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

static int append(CcGuards *gs, const CcGuard *guard, int next_in_chain) {
    cc_vec_push(&gs->g, *guard);
    cc_vec_push(&gs->chain, next_in_chain);
    return gs->g.n - 1;
}

static bool reads_state(CcSource source) {
    enum { FIXED, STATE };
    static const uint8_t reads[] = {
#define CC_SOURCE(id, reads, text) reads,
#include "guard.def"
#undef CC_SOURCE
    };
    return reads[source] == STATE;
}

int cc_guard_source(CcGuards *gs, CcSource source, int parent, PyObject *key, int level, int index, bool *is_new) {
    gs->state_reads += reads_state(source);
    const uint64_t hash = source_hash(source, parent, key, level, index);
    const void *slot = (const void *)(uintptr_t)hash;
    int64_t *head = cc_map_find(&gs->index, slot);
    for (int id = head != NULL ? (int)*head : -1; id >= 0; id = gs->chain.at[id]) {
        const CcGuard *g = &gs->g.at[id];
        if (g->source == source && g->parent == parent && g->level == level && g->index == index &&
            same_key(g->key, key)) {
            if (is_new != NULL) *is_new = false;
            return id;
        }
    }
    const CcGuard guard = {.source = (uint8_t)source,
                           .parent = parent,
                           .level = (int16_t)level,
                           .index = index,
                           .other = -1,
                           .key = Py_XNewRef(key)};
    const int id = append(gs, &guard, head != NULL ? (int)*head : -1);
    cc_map_put(&gs->index, slot, id);
    if (is_new != NULL) *is_new = true;
    return id;
}

int cc_guard_once(CcGuards *gs, CcSource source, int parent, PyObject *key, int index, CcCheck check, PyObject *want) {
    bool is_new;
    const int id = cc_guard_source(gs, source, parent, key, 0, index, &is_new);
    if (is_new) cc_guard_check(gs, id, check, want);
    return id;
}

void cc_guard_check(CcGuards *gs, int id, CcCheck check, PyObject *want) {
    CcGuard *g = &gs->g.at[id];
    g->check = (uint8_t)check;
    Py_XSETREF(g->want, Py_XNewRef(want));
}

void cc_guard_alias(CcGuards *gs, int id, CcCheck check, int other) {
    gs->g.at[id].check = (uint8_t)check;
    gs->g.at[id].other = other;
}

void cc_guard_alone(CcGuards *gs, int id, int n) {
    const CcGuard of = gs->g.at[id];
    const bool in_generator = of.source == CC_SRC_GENSLOT;
    const int refs = in_generator ? cc_guard_source(gs, CC_SRC_GENREFS, of.parent, NULL, n, of.index, NULL)
                                  : cc_guard_source(gs, CC_SRC_REFS, id, NULL, 0, n, NULL);
    cc_guard_alias(gs, refs, CC_CHK_ALONE, id);
}

void cc_guard_tensor(CcGuards *gs, int id, PyTypeObject *cls, const CcType *type, bool grad, unsigned dynamic) {
    CcGuard *g = &gs->g.at[id];
    g->check = CC_CHK_TENSOR;
    g->grad = grad;
    g->dynamic = (uint8_t)dynamic;
    Py_XSETREF(g->want, Py_NewRef((PyObject *)cls));
    if (g->type == NULL) g->type = cc_mem_get(sizeof *g->type);
    *g->type = *type;
}

int cc_guard_add_check(CcGuards *gs, int id, CcCheck check, PyObject *want, int other) {
    CcGuard guard = gs->g.at[id];
    guard.key = Py_XNewRef(guard.key);
    guard.want = Py_XNewRef(want);
    guard.type = NULL;
    guard.used = false;
    guard.check = (uint8_t)check;
    guard.other = other;
    return append(gs, &guard, -1);
}

void cc_guard_compare(CcGuards *gs, int id, int op, bool swapped, PyObject *want, bool outcome) {
    cc_guard_add_check(gs, id, CC_CHK_COMPARE, want, op | swapped << 4 | outcome << 5);
}

static void free_index(CcGuards *gs) {
    cc_map_free(&gs->index);
    cc_vec_free(&gs->chain);
}

/* Whether the value of guard `id` is, or was read from, what a DROPPED guard's list drops. */
static bool is_dropped(const CcGuards *gs, int id, const int *list, int n) {
    for (; id >= 0; id = gs->g.at[id].parent) {
        const CcGuard *g = &gs->g.at[id];
        for (int i = 0; i < n; i += 2)
            if (list[i] < 0 ? list[i + 1] == id
                            : g->source == CC_SRC_SLOT && g->level == list[i] && g->index == list[i + 1])
                return true;
    }
    return false;
}

/* Adds the references that the run itself holds by then to a DROPPED guard's list: it drops them, too. */
static void add_held(const CcGuards *gs, CcGuard *dropped) {
    const int *list = (const int *)PyBytes_AS_STRING(dropped->key);
    const int n = (int)(PyBytes_GET_SIZE(dropped->key) / (Py_ssize_t)sizeof *list);
    CC_VEC(int) all = {0};
    for (int i = 0; i < n; i++) cc_vec_push(&all, list[i]);
    for (int i = 0; i < gs->held.n; i++) {
        if (!is_dropped(gs, gs->held.at[i], list, n)) continue;
        cc_vec_push(&all, -1);
        cc_vec_push(&all, gs->held.at[i]);
    }
    PyObject *key;
    CC_RETRY_ALLOC(key, PyBytes_FromStringAndSize((const char *)all.at, (Py_ssize_t)sizeof *all.at * all.n));
    Py_SETREF(dropped->key, key);
    cc_vec_free(&all);
}

/* A memo only has the values of those guards of a DROPPED guard's list that are used. */
static void use_places(CcGuards *gs, const CcGuard *dropped) {
    const int *list = (const int *)PyBytes_AS_STRING(dropped->key);
    const int n = (int)(PyBytes_GET_SIZE(dropped->key) / (Py_ssize_t)sizeof *list);
    for (int i = 0; i < n; i += 2)
        if (list[i] < 0) gs->g.at[list[i + 1]].used = true;
}

void cc_guard_seal(CcGuards *gs) {
    for (int i = 0; i < gs->g.n; i++)
        if (gs->g.at[i].source == CC_SRC_DROPPED) use_places(gs, &gs->g.at[i]);
    for (int i = 0; i < gs->g.n; i++) {
        CcGuard *g = &gs->g.at[i];
        if (g->owned || g->used) cc_vec_push(&gs->held, i);
        if (g->check == CC_CHK_ALONE) g->other = gs->g.at[g->other].used;
        if (g->source == CC_SRC_DROPPED) add_held(gs, g);
        gs->specials = gs->specials || g->check == CC_CHK_SPECIALS;
    }
    free_index(gs);
}

void cc_guard_free(CcGuards *gs) {
    for (int i = 0; i < gs->g.n; i++) {
        Py_CLEAR(gs->g.at[i].key);
        Py_CLEAR(gs->g.at[i].want);
        free(gs->g.at[i].type);
    }
    cc_vec_free(&gs->g);
    cc_vec_free(&gs->held);
    cc_memo_free(gs->memo);
    free(gs->changing);
    free_index(gs);
}

int cc_guard_visit(const CcGuards *gs, visitproc visit, void *arg) {
    for (int i = 0; i < gs->g.n; i++) {
        Py_VISIT(gs->g.at[i].key);
        Py_VISIT(gs->g.at[i].want);
    }
    return 0;
}
