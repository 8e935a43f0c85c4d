/* gen_ref: interprets loop IR node by node over blocks of elements: the printers' oracle, and the fallback without
 * LLVM. Each node has a cell per element of a block; libm computes floats in their own precision. */
#include <tgmath.h>

#include "gen.h"

enum { BLOCK = 16 };

typedef union Cell {
    float f;
    double d;
    int64_t i;
} Cell;

typedef void (*RefFn)(char type, const Cell *x, const Cell *y, const Cell *z, Cell *out, int n);

/* Defines one function per row of scalar.def from its reference columns. type: 's' float, 'd' double, 'i' integer; F is
 * type-generic (tgmath.h). */
#define F(name) name
#define WRAP(p, op, q) ((int64_t)((uint64_t)(p)op(uint64_t)(q)))
#define DIVIDE(p, op, q) ((q) == 0 || (q) == -1 ? 0 : (p)op(q))
#define RESULT_A(cell, field) (cell).field
#define RESULT_S(cell, field) (cell).field
#define RESULT_X(cell, field) (cell).field
#define RESULT_R(cell, field) (cell).field
#define RESULT_P(cell, field) (cell).field
#define RESULT_L(cell, field) (cell).i
#define RESULT_C(cell, field) (cell).i
#define LOOP(T, field, kind, expr)                                                                                     \
    for (int k = 0; k < n; k++) {                                                                                      \
        const T a = x[k].field, b = y[k].field, c = z[k].field;                                                        \
        (void)a, (void)b, (void)c;                                                                                     \
        RESULT_##kind(out[k], field) = expr;                                                                           \
    }
#define CC_SCALAR(id, arity, kind, fl, sl, ul, fref, iref, doc)                                                        \
    static void do_##id(char type, const Cell *x, const Cell *y, const Cell *z, Cell *out, int n) {                    \
        if (type == 's') LOOP(float, f, kind, fref)                                                                    \
        else if (type == 'd') LOOP(double, d, kind, fref)                                                              \
        else LOOP(int64_t, i, kind, iref)                                                                              \
    }
#include "../ir/scalar.def"
#undef CC_SCALAR

static const RefFn TABLE[] = {
#define CC_SCALAR(id, ...) do_##id,
#include "../ir/scalar.def"
#undef CC_SCALAR
};

static char type_of(CcDtype dt) { return dt == CC_DT_F64 ? 'd' : cc_dtype_is_float(dt) ? 's' : 'i'; }

static int64_t wrap(CcDtype dt, int64_t v) {
    const int size = cc_dtype_size(dt);
    if (dt == CC_DT_BOOL) return v & 1;
    if (size == 8) return v;
    if (cc_dtype_info(dt)->kind == 'u') return v & ((INT64_C(1) << size * 8) - 1);
    return (int64_t)((uint64_t)v << (64 - size * 8)) >> (64 - size * 8);
}

/* Cells of bf16 and f16 hold f32. */
static void read_one(CcDtype dt, const char *p, Cell *out) {
    int64_t v = 0;
    memcpy(&v, p, cc_dtype_size(dt));
    if (cc_dtype_is_half(dt)) out->f = cc_dtype_widen(dt, (uint16_t)v);
    else if (dt == CC_DT_F32) memcpy(&out->f, &v, sizeof out->f);
    else out->i = dt == CC_DT_F64 ? v : dt == CC_DT_BOOL ? v != 0 : wrap(dt, v);
}

static void write_one(CcDtype dt, Cell x, char *p) {
    int64_t v = x.i;
    if (cc_dtype_is_half(dt)) v = cc_dtype_narrow(dt, x.f);
    else if (dt == CC_DT_F32) memcpy(&v, &x.f, sizeof x.f);
    memcpy(p, &v, (size_t)cc_dtype_size(dt));
}

static int64_t step_of(const CcKernelArg *arg, int access, const CcLoopAccess *info) {
    return info->step == CC_STEP_ONE    ? cc_dtype_size(info->dtype)
           : info->step == CC_STEP_BACK ? -cc_dtype_size(info->dtype)
           : info->step == CC_STEP_ZERO ? 0
                                        : arg->a[access].step;
}

static void load(const CcKernelArg *arg, int access, const CcLoopAccess *info, int64_t row, int64_t at, Cell *out,
                 int n) {
    const int64_t step = step_of(arg, access, info);
    const char *p = arg->a[access].at + row * arg->a[access].row + at * step;
    for (int k = 0; k < n; k++, p += step) read_one((CcDtype)info->dtype, p, &out[k]);
}

static void place(const CcKernelArg *arg, int access, const CcLoopAccess *info, int64_t row, int64_t at, Cell *out,
                  int n) {
    const int64_t step = step_of(arg, access, info);
    const int64_t first = arg->a[access].at - CC_PLACE_ZERO + row * arg->a[access].row + at * step;
    for (int k = 0; k < n; k++) out[k].i = first + k * step;
}

/* Gathers elements at their indices. */
static void take(const CcLoop *loop, const CcLoopNode *node, const CcKernelArg *arg, int64_t row, int64_t at,
                 const Cell *index, Cell *out, int n) {
    const int access = node->a[1];
    const CcLoopAccess *info = &loop->access[access];
    const int64_t step = step_of(arg, access, info);
    const char *first = arg->a[access].at + row * arg->a[access].row + at * step;
    for (int k = 0; k < n; k++) read_one((CcDtype)info->dtype, first + index[k].i * node->bits + k * step, &out[k]);
}

static void store(const CcKernelArg *arg, int access, const CcLoopAccess *info, int64_t row, int64_t at, const Cell *in,
                  int n) {
    const CcDtype dt = (CcDtype)info->dtype;
    const int64_t step = step_of(arg, access, info);
    char *p = arg->a[access].at + row * arg->a[access].row + at * step;
    for (int k = 0; k < n; k++, p += step) write_one(dt, in[k], p);
}

/* The new value of a scatter's destination: x combined with the old one. */
static Cell combine(const CcLoopAccess *info, const char *at, Cell x) {
    static const CcScalarId COMBINE[] = {
        [CC_PUT_SUM] = CC_S_add, [CC_PUT_PROD] = CC_S_mul, [CC_PUT_MAX] = CC_S_max, [CC_PUT_MIN] = CC_S_min};
    const CcDtype dt = (CcDtype)info->dtype;
    Cell before, made;
    if (info->how == CC_PUT_SET) return x;
    read_one(dt, at, &before);
    TABLE[COMBINE[info->how]](type_of(dt), &before, &x, &x, &made, 1);
    if (type_of(dt) == 'i') made.i = wrap(dt, made.i);
    return made;
}

/* Scatters in order, as several elements may share a destination. */
static void put(const CcKernelArg *arg, int access, const CcLoopAccess *info, int64_t row, int64_t at, const Cell *in,
                const Cell *where, int n) {
    const int64_t size = cc_dtype_size(info->dtype), step = step_of(arg, access, info);
    for (int k = 0; k < n; k++) {
        char *p = arg->a[access].at + row * arg->a[access].row + (at + k) * step + where[k].i * size;
        write_one((CcDtype)info->dtype, combine(info, p, in[k]), p);
    }
}

/* As cvttsd2si: out-of-range values become INT64_MIN or, on the way through int32, INT32_MIN (gen_llvm.c: cast). */
static int64_t truncated(CcDtype to, double v) {
    const double most = to == CC_DT_I64 || to == CC_DT_U8 ? 0x1p63 : 0x1p31;
    return (int64_t)(trunc(v) >= -most && v < most ? v : -most);
}

static void convert(CcDtype from, CcDtype to, const Cell *in, Cell *out, int n) {
    for (int k = 0; k < n; k++) {
        const char s = type_of(from), t = type_of(to);
        const double v = s == 's' ? (double)in[k].f : s == 'd' ? in[k].d : 0;
        if (to == CC_DT_BOOL) out[k].i = s == 'i' ? in[k].i != 0 : v != 0;
        else if (t == 'i') out[k].i = wrap(to, s == 'i' ? in[k].i : truncated(to, v));
        else if (t == 'd') out[k].d = s == 'i' ? (double)in[k].i : v;
        else if (cc_dtype_is_half(to)) out[k].f = cc_dtype_widen(to, cc_dtype_narrow(to, in[k].f));
        else out[k].f = s == 'i' ? (float)in[k].i : s == 's' ? in[k].f : (float)v;
    }
}

static void konst(const CcLoopNode *node, Cell *out, int n) {
    const double v = cc_loop_number(node->bits);
    for (int k = 0; k < n; k++) {
        if (node->dtype == CC_DT_F32) out[k].f = (float)v;
        else out[k].i = node->bits;
    }
}

static void run_node(const CcLoop *loop, const CcKernelArg *arg, int64_t row, int64_t at, int n, int i,
                     Cell (*cell)[BLOCK]) {
    const CcLoopNode *node = &loop->node[i];
    const CcDtype dt = (CcDtype)node->dtype;
    const Cell *x = cell[node->a[0] < 0 ? i : node->a[0]];
    const Cell *y = cell[node->a[1] < 0 ? i : node->a[1]], *z = cell[node->a[2] < 0 ? i : node->a[2]];
    if (node->op == CC_S_load) {
        load(arg, node->a[0], &loop->access[node->a[0]], row, at, cell[i], n);
    } else if (node->op == CC_S_place) {
        place(arg, node->a[0], &loop->access[node->a[0]], row, at, cell[i], n);
    } else if (node->op == CC_S_take) {
        take(loop, node, arg, row, at, x, cell[i], n);
    } else if (node->op == CC_S_konst) {
        konst(node, cell[i], n);
    } else if (node->op == CC_S_count) {
        for (int k = 0; k < n; k++) cell[i][k].i = arg->count;
        convert(CC_DT_I64, dt, cell[i], cell[i], n);
    } else if (node->op == CC_S_cast) {
        convert((CcDtype)loop->node[node->a[0]].dtype, dt, x, cell[i], n);
    } else if (node->op == CC_S_select) {
        for (int k = 0; k < n; k++) cell[i][k] = x[k].i ? y[k] : z[k];
    } else {
        const bool compares = cc_scalar_info((CcScalarId)node->op)->kind == 'C';
        TABLE[node->op](type_of(compares ? (CcDtype)loop->node[node->a[0]].dtype : dt), x, y, z, cell[i], n);
        for (int k = 0; type_of(dt) == 'i' && k < n; k++) cell[i][k].i = wrap(dt, cell[i][k].i);
    }
}

static void run_block(const CcLoop *loop, const CcKernelArg *arg, int64_t row, int64_t at, int n, Cell (*cell)[BLOCK]) {
    for (int i = 0; i < loop->n_node; i++) run_node(loop, arg, row, at, n, i, cell);
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *info = &loop->access[a];
        if (info->where) put(arg, a, info, row, at, cell[info->node], cell[info->where - 1], n);
        else if (info->is_store) store(arg, a, info, row, at, cell[info->node], n);
    }
}

/* ------------------------------------------------------------------ loops that reduce */

typedef struct Row {
    const CcLoop *loop;
    CcKernelArg arg; /* with the current pointers */
    CcSweeps plan;
    int sweep;
    Cell cell[CC_LOOP_MAX_NODES][BLOCK];
    Cell total[CC_LOOP_MAX_NODES]; /* running values of reductions and scans; floats in double */
} Row;

static bool reduces(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'R'; }

/* Initialises the totals of reductions (once a row) or of scans (in each sweep). */
static void begin_totals(Row *r, bool (*which)(const CcLoopNode *)) {
    for (int i = 0; i < r->loop->n_node; i++) {
        const CcLoopNode *n = &r->loop->node[i];
        if (!which(n)) continue;
        const CcScalarId op = cc_scalar_combine((CcScalarId)n->op);
        const CcDtypeInfo *info = cc_dtype_info((CcDtype)n->dtype);
        const int64_t top = INT64_MAX >> (64 - 8 * info->size);
        Cell *t = &r->total[i];
        t->i = op == CC_S_mul || op == CC_S_and;
        if (info->kind == 'f')
            t->d = op == CC_S_mul ? 1 : op == CC_S_max || op == CC_S_lse ? -INFINITY : op == CC_S_min ? INFINITY : 0;
        else if (op == CC_S_min) t->i = info->kind == 'u' ? 2 * top + 1 : top;
        else if (op == CC_S_max) t->i = info->kind == 'u' ? 0 : -top - 1;
    }
}

static void reduce_block(Row *r, int i, int n) {
    const CcLoopNode *node = &r->loop->node[i];
    const CcScalarId op = cc_scalar_combine((CcScalarId)node->op);
    const char type = type_of((CcDtype)node->dtype);
    const Cell *x = r->cell[node->a[0]];
    for (int k = 0; k < n; k++) {
        Cell value = x[k];
        if (type == 's') value.d = (double)x[k].f;
        const bool scan = cc_sweep_scans(node); /* the earlier value is the second operand */
        TABLE[op](type == 's' ? 'd' : type, scan ? &value : &r->total[i], scan ? &r->total[i] : &value, &value,
                  &r->total[i], 1);
        if (type == 'i') r->total[i].i = wrap((CcDtype)node->dtype, r->total[i].i);
        if (scan) r->cell[i][k] = r->total[i];
        if (scan && type == 's') r->cell[i][k].f = (float)r->total[i].d;
    }
}

/* Elements [at, at + n) of a row, in sweep r->sweep. */
static void sweep_block(Row *r, int64_t at, int n) {
    const CcLoop *loop = r->loop;
    for (int i = 0; i < loop->n_node; i++)
        if (cc_sweep_scans(&loop->node[i]) && r->plan.stage[i] <= r->sweep) reduce_block(r, i, n);
        else if (!reduces(&loop->node[i]) && r->plan.stage[i] <= r->sweep)
            run_node(loop, &r->arg, 0, r->plan.element[i] ? at : 0, n, i, r->cell);
    for (int i = 0; i < loop->n_node; i++)
        if (reduces(&loop->node[i]) && r->plan.stage[loop->node[i].a[0]] == r->sweep) reduce_block(r, i, n);
    for (int a = 0; a < loop->n_access && r->sweep == r->plan.n - 1; a++)
        if (loop->access[a].is_store && cc_sweep_along(loop, &loop->access[a]))
            store(&r->arg, a, &loop->access[a], 0, at, r->cell[loop->access[a].node], n);
}

static void sweep_lines(Row *r, int d) {
    const CcLoop *loop = r->loop;
    if (loop->lane + 1 + d < loop->ndim) {
        const CcKernelArg before = r->arg;
        for (int64_t i = 0; i < before.line[d]; i++) {
            sweep_lines(r, d + 1);
            for (int a = 0; a < loop->n_access; a++) r->arg.a[a].at += before.a[a].line[d];
        }
        r->arg = before;
        return;
    }
    const int64_t n = loop->columns ? 1 : r->arg.n;
    for (int64_t at = 0; at < n; at += BLOCK) sweep_block(r, at, (int)CC_MIN(BLOCK, n - at));
}

static void end_sweep(Row *r) {
    for (int i = 0; i < r->loop->n_node; i++) {
        const CcLoopNode *node = &r->loop->node[i];
        if (!reduces(node) || r->plan.stage[node->a[0]] != r->sweep) continue;
        for (int k = 0; k < BLOCK; k++) {
            r->cell[i][k] = r->total[i];
            if (type_of((CcDtype)node->dtype) == 's') r->cell[i][k].f = (float)r->total[i].d;
        }
    }
}

static void run_row(Row *r) {
    const CcLoop *loop = r->loop;
    begin_totals(r, reduces);
    for (r->sweep = 0; r->sweep < r->plan.n; r->sweep++) {
        begin_totals(r, cc_sweep_scans);
        sweep_lines(r, 0);
        end_sweep(r);
    }
    for (int i = 0; i < loop->n_node; i++)
        if (!reduces(&loop->node[i]) && !r->plan.element[i]) run_node(loop, &r->arg, 0, 0, 1, i, r->cell);
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store && !cc_sweep_along(loop, &loop->access[a]))
            store(&r->arg, a, &loop->access[a], 0, 0, r->cell[loop->access[a].node], 1);
}

/* Treats each column as a row. */
static void run_rows(const CcLoop *loop, const CcKernelArg *arg) {
    Row *r = cc_mem_get(sizeof *r); /* a kernel can't fail */
    r->loop = loop;
    cc_sweep_plan(loop, &r->plan);
    for (int64_t row = 0; row < arg->rows; row++)
        for (int64_t lane = 0; lane < (loop->columns ? arg->n : 1); lane++) {
            r->arg = *arg;
            for (int a = 0; a < loop->n_access; a++)
                r->arg.a[a].at += row * arg->a[a].row + (loop->columns ? lane * arg->a[a].step : 0);
            run_row(r);
        }
    free(r);
}

void cc_gen_ref(const CcLoop *loop, const CcKernelArg *arg) {
    if (loop->reduces) {
        run_rows(loop, arg);
        return;
    }
    Cell cell[CC_LOOP_MAX_NODES][BLOCK]; /* 128 KiB; touches only the loop's own nodes */
    for (int i = 0; i < loop->n_node; i++) memset(cell[i], 0, sizeof cell[i]);
    CcKernelArg block = *arg;
    for (int64_t b = 0; b < arg->blocks; b++) {
        for (int64_t row = 0; row < arg->rows; row++)
            for (int64_t at = 0; at < arg->n; at += BLOCK)
                run_block(loop, &block, row, at, (int)CC_MIN(BLOCK, arg->n - at), cell);
        for (int a = 0; a < loop->n_access; a++) block.a[a].at += arg->a[a].block;
    }
}
