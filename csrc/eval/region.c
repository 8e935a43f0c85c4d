/* A region: one compiled call, from the moment when frames are needed. It is the evaluator's observer. While recording,
 * it forwards all events to the recorder; after a break, it looks for a segment of that resume point and runs it, or
 * records one.
 *
 *   acts of the chain     root ---- callee ---- innermost
 *   a segment ends in a snapshot of m kept levels (the same acts), followed by new ones:
 *     m == chain, none new    fill slots, PERFORM            m < chain    UNWIND to level m-1, then as above
 *     new levels              fill, DESCEND: frames are made by calling their functions (enter() fills the frames) */
#include "eval_int.h"

enum { MAX_CHAIN = 64 };

typedef struct Level {      /* values of one frame of a snapshot, waiting to be put into slots */
    PyFunctionObject *func; /* strong; NULL for kept levels */
    PyObject **slot;        /* strong, n; NULL entries are unset */
    bool *stays;            /* n: the slot keeps its object */
    int n, pc, depth;
    bool touched;
} Level;

typedef struct Region {
    CcObserver obs; /* first: CcObserver * is Region * */
    struct Region *outer;
    int depth; /* number of regions around it */
    CcRoot *root;
    CcRec *rec;
    CcAct *root_act; /* the act of level 0 */
    int n_args;
    PyObject *kwnames;
    CcMode mode;            /* ambient state when the call began */
    const CcAct *arrays_in; /* cc_stretch_goes_on */
    uint64_t began;         /* when the trace being recorded began */
    bool counted;           /* this call has already been counted as a recording */
    bool first;             /* the trace being recorded is an entry's */
    CcPoint *point;         /* otherwise: the resume point at which it began */
    Level level[MAX_CHAIN];
    int n_level, n_kept, filled;
    PyObject *outer_handled; /* strong: exception being handled when the call began; NULL: none */
    /* strong: the exception handled by the frames in `level`; sets_handled: it must be set */
    PyObject *handled;
    bool sets_handled;
    PyObject *result; /* the call's result, which a segment made below the root's frame */
    bool has_result, failed;
    bool refuses;       /* see refuse_now */
    PyObject *error[3]; /* raised at the root when `failed` */
    CcBreakInfo unsupported;
    /* Address of the exception of an op at which the recording gave up; a reference would keep its frames alive. Under
     * fullgraph, also a reference. */
    const void *raised_at;
    PyObject *raised;
    int n_sites; /* the root's sites when the region began */
} Region;

static _Thread_local Region *current;
static PyObject *unsupported_class;

/* Most regions in each other: one takes several KB of C stack, a plain call of a compiled function 1 KB. */
enum { MOST_NESTED = 32 };

bool cc_eval_recording(void) {
    return current != NULL && (cc_rec_active(current->rec) || current->obs.dead || !cc_hook_paused(&current->obs));
}

bool cc_region_is_here(const void *region) {
    const Region *g = current;
    while (g != NULL && g != region) g = g->outer;
    return g != NULL;
}

bool cc_eval_deep(void) { return current != NULL && current->depth >= MOST_NESTED; }

/* If is_compiling() has returned true in a call, it does so until the end of the call, even if CPython continues the
 * call: depending on the answer, libraries keep state in different places. */
static bool told_compiled(const Region *g) { return g->root->told || cc_rec_told(g->rec); }

bool cc_eval_compiling(void) {
    if (current == NULL || cc_eval_disabled > 0) return false;
    return cc_rec_active(current->rec) || (current->obs.dead && told_compiled(current));
}

int cc_eval_init(PyObject *unsupported) {
    unsupported_class = Py_NewRef(unsupported);
    (void)cc_mem_reserve();
    return 0;
}

void cc_eval_raise_as(PyObject *unsupported) { Py_SETREF(unsupported_class, Py_NewRef(unsupported)); }

PyObject *cc_eval_error_on_break; /* a ContextVar of bools */

/* Whether a graph break is an error here. */
static bool strict(const Region *g) {
    PyObject *value = NULL;
    if (g->root->fullgraph) return true;
    if (PyContextVar_Get(cc_eval_error_on_break, NULL, &value) < 0) cc_raised_clear();
    Py_XDECREF(value);
    return value == Py_True;
}

static void raise_unsupported(const Region *g) {
    const CcBreakInfo *why = &g->unsupported;
    const struct CcPlace *at = cc_break_place(why);
    PyErr_Format(unsupported_class, "%s, but %s (%s) at %U:%d in %U%s%s",
                 g->root->fullgraph ? "fullgraph=True" : "error_on_graph_break(True)",
                 why->text != NULL ? why->text : cc_reason_name(why->reason), cc_reason_name(why->reason),
                 at != NULL ? at->file : Py_None, at != NULL ? at->line : 0, at != NULL ? at->function : Py_None,
                 *cc_reason_advice(why->reason) != '\0' ? "; " : "", cc_reason_advice(why->reason));
}

/* ------------------------------------------------------------------ snapshots */

static void clear_level(Level *l) {
    for (int i = 0; i < l->n; i++) Py_XDECREF(l->slot[i]);
    free(l->slot);
    free(l->stays);
    Py_CLEAR(l->func);
    *l = (Level){0};
}

static void clear_levels(Region *g) {
    for (int i = 0; i < g->n_level; i++) clear_level(&g->level[i]);
    g->n_level = g->n_kept = g->filled = 0;
    Py_CLEAR(g->handled);
    g->sets_handled = false;
}

/* The frames are filled: restores the exception that they were handling. */
static void levels_done(Region *g) {
    if (g->sets_handled) PyErr_SetHandledException(g->handled);
    clear_levels(g);
}

static int make_level(const CcSegment *s, CcCallState *x, const CcSnapshotFrame *from, Level *to) {
    const CcTrace *t = s->trace;
    to->pc = from->pc;
    to->depth = from->depth;
    to->touched = from->touched || !from->kept;
    if (!from->kept) {
        PyObject *f = cc_segment_make(s, x, from->func);
        if (f == NULL) return -1;
        to->func = (PyFunctionObject *)f;
    }
    if (!to->touched) return 0;
    to->slot = cc_mem_get(((size_t)from->n + 1) * sizeof *to->slot);
    to->stays = cc_mem_get(((size_t)from->n + 1) * sizeof *to->stays);
    for (int i = 0; i < from->n; i++) {
        to->stays[i] = t->slots.at[from->slot0 + i] == CC_SLOT_STAYS;
        if (to->stays[i]) continue;
        to->slot[i] = cc_segment_make(s, x, t->slots.at[from->slot0 + i]);
        to->n = i + 1;
        if (to->slot[i] == NULL && PyErr_Occurred()) return -1;
    }
    return 0;
}

/* The values of a segment's last snapshot. */
static int make_levels(Region *g, const CcSegment *s, CcCallState *x) {
    const CcTrace *t = s->trace;
    clear_levels(g);
    g->n_kept = 0;
    for (int i = 0; i < t->level.n; i++) {
        g->n_level = i + 1;
        if (make_level(s, x, &t->level.at[i], &g->level[i]) < 0) {
            clear_levels(g);
            return -1;
        }
        g->n_kept += t->level.at[i].kept;
    }
    g->filled = g->n_kept;
    g->sets_handled = t->handled != CC_HANDLED_SAME;
    if (t->handled == CC_HANDLED_OUTER) g->handled = Py_XNewRef(g->outer_handled);
    else if (g->sets_handled && (g->handled = cc_segment_make(s, x, t->handled)) == NULL) {
        clear_levels(g);
        return -1;
    }
    return 0;
}

static void fill(Level *l, CcAct *act) {
    if (!l->touched) return;
    cc_act_move(act, l->pc, 0);
    const int n_locals = act->code->n_locals;
    for (int i = 0; i < n_locals; i++) {
        if (l->stays[i]) continue;
        cc_act_put(act, i, l->slot[i]);
        l->slot[i] = NULL;
    }
    cc_act_move(act, l->pc, l->depth);
    for (int i = n_locals; i < l->n; i++) {
        cc_act_put(act, i, l->slot[i]);
        l->slot[i] = NULL;
    }
}

/* The acts of the chain exist; further frames below them may have to be made. */
static CcGo fill_chain(Region *g, CcAct *const *acts, int n) {
    for (int i = 0; i < n; i++) fill(&g->level[i], acts[i]);
    if (g->n_level > n) return CC_DESCEND;
    levels_done(g);
    return CC_PERFORM;
}

/* ------------------------------------------------------------------ chain */

static int chain_of(const Region *g, CcAct *act, CcAct **acts) {
    int n = 0;
    for (CcAct *a = act; a != NULL && n < MAX_CHAIN; a = a->prev) {
        n++;
        if (a == g->root_act) break;
    }
    int i = n;
    for (CcAct *a = act; i > 0; a = a->prev) acts[--i] = a;
    return n;
}

/* ------------------------------------------------------------------ ends of recordings */

static CcGo die(Region *g) {
    g->obs.dead = true;
    return CC_GIVE_UP;
}

/* Keeps the last 64 for reports. */
static void keep_give_up(CcRoot *root, const CcBreakInfo *why) {
    CcBreakInfo copy = {0};
    cc_break_copy(&copy, why);
    cc_vec_push(&root->gave_up, copy);
    if (root->gave_up.n <= 64) return;
    cc_break_clear(&root->gave_up.at[0]);
    memmove(root->gave_up.at, root->gave_up.at + 1, sizeof copy * (size_t)(--root->gave_up.n));
}

/* A recording ended in a break, or gave up: the event names the line of the user's code. */
static void note_end(CcEventKind kind, const CcRoot *root, const CcBreakInfo *why) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb); /* the op that raised ended the recording */
    const struct CcPlace *at = cc_break_place(why);
    const char *file = at != NULL ? PyUnicode_AsUTF8(at->file) : NULL;
    CcSbuf detail = {0};
    if (cc_log_wants(kind)) cc_break_text(why, &detail);
    const CcLogExtra extra = {.file = file, .line = at != NULL ? at->line : 0, .detail = cc_sbuf_text(&detail)};
    PyErr_Restore(type, value, tb); /* also if the path has surrogates */
    cc_log_more(kind, extra, "%s: %s", cc_root_name(root), why->text);
    cc_sbuf_free(&detail);
}

/* Code after one break runs eagerly from now on: an event says so, and the report says why. */
static void fill_up(Region *g, CcPoint *p, const CcBreakInfo *why, const char *what) {
    if (p->full) return;
    p->full = true;
    if (why != NULL) keep_give_up(g->root, why);
    cc_log_add(CC_LOG_EAGER, "%s: after one break, %s", cc_root_name(g->root), what);
}

/* A recording that ends in the user's own exception is no failure, but nothing that later calls could use: after some
 * of them the raise becomes a break. Code that always raises is not worth recording. */
static void note_raise(Region *g, const CcBreakInfo *why) {
    enum { PATIENCE = 3 };
    CcRoot *root = g->root;
    if (!strict(g) && ++root->raises >= PATIENCE && cc_rec_break_at_raise(g->rec)) root->raises = 0;
    /* behind a raise that is a break: a `with` or `finally` that raises again */
    const int limit = g->point != NULL && g->point->segment.n == 0 ? PATIENCE : root->knobs.give_up_limit;
    if (g->point != NULL && ++g->point->raised >= limit)
        fill_up(g, g->point, why, "every recording ended in an exception");
    if (g->first && root->entry.n == 0 && !root->eager_only && ++root->give_ups >= root->knobs.give_up_limit) {
        root->eager_only = true;
        keep_give_up(root, why);
        cc_log_add(CC_LOG_EAGER, "%s: the first %d recordings ended in exceptions", cc_root_name(root), root->give_ups);
    }
}

/* The recording gave up: CPython continues the call. */
static void note_give_up(Region *g) {
    const CcBreakInfo *why = cc_rec_why(g->rec);
    CcRoot *root = g->root;
    g->obs.dead = true;
    if (why == NULL) return;
    if (why->reason == CC_R_RAISED) {
        note_raise(g, why);
        return;
    }
    keep_give_up(root, why);
    note_end(CC_LOG_GIVE_UP, root, why);
    root->give_ups_seen++;
    if (g->raised != NULL) root->give_ups--; /* not the recording's failure */
    if (++root->give_ups >= root->knobs.give_up_limit && !g->first &&
        g->point != NULL) { /* segments before it stay in use */
        fill_up(g, g->point, NULL, "too many recordings in a row gave up");
        root->give_ups = 0;
    } else if (root->give_ups >= root->knobs.give_up_limit) {
        root->eager_only = true;
        cc_log_add(CC_LOG_EAGER, "%s: %d recordings in a row gave up", cc_root_name(root), root->give_ups);
    }
    if (strict(g) && g->unsupported.text == NULL) cc_break_copy(&g->unsupported, why);
}

/* A break in a loop counts once, however often it occurs. */
static void note_break(CcRoot *root, const CcBreakInfo *why) {
    note_end(CC_LOG_BREAK, root, why);
    root->breaks++;
    for (int i = 0; i < root->seen.n; i++)
        if (root->seen.at[i].site == why->site) return;
    CcBreakInfo copy = {0};
    cc_break_copy(&copy, why);
    cc_vec_push(&root->seen, copy);
}

static void publish(Region *g) {
    CcTrace *t = cc_rec_take(g->rec);
    if (t == NULL) return;
    t->outer = g->mode;
    t->record_ns = cc_log_now_ns() - g->began;
    g->root->give_ups = 0;
    if (t->end == CC_END_BREAK) note_break(g->root, &t->brk);
    if (g->first) cc_root_publish_entry(g->root, t, g->n_args, g->kwnames);
    else if (g->point != NULL) {
        /* runs torch: other threads may use the point meanwhile */
        CcSegment *s = cc_segment_new(g->root, t);
        cc_vec_push(&g->point->segment, s);
        g->point->last = g->point->segment.n - 1;
    } else {
        cc_trace_free(t);
    }
    g->first = false;
}

/* ------------------------------------------------------------------ observer */

static CcGo on_enter(CcObserver *obs, CcAct *act) {
    Region *g = (Region *)obs;
    if (act->rebuilt) {
        if (g->root_act == NULL) g->root_act = act;
        fill(&g->level[g->filled++], act);
        if (g->filled < g->n_level) return CC_DESCEND;
        levels_done(g);
        return CC_PERFORM;
    }
    /* the compiled function runs on its own, not within this region */
    if (!cc_rec_active(g->rec)) return cc_handed_replace(g->root, act) ? CC_PASS_ALL : CC_PASS;
    const CcGo go = cc_rec_enter(g->rec, act);
    if (go == CC_GIVE_UP) {
        note_give_up(g);
        return CC_PASS;
    }
    if (go == CC_OK && g->root_act == NULL) g->root_act = act;
    return go;
}

static CcGo unsupported_now(Region *g, CcEvent *ev) {
    g->obs.dead = true;
    ev->result = NULL;
    raise_unsupported(g);
    return CC_DONE;
}

/* Stance 'fail_on_recompile', and code behind a break is not compiled. */
static CcGo refuse_now(Region *g, const CcAct *act, CcEvent *ev) {
    g->refuses = false;
    g->obs.dead = true;
    ev->result = NULL;
    PyErr_Format(PyExc_RuntimeError,
                 "%s would have to be compiled from line %d on, behind a graph break, but the stance is "
                 "'fail_on_recompile'",
                 cc_root_name(g->root), cc_code_line(act->code, act->pc));
    return CC_DONE;
}

static CcGo on_before(CcObserver *obs, CcAct *act, CcEvent *ev) {
    Region *g = (Region *)obs;
    if (g->refuses) return refuse_now(g, act, ev);
    if (!cc_rec_active(g->rec)) return die(g);
    const CcGo go = cc_rec_before(g->rec, act, ev);
    if (go == CC_DONE && !cc_rec_active(g->rec) && !g->obs.dead) { /* gave up while performing the event */
        note_give_up(g);
        if (strict(g)) {
            Py_CLEAR(ev->result);
            cc_raised_clear();
            return unsupported_now(g, ev);
        }
        return go;
    }
    if (go == CC_GIVE_UP) {
        note_give_up(g);
        return strict(g) ? unsupported_now(g, ev) : CC_GIVE_UP;
    }
    if (go != CC_BREAK) return go;
    if (strict(g)) {
        cc_break_copy(&g->unsupported, cc_rec_why(g->rec));
        cc_trace_free(cc_rec_take(g->rec));
        return unsupported_now(g, ev);
    }
    publish(g);
    return CC_BREAK;
}

/* An op that raises ends the recording. If the exception leaves the region uncaught, the caller gets what eager raises,
 * and later recordings need not break there. */
static void keep_raised(Region *g, const CcEvent *ev) {
    if (ev->result != NULL || !PyErr_Occurred()) return;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyErr_NormalizeException(&type, &value, &tb);
    g->raised_at = value;
    if (g->root->fullgraph) Py_XSETREF(g->raised, Py_XNewRef(value));
    PyErr_Restore(type, value, tb);
}

/* Whether that exception left the region. */
static bool raises_kept(Region *g) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const bool same = g->raised_at != NULL && value == g->raised_at;
    PyErr_Restore(type, value, tb);
    /* the second of two consecutive such calls keeps its site, so that code that always raises is not recorded
     * forever */
    if (same && (g->root->fullgraph || !g->root->forgave)) cc_sites_cut(&g->root->sites, g->n_sites);
    g->root->forgave = same;
    return same;
}

static CcGo on_after(CcObserver *obs, CcAct *act, CcEvent *ev) {
    Region *g = (Region *)obs;
    if (!cc_rec_active(g->rec)) return g->obs.dead ? CC_GIVE_UP : CC_OK;
    const CcGo go = cc_rec_after(g->rec, act, ev);
    if (go == CC_GIVE_UP) {
        keep_raised(g, ev);
        note_give_up(g);
    }
    return go;
}

static void on_leave(CcObserver *obs, CcAct *act, int how, PyObject *value) {
    Region *g = (Region *)obs;
    if (!cc_rec_active(g->rec)) return;
    const bool root = act == g->root_act;
    cc_rec_leave(g->rec, act, how, value);
    if (root) g->root_act = NULL;
    if (cc_rec_active(g->rec)) return;
    if (cc_rec_done(g->rec)) {
        publish(g);
        return;
    }
    note_give_up(g);
}

static void on_released(CcObserver *obs, PyObject *o) {
    Region *g = (Region *)obs;
    if (cc_rec_active(g->rec)) cc_rec_released(g->rec, o);
}

static void retire(const CcSegment *s, const CcCallState *x) {
    const CcTrace *t = s->trace;
    for (int i = 0; i < t->adopted.n; i++) cc_generator_retire(x->gv[t->adopted.at[i]]);
}

static CcGo unwind(Region *g, int n_kept) {
    g->n_kept = n_kept;
    g->obs.unwinding = true;
    return CC_UNWIND;
}

/* The pending exception ends the call, because the segment's writes can't be repeated. */
static CcGo raise_at_root(Region *g, CcAct *act, int n) {
    if (n == 1) { /* no frame below will ask how to continue */
        act->retval = NULL;
        return CC_RETURN;
    }
    PyErr_Fetch(&g->error[0], &g->error[1], &g->error[2]);
    g->failed = true;
    return unwind(g, 1);
}

/* A segment has run to its end: continues the call. */
static CcGo after_segment(Region *g, CcSegment *s, CcCallState *x, CcAct *const *acts, int n) {
    CcAct *act = acts[n - 1];
    if (s->trace->end == CC_END_RETURN) {
        PyObject *r = cc_segment_make(s, x, s->trace->result);
        if (r == NULL) return raise_at_root(g, act, n);
        retire(s, x);
        for (int i = 0; i < s->trace->deleted.n; i++) cc_act_put(acts[0], s->trace->deleted.at[i], NULL);
        if (n == 1) {
            act->retval = r;
            return CC_RETURN;
        }
        g->result = r;
        g->has_result = true;
        return unwind(g, 1);
    }
    if (make_levels(g, s, x) < 0) return raise_at_root(g, act, n);
    retire(s, x);
    if (g->n_kept < n) return unwind(g, g->n_kept);
    return fill_chain(g, acts, n);
}

static CcGo fail_segment(Region *g, CcSegment *s, bool pure, CcAct *act, int n) {
    if (pure) {
        cc_raised_clear();
        cc_log_add(CC_LOG_EAGER, "segment %d failed; CPython continues", s->id);
        return die(g);
    }
    return raise_at_root(g, act, n);
}

typedef struct Varying {
    const CcPoint *point;
    CcAct *const *acts;
    int n;
} Varying;

/* Whether the guard found another value of this type, or asks for the type alone. */
static bool was_another(const CcGuard *g, PyObject *now) {
    if (g->check == CC_CHK_TYPE) return g->want == (PyObject *)Py_TYPE(now);
    if (g->check != CC_CHK_VALUE && g->check != CC_CHK_IDENT) return false;
    return g->want != NULL && Py_IS_TYPE(g->want, Py_TYPE(now)) && !cc_guard_same_value(g->want, now);
}

/* A float, text or numpy scalar varies if the break has just left it on the stack, or if its slot had another value
 * before. */
static bool varies(void *ctx, int level, int slot) {
    const Varying *v = ctx;
    const CcAct *act = v->acts[level];
    if (level == v->n - 1 && slot == act->code->n_locals + act->depth - 1) return true;
    PyObject *now = cc_act_get(act, slot);
    if (now == NULL || !cc_value_copyable(now)) return false;
    for (int i = 0; i < v->point->segment.n; i++) {
        const CcGuards *gs = &v->point->segment.at[i]->trace->guards;
        for (int k = 0; k < gs->g.n; k++) {
            const CcGuard *g = &gs->g.at[k];
            if (g->source == CC_SRC_SLOT && g->level == level && g->index == slot && was_another(g, now)) return true;
        }
    }
    return false;
}

static CcGo record_from(Region *g, CcPoint *p, CcAct *const *acts, int n, const CcMode *mode) {
    if (p->segment.n >= g->root->knobs.loop_limit) {
        cc_site_why(g->rec, acts[n - 1], CC_R_LIMIT, "loop_limit variants after one break");
        fill_up(g, p, cc_rec_why(g->rec), "loop_limit is reached");
        return die(g);
    }
    if (g->root->recorder != NULL && g->root->recorder != g) return die(g); /* another thread's call: see may_record */
    g->root->recorder = g;
    if (!g->counted) g->root->recordings++;
    g->counted = true;
    g->root->hints.call = g->root->recordings;
    cc_log_add(CC_LOG_RECORD, "%s: after a break, line %d", cc_root_name(g->root),
               cc_code_line(acts[n - 1]->code, acts[n - 1]->pc));
    g->point = p;
    g->began = cc_log_now_ns();
    Varying v = {p, acts, n};
    const CcGuardState state = {.acts = acts, .n_acts = n};
    for (int i = 0; i < p->segment.n && !g->root->hints.none; i++)
        cc_hint_learn(&g->root->hints, &p->segment.at[i]->trace->guards, &state, (uintptr_t)p);
    return cc_rec_begin_resume(g->rec, acts, n, mode, varies, &v, (uintptr_t)p) == CC_OK ? CC_OK : die(g);
}

/* A full point that no segment has fitted for a while: asking all of them costs more than the few that may still fit save. */
static bool rests(CcPoint *p) {
    enum { PATIENCE = 8, EACH = 16 };
    if (!p->full) return false;
    p->missed = p->missed < PATIENCE + EACH ? p->missed + 1 : PATIENCE + 1;
    return p->missed > PATIENCE && p->missed < PATIENCE + EACH;
}

static CcGo on_resume(CcObserver *obs, CcAct *act) {
    Region *g = (Region *)obs;
    if (cc_rec_active(g->rec)) return CC_OK;
    if (g->obs.dead) return CC_GIVE_UP;
    cc_observe_deliver();
    /* inside `with disable()`: instruction by instruction, unobserved */
    if (cc_eval_disabled > 0) return CC_PERFORM;
    if (cc_stretch_goes_on(act, &g->arrays_in)) return CC_PERFORM;
    CcMode mode;
    cc_mode_read(&mode);
    CcAct *acts[MAX_CHAIN];
    const int n = chain_of(g, act, acts);
    const char *refused = cc_mode_refusal(&mode);
    if (refused == NULL && acts[0] != g->root_act) refused = "the frames are nested too deeply";
    if (refused == NULL && cc_hook_traced()) refused = "a tracer or profiler is active";
    if (refused != NULL) {
        cc_log_add(CC_LOG_EAGER, "%s: after a break: %s", cc_root_name(g->root), refused);
        return die(g);
    }
    CcPoint *p = cc_root_point(g->root, acts, n, true);
    if (rests(p)) return die(g);
    const CcGuardState state = {.acts = acts, .n_acts = n};
    const int n_segments = p->segment.n, last = p->last;
    for (int k = 0; k < n_segments; k++) { /* the last one used, then the others, newest first */
        const int i = k == 0 ? last : n_segments - k - (n_segments - k <= last);
        CcSegment *s = p->segment.at[i];
        if (s->broken || !cc_mode_same(&s->trace->mode, &mode)) continue;
        if (s->trace->scoped && !cc_mode_same(&s->trace->outer, &g->mode)) continue;
        CcCallState x;
        if (p->segment.n > 1 && cc_guard_run_suspect(&s->trace->guards, &state) >= 0) continue;
        cc_segment_open(s, &x);
        const int failed = cc_segment_check(s, &x, &state);
        if (failed >= 0) {
            if (p->segment.n == 1) cc_root_failure(g->root, s, failed);
            cc_segment_close(&x);
            continue;
        }
        const CcRan ran = cc_segment_exec(s, &x);
        if (ran == CC_RAN_MISFIT) {
            cc_guard_release(&s->trace->guards, x.gv);
            cc_segment_close(&x);
            continue;
        }
        p->last = i;
        p->missed = 0;
        const CcGo go =
            ran == CC_RAN ? after_segment(g, s, &x, acts, n) : fail_segment(g, s, ran == CC_RAN_NOTHING, act, n);
        cc_guard_release(&s->trace->guards, x.gv);
        cc_segment_close(&x);
        return go;
    }
    if (cc_eval_stance == CC_STANCE_FAIL_ON_RECOMPILE && !p->full) {
        g->refuses = true; /* the next event raises: there the frame's handlers see it */
        return CC_OK;
    }
    const bool deferred = !g->counted && cc_root_defers(g->root); /* a call that records goes on to do so */
    return p->full || deferred || cc_eval_stance == CC_STANCE_EAGER_ON_RECOMPILE ? die(g)
                                                                                 : record_from(g, p, acts, n, &mode);
}

static CcGo on_rewind(CcObserver *obs, CcAct *act) {
    Region *g = (Region *)obs;
    CcAct *acts[MAX_CHAIN];
    const int n = chain_of(g, act, acts);
    if (n > g->n_kept) return CC_UNWIND;
    g->obs.unwinding = false;
    if (g->failed) {
        act->retval = NULL;
        PyErr_Restore(g->error[0], g->error[1], g->error[2]);
        g->failed = false;
        return CC_RETURN;
    }
    if (g->has_result) {
        act->retval = g->result;
        g->result = NULL;
        g->has_result = false;
        return CC_RETURN;
    }
    return fill_chain(g, acts, n);
}

static PyObject *on_answer(CcObserver *obs, PyObject *func) {
    return cc_eval_disabled == 0 && told_compiled((const Region *)obs) ? cc_intrin_answer(func) : NULL;
}

static bool on_listens(CcObserver *obs, PyObject *callable) {
    (void)obs;
    return cc_eval_disabled == 0 && cc_handed_inside(callable);
}

static PyObject *on_descend(CcObserver *obs, CcAct *act) {
    (void)act;
    Region *g = (Region *)obs;
    return cc_act_call_rebuilt(g->level[g->filled].func);
}

/* ------------------------------------------------------------------ calls */

/* Inlined, it makes gcc 16 warn that g's address stays in `current`; close_region takes it out. */
static __attribute__((noinline)) int open_region(Region *g, CcRoot *root) {
    *g = (Region){.obs = {.enter = on_enter,
                          .before = on_before,
                          .after = on_after,
                          .resume = on_resume,
                          .leave = on_leave,
                          .released = on_released,
                          .rewind = on_rewind,
                          .descend = on_descend,
                          .answer = on_answer,
                          .listens = on_listens},
                  .root = root};
    g->n_sites = root->sites.at.n;
    g->rec = cc_rec_new(&root->sites, root->knobs.verify != 0, root->knobs.freezing != 0 ? cc_run_freezes() : 0,
                        &root->hints);
    if (g->rec == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (cc_hook_arm(&g->obs) < 0) {
        cc_rec_free(g->rec);
        return -1;
    }
    g->outer = current;
    g->depth = current != NULL ? current->depth + 1 : 0;
    g->outer_handled = PyErr_GetHandledException();
    current = g;
    return 0;
}

static PyObject *close_region(Region *g, PyObject *r) {
    current = g->outer;
    if (g->root->recorder == g) g->root->recorder = NULL;
    cc_hook_disarm(&g->obs);
    clear_levels(g);
    PyObject *handled = PyErr_GetHandledException();
    /* a segment ended inside a handler */
    if (handled != g->outer_handled) PyErr_SetHandledException(g->outer_handled);
    Py_XDECREF(handled);
    Py_CLEAR(g->outer_handled);
    Py_CLEAR(g->result);
    g->root->told = told_compiled(g);
    r = cc_obj_canonical_int(r);
    cc_rec_free(g->rec);
    const bool kept = raises_kept(g);
    if (g->unsupported.text != NULL && !kept) { /* even if the user's code caught it on the way */
        Py_CLEAR(r);
        cc_raised_clear();
        raise_unsupported(g);
    }
    cc_break_clear(&g->unsupported);
    Py_CLEAR(g->raised);
    return r;
}

PyObject *cc_region_record(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames, const CcMode *mode) {
    Region g;
    if (open_region(&g, root) < 0) return NULL;
    root->recordings++;
    root->recorder = &g;
    root->hints.call = root->recordings;
    g.counted = true;
    while (root->seen.n > 0) cc_break_clear(&root->seen.at[--root->seen.n]);
    const uint64_t start = g.began = cc_log_now_ns();
    CcSpan span = {.start_ns = 0};
    if (cc_span_on) cc_span_open(&span, CC_SPAN_RECORD, "%s", cc_root_name(root));
    char *why = root->entry.n > 0 && root->last_failure != NULL ? cc_mem_text(root->last_failure) : NULL;
    const CcEventKind kind = root->entry.n > 0 ? CC_LOG_RECOMPILE : CC_LOG_RECORD;
    root->recompiles += kind == CC_LOG_RECOMPILE;
    g.first = true;
    g.mode = *mode;
    g.n_args = n;
    g.kwnames = kwnames;
    const int n_kw = cc_obj_count(kwnames);
    cc_rec_begin_call(g.rec, args, n, kwnames, root->func, mode);
    PyObject *r = PyObject_Vectorcall((PyObject *)root->func, args, (size_t)n - n_kw, kwnames);
    cc_log_more(kind, (CcLogExtra){.start_ns = start}, "%s: %s%s%.1f ms", cc_root_name(root), why != NULL ? why : "",
                why != NULL ? "; " : "", (double)(cc_log_now_ns() - start) * 1e-6);
    free(why);
    root->recording_ns += cc_log_now_ns() - start;
    cc_span_close(&span);
    return close_region(&g, r);
}

PyObject *cc_region_continue(CcRoot *root, CcSegment *s, CcCallState *x) {
    Region g;
    if (open_region(&g, root) < 0) return NULL;
    PyObject *r = NULL;
    g.mode = s->trace->mode;
    const bool made = make_levels(&g, s, x) == 0;
    cc_guard_release(&s->trace->guards, x->gv);
    cc_segment_drop(x); /* frees everything that the frames don't hold, as in eager */
    if (made) r = cc_act_call_rebuilt(g.level[0].func);
    return close_region(&g, r);
}
