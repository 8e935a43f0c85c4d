/* Rollback: if a replay fails, or if torch runs the nodes for a new key and a guard fails after a node that writes or
 * draws random numbers, restores the state before the run, so that the call can continue in another way.
 *
 * Restores a written tensor from saved bytes if it is small (cc_rollback_bytes: in every replay of a trace that writes
 * to small tensors), and from a clone otherwise; also restores `_version`, which would otherwise count the writes
 * twice. */
#include "eval_int.h"

enum { CPU = 1 }; /* CcType.device */

void cc_rollback_bytes(CcRollback *u, PyObject *tensor, int node) {
    struct CcRollbackWrite w = {.version = cc_tens_version(tensor), .node = node};
    w.n = cc_undo_bytes(tensor, &w.at);
    if (w.n < 0) return;
    if (w.n > 0) w.copy = cc_mem_get((size_t)w.n);
    if (w.n > 0) memcpy(w.copy, w.at, (size_t)w.n);
    w.tensor = Py_NewRef(tensor);
    cc_vec_push(&u->write, w);
}

void cc_rollback_count(CcRollback *u, PyObject *tensor) {
    cc_vec_push(&u->write, (struct CcRollbackWrite){.tensor = Py_NewRef(tensor), .version = cc_tens_version(tensor)});
}

/* State of torch's generators: the CPU's, and those of all GPUs, or None if torch has not initialised CUDA. */
static PyObject *random_state(PyObject *torch) {
    PyObject *cuda = PyObject_GetAttrString(torch, "cuda"), *state = NULL;
    PyObject *begun = cuda != NULL ? PyObject_CallMethod(cuda, "is_initialized", NULL) : NULL;
    PyObject *gpus = begun == NULL      ? NULL
                     : begun == Py_True ? PyObject_CallMethod(cuda, "get_rng_state_all", NULL)
                                        : Py_NewRef(Py_None);
    PyObject *cpu = gpus != NULL ? PyObject_CallMethod(torch, "get_rng_state", NULL) : NULL;
    if (cpu != NULL) state = PyTuple_Pack(2, cpu, gpus);
    Py_XDECREF(cpu);
    Py_XDECREF(gpus);
    Py_XDECREF(begun);
    Py_XDECREF(cuda);
    return state;
}

int cc_rollback_random(CcRollback *u) {
    if (u->random != NULL) return 0;
    PyObject *torch = PyImport_ImportModule("torch");
    u->random = torch != NULL ? random_state(torch) : NULL;
    Py_XDECREF(torch);
    return u->random != NULL ? 0 : -1;
}

int cc_rollback_write(CcRollback *u, PyObject *tensor) {
    PyObject *detached = PyObject_CallMethod(tensor, "detach", NULL);
    PyObject *saved = detached != NULL ? PyObject_CallMethod(detached, "clone", NULL) : NULL;
    if (saved == NULL) {
        Py_XDECREF(detached);
        return -1;
    }
    cc_vec_push(&u->write,
                (struct CcRollbackWrite){.tensor = detached, .saved = saved, .version = cc_tens_version(tensor)});
    return 0;
}

/* Whether two tensors on the CPU, of one shape and dtype, hold the same bytes. */
static bool same_bytes(const CcTensor *a, const CcTensor *b) {
    const int64_t bytes = cc_dtype_info((CcDtype)a->type.dtype)->size;
    int64_t at[CC_MAX_DIMS] = {0}, i = 0, j = 0; /* index of an element, its places */
    for (int64_t left = cc_type_numel(&a->type); left > 0; left--) {
        if (memcmp((char *)a->data + i * bytes, (char *)b->data + j * bytes, (size_t)bytes) != 0) return false;
        for (int d = a->type.ndim - 1; d >= 0; d--) {
            i += a->type.stride[d];
            j += b->type.stride[d];
            if (++at[d] < a->type.size[d]) break;
            i -= a->type.stride[d] * at[d];
            j -= b->type.stride[d] * at[d];
            at[d] = 0;
        }
    }
    return true;
}

/* Whether the tensor holds what it held. An operand that its node only read must not be written, as its memory may be
 * read-only (numpy.memmap). */
static bool is_unchanged(const struct CcRollbackWrite *w) {
    CcTensor now, then;
    cc_tens_read_as(w->tensor, false, true, &now);
    cc_tens_read_as(w->saved, false, true, &then);
    return now.type.ndim >= 0 && then.type.ndim >= 0 && now.type.device == CPU && then.type.device == CPU &&
           now.type.dtype == then.type.dtype && cc_type_same_shape(&now.type, &then.type) && same_bytes(&now, &then);
}

static int restore(const struct CcRollbackWrite *w) {
    if (w->copy != NULL && memcmp(w->at, w->copy, (size_t)w->n) != 0) memcpy(w->at, w->copy, (size_t)w->n);
    PyObject *r = w->saved != NULL && !is_unchanged(w) ? PyObject_CallMethod(w->tensor, "copy_", "O", w->saved)
                                                       : Py_NewRef(Py_None);
    Py_XDECREF(r);
    return r != NULL ? cc_tens_set_version(w->tensor, w->version) : -1;
}

static int put_back_random(const CcRollback *u) {
    const void *before = u->draw.n > 0 ? u->draw.at[0].before : NULL;
    if (before != NULL && cc_draw_restore(before) < 0) return -1;
    if (u->random == NULL) return 0;
    PyObject *cpu = PyTuple_GET_ITEM(u->random, 0), *gpus = PyTuple_GET_ITEM(u->random, 1);
    PyObject *torch = PyImport_ImportModule("torch");
    PyObject *r = torch != NULL ? PyObject_CallMethod(torch, "set_rng_state", "O", cpu) : NULL;
    if (r != NULL && gpus != Py_None) {
        Py_DECREF(r);
        PyObject *cuda = PyObject_GetAttrString(torch, "cuda");
        r = cuda != NULL ? PyObject_CallMethod(cuda, "set_rng_state_all", "O", gpus) : NULL;
        Py_XDECREF(cuda);
    }
    Py_XDECREF(torch);
    Py_XDECREF(r);
    return r != NULL ? 0 : -1;
}

/* Continues after a failure: the first failure is the error. */
int cc_rollback_all(CcRollback *u) {
    PyObject *type, *value, *tb, *failure[3] = {NULL};
    bool failed = false;
    PyErr_Fetch(&type, &value, &tb);
    for (int i = u->write.n; i >= 0; i--) {
        const int status = i < u->write.n ? restore(&u->write.at[i]) : put_back_random(u);
        if (status == 0) continue;
        if (failed) cc_raised_clear();
        else PyErr_Fetch(&failure[0], &failure[1], &failure[2]);
        failed = true;
    }
    if (!failed) {
        PyErr_Restore(type, value, tb);
        return 0;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(tb);
    PyErr_Format(
        PyExc_RuntimeError,
        "ccompile: writes of this call before a symbolic guard failed could not be undone (%S); compile this function "
        "with dynamic=False",
        failure[1] != NULL ? failure[1] : failure[0]);
    for (int i = 0; i < 3; i++) Py_XDECREF(failure[i]);
    return -1;
}

int cc_rollback_later(CcRollback *u, CcSegmentHost *h) {
    int status = 0;
    for (int i = u->write.n - 1; i >= 0; i--) {
        const struct CcRollbackWrite *w = &u->write.at[i];
        if (w->copy != NULL && w->node > h->at && !cc_again_written(h, 0, h->at + 1, w->tensor) && restore(w) < 0)
            status = -1;
    }
    for (int i = 0; i < u->draw.n; i++) {
        if (u->draw.at[i].node <= h->at || u->draw.at[i].before == NULL) continue;
        return cc_draw_restore(u->draw.at[i].before) < 0 ? -1 : status;
    }
    return status;
}

void cc_rollback_free(CcRollback *u) {
    for (int i = 0; i < u->write.n; i++) {
        Py_XDECREF(u->write.at[i].tensor);
        Py_XDECREF(u->write.at[i].saved);
        free(u->write.at[i].copy);
    }
    cc_vec_free(&u->write);
    for (int i = 0; i < u->draw.n; i++) free(u->draw.at[i].before);
    cc_vec_free(&u->draw);
    Py_CLEAR(u->random);
}
