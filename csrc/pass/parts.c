/* parts: replaces one node by several (pass_int.h). */
#include "pass_int.h"

CcOperand cc_parts_add_in(Parts *p, CcOpId op, int result, const CcType *type, const CcOperand *in, int n_in) {
    CcGraph *g = p->g;
    if (result < 0) {
        cc_vec_push(&g->val, (CcVal){.type = *type, .narrowed = true, .hidden = true});
        result = g->val.n - 1;
    }
    CcNode n = p->whole;
    n.op = (uint16_t)op;
    n.in0 = g->operand.n;
    n.n_in = n_in;
    n.out0 = result;
    n.n_out = 1;
    n.rewritten = true;
    if (op != CC_OP_draw) n.flags &= (uint8_t)~CC_N_RANDOM;
    for (int i = 0; i < n_in; i++) cc_vec_push(&g->operand, in[i]);
    const int node = cc_edit_insert(g, p->at, &n);
    cc_edit_val(g, result)->def = node;
    cc_edit_val(g, cc_graph_base(g, result))->def = node;
    p->n++;
    return value_of(result);
}

CcOperand cc_parts_make_in(Parts *p, CcOpId op, int result, const CcType *type, const void *in) {
    CcOperand out[CC_OPERANDS_MAX];
    return cc_parts_add_in(p, op, result, type, out, cc_operands_write(op, in, out));
}

/* The first operand is a tensor, there are few results, and its flags are no obstacle. */
static bool has_form(const CcGraph *g, const CcNode *n, const CcGroupRules *rules, const PartsRules *own) {
    const int x = cc_graph_source(g, n);
    if (x < 0 || g->val.at[x].type.ndim < 0) return false;
    return n->n_out >= 1 && n->n_out <= PARTS_RESULTS && (!n->flags || (own->flagged && own->flagged(n, rules)));
}

static bool may_be(const CcGraph *g, int i, const CcGroupRules *rules, const PartsRules *own) {
    const CcNode *n = &g->node.at[i];
    return own->may_be(g, n, rules) && !cc_group_banned(g, i, rules) && has_form(g, n, rules, own);
}

/* Replaces node i by its parts if back-ends take all of them. */
static void try_node(CcGraph *g, int i, const CcGroupRules *rules, const PartsRules *own, const int *uses) {
    const CcEditMark mark = cc_edit_mark(g);
    Parts p = {.g = g, .whole = g->node.at[i], .at = i, .first = g->node.n, .rules = rules};
    for (int k = 0; k < p.whole.n_out; k++)
        p.needed[k] = uses[p.whole.out0 + k] > 0 || g->val.at[p.whole.out0 + k].is_output;
    cc_edit_drop(g, i);
    bool good = own->make(&p);
    for (int k = p.first; good && k < p.first + p.n; k++)
        good = (own->later && own->later(&g->node.at[k])) || cc_group_keeps(g, k, mark, rules);
    if (!good) cc_edit_undo(g, mark);
}

void cc_parts_rewrite(CcGraph *g, const CcGroupRules *rules, const PartsRules *own) {
    const int n = g->node.n, values = g->val.n;
    bool *live = NULL;
    int *uses = NULL;
    for (int i = 0; i < n; i++) {
        if (!may_be(g, i, rules, own)) continue;
        if (!live) { /* most graphs have no such node */
            live = malloc((size_t)n + 1);
            uses = calloc((size_t)values + 1, sizeof *uses);
            if (!live || !uses) break;
            cc_dce_mark(g, live);
            cc_dce_uses(g, live, uses);
        }
        if (live[i]) try_node(g, i, rules, own, uses);
    }
    free(live);
    free(uses);
}
