/* The recorder's life cycle: begins a trace, follows frames, breaks, and finishes the trace.
 *
 *   frames of the region:   root --direct call--> forward --direct call--> layer --C code--> property getter
 *                           '------------ transparent: can be rebuilt ---------'            '- not: marks a site -' */
#include "rec_events.h"

enum { MAX_NODES = 20000, MAX_LEVELS = 64 };

/* ------------------------------------------------------------------ life */

CcRec *cc_rec_new(CcSites *sites, bool keep_tensors, int64_t freezing, CcHints *hints) {
    CcRec *rec = calloc(1, sizeof *rec);
    if (rec == NULL) return NULL;
    rec->sites = sites;
    rec->keep_tensors = keep_tensors;
    rec->freezing = freezing;
    rec->hints = hints;
    rec->handled_outer = PyErr_GetHandledException();
    return rec;
}

/* Drops what was recorded. */
static void abort_recording(CcRec *rec) {
    cc_escape_restore(rec);
    cc_node_clear_effects(rec);
    cc_value_clear(rec);
    memset(rec->looked, 0, sizeof rec->looked);
    cc_map_free(&rec->input_of);
    cc_map_free(&rec->unsized);
    cc_map_free(&rec->handed);
    cc_map_free(&rec->overwritten);
    cc_map_free(&rec->asked);
    cc_map_free(&rec->writing_types);
    rec->stores = 0;
    rec->puts = 1;
    cc_map_free(&rec->distinct);
    rec->copied.n = rec->grad_mark.n = rec->context.n = 0;
    cc_map_free(&rec->sized);
    while (rec->pending.n > 0) Py_DECREF(rec->pending.at[--rec->pending.n].object);
    rec->copies.n = rec->tuples.n = rec->filled.n = 0;
    rec->lazy = false;
    rec->before.n = 0;
    cc_trace_free(rec->trace);
    rec->trace = NULL;
    rec->frame.n = 0;
    rec->written.n = 0;
    rec->adoptable.n = 0;
    rec->idle.n = rec->held.n = rec->weak_drops.n = rec->maybe_freed.n = 0;
    rec->of_class.n = 0;
    rec->unseen_classes.n = 0;
    cc_kernel_forget(rec);
    Py_CLEAR(rec->handled_start);
    cc_traceback_forget(rec);
    rec->await_root = false;
}

void cc_rec_free(CcRec *rec) {
    if (rec == NULL) return;
    abort_recording(rec);
    cc_trace_free(rec->done);
    cc_vec_free(&rec->frame);
    cc_vec_free(&rec->prov);
    cc_vec_free(&rec->loose);
    cc_vec_free(&rec->outside);
    cc_vec_free(&rec->keep);
    cc_vec_free(&rec->closed);
    cc_vec_free(&rec->effect);
    cc_vec_free(&rec->written);
    cc_vec_free(&rec->of_class);
    cc_vec_free(&rec->unseen_classes);
    cc_vec_free(&rec->before);
    cc_vec_free(&rec->pending);
    cc_vec_free(&rec->copies);
    cc_vec_free(&rec->tuples);
    cc_vec_free(&rec->filled);
    cc_vec_free(&rec->copied);
    cc_vec_free(&rec->grad_mark);
    cc_vec_free(&rec->context);
    cc_vec_free(&rec->own);
    cc_vec_free(&rec->idle);
    cc_vec_free(&rec->held);
    cc_vec_free(&rec->adoptable);
    cc_vec_free(&rec->exceptions);
    cc_vec_free(&rec->weak_drops);
    cc_vec_free(&rec->maybe_freed);
    cc_vec_free(&rec->unweak);
    while (rec->spent.n > 0) Py_DECREF(rec->spent.at[--rec->spent.n]);
    cc_vec_free(&rec->spent);
    Py_CLEAR(rec->raising_co);
    Py_CLEAR(rec->handled_outer);
    cc_break_clear(&rec->why);
    free(rec);
}

bool cc_rec_active(const CcRec *rec) { return rec->trace != NULL; }
const CcBreakInfo *cc_rec_why(const CcRec *rec) { return rec->why.text != NULL ? &rec->why : NULL; }

bool cc_rec_told(const CcRec *rec) { return rec->told; }
bool cc_rec_done(const CcRec *rec) { return rec->done != NULL; }

CcTrace *cc_rec_take(CcRec *rec) {
    CcTrace *t = rec->done;
    rec->done = NULL;
    return t;
}

void cc_rec_begin(CcRec *rec, const CcMode *mode, uint64_t salt) {
    abort_recording(rec);
    Py_CLEAR(rec->raising_co);
    rec->salt = salt;
    rec->rigid = NULL;
    rec->by_code = rec->functions_written = rec->died = rec->observed_drop = false;
    rec->weakref_freed = rec->drops_unknown = rec->overwrites_known = false;
    rec->trace = cc_mem_get(sizeof *rec->trace);
    rec->trace->graph = cc_graph_new();
    rec->trace->mode = rec->mode = *mode;
    rec->trace->result = -1;
    rec->trace->handled = CC_HANDLED_SAME;
    cc_traceback_begin(rec);
    rec->handled_read = rec->made_finals = false;
    rec->read_grad = rec->unseen = rec->differs = false;
    rec->checkpoint = rec->n_checkpoint = rec->closed.n = 0;
    (void)cc_look_take_read();
}

void cc_rec_begin_call(CcRec *rec, PyObject *const *args, int n, PyObject *kwnames, PyFunctionObject *root,
                       const CcMode *mode) {
    cc_rec_begin(rec, mode, 0);
    rec->root = root;
    rec->kwnames = kwnames;
    rec->n_args = n;
    rec->await_root = true;
    for (int i = 0; i < n; i++) cc_value_read(rec, CC_SRC_ARG, -1, NULL, 0, i, args[i]);
}

/* ------------------------------------------------------------------ frames */

void cc_rec_gives(CcRec *rec, CcAct *act, int guard) {
    CcRecFrame *f = cc_rec_frame(rec, act);
    if (f != NULL) f->gives = guard;
}

CcRecFrame *cc_rec_frame(CcRec *rec, CcAct *act) {
    for (int i = rec->frame.n - 1; i >= 0; i--)
        if (rec->frame.at[i].act == act) return &rec->frame.at[i];
    return NULL;
}

/* What the function's guard compares its defaults with. Those of a function that is known by its code are new objects in
 * each call: guards read them where they are, and the function's guard only asks whether there are any. */
static PyObject *wanted_defaults(CcRec *rec, int function, const char *name, PyObject *defaults) {
    if (defaults == NULL) return Py_None;
    if (rec->trace->guards.g.at[function].check != CC_CHK_TYPE || cc_value_const(defaults)) return defaults;
    (void)cc_value_read_member(rec, function, &PyFunction_Type, name, defaults);
    /* if no guard can read them, only a call with these very defaults matches */
    return cc_inside_guard(rec, defaults, 1) ? Py_Ellipsis : defaults;
}

void cc_rec_guard_function(CcRec *rec, PyFunctionObject *func) {
    const int parent = cc_value_source(rec, (PyObject *)func);
    if (parent < 0) return; /* the trace made it */
    PyObject *want;
    CC_RETRY_ALLOC(want,
                   PyTuple_Pack(3, func->func_code, wanted_defaults(rec, parent, "__defaults__", func->func_defaults),
                                wanted_defaults(rec, parent, "__kwdefaults__", func->func_kwdefaults)));
    CcGuards *gs = &rec->trace->guards;
    cc_guard_once(gs, CC_SRC_FUNCTION, parent, NULL, 0, CC_CHK_FUNCTION, want);
    Py_DECREF(want);
}

/* Of a function, or of what calls one: a property, a static method. */
static void guard_signature(CcRec *rec, PyObject *o) {
    static const char *const held[] = {"fget", "fset", "fdel", "__func__"};
    if (PyFunction_Check(o)) cc_rec_guard_function(rec, (PyFunctionObject *)o);
    for (int i = 0; cc_value_wraps(o) && i < CC_COUNT(held); i++) {
        PyObject *f = PyObject_GetAttrString(o, held[i]);
        if (f == NULL) cc_raised_clear();
        else if (PyFunction_Check(f)) cc_rec_guard_function(rec, (PyFunctionObject *)f);
        Py_XDECREF(f);
    }
}

/* A call whose arguments do not bind makes no frame, so no guard would tell that the function's signature has changed;
 * and C code may be the caller. */
static void guard_signatures(CcRec *rec) {
    const CcGuards *gs = &rec->trace->guards;
    for (int i = 0, n = gs->g.n; i < n; i++) {
        PyObject *want = gs->g.at[i].want; /* stays while guards are added */
        if (gs->g.at[i].check == CC_CHK_IDENT) guard_signature(rec, want);
        for (Py_ssize_t k = 0; gs->g.at[i].check == CC_CHK_SPECIALS && k < PyTuple_GET_SIZE(want); k++)
            guard_signature(rec, PyTuple_GET_ITEM(want, k));
    }
}

const char *cc_rec_module(PyObject *globals) {
    PyObject *name = cc_obj_item(globals, "__name__"), *type, *value, *traceback;
    if (name == NULL || !PyUnicode_Check(name)) return NULL;
    PyErr_Fetch(&type, &value, &traceback);
    const char *text = PyUnicode_AsUTF8(name);
    PyErr_Restore(type, value, traceback);
    return text;
}

const char *cc_rec_library(const CcAct *act) {
    static const char *const names[] = {"torch", "ccompile"};
    const char *text = cc_rec_module(act->func->func_globals);
    for (int i = 0; text != NULL && i < CC_COUNT(names); i++) {
        const size_t n = strlen(names[i]);
        if (strncmp(text, names[i], n) == 0 && (text[n] == '\0' || text[n] == '.')) return names[i];
    }
    return NULL;
}

void cc_rec_stored(CcRec *rec, PyObject *to) {
    rec->stores++;
    if (to != NULL) cc_checkpoint_stored(rec, to);
}

bool cc_rec_in_module(const CcAct *act, const char *name) {
    const char *module = cc_rec_module(act->func->func_globals);
    return module != NULL && strcmp(module, name) == 0;
}

/* If C code calls __hash__ or __eq__ in Python: the class of its self. */
static const PyTypeObject *hashed_by(const CcAct *act) {
    static PyObject *hash, *eq;
    if (hash == NULL) hash = cc_obj_intern("__hash__");
    if (eq == NULL) eq = cc_obj_intern("__eq__");
    PyObject *self = act->co->co_argcount > 0 ? cc_act_get(act, 0) : NULL;
    return self != NULL && (act->co->co_name == hash || act->co->co_name == eq) ? Py_TYPE(self) : NULL;
}

bool cc_rec_calls(const CcEvent *ev, const CcAct *act) {
    return ev != NULL && !act->generator && (ev->kind == CC_EV_CALL || ev->kind == CC_EV_CALL_EX) &&
           !(ev->flags & CC_EV_INNER) && cc_call_function(ev->in[0]) == act->func;
}

CcGo cc_rec_enter(CcRec *rec, CcAct *act) {
    bool ends_object = false;
    const CcGo uncalled = cc_uncalled_enter(rec, act, &ends_object);
    if (uncalled != CC_OK) return uncalled;
    const bool is_root = rec->await_root;
    rec->puts++; /* called by C code, or not recorded */
    CcRecFrame f = {.act = act, .touched = true, .ends_object = ends_object, .first_fresh = rec->prov.n};
    if (is_root) {
        if (act->func != rec->root) return CC_PASS;
        rec->await_root = false;
        f.transparent = true;
        f.first_fresh = 0;
        rec->trace->start = cc_site_place(act, act->co->co_firstlineno);
        cc_sym_arguments(rec, act);
    } else {
        if (rec->frame.n == 0) return CC_PASS; /* the root has left: a finaliser of what the recorder still held */
        const CcRecFrame *parent = &cc_vec_last(&rec->frame);
        f.transparent = act->prev == parent->act && cc_rec_calls(parent->act->event, act) && rec->frame.n < MAX_LEVELS;
        if (rec->frame.n >= 4 * MAX_LEVELS) return cc_rec_poison(rec, act, CC_R_LIMIT, "depth of frames");
    }
    f.first_stores = rec->stores;
    if (!f.transparent) f.hashed = hashed_by(act);
    cc_vec_push(&rec->frame, f);
    rec->obs = f.act->obs;
    if (act->started) {
        cc_rec_guard_function(rec, act->func);
        cc_param_learn(rec, act, !f.transparent);
        if (!f.transparent) cc_given_entered(rec, act);
    }
    return CC_OK;
}

static void finish(CcRec *rec, CcAct *act, CcEnd end);

void cc_rec_leave(CcRec *rec, CcAct *act, int how, PyObject *value) {
    CcRecFrame *f = cc_rec_frame(rec, act);
    if (f == NULL) return;
    const int at = (int)(f - rec->frame.at), first = f->first_fresh;
    if (at > 0 && f->ends_object && cc_uncalled_reports(act, how)) {
        (void)cc_rec_poison(rec, rec->frame.at[at - 1].act, CC_R_UNRAISABLE, NULL);
        return;
    }
    if (at > 0 && value != NULL && !f->transparent && rec->frame.at[at - 1].act->event != NULL &&
        cc_given_back(rec, rec->frame.at[at - 1].act, act, value) != CC_OK)
        return;
    if (f->hashed != NULL && rec->stores != f->first_stores) cc_map_put(&rec->writing_types, f->hashed, 1);
    if (how == CC_LEAVE_HANDOVER) cc_escape_restore(rec);
    else if (rec->made_finals) cc_rec_released(rec, NULL);
    if (rec->trace == NULL) return;
    if (at == 0) {
        cc_finalizers_settle(rec);
        if (how == CC_LEAVE_RETURN) cc_finalizers_deleted(rec, act);
    }
    rec->frame.n = at;
    if (how == CC_LEAVE_HANDOVER) { /* CPython continues a frame that we no longer observe */
        cc_site_why(rec, act, CC_R_OPCODE, cc_op_name((CcOp)act->code->insn[act->pc].op));
        if (at > 0) cc_site_mark(rec, rec->frame.at[at - 1].act->co, rec->frame.at[at - 1].act->pc);
        abort_recording(rec);
        return;
    }
    if (at > 0) {
        rec->frame.at[at - 1].act->observed = true;
        rec->frame.at[at - 1].touched = true;
        /* close() of a generator that delegates closes the inner one first: the outer one's end is still to come */
        if (!act->thrown) cc_finalizers_sweep(rec, first);
        return;
    }
    if (how != CC_LEAVE_RETURN) {
        cc_site_why(rec, act, CC_R_RAISED, NULL);
        abort_recording(rec);
        return;
    }
    if (cc_finalizers_died(rec, act)) {
        cc_site_why(rec, act, CC_R_FINALISED, NULL);
        abort_recording(rec);
        return;
    }
    if (cc_checkpoint_outdated(rec, act)) {
        abort_recording(rec);
        return;
    }
    CcMap memo = {0};
    const bool paused = cc_hook_pause(act->obs, true); /* hashing keys may run Python code */
    cc_traceback_end(rec, act);
    rec->trace->result = cc_recipe_of(rec, value, &memo);
    const bool ok =
        rec->trace->result >= 0 && cc_node_finish_effects(rec, &memo) && !cc_finalizers_unbuildable(rec, &memo);
    cc_hook_pause(act->obs, paused);
    cc_map_free(&memo);
    if (ok) cc_finalizers_end(rec);
    if (!ok) {
        cc_site_why(rec, act, CC_R_UNBUILDABLE, cc_type_name(rec->unbuildable));
        (void)cc_site_made(rec);
        abort_recording(rec);
        return;
    }
    finish(rec, act, CC_END_RETURN);
}

/* ------------------------------------------------------------------ ends */

/* Graph values that the recipe needs must be graph outputs. */
static void mark_outputs(CcTrace *t, int recipe, CcMap *seen) {
    const CcRecipe *r = &t->recipes.r.at[recipe];
    const void *key = (const void *)(intptr_t)(recipe + 1);
    if (cc_map_find(seen, key) != NULL) return;
    cc_map_put(seen, key, 1);
    if (r->make == CC_MAKE_VALUE) t->graph->val.at[r->id].is_output = 1;
    for (int i = 0; i < r->n; i++) mark_outputs(t, t->recipes.kid.at[r->kid0 + i], seen);
}

static void mark_all_outputs(CcTrace *t) {
    CcMap seen = {0};
    if (t->result >= 0) mark_outputs(t, t->result, &seen);
    if (t->handled >= 0) mark_outputs(t, t->handled, &seen);
    for (int i = 0; i < t->slots.n; i++)
        if (t->slots.at[i] >= 0) mark_outputs(t, t->slots.at[i], &seen);
    for (int i = 0; i < t->level.n; i++) mark_outputs(t, t->level.at[i].func, &seen);
    for (int e = 0; e < t->effect.n; e++)
        for (int i = 0; i < t->effect.at[e].n; i++) mark_outputs(t, t->args.at[t->effect.at[e].args0 + i], &seen);
    cc_map_free(&seen);
}

/* Guards that an object that effects write to is not one that was read through another path. */
static void guard_distinct(CcRec *rec) {
    CcGuards *gs = &rec->trace->guards;
    const int n = gs->g.n;
    for (int w = 0; w < rec->written.n; w++) {
        const int id = rec->written.at[w];
        const CcGuard written = gs->g.at[id];
        if (written.check != CC_CHK_TYPE) continue;
        for (int i = 0; i < n; i++) {
            const CcGuard g = gs->g.at[i];
            if (i == id || g.check != CC_CHK_TYPE || g.want != written.want) continue;
            cc_guard_add_check(gs, CC_MAX(i, id), CC_CHK_DISTINCT, NULL, CC_MIN(i, id));
        }
    }
}

static void keep(CcTrace *t, int value, PyObject *tensor) {
    cc_vec_push(&t->kept, (struct CcKept){value, Py_NewRef(tensor)});
}

static void keep_tensors(CcRec *rec) {
    CcTrace *t = rec->trace;
    for (int i = 0; i < rec->prov.n; i++) {
        const CcProv *p = &rec->prov.at[i];
        /* these are strong references to tensors */
        if (p->object == NULL || p->weak != NULL || !cc_tens_is(p->object)) continue;
        if (p->origin == CC_O_VALUE && t->graph->val.at[p->id].is_output) keep(t, p->id, p->object);
        const int64_t *input =
            p->origin == CC_O_SOURCE ? cc_map_find(&rec->input_of, (const void *)(intptr_t)(p->id + 1)) : NULL;
        if (input != NULL) keep(t, (int)*input, p->object);
    }
}

/* A frame that was suspended all the time keeps its slots, so none of its generators is replaced. */
static void keep_waiting(CcTrace *t) {
    int n = 0;
    for (int i = 0; i < t->adopted.n; i++) {
        int slot = t->adopted.at[i];
        while (t->guards.g.at[slot].source != CC_SRC_SLOT) slot = t->guards.g.at[slot].parent;
        const int level = t->guards.g.at[slot].level;
        if (level >= t->level.n || !t->level.at[level].kept || t->level.at[level].touched)
            t->adopted.at[n++] = t->adopted.at[i];
    }
    t->adopted.n = n;
}

/* The value is a view of an input, which may be gone by now. */
static bool of_input(const CcGraph *g, int value) {
    int def = g->val.at[value].def;
    for (; def >= 0 && cc_op_is_view(g->node.at[def].op); def = g->val.at[value].def)
        value = cc_graph_source(g, &g->node.at[def]);
    return def < 0;
}

static void note_versions(CcRec *rec) {
    CcTrace *t = rec->trace;
    for (int i = 0; i < rec->prov.n && !t->needs_grad; i++) {
        const CcProv *p = &rec->prov.at[i];
        if (p->object == NULL || p->origin != CC_O_VALUE || !t->graph->val.at[p->id].is_output ||
            (p->weak != NULL && cc_weak_target(p->weak) == NULL))
            continue;
        const uint64_t version = cc_tens_version(p->object);
        if (version == 0 || version == CC_TENS_NO_VERSION || of_input(t->graph, p->id) ||
            cc_undo_outside(rec, p->object))
            continue;
        const struct CcWritten w = {.value = p->id, .version = version};
        cc_vec_push(&t->written, w);
    }
}

static void finish(CcRec *rec, CcAct *act, CcEnd end) {
    CcTrace *t = rec->trace;
    /* a torch-function mode runs when a tensor is asked for its version */
    const bool paused = cc_hook_pause(act->obs, true);
    keep_waiting(t);
    t->end = end;
    t->instructions = rec->instructions;
    cc_sym_finish(rec);
    mark_all_outputs(t);
    if (rec->n_checkpoint > 0) cc_checkpoint_end(t);
    note_versions(rec);
    if (rec->keep_tensors) keep_tensors(rec);
    guard_distinct(rec);
    if (rec->read_grad)
        for (int i = 0; i < t->guards.g.n; i++)
            if (t->guards.g.at[i].check == CC_CHK_TENSOR) t->guards.g.at[i].grad = true;
    cc_guard_seal(&t->guards);
    cc_trace_free(rec->done);
    rec->done = t;
    cc_hook_pause(act->obs, paused);
    cc_escape_restore(rec);
    rec->trace = NULL;
    abort_recording(rec);
}

CcGo cc_rec_give_up(CcRec *rec) {
    abort_recording(rec);
    return CC_GIVE_UP;
}

CcRecFrame *cc_rec_outer(CcRec *rec) {
    int at = 0;
    while (at + 1 < rec->frame.n && rec->frame.at[at + 1].transparent) at++;
    return rec->frame.n > 0 ? &rec->frame.at[at] : NULL;
}

CcGo cc_rec_retry(CcRec *rec, const CcAct *act, PyCodeObject *co, int pc, CcReason reason, const char *what) {
    cc_site_why(rec, act, reason, what);
    cc_site_mark(rec, co, pc);
    return cc_rec_give_up(rec);
}

CcGo cc_rec_poison(CcRec *rec, CcAct *act, CcReason reason, const char *what) {
    const CcRecFrame *outer = cc_rec_outer(rec);
    const CcAct *at = outer != NULL ? outer->act : act;
    return cc_rec_retry(rec, act, at->co, at->pc, reason, what);
}

CcGo cc_rec_break(CcRec *rec, CcAct *act, CcReason reason, const char *what) {
    cc_site_why(rec, act, reason, what);
    if (cc_site_copy(rec)) return cc_rec_give_up(rec);
    for (int i = 1; i < rec->frame.n; i++)
        if (!rec->frame.at[i].transparent) {
            cc_site_mark(rec, rec->frame.at[i - 1].act->co, rec->frame.at[i - 1].act->pc);
            return cc_rec_give_up(rec);
        }
    if (rec->frame.n == 0 || cc_vec_last(&rec->frame).act != act ||
        (act->event != NULL && act->event->flags & CC_EV_INNER)) {
        cc_site_mark(rec, act->co, act->pc);
        return cc_rec_give_up(rec);
    }
    cc_finalizers_settle(rec);
    if (cc_finalizers_died(rec, act)) {
        cc_site_why(rec, act, CC_R_FINALISED, NULL);
        return cc_rec_give_up(rec);
    }
    if (cc_checkpoint_outdated(rec, act)) return cc_rec_give_up(rec);
    CcMap memo = {0};
    int level = 0;
    const bool paused = cc_hook_pause(act->obs, true);
    cc_traceback_end(rec, act);
    const bool ok = cc_snapshot_take(rec, &memo, &level) && cc_node_finish_effects(rec, &memo) &&
                    !cc_finalizers_unbuildable(rec, &memo);
    cc_hook_pause(act->obs, paused);
    cc_map_free(&memo);
    if (!ok) {
        cc_site_why(rec, act, CC_R_UNBUILDABLE, cc_type_name(rec->unbuildable));
        cc_site_before(rec, level);
        return cc_rec_give_up(rec);
    }
    cc_finalizers_end(rec);
    cc_break_copy(&rec->trace->brk, &rec->why);
    finish(rec, act, CC_END_BREAK);
    return CC_BREAK;
}

/* ------------------------------------------------------------------ events */

/* Poisons the trace behind cc_op_before, which answered `go` and may have performed the event. */
static CcGo lose(CcRec *rec, CcAct *act, CcGo go, CcReason reason, const char *what) {
    const CcGo lost = cc_rec_poison(rec, act, reason, what);
    return go == CC_DONE ? CC_DONE : lost;
}

static bool site_of_unbuildable(const CcRec *rec) {
    for (int i = 0; i < rec->sites->at.n; i++)
        if (rec->sites->at.at[i].why.reason == CC_R_UNBUILDABLE) return true;
    return false;
}

static void note_raising(CcRec *rec, const CcAct *act) {
    Py_XSETREF(rec->raising_co, act != NULL ? (PyCodeObject *)Py_NewRef(act->co) : NULL);
    rec->raising_pc = act != NULL ? act->pc : 0;
}

/* A `with` or `finally` has run since: the pending exception tells where it was raised. */
static void note_raised(CcRec *rec) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    rec->raising_co = cc_traceback_origin(traceback, &rec->raising_pc);
    PyErr_Restore(type, value, traceback);
}

bool cc_rec_break_at_raise(CcRec *rec) {
    if (rec->raising_co == NULL) note_raised(rec);
    return rec->raising_co != NULL && cc_site_mark(rec, rec->raising_co, rec->raising_pc);
}

static CcGo before(CcRec *rec, CcAct *act, CcEvent *ev) {
    rec->instructions++;
    note_raising(rec, ev->kind == CC_EV_RAISE ? act : NULL);
    rec->stays = NULL;
    if (rec->maybe_freed.n + rec->unweak.n > 0) cc_finalizers_check_freed(rec);
    if (rec->made_finals) {
        cc_rec_released(rec, NULL); /* an iterator that is exhausted drops its list */
        if (rec->trace != NULL && cc_finalizers_not_kept(rec)) return cc_rec_give_up(rec);
    }
    CcRecFrame *f = cc_rec_frame(rec, act);
    if (f == NULL) return CC_OK;
    f->touched = true;
    if (cc_finalizers_drop_observed(rec)) return cc_rec_break(rec, act, CC_R_FINALISED, NULL);
    if (cc_look_take_read()) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "C code in between");
    if (cc_mem_low()) { /* no instruction is at fault */
        cc_site_why(rec, act, CC_R_LIMIT, "memory");
        return cc_rec_give_up(rec);
    }
    f->call_nodes = rec->trace->graph->node.n;
    f->call_guards = rec->trace->guards.g.n;
    f->call_stores = rec->stores;
    f->gives = -1;
    rec->opaque = NULL;
    if (rec->sites->at.n > 0) {
        const struct CcSite *site = cc_site_find(rec->sites, act);
        /* once one generator over a module's content could not be rebuilt, all of the call's are listed */
        const CcGo listed =
            ev->kind == CC_EV_CALL && site_of_unbuildable(rec) ? cc_backcall_listed(rec, act, ev) : CC_OK;
        if (listed != CC_OK) return listed;
        if (site != NULL && !(ev->flags & CC_EV_INNER)) {
            const CcGo go = cc_rec_break(rec, act, site->why.reason, NULL);
            if (go == CC_BREAK && site->why.reason != CC_R_RAISED) cc_break_copy(&rec->done->brk, &site->why);
            return go;
        }
    }
    if (rec->trace->graph->node.n > MAX_NODES || rec->trace->guards.g.n > CC_MAX_GUARDS)
        return cc_rec_break(rec, act, CC_R_LIMIT, "nodes");
    cc_resume_event(rec, ev);
    cc_given_event(rec, ev);
    cc_number_pin_read(rec, ev);
    if (cc_number_reads_text(rec, ev)) return lose(rec, act, CC_OK, CC_R_DATA_SCALAR, "a text of it");
    const CcGo go = cc_op_before(rec, act, ev);
    if (go == CC_OK && rec->trace != NULL) cc_distinct_event(rec, ev);
    if (rec->opaque != NULL && rec->trace != NULL)
        return go == CC_OK ? cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, rec->opaque)
                           : lose(rec, act, go, CC_R_UNKNOWN_TYPE, rec->opaque);
    if (rec->unseen && rec->trace != NULL)
        return lose(rec, act, go, CC_R_UNKNOWN_VALUE, "an object that C code stored");
    if (go == CC_DONE) { /* no after() follows */
        cc_sym_drop_pending(rec);
        cc_plain_after(rec, ev);
    }
    if (rec->differs && rec->trace != NULL && (go == CC_OK || go == CC_DONE))
        return lose(rec, act, go, CC_R_DIFFERS, NULL);
    if (cc_kernel_lost(rec, act)) return go == CC_DONE ? CC_DONE : CC_GIVE_UP;
    if (go == CC_DONE && rec->trace != NULL && cc_look_take_read())
        (void)cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "C code");
    return go;
}

/* The first of the pending numbers that belong to this event; the last one is the event's result. */
static int first_given(const CcRec *rec, const CcRecFrame *f) {
    const int n = rec->pending.n;
    return n > 0 && f->gives >= 0 && cc_vec_last(&rec->pending).guard == f->gives ? n - 1 : n;
}

static CcGo after(CcRec *rec, CcAct *act, CcEvent *ev) {
    const CcRecFrame *f = cc_rec_frame(rec, act);
    cc_plain_after(rec, ev);
    if (f == NULL) return CC_OK;
    (void)cc_finalizers_drop_observed(rec);
    /* `assert tensor` */
    const bool asserted = ev->kind == CC_EV_TRUTH && cc_tens_is(ev->in[0]);
    if (cc_look_take_read() && !asserted) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "C code");
    const int first = first_given(rec, f);
    if (ev->result == NULL && PyErr_Occurred()) { /* what was read before the exception still needs guards */
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        if (rec->raising_co == NULL) note_raising(rec, act);
        rec->raised = true;
        CcGo go = cc_op_after(rec, act, ev);
        rec->raised = false;
        if (go == CC_OK && rec->trace != NULL && PyErr_GivenExceptionMatches(type, PyExc_TypeError))
            guard_signatures(rec);
        const bool lost = cc_kernel_lost(rec, act);
        if (go == CC_OK && !lost) cc_sym_after(rec, ev, first);
        if (go == CC_OK && !lost && rec->differs && rec->trace != NULL)
            go = cc_rec_poison(rec, act, CC_R_DIFFERS, NULL);
        PyErr_Restore(type, value, tb);
        return lost ? CC_GIVE_UP : go;
    }
    const CcGo go = cc_op_after(rec, act, ev);
    if (cc_kernel_lost(rec, act)) return CC_GIVE_UP;
    if (go == CC_OK && rec->unseen) return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, "an object that C code stored");
    if (go == CC_OK && rec->opaque != NULL && rec->trace != NULL)
        return cc_rec_poison(rec, act, CC_R_UNKNOWN_TYPE, rec->opaque);
    f = cc_rec_frame(rec, act);
    if (go == CC_OK && f != NULL && f->gives >= 0 && rec->trace != NULL)
        cc_sym_after_size(rec, ev, f->gives, f->gives >= f->call_guards);
    if (go == CC_OK) cc_sym_after(rec, ev, first);
    return go == CC_OK && rec->differs && rec->trace != NULL ? cc_rec_poison(rec, act, CC_R_DIFFERS, NULL) : go;
}

CcGo cc_rec_before(CcRec *rec, CcAct *act, CcEvent *ev) {
    const bool judged = rec->judged; /* by the event that runs this one's code */
    rec->differs = rec->differs && judged;
    CcEvent *outer = rec->event;
    rec->judged = true;
    rec->event = ev;
    const CcGo go = before(rec, act, ev);
    rec->judged = judged;
    rec->event = outer;
    return go;
}

CcGo cc_rec_after(CcRec *rec, CcAct *act, CcEvent *ev) {
    const bool judged = rec->judged;
    CcEvent *outer = rec->event;
    rec->judged = true;
    rec->event = ev;
    const CcGo go = after(rec, act, ev);
    rec->judged = judged;
    rec->event = outer;
    return go;
}

int cc_rec_init(void) {
    if (cc_scope_init() < 0 || cc_attr_init() < 0 || cc_dunder_init() < 0 || cc_call_init() < 0 ||
        cc_callee_init() < 0 || cc_ordered_init() < 0 || cc_library_init() < 0 || cc_uncalled_init() < 0)
        return -1;
    return cc_opaque_init() < 0 ? -1 : cc_intrin_init();
}
