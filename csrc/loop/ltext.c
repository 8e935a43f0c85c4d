/* ltext: prints loop IR as text, for reports and golden files. */
#include "loop.h"

int cc_loop_access(const CcLoopNode *n) {
    if (n->op == CC_S_load || n->op == CC_S_place) return n->a[0];
    return n->op == CC_S_take ? n->a[1] : -1;
}

double cc_loop_number(int64_t bits) {
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static void print_store(const CcLoopAccess *access, int a, CcSbuf *out) {
    static const char *const HOW[] = {"set", "sum", "product", "mean", "maximum", "minimum"};
    cc_sbuf_add(out, "  store a%d", a);
    if (access->where) cc_sbuf_add(out, " + %%%d (%s)", access->where - 1, HOW[access->how]);
    cc_sbuf_add(out, ", %%%d\n", access->node);
}

void cc_ltext_print(const CcLoop *loop, CcSbuf *out) {
    static const char *const STEP[] = {"one", "zero", "any", "back"};
    cc_sbuf_add(out, "nest");
    for (int d = 0; d < loop->ndim; d++)
        cc_sbuf_add(out, "%s%lld", loop->reduces && d == loop->lane ? " |" : " ", (long long)loop->size[d]);
    cc_sbuf_add(out, "%s\n", !loop->reduces ? "" : loop->columns ? " by columns" : " by rows");
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *access = &loop->access[a];
        cc_sbuf_add(out, "a%d %s %s step %s, bytes", a,
                    access->is_store ? "store"
                    : access->place  ? "place"
                    : access->taken  ? "take"
                    : access->number ? "number"
                                     : "load",
                    cc_dtype_info((CcDtype)access->dtype)->name, STEP[access->step]);
        for (int d = 0; d < loop->ndim; d++) cc_sbuf_add(out, " %lld", (long long)loop->stride[a][d]);
        cc_sbuf_add(out, "\n");
    }
    for (int i = 0; i < loop->n_node; i++) {
        const CcLoopNode *n = &loop->node[i];
        const CcDtypeInfo *dt = cc_dtype_info((CcDtype)n->dtype);
        cc_sbuf_add(out, "  %%%d = %s.%s", i, cc_scalar_info((CcScalarId)n->op)->name, dt->name);
        if (n->op == CC_S_take) cc_sbuf_add(out, " a%d + %lld * %%%d", n->a[1], (long long)n->bits, n->a[0]);
        else if (cc_loop_access(n) >= 0) cc_sbuf_add(out, " a%d", n->a[0]);
        else if (n->op == CC_S_konst && dt->kind == 'f') cc_sbuf_add(out, " %.9g", cc_loop_number(n->bits));
        else if (n->op == CC_S_konst) cc_sbuf_add(out, " %lld", (long long)n->bits);
        else
            for (int k = 0; k < 3 && n->a[k] >= 0; k++) cc_sbuf_add(out, " %%%d", n->a[k]);
        cc_sbuf_add(out, "\n");
    }
    for (int a = 0; a < loop->n_access; a++)
        if (loop->access[a].is_store) print_store(&loop->access[a], a, out);
}
