/* formulas: asks the running torch by which formulas it computes some derivatives (ir/formula.def), before the first
 * training plan of the process.
 *
 * A thread of its own asks: it has none of the caller's modes and hooks, and neither its autocast nor its grad mode, so
 * nothing that a user could see is read or changed. It calls C functions only, and draws no random numbers. Nodes of
 * autograd's graph are called directly, so no backward runs. */
#include <pthread.h>

#include "eval_int.h"

/* form: the arguments: '.' the next operand of the formula, 'N' None */
static const struct Question {
    CcFormula formula;
    const char *callable, *form;
} QUESTION[] = {
    {CC_FORMULA_clamp_number, "clamp", "..."},
    {CC_FORMULA_clamp_tensor, "clamp", "..."},
    {CC_FORMULA_min_number, "clamp_min", ".."},
    {CC_FORMULA_min_number, "clamp", ".."},
    {CC_FORMULA_min_tensor, "clamp_min", ".."},
    {CC_FORMULA_min_tensor, "clamp", ".."},
    {CC_FORMULA_max_number, "clamp_max", ".."},
    {CC_FORMULA_max_number, "clamp", ".N."},
    {CC_FORMULA_max_tensor, "clamp_max", ".."},
    {CC_FORMULA_max_tensor, "clamp", ".N."},
    {CC_FORMULA_fmin, "fmin", ".."},
    {CC_FORMULA_fmax, "fmax", ".."},
};

static const CcType LINE = {.dtype = CC_DT_F32, .ndim = 1, .device = 1, .size = {CC_FORMULA_POINTS}, .stride = {1}};

static PyObject *ones(void) {
    void *data;
    PyObject *t = cc_tens_empty(&LINE, &data);
    for (int i = 0; t != NULL && i < CC_FORMULA_POINTS; i++) ((float *)data)[i] = 1;
    return t;
}

static PyObject *operand(CcFormula f, int k) {
    void *data;
    if (k >= cc_formula_tensors(f)) return PyFloat_FromDouble(cc_formula_point(f, k, 0));
    PyObject *t = cc_tens_empty(&LINE, &data);
    for (int i = 0; t != NULL && i < CC_FORMULA_POINTS; i++) ((float *)data)[i] = (float)cc_formula_point(f, k, i);
    if (t != NULL && PyObject_SetAttrString(t, "requires_grad", Py_True) < 0) Py_CLEAR(t);
    return t;
}

static PyObject *arguments(const struct Question *q) {
    const Py_ssize_t n = (Py_ssize_t)strlen(q->form);
    PyObject *args = PyTuple_New(n);
    for (int i = 0, k = 0; args != NULL && i < n; i++) {
        PyObject *o = q->form[i] == 'N' ? Py_NewRef(Py_None) : operand(q->formula, k++);
        if (o != NULL) PyTuple_SET_ITEM(args, i, o);
        else Py_CLEAR(args);
    }
    return args;
}

/* What the node of autograd's graph gives for gradients of 1: a tensor, or a tuple of them. */
static PyObject *gradients(PyObject *function, const struct Question *q) {
    PyObject *args = arguments(q), *y = args != NULL ? PyObject_Call(function, args, NULL) : NULL;
    PyObject *node = y != NULL ? PyObject_GetAttrString(y, "grad_fn") : NULL, *g = node != NULL ? ones() : NULL;
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
static void learn(const struct Question *q, PyObject *given) {
    static const float nothing[CC_FORMULA_POINTS] = {0};
    const float *grad[CC_FORMULA_OPERANDS] = {nothing, nothing, nothing};
    for (int i = 0, k = 0; q->form[i] != '\0'; i++) {
        CcTensor t = {0};
        PyObject *o = q->form[i] == 'N' ? NULL : gradient(given, i);
        if (o != NULL && cc_tens_is(o)) cc_tens_read(o, false, &t);
        if (t.data != NULL && t.type.dtype == LINE.dtype && cc_type_same_layout(&t.type, &LINE)) grad[k] = t.data;
        k += q->form[i] != 'N';
    }
    cc_formula_learn(q->formula, grad);
}

/* False: there is no memory. */
static bool ask(PyObject *functions, const struct Question *q) {
    PyObject *function = PyObject_GetAttrString(functions, q->callable);
    PyObject *given = function != NULL ? gradients(function, q) : NULL;
    const bool ok = given != NULL || !PyErr_ExceptionMatches(PyExc_MemoryError);
    cc_raised_clear();
    if (ok) learn(q, given);
    Py_XDECREF(given);
    Py_XDECREF(function);
    return ok;
}

static void *ask_all(void *done) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *functions = cc_obj_of_module("torch._C", "_VariableFunctions");
    bool ok = functions != NULL;
    for (int i = 0; ok && i < CC_COUNT(QUESTION); i++) ok = ask(functions, &QUESTION[i]);
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
    if (pthread_create(&thread, NULL, ask_all, &ok) != 0) return false;
    Py_BEGIN_ALLOW_THREADS;
    pthread_join(thread, NULL);
    Py_END_ALLOW_THREADS;
    if (ok && !asked) tell();
    return asked = asked || ok;
}
