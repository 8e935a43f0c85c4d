/* Reuses the memory of result tensors.
 *
 *   line of a value:  slot  slot  slot  slot        each has a keeper: a private tensor
 *                      |                            that owns the storage
 *                      '--> StorageImpl <-- result, its views, its exports, what autograd saved
 *
 * A result is a new tensor object on the keeper's storage, created by torch as for Inductor (_reinterpret_tensor). The
 * storage is an ordinary one: resizable, from torch's allocator. It is reused once the word with its reference counts
 * has the value that it had when only the keeper referenced it: then no other strong or weak reference and no Python
 * object exists, and only the keeper could create one. If something gave it other memory (resize_, share_memory_), its
 * pointer or size differs, and the slot is dropped.
 *
 * The position of that word is found at init by observing which word changes; if that fails, or without the shim, rings
 * reuse nothing. */
#include <stdatomic.h>

#include "tens_int.h"

enum {
    SLOTS = 4, /* a caller that keeps its last result needs two */
    IMPL_WORDS = 22,
    STORAGE_WORDS = 8
};
static const int64_t LIMIT = (int64_t)256 << 20; /* bytes per ring */

typedef _Atomic uint64_t Word;

static struct {
    int32_t (*reinterpret)(void *, int64_t, const int64_t *, const int64_t *, int64_t, void **);
    int32_t (*storage_size)(void *, int64_t *);
    int storage_at, counts_at; /* word offsets in a TensorImpl and in a StorageImpl */
    uint64_t unshared_count;   /* the reference counts of a storage with a single tensor */
    bool ready;
} R;

typedef struct Slot {
    void *keeper, *data; /* keeper NULL: empty slot */
    int64_t bytes;
} Slot;

typedef struct Line {
    Slot slot[SLOTS];
    int next; /* the slot to evict when all are in use */
} Line;

struct CcRing {
    int64_t bytes;
    uint64_t made, reused;
    int n;
    Line *line[]; /* by value */
};

static Word *storage_of(void *handle) { return (Word *)(*(uintptr_t **)handle)[R.storage_at]; }

static bool unshared(void *handle) {
    return atomic_load_explicit(storage_of(handle) + R.counts_at, memory_order_acquire) == R.unshared_count;
}

CcRing *cc_ring_new(int n_values) {
    if (!R.ready) {
        cc_log_add(CC_LOG_FALLBACK,
                   "every call allocates its results: reference counts of this torch's storages can't be read");
        return NULL;
    }
    CcRing *ring = calloc(1, sizeof *ring + sizeof *ring->line * (size_t)n_values);
    if (ring != NULL) ring->n = n_values;
    return ring;
}

static void empty_slot(CcRing *ring, Slot *s) {
    if (s->keeper == NULL) return;
    ring->bytes -= s->bytes;
    cc_tens_delete_handle(s->keeper);
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

/* Whether an unshared keeper still has the memory that the slot was filled with. */
static bool still_valid(const Slot *s) {
    void *data = NULL;
    int64_t bytes = 0;
    return cc_tens_data(s->keeper, &data) == 0 && data == s->data && R.storage_size(s->keeper, &bytes) == 0 &&
           bytes == s->bytes;
}

static PyObject *result_on(const Slot *s, const CcType *t) {
    void *handle = NULL;
    if (R.reinterpret(s->keeper, t->ndim, t->size, t->stride, 0, &handle) != 0) return NULL;
    PyObject *o = cc_tens_wrap(handle);
    cc_tens_delete_handle(handle);
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
    if (cc_tens_data(keeper, &s->data) == 0 && R.storage_size(keeper, &s->bytes) == 0 && unshared(keeper)) {
        ring->bytes += s->bytes;
        return 0;
    }
    cc_tens_delete_handle(keeper);
    s->keeper = NULL;
    return -1;
}

/* A slot whose memory can be reused, else an empty slot, else an evicted one. */
static Slot *find_slot(CcRing *ring, Line *line) {
    Slot *empty = NULL;
    for (int i = 0; i < SLOTS; i++) {
        Slot *s = &line->slot[i];
        if (s->keeper != NULL && unshared(s->keeper)) {
            if (still_valid(s)) return s;
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
    const bool reuse = s->keeper != NULL;
    PyObject *o = reuse || fill_slot(ring, s, t) == 0 ? result_on(s, t) : NULL;
    if (o == NULL) {
        cc_raised_clear();
        ring->made++;
        return cc_tens_empty(t, data);
    }
    ++*(reuse ? &ring->reused : &ring->made);
    *data = s->data;
    return o;
}

/* ------------------------------------------------------------------ init */

/* The word of a TensorImpl that contains the address of its storage; -1: none, or more than one. */
static int find_storage(PyObject *tensor, void *handle) {
    PyObject *storage = PyObject_CallMethod(tensor, "untyped_storage", NULL);
    PyObject *address = storage != NULL ? PyObject_GetAttrString(storage, "_cdata") : NULL;
    const uintptr_t want = address != NULL ? (uintptr_t)PyLong_AsUnsignedLongLongMask(address) : 0;
    int found = -1, n = 0;
    for (int w = 0; want != 0 && w < IMPL_WORDS; w++)
        if ((*(uintptr_t **)handle)[w] == want) found = w, n++;
    Py_XDECREF(address);
    Py_XDECREF(storage);
    cc_raised_clear();
    return n == 1 ? found : -1;
}

static void read_words(void *handle, uint64_t *out) {
    for (int w = 0; w < STORAGE_WORDS; w++) out[w] = atomic_load(storage_of(handle) + w);
}

/* The only word of a StorageImpl that changes when a second tensor shares it, and changes back afterwards. */
static int find_counts(void *handle, const CcType *t) {
    uint64_t first[STORAGE_WORDS], second[STORAGE_WORDS], third[STORAGE_WORDS];
    void *other = NULL;
    read_words(handle, first);
    if (R.reinterpret(handle, t->ndim, t->size, t->stride, 0, &other) != 0) return -1;
    read_words(handle, second);
    cc_tens_delete_handle(other);
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
        R.unshared_count = words[R.counts_at];
        R.ready = !unshared(shown); /* the counts must show that a Python object existed */
    }
    Py_XDECREF(tensor);
    cc_raised_clear();
    if (shown != NULL) cc_tens_delete_handle(shown);
    if (hidden != NULL) cc_tens_delete_handle(hidden);
}
