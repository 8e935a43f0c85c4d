/* Calls. The stack of a CALL is, in 3.11 and 3.12: NULL or unbound method, callable or self, arguments; from 3.13
 * on: callable, self or NULL, arguments, and for CALL_KW the tuple of keyword names on top. */
#include "py_int.h"

#include <stddef.h>

typedef struct Call {
    PyObject **args; /* positional values, then keyword values, contiguous */
    PyObject *callable, *names;
    int n, n_operands; /* number of values at args; number of operands on the stack */
} Call;

static Call find_call(const CcRun *r, const CcInsn *in) {
    int names = (in->flags & CC_IF_KW) != 0;
    PyObject *low = cc_top(r, in->arg + names + 2), *high = cc_top(r, in->arg + names + 1);
    Call call = {.args = cc_peek(r, in->arg + names), .n = in->arg, .n_operands = in->arg + 2 + names};
    call.names = names ? cc_top(r, 1) : in->aux >= 0 ? PyTuple_GET_ITEM(r->consts, in->aux) : NULL;
    bool method = cc_optab.null_last ? high != NULL : low != NULL;
    call.callable = method || cc_optab.null_last ? low : high;
    if (method) {
        call.args--;
        call.n++;
    }
    return call;
}

/* PY_VECTORCALL_ARGUMENTS_OFFSET lets a bound method write its self to args[-1], where an observer may look for the
 * callable; hence only unobserved calls set it. */
static PyObject *do_call(const Call *call, bool observed) {
    size_t n_pos = (size_t)(call->n - (call->names ? (int)PyTuple_GET_SIZE(call->names) : 0));
    return PyObject_Vectorcall(call->callable, call->args, n_pos | (observed ? 0 : PY_VECTORCALL_ARGUMENTS_OFFSET),
                               call->names);
}

CcDo cc_ex_CALL(CcRun *r, const CcInsn *in) {
    enum { INLINE = 12 };
    Call call = find_call(r, in);
    PyObject *local[INLINE], **ops = call.args - 1;
    /* 3.13: a NULL separates callable and arguments, but events need one array */
    if (r->act.observed && *ops != call.callable) {
        ops = call.n < INLINE ? local : PyMem_Malloc(sizeof *ops * (size_t)(call.n + 1));
        if (!ops) {
            PyErr_NoMemory();
            return CC_DO_RAISED;
        }
        ops[0] = call.callable;
        memcpy(ops + 1, call.args, sizeof *ops * (size_t)call.n);
    }
    CcEvent ev = {.kind = CC_EV_CALL, .in = ops, .n = call.n + 1, .name = call.names};
    CcDo done = cc_run_before(r, &ev);
    if (done == CC_DO_PERFORM) {
        cc_run_unobserved_call(r, call.callable);
        ev.result = do_call(&call, r->act.observed);
        done = cc_run_after(r, &ev, !ev.result);
    }
    if (ops != local && ops != call.args - 1) PyMem_Free(ops);
    if (done != CC_DO_NEXT) return done;
    cc_drop(r, call.n_operands);
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}

/* f(*args, **kwargs); from 3.14 on KW is always set, and the dict may be NULL. Converts args to a tuple first and stores
 * it in its stack slot, so that the instruction can be restarted. */
CcDo cc_ex_CALL_EX(CcRun *r, const CcInsn *in) {
    int kw = (in->flags & CC_IF_KW) != 0;
    PyObject **args = cc_peek(r, 1 + kw);
    if (!PyTuple_CheckExact(*args)) {
        /* TypeError: CPython composes the message */
        if (!Py_TYPE(*args)->tp_iter && !PySequence_Check(*args)) return CC_DO_HAND;
        CcEvent ev = {.kind = CC_EV_TUPLE, .in = args, .n = 1};
        CC_STEP(r, &ev, PySequence_Tuple(*args));
        Py_SETREF(*args, ev.result);
    }
    PyObject *kwargs = kw ? cc_top(r, 1) : NULL;
    if (kwargs && !PyDict_CheckExact(kwargs)) return CC_DO_HAND;
    PyObject *ops[] = {cc_top(r, cc_optab.null_last ? kw + 3 : kw + 2), *args, kwargs};
    CcEvent ev = {.kind = CC_EV_CALL_EX, .in = ops, .n = 3};
    CC_STEP(r, &ev, (cc_run_unobserved_call(r, ops[0]), PyObject_Call(ops[0], ops[1], ops[2])));
    cc_drop(r, 3 + kw);
    cc_push(r, ev.result);
    return CC_DO_NEXT;
}

/* ------------------------------------------------------------------ a callable that raises a saved exception */

typedef struct Raiser {
    PyObject_HEAD PyObject *type, *value, *traceback;
} Raiser;

static PyObject *raiser_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    Raiser *raiser = (Raiser *)self;
    (void)args;
    (void)kwargs;
    PyErr_Restore(raiser->type, raiser->value, raiser->traceback);
    raiser->type = raiser->value = raiser->traceback = NULL;
    return NULL;
}

static void raiser_dealloc(PyObject *self) {
    Raiser *raiser = (Raiser *)self;
    Py_XDECREF(raiser->type);
    Py_XDECREF(raiser->value);
    Py_XDECREF(raiser->traceback);
    PyObject_Free(self);
}

static PyTypeObject raiser_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ccompile.raiser",
    .tp_basicsize = sizeof(Raiser),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_call = raiser_call,
    .tp_dealloc = raiser_dealloc,
};

PyObject *cc_ex_raiser(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Raiser *raiser = PyType_Ready(&raiser_type) < 0 ? NULL : PyObject_New(Raiser, &raiser_type);
    if (!raiser) { /* out of memory: None is called instead, which raises as well */
        cc_raised_clear();
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return Py_NewRef(Py_None);
    }
    raiser->type = type;
    raiser->value = value;
    raiser->traceback = traceback;
    return (PyObject *)raiser;
}
