/* blas: products by the BLAS that torch has loaded (MKL in PyPI's x86-64 wheels), called without torch's dispatcher. */
#include "dev_int.h"

/* Fortran's interface: matrices are stored column by column, so ours, transposed. Sizes are 64 bits wide, in little
 * endian: a library with 32-bit integers reads the lower half. */
typedef void Sgemm(const char *trans_a, const char *trans_b, const int64_t *m, const int64_t *n, const int64_t *k,
                   const float *alpha, const float *a, const int64_t *lda, const float *b, const int64_t *ldb,
                   const float *beta, float *c, const int64_t *ldc);
static Sgemm *sgemm;
static char name[64];

void cc_blas_use(void *function, const char *torch) {
    sgemm = (Sgemm *)function;
    snprintf(name, sizeof name, "BLAS of torch %s", torch);
}

const char *cc_blas_describe(void) { return sgemm ? name : "no BLAS"; }

/* Of a matrix [m, k] of which one stride is 1: the other one, and whether columns are contiguous. */
static bool by_columns(int64_t row, int64_t col, int64_t *step) {
    *step = CC_MAX(row, col);
    return col != 1;
}

static bool can_step(int64_t row, int64_t col, int64_t m, int64_t k) {
    int64_t step;
    return by_columns(row, col, &step) ? row == 1 && step >= m && step <= INT32_MAX : step >= k && step <= INT32_MAX;
}

bool cc_blas_can(const CcGemm *g) {
    return sgemm && g->dtype == CC_DT_F32 && CC_MAX(CC_MAX(g->m, g->n), g->k) <= INT32_MAX &&
           can_step(g->x_row, g->x_col, g->m, g->k) && can_step(g->w_row, g->w_col, g->n, g->k) &&
           can_step(g->y_row, 1, g->m, g->n);
}

/* y^T [n, m] = w [n, k] @ x^T [k, m] */
void cc_blas_run(const CcGemm *g, const CcGemmCall *call) {
    static const float ONE = 1, ZERO = 0;
    int64_t w_step, x_step;
    const bool w = by_columns(g->w_row, g->w_col, &w_step), x = by_columns(g->x_row, g->x_col, &x_step);
    sgemm(w ? "N" : "T", x ? "T" : "N", &g->n, &g->m, &g->k, &ONE, call->w, &w_step, call->x, &x_step, &ZERO, call->y,
          &g->y_row);
    cc_gemm_finish(g, call);
}
