/* gen_element: prints a sweep's work on one vector of elements: loads, the expression, scans, stores, and accumulation
 * of reductions. gen_sweep.c prints the loops around it. */
#include "gen_int.h"

#define TEXT(...) cc_sbuf_add(s->e->body, __VA_ARGS__)

CcDtype cc_element_dtype(const CcSweep *s, int node) { return (CcDtype)s->loop->node[node].dtype; }
const char *cc_element_type(const CcSweep *s, int j) {
    return cc_emit_type(s->e, cc_element_dtype(s, s->reduction[j]));
}
bool cc_element_reduces(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'R'; }

CcScalarId cc_element_op(const CcSweep *s, int j) { return (CcScalarId)s->loop->node[s->reduction[j]].op; }

void cc_element_identity(const CcSweep *s, int j, CcRef out) {
    cc_combine_identity(cc_element_op(s, j), cc_element_dtype(s, s->reduction[j]), out);
}

int cc_element_combine(CcSweep *s, int j, const char *x, const char *y, CcRef out) {
    return cc_combine_two(s->e, cc_element_op(s, j), cc_element_dtype(s, s->reduction[j]), x, y, out);
}

static int accumulate(CcSweep *s, int copy) {
    for (int j = 0; j < s->n; j++) {
        CcRef x, none;
        strcpy(x, s->ref[copy][s->loop->node[s->reduction[j]].a[0]]);
        if (*s->mask && !s->loop->columns) {
            const char *t = cc_element_type(s, j);
            cc_element_identity(s, j, none);
            cc_emit_op(s->e, x, "select %s %s, %s %s, %s %s", cc_emit_vector(s->e, "i1"), s->mask, t, x, t, none);
        }
        if (cc_element_combine(s, j, s->acc[j][copy], x, s->acc[j][copy]) < 0) return -1;
    }
    return 0;
}

/* A scan's carry: in memory between iterations, as the loops may be split in many; along rows in a register between the
 * copies of an iteration. By columns each copy has its own. */
static void carry_at(const CcSweep *s, int node, int copy, CcRef out) {
    snprintf(out, sizeof(CcRef), "%%car%d.%d", node, s->loop->columns ? copy : 0);
}

void cc_element_begin(CcSweep *s) {
    CcRef none, at;
    for (int i = 0; i < s->loop->n_node; i++) {
        if (!s->need[i] || !cc_sweep_scans(&s->loop->node[i])) continue;
        cc_combine_identity((CcScalarId)s->loop->node[i].op, cc_element_dtype(s, i), none);
        for (int u = 0; u < (s->loop->columns ? s->copies : 1); u++) {
            carry_at(s, i, u, at);
            TEXT("  store %s %s, ptr %s\n", cc_emit_type(s->e, cc_element_dtype(s, i)), none, at);
        }
    }
}

static int scan(CcSweep *s, int node, int copy) {
    const CcLoopNode *n = &s->loop->node[node];
    const bool rows = !s->loop->columns;
    CcRef at, *carry = &s->carry[node];
    carry_at(s, node, copy, at);
    if (!rows || copy == 0)
        cc_emit_op(s->e, *carry, "load %s, ptr %s", cc_emit_type(s->e, cc_element_dtype(s, node)), at);
    if (cc_combine_scan(s->e, n, rows, s->e->ref[n->a[0]], *carry, s->e->ref[node]) < 0) return -1;
    if (!rows || copy == s->copies - 1)
        TEXT("  store %s %s, ptr %s\n", cc_emit_type(s->e, cc_element_dtype(s, node)), *carry, at);
    return 0;
}

/* ------------------------------------------------------------------ elements */

static void index_of(CcSweep *s, int copy, CcRef out) {
    const int offset = s->by_lines ? 0 : copy * s->e->lanes;
    if (strcmp(s->lane, "0") == 0) snprintf(out, sizeof(CcRef), "%d", offset);
    else if (offset) cc_emit_op(s->e, out, "add i64 %s, %d", s->lane, offset);
    else strcpy(out, s->lane);
}

/* An intrinsic's type suffix, "v16f32". */
static void suffix_of(const CcSweep *s, CcDtype dt, char *out, size_t n) {
    const char *m = cc_emit_memory(dt);
    snprintf(out, n, "v%d%c%d", s->e->lanes, *m == 'i' ? 'i' : 'f', cc_dtype_size(dt) * 8);
}

static const char *mask_of(const CcSweep *s) { return *s->mask ? s->mask : "splat (i1 true)"; }

/* Byte offsets of the lanes' elements from the access's current pointer. */
static void offsets(CcSweep *s, int access, int copy, CcRef out) {
    const int n = s->e->lanes;
    char step[16];
    CcRef index, all, steps;
    index_of(s, copy, index);
    cc_emit_splat(s->e, CC_DT_I64, index, all);
    cc_emit_op(s->e, index, "add <%d x i64> %s, %%iota64", n, all);
    snprintf(step, sizeof step, "%%s%d", access);
    cc_emit_splat(s->e, CC_DT_I64, step, steps);
    cc_emit_op(s->e, out, "mul <%d x i64> %s, %s", n, index, steps);
}

static void pointers(CcSweep *s, int access, int copy, CcRef out) {
    CcRef all;
    offsets(s, access, copy, all);
    cc_emit_op(s->e, out, "getelementptr i8, ptr %s, <%d x i64> %s", s->at[access], s->e->lanes, all);
}

static void place(CcSweep *s, int node, int access, int copy) {
    const CcDtype dt = cc_element_dtype(s, node);
    char *out = s->e->ref[node];
    CcRef all;
    cc_emit_place(s->e, s->at[access], out);
    cc_emit_splat(s->e, dt, out, out);
    if (s->loop->access[access].step == CC_STEP_ZERO) return;
    offsets(s, access, copy, all);
    if (dt != CC_DT_I64) cc_emit_op(s->e, all, "trunc <%d x i64> %s to %s", s->e->lanes, all, cc_emit_type(s->e, dt));
    cc_emit_op(s->e, out, "add %s %s, %s", cc_emit_type(s->e, dt), out, all);
}

static void take(CcSweep *s, int node, int access, int copy) {
    const CcLoopNode *n = &s->loop->node[node];
    CcRef offset, all, at;
    cc_emit_op(s->e, offset, "mul <%d x i64> %s, splat (i64 %lld)", s->e->lanes, s->e->ref[n->a[0]],
               (long long)n->bits);
    if (s->loop->access[access].step == CC_STEP_ANY) {
        offsets(s, access, copy, all);
        cc_emit_op(s->e, offset, "add <%d x i64> %s, %s", s->e->lanes, offset, all);
    }
    cc_emit_op(s->e, at, "getelementptr i8, ptr %s, <%d x i64> %s", s->at[access], s->e->lanes, offset);
    cc_emit_gather(s->e, cc_element_dtype(s, node), at, mask_of(s), s->e->ref[node]);
}

static void load(CcSweep *s, int node, int access, int copy) {
    const CcDtype dt = cc_element_dtype(s, node);
    const char *v = cc_emit_vector(s->e, cc_emit_memory(dt));
    const int size = cc_dtype_size(dt);
    char *out = s->e->ref[node];
    CcRef index, at;
    if (s->loop->access[access].step == CC_STEP_ZERO) {
        cc_emit_broadcast(s->e, dt, s->at[access], out);
        return;
    }
    if (s->loop->access[access].step == CC_STEP_ANY && !*s->mask) {
        index_of(s, copy, index);
        cc_emit_load_each(s->e, dt, access, s->at[access], index, out);
        return;
    }
    if (s->loop->access[access].step == CC_STEP_ANY) {
        pointers(s, access, copy, at);
        cc_emit_gather(s->e, dt, at, mask_of(s), out);
        return;
    }
    const bool back = s->loop->access[access].step == CC_STEP_BACK;
    CcRef mask = "";
    index_of(s, copy, index);
    if (back) cc_emit_op(s->e, index, "sub i64 %d, %s", 1 - s->e->lanes, index);
    strcpy(mask, s->mask);
    if (back && *mask) cc_emit_reverse(s->e, cc_emit_vector(s->e, "i1"), mask);
    cc_emit_op(s->e, at, "getelementptr %s, ptr %s, i64 %s", cc_emit_memory(dt), s->at[access], index);
    if (*mask) cc_emit_masked_load(s->e, cc_emit_memory(dt), size, at, mask, out);
    else cc_emit_op(s->e, out, "load %s, ptr %s, align %d", v, at, size);
    if (back) cc_emit_reverse(s->e, v, out);
    cc_emit_loaded(s->e, dt, out);
}

void cc_element_store(CcSweep *s, int access, int copy) {
    const CcLoopAccess *a = &s->loop->access[access];
    const CcDtype dt = (CcDtype)a->dtype;
    const char *v = cc_emit_vector(s->e, cc_emit_memory(dt));
    const int size = cc_dtype_size(dt), n = s->e->lanes;
    char suffix[16], name[64];
    CcRef x, index, at;
    suffix_of(s, dt, suffix, sizeof suffix);
    strcpy(x, s->ref[copy][a->node]);
    if (dt == CC_DT_BOOL) cc_emit_op(s->e, x, "zext %s %s to %s", cc_emit_vector(s->e, "i1"), x, v);
    if (a->step == CC_STEP_ANY) {
        pointers(s, access, copy, at);
        snprintf(name, sizeof name, "llvm.masked.scatter.%s.v%dp0", suffix, n);
        cc_emit_declare(s->e, name, "declare void @%s(%s, <%d x ptr>, i32, <%d x i1>)\n", name, v, n, n);
        TEXT("  call void @%s(%s %s, <%d x ptr> %s, i32 %d, <%d x i1> %s)\n", name, v, x, n, at, size, n, mask_of(s));
        return;
    }
    index_of(s, copy, index);
    cc_emit_op(s->e, at, "getelementptr %s, ptr %s, i64 %s", cc_emit_memory(dt), s->at[access], index);
    if (*s->mask) cc_emit_masked_store(s->e, cc_emit_memory(dt), size, x, at, s->mask);
    else TEXT("  store %s %s, ptr %s, align %d\n", v, x, at, size);
}

/* Prints a node that reads memory or indices. */
void cc_element_fetch(CcSweep *s, int node, int copy) {
    const CcLoopNode *n = &s->loop->node[node];
    const int access = cc_loop_access(n);
    if (n->op == CC_S_place) place(s, node, access, copy);
    else if (n->op == CC_S_take && s->loop->access[access].taken != CC_TAKEN_ROW) take(s, node, access, copy);
    else load(s, node, access, copy);
}

/* Address of a kept node's vector in its scratch line. */
static void kept_at(CcSweep *s, int node, int copy, CcRef out) {
    CcRef index, offset, base;
    if (s->loop->columns) {
        cc_emit_op(s->e, offset, "mul i64 %s, %d", s->line, s->copies * s->e->lanes);
        cc_emit_op(s->e, index, "add i64 %s, %d", offset, copy * s->e->lanes);
    } else {
        index_of(s, copy, index);
        if (s->n_line) {
            cc_emit_op(s->e, offset, "mul i64 %s, %%n", s->line);
            cc_emit_op(s->e, index, "add i64 %s, %s", offset, index);
        }
    }
    cc_emit_op(s->e, offset, "mul i64 %%scratchbytes, %d", s->plan.kept[node] - 1);
    cc_emit_op(s->e, base, "getelementptr i8, ptr %%scratch, i64 %s", offset);
    cc_emit_op(s->e, out, "getelementptr %s, ptr %s, i64 %s", cc_emit_memory(cc_element_dtype(s, node)), base, index);
}

/* Prints the sweep's nodes and stores for one vector of elements. */
int cc_element_compute(CcSweep *s, int copy) {
    const CcLoop *loop = s->loop;
    CcRef at;
    s->e->ref = s->ref[copy];
    for (int i = 0; i < loop->n_node; i++) {
        if (!s->need[i]) continue;
        const bool kept = s->plan.kept[i] != 0, later = kept && s->plan.first[i] < s->number;
        const char *v = cc_emit_type(s->e, cc_element_dtype(s, i));
        const int size = cc_dtype_info(cc_element_dtype(s, i))->size;
        if (kept) kept_at(s, i, copy, at);
        if (later) cc_emit_op(s->e, s->e->ref[i], "load %s, ptr %s, align %d", v, at, size);
        else if (cc_loop_access(&loop->node[i]) >= 0) cc_element_fetch(s, i, copy);
        else if ((cc_sweep_scans(&loop->node[i]) ? scan(s, i, copy) : cc_emit_node(s->e, i)) < 0) return -1;
        if (kept && !later) {
            v = cc_emit_type(s->e, cc_element_dtype(s, i));
            TEXT("  store %s %s, ptr %s, align %d\n", v, s->e->ref[i], at, size);
        }
    }
    for (int k = 0; k < loop->n_access && s->number == s->plan.n - 1; k++)
        if (loop->access[k].is_store && cc_sweep_along(loop, &loop->access[k])) cc_element_store(s, k, copy);
    return accumulate(s, copy);
}
