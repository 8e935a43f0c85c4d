/* Writes to tensors after which a failing replay can still run the segment again eagerly from its start (segment.c).
 *
 *   local     writes only memory that the graph allocated        a second run allocates it again (also requires_grad_()
 *             of a tensor that the graph makes)
 *   saved     writes a small tensor from outside (a counter)     its bytes are restored
 *   repeats   overwrites data that nothing has read              a second run writes the same (rows of a static cache)
 *   moves     moves running statistics                           their bytes are restored
 *
 * `saved` and `repeats` apply only if autograd does not see the write. */
#include "rec_int.h"

enum { SAVED_BYTES = 256, STATISTICS_BYTES = 64 << 10, CPU = 1 };

/* First and last byte of all memory that the tensor, which no guard describes (an inference tensor, or with the negative bit),
 * may be a view of. False: unknown, or it has none. */
static bool storage_of(PyObject *o, uintptr_t *from, uintptr_t *to) {
    PyObject *storage = PyObject_CallMethod(o, "untyped_storage", NULL), *at = NULL, *bytes = NULL;
    if (storage != NULL) at = PyObject_CallMethod(storage, "data_ptr", NULL);
    if (at != NULL) bytes = PyObject_CallMethod(storage, "nbytes", NULL);
    const bool ok = bytes != NULL && PyLong_Check(at) && PyLong_Check(bytes);
    *from = ok ? (uintptr_t)PyLong_AsUnsignedLongLong(at) : 0;
    *to = ok ? *from + (uintptr_t)PyLong_AsUnsignedLongLong(bytes) - 1 : 0;
    Py_XDECREF(storage);
    Py_XDECREF(at);
    Py_XDECREF(bytes);
    const bool known = PyErr_Occurred() == NULL && *from != 0;
    cc_raised_clear();
    return known;
}

/* First and last byte of a tensor's memory (an empty tensor: none). False: unknown. */
static bool memory_of(PyObject *o, uintptr_t *from, uintptr_t *to) {
    CcTensor t;
    cc_tens_read(o, false, &t);
    if (t.type.ndim < 0) return cc_tens_plain(o) && storage_of(o, from, to);
    const intptr_t size = cc_dtype_info((CcDtype)t.type.dtype)->size;
    *from = *to = (uintptr_t)t.data;
    for (int d = 0; d < t.type.ndim; d++) {
        if (t.type.size[d] == 0) {
            *from = 1;
            *to = 0;
            return true;
        }
        const intptr_t reach = (intptr_t)((t.type.size[d] - 1) * t.type.stride[d]) * size;
        if (reach < 0) *from += (uintptr_t)reach;
        else *to += (uintptr_t)reach;
    }
    *to += (uintptr_t)size - 1;
    return true;
}

/* Whether a node writes only to its first operand: add_, but not batch_norm or out=; nor requires_grad_, which writes
 * no data that could be restored. */
static bool writes_first(const CcCallSpec *spec, bool redraws) {
    const unsigned flags = spec->flags & ~(redraws ? CC_N_RANDOM : 0u);
    if (spec->name != NULL && strstr(spec->name, "requires_grad") != NULL) return false;
    if (flags != CC_N_WRITES || spec->n == 0 || !cc_tens_plain(spec->in[0])) return false;
    if (spec->form != CC_F_CALL) return true;
    const size_t len = spec->name != NULL ? strlen(spec->name) : 0;
    const int named = cc_obj_count(spec->kwnames);
    return len >= 2 && spec->name[len - 1] == '_' && spec->name[len - 2] != '_' && spec->n > named;
}

/* Whether a tensor from outside, other than `but`, overlaps this memory; `read`: only tensors that the graph has read
 * count. */
static bool shared(CcRec *rec, PyObject *but, uintptr_t from, uintptr_t to, bool read) {
    uintptr_t low, high;
    for (int i = 0; i < rec->outside.n; i++) {
        if (rec->outside.at[i] >= rec->prov.n) continue;
        const CcProv *q = &rec->prov.at[rec->outside.at[i]];
        if (q->object == NULL || q->weak != NULL || q->object == but || q->origin != CC_O_SOURCE ||
            !cc_tens_is(q->object))
            continue;
        if (read && cc_map_find(&rec->input_of, (const void *)(intptr_t)(q->id + 1)) == NULL) continue;
        if (!memory_of(q->object, &low, &high) || (low <= to && from <= high)) return true;
    }
    return false;
}

static bool overwrites(const CcCallSpec *spec) {
    static const char *const names[] = {"Tensor.index_copy_", "Tensor.copy_", "Tensor.fill_", "Tensor.zero_"};
    if (spec->form == CC_F_SETITEM) return true;
    for (int i = 0; i < CC_COUNT(names); i++)
        if (spec->form == CC_F_CALL && strcmp(spec->name, names[i]) == 0) return true;
    return false;
}

/* Bytes can be restored, but autograd's record of the write can't: a second run would record it twice. */
static bool autograd_sees(const CcCallSpec *spec) {
    bool sees = false;
    for (int i = 0; cc_mode_grad_now() && i < spec->n; i++)
        sees = sees || (cc_tens_is(spec->in[i]) && cc_tens_requires_grad(spec->in[i]));
    return sees;
}

/* x.requires_grad_() of a tensor that the graph makes, be it a view: only the tensor itself changes. */
static bool marks_local(CcRec *rec, const CcCallSpec *spec) {
    return spec->form == CC_F_CALL && spec->n > 0 && strcmp(spec->name, "Tensor.requires_grad_") == 0 &&
           cc_value_origin(rec, spec->in[0]) == CC_O_VALUE;
}

CcUndo cc_undo_of(CcRec *rec, const CcCallSpec *spec, bool redraws) {
    uintptr_t from, to;
    if (marks_local(rec, spec)) return CC_UNDO_OBJECT;
    if (!writes_first(spec, redraws) || !memory_of(spec->in[0], &from, &to)) return CC_UNDO_NOT;
    const CcProv *p = cc_value_find(rec, spec->in[0]);
    if (p == NULL) return CC_UNDO_NOT;
    if (p->origin == CC_O_VALUE) return shared(rec, NULL, from, to, false) ? CC_UNDO_NOT : CC_UNDO_LOCAL;
    if (p->origin != CC_O_SOURCE || autograd_sees(spec)) return CC_UNDO_NOT;
    CcTensor t;
    cc_tens_read(spec->in[0], false, &t);
    if (t.type.device == CPU && to - from < SAVED_BYTES) return CC_UNDO_SAVED;
    const bool known = cc_map_find(&rec->input_of, (const void *)(intptr_t)(p->id + 1)) != NULL;
    return overwrites(spec) && !known && !shared(rec, spec->in[0], from, to, true) ? CC_UNDO_REPEATS : CC_UNDO_NOT;
}

/* A tensor from outside whose bytes each run can save. */
static bool is_saveable(const CcGraph *g, CcOperand o) {
    const CcVal *v = o.kind == CC_IN_VALUE ? &g->val.at[o.value] : NULL;
    return v != NULL && v->def < 0 && v->type.device == CPU && cc_type_contiguous(&v->type) &&
           cc_type_numel(&v->type) * cc_dtype_info((CcDtype)v->type.dtype)->size <= STATISTICS_BYTES;
}

bool cc_undo_is_norm(int op) { return op == CC_OP_batch_norm_train || op == CC_OP_instance_norm_train; }

bool cc_undo_moves(const CcGraph *g, const CcNode *n, int moved[2]) {
    CcIn_batch_norm_train in;
    if (n->flags != CC_N_WRITES || !cc_undo_is_norm(n->op) || !cc_operands_read(g, n, CC_OP_batch_norm_train, &in) ||
        !is_saveable(g, in.mean) || !is_saveable(g, in.var))
        return false;
    moved[0] = in.mean.value;
    moved[1] = in.var.value;
    return true;
}

bool cc_undo_outside(CcRec *rec, PyObject *tensor) {
    uintptr_t from, to;
    return !memory_of(tensor, &from, &to) || shared(rec, NULL, from, to, false);
}

bool cc_undo_overlap(PyObject *a, PyObject *b) {
    uintptr_t from, to, low, high;
    return !memory_of(a, &from, &to) || !memory_of(b, &low, &high) || (low <= to && from <= high);
}

int64_t cc_undo_bytes(PyObject *tensor, void **begin) {
    uintptr_t from, to;
    if (!memory_of(tensor, &from, &to)) return -1;
    *begin = (void *)from;
    return to >= from ? (int64_t)(to - from) + 1 : 0;
}
