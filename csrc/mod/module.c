/* ccompile._core: multi-phase initialisation. Supports the main interpreter only, with the GIL. */
#include "mod.h"

static int add_type(PyObject *m, PyType_Spec *spec, PyTypeObject **out) {
    PyObject *t = PyType_FromModuleAndSpec(m, spec, NULL);
    if (t == NULL) return -1;
    *out = (PyTypeObject *)t;
    return PyModule_AddType(m, *out);
}

static int module_exec(PyObject *m) {
    CcModState *state = PyModule_GetState(m);
    if (cc_py_init() < 0) return -1;
    if (add_type(m, &cc_types_compiled, &state->compiled) < 0 || add_type(m, &cc_types_disabled, &state->disabled) < 0)
        return -1;
    state->unsupported = PyErr_NewExceptionWithDoc(
        "ccompile.Unsupported",
        "Raised under fullgraph=True for code that can't be part of a single graph; says what, where, and what to do.",
        PyExc_RuntimeError, NULL);
    if (state->unsupported == NULL || PyModule_AddObjectRef(m, "Unsupported", state->unsupported) < 0) return -1;
    state->graph_break = PyObject_GetAttrString(m, "graph_break");
    if (state->graph_break == NULL) return -1;
    cc_eval_error_on_break = PyContextVar_New("error_on_graph_break", Py_False);
    if (cc_eval_error_on_break == NULL || PyModule_AddObjectRef(m, "error_on_graph_break", cc_eval_error_on_break) < 0)
        return -1;
    return cc_types_register(state) < 0 ? -1 : cc_eval_init(state->unsupported);
}

static int module_traverse(PyObject *m, visitproc visit, void *arg) {
    CcModState *state = PyModule_GetState(m);
    Py_VISIT(state->compiled);
    Py_VISIT(state->disabled);
    Py_VISIT(state->unsupported);
    Py_VISIT(state->graph_break);
    return 0;
}

static int module_clear(PyObject *m) {
    CcModState *state = PyModule_GetState(m);
    Py_CLEAR(state->compiled);
    Py_CLEAR(state->disabled);
    Py_CLEAR(state->unsupported);
    Py_CLEAR(state->graph_break);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

struct PyModuleDef cc_module_def = {
    PyModuleDef_HEAD_INIT,         .m_name = "ccompile._core",  .m_doc = "The C core of ccompile.",
    .m_size = sizeof(CcModState),  .m_methods = cc_api_methods, .m_slots = slots,
    .m_traverse = module_traverse, .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&cc_module_def); }
