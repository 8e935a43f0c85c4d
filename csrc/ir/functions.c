/* functions: what custom autograd.Functions compute (CcFunction), and what they compute for operands of other sizes. */
#include "ir.h"

void cc_functions_make(CcFunction *f) {
    f->result = cc_mem_get(sizeof *f->result * ((size_t)f->n_out + 1));
    f->grad = cc_mem_get(sizeof *f->grad * ((size_t)f->n_in + 1));
    f->kept = cc_mem_get((size_t)(f->n_in + f->n_out) + 1);
}

int cc_functions_result(const CcFunction *f, int value) {
    for (int k = 0; k < f->n_out; k++)
        if (f->result[k] == value) return k;
    return -1;
}

void cc_functions_free_one(CcFunction *f) {
    if (f->graph != NULL) cc_graph_free(f->graph);
    free(f->result);
    free(f->grad);
    free(f->kept);
    *f = (CcFunction){0};
}

void cc_functions_release(CcFunctions *fs) {
    if (fs == NULL || __atomic_sub_fetch(&fs->refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    for (int i = 0; i < fs->at.n; i++) cc_functions_free_one(&fs->at.at[i]);
    cc_vec_free(&fs->at);
    free(fs);
}

int cc_functions_add(CcGraph *g, CcFunction *f) {
    if (f->graph == NULL) return 0;
    if (g->functions == NULL) {
        g->functions = cc_mem_get(sizeof *g->functions);
        g->functions->refs = 1;
    }
    cc_vec_push(&g->functions->at, *f);
    *f = (CcFunction){0};
    return g->functions->at.n;
}

void cc_functions_share(CcGraph *to, const CcGraph *from) {
    if (from->functions == NULL) return;
    (void)__atomic_add_fetch(&from->functions->refs, 1, __ATOMIC_RELAXED);
    to->functions = from->functions;
}

/* ------------------------------------------------------------------ other sizes */

static bool same_type(const CcType *a, const CcType *b) { return a->dtype == b->dtype && cc_type_same_layout(a, b); }

/* Types of all values, from those of the inputs. recorded: the same graph, with types that belong together. */
static bool infer(CcGraph *g, const CcGraph *recorded) {
    CcType out[CC_OPERANDS_MAX];
    for (int i = 0; i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        if (n->n_out > CC_OPERANDS_MAX || !cc_infer_node(g, i, recorded, out)) return false;
        for (int k = 0; k < n->n_out; k++) g->val.at[n->out0 + k].type = out[k];
    }
    return true;
}

bool cc_functions_scale(const CcFunction *f) {
    CcGraph *g = cc_graph_copy(f->graph);
    bool same = infer(g, f->graph);
    for (int i = 0; same && i < g->node.n; i++) {
        const CcNode *n = &g->node.at[i];
        same = n->n_out == 1 && !cc_op_is_view(n->op) &&
               same_type(&g->val.at[n->out0].type, &f->graph->val.at[n->out0].type);
    }
    cc_graph_free(g);
    return same;
}

/* The function for the operands that this call has. False: unknown. */
static bool fit(const CcGraph *g, const CcNode *call, const CcFunction *f, CcFunction *out) {
    *out = *f;
    out->graph = cc_graph_copy(f->graph);
    cc_functions_make(out);
    memcpy(out->result, f->result, sizeof *out->result * (size_t)f->n_out);
    memcpy(out->grad, f->grad, sizeof *out->grad * (size_t)f->n_in);
    memcpy(out->kept, f->kept, (size_t)(f->n_in + f->n_out));
    for (int k = 0; k < f->n_in + f->n_out; k++) {
        CcType *t = &out->graph->val.at[k].type;
        *t = g->val.at[k < f->n_in ? cc_graph_operand(g, call, k)->value : call->out0 + k - f->n_in].type;
        t->requires_grad = 0;
    }
    bool ok = infer(out->graph, f->graph);
    for (int k = 0; ok && k < f->n_out; k++)
        ok = same_type(&out->graph->val.at[f->result[k]].type, &g->val.at[call->out0 + k].type);
    for (int k = 0; ok && k < f->n_in; k++)
        ok = f->grad[k] < 0 || cc_type_same_shape(&out->graph->val.at[f->grad[k]].type, &out->graph->val.at[k].type);
    if (!ok) cc_functions_free_one(out);
    return ok;
}

static bool fits(const CcGraph *g, const CcNode *call, const CcFunction *f) {
    for (int k = 0; k < f->n_in; k++)
        if (!same_type(&g->val.at[cc_graph_operand(g, call, k)->value].type, &f->graph->val.at[k].type)) return false;
    for (int k = 0; k < f->n_out; k++)
        if (!same_type(&g->val.at[call->out0 + k].type, &f->graph->val.at[f->result[k]].type)) return false;
    return true;
}

void cc_functions_fit(CcGraph *g) {
    CcGraph held = {0}; /* the new table */
    bool all = true;
    for (int i = 0; all && i < g->node.n; i++)
        all = g->node.at[i].function == 0 || fits(g, &g->node.at[i], cc_graph_function(g, &g->node.at[i]));
    if (all) return;
    for (int i = 0; i < g->node.n; i++) {
        CcNode *n = &g->node.at[i];
        CcFunction f;
        if (n->function == 0) continue;
        n->function = fit(g, n, cc_graph_function(g, n), &f) ? cc_functions_add(&held, &f) : 0;
    }
    cc_functions_release(g->functions);
    g->functions = held.functions;
}
