/* coretest: the core half as a shared library for tests/test_core.py (ctypes). Thin wrappers with
 * default visibility; nothing here is part of the product. */
#include "../../csrc/run/run.h"

#define T_API __attribute__((visibility("default")))

T_API CcGraph *t_graph_new(void);
T_API void t_graph_free(CcGraph *g);
T_API int t_input(CcGraph *g, int dtype, int ndim, const int64_t *size, const int64_t *stride);
T_API int t_node(CcGraph *g, const char *op, unsigned flags, int host, const CcOperand *in,
                 int n_in, int dtype, int ndim, const int64_t *size, const int64_t *stride);
T_API void t_output(CcGraph *g, int value);
T_API CcVal *t_val(CcGraph *g, int value);
T_API CcNode *t_node_at(CcGraph *g, int node);
T_API CcOperand *t_operand_at(CcGraph *g, int operand);
T_API int t_check(const CcGraph *g, char *text, int n);
T_API CcPlan *t_compile(const CcGraph *g, const CcRunOptions *options, char *text, int n);
T_API int t_exec(const CcPlan *plan, const CcHost *host, int *step, char *text, int n);
T_API void t_free(CcPlan *plan);
T_API void t_stats(const CcPlan *plan, CcPlanStats *out);
T_API char *t_graph_text(const CcGraph *g);
T_API char *t_plan_text(const CcPlan *plan);
T_API char *t_describe(void);
T_API void t_release(char *text);
T_API void t_libraries(const char *llvmlite, const char *onednn);
T_API void t_threads(int n);
T_API int t_dtype(const char *torch_name);
T_API uint64_t t_events(int kind);
T_API int t_last_event(char *text, int n);
T_API const CcOpInfo *t_op(int id);
T_API int t_op_rows(void);
T_API int t_op_init(char *text, int n);
T_API double t_bench(const CcPlan *plan, void **data, int runs);

static CcType type_of(int dtype, int ndim, const int64_t *size, const int64_t *stride) {
    CcType t = {.dtype = (uint8_t)dtype, .ndim = (int8_t)ndim, .device = 1};
    for (int i = 0; i < ndim && i < CC_MAX_DIMS; i++) {
        t.size[i] = size[i];
        t.stride[i] = stride[i];
    }
    return t;
}

static int report(int status, const CcErr *err, char *text, int n) {
    snprintf(text, (size_t)n, "%s", status < 0 ? err->text : "");
    return status;
}

CcGraph *t_graph_new(void) { return cc_graph_new(); }
void t_graph_free(CcGraph *g) { cc_graph_free(g); }

int t_input(CcGraph *g, int dtype, int ndim, const int64_t *size, const int64_t *stride) {
    const CcType t = type_of(dtype, ndim, size, stride);
    return cc_graph_input(g, &t);
}

int t_node(CcGraph *g, const char *op, unsigned flags, int host, const CcOperand *in, int n_in,
           int dtype, int ndim, const int64_t *size, const int64_t *stride) {
    const CcType t = type_of(dtype, ndim, size, stride);
    const int node = cc_graph_node(g, cc_op_find(op), flags, host, in, n_in, &t, 1);
    return g->node.at[node].out0;
}

void t_output(CcGraph *g, int value) { g->val.at[value].is_output = 1; }
CcVal *t_val(CcGraph *g, int value) { return &g->val.at[value]; }
CcNode *t_node_at(CcGraph *g, int node) { return &g->node.at[node]; }
CcOperand *t_operand_at(CcGraph *g, int operand) { return &g->operand.at[operand]; }

int t_check(const CcGraph *g, char *text, int n) {
    CcErr err = {0};
    return report(cc_graph_check(g, &err), &err, text, n);
}

CcPlan *t_compile(const CcGraph *g, const CcRunOptions *options, char *text, int n) {
    CcErr err = {0};
    CcPlan *plan = cc_run_compile(g, options, &err);
    report(plan ? 0 : -1, &err, text, n);
    return plan;
}

int t_exec(const CcPlan *plan, const CcHost *host, int *step, char *text, int n) {
    CcErr err = {0};
    return report(cc_run_exec(plan, host, step, &err), &err, text, n);
}

void t_free(CcPlan *plan) { cc_run_free(plan); }
void t_stats(const CcPlan *plan, CcPlanStats *out) { cc_run_stats(plan, out); }

static char *text_of(CcSbuf *sb) {
    char *text = strdup(cc_sbuf_text(sb));
    cc_sbuf_free(sb);
    return text;
}

char *t_graph_text(const CcGraph *g) {
    CcSbuf sb = {0};
    cc_graph_print(g, &sb);
    return text_of(&sb);
}

char *t_plan_text(const CcPlan *plan) {
    CcSbuf sb = {0};
    cc_run_print(plan, &sb);
    return text_of(&sb);
}

char *t_describe(void) {
    CcSbuf sb = {0};
    cc_run_describe(&sb);
    return text_of(&sb);
}

void t_release(char *text) { free(text); }
void t_libraries(const char *llvmlite, const char *onednn) { cc_run_libraries(llvmlite, onednn); }
void t_threads(int n) { cc_run_threads(n); }

int t_dtype(const char *torch_name) {
    for (int i = 1; i < CC_DT_COUNT; i++)
        if (strcmp(cc_dtype_info((CcDtype)i)->torch_name, torch_name) == 0) return i;
    return 0;
}

uint64_t t_events(int kind) { return cc_log_count((CcEventKind)kind); }

int t_last_event(char *text, int n) {
    CcLogEvent e[64];
    uint64_t after = 0;
    int got, any = 0;
    while ((got = cc_log_copy(e, 64, after)) > 0) {
        after = e[got - 1].serial;
        snprintf(text, (size_t)n, "%s: %s", cc_log_name(e[got - 1].kind), e[got - 1].text);
        any = 1;
    }
    return any;
}

const CcOpInfo *t_op(int id) { return cc_op_info((CcOpId)id); }
int t_op_rows(void) { return CC_OP_ROWS; }

int t_op_init(char *text, int n) {
    CcErr err = {0};
    return report(cc_op_init(&err), &err, text, n);
}

/* Time of a run with a host that does nothing but find pointers: ns a call. */
static void *bench_data(void *ctx, int value) { return ((void **)ctx)[value]; }
static int bench_call(void *ctx, int node) {
    (void)ctx;
    (void)node;
    return -1;
}
static uint64_t bench_version(void *ctx, int value) {
    (void)ctx;
    (void)value;
    return CC_NO_VERSION;
}
static void bench_drop(void *ctx, int value) {
    (void)ctx;
    (void)value;
}

double t_bench(const CcPlan *plan, void **data, int runs) {
    const CcHost host = {.ctx = data, .data = bench_data, .make = bench_data, .call = bench_call, .version = bench_version, .drop = bench_drop};
    CcErr err;
    const uint64_t start = cc_log_now_ns();
    for (int i = 0; i < runs; i++)
        if (cc_run_exec(plan, &host, NULL, &err) < 0) return -1;
    return (double)(cc_log_now_ns() - start) / runs;
}
