/* Notices that a tensor's data is read into Python, by whomever: any(), filter(), max() and other C code ask tensors
 * for bool() and float() without an event that a recorder could see. The C functions of those few methods are replaced
 * in torch's method table by ones that leave a note for this thread and go on to the original; nothing else changes.
 *
 * In the same way the calls that empty autocast's cache of casts are counted: eval/freeze.c. */
#include "tens_int.h"

/* X(name): methods of torch._C.TensorBase without arguments that give data of the tensor */
#define READERS(X)                                                                                                     \
    X(__bool__) X(__nonzero__) X(__float__) X(__int__) X(__long__) X(__index__) X(__complex__) X(item) X(tolist)

static _Thread_local bool looked;

#define READER(name)                                                                                                   \
    static PyCFunction original_##name;                                                                                \
    static PyObject *look_##name(PyObject *self, PyObject *a) {                                                        \
        looked = true;                                                                                                 \
        return original_##name(self, a);                                                                               \
    }
READERS(READER)
#undef READER

static const struct {
    const char *name;
    PyCFunction with, *original;
} readers[] = {
#define READER(name) {#name, look_##name, &original_##name},
    READERS(READER)
#undef READER
};

static PyCFunction original_clear;
static uint64_t clears; /* under the GIL */
static void (*cleared)(void);

static PyObject *count_clear(PyObject *self, PyObject *a) {
    clears++;
    cc_cast_cleared();
    if (cleared != NULL) cleared();
    return original_clear(self, a);
}

uint64_t cc_look_clears(void (*each)(void)) {
    cleared = each;
    return original_clear != NULL ? 1 + clears : 0;
}

bool cc_look_take(void) {
    const bool was = looked;
    looked = false;
    return was;
}

static void watch(PyMethodDef *m, PyCFunction with, PyCFunction *original) {
    if (m->ml_flags != METH_NOARGS || m->ml_meth == with) return;
    *original = m->ml_meth;
    m->ml_meth = with;
}

int cc_look_init(void) {
    PyObject *clear = cc_tsym_path("torch.clear_autocast_cache");
    if (clear != NULL && PyCFunction_CheckExact(clear))
        watch(((PyCFunctionObject *)clear)->m_ml, count_clear, &original_clear);
    Py_XDECREF(clear);
    for (int i = 0; i < CC_COUNT(readers); i++) {
        PyObject *d = PyDict_GetItemString(cc_type_dict(cc_tens_base_type()), readers[i].name);
        if (d == NULL || !Py_IS_TYPE(d, &PyMethodDescr_Type)) continue; /* a torch without it */
        watch(((PyMethodDescrObject *)d)->d_method, readers[i].with, readers[i].original);
    }
    return 0;
}
