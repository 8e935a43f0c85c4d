/* nest: the loops around a body. Drops dims of size 1, sorts the others so that the leading tensor is traversed in
 * memory order, with kept and reduced dims apart, and merges neighbours that every access treats as one. The vector
 * loop is the innermost kept dim if nothing is reduced, or if that is the leading tensor's fastest dim. */
#include "loop.h"

enum { MIN_COLUMNS = 4 }; /* fewer do not fill a vector of columns */
/* Numbers of elements. Short rows: of reductions, of reductions that take DEAR additions per element, of other
 * loops; long rows. */
enum { SHORT = 12, SHORT_DEAR = 33, TINY = 4, LONG = 16, DEAR = 8 };

typedef struct Nest {
    CcLoop *loop;
    const CcGraph *g;
    const CcSpace *space;
    const int64_t *size; /* the loop's sizes, in dims of the space */
    const CcLoopAccess *lead;
    int order[CC_MAX_DIMS]; /* dims of the space, outermost first; kept ones precede reduced ones */
    int n, n_kept, merged_kept;
} Nest;

int64_t cc_nest_numel(const CcLoop *loop) {
    int64_t n = 1;
    for (int d = 0; d < loop->ndim; d++) n *= loop->size[d];
    return n;
}

/* Distance, within the counted dims, between indices of dim d. */
static int64_t place_of(const Nest *nest, const CcLoopAccess *a, int d) {
    const CcType *t = &nest->space->shape;
    int64_t n = 1;
    if (!(a->dims >> (t->ndim - 1 - d) & 1) || t->size[d] == 1) return 0;
    for (int i = d + 1; i < t->ndim; i++)
        if (a->dims >> (t->ndim - 1 - i) & 1) n *= t->size[i];
    return n;
}

static const CcType *type_of(const Nest *nest, const CcLoopAccess *a) {
    return a->seen ? a->seen : &nest->g->val.at[a->value].type;
}

/* Bytes between elements along dim d of the space; 0 for a broadcast dim. */
static int64_t stride_of(const Nest *nest, const CcLoopAccess *a, int d) {
    if (a->place) return place_of(nest, a, d);
    if (a->number) return 0;
    const CcType *t = type_of(nest, a);
    const int own = cc_space_own_dim(nest->space, t, a->dropped, d);
    if (own < 0 || t->size[own] == 1) return 0;
    return t->stride[own] * cc_dtype_size(t->dtype);
}

/* Does the access cover the whole space? The address of a store at an index depends on the index. */
static bool leads(const Nest *nest, const CcLoopAccess *a, bool store) {
    if (a->value < 0 || a->is_store != store || a->where) return false;
    return cc_type_numel(type_of(nest, a)) == cc_type_numel(&nest->space->shape);
}

/* The first store that covers the space, or else the first tensor read that does. */
static const CcLoopAccess *find_lead(const Nest *nest) {
    const CcLoop *loop = nest->loop;
    for (int pass = 0; pass < 2; pass++)
        for (int a = 0; a < loop->n_access; a++)
            if (leads(nest, &loop->access[a], pass == 0)) return &loop->access[a];
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].value >= 0) return &loop->access[a];
    return &loop->access[0];
}

static void sort_dims(Nest *nest) {
    const CcType *shape = &nest->space->shape;
    for (int reduced = 0; reduced < 2; reduced++) {
        const int begin = nest->n;
        for (int d = 0; d < shape->ndim; d++) {
            if (nest->size[d] == 1 || cc_space_reduced(nest->space, d) != (bool)reduced) continue;
            int at = nest->n++;
            for (; at > begin && stride_of(nest, nest->lead, nest->order[at - 1]) < stride_of(nest, nest->lead, d);
                 at--)
                nest->order[at] = nest->order[at - 1];
            nest->order[at] = d;
        }
        if (!reduced) nest->n_kept = nest->n;
    }
}

static void merge_dims(Nest *nest) {
    CcLoop *loop = nest->loop;
    loop->ndim = 0;
    for (int k = 0; k < nest->n; k++) {
        const int d = nest->order[k];
        const int64_t size = nest->size[d];
        bool joins = loop->ndim > 0 && k != nest->n_kept;
        for (int a = 0; joins && a < loop->n_access; a++)
            joins = loop->stride[a][loop->ndim - 1] == stride_of(nest, &loop->access[a], d) * size;
        if (!joins) loop->size[loop->ndim++] = 1;
        loop->size[loop->ndim - 1] *= size;
        for (int a = 0; a < loop->n_access; a++) loop->stride[a][loop->ndim - 1] = stride_of(nest, &loop->access[a], d);
        if (k < nest->n_kept) nest->merged_kept = loop->ndim;
    }
}

/* Adds a dim of size 1 if there is none for the vector loop. */
static void add_unit_dim(CcLoop *loop) {
    loop->size[loop->ndim] = 1;
    for (int a = 0; a < loop->n_access; a++) loop->stride[a][loop->ndim] = 0;
    loop->ndim++;
}

static void swap_dims(CcLoop *loop, int d, int e) {
    const int64_t size = loop->size[d];
    loop->size[d] = loop->size[e];
    loop->size[e] = size;
    for (int a = 0; a < loop->n_access; a++) {
        const int64_t stride = loop->stride[a][d];
        loop->stride[a][d] = loop->stride[a][e];
        loop->stride[a][e] = stride;
    }
}

/* A last dim of a few elements would leave most of a vector empty; the next long dim then becomes the vector loop,
 * with strides. [50000, 3] * [3] takes 72 us like this and 358 otherwise, a channels-last image of 3 channels 21 and
 * 101 (Zen 4). A row of 4 to 15 floats takes 1.1 to 1.4 ns with a mask, or 0.3 ns per element (Zen 5). */
static void swap_short(CcLoop *loop) {
    const int last = loop->ndim - 1;
    if (loop->size[last] >= TINY) return;
    for (int d = last - 1; d >= 0; d--)
        if (loop->size[d] >= LONG) {
            swap_dims(loop, d, last);
            return;
        }
}

/* Are there many rows of a few elements that only reductions read? A vector then holds one element of each of many
 * rows: 33333 rows of 3 floats took 177 us one by one and 32 like this (Zen 4). Sums of 4000 rows took 9.4 us one by
 * one and 8.5 like this for 8 elements, 9.5 and 16.6 for 16; logsumexp, which does much per row, 91 and 33 for 16
 * (Zen 5). */
static bool short_rows(const Nest *nest) {
    const CcLoop *loop = nest->loop;
    const int kept = nest->merged_kept, last = loop->ndim - 1, most = loop->cost >= DEAR ? SHORT_DEAR : SHORT;
    if (loop->scans || kept == 0 || last != kept || loop->size[last] >= most || loop->size[kept - 1] < LONG)
        return false;
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && loop->stride[a][last]) return false;
    return true;
}

/* Puts the vector loop after the kept dims, and all other reduced dims after it. */
static void choose_lane(Nest *nest) {
    CcLoop *loop = nest->loop;
    const int kept = nest->merged_kept, reduced = loop->ndim - kept;
    const int lead = (int)(nest->lead - loop->access);
    if (!loop->reduces || reduced == 0) { /* reduced dims have size 1: columns of one element */
        if (loop->ndim == 0) add_unit_dim(loop);
        if (!loop->reduces) swap_short(loop);
        loop->lane = loop->ndim - 1;
        loop->columns = loop->reduces;
        if (loop->columns) add_unit_dim(loop);
        return;
    }
    loop->columns = kept > 0 && loop->size[kept - 1] >= MIN_COLUMNS &&
                    loop->stride[lead][kept - 1] < loop->stride[lead][loop->ndim - 1];
    loop->columns = loop->columns || short_rows(nest);
    loop->lane = loop->columns ? kept - 1 : kept;
    for (int d = loop->ndim - 1; !loop->columns && d > kept; d--) swap_dims(loop, d, d - 1);
}

/* Does the node vary along a row, is it computed as if it did (a loop of one iteration), or is it known only after a
 * sweep? Accesses are classified, but not yet for their indices. */
static bool along_row(const CcLoop *loop, int node) {
    const CcLoopNode *n = &loop->node[node];
    const CcScalarInfo *info = cc_scalar_info((CcScalarId)n->op);
    const int access = cc_loop_access(n);
    if (access >= 0 && (loop->access[access].step != CC_STEP_ZERO || loop->access[access].line)) return true;
    if (info->kind == 'R' || cc_sweep_scans(n)) return true;
    for (int k = 0; k < info->arity; k++)
        if (along_row(loop, n->a[k])) return true;
    return false;
}

/* Does another take share the access of this take? */
static bool shared(const CcLoop *loop, int take) {
    for (int i = 0; i < loop->n_node; i++)
        if (i != take && loop->node[i].op == CC_S_take && loop->node[i].a[1] == loop->node[take].a[1]) return true;
    return false;
}

/* An index is mostly the same for a whole row (embedding): such rows are read like any other. */
static void classify_taken(CcLoop *loop) {
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        if (n->op != CC_S_take) continue;
        CcLoopAccess *access = &loop->access[n->a[1]];
        if (access->step == CC_STEP_ONE && !loop->columns && !along_row(loop, n->a[0]) && !shared(loop, i))
            access->taken = CC_TAKEN_ROW;
        else if (access->step == CC_STEP_ONE) access->step = CC_STEP_ANY;
    }
}

/* Is it contiguous across rows, like a transposed operand? */
static bool contiguous_across(const CcLoop *loop, int a) {
    const CcLoopAccess *access = &loop->access[a];
    const int lane = loop->lane;
    return !loop->reduces && access->step == CC_STEP_ANY && !access->is_store && !access->place && !access->taken &&
           lane > 0 && loop->stride[a][lane - 1] == cc_dtype_size(access->dtype) && loop->size[lane] >= LONG &&
           loop->size[lane - 1] >= LONG;
}

static void classify(CcLoop *loop) {
    for (int a = 0; a < loop->n_access; a++) {
        CcLoopAccess *access = &loop->access[a];
        const int64_t step = loop->stride[a][loop->lane];
        const int64_t size = cc_dtype_size(access->dtype);
        const bool one = step == size || (!loop->reduces && loop->size[loop->lane] == 1);
        access->step = one ? CC_STEP_ONE : step == 0 ? CC_STEP_ZERO : CC_STEP_ANY;
        if (step == -size && !access->is_store && !access->taken && !one) access->step = CC_STEP_BACK;
        if (access->place) access->step = step == 0 ? CC_STEP_ZERO : CC_STEP_ANY;
        access->across = contiguous_across(loop, a);
        for (int d = loop->lane + 1; d < loop->ndim; d++) access->line = access->line || loop->stride[a][d];
    }
    classify_taken(loop);
}

static void move_to(Nest *nest, const CcBox *box) {
    for (int a = 0; a < nest->loop->n_access; a++)
        for (int d = 0; d < nest->space->shape.ndim; d++)
            nest->loop->access[a].offset += box->from[d] * stride_of(nest, &nest->loop->access[a], d);
}

int cc_nest_build(CcLoop *loop, const CcGraph *g, const CcSpace *space, const CcBox *box, CcArena *arena, CcErr *err) {
    Nest nest = {.loop = loop, .g = g, .space = space, .size = box ? box->size : space->shape.size};
    loop->stride = cc_arena_alloc(arena, sizeof *loop->stride * (size_t)loop->n_access);
    if (!loop->stride) return cc_err_set(err, CC_E_MEMORY, "no memory for a loop");
    nest.lead = find_lead(&nest);
    sort_dims(&nest);
    merge_dims(&nest);
    choose_lane(&nest);
    if (loop->ndim - 1 - loop->lane > CC_LOOP_MAX_LINES)
        return cc_err_set(err, CC_E_UNSUPPORTED, "a reduction over %d dims that do not merge", loop->ndim - loop->lane);
    classify(loop);
    if (box) move_to(&nest, box);
    return 0;
}
