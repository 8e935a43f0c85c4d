/* Operators, comparisons, truth and formatting. */
#include "py_int.h"

PyObject *cc_ex_binop(CcBinop op, bool inplace, PyObject *a, PyObject *b) {
    static PyObject *(*const plain[CC_NB_COUNT])(PyObject *, PyObject *) = {PyNumber_Add,
                                                                            PyNumber_And,
                                                                            PyNumber_FloorDivide,
                                                                            PyNumber_Lshift,
                                                                            PyNumber_MatrixMultiply,
                                                                            PyNumber_Multiply,
                                                                            PyNumber_Remainder,
                                                                            PyNumber_Or,
                                                                            NULL,
                                                                            PyNumber_Rshift,
                                                                            PyNumber_Subtract,
                                                                            PyNumber_TrueDivide,
                                                                            PyNumber_Xor};
    static PyObject *(*const into[CC_NB_COUNT])(PyObject *, PyObject *) = {PyNumber_InPlaceAdd,
                                                                           PyNumber_InPlaceAnd,
                                                                           PyNumber_InPlaceFloorDivide,
                                                                           PyNumber_InPlaceLshift,
                                                                           PyNumber_InPlaceMatrixMultiply,
                                                                           PyNumber_InPlaceMultiply,
                                                                           PyNumber_InPlaceRemainder,
                                                                           PyNumber_InPlaceOr,
                                                                           NULL,
                                                                           PyNumber_InPlaceRshift,
                                                                           PyNumber_InPlaceSubtract,
                                                                           PyNumber_InPlaceTrueDivide,
                                                                           PyNumber_InPlaceXor};
    if (op == CC_NB_POWER) return inplace ? PyNumber_InPlacePower(a, b, Py_None) : PyNumber_Power(a, b, Py_None);
    return (inplace ? into : plain)[op](a, b);
}

CcDo cc_ex_BINOP(CcRun *r, const CcInsn *in) {
    PyObject **ops = cc_peek(r, 2);
    bool inplace = in->flags & CC_IF_INPLACE;
    CcEvent ev = {.kind = CC_EV_BINOP, .arg = in->arg, .in = ops, .n = 2, .flags = inplace ? CC_EV_INPLACE : 0};
    CC_STEP(r, &ev, cc_ex_binop((CcBinop)in->arg, inplace, ops[0], ops[1]));
    return cc_replace(r, 2, ev.result);
}

static PyObject *unary(int op, PyObject *a) {
    return op == '-' ? PyNumber_Negative(a) : op == '~' ? PyNumber_Invert(a) : PyNumber_Positive(a);
}
CcDo cc_ex_UNARY(CcRun *r, const CcInsn *in) {
    CcEvent ev = {.kind = CC_EV_UNARY, .arg = in->arg, .in = cc_peek(r, 1), .n = 1};
    CC_STEP(r, &ev, unary(in->arg, cc_top(r, 1)));
    return cc_replace(r, 1, ev.result);
}

static PyObject *as_bool(int truth) { return truth < 0 ? NULL : Py_NewRef(truth ? Py_True : Py_False); }

CcDo cc_ex_truth(CcRun *r, PyObject *value, int flags, int *truth) {
    CcEvent ev = {.kind = CC_EV_TRUTH, .in = &value, .n = 1, .flags = flags};
    if (PyBool_Check(value)) {
        *truth = value == Py_True;
        return CC_DO_NEXT;
    }
    CC_STEP(r, &ev, as_bool(PyObject_IsTrue(value)));
    *truth = ev.result == Py_True;
    Py_DECREF(ev.result);
    return CC_DO_NEXT;
}

CcDo cc_ex_NOT(CcRun *r, const CcInsn *in) {
    (void)in;
    int truth;
    CcDo done = cc_ex_truth(r, cc_top(r, 1), 0, &truth);
    return done == CC_DO_NEXT ? cc_replace(r, 1, as_bool(!truth)) : done;
}
CcDo cc_ex_TO_BOOL(CcRun *r, const CcInsn *in) {
    (void)in;
    int truth;
    CcDo done = cc_ex_truth(r, cc_top(r, 1), CC_EV_JUMP, &truth);
    return done == CC_DO_NEXT ? cc_replace(r, 1, as_bool(truth)) : done;
}

CcDo cc_ex_COMPARE(CcRun *r, const CcInsn *in) {
    PyObject **ops = cc_peek(r, 2);
    CcEvent ev = {.kind = CC_EV_COMPARE, .arg = in->arg, .in = ops, .n = 2};
    CC_STEP(r, &ev, PyObject_RichCompare(ops[0], ops[1], in->arg));
    return cc_replace(r, 2, ev.result);
}
CcDo cc_ex_IS(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, 2), cc_top(r, 1)};
    bool same = ops[0] == ops[1];
    if (ops[0] != Py_None && ops[1] != Py_None && !PyBool_Check(ops[0]) && !PyBool_Check(ops[1])) {
        CcEvent ev = {.kind = CC_EV_IS, .in = ops, .n = 2, .result = same ? Py_True : Py_False};
        cc_run_report_made(r, &ev);
        same = ev.result == Py_True;
    }
    return cc_replace(r, 2, as_bool(same != (in->arg != 0)));
}
CcDo cc_ex_CONTAINS(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, 1), cc_top(r, 2)};
    CcEvent ev = {.kind = CC_EV_CONTAINS, .in = ops, .n = 2};
    CC_STEP(r, &ev, as_bool(PySequence_Contains(ops[0], ops[1])));
    bool found = ev.result == Py_True;
    Py_DECREF(ev.result);
    return cc_replace(r, 2, as_bool(found != (in->arg != 0)));
}

/* ------------------------------------------------------------------ formatting */

static PyObject *convert(PyObject *value, int conversion) {
    switch (conversion) {
    case 1: return PyObject_Str(value);
    case 2: return PyObject_Repr(value);
    case 3: return PyObject_ASCII(value);
    default: return Py_NewRef(value);
    }
}
static PyObject *format(PyObject *value, int conversion, PyObject *spec) {
    PyObject *converted = convert(value, conversion);
    if (!converted || (PyUnicode_CheckExact(converted) && !spec)) return converted;
    PyObject *text = PyObject_Format(converted, spec);
    Py_DECREF(converted);
    return text;
}

CcDo cc_ex_FORMAT(CcRun *r, const CcInsn *in) {
    int n = in->flags & CC_IF_SPEC ? 2 : 1;
    PyObject **at = cc_peek(r, n), *ops[] = {at[0], n == 2 ? at[1] : NULL};
    CcEvent ev = {.kind = CC_EV_FORMAT, .arg = in->arg, .in = ops, .n = 2};
    CC_STEP(r, &ev, format(ops[0], in->arg, ops[1]));
    return cc_replace(r, n, ev.result);
}
CcDo cc_ex_CONVERT(CcRun *r, const CcInsn *in) {
    PyObject *ops[] = {cc_top(r, 1), NULL};
    CcEvent ev = {.kind = CC_EV_FORMAT, .arg = in->arg, .in = ops, .n = 2};
    CC_STEP(r, &ev, convert(ops[0], in->arg));
    return cc_replace(r, 1, ev.result);
}
