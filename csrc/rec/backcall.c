/* C code that calls back is performed step by step (sum, reduce), or gets Python wrappers for its C callbacks (map). */
#include "rec_events.h"

/* ------------------------------------------------------------------ callbacks */

/* Python code that replaces C code, so that the recorder sees the calls it makes. */
static const char templates[] =
    "def wrap(f):\n"
    "    return lambda *args: f(*args)\n"
    "def adder():\n"
    "    return lambda a, b: a + b\n"
    "def drainer(f):\n"
    "    return lambda items: f([*items])\n"
    "def ranker(ranked):\n"
    "    return lambda items, key, reverse: [*ranked([*items], reverse)]\n"
    "def sorter(order):\n"
    "    def sort(items, key, reverse):\n"
    "        items = [*items]\n"
    "        keys = items if key is None else [key(item) for item in items]\n"
    "        return [items[place] for place in order(keys, reverse)]\n"
    "    return sort\n"
    "def resorter(sort):\n"
    "    def resort(items, key, reverse):\n"
    "        items[:] = sort(items, key, reverse)\n"
    "    return resort\n"
    "def picker(place):\n"
    "    def pick(items, key):\n"
    "        pairs = [(item, key(item)) for item in items]\n"
    "        return pairs[place([by for _, by in pairs])][0]\n"
    "    return pick\n"
    "def finder():\n"
    "    def find(items, o):\n"
    "        for item in items:\n"
    "            if item is o or item == o:\n"
    "                return True\n"
    "        return False\n"
    "    return find\n"
    "def keeper():\n"
    "    def keep(made, key, factory):\n"
    "        item = made[key] = factory()\n"
    "        return item\n"
    "    return keep\n"
    "def defaulter():\n"
    "    def setdefault(d, key, value=None):\n"
    "        if key in d:\n"
    "            return d[key]\n"
    "        d[key] = value\n"
    "        return value\n"
    "    return setdefault\n"
    "def itemgetter(*keys):\n"
    "    return (lambda o: o[keys[0]]) if len(keys) == 1 else lambda o: tuple([o[k] for k in keys])\n"
    "def attrgetter(*names):\n"
    "    def get(o, name):\n"
    "        for part in name.split('.'):\n"
    "            o = getattr(o, part)\n"
    "        return o\n"
    "    return (lambda o: get(o, names[0])) if len(names) == 1 else lambda o: tuple([get(o, n) for n in names])\n"
    "def foreach(op, split):\n"
    "    return lambda *args, **named: tuple([\n"
    "        op(*[a[i] if s else a for a, s in zip(args, split)], **named) for i in range(len(args[0]))])\n"
    "def foreach_value(op, split):\n"
    "    return lambda *args: tuple([\n"
    "        op(args[0][i], args[1][i], args[2][i], value=args[3][i] if split[3] else args[3])\n"
    "        for i in range(len(args[0]))])\n"
    "def broadcaster(to):\n"
    "    return lambda tensors: tuple([\n"
    "        t if t.shape == tensors[to].shape else t.expand_as(tensors[to]) for t in tensors])\n"
    "class Context:\n"
    "    saved, unpacked, materialize = (), False, True\n"
    "    def save_for_backward(self, *tensors):\n"
    "        self.saved = tensors\n"
    "    @property\n"
    "    def saved_tensors(self):\n"
    "        self.unpacked = True\n"
    "        return self.saved\n"
    "    def set_materialize_grads(self, value):\n"
    "        self.materialize = value\n"
    "    def mark_non_differentiable(self, *tensors):\n"
    "        pass\n"
    "def differentiated(Context):\n"
    "    def run(function, apart, needs, inputs):\n"
    "        context = Context()\n"
    "        context.needs_input_grad = needs\n"
    "        if apart:\n"
    "            result = function.forward(*inputs)\n"
    "            function.setup_context(context, inputs, result)\n"
    "        else:\n"
    "            result = function.forward(context, *inputs)\n"
    "        return result, context\n"
    "    return run\n"
    "def backward():\n"
    "    return lambda function, context, gradients: function.backward(context, *gradients)\n"
    "def through():\n"
    "    return lambda function, *args, use_reentrant=None, preserve_rng_state=None, early_stop=None, **named: (\n"
    "        function(*args, **named))\n"
    "def unwrapper():\n"
    "    return lambda f, *args, **named: f.__wrapped__(*args, **named)\n"
    "def lister(name, qualname, items):\n"
    "    def each(items):\n"
    "        for item in items:\n"
    "            yield item\n"
    "    each.__name__, each.__qualname__ = name, qualname\n"
    "    return each(items)\n"
    "def item_getter():\n"
    "    return lambda o, key: o[key]\n"
    "def item_setter():\n"
    "    def put(o, key, value):\n"
    "        o[key] = value\n"
    "    return put\n"
    "def item_deleter():\n"
    "    def drop(o, key):\n"
    "        del o[key]\n"
    "    return drop\n"
    "def reader(get, other):\n"
    "    def read(o, name, *fallback):\n"
    "        try:\n"
    "            try:\n"
    "                return get(o, name)\n"
    "            except AttributeError:\n"
    "                if other is None:\n"
    "                    raise\n"
    "            return other(o, name)\n"
    "        except AttributeError:\n"
    "            if not fallback:\n"
    "                raise\n"
    "        return fallback[0]\n"
    "    return read\n"
    "def asker(read):\n"
    "    def has(o, name):\n"
    "        try:\n"
    "            read(o, name)\n"
    "        except AttributeError:\n"
    "            return False\n"
    "        return True\n"
    "    return has\n"
    "def methodcaller(name, *args):\n"
    "    return lambda o: getattr(o, name)(*args)\n";

static PyObject *template_named(const char *name) {
    static PyObject *space;
    if (space == NULL && (space = cc_obj_run(templates)) == NULL) return NULL;
    return cc_obj_item(space, name);
}

PyObject *cc_backcall_template(CcRec *rec, const char *name, PyObject *args) {
    PyObject *maker = template_named(name), *f = maker != NULL ? PyObject_CallObject(maker, args) : NULL;
    if (f == NULL) {
        cc_raised_clear();
        return NULL;
    }
    cc_vec_push(&rec->keep, f);
    cc_value_fresh(rec, f);
    PyObject *closure = PyFunction_GET_CLOSURE(f);
    for (Py_ssize_t i = 0; closure != NULL && i < PyTuple_GET_SIZE(closure); i++) {
        PyObject *content = PyCell_GET(PyTuple_GET_ITEM(closure, i));
        cc_value_fresh(rec, PyTuple_GET_ITEM(closure, i));
        if (cc_value_origin(rec, content) == CC_O_UNKNOWN || PyFunction_Check(content)) cc_value_fresh(rec, content);
    }
    return f;
}

CcBack cc_backcall_kind(CcRec *rec, PyObject *f) {
    if (f == NULL || f == Py_None) return CC_BACK_SEEN;
    const PyFunctionObject *python = cc_call_function(f);
    if (python != NULL) return cc_library_recorded((PyFunctionObject *)python) ? CC_BACK_SEEN : CC_BACK_NOT;
    return PyCallable_Check(f) && cc_value_origin(rec, f) != CC_O_UNKNOWN ? CC_BACK_WRAP : CC_BACK_NOT;
}

PyObject *cc_backcall_around(CcRec *rec, const char *template, PyObject *f) {
    PyObject *args = PyTuple_Pack(1, f), *made = args != NULL ? cc_backcall_template(rec, template, args) : NULL;
    Py_XDECREF(args);
    return made;
}

PyObject *cc_backcall_function(CcRec *rec) {
    PyObject *context = template_named("Context");
    return context != NULL ? cc_backcall_around(rec, "differentiated", context) : NULL;
}

PyObject *cc_backcall_wrap(CcRec *rec, PyObject *f) { return cc_backcall_around(rec, "wrap", f); }

CcGo cc_backcall_perform(CcEvent *ev, PyObject *f, PyObject *const *in, int n) {
    Py_INCREF(f); /* rec->keep drops its reference if the recording is given up */
    ev->result = PyObject_Vectorcall(f, in, (size_t)n, NULL);
    Py_DECREF(f);
    return CC_DONE;
}

PyObject *cc_backcall_add(CcRec *rec) {
    PyObject *f;
    CC_RETRY_ALLOC(f, cc_backcall_template(rec, "adder", NULL));
    return f;
}

PyObject *cc_backcall_contains(CcRec *rec, PyObject *iterator, PyObject *o) {
    PyObject *f;
    CC_RETRY_ALLOC(f, cc_backcall_template(rec, "finder", NULL));
    Py_INCREF(f); /* rec->keep drops its reference if the recording is given up */
    PyObject *r = PyObject_CallFunctionObjArgs(f, iterator, o, NULL);
    Py_DECREF(f);
    return r;
}

CcGo cc_backcall_missing(CcRec *rec, CcEvent *ev, PyObject *factory) {
    PyObject *f;
    CC_RETRY_ALLOC(f, Py_XNewRef(cc_backcall_template(rec, "keeper", NULL)));
    ev->result = PyObject_CallFunctionObjArgs(f, ev->in[0], ev->in[1], factory, NULL);
    Py_DECREF(f);
    return CC_DONE;
}

/* ------------------------------------------------------------------ functions of torch that call a function */

CcGo cc_backcall_unwrapped(CcRec *rec, CcEvent *ev, PyObject *func, PyObject *const *in, int positional,
                           PyObject *kwnames) {
    const int n = positional + cc_obj_count(kwnames);
    PyObject *made = Py_XNewRef(cc_backcall_template(rec, "unwrapper", NULL));
    if (made == NULL) return CC_OK;
    PyObject **args = cc_mem_get(sizeof *args * ((size_t)n + 1));
    args[0] = func;
    memcpy(args + 1, in, sizeof *args * (size_t)n);
    ev->result = PyObject_Vectorcall(made, args, (size_t)positional + 1, kwnames);
    free(args);
    Py_DECREF(made);
    return CC_DONE;
}

/* ------------------------------------------------------------------ torch._foreach_*, torch.broadcast_tensors */

/* -> number of tensors, all of the CPU; 0: not a list of such tensors */
static Py_ssize_t tensors_in(CcRec *rec, PyObject *list) {
    if ((!PyList_CheckExact(list) && !PyTuple_CheckExact(list)) || cc_value_unknown(rec, list) ||
        cc_value_dirty(rec, list))
        return 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); i++) {
        PyObject *o = PySequence_Fast_GET_ITEM(list, i);
        CcTensor t;
        if (!cc_tens_plain(o)) return 0;
        cc_tens_read(o, false, &t);
        if (t.type.device != 1) return 0;
    }
    return PySequence_Fast_GET_SIZE(list);
}

/* Is this argument one of a tensor each? values: it may be a tensor of a number each. -1: the call is left to torch. */
static int splits(CcRec *rec, PyObject *o, Py_ssize_t n, bool values) {
    CcTensor t;
    if (PyFloat_CheckExact(o) || PyLong_CheckExact(o)) return 0;
    if (!cc_tens_plain(o)) return tensors_in(rec, o) == n ? 1 : -1;
    cc_tens_read(o, false, &t);
    if (t.type.device != 1) return -1;
    return t.type.ndim == 0 ? 0 : values && t.type.ndim == 1 && t.type.size[0] == n ? 1 : -1;
}

/* The op that torch calls for each tensor on the CPU: Tensor.mul_ for _foreach_mul_. NULL: not one of these. */
static PyObject *op_of_each(const char *name, bool *in_place, bool *value) {
    static const char ops[] =
        " add sub mul div neg abs exp log sqrt rsqrt reciprocal lerp addcmul addcdiv clamp_min clamp_max zero ";
    char key[32];
    if (strncmp(name, "_foreach_", 9) != 0) return NULL;
    const size_t n = strlen(name);
    *in_place = name[n - 1] == '_';
    *value = strncmp(name + 9, "addc", 4) == 0;
    snprintf(key, sizeof key, " %.*s ", (int)(n - 9 - *in_place), name + 9);
    PyObject *tensor = strstr(ops, key) != NULL ? cc_obj_of_module("torch", "Tensor") : NULL;
    PyObject *op = tensor != NULL ? PyObject_GetAttrString(tensor, name + 9) : NULL;
    cc_raised_clear();
    Py_XDECREF(tensor);
    return op;
}

/* A tensor among these to whose shape all of them broadcast; -1: there is none. */
static Py_ssize_t find_widest(PyObject *list) {
    for (Py_ssize_t to = 0; to < PySequence_Fast_GET_SIZE(list); to++) {
        CcTensor wide, t;
        bool all = true;
        cc_tens_read(PySequence_Fast_GET_ITEM(list, to), false, &wide);
        for (Py_ssize_t i = 0; all && i < PySequence_Fast_GET_SIZE(list); i++) {
            cc_tens_read(PySequence_Fast_GET_ITEM(list, i), false, &t);
            const int lead = wide.type.ndim - t.type.ndim;
            all = t.type.ndim >= 0 && lead >= 0;
            for (int d = 0; all && d < t.type.ndim; d++)
                all = t.type.size[d] == 1 || t.type.size[d] == wide.type.size[lead + d];
        }
        if (all) return to;
    }
    return -1;
}

/* torch.broadcast_tensors(a, b) is (a, b.expand_as(a)), if a has the common shape and b has not. */
static CcGo broadcast(CcRec *rec, CcEvent *ev, PyObject *const *in, int n, PyObject *kwnames) {
    const Py_ssize_t to = n == 1 && kwnames == NULL && tensors_in(rec, in[0]) > 0 ? find_widest(in[0]) : -1;
    PyObject *args = to >= 0 ? Py_BuildValue("(n)", to) : NULL;
    PyObject *made = args != NULL ? cc_backcall_template(rec, "broadcaster", args) : NULL;
    Py_XDECREF(args);
    if (made == NULL) return CC_OK;
    Py_INCREF(made); /* rec->keep drops its reference if the recording is given up */
    ev->result = PyObject_Vectorcall(made, in, 1, NULL);
    Py_DECREF(made);
    return CC_DONE;
}

/* Tensors of one element, and without a gradient, as torch.stack() takes them: of one dtype, on the CPU. */
static bool stacks(CcRec *rec, PyObject *list) {
    const Py_ssize_t n = tensors_in(rec, list);
    CcTensor first, t;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *o = PySequence_Fast_GET_ITEM(list, i);
        cc_value_requires_read(rec, o);
        cc_tens_read(o, true, &t);
        if (i == 0) first = t;
        if (t.type.ndim != 0 || t.type.requires_grad || t.type.device != 1 || t.type.dtype != first.type.dtype ||
            t.type.dtype == CC_DT_OTHER)
            return false;
    }
    return n > 0;
}

/* torch.tensor([a, b]) of such tensors is torch.stack([a, b]), which reads no data. */
static CcGo join(CcRec *rec, CcEvent *ev, PyObject *const *in, int n, PyObject *kwnames) {
    if (n != 1 || kwnames != NULL || cc_mode_device_now() || !stacks(rec, in[0])) return CC_OK;
    PyObject *stack = cc_obj_of_module("torch", "stack");
    PyObject *made = stack != NULL ? cc_backcall_wrap(rec, stack) : NULL;
    Py_XDECREF(stack);
    return made != NULL ? cc_backcall_perform(ev, made, in, 1) : CC_OK;
}

/* Would an op for each tensor do the same? torch._foreach_neg gives all results a gradient, and refuses integers, if one of
 * the tensors requires it. */
static bool requires_alike(CcRec *rec, PyObject *const *in, int n, Py_ssize_t tensors) {
    Py_ssize_t differentiated = 0;
    for (Py_ssize_t k = 0; k < tensors; k++) {
        bool requires = false;
        for (int i = 0; i < n; i++) {
            PyObject *o =
                PyList_CheckExact(in[i]) || PyTuple_CheckExact(in[i]) ? PySequence_Fast_GET_ITEM(in[i], k) : in[i];
            requires = cc_opaque_differentiates(rec, &o, 1) || requires;
        }
        differentiated += requires;
    }
    return differentiated == 0 || differentiated == tensors;
}

CcGo cc_backcall_foreach(CcRec *rec, CcEvent *ev, PyObject *f, PyObject *const *in, int n, PyObject *kwnames) {
    enum { MOST = 4 };
    bool in_place, value;
    const char *name = PyCFunction_Check(f) ? ((PyCFunctionObject *)f)->m_ml->ml_name : "";
    if (strcmp(name, "broadcast_tensors") == 0) return broadcast(rec, ev, in, n, kwnames);
    if (strcmp(name, "tensor") == 0) return join(rec, ev, in, n, kwnames);
    PyObject *op = n > 0 && n <= MOST ? op_of_each(name, &in_place, &value) : NULL;
    const Py_ssize_t tensors = op != NULL ? tensors_in(rec, in[0]) : 0;
    PyObject *split = tensors > 0 ? PyTuple_New(n) : NULL, *made = NULL;
    bool known = split != NULL && !(value && kwnames != NULL && n > 3);
    for (int i = 0; known && i < n; i++) {
        const int s = splits(rec, in[i], tensors, value && i > 2);
        known = s >= 0 && (s > 0 || !value || i > 2);
        PyTuple_SET_ITEM(split, i, PyBool_FromLong(s > 0));
    }
    known = known && (in_place || requires_alike(rec, in, n, tensors));
    PyObject *args = known ? PyTuple_Pack(2, op, split) : NULL;
    if (args != NULL) made = cc_backcall_template(rec, value && n > 3 ? "foreach_value" : "foreach", args);
    Py_XDECREF(args);
    Py_XDECREF(split);
    Py_XDECREF(op);
    if (made == NULL) return CC_OK;
    Py_INCREF(made); /* rec->keep drops its reference if the recording is given up */
    ev->result = PyObject_Vectorcall(made, in, (size_t)n, kwnames);
    Py_DECREF(made);
    if (ev->result != NULL && in_place) Py_SETREF(ev->result, Py_NewRef(in[0]));
    return CC_DONE;
}

static bool from_slot(const CcGuards *gs, int id) {
    while (gs->g.at[id].parent >= 0) id = gs->g.at[id].parent;
    return gs->g.at[id].source == CC_SRC_SLOT;
}

/* Guards the getter by identity; one in a frame's slot after a break is made again in each call, so its parts are
 * guarded instead. */
static void guard_getter(CcRec *rec, PyObject *f, int source, PyObject *reduced) {
    CcGuards *gs = &rec->trace->guards;
    if (!from_slot(gs, source)) {
        cc_guard_add_check(gs, source, CC_CHK_IDENT, f, -1);
        return;
    }
    PyObject *args = PyTuple_GET_ITEM(reduced, 1);
    cc_vec_push(&rec->keep, Py_NewRef(reduced));
    const int top = cc_value_read(rec, CC_SRC_REDUCE, source, NULL, 0, 0, reduced);
    cc_value_read(rec, CC_SRC_ITEM, top, NULL, 0, 1, args);
    cc_inside_guard(rec, args, 1);
}

PyObject *cc_backcall_getter(CcRec *rec, CcAct *act, PyObject *f) {
    const char *template = cc_known_is(f, CC_KNOWN_ITEMGETTER)     ? "itemgetter"
                           : cc_known_is(f, CC_KNOWN_ATTRGETTER)   ? "attrgetter"
                           : cc_known_is(f, CC_KNOWN_METHODCALLER) ? "methodcaller"
                                                                   : NULL;
    if (template == NULL) return NULL;
    const bool paused = cc_hook_pause(act->obs, true);
    PyObject *reduced = PyObject_CallMethod(f, "__reduce__", NULL), *made = NULL;
    PyObject *args = reduced != NULL && PyTuple_Check(reduced) && PyTuple_GET_SIZE(reduced) == 2
                         ? PyTuple_GET_ITEM(reduced, 1)
                         : NULL;
    bool constant = args != NULL && PyTuple_CheckExact(args) && PyType_Check(PyTuple_GET_ITEM(reduced, 0));
    for (Py_ssize_t i = 0; constant && i < PyTuple_GET_SIZE(args); i++)
        constant = cc_value_const(PyTuple_GET_ITEM(args, i));
    if (constant) made = cc_backcall_template(rec, template, args);
    const int source = cc_value_source(rec, f);
    if (made != NULL && source >= 0) guard_getter(rec, f, source, reduced);
    Py_XDECREF(reduced);
    cc_raised_clear();
    cc_hook_pause(act->obs, paused);
    return made;
}

/* ------------------------------------------------------------------ steps */

/* Performs one step as a separate event. A break is not possible, because the step is in the middle of an
 * instruction. */
static PyObject *step(CcRec *rec, CcAct *act, CcEvent *ev) {
    const CcEvent *outer = act->event;
    CcGo go = CC_GIVE_UP;
    ev->flags |= CC_EV_INNER;
    act->event = ev;
    if (rec->trace != NULL) {
        CcRecFrame *f = cc_rec_frame(rec, act);
        f->call_nodes = rec->trace->graph->node.n;
        f->call_guards = rec->trace->guards.g.n;
        f->gives = -1;
        go = cc_op_before(rec, act, ev);
    }
    if (go != CC_DONE)
        ev->result = ev->kind == CC_EV_BINOP ? cc_ex_binop((CcBinop)ev->arg, false, ev->in[0], ev->in[1])
                                             : PyObject_Vectorcall(ev->in[0], ev->in + 1, (size_t)ev->n - 1, NULL);
    if (go == CC_OK && rec->trace != NULL) (void)cc_rec_after(rec, act, ev);
    act->event = outer;
    return ev->result;
}

/* Steals the reference to `total`. */
static PyObject *add(CcRec *rec, CcAct *act, PyObject *total, PyObject *item) {
    PyObject *const in[] = {total, item};
    CcEvent ev = {.kind = CC_EV_BINOP, .arg = CC_NB_ADD, .in = in, .n = 2};
    PyObject *r = step(rec, act, &ev);
    Py_DECREF(total);
    return r;
}

/* Lists and tuples are joined: their items are the result's. */
static bool joined_known(CcRec *rec, PyObject *items) {
    bool known = true;
    for (Py_ssize_t i = 0; known && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        known = cc_value_const(item) || (cc_value_dirty(rec, item) == CC_DIRTY_NO && cc_inside_guard(rec, item, 1));
    }
    return known;
}

/* A sum of floats, which C code (sum) adds with its own algorithm, is one step. NULL without an error: not possible. */
static PyObject *float_sum(CcRec *rec, CcAct *act, PyObject *sum, PyObject *numbers, PyObject *start) {
    if (!cc_number_terms(numbers) || (start != NULL && !cc_number_terms(start))) return NULL;
    cc_value_fresh(rec, numbers);
    PyObject *const in[] = {numbers, start};
    const CcCallSpec spec = {.form = CC_F_CALL, .target = sum, .in = in, .n = 1 + (start != NULL), .name = "sum"};
    CcEvent ev = {.kind = CC_EV_CALL};
    return cc_sym_pure(rec, act, &ev, &spec) == CC_DONE ? ev.result : NULL;
}

/* Adds symbols step by step if all numbers are ints, or else in one step; otherwise they become constants. */
static PyObject *number_sum(CcRec *rec, CcAct *act, PyObject *sum, PyObject *numbers, PyObject *start) {
    const bool symbols = rec->trace != NULL && (cc_sym_within(rec, numbers, 1) || cc_sym_is(rec, start));
    if (!symbols || !cc_number_whole(numbers) || (start != NULL && !PyLong_CheckExact(start))) {
        PyObject *stepped = symbols ? float_sum(rec, act, sum, numbers, start) : NULL;
        if (stepped != NULL) return stepped;
        if (rec->trace != NULL && (!cc_number_settle(rec, numbers, 1) || !cc_number_settle(rec, start, 0)))
            (void)cc_rec_poison(rec, act, CC_R_DATA_SCALAR, "sum");
        if (rec->trace != NULL && (!cc_state_read(rec, &numbers, 1, false) || !joined_known(rec, numbers)))
            (void)cc_rec_poison(rec, act, CC_R_UNKNOWN_TYPE, "sum");
        return PyObject_CallFunctionObjArgs(sum, numbers, start, NULL);
    }
    PyObject *total = start != NULL ? Py_NewRef(start) : PyLong_FromLong(0);
    for (Py_ssize_t i = 0; total != NULL && i < PyList_GET_SIZE(numbers); i++)
        total = add(rec, act, total, PyList_GET_ITEM(numbers, i));
    return total;
}

/* Objects whose sum depends only on the operands; a Decimal's sum also depends on its context. */
static bool plain(PyObject *o) { return cc_value_const(o) || PyList_CheckExact(o) || PyTuple_CheckExact(o); }

static PyObject *sum_seen(CcRec *rec, CcAct *act, PyObject *sum, PyObject *iterable, PyObject *start) {
    PyObject *it = PyObject_GetIter(iterable), *numbers = PyList_New(0), *total = NULL, *item = NULL;
    if (it == NULL || numbers == NULL) goto fail;
    while ((item = PyIter_Next(it)) != NULL) {
        if (total == NULL && plain(item) && (start == NULL || plain(start))) {
            if (PyList_Append(numbers, item) < 0) goto fail;
        } else {
            if (total == NULL)
                total = PyList_GET_SIZE(numbers) > 0 || start == NULL ? number_sum(rec, act, sum, numbers, start)
                                                                      : Py_NewRef(start);
            if (total != NULL) total = add(rec, act, total, item);
            if (total == NULL) goto fail;
        }
        Py_CLEAR(item);
    }
    if (PyErr_Occurred()) goto fail;
    if (total == NULL) total = number_sum(rec, act, sum, numbers, start);
    Py_DECREF(it);
    Py_DECREF(numbers);
    return total;
fail:
    Py_XDECREF(item);
    Py_XDECREF(it);
    Py_XDECREF(numbers);
    Py_XDECREF(total);
    return NULL;
}

static PyObject *reduce_seen(CcRec *rec, CcAct *act, PyObject *f, PyObject *iterable, PyObject *start) {
    PyObject *it = PyObject_GetIter(iterable), *total = Py_XNewRef(start), *item;
    if (it == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) /* the error of functools */
        PyErr_SetString(PyExc_TypeError, "reduce() arg 2 must support iteration");
    if (it == NULL) goto fail;
    while ((item = PyIter_Next(it)) != NULL) {
        if (total == NULL) {
            total = item;
            continue;
        }
        PyObject *const in[] = {f, total, item};
        CcEvent ev = {.kind = CC_EV_CALL, .in = in, .n = 3};
        PyObject *next = step(rec, act, &ev);
        Py_DECREF(item);
        Py_SETREF(total, next);
        if (total == NULL) goto fail;
    }
    if (PyErr_Occurred()) goto fail;
    Py_DECREF(it);
    if (total == NULL) PyErr_SetString(PyExc_TypeError, "reduce() of empty iterable with no initial value");
    return total;
fail:
    Py_XDECREF(it);
    Py_XDECREF(total);
    return NULL;
}

CcGo cc_backcall_sum(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *sum, PyObject *const *in, int n) {
    PyObject *start = n > 1 ? in[1] : NULL;
    if (n < 1 || n > 2 ||
        (start != NULL && (PyUnicode_Check(start) || PyBytes_Check(start) || PyByteArray_Check(start))))
        return CC_OK; /* C code raises its TypeError */
    ev->result = sum_seen(rec, act, sum, in[0], start);
    if (ev->result != NULL && rec->trace != NULL && Py_REFCNT(ev->result) == 1) cc_value_fresh(rec, ev->result);
    return CC_DONE;
}

CcGo cc_backcall_instead(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n) {
    PyObject *of[4] = {Py_NewRef(f)}; /* rec->keep drops its reference if the recording is given up */
    for (int i = 0; i < n; i++) of[i + 1] = in[i];
    CcEvent one = {.kind = CC_EV_CALL, .in = of, .n = n + 1};
    ev->result = step(rec, act, &one);
    Py_DECREF(f);
    return CC_DONE;
}

CcGo cc_backcall_drain(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *iterator) {
    PyObject *drainer;
    CC_RETRY_ALLOC(drainer, cc_backcall_around(rec, "drainer", f));
    return cc_backcall_instead(rec, act, ev, drainer, &iterator, 1);
}

CcGo cc_backcall_reduce(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n) {
    if (n < 2 || n > 3) return CC_OK;
    ev->result = reduce_seen(rec, act, in[0], in[1], n > 2 ? in[2] : NULL);
    return CC_DONE;
}

static void removed(CcRec *rec, CcAct *act, PyObject *list, int source, Py_ssize_t at) {
    PyObject *index;
    CC_RETRY_ALLOC(index, PyLong_FromSsize_t(at));
    PyObject *const in[] = {list, index};
    cc_vec_push(&rec->keep, index);
    cc_value_wrote(rec, list, CC_DIRTY_KNOWN);
    cc_vec_push(&rec->written, source);
    const CcCallSpec spec = {.form = CC_F_DELITEM, .in = in, .n = 2, .name = "remove"};
    (void)cc_node_effect(rec, act, &spec, NULL);
}

CcGo cc_backcall_remove(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *const *in, int n) {
    const int source = n == 2 && PyList_CheckExact(in[0]) ? cc_value_source(rec, in[0]) : -1;
    if (source < 0) return CC_OK;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(in[0]); i++) {
        PyObject *item = Py_NewRef(PyList_GET_ITEM(in[0], i));
        const int equal = PyObject_RichCompareBool(item, in[1], Py_EQ);
        Py_DECREF(item);
        if (equal == 0) continue;
        if (equal < 0 || PyList_SetSlice(in[0], i, i + 1, NULL) < 0) return CC_DONE;
        ev->result = Py_NewRef(Py_None);
        if (rec->trace != NULL) removed(rec, act, in[0], source, i);
        return CC_DONE;
    }
    PyErr_SetString(PyExc_ValueError, "list.remove(x): x not in list");
    return CC_DONE;
}

/* ------------------------------------------------------------------ generators over the content of modules */

/* itertools.chain() of such generators, which only the stack holds. */
static bool chains_listed(CcRec *rec, const CcEvent *ev) {
    bool listed = ev->in[0] == (PyObject *)cc_known_type(CC_KNOWN_CHAIN) && ev->n > 1 && ev->name == NULL;
    for (int i = 1; listed && i < ev->n; i++) {
        CcGen g;
        const CcProv *p = cc_value_find(rec, ev->in[i]);
        listed = cc_generator_read(ev->in[i], &g) && cc_obj_is_ours(g.code->co) && p != NULL &&
                 p->origin == CC_O_FRESH && Py_REFCNT(ev->in[i]) == 1 + (p->weak == NULL);
    }
    return listed;
}

/* A generator over the list, of the same name as the one that the items are from. */
static PyObject *generator_over(PyObject *items, PyObject *from) {
    PyObject *maker = template_named("lister"), *name = PyObject_GetAttrString(from, "__name__"),
             *qualname = PyObject_GetAttrString(from, "__qualname__"), *made = NULL;
    if (maker != NULL && name != NULL && qualname != NULL)
        made = PyObject_CallFunctionObjArgs(maker, name, qualname, items, NULL);
    Py_XDECREF(qualname);
    Py_XDECREF(name);
    return made;
}

/* module.parameters() and its kin only read modules, so it does not matter when they run. A generator over a list, which
 * can be rebuilt after a break, replaces theirs, and a chain over one list a chain of those. */
CcGo cc_backcall_listed(CcRec *rec, CcAct *act, CcEvent *ev) {
    PyFunctionObject *f = ev->kind == CC_EV_CALL ? cc_call_function(ev->in[0]) : NULL;
    const bool chains = ev->kind == CC_EV_CALL && chains_listed(rec, ev);
    if (!chains && (f == NULL || !cc_library_listed(f))) return CC_OK;
    const CcGo go = cc_op_before(rec, act, ev);
    if (go != CC_OK) return go;
    const size_t n_kw = ev->name != NULL ? (size_t)PyTuple_GET_SIZE(ev->name) : 0;
    PyObject *generator = PyObject_Vectorcall(ev->in[0], ev->in + 1, (size_t)ev->n - 1 - n_kw, ev->name);
    if (generator != NULL && rec->trace != NULL) cc_value_fresh(rec, generator);
    PyObject *items = generator != NULL ? PySequence_List(generator) : NULL;
    if (items != NULL) ev->result = chains ? PyObject_CallOneArg(ev->in[0], items) : generator_over(items, generator);
    if (ev->result != NULL && rec->trace != NULL) {
        CcGen made;
        cc_value_fresh(rec, items);
        if (cc_generator_read(ev->result, &made)) cc_value_fresh(rec, (PyObject *)made.func);
        cc_value_fresh(rec, ev->result);
    }
    Py_XDECREF(items);
    Py_XDECREF(generator);
    return CC_DONE;
}

/* ------------------------------------------------------------------ functools.lru_cache */

/* Whether guards can make this argument find the same cache entry again. Guards the content of tuples, and the identity
 * of objects that compare by identity. */
static bool cache_key(CcRec *rec, PyObject *o, int depth) {
    if (cc_value_const(o) || cc_value_ident(o)) return !cc_value_symbolic(rec, o);
    if (depth == 0 || cc_tens_is(o)) return false;
    if (PyTuple_Check(o) && cc_value_compares_as(o, &PyTuple_Type)) {
        bool ok = cc_inside_guard(rec, o, depth);
        for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(o); i++)
            ok = cache_key(rec, PyTuple_GET_ITEM(o, i), depth - 1);
        return ok;
    }
    const int source = cc_value_compares_as(o, &PyBaseObject_Type) ? cc_value_source(rec, o) : -1;
    if (source >= 0) cc_guard_add_check(&rec->trace->guards, source, CC_CHK_IDENT, o, -1);
    return source >= 0;
}

/* Is it, or does it contain, a tensor? */
static bool has_tensor(PyObject *o) {
    PyObject *dict = cc_python_class(Py_TYPE(o)) ? cc_obj_dict(o) : NULL;
    return cc_value_has_tensor(o, 4) || (dict != NULL && cc_value_has_tensor(dict, 4));
}

/* Adds a guard that reads a call's result from the cache, so it notices an entry that was evicted or replaced. Returns
 * its id; -1: the cache does not keep the result. */
static int kept(CcRec *rec, PyObject *f, PyObject *const *in, int n, PyObject *kwnames, PyObject *result) {
    PyObject *key, *dict = cc_cache_dict(f);
    CC_RETRY_ALLOC(key, cc_cache_key(f, in, n, kwnames));
    cc_vec_push(&rec->keep, key);
    PyObject *found = PyDict_GetItemWithError(dict, key);
    PyObject *const *at = found != NULL ? cc_cache_result_at(found) : NULL;
    cc_raised_clear();
    if (found == NULL || (at != NULL ? *at : found) != result) return -1;
    CcGuards *gs = &rec->trace->guards;
    bool is_new;
    int id = cc_guard_source(gs, CC_SRC_KEY, cc_value_const_source(rec, dict), key, 0, 0, &is_new);
    if (at == NULL) return id;
    if (is_new) cc_guard_check(gs, id, CC_CHK_IDENT, found);
    return cc_guard_source(gs, CC_SRC_CACHED, id, NULL, 0, 0, &is_new);
}

/* An object that is the same in each call, as a guard or a function's arguments say. If it came from outside, too (a
 * pattern or a logger that the caller has), then that must be the same one. A tensor from outside is one that the function
 * was given, and differs as that does. */
static void constant(CcRec *rec, PyObject *o) {
    const CcOrigin origin = cc_value_origin(rec, o);
    if (cc_value_const(o) || cc_value_ident(o) || (origin != CC_O_UNKNOWN && origin != CC_O_SOURCE)) return;
    if (origin == CC_O_SOURCE && cc_tens_is(o)) return;
    const int id = cc_value_const_source(rec, o);
    CcGuards *gs = &rec->trace->guards;
    if (id >= 0 && gs->g.at[id].source != CC_SRC_CONST) cc_guard_add_check(gs, id, CC_CHK_IDENT, o, -1);
}

/* A cached function is not recorded: in eager, too, it runs once per set of arguments while the cache keeps the result.
 * A replay checks that the cache still has the same result, and then calls the function as well, which updates the hit
 * count and the order of use. A cached tensor is a break: a trace must not keep it alive. */
CcGo cc_backcall_cache(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *f, PyObject *const *in, int n,
                       PyObject *kwnames) {
    for (int i = 0; i < n; i++) cc_sym_settle(rec, in[i], 3);
    for (int i = 0; i < n; i++)
        if (!cache_key(rec, in[i], 4))
            return cc_rec_break(rec, act, CC_R_UNKNOWN_CALL, "a cached function with arguments that are not constant");
    ev->result = cc_call_unseen(act, f, in, n, kwnames);
    (void)cc_look_take_read();
    if (ev->result == NULL || has_tensor(ev->result)) {
        PyObject *type, *value, *tb;
        PyErr_Fetch(&type, &value, &tb);
        (void)cc_rec_poison(rec, act, CC_R_UNKNOWN_CALL,
                            ev->result == NULL ? "a cached function that raises"
                                               : "a cached function that returns a tensor");
        PyErr_Restore(type, value, tb);
        return CC_DONE;
    }
    const int id = kept(rec, f, in, n, kwnames, ev->result);
    if (id < 0) {
        (void)cc_rec_poison(rec, act, CC_R_UNKNOWN_CALL, "a function whose result is not cached");
        return CC_DONE;
    }
    CcGuards *gs = &rec->trace->guards;
    if (cc_value_const(ev->result)) {
        cc_guard_check(gs, id, CC_CHK_VALUE, ev->result);
    } else {
        cc_guard_check(gs, id, CC_CHK_IDENT, ev->result);
        constant(rec, ev->result);
    }
    const CcCallSpec spec = {
        .form = CC_F_CALL, .target = f, .kwnames = kwnames, .in = in, .n = n, .name = "a cached function"};
    (void)cc_node_effect(rec, act, &spec, NULL);
    return CC_DONE;
}

/* ------------------------------------------------------------------ pure functions of plain data */

static bool plain_data(PyObject *o, int depth) {
    if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (depth == 0 || !plain_data(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
        return true;
    }
    Py_ssize_t pos = 0;
    PyObject *key, *value;
    while (PyDict_CheckExact(o) && PyDict_Next(o, &pos, &key, &value))
        if (depth == 0 || !plain_data(key, depth - 1) || !plain_data(value, depth - 1)) return false;
    const PyTypeObject *t = Py_TYPE(o);
    return PyDict_CheckExact(o) || o == Py_None || t == &PyBool_Type || t == &PyLong_Type || t == &PyFloat_Type ||
           t == &PyUnicode_Type || t == &PyBytes_Type;
}

/* A compiled pattern is immutable and determined by its arguments. */
static bool pattern(PyObject *o) { return cc_known_is(o, CC_KNOWN_PATTERN); }

/* The result of such a function: containers belong to the caller, everything else is a constant. */
void cc_backcall_made(CcRec *rec, PyObject *o) {
    if (PyList_CheckExact(o) || PyTuple_CheckExact(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            cc_backcall_made(rec, PySequence_Fast_GET_ITEM(o, i));
        cc_value_fresh(rec, o);
    } else if (PyDict_CheckExact(o)) {
        Py_ssize_t pos = 0;
        PyObject *key, *value;
        while (PyDict_Next(o, &pos, &key, &value)) {
            cc_backcall_made(rec, key);
            cc_backcall_made(rec, value);
        }
        cc_value_fresh(rec, o);
    } else {
        constant(rec, o);
    }
}

CcGo cc_backcall_pure(CcRec *rec, CcAct *act, CcEvent *ev, CcPure pure, PyObject *f, PyObject *const *in, int n,
                      PyObject *kwnames) {
    for (int i = 0; i < n; i++) {
        if (pattern(in[i]) && cc_inside_guard(rec, in[i], 1)) continue;
        if (pure == CC_PURE_CLASS && PyType_Check(in[i]) && cc_value_origin(rec, in[i]) != CC_O_UNKNOWN) {
            cc_attr_mro(rec, in[i]);
            continue;
        }
        if (!plain_data(in[i], 6) || !cc_number_settle(rec, in[i], 6)) return CC_OK;
        if (cc_value_dirty(rec, in[i]) != CC_DIRTY_NO || !cc_inside_guard(rec, in[i], 6)) return CC_OK;
    }
    if (!cc_state_read(rec, in, n, true)) return CC_OK;
    ev->result = cc_call_unseen(act, f, in, n, kwnames);
    if (ev->result != NULL) cc_backcall_made(rec, ev->result);
    return CC_DONE;
}
