/* coretest: exports the core half to tests/core/harness.py (ctypes) through thin wrappers with default visibility. Not part
 * of the product. */
#include "../../csrc/run/run_int.h"

#define T_API __attribute__((visibility("default")))

T_API CcGraph *t_graph_new(void);
T_API void t_graph_free(CcGraph *g);
T_API int t_input(CcGraph *g, int dtype, int ndim, const int64_t *size, const int64_t *stride);
T_API int t_node(CcGraph *g, const char *op, unsigned flags, int host, const CcOperand *in, int n_in, int dtype,
                 int ndim, const int64_t *size, const int64_t *stride);
T_API void t_output(CcGraph *g, int value);
T_API CcVal *t_val(CcGraph *g, int value);
T_API CcNode *t_node_at(CcGraph *g, int node);
T_API CcOperand *t_operand_at(CcGraph *g, int operand);
T_API bool t_infer(const CcGraph *g, int node, const CcGraph *recorded, CcType *out);
T_API int t_check(const CcGraph *g, char *text, int n);
T_API CcPlan *t_compile(const CcGraph *g, const CcRunOptions *options, char *text, int n);
T_API int t_exec(const CcPlan *plan, const CcHost *host, int *step, char *text, int n);
T_API void t_free(CcPlan *plan);
T_API void t_stats(const CcPlan *plan, CcPlanStats *out);
T_API char *t_graph_text(const CcGraph *g);
T_API CcGraph *t_graph_read(const char *text, char *why, int n);
T_API char *t_plan_text(const CcPlan *plan);
T_API char *t_describe(void);
T_API void t_release(char *text);
T_API void t_libraries(const char *llvmlite, const char *onednn, const char *nvrtc);
T_API int t_place(CcGraph *g, int value, int device, int index);
T_API int64_t t_cubin(const char *source, int arch, char *text, int n);
T_API int t_cuda(int index, const char *source, const char *name, int grid, int threads, void *argument, char *text,
                 int n);
T_API void t_threads(int n);
T_API int t_dtype(const char *torch_name);
T_API uint64_t t_events(int kind);
T_API bool t_keep(void);
T_API int t_last_event(char *text, int n);
T_API const CcOpInfo *t_op(int id);
T_API int t_op_rows(void);
T_API int t_grad(const char *op, int operand, int *at);
T_API int t_formula_grad(CcGraph *g, int node, int operand);
T_API int t_formula_tensors(int f);
T_API int t_formula_operands(int f);
T_API const char *t_formula_name(int f);
T_API double t_formula_point(int f, int operand, int i);
T_API void t_formula_learn(int f, const float *const *grad);
T_API void t_formula_forget(void);
T_API bool t_grad_reads(CcGraph *g, int node, int grad, int operand);
T_API int t_op_init(char *text, int n);
T_API double t_bench(const CcPlan *plan, void **data, int runs);
T_API int t_steps(const CcPlan *plan);
T_API bool t_is_kernel(const CcPlan *plan, int step);
T_API char *t_loop_text(const CcPlan *plan, int step);
T_API char *t_cuda_prelude(void);
T_API char *t_cuda_text(const CcPlan *plan, int step, const CcCudaTuning *tuning, const char *name);
T_API void t_cuda_launch(const CcPlan *plan, int step, const CcCudaTuning *tuning, int processors, CcCudaLaunch *out);

T_API int64_t t_map(const int64_t *step, int n, int64_t *found);

/* The entry point of tests/cuda's emulator: runs a kernel on the CPU. */
typedef int (*EmulatedFn)(void *kernel, long long grid, int threads, int shared, const void *argument, int bytes,
                          int order);
T_API void t_cuda_bind(CcPlan *plan, int step, const CcCudaTuning *tuning, int processors, EmulatedFn run,
                       void *const *kernel, int order);

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

int t_node(CcGraph *g, const char *op, unsigned flags, int host, const CcOperand *in, int n_in, int dtype, int ndim,
           const int64_t *size, const int64_t *stride) {
    const CcType t = type_of(dtype, ndim, size, stride);
    const int node = cc_graph_node(g, cc_op_find(op), flags, host, in, n_in, &t, 1);
    return g->node.at[node].out0;
}

void t_output(CcGraph *g, int value) { g->val.at[value].is_output = 1; }
CcVal *t_val(CcGraph *g, int value) { return &g->val.at[value]; }
CcNode *t_node_at(CcGraph *g, int node) { return &g->node.at[node]; }
CcOperand *t_operand_at(CcGraph *g, int operand) { return &g->operand.at[operand]; }

bool t_infer(const CcGraph *g, int node, const CcGraph *recorded, CcType *out) {
    return cc_infer_node(g, node, recorded, out);
}

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

CcGraph *t_graph_read(const char *text, char *why, int n) {
    CcErr err = {0};
    CcGraph *g = cc_graph_read(text, &err);
    report(g ? 0 : -1, &err, why, n);
    return g;
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
void t_libraries(const char *llvmlite, const char *onednn, const char *nvrtc) {
    cc_run_libraries(llvmlite, NULL, onednn, nvrtc);
}

/* Sets a value's device: DLPack's device type and the device's index. */
int t_place(CcGraph *g, int value, int device, int index) {
    g->val.at[value].type.device = (uint8_t)device;
    g->val.at[value].type.device_index = (uint8_t)index;
    return value;
}

/* Compiles a CUDA program -> bytes of machine code; -1: text says why not. */
int64_t t_cubin(const char *source, int arch, char *text, int n) {
    CcErr err = {0};
    CcCubin image = {0};
    const int status = report(cc_cubin_get(source, arch, &image, &err), &err, text, n);
    free(image.at);
    return status < 0 ? -1 : (int64_t)image.n;
}

/* Compiles a program and launches one of its kernels once. */
int t_cuda(int index, const char *source, const char *name, int grid, int threads, void *argument, char *text, int n) {
    CcErr err = {0};
    CcCubin image = {0};
    const CcCudaDevice *device = cc_cuda_device(index, &err);
    int status = device ? cc_cubin_get(source, device->arch, &image, &err) : -1;
    void *program = status == 0 ? cc_cuda_load(device, &image, &err) : NULL;
    free(image.at);
    void *function = program ? cc_cuda_function(device, program, name, &err) : NULL;
    const CcCudaCall call = {
        .function = function, .name = name, .grid = grid, .threads = threads, .argument = argument};
    status = function ? cc_cuda_launch(device, &call, NULL, &err) : -1;
    if (status == 0) status = cc_cuda_wait(device, NULL, &err);
    return report(status, &err, text, n);
}
void t_threads(int n) { cc_run_threads(n); }

int t_dtype(const char *torch_name) {
    for (int i = 1; i < CC_DT_COUNT; i++)
        if (strcmp(cc_dtype_info((CcDtype)i)->torch_name, torch_name) == 0) return i;
    return 0;
}

bool t_keep(void) { return cc_mem_reserve(); }

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

/* The derivative of an op for an operand, 0: none; *at: its operand `grad`. */
int t_grad(const char *op, int operand, int *at) {
    *at = cc_op_grad_at(cc_op_find(op));
    return cc_op_grad(cc_op_find(op), operand);
}

/* The row that a node's derivative for an operand has, by what was learnt of torch. */
int t_formula_grad(CcGraph *g, int node, int operand) { return cc_formula_grad(g, &g->node.at[node], operand); }
int t_formula_tensors(int f) { return cc_formula_tensors((CcFormula)f); }
int t_formula_operands(int f) { return cc_formula_operands((CcFormula)f); }
const char *t_formula_name(int f) { return f < CC_FORMULA_COUNT ? cc_formula_name((CcFormula)f) : NULL; }
double t_formula_point(int f, int operand, int i) { return cc_formula_point((CcFormula)f, operand, i); }
void t_formula_learn(int f, const float *const *grad) { cc_formula_learn((CcFormula)f, grad); }
void t_formula_forget(void) { cc_formula_forget(); }

bool t_grad_reads(CcGraph *g, int node, int grad, int operand) {
    return cc_op_grad_reads(g, &g->node.at[node], (CcOpId)grad, operand);
}

int t_op_init(char *text, int n) {
    CcErr err = {0};
    return report(cc_op_init(&err), &err, text, n);
}

/* Nanoseconds per run, with a host that only looks pointers up. */
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
    const CcHost host = {.ctx = data,
                         .data = bench_data,
                         .make = bench_data,
                         .call = bench_call,
                         .version = bench_version,
                         .drop = bench_drop};
    CcErr err;
    const uint64_t start = cc_log_now_ns();
    for (int i = 0; i < runs; i++)
        if (cc_run_exec(plan, &host, NULL, &err) < 0) return -1;
    return (double)(cc_log_now_ns() - start) / runs;
}

/* ------------------------------------------------------------------ CUDA */

int t_steps(const CcPlan *plan) { return plan->step.n; }
bool t_is_kernel(const CcPlan *plan, int step) { return plan->step.at[step].kind == CC_STEP_KERNEL; }
static const CcLoop *loop_of(const CcPlan *plan, int step) {
    return ((const CcLaunch *)plan->step.at[step].work)->loop;
}

char *t_loop_text(const CcPlan *plan, int step) {
    CcSbuf sb = {0};
    cc_ltext_print(loop_of(plan, step), &sb);
    return text_of(&sb);
}

char *t_cuda_prelude(void) {
    CcSbuf sb = {0};
    cc_gen_cuda_prelude(&sb);
    return text_of(&sb);
}

/* The kernel's source, or "!" and the reason if the printer refuses the loop. */
char *t_cuda_text(const CcPlan *plan, int step, const CcCudaTuning *tuning, const char *name) {
    CcSbuf sb = {0};
    CcErr err = {0};
    if (cc_gen_cuda(loop_of(plan, step), tuning, name, &sb, &err) < 0) {
        cc_sbuf_free(&sb);
        cc_sbuf_add(&sb, "!%s", err.text);
    }
    return text_of(&sb);
}

void t_cuda_launch(const CcPlan *plan, int step, const CcCudaTuning *tuning, int processors, CcCudaLaunch *out) {
    cc_gen_cuda_launch(loop_of(plan, step), tuning, processors, out);
}

typedef struct Emulated {
    const CcLoop *loop;
    CcCudaLaunch launch;
    EmulatedFn run;
    void *kernel[CC_CUDA_MAX_PARTS];
    int order;
    const CcLaunch *of;
} Emulated;

static int emulated_run(const void *work, const CcHost *host, CcErr *err) {
    const Emulated *e = work;
    const CcLoop *loop = e->loop;
    char *at[CC_LOOP_MAX_ACCESS], argument[CC_CUDA_MAX_ARG];
    double number[CC_LOOP_MAX_ACCESS] = {0};
    for (int a = 0; a < loop->n_access; a++) {
        const CcLoopAccess *access = &loop->access[a];
        if (access->number)
            number[a] = access->fixed ? cc_loop_number(access->bits) : host->number(host->ctx, access->number - 1);
        at[a] = access->place                                                 ? CC_PLACE_ZERO
                : access->number                                              ? NULL
                : access->is_store && !cc_launch_writes(e->of, access->value) ? host->make(host->ctx, access->value)
                                                                              : host->data(host->ctx, access->value);
        if (at[a]) at[a] += access->offset;
    }
    char *workspace = malloc((size_t)e->launch.workspace + 1);
    if (!workspace) return cc_err_set(err, CC_E_MEMORY, "no memory");
    memset(workspace, 0xff, (size_t)e->launch.workspace);
    int status = 0;
    const int bytes = e->launch.n ? cc_gen_cuda_argument(loop, &e->launch, at, number, workspace, argument) : 0;
    for (int i = 0; i < e->launch.n && status == 0; i++)
        status = e->run(e->kernel[i], e->launch.part[i].grid, e->launch.part[i].threads, e->launch.part[i].shared,
                        argument, bytes, e->order);
    free(workspace);
    return status ? cc_err_set(err, CC_E_HOST, "CUDA error %d", status) : 0;
}

static const CcPrimFamily EMULATED = {.name = "emulated", .run = emulated_run};

/* Replaces a plan's step by emulated launches of these kernels. */
void t_cuda_bind(CcPlan *plan, int step, const CcCudaTuning *tuning, int processors, EmulatedFn run,
                 void *const *kernel, int order) {
    CcStep *s = &plan->step.at[step];
    Emulated *e = s->kind == CC_STEP_KERNEL ? cc_arena_alloc(plan->arena, sizeof *e) : s->work;
    if (!e) return;
    if (s->kind == CC_STEP_KERNEL) {
        e->loop = loop_of(plan, step);
        e->of = s->work;
    }
    cc_gen_cuda_launch(e->loop, tuning, processors, &e->launch);
    e->run = run;
    memcpy(e->kernel, kernel, sizeof e->kernel);
    e->order = order;
    s->kind = CC_STEP_PRIMITIVE;
    s->family = &EMULATED;
    s->work = e;
}

/* Runs a sequence of map operations, three words each: operation, key, value of a put. found: the result of each lookup and
 * removal. -> number of entries left. */
int64_t t_map(const int64_t *step, int n, int64_t *found) {
    enum { PUT, FIND, REMOVE };
    CcMap map = {0};
    for (int i = 0; i < n; i++, step += 3) {
        const void *key = (const void *)(intptr_t)step[1];
        if (step[0] == PUT) cc_map_put(&map, key, step[2]);
        const int64_t *at = step[0] == FIND ? cc_map_find(&map, key) : NULL;
        found[i] = step[0] == REMOVE ? cc_map_remove(&map, key) : at != NULL ? *at : -1;
    }
    const int64_t left = map.n;
    cc_map_free(&map);
    return left;
}
