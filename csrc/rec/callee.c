/* What C callables do: resolves the rows of callee.def once into an identity map. The key of builtin functions and
 * bound builtin methods is their PyMethodDef, of slot wrappers the slot and its function, of all others the object. */
#include "rec_events.h"

/* one bit per trait, under its bare name */
enum {
#define CC_CALLEE_KIND(id, ...)
#define CC_TRAIT(id, doc) id = 1ull << CC_TRAIT_##id,
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
};

static const struct {
    CcReads reads;
    uint64_t traits;
} kinds[] = {
#define CC_CALLEE_KIND(id, reads, least, traits, ...) {CC_READS_##reads, traits},
#define CC_TRAIT(id, doc)
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
};

static const struct {
    CcCalleeKind kind;
    uint64_t traits;
    const char *paths;
} rows[] = {
#define CC_CALLEE(kind, traits, paths) {CC_CALLEE_##kind, traits, paths},
#include "callee.def"
#undef CC_CALLEE
};

static CcMap places; /* identity -> index among the callees */
static CC_VEC(CcCallee) callees;

/* types.MethodWrapperType has no public struct; its layout (descrobject.c, wrapperobject) is the same in 3.11-3.14. */
typedef struct {
    PyObject_HEAD PyWrapperDescrObject *descr;
    PyObject *self;
} MethodWrapper;

/* All types share one wrapperbase for a name, and one function may fill several slots (__setitem__ and __delitem__). */
static const void *slot_identity(const PyWrapperDescrObject *d) {
    return (const void *)((uintptr_t)d->d_base ^ (uintptr_t)d->d_wrapped << 1);
}

static const void *identity(PyObject *o) {
    if (PyCFunction_Check(o)) {
        const PyCFunctionObject *f = (PyCFunctionObject *)o;
        /* all types share one PyMethodDef for __new__: their tp_new tells them apart */
        if (f->m_self != NULL && PyType_Check(f->m_self) && strcmp(f->m_ml->ml_name, "__new__") == 0)
            return (const void *)(uintptr_t)((PyTypeObject *)f->m_self)->tp_new;
        return f->m_ml;
    }
    if (Py_IS_TYPE(o, &PyMethodDescr_Type) || Py_IS_TYPE(o, &PyClassMethodDescr_Type))
        return ((PyMethodDescrObject *)o)->d_method;
    if (Py_IS_TYPE(o, &PyWrapperDescr_Type)) return slot_identity((PyWrapperDescrObject *)o);
    if (cc_known_is(o, CC_KNOWN_METHOD_WRAPPER)) return slot_identity(((MethodWrapper *)o)->descr);
    return o;
}

PyObject *cc_callee_self(PyObject *o) {
    if (PyCFunction_Check(o)) {
        PyObject *self = PyCFunction_GET_SELF(o);
        return self != NULL && !PyModule_Check(self) && !PyType_Check(self) ? self : NULL;
    }
    return cc_known_is(o, CC_KNOWN_METHOD_WRAPPER) ? ((MethodWrapper *)o)->self : NULL;
}

/* The descriptor of this type that made the builtin method `o`, borrowed; a subclass may shadow it. */
static PyObject *method_in(PyObject *mro, PyTypeObject *type, PyObject *o) {
    PyObject *name = cc_obj_intern(((PyCFunctionObject *)o)->m_ml->ml_name), *found = NULL;
    for (Py_ssize_t i = 0; name != NULL && found == NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyObject *d = PyDict_GetItemWithError(cc_type_dict((PyTypeObject *)PyTuple_GET_ITEM(mro, i)), name);
        if (d != NULL && Py_IS_TYPE(d, type) && ((PyMethodDescrObject *)d)->d_method == ((PyCFunctionObject *)o)->m_ml)
            found = d;
    }
    Py_XDECREF(name);
    return found;
}

PyObject *cc_callee_unbound(PyObject *o) {
    if (cc_known_is(o, CC_KNOWN_METHOD_WRAPPER)) return (PyObject *)((MethodWrapper *)o)->descr;
    return method_in(Py_TYPE(PyCFunction_GET_SELF(o))->tp_mro, &PyMethodDescr_Type, o);
}

PyObject *cc_callee_class_method(PyObject *o) {
    PyObject *self = PyCFunction_GET_SELF(o);
    return PyType_Check(self) ? method_in(((PyTypeObject *)self)->tp_mro, &PyClassMethodDescr_Type, o) : NULL;
}

static PyObject *resolve(const char *path) {
    char module[128];
    snprintf(module, sizeof module, "%s", path);
    *strchr(module, '.') = '\0';
    PyObject *o = PyImport_ImportModule(module);
    const char *p = strchr(path, '.') + 1;
    while (o != NULL && p != NULL) {
        const char *dot = strchr(p, '.');
        char name[128];
        snprintf(name, sizeof name, "%.*s", dot != NULL ? (int)(dot - p) : (int)strlen(p), p);
        PyObject *next = NULL;
        if (PyType_Check(o)) { /* the descriptor itself, not what it binds to */
            PyObject *s = cc_obj_intern(name);
            next = s != NULL ? Py_XNewRef(cc_type_lookup((PyTypeObject *)o, s)) : NULL;
            Py_XDECREF(s);
        }
        if (next == NULL) next = PyObject_GetAttrString(o, name);
        Py_DECREF(o);
        o = next;
        p = dot != NULL ? dot + 1 : NULL;
    }
    if (o != NULL && (Py_IS_TYPE(o, &PyStaticMethod_Type))) {
        PyObject *f = PyObject_GetAttrString(o, "__func__");
        Py_SETREF(o, f);
    }
    if (o == NULL) cc_raised_clear();
    return o; /* immortal: its address is the key */
}

static CcCallee callee_of(CcCalleeKind kind, uint64_t traits, const char *name) {
    return (CcCallee){.kind = kind, .reads = kinds[kind].reads, .traits = kinds[kind].traits | traits, .name = name};
}

static void add(const void *identity, CcCalleeKind kind, uint64_t traits, const char *path) {
    const char *shown = strncmp(path, "builtins.", 9) == 0 ? path + 9 : path;
    cc_map_put(&places, identity, callees.n);
    cc_vec_push(&callees, callee_of(kind, traits, strcpy(cc_mem_get(strlen(shown) + 1), shown)));
}

int cc_callee_init(void) {
    if (callees.n > 0) return 0;
    for (int r = 0; r < CC_COUNT(rows); r++) {
        for (const char *p = rows[r].paths; *p != '\0';) {
            char path[160];
            const size_t n = strcspn(p, " ");
            snprintf(path, sizeof path, "%.*s", (int)n, p);
            p += n + (p[n] == ' ');
            PyObject *o = resolve(path);
            if (o != NULL) add(identity(o), rows[r].kind, rows[r].traits, path);
        }
    }
    return 0;
}

void cc_callee_add(PyObject *o, CcCalleeKind kind, const char *name) { add(identity(o), kind, 0, name); }

CcCallee cc_callee_find(PyObject *callable) {
    const int64_t *place = cc_map_find(&places, identity(callable));
    if (place != NULL) return callees.at[*place];
    if (cc_known_is(callable, CC_KNOWN_UFUNC)) return callee_of(CC_CALLEE_PURE, 0, "a ufunc of numpy");
    return callee_of(CC_CALLEE_UNKNOWN, 0, NULL);
}

/* ------------------------------------------------------------------ intrinsics: Python functions known by identity */

static const struct {
    const char *path;
    bool answer;
} intrinsics[] = {
    {"torch.compiler.is_compiling", true}, {"torch.compiler.is_dynamo_compiling", true},
    {"torch._utils.is_compiling", true},   {"ccompile._core.is_compiling", true},
    {"torch.jit.is_scripting", false},     {"torch.jit.is_tracing", false},
};
static CcMap intrinsic_answers;
static PyObject *profiling, *range_enter, *range_exit; /* of record_function; NULL: another torch */

/* Code that takes another path when compiled, with other numbers or other calls of hooks: it gets eager's answer. */
static const char *const told_eager[] = {"torch.nn.modules.transformer.TransformerEncoder.forward",
                                         "torch.nn.modules.module.Module._call_impl"};
static const PyObject *told_eager_code[CC_COUNT(told_eager)];

int cc_intrin_init(void) {
    for (int i = 0; i < CC_COUNT(intrinsics); i++) {
        char path[160];
        snprintf(path, sizeof path, "%s", intrinsics[i].path);
        PyObject *o = resolve(path);
        if (o != NULL) cc_map_put(&intrinsic_answers, o, intrinsics[i].answer);
    }
    for (int i = 0; i < CC_COUNT(told_eager); i++) {
        char path[160];
        snprintf(path, sizeof path, "%s", told_eager[i]);
        PyObject *o = resolve(path);
        if (o != NULL && PyFunction_Check(o)) told_eager_code[i] = PyFunction_GET_CODE(o);
    }
    profiling = resolve("torch._C._autograd._profiler_enabled");
    range_exit = profiling != NULL ? resolve("torch.autograd.profiler.record_function.__exit__") : NULL;
    range_enter = range_exit != NULL ? resolve("torch.autograd.profiler.record_function.__enter__") : NULL;
    return 0;
}

/* A higher-order operator (associative_scan, scan, while_loop ...): torch traces its functions with Dynamo. */
static bool higher_order(PyObject *o) {
    if (o != NULL && PyFunction_Check(o)) {
        PyObject *module = ((PyFunctionObject *)o)->func_module;
        const char *name = module != NULL && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : NULL;
        return name != NULL && strncmp(name, "torch._higher_order_ops", 23) == 0;
    }
    PyTypeObject *base = cc_known_type(CC_KNOWN_HIGHER_ORDER);
    return o != NULL && base != NULL && PyType_IsSubtype(Py_TYPE(o), base);
}

/* Code that asks and refers to such an operator, in a local or a global, uses it when compiled, which only Dynamo
 * supports, and plain ops otherwise. It may ask through a helper function. */
static bool names_higher_order(const PyCodeObject *co, PyObject *globals) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(co->co_names); k++)
        if (higher_order(PyDict_GetItemWithError(globals, PyTuple_GET_ITEM(co->co_names, k)))) return true;
    return false;
}

static bool would_trace(const CcAct *caller) {
    for (int depth = 0; caller != NULL && depth < 2; depth++, caller = caller->prev) {
        for (int slot = 0; slot < caller->code->n_locals; slot++)
            if (higher_order(cc_act_get(caller, slot))) return true;
        if (names_higher_order(caller->co, caller->func->func_globals)) return true;
    }
    return false;
}

/* Once Dynamo has run in this process, nn.Module.__init__ adds each new module to a table that only Dynamo reads. */
static bool is_dynamos_note(PyObject *callable) {
    if (!PyFunction_Check(callable)) return false;
    const PyFunctionObject *f = (PyFunctionObject *)callable;
    return cc_text_is(f->func_qualname, "GenerationTracker.tag") && f->func_module != NULL &&
           PyUnicode_Check(f->func_module) &&
           PyUnicode_CompareWithASCIIString(f->func_module, "torch._dynamo.mutation_guard") == 0;
}

/* torch.profiler.record_function names a range for a profiler. While no profiler is active, which a guard checks, a
 * replay skips the start and the end of the range. The object may keep the recorded handle: ending a range twice does
 * nothing. */
static PyObject *range_end(CcRec *rec, PyObject *callable, PyObject *const *in, int n, const CcAct *caller) {
    if (range_enter == NULL || (callable != range_enter && callable != range_exit)) return NULL;
    PyObject *on = cc_value_guard_call(rec, profiling);
    Py_XDECREF(on);
    if (on != Py_False) return NULL;
    PyObject *r = cc_call_unseen(caller, callable, in, n, NULL);
    (void)cc_look_take_read();
    PyObject *range = r != NULL ? PyObject_GetAttrString(in[0], "record") : NULL;
    cc_raised_clear(); /* other arguments: the call runs again and raises again */
    if (range != NULL && cc_value_origin(rec, range) == CC_O_UNKNOWN) cc_value_const_source(rec, range);
    Py_XDECREF(range);
    return r;
}

PyObject *cc_intrin_call(CcRec *rec, PyObject *callable, PyObject *const *in, int n, const CcAct *caller) {
    if (is_dynamos_note(callable)) return Py_NewRef(Py_None);
    PyObject *end = range_end(rec, callable, in, n, caller);
    if (end != NULL) return end;
    const int64_t *v = cc_map_find(&intrinsic_answers, callable);
    if (v == NULL || n > 0) return NULL; /* with arguments, it raises */
    bool answer = *v;
    for (int i = 0; i < CC_COUNT(told_eager_code); i++)
        answer = answer && (const PyObject *)caller->co != told_eager_code[i];
    answer = answer && !would_trace(caller);
    rec->told = rec->told || answer;
    return Py_NewRef(answer ? Py_True : Py_False);
}

/* Code of torch itself gets eager's answer, since it would take paths meant for Dynamo, except functions that only pass
 * the question on (torch._dynamo.is_compiling). */
static bool is_torchs(const PyCodeObject *co, PyObject *globals) {
    const char *text = cc_rec_module(globals);
    return text != NULL && strncmp(text, "torch", 5) == 0 && (text[5] == '\0' || text[5] == '.') &&
           !cc_text_is(co->co_name, "is_compiling");
}

/* The same tests as in would_trace, for a frame that CPython runs; first: the frame that asks. */
static bool told_eagers(PyFrameObject *frame, bool first) {
    PyCodeObject *co = PyFrame_GetCode(frame);
    PyObject *globals = PyFrame_GetGlobals(frame), *locals = PyFrame_GetLocals(frame);
    PyObject *values = locals != NULL ? PyMapping_Values(locals) : NULL; /* locals: a dict, or from 3.13 on a proxy */
    bool found = names_higher_order(co, globals) || (first && is_torchs(co, globals));
    for (Py_ssize_t i = 0; values != NULL && i < PyList_GET_SIZE(values); i++)
        found = found || higher_order(PyList_GET_ITEM(values, i));
    cc_raised_clear();
    Py_XDECREF(values);
    Py_XDECREF(locals);
    Py_DECREF(globals);
    Py_DECREF(co);
    return found;
}

PyObject *cc_intrin_answer(PyObject *func) {
    const int64_t *v = cc_map_find(&intrinsic_answers, func);
    PyFrameObject *caller = v != NULL && *v ? PyEval_GetFrame() : NULL;
    if (caller == NULL) return NULL;
    PyFrameObject *outer = PyFrame_GetBack(caller);
    const bool eagers = told_eagers(caller, true) || (outer != NULL && told_eagers(outer, false));
    Py_XDECREF(outer);
    return eagers ? NULL : Py_NewRef(Py_True);
}
