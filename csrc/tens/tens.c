/* Tensors as descriptors: reads, guards and creates torch.Tensor objects without libtorch's headers.
 *
 *   PyObject --+--> key set word of the TensorImpl ---> "an ordinary dense tensor?"  (calibrated)
 *              +--> stable C shim, else DLPack ------>  pointer, dtype, device, sizes, strides
 *              +--> TensorImpl::requires_grad ------->  requires_grad
 *
 * DLPack does not expose neg and conj bits, functorch wrappers, zero tensors or inference tensors; torch's dispatch-key
 * set shows all of them in one word. init finds its offset inside TensorImpl by comparing several tensors with what
 * torch._C._dispatch_keys returns for them; if that fails, the Python function is called each time (slower, same
 * answer). All DLPack declarations of the project are in this file. */
#include "tens_int.h"

/* ---- the parts of DLPack 1.x that we use */
typedef struct DlDevice {
    int32_t type, index;
} DlDevice;
typedef struct DlDtype {
    uint8_t code, bits;
    uint16_t lanes;
} DlDtype;
typedef struct DlTensor {
    void *data;
    DlDevice device;
    int32_t ndim;
    DlDtype dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DlTensor;
typedef struct DlApi {
    struct {
        uint32_t major, minor;
    } version;
    struct DlApi *prev;
    void *allocate, *from_object, *to_object;
    int (*read)(void *object, DlTensor *out);
    int (*current_stream)(int32_t device_type, int32_t device_index, void **out);
} DlApi;
enum { DL_CPU = CC_TENS_CPU, DL_CUDA = 2, DL_CUDA_HOST = 3, SCALAR_TYPES = 64, HUGE_BYTES = 1 << 23 };

typedef struct Impl Impl; /* c10::TensorImpl */

static struct {
    const DlApi *dl;
    PyTypeObject *base, *tensor, *parameter, *size;
    PyTypeObject *constant[7];
    /* byte offset of the TensorImpl pointer in the Python object; 0: unknown */
    int impl_at;
    int keys_at;         /* word offset of the key set in TensorImpl; 0: unknown */
    uint64_t keys_ok;    /* the bits that a plain tensor may have */
    uint64_t keys_soft;  /* bits of tensors that only the host can process: neg, conj */
    int mark_at, mark_n; /* the fingerprint: TensorImpl's words from its sizes to its key set; mark_n 0: unknown */
    uint64_t key_dense, key_autograd;
    PyObject *dispatch_keys, *raw_repr, *requires_grad_name, *version_name, *increment_version, *set_version;
    PyObject *inference_enabled;
    bool (*c_inference)(void);
    bool (*c_requires_grad)(const Impl *);
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **);
    int32_t (*delete_tensor)(void *);
    PyObject *(*wrap)(const void *);
    /* torch's stable C shim, 2 ns per call; sizes NULL: not usable, DLPack serves instead */
    struct {
        int32_t (*sizes)(void *, const int64_t **), (*strides)(void *, const int64_t **), (*dim)(void *, int64_t *);
        int32_t (*dtype)(void *, int32_t *), (*device_type)(void *, int32_t *), (*device_index)(void *, int32_t *);
        int32_t (*data)(void *, void **);
    } shim;
    int32_t scalar_type[CC_DT_COUNT];
    uint8_t dtype_of[SCALAR_TYPES]; /* torch's number -> CcDtype */
    int32_t device_type[3];         /* DLPack's number -> torch's; [0] unused */
    PyObject *py_empty, *py_empty_names, *dtype_object[CC_DT_COUNT];
} T;

/* ------------------------------------------------------------------ types */

bool cc_tens_plain(PyObject *o) { return Py_TYPE(o) == T.tensor || Py_TYPE(o) == T.parameter; }

bool cc_tens_parameter(PyObject *o) { return Py_TYPE(o) == T.parameter; }

static unsigned is_tensor(PyTypeObject *type) { return (unsigned)PyType_IsSubtype(type, T.base); }

bool cc_tens_is(PyObject *o) {
    static CcFacts facts = {.ask = is_tensor};
    return Py_TYPE(o) == T.tensor || cc_type_facts(&facts, Py_TYPE(o)) != 0;
}

PyTypeObject *cc_tens_size_type(void) { return T.size; }

PyTypeObject *cc_tens_base_type(void) { return T.base; }

bool cc_tens_constant_type(const PyTypeObject *t) {
    for (int i = 0; i < CC_COUNT(T.constant); i++)
        if (t == T.constant[i]) return true;
    return false;
}

int cc_tens_bump_version(PyObject *o) {
    PyObject *one = PyTuple_Pack(1, o);
    PyObject *each = one ? PyObject_GetIter(one) : NULL; /* torch reports any failure of its own as "not iterable" */
    PyObject *r = each ? PyObject_CallOneArg(T.increment_version, each) : NULL;
    Py_XDECREF(each);
    Py_XDECREF(one);
    Py_XDECREF(r);
    return r ? 0 : -1;
}

uint64_t cc_tens_version(PyObject *o) {
    PyObject *version = PyObject_GetAttr(o, T.version_name);
    const uint64_t n = version ? PyLong_AsUnsignedLongLongMask(version) : CC_TENS_NO_VERSION;
    if (!version) cc_raised_clear(); /* inference tensors have no version */
    Py_XDECREF(version);
    return n;
}

int cc_tens_set_version(PyObject *o, uint64_t version) {
    if (version == CC_TENS_NO_VERSION || T.set_version == NULL) return 0;
    PyObject *r = PyObject_CallFunction(T.set_version, "(O)(K)", o, (unsigned long long)version);
    Py_XDECREF(r);
    return r ? 0 : -1;
}

/* ------------------------------------------------------------------ reading */

static uint64_t slow_keys(PyObject *o) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    uint64_t keys = 0; /* unknown counts as foreign */
    PyObject *set = T.dispatch_keys ? PyObject_CallOneArg(T.dispatch_keys, o) : NULL;
    PyObject *raw = set ? PyObject_CallMethodNoArgs(set, T.raw_repr) : NULL;
    if (raw) keys = PyLong_AsUnsignedLongLongMask(raw);
    Py_XDECREF(set);
    Py_XDECREF(raw);
    PyErr_Restore(type, value, tb);
    return keys;
}

static inline const Impl *impl_of(PyObject *o) { return *(const Impl *const *)((const char *)o + T.impl_at); }

static inline uint64_t keys_of(PyObject *o) {
    if (!T.keys_at) return slow_keys(o);
    const uint64_t *impl = (const uint64_t *)impl_of(o);
    return impl ? impl[T.keys_at] : 0;
}

static bool inference_mode(void) {
    if (T.c_inference) return T.c_inference();
    PyObject *on = T.inference_enabled ? PyObject_CallNoArgs(T.inference_enabled) : NULL;
    bool yes = on == Py_True;
    Py_XDECREF(on);
    cc_raised_clear();
    return yes;
}

/* What a tensor's keys allow: PLAIN: kernels can use it; SOFT: foreign, but its metadata can be compared; HARD:
 * foreign. */
typedef enum Grade { PLAIN, SOFT, HARD } Grade;

static inline Grade grade_of(uint64_t keys, bool (*inference)(void)) {
    if (!(keys & T.key_dense) || (keys & ~(T.keys_ok | T.keys_soft))) return HARD;
    if (keys & T.keys_soft) return SOFT;
    /* Outside inference mode an inference tensor must not be saved for backward or written: leave it to the host. */
    if (!(keys & T.key_autograd) && !inference()) return SOFT;
    return PLAIN;
}

static inline Grade grade(uint64_t keys) { return grade_of(keys, inference_mode); }

static bool requires_grad(PyObject *o) {
    if (T.c_requires_grad && T.impl_at) return T.c_requires_grad(impl_of(o));
    PyObject *value = PyObject_GetAttr(o, T.requires_grad_name);
    bool yes = value == Py_True;
    Py_XDECREF(value);
    cc_raised_clear();
    return yes;
}

/* A tensor's metadata as the shim or DLPack reports it. */
typedef struct View {
    const int64_t *size, *stride; /* stride may be NULL if there are no elements */
    int64_t ndim;
    int64_t raw_dtype;     /* the shim's or DLPack's own number; distinguishes dtypes that we don't support */
    int32_t device, index; /* DLPack's device type */
    CcDtype dtype;
} View;

static int view_by_dlpack(PyObject *o, View *v, DlTensor *d) {
    PyObject *type = NULL, *value = NULL, *tb = NULL;
    /* an exception may be pending in the caller */
    bool pending = PyErr_Occurred() != NULL;
    if (pending) PyErr_Fetch(&type, &value, &tb);
    int rc = T.dl->read(o, d);
    if (rc) cc_raised_clear();
    if (pending) PyErr_Restore(type, value, tb);
    if (rc) return -1;
    v->size = d->shape;
    v->stride = d->strides;
    v->ndim = d->ndim;
    v->raw_dtype = (int64_t)d->dtype.code << 32 | (int64_t)d->dtype.bits << 16 | d->dtype.lanes;
    v->dtype = d->dtype.lanes == 1 ? cc_dtype_from_dl(d->dtype.code, d->dtype.bits) : CC_DT_OTHER;
    /* treat pinned memory as CPU memory */
    v->device = d->device.type == DL_CUDA_HOST ? DL_CPU : d->device.type;
    v->index = v->device == DL_CUDA ? d->device.index : 0;
    return 0;
}

/* The stable shim's handle is a pointer to an at::Tensor, such as the one inside a tensor object. */
static inline void *handle_of(PyObject *o) { return (char *)o + T.impl_at; }

CcDtype cc_tens_dtype_of(int scalar_type) {
    return (unsigned)scalar_type < SCALAR_TYPES ? (CcDtype)T.dtype_of[scalar_type] : CC_DT_OTHER;
}

static int view_by_shim(PyObject *o, View *v) {
    void *h = handle_of(o);
    int32_t dtype, device, index = 0;
    if (T.shim.sizes(h, &v->size) || T.shim.strides(h, &v->stride) || T.shim.dim(h, &v->ndim) ||
        T.shim.dtype(h, &dtype) || T.shim.device_type(h, &device))
        return -1;
    if (device == T.device_type[DL_CPU]) v->device = DL_CPU;
    else if (device == T.device_type[DL_CUDA] && T.shim.device_index(h, &index) == 0) v->device = DL_CUDA;
    else return -1;
    v->index = index;
    v->raw_dtype = dtype;
    v->dtype = cc_tens_dtype_of(dtype);
    return 0;
}

static inline int view_of(PyObject *o, View *v) {
    DlTensor d;
    return T.shim.sizes ? view_by_shim(o, v) : view_by_dlpack(o, v, &d);
}

static void *data_of(PyObject *o) {
    DlTensor d;
    View v;
    void *data;
    if (T.shim.sizes) return T.shim.data(handle_of(o), &data) ? NULL : data;
    return view_by_dlpack(o, &v, &d) || !d.data ? NULL : (char *)d.data + d.byte_offset;
}

/* SOFT types store sizes and strides of up to SOFT_DIMS dims, and behind them ndim, dtype and keys. */
enum { SOFT_DIMS = 6, SOFT_NDIM = 6, SOFT_DTYPE = 7, SOFT_KEYS = 7 };

static void fill_soft(CcType *t, const View *v, uint64_t keys) {
    for (int i = 0; i < v->ndim; i++) {
        t->size[i] = v->size[i];
        t->stride[i] = v->stride ? v->stride[i] : 0;
    }
    t->size[SOFT_NDIM] = v->ndim;
    t->size[SOFT_DTYPE] = v->raw_dtype;
    t->stride[SOFT_KEYS] = (int64_t)keys;
}

bool cc_tens_matchable(const CcType *t) { return t->ndim >= 0 || t->stride[SOFT_KEYS] != 0; }

static void read_tensor(PyObject *o, bool grad, bool (*inference)(void), CcTensor *out) {
    memset(out, 0, sizeof *out);
    CcType *t = &out->type;
    t->ndim = -1;
    if (!cc_tens_plain(o)) return;
    uint64_t keys = keys_of(o);
    Grade g = grade_of(keys, inference);
    View v;
    if (g == HARD || view_of(o, &v)) return;
    t->dtype = (uint8_t)v.dtype;
    t->device = (uint8_t)v.device;
    t->device_index = (uint8_t)v.index;
    if (grad) t->requires_grad = requires_grad(o);
    if (v.device != DL_CPU && v.device != DL_CUDA) return;
    if (g == SOFT || v.dtype == CC_DT_OTHER) {
        if (v.ndim <= SOFT_DIMS) fill_soft(t, &v, keys);
        return;
    }
    if (v.ndim > CC_MAX_DIMS) return;
    t->ndim = (int8_t)v.ndim;
    int64_t numel = 1;
    for (int i = 0; i < v.ndim; i++) {
        t->size[i] = v.size[i];
        t->stride[i] = v.stride ? v.stride[i] : 0;
        numel *= v.size[i];
    }
    out->data = numel ? data_of(o) : NULL;
}

void cc_tens_read(PyObject *o, bool grad, CcTensor *out) { read_tensor(o, grad, inference_mode, out); }

static bool yes(void) { return true; }
static bool no(void) { return false; }

void cc_tens_read_as(PyObject *o, bool grad, bool inference, CcTensor *out) {
    read_tensor(o, grad, inference ? yes : no, out);
}

bool cc_tens_inference(PyObject *o) { return !(keys_of(o) & T.key_autograd); }

static bool same_sizes(const CcType *t, const View *v) {
    for (int i = 0; i < v->ndim; i++)
        if (t->size[i] != v->size[i] || t->stride[i] != (v->stride ? v->stride[i] : 0)) return false;
    return true;
}

bool cc_tens_match(PyObject *o, PyTypeObject *cls, const CcType *t, bool grad) {
    if (Py_TYPE(o) != cls || !cc_tens_plain(o) || !cc_tens_matchable(t)) return false;
    uint64_t keys = keys_of(o);
    Grade g = grade(keys);
    View v;
    if (g == HARD || view_of(o, &v)) return false;
    if (v.dtype != t->dtype || v.device != t->device || v.index != t->device_index) return false;
    bool soft = g == SOFT || v.dtype == CC_DT_OTHER;
    if (soft != (t->ndim < 0)) return false;
    if (soft) {
        if (v.ndim > SOFT_DIMS || t->size[SOFT_NDIM] != v.ndim || t->size[SOFT_DTYPE] != v.raw_dtype ||
            t->stride[SOFT_KEYS] != (int64_t)keys)
            return false;
    } else if (v.ndim != t->ndim) {
        return false;
    }
    return same_sizes(t, &v) && (!grad || t->requires_grad == requires_grad(o));
}

int cc_tens_resized(PyObject *o, PyTypeObject *cls, const CcType *t, bool grad) {
    View v;
    if (Py_TYPE(o) != cls || !cc_tens_plain(o) || t->ndim < 0) return -1;
    if (grade(keys_of(o)) != PLAIN || view_of(o, &v) || v.dtype != t->dtype || v.device != t->device ||
        v.index != t->device_index || v.ndim != t->ndim || (grad && t->requires_grad != requires_grad(o)))
        return -1;
    int dims = 0;
    for (int i = 0; i < v.ndim; i++) dims |= (t->size[i] != v.size[i]) << i;
    return dims;
}

bool cc_tens_requires_grad(PyObject *o) { return requires_grad(o); }

/* ------------------------------------------------------------------ fingerprints */

/* c10::TensorImpl stores, in this order: sizes and strides (inline for up to five dims), storage offset, number of
 * elements, dtype, device, flags, key set. The address of the sizes, which the shim returns, shows where this
 * begins. */
void cc_tens_fingerprint(PyObject *o, CcTensFingerprint *out) {
    out->n = 0;
    if (!T.mark_n || !cc_tens_plain(o) || !impl_of(o)) return;
    View v;
    const uint64_t *impl = (const uint64_t *)impl_of(o);
    if (grade(keys_of(o)) == HARD || view_by_shim(o, &v) || v.device != DL_CPU || v.ndim > 5) return;
    if ((const uint64_t *)v.size != impl + T.mark_at + 1) return;
    out->at = T.mark_at;
    out->n = T.mark_n;
    memcpy(out->word, impl + out->at, sizeof *impl * (size_t)out->n);
}

bool cc_tens_same_fingerprint(PyObject *o, PyTypeObject *cls, const CcTensFingerprint *mark) {
    if (Py_TYPE(o) != cls || mark->n == 0) return false;
    const uint64_t *impl = (const uint64_t *)impl_of(o);
    return impl && memcmp(impl + mark->at, mark->word, sizeof *impl * (size_t)mark->n) == 0;
}

/* ------------------------------------------------------------------ making */

static PyObject *empty_by_python(const CcType *t) {
    PyObject *size = PyTuple_New(t->ndim), *stride = PyTuple_New(t->ndim), *result = NULL;
    PyObject *device = PyUnicode_FromFormat(t->device == DL_CUDA ? "cuda:%d" : "cpu", t->device_index);
    for (int i = 0; size && stride && i < t->ndim; i++) {
        PyTuple_SET_ITEM(size, i, PyLong_FromLongLong(t->size[i]));
        PyTuple_SET_ITEM(stride, i, PyLong_FromLongLong(t->stride[i]));
    }
    if (size && stride && device && !PyErr_Occurred()) {
        PyObject *args[] = {size, stride, T.dtype_object[t->dtype], device};
        result = PyObject_Vectorcall(T.py_empty, args, 2, T.py_empty_names);
    }
    Py_XDECREF(size);
    Py_XDECREF(stride);
    Py_XDECREF(device);
    return result;
}

/* Every page of a new, large tensor is unmapped, so page faults dominate pointwise kernels: softmax of 4096x4096 takes
 * 40 ms with small pages and 17 ms with huge ones (Zen 4). */
static void advise_huge(const CcType *t, void *handle) {
    const size_t bytes = (size_t)cc_type_numel(t) * cc_dtype_info((CcDtype)t->dtype)->size;
    void *at = NULL;
    if (t->device == DL_CPU && bytes >= HUGE_BYTES && !cc_tens_data(handle, &at)) cc_pages_advise_huge(at, bytes);
}

void *cc_tens_handle(const CcType *t) {
    void *handle = NULL;
    if (!T.empty_strided ||
        T.empty_strided(t->ndim, t->size, t->stride, T.scalar_type[t->dtype], T.device_type[t->device],
                        t->device == DL_CUDA ? t->device_index : 0, &handle))
        return NULL;
    advise_huge(t, handle);
    return handle;
}

/* torch::THPVariable_Wrap throws if it can't allocate the tensor's Python object, and only then. So wrap() allocates
 * the object first, and tp_alloc returns it while THPVariable_Wrap runs. */
static PyObject *spare;

static PyObject *return_spare(PyTypeObject *type, Py_ssize_t n) {
    (void)type, (void)n;
    PyObject *o = spare;
    spare = NULL;
    return o;
}

static PyObject *wrap(void *handle, bool *allocated) {
    const allocfunc alloc = T.tensor->tp_alloc;
    PyObject *o = alloc(T.tensor, 0); /* may run the garbage collector, so nothing is changed yet */
    *allocated = false;
    if (o == NULL) return NULL;
    spare = o;
    T.tensor->tp_alloc = return_spare;
    PyObject *made = T.wrap(handle);
    T.tensor->tp_alloc = alloc;
    *allocated = spare == NULL;
    if (spare != NULL) { /* the handle already had an object */
        spare = NULL;
        PyObject_GC_UnTrack(o);
        T.tensor->tp_free(o);
        Py_DECREF(T.tensor);
    }
    return made;
}

PyObject *cc_tens_wrap(void *handle) {
    bool allocated;
    return wrap(handle, &allocated);
}

int cc_tens_data(void *handle, void **data) { return T.shim.data ? T.shim.data(handle, data) : -1; }

void cc_tens_delete_handle(void *handle) { T.delete_tensor(handle); }

PyObject *cc_tens_empty(const CcType *t, void **data) {
    if (t->ndim < 0 || t->dtype == CC_DT_OTHER || t->dtype >= CC_DT_COUNT ||
        (t->device != DL_CPU && t->device != DL_CUDA)) {
        PyErr_SetString(PyExc_SystemError,
                        "ccompile: cc_tens_empty was asked for a tensor that only the host can make");
        return NULL;
    }
    void *handle = cc_tens_handle(t);
    if (handle) {
        PyObject *made = cc_tens_wrap(handle);
        if (made && data && cc_tens_data(handle, data)) *data = NULL;
        cc_tens_delete_handle(handle);
        return made;
    } /* the shim gives no reason; the Python function below raises the error (out of memory ...) */
    PyObject *result = empty_by_python(t);
    if (result && data) *data = data_of(result);
    return result;
}

int cc_tens_stream(int device, void **out) {
    const int status = T.dl->current_stream ? T.dl->current_stream(DL_CUDA, device, out) : -1;
    if (status) cc_raised_clear();
    return status ? -1 : 0;
}

/* A tensor that kernels can't process. */
static void describe_other(const CcType *t, CcSbuf *out) {
    cc_sbuf_add(out, "tensor");
    for (int i = 0; cc_tens_matchable(t) && i < t->size[SOFT_NDIM]; i++)
        cc_sbuf_add(out, "%s%lld%s", i ? ", " : "[", (long long)t->size[i], i + 1 < t->size[SOFT_NDIM] ? "" : "]");
    cc_sbuf_add(out, "%s",
                !cc_tens_matchable(t)     ? " of data-dependent size, or of a kind without kernels"
                : t->dtype == CC_DT_OTHER ? " of a dtype that kernels don't support (such as complex)"
                                          : " with a neg or conj bit, or created in inference mode");
}

void cc_tens_describe(const CcType *t, CcSbuf *out) {
    if (t->ndim < 0) {
        describe_other(t, out);
        return;
    }
    cc_sbuf_add(out, "%s[", cc_dtype_info((CcDtype)t->dtype)->name);
    for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? ", " : "", (long long)t->size[i]);
    cc_sbuf_add(out, "]");
    if (!cc_type_contiguous(t)) {
        cc_sbuf_add(out, " strides (");
        for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? ", " : "", (long long)t->stride[i]);
        cc_sbuf_add(out, ")");
    }
    if (t->device == DL_CUDA) cc_sbuf_add(out, " cuda:%d", t->device_index);
    else cc_sbuf_add(out, " cpu");
    if (t->requires_grad) cc_sbuf_add(out, " requires_grad");
}

/* ------------------------------------------------------------------ init */

static int missing(const char *what) {
    cc_raised_clear();
    PyObject *version = cc_tsym_path("torch.__version__");
    PyErr_Format(PyExc_ImportError, "ccompile needs torch >= 2.10, but torch %S has no %s: install a newer torch",
                 version ? version : Py_None, what);
    Py_XDECREF(version);
    return -1;
}

static int find_type(const char *path, PyTypeObject **out) {
    PyObject *o = cc_tsym_path(path);
    if (!o || !PyType_Check(o)) {
        Py_XDECREF(o);
        return missing(path);
    }
    Py_XSETREF(*out, (PyTypeObject *)o);
    return 0;
}

static int find_dlpack(void) {
    PyObject *capsule = cc_tsym_path("torch.Tensor.__dlpack_c_exchange_api__");
    const DlApi *api = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    Py_XDECREF(capsule); /* torch's table is static, so it outlives the capsule */
    while (api && api->version.major != 1) api = api->prev;
    if (!api || !api->read) return missing("__dlpack_c_exchange_api__ of DLPack 1.x");
    T.dl = api;
    return 0;
}

/* Tensors with different key sets, for finding the key set's offset. */
static PyObject *sample_tensor(int which) {
    static const char *const how[] = {"empty", "_neg_view", "_efficientzerotensor", "_neg_view", "empty"};
    char path[64];
    snprintf(path, sizeof path, "torch._C._VariableFunctions.%s", how[which]);
    PyObject *f = cc_tsym_path(path), *result = NULL, *arg = NULL, *kw = NULL;
    if (f && strcmp(how[which], "_neg_view") == 0) arg = sample_tensor(which == 1 ? 0 : 2);
    else arg = Py_BuildValue("(i)", 3);
    if (which == 4) kw = Py_BuildValue("{s:s}", "device", "meta");
    if (f && arg && (which != 4 || kw)) {
        PyObject *args = PyTuple_Pack(1, arg);
        if (args) result = PyObject_Call(f, args, kw);
        Py_XDECREF(args);
    }
    Py_XDECREF(f);
    Py_XDECREF(arg);
    Py_XDECREF(kw);
    if (!result) cc_raised_clear();
    return result;
}

/* Finds impl_at and keys_at. */
static void calibrate(void) {
    /* A TensorImpl of torch 2.13 has 176 bytes; reads no word behind them. */
    enum { N = 5, OBJECT_BYTES = 48, IMPL_WORDS = 22 };
    PyObject *t[N] = {0};
    uint64_t want[N], maybe = ((uint64_t)1 << IMPL_WORDS) - 1;
    T.impl_at = T.keys_at = 0;
    for (int i = 0; i < N; i++) {
        t[i] = sample_tensor(i);
        PyObject *address = t[i] ? PyObject_GetAttrString(t[i], "_cdata") : NULL;
        uint64_t impl = address ? PyLong_AsUnsignedLongLongMask(address) : 0;
        Py_XDECREF(address);
        cc_raised_clear();
        want[i] = t[i] ? slow_keys(t[i]) : 0;
        int at = (int)sizeof(PyObject);
        while (impl && at < OBJECT_BYTES && *(uint64_t *)((char *)t[i] + at) != impl) at += (int)sizeof(void *);
        if (!impl || !want[i] || at >= OBJECT_BYTES || (i && at != T.impl_at)) {
            maybe = 0;
            break;
        }
        T.impl_at = at;
        for (int w = 0; w < IMPL_WORDS; w++)
            if (((const uint64_t *)impl)[w] != want[i]) maybe &= ~((uint64_t)1 << w);
    }
    if (maybe && !(maybe & (maybe - 1))) T.keys_at = __builtin_ctzll(maybe);
    else T.impl_at = 0;
    for (int i = 0; i < N; i++) Py_XDECREF(t[i]);
}

static void find_keys(void) {
    static const char *const ok[] = {"CPU",         "CUDA",        "AutogradCPU", "AutogradCUDA", "ADInplaceOrView",
                                     "AutocastCPU", "AutocastCUDA"};
    T.keys_ok = 0;
    for (int i = 0; i < CC_COUNT(ok); i++) T.keys_ok |= cc_tsym_key(ok[i]);
    T.keys_soft = cc_tsym_key("Negative") | cc_tsym_key("Conjugate");
    T.key_dense = cc_tsym_key("Dense");
    T.key_autograd = cc_tsym_key("AutogradFunctionality");
}

/* Whether this torch allocates a tensor's Python object in the way that wrap() relies on. */
static bool wrap_works(void) {
    const CcType like = {.ndim = 1, .dtype = CC_DT_F32, .device = DL_CPU, .size = {3}, .stride = {1}};
    void *handle = cc_tens_handle(&like);
    bool first = false, second = true;
    PyObject *o = handle ? wrap(handle, &first) : NULL, *same = first ? wrap(handle, &second) : NULL;
    const bool ok = first && !second && o == same;
    Py_XDECREF(o);
    Py_XDECREF(same);
    cc_raised_clear();
    if (handle) cc_tens_delete_handle(handle);
    return ok;
}

/* Finds the stable shim. If any part is missing it stays unused, and DLPack and torch.empty_strided serve instead. */
static void find_shim(void) {
    T.empty_strided = NULL;
    memset(&T.shim, 0, sizeof T.shim);
    for (int i = 1; i < CC_DT_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "aoti_torch_dtype_%s", cc_dtype_info((CcDtype)i)->torch_name);
        int32_t (*number)(void) = cc_tsym_find(name);
        T.scalar_type[i] = number ? number() : -1;
        if ((unsigned)T.scalar_type[i] >= SCALAR_TYPES) return;
        T.dtype_of[T.scalar_type[i]] = (uint8_t)i;
    }
    int32_t (*cpu)(void) = cc_tsym_find("aoti_torch_device_type_cpu");
    int32_t (*cuda)(void) = cc_tsym_find("aoti_torch_device_type_cuda");
    if (!cpu || !cuda) return;
    T.device_type[DL_CPU] = cpu();
    T.device_type[DL_CUDA] = cuda();
    T.shim.strides = cc_tsym_find("aoti_torch_get_strides");
    T.shim.dim = cc_tsym_find("aoti_torch_get_dim");
    T.shim.dtype = cc_tsym_find("aoti_torch_get_dtype");
    T.shim.device_type = cc_tsym_find("aoti_torch_get_device_type");
    T.shim.device_index = cc_tsym_find("aoti_torch_get_device_index");
    T.shim.data = cc_tsym_find("aoti_torch_get_data_ptr");
    if (T.impl_at && T.shim.strides && T.shim.dim && T.shim.dtype && T.shim.device_type && T.shim.device_index &&
        T.shim.data)
        T.shim.sizes = cc_tsym_find("aoti_torch_get_sizes");
    T.delete_tensor = cc_tsym_find("aoti_torch_delete_tensor_object");
    T.wrap = cc_tsym_find("_Z16THPVariable_WrapRKN2at10TensorBaseE");
    if (T.delete_tensor && T.wrap && T.shim.data) T.empty_strided = cc_tsym_find("aoti_torch_empty_strided");
    if (T.empty_strided && !wrap_works()) T.empty_strided = NULL;
}

/* Whether fingerprints of type a agree with each other and differ from those of type b. */
static bool marks_differ(const CcType *a, const CcType *b) {
    PyObject *t = cc_tens_empty(a, NULL), *u = cc_tens_empty(b, NULL), *same = cc_tens_empty(a, NULL);
    CcTensFingerprint mark;
    bool ok = t && u && same;
    if (ok) {
        cc_tens_fingerprint(t, &mark);
        ok = cc_tens_same_fingerprint(same, T.tensor, &mark) && !cc_tens_same_fingerprint(u, T.tensor, &mark);
    }
    Py_XDECREF(t);
    Py_XDECREF(u);
    Py_XDECREF(same);
    cc_raised_clear();
    return ok;
}

/* Finds the fingerprint's words, and checks that dtype, number of dims, sizes and strides all show in them. */
static void find_marks(void) {
    const CcType like = {.ndim = 2, .dtype = CC_DT_F32, .device = DL_CPU, .size = {3, 4}, .stride = {4, 1}};
    T.mark_n = 0;
    PyObject *t = cc_tens_empty(&like, NULL);
    View v;
    if (t && T.shim.sizes && T.keys_at && !view_by_shim(t, &v)) {
        const int64_t at = (const uint64_t *)v.size - (const uint64_t *)impl_of(t) - 1;
        if (at >= 0 && at < T.keys_at && T.keys_at + 1 - at <= CC_TENS_WORDS) {
            T.mark_at = (int)at;
            T.mark_n = T.keys_at + 1 - (int)at;
        }
    }
    Py_XDECREF(t);
    cc_raised_clear();
    CcType other[5] = {like, like, like, like, like};
    other[0].dtype = CC_DT_I32;
    other[1].size[0] = 5;
    other[2].size[1] = other[2].stride[0] = 5;
    other[3].stride[0] = 1, other[3].stride[1] = 3;
    other[4].ndim = 1;
    for (int i = 0; i < CC_COUNT(other); i++)
        if (T.mark_n && !marks_differ(&like, &other[i])) T.mark_n = 0;
}

static int find_python(void) {
    Py_XSETREF(T.dispatch_keys, cc_tsym_path("torch._C._dispatch_keys"));
    Py_XSETREF(T.inference_enabled, cc_tsym_path("torch.is_inference_mode_enabled"));
    Py_XSETREF(T.py_empty, cc_tsym_path("torch._C._VariableFunctions.empty_strided"));
    if (!T.dispatch_keys) return missing("torch._C._dispatch_keys");
    if (!T.py_empty) return missing("torch.empty_strided");
    Py_XSETREF(T.py_empty_names, Py_BuildValue("(ss)", "dtype", "device"));
    Py_XSETREF(T.raw_repr, PyUnicode_InternFromString("raw_repr"));
    Py_XSETREF(T.requires_grad_name, PyUnicode_InternFromString("requires_grad"));
    Py_XSETREF(T.version_name, PyUnicode_InternFromString("_version"));
    Py_XSETREF(T.increment_version, cc_tsym_path("torch._C._increment_version"));
    Py_XSETREF(T.set_version, cc_tsym_path("torch._C._autograd._unsafe_set_version_counter"));
    if (!T.py_empty_names || !T.raw_repr || !T.requires_grad_name || !T.version_name) return -1;
    if (!T.increment_version) return missing("torch._C._increment_version");
    for (int i = 1; i < CC_DT_COUNT; i++) {
        char path[64];
        snprintf(path, sizeof path, "torch.%s", cc_dtype_info((CcDtype)i)->torch_name);
        Py_XSETREF(T.dtype_object[i], cc_tsym_path(path));
        if (!T.dtype_object[i]) return missing(path);
    }
    T.c_inference = cc_tsym_find("_ZN3c1013InferenceMode10is_enabledEv");
    T.c_requires_grad = cc_tsym_find("_ZNK3c1010TensorImpl13requires_gradEv");
    return 0;
}

static int init_types(void) {
    if (find_type("torch._C.TensorBase", &T.base) || find_type("torch.Tensor", &T.tensor) ||
        find_type("torch.nn.Parameter", &T.parameter) || find_type("torch.Size", &T.size))
        return -1;
    static const char *const constant[] = {"torch.dtype",   "torch.device", "torch.layout", "torch.memory_format",
                                           "torch.qscheme", "torch.finfo",  "torch.iinfo"};
    for (int i = 0; i < CC_COUNT(constant); i++)
        if (find_type(constant[i], &T.constant[i])) return -1;
    if (find_dlpack() || find_python()) return -1;
    find_keys();
    calibrate();
    find_shim();
    find_marks();
    cc_ring_init();
    return 0;
}

int cc_tens_init(PyObject *torch) {
    if (cc_tsym_init(torch) || init_types() || cc_mode_init() || cc_torch_init() || cc_bind_init() || cc_look_init() ||
        cc_drawn_init())
        return -1;
    return 0;
}

/* Tests: works without the shim and the calibrated layout, as with a torch that has neither. */
void cc_tens_force_fallback(bool on) {
    if (on) {
        T.impl_at = T.keys_at = T.mark_n = 0;
        T.c_requires_grad = NULL;
        T.empty_strided = NULL;
        memset(&T.shim, 0, sizeof T.shim);
        cc_ring_init();
    } else {
        calibrate();
        find_shim();
        find_marks();
        T.c_requires_grad = cc_tsym_find("_ZNK3c1010TensorImpl13requires_gradEv");
        cc_ring_init();
    }
}
