/* Which Python functions of the standard library are recorded (library.def). Its other modules lean on C code that the
 * recorder does not know; a break at the call reads better, and costs less, than a row of breaks inside. */
#include "rec_int.h"

static const char *const recorded[] = {
#define CC_LIBRARY(file) file,
#define CC_PURE(file, function)
#define CC_WHOLE(file, function)
#include "library.def"
#undef CC_LIBRARY
#undef CC_PURE
#undef CC_WHOLE
};

static const struct {
    const char *file, *function;
} pure[] = {
#define CC_LIBRARY(file)
#define CC_PURE(file, function) {file, function},
#define CC_WHOLE(file, function)
#include "library.def"
#undef CC_LIBRARY
#undef CC_PURE
#undef CC_WHOLE
};

static const struct {
    const char *file, *function;
} whole[] = {
#define CC_LIBRARY(file)
#define CC_PURE(file, function)
#define CC_WHOLE(file, function) {file, function},
#include "library.def"
#undef CC_LIBRARY
#undef CC_PURE
#undef CC_WHOLE
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

static bool is_whole(const PyCodeObject *co, const char *path)
{
    const size_t n = strlen(path);
    for (int i = 0; i < CC_COUNT(whole); i++) {
        const size_t k = strlen(whole[i].file);
        if (n < k + 3 || strncmp(path + n - k - 3, whole[i].file, k) != 0 || strcmp(path + n - 3, ".py") != 0) continue;
        if (*whole[i].function == '\0' || PyUnicode_CompareWithASCIIString(co->co_qualname, whole[i].function) == 0) return true;
    }
    return false;
}

bool cc_library_pure(PyFunctionObject *func)
{
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *file = PyUnicode_AsUTF8(co->co_filename);
    if (file == NULL) PyErr_Clear();
    if (file == NULL || folder_n == 0 || strncmp(file, folder, folder_n) != 0) return false;
    for (int i = 0; i < CC_COUNT(pure); i++) {
        const size_t n = strlen(pure[i].file);
        if (strncmp(file + folder_n, pure[i].file, n) == 0 && strcmp(file + folder_n + n, ".py") == 0 &&
            PyUnicode_CompareWithASCIIString(co->co_qualname, pure[i].function) == 0)
            return true;
    }
    return false;
}

bool cc_library_recorded(PyFunctionObject *func)
{
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *file = PyUnicode_AsUTF8(co->co_filename);
    if (file == NULL) {
        PyErr_Clear();
        return true;
    }
    if (is_whole(co, file)) return false;
    if (folder_n == 0 || strncmp(file, folder, folder_n) != 0) return true;
    const char *rest = file + folder_n;
    if (strncmp(rest, "site-packages/", 14) == 0 || strncmp(rest, "dist-packages/", 14) == 0) return true;
    for (int i = 0; i < CC_COUNT(recorded); i++) {
        const size_t n = strlen(recorded[i]);
        if (strncmp(rest, recorded[i], n) == 0 && strcmp(rest + n, ".py") == 0) return true;
    }
    return false;
}
