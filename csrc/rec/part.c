/* part: a copy of some nodes of a trace, with what makes their operands, which may outlive the trace. It holds no guards,
 * effects or results, so it keeps no other object alive that the trace knows. */
#include "rec_int.h"

static CcAction copy_action(const CcAction *a) {
    CcAction c = *a;
    c.target = Py_XNewRef(a->target);
    c.kwnames = Py_XNewRef(a->kwnames);
    c.co = (PyCodeObject *)Py_XNewRef((PyObject *)a->co);
    c.name = cc_mem_text(a->name);
    return c;
}

static void take_recipe(CcTrace *p, const CcTrace *t, int recipe) {
    const CcRecipe *r = &t->recipes.r.at[recipe];
    Py_XSETREF(p->recipes.r.at[recipe].object, Py_XNewRef(r->object));
    for (int i = 0; i < r->n; i++) take_recipe(p, t, t->recipes.kid.at[r->kid0 + i]);
}

CcTrace *cc_trace_part(const CcTrace *t, const bool *node) {
    CcTrace *p = cc_mem_get(sizeof *p);
    p->graph = cc_graph_copy(t->graph);
    cc_vec_copy(&p->input, &t->input);
    cc_vec_copy(&p->input_value, &t->input_value);
    cc_vec_copy(&p->args, &t->args);
    cc_vec_copy(&p->recipes.r, &t->recipes.r);
    cc_vec_copy(&p->recipes.kid, &t->recipes.kid);
    for (int i = 0; i < p->recipes.r.n; i++) p->recipes.r.at[i].object = NULL;
    for (int i = 0; i < t->node.n; i++) cc_vec_push(&p->node, (CcAction){0});
    for (int i = 0; i < t->graph->node.n; i++) {
        const int action = t->graph->node.at[i].host;
        if (!node[i] || action < 0) continue;
        const CcAction *a = &t->node.at[action];
        p->node.at[action] = copy_action(a);
        for (int k = 0; k < a->n; k++) take_recipe(p, t, t->args.at[a->args0 + k]);
    }
    return p;
}
