/* formulas: asks the running torch by which formulas it computes some derivatives (ir/formula.def), before the first
 * training plan of the process.
 *
 * A thread of its own asks: it has none of the caller's modes and hooks, and neither its autocast nor its grad mode, so
 * nothing that a user could see is read or changed. It calls C functions only, and draws no random numbers. Nodes of
 * autograd's graph are called directly, so no backward runs. */
#include <pthread.h>

#include "eval_int.h"

typedef struct Question {
    const char *callable, *form;
} Question;

enum { MOST = 2 }; /* questions about a formula */

static const Question QUESTION[CC_FORMULA_COUNT][MOST] = {
#define ASK(callable, form) {callable, form},
#define CC_FORMULA(id, op, numbers, asked, doc) [CC_FORMULA_##id] = {asked},
#include "../ir/formula.def"
#undef CC_FORMULA
#undef ASK
};

static const CcType LINE = {.dtype = CC_DT_F32, .ndim = 1, .device = 1, .size = {CC_FORMULA_POINTS}, .stride = {1}};

/* The operand's values at the points; operand -1: ones. */
static PyObject *line(CcFormula f, int operand) {
    void *data;
    PyObject *t = cc_tens_empty(&LINE, &data);
    for (int i = 0; t != NULL && i < CC_FORMULA_POINTS; i++)
        ((float *)data)[i] = operand < 0 ? 1 : (float)cc_formula_point(f, operand, i);
    return t;
}

static PyObject *argument(CcFormula f, int operand) {
    if (operand >= cc_formula_tensors(f)) return PyFloat_FromDouble(cc_formula_point(f, operand, 0));
    PyObject *t = line(f, operand);
    if (t != NULL && PyObject_SetAttrString(t, "requires_grad", Py_True) < 0) Py_CLEAR(t);
    return t;
}

static PyObject *arguments(CcFormula f, const char *form) {
    const Py_ssize_t n = (Py_ssize_t)strlen(form);
    PyObject *args = PyTuple_New(n);
    for (int i = 0, k = 0; args != NULL && i < n; i++) {
        PyObject *o = form[i] == 'N' ? Py_NewRef(Py_None) : argument(f, k++);
        if (o != NULL) PyTuple_SET_ITEM(args, i, o);
        else Py_CLEAR(args);
    }
    return args;
}

/* What the node of autograd's graph gives for gradients of 1: a tensor, or a tuple of them. */
static PyObject *gradients(PyObject *function, CcFormula f, const char *form) {
    PyObject *args = arguments(f, form), *y = args != NULL ? PyObject_Call(function, args, NULL) : NULL;
    PyObject *node = y != NULL ? PyObject_GetAttrString(y, "grad_fn") : NULL, *g = node != NULL ? line(f, -1) : NULL;
    PyObject *r = g != NULL ? PyObject_CallOneArg(node, g) : NULL;
    Py_XDECREF(g);
    Py_XDECREF(node);
    Py_XDECREF(y);
    Py_XDECREF(args);
    return r;
}

/* The gradient of argument i; NULL: there is none. */
static PyObject *gradient(PyObject *given, Py_ssize_t i) {
    if (given == NULL || !PyTuple_Check(given)) return i == 0 ? given : NULL;
    return i < PyTuple_GET_SIZE(given) ? PyTuple_GET_ITEM(given, i) : NULL;
}

/* An answer in another form counts as a formula that is not known here. */
static void learn(CcFormula f, const char *form, PyObject *given) {
    static const float nothing[CC_FORMULA_POINTS] = {0};
    const float *grad[CC_FORMULA_OPERANDS] = {nothing, nothing, nothing};
    for (int i = 0, k = 0; form[i] != '\0'; i++) {
        CcTensor t = {0};
        PyObject *o = form[i] == 'N' ? NULL : gradient(given, i);
        if (o != NULL && cc_tens_is(o)) cc_tens_read(o, false, &t);
        if (t.data != NULL && t.type.dtype == LINE.dtype && cc_type_same_layout(&t.type, &LINE)) grad[k] = t.data;
        k += form[i] != 'N';
    }
    cc_formula_learn(f, grad);
}

/* False: there is no memory. */
static bool ask(PyObject *functions, CcFormula f, const Question *q) {
    PyObject *function = PyObject_GetAttrString(functions, q->callable);
    PyObject *given = function != NULL ? gradients(function, f, q->form) : NULL;
    const bool ok = given != NULL || !PyErr_ExceptionMatches(PyExc_MemoryError);
    cc_raised_clear();
    if (ok) learn(f, q->form, given);
    Py_XDECREF(given);
    Py_XDECREF(function);
    return ok;
}

static void *ask_all(void *done) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *functions = cc_obj_of_module("torch._C", "_VariableFunctions");
    bool ok = functions != NULL;
    for (CcFormula f = 0; f < CC_FORMULA_COUNT; f++)
        for (const Question *q = QUESTION[f]; ok && q < QUESTION[f] + MOST && q->callable != NULL; q++)
            ok = ask(functions, f, q);
    Py_XDECREF(functions);
    *(bool *)done = ok;
    PyGILState_Release(state);
    return NULL;
}

static void tell(void) {
    for (CcFormula f = 0; f < CC_FORMULA_COUNT; f++)
        if (cc_formula_is_neither(f))
            cc_log_add(CC_LOG_FALLBACK,
                       "this torch's formula of the derivative %s is not known: torch differentiates its ops",
                       cc_formula_name(f));
}

bool cc_formulas_ask(void) {
    static bool asked;
    bool ok = asked;
    pthread_t thread;
    if (ok) return true;
    if (pthread_create(&thread, NULL, ask_all, &ok) == 0) {
        Py_BEGIN_ALLOW_THREADS;
        pthread_join(thread, NULL);
        Py_END_ALLOW_THREADS;
    }
    if (!ok) cc_log_add(CC_LOG_FALLBACK, "torch could not be asked for its derivatives' formulas: it differentiates");
    else if (!asked) tell();
    return asked = asked || ok;
}
