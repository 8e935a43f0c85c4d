/* aten: nodes of a backward that torch's own kernels run: torch.ops.aten.NAME.default(arguments). */
#include "eval_int.h"

/* form: the arguments in order.
 *   .       the operands of the next spec of the op's row: a tensor, a number or None; a list where the row has INTS
 *   *       all operands that are left, as an argument each
 *   l       all that are left but the last, as a list
 *   t e     the tensors among the operands, as a list; the characters behind them, as text
 *   N 0 1   None, False, True
 *   z       a list of zeros, one for each spatial dim
 *   o r     sizes of the spatial dims of operand 0; all sizes of the result
 *   [...]   a list of these
 * In a name, # is the number of spatial dims. result: which one of several. */
typedef struct Aten {
    CcOpId op;
    const char *name, *form;
    int result;
} Aten;

static const Aten ATEN[] = {
    {CC_OP_einsum, "einsum", "et", 0},
    {CC_OP_conv_dx, "convolution_backward", "...N...0z.[100]", 0},
    {CC_OP_conv_dw, "convolution_backward", "...N...0z.[010]", 1},
    {CC_OP_conv_transpose_dx, "convolution_backward", "...N...1..[100]", 0},
    {CC_OP_conv_transpose_dw, "convolution_backward", "...N...1..[010]", 1},
    {CC_OP_max_pool_at, "max_pool#d_with_indices", "......", 1},
    {CC_OP_max_pool_dx, "max_pool#d_with_indices_backward", "........", 0},
    {CC_OP_avg_pool_dx, "avg_pool#d_backward", "........", 0},
    {CC_OP_adaptive_max_pool_at, "adaptive_max_pool#d", "..", 1},
    {CC_OP_adaptive_max_pool_dx, "adaptive_max_pool#d_backward", "...", 0},
    {CC_OP_adaptive_avg_pool_dx, "_adaptive_avg_pool#d_backward", "..", 0},
    {CC_OP_embedding_dw, "embedding_dense_backward", ".....", 0},
    {CC_OP_upsample_nearest_dx, "upsample_nearest#d_backward", ".or*", 0},
    {CC_OP_upsample_exact_dx, "_upsample_nearest_exact#d_backward", ".or*", 0},
    {CC_OP_upsample_linear_dx, "upsample_bilinear2d_backward", ".or.*", 0},
    {CC_OP_upsample_trilinear_dx, "upsample_trilinear3d_backward", ".or.*", 0},
    {CC_OP_upsample_cubic_dx, "upsample_bicubic2d_backward", ".or.*", 0},
    {CC_OP_unfold_dx, "unfold_backward", ".r...", 0},
    {CC_OP_masked_scatter_ds, "masked_scatter_backward", "..r", 0},
    {CC_OP_im2col_dx, "col2im", "......", 0},
    {CC_OP_pad, "constant_pad_nd", ".l*", 0},
};

typedef struct Call {
    const CcGraph *g;
    const CcNode *n;
    PyObject *const *value;
    const CcOperandSpec *spec; /* of the next operands */
    int at;                    /* the first of them */
    const char *form;          /* what is left of it */
} Call;

static const Aten *find(const CcNode *n) {
    for (int i = 0; i < CC_COUNT(ATEN); i++)
        if (ATEN[i].op == n->op) return &ATEN[i];
    return NULL;
}

static int spatial_dims(const CcGraph *g, const CcNode *n) { return g->val.at[cc_graph_source(g, n)].type.ndim - 2; }

static PyObject *sizes_of(const CcType *t, int from) {
    PyObject *list = PyList_New(t->ndim - from);
    for (int d = from; list != NULL && d < t->ndim; d++)
        PyList_SET_ITEM(list, d - from, PyLong_FromLongLong(t->size[d]));
    return list;
}

static PyObject *zeros(int n) {
    PyObject *list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) PyList_SET_ITEM(list, i, PyLong_FromLong(0));
    return list;
}

static PyObject *operand(const Call *c, const CcOperand *o) {
    switch (o->kind) {
    case CC_IN_VALUE: return Py_NewRef(c->value[o->value]);
    case CC_IN_INT: return PyLong_FromLongLong(o->i);
    case CC_IN_BOOL: return PyBool_FromLong((long)o->i);
    case CC_IN_FLOAT: return PyFloat_FromDouble(o->f);
    default: return Py_NewRef(Py_None);
    }
}

static PyObject *next_operands(Call *c) {
    int ints, rest;
    if (!cc_operands_count(c->n, &ints, &rest)) return NULL;
    const bool is_list = c->spec->kind == CC_IS_INTS;
    const int n = is_list ? ints : 1, first = c->at;
    c->spec++;
    c->at += n;
    if (!is_list) return operand(c, cc_graph_operand(c->g, c->n, first));
    PyObject *list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++)
        PyList_SET_ITEM(list, i, operand(c, cc_graph_operand(c->g, c->n, first + i)));
    return list;
}

static PyObject *all_but_last(Call *c) {
    PyObject *list = PyList_New(c->n->n_in - 1 - c->at);
    for (int i = 0; list != NULL && c->at < c->n->n_in - 1; c->at++)
        PyList_SET_ITEM(list, i++, operand(c, cc_graph_operand(c->g, c->n, c->at)));
    return list;
}

static PyObject *tensors(const Call *c) {
    PyObject *list = PyList_New(0);
    for (int k = 0; list != NULL && k < c->n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(c->g, c->n, k);
        if (o->kind == CC_IN_VALUE && PyList_Append(list, c->value[o->value]) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *text(const Call *c) {
    CcSbuf s = {0};
    for (int k = 0; k < c->n->n_in; k++) {
        const CcOperand *o = cc_graph_operand(c->g, c->n, k);
        if (o->kind == CC_IN_INT) cc_sbuf_add(&s, "%c", (char)o->i);
    }
    PyObject *r = PyUnicode_FromString(cc_sbuf_text(&s));
    cc_sbuf_free(&s);
    return r;
}

static PyObject *arguments(Call *c);

static PyObject *next_argument(Call *c) {
    const CcType *t = &c->g->val.at[cc_graph_source(c->g, c->n)].type;
    switch (*c->form++) {
    case '.': return next_operands(c);
    case 'l': return all_but_last(c);
    case 't': return tensors(c);
    case 'e': return text(c);
    case '0': return Py_NewRef(Py_False);
    case '1': return Py_NewRef(Py_True);
    case 'z': return zeros(spatial_dims(c->g, c->n));
    case 'o': return sizes_of(t, 2);
    case 'r': return sizes_of(&c->g->val.at[c->n->out0].type, 0);
    case '[': return arguments(c);
    default: return Py_NewRef(Py_None);
    }
}

/* False with an error set; takes the argument over. */
static bool append(PyObject *list, PyObject *o) {
    const bool ok = o != NULL && PyList_Append(list, o) == 0;
    Py_XDECREF(o);
    return ok;
}

/* A list of what is left of the form, up to a ']'. */
static PyObject *arguments(Call *c) {
    PyObject *list = PyList_New(0);
    bool ok = list != NULL;
    while (ok && *c->form != '\0' && *c->form != ']') {
        if (*c->form != '*') {
            ok = append(list, next_argument(c));
            continue;
        }
        for (c->form++; ok && c->at < c->n->n_in; c->at++)
            ok = append(list, operand(c, cc_graph_operand(c->g, c->n, c->at)));
    }
    if (!ok) Py_CLEAR(list);
    if (*c->form == ']') c->form++;
    return list;
}

/* torch.ops.aten.NAME.default, borrowed; torch keeps them. */
static PyObject *function(const Aten *a, int dims) {
    static PyObject *known[CC_COUNT(ATEN)][CC_SPATIAL + 1];
    PyObject **at = &known[a - ATEN][dims];
    char name[64];
    snprintf(name, sizeof name, "%s", a->name);
    if (strchr(name, '#') != NULL) *strchr(name, '#') = (char)('0' + dims);
    PyObject *ops = *at == NULL ? cc_obj_of_module("torch.ops", "aten") : NULL;
    PyObject *packet = ops != NULL ? PyObject_GetAttrString(ops, name) : NULL;
    if (packet != NULL) *at = PyObject_GetAttrString(packet, "default");
    Py_XDECREF(packet);
    Py_XDECREF(ops);
    return *at;
}

bool cc_aten_takes(const CcNode *n) { return find(n) != NULL; }

PyObject *cc_aten_call(const CcGraph *g, const CcNode *n, PyObject *const *value) {
    const Aten *a = find(n);
    Call c = {.g = g, .n = n, .value = value, .spec = cc_op_info((CcOpId)n->op)->operand, .form = a->form};
    const int dims = spatial_dims(g, n);
    PyObject *f = function(a, CC_MAX(0, CC_MIN(dims, CC_SPATIAL)));
    PyObject *list = f != NULL ? arguments(&c) : NULL, *args = list != NULL ? PyList_AsTuple(list) : NULL;
    PyObject *r = args != NULL ? PyObject_Call(f, args, NULL) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(list);
    if (r != NULL && PyTuple_Check(r)) Py_SETREF(r, Py_NewRef(PyTuple_GET_ITEM(r, a->result)));
    return r;
}
