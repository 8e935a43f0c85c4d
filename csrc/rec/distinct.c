/* distinct: C code that compares or hashes finds an object by identity before it asks __eq__: in sets, keys,
 * list.index(), == of lists. Whatever __eq__ and __hash__ are, such an event is the same in other calls only if objects
 * from outside that were distinct are so again: a guard for each pair of the same type that the event may have
 * compared. (An object that is met twice has a guard anyway.) */
#include "rec_events.h"

enum { MAX_MEMBERS = 1024, MAX_PAIRS = 1 << 15, MAX_WITHIN = 64, DEPTH = 6 };

/* Objects in a container that have an identity of their own. */
typedef struct Objects {
    CC_VEC(PyObject *) at;
    CC_VEC(int) member; /* [object] of which member of the container it is a part */
    bool values;        /* of dicts, too, not only keys */
    CC_VEC(PyObject *) nan;
    bool inside; /* it is a container */
} Objects;

static void free_objects(Objects *s) {
    cc_vec_free(&s->at);
    cc_vec_free(&s->member);
    cc_vec_free(&s->nan);
}

/* Equal numbers and texts are interchangeable, but for NaNs (same.c). Functions may be matched by code. */
static bool by_identity(PyObject *o) {
    return cc_tens_is(o) || PyFunction_Check(o) || !(cc_value_const(o) || cc_value_ident(o));
}

static void collect(CcRec *rec, Objects *out, PyObject *o, int member, int depth);

static void collect_items(CcRec *rec, Objects *out, PyObject *const *items, Py_ssize_t n, int member, int depth) {
    for (Py_ssize_t i = 0; i < n; i++) collect(rec, out, items[i], member < 0 ? (int)i : member, depth);
}

static void collect_list(CcRec *rec, Objects *out, PyObject *iterable, int member, int depth) {
    PyObject *list = PySequence_List(iterable); /* of a C type: runs no Python code */
    if (list == NULL) cc_raised_clear();
    else collect_items(rec, out, PySequence_Fast_ITEMS(list), PyList_GET_SIZE(list), member, depth);
    Py_XDECREF(list); /* the iterable holds the objects */
}

static void collect_dict(CcRec *rec, Objects *out, PyObject *dict, int member, int depth) {
    PyObject *key, *value;
    Py_ssize_t pos = 0;
    for (int i = 0; PyDict_Next(dict, &pos, &key, &value); i++) {
        collect(rec, out, key, member < 0 ? i : member, depth);
        if (out->values) collect(rec, out, value, member < 0 ? i : member, depth);
    }
}

/* member < 0: o is the container itself. */
static void collect(CcRec *rec, Objects *out, PyObject *o, int member, int depth) {
    if (o == NULL || cc_plain(rec, o)) return;
    const bool in_c = !cc_python_class(Py_TYPE(o));
    const bool items = PyTuple_Check(o) || PyList_Check(o), dict = PyDict_Check(o), set = PyAnySet_Check(o);
    const bool view = cc_value_view(o) != NULL, deque = cc_known_is(o, CC_KNOWN_DEQUE);
    const bool container = items || dict || set || view || deque;
    if (Py_IS_TYPE(o, &PyDictProxy_Type) || (container && depth == 0)) {
        rec->opaque = Py_TYPE(o)->tp_name; /* not looked through */
        return;
    }
    if (cc_same_nan(o)) cc_vec_push(&out->nan, o);
    if (member < 0) out->inside = container;
    if (by_identity(o) && !(in_c && container)) {
        cc_vec_push(&out->at, o);
        cc_vec_push(&out->member, CC_MAX(member, 0));
    }
    if (PyMethod_Check(o)) collect(rec, out, PyMethod_GET_SELF(o), member, depth - 1);
    else if (items) collect_items(rec, out, PySequence_Fast_ITEMS(o), PySequence_Fast_GET_SIZE(o), member, depth - 1);
    else if (dict) collect_dict(rec, out, o, member, depth - 1);
    else if (set) {
        PyObject *item;
        Py_ssize_t pos = 0;
        for (int i = 0; cc_set_next(o, &pos, &item); i++, pos++)
            collect(rec, out, item, member < 0 ? i : member, depth - 1);
    } else if (view || deque) collect_list(rec, out, o, member, depth - 1);
    else if (in_c && Py_TYPE(o)->tp_richcompare != PyBaseObject_Type.tp_richcompare && cc_obj_dict(o) != NULL)
        collect_dict(rec, out, cc_obj_dict(o), member, depth - 1); /* SimpleNamespace */
}

/* False: there are too many pairs. */
static bool separate(CcRec *rec, PyObject *a, PyObject *b) {
    if (a == b || Py_TYPE(a) != Py_TYPE(b)) return true;
    if (rec->distinct.n > MAX_PAIRS) return false;
    cc_value_distinct(rec, a, b);
    return true;
}

static bool separate_all(CcRec *rec, const Objects *a, const Objects *b) {
    for (int i = 0; i < a->at.n; i++)
        for (int k = 0; k < b->at.n; k++)
            if (!separate(rec, a->at.at[i], b->at.at[k])) return false;
    return true;
}

static bool separate_members(CcRec *rec, const Objects *o) {
    for (int i = 0; i < o->at.n; i++)
        for (int k = 0; k < i; k++)
            if (o->member.at[i] != o->member.at[k] && !separate(rec, o->at.at[i], o->at.at[k])) return false;
    return true;
}

bool cc_distinct_members(CcRec *rec, PyObject *container, PyObject *item) {
    Objects members = {0}, items = {0};
    if (item != NULL) cc_same_met(rec, item);
    else cc_same_hashed(rec, container);
    if (item != NULL) collect(rec, &items, item, -1, DEPTH);
    if (item == NULL || items.at.n > 0) collect(rec, &members, container, -1, DEPTH);
    bool ok = members.at.n <= MAX_MEMBERS;
    if (ok) ok = item != NULL ? separate_all(rec, &items, &members) : separate_members(rec, &members);
    free_objects(&members);
    free_objects(&items);
    return ok;
}

/* C code that looks for a NaN among the items of a container finds another one, or the same. Without a container, floats
 * are compared by value. */
static void which_nans(CcRec *rec, const Objects *each, int n) {
    int nans = 0;
    bool inside = false;
    for (int i = 0; i < n; i++) {
        nans += each[i].nan.n;
        inside = inside || each[i].inside;
    }
    for (int i = 0; i < n && inside && nans > 1; i++)
        for (int k = 0; k < each[i].nan.n; k++) cc_value_which(rec, each[i].nan.at[k]);
}

/* values: of dicts are compared, too; within: so are each operand's own parts with one another. */
static void operands(CcRec *rec, PyObject *const *in, int n, bool values, bool within) {
    Objects *each = cc_mem_get(sizeof *each * ((size_t)n + 1));
    bool ok = true, any = within || n != 2;
    for (int i = n - 1; i >= 0 && (any || i == n - 1); i--) { /* `"text" in names` looks at no name */
        each[i].values = values;
        collect(rec, &each[i], in[i], -1, DEPTH);
        any = any || each[i].at.n > 0 || each[i].nan.n > 0;
    }
    which_nans(rec, each, n);
    for (int i = 0; i < n; i++) {
        for (int k = 0; ok && k < i; k++) {
            ok = (int64_t)each[i].at.n * each[k].at.n <= MAX_PAIRS;
            ok = ok && separate_all(rec, &each[i], &each[k]);
        }
        if (ok && within && each[i].at.n <= MAX_WITHIN) ok = separate_members(rec, &each[i]);
    }
    for (int i = 0; i < n; i++) free_objects(&each[i]);
    free(each);
    if (!ok && n > 0) rec->opaque = Py_TYPE(in[0])->tp_name; /* too many pairs */
}

/* == and < of two lists or tuples compare what is at the same place. */
static void places(CcRec *rec, PyObject *a, PyObject *b) {
    const Py_ssize_t n = CC_MIN(PySequence_Fast_GET_SIZE(a), PySequence_Fast_GET_SIZE(b));
    if (cc_plain(rec, a) || cc_plain(rec, b)) return;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *const in[] = {PySequence_Fast_ITEMS(a)[i], PySequence_Fast_ITEMS(b)[i]};
        if (!cc_value_const(in[0]) || !cc_value_const(in[1])) operands(rec, in, 2, true, false);
        for (int k = 0; k < 2 && cc_same_nan(in[0]) && cc_same_nan(in[1]); k++) cc_value_which(rec, in[k]);
    }
}

void cc_distinct_call(const CcBuiltin *b) {
    static const CcTrait meeting[] = {CC_TRAIT_HASHES,    CC_TRAIT_HASHES_ALL, CC_TRAIT_COUNTS,
                                      CC_TRAIT_MAKES_SET, CC_TRAIT_EQUALS,     CC_TRAIT_FINDS};
    const CcCalleeKind kind = b->callee->kind;
    const bool equals = kind == CC_CALLEE_PURE || kind == CC_CALLEE_ARITH;
    if (kind == CC_CALLEE_DICT_GET) return; /* cc_distinct_members, or a guard that looks the key up */
    const bool among = cc_callee_has(b->callee, CC_TRAIT_COMPARES) || cc_callee_has(b->callee, CC_TRAIT_ORDERS);
    bool met = equals || among || (cc_callee_has(b->callee, CC_TRAIT_TAKES_ITEMS) && PyDict_Check(b->c->in[0]));
    for (int i = 0; i < CC_COUNT(meeting); i++) met = met || cc_callee_has(b->callee, meeting[i]);
    if (met) operands(b->rec, b->c->in, b->c->n, equals, among);
}

static bool hashes(PyObject *o) { return PyDict_Check(o) || PyAnySet_Check(o) || cc_value_view(o) != NULL; }

/* For single keys: cc_distinct_members, or a guard that looks the key up. */
void cc_distinct_event(CcRec *rec, const CcEvent *ev) {
    switch (ev->kind) {
    case CC_EV_COMPARE:
        if ((PyList_CheckExact(ev->in[0]) && PyList_CheckExact(ev->in[1])) ||
            (PyTuple_CheckExact(ev->in[0]) && PyTuple_CheckExact(ev->in[1])))
            places(rec, ev->in[0], ev->in[1]);
        else operands(rec, ev->in, 2, true, false);
        return;
    case CC_EV_CONTAINS:
        if (!PyDict_Check(ev->in[0]) && !PyAnySet_Check(ev->in[0])) operands(rec, ev->in, 2, true, false);
        return;
    case CC_EV_BINOP:
        if (hashes(ev->in[0]) || hashes(ev->in[1])) operands(rec, ev->in, 2, false, false);
        return;
    case CC_EV_UPDATE:
        if (ev->arg == CC_INSN_DICT_UPDATE || ev->arg == CC_INSN_DICT_MERGE || ev->arg == CC_INSN_SET_UPDATE)
            operands(rec, (PyObject *const[]){ev->in[0], ev->in[ev->n - 1]}, 2, false, false);
        return;
    default: return;
    }
}
