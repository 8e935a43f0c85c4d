/* parts: puts several nodes in the place of one (pass_int.h). */
#include "pass_int.h"

CcOperand cc_parts_add(Parts *p, CcOpId op, int result, const CcType *type, int n_in, ...) {
    CcGraph *g = p->g;
    const int node = p->first + p->n++;
    if (p->n > 1) cc_graph_make_room(g, node);
    if (result < 0) {
        cc_vec_push(&g->val, (CcVal){.type = *type, .narrowed = true, .hidden = true});
        result = g->val.n - 1;
    }
    CcNode *n = &g->node.at[node];
    *n = p->whole;
    n->op = (uint16_t)op;
    n->in0 = g->operand.n;
    n->n_in = n_in;
    n->out0 = result;
    n->n_out = 1;
    n->rewritten = true;
    va_list in;
    va_start(in, n_in);
    for (int i = 0; i < n_in; i++) cc_vec_push(&g->operand, va_arg(in, CcOperand));
    va_end(in);
    g->val.at[result].def = g->val.at[cc_graph_base(g, result)].def = node;
    return value_of(result);
}

CcType cc_parts_with_dim(const CcType *t, int dim) {
    CcType out = *t;
    for (int d = out.ndim++; d > dim; d--) {
        out.size[d] = t->size[d - 1];
        out.stride[d] = t->stride[d - 1];
    }
    out.size[dim] = 1;
    out.stride[dim] = 0;
    return out;
}

CcType cc_parts_without_dim(const CcType *t, int dim) {
    CcType out = *t;
    out.ndim--;
    for (int d = dim; d < out.ndim; d++) {
        out.size[d] = t->size[d + 1];
        out.stride[d] = t->stride[d + 1];
    }
    return out;
}

/* A tensor comes first, there are few results, and what it writes is known. */
static bool has_form(const CcGraph *g, const CcNode *n, const CcGroupRules *rules, const PartsRules *own) {
    const CcOperand *x = n->n_in ? cc_graph_operand(g, n, 0) : NULL;
    if (!x || x->kind != CC_IN_VALUE || g->val.at[x->value].type.ndim < 0) return false;
    return n->n_out >= 1 && n->n_out <= PARTS_RESULTS && (!n->flags || (own->writes && own->writes(n, rules)));
}

static bool may_be(const CcGraph *g, int i, const CcGroupRules *rules, const PartsRules *own) {
    const CcNode *n = &g->node.at[i];
    return own->may_be(g, n, rules) && !cc_group_banned(g, i, rules) && has_form(g, n, rules, own);
}

/* -> the number of nodes that node i of *out (of `g`, before there is one) is now */
static int try_node(CcGraph **out, const CcGraph *g, int i, const CcGroupRules *rules, const PartsRules *own,
                    const int *uses) {
    const CcGraph *at = *out ? *out : g;
    const CcNode *n = &at->node.at[i];
    bool needed[PARTS_RESULTS], good = false;
    for (int k = 0; k < n->n_out; k++) needed[k] = uses[n->out0 + k] > 0 || at->val.at[n->out0 + k].is_output;
    Parts p = {.whole = *n, .first = i, .rules = rules};
    p.g = cc_graph_copy(at);
    good = own->make(&p, needed);
    for (int k = 0; good && k < p.n; k++)
        good = (own->later && own->later(&p.g->node.at[i + k])) || cc_group_takes(p.g, i + k, rules);
    cc_graph_free(good ? *out : p.g);
    if (good) *out = p.g;
    return good ? p.n : 1;
}

CcGraph *cc_parts_graph(const CcGraph *g, const CcGroupRules *rules, const PartsRules *own) {
    CcGraph *out = NULL;
    bool *live = NULL;
    int *uses = NULL;
    for (int i = 0, at = 0; i < g->node.n; i++) {
        int parts = 1;
        if (may_be(out ? out : g, at, rules, own)) {
            if (!live) { /* most graphs have no such node */
                live = malloc((size_t)g->node.n + 1);
                uses = calloc((size_t)g->val.n + 1, sizeof *uses);
                if (!live || !uses) break;
                cc_dce_mark(g, live);
                cc_dce_uses(g, live, uses);
            }
            if (live[i]) parts = try_node(&out, g, at, rules, own, uses);
        }
        at += parts;
    }
    free(live);
    free(uses);
    return out;
}
