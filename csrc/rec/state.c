/* State of the interpreter and of numpy that C code reads implicitly: the maximal digits of an int as text, numpy's
 * error handling, the locale's separators. The operands decide whether an operation reads such state; if so, a guard
 * checks it. */
#include "rec_int.h"

typedef enum State { DIGITS, NUMPY_ERRORS, LOCALE } State;

/* The C functions without arguments that return each state; numpy has moved its own between versions. */
static const struct {
    State state;
    const char *module, *function;
} rows[] = {
    {DIGITS, "sys", "get_int_max_str_digits"},
    {NUMPY_ERRORS, "numpy._core._multiarray_umath", "_get_extobj_dict"},
    {NUMPY_ERRORS, "numpy.core._multiarray_umath", "geterrobj"},
    {LOCALE, "_locale", "localeconv"},
};

/* Adds a guard whose source is not a value of the trace. Code that changes these states is a break, so one guard per
 * state is enough. */
static void guard(CcRec *rec, CcSource source, int parent, PyObject *key, CcCheck check, PyObject *want) {
    bool is_new;
    CcGuards *gs = &rec->trace->guards;
    const int id = cc_guard_source(gs, source, parent, key, 0, 0, &is_new);
    gs->g.at[id].owned = true;
    const CcGuard *g = &gs->g.at[id];
    if (is_new) cc_guard_check(gs, id, check, want);
    else if (g->check != check || PyObject_RichCompareBool(g->want, want, Py_EQ) != 1)
        cc_guard_add_check(gs, id, check, want, -1);
}

/* False: this interpreter, or this numpy, has no such function. */
static bool ask(CcRec *rec, State state) {
    for (int i = 0; i < CC_COUNT(rows); i++) {
        PyObject *f = rows[i].state == state ? cc_obj_of_module(rows[i].module, rows[i].function) : NULL;
        PyObject *answer = f != NULL ? PyObject_CallNoArgs(f) : NULL;
        if (answer != NULL)
            guard(rec, CC_SRC_CALL, -1, f, cc_value_const(answer) ? CC_CHK_VALUE : CC_CHK_EQUALSET, answer);
        else cc_raised_clear();
        Py_XDECREF(f);
        Py_XDECREF(answer);
        if (answer != NULL) return true;
    }
    return false;
}

/* numpy.set_printoptions puts a new dict into a context variable and never changes the dict. */
static bool ask_numpy_text(CcRec *rec) {
    PyObject *var = cc_obj_of_module("numpy._core.printoptions", "format_options"), *now = NULL;
    const bool known = var != NULL && PyContextVar_CheckExact(var) && PyContextVar_Get(var, NULL, &now) == 0;
    if (known && now != NULL) guard(rec, CC_SRC_CTXVAR, cc_value_const_source(rec, var), NULL, CC_CHK_IDENT, now);
    const bool ok = now != NULL;
    Py_XDECREF(now);
    Py_XDECREF(var);
    cc_raised_clear();
    return ok;
}

/* ------------------------------------------------------------------ state that operands require */

typedef struct Found {
    bool digits, numpy, locale;
} Found;

/* CPython checks the limit only beyond this number of digits (sys.int_info.str_digits_check_threshold). */
enum { FREE_DIGITS = 640, FREE_BITS = 2100 };

static bool long_int(PyObject *o) { return PyLong_Check(o) && _PyLong_NumBits(o) > FREE_BITS; }

/* A format that is given fields itself: "{:{}}", "{:>{b}}". */
static bool nests(const char *s, Py_ssize_t n) {
    bool field = false;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (s[i] == '{' && field) return true;
        if (s[i] == '{' && s[i + 1] == '{') i++; /* a brace of the text */
        else field = s[i] == '{' || (field && s[i] != '}');
    }
    return false;
}

/* Formats that depend on the locale: format(x, "n"), "{:n}".format(x), "{:{}}".format(x, "n"). */
static bool by_locale(PyObject *const *in, int n) {
    const bool spec = n > 1 && in[0] != NULL && !PyUnicode_Check(in[0]);
    PyObject *text = n > 0 ? in[spec] : NULL;
    Py_ssize_t size;
    const char *s = text != NULL && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (s == NULL) cc_raised_clear();
    if (s == NULL || size == 0) return false;
    return spec ? s[size - 1] == 'n' : cc_text_has(s, size, "n}") || nests(s, size);
}

static bool look(void *ctx, PyObject *o, int depth) {
    Found *found = ctx;
    if (o == NULL) return false;
    if (cc_value_numpy(o)) found->numpy = true;
    else if (PyLong_Check(o)) found->digits = found->digits || long_int(o);
    else if (PyUnicode_Check(o)) {
        found->digits = found->digits || PyUnicode_GET_LENGTH(o) > FREE_DIGITS;
    } else if (PyBytes_Check(o)) found->digits = found->digits || PyBytes_GET_SIZE(o) > FREE_DIGITS;
    else if (PyExceptionInstance_Check(o)) o = ((PyBaseExceptionObject *)o)->args;
    if (depth > 0 && o != NULL) (void)cc_number_any(NULL, o, look, ctx, depth - 1);
    return false;
}

/* text: the operation converts between numbers and text. */
static bool ask_for(CcRec *rec, const Found *found, bool text) {
    return (!found->numpy || (ask(rec, NUMPY_ERRORS) && (!text || ask_numpy_text(rec)))) &&
           (!text || !found->digits || ask(rec, DIGITS)) && (!text || !found->locale || ask(rec, LOCALE));
}

bool cc_state_read(CcRec *rec, PyObject *const *in, int n, bool text) {
    Found found = {.locale = text && by_locale(in, n)};
    for (int i = 0; i < n; i++) (void)look(&found, in[i], 4);
    return ask_for(rec, &found, text);
}

bool cc_state_event(CcRec *rec, const CcEvent *ev) {
    const bool modulo = ev->kind == CC_EV_BINOP && ev->arg == CC_NB_REMAINDER && PyUnicode_Check(ev->in[0]);
    if (ev->kind == CC_EV_FORMAT || modulo) return cc_state_read(rec, ev->in, ev->n, true);
    bool numpy = false;
    for (int i = 0; i < ev->n; i++) numpy = numpy || (ev->in[i] != NULL && cc_value_numpy(ev->in[i]));
    return !numpy || ask(rec, NUMPY_ERRORS);
}

bool cc_state_numpy(CcRec *rec) { return ask(rec, NUMPY_ERRORS); }

/* Calls torch's function for the innermost hooks of saved tensors; NULL: this torch has none. */
static PyObject *top_hooks(void) {
    static PyObject *top;
    if (top != NULL) return top;
    PyObject *f = cc_obj_of_module("torch._C._autograd", "_top_saved_tensors_default_hooks");
    PyObject *partial = f != NULL ? cc_obj_of_module("functools", "partial") : NULL;
    if (partial != NULL) top = PyObject_CallFunctionObjArgs(partial, f, Py_True, NULL);
    Py_XDECREF(partial);
    Py_XDECREF(f);
    cc_raised_clear();
    return top;
}

bool cc_state_has_hooks(void) {
    PyObject *now = top_hooks() != NULL ? PyObject_CallNoArgs(top_hooks()) : NULL;
    cc_raised_clear();
    Py_XDECREF(now); /* None lives on */
    return now != Py_None;
}

bool cc_state_hooks(CcRec *rec) {
    const bool has = cc_state_has_hooks();
    if (!has) guard(rec, CC_SRC_CALL, -1, top_hooks(), CC_CHK_IDENT, Py_None);
    return has;
}

/* ------------------------------------------------------------------ codecs */

/* Names that C code handles itself; others are looked up in the registry. */
bool cc_state_codec(PyObject *name) {
    static const char *const own[] = {"utf-8",
                                      "utf8",
                                      "ascii",
                                      "us-ascii",
                                      "latin-1",
                                      "latin1",
                                      "utf-16",
                                      "utf-32",
                                      "iso-8859-1",
                                      "strict",
                                      "ignore",
                                      "replace",
                                      "backslashreplace",
                                      "surrogateescape",
                                      "surrogatepass",
                                      "xmlcharrefreplace"};
    for (int i = 0; PyUnicode_Check(name) && i < CC_COUNT(own); i++)
        if (PyUnicode_CompareWithASCIIString(name, own[i]) == 0) return true;
    return false;
}
