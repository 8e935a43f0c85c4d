/* Calls whose Python code is not recorded, or not through the frames that run it:
 *
 *   torch.ops.lib.op(x)     Python of torch's dispatcher around a registered op: one node, as for torch's C functions
 *   torch.manual_seed(0)    Python code that sets torch's own state (NODE in library.def): also one node
 *   Function.apply(x)       C code around a Python forward(ctx, ...): if no gradient is needed, forward is recorded, and
 *                           the rest has no effect; otherwise the call is a node if forward is pure, else a break
 *   o.__reduce_ex__(4)      C code that gives copy.deepcopy the parts of an object: read here instead */
#include "rec_events.h"

static PyObject *newobj;

int cc_opaque_init(void) {
    newobj = cc_obj_of_module("copyreg", "__newobj__");
    return newobj != NULL ? 0 : -1;
}

/* ------------------------------------------------------------------ torch.ops */

bool cc_opaque_is_op(PyObject *o) { return cc_known_is(o, CC_KNOWN_OP_PACKET) || cc_known_is(o, CC_KNOWN_OP_OVERLOAD); }

static bool overload_writes(PyObject *op) {
    PyObject *schema = PyObject_GetAttrString(op, "_schema");
    PyObject *is = schema != NULL ? PyObject_GetAttrString(schema, "is_mutable") : NULL;
    const bool writes = is != Py_False;
    Py_XDECREF(schema);
    Py_XDECREF(is);
    cc_raised_clear();
    return writes;
}

static bool is_true(PyObject *o, const char *name) {
    PyObject *v = PyObject_GetAttrString(o, name);
    Py_XDECREF(v);
    cc_raised_clear();
    return v == Py_True;
}

/* Does the call lack a tensor to write to that this overload takes by name, as the .out overloads do? */
static bool lacks_out(PyObject *op, PyObject *kwnames) {
    PyObject *schema = PyObject_GetAttrString(op, "_schema");
    PyObject *all = schema != NULL ? PyObject_GetAttrString(schema, "arguments") : NULL;
    bool lacks = false;
    for (Py_ssize_t i = 0; all != NULL && PyList_Check(all) && i < PyList_GET_SIZE(all); i++) {
        PyObject *arg = PyList_GET_ITEM(all, i), *alias = PyObject_GetAttrString(arg, "alias_info");
        PyObject *name = PyObject_GetAttrString(arg, "name");
        const bool given = name == NULL || (kwnames != NULL && PySequence_Contains(kwnames, name) != 0);
        lacks = lacks || (alias != NULL && !given && is_true(alias, "is_write") && is_true(arg, "kwarg_only"));
        Py_XDECREF(alias);
        Py_XDECREF(name);
    }
    Py_XDECREF(schema);
    Py_XDECREF(all);
    cc_raised_clear();
    return lacks;
}

/* Does the overload declare a result that may be None? */
static bool overload_omits(PyObject *op) {
    PyObject *schema = PyObject_GetAttrString(op, "_schema");
    PyObject *all = schema != NULL ? PyObject_GetAttrString(schema, "returns") : NULL;
    bool omits = all == NULL || !PyList_Check(all);
    for (Py_ssize_t i = 0; !omits && i < PyList_GET_SIZE(all); i++) {
        PyObject *type = PyObject_GetAttrString(PyList_GET_ITEM(all, i), "type");
        PyObject *kind = type != NULL ? PyObject_CallMethod(type, "kind", NULL) : NULL;
        omits = kind == NULL || !PyUnicode_Check(kind) || PyUnicode_CompareWithASCIIString(kind, "OptionalType") == 0;
        Py_XDECREF(type);
        Py_XDECREF(kind);
    }
    Py_XDECREF(schema);
    Py_XDECREF(all);
    cc_raised_clear();
    return omits;
}

/* Whether this holds for an op, or for any overload of a packet that the call may choose; true if unknown. */
static bool any_overload(PyObject *op, PyObject *kwnames, bool (*holds)(PyObject *overload)) {
    if (cc_known_is(op, CC_KNOWN_OP_OVERLOAD)) return holds(op);
    PyObject *names = PyObject_CallMethod(op, "overloads", NULL);
    bool any = names == NULL || !PyList_Check(names);
    for (Py_ssize_t i = 0; !any && i < PyList_GET_SIZE(names); i++) {
        PyObject *one = PyObject_GetAttr(op, PyList_GET_ITEM(names, i));
        any = one == NULL || (holds(one) && !lacks_out(one, kwnames));
        Py_XDECREF(one);
    }
    Py_XDECREF(names);
    cc_raised_clear();
    return any;
}

bool cc_opaque_checkable(PyObject *result) {
    if (cc_tens_is(result)) {
        CcTensor t;
        cc_tens_read(result, false, &t);
        return cc_tens_plain(result) && cc_tens_matchable(&t.type);
    }
    if (!PyTuple_Check(result) && !PyList_CheckExact(result)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(result); i++)
        if (!cc_tens_is(PySequence_Fast_GET_ITEM(result, i)) ||
            !cc_opaque_checkable(PySequence_Fast_GET_ITEM(result, i)))
            return false;
    return true;
}

PyObject *cc_opaque_call(const CcAct *act, PyObject *f, PyObject *const *in, int n, PyObject *kwnames, bool *draws) {
    PyObject *before = cc_drawn_state(), *result = NULL;
    if (before != NULL) result = cc_call_unseen(act, f, in, n, kwnames);
    *draws = result != NULL && cc_drawn_since(before);
    (void)cc_look_take_read(); /* it may read data, because a replay calls it again */
    Py_XDECREF(before);
    return result;
}

CcGo cc_opaque_op(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames) {
    const int source = cc_value_source(rec, f);
    if (source < 0) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "an op made in this function");
    cc_guard_add_check(&rec->trace->guards, source, CC_CHK_IDENT, f, -1);
    cc_vec_push(&rec->keep, Py_NewRef(f));
    const bool paused = cc_hook_pause(act->obs, true); /* both run Python code of torch */
    const bool writes = any_overload(f, kwnames, overload_writes), omits = any_overload(f, kwnames, overload_omits);
    PyObject *text = PyObject_Str(f);
    if (text == NULL) cc_raised_clear();
    cc_hook_pause(act->obs, paused);
    const char *name = text != NULL ? PyUnicode_AsUTF8(text) : "torch.ops";
    const bool paused_again = cc_hook_pause(act->obs, true);
    const CcKernel kernel = cc_kernel_of(rec, name);
    cc_hook_pause(act->obs, paused_again);
    /* The kernel could observe pending effects, which run after the graph, or raise into a handler of recorded code. */
    const bool order = kernel == CC_KERNEL_PYTHON && (cc_node_pending(rec) || cc_node_catches(rec));
    if (order || omits) { /* no guard covers whether a result is None */
        const CcGo go = cc_rec_break(rec, act, omits ? CC_R_UNKNOWN_VALUE : CC_R_ORDER, name);
        Py_XDECREF(text);
        return go;
    }
    bool draws = false;
    ev->result = cc_opaque_call(act, f, in, n, kwnames, &draws);
    if (ev->result == NULL || (ev->result != Py_None && !cc_value_has_tensor(ev->result, 1))) {
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        (void)cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, name);
        PyErr_Restore(type, value, tb);
    } else {
        const bool checked = !writes && cc_opaque_checkable(ev->result); /* shapes may depend on data */
        /* Without a result, an op of torch's own that writes nothing checks something (aten._assert_async); another
         * library's may do anything. */
        const bool none = ev->result == Py_None, effect = writes || none;
        const bool checks = none && !writes && kernel == CC_KERNEL_C && strncmp(name, "aten.", 5) == 0;
        const CcCallSpec spec = {.form = CC_F_CALL,
                                 .target = f,
                                 .kwnames = kwnames,
                                 .in = in,
                                 .n = n,
                                 .name = name,
                                 .flags = (writes ? CC_N_WRITES : 0u) | (effect ? CC_N_EFFECT : 0u) |
                                          (draws ? CC_N_RANDOM : 0u),
                                 .dynamic = !checked,
                                 .kernel = kernel,
                                 .checked = checked};
        (void)(checks ? cc_node_check(rec, act, &spec) : cc_node_add(rec, act, &spec, ev->result));
        if (kernel == CC_KERNEL_PYTHON) cc_kernel_ran(rec, name);
    }
    Py_XDECREF(text);
    return CC_DONE;
}

/* ------------------------------------------------------------------ setters of torch's state */

bool cc_opaque_sets(CcRec *rec, PyObject *f, PyObject *const *in, int n, PyObject *kwnames) {
    return PyFunction_Check(f) && cc_library_node((PyFunctionObject *)f) && cc_value_source(rec, f) >= 0 && n == 1 &&
           kwnames == NULL && PyLong_CheckExact(in[0]) && cc_value_origin(rec, in[0]) != CC_O_UNKNOWN;
}

CcGo cc_opaque_set(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n) {
    cc_guard_add_check(&rec->trace->guards, cc_value_source(rec, f), CC_CHK_IDENT, f, -1);
    cc_vec_push(&rec->keep, Py_NewRef(f));
    const char *name = PyUnicode_AsUTF8(((PyFunctionObject *)f)->func_qualname);
    ev->result = cc_call_unseen(act, f, in, n, NULL);
    if (ev->result == NULL) {
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        (void)cc_rec_poison(rec, act, CC_R_LIBRARY, name);
        PyErr_Restore(type, value, tb);
        return CC_DONE;
    }
    const CcCallSpec spec = {
        .form = CC_F_CALL, .target = f, .in = in, .n = n, .name = name, .flags = CC_N_RANDOM | CC_N_EFFECT};
    (void)cc_value_const_source(rec, ev->result); /* the default generator */
    (void)cc_node_add(rec, act, &spec, Py_None);
    return CC_DONE;
}

/* ------------------------------------------------------------------ autograd.Function */

bool cc_opaque_context(PyObject *o) { return PyType_IsSubtype(Py_TYPE(o), cc_known_type(CC_KNOWN_CONTEXT)); }

static bool known_result(CcRec *rec, PyObject *o) {
    if (!PyTuple_CheckExact(o)) return cc_value_origin(rec, o) != CC_O_UNKNOWN;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (!known_result(rec, PyTuple_GET_ITEM(o, i))) return false;
    return true;
}

/* Guards what Function.apply looks up in the class. */
static void guard_function_class(CcRec *rec, PyObject *cls) {
    static const char *const names[] = {"forward", "setup_context", "_backward_cls"};
    for (int i = 0; i < CC_COUNT(names); i++) {
        PyObject *s = cc_obj_intern(names[i]);
        cc_value_read(rec, CC_SRC_TLOOK, cc_value_const_source(rec, cls), s, 0, 0,
                      cc_type_lookup((PyTypeObject *)cls, s));
        Py_DECREF(s);
    }
}

bool cc_opaque_differentiates(CcRec *rec, PyObject *const *in, int n) {
    bool requires = false;
    if (!cc_mode_grad_now()) return false;
    if (!cc_mode_grad(&rec->mode)) rec->read_grad = true; /* otherwise guards check it anyway */
    for (int i = 0; i < n; i++) {
        if (!cc_tens_is(in[i])) continue;
        cc_value_requires_read(rec, in[i]);
        requires = requires || cc_tens_requires_grad(in[i]);
    }
    return requires;
}

/* How often the tensors have been written to. */
static uint64_t writes_to(PyObject *const *in, int n) {
    uint64_t writes = 0;
    for (int i = 0; i < n; i++)
        if (cc_tens_is(in[i])) writes += cc_tens_version(in[i]);
    return writes;
}

/* In a replay torch calls forward, and later autograd calls backward; or a stage computes both (custom.c). */
CcGo cc_opaque_apply(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames) {
    guard_function_class(rec, PyCFunction_GET_SELF(f));
    cc_vec_push(&rec->keep, Py_NewRef(f));
    const uint64_t before = writes_to(in, n);
    bool draws = false;
    ev->result = cc_opaque_call(act, f, in, n, kwnames, &draws);
    if (ev->result != NULL && cc_opaque_checkable(ev->result)) {
        CcFunction function;
        if (!cc_custom_record(rec, act, PyCFunction_GET_SELF(f), in, n, ev->result, writes_to(in, n) != before,
                              &function))
            return CC_DONE;
        /* the sizes of what could be recorded don't depend on data: its nodes have rows */
        const CcCallSpec spec = {.form = CC_F_CALL,
                                 .target = f,
                                 .kwnames = kwnames,
                                 .in = in,
                                 .n = n,
                                 .name = "Function.apply",
                                 .flags = draws ? CC_N_RANDOM : 0u,
                                 .kernel = CC_KERNEL_KEEPS,
                                 .checked = function.graph == NULL,
                                 .function = &function};
        (void)cc_node_add(rec, act, &spec, ev->result);
        cc_functions_free_one(&function); /* if no node has taken it over */
        return CC_DONE;
    }
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    (void)cc_rec_poison(rec, act, CC_R_TORCH_EFFECT, "Function.apply raises, or returns more than tensors");
    PyErr_Restore(type, value, tb);
    return CC_DONE;
}

/* apply() has switched grad mode off, unseen; what forward has set restores that, not what was before. */
static bool sets_state(CcRec *rec, CcAct *act) {
    const CcRecFrame *f = cc_rec_frame(rec, act);
    for (int i = f != NULL ? f->call_nodes : 0; i < rec->trace->node.n; i++)
        if (rec->trace->node.at[i].state) return true;
    return false;
}

CcGo cc_opaque_apply_after(CcRec *rec, CcAct *act, PyObject *bound, PyObject *result) {
    PyObject *cls = PyCFunction_Check(bound) ? PyCFunction_GET_SELF(bound) : NULL;
    if (cls == NULL || !PyType_Check(cls))
        return cc_rec_poison(rec, act, CC_R_TORCH_EFFECT,
                             "Function.apply returns something that its forward does not show");
    guard_function_class(rec, cls);
    if (!known_result(rec, result))
        return cc_rec_poison(rec, act, CC_R_TORCH_EFFECT,
                             "Function.apply returns something that its forward does not show");
    if (cc_mode_grad_now() && sets_state(rec, act))
        return cc_rec_poison(rec, act, CC_R_TORCH_EFFECT, "Function.apply of a forward that sets grad mode");
    if (PyTuple_CheckExact(result)) cc_value_fresh(rec, result);
    return CC_OK;
}

/* ------------------------------------------------------------------ object.__reduce_ex__ */

/* A class whose instances consist only of their dict, and which defines no pickling methods. */
static bool plain_object(PyObject *o) {
    static const char *const hooks[] = {"__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__",
                                        "__getnewargs_ex__"};
    PyTypeObject *t = Py_TYPE(o), *base = cc_value_base(t);
    if (base == t || base != &PyBaseObject_Type || cc_obj_dict(o) == NULL) return false;
    for (int i = 0; i < CC_COUNT(hooks); i++) {
        PyObject *s = cc_obj_intern(hooks[i]);
        const bool own = cc_type_lookup(t, s) != cc_type_lookup(&PyBaseObject_Type, s);
        Py_DECREF(s);
        if (own) return false;
    }
    return true;
}

/* (copyreg.__newobj__, (class,), the instance's dict itself, None, None) */
static bool plain_parts(PyObject *o, PyObject *parts) {
    if (!PyTuple_CheckExact(parts) || PyTuple_GET_SIZE(parts) != 5 || PyTuple_GET_ITEM(parts, 0) != newobj)
        return false;
    PyObject *args = PyTuple_GET_ITEM(parts, 1), *state = PyTuple_GET_ITEM(parts, 2);
    return PyTuple_CheckExact(args) && PyTuple_GET_SIZE(args) == 1 &&
           PyTuple_GET_ITEM(args, 0) == (PyObject *)Py_TYPE(o) && (state == cc_obj_dict(o) || state == Py_None) &&
           PyTuple_GET_ITEM(parts, 3) == Py_None && PyTuple_GET_ITEM(parts, 4) == Py_None;
}

CcGo cc_opaque_reduce(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n) {
    static const char *const read[] = {"__reduce__",     "__reduce_ex__",     "__getstate__",
                                       "__getnewargs__", "__getnewargs_ex__", "__slots__"};
    if (n != 2 || !PyLong_CheckExact(in[1]) || !plain_object(in[0]))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "object.__reduce_ex__");
    PyObject *self = in[0], *dict = cc_obj_dict(self),
             *f = PyObject_GetAttrString((PyObject *)&PyBaseObject_Type, "__reduce_ex__");
    ev->result = f != NULL ? cc_call_unseen(act, f, in, n, NULL) : NULL;
    Py_XDECREF(f);
    if (ev->result == NULL) return CC_DONE;
    if (!plain_parts(self, ev->result)) {
        (void)cc_rec_poison(rec, act, CC_R_UNKNOWN_CALL, "object.__reduce_ex__");
        return CC_DONE;
    }
    for (int i = 0; i < CC_COUNT(read); i++) cc_attr_dunder(rec, self, read[i]);
    const int source = cc_value_source(rec, self);
    if (source >= 0) {
        cc_value_read(rec, CC_SRC_DICTOF, source, NULL, 0, 0, dict);
        if (PyDict_GET_SIZE(dict) == 0 && !cc_inside_guard(rec, dict, 1))
            (void)cc_rec_poison(rec, act, CC_R_UNKNOWN_CALL, "object.__reduce_ex__");
    } else {
        cc_value_fresh(rec, dict);
    }
    if (rec->trace == NULL) return CC_DONE;
    cc_value_fresh(rec, PyTuple_GET_ITEM(ev->result, 1));
    cc_value_fresh(rec, ev->result);
    return CC_DONE;
}
