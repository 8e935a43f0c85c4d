/* casts: makes nodes of the casts that eager's autocast hides, so that their derivatives cast gradients back:
 *
 *   y = linear(x, w, b)      x, w, b f32, y bf16    ->    p = cast(x); q = cast(w); r = cast(b); y = linear(p, q, r)
 *
 * Eager keeps the cast of a parameter for the whole block, so that a parameter that is used twice has one gradient in
 * the lower precision, which is cast once; anything else is cast for each op that reads it. */
#include "../pass/pass.h"
#include "grad_int.h"

typedef struct Casts {
    CcGraph *g;
    int *made; /* [value of the given graph] its last cast; 0: none */
} Casts;

/* Whether autograd sees no difference between one cast and several. */
static bool is_shared(const CcGraph *g, int value) {
    return g->val.at[value].def < 0 || !g->val.at[value].type.requires_grad;
}

/* The cast of a value, inserted before node `at`, as a part of it. */
static int cast(Casts *c, int at, int value, CcDtype to) {
    CcGraph *g = c->g;
    const int made = c->made[value];
    if (made && is_shared(g, value) && g->val.at[made].type.dtype == to) return made;
    CcType type = cc_adjoint_like(&g->val.at[value].type);
    type.dtype = (uint8_t)to;
    type.requires_grad = cc_rules_needs(g, value);
    const CcNode n = {.op = CC_OP_cast,
                      .in0 = g->operand.n,
                      .n_in = 1,
                      .out0 = g->val.n,
                      .n_out = 1,
                      .host = -1,
                      .origin = -1,
                      .checkpoint = g->node.at[at].checkpoint};
    cc_vec_push(&g->operand, value_of(value));
    cc_vec_push(&g->val, (CcVal){.type = type});
    g->val.at[n.out0].def = cc_edit_insert(g, at, &n);
    return c->made[value] = n.out0;
}

static void cast_operands(Casts *c, int at) {
    CcGraph *g = c->g;
    const CcNode n = g->node.at[at];
    CcDtype *to = cc_mem_get(sizeof *to * ((size_t)n.n_in + 1)); /* judged by the operands before any cast */
    bool any = false;
    for (int i = 0; i < n.n_in; i++) {
        to[i] = cc_autocast_to(g, &n, i, true);
        any = any || to[i] != CC_DT_OTHER;
    }
    CcOperand *in = any ? cc_mem_get(sizeof *in * (size_t)n.n_in) : NULL;
    for (int i = 0; any && i < n.n_in; i++) {
        in[i] = *cc_graph_operand(g, &n, i);
        if (to[i] != CC_DT_OTHER) in[i] = value_of(cast(c, at, in[i].value, to[i]));
    }
    if (any) cc_edit_rewrite(g, at, (CcOpId)n.op, in, n.n_in);
    free(in);
    free(to);
}

void cc_casts_split(CcGraph *g) {
    const int n = g->node.n, n_val = g->val.n;
    Casts c = {g, cc_mem_get(sizeof *c.made * ((size_t)n_val + 1))};
    cc_edit_settle(g);
    for (int i = 0; i < n; i++)
        if (g->node.at[i].flags == 0 && g->node.at[i].n_out == 1) cast_operands(&c, i);
    free(c.made);
    cc_edit_settle(g);
}
