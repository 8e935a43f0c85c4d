/* ccompile._tenstest: exposes csrc/tens to tests/test_tens.py. Built for tests, never shipped. Links csrc/base,
 * csrc/py, csrc/ir and csrc/tens. */
#include "../tens/tens.h"

static const char *const CLASS[] = {
    [CC_T_NONE] = "NONE",         [CC_T_OP] = "OP",         [CC_T_META] = "META",
    [CC_T_VALUE] = "VALUE",       [CC_T_STATE] = "STATE",   [CC_T_SET_STATE] = "SET_STATE",
    [CC_T_SCOPE] = "SCOPE",       [CC_T_ASSERT] = "ASSERT", [CC_T_MAKE] = "MAKE",
    [CC_T_RESHAPES] = "RESHAPES", [CC_T_DROP] = "DROP",     [CC_T_APPLY] = "APPLY",
    [CC_T_CONTEXT] = "CONTEXT",   [CC_T_HELD] = "HELD",     [CC_T_BREAK] = "BREAK",
    [CC_T_UNKNOWN] = "UNKNOWN"};

static PyObject *longs(const int64_t *v, int n) {
    PyObject *t = PyTuple_New(n);
    for (int i = 0; t && i < n; i++) PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(v[i]));
    return t;
}

static PyObject *t_read(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *o;
    int grad = 1;
    if (!PyArg_ParseTuple(args, "O|p", &o, &grad)) return NULL;
    CcTensor t;
    cc_tens_read(o, grad, &t);
    int n = CC_MAX(t.type.ndim, 0);
    return Py_BuildValue("{s:s,s:i,s:i,s:i,s:i,s:N,s:N,s:K,s:i}", "dtype",
                         cc_dtype_info((CcDtype)t.type.dtype)->torch_name, "ndim", t.type.ndim, "device", t.type.device,
                         "index", t.type.device_index, "requires_grad", t.type.requires_grad, "size",
                         longs(t.type.size, n), "stride", longs(t.type.stride, n), "data",
                         (unsigned long long)(uintptr_t)t.data, "matchable", cc_tens_matchable(&t.type));
}

/* match(object, like, grad=True): whether `object` passes the guard built from `like`. */
static PyObject *t_match(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *o, *like;
    int grad = 1;
    if (!PyArg_ParseTuple(args, "OO|p", &o, &like, &grad)) return NULL;
    CcTensor t;
    cc_tens_read(like, grad, &t);
    return PyBool_FromLong(cc_tens_match(o, Py_TYPE(like), &t.type, grad));
}

static PyObject *t_empty(PyObject *m, PyObject *like) {
    (void)m;
    CcTensor t;
    cc_tens_read(like, false, &t);
    void *data = NULL;
    PyObject *o = cc_tens_empty(&t.type, &data);
    return o ? Py_BuildValue("NK", o, (unsigned long long)(uintptr_t)data) : NULL;
}

static PyObject *t_describe(PyObject *m, PyObject *o) {
    (void)m;
    CcTensor t;
    cc_tens_read(o, true, &t);
    CcSbuf sb = {0};
    cc_tens_describe(&t.type, &sb);
    PyObject *s = PyUnicode_FromString(cc_sbuf_text(&sb));
    cc_sbuf_free(&sb);
    return s;
}

static PyObject *t_kinds(PyObject *m, PyObject *o) {
    (void)m;
    return Py_BuildValue("iii", cc_tens_plain(o), cc_tens_is(o), cc_tens_constant(o));
}

static PyObject *t_fallback(PyObject *m, PyObject *on) {
    (void)m;
    cc_tens_force_fallback(on == Py_True);
    cc_mode_force_fallback(on == Py_True);
    Py_RETURN_NONE;
}

static PyObject *t_mode(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    CcMode mode;
    cc_mode_read(&mode);
    PyObject *d = PyDict_New();
    for (int i = 0; d && i < cc_mode_count(); i++) {
        PyObject *v = PyLong_FromSsize_t(mode.v[i]);
        if (!v || PyDict_SetItemString(d, cc_mode_name(i), v)) Py_CLEAR(d);
        Py_XDECREF(v);
    }
    return d;
}

static PyObject *t_mode_refuse(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    CcMode mode;
    cc_mode_read(&mode);
    return Py_BuildValue("z", cc_mode_refusal(&mode));
}

static CcMode saved;

static PyObject *t_mode_save(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    cc_mode_read(&saved);
    Py_RETURN_NONE;
}

static PyObject *t_mode_restore(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    cc_mode_restore(&saved);
    Py_RETURN_NONE;
}

/* (equal to the saved state, name of the first row that differs, grad mode, threads) */
static PyObject *t_mode_diff(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    CcMode mode;
    cc_mode_read(&mode);
    return Py_BuildValue("izii", cc_mode_same(&saved, &mode), cc_mode_diff(&saved, &mode), cc_mode_grad(&mode),
                         cc_mode_threads());
}

/* Arranges positional and keyword arguments as for a vectorcall. *names: new reference or NULL. */
enum { MAX_ARGS = 24 };
static Py_ssize_t spread(PyObject *pos, PyObject *kw, PyObject **v, PyObject **names) {
    Py_ssize_t n = PyTuple_GET_SIZE(pos), k = 0, at = 0;
    PyObject *name, *value;
    *names = NULL;
    if (n + (kw ? PyDict_GET_SIZE(kw) : 0) > MAX_ARGS) return -1;
    for (Py_ssize_t i = 0; i < n; i++) v[i] = PyTuple_GET_ITEM(pos, i);
    if (!kw || !PyDict_GET_SIZE(kw)) return n;
    *names = PyTuple_New(PyDict_GET_SIZE(kw));
    while (PyDict_Next(kw, &at, &name, &value)) {
        PyTuple_SET_ITEM(*names, k, Py_NewRef(name));
        v[n + k++] = value;
    }
    return n;
}

static PyObject *torch_tuple(CcTorch t) {
    return Py_BuildValue("{s:s,s:I,s:z,s:z,s:O}", "cls", CLASS[t.cls], "flags", t.node_flags, "name", t.name, "why",
                         t.why, "dynamic", t.dynamic_shape ? Py_True : Py_False);
}

static PyObject *t_call(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *f, *pos, *kw = NULL, *v[MAX_ARGS], *names;
    if (!PyArg_ParseTuple(args, "OO!|O!", &f, &PyTuple_Type, &pos, &PyDict_Type, &kw)) return NULL;
    Py_ssize_t n = spread(pos, kw, v, &names);
    if (n < 0) return PyErr_Format(PyExc_ValueError, "more than %d arguments", MAX_ARGS);
    CcTorch t = cc_torch_call(f, v, n, names);
    Py_XDECREF(names);
    return torch_tuple(t);
}

static PyObject *t_attr(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *o, *name;
    if (!PyArg_ParseTuple(args, "OU", &o, &name)) return NULL;
    return torch_tuple(cc_torch_attr(o, name));
}

static PyObject *bound(int rc, const CcBound *b) {
    if (rc) Py_RETURN_NONE;
    PyObject *list = PyList_New(b->n);
    for (int i = 0; list && i < b->n; i++) {
        const CcOperand *c = &b->in[i].constant;
        PyObject *o;
        if (b->in[i].tensor) o = Py_NewRef(b->in[i].tensor);
        else if (c->kind == CC_IN_INT) o = PyLong_FromLongLong(c->i);
        else if (c->kind == CC_IN_FLOAT) o = PyFloat_FromDouble(c->f);
        else if (c->kind == CC_IN_BOOL) o = PyBool_FromLong((long)c->i);
        else o = Py_NewRef(Py_None);
        PyList_SET_ITEM(list, i, o);
    }
    return Py_BuildValue("sN", cc_op_info(b->op)->name, list);
}

static PyObject *t_bind(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *f, *pos, *kw = NULL, *v[MAX_ARGS], *names;
    if (!PyArg_ParseTuple(args, "OO!|O!", &f, &PyTuple_Type, &pos, &PyDict_Type, &kw)) return NULL;
    Py_ssize_t n = spread(pos, kw, v, &names);
    if (n < 0) return PyErr_Format(PyExc_ValueError, "more than %d arguments", MAX_ARGS);
    CcBound b;
    int rc = cc_bind_call(f, v, n, names, &b);
    Py_XDECREF(names);
    return bound(rc, &b);
}

static PyObject *t_bind_binop(PyObject *m, PyObject *args) {
    (void)m;
    int op, inplace = 0;
    PyObject *x, *y;
    if (!PyArg_ParseTuple(args, "iOO|p", &op, &x, &y, &inplace)) return NULL;
    CcBound b;
    return bound(cc_bind_binop((CcBinop)op, inplace, x, y, &b), &b);
}

static PyObject *t_bind_unary(PyObject *m, PyObject *args) {
    (void)m;
    int op;
    PyObject *x;
    if (!PyArg_ParseTuple(args, "CO", &op, &x)) return NULL;
    CcBound b;
    return bound(cc_bind_unary(op, x, &b), &b);
}

static PyObject *t_bind_compare(PyObject *m, PyObject *args) {
    (void)m;
    int op;
    PyObject *x, *y;
    if (!PyArg_ParseTuple(args, "iOO", &op, &x, &y)) return NULL;
    CcBound b;
    return bound(cc_bind_compare(op, x, y, &b), &b);
}

static PyObject *t_bind_rows(PyObject *m, PyObject *unused) {
    (void)m, (void)unused;
    PyObject *list = PyList_New(0);
    bool known = false;
    const char *op, *callables = NULL;
    for (int i = 0; list && (op = cc_bind_row(i, &known, &callables)); i++) {
        PyObject *t = Py_BuildValue("sis", op, known, callables);
        if (!t || PyList_Append(list, t)) Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}

/* Nanoseconds per call of each entry point. */
static PyObject *t_bench(PyObject *m, PyObject *args) {
    (void)m;
    PyObject *o, *f;
    int n;
    if (!PyArg_ParseTuple(args, "OOi", &o, &f, &n)) return NULL;
    CcTensor t;
    CcMode mode;
    uint64_t at[9], sink = 0;
    at[0] = cc_log_now_ns();
    for (int i = 0; i < n; i++) cc_tens_read(o, false, &t), sink += (uint64_t)t.type.size[0];
    at[1] = cc_log_now_ns();
    for (int i = 0; i < n; i++) cc_tens_read(o, true, &t), sink += (uint64_t)t.type.size[0];
    at[2] = cc_log_now_ns();
    for (int i = 0; i < n; i++) sink += cc_tens_match(o, Py_TYPE(o), &t.type, false);
    at[3] = cc_log_now_ns();
    for (int i = 0; i < n; i++) sink += cc_tens_match(o, Py_TYPE(o), &t.type, true);
    at[4] = cc_log_now_ns();
    for (int i = 0; i < n; i++) {
        PyObject *e = cc_tens_empty(&t.type, NULL);
        if (!e) return NULL;
        Py_DECREF(e);
    }
    at[5] = cc_log_now_ns();
    for (int i = 0; i < n; i++) cc_mode_read(&mode), sink += (uint64_t)mode.v[0];
    at[6] = cc_log_now_ns();
    for (int i = 0; i < n; i++) sink += (uint64_t)cc_torch_call(f, &o, 1, NULL).cls;
    at[7] = cc_log_now_ns();
    CcBound b;
    for (int i = 0; i < n; i++) sink += (uint64_t)cc_bind_call(f, &o, 1, NULL, &b);
    at[8] = cc_log_now_ns();
    static const char *const what[] = {"read",  "read+grad", "match",      "match+grad",
                                       "empty", "mode",      "torch_call", "bind"};
    PyObject *d = PyDict_New();
    for (int i = 0; d && i < CC_COUNT(what); i++) {
        PyObject *ns = PyFloat_FromDouble((double)(at[i + 1] - at[i]) / n);
        if (!ns || PyDict_SetItemString(d, what[i], ns)) Py_CLEAR(d);
        Py_XDECREF(ns);
    }
    return sink ? d : d;
}

static PyMethodDef METHODS[] = {
    {"read", t_read, METH_VARARGS, NULL},
    {"match", t_match, METH_VARARGS, NULL},
    {"empty", t_empty, METH_O, NULL},
    {"describe", t_describe, METH_O, NULL},
    {"kinds", t_kinds, METH_O, NULL},
    {"fallback", t_fallback, METH_O, NULL},
    {"mode", t_mode, METH_NOARGS, NULL},
    {"mode_refuse", t_mode_refuse, METH_NOARGS, NULL},
    {"mode_save", t_mode_save, METH_NOARGS, NULL},
    {"mode_restore", t_mode_restore, METH_NOARGS, NULL},
    {"mode_diff", t_mode_diff, METH_NOARGS, NULL},
    {"call", t_call, METH_VARARGS, NULL},
    {"attr", t_attr, METH_VARARGS, NULL},
    {"bind", t_bind, METH_VARARGS, NULL},
    {"bind_binop", t_bind_binop, METH_VARARGS, NULL},
    {"bind_unary", t_bind_unary, METH_VARARGS, NULL},
    {"bind_compare", t_bind_compare, METH_VARARGS, NULL},
    {"bind_rows", t_bind_rows, METH_NOARGS, NULL},
    {"bench", t_bench, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int exec(PyObject *m) {
    PyObject *torch = PyImport_ImportModule("torch");
    if (!torch) return -1;
    uint64_t t0 = cc_log_now_ns();
    int rc = cc_tens_init(torch);
    Py_DECREF(torch);
    if (rc) return -1;
    return PyModule_AddObject(m, "init_ms", PyFloat_FromDouble((double)(cc_log_now_ns() - t0) / 1e6));
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)exec}, {0, NULL}};
static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_tenstest", "tens/ for tests", 0, METHODS, SLOTS, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__tenstest(void);
PyMODINIT_FUNC PyInit__tenstest(void) { return PyModuleDef_Init(&MODULE); }
