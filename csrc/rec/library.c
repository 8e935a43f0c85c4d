/* Which Python functions of the standard library are recorded (library.def). Its other modules lean on C code that the
 * recorder does not know; a break at the call reads better, and costs less, than a row of breaks inside. */
#include "rec_int.h"

static const char *const recorded[] = {
#define CC_LIBRARY(file) file,
#include "library.def"
#undef CC_LIBRARY
};

static char folder[4096];   /* of the standard library, with a final slash */
static size_t folder_n;

int cc_library_init(void)
{
    PyObject *os = PyImport_ImportModule("os");
    PyObject *file = os != NULL ? PyObject_GetAttrString(os, "__file__") : NULL;
    const char *path = file != NULL ? PyUnicode_AsUTF8(file) : NULL;
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (slash != NULL && (size_t)(slash - path) + 2 < sizeof folder) {
        folder_n = (size_t)(slash - path) + 1;
        memcpy(folder, path, folder_n);
    }
    PyErr_Clear();
    Py_XDECREF(file);
    Py_XDECREF(os);
    return 0;
}

bool cc_library_recorded(PyFunctionObject *func)
{
    const char *file = PyUnicode_AsUTF8(((PyCodeObject *)func->func_code)->co_filename);
    if (file == NULL) {
        PyErr_Clear();
        return true;
    }
    if (folder_n == 0 || strncmp(file, folder, folder_n) != 0) return true;
    const char *rest = file + folder_n;
    if (strncmp(rest, "site-packages/", 14) == 0 || strncmp(rest, "dist-packages/", 14) == 0) return true;
    for (int i = 0; i < CC_COUNT(recorded); i++) {
        const size_t n = strlen(recorded[i]);
        if (strncmp(rest, recorded[i], n) == 0 && strcmp(rest + n, ".py") == 0) return true;
    }
    return false;
}
