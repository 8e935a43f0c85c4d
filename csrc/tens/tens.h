/* tens: what the front half knows about torch: tensors as descriptors, the ambient state that torch's C code reads
 * implicitly, what each torch callable does (torch.def), and which op it binds to (binds.def). Uses no libtorch header
 * and links no library, only DLPack's exchange API, torch's stable C shim (found by dlsym) and torch's own Python
 * callables. Callers hold the GIL. */
#ifndef CC_TENS_H
#define CC_TENS_H

#include "../py/py.h"
#include "../ir/ir.h"

/* Once, with the imported torch module. -1 with an ImportError that names the torch version and what it lacks. */
CC_MUST int cc_tens_init(PyObject *torch);
void *cc_tsym_sgemm(void); /* Fortran's sgemm of the BLAS that torch uses; NULL: it exports none */

/* ---- tens.c ---- */
typedef struct CcTensor {
    CcType type;
    void *data; /* first element; NULL when foreign or empty */
} CcTensor;

/* exactly torch.Tensor or torch.nn.Parameter (or Buffer), so without subclass behaviour */
bool cc_tens_plain(PyObject *o);
bool cc_tens_is(PyObject *o);        /* any instance of torch._C.TensorBase */
bool cc_tens_parameter(PyObject *o); /* exactly torch.nn.Parameter */
/* Its `_version`, which torch increments on each write that it knows of; CC_TENS_NO_VERSION for inference tensors. */
#define CC_TENS_NO_VERSION UINT64_MAX
uint64_t cc_tens_version(PyObject *o);
/* Resets `_version`; only valid if the tensor's content is what it was at that version. */
CC_MUST int cc_tens_set_version(PyObject *o, uint64_t version);
/* Increments `_version` after a write that torch does not know of. -1 with the error set. */
CC_MUST int cc_tens_bump_version(PyObject *o);
/* Reads metadata and data pointer; `grad` also fills type.requires_grad (else 0). Never fails and never sets an error.
 * A tensor that kernels can't process (sparse, quantised, complex, meta, neg or conj bit, functorch wrapper, subclass,
 * inference tensor outside inference mode, more than CC_MAX_DIMS dims ...) is foreign: type.ndim is -1, data NULL. If
 * its metadata can still be compared (complex and other unsupported dtypes, neg or conj bit, inference tensor; up to 6
 * dims), size[] and stride[] encode it for cc_tens_match; others (cc_tens_matchable is false) never match. */
void cc_tens_read(PyObject *tensor, bool grad, CcTensor *out);
/* The same, as if inference mode were on or off. */
void cc_tens_read_as(PyObject *tensor, bool grad, bool inference, CcTensor *out);
bool cc_tens_inference(PyObject *tensor); /* Tensor.is_inference() */
/* As a guard: whether o has the exact Python type `cls` and equal metadata; `grad`: equal requires_grad, too. About 20
 * ns. */
bool cc_tens_match(PyObject *o, PyTypeObject *cls, const CcType *type, bool grad);
/* Like cc_tens_match, but ignores strides and allows other sizes: a bit for each dim whose size differs; -1: anything
 * else differs. */
int cc_tens_resized(PyObject *o, PyTypeObject *cls, const CcType *type, bool grad);
/* Fingerprints: as long as a tensor's fingerprint is unchanged, so is the result of cc_tens_match, except for
 * requires_grad and for a change of inference mode. About 3 ns. */
enum { CC_TENS_WORDS = 17 };
typedef struct CcTensFingerprint {
    int n;  /* number of words; 0: the tensor has no fingerprint and never compares equal */
    int at; /* first word, counted from the TensorImpl */
    uint64_t word[CC_TENS_WORDS];
} CcTensFingerprint;
void cc_tens_fingerprint(PyObject *o, CcTensFingerprint *out);
bool cc_tens_same_fingerprint(PyObject *o, PyTypeObject *cls, const CcTensFingerprint *mark);
bool cc_tens_requires_grad(PyObject *o);
/* false: cc_tens_match never succeeds for this type, so an input of it can't be guarded */
bool cc_tens_matchable(const CcType *type);
/* A new, uninitialised torch.Tensor of this type (dense, requires_grad False) with an ordinary, resizable storage. */
CC_MUST CC_NEW PyObject *cc_tens_empty(const CcType *type, void **data);
/* torch's current cudaStream_t of a GPU. 0; -1 without an error: torch does not expose it. */
CC_MUST int cc_tens_stream(int device, void **out);
/* "f32[8, 64] cpu" for reports. */
void cc_tens_describe(const CcType *type, CcSbuf *out);
PyTypeObject *cc_tens_size_type(void); /* torch.Size */
/* dtype, device, layout, memory_format, finfo, iinfo objects: immutable constants */
bool cc_tens_constant_type(const PyTypeObject *t);
static inline bool cc_tens_constant(PyObject *o) { return cc_tens_constant_type(Py_TYPE(o)); }

/* Tests: reads tensors by DLPack and Python only, as with a torch that lacks the shim. */
void cc_tens_force_fallback(bool on);

/* ---- ring.c: reuses the memory of results that are no longer referenced ---- */
typedef struct CcRing CcRing;
/* NULL: out of memory, or this torch's storage reference counts can't be read (logged as an event) */
CcRing *cc_ring_new(int n_values);
void cc_ring_free(CcRing *ring); /* results that are still referenced stay valid */
/* As cc_tens_empty, for result number `value`, reusing memory if possible; ring NULL: plain cc_tens_empty. */
CC_MUST CC_NEW PyObject *cc_ring_empty(CcRing *ring, int value, const CcType *type, void **data);
/* how many results got new and reused memory */
void cc_ring_counts(const CcRing *ring, uint64_t *made, uint64_t *reused);

/* ---- mode.def, mode.c: ambient state, one row per mode ---- */
enum { CC_MODE_MAX = 41 };
typedef struct CcMode {
    intptr_t v[CC_MODE_MAX]; /* by row; objects are borrowed pointers to immortal torch objects */
} CcMode;
void cc_mode_read(CcMode *out); /* about 0.3 us */
bool cc_mode_same(const CcMode *a, const CcMode *b);
/* description of the first row that differs; NULL: none */
const char *cc_mode_diff(const CcMode *a, const CcMode *b);
/* Why no region may be compiled under this state (an active torch-function or dispatch mode, functorch,
 * torch.jit.trace, torch.compile ...), so that the call runs eagerly; NULL: it may. */
const char *cc_mode_refusal(const CcMode *mode);
bool cc_mode_onednn(const CcMode *mode);        /* torch's own oneDNN is enabled */
bool cc_mode_deterministic(const CcMode *mode); /* torch.use_deterministic_algorithms is on */
bool cc_mode_fills_memory(const CcMode *mode);  /* in addition, new memory is filled (torch.utils.deterministic) */
/* autocast is on for the CPU, with its weight cache */
bool cc_mode_keeps_casts(const CcMode *mode);
bool cc_mode_autocast_cpu(void);            /* autocast is on for the CPU right now */
bool cc_mode_inference(const CcMode *mode); /* inference mode is on */
bool cc_mode_grad(const CcMode *mode);      /* grad mode is on */
bool cc_mode_grad_now(void);                /* grad mode is on right now; the region may have switched it */
/* DeviceContexts decide the default device right now, and no other torch-function mode is active */
bool cc_mode_device_now(void);
void cc_mode_restore_grad(const CcMode *mode); /* sets grad mode as in `mode` */
void cc_mode_set_grad(bool on);
/* also restores all other state that graphs set, except autocast's nesting depth */
void cc_mode_restore(const CcMode *mode);
/* undoes a call of this function if the call changed autocast's nesting depth */
void cc_mode_undo_nesting(PyObject *function);
/* torch.get_default_dtype(); CC_DT_OTHER: unknown */
CcDtype cc_mode_default_dtype(void);
int cc_mode_threads(void);            /* torch.get_num_threads() */
void cc_mode_force_fallback(bool on); /* tests: reads every row through Python */
int cc_mode_count(void);              /* number of rows */
const char *cc_mode_name(int row);    /* such as "GRAD"; NULL past the end */

/* ---- devmode.c: the default device, which torch-function modes set ---- */
bool cc_devmode_handles(PyFunctionObject *func); /* func is DeviceContext.__torch_function__ */
bool cc_devmode_runs(PyCodeObject *code);        /* code is that function's */
/* A call with all torch-function modes set aside. */
CC_MUST CC_NEW PyObject *cc_devmode_call_without(PyObject *f, PyObject *const *in, size_t n, PyObject *kwnames);

/* ---- torch.def, torch.c: what a torch callable does ---- */
typedef enum CcTorchClass {
    CC_T_NONE, /* not one of torch's C callables */
    CC_T_OP,   /* makes tensors from tensors, constants or nothing: a node */
    /* reads only metadata (size, dim, is_floating_point ...): constant under metadata guards */
    CC_T_META,
    /* reads a tensor's data into Python (item, tolist, numpy, __bool__, equal ...): graph break */
    CC_T_VALUE,
    /* reads ambient state that the entry's guards cover (is_grad_enabled, _get_tracing_state ...) */
    CC_T_STATE,
    CC_T_SET_STATE, /* sets ambient state (_set_grad_enabled ...): an effect node, replayed in order */
    CC_T_SCOPE,     /* makes, enters or leaves a block of inference mode or of a device */
    CC_T_ASSERT,    /* raises if a tensor's data say so, and has no other effect: a node */
    CC_T_MAKE,      /* makes an object that only further calls of torch use (a generator): a value of the graph */
    CC_T_RESHAPES,  /* changes the tensor's own sizes or strides as its namesake without '_' gives them */
    CC_T_DROP,      /* bookkeeping without visible effect (_log_api_usage_once): not replayed */
    /* Function.apply: runs the Python code of a custom autograd.Function; a break while autograd is on */
    CC_T_APPLY,
    CC_T_CONTEXT, /* informs autograd: no effect while autograd is off, else a break */
    CC_T_HELD,    /* attribute that is another tensor or None (grad): guards reach it through this tensor */
    CC_T_BREAK,   /* known to need a break for another reason (set_, resize_, backward, manual_seed ...) */
    /* a C callable of torch without a row: its result decides (tensor: node; else break) */
    CC_T_UNKNOWN,
} CcTorchClass;
typedef struct CcTorch {
    CcTorchClass cls;
    unsigned node_flags; /* OP: CC_N_* */
    const char *name;    /* "Tensor.add_", "torch.rand" */
    const char *why;     /* VALUE, BREAK: the reason shown to users */
    bool raises;         /* data may decide whether it raises (raises.def) */
    bool dynamic_shape;  /* OP: the result's shape may depend on data (nonzero, x[mask], zeros(t) ...) */
    /* OP: may draw random numbers, depending on its arguments; node_flags says whether this call does */
    bool draws;
    bool by_grad; /* META, an attribute: known of tensors that do not require grad only */
} CcTorch;
/* What calling `callable` does: a builtin function or method, method descriptor ... (the caller unwraps bound methods).
 * cc_torch_attr: what reading attribute `name` of a tensor does. */
CcTorch cc_torch_call(PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
CcTorch cc_torch_attr(PyObject *tensor, PyObject *name);
bool cc_torch_computes(
    PyObject *name); /* ops of this name (interned) make tensors, write to none and draw no numbers */
/* The name of a constructor by type: torch.Tensor, torch.LongTensor ... */
bool cc_torch_of_type(const char *name);
/* Whether one of the first two operands is a number or a tensor of floats: a division or a power computes with floats. */
bool cc_torch_takes_float(PyObject *const *args, Py_ssize_t n);
/* Are all frames of the traceback those of torch's methods that pass a call on to C: __call__ of the objects in torch.ops,
 * DeviceContext.__torch_function__? tb may be NULL. */
bool cc_torch_traced(PyObject *tb);

/* ---- cast.c: parameters that autocast has cast in the current block ---- */
typedef enum CcCastSeen {
    CC_CAST_NEW,
    CC_CAST_SAME,
    CC_CAST_CHANGED
} CcCastSeen; /* CHANGED: another tensor at the same address, or written to since */
/* Notes that a parameter is being cast, by a replay or by torch. */
CcCastSeen cc_cast_note(PyObject *tensor, bool replays);

/* ---- drawn.c: the CPU's default generator. Its state is a tensor of bytes. ---- */
CC_MUST CC_NEW PyObject *cc_drawn_state(void); /* 0.4 us */
CC_MUST int cc_drawn_restore(PyObject *state); /* 0, or -1 with an error set */
bool cc_drawn_since(PyObject *state);          /* whether it is in another state now */

/* ---- look.c: whether any code on this thread has read a tensor's data into Python since the last cc_look_take_read ---- */
bool cc_look_take_read(void);
/* 1 + the number of torch.clear_autocast_cache() calls so far; registers `each` to run on every further call. 0: this
 * torch's function can't be intercepted. */
uint64_t cc_look_count_clears(void (*each)(void));

/* ---- binds.def, bind.c: maps callables and arguments to an op and its operands ---- */
enum { CC_BOUND_MAX = 64 };
typedef struct CcBound {
    CcOpId op;
    int n;
    struct {
        PyObject *tensor; /* borrowed; NULL: use `constant` */
        CcOperand constant;
        /* borrowed: the object that the constant came from; NULL: a default, or an item of a container */
        PyObject *number;
    } in[CC_BOUND_MAX];
} CcBound;
/* 0: bound; -1: no row fits this callable and these arguments (the call becomes a HOST node). Never sets an error. */
int cc_bind_call(PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, CcBound *out);
int cc_bind_binop(CcBinop op, bool inplace, PyObject *a, PyObject *b, CcBound *out);
int cc_bind_unary(int op, PyObject *a, CcBound *out);
int cc_bind_attr(PyObject *tensor, const char *name, CcBound *out);
int cc_bind_getitem(PyObject *tensor, PyObject *key, CcBound *out);
int cc_bind_setitem(PyObject *tensor, PyObject *key, PyObject *value, CcBound *out);
int cc_bind_compare(int op, PyObject *a, PyObject *b, CcBound *out);
/* Row `row` of binds.def: its op's name (NULL past the end), whether ops.def has that op, and its callables. */
const char *cc_bind_row(int row, bool *known, const char **callables);

#endif
