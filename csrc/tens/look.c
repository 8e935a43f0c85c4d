/* Detects reads of tensor data into Python by any code: any(), filter(), max() and other C code call bool() or float()
 * on tensors without an event that a recorder could see. The C functions of those methods in torch's method tables are
 * replaced by wrappers that set a flag for this thread and call the original.
 *
 * The calls that empty autocast's cache are counted in the same way, for eval/freeze.c. */
#include "tens_int.h"

/* X(name): methods of torch._C.TensorBase without arguments that return the tensor's data */
#define READERS(X)                                                                                                     \
    X(__bool__) X(__nonzero__) X(__float__) X(__int__) X(__long__) X(__index__) X(__complex__) X(item) X(tolist)

static _Thread_local bool data_read;

#define READER(name)                                                                                                   \
    static PyCFunction original_##name;                                                                                \
    static PyObject *look_##name(PyObject *self, PyObject *a) {                                                        \
        data_read = true;                                                                                              \
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
static uint64_t clears; /* guarded by the GIL */
static void (*cleared)(void);

static PyObject *count_clear(PyObject *self, PyObject *a) {
    clears++;
    cc_cast_cleared();
    if (cleared != NULL) cleared();
    return original_clear(self, a);
}

uint64_t cc_look_count_clears(void (*each)(void)) {
    cleared = each;
    return original_clear != NULL ? 1 + clears : 0;
}

bool cc_look_take_read(void) {
    const bool was = data_read;
    data_read = false;
    return was;
}

static void intercept(PyMethodDef *m, PyCFunction with, PyCFunction *original) {
    if (m->ml_flags != METH_NOARGS || m->ml_meth == with) return;
    *original = m->ml_meth;
    m->ml_meth = with;
}

int cc_look_init(void) {
    PyObject *clear = cc_tsym_path("torch.clear_autocast_cache");
    if (clear != NULL && PyCFunction_CheckExact(clear))
        intercept(((PyCFunctionObject *)clear)->m_ml, count_clear, &original_clear);
    Py_XDECREF(clear);
    for (int i = 0; i < CC_COUNT(readers); i++) {
        PyObject *d = cc_obj_item(cc_type_dict(cc_tens_base_type()), readers[i].name);
        if (d == NULL || !Py_IS_TYPE(d, &PyMethodDescr_Type)) continue; /* this torch lacks the method */
        intercept(((PyMethodDescrObject *)d)->d_method, readers[i].with, readers[i].original);
    }
    return 0;
}
