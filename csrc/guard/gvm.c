/* Runs guard programs: one pass that the first failure ends. Runs no Python code: dict keys are strings or other
 * objects whose hash and equality are C code, and compared values have exact built-in types. */
#include "guard_int.h"

/* What the getters of a function's __code__, __defaults__ and __kwdefaults__ give, without their audit events; NULL: it is
 * another descriptor. */
static PyObject *read_function(const PyFunctionObject *f, PyObject *descr) {
    if (!Py_IS_TYPE(descr, &PyGetSetDescr_Type) || ((PyDescrObject *)descr)->d_type != &PyFunction_Type) return NULL;
    PyObject *name = ((PyDescrObject *)descr)->d_name;
    PyObject *v = cc_text_is(name, "__code__")         ? f->func_code
                  : cc_text_is(name, "__defaults__")   ? f->func_defaults
                  : cc_text_is(name, "__kwdefaults__") ? f->func_kwdefaults
                                                       : (PyObject *)f;
    return v == (PyObject *)f ? NULL : Py_NewRef(v != NULL ? v : Py_None);
}

static PyObject *read_member(PyObject *descr, PyObject *object) {
    PyObject *part = PyFunction_Check(object) ? read_function((PyFunctionObject *)object, descr) : NULL;
    if (part != NULL) return part;
    PyObject *v = Py_TYPE(descr)->tp_descr_get(descr, object, (PyObject *)Py_TYPE(object));
    if (v == NULL) cc_raised_clear();
    return v;
}

/* A new function or partial gets its dict when code first asks for it, as functools.update_wrapper does. */
static PyObject *dict_of(const CcGuard *g, PyObject *o) {
    PyObject *dict = cc_obj_dict(o);
    if (dict != NULL || g->check != CC_CHK_TYPE || !cc_obj_may_have_dict(o)) return dict;
    dict = PyObject_GenericGetDict(o, NULL);
    if (dict == NULL) cc_raised_clear();
    Py_XDECREF(dict); /* the object holds it */
    return dict;
}

/* A negative index counts from the end. */
static PyObject *read_item(PyObject *sequence, int index) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(sequence), i = index < 0 ? index + n : index;
    return i >= 0 && i < n ? PySequence_Fast_GET_ITEM(sequence, i) : NULL;
}

static PyObject *read_key(PyObject *dict, PyObject *key) {
    PyObject *v = PyDict_GetItemWithError(dict, key);
    if (v == NULL && PyErr_Occurred()) cc_raised_clear();
    return v;
}

/* A dict's value for a key that is hashed and compared by its address: an object without __hash__ and __eq__ of its own, or
 * a tensor. Tensor.__hash__ is Python code, which guards don't run; it returns the hash of id(tensor), which is the address
 * itself, as for any int below 2**61 - 1. */
static PyObject *read_by_address(PyObject *dict, PyObject *key) {
    const hashfunc plain = PyBaseObject_Type.tp_hash;
    const Py_hash_t hash = Py_TYPE(key)->tp_hash == plain ? plain(key) : (Py_hash_t)(uintptr_t)key;
    PyObject *v = _PyDict_GetItem_KnownHash(dict, key, hash);
    if (v == NULL) cc_raised_clear();
    return v;
}

/* Whether such an object is a member of the set. NULL: its class has got a __hash__, or a member's comparison raised. */
static PyObject *read_has(PyObject *set, PyObject *item) {
    if (!PyAnySet_Check(set) || Py_TYPE(item)->tp_hash != PyBaseObject_Type.tp_hash) return NULL;
    const int has = PySet_Contains(set, item);
    if (has < 0) cc_raised_clear();
    return has < 0 ? NULL : has ? Py_True : Py_False;
}

static PyObject *read_key_at(PyObject *dict, int index) {
    PyObject *key = NULL;
    Py_ssize_t pos = 0;
    for (int i = 0; i <= index; i++)
        if (!PyDict_Next(dict, &pos, &key, NULL)) return NULL;
    return key;
}

/* A slot of a generator's frame; the parent's guard ensures that the slot exists. */
static PyObject *read_generator(PyObject *generator, int slot) {
    CcGen g;
    if (!cc_generator_read(generator, &g)) return NULL;
    return slot < 0 ? (PyObject *)g.func : cc_generator_get(&g, slot);
}

/* The object, if its only references are the g->index known places, those of the run, and dead slots of the frames. */
static PyObject *unshared(const CcGuard *g, const CcGuardState *state, PyObject *o) {
    Py_ssize_t others = Py_REFCNT(o) - g->index - g->other;
    for (int i = 0; i < state->n_acts && others > 0; i++)
        others -= cc_act_dead_refs(state->acts[i], i + 1 < state->n_acts, o);
    return others == 0 ? o : NULL;
}

/* The same for the object in a slot of a generator. */
static PyObject *generator_slot_unshared(const CcGuard *g, PyObject *generator) {
    CcGen gen;
    if (!cc_generator_read(generator, &gen)) return NULL;
    PyObject *o = cc_generator_get(&gen, g->index);
    int live = 0, dead = 0;
    for (int i = 0; i < gen.code->n_locals + gen.depth; i++) {
        if (cc_generator_get(&gen, i) != o) continue;
        if (cc_code_live(gen.code, gen.pc, i)) live++;
        else dead++;
    }
    return o != NULL && live == g->level && Py_REFCNT(o) == live + dead + g->other ? o : NULL;
}

/* Non-NULL if dropping the references listed in g->key would trigger no finalizer or weakref callback: those of slots
 * (level, slot), and those of the places of earlier guards, or of the run itself, to their values (-1, guard). */
static PyObject *dropped_quietly(const CcGuard *g, const CcGuardState *state, PyObject *const *gv) {
    const int *at = (const int *)PyBytes_AS_STRING(g->key);
    const int n = (int)(PyBytes_GET_SIZE(g->key) / (Py_ssize_t)(2 * sizeof *at));
    PyObject *few[16] = {NULL}, **dropped = n <= CC_COUNT(few) ? few : cc_mem_get(sizeof *dropped * (size_t)n);
    for (int i = 0; i < n; i++)
        dropped[i] = at[2 * i] < 0 ? gv[at[2 * i + 1]] : cc_act_get(state->acts[at[2 * i]], at[2 * i + 1]);
    const bool noticed = cc_obj_drop_notifies(dropped, n, g->index);
    if (dropped != few) free(dropped);
    return noticed ? NULL : Py_None;
}

/* want: code, unit, state */
static bool suspended_at(PyObject *generator, PyObject *want) {
    CcGen g;
    return generator != NULL && cc_generator_read(generator, &g) &&
           (PyObject *)g.code->co == PyTuple_GET_ITEM(want, 0) && g.unit == PyLong_AsLong(PyTuple_GET_ITEM(want, 1)) &&
           g.state == PyLong_AsLong(PyTuple_GET_ITEM(want, 2));
}

/* want: consumed, used, left */
static bool positioned_at(PyObject *iterator, PyObject *want) {
    CcIterator it;
    return cc_iterator_read(iterator, &it) && it.adjacent &&
           it.consumed == PyLong_AsSsize_t(PyTuple_GET_ITEM(want, 0)) &&
           it.used == PyLong_AsSsize_t(PyTuple_GET_ITEM(want, 1)) &&
           it.left == PyLong_AsSsize_t(PyTuple_GET_ITEM(want, 2));
}

/* A source's value; a new reference if g->owned. */
static PyObject *read_source(const CcGuard *g, const CcGuardState *state, PyObject *parent) {
    switch ((CcSource)g->source) {
    case CC_SRC_ARG: return state->args[g->index];
    case CC_SRC_SLOT: return cc_act_get(state->acts[g->level], g->index);
    case CC_SRC_FRAME: return (PyObject *)state->acts[g->index]->func;
    case CC_SRC_CONST: return g->key;
    case CC_SRC_DICTOF: return dict_of(g, parent);
    case CC_SRC_LOCAL: return cc_obj_local_dict(parent);
    case CC_SRC_PROXIED: return cc_obj_proxy_target(parent);
    case CC_SRC_KEY: return read_key(parent, g->key);
    case CC_SRC_OWN: { /* a tensor gets a dict only when it needs one */
        PyObject *dict = cc_obj_dict(parent);
        return dict != NULL ? read_key(dict, g->key) : NULL;
    }
    case CC_SRC_ITEM: return read_item(parent, g->index);
    case CC_SRC_CELL: return PyCell_GET(parent);
    case CC_SRC_TYPE: return (PyObject *)Py_TYPE(parent);
    case CC_SRC_TLOOK: return cc_type_lookup((PyTypeObject *)parent, g->key);
    case CC_SRC_MEMBER: return read_member(g->key, parent);
    case CC_SRC_MSELF: return PyMethod_Check(parent) ? PyMethod_GET_SELF(parent) : PyCFunction_GET_SELF(parent);
    case CC_SRC_MFUNC: return PyMethod_GET_FUNCTION(parent);
    case CC_SRC_CTXSET: return cc_obj_context_value(parent);
    case CC_SRC_CTXVAR: {
        PyObject *v = NULL;
        if (PyContextVar_Get(parent, NULL, &v) < 0) cc_raised_clear();
        return v;
    }
    case CC_SRC_CALL: {
        PyObject *v = PyObject_CallNoArgs(g->key); /* a C function that reads state, such as abc.get_cache_token */
        if (v == NULL) cc_raised_clear();
        return v;
    }
    case CC_SRC_REDUCE: {
        PyObject *v = cc_iterator_reduce(parent); /* only for builtin iterators and getters, so it is C code */
        if (v == NULL) cc_raised_clear();
        return v;
    }
    case CC_SRC_AT: {
        PyObject *v = PySequence_GetItem(parent, g->index); /* only for deques, so it is C code */
        if (v == NULL) cc_raised_clear();
        return v;
    }
    case CC_SRC_CONTAINER: return cc_iterator_container(parent);
    case CC_SRC_REF: return PyWeakref_CheckRef(parent) ? cc_weak_target(parent) : NULL;
    case CC_SRC_MRO: return ((PyTypeObject *)parent)->tp_mro;
    case CC_SRC_CACHED: return *cc_cache_result_at(parent);
    case CC_SRC_GENFUNC: return read_generator(parent, -1);
    case CC_SRC_GENSLOT: return read_generator(parent, g->index);
    case CC_SRC_REFS: return unshared(g, state, parent);
    case CC_SRC_GENREFS: return generator_slot_unshared(g, parent);
    case CC_SRC_DRAW: return NULL; /* eval/ahead.c draws once all guards have passed */
    case CC_SRC_KEY_AT: return PyDict_Check(parent) ? read_key_at(parent, g->index) : NULL;
    case CC_SRC_HAS:
    case CC_SRC_ADDRESS_KEY: /* cc_guard_read handles these */
    case CC_SRC_DROPPED:
    case CC_SRC_GEN:
    case CC_SRC_SIZE:
    case CC_SRC_KEYS:
    case CC_SRC_FUNCTION:
    case CC_SRC_CLASS:
    case CC_SRC_COUNT: return parent;
    }
    return NULL;
}

PyObject *cc_guard_read(const CcGuard *g, const CcGuardState *state, PyObject *const *gv) {
    if (g->source == CC_SRC_ADDRESS_KEY) return read_by_address(gv[g->parent], gv[g->index]);
    if (g->source == CC_SRC_HAS) return read_has(gv[g->parent], gv[g->index]);
    if (g->source == CC_SRC_DROPPED) return dropped_quietly(g, state, gv);
    return read_source(g, state, g->parent >= 0 ? gv[g->parent] : NULL);
}

static bool same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

/* Ranges that compare equal may have different attributes: range(0, 3, 2) and range(0, 4, 2). */
static bool same_range(PyObject *a, PyObject *b) {
    PyObject *const *x = cc_obj_range_parts(a), *const *y = cc_obj_range_parts(b);
    return cc_guard_same_value(x[0], y[0]) && cc_guard_same_value(x[1], y[1]) && cc_guard_same_value(x[2], y[2]);
}

/* numpy's float32 and float16 compare as doubles by bits, because zeros have signs. */
static bool same_as_float(PyObject *a, PyObject *b) {
    PyObject *x = PyNumber_Float(a), *y = PyNumber_Float(b);
    const bool same = x != NULL && y != NULL && same_bits(PyFloat_AS_DOUBLE(x), PyFloat_AS_DOUBLE(y));
    if (x == NULL || y == NULL) cc_raised_clear();
    Py_XDECREF(x);
    Py_XDECREF(y);
    return same;
}

/* Equal tuples may hold items of other types: (1, 2) and (True, 2.0). */
static bool same_items(PyObject *a, PyObject *b) {
    bool same = PyTuple_GET_SIZE(a) == PyTuple_GET_SIZE(b);
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(a); i++)
        same = cc_guard_same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
    return same;
}

/* Floats compare by bits, so that NaN equals itself and -0.0 differs from 0.0. */
bool cc_guard_same_value(PyObject *a, PyObject *b) {
    if (a == b) return true;
    if (a == NULL || Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PyFloat_Check(a)) /* includes numpy.float64 */
        return same_bits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    if (PyComplex_Check(a)) {
        const Py_complex x = ((PyComplexObject *)a)->cval, y = ((PyComplexObject *)b)->cval;
        return same_bits(x.real, y.real) && same_bits(x.imag, y.imag);
    }
    if (PyRange_Check(a)) return same_range(a, b);
    if (PyTuple_CheckExact(a)) return same_items(a, b);
    if (cc_known_is(a, CC_KNOWN_FLOAT32) || cc_known_is(a, CC_KNOWN_FLOAT16)) return same_as_float(a, b);
    const int eq = PyObject_RichCompareBool(a, b, Py_EQ);
    if (eq < 0) cc_raised_clear();
    return eq > 0;
}

/* Compares the built-in value of an instance of a subclass of int, float, str ..., bypassing an overridden __eq__. */
static bool holds_value(PyObject *o, PyObject *want) {
    if (o == NULL || !PyObject_TypeCheck(o, Py_TYPE(want))) return false;
    if (PyFloat_Check(want))
        return memcmp(&((PyFloatObject *)o)->ob_fval, &((PyFloatObject *)want)->ob_fval, sizeof(double)) == 0;
    if (PyComplex_Check(want))
        return memcmp(&((PyComplexObject *)o)->cval, &((PyComplexObject *)want)->cval, sizeof(Py_complex)) == 0;
    PyObject *equal = Py_TYPE(want)->tp_richcompare(o, want, Py_EQ);
    Py_XDECREF(equal); /* True is immortal */
    return equal == Py_True;
}

static Py_ssize_t size_of(PyObject *o) {
    if (PyDict_Check(o)) return PyDict_GET_SIZE(o);
    if (PyAnySet_Check(o)) return PySet_GET_SIZE(o);
    if (PyList_Check(o) || PyTuple_Check(o)) return Py_SIZE(o);
    const Py_ssize_t n = PyObject_Size(o);
    if (n < 0) cc_raised_clear();
    return n;
}

static bool same_key(PyObject *key, PyObject *want, bool identical) {
    return key == want || (!identical && cc_guard_same_value(key, want));
}

static bool same_order(PyObject *ordered, PyObject *keys, bool identical) {
    PyObject *list = cc_dict_keys(ordered);
    bool same = list != NULL && PyList_GET_SIZE(list) == PyTuple_GET_SIZE(keys);
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(keys); i++)
        same = same_key(PyList_GET_ITEM(list, i), PyTuple_GET_ITEM(keys, i), identical);
    Py_XDECREF(list);
    return same;
}

static bool same_keys(PyObject *dict, PyObject *keys, bool identical) {
    if (PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) return false;
    if (PyODict_Check(dict)) return same_order(dict, keys, identical);
    Py_ssize_t pos = 0, i = 0;
    PyObject *key;
    while (PyDict_Next(dict, &pos, &key, NULL))
        if (!same_key(key, PyTuple_GET_ITEM(keys, i++), identical)) return false;
    return true;
}

PyObject *cc_guard_layout(PyObject *set) {
    Py_ssize_t size, finger, place = 0;
    PyObject *member, *list = PyList_New(0);
    cc_set_table(set, &size, &finger);
    bool ok = list != NULL;
    const Py_ssize_t head[] = {size, finger};
    for (int i = 0; ok && i < CC_LAYOUT_HEAD; i++) {
        PyObject *number = PyLong_FromSsize_t(head[i]);
        ok = number != NULL && PyList_Append(list, number) == 0;
        Py_XDECREF(number);
    }
    for (; ok && cc_set_next(set, &place, &member); place++) {
        PyObject *number = PyLong_FromSsize_t(place);
        ok = number != NULL && PyList_Append(list, number) == 0 &&
             PyList_Append(list, member != NULL ? member : Py_Ellipsis) == 0;
        Py_XDECREF(number);
    }
    PyObject *layout = ok ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return layout;
}

static bool same_layout(PyObject *set, PyObject *want, bool identical) {
    if (set == NULL || !PyAnySet_Check(set)) return false;
    const Py_ssize_t n = PyTuple_GET_SIZE(want);
    Py_ssize_t size, finger, place = 0, i = CC_LAYOUT_HEAD;
    PyObject *member;
    cc_set_table(set, &size, &finger);
    if (size != PyLong_AsSsize_t(PyTuple_GET_ITEM(want, 0)) || finger != PyLong_AsSsize_t(PyTuple_GET_ITEM(want, 1)))
        return false;
    for (; cc_set_next(set, &place, &member); place++, i += 2) {
        if (i >= n || place != PyLong_AsSsize_t(PyTuple_GET_ITEM(want, i))) return false;
        if (!same_key(member != NULL ? member : Py_Ellipsis, PyTuple_GET_ITEM(want, i + 1), identical)) return false;
    }
    return i == n;
}

static bool same_constant(PyObject *a, PyObject *b) {
    return a == b ||
           ((PyLong_CheckExact(b) || PyFloat_CheckExact(b) || PyUnicode_CheckExact(b)) && cc_guard_same_value(a, b));
}

/* A nested function is made again for each call, and so is the tuple of its defaults. */
static bool same_defaults(PyObject *a, PyObject *want) {
    if (a == want) return true;
    if (want == Py_None || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(want)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(want); i++)
        if (!same_constant(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(want, i))) return false;
    return true;
}

/* want: code, defaults, defaults of keywords; None: has none, ...: other guards read them */
static bool same_function(PyObject *o, PyObject *want) {
    const PyFunctionObject *f = (PyFunctionObject *)o;
    PyObject *defaults = PyTuple_GET_ITEM(want, 1), *of_keywords = PyTuple_GET_ITEM(want, 2);
    return f->func_code == PyTuple_GET_ITEM(want, 0) &&
           (defaults == Py_Ellipsis ||
            (f->func_defaults ? same_defaults(f->func_defaults, defaults) : defaults == Py_None)) &&
           (of_keywords == Py_Ellipsis || (f->func_kwdefaults ? f->func_kwdefaults : Py_None) == of_keywords);
}

/* want: globals, builtins */
static bool same_scope(PyObject *o, PyObject *want) {
    const PyFunctionObject *f = (PyFunctionObject *)o;
    return f->func_globals == PyTuple_GET_ITEM(want, 0) && f->func_builtins == PyTuple_GET_ITEM(want, 1);
}

static bool equal_set(PyObject *o, PyObject *want) {
    const int eq = PyObject_RichCompareBool(o, want, Py_EQ);
    if (eq < 0) cc_raised_clear();
    return eq > 0;
}

static bool same_comparison(const CcGuard *g, PyObject *v) {
    if (v == NULL || !PyFloat_CheckExact(v)) return false;
    const bool swapped = g->other >> 4 & 1, outcome = g->other >> 5 & 1;
    const int is = PyObject_RichCompareBool(swapped ? g->want : v, swapped ? v : g->want, g->other & 15);
    if (is < 0) cc_raised_clear();
    return is >= 0 && is == outcome;
}

static bool same_tensor(const CcGuard *g, PyObject *v) {
    PyTypeObject *cls = (PyTypeObject *)g->want;
    if (g->dynamic == 0) return cc_tens_match(v, cls, g->type, g->grad);
    const int dims = cc_tens_resized(v, cls, g->type, g->grad);
    return dims >= 0 && (dims & ~g->dynamic) == 0;
}

bool cc_guard_holds(const CcGuard *g, PyObject *v, PyObject *const *gv) {
    switch ((CcCheck)g->check) {
    case CC_CHK_NONE:
    case CC_CHK_ALONE:
    case CC_CHK_QUIET: return v != NULL;
    case CC_CHK_IDENT: return v == g->want;
    case CC_CHK_ADDRESS: return v != NULL && PyLong_AsVoidPtr(g->want) == v;
    case CC_CHK_ALIAS: return v == gv[g->other];
    case CC_CHK_DISTINCT: return v != gv[g->other];
    case CC_CHK_TYPE: return v != NULL && (PyObject *)Py_TYPE(v) == g->want;
    case CC_CHK_VALUE: return cc_guard_same_value(v, g->want);
    case CC_CHK_HOLDS: return holds_value(v, g->want);
    case CC_CHK_TENSOR: return v != NULL && same_tensor(g, v);
    case CC_CHK_ANY: return true;
    case CC_CHK_ABSENT: return v == NULL;
    case CC_CHK_SIZE: return size_of(v) == g->index;
    case CC_CHK_KEYS: return same_keys(v, g->want, g->other == 1);
    case CC_CHK_FUNCTION: return same_function(v, g->want);
    case CC_CHK_EQUALSET: return equal_set(v, g->want);
    case CC_CHK_LAYOUT: return same_layout(v, g->want, g->other == 1);
    case CC_CHK_IS_NOT: return v != g->want;
    case CC_CHK_MRO: return v == g->want;
    case CC_CHK_SPECIALS: return cc_special_same((PyTypeObject *)v, g->want);
    case CC_CHK_COMPARE: return same_comparison(g, v);
    case CC_CHK_METHOD:
        return v != NULL && PyCFunction_Check(v) &&
               ((PyCFunctionObject *)v)->m_ml == ((PyMethodDescrObject *)g->want)->d_method;
    case CC_CHK_SCOPE: return same_scope(v, g->want);
    case CC_CHK_SUSPENDED: return suspended_at(v, g->want);
    case CC_CHK_POSITION: return positioned_at(v, g->want);
    case CC_CHK_COUNT: break;
    }
    return false;
}

/* ------------------------------------------------------------------ runs */

/* Programs with fewer than MEMO_MIN guards and without SPECIALS checks get no memo. After a memo that lasted fewer than
 * MEMO_PAYS runs, the wait for the next one doubles, up to MAX_PATIENCE runs. (Making a memo costs about as much as ten
 * runs without one.) A suspect is forgotten after FORGIVEN runs that passed. */
enum { MEMO_MIN = 8, MEMO_PAYS = 32, MAX_PATIENCE = 4096, FORGIVEN = 8, MAX_PATH = 40 };

void cc_guard_release_to(const CcGuards *gs, PyObject **gv, int upto) {
    for (int i = 0; i < gs->held.n && gs->held.at[i] < upto; i++) Py_CLEAR(gv[gs->held.at[i]]);
}

void cc_guard_release(const CcGuards *gs, PyObject **gv) { cc_guard_release_to(gs, gv, gs->g.n); }

int cc_guard_steps(const CcGuards *gs) { return gs->memo != NULL ? cc_memo_steps(gs->memo) : gs->g.n; }

static int run_whole(const CcGuards *gs, const CcGuardState *state, PyObject **gv) {
    for (int i = 0; i < gs->g.n; i++) {
        const CcGuard *g = &gs->g.at[i];
        gv[i] = cc_guard_read(g, state, gv);
        if (g->used && !g->owned) Py_XINCREF(gv[i]); /* an effect may drop a value that a later recipe needs */
        if (!cc_guard_holds(g, gv[i], gv)) {
            cc_guard_release_to(gs, gv, i + 1);
            return i;
        }
    }
    return -1;
}

static void forget_memo(CcGuards *gs, int changed) {
    if (changed >= 0 && gs->changing == NULL) gs->changing = cc_mem_get((size_t)gs->g.n * sizeof *gs->changing);
    if (changed >= 0) gs->changing[changed] = true;
    gs->patience = cc_memo_hits(gs->memo) >= MEMO_PAYS || changed >= 0 ? 1 : CC_MIN(2 * gs->patience, MAX_PATIENCE);
    gs->passes = gs->patience;
    cc_memo_free(gs->memo);
    gs->memo = NULL;
}

/* Under `verify`, the first VERIFIED runs that a memo passes, and then every VERIFIED_EACH-th, also run the whole
 * program. */
enum { VERIFIED = 16, VERIFIED_EACH = 32 };

static int verify_memo(CcGuards *gs, const CcGuardState *state, PyObject **gv) {
    const uint64_t hits = cc_memo_hits(gs->memo);
    if (!gs->verify || (hits > VERIFIED && hits % VERIFIED_EACH != 0)) return -1;
    cc_guard_release(gs, gv);
    const int failed = run_whole(gs, state, gv);
    if (failed < 0) return -1;
    CcSbuf text = {0};
    cc_guard_text(gs, failed, &text);
    cc_log_add(CC_LOG_VERIFY, "a memo passed although this guard fails: %s", cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    forget_memo(gs, -1);
    return failed;
}

static int run_program(CcGuards *gs, const CcGuardState *state, PyObject **gv) {
    if (gs->g.n < MEMO_MIN && !gs->specials) return run_whole(gs, state, gv);
    /* a finalizer called us during a run */
    if (gs->memo != NULL && cc_memo_running(gs->memo)) return run_whole(gs, state, gv);
    if (gs->memo != NULL) {
        int changed;
        const int r = cc_memo_run(gs->memo, gs, state, gv, &changed);
        if (r != CC_MEMO_MISS) return r < 0 ? verify_memo(gs, state, gv) : r;
        forget_memo(gs, changed);
    }
    const int failed = run_whole(gs, state, gv);
    if (failed >= 0 || --gs->passes > 0) return failed;
    if (gs->patience == 0) gs->patience = 1;
    gs->memo = cc_memo_new(gs, gv, gs->changing);
    return -1;
}

/* Whether a guard can be checked on its own: no guard on its path takes references or depends on another guard's
 * value. */
static bool independent(const CcGuards *gs, int id) {
    int n = 0;
    for (; id >= 0; id = gs->g.at[id].parent) {
        const CcGuard *g = &gs->g.at[id];
        if (g->owned || cc_guard_compared(g) >= 0 || cc_guard_keyed(g) >= 0 || g->check == CC_CHK_ALONE ||
            g->check == CC_CHK_QUIET || ++n > MAX_PATH)
            return false;
    }
    return true;
}

int cc_guard_run_suspect(const CcGuards *gs, const CcGuardState *state) {
    int path[MAX_PATH], n = 0;
    for (int id = gs->suspect - 1; id >= 0; id = gs->g.at[id].parent) path[n++] = id;
    PyObject *v = NULL;
    while (n-- > 0) {
        const CcGuard *g = &gs->g.at[path[n]];
        v = read_source(g, state, v);
        if (!cc_guard_holds(g, v, NULL)) return path[n];
    }
    return -1;
}

int cc_guard_run(CcGuards *gs, const CcGuardState *state, PyObject **gv) {
    const int failed = run_program(gs, state, gv);
    if (failed >= 0 && independent(gs, failed)) {
        gs->suspect = failed + 1;
        gs->cleared = 0;
    } else if (failed < 0 && gs->suspect > 0 && ++gs->cleared > FORGIVEN) {
        gs->suspect = 0;
    }
    return failed;
}
