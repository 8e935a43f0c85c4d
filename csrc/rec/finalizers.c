/* Objects whose end runs code: finalisers (a suspended generator in a `try` or `with`, a class with __del__) and
 * weak-reference callbacks. A replay must run this code where eager runs it. It makes no object of the trace unless the
 * result, an effect or a break's snapshot needs it, so an object of the trace that eager would finalise after the
 * trace's end (in a dead local, or in a cycle) needs care. */
#include "rec_int.h"

static bool catches_anywhere(const CcCode *code, PyObject *globals) {
    for (int pc = 0; pc < code->n; pc++)
        if (!cc_code_closes_quietly(code, pc, globals)) return true;
    return false;
}

typedef enum CcWhen { NOW, EVER } CcWhen;

/* Whether close() runs user code: an `except`, `finally` or `with` around the point of suspension, or around that of
 * the generator it delegates to by `yield from`. EVER: also count a generator that has not started yet. True if
 * unknown. */
static bool close_runs_code(PyObject *generator, CcWhen when) {
    const CcGenNow now = cc_generator_now(generator);
    if (now.state == CC_GEN_ENDED) return false;
    const CcCode *code = cc_code_get(now.co);
    if (code == NULL) {
        cc_raised_clear();
        return true;
    }
    if (now.state != CC_GEN_SUSPENDED) return when == EVER && catches_anywhere(code, now.globals);
    const int pc = cc_code_at(code, now.lasti);
    if (pc < 0 || !cc_code_closes_quietly(code, pc, now.globals)) return true;
    if (now.inner == NULL) return false;
    return PyGen_CheckExact(now.inner) ? close_runs_code(now.inner, when) : cc_generator_calls_close(now.inner);
}

bool cc_finalizers_has(PyObject *o) { return Py_TYPE(o)->tp_finalize != NULL; }

static bool ends_by_code(PyObject *o, CcWhen when, int depth);

/* A variable of the generator holds an object whose end runs code. */
static bool holds_final(PyObject *generator, CcWhen when, int depth) {
    CcGen g;
    if (depth == 0 || !cc_generator_read(generator, &g)) return false;
    for (int i = 0; i < g.code->n_locals + g.depth; i++) {
        PyObject *held = cc_generator_get(&g, i);
        if (held != NULL && ends_by_code(held, when, depth - 1)) return true;
    }
    return false;
}

static bool ends_by_code(PyObject *o, CcWhen when, int depth) {
    if (!cc_finalizers_has(o)) return false;
    return !PyGen_CheckExact(o) || close_runs_code(o, when) || holds_final(o, when, depth);
}

static bool runs_code(PyObject *o, CcWhen when) { return ends_by_code(o, when, 4); }

bool cc_finalizers_slot(const CcAct *act, int slot) {
    if (slot >= act->code->n_locals || cc_code_live(act->code, act->pc, slot)) return true;
    PyObject *o = cc_act_get(act, slot);
    return o != NULL && runs_code(o, EVER);
}

void cc_finalizers_delegates(CcRec *rec, const CcAct *act, PyObject *iterator) {
    if (PyGen_CheckExact(iterator) || !cc_generator_calls_close(iterator)) return;
    for (; act != NULL && act->generator; act = act->prev) {
        PyObject *generator = cc_act_generator(act);
        CcProv *p = cc_value_find(rec, generator);
        if (p != NULL && p->origin == CC_O_FRESH && p->weak != NULL) {
            Py_INCREF(generator);
            Py_CLEAR(p->weak);
            cc_vec_push(&rec->unweak, generator);
        }
        if (act->prev == NULL || act->prev->event == NULL || act->prev->event->kind != CC_EV_SEND) return;
    }
}

/* Only the provenance map holds it, or it has been freed. */
static bool gone(const CcProv *p) {
    return p->weak != NULL ? cc_weak_target(p->weak) == NULL : p->origin == CC_O_FRESH && Py_REFCNT(p->object) == 1;
}

/* Sweeps CcRec.loose from index `from` on: drops dead entries of prov with an index of `first` or more, and removes
 * stale indices. */
static void sweep_loose(CcRec *rec, int from, int first) {
    bool all = true;                                 /* all entries are alive */
    for (int k = rec->loose.n - 1; k >= from; k--) { /* newest first: newer objects may hold older ones */
        const int i = k < rec->loose.n ? rec->loose.at[k] : -1;
        CcProv *p = i >= 0 && i < rec->prov.n && rec->prov.at[i].object != NULL ? &rec->prov.at[i] : NULL;
        const bool goes = p != NULL && i >= first && gone(p);
        all = all && p != NULL && !goes;
        if (goes) cc_value_drop(rec, p); /* may run Python code, which may end the recording */
    }
    if (all) return;
    int n = CC_MIN(from, rec->loose.n);
    for (int k = n; k < rec->loose.n; k++) {
        const int i = rec->loose.at[k];
        if (i < rec->prov.n && rec->prov.at[i].object != NULL && cc_value_loose(&rec->prov.at[i]))
            rec->loose.at[n++] = i;
    }
    rec->loose.n = n;
}

enum { LOOSE_A_LEAVE = 8 };

/* Frees objects of running frames that only the map holds because C code dropped them, of which no frame tells us. If
 * they stayed until their frame's end, a loop over layers could keep one activation per layer. Sweeps are rare enough
 * to cost about LOOSE_A_LEAVE entries per frame that leaves. */
static void sweep_all(CcRec *rec) {
    if (++rec->leaves < rec->loose.n / LOOSE_A_LEAVE) return;
    rec->leaves = 0;
    sweep_loose(rec, 0, rec->frame.at[0].first_fresh);
}

void cc_finalizers_sweep(CcRec *rec, int first) {
    int from = rec->loose.n;
    while (from > 0 && rec->loose.at[from - 1] >= first) from--;
    sweep_loose(rec, from, first);
    while (rec->prov.n > first && cc_vec_last(&rec->prov).object == NULL) rec->prov.n--;
    if (rec->frame.n > 0) sweep_all(rec);
}

/* ------------------------------------------------------------------ objects freed during the trace */

typedef struct Freed {
    CcRec *rec;
    CC_VEC(int) known; /* provenance entries that the freed object held */
    int deep, seen;
    bool observed;
} Freed;

static bool is_observed(PyObject *o) { return cc_obj_has_weak_callback(o) || runs_code(o, EVER); }

/* Visits an object that a freed one holds. Objects without provenance may hold objects with provenance. */
static int visit_held(PyObject *o, void *ctx) {
    enum { DEEP = 32, MANY = 10000 };
    Freed *f = ctx;
    const int64_t *known = cc_map_find(&f->rec->by_object, o);
    if (known != NULL) {
        cc_vec_push(&f->known, (int)*known);
        return 0;
    }
    if (Py_REFCNT(o) > 1) return 0;
    f->observed = f->observed || is_observed(o);
    f->rec->weakref_freed = f->rec->weakref_freed || cc_obj_has_weakref(o);
    if (!PyObject_IS_GC(o) || f->deep >= DEEP || ++f->seen > MANY) return 0;
    f->deep++;
    (void)Py_TYPE(o)->tp_traverse(o, visit_held, f);
    f->deep--;
    return 0;
}

typedef struct Tree {
    CcRec *rec;
    CC_VEC(PyObject *) known; /* objects that provenance also holds */
    int deep, seen;
    bool observed;
} Tree;

/* Visits objects that only the container holds, apart from provenance. */
static int visit_alone(PyObject *o, void *ctx) {
    enum { DEEP = 8, MANY = 10000 };
    Tree *t = ctx;
    const CcProv *p = Py_REFCNT(o) <= 2 ? cc_value_find(t->rec, o) : NULL;
    const bool held = p != NULL && p->weak == NULL, weakly = p != NULL && p->weak != NULL;
    if (Py_REFCNT(o) > 1 + held) return 0;
    if (held) cc_vec_push(&t->known, o);
    t->observed = t->observed || is_observed(o) || (cc_obj_has_weakref(o) && !weakly) || ++t->seen > MANY;
    if (!PyObject_IS_GC(o) || t->deep >= DEEP || t->seen > MANY) return 0;
    t->deep++;
    (void)Py_TYPE(o)->tp_traverse(o, visit_alone, t);
    t->deep--;
    return 0;
}

static Tree look_alone(CcRec *rec, PyObject *container) {
    Tree t = {.rec = rec};
    if (PyObject_IS_GC(container)) (void)Py_TYPE(container)->tp_traverse(container, visit_alone, &t);
    return t;
}

bool cc_finalizers_in_container(CcRec *rec, PyObject *container) {
    if (cc_plain(rec, container)) return false;
    Tree t = look_alone(rec, container);
    for (int i = 0; t.observed && i < t.known.n; i++) cc_vec_push(&rec->maybe_freed, t.known.at[i]);
    cc_vec_free(&t.known);
    return t.observed;
}

/* Only provenance holds it. */
static bool only_known(const CcProv *p) {
    return p->object != NULL && p->weak == NULL && Py_REFCNT(p->object) == 1 &&
           (p->origin == CC_O_SOURCE || p->origin == CC_O_FRESH);
}

static void forget(CcRec *rec, CcProv *p) {
    for (int i = 0; i < rec->before.n; i++)
        if (rec->before.at[i].object == p->object) rec->before.at[i].object = NULL;
    cc_value_drop(rec, p); /* may run Python code, which may end the recording */
}

/* A finaliser or callback observes the end of `o`. A replay may have no such object if the trace made or adopted it:
 * the next recording breaks before making it, or does not adopt it. */
static void report_end(CcRec *rec, PyObject *o) {
    const int64_t *at = cc_map_find(&rec->by_object, o);
    if (at != NULL && rec->prov.at[*at].origin == CC_O_SOURCE) {
        rec->observed_drop = true;
    } else {
        rec->died = true;
        rec->unbuildable = o;
        cc_site_why(rec, rec->frame.n > 0 ? cc_vec_last(&rec->frame).act : NULL, CC_R_FINALISED, NULL);
        (void)cc_site_made(rec);
    }
    for (int i = 0; i < rec->held.n; i++) rec->held.at[i].ended = rec->held.at[i].ended || rec->held.at[i].object == o;
}

/* Uses the map entry directly: weak references to generators and to garbage are cleared before their finalisers run. */
bool cc_finalizers_ends(CcRec *rec, PyObject *o) {
    const int64_t *at = cc_map_find(&rec->by_object, o);
    if (at == NULL) return false;
    CcProv *p = &rec->prov.at[*at];
    if (p->origin != CC_O_SOURCE) return true;
    report_end(rec, o);
    const bool died = rec->died;
    cc_value_drop(rec, p);
    rec->died = died;
    return false;
}

void cc_finalizers_told(CcRec *rec, PyObject *o) {
    if (cc_map_find(&rec->by_object, o) != NULL) report_end(rec, o);
}

/* The object's end is noticed, or that of what only it holds. */
static bool ends_noticed(CcRec *rec, PyObject *o) {
    Tree t = look_alone(rec, o);
    cc_vec_free(&t.known);
    return t.observed || is_observed(o);
}

/* Only provenance holds the object, and effects from number `first` on, which wait for the trace's end. */
static bool only_effects(const CcRec *rec, const CcProv *p, const PyObject *o, int first) {
    Py_ssize_t n = 0;
    for (int e = first; e < rec->effect.n; e++)
        for (int i = 0; i < rec->effect.at[e].n; i++) n += rec->effect.at[e].in[i] == o;
    return n > 0 && Py_REFCNT(o) == (p->weak == NULL) + n;
}

bool cc_finalizers_not_kept(CcRec *rec) {
    if (rec->effect.n == 0) return false;
    const int last = rec->effect.n - 1;
    const struct CcRecEffect *e = &rec->effect.at[last];
    for (int i = 0; i < e->n; i++) {
        const CcProv *p = e->in[i] != NULL && PyObject_IS_GC(e->in[i]) ? cc_value_find(rec, e->in[i]) : NULL;
        if (p == NULL || p->origin != CC_O_FRESH || !only_effects(rec, p, e->in[i], last)) continue;
        if (!ends_noticed(rec, e->in[i])) continue;
        report_end(rec, e->in[i]);
        return true;
    }
    return false;
}

/* Drops the provenance of an object that only provenance holds, and of the objects that only this one holds. */
static void free_with_kids(CcRec *rec, int at) {
    Freed f = {.rec = rec};
    cc_vec_push(&f.known, at);
    while (f.known.n > 0 && rec->trace != NULL) {
        const int i = f.known.at[--f.known.n];
        if (i >= rec->prov.n || !only_known(&rec->prov.at[i])) continue;
        PyObject *freed = rec->prov.at[i].object;
        f.observed = is_observed(freed);
        if (PyObject_IS_GC(freed)) (void)Py_TYPE(freed)->tp_traverse(freed, visit_held, &f);
        if (f.observed) report_end(rec, freed);
        rec->weakref_freed = rec->weakref_freed || cc_obj_has_weakref(freed);
        forget(rec, &rec->prov.at[i]);
    }
    cc_vec_free(&f.known);
}

void cc_rec_released(CcRec *rec, PyObject *o) {
    const CcProv *p = o != NULL ? cc_value_find(rec, o) : NULL;
    if (o != NULL && (p == NULL || !only_known(p))) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (o != NULL) free_with_kids(rec, (int)(p - rec->prov.at));
    for (int i = rec->prov.n - 1; o == NULL && i >= 0; i--)
        if (i < rec->prov.n && only_known(&rec->prov.at[i])) free_with_kids(rec, i);
    PyErr_Restore(type, value, traceback);
}

/* Finds the slot that holds a value now, which may move up the stack or into a variable. Runs at each event: between
 * two events, no new object can reuse the address of a freed one. */
static void track(const CcRec *rec, struct CcHeld *h) {
    if (h->dropped || h->in_call || h->level >= rec->frame.n || !rec->frame.at[h->level].kept) return;
    const CcAct *act = rec->frame.at[h->level].act;
    const int n = act->code->n_locals + act->depth;
    if (h->slot_now < n && cc_act_get(act, h->slot_now) == h->object) return;
    for (h->slot_now = 0; h->slot_now < n && cc_act_get(act, h->slot_now) != h->object;) h->slot_now++;
    h->dropped = h->slot_now == n;
}

/* The frame no longer holds the object that this slot held when the trace began. */
static bool slot_dropped(const CcRec *rec, const struct CcHeld *h) {
    if (h->dropped || h->level >= rec->frame.n || !rec->frame.at[h->level].kept) return true;
    if (h->in_call) return h->level + 1 >= rec->frame.n || !rec->frame.at[h->level + 1].kept;
    if (h->object == NULL && h->slot >= rec->frame.at[h->level].act->code->n_locals) return true; /* not tracked */
    return !h->tracked && cc_act_stored(rec->frame.at[h->level].act, h->slot);
}

static bool guard_dropped(const CcRec *rec, int level, int slot) {
    for (int i = 0; i < rec->held.n; i++)
        if (rec->held.at[i].level == level && rec->held.at[i].slot == slot) return slot_dropped(rec, &rec->held.at[i]);
    return false;
}

/* The trace has adopted it: it may change freely, and nothing observes what it drops. */
static bool adopted(CcRec *rec, const void *o) {
    const CcProv *p = cc_value_find(rec, (PyObject *)o);
    return p != NULL && p->origin == CC_O_FRESH;
}

void cc_finalizers_begin(CcRec *rec) {
    rec->held.n = 0;
    for (int level = 0; level < rec->frame.n; level++) {
        const CcAct *act = rec->frame.at[level].act;
        const int n_locals = act->code->n_locals, n = n_locals + act->depth;
        const int waits = level + 1 < rec->frame.n ? n_locals + cc_act_depth_after_call(act) : n;
        for (int slot = 0; slot < n; slot++) {
            PyObject *o = cc_act_get(act, slot);
            const bool set = o != NULL;
            if (set && cc_value_const(o)) o = NULL;
            const bool observed = o != NULL && cc_obj_drop_notifies(&o, 1, false);
            cc_vec_push(&rec->held, (struct CcHeld){.level = level,
                                                    .slot = slot,
                                                    .slot_now = slot,
                                                    .object = o,
                                                    .set = set,
                                                    .in_call = slot >= waits,
                                                    .observed = observed,
                                                    .tracked = o != NULL && (observed || slot >= n_locals)});
        }
    }
}

void cc_finalizers_adopted(CcRec *rec) {
    int n = 0;
    for (int i = 0; i < rec->held.n; i++)
        if (rec->held.at[i].object == NULL || !PyGen_CheckExact((PyObject *)rec->held.at[i].object) ||
            !adopted(rec, rec->held.at[i].object))
            rec->held.at[n++] = rec->held.at[i];
    rec->held.n = n;
}

bool cc_finalizers_observed(const CcRec *rec, const PyObject *o) {
    for (int i = 0; i < rec->held.n; i++)
        if (rec->held.at[i].object == o) return rec->held.at[i].observed;
    return false;
}

bool cc_finalizers_drop_observed(CcRec *rec) {
    for (int i = 0; i < rec->held.n; i++) {
        struct CcHeld *h = &rec->held.at[i];
        if (h->tracked) track(rec, h);
        if (!h->observed || h->ended || !slot_dropped(rec, h)) continue;
        h->ended = rec->observed_drop = true;
    }
    return rec->observed_drop;
}

/* Whether several observed objects were dropped: a replay drops them in an order of its own. root: the root has
 * returned, so its slots drop what they still hold. */
static bool several_ended(const CcRec *rec, bool root) {
    const void *ended = NULL;
    bool several = false;
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (!h->ended && !(root && h->observed)) continue;
        several = several || (ended != NULL && ended != h->object);
        ended = h->object;
    }
    return several;
}

/* Adds a guard that nothing observes when these slots (level, slot) and the places of these guards (-1, guard) drop
 * their objects. */
static void guard_drops(CcRec *rec, const int *at, int n, bool weak) {
    if (n == 0) return;
    PyObject *slots;
    CC_RETRY_ALLOC(slots, PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)sizeof *at * n));
    bool is_new;
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_DROPPED, -1, slots, 0, weak, &is_new);
    if (is_new) cc_guard_check(&rec->trace->guards, id, CC_CHK_QUIET, NULL);
    Py_DECREF(slots);
}

static const void *place_of(int guard) { return (const void *)(intptr_t)(guard + 1); }

bool cc_finalizers_overwritten(const CcRec *rec, int guard) {
    return rec->overwritten.n > 0 && cc_map_find(&rec->overwritten, place_of(guard)) != NULL;
}

/* A replay overwrites the place that guard `id` reads: its content loses a reference, and another one if the guard holds
 * one. */
static void push_overwritten(const CcRec *rec, CcDrops *drops, int id) {
    if (!cc_finalizers_overwritten(rec, id)) return;
    for (int n = 0; n < 1 + rec->trace->guards.g.at[id].owned; n++) {
        cc_vec_push(drops, -1);
        cc_vec_push(drops, id);
    }
}

/* Lists what the trace has dropped so far; cc_finalizers_end adds the guard. */
static void list_weak_drops(CcRec *rec) {
    const int length = rec->weak_drops.n;
    cc_vec_push(&rec->weak_drops, 0);
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (!slot_dropped(rec, h) && !adopted(rec, h->object)) continue;
        cc_vec_push(&rec->weak_drops, h->level);
        cc_vec_push(&rec->weak_drops, h->slot);
    }
    for (int id = 0; id < rec->trace->guards.g.n; id++) push_overwritten(rec, &rec->weak_drops, id);
    rec->weak_drops.at[length] = rec->weak_drops.n - length - 1;
}

void cc_finalizers_deleted(CcRec *rec, const CcAct *root) {
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (h->level == 0 && h->set && h->slot < root->code->n_locals && cc_act_get(root, h->slot) == NULL)
            cc_vec_push(&rec->trace->deleted, h->slot);
    }
}

void cc_finalizers_settle(CcRec *rec) {
    (void)cc_finalizers_drop_observed(rec);
    for (int i = 0; i < rec->held.n; i++) rec->held.at[i].dropped = slot_dropped(rec, &rec->held.at[i]);
}

/* A guard can read the place's content before a replay overwrites it. */
static bool guard_can_read(const CcGuards *gs, int id) {
    for (; id >= 0; id = gs->g.at[id].parent) switch ((CcSource)gs->g.at[id].source) {
        case CC_SRC_ARG:
        case CC_SRC_SLOT:
        case CC_SRC_CONST:
        case CC_SRC_DICTOF:
        case CC_SRC_PROXIED:
        case CC_SRC_KEY:
        case CC_SRC_OWN:
        case CC_SRC_ITEM:
        case CC_SRC_CELL:
        case CC_SRC_MEMBER:
        case CC_SRC_TYPE:
        case CC_SRC_TLOOK: break;
        default: return false;
        }
    return true;
}

/* The place may hold an object whose end is noticed: numbers and tensors that a guard describes are none. */
static bool may_hold_observed(const CcGuard *g) {
    if (g->check == CC_CHK_TENSOR || g->check == CC_CHK_VALUE || g->check == CC_CHK_ABSENT) return false;
    return g->check != CC_CHK_TYPE || PyType_IS_GC((PyTypeObject *)g->want);
}

void cc_finalizers_end(CcRec *rec) {
    for (int i = 0; i < rec->weak_drops.n; i += rec->weak_drops.at[i] + 1)
        guard_drops(rec, rec->weak_drops.at + i + 1, rec->weak_drops.at[i], true);
    CcDrops at = {0};
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (h->observed || h->ended || !h->dropped) continue;
        cc_vec_push(&at, h->level);
        cc_vec_push(&at, h->slot);
    }
    const CcGuards *gs = &rec->trace->guards;
    for (int id = 0; id < gs->g.n; id++)
        if (may_hold_observed(&gs->g.at[id]) && guard_can_read(gs, id)) push_overwritten(rec, &at, id);
    guard_drops(rec, at.at, at.n, false);
    cc_vec_free(&at);
}

/* Queues the objects that were read from this place. */
static void queue_known(CcRec *rec, int guard) {
    const int64_t *n = cc_map_find(&rec->read_by, (const void *)(intptr_t)(guard + 1));
    int64_t left = n != NULL ? *n : 0;
    for (int i = 0; i < rec->prov.n && left > 0; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object == NULL || p->weak != NULL || p->origin != CC_O_SOURCE || p->id != guard) continue;
        cc_vec_push(&rec->maybe_freed, p->object);
        left--;
    }
}

/* O.b = O.a; O.a = O.b = None */
static bool outlived_by_effects(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    return p != NULL && p->origin == CC_O_SOURCE && only_effects(rec, p, o, 0);
}

void cc_finalizers_check_freed(CcRec *rec) {
    while (rec->maybe_freed.n > 0 && rec->trace != NULL) {
        PyObject *o = rec->maybe_freed.at[--rec->maybe_freed.n];
        if (cc_map_find(&rec->by_object, o) == NULL) continue;
        if (!outlived_by_effects(rec, o)) cc_rec_released(rec, o);
        else if (ends_noticed(rec, o)) report_end(rec, o);
    }
    rec->maybe_freed.n = 0;
    for (int i = 0; i < rec->unweak.n && rec->trace != NULL; i++)
        if (cc_map_find(&rec->by_object, rec->unweak.at[i]) != NULL) cc_rec_released(rec, rec->unweak.at[i]);
}

bool cc_finalizers_replaces(CcRec *rec, PyObject *old, PyObject *now) {
    rec->stays = old == now ? now : NULL;
    if (old == NULL || old == now || cc_value_const(old)) return false;
    if (cc_value_find(rec, old) == NULL) return cc_obj_drop_notifies(&old, 1, false);
    cc_vec_push(&rec->maybe_freed, old);
    return false;
}

/* The current event stores the object that is already there, from another place than these guards read: a guard checks
 * that it is the same one. (self.layer = self.layer.to(dtype)) */
static bool stays(CcRec *rec, const int *guards, int n) {
    const CcProv *p = rec->stays != NULL ? cc_value_find(rec, rec->stays) : NULL;
    if (p == NULL || p->origin != CC_O_SOURCE || cc_finalizers_overwritten(rec, guards[0])) return false;
    for (int i = 0; i < n; i++)
        if (p->id == guards[i]) return true;
    cc_guard_add_check(&rec->trace->guards, guards[0], CC_CHK_ALIAS, NULL, p->id);
    return true;
}

void cc_finalizers_written(CcRec *rec, const int *guards, int n) {
    rec->overwrites_known = true;
    if (stays(rec, guards, n)) return;
    for (int i = 0; i < n; i++) {
        queue_known(rec, guards[i]);
        cc_map_put(&rec->overwritten, place_of(guards[i]), 1);
        rec->overwrites_known = rec->overwrites_known && guard_can_read(&rec->trace->guards, guards[i]);
    }
}

void cc_finalizers_effect(CcRec *rec, const CcAction *a) {
    const bool stores = a->form == CC_F_SETATTR || a->form == CC_F_DELATTR || a->form == CC_F_SETITEM ||
                        a->form == CC_F_DELITEM || a->form == CC_F_SETCELL;
    rec->drops_unknown =
        rec->drops_unknown || (!(a->form == CC_F_CALL && cc_cache_is(a->target)) && !(stores && rec->overwrites_known));
    rec->overwrites_known = false;
}

static bool written(const CcRec *rec, int id) {
    if (cc_finalizers_overwritten(rec, id)) return true;
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object != NULL && p->origin == CC_O_SOURCE && p->id == id && p->dirty != CC_DIRTY_NO) return true;
    }
    return false;
}

/* The chain of references by which `o` was found when the trace began is unbroken. */
static bool reachable_as_before(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL || p->origin != CC_O_SOURCE) return false;
    const CcGuards *gs = &rec->trace->guards;
    for (int id = p->id; id >= 0; id = gs->g.at[id].parent) {
        const CcGuard *g = &gs->g.at[id];
        if (id != p->id && written(rec, id)) return false;
        switch ((CcSource)g->source) {
        case CC_SRC_ARG:
        case CC_SRC_CONST: return true;
        case CC_SRC_SLOT: return !guard_dropped(rec, g->level, g->index);
        case CC_SRC_KEY:
        case CC_SRC_OWN:
        case CC_SRC_CELL:
            if (cc_finalizers_overwritten(rec, id)) return false;
            break;
        case CC_SRC_ITEM:
        case CC_SRC_DICTOF:
        case CC_SRC_PROXIED: break;
        default: return false;
        }
    }
    return false;
}

bool cc_finalizers_weakref_unknown(CcRec *rec, PyObject *ref) {
    cc_rec_released(rec, NULL); /* C code may have dropped objects, too */
    if (rec->trace == NULL) return true;
    PyObject *o = cc_weak_target(ref);
    if (o != NULL && reachable_as_before(rec, o)) return false;
    if (rec->weakref_freed || rec->drops_unknown) return true;
    list_weak_drops(rec);
    return false;
}

/* An observed object is in another slot than when the trace began. A replay that returns drops the slots as the trace
 * found them, the stack first. */
static bool moved(const CcRec *rec) {
    for (int i = 0; i < rec->held.n; i++)
        if (rec->held.at[i].observed && rec->held.at[i].slot_now != rec->held.at[i].slot) return true;
    return false;
}

bool cc_finalizers_died(CcRec *rec, const CcAct *act) {
    const bool died = rec->died;
    const bool paused = cc_hook_pause(act->obs, true);
    cc_finalizers_sweep(rec, 0); /* only the map may hold the object that held it */
    cc_hook_pause(act->obs, paused);
    for (int i = 0; i < rec->prov.n && !rec->died; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->weak == NULL || p->origin != CC_O_SOURCE) continue;
        PyObject *o = cc_weak_target(p->weak);
        rec->died = o == NULL || PyObject_GC_IsFinalized(o) != p->finalised;
    }
    const bool root = rec->frame.n == 0;
    if (rec->observed_drop || (root && moved(rec)))
        rec->died = died || several_ended(rec, root); /* everything else that died was part of it */
    return rec->died;
}

/* ------------------------------------------------------------------ objects that the trace made and left behind */

static bool is_made(const CcProv *p) {
    return p->object != NULL && p->origin == CC_O_FRESH && (p->weak == NULL || cc_weak_target(p->weak) != NULL);
}

/* Finds objects that only the recorder still holds, as CPython's collector finds garbage: subtracts the references from
 * the recorder and from objects of the trace; whatever has references left is in use, with everything reachable from
 * it. */
typedef struct Left {
    CcMap count; /* object of the trace -> references from the recorder and from objects of the trace; -1: in use */
    CC_VEC(PyObject *) used;
} Left;

static int count_one(PyObject *o, void *ctx) {
    int64_t *n = o != NULL ? cc_map_find(&((Left *)ctx)->count, o) : NULL;
    if (n != NULL) ++*n;
    return 0;
}

static int use(PyObject *o, void *ctx) {
    Left *l = ctx;
    int64_t *n = cc_map_find(&l->count, o);
    if (n == NULL || *n < 0) return 0;
    *n = -1;
    cc_vec_push(&l->used, o);
    return 0;
}

static void traverse(PyObject *o, visitproc visit, Left *l) {
    if (PyObject_IS_GC(o)) (void)Py_TYPE(o)->tp_traverse(o, visit, l);
}

static void find_used(const CcRec *rec, Left *l) {
    for (int i = 0; i < rec->prov.n; i++)
        if (is_made(&rec->prov.at[i])) cc_map_put(&l->count, rec->prov.at[i].object, rec->prov.at[i].weak == NULL);
    for (int i = 0; i < rec->keep.n; i++) (void)count_one(rec->keep.at[i], l);
    for (int e = 0; e < rec->effect.n; e++)
        for (int i = 0; i < rec->effect.at[e].n; i++) (void)count_one(rec->effect.at[e].in[i], l);
    for (int i = 0; i < rec->prov.n; i++)
        if (is_made(&rec->prov.at[i])) traverse(rec->prov.at[i].object, count_one, l);
    for (int i = 0; i < rec->prov.n; i++) {
        PyObject *o = rec->prov.at[i].object;
        if (is_made(&rec->prov.at[i]) && *cc_map_find(&l->count, o) < Py_REFCNT(o)) (void)use(o, l);
    }
    while (l->used.n > 0) traverse(l->used.at[--l->used.n], use, l);
}

/* The trace made an object with a finaliser, stored it in an object from outside, and removed it again: eager finalises
 * it at that point, but a replay, whose effects run last, would do so later. */
static bool taken_out(CcRec *rec) {
    bool any = false;
    for (int i = 0; i < rec->prov.n && rec->trace->effect.n > 1; i++)
        any = any || (is_made(&rec->prov.at[i]) && runs_code(rec->prov.at[i].object, NOW));
    if (!any) return false;
    Left l = {0};
    find_used(rec, &l);
    for (int i = 0; i < rec->prov.n && any; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (!is_made(p) || !runs_code(p->object, NOW) || *cc_map_find(&l.count, p->object) < 0) continue;
        rec->unbuildable = p->object;
        any = false;
    }
    cc_map_free(&l.count);
    cc_vec_free(&l.used);
    return !any;
}

bool cc_finalizers_unbuildable(CcRec *rec, CcMap *memo) {
    if (taken_out(rec)) return true;
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object == NULL || p->origin != CC_O_FRESH || (p->weak != NULL && cc_weak_target(p->weak) == NULL))
            continue;
        if (cc_map_find(memo, p->object) != NULL || !runs_code(p->object, NOW)) continue;
        rec->unbuildable = p->object;
        return true;
    }
    return false;
}
