/* Ints that Python's generators give: random.randint, random.randrange, and the same methods of a random.Random. The
 * recorder enters these functions down to Random._randbelow(n), which gives a symbol: a replay draws the int ahead, when
 * all guards have passed and before its nodes run, and puts the generator's state back if what Python code did with the
 * number turns out to differ (eval/ahead.c).
 *
 * Draws ahead keep the stream's order, since nothing in the trace before them may draw or look at the stream: nodes that
 * draw (random.random) and nodes that run Python code are breaks there, and C code that could is one anyway. */
#include "rec_events.h"

enum { MOST = 32 }; /* draws of a trace */

static bool may_draw(CcRec *rec, PyObject *generator, PyObject *n) {
    const CcTrace *t = rec->trace;
    if (rec->hints == NULL || rec->hints->none || rec->hints->constant) return false;
    if (t->draws || t->python || t->ahead.n >= MOST || !cc_twister_known()) return false;
    return cc_known_is(generator, CC_KNOWN_RANDOM) && PyLong_CheckExact(n) && cc_value_source(rec, generator) >= 0;
}

/* Guards that the instance's getrandbits is that of the class. */
static CcGo guard_method(CcRec *rec, CcAct *act, PyObject *generator) {
    static PyObject *name;
    if (name == NULL && (name = cc_obj_intern("getrandbits")) == NULL) return CC_OK;
    PyObject *method = PyObject_GetAttr(generator, name);
    if (method == NULL) cc_raised_clear();
    if (method == NULL || !PyCFunction_Check(method)) {
        Py_XDECREF(method);
        return CC_GIVE_UP;
    }
    cc_vec_push(&rec->keep, method);
    const CcGo go = cc_attr_before(rec, act, generator, name);
    return go == CC_OK ? cc_attr_after(rec, act, generator, name, method) : go;
}

static bool same_draw(PyObject *a, PyObject *b, const CcTwister *after, const CcTwister *then) {
    return a != NULL && b != NULL && PyObject_RichCompareBool(a, b, Py_EQ) == 1 &&
           memcmp(after->state, then->state, sizeof after->state) == 0;
}

CcGo cc_chance_below(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c) {
    if (c->n != 2 || c->kwnames != NULL || rec->trace == NULL || !may_draw(rec, c->in[0], c->in[1])) return CC_OK;
    PyObject *generator = c->in[0], *n = c->in[1];
    if (!cc_number_settle(rec, n, 0)) return CC_OK;
    if (guard_method(rec, act, generator) != CC_OK || rec->trace == NULL) return CC_OK;
    CcTwister before, after, then;
    cc_twister_save(generator, &before);
    PyObject *r = cc_call_unseen(act, c->func, c->in, 2, NULL);
    cc_twister_save(generator, &after);
    cc_twister_restore(generator, &before);
    PyObject *own = r != NULL ? cc_twister_below(generator, n) : NULL;
    cc_twister_save(generator, &then);
    if (!same_draw(r, own, &after, &then)) { /* another Python's algorithm, or an exception: a break draws again */
        cc_raised_clear();
        cc_twister_restore(generator, &before);
        Py_XDECREF(r);
        Py_XDECREF(own);
        return CC_OK;
    }
    CcTrace *t = rec->trace;
    const int source = cc_value_source(rec, generator);
    const int guard = cc_guard_source(&t->guards, CC_SRC_DRAW, source, n, 0, t->ahead.n, NULL);
    cc_guard_check(&t->guards, guard, CC_CHK_ANY, NULL);
    t->guards.g.at[source].used = true;
    cc_vec_push(&t->ahead, guard);
    ev->result = cc_sym_drawn(rec, guard, r);
    Py_DECREF(r);
    Py_DECREF(own);
    return CC_DONE;
}
