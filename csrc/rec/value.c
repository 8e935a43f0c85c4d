/* Provenance: where each object of a region came from.
 *
 *              cc_value_read                 node result            built in the trace
 *   outside ------------------> SOURCE      ------------> VALUE    ------------------> FRESH
 *
 * Constants (numbers, strings, dtypes) need no entry: guards covered them where they were read. The map holds strong
 * references, so that an address identifies an object; tensors made by nodes are held weakly, so that a first call
 * needs no more memory than eager. */
#include "rec_int.h"

static bool annotation_type(const PyTypeObject *t) {
    return t == cc_known_type(CC_KNOWN_UNION) || t == &Py_GenericAliasType;
}

bool cc_value_annotation(PyObject *o) { return annotation_type(Py_TYPE(o)); }

/* an enum of torch: SDPBackend */
static bool pybind_enum(PyTypeObject *t) {
    static PyObject *entries;
    if (entries == NULL) entries = cc_obj_intern("__entries");
    return cc_known_is((PyObject *)t, CC_KNOWN_PYBIND_TYPE) && cc_type_lookup(t, entries) != NULL;
}

static bool typing_form(PyTypeObject *t) {
    PyTypeObject *base = cc_known_type(CC_KNOWN_TYPING_FORM);
    return cc_known_typing(t) || (base != NULL && PyType_IsSubtype(t, base));
}

/* Not tuples: they have an identity and may hold objects that are not constant. */
static bool constant_type(const PyTypeObject *t) {
    return t == Py_TYPE(Py_None) || t == &PyBool_Type || t == &PyLong_Type || t == &PyFloat_Type ||
           t == &PyUnicode_Type || t == &PyBytes_Type || t == &PyComplex_Type || t == &PyEllipsis_Type ||
           t == Py_TYPE(Py_NotImplemented) || t == &PyRange_Type || t == cc_tens_size_type() ||
           cc_tens_constant_type(t) || cc_known_number(t);
}

/* Members of enums live as long as their class. Checks the metaclass each time, because __class__ can be assigned. */
static bool identity_type(PyTypeObject *t) {
    return PyType_FastSubclass(t, Py_TPFLAGS_TYPE_SUBCLASS) || PyType_IsSubtype(t, &PyModule_Type) ||
           t == &PyFunction_Type || t == &PyMethodDescr_Type || t == &PyWrapperDescr_Type || t == &PyGetSetDescr_Type ||
           t == &PyMemberDescr_Type || t == &PyCode_Type || t == &PyProperty_Type || t == &PyClassMethod_Type ||
           t == &PyStaticMethod_Type || t == &PyClassMethodDescr_Type || t == &PyContextVar_Type || cc_cache_type(t) ||
           typing_form(t) || pybind_enum(t);
}

enum { CONSTANT = 1, IDENTITY = 2, BUILTIN = 4, NUMPY = 8, KEYS = 16, VALUES = 32, ITEMS = 64 };

static unsigned ask(PyTypeObject *t) {
    return (constant_type(t) ? CONSTANT : 0) | (identity_type(t) ? IDENTITY : 0) |
           (PyType_IsSubtype(t, &PyCFunction_Type) ? BUILTIN : 0) | (cc_known_number(t) ? NUMPY : 0) |
           (PyType_IsSubtype(t, &PyDictKeys_Type) ? KEYS : 0) | (PyType_IsSubtype(t, &PyDictValues_Type) ? VALUES : 0) |
           (PyType_IsSubtype(t, &PyDictItems_Type) ? ITEMS : 0);
}

static unsigned facts_of(PyObject *o) {
    static CcFacts facts = {.ask = ask};
    return cc_type_facts(&facts, Py_TYPE(o));
}

bool cc_value_numpy(PyObject *o) { return facts_of(o) & NUMPY; }

bool cc_value_copyable(PyObject *o) { return PyFloat_CheckExact(o) || PyUnicode_CheckExact(o) || cc_value_numpy(o); }

bool cc_value_const(PyObject *o) {
    return facts_of(o) & CONSTANT || (PyTuple_CheckExact(o) && PyTuple_GET_SIZE(o) == 0);
}

bool cc_value_consts(PyObject *o) {
    bool all = PyTuple_CheckExact(o);
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(o); i++) all = cc_value_consts(PyTuple_GET_ITEM(o, i));
    return all || cc_value_const(o);
}

bool cc_value_wraps(PyObject *o) {
    return Py_IS_TYPE(o, &PyProperty_Type) || Py_IS_TYPE(o, &PyClassMethod_Type) || Py_IS_TYPE(o, &PyStaticMethod_Type);
}

/* list[o] is the same object in each call only if o is. */
static bool annotates_with_same(PyObject *o) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__args__");
    PyObject *args = PyObject_GenericGetAttr(o, name); /* a slot: no code runs */
    bool same = args != NULL && PyTuple_CheckExact(args);
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(args); i++)
        same = cc_value_const(PyTuple_GET_ITEM(args, i)) || cc_value_ident(PyTuple_GET_ITEM(args, i));
    Py_XDECREF(args);
    if (args == NULL) cc_raised_clear();
    return same;
}

/* A member of an enum. Its metaclass may be a Python subclass of EnumMeta, unless that decides what a call gives: it may
 * make a new member each time. */
static bool enum_member(PyObject *o) {
    PyTypeObject *meta = Py_TYPE(Py_TYPE(o)), *base = meta != &PyType_Type ? cc_known_type(CC_KNOWN_ENUM_META) : NULL;
    if (base == NULL || meta == base) return base != NULL;
    static PyObject *call;
    if (call == NULL) call = cc_obj_intern("__call__");
    return PyType_IsSubtype(meta, base) && cc_type_lookup(meta, call) == cc_type_lookup(base, call);
}

bool cc_value_ident(PyObject *o) {
    const unsigned facts = facts_of(o);
    if (annotation_type(Py_TYPE(o))) return annotates_with_same(o);
    if (facts & IDENTITY || enum_member(o)) return true;
    if (!(facts & BUILTIN)) return false;
    PyObject *self = PyCFunction_GET_SELF(o);
    return self == NULL || PyModule_Check(self) || PyType_Check(self);
}

const PyTypeObject *cc_value_view(PyObject *o) {
    const unsigned facts = facts_of(o);
    return facts & KEYS     ? &PyDictKeys_Type
           : facts & VALUES ? &PyDictValues_Type
           : facts & ITEMS  ? &PyDictItems_Type
                            : NULL;
}

/* A C type without state of its own, whose instances object's tp_new makes: typing.Generic, from 3.12 on. */
static bool is_stateless(const PyTypeObject *t) {
    const PyTypeObject *base = t->tp_base;
    return base == &PyBaseObject_Type && t->tp_basicsize == base->tp_basicsize && t->tp_itemsize == 0 &&
           t->tp_dictoffset == 0 && t->tp_new == base->tp_new && t->tp_init == base->tp_init;
}

PyTypeObject *cc_value_base(PyTypeObject *t) {
    while (cc_python_class(t) || is_stateless(t)) t = t->tp_base;
    return t;
}

PyObject *cc_value_held(PyObject *o) {
    if (!cc_python_class(Py_TYPE(o))) return NULL;
    if (PyLong_Check(o)) return PyLong_Type.tp_as_number->nb_positive(o);
    if (PyFloat_Check(o)) return PyFloat_FromDouble(PyFloat_AS_DOUBLE(o));
    if (PyComplex_Check(o)) return PyComplex_FromCComplex(((PyComplexObject *)o)->cval);
    if (PyUnicode_Check(o)) return PyUnicode_FromObject(o);
    if (PyBytes_Check(o)) return PyBytes_FromStringAndSize(PyBytes_AS_STRING(o), PyBytes_GET_SIZE(o));
    return NULL;
}

bool cc_value_structseq(PyObject *o) {
    if (!PyTuple_Check(o) || PyTuple_CheckExact(o)) return false;
    return cc_obj_item(cc_type_dict(Py_TYPE(o)), "n_sequence_fields") != NULL;
}

static struct CcFound *found(CcRec *rec, const PyObject *o) {
    return &rec->found[((uintptr_t)o >> 4 ^ (uintptr_t)o >> 10) % CC_FOUND];
}

/* Counts the objects that each guard read and that provenance holds. */
static void count_read(CcRec *rec, const CcProv *p, int by) {
    if (p->origin != CC_O_SOURCE || p->weak != NULL) return;
    const void *key = (const void *)(intptr_t)(p->id + 1);
    int64_t *n = cc_map_find(&rec->read_by, key);
    if (n != NULL) *n += by;
    else cc_map_put(&rec->read_by, key, by);
}

void cc_value_drop(CcRec *rec, CcProv *p) {
    count_read(rec, p, -1);
    *found(rec, p->object) = (struct CcFound){0};
    rec->died = rec->died || (p->weak != NULL && p->origin == CC_O_SOURCE);
    cc_map_remove(&rec->by_object, p->object);
    PyObject *held = p->weak != NULL ? p->weak : p->object;
    p->object = p->weak = NULL;
    Py_DECREF(held);
}

/* Code in a handler gets the exception that was being handled when the trace began from sys.exc_info(), by a bare raise, or
 * as the context of another one. */
static CcProv *read_handled(CcRec *rec) {
    PyObject *exception = PySys_GetObject("exception");
    rec->handled_read = true;
    if (exception == NULL || !PyCFunction_Check(exception)) return NULL; /* what reads it is a break */
    cc_value_read(rec, CC_SRC_CALL, -1, exception, 0, 0, rec->handled_start);
    return cc_value_find(rec, rec->handled_start);
}

CcProv *cc_value_find(CcRec *rec, PyObject *o) {
    struct CcFound *f = found(rec, o);
    if (f->object != o) {
        const int64_t *at = cc_map_find(&rec->by_object, o);
        *f = (struct CcFound){o, at != NULL ? (int)*at + 1 : 0};
    }
    if (f->place == 0) {
        const bool handled = o != NULL && o == rec->handled_start && rec->trace != NULL && !rec->handled_read;
        return handled ? read_handled(rec) : NULL;
    }
    CcProv *p = &rec->prov.at[f->place - 1];
    if (p->weak != NULL && cc_weak_target(p->weak) != o) { /* the tensor was freed, and its address was reused */
        cc_value_drop(rec, p);
        return NULL;
    }
    return p;
}

CcOrigin cc_value_origin(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p != NULL) return p->origin;
    if (cc_value_const(o) || cc_value_ident(o)) return CC_O_CONST;
    return CC_O_UNKNOWN;
}

CcDirty cc_value_dirty_key(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    return p != NULL && p->origin == CC_O_SOURCE && p->dirty != CC_DIRTY_KNOWN ? (CcDirty)p->dirty : CC_DIRTY_NO;
}

bool cc_value_known(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    return p != NULL && p->origin == CC_O_SOURCE && p->dirty == CC_DIRTY_KNOWN;
}

CcDirty cc_value_dirty(CcRec *rec, PyObject *o) {
    const CcDirty d = cc_value_dirty_key(rec, o);
    if (d == CC_DIRTY_NO || !cc_inside_before(rec, cc_value_find(rec, o))) return d;
    cc_value_find(rec, o)->dirty = CC_DIRTY_KNOWN;
    return CC_DIRTY_NO;
}

void cc_value_will_write(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL || p->origin != CC_O_SOURCE || p->dirty != CC_DIRTY_NO) return;
    if (cc_value_tracked(o) && cc_finalizers_in_container(rec, o))
        return; /* a copy would keep objects alive that the write drops */
    PyObject *copy = PyList_CheckExact(o) ? PyList_GetSlice(o, 0, PyList_GET_SIZE(o))
                     : PyDict_CheckExact(o) || cc_known_is(o, CC_KNOWN_DEFAULTDICT) ? PyDict_Copy(o)
                     : PySet_CheckExact(o)                                          ? cc_guard_layout(o)
                     : cc_known_is(o, CC_KNOWN_DEQUE)                               ? PySequence_List(o)
                                                                                    : NULL;
    if (copy == NULL) {
        cc_raised_clear();
        return;
    }
    cc_vec_push(&rec->keep, copy);
    for (int i = 0; i < rec->before.n; i++)
        if (rec->before.at[i].object == o) {
            rec->before.at[i].copy = copy;
            return;
        }
    cc_vec_push(&rec->before, (struct CcBefore){o, copy});
}

bool cc_value_tracked(PyObject *o) {
    return PyList_CheckExact(o) || PyDict_CheckExact(o) || cc_known_is(o, CC_KNOWN_DEFAULTDICT) ||
           PySet_CheckExact(o) || cc_known_is(o, CC_KNOWN_DEQUE);
}

void cc_value_wrote(CcRec *rec, PyObject *o, CcDirty how) {
    CcProv *p = cc_value_find(rec, o);
    if (p != NULL) p->dirty = CC_MAX(p->dirty, how);
}

CcProv *cc_value_set(CcRec *rec, PyObject *o, CcOrigin origin, int id) {
    CcProv *p = cc_value_find(rec, o);
    const bool was_loose = p != NULL && cc_value_loose(p);
    if (p != NULL) count_read(rec, p, -1);
    if (p == NULL) {
        PyObject *weak = NULL;
        /* An object with a finaliser (a generator, a class with __del__) must be finalised where eager does it. */
        const bool finalised = origin == CC_O_FRESH && cc_finalizers_has(o);
        rec->made_finals = rec->made_finals || (finalised && !PyGen_CheckExact(o));
        if (finalised || (origin == CC_O_SOURCE && cc_finalizers_has(o)) ||
            (origin == CC_O_VALUE && cc_tens_is(o) && !rec->keep_tensors)) {
            weak = PyWeakref_NewRef(o, NULL);
            if (weak == NULL) cc_raised_clear();
        }
        if (weak == NULL) Py_INCREF(o);
        /* of an int, tuple or bytes: only checks at each event tell when everyone else has dropped it */
        if (weak == NULL && cc_finalizers_has(o)) cc_vec_push(&rec->unweak, o);
        cc_vec_push(&rec->prov, (CcProv){.object = o, .weak = weak, .finalised = PyObject_GC_IsFinalized(o)});
        p = &cc_vec_last(&rec->prov);
        cc_map_put(&rec->by_object, o, rec->prov.n - 1);
        *found(rec, o) = (struct CcFound){o, rec->prov.n};
    }
    if (origin == CC_O_SOURCE && p->origin != CC_O_SOURCE && cc_tens_is(o))
        cc_vec_push(&rec->outside, (int)(p - rec->prov.at));
    p->origin = (uint8_t)origin;
    if (cc_value_loose(p) && !was_loose) cc_vec_push(&rec->loose, (int)(p - rec->prov.at));
    p->id = id;
    count_read(rec, p, 1);
    return p;
}

void cc_value_fresh(CcRec *rec, PyObject *o) {
    if (o == NULL || cc_value_const(o) || cc_value_find(rec, o) != NULL) return;
    const bool made = PyFunction_Check(o) || (cc_value_wraps(o) && Py_REFCNT(o) == 1);
    if (cc_value_ident(o) && !made) return;
    CcProv *p = cc_value_set(rec, o, CC_O_FRESH, -1);
    if (rec->frame.n > 0) {
        const CcAct *act = cc_vec_last(&rec->frame).act;
        p->site_co = act->co;
        p->site_pc = act->pc;
    }
}

void cc_value_clear(CcRec *rec) {
    cc_map_free(&rec->by_object);
    cc_map_free(&rec->read_by);
    memset(rec->found, 0, sizeof rec->found);
    while (rec->prov.n > 0) {
        CcProv p = rec->prov.at[--rec->prov.n];
        if (p.object != NULL) Py_DECREF(p.weak != NULL ? p.weak : p.object);
    }
    rec->loose.n = rec->unweak.n = rec->leaves = 0;
    while (rec->keep.n > 0) Py_DECREF(rec->keep.at[--rec->keep.n]);
}

/* ------------------------------------------------------------------ reads from outside */

int cc_value_const_source(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p != NULL && p->origin == CC_O_SOURCE) return p->id;
    if (rec->trace == NULL) return -1;
    bool is_new;
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_CONST, -1, o, 0, 0, &is_new);
    if (is_new && cc_mutable_class(Py_TYPE(o))) /* the same object may get another class */
        cc_guard_check(&rec->trace->guards, id, CC_CHK_TYPE, (PyObject *)Py_TYPE(o));
    if (p == NULL) cc_value_set(rec, o, CC_O_SOURCE, id);
    return id;
}

int cc_value_source(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p != NULL) return p->origin == CC_O_SOURCE ? p->id : -1;
    return cc_value_ident(o) ? cc_value_const_source(rec, o) : -1;
}

/* Sets a new source's check according to the object it gave. */
static void learn(CcRec *rec, int id, PyObject *v) {
    CcGuards *gs = &rec->trace->guards;
    if (v == NULL) {
        cc_guard_check(gs, id, CC_CHK_ABSENT, NULL);
        return;
    }
    CcProv *p = cc_value_find(rec, v);
    if (p != NULL &&
        (p->origin == CC_O_FRESH || p->origin == CC_O_VALUE || p->origin == CC_O_EFFECT || p->origin == CC_O_SYMBOL)) {
        rec->unseen = true; /* C code stored it there, and no guard can tell whether it will do so again */
        return;
    }
    if (p != NULL && p->origin == CC_O_SOURCE && gs->g.at[p->id].source != CC_SRC_CONST) {
        if (p->id != id) cc_guard_alias(gs, id, CC_CHK_ALIAS, p->id);
        return;
    }
    if (p != NULL && p->origin == CC_O_SOURCE && id != p->id) { /* another path to a constant of the trace */
        cc_guard_check(gs, id, CC_CHK_IDENT, v);
        return;
    }
    if (cc_value_const(v)) {
        if (cc_sym_wanted(rec, id, v)) return;
        cc_guard_check(gs, id, cc_same_asked(rec, v) ? CC_CHK_IDENT : CC_CHK_VALUE, v);
        return;
    }
    if (cc_resume_function(rec, id, v) || cc_resume_wrapper(rec, id, v)) return;
    if (cc_value_ident(v)) {
        cc_guard_check(gs, id, CC_CHK_IDENT, v);
        return;
    }
    if (cc_tens_plain(v)) {
        CcTensor t;
        cc_tens_read_as(v, true, cc_mode_inference(&rec->mode), &t); /* as the guard reads it */
        if (!cc_tens_matchable(&t.type)) { /* no guard can describe it: using it is a break, passing it on is not */
            const int64_t *same = cc_map_find(&rec->handed, v);
            if (same != NULL) {
                cc_guard_alias(gs, id, CC_CHK_ALIAS, (int)*same);
                return;
            }
            cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)Py_TYPE(v));
            cc_map_put(&rec->handed, v, id);
            cc_vec_push(&rec->keep, Py_NewRef(v));
            return;
        }
        const unsigned dims = cc_sym_dims(rec, id, v, &t.type);
        cc_guard_tensor(gs, id, Py_TYPE(v), &t.type, cc_mode_grad(&rec->mode), dims);
        if (dims != 0) cc_sym_resized(rec, id, v);
    } else {
        cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)Py_TYPE(v));
        PyObject *held = cc_value_held(v); /* C code reads it unseen */
        if (held != NULL) cc_guard_add_check(gs, id, CC_CHK_HOLDS, held, -1);
        Py_XDECREF(held);
    }
    if (p == NULL) cc_value_set(rec, v, CC_O_SOURCE, id);
}

/* Reading this source gives a new reference. */
static bool owned(CcSource source) {
    return source == CC_SRC_MEMBER || source == CC_SRC_AT || source == CC_SRC_CALL || source == CC_SRC_CTXVAR ||
           source == CC_SRC_CTXSET || source == CC_SRC_REDUCE;
}

int cc_value_read(CcRec *rec, CcSource source, int parent, PyObject *key, int level, int index, PyObject *v) {
    if (rec->trace == NULL) return -1; /* a lookup has called a key's __eq__, which ended the recording */
    bool is_new;
    const int asked = rec->trace->guards.state_reads;
    const int id = cc_guard_source(&rec->trace->guards, source, parent, key, level, index, &is_new);
    if (source == CC_SRC_KEY) cc_same_met(rec, key);
    cc_kernel_read(rec, asked, source, v);
    if (is_new) {
        rec->trace->guards.g.at[id].owned = owned(source);
        if (v != NULL) cc_traceback_read(rec, v);
        learn(rec, id, v);
    } else if (v != NULL) {
        (void)cc_sym_wanted(rec, id, v);
    }
    return id;
}

int cc_value_read_member(CcRec *rec, int parent, PyTypeObject *type, const char *name, PyObject *v) {
    PyObject *s = cc_obj_intern(name);
    const int id = cc_value_read(rec, CC_SRC_MEMBER, parent, cc_type_lookup(type, s), 0, 0, v);
    Py_DECREF(s);
    return id;
}

bool cc_value_by_address(PyObject *o) {
    return cc_python_class(Py_TYPE(o)) && !cc_tens_is(o) && cc_value_compares_as(o, &PyBaseObject_Type) &&
           !cc_value_const(o) && !cc_value_ident(o);
}

bool cc_value_found_by_address(CcRec *rec, PyObject *dict, PyObject *key) {
    if (!(cc_tens_plain(key) || cc_value_by_address(key)) || !PyDict_Check(dict) || cc_python_class(Py_TYPE(dict)))
        return false;
    return cc_value_source(rec, key) >= 0 && cc_value_source(rec, dict) >= 0 && !cc_value_dirty(rec, dict);
}

int cc_value_read_key(CcRec *rec, int parent, PyObject *key, PyObject *v) {
    return cc_tens_is(key) || (cc_value_by_address(key) && cc_value_source(rec, key) >= 0)
               ? cc_value_read(rec, CC_SRC_ADDRESS_KEY, parent, NULL, 0, cc_value_source(rec, key), v)
               : cc_value_read(rec, CC_SRC_KEY, parent, key, 0, 0, v);
}

PyObject *cc_value_guard_call(CcRec *rec, PyObject *function) {
    PyObject *answer = PyObject_CallNoArgs(function);
    if (answer != NULL) cc_value_read(rec, CC_SRC_CALL, -1, function, 0, 0, answer);
    else cc_raised_clear();
    return answer;
}

void cc_value_guard_module_call(CcRec *rec, const char *module, const char *function) {
    PyObject *f = cc_obj_of_module(module, function);
    if (f != NULL) Py_XDECREF(cc_value_guard_call(rec, f));
    Py_XDECREF(f);
}

void cc_value_met_const(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    CcGuards *gs = &rec->trace->guards;
    if (p == NULL) cc_value_const_source(rec, o);
    else if (p->origin == CC_O_SOURCE && gs->g.at[p->id].source != CC_SRC_CONST &&
             gs->g.at[p->id].check != CC_CHK_IDENT)
        cc_guard_add_check(gs, p->id, CC_CHK_IDENT, o, -1); /* a caller has passed the same tuple */
}

void cc_value_which(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL || PyTuple_CheckExact(o)) cc_same_which(rec, o); /* a tuple may be a dict's key as well */
    if (p == NULL || p->origin != CC_O_SOURCE || rec->trace == NULL) return;
    CcGuards *gs = &rec->trace->guards;
    const CcGuard *g = &gs->g.at[p->id];
    if (g->source == CC_SRC_CONST || g->check == CC_CHK_IDENT) return;
    const void *told = (const void *)(((uintptr_t)p->id << 32 | (uintptr_t)p->id) + 1);
    PyObject *address;
    CC_RETRY_ALLOC(address, PyLong_FromVoidPtr(o));
    if (cc_map_find(&rec->distinct, told) == NULL) cc_guard_add_check(gs, p->id, CC_CHK_ADDRESS, address, -1);
    cc_map_put(&rec->distinct, told, 1);
    Py_DECREF(address);
}

void cc_value_function_written(CcRec *rec) {
    for (int i = 0; i < rec->prov.n; i++) {
        PyObject *o = rec->prov.at[i].weak == NULL ? rec->prov.at[i].object : NULL; /* a weak one may be dead */
        if (o != NULL && PyFunction_Check(o)) cc_value_which(rec, o);
    }
    rec->functions_written = true;
}

/* Two guards read distinct objects: a guard for each pair that nothing else tells apart. */
static void pair_apart(CcRec *rec, int i, int k) {
    const int low = CC_MIN(i, k), high = CC_MAX(i, k);
    CcGuards *gs = &rec->trace->guards;
    const CcGuard *g = &gs->g.at[low], *h = &gs->g.at[high];
    if (low == high || (g->source == CC_SRC_CONST && h->source == CC_SRC_CONST)) return;
    if (g->type != NULL && h->type != NULL && !g->dynamic && !h->dynamic && g->type->ndim >= 0 && h->type->ndim >= 0 &&
        (g->type->ndim != h->type->ndim ||
         memcmp(g->type->size, h->type->size, sizeof *g->type->size * (size_t)g->type->ndim) != 0))
        return; /* their guards distinguish them */
    const void *pair = (const void *)(((uintptr_t)low << 32 | (uintptr_t)high) + 1);
    if (cc_map_find(&rec->distinct, pair) != NULL) return;
    cc_map_put(&rec->distinct, pair, 1);
    cc_guard_add_check(gs, high, CC_CHK_DISTINCT, NULL, low);
}

/* The guard that reads the object, also of a tensor that the trace only hands on; -1: none. */
static int guard_of(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p != NULL) return p->origin == CC_O_SOURCE ? p->id : -1;
    const int64_t *handed = cc_map_find(&rec->handed, o);
    return handed != NULL ? (int)*handed : -1;
}

void cc_value_distinct(CcRec *rec, PyObject *a, PyObject *b) {
    if (PyFunction_Check(a) && PyFunction_Check(b)) {
        cc_value_which(rec, a);
        cc_value_which(rec, b);
    }
    const int p = guard_of(rec, a), q = guard_of(rec, b);
    if (a != b && p >= 0 && q >= 0) pair_apart(rec, p, q);
}

void cc_value_copied(CcRec *rec, PyObject *o) {
    enum { FEW = 16 };
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL || p->origin != CC_O_SOURCE) return;
    for (int i = 0; i < rec->copied.n; i++)
        if (rec->copied.at[i] == p->id) return;
    if (rec->copied.n == FEW) {
        cc_value_which(rec, o);
        return;
    }
    for (int i = 0; i < rec->copied.n; i++) pair_apart(rec, p->id, rec->copied.at[i]);
    cc_vec_push(&rec->copied, p->id);
}

/* The guard of a place that is overwritten. */
static int written(CcRec *rec, CcSource source, int parent, PyObject *key, int index, bool deleted) {
    bool is_new;
    const int id = cc_guard_source(&rec->trace->guards, source, parent, key, 0, index, &is_new);
    /* Not read before it is written: any value will do, present or absent; a deleted one must be present. */
    if (is_new) {
        cc_guard_check(&rec->trace->guards, id, deleted ? CC_CHK_NONE : CC_CHK_ANY, NULL);
        rec->trace->guards.g.at[id].owned = owned(source);
    }
    return id;
}

static void places_written(CcRec *rec, const int *guards, int n) {
    cc_finalizers_written(rec, guards, n);
    for (int i = 0; i < n; i++) cc_sym_written(rec, guards[i]);
}

void cc_value_written(CcRec *rec, CcSource source, int parent, PyObject *key, bool deleted) {
    const int id = written(rec, source, parent, key, 0, deleted);
    places_written(rec, &id, 1);
}

void cc_value_written_item(CcRec *rec, int parent, Py_ssize_t index, Py_ssize_t size) {
    const Py_ssize_t i = index < 0 ? index + size : index;
    const int ids[] = {written(rec, CC_SRC_ITEM, parent, NULL, (int)i, false),
                       written(rec, CC_SRC_ITEM, parent, NULL, (int)(i - size), false)};
    places_written(rec, ids, 2);
}

/* ------------------------------------------------------------------ what happened to gradients */

static void note(CcRec *rec, PyObject *o, int what) {
    const int guard = cc_value_source(rec, o);
    if (guard < 0) return;
    for (int i = 0; i < rec->grad_mark.n; i++)
        if (rec->grad_mark.at[i].guard == guard && (rec->grad_mark.at[i].what < 0) == (what < 0)) {
            rec->grad_mark.at[i].what = what;
            return;
        }
    cc_vec_push(&rec->grad_mark, (struct CcGradMark){guard, what});
}

enum { GRADIENT = -1 };

void cc_value_requires_set(CcRec *rec, PyObject *o) { note(rec, o, cc_tens_requires_grad(o)); }

void cc_value_gradient_set(CcRec *rec, PyObject *o) { note(rec, o, GRADIENT); }

void cc_value_requires_read(CcRec *rec, PyObject *o) {
    if (rec->grad_mark.n == 0) return;
    const int guard = cc_value_source(rec, o), requires = cc_tens_requires_grad(o);
    for (int i = 0; guard >= 0 && i < rec->grad_mark.n; i++)
        if (rec->grad_mark.at[i].what == !requires) pair_apart(rec, guard, rec->grad_mark.at[i].guard);
}

/* Many are the parameters of an optimiser or a module, none of which torch lists twice. */
void cc_value_gradient_read(CcRec *rec, PyObject *o) {
    enum { FEW = 16 };
    const int guard = cc_value_source(rec, o);
    for (int i = 0; guard >= 0 && rec->grad_mark.n <= FEW && i < rec->grad_mark.n; i++)
        if (rec->grad_mark.at[i].what == GRADIENT) pair_apart(rec, guard, rec->grad_mark.at[i].guard);
}

void cc_value_pairs(CcRec *rec, PyObject *container, PyObject *iterable) {
    if (!PyIter_Check(iterable) && cc_value_view(iterable) != &PyDictItems_Type) return;
    if (cc_value_origin(rec, iterable) != CC_O_FRESH) return;
    if (!PyList_CheckExact(container) && !PyTuple_CheckExact(container)) return;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(container); i++)
        if (PyTuple_CheckExact(PySequence_Fast_GET_ITEM(container, i)))
            cc_value_fresh(rec, PySequence_Fast_GET_ITEM(container, i));
}

bool cc_value_plain(PyObject *o, int depth) {
    if (cc_tens_is(o)) return cc_tens_plain(o);
    if (depth > 0 && (PyTuple_Check(o) || PyList_Check(o)))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!cc_value_plain(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
    return true;
}

bool cc_value_has_tensor(PyObject *o, int depth) {
    if (cc_tens_is(o)) return true;
    if (depth == 0) return false;
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (cc_value_has_tensor(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return true;
    } else if (PyDict_Check(o)) {
        Py_ssize_t pos = 0;
        PyObject *value;
        while (PyDict_Next(o, &pos, NULL, &value))
            if (cc_value_has_tensor(value, depth - 1)) return true;
    } else if (PySlice_Check(o)) {
        const PySliceObject *s = (PySliceObject *)o;
        return cc_tens_is(s->start) || cc_tens_is(s->stop) || cc_tens_is(s->step);
    }
    return false;
}

/* ------------------------------------------------------------------ numbers read from tensors */

bool cc_value_symbolic(CcRec *rec, PyObject *o) {
    if (!PyFloat_CheckExact(o) && !PyUnicode_CheckExact(o) && !(rec->lazy && cc_value_numpy(o))) return false;
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL) return false;
    if (p->origin == CC_O_VALUE) return true;
    return p->origin == CC_O_SOURCE && rec->trace->guards.g.at[p->id].check == CC_CHK_TYPE;
}

void cc_value_pin(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    CcGuards *gs = &rec->trace->guards;
    if (p == NULL || p->origin != CC_O_SOURCE) return;
    if (rec->judged && rec->hints != NULL && cc_hint_differs(rec->hints, gs, p->id, rec->salt) &&
        cc_hint_taken(rec->hints, gs, p->id, rec->salt))
        rec->differs = true; /* the event becomes a break, whose resume point reads it */
    else cc_guard_check(gs, p->id, CC_CHK_VALUE, o);
}

bool cc_value_compare(CcRec *rec, int op, PyObject *a, PyObject *b, bool outcome) {
    const bool swapped = !cc_value_symbolic(rec, a);
    PyObject *number = swapped ? b : a, *other = swapped ? a : b;
    const CcProv *p = cc_value_find(rec, number);
    if (p->origin != CC_O_SOURCE || cc_value_symbolic(rec, other)) return false;
    cc_sym_pin(rec, other);
    cc_guard_compare(&rec->trace->guards, p->id, op, swapped, other, outcome);
    return true;
}
