/* Which Python functions of the standard library are recorded (library.def). Other modules rely on C code that the
 * recorder does not know; one break at the call is clearer and cheaper than several inside it. */
#include "rec_events.h"

enum {
    BELOW,
    RECORDED,
    PURE,
    OF_CLASS,
    NODE,
    WHOLE,
    DEVICE,
    LISTED,
    UNBROKEN,
    THROUGH,
    HANDED,
    KEEPS,
    UNWRAPPED,
    TRANSFORM
};

static const struct {
    int kind;
    size_t n; /* length of the file's name */
    const char *file, *function;
} rows[] = {
#define CC_LIBRARY(kind, file, function) {kind, sizeof file - 1, file, function},
#include "library.def"
#undef CC_LIBRARY
};

static struct {
    int begin, end; /* rows */
} of_kind[TRANSFORM + 1];

static char folder[4096]; /* the standard library's directory, with a final slash */
static size_t folder_n;

int cc_library_init(void) {
    for (int i = 0; i < CC_COUNT(rows); i++) {
        if (of_kind[rows[i].kind].end == 0) of_kind[rows[i].kind].begin = i;
        of_kind[rows[i].kind].end = i + 1;
    }
    PyObject *file = cc_obj_of_module("os", "__file__");
    const char *path = file != NULL ? PyUnicode_AsUTF8(file) : NULL;
    const char *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (slash != NULL && (size_t)(slash - path) + 2 < sizeof folder) {
        folder_n = (size_t)(slash - path) + 1;
        memcpy(folder, path, folder_n);
    }
    cc_raised_clear();
    Py_XDECREF(file);
    return 0;
}

/* Whether a row of this kind matches the code: the code's path equals the row's, or ends with it from character `skip`
 * on. */
static bool listed(int kind, const PyCodeObject *co, const char *path, size_t skip) {
    const size_t n = strlen(path);
    for (int i = of_kind[kind].begin; i < of_kind[kind].end; i++) {
        const size_t k = rows[i].n;
        if (n < k + 3 || path[n - 4] != rows[i].file[k - 1]) continue;
        if (rows[i].kind != kind || (rows[i].file[0] != '/' && n != skip + k + 3)) continue;
        if (strncmp(path + n - k - 3, rows[i].file, k) != 0 || strcmp(path + n - 3, ".py") != 0) continue;
        if (*rows[i].function == '\0' || PyUnicode_CompareWithASCIIString(co->co_qualname, rows[i].function) == 0)
            return true;
    }
    return false;
}

/* The code's file name; NULL: it is not UTF-8 text. */
static const char *path_of(const PyCodeObject *co) {
    const char *path = PyUnicode_AsUTF8(co->co_filename);
    if (path == NULL) cc_raised_clear();
    return path;
}

static bool in_folder(const char *path) { return folder_n > 0 && strncmp(path, folder, folder_n) == 0; }

CcPure cc_library_pure(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    if (path == NULL || !in_folder(path)) return CC_PURE_NOT;
    return listed(PURE, co, path, folder_n)       ? CC_PURE_DATA
           : listed(OF_CLASS, co, path, folder_n) ? CC_PURE_CLASS
                                                  : CC_PURE_NOT;
}

/* The function that torch._disable_dynamo's wrapper hides (torch._dynamo wraps some once it is imported), or the function
 * itself. */
static PyFunctionObject *behind_wrapper(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    PyObject *wrapped = func->func_dict != NULL ? cc_obj_item(func->func_dict, "__wrapped__") : NULL;
    const bool hides = path != NULL && wrapped != NULL && PyFunction_Check(wrapped);
    return hides && listed(WHOLE, co, path, strlen(path)) ? (PyFunctionObject *)wrapped : func;
}

static bool listed_behind_wrapper(int kind, PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)behind_wrapper(func)->func_code;
    const char *path = path_of(co);
    return path != NULL && listed(kind, co, path, strlen(path));
}

bool cc_library_below(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    return path != NULL && in_folder(path) && listed(BELOW, co, path, folder_n);
}

bool cc_library_node(PyFunctionObject *func) { return listed_behind_wrapper(NODE, func); }

bool cc_library_transform(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    return path != NULL && listed(TRANSFORM, co, path, 0);
}

bool cc_library_through(PyFunctionObject *func) { return listed_behind_wrapper(THROUGH, func); }

bool cc_library_wraps(PyFunctionObject *func) {
    return behind_wrapper(func) != func && listed_behind_wrapper(UNWRAPPED, func);
}

bool cc_library_device(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    return path != NULL && listed(DEVICE, co, path, 0);
}

bool cc_library_listed(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    return path != NULL && (co->co_flags & CO_GENERATOR) && listed(LISTED, co, path, 0);
}

bool cc_library_unbroken(const PyCodeObject *co) {
    const char *path = path_of(co);
    return path != NULL && listed(UNBROKEN, co, path, 0);
}

bool cc_library_hands(PyFunctionObject *func) { return listed_behind_wrapper(HANDED, func); }

bool cc_library_keeps(const PyCodeObject *co) {
    const char *path = path_of(co);
    return path != NULL && listed(KEEPS, co, path, 0);
}

bool cc_library_recorded(PyFunctionObject *func) {
    const PyCodeObject *co = (PyCodeObject *)func->func_code;
    const char *path = path_of(co);
    if (path == NULL) return true;
    const bool inside = in_folder(path);
    if (listed(WHOLE, co, path, inside ? folder_n : strlen(path))) return false;
    if (!inside) return true;
    const char *rest = path + folder_n;
    if (strncmp(rest, "site-packages/", 14) == 0 || strncmp(rest, "dist-packages/", 14) == 0) return true;
    return listed(RECORDED, co, path, folder_n);
}
