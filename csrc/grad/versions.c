/* versions: in-place ops on memory that the graph made become ops with a result of their own, as stages consist of pure
 * nodes.
 *
 *   %3 = conv(..)  relu_(%3)  %4 = max_pool(%3)      %9 = conv(..)  %3 = relu(%9)  %4 = max_pool(%3)
 *
 * The last version keeps the value's number. Nothing else knows the memory of earlier ones: until it is written, all
 * readers are ops whose results have memory of their own. A write to what eager has saved stays: torch raises in the
 * backward. (pass/pure.c does the same for a graph without autograd, in which neither modes nor saved tensors matter.) */
#include "../pass/pass.h"
#include "grad_int.h"

typedef struct Finder {
    CcGraph *g;
    int *epoch;   /* [value] 1 + number of nodes before its maker that change modes; 0: others may know its memory */
    bool *saved;  /* [value] eager has saved this version */
    bool *target; /* [value] an in-place op writes it */
    int modes;    /* number of nodes so far that change modes */
    CcVersions *out;
} Finder;

static bool keeps_apart(const CcNode *n) {
    const CcOpKind kind = cc_node_kind(n);
    return kind != CC_K_HOST && kind != CC_K_VIEW && n->op != CC_OP_host && n->n_out == 1 && n->flags == 0;
}

static bool is_write(const CcGraph *g, const CcNode *n) {
    return cc_pure_is_write(g, n) && cc_pure_writes_same(g, n) && n->op != CC_OP_put;
}

/* The pure form of an in-place op. */
static CcNode pure_form(const CcGraph *g, const CcNode *n) {
    CcNode out = *n;
    out.flags = 0;
    out.out0 = cc_graph_source(g, n);
    out.n_out = 1;
    return out;
}

/* x.mul_(x): eager saves x, and writes to it. */
static bool reads_target_again(const CcGraph *g, const CcNode *n) {
    for (int k = 1; k < n->n_in; k++) {
        if (cc_graph_value(g, n, k) == cc_graph_source(g, n)) return true;
    }
    return false;
}

static bool may_write(const Finder *f, int node) {
    const CcNode *n = &f->g->node.at[node];
    const int v = is_write(f->g, n) && !reads_target_again(f->g, n) ? cc_graph_source(f->g, n) : -1;
    return v >= 0 && f->epoch[v] == 1 + f->modes && !f->saved[v] && !f->g->val.at[v].grad_changed &&
           cc_type_dense(&f->g->val.at[v].type);
}

/* A node that reads the value, or another write that does: does eager save it? */
static void note_read(Finder *f, const CcNode *n, int value) {
    if (!f->target[value]) return;
    if (n->flags != 0) f->saved[value] = f->saved[value] || cc_rules_needs(f->g, value);
    else if (keeps_apart(n)) f->saved[value] = f->saved[value] || cc_rules_reads(f->g, n, value);
    else f->epoch[value] = 0;
}

static void note_result(Finder *f, const CcNode *n) {
    const CcNode made = n->n_out > 0 ? *n : pure_form(f->g, n);
    if (!f->target[made.out0]) return;
    f->epoch[made.out0] = 1 + f->modes;
    f->saved[made.out0] = cc_rules_reads(f->g, &made, made.out0);
}

static void visit(Finder *f, int node) {
    const CcNode *n = &f->g->node.at[node];
    const bool writes = may_write(f, node) && !f->out->kept[n->origin];
    const int target = writes ? cc_graph_source(f->g, n) : -1;
    f->modes += (n->flags & CC_N_EFFECT) != 0;
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(f->g, n, k);
        if (v < 0 || v == target) continue;
        note_read(f, n, v);
        if (!writes && n->flags != 0) f->epoch[v] = 0;
    }
    if (writes) cc_vec_push(&f->out->write, (CcVersion){node, target, -1});
    if (writes || keeps_apart(n)) note_result(f, n);
}

static void find_writes(CcGraph *g, CcVersions *out) {
    Finder f = {.g = g, .out = out};
    f.epoch = cc_mem_get(sizeof *f.epoch * ((size_t)g->val.n + 1));
    f.saved = cc_mem_get((size_t)g->val.n + 1);
    f.target = cc_mem_get((size_t)g->val.n + 1);
    bool any = false;
    for (int i = 0; i < g->node.n; i++)
        if (is_write(g, &g->node.at[i])) any = f.target[cc_graph_source(g, &g->node.at[i])] = true;
    for (int i = 0; any && i < g->node.n; i++) visit(&f, i);
    free(f.epoch);
    free(f.saved);
    free(f.target);
}

/* ------------------------------------------------------------------ rewriting */

static void set_result(CcGraph *g, int node, int value) {
    CcNode *n = &g->node.at[node];
    n->out0 = value;
    n->n_out = 1;
    n->flags = 0;
    n->rewritten = true;
    g->val.at[value].def = node;
}

static void rename_reads(CcGraph *g, int value, int version, int begin, int end) {
    for (int i = begin; i <= end; i++)
        for (int k = 0; k < g->node.at[i].n_in; k++) {
            CcOperand *o = &g->operand.at[g->node.at[i].in0 + k];
            if (o->kind != CC_IN_VALUE || o->value != value) continue;
            o->value = version;
            g->node.at[i].rewritten = true;
        }
}

static void rewrite(CcGraph *g, CcVersion *w) {
    CcVal version = g->val.at[w->value];
    const int maker = version.def;
    version.is_output = false;
    w->before = g->val.n;
    cc_vec_push(&g->val, version);
    set_result(g, maker, w->before);
    rename_reads(g, w->value, w->before, maker + 1, w->node);
    set_result(g, w->node, w->value);
}

void cc_versions_split(CcGraph *g, CcVersions *out) {
    out->write.n = 0;
    find_writes(g, out);
    for (int i = 0; i < out->write.n; i++) rewrite(g, &out->write.at[i]);
}

int cc_versions_of(const CcVersions *s, int value) {
    if (s->write.n == 0 || value < s->write.at[0].before) return -1;
    const int i = value - s->write.at[0].before;
    return i < s->write.n ? s->write.at[i].value : -1;
}

int cc_versions_count(const CcVersions *s, int value) {
    int n = 0;
    for (int i = 0; i < s->write.n; i++) n += s->write.at[i].value == value;
    return n;
}
