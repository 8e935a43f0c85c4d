/* apart: keeps apart what autograd goes through, and frees, one by one.
 *
 * The backward of a stage goes on to all that its inputs were computed from, and frees all that the stage saved. In eager,
 * a backward through one result calls no hook of an input that only another one depends on, and the other can still be
 * differentiated unless it needs what was freed:
 *
 *   loss of a generator, loss of its critic        nothing in common: two parts
 *   two heads of one trunk                         three parts: the trunk, and each head
 *   two functions of x and w that share exp(x @ w) one part
 *   two operands of an op behind, one result       one part: each backward goes through both
 *
 * Outputs that are not alike in this sense belong to different parts of the stage. A value that several parts need, and
 * that has a gradient, becomes an output of a stage of its own. */
#include "grad_int.h"

typedef uint64_t Word;

typedef struct Outs {
    const CcGraph *g;
    const CcStage *s;
    CC_VEC(int) value; /* the outputs that have gradients */
    int words;         /* of a set of outputs */
    Word *reach;       /* [value] the outputs that gradients flow from to the value */
    Word *alike;       /* [output] */
    int *group;        /* [output] */
} Outs;

static bool has(const Word *set, int i) { return set[i / 64] >> (i % 64) & 1; }
static void add(Word *set, int i) { set[i / 64] |= (Word)1 << (i % 64); }

static bool unite(Word *set, const Word *more, int words) {
    bool any = false;
    for (int w = 0; w < words; w++) {
        any = any || more[w] != 0;
        set[w] |= more[w];
    }
    return any;
}

static bool includes(const Word *set, const Word *part, int words) {
    for (int w = 0; w < words; w++)
        if (part[w] & ~set[w]) return false;
    return true;
}

/* ------------------------------------------------------------------ what depends on a value */

/* Sets for each value the results of the graph that depend on it, through gradients. A value that is written to, or that
 * leaves unseen, has none: its set is unknown. */
static void find_results(CcParts *p) {
    const CcGraph *g = p->g;
    int n = 0;
    for (int v = 0; v < g->val.n; v++) n += g->val.at[v].is_output && cc_rules_needs(g, v);
    p->words = n / 64 + 1;
    p->results = cc_mem_get(sizeof(Word) * (size_t)p->words * ((size_t)g->val.n + 1));
    p->unknown = cc_mem_get((size_t)g->val.n + 1);
    for (int v = 0, i = 0; v < g->val.n; v++)
        if (g->val.at[v].is_output && cc_rules_needs(g, v)) add(p->results + (size_t)v * (size_t)p->words, i++);
    Word *of = cc_mem_get(sizeof *of * (size_t)p->words);
    for (int i = g->node.n - 1; i >= 0; i--) {
        const CcNode *node = &g->node.at[i];
        bool unknown = node->flags & (CC_N_WRITES | CC_N_EFFECT);
        memset(of, 0, sizeof *of * (size_t)p->words);
        for (int k = 0; k < node->n_out; k++) {
            unite(of, p->results + (size_t)(node->out0 + k) * (size_t)p->words, p->words);
            unknown = unknown || p->unknown[node->out0 + k];
        }
        for (int k = 0; k < node->n_in; k++) {
            const CcOperand *o = cc_graph_operand(g, node, k);
            if (o->kind != CC_IN_VALUE || !cc_rules_needs(g, o->value)) continue;
            unite(p->results + (size_t)o->value * (size_t)p->words, of, p->words);
            p->unknown[o->value] = p->unknown[o->value] || unknown;
        }
    }
    free(of);
}

static bool same_results(CcParts *p, int a, int b) {
    if (p->results == NULL) find_results(p);
    return !p->unknown[a] && !p->unknown[b] &&
           memcmp(p->results + (size_t)a * (size_t)p->words, p->results + (size_t)b * (size_t)p->words,
                  sizeof(Word) * (size_t)p->words) == 0;
}

/* ------------------------------------------------------------------ which outputs are alike */

static bool saves(CcParts *p, int node) {
    enum { UNKNOWN, NOTHING, SOMETHING };
    if (p->saves == NULL) p->saves = cc_mem_get((size_t)p->g->node.n + 1);
    if (p->saves[node] == UNKNOWN) p->saves[node] = cc_rules_saves(p->g, node) ? SOMETHING : NOTHING;
    return p->saves[node] == SOMETHING;
}

static Word *row(const Outs *o, Word *sets, int i) { return sets + (size_t)i * (size_t)o->words; }

/* Follows gradients from the outputs to the operands of a node. of: a set */
static void follow(CcParts *p, Outs *o, int node, Word *of) {
    const CcNode *n = &o->g->node.at[node];
    bool any = false;
    memset(of, 0, sizeof *of * (size_t)o->words);
    for (int k = 0; k < n->n_out; k++)
        if (cc_rules_needs(o->g, n->out0 + k)) any = unite(of, row(o, o->reach, n->out0 + k), o->words) || any;
    if (!any) return;
    for (int i = 0; i < o->value.n && (n->n_out > 1 || saves(p, node)); i++)
        if (has(of, i)) unite(row(o, o->alike, i), of, o->words);
    for (int k = 0; k < n->n_in; k++) {
        const CcOperand *x = cc_graph_operand(o->g, n, k);
        if (x->kind == CC_IN_VALUE && cc_rules_needs(o->g, x->value)) unite(row(o, o->reach, x->value), of, o->words);
    }
}

/* by: the outputs that depend on one input. The others are not like them. */
static void tell_apart(Outs *o, const Word *by) {
    for (int i = 0; i < o->value.n; i++)
        for (int w = 0; w < o->words; w++) row(o, o->alike, i)[w] &= has(by, i) ? by[w] : ~by[w];
}

static void find_alike(CcParts *p, Outs *o) {
    for (int i = 0; i < o->value.n; i++) {
        add(row(o, o->reach, o->value.at[i]), i);
        add(row(o, o->alike, i), i);
    }
    Word *of = cc_mem_get(sizeof *of * (size_t)o->words);
    for (int i = o->s->node.n - 1; i >= 0; i--) follow(p, o, o->s->node.at[i], of);
    free(of);
    for (int k = 0; k < o->s->in.n; k++)
        if (cc_rules_needs(o->g, o->s->in.at[k])) tell_apart(o, row(o, o->reach, o->s->in.at[k]));
    for (int i = 0; i < o->value.n; i++)
        for (int k = 0; k < i; k++) {
            if (has(row(o, o->alike, i), k) || !same_results(p, o->value.at[i], o->value.at[k])) continue;
            add(row(o, o->alike, i), k);
            add(row(o, o->alike, k), i);
        }
}

/* Puts each output into the first group of outputs that are all like it. -> number of groups */
static int find_groups(Outs *o) {
    Word *member = cc_mem_get(sizeof *member * (size_t)o->words * (size_t)o->value.n);
    int n = 0;
    for (int i = 0; i < o->value.n; i++) {
        int at = 0;
        while (at < n && !includes(row(o, o->alike, i), row(o, member, at), o->words)) at++;
        add(row(o, member, at), i);
        o->group[i] = at;
        n = CC_MAX(n, at + 1);
    }
    free(member);
    return n;
}

static Outs outs_of(const CcGraph *g, const CcStage *s) {
    Outs o = {.g = g, .s = s};
    for (int k = 0; k < s->out.n; k++)
        if (cc_rules_needs(g, s->out.at[k])) cc_vec_push(&o.value, s->out.at[k]);
    o.words = o.value.n / 64 + 1;
    o.reach = cc_mem_get(sizeof(Word) * (size_t)o.words * ((size_t)g->val.n + 1));
    o.alike = cc_mem_get(sizeof(Word) * (size_t)o.words * ((size_t)o.value.n + 1));
    o.group = cc_mem_get(sizeof *o.group * ((size_t)o.value.n + 1));
    return o;
}

static void free_outs(Outs *o) {
    cc_vec_free(&o->value);
    free(o->reach);
    free(o->alike);
    free(o->group);
}

/* ------------------------------------------------------------------ parts of a stage */

/* [value] the least group whose outputs depend on it, -1: none; whether there are several. */
typedef struct Needed {
    int *least;
    bool *mixed;
} Needed;

static void merge(const Needed *n, int value, int least, bool mixed) {
    if (least < 0) return;
    const bool differs = n->least[value] >= 0 && n->least[value] != least;
    n->mixed[value] = n->mixed[value] || mixed || differs;
    n->least[value] = n->least[value] < 0 ? least : CC_MIN(n->least[value], least);
}

/* The same for a node. -> its least group */
static int of_node(const Needed *d, const CcNode *n, bool *mixed) {
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

static Needed find_needed(const Outs *o) {
    Needed d = {cc_mem_get(sizeof *d.least * ((size_t)o->g->val.n + 1)), cc_mem_get((size_t)o->g->val.n + 1)};
    for (int v = 0; v < o->g->val.n; v++) d.least[v] = -1;
    for (int i = 0; i < o->value.n; i++) merge(&d, o->value.at[i], o->group[i], false);
    for (int i = o->s->node.n - 1; i >= 0; i--) {
        const CcNode *n = &o->g->node.at[o->s->node.at[i]];
        bool mixed;
        const int least = of_node(&d, n, &mixed);
        for (int k = 0; k < n->n_in; k++) {
            const CcOperand *x = cc_graph_operand(o->g, n, k);
            if (x->kind == CC_IN_VALUE) merge(&d, x->value, least, mixed);
        }
    }
    return d;
}

/* Exposes the values at which the ways to several groups part. */
static bool expose_forks(const Outs *o, const Needed *d, bool *exposed) {
    bool any = false, *leaves = cc_mem_get((size_t)o->g->val.n + 1);
    for (int i = 0; i < o->value.n; i++) leaves[o->value.at[i]] = true;
    for (int i = 0; i < o->s->node.n; i++) {
        const CcNode *n = &o->g->node.at[o->s->node.at[i]];
        bool mixed;
        if (of_node(d, n, &mixed) < 0 || mixed) continue;
        for (int k = 0; k < n->n_in; k++) {
            const CcOperand *x = cc_graph_operand(o->g, n, k);
            if (x->kind == CC_IN_VALUE && d->mixed[x->value]) leaves[x->value] = true;
        }
    }
    for (int i = 0; i < o->s->node.n; i++) {
        const CcNode *n = &o->g->node.at[o->s->node.at[i]];
        for (int k = 0; k < n->n_out; k++) {
            const int v = n->out0 + k;
            if (!leaves[v] || !d->mixed[v] || exposed[v] || !cc_rules_needs(o->g, v)) continue;
            any = exposed[v] = true;
        }
    }
    free(leaves);
    return any;
}

/* A node that no gradient reaches is in the last part whose values it reads, or the first that needs it. */
static void place_nodes(const Outs *o, const Needed *d, int *part) {
    int *of = cc_mem_get(sizeof *of * ((size_t)o->g->val.n + 1));
    for (int i = 0; i < o->s->node.n; i++) {
        const CcNode *n = &o->g->node.at[o->s->node.at[i]];
        bool mixed;
        int at = of_node(d, n, &mixed);
        for (int k = 0, last = at; last < 0 && k < n->n_in; k++) {
            const CcOperand *x = cc_graph_operand(o->g, n, k);
            if (x->kind == CC_IN_VALUE) at = CC_MAX(at, of[x->value]);
        }
        part[o->s->node.at[i]] = at = CC_MAX(at, 0);
        for (int k = 0; k < n->n_out; k++) of[n->out0 + k] = at;
    }
    free(of);
}

int cc_apart_divide(CcParts *p, const CcStage *s, bool *exposed, int *part) {
    Outs o = outs_of(p->g, s);
    int n = 1;
    if (o.value.n > 1) {
        find_alike(p, &o);
        n = find_groups(&o);
    }
    if (n > 1) {
        Needed d = find_needed(&o);
        if (expose_forks(&o, &d, exposed)) n = 0;
        else place_nodes(&o, &d, part);
        free(d.least);
        free(d.mixed);
    }
    free_outs(&o);
    return n;
}

bool cc_apart_frees(CcParts *p, const CcStage *s) {
    for (int i = 0; i < s->node.n; i++) {
        const CcNode *n = &p->g->node.at[s->node.at[i]];
        for (int k = 0; k < n->n_out; k++)
            if (cc_rules_needs(p->g, n->out0 + k) && saves(p, s->node.at[i])) return true;
    }
    return false;
}

void cc_apart_free(CcParts *p) {
    free(p->results);
    free(p->unknown);
    free(p->saves);
}
