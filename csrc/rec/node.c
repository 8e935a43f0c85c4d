/* Graph nodes and effects: actions of a replay whose operands are recipes. */
#include "rec_events.h"

void cc_action_free(CcAction *a) {
    Py_CLEAR(a->target);
    Py_CLEAR(a->kwnames);
    Py_CLEAR(a->co);
    free((char *)a->name);
}

int cc_action_line(const CcAction *a) {
    const CcCode *code = a->co != NULL ? cc_code_get(a->co) : NULL;
    cc_raised_clear();
    return code != NULL ? cc_code_line(code, a->pc) : 0;
}

/* The innermost frame of the user's code; else act. */
static const CcAct *users_frame(const CcAct *act) {
    for (const CcAct *a = act; a != NULL; a = a->prev)
        if (cc_rec_library(a) == NULL) return a;
    return act;
}

CcAction cc_node_action(const CcCallSpec *spec, CcAct *act, int args0) {
    const CcAct *at = users_frame(act);
    return (CcAction){.form = (uint8_t)spec->form,
                      .arg = (uint8_t)spec->arg,
                      .target = Py_XNewRef(spec->target),
                      .kwnames = Py_XNewRef(spec->kwnames),
                      .args0 = args0,
                      .n = spec->n,
                      .name = cc_mem_text(spec->name != NULL ? spec->name : "call"),
                      .co = at != NULL ? (PyCodeObject *)Py_NewRef((PyObject *)at->co) : NULL,
                      .pc = at != NULL ? at->pc : 0};
}

bool cc_node_nameable(CcRec *rec, PyObject *o, int depth) {
    const CcOrigin origin = cc_value_origin(rec, o);
    if (origin == CC_O_UNKNOWN) return false;
    if (origin != CC_O_FRESH) return origin != CC_O_EFFECT;
    if (depth == 0) return false;
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (!cc_node_nameable(rec, PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
        return true;
    }
    if (PyDict_CheckExact(o)) {
        Py_ssize_t pos = 0;
        PyObject *value;
        while (PyDict_Next(o, &pos, NULL, &value))
            if (!cc_node_nameable(rec, value, depth - 1)) return false;
        return true;
    }
    return PySlice_Check(o) || PyFunction_Check(o) || PyAnySet_Check(o);
}

static bool may_freeze(const CcRec *rec, const CcType *t) {
    return rec->freezing > 0 && cc_type_numel(t) * cc_dtype_info((CcDtype)t->dtype)->size <= rec->freezing;
}

/* requires_grad_(), or a write of what requires a gradient, changes what a value's type says. */
static void note_gradient(CcRec *rec, PyObject *o, int value) {
    CcVal *v = &rec->trace->graph->val.at[value];
    if (v->type.ndim >= 0 && v->type.requires_grad != cc_tens_requires_grad(o)) v->grad_changed = true;
}

/* Graph value of a tensor or computed number; -1: o is neither. */
static int graph_value(CcRec *rec, PyObject *o) {
    const CcProv *p = cc_value_find(rec, o);
    if (p == NULL) return -1;
    if (p->origin == CC_O_VALUE) {
        note_gradient(rec, o, p->id);
        return p->id;
    }
    if (p->origin != CC_O_SOURCE || !cc_tens_is(o)) return -1;
    cc_value_requires_read(rec, o);
    const void *key = (const void *)(intptr_t)(p->id + 1);
    const int64_t *known = cc_map_find(&rec->input_of, key);
    if (known != NULL) {
        note_gradient(rec, o, (int)*known);
        return (int)*known;
    }
    CcTensor t;
    cc_tens_read(o, true, &t);
    const int id = p->id, value = cc_graph_input(rec->trace->graph, &t.type);
    const bool keeps = cc_tens_parameter(o) && t.type.requires_grad && cc_mode_keeps_casts(&rec->mode);
    if (cc_tens_parameter(o) && may_freeze(rec, &t.type))
        rec->trace->graph->val.at[value].frozen = keeps ? CC_FROZEN_KEPT : CC_FROZEN;
    else if (keeps) rec->trace->graph->val.at[value].frozen = CC_FROZEN_CAST;
    if (keeps) (void)cc_cast_note(o, false);
    cc_map_put(&rec->input_of, key, value);
    cc_vec_push(&rec->trace->input, id);
    cc_vec_push(&rec->trace->input_value, value);
    rec->trace->guards.g.at[id].used = true;
    if (rec->trace->guards.g.at[id].dynamic != 0) cc_sym_mark(rec, value);
    return value;
}

typedef CC_VEC(CcOperand) Operands;

/* Adds all tensors in o as operands: the plan keeps them alive until this node. */
static void collect(CcRec *rec, PyObject *o, Operands *out, int depth) {
    const int value = graph_value(rec, o);
    if (value >= 0) {
        cc_vec_push(out, (CcOperand){.kind = CC_IN_VALUE, .value = value});
        return;
    }
    if (depth == 0) return;
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            collect(rec, PySequence_Fast_GET_ITEM(o, i), out, depth - 1);
    } else if (PyDict_Check(o)) {
        Py_ssize_t pos = 0;
        PyObject *item;
        while (PyDict_Next(o, &pos, NULL, &item)) collect(rec, item, out, depth - 1);
    } else if (PyFunction_Check(o)) { /* what a transform of torch.func calls */
        PyObject *cells = ((PyFunctionObject *)o)->func_closure;
        for (Py_ssize_t i = 0; cells != NULL && i < PyTuple_GET_SIZE(cells); i++) {
            PyObject *content = PyCell_GET(PyTuple_GET_ITEM(cells, i));
            if (content != NULL) collect(rec, content, out, depth - 1);
        }
    } else if (PySlice_Check(o)) {
        const PySliceObject *s = (PySliceObject *)o;
        collect(rec, s->start, out, 0);
        collect(rec, s->stop, out, 0);
        collect(rec, s->step, out, 0);
    }
}

/* False: an operand is not a graph value, because it is inside a container (a tuple that is the key). */
static bool bound_operands(CcRec *rec, const CcBound *bound, Operands *out) {
    bool all = true;
    for (int i = 0; i < bound->n; i++) {
        if (bound->in[i].tensor == NULL) {
            cc_vec_push(out, bound->in[i].constant);
            cc_vec_last(out).value = 1 + cc_sym_of(rec, bound->in[i].number);
            continue;
        }
        const int value = graph_value(rec, bound->in[i].tensor);
        all = all && value >= 0;
        cc_vec_push(out, (CcOperand){.kind = CC_IN_VALUE, .value = value});
    }
    return all;
}

/* Does the call have a tensor that is not a bound operand (zeros_like's)? Only operands are sure to be alive when the
 * host replays the node. */
static bool hides_tensor(CcRec *rec, const CcCallSpec *spec, const Operands *bound) {
    Operands all = {0};
    for (int i = 0; i < spec->n; i++) collect(rec, spec->in[i], &all, 4);
    bool hides = false;
    for (int i = 0; i < all.n && !hides; i++) {
        hides = true;
        for (int k = 0; k < bound->n; k++)
            if (bound->at[k].kind == CC_IN_VALUE && bound->at[k].value == all.at[i].value) hides = false;
    }
    cc_vec_free(&all);
    return hides;
}

static CcType foreign(void) { return (CcType){.dtype = CC_DT_OTHER, .ndim = -1}; }

static CcType type_of(CcRec *rec, PyObject *o) {
    if (!cc_tens_plain(o)) return foreign();
    CcTensor t;
    cc_tens_read(o, true, &t);
    /* Under no_grad, a view of a parameter still has requires_grad. */
    if (t.type.requires_grad && !rec->trace->needs_grad && cc_mode_grad_now()) rec->trace->needs_grad = true;
    return t.type;
}

static bool known(CcRec *rec, PyObject *o) { return cc_value_origin(rec, o) != CC_O_UNKNOWN; }

int cc_node_args(CcRec *rec, const CcCallSpec *spec) {
    const int args0 = rec->trace->args.n;
    for (int i = 0; i < spec->n; i++) cc_vec_push(&rec->trace->args, -1);
    for (int i = 0; i < spec->n; i++) {
        const int r = cc_recipe_of(rec, spec->in[i], NULL);
        if (r < 0) return -1;
        rec->trace->args.at[args0 + i] = r;
    }
    return args0;
}

/* Types of the node's results, and whether they come as a sequence. -1: a node can't have such a result. */
static int result_types(CcRec *rec, const CcCallSpec *spec, PyObject *result, CcType *types, int max, bool *sequence) {
    *sequence = false;
    if (result == NULL || result == Py_None) return 0;
    if (cc_tens_is(result) || PyFloat_CheckExact(result) || PyUnicode_CheckExact(result) || spec->makes ||
        cc_scope_made(spec, result)) {
        if (known(rec, result) && cc_tens_is(result)) return 0;
        types[0] = type_of(rec, result);
        return 1;
    }
    if (!PyTuple_Check(result) && !PyList_CheckExact(result)) return -1;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(result);
    if (n > max) return -1;
    *sequence = true;
    for (Py_ssize_t i = 0; i < n; i++) types[i] = type_of(rec, PySequence_Fast_GET_ITEM(result, i));
    return (int)n;
}

bool cc_node_unsized(CcRec *rec, PyObject *o) {
    const CcProv *p = rec->unsized.n > 0 && cc_tens_is(o) ? cc_value_find(rec, o) : NULL;
    return p != NULL && p->origin == CC_O_VALUE &&
           cc_map_find(&rec->unsized, (const void *)(intptr_t)(p->id + 1)) != NULL;
}

/* Whether the sizes of a node's results depend on symbols. */
static bool takes_symbols(CcRec *rec, const CcCallSpec *spec, const Operands *operands) {
    for (int i = 0; i < operands->n; i++)
        if (operands->at[i].kind == CC_IN_VALUE && cc_sym_value(rec, operands->at[i].value)) return true;
    for (int i = 0; i < spec->n; i++)
        if (cc_sym_within(rec, spec->in[i], 4)) return true;
    return false;
}

/* Results computed from an unsized tensor are unsized, too: the trace does not know their metadata. */
static bool takes_unsized(CcRec *rec, const Operands *operands) {
    for (int i = 0; rec->unsized.n > 0 && i < operands->n; i++)
        if (operands->at[i].kind == CC_IN_VALUE &&
            cc_map_find(&rec->unsized, (const void *)(intptr_t)(operands->at[i].value + 1)) != NULL)
            return true;
    return false;
}

/* Data may decide the size of a tensor that no guard describes: values() of a sparse one. */
static void set_value(CcRec *rec, PyObject *o, int value) {
    cc_value_set(rec, o, CC_O_VALUE, value);
    if (cc_tens_is(o) && !cc_tens_matchable(&rec->trace->graph->val.at[value].type))
        cc_map_put(&rec->unsized, (const void *)(intptr_t)(value + 1), 1);
}

static void set_item(CcRec *rec, PyObject *item, int value) {
    const struct CcWritten born = {.value = value, .version = cc_tens_version(item)};
    if (born.version > 0 && born.version != CC_TENS_NO_VERSION) cc_vec_push(&rec->trace->born, born);
    set_value(rec, item, value);
}

static bool set_results(CcRec *rec, PyObject *result, const CcNode *n, bool sequence) {
    const int out0 = n->out0, n_out = n->n_out;
    if (!sequence) {
        if (n_out == 0) return true;
        /* one_hot() and a linear layer of one row write to their result, too; asking would run torch-function modes */
        const bool asks =
            cc_op_info((CcOpId)n->op)->kind == CC_K_RNN || (cc_tens_plain(result) && !cc_mode_device_now());
        if (asks) set_item(rec, result, out0);
        else set_value(rec, result, out0);
        rec->lazy = rec->lazy || PyUnicode_CheckExact(result);
        return true;
    }
    for (int i = 0; i < n_out; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(result, i);
        if (cc_tens_is(item)) {
            if (!known(rec, item)) set_item(rec, item, out0 + i);
            else cc_vec_push(&rec->trace->gave, ((struct CcGave){.item = out0 + i, .value = graph_value(rec, item)}));
        } else if (item != Py_None) { /* no guard covers a number */
            return false;
        }
    }
    cc_value_fresh(rec, result);
    return true;
}

/* The __exit__ of no_grad, autocast and their kin: its whole effect is in the graph (CcAction.state). */
static bool torch_exit(PyObject *exit) {
    PyObject *self = exit != NULL && PyMethod_Check(exit) ? PyMethod_GET_SELF(exit) : NULL;
    PyObject *module = self != NULL ? PyObject_GetAttrString((PyObject *)Py_TYPE(self), "__module__") : NULL;
    const bool is = module != NULL && PyUnicode_Check(module) && strncmp(PyUnicode_AsUTF8(module), "torch.", 6) == 0;
    cc_raised_clear();
    Py_XDECREF(module);
    return is;
}

/* Autograd refuses writes to leaves and to some views, which no guard tells apart from other tensors. Norms write only
 * running statistics, which have no gradient. */
static bool may_refuse(const CcCallSpec *spec, CcOpId op) {
    if (!(spec->flags & CC_N_WRITES) || cc_undo_is_norm(op) || !cc_mode_grad_now()) return false;
    for (int i = 0; i < spec->n; i++)
        if (spec->in[i] != NULL && cc_tens_is(spec->in[i]) && cc_tens_requires_grad(spec->in[i])) return true;
    return false;
}

/* With equal types, ops of the op table raise in a replay only for an index out of range, for integers divided by 0, or if
 * autograd refuses them. */
static bool may_raise(const CcCallSpec *spec) {
    const CcOpId op = spec->bound != NULL ? spec->bound->op : CC_OP_host;
    const CcOpKind kind = cc_op_info(op)->kind;
    if (spec->state) return false;
    return may_refuse(spec, op) ||
           (!spec->safe && (kind == CC_K_HOST || kind == CC_K_INDEX || kind == CC_K_SCATTER || cc_op_divides(op)));
}

/* Would code of the region catch an exception at the current instructions? */
static bool catches(CcRec *rec) {
    for (int i = 0; i < rec->frame.n; i++) {
        const CcAct *f = rec->frame.at[i].act;
        int exits[8];
        const int n = cc_code_catches(f->code, f->pc, exits, CC_COUNT(exits));
        if (n < 0) return true;
        for (int k = 0; k < n; k++)
            if (!torch_exit(cc_act_get(f, f->code->n_locals + exits[k]))) return true;
    }
    return false;
}

bool cc_node_catches(CcRec *rec) { return catches(rec); }

/* Effects that Python code could observe; a call of a cached function is not one. */
bool cc_node_pending(CcRec *rec) {
    for (int e = 0; e < rec->trace->effect.n; e++) {
        const CcAction *a = &rec->trace->effect.at[e];
        if (a->form != CC_F_CALL || !cc_cache_is(a->target)) return true;
    }
    return false;
}

/* Whether autograd saves operands while saved-tensor hooks are set, which run Python code in a node. A checkpoint's own
 * (checkpoint.c) run none of the user's. */
static bool hooked(CcRec *rec, const CcType *types, int n) {
    bool grad = false;
    if (rec->checkpoint != 0) return false;
    for (int i = 0; i < n; i++) grad = grad || types[i].requires_grad;
    return grad && cc_mode_grad_now() && cc_node_pending(rec) && cc_state_hooks(rec);
}

/* A node that may raise into a handler, after a node that can't be undone: a replay could not reach the handler. */
static bool may_strand(CcRec *rec, const CcCallSpec *spec) {
    return (rec->trace->lasting || rec->trace->python) && may_raise(spec) && catches(rec);
}

/* The index of a keyword's value among the operands; -1: absent or None. */
static int keyword(const CcCallSpec *spec, const char *name) {
    const int n_kw = cc_obj_count(spec->kwnames);
    for (Py_ssize_t k = 0; k < n_kw; k++)
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(spec->kwnames, k), name) == 0 &&
            spec->in[spec->n - n_kw + k] != Py_None)
            return spec->n - (int)(n_kw - k);
    return -1;
}

/* The node draws random numbers, all of them from the CPU's default generator. */
static bool redraws(const CcCallSpec *spec, const CcType *types, int n_out) {
    enum { CPU = 1 };
    CcTensor first = {0}; /* what an in-place op writes */
    if (n_out == 0 && spec->n > 0 && cc_tens_is(spec->in[0])) cc_tens_read(spec->in[0], false, &first);
    const CcType *type = n_out > 0 ? &types[0] : &first.type;
    bool other = false;
    for (int i = 0; i < spec->n; i++) other = other || cc_known_is(spec->in[i], CC_KNOWN_GENERATOR);
    return spec->flags & CC_N_RANDOM && !(spec->flags & CC_N_EFFECT) && type->device == CPU && !other;
}

/* Whether torch resizes this `out=`, which a graph value can't represent. */
static bool resized(CcRec *rec, PyObject *o) {
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (resized(rec, PySequence_Fast_GET_ITEM(o, i))) return true;
        return false;
    }
    const CcProv *p = cc_tens_is(o) ? cc_value_find(rec, o) : NULL;
    const CcType *was = p == NULL                  ? NULL
                        : p->origin == CC_O_VALUE  ? &rec->trace->graph->val.at[p->id].type
                        : p->origin == CC_O_SOURCE ? rec->trace->guards.g.at[p->id].type
                                                   : NULL;
    CcTensor now;
    if (was == NULL || was->ndim < 0) return false;
    cc_tens_read(o, false, &now);
    bool same = now.type.ndim == was->ndim;
    for (int d = 0; same && d < was->ndim; d++)
        same = now.type.size[d] == was->size[d] && now.type.stride[d] == was->stride[d];
    return !same;
}

/* A node makes a tensor on a GPU without an operand on that GPU: torch may have used the current device. */
static void guard_device(CcRec *rec, const Operands *operands, const CcType *types, int n_out) {
    enum { CUDA = 2 };
    bool made = false;
    for (int i = 0; i < n_out; i++) made = made || (types[i].ndim >= 0 && types[i].device == CUDA);
    for (int i = 0; i < operands->n; i++)
        if (operands->at[i].kind == CC_IN_VALUE && rec->trace->graph->val.at[operands->at[i].value].type.device == CUDA)
            made = false;
    if (made) cc_value_guard_module_call(rec, "torch._C", "_cuda_getDevice");
}

enum { MAX_RESULTS = 256, TRIM_NODES = 16, TRIM_BYTES = 1 << 20, SLACK = 64 };

/* The recorder's own memory (1.6 MB for ResNet-50) is interleaved with torch's buffers and keeps free blocks from being
 * merged. Once the process has grown by a SLACKth, free memory is returned, so that a first call does not peak above
 * eager. Not sooner: the kernel clears each returned page anew when torch's next ops write to it. Every 16 nodes, that
 * took 45 ms of BERT-Base's first call; the peaks of BERT-Base and ResNet-50 are eager's either way (Zen 4). With small
 * tensors there is nothing to return. */
static void trim(CcRec *rec, const CcType *types, int n_out) {
    for (int i = 0; i < n_out; i++)
        rec->made += types[i].ndim >= 0 ? (int64_t)sizeof(float) * cc_type_extent(&types[i]) : 0;
    if (rec->trace->graph->node.n % TRIM_NODES != 0 || rec->made < TRIM_BYTES) return;
    rec->made = 0;
    const int64_t now = cc_mem_resident();
    if (rec->resident != 0 && now > rec->resident + rec->resident / SLACK) {
        cc_pages_trim();
        rec->resident = CC_MAX(rec->resident, cc_mem_resident());
    } else if (rec->resident == 0) {
        rec->resident = now;
    }
}

/* Is a number of the call one that a break has read, and that no guard fixes? It varies between calls, so it can't be a
 * constant of a kernel. */
static bool takes_varying(CcRec *rec, const CcCallSpec *spec) {
    for (int i = 0; i < spec->n; i++)
        if (cc_number_varies(rec, spec->in[i], 3)) return true;
    return false;
}

/* Returns the op of the call's row, and the operands that it binds; or CC_OP_host, and all graph values among the
 * arguments. */
static CcOpId take_operands(CcRec *rec, const CcCallSpec *spec, PyObject *result, Operands *out) {
    const bool known_all = spec->bound != NULL && !takes_varying(rec, spec) && bound_operands(rec, spec->bound, out);
    if (!known_all || cc_scope_is_hosts(rec, spec, result) || hides_tensor(rec, spec, out)) {
        out->n = 0;
        for (int i = 0; i < spec->n; i++) collect(rec, spec->in[i], out, 4);
        return CC_OP_host;
    }
    /* a recurrent layer's types don't show the casts inside it (pass/autocast.c) */
    return cc_op_info(spec->bound->op)->kind == CC_K_RNN && cc_mode_autocast_cpu() ? CC_OP_host : spec->bound->op;
}

/* With other sizes, the results may have another length or rank, or the call may raise: notes whether the run for a new
 * key must be able to roll back. */
static void note_sizes(CcRec *rec, const CcCallSpec *spec, const CcAction *action, int out) {
    const bool kind = (action->sequence && !cc_sym_gives_as_many(spec)) || action->undo == CC_UNDO_LOCAL ||
                      cc_sym_by_layout(spec) || cc_sym_squeezes(spec);
    const bool nothing = action->gives > 0 && spec->flags & CC_N_RANDOM; /* dropout of probability 0 */
    if (out >= 0 || nothing || (rec->trace->impure && (kind || catches(rec)))) rec->trace->retry = true;
}

/* In grad mode, requires_grad of the inputs decides whether autograd must see the ops, and an in-place write can make
 * its target require grad. Results: type_of. */
static void note_grad(CcRec *rec, const CcCallSpec *spec) {
    if (!cc_mode_grad_now()) return;
    if (!cc_mode_grad(&rec->mode)) rec->read_grad = true; /* otherwise guards check it anyway */
    for (int i = 0; i < spec->n && spec->flags & CC_N_WRITES; i++)
        if (cc_tens_is(spec->in[i]) && cc_tens_requires_grad(spec->in[i])) rec->trace->needs_grad = true;
}

/* Whether a replay can compare its results' metadata with those of its key, and run again if they differ. */
static bool comparable(const CcRec *rec, const CcCallSpec *spec, const CcType *types, int n_out) {
    bool plain = spec->flags == 0 && !spec->state && !rec->trace->impure && n_out > 0;
    for (int i = 0; i < n_out; i++) plain = plain && types[i].ndim >= 0 && cc_tens_matchable(&types[i]);
    return plain;
}

/* Without grad mode, a view requires a gradient if the base of its operand does, which no guard tells: x[:1] of zeros
 * may have got its requires_grad later. Calls with other operands would have a result that requires one. */
static bool lacks_gradient(const CcCallSpec *spec, PyObject *result, const CcType *types, int n_out) {
    if (cc_mode_grad_now() || spec->bound == NULL || !cc_op_is_view(spec->bound->op) ||
        spec->bound->op == CC_OP_detach || n_out == 0 || types[0].requires_grad || !cc_tens_is(spec->in[0]) ||
        !cc_tens_requires_grad(spec->in[0]))
        return false;
    PyObject *first = cc_tens_is(result) ? result : PySequence_Fast_GET_ITEM(result, 0);
    PyObject *is = PyObject_CallMethod(first, "_is_view", NULL);
    const bool view = is == Py_True; /* reshape: not a copy */
    Py_XDECREF(is);
    cc_raised_clear();
    return view;
}

/* What is learnt about a call before it becomes a node. */
typedef struct Made {
    CcType types[MAX_RESULTS]; /* of its results */
    int n;
    bool sequence; /* its result is a tuple or list of tensors */
    int out;       /* the operand `out=`; -1: none */
} Made;

/* A call that no graph can hold: the reason, and what the report names. */
typedef struct Refusal {
    CcReason reason;
    const char *what;
} Refusal;

static bool refused(CcRec *rec, const CcCallSpec *spec, PyObject *result, const Made *made, Refusal *why) {
    if (hooked(rec, made->types, made->n)) *why = (Refusal){CC_R_ORDER, "hooks of saved tensors"};
    else if (may_strand(rec, spec)) *why = (Refusal){CC_R_STRANDS, spec->name};
    else if (lacks_gradient(spec, result, made->types, made->n))
        *why = (Refusal){CC_R_TORCH_EFFECT, "a view of a view, whose base requires no gradient"};
    else if (made->out >= 0 && resized(rec, spec->in[made->out]))
        *why = (Refusal){CC_R_TORCH_EFFECT, "a tensor given as out= is resized"};
    else return false;
    return true;
}

/* An in-place op returns the tensor that it was given: the number of that operand + 1; 0: none. */
static int16_t given_back(const CcCallSpec *spec, PyObject *result, int n_out) {
    int16_t gives = 0;
    for (int i = 0; n_out == 0 && result != NULL && cc_tens_is(result) && i < spec->n; i++)
        if (spec->in[i] == result) gives = (int16_t)(i + 1);
    return gives;
}

/* The node has set requires_grad of a tensor from outside, itself or by writing what requires a gradient. */
static void note_requires_set(CcRec *rec, const CcCallSpec *spec) {
    const CcProv *p =
        spec->flags & CC_N_WRITES && spec->n > 0 && cc_tens_is(spec->in[0]) ? cc_value_find(rec, spec->in[0]) : NULL;
    if (p == NULL || p->origin != CC_O_SOURCE) return;
    const CcType *type = rec->trace->guards.g.at[p->id].type;
    if (type == NULL || type->ndim < 0 || type->requires_grad != cc_tens_requires_grad(spec->in[0]))
        cc_value_requires_set(rec, spec->in[0]);
}

/* Whether a rollback restores what the trace has done so far, and what this node does: draws from the CPU's default
 * generator, which are `impure`, but nothing that is `lasting`. If a result has another shape than recorded, the call runs
 * again: a draw from a GPU's generator would be made twice. */
static bool repeats(const CcRec *rec, const CcCallSpec *spec, bool redraws) {
    return !rec->trace->lasting && (redraws || !(spec->flags & CC_N_RANDOM));
}

/* What rolling back, or repeating, this node takes. */
static void note_undo(CcRec *rec, const CcCallSpec *spec, int node, bool redraws) {
    CcTrace *t = rec->trace;
    CcNode *n = &t->graph->node.at[node];
    CcAction *a = &t->node.at[n->host];
    int moved[2];
    if (a->undo == CC_UNDO_NOT && cc_undo_moves(t->graph, n, moved)) {
        a->undo = CC_UNDO_MOVES;
        for (int i = 0; i < 2; i++) cc_vec_push(&t->saved, (struct CcSaved){moved[i], node});
    }
    const CcUndo undo = (CcUndo)a->undo;
    n->repeatable = undo != CC_UNDO_NOT;
    const unsigned kept = undo == CC_UNDO_NOT ? CC_N_WRITES | CC_N_EFFECT : 0u;
    const unsigned lasting = kept | (redraws ? 0u : CC_N_RANDOM);
    if (spec->flags & (lasting | CC_N_RANDOM) && !spec->state) t->impure = true;
    if (spec->flags & lasting && !spec->state) t->lasting = true;
    if (undo == CC_UNDO_SAVED) cc_vec_push(&t->saved, (struct CcSaved){graph_value(rec, spec->in[0]), node});
    if (undo == CC_UNDO_REPEATS) cc_vec_push(&t->rewritten, graph_value(rec, spec->in[0]));
    if (undo >= CC_UNDO_SAVED) t->writes = true;
}

/* Adds the node to the graph, and its action to the trace. -> the node */
static int push(CcRec *rec, const CcCallSpec *spec, CcAction *action, CcOpId op, const Operands *operands, Made *made,
                bool unsized) {
    CcTrace *t = rec->trace;
    const bool symbols = takes_symbols(rec, spec, operands), torchs = op == CC_OP_host || op == CC_OP_picked;
    action->fixed = action->checked && !symbols;
    action->follows =
        symbols && !unsized && (action->checked || (torchs && comparable(rec, spec, made->types, made->n)));
    cc_vec_push(&t->node, *action);
    trim(rec, made->types, made->n);
    const int node = cc_graph_node(t->graph, unsized ? CC_OP_host : op, spec->flags, t->node.n - 1, operands->at,
                                   operands->n, made->types, made->n);
    CcNode *n = &t->graph->node.at[node];
    n->kept = spec->kernel == CC_KERNEL_PYTHON;
    n->checkpoint = rec->checkpoint;
    n->function = spec->function != NULL ? cc_functions_add(t->graph, spec->function) : 0;
    t->ops++;
    for (int i = 0; symbols && !unsized && i < made->n; i++) /* a loss has no sizes */
        if (made->types[i].ndim != 0 || cc_sym_squeezes(spec)) cc_sym_mark(rec, n->out0 + i);
    if (symbols) note_sizes(rec, spec, action, made->out);
    return node;
}

CcGo cc_node_add(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result) {
    CcWithNumbers given;
    if (!cc_scope_is_hosts(rec, spec, result) && cc_sym_numbers(rec, spec, result, &given)) spec = &given.spec;
    Made made; /* too large to clear for each node */
    made.n = 0;
    made.sequence = false;
    made.out = keyword(spec, "out");
    /* a number returned by setting state (autocast's nesting depth) depends on guarded state */
    const bool count = spec->state && result != NULL && cc_value_const(result) && !PyFloat_CheckExact(result);
    if (!count) made.n = result_types(rec, spec, result, made.types, MAX_RESULTS, &made.sequence);
    if (made.n < 0) return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, spec->name);
    if (made.n == 0 && spec->flags == 0) { /* returned a known object: an alias under metadata guards */
        if (result != NULL && cc_node_unsized(rec, result) && cc_sym_by_layout(spec)) /* no guard reads its strides */
            return cc_rec_poison(rec, act, CC_R_DATA_SHAPE, spec->name);
        cc_sym_same(rec, act, spec, result);
        return CC_OK;
    }
    Refusal why;
    if (refused(rec, spec, result, &made, &why)) return cc_rec_poison(rec, act, why.reason, why.what);
    const bool draws = redraws(spec, made.types, made.n);
    const CcUndo undo = cc_undo_of(rec, spec, draws); /* before the operands become graph inputs */
    const int args0 = cc_node_args(rec, spec);
    if (args0 < 0) return cc_rec_poison(rec, act, CC_R_UNBUILDABLE, cc_type_name(rec->unbuildable));
    Operands operands = {0};
    const CcOpId op = take_operands(rec, spec, result, &operands);
    guard_device(rec, &operands, made.types, made.n);
    note_grad(rec, spec);
    const bool checked = spec->checked && repeats(rec, spec, draws);
    const bool dynamic = spec->dynamic || spec->checked != checked;
    const bool unsized = dynamic || takes_unsized(rec, &operands);
    if (unsized && made.sequence && !dynamic) {
        /* the number of results may depend on data, too; for nonzero and unique it does not */
        cc_vec_free(&operands);
        return cc_rec_poison(rec, act, CC_R_DATA_SHAPE, spec->name);
    }
    for (int i = 0; unsized && i < made.n; i++) made.types[i] = foreign();
    CcAction action = cc_node_action(spec, act, args0);
    action.sequence = made.sequence;
    action.state = spec->state;
    action.checked = checked;
    action.kernel = (uint8_t)spec->kernel;
    action.undo = (uint8_t)undo;
    action.redraws = draws;
    action.gives = given_back(spec, result, made.n);
    const int node = push(rec, spec, &action, op, &operands, &made, unsized);
    rec->trace->raises = rec->trace->raises || may_raise(spec) || action.checked || action.follows;
    cc_vec_free(&operands);
    rec->trace->python = rec->trace->python || spec->kernel == CC_KERNEL_PYTHON;
    note_undo(rec, spec, node, draws);
    note_requires_set(rec, spec);
    if (!set_results(rec, result, &rec->trace->graph->node.at[node], made.sequence))
        return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, spec->name);
    return CC_OK;
}

CcGo cc_node_check(CcRec *rec, CcAct *act, const CcCallSpec *spec) {
    const bool impure = rec->trace->impure, lasting = rec->trace->lasting;
    const CcGo go = cc_node_add(rec, act, spec, NULL);
    if (go == CC_OK) {
        rec->trace->impure = impure;
        rec->trace->lasting = lasting;
        rec->trace->ops--;
        cc_vec_last(&rec->trace->node).asserts = true;
    }
    return go;
}

CcGo cc_node_effect(CcRec *rec, CcAct *act, const CcCallSpec *spec, PyObject *result) {
    for (int i = 0; i < spec->n; i++)
        if (spec->in[i] != NULL && cc_value_origin(rec, spec->in[i]) == CC_O_UNKNOWN)
            return cc_rec_poison(rec, act, CC_R_UNKNOWN_VALUE, cc_type_name(spec->in[i]));
    CcAction action = cc_node_action(spec, act, 0);
    action.after = rec->trace->graph->node.n;
    cc_finalizers_effect(rec, &action);
    cc_vec_push(&rec->trace->effect, action);
    PyObject **in = cc_mem_get(sizeof *in * (size_t)(spec->n + 1));
    for (int i = 0; i < spec->n; i++) in[i] = Py_XNewRef(spec->in[i]);
    cc_vec_push(&rec->effect, (struct CcRecEffect){in, spec->n});
    if (result != NULL && !cc_value_const(result) && cc_value_origin(rec, result) == CC_O_UNKNOWN)
        cc_value_set(rec, result, CC_O_EFFECT, rec->trace->effect.n - 1);
    return CC_OK;
}

bool cc_node_finish_effects(CcRec *rec, CcMap *memo) {
    CcTrace *t = rec->trace;
    for (int e = 0; e < rec->effect.n; e++) {
        const int args0 = t->args.n, n = rec->effect.at[e].n;
        for (int i = 0; i < n; i++) cc_vec_push(&t->args, -1);
        for (int i = 0; i < n; i++) {
            const int r = cc_recipe_of(rec, rec->effect.at[e].in[i], memo);
            if (r < 0) return false;
            t->args.at[args0 + i] = r;
        }
        t->effect.at[e].args0 = args0;
    }
    return true;
}

void cc_node_clear_effects(CcRec *rec) {
    while (rec->effect.n > 0) { /* may run finalisers, whose code ends the recording again */
        const struct CcRecEffect e = rec->effect.at[--rec->effect.n];
        for (int i = 0; i < e.n; i++) Py_XDECREF(e.in[i]);
        free(e.in);
    }
}

/* ------------------------------------------------------------------ running an action */

static PyObject *none_if(int status) { return status < 0 ? NULL : Py_NewRef(Py_None); }

/* Performs a generic store: a __setattr__ in Python was recorded, so only its final store is replayed. */
static int set_attr(PyObject *o, PyObject *name, PyObject *v) {
    if (!PyType_Check(o) && !PyModule_Check(o) && !cc_known_is(o, CC_KNOWN_LOCAL))
        return PyObject_GenericSetAttr(o, name, v);
    return PyObject_SetAttr(o, name, v);
}

static PyObject *run_format(const CcAction *a, PyObject *const *in) {
    PyObject *v = a->arg == 1   ? PyObject_Str(in[0])
                  : a->arg == 2 ? PyObject_Repr(in[0])
                  : a->arg == 3 ? PyObject_ASCII(in[0])
                                : Py_NewRef(in[0]);
    PyObject *s = v != NULL ? PyObject_Format(v, a->n > 1 ? in[1] : NULL) : NULL;
    Py_XDECREF(v);
    return s;
}

static PyObject *run_assert(PyObject *o) {
    const int is = PyObject_IsTrue(o);
    if (is == 0) PyErr_SetNone(PyExc_AssertionError);
    return is == 1 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *run_join(const CcAction *a, PyObject *const *in) {
    PyObject *empty = PyUnicode_FromString(""), *parts = PyTuple_New(a->n), *s = NULL;
    if (empty != NULL && parts != NULL) {
        for (int i = 0; i < a->n; i++) PyTuple_SET_ITEM(parts, i, Py_NewRef(in[i]));
        s = PyUnicode_Join(empty, parts);
    }
    Py_XDECREF(empty);
    Py_XDECREF(parts);
    return s;
}

int cc_action_bind(const CcAction *a, PyObject *const *in, CcBound *out) {
    switch ((CcActionForm)a->form) {
    case CC_F_CALL: return cc_bind_call(a->target, in, a->n - cc_obj_count(a->kwnames), a->kwnames, out);
    case CC_F_BINOP: return cc_bind_binop((CcBinop)a->arg, false, in[0], in[1], out);
    case CC_F_INPLACE: return cc_bind_binop((CcBinop)a->arg, true, in[0], in[1], out);
    case CC_F_UNARY: return cc_bind_unary(a->arg, in[0], out);
    case CC_F_COMPARE: return cc_bind_compare(a->arg, in[0], in[1], out);
    case CC_F_GETITEM: return cc_bind_getitem(in[0], in[1], out);
    case CC_F_SETITEM: return cc_bind_setitem(in[0], in[1], in[2], out);
    case CC_F_GETATTR: return cc_bind_attr(in[0], PyUnicode_AsUTF8(a->target), out);
    default: return -1;
    }
}

PyObject *cc_action_run(const CcAction *a, PyObject *const *in) {
    switch ((CcActionForm)a->form) {
    case CC_F_CALL: {
        const int n_kw = cc_obj_count(a->kwnames);
        return PyObject_Vectorcall(a->target, in, (size_t)a->n - n_kw, a->kwnames);
    }
    case CC_F_BINOP: return cc_ex_binop((CcBinop)a->arg, false, in[0], in[1]);
    case CC_F_INPLACE: return cc_ex_binop((CcBinop)a->arg, true, in[0], in[1]);
    case CC_F_UNARY:
        return a->arg == '-'   ? PyNumber_Negative(in[0])
               : a->arg == '~' ? PyNumber_Invert(in[0])
                               : PyNumber_Positive(in[0]);
    case CC_F_COMPARE: return PyObject_RichCompare(in[0], in[1], a->arg);
    case CC_F_GETITEM: return PyObject_GetItem(in[0], in[1]);
    case CC_F_SETITEM: return none_if(PyObject_SetItem(in[0], in[1], in[2]));
    case CC_F_DELITEM: return none_if(PyObject_DelItem(in[0], in[1]));
    case CC_F_GETATTR: return PyObject_GetAttr(in[0], a->target);
    case CC_F_SETATTR: return none_if(set_attr(in[0], a->target, in[1]));
    case CC_F_DELATTR: return none_if(set_attr(in[0], a->target, NULL));
    case CC_F_SETCELL: return none_if(PyCell_Set(in[0], a->n > 1 ? in[1] : NULL));
    case CC_F_ASSERT: return run_assert(in[0]);
    case CC_F_FORMAT: return run_format(a, in);
    case CC_F_JOIN: return run_join(a, in);
    }
    return NULL;
}

/* ------------------------------------------------------------------ traces */

static void free_actions(CcAction *at, int n) {
    for (int i = 0; i < n; i++) cc_action_free(&at[i]);
}

void cc_trace_forget(CcTrace *t) {
    for (int i = 0; i < t->kept.n; i++) Py_DECREF(t->kept.at[i].tensor);
    cc_vec_free(&t->kept);
}

void cc_trace_free(CcTrace *t) {
    if (t == NULL) return;
    cc_trace_forget(t);
    cc_guard_free(&t->guards);
    cc_graph_free(t->graph);
    cc_vec_free(&t->input);
    cc_vec_free(&t->input_value);
    cc_vec_free(&t->saved);
    cc_vec_free(&t->rewritten);
    cc_vec_free(&t->gave);
    cc_vec_free(&t->adopted);
    cc_vec_free(&t->deleted);
    cc_vec_free(&t->written);
    cc_vec_free(&t->ahead);
    cc_vec_free(&t->born);
    free_actions(t->node.at, t->node.n);
    cc_vec_free(&t->node);
    free_actions(t->effect.at, t->effect.n);
    cc_vec_free(&t->effect);
    cc_sym_free(t);
    cc_vec_free(&t->args);
    cc_recipe_free(&t->recipes);
    for (int i = 0; i < t->level.n; i++) Py_CLEAR(t->level.at[i].co);
    cc_vec_free(&t->level);
    cc_vec_free(&t->slots);
    cc_break_clear(&t->brk);
    Py_CLEAR(t->start.file);
    Py_CLEAR(t->start.function);
    free(t);
}

int cc_trace_visit(const CcTrace *t, visitproc visit, void *arg) {
    const int status = cc_guard_visit(&t->guards, visit, arg);
    if (status != 0) return status;
    for (int i = 0; i < t->recipes.r.n; i++) Py_VISIT(t->recipes.r.at[i].object);
    for (int i = 0; i < t->node.n; i++) Py_VISIT(t->node.at[i].target);
    for (int i = 0; i < t->effect.n; i++) Py_VISIT(t->effect.at[i].target);
    for (int i = 0; i < t->step.n; i++) Py_VISIT(t->step.at[i].action.target);
    return 0;
}
