/* Private to tens/: symbols of the loaded libtorch, and helpers that its files share. */
#ifndef CC_TENS_INT_H
#define CC_TENS_INT_H

#include "tens.h"

/* tsym.c: an exported symbol of the libtorch that is already loaded, or NULL. Mangled names appear only in rows and
 * tables with a Python fallback, so a torch that renames one costs nanoseconds, never correctness. */
void *cc_tsym_find(const char *name);
/* This thread's dispatch-key words: [0] included, [1] excluded. Both are relative to torch's defaults, so 0 means
 * unchanged. NULL: this torch does not export them. */
const uint64_t *cc_tsym_tls_keys(void);
/* The bits of a dispatch key ("AutogradCPU") in a key set; 0: this torch has no such key. */
uint64_t cc_tsym_key(const char *name);
/* The object at a path such as "torch._C.x"; NULL without an error if a part of it is missing. */
CC_NEW PyObject *cc_tsym_path(const char *path);
CC_MUST int cc_tsym_init(PyObject *torch);

CC_MUST int cc_mode_init(void);
/* devmode.c: others: the number of torch-function modes that are not DeviceContexts; else what DeviceContexts make the
 * default device, as a word (0: there are none). */
intptr_t cc_devmode_word(bool others);
void cc_devmode_init(bool fallback);
CC_MUST int cc_torch_init(void);
CC_MUST int cc_look_init(void);
CC_MUST int cc_drawn_init(void);
CC_MUST int cc_bind_init(void);

/* torch.c: the address that identifies a C callable: the PyMethodDef of builtins, bound builtins and method
 * descriptors, else the object itself. *self: what a bound builtin or method-wrapper is bound to (borrowed), else
 * NULL. */
const void *cc_torch_key(PyObject *callable, PyObject **self);

/* It is a tensor, or a tuple or list that contains one. depth: 0 for the argument itself. */
bool cc_torch_within(PyObject *o, int depth);

PyTypeObject *cc_tens_base_type(void); /* torch._C.TensorBase */

/* tens.c: at::Tensor handles of the stable shim. cc_tens_handle creates a tensor of this type; NULL: no shim, or it
 * failed. The other functions accept only its results. */
enum { CC_TENS_CPU = 1 };                  /* CcType.device */
CcDtype cc_tens_dtype_of(int scalar_type); /* from torch's number (c10::ScalarType) */
void *cc_tens_handle(const CcType *type);
CC_NEW PyObject *cc_tens_wrap(void *handle); /* its torch.Tensor; does not consume the handle */
int cc_tens_data(void *handle, void **data); /* 0 on success */
void cc_tens_delete_handle(void *handle);

void cc_ring_init(void); /* after tens.c's init, and whenever its way of reading tensors changes */

void cc_cast_cleared(void); /* cast.c: the autocast block has ended */

#endif
