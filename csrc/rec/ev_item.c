/* Items of tensors: x[key] and x[key] = value. */
#include "rec_int.h"

bool cc_item_sliced(PyObject *key) {
    for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); i++)
        if (cc_item_sliced(PyTuple_GET_ITEM(key, i))) return true;
    const PySliceObject *slice = PySlice_Check(key) ? (PySliceObject *)key : NULL;
    return slice != NULL && (cc_tens_any(slice->start) || cc_tens_any(slice->stop) || cc_tens_any(slice->step));
}

/* An index that holds a mask: how much it selects depends on data. */
static bool selects(PyObject *key) {
    if (cc_tens_any(key)) {
        CcTensor t;
        cc_tens_read(key, false, &t);
        return t.type.dtype == CC_DT_BOOL || t.type.dtype == CC_DT_U8;
    }
    if (PyTuple_Check(key) || PyList_Check(key))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(key); i++)
            if (selects(PySequence_Fast_GET_ITEM(key, i))) return true;
    return false;
}

CcGo cc_item_read(CcRec *rec, CcAct *act, const CcEvent *ev) {
    PyObject *key = ev->in[1];
    if (ev->result == NULL) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises");
    CcBound bound;
    const CcCallSpec spec = {.form = CC_F_GETITEM,
                             .in = ev->in,
                             .n = 2,
                             .name = "getitem",
                             .dynamic = selects(key),
                             .safe = !cc_value_has_tensor(key, 2),
                             .bound = cc_bind_getitem(ev->in[0], key, &bound) == 0 ? &bound : NULL};
    return cc_node_add(rec, act, &spec, ev->result);
}

CcGo cc_item_write(CcRec *rec, CcAct *act, const CcEvent *ev) {
    if (rec->raised) return cc_rec_poison(rec, act, CC_R_TENSOR_VALUE, "an operation that raises");
    /* another number in each call: no constant of a kernel */
    const bool symbolic = ev->in[2] != NULL && cc_value_symbolic(rec, ev->in[2]);
    CcBound bound;
    const int status = symbolic ? -1 : cc_bind_setitem(ev->in[0], ev->in[1], ev->in[2], &bound);
    const CcCallSpec spec = {.form = ev->in[2] != NULL ? CC_F_SETITEM : CC_F_DELITEM,
                             .in = ev->in,
                             .n = ev->in[2] != NULL ? 3 : 2,
                             .name = "setitem",
                             .flags = CC_N_WRITES,
                             .safe = !cc_value_has_tensor(ev->in[1], 2),
                             .bound = status == 0 ? &bound : NULL};
    return cc_node_add(rec, act, &spec, NULL);
}
