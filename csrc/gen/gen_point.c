/* gen_point: prints the body of a loop that does not reduce.
 *
 *   entry:  loads sizes, pointers and strides from the argument
 *   block:  loop over blocks of rows
 *   tile:   for operands that are contiguous across rows (transposed): transposes tiles of lanes x lanes elements
 *   row:    this row's pointers; broadcast loads and nodes that depend on them alone
 *   whole:  cheap bodies: several vectors per iteration while that many are left
 *   loop:   one vector per iteration; branches to direct for a full vector, else to tail
 *   direct, tail: contiguous loads; a tail uses masks, or scratch memory (%x) if the CPU has no masked loads
 *   body:   other loads, the expression
 *   put, tailout: stores
 *
 * It never reads outside the tensors. A strided access is loaded element by element in whole vectors, gathered at
 * clamped addresses in partial ones, and stored element by element. An access with a negative unit step loads the
 * vector that ends at its element and reverses it. */
#include "gen_int.h"

enum {
    OFFSET_ACCESS = (int)offsetof(CcKernelArg, a),
    SIZE_ACCESS = (int)sizeof(((CcKernelArg *)0)->a[0]),
    MAX_COPIES = 4,
    MAX_TILE = 32, /* most lanes of a tile */
    /* vertically adjacent tiles processed before moving right. With 1, 2 and 4: 64x56x56 to channels innermost 440,
     * 200, 200 us; transposing 512x512 in half precision 18, 18, 29 us (Zen 5) */
    DOWN = 2,
};

typedef struct Point {
    CcEmit *e;
    const CcLoop *loop;
    bool invariant[CC_LOOP_MAX_NODES];
    int copies; /* vectors per iteration of the `whole` loop; 0: no such loop */
    bool whole; /* printing code for whole vectors: every lane is inside the row */
    bool tiles; /* the kernel has tiles */
    bool tile;  /* printing the tile loop */
    CcRef at;   /* index of the first lane */
} Point;

#define TEXT(...) cc_sbuf_add(p->e->body, __VA_ARGS__)

static const CcLoopAccess *access_of(const Point *p, int k) { return &p->loop->access[k]; }
static const char *memory_of(const Point *p, int k) { return cc_emit_memory((CcDtype)access_of(p, k)->dtype); }
static int size_of(const Point *p, int k) { return cc_dtype_size(access_of(p, k)->dtype); }

/* Are its elements contiguous, in either direction? */
static bool dense(const CcLoopAccess *a) { return a->step == CC_STEP_ONE || a->step == CC_STEP_BACK; }
static bool loaded(const CcLoopAccess *a) { return dense(a) && !a->is_store; }

/* The pointer to the row of an access. */
static void row_of(const Point *p, int k, CcRef out) { snprintf(out, sizeof(CcRef), "%%%s%d", p->tile ? "h" : "p", k); }
/* The first element of a row that the tiles have not covered. */
static const char *first_lane(const Point *p) { return p->tiles ? "%from" : "0"; }

/* Marks nodes that are constant along a row; they are computed before its loop. */
void cc_gen_invariant(const CcLoop *loop, bool *invariant) {
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        invariant[i] = true;
        if (cc_loop_access(n) >= 0) invariant[i] = loop->access[cc_loop_access(n)].step == CC_STEP_ZERO;
        if (n->op != CC_S_load && n->op != CC_S_place)
            for (int k = 0; k < cc_scalar_info((CcScalarId)n->op)->arity; k++)
                invariant[i] = invariant[i] && invariant[n->a[k]];
    }
}

/* Unrolling hides the loop overhead of cheap bodies. */
static int choose_copies(const Point *p) {
    float cost = 0;
    for (int i = 0; i < p->loop->n_node; i++)
        if (!p->invariant[i]) cost += cc_sweep_cost(&p->loop->node[i]);
    return cost <= 4 ? 4 : cost <= 9 ? 2 : 0;
}

/* ------------------------------------------------------------------ elements */

/* The access's row at an index that is the same in all lanes: "%u<access>". */
static void take_row(Point *p, const CcLoopNode *n) {
    CcRef index;
    cc_emit_op(p->e, index, "extractelement <%d x i64> %s, i32 0", p->e->lanes, p->e->ref[n->a[0]]);
    cc_emit_op(p->e, index, "mul i64 %s, %lld", index, (long long)n->bits);
    TEXT("  %%u%d = getelementptr i8, ptr %%p%d, i64 %s\n", n->a[1], n->a[1], index);
}

/* Prints a load that is constant along the row. */
static void fetch_row(Point *p, int node) {
    const CcLoopNode *n = &p->loop->node[node];
    const int k = cc_loop_access(n);
    CcRef at, first;
    row_of(p, k, at);
    if (n->op == CC_S_take) {
        snprintf(at, sizeof at, "%%u%d", k);
        take_row(p, n);
    }
    if (n->op != CC_S_place) {
        cc_emit_broadcast(p->e, (CcDtype)n->dtype, at, p->e->ref[node]);
        return;
    }
    cc_emit_place(p->e, at, first);
    cc_emit_splat(p->e, (CcDtype)n->dtype, first, p->e->ref[node]);
}

/* A vector of integer type dt: first + (index of each lane) * step of the access. */
static void steps(Point *p, int k, CcDtype dt, const char *first, CcRef out) {
    CcRef at;
    cc_emit_op(p->e, at, "mul i64 %s, %%s%d", p->at, k);
    if (*first) cc_emit_op(p->e, at, "add i64 %s, %s", first, at);
    cc_emit_splat(p->e, dt, at, out);
    cc_emit_op(p->e, out, "add %s %s, %%steps%d", cc_emit_type(p->e, dt), out, k);
}

static void place(Point *p, int node, int k) {
    CcRef first;
    snprintf(first, sizeof first, "%%first%d", k);
    steps(p, k, (CcDtype)p->loop->node[node].dtype, first, p->e->ref[node]);
}

static void take(Point *p, int node, int k) {
    const CcLoopNode *n = &p->loop->node[node];
    const int lanes = p->e->lanes;
    CcRef offset, along, at;
    /* the processor multiplies, and takes 32 bits of an index that was no wider */
    const bool multiplies = n->bits <= 8 && (n->bits & (n->bits - 1)) == 0;
    if (multiplies) {
        cc_emit_op(p->e, at, "getelementptr i%d, ptr %%p%d, <%d x i64> %s", 8 * (int)n->bits, k, lanes,
                   p->e->ref[n->a[0]]);
    } else {
        cc_emit_op(p->e, offset, "mul <%d x i64> %s, splat (i64 %lld)", lanes, p->e->ref[n->a[0]], (long long)n->bits);
        cc_emit_op(p->e, at, "getelementptr i8, ptr %%p%d, <%d x i64> %s", k, lanes, offset);
    }
    if (access_of(p, k)->step == CC_STEP_ANY) {
        steps(p, k, CC_DT_I64, "", along);
        cc_emit_op(p->e, at, "getelementptr i8, <%d x ptr> %s, <%d x i64> %s", lanes, at, lanes, along);
    }
    cc_emit_gather(p->e, (CcDtype)n->dtype, at, p->whole ? "splat (i1 true)" : "%there", p->e->ref[node]);
}

/* Gathers a strided vector at addresses clamped to the row's last element. */
static void load_clamped(Point *p, int node, int k) {
    const int lanes = p->e->lanes;
    CcRef offset, last, at;
    steps(p, k, CC_DT_I64, "", offset);
    cc_emit_op(p->e, last, "mul i64 %%last, %%s%d", k);
    cc_emit_splat(p->e, CC_DT_I64, last, last);
    cc_emit_op(p->e, offset, "select <%d x i1> %%there, <%d x i64> %s, <%d x i64> %s", lanes, lanes, offset, lanes,
               last);
    cc_emit_op(p->e, at, "getelementptr i8, ptr %%p%d, <%d x i64> %s", k, lanes, offset);
    cc_emit_gather(p->e, (CcDtype)p->loop->node[node].dtype, at, "splat (i1 true)", p->e->ref[node]);
}

/* Address of a contiguous access's vector. */
static void begins(Point *p, int k, CcRef out) {
    const CcLoopAccess *a = access_of(p, k);
    CcRef at, row;
    strcpy(at, p->at);
    row_of(p, k, row);
    if (a->taken) snprintf(row, sizeof row, "%%u%d", k);
    if (a->step == CC_STEP_BACK) cc_emit_op(p->e, at, "sub i64 %d, %s", 1 - p->e->lanes, p->at);
    cc_emit_op(p->e, out, "getelementptr %s, ptr %s, i64 %s", memory_of(p, k), row, at);
}

static void load(Point *p, int node, int k) {
    const CcDtype dt = (CcDtype)p->loop->node[node].dtype;
    const char *v = cc_emit_vector(p->e, memory_of(p, k));
    char *out = p->e->ref[node];
    CcRef at;
    if (p->tile && access_of(p, k)->across) {
        cc_emit_op(p->e, at, "getelementptr %s, ptr %%z%d, i64 %%tile.j", v, k);
        cc_emit_op(p->e, out, "load %s, ptr %s, align 64", v, at);
        cc_emit_loaded(p->e, dt, out);
        return;
    }
    if (!dense(access_of(p, k))) {
        row_of(p, k, at);
        if (p->whole) cc_emit_load_each(p->e, dt, k, at, p->at, out);
        else load_clamped(p, node, k);
        return;
    }
    if (p->whole) {
        begins(p, k, at);
        cc_emit_op(p->e, out, "load %s, ptr %s, align %d", v, at, size_of(p, k));
    } else snprintf(out, sizeof(CcRef), "%%y%d", k);
    if (access_of(p, k)->step == CC_STEP_BACK) cc_emit_reverse(p->e, v, out);
    cc_emit_loaded(p->e, dt, out);
}

static int node(Point *p, int i) {
    const CcLoopNode *n = &p->loop->node[i];
    const int k = cc_loop_access(n);
    if (k < 0) return cc_emit_node(p->e, i);
    if (n->op == CC_S_place) place(p, i, k);
    else if (n->op == CC_S_take && access_of(p, k)->taken != CC_TAKEN_ROW) take(p, i, k);
    else load(p, i, k);
    return 0;
}

static int expression(Point *p) {
    for (int i = 0; i < p->loop->n_node; i++)
        if (!p->invariant[i] && node(p, i) < 0) return -1;
    return 0;
}

/* The stored value in memory's type: bools become bytes. */
static void stored(Point *p, int k, CcRef out) {
    const CcLoopAccess *a = access_of(p, k);
    strcpy(out, p->e->ref[a->node]);
    if (a->dtype == CC_DT_BOOL)
        cc_emit_op(p->e, out, "zext %s %s to %s", cc_emit_vector(p->e, "i1"), out, cc_emit_vector(p->e, "i8"));
}

/* ------------------------------------------------------------------ whole vectors */

static void store_each(Point *p, int k, const char *v) {
    const char *m = memory_of(p, k), *t = cc_emit_vector(p->e, m);
    CcRef at, x;
    cc_emit_op(p->e, at, "mul i64 %s, %%s%d", p->at, k);
    cc_emit_op(p->e, at, "getelementptr i8, ptr %%p%d, i64 %s", k, at);
    for (int i = 0; i < p->e->lanes; i++) {
        if (i) cc_emit_op(p->e, at, "getelementptr i8, ptr %s, i64 %%s%d", at, k);
        cc_emit_op(p->e, x, "extractelement %s %s, i32 %d", t, v, i);
        TEXT("  store %s %s, ptr %s, align %d\n", m, x, at, size_of(p, k));
    }
}

/* Stores whole vectors. */
static void store_whole(Point *p) {
    CcRef v, at;
    for (int k = 0; k < p->loop->n_access; k++) {
        if (!access_of(p, k)->is_store) continue;
        stored(p, k, v);
        if (access_of(p, k)->step != CC_STEP_ONE) {
            store_each(p, k, v);
            continue;
        }
        begins(p, k, at);
        TEXT("  store %s %s, ptr %s, align %d\n", cc_emit_vector(p->e, memory_of(p, k)), v, at, size_of(p, k));
    }
}

static int whole_vectors(Point *p) {
    const int step = p->copies * p->e->lanes;
    const char *first = first_lane(p);
    TEXT("  %%w.last = sub i64 %%n, %d\n  %%w.has = icmp sge i64 %%w.last, %s\n", step, first);
    TEXT("  br i1 %%w.has, label %%whole, label %%rest\nwhole:\n  %%w.i = phi i64 [%s, %%pre], [%%w.n, %%whole]\n",
         first);
    p->whole = true;
    for (int u = 0; u < p->copies; u++) {
        strcpy(p->at, "%w.i");
        if (u) cc_emit_op(p->e, p->at, "add i64 %%w.i, %d", u * p->e->lanes);
        if (expression(p) < 0) return -1;
        store_whole(p);
    }
    TEXT("  %%w.n = add i64 %%w.i, %d\n  %%w.c = icmp sle i64 %%w.n, %%w.last\n", step);
    TEXT("  br i1 %%w.c, label %%whole, label %%rest\nrest:\n  %%r.i = phi i64 [%s, %%pre], [%%w.n, %%whole]\n", first);
    TEXT("  %%r.c = icmp slt i64 %%r.i, %%n\n  br i1 %%r.c, label %%loop, label %%rowend\n");
    p->whole = false;
    return 0;
}

/* ------------------------------------------------------------------ single vectors and the tail */

/* Does the CPU have masked loads and stores for this element size? AVX2: 4 and 8 bytes. */
static bool has_masks(const Point *p, int k) {
    const int bytes = p->e->target->vector_bytes;
    return bytes == 64 || (bytes == 32 && size_of(p, k) >= 4);
}

static const char *bits_of(const Point *p, int k) {
    static const char *const BITS[] = {[1] = "i8", [2] = "i16", [4] = "i32", [8] = "i64"};
    return BITS[size_of(p, k)];
}

/* Masks of a row's last vector, the same for all rows: %left, and %left.back for reversed accesses. */
static void make_masks(Point *p) {
    const char *v = cc_emit_vector(p->e, "i32");
    const int lanes = p->e->lanes;
    CcRef left;
    TEXT("  %%left.n = and i64 %%n, %d\n", lanes - 1);
    cc_emit_op(p->e, left, "trunc i64 %%left.n to i32");
    cc_emit_op(p->e, left, "insertelement %s poison, i32 %s, i32 0", v, left);
    cc_emit_op(p->e, left, "shufflevector %s %s, %s poison, %s zeroinitializer", v, left, v, v);
    for (int back = 0; back < 2; back++) {
        TEXT("  %%left%s = icmp sgt %s %s, <", back ? ".back" : "", v, left);
        for (int i = 0; i < lanes; i++) TEXT("%si32 %d", i ? ", " : "", back ? lanes - 1 - i : i);
        TEXT(">\n");
    }
}

/* Without masked instructions: copies an access's tail from its tensor (%v) to scratch (%x), or back. A reversed access
 * has its tail in the last lanes. */
static void copy_left(Point *p, int k, bool in) {
    const int size = size_of(p, k);
    const char from = in ? 'v' : 'x', to = in ? 'x' : 'v';
    CcRef skip = "0", bytes, src, dst;
    cc_emit_op(p->e, bytes, "mul i64 %%left.n, %d", size);
    if (access_of(p, k)->step == CC_STEP_BACK) cc_emit_op(p->e, skip, "sub i64 %d, %s", p->e->lanes * size, bytes);
    cc_emit_op(p->e, src, "getelementptr i8, ptr %%%c%d, i64 %s", from, k, skip);
    cc_emit_op(p->e, dst, "getelementptr i8, ptr %%%c%d, i64 %s", to, k, skip);
    TEXT("  call void @llvm.memcpy.p0.p0.i64(ptr %s, ptr %s, i64 %s, i1 false)\n", dst, src, bytes);
}

/* A masked load beats memcpy (a call here) through scratch memory: gathering 1000 rows of 100 floats takes 17 us
 * instead of 22 (Zen 4). */
static void load_left(Point *p, int k) {
    const char *m = memory_of(p, k), *v = cc_emit_vector(p->e, m), *b = cc_emit_vector(p->e, bits_of(p, k));
    char at[16];
    CcRef x;
    if (has_masks(p, k)) {
        snprintf(at, sizeof at, "%%v%d", k);
        cc_emit_masked_load(p->e, bits_of(p, k), size_of(p, k), at,
                            access_of(p, k)->step == CC_STEP_BACK ? "%left.back" : "%left", x);
        TEXT("  %%m%d = bitcast %s %s to %s\n", k, b, x, v);
        return;
    }
    copy_left(p, k, true);
    TEXT("  %%m%d = load %s, ptr %%x%d, align 64\n", k, v, k);
}

static void store_left(Point *p, int k, const char *x) {
    const char *v = cc_emit_vector(p->e, memory_of(p, k)), *b = cc_emit_vector(p->e, bits_of(p, k));
    CcRef at, y;
    if (has_masks(p, k)) {
        snprintf(at, sizeof at, "%%v%d", k);
        cc_emit_op(p->e, y, "bitcast %s %s to %s", v, x, b);
        cc_emit_masked_store(p->e, bits_of(p, k), size_of(p, k), y, at, "%left");
        return;
    }
    TEXT("  store %s %s, ptr %%x%d, align 64\n", v, x, k);
    copy_left(p, k, false);
}

/* %there masks the lanes inside the row, %last is its last index, both for gathers. */
static void clamp(Point *p) {
    bool needed = false;
    for (int k = 0; k < p->loop->n_access; k++) {
        const CcLoopAccess *a = access_of(p, k);
        needed = needed || (!a->is_store && !a->place && a->step == CC_STEP_ANY) || a->taken == CC_TAKEN_LANES;
    }
    const char *v = cc_emit_vector(p->e, "i1");
    if (needed) TEXT("  %%there = select i1 %%full, %s splat (i1 true), %s %%left\n  %%last = sub i64 %%n, 1\n", v, v);
}

static void loop_head(Point *p) {
    const int n = p->loop->n_access;
    if (!p->copies) TEXT("  br label %%loop\n");
    TEXT("loop:\n  %%i = phi i64 [%s, %%%s], [%%i.n, %%next]\n", p->copies ? "%r.i" : first_lane(p),
         p->copies ? "rest" : "pre");
    TEXT("  %%rem = sub i64 %%n, %%i\n  %%full = icmp sge i64 %%rem, %d\n", p->e->lanes);
    strcpy(p->at, "%i");
    for (int k = 0; k < n; k++) {
        CcRef at;
        if (!dense(access_of(p, k))) continue;
        begins(p, k, at);
        TEXT("  %%v%d = getelementptr i8, ptr %s, i64 0\n", k, at);
    }
    TEXT("  br i1 %%full, label %%direct, label %%tail\ndirect:\n");
    for (int k = 0; k < n; k++)
        if (loaded(access_of(p, k)))
            TEXT("  %%f%d = load %s, ptr %%v%d, align %d\n", k, cc_emit_vector(p->e, memory_of(p, k)), k,
                 size_of(p, k));
    TEXT("  br label %%body\ntail:\n");
    for (int k = 0; k < n; k++)
        if (loaded(access_of(p, k))) load_left(p, k);
    TEXT("  br label %%body\nbody:\n");
    for (int k = 0; k < n; k++)
        if (loaded(access_of(p, k)))
            TEXT("  %%y%d = phi %s [%%f%d, %%direct], [%%m%d, %%tail]\n", k, cc_emit_vector(p->e, memory_of(p, k)), k,
                 k);
    clamp(p);
}

/* Stores the elements of the vector in %x one by one with the access's stride. '#' stands for the access, '@' for its
 * type, '!' for the number of lanes. */
static void scatter(Point *p, int k) {
    static const char LOOP[] = "  %sc#.count = select i1 %full, i64 !, i64 %rem\n"
                               "  br label %sc#.in\n"
                               "sc#.in:\n"
                               "  %sc#.o = mul i64 %i, %s#\n"
                               "  %sc#.b = getelementptr i8, ptr %p#, i64 %sc#.o\n"
                               "  br label %sc#.loop\n"
                               "sc#.loop:\n"
                               "  %sc#.j = phi i64 [0, %sc#.in], [%sc#.n, %sc#.loop]\n"
                               "  %sc#.f = getelementptr @, ptr %x#, i64 %sc#.j\n"
                               "  %sc#.v = load @, ptr %sc#.f\n"
                               "  %sc#.m = mul i64 %sc#.j, %s#\n"
                               "  %sc#.t = getelementptr i8, ptr %sc#.b, i64 %sc#.m\n"
                               "  store @ %sc#.v, ptr %sc#.t\n"
                               "  %sc#.n = add i64 %sc#.j, 1\n"
                               "  %sc#.c = icmp ult i64 %sc#.n, %sc#.count\n"
                               "  br i1 %sc#.c, label %sc#.loop, label %sc#.out\n"
                               "sc#.out:\n";
    for (const char *c = LOOP; *c; c++) {
        if (*c == '#') TEXT("%d", k);
        else if (*c == '!') TEXT("%d", p->e->lanes);
        else if (*c == '@') TEXT("%s", memory_of(p, k));
        else TEXT("%c", *c);
    }
}

static void loop_end(Point *p) {
    CcRef v[CC_LOOP_MAX_ACCESS];
    for (int k = 0; k < p->loop->n_access; k++) {
        if (!access_of(p, k)->is_store) continue;
        stored(p, k, v[k]);
        if (access_of(p, k)->step == CC_STEP_ONE) continue;
        TEXT("  store %s %s, ptr %%x%d, align 64\n", cc_emit_vector(p->e, memory_of(p, k)), v[k], k);
        scatter(p, k);
    }
    TEXT("  br i1 %%full, label %%put, label %%tailout\nput:\n");
    for (int k = 0; k < p->loop->n_access; k++)
        if (access_of(p, k)->is_store && access_of(p, k)->step == CC_STEP_ONE)
            TEXT("  store %s %s, ptr %%v%d, align %d\n", cc_emit_vector(p->e, memory_of(p, k)), v[k], k, size_of(p, k));
    TEXT("  br label %%next\ntailout:\n");
    for (int k = 0; k < p->loop->n_access; k++)
        if (access_of(p, k)->is_store && access_of(p, k)->step == CC_STEP_ONE) store_left(p, k, v[k]);
    TEXT("  br label %%next\nnext:\n  %%i.n = add i64 %%i, %d\n  %%more = icmp slt i64 %%i.n, %%n\n", p->e->lanes);
    TEXT("  br i1 %%more, label %%loop, label %%rowend\n");
}

/* ------------------------------------------------------------------ tiles */

/* Tiles support contiguous stores and plain strided loads only. */
static bool can_tile(const Point *p) {
    bool across = false;
    for (int k = 0; k < p->loop->n_access; k++) {
        const CcLoopAccess *a = access_of(p, k);
        if (a->place || a->taken || (a->is_store && a->step != CC_STEP_ONE)) return false;
        across = across || a->across;
    }
    return across && p->e->lanes <= MAX_TILE;
}

/* Swaps the lanes of x that have bit `by` set with the lanes of y that have not. */
static void exchange(Point *p, const char *v, int by, CcRef x, CcRef y) {
    const int lanes = p->e->lanes;
    CcSbuf order[2] = {{0}, {0}};
    CcRef low;
    for (int i = 0; i < lanes; i++) {
        cc_sbuf_add(&order[0], "%si32 %d", i ? ", " : "", i & by ? lanes + i - by : i);
        cc_sbuf_add(&order[1], "%si32 %d", i ? ", " : "", i & by ? lanes + i : i + by);
    }
    cc_emit_op(p->e, low, "shufflevector %s %s, %s %s, <%d x i32> <%s>", v, x, v, y, lanes, cc_sbuf_text(&order[0]));
    cc_emit_op(p->e, y, "shufflevector %s %s, %s %s, <%d x i32> <%s>", v, x, v, y, lanes, cc_sbuf_text(&order[1]));
    strcpy(x, low);
    for (int i = 0; i < 2; i++) cc_sbuf_free(&order[i]);
}

/* Transposes a tile of an access into %z<k>, one vector per row. */
static void transpose(Point *p, int k) {
    const int lanes = p->e->lanes;
    const char *m = memory_of(p, k);
    char v[24];
    CcRef x[MAX_TILE], at;
    snprintf(v, sizeof v, "%s", cc_emit_vector(p->e, m));
    cc_emit_op(p->e, at, "mul i64 %%tile.i, %%s%d", k);
    cc_emit_op(p->e, at, "getelementptr i8, ptr %%o%d, i64 %s", k, at);
    for (int i = 0; i < lanes; i++) {
        if (i) cc_emit_op(p->e, at, "getelementptr i8, ptr %s, i64 %%s%d", at, k);
        cc_emit_op(p->e, x[i], "load %s, ptr %s, align %d", v, at, size_of(p, k));
    }
    for (int by = lanes / 2; by; by /= 2)
        for (int i = 0; i < lanes; i++)
            if (!(i & by)) exchange(p, v, by, x[i], x[i + by]);
    for (int i = 0; i < lanes; i++) {
        cc_emit_op(p->e, at, "getelementptr %s, ptr %%z%d, i64 %d", v, k, i);
        TEXT("  store %s %s, ptr %s, align 64\n", v, x[i], at);
    }
}

/* Before a block's rows: processes the region that whole tiles cover. */
static int tiles(Point *p) {
    const int n = p->loop->n_access, lanes = p->e->lanes;
    TEXT("  br i1 %%tile.some, label %%tile, label %%behind\ntile:\n"
         "  %%tile.r = phi i64 [0, %%block], [%%tile.stop, %%tile.next]\n");
    for (int k = 0; k < n; k++) TEXT("  %%j%d = phi ptr [%%b%d, %%block], [%%e%d, %%tile.next]\n", k, k, k);
    TEXT("  %%tile.most = add i64 %%tile.r, %d\n  %%tile.stops = icmp slt i64 %%tile.most, %%tile.rows\n"
         "  %%tile.stop = select i1 %%tile.stops, i64 %%tile.most, i64 %%tile.rows\n"
         "  br label %%tile.lane\ntile.lane:\n  %%tile.i = phi i64 [0, %%tile], [%%tile.i.n, %%tile.right]\n"
         "  br label %%tile.down\ntile.down:\n  %%tile.d = phi i64 [%%tile.r, %%tile.lane], [%%tile.d.n, %%tile.end]\n",
         DOWN * lanes);
    for (int k = 0; k < n; k++) TEXT("  %%o%d = phi ptr [%%j%d, %%tile.lane], [%%e%d, %%tile.end]\n", k, k, k);
    for (int k = 0; k < n; k++)
        if (access_of(p, k)->across) transpose(p, k);
    TEXT("  br label %%tile.row\ntile.row:\n  %%tile.j = phi i64 [0, %%tile.down], [%%tile.j.n, %%tile.row]\n");
    for (int k = 0; k < n; k++) TEXT("  %%h%d = phi ptr [%%o%d, %%tile.down], [%%e%d, %%tile.row]\n", k, k, k);
    p->tile = p->whole = true;
    strcpy(p->at, "%tile.i");
    for (int i = 0; i < p->loop->n_node; i++) {
        const bool row = p->invariant[i] && cc_loop_access(&p->loop->node[i]) >= 0;
        if (row) fetch_row(p, i);
        else if (node(p, i) < 0) return -1;
    }
    store_whole(p);
    p->tile = p->whole = false;
    TEXT("  %%tile.j.n = add i64 %%tile.j, 1\n");
    for (int k = 0; k < n; k++) TEXT("  %%e%d = getelementptr i8, ptr %%h%d, i64 %%r%d\n", k, k, k);
    TEXT("  %%tile.j.c = icmp slt i64 %%tile.j.n, %d\n  br i1 %%tile.j.c, label %%tile.row, label %%tile.end\n"
         "tile.end:\n  %%tile.d.n = add i64 %%tile.d, %d\n  %%tile.d.c = icmp slt i64 %%tile.d.n, %%tile.stop\n"
         "  br i1 %%tile.d.c, label %%tile.down, label %%tile.right\ntile.right:\n"
         "  %%tile.i.n = add i64 %%tile.i, %d\n  %%tile.i.c = icmp slt i64 %%tile.i.n, %%tile.n\n"
         "  br i1 %%tile.i.c, label %%tile.lane, label %%tile.next\ntile.next:\n"
         "  %%tile.r.c = icmp slt i64 %%tile.stop, %%tile.rows\n"
         "  br i1 %%tile.r.c, label %%tile, label %%behind\nbehind:\n",
         lanes, lanes, lanes);
    return 0;
}

/* Computes the rows and lanes that whole tiles cover; both are 0 if either is. */
static void count_tiles(Point *p) {
    TEXT("  %%tile.n = and i64 %%n, %d\n  %%tile.all = and i64 %%rows, %d\n", -p->e->lanes, -p->e->lanes);
    TEXT("  %%tile.any = icmp sgt i64 %%tile.n, 0\n  %%tile.rows = select i1 %%tile.any, i64 %%tile.all, i64 0\n"
         "  %%tile.some = icmp sgt i64 %%tile.rows, 0\n");
    for (int k = 0; k < p->loop->n_access; k++)
        if (access_of(p, k)->across)
            TEXT("  %%z%d = alloca [%d x %s], align 64\n", k, p->e->lanes, cc_emit_vector(p->e, memory_of(p, k)));
}

/* ------------------------------------------------------------------ rows */

/* %steps: offset of each lane, in bytes or place units; %x: memory for a vector. */
static void lanes_of(Point *p, int k) {
    const CcLoopAccess *a = access_of(p, k);
    const CcDtype dt = a->place ? (CcDtype)a->dtype : CC_DT_I64;
    const bool stored_each = a->is_store && a->step == CC_STEP_ANY;
    if (stored_each || (dense(a) && !has_masks(p, k)))
        TEXT("  %%x%d = alloca %s, align 64\n", k, cc_emit_vector(p->e, memory_of(p, k)));
    if (a->step != CC_STEP_ANY || a->is_store) return;
    char step[16];
    CcRef all;
    snprintf(step, sizeof step, "%%s%d", k);
    cc_emit_splat(p->e, dt, step, all);
    TEXT("  %%steps%d = mul %s %s, <", k, cc_emit_type(p->e, dt), all);
    for (int i = 0; i < p->e->lanes; i++) TEXT("%s%s %d", i ? ", " : "", dt == CC_DT_I32 ? "i32" : "i64", i);
    TEXT(">\n");
}

static void entry(Point *p) {
    static const char *const FIELD[] = {"a", "c", "r", "s"};
    TEXT("entry:\n  %%n = load i64, ptr %%arg\n  %%rows.p = getelementptr i8, ptr %%arg, i64 8\n"
         "  %%rows = load i64, ptr %%rows.p\n  %%blocks.p = getelementptr i8, ptr %%arg, i64 16\n"
         "  %%blocks = load i64, ptr %%blocks.p\n");
    make_masks(p);
    for (int k = 0; k < p->loop->n_access; k++) {
        const int at = OFFSET_ACCESS + SIZE_ACCESS * k;
        for (int f = 0; f < (access_of(p, k)->step == CC_STEP_ANY ? 4 : 3); f++)
            TEXT("  %%g%d.%d = getelementptr i8, ptr %%arg, i64 %d\n  %%%s%d = load %s, ptr %%g%d.%d\n", k, f,
                 at + 8 * f, FIELD[f], k, f ? "i64" : "ptr", k, f);
        lanes_of(p, k);
    }
    if (p->tiles) count_tiles(p);
    TEXT("  br label %%block\n");
}

/* Opens the loops over blocks and rows; computes the row's invariant nodes. */
static int row_head(Point *p) {
    const CcLoop *loop = p->loop;
    TEXT("block:\n  %%block.i = phi i64 [0, %%entry], [%%block.n, %%blockend]\n");
    for (int k = 0; k < loop->n_access; k++) TEXT("  %%b%d = phi ptr [%%a%d, %%entry], [%%d%d, %%blockend]\n", k, k, k);
    const char *before = p->tiles ? "behind" : "block";
    if (p->tiles && tiles(p) < 0) return -1;
    TEXT("  br label %%row\nrow:\n  %%row.i = phi i64 [0, %%%s], [%%row.n, %%rowend]\n", before);
    for (int k = 0; k < loop->n_access; k++)
        TEXT("  %%p%d = phi ptr [%%b%d, %%%s], [%%q%d, %%rowend]\n", k, k, before, k);
    if (p->tiles)
        TEXT("  %%tiled = icmp slt i64 %%row.i, %%tile.rows\n  %%from = select i1 %%tiled, i64 %%tile.n, i64 0\n"
             "  %%from.c = icmp slt i64 %%from, %%n\n  br i1 %%from.c, label %%pre, label %%rowend\npre:\n");
    else TEXT("  br label %%pre\npre:\n");
    for (int i = 0; i < loop->n_node; i++) {
        if (!p->invariant[i]) continue;
        if (cc_loop_access(&loop->node[i]) >= 0) fetch_row(p, i);
        else if (cc_emit_node(p->e, i) < 0) return -1;
    }
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        const int k = cc_loop_access(n);
        if (n->op == CC_S_take && access_of(p, k)->taken == CC_TAKEN_ROW) take_row(p, n);
        if (n->op != CC_S_place || p->invariant[i]) continue;
        char at[16];
        CcRef first;
        snprintf(at, sizeof at, "%%p%d", k);
        cc_emit_place(p->e, at, first);
        TEXT("  %%first%d = add i64 %s, 0\n", k, first);
    }
    return 0;
}

static void row_end(Point *p) {
    const int n = p->loop->n_access;
    TEXT("rowend:\n  %%row.n = add i64 %%row.i, 1\n");
    for (int k = 0; k < n; k++) TEXT("  %%q%d = getelementptr i8, ptr %%p%d, i64 %%r%d\n", k, k, k);
    TEXT("  %%rows.more = icmp slt i64 %%row.n, %%rows\n  br i1 %%rows.more, label %%row, label %%blockend\nblockend:\n"
         "  %%block.n = add i64 %%block.i, 1\n");
    for (int k = 0; k < n; k++) TEXT("  %%d%d = getelementptr i8, ptr %%b%d, i64 %%c%d\n", k, k, k);
    TEXT("  %%blocks.more = icmp slt i64 %%block.n, %%blocks\n  br i1 %%blocks.more, label %%block, label %%exit\n"
         "exit:\n  ret void\n}\n");
}

int cc_gen_point(CcEmit *e) {
    Point *p = calloc(1, sizeof *p);
    if (!p) return cc_err_set(e->err, CC_E_MEMORY, "no memory for a kernel's text");
    p->e = e;
    p->loop = e->loop;
    cc_gen_invariant(e->loop, p->invariant);
    p->copies = choose_copies(p);
    p->tiles = can_tile(p);
    entry(p);
    int status = row_head(p);
    if (status == 0 && p->copies) status = whole_vectors(p);
    if (status == 0) {
        loop_head(p);
        status = expression(p);
    }
    if (status == 0) {
        loop_end(p);
        row_end(p);
    }
    free(p);
    return status;
}
