/* boxes: a kernel for a group with a join, one loop per box of its space (loop/join.c). If all boxes have the same
 * rows, the result is written in address order: each box in turn writes a block of rows that fits into the L2. Long
 * rows that are only moved use memcpy. */
#include "run_int.h"

/* Many rows with a few elements of padding on each side cause scattered stores: 64 images of 56x56 with a border of
 * 1 took 36 us, torch 26, which fills everything first; 3 images of 224x224, border 3, 17 and 20 (Zen 4). */
enum { NARROW = 16, MANY_ROWS = 2048 };

/* For reflect and replicate torch's loops do an image at a time: 64 of 56x56, border 1: 63 us, torch 30; 3 of
 * 224x224, border 3: 25 and 17; 16 of 8x8: 4.1 and 4.8. Boxes are faster for one dim (2048 rows of 64: 26 and 58)
 * and for circular, which torch also copies piece by piece (42 to 75 and 35 to 80, 34 and 49; Zen 4). */
enum { OWN_ROWS = 256 };

/* In bytes. Rows from this size on use memcpy instead of a kernel (images of 64x56x56, 20 and 20: 1.19 ms, by
 * kernels 1.50, Zen 5). Shorter rows are written in blocks that fit into an L2 before the next box's turn (28571
 * rows of 7 and 7 floats: 71 us, 312 one box after the other; smaller blocks are slower if the data is in memory).
 * Bytes worth a thread, like that many additions. */
enum { LONG_ROW = 1 << 11, NEAR = 1 << 17, GRAIN = 1 << 17, DEAR = 40000 };

struct CcBoxes {
    int n;
    int64_t rows; /* > 1: number of rows of each box */
    bool copies;  /* uses memcpy */
    CcLaunch *launch;
};

bool cc_boxes_pay(const CcGraph *g, const CcNode *n) {
    CcPieces p;
    if (!cc_pieces_read(g, n, &p) || p.flat) return true;
    const CcType *out = &g->val.at[n->out0].type;
    const bool own = n->op == CC_OP_pad_reflect || n->op == CC_OP_pad_replicate;
    for (int i = 0; i < p.n; i++) {
        const CcCut *cut = &p.cut[i];
        int64_t edges = out->size[cut->dim];
        for (int k = 0; k < cut->n; k++)
            if (cut->piece[k].operand >= 0) edges -= cut->piece[k].end - cut->piece[k].begin;
        if (out->stride[cut->dim] == 1 && edges > 0 && edges < NARROW &&
            cc_type_numel(out) / CC_MAX(1, out->size[cut->dim]) > MANY_ROWS)
            return false;
    }
    const int last = out->ndim - 1;
    return !own || cc_pieces_boxes(&p) <= 3 || out->stride[last] != 1 ||
           cc_type_numel(out) <= OWN_ROWS * out->size[last];
}

/* The only store, which is the last access; -1: there are several. */
static int store_of(const CcLoop *loop) {
    int stores = 0;
    for (int a = 0; a < loop->n_access; a++) stores += loop->access[a].is_store;
    return stores == 1 ? loop->n_access - 1 : -1;
}

static int64_t width_of(const CcLaunch *launch) {
    const CcLoop *loop = launch->loop;
    return loop->size[1] * cc_dtype_size(loop->access[store_of(loop)].dtype);
}

/* Do all boxes have the same rows? */
static int64_t rows_of(CcBoxes *b) {
    const int64_t rows = b->n > 1 ? b->launch[0].rows : 1;
    b->copies = true;
    for (int i = 0; i < b->n; i++) {
        const CcLoop *loop = b->launch[i].loop;
        const int store = store_of(loop);
        if (loop->lane != 1 || b->launch[i].rows != rows || store < 0) return 1;
        const int size = cc_dtype_size(loop->access[store].dtype);
        if (loop->stride[store][1] != size || width_of(&b->launch[i]) > loop->stride[store][0]) return 1;
        b->copies = b->copies && loop->n_node == 1 && loop->node[0].op == CC_S_load && loop->access[0].value >= 0 &&
                    loop->stride[0][1] == size && width_of(&b->launch[i]) >= LONG_ROW;
    }
    return rows;
}

CcBoxes *cc_boxes_make(int n, CcArena *arena, CcLaunch **launches) {
    CcBoxes *b = cc_arena_alloc(arena, sizeof *b);
    if (!b || !(b->launch = *launches = cc_arena_alloc(arena, sizeof **launches * (size_t)n))) return NULL;
    *b = (CcBoxes){.n = n, .launch = *launches};
    return b;
}

void cc_boxes_settle(CcBoxes *b) { b->rows = rows_of(b); }

void cc_boxes_print(const CcBoxes *b, CcSbuf *out) {
    for (int i = 1; i < b->n; i++) cc_ltext_print(b->launch[i].loop, out);
}

typedef struct Job {
    const CcBoxes *b;
    char *(*at)[CC_LOOP_MAX_ACCESS];
} Job;

static void copy_rows(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    for (int64_t r = begin; r < end; r++)
        for (int i = 0; i < job->b->n; i++) {
            const CcLaunch *x = &job->b->launch[i];
            memcpy(job->at[i][1] + r * x->loop->stride[1][0], job->at[i][0] + r * x->loop->stride[0][0],
                   (size_t)width_of(x));
        }
}

static void write_rows(void *ctx, int64_t begin, int64_t end) {
    const Job *job = ctx;
    const CcLoop *first = job->b->launch[0].loop;
    const int64_t step = CC_MAX(1, NEAR / first->stride[store_of(first)][0]);
    for (int64_t r = begin; r < end; r += step)
        for (int i = 0; i < job->b->n; i++) cc_launch_rows(&job->b->launch[i], job->at[i], r, CC_MIN(r + step, end));
}

/* Number of threads that write rows; 0: too few rows, the kernels split them. */
static int parts_of(const CcBoxes *b) {
    int64_t bytes = 0;
    float work = 0;
    for (int i = 0; i < b->n && b->rows > 1; i++) {
        bytes += width_of(&b->launch[i]) * b->rows;
        work += (float)b->launch[i].numel * b->launch[i].loop->cost;
    }
    const int64_t worth = b->launch->loop->n_node == 1 ? bytes / GRAIN : (int64_t)(work / DEAR);
    const int parts = (int)CC_MAX(1, CC_MIN(cc_omp_width(), worth));
    return b->rows > 1 && (parts == 1 || b->rows >= 4 * parts) ? parts : 0;
}

int cc_boxes_run(const CcBoxes *b, const CcHost *host, CcErr *err) {
    char *at[CC_PIECES_MAX][CC_LOOP_MAX_ACCESS], *made[CC_LOOP_MAX_ACCESS];
    double room[CC_PIECES_MAX][CC_LOOP_MAX_ACCESS];
    for (int i = 0; i < b->n; i++)
        if (cc_launch_find(&b->launch[i], host, made, i == 0, at[i], room[i], err) < 0) return -1;
    const int parts = parts_of(b);
    if (parts) cc_omp_run(b->copies ? copy_rows : write_rows, &(Job){b, at}, b->rows, parts);
    for (int i = 0; i < b->n && !parts; i++) cc_launch_at(&b->launch[i], at[i]);
    return 0;
}
