/* The only access to libtorch: finds exported symbols of the loaded copy, and objects by their Python path.
 *
 * Nothing is linked and no library is loaded: dlopen only returns what `import torch` has already mapped. Every user of
 * a symbol has a fallback.
 *
 * A C++ exception that reaches a C frame ends the process, so only functions that can't throw are called directly:
 *
 *   aoti_torch_*                       return an error code: torch catches exceptions
 *   DLPack's exchange API              the same, with a Python error
 *   Python's callables of torch        the same
 *   rows of mode.def                   read words of the thread or the process
 *   at::Context::float32Precision      throws for an invalid pair (back-end, op): mode.def has only valid ones
 *   c10::InferenceMode::is_enabled,    read a word
 *   c10::TensorImpl::requires_grad,
 *   at::get_num_threads,
 *   at::globalContext,
 *   at::impl::PythonTorchFunctionTLS::stack_len
 *   c10::impl::raw_local_dispatch_key_set   a variable
 *   sgemm_                         Fortran code of the BLAS that torch uses; called by the core (dev/blas.c)
 *   THPVariable_Wrap                   throws if it can't allocate the object, so tens.c allocates it beforehand
 *
 * tests/test_process.py checks that each mangled name in tens/ is listed here. */
#define _GNU_SOURCE
#include "tens_int.h"

#include <dlfcn.h>

static struct {
    /* libtorch_python.so; dlsym also searches its dependencies (libtorch_cpu, libc10) */
    void *lib;
    PyObject *torch;     /* strong reference: torch stays loaded anyway */
    PyObject *key_type;  /* torch._C.DispatchKeySet */
    PyObject *key_parse; /* torch._C._parse_dispatch_key */
} sym;

void *cc_tsym_find(const char *name) {
    void *at = sym.lib ? dlsym(sym.lib, name) : NULL;
    return at ? at : dlsym(RTLD_DEFAULT, name);
}

void *cc_tsym_sgemm(void) { return sym.lib ? dlsym(sym.lib, "sgemm_") : NULL; }

const uint64_t *cc_tsym_tls_keys(void) {
    /* dlsym of a thread-local symbol returns the calling thread's copy, hence one lookup per thread. */
    static _Thread_local const uint64_t *words;
    static _Thread_local bool asked;
    if (!asked) {
        words = cc_tsym_find("_ZN3c104impl26raw_local_dispatch_key_setE");
        asked = true;
    }
    return words;
}

PyObject *cc_tsym_path(const char *path) {
    CC_ASSERT(strncmp(path, "torch", 5) == 0);
    PyObject *at = sym.torch;
    Py_XINCREF(at);
    for (const char *dot = strchr(path, '.'); at && dot;) {
        const char *name = dot + 1;
        dot = strchr(name, '.');
        PyObject *key = PyUnicode_FromStringAndSize(name, dot ? dot - name : (Py_ssize_t)strlen(name));
        PyObject *next = key ? PyObject_GetAttr(at, key) : NULL;
        Py_XDECREF(key);
        Py_SETREF(at, next);
    }
    if (!at) cc_raised_clear();
    return at;
}

uint64_t cc_tsym_key(const char *name) {
    uint64_t bits = 0;
    PyObject *key = sym.key_parse ? PyObject_CallFunction(sym.key_parse, "s", name) : NULL;
    PyObject *set = key && sym.key_type ? PyObject_CallOneArg(sym.key_type, key) : NULL;
    PyObject *raw = set ? PyObject_CallMethod(set, "raw_repr", NULL) : NULL;
    if (raw) bits = PyLong_AsUnsignedLongLongMask(raw);
    Py_XDECREF(key);
    Py_XDECREF(set);
    Py_XDECREF(raw);
    cc_raised_clear();
    return bits;
}

int cc_tsym_init(PyObject *torch) {
    Py_XSETREF(sym.torch, Py_NewRef(torch));
    if (!sym.lib) sym.lib = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!sym.lib) { /* this loader matches full paths only */
        PyObject *file = PyModule_GetFilenameObject(torch);
        PyObject *path = NULL;
        if (file) {
            Py_ssize_t cut = PyUnicode_FindChar(file, '/', 0, PyUnicode_GET_LENGTH(file), -1);
            PyObject *dir = PyUnicode_Substring(file, 0, CC_MAX(cut, 0));
            if (dir) path = PyUnicode_FromFormat("%U/lib/libtorch_python.so", dir);
            Py_XDECREF(dir);
        }
        const char *text = path ? PyUnicode_AsUTF8(path) : NULL;
        if (text) sym.lib = dlopen(text, RTLD_LAZY | RTLD_NOLOAD);
        Py_XDECREF(path);
        Py_XDECREF(file);
        cc_raised_clear();
    }
    Py_XSETREF(sym.key_type, cc_tsym_path("torch._C.DispatchKeySet"));
    Py_XSETREF(sym.key_parse, cc_tsym_path("torch._C._parse_dispatch_key"));
    return 0;
}
