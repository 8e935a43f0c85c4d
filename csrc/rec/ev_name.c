/* Names: globals, cells, closures and imports. */
#include "rec_events.h"

CcGo cc_name_store_before(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *old =
        ev->kind == CC_EV_STORE_GLOBAL ? PyDict_GetItemWithError(ev->in[0], ev->name) : PyCell_GET(ev->in[0]);
    return cc_finalizers_replaces(rec, old, ev->in[1]) ? cc_rec_break(rec, act, CC_R_FINALISED, NULL) : CC_OK;
}

CcGo cc_name_store_cell(CcRec *rec, CcAct *act, const CcEvent *ev) {
    const int source = cc_value_source(rec, ev->in[0]);
    if (source < 0) return CC_OK;
    cc_vec_push(&rec->written, source);
    cc_value_written(rec, CC_SRC_CELL, source, NULL, false);
    const CcCallSpec spec = {.form = CC_F_SETCELL, .in = ev->in, .n = ev->in[1] != NULL ? 2 : 1, .name = "nonlocal"};
    return cc_node_effect(rec, act, &spec, NULL);
}

CcGo cc_name_store_global(CcRec *rec, CcAct *act, const CcEvent *ev) {
    const int dict = cc_value_const_source(rec, ev->in[0]);
    if (rec->raised) {
        cc_value_read(rec, CC_SRC_KEY, dict, ev->name, 0, 0, NULL);
        return CC_OK;
    }
    cc_value_written(rec, CC_SRC_KEY, dict, ev->name, ev->in[1] == NULL);
    PyObject *const in[] = {ev->in[0], ev->name, ev->in[1]};
    const CcCallSpec spec = {.form = ev->in[1] != NULL ? CC_F_SETITEM : CC_F_DELITEM,
                             .in = in,
                             .n = ev->in[1] != NULL ? 3 : 2,
                             .name = "global"};
    return cc_node_effect(rec, act, &spec, NULL);
}

CcGo cc_name_global(CcRec *rec, const CcEvent *ev) {
    if (ev->result == NULL) return CC_OK;
    const int globals = cc_value_const_source(rec, ev->in[0]);
    const int asked = rec->trace->guards.state_reads;
    PyObject *own = PyDict_GetItemWithError(ev->in[0], ev->name);
    cc_value_read(rec, CC_SRC_KEY, globals, ev->name, 0, 0, own);
    if (own == NULL) cc_value_read(rec, CC_SRC_KEY, cc_value_const_source(rec, ev->in[1]), ev->name, 0, 0, ev->result);
    cc_kernel_read(rec, asked, CC_SRC_KEY, ev->result); /* a builtin */
    return CC_OK;
}

void cc_name_cell(CcRec *rec, PyObject *cell, PyObject *v) {
    const int source = cc_value_source(rec, cell);
    if (source >= 0 && !cc_resume_cell(rec, source, v)) cc_value_read(rec, CC_SRC_CELL, source, NULL, 0, 0, v);
}

void cc_name_super(CcRec *rec, const CcAct *act) {
    PyObject *names = PyCode_GetFreevars(act->co);
    const Py_ssize_t n = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!cc_text_is(PyTuple_GET_ITEM(names, i), "__class__")) continue;
        PyObject *cell = cc_act_get(act, act->code->n_locals - (int)(n - i));
        if (cell != NULL && PyCell_Check(cell)) cc_name_cell(rec, cell, PyCell_GET(cell));
    }
    Py_XDECREF(names);
    cc_raised_clear();
}

CcGo cc_name_closure(CcRec *rec, const CcEvent *ev) {
    /* A closure tuple can't be replaced, so the cell is as constant as the function. */
    const CcProv *f = cc_value_find(rec, ev->in[0]);
    if (f != NULL && f->origin == CC_O_FRESH) cc_value_fresh(rec, ev->result);
    else if (f != NULL && f->origin == CC_O_SOURCE && rec->trace->guards.g.at[f->id].check != CC_CHK_IDENT &&
             rec->trace->guards.g.at[f->id].source != CC_SRC_CONST)
        return CC_OK;
    else if (cc_value_origin(rec, ev->result) == CC_O_UNKNOWN) cc_value_const_source(rec, ev->result);
    return CC_OK;
}

/* The absolute name of the imported module; NULL: unknown. A relative name starts at the importing module's package. */
static PyObject *absolute_name(const CcAct *act, const CcEvent *ev) {
    const long level = PyLong_Check(ev->in[0]) ? PyLong_AsLong(ev->in[0]) : -1;
    if (level == 0) return Py_NewRef(ev->name);
    PyObject *package = level > 0 ? cc_obj_item(act->func->func_globals, "__package__") : NULL;
    if (package == NULL || !PyUnicode_Check(package)) return NULL;
    Py_ssize_t end = PyUnicode_GET_LENGTH(package);
    for (long i = 1; i < level && end > 0; i++) end = PyUnicode_FindChar(package, '.', 0, end, -1);
    PyObject *base = end > 0 ? PyUnicode_Substring(package, 0, end) : NULL;
    if (base == NULL || PyUnicode_GET_LENGTH(ev->name) == 0) return base;
    PyObject *name = PyUnicode_FromFormat("%U.%U", base, ev->name);
    Py_DECREF(base);
    return name;
}

/* The module of this name in sys.modules, under a guard. NULL: none. */
static PyObject *imported(CcRec *rec, PyObject *name) {
    PyObject *modules = PyImport_GetModuleDict(), *module = PyDict_GetItemWithError(modules, name);
    cc_raised_clear();
    if (module != NULL && !PyModule_Check(module)) return NULL;
    cc_value_read(rec, CC_SRC_KEY, cc_value_const_source(rec, modules), name, 0, 0, module);
    return module;
}

/* Guards that the import finds the same modules again: `import a.b` reads both a and a.b. */
static bool look_at_modules(CcRec *rec, const CcAct *act, const CcEvent *ev) {
    static PyObject *package;
    if (package == NULL) package = cc_obj_intern("__package__");
    PyObject *globals = act->func->func_globals, *name = absolute_name(act, ev);
    bool found = name != NULL && imported(rec, name) != NULL;
    if (ev->in[0] != NULL && PyLong_Check(ev->in[0]) && PyLong_AsLong(ev->in[0]) > 0)
        cc_value_read(rec, CC_SRC_KEY, cc_value_const_source(rec, globals), package, 0, 0,
                      PyDict_GetItemWithError(globals, package));
    const Py_ssize_t dot = found ? PyUnicode_FindChar(name, '.', 0, PyUnicode_GET_LENGTH(name), 1) : -1;
    PyObject *front = dot > 0 ? PyUnicode_Substring(name, 0, dot) : NULL;
    if (front != NULL) found = imported(rec, front) != NULL;
    Py_XDECREF(front);
    Py_XDECREF(name);
    return found;
}

CcGo cc_name_import(CcRec *rec, CcAct *act, CcEvent *ev) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__import__");
    PyObject *builtins = PyEval_GetBuiltins(), *importer = PyDict_GetItemWithError(builtins, name);
    if (importer == NULL) return CC_OK;
    if (!PyCFunction_Check(importer) || !look_at_modules(rec, act, ev))
        return cc_rec_break(rec, act, CC_R_IMPORT, PyUnicode_AsUTF8(ev->name));
    cc_value_read(rec, CC_SRC_KEY, cc_value_const_source(rec, builtins), name, 0, 0, importer);
    PyObject *const args[] = {ev->name, act->func->func_globals, Py_None, ev->in[1], ev->in[0]};
    /* importlib's Python code is not recorded */
    const bool paused = cc_hook_pause(act->obs, true);
    ev->result = PyObject_Vectorcall(importer, args, CC_COUNT(args), NULL);
    cc_hook_pause(act->obs, paused);
    return CC_DONE;
}

void cc_name_submodule(CcRec *rec, PyObject *package, PyObject *name) {
    PyObject *dict = PyModule_GetDict(package), *key = cc_obj_intern("__name__");
    PyObject *own = PyDict_GetItemWithError(dict, key);
    cc_value_read(rec, CC_SRC_KEY, cc_value_const_source(rec, dict), key, 0, 0, own);
    PyObject *full = own != NULL && PyUnicode_Check(own) ? PyUnicode_FromFormat("%U.%U", own, name) : NULL;
    if (full != NULL) (void)imported(rec, full);
    cc_raised_clear();
    Py_XDECREF(full);
    Py_DECREF(key);
}
