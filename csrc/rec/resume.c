/* Begins a trace after a break: the slots of the chain's frames are its inputs. This call made the objects that only
 * slots hold. The trace adopts such iterators, generators, lists and dicts (it guards their state and may change them
 * freely), and nested functions, which each call makes anew. Guards check that nothing else holds adopted objects
 * (cc_guard_alone), and which slots hold the same object (aliases). A list or dict is adopted when an event first takes it:
 * the content of one that is only passed on needs no guard. */
#include "rec_events.h"

/* Another path to an adopted object: guards that it is the same object. */
static bool adopted_before(CcRec *rec, PyObject *v, CcSource source, int parent, int level, int slot) {
    const CcProv *p = v != NULL ? cc_value_find(rec, v) : NULL;
    if (p == NULL || p->origin != CC_O_FRESH) return false;
    const int id = cc_guard_source(&rec->trace->guards, source, parent, NULL, level, slot, NULL);
    cc_guard_alias(&rec->trace->guards, id, CC_CHK_ALIAS, p->id);
    return true;
}

/* The number of dead slots that hold o. */
static int idle_slots(const CcRec *rec, PyObject *o) {
    int n = 0;
    for (const CcAct *act = rec->innermost; act != NULL; act = act->prev) {
        n += cc_act_dead_refs(act, act != rec->innermost, o);
        if (act == rec->frame.at[0].act) break;
    }
    return n;
}

static bool adopt(CcRec *rec, PyObject *o, int source, int holders, int levels);
static void adopt_generator(CcRec *rec, PyObject *o, const CcGen *g, int source, int holders);

static bool may_adopt(const CcRec *rec, PyObject *v, CcGen *g) {
    return cc_generator_read(v, g) && cc_site_may_adopt(rec, g->code->co) && !cc_generator_calls_close(v);
}

static bool is_iterator(PyObject *o) {
    const CcAdopt how = cc_recipe_adopts(o);
    return how == CC_ADOPT_REDUCE || how == CC_ADOPT_WALK;
}

/* How often an outer iterator holds what it takes its items from, and the tuple from __reduce__, unless that is the outer
 * iterator's own (zip). 0: others hold it, too. */
static int inner_holders(CcRec *rec, PyObject *arg, PyObject *args, bool own) {
    int holders = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) holders += PyTuple_GET_ITEM(args, i) == arg;
    if (!own) holders *= 2;
    const CcProv *p = cc_value_find(rec, arg);
    const bool known = p != NULL && p->weak == NULL; /* the provenance map holds it */
    return Py_REFCNT(arg) - known - idle_slots(rec, arg) == holders ? holders : 0;
}

/* Adopts what an iterator takes its items from, if it is an iterator or a list. */
static bool adopt_inner(CcRec *rec, PyObject *arg, PyObject *args, bool own, int source, int levels) {
    const int holders = inner_holders(rec, arg, args, own);
    CcGen g;
    if (holders == 0) return false;
    if (!PyGen_CheckExact(arg)) return adopt(rec, arg, source, holders, levels);
    if (!may_adopt(rec, arg, &g)) return false;
    adopt_generator(rec, arg, &g, source, holders);
    return true;
}

/* Guards the iterator's dict or set, its position, the keys, and the values still to come. */
static bool adopt_walk(CcRec *rec, PyObject *o, int source, int holders) {
    CcGuards *gs = &rec->trace->guards;
    CcIterator it;
    if (!cc_iterator_read(o, &it) || !it.adjacent || (it.container != NULL && PyODict_Check(it.container)))
        return false;
    PyObject *want;
    CC_RETRY_ALLOC(want, Py_BuildValue("(nnn)", it.consumed, it.used, it.left));
    cc_guard_alone(gs, source, holders);
    cc_guard_add_check(gs, source, CC_CHK_POSITION, want, -1);
    Py_DECREF(want);
    if (!adopted_before(rec, it.container, CC_SRC_CONTAINER, source, 0, 0)) {
        (void)cc_value_read(rec, CC_SRC_CONTAINER, source, NULL, 0, 0, it.container);
        if (it.container != NULL && !cc_inside_guard(rec, it.container, PyDict_Check(it.container) ? 0 : 1))
            return false;
        const int over = it.container != NULL ? cc_value_source(rec, it.container) : -1;
        Py_ssize_t place = 0;
        PyObject *key, *value;
        while (over >= 0 && it.values && cc_iterator_next(&it, &place, &key, &value))
            cc_value_read(rec, CC_SRC_KEY, over, key, 0, 0, value);
    }
    cc_value_set(rec, o, CC_O_FRESH, source);
    return true;
}

/* An iterator among chain()'s operands that existed before the trace, and that others hold, too. */
static bool any_outside(CcRec *rec, PyObject *operands) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(operands); i++) {
        PyObject *o = PySequence_Fast_GET_ITEM(operands, i);
        if (PyIter_Check(o) && cc_value_origin(rec, o) != CC_O_FRESH) return true;
    }
    return false;
}

/* A float or a numpy scalar. NaNs and numpy's two bools are constants, because their identity may matter. */
static bool may_vary(PyObject *v) { return (PyFloat_CheckExact(v) || cc_sym_scalar(v)) && !cc_same_nan(v); }

/* A separate object for a number that varies between calls: numbers that were one object while recording (best = v in a
 * loop, a constant of the code that a caller also passed) may be two in a replay. If code compares identities, the
 * original object counts (cc_sym_identical). Only its type is guarded until something reads its value. New reference. */
static PyObject *own_copy(CcRec *rec, PyObject *v, int source) {
    CcGuards *gs = &rec->trace->guards;
    PyObject *own;
    CC_RETRY_ALLOC(own, cc_sym_copy(v));
    if (gs->g.at[source].check == CC_CHK_NONE) cc_guard_check(gs, source, CC_CHK_TYPE, (PyObject *)Py_TYPE(v));
    cc_value_set(rec, own, CC_O_SOURCE, source);
    rec->lazy = rec->lazy || !PyFloat_CheckExact(v);
    cc_vec_push(&rec->keep, Py_NewRef(v));
    cc_vec_push(&rec->copies, (struct CcPending){source, v});
    return own;
}

/* A list or tuple of a few items, with numpy scalars among them. */
static bool has_numpy(PyObject *o) {
    enum { FEW = 64 }; /* each item costs a guard */
    bool has = false;
    if (!(PyList_CheckExact(o) || PyTuple_CheckExact(o)) || PySequence_Fast_GET_SIZE(o) > FEW) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(o, i);
        has = has || (cc_value_numpy(item) && may_vary(item));
    }
    return has;
}

/* Item i of a tuple: a copy if it is a float, a numpy scalar or a text that varies. New reference. */
static PyObject *own_item(CcRec *rec, PyObject *item, int source, Py_ssize_t i) {
    if (may_vary(item) || cc_sym_textual(item))
        return own_copy(rec, item, cc_guard_source(&rec->trace->guards, CC_SRC_ITEM, source, NULL, 0, (int)i, NULL));
    return cc_sym_read_item(rec, item, source, i);
}

/* The tuple that this guard reads, with copies of its numbers that vary: [float(v) for v in [a.mean(), a.max()]], whose list
 * the compiler makes a tuple. New reference. */
static PyObject *own_tuple(CcRec *rec, PyObject *v, int source) {
    PyObject *items;
    CC_RETRY_ALLOC(items, PyTuple_New(PyTuple_GET_SIZE(v)));
    cc_inside_size(rec, source, PyTuple_GET_SIZE(v));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); i++)
        PyTuple_SET_ITEM(items, i, own_item(rec, PyTuple_GET_ITEM(v, i), source, i));
    return cc_sym_items_of(rec, source, v, items);
}

/* Item i of an adopted list or tuple: a number that varies is replaced in it. */
static void adopt_item(CcRec *rec, PyObject *sequence, int source, Py_ssize_t i) {
    PyObject **item = &PySequence_Fast_ITEMS(sequence)[i];
    if (may_vary(*item))
        Py_SETREF(*item, own_copy(rec, *item,
                                  cc_guard_source(&rec->trace->guards, CC_SRC_ITEM, source, NULL, 0, (int)i, NULL)));
    else cc_sym_fill_item(rec, sequence, source, i);
}

/* The same for a tuple that only an iterator holds, which goes on to take its items from it. */
static bool adopt_tuple(CcRec *rec, PyObject *v, PyObject *args, bool own, int source) {
    const int holders = inner_holders(rec, v, args, own);
    if (holders == 0) return false;
    cc_guard_alone(&rec->trace->guards, source, holders);
    cc_inside_size(rec, source, PyTuple_GET_SIZE(v));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); i++) adopt_item(rec, v, source, i);
    cc_value_set(rec, v, CC_O_FRESH, source);
    return true;
}

/* Adopts an iterator that only slots hold: guards its position. The trace may advance it freely, because a later
 * snapshot puts a new one into the slot. False: its items can't be guarded (it iterates over an array, a map ...). */
static bool adopt_reduced(CcRec *rec, PyObject *it, int source, int holders, int levels) {
    PyObject *reduced = cc_iterator_reduce(it);
    if (reduced == NULL || !PyTuple_Check(reduced) || PyTuple_GET_SIZE(reduced) < 2) {
        cc_raised_clear();
        Py_XDECREF(reduced);
        return false;
    }
    cc_vec_push(&rec->keep, reduced);
    bool whole = true;
    CcGuards *gs = &rec->trace->guards;
    cc_guard_alone(gs, source, holders);
    const int top = cc_value_read(rec, CC_SRC_REDUCE, source, NULL, 0, 0, reduced);
    PyObject *args = PyTuple_GET_ITEM(reduced, 1);
    const bool own = Py_REFCNT(args) > 1;
    const int list = cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, 1, args);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *arg = PyTuple_GET_ITEM(args, i);
        if (adopted_before(rec, arg, CC_SRC_ITEM, list, 0, (int)i)) continue;
        const int id = cc_value_read(rec, CC_SRC_ITEM, list, NULL, 0, (int)i, arg);
        if ((is_iterator(arg) || PyGen_CheckExact(arg)) && gs->g.at[id].check == CC_CHK_TYPE)
            whole = adopt_inner(rec, arg, args, own, id, cc_known_is(it, CC_KNOWN_CHAIN) ? 2 : levels) && whole;
        else if (has_numpy(arg) && gs->g.at[id].check == CC_CHK_TYPE &&
                 (PyTuple_Check(arg) ? adopt_tuple(rec, arg, args, own, id)
                                     : adopt_inner(rec, arg, args, own, id, levels)))
            continue;
        else if (PyList_Check(arg) || PyTuple_Check(arg)) {
            cc_sym_fill(rec, arg);
            whole = cc_inside_guard(rec, arg, levels) && !(levels > 1 && any_outside(rec, arg)) && whole;
        } else whole = whole && cc_value_const(arg);
    }
    for (Py_ssize_t i = 2; i < PyTuple_GET_SIZE(reduced); i++)
        cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, (int)i, PyTuple_GET_ITEM(reduced, i));
    if (whole) cc_value_set(rec, it, CC_O_FRESH, source);
    return whole;
}

/* Adopts a list or dict that only slots hold: guards its content (numbers in it stay symbolic). The trace may change it
 * freely, because a later snapshot puts a new one into the slots. */
static bool adopt_content(CcRec *rec, PyObject *o, int source, int holders) {
    CcGuards *gs = &rec->trace->guards;
    cc_guard_alone(gs, source, holders);
    if (PyList_Check(o)) {
        cc_inside_size(rec, source, PyList_GET_SIZE(o));
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); i++) adopt_item(rec, o, source, i);
    } else {
        Py_ssize_t pos = 0;
        PyObject *key, *value;
        cc_sym_fill(rec, o);
        while (PyDict_Next(o, &pos, &key, &value)) {
            if (cc_sym_is(rec, value) || !may_vary(value) || !cc_value_consts(key)) continue;
            PyObject *own = own_copy(rec, value, cc_guard_source(gs, CC_SRC_KEY, source, key, 0, 0, NULL));
            /* an existing key, so iteration may continue */
            cc_obj_dict_set(o, key, own);
            Py_DECREF(own);
        }
        if (!cc_inside_guard(rec, o, 1)) return false;
    }
    cc_value_set(rec, o, CC_O_FRESH, source);
    return true;
}

/* Adopts by the type's row in fresh.def. levels: of the items, which C code reads. False: its content or items can't be
 * guarded. */
static bool adopt(CcRec *rec, PyObject *o, int source, int holders, int levels) {
    switch (cc_recipe_adopts(o)) {
    case CC_ADOPT_REDUCE: return adopt_reduced(rec, o, source, holders, levels);
    case CC_ADOPT_WALK: return adopt_walk(rec, o, source, holders);
    case CC_ADOPT_CONTENT: return !rec->sites->addresses && adopt_content(rec, o, source, holders);
    default: return false;
    }
}

static void remove_adoptable(CcRec *rec, int i) { rec->adoptable.at[i] = rec->adoptable.at[--rec->adoptable.n]; }

static int find_adoptable(const CcRec *rec, const PyObject *o) {
    int i = 0;
    while (i < rec->adoptable.n && rec->adoptable.at[i].object != o) i++;
    return i < rec->adoptable.n ? i : -1;
}

/* The trace is about to look into the object, or to change it. */
static void take(CcRec *rec, PyObject *o) {
    const int i = o != NULL ? find_adoptable(rec, o) : -1;
    if (i < 0) return;
    const struct CcAdoptable a = rec->adoptable.at[i];
    const CcProv *p = cc_value_find(rec, o);
    remove_adoptable(rec, i);
    if (p == NULL || p->origin != CC_O_SOURCE || p->id != a.source || p->dirty != CC_DIRTY_NO) return;
    (void)adopt(rec, o, a.source, a.holders, 1);
    cc_sym_drop_pending(rec);
}

/* The operand that the event only stores: from then on, others may hold it. -1: none */
static int stored_operand(const CcEvent *ev) {
    switch (ev->kind) {
    case CC_EV_STORE_ATTR:
    case CC_EV_STORE_DEREF: return ev->n - 1;
    case CC_EV_STORE_GLOBAL: return 1;
    case CC_EV_STORE_SUBSCR: return 2;
    default: return -1;
    }
}

/* A Python function gets its arguments as they are. */
static bool passes_on(const CcEvent *ev) {
    return ev->kind == CC_EV_CALL && cc_call_function(ev->in[0]) != NULL && PyFunction_Check(ev->in[0]);
}

void cc_resume_event(CcRec *rec, const CcEvent *ev) {
    if (rec->adoptable.n == 0 || ev->kind == CC_EV_BUILD || passes_on(ev)) return;
    const int stored = stored_operand(ev),
              at = stored >= 0 && stored < ev->n ? find_adoptable(rec, ev->in[stored]) : -1;
    if (at >= 0) remove_adoptable(rec, at);
    for (int i = 0; i < ev->n && rec->trace != NULL; i++) take(rec, ev->in[i]);
}

/* The number of the chain's slots that hold o (a comprehension's iterator is in a local and on two stacks), and how
 * many of them will be read. 0 if two frames will read it: one may change it while the other is suspended, and only
 * slots of frames that ran get the new object. */
static int slots_holding(const CcRec *rec, PyObject *o, int *read) {
    int n = 0, frames = 0;
    *read = 0;
    for (const CcAct *act = rec->innermost; act != NULL; act = act->prev) {
        const int n_locals = act->code->n_locals,
                  depth = act == rec->innermost ? act->depth : cc_act_depth_after_call(act);
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

/* A nested function: each call may make a new one. */
static bool nested(PyObject *v) {
    return PyFunction_Check(v) && ((PyCodeObject *)PyFunction_GET_CODE(v))->co_flags & CO_NESTED;
}

/* A generator that only the chain's slots hold. */
static bool own_generator(const CcRec *rec, PyObject *v) {
    CcGen g;
    int read;
    return may_adopt(rec, v, &g) && Py_REFCNT(v) == slots_holding(rec, v, &read);
}

/* Several functions may share the code by which one is found: guards whose globals it reads. */
static void guard_scope(CcRec *rec, const PyFunctionObject *f, int id) {
    PyObject *want;
    CC_RETRY_ALLOC(want, PyTuple_Pack(2, f->func_globals, f->func_builtins));
    cc_guard_add_check(&rec->trace->guards, id, CC_CHK_SCOPE, want, -1);
    Py_DECREF(want);
}

/* Matches a nested function, which guard `id` reads, by its code, defaults and cells. */
static void match_by_code(CcRec *rec, PyObject *v, int id) {
    cc_guard_check(&rec->trace->guards, id, CC_CHK_TYPE, (PyObject *)&PyFunction_Type);
    cc_value_set(rec, v, CC_O_SOURCE, id);
    rec->by_code = true;
    cc_rec_guard_function(rec, (PyFunctionObject *)v);
    guard_scope(rec, (PyFunctionObject *)v, id);
    PyObject *closure = ((PyFunctionObject *)v)->func_closure;
    if (closure == NULL) return;
    const int cells = cc_value_read_member(rec, id, &PyFunction_Type, "__closure__", closure);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); i++)
        cc_value_read(rec, CC_SRC_ITEM, cells, NULL, 0, (int)i, PyTuple_GET_ITEM(closure, i));
}

/* Runs after all other slots are read, because they hold its cells. */
static void adopt_function(CcRec *rec, PyObject *v, int level, int slot) {
    if (cc_value_find(rec, v) != NULL) cc_value_read(rec, CC_SRC_SLOT, -1, NULL, level, slot, v);
    else match_by_code(rec, v, cc_guard_source(&rec->trace->guards, CC_SRC_SLOT, -1, NULL, level, slot, NULL));
}

/* Its provenance is unknown so far. */
static bool adoptable(CcRec *rec, PyObject *v) {
    return v != NULL && nested(v) && cc_value_find(rec, v) == NULL && !rec->functions_written;
}

/* Whether it reads what a call may have made: an argument, a slot, or what such a partial or wrapper calls. */
static bool of_call(const CcGuards *gs, const CcGuard *g) {
    if (g->source == CC_SRC_ARG || g->source == CC_SRC_SLOT) return true;
    if (g->source != CC_SRC_MEMBER || g->parent < 0) return false;
    const CcGuard *parent = &gs->g.at[g->parent];
    const PyObject *type = parent->check == CC_CHK_TYPE ? parent->want : NULL;
    const bool calls = type == (PyObject *)&PyStaticMethod_Type || type == (PyObject *)&PyClassMethod_Type ||
                       type == (PyObject *)&PyProperty_Type || type == (PyObject *)cc_known_type(CC_KNOWN_PARTIAL);
    return calls && of_call(gs, parent);
}

/* A part of what its parent reads: an item, or what an iterator holds. */
static bool is_part(const CcGuard *g) {
    return g->source == CC_SRC_ITEM || g->source == CC_SRC_KEY || g->source == CC_SRC_REDUCE ||
           g->source == CC_SRC_CONTAINER;
}

/* Whether the caller may have made what this guard reads: an argument, something in an argument or in what a slot
 * holds, or a part of a partial or wrapper. */
static bool from_caller(const CcGuards *gs, const CcGuard *g) {
    enum { DEPTH = 6 }; /* an item of a tuple in a list that an iterator holds */
    if (!is_part(g)) return g->source != CC_SRC_SLOT && of_call(gs, g);
    for (int i = 0; i < DEPTH && is_part(g); i++) g = &gs->g.at[g->parent];
    return g->source == CC_SRC_ARG || g->source == CC_SRC_SLOT;
}

bool cc_resume_function(CcRec *rec, int id, PyObject *v) {
    if (!from_caller(&rec->trace->guards, &rec->trace->guards.g.at[id]) || !adoptable(rec, v)) return false;
    match_by_code(rec, v, id);
    return true;
}

bool cc_resume_wrapper(CcRec *rec, int id, PyObject *v) {
    static const char *const of_property[] = {"fget", "fset", "fdel", "__doc__"}, *const of_method[] = {"__func__"};
    CcGuards *gs = &rec->trace->guards;
    if (!cc_value_wraps(v) || cc_value_find(rec, v) != NULL || rec->functions_written || !of_call(gs, &gs->g.at[id]))
        return false;
    const bool property = Py_IS_TYPE(v, &PyProperty_Type);
    cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)Py_TYPE(v));
    cc_value_set(rec, v, CC_O_SOURCE, id);
    rec->by_code = true;
    for (int i = 0; i < (property ? CC_COUNT(of_property) : CC_COUNT(of_method)); i++) {
        PyObject *part;
        CC_RETRY_ALLOC(part, PyObject_GetAttrString(v, property ? of_property[i] : of_method[i]));
        cc_value_read_member(rec, id, Py_TYPE(v), property ? of_property[i] : of_method[i], part);
        Py_DECREF(part); /* v holds it */
    }
    return true;
}

bool cc_resume_cell(CcRec *rec, int cell, PyObject *v) {
    const bool resumed = rec->frame.n > 0 && rec->frame.at[0].kept;
    if ((!resumed && !rec->by_code) || !adoptable(rec, v)) return false;
    match_by_code(rec, v, cc_guard_source(&rec->trace->guards, CC_SRC_CELL, cell, NULL, 0, 0, NULL));
    return true;
}

static bool kept_slot(const CcGen *g, int slot) {
    return slot >= g->code->n_locals || cc_code_live(g->code, g->pc, slot);
}

/* The number of the generator's slots that hold the same object as this one, how many of them will be read, and the
 * first of those. (A generator expression's iterator is in its argument and on its stack.) */
static int holding(const CcGen *g, int slot, int *first, int *read) {
    int n = 0;
    *first = slot;
    *read = 0;
    for (int i = g->code->n_locals + g->depth - 1; i >= 0; i--) {
        if (cc_generator_get(g, i) != cc_generator_get(g, slot)) continue;
        n++;
        if (!kept_slot(g, i)) continue;
        *first = i;
        ++*read;
    }
    return n;
}

/* Reads a slot of an adopted generator. */
static void read_held(CcRec *rec, PyObject *generator, const CcGen *g, int parent, int slot) {
    CcGuards *gs = &rec->trace->guards;
    PyObject *v = cc_generator_get(g, slot);
    int first = slot, read = 0;
    const int n = v != NULL && !cc_value_const(v) ? holding(g, slot, &first, &read) : 0;
    if (first < slot) {
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, NULL);
        cc_guard_alias(gs, id, CC_CHK_ALIAS, cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, first, NULL));
        return;
    }
    if (v != NULL && may_vary(v) && slot < g->code->n_locals) {
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, NULL);
        cc_generator_put(generator, slot, own_copy(rec, v, id));
        return;
    }
    if (adopted_before(rec, v, CC_SRC_GENSLOT, parent, 0, slot)) return;
    const bool alone = v != NULL && Py_REFCNT(v) == n && cc_value_find(rec, v) == NULL;
    CcGen inner;
    if (alone && may_adopt(rec, v, &inner)) {
        const int id = cc_guard_source(gs, CC_SRC_GENSLOT, parent, NULL, 0, slot, NULL);
        adopt_generator(rec, v, &inner, id, read);
        return;
    }
    if (v != NULL && cc_value_const(v)) { /* can't be replaced by a symbol, so a hint would not help */
        cc_guard_once(gs, CC_SRC_GENSLOT, parent, NULL, slot, CC_CHK_VALUE, v);
        return;
    }
    const int id = cc_value_read(rec, CC_SRC_GENSLOT, parent, NULL, 0, slot, v);
    if (alone && gs->g.at[id].check == CC_CHK_TYPE) (void)adopt(rec, v, id, read, 1);
}

/* The function of an adopted generator: its code is guarded and its cells are in the frame; its other parts only matter
 * for rebuilding the generator. */
static void read_function(CcRec *rec, PyObject *func, int generator) {
    if (cc_value_find(rec, func) != NULL) {
        cc_value_read(rec, CC_SRC_GENFUNC, generator, NULL, 0, 0, func);
        return;
    }
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_GENFUNC, generator, NULL, 0, 0, NULL);
    cc_guard_check(&rec->trace->guards, id, CC_CHK_TYPE, (PyObject *)&PyFunction_Type);
    cc_value_set(rec, func, CC_O_SOURCE, id);
}

/* Adopts a generator: guards its point of suspension and its frame's slots. The trace may resume it freely: the next
 * snapshot puts a new one into the slot, and a replay retires this one without running its code (CcTrace.adopted). */
static void adopt_generator(CcRec *rec, PyObject *o, const CcGen *g, int source, int holders) {
    CcGuards *gs = &rec->trace->guards;
    PyObject *want;
    CC_RETRY_ALLOC(want, Py_BuildValue("(Oii)", g->code->co, g->unit, g->state));
    cc_guard_check(gs, source, CC_CHK_TYPE, (PyObject *)&PyGen_Type);
    const int id = cc_guard_source(gs, CC_SRC_GEN, source, NULL, 0, 0, NULL);
    cc_guard_check(gs, id, CC_CHK_SUSPENDED, want);
    Py_DECREF(want);
    gs->g.at[source].used = true;
    cc_guard_alone(gs, source, holders);
    cc_vec_push(&rec->trace->adopted, source);
    read_function(rec, (PyObject *)g->func, id);
    for (int i = 0; i < g->code->n_locals + g->depth; i++)
        if (kept_slot(g, i)) read_held(rec, o, g, id, i);
    cc_value_set(rec, o, CC_O_FRESH, source);
}

static bool frame_holds(const CcAct *act, PyObject *o) {
    for (int slot = 0; slot < act->code->n_locals + act->depth; slot++)
        if (cc_act_get(act, slot) == o) return true;
    return false;
}

/* If slots of several frames hold a generator, all get the new one: a frame that kept the old one in a variable that is no
 * longer read would close it when the frame ends. */
static void touch_holders(CcRec *rec, PyObject *generator) {
    int holders = 0;
    for (int i = 0; i < rec->frame.n; i++) holders += frame_holds(rec->frame.at[i].act, generator);
    for (int i = 0; i < rec->frame.n && holders > 1; i++)
        rec->frame.at[i].touched = rec->frame.at[i].touched || frame_holds(rec->frame.at[i].act, generator);
}

/* Adopts it in one of the slots that hold it; the others are aliases. */
static void adopt_owned(CcRec *rec, PyObject *v, int level, int slot) {
    CcGen g;
    if (!cc_generator_read(v, &g)) {
        adopt_function(rec, v, level, slot);
        return;
    }
    if (adopted_before(rec, v, CC_SRC_SLOT, -1, level, slot)) return;
    int read;
    (void)slots_holding(rec, v, &read);
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_SLOT, -1, NULL, level, slot, NULL);
    adopt_generator(rec, v, &g, id, read);
    touch_holders(rec, v);
}

/* symbolic: a number that varies between calls; it becomes an input unless Python code reads it. */
static void read_slot(CcRec *rec, CcAct *act, int level, int slot, bool symbolic) {
    PyObject *v = cc_act_get(act, slot);
    CcGuards *gs = &rec->trace->guards;
    if (adopted_before(rec, v, CC_SRC_SLOT, -1, level, slot)) return;
    if (v != NULL && (nested(v) || own_generator(rec, v))) {
        cc_vec_push(&rec->own, (struct CcOwn){level, slot, v});
        return;
    }
    if (v != NULL && symbolic && (may_vary(v) || cc_sym_textual(v))) {
        const int id = cc_guard_source(gs, CC_SRC_SLOT, -1, NULL, level, slot, NULL);
        if (!PyUnicode_CheckExact(v) && cc_sym_wanted(rec, id, v)) { /* Python code has read it */
            cc_sym_slot(rec, act, slot, id);
            return;
        }
        cc_act_put(act, slot, own_copy(rec, v, id));
        return;
    }
    const int id = cc_value_read(rec, CC_SRC_SLOT, -1, NULL, level, slot, v);
    cc_sym_slot(rec, act, slot, id);
    int read;
    if (v != NULL && PyTuple_Check(v) && gs->g.at[id].check == CC_CHK_TYPE && has_numpy(v) &&
        Py_REFCNT(v) == 1 + slots_holding(rec, v, &read) && read == 1) { /* 1: the provenance map's */
        cc_guard_alone(gs, id, read);
        cc_act_put(act, slot, own_tuple(rec, v, id));
        return;
    }
    if (v != NULL) cc_sym_tuple(rec, act, slot, id, v);
    const CcAdopt how = v != NULL ? cc_recipe_adopts(v) : CC_ADOPT_NO;
    if (how == CC_ADOPT_NO || cc_finalizers_observed(rec, v) || gs->g.at[id].check != CC_CHK_TYPE ||
        Py_REFCNT(v) > 1 + slots_holding(rec, v, &read)) /* 1: the provenance map's */
        return;
    if (how == CC_ADOPT_CONTENT) cc_vec_push(&rec->adoptable, ((struct CcAdoptable){v, id, read}));
    else (void)adopt(rec, v, id, read, 1);
}

CcGo cc_rec_begin_resume(CcRec *rec, CcAct *const *acts, int n, const CcMode *mode, CcVaries varies, void *ctx,
                         uint64_t salt) {
    cc_rec_begin(rec, mode, salt);
    rec->innermost = acts[n - 1];
    rec->obs = acts[0]->obs;
    for (int level = 0; level < n; level++)
        cc_vec_push(&rec->frame,
                    (CcRecFrame){.act = acts[level], .transparent = true, .kept = true, .touched = level == n - 1});
    cc_finalizers_begin(rec);
    for (int level = 0; level < n; level++) {
        CcAct *act = acts[level];
        const bool innermost = level == n - 1;
        if (level > 0) /* the root's function is fixed */
            guard_scope(rec, act->func, cc_guard_source(&rec->trace->guards, CC_SRC_FRAME, -1, NULL, 0, level, NULL));
        const int n_locals = act->code->n_locals;
        const int depth = innermost ? act->depth : cc_act_depth_after_call(act);
        for (int slot = 0; slot < n_locals + depth; slot++)
            if (cc_finalizers_slot(act, slot)) read_slot(rec, act, level, slot, varies(ctx, level, slot));
        act->observed = true;
    }
    for (int generators = 0; generators < 2; generators++) /* generators last: slots hold their functions */
        for (int i = 0; i < rec->own.n; i++)
            if (PyGen_CheckExact(rec->own.at[i].object) == generators)
                adopt_owned(rec, rec->own.at[i].object, rec->own.at[i].level, rec->own.at[i].slot);
    rec->own.n = 0;
    cc_sym_drop_pending(rec);
    cc_finalizers_adopted(rec);
    cc_idle_begin(rec);
    const CcAct *last = acts[n - 1];
    rec->trace->start = cc_site_place(last, cc_code_line(last->code, last->pc));
    for (int i = 0; i < rec->frame.n; i++) rec->frame.at[i].first_fresh = rec->prov.n;
    return CC_OK;
}
