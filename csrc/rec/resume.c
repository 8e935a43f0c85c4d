/* Beginning behind a break: the slots of the chain's frames are the inputs of what follows. What only they hold was
 * made by this call: iterators, generators, lists and dicts are adopted (their state is guarded, and they may be
 * changed freely), and so are functions, of which each call makes another. That nobody else holds them, and which slots
 * hold one object, are facts of one recording: both are guarded (cc_guard_alone, aliases). */
#include "rec_int.h"

static bool known_iterator(PyObject *o) {
    PyTypeObject *t = Py_TYPE(o);
    return t == &PyListIter_Type || t == &PyTupleIter_Type || t == &PyRangeIter_Type || t == &PyEnum_Type ||
           t == &PyZip_Type || t == &PyReversed_Type || t == &PyListRevIter_Type || cc_iterator_is(o) ||
           cc_recipe_text_iterator(t);
}

/* A second way to what was adopted: it has to be the same object again. */
static bool adopted_before(CcRec *rec, PyObject *v, CcSource source, int parent, int level, int slot) {
    const CcProv *p = v != NULL ? cc_value_find(rec, v) : NULL;
    if (p == NULL || p->origin != CC_O_FRESH) return false;
    bool is_new;
    const int id = cc_guard_source(&rec->trace->guards, source, parent, NULL, level, slot, &is_new);
    cc_guard_alias(&rec->trace->guards, id, CC_CHK_ALIAS, p->id);
    return true;
}

/* How many slots hold o that nothing reads any more. */
static int idle_slots(const CcRec *rec, PyObject *o) {
    int n = 0;
    for (const CcAct *act = rec->innermost; act != NULL; act = act->prev) {
        n += cc_act_idle(act, act != rec->innermost, o);
        if (act == rec->frame.at[0].act) break;
    }
    return n;
}

static bool adopt_iterator(CcRec *rec, PyObject *it, int source, int holders);

/* What enumerate, zip or reversed takes its items from: the iterator holds it, as often as it says, and so does the
 * tuple of __reduce__, if that is another one. */
static bool adopt_inner(CcRec *rec, PyObject *arg, PyObject *args, bool zip, int source) {
    int holders = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) holders += PyTuple_GET_ITEM(args, i) == arg;
    if (!zip) holders *= 2;
    if (Py_REFCNT(arg) - 1 - idle_slots(rec, arg) != holders) return false; /* 1: of the recorder's map */
    return adopt_iterator(rec, arg, source, holders);
}

/* Which dict or set it goes over, where it stands there, the keys, and the values that it has not given yet. */
static bool adopt_walk(CcRec *rec, PyObject *o, int source, int holders) {
    CcGuards *gs = &rec->trace->guards;
    CcIterator it;
    if (!cc_iterator_read(o, &it) || !it.behind || (it.over != NULL && PyODict_Check(it.over))) return false;
    PyObject *want;
    CC_SURE(want, Py_BuildValue("(nnn)", it.given, it.used, it.left));
    cc_guard_alone(gs, source, holders);
    cc_guard_also(gs, source, CC_CHK_STANDS, want, -1);
    Py_DECREF(want);
    if (!adopted_before(rec, it.over, CC_SRC_OVER, source, 0, 0)) {
        (void)cc_value_read(rec, CC_SRC_OVER, source, NULL, 0, 0, it.over);
        if (it.over != NULL && !cc_inside_guard(rec, it.over, PyDict_Check(it.over) ? 0 : 1)) return false;
        const int over = it.over != NULL ? cc_value_source(rec, it.over) : -1;
        Py_ssize_t place = 0;
        PyObject *key, *value;
        while (over >= 0 && it.values && cc_iterator_next(&it, &place, &key, &value))
            cc_value_read(rec, CC_SRC_KEY, over, key, 0, 0, value);
    }
    cc_value_set(rec, o, CC_O_FRESH, source);
    return true;
}

/* An iterator that only slots hold: its position becomes guarded, and the object may be advanced freely, because a
 * later snapshot puts a new one into the slot. False: what it gives can't be guarded (it goes over an array, a map
 * ...). */
static bool adopt_iterator(CcRec *rec, PyObject *it, int source, int holders) {
    if (cc_iterator_is(it)) return adopt_walk(rec, it, source, holders);
    PyObject *reduced = PyObject_CallMethod(it, "__reduce__", NULL);
    if (reduced == NULL || !PyTuple_Check(reduced) || PyTuple_GET_SIZE(reduced) < 2) {
        PyErr_Clear();
        Py_XDECREF(reduced);
        return false;
    }
    cc_vec_push(&rec->keep, reduced);
    bool whole = true;
    CcGuards *gs = &rec->trace->guards;
    cc_guard_alone(gs, source, holders);
    const int top = cc_value_read(rec, CC_SRC_REDUCE, source, NULL, 0, 0, reduced);
    PyObject *args = PyTuple_GET_ITEM(reduced, 1);
    const int list = cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, 1, args);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *arg = PyTuple_GET_ITEM(args, i);
        if (adopted_before(rec, arg, CC_SRC_ITEM, list, 0, (int)i)) continue;
        const int id = cc_value_read(rec, CC_SRC_ITEM, list, NULL, 0, (int)i, arg);
        if (known_iterator(arg) && gs->g.at[id].check == CC_CHK_TYPE)
            whole = adopt_inner(rec, arg, args, Py_IS_TYPE(it, &PyZip_Type), id) && whole;
        else if (PyList_Check(arg) || PyTuple_Check(arg)) cc_inside_guard(rec, arg, 2);
        else whole = whole && cc_value_const(arg);
    }
    for (Py_ssize_t i = 2; i < PyTuple_GET_SIZE(reduced); i++)
        cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, (int)i, PyTuple_GET_ITEM(reduced, i));
    if (whole) cc_value_set(rec, it, CC_O_FRESH, source);
    return whole;
}

/* Which NaN it is may matter: those are constants. */
static bool varying_float(PyObject *v) { return PyFloat_CheckExact(v) && !cc_same_nan(v); }

/* A float that differs between calls is an object of its own: what was one object when this was recorded (best = v in a
 * loop, a constant of the code that a caller gave as well) may be two in a replay. Where code asks which one it is, the
 * one that was given counts (cc_sym_identical). A new reference. */
static PyObject *own_float(CcRec *rec, PyObject *v, int source) {
    CcGuards *gs = &rec->trace->guards;
    PyObject *own;
    CC_SURE(own, cc_obj_number(v));
    if (gs->g.at[source].check == CC_CHK_NONE) cc_guard_check(gs, source, CC_CHK_TYPE, (PyObject *)&PyFloat_Type);
    cc_value_set(rec, own, CC_O_SOURCE, source);
    cc_vec_push(&rec->keep, Py_NewRef(v));
    cc_vec_push(&rec->floats, (struct CcPending){source, v});
    return own;
}

/* A list or dict that only the frames' slots hold was made by this call: its content becomes guarded (numbers in it
 * stay symbolic), and it may be changed freely, because a later snapshot puts a new one into the slots. */
static void adopt_container(CcRec *rec, PyObject *o, int source, int holders) {
    CcGuards *gs = &rec->trace->guards;
    cc_guard_alone(gs, source, holders);
    if (PyList_Check(o)) {
        bool is_new;
        const int size = cc_guard_source(gs, CC_SRC_SIZE, source, NULL, 0, (int)PyList_GET_SIZE(o), &is_new);
        if (is_new) cc_guard_check(gs, size, CC_CHK_SIZE, NULL);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); i++) {
            PyObject *item = PyList_GET_ITEM(o, i);
            if (!varying_float(item)) {
                cc_value_read(rec, CC_SRC_ITEM, source, NULL, 0, (int)i, item);
                continue;
            }
            PyList_SetItem(o, i,
                           own_float(rec, item, cc_guard_source(gs, CC_SRC_ITEM, source, NULL, 0, (int)i, &is_new)));
        }
    } else {
        Py_ssize_t pos = 0;
        PyObject *key, *value;
        while (PyDict_Next(o, &pos, &key, &value)) {
            bool is_new;
            if (!varying_float(value) || !cc_value_const(key)) continue;
            PyObject *own = own_float(rec, value, cc_guard_source(gs, CC_SRC_KEY, source, key, 0, 0, &is_new));
            /* of a key that is there: the walk goes on */
            cc_obj_put(o, key, own);
            Py_DECREF(own);
        }
        if (!cc_inside_guard(rec, o, 1)) return;
    }
    cc_value_set(rec, o, CC_O_FRESH, source);
}

/* How many slots of the chain refer to o (a comprehension's iterator is in a local and on two stacks), and how many of
 * them will be read. None when two frames will look at it again: one may change it while the other waits, and only
 * slots of frames that ran get the new object. */
static int slots_holding(const CcRec *rec, PyObject *o, int *read) {
    int n = 0, frames = 0;
    *read = 0;
    for (const CcAct *act = rec->innermost; act != NULL; act = act->prev) {
        const int n_locals = act->code->n_locals,
                  depth = act == rec->innermost ? act->depth : cc_act_waiting_depth(act);
        bool looks = false;
        for (int slot = 0; slot < n_locals + act->depth; slot++) {
            if (cc_act_get(act, slot) != o) continue;
            n++;
            if (!(slot < n_locals ? cc_code_live(act->code, act->pc, slot) : slot < n_locals + depth)) continue;
            looks = true;
            ++*read;
        }
        frames += looks;
        if (act == rec->frame.at[0].act) break;
    }
    return frames < 2 ? n : 0;
}

/* A function that another one makes: each call may make another. */
static bool nested(PyObject *v) {
    return PyFunction_Check(v) && ((PyCodeObject *)PyFunction_GET_CODE(v))->co_flags & CO_NESTED;
}

/* A generator that the chain's slots alone hold. */
static bool own_generator(const CcRec *rec, PyObject *v) {
    CcGen g;
    int read;
    return cc_generator_read(v, &g) && Py_REFCNT(v) == slots_holding(rec, v, &read) &&
           cc_site_may_adopt(rec, g.code->co);
}

/* So it is known by its code, defaults and cells. After all other slots, which hold its cells. */
static void adopt_function(CcRec *rec, PyObject *v, CcSource source, int parent, int level, int slot) {
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    if (cc_value_find(rec, v) != NULL) {
        cc_value_read(rec, source, parent, NULL, level, slot, v);
        return;
    }
    const int id = cc_guard_source(gs, source, parent, NULL, level, slot, &is_new);
    cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)&PyFunction_Type);
    cc_value_set(rec, v, CC_O_SOURCE, id);
    rec->by_code = true;
    cc_rec_guard_function(rec, (PyFunctionObject *)v);
    PyObject *closure = ((PyFunctionObject *)v)->func_closure, *name = cc_obj_name("__closure__");
    if (closure != NULL) {
        const int cells = cc_value_read(rec, CC_SRC_MEMBER, id, cc_type_lookup(&PyFunction_Type, name), 0, 0, closure);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); i++)
            cc_value_read(rec, CC_SRC_ITEM, cells, NULL, 0, (int)i, PyTuple_GET_ITEM(closure, i));
    }
    Py_DECREF(name);
}

/* Nothing else is known of it yet. */
static bool adoptable(CcRec *rec, PyObject *v) {
    return rec->frame.n > 0 && rec->frame.at[0].kept && v != NULL && nested(v) && cc_value_find(rec, v) == NULL &&
           !rec->no_more;
}

bool cc_resume_item(CcRec *rec, int item, PyObject *v) {
    const CcGuard g = rec->trace->guards.g.at[item];
    if (g.source != CC_SRC_ITEM || rec->trace->guards.g.at[g.parent].source != CC_SRC_SLOT || !adoptable(rec, v))
        return false;
    adopt_function(rec, v, CC_SRC_ITEM, g.parent, g.level, g.index);
    return true;
}

bool cc_resume_cell(CcRec *rec, int cell, PyObject *v) {
    if (!adoptable(rec, v)) return false;
    adopt_function(rec, v, CC_SRC_CELL, cell, 0, 0);
    return true;
}

static void adopt_generator(CcRec *rec, PyObject *o, const CcGen *g, int source, int holders);

static bool kept_slot(const CcGen *g, int slot) {
    return slot >= g->code->n_locals || cc_code_live(g->code, g->pc, slot);
}

/* Which slots of the generator hold what this one holds: how many, how many that will be read, and the first of those.
 * (Its iterator lies in a generator expression's argument and on its stack.) */
static int holding(const CcGen *g, int slot, int *first, int *read) {
    int n = 0;
    *first = slot;
    *read = 0;
    for (int i = g->code->n_locals + g->depth - 1; i >= 0; i--) {
        if (g->slot[i] != g->slot[slot]) continue;
        n++;
        if (!kept_slot(g, i)) continue;
        *first = i;
        ++*read;
    }
    return n;
}

/* What lies in a slot of a generator that is adopted. */
static void read_held(CcRec *rec, PyObject *generator, const CcGen *g, int parent, int slot) {
    CcGuards *gs = &rec->trace->guards;
    PyObject *v = g->slot[slot];
    bool is_new;
    int first = slot, read = 0;
    const int n = v != NULL && !cc_value_const(v) ? holding(g, slot, &first, &read) : 0;
    if (first < slot) {
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, &is_new);
        cc_guard_alias(gs, id, CC_CHK_ALIAS, cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, first, &is_new));
        return;
    }
    if (v != NULL && varying_float(v) && slot < g->code->n_locals) {
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, &is_new);
        cc_generator_put(generator, slot, own_float(rec, v, id));
        return;
    }
    if (adopted_before(rec, v, CC_SRC_GENSLOT, parent, 0, slot)) return;
    const bool alone = v != NULL && Py_REFCNT(v) == n && cc_value_find(rec, v) == NULL;
    CcGen inner;
    if (alone && cc_generator_read(v, &inner) && cc_site_may_adopt(rec, inner.code->co)) {
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, &is_new);
        adopt_generator(rec, v, &inner, id, read);
        return;
    }
    if (v != NULL && cc_value_const(v)) { /* nothing puts a symbol in its place: no hint makes it one */
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, &is_new);
        if (is_new) cc_guard_check(gs, id, CC_CHK_VALUE, v);
        return;
    }
    const int id = cc_value_read(rec, CC_SRC_GENSLOT, parent, NULL, 0, slot, v);
    if (!alone || gs->g.at[id].check != CC_CHK_TYPE) return;
    if (known_iterator(v)) (void)adopt_iterator(rec, v, id, read);
    else if (PyList_CheckExact(v) || PyDict_CheckExact(v)) adopt_container(rec, v, id, read);
}

/* Its code is known, and its cells lie in the frame: all else about it matters to nobody but who makes the next one. */
static void read_function(CcRec *rec, PyObject *func, int generator) {
    bool is_new;
    if (cc_value_find(rec, func) != NULL) {
        cc_value_read(rec, CC_SRC_GENFUNC, generator, NULL, 0, 0, func);
        return;
    }
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_GENFUNC, generator, NULL, 0, 0, &is_new);
    cc_guard_check(&rec->trace->guards, id, CC_CHK_TYPE, (PyObject *)&PyFunction_Type);
    cc_value_set(rec, func, CC_O_SOURCE, id);
}

/* Where it waits becomes guarded, and what its frame holds. It may be resumed freely: the next snapshot puts another
 * one into the slot, and a replay ends this one without a word (CcTrace.adopted). */
static void adopt_generator(CcRec *rec, PyObject *o, const CcGen *g, int source, int holders) {
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    PyObject *want;
    CC_SURE(want, Py_BuildValue("(Oii)", g->code->co, g->unit, g->state));
    cc_guard_check(gs, source, CC_CHK_TYPE, (PyObject *)&PyGen_Type);
    const int id = cc_guard_source(gs, CC_SRC_GEN, source, NULL, 0, 0, &is_new);
    cc_guard_check(gs, id, CC_CHK_WAITS, want);
    Py_DECREF(want);
    gs->g.at[source].used = true;
    cc_guard_alone(gs, source, holders);
    cc_vec_push(&rec->trace->adopted, source);
    read_function(rec, (PyObject *)g->func, id);
    for (int i = 0; i < g->code->n_locals + g->depth; i++)
        if (kept_slot(g, i)) read_held(rec, o, g, id, i);
    cc_value_set(rec, o, CC_O_FRESH, source);
}

/* In one of the slots that hold it; the others are its aliases. */
static void adopt_owned(CcRec *rec, PyObject *v, int level, int slot) {
    CcGen g;
    bool is_new;
    if (!cc_generator_read(v, &g)) {
        adopt_function(rec, v, CC_SRC_SLOT, -1, level, slot);
        return;
    }
    if (adopted_before(rec, v, CC_SRC_SLOT, -1, level, slot)) return;
    int read;
    (void)slots_holding(rec, v, &read);
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_SLOT, -1, NULL, level, slot, &is_new);
    adopt_generator(rec, v, &g, id, read);
}

/* symbolic: a number that differs from call to call; it becomes an input unless Python code looks at it. */
static void read_slot(CcRec *rec, CcAct *act, int level, int slot, bool symbolic) {
    PyObject *v = cc_act_get(act, slot);
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    if (adopted_before(rec, v, CC_SRC_SLOT, -1, level, slot)) return;
    if (v != NULL && (nested(v) || own_generator(rec, v))) {
        cc_vec_push(&rec->own, (struct CcOwn){level, slot, v});
        return;
    }
    if (v != NULL && symbolic && varying_float(v)) {
        const int id = cc_guard_source(gs, CC_SRC_SLOT, -1, NULL, level, slot, &is_new);
        if (cc_sym_wanted(rec, id, v)) { /* Python code has looked at it */
            cc_sym_slot(rec, act, slot, id);
            return;
        }
        cc_act_put(act, slot, own_float(rec, v, id));
        return;
    }
    const int id = cc_value_read(rec, CC_SRC_SLOT, -1, NULL, level, slot, v);
    cc_sym_slot(rec, act, slot, id);
    if (v != NULL) cc_sym_tuple(rec, act, slot, id, v);
    const bool container = v != NULL && (PyList_CheckExact(v) || PyDict_CheckExact(v));
    int read;
    if (v == NULL || !(container || known_iterator(v)) || cc_final_loud(rec, v) || gs->g.at[id].check != CC_CHK_TYPE ||
        Py_REFCNT(v) > 1 + slots_holding(rec, v, &read)) /* 1: of the recorder's map */
        return;
    if (container) adopt_container(rec, v, id, read);
    else (void)adopt_iterator(rec, v, id, read);
}

/* Points are found by code, of which there may be several functions: a frame reads its own one's globals. */
static void guard_scope(CcRec *rec, const CcAct *act, int level) {
    bool is_new;
    PyObject *want;
    CC_SURE(want, PyTuple_Pack(2, act->func->func_globals, act->func->func_builtins));
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_FRAME, -1, NULL, 0, level, &is_new);
    cc_guard_check(&rec->trace->guards, id, CC_CHK_SCOPE, want);
    Py_DECREF(want);
}

CcGo cc_rec_begin_resume(CcRec *rec, CcAct *const *acts, int n, const CcMode *mode, CcVaries varies, void *ctx,
                         uint64_t salt) {
    cc_rec_begin(rec, mode, salt);
    rec->innermost = acts[n - 1];
    for (int level = 0; level < n; level++)
        cc_vec_push(&rec->frame,
                    (CcRecFrame){.act = acts[level], .transparent = true, .kept = true, .touched = level == n - 1});
    cc_final_begin(rec);
    for (int level = 0; level < n; level++) {
        CcAct *act = acts[level];
        const bool innermost = level == n - 1;
        if (level > 0) guard_scope(rec, act, level); /* the root's function is always the same */
        const int n_locals = act->code->n_locals;
        const int depth = innermost ? act->depth : cc_act_waiting_depth(act);
        for (int slot = 0; slot < n_locals + depth; slot++)
            if (cc_final_slot(act, slot)) read_slot(rec, act, level, slot, varies(ctx, level, slot));
        act->observed = true;
    }
    for (int generators = 0; generators < 2; generators++) /* which are of functions that slots hold */
        for (int i = 0; i < rec->own.n; i++)
            if (PyGen_CheckExact(rec->own.at[i].object) == generators)
                adopt_owned(rec, rec->own.at[i].object, rec->own.at[i].level, rec->own.at[i].slot);
    rec->own.n = 0;
    cc_final_adopted(rec);
    cc_idle_begin(rec);
    const CcAct *last = acts[n - 1];
    rec->trace->start_file = Py_NewRef(last->co->co_filename);
    rec->trace->start_line = cc_code_line(last->code, last->pc);
    for (int i = 0; i < rec->frame.n; i++) rec->frame.at[i].first_fresh = rec->prov.n;
    return CC_OK;
}
