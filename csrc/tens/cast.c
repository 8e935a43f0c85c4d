/* cast: which parameters autocast has cast in the block that is open now. Eager casts one once and keeps that until
 * torch.clear_autocast_cache(), which the end of the outermost block calls: what is written to the parameter in between
 * does not show. Recordings are eager's work. A replay casts by itself; from the first block on in which parameters
 * were cast by several calls it has torch do so as well, so that torch's cache has what eager would have. */
#include "tens_int.h"

enum { NO_STATE = -1 };
static CcMap cast_at;     /* tensor, by address -> its state when it was cast */
static bool several;      /* calls were in one block */
static PyObject *product; /* torch.matmul */

void cc_cast_cleared(void) { cc_map_free(&cast_at); }

/* A product without rows, which has its result for nothing. Nothing of this is needed for the call: failures are no
 * errors. */
static void have_cast(PyObject *tensor) {
    CcTensor t;
    void *data;
    cc_tens_read_as(tensor, false, true, &t);
    if (t.type.ndim < 1 || !cc_mode_autocast_cpu()) return;
    CcType rows = {.dtype = t.type.dtype, .ndim = 2, .device = t.type.device, .stride = {1, 1}};
    rows.size[1] = t.type.size[CC_MAX(t.type.ndim - 2, 0)];
    PyObject *none = cc_tens_empty(&rows, &data);
    if (product == NULL) product = cc_tsym_path("torch.matmul");
    PyObject *r = none != NULL && product != NULL ? PyObject_CallFunctionObjArgs(product, none, tensor, NULL) : NULL;
    if (r == NULL) PyErr_Clear();
    Py_XDECREF(r);
    Py_XDECREF(none);
}

/* Its `_version`, and its memory: `.data` leaves the version. */
static int64_t state_of(PyObject *tensor) {
    CcTensor t;
    cc_tens_read_as(tensor, false, true, &t);
    return (int64_t)(cc_tens_version(tensor) * UINT64_C(0x9E3779B97F4A7C15) ^ (uint64_t)(uintptr_t)t.data);
}

CcCastSeen cc_cast_see(PyObject *tensor, bool replays) {
    const int64_t state = state_of(tensor);
    int64_t *then = cc_map_find(&cast_at, tensor);
    if (then != NULL && replays) several = true;
    if (then != NULL && *then == state) return CC_CAST_SAME;
    if (then != NULL) { /* memory may be back where it was, but with another content */
        *then = NO_STATE;
        return CC_CAST_CHANGED;
    }
    cc_map_put(&cast_at, tensor, state);
    if (replays && several) have_cast(tensor);
    return CC_CAST_NEW;
}
