/* checkpoint: torch.utils.checkpoint.checkpoint(function, ..., use_reentrant=False).
 *
 * Without gradients it is a call of the function. With gradients, the recording call performs the real checkpoint, so that
 * its memory and its backward are eager's, and records the function when torch calls it. The nodes carry the number of their
 * checkpoint (CcNode.checkpoint): the backward of a replay computes them again instead of saving them (grad/joint.c).
 * Eager runs the whole function again; so the call is a break if the function does more than compute, or if a variable that
 * it takes from the code around it (a loop's) has another content when the trace ends. */
#include "rec_events.h"

/* What torch calls in place of the function: while the call records, and again in its backward. */
typedef struct Passage {
    CcObserver *obs; /* this and rec live as long as the call that records */
    const CcRec *rec;
    PyObject *function, *through; /* through: the template, until the recording has called it */
    bool paused;                  /* whether the hook was paused before the checkpoint */
    bool told;                    /* the function ran as code that is being compiled */
} Passage;

static const char CAPSULE[] = "ccompile.checkpoint";

static void free_passage(PyObject *capsule) {
    Passage *p = PyCapsule_GetPointer(capsule, CAPSULE);
    Py_DECREF(p->function);
    Py_XDECREF(p->through);
    free(p);
}

/* Calls the function in the template's frame, which is recorded like any frame. */
static PyObject *record(Passage *p, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    const Py_ssize_t all = n + cc_obj_count(kwnames);
    PyObject **in = cc_mem_get(sizeof *in * ((size_t)all + 1)), *through = p->through;
    in[0] = p->function;
    memcpy(in + 1, args, sizeof *in * (size_t)all);
    p->through = NULL;
    cc_hook_pause(p->obs, p->paused);
    PyObject *r = PyObject_Vectorcall(through, in, (size_t)n + 1, kwnames);
    p->told = !p->obs->dead || cc_rec_told(p->rec);
    cc_hook_pause(p->obs, true);
    Py_DECREF(through);
    free(in);
    return r;
}

static PyObject *answer_again(CcObserver *obs, PyObject *func) {
    (void)obs;
    return cc_intrin_answer(func);
}

/* Calls the function as torch's backward does. What it asked while it was recorded (is_compiling) gets the same answers, or
 * it might take another path, and torch raises if other tensors are saved. */
static PyObject *repeat(const Passage *p, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    CcObserver obs = {.dead = true, .answer = answer_again};
    if (p->told && cc_hook_arm(&obs) < 0) return NULL;
    PyObject *r = PyObject_Vectorcall(p->function, args, (size_t)n, kwnames);
    if (p->told) cc_hook_disarm(&obs);
    return r;
}

static PyObject *pass(PyObject *capsule, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    Passage *p = PyCapsule_GetPointer(capsule, CAPSULE);
    if (p->through != NULL) return record(p, args, n, kwnames);
    return repeat(p, args, n, kwnames);
}

static PyMethodDef PASS = {"checkpointed", (PyCFunction)(void (*)(void))pass, METH_FASTCALL | METH_KEYWORDS, NULL};

static PyObject *new_passage(CcAct *act, const CcRec *rec, PyObject *function, PyObject *through) {
    Passage *p = cc_mem_get(sizeof *p);
    *p = (Passage){.obs = act->obs, .rec = rec, .function = Py_NewRef(function), .through = Py_NewRef(through)};
    PyObject *capsule = PyCapsule_New(p, CAPSULE, free_passage);
    if (capsule == NULL) {
        Py_DECREF(function);
        Py_DECREF(through);
        free(p);
        return NULL;
    }
    PyObject *f = PyCFunction_New(&PASS, capsule);
    Py_DECREF(capsule); /* f holds it */
    return f;
}

/* The real checkpoint, with the recorded call inside; the code of torch around it is not recorded. */
static PyObject *perform(const CcRec *rec, CcAct *act, PyObject *checkpoint, PyObject *through, PyObject *const *in,
                         int n, PyObject *kwnames) {
    const int all = n + cc_obj_count(kwnames);
    PyObject *f = new_passage(act, rec, in[0], through), **with = cc_mem_get(sizeof *with * ((size_t)all + 1)),
             *r = NULL;
    if (f != NULL) {
        Passage *p = PyCapsule_GetPointer(PyCFunction_GET_SELF(f), CAPSULE);
        memcpy(with, in, sizeof *with * (size_t)all);
        with[0] = f;
        p->paused = cc_hook_pause(act->obs, true);
        r = PyObject_Vectorcall(checkpoint, with, (size_t)n, kwnames);
        cc_hook_pause(act->obs, p->paused);
        Py_CLEAR(p->through); /* torch may have raised before the call */
        Py_DECREF(f);
    }
    free(with);
    return r;
}

/* Whether no argument changes what the checkpoint does. With use_reentrant=True it warns that no input requires a gradient,
 * and other arguments may be functions that it calls. preserve_rng_state=False draws other numbers in the backward. */
static bool is_plain(PyObject *const *in, int positional, PyObject *kwnames, bool grad) {
    static const char *const more[] = {"context_fn", "determinism_check", "debug"};
    bool plain = false;
    if (positional == 0) return false;
    for (int i = 0; i < cc_obj_count(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = in[positional + i];
        if (cc_text_is(name, "use_reentrant")) plain = value == Py_False;
        if (grad && cc_text_is(name, "preserve_rng_state") && value != Py_True) return false;
        for (int k = 0; k < CC_COUNT(more); k++)
            if (cc_text_is(name, more[k])) return false;
    }
    return plain;
}

/* Whether the value is memory that nodes from `first` on have made. */
static bool is_made_since(const CcGraph *g, int value, int first) {
    while (value >= 0 && g->val.at[value].def >= first) {
        const CcNode *n = &g->node.at[g->val.at[value].def];
        if (n->op == CC_OP_host) return false; /* perhaps a view */
        if (!cc_op_is_view(n->op)) return true;
        value = cc_graph_source(g, n);
    }
    return false;
}

void cc_checkpoint_stored(CcRec *rec, PyObject *to) {
    if (rec->checkpoint == 0 || cc_tens_is(to) || cc_value_const(to)) return; /* nodes tell of tensors */
    const CcProv *p = cc_value_find(rec, to);
    if (p == NULL || p - rec->prov.at < rec->before_checkpoint) rec->wrote_outside = true;
}

static int effects(const CcRec *rec) { return rec->trace->effect.n + rec->effect.n; }

/* Whether running the nodes from `first` on again would change nothing but torch's ambient state, which they restore. */
static bool only_computes(const CcRec *rec, int first, int n_effects) {
    const CcGraph *g = rec->trace->graph;
    for (int i = first; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        const CcAction *a = &rec->trace->node.at[n->host];
        if (n->flags & CC_N_EFFECT && !a->state) return false;
        if (n->flags & CC_N_WRITES && !is_made_since(g, cc_graph_source(g, n), first)) return false;
        if (a->kernel == CC_KERNEL_PYTHON) return false;
    }
    return effects(rec) == n_effects && !rec->wrote_outside;
}

/* Notes the variables of the code around the function. */
static void note_closure(CcRec *rec, const CcAct *act, PyObject *function) {
    const PyFunctionObject *f = cc_call_function(function);
    const CcRecFrame *outer = cc_rec_outer(rec);
    const CcAct *at = outer != NULL ? outer->act : act;
    for (int i = 0; f != NULL && i < cc_obj_count(f->func_closure); i++) {
        PyObject *cell = PyTuple_GET_ITEM(f->func_closure, i), *content = PyCell_GET(cell);
        cc_vec_push(&rec->keep, Py_NewRef(cell));
        cc_vec_push(&rec->keep, Py_NewRef((PyObject *)at->co));
        if (content != NULL) cc_vec_push(&rec->keep, Py_NewRef(content));
        cc_vec_push(&rec->closed, (struct CcClosed){cell, content, at->co, at->pc});
    }
}

/* Marks the node that made the memory of this value. */
static void mark_leaving(CcTrace *t, int value) {
    const CcGraph *g = t->graph;
    const int def = g->val.at[cc_graph_viewed(g, value)].def;
    const CcNode *n = def >= 0 ? &g->node.at[def] : NULL;
    if (n != NULL && n->checkpoint != 0 && n->n_out == 1) t->node.at[n->host].leaves = true;
}

void cc_checkpoint_end(CcTrace *t) {
    const CcGraph *g = t->graph;
    for (int v = 0; v < g->val.n; v++)
        if (g->val.at[v].is_output) mark_leaving(t, v);
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, &g->node.at[i], k);
            const int def = o->kind == CC_IN_VALUE ? g->val.at[o->value].def : -1;
            if (def >= 0 && g->node.at[def].checkpoint != g->node.at[i].checkpoint) mark_leaving(t, o->value);
        }
}

bool cc_checkpoint_outdated(CcRec *rec, const CcAct *act) {
    for (int i = 0; i < rec->closed.n; i++) {
        const struct CcClosed *c = &rec->closed.at[i];
        if (PyCell_GET(c->cell) == c->content) continue;
        cc_site_why(rec, act, CC_R_CHECKPOINT, "a variable that the function reads changes later");
        cc_site_mark(rec, c->co, c->pc);
        return true;
    }
    return false;
}

static CcGo call_with_gradients(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *checkpoint, PyObject *through,
                                PyObject *const *in, int positional, PyObject *kwnames) {
    const CcTrace *trace = rec->trace;
    const int outer = rec->checkpoint, first = trace->graph->node.n, n_effects = effects(rec);
    if (outer == 0 && cc_state_hooks(rec)) return CC_OK; /* they see what is saved inside */
    if (outer == 0) {
        rec->checkpoint = ++rec->n_checkpoint;
        rec->before_checkpoint = rec->prov.n;
        rec->wrote_outside = false;
    }
    ev->result = perform(rec, act, checkpoint, through, in, positional, kwnames);
    if (rec->trace != trace) return CC_DONE; /* the recording was given up inside */
    rec->checkpoint = outer;
    if (only_computes(rec, first, n_effects)) note_closure(rec, act, in[0]);
    else (void)cc_rec_poison(rec, act, CC_R_CHECKPOINT, "the function does more than compute");
    return CC_DONE;
}

CcGo cc_checkpoint_call(CcRec *rec, CcAct *act, CcEvent *ev, PyObject *checkpoint, PyObject *const *in, int positional,
                        PyObject *kwnames) {
    const bool grad = cc_mode_grad_now();
    if (!is_plain(in, positional, kwnames, grad)) return CC_OK;
    PyObject *through = Py_XNewRef(cc_backcall_template(rec, "through", NULL));
    CcGo go = CC_OK;
    if (through != NULL && grad) {
        go = call_with_gradients(rec, act, ev, checkpoint, through, in, positional, kwnames);
    } else if (through != NULL) {
        ev->result = PyObject_Vectorcall(through, in, (size_t)positional, kwnames);
        go = CC_DONE;
    }
    Py_XDECREF(through);
    return go;
}
