/* Calls. A call is normalised first (the self of bound methods and builtin methods becomes the first argument, f(*a,
 * **k) a flat argument list), then classified: a Python function (arrives as a frame), a torch op (a node), or a row of
 * callee.def; anything else is a break. before() decides, after() records. */
#include "rec_events.h"

static CcCallUnwrap unwrap_hook;
static CC_VEC(struct Special {
    PyObject *object;
    CcReason reason;
}) specials;

void cc_call_special(PyObject *callable_or_type, CcReason reason) {
    cc_vec_push(&specials, (struct Special){Py_NewRef(callable_or_type), reason});
}

void cc_call_set_unwrap(CcCallUnwrap unwrap) { unwrap_hook = unwrap; }

static const struct Special *find_special(PyObject *callable) {
    for (int i = 0; i < specials.n; i++)
        if (specials.at[i].object == callable || specials.at[i].object == (PyObject *)Py_TYPE(callable))
            return &specials.at[i];
    return NULL;
}

bool cc_call_breaks(PyObject *callable) { return find_special(callable) != NULL; }

static PyObject *dunder_call(PyObject *o) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__call__");
    if (!cc_python_class(Py_TYPE(o)) || PyType_Check(o)) return NULL;
    return cc_type_lookup(Py_TYPE(o), name);
}

/* The callable that an object calls through a slot named __call__ (compiled modules: module.py); borrowed from the
 * object. */
static PyObject *held_call(PyObject *o) {
    PyObject *d = dunder_call(o);
    if (d == NULL || !Py_IS_TYPE(d, &PyMemberDescr_Type)) return NULL;
    PyObject *v = Py_TYPE(d)->tp_descr_get(d, o, (PyObject *)Py_TYPE(o));
    if (v == NULL) cc_raised_clear();
    Py_XDECREF(v);
    return v;
}

static PyObject *unwrap(PyObject *o) { return unwrap_hook != NULL ? unwrap_hook(o) : NULL; }

/* The compiled function that is the __call__ of the object's class; NULL: that is something else. */
static PyObject *compiled_call(PyObject *o) {
    PyObject *d = dunder_call(o), *inner = d != NULL ? unwrap(d) : NULL;
    return inner != NULL && PyFunction_Check(inner) ? d : NULL;
}

PyFunctionObject *cc_call_function(PyObject *callable) {
    for (int depth = 0; depth < 8 && callable != NULL; depth++) {
        if (PyFunction_Check(callable)) return (PyFunctionObject *)callable;
        PyObject *inner = unwrap(callable);
        if (inner == NULL) inner = PyMethod_Check(callable) ? PyMethod_GET_FUNCTION(callable) : held_call(callable);
        callable = inner != NULL ? inner : dunder_call(callable);
    }
    return NULL;
}

static bool put(CcCalled *c, PyObject *o) {
    if (c->n >= CC_CALL_ARGS) return false;
    c->in[c->n++] = o;
    return true;
}

static bool put_keywords(CcRec *rec, CcCalled *c, PyObject *keywords) {
    PyObject *names, *key, *value;
    CC_RETRY_ALLOC(names, PyTuple_New(PyDict_GET_SIZE(keywords)));
    cc_vec_push(&rec->keep, names);
    c->kwnames = names;
    Py_ssize_t pos = 0, i = 0;
    while (PyDict_Next(keywords, &pos, &key, &value)) {
        PyTuple_SET_ITEM(names, i++, Py_NewRef(key));
        if (!put(c, value)) return false;
    }
    return true;
}

/* Flattens f(*tuple, **dict); the recording keeps the keyword names alive. */
static bool flatten(CcRec *rec, CcCalled *c, PyObject *args, PyObject *kwargs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++)
        if (!put(c, PyTuple_GET_ITEM(args, i))) return false;
    if (kwargs == NULL || PyDict_GET_SIZE(kwargs) == 0) return true;
    return put_keywords(rec, c, kwargs);
}

static bool is_partial(PyObject *o) { return cc_known_is(o, CC_KNOWN_PARTIAL); }

/* The parts of a partial object, borrowed from it. */
static void partial_parts(PyObject *o, PyObject **func, PyObject **args, PyObject **keywords) {
    PyObject **part[] = {func, args, keywords};
    static const char *const names[] = {"func", "args", "keywords"};
    for (int i = 0; i < CC_COUNT(part); i++) {
        CC_RETRY_ALLOC(*part[i], PyObject_GetAttrString(o, names[i]));
        Py_DECREF(*part[i]);
    }
}

/* Joins the partial object's keywords and the call's: for a name in both, the call's value takes the first one's
 * place. */
static bool join_keywords(CcRec *rec, CcCalled *c, PyObject *keywords) {
    if (PyDict_GET_SIZE(keywords) == 0) return true;
    const int n_kw = cc_obj_count(c->kwnames), first = c->n - n_kw;
    PyObject *all;
    CC_RETRY_ALLOC(all, PyDict_Copy(keywords));
    for (int i = 0; i < n_kw; i++) cc_obj_dict_set(all, PyTuple_GET_ITEM(c->kwnames, i), c->in[first + i]);
    cc_vec_push(&rec->keep, all);
    c->n = first;
    return put_keywords(rec, c, all);
}

/* False: too many arguments. in[0] is the callable; CALL_EX when kwnames is NULL and in = {callable, tuple, dict}. */
static bool normalise(CcRec *rec, CcCalled *c, PyObject *const *in, int n, PyObject *kwnames, bool ex) {
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

int cc_call_positional(const CcCalled *c) { return c->n - cc_obj_count(c->kwnames); }

bool cc_call_any_tensor(const CcCalled *c, int depth) {
    for (int i = 0; i < c->n; i++)
        if (cc_value_has_tensor(c->in[i], depth)) return true;
    return false;
}

static const char *callable_name(PyObject *f, char *buffer, size_t n) {
    const bool asked = cc_python_class(Py_TYPE(f)) && !PyType_Check(f); /* may run its __getattr__ once more */
    PyObject *name = asked ? NULL : PyObject_GetAttrString(f, "__qualname__");
    const char *s = name != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    cc_raised_clear(); /* no name, or one with a lone surrogate */
    snprintf(buffer, n, "%s", s != NULL ? s : cc_type_name(f));
    Py_XDECREF(name);
    return buffer;
}

PyObject *cc_call_unseen(const CcAct *act, PyObject *f, PyObject *const *in, int n, PyObject *kwnames) {
    const bool paused = cc_hook_pause(act->obs, true);
    PyObject *r = PyObject_Vectorcall(f, in, (size_t)(n - cc_obj_count(kwnames)), kwnames);
    cc_hook_pause(act->obs, paused);
    return r;
}

CcCallSpec cc_call_spec(const CcCalled *c, const char *name) {
    return (CcCallSpec){
        .form = CC_F_CALL, .target = c->func, .kwnames = c->kwnames, .in = c->in, .n = c->n, .name = name};
}

/* ------------------------------------------------------------------ torch */

/* Copies the numbers of a list: they are the node's data, not constants of the trace. */
static bool takes_data(const CcTorch *t) {
    return t->name != NULL && (strcmp(t->name, "torch.tensor") == 0 || strcmp(t->name, "torch.as_tensor") == 0 ||
                               cc_torch_of_type(t->name));
}

static CcGo torch_operands(CcRec *rec, CcAct *act, const CcCalled *c, bool data_first) {
    for (int i = 0; i < c->n; i++) {
        if (!cc_value_plain(c->in[i], 2)) return cc_rec_break(rec, act, CC_R_TENSOR_SUBCLASS, cc_type_name(c->in[i]));
        const CcDirty d = cc_value_dirty(rec, c->in[i]);
        if (d != CC_DIRTY_NO) return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(c->in[i]));
        if (!cc_node_nameable(rec, c->in[i], 4))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(c->in[i]));
        if (i == 0 && data_first && cc_inside_structure(rec, c->in[i], 4)) continue;
        const bool container =
            PyList_Check(c->in[i]) || PyTuple_Check(c->in[i]) || PyDict_Check(c->in[i]) || PySlice_Check(c->in[i]);
        if (container && !cc_inside_guard(rec, c->in[i], 4))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(c->in[i]));
    }
    return CC_OK;
}

/* torch.empty(0) as `out=`, or in a tuple as `out=`: the op resizes it. */
static bool to_be_resized(PyObject *o) {
    if (PyTuple_Check(o)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
            if (to_be_resized(PyTuple_GET_ITEM(o, i))) return true;
        return false;
    }
    if (!cc_tens_is(o)) return false;
    CcTensor t;
    cc_tens_read(o, false, &t);
    return t.type.ndim == 1 && t.type.size[0] == 0;
}

static bool resizes_out(const CcCalled *c) {
    const int n_kw = cc_obj_count(c->kwnames);
    for (Py_ssize_t k = 0; k < n_kw; k++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(c->kwnames, k), "out") != 0) continue;
        return to_be_resized(c->in[c->n - n_kw + k]);
    }
    return false;
}

/* Ops whose number of results depends on a size. */
static bool splits(const char *name) {
    static const char *const ops[] = {"unbind", "split",  "chunk",        "tensor_split", "hsplit",
                                      "vsplit", "dsplit", "unsafe_split", "unsafe_chunk"};
    const char *dot = name != NULL ? strrchr(name, '.') : NULL;
    for (int i = 0; dot != NULL && i < CC_COUNT(ops); i++)
        if (strcmp(dot + 1, ops[i]) == 0) return true;
    return false;
}

/* Are the sizes of the results independent of the call's floats? Not for arange, nor for an interpolation's factors;
 * unknown for ops without a row. */
static bool sized_without_floats(const CcCalled *c, const CcTorch *t) {
    if (t->dynamic_shape || t->draws || t->node_flags & CC_N_WRITES || takes_data(t)) return true;
    CcBound bound;
    const int n_kw = cc_obj_count(c->kwnames);
    if (cc_bind_call(c->func, c->in, c->n - n_kw, c->kwnames, &bound) != 0) return false;
    bool tensor = bound.op == CC_OP_fill;
    for (int i = 0; i < bound.n; i++) tensor = tensor || bound.in[i].tensor != NULL;
    return tensor && cc_op_info(bound.op)->kind != CC_K_RESAMPLE;
}

/* Guards whatever a call's numbers determine besides elements. False: a node computes them, so no guard can. */
static bool floats_settled(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t) {
    bool any = false, known = true;
    for (int i = 0; t->draws && known && i < c->n; i++) known = cc_sym_probability(rec, act, c->in[i]);
    for (int i = 0; i < c->n; i++) any = any || cc_number_varies(rec, c->in[i], 3);
    if (!any || sized_without_floats(c, t)) return known;
    for (int i = 0; known && i < c->n; i++) known = cc_number_read(rec, c->in[i], 3);
    return known;
}

/* Guards distinguish inference tensors from others only outside inference mode. */
static bool asks_inference(const CcTorch *t) {
    const char *dot = t->name != NULL ? strrchr(t->name, '.') : NULL;
    return dot != NULL && strcmp(dot, ".is_inference") == 0;
}

/* Whether the call names a device whose ambient state has no row. */
static bool other_device(const CcCalled *c) {
    for (int i = 0; i < c->n; i++)
        if (PyUnicode_Check(c->in[i]) && PyUnicode_CompareWithASCIIString(c->in[i], "cpu") != 0 &&
            PyUnicode_CompareWithASCIIString(c->in[i], "cuda") != 0)
            return true;
    return false;
}

CcGo cc_call_torch(CcRec *rec, CcAct *act, const char *name, const char *why) {
    char text[200];
    snprintf(text, sizeof text, "%s %s", name, why != NULL ? why : "changes torch's state or a tensor's metadata");
    return cc_rec_break(rec, act, CC_R_TORCH_EFFECT, text);
}

/* A guard calls the function again with the same device, unless this trace has set such state before. */
static CcGo state_of_other_device(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t) {
    PyObject *partial =
        rec->trace->other_autocast || c->n != 1 || c->kwnames != NULL ? NULL : cc_obj_of_module("functools", "partial");
    PyObject *again = partial != NULL ? PyObject_CallFunctionObjArgs(partial, c->func, c->in[0], NULL) : NULL;
    PyObject *answer = again != NULL ? cc_value_guard_call(rec, again) : NULL;
    cc_raised_clear();
    Py_XDECREF(again);
    Py_XDECREF(partial);
    if (answer == NULL) return cc_call_torch(rec, act, t->name, "reads state of another device");
    Py_DECREF(answer);
    return CC_OK;
}

/* x.requires_grad_(False) of a tensor that may refuse it. */
static bool refuses_gradient(CcRec *rec, const CcAct *act, const CcCalled *c, const CcTorch *t) {
    const bool asks = t->name != NULL && c->n == 2 && strcmp(t->name, "Tensor.requires_grad_") == 0;
    return asks && c->in[1] != Py_True && !cc_attr_guard_leaf(rec, act, c->in[0]);
}

static CcGo torch_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, const CcTorch *t) {
    switch (t->cls) {
    case CC_T_STATE: return other_device(c) ? state_of_other_device(rec, act, c, t) : CC_OK;
    case CC_T_SET_STATE: rec->trace->other_autocast = rec->trace->other_autocast || other_device(c); break;
    case CC_T_DROP: return CC_OK;
    case CC_T_SCOPE: return cc_scope_before(rec, act, c, t);
    case CC_T_META:
        if (cc_mode_inference(&rec->mode) && asks_inference(t))
            return cc_call_torch(rec, act, t->name, "reads whether inference mode is on");
        if (cc_override_asks(t)) return cc_override_before(rec, act, ev, c);
        for (int i = 0; i < c->n; i++) {
            if (cc_tens_is(c->in[i]) && cc_value_origin(rec, c->in[i]) == CC_O_UNKNOWN) /* no guard describes it */
                return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "tensor");
            if (cc_node_unsized(rec, c->in[i]) && cc_sym_tells_size(t->name))
                return cc_rec_break(rec, act, CC_R_DATA_SHAPE, t->name);
        }
        if (!cc_sym_tells_size(t->name)) return CC_OK;
        const CcCallSpec spec = cc_call_spec(c, t->name != NULL ? t->name : "metadata");
        return cc_sym_call(rec, act, ev, &spec);
    case CC_T_VALUE: return cc_rec_break(rec, act, CC_R_TENSOR_VALUE, t->name);
    case CC_T_RESHAPES: {
        const CcGo go = torch_operands(rec, act, c, false);
        return go != CC_OK ? go : cc_reshape_before(rec, act, ev, c, t);
    }
    case CC_T_BREAK: return cc_call_torch(rec, act, t->name, t->why);
    case CC_T_APPLY:
        if (!cc_opaque_differentiates(rec, c->in, c->n)) return CC_OK;
        if (cc_kernel_pure(rec, c->func, c->in, c->n)) {
            const CcGo go = torch_operands(rec, act, c, false);
            return go != CC_OK ? go : cc_opaque_apply(rec, act, ev, c->func, c->in, c->n, c->kwnames);
        }
        /* fall through */
    case CC_T_CONTEXT:
        return cc_mode_grad_now() ? cc_call_torch(rec, act, t->name, "is a function of autograd, and grad mode is on")
                                  : CC_OK;
    case CC_T_UNKNOWN:
        if (!cc_call_any_tensor(c, 2)) {
            char name[96];
            return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callable_name(c->func, name, sizeof name));
        }
        break;
    default: break;
    }
    if (resizes_out(c)) return cc_call_torch(rec, act, t->name, "resizes its out=");
    if (refuses_gradient(rec, act, c, t))
        return cc_call_torch(rec, act, t->name, "depends on whether a tensor is a leaf or a view");
    if (t->cls == CC_T_OP && !floats_settled(rec, act, c, t)) return cc_rec_break(rec, act, CC_R_DATA_SCALAR, t->name);
    if (c->n > 0 && cc_node_unsized(rec, c->in[0]) && splits(t->name))
        return cc_rec_break(rec, act, CC_R_DATA_SHAPE, t->name);
    return torch_operands(rec, act, c, takes_data(t));
}

/* An item of a list may have dims: torch takes any tensor of one element there. */
static bool is_integer(PyObject *o, bool listed) {
    if (!cc_tens_is(o)) return false;
    CcTensor t;
    cc_tens_read(o, false, &t);
    return (t.type.ndim == 0 || (listed && t.type.ndim > 0 && cc_type_numel(&t.type) == 1)) &&
           cc_dtype_info((CcDtype)t.type.dtype)->kind != 'f';
}

/* Is there a tensor, behind the first operand, that torch may read as a size or a dim, if the op has no binding? x.sum(t),
 * F.max_pool2d(x, [t, 2]); but also torch.lcm(x, t), whose operand it is. */
static bool may_give_sizes(const CcCalled *c) {
    for (int i = 1; i < c->n; i++) {
        PyObject *o = c->in[i];
        if (is_integer(o, false)) return true;
        if (!PyTuple_Check(o) && !PyList_Check(o)) continue;
        for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(o); k++)
            if (is_integer(PySequence_Fast_GET_ITEM(o, k), true)) return true;
    }
    return false;
}

/* The operands that the node of an op on tensors takes. torch.tensor and its like, which have no tensor among theirs, give
 * numpy's scalars numpy's dtype. */
static const CcCalled *taken(CcRec *rec, CcAct *act, const CcCalled *c, const CcTorch *t, CcCalled *own) {
    bool tensor = false, scalar = false;
    for (int i = 0; i < c->n; i++) {
        tensor = tensor || cc_tens_is(c->in[i]);
        scalar = scalar || (cc_sym_scalar(c->in[i]) && cc_sym_is(rec, c->in[i]));
    }
    if (!tensor || !scalar || t->cls != CC_T_OP) return c;
    *own = *c;
    for (int i = 0; i < c->n; i++) own->in[i] = cc_sym_operand(rec, act, c->in[i]);
    return own;
}

static CcGo torch_after(CcRec *rec, CcAct *act, const CcCalled *called, const CcTorch *t, PyObject *result) {
    CcCalled own;
    const CcCalled *c = result != NULL ? taken(rec, act, called, t, &own) : called;
    if (result == NULL) { /* whether it raises may depend on data, or on the sizes and numbers that it gets */
        if (cc_call_any_tensor(c, 2) && t->cls != CC_T_META)
            return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises");
        const bool data = takes_data(t) && c->n > 0 && cc_value_source(rec, c->in[0]) >= 0; /* no guard reads it */
        for (int i = 0; i < c->n; i++)
            if (!cc_number_settle(rec, c->in[i], 4) || (i == 0 && data && !cc_value_const(c->in[0])))
                return cc_rec_poison(rec, act, CC_R_DATA_SCALAR, "an operation that raises");
        return CC_OK;
    }
    const CcRecFrame *f = cc_rec_frame(rec, act);
    switch (t->cls) {
    case CC_T_APPLY: return cc_opaque_apply_after(rec, act, c->func, result);
    case CC_T_CONTEXT: return CC_OK;
    case CC_T_SCOPE: return cc_scope_after(rec, act, c, t, result);
    case CC_T_META:
    case CC_T_STATE:
    case CC_T_DROP:
        if (cc_value_origin(rec, result) == CC_O_UNKNOWN) cc_value_fresh(rec, result);
        return CC_OK;
    default: break;
    }
    if (rec->trace->graph->node.n != f->call_nodes && t->cls == CC_T_UNKNOWN) return CC_OK;
    unsigned flags = t->node_flags;
    if (t->cls == CC_T_SET_STATE || t->cls == CC_T_ASSERT) flags |= CC_N_EFFECT;
    if (t->cls == CC_T_UNKNOWN) {
        if (!cc_value_has_tensor(result, 1))
            return cc_rec_poison(rec, act, CC_R_UNKNOWN_CALL, t->name ? t->name : "torch function");
        flags |= CC_N_EFFECT;
    }
    bool symbolic = false;
    for (int i = 0; i < c->n; i++) symbolic = symbolic || cc_value_symbolic(rec, c->in[i]);
    CcBound bound;
    const int n_kw = cc_obj_count(c->kwnames);
    const int status = symbolic ? -1 : cc_bind_call(c->func, c->in, c->n - n_kw, c->kwnames, &bound);
    /* the result's shape is a guess */
    const bool guessed = status != 0 && t->cls == CC_T_OP && !t->dynamic_shape && may_give_sizes(c);
    const bool checked = guessed && !(flags & (CC_N_WRITES | CC_N_RANDOM)) && cc_opaque_checkable(result);
    const CcCallSpec spec = {.form = CC_F_CALL,
                             .target = c->func,
                             .kwnames = c->kwnames,
                             .in = c->in,
                             .n = c->n,
                             .name = t->name,
                             .flags = flags,
                             .bound = status == 0 ? &bound : NULL,
                             .dynamic = (t->dynamic_shape && status != 0) || (guessed && !checked),
                             .checked = checked,
                             .state = t->cls == CC_T_SET_STATE,
                             .makes = t->cls == CC_T_MAKE,
                             .safe = (t->cls == CC_T_OP || t->cls == CC_T_MAKE) && !t->raises};
    if (t->cls == CC_T_ASSERT) return cc_node_check(rec, act, &spec);
    const bool itself = c->n > 0 && result == c->in[0] && !cc_tens_is(result); /* Generator.manual_seed */
    return cc_node_add(rec, act, &spec, itself ? Py_None : result);
}

/* ------------------------------------------------------------------ classes */

/* tp_new and tp_init of CPython's own types; heap classes inherit them or have the slot versions, which call Python
 * code that arrives as frames. */
static newfunc slot_new;
static initproc slot_init;

int cc_call_init(void) {
    PyObject *ns = cc_obj_run("class A:\n def __new__(cls): pass\n def __init__(self): pass\n");
    if (ns == NULL) return -1;
    const PyTypeObject *a = (PyTypeObject *)cc_obj_item(ns, "A");
    slot_new = a->tp_new;
    slot_init = a->tp_init;
    Py_DECREF(ns);
    return 0;
}

static bool known_class(PyTypeObject *t) {
    PyTypeObject *const bases[] = {&PyBaseObject_Type, &PyDict_Type,  &PyList_Type, &PyTuple_Type, &PySet_Type,
                                   &PyFrozenSet_Type,  &PyODict_Type, &PyLong_Type, &PyFloat_Type, &PyUnicode_Type};
    bool make = t->tp_new == slot_new, init = t->tp_init == slot_init || t->tp_init == NULL;
    for (int i = 0; i < CC_COUNT(bases); i++) {
        make = make || t->tp_new == bases[i]->tp_new;
        init = init || t->tp_init == bases[i]->tp_init;
    }
    return make && init;
}

/* The builtin base whose C code makes an instance of this Python class from the arguments; NULL: Python code does. */
static PyTypeObject *made_by(PyTypeObject *t) {
    PyTypeObject *const by_new[] = {&PyTuple_Type, &PyLong_Type, &PyFloat_Type, &PyUnicode_Type, &PyFrozenSet_Type};
    PyTypeObject *const by_init[] = {&PyList_Type, &PyODict_Type, &PyDict_Type, &PySet_Type};
    for (int i = 0; t->tp_new != slot_new && i < CC_COUNT(by_new); i++)
        if (PyType_IsSubtype(t, by_new[i])) return by_new[i];
    for (int i = 0; t->tp_init != slot_init && i < CC_COUNT(by_init); i++)
        if (PyType_IsSubtype(t, by_init[i])) return by_init[i];
    return NULL;
}

static CcGo class_before(CcRec *rec, CcAct *act, const CcCalled *c) {
    PyTypeObject *t = (PyTypeObject *)c->func;
    /* OSError(errno, text) makes an instance of the subclass for that number */
    if (c->func == PyExc_OSError && c->n > 1 && !cc_number_settle(rec, c->in[0], 0))
        return cc_rec_break(rec, act, CC_R_DATA_SCALAR, "OSError");
    if (PyExceptionClass_Check(c->func) && !cc_python_class(t)) return CC_OK;
    if (!cc_python_class(t) || (!known_class(t) && !PyExceptionClass_Check(c->func)))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, t->tp_name);
    PyTypeObject *meta = Py_TYPE(t);
    if (meta != &PyType_Type && !cc_python_class(meta)) return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, meta->tp_name);
    for (int i = 0; i < c->n; i++)
        if (cc_value_origin(rec, c->in[i]) == CC_O_UNKNOWN)
            return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(c->in[i]));
    CcCalled made = *c;
    made.func = (PyObject *)made_by(t);
    if (made.func == NULL) return CC_OK;
    const CcCallee callee = cc_callee_find(made.func);
    return cc_args_before(&(CcBuiltin){.rec = rec, .act = act, .c = &made, .callee = &callee});
}

static void guard_class(CcRec *rec, PyTypeObject *t) {
    static const char *const names[] = {"__new__", "__init__", "__del__"};
    cc_attr_dunder(rec, (PyObject *)t, "__call__"); /* its metaclass may create the object */
    if (!cc_python_class(t)) return;
    for (int i = 0; i < CC_COUNT(names); i++) {
        PyObject *s = cc_obj_intern(names[i]);
        cc_value_read(rec, CC_SRC_TLOOK, cc_value_const_source(rec, (PyObject *)t), s, 0, 0, cc_type_lookup(t, s));
        Py_DECREF(s);
    }
}

/* ref() returned the object or None: a guard reads it through the reference again. */
static void weakref_after(CcRec *rec, PyObject *ref, PyObject *result) {
    const int source = cc_value_source(rec, ref);
    if (source >= 0) cc_value_read(rec, CC_SRC_REF, source, NULL, 0, 0, result);
}

static bool plain_weakref(PyObject *o) /* a subclass may define __call__ in Python */
{
    return PyWeakref_CheckRef(o) && dunder_call(o) == NULL;
}

/* ------------------------------------------------------------------ before and after */

static CcGo guard_callable(CcRec *rec, PyObject *o) {
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
            PyObject *d = cc_callee_unbound(o); /* a TYPE check does not determine the method */
            if (d != NULL) cc_guard_add_check(&rec->trace->guards, source, CC_CHK_METHOD, d, -1);
        }
    } else if (cc_known_is(o, CC_KNOWN_METHOD_WRAPPER)) { /* neither its type nor its slot determines its owner */
        const int source = cc_value_source(rec, o);
        if (source >= 0) cc_guard_add_check(&rec->trace->guards, source, CC_CHK_IDENT, o, -1);
    } else if (dunder_call(o) != NULL) {
        cc_attr_dunder(rec, o, "__call__");
    }
    return CC_OK;
}

static void partial_guards(CcRec *rec, PyObject *o) {
    static const char *const names[] = {"func", "args", "keywords"};
    const int source = cc_value_source(rec, o);
    for (int i = 0; source >= 0 && i < CC_COUNT(names); i++) {
        PyObject *v;
        CC_RETRY_ALLOC(v, PyObject_GetAttrString(o, names[i]));
        cc_vec_push(&rec->keep, v);
        cc_value_read_member(rec, source, Py_TYPE(o), names[i], v);
        cc_sym_fill(rec, v);
        cc_inside_guard(rec, v, 1);
    }
    cc_sym_drop_pending(rec); /* the callee gets symbols from the containers; C code takes the others */
}

/* A call of a compiled callable, or of an object whose call is one, is handled as a call of the wrapped callable. Guards
 * read each step of the way there, so that the provenance of the frame's self is known. NULL: o is neither. */
static PyObject *unwrap_guarded(CcRec *rec, PyObject *o) {
    PyObject *held = held_call(o), *call = compiled_call(o);
    if (held != NULL && unwrap(held) != NULL) {
        const int source = cc_value_source(rec, o);
        cc_attr_dunder(rec, o, "__call__");
        if (source >= 0) cc_value_read(rec, CC_SRC_MEMBER, source, dunder_call(o), 0, 0, held);
        o = held;
    } else if (call != NULL) {
        cc_attr_dunder(rec, o, "__call__");
        o = call;
    }
    PyObject *inner = unwrap(o);
    const int source = inner == NULL ? -1 : cc_value_source(rec, o);
    if (source >= 0) cc_value_read_member(rec, source, Py_TYPE(o), "_called", inner);
    return inner;
}

static CcGo call_compiled(CcRec *rec, PyObject *inner) {
    if (PyFunction_Check(inner)) cc_param_call(rec, (PyFunctionObject *)inner);
    return CC_OK;
}

/* Adds the user's text: disable(reason=...), graph_break(msg). */
static CcGo special_break(CcRec *rec, CcAct *act, CcReason reason, PyObject *const *in, int n) {
    char name[96], text[256];
    PyObject *said = reason == CC_R_USER && n > 1 ? Py_NewRef(in[1]) : PyObject_GetAttrString(in[0], "reason");
    const char *msg = said != NULL && PyUnicode_Check(said) ? PyUnicode_AsUTF8(said) : "";
    if (msg == NULL) msg = ""; /* a lone surrogate */
    cc_raised_clear();
    if (reason == CC_R_USER) snprintf(text, sizeof text, "%s%s", *msg != '\0' ? ": " : "", msg);
    else
        snprintf(text, sizeof text, "%s%s%s%s", callable_name(in[0], name, sizeof name), *msg != '\0' ? " (" : "", msg,
                 *msg != '\0' ? ")" : "");
    Py_XDECREF(said);
    return cc_rec_break(rec, act, reason, text);
}

/* torch._dynamo.graph_break() requests a break. */
static CcGo break_at_library(CcRec *rec, CcAct *act, CcEvent *ev, PyFunctionObject *f) {
    char name[128];
    if (PyUnicode_CompareWithASCIIString(f->func_qualname, "graph_break") == 0) {
        if (!cc_library_unbroken(act->co)) return cc_rec_break(rec, act, CC_R_USER, "");
        ev->result = Py_NewRef(Py_None);
        return CC_DONE;
    }
    const CcReason reason = cc_library_hands(f) ? CC_R_HANDED : CC_R_LIBRARY;
    return cc_rec_break(rec, act, reason, callable_name((PyObject *)f, name, sizeof name));
}

/* `f(*args, **kwargs)` reads all of both. The callee gets symbols for numbers that vary; the others are constants from
 * here on: no after() of this event follows the callee's events. */
static bool reads_spread(CcRec *rec, PyObject *const *in, int n) {
    for (int i = 1; i < CC_MIN(n, 3); i++) {
        if (in[i] == NULL) continue;
        cc_sym_fill(rec, in[i]);
        if (cc_value_dirty(rec, in[i]) || !cc_inside_guard(rec, in[i], 1)) return false;
    }
    cc_sym_drop_pending(rec);
    return true;
}

static CcGo transform_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c) {
    const CcGo go = torch_operands(rec, act, c, false);
    if (go != CC_OK) return go;
    return PyFunction_Check(c->func) ? cc_transform_call(rec, act, ev, c) : cc_transform_script(rec, act, ev, c);
}

/* A Python function is recorded (CC_OK) unless a row of library.def gives it a meaning of its own. */
static CcGo function_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c) {
    PyFunctionObject *f = (PyFunctionObject *)c->func;
    CcGo go = CC_OK;
    const CcPure pure = cc_library_pure(f);
    if (pure != CC_PURE_NOT) go = cc_backcall_pure(rec, act, ev, pure, c->func, c->in, c->n, c->kwnames);
    if (go == CC_OK && cc_library_through(f))
        go = cc_checkpoint_call(rec, act, ev, c->func, c->in, cc_call_positional(c), c->kwnames);
    if (go == CC_OK && cc_library_transform(f)) go = transform_before(rec, act, ev, c);
    if (go == CC_OK && cc_library_wraps(f))
        go = cc_backcall_unwrapped(rec, ev, c->func, c->in, cc_call_positional(c), c->kwnames);
    if (go == CC_OK && cc_library_below(f)) go = cc_chance_below(rec, act, ev, c);
    if (go != CC_OK) return go;
    if (!cc_library_recorded(f)) return break_at_library(rec, act, ev, f);
    cc_param_call(rec, f);
    return CC_OK;
}

static CcGo torch_op_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, const CcTorch *t) {
    const CcGo go = cc_backcall_foreach(rec, ev, c->func, c->in, cc_call_positional(c), c->kwnames);
    return go != CC_OK ? go : torch_before(rec, act, ev, c, t);
}

/* itemgetter and the like, whose calls are Python code of ours. C code raises its TypeError for other arguments than one. */
static bool getter_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c) {
    PyObject *gets = c->n == 1 && c->kwnames == NULL ? cc_backcall_getter(rec, act, c->func) : NULL;
    if (gets == NULL) return false;
    Py_INCREF(gets); /* a recording that is given up drops what it keeps */
    ev->result = PyObject_Vectorcall(gets, c->in, (size_t)cc_call_positional(c), c->kwnames);
    Py_DECREF(gets);
    return true;
}

/* A callable that is no Python function: C code, a class, an object of one. */
static CcGo object_before(CcRec *rec, CcAct *act, CcEvent *ev, CcCalled *c) {
    char name[96];
    const bool script = cc_known_is(c->func, CC_KNOWN_SCRIPT_FUNCTION);
    const CcGo go = script ? transform_before(rec, act, ev, c) : CC_OK;
    if (go != CC_OK) return go;
    const CcCallee callee = cc_callee_find(c->func);
    if (callee.kind != CC_CALLEE_UNKNOWN) return cc_builtin_before(rec, act, ev, c, &callee);
    cc_given_arguments(rec, c);
    const CcTorch t = cc_torch_call(c->func, c->in, cc_call_positional(c), c->kwnames);
    if (t.cls != CC_T_NONE) return torch_op_before(rec, act, ev, c, &t);
    if (PyType_Check(c->func)) return class_before(rec, act, c);
    if (plain_weakref(c->func) && cc_finalizers_weakref_unknown(rec, c->func))
        return rec->trace != NULL ? cc_rec_break(rec, act, CC_R_WEAK, NULL) : CC_GIVE_UP;
    PyObject *call = dunder_call(c->func);
    if (plain_weakref(c->func) || (call != NULL && PyFunction_Check(call))) return CC_OK;
    if (getter_before(rec, act, ev, c)) return CC_DONE;
    if (cc_cache_is(c->func)) return cc_backcall_cache(rec, act, ev, c->func, c->in, c->n, c->kwnames);
    return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, callable_name(c->func, name, sizeof name));
}

CcGo cc_call_before(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n, PyObject *kwnames) {
    const bool ex = ev->kind == CC_EV_CALL_EX;
    if (ex && !reads_spread(rec, in, n)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, "arguments");
    if (cc_value_origin(rec, in[0]) == CC_O_UNKNOWN)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(in[0]));
    PyObject *held = held_call(in[0]), *method = PyMethod_Check(in[0]) ? PyMethod_GET_FUNCTION(in[0]) : in[0];
    const struct Special *special = find_special(held != NULL ? held : method);
    if (special != NULL) return special_break(rec, act, special->reason, in, n);
    PyObject *inner = unwrap_guarded(rec, in[0]);
    guard_callable(rec, inner != NULL ? inner : in[0]);
    if (inner != NULL) return call_compiled(rec, inner);
    if (is_partial(in[0])) partial_guards(rec, in[0]);
    CcCalled c;
    if (!normalise(rec, &c, in, n, kwnames, ex)) return cc_rec_break(rec, act, CC_R_LIMIT, "arguments");
    if (is_partial(in[0])) guard_callable(rec, c.func);
    if (c.func != in[0] && (inner = unwrap_guarded(rec, c.func)) != NULL) {
        guard_callable(rec, inner);
        return call_compiled(rec, inner);
    }
    ev->result = cc_intrin_call(rec, c.func, c.in, c.n, act);
    if (ev->result != NULL) return CC_DONE;
    if (cc_opaque_is_op(c.func)) {
        const CcGo go = torch_operands(rec, act, &c, false);
        return go != CC_OK ? go : cc_opaque_op(rec, act, ev, c.func, c.in, c.n, c.kwnames);
    }
    if (cc_opaque_sets(rec, c.func, c.in, c.n, c.kwnames)) return cc_opaque_set(rec, act, ev, c.func, c.in, c.n);
    const CcGo device = cc_override_device(rec, act, ev, &c);
    if (device != CC_OK) return device;
    return PyFunction_Check(c.func) ? function_before(rec, act, ev, &c) : object_before(rec, act, ev, &c);
}

CcGo cc_call_after(CcRec *rec, CcAct *act, PyObject *const *in, int n, PyObject *kwnames, PyObject *result) {
    const bool ex = act->event != NULL && act->event->kind == CC_EV_CALL_EX;
    CcCalled c;
    if (!normalise(rec, &c, in, n, kwnames, ex)) return CC_OK;
    PyObject *held = held_call(c.func);
    if (unwrap(held != NULL ? held : c.func) != NULL || compiled_call(c.func) != NULL) return CC_OK;
    if (!PyFunction_Check(c.func)) {
        const CcCallee callee = cc_callee_find(c.func);
        if (callee.kind != CC_CALLEE_UNKNOWN) return cc_builtin_after(rec, act, &c, &callee, result);
        const CcTorch t = cc_torch_call(c.func, c.in, cc_call_positional(&c), c.kwnames);
        if (t.cls != CC_T_NONE) return torch_after(rec, act, &c, &t, result);
        if (PyType_Check(c.func)) guard_class(rec, (PyTypeObject *)c.func);
        if (result != NULL && plain_weakref(c.func)) weakref_after(rec, c.func, result);
    }
    if (result == NULL || PyExceptionInstance_Check(result) || cc_value_origin(rec, result) != CC_O_UNKNOWN)
        return CC_OK;
    if (PyType_Check(c.func)) {
        cc_number_hashed(rec, result);
        cc_same_hashed(rec, result);
        if ((PyAnySet_Check(result) || PyDict_Check(result)) && !cc_distinct_members(rec, result, NULL))
            return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, cc_type_name(result));
    }
    if (PyGen_Check(result) || PyType_Check(c.func) || Py_REFCNT(result) == 1) {
        cc_value_fresh(rec, result);
        return CC_OK;
    }
    char name[96];
    return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callable_name(c.func, name, sizeof name));
}

/* Called before a `with`: in its later steps it is too late to break before the statement. */
CcGo cc_call_with_before(CcRec *rec, CcAct *act, PyObject *o) {
    static PyObject *enter;
    if (enter == NULL) enter = cc_obj_intern("__enter__");
    if (find_special(o) != NULL) return cc_rec_break(rec, act, CC_R_DISABLED, "the block");
    if (cc_value_origin(rec, o) == CC_O_UNKNOWN) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    PyObject *d = cc_type_lookup(Py_TYPE(o), enter);
    const bool in_c = d != NULL && Py_IS_TYPE(d, &PyMethodDescr_Type) && cc_callee_find(d).kind == CC_CALLEE_UNKNOWN;
    if (in_c && cc_torch_call(d, &o, 1, NULL).cls == CC_T_NONE)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, cc_type_name(o));
    return CC_OK;
}
