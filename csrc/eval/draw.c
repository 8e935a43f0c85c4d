/* draw: bools for dropout, from torch's generator on the CPU: as Tensor.bernoulli_ draws them, bit for bit, but
 * many elements at once (dev/mersenne.c). Even for a few elements reading and writing the state takes less time than torch's
 * draw: 16 take 1 us, torch's 3 (Zen 4).
 *
 * The generator's state is read and written as torch.Generator.get_state() gives it (CPUGeneratorImplStateLegacy). Not
 * every torch draws like this (with MKL on Intel's CPUs it asks MKL), so the first draw of a process compares both. */
#include "eval_int.h"

enum { SAMPLE = 2000 }; /* elements of the comparison: more than three blocks of the generator */

/* at::CPUGeneratorImplStateLegacy, as far as it is used */
typedef struct State {
    uint64_t seed;
    int left, seeded;
    uint64_t next;
    uint64_t word[CC_RUN_RANDOM_WORDS];
} State;

static enum { UNKNOWN, SAME, OTHER } verdict;

static PyObject *by_torch(const CcType *type, double p) {
    PyObject *made = cc_tens_empty(type, NULL);
    PyObject *r = made != NULL ? PyObject_CallMethod(made, "bernoulli_", "d", p) : NULL;
    Py_XDECREF(made);
    return r;
}

/* The state as a tensor of bytes, where they are, and how many. */
static PyObject *read_state(State **at, size_t *n) {
    PyObject *t = cc_drawn_state();
    CcTensor bytes;
    if (t == NULL) return NULL;
    cc_tens_read(t, false, &bytes);
    *n = (size_t)cc_type_numel(&bytes.type);
    if (bytes.type.dtype == CC_DT_U8 && cc_type_contiguous(&bytes.type) && *n >= sizeof(State)) {
        *at = bytes.data;
        return t;
    }
    Py_DECREF(t);
    PyErr_SetString(PyExc_RuntimeError, "ccompile: the state of torch's generator is not as expected");
    return NULL;
}

static void advance(State *s, double p, uint8_t *out, int64_t n) {
    uint32_t word[CC_RUN_RANDOM_WORDS];
    for (int i = 0; i < CC_RUN_RANDOM_WORDS; i++) word[i] = (uint32_t)s->word[i];
    s->left = cc_run_bernoulli(word, s->left, p, out, n);
    s->next = (uint64_t)(CC_RUN_RANDOM_WORDS + 1 - s->left);
    for (int i = 0; i < CC_RUN_RANDOM_WORDS; i++) s->word[i] = word[i];
}

static void copy(void **before, const State *s, size_t size) {
    *before = cc_mem_get(size);
    memcpy(*before, s, size);
}

int cc_draw_keep(void **before) {
    State *s;
    size_t size;
    PyObject *state = read_state(&s, &size);
    if (state == NULL) return -1;
    copy(before, s, size);
    Py_DECREF(state);
    return 0;
}

int cc_draw_restore(const void *before) {
    State *s;
    size_t size;
    PyObject *state = read_state(&s, &size);
    if (state == NULL) return -1;
    memcpy(s, before, size);
    const int status = cc_drawn_restore(state);
    Py_DECREF(state);
    return status;
}

static int words_into(uint8_t *out, int64_t n, double p, void **before) {
    State *s;
    size_t size;
    PyObject *state = read_state(&s, &size);
    if (state == NULL) return -1;
    if (before != NULL) copy(before, s, size);
    advance(s, p, out, n);
    const int status = cc_drawn_restore(state);
    Py_DECREF(state);
    return status;
}

static PyObject *by_words(const CcType *type, double p, void **before) {
    void *data;
    PyObject *made = cc_tens_empty(type, &data);
    if (made != NULL && words_into(data, cc_type_numel(type), p, before) < 0) Py_CLEAR(made);
    return made;
}

static bool equal(PyObject *a, PyObject *b) {
    PyObject *r = a != NULL && b != NULL ? PyObject_CallMethod(a, "equal", "O", b) : NULL;
    Py_XDECREF(r);
    return r == Py_True;
}

/* Draws a sample in both ways from the same state, and compares the samples and the states behind them. */
static bool compare(PyObject *state) {
    const CcType type = {.dtype = CC_DT_BOOL, .ndim = 1, .device = 1, .size = {SAMPLE}, .stride = {1}};
    PyObject *a = by_torch(&type, 0.7), *after = cc_drawn_state();
    PyObject *b = cc_drawn_restore(state) == 0 ? by_words(&type, 0.7, NULL) : NULL, *then = cc_drawn_state();
    const bool same = equal(a, b) && equal(after, then);
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(after);
    Py_XDECREF(then);
    return same;
}

/* -1 with an error set: the generator's state is lost. */
static int judge(void) {
    PyObject *state = cc_drawn_state();
    verdict = state != NULL && compare(state) ? SAME : OTHER;
    cc_raised_clear();
    if (verdict == OTHER)
        cc_log_add(CC_LOG_FALLBACK, "torch's bernoulli_ does not draw from its generator as expected: torch draws");
    const int status = state != NULL ? cc_drawn_restore(state) : 0;
    Py_XDECREF(state);
    return status;
}

/* Does torch draw words as we do? -1 with an error set. */
static int draws_words(void) {
    if (verdict == UNKNOWN && judge() < 0) return -1;
    return verdict == SAME;
}

PyObject *cc_draw_bools(const CcType *type, double p, void **before) {
    const int words = draws_words();
    if (words) return words < 0 ? NULL : by_words(type, p, before);
    return before != NULL && cc_draw_keep(before) < 0 ? NULL : by_torch(type, p);
}

int cc_draw_into(uint8_t *out, int64_t n, double p, void **before) {
    const CcType type = {.dtype = CC_DT_BOOL, .ndim = 1, .device = 1, .size = {n}, .stride = {1}};
    const int words = draws_words();
    if (words) return words < 0 ? -1 : words_into(out, n, p, before);
    PyObject *made = before != NULL && cc_draw_keep(before) < 0 ? NULL : by_torch(&type, p);
    if (made == NULL) return -1;
    CcTensor t;
    cc_tens_read(made, false, &t);
    memcpy(out, t.data, (size_t)n);
    Py_DECREF(made);
    return 0;
}
