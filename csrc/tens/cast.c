/* Tracks which parameters autocast has cast in the current block. Eager casts a parameter once and caches the result
 * until torch.clear_autocast_cache(), which the end of the outermost block calls, so writes to the parameter in
 * between have no effect. Recordings run eager's code. A replay casts by itself; once several calls have cast the
 * same parameters within one block, replays have torch cast them as well, so that torch's cache contains what
 * eager's would. */
#include "tens_int.h"

enum { NO_STATE = -1 };
static CcMap cast_at;     /* address of a tensor -> its state when it was cast */
static bool shared_block; /* several calls have cast a parameter in one block */
static PyObject *product; /* torch.matmul */

void cc_cast_cleared(void) { cc_map_free(&cast_at); }

/* Has torch cast and cache the tensor, by a matrix product with zero rows, which costs almost nothing. The call does
 * not depend on this, so errors are ignored. */
static void fill_torch_cache(PyObject *tensor) {
    CcTensor t;
    void *data;
    cc_tens_read_as(tensor, false, true, &t);
    if (t.type.ndim < 1 || !cc_mode_autocast_cpu()) return;
    CcType rows = {.dtype = t.type.dtype, .ndim = 2, .device = t.type.device, .stride = {1, 1}};
    rows.size[1] = t.type.size[CC_MAX(t.type.ndim - 2, 0)];
    PyObject *none = cc_tens_empty(&rows, &data);
    if (product == NULL) product = cc_tsym_path("torch.matmul");
    PyObject *r = none != NULL && product != NULL ? PyObject_CallFunctionObjArgs(product, none, tensor, NULL) : NULL;
    if (r == NULL) cc_raised_clear();
    Py_XDECREF(r);
    Py_XDECREF(none);
}

/* Combines `_version` and address, because assigning `.data` does not change the version. */
static int64_t state_of(PyObject *tensor) {
    CcTensor t;
    cc_tens_read_as(tensor, false, true, &t);
    return (int64_t)(cc_tens_version(tensor) * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)(uintptr_t)t.data);
}

CcCastSeen cc_cast_note(PyObject *tensor, bool replays) {
    const int64_t state = state_of(tensor);
    int64_t *then = cc_map_find(&cast_at, tensor);
    if (then != NULL && replays) shared_block = true;
    if (then != NULL && *then == state) return CC_CAST_SAME;
    if (then != NULL) { /* its memory may return to this address with other content */
        *then = NO_STATE;
        return CC_CAST_CHANGED;
    }
    cc_map_put(&cast_at, tensor, state);
    if (replays && shared_block) fill_torch_cache(tensor);
    return CC_CAST_NEW;
}
