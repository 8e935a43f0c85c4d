/* capture: a shape's plan as a CUDA graph, which one launch replays (knob cuda_graphs).
 *
 *   call 1  recorded     2  the plan runs without a graph     3  captured, and replayed     4 ...  replayed
 *
 * The capture includes torch's kernels, so torch performs it (ccompile/graphs.py): its allocator reserves memory
 * allocated meanwhile for the graph. Kernels find the same addresses in each replay:
 *
 *   inputs that stay    parameters, buffers, and inputs at the same address in calls 1 and 2: used in place. Each
 *                       call checks the addresses. An input that has moved is copied from then on; if it is a
 *                       parameter, the plan is captured again
 *   other inputs        copied into buffers of the graph
 *   results             copied into new tensors of the call. So nothing that a caller gets is in the graph's memory: no
 *                       replay can change it, it can be read on any stream, and it outlives the graph, at the cost of
 *                       one copy
 *
 * A graph belongs to one stream, which orders copies and replays; other streams have separate graphs. A plan with parts
 * known not to be capturable is refused in advance. If only the capture finds such a part (a step that waits for the
 * GPU), it fails, and the plan runs without a graph from then on. Either way an event says why. The GIL is held
 * everywhere except inside torch's calls. */
#include "eval_int.h"

enum {
    LEAST_LAUNCHES = 4, /* a replay takes up to three: copies in, the graph, copies out */
    STREAMS = 4,
    CAPTURES = 8 /* most captures per stream: parameters may keep changing */
};
/* Copies may take as long as the launches that are saved. A launch takes about 5 us, in which a GPU copies this many
 * bytes (at 2 TB/s read and written; both figures are estimates, made without a GPU). */
static const int64_t BYTES_PER_STEP = 4 << 20;

enum { CPU = 1, CUDA = 2 }; /* CcType.device */

typedef struct Input {
    void *at;                     /* its address in the last call, or in the graph */
    PyObject *buffer;             /* strong: the buffer it is copied to; NULL: used in place */
    bool moves, written, counted; /* counted: by `_version` */
} Input;

/* Results that share one storage, which is copied at once. */
typedef struct Group {
    uintptr_t storage;
    int n, value;      /* number of results; the value of the first one */
    int64_t low, high; /* range of elements in the storage */
    CcType type;       /* type of the copy: the result's, or [high - low] */
} Group;

typedef struct Result {
    int value, group, input; /* group -1: a view of that input */
    int64_t offset;          /* from the storage's first element, or the input's */
    CcType type;
} Result;

typedef struct Graph {
    void *stream;
    unsigned long thread; /* the thread that ran the plan before: libraries keep per-thread state */
    bool seen, busy, writes;
    int captures;
    Input *in;                /* by trace input */
    PyObject *replay;         /* strong, callable; NULL: not captured */
    PyObject *blocks;         /* strong, list: memory that lives as long as the graph */
    PyObject *buffers, *kept; /* strong, lists: destinations of inputs, sources of results */
    CC_VEC(Group) group;
    CC_VEC(Result) result;
    uint64_t replays;
} Graph;

struct CcCaptures {
    int device, segment, n_input;
    bool forced;
    char *refused; /* why there are no graphs; NULL: not refused */
    CC_VEC(Graph *) graph;
};

struct CcCapturing {
    const CcTrace *trace;
    CcCallState *x;
    Graph *graph;
    PyObject **own; /* the call's inputs; the plan drops those in x after their last use */
};

static PyObject *door; /* ccompile.graphs */
static bool capturing; /* torch can capture only one graph at a time */

/* ------------------------------------------------------------------ what can't be captured */

static bool repeatable(const CcTrace *t, int recipe, bool values) {
    const CcRecipe *r = &t->recipes.r.at[recipe];
    if (r->make == CC_MAKE_EFFECT || (r->make == CC_MAKE_VALUE && !values)) return false;
    if (r->make == CC_MAKE_SYMBOL && !t->symbol.at[r->id].keyed) return false;
    for (int i = 0; i < r->n; i++)
        if (!repeatable(t, t->recipes.kid.at[r->kid0 + i], values)) return false;
    return true;
}

/* Random numbers can be captured: torch registers the device's generator with each capture and advances it in each
 * replay. Seeding the generator is an effect, which can't. */
static const char *refuse_node(const CcTrace *t, const CcGraph *g, const CcNode *n) {
    const CcAction *a = &t->node.at[n->host];
    if (n->flags & CC_N_EFFECT && !a->state) return "it has an effect besides its results";
    if (a->checked) return "the size of its result depends on data";
    for (int i = 0; i < n->n_in; i++)
        if (cc_graph_operand(g, n, i)->kind == CC_IN_NUMBER) return "it takes a number that varies between calls";
    for (int i = 0; i < a->n; i++)
        if (!repeatable(t, t->args.at[a->args0 + i], !a->state))
            return "it takes an object that may vary between calls";
    return NULL;
}

static bool on_device(const CcCaptures *c, const CcType *t) {
    return c->forced ? t->device == CPU : t->device == CUDA && t->device_index == c->device;
}

static void refuse(CcCaptures *c, const char *what, const char *why) {
    CcSbuf sb = {0};
    cc_sbuf_add(&sb, "%s%s%s", what, *what ? ": " : "", why);
    c->refused = cc_mem_text(cc_sbuf_text(&sb));
    cc_log_add(CC_LOG_CAPTURE, "segment %d: no CUDA graph: %s", c->segment, cc_sbuf_text(&sb));
    cc_sbuf_free(&sb);
}

static void look_at_plan(CcCaptures *c, const CcTrace *t, const CcShape *shape) {
    const CcGraph *g = shape->graph;
    CcPlanStats stats;
    cc_run_stats(shape->plan, &stats);
    for (int i = 0; i < g->node.n && c->refused == NULL; i++) {
        const char *why = refuse_node(t, g, &g->node.at[i]);
        if (why != NULL) refuse(c, t->node.at[g->node.at[i].host].name, why);
    }
    for (int v = 0; v < g->val.n && c->refused == NULL; v++) {
        if (g->val.at[v].type.ndim < 0) refuse(c, "", "a value is not a plain tensor");
        else if (!on_device(c, &g->val.at[v].type)) refuse(c, "", "its tensors are on several devices");
    }
    if (c->refused == NULL && t->scoped)
        refuse(c, "", "a block of torch.inference_mode or torch.device begins or ends in it");
    if (c->refused == NULL && stats.launches < LEAST_LAUNCHES)
        refuse(c, "", "it has few steps, and a replay takes three launches");
}

static bool on_gpu(const CcGraph *g) {
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].type.ndim >= 0 && g->val.at[v].type.device == CUDA) return true;
    return false;
}

CcCaptures *cc_capture_new(const CcSegment *s, const CcShape *shape) {
    bool forced = false;
    const int device = cc_run_gpu(shape->plan, &forced);
    if (device < 0 && !on_gpu(shape->graph)) return NULL;
    CcCaptures *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    *c = (CcCaptures){.device = device, .forced = forced, .segment = s->id, .n_input = s->trace->input.n};
    if (device >= 0) look_at_plan(c, s->trace, shape);
    else refuse(c, "", s->trace->needs_grad ? "autograd records it" : "it has no plan for a GPU");
    return c;
}

/* ------------------------------------------------------------------ life */

static void drop_graph(Graph *g, int n_input) {
    Py_CLEAR(g->replay); /* first: kernels must go before their memory */
    Py_CLEAR(g->blocks);
    Py_CLEAR(g->buffers);
    Py_CLEAR(g->kept);
    for (int i = 0; i < n_input; i++) {
        Py_CLEAR(g->in[i].buffer);
        g->in[i].written = g->in[i].counted = false;
    }
    g->group.n = g->result.n = 0;
    g->writes = false;
}

void cc_capture_free(CcCaptures *c) {
    if (c == NULL) return;
    for (int i = 0; i < c->graph.n; i++) {
        Graph *g = c->graph.at[i];
        drop_graph(g, c->n_input);
        cc_vec_free(&g->group);
        cc_vec_free(&g->result);
        free(g->in);
        free(g);
    }
    cc_vec_free(&c->graph);
    free(c->refused);
    free(c);
}

void cc_capture_describe(const CcCaptures *c, CcSbuf *out) {
    int n = 0;
    uint64_t replays = 0;
    for (int i = 0; i < c->graph.n; i++) {
        n += c->graph.at[i]->replay != NULL;
        replays += c->graph.at[i]->replays;
    }
    if (c->refused != NULL) cc_sbuf_add(out, "no CUDA graph: %s", c->refused);
    else
        cc_sbuf_add(out, "%d CUDA graph%s, %llu replay%s", n, n == 1 ? "" : "s", (unsigned long long)replays,
                    replays == 1 ? "" : "s");
}

/* The stream's graph. NULL: too many streams. */
static Graph *find_graph(CcCaptures *c, void *stream) {
    for (int i = 0; i < c->graph.n; i++)
        if (c->graph.at[i]->stream == stream) return c->graph.at[i];
    Graph *g = c->graph.n < STREAMS ? calloc(1, sizeof *g) : NULL;
    if (g == NULL) return NULL;
    g->stream = stream;
    g->in = cc_mem_get(((size_t)c->n_input + 1) * sizeof *g->in);
    cc_vec_push(&c->graph, g);
    return g;
}

/* ------------------------------------------------------------------ inputs */

static PyObject *input_of(const CcTrace *t, const CcCallState *x, int i) { return x->value[t->input_value.at[i]]; }

static void *address_of(PyObject *tensor) {
    CcTensor t;
    cc_tens_read(tensor, false, &t);
    return t.data;
}

/* Notes which inputs have moved since the last call. Returns whether any of them is used in place by the graph. */
static bool note_inputs(const CcTrace *t, const CcCallState *x, Graph *g) {
    bool moved = false;
    for (int i = 0; i < t->input.n; i++) {
        if (g->in[i].buffer != NULL) continue;
        PyObject *o = input_of(t, x, i);
        void *at = address_of(o);
        if (at == g->in[i].at) continue;
        g->in[i].moves = g->seen && !cc_tens_parameter(o);
        g->in[i].at = at;
        moved = true;
    }
    return moved;
}

/* Whether an input that is copied overlaps one that the graph writes to: the copy would read it before the write. */
static bool copies_written(const CcTrace *t, const CcCallState *x, const Graph *g) {
    for (int i = 0; g->writes && i < t->input.n; i++)
        for (int k = 0; g->in[i].buffer != NULL && k < t->input.n; k++)
            if (g->in[k].written && cc_undo_overlap(input_of(t, x, i), input_of(t, x, k))) return true;
    return false;
}

static const char *make_buffers(const CcTrace *t, const CcCallState *x, Graph *g, int64_t *bytes) {
    g->buffers = PyList_New(0);
    for (int i = 0; g->buffers != NULL && i < t->input.n; i++) {
        if (!g->in[i].moves) continue;
        CcTensor v;
        cc_tens_read(input_of(t, x, i), true, &v);
        if (v.type.requires_grad && cc_mode_grad(&t->mode)) return "an input that requires a gradient moves";
        if (cc_type_repeats(&v.type)) return "an input that moves repeats its elements";
        v.type.requires_grad = false;
        g->in[i].buffer = cc_tens_empty(&v.type, NULL);
        if (g->in[i].buffer == NULL || PyList_Append(g->buffers, g->in[i].buffer) < 0)
            return "no memory for its inputs";
        *bytes += cc_type_numel(&v.type) * cc_dtype_info((CcDtype)v.type.dtype)->size;
    }
    return g->buffers != NULL ? NULL : "no memory for its inputs";
}

static int call_door(const char *name, PyObject *a, PyObject *b) {
    PyObject *f = PyObject_GetAttrString(door, name), *args[] = {a, b};
    PyObject *r = f != NULL ? PyObject_Vectorcall(f, args, b != NULL ? 2 : 1, NULL) : NULL;
    Py_XDECREF(f);
    Py_XDECREF(r);
    return r != NULL ? 0 : -1;
}

static int copy_inputs(const CcTrace *t, const CcCallState *x, const Graph *g) {
    const Py_ssize_t n = PyList_GET_SIZE(g->buffers);
    if (n == 0) return 0;
    PyObject *from = PyList_New(n);
    if (from == NULL) return -1;
    for (int i = 0, at = 0; i < t->input.n; i++)
        if (g->in[i].buffer != NULL) PyList_SET_ITEM(from, at++, Py_NewRef(input_of(t, x, i)));
    const int status = call_door("copy", g->buffers, from);
    Py_DECREF(from);
    return status;
}

/* Replaces the call's inputs by buffers, or restores them. */
static void give_inputs(const CcTrace *t, CcCallState *x, const Graph *g, PyObject **own) {
    for (int i = 0; i < t->input.n; i++) {
        PyObject *o = own != NULL ? own[i] : g->in[i].buffer;
        if (o == NULL) continue;
        Py_XSETREF(x->value[t->input_value.at[i]], Py_NewRef(o));
        x->gv[t->input.at[i]] = o;
    }
}

/* ------------------------------------------------------------------ results */

static bool storage_of(PyObject *tensor, uintptr_t *storage, int64_t *offset) {
    PyObject *s = PyObject_CallMethod(tensor, "untyped_storage", NULL);
    PyObject *at = s != NULL ? PyObject_GetAttrString(s, "_cdata") : NULL;
    PyObject *from = at != NULL ? PyObject_CallMethod(tensor, "storage_offset", NULL) : NULL;
    *storage = from != NULL ? (uintptr_t)PyLong_AsUnsignedLongLongMask(at) : 0;
    *offset = from != NULL ? PyLong_AsLongLong(from) : 0;
    Py_XDECREF(from);
    Py_XDECREF(at);
    Py_XDECREF(s);
    return !PyErr_Occurred();
}

static const char *add_to_group(Graph *g, Result *r, uintptr_t storage) {
    const int64_t high = r->offset + cc_type_extent(&r->type);
    for (int i = 0; i < g->group.n; i++) {
        Group *group = &g->group.at[i];
        if (group->storage != storage) continue;
        if (group->type.dtype != r->type.dtype) return "results of several dtypes share their memory";
        group->low = CC_MIN(group->low, r->offset);
        group->high = CC_MAX(group->high, high);
        group->n++;
        r->group = i;
        return NULL;
    }
    r->group = g->group.n;
    cc_vec_push(
        &g->group,
        (Group){.storage = storage, .n = 1, .value = r->value, .low = r->offset, .high = high, .type = r->type});
    return NULL;
}

/* x: the values that the graph sees, with its buffers. */
static const char *bind_result(const CcTrace *t, const CcCallState *x, Graph *g, int value) {
    CcTensor v;
    uintptr_t storage, other;
    int64_t from;
    Result r = {.value = value, .group = -1};
    if (x->value[value] == NULL || !cc_tens_is(x->value[value])) return "a result is not a tensor";
    cc_tens_read(x->value[value], false, &v);
    if (v.type.ndim < 0 || !storage_of(x->value[value], &storage, &r.offset)) return "a result is not a plain tensor";
    v.type.requires_grad = false;
    r.type = v.type;
    for (int i = 0; i < t->input.n; i++) {
        PyObject *in = g->in[i].buffer != NULL ? g->in[i].buffer : input_of(t, x, i);
        if (!storage_of(in, &other, &from)) return "an input has no storage";
        if (other != storage) continue;
        cc_tens_read(in, false, &v);
        if (v.type.dtype != r.type.dtype) return "a result is a view of an input, of another dtype";
        r.input = i;
        r.offset -= from;
        cc_vec_push(&g->result, r);
        return NULL;
    }
    const char *why = add_to_group(g, &r, storage);
    if (why == NULL) cc_vec_push(&g->result, r);
    return why;
}

static PyObject *view_of(PyObject *tensor, const CcType *t, int64_t offset) {
    PyObject *size = PyTuple_New(t->ndim), *stride = size != NULL ? PyTuple_New(t->ndim) : NULL;
    for (int d = 0; stride != NULL && d < t->ndim; d++) {
        PyTuple_SET_ITEM(size, d, PyLong_FromLongLong(t->size[d]));
        PyTuple_SET_ITEM(stride, d, PyLong_FromLongLong(t->stride[d]));
    }
    PyObject *o =
        stride != NULL ? PyObject_CallMethod(tensor, "as_strided", "OOL", size, stride, (long long)offset) : NULL;
    Py_XDECREF(size);
    Py_XDECREF(stride);
    return o;
}

/* Makes the sources of copies. A group of one dense result is the result itself. */
static const char *bind_groups(const CcCallState *x, Graph *g, int64_t *bytes) {
    g->kept = PyList_New(0);
    for (int i = 0; g->kept != NULL && i < g->group.n; i++) {
        Group *group = &g->group.at[i];
        const int64_t n = group->high - group->low;
        PyObject *o = x->value[group->value];
        const bool whole = group->n == 1 && n == cc_type_numel(&group->type);
        if (!whole) {
            group->type.ndim = 1;
            group->type.size[0] = n;
            group->type.stride[0] = 1;
            group->n = CC_MAX(group->n, 2);
        }
        o = whole ? Py_NewRef(o) : view_of(o, &group->type, group->low);
        if (o == NULL || PyList_Append(g->kept, o) < 0) Py_CLEAR(g->kept);
        Py_XDECREF(o);
        *bytes += n * cc_dtype_info((CcDtype)group->type.dtype)->size;
    }
    return g->kept != NULL ? NULL : "no memory for its results";
}

static const char *bind_results(const CcTrace *t, const CcCallState *x, Graph *g, int64_t *bytes) {
    const CcGraph *graph = t->graph;
    const char *why = NULL;
    for (int v = 0; why == NULL && v < graph->val.n; v++)
        if (graph->val.at[v].is_output && graph->val.at[v].def >= 0) why = bind_result(t, x, g, v);
    return why != NULL ? why : bind_groups(x, g, bytes);
}

static int give_results(const CcTrace *t, const CcShape *shape, CcCallState *x, const Graph *g) {
    PyObject *fresh = PyList_New(g->group.n);
    for (int i = 0; fresh != NULL && i < g->group.n; i++) {
        const Group *group = &g->group.at[i];
        PyObject *o = group->n == 1 ? cc_ring_empty(shape->ring, group->value, &group->type, &(void *){NULL})
                                    : cc_tens_empty(&group->type, NULL);
        if (o == NULL) Py_CLEAR(fresh);
        else PyList_SET_ITEM(fresh, i, o);
    }
    if (fresh == NULL || (g->group.n > 0 && call_door("copy", fresh, g->kept) < 0)) {
        Py_XDECREF(fresh);
        return -1;
    }
    for (int i = 0; i < g->group.n; i++) { /* the same memory, with a version that counts no writes yet */
        PyObject *o = PyObject_GetAttrString(PyList_GET_ITEM(fresh, i), "data");
        if (o == NULL || PyList_SetItem(fresh, i, o) < 0) {
            Py_DECREF(fresh);
            return -1;
        }
    }
    int status = 0;
    for (int i = 0; status == 0 && i < g->result.n; i++) {
        const Result *r = &g->result.at[i];
        PyObject *base = r->group >= 0 ? PyList_GET_ITEM(fresh, r->group) : input_of(t, x, r->input), *o;
        uintptr_t storage;
        int64_t from = r->group >= 0 ? -g->group.at[r->group].low : 0;
        if (r->group >= 0 && g->group.at[r->group].n == 1) o = Py_NewRef(base); /* the copy itself */
        else o = r->group < 0 && !storage_of(base, &storage, &from) ? NULL : view_of(base, &r->type, r->offset + from);
        if (o == NULL) status = -1;
        else Py_XSETREF(x->value[r->value], o);
    }
    Py_DECREF(fresh);
    return status;
}

/* ------------------------------------------------------------------ replays */

/* Counts writes in `_version`, which code after the graph may read. */
static int count_writes(const CcTrace *t, const CcCallState *x, const Graph *g) {
    if (!g->writes) return 0;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < t->input.n; i++)
        if (g->in[i].counted && PyList_Append(list, input_of(t, x, i)) < 0) Py_CLEAR(list);
    const int status = list != NULL ? call_door("count_writes", list, NULL) : -1;
    Py_XDECREF(list);
    return status;
}

/* first: right after the capture, which has copied the inputs and set the plan's torch state. */
static int replay(const CcShape *shape, CcSegmentHost *h, Graph *g, bool first) {
    const CcTrace *t = h->trace;
    if (!first && copy_inputs(t, h->x, g) < 0) return -1;
    h->at = t->graph->node.n - 1; /* after all writes */
    PyObject *r = PyObject_CallNoArgs(g->replay);
    Py_XDECREF(r);
    if (r == NULL || (!first && cc_segment_set_states(h) < 0) || give_results(t, shape, h->x, g) < 0) return -1;
    g->replays++;
    return count_writes(t, h->x, g);
}

/* ------------------------------------------------------------------ captures */

void cc_capture_keep(CcCapturing *c, PyObject *block) {
    if (PyList_Append(c->graph->blocks, block) < 0) cc_raised_clear();
}

/* Whether a node writes only to its first operand, judged by its name; otherwise it may write to any. */
static bool writes_first(const CcAction *a) {
    const size_t n = strlen(a->name);
    return a->form != CC_F_CALL || (a->undo != CC_UNDO_NOT && a->undo != CC_UNDO_MOVES) ||
           (n >= 2 && a->name[n - 1] == '_' && a->name[n - 2] != '_' && a->kwnames == NULL);
}

/* Numbers, strings and the like, which guards compare. A container of tensors would hold those of the call, not the
 * graph's. */
static bool plain(PyObject *o, int depth) {
    if (PyTuple_Check(o) || PyList_Check(o)) {
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
            if (depth == 0 || !plain(PySequence_Fast_GET_ITEM(o, i), depth - 1)) return false;
        return true;
    }
    return o == Py_None || PyLong_Check(o) || PyFloat_Check(o) || PyUnicode_Check(o) || cc_tens_constant(o);
}

static bool plain_sources(const CcCapturing *c, int recipe) {
    const CcRecipes *rs = &c->trace->recipes;
    const CcRecipe *r = &rs->r.at[recipe];
    if (r->make == CC_MAKE_SOURCE) return r->aux || plain(c->x->gv[r->id], 4);
    for (int i = 0; i < r->n; i++)
        if (!plain_sources(c, rs->kid.at[r->kid0 + i])) return false;
    return true;
}

/* The graph will write to this tensor. counted: `_version` counts the write. */
static int note_write(CcCapturing *c, PyObject *o, const char *name, bool counted) {
    for (int i = 0; i < c->trace->input.n; i++) {
        Input *input = &c->graph->in[i];
        if (!cc_undo_overlap(o, input->buffer != NULL ? input->buffer : c->own[i])) continue;
        if (input->buffer != NULL) {
            PyErr_Format(PyExc_RuntimeError, "%s writes an input that is elsewhere in each call", name);
            return -1;
        }
        input->written = c->graph->writes = true;
        input->counted = input->counted || counted;
    }
    return 0;
}

int cc_capture_wrote(CcCapturing *c, PyObject *o, bool counted) { return note_write(c, o, "a kernel", counted); }

int cc_capture_call(CcCapturing *c, const CcNode *node, const CcAction *a, PyObject *const *in) {
    const CcTrace *t = c->trace;
    for (int i = 0; i < a->n && !a->state; i++)
        if (!plain_sources(c, t->args.at[a->args0 + i])) {
            PyErr_Format(PyExc_RuntimeError, "%s takes an object that may vary between calls", a->name);
            return -1;
        }
    if (!(node->flags & CC_N_WRITES) || a->state || a->undo == CC_UNDO_LOCAL || a->undo == CC_UNDO_OBJECT) return 0;
    for (int k = 0; k < (writes_first(a) ? CC_MIN(a->n, 1) : node->n_in); k++) {
        PyObject *o = writes_first(a) ? in[0] : NULL;
        const CcOperand *operand = cc_graph_operand(t->graph, node, k);
        if (o == NULL && operand->kind == CC_IN_VALUE) o = c->x->value[operand->value];
        if (o != NULL && cc_tens_is(o) && note_write(c, o, a->name, true) < 0) return -1;
    }
    return 0;
}

/* Adds the pending error's text, and clears it. */
static void take_error(CcSbuf *out) {
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyErr_NormalizeException(&type, &value, &tb);
    PyObject *s = value != NULL ? PyObject_Str(value) : NULL;
    const char *text = s != NULL ? PyUnicode_AsUTF8(s) : NULL;
    const size_t line = text != NULL ? strcspn(text, "\n") : 0;
    cc_sbuf_add(out, "%.*s", text != NULL ? (int)line : 0, text != NULL ? text : "");
    cc_raised_clear();
    Py_XDECREF(s);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(tb);
}

/* Returns whether autocast's cache was enabled before; -1: an error is set. */
static int keep_casts(bool keep) {
    PyObject *before = PyObject_CallMethod(door, "keep_casts", "O", keep ? Py_True : Py_False);
    const int status = before != NULL ? before == Py_True : -1;
    Py_XDECREF(before);
    return status;
}

/* Runs the plan while its work on the stream is captured. -1: an error is set, or *err. */
static int run_captured(CcCapturing *c, CcSegmentHost *h, const CcHost *host, PyObject *capture, CcErr *err) {
    PyObject *r = PyObject_CallMethod(capture, "begin", NULL);
    if (r == NULL) return -1;
    Py_DECREF(r);
    h->capturing = c;
    const int status = cc_run_exec(h->shape->plan, host, NULL, err);
    h->capturing = NULL;
    if (status == 0) return (c->graph->replay = PyObject_CallMethod(capture, "end", NULL)) != NULL ? 0 : -1;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    r = PyObject_CallMethod(capture, "abort", NULL);
    Py_XDECREF(r);
    cc_raised_clear();
    PyErr_Restore(type, value, tb);
    return -1;
}

/* A cast from autocast's cache would not be captured, and is freed at the end of its block; so each replay casts
 * again. */
static int run_with_casts(CcCapturing *c, CcSegmentHost *h, const CcHost *host, PyObject *capture, CcErr *err) {
    const int kept = keep_casts(false);
    if (kept < 0) return -1;
    const int status = run_captured(c, h, host, capture, err);
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const bool restored = keep_casts(kept) >= 0;
    if (type != NULL) PyErr_Restore(type, value, tb); /* keep the first error */
    return restored ? status : -1;
}

/* A new capture object. NULL: *why, or an error is set. */
static PyObject *open_capture(const CcCaptures *c, const CcShape *shape, const char **why) {
    PyObject *capture = PyObject_CallMethod(door, "open", "iO", c->device, c->forced ? Py_True : Py_False);
    if (capture == Py_None) *why = "capturing is not available";
    PyObject *all = capture != NULL && *why == NULL ? PyObject_GetAttrString(capture, "host_steps") : NULL;
    CcPlanStats stats;
    cc_run_stats(shape->plan, &stats);
    if (all == Py_False && stats.host_steps > 0) *why = "steps of torch can't be captured here";
    if (all == NULL || *why != NULL) Py_CLEAR(capture);
    Py_XDECREF(all);
    return capture;
}

/* Captures a graph and prepares its replays. NULL, or why that fails ("": an error is set, or *err). */
static const char *make_graph(CcCaptures *c, const CcShape *shape, CcSegmentHost *h, const CcHost *host, Graph *g,
                              CcErr *err) {
    const CcTrace *t = h->trace;
    int64_t bytes = 0;
    CcPlanStats stats;
    cc_run_stats(shape->plan, &stats);
    const char *why = make_buffers(t, h->x, g, &bytes);
    g->blocks = why == NULL && copy_inputs(t, h->x, g) == 0 ? PyList_New(0) : NULL;
    PyObject *capture = g->blocks != NULL ? open_capture(c, shape, &why) : NULL;
    if (capture == NULL) return why != NULL ? why : "";
    PyObject **own = cc_mem_get(((size_t)t->input.n + 1) * sizeof *own);
    for (int i = 0; i < t->input.n; i++) own[i] = Py_NewRef(input_of(t, h->x, i));
    give_inputs(t, h->x, g, NULL);
    CcCapturing capturing_now = {.trace = t, .x = h->x, .graph = g, .own = own};
    const int status = run_with_casts(&capturing_now, h, host, capture, err);
    if (status < 0) why = "";
    for (int i = 0; i < t->input.n; i++) /* inputs that the run has dropped */
        Py_XSETREF(h->x->value[t->input_value.at[i]], Py_NewRef(own[i]));
    if (status == 0) why = bind_results(t, h->x, g, &bytes);
    if (status == 0 && why == NULL && bytes > stats.steps * BYTES_PER_STEP)
        why = "the copies take longer than the launches that are saved";
    for (int v = 0; v < t->graph->val.n; v++)
        if (t->graph->val.at[v].def >= 0) Py_CLEAR(h->x->value[v]);
    give_inputs(t, h->x, g, own);
    for (int i = 0; i < t->input.n; i++) Py_DECREF(own[i]);
    free(own);
    Py_DECREF(capture);
    return why;
}

/* 0: captured; CC_CAPTURE_NOT: the plan will always run without a graph. */
static int capture_graph(CcCaptures *c, const CcShape *shape, CcSegmentHost *h, const CcHost *host, Graph *g) {
    CcErr err = {0};
    const uint64_t start = cc_log_now_ns();
    drop_graph(g, c->n_input);
    if (++g->captures > CAPTURES) {
        refuse(c, "", "its parameters are replaced again and again");
        return CC_CAPTURE_NOT;
    }
    capturing = g->busy = true;
    const char *why = make_graph(c, shape, h, host, g, &err);
    capturing = g->busy = false;
    if (why == NULL) {
        cc_log_add(CC_LOG_CAPTURE, "segment %d: captured, %zd of %d inputs copied, %d results, %.2f ms", c->segment,
                   PyList_GET_SIZE(g->buffers), c->n_input, g->result.n, (double)(cc_log_now_ns() - start) * 1e-6);
        return 0;
    }
    CcSbuf text = {0};
    if (*why) cc_sbuf_add(&text, "%s", why);
    else if (PyErr_Occurred()) take_error(&text);
    else cc_sbuf_add(&text, "%s", err.text);
    cc_raised_clear();
    refuse(c, "", cc_sbuf_text(&text));
    cc_sbuf_free(&text);
    cc_segment_restore(h);
    h->at = -1;
    drop_graph(g, c->n_input);
    return CC_CAPTURE_NOT;
}

/* The graph for this call; NULL: the plan runs without one. */
static Graph *choose_graph(CcCaptures *c) {
    void *stream = NULL;
    if (door == NULL && (door = PyImport_ImportModule("ccompile.graphs")) == NULL) return NULL;
    if (!c->forced && cc_tens_stream(c->device, &stream) < 0) return NULL;
    PyObject *busy = PyObject_CallMethod(door, "is_capturing", "i", c->device);
    Graph *g = busy == Py_False ? find_graph(c, stream) : NULL;
    Py_XDECREF(busy);
    return g != NULL && !g->busy ? g : NULL;
}

int cc_capture_run(CcSegment *s, CcSegmentHost *h, const CcHost *host) {
    const CcShape *shape = h->shape;
    CcCaptures *c = shape->captures;
    Graph *g = c->refused == NULL && !capturing ? choose_graph(c) : NULL;
    cc_raised_clear();
    if (g == NULL) return CC_CAPTURE_NOT;
    const bool moved = note_inputs(s->trace, h->x, g), captured = g->replay == NULL || moved;
    const unsigned long thread = PyThread_get_thread_ident();
    if (captured && (!g->seen || g->thread != thread)) { /* libraries' initialisation can't be captured */
        g->seen = true;
        g->thread = thread;
        return CC_CAPTURE_NOT;
    }
    if (captured && capture_graph(c, shape, h, host, g) != 0) return CC_CAPTURE_NOT;
    if (copies_written(s->trace, h->x, g)) return CC_CAPTURE_NOT;
    g->busy = true;
    const int status = replay(shape, h, g, captured);
    g->busy = false;
    return status;
}
