/* Shapes: the data of one key of a trace with symbols. The recording makes the first one. For a new key, symbolic
 * guards are evaluated and torch runs the recorded nodes step by step: this gives the call's results, and the types for
 * which a plan is made (kernels take sizes as arguments, so none is compiled). So no op needs a rule for the shape of
 * its result. If rules cover all ops and agreed with torch for the first new key, later keys need no such run
 * (derive.c). Keys whose guards fail are remembered, too. Beyond a limit, shapes are dropped. */
#include "eval_int.h"

#include <limits.h>
#include <math.h>

enum {
    FIRST_CREDIT = 4, /* plans */
    MOST_CREDIT = 8,
    DEAR = 4,   /* a plan is expensive if it takes a fourth of a run's time */
    RAISED = 4, /* the limit may grow by this factor */
};

/* ------------------------------------------------------------------ keys */

static bool number_word(PyObject *o, int64_t *word) {
    if (PyFloat_CheckExact(o)) {
        const double v = PyFloat_AS_DOUBLE(o);
        memcpy(word, &v, sizeof v);
        return true;
    }
    if (!PyLong_CheckExact(o)) { /* a numpy scalar: a double holds each of one type, or an int64 does */
        PyObject *number = PyNumber_Check(o) && PyIndex_Check(o) ? PyNumber_Index(o) : PyNumber_Float(o);
        const bool ok = number != NULL && number_word(number, word);
        if (number == NULL) cc_raised_clear();
        Py_XDECREF(number);
        return ok;
    }
    int overflow;
    *word = PyLong_AsLongLongAndOverflow(o, &overflow);
    return overflow == 0;
}

static void add_type(const CcType *t, int64_t *key, int *n) {
    for (int d = 0; d < t->ndim; d++) {
        key[(*n)++] = t->size[d];
        key[(*n)++] = t->stride[d];
    }
}

/* Writes the recorded key and returns its length. The recorder has checked that its numbers fit (fits_key). */
static int recorded_key(const CcTrace *t, int64_t *key) {
    int n = 0;
    for (int i = 0; i < t->resized.n; i++) add_type(t->guards.g.at[t->resized.at[i]].type, key, &n);
    for (int i = 0; i < t->number.n; i++)
        if (t->number.at[i].keyed) (void)number_word(t->symbol.at[t->number.at[i].symbol].value, &key[n++]);
    return n;
}

/* False: a size is out of bounds, or a number is too large for a key. */
static bool current_key(const CcTrace *t, CcCallState *x) {
    x->n_key = 0;
    int range = 0; /* ranges are in the order of the guards */
    for (int i = 0; i < t->resized.n; i++) {
        const int id = t->resized.at[i];
        CcTensor tensor;
        cc_tens_read(x->gv[id], false, &tensor);
        if (tensor.type.ndim < 0) return false;
        add_type(&tensor.type, x->key, &x->n_key);
        for (; range < t->range.n && t->range.at[range].guard == id; range++) {
            const CcSymRange *r = &t->range.at[range];
            if (tensor.type.size[r->dim] < r->min || tensor.type.size[r->dim] > r->max) return false;
        }
    }
    for (int i = 0; i < t->number.n; i++)
        if (t->number.at[i].keyed && !number_word(x->gv[t->number.at[i].guard], &x->key[x->n_key++])) return false;
    return true;
}

/* ------------------------------------------------------------------ life */

static uint64_t hash_of(const int64_t *key, int n) { return cc_map_hash(key, sizeof *key * (size_t)n, 0) | 1; }

/* Hashes have the same order as shapes. */
static void to_front(CcSegment *s, int i) {
    CcShape *shape = s->shape.at[i];
    const uint64_t hash = s->hash.at[i];
    memmove(s->shape.at + 1, s->shape.at, sizeof shape * (size_t)i);
    memmove(s->hash.at + 1, s->hash.at, sizeof hash * (size_t)i);
    s->shape.at[0] = shape;
    s->hash.at[0] = hash;
}

/* A dropped key has recurred: if this happens often, the limit grows. */
static void note_return(CcSegment *s, uint64_t hash) {
    if (!cc_map_remove(&s->dropped, (const void *)(uintptr_t)hash)) return;
    if (++s->returned <= s->shape_limit || s->shape_limit >= s->most_shapes) return;
    s->returned = 0;
    s->shape_limit = CC_MIN(2 * s->shape_limit, s->most_shapes);
    cc_log_add(CC_LOG_SHAPE, "segment %d: sizes recur whose plans were dropped: %d plans are kept from now on", s->id,
               s->shape_limit);
}

static CcShape *add_shape(CcSegment *s, const int64_t *key, int n) {
    const uint64_t hash = hash_of(key, n);
    note_return(s, hash);
    CcShape *shape = cc_mem_get(sizeof *shape);
    shape->key = cc_mem_get(sizeof *key * (size_t)(n + 1));
    memcpy(shape->key, key, sizeof *key * (size_t)n);
    shape->n_key = n;
    cc_vec_push(&s->shape, shape);
    cc_vec_push(&s->hash, hash);
    to_front(s, s->shape.n - 1);
    return shape;
}

static void drop_plan(const CcTrace *t, CcShape *shape) {
    if (shape->plan != NULL) cc_run_free(shape->plan);
    cc_capture_free(shape->captures);
    cc_training_free(shape->training);
    cc_freeze_free(shape->freeze);
    cc_ring_free(shape->ring);
    if (shape->graph != t->graph && shape->graph != NULL) cc_graph_free(shape->graph);
    shape->plan = NULL;
    shape->captures = NULL;
    shape->training = NULL;
    shape->freeze = NULL;
    shape->ring = NULL;
    shape->graph = NULL;
}

void cc_shape_free(const CcTrace *t, CcShape *shape) {
    drop_plan(t, shape);
    for (int i = 0; shape->symbol != NULL && i < t->symbol.n; i++) Py_CLEAR(shape->symbol[i]);
    free(shape->symbol);
    free(shape->key);
    free(shape);
}

/* Drops a random shape, but not the newest. If sizes cycle (in a decoder), the least recently used one is needed next,
 * so with more sizes than the limit LRU would never hit. */
static void drop_any(CcSegment *s) {
    for (int tries = s->shape.n; s->shape.n > s->shape_limit && s->shape.n > 1 && tries > 0; tries--) {
        s->random = s->random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        const int i = 1 + (int)((s->random >> 33) % (uint64_t)(s->shape.n - 1));
        if (s->shape.at[i]->running > 0 || s->shape.at[i]->held > 0) continue;
        if (s->dropped.n >= 2 * s->most_shapes) cc_map_free(&s->dropped);
        if (s->shape_limit < s->most_shapes) cc_map_put(&s->dropped, (const void *)(uintptr_t)s->hash.at[i], 1);
        cc_shape_free(s->trace, s->shape.at[i]);
        s->shape.at[i] = cc_vec_last(&s->shape);
        s->hash.at[i] = cc_vec_last(&s->hash);
        s->shape.n = --s->hash.n;
    }
}

static void keep_symbols(const CcTrace *t, CcShape *shape, PyObject *const *value) {
    if (t->symbol.n == 0) return;
    shape->symbol = cc_mem_get((size_t)t->symbol.n * sizeof *shape->symbol);
    for (int i = 0; i < t->symbol.n; i++)
        shape->symbol[i] = Py_XNewRef(value != NULL ? value[i] : t->symbol.at[i].value);
    /* symbols that are not part of the key are evaluated in every call */
    for (int i = 0; i < t->symbol.n; i++)
        if (!t->symbol.at[i].keyed && cc_trace_symbolic(t)) Py_CLEAR(shape->symbol[i]);
}

/* Compiles the shape's graph. kept: eager's values by graph value, for the self-check; NULL: none. symbol: that run's
 * symbols. */
static void compile(CcSegment *s, CcShape *shape, PyObject *const *kept, PyObject *const *symbol) {
    const CcTrace *t = s->trace;
    const uint64_t start = cc_log_now_ns();
    CcErr err = {0};
    shape->freeze = cc_freeze_new(shape->graph, !s->options.ordered);
    if (s->reuse_results) shape->ring = cc_ring_new(shape->graph->val.n);
    shape->graph->resizes = cc_trace_symbolic(t);
    shape->plan = cc_run_compile(shape->graph, &s->options, &err);
    s->plans++;
    if (shape->plan != NULL && kept != NULL && !s->options.host_only && !t->impure && !t->python && !t->writes &&
        !cc_verify_shape(s, shape, kept, symbol)) {
        cc_repro_keep(s, kept, symbol, "the self-check failed");
        cc_run_free(shape->plan);
        shape->plan = cc_run_compile(shape->graph, &(CcRunOptions){.host_only = true}, &err);
        cc_freeze_fix(shape->freeze);
    }
    if (shape->plan != NULL && s->trains) shape->training = cc_training_new(s, shape->graph);
    if (shape->plan != NULL && s->cuda_graphs) shape->captures = cc_capture_new(s, shape);
    s->root->compile_ns += cc_log_now_ns() - start;
    if (shape->plan != NULL) {
        cc_tell_plan(s, shape);
        return;
    }
    cc_log_add(CC_LOG_FALLBACK, "segment %d: %s", s->id, err.text);
    s->broken = true;
}

void cc_shape_repack(CcSegment *s, CcShape *shape) {
    const uint64_t start = cc_log_now_ns();
    CcErr err = {0};
    cc_freeze_tell(shape->freeze, s->id);
    CcPlan *plan = cc_run_compile(shape->graph, &s->options, &err);
    s->root->compile_ns += cc_log_now_ns() - start;
    if (plan == NULL) {
        cc_log_add(CC_LOG_FALLBACK, "segment %d: the plan stays as it is: %s", s->id, err.text);
        cc_freeze_fix(shape->freeze);
        return;
    }
    cc_run_free(shape->plan);
    shape->plan = plan;
    if (shape->ring != NULL) cc_ring_free(shape->ring);
    if (s->reuse_results) shape->ring = cc_ring_new(shape->graph->val.n);
    s->plans++;
    cc_tell_plan(s, shape);
}

void cc_shape_first(CcRoot *root, CcSegment *s) {
    CcTrace *t = s->trace;
    int64_t key[CC_KEY_MAX];
    s->options = (CcRunOptions){.host_only = t->needs_grad,
                                .no_llvm = !root->knobs.backend_llvm,
                                .no_dnnl = !root->knobs.backend_onednn,
                                .default_dtype = cc_mode_default_dtype(),
                                .autotune = root->knobs.autotune != 0,
                                .measures = root->knobs.measure && !cc_mode_deterministic(&t->mode),
                                .ordered = cc_mode_deterministic(&t->mode),
                                .fills = cc_mode_fills_memory(&t->mode),
                                .convolves = true,
                                .no_library = !cc_mode_onednn(&t->mode)};
    s->shape_limit = root->knobs.shape_limit;
    s->most_shapes = CC_MIN(s->shape_limit, INT_MAX / RAISED) * RAISED;
    s->credit = FIRST_CREDIT;
    s->run_ns = s->planned_ns = UINT64_MAX;
    s->verify = s->trace->guards.verify = root->knobs.verify != 0;
    s->reuse_results = root->knobs.reuse_results != 0;
    s->cuda_graphs = root->knobs.cuda_graphs != 0;
    s->trains = root->knobs.training != 0;
    CcShape *shape = add_shape(s, key, recorded_key(t, key));
    shape->graph = t->graph;
    keep_symbols(t, shape, NULL);
    PyObject **kept = t->kept.n > 0 ? calloc((size_t)(t->graph->val.n + t->symbol.n) + 1, sizeof *kept) : NULL;
    PyObject **symbol = kept != NULL ? kept + t->graph->val.n : NULL;
    for (int i = 0; kept != NULL && i < t->kept.n; i++) kept[t->kept.at[i].value] = t->kept.at[i].tensor;
    for (int i = 0; symbol != NULL && i < t->symbol.n; i++) symbol[i] = t->symbol.at[i].value;
    compile(s, shape, kept, symbol);
    free(kept);
    cc_trace_forget(t);
}

/* ------------------------------------------------------------------ symbolic steps */

bool cc_shape_step(const CcTrace *t, const CcMaker *m, const CcSymStep *step, CcCallState *x) {
    PyObject *in[CC_CALL_MAX];
    if (cc_segment_operands(t, m, &step->action, in) < 0) return false;
    PyObject *r = cc_action_run(&step->action, in);
    for (int i = 0; i < step->action.n; i++) Py_DECREF(in[i]);
    if (r == NULL) return false;
    bool ok = true;
    if (step->same > 0) {
        ok = r == in[step->same - 1]; /* the caller keeps this tensor alive */
    } else if (step->want != NULL) {
        ok = cc_guard_same_value(r, step->want);
    } else if (step->action.sequence) {
        ok = PyTuple_Check(r) && PyTuple_GET_SIZE(r) == step->n;
        for (int i = 0; ok && i < step->n; i++)
            Py_XSETREF(x->symbol[step->symbol0 + i], Py_NewRef(PyTuple_GET_ITEM(r, i)));
    } else {
        ok = Py_TYPE(r) == Py_TYPE(t->symbol.at[step->symbol0].value);
        if (ok) Py_XSETREF(x->symbol[step->symbol0], Py_NewRef(r));
    }
    Py_DECREF(r);
    return ok;
}

/* Runs the steps of every call: numbers that no node depends on. -1, or the step that failed, without an error set. */
static int run_loose(const CcTrace *t, CcCallState *x) {
    const CcMaker m = cc_segment_maker(t, x, false);
    for (int i = 0; i < t->step.n; i++) {
        if (t->step.at[i].keyed || cc_shape_step(t, &m, &t->step.at[i], x)) continue;
        cc_raised_clear(); /* an exception: recording this call raises it */
        return i;
    }
    return -1;
}

/* Numbers for kernels must be finite and fit: eager may refuse numbers that do not fit a dtype, and treats NaN bounds
 * specially. 2^53: a double represents all ints up to it. */
bool cc_shape_out_of_range(const CcTrace *t, const CcCallState *x) {
    for (int i = 0; i < t->symbol.n; i++) {
        if (t->symbol.at[i].kernel == CC_SYM_NOT) continue;
        const double v =
            PyFloat_CheckExact(x->symbol[i]) ? PyFloat_AS_DOUBLE(x->symbol[i]) : PyLong_AsDouble(x->symbol[i]);
        if (v == -1.0 && PyErr_Occurred()) cc_raised_clear();
        /* false for NaN */
        else if (fabs(v) <= (t->symbol.at[i].kernel == CC_SYM_HALF ? 65504 : 0x1p53)) continue;
        return true;
    }
    return false;
}

void cc_shape_hold(CcCallState *x, CcShape *shape) {
    shape->held++;
    x->shape = shape;
}

int cc_shape_find(CcSegment *s, CcCallState *x) {
    const CcTrace *t = s->trace;
    if (!current_key(t, x)) return t->step.n;
    const uint64_t hash = hash_of(x->key, x->n_key);
    for (int i = 0; i < s->shape.n; i++) {
        CcShape *shape = s->shape.at[i];
        if (s->hash.at[i] != hash || shape->n_key != x->n_key ||
            memcmp(shape->key, x->key, sizeof *x->key * (size_t)x->n_key) != 0)
            continue;
        if (i > 0) to_front(s, i);
        if (shape->misfit > 0) return shape->misfit - 1;
        cc_shape_hold(x, shape);
        break;
    }
    for (int i = 0; i < t->number.n; i++) x->symbol[t->number.at[i].symbol] = Py_NewRef(x->gv[t->number.at[i].guard]);
    for (int i = 0; x->shape != NULL && i < t->symbol.n; i++)
        if (x->symbol[i] == NULL) x->symbol[i] = Py_XNewRef(x->shape->symbol[i]);
    if (x->shape == NULL) return -1; /* explore() evaluates them */
    if (x->shape->plan != NULL && !x->shape->used) {
        x->shape->used = true;
        s->credit = CC_MIN(s->credit + 1, MOST_CREDIT);
    }
    const int failed = run_loose(t, x);
    x->unfit = failed < 0 && cc_shape_out_of_range(t, x);
    return failed;
}

/* ------------------------------------------------------------------ new keys */

typedef struct Explorer {
    CcSegment *s;
    const CcTrace *t;
    CcSegmentHost *host;
    CcCallState *x;
    CcGraph *graph; /* being made */
    int step;       /* next late step */
    int *last;      /* [value]: the last node that reads it, or after which a late step does; outputs: never dropped */
    CcRollback undo;
    /* the step that failed; past the last one: a node returned something other than recorded */
    int misfit;
} Explorer;

/* Runs the late steps that precede this node. */
static bool run_late(Explorer *e, int node) {
    for (; e->step < e->t->step.n && e->t->step.at[e->step].action.after <= node; e->step++) {
        const CcSymStep *step = &e->t->step.at[e->step];
        if (!step->late || cc_shape_step(e->t, &e->host->maker, step, e->x)) continue;
        e->misfit = e->step;
        return false;
    }
    return true;
}

static bool run_early(Explorer *e) {
    for (int i = 0; i < e->t->step.n; i++) {
        if (e->t->step.at[i].late || cc_shape_step(e->t, &e->host->maker, &e->t->step.at[i], e->x)) continue;
        e->misfit = i;
        return false;
    }
    return true;
}

static bool operand_is(const CcTrace *t, const CcCallState *x, const CcNode *n, int i, PyObject *tensor) {
    const CcOperand *o = cc_graph_operand(t->graph, n, i);
    return o->kind == CC_IN_VALUE && x->value[o->value] == tensor;
}

static int value_of(const CcTrace *t, const CcCallState *x, const CcNode *n, PyObject *tensor) {
    for (int i = 0; i < n->n_in; i++)
        if (operand_is(t, x, n, i, tensor)) return cc_graph_operand(t->graph, n, i)->value;
    return -1;
}

/* The graph value of operand i. If the node binds as recorded, the recorded value, because two arguments may be the
 * same tensor in this call only. -1: ambiguous. */
static int operand_value(const CcTrace *t, const CcCallState *x, const CcNode *n, int i, PyObject *tensor, bool same) {
    if (same && operand_is(t, x, n, i, tensor)) return cc_graph_operand(t->graph, n, i)->value;
    const int value = value_of(t, x, n, tensor);
    for (int k = 0; k < n->n_in; k++)
        if (operand_is(t, x, n, k, tensor) && cc_graph_operand(t->graph, n, k)->value != value) return -1;
    return value;
}

static bool takes_numbers(const CcTrace *t, const CcNode *n) {
    for (int i = 0; i < n->n_in; i++)
        if (cc_graph_operand(t->graph, n, i)->kind == CC_IN_NUMBER) return true;
    return false;
}

void cc_shape_bind(const CcTrace *t, const CcCallState *x, CcGraph *g, int node, PyObject *const *in) {
    const CcNode *recorded = &t->graph->node.at[node];
    CcNode *n = &g->node.at[node];
    if (recorded->op == CC_OP_host) return;
    CcBound bound;
    bool ok = cc_action_bind(&t->node.at[recorded->host], in, &bound) == 0;
    const int in0 = g->operand.n;
    const bool same = ok && bound.n == recorded->n_in && bound.op == recorded->op;
    ok = ok && (same || !takes_numbers(t, recorded));
    for (int i = 0; ok && i < bound.n; i++) {
        CcOperand o = bound.in[i].constant;
        o.value = 0;
        if (i < recorded->n_in && cc_graph_operand(t->graph, recorded, i)->kind == CC_IN_NUMBER)
            o = *cc_graph_operand(t->graph, recorded, i);
        else if (same && o.kind == cc_graph_operand(t->graph, recorded, i)->kind)
            o.value = cc_graph_operand(t->graph, recorded, i)->value; /* the symbol that computed it */
        if (bound.in[i].tensor != NULL)
            o = (CcOperand){.kind = CC_IN_VALUE, .value = operand_value(t, x, recorded, i, bound.in[i].tensor, same)};
        ok = o.kind != CC_IN_VALUE || o.value >= 0;
        cc_vec_push(&g->operand, o);
    }
    n->op = (uint16_t)(ok ? bound.op : CC_OP_host);
    if (!ok) return;
    n->in0 = in0;
    n->n_in = bound.n;
}

static const struct CcGave *recorded_as_given(const CcTrace *t, int item) {
    for (int i = 0; i < t->gave.n; i++)
        if (t->gave.at[i].item == item) return &t->gave.at[i];
    return NULL;
}

bool cc_shape_identities_differ(const CcTrace *t, const CcCallState *x, const CcNode *n) {
    for (int k = 0; k < n->n_out; k++) {
        PyObject *o = x->value[n->out0 + k];
        if (o == NULL || !cc_tens_is(o)) continue;
        const struct CcGave *gave = recorded_as_given(t, n->out0 + k);
        if (gave == NULL ? value_of(t, x, n, o) >= 0 : gave->value < 0 || x->value[gave->value] != o) return true;
    }
    return false;
}

/* The recorded write went to memory of the graph; now reshape() or the like may have returned a view of an input
 * instead. */
static bool writes_input(const Explorer *e, const CcAction *a, PyObject *const *in) {
    for (int i = 0; a->undo == CC_UNDO_LOCAL && i < e->t->input.n; i++)
        if (cc_undo_overlap(in[0], e->x->value[e->t->input_value.at[i]])) return true;
    return false;
}

bool cc_shape_take(const CcTrace *t, const CcCallState *x, CcGraph *g, int node) {
    const CcNode *n = &t->graph->node.at[node];
    for (int k = 0; k < n->n_out; k++) {
        CcType *type = &g->val.at[n->out0 + k].type;
        PyObject *o = x->value[n->out0 + k];
        if (type->ndim < 0 || o == NULL) continue; /* opaque to the graph */
        CcTensor now;
        cc_tens_read(o, true, &now);
        if (now.type.ndim != type->ndim || now.type.dtype != type->dtype || now.type.device != type->device ||
            (n->host >= 0 && t->node.at[n->host].fixed && !cc_type_same_layout(&now.type, type)))
            return false;
        *type = now.type;
    }
    return true;
}

bool cc_shape_length(const CcNode *n, PyObject *r) {
    const Py_ssize_t length = PyObject_Size(r);
    if (length < 0) cc_raised_clear();
    return length == n->n_out;
}

/* An operand that the node may write to; it can only read what repeats its elements. */
static bool is_writable(PyObject *o) {
    CcTensor t;
    if (o == NULL || !cc_tens_is(o)) return false;
    cc_tens_read(o, false, &t);
    return !cc_type_repeats(&t.type);
}

static int save(Explorer *e, const CcNode *n) {
    int status = n->flags & CC_N_RANDOM ? cc_rollback_random(&e->undo) : 0;
    for (int i = 0; status == 0 && n->flags & CC_N_WRITES && i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(e->t->graph, n, i);
        PyObject *v = o->kind == CC_IN_VALUE ? e->x->value[o->value] : NULL;
        if (is_writable(v)) status = cc_rollback_write(&e->undo, v);
    }
    return status;
}

/* An `out=` was resized, unlike in the recording. */
static bool resizes(const Explorer *e, const CcNode *n, const CcAction *a) {
    for (int i = 0; a->kwnames != NULL && n->flags & CC_N_WRITES && i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(e->t->graph, n, i);
        const CcType *type = o->kind == CC_IN_VALUE ? &e->graph->val.at[o->value].type : NULL;
        PyObject *v = type != NULL && type->ndim >= 0 ? e->x->value[o->value] : NULL;
        if (v != NULL && cc_tens_is(v) && !cc_tens_match(v, Py_TYPE(v), type, false)) return true;
    }
    return false;
}

static bool run_node(Explorer *e, int node) {
    const CcNode *n = &e->t->graph->node.at[node];
    const CcAction *a = &e->t->node.at[n->host];
    PyObject *in[CC_CALL_MAX];
    e->host->at = node;
    if (cc_segment_draws(e->host, node) < 0 || cc_segment_operands(e->t, &e->host->maker, a, in) < 0) return false;
    e->host->unsaved = e->t->retry && save(e, n) < 0;
    PyObject *r = e->host->unsaved || writes_input(e, a, in) ? NULL : cc_action_run(a, in);
    bool ok = r != NULL && (a->gives == 0 || r == in[a->gives - 1]) && (!a->sequence || cc_shape_length(n, r)) &&
              cc_segment_store(e->host, node, r) == 0;
    if (ok) cc_shape_bind(e->t, e->x, e->graph, node, in);
    for (int i = 0; i < a->n; i++) Py_DECREF(in[i]);
    Py_XDECREF(r);
    return ok && !cc_shape_identities_differ(e->t, e->x, n) && !resizes(e, n, a) &&
           cc_shape_take(e->t, e->x, e->graph, node);
}

static void note_reads(void *ctx, int value, int node) {
    int *last = ctx;
    last[value] = CC_MAX(last[value], node);
}

/* Finds the last read of each value: like eager, a run drops values after it, unless the self-check needs them. */
static void find_last(Explorer *e) {
    const CcGraph *g = e->t->graph;
    e->last = cc_mem_get(((size_t)g->val.n + 1) * sizeof *e->last);
    for (int n = 0; n < g->node.n; n++)
        for (int i = 0; i < g->node.at[n].n_in; i++) {
            const CcOperand *o = cc_graph_operand(g, &g->node.at[n], i);
            if (o->kind == CC_IN_VALUE) note_reads(e->last, o->value, n);
        }
    cc_trace_late_reads(e->t, note_reads, e->last);
}

static void drop_dead(Explorer *e, int node) {
    const CcGraph *g = e->t->graph;
    for (int v = 0; v < g->val.n; v++)
        if (e->last[v] == node && g->val.at[v].def >= 0 && g->val.at[v].def <= node && !g->val.at[v].is_output)
            Py_CLEAR(e->x->value[v]);
}

static bool explore(Explorer *e) {
    const CcGraph *g = e->t->graph;
    if (!run_early(e)) return false;
    for (int n = 0; n < g->node.n; n++) {
        if (!run_late(e, n) || !run_node(e, n)) return false;
        drop_dead(e, n);
    }
    return run_late(e, g->node.n);
}

CcType cc_shape_input(const CcTrace *t, const CcCallState *x, int i) {
    const int value = t->input_value.at[i];
    CcTensor now;
    cc_tens_read(x->value[value], true, &now);
    now.type.requires_grad = t->graph->val.at[value].type.requires_grad;
    return now.type;
}

static void take_inputs(Explorer *e) {
    for (int i = 0; i < e->t->input.n; i++)
        e->graph->val.at[e->t->input_value.at[i]].type = cc_shape_input(e->t, e->x, i);
}

/* Whether planning waits until the key recurs. A number may differ in every call (a time, a learning rate): the first
 * call makes no plan. A size that occurs once is not worth a plan that takes as long as the run itself (libraries
 * generate code for each size of a convolution): plans for new sizes spend a budget, and reuse refills it. If rules
 * give the types, no budget is needed as long as plan and run together are no slower than torch. */
static bool waits(const CcSegment *s) {
    for (int i = 0; i < s->trace->number.n; i++)
        if (s->trace->number.at[i].keyed) return true;
    return s->credit <= 0 && (s->rules != CC_RULES_HOLD || s->planned_ns > s->run_ns);
}

void cc_shape_charge(CcSegment *s, uint64_t ns) {
    s->planned_ns = CC_MIN(s->planned_ns, ns);
    if (ns > s->run_ns && s->credit > 0) s->credit--;
}

/* Compares a graph from rules with the graph from torch's run. */
static void judge(CcSegment *s, const CcGraph *derived, const CcGraph *graph) {
    int node;
    if (derived == NULL) return;
    /* without grad mode, requires_grad tells a view from a copy; the recorder lets nobody read it (ev_attr.c) */
    if (cc_derive_same(derived, graph, cc_mode_grad(&s->trace->mode), &node)) {
        if (s->rules == CC_RULES_NEW) s->rules = CC_RULES_HOLD;
        return;
    }
    s->rules = CC_RULES_WRONG;
    CcSbuf was = {0}, is = {0};
    const CcNode *n = &graph->node.at[node];
    const bool guess = s->trace->node.at[n->host].follows; /* no fault of a rule: torch runs later sizes */
    if (n->n_out > 0) cc_tens_describe(&derived->val.at[n->out0].type, &was);
    if (n->n_out > 0) cc_tens_describe(&graph->val.at[n->out0].type, &is);
    cc_log_add(guess ? CC_LOG_FALLBACK : CC_LOG_VERIFY, "segment %d: %s gave %s for %s, torch %s", s->id,
               guess ? "a guess" : "rules", cc_sbuf_text(&was), cc_op_info((CcOpId)n->op)->name, cc_sbuf_text(&is));
    cc_sbuf_free(&was);
    cc_sbuf_free(&is);
}

int cc_shape_derive(CcSegment *s, CcSegmentHost *host, CcCallState *x) {
    const uint64_t start = cc_log_now_ns();
    const bool again = x->shape != NULL;
    if (s->rules != CC_RULES_HOLD || s->verify || s->broken || x->unfit || (!again && waits(s))) return -1;
    CcGraph *graph = cc_derive_graph(s, host, x);
    if (graph == NULL) return -1;
    if (cc_shape_out_of_range(s->trace, x)) {
        cc_graph_free(graph);
        return -1;
    }
    CcShape *shape = again ? x->shape : add_shape(s, x->key, x->n_key);
    if (!again) keep_symbols(s->trace, shape, x->symbol);
    shape->running++;
    const uint64_t known = cc_log_now_ns();
    if (shape->plan == NULL) { /* another thread may have made it */
        shape->graph = graph;
        shape->derived = true;
        compile(s, shape, NULL, x->symbol);
    } else {
        cc_graph_free(graph);
    }
    shape->running--;
    if (!again) cc_shape_hold(x, shape);
    host->shape = shape;
    cc_log_more(CC_LOG_SHAPE, (CcLogExtra){.start_ns = start},
                "segment %d: shape %d, %.2f ms, sizes by rules in %.2f ms", s->id, s->shape.n,
                (double)(cc_log_now_ns() - start) * 1e-6, (double)(known - start) * 1e-6);
    drop_any(s);
    if (shape->plan != NULL) return 0;
    cc_graph_free(shape->graph);
    shape->graph = NULL;
    return -1;
}

static bool has_guesses(const CcTrace *t) {
    for (int i = 0; i < t->node.n; i++)
        if (t->node.at[i].follows) return true;
    return false;
}

void cc_shape_reject_derived(CcSegment *s, CcShape *shape) {
    if (!shape->derived || shape->running > 0) return;
    s->rules = CC_RULES_WRONG;
    drop_plan(s->trace, shape);
}

CcRan cc_shape_explore(CcSegment *s, CcSegmentHost *host, CcCallState *x) {
    const bool tries = s->rules == CC_RULES_NEW || s->verify;
    CcGraph *derived = tries ? cc_derive_graph(s, host, x) : NULL;
    const char *unknown = tries && derived == NULL ? s->unknown : NULL;
    const uint64_t start = cc_log_now_ns();
    Explorer e = {.s = s,
                  .t = s->trace,
                  .host = host,
                  .x = x,
                  .graph = cc_graph_copy(s->trace->graph),
                  .misfit = s->trace->step.n};
    take_inputs(&e);
    find_last(&e);
    const bool ok = explore(&e);
    const uint64_t ran = cc_log_now_ns();
    if (ok) s->run_ns = CC_MIN(s->run_ns, ran - start);
    if (ok) judge(s, derived, e.graph);
    if (ok && s->example == NULL && has_guesses(s->trace)) s->example = cc_graph_copy(e.graph);
    if (derived != NULL) cc_graph_free(derived);
    free(e.last);
    if (!ok && s->trace->retry) {
        host->undone = cc_rollback_all(&e.undo) == 0;
        host->lost = !host->undone;
    }
    cc_rollback_free(&e.undo);
    /* an exception: recording this call raises it */ if (e.misfit < s->trace->step.n && !host->lost)
        cc_raised_clear();
    if (!ok && PyErr_Occurred()) { /* eager raises it, too */
        cc_graph_free(e.graph);
        return CC_RAN_FAILED;
    }
    const bool again = x->shape != NULL, by_key = e.misfit == s->trace->step.n || s->trace->step.at[e.misfit].keyed;
    CcShape *shape = again || (!ok && !by_key) ? x->shape : add_shape(s, x->key, x->n_key);
    if (!ok) {
        cc_graph_free(e.graph);
        if (by_key) shape->misfit = 1 + e.misfit;
        x->misfit = e.misfit;
        drop_any(s);
        return CC_RAN_MISFIT;
    }
    shape->running++;
    if (!again) keep_symbols(s->trace, shape, x->symbol);
    const char *later = !again && waits(s)                   ? ", planned when these sizes come again"
                        : cc_shape_out_of_range(s->trace, x) ? ", not planned: a number is out of range for kernels"
                                                             : NULL;
    if (shape->plan == NULL && later == NULL) { /* another thread may have made it */
        shape->graph = e.graph;
        shape->derived = false;
        compile(s, shape, s->verify ? x->value : NULL, x->symbol);
        if (!again && DEAR * (cc_log_now_ns() - ran) > s->run_ns) s->credit--;
    } else {
        cc_graph_free(e.graph);
        s->unplanned++;
    }
    shape->running--;
    cc_log_more(CC_LOG_SHAPE, (CcLogExtra){.start_ns = start}, "segment %d: shape %d, %.2f ms%s%s%s", s->id, s->shape.n,
                (double)(cc_log_now_ns() - start) * 1e-6, shape->plan == NULL && later != NULL ? later : "",
                unknown != NULL ? ", no rule for its sizes: " : "", unknown != NULL ? unknown : "");
    drop_any(s);
    return CC_RAN;
}
