/* mod: the extension module _core: its types and functions. */
#ifndef CC_MOD_H
#define CC_MOD_H

#include "../eval/eval.h"

typedef struct CcModState {
    PyTypeObject *compiled, *disabled;
    PyObject *unsupported; /* class Unsupported(RuntimeError) */
    PyObject *graph_break; /* the function ccompile.graph_break */
} CcModState;
extern struct PyModuleDef cc_module_def;

extern PyType_Spec cc_types_compiled, cc_types_disabled;
/* What a call of a Compiled runs; NULL: o is not a Compiled. */
CC_BORROW PyObject *cc_types_unwrap(PyObject *o);
CC_MUST int cc_types_register(CcModState *state);
void cc_types_reset_all(void);
CC_MUST CC_NEW PyObject *cc_types_all(void); /* list of all instances of Compiled, newest first */
extern PyMethodDef cc_api_methods[];

#endif
