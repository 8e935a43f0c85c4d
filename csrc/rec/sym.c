/* Symbols: sizes and numbers that vary between calls. Each is a separate object (CPython's cached ints are copied), so
 * that provenance by identity distinguishes it from a constant of the same value. Each computation with symbols in
 * Python code is a step: its result is a new symbol, or a guard (a comparison must have the recorded outcome). C code
 * that reads a symbol in any other way pins it: a guard on its value. This file does not derive shapes of ops' results:
 * for a new key, torch runs the nodes once (eval/shape.c). */
#include "rec_events.h"

/* A number, a numpy scalar, or a text made of symbols. */
static bool may_be(PyObject *o) { return cc_sym_varies(o) || PyUnicode_CheckExact(o); }

int cc_sym_of(CcRec *rec, PyObject *o) {
    if (rec->trace == NULL || rec->trace->symbol.n == 0 || o == NULL || !may_be(o)) return -1;
    const CcProv *p = cc_value_find(rec, o);
    return p != NULL && p->origin == CC_O_SYMBOL ? p->id : -1;
}

/* CPython caches one object for each of them (_PY_NSMALLNEGINTS, _PY_NSMALLPOSINTS). */
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
    if (may_be(o)) return cc_sym_is(rec, o);
    if (PySlice_Check(o)) depth = CC_MAX(depth, 1);
    return depth > 0 && cc_number_any(rec, o, symbol_visit, rec, depth - 1);
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
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) > CC_SYM_ITEMS) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (!cc_sym_number(PyTuple_GET_ITEM(o, i))) return false;
    return true;
}

static PyObject *symbols_of(CcRec *rec, PyObject *items, unsigned fixed, bool late) {
    PyObject *tuple;
    CC_RETRY_ALLOC(tuple, PyTuple_New(PyTuple_GET_SIZE(items)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        PyObject *o = cc_sym_new(rec, PyTuple_GET_ITEM(items, i), late);
        if (fixed >> i & 1) Py_SETREF(o, Py_NewRef(PyTuple_GET_ITEM(items, i)));
        PyTuple_SET_ITEM(tuple, i, o);
    }
    return cc_sym_items(rec, items, tuple);
}

/* Whether a step may raise, or return something other than a number of the recorded type. */
static bool may_fail(CcRec *rec, const CcCallSpec *spec, bool guard) {
    if (guard) return true;
    for (int i = 0; i < spec->n; i++)
        if (cc_sym_scalar(spec->in[i])) return true; /* its warnings may be errors */
    if (spec->form == CC_F_FORMAT || spec->form == CC_F_JOIN) return false;
    if (spec->form == CC_F_GETATTR || spec->form == CC_F_UNARY) return false;
    if (spec->form == CC_F_CALL) return spec->n == 0 || !cc_tens_is(spec->in[0]);
    if (spec->form != CC_F_BINOP) return true;
    if (spec->arg == CC_NB_ADD || spec->arg == CC_NB_SUBTRACT || spec->arg == CC_NB_MULTIPLY) return false;
    return spec->arg == CC_NB_POWER || cc_sym_is(rec, spec->in[1]); /* division by zero */
}

/* Begins a step with these operands. False: an operand has no recipe. */
static bool begin_step(CcRec *rec, CcAct *act, const CcCallSpec *spec, CcSymStep *step) {
    CcTrace *t = rec->trace;
    const int args0 = cc_node_args(rec, spec);
    if (args0 < 0) return false;
    *step = (CcSymStep){.action = cc_node_action(spec, act, args0), .symbol0 = t->symbol.n};
    step->action.after = t->graph->node.n;
    Seen seen = {.t = t};
    cc_sym_visit(t, &step->action, see, &seen);
    step->late = seen.late;
    return true;
}

static void end_step(CcTrace *t, const CcSymStep *step, bool fails) {
    if (step->late && t->impure && fails) t->retry = true;
    cc_vec_push(&t->step, *step);
}

/* Records a step that computed or read `result` from symbols. Steals the reference to `result`, and returns the object
 * that Python code gets in its place. fixed: bit set of the result's items that are not symbols (guarded sizes). NULL:
 * it can't be recorded, and the reference is dropped. */
static PyObject *record_step(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result, unsigned fixed) {
    CcTrace *t = rec->trace;
    const bool items = numbers_only(result);
    bool known = items || cc_value_const(result);
    if (spec->form == CC_F_CALL && cc_same_nan(result))
        known = false; /* max(): it may be an operand, whose identity counts */
    /* a number read by a break varies between calls: once a step's guard on it fails, it becomes a symbol */
    for (int i = 0; known && i < spec->n; i++) {
        known = cc_number_read(rec, spec->in[i], 3);
        if (!known) cc_number_request_symbols(rec, spec->in[i]);
    }
    CcSymStep step;
    if (!known || !begin_step(rec, act, spec, &step)) {
        Py_DECREF(result);
        return NULL;
    }
    step.action.sequence = items;
    PyObject *given = result;
    if (items) given = symbols_of(rec, result, fixed, step.late);
    else if (cc_sym_varies(result) || cc_sym_textual(result)) given = cc_sym_new(rec, result, step.late);
    else step.want = Py_NewRef(result);
    if (given != result) Py_DECREF(result);
    step.n = t->symbol.n - step.symbol0;
    end_step(t, &step, may_fail(rec, spec, step.want != NULL));
    return given;
}

PyObject *cc_sym_operand(CcRec *rec, CcAct *act, PyObject *o) {
    if (o == NULL || !cc_sym_scalar(o) || !cc_sym_is(rec, o)) return o;
    PyObject *type = (PyObject *)(PyIndex_Check(o) ? &PyLong_Type : &PyFloat_Type), *number;
    const CcCallSpec spec = {.form = CC_F_CALL, .target = type, .in = &o, .n = 1, .name = "number"};
    CC_RETRY_ALLOC(number, PyObject_CallOneArg(type, o));
    PyObject *symbol = record_step(rec, act, &spec, number, 0);
    if (symbol == NULL) return o;
    cc_vec_push(&rec->keep, symbol);
    return symbol;
}

bool cc_sym_text(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *text) {
    CcTrace *t = rec->trace;
    CcSymStep step;
    if (!cc_sym_textual(text) || Py_REFCNT(text) != 1 || !begin_step(rec, act, spec, &step)) return false;
    cc_vec_push(&t->symbol, (struct CcSymbol){.value = Py_NewRef(text), .late = step.late});
    cc_value_set(rec, text, CC_O_SYMBOL, t->symbol.n - 1);
    rec->lazy = true;
    step.n = 1;
    end_step(t, &step, false);
    return true;
}

bool cc_sym_by_layout(const CcCallSpec *spec) {
    if (spec->name == NULL) return false;
    for (Py_ssize_t i = 0; spec->kwnames != NULL && i < PyTuple_GET_SIZE(spec->kwnames); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(spec->kwnames, i), "memory_format") == 0) return true;
    return strstr(spec->name, "contiguous") != NULL || strstr(spec->name, "sum_to_size") != NULL;
}

bool cc_sym_squeezes(const CcCallSpec *spec) { return spec->name != NULL && strstr(spec->name, "squeeze") != NULL; }

void cc_sym_same(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result) {
    bool sized = false;
    int same = 0;
    for (int i = 0; i < spec->n; i++) {
        sized = sized || cc_sym_sized(rec, spec->in[i]) || cc_sym_within(rec, spec->in[i], 4);
        if (spec->in[i] == result) same = i + 1;
    }
    for (int i = 0; i < spec->n; i++) /* a checked probability */
        if (PyFloat_CheckExact(spec->in[i])) (void)cc_number_settle(rec, spec->in[i], 0);
    if (!sized || !cc_sym_by_layout(spec)) return;
    CcSymStep step;
    if (same == 0 || !begin_step(rec, act, spec, &step)) {
        rec->rigid = "an op returned an operand that has no recipe";
        return;
    }
    step.same = (int16_t)same;
    end_step(rec->trace, &step, true);
}

void cc_sym_pin(CcRec *rec, PyObject *o) {
    CcProv *p = cc_sym_is(rec, o) ? cc_value_find(rec, o) : NULL;
    if (p == NULL || p->dirty) return;
    p->dirty = CC_DIRTY_ALL; /* already pinned */
    const CcCallSpec spec = {.form = PyUnicode_CheckExact(o) ? CC_F_FORMAT : CC_F_UNARY,
                             .arg = PyUnicode_CheckExact(o) ? 0 : '+',
                             .in = &o,
                             .n = 1,
                             .name = "value"};
    const int id = p->id;
    CcSymStep step;
    if (!begin_step(rec, NULL, &spec, &step)) return; /* never fails for a symbol */
    step.want = Py_NewRef(rec->trace->symbol.at[id].value);
    end_step(rec->trace, &step, true);
}

void cc_sym_settle(CcRec *rec, PyObject *o, int depth) {
    cc_number_which(rec, o, depth);
    if (cc_sym_within(rec, o, depth)) (void)cc_number_settle(rec, o, depth);
}

static bool sized_within(CcRec *rec, PyObject *o, int depth);

static bool sized_visit(void *ctx, PyObject *o, int depth) { return sized_within(ctx, o, depth); }

static bool sized_within(CcRec *rec, PyObject *o, int depth) {
    if (o == NULL || rec->trace == NULL || !cc_trace_symbolic(rec->trace)) return false;
    return cc_sym_sized(rec, o) || (depth > 0 && cc_number_any(rec, o, sized_visit, rec, depth - 1));
}

static void settle_all(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 0; i < n; i++) {
        cc_sym_settle(rec, in[i], 4);
        if (sized_within(rec, in[i], 4)) rec->rigid = "C code reads a tensor with symbolic sizes";
    }
}

bool cc_sym_tells_size(const char *name) {
    static const char *const sizeless[] = {"dtype",
                                           "device",
                                           "layout",
                                           "ndim",
                                           "dim",
                                           "ndimension",
                                           "is_cuda",
                                           "is_cpu",
                                           "is_floating_point",
                                           "is_complex",
                                           "is_signed",
                                           "is_sparse",
                                           "is_leaf",
                                           "requires_grad",
                                           "unwrap_if_dead",
                                           "element_size",
                                           "itemsize",
                                           "get_device",
                                           "is_meta",
                                           "is_quantized",
                                           "is_nested",
                                           "is_conj",
                                           "is_neg",
                                           "is_mps",
                                           "is_xla",
                                           "_has_torch_function",
                                           "_has_torch_function_unary",
                                           "_has_torch_function_variadic"};
    const char *dot = name != NULL ? strrchr(name, '.') : NULL;
    if (name == NULL) return true;
    for (int i = 0; i < CC_COUNT(sizeless); i++)
        if (strcmp(dot != NULL ? dot + 1 : name, sizeless[i]) == 0) return false;
    return true;
}

void cc_sym_settle_iterated(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 0; i < n; i++)
        if (in[i] == Py_None || (PyCallable_Check(in[i]) && cc_call_function(in[i]) == NULL)) {
            settle_all(rec, in, n);
            return;
        }
}

/* Performs and records the event; CC_OK: not possible, so its symbols are now constants. */
static CcGo record(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec, PyObject *result, unsigned fixed) {
    cc_raised_clear(); /* an exception: performing the event again raises it */
    ev->result = result != NULL ? record_step(rec, act, spec, result, fixed) : NULL;
    if (ev->result != NULL) return CC_DONE;
    settle_all(rec, spec->in, spec->n);
    return CC_OK;
}

/* ------------------------------------------------------------------ events */

int cc_sym_tuple_given(const CcRec *rec, const PyObject *o, PyObject **given) {
    for (int i = 0; i < rec->tuples.n; i++)
        if (rec->tuples.at[i].given == o) {
            *given = rec->tuples.at[i].of.object;
            return rec->tuples.at[i].of.guard;
        }
    return -1;
}

int cc_sym_given(CcRec *rec, PyObject *o, PyObject **given) {
    const int symbol = cc_sym_of(rec, o), tuple = cc_sym_tuple_given(rec, o, given);
    if (tuple >= 0) return tuple;
    *given = o;
    for (int i = 0; symbol >= 0 && i < rec->trace->number.n; i++)
        if (rec->trace->number.at[i].symbol == symbol) {
            *given = rec->trace->symbol.at[symbol].value;
            return rec->trace->number.at[i].guard;
        }
    const CcProv *p = rec->copies.n > 0 && cc_value_copyable(o) ? cc_value_find(rec, o) : NULL;
    for (int i = 0; p != NULL && p->origin == CC_O_SOURCE && i < rec->copies.n; i++)
        if (rec->copies.at[i].guard == p->id) {
            *given = rec->copies.at[i].object;
            return p->id;
        }
    return -1;
}

/* Numbers that CPython does not cache, and tuples: guards whether the original objects are identical. */
static bool identical_originals(CcRec *rec, PyObject *const *in) {
    PyObject *given[2];
    int guard[] = {cc_sym_given(rec, in[0], &given[0]), cc_sym_given(rec, in[1], &given[1])};
    for (int i = 0; i < 2; i++) {
        const CcProv *p = guard[i] < 0 && PyTuple_Check(in[i]) ? cc_value_find(rec, in[i]) : NULL;
        const bool read = p != NULL && p->origin == CC_O_SOURCE;
        if (read && rec->trace->guards.g.at[p->id].source != CC_SRC_CONST) guard[i] = p->id;
    }
    const bool same = given[0] == given[1];
    CcGuards *gs = &rec->trace->guards;
    if (guard[0] >= 0 && guard[1] >= 0 && guard[0] != guard[1])
        cc_guard_add_check(gs, CC_MAX(guard[0], guard[1]), same ? CC_CHK_ALIAS : CC_CHK_DISTINCT, NULL,
                           CC_MIN(guard[0], guard[1]));
    for (int i = 0; i < 2; i++)
        if (guard[i] >= 0 && guard[1 - i] < 0 && cc_value_origin(rec, in[1 - i]) != CC_O_FRESH)
            cc_guard_add_check(gs, guard[i], same ? CC_CHK_IDENT : CC_CHK_IS_NOT, given[1 - i], -1);
    return same;
}

static bool stands_in(const CcRec *rec, PyObject *o) {
    PyObject *given;
    return cc_sym_tuple_given(rec, o, &given) >= 0;
}

bool cc_sym_identical(CcRec *rec, CcAct *act, PyObject *const *in) {
    const bool symbols[] = {cc_sym_is(rec, in[0]), cc_sym_is(rec, in[1])};
    if (in[0] == in[1] || Py_TYPE(in[0]) != Py_TYPE(in[1])) return in[0] == in[1];
    if (cc_value_copyable(in[0]) || stands_in(rec, in[0]) || stands_in(rec, in[1])) return identical_originals(rec, in);
    if (!symbols[0] && !symbols[1]) return false;
    if (symbols[0] && symbols[1]) settle_all(rec, in, 2); /* whether they are small also matters */
    for (int i = 0; i < 2; i++)
        if ((!symbols[i] || symbols[1 - i]) && !cc_sym_small(in[i])) return identical_originals(rec, in);
    const CcCallSpec spec = {.form = CC_F_COMPARE, .arg = Py_EQ, .in = in, .n = 2, .name = "comparison"};
    PyObject *equal;
    CC_RETRY_ALLOC(equal, PyObject_RichCompare(in[0], in[1], Py_EQ));
    const bool same = equal == Py_True && cc_sym_small(in[0]);
    PyObject *given = record_step(rec, act, &spec, equal, 0);
    if (given == NULL) settle_all(rec, in, 2);
    Py_XDECREF(given);
    return same;
}

/* A constant with which a step can compare a symbol; a NaN is found by identity. */
static bool comparable(CcRec *rec, PyObject *o) {
    return (PyLong_CheckExact(o) || PyFloat_CheckExact(o)) && !cc_sym_is(rec, o) && !cc_value_symbolic(rec, o) &&
           !cc_same_nan(o);
}

/* None and text never equal a number. */
static bool other_kind(PyObject *o) { return o == Py_None || PyUnicode_CheckExact(o); }

bool cc_sym_differs(CcRec *rec, PyObject *symbol, PyObject *const *items, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        if (!other_kind(items[i]) &&
            (!comparable(rec, items[i]) || PyObject_RichCompareBool(symbol, items[i], Py_EQ) != 0))
            return false;
    return true;
}

bool cc_sym_absent(CcRec *rec, CcAct *act, PyObject *symbol, PyObject *const *items, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        if (other_kind(items[i])) continue;
        PyObject *const in[] = {symbol, items[i]};
        const CcCallSpec spec = {.form = CC_F_COMPARE, .arg = Py_EQ, .in = in, .n = 2, .name = "comparison"};
        PyObject *given = record_step(rec, act, &spec, Py_NewRef(Py_False), 0);
        Py_XDECREF(given);
        if (given == NULL) return false;
    }
    return true;
}

bool cc_sym_probability(CcRec *rec, CcAct *act, PyObject *o) {
    if (cc_sym_scalar(o)) return cc_number_settle(rec, o, 0);
    if (!cc_sym_number(o) || !(cc_sym_is(rec, o) || cc_value_symbolic(rec, o))) return true;
    for (int edge = 0; edge < 2; edge++) {
        PyObject *const in[] = {o, PyFloat_FromDouble(edge)};
        cc_vec_push(&rec->keep, in[1]);
        const CcCallSpec spec = {.form = CC_F_COMPARE, .arg = Py_EQ, .in = in, .n = 2, .name = "comparison"};
        PyObject *equal;
        CC_RETRY_ALLOC(equal, PyObject_RichCompare(o, in[1], Py_EQ));
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
    return cc_sym_varies(o) || PyBool_Check(o) || o == Py_None || PyUnicode_CheckExact(o);
}

/* Whether operands that are not symbols are numbers, texts, or containers of these; guards the content. */
static bool plain_operands(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 0; i < n; i++) {
        if (!plain_operand(in[i], 3)) return false;
        if (PyTuple_Check(in[i]) || PyList_Check(in[i]))
            if (cc_value_dirty(rec, in[i]) != CC_DIRTY_NO || !cc_inside_guard(rec, in[i], 4)) return false;
    }
    return true;
}

/* shape + (4,), [n] * 2, {**sizes} | other: moves items unchanged into another container. */
static bool only_moved(const CcEvent *ev) {
    if (ev->arg == CC_NB_ADD) return !PyUnicode_Check(ev->in[0]);
    if (ev->arg == CC_NB_OR) return PyDict_Check(ev->in[0]) && PyDict_Check(ev->in[1]);
    if (ev->arg != CC_NB_MULTIPLY) return false;
    return PyList_Check(ev->in[0]) || PyTuple_Check(ev->in[0]) || PyList_Check(ev->in[1]) || PyTuple_Check(ev->in[1]);
}

CcGo cc_sym_operator(CcRec *rec, CcAct *act, CcEvent *ev) {
    bool within = false, numbers = true, texts = ev->kind == CC_EV_BINOP && ev->arg == CC_NB_ADD;
    for (int i = 0; i < ev->n; i++) {
        if (cc_tens_is(ev->in[i])) return CC_OK;
        within = within || cc_sym_within(rec, ev->in[i], 3);
        texts = texts && PyUnicode_CheckExact(ev->in[i]);
        numbers = numbers && (cc_sym_varies(ev->in[i]) || PyBool_Check(ev->in[i]));
    }
    if (!within) return CC_OK;
    CcCallSpec spec = {.arg = ev->arg, .in = ev->in, .n = ev->n};
    PyObject *const *in = ev->in;
    const bool formats = cc_op_formats(ev) && PyUnicode_CheckExact(in[0]) && plain_operands(rec, in, ev->n);
    if ((texts && cc_op_symbolic(rec, ev)) || (formats && cc_number_varies(rec, in[1], 2)))
        return CC_OK; /* a node makes it */
    if (ev->kind == CC_EV_BINOP && (numbers || texts || formats)) {
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

CcGo cc_sym_format(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyObject *layout = ev->n > 1 ? ev->in[1] : NULL;
    if (layout != NULL && (!PyUnicode_CheckExact(layout) || cc_sym_is(rec, layout))) return CC_OK;
    const CcCallSpec spec = {
        .form = CC_F_FORMAT, .arg = ev->arg, .in = ev->in, .n = layout != NULL ? 2 : 1, .name = "format"};
    const CcAction action = {.form = CC_F_FORMAT, .arg = (int16_t)ev->arg, .n = (int16_t)spec.n};
    return record(rec, act, ev, &spec, cc_action_run(&action, ev->in), 0);
}

CcGo cc_sym_attr(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *tensor, PyObject *name) {
    PyObject *d = cc_sym_sized(rec, tensor) ? cc_type_lookup(Py_TYPE(tensor), name) : NULL;
    if (d == NULL || !Py_IS_TYPE(d, &PyGetSetDescr_Type) || cc_torch_attr(tensor, name).cls != CC_T_META) return CC_OK;
    const char *text = PyUnicode_AsUTF8(name);
    if (text == NULL) cc_raised_clear();
    if (text == NULL || !cc_sym_tells_size(text)) return CC_OK;
    const CcProv *p = cc_value_find(rec, tensor);
    const unsigned fixed =
        p->origin == CC_O_SOURCE && strcmp(text, "shape") == 0 ? ~(unsigned)rec->trace->guards.g.at[p->id].dynamic : 0;
    PyObject *v = PyObject_GetAttr(tensor, name);
    if (v != NULL) (void)cc_attr_after(rec, act, tensor, name, v); /* guards that torch.Tensor is not patched */
    const CcCallSpec spec = {.form = CC_F_GETATTR, .target = name, .in = &tensor, .n = 1, .name = text};
    return record(rec, act, ev, &spec, v, fixed);
}

CcGo cc_sym_call(CcRec *rec, CcAct *act, CcEvent *ev, const CcCallSpec *spec) {
    bool touches = false;
    for (int i = 0; i < spec->n; i++)
        touches = touches || cc_sym_sized(rec, spec->in[i]) || cc_sym_within(rec, spec->in[i], 4);
    if (!touches) return CC_OK;
    unsigned fixed = 0;
    const CcProv *p = spec->n == 1 && strcmp(spec->name, "Tensor.size") == 0 ? cc_value_find(rec, spec->in[0]) : NULL;
    if (p != NULL && p->origin == CC_O_SOURCE) fixed = ~(unsigned)rec->trace->guards.g.at[p->id].dynamic;
    /* Tensor.__len__ is Python code */
    PyObject *v = cc_call_unseen(act, spec->target, spec->in, spec->n, spec->kwnames);
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
