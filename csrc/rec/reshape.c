/* unsqueeze_, t_, transpose_ and their kin change the sizes and strides of the tensor itself, but a graph value has one
 * type. For a tensor that the graph made, the op is recorded as the view that its name without '_' makes, and from then
 * on the object stands for that view. The op in place leaves no view behind it, though, so the view is detached, unless
 * the tensor was a view itself; detaching keeps the counter of writes.
 *
 * detach_ is of the same kind: the object stands for what detach() gives. Of a view it raises.
 *
 * Autograd notes that the tensor's sizes changed: if it has saved something in this trace, or sees the tensor, the op is a
 * break. So is one on a tensor from outside, whose metadata guards have read. */
#include "rec_events.h"

/* "Tensor.unsqueeze_" -> Tensor.unsqueeze; NULL: this torch has none. */
static PyObject *view_of(const char *name) {
    char plain[64];
    const char *dot = strrchr(name, '.');
    snprintf(plain, sizeof plain, "%s", dot != NULL ? dot + 1 : name);
    plain[strlen(plain) - 1] = '\0';
    PyObject *f = PyObject_GetAttrString((PyObject *)cc_known_type(CC_KNOWN_TENSOR), plain);
    if (f == NULL) cc_raised_clear();
    return f;
}

static bool is_view(PyObject *tensor) {
    PyObject *is = PyObject_CallMethod(tensor, "_is_view", NULL);
    const bool view = is != Py_False;
    cc_raised_clear();
    Py_XDECREF(is);
    return view;
}

/* Calls f and records it; NULL: it raised. */
static PyObject *record(CcRec *rec, CcAct *act, PyObject *f, const char *name, const CcCalled *c) {
    CcBound bound;
    PyObject *result = cc_call_unseen(act, f, c->in, c->n, c->kwnames);
    if (result == NULL) return NULL;
    const int status = cc_bind_call(f, c->in, cc_call_positional(c), c->kwnames, &bound);
    const CcCallSpec spec = {.form = CC_F_CALL,
                             .target = f,
                             .kwnames = c->kwnames,
                             .in = c->in,
                             .n = c->n,
                             .name = name,
                             .bound = status == 0 ? &bound : NULL,
                             .safe = true};
    if (rec->trace != NULL) (void)cc_node_add(rec, act, &spec, result);
    return result;
}

static bool recordable(CcRec *rec, const CcCalled *c, bool detaches) {
    PyObject *self = c->n > 0 ? c->in[0] : NULL;
    if (self == NULL || !cc_tens_plain(self) || cc_value_origin(rec, self) != CC_O_VALUE) return false;
    for (int i = 0; i < c->n; i++)
        if (cc_value_symbolic(rec, c->in[i])) return false;
    return detaches ? !is_view(self) : !cc_tens_requires_grad(self) && !rec->trace->needs_grad;
}

CcGo cc_reshape_before(CcRec *rec, CcAct *act, CcEvent *ev, const CcCalled *c, const CcTorch *t) {
    static PyObject *detach;
    if (detach == NULL) detach = view_of("Tensor.detach_");
    const bool detaches = strcmp(t->name, "Tensor.detach_") == 0;
    if (detach == NULL || !recordable(rec, c, detaches)) return cc_call_torch(rec, act, t->name, t->why);
    PyObject *f = view_of(t->name), *self = c->in[0];
    const bool alone = !detaches && !is_view(self);
    PyObject *view = f != NULL ? record(rec, act, f, t->name, c) : NULL;
    Py_XDECREF(f);
    if (view == NULL) { /* the op in place raises the same */
        cc_raised_clear();
        return cc_call_torch(rec, act, t->name, t->why);
    }
    const CcCalled of_view = {.func = detach, .in = {view}, .n = 1};
    PyObject *made = alone ? record(rec, act, detach, "Tensor.detach", &of_view) : Py_NewRef(view);
    const CcProv *p = rec->trace != NULL && made != NULL ? cc_value_find(rec, made) : NULL;
    const int value = p != NULL ? p->id : -1;
    ev->result = made != NULL ? cc_call_unseen(act, c->func, c->in, c->n, c->kwnames) : NULL;
    if (value >= 0) cc_value_set(rec, self, CC_O_VALUE, value);
    Py_XDECREF(made);
    Py_DECREF(view);
    return CC_DONE;
}
