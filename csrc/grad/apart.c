/* apart: keeps apart what autograd goes through, and frees, one by one.
 *
 * A stage with gradients is one node of autograd's graph. A backward through one of its outputs calls the hooks of the
 * others, goes on to all that the stage's inputs were computed from, and frees all that the stage saved. So a stage's
 * outputs belong together only if each result of the graph depends on all of them, or on none:
 *
 *   loss of a generator, loss of its critic     two parts
 *   two heads of one trunk                      three parts: the trunk, and each head
 *   two operands of an op behind, one result    one part
 *
 * A value that several parts need, and that has a gradient, becomes an output of a stage of its own. */
#include "grad_int.h"

typedef uint64_t Word;

/* ------------------------------------------------------------------ what depends on a value */

static Word *results_of(const CcParts *p, int value) { return p->results + (size_t)value * (size_t)p->words; }

/* Unites the sets of a node's results. -> whether they are unknown: a result of unknown type may be detached */
static bool unite_results(const CcParts *p, const CcNode *n, Word *of) {
    bool unknown = n->flags & (CC_N_WRITES | CC_N_EFFECT);
    memset(of, 0, sizeof *of * (size_t)p->words);
    for (int k = 0; k < n->n_out; k++) {
        const Word *more = results_of(p, n->out0 + k);
        for (int w = 0; w < p->words; w++) of[w] |= more[w];
        unknown = unknown || p->unknown[n->out0 + k] || p->g->val.at[n->out0 + k].type.ndim < 0;
    }
    return unknown;
}

/* Finds for each value the results of the graph that depend on it, through gradients. Those of a value that is written
 * to are unknown. */
static void find_results(CcParts *p) {
    const CcGraph *g = p->g;
    int n = 0;
    for (int v = 0; v < g->val.n; v++) n += g->val.at[v].is_output && cc_rules_needs(g, v);
    p->words = n / 64 + 1;
    p->results = cc_mem_get(sizeof(Word) * (size_t)p->words * ((size_t)g->val.n + 1));
    p->unknown = cc_mem_get((size_t)g->val.n + 1);
    Word *of = cc_mem_get(sizeof *of * (size_t)p->words);
    for (int v = 0, i = 0; v < g->val.n; v++) {
        if (!g->val.at[v].is_output || !cc_rules_needs(g, v)) continue;
        results_of(p, v)[i / 64] |= (Word)1 << (i % 64);
        i++;
    }
    for (int i = g->node.n - 1; i >= 0; i--) {
        const bool unknown = unite_results(p, &g->node.at[i], of);
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            const int x = cc_graph_value(g, &g->node.at[i], k);
            if (x < 0 || !cc_rules_needs(g, x)) continue;
            for (int w = 0; w < p->words; w++) results_of(p, x)[w] |= of[w];
            p->unknown[x] = p->unknown[x] || unknown;
        }
    }
    free(of);
}

static bool same_results(CcParts *p, int a, int b) {
    if (p->results == NULL) find_results(p);
    return !p->unknown[a] && !p->unknown[b] &&
           memcmp(results_of(p, a), results_of(p, b), sizeof(Word) * (size_t)p->words) == 0;
}

/* ------------------------------------------------------------------ parts of a stage */

typedef struct Parts {
    const CcGraph *g;
    const CcStage *s;
    CC_VEC(int) value; /* the outputs that have gradients */
    CC_VEC(int) part;  /* of these outputs */
    int n;             /* number of parts */
    int *least;        /* [value] the least part whose outputs depend on it; -1: none */
    bool *mixed;       /* [value] outputs of several parts do */
} Parts;

static void list_outputs(Parts *d, CcParts *p) {
    for (int k = 0; k < d->s->out.n; k++) {
        const int v = d->s->out.at[k];
        int i = 0;
        if (!cc_rules_needs(d->g, v)) continue;
        while (i < d->value.n && !same_results(p, d->value.at[i], v)) i++;
        cc_vec_push(&d->part, i < d->value.n ? d->part.at[i] : d->n++);
        cc_vec_push(&d->value, v);
    }
}

static void merge(Parts *d, int value, int least, bool mixed) {
    if (least < 0) return;
    const bool differs = d->least[value] >= 0 && d->least[value] != least;
    d->mixed[value] = d->mixed[value] || mixed || differs;
    d->least[value] = d->least[value] < 0 ? least : CC_MIN(d->least[value], least);
}

/* The same for a node. -> its least part */
static int of_node(const Parts *d, const CcNode *n, bool *mixed) {
    int least = -1;
    *mixed = false;
    for (int k = 0; k < n->n_out; k++) {
        const int v = n->out0 + k;
        if (d->least[v] < 0) continue;
        *mixed = *mixed || d->mixed[v] || (least >= 0 && least != d->least[v]);
        least = least < 0 ? d->least[v] : CC_MIN(least, d->least[v]);
    }
    return least;
}

static const CcNode *node_at(const Parts *d, int i) { return &d->g->node.at[d->s->node.at[i]]; }

static void find_needed(Parts *d) {
    d->least = cc_mem_get(sizeof *d->least * ((size_t)d->g->val.n + 1));
    d->mixed = cc_mem_get((size_t)d->g->val.n + 1);
    for (int v = 0; v < d->g->val.n; v++) d->least[v] = -1;
    for (int i = 0; i < d->value.n; i++) merge(d, d->value.at[i], d->part.at[i], false);
    for (int i = d->s->node.n - 1; i >= 0; i--) {
        bool mixed;
        const int least = of_node(d, node_at(d, i), &mixed);
        for (int k = 0; k < node_at(d, i)->n_in; k++) {
            const int value = cc_graph_value(d->g, node_at(d, i), k);
            if (value >= 0) merge(d, value, least, mixed);
        }
    }
}

/* Exposes the values at which the ways to several parts part. */
static bool expose_forks(const Parts *d, bool *exposed) {
    bool any = false, *leaves = cc_mem_get((size_t)d->g->val.n + 1), mixed;
    for (int i = 0; i < d->value.n; i++) leaves[d->value.at[i]] = true;
    for (int i = 0; i < d->s->node.n; i++) {
        if (of_node(d, node_at(d, i), &mixed) < 0 || mixed) continue;
        for (int k = 0; k < node_at(d, i)->n_in; k++) {
            const int value = cc_graph_value(d->g, node_at(d, i), k);
            if (value >= 0) leaves[value] = true;
        }
    }
    for (int i = 0; i < d->s->node.n; i++)
        for (int k = 0; k < node_at(d, i)->n_out; k++) {
            const int v = node_at(d, i)->out0 + k;
            if (leaves[v] && d->mixed[v] && !exposed[v] && cc_rules_needs(d->g, v)) any = exposed[v] = true;
        }
    free(leaves);
    return any;
}

/* A node that no gradient reaches is in the first part that needs it, or the last one whose values it reads. */
static void place_nodes(const Parts *d, int *part) {
    int *of = cc_mem_get(sizeof *of * ((size_t)d->g->val.n + 1));
    for (int i = 0; i < d->s->node.n; i++) {
        const CcNode *n = node_at(d, i);
        bool mixed;
        const int least = of_node(d, n, &mixed);
        int at = CC_MAX(least, 0);
        for (int k = 0; least < 0 && k < n->n_in; k++) {
            const int v = cc_graph_value(d->g, n, k);
            if (v >= 0) at = CC_MAX(at, of[v]);
        }
        part[d->s->node.at[i]] = at;
        for (int k = 0; k < n->n_out; k++) of[n->out0 + k] = at;
    }
    free(of);
}

int cc_apart_divide(CcParts *p, const CcStage *s, bool *exposed, int *part) {
    Parts d = {.g = p->g, .s = s};
    int n = 1;
    list_outputs(&d, p);
    if (d.n > 1) {
        find_needed(&d);
        n = expose_forks(&d, exposed) ? 0 : d.n;
        if (n > 0) place_nodes(&d, part);
    }
    cc_vec_free(&d.value);
    cc_vec_free(&d.part);
    free(d.least);
    free(d.mixed);
    return n;
}

void cc_apart_free(CcParts *p) {
    free(p->results);
    free(p->unknown);
}
