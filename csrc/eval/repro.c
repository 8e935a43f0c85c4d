/* Descriptions of graphs that failed, for CCOMPILE_REPRO: plain Python data that ccompile/repro.py makes a script of. It
 * compiles and runs code, so it gets them where events are delivered. */
#include "eval_int.h"

static PyObject *writer;  /* strong; NULL: nobody wants descriptions */
static PyObject *waiting; /* strong list of descriptions */

void cc_repro_set_writer(PyObject *callable) { Py_XSETREF(writer, Py_XNewRef(callable)); }

bool cc_repro_wanted(void) { return writer != NULL; }

/* Operands with a Value(i), writer.Value of Python, in place of each graph value: recipes make the rest. */
static PyObject **make_markers(const CcTrace *t) {
    const int n = t->graph->val.n;
    PyObject **marker = cc_mem_get(sizeof *marker * ((size_t)n + 1));
    for (int v = 0; v < n; v++) {
        marker[v] = PyObject_CallMethod(writer, "Value", "i", v);
        if (marker[v] == NULL) cc_raised_clear();
    }
    return marker;
}

static PyObject *operand_tuple(const CcTrace *t, const CcMaker *m, const CcAction *a) {
    PyObject *tuple = PyTuple_New(a->n);
    for (int k = 0; tuple != NULL && k < a->n; k++) {
        PyObject *o = cc_maker_make(m, t->args.at[a->args0 + k]);
        if (o == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, k, o);
    }
    return tuple;
}

static PyObject *node_tuple(const CcTrace *t, const CcMaker *m, const CcNode *node) {
    static const char *const FORM[] = {
        [CC_F_CALL] = "call",       [CC_F_BINOP] = "binary",    [CC_F_INPLACE] = "inplace", [CC_F_UNARY] = "unary",
        [CC_F_COMPARE] = "compare", [CC_F_GETITEM] = "getitem", [CC_F_GETATTR] = "getattr"};
    const CcAction *a = node->host >= 0 ? &t->node.at[node->host] : NULL;
    const char *form = a != NULL && a->form < CC_COUNT(FORM) && FORM[a->form] != NULL ? FORM[a->form] : "?";
    PyObject *operands = a != NULL ? operand_tuple(t, m, a) : PyTuple_New(0);
    PyObject *target = a != NULL && a->target != NULL ? a->target : Py_None;
    PyObject *names = a != NULL && a->kwnames != NULL ? a->kwnames : Py_None;
    if (operands == NULL) return NULL;
    return Py_BuildValue("(sOsNOiii)", form, target, a != NULL ? a->name : "", operands, names, node->out0, node->n_out,
                         a != NULL && a->sequence);
}

static PyObject *node_list(const CcTrace *t, const CcMaker *m) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->graph->node.n; i++) {
        PyObject *node = node_tuple(t, m, &t->graph->node.at[i]);
        if (node == NULL || PyList_Append(list, node) < 0) Py_CLEAR(list);
        Py_XDECREF(node);
    }
    return list;
}

/* {value: tensor} of the inputs, or of the outputs that nodes make */
static PyObject *tensor_dict(const CcTrace *t, PyObject *const *kept, bool outputs) {
    PyObject *dict = PyDict_New();
    for (int v = 0; dict != NULL && v < t->graph->val.n; v++) {
        const CcVal *val = &t->graph->val.at[v];
        if (kept[v] == NULL || (outputs ? !val->is_output || val->def < 0 : val->def >= 0)) continue;
        PyObject *key = PyLong_FromLong(v);
        if (key == NULL || PyDict_SetItem(dict, key, kept[v]) < 0) Py_CLEAR(dict);
        Py_XDECREF(key);
    }
    return dict;
}

void cc_repro_keep(const CcSegment *s, PyObject *const *kept, PyObject *const *symbol, const char *why) {
    if (writer == NULL) return;
    const CcTrace *t = s->trace;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject **marker = make_markers(t), **none = cc_mem_get(sizeof *none * ((size_t)t->guards.g.n + 1));
    for (int i = 0; i < t->input.n; i++) none[t->input.at[i]] = marker[t->input_value.at[i]];
    const CcMaker m = {.recipes = &t->recipes, .gv = none, .value = marker, .symbol = (PyObject **)symbol};
    PyObject *nodes = node_list(t, &m);
    PyObject *d = nodes == NULL
                      ? NULL
                      : Py_BuildValue("{s:O,s:i,s:s,s:N,s:N,s:N,s:N}", "root", s->root->name, "segment", s->id, "why",
                                      why, "nodes", nodes, "inputs", tensor_dict(t, kept, false), "outputs",
                                      tensor_dict(t, kept, true), "knobs", cc_policy_dict(&s->root->knobs));
    if (waiting == NULL) waiting = PyList_New(0);
    if (d == NULL || waiting == NULL || PyList_Append(waiting, d) < 0) PyErr_WriteUnraisable(writer);
    Py_XDECREF(d);
    for (int v = 0; v < t->graph->val.n; v++) Py_XDECREF(marker[v]);
    free(marker);
    free(none);
    PyErr_Restore(type, value, tb);
}

void cc_repro_deliver(void) {
    PyObject *list = waiting;
    waiting = NULL;
    for (Py_ssize_t i = 0; list != NULL && writer != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *r = PyObject_CallMethod(writer, "write", "O", PyList_GET_ITEM(list, i));
        if (r == NULL) PyErr_WriteUnraisable(writer);
        Py_XDECREF(r);
    }
    Py_XDECREF(list);
}

bool cc_repro_waits(void) { return waiting != NULL; }
