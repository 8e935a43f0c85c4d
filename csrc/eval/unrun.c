/* Undoing: the nodes of a trace are run by torch for a new key, and a guard behind one that writes or draws random numbers may
 * turn out not to hold. Then everything is as it was before, and the call is done in another way. */
#include "eval_int.h"

void cc_unrun_random(CcUnrun *u)
{
    if (u->random != NULL) return;
    PyObject *torch = PyImport_ImportModule("torch");
    u->random = torch != NULL ? PyObject_CallMethod(torch, "get_rng_state", NULL) : NULL;
    Py_XDECREF(torch);
    PyErr_Clear();
}

void cc_unrun_write(CcUnrun *u, PyObject *tensor)
{
    PyObject *detached = PyObject_CallMethod(tensor, "detach", NULL);
    PyObject *saved = detached != NULL ? PyObject_CallMethod(detached, "clone", NULL) : NULL;
    if (saved != NULL) cc_vec_push(&u->write, (struct CcUnrunWrite){Py_NewRef(detached), Py_NewRef(saved)});
    Py_XDECREF(saved);
    Py_XDECREF(detached);
    PyErr_Clear();
}

void cc_unrun_all(CcUnrun *u)
{
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    for (int i = u->write.n - 1; i >= 0; i--) {
        PyObject *r = PyObject_CallMethod(u->write.at[i].tensor, "copy_", "O", u->write.at[i].saved);
        if (r == NULL) PyErr_Clear();
        Py_XDECREF(r);
    }
    PyObject *torch = u->random != NULL ? PyImport_ImportModule("torch") : NULL;
    PyObject *r = torch != NULL ? PyObject_CallMethod(torch, "set_rng_state", "O", u->random) : NULL;
    Py_XDECREF(r);
    Py_XDECREF(torch);
    PyErr_Clear();
    PyErr_Restore(type, value, tb);
}

void cc_unrun_free(CcUnrun *u)
{
    for (int i = 0; i < u->write.n; i++) {
        Py_DECREF(u->write.at[i].tensor);
        Py_DECREF(u->write.at[i].saved);
    }
    cc_vec_free(&u->write);
    Py_CLEAR(u->random);
}
