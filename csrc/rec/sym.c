/* Symbols: sizes and numbers that differ from call to call. Each is an object of its own (CPython's cached ints are
 * copied), so that provenance by identity tells it from a constant of the same value. What Python code computes from
 * symbols is a step: it gives further symbols, or a guard (a comparison has to come out as it did). C code that looks
 * at a symbol in a way that is no step pins it: a guard on its value. Nothing here knows how an op's result is shaped:
 * for a new key the nodes are run by torch once, which tells (eval/shape.c). */
#include "rec_int.h"

enum { MAX_ITEMS = 16 };

static bool is_number(PyObject *o) { return PyLong_CheckExact(o) || PyFloat_CheckExact(o); }

int cc_sym_of(CcRec *rec, PyObject *o) {
    if (rec->trace == NULL || rec->trace->symbol.n == 0 || o == NULL || !is_number(o)) return -1;
    const CcProv *p = cc_value_find(rec, o);
    return p != NULL && p->origin == CC_O_SYMBOL ? p->id : -1;
}

/* CPython has one object for each of them (_PY_NSMALLNEGINTS, _PY_NSMALLPOSINTS). */
bool cc_sym_small(PyObject *o) {
    if (!PyLong_CheckExact(o)) return false;
    int overflow;
    const long v = PyLong_AsLongAndOverflow(o, &overflow);
    return overflow == 0 && v >= -5 && v <= 256;
}

bool cc_sym_is(CcRec *rec, PyObject *o) { return cc_sym_of(rec, o) >= 0; }

static bool symbol_visit(void *ctx, PyObject *o, int depth) { return cc_sym_within(ctx, o, depth); }

bool cc_sym_within(CcRec *rec, PyObject *o, int depth) {
    if (rec->trace == NULL || rec->trace->symbol.n == 0 || o == NULL) return false;
    if (is_number(o)) return cc_sym_is(rec, o);
    if (PySlice_Check(o)) depth = CC_MAX(depth, 1);
    return depth > 0 && cc_number_any(o, symbol_visit, rec, depth - 1);
}

/* ------------------------------------------------------------------ tensors with symbolic sizes */

static const void *key_of(int value) { return (const void *)(intptr_t)(value + 1); }

bool cc_sym_value(CcRec *rec, int value) { return rec->sized.n > 0 && cc_map_find(&rec->sized, key_of(value)) != NULL; }
void cc_sym_mark(CcRec *rec, int value) { cc_map_put(&rec->sized, key_of(value), 1); }

bool cc_sym_sized(CcRec *rec, PyObject *tensor) {
    if (rec->trace == NULL || tensor == NULL || !cc_tens_any(tensor)) return false;
    const CcProv *p = cc_value_find(rec, tensor);
    if (p == NULL) return false;
    if (p->origin == CC_O_SOURCE) return rec->trace->guards.g.at[p->id].dynamic != 0;
    return p->origin == CC_O_VALUE && cc_sym_value(rec, p->id);
}

/* What is said about a tensor's sizes by its user. Marks are a tuple (mask of dynamic dims, mask of static ones, ((dim,
 * min, max), ...)), made by python/ccompile/dims.py. */
typedef struct Marks {
    unsigned dynamic, fixed;
    int64_t min[CC_MAX_DIMS], max[CC_MAX_DIMS];
} Marks;

static void add_marks(Marks *m, PyObject *marks) {
    if (marks == NULL || !PyTuple_Check(marks) || PyTuple_GET_SIZE(marks) != 3) return;
    m->dynamic |= (unsigned)PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(marks, 0));
    m->fixed |= (unsigned)PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(marks, 1));
    PyObject *ranges = PyTuple_GET_ITEM(marks, 2);
    for (Py_ssize_t i = 0; PyTuple_Check(ranges) && i < PyTuple_GET_SIZE(ranges); i++) {
        int dim;
        long long min, max;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(ranges, i), "iLL", &dim, &min, &max) || dim < 0 || dim >= CC_MAX_DIMS)
            continue;
        m->min[dim] = min;
        m->max[dim] = max;
    }
    PyErr_Clear();
}

/* torch._dynamo.mark_dynamic and mark_static leave sets of dims. */
static unsigned dims_of_set(PyObject *dict, const char *name) {
    PyObject *set = PyDict_GetItemString(dict, name);
    unsigned dims = 0;
    for (int d = 0; set != NULL && PyAnySet_Check(set) && d < CC_MAX_DIMS; d++) {
        PyObject *o = PyLong_FromLong(d);
        if (o != NULL && PySet_Contains(set, o) == 1) dims |= 1u << d;
        Py_XDECREF(o);
    }
    PyErr_Clear();
    return dims;
}

/* How the argument is called, or its number where the function takes *args (a module's __call__). */
static PyObject *argument_name(const CcRec *rec, int index) {
    const int n_kw = rec->kwnames != NULL ? (int)PyTuple_GET_SIZE(rec->kwnames) : 0, n_pos = rec->n_args - n_kw;
    if (index >= n_pos) return Py_NewRef(PyTuple_GET_ITEM(rec->kwnames, index - n_pos));
    const PyCodeObject *co = (PyCodeObject *)rec->root->func_code;
    return index < co->co_argcount ? Py_NewRef(PyTuple_GET_ITEM(co->co_localsplusnames, index))
                                   : PyLong_FromLong(index);
}

static Marks marks_of(CcRec *rec, int guard, PyObject *tensor) {
    Marks m = {0};
    for (int d = 0; d < CC_MAX_DIMS; d++) {
        m.min[d] = 2; /* 0 and 1 are told apart: they broadcast */
        m.max[d] = INT64_MAX;
    }
    const CcGuard *g = &rec->trace->guards.g.at[guard];
    if (rec->hints->declared != NULL && g->source == CC_SRC_ARG) {
        PyObject *name = argument_name(rec, g->index);
        if (name != NULL) add_marks(&m, PyDict_GetItemWithError(rec->hints->declared, name));
        Py_XDECREF(name);
    }
    PyObject *dict = cc_obj_dict(tensor);
    if (dict == NULL || PyDict_GET_SIZE(dict) == 0) return m;
    add_marks(&m, PyDict_GetItemString(dict, "_ccompile_dims"));
    m.dynamic |= dims_of_set(dict, "_dynamo_dynamic_indices") | dims_of_set(dict, "_dynamo_weak_dynamic_indices");
    m.fixed |= dims_of_set(dict, "_dynamo_static_indices");
    return m;
}

/* Does this source lie in an argument, and not among a module's parameters and buffers? */
static bool in_argument(const CcGuards *gs, int id) {
    for (; gs->g.at[id].parent >= 0; id = gs->g.at[id].parent) {
        PyObject *key = gs->g.at[id].key;
        if (key != NULL && PyUnicode_CheckExact(key) &&
            (PyUnicode_CompareWithASCIIString(key, "_buffers") == 0 ||
             PyUnicode_CompareWithASCIIString(key, "_parameters") == 0))
            return false;
    }
    return gs->g.at[id].source == CC_SRC_ARG || gs->g.at[id].source == CC_SRC_SLOT;
}

unsigned cc_sym_dims(CcRec *rec, int guard, PyObject *tensor, const CcType *type) {
    const CcHints *hints = rec->hints;
    if (hints == NULL || hints->none || type->ndim <= 0 || cc_tens_parameter(tensor)) return 0;
    const CcGuards *gs = &rec->trace->guards;
    const CcHint *hint = hints->at.n > 0 ? cc_hint_find(hints, cc_guard_path(gs, guard, rec->salt)) : NULL;
    const Marks m = marks_of(rec, guard, tensor);
    unsigned dims = hint != NULL ? hint->dims : 0;
    if (hints->all && in_argument(gs, guard)) dims = ~0u;
    dims = (dims | m.dynamic) & ~m.fixed & ((1u << type->ndim) - 1);
    for (int d = 0; d < type->ndim; d++)
        if (type->size[d] < m.min[d] || type->size[d] > m.max[d]) dims &= ~(1u << d);
    return dims;
}

void cc_sym_resized(CcRec *rec, int guard, PyObject *tensor) {
    const Marks m = marks_of(rec, guard, tensor);
    cc_vec_push(&rec->trace->resized, guard);
    for (int d = 0; d < CC_MAX_DIMS; d++)
        if (rec->trace->guards.g.at[guard].dynamic >> d & 1)
            cc_vec_push(&rec->trace->range, (CcSymRange){guard, d, m.min[d], m.max[d]});
}

/* ------------------------------------------------------------------ numbers from outside */

static const CcSymSource *number_of(const CcTrace *t, int guard) {
    for (int i = 0; i < t->number.n; i++)
        if (t->number.at[i].guard == guard) return &t->number.at[i];
    return NULL;
}

bool cc_sym_wanted(CcRec *rec, int guard, PyObject *number) {
    if (!is_number(number) || cc_sym_is(rec, number) || cc_same_nan(number)) return false; /* which NaN may matter */
    CcGuards *gs = &rec->trace->guards;
    const CcSymSource *known = number_of(rec->trace, guard);
    if (known != NULL && known->written) return false;
    if (known == NULL) {
        const CcHints *hints = rec->hints;
        const CcHint *hint = hints != NULL && !hints->none && hints->at.n > 0 && gs->g.at[guard].check == 0
                                 ? cc_hint_find(hints, cc_guard_path(gs, guard, rec->salt))
                                 : NULL;
        if (hint == NULL || !hint->number) return false;
        cc_guard_check(gs, guard, CC_CHK_TYPE, (PyObject *)Py_TYPE(number));
    }
    cc_vec_push(&rec->pending, (struct CcPending){guard, number});
    return true;
}

void cc_sym_written(CcRec *rec, int guard) {
    for (int i = 0; i < rec->trace->number.n; i++)
        if (rec->trace->number.at[i].guard == guard) rec->trace->number.at[i].written = true;
}

static PyObject *symbol_object(CcRec *rec, PyObject *value, int id) {
    PyObject *o;
    CC_SURE(o, cc_obj_number(value));
    cc_value_set(rec, o, CC_O_SYMBOL, id);
    return o;
}

static PyObject *new_symbol(CcRec *rec, PyObject *value, bool late) {
    cc_vec_push(&rec->trace->symbol, (struct CcSymbol){.value = Py_NewRef(value), .late = late});
    return symbol_object(rec, value, rec->trace->symbol.n - 1);
}

/* The symbol that stands for what guard gave. */
static PyObject *from_source(CcRec *rec, int guard, PyObject *value) {
    CcTrace *t = rec->trace;
    const CcSymSource *known = number_of(t, guard);
    if (known != NULL) return symbol_object(rec, value, known->symbol);
    t->guards.g.at[guard].used = true;
    cc_vec_push(&t->number, (CcSymSource){.guard = guard, .symbol = t->symbol.n});
    return new_symbol(rec, value, false);
}

/* Those that nobody took are constants. */
void cc_sym_drop_pending(CcRec *rec) {
    if (rec->pending.n == 0) return;
    for (int i = 0; rec->trace != NULL && i < rec->pending.n; i++) {
        const struct CcPending p = rec->pending.at[i];
        if (number_of(rec->trace, p.guard) == NULL) {
            cc_guard_check(&rec->trace->guards, p.guard, CC_CHK_VALUE, p.object);
            continue;
        }
        PyObject *o = from_source(rec, p.guard, p.object); /* a symbol, but C code has looked at it now */
        cc_sym_pin(rec, o);
        Py_DECREF(o);
    }
    rec->pending.n = 0;
}

static PyObject *take_pending(CcRec *rec, int i) {
    const struct CcPending p = rec->pending.at[i];
    rec->pending.at[i] = cc_vec_last(&rec->pending);
    rec->pending.n--;
    return from_source(rec, p.guard, p.object);
}

void cc_sym_slot(CcRec *rec, CcAct *act, int slot, int guard) {
    for (int i = 0; i < rec->pending.n; i++)
        if (rec->pending.at[i].guard == guard) {
            cc_act_put(act, slot, take_pending(rec, i));
            return;
        }
}

/* Items of a tuple (dims of a torch.Size) that were other numbers in an earlier call, a bit each. */
static unsigned items_that_differ(const CcRec *rec, int guard, PyObject *v) {
    const CcHints *hints = rec->hints;
    const CcGuards *gs = &rec->trace->guards;
    unsigned differ = 0;
    if (hints == NULL || hints->none || hints->at.n == 0) return 0;
    if (Py_TYPE(v) == cc_tens_size_type()) {
        const CcHint *hint = cc_hint_find(hints, cc_guard_path(gs, guard, rec->salt));
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); i++) /* torch.SymInt, of nested tensors: no Size can be made */
            if (!is_number(PyTuple_GET_ITEM(v, i))) return 0;
        return hint != NULL ? hint->dims : 0;
    }
    for (int i = 0; PyTuple_CheckExact(v) && i < PyTuple_GET_SIZE(v) && i < MAX_ITEMS; i++) {
        const CcHint *hint = cc_hint_find(hints, cc_guard_item_path(gs, guard, i, rec->salt));
        if (hint != NULL && hint->number && is_number(PyTuple_GET_ITEM(v, i))) differ |= 1u << i;
    }
    return differ;
}

void cc_sym_tuple(CcRec *rec, CcAct *act, int slot, int guard, PyObject *v) {
    CcGuards *gs = &rec->trace->guards;
    const unsigned differ = PyTuple_Check(v) ? items_that_differ(rec, guard, v) : 0;
    if (differ == 0) return;
    bool is_new;
    const Py_ssize_t n = PyTuple_GET_SIZE(v);
    PyObject *items;
    CC_SURE(items, PyTuple_New(n));
    cc_guard_check(gs, guard, CC_CHK_TYPE, (PyObject *)Py_TYPE(v));
    cc_guard_check(gs, cc_guard_source(gs, CC_SRC_SIZE, guard, NULL, 0, (int)n, &is_new), CC_CHK_SIZE, NULL);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(v, i);
        if (!(i < MAX_ITEMS && differ >> i & 1)) {
            cc_value_read(rec, CC_SRC_ITEM, guard, NULL, 0, (int)i, item);
            PyTuple_SET_ITEM(items, i, Py_NewRef(item));
            continue;
        }
        const int id = cc_guard_source(gs, CC_SRC_ITEM, guard, NULL, 0, (int)i, &is_new);
        cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)Py_TYPE(item));
        PyTuple_SET_ITEM(items, i, from_source(rec, id, item));
    }
    PyObject *given = items;
    if (!PyTuple_CheckExact(v)) { /* torch.Size */
        CC_SURE(given, PyObject_CallOneArg((PyObject *)Py_TYPE(v), items));
        Py_DECREF(items);
    }
    cc_value_set(rec, given, CC_O_FRESH, -1);
    cc_act_put(act, slot, given);
}

/* The local in which the call's argument arrives; -1: in none of its own. */
static int slot_of_argument(const CcRec *rec, int index) {
    const PyCodeObject *co = (PyCodeObject *)rec->root->func_code;
    const int n_pos = rec->n_args - (rec->kwnames != NULL ? (int)PyTuple_GET_SIZE(rec->kwnames) : 0);
    if (index < n_pos) return index < co->co_argcount ? index : -1;
    PyObject *name = PyTuple_GET_ITEM(rec->kwnames, index - n_pos);
    for (int slot = co->co_posonlyargcount; slot < co->co_argcount + co->co_kwonlyargcount; slot++)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(co->co_localsplusnames, slot), name) == 0) return slot;
    return -1;
}

void cc_sym_arguments(CcRec *rec, CcAct *act) {
    const CcGuards *gs = &rec->trace->guards;
    for (int i = 0; i < rec->pending.n;) {
        const struct CcPending p = rec->pending.at[i];
        const int slot = gs->g.at[p.guard].source == CC_SRC_ARG ? slot_of_argument(rec, gs->g.at[p.guard].index) : -1;
        if (slot >= 0 && cc_act_get(act, slot) == p.object) cc_act_put(act, slot, take_pending(rec, i));
        else i++;
    }
    cc_sym_drop_pending(rec);
    for (int id = 0, n = gs->g.n; id < n; id++) {
        const int slot = gs->g.at[id].source == CC_SRC_ARG ? slot_of_argument(rec, gs->g.at[id].index) : -1;
        PyObject *v = slot >= 0 ? cc_act_get(act, slot) : NULL;
        if (v != NULL) cc_sym_tuple(rec, act, slot, id, v);
    }
}

/* The targets get numbers of a tuple or list that is unpacked as it lies. */
static void take_items(CcRec *rec, const CcEvent *ev) {
    const int source = cc_value_source(rec, ev->in[0]);
    for (int i = 0; source >= 0 && i < rec->pending.n;) {
        const struct CcPending p = rec->pending.at[i];
        const CcGuard *g = &rec->trace->guards.g.at[p.guard];
        if (g->source == CC_SRC_ITEM && g->parent == source && g->index < ev->n_out && ev->out[g->index] == p.object)
            Py_SETREF(ev->out[g->index], take_pending(rec, i));
        else i++;
    }
}

/* first: numbers that were read since, the last one among them being what the event gave; those before it were content
 * that C code looked at. */
void cc_sym_after(CcRec *rec, CcEvent *ev, int first) {
    if (rec->trace == NULL) return;
    const int last = rec->pending.n - 1;
    if (last >= first && ev->result != NULL && rec->pending.at[last].object == ev->result)
        Py_SETREF(ev->result, take_pending(rec, last));
    if (ev->kind == CC_EV_UNPACK) take_items(rec, ev);
    cc_sym_drop_pending(rec);
    /* shape[1:], shape + (4,): a size is no constant when symbols are in it */
    if (ev->result != NULL && Py_TYPE(ev->result) == cc_tens_size_type() && cc_sym_within(rec, ev->result, 1) &&
        cc_value_find(rec, ev->result) == NULL)
        cc_value_set(rec, ev->result, CC_O_FRESH, -1);
}

/* ------------------------------------------------------------------ steps */

void cc_sym_visit_recipe(const CcTrace *t, int recipe, void (*visit)(void *ctx, const CcRecipe *r), void *ctx) {
    const CcRecipe *r = &t->recipes.r.at[recipe];
    visit(ctx, r);
    for (int i = 0; i < r->n; i++) cc_sym_visit_recipe(t, t->recipes.kid.at[r->kid0 + i], visit, ctx);
}

void cc_sym_visit(const CcTrace *t, const CcAction *a, void (*visit)(void *ctx, const CcRecipe *r), void *ctx) {
    for (int i = 0; i < a->n; i++) cc_sym_visit_recipe(t, t->args.at[a->args0 + i], visit, ctx);
}

typedef struct Seen {
    const CcTrace *t;
    bool late;
} Seen;

static void see(void *ctx, const CcRecipe *r) {
    Seen *seen = ctx;
    seen->late =
        seen->late || r->make == CC_MAKE_VALUE || (r->make == CC_MAKE_SYMBOL && seen->t->symbol.at[r->id].late);
}

static bool numbers_only(PyObject *o) {
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) > MAX_ITEMS) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (!is_number(PyTuple_GET_ITEM(o, i))) return false;
    return true;
}

static PyObject *symbols_of(CcRec *rec, PyObject *items, unsigned fixed, bool late) {
    PyObject *tuple, *given;
    CC_SURE(tuple, PyTuple_New(PyTuple_GET_SIZE(items)));
    given = tuple;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        PyObject *o = new_symbol(rec, PyTuple_GET_ITEM(items, i), late);
        if (fixed >> i & 1) Py_SETREF(o, Py_NewRef(PyTuple_GET_ITEM(items, i)));
        PyTuple_SET_ITEM(tuple, i, o);
    }
    if (!PyTuple_CheckExact(items)) { /* torch.Size */
        CC_SURE(given, PyObject_CallOneArg((PyObject *)Py_TYPE(items), tuple));
        Py_DECREF(tuple);
    }
    cc_value_set(rec, given, CC_O_FRESH, -1);
    return given;
}

/* Whether a step may give something else than a number of the recorded type. */
static bool may_fail(CcRec *rec, const CcCallSpec *spec, bool guard) {
    if (guard) return true;
    if (spec->form == CC_F_GETATTR || spec->form == CC_F_UNARY) return false;
    if (spec->form == CC_F_CALL) return spec->n == 0 || !cc_tens_any(spec->in[0]);
    if (spec->form != CC_F_BINOP) return true;
    if (spec->arg == CC_NB_ADD || spec->arg == CC_NB_SUBTRACT || spec->arg == CC_NB_MULTIPLY) return false;
    return spec->arg == CC_NB_POWER || cc_sym_is(rec, spec->in[1]); /* by zero */
}

/* Something was computed or read from symbols: a step. Takes the reference to result and gives what Python code is to
 * get in its place. fixed: items of the result that are no symbols (sizes that are guarded), a bit each. NULL: it can't
 * be written down, and the reference is dropped. */
static PyObject *record_step(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result, unsigned fixed) {
    CcTrace *t = rec->trace;
    const bool items = numbers_only(result);
    bool known = items || cc_value_const(result);
    /* a number that a break gave differs in each call: a step's guard on it, once failed, makes it a symbol */
    for (int i = 0; known && i < spec->n; i++) {
        known = cc_number_read(rec, spec->in[i], 3);
        if (!known) cc_number_ask(rec, spec->in[i]);
    }
    const int args0 = known ? cc_node_args(rec, spec) : -1;
    if (args0 < 0) {
        Py_DECREF(result);
        return NULL;
    }
    CcSymStep step = {.action = cc_node_action(spec, act, args0), .symbol0 = t->symbol.n};
    Seen seen = {.t = t};
    cc_sym_visit(t, &step.action, see, &seen);
    step.late = seen.late;
    step.action.after = t->graph->node.n;
    step.action.sequence = items;
    PyObject *given = result;
    if (items) given = symbols_of(rec, result, fixed, seen.late);
    else if (is_number(result)) given = new_symbol(rec, result, seen.late);
    else step.want = Py_NewRef(result);
    if (given != result) Py_DECREF(result);
    step.n = t->symbol.n - step.symbol0;
    if (step.late && t->impure && may_fail(rec, spec, step.want != NULL)) t->retry = true;
    cc_vec_push(&t->step, step);
    return given;
}

bool cc_sym_by_layout(const CcCallSpec *spec) {
    if (spec->name == NULL) return false;
    for (Py_ssize_t i = 0; spec->kwnames != NULL && i < PyTuple_GET_SIZE(spec->kwnames); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(spec->kwnames, i), "memory_format") == 0) return true;
    return strstr(spec->name, "contiguous") != NULL || strstr(spec->name, "sum_to_size") != NULL;
}

void cc_sym_same(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result) {
    CcTrace *t = rec->trace;
    bool sized = false;
    int same = 0;
    for (int i = 0; i < spec->n; i++) {
        sized = sized || cc_sym_sized(rec, spec->in[i]) || cc_sym_within(rec, spec->in[i], 4);
        if (spec->in[i] == result) same = i + 1;
    }
    for (int i = 0; i < spec->n; i++) /* a probability, which is checked */
        if (PyFloat_CheckExact(spec->in[i])) (void)cc_number_settle(rec, spec->in[i], 0);
    if (!sized || !cc_sym_by_layout(spec)) return;
    const int args0 = same > 0 ? cc_node_args(rec, spec) : -1;
    if (args0 < 0) {
        rec->rigid = "an op gave back an operand that can't be written down";
        return;
    }
    CcSymStep step = {.action = cc_node_action(spec, act, args0), .symbol0 = t->symbol.n, .same = (int16_t)same};
    Seen seen = {.t = t};
    cc_sym_visit(t, &step.action, see, &seen);
    step.late = seen.late;
    step.action.after = t->graph->node.n;
    if (step.late && t->impure) t->retry = true;
    cc_vec_push(&t->step, step);
}

void cc_sym_pin(CcRec *rec, PyObject *o) {
    CcProv *p = cc_sym_is(rec, o) ? cc_value_find(rec, o) : NULL;
    if (p == NULL || p->dirty) return;
    p->dirty = CC_DIRTY_ALL; /* pinned already */
    const CcCallSpec spec = {.form = CC_F_UNARY, .arg = '+', .in = &o, .n = 1, .name = "value"};
    CcTrace *t = rec->trace;
    const int args0 = cc_node_args(rec, &spec);
    CcSymStep step = {.action = cc_node_action(&spec, NULL, args0),
                      .late = t->symbol.at[p->id].late,
                      .symbol0 = t->symbol.n,
                      .want = Py_NewRef(t->symbol.at[p->id].value)};
    step.action.after = t->graph->node.n;
    if (step.late && t->impure) t->retry = true;
    cc_vec_push(&t->step, step);
}

void cc_sym_settle(CcRec *rec, PyObject *o, int depth) {
    cc_number_which(rec, o, depth);
    if (cc_sym_within(rec, o, depth)) (void)cc_number_settle(rec, o, depth);
}

static bool sized_within(CcRec *rec, PyObject *o, int depth);

static bool sized_visit(void *ctx, PyObject *o, int depth) { return sized_within(ctx, o, depth); }

static bool sized_within(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL || rec->trace == NULL || !cc_trace_symbolic(rec->trace)) return false;
    return cc_sym_sized(rec, o) || (depth > 0 && cc_number_any(o, sized_visit, rec, depth - 1));
}

static void settle_all(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 0; i < n; i++) {
        cc_sym_settle(rec, in[i], 4);
        if (sized_within(rec, in[i], 4)) rec->rigid = "C code looks at a tensor with symbolic sizes";
    }
}

void cc_sym_unseen(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 0; i < n; i++)
        if (in[i] == Py_None || (PyCallable_Check(in[i]) && cc_call_function(in[i]) == NULL)) {
            settle_all(rec, in, n);
            return;
        }
}

/* Performs it and writes it down; CC_OK: that was not possible, and its symbols are constants now. */
static CcGo record(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec, PyObject *result, unsigned fixed) {
    PyErr_Clear(); /* an exception: it is raised when it is performed again */
    ev->result = result != NULL ? record_step(rec, act, spec, result, fixed) : NULL;
    if (ev->result != NULL) return CC_DONE;
    settle_all(rec, spec->in, spec->n);
    return CC_OK;
}

/* ------------------------------------------------------------------ events */

/* The guard that gave this symbol, or this float behind a break, and what it gave; -1: a step did, or it is none. */
static int given_by(CcRec *rec, PyObject *o, PyObject **given) {
    const int symbol = cc_sym_of(rec, o);
    *given = o;
    for (int i = 0; symbol >= 0 && i < rec->trace->number.n; i++)
        if (rec->trace->number.at[i].symbol == symbol) {
            *given = rec->trace->symbol.at[symbol].value;
            return rec->trace->number.at[i].guard;
        }
    const CcProv *p = rec->floats.n > 0 && PyFloat_CheckExact(o) ? cc_value_find(rec, o) : NULL;
    for (int i = 0; p != NULL && p->origin == CC_O_SOURCE && i < rec->floats.n; i++)
        if (rec->floats.at[i].guard == p->id) {
            *given = rec->floats.at[i].object;
            return p->id;
        }
    return -1;
}

/* Numbers that CPython has no single object for: which ones are given counts. */
static bool identical_numbers(CcRec *rec, PyObject *const *in) {
    PyObject *given[2];
    const int guard[] = {given_by(rec, in[0], &given[0]), given_by(rec, in[1], &given[1])};
    const bool same = given[0] == given[1];
    CcGuards *gs = &rec->trace->guards;
    if (guard[0] >= 0 && guard[1] >= 0 && guard[0] != guard[1])
        cc_guard_also(gs, CC_MAX(guard[0], guard[1]), same ? CC_CHK_ALIAS : CC_CHK_DISTINCT, NULL,
                      CC_MIN(guard[0], guard[1]));
    for (int i = 0; i < 2; i++)
        if (guard[i] >= 0 && guard[1 - i] < 0)
            cc_guard_also(gs, guard[i], same ? CC_CHK_IDENT : CC_CHK_OTHER, given[1 - i], -1);
    return same;
}

bool cc_sym_identical(CcRec *rec, CcAct *act, PyObject *const *in) {
    const bool symbols[] = {cc_sym_is(rec, in[0]), cc_sym_is(rec, in[1])};
    if (in[0] == in[1] || Py_TYPE(in[0]) != Py_TYPE(in[1])) return in[0] == in[1];
    if (PyFloat_CheckExact(in[0])) return identical_numbers(rec, in);
    if (!symbols[0] && !symbols[1]) return false;
    if (symbols[0] && symbols[1]) settle_all(rec, in, 2); /* whether they are small counts as well */
    for (int i = 0; i < 2; i++)
        if ((!symbols[i] || symbols[1 - i]) && !cc_sym_small(in[i])) return identical_numbers(rec, in);
    const CcCallSpec spec = {.form = CC_F_COMPARE, .arg = Py_EQ, .in = in, .n = 2, .name = "comparison"};
    PyObject *equal;
    CC_SURE(equal, PyObject_RichCompare(in[0], in[1], Py_EQ));
    const bool same = equal == Py_True && cc_sym_small(in[0]);
    PyObject *given = record_step(rec, act, &spec, equal, 0);
    if (given == NULL) settle_all(rec, in, 2);
    Py_XDECREF(given);
    return same;
}

bool cc_sym_probability(CcRec *rec, CcAct *act, PyObject *o) {
    if (!is_number(o) || !(cc_sym_is(rec, o) || cc_value_symbolic(rec, o))) return true;
    for (int edge = 0; edge < 2; edge++) {
        PyObject *const in[] = {o, PyFloat_FromDouble(edge)};
        cc_vec_push(&rec->keep, in[1]);
        const CcCallSpec spec = {.form = CC_F_COMPARE, .arg = Py_EQ, .in = in, .n = 2, .name = "comparison"};
        PyObject *equal;
        CC_SURE(equal, PyObject_RichCompare(o, in[1], Py_EQ));
        if (!cc_sym_is(rec, o)) {
            Py_DECREF(equal);
            if (!cc_value_compare(rec, Py_EQ, o, in[1], equal == Py_True)) return false;
            continue;
        }
        cc_value_const_source(rec, in[1]);
        PyObject *given = record_step(rec, act, &spec, equal, 0);
        if (given == NULL && !cc_number_settle(rec, o, 0)) return false;
        Py_XDECREF(given);
    }
    return true;
}

static bool plain_operand(PyObject *o, int depth) {
    if (PyTuple_Check(o) || PyList_CheckExact(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (depth == 0 || !plain_operand(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
        return true;
    }
    return is_number(o) || PyBool_Check(o) || o == Py_None || PyUnicode_CheckExact(o);
}

/* Operands that are no symbols: numbers, texts, and containers of them whose content is guarded. */
static bool plain_operands(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 0; i < n; i++) {
        if (!plain_operand(in[i], 3)) return false;
        if (PyTuple_Check(in[i]) || PyList_Check(in[i]))
            if (cc_value_dirty(rec, in[i]) != CC_DIRTY_NO || !cc_inside_guard(rec, in[i], 4)) return false;
    }
    return true;
}

/* shape + (4,), [n] * 2, {**sizes} | other: what containers hold is in another one as it is. */
static bool only_moved(const CcEvent *ev) {
    if (ev->arg == CC_NB_ADD) return !PyUnicode_Check(ev->in[0]);
    if (ev->arg == CC_NB_OR) return PyDict_Check(ev->in[0]) && PyDict_Check(ev->in[1]);
    if (ev->arg != CC_NB_MULTIPLY) return false;
    return PyList_Check(ev->in[0]) || PyTuple_Check(ev->in[0]) || PyList_Check(ev->in[1]) || PyTuple_Check(ev->in[1]);
}

CcGo cc_sym_operator(CcRec *rec, CcAct *act, CcEvent *ev) {
    bool within = false, numbers = true;
    for (int i = 0; i < ev->n; i++) {
        if (cc_tens_any(ev->in[i])) return CC_OK;
        within = within || cc_sym_within(rec, ev->in[i], 3);
        numbers = numbers && (is_number(ev->in[i]) || PyBool_Check(ev->in[i]));
    }
    if (!within) return CC_OK;
    CcCallSpec spec = {.arg = ev->arg, .in = ev->in, .n = ev->n};
    PyObject *const *in = ev->in;
    if (ev->kind == CC_EV_BINOP && numbers) {
        spec.form = CC_F_BINOP;
        spec.name = "operator";
        return record(rec, act, ev, &spec, cc_ex_binop((CcBinop)ev->arg, false, in[0], in[1]), 0);
    }
    if (ev->kind == CC_EV_COMPARE && plain_operands(rec, in, ev->n)) {
        spec.form = CC_F_COMPARE;
        spec.name = "comparison";
        return record(rec, act, ev, &spec, PyObject_RichCompare(in[0], in[1], ev->arg), 0);
    }
    if (ev->kind == CC_EV_UNARY && numbers) {
        spec.form = CC_F_UNARY;
        spec.name = "operator";
        return record(rec, act, ev, &spec,
                      ev->arg == '-'   ? PyNumber_Negative(in[0])
                      : ev->arg == '~' ? PyNumber_Invert(in[0])
                                       : PyNumber_Positive(in[0]),
                      0);
    }
    if (ev->kind == CC_EV_TRUTH && numbers) {
        spec.form = CC_F_CALL;
        spec.name = "bool";
        spec.target = (PyObject *)&PyBool_Type;
        return record(rec, act, ev, &spec, PyObject_CallOneArg(spec.target, in[0]), 0);
    }
    const bool inside = ev->n == 2 && !cc_sym_is(rec, in[0]) && !cc_sym_is(rec, in[1]);
    if (ev->kind == CC_EV_BINOP && inside && only_moved(ev)) return CC_OK;
    settle_all(rec, ev->in, ev->n);
    return CC_OK;
}

CcGo cc_sym_attr(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *tensor, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    PyObject *d = cc_sym_sized(rec, tensor) ? cc_type_lookup(Py_TYPE(tensor), name) : NULL;
    if (d == NULL || !Py_IS_TYPE(d, &PyGetSetDescr_Type) || cc_torch_attr(tensor, name).cls != CC_T_META ||
        !cc_node_tells_size(text))
        return CC_OK;
    const CcProv *p = cc_value_find(rec, tensor);
    const unsigned fixed =
        p->origin == CC_O_SOURCE && strcmp(text, "shape") == 0 ? ~(unsigned)rec->trace->guards.g.at[p->id].dynamic : 0;
    PyObject *v = PyObject_GetAttr(tensor, name);
    if (v != NULL) (void)cc_attr_after(rec, act, tensor, name, v); /* that torch.Tensor was not patched */
    const CcCallSpec spec = {.form = CC_F_GETATTR, .target = name, .in = &tensor, .n = 1, .name = text};
    return record(rec, act, ev, &spec, v, fixed);
}

CcGo cc_sym_call(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec) {
    bool touches = false;
    for (int i = 0; i < spec->n; i++)
        touches = touches || cc_sym_sized(rec, spec->in[i]) || cc_sym_within(rec, spec->in[i], 4);
    if (!touches) return CC_OK;
    const size_t n_kw = spec->kwnames != NULL ? (size_t)PyTuple_GET_SIZE(spec->kwnames) : 0;
    unsigned fixed = 0;
    const CcProv *p = spec->n == 1 && strcmp(spec->name, "Tensor.size") == 0 ? cc_value_find(rec, spec->in[0]) : NULL;
    if (p != NULL && p->origin == CC_O_SOURCE) fixed = ~(unsigned)rec->trace->guards.g.at[p->id].dynamic;
    const bool paused = cc_hook_pause(act->obs, true); /* Tensor.__len__ is Python code */
    PyObject *v = PyObject_Vectorcall(spec->target, spec->in, (size_t)spec->n - n_kw, spec->kwnames);
    cc_hook_pause(act->obs, paused);
    return record(rec, act, ev, spec, v, fixed);
}

CcGo cc_sym_pure(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec) {
    bool within = false;
    for (int i = 0; i < spec->n; i++) within = within || cc_sym_within(rec, spec->in[i], 4);
    return within && spec->kwnames == NULL && plain_operands(rec, spec->in, spec->n) ? cc_sym_call(rec, act, ev, spec)
                                                                                     : CC_OK;
}

void cc_sym_free(CcTrace *t) {
    for (int i = 0; i < t->step.n; i++) {
        cc_action_free(&t->step.at[i].action);
        Py_CLEAR(t->step.at[i].want);
    }
    for (int i = 0; i < t->symbol.n; i++) Py_CLEAR(t->symbol.at[i].value);
    cc_vec_free(&t->step);
    cc_vec_free(&t->symbol);
    cc_vec_free(&t->resized);
    cc_vec_free(&t->range);
    cc_vec_free(&t->number);
}

/* ------------------------------------------------------------------ late reads */

typedef struct Teller {
    void (*tell)(void *ctx, int value, int node);
    void *ctx;
    int node;
} Teller;

static void tell_value(void *ctx, const CcRecipe *r) {
    const Teller *teller = ctx;
    if (r->make == CC_MAKE_VALUE) teller->tell(teller->ctx, r->id, teller->node);
}

void cc_trace_late_reads(const CcTrace *t, void (*tell)(void *ctx, int value, int node), void *ctx) {
    for (int i = 0; i < t->step.n; i++) {
        Teller teller = {tell, ctx, t->step.at[i].action.after};
        cc_sym_visit(t, &t->step.at[i].action, tell_value, &teller);
    }
}
