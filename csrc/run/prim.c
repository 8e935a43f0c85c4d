/* prim: the families of library calls, selected by the op at the start of a chain, and code that they share. */
#include "run_int.h"

/* relu is missing: for NaN, oneDNN's gives 0 and eager's NaN. A kernel does it. */
static const struct {
    CcOpId op;
    CcPostKind kind;
} UNARY[] = {
    {CC_OP_gelu, CC_POST_GELU_ERF},   {CC_OP_gelu_tanh, CC_POST_GELU_TANH}, {CC_OP_silu, CC_POST_SILU},
    {CC_OP_sigmoid, CC_POST_SIGMOID}, {CC_OP_tanh, CC_POST_TANH},
};

int cc_prim_unary(const CcNode *n) {
    if (n->op == CC_OP_gelu && n->n_in < 2) return -1; /* not oneDNN's gelu */
    /* Nor is ours torch's: CCOMPILE_CPU restricts our oneDNN alone, and gelu(inf) differs between AVX-512 and AVX2. */
    if (n->op == CC_OP_gelu && cc_cpu_info()->narrowed && cc_cpu_info()->wide_torch) return -1;
    for (int i = 0; i < CC_COUNT(UNARY); i++)
        if (UNARY[i].op == n->op) return (int)UNARY[i].kind;
    return -1;
}

const CcOperand *cc_prim_operand(const CcGraph *g, const CcNode *n, int i) {
    return i >= 0 && i < n->n_in ? &g->operand.at[n->in0 + i] : NULL;
}

bool cc_prim_binary(const CcGraph *g, const CcNode *n, CcIn_add *in) {
    CcIn_mul plain;
    if (n->op == CC_OP_mul) {
        if (!cc_in_mul(g, n, &plain)) return false;
        *in = (CcIn_add){.in = {plain.in[0], plain.in[1]}};
        return true;
    }
    if (n->op != CC_OP_add || !cc_in_add(g, n, in)) return false;
    const CcOperand *alpha = &in->in[2];
    return alpha->kind == CC_IN_NONE || (alpha->kind == CC_IN_INT && alpha->i == 1);
}

bool cc_prim_f32(const CcType *t) { return t->dtype == CC_DT_F32 && cc_prim_float(t); }

bool cc_prim_float(const CcType *t) {
    const bool known = t->dtype == CC_DT_F32 || cc_dtype_is_half(t->dtype);
    if (t->ndim < 1 || t->ndim > CC_DNNL_MAX_NDIM || t->device != 1 || !known) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->size[d] <= 0 || t->stride[d] < 0) return false;
    return true;
}

bool cc_prim_operand_of(const CcType *t) {
    return cc_prim_float(t) && (t->dtype == CC_DT_F32 || cc_dnnl_native((CcDtype)t->dtype));
}

CcTensorDesc cc_prim_desc(const CcType *t) {
    CcTensorDesc d = {.ndim = t->ndim, .dtype = (CcDtype)t->dtype};
    memcpy(d.size, t->size, sizeof *d.size * (size_t)t->ndim);
    memcpy(d.stride, t->stride, sizeof *d.stride * (size_t)t->ndim);
    return d;
}

void cc_prim_settle(const CcGraph *g, CcSlot *slot) {
    if (slot->value < 0) return;
    slot->at = g->val.at[slot->value].offset;
    slot->value = cc_graph_base(g, slot->value);
}

bool cc_prim_frozen(const CcGraph *g, int value) {
    const CcVal *v = value >= 0 ? &g->val.at[cc_graph_base(g, value)] : NULL;
    return v && !v->changes && (v->frozen == CC_FROZEN || v->frozen == CC_FROZEN_KEPT);
}

bool cc_prim_cast_once(const CcGraph *g, int value, CcDtype to) {
    const CcVal *v = value >= 0 ? &g->val.at[cc_graph_base(g, value)] : NULL;
    return v && v->frozen == CC_FROZEN_CAST && v->type.dtype != to;
}

static bool is_read(const CcGraph *g, const bool *live, int value) {
    if (g->val.at[value].is_output) return true;
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; live[i] && k < g->node.at[i].n_in; k++) {
            const int v = cc_graph_value(g, &g->node.at[i], k);
            if (v >= 0 && cc_graph_base(g, v) == value) return true;
        }
    return false;
}

void cc_prim_unread(const CcGraph *g, int *const *result, int n, CcArena *arena) {
    bool *live = cc_arena_alloc(arena, (size_t)g->node.n + 1);
    if (live) cc_dce_mark(g, live);
    for (int i = 0; i < n && live; i++)
        if (*result[i] >= 0 && !is_read(g, live, *result[i])) *result[i] = -1;
}

void cc_prim_version(CcPrimCall *call, CcPacked *packed, const CcHost *host, int weights) {
    const uint64_t version = packed ? host->version(host->ctx, weights) : CC_NO_VERSION;
    if (version == CC_NO_VERSION) {
        cc_packed_drop(packed);
        return;
    }
    call->packed = packed;
    call->version = version;
}

const void *cc_prim_data(const CcHost *host, CcSlot slot) {
    const char *data = slot.value >= 0 ? host->data(host->ctx, slot.value) : NULL;
    return data ? data + slot.at : NULL;
}

/* A case for each row of ops.def; its kind is pasted to the macro's name. */
#define SERVED_CC_K_LIBRARY(family)                                                                                    \
    {                                                                                                                  \
        extern const CcPrimFamily CC_##family;                                                                         \
        return &CC_##family;                                                                                           \
    }
#define SERVED_CC_K_HOST return NULL;
#define SERVED_CC_K_POINTWISE return NULL;
#define SERVED_CC_K_VIEW return NULL;
#define SERVED_CC_K_REDUCE return NULL;
#define SERVED_CC_K_SOFTMAX return NULL;
#define SERVED_CC_K_NORM return NULL;
#define SERVED_CC_K_REARRANGE return NULL;
#define SERVED_CC_K_CONCAT return NULL;
#define SERVED_CC_K_RANDOM return NULL;
#define SERVED_CC_K_RESAMPLE return NULL;
#define SERVED_CC_K_POOL return NULL;
#define SERVED_CC_K_MATMUL return &CC_PRODUCTS;
#define SERVED_CC_K_ATTENTION return &CC_ATTENTIONS;
#define SERVED_CC_K_RNN return &CC_RNNS;
#define SERVED_CC_K_INDEX return &CC_SCATTERS;
#define SERVED_CC_K_SCATTER return &CC_SCATTERS;
#define SERVED_CC_K_CONV return &CC_CONVS;

const CcPrimFamily *cc_prim_family(const CcGraph *g, int node) {
    switch ((CcOpId)g->node.at[node].op) {
#define CC_OPROW(id, kind, ...)                                                                                        \
    case CC_OP_##id: SERVED_##kind
#define CC_OPCASE(...)
#define CC_OPCASE_HALF(...)
#include "../ir/ops.def"
#undef CC_OPROW
#undef CC_OPCASE
#undef CC_OPCASE_HALF
    default: return NULL;
    }
}

bool cc_prim_can(const CcGraph *g, int node) {
    const CcPrimFamily *family = cc_prim_family(g, node);
    return family && (g->node.at[node].n_out == 1 || family->several) && family->can(g, node);
}

bool cc_prim_can_post(const CcGraph *g, const int *chain, int n, int node) {
    const CcPrimFamily *family = cc_prim_family(g, chain[0]);
    return family && family->can_post && family->can_post(g, chain, n, node);
}
