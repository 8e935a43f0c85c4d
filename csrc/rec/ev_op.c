/* Operators, tests and iteration, and the dispatch of all events to their files. before() decides whether the
 * instruction can be recorded; after() records it. */
#include "rec_events.h"

bool cc_op_tensors(const CcEvent *ev, int depth) {
    for (int i = 0; i < ev->n; i++)
        if (ev->in[i] != NULL && cc_value_has_tensor(ev->in[i], depth)) return true;
    return false;
}

static bool is_heap(PyObject *o) { return cc_python_class(Py_TYPE(o)); }

bool cc_op_container(PyObject *o) {
    PyTypeObject *t = Py_TYPE(o);
    return t == &PyList_Type || t == &PyTuple_Type || t == &PyDict_Type || t == &PySet_Type || t == &PyFrozenSet_Type ||
           t == &PyODict_Type || t == &PyDictProxy_Type || cc_value_view(o) != NULL || cc_value_structseq(o) ||
           cc_known_is(o, CC_KNOWN_DEQUE) || cc_known_is(o, CC_KNOWN_DEFAULTDICT) || PySlice_Check(o) ||
           t == &PyMethod_Type || t == &PyByteArray_Type;
}

static bool dirty(CcRec *rec, PyObject *o) { return cc_value_dirty(rec, o) != CC_DIRTY_NO; }

/* ------------------------------------------------------------------ operators */

static const char *const binop_dunder[CC_NB_COUNT] = {
    "__add__", "__and__", "__floordiv__", "__lshift__", "__matmul__",  "__mul__", "__mod__",
    "__or__",  "__pow__", "__rshift__",   "__sub__",    "__truediv__", "__xor__",
};
static const char *const binop_name[CC_NB_COUNT] = {
    "add", "and", "floordiv", "lshift", "matmul", "mul", "mod", "or", "pow", "rshift", "sub", "truediv", "xor",
};
static const int mirrored[6] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
static const char *const compare_dunder[6] = {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"};

/* Whether the operation compares or formats a container's items, rather than only moving them. */
static bool looks_inside(const CcEvent *ev) {
    return ev->kind == CC_EV_COMPARE || ev->kind == CC_EV_CONTAINS || ev->kind == CC_EV_FORMAT ||
           (ev->kind == CC_EV_BINOP && ev->arg == CC_NB_REMAINDER);
}

bool cc_op_python_method(PyObject *o, const char *name) {
    if (!is_heap(o)) return false;
    PyObject *s = cc_obj_intern(name), *f = s != NULL ? cc_type_lookup(Py_TYPE(o), s) : NULL;
    Py_XDECREF(s);
    return f != NULL && Py_IS_TYPE(f, &PyFunction_Type);
}

bool cc_op_bare(PyObject *o) { return is_heap(o) && cc_value_base(Py_TYPE(o)) == &PyBaseObject_Type; }

/* A Python method of operand i's class performs the operation (at first: it may delegate to its base's C code). */
static bool done_in_python(const CcEvent *ev, int i) {
    PyObject *o = ev->in[i];
    char name[24];
    switch (ev->kind) {
    case CC_EV_BINOP:
        snprintf(name, sizeof name, "__i%s", binop_dunder[ev->arg] + 2);
        if (i == 0 && ev->flags & CC_EV_INPLACE && cc_op_python_method(o, name)) return true;
        snprintf(name, sizeof name, i == 0 ? "__%s" : "__r%s", binop_dunder[ev->arg] + 2);
        return cc_op_python_method(o, name);
    case CC_EV_COMPARE: return cc_op_python_method(o, compare_dunder[i == 0 ? ev->arg : mirrored[ev->arg]]);
    case CC_EV_CONTAINS: return i == 0 && cc_op_python_method(o, "__contains__");
    default: return false;
    }
}

/* Operands that only C code of builtin types reads; their content determines the result. */
CcGo cc_op_plain(CcRec *rec, CcAct *act, const CcEvent *ev, int depth) {
    for (int i = 0; i < ev->n; i++) {
        PyObject *o = ev->in[i];
        bool told = true;
        if (o == NULL) continue;
        if (cc_value_unknown(rec, o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
        if (dirty(rec, o)) return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
        if (looks_inside(ev) && !cc_number_settle(rec, o, depth))
            return cc_rec_break(rec, act, CC_R_DATA_SCALAR, cc_type_name(o));
        if (looks_inside(ev) && (ev->kind != CC_EV_COMPARE || cc_op_container(o)) && ev->kind != CC_EV_CONTAINS)
            told = cc_number_addresses(rec, o, depth, ev->kind != CC_EV_COMPARE) || ev->kind == CC_EV_COMPARE;
        if (!told) return cc_rec_break(rec, act, CC_R_ADDRESS, "its text");
        if (cc_value_const(o) || cc_value_ident(o) || cc_op_bare(o)) continue;
        if (!is_heap(o) && !cc_op_container(o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
        const bool known = is_heap(o) && PyExceptionInstance_Check(o) ? cc_inside_exception(rec, o, CC_MAX(depth, 3))
                                                                      : cc_inside_guard(rec, o, depth);
        if (!known && !done_in_python(ev, i)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    }
    return CC_OK;
}

bool cc_op_symbolic(CcRec *rec, const CcEvent *ev) {
    for (int i = 0; i < ev->n; i++)
        if (ev->in[i] != NULL && cc_value_symbolic(rec, ev->in[i])) return true;
    return false;
}

/* `assert tensor`: the jump skips raising AssertionError. The assertion holds now, so instead of a break, a node checks
 * it in each replay. */
static bool asserts(const CcAct *act, const CcEvent *ev) {
    const CcInsn *insn = act->code->insn;
    int jump = act->pc; /* 3.12: the jump itself; 3.13: TO_BOOL precedes it */
    if (insn[jump].op == CC_INSN_TO_BOOL) jump++;
    return jump + 1 < act->code->n && insn[jump].op == CC_INSN_JUMP_IF && insn[jump].arg == 1 &&
           insn[jump + 1].op == CC_INSN_COMMON && insn[jump + 1].arg == 0 && cc_tens_plain(ev->in[0]);
}

/* Whether a tensor is an operand itself. In list + list or tuple * 2, containers hold tensors, but no tensor operator
 * runs. */
static bool operand_tensor(const CcEvent *ev) {
    for (int i = 0; i < ev->n; i++)
        if (ev->in[i] != NULL && cc_tens_is(ev->in[i])) return true;
    return false;
}

/* A tensor and an object whose class defines operators in Python: these are recorded as frames. */
static bool python_operand(CcRec *rec, const CcEvent *ev) {
    for (int i = 0; ev->kind == CC_EV_BINOP && i < 2; i++)
        if (is_heap(ev->in[i]) && !cc_tens_is(ev->in[i]) && cc_value_origin(rec, ev->in[i]) != CC_O_UNKNOWN &&
            Py_TYPE(ev->in[i])->tp_as_number != NULL && cc_tens_plain(ev->in[1 - i]))
            return true;
    return false;
}

static bool is_number(PyObject *o) { return PyFloat_CheckExact(o) || PyLong_CheckExact(o); }

bool cc_op_formats(const CcEvent *ev) {
    return ev->kind == CC_EV_BINOP && ev->arg == CC_NB_REMAINDER &&
           (PyUnicode_Check(ev->in[0]) || PyBytes_Check(ev->in[0]));
}

/* "%(name)s" % mapping */
static bool names_items(const CcEvent *ev) {
    if (!cc_op_formats(ev)) return false;
    PyObject *text = ev->in[0];
    Py_ssize_t n = PyBytes_Check(text) ? PyBytes_GET_SIZE(text) : 0;
    const char *s = PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &n) : PyBytes_AS_STRING(text);
    if (s == NULL) cc_raised_clear(); /* a lone surrogate: it may name items */
    return s == NULL || cc_text_has(s, n, "%(");
}

CcGo cc_op_operator(CcRec *rec, CcAct *act, CcEvent *ev) {
    const CcGo go = cc_sym_operator(rec, act, ev);
    if (go != CC_OK) return go;
    if (ev->kind == CC_EV_BINOP && cc_op_tensors(ev, 1) && !operand_tensor(ev))
        return ev->arg == CC_NB_REMAINDER ? cc_rec_break(rec, act, CC_R_TENSOR_VALUE, "formatting a tensor")
                                          : cc_op_plain(rec, act, ev, 1);
    if (cc_op_tensors(ev, 1)) {
        if (python_operand(rec, ev)) return CC_OK;
        for (int i = 0; i < ev->n; i++) {
            if (!cc_value_plain(ev->in[i], 2))
                return cc_rec_break(rec, act, CC_R_TENSOR_SUBCLASS, cc_type_name(ev->in[i]));
            if (!cc_node_nameable(rec, ev->in[i], 3))
                return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(ev->in[i]));
            if (!cc_tens_is(ev->in[i]) && !cc_value_const(ev->in[i]) && ev->kind != CC_EV_SUBSCR &&
                (ev->kind != CC_EV_BINOP || !cc_op_container(ev->in[i])))
                return is_heap(ev->in[i]) ? CC_OK : cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(ev->in[i]));
        }
        return CC_OK;
    }
    if (cc_op_symbolic(rec, ev)) {
        if (ev->kind != CC_EV_COMPARE) return CC_OK;
        const bool numbers = is_number(ev->in[0]) && is_number(ev->in[1]); /* else the comparison may run code */
        const int outcome = numbers ? PyObject_RichCompareBool(ev->in[0], ev->in[1], ev->arg) : -1;
        if (outcome < 0) cc_raised_clear();
        return outcome >= 0 && cc_value_compare(rec, ev->arg, ev->in[0], ev->in[1], outcome)
                   ? CC_OK
                   : cc_rec_break(rec, act, CC_R_DATA_SCALAR, "comparison");
    }
    if (names_items(ev) && cc_item_fills(rec, ev->in[1]))
        return cc_rec_break(rec, act, CC_R_DIRTY_READ, "a defaultdict that formatting may fill");
    return cc_op_plain(rec, act, ev, 4);
}

/* Operators that raise depending on data: integer division by zero, an integer to a negative power. */
static bool divides(const CcEvent *ev) {
    return ev->kind == CC_EV_BINOP &&
           (ev->arg == CC_NB_FLOOR_DIVIDE || ev->arg == CC_NB_REMAINDER || ev->arg == CC_NB_POWER);
}

static CcGo operator_node(CcRec *rec, CcAct *act, const CcEvent *ev, CcActionForm form, const char *name,
                          int bind_status, const CcBound *bound) {
    const CcCallSpec spec = {.form = form,
                             .arg = ev->arg,
                             .in = ev->in,
                             .n = ev->n,
                             .name = name,
                             .flags = form == CC_F_INPLACE && cc_tens_is(ev->in[0]) ? CC_N_WRITES : 0,
                             .bound = bind_status == 0 ? bound : NULL,
                             .safe = !divides(ev) || cc_torch_takes_float(ev->in, ev->n)};
    return cc_node_add(rec, act, &spec, ev->result);
}

/* Guards the special methods that operators look up in the classes of tensors, which can be patched (given.c: other
 * objects). */
static void look_at_operators(CcRec *rec, const CcEvent *ev) {
    char name[24];
    if (ev->kind == CC_EV_COMPARE) {
        cc_attr_dunder(rec, ev->in[0], compare_dunder[ev->arg]);
        cc_attr_dunder(rec, ev->in[1], compare_dunder[mirrored[ev->arg]]);
    } else if (ev->kind == CC_EV_BINOP) {
        const char *dunder = binop_dunder[ev->arg];
        if (ev->flags & CC_EV_INPLACE) {
            snprintf(name, sizeof name, "__i%s", dunder + 2);
            cc_attr_dunder(rec, ev->in[0], name);
        }
        cc_attr_dunder(rec, ev->in[0], dunder);
        snprintf(name, sizeof name, "__r%s", dunder + 2);
        cc_attr_dunder(rec, ev->in[1], name);
    } else {
        cc_attr_dunder(rec, ev->in[0], ev->arg == '-' ? "__neg__" : ev->arg == '~' ? "__invert__" : "__pos__");
    }
}

/* ------------------------------------------------------------------ numbers that nodes compute */

/* A tensor on the CPU with which torch computes the same, whether a number is a float or a tensor of float64 without dims. */
static bool takes_either(PyObject *o) {
    enum { CPU = 1 };
    CcTensor t;
    if (!cc_tens_plain(o)) return false;
    cc_tens_read(o, false, &t);
    return t.type.ndim > 0 && t.type.device == CPU && (t.type.dtype == CC_DT_F32 || t.type.dtype == CC_DT_F64);
}

/* torch.scalar_tensor(number, dtype=torch.float64, device="cpu"), as a node. NULL: not possible. */
static PyObject *as_tensor(CcRec *rec, CcAct *act, PyObject *number) {
    static PyObject *make, *dtype, *device, *names;
    if (make == NULL) make = cc_obj_of_module("torch", "scalar_tensor");
    if (dtype == NULL) dtype = cc_obj_of_module("torch", "float64");
    if (device == NULL) device = PyUnicode_InternFromString("cpu");
    if (names == NULL) names = Py_BuildValue("(ss)", "dtype", "device");
    PyObject *const in[] = {number, dtype, device};
    const bool ready = make != NULL && dtype != NULL && device != NULL && names != NULL;
    PyObject *t = ready ? cc_call_unseen(act, make, in, CC_COUNT(in), names) : NULL;
    if (t == NULL) cc_raised_clear();
    const CcCallSpec spec = {.form = CC_F_CALL,
                             .target = make,
                             .kwnames = names,
                             .in = in,
                             .n = CC_COUNT(in),
                             .name = "torch.scalar_tensor",
                             .safe = true};
    if (t != NULL && cc_node_add(rec, act, &spec, t) != CC_OK) Py_CLEAR(t);
    return t;
}

/* x * r, where a node computes the number r: kernels take it as a tensor without dims. -> that tensor, which takes the
 * place of r in `in`, the operands; NULL: they stay as they are. */
static PyObject *number_as_tensor(CcRec *rec, CcAct *act, const CcEvent *ev, PyObject *in[2]) {
    const bool simple = ev->kind == CC_EV_BINOP && !(ev->flags & CC_EV_INPLACE) &&
                        (ev->arg == CC_NB_ADD || ev->arg == CC_NB_SUBTRACT || ev->arg == CC_NB_MULTIPLY ||
                         ev->arg == CC_NB_TRUE_DIVIDE);
    for (int i = 0; simple && i < 2; i++) {
        PyObject *number = ev->in[i];
        if (!PyFloat_CheckExact(number) || !cc_value_symbolic(rec, number) ||
            cc_value_origin(rec, number) != CC_O_VALUE || !takes_either(ev->in[1 - i]))
            continue;
        PyObject *made = as_tensor(rec, act, number);
        if (made != NULL) in[i] = made;
        return made;
    }
    return NULL;
}

static CcGo bind_operator(CcRec *rec, CcAct *act, const CcEvent *ev) {
    CcBound bound;
    switch (ev->kind) {
    case CC_EV_BINOP: {
        const bool inplace = ev->flags & CC_EV_INPLACE;
        const int status = cc_bind_binop((CcBinop)ev->arg, inplace, ev->in[0], ev->in[1], &bound);
        return operator_node(rec, act, ev, inplace ? CC_F_INPLACE : CC_F_BINOP, binop_name[ev->arg], status, &bound);
    }
    case CC_EV_UNARY:
        return operator_node(rec, act, ev, CC_F_UNARY,
                             ev->arg == '-'   ? "neg"
                             : ev->arg == '~' ? "invert"
                                              : "pos",
                             cc_bind_unary(ev->arg, ev->in[0], &bound), &bound);
    default:
        return operator_node(rec, act, ev, CC_F_COMPARE, compare_dunder[ev->arg],
                             cc_bind_compare(ev->arg, ev->in[0], ev->in[1], &bound), &bound);
    }
}

/* The node of an operator with a tensor or a number that varies among its operands. */
static CcGo node_of_operator(CcRec *rec, CcAct *act, const CcEvent *event) {
    PyObject *in[2] = {NULL, NULL};
    for (int i = 0; i < CC_MIN(event->n, 2); i++)
        in[i] = operand_tensor(event) ? cc_sym_operand(rec, act, event->in[i]) : event->in[i];
    CcEvent given = *event, *ev = &given;
    if (event->n <= 2) given.in = in;
    PyObject *made = number_as_tensor(rec, act, ev, in);
    if (rec->trace == NULL) return CC_GIVE_UP; /* the allocation ended the recording */
    const CcGo go = bind_operator(rec, act, ev);
    Py_XDECREF(made);
    return go;
}

/* tensor == "text", None != tensor: the classes of both decline, so that the instruction compares addresses.
 * look_at_operators() has guarded the tensor's class; a constant's value is guarded where it is read. */
static bool declined(const CcEvent *ev) {
    if (ev->kind != CC_EV_COMPARE || (ev->arg != Py_EQ && ev->arg != Py_NE)) return false;
    const int other = cc_tens_is(ev->in[0]) ? 1 : 0;
    return cc_tens_plain(ev->in[1 - other]) && cc_value_const(ev->in[other]) &&
           ev->result == (ev->arg == Py_NE ? Py_True : Py_False);
}

static CcGo operator_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (ev->result == NULL) /* whether it raises may depend on data */
        return operand_tensor(ev) || cc_op_symbolic(rec, ev)
                   ? cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises")
                   : CC_OK;
    if (python_operand(rec, ev) && cc_value_origin(rec, ev->result) != CC_O_UNKNOWN) return CC_OK;
    if (declined(ev)) return CC_OK;
    if (operand_tensor(ev) || (cc_op_symbolic(rec, ev) && ev->kind != CC_EV_COMPARE)) {
        const bool done = rec->trace->graph->node.n != cc_rec_frame(rec, act)->call_nodes;
        return done ? CC_OK : node_of_operator(rec, act, ev); /* done: Python code has recorded the nodes */
    }
    if (cc_value_origin(rec, ev->result) == CC_O_UNKNOWN) cc_value_fresh(rec, ev->result);
    return CC_OK;
}

/* C code writes to its left operand: lst += items, dict |= other, set |= other, also for derived classes. */
static bool in_place(const CcEvent *ev) {
    if (!(ev->flags & CC_EV_INPLACE) || cc_value_const(ev->in[0]) || cc_tens_is(ev->in[0])) return false;
    char text[24];
    snprintf(text, sizeof text, "__i%s", binop_dunder[ev->arg] + 2);
    PyObject *name = cc_obj_intern(text), *f = cc_type_lookup(Py_TYPE(ev->in[0]), name);
    Py_DECREF(name);
    return f != NULL && Py_IS_TYPE(f, &PyWrapperDescr_Type);
}

/* list += list or tuple: as list.extend, which does not read the list that it writes. */
static bool extends(CcRec *rec, const CcEvent *ev) {
    PyObject *self = ev->in[0], *items = ev->in[1];
    if (ev->arg != CC_NB_ADD || self == items || !(PyList_CheckExact(items) || PyTuple_CheckExact(items))) return false;
    return !cc_value_unknown(rec, self) && !cc_value_unknown(rec, items) && !dirty(rec, items) &&
           cc_inside_guard(rec, items, 1);
}

/* list += items or list *= n for a list that this trace has written to. An effect does the same in a replay: only the
 * right operand is read here. */
static CcGo change_written(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *self = ev->in[0], *with = ev->in[1];
    if (cc_value_unknown(rec, with)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(with));
    return ev->arg != CC_NB_ADD || self == with ? CC_OK : cc_builtin_extends(rec, act, self, with);
}

static CcGo inplace_container(CcRec *rec, CcAct *act, const CcEvent *ev) {
    const int source = cc_value_source(rec, ev->in[0]);
    if (source < 0) return CC_OK;
    PyObject *with = ev->result != NULL ? ev->in[1] : NULL; /* it may have written something before it raised */
    if (with != NULL && PyAnySet_Check(ev->in[0]) && with != ev->in[0]) {
        PyObject *members;
        CC_RETRY_ALLOC(members, PyFrozenSet_New(with));
        with = members;
        cc_vec_push(&rec->keep, with);
        cc_value_fresh(rec, with);
    } else if (with != NULL && (PyDict_Check(ev->in[0]) || ev->arg == CC_NB_ADD)) {
        with = cc_builtin_taken(rec, act, ev->in[0], with);
    }
    if (with == NULL || cc_builtin_stored(rec, act))
        return cc_rec_poison(rec, act, CC_R_DIRTY_READ, cc_type_name(ev->in[0]));
    cc_value_wrote(rec, ev->in[0], CC_DIRTY_ALL);
    cc_vec_push(&rec->written, source);
    PyObject *const in[] = {ev->in[0], with};
    const CcCallSpec spec = {.form = CC_F_INPLACE, .arg = ev->arg, .in = in, .n = 2, .name = "extend"};
    return cc_node_effect(rec, act, &spec, NULL);
}

/* ------------------------------------------------------------------ truth, iteration */

/* Its truth depends only on its length, which a guard can read. */
static bool counted(PyObject *o) {
    return PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || PyTuple_Check(o) ||
           cc_known_is(o, CC_KNOWN_DEQUE);
}

/* Its class leaves the length to its builtin base: asking for it runs no code of the user's. */
static bool counted_by_base(PyObject *o) {
    static PyObject *truth, *length;
    if (truth == NULL) truth = cc_obj_intern("__bool__");
    if (length == NULL) length = cc_obj_intern("__len__");
    PyObject *f = counted(o) && cc_type_lookup(Py_TYPE(o), truth) == NULL ? cc_type_lookup(Py_TYPE(o), length) : NULL;
    return f != NULL && Py_IS_TYPE(f, &PyWrapperDescr_Type);
}

static bool holds(PyObject *o) {
    const int is = PyObject_IsTrue(o);
    if (is < 0) cc_raised_clear(); /* the instruction will raise it again */
    return is == 1;
}

static CcGo truth_before(CcRec *rec, CcAct *act, CcEvent *ev) {
    if (ev->in[0] == Py_NotImplemented)
        return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "NotImplemented's truth, which warns");
    PyObject *o = ev->in[0];
    if (cc_sym_is(rec, o)) return cc_sym_operator(rec, act, ev);
    if (cc_tens_is(o))
        return asserts(act, ev) && holds(o) && cc_look_take_read() ? CC_OK
                                                                   : cc_rec_break(rec, act, CC_R_TENSOR_BRANCH, NULL);
    if (cc_value_symbolic(rec, o))
        return cc_number_truth(rec, o) ? CC_OK : cc_rec_break(rec, act, CC_R_DATA_SCALAR, "truth of a number");
    if (cc_value_const(o) || cc_value_ident(o) || cc_op_bare(o) || cc_op_python_method(o, "__bool__") ||
        cc_op_python_method(o, "__len__"))
        return CC_OK;
    if (cc_value_unknown(rec, o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    if (dirty(rec, o)) return cc_rec_break(rec, act, CC_R_DIRTY_READ, cc_type_name(o));
    if (is_heap(o) &&
        (PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || cc_inside_guard(rec, o, 1)))
        return CC_OK;
    if (counted(o) || PyExceptionInstance_Check(o) || cc_value_origin(rec, o) == CC_O_FRESH || PyCell_Check(o))
        return CC_OK;
    if (cc_op_container(o))
        return cc_inside_guard(rec, o, 1) ? CC_OK : cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    return Py_TYPE(o)->tp_as_number == NULL && Py_TYPE(o)->tp_as_sequence == NULL && Py_TYPE(o)->tp_as_mapping == NULL
               ? CC_OK
               : cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(o));
}

static CcGo truth_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    (void)act;
    PyObject *o = ev->in[0];
    if (cc_tens_is(o)) {
        const CcCallSpec spec = {.form = CC_F_ASSERT, .in = &o, .n = 1, .name = "assert", .flags = CC_N_EFFECT};
        return cc_node_check(rec, act, &spec);
    }
    const int source = cc_value_known(rec, o) ? -1 : cc_value_source(rec, o);
    if (source >= 0 && counted_by_base(o)) cc_inside_size(rec, source, PyObject_Size(o));
    return CC_OK;
}

/* Tensor.__iter__ is Python code: its call of unbind is recorded. */
static CcGo tensor_iter_before(CcRec *rec, CcAct *act, PyObject *o) {
    if (!cc_tens_plain(o)) return cc_rec_break(rec, act, CC_R_TENSOR_SUBCLASS, cc_type_name(o));
    return cc_node_unsized(rec, o) ? cc_rec_break(rec, act, CC_R_DATA_SHAPE, "iteration") : CC_OK;
}

/* How deep iteration reads: a dict's keys, but not its values, which may vary. */
static int depth_of_items(PyObject *o) { return PyDict_Check(o) ? 0 : 1; }

CcGo cc_op_iter(CcRec *rec, CcAct *act, const CcEvent *ev, bool values) {
    PyObject *o = ev->in[0];
    if (cc_tens_is(o)) return tensor_iter_before(rec, act, o);
    if (cc_value_unknown(rec, o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    if (PyIter_Check(o) && cc_value_origin(rec, o) != CC_O_FRESH)
        return cc_rec_break(rec, act, CC_R_OUTSIDE_ITER, cc_type_name(o));
    if (cc_op_bare(o) || cc_op_python_method(o, "__iter__") || cc_value_const(o) ||
        (cc_value_origin(rec, o) == CC_O_FRESH && !Py_IS_TYPE(o, &PyDictProxy_Type)))
        return CC_OK;
    return cc_op_plain(rec, act, ev, values ? 1 : depth_of_items(o));
}

static CcGo iter_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (ev->result == NULL) return CC_OK;
    if (is_heap(ev->in[0]) && !cc_inside_guard(rec, ev->in[0], 1) && Py_TYPE(ev->result)->tp_iternext != NULL &&
        !is_heap(ev->result) && !PyGen_Check(ev->result) && cc_value_origin(rec, ev->result) == CC_O_UNKNOWN)
        return cc_rec_poison(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(ev->in[0]));
    cc_value_fresh(rec, ev->result);
    return CC_OK;
}

static CcGo next_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *it = ev->in[0];
    if (cc_value_unknown(rec, it)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(it));
    if (cc_value_origin(rec, it) != CC_O_FRESH && !cc_op_python_method(it, "__next__"))
        return cc_rec_break(rec, act, PyGen_Check(it) ? CC_R_GENERATOR : CC_R_OUTSIDE_ITER, cc_type_name(it));
    return CC_OK;
}

static CcGo next_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *v = ev->result;
    if (v == NULL || cc_value_origin(rec, v) != CC_O_UNKNOWN) return CC_OK;
    if (PyTuple_CheckExact(v) || Py_REFCNT(v) == 1) { /* enumerate, zip, items(): the iterator made the pair */
        cc_value_fresh(rec, v);
        return CC_OK;
    }
    return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(ev->in[0]));
}

static CcGo unpack_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *o = ev->in[0];
    if (cc_tens_is(o)) return tensor_iter_before(rec, act, o);
    if (!PyDict_Check(o)) cc_sym_fill(rec, o); /* a, *rest = o: a list of its items */
    if (cc_value_unknown(rec, o)) return cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(o));
    if (PyIter_Check(o)) return next_before(rec, act, ev);
    if (cc_op_python_method(o, "__iter__")) return CC_OK;
    return cc_op_plain(rec, act, ev, depth_of_items(o));
}

static CcGo unpack_after(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (ev->n_out == 0) return CC_OK;
    for (int i = 0; i < ev->n_out; i++) {
        PyObject *v = ev->out[i];
        if (cc_value_origin(rec, v) != CC_O_UNKNOWN) continue;
        if (PyList_CheckExact(v) || PyTuple_CheckExact(v)) cc_value_fresh(rec, v);
        else return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(v));
    }
    return CC_OK;
}

/* ------------------------------------------------------------------ dispatch */

CcGo cc_op_before(CcRec *rec, CcAct *act, CcEvent *ev) {
    const bool operates = ev->kind == CC_EV_BINOP || ev->kind == CC_EV_UNARY || ev->kind == CC_EV_COMPARE;
    if (operates) look_at_operators(rec, ev);
    if (ev->kind == CC_EV_SPECIAL) cc_attr_dunder(rec, ev->in[0], PyUnicode_AsUTF8(ev->name));
    /* BINARY_SLICE and STORE_SLICE (3.12) create the slice themselves */
    if ((ev->kind == CC_EV_SUBSCR || ev->kind == CC_EV_STORE_SUBSCR) && PySlice_Check(ev->in[1]))
        cc_value_fresh(rec, ev->in[1]);
    if ((operates || ev->kind == CC_EV_FORMAT) && !cc_state_event(rec, ev))
        return cc_rec_break(rec, act, CC_R_UNKNOWN_TYPE, cc_type_name(ev->in[0]));
    switch (ev->kind) {
    case CC_EV_ATTR: {
        PyObject *const read[] = {ev->in[0], ev->name};
        CcGo done = cc_dunder_get(rec, act, ev, read, 2, false);
        if (done == CC_OK) done = cc_attr_computed(rec, act, ev);
        if (done != CC_OK) return done;
        const CcGo go = cc_attr_before(rec, act, ev->in[0], ev->name);
        return go == CC_OK && cc_sym_sized(rec, ev->in[0]) ? cc_sym_attr(rec, act, ev, ev->in[0], ev->name) : go;
    }
    case CC_EV_STORE_ATTR: {
        const CcGo done = cc_dunder_set(rec, act, ev, ev->in[0], ev->name, ev->in[1]);
        return done == CC_OK ? cc_attr_store_before(rec, act, ev->in[0], ev->name, ev->in[1]) : done;
    }
    case CC_EV_SUBSCR:
    case CC_EV_STORE_SUBSCR: {
        const CcGo done = cc_dunder_item(rec, act, ev);
        if (done != CC_OK) return done;
        return ev->kind == CC_EV_SUBSCR ? cc_item_before(rec, act, ev) : cc_item_store_before(rec, act, ev);
    }
    case CC_EV_STORE_GLOBAL:
    case CC_EV_STORE_DEREF: return cc_name_store_before(rec, act, ev);
    case CC_EV_BINOP:
        for (int i = 0; ev->arg == CC_NB_ADD && i < ev->n; i++) cc_sym_fill(rec, ev->in[i]);
        if (in_place(ev)) {
            cc_value_will_write(rec, ev->in[0]);
            cc_builtin_will_take(rec, act, ev->in[0]);
            if (PyList_CheckExact(ev->in[0]) && cc_value_dirty_key(rec, ev->in[0])) return change_written(rec, act, ev);
            if (PyList_CheckExact(ev->in[0]) && extends(rec, ev)) return CC_OK;
        }
        return cc_op_operator(rec, act, ev);
    case CC_EV_UNARY:
    case CC_EV_COMPARE: return cc_op_operator(rec, act, ev);
    case CC_EV_CONTAINS: return cc_item_contains_before(rec, act, ev);
    case CC_EV_TRUTH: return truth_before(rec, act, ev);
    case CC_EV_TUPLE: cc_sym_fill(rec, ev->in[0]); return cc_op_iter(rec, act, ev, false);
    case CC_EV_ITER:
        if (!PyDict_Check(ev->in[0])) cc_sym_fill(rec, ev->in[0]); /* C code reads a dict's keys only */
        return cc_op_iter(rec, act, ev, false);
    case CC_EV_SEND: cc_finalizers_delegates(rec, act, ev->in[0]); return next_before(rec, act, ev);
    case CC_EV_NEXT: return next_before(rec, act, ev);
    case CC_EV_UNPACK: return unpack_before(rec, act, ev);
    case CC_EV_UPDATE: return cc_display_update_before(rec, act, ev);
    case CC_EV_CALL: return cc_call_before(rec, act, ev, ev->in, ev->n, ev->name);
    case CC_EV_CALL_EX: return cc_call_before(rec, act, ev, ev->in, ev->n, NULL);
    case CC_EV_FORMAT: return cc_display_format_before(rec, act, ev);
    case CC_EV_RAISE: /* raising an exception writes its traceback and context */
        return cc_value_origin(rec, ev->in[0]) == CC_O_SOURCE && !PyType_Check(ev->in[0])
                   ? cc_rec_break(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(ev->in[0]))
                   : CC_OK;
    case CC_EV_IMPORT: return cc_name_import(rec, act, ev);
    case CC_EV_MATCH: return cc_match_before(rec, act, ev);
    case CC_EV_WITH: return cc_call_with_before(rec, act, ev->in[0]);
    default: return CC_OK;
    }
}

/* Events that write; writes to fresh objects count, too. */
static bool stores(const CcEvent *ev) {
    return ev->kind == CC_EV_STORE_ATTR || ev->kind == CC_EV_STORE_SUBSCR || ev->kind == CC_EV_STORE_GLOBAL ||
           ev->kind == CC_EV_STORE_DEREF || (ev->kind == CC_EV_BINOP && in_place(ev));
}

static CcGo event_after(CcRec *rec, CcAct *act, CcEvent *ev) {
    switch (ev->kind) {
    case CC_EV_BUILD_CLASS:
    case CC_EV_CONST:
        if (!cc_value_const(ev->result)) cc_value_met_const(rec, ev->result);
        return CC_OK;
    case CC_EV_GLOBAL: return cc_name_global(rec, ev);
    case CC_EV_STORE_GLOBAL: return cc_name_store_global(rec, act, ev);
    case CC_EV_DEREF: cc_name_cell(rec, ev->in[0], ev->result); return CC_OK;
    case CC_EV_STORE_DEREF: return cc_name_store_cell(rec, act, ev);
    case CC_EV_ATTR: return cc_attr_after(rec, act, ev->in[0], ev->name, ev->result);
    case CC_EV_STORE_ATTR:
        if (!rec->raised) return cc_attr_store(rec, act, ev->in[0], ev->name, ev->in[1]);
        if (cc_tens_is(ev->in[0])) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises");
        return ev->in[1] == NULL ? cc_attr_not_there(rec, act, ev->in[0], ev->name) : CC_OK;
    case CC_EV_SUBSCR: return cc_item_after(rec, act, ev);
    case CC_EV_STORE_SUBSCR: return cc_item_store_after(rec, act, ev);
    case CC_EV_BINOP:
        if (in_place(ev) && (ev->result == ev->in[0] || ev->result == NULL)) return inplace_container(rec, act, ev);
        return operator_after(rec, act, ev);
    case CC_EV_UNARY:
    case CC_EV_COMPARE: return operator_after(rec, act, ev);
    case CC_EV_IS: ev->result = cc_same_is(rec, act, ev->in) ? Py_True : Py_False; return CC_OK;
    case CC_EV_TRUTH: return truth_after(rec, act, ev);
    case CC_EV_ITER: return iter_after(rec, act, ev);
    case CC_EV_SEND:
    case CC_EV_NEXT: return next_after(rec, act, ev);
    case CC_EV_UNPACK: return unpack_after(rec, act, ev);
    case CC_EV_UPDATE: return cc_display_update_after(rec, act, ev);
    case CC_EV_TUPLE:
        if (ev->result != NULL) cc_value_pairs(rec, ev->result, ev->in[0]);
        cc_value_fresh(rec, ev->result);
        return CC_OK;
    case CC_EV_FUNCTION:
    case CC_EV_CELL: cc_value_fresh(rec, ev->result); return CC_OK;
    case CC_EV_MATCH: return cc_match_after(rec, act, ev);
    case CC_EV_EXC_MATCH: return cc_match_exception(rec, act, ev);
    case CC_EV_BUILD: return cc_display_after(rec, act, ev);
    case CC_EV_CLOSURE: return cc_name_closure(rec, ev);
    case CC_EV_SPECIAL: cc_value_fresh(rec, ev->result); return CC_OK;
    case CC_EV_FORMAT: return cc_display_format_after(rec, act, ev);
    case CC_EV_CALL: return cc_call_after(rec, act, ev->in, ev->n, ev->name, ev->result);
    case CC_EV_CALL_EX: return cc_call_after(rec, act, ev->in, ev->n, NULL, ev->result);
    default: return CC_OK;
    }
}

CcGo cc_op_after(CcRec *rec, CcAct *act, CcEvent *ev) {
    const CcGo go = event_after(rec, act, ev);
    if (stores(ev)) cc_rec_stored(rec, ev->in[0]);
    else if (ev->kind == CC_EV_NEXT || ev->kind == CC_EV_SEND) cc_checkpoint_stored(rec, ev->in[0]);
    return go;
}
