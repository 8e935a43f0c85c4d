/* Text of guards, for reports and for messages about a guard that failed. */
#include "guard_int.h"

enum { DEPTH = 2, MOST_ITEMS = 8 }; /* how much of a sequence is written */

static const char *const source_text[] = {
#define CC_SOURCE(id, reads, text) text,
#include "guard.def"
#undef CC_SOURCE
};
static const char *const check_text[] = {
#define CC_CHECK(id, text) text,
#include "check.def"
#undef CC_CHECK
};

/* Whether its text is made by C code alone. A method's or a weak reference's text asks the object behind it, a date's its
 * timezone: code of the user would run. */
static bool is_leaf(PyObject *o) {
    PyTypeObject *const leaf[] = {&PyLong_Type,    &PyFloat_Type,       &PyComplex_Type,      &PyBool_Type,
                                  &PyUnicode_Type, &PyBytes_Type,       &PyRange_Type,        &PyCFunction_Type,
                                  &PyCMethod_Type, &PyMethodDescr_Type, &PyWrapperDescr_Type, &PyEllipsis_Type};
    for (int i = 0; i < CC_COUNT(leaf); i++)
        if (Py_IS_TYPE(o, leaf[i])) return true;
    return o == Py_None || cc_tens_constant(o) || cc_known_is(o, CC_KNOWN_FLOAT64) ||
           cc_known_is(o, CC_KNOWN_FLOAT32) || cc_known_is(o, CC_KNOWN_FLOAT16);
}

static void add_leaf(PyObject *o, CcSbuf *out) {
    PyObject *s = NULL;
    if (PyType_Check(o)) s = PyUnicode_FromString(((PyTypeObject *)o)->tp_name);
    else if (PyFunction_Check(o)) s = Py_NewRef(((PyFunctionObject *)o)->func_qualname);
    else if (PyModule_Check(o)) s = PyModule_GetNameObject(o);
    else if (!is_leaf(o)) s = PyUnicode_FromFormat("<%s>", Py_TYPE(o)->tp_name);
    else s = Py_TYPE(o)->tp_repr(o); /* PyObject_Repr handles signals, whose exceptions would be lost here */
    const char *text = s != NULL ? PyUnicode_AsUTF8(s) : NULL;
    if (text == NULL) cc_raised_clear();
    cc_sbuf_add(out, "%.120s", text != NULL ? text : "?");
    Py_XDECREF(s);
}

static void add_object(PyObject *o, int depth, CcSbuf *out) {
    if (o == NULL) {
        cc_sbuf_add(out, "NULL");
        return;
    }
    if (depth == 0 || !(PyTuple_CheckExact(o) || PyList_CheckExact(o))) {
        add_leaf(o, out);
        return;
    }
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    cc_sbuf_add(out, PyTuple_Check(o) ? "(" : "[");
    for (Py_ssize_t i = 0; i < CC_MIN(n, MOST_ITEMS); i++) {
        if (i > 0) cc_sbuf_add(out, ", ");
        add_object(PySequence_Fast_GET_ITEM(o, i), depth - 1, out);
    }
    if (n > MOST_ITEMS) cc_sbuf_add(out, ", ...");
    cc_sbuf_add(out, PyList_Check(o) ? "]" : n == 1 ? ",)" : ")");
}

void cc_guard_source_text(const CcGuards *gs, int id, CcSbuf *out) {
    const CcGuard *g = &gs->g.at[id];
    for (const char *p = source_text[g->source]; *p != '\0'; p++) {
        if (p[0] != '%') {
            cc_sbuf_add(out, "%c", *p);
            continue;
        }
        p++;
        if (*p == 'p' && g->parent >= 0) cc_guard_source_text(gs, g->parent, out);
        else if (*p == 'k' && g->key != NULL && Py_TYPE(g->key)->tp_descr_get != NULL && g->source == CC_SRC_MEMBER)
            add_leaf(((PyDescrObject *)g->key)->d_name, out);
        else if (*p == 'k' && g->key != NULL && PyTuple_CheckExact(g->key))
            cc_sbuf_add(out, "<tuple>"); /* may contain anything, such as a function's defaults */
        else if (*p == 'k') add_object(g->key, DEPTH, out);
        else if (*p == 'i') cc_sbuf_add(out, "%d", g->index);
        else if (*p == 'v') cc_guard_source_text(gs, g->index, out);
    }
}

/* Marks the guards on the path to a guard. */
static void mark_path(const CcGuards *gs, int id, bool *on_path) {
    for (; id >= 0; id = gs->g.at[id].parent) {
        on_path[id] = true;
        mark_path(gs, cc_guard_keyed(&gs->g.at[id]), on_path);
    }
}

void cc_guard_value_text(const CcGuards *gs, int id, const CcGuardState *state, CcSbuf *out) {
    PyObject **gv = cc_mem_get(((size_t)gs->g.n + 1) * sizeof *gv);
    bool *on_path = cc_mem_get(((size_t)id + 1) * sizeof *on_path);
    mark_path(gs, id, on_path);
    int n = 0;
    for (; n <= id; n++) {
        const CcGuard *g = &gs->g.at[n];
        if (!on_path[n]) continue;
        gv[n] = cc_guard_read(g, state, gv);
        if (g->used && !g->owned) Py_XINCREF(gv[n]);
        if (n < id && cc_guard_compared(g) < 0 && !cc_guard_holds(g, gv[n], gv)) break;
    }
    free(on_path);
    if (n > id) {
        CcTensor t = {.type = {.ndim = -1}};
        if (gv[id] != NULL && cc_tens_plain(gv[id])) cc_tens_read(gv[id], true, &t);
        if (gv[id] == NULL) cc_sbuf_add(out, "absent");
        else if (t.type.ndim >= 0) cc_tens_describe(&t.type, out);
        else add_object(gv[id], DEPTH, out);
    }
    cc_guard_release_to(gs, gv, CC_MIN(n + 1, gs->g.n));
    free(gv);
}

void cc_guard_text(const CcGuards *gs, int id, CcSbuf *out) {
    const CcGuard *g = &gs->g.at[id];
    cc_guard_source_text(gs, id, out);
    cc_sbuf_add(out, " ");
    for (const char *p = check_text[g->check]; *p != '\0'; p++) {
        if (p[0] != '%') {
            cc_sbuf_add(out, "%c", *p);
            continue;
        }
        p++;
        if (*p == 'w') add_object(g->want, DEPTH, out);
        else if (*p == 'i') cc_sbuf_add(out, "%d", g->index);
        else if (*p == 'a' && g->other >= 0) cc_guard_source_text(gs, g->other, out);
        else if (*p == 't') {
            cc_tens_describe(g->type, out);
            for (int d = 0; d < CC_MAX_DIMS; d++)
                if (g->dynamic >> d & 1) cc_sbuf_add(out, ", size(%d) symbolic", d);
        }
    }
}
