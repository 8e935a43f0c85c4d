/* Instructions on locals, cells and the stack, and those that build or extend containers. CPython's definitions are in
 * Python/ceval.c (3.11) and Python/bytecodes.c (3.12 to 3.14). */
#include "py_int.h"

/* ------------------------------------------------------------------ no-ops, and opcodes that only CPython performs */

CcDo cc_ex_HAND(CcRun *r, const CcInsn *in) {
    (void)r;
    (void)in;
    return CC_DO_HAND;
}
CcDo cc_ex_HAND_STOP(CcRun *r, const CcInsn *in) { return cc_ex_HAND(r, in); }
CcDo cc_ex_SUSPEND(CcRun *r, const CcInsn *in) { return cc_ex_HAND(r, in); }
CcDo cc_ex_NOP(CcRun *r, const CcInsn *in) {
    (void)r;
    (void)in;
    return CC_DO_NEXT;
}
CcDo cc_ex_RESUME(CcRun *r, const CcInsn *in) { return cc_ex_NOP(r, in); }

/* ------------------------------------------------------------------ locals */

static CcDo push_constant(CcRun *r, PyObject *constant) {
    CcEvent ev = {.kind = CC_EV_CONST, .result = constant};
    cc_run_report_made(r, &ev);
    cc_push(r, Py_NewRef(ev.result));
    return CC_DO_NEXT;
}
CcDo cc_ex_CONST(CcRun *r, const CcInsn *in) { return push_constant(r, PyTuple_GET_ITEM(r->consts, in->arg)); }
CcDo cc_ex_COMMON(CcRun *r, const CcInsn *in) {
    PyObject *constant = cc_optab_common(in->arg);
    return constant != NULL ? push_constant(r, constant) : CC_DO_HAND;
}
CcDo cc_ex_SMALL_INT(CcRun *r, const CcInsn *in) {
    PyObject *number = PyLong_FromLong(in->arg); /* below 256, so CPython has it cached */
    const CcDo done = push_constant(r, number);
    Py_DECREF(number);
    return done;
}

static CcDo load(CcRun *r, int local) {
    PyObject *value = cc_local(r, local);
    if (!value) {
        /* only parameters and plain locals; cells have an opcode of their own */
        PyObject *names = PyCode_GetVarnames(r->act.co);
        if (!names || local >= PyTuple_GET_SIZE(names)) {
            Py_XDECREF(names);
            cc_raised_clear();
            return CC_DO_HAND;
        }
        PyErr_Format(PyExc_UnboundLocalError,
                     "cannot access local variable '%U' where it is not associated with a value",
                     PyTuple_GET_ITEM(names, local));
        Py_DECREF(names);
        return CC_DO_RAISED;
    }
    cc_push(r, Py_NewRef(value));
    return CC_DO_NEXT;
}

CcDo cc_ex_LOAD_FAST(CcRun *r, const CcInsn *in) { return load(r, in->arg); }
CcDo cc_ex_LOAD_FAST_2(CcRun *r, const CcInsn *in) {
    if (!cc_local(r, in->arg) || !cc_local(r, in->aux)) return CC_DO_HAND;
    (void)load(r, in->arg);
    return load(r, in->aux);
}
CcDo cc_ex_LOAD_FAST_CLEAR(CcRun *r, const CcInsn *in) {
    cc_push(r, cc_local(r, in->arg));
    r->slot[in->arg] = CC_SLOT_NULL;
    cc_note_store(r, in->arg);
    return CC_DO_NEXT;
}
CcDo cc_ex_STORE_FAST(CcRun *r, const CcInsn *in) {
    cc_set_local(r, in->arg, cc_pop(r));
    return CC_DO_NEXT;
}
CcDo cc_ex_STORE_LOAD_FAST(CcRun *r, const CcInsn *in) {
    PyObject *loaded = in->aux == in->arg ? cc_top(r, 1) : cc_local(r, in->aux);
    if (!loaded) return CC_DO_HAND;
    Py_INCREF(loaded);
    cc_set_local(r, in->arg, cc_pop(r));
    cc_push(r, loaded);
    return CC_DO_NEXT;
}
CcDo cc_ex_STORE_FAST_2(CcRun *r, const CcInsn *in) {
    cc_set_local(r, in->arg, cc_pop(r));
    cc_set_local(r, in->aux, cc_pop(r));
    return CC_DO_NEXT;
}
CcDo cc_ex_DELETE_FAST(CcRun *r, const CcInsn *in) {
    if (!cc_local(r, in->arg)) return CC_DO_HAND;
    cc_set_local(r, in->arg, NULL);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ cells */

CcDo cc_ex_LOAD_DEREF(CcRun *r, const CcInsn *in) {
    PyObject *cell = cc_local(r, in->arg);
    if (!PyCell_GET(cell)) return CC_DO_HAND;
    CcEvent ev = {.kind = CC_EV_DEREF, .in = &cell, .n = 1};
    CC_STEP(r, &ev, Py_NewRef(PyCell_GET(cell)));
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}

static CcDo store_cell(CcRun *r, int local, PyObject *value) {
    PyObject *cell = cc_local(r, local), *ops[] = {cell, value};
    CcEvent ev = {.kind = CC_EV_STORE_DEREF, .in = ops, .n = 2};
    CC_STEP_INT(r, &ev, PyCell_Set(cell, value));
    return CC_DO_NEXT;
}

CcDo cc_ex_STORE_DEREF(CcRun *r, const CcInsn *in) {
    CcDo done = store_cell(r, in->arg, cc_top(r, 1));
    if (done == CC_DO_NEXT) cc_drop(r, 1);
    return done;
}
CcDo cc_ex_DELETE_DEREF(CcRun *r, const CcInsn *in) {
    return PyCell_GET(cc_local(r, in->arg)) ? store_cell(r, in->arg, NULL) : CC_DO_HAND;
}
CcDo cc_ex_MAKE_CELL(CcRun *r, const CcInsn *in) {
    PyObject *content = cc_local(r, in->arg), *cell = PyCell_New(content);
    if (!cell) return CC_DO_RAISED;
    CcEvent ev = {.kind = CC_EV_CELL, .in = &content, .n = 1, .arg = in->arg, .result = cell};
    r->slot[in->arg] = cc_slot_of_local(cell);
    cc_run_report_made(r, &ev);
    Py_XDECREF(content);
    return CC_DO_NEXT;
}
CcDo cc_ex_COPY_FREE_VARS(CcRun *r, const CcInsn *in) {
    PyObject *func = (PyObject *)r->act.func, *closure = r->act.func->func_closure;
    int first = r->act.code->n_locals - in->arg;
    for (int i = 0; i < in->arg; i++) {
        CcEvent ev = {.kind = CC_EV_CLOSURE, .in = &func, .n = 1, .arg = i, .result = PyTuple_GET_ITEM(closure, i)};
        cc_set_local(r, first + i, Py_NewRef(ev.result));
        cc_run_report_made(r, &ev);
    }
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ the stack */

CcDo cc_ex_PUSH_NULL(CcRun *r, const CcInsn *in) {
    (void)in;
    cc_push(r, NULL);
    return CC_DO_NEXT;
}
CcDo cc_ex_POP(CcRun *r, const CcInsn *in) {
    (void)in;
    cc_drop(r, 1);
    return CC_DO_NEXT;
}
CcDo cc_ex_COPY(CcRun *r, const CcInsn *in) {
    PyObject *value = cc_top(r, in->arg);
    cc_push(r, Py_XNewRef(value));
    return CC_DO_NEXT;
}
CcDo cc_ex_SWAP(CcRun *r, const CcInsn *in) {
    PyObject **a = cc_peek(r, 1), **b = cc_peek(r, in->arg), *t = *a;
    *a = *b;
    *b = t;
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ building */

/* Replaces the n topmost operands by `made`, which the observer sees afterwards. */
static CcDo push_built(CcRun *r, int n, PyObject *made) {
    if (!made) return CC_DO_RAISED;
    CcEvent ev = {
        .kind = CC_EV_BUILD, .in = cc_peek(r, n), .n = n, .arg = r->act.code->insn[r->act.pc].op, .result = made};
    cc_run_report_made(r, &ev);
    cc_drop(r, n);
    cc_push(r, made);
    return CC_DO_NEXT;
}

CcDo cc_ex_BUILD_TUPLE(CcRun *r, const CcInsn *in) {
    PyObject *tuple = PyTuple_New(in->arg), **items = cc_peek(r, in->arg);
    for (int i = 0; tuple && i < in->arg; i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    return push_built(r, in->arg, tuple);
}
CcDo cc_ex_BUILD_LIST(CcRun *r, const CcInsn *in) {
    PyObject *list = PyList_New(in->arg), **items = cc_peek(r, in->arg);
    for (int i = 0; list && i < in->arg; i++) PyList_SET_ITEM(list, i, Py_NewRef(items[i]));
    return push_built(r, in->arg, list);
}
CcDo cc_ex_BUILD_STRING(CcRun *r, const CcInsn *in) {
    PyObject *empty = PyUnicode_New(0, 0);
    PyObject *text = empty ? _PyUnicode_JoinArray(empty, cc_peek(r, in->arg), in->arg) : NULL;
    Py_XDECREF(empty);
    return push_built(r, in->arg, text);
}
CcDo cc_ex_BUILD_SLICE(CcRun *r, const CcInsn *in) {
    PyObject **at = cc_peek(r, in->arg);
    return push_built(r, in->arg, PySlice_New(at[0], at[1], in->arg == 3 ? at[2] : NULL));
}

/* Hashing and comparing keys of these types runs no Python code. */
static bool builtin_key(PyObject *key) {
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBool_Check(key) || key == Py_None ||
           PyFloat_CheckExact(key) || PyBytes_CheckExact(key);
}
static bool builtin_keys(PyObject *const *keys, int n, int stride) {
    for (int i = 0; i < n; i++) {
        if (!builtin_key(keys[i * stride])) return false;
    }
    return true;
}

static PyObject *make_set(PyObject *const *items, int n) {
    PyObject *set = PySet_New(NULL);
    for (int i = 0; set && i < n; i++) {
        if (PySet_Add(set, items[i]) < 0) Py_CLEAR(set);
    }
    return set;
}
static PyObject *make_map(PyObject *const *pairs, int n) {
    PyObject *map = PyDict_New();
    for (int i = 0; map && i < n; i++) {
        if (PyDict_SetItem(map, pairs[2 * i], pairs[2 * i + 1]) < 0) Py_CLEAR(map);
    }
    return map;
}
static PyObject *make_const_map(PyObject *keys, PyObject *const *values, int n) {
    PyObject *map = PyDict_New();
    for (int i = 0; map && i < n; i++) {
        if (PyDict_SetItem(map, PyTuple_GET_ITEM(keys, i), values[i]) < 0) Py_CLEAR(map);
    }
    return map;
}

CcDo cc_ex_BUILD_SET(CcRun *r, const CcInsn *in) {
    PyObject **items = cc_peek(r, in->arg);
    if (builtin_keys(items, in->arg, 1)) return push_built(r, in->arg, make_set(items, in->arg));
    CcEvent ev = {.kind = CC_EV_BUILD, .in = items, .n = in->arg, .arg = in->op};
    CC_STEP(r, &ev, make_set(items, in->arg));
    cc_drop(r, in->arg);
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}
CcDo cc_ex_BUILD_MAP(CcRun *r, const CcInsn *in) {
    int n = 2 * in->arg;
    PyObject **pairs = cc_peek(r, n);
    if (builtin_keys(pairs, in->arg, 2)) return push_built(r, n, make_map(pairs, in->arg));
    CcEvent ev = {.kind = CC_EV_BUILD, .in = pairs, .n = n, .arg = in->op};
    CC_STEP(r, &ev, make_map(pairs, in->arg));
    cc_drop(r, n);
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}
/* Reported like BUILD_MAP: key, value, ... */
CcDo cc_ex_BUILD_CONST_MAP(CcRun *r, const CcInsn *in) {
    PyObject *keys = cc_top(r, 1), **values = cc_peek(r, in->arg + 1);
    PyObject **pairs = PyMem_Calloc((size_t)(2 * in->arg + 1), sizeof *pairs);
    if (!pairs) {
        PyErr_NoMemory();
        return CC_DO_RAISED;
    }
    for (int i = 0; i < in->arg; i++) {
        pairs[2 * i] = PyTuple_GET_ITEM(keys, i);
        pairs[2 * i + 1] = values[i];
    }
    PyObject *map = make_const_map(keys, values, in->arg);
    CcEvent ev = {.kind = CC_EV_BUILD, .in = pairs, .n = 2 * in->arg, .arg = CC_INSN_BUILD_MAP, .result = map};
    if (map) cc_run_report_made(r, &ev);
    PyMem_Free(pairs);
    if (!map) return CC_DO_RAISED;
    cc_drop(r, in->arg + 1);
    cc_push(r, map);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ extending containers */

/* list.extend with LIST_EXTEND's own message for values that are not iterable. */
static int extend(PyObject *list, PyObject *more) {
    PyObject *same = PySequence_InPlaceConcat(list, more);
    if (same) {
        Py_DECREF(same);
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_TypeError) && !Py_TYPE(more)->tp_iter && !PySequence_Check(more)) {
        cc_raised_clear();
        PyErr_Format(PyExc_TypeError, "Value after * must be an iterable, not %.200s", Py_TYPE(more)->tp_name);
    }
    return -1;
}
static int dict_update(PyObject *dict, PyObject *more) {
    if (PyDict_Update(dict, more) == 0) return 0;
    if (PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping", Py_TYPE(more)->tp_name);
    return -1;
}

/* As format_kwargs_error in CPython's evaluator. */
static void name_merge_error(PyObject *callable, PyObject *more) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
        cc_raised_clear();
        PyObject *text = _PyObject_FunctionStr(callable);
        if (text)
            PyErr_Format(PyExc_TypeError, "%U argument after ** must be a mapping, not %.200s", text,
                         Py_TYPE(more)->tp_name);
        Py_XDECREF(text);
        return;
    }
    if (!PyErr_ExceptionMatches(PyExc_KeyError)) return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *args = value ? ((PyBaseExceptionObject *)value)->args : NULL;
    if (!args || !PyTuple_Check(args) || PyTuple_GET_SIZE(args) != 1) {
        PyErr_Restore(type, value, traceback);
        return;
    }
    PyObject *text = _PyObject_FunctionStr(callable);
    if (text)
        PyErr_Format(PyExc_TypeError, "%U got multiple values for keyword argument '%S'", text,
                     PyTuple_GET_ITEM(args, 0));
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}
static int dict_merge(PyObject *dict, PyObject *more, PyObject *callable) {
    if (_PyDict_MergeEx(dict, more, 2) == 0) return 0;
    name_merge_error(callable, more);
    return -1;
}

static int extend_container(CcRun *r, const CcInsn *in, PyObject *into, PyObject *value) {
    switch (in->op) {
    case CC_INSN_LIST_APPEND: return PyList_Append(into, value);
    case CC_INSN_SET_ADD: return PySet_Add(into, value);
    case CC_INSN_LIST_EXTEND: return extend(into, value);
    case CC_INSN_SET_UPDATE: return _PySet_Update(into, value);
    case CC_INSN_DICT_UPDATE: return dict_update(into, value);
    /* The callable is below the tuple of positional arguments; in 3.13 a NULL separates them. */
    default: return dict_merge(into, value, cc_top(r, in->arg + (cc_optab.null_last ? 4 : 3)));
    }
}

static CcDo update_step(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, in->arg + 1), cc_top(r, 1)};
    CcEvent ev = {.kind = CC_EV_UPDATE, .in = ops, .n = 2, .arg = in->op};
    CC_STEP_INT(r, &ev, extend_container(r, in, ops[0], ops[1]));
    cc_drop(r, 1);
    return CC_DO_NEXT;
}
CcDo cc_ex_LIST_APPEND(CcRun *r, const CcInsn *in) { return update_step(r, in); }
CcDo cc_ex_SET_ADD(CcRun *r, const CcInsn *in) { return update_step(r, in); }
CcDo cc_ex_LIST_EXTEND(CcRun *r, const CcInsn *in) { return update_step(r, in); }
CcDo cc_ex_SET_UPDATE(CcRun *r, const CcInsn *in) { return update_step(r, in); }
CcDo cc_ex_DICT_UPDATE(CcRun *r, const CcInsn *in) { return update_step(r, in); }
CcDo cc_ex_DICT_MERGE(CcRun *r, const CcInsn *in) { return update_step(r, in); }
CcDo cc_ex_MAP_ADD(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, in->arg + 2), cc_top(r, 2), cc_top(r, 1)};
    CcEvent ev = {.kind = CC_EV_UPDATE, .in = ops, .n = 3, .arg = in->op};
    CC_STEP_INT(r, &ev, PyDict_SetItem(ops[0], ops[1], ops[2]));
    cc_drop(r, 2);
    return CC_DO_NEXT;
}
CcDo cc_ex_LIST_TO_TUPLE(CcRun *r, const CcInsn *in) {
    (void)in;
    CcEvent ev = {.kind = CC_EV_TUPLE, .in = cc_peek(r, 1), .n = 1};
    CC_STEP(r, &ev, PyList_AsTuple(cc_top(r, 1)));
    return cc_replace(r, 1, ev.result);
}

/* ------------------------------------------------------------------ functions */

static PyObject **function_field(PyFunctionObject *func, int bit) {
    switch (bit) {
    case 1: return &func->func_defaults;
    case 2: return &func->func_kwdefaults;
    case 4: return &func->func_annotations;
    case 16: return cc_obj_annotate((PyObject *)func);
    case 8: return &func->func_closure;
    default: return NULL;
    }
}
static void report_function(CcRun *r, PyFunctionObject *func) {
    PyObject *parts[] = {func->func_code, func->func_defaults, func->func_kwdefaults, func->func_annotations,
                         func->func_closure};
    CcEvent ev = {.kind = CC_EV_FUNCTION, .in = parts, .n = 5, .result = (PyObject *)func};
    cc_run_report_made(r, &ev);
}
/* Before 3.13 the optional parts are below the code object, the closure topmost. */
CcDo cc_ex_MAKE_FUNCTION(CcRun *r, const CcInsn *in) {
    PyFunctionObject *func = (PyFunctionObject *)cc_frame_function(cc_top(r, 1), r->globals);
    if (!func) return CC_DO_RAISED;
    int n = 1;
    for (int bit = 8; bit >= 1; bit >>= 1) {
        if (in->arg & bit) Py_XSETREF(*function_field(func, bit), Py_NewRef(cc_top(r, ++n)));
    }
    report_function(r, func);
    cc_drop(r, n);
    cc_push(r, (PyObject *)func);
    return CC_DO_NEXT;
}
/* From 3.13 on parts are added one at a time; each time the function is reported again with the parts that it has. */
CcDo cc_ex_FUNCTION_ATTR(CcRun *r, const CcInsn *in) {
    if (!function_field((PyFunctionObject *)cc_top(r, 1), in->arg)) return CC_DO_HAND;
    PyFunctionObject *func = (PyFunctionObject *)cc_top(r, 1);
    Py_XSETREF(*function_field(func, in->arg), Py_NewRef(cc_top(r, 2)));
    report_function(r, func);
    Py_INCREF(func);
    return cc_replace(r, 2, (PyObject *)func);
}
