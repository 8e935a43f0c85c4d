/* The one door to libtorch: finds exported symbols of the copy that is already loaded, and paths of
 * its Python modules.
 *
 * Nothing is linked and no library is loaded: dlopen is asked only for what `import torch` has
 * mapped. Every user of a symbol has a way to do without it.
 *
 * A C++ exception that meets a frame of C ends the process. So what is called here directly can't throw:
 *
 *   aoti_torch_*                       give an error code: torch catches
 *   DLPack's exchange API              the same, with a Python error
 *   Python's callables of torch        the same
 *   rows of mode.def                   read words of the thread or the process
 *   at::Context::float32Precision      throws for a pair (back-end, op) that does not exist: mode.def has those only
 *   c10::InferenceMode::is_enabled,    read a word
 *   c10::TensorImpl::requires_grad,
 *   at::get_num_threads,
 *   at::globalContext
 *   c10::impl::raw_local_dispatch_key_set   is a variable
 *   THPVariable_Wrap                   throws without memory for the object, which tens.c allocates before
 *
 * tests/test_process.py looks for each mangled name here. */
#define _GNU_SOURCE
#include "tens_int.h"

#include <dlfcn.h>

static struct {
    /* libtorch_python.so: its dependencies (libtorch_cpu, libc10) are searched with it */
    void *lib;
    PyObject *torch;     /* strong: this process keeps torch loaded anyway */
    PyObject *key_type;  /* torch._C.DispatchKeySet */
    PyObject *key_parse; /* torch._C._parse_dispatch_key */
} sym;

void *cc_tsym_find(const char *name) {
    void *at = sym.lib ? dlsym(sym.lib, name) : NULL;
    return at ? at : dlsym(RTLD_DEFAULT, name);
}

const uint64_t *cc_tsym_tls_keys(void) {
    /* dlsym of a thread-local symbol gives the calling thread's copy, so it is asked once a thread.
     */
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
    if (!at) PyErr_Clear();
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
    PyErr_Clear();
    return bits;
}

int cc_tsym_init(PyObject *torch) {
    Py_XSETREF(sym.torch, Py_NewRef(torch));
    if (!sym.lib) sym.lib = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!sym.lib) { /* a loader that matches whole paths only */
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
        PyErr_Clear();
    }
    Py_XSETREF(sym.key_type, cc_tsym_path("torch._C.DispatchKeySet"));
    Py_XSETREF(sym.key_parse, cc_tsym_path("torch._C._parse_dispatch_key"));
    return 0;
}
