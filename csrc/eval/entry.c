/* Roots: entries of a compiled callable, calls, and statistics. */
#include "eval_int.h"

CcKnobs cc_policy = {
#define CC_KNOB(name, kind, value, doc) .name = value,
#include "policy.def"
#undef CC_KNOB
};
static const CcKnobInfo knobs[] = {
#define CC_KNOB(name, kind, value, doc) {#name, doc, CC_KNOB_##kind, offsetof(CcKnobs, name)},
#include "policy.def"
#undef CC_KNOB
};
const CcKnobInfo *cc_policy_knobs(int *n) {
    *n = CC_COUNT(knobs);
    return knobs;
}

PyObject *cc_policy_dict(const CcKnobs *of) {
    PyObject *d = PyDict_New();
    for (int i = 0; d != NULL && i < CC_COUNT(knobs); i++) {
        const int v = *(const int *)((const char *)of + knobs[i].offset);
        PyObject *value = knobs[i].kind == CC_KNOB_BOOL ? PyBool_FromLong(v) : PyLong_FromLong(v);
        if (value == NULL || PyDict_SetItemString(d, knobs[i].name, value) < 0) Py_CLEAR(d);
        Py_XDECREF(value);
    }
    return d;
}

struct CcEvalCounts cc_eval_counts;
bool cc_eval_skip_kernels;
_Thread_local int cc_eval_disabled;
CcStance cc_eval_stance;
PyObject *cc_eval_forced;

/* ------------------------------------------------------------------ the callable */

static PyFunctionObject *function_of(PyObject *callable) {
    if (PyFunction_Check(callable)) return (PyFunctionObject *)callable;
    if (PyMethod_Check(callable) && PyFunction_Check(PyMethod_GET_FUNCTION(callable)))
        return (PyFunctionObject *)PyMethod_GET_FUNCTION(callable);
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__call__");
    PyObject *f = name != NULL ? cc_type_lookup(Py_TYPE(callable), name) : NULL;
    return f != NULL && PyFunction_Check(f) ? (PyFunctionObject *)f : NULL;
}

/* The argument that precedes the call's own: the self of a method or object. NULL: none. */
static PyObject *self_of(const CcRoot *root) {
    if (PyFunction_Check(root->callable)) return NULL;
    return PyMethod_Check(root->callable) ? PyMethod_GET_SELF(root->callable) : root->callable;
}

int cc_root_init(CcRoot *root, PyObject *callable, PyObject *name) {
    PyFunctionObject *f = function_of(callable);
    if (f == NULL) {
        PyErr_Format(
            PyExc_TypeError,
            "ccompile can compile a Python function, a method, or an object whose class has a Python __call__, "
            "not %.100s",
            Py_TYPE(callable)->tp_name);
        return -1;
    }
    root->callable = callable;
    root->func = (PyFunctionObject *)Py_NewRef((PyObject *)f);
    root->name = Py_NewRef(name != NULL ? name : f->func_qualname);
    root->knobs = cc_policy;
    cc_pace_start(root);
    return 0;
}

const char *cc_root_name(const CcRoot *root) {
    const char *name = PyUnicode_AsUTF8(root->name);
    if (name == NULL) cc_raised_clear(); /* it has surrogates */
    return name != NULL ? name : "?";
}

/* ------------------------------------------------------------------ life */

static void free_point(CcPoint *p) {
    for (int i = 0; i < p->n; i++) Py_CLEAR(p->level[i].co);
    free(p->level);
    for (int i = 0; i < p->segment.n; i++) cc_segment_free(p->segment.at[i]);
    cc_vec_free(&p->segment);
    free(p);
}

static void free_entry(CcEntry *e) {
    Py_XDECREF(e->kwnames);
    cc_segment_free(e->segment);
    free(e);
}

/* Freeing an entry may run code that calls the function (a callback of a weak reference): it must not find the entry. */
static void drop_entry(CcRoot *root, int i) {
    CcEntry *e = root->entry.at[i];
    root->entry.n--;
    memmove(root->entry.at + i, root->entry.at + i + 1, sizeof *root->entry.at * (size_t)(root->entry.n - i));
    free_entry(e);
}

static void clear_breaks(CcRoot *root) {
    while (root->seen.n > 0) cc_break_clear(&root->seen.at[--root->seen.n]);
    while (root->gave_up.n > 0) cc_break_clear(&root->gave_up.at[--root->gave_up.n]);
}

void cc_root_clear(CcRoot *root) {
    if (root->running > 0) { /* a running call uses these segments: the end of the call clears them */
        root->reset_pending = true;
        return;
    }
    root->reset_pending = false;
    if (root->entry.n > 0) cc_log_add(CC_LOG_DROP, "%s: %d entries", cc_root_name(root), root->entry.n);
    /* as in drop_entry(); another thread, too, may call the function meanwhile, and record it again */
    __typeof__(root->entry) entry = root->entry;
    __typeof__(root->point) point = root->point;
    PyObject *handed = root->handed;
    memset(&root->entry, 0, sizeof root->entry);
    memset(&root->point, 0, sizeof root->point);
    root->handed = NULL;
    cc_sites_free(&root->sites);
    clear_breaks(root);
    free(root->last_failure);
    root->last_failure = NULL;
    root->hints.at.n = 0;
    root->give_ups = 0;
    root->waited = root->patience = root->deferred = 0;
    root->eager_only = root->warned = false;
    cc_pace_start(root);
    while (entry.n > 0) free_entry(entry.at[--entry.n]);
    while (point.n > 0) free_point(point.at[--point.n]);
    cc_vec_free(&entry);
    cc_vec_free(&point);
    Py_XDECREF(handed);
}

/* How many calls this thread is in. No list of them: greenlets end calls in any order. */
static _Thread_local int calls_here;

void cc_root_enter(CcRoot *root) {
    root->running++;
    calls_here++;
}

void cc_root_leave(CcRoot *root) {
    calls_here--;
    if (--root->running == 0 && root->reset_pending) cc_root_clear(root);
}

void cc_root_free(CcRoot *root) {
    root->running = 0;
    cc_root_clear(root);
    cc_vec_free(&root->entry);
    cc_vec_free(&root->point);
    cc_vec_free(&root->seen);
    cc_vec_free(&root->gave_up);
    cc_vec_free(&root->hints.at);
    free(root->latency);
    root->latency = NULL;
    Py_CLEAR(root->hints.declared);
    Py_CLEAR(root->func);
    Py_CLEAR(root->name);
}

void cc_root_forked(CcRoot *root) {
    root->running = CC_MIN(root->running, calls_here);
    root->pace.open = false;
    if (!cc_region_is_here(root->recorder)) root->recorder = NULL;
}

int cc_root_visit(const CcRoot *root, visitproc visit, void *arg) {
    Py_VISIT(root->func);
    Py_VISIT(root->handed);
    for (int i = 0; i < root->entry.n; i++) {
        const int status = cc_segment_traverse(root->entry.at[i]->segment, visit, arg);
        if (status != 0) return status;
    }
    for (int i = 0; i < root->point.n; i++)
        for (int j = 0; j < root->point.at[i]->segment.n; j++) {
            const int status = cc_segment_traverse(root->point.at[i]->segment.at[j], visit, arg);
            if (status != 0) return status;
        }
    return 0;
}

/* ------------------------------------------------------------------ entries and points */

static bool same_names(PyObject *a, PyObject *b) {
    if (a == b) return true;
    const Py_ssize_t n = a != NULL ? PyTuple_GET_SIZE(a) : 0, m = b != NULL ? PyTuple_GET_SIZE(b) : 0;
    if (n != m) return false;
    for (Py_ssize_t i = 0; i < n; i++)
        if (PyTuple_GET_ITEM(a, i) != PyTuple_GET_ITEM(b, i) &&
            PyUnicode_Compare(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)) != 0)
            return false;
    return true;
}

void cc_root_publish_entry(CcRoot *root, CcTrace *trace, int n_args, PyObject *kwnames) {
    for (int i = 0; i < root->entry.n; i++) {
        CcEntry *old = root->entry.at[i];
        old->covered = old->covered || (old->hinted && cc_trace_symbolic(trace));
        old->hinted = false;
    }
    CcEntry *e = cc_mem_get(sizeof *e);
    e->segment = cc_segment_new(root, trace);
    e->n_args = n_args;
    e->kwnames = Py_XNewRef(kwnames);
    cc_vec_push(&root->entry, e);
    memmove(root->entry.at + 1, root->entry.at, sizeof e * (size_t)(root->entry.n - 1));
    root->entry.at[0] = e;
    cc_log_add(CC_LOG_ENTRY, "%s: %d guards, %d ops", cc_root_name(root), trace->guards.g.n, trace->ops);
}

/* The instruction at which a frame continues. Follows jumps: 3.12 and 3.13 end a `while` with a jump back to its body,
 * where the first iteration begins. */
static int place_of(const CcAct *act) {
    const CcCode *code = act->code;
    int pc = act->pc;
    for (int i = 0; i < code->n && (code->insn[pc].op == CC_INSN_JUMP || code->insn[pc].op == CC_INSN_JUMP_BACK); i++)
        pc = code->insn[pc].target;
    return pc;
}

CcPoint *cc_root_point(CcRoot *root, CcAct *const *acts, int n, bool create) {
    for (int i = 0; i < root->point.n; i++) {
        CcPoint *p = root->point.at[i];
        bool same = p->n == n;
        for (int k = 0; same && k < n; k++) same = p->level[k].co == acts[k]->co && p->level[k].pc == place_of(acts[k]);
        if (same) return p;
    }
    if (!create) return NULL;
    CcPoint *p = cc_mem_get(sizeof *p);
    p->level = cc_mem_get((size_t)n * sizeof *p->level);
    p->n = n;
    for (int k = 0; k < n; k++) {
        p->level[k].co = (PyCodeObject *)Py_NewRef((PyObject *)acts[k]->co);
        p->level[k].pc = place_of(acts[k]);
    }
    cc_vec_push(&root->point, p);
    return p;
}

void cc_root_failure(CcRoot *root, const CcSegment *s, int guard) {
    root->failed_segment = s->id;
    root->failed_guard = guard;
    CcSbuf text = {0};
    const int step = guard - s->trace->guards.g.n;
    if (step < 0) cc_guard_text(&s->trace->guards, guard, &text);
    else if (step < s->trace->step.n) cc_symtext_step(s->trace, step, &text);
    else cc_sbuf_add(&text, "symbolic sizes are within their bounds, and results of their recorded kind");
    free(root->last_failure);
    root->last_failure = cc_mem_text(cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    cc_log_add(CC_LOG_GUARD_FAIL, "%s: %s", cc_root_name(root), root->last_failure);
}

/* Adds the current value to last_failure. */
static void tell_now(CcRoot *root, const CcGuardState *state) {
    const CcSegment *s = NULL;
    for (int i = 0; i < root->entry.n; i++)
        if (root->entry.at[i]->segment->id == root->failed_segment) s = root->entry.at[i]->segment;
    if (s == NULL || root->last_failure == NULL || root->failed_guard < 0) return;
    const CcTrace *t = s->trace;
    CcSbuf text = {0};
    cc_sbuf_add(&text, "%s; now ", root->last_failure);
    if (root->failed_guard < t->guards.g.n) cc_guard_value_text(&t->guards, root->failed_guard, state, &text);
    for (int i = 0; root->failed_guard >= t->guards.g.n && i < t->resized.n + t->number.n;
         i++) { /* the sources of its symbols */
        const int id = i < t->resized.n ? t->resized.at[i] : t->number.at[i - t->resized.n].guard;
        if (i > 0) cc_sbuf_add(&text, ", ");
        cc_guard_source_text(&t->guards, id, &text);
        cc_sbuf_add(&text, " is ");
        cc_guard_value_text(&t->guards, id, state, &text);
    }
    free(root->last_failure);
    root->last_failure = cc_mem_text(cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    root->failed_guard = -1;
}

/* ------------------------------------------------------------------ the call */

/* An object's class, or the __call__ of its class, may have been replaced since the last call: entries are dropped, and
 * the calls that follow record the new function. Why this call runs eagerly; NULL: it does not. */
static const char *follow_callable(CcRoot *root) {
    PyFunctionObject *f = function_of(root->callable);
    if (f == root->func) return NULL;
    Py_XINCREF(f);
    cc_root_clear(root);
    if (f != NULL && !root->reset_pending) Py_XSETREF(root->func, (PyFunctionObject *)Py_NewRef((PyObject *)f));
    const char *why = f == NULL             ? "its class has another __call__, which is no Python function"
                      : root->reset_pending ? "its class has another __call__, and an earlier call is still running"
                                            : NULL;
    Py_XDECREF(f);
    return why;
}

/* A compiled function that calls itself takes C stack with each call, unlike a Python function. */
static PyObject *call_plainly(const CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    return cc_hook_has_least_room() ? PyObject_Vectorcall(root->callable, args, nargsf, kwnames) : NULL;
}

static PyObject *call_eagerly(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    root->eager_calls++;
    return call_plainly(root, args, nargsf, kwnames);
}

/* Says that a tracer or profiler sees eager code, and calls it. */
static PyObject *call_unseen(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames, const char *why) {
    static bool warned;
    cc_log_add(CC_LOG_EAGER, "%s: %s", cc_root_name(root), why);
    if (!warned) {
        warned = true;
        cc_raised_warn(PyUnicode_FromFormat(
            "ccompile: %U runs eagerly: %s. Later calls count as `eager` in ccompile.counters, without a warning",
            root->name, why));
    }
    return call_eagerly(root, args, nargsf, kwnames);
}

/* Runs an entry whose guards have passed; *ran tells how far it got. */
static PyObject *run_entry(CcRoot *root, CcEntry *e, CcCallState *x, CcRan *ran) {
    CcSegment *s = e->segment;
    *ran = cc_segment_exec(s, x);
    if (*ran != CC_RAN) return NULL;
    if (s->trace->end == CC_END_RETURN) return cc_segment_make(s, x, s->trace->result);
    return cc_region_continue(root, s, x);
}

static void to_front(CcRoot *root, CcEntry *e) {
    int i = 0;
    while (i < root->entry.n && root->entry.at[i] != e) i++;
    if (i == 0 || i == root->entry.n) return;
    memmove(root->entry.at + 1, root->entry.at, sizeof e * (size_t)i);
    root->entry.at[0] = e;
}

enum { NOT_ASKED = -2, MODE_DIFFERS = -3 }; /* besides numbers of guards */

/* No entry matched: reports why the first one did not. */
static void tell_failure(CcRoot *root, const CcMode *mode, const CcGuardState *state, int failed) {
    if (failed == NOT_ASKED && root->entry.n > 0 && root->entry.at[0]->segment->broken) return;
    if (failed == NOT_ASKED) {
        free(root->last_failure);
        root->last_failure = root->entry.n > 0 ? cc_mem_text("the number of arguments, or their names") : NULL;
        root->failed_guard = -1;
        return;
    }
    const CcSegment *s = root->entry.at[0]->segment;
    if (failed >= 0) {
        cc_root_failure(root, s, failed);
    } else if (failed == MODE_DIFFERS) {
        free(root->last_failure);
        root->last_failure = cc_mem_text(cc_mode_diff(&s->trace->mode, mode));
        root->failed_guard = -1;
    }
    tell_now(root, state);
}

/* Runs an entry if its guards hold; otherwise *failed is the failing guard. */
static PyObject *try_entry(CcRoot *root, CcEntry *e, const CcGuardState *state, CcRan *ran, int *failed) {
    CcCallState x;
    CcGuards *gs = &e->segment->trace->guards;
    if (root->entry.n > 1 && (*failed = cc_guard_run_suspect(gs, state)) >= 0) return NULL;
    cc_segment_open(e->segment, &x);
    *failed = cc_segment_check(e->segment, &x, state);
    PyObject *r = NULL;
    if (*failed < 0) {
        r = run_entry(root, e, &x, ran);
        cc_guard_release(gs, x.gv);
        if (*ran == CC_RAN_MISFIT) *failed = gs->g.n + x.misfit;
    }
    cc_segment_close(&x);
    return r;
}

/* The result of a hit. NULL without an error: no entry matches, and *first is the guard that failed in the first one;
 * or *again: run eagerly. */
static PyObject *try_entries(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames, const CcMode *mode,
                             bool *again, int *first) {
    const CcGuardState state = {.args = args, .n_args = n};
    for (int i = 0; i < root->entry.n; i++) {
        CcEntry *e = root->entry.at[i];
        if (e->n_args != n || e->segment->broken || !same_names(e->kwnames, kwnames)) continue;
        if (e->segment->trace->end != CC_END_RETURN && (cc_hook_traced() || cc_hook_refusal() != NULL))
            continue; /* see call_traced */
        int failed = MODE_DIFFERS;
        if (cc_mode_same(&e->segment->trace->mode, mode)) {
            CcRan ran = CC_RAN;
            PyObject *r = try_entry(root, e, &state, &ran, &failed);
            if (failed < 0) {
                to_front(root, e);
                root->hits++;
                cc_eval_counts.hits++;
                *again = ran == CC_RAN_NOTHING;
                return r;
            }
        }
        if (i == 0) *first = failed;
    }
    return NULL;
}

static void warn_of_limit(CcRoot *root) {
    root->warned = true;
    const int limit = root->knobs.recompile_limit;
    const bool differs = limit > 0 && root->last_failure != NULL;
    cc_log_add(CC_LOG_EAGER, "%s: recompile_limit is %d: calls that no entry fits run eagerly", cc_root_name(root),
               limit);
    cc_raised_warn(PyUnicode_FromFormat(
        "ccompile: %U has reached recompile_limit (%d); %s.%s%s%s More entries: "
        "ccompile.compile(..., options={\"recompile_limit\": %d})",
        root->name, limit,
        limit > 0 ? "further variants run eagerly, and now and then one replaces the least recently used entry"
                  : "nothing is compiled, and all calls run eagerly",
        differs ? " What differed last: " : "", differs ? root->last_failure : "", differs ? "." : "",
        8 * CC_MAX(limit, 1)));
}

enum {
    PAYS = 8,     /* calls after which an entry no longer counts towards the limit */
    PROVED_X = 4, /* limit on all entries, as a multiple of recompile_limit */
};

/* The number of entries with few calls, except those covered by a later entry in which sizes became symbols. */
static int unproved(const CcRoot *root, int *last) {
    int n = 0;
    for (int i = 0; i < root->entry.n; i++) {
        if (root->entry.at[i]->covered || root->entry.at[i]->segment->hits >= PAYS) continue;
        n++;
        *last = i;
    }
    return n;
}

/* Whether the limit is reached; then *victim is the least recently used entry of those that count. It may be dropped
 * only if no Python code has run since, and no other call is running. */
static bool is_full(const CcRoot *root, int *victim) {
    const int limit = root->knobs.recompile_limit;
    *victim = root->entry.n - 1;
    return root->entry.n >= limit && (unproved(root, victim) >= limit || root->entry.n / PROVED_X >= limit);
}

/* Past the limit, variants that recur should get the entries: after `patience` eager calls, the current variant
 * replaces the least recently used entry. If the previous replacement was hardly used, patience doubles. */
static bool makes_room(CcRoot *root) {
    enum { FIRST = 32, MOST = 8192 };
    if (root->patience == 0) root->patience = FIRST;
    if (++root->waited < root->patience || root->running > 1 || root->entry.n == 0) return false;
    root->waited = 0;
    const CcEntry *newest = NULL;
    for (int i = 0; i < root->entry.n; i++)
        if (newest == NULL || root->entry.at[i]->segment->id > newest->segment->id) newest = root->entry.at[i];
    root->patience =
        newest->segment->hits >= PAYS ? CC_MAX(root->patience / 2, (int)FIRST) : CC_MIN(root->patience * 2, (int)MOST);
    return true;
}

static bool short_of_memory(const CcRoot *root) {
    const int64_t limit = (int64_t)root->knobs.memory_limit << 20;
    return limit > 0 && cc_mem_resident() > limit;
}

/* The first of a row of such calls is an event. */
bool cc_root_defers(CcRoot *root) {
    const int after = root->knobs.compile_after;
    const bool early = root->deferred < after;
    if (cc_eval_stance == CC_STANCE_COMPILE_NOW || !(early || short_of_memory(root))) {
        root->deferred = 0;
        return false;
    }
    if (root->deferred == 0 || root->deferred == after)
        cc_log_add(CC_LOG_EAGER,
                   early ? "%s: compile_after: calls that no entry fits run eagerly, %d of them"
                         : "%s: memory_limit: nothing is recorded while more than %d MiB are resident",
                   cc_root_name(root), early ? after : root->knobs.memory_limit);
    root->deferred = CC_MIN(root->deferred, (int64_t)after) + 1;
    return true;
}

/* While another thread records, this call runs eagerly: threads that start together would use up the entries before a
 * size is known to vary. */
static bool may_record(CcRoot *root, bool full) {
    if (root->recorder != NULL) return false;
    return !full || !root->warned || makes_room(root);
}

/* Whatever differs from the existing entries becomes symbolic. */
static void learn_hints(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames, const CcMode *mode) {
    const CcGuardState state = {.args = args, .n_args = n};
    for (int i = 0; i < root->entry.n && !root->hints.none; i++) {
        CcEntry *e = root->entry.at[i];
        if (e->n_args == n && same_names(e->kwnames, kwnames) && cc_mode_same(&e->segment->trace->mode, mode))
            e->hinted = cc_hint_learn(&root->hints, &e->segment->trace->guards, &state, 0);
    }
}

static PyObject *call_compiled(CcRoot *root, PyObject *const *args, int n, PyObject *kwnames, const CcMode *mode,
                               PyObject *const *own, size_t own_nargsf) {
    const CcGuardState state = {.args = args, .n_args = n};
    bool again = false;
    int first = NOT_ASKED;
    PyObject *r = try_entries(root, args, n, kwnames, mode, &again, &first);
    if (r != NULL) return r;
    if (again) { /* eager raises the same error, with the user's lines in its traceback */
        cc_raised_clear();
        cc_log_add(CC_LOG_EAGER, "%s: a compiled segment failed", cc_root_name(root));
        return call_eagerly(root, own, own_nargsf, kwnames);
    }
    if (PyErr_Occurred()) return NULL;
    cc_eval_counts.misses++;
    if (cc_hook_traced())
        return call_unseen(root, own, own_nargsf, kwnames,
                           "a profiler is active, and this call is not compiled yet or has graph breaks");
    if (cc_eval_stance == CC_STANCE_EAGER_ON_RECOMPILE) return call_eagerly(root, own, own_nargsf, kwnames);
    if (cc_eval_stance == CC_STANCE_FAIL_ON_RECOMPILE) {
        tell_failure(root, mode, &state, first);
        return PyErr_Format(
            PyExc_RuntimeError, "%s would have to be compiled, but the stance is 'fail_on_recompile'. %s%s",
            cc_root_name(root), root->last_failure != NULL ? "What differs: " : "Nothing is compiled yet",
            root->last_failure != NULL ? root->last_failure : "");
    }
    const char *refused = cc_hook_refusal();
    if (refused != NULL) {
        cc_log_add(CC_LOG_EAGER, "%s: %s", cc_root_name(root), refused);
        return call_eagerly(root, own, own_nargsf, kwnames);
    }
    int victim;
    const bool full = is_full(root, &victim);
    if (cc_root_defers(root) || !may_record(root, full)) return call_eagerly(root, own, own_nargsf, kwnames);
    tell_failure(root, mode, &state, first);
    learn_hints(root, args, n, kwnames, mode);
    if (full) {
        if (!root->warned) {
            warn_of_limit(root);
            return call_eagerly(root, own, own_nargsf, kwnames);
        }
        /* another thread's call may have begun, or one of the user's code that the text of what differs has run */
        if (root->running > 1) return call_eagerly(root, own, own_nargsf, kwnames);
        if (is_full(root, &victim)) drop_entry(root, victim);
    }
    if (root->recorder != NULL) return call_eagerly(root, own, own_nargsf, kwnames);
    return cc_region_record(root, args, n, kwnames, mode);
}

/* A call of a function that does not run eagerly for good. */
static PyObject *call_here(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    CcMode mode;
    cc_mode_read(&mode);
    const char *why = cc_hook_occupied()                  ? "inside torch.compile"
                      : cc_eval_deep()                    ? "too many calls with graph breaks are in each other"
                      : !cc_hook_has_room()               ? "too little of the thread's C stack is left"
                      : cc_mem_low() && !cc_mem_reserve() ? "memory is low"
                                                          : cc_mode_refusal(&mode);
    if (why == NULL) why = follow_callable(root);
    if (why != NULL) {
        cc_log_add(CC_LOG_EAGER, "%s", why);
        return call_eagerly(root, args, nargsf, kwnames);
    }
    cc_run_threads(cc_mode_threads());
    const Py_ssize_t n_pos = PyVectorcall_NARGS(nargsf);
    const int n_own = (int)n_pos + cc_obj_count(kwnames);
    PyObject *self = self_of(root), *small[16], **all = small;
    PyObject *const *in = args;
    if (self != NULL) {
        if (n_own + 1 > CC_COUNT(small) && (all = PyMem_Malloc(sizeof *all * (size_t)(n_own + 1))) == NULL)
            return PyErr_NoMemory();
        all[0] = self;
        memcpy(all + 1, args, sizeof *all * (size_t)n_own);
        in = all;
    }
    cc_root_enter(root);
    PyObject *r = call_compiled(root, in, n_own + (self != NULL), kwnames, &mode, args, nargsf);
    root->ended++;
    cc_root_leave(root);
    if (all != small) PyMem_Free(all);
    return r;
}

static PyObject *call_timed(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    CcLap lap;
    PyObject *r =
        cc_pace_begin(root, &lap) ? call_eagerly(root, args, nargsf, kwnames) : call_here(root, args, nargsf, kwnames);
    cc_pace_end(root, &lap, r != NULL);
    return r;
}

/* Frames below are Dynamo's, so compiled functions that they call are called as they are. */
static PyObject *call_forced(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    PyObject *forced = Py_NewRef(cc_eval_forced); /* the code that it runs may end the stance */
    cc_eval_disabled++;
    PyObject *f = PyObject_CallFunction(forced, "OO", root->callable, root->fullgraph ? Py_True : Py_False);
    root->eager_calls++;
    PyObject *r = f != NULL ? PyObject_Vectorcall(f, args, nargsf, kwnames) : NULL;
    cc_eval_disabled--;
    Py_XDECREF(f);
    Py_DECREF(forced);
    return r;
}

static bool stays_eager(const CcRoot *root) {
    return cc_eval_stance == CC_STANCE_FORCE_EAGER ||
           (cc_eval_stance == CC_STANCE_EAGER_THEN_COMPILE && root->calls == 1);
}

/* A call under a profiler runs entries without breaks, because a profiler measures what runs; under a tracer, which
 * wants every line, it runs eagerly. */
static PyObject *call_traced(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    if (cc_hook_profiled() && !root->pace.slow) return call_here(root, args, nargsf, kwnames);
    return call_unseen(root, args, nargsf, kwnames, "a tracer, debugger or coverage tool is active");
}

static PyObject *call_counted(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    root->calls++;
    cc_eval_counts.calls++;
    if (cc_eval_stance == CC_STANCE_FORCE_BACKEND) return call_forced(root, args, nargsf, kwnames);
    if (root->eager_only || stays_eager(root)) return call_eagerly(root, args, nargsf, kwnames);
    if (cc_hook_traced()) return call_traced(root, args, nargsf, kwnames);
    if (root->calls >= root->pace.from && cc_eval_stance == CC_STANCE_DEFAULT)
        return call_timed(root, args, nargsf, kwnames);
    return root->pace.slow ? call_eagerly(root, args, nargsf, kwnames) : call_here(root, args, nargsf, kwnames);
}

PyObject *cc_root_call(CcRoot *root, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    if (cc_eval_disabled > 0 || cc_eval_recording()) return call_plainly(root, args, nargsf, kwnames);
    if (!cc_observe_any()) return call_counted(root, args, nargsf, kwnames);
    CcObserved o;
    cc_observe_begin(&o, root);
    PyObject *r = call_counted(root, args, nargsf, kwnames);
    cc_observe_end(&o, r == NULL);
    return r;
}
