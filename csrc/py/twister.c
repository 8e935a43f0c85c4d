/* random.Random's generators: their state, saved and restored, and ints drawn as Random._randbelow draws them.
 *
 * RandomObject (Modules/_randommodule.c) is an object's head, an index and 624 words in 3.11 to 3.14; it has no public struct.
 * The first use checks that on an instance, and without the check's success nothing here is used. */
#include "py_int.h"

static PyObject *getrandbits; /* the descriptor of _random.Random */

static unsigned char *state_of(PyObject *generator) { return (unsigned char *)generator + sizeof(PyObject); }

void cc_twister_save(PyObject *generator, CcTwister *to) { memcpy(to->state, state_of(generator), sizeof to->state); }

void cc_twister_restore(PyObject *generator, const CcTwister *from) {
    memcpy(state_of(generator), from->state, sizeof from->state);
}

/* Whether getstate() tells the same words and index as the memory does. */
static bool tells_same(PyObject *generator, const CcTwister *saved) {
    PyObject *state = PyObject_CallMethod(generator, "getstate", NULL);
    bool same = state != NULL && PyTuple_Check(state) && PyTuple_GET_SIZE(state) == CC_TWISTER_WORDS;
    for (Py_ssize_t i = 0; same && i < CC_TWISTER_WORDS; i++) {
        uint32_t word;
        const Py_ssize_t at = i == CC_TWISTER_WORDS - 1 ? 0 : i + 1; /* the index is the first word in memory */
        memcpy(&word, saved->state + at * (Py_ssize_t)sizeof word, sizeof word);
        same = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(state, i)) == word;
    }
    Py_XDECREF(state);
    return same && !PyErr_Occurred();
}

/* Draws, restores, and compares. */
static bool restores(PyObject *generator) {
    CcTwister before;
    cc_twister_save(generator, &before);
    if (!tells_same(generator, &before)) return false;
    PyObject *draw[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        draw[i] = PyObject_CallMethod(generator, "random", NULL);
        cc_twister_restore(generator, &before);
    }
    const bool same = draw[0] != NULL && draw[1] != NULL && PyObject_RichCompareBool(draw[0], draw[1], Py_EQ) == 1;
    Py_XDECREF(draw[0]);
    Py_XDECREF(draw[1]);
    return same && tells_same(generator, &before);
}

bool cc_twister_known(void) {
    static enum { UNKNOWN, YES, NO } known;
    if (known != UNKNOWN) return known == YES;
    PyObject *type = cc_obj_of_module("_random", "Random"), *generator = NULL;
    const size_t size = sizeof(PyObject) + sizeof(CcTwister);
    if (type != NULL && PyType_Check(type) && (size_t)((PyTypeObject *)type)->tp_basicsize >= size) {
        generator = PyObject_CallFunction(type, "i", 7);
        getrandbits = PyObject_GetAttrString(type, "getrandbits"); /* immortal */
    }
    known = generator != NULL && getrandbits != NULL && restores(generator) ? YES : NO;
    cc_raised_clear();
    Py_XDECREF(generator);
    Py_XDECREF(type);
    return known == YES;
}

PyObject *cc_twister_below(PyObject *generator, PyObject *n) {
    PyObject *bits = PyObject_CallMethod(n, "bit_length", NULL), *r = NULL;
    PyObject *const in[] = {generator, bits};
    int again = bits != NULL;
    while (again > 0) { /* as Random._randbelow does: a draw of n or above is dropped */
        Py_XSETREF(r, PyObject_Vectorcall(getrandbits, in, 2, NULL));
        again = r != NULL ? PyObject_RichCompareBool(r, n, Py_GE) : 0;
    }
    if (again < 0) Py_CLEAR(r);
    Py_XDECREF(bits);
    return r;
}
