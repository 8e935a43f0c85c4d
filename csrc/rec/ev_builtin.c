/* Calls of C callables that have a row in callee.def. The row of their kind (callee_kind.def) names the functions below
 * that handle a call; args.c handles the traits. */
#include "rec_events.h"

typedef CcGo (*Step)(const CcBuiltin *b);

static bool has(const CcBuiltin *b, CcTrait trait) { return cc_callee_has(b->callee, trait); }

static CcGo stop(const CcBuiltin *b, CcReason reason, const char *what) {
    return cc_rec_break(b->rec, b->act, reason, what);
}

static CcGo refuse(const CcBuiltin *b) { return stop(b, CC_R_UNKNOWN_CALL, b->callee->name); }

static PyObject *argument(const CcBuiltin *b, int i) { return i < b->c->n ? b->c->in[i] : NULL; }

static CcGo nothing(const CcBuiltin *b) {
    (void)b;
    return CC_OK;
}

/* ------------------------------------------------------------------ symbols among the operands */

/* max(v * 2 for v in d.values()): symbols among the items stay symbols in a list that is made first. */
static bool drains(const CcBuiltin *b) {
    PyObject *o = b->c->n == 1 && b->c->kwnames == NULL ? b->c->in[0] : NULL;
    if (o == NULL || b->rec->hints == NULL || b->rec->hints->at.n == 0) return false;
    return (PyGen_CheckExact(o) || cc_inside_passes_on(o)) && cc_value_origin(b->rec, o) == CC_O_FRESH;
}

/* sorted(rs), rs.sort(), max(rs, key=f): Python code orders numbers that vary. */
static CcGo ordered(const CcBuiltin *b) {
    if (!has(b, CC_TRAIT_CALLS_KEY) || b->c->n == 0) return CC_OK;
    const bool orders = has(b, CC_TRAIT_ORDERS), in_place = has(b, CC_TRAIT_CHANGES);
    if (!orders && !has(b, CC_TRAIT_DRAINS)) return CC_OK;
    const bool computed = orders && b->rec->trace != NULL && cc_number_varies(b->rec, b->c->in[0], 4);
    if (!in_place && !computed && drains(b)) return cc_backcall_drain(b->rec, b->act, b->ev, b->c->func, b->c->in[0]);
    if (!orders) return cc_ordered_pick(b->rec, b->act, b->ev, b->c, strcmp(b->callee->name, "max") == 0);
    const bool own = !in_place || cc_value_origin(b->rec, b->c->in[0]) == CC_O_FRESH;
    return own ? cc_ordered_sort(b->rec, b->act, b->ev, b->c, in_place) : CC_OK;
}

/* CC_DONE if the call becomes a step; C code that reads symbols in any other way makes them constants. */
static CcGo number_symbols(const CcBuiltin *b) {
    const CcCallSpec spec = cc_call_spec(b->c, b->callee->name);
    for (int i = 0; i < b->c->n; i++) cc_sym_fill(b->rec, b->c->in[i]);
    if (b->c->kwnames == NULL) return cc_sym_pure(b->rec, b->act, b->ev, &spec);
    cc_sym_settle_iterated(b->rec, b->c->in, b->c->n);
    return CC_OK;
}

static CcGo attr_symbols(const CcBuiltin *b) {
    return b->c->n == 2 ? cc_sym_attr(b->rec, b->act, b->ev, b->c->in[0], b->c->in[1]) : CC_OK;
}

static CcGo unseen_symbols(const CcBuiltin *b) {
    for (int i = 0; i < b->c->n; i++) cc_sym_fill(b->rec, b->c->in[i]);
    cc_sym_settle_iterated(b->rec, b->c->in, b->c->n);
    return CC_OK;
}

static CcGo read_symbols(const CcBuiltin *b) {
    const CcCallSpec spec = cc_call_spec(b->c, b->callee->name);
    if (b->c->n == 1 && has(b, CC_TRAIT_ASKS_LEN) && cc_sym_sized(b->rec, b->c->in[0])) {
        cc_attr_dunder(b->rec, b->c->in[0], "__len__");
        return cc_sym_call(b->rec, b->act, b->ev, &spec);
    }
    const bool moves = !has(b, CC_TRAIT_ORDERS) && !has(b, CC_TRAIT_MAKES_SET) && !has(b, CC_TRAIT_ASKS_LEN);
    for (int i = 0; moves && i < b->c->n; i++) cc_sym_fill(b->rec, b->c->in[i]);
    return b->c->kwnames != NULL && !has(b, CC_TRAIT_HOLDS) ? unseen_symbols(b) : CC_OK;
}

static CcGo moved_symbols(const CcBuiltin *b) {
    if (b->c->kwnames != NULL) (void)unseen_symbols(b);
    return cc_args_moved(b) ? CC_OK : stop(b, CC_R_DATA_SCALAR, b->callee->name);
}

/* Python code that is recorded does the same in a dict from outside, and reads or writes nothing but the key. */
static CcGo setdefault_symbols(const CcBuiltin *b) {
    PyObject *dict = b->c->in[0], *key = b->c->in[1];
    const bool by_key = PyDict_CheckExact(dict) || Py_IS_TYPE(dict, cc_known_type(CC_KNOWN_DEFAULTDICT));
    const bool plain = cc_value_const(key) || cc_value_ident(key);
    if (!by_key || !plain || b->c->kwnames != NULL || b->c->n > 3 || cc_value_source(b->rec, dict) < 0)
        return moved_symbols(b);
    PyObject *f;
    CC_RETRY_ALLOC(f, cc_backcall_template(b->rec, "defaulter", NULL));
    return cc_backcall_perform(b->ev, f, b->c->in, b->c->n);
}

static CcGo key_symbols(const CcBuiltin *b) {
    bool within = false;
    for (int i = 0; i < b->c->n; i++) within = within || cc_sym_within(b->rec, b->c->in[i], 4);
    if (within && b->c->n > 1 && has(b, CC_TRAIT_SETS_ITEM)) cc_sym_settle(b->rec, b->c->in[1], 3);
    return CC_OK;
}

/* ------------------------------------------------------------------ before: guards on the operands */

static CcGo contents_before(const CcBuiltin *b) { return cc_args_read(b); }

static CcGo print_before(const CcBuiltin *b) { return stop(b, CC_R_PRINT, b->callee->name); }

static CcGo class_before(const CcBuiltin *b) { return stop(b, CC_R_CLASS, "class statement"); }

static CcGo state_before(const CcBuiltin *b) { return b->c->n == 0 ? CC_OK : refuse(b); }

/* random.random(): a number that each replay draws anew, at its place among the nodes. */
static CcGo draw_before(const CcBuiltin *b) { return b->c->n == 1 ? CC_OK : refuse(b); }

static CcGo group_before(const CcBuiltin *b) { return cc_args_guard(b, 0, 3); }

static CcGo type_before(const CcBuiltin *b) {
    if (b->c->n != 1) return stop(b, CC_R_CLASS, "type()");
    cc_attr_class_of(b->rec, b->c->in[0]);
    return CC_OK;
}

/* As the instruction: C code would compare copies (resume.c, sym.c). */
static CcGo is_before(const CcBuiltin *b) {
    if (b->c->n != 2 || b->c->kwnames != NULL) return CC_OK; /* raises */
    const bool negated = strcmp(b->callee->name, "_operator.is_not") == 0;
    b->ev->result = PyBool_FromLong(cc_same_is(b->rec, b->act, b->c->in) != negated);
    return CC_DONE;
}

static CcGo classes_before(const CcBuiltin *b) {
    PyObject *self = PyCFunction_Check(b->c->func) ? PyCFunction_GET_SELF(b->c->func) : NULL; /* C.mro */
    if (self != NULL && PyType_Check(self)) (void)cc_given_class(b->rec, self, 0);
    for (int i = 0; i < b->c->n; i++)
        if (!cc_given_class(b->rec, b->c->in[i], 4)) return stop(b, CC_R_UNKNOWN_VALUE, cc_type_name(b->c->in[i]));
    return CC_OK;
}

/* Whether copy.deepcopy made the memo itself: a caller that passes a memo may read it. */
static bool own_memo(CcRec *rec, const CcAct *act) {
    for (Py_ssize_t i = 0; i < act->co->co_nlocalsplus; i++) {
        PyObject *memo = cc_act_get(act, (int)i), *name = PyTuple_GET_ITEM(act->co->co_localsplusnames, i);
        if (memo == NULL || memo == Py_None || !cc_text_is(name, "memo")) continue;
        const CcProv *p = cc_value_find(rec, memo);
        return p != NULL && p->origin == CC_O_FRESH && p->site_co != NULL &&
               PyUnicode_Compare(p->site_co->co_filename, act->co->co_filename) == 0;
    }
    return true; /* it calls id(x) before it makes the memo */
}

/* Modules that keep ids only to detect objects that contain themselves. */
static bool looks_for_cycles(const CcAct *act) {
    return cc_rec_in_module(act, "dataclasses") || cc_rec_in_module(act, "inspect") ||
           (cc_rec_in_module(act, "reprlib") && cc_text_is(act->co->co_name, "wrapper")); /* recursive_repr's */
}

/* Tensor.__hash__ calls id(): a hashed tensor is guarded by identity elsewhere. */
static bool hashes_tensor(const CcAct *act, PyObject *tensor) {
    PyObject *name = cc_obj_intern("__hash__"), *f = cc_type_lookup(Py_TYPE(tensor), name);
    Py_DECREF(name);
    return f != NULL && PyFunction_Check(f) && PyFunction_GET_CODE(f) == (PyObject *)act->co;
}

/* The address of what a number, a text or a tuple is a copy of. CC_OK: it is no copy. */
static CcGo id_of_copy(const CcBuiltin *b, PyObject *o) {
    PyObject *given;
    const int guard = cc_sym_given(b->rec, o, &given);
    if (guard < 0) return CC_OK;
    cc_guard_add_check(&b->rec->trace->guards, guard, CC_CHK_IDENT, given, -1);
    b->ev->result = PyLong_FromVoidPtr(given);
    return CC_DONE;
}

static CcGo id_before(const CcBuiltin *b) {
    PyObject *o = argument(b, 0);
    if (o == NULL) return CC_OK;
    if (cc_tens_is(o)) return hashes_tensor(b->act, o) ? CC_OK : stop(b, CC_R_UNKNOWN_CALL, "id of a tensor");
    if (cc_rec_in_module(b->act, "copy") && own_memo(b->rec, b->act)) {
        cc_value_copied(b->rec, o); /* a key of deepcopy()'s memo: it only needs to differ from the other keys */
        return CC_OK;
    }
    const CcGo go = id_of_copy(b, o);
    if (go != CC_OK) return go;
    if (cc_value_origin(b->rec, o) == CC_O_FRESH && !looks_for_cycles(b->act)) return stop(b, CC_R_ADDRESS, "id");
    cc_value_which(b->rec, o);
    return CC_OK;
}

static PyObject *dict_name(void) {
    static PyObject *name;
    if (name == NULL) name = cc_obj_intern("__dict__");
    return name;
}

static CcGo vars_before(const CcBuiltin *b) {
    return b->c->n == 1 ? cc_attr_before(b->rec, b->act, b->c->in[0], dict_name()) : refuse(b);
}

/* descriptor.__get__(o): the name under which o's own lookup finds the descriptor; NULL: it does not find it, or o is a
 * tensor. */
static PyObject *read_by(const CcCalled *c) {
    if (c->kwnames != NULL || cc_tens_is(c->in[1])) return NULL;
    if (!Py_IS_TYPE(c->in[0], &PyGetSetDescr_Type) && !Py_IS_TYPE(c->in[0], &PyMemberDescr_Type)) return NULL;
    PyObject *name = ((PyDescrObject *)c->in[0])->d_name;
    return cc_type_lookup(Py_TYPE(c->in[1]), name) == c->in[0] ? name : NULL;
}

static CcGo descr_get_before(const CcBuiltin *b) {
    PyObject *name = read_by(b->c);
    return name != NULL ? cc_attr_before(b->rec, b->act, b->c->in[1], name) : refuse(b);
}

static CcGo attr_before(const CcBuiltin *b) {
    PyObject *const *in = b->c->in;
    if (b->c->n < 2) return CC_OK;
    if (has(b, CC_TRAIT_GENERIC)) return cc_attr_generic_before(b->rec, b->act, in[0], in[1]);
    const CcGo done = cc_dunder_get(b->rec, b->act, b->ev, in, b->c->n, has(b, CC_TRAIT_UNSEEN));
    return done == CC_OK ? cc_attr_before(b->rec, b->act, in[0], in[1]) : done;
}

/* delattr and object.__delattr__ share the rows of setattr. */
static bool is_delattr(const CcBuiltin *b) { return strstr(b->callee->name, "delattr") != NULL; }

static CcGo setattr_before(const CcBuiltin *b) {
    PyObject *const *in = b->c->in;
    if (b->c->n < 2 || is_delattr(b) != (b->c->n == 2)) return CC_OK; /* raises */
    if (has(b, CC_TRAIT_GENERIC)) return cc_attr_generic_store_before(b->rec, b->act, in[0], in[1], argument(b, 2));
    const CcGo done = cc_dunder_set(b->rec, b->act, b->ev, in[0], in[1], argument(b, 2));
    return done == CC_OK ? cc_attr_store_before(b->rec, b->act, in[0], in[1], argument(b, 2)) : done;
}

/* dict.get, __contains__ and __getitem__; the last looks for __missing__. */
static CcGo look_up(const CcBuiltin *b) {
    PyObject *const *in = b->c->in;
    if (!PyDict_Check(in[0])) return CC_OK;
    if (strcmp(b->callee->name, "dict.__getitem__") == 0 && cc_item_stores(b->act, in[0], in[1]))
        return stop(b, CC_R_DIRTY_READ, cc_type_name(in[0]));
    cc_item_look(b->rec, b->act, in[0], in[1]);
    return CC_OK;
}

static CcGo dict_get_before(const CcBuiltin *b) {
    CcRec *rec = b->rec;
    PyObject *dict = b->c->in[0], *key = b->c->in[1];
    if (cc_value_found_by_address(rec, dict, key)) return look_up(b);
    const CcDirty d = cc_value_dirty_key(rec, dict) == CC_DIRTY_ALL ? cc_value_dirty(rec, dict) : CC_DIRTY_NO;
    if (cc_value_symbolic(rec, key)) cc_value_pin(rec, key);
    cc_sym_settle(rec, key, 3);
    if (d == CC_DIRTY_ALL) return stop(b, CC_R_DIRTY_READ, cc_type_name(dict));
    if (cc_value_origin(rec, dict) == CC_O_FRESH && !cc_distinct_members(rec, dict, key))
        return stop(b, CC_R_TENSOR_ITER, b->callee->name);
    const bool plain = cc_value_const(key) || cc_value_ident(key) || cc_number_dict_key(rec, key);
    return plain ? look_up(b) : cc_args_guard(b, 0, 1);
}

/* operator.getitem and setitem on a tensor are equivalent to x[i] and x[i] = v. */
static CcEvent item_event(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    return (CcEvent){
        .kind = c->n == 2 ? CC_EV_SUBSCR : CC_EV_STORE_SUBSCR, .in = c->in, .n = c->n, .result = b->result};
}

static CcGo setitem_before(const CcBuiltin *b) {
    if (b->c->n != 3 || !cc_tens_is(b->c->in[0])) return refuse(b);
    CcEvent ev = item_event(b);
    return cc_op_before(b->rec, b->act, &ev);
}

static CcGo getitem_before(const CcBuiltin *b) {
    CcEvent ev = item_event(b);
    if (b->c->n == 2 && cc_tens_is(b->c->in[0])) return cc_op_before(b->rec, b->act, &ev);
    if (b->c->n == 2 && cc_item_stores(b->act, b->c->in[0], b->c->in[1]))
        return stop(b, CC_R_DIRTY_READ, cc_type_name(b->c->in[0]));
    return contents_before(b);
}

static CcGo next_before(const CcBuiltin *b) {
    CcEvent ev = {.kind = CC_EV_NEXT, .in = b->c->in, .n = 1};
    return cc_op_before(b->rec, b->act, &ev);
}

/* Sums of symbols are symbols; adds: of such operands. */
static CcGo sum_of(const CcBuiltin *b, bool adds) {
    if (!adds && cc_args_computed(b)) return stop(b, CC_R_DATA_SCALAR, b->callee->name);
    return cc_args_guard(b, 0, 1);
}

/* Tensors, and numbers that no node computes; the recorder sees what an iterator gives. */
static bool known_terms(const CcBuiltin *b, PyObject *o) {
    return (cc_number_terms(o) || cc_inside_iterates(o)) && !cc_number_varies(b->rec, o, 4);
}

static CcGo sum_before(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    const bool start = c->n == 2 && cc_call_positional(c) == 1 && cc_text_is(PyTuple_GET_ITEM(c->kwnames, 0), "start");
    if (c->kwnames != NULL && !start) return refuse(b); /* the C code raises */
    PyObject *items = c->in[0], *with = c->in[c->n - 1];
    const bool whole = cc_number_whole(items) && cc_number_whole(with);
    if (!whole) cc_sym_fill(b->rec, items);
    return sum_of(b, whole || (known_terms(b, items) && known_terms(b, with)));
}

static CcGo reduce_before(const CcBuiltin *b) {
    PyObject *items = b->c->in[1], *with = b->c->in[b->c->n - 1];
    const bool whole = cc_number_whole(items) && cc_number_whole(with);
    cc_sym_fill(b->rec, items);
    return sum_of(b, whole || (known_terms(b, items) && known_terms(b, with)));
}

static CcGo init_before(const CcBuiltin *b) {
    if (has(b, CC_TRAIT_FILLS) && b->c->n > 0 && cc_value_source(b->rec, b->c->in[0]) >= 0) return refuse(b);
    return contents_before(b);
}

/* dict.__delitem__ and its kin bypass the order of an OrderedDict, so it can't be rebuilt afterwards. */
static bool spoils_order(const CcBuiltin *b) {
    return PyODict_Check(b->c->in[0]) && cc_args_class(b->c->func) == &PyDict_Type;
}

typedef CC_VEC(PyObject *) Keys; /* borrowed */

enum { FEW_KEYS = 16 }; /* each costs a guard on what is replaced there */

/* The keys that outside.update(other, key=value) writes. False: `other` is no dict of a few constant keys. */
static bool updated_keys(const CcBuiltin *b, Keys *keys) {
    PyObject *const *in = b->c->in, *key;
    Py_ssize_t pos = 0;
    bool all = cc_call_positional(b->c) < 2 || (PyDict_Check(in[1]) && PyDict_GET_SIZE(in[1]) <= FEW_KEYS);
    while (all && cc_call_positional(b->c) > 1 && PyDict_Next(in[1], &pos, &key, NULL)) {
        all = cc_value_const(key);
        cc_vec_push(keys, key);
    }
    for (int i = 0; i < cc_obj_count(b->c->kwnames); i++) cc_vec_push(keys, PyTuple_GET_ITEM(b->c->kwnames, i));
    return all;
}

/* Looking a key up runs no code of the user's. */
static bool plain_keys(PyObject *dict) {
    Py_ssize_t pos = 0;
    PyObject *key;
    while (PyDict_Next(dict, &pos, &key, NULL))
        if (!cc_value_const(key)) return false;
    return true;
}

static bool updates(const CcBuiltin *b) {
    return PyDict_Check(b->c->in[0]) && has(b, CC_TRAIT_TAKES_ITEMS) && cc_value_source(b->rec, b->c->in[0]) >= 0;
}

/* d.update() replaces an object whose end is noticed; or it may, if it is not known which ones it replaces. */
static bool update_ends(const CcBuiltin *b) {
    PyObject *dict = b->c->in[0], *value;
    Keys keys = {0};
    bool ends = false;
    Py_ssize_t pos = 0;
    if (!updates(b)) return false;
    if (updated_keys(b, &keys) && plain_keys(dict)) {
        for (int i = 0; i < keys.n && !ends; i++)
            ends = cc_finalizers_replaces(b->rec, PyDict_GetItemWithError(dict, keys.at[i]), NULL);
    } else {
        while (!ends && PyDict_Next(dict, &pos, NULL, &value)) ends = cc_finalizers_replaces(b->rec, value, NULL);
    }
    cc_vec_free(&keys);
    return ends;
}

/* The places that d.update() overwrites, or, if it is not known which, all places of a small dict. */
static void note_updated(const CcBuiltin *b) {
    PyObject *dict = b->c->in[0], *key;
    Keys keys = {0};
    Py_ssize_t pos = 0;
    if (!updates(b)) return;
    if (!updated_keys(b, &keys)) {
        keys.n = 0;
        while (PyDict_GET_SIZE(dict) <= FEW_KEYS && PyDict_Next(dict, &pos, &key, NULL))
            if (cc_value_const(key)) cc_vec_push(&keys, key);
    }
    for (int i = 0; i < keys.n; i++)
        cc_value_written(b->rec, CC_SRC_KEY, cc_value_source(b->rec, dict), keys.at[i], false);
    cc_vec_free(&keys);
}

/* The items that the container in the first argument takes from the second. */
static CcGo items_before(const CcBuiltin *b) {
    PyObject *self = b->c->in[0], *items = b->c->in[1];
    if (cc_number_text(b->rec, items) || (PyDict_Check(self) && !cc_args_keys_known(b->rec, items)))
        return stop(b, CC_R_DATA_SCALAR, b->callee->name);
    cc_sym_fill(b->rec, items);
    return cc_tens_is(items) ? stop(b, CC_R_TENSOR_ITER, b->callee->name) : cc_args_guard(b, 1, 1);
}

CcGo cc_builtin_extends(CcRec *rec, CcAct *act, PyObject *list, PyObject *items) {
    static const CcCallee extend = {.kind = CC_CALLEE_WRITE, .name = "list +="};
    CcCalled c = {.in = {list, items}, .n = 2};
    const CcBuiltin b = {.rec = rec, .act = act, .c = &c, .callee = &extend};
    const CcGo go = cc_args_known(&b);
    return go == CC_OK ? items_before(&b) : go;
}

static CcGo write_before(const CcBuiltin *b) {
    PyObject *const *in = b->c->in;
    const int n = cc_call_positional(b->c);
    if (spoils_order(b)) return refuse(b);
    if (update_ends(b)) return stop(b, CC_R_FINALISED, NULL);
    cc_value_will_write(b->rec, in[0]);
    if (has(b, CC_TRAIT_HASHES) && n > 1 && !cc_distinct_members(b->rec, in[0], in[1]))
        return stop(b, CC_R_TENSOR_ITER, b->callee->name);
    return has(b, CC_TRAIT_TAKES_ITEMS) && n > 1 ? items_before(b) : CC_OK;
}

static CcGo change_before(const CcBuiltin *b) {
    PyObject *self = b->c->in[0];
    if (spoils_order(b)) return refuse(b);
    /* discard() and its kin don't depend on the order of a set's members */
    if (!has(b, CC_TRAIT_TAKES_OUT) && cc_inside_members(b->rec, self)) {
        cc_value_will_write(b->rec, self);
        return cc_args_guard(b, 1, 1);
    }
    if (has(b, CC_TRAIT_ORDERS)) return contents_before(b);
    const CcGo read = cc_args_guard(b, 0, has(b, CC_TRAIT_EQUALS) ? 4 : 1);
    if (read == CC_OK) (void)cc_finalizers_in_container(b->rec, self);
    return read;
}

/* len() of a list, tuple or dict from outside reads none of its items, so that numbers among them may vary. */
static bool reads_length(CcRec *rec, PyObject *o) {
    const bool sequence = PyList_CheckExact(o) || PyTuple_CheckExact(o);
    if (!(sequence || PyDict_CheckExact(o)) || cc_value_dirty(rec, o) != CC_DIRTY_NO) return false;
    const int source = cc_value_known(rec, o) ? -1 : cc_value_source(rec, o);
    if (source < 0) return false;
    if (sequence) cc_inside_length(rec, source, PySequence_Fast_ITEMS(o), PySequence_Fast_GET_SIZE(o));
    else cc_inside_size(rec, source, PyDict_GET_SIZE(o));
    return true;
}

static CcGo read_before(const CcBuiltin *b) {
    const bool counts = b->c->n == 1 && has(b, CC_TRAIT_ASKS_LEN); /* a set's members in any order */
    PyObject *of = counts ? b->c->in[0] : NULL;
    return counts && (cc_inside_members(b->rec, of) || reads_length(b->rec, of)) ? CC_OK : contents_before(b);
}

/* ------------------------------------------------------------------ perform */

static CcGo sum(const CcBuiltin *b) { return cc_backcall_sum(b->rec, b->act, b->ev, b->c->func, b->c->in, b->c->n); }

static CcGo reduce(const CcBuiltin *b) { return cc_backcall_reduce(b->rec, b->act, b->ev, b->c->in, b->c->n); }

static CcGo pickle(const CcBuiltin *b) { return cc_opaque_reduce(b->rec, b->act, b->ev, b->c->in, b->c->n); }

static CcGo removed(const CcBuiltin *b) {
    return has(b, CC_TRAIT_EQUALS) ? cc_backcall_remove(b->rec, b->act, b->ev, b->c->in, b->c->n) : CC_OK;
}

/* ------------------------------------------------------------------ after: effects and provenance of the result */

/* getattr(o, name, default) returned the default because the attribute is absent. An attribute that is the default
 * object itself matters only if C code provides it: all other lookups were followed before. */
static bool is_default(const CcBuiltin *b) {
    const CcCalled *c = b->c;
    if (c->n < 3 || b->result != c->in[2]) return false;
    PyObject *d = PyUnicode_Check(c->in[1]) ? cc_type_lookup(Py_TYPE(c->in[0]), c->in[1]) : NULL;
    if (d == NULL || (!Py_IS_TYPE(d, &PyMemberDescr_Type) && !Py_IS_TYPE(d, &PyGetSetDescr_Type))) return true;
    PyObject *v = Py_TYPE(d)->tp_descr_get(d, c->in[0], (PyObject *)Py_TYPE(c->in[0]));
    if (v == NULL) cc_raised_clear();
    Py_XDECREF(v);
    return v == NULL;
}

static CcGo attr_after(const CcBuiltin *b) {
    PyObject *const *in = b->c->in;
    if (b->c->n < 2) return CC_OK;
    PyObject *v = has(b, CC_TRAIT_UNSEEN) || is_default(b) ? NULL : b->result;
    return (has(b, CC_TRAIT_GENERIC) ? cc_attr_generic_after : cc_attr_after)(b->rec, b->act, in[0], in[1], v);
}

static CcGo vars_after(const CcBuiltin *b) {
    return cc_attr_after(b->rec, b->act, b->c->in[0], dict_name(), b->result);
}

static CcGo descr_get_after(const CcBuiltin *b) {
    return cc_attr_after(b->rec, b->act, b->c->in[1], read_by(b->c), b->result);
}

static void stored(const CcBuiltin *b) { cc_rec_stored(b->rec, b->c->n > 0 ? b->c->in[0] : NULL); }

static CcGo setattr_after(const CcBuiltin *b) {
    PyObject *const *in = b->c->in;
    CcGo go = CC_OK;
    if (b->result != NULL)
        go = (has(b, CC_TRAIT_GENERIC) ? cc_attr_generic_store : cc_attr_store)(b->rec, b->act, in[0], in[1],
                                                                                argument(b, 2));
    else if (is_delattr(b) && b->c->n == 2 && PyUnicode_Check(in[1]))
        go = cc_attr_not_there(b->rec, b->act, in[0], in[1]);
    stored(b);
    return go;
}

/* ABCMeta.register changes results of isinstance; CPython counts all registrations in one counter. */
static CcGo abc_after(const CcBuiltin *b) {
    cc_value_guard_module_call(b->rec, "_abc", "get_cache_token");
    return CC_OK;
}

static CcGo super_after(const CcBuiltin *b) {
    if (b->c->n == 0) cc_name_super(b->rec, b->act);
    return CC_OK;
}

static CcGo state_after(const CcBuiltin *b) {
    cc_value_read(b->rec, CC_SRC_CALL, -1, b->c->func, 0, 0, b->result);
    return CC_OK;
}

static CcGo draw_after(const CcBuiltin *b) {
    if (b->result == NULL) return CC_OK;
    CcCallSpec spec = cc_call_spec(b->c, b->callee->name);
    spec.flags = CC_N_EFFECT;
    spec.safe = true;
    b->rec->trace->draws = true;
    return cc_node_add(b->rec, b->act, &spec, b->result);
}

static CcGo group_after(const CcBuiltin *b) {
    if (b->result != NULL) cc_backcall_made(b->rec, b->result);
    return CC_OK;
}

static CcGo asked_after(const CcBuiltin *b) {
    if (has(b, CC_TRAIT_ASKS_LEN) && b->c->n == 1) cc_attr_dunder(b->rec, b->c->in[0], "__len__");
    if (has(b, CC_TRAIT_ASKS_ITER) && b->c->n == 1) cc_attr_dunder(b->rec, b->c->in[0], "__iter__");
    return CC_OK;
}

static CcGo read_after(const CcBuiltin *b) {
    if (b->c->n > 0 && cc_value_unknown(b->rec, b->result)) cc_value_pairs(b->rec, b->result, b->c->in[0]);
    return asked_after(b);
}

static CcGo init_after(const CcBuiltin *b) {
    stored(b);
    return CC_OK;
}

static CcGo ctx_get_after(const CcBuiltin *b) {
    cc_context_got(b->rec, b->c->in[0], argument(b, 1), b->result);
    return CC_OK;
}

static CcGo context_written(const CcBuiltin *b) {
    const CcCallSpec spec = cc_call_spec(b->c, b->callee->name);
    const CcGo go = cc_node_effect(b->rec, b->act, &spec, b->result);
    stored(b);
    return go;
}

static CcGo ctx_set_after(const CcBuiltin *b) {
    if (b->result == NULL) return CC_OK;
    cc_context_set(b->rec, b->c->in[0], b->result);
    return context_written(b);
}

static CcGo ctx_reset_after(const CcBuiltin *b) {
    if (b->result == NULL) return CC_OK; /* another context's token, or a used one */
    if (cc_context_reset(b->rec, b->c->in[0], b->c->in[1])) return context_written(b);
    return cc_rec_poison(b->rec, b->act, CC_R_UNKNOWN_VALUE, b->callee->name);
}

static CcGo item_after(const CcBuiltin *b) {
    CcEvent ev = item_event(b);
    if (!cc_tens_is(b->c->in[0])) return CC_OK;
    return b->result == NULL ? cc_rec_poison(b->rec, b->act, CC_R_TENSOR_VALUE, "an operation that raises")
                             : cc_op_after(b->rec, b->act, &ev);
}

static CcGo next_after(const CcBuiltin *b) {
    CcEvent ev = {.kind = CC_EV_NEXT, .in = b->c->in, .n = 1, .result = b->result};
    return cc_op_after(b->rec, b->act, &ev);
}

static CcGo arith_after(const CcBuiltin *b) {
    CcRec *rec = b->rec;
    const CcCalled *c = b->c;
    if (b->result == NULL || !cc_call_any_tensor(c, 2)) return CC_OK;
    if (rec->trace->graph->node.n != cc_rec_frame(rec, b->act)->call_nodes) return CC_OK;
    if (!cc_tens_is(b->result)) return cc_rec_poison(rec, b->act, CC_R_TENSOR_VALUE, b->callee->name);
    for (int i = 0; i < c->n; i++)
        if (!cc_node_nameable(rec, c->in[i], 3)) return cc_rec_poison(rec, b->act, CC_R_UNKNOWN_VALUE, b->callee->name);
    CcBound bound;
    CcCallSpec spec = cc_call_spec(c, b->callee->name);
    if (cc_bind_call(c->func, c->in, cc_call_positional(c), c->kwnames, &bound) == 0) spec.bound = &bound;
    return cc_node_add(rec, b->act, &spec, b->result);
}

bool cc_builtin_stored(CcRec *rec, CcAct *act) { return rec->stores != cc_rec_frame(rec, act)->call_stores; }

void cc_builtin_will_take(CcRec *rec, CcAct *act, PyObject *self) {
    CcRecFrame *f = cc_rec_frame(rec, act);
    if (f != NULL && PyList_Check(self)) f->call_size = PyList_GET_SIZE(self);
}

/* Keeps the order of an OrderedDict. */
static PyObject *copy_dict(PyObject *dict) {
    PyObject *keys = PyODict_Check(dict) ? cc_dict_keys(dict) : NULL,
             *copy = keys != NULL ? PyDict_New() : PyDict_Copy(dict);
    for (Py_ssize_t i = 0; copy != NULL && keys != NULL && i < PyList_GET_SIZE(keys); i++) {
        PyObject *key = PyList_GET_ITEM(keys, i), *value = PyDict_GetItemWithError(dict, key);
        if (value == NULL || PyDict_SetItem(copy, key, value) < 0) Py_CLEAR(copy);
    }
    Py_XDECREF(keys);
    return copy;
}

PyObject *cc_builtin_taken(CcRec *rec, CcAct *act, PyObject *self, PyObject *with) {
    if (with == self) return self; /* in a replay, it has the same content at this point */
    PyObject *items = NULL;
    if (PyList_Check(self)) { /* the items after its former end */
        PyObject *tail = PyList_GetSlice(self, cc_rec_frame(rec, act)->call_size, PyList_GET_SIZE(self));
        items = tail != NULL ? PyList_AsTuple(tail) : NULL;
        Py_XDECREF(tail);
    } else if (!PyIter_Check(with) && !cc_op_python_method(with, "__iter__") && !cc_op_python_method(with, "keys")) {
        items = PyDict_Check(with) && PyDict_Check(self)         ? copy_dict(with)
                : PySet_CheckExact(with) && PyAnySet_Check(self) ? cc_set_clone(with) /* sets grow ahead for a set */
                                                                 : PySequence_Tuple(with);
    }
    cc_raised_clear();
    if (items == NULL) return NULL;
    cc_vec_push(&rec->keep, items);
    cc_value_pairs(rec, items, with);
    cc_value_fresh(rec, items);
    return items;
}

static CcGo write_effect(const CcBuiltin *b, int source) {
    CcRec *rec = b->rec;
    const CcCalled *c = b->c;
    PyObject *self = c->in[0], *in[CC_CALL_ARGS];
    memcpy(in, c->in, sizeof *in * (size_t)c->n);
    for (int i = 1; has(b, CC_TRAIT_TAKES_ITEMS) && i < cc_call_positional(c); i++) {
        /* the items are those that the argument held at this point */
        in[i] = cc_builtin_taken(rec, b->act, self, in[i]);
        if (in[i] == NULL) return cc_rec_poison(rec, b->act, CC_R_OUTSIDE_ITER, b->callee->name);
    }
    if (cc_builtin_stored(rec, b->act)) return cc_rec_poison(rec, b->act, CC_R_DIRTY_READ, cc_type_name(self));
    note_updated(b);
    /* guards before the call cover the whole content that is read and written */
    const bool known = has(b, CC_TRAIT_READS_SELF) && cc_value_tracked(self);
    cc_value_wrote(rec, self, known ? CC_DIRTY_KNOWN : CC_DIRTY_ALL);
    cc_vec_push(&rec->written, source);
    CcCallSpec spec = cc_call_spec(c, b->callee->name);
    spec.in = in;
    return cc_node_effect(rec, b->act, &spec, b->result);
}

static CcGo write_after(const CcBuiltin *b) {
    const bool takes = has(b, CC_TRAIT_TAKES_ITEMS);
    const int source = b->c->n > 0 ? cc_value_source(b->rec, b->c->in[0]) : -1;
    CcGo go = CC_OK;
    if (source >= 0 && b->result != NULL) go = write_effect(b, source);
    else if (source >= 0 && (takes || has(b, CC_TRAIT_ORDERS))) /* it may have written something before it raised */
        go = cc_rec_poison(b->rec, b->act, CC_R_OUTSIDE_ITER, b->callee->name);
    else if (b->result != NULL && takes && b->c->n > 1) cc_value_pairs(b->rec, b->c->in[0], b->c->in[1]);
    stored(b);
    return go;
}

/* ------------------------------------------------------------------ the kinds */

static const struct Kind {
    int least;
    Step symbols, before, perform, after;
} kinds[] = {
#define CC_CALLEE_KIND(id, reads, least, traits, symbols, before, perform, after, doc)                                 \
    {least, symbols, before, perform, after},
#define CC_TRAIT(id, doc)
#include "callee_kind.def"
#undef CC_CALLEE_KIND
#undef CC_TRAIT
};

static const struct Kind *kind_of(const CcBuiltin *b) { return &kinds[b->callee->kind]; }

static CcGo known_before(const CcBuiltin *b) {
    const CcGo go = cc_args_known(b);
    return go == CC_OK ? kind_of(b)->before(b) : go;
}

/* max(zip(a, b)) returns one of zip's tuples; zip may hold a reference to its last tuple in order to reuse it. */
static bool a_pair(const CcCalled *c, PyObject *result) {
    return c->n == 1 && PyTuple_CheckExact(result) &&
           (Py_IS_TYPE(c->in[0], &PyZip_Type) || Py_IS_TYPE(c->in[0], &PyEnum_Type));
}

CcGo cc_builtin_after(CcRec *rec, CcAct *act, CcCalled *c, const CcCallee *callee, PyObject *result) {
    const CcBuiltin b = {.rec = rec, .act = act, .c = c, .callee = callee, .result = result};
    cc_number_hashed(rec, result);
    if (c->n > 0) cc_number_hashed(rec, c->in[0]);
    const CcGo go = kind_of(&b)->after(&b);
    const bool filled =
        c->n > 0 && PyDict_Check(c->in[0]) && (has(&b, CC_TRAIT_TAKES_ITEMS) || has(&b, CC_TRAIT_COUNTS));
    if (go == CC_OK && filled && cc_value_origin(rec, c->in[0]) == CC_O_FRESH &&
        !cc_distinct_members(rec, c->in[0], NULL))
        return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, callee->name);
    if (go == CC_OK && result != NULL && cc_value_wraps(result)) cc_value_fresh(rec, result);
    if (go != CC_OK || !cc_value_unknown(rec, result)) return go;
    cc_same_hashed(rec, result);
    const bool copy = c->n == 1 && PyDict_Check(c->in[0]); /* of a dict */
    if (!copy && (PyAnySet_Check(result) || PyDict_Check(result)) && !cc_distinct_members(rec, result, NULL))
        return cc_rec_poison(rec, act, CC_R_TENSOR_ITER, callee->name);
    if (PyAnySet_Check(result) && !cc_number_settle(rec, result, 2)) /* C code has hashed what a function gave */
        return cc_rec_poison(rec, act, CC_R_DATA_SCALAR, callee->name);
    if (Py_REFCNT(result) != 1 && !a_pair(c, result) && !has(&b, CC_TRAIT_GIVES))
        return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, callee->name);
    cc_value_fresh(rec, result);
    return CC_OK;
}

/* Calls that pass C functions to C code: map(torch.sin, xs), sorted(rows, key=len). Passes Python wrappers instead, so
 * that the recorder sees their calls. CC_OK: there are no such arguments. */
static CcGo call_back(const CcBuiltin *b) {
    CcRec *rec = b->rec;
    CcCalled *c = b->c;
    int at[CC_CALLBACKS], wraps = 0;
    const int n = cc_args_callbacks(b, at);
    for (int i = 0; i < n; i++) wraps += cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_WRAP;
    /* accumulate() without a function: C code adds, unseen */
    const bool adds = has(b, CC_TRAIT_ADDS) && n == 0 && cc_call_positional(c) == 1 && c->kwnames == NULL;
    if (wraps == 0 && !adds) return CC_OK;
    for (int i = 0; i < n; i++)
        if (cc_backcall_kind(rec, c->in[at[i]]) == CC_BACK_WRAP &&
            (c->in[at[i]] = cc_backcall_wrap(rec, c->in[at[i]])) == NULL)
            return refuse(b);
    for (int i = 0; i < c->n; i++) cc_sym_fill(rec, c->in[i]);
    if (adds) c->in[c->n++] = cc_backcall_add(rec);
    const CcGo go = known_before(b);
    if (go != CC_OK) return go;
    /* rec->keep drops its references if the recording is given up */
    for (int i = 0; i < c->n; i++) Py_INCREF(c->in[i]);
    PyObject *kwnames = Py_XNewRef(c->kwnames);
    b->ev->result = PyObject_Vectorcall(c->func, c->in, (size_t)cc_call_positional(c), kwnames);
    if (rec->trace != NULL && b->ev->result != NULL) (void)cc_builtin_after(rec, b->act, c, b->callee, b->ev->result);
    for (int i = 0; i < c->n; i++) Py_DECREF(c->in[i]);
    Py_XDECREF(kwnames);
    return CC_DONE;
}

CcGo cc_builtin_before(CcRec *rec, CcAct *act, CcEvent *ev, CcCalled *c, const CcCallee *callee) {
    const CcBuiltin b = {.rec = rec, .act = act, .ev = ev, .c = c, .callee = callee};
    const struct Kind *kind = kind_of(&b);
    if (c->n < CC_MAX(kind->least, (int)has(&b, CC_TRAIT_FIELDS))) return refuse(&b); /* the C code raises */
    if (c->kwnames != NULL && has(&b, CC_TRAIT_POSITIONAL)) return refuse(&b);        /* it raises, too */
    if (has(&b, CC_TRAIT_TAKES_ITEMS) && c->n > 0) cc_builtin_will_take(rec, act, c->in[0]);
    cc_given_call(rec, c, callee);
    if (!cc_args_state(&b)) return refuse(&b);
    CcGo go = ordered(&b);
    if (go == CC_OK) go = call_back(&b);
    if (go == CC_OK) go = kind->symbols(&b);
    if (go == CC_OK) go = known_before(&b);
    if (go != CC_OK) return go;
    cc_args_hashed(&b);
    return kind->perform(&b);
}
