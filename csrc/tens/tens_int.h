/* Private to tens/: symbols of the loaded libtorch, small helpers, and what one file tells another.
 */
#ifndef CC_TENS_INT_H
#define CC_TENS_INT_H

#include "tens.h"

/* tsym.c: an exported symbol of the libtorch that is already loaded, or NULL. Mangled names stand
 * only in rows and tables that have a Python fallback, so a torch that renames one costs
 * nanoseconds and never correctness. */
void *cc_tsym_find(const char *name);
/* This thread's dispatch-key words: [0] included, [1] excluded, both relative to torch's defaults,
 * so 0 when nothing was changed; NULL when this torch does not export them. */
const uint64_t *cc_tsym_tls_keys(void);
/* Bits of a dispatch key ("AutogradCPU") in a key set; 0 when this torch has no such key. */
uint64_t cc_tsym_key(const char *name);
/* New reference to torch.a.b.c ("torch._C.x"); NULL without an error when a part is missing. */
CC_NEW PyObject *cc_tsym_path(const char *path);
CC_MUST int cc_tsym_init(PyObject *torch);

CC_MUST int cc_mode_init(void);
CC_MUST int cc_torch_init(void);
CC_MUST int cc_look_init(void);
CC_MUST int cc_bind_init(void);

/* torch.c: the address that names a C callable: its PyMethodDef for builtins, bound builtins and
 * method descriptors, else the object itself. *self: what a bound builtin or method-wrapper is
 * bound to (borrowed), else NULL. */
const void *cc_torch_key(PyObject *callable, PyObject **self);

PyTypeObject *cc_tens_base_type(void); /* torch._C.TensorBase */

/* tens.c: at::Tensors as the stable shim has them. A new one of this type; NULL where there is no
 * shim, or it failed. The others only for what that gave. */
enum { CC_TENS_CPU = 1 };                  /* CcType.device */
CcDtype cc_tens_dtype_of(int scalar_type); /* by torch's number (c10::ScalarType) */
void *cc_tens_handle(const CcType *type);
CC_NEW PyObject *cc_tens_wrap(void *handle); /* its torch.Tensor; the handle stays */
int cc_tens_data(void *handle, void **data); /* 0, or not */
void cc_tens_forget(void *handle);

void cc_ring_init(void); /* once tens.c is ready, and when it has changed its ways */

void cc_cast_cleared(void); /* cast.c: the block has ended */

#endif
