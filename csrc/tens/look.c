/* Notices that a tensor's data is read into Python, by whomever: any(), filter(), max() and other C code ask tensors for
 * bool() and float() without an event that a recorder could see. The C functions of those few methods are replaced in
 * torch's method table by ones that leave a note for this thread and go on to the original; nothing else changes. */
#include "tens_int.h"

/* X(name): methods of torch._C.TensorBase without arguments that give data of the tensor */
#define READERS(X) X(__bool__) X(__nonzero__) X(__float__) X(__int__) X(__long__) X(__index__) X(__complex__) X(item) X(tolist)

static _Thread_local bool looked;

#define READER(name)                                          \
    static PyCFunction original_##name;                       \
    static PyObject *look_##name(PyObject *self, PyObject *a) \
    {                                                         \
        looked = true;                                        \
        return original_##name(self, a);                      \
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

bool cc_look_take(void)
{
    const bool was = looked;
    looked = false;
    return was;
}

int cc_look_init(void)
{
    for (int i = 0; i < CC_COUNT(readers); i++) {
        PyObject *d = PyDict_GetItemString(cc_type_dict(cc_tens_base_type()), readers[i].name);
        if (d == NULL || !Py_IS_TYPE(d, &PyMethodDescr_Type)) continue;   /* a torch without it */
        PyMethodDef *m = ((PyMethodDescrObject *)d)->d_method;
        if (m->ml_flags != METH_NOARGS || m->ml_meth == readers[i].with) continue;
        *readers[i].original = m->ml_meth;
        m->ml_meth = readers[i].with;
    }
    return 0;
}
