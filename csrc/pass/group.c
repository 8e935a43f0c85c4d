/* group: fusion. Nodes become units, units merge into fusion groups, and the groups get an order.
 *
 *   nodes   a0  b1  c2 | W3 | d4 ...       '|' = barrier: a node that writes memory or has effects is a unit of its own,
 *   units   {a0 c2} {b1} | {W3} | {d4}     and no node moves across it. A region is what lies between two barriers, at
 *                                          most REGION_NODES nodes: the closures are quadratic in its size.
 *
 * A pointwise kernel that writes an input (an optimiser's step, running statistics, counters) is not a barrier: it keeps
 * its place among the units that name the same memory or may fail, and merges with units that use this memory element
 * by element. Each call checks that other memory it was moved across is not the same (cc_plan_apart).
 *
 * Inside a region memory does not change, so any order that respects data flow is right. Each unit keeps the closure
 * of its dependencies as a bit set; two units may merge if no third unit lies on a path between them. */
#include "pass.h"

/* MOVED: how many nodes an unrolled window counts as, unless it has more elements */
enum { MAX_UNIT_NODES = 40, MAX_UNIT_INPUTS = 40, MOVED = 12, REGION_NODES = 2048, VECTOR = 16 };

typedef struct Unit {
    int kind;             /* CC_G_*; -1: merged into another unit */
    int n, inputs;        /* number of nodes, and of their tensor operands, counted with repetition */
    CcSpace space;        /* LOOP */
    bool reduces, writes; /* writes: the unit writes inputs */
    bool may_fail;        /* it may find that its operands are wrong: no write may come before it */
    /* LOOP, without CcGroupRules.gathers. mover: a node that reads elements at other positions, e.g. a join, and may
     * cut the loop into boxes; -1: none. narrow: rows are short. */
    int mover;
    bool narrow;
    CC_VEC(int) node;
} Unit;

typedef struct Region {
    const CcGraph *g;
    const bool *live;
    const CcGroupRules *rules;
    const bool *kernel_write; /* node: a pointwise kernel that writes an input */
    const int *root;          /* value -> whose memory it may be (into.c) */
    int first, end;           /* nodes [first, end) */
    int *node;                /* unit -> its first live node, in program order */
    int n_unit, begun;        /* begun: units [0, begun) are made */
    int words;                /* of a set of units */
    uint64_t *dep;            /* n_unit rows of `words`: the closure of a unit's dependencies */
    Unit *unit;
    int *owner;       /* node - first -> unit; -1: not live */
    int *uses;        /* value -> number of live operands that read it (of the whole graph) */
    int *reader;      /* value -> last loop unit that reads it, -1 */
    int *writer;      /* root -> last node that wrote it, -1 */
    int last_unknown; /* the last node of this region that names memory of unknown origin, -1 */
    uint64_t *done;   /* `words`: units that were emitted or merged into another */
} Region;

static uint64_t *dep_row(const Region *r, int u) { return r->dep + (size_t)u * (size_t)r->words; }
static bool has(const uint64_t *row, int u) { return row[u / 64] >> (u % 64) & 1; }
static void set(uint64_t *row, int u) { row[u / 64] |= UINT64_C(1) << (u % 64); }

/* The unit of this region that makes or writes a value (or the base of its window); -1: an earlier region made it. */
static int maker(const Region *r, int value) {
    const int own = r->g->val.at[value].def;
    const int def = own >= 0 && r->kernel_write[own] ? own : r->g->val.at[cc_graph_base(r->g, value)].def;
    return def < r->first ? -1 : r->owner[def - r->first];
}

/* Each row is a transitive closure: it contains `to` if any path leads there. */
static bool path_through_third(const Region *r, int from, int to) {
    const uint64_t *row = dep_row(r, from);
    for (int w = 0; w < r->words && has(row, to); w++)
        for (uint64_t bits = row[w]; bits; bits &= bits - 1) {
            const int x = w * 64 + __builtin_ctzll(bits);
            if (x != to && x != from && r->unit[x].kind >= 0 && has(dep_row(r, x), to)) return true;
        }
    return false;
}

static void merge(Region *r, int into, int from) {
    Unit *a = &r->unit[into], *b = &r->unit[from];
    for (int i = 0; i < b->node.n; i++) {
        cc_vec_push(&a->node, b->node.at[i]);
        r->owner[b->node.at[i] - r->first] = into;
    }
    /* Keep program order: insert one short sorted run into another. */
    for (int i = 1; i < a->node.n; i++)
        for (int k = i; k > 0 && a->node.at[k - 1] > a->node.at[k]; k--) {
            const int t = a->node.at[k];
            a->node.at[k] = a->node.at[k - 1];
            a->node.at[k - 1] = t;
        }
    a->n += b->n;
    a->inputs += b->inputs;
    if (b->reduces && !a->reduces) a->space = b->space;
    a->reduces = a->reduces || b->reduces;
    a->narrow = a->narrow || b->narrow;
    if (a->mover < 0) a->mover = b->mover;
    a->writes = a->writes || b->writes;
    a->may_fail = a->may_fail || b->may_fail;
    b->kind = -1;
    set(r->done, from);
    cc_vec_free(&b->node);
    uint64_t *da = dep_row(r, into), *db = dep_row(r, from);
    for (int w = 0; w < r->words; w++) da[w] |= db[w];
    da[into / 64] &= ~(UINT64_C(1) << (into % 64));
    da[from / 64] &= ~(UINT64_C(1) << (from % 64));
    for (int x = 0; x < r->begun; x++) {
        uint64_t *dx = dep_row(r, x);
        if (x == into || r->unit[x].kind < 0 || (!has(dx, into) && !has(dx, from))) continue;
        for (int w = 0; w < r->words; w++) dx[w] |= da[w];
        set(dx, into);
    }
}

/* Do all nodes of a unit fit into the space, and read results of the other unit at the position where it makes them? */
static bool fits(const Region *r, const CcSpace *f, int u, int other) {
    for (int i = 0; i < r->unit[u].node.n; i++) {
        const CcNode *n = &r->g->node.at[r->unit[u].node.at[i]];
        if (cc_space_node(f, r->g, n) == CC_LEVEL_NONE) return false;
        for (int k = 0; k < n->n_in; k++) {
            const int v = cc_graph_value(r->g, n, k);
            if (v >= 0 && maker(r, v) == other && !cc_space_meets(f, r->g, n, v)) return false;
        }
    }
    return true;
}

static bool same_space(const Region *r, int u, int v) {
    const Unit *a = &r->unit[u], *b = &r->unit[v];
    if (!a->reduces && !b->reduces) return cc_type_same_shape(&a->space.shape, &b->space.shape);
    const CcSpace *f = a->reduces ? &a->space : &b->space;
    const int reducing = a->reduces ? u : v, other = a->reduces ? v : u;
    /* With few rows, one thread would make all sweeps over a row: pointwise nodes after a sweep, and later sweeps,
     * stay apart. */
    const bool later = has(dep_row(r, other), reducing), earlier = has(dep_row(r, reducing), other),
               sweep = r->unit[other].reduces;
    const bool elements = !sweep && cc_space_level(f, &r->unit[other].space.shape) == CC_LEVEL_FULL;
    if (cc_space_few_rows(f) && ((later && elements) || (sweep && (later || earlier)))) return false;
    return fits(r, f, u, v) && fits(r, f, v, u);
}

/* Does a node of this unit read results of unit `made` at other positions: through a window, or as an op that moves
 * elements (loop/tap.c)? Then one loop can't hold both. */
static bool reads_elsewhere(const Region *r, const Unit *unit, int made) {
    for (int i = 0; i < unit->node.n; i++) {
        const CcNode *n = &r->g->node.at[unit->node.at[i]];
        const CcOpKind kind = cc_node_kind(n);
        for (int k = 0; k < n->n_in; k++) {
            const int v = cc_graph_value(r->g, n, k);
            if (v < 0 || maker(r, v) != made) continue;
            if (kind == CC_K_CONCAT || kind == CC_K_POOL || kind == CC_K_RESAMPLE || (kind == CC_K_SCATTER && k > 0))
                return true;
            const CcVal *base = &r->g->val.at[cc_graph_base(r->g, v)];
            if (base->def < 0) continue; /* written, and read where it was written (into.c) */
            if (r->g->node.at[base->def].out0 != v) return true;
        }
    }
    return false;
}

/* A pool and its indices have the same operands. */
static bool same_windows(const CcGraph *g, const CcNode *a, const CcNode *b) {
    const CcOpKind kind = cc_node_kind(a);
    if (kind != CC_K_POOL || cc_node_kind(b) != kind || a->n_in != b->n_in) return false;
    for (int i = 0; i < a->n_in; i++) {
        const CcOperand *x = cc_graph_operand(g, a, i), *y = cc_graph_operand(g, b, i);
        if (x->kind != y->kind || x->value != y->value || x->i != y->i) return false;
    }
    return true;
}

/* A loop that moves elements does so in one way and does not reduce, and its rows must be long enough that few
 * vectors straddle a row's end. */
static bool can_move(const CcGraph *g, const Unit *a, const Unit *b) {
    if (a->reduces || b->reduces || a->narrow || b->narrow) return false;
    return a->mover < 0 || b->mover < 0 || same_windows(g, &g->node.at[a->mover], &g->node.at[b->mover]);
}

/* Does this node read the written memory as one loop with the write would have it: the same elements, before they are
 * written? What the write gives is no read of memory if the loop computes it. */
static bool reads_in_step(const Region *r, int node, int write, int u, int v) {
    const CcGraph *g = r->g;
    const CcNode *n = &g->node.at[node];
    const int to = g->node.at[write].out0;
    for (int k = 0; k < n->n_in; k++) {
        const int value = cc_graph_value(g, n, k);
        if (value < 0 || r->root[value] != r->root[to]) continue;
        const int def = g->val.at[value].def, made = def < r->first ? -1 : r->owner[def - r->first];
        if (!cc_into_same(g, value, to) || (node > write && (made < 0 || (made != u && made != v)))) return false;
    }
    return true;
}

/* Would a loop of both units do its writes as they are done one after the other? */
static bool writes_in_step(const Region *r, int u, int v) {
    const Unit *both[2] = {&r->unit[u], &r->unit[v]};
    if (both[0]->reduces || both[1]->reduces || both[0]->mover >= 0 || both[1]->mover >= 0) return false;
    for (int a = 0; a < 2; a++)
        for (int i = 0; i < both[a]->node.n; i++) {
            const int write = both[a]->node.at[i];
            for (int b = 0; r->kernel_write[write] && b < 2; b++)
                for (int k = 0; k < both[b]->node.n; k++) {
                    const int node = both[b]->node.at[k];
                    if (!reads_in_step(r, node, write, u, v)) return false;
                    if (r->kernel_write[node] &&
                        r->root[r->g->node.at[node].out0] == r->root[r->g->node.at[write].out0] &&
                        !cc_into_same(r->g, r->g->node.at[node].out0, r->g->node.at[write].out0))
                        return false;
                }
        }
    return true;
}

static bool can_fuse(const Region *r, int u, int v) {
    const Unit *a = &r->unit[u], *b = &r->unit[v];
    if ((a->mover >= 0 || b->mover >= 0) && !can_move(r->g, a, b)) return false;
    return u != v && a->kind == CC_G_LOOP && b->kind == CC_G_LOOP && a->n + b->n <= MAX_UNIT_NODES &&
           a->inputs + b->inputs <= MAX_UNIT_INPUTS && same_space(r, u, v) && !path_through_third(r, u, v) &&
           !path_through_third(r, v, u) && !reads_elsewhere(r, a, v) && !reads_elsewhere(r, b, u) &&
           ((!a->writes && !b->writes) || writes_in_step(r, u, v));
}

static bool may_follow(const CcGraph *g, const int *chain, int n, int node, const CcGroupRules *rules) {
    return rules->post && !cc_group_apart(g, node, rules) && rules->post(g, chain, n, node);
}

/* Folds the node of unit u, a post-op, into the product whose result only this node reads. */
static bool fold_post(Region *r, int u) {
    const int node = r->unit[u].node.at[0];
    const CcNode *n = &r->g->node.at[node];
    for (int i = 0; i < n->n_in; i++) {
        const int value = cc_graph_value(r->g, n, i);
        if (value < 0) continue;
        const int p = maker(r, value);
        if (p < 0 || r->unit[p].kind != CC_G_PRIM) continue;
        const Unit *product = &r->unit[p];
        const CcVal *v = &r->g->val.at[value];
        if (v->def != cc_vec_last(&product->node) || r->g->node.at[v->def].out0 != value || v->window_of ||
            v->is_output || r->uses[value] != 1)
            continue;
        if (path_through_third(r, u, p) || !may_follow(r->g, product->node.at, product->n, node, r->rules)) continue;
        merge(r, p, u);
        return true;
    }
    return false;
}

/* Two units that only share an operand stay apart if their shapes differ: one of them may be tiny. */
static bool same_shapes(const Region *r, int u, int v) {
    const Unit *a = &r->unit[u], *b = &r->unit[v];
    return cc_type_same_shape(&a->space.shape, &b->space.shape);
}

static void fuse_loops(Region *r, int u) {
    const CcNode *n = &r->g->node.at[r->unit[u].node.at[0]];
    for (int i = 0; i < n->n_in; i++) { /* units that make its operands */
        const int v = cc_graph_value(r->g, n, i), p = v >= 0 ? maker(r, v) : -1;
        if (p < 0 || !can_fuse(r, p, u)) continue;
        merge(r, CC_MIN(p, u), CC_MAX(p, u));
        u = CC_MIN(p, u);
    }
    for (int i = 0; i < n->n_in; i++) { /* a unit that reads the same tensor */
        const int value = cc_graph_value(r->g, n, i);
        if (value < 0) continue;
        int q = r->reader[value];
        q = q < r->first ? -1 : r->owner[q - r->first];
        if (q < 0 || !same_shapes(r, q, u) || !can_fuse(r, q, u)) continue;
        merge(r, CC_MIN(q, u), CC_MAX(q, u));
        u = CC_MIN(q, u);
    }
}

bool cc_group_banned(const CcGraph *g, int node, const CcGroupRules *rules) {
    return rules->banned && rules->banned[g->node.at[node].origin];
}

bool cc_group_apart(const CcGraph *g, int node, const CcGroupRules *rules) {
    return rules->apart && rules->apart[g->node.at[node].origin];
}

static bool is_free(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    return (!n->flags || n->op == CC_OP_draw) && !cc_group_banned(g, node, rules);
}

static bool is_pure(const CcGraph *g, int node, const CcGroupRules *rules) {
    return g->node.at[node].n_out == 1 && is_free(g, node, rules);
}

static int kind_of(const CcGraph *g, int node, const CcGroupRules *rules) {
    const bool into = cc_into_is_write(g, &g->node.at[node]) && !cc_group_banned(g, node, rules);
    if (into && rules->loop && !cc_autocast_mixes(g, &g->node.at[node]) && rules->loop(g, node, rules->deflt))
        return CC_G_LOOP;
    if (into) return rules->prim && rules->prim(g, node) ? CC_G_PRIM : CC_G_HOST;
    if (!is_free(g, node, rules) || cc_autocast_mixes(g, &g->node.at[node])) return CC_G_HOST;
    if (is_pure(g, node, rules) && rules->loop && rules->loop(g, node, rules->deflt)) return CC_G_LOOP;
    return rules->prim && rules->prim(g, node) ? CC_G_PRIM : CC_G_HOST;
}

/* Is this node the only reader of a library call's result, and may it be the first post-op? */
static bool is_post(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    const int x = cc_graph_source(g, n);
    if (!is_pure(g, node, rules) || x < 0) return false;
    const CcVal *v = &g->val.at[x];
    if (v->def < 0 || g->node.at[v->def].out0 != x || v->is_output || v->window_of ||
        kind_of(g, v->def, rules) != CC_G_PRIM)
        return false;
    return may_follow(g, &v->def, 1, node, rules) && cc_edit_reads(g, x) == 1;
}

bool cc_group_takes(const CcGraph *g, int node, const CcGroupRules *rules) {
    return kind_of(g, node, rules) != CC_G_HOST || is_post(g, node, rules);
}

bool cc_group_keeps(CcGraph *g, int node, CcEditMark mark, const CcGroupRules *rules) {
    const bool good = cc_group_takes(g, node, rules);
    CcErr err = {0};
    if (CC_DEBUG >= 2 && good && cc_graph_check_node(g, node, &err) < 0)
        cc_base_verify_failed("a rewritten node", err.text, "");
    if (!good) cc_edit_undo(g, mark);
    return good;
}

/* Unit u runs after unit x. */
static void follow(const Region *r, int u, int x) {
    for (int w = 0; w < r->words; w++) dep_row(r, u)[w] |= dep_row(r, x)[w];
    set(dep_row(r, u), x);
}

static void follow_node(const Region *r, int u, int node) {
    if (node >= r->first) follow(r, u, r->owner[node - r->first]);
}

static bool names_root(const Region *r, int node, int root) {
    const CcNode *n = &r->g->node.at[node];
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(r->g, n, k);
        if (v >= 0 && r->root[v] == root) return true;
    }
    return false;
}

/* Can the unit fail: is it a library call or the host's, or does it read indices, which may be out of range? */
static bool may_fail(const Region *r, const Unit *unit, int node) {
    const CcExpr *e = unit->kind == CC_G_LOOP ? cc_op_expr(r->g, &r->g->node.at[node]) : NULL;
    if (!e) return true;
    for (int i = 0; i < e->n; i++)
        if (e->node[i].kind == CC_X_AT || e->node[i].kind == CC_X_INDEX_ARG || e->node[i].kind == CC_X_SHARE_ARG)
            return true;
    return false;
}

/* Orders a unit among those that name memory which one of them writes. */
static void keep_order(Region *r, int u) {
    const Unit *unit = &r->unit[u];
    const int node = r->node[u];
    const CcNode *n = &r->g->node.at[node];
    bool unknown = false;
    for (int k = 0; k < n->n_in; k++) {
        const int v = cc_graph_value(r->g, n, k);
        if (v < 0) continue;
        follow_node(r, u, r->writer[r->root[v]]);
        unknown = unknown || cc_into_unknown(r->g, r->root[v]);
    }
    const bool waits = unknown || unit->kind == CC_G_HOST;
    const int root = unit->writes ? r->root[n->out0] : -1;
    for (int x = 0; x < u; x++) {
        const Unit *before = &r->unit[r->owner[r->node[x] - r->first]];
        if ((waits && before->writes) || (unit->writes && (before->may_fail || names_root(r, r->node[x], root))))
            follow(r, u, r->owner[r->node[x] - r->first]);
    }
    if (unit->writes) {
        follow_node(r, u, r->last_unknown);
        r->writer[root] = node;
    }
    if (unknown) r->last_unknown = node;
}

/* Number of vectors in a row of n elements. */
static int64_t vectors(int64_t n) { return (n + VECTOR - 1) / VECTOR; }

/* Would cutting each row of a join into boxes take many more vectors? */
static bool breaks_rows(const CcGraph *g, const CcNode *n) {
    CcPieces p;
    if (!cc_pieces_read(g, n, &p) || p.flat) return true;
    const CcType *out = &g->val.at[n->out0].type;
    for (int i = 0; i < p.n; i++) {
        const CcCut *cut = &p.cut[i];
        const int64_t inner = out->stride[cut->dim], size = out->size[cut->dim];
        int64_t broken = 0;
        for (int k = 0; k < cut->n; k++) broken += vectors(inner * (cut->piece[k].end - cut->piece[k].begin));
        if (3 * broken > 4 * vectors(inner * size)) return true;
    }
    return false;
}

/* Makes a new unit of a node, with its dependencies. */
static void begin_unit(Region *r, int u, int *last_random) {
    const int node = r->node[u];
    const CcNode *n = &r->g->node.at[node];
    Unit *unit = &r->unit[u];
    r->owner[node - r->first] = u;
    r->begun = u + 1;
    cc_vec_push(&unit->node, node);
    unit->n = 1;
    uint64_t *row = dep_row(r, u);
    for (int i = 0; i <= n->n_in; i++) {
        int p = -1;
        if (i < n->n_in) {
            const int v = cc_graph_value(r->g, n, i);
            if (v < 0) continue;
            unit->inputs++;
            p = maker(r, v);
        } else if (cc_node_in_order(n)) {
            p = *last_random < 0 ? -1 : r->owner[*last_random];
            *last_random = node - r->first;
        }
        if (p < 0) continue;
        for (int w = 0; w < r->words; w++) row[w] |= dep_row(r, p)[w];
        set(row, p);
    }
    unit->mover = -1;
    unit->kind = kind_of(r->g, node, r->rules);
    unit->writes = r->kernel_write[node];
    unit->may_fail = may_fail(r, unit, node);
    keep_order(r, u);
    if (unit->kind != CC_G_LOOP) return;
    const CcOpKind kind = cc_node_kind(n);
    const bool taps = kind == CC_K_POOL || kind == CC_K_RESAMPLE;
    const bool moves = (taps || kind == CC_K_CONCAT) && !r->rules->gathers;
    if (taps) unit->n = MOVED;
    if (kind == CC_K_POOL) unit->n = (int)CC_MAX(MOVED, CC_MIN(MAX_UNIT_NODES, cc_window_taps(r->g, n)));
    if (moves) unit->mover = node;
    unit->narrow = moves && kind == CC_K_CONCAT && breaks_rows(r->g, n);
    if (kind == CC_K_SCATTER || (kind == CC_K_CONCAT && !moves)) unit->n = n->n_in;
    unit->space = cc_space_of(r->g, n);
    unit->reduces = cc_space_reduces(r->g, n);
}

static int emit(Region *r, int u, CcArena *arena, CcGroups *out) {
    if (has(r->done, u)) return 0;
    set(r->done, u);
    const uint64_t *row = dep_row(r, u);
    for (int w = 0; w < r->words; w++)
        for (uint64_t bits = row[w] & ~r->done[w]; bits; bits &= bits - 1)
            if (emit(r, w * 64 + __builtin_ctzll(bits), arena, out) < 0) return -1;
    const Unit *unit = &r->unit[u];
    CcGroup *group = &out->at[out->n++];
    group->kind = unit->kind;
    group->n = unit->node.n;
    group->node = cc_arena_alloc(arena, sizeof(int) * (size_t)unit->node.n);
    if (!group->node) return -1;
    memcpy(group->node, unit->node.at, sizeof(int) * (size_t)unit->node.n);
    return 0;
}

static void add_unit(Region *r, int u, int *last_random) {
    const int node = r->node[u];
    begin_unit(r, u, last_random);
    const bool folded = is_pure(r->g, node, r->rules) && fold_post(r, u);
    if (r->unit[u].kind == CC_G_LOOP && !folded) fuse_loops(r, u);
    const CcNode *n = &r->g->node.at[node];
    if (r->unit[r->owner[node - r->first]].kind != CC_G_LOOP) return;
    for (int i = 0; i < n->n_in; i++) {
        const int v = cc_graph_value(r->g, n, i);
        if (v >= 0) r->reader[v] = node;
    }
}

static int do_region(Region *r, CcArena *arena, CcGroups *out) {
    const size_t span = (size_t)(r->end - r->first);
    r->node = calloc(span, sizeof *r->node);
    r->owner = calloc(span, sizeof *r->owner);
    r->n_unit = r->begun = 0;
    r->last_unknown = -1;
    for (int i = r->first; r->node && r->owner && i < r->end; i++) {
        r->owner[i - r->first] = -1;
        if (r->live[i]) r->node[r->n_unit++] = i;
    }
    const size_t units = (size_t)r->n_unit;
    r->words = (r->n_unit + 63) / 64;
    r->dep = calloc(units * (size_t)r->words + 1, sizeof *r->dep);
    r->unit = calloc(units + 1, sizeof *r->unit);
    r->done = calloc((size_t)r->words + 1, sizeof *r->done);
    int status = r->node && r->dep && r->unit && r->owner && r->done ? 0 : -1;
    int last_random = -1;
    for (int u = 0; u < r->n_unit && status == 0; u++) add_unit(r, u, &last_random);
    for (int u = 0; u < r->n_unit && status == 0; u++) status = emit(r, u, arena, out);
    for (int u = 0; r->unit && u < r->n_unit; u++) cc_vec_free(&r->unit[u].node);
    free(r->node);
    free(r->dep);
    free(r->unit);
    free(r->owner);
    free(r->done);
    return status;
}

/* Is it a pointwise kernel that writes an input? */
static bool is_kernel_write(const CcGraph *g, int node, const CcGroupRules *rules) {
    const CcNode *n = &g->node.at[node];
    return cc_into_is_write(g, n) && cc_node_kind(n) == CC_K_POINTWISE && g->val.at[cc_into_root(g, n->out0)].def < 0 &&
           kind_of(g, node, rules) == CC_G_LOOP;
}

static bool is_barrier(const Region *r, int node) {
    return r->g->node.at[node].flags & (CC_N_WRITES | CC_N_EFFECT) && !r->kernel_write[node];
}

static int end_of_region(const Region *r) {
    int end = r->first + 1, n = 1;
    if (is_barrier(r, r->first)) return end;
    for (; end < r->g->node.n && n < REGION_NODES && !is_barrier(r, end); end++) n += r->live[end];
    return end;
}

int cc_group_build(const CcGraph *g, const bool *live, const CcGroupRules *rules, CcArena *arena, CcGroups *out,
                   CcErr *err) {
    Region r = {.g = g, .live = live, .rules = rules};
    out->n = 0;
    out->at = cc_arena_alloc(arena, sizeof(CcGroup) * (size_t)(g->node.n + 1));
    r.uses = cc_arena_alloc(arena, sizeof(int) * (size_t)(g->val.n + 1));
    r.reader = cc_arena_alloc(arena, sizeof(int) * (size_t)(g->val.n + 1));
    r.writer = cc_arena_alloc(arena, sizeof(int) * (size_t)(g->val.n + 1));
    int *root = cc_arena_alloc(arena, sizeof(int) * (size_t)(g->val.n + 1));
    bool *kernel_write = cc_arena_alloc(arena, (size_t)g->node.n + 1);
    if (!out->at || !r.uses || !r.reader || !r.writer || !root || !kernel_write)
        return cc_err_set(err, CC_E_MEMORY, "no memory for groups");
    cc_dce_uses(g, live, r.uses);
    for (int i = 0; i < g->val.n; i++) {
        r.reader[i] = r.writer[i] = -1;
        root[i] = cc_into_root(g, i);
    }
    for (int i = 0; i < g->node.n; i++) kernel_write[i] = is_kernel_write(g, i, rules);
    r.root = root;
    r.kernel_write = kernel_write;
    for (r.first = 0; r.first < g->node.n; r.first = r.end) {
        r.end = end_of_region(&r);
        if (do_region(&r, arena, out) < 0) return cc_err_set(err, CC_E_MEMORY, "no memory for groups");
    }
    return 0;
}
