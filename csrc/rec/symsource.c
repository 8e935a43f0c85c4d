/* Sources of symbols: tensors whose sizes vary between calls, according to hints or the user's marks, and numbers from
 * outside: an argument, a slot, an item of a tuple, the result of a read. */
#include "rec_int.h"

/* ------------------------------------------------------------------ tensors with symbolic sizes */

static const void *key_of(int value) { return (const void *)(intptr_t)(value + 1); }

bool cc_sym_value(CcRec *rec, int value) { return rec->sized.n > 0 && cc_map_find(&rec->sized, key_of(value)) != NULL; }
void cc_sym_mark(CcRec *rec, int value) { cc_map_put(&rec->sized, key_of(value), 1); }

bool cc_sym_sized(CcRec *rec, PyObject *tensor) {
    if (rec->trace == NULL || tensor == NULL || !cc_tens_is(tensor)) return false;
    const CcProv *p = cc_value_find(rec, tensor);
    if (p == NULL) return false;
    if (p->origin == CC_O_SOURCE) return rec->trace->guards.g.at[p->id].dynamic != 0;
    return p->origin == CC_O_VALUE && cc_sym_value(rec, p->id);
}

/* The user's marks on a tensor's sizes. Marks are a tuple (mask of dynamic dims, mask of static ones, ((dim, min, max),
 * ...)), made by python/ccompile/dims.py. */
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
    cc_raised_clear();
}

/* torch._dynamo.mark_dynamic and mark_static store sets of dims. */
static unsigned dims_of_set(PyObject *dict, const char *name) {
    PyObject *set = cc_obj_item(dict, name);
    unsigned dims = 0;
    for (int d = 0; set != NULL && PyAnySet_Check(set) && d < CC_MAX_DIMS; d++) {
        PyObject *o = PyLong_FromLong(d);
        if (o != NULL && PySet_Contains(set, o) == 1) dims |= 1u << d;
        Py_XDECREF(o);
    }
    cc_raised_clear();
    return dims;
}

/* The argument's name, or its index if the function has *args (a module's __call__). */
static PyObject *argument_name(const CcRec *rec, int index) {
    const int n_kw = cc_obj_count(rec->kwnames), n_pos = rec->n_args - n_kw;
    if (index >= n_pos) return Py_NewRef(PyTuple_GET_ITEM(rec->kwnames, index - n_pos));
    const PyCodeObject *co = (PyCodeObject *)rec->root->func_code;
    return index < co->co_argcount ? Py_NewRef(PyTuple_GET_ITEM(co->co_localsplusnames, index))
                                   : PyLong_FromLong(index);
}

static Marks marks_of(CcRec *rec, int guard, PyObject *tensor) {
    Marks m = {0};
    for (int d = 0; d < CC_MAX_DIMS; d++) {
        m.min[d] = 2; /* 0 and 1 are special: they broadcast */
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
    add_marks(&m, cc_obj_item(dict, "_ccompile_dims"));
    m.dynamic |= dims_of_set(dict, "_dynamo_dynamic_indices") | dims_of_set(dict, "_dynamo_weak_dynamic_indices");
    m.fixed |= dims_of_set(dict, "_dynamo_static_indices");
    return m;
}

/* Is this source reached through an argument, but not through a module's parameters and buffers? */
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

bool cc_sym_often_pinned(CcRec *rec, PyObject *o) {
    const CcTrace *t = rec->trace;
    const int symbol = rec->judged && rec->hints != NULL ? cc_sym_of(rec, o) : -1;
    for (int i = 0; symbol >= 0 && i < t->number.n; i++)
        if (t->number.at[i].symbol == symbol && !t->number.at[i].written)
            return cc_hint_taken(rec->hints, &t->guards, t->number.at[i].guard, rec->salt);
    return false;
}

bool cc_sym_wanted(CcRec *rec, int guard, PyObject *number) {
    if (!cc_sym_varies(number) || cc_sym_is(rec, number) || cc_same_nan(number))
        return false; /* a NaN's identity may matter */
    CcGuards *gs = &rec->trace->guards;
    const CcSymSource *known = number_of(rec->trace, guard);
    if (known != NULL && known->written) return false;
    if (known == NULL) {
        const CcHints *hints = rec->hints;
        if (hints == NULL || hints->none || gs->g.at[guard].check != 0 || !cc_hint_differs(hints, gs, guard, rec->salt))
            return false;
        cc_guard_check(gs, guard, CC_CHK_TYPE, (PyObject *)Py_TYPE(number));
    }
    cc_vec_push(&rec->pending, (struct CcPending){guard, Py_NewRef(number)});
    return true;
}

void cc_sym_written(CcRec *rec, int guard) {
    for (int i = 0; i < rec->trace->number.n; i++)
        if (rec->trace->number.at[i].guard == guard) rec->trace->number.at[i].written = true;
}

PyObject *cc_sym_copy(PyObject *o) {
    if (cc_sym_number(o)) return cc_obj_copy_number(o);
    return PyUnicode_CheckExact(o) ? cc_obj_copy_text(o) : PyObject_CallOneArg((PyObject *)Py_TYPE(o), o);
}

static PyObject *symbol_object(CcRec *rec, PyObject *value, int id) {
    PyObject *o;
    CC_RETRY_ALLOC(o, cc_sym_copy(value));
    rec->lazy = rec->lazy || PyUnicode_CheckExact(value);
    cc_value_set(rec, o, CC_O_SYMBOL, id);
    return o;
}

PyObject *cc_sym_new(CcRec *rec, PyObject *value, bool late) {
    cc_vec_push(&rec->trace->symbol, (struct CcSymbol){.value = Py_NewRef(value), .late = late});
    return symbol_object(rec, value, rec->trace->symbol.n - 1);
}

/* The symbol for a number that a guard reads. */
static PyObject *from_source(CcRec *rec, int guard, PyObject *value) {
    CcTrace *t = rec->trace;
    const CcSymSource *known = number_of(t, guard);
    if (known != NULL) return symbol_object(rec, value, known->symbol);
    t->guards.g.at[guard].used = true;
    cc_vec_push(&t->number, (CcSymSource){.guard = guard, .symbol = t->symbol.n});
    return cc_sym_new(rec, value, false);
}

PyObject *cc_sym_drawn(CcRec *rec, int guard, PyObject *value) { return from_source(rec, guard, value); }

/* Does the kernel of the bound op read this operand as a number, in each call? */
static bool reads_number(const CcBound *bound, PyObject *result, int operand) {
    CcOperand in[CC_BOUND_MAX];
    CcTensor t;
    CcGraph *g = cc_graph_new();
    for (int i = 0; i < bound->n; i++) {
        in[i] = bound->in[i].constant;
        if (bound->in[i].tensor == NULL) continue;
        cc_tens_read(bound->in[i].tensor, false, &t);
        in[i] = (CcOperand){.kind = CC_IN_VALUE, .value = cc_graph_input(g, &t.type)};
    }
    cc_tens_read(result, false, &t);
    const int node = cc_graph_node(g, bound->op, 0, -1, in, bound->n, &t.type, 1);
    const bool reads = cc_op_number(g, &g->node.at[node], operand);
    cc_graph_free(g);
    return reads;
}

/* The guard that reads a float which a break gave, and of which only the type is guarded; -1: o is none. */
static int source_of_varying(CcRec *rec, PyObject *o) {
    const CcProv *p = PyFloat_CheckExact(o) && cc_value_symbolic(rec, o) ? cc_value_find(rec, o) : NULL;
    return p != NULL && p->origin == CC_O_SOURCE ? p->id : -1;
}

/* The operand that is this object; -1: none is. */
static int operand_of(const CcBound *bound, PyObject *o) {
    for (int i = 0; i < bound->n; i++)
        if (bound->in[i].tensor == o || bound->in[i].number == o) return i;
    return -1;
}

/* Whether kernels can read all floats of the call that vary. A call with tensors that are not operands is torch's, whose
 * numbers select a shape. */
static bool gives_numbers(CcRec *rec, const CcCallSpec *spec, PyObject *result) {
    bool any = false;
    for (int i = 0; i < spec->n; i++) any = any || source_of_varying(rec, spec->in[i]) >= 0;
    if (!any || spec->bound == NULL || spec->flags != 0 || result == NULL || !cc_tens_plain(result)) return false;
    for (int i = 0; i < spec->n; i++) {
        PyObject *o = spec->in[i];
        const int operand = operand_of(spec->bound, o);
        const bool may_hide = cc_tens_is(o) || PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o);
        if (operand < 0 && may_hide) return false;
        if (source_of_varying(rec, o) >= 0 && (operand < 0 || !reads_number(spec->bound, result, operand)))
            return false;
    }
    return true;
}

bool cc_sym_numbers(CcRec *rec, const CcCallSpec *spec, PyObject *result, CcWithNumbers *out) {
    if (spec->n > CC_COUNT(out->in) || !gives_numbers(rec, spec, result)) return false;
    out->spec = *spec;
    out->bound = *spec->bound;
    out->spec.in = out->in;
    out->spec.bound = &out->bound;
    for (int i = 0; i < spec->n; i++) {
        out->in[i] = spec->in[i];
        const int guard = source_of_varying(rec, spec->in[i]);
        if (guard < 0) continue;
        const int operand = operand_of(&out->bound, spec->in[i]);
        out->in[i] = out->bound.in[operand].number = from_source(rec, guard, spec->in[i]);
        cc_vec_push(&rec->keep, out->in[i]);
    }
    return true;
}

static void make_constant(CcRec *rec, struct CcPending p) {
    CcGuards *gs = &rec->trace->guards;
    if (number_of(rec->trace, p.guard) == NULL) {
        const bool often = cc_hint_taken(rec->hints, gs, p.guard, rec->salt);
        if (often && rec->judged) rec->differs = true; /* the event becomes a break */
        else cc_guard_check(gs, p.guard, CC_CHK_VALUE, p.object);
        return;
    }
    PyObject *o = from_source(rec, p.guard, p.object); /* a symbol, but C code has just read it */
    cc_sym_pin(rec, o);
    Py_DECREF(o);
}

/* Pending numbers that no event delivered become constants, since C code has read them. */
void cc_sym_drop_pending(CcRec *rec) {
    for (int i = 0; rec->trace != NULL && i < rec->pending.n; i++) make_constant(rec, rec->pending.at[i]);
    while (rec->pending.n > 0) Py_DECREF(rec->pending.at[--rec->pending.n].object);
}

static PyObject *take_pending(CcRec *rec, int i) {
    const struct CcPending p = rec->pending.at[i];
    rec->pending.at[i] = cc_vec_last(&rec->pending);
    rec->pending.n--;
    PyObject *o = from_source(rec, p.guard, p.object);
    Py_DECREF(p.object);
    return o;
}

/* The pending number that the guard reads, as a symbol; NULL: it reads none. */
static PyObject *take_guarded(CcRec *rec, int guard) {
    for (int i = 0; i < rec->pending.n; i++)
        if (rec->pending.at[i].guard == guard) return take_pending(rec, i);
    return NULL;
}

void cc_sym_slot(CcRec *rec, CcAct *act, int slot, int guard) {
    PyObject *symbol = take_guarded(rec, guard);
    if (symbol != NULL) cc_act_put(act, slot, symbol);
}

void cc_sym_unread(CcRec *rec, int guard) { Py_XDECREF(take_guarded(rec, guard)); }

static bool is_size(PyObject *o) {
    int overflow = 0;
    if (PyLong_CheckExact(o)) (void)PyLong_AsLongLongAndOverflow(o, &overflow);
    return PyLong_CheckExact(o) && overflow == 0;
}

/* Bit set of a tuple's items (or dims of a torch.Size) that were other numbers in an earlier call. */
static unsigned items_that_differ(const CcRec *rec, int guard, PyObject *v) {
    const CcHints *hints = rec->hints;
    const CcGuards *gs = &rec->trace->guards;
    unsigned differ = 0;
    if (hints == NULL || hints->none || hints->at.n == 0) return 0;
    if (Py_TYPE(v) == cc_tens_size_type()) {
        const CcHint *hint = cc_hint_find(hints, cc_guard_path(gs, guard, rec->salt));
        /* torch.Size can't be made of torch.SymInt (of nested tensors) and of larger numbers */
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); i++)
            if (!is_size(PyTuple_GET_ITEM(v, i))) return 0;
        return hint != NULL ? hint->dims : 0;
    }
    for (int i = 0; PyTuple_CheckExact(v) && i < PyTuple_GET_SIZE(v) && i < CC_SYM_ITEMS; i++) {
        const CcHint *hint = cc_hint_find(hints, cc_guard_part_path(gs, guard, CC_SRC_ITEM, i, rec->salt));
        if (hint != NULL && hint->number && cc_sym_varies(PyTuple_GET_ITEM(v, i))) differ |= 1u << i;
    }
    return differ;
}

PyObject *cc_sym_items(CcRec *rec, PyObject *like, PyObject *items) {
    PyObject *given = items;
    if (!PyTuple_CheckExact(like)) { /* torch.Size */
        CC_RETRY_ALLOC(given, PyObject_CallOneArg((PyObject *)Py_TYPE(like), items));
        Py_DECREF(items);
    }
    cc_value_set(rec, given, CC_O_FRESH, -1);
    return given;
}

PyObject *cc_sym_items_of(CcRec *rec, int guard, PyObject *read, PyObject *items) {
    PyObject *given = cc_sym_items(rec, read, items);
    cc_vec_push(&rec->keep, Py_NewRef(read));
    cc_vec_push(&rec->keep, Py_NewRef(given)); /* its address is not reused */
    cc_vec_push(&rec->tuples, (struct CcStandIn){.of = {guard, read}, .given = given});
    return given;
}

/* The tuple or torch.Size that this guard reads, with symbols for items that differ; NULL: none does. Its items are
 * guarded one by one from now on. New reference. */
static PyObject *with_symbols(CcRec *rec, int guard, PyObject *v) {
    CcGuards *gs = &rec->trace->guards;
    const unsigned differ = PyTuple_Check(v) ? items_that_differ(rec, guard, v) : 0;
    if (differ == 0) return NULL;
    const Py_ssize_t n = PyTuple_GET_SIZE(v);
    PyObject *items;
    CC_RETRY_ALLOC(items, PyTuple_New(n));
    cc_guard_check(gs, guard, CC_CHK_TYPE, (PyObject *)Py_TYPE(v));
    cc_guard_check(gs, cc_guard_source(gs, CC_SRC_SIZE, guard, NULL, 0, (int)n, NULL), CC_CHK_SIZE, NULL);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(v, i);
        if (!(i < CC_SYM_ITEMS && differ >> i & 1)) {
            cc_value_read(rec, CC_SRC_ITEM, guard, NULL, 0, (int)i, item);
            PyTuple_SET_ITEM(items, i, Py_NewRef(item));
            continue;
        }
        const int id = cc_guard_source(gs, CC_SRC_ITEM, guard, NULL, 0, (int)i, NULL);
        cc_guard_check(gs, id, CC_CHK_TYPE, (PyObject *)Py_TYPE(item));
        PyTuple_SET_ITEM(items, i, from_source(rec, id, item));
    }
    return cc_sym_items_of(rec, guard, v, items);
}

void cc_sym_tuple(CcRec *rec, CcAct *act, int slot, int guard, PyObject *v) {
    PyObject *own = with_symbols(rec, guard, v);
    if (own != NULL) cc_act_put(act, slot, own);
}

void cc_sym_after_size(CcRec *rec, CcEvent *ev, int guard, bool is_new) {
    const CcGuards *gs = &rec->trace->guards;
    if (ev->result == NULL || Py_TYPE(ev->result) != cc_tens_size_type()) return;
    if (cc_finalizers_overwritten(rec, guard)) return;
    if (!is_new && gs->g.at[guard].check != CC_CHK_TYPE) return; /* something depends on all of its items */
    PyObject *own = with_symbols(rec, guard, ev->result);
    if (own != NULL) Py_SETREF(ev->result, own);
}

static void filled(CcRec *rec, PyObject *container) {
    if (rec->filled.n > 0 && cc_vec_last(&rec->filled) == container) return;
    cc_vec_push(&rec->keep, Py_NewRef(container));
    cc_vec_push(&rec->filled, container);
}

bool cc_sym_filled(const CcRec *rec, const PyObject *container) {
    for (int i = 0; i < rec->filled.n; i++)
        if (rec->filled.at[i] == container) return true;
    return false;
}

PyObject *cc_sym_read_item(CcRec *rec, PyObject *item, int guard, Py_ssize_t i) {
    const int pending = rec->pending.n;
    cc_value_read(rec, CC_SRC_ITEM, guard, NULL, 0, (int)i, item);
    return rec->pending.n > pending ? take_pending(rec, pending) : Py_NewRef(item);
}

bool cc_sym_fill_item(CcRec *rec, PyObject *sequence, int guard, Py_ssize_t i) {
    PyObject **item = &PySequence_Fast_ITEMS(sequence)[i];
    if (cc_sym_is(rec, *item)) return true;
    PyObject *own = cc_sym_read_item(rec, *item, guard, i);
    const bool is_symbol = own != *item;
    Py_SETREF(*item, own);
    if (is_symbol) filled(rec, sequence);
    return is_symbol;
}

static bool part_differs(const CcRec *rec, PyObject *v, int source, PyObject *key, Py_ssize_t i) {
    return cc_sym_varies(v) && cc_hint_part_differs(rec->hints, &rec->trace->guards, source, key, (int)i, rec->salt);
}

static void fill_dict(CcRec *rec, PyObject *dict, int source) {
    Py_ssize_t pos = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &pos, &key, &value)) {
        if (!cc_value_consts(key) || cc_sym_is(rec, value) || !part_differs(rec, value, source, key, 0)) continue;
        const int pending = rec->pending.n;
        cc_value_read(rec, CC_SRC_KEY, source, key, 0, 0, value);
        if (rec->pending.n == pending) continue;
        PyObject *symbol = take_pending(rec, pending);
        cc_obj_dict_set(dict, key, symbol); /* an existing key, so iteration may continue */
        Py_DECREF(symbol);
        filled(rec, dict);
    }
}

void cc_sym_fill(CcRec *rec, PyObject *o) {
    const CcHints *hints = rec->hints;
    const bool sequence = PyList_CheckExact(o) || PyTuple_CheckExact(o);
    if (hints == NULL || hints->none || hints->at.n == 0 || !(sequence || PyDict_CheckExact(o))) return;
    const int source = cc_value_source(rec, o);
    /* what was written to may hold its items in other places */
    if (source < 0 || cc_value_find(rec, o)->dirty != CC_DIRTY_NO) return;
    if (!sequence) fill_dict(rec, o, source);
    for (Py_ssize_t i = 0; sequence && i < PySequence_Fast_GET_SIZE(o); i++)
        if (part_differs(rec, PySequence_Fast_GET_ITEM(o, i), source, NULL, i))
            (void)cc_sym_fill_item(rec, o, source, i);
}

/* Where an argument of the call is: in a local, or in the tuple or dict that the local for *args or **kwargs holds. */
typedef struct Place {
    int slot;
    Py_ssize_t at;  /* in *args; -1: not there */
    PyObject *name; /* in **kwargs; NULL: not there */
} Place;

static Place place_of_argument(const CcRec *rec, int index) {
    const PyCodeObject *co = (PyCodeObject *)rec->root->func_code;
    const int n_pos = rec->n_args - cc_obj_count(rec->kwnames), rest = co->co_argcount + co->co_kwonlyargcount;
    if (index < co->co_argcount && index < n_pos) return (Place){.slot = index, .at = -1};
    if (index < n_pos) return (Place){.slot = rest, .at = index - co->co_argcount};
    PyObject *name = PyTuple_GET_ITEM(rec->kwnames, index - n_pos);
    for (int slot = co->co_posonlyargcount; slot < rest; slot++)
        if (PyUnicode_Compare(PyTuple_GET_ITEM(co->co_localsplusnames, slot), name) == 0)
            return (Place){.slot = slot, .at = -1};
    return (Place){.slot = rest + !!(co->co_flags & CO_VARARGS), .at = -1, .name = name};
}

static PyObject *argument_at(const CcAct *act, Place p) {
    PyObject *o = cc_act_get(act, p.slot);
    return p.at >= 0 ? PyTuple_GET_ITEM(o, p.at) : p.name != NULL ? PyDict_GetItemWithError(o, p.name) : o;
}

/* CPython has made the tuple or dict for this frame. */
static void put_argument(CcRec *rec, CcAct *act, Place p, CC_STEAL(4) PyObject *own) {
    PyObject *rest = cc_act_get(act, p.slot);
    if (p.name != NULL) {
        cc_obj_dict_set(rest, p.name, own);
        Py_DECREF(own);
    } else if (p.at >= 0) {
        Py_DECREF(PyTuple_GET_ITEM(rest, p.at));
        PyTuple_SET_ITEM(rest, p.at, own);
        cc_value_set(rec, rest, CC_O_FRESH, -1); /* it is no constant any more */
    } else {
        cc_act_put(act, p.slot, own);
    }
}

void cc_sym_arguments(CcRec *rec, CcAct *act) {
    const CcGuards *gs = &rec->trace->guards;
    for (int i = 0; i < rec->pending.n;) {
        const struct CcPending p = rec->pending.at[i];
        const bool argument = gs->g.at[p.guard].source == CC_SRC_ARG;
        const Place at = argument ? place_of_argument(rec, gs->g.at[p.guard].index) : (Place){.slot = -1};
        if (argument && argument_at(act, at) == p.object) put_argument(rec, act, at, take_pending(rec, i));
        else i++;
    }
    cc_sym_drop_pending(rec);
    for (int id = 0, n = gs->g.n; id < n; id++) {
        if (gs->g.at[id].source != CC_SRC_ARG) continue;
        const Place at = place_of_argument(rec, gs->g.at[id].index);
        PyObject *v = argument_at(act, at), *own = v != NULL ? with_symbols(rec, id, v) : NULL;
        if (own != NULL) put_argument(rec, act, at, own);
    }
}

/* Unpacking a tuple or list: the targets get symbols for its numbers. */
static void take_items(CcRec *rec, const CcEvent *ev) {
    const int source = cc_value_source(rec, ev->in[0]);
    for (int i = 0; source >= 0 && i < rec->pending.n;) {
        const struct CcPending p = rec->pending.at[i];
        const CcGuard *g = &rec->trace->guards.g.at[p.guard];
        if (g->source == CC_SRC_ITEM && g->parent == source && g->index >= 0 && g->index < ev->n_out &&
            ev->out[g->index] == p.object)
            Py_SETREF(ev->out[g->index], take_pending(rec, i));
        else i++;
    }
}

static bool is_item(PyObject *tuple, PyObject *o) {
    bool is = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) is = is || PyTuple_GET_ITEM(tuple, i) == o;
    return is;
}

/* The pending number that is this object; -1: none is, or several are, as CPython's cached ints may be. */
static int pending_as(const CcRec *rec, const PyObject *o) {
    int at = -1;
    for (int i = 0; i < rec->pending.n; i++) {
        if (rec->pending.at[i].object != o) continue;
        if (at >= 0 && rec->pending.at[at].guard != rec->pending.at[i].guard) return -1;
        at = i;
    }
    return at;
}

/* A class pattern: the tuple of attributes gets symbols for its numbers. Those that __match_args__ lists and the pattern
 * does not read stay symbols, too. */
static void take_matched(CcRec *rec, const CcEvent *ev) {
    PyObject *tuple = ev->result;
    if (tuple == NULL || !PyTuple_CheckExact(tuple)) return;
    for (int i = rec->pending.n - 1; i >= 0; i--)
        if (i < rec->pending.n && !is_item(tuple, rec->pending.at[i].object))
            cc_sym_unread(rec, rec->pending.at[i].guard);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, k);
        const int at = pending_as(rec, item), guard = at >= 0 ? rec->pending.at[at].guard : -1;
        if (at < 0) continue;
        PyTuple_SET_ITEM(tuple, k, take_pending(rec, at));
        while (pending_as(rec, item) >= 0) cc_sym_unread(rec, guard); /* both a place of __match_args__ and a keyword */
        Py_DECREF(item);
    }
}

/* Pending numbers from index `first` on belong to this event: the last one is its result, the others were content that
 * C code read. */
void cc_sym_after(CcRec *rec, CcEvent *ev, int first) {
    if (rec->trace == NULL) return;
    const int last = rec->pending.n - 1;
    if (last >= first && ev->result != NULL && rec->pending.at[last].object == ev->result)
        Py_SETREF(ev->result, take_pending(rec, last));
    if (ev->kind == CC_EV_UNPACK) take_items(rec, ev);
    if (ev->kind == CC_EV_MATCH) take_matched(rec, ev);
    cc_sym_drop_pending(rec);
    /* shape[1:], shape + (4,): a torch.Size with symbols in it is not constant */
    if (ev->result != NULL && Py_TYPE(ev->result) == cc_tens_size_type() && cc_sym_within(rec, ev->result, 1) &&
        cc_value_find(rec, ev->result) == NULL)
        cc_value_set(rec, ev->result, CC_O_FRESH, -1);
}
