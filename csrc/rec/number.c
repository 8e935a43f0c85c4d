/* Numbers and texts that were read from tensors, inside of containers and as keys. C code that compares, hashes or prints
 * what a container holds depends on them: they become constants under guards, or the instruction is a break. */
#include "rec_int.h"

static bool settle_number(CcRec *rec, PyObject *o)
{
    cc_sym_pin(rec, o);
    if (!cc_value_symbolic(rec, o)) return true;
    if (cc_value_find(rec, o)->origin == CC_O_VALUE) return false;
    cc_value_pin(rec, o);
    return true;
}

bool cc_number_settle(CcRec *rec, PyObject *o, int depth)
{
    if (o == NULL || (cc_value_const(o) && !PyTuple_Check(o))) return o == NULL || settle_number(rec, o);
    if (depth == 0) return true;
    if (PyList_Check(o) || PyTuple_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!cc_number_settle(rec, PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
    } else if (PySlice_Check(o)) {
        const PySliceObject *s = (PySliceObject *)o;
        return cc_number_settle(rec, s->start, 0) && cc_number_settle(rec, s->stop, 0) && cc_number_settle(rec, s->step, 0);
    } else if (PyDict_Check(o)) {
        Py_ssize_t pos = 0;
        PyObject *key, *value;
        while (PyDict_Next(o, &pos, &key, &value))
            if (!cc_number_settle(rec, key, 1) || !cc_number_settle(rec, value, depth - 1)) return false;
    }
    return true;
}

bool cc_number_in(CcRec *rec, PyObject *const *in, int n, int step)
{
    for (int i = 0; i < n; i += step)
        if (in[i] != NULL && cc_value_symbolic(rec, in[i])) return true;
    return false;
}

static bool plain_key(PyObject *key, int depth)
{
    if (cc_value_const(key) || cc_value_ident(key)) return true;
    if (!PyTuple_CheckExact(key) || depth == 0) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
        if (!plain_key(PyTuple_GET_ITEM(key, i), depth - 1)) return false;
    return true;
}

bool cc_number_key(CcRec *rec, PyObject *key)
{
    if (!plain_key(key, 3) || !cc_number_settle(rec, key, 3)) return false;
    return !PyTuple_CheckExact(key) || cc_value_content(rec, key, 4);
}
