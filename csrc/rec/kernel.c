/* Python kernels of ops registered with torch.library: which ops have one, and which kernels access only their
 * operands. Effects run after the graph, so code that may read what the region writes can't be a node: it is a break. A
 * kernel accesses only its operands if it refers only to torch, constants, builtins that read nothing else, and
 * functions for which the same holds; the kernels of grouped matrix products in transformers do. After any other Python
 * code the trace must not read Python state: guards run before the graph and can't cover what this code changes. */
#include "rec_events.h"

enum { DEPTH = 6 };

/* ------------------------------------------------------------------ ops with Python kernels */

/* Keys under which torch.library.custom_op registers its wrappers of the kernel. */
static bool of_custom_op(const char *key) {
    static const char *const keys[] = {"CompositeExplicitAutograd", "Autograd", "ADInplaceOrView", "Meta"};
    for (int i = 0; i < CC_COUNT(keys); i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* torch.library registers "namespace/name/dispatch key". Meta kernels run only for tensors without data. *other: some
 * registrations are not custom_op's. */
static bool registered(const char *prefix, size_t n, bool *other) {
    PyObject *set = cc_obj_of_module("torch.library", "_impls"), *item;
    bool found = set == NULL || !PyAnySet_Check(set); /* an unknown version of torch: assume one */
    *other = found;
    for (Py_ssize_t place = 0; !*other && cc_set_next(set, &place, &item); place++) {
        const char *s = item != NULL && PyUnicode_Check(item) ? PyUnicode_AsUTF8(item) : NULL;
        if (s == NULL || strncmp(s, prefix, n) != 0 || (s[n] != '/' && s[n] != '.')) continue;
        const char *key = strrchr(s, '/');
        if (key == NULL || strcmp(key, "/Meta") == 0) continue;
        found = true;
        *other = *other || !of_custom_op(key + 1);
    }
    cc_raised_clear();
    Py_XDECREF(set);
    return found;
}

/* ------------------------------------------------------------------ kernels that access only their operands */

static bool plain_builtin(PyObject *o) {
    static const char *const names[] = {
        "abs", "all", "any",   "bool",     "dict",  "enumerate", "float", "int",    "isinstance", "len",   "list",
        "max", "min", "range", "reversed", "round", "set",       "slice", "sorted", "sum",        "tuple", "zip"};
    for (int i = 0; i < CC_COUNT(names); i++)
        if (cc_obj_item(PyEval_GetBuiltins(), names[i]) == o) return true;
    return PyExceptionClass_Check(o) && !cc_python_class((PyTypeObject *)o);
}

static bool torch_module(PyObject *o) {
    const char *name = PyModule_Check(o) ? PyModule_GetName(o) : NULL;
    cc_raised_clear();
    return name != NULL && (strcmp(name, "math") == 0 || strcmp(name, "torch") == 0 || strncmp(name, "torch.", 6) == 0);
}

static bool keeps(PyObject *o, int depth);

/* Whether the instruction refers only to globals for which the same holds, or to attributes of operands or of torch;
 * torch.ops would lead to other kernels. */
static bool keeps_insn(const PyCodeObject *co, const CcInsn *insn, PyObject *globals, int depth) {
    switch (insn->op) {
    case CC_INSN_GLOBAL: {
        PyObject *name = PyTuple_GET_ITEM(co->co_names, insn->arg), *o = PyDict_GetItemWithError(globals, name);
        if (o == NULL) o = PyDict_GetItemWithError(PyEval_GetBuiltins(), name);
        return o != NULL && (cc_value_const(o) || keeps(o, depth)); /* globals_written() checks these */
    }
    case CC_INSN_ATTR: return PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(co->co_names, insn->arg), "ops") != 0;
    case CC_INSN_STORE_DEREF:
    case CC_INSN_DELETE_DEREF: return insn->arg < co->co_nlocalsplus - co->co_nfreevars; /* not a cell from outside */
    case CC_INSN_STORE_GLOBAL:
    case CC_INSN_DELETE_GLOBAL:
    case CC_INSN_IMPORT_NAME: return false;
    default: return true;
    }
}

static bool keeps_code(PyCodeObject *co, PyObject *globals, int depth) {
    const CcCode *code = cc_code_get(co);
    if (code == NULL) cc_raised_clear();
    for (int i = 0; code != NULL && i < code->n; i++)
        if (!keeps_insn(co, &code->insn[i], globals, depth)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_consts); i++) {
        PyObject *inner = PyTuple_GET_ITEM(co->co_consts, i);
        if (PyCode_Check(inner) && !keeps_code((PyCodeObject *)inner, globals, depth)) return false;
    }
    return code != NULL;
}

static bool keeps_function(PyFunctionObject *f, int depth) {
    if (depth == 0 || (f->func_dict != NULL && PyDict_GET_SIZE(f->func_dict) > 0)) return false;
    for (Py_ssize_t i = 0; f->func_defaults != NULL && i < PyTuple_GET_SIZE(f->func_defaults); i++)
        if (!cc_value_const(PyTuple_GET_ITEM(f->func_defaults, i))) return false;
    if (f->func_kwdefaults != NULL) return false;
    for (Py_ssize_t i = 0; f->func_closure != NULL && i < PyTuple_GET_SIZE(f->func_closure); i++) {
        PyObject *o = PyCell_GET(PyTuple_GET_ITEM(f->func_closure, i));
        if (o == NULL || !(cc_value_const(o) || keeps(o, depth - 1))) return false; /* globals_written() checks cells */
    }
    return keeps_code((PyCodeObject *)f->func_code, f->func_globals, depth - 1);
}

bool cc_kernel_plain(PyObject *o) { return torch_module(o) || plain_builtin(o); }

static bool keeps(PyObject *o, int depth) {
    return torch_module(o) || plain_builtin(o) || (PyFunction_Check(o) && keeps_function((PyFunctionObject *)o, depth));
}

/* The function passed to custom_op: `fn` in a closure, under the wrapper of _disable_dynamo. */
static PyObject *given(PyObject *wrapper) {
    PyObject *f = PyObject_GetAttrString(wrapper, "__wrapped__");
    if (f == NULL) cc_raised_clear();
    else Py_DECREF(f); /* the wrapper keeps it alive */
    if (f == NULL) f = wrapper;
    if (!PyFunction_Check(f) || ((PyFunctionObject *)f)->func_closure == NULL) return NULL;
    PyObject *names = PyCode_GetFreevars((PyCodeObject *)((PyFunctionObject *)f)->func_code), *fn = NULL;
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), "fn") == 0)
            fn = PyCell_GET(PyTuple_GET_ITEM(((PyFunctionObject *)f)->func_closure, i));
    Py_XDECREF(names);
    return fn;
}

/* `part` of a torch.library.CustomOpDef: None, a function, or a dict of wrappers. */
static bool keeps_part(PyObject *def, const char *part) {
    PyObject *o = PyObject_GetAttrString(def, part), *key, *value;
    bool is = o != NULL && (o == Py_None || PyDict_Check(o) || keeps(o, DEPTH));
    Py_ssize_t pos = 0;
    while (is && PyDict_Check(o) && PyDict_Next(o, &pos, &key, &value)) {
        PyObject *fn = given(value);
        is = fn != NULL && keeps(fn, DEPTH);
    }
    cc_raised_clear();
    Py_XDECREF(o);
    return is;
}

static bool keeps_op(const char *prefix, size_t n) {
    PyObject *defs = cc_obj_of_module("torch._library.custom_ops", "OPDEFS");
    const int space = (int)(strchr(prefix, '/') - prefix);
    char qualified[264];
    snprintf(qualified, sizeof qualified, "%.*s::%.*s", space, prefix, (int)n - space - 1, prefix + space + 1);
    PyObject *name = PyUnicode_FromString(qualified);
    PyObject *def = defs != NULL && name != NULL ? PyObject_GetItem(defs, name) : NULL;
    const bool is = def != NULL && keeps_part(def, "_init_fn") && keeps_part(def, "_backend_fns") &&
                    (!cc_mode_grad_now() || keeps_part(def, "_setup_context_fn"));
    cc_raised_clear();
    Py_XDECREF(def);
    Py_XDECREF(name);
    Py_XDECREF(defs);
    return is;
}

/* Whether the trace has written to modules' globals, to cells or to functions' attributes, which kernels may read. */
bool cc_kernel_globals_written(const CcRec *rec) {
    for (int e = 0; e < rec->effect.n; e++) {
        PyObject *o = rec->effect.at[e].n > 0 ? rec->effect.at[e].in[0] : NULL;
        if (o == NULL) continue;
        if (PyModule_Check(o) || PyFunction_Check(o) || PyCell_Check(o)) return true;
        if (PyDict_Check(o) && cc_obj_item(o, "__builtins__") != NULL) return true; /* STORE_GLOBAL */
    }
    return false;
}

/* ------------------------------------------------------------------ autograd.Function */

/* Names of attributes or functions that write to a tensor, draw random numbers, or set torch's state. */
bool cc_kernel_impure_name(PyObject *name) {
    static const char *const names[] = {"data", "grad", "normal", "mark_dirty"};
    static const char *const parts[] = {"rand",        "dropout", "bernoulli", "multinomial", "poisson",
                                        "exponential", "rng",     "seed",      "set_"};
    const char *s = PyUnicode_AsUTF8(name);
    const size_t n = s != NULL ? strlen(s) : 0;
    if (n > 0 && strcmp(s, "set_materialize_grads") == 0) return false;
    if (n == 0 || (s[n - 1] == '_' && (n < 2 || s[n - 2] != '_'))) return true;
    for (int i = 0; i < CC_COUNT(names); i++)
        if (strcmp(s, names[i]) == 0) return true;
    for (int i = 0; i < CC_COUNT(parts); i++)
        if (strstr(s, parts[i]) != NULL) return true;
    return false;
}

bool cc_kernel_names_keyword(PyObject *consts, const char *const *keywords, int n) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(consts); i++) {
        PyObject *names = PyTuple_GET_ITEM(consts, i);
        for (Py_ssize_t k = 0; PyTuple_Check(names) && k < PyTuple_GET_SIZE(names); k++)
            if (PyUnicode_Check(PyTuple_GET_ITEM(names, k)) && cc_text_among(PyTuple_GET_ITEM(names, k), keywords, n))
                return true;
    }
    return false;
}

/* No op in place, no item stored, no `out=`, no function but torch's. */
static bool pure_code(PyCodeObject *co, PyObject *globals) {
    static const char *const out = "out";
    const CcCode *code = cc_code_get(co);
    if (code == NULL) cc_raised_clear();
    for (int i = 0; code != NULL && i < code->n; i++) {
        if (cc_code_writes(&code->insn[i])) return false;
        if (code->insn[i].op == CC_INSN_GLOBAL) {
            PyObject *o = PyDict_GetItemWithError(globals, PyTuple_GET_ITEM(co->co_names, code->insn[i].arg));
            if (o != NULL && PyFunction_Check(o)) return false;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_names); i++)
        if (cc_kernel_impure_name(PyTuple_GET_ITEM(co->co_names, i))) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_consts); i++)
        if (PyCode_Check(PyTuple_GET_ITEM(co->co_consts, i))) return false;
    return code != NULL && !cc_kernel_names_keyword(co->co_consts, &out, 1);
}

/* A class method that does not read its class, whose attributes may change, is like a static method. */
static bool reads_class(PyFunctionObject *f, PyObject *cls, const char *name) {
    PyObject *s = cc_obj_intern(name), *found = cc_type_lookup((PyTypeObject *)cls, s);
    Py_DECREF(s);
    if (!Py_IS_TYPE(found, &PyClassMethod_Type)) return false;
    const CcCode *code = cc_code_get((PyCodeObject *)f->func_code);
    cc_raised_clear();
    return code == NULL || cc_code_live(code, 0, 0);
}

/* Numbers and texts. A function in a cell might write or draw. */
static bool plain_cells(const PyFunctionObject *f) {
    for (Py_ssize_t i = 0; f->func_closure != NULL && i < PyTuple_GET_SIZE(f->func_closure); i++) {
        PyObject *o = PyCell_GET(PyTuple_GET_ITEM(f->func_closure, i));
        if (o == NULL || !cc_value_const(o)) return false;
    }
    return true;
}

/* The function of a static method or a class method, which the class keeps alive; NULL: it has no such method. */
static PyFunctionObject *function_of(PyObject *cls, const char *name) {
    PyObject *s = cc_obj_intern(name), *found = cc_type_lookup((PyTypeObject *)cls, s);
    Py_DECREF(s);
    const bool bound =
        found != NULL && (Py_IS_TYPE(found, &PyStaticMethod_Type) || Py_IS_TYPE(found, &PyClassMethod_Type));
    PyObject *f = bound ? PyObject_GetAttrString(found, "__func__") : NULL;
    Py_XDECREF(f); /* the method keeps it alive */
    cc_raised_clear();
    return f != NULL && PyFunction_Check(f) ? (PyFunctionObject *)f : NULL;
}

PyObject *cc_kernel_forward(PyObject *cls) {
    const PyFunctionObject *f = function_of(cls, "forward");
    return f != NULL ? f->func_code : NULL;
}

bool cc_kernel_sets_up_apart(PyObject *cls) {
    static PyObject *base;
    if (base == NULL) base = cc_obj_of_module("torch.autograd", "Function");
    return base != NULL && function_of(cls, "setup_context") != function_of(base, "setup_context");
}

static bool names_sizes(PyCodeObject *co) {
    static const char *const sizes[] = {"shape", "size", "numel", "nelement", "len", "stride", "nbytes"};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_names); i++)
        if (cc_text_among(PyTuple_GET_ITEM(co->co_names, i), sizes, CC_COUNT(sizes))) return true;
    return false;
}

/* Does the code store an attribute of this name, or (NULL) any? It is one of its context, as it writes to nothing else. */
static bool stores(PyCodeObject *co, PyObject *name) {
    const CcCode *code = cc_code_get(co);
    if (code == NULL) cc_raised_clear();
    for (int i = 0; code != NULL && i < code->n; i++)
        if ((code->insn[i].op == CC_INSN_STORE_ATTR || code->insn[i].op == CC_INSN_DELETE_ATTR) &&
            (name == NULL || PyTuple_GET_ITEM(co->co_names, code->insn[i].arg) == name))
            return true;
    return false;
}

/* Names that code may use which runs once more, on aliases of its operands: nothing behind them writes, draws random
 * numbers, warns, or tells an alias from the tensor itself; nor do torch's ops that only compute. */
static bool harmless_name(PyObject *name) {
    static const char *const names[] = {"torch",
                                        "nn",
                                        "functional",
                                        "math",
                                        "pi",
                                        "inf",
                                        "nan",
                                        "e",
                                        "finfo",
                                        "eps",
                                        "min",
                                        "max",
                                        "shape",
                                        "size",
                                        "numel",
                                        "nelement",
                                        "dim",
                                        "ndim",
                                        "dtype",
                                        "device",
                                        "T",
                                        "mT",
                                        "H",
                                        "mH",
                                        "real",
                                        "imag",
                                        "float16",
                                        "bfloat16",
                                        "float32",
                                        "float64",
                                        "int8",
                                        "uint8",
                                        "int16",
                                        "int32",
                                        "int64",
                                        "no_grad",
                                        "enable_grad",
                                        "save_for_backward",
                                        "saved_tensors",
                                        "needs_input_grad",
                                        "set_materialize_grads",
                                        "mark_non_differentiable",
                                        "len",
                                        "range",
                                        "tuple",
                                        "list",
                                        "int",
                                        "float",
                                        "bool",
                                        "abs",
                                        "sum",
                                        "slice",
                                        "zip",
                                        "enumerate",
                                        "tensor",
                                        "to",
                                        "type_as"};
    return cc_text_among(name, names, CC_COUNT(names)) || cc_torch_computes(name);
}

/* Code that asks for identity, or catches what an alias or our context would raise, might tell these. `x is None` tells
 * nothing. */
static bool asks_identity(PyCodeObject *co) {
    const CcCode *code = cc_code_get(co);
    if (code == NULL) cc_raised_clear();
    for (int i = 0; code != NULL && i < code->n; i++) {
        const CcInsn *insn = &code->insn[i];
        if (insn->op == CC_INSN_EXC_MATCH || insn->op == CC_INSN_CONTAINS) return true;
        if (insn->op != CC_INSN_IS) continue;
        const bool none =
            i > 0 && insn[-1].op == CC_INSN_CONST && PyTuple_GET_ITEM(co->co_consts, insn[-1].arg) == Py_None;
        if (!none) return true;
    }
    return code == NULL;
}

/* Whether the function may run once more without a trace. `others`: what has stored attributes of the context. */
static bool runs_again(PyCodeObject *co, PyCodeObject *const *others, int n) {
    static const char *const inplace = "inplace";
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_names); i++) {
        PyObject *name = PyTuple_GET_ITEM(co->co_names, i);
        bool ok = harmless_name(name);
        for (int k = 0; k < n && !ok; k++) ok = stores(others[k], name);
        if (!ok) return false;
    }
    return !cc_kernel_names_keyword(co->co_consts, &inplace, 1) && !asks_identity(co);
}

/* A number or text among the globals may be another one when autograd calls the backward. */
static bool reads_constants(PyCodeObject *co, PyObject *globals) {
    const CcCode *code = cc_code_get(co);
    if (code == NULL) cc_raised_clear();
    for (int i = 0; code != NULL && i < code->n; i++) {
        if (code->insn[i].op != CC_INSN_GLOBAL) continue;
        PyObject *o = PyDict_GetItemWithError(globals, PyTuple_GET_ITEM(co->co_names, code->insn[i].arg));
        if (o != NULL && !cc_kernel_plain(o)) return true;
    }
    return code == NULL;
}

/* What torch's decorator once_differentiable has wrapped. */
static PyFunctionObject *unwrapped(PyFunctionObject *f) {
    static PyObject *decorator;
    if (decorator == NULL) decorator = cc_obj_of_module("torch.autograd.function", "once_differentiable");
    PyObject *inner = f != NULL && f->func_dict != NULL ? cc_obj_item(f->func_dict, "__wrapped__") : NULL;
    const bool is = inner != NULL && PyFunction_Check(inner) && decorator != NULL && PyFunction_Check(decorator) &&
                    f->func_globals == ((PyFunctionObject *)decorator)->func_globals;
    return is ? (PyFunctionObject *)inner : f;
}

bool cc_kernel_sizes(PyObject *cls) {
    static const char *const methods[] = {"forward", "setup_context", "backward"};
    for (int i = 0; i < CC_COUNT(methods); i++) {
        PyFunctionObject *f = unwrapped(function_of(cls, methods[i]));
        if (f == NULL || names_sizes((PyCodeObject *)f->func_code)) return true;
    }
    return false;
}

bool cc_kernel_derives(PyObject *cls) {
    const PyFunctionObject *f[] = {function_of(cls, "forward"), function_of(cls, "setup_context"),
                                   unwrapped(function_of(cls, "backward"))};
    enum { N = CC_COUNT(f) };
    PyCodeObject *co[N];
    for (int i = 0; i < N; i++) {
        if (f[i] == NULL) return false;
        co[i] = (PyCodeObject *)f[i]->func_code;
    }
    for (int i = 0; i < N; i++)
        if ((i != 1 || cc_kernel_sets_up_apart(cls)) && !runs_again(co[i], co, N)) return false;
    if (stores(co[N - 1], NULL)) return false; /* a second backward would see that */
    PyObject *globals = f[N - 1]->func_globals;
    return f[N - 1]->func_closure == NULL && keeps((PyObject *)f[N - 1], DEPTH) && pure_code(co[N - 1], globals) &&
           !reads_constants(co[N - 1], globals);
}

static bool pure_method(PyObject *cls, const char *name) {
    PyFunctionObject *f = function_of(cls, name);
    return f != NULL && plain_cells(f) && keeps((PyObject *)f, DEPTH) && !reads_class(f, cls, name) &&
           pure_code((PyCodeObject *)f->func_code, f->func_globals);
}

/* A number, a text, or a tuple of such: a size, a stride. */
static bool plain_argument(PyObject *o, int depth) {
    if (!PyTuple_Check(o) || cc_python_class(Py_TYPE(o))) return cc_value_const(o);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++)
        if (depth == 0 || !plain_argument(PyTuple_GET_ITEM(o, i), depth - 1)) return false;
    return true;
}

bool cc_kernel_pure(const CcRec *rec, PyObject *apply, PyObject *const *in, int n) {
    PyObject *cls = PyCFunction_Check(apply) ? PyCFunction_GET_SELF(apply) : NULL;
    for (int i = 0; i < n; i++)
        if (!cc_tens_is(in[i]) && !plain_argument(in[i], 3)) return false;
    return cls != NULL && PyType_Check(cls) && pure_method(cls, "forward") && pure_method(cls, "setup_context") &&
           !cc_kernel_globals_written(rec);
}

/* ------------------------------------------------------------------ reads after a Python kernel */

void cc_kernel_ran(CcRec *rec, const char *name) {
    if (rec->trace == NULL || rec->ran.co != NULL) return;
    const CcAct *at = cc_rec_outer(rec)->act;
    rec->ran = (struct CcRan){(PyCodeObject *)Py_NewRef((PyObject *)at->co), at->pc, cc_mem_text(name)};
    rec->trace->guards.state_reads = 0;
}

void cc_kernel_read(CcRec *rec, int asked, CcSource source, PyObject *v) {
    if (rec->ran.co == NULL || rec->trace->guards.state_reads == asked) return;
    if (v == NULL ? source == CC_SRC_TLOOK : cc_value_ident(v) || cc_opaque_is_op(v))
        rec->trace->guards.state_reads = asked;
}

bool cc_kernel_lost(CcRec *rec, CcAct *act) {
    if (rec->trace == NULL || rec->ran.co == NULL || rec->trace->guards.state_reads == 0) return false;
    (void)cc_rec_retry(rec, act, rec->ran.co, rec->ran.pc, CC_R_CHANGED, rec->ran.name);
    return true;
}

void cc_kernel_forget(CcRec *rec) {
    Py_CLEAR(rec->ran.co);
    free(rec->ran.name);
    rec->ran = (struct CcRan){0};
}

CcKernel cc_kernel_of(CcRec *rec, const char *name) {
    const char *colons = strstr(name, "::"), *dot = strchr(name, '.');
    char prefix[256];
    if (colons == NULL && dot == NULL) return CC_KERNEL_PYTHON;
    const char *rest = colons != NULL ? colons + 2 : dot + 1;
    snprintf(prefix, sizeof prefix, "%.*s/%s", (int)((colons != NULL ? colons : dot) - name), name, rest);
    if (strncmp(prefix, "prims/", 6) == 0)
        return CC_KERNEL_C; /* torch's reference implementations, which read no state */
    if (strncmp(prefix, "profiler/", 9) == 0) return CC_KERNEL_PYTHON; /* C++, but they write the profiler's state */
    const size_t n = strcspn(prefix, ".");
    bool other;
    if (!registered(prefix, n, &other)) return CC_KERNEL_C;
    return !other && !cc_kernel_globals_written(rec) && keeps_op(prefix, n) ? CC_KERNEL_KEEPS : CC_KERNEL_PYTHON;
}
