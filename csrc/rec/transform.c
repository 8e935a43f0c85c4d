/* torch.func's transforms (vmap, grad, jacrev ...) call their function with tensors of their own, inside C code: nothing there
 * can be recorded. A call is one node, for which a replay calls the transform again, if the function is pure: it
 * refers to torch, constants, tensors, functions of the same kind and modules whose forward is of the same kind; it
 * writes nothing and draws no random numbers, by the names that its code uses. Any other call is a break.
 *
 * The results come as a tree; a node gives a flat tuple of its tensors, and the containers around them are fresh. */
#include "rec_events.h"

enum { DEPTH = 12, CLASSES = 64, LOOKED = 2048 };

typedef struct Walk {
    CcRec *rec;
    bool mutable, mutates; /* refers to lists or dicts; uses names of methods that change some */
    bool hidden;           /* refers to tensors that the recording does not know: no operands of the node */
    bool dynamic;          /* sizes of results may depend on data */
    PyTypeObject *cls[CLASSES];
    int n_cls;
    PyObject *seen[CLASSES]; /* functions */
    int n_seen;
    PyObject *tensor[LOOKED]; /* that it may read */
    uint64_t version[LOOKED];
    int n_tensor;
    PyObject *object[LOOKED]; /* cells, containers and modules that it may read */
    int n_object;
} Walk;

static bool pure(Walk *w, PyObject *o, int depth);

static bool note(Walk *w, PyObject *o) {
    if (w->n_object == LOOKED) return false;
    w->object[w->n_object++] = o;
    return true;
}

/* ------------------------------------------------------------------ code */

static const char *const gradient = "grad"; /* torch.func's, or a tensor's: pure_insn */

/* Names of attributes that lead out of what is known, or change a container. */
static bool bad_name(Walk *w, PyObject *name) {
    static const char *const out[] = {"ops", "distributed", "compile", "backward",      "autograd", "load",     "save",
                                      "hub", "jit",         "cuda",    "requires_grad", "__dict__", "__class__"};
    static const char *const mutators[] = {"append",  "extend",         "insert",     "pop",  "popitem", "remove",
                                           "clear",   "update",         "setdefault", "sort", "reverse", "add",
                                           "discard", "register_buffer"};
    w->mutates = w->mutates || cc_text_among(name, mutators, CC_COUNT(mutators));
    return (cc_kernel_impure_name(name) && !cc_text_among(name, &gradient, 1)) ||
           cc_text_among(name, out, CC_COUNT(out));
}

static bool names_writes(PyObject *consts) {
    static const char *const keywords[] = {"out", "inplace"};
    return cc_kernel_names_keyword(consts, keywords, CC_COUNT(keywords));
}

static bool pure_name(Walk *w, PyObject *name, int depth) {
    if (bad_name(w, name)) return false;
    for (int i = 0; i < w->n_cls; i++) { /* a method or a property of a module: self.helper(x) */
        PyObject *d = cc_type_lookup(w->cls[i], name);
        PyObject *f = d != NULL && Py_IS_TYPE(d, &PyProperty_Type) ? PyObject_GetAttrString(d, "fget") : Py_XNewRef(d);
        const bool ok = f == NULL || !PyFunction_Check(f) || pure(w, f, depth - 1);
        cc_raised_clear();
        Py_XDECREF(f);
        if (!ok || (d != NULL && (Py_IS_TYPE(d, &PyStaticMethod_Type) || Py_IS_TYPE(d, &PyClassMethod_Type))))
            return false;
    }
    return true;
}

static bool pure_insn(Walk *w, const PyCodeObject *co, const CcInsn *insn, PyObject *globals, int depth) {
    static const char *const of = "func";
    if (cc_code_writes(insn)) return false;
    if (insn->op == CC_INSN_ATTR && cc_text_among(PyTuple_GET_ITEM(co->co_names, insn->arg), &gradient, 1)) {
        const CcInsn *before = insn - 1; /* no code begins with an attribute */
        return before->op == CC_INSN_ATTR && cc_text_among(PyTuple_GET_ITEM(co->co_names, before->arg), &of, 1);
    }
    switch (insn->op) {
    case CC_INSN_GLOBAL: {
        PyObject *name = PyTuple_GET_ITEM(co->co_names, insn->arg), *o = PyDict_GetItemWithError(globals, name);
        if (o == NULL) o = PyDict_GetItemWithError(PyEval_GetBuiltins(), name);
        cc_raised_clear();
        return o != NULL && pure(w, o, depth);
    }
    case CC_INSN_STORE_GLOBAL:
    case CC_INSN_DELETE_GLOBAL:
    case CC_INSN_STORE_ATTR:
    case CC_INSN_DELETE_ATTR:
    case CC_INSN_IMPORT_NAME: return false;
    default: return true;
    }
}

static bool pure_code(Walk *w, PyCodeObject *co, PyObject *globals, bool torchs, int depth) {
    const CcCode *code = cc_code_get(co);
    if (code == NULL) cc_raised_clear();
    if (code == NULL || (!torchs && names_writes(co->co_consts))) return false;
    for (int i = 0; !torchs && i < code->n; i++)
        if (!pure_insn(w, co, &code->insn[i], globals, depth)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_names); i++) {
        PyObject *name = PyTuple_GET_ITEM(co->co_names, i);
        if (torchs ? cc_kernel_impure_name(name) : !pure_name(w, name, depth)) return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_consts); i++) {
        PyObject *inner = PyTuple_GET_ITEM(co->co_consts, i);
        if (PyCode_Check(inner) && !pure_code(w, (PyCodeObject *)inner, globals, torchs, depth)) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ objects */

static bool of_torch(PyObject *module, const char *package) {
    const char *s = module != NULL && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : NULL;
    if (s == NULL) cc_raised_clear();
    return s != NULL && strncmp(s, package, strlen(package)) == 0;
}

static bool pure_function(Walk *w, PyFunctionObject *f, int depth) {
    for (int i = 0; i < w->n_seen; i++)
        if (w->seen[i] == (PyObject *)f) return true; /* being looked at, or found pure */
    if (w->n_seen == CLASSES) return false;
    w->seen[w->n_seen++] = (PyObject *)f;
    PyObject *const kept[] = {f->func_defaults, f->func_kwdefaults};
    const bool transform = cc_library_transform(f) || of_torch(f->func_module, "torch._functorch.");
    const bool torchs = transform || of_torch(f->func_module, "torch.");
    if (!torchs && f->func_dict != NULL && PyDict_GET_SIZE(f->func_dict) > 0) return false;
    for (int i = 0; !torchs && i < CC_COUNT(kept); i++)
        if (kept[i] != NULL && !pure(w, kept[i], depth - 1)) return false;
    for (Py_ssize_t i = 0; f->func_closure != NULL && i < PyTuple_GET_SIZE(f->func_closure); i++) {
        PyObject *cell = PyTuple_GET_ITEM(f->func_closure, i), *o = PyCell_GET(cell);
        if (o == NULL || !note(w, cell) || !pure(w, o, depth - 1)) return false;
    }
    return transform || pure_code(w, (PyCodeObject *)f->func_code, f->func_globals, torchs, depth - 1);
}

static bool empty(PyObject *o) { return PyDict_Check(o) && PyDict_GET_SIZE(o) == 0; }

/* What an instance of a module holds: tensors, modules, no hooks. */
static bool pure_held(Walk *w, PyObject *name, PyObject *o, int depth) {
    const char *s = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (s == NULL) cc_raised_clear();
    if (s == NULL || (strcmp(s, "inplace") == 0 && o != Py_False)) return false;
    if (strncmp(s, "_state_dict", 11) == 0 || strncmp(s, "_load_state_dict", 16) == 0) return true;
    if (strstr(s, "_hooks") != NULL) return empty(o);
    if (strcmp(s, "_non_persistent_buffers_set") == 0) return true;
    if (!note(w, o)) return false;
    if (strcmp(s, "_parameters") != 0 && strcmp(s, "_buffers") != 0 && strcmp(s, "_modules") != 0)
        return pure(w, o, depth);
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    while (PyDict_Check(o) && PyDict_Next(o, &pos, &key, &value))
        if (!pure(w, value, depth)) return false;
    return PyDict_Check(o);
}

static PyObject *method(PyTypeObject *t, const char *name) {
    PyObject *s = cc_obj_intern(name), *d = cc_type_lookup(t, s);
    Py_DECREF(s);
    return d;
}

/* Notes the classes of a module and of those below it: names in their code may mean methods of any of them. */
static bool note_classes(Walk *w, PyObject *o, PyTypeObject *base, int depth) {
    static const char *const own[] = {"__call__", "__getattr__", "__getattribute__", "_call_impl"};
    PyTypeObject *t = Py_TYPE(o);
    for (int i = 0; i < CC_COUNT(own); i++)
        if (method(t, own[i]) != method(base, own[i])) return false;
    bool known = false;
    for (int i = 0; i < w->n_cls; i++) known = known || w->cls[i] == t;
    PyObject *module = PyObject_GetAttrString((PyObject *)t, "__module__");
    if (!known && !of_torch(module, "torch.")) {
        if (w->n_cls < CLASSES) w->cls[w->n_cls++] = t;
        else depth = 0;
    }
    cc_raised_clear();
    Py_XDECREF(module);
    PyObject *dict = cc_obj_dict(o), *below = dict != NULL ? cc_obj_item(dict, "_modules") : NULL, *key, *value;
    Py_ssize_t pos = 0;
    while (below != NULL && PyDict_Check(below) && PyDict_Next(below, &pos, &key, &value))
        if (value != Py_None &&
            (depth == 0 || !PyObject_TypeCheck(value, base) || !note_classes(w, value, base, depth - 1)))
            return false;
    return depth > 0 && below != NULL;
}

static bool pure_module(Walk *w, PyObject *o, PyTypeObject *base, int depth) {
    PyObject *dict = cc_obj_dict(o), *key, *value, *forward = method(Py_TYPE(o), "forward");
    Py_ssize_t pos = 0;
    if (dict == NULL || forward == NULL || !PyFunction_Check(forward) || !note_classes(w, o, base, depth)) return false;
    if (!note(w, o) || !note(w, dict)) return false;
    while (PyDict_Next(dict, &pos, &key, &value))
        if (!pure_held(w, key, value, depth - 1)) return false;
    return pure(w, forward, depth - 1);
}

static bool pure_items(Walk *w, PyObject *o, int depth) {
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    if (PyDict_CheckExact(o)) {
        while (PyDict_Next(o, &pos, &key, &value))
            if (!cc_value_const(key) || !pure(w, value, depth - 1)) return false;
        return true;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
        if (!pure(w, PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
    return true;
}

/* A C function of torch that only computes; with arguments, it could still get `out=`, which names_writes() sees. */
static bool pure_builtin(PyObject *o) {
    const CcTorch t = cc_torch_call(o, NULL, 0, NULL);
    return (t.cls == CC_T_OP && t.node_flags == 0 && !t.draws) || t.cls == CC_T_META;
}

static bool pure(Walk *w, PyObject *o, int depth) {
    static PyTypeObject *base;
    if (base == NULL) base = (PyTypeObject *)cc_obj_of_module("torch.nn", "Module");
    if (depth <= 0 || base == NULL) return false;
    if (cc_value_const(o) || cc_kernel_plain(o)) return true;
    if (cc_tens_is(o)) {
        w->hidden = w->hidden || cc_value_origin(w->rec, o) == CC_O_UNKNOWN;
        if (w->n_tensor == LOOKED || !cc_tens_plain(o)) return false;
        w->version[w->n_tensor] = cc_tens_version(o);
        w->tensor[w->n_tensor] = o;
        return w->version[w->n_tensor++] != CC_TENS_NO_VERSION;
    }
    if (PyList_CheckExact(o) || PyDict_CheckExact(o)) {
        w->mutable = true;
        if (!note(w, o)) return false;
    }
    if (PyTuple_CheckExact(o) || PyList_CheckExact(o) || PyDict_CheckExact(o)) return pure_items(w, o, depth);
    if (PyMethod_Check(o))
        return pure(w, PyMethod_GET_SELF(o), depth - 1) && pure(w, PyMethod_GET_FUNCTION(o), depth - 1);
    if (PyFunction_Check(o)) return pure_function(w, (PyFunctionObject *)o, depth);
    if (PyObject_TypeCheck(o, base)) return pure_module(w, o, base, depth);
    return !PyType_Check(o) && pure_builtin(o);
}

/* ------------------------------------------------------------------ the node */

/* Fills `out` with the tensors of a tree of dicts, lists and tuples; gives the tree with None in their place. NULL: it
 * holds something else. */
static PyObject *flatten(PyObject *tree, PyObject *out, int depth) {
    PyObject *key, *value, *item = NULL;
    Py_ssize_t pos = 0;
    if (cc_tens_is(tree)) return PyList_Append(out, tree) == 0 ? Py_NewRef(Py_None) : NULL;
    if (depth == 0) return NULL;
    if (PyDict_CheckExact(tree)) {
        PyObject *shape = PyDict_New();
        while (shape != NULL && PyDict_Next(tree, &pos, &key, &value)) {
            item = cc_value_const(key) ? flatten(value, out, depth - 1) : NULL;
            if (item == NULL || PyDict_SetItem(shape, key, item) < 0) Py_CLEAR(shape);
            Py_XDECREF(item);
        }
        return shape;
    }
    if (!PyTuple_CheckExact(tree) && !PyList_CheckExact(tree)) return NULL;
    PyObject *shape = PyList_New(0), *result;
    for (Py_ssize_t i = 0; shape != NULL && i < PySequence_Fast_GET_SIZE(tree); i++) {
        item = flatten(PySequence_Fast_GET_ITEM(tree, i), out, depth - 1);
        if (item == NULL || PyList_Append(shape, item) < 0) Py_CLEAR(shape);
        Py_XDECREF(item);
    }
    if (shape == NULL || PyList_CheckExact(tree)) return shape;
    result = PyList_AsTuple(shape);
    Py_DECREF(shape);
    return result;
}

/* (shape, function, *args, **kwargs): the tensors of the call's result, whose tree must have the shape. */
static PyObject *call(PyObject *unused, PyObject *const *in, Py_ssize_t n, PyObject *kwnames) {
    (void)unused;
    PyObject *tree = PyObject_Vectorcall(in[1], in + 2, (size_t)(n - 2), kwnames);
    PyObject *leaves = tree != NULL ? PyList_New(0) : NULL;
    PyObject *shape = leaves != NULL ? flatten(tree, leaves, DEPTH) : NULL, *result = NULL;
    const int same = shape != NULL ? PyObject_RichCompareBool(shape, in[0], Py_EQ) : -1;
    if (same == 1) result = PyList_AsTuple(leaves);
    else if (leaves != NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "ccompile: a transform returned another structure than recorded");
    Py_XDECREF(shape);
    Py_XDECREF(leaves);
    Py_XDECREF(tree);
    return result;
}

static PyMethodDef definition = {"transform", (PyCFunction)(void (*)(void))call, METH_FASTCALL | METH_KEYWORDS, NULL};

static void set_fresh(CcRec *rec, PyObject *tree) {
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    if (cc_tens_is(tree)) return;
    if (PyDict_CheckExact(tree)) {
        while (PyDict_Next(tree, &pos, &key, &value)) set_fresh(rec, value);
    } else {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(tree); i++)
            set_fresh(rec, PySequence_Fast_GET_ITEM(tree, i));
    }
    cc_value_fresh(rec, tree);
}

/* Whether a replay can compare the result's metadata with the recorded one. It must be the call's own and share no memory:
 * no one tells a graph what a function returns views of. */
static bool checkable(const Walk *w, PyObject *leaves, Py_ssize_t i) {
    CcTensor t;
    PyObject *o = PyList_GET_ITEM(leaves, i);
    cc_tens_read(o, false, &t);
    if (!cc_tens_plain(o) || !cc_tens_matchable(&t.type) || cc_value_origin(w->rec, o) != CC_O_UNKNOWN) return false;
    for (int k = 0; k < w->n_tensor; k++)
        if (cc_undo_overlap(o, w->tensor[k])) return false;
    for (Py_ssize_t k = 0; k < i; k++)
        if (cc_undo_overlap(o, PyList_GET_ITEM(leaves, k))) return false;
    return true;
}

static bool all_checkable(const Walk *w, PyObject *leaves) {
    for (int k = 0; k < w->n_tensor; k++) /* F.relu(x, True) */
        if (cc_tens_version(w->tensor[k]) != w->version[k]) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(leaves); i++)
        if (!checkable(w, leaves, i)) return false;
    return PyList_GET_SIZE(leaves) > 0;
}

static void add(CcRec *rec, CcAct *act, const CcCalled *c, const char *name, const Walk *w, PyObject *shape,
                PyObject *leaves, PyObject *tree, bool draws) {
    static PyObject *function;
    if (function == NULL) function = PyCFunction_New(&definition, NULL);
    PyObject **in = cc_mem_get(sizeof *in * (size_t)(c->n + 2)), *tuple = PyList_AsTuple(leaves);
    in[0] = shape;
    in[1] = c->func;
    for (int i = 0; i < c->n; i++) in[i + 2] = c->in[i];
    (void)cc_value_const_source(rec, shape);
    cc_vec_push(&rec->keep, Py_NewRef(shape));
    const bool impure = rec->trace->impure, lasting = rec->trace->lasting;
    const CcCallSpec spec = {.form = CC_F_CALL,
                             .target = function,
                             .kwnames = c->kwnames,
                             .in = in,
                             .n = c->n + 2,
                             .name = name,
                             /* EFFECT: its place among writes to tensors that it reads unseen */
                             .flags = (w->hidden ? CC_N_EFFECT : 0u) | (draws ? CC_N_RANDOM : 0u),
                             .dynamic = w->dynamic,
                             .kernel = CC_KERNEL_KEEPS,
                             .checked = !w->dynamic};
    if (function == NULL || tuple == NULL) (void)cc_rec_poison(rec, act, CC_R_LIBRARY, spec.name);
    else if (cc_node_add(rec, act, &spec, tuple) == CC_OK && rec->trace != NULL) {
        rec->trace->impure = impure || draws;
        rec->trace->lasting = lasting || (draws && w->hidden);
        set_fresh(rec, tree);
    }
    Py_XDECREF(tuple);
    free(in);
}

/* Whether an effect, which runs after the graph, writes to what the function may read. */
static bool pending(const Walk *w) {
    for (int e = 0; e < w->rec->effect.n; e++) {
        PyObject *o = w->rec->effect.at[e].n > 0 ? w->rec->effect.at[e].in[0] : NULL;
        if (o == NULL || PyType_Check(o)) return true;
        for (int i = 0; i < w->n_object; i++)
            if (w->object[i] == o) return true;
    }
    return cc_kernel_globals_written(w->rec);
}

/* Calls it, and records the call as a node. */
static CcGo perform(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, const char *name, const Walk *w) {
    cc_vec_push(&rec->keep, Py_NewRef(c->func));
    bool draws = false;
    ev->result = cc_opaque_call(act, c->func, c->in, c->n, c->kwnames, &draws);
    PyObject *type, *value, *tb, *leaves = PyList_New(0);
    PyErr_Fetch(&type, &value, &tb);
    PyObject *shape = ev->result != NULL && leaves != NULL ? flatten(ev->result, leaves, DEPTH) : NULL;
    cc_raised_clear();
    if (rec->trace != NULL && (shape == NULL || !all_checkable(w, leaves)))
        (void)cc_rec_poison(rec, act, CC_R_LIBRARY, name);
    else if (rec->trace != NULL) add(rec, act, c, name, w, shape, leaves, ev->result, draws);
    Py_XDECREF(shape);
    Py_XDECREF(leaves);
    PyErr_Restore(type, value, tb);
    return CC_DONE;
}

CcGo cc_transform_call(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c) {
    Walk w = {.rec = rec};
    bool ok = pure(&w, c->func, DEPTH) && cc_node_nameable(rec, c->func, 4);
    for (int i = 0; ok && i < c->n; i++) ok = pure(&w, c->in[i], DEPTH) && cc_node_nameable(rec, c->in[i], 4);
    ok = ok && !(w.mutable && w.mutates) && !pending(&w);
    /* Autograd must know of all that requires a gradient. */
    if (w.hidden && (cc_mode_grad_now() || cc_node_catches(rec))) ok = false;
    if (!ok) return CC_OK;
    return perform(rec, act, ev, c, PyUnicode_AsUTF8(((PyFunctionObject *)c->func)->func_qualname), &w);
}

/* ------------------------------------------------------------------ functions of TorchScript */

/* A text that a node of TorchScript's graph reports, kept by rec; "" if it reports none. */
static const char *told(CcRec *rec, PyObject *node, const char *what) {
    PyObject *text = PyObject_CallMethod(node, what, NULL);
    const char *s = text != NULL && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;
    cc_raised_clear();
    if (text != NULL) cc_vec_push(&rec->keep, text);
    return s != NULL ? s : "";
}

static bool script_block(Walk *w, PyObject *block);

/* aten::mul: writes nothing, draws no random numbers. */
static bool script_op(Walk *w, const char *name, const char *schema) {
    static const char *const dynamic[] = {"index",  "nonzero",  "masked_select",
                                          "unique", "bincount", "repeat_interleave"};
    PyObject *text = PyUnicode_FromString(name);
    const bool impure = text == NULL || cc_kernel_impure_name(text);
    for (int i = 0; i < CC_COUNT(dynamic); i++) w->dynamic = w->dynamic || strstr(name, dynamic[i]) != NULL;
    cc_raised_clear();
    Py_XDECREF(text);
    return !impure && strchr(schema, '!') == NULL;
}

/* A constant that is a tensor may be a tensor of the program, or come back as a result. */
static bool script_constant(Walk *w, PyObject *node) {
    PyObject *of = PyObject_CallMethod(node, "kindOf", "s", "value"); /* raises for None */
    const bool tensor = of != NULL && PyUnicode_Check(of) && cc_text_is(of, "t");
    PyObject *o = tensor ? PyObject_CallMethod(node, "t", "s", "value") : NULL;
    const bool hidden = w->hidden;
    const bool known = !tensor || (o != NULL && pure(w, o, 1));
    CcTensor t = {0};
    if (known && tensor) cc_tens_read(o, false, &t);
    if (known && tensor && t.type.ndim == 0) w->hidden = hidden; /* a number of the traced code */
    cc_raised_clear();
    if (o != NULL) cc_vec_push(&w->rec->keep, o);
    Py_XDECREF(of);
    return known;
}

static bool script_node(Walk *w, PyObject *node) {
    static const char *const prims[] = {"prim::ListConstruct",
                                        "prim::ListUnpack",
                                        "prim::TupleConstruct",
                                        "prim::TupleUnpack",
                                        "prim::TupleIndex",
                                        "prim::DictConstruct",
                                        "prim::If",
                                        "prim::Loop",
                                        "prim::dtype",
                                        "prim::device",
                                        "prim::NumToTensor",
                                        "prim::unchecked_cast",
                                        "prim::Uninitialized",
                                        "prim::min",
                                        "prim::max",
                                        "prim::RaiseException"};
    const char *kind = told(w->rec, node, "kind");
    bool known = strncmp(kind, "aten::", 6) == 0 && script_op(w, kind + 6, told(w->rec, node, "schema"));
    if (strcmp(kind, "prim::Constant") == 0) known = script_constant(w, node);
    for (int i = 0; !known && i < CC_COUNT(prims); i++) known = strcmp(kind, prims[i]) == 0;
    PyObject *blocks = known ? PyObject_CallMethod(node, "blocks", NULL) : NULL;
    PyObject *list = blocks != NULL ? PySequence_List(blocks) : NULL;
    known = list != NULL;
    for (Py_ssize_t i = 0; known && i < PyList_GET_SIZE(list); i++) known = script_block(w, PyList_GET_ITEM(list, i));
    cc_raised_clear();
    Py_XDECREF(list);
    Py_XDECREF(blocks);
    return known;
}

static bool script_block(Walk *w, PyObject *block) {
    PyObject *nodes = PyObject_CallMethod(block, "nodes", NULL), *list = nodes != NULL ? PySequence_List(nodes) : NULL;
    bool known = list != NULL;
    for (Py_ssize_t i = 0; known && i < PyList_GET_SIZE(list); i++) known = script_node(w, PyList_GET_ITEM(list, i));
    cc_raised_clear();
    Py_XDECREF(list);
    Py_XDECREF(nodes);
    return known;
}

CcGo cc_transform_script(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c) {
    Walk w = {.rec = rec};
    const int source = cc_value_source(rec, c->func);
    PyObject *graph = source >= 0 ? PyObject_GetAttrString(c->func, "inlined_graph") : NULL;
    bool ok = graph != NULL && script_block(&w, graph);
    cc_raised_clear();
    Py_XDECREF(graph);
    for (int i = 0; ok && i < c->n; i++) ok = pure(&w, c->in[i], DEPTH) && cc_node_nameable(rec, c->in[i], 4);
    if (!ok || pending(&w) || (w.hidden && (cc_mode_grad_now() || cc_node_catches(rec)))) return CC_OK;
    cc_guard_add_check(&rec->trace->guards, source, CC_CHK_IDENT, c->func, -1);
    return perform(rec, act, ev, c, "ScriptFunction", &w);
}
