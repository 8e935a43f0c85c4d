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

bool cc_blas_can(const CcGemm *g) {
    const int64_t most = INT32_MAX;
    return sgemm && g->m <= most && g->n <= most && g->k <= most && g->x_row >= g->k && g->y_row >= g->n &&
           (g->w_col == 1 ? g->w_row >= g->k : g->w_col >= g->n) && CC_MAX(g->x_row, g->y_row) <= most &&
           CC_MAX(g->w_row, g->w_col) <= most;
}

/* y^T [n, m] = w [n, k] @ x^T [k, m] */
void cc_blas_run(const CcGemm *g, const CcGemmCall *call) {
    static const float ONE = 1, ZERO = 0;
    const bool rows = g->w_col == 1; /* each output's weights are contiguous */
    const int64_t w_row = rows ? g->w_row : g->w_col;
    sgemm(rows ? "T" : "N", "N", &g->n, &g->m, &g->k, &ONE, call->w, &w_row, call->x, &g->x_row, &ZERO, call->y,
          &g->y_row);
    cc_gemm_finish(g, call);
}
