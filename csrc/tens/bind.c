/* Maps a call of a torch callable to an op and its operands (binds.def).
 *
 * init parses the signatures and indexes them by the callable's key (cc_torch_key). Binding assigns arguments to
 * parameters, checks each against its kind, and collects those that are operands. A call that does not fit is no error:
 * it becomes a host node. */
#include "tens_int.h"

typedef struct Param {
    const char *name; /* points into the row's text; NULL: an @ operand */
    int len;
    char kind;   /* binds.def; 0: any operand */
    bool hidden; /* "-": not an operand */
    bool keyword_only, optional, drop;
    /* "=" without a value: accepts any value of the kind */
    bool any_default;
    char text; /* length of a default that is a string, else 0 */
    const char *string;
    CcOperand value; /* the default, or the @ operand */
} Param;

enum { MAX_PARAMS = 20, MAX_WORDS = 24 };

typedef struct Row {
    const char *op, *callables, *signature;
} Row;

static const Row ROW[] = {
#define CC_BIND(op, callables, signature) {#op, callables, signature},
#include "binds.def"
#undef CC_BIND
};

typedef struct Sig {
    CcOpId op; /* CC_OP_host: ops.def has no such row */
    int n, n_positional;
    Param param[MAX_PARAMS];
} Sig;

typedef struct Link { /* linked list of a callable's rows, in table order */
    int row, next;
} Link;

static struct {
    Sig sig[CC_COUNT(ROW)];
    CcMap known; /* cc_torch_key -> index of the first Link */
    CC_VEC(Link) link;
    PyObject *keep; /* list: keeps callables alive whose addresses are keys */
    CcOpId binop[CC_NB_COUNT], compare[6], neg, invert;
} B;

/* ------------------------------------------------------------------ operands */

static bool as_number(PyObject *o, CcOperand *out) {
    memset(out, 0, sizeof *out);
    if (PyBool_Check(o)) {
        out->kind = CC_IN_BOOL;
        out->i = o == Py_True;
        return true;
    }
    if (PyFloat_CheckExact(o)) {
        out->kind = CC_IN_FLOAT;
        out->f = PyFloat_AS_DOUBLE(o);
        return true;
    }
    int overflow = 0;
    if (!PyLong_CheckExact(o)) return false;
    out->kind = CC_IN_INT;
    out->i = PyLong_AsLongLongAndOverflow(o, &overflow);
    return !overflow;
}

static bool put_constant(CcBound *b, CcOperand constant) {
    if (b->n == CC_BOUND_MAX) return false;
    b->in[b->n].tensor = b->in[b->n].number = NULL;
    b->in[b->n++].constant = constant;
    return true;
}

static bool put_number(CcBound *b, PyObject *o) {
    CcOperand constant;
    if (!as_number(o, &constant) || !put_constant(b, constant)) return false;
    b->in[b->n - 1].number = o;
    return true;
}

static bool put_tensor(CcBound *b, PyObject *tensor) {
    if (b->n == CC_BOUND_MAX) return false;
    memset(&b->in[b->n].constant, 0, sizeof b->in[b->n].constant);
    b->in[b->n].number = NULL;
    b->in[b->n++].tensor = tensor;
    return true;
}

/* A tensor or a number. */
static bool put(CcBound *b, PyObject *o) { return cc_tens_plain(o) ? put_tensor(b, o) : put_number(b, o); }

static bool put_ints(CcBound *b, PyObject *o, bool hidden) {
    CcOperand constant;
    if (PyTuple_Check(o) || PyList_CheckExact(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!put_ints(b, PySequence_Fast_GET_ITEM(o, i), hidden)) return false;
        return true;
    }
    if (!as_number(o, &constant) || constant.kind != CC_IN_INT) return false;
    return hidden || put_number(b, o);
}

static bool put_numbers(CcBound *b, PyObject *o) {
    if (o == Py_None) return true;
    if (!PyTuple_Check(o) && !PyList_CheckExact(o)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
        if (!put_number(b, PySequence_Fast_GET_ITEM(o, i))) return false;
    return true;
}

static bool put_tensors(CcBound *b, PyObject *o) {
    if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(o, i);
        if (!cc_tens_plain(item) || !put_tensor(b, item)) return false;
    }
    return true;
}

/* Dims of tensor `first` as one operand: a bit per dim, bit 0 is the last one. `o` NULL: the default. */
static bool put_dims(CcBound *b, PyObject *o, const CcOperand *deflt, PyObject *first, bool trailing) {
    CcTensor t;
    CcOperand c, dims = {.kind = CC_IN_INT};
    if (!first) return false;
    cc_tens_read(first, false, &t);
    const int64_t ndim = t.type.ndim, all = (INT64_C(1) << CC_MAX(ndim, 0)) - 1;
    if (ndim < 0) return false;
    const bool list = o && (PyTuple_Check(o) || PyList_CheckExact(o));
    const Py_ssize_t n = list ? PySequence_Fast_GET_SIZE(o) : 1;
    if (trailing) { /* a shape: only its number of dims matters */
        dims.i = (INT64_C(1) << CC_MIN(n, ndim)) - 1;
        return n <= ndim && put_constant(b, dims);
    }
    const bool by_default = !o && deflt && deflt->kind == CC_IN_INT;
    for (Py_ssize_t i = 0; i < n && (by_default || (o && o != Py_None)); i++) {
        if (by_default) c = *deflt;
        else if (!as_number(list ? PySequence_Fast_GET_ITEM(o, i) : o, &c) || c.kind != CC_IN_INT) return false;
        const int64_t d = c.i < 0 ? c.i + CC_MAX(ndim, 1) : c.i;
        if (d < 0 || d >= CC_MAX(ndim, 1)) return false;
        if (ndim) dims.i |= INT64_C(1) << (ndim - 1 - d);
    }
    if ((!o && !by_default) || o == Py_None || n == 0) dims.i = all;
    return put_constant(b, dims);
}

/* A string: one operand per character. */
static bool put_text(CcBound *b, PyObject *o) {
    const char *text = PyUnicode_AsUTF8(o);
    if (!text) cc_raised_clear();
    for (; text && *text; text++)
        if (!put_constant(b, (CcOperand){.kind = CC_IN_INT, .i = (unsigned char)*text})) return false;
    return text != NULL;
}

/* `n` ints, from a single one that is repeated or a list of n. */
static bool put_repeated(CcBound *b, PyObject *o, int n, const CcOperand *deflt) {
    CcOperand constant = deflt ? *deflt : (CcOperand){.kind = CC_IN_NONE};
    const bool list = o && (PyTuple_Check(o) || PyList_CheckExact(o));
    const Py_ssize_t given = list ? PySequence_Fast_GET_SIZE(o) : !o || o == Py_None ? 0 : 1;
    if (given > 1 && given != n) return false;
    for (int i = 0; i < n; i++) {
        if (given && !as_number(list ? PySequence_Fast_GET_ITEM(o, given == 1 ? 0 : i) : o, &constant)) return false;
        if (constant.kind != CC_IN_INT || !put_constant(b, constant)) return false;
    }
    return true;
}

static bool is_repeated(const Param *p) { return p->kind >= '1' && p->kind <= '3'; }

static double as_double(const CcOperand *c) { return c->kind == CC_IN_FLOAT ? c->f : (double)c->i; }

static bool is_default(const Param *p, PyObject *o) {
    if (p->any_default) return !cc_torch_within(o, 0); /* an op reads no tensor that is not its operand */
    if (p->text) {
        const char *s = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
        return s && (int)strlen(s) == p->text && strncmp(s, p->string, (size_t)p->text) == 0;
    }
    if (p->value.kind == CC_IN_NONE) return o == Py_None;
    CcOperand c;
    return as_number(o, &c) && (c.kind == CC_IN_BOOL) == (p->value.kind == CC_IN_BOOL) &&
           as_double(&c) == as_double(&p->value);
}

static bool on_device(PyObject *tensor, PyObject *device) {
    CcTensor t;
    cc_tens_read(tensor, false, &t);
    /* not PyObject_Str: see cc_mode_default_dtype */
    PyObject *text = cc_tens_constant(device) || PyUnicode_Check(device) ? Py_TYPE(device)->tp_str(device) : NULL;
    const char *s = text ? PyUnicode_AsUTF8(text) : NULL;
    char want[24] = "cpu";
    if (t.type.device != 1) snprintf(want, sizeof want, "cuda:%d", t.type.device_index);
    bool same = s && t.type.ndim >= 0 && strcmp(s, want) == 0;
    Py_XDECREF(text);
    cc_raised_clear();
    return same;
}

static bool is_constant(PyObject *o) {
    if (PyTuple_Check(o) || PyList_CheckExact(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!PyLong_CheckExact(PySequence_Fast_GET_ITEM(o, i))) return false;
        return true;
    }
    return o == Py_None || PyUnicode_Check(o) || PyLong_Check(o) || cc_tens_constant(o);
}

/* A tensor that torch reads as a number: it has no dims, and needs no gradient. Rounding a number of another dtype is
 * left to torch. */
static bool put_scalar(CcBound *b, PyObject *o, PyObject *first) {
    CcTensor t, to;
    if (!cc_tens_plain(o)) return put_number(b, o);
    if (!first) return false;
    cc_tens_read(o, false, &t);
    cc_tens_read(first, false, &to);
    return t.type.ndim == 0 && !t.type.requires_grad && t.type.dtype == to.type.dtype &&
           (t.type.dtype == CC_DT_F32 || t.type.dtype == CC_DT_F64) &&
           (t.type.device == 1 || (t.type.device == to.type.device && t.type.device_index == to.type.device_index)) &&
           put_tensor(b, o);
}

static bool accept(const Param *p, PyObject *o, PyObject *first, CcBound *b) {
    CcOperand c;
    CcTensor t;
    bool tensor = cc_tens_plain(o);
    switch (p->kind) {
    case 't': return tensor && (p->hidden || put_tensor(b, o));
    case 'v':
        if (!tensor) return false;
        cc_tens_read(o, false, &t);
        return cc_type_contiguous(&t.type) && put_tensor(b, o);
    case 'l': return put_tensors(b, o);
    case 'u': return put_tensors(b, o) && PySequence_Fast_GET_SIZE(o) == 1;
    case 's': return PyUnicode_Check(o); /* bind_row() appends it last */
    case 'f': return put_numbers(b, o);
    case 'n': return p->hidden ? as_number(o, &c) : put_number(b, o);
    case 'x': return put_scalar(b, o, first);
    case 'i': return as_number(o, &c) && c.kind == CC_IN_INT && (p->hidden || put_number(b, o));
    case 'p': return as_number(o, &c) && c.kind == CC_IN_INT && c.i > 0 && put_number(b, o);
    case 'o': return o == Py_None ? put_constant(b, (CcOperand){.kind = CC_IN_NONE}) : put(b, o);
    case '*': return put_ints(b, o, p->hidden);
    case 'D': return put_dims(b, o, NULL, first, false);
    case 'Z': return put_dims(b, o, NULL, first, true);
    case '1':
    case '2':
    case '3': return put_repeated(b, o, p->kind - '0', p->optional ? &p->value : NULL);
    case 'c': return is_constant(o);
    case 'd': return cc_known_is(o, CC_KNOWN_DTYPE);
    case 'e': return first && on_device(first, o);
    default: return p->hidden ? is_default(p, o) : put(b, o);
    }
}

/* ------------------------------------------------------------------ binding */

static int param_named(const Sig *s, PyObject *name) {
    Py_ssize_t n;
    const char *text = PyUnicode_AsUTF8AndSize(name, &n);
    for (int i = 0; text && i < s->n; i++)
        if (s->param[i].name && s->param[i].len == n && memcmp(s->param[i].name, text, (size_t)n) == 0) return i;
    return -1;
}

/* Assigns each argument to its parameter. For a `*` parameter at[] has the first argument; the others are args[rest[0]
 * .. rest[1]). */
static bool place(const Sig *s, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, PyObject **at,
                  Py_ssize_t *rest) {
    Py_ssize_t used = 0;
    rest[0] = rest[1] = 0;
    for (int i = 0; i < s->n_positional && used < n; i++) {
        if (!s->param[i].name) continue;
        at[i] = args[used++];
        if (s->param[i].kind == '*') {
            rest[0] = used;
            while (used < n && PyLong_CheckExact(args[used])) used++;
            rest[1] = used;
        }
    }
    if (used < n) return false;
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        int p = param_named(s, PyTuple_GET_ITEM(kwnames, i));
        if (p < 0 || at[p]) return false;
        at[p] = args[n + i];
    }
    return true;
}

static bool bind_row(const Sig *s, PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                     CcBound *out) {
    PyObject *at[MAX_PARAMS] = {NULL}, *word[MAX_WORDS], *first = NULL;
    Py_ssize_t kw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0, rest[2];
    if (self) { /* a bound builtin: the tensor is its first argument */
        if (n + kw + 1 > MAX_WORDS) return false;
        word[0] = self;
        memcpy(word + 1, args, (size_t)(n + kw) * sizeof *args);
        args = word;
        n++;
    }
    if (!place(s, args, n, kwnames, at, rest)) return false;
    out->op = s->op;
    out->n = 0;
    int keep = 0; /* operands before this one must not be dropped */
    for (int i = 0; i < s->n; i++) {
        const Param *p = &s->param[i];
        if (!p->name) {
            if (!put_constant(out, p->value)) return false;
        } else if (!at[i]) {
            if (!p->optional) return false;
            if (p->kind == 'D') {
                if (!put_dims(out, NULL, &p->value, first, false)) return false;
            } else if (is_repeated(p)) {
                if (!put_repeated(out, NULL, p->kind - '0', &p->value)) return false;
            } else if (p->kind != 'f' && !p->hidden && !put_constant(out, p->value)) {
                return false;
            }
        } else {
            if (!accept(p, at[i], first, out)) return false;
            for (Py_ssize_t k = rest[0]; p->kind == '*' && k < rest[1]; k++)
                if (!put_ints(out, args[k], p->hidden)) return false;
            if (!first && cc_tens_plain(at[i])) first = at[i];
        }
        if (!p->drop || (at[i] && !is_default(p, at[i]))) keep = out->n;
    }
    out->n = keep;
    for (int i = 0; i < s->n; i++)
        if (s->param[i].kind == 's' && at[i] && !put_text(out, at[i])) return false;
    return true;
}

int cc_bind_call(PyObject *callable, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, CcBound *out) {
    PyObject *self;
    const int64_t *at = cc_map_find(&B.known, cc_torch_key(callable, &self));
    if (!at) return -1;
    n = PyVectorcall_NARGS((size_t)n);
    if (self && !cc_tens_is(self)) self = NULL;
    for (int i = (int)*at; i >= 0; i = B.link.at[i].next) {
        const Sig *s = &B.sig[B.link.at[i].row];
        if (s->op != CC_OP_host && bind_row(s, self, args, n, kwnames, out)) return 0;
    }
    return -1;
}

static int bind_two(CcOpId op, PyObject *a, PyObject *b, CcBound *out) {
    out->op = op;
    out->n = 0;
    if (op == CC_OP_host || (!cc_tens_plain(a) && !cc_tens_plain(b))) return -1;
    return put(out, a) && put(out, b) ? 0 : -1;
}

int cc_bind_binop(CcBinop op, bool inplace, PyObject *a, PyObject *b, CcBound *out) {
    if ((unsigned)op >= CC_NB_COUNT) return -1;
    /* a may be a number: total = 0; total += x */
    if (inplace && ((cc_tens_is(a) && !cc_tens_plain(a)) || op == CC_NB_MATRIX_MULTIPLY)) return -1;
    /* torch computes 2 / x as x.reciprocal() * 2, in Python (Tensor.__rtruediv__). Those ops get recorded, with their
     * rounding. */
    if (op == CC_NB_TRUE_DIVIDE && !cc_tens_plain(a)) return -1;
    if (op == CC_NB_MATRIX_MULTIPLY && (!cc_tens_plain(a) || !cc_tens_plain(b))) return -1;
    /* 2 * x is x.__rmul__(2), in which x comes first */
    if (op == CC_NB_MULTIPLY && !cc_tens_plain(a)) return bind_two(B.binop[op], b, a, out);
    return bind_two(B.binop[op], a, b, out);
}

int cc_bind_attr(PyObject *tensor, const char *name, CcBound *out) {
    out->op = strcmp(name, "T") == 0 || strcmp(name, "mT") == 0 ? CC_OP_permute : CC_OP_host;
    out->n = 0;
    return out->op != CC_OP_host && cc_tens_plain(tensor) && put_tensor(out, tensor) ? 0 : -1;
}

int cc_bind_unary(int op, PyObject *a, CcBound *out) {
    out->op = op == '-' ? B.neg : op == '~' ? B.invert : CC_OP_host;
    out->n = 0;
    if (out->op == CC_OP_host || !cc_tens_plain(a)) return -1;
    return put_tensor(out, a) ? 0 : -1;
}

static bool is_full_slice(PyObject *slice) {
    const PySliceObject *s = (PySliceObject *)slice;
    return s->start == Py_None && s->stop == Py_None && s->step == Py_None;
}

static bool put_int(CcBound *b, int64_t i) { return put_constant(b, (CcOperand){.kind = CC_IN_INT, .i = i}); }

/* The first index that `part` selects in a dim of this size. False: neither an int in range nor a forward slice of
 * ints. */
static bool first_index(PyObject *part, int64_t size, int64_t *first) {
    Py_ssize_t start, stop, step;
    CcOperand c;
    if (PyLong_CheckExact(part)) {
        *first = as_number(part, &c) ? c.i : size;
        if (*first < 0) *first += size;
        return *first >= 0 && *first < size;
    }
    if (!PySlice_Check(part)) return false;
    const PySliceObject *s = (PySliceObject *)part;
    PyObject *const bound[] = {s->start, s->stop, s->step};
    for (int i = 0; i < 3; i++)
        if (bound[i] != Py_None && !PyLong_CheckExact(bound[i])) return false;
    if (PySlice_Unpack(part, &start, &stop, &step) < 0) {
        cc_raised_clear();
        return false;
    }
    PySlice_AdjustIndices(size, &start, &stop, step);
    *first = start;
    return step > 0;
}

static bool has_tensor_index(PyObject *const *part, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++)
        if (cc_tens_is(part[i])) return true;
    return false;
}

/* A key part that is not a tensor, for a dim of this size. */
static bool put_part(CcBound *b, PyObject *part, int64_t size) {
    int64_t first;
    Py_ssize_t start, stop, step;
    if (!first_index(part, size, &first)) return false;
    if (PyLong_CheckExact(part)) return put_int(b, CC_KEY_INT) && put_int(b, first);
    if (is_full_slice(part)) return put_int(b, CC_KEY_ALL);
    if (PySlice_Unpack(part, &start, &stop, &step) < 0) {
        cc_raised_clear();
        return false;
    }
    const Py_ssize_t length = PySlice_AdjustIndices(size, &start, &stop, step);
    return put_int(b, CC_KEY_SLICE) && put_int(b, length ? first : 0) && put_int(b, length) && put_int(b, step);
}

/* A tensor as a key part. Returns how many dims it consumes; 0: not allowed as an index. */
static int put_index(CcBound *b, PyObject *tensor) {
    CcTensor t;
    if (!cc_tens_plain(tensor)) return 0;
    cc_tens_read(tensor, false, &t);
    const bool mask = t.type.dtype == CC_DT_BOOL;
    if (t.type.ndim < mask || (!mask && t.type.dtype != CC_DT_I64 && t.type.dtype != CC_DT_I32)) return 0;
    return put_int(b, CC_KEY_TENSOR) && put_tensor(b, tensor) ? CC_MAX(1, mask * t.type.ndim) : 0;
}

static int dims_of_part(PyObject *part) {
    CcTensor t;
    if (part == Py_None || part == Py_Ellipsis) return 0;
    if (!cc_tens_plain(part)) return 1;
    cc_tens_read(part, false, &t);
    return t.type.dtype == CC_DT_BOOL ? CC_MAX(t.type.ndim, 0) : 1;
}

/* Appends the parts of a key as operands (CcKeyPart). */
static bool put_key(CcBound *b, const CcType *t, PyObject *const *part, Py_ssize_t n) {
    int64_t dim = 0, taken = 0;
    bool ellipsis = false;
    for (Py_ssize_t i = 0; i < n; i++) taken += dims_of_part(part[i]);
    if (t->ndim < 0 || taken > t->ndim) return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (part[i] == Py_None) {
            if (!put_int(b, CC_KEY_NEW)) return false;
        } else if (part[i] == Py_Ellipsis) {
            if (ellipsis) return false;
            for (ellipsis = true; taken < t->ndim; taken++, dim++)
                if (!put_int(b, CC_KEY_ALL)) return false;
        } else if (cc_tens_is(part[i])) {
            const int dims = put_index(b, part[i]);
            if (dims == 0) return false;
            dim += dims;
        } else {
            if (!put_part(b, part[i], t->size[dim])) return false;
            dim++;
        }
    }
    return true;
}

/* x[:, index] and similar, with at least one tensor in the key. */
static int bind_index(PyObject *tensor, const CcType *t, PyObject *const *part, Py_ssize_t n, CcBound *out) {
    CcTensor index;
    bool view = true; /* indices without dims make a view */
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!cc_tens_is(part[i])) continue;
        cc_tens_read(part[i], false, &index);
        if (index.type.dtype == CC_DT_BOOL) return -1; /* the result's size depends on data */
        view = view && index.type.ndim == 0;
    }
    out->op = CC_OP_index;
    out->n = 0;
    return !view && put_tensor(out, tensor) && put_key(out, t, part, n) ? 0 : -1;
}

/* x[key] = value. A mask and a single number become masked_fill. */
int cc_bind_setitem(PyObject *tensor, PyObject *key, PyObject *value, CcBound *out) {
    PyObject *const *part = PyTuple_CheckExact(key) ? &PyTuple_GET_ITEM(key, 0) : &key;
    const Py_ssize_t n = PyTuple_CheckExact(key) ? PyTuple_GET_SIZE(key) : 1;
    CcTensor t, v, mask;
    if (!cc_tens_plain(tensor) || value == NULL) return -1;
    cc_tens_read(tensor, false, &t);
    out->op = CC_OP_put;
    out->n = 0;
    v.type.ndim = 0;
    if (cc_tens_plain(value)) cc_tens_read(value, false, &v);
    if (n == 1 && v.type.ndim == 0 && cc_tens_plain(part[0])) {
        cc_tens_read(part[0], false, &mask);
        if (mask.type.dtype == CC_DT_BOOL && cc_type_same_shape(&mask.type, &t.type)) {
            out->op = CC_OP_masked_fill;
            return put_tensor(out, tensor) && put_tensor(out, part[0]) && put(out, value) ? 0 : -1;
        }
    }
    return put_tensor(out, tensor) && put(out, value) && put_key(out, &t.type, part, n) ? 0 : -1;
}

/* Basic indexing by ints, slices, None and an Ellipsis. A single int, as in x[:, i], becomes a select; anything else a
 * slice whose operands are pairs of a dim and its first index (the result's type has the shape). */
int cc_bind_getitem(PyObject *tensor, PyObject *key, CcBound *out) {
    PyObject *const *part = PyTuple_CheckExact(key) ? &PyTuple_GET_ITEM(key, 0) : &key;
    const Py_ssize_t n = PyTuple_CheckExact(key) ? PyTuple_GET_SIZE(key) : 1;
    CcTensor t;
    if (!cc_tens_plain(tensor)) return -1;
    cc_tens_read(tensor, false, &t);
    if (has_tensor_index(part, n)) return bind_index(tensor, &t.type, part, n, out);
    Py_ssize_t indices = 0, ints = 0, news = 0, slices = 0, dim = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (part[i] == Py_None) news++;
        else if (part[i] != Py_Ellipsis) indices++;
    }
    if (t.type.ndim < 0 || indices > t.type.ndim) return -1;
    out->op = CC_OP_slice;
    out->n = 0;
    if (!put_tensor(out, tensor)) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t first;
        if (part[i] == Py_None) continue;
        if (part[i] == Py_Ellipsis) {
            dim += t.type.ndim - indices;
            continue;
        }
        if (!first_index(part[i], t.type.size[dim], &first)) return -1;
        const bool is_int = PyLong_CheckExact(part[i]);
        ints += is_int;
        if ((is_int || first != 0) && (!put_int(out, dim) || !put_int(out, first))) return -1;
        slices += !is_int && !is_full_slice(part[i]);
        dim++;
    }
    if (ints == 1 && slices == 0 && news == 0) out->op = CC_OP_select;
    return 0;
}

int cc_bind_compare(int op, PyObject *a, PyObject *b, CcBound *out) {
    static const int swapped[6] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
    if (op < 0 || op > Py_GE) return -1;
    if (!cc_tens_plain(a)) { /* 2 < x is x > 2 */
        PyObject *t = a;
        a = b;
        b = t;
        op = swapped[op];
    }
    return bind_two(B.compare[op], a, b, out);
}

/* ------------------------------------------------------------------ init */

static bool parse_value(const char *s, int n, Param *p) {
    p->value.kind = CC_IN_NONE;
    if (n == 0) {
        p->any_default = true;
    } else if (n >= 2 && s[0] == '\'') {
        p->text = (char)(n - 2);
        p->string = s + 1;
    } else if (n == 4 && !strncmp(s, "None", 4)) {
        return true;
    } else if ((n == 4 && !strncmp(s, "True", 4)) || (n == 5 && !strncmp(s, "False", 5))) {
        p->value.kind = CC_IN_BOOL;
        p->value.i = n == 4;
    } else if (memchr(s, '.', (size_t)n)) {
        p->value.kind = CC_IN_FLOAT;
        p->value.f = strtod(s, NULL);
    } else {
        char *end;
        p->value.kind = CC_IN_INT;
        p->value.i = strtoll(s, &end, 10);
        return end == s + n;
    }
    return true;
}

static bool parse_param(const char *s, int n, Param *p) {
    if (*s == '@') return parse_value(s + 1, n - 1, p);
    p->hidden = *s == '-';
    s += p->hidden;
    n -= p->hidden;
    p->name = s;
    p->len = (int)strcspn(s, ":=~,");
    int i = p->len;
    if (i < n && s[i] == ':') {
        p->kind = s[i + 1];
        i += 2;
    }
    if (i == n) return true;
    p->optional = true;
    p->drop = s[i] == '~';
    return parse_value(s + i + 1, n - i - 1, p);
}

static bool parse(const Row *row, Sig *s) {
    s->op = cc_op_find(row->op);
    s->n = 0;
    s->n_positional = -1;
    for (const char *at = row->signature; *at;) {
        int n = (int)strcspn(at, ",");
        if (n == 1 && *at == '*') {
            s->n_positional = s->n;
        } else {
            Param *p = &s->param[s->n++];
            memset(p, 0, sizeof *p);
            p->keyword_only = s->n_positional >= 0;
            if (!parse_param(at, n, p) || s->n > MAX_PARAMS) return false;
        }
        at += n;
        at += strspn(at, ", ");
    }
    if (s->n_positional < 0) s->n_positional = s->n;
    return true;
}

static int link_row(PyObject *callable, int row) {
    PyObject *self;
    const void *key = cc_torch_key(callable, &self);
    if (PyList_Append(B.keep, callable)) return -1;
    cc_vec_push(&B.link, (Link){row, -1});
    int made = B.link.n - 1;
    const int64_t *first = cc_map_find(&B.known, key);
    if (!first) {
        cc_map_put(&B.known, key, made);
        return 0;
    }
    int last = (int)*first;
    while (B.link.at[last].next >= 0) last = B.link.at[last].next;
    if (B.link.at[last].row != row) B.link.at[last].next = made;
    return 0;
}

/* "_operator.add": a function of one of Python's own modules. */
static PyObject *python_function(const char *path, const char *base) {
    char module[32];
    snprintf(module, sizeof module, "%.*s", (int)strlen(base) - 1, base);
    return cc_obj_of_module(module, path + strlen(base));
}

static int resolve(char space, const char *name, int n, int row) {
    char path[128];
    const char *base = space == 'F'   ? "torch._C._VariableFunctions."
                       : space == 'N' ? "torch._C._nn."
                       : space == 'S' ? "torch._C._special.special_"
                       : space == 'L' ? "torch._C._linalg.linalg_"
                       : space == 'O' ? "_operator."
                       : space == 'B' ? "builtins."
                                      : "torch._C.TensorBase.";
    snprintf(path, sizeof path, "%s%.*s", base, n, name);
    PyObject *o = *base == 't' ? cc_tsym_path(path) : python_function(path, base);
    if (!o) return 0; /* this torch version lacks it */
    int rc = link_row(o, row);
    Py_DECREF(o);
    return rc;
}

/* The name of a pointwise op or scatter with '_' appended is its in-place form; the node's flags say that it writes. */
static int resolve_in_place(char space, const char *name, int n, int row) {
    char with[64];
    const CcOpKind kind = cc_op_info(B.sig[row].op)->kind;
    if ((kind != CC_K_POINTWISE && kind != CC_K_SCATTER) || name[0] == '_' || space == 'O' || space == 'B' ||
        n + 2 > (int)sizeof with)
        return 0;
    snprintf(with, sizeof with, "%.*s_", n, name);
    return resolve(space, with, n + 1, row);
}

static int resolve_all(int row) {
    for (const char *at = ROW[row].callables; *at;) {
        const char *colon = strchr(at, ':');
        int n = (int)strcspn(colon + 1, " ");
        for (const char *space = at; space < colon; space++)
            if (resolve(*space, colon + 1, n, row) || resolve_in_place(*space, colon + 1, n, row)) return -1;
        at = colon + 1 + n;
        at += strspn(at, " ");
    }
    return 0;
}

int cc_bind_init(void) {
    static const char *const binop[CC_NB_COUNT] = {[CC_NB_ADD] = "add",
                                                   [CC_NB_AND] = "bitwise_and",
                                                   [CC_NB_FLOOR_DIVIDE] = "div_floor",
                                                   [CC_NB_LSHIFT] = "lshift",
                                                   [CC_NB_MATRIX_MULTIPLY] = "matmul",
                                                   [CC_NB_MULTIPLY] = "mul",
                                                   [CC_NB_REMAINDER] = "remainder",
                                                   [CC_NB_OR] = "bitwise_or",
                                                   [CC_NB_POWER] = "pow",
                                                   [CC_NB_RSHIFT] = "rshift",
                                                   [CC_NB_SUBTRACT] = "sub",
                                                   [CC_NB_TRUE_DIVIDE] = "div",
                                                   [CC_NB_XOR] = "bitwise_xor"};
    static const char *const compare[6] = {"lt", "le", "eq", "ne", "gt", "ge"};
    if (B.keep) return 0;
    B.keep = PyList_New(0);
    if (!B.keep) return -1;
    for (int i = 0; i < CC_NB_COUNT; i++) B.binop[i] = cc_op_find(binop[i]);
    for (int i = 0; i < 6; i++) B.compare[i] = cc_op_find(compare[i]);
    B.neg = cc_op_find("neg");
    B.invert = cc_op_find("bitwise_not");
    for (int i = 0; i < CC_COUNT(ROW); i++) {
        if (!parse(&ROW[i], &B.sig[i])) {
            PyErr_Format(PyExc_SystemError, "ccompile: binds.def: cannot read signature \"%s\" of %s", ROW[i].signature,
                         ROW[i].op);
            return -1;
        }
        if (resolve_all(i)) return -1;
    }
    return 0;
}

const char *cc_bind_row(int row, bool *known, const char **callables) {
    if (row < 0 || row >= CC_COUNT(ROW)) return NULL;
    *known = B.sig[row].op != CC_OP_host;
    *callables = ROW[row].callables;
    return ROW[row].op;
}
