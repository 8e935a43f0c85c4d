/* Types of a new key without a run. A value that depends on nothing that changed keeps its recorded type. For views,
 * and tensors made from sizes alone, torch computes the result on tensors whose data nobody reads (stand-ins). Rules
 * give the rest (ir/infer.def). If no rule applies, or torch would refuse, the type is unknown, and torch runs the
 * nodes (shape.c). */
#include "eval_int.h"

typedef struct Derive {
    CcSegment *s;
    const CcTrace *t;
    CcCallState *x;
    const CcMaker *maker;
    CcGraph *graph;
    int step;                  /* next late step */
    bool *value, *symbol;      /* whether it differs from the recorded one */
    bool *source;              /* whether it, or something in it, may differ */
    bool moved, counted, lost; /* about the last recipes visited: one differs; a symbol is among them; unknown */
    bool fails;                /* a stand-in could not be made */
} Derive;

/* ------------------------------------------------------------------ what changed */

static bool same_type(const CcType *a, const CcType *b) {
    return a->dtype == b->dtype && a->device == b->device && a->device_index == b->device_index &&
           cc_type_same_layout(a, b);
}

static void look_at(void *ctx, const CcRecipe *r) {
    Derive *d = ctx;
    const bool symbol =
        (r->make == CC_MAKE_SYMBOL && d->symbol[r->id]) || (r->make == CC_MAKE_SOURCE && d->source[r->id]);
    d->counted = d->counted || symbol;
    d->moved = d->moved || symbol || (r->make == CC_MAKE_VALUE && d->value[r->id]);
    d->lost = d->lost || r->make == CC_MAKE_EFFECT;
}

static bool moved(Derive *d, const CcAction *a) {
    d->moved = d->counted = d->lost = false;
    cc_sym_visit(d->t, a, look_at, d);
    return d->moved || d->lost;
}

static void note_symbols(Derive *d, int first, int n) {
    for (int i = first; i < first + n; i++) {
        PyObject *now = d->x->symbol[i];
        d->symbol[i] = now == NULL || !cc_guard_same_value(now, d->t->symbol.at[i].value);
    }
}

/* ------------------------------------------------------------------ stand-ins */

static void stand_in(void *ctx, const CcRecipe *r) {
    Derive *d = ctx;
    if (r->make != CC_MAKE_VALUE || d->x->value[r->id] != NULL) return;
    const CcType *type = &d->graph->val.at[r->id].type;
    if (type->ndim >= 0 && type->device == 1) d->x->value[r->id] = cc_tens_empty(type, NULL);
    d->fails = d->fails || d->x->value[r->id] == NULL;
}

/* Makes an action's operands, with stand-ins of the types found so far for tensors. */
static bool take_operands(Derive *d, const CcAction *a, PyObject **in) {
    cc_sym_visit(d->t, a, stand_in, d);
    return !d->fails && cc_segment_operands(d->t, d->maker, a, in) == 0;
}

static void drop_stand_ins(const Derive *d) {
    for (int v = 0; v < d->graph->val.n; v++)
        if (d->graph->val.at[v].def >= 0) Py_CLEAR(d->x->value[v]);
}

/* ------------------------------------------------------------------ steps */

static bool derive_step(Derive *d, const CcSymStep *step) {
    const bool gives = step->want == NULL && step->same == 0;
    if (!moved(d, &step->action) && step->late && step->keyed) {
        for (int i = step->symbol0; gives && i < step->symbol0 + step->n; i++)
            Py_XSETREF(d->x->symbol[i], Py_NewRef(d->t->symbol.at[i].value));
    } else {
        cc_sym_visit(d->t, &step->action, stand_in, d);
        if (d->lost || d->fails || !cc_shape_step(d->t, d->maker, step, d->x)) return false;
    }
    if (gives) note_symbols(d, step->symbol0, step->n);
    return true;
}

static bool derive_late(Derive *d, int node) {
    for (; d->step < d->t->step.n && d->t->step.at[d->step].action.after <= node; d->step++)
        if (d->t->step.at[d->step].late && !derive_step(d, &d->t->step.at[d->step])) return false;
    return true;
}

static bool derive_early(Derive *d) {
    for (int i = 0; i < d->t->number.n; i++) note_symbols(d, d->t->number.at[i].symbol, 1);
    for (int i = 0; i < d->t->step.n; i++)
        if (!d->t->step.at[i].late && !derive_step(d, &d->t->step.at[i])) return false;
    return true;
}

/* ------------------------------------------------------------------ nodes */

/* Whether reshape() again returns a view, or again a copy: this decides who sees a write to the result. */
static bool views_as_recorded(const Derive *d, int node) {
    const CcNode *n = &d->t->graph->node.at[node];
    if (n->op != CC_OP_reshape) return true;
    CcIn_reshape in;
    if (n->n_out != 1 || !cc_in_reshape(d->t->graph, n, &in)) return false;
    const CcVal *was = d->t->graph->val.at, *is = d->graph->val.at;
    return cc_type_reshapes(&was[in.x.value].type, &was[n->out0].type) ==
           cc_type_reshapes(&is[in.x.value].type, &is[n->out0].type);
}

static bool gives_empty(const Derive *d, const CcNode *n) {
    for (int k = 0; k < n->n_out; k++)
        if (cc_type_numel(&d->graph->val.at[n->out0 + k].type) == 0) return true;
    return false;
}

/* Runs the node on stand-ins, and takes the types of torch's results. */
static bool run_on_stand_ins(Derive *d, int node, CcSegmentHost *host) {
    const CcNode *n = &d->t->graph->node.at[node];
    const CcAction *a = &d->t->node.at[n->host];
    PyObject *in[CC_CALL_MAX];
    if (n->flags != 0 || a->gives != 0 || !take_operands(d, a, in)) return false;
    PyObject *r = cc_action_run(a, in);
    bool ok = r != NULL && (!a->sequence || cc_shape_length(n, r)) && cc_segment_store(host, node, r) == 0;
    if (ok) cc_shape_bind(d->t, d->x, d->graph, node, in);
    for (int i = 0; i < a->n; i++) Py_DECREF(in[i]);
    Py_XDECREF(r);
    return ok && d->graph->node.at[node].op == n->op && !cc_shape_identities_differ(d->t, d->x, n) &&
           cc_shape_take(d->t, d->x, d->graph, node) && !gives_empty(d, n) && views_as_recorded(d, node);
}

static bool bind(Derive *d, int node) {
    const CcNode *n = &d->t->graph->node.at[node];
    const CcAction *a = &d->t->node.at[n->host];
    const bool by_size = a->form == CC_F_GETITEM || a->form == CC_F_SETITEM;
    PyObject *in[CC_CALL_MAX];
    if (!d->counted && !by_size) return true; /* the binding of a call does not depend on sizes */
    if (!take_operands(d, a, in)) return false;
    cc_shape_bind(d->t, d->x, d->graph, node, in);
    for (int i = 0; i < a->n; i++) Py_DECREF(in[i]);
    return true;
}

/* A rule must also reproduce the recorded type before its result counts. */
static bool knows(const Derive *d, int node, CcType *out) {
    const CcGraph *was = d->t->graph;
    const CcNode *n = &was->node.at[node];
    if (n->n_out > CC_BOUND_MAX) return false;
    if (d->s->rules != CC_RULES_HOLD) {
        if (!cc_infer_node(was, node, was, out)) return false;
        for (int k = 0; k < n->n_out; k++)
            if (!same_type(&out[k], &was->val.at[n->out0 + k].type)) return false;
    }
    return cc_infer_node(d->graph, node, was, out);
}

static bool is_contiguous(const CcType *t) {
    CcType plain = *t;
    cc_type_make_contiguous(&plain);
    return cc_type_same_layout(t, &plain);
}

/* A result's size that equals an operand's follows it; any other size stays. False: operands disagree. */
static bool follow(const Derive *d, const CcNode *n, int64_t was, int64_t then, int64_t *now) {
    bool found = was == then;
    *now = was;
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(d->t->graph, n, i);
        if (o->kind != CC_IN_VALUE) continue;
        const CcType *a = &d->t->graph->val.at[o->value].type, *b = &d->s->example->val.at[o->value].type;
        for (int k = 0; k < a->ndim; k++) {
            const int64_t size = d->graph->val.at[o->value].type.size[k];
            if (a->size[k] != was || b->size[k] != then) continue;
            if (found && size != *now) return false;
            found = true;
            *now = size;
        }
    }
    return found;
}

/* An op that only torch knows has no rule: assumes that its results' sizes follow its operands' as they did for an
 * earlier key. Each run checks this (check_results), even where only the sizes are read. */
static bool guess(const Derive *d, int node, CcType *out) {
    const CcNode *n = &d->t->graph->node.at[node];
    if (!d->t->node.at[n->host].follows || d->s->example == NULL || n->n_out > CC_BOUND_MAX) return false;
    for (int k = 0; k < n->n_out; k++) {
        const CcType *was = &d->t->graph->val.at[n->out0 + k].type, *then = &d->s->example->val.at[n->out0 + k].type;
        if (!is_contiguous(was) || !is_contiguous(then)) return false;
        out[k] = *was;
        for (int i = 0; i < was->ndim; i++)
            if (!follow(d, n, was->size[i], then->size[i], &out[k].size[i])) return false;
        cc_type_make_contiguous(&out[k]);
    }
    d->graph->node.at[node].flags |= CC_N_CHECKED;
    return true;
}

static const CcType *type_now(const Derive *d, const CcOperand *o) {
    return o->kind == CC_IN_VALUE ? &d->graph->val.at[o->value].type : NULL;
}

/* Whether torch will accept x[i] = v, which has no result to check: v must have one row for each i. */
static bool puts_rows(const Derive *d, int node) {
    const CcNode *n = &d->graph->node.at[node];
    CcIn_put in;
    if (n->op != CC_OP_put || n->n_out != 0 || !cc_in_put(d->graph, n, &in) || in.key.n != 2) return false;
    const CcOperand *key = cc_graph_operand(d->graph, n, in.key.first);
    if (key->i != CC_KEY_TENSOR) return false;
    const CcType *x = type_now(d, &in.x), *v = type_now(d, &in.value), *i = type_now(d, key + 1);
    if (!x || !v || !i || x->ndim < 1 || i->ndim != 1 || i->dtype != CC_DT_I64 || v->ndim != x->ndim) return false;
    for (int k = 1; k < x->ndim; k++)
        if (x->size[k] != v->size[k]) return false;
    return v->size[0] == i->size[0] && cc_type_numel(x) > 0;
}

/* Neither a rule nor a kernel knows the op. */
static bool is_torchs(const CcNode *n) { return n->op == CC_OP_host || n->op == CC_OP_picked; }

static bool derive_node(Derive *d, int node, CcSegmentHost *host) {
    const CcNode *n = &d->t->graph->node.at[node];
    bool ok = true;
    if (moved(d, &d->t->node.at[n->host])) {
        CcType out[CC_BOUND_MAX];
        ok = !d->lost;
        if (ok && n->op != CC_OP_host && cc_infer_asks((CcOpId)n->op)) {
            ok = run_on_stand_ins(d, node, host);
        } else if (ok) {
            ok = is_torchs(n) ? guess(d, node, out) : bind(d, node) && (puts_rows(d, node) || knows(d, node, out));
            for (int k = 0; ok && k < n->n_out; k++) d->graph->val.at[n->out0 + k].type = out[k];
        }
    }
    for (int v = n->out0; v < n->out0 + n->n_out; v++) {
        const CcType *was = &d->t->graph->val.at[v].type;
        d->graph->val.at[v].type.requires_grad = was->requires_grad; /* stand-ins require none */
        d->value[v] = !same_type(&d->graph->val.at[v].type, was);
    }
    return ok;
}

/* ------------------------------------------------------------------ keys */

static void note_source(Derive *d, int guard) {
    for (; guard >= 0 && !d->source[guard]; guard = d->t->guards.g.at[guard].parent) d->source[guard] = true;
}

/* The rules describe torch's CPU code. */
static bool off_cpu(const CcGraph *g) {
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].type.device > 1) return true;
    return false;
}

static void note_inputs(Derive *d) {
    for (int i = 0; i < d->t->resized.n; i++) note_source(d, d->t->resized.at[i]);
    for (int i = 0; i < d->t->number.n; i++) note_source(d, d->t->number.at[i].guard);
    for (int i = 0; i < d->t->input.n; i++) {
        const int v = d->t->input_value.at[i];
        const CcType now = cc_shape_input(d->t, d->x, i);
        d->graph->val.at[v].type = now;
        d->value[v] = d->source[d->t->input.at[i]] && !same_type(&now, &d->t->graph->val.at[v].type);
    }
}

CcGraph *cc_derive_graph(CcSegment *s, CcSegmentHost *host, CcCallState *x) {
    const CcTrace *t = s->trace;
    if (t->scoped || off_cpu(t->graph)) return NULL;
    Derive d = {.s = s, .t = t, .x = x, .maker = &host->maker, .graph = cc_graph_copy(t->graph)};
    const size_t n_value = (size_t)t->graph->val.n, n_symbol = (size_t)t->symbol.n;
    d.value = cc_mem_get((n_value + n_symbol + (size_t)t->guards.g.n + 1) * sizeof *d.value);
    d.symbol = d.value + n_value;
    d.source = d.symbol + n_symbol;
    note_inputs(&d);
    int node = 0;
    bool ok = derive_early(&d);
    for (; ok && node < t->graph->node.n; node += ok) ok = derive_late(&d, node) && derive_node(&d, node, host);
    ok = ok && derive_late(&d, node);
    s->unknown = !ok && node < t->graph->node.n ? t->node.at[t->graph->node.at[node].host].name : NULL;
    drop_stand_ins(&d);
    cc_raised_clear(); /* torch raises it again */
    free(d.value);
    if (!ok) cc_graph_free(d.graph);
    return ok ? d.graph : NULL;
}

/* a: derived. It may require a gradient where torch's does not: that of a view which was made without grad mode depends
 * on the base of its operand (lacks_gradient in rec/node.c). */
static bool same_value(const CcType *a, const CcType *b, bool grad) {
    if (a->ndim < 0 || b->ndim < 0) return a->ndim < 0 && b->ndim < 0;
    return same_type(a, b) && (!grad || a->requires_grad >= b->requires_grad);
}

/* For each value: whether a node or the front end reads it. */
static bool *find_read(const CcGraph *g) {
    bool *read = cc_mem_get(((size_t)g->val.n + 1) * sizeof *read);
    for (int v = 0; v < g->val.n; v++) read[v] = g->val.at[v].is_output;
    for (int i = 0; i < g->operand.n; i++)
        if (g->operand.at[i].kind == CC_IN_VALUE) read[g->operand.at[i].value] = true;
    return read;
}

/* Values of symbols that are not visible in nodes' operands are compared through the types that depend on them. a: derived;
 * its guesses (CC_N_CHECKED) are compared whether or not they are read. */
bool cc_derive_same(const CcGraph *a, const CcGraph *b, bool grad, int *node) {
    bool *read = find_read(b), same = true;
    for (int i = 0; same && i < a->node.n; i++) {
        const CcNode *n = &a->node.at[i], *m = &b->node.at[i];
        same = n->op == m->op && n->n_in == m->n_in;
        for (int k = 0; same && k < n->n_in; k++) {
            const CcOperand *o = cc_graph_operand(a, n, k), *p = cc_graph_operand(b, m, k);
            same = o->kind == p->kind && o->value == p->value && o->i == p->i && memcmp(&o->f, &p->f, sizeof o->f) == 0;
        }
        for (int v = n->out0; same && v < n->out0 + n->n_out; v++)
            same = (!read[v] && !(n->flags & CC_N_CHECKED)) || same_value(&a->val.at[v].type, &b->val.at[v].type, grad);
        *node = i;
    }
    free(read);
    return same;
}
