/* ring: result tensors whose memory is used again.
 *
 *   line of a value:  slot  slot  slot  slot        each: a keeper, a tensor that nobody else knows
 *                      |                            and that holds the storage
 *                      '--> StorageImpl <-- result, its views, its exports, what autograd saved
 *
 * A result is a fresh tensor object on the keeper's storage, made by torch as Inductor makes its own
 * (_reinterpret_tensor). The storage is an ordinary one: resizable, with torch's allocator. It is handed out again when
 * the word of its reference counts is what it was when the keeper alone held it: then there is no strong or weak
 * reference to it, and no Python object, and none can come into being but from the keeper. What gave it other memory
 * (resize_, share_memory_) shows in its pointer or size, and ends the slot.
 *
 * Where that word stands is found at init by watching it change; where that fails, or there is no shim, rings do
 * nothing. */
#include <stdatomic.h>

#include "tens_int.h"

enum {
    SLOTS = 4, /* a caller that keeps its last result needs two */
    IMPL_WORDS = 22,
    STORAGE_WORDS = 8
};
static const int64_t LIMIT = (int64_t)256 << 20; /* bytes of a ring */

typedef _Atomic uint64_t Word;

static struct {
    int32_t (*reinterpret)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    int32_t (*storage_size)(void *, int64_t *);
    int storage_at, counts_at; /* in words: in a TensorImpl, in a StorageImpl */
    uint64_t alone;            /* the counts of a storage that one tensor holds */
    bool ready;
} R;

typedef struct Slot {
    void *keeper, *data; /* keeper NULL: the slot is free */
    int64_t bytes;
} Slot;

typedef struct Line {
    Slot slot[SLOTS];
    int next; /* that goes when all are in use */
} Line;

struct CcRing {
    int64_t bytes;
    uint64_t made, reused;
    int n;
    Line *line[]; /* by value */
};

static Word *storage_of(void *handle) { return (Word *)(*(uintptr_t **)handle)[R.storage_at]; }

static bool alone(void *handle) {
    return atomic_load_explicit(storage_of(handle) + R.counts_at, memory_order_acquire) == R.alone;
}

CcRing *cc_ring_new(int n_values) {
    if (!R.ready) {
        cc_log_add(CC_LOG_FALLBACK, "results are allocated in each call: this torch does not tell who holds a storage");
        return NULL;
    }
    CcRing *ring = calloc(1, sizeof *ring + sizeof *ring->line * (size_t)n_values);
    if (ring != NULL) ring->n = n_values;
    return ring;
}

static void empty_slot(CcRing *ring, Slot *s) {
    if (s->keeper == NULL) return;
    ring->bytes -= s->bytes;
    cc_tens_forget(s->keeper);
    s->keeper = NULL;
}

void cc_ring_free(CcRing *ring) {
    if (ring == NULL) return;
    for (int i = 0; i < ring->n; i++) {
        for (int k = 0; ring->line[i] != NULL && k < SLOTS; k++) empty_slot(ring, &ring->line[i]->slot[k]);
        free(ring->line[i]);
    }
    free(ring);
}

void cc_ring_counts(const CcRing *ring, uint64_t *made, uint64_t *reused) {
    *made = ring != NULL ? ring->made : 0;
    *reused = ring != NULL ? ring->reused : 0;
}

/* Nobody refers to its memory, which is the memory that the slot was filled with. */
static bool usable(const Slot *s) {
    void *data = NULL;
    int64_t bytes = 0;
    return cc_tens_data(s->keeper, &data) == 0 && data == s->data && R.storage_size(s->keeper, &bytes) == 0 &&
           bytes == s->bytes;
}

static PyObject *result_on(const Slot *s, const CcType *t) {
    void *handle = NULL;
    if (R.reinterpret(s->keeper, t->ndim, t->size, t->stride, 0, &handle) != 0) return NULL;
    PyObject *o = cc_tens_wrap(handle);
    cc_tens_forget(handle);
    return o;
}

static int64_t bytes_of(const CcType *t) {
    int64_t last = 0;
    for (int d = 0; d < t->ndim; d++) last += CC_MAX(t->size[d] - 1, 0) * t->stride[d];
    return (last + 1) * cc_dtype_info((CcDtype)t->dtype)->size;
}

static int fill_slot(CcRing *ring, Slot *s, const CcType *t) {
    void *keeper = ring->bytes + bytes_of(t) <= LIMIT ? cc_tens_handle(t) : NULL;
    if (keeper == NULL) return -1;
    *s = (Slot){.keeper = keeper};
    if (cc_tens_data(keeper, &s->data) == 0 && R.storage_size(keeper, &s->bytes) == 0 && alone(keeper)) {
        ring->bytes += s->bytes;
        return 0;
    }
    cc_tens_forget(keeper);
    s->keeper = NULL;
    return -1;
}

/* A slot whose memory is free, or a free slot, or the one that is to go. */
static Slot *find_slot(CcRing *ring, Line *line) {
    Slot *empty = NULL;
    for (int i = 0; i < SLOTS; i++) {
        Slot *s = &line->slot[i];
        if (s->keeper != NULL && alone(s->keeper)) {
            if (usable(s)) return s;
            empty_slot(ring, s);
        }
        if (s->keeper == NULL && empty == NULL) empty = s;
    }
    if (empty != NULL) return empty;
    Slot *oldest = &line->slot[line->next];
    line->next = (line->next + 1) % SLOTS;
    empty_slot(ring, oldest);
    return oldest;
}

PyObject *cc_ring_empty(CcRing *ring, int value, const CcType *t, void **data) {
    if (ring == NULL || value >= ring->n || t->ndim < 0 || t->device != CC_TENS_CPU) return cc_tens_empty(t, data);
    if (ring->line[value] == NULL && (ring->line[value] = calloc(1, sizeof(Line))) == NULL)
        return cc_tens_empty(t, data);
    Slot *s = find_slot(ring, ring->line[value]);
    const bool again = s->keeper != NULL;
    PyObject *o = again || fill_slot(ring, s, t) == 0 ? result_on(s, t) : NULL;
    if (o == NULL) {
        PyErr_Clear();
        ring->made++;
        return cc_tens_empty(t, data);
    }
    ++*(again ? &ring->reused : &ring->made);
    *data = s->data;
    return o;
}

/* ------------------------------------------------------------------ init */

/* The word of a tensor's TensorImpl that is the address of its storage; -1: not just one. */
static int find_storage(PyObject *tensor, void *handle) {
    PyObject *storage = PyObject_CallMethod(tensor, "untyped_storage", NULL);
    PyObject *address = storage != NULL ? PyObject_GetAttrString(storage, "_cdata") : NULL;
    const uintptr_t want = address != NULL ? (uintptr_t)PyLong_AsUnsignedLongLongMask(address) : 0;
    int found = -1, n = 0;
    for (int w = 0; want != 0 && w < IMPL_WORDS; w++)
        if ((*(uintptr_t **)handle)[w] == want) found = w, n++;
    Py_XDECREF(address);
    Py_XDECREF(storage);
    PyErr_Clear();
    return n == 1 ? found : -1;
}

static void read_words(void *handle, uint64_t *out) {
    for (int w = 0; w < STORAGE_WORDS; w++) out[w] = atomic_load(storage_of(handle) + w);
}

/* The one word of a storage that changes with a second tensor on it, and changes back. */
static int find_counts(void *handle, const CcType *t) {
    uint64_t first[STORAGE_WORDS], second[STORAGE_WORDS], third[STORAGE_WORDS];
    void *other = NULL;
    read_words(handle, first);
    if (R.reinterpret(handle, t->ndim, t->size, t->stride, 0, &other) != 0) return -1;
    read_words(handle, second);
    cc_tens_forget(other);
    read_words(handle, third);
    int found = -1, n = 0;
    for (int w = 0; w < STORAGE_WORDS; w++)
        if (first[w] != second[w]) found = w, n++;
    return n == 1 && memcmp(first, third, sizeof first) == 0 ? found : -1;
}

void cc_ring_init(void) {
    static const CcType TYPE = {.ndim = 1, .dtype = CC_DT_F32, .device = CC_TENS_CPU, .size = {3}, .stride = {1}};
    R.ready = false;
    R.reinterpret = cc_tsym_find("aoti_torch__reinterpret_tensor");
    R.storage_size = cc_tsym_find("aoti_torch_get_storage_size");
    void *shown = R.reinterpret && R.storage_size ? cc_tens_handle(&TYPE) : NULL,
         *hidden = shown ? cc_tens_handle(&TYPE) : NULL;
    PyObject *tensor = hidden != NULL ? cc_tens_wrap(shown) : NULL;
    if (tensor != NULL && (R.storage_at = find_storage(tensor, shown)) >= 0 &&
        (R.counts_at = find_counts(hidden, &TYPE)) >= 0) {
        uint64_t words[STORAGE_WORDS];
        read_words(hidden, words);
        R.alone = words[R.counts_at];
        R.ready = !alone(shown); /* it has had a Python object */
    }
    Py_XDECREF(tensor);
    PyErr_Clear();
    if (shown != NULL) cc_tens_forget(shown);
    if (hidden != NULL) cc_tens_forget(hidden);
}
