/* tens: what the front half knows of torch. Tensors as descriptors, the ambient state that torch's C code reads unseen,
 * what each torch callable does (torch.def), and which op-table row it binds to (binds.def). No libtorch header or
 * library: DLPack's exchange API, torch's stable C shim by dlsym, and torch's own Python callables. GIL held
 * everywhere. */
#ifndef CC_TENS_H
#define CC_TENS_H

#include "../py/py.h"
#include "../ir/ir.h"

/* Once, with the imported torch module. -1 with ImportError set (which torch, what is missing). */
CC_MUST int cc_tens_init(PyObject *torch);

/* ---- tens.c ---- */
typedef struct CcTensor {
    CcType type;
    void *data; /* first element; NULL when foreign or empty */
} CcTensor;

/* exactly torch.Tensor or torch.nn.Parameter (or Buffer): no subclass behaviour */
bool cc_tens_plain(PyObject *o);
bool cc_tens_any(PyObject *o);       /* any instance of torch._C.TensorBase */
bool cc_tens_parameter(PyObject *o); /* torch.nn.Parameter itself */
/* Its `_version`: goes up with each write that torch counts. */
#define CC_TENS_NO_VERSION UINT64_MAX
uint64_t cc_tens_version(PyObject *o);
/* Only where its content is what it was then. */
CC_MUST int cc_tens_set_version(PyObject *o, uint64_t version);
/* Counts a write that torch does not know of. -1 with the error set. */
CC_MUST int cc_tens_wrote(PyObject *o);
/* Reads metadata and pointer. `grad` also fills type.requires_grad (else 0). Never fails: what kernels can't work on
 * (sparse, quantised, complex, meta, neg or conj bit, functorch wrapper, subclass, an inference tensor outside
 * inference mode, more than CC_MAX_DIMS dims ...) has type.ndim = -1, data NULL. No error is left set. A foreign type
 * whose metadata can still be compared (complex, odd dtypes, neg/conj bit, inference tensor; <= 6 dims) keeps it in
 * size[] and stride[] for cc_tens_match; all others (cc_tens_matchable false) never match. */
void cc_tens_read(PyObject *tensor, bool grad, CcTensor *out);
/* as it is read in inference mode, or outside */
void cc_tens_read_as(PyObject *tensor, bool grad, bool inference, CcTensor *out);
bool cc_tens_inference(PyObject *tensor); /* Tensor.is_inference() */
/* The same test as a guard: exact Python type `cls` and equal metadata. `grad`: also requires_grad. About 20 ns. */
bool cc_tens_match(PyObject *o, PyTypeObject *cls, const CcType *type, bool grad);
/* Like cc_tens_match but for sizes and strides: a bit for each dim whose size differs, or -1: something else does. */
int cc_tens_resized(PyObject *o, PyTypeObject *cls, const CcType *type, bool grad);
/* Fingerprints: a tensor with the same one is still matched by what cc_tens_match has found to match it, but for
 * requires_grad (and for inference mode). About 3 ns. */
enum { CC_TENS_WORDS = 17 };
typedef struct CcTensMark {
    int n;  /* words; 0: this tensor has none, and is never the same */
    int at; /* from the TensorImpl on */
    uint64_t word[CC_TENS_WORDS];
} CcTensMark;
void cc_tens_mark(PyObject *o, CcTensMark *out);
bool cc_tens_same(PyObject *o, PyTypeObject *cls, const CcTensMark *mark);
bool cc_tens_requires_grad(PyObject *o);
/* false: cc_tens_match is never true for it, so an input of it can't be guarded */
bool cc_tens_matchable(const CcType *type);
/* New uninitialised torch.Tensor of this type (dense, requires_grad False) with an ordinary, resizable storage. */
CC_MUST CC_NEW PyObject *cc_tens_empty(const CcType *type, void **data);
/* torch's current stream of a GPU, a cudaStream_t. 0; -1 without an error: torch does not tell. */
CC_MUST int cc_tens_stream(int device, void **out);
/* "f32[8, 64] cpu" for reports. */
void cc_tens_describe(const CcType *type, CcSbuf *out);
PyTypeObject *cc_tens_size_type(void); /* torch.Size */
/* dtype, device, layout, memory_format, finfo, iinfo objects: immutable constants */
bool cc_tens_constant_type(const PyTypeObject *t);
static inline bool cc_tens_constant(PyObject *o) { return cc_tens_constant_type(Py_TYPE(o)); }

/* tests: read by DLPack and Python only, as under a torch without the shim */
void cc_tens_force_fallback(bool on);

/* ---- ring.c: memory of results that is used again once nobody refers to it ---- */
typedef struct CcRing CcRing;
/* NULL: no memory, or this torch does not tell who holds a storage (an event) */
CcRing *cc_ring_new(int n_values);
void cc_ring_free(CcRing *ring); /* what is still referred to lives on */
/* As cc_tens_empty, for the result with this number; ring NULL: just that. */
CC_MUST CC_NEW PyObject *cc_ring_empty(CcRing *ring, int value, const CcType *type, void **data);
void cc_ring_counts(const CcRing *ring, uint64_t *made, uint64_t *reused); /* results so far */

/* ---- mode.def, mode.c: ambient state, one row a mode ---- */
enum { CC_MODE_MAX = 40 };
typedef struct CcMode {
    intptr_t v[CC_MODE_MAX]; /* by row; objects as borrowed pointers of immortal/interned torch objects */
} CcMode;
void cc_mode_read(CcMode *out); /* about 0.3 us */
bool cc_mode_same(const CcMode *a, const CcMode *b);
/* name of the first row that differs; NULL */
const char *cc_mode_diff(const CcMode *a, const CcMode *b);
/* NULL when a region may be compiled under this state; else why not (a torch-function or dispatch mode is active,
 * inside vmap/functorch, inside torch.jit.trace or torch.compile, ...): the call then runs eagerly. */
const char *cc_mode_refuse(const CcMode *mode);
bool cc_mode_library(const CcMode *mode); /* torch may call its oneDNN */
bool cc_mode_ordered(const CcMode *mode); /* torch.use_deterministic_algorithms */
bool cc_mode_fills(const CcMode *mode);   /* and new memory is filled, torch.utils.deterministic */
/* autocast on the CPU, with its cache of parameters */
bool cc_mode_keeps_casts(const CcMode *mode);
bool cc_mode_autocast_cpu(void);               /* autocast is enabled for the CPU now */
bool cc_mode_inference(const CcMode *mode);    /* inference mode is enabled */
bool cc_mode_grad(const CcMode *mode);         /* grad mode is enabled */
bool cc_mode_grad_now(void);                   /* ... now, and not at the entry: the region may have switched it */
void cc_mode_restore_grad(const CcMode *mode); /* sets grad mode to what it is there */
void cc_mode_restore(const CcMode *mode);      /* and all else that graphs set, but for autocast's depth */
void cc_mode_unnest(PyObject *function);       /* undoes its call, if that has changed autocast's depth */
/* torch.get_default_dtype(); CC_DT_OTHER: unknown */
CcDtype cc_mode_default_dtype(void);
int cc_mode_threads(void);            /* torch.get_num_threads() */
void cc_mode_force_fallback(bool on); /* tests: every row through Python */
int cc_mode_count(void);              /* rows */
const char *cc_mode_name(int row);    /* "GRAD"; NULL past the end */

/* ---- torch.def, torch.c: what a torch callable does ---- */
typedef enum CcTorchClass {
    CC_T_NOT, /* not one of torch's C callables */
    CC_T_OP,  /* tensors from tensors, constants, or nothing: a node */
    /* reads metadata only (size, dim, is_floating_point, ...): constant under metadata guards */
    CC_T_META,
    /* reads a tensor's data into Python (item, tolist, numpy, __bool__, equal, ...): graph break */
    CC_T_VALUE,
    /* reads ambient state that the entry guards cover (is_grad_enabled, _get_tracing_state, ...) */
    CC_T_STATE,
    CC_T_SET_STATE, /* sets ambient state (_set_grad_enabled, ...): an effect node, replayed in order */
    CC_T_SCOPE,     /* makes, enters or leaves a block of inference mode */
    CC_T_DROP,      /* bookkeeping without a visible effect (_log_api_usage_once): not replayed */
    /* Function.apply: runs the Python of a custom autograd.Function; with autograd on a break */
    CC_T_APPLY,
    CC_T_CONTEXT, /* tells autograd something: nothing while it is off, else a break */
    CC_T_HELD,    /* attribute that holds another tensor or None (grad): reached again from this one */
    CC_T_BREAK,   /* everything else known to need a break (set_, resize_, backward, manual_seed, ...) */
    /* a C callable of torch without a row: decided by what it returns (tensor: node; else break) */
    CC_T_UNKNOWN,
} CcTorchClass;
typedef struct CcTorch {
    CcTorchClass cls;
    unsigned node_flags; /* CC_N_* when it is an op */
    const char *name;    /* "Tensor.add_", "torch.rand" */
    const char *why;     /* VALUE, BREAK: reason for people */
    bool raises;         /* whether it raises may depend on data (raises.def) */
    bool dynamic_shape;  /* OP: the result's shape may depend on data (nonzero, x[mask], zeros(t), ...) */
    bool draws;          /* OP: random numbers, if its arguments say so (node_flags); what it gives may hang on them */
} CcTorch;
/* callable: builtin function or method, method descriptor, ... (bound methods unwrapped by the caller).
 * attr form: CcTorch of reading attribute `name` of a tensor. */
CcTorch cc_torch_call(PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames);
CcTorch cc_torch_attr(PyObject *tensor, PyObject *name);

/* ---- cast.c: what autocast has cast in this block ---- */
typedef enum CcCastSeen {
    CC_CAST_NEW,
    CC_CAST_SAME,
    CC_CAST_CHANGED
} CcCastSeen; /* CHANGED: it is another tensor, or was written */
/* It is cast now, by a replay or by torch. */
CcCastSeen cc_cast_see(PyObject *tensor, bool replays);

/* ---- look.c: whether anything on this thread has read a tensor's data into Python since this was last asked ---- */
bool cc_look_take(void);
/* 1 + how often torch.clear_autocast_cache() was called, and from now on `each` with it; 0: this torch does not let it
 * be known. */
uint64_t cc_look_clears(void (*each)(void));

/* ---- binds.def, bind.c: from callables and arguments to an op and its operands ---- */
enum { CC_BOUND_MAX = 64 };
typedef struct CcBound {
    CcOpId op;
    int n;
    struct {
        PyObject *tensor; /* borrowed; NULL: the constant below */
        CcOperand constant;
        /* borrowed: what the constant was made from; NULL: it is a default, or an item of a container */
        PyObject *number;
    } in[CC_BOUND_MAX];
} CcBound;
/* 0: bound; -1: no row, or these arguments don't fit the row (then it is a HOST node). No error is left set. */
int cc_bind_call(PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, CcBound *out);
int cc_bind_binop(CcBinop op, bool inplace, PyObject *a, PyObject *b, CcBound *out);
int cc_bind_unary(int op, PyObject *a, CcBound *out);
int cc_bind_attr(PyObject *tensor, const char *name, CcBound *out);
int cc_bind_getitem(PyObject *tensor, PyObject *key, CcBound *out);
int cc_bind_setitem(PyObject *tensor, PyObject *key, PyObject *value, CcBound *out);
int cc_bind_compare(int op, PyObject *a, PyObject *b, CcBound *out);
/* Row `row` of binds.def: its op's name (NULL past the end), whether ops.def has it, its callables. */
const char *cc_bind_row(int row, bool *known, const char **callables);

#endif
