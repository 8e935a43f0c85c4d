/* Calls. A call is normalised first (bound methods and builtin methods give their self as the first argument, f(*a, **k)
 * becomes a plain argument list), then classified: Python function (it comes as a frame), torch op (node), or a row of
 * callee.def; what has no row is a break. before() decides, after() writes down. */
#include "rec_int.h"

enum { MAX_ARGS = 250 };

typedef struct Call {
    PyObject *func;               /* what is called in the end */
    PyObject *in[MAX_ARGS];       /* self, positional, keyword values: borrowed */
    int n;
    PyObject *kwnames;            /* borrowed */
} Call;

static const char *type_name(PyObject *o) { return Py_TYPE(o)->tp_name; }
static CcCallUnwrap unwrap_hook;
static CC_VEC(struct Special { PyObject *object; CcReason reason; }) specials;

void cc_call_special(PyObject *callable_or_type, CcReason reason)
{
    cc_vec_push(&specials, (struct Special){Py_NewRef(callable_or_type), reason});
}

void cc_call_set_unwrap(CcCallUnwrap unwrap) { unwrap_hook = unwrap; }

static const struct Special *find_special(PyObject *callable)
{
    for (int i = 0; i < specials.n; i++)
        if (specials.at[i].object == callable || specials.at[i].object == (PyObject *)Py_TYPE(callable)) return &specials.at[i];
    return NULL;
}

bool cc_call_is_special(PyObject *o) { return find_special(o) != NULL; }

static PyObject *dunder_call(PyObject *o)
{
    static PyObject *name;
    if (name == NULL) name = PyUnicode_InternFromString("__call__");
    if (!cc_python_class(Py_TYPE(o)) || PyType_Check(o)) return NULL;
    return cc_type_lookup(Py_TYPE(o), name);
}

PyFunctionObject *cc_call_function(PyObject *callable)
{
    for (int depth = 0; depth < 8 && callable != NULL; depth++) {
        if (PyFunction_Check(callable)) return (PyFunctionObject *)callable;
        PyObject *inner = unwrap_hook != NULL ? unwrap_hook(callable) : NULL;
        if (inner == NULL) inner = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : dunder_call(callable);
        callable = inner;
    }
    return NULL;
}

static bool put(Call *c, PyObject *o)
{
    if (c->n >= MAX_ARGS) return false;
    c->in[c->n++] = o;
    return true;
}

/* f(*tuple, **dict) as a plain list; its keyword names are kept alive by the recording. */
static bool flatten(CcRec *rec, Call *c, PyObject *args, PyObject *kwargs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (!put(c, PyTuple_GET_ITEM(args, i))) return false;
    if (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 0) return true;
    PyObject *names = PyTuple_New(PyDict_GET_SIZE(kwargs)), *key, *value;
    if (names == NULL) abort();
    cc_vec_push(&rec->keep, names);
    Py_ssize_t pos = 0, i = 0;
    while (PyDict_Next(kwargs, &pos, &key, &value)) {
        PyTuple_SET_ITEM(names, i++, Py_NewRef(key));
        if (!put(c, value)) return false;
    }
    c->kwnames = names;
    return true;
}

static bool is_partial(PyObject *o) { return strcmp(type_name(o), "functools.partial") == 0; }

/* What a partial object was made of: borrowed, they live as long as it does. */
static void partial_parts(PyObject *o, PyObject **func, PyObject **args, PyObject **keywords)
{
    PyObject **part[] = {func, args, keywords};
    static const char *const names[] = {"func", "args", "keywords"};
    for (int i = 0; i < CC_COUNT(part); i++) {
        *part[i] = PyObject_GetAttrString(o, names[i]);
        if (*part[i] == NULL) abort();
        Py_DECREF(*part[i]);
    }
}

/* The partial object's keywords, and then the call's: of two with one name the call's counts, in the first one's place. */
static bool join_keywords(CcRec *rec, Call *c, PyObject *keywords)
{
    if (PyDict_GET_SIZE(keywords) == 0) return true;
    const int n_kw = c->kwnames != NULL ? (int)PyTuple_GET_SIZE(c->kwnames) : 0, first = c->n - n_kw;
    PyObject *all = PyDict_Copy(keywords);
    if (all == NULL) abort();
    for (int i = 0; i < n_kw; i++)
        if (PyDict_SetItem(all, PyTuple_GET_ITEM(c->kwnames, i), c->in[first + i]) < 0) abort();
    cc_vec_push(&rec->keep, all);
    PyObject *names = PyTuple_New(PyDict_GET_SIZE(all)), *key, *value;
    if (names == NULL) abort();
    cc_vec_push(&rec->keep, names);
    c->n = first;
    c->kwnames = names;
    Py_ssize_t pos = 0, i = 0;
    while (PyDict_Next(all, &pos, &key, &value)) {
        PyTuple_SET_ITEM(names, i++, Py_NewRef(key));
        if (!put(c, value)) return false;
    }
    return true;
}

/* False: too many arguments. in[0] is the callable; CALL_EX when kwnames is NULL and in = {callable, tuple, dict}. */
static bool normalise(CcRec *rec, Call *c, PyObject *const *in, int n, PyObject *kwnames, bool ex)
{
    PyObject *keywords = NULL, *args;
    c->func = in[0];
    c->n = 0;
    c->kwnames = kwnames;
    if (is_partial(c->func)) partial_parts(in[0], &c->func, &args, &keywords);
    if (PyMethod_Check(c->func)) {
        put(c, PyMethod_GET_SELF(c->func));
        c->func = PyMethod_GET_FUNCTION(c->func);
    } else {
        PyObject *self = cc_callee_self(c->func), *unbound = self != NULL ? cc_callee_unbound(c->func) : NULL;
        if (unbound != NULL) {
            put(c, self);
            c->func = unbound;
        }
    }
    if (keywords != NULL && !flatten(rec, c, args, NULL)) return false;
    if (ex && !flatten(rec, c, in[1], n > 2 ? in[2] : NULL)) return false;
    for (int i = 1; !ex && i < n; i++)
        if (!put(c, in[i])) return false;
    return keywords == NULL || join_keywords(rec, c, keywords);
}

static int n_positional(const Call *c)
{
    return c->n - (c->kwnames != NULL ? (int)PyTuple_GET_SIZE(c->kwnames) : 0);
}

static bool any_tensor(const Call *c, int depth)
{
    for (int i = 0; i < c->n; i++)
        if (cc_value_has_tensor(c->in[i], depth)) return true;
    return false;
}

static const char *callable_name(PyObject *f, char *buffer, size_t n)
{
    PyObject *name = PyObject_GetAttrString(f, "__qualname__");
    if (name == NULL) PyErr_Clear();
    const char *s = name != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    snprintf(buffer, n, "%s", s != NULL ? s : type_name(f));
    Py_XDECREF(name);
    return buffer;
}

static CcCallSpec spec_of(const Call *c, const char *name)
{
    return (CcCallSpec){.form = CC_F_CALL, .target = c->func, .kwnames = c->kwnames, .in = c->in, .n = c->n, .name = name};
}

/* ------------------------------------------------------------------ torch */

static bool plain_inside(PyObject *o, int depth)
{
    if (cc_tens_any(o)) return cc_tens_plain(o);
    if (depth > 0 && (PyTuple_Check(o) || PyList_Check(o)))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!plain_inside(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
    return true;
}

/* Copies the numbers of a list: they are data of the node, not constants of the trace. */
static bool takes_data(const CcTorch *t)
{
    return t->name != NULL && (strcmp(t->name, "torch.tensor") == 0 || strcmp(t->name, "torch.as_tensor") == 0);
}

static CcGo torch_operands(CcRec *rec, CcAct *act, const Call *c, bool data_first)
{
    for (int i = 0; i < c->n; i++) {
        if (!plain_inside(c->in[i], 2)) return cc_rec_break(rec, act, CC_R_TENSOR_SUBCLASS, type_name(c->in[i]));
        const CcDirty d = cc_value_dirty(rec, c->in[i]);
        if (d != CC_DIRTY_NO) return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(c->in[i]));
        if (!cc_node_nameable(rec, c->in[i], 4)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(c->in[i]));
        if (i == 0 && data_first && cc_value_structure(rec, c->in[i], 4)) continue;
        const bool container = PyList_Check(c->in[i]) || PyTuple_Check(c->in[i]) || PyDict_Check(c->in[i]);
        if (container && !cc_value_content(rec, c->in[i], 4)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(c->in[i]));
    }
    return CC_OK;
}

static CcGo torch_before(CcRec *rec, CcAct *act, CcEvent *ev, const Call *c, const CcTorch *t)
{
    switch (t->cls) {
    case CC_T_STATE:
    case CC_T_DROP: return CC_OK;
    case CC_T_META:
        for (int i = 0; i < c->n; i++)
            if (cc_node_unsized(rec, c->in[i]) && cc_node_tells_size(t->name)) return cc_rec_break(rec, act, CC_R_DATA_SHAPE, t->name);
        if (!cc_node_tells_size(t->name)) return CC_OK;
        const CcCallSpec spec = spec_of(c, t->name != NULL ? t->name : "metadata");
        return cc_sym_call(rec, act, ev, &spec);
    case CC_T_VALUE: return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, t->name);
    case CC_T_BREAK: return cc_rec_break(rec, act, CC_R_TORCH_EFFECT, t->name);
    case CC_T_APPLY:
    case CC_T_CONTEXT: return cc_node_grad_mode() ? cc_rec_break(rec, act, CC_R_TORCH_EFFECT, t->name) : CC_OK;
    case CC_T_UNKNOWN:
        if (!any_tensor(c, 2)) {
            char name[96];
            return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callable_name(c->func, name, sizeof name));
        }
        break;
    default: break;
    }
    return torch_operands(rec, act, c, takes_data(t));
}

static CcGo torch_after(CcRec *rec, CcAct *act, const Call *c, const CcTorch *t, PyObject *result)
{
    if (result == NULL)   /* whether it raises may depend on data */
        return any_tensor(c, 2) && t->cls != CC_T_META ? cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises") : CC_OK;
    const CcRecFrame *f = cc_rec_frame(rec, act);
    switch (t->cls) {
    case CC_T_APPLY: return cc_opaque_apply_after(rec, act, c->func, result);
    case CC_T_CONTEXT: return CC_OK;
    case CC_T_META:
    case CC_T_STATE:
    case CC_T_DROP:
        if (cc_value_origin(rec, result) == CC_O_UNKNOWN) cc_value_fresh(rec, result);
        return CC_OK;
    default: break;
    }
    if (rec->trace->graph->node.n != f->call_nodes && t->cls == CC_T_UNKNOWN) return CC_OK;
    unsigned flags = t->node_flags;
    if (t->cls == CC_T_SET_STATE) flags |= CC_N_EFFECT;
    if (t->cls == CC_T_UNKNOWN) {
        if (!cc_value_has_tensor(result, 1)) return cc_rec_poison(rec, act, CC_R_UNKNOWN_CALL, t->name ? t->name : "torch function");
        flags |= CC_N_EFFECT;
    }
    bool symbolic = false;
    for (int i = 0; i < c->n; i++) symbolic = symbolic || cc_value_symbolic(rec, c->in[i]);
    CcBound bound;
    const Py_ssize_t n_kw = c->kwnames != NULL ? PyTuple_GET_SIZE(c->kwnames) : 0;
    const int status = symbolic ? -1 : cc_bind_call(c->func, c->in, c->n - n_kw, c->kwnames, &bound);
    const CcCallSpec spec = {.form = CC_F_CALL, .target = c->func, .kwnames = c->kwnames, .in = c->in, .n = c->n,
                             .name = t->name, .flags = flags, .bound = status == 0 ? &bound : NULL, .dynamic = t->dynamic_shape,
                             .state = t->cls == CC_T_SET_STATE, .safe = t->cls == CC_T_OP && !t->raises};
    return cc_node_add(rec, act, &spec, result);
}

/* ------------------------------------------------------------------ classes */

/* tp_new and tp_init of CPython's own types; heap classes inherit them or have the slot versions, whose Python code is
 * recorded as frames. */
static newfunc slot_new;
static initproc slot_init;

int cc_call_init(void)
{
    PyObject *ns = PyDict_New();
    if (ns == NULL || PyDict_SetItemString(ns, "__builtins__", PyEval_GetBuiltins()) < 0) return -1;
    PyObject *r = PyRun_String("class A:\n def __new__(cls): pass\n def __init__(self): pass\n", Py_file_input, ns, ns);
    if (r == NULL) return -1;
    Py_DECREF(r);
    const PyTypeObject *a = (PyTypeObject *)PyDict_GetItemString(ns, "A");
    slot_new = a->tp_new;
    slot_init = a->tp_init;
    Py_DECREF(ns);
    return 0;
}

static bool known_class(PyTypeObject *t)
{
    PyTypeObject *const bases[] = {&PyBaseObject_Type, &PyDict_Type, &PyList_Type, &PyTuple_Type, &PySet_Type,
                                   &PyFrozenSet_Type, &PyODict_Type, &PyLong_Type, &PyFloat_Type, &PyUnicode_Type};
    bool make = t->tp_new == slot_new, init = t->tp_init == slot_init || t->tp_init == NULL;
    for (int i = 0; i < CC_COUNT(bases); i++) {
        make = make || t->tp_new == bases[i]->tp_new;
        init = init || t->tp_init == bases[i]->tp_init;
    }
    return make && init;
}

static CcGo class_before(CcRec *rec, CcAct *act, const Call *c)
{
    PyTypeObject *t = (PyTypeObject *)c->func;
    if (PyExceptionClass_Check(c->func) && !cc_python_class(t)) return CC_OK;
    if (!cc_python_class(t) || (!known_class(t) && !PyExceptionClass_Check(c->func)))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, t->tp_name);
    PyTypeObject *meta = Py_TYPE(t);
    if (meta != &PyType_Type && !cc_python_class(meta))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, meta->tp_name);
    for (int i = 0; i < c->n; i++)
        if (cc_value_origin(rec, c->in[i]) == CC_O_UNKNOWN)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(c->in[i]));
    return CC_OK;
}

static void guard_class(CcRec *rec, PyTypeObject *t)
{
    static const char *const names[] = {"__new__", "__init__"};
    if (!cc_python_class(t)) return;
    for (int i = 0; i < CC_COUNT(names); i++) {
        PyObject *s = PyUnicode_InternFromString(names[i]);
        if (s == NULL) abort();
        cc_value_read(rec, CC_SRC_TLOOK, cc_value_const_source(rec, (PyObject *)t), s, 0, 0, cc_type_lookup(t, s));
        Py_DECREF(s);
    }
}

/* ------------------------------------------------------------------ rows of callee.def: before */

static PyObject *dict_name(void)
{
    static PyObject *name;
    if (name == NULL) name = PyUnicode_InternFromString("__dict__");
    return name;
}

static bool takes_items(const CcCallee *callee)
{
    return strstr(callee->name, "extend") != NULL || strstr(callee->name, "update") != NULL;
}

static bool looks_inside(CcCalleeKind k) { return k == CC_CALLEE_PURE || k == CC_CALLEE_ARITH || k == CC_CALLEE_VALUE; }

/* Compares the elements with one another. */
static bool orders(const CcCallee *callee)
{
    return strcmp(callee->name, "sorted") == 0 || strcmp(callee->name, "list.sort") == 0 || strncmp(callee->name, "_heapq.", 7) == 0;
}

static CcGo contents(CcRec *rec, CcAct *act, const Call *c, int from, int depth)
{
    for (int i = from; i < c->n; i++) {
        PyObject *o = c->in[i];
        if (cc_value_const(o) || cc_value_ident(o) || PyExceptionInstance_Check(o)) continue;
        if (cc_value_dirty(rec, o) != CC_DIRTY_NO) return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(o));
        if (PyIter_Check(o) && cc_value_origin(rec, o) != CC_O_FRESH && !cc_python_class(Py_TYPE(o)))
            return cc_rec_break(rec, act, CC_R_OUTSIDE_ITER, type_name(o));
        if (!cc_value_content(rec, o, depth)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(o));
    }
    return CC_OK;
}

static void pin_all(CcRec *rec, const Call *c)
{
    for (int i = 0; i < c->n; i++) {
        if (cc_value_symbolic(rec, c->in[i])) cc_value_pin(rec, c->in[i]);
        cc_sym_pin(rec, c->in[i]);
    }
}

static bool any_computed(CcRec *rec, const Call *c)
{
    for (int i = 0; i < c->n; i++)
        if (!cc_number_settle(rec, c->in[i], 4)) return true;
    return false;
}

enum { MAX_CALLBACKS = 4 };

/* What C code is given to call: sorted(key=...), map(f, ...). Their places among the arguments. */
static int callbacks(const Call *c, const CcCallee *callee, int *at)
{
    static const char *const first[] = {"map", "filter", "itertools.starmap", "itertools.takewhile", "itertools.dropwhile",
                                        "itertools.filterfalse"};
    int n = 0;
    for (int i = 0; i < CC_COUNT(first); i++)
        if (strcmp(callee->name, first[i]) == 0 && n_positional(c) > 0) at[n++] = 0;
    if (strcmp(callee->name, "itertools.accumulate") == 0 && n_positional(c) > 1) at[n++] = 1;
    if (strcmp(callee->name, "itertools.groupby") == 0 && n_positional(c) > 1) at[n++] = 1;
    for (int i = n_positional(c); i < c->n && n < MAX_CALLBACKS; i++) {
        PyObject *name = PyTuple_GET_ITEM(c->kwnames, i - n_positional(c));
        if ((PyUnicode_CompareWithASCIIString(name, "key") == 0 || PyUnicode_CompareWithASCIIString(name, "func") == 0) &&
            (callee->kind == CC_CALLEE_PURE || callee->kind == CC_CALLEE_ITER || orders(callee)))
            at[n++] = i;
    }
    return n;
}

static bool callbacks_known(CcRec *rec, const Call *c, const CcCallee *callee)
{
    int at[MAX_CALLBACKS];
    const int n = callbacks(c, callee, at);
    for (int i = 0; i < n; i++)
        if (cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_NOT) return false;
    if (strcmp(callee->name, "collections.defaultdict") != 0 || n_positional(c) == 0 || PyType_Check(c->in[0])) return true;
    return cc_backcall_kind(rec, c->in[0]) == CC_BACK_SEEN;
}

/* list.index(o) stops at the first element that is o or equals it: tensors behind that are not looked at. */
static bool found_before_tensor(PyObject *list, PyObject *o)
{
    if (!PyList_Check(list) && !PyTuple_Check(list)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(list, i);
        if (item == o) return true;
        if (!cc_value_const(item) || !cc_value_const(o)) return false;
        if ( PyObject_RichCompareBool(item, o, Py_EQ) == 1) return true;
    }
    return false;
}

static bool hashes(const CcCallee *callee)
{
    static const char *const names[] = {"set.", "dict.__", "dict.setdefault", "dict.pop", "OrderedDict.", ".remove"};
    if (callee->kind == CC_CALLEE_GETATTR || callee->kind == CC_CALLEE_SETATTR || callee->kind == CC_CALLEE_DICT_GET) return true;
    if (callee->kind != CC_CALLEE_WRITE && callee->kind != CC_CALLEE_READ_WRITE) return false;
    for (int i = 0; i < CC_COUNT(names); i++)
        if (strstr(callee->name, names[i]) != NULL) return true;
    return false;
}

/* C code that is called with symbols, or with tensors of symbolic sizes: CC_DONE when it is a step; what looks at symbols in
 * any other way makes constants of them. */
static CcGo symbols_before(CcRec *rec, CcAct *act, CcEvent *ev, const Call *c, const CcCallee *callee)
{
    const CcCallSpec spec = spec_of(c, callee->name);
    bool within = false;
    for (int i = 0; i < c->n; i++) within = within || cc_sym_within(rec, c->in[i], 4);
    switch (callee->kind) {
    case CC_CALLEE_GETATTR:
        return c->n == 2 && strcmp(callee->name, "getattr") == 0 ? cc_sym_attr(rec, act, ev, c->in[0], c->in[1]) : CC_OK;
    case CC_CALLEE_PURE:
    case CC_CALLEE_ARITH:
    case CC_CALLEE_VALUE:
        return within && c->kwnames == NULL && !any_tensor(c, 4) ? cc_sym_call(rec, act, ev, &spec) : CC_OK;
    case CC_CALLEE_READ:
        if (c->n == 1 && strcmp(callee->name, "len") == 0 && cc_sym_sized(rec, c->in[0])) return cc_sym_call(rec, act, ev, &spec);
        break;
    case CC_CALLEE_READ_WRITE:
        for (int i = 0; within && i < c->n; i++) cc_sym_settle(rec, c->in[i], 4);
        break;
    case CC_CALLEE_WRITE:
        if (within && c->n > 1 && strstr(callee->name, "__setitem__") != NULL) cc_sym_settle(rec, c->in[1], 3);
        break;
    case CC_CALLEE_ITER: cc_sym_unseen(rec, c->in, c->n); break;
    default: break;
    }
    return CC_OK;
}

/* operator.getitem and setitem of a tensor are what x[i] and x[i] = v are. */
static CcEvent item_event(const Call *c, PyObject *result)
{
    return (CcEvent){.kind = c->n == 2 ? CC_EV_SUBSCR : CC_EV_STORE_SUBSCR, .in = c->in, .n = c->n, .result = result};
}

static CcGo item_before(CcRec *rec, CcAct *act, const Call *c)
{
    CcEvent ev = item_event(c, NULL);
    return cc_op_before(rec, act, &ev);
}

static CcGo item_after(CcRec *rec, CcAct *act, const Call *c, PyObject *result)
{
    CcEvent ev = item_event(c, result);
    if (!cc_tens_any(c->in[0])) return CC_OK;
    return result == NULL ? cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises") : cc_op_after(rec, act, &ev);
}

static CcGo row_before(CcRec *rec, CcAct *act, const Call *c, const CcCallee *callee)
{
    const CcCalleeKind k = callee->kind;
    if (!callbacks_known(rec, c, callee)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    for (int i = 0; i < c->n; i++)
        if (!PyExceptionInstance_Check(c->in[i]) && cc_value_origin(rec, c->in[i]) == CC_O_UNKNOWN)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(c->in[i]));
    if (c->n > 1 && hashes(callee))   /* what is hashed or compared has to be a constant */
        for (int i = 1; i < (strncmp(callee->name, "set.", 4) == 0 ? c->n : 2); i++)
            if (!cc_number_settle(rec, c->in[i], 2)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    switch (k) {
    case CC_CALLEE_PRINT: return cc_rec_break(rec, act, CC_R_PRINT, callee->name);
    case CC_CALLEE_CLASS: return cc_rec_break(rec, act, CC_R_CLASS, "class statement");
    case CC_CALLEE_VARS: return c->n == 1 ? cc_attr_before(rec, act, c->in[0], dict_name())
                                          : cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "vars");
    case CC_CALLEE_TYPE: return c->n == 1 ? CC_OK : cc_rec_break(rec, act, CC_R_CLASS, "type()");
    case CC_CALLEE_LOOK:
    case CC_CALLEE_ABC:
    case CC_CALLEE_SUPER:
    case CC_CALLEE_CALLS:
    case CC_CALLEE_CTX_GET:
    case CC_CALLEE_CTX_SET:
    case CC_CALLEE_PICKLE:
    case CC_CALLEE_NONE: return CC_OK;
    case CC_CALLEE_GETATTR:
    case CC_CALLEE_OBJ_GETATTR:
        return c->n >= 2 ? cc_attr_before(rec, act, c->in[0], c->in[1]) : CC_OK;
    case CC_CALLEE_SETATTR:
        return c->n >= 2 ? cc_attr_store_before(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL) : CC_OK;
    case CC_CALLEE_OBJ_SETATTR: return cc_tens_any(c->in[0]) ? cc_rec_break(rec, act, CC_R_TORCH_EFFECT, "setattr") : CC_OK;
    case CC_CALLEE_DICT_GET: {
        if (c->n < 2) return CC_OK;
        const CcDirty d = cc_value_dirty_key(rec, c->in[0]) == CC_DIRTY_ALL ? cc_value_dirty(rec, c->in[0]) : CC_DIRTY_NO;
        if (cc_value_symbolic(rec, c->in[1])) cc_value_pin(rec, c->in[1]);
        cc_sym_settle(rec, c->in[1], 3);
        if (d == CC_DIRTY_ALL) return cc_rec_break(rec, act, CC_R_DIRTY_READ, type_name(c->in[0]));
        return cc_value_const(c->in[1]) || cc_value_ident(c->in[1]) ? CC_OK : contents(rec, act, c, 0, 1);
    }
    case CC_CALLEE_WRITE:
        cc_value_will_write(rec, c->in[0]);
        if (strcmp(callee->name, "set.add") == 0 && n_positional(c) > 1 && !cc_value_membership(rec, c->in[0], c->in[1]))
            return cc_rec_break(rec, act, CC_R_TENSOR_ITER, callee->name);
        if (takes_items(callee) && n_positional(c) > 1 && !cc_tens_any(c->in[1])) return contents(rec, act, c, 1, 1);
        return n_positional(c) > 1 && cc_tens_any(c->in[1]) && strstr(callee->name, "append") == NULL &&
                       strstr(callee->name, "add") == NULL && strstr(callee->name, "set") == NULL
                   ? cc_rec_break(rec, act, CC_R_TENSOR_ITER, callee->name) : CC_OK;
    case CC_CALLEE_READ_WRITE:
        if (!orders(callee)) return contents(rec, act, c, 0, strcmp(callee->name, "list.remove") == 0 ? 4 : 1);
        break;
    case CC_CALLEE_SUM:
    case CC_CALLEE_REDUCE:
        if (any_computed(rec, c)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
        return contents(rec, act, c, 0, 1);
    case CC_CALLEE_NEXT: {
        CcEvent ev = {.kind = CC_EV_NEXT, .in = c->in, .n = 1};
        return cc_op_before(rec, act, &ev);
    }
    case CC_CALLEE_SETITEM:
        if (c->n != 3 || !cc_tens_any(c->in[0])) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
        return item_before(rec, act, c);
    case CC_CALLEE_GETITEM:
        if (c->n == 2 && cc_tens_any(c->in[0])) return item_before(rec, act, c);
        break;
    default: break;
    }
    if (looks_inside(k) && any_tensor(c, 3)) {
        if (k == CC_CALLEE_ARITH) return CC_OK;
        if (c->n == 2 && strstr(callee->name, ".index") != NULL && found_before_tensor(c->in[0], c->in[1]))
            return contents(rec, act, c, 0, 2);
        return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, callee->name);
    }
    if (orders(callee) && c->n > 0 && !PyDict_Check(c->in[0]) && any_tensor(c, 2))
        return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, callee->name);
    if ((looks_inside(k) || orders(callee)) && any_computed(rec, c)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    pin_all(rec, c);
    const bool sets = strcmp(callee->name, "set") == 0 || strstr(callee->name, "frozenset") != NULL || strstr(callee->name, "fromkeys") != NULL;
    for (int i = 0; (looks_inside(k) || orders(callee) || sets) && i < c->n; i++)
        if (!cc_number_settle(rec, c->in[i], 4)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, callee->name);
    return contents(rec, act, c, 0, looks_inside(k) || orders(callee) ? 4 : 1);
}

/* ------------------------------------------------------------------ rows: after */

static CcGo write_effect(CcRec *rec, CcAct *act, const Call *c, const CcCallee *callee, PyObject *result)
{
    PyObject *self = c->in[0];
    const int source = cc_value_source(rec, self);
    if (source < 0) {
        if (takes_items(callee) && c->n > 1) cc_value_pairs(rec, self, c->in[1]);
        return CC_OK;
    }
    PyObject *in[MAX_ARGS];
    memcpy(in, c->in, sizeof *in * (size_t)c->n);
    const int n_pos = c->n - (c->kwnames != NULL ? (int)PyTuple_GET_SIZE(c->kwnames) : 0);
    for (int i = 1; takes_items(callee) && i < n_pos; i++) {   /* what it took is what the argument held then */
        if (PyIter_Check(in[i])) return cc_rec_poison(rec, act, CC_R_OUTSIDE_ITER, callee->name);
        PyObject *copy = PyDict_Check(in[i]) ? PyDict_Copy(in[i]) : PySequence_Tuple(in[i]);
        if (copy == NULL) {
            PyErr_Clear();
            continue;
        }
        cc_vec_push(&rec->keep, copy);
        cc_value_fresh(rec, copy);
        in[i] = copy;
    }
    /* what is read and written was guarded whole before */
    cc_value_wrote(rec, self, callee->kind == CC_CALLEE_READ_WRITE && cc_value_tracked(self)
                                  ? CC_DIRTY_KNOWN : CC_DIRTY_ALL);
    cc_vec_push(&rec->written, source);
    const CcCallSpec spec = {.form = CC_F_CALL, .target = c->func, .kwnames = c->kwnames, .in = in, .n = c->n, .name = callee->name};
    return cc_node_effect(rec, act, &spec, result);
}

static CcGo context_effect(CcRec *rec, CcAct *act, const Call *c, const CcCallee *callee, PyObject *result)
{
    cc_value_written(rec, CC_SRC_CTXVAR, cc_value_const_source(rec, c->in[0]), NULL, false);
    const CcCallSpec spec = {.form = CC_F_CALL, .target = c->func, .in = c->in, .n = c->n, .name = callee->name};
    return cc_node_effect(rec, act, &spec, result);
}

static CcGo dict_get_after(CcRec *rec, const Call *c)
{
    const int source = c->n > 1 && PyDict_Check(c->in[0]) && !cc_value_known(rec, c->in[0]) ? cc_value_source(rec, c->in[0]) : -1;
    if (source >= 0 && (cc_value_const(c->in[1]) || cc_value_ident(c->in[1])))
        cc_value_read(rec, CC_SRC_KEY, source, c->in[1], 0, 0, PyDict_GetItemWithError(c->in[0], c->in[1]));
    return CC_OK;
}

static CcGo arith_after(CcRec *rec, CcAct *act, const Call *c, const CcCallee *callee, PyObject *result)
{
    if (result == NULL || !any_tensor(c, 2)) return CC_OK;
    const CcRecFrame *f = cc_rec_frame(rec, act);
    if (rec->trace->graph->node.n != f->call_nodes) return CC_OK;
    if (!cc_tens_any(result)) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, callee->name);
    for (int i = 0; i < c->n; i++)
        if (!cc_node_nameable(rec, c->in[i], 3)) return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callee->name);
    CcBound bound;
    const CcCallSpec spec = {.form = CC_F_CALL, .target = c->func, .kwnames = c->kwnames, .in = c->in, .n = c->n, .name = callee->name,
                             .bound = cc_bind_call(c->func, c->in, n_positional(c), c->kwnames, &bound) == 0 ? &bound : NULL};
    return cc_node_add(rec, act, &spec, result);
}

/* ref(): the object, or None. It is reached again through the reference. */
static void weakref_after(CcRec *rec, PyObject *ref, PyObject *result)
{
    const int source = cc_value_source(rec, ref);
    if (source >= 0) cc_value_read(rec, CC_SRC_REF, source, NULL, 0, 0, result);
}

static bool plain_weakref(PyObject *o)   /* a subclass may have a __call__ of its own: that is Python code */
{
    return PyWeakref_CheckRef(o) && dunder_call(o) == NULL;
}

static CcGo size_guard(CcRec *rec, const Call *c, const CcCallee *callee)
{
    if (strcmp(callee->name, "len") == 0 && c->n == 1) cc_attr_dunder(rec, c->in[0], "__len__");
    if (strcmp(callee->name, "iter") == 0 && c->n == 1) cc_attr_dunder(rec, c->in[0], "__iter__");
    return CC_OK;
}

/* ABCMeta.register changes what isinstance says; CPython counts all registrations in one number. */
static void guard_registrations(CcRec *rec)
{
    PyObject *abc = PyImport_ImportModule("_abc");
    PyObject *ask = abc != NULL ? PyObject_GetAttrString(abc, "get_cache_token") : NULL;
    PyObject *token = ask != NULL ? PyObject_CallNoArgs(ask) : NULL;
    if (token != NULL) cc_value_read(rec, CC_SRC_ASK, -1, ask, 0, 0, token);
    else PyErr_Clear();
    Py_XDECREF(token);
    Py_XDECREF(ask);
    Py_XDECREF(abc);
}

static CcGo row_after(CcRec *rec, CcAct *act, const Call *c, const CcCallee *callee, PyObject *result)
{
    CcGo go = CC_OK;
    switch (callee->kind) {
    case CC_CALLEE_GETATTR:
        if (c->n < 2) return CC_OK;
        go = cc_attr_after(rec, act, c->in[0], c->in[1],
                           strcmp(callee->name, "hasattr") == 0 || (c->n > 2 && result == c->in[2]) ? NULL : result);
        break;
    case CC_CALLEE_VARS:
        go = cc_attr_after(rec, act, c->in[0], dict_name(), result);
        break;
    case CC_CALLEE_OBJ_GETATTR:
        if (c->n < 2) return CC_OK;
        go = cc_attr_generic_after(rec, act, c->in[0], c->in[1], result);
        break;
    case CC_CALLEE_SETATTR:
        if (result != NULL) go = cc_attr_store(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL);
        break;
    case CC_CALLEE_OBJ_SETATTR:
        if (result != NULL) go = cc_attr_generic_store(rec, act, c->in[0], c->in[1], c->n > 2 ? c->in[2] : NULL);
        break;
    case CC_CALLEE_ABC: guard_registrations(rec); break;
    case CC_CALLEE_DICT_GET: go = dict_get_after(rec, c); break;
    case CC_CALLEE_WRITE:
    case CC_CALLEE_READ_WRITE:
        if (result != NULL) go = write_effect(rec, act, c, callee, result);
        else if ((takes_items(callee) || orders(callee)) && c->n > 0 && cc_value_source(rec, c->in[0]) >= 0)
            go = cc_rec_poison(rec, act, CC_R_OUTSIDE_ITER, callee->name);   /* it may have written before it raised */
        break;
    case CC_CALLEE_CTX_GET:
        cc_value_read(rec, CC_SRC_CTXVAR, cc_value_const_source(rec, c->in[0]), NULL, 0, 0, result);
        break;
    case CC_CALLEE_CTX_SET:
        if (result != NULL) go = context_effect(rec, act, c, callee, result);
        break;
    case CC_CALLEE_SETITEM:
    case CC_CALLEE_GETITEM: go = item_after(rec, act, c, result); break;
    case CC_CALLEE_ARITH: go = arith_after(rec, act, c, callee, result); break;
    case CC_CALLEE_NEXT: {
        CcEvent ev = {.kind = CC_EV_NEXT, .in = c->in, .n = 1, .result = result};
        go = cc_op_after(rec, act, &ev);
        break;
    }
    default: go = size_guard(rec, c, callee); break;
    }
    if (go != CC_OK || result == NULL || PyExceptionInstance_Check(result) || cc_value_origin(rec, result) != CC_O_UNKNOWN) return go;
    if (callee->kind == CC_CALLEE_READ && c->n > 0) cc_value_pairs(rec, result, c->in[0]);
    if (PyAnySet_Check(result) && !cc_value_membership(rec, result, NULL))
        return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, callee->name);
    if (Py_REFCNT(result) == 1 || callee->kind == CC_CALLEE_NEW || callee->kind == CC_CALLEE_ITER ||
        callee->kind == CC_CALLEE_READ || callee->kind == CC_CALLEE_SUPER) {
        cc_value_fresh(rec, result);
        return CC_OK;
    }
    return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callee->name);
}

/* Calls that give C code other C code to call: map(torch.sin, xs), sorted(rows, key=len). It gets Python functions instead,
 * whose calls are seen. CC_OK: there is nothing of the kind. */
static CcGo call_back(CcRec *rec, CcAct *act, CcEvent *ev, Call *c, const CcCallee *callee)
{
    int at[MAX_CALLBACKS], wraps = 0;
    const int n = callbacks(c, callee, at);
    for (int i = 0; i < n; i++) wraps += cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_WRAP;
    const bool adds = strcmp(callee->name, "itertools.accumulate") == 0 && n == 0 && c->n == 1;   /* it adds, unseen */
    if (wraps == 0 && !adds) return CC_OK;
    for (int i = 0; i < n; i++)
        if (cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_WRAP && (c->in[at[i]] = cc_backcall_wrap(rec, c->in[at[i]])) == NULL)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callee->name);
    if (adds) c->in[c->n++] = cc_backcall_add(rec);
    const CcGo go = row_before(rec, act, c, callee);
    if (go != CC_OK) return go;
    for (int i = 0; i < c->n; i++) Py_INCREF(c->in[i]);   /* a recording that is given up drops what it keeps */
    PyObject *kwnames = Py_XNewRef(c->kwnames);
    ev->result = PyObject_Vectorcall(c->func, c->in, (size_t)n_positional(c), kwnames);
    if (rec->trace != NULL && ev->result != NULL) (void)row_after(rec, act, c, callee, ev->result);
    for (int i = 0; i < c->n; i++) Py_DECREF(c->in[i]);
    Py_XDECREF(kwnames);
    return CC_DONE;
}

/* ------------------------------------------------------------------ the two halves */

static CcGo guard_callable(CcRec *rec, PyObject *o)
{
    if (PyMethod_Check(o)) {
        const int source = cc_value_source(rec, o);
        if (source >= 0) {
            cc_value_read(rec, CC_SRC_MSELF, source, NULL, 0, 0, PyMethod_GET_SELF(o));
            cc_value_read(rec, CC_SRC_MFUNC, source, NULL, 0, 0, PyMethod_GET_FUNCTION(o));
        }
    } else if (PyCFunction_Check(o) && cc_callee_self(o) != NULL) {
        const int source = cc_value_source(rec, o);
        if (source >= 0) {
            cc_value_read(rec, CC_SRC_MSELF, source, NULL, 0, 0, PyCFunction_GET_SELF(o));
            PyObject *d = cc_callee_unbound(o);   /* TYPE alone does not tell which method it is */
            if (d != NULL) cc_guard_also(&rec->trace->guards, source, CC_CHK_METHOD, d, -1);
        }
    } else if (dunder_call(o) != NULL) {
        cc_attr_dunder(rec, o, "__call__");
    }
    return CC_OK;
}

static void partial_guards(CcRec *rec, PyObject *o)
{
    static const char *const names[] = {"func", "args", "keywords"};
    const int source = cc_value_source(rec, o);
    for (int i = 0; source >= 0 && i < CC_COUNT(names); i++) {
        PyObject *s = PyUnicode_InternFromString(names[i]), *d = cc_type_lookup(Py_TYPE(o), s);
        PyObject *v = d != NULL ? PyObject_GetAttr(o, s) : NULL;
        Py_XDECREF(s);
        if (v == NULL) {
            PyErr_Clear();
            continue;
        }
        cc_vec_push(&rec->keep, v);
        cc_value_read(rec, CC_SRC_MEMBER, source, d, 0, 0, v);
        cc_value_content(rec, v, 1);
    }
}

/* What the user said about it: disable(reason=...), graph_break(msg). */
static CcGo special_break(CcRec *rec, CcAct *act, CcReason reason, PyObject *const *in, int n)
{
    char name[96], text[256];
    PyObject *said = reason == CC_R_USER && n > 1 ? Py_NewRef(in[1]) : PyObject_GetAttrString(in[0], "reason");
    PyErr_Clear();
    const char *msg = said != NULL && PyUnicode_Check(said) ? PyUnicode_AsUTF8(said) : "";
    if (reason == CC_R_USER) snprintf(text, sizeof text, "%s%s", *msg != '\0' ? ": " : "", msg);
    else snprintf(text, sizeof text, "%s%s%s%s", callable_name(in[0], name, sizeof name), *msg != '\0' ? " (" : "", msg,
                  *msg != '\0' ? ")" : "");
    Py_XDECREF(said);
    return cc_rec_break(rec, act, reason, text);
}

CcGo cc_call_before(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n, PyObject *kwnames)
{
    char name[96];
    const bool ex = ev->kind == CC_EV_CALL_EX;
    if (ex) {
        if (cc_value_dirty(rec, in[1]) || (n > 2 && in[2] != NULL && cc_value_dirty(rec, in[2])) ||
            !cc_value_content(rec, in[1], 1) || (n > 2 && in[2] != NULL && !cc_value_content(rec, in[2], 1)))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "arguments");
    }
    if (cc_value_origin(rec, in[0]) == CC_O_UNKNOWN) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, type_name(in[0]));
    const struct Special *special = find_special(in[0]);
    if (special != NULL) return special_break(rec, act, special->reason, in, n);
    if (unwrap_hook != NULL && unwrap_hook(in[0]) != NULL) return CC_OK;
    guard_callable(rec, in[0]);
    if (is_partial(in[0])) partial_guards(rec, in[0]);
    Call c;
    if (!normalise(rec, &c, in, n, kwnames, ex)) return cc_rec_break(rec, act, CC_R_LIMIT, "arguments");
    if (is_partial(in[0])) guard_callable(rec, c.func);
    ev->result = cc_intrin_call(c.func, act);
    if (ev->result != NULL) return CC_DONE;
    if (cc_opaque_is_op(c.func)) {
        const CcGo go = torch_operands(rec, act, &c, false);
        return go != CC_OK ? go : cc_opaque_op(rec, act, ev, c.func, c.in, c.n, c.kwnames);
    }
    if (PyFunction_Check(c.func))
        return cc_library_recorded((PyFunctionObject *)c.func) ? CC_OK
               : cc_rec_break(rec, act, CC_R_LIBRARY, callable_name(c.func, name, sizeof name));
    const CcCallee callee = cc_callee_find(c.func);
    if (callee.kind != CC_CALLEE_UNKNOWN) {
        CcGo go = call_back(rec, act, ev, &c, &callee);
        if (go == CC_OK) go = symbols_before(rec, act, ev, &c, &callee);
        if (go == CC_OK) go = row_before(rec, act, &c, &callee);
        if (go != CC_OK) return go;
        if (callee.kind == CC_CALLEE_PICKLE) return cc_opaque_reduce(rec, act, ev, c.in, c.n);
        if (strcmp(callee.name, "list.remove") == 0) return cc_backcall_remove(rec, act, ev, c.in, c.n);
        return callee.kind == CC_CALLEE_SUM ? cc_backcall_sum(rec, act, ev, c.in, c.n)
               : callee.kind == CC_CALLEE_REDUCE ? cc_backcall_reduce(rec, act, ev, c.in, c.n) : CC_OK;
    }
    const CcTorch t = cc_torch_call(c.func, c.in, c.n - (c.kwnames ? PyTuple_GET_SIZE(c.kwnames) : 0), c.kwnames);
    if (t.cls != CC_T_NOT) return torch_before(rec, act, ev, &c, &t);
    if (PyType_Check(c.func)) return class_before(rec, act, &c);
    if (plain_weakref(c.func) || (dunder_call(c.func) != NULL && PyFunction_Check(dunder_call(c.func)))) return CC_OK;
    PyObject *gets = cc_backcall_getter(rec, act, c.func);
    if (gets != NULL) {
        Py_INCREF(gets);   /* a recording that is given up drops what it keeps */
        ev->result = PyObject_Vectorcall(gets, c.in, (size_t)n_positional(&c), c.kwnames);
        Py_DECREF(gets);
        return CC_DONE;
    }
    if (cc_backcall_is_cache(c.func)) return cc_backcall_cache(rec, act, ev, c.func, c.in, c.n, c.kwnames);
    return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callable_name(c.func, name, sizeof name));
}

CcGo cc_call_after(CcRec *rec, CcAct *act, PyObject *const *in, int n, PyObject *kwnames, PyObject *result)
{
    const bool ex = act->event != NULL && act->event->kind == CC_EV_CALL_EX;
    if (unwrap_hook != NULL && unwrap_hook(in[0]) != NULL) return CC_OK;
    Call c;
    if (!normalise(rec, &c, in, n, kwnames, ex)) return CC_OK;
    if (!PyFunction_Check(c.func)) {
        const CcCallee callee = cc_callee_find(c.func);
        if (callee.kind != CC_CALLEE_UNKNOWN) return row_after(rec, act, &c, &callee, result);
        const CcTorch t = cc_torch_call(c.func, c.in, c.n - (c.kwnames ? PyTuple_GET_SIZE(c.kwnames) : 0), c.kwnames);
        if (t.cls != CC_T_NOT) return torch_after(rec, act, &c, &t, result);
        if (PyType_Check(c.func)) guard_class(rec, (PyTypeObject *)c.func);
        if (result != NULL && plain_weakref(c.func)) weakref_after(rec, c.func, result);
    }
    if (result == NULL || PyExceptionInstance_Check(result) || cc_value_origin(rec, result) != CC_O_UNKNOWN) return CC_OK;
    if (PyGen_Check(result) || PyType_Check(c.func) || Py_REFCNT(result) == 1) {
        cc_value_fresh(rec, result);
        return CC_OK;
    }
    char name[96];
    return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callable_name(c.func, name, sizeof name));
}
