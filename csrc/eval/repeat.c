/* repeat: what ops were split into (grad/draws.c, grad/batch.c) as torch computes it: the pure halves of random ops, from
 * the same draw, and batch norms, without moving running statistics again. */
#include <math.h>

#include "eval_int.h"

typedef struct Operands {
    const CcGraph *g;
    PyObject **value; /* [value of g] */
} Operands;

/* The result of a method, which takes over `self`. NULL self: an earlier step failed. */
static PyObject *then(PyObject *self, const char *method, PyObject *argument) {
    PyObject *r = self != NULL && argument != NULL ? PyObject_CallMethod(self, method, "O", argument) : NULL;
    Py_XDECREF(self);
    Py_XDECREF(argument);
    return r;
}

static PyObject *tensor_of(const Operands *x, CcOperand o) { return Py_NewRef(x->value[o.value]); }

/* x * (kept / p), in the dtype of x */
static PyObject *dropped(const Operands *o, PyObject *x, CcOperand kept, double p) {
    PyObject *scale = then(tensor_of(o, kept), "type_as", Py_XNewRef(x));
    return then(x, "mul", then(scale, "div", PyFloat_FromDouble(p)));
}

static PyObject *transposed(PyObject *t) {
    PyObject *r = t != NULL ? PyObject_CallMethod(t, "transpose", "ii", -2, -1) : NULL;
    Py_XDECREF(t);
    return r;
}

/* Bools where a row may not attend; None: it may everywhere. */
static PyObject *find_forbidden(const Operands *o, const CcIn_attention_dropped *in, PyObject *scores) {
    const bool bools = in->mask.kind == CC_IN_VALUE && o->g->val.at[in->mask.value].type.dtype == CC_DT_BOOL;
    if (bools) return PyObject_CallMethod(o->value[in->mask.value], "logical_not", NULL);
    if (in->is_causal.kind != CC_IN_BOOL || !in->is_causal.i || scores == NULL) return Py_NewRef(Py_None);
    const CcType *t = &o->g->val.at[in->kept.value].type;
    PyObject *ones = PyObject_CallMethod(scores, "new_ones", "((LL))", (long long)t->size[t->ndim - 2],
                                         (long long)t->size[t->ndim - 1]);
    return then(then(ones, "triu", PyLong_FromLong(1)), "type_as", tensor_of(o, in->kept));
}

static double scale_of(const Operands *o, const CcIn_attention_dropped *in) {
    const CcType *q = &o->g->val.at[in->q.value].type;
    if (in->scale.kind == CC_IN_NONE) return 1 / sqrt((double)q->size[q->ndim - 1]);
    return in->scale.kind == CC_IN_FLOAT ? in->scale.f : (double)in->scale.i;
}

static PyObject *fill(PyObject *t, PyObject *mask, double v) {
    PyObject *r = t != NULL && mask != NULL && mask != Py_None ? PyObject_CallMethod(t, "masked_fill", "Od", mask, v)
                                                               : Py_XNewRef(t);
    Py_XDECREF(t);
    return r;
}

static PyObject *cast(PyObject *t, CcDtype to) {
    return then(t, "to", cc_obj_of_module("torch", cc_dtype_info(to)->torch_name));
}

/* An operand as eager computes with it: in f32 if the result is of half precision, to which autocast casts it first. */
static PyObject *widened(const Operands *o, CcOperand of, CcDtype result) {
    const bool half = cc_dtype_is_half(result);
    return half ? cast(cast(tensor_of(o, of), result), CC_DT_F32) : tensor_of(o, of);
}

/* dropped(softmax(q @ k^T * scale, masked)) @ v */
static PyObject *attention(const Operands *o, const CcIn_attention_dropped *in, CcDtype result) {
    PyObject *s = then(widened(o, in->q, result), "matmul", transposed(widened(o, in->k, result)));
    s = then(s, "mul", PyFloat_FromDouble(scale_of(o, in)));
    PyObject *forbidden = find_forbidden(o, in, s);
    if (in->mask.kind == CC_IN_VALUE && forbidden == Py_None) s = then(s, "add", tensor_of(o, in->mask));
    s = fill(s, forbidden, -HUGE_VAL);
    s = fill(then(s, "softmax", PyLong_FromLong(-1)), forbidden, 0);
    Py_XDECREF(forbidden);
    return cast(then(dropped(o, s, in->kept, in->p.f), "matmul", widened(o, in->v, result)), result);
}

/* torch.batch_norm(x, weight, bias, None, None, True, 0.0, eps, True) */
static PyObject *batch_normed(const Operands *o, const CcIn_batch_normed *in) {
    PyObject *weight = in->weight.kind == CC_IN_VALUE ? o->value[in->weight.value] : Py_None,
             *bias = in->bias.kind == CC_IN_VALUE ? o->value[in->bias.value] : Py_None;
    PyObject *f = cc_obj_of_module("torch", "batch_norm");
    PyObject *r = f != NULL ? PyObject_CallFunction(f, "OOOOOOddO", o->value[in->x.value], weight, bias, Py_None,
                                                    Py_None, Py_True, 0.0, in->eps.f, Py_True)
                            : NULL;
    Py_XDECREF(f);
    return r;
}

/* A tensor's items [from, from + n) of its first dim. */
static PyObject *items(PyObject *t, Py_ssize_t from, Py_ssize_t n) {
    return PyObject_CallMethod(t, "narrow", "inn", 0, from, n);
}

static PyObject *turned(PyObject *t) {
    PyObject *r = t != NULL ? PyObject_CallMethod(t, "transpose", "ii", 0, 1) : NULL;
    Py_XDECREF(t);
    return r;
}

typedef struct Layers {
    const Operands *o;
    const CcNode *n;
    CcRoles r;
    PyObject *f;       /* torch.lstm .. */
    PyObject *last[2]; /* lists of the layers' h_n and c_n */
} Layers;

static CcOperand operand_of(const Layers *l, int i) { return *cc_graph_operand(l->o->g, l->n, i); }

/* One layer in all directions, on steps first. Steals x; -> its y */
static PyObject *layer(Layers *l, PyObject *x, int i) {
    const Operands *o = l->o;
    const int d = l->r.directions, weights = d * l->r.weights;
    PyObject *params = PyList_New(weights), *h = items(o->value[operand_of(l, CC_ROLE_H).value], i * d, d), *r = NULL;
    for (int k = 0; params != NULL && k < weights; k++)
        PyList_SET_ITEM(params, k, tensor_of(o, operand_of(l, l->r.first + i * weights + k)));
    if (l->r.states == 2 && h != NULL)
        h = Py_BuildValue("(NN)", h, items(o->value[operand_of(l, CC_ROLE_C).value], i * d, d));
    if (x != NULL && h != NULL && params != NULL)
        r = PyObject_CallFunction(l->f, "OOOOidOOO", x, h, params, l->r.bias ? Py_True : Py_False, 1, 0.0, Py_True,
                                  d == 2 ? Py_True : Py_False, Py_False);
    PyObject *y = r != NULL ? Py_NewRef(PyTuple_GET_ITEM(r, 0)) : NULL;
    for (int k = 0; r != NULL && k < l->r.states; k++)
        if (PyList_Append(l->last[k], PyTuple_GET_ITEM(r, 1 + k)) < 0) Py_CLEAR(y);
    Py_XDECREF(r);
    Py_XDECREF(params);
    Py_XDECREF(h);
    Py_XDECREF(x);
    return y;
}

/* Layer by layer, with the masks that were drawn. Sets all results. */
static int layers_dropped(const Operands *o, const CcNode *n, const CcRoles *r) {
    static const char *const NAME[] = {
        [CC_CELL_LSTM] = "lstm", [CC_CELL_GRU] = "gru", [CC_CELL_TANH] = "rnn_tanh", [CC_CELL_RELU] = "rnn_relu"};
    Layers l = {.o = o, .n = n, .r = *r, .f = cc_obj_of_module("torch", NAME[r->cell])};
    PyObject *cat = cc_obj_of_module("torch", "cat"), *x = tensor_of(o, operand_of(&l, CC_ROLE_X));
    for (int k = 0; k < r->states; k++) l.last[k] = PyList_New(0);
    const bool ready = l.f != NULL && cat != NULL && l.last[0] != NULL && (r->states == 1 || l.last[1] != NULL);
    if (!ready) Py_CLEAR(x);
    if (r->batch_first) x = turned(x);
    for (int i = 0; i < r->layers && x != NULL; i++) {
        if (i > 0) x = dropped(o, x, operand_of(&l, r->masks + i - 1), r->kept.f);
        x = layer(&l, x, i);
    }
    o->value[n->out0] = r->batch_first ? turned(x) : x;
    bool ok = o->value[n->out0] != NULL;
    for (int k = 0; k < r->states; k++) {
        o->value[n->out0 + 1 + k] = ok ? PyObject_CallOneArg(cat, l.last[k]) : NULL;
        ok = ok && o->value[n->out0 + 1 + k] != NULL;
        Py_XDECREF(l.last[k]);
    }
    Py_XDECREF(cat);
    Py_XDECREF(l.f);
    return ok ? 0 : -1;
}

bool cc_repeat_takes(const CcNode *n) {
    const bool made = n->host < 0 && n->op != CC_OP_draw;
    return made || n->op == CC_OP_dropped || n->op == CC_OP_attention_dropped || n->op == CC_OP_layers_dropped;
}

int cc_repeat_node(const CcGraph *g, const CcNode *n, PyObject **value) {
    const Operands o = {g, value};
    CcIn_dropped drop;
    CcIn_attention_dropped attend;
    CcIn_batch_normed normed;
    CcRoles layers;
    PyObject *r = NULL;
    if (n->host < 0 && n->op != CC_OP_batch_normed) return 0; /* statistics, which only that one reads */
    if (n->op == CC_OP_layers_dropped && cc_roles_read(g, n, &layers)) return layers_dropped(&o, n, &layers);
    if (n->op == CC_OP_dropped && cc_in_dropped(g, n, &drop))
        r = dropped(&o, tensor_of(&o, drop.x), drop.kept, drop.p.f);
    else if (cc_in_attention_dropped(g, n, &attend)) r = attention(&o, &attend, (CcDtype)g->val.at[n->out0].type.dtype);
    else if (cc_in_batch_normed(g, n, &normed)) r = batch_normed(&o, &normed);
    value[n->out0] = r;
    return r != NULL ? 0 : -1;
}
