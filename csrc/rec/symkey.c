/* The end of a recording with symbols: decides which symbols are words of the key that selects a shape, which are
 * numbers that kernels read in each call, and whether all of them must be constants after all. */
#include "rec_int.h"

static void see_keyed(void *ctx, const CcRecipe *r) {
    CcTrace *t = ctx;
    if (r->make == CC_MAKE_SYMBOL) t->symbol.at[r->id].keyed = true;
}

typedef struct Loose {
    const CcTrace *t;
    bool any;
} Loose;

static void see_loose(void *ctx, const CcRecipe *r) {
    Loose *loose = ctx;
    loose->any = loose->any || (r->make == CC_MAKE_SYMBOL && !loose->t->symbol.at[r->id].keyed);
}

static bool from_symbol(const CcOperand *o, int symbol) {
    return (o->kind == CC_IN_FLOAT || o->kind == CC_IN_INT) && o->value == 1 + symbol;
}

/* Whether a node uses a symbol only as a number that kernels read in each call. */
static bool takes_number(CcTrace *t, const CcNode *n, int symbol) {
    const CcAction *a = &t->node.at[n->host];
    bool half = false;
    int given = 0, taken = 0;
    for (int i = 0; i < a->n; i++) {
        const CcRecipe *r = &t->recipes.r.at[t->args.at[a->args0 + i]];
        given += r->make == CC_MAKE_SYMBOL && r->id == symbol;
    }
    for (int i = 0; i < n->n_in; i++) {
        const CcOperand *o = cc_graph_operand(t->graph, n, i);
        taken += from_symbol(o, symbol) && cc_op_number(t->graph, n, i);
        half =
            half || (o->kind == CC_IN_VALUE && cc_dtype_info((CcDtype)t->graph->val.at[o->value].type.dtype)->size < 4);
    }
    half = half || (n->n_out > 0 && cc_dtype_info((CcDtype)t->graph->val.at[n->out0].type.dtype)->size < 4);
    if (given != taken || t->symbol.at[symbol].late) return false;
    t->symbol.at[symbol].kernel = CC_MAX(t->symbol.at[symbol].kernel, half ? CC_SYM_HALF : CC_SYM_WIDE);
    return true;
}

static void key_node(CcTrace *t, const CcNode *n) {
    const CcAction *a = &t->node.at[n->host];
    for (int i = 0; i < a->n; i++) {
        const int recipe = t->args.at[a->args0 + i];
        const CcRecipe *r = &t->recipes.r.at[recipe];
        if (r->make != CC_MAKE_SYMBOL || !takes_number(t, n, r->id)) cc_sym_visit_recipe(t, recipe, see_keyed, t);
    }
}

/* Makes CC_IN_NUMBER operands of numbers that are not part of the key. */
static void give_numbers(CcTrace *t) {
    for (int i = 0; i < t->symbol.n; i++)
        if (t->symbol.at[i].keyed) t->symbol.at[i].kernel = CC_SYM_NOT;
    for (int i = 0; i < t->graph->operand.n; i++) {
        CcOperand *o = &t->graph->operand.at[i];
        if ((o->kind != CC_IN_FLOAT && o->kind != CC_IN_INT) || o->value == 0 || !t->symbol.at[o->value - 1].kernel)
            continue;
        *o = (CcOperand){.kind = CC_IN_NUMBER, .value = o->value - 1};
    }
}

/* The key contains the symbols that nodes, or reads of nodes' results, depend on, and the symbols from which those are
 * computed. */
static void find_keyed(CcTrace *t) {
    for (int i = 0; i < t->graph->node.n; i++) key_node(t, &t->graph->node.at[i]);
    for (int i = t->step.n - 1; i >= 0; i--) {
        const CcSymStep *step = &t->step.at[i];
        bool needed = step->late;
        for (int k = 0; k < step->n; k++) needed = needed || t->symbol.at[step->symbol0 + k].keyed;
        if (needed) cc_sym_visit(t, &step->action, see_keyed, t);
    }
    for (int i = 0; i < t->number.n; i++) t->number.at[i].keyed = t->symbol.at[t->number.at[i].symbol].keyed;
    for (int i = 0; i < t->step.n; i++) {
        CcSymStep *step = &t->step.at[i];
        Loose loose = {.t = t};
        cc_sym_visit(t, &step->action, see_loose, &loose);
        step->keyed = !loose.any;
        for (int k = 0; k < step->n; k++) t->symbol.at[step->symbol0 + k].keyed = step->keyed;
    }
}

/* Makes all symbols constants under guards: other sizes and numbers get separate recordings. */
static void make_rigid(CcRec *rec, const char *why) {
    CcTrace *t = rec->trace;
    cc_log_add(CC_LOG_RIGID, "%s: sizes and numbers are constants: %s",
               rec->root != NULL ? PyUnicode_AsUTF8(rec->root->func_qualname) : "behind a break", why);
    if (t->ahead.n > 0 && rec->hints != NULL) rec->hints->constant = true;
    for (int i = 0; i < t->resized.n; i++) t->guards.g.at[t->resized.at[i]].dynamic = 0;
    for (int i = 0; i < t->number.n; i++)
        cc_guard_check(&t->guards, t->number.at[i].guard, CC_CHK_VALUE, t->symbol.at[t->number.at[i].symbol].value);
    for (int i = 0; i < t->recipes.r.n; i++) {
        CcRecipe *r = &t->recipes.r.at[i];
        if (r->make != CC_MAKE_SYMBOL) continue;
        r->make = CC_MAKE_CONST;
        r->object = Py_NewRef(t->symbol.at[r->id].value);
    }
    t->resized.n = t->range.n = t->number.n = 0;
    while (t->step.n > 0) {
        CcSymStep *step = &t->step.at[--t->step.n];
        cc_action_free(&step->action);
        Py_XDECREF(step->want);
    }
}

bool cc_sym_gives_as_many(const CcCallSpec *spec) {
    static const char *const names[] = {"where",
                                        "nonzero",
                                        "topk",
                                        "sort",
                                        "max",
                                        "min",
                                        "median",
                                        "mode",
                                        "unique",
                                        "cummax",
                                        "cummin",
                                        "var_mean",
                                        "std_mean",
                                        "kthvalue",
                                        "meshgrid",
                                        "unique_consecutive",
                                        "broadcast_tensors"};
    const char *dot = spec->name != NULL ? strrchr(spec->name, '.') : NULL;
    for (int i = 0; dot != NULL && i < CC_COUNT(names); i++)
        if (strcmp(dot + 1, names[i]) == 0) return true;
    return false;
}

/* Whether a node's write can be undone: autograd does not see it (cc_undo_of). Of a norm's operands, only running
 * statistics are written, which require no gradient. */
static bool undoable_write(const CcTrace *t, const CcNode *n) {
    return !t->needs_grad || t->node.at[n->host].undo != CC_UNDO_NOT ||
           (n->op != CC_OP_host && cc_op_info((CcOpId)n->op)->kind == CC_K_NORM);
}

/* Whether everything that nodes do can be undone: writes that autograd does not see, and random numbers on the CPU. */
static bool undoable(const CcTrace *t) {
    for (int i = 0; i < t->graph->node.n; i++) {
        const CcNode *n = &t->graph->node.at[i];
        const CcAction *a = &t->node.at[n->host];
        if (a->state || a->asserts) continue;
        if (n->flags & CC_N_EFFECT || (n->flags & CC_N_WRITES && !undoable_write(t, n))) return false;
        if (n->flags & CC_N_RANDOM && (n->n_out == 0 || t->graph->val.at[n->out0].type.device != 1)) return false;
    }
    return true;
}

/* Whether the numbers that nodes depend on fit into words of the key. */
static bool fits_key(const CcTrace *t) {
    for (int i = 0; i < t->number.n; i++) {
        int overflow = 0;
        PyObject *v = t->symbol.at[t->number.at[i].symbol].value;
        if (t->number.at[i].keyed && PyLong_Check(v)) (void)PyLong_AsLongLongAndOverflow(v, &overflow);
        if (overflow != 0) return false;
    }
    return true;
}

static int key_words(const CcTrace *t) {
    int n = t->number.n;
    for (int i = 0; i < t->resized.n; i++) n += 2 * t->guards.g.at[t->resized.at[i]].type->ndim;
    return n;
}

void cc_sym_finish(CcRec *rec) {
    cc_sym_drop_pending(rec);
    CcTrace *t = rec->trace;
    if (!cc_trace_symbolic(t)) return;
    const char *why = rec->rigid;
    if (why == NULL && key_words(t) > CC_KEY_MAX) why = "there are too many of them";
    if (why == NULL && t->retry && !undoable(t)) why = "a guard on one follows an operation that can't be undone";
    if (why == NULL) find_keyed(t);
    if (why == NULL && !fits_key(t)) why = "an int needs more than 64 bits";
    if (why != NULL) make_rigid(rec, why);
    else give_numbers(t);
    /* a run reads the sizes of these tensors */
    for (int i = 0; i < t->resized.n; i++) t->guards.g.at[t->resized.at[i]].used = true;
}
