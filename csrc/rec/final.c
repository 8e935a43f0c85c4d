/* What the trace made and eager finalises behind its end: a suspended generator in a `try` or `with`, an object whose
 * class has __del__, in a local that nobody reads any more or in a cycle. A replay makes neither such an object nor its
 * end, unless the result, an effect or the snapshot of a break needs it. */
#include "rec_int.h"

static bool catches_anywhere(const CcCode *code, PyObject *globals) {
    for (int pc = 0; pc < code->n; pc++)
        if (!cc_code_closes_quietly(code, pc, globals)) return true;
    return false;
}

typedef enum CcWhen { NOW, EVER } CcWhen;

/* Whether close() runs code of the user's: an `except`, `finally` or `with` around the suspension, or around that of
 * what it waits for by `yield from`. EVER: also of one that has not begun, and may. True when it can't be told. */
static bool close_runs_code(PyObject *generator, CcWhen when) {
    PyObject *frame = PyObject_GetAttrString(generator, "gi_frame"),
             *inner = PyObject_GetAttrString(generator, "gi_yieldfrom");
    PyObject *suspended = PyObject_GetAttrString(generator, "gi_suspended"),
             *co = PyObject_GetAttrString(generator, "gi_code");
    const bool there = frame != NULL && frame != Py_None;
    PyObject *last = there ? PyObject_GetAttrString(frame, "f_lasti") : NULL,
             *globals = there ? PyObject_GetAttrString(frame, "f_globals") : NULL;
    const CcCode *code = co != NULL ? cc_code_get((PyCodeObject *)co) : NULL;
    const long unit = last != NULL ? PyLong_AsLong(last) / (long)sizeof(uint16_t) : -1;
    bool runs = true;
    if (frame == Py_None) runs = false; /* it has ended */
    else if (code != NULL && globals != NULL && suspended == Py_False)
        runs = when == EVER && catches_anywhere(code, globals);
    else if (code != NULL && globals != NULL && inner != NULL && unit >= 0 && unit < code->n_units &&
             code->by_unit[unit] >= 0) {
        runs = !cc_code_closes_quietly(code, code->by_unit[unit], globals);
        if (!runs && inner != Py_None)
            runs = PyGen_CheckExact(inner) ? close_runs_code(inner, when) : PyObject_HasAttrString(inner, "close");
    }
    PyErr_Clear();
    Py_XDECREF(frame);
    Py_XDECREF(inner);
    Py_XDECREF(suspended);
    Py_XDECREF(co);
    Py_XDECREF(last);
    Py_XDECREF(globals);
    return runs;
}

bool cc_final_has(PyObject *o) { return Py_TYPE(o)->tp_finalize != NULL; }

static bool runs_code(PyObject *o, CcWhen when) {
    return cc_final_has(o) && (!PyGen_CheckExact(o) || close_runs_code(o, when));
}

bool cc_final_slot(const CcAct *act, int slot) {
    if (slot >= act->code->n_locals || cc_code_live(act->code, act->pc, slot)) return true;
    PyObject *o = cc_act_get(act, slot);
    return o != NULL && runs_code(o, EVER);
}

/* Only the map holds it, or it is gone. */
static bool gone(const CcProv *p) {
    return p->weak != NULL ? cc_weak_target(p->weak) == NULL : p->origin == CC_O_FRESH && Py_REFCNT(p->object) == 1;
}

/* Of CcRec.loose, from `from` on: drops what is gone and was met as the `first` or later, and forgets what has gone. */
static void sweep_loose(CcRec *rec, int from, int first) {
    bool all = true;                                 /* are there still */
    for (int k = rec->loose.n - 1; k >= from; k--) { /* what was made last may hold what was made before */
        const int i = k < rec->loose.n ? rec->loose.at[k] : -1;
        CcProv *p = i >= 0 && i < rec->prov.n && rec->prov.at[i].object != NULL ? &rec->prov.at[i] : NULL;
        const bool goes = p != NULL && i >= first && gone(p);
        all = all && p != NULL && !goes;
        if (goes) cc_value_drop(rec, p); /* Python code may run, and the recording end */
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

/* What the frames still running made, and only the map holds, though no frame has let go of it (C code has). Were it to wait
 * for its frame's end, a loop over layers could keep an activation a layer. A trace that makes many objects goes over them so
 * seldom that a leave costs LOOSE_A_LEAVE of them. */
static void sweep_all(CcRec *rec) {
    if (++rec->leaves < rec->loose.n / LOOSE_A_LEAVE) return;
    rec->leaves = 0;
    sweep_loose(rec, 0, rec->frame.at[0].first_fresh);
}

void cc_final_sweep(CcRec *rec, int first) {
    int from = rec->loose.n;
    while (from > 0 && rec->loose.at[from - 1] >= first) from--;
    sweep_loose(rec, from, first);
    while (rec->prov.n > first && cc_vec_last(&rec->prov).object == NULL) rec->prov.n--;
    if (rec->frame.n > 0) sweep_all(rec);
}

/* ------------------------------------------------------------------ what dies in the middle */

typedef struct Falling {
    CcRec *rec;
    CC_VEC(int) known; /* provenance of what falls holds */
    int deep, seen;
    bool told;
} Falling;

static bool told(PyObject *o) { return cc_obj_watched(o) || runs_code(o, EVER); }

/* What an object that is going holds. Provenance may know what is held by something that it does not know. */
static int visit_held(PyObject *o, void *ctx) {
    enum { DEEP = 32, MANY = 10000 };
    Falling *f = ctx;
    const int64_t *known = cc_map_find(&f->rec->by_object, o);
    if (known != NULL) {
        cc_vec_push(&f->known, (int)*known);
        return 0;
    }
    if (Py_REFCNT(o) > 1) return 0;
    f->told = f->told || told(o);
    f->rec->parted = f->rec->parted || cc_obj_weakly_held(o);
    if (!PyObject_IS_GC(o) || f->deep >= DEEP || ++f->seen > MANY) return 0;
    f->deep++;
    (void)Py_TYPE(o)->tp_traverse(o, visit_held, f);
    f->deep--;
    return 0;
}

typedef struct Tree {
    CcRec *rec;
    CC_VEC(PyObject *) known; /* that provenance holds */
    int deep, seen;
    bool noticed;
} Tree;

/* What hangs on a container, besides what provenance holds of it, by one reference. */
static int visit_alone(PyObject *o, void *ctx) {
    enum { DEEP = 8, MANY = 10000 };
    Tree *t = ctx;
    const CcProv *p = Py_REFCNT(o) <= 2 ? cc_value_find(t->rec, o) : NULL;
    const bool held = p != NULL && p->weak == NULL, weakly = p != NULL && p->weak != NULL;
    if (Py_REFCNT(o) > 1 + held) return 0;
    if (held) cc_vec_push(&t->known, o);
    t->noticed = t->noticed || told(o) || (cc_obj_weakly_held(o) && !weakly) || ++t->seen > MANY;
    if (!PyObject_IS_GC(o) || t->deep >= DEEP || t->seen > MANY) return 0;
    t->deep++;
    (void)Py_TYPE(o)->tp_traverse(o, visit_alone, t);
    t->deep--;
    return 0;
}

bool cc_final_holds(CcRec *rec, PyObject *container) {
    Tree t = {.rec = rec};
    if (PyObject_IS_GC(container)) (void)Py_TYPE(container)->tp_traverse(container, visit_alone, &t);
    for (int i = 0; t.noticed && i < t.known.n; i++) cc_vec_push(&rec->loosed, t.known.at[i]);
    cc_vec_free(&t.known);
    return t.noticed;
}

/* Provenance alone holds it. */
static bool alone(const CcProv *p) {
    return p->object != NULL && p->weak == NULL && Py_REFCNT(p->object) == 1 &&
           (p->origin == CC_O_SOURCE || p->origin == CC_O_FRESH);
}

static void forget(CcRec *rec, CcProv *p) {
    for (int i = 0; i < rec->before.n; i++)
        if (rec->before.at[i].object == p->object) rec->before.at[i].object = NULL;
    cc_value_drop(rec, p); /* Python code may run, and the recording end */
}

/* Somebody is told of its end. What the trace made, or changes freely, a replay need not have: it is to be made behind a break,
 * or not to be changed. */
static void noticed(CcRec *rec, PyObject *o) {
    const int64_t *at = cc_map_find(&rec->by_object, o);
    if (at != NULL && rec->prov.at[*at].origin == CC_O_SOURCE) {
        rec->fallen = true;
    } else {
        rec->died = true;
        rec->unbuildable = o;
        cc_site_why(rec, rec->frame.n > 0 ? cc_vec_last(&rec->frame).act : NULL, CC_R_FINALISED, NULL);
        (void)cc_site_made(rec);
    }
    for (int i = 0; i < rec->held.n; i++) rec->held.at[i].fell = rec->held.at[i].fell || rec->held.at[i].object == o;
}

/* A generator's weak references are cleared before it is finalised, and so are all of garbage: the entry is looked at as it is. */
bool cc_final_ends(CcRec *rec, PyObject *o) {
    const int64_t *at = cc_map_find(&rec->by_object, o);
    if (at == NULL) return false;
    CcProv *p = &rec->prov.at[*at];
    if (p->origin != CC_O_SOURCE) return true;
    noticed(rec, o);
    const bool died = rec->died;
    cc_value_drop(rec, p);
    rec->died = died;
    return false;
}

/* What falls, with what hangs on it alone. */
static void fall(CcRec *rec, int at) {
    Falling f = {.rec = rec};
    cc_vec_push(&f.known, at);
    while (f.known.n > 0 && rec->trace != NULL) {
        const int i = f.known.at[--f.known.n];
        if (i >= rec->prov.n || !alone(&rec->prov.at[i])) continue;
        PyObject *falls = rec->prov.at[i].object;
        f.told = told(falls);
        if (PyObject_IS_GC(falls)) (void)Py_TYPE(falls)->tp_traverse(falls, visit_held, &f);
        if (f.told) noticed(rec, falls);
        rec->parted = rec->parted || cc_obj_weakly_held(falls);
        forget(rec, &rec->prov.at[i]);
    }
    cc_vec_free(&f.known);
}

void cc_rec_let_go(CcRec *rec, PyObject *o) {
    const CcProv *p = o != NULL ? cc_value_find(rec, o) : NULL;
    if (o != NULL && (p == NULL || !alone(p))) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (o != NULL) fall(rec, (int)(p - rec->prov.at));
    for (int i = rec->prov.n - 1; o == NULL && i >= 0; i--)
        if (i < rec->prov.n && alone(&rec->prov.at[i])) fall(rec, i);
    PyErr_Restore(type, value, traceback);
}

/* A value on the stack moves on, into a variable or up: followed from event to event, between which nothing is made that
 * could get the address of what went. */
static void follow(const CcRec *rec, struct CcHeld *h) {
    if (h->shed || h->waits || h->level >= rec->frame.n || !rec->frame.at[h->level].kept) return;
    const CcAct *act = rec->frame.at[h->level].act;
    const int n = act->code->n_locals + act->depth;
    if (h->now < n && cc_act_get(act, h->now) == h->object) return;
    for (h->now = 0; h->now < n && cc_act_get(act, h->now) != h->object;) h->now++;
    h->shed = h->now == n;
}

/* The frame no longer holds what it held here when the trace began. */
static bool slot_shed(const CcRec *rec, const struct CcHeld *h) {
    if (h->shed || h->level >= rec->frame.n || !rec->frame.at[h->level].kept) return true;
    if (h->waits) return h->level + 1 >= rec->frame.n || !rec->frame.at[h->level + 1].kept;
    return !h->moves && cc_act_stored(rec->frame.at[h->level].act, h->slot);
}

static bool guard_shed(const CcRec *rec, int level, int slot) {
    for (int i = 0; i < rec->held.n; i++)
        if (rec->held.at[i].level == level && rec->held.at[i].slot == slot) return slot_shed(rec, &rec->held.at[i]);
    return false;
}

/* It is changed, and nobody is told of what it lets go of. */
static bool adopted(CcRec *rec, const void *o) {
    const CcProv *p = cc_value_find(rec, (PyObject *)o);
    return p != NULL && p->origin == CC_O_FRESH;
}

void cc_final_begin(CcRec *rec) {
    rec->held.n = 0;
    for (int level = 0; level < rec->frame.n; level++) {
        const CcAct *act = rec->frame.at[level].act;
        const int n_locals = act->code->n_locals, n = n_locals + act->depth;
        const int waits = level + 1 < rec->frame.n ? n_locals + cc_act_waiting_depth(act) : n;
        for (int slot = 0; slot < n; slot++) {
            PyObject *o = cc_act_get(act, slot);
            if (o == NULL || cc_value_const(o)) continue;
            const bool loud = cc_obj_fall(&o, 1, false);
            cc_vec_push(&rec->held, (struct CcHeld){.level = level,
                                                    .slot = slot,
                                                    .now = slot,
                                                    .object = o,
                                                    .waits = slot >= waits,
                                                    .loud = loud,
                                                    .moves = loud || slot >= n_locals});
        }
    }
}

void cc_final_adopted(CcRec *rec) {
    int n = 0;
    for (int i = 0; i < rec->held.n; i++)
        if (!(PyGen_CheckExact((PyObject *)rec->held.at[i].object) && adopted(rec, rec->held.at[i].object)))
            rec->held.at[n++] = rec->held.at[i];
    rec->held.n = n;
}

bool cc_final_loud(const CcRec *rec, const PyObject *o) {
    for (int i = 0; i < rec->held.n; i++)
        if (rec->held.at[i].object == o) return rec->held.at[i].loud;
    return false;
}

bool cc_final_fallen(CcRec *rec) {
    for (int i = 0; i < rec->held.n; i++) {
        struct CcHeld *h = &rec->held.at[i];
        if (h->moves) follow(rec, h);
        if (!h->loud || h->fell || !slot_shed(rec, h)) continue;
        h->fell = rec->fallen = true;
    }
    return rec->fallen;
}

/* A replay lets go of what slots held in an order of its own. root: so it does with what they hold yet. */
static bool several_fell(const CcRec *rec, bool root) {
    const void *fell = NULL;
    bool several = false;
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (!h->fell && !(root && h->loud)) continue;
        several = several || (fell != NULL && fell != h->object);
        fell = h->object;
    }
    return several;
}

/* The slot that a value is reached from; -1: none. */
static int root_slot(const CcGuards *gs, int id) {
    while (gs->g.at[id].parent >= 0) id = gs->g.at[id].parent;
    return gs->g.at[id].source == CC_SRC_SLOT ? id : -1;
}

/* A guard: nobody would notice were these slots let go of, and what lies at those places (-1, source). */
static void guard_falls(CcRec *rec, const int *at, int n, bool weak) {
    if (n == 0) return;
    PyObject *slots;
    CC_SURE(slots, PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)sizeof *at * n));
    bool is_new;
    const int id = cc_guard_source(&rec->trace->guards, CC_SRC_FALLS, -1, slots, 0, weak, &is_new);
    if (is_new) cc_guard_alias(&rec->trace->guards, id, CC_CHK_QUIET, id);
    Py_DECREF(slots);
}

static void guard_weak(CcRec *rec) {
    CC_VEC(int) at = {0};
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (!slot_shed(rec, h) && !adopted(rec, h->object)) continue;
        cc_vec_push(&at, h->level);
        cc_vec_push(&at, h->slot);
    }
    for (int id = 0; id < rec->trace->guards.g.n && rec->lost.n > 0; id++) {
        if (cc_map_find(&rec->lost, (const void *)(intptr_t)(id + 1)) == NULL) continue;
        cc_vec_push(&at, -1);
        cc_vec_push(&at, id);
    }
    guard_falls(rec, at.at, at.n, true);
    cc_vec_free(&at);
}

void cc_final_settle(CcRec *rec) {
    (void)cc_final_fallen(rec);
    for (int i = 0; i < rec->held.n; i++) rec->held.at[i].shed = slot_shed(rec, &rec->held.at[i]);
}

void cc_final_end(CcRec *rec) {
    const CcGuards *gs = &rec->trace->guards;
    CC_VEC(int) at = {0};
    for (int i = 0; i < rec->held.n; i++) {
        const struct CcHeld *h = &rec->held.at[i];
        if (h->loud || h->fell || !h->shed) continue;
        cc_vec_push(&at, h->level);
        cc_vec_push(&at, h->slot);
        for (int id = 0; id < gs->g.n; id++) { /* a run holds it once more */
            const int slot = gs->g.at[id].used ? root_slot(gs, id) : -1;
            if (slot < 0 || gs->g.at[slot].level != h->level || gs->g.at[slot].index != h->slot) continue;
            cc_vec_push(&at, -1);
            cc_vec_push(&at, id);
        }
    }
    guard_falls(rec, at.at, at.n, false);
    cc_vec_free(&at);
}

/* A replay can look what is there. */
static bool visible(const CcGuards *gs, int id) {
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
        case CC_SRC_TYPE:
        case CC_SRC_TLOOK: break;
        default: return false;
        }
    return true;
}

/* What provenance knows of this place. */
static void loosen(CcRec *rec, int guard) {
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object != NULL && p->weak == NULL && p->origin == CC_O_SOURCE && p->id == guard)
            cc_vec_push(&rec->loosed, p->object);
    }
}

void cc_final_loosed(CcRec *rec) {
    while (rec->loosed.n > 0 && rec->trace != NULL) {
        PyObject *o = rec->loosed.at[--rec->loosed.n];
        if (cc_map_find(&rec->by_object, o) != NULL) cc_rec_let_go(rec, o);
    }
    rec->loosed.n = 0;
}

void cc_final_written(CcRec *rec, int guard) {
    loosen(rec, guard);
    cc_map_put(&rec->lost, (const void *)(intptr_t)(guard + 1), 1);
    rec->tells = visible(&rec->trace->guards, guard);
}

void cc_final_effect(CcRec *rec, const CcAction *a) {
    const bool stores = a->form == CC_F_SETATTR || a->form == CC_F_DELATTR || a->form == CC_F_SETITEM ||
                        a->form == CC_F_DELITEM || a->form == CC_F_SETCELL;
    rec->blind = rec->blind || (!(a->form == CC_F_CALL && cc_cache_is(a->target)) && !(stores && rec->tells));
    rec->tells = false;
}

static bool written(const CcRec *rec, int id) {
    if (cc_map_find(&rec->lost, (const void *)(intptr_t)(id + 1)) != NULL) return true;
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object != NULL && p->origin == CC_O_SOURCE && p->id == id && p->dirty != CC_DIRTY_NO) return true;
    }
    return false;
}

/* It hangs where it hung when the trace began, by references all the way. */
static bool hangs(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL || p->origin != CC_O_SOURCE) return false;
    const CcGuards *gs = &rec->trace->guards;
    for (int id = p->id; id >= 0; id = gs->g.at[id].parent) {
        const CcGuard *g = &gs->g.at[id];
        if (id != p->id && written(rec, id)) return false;
        switch ((CcSource)g->source) {
        case CC_SRC_ARG:
        case CC_SRC_CONST: return true;
        case CC_SRC_SLOT: return !guard_shed(rec, g->level, g->index);
        case CC_SRC_KEY:
        case CC_SRC_OWN:
            if (cc_map_find(&rec->lost, (const void *)(intptr_t)(id + 1)) != NULL) return false;
            break;
        case CC_SRC_ITEM:
        case CC_SRC_DICTOF:
        case CC_SRC_PROXIED: break;
        default: return false;
        }
    }
    return false;
}

bool cc_final_shed(CcRec *rec, PyObject *ref) {
    cc_rec_let_go(rec, NULL); /* C code let go of things, too */
    if (rec->trace == NULL) return true;
    PyObject *o = cc_weak_target(ref);
    if (o != NULL && hangs(rec, o)) return false;
    if (rec->parted || rec->blind) return true;
    guard_weak(rec);
    return false;
}

bool cc_final_died(CcRec *rec, const CcAct *act) {
    const bool died = rec->died;
    const bool paused = cc_hook_pause(act->obs, true);
    cc_final_sweep(rec, 0); /* what held it may be held by the map alone */
    cc_hook_pause(act->obs, paused);
    for (int i = 0; i < rec->prov.n && !rec->died; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->weak == NULL || p->origin != CC_O_SOURCE) continue;
        PyObject *o = cc_weak_target(p->weak);
        rec->died = o == NULL || PyObject_GC_IsFinalized(o) != p->finalised;
    }
    if (rec->fallen) rec->died = died || several_fell(rec, rec->frame.n == 0); /* what else went, went with it */
    return rec->died;
}

/* ------------------------------------------------------------------ what the trace has made and left */

static bool is_made(const CcProv *p) {
    return p->object != NULL && p->origin == CC_O_FRESH && (p->weak == NULL || cc_weak_target(p->weak) != NULL);
}

/* Does nobody but the recorder hold it any more? As CPython's collector tells garbage: references that come from here are
 * taken off the counts, and what has any left is in use, with all that hangs on it. */
typedef struct Left {
    CcMap count; /* of what the trace made: references by the recorder, or by what it made; -1: it is in use */
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

/* Something that is finalised was made, put into what existed before, and taken out again: it is finalised there, and a
 * replay, which writes when all else is done, would do it later. */
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

bool cc_final_left(CcRec *rec, CcMap *memo) {
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
