/* The default device: torch.set_default_device(d) and `with torch.device(d)` put a DeviceContext on the thread's stack of
 * torch-function modes. Each call of torch's C code then runs DeviceContext.__torch_function__, which adds `device=d` to
 * calls of factories without one. So these modes are ambient state, unlike any other mode, which is user code. */
#include "tens_int.h"

static struct {
    int64_t (*length)(void);                /* NULL: py_length instead */
    PyObject *py_length, *get, *pop, *push; /* functions of torch._C */
    PyObject *device, *handler;             /* "device", "__torch_function__" */
    PyObject *type, *function;              /* DeviceContext and its __torch_function__, once it is imported */
} D;

static int64_t stack_length(void) {
    if (D.length != NULL) return D.length();
    PyObject *n = D.py_length != NULL ? PyObject_CallNoArgs(D.py_length) : NULL;
    const int64_t length = n != NULL ? PyLong_AsLongLong(n) : 0;
    Py_XDECREF(n);
    return length;
}

/* torch imports the module with the first DeviceContext. */
static bool find_class(void) {
    if (D.function != NULL) return true;
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *module = modules != NULL ? cc_obj_item(modules, "torch.utils._device") : NULL;
    if (module == NULL) return false;
    D.type = PyObject_GetAttrString(module, "DeviceContext");
    if (D.type != NULL && PyType_Check(D.type))
        D.function = Py_XNewRef(PyDict_GetItemWithError(cc_type_dict((PyTypeObject *)D.type), D.handler));
    if (D.function == NULL) Py_CLEAR(D.type);
    return D.function != NULL;
}

enum { MOST_NESTED = 4, BITS = 16 };

/* The device of the mode at this place in the stack, as BITS bits that are not 0; 0: it is no DeviceContext. A
 * torch.device hashes to its type and index (THPDevice_hash), so no two devices have the same bits. */
static intptr_t device_bits(int64_t at) {
    PyObject *place = PyLong_FromLongLong(at), *device = NULL;
    PyObject *mode = D.get != NULL && place != NULL ? PyObject_CallOneArg(D.get, place) : NULL;
    if (mode != NULL && find_class() && (PyObject *)Py_TYPE(mode) == D.type &&
        PyDict_GetItemWithError(cc_type_dict((PyTypeObject *)D.type), D.handler) == D.function)
        device = PyObject_GetAttr(mode, D.device);
    const intptr_t hash = device != NULL && cc_tens_constant(device) ? (intptr_t)PyObject_Hash(device) : -1;
    Py_XDECREF(device);
    Py_XDECREF(mode);
    Py_XDECREF(place);
    return hash < 0 ? 0 : 1 + ((hash >> 16 & 0x7f) << 8 | (hash & 0xff));
}

intptr_t cc_devmode_word(bool others) {
    const int64_t n = stack_length();
    if (n == 0) return 0;
    PyObject *type, *error, *tb;
    PyErr_Fetch(&type, &error, &tb);
    int64_t n_others = CC_MAX(0, n - MOST_NESTED);
    uint64_t word = 0; /* the last mode runs first, so it decides; the others follow at the ends of blocks */
    for (int64_t i = n_others; i < n; i++) {
        const intptr_t bits = device_bits(i);
        word = word << BITS | (uint64_t)bits;
        n_others += bits == 0;
    }
    PyErr_Restore(type, error, tb);
    return others ? (intptr_t)n_others : (intptr_t)word;
}

bool cc_devmode_handles(PyFunctionObject *func) {
    return func->func_name == D.handler && find_class() && (PyObject *)func == D.function;
}

bool cc_devmode_runs(PyCodeObject *code) {
    return D.function != NULL && ((PyFunctionObject *)D.function)->func_code == (PyObject *)code;
}

PyObject *cc_devmode_call_without(PyObject *f, PyObject *const *in, size_t n, PyObject *kwnames) {
    PyObject *aside = PyList_New(0), *result = NULL;
    bool ok = aside != NULL;
    while (ok && stack_length() > 0) {
        PyObject *mode = PyObject_CallNoArgs(D.pop);
        ok = mode != NULL && PyList_Append(aside, mode) == 0;
        Py_XDECREF(mode);
    }
    if (ok) result = PyObject_Vectorcall(f, in, n, kwnames);
    for (Py_ssize_t i = aside != NULL ? PyList_GET_SIZE(aside) : 0; i-- > 0;) {
        PyObject *pushed = PyObject_CallOneArg(D.push, PyList_GET_ITEM(aside, i));
        if (pushed == NULL) Py_CLEAR(result);
        Py_XDECREF(pushed);
    }
    Py_XDECREF(aside);
    return result;
}

void cc_devmode_init(bool fallback) {
    D.length = fallback ? NULL : cc_tsym_find("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    Py_XSETREF(D.py_length, cc_tsym_path("torch._C._len_torch_function_stack"));
    Py_XSETREF(D.get, cc_tsym_path("torch._C._get_function_stack_at"));
    Py_XSETREF(D.pop, cc_tsym_path("torch._C._pop_torch_function_stack"));
    Py_XSETREF(D.push, cc_tsym_path("torch._C._push_on_torch_function_stack"));
    Py_XSETREF(D.device, PyUnicode_InternFromString("device"));
    Py_XSETREF(D.handler, PyUnicode_InternFromString("__torch_function__"));
    cc_raised_clear();
}
