/* ir: dtypes, tensor types, the op table and the graph. Plain data: no Python, no torch.
 *
 * A graph is what the recorder saw between two breaks: values (tensors with their recorded metadata) and nodes in
 * program order. Every node can be replayed by the host (`CcNode.host` is its number there), so an op without a row, or
 * a failure of any back-end, costs speed and never correctness. */
#ifndef CC_IR_H
#define CC_IR_H

#include "../base/base.h"

enum { CC_MAX_DIMS = 8 };

/* dtype.def */
typedef enum CcDtype {
#define CC_DTYPE(id, ...) CC_DT_##id,
#include "dtype.def"
#undef CC_DTYPE
    CC_DT_COUNT
} CcDtype;

typedef struct CcDtypeInfo {
    const char *name;       /* "f32" */
    const char *torch_name; /* "float32" */
    uint8_t size;           /* bytes of an element */
    char kind;              /* 'f' float, 'i' signed, 'u' unsigned, 'b' bool, 'c' complex, '?' other */
    uint8_t dl_code, dl_bits;
} CcDtypeInfo;
const CcDtypeInfo *cc_dtype_info(CcDtype dt);
CcDtype cc_dtype_from_dl(int code, int bits); /* CC_DT_OTHER when there is none */
/* Of bf16 or f16, as bits. To nearest even; a NaN stays one, as torch's conversions give it (c10/util/BFloat16.h,
 * Half.h). */
float cc_dtype_widen(CcDtype half, uint16_t bits);
uint16_t cc_dtype_narrow(CcDtype half, float f);

/* What is known of a tensor. `ndim` < 0: foreign (more than CC_MAX_DIMS dims, sparse, complex, subclass ...): only the
 * host may touch it. Strides in elements. device: DLPack's device type (1 CPU, 2 CUDA). */
typedef struct CcType {
    uint8_t dtype;
    int8_t ndim;
    uint8_t device;
    uint8_t device_index;
    uint8_t requires_grad;
    int64_t size[CC_MAX_DIMS];
    int64_t stride[CC_MAX_DIMS];
} CcType;
int64_t cc_type_numel(const CcType *t);
bool cc_type_contiguous(const CcType *t);
bool cc_type_same_shape(const CcType *a, const CcType *b);
bool cc_type_same_layout(const CcType *a, const CcType *b); /* shape and strides */
void cc_type_make_contiguous(CcType *t);
void cc_type_make_last(CcType *t); /* dim 1, the channels, innermost; of at least three dims */
/* elements of memory from its first to its last, both included; 0: it is empty */
int64_t cc_type_extent(const CcType *t);
/* each element of one block of memory exactly once, in any order of dims */
bool cc_type_dense(const CcType *t);
/* Can elements of `from` be counted in the shape of `to` by strides alone, and are they to's? The rule of torch's
 * reshape (at::detail::computeStride): dims that lie in memory as one may be cut anew. */
bool cc_type_reshapes(const CcType *from, const CcType *to);

/* ------------------------------------------------------------------ op table: ops.def, one row an op */

typedef enum CcOpKind {
    CC_K_HOST,      /* no row: replayed by the host */
    CC_K_POINTWISE, /* expression over equal or broadcast shapes */
    CC_K_MATMUL,    /* linear, mm, matmul, addmm, bmm, ...: oneDNN */
    CC_K_VIEW,      /* result shares its input's storage */
    CC_K_REDUCE,
    CC_K_SOFTMAX,
    CC_K_NORM,
    CC_K_CONV,
    CC_K_POOL,
    CC_K_RESAMPLE,
    CC_K_ATTENTION,
    CC_K_RNN,
    CC_K_INDEX,
    CC_K_SCATTER,
    CC_K_REARRANGE,
    CC_K_CONCAT,
    CC_K_CREATE,
    CC_K_RANDOM,
} CcOpKind;

typedef enum CcOpId {
    CC_OP_host = 0,
#define CC_OPROW(id, ...) CC_OP_##id,
#define CC_OPCASE(...)
#define CC_OPCASE_HALF(...)
#include "ops.def"
#undef CC_OPROW
#undef CC_OPCASE
#undef CC_OPCASE_HALF
    CC_OP_ROWS
} CcOpId;

typedef struct CcOpInfo {
    const char *name;
    CcOpKind kind;
    int8_t arity;        /* operands (tensors or scalars) of an expression; -1 variable */
    const char *promote; /* dtype rule, ops.def */
    const char *expr;    /* expression, ops.def; "": none */
    const char *doc;
} CcOpInfo;
const CcOpInfo *cc_op_info(CcOpId op);
CcOpId cc_op_find(const char *name); /* CC_OP_host when there is no row of that name */

/* ------------------------------------------------------------------ scalar primitives: scalar.def */

typedef enum CcScalarId {
#define CC_SCALAR(id, ...) CC_S_##id,
#include "scalar.def"
#undef CC_SCALAR
    CC_S_COUNT
} CcScalarId;

typedef struct CcScalarInfo {
    const char *name;
    int8_t arity;
    /* 'A' arithmetic, 'C' comparison, 'L' logic, 'S' select, 'R' reduction, 'P' scan, 'X' special */
    char kind;
    const char *lower[3]; /* LLVM lowering for floats, signed and unsigned integers: scalar.def */
} CcScalarInfo;
CcScalarId cc_scalar_combine(CcScalarId fold); /* what combines two values of a reduction or a scan */
const CcScalarInfo *cc_scalar_info(CcScalarId id);
CcScalarId cc_scalar_find(const char *name, int n); /* CC_S_COUNT when there is none */

/* The expression of a row, parsed: nodes in evaluation order, the last one is the result. */
typedef struct CcExprNode {
    enum {
        CC_X_ARG,
        CC_X_BOOL_ARG,
        CC_X_INT_ARG,
        CC_X_INDEX_ARG,
        CC_X_SHARE_ARG,
        CC_X_NUM,
        CC_X_LIT,
        CC_X_ROUND,
        CC_X_NUMBER,
        CC_X_AT,
        CC_X_OP
    } kind;
    uint8_t op;  /* CC_X_OP: CcScalarId */
    int8_t arg;  /* CC_X_ARG, CC_X_AT: operand; CC_X_LIT: CcExprLit */
    int8_t dflt; /* CC_X_ARG: node of the default, -1: none */
    int8_t kid[3];
    double num;
} CcExprNode;
typedef enum CcExprLit {
    CC_LIT_inf,
    CC_LIT_nan,
    CC_LIT_huge,
    CC_LIT_lowest,
    CC_LIT_top,
    CC_LIT_bottom,
    CC_LIT_bits,
    CC_LIT_count,
    CC_LIT_epsilon,
    CC_LIT_place,
    CC_LIT_row,
    CC_LIT_col,
    CC_LIT_most,
    CC_LIT_first,
    CC_LIT_COUNT
} CcExprLit;
typedef struct CcExpr {
    CcExprNode node[48];
    int n;
} CcExpr;

/* ------------------------------------------------------------------ graph */

/* The parts of a key x[...], an int operand each, and what follows it (ops.def: index). */
typedef enum CcKeyPart {
    CC_KEY_NEW,    /* None */
    CC_KEY_ALL,    /* : */
    CC_KEY_SLICE,  /* first, length, step */
    CC_KEY_INT,    /* which, from the beginning */
    CC_KEY_TENSOR, /* of integers or bools */
} CcKeyPart;

/* NUMBER: another one in each call, which the host is asked for (CcHost.number). */
typedef struct CcOperand {
    enum { CC_IN_VALUE, CC_IN_INT, CC_IN_FLOAT, CC_IN_BOOL, CC_IN_NONE, CC_IN_NUMBER } kind;
    /* CC_IN_VALUE: index into CcGraph.val; NUMBER: the host's number; INT, FLOAT: 1 + the host's number that gave it,
     * CC_OF_SIZES: a stride, which a pass put there, 0: none of these */
    int32_t value;
    int64_t i; /* CC_IN_INT, CC_IN_BOOL */
    double f;  /* CC_IN_FLOAT */
} CcOperand;

enum { CC_OF_SIZES = 1 << 24 }; /* CcOperand.value */

/* CcNode.flags */
enum {
    CC_N_WRITES = 1, /* writes memory of one of its inputs (in place, out=, running statistics) */
    CC_N_RANDOM = 2, /* draws from a generator: never removed, merged or moved past another one */
    CC_N_EFFECT = 4, /* host state or unknown: never removed, and nothing is moved across it */
};

typedef struct CcNode {
    uint16_t op; /* CcOpId */
    uint16_t flags;
    int32_t in0, n_in;   /* operands: CcGraph.operand[in0 .. in0+n_in) */
    int32_t out0, n_out; /* values: CcGraph.val[out0 .. out0+n_out) */
    int32_t host;        /* the host's number for replaying this node */
    /* only inside the pipeline: the node of the given graph that it does, or does a part of */
    int32_t origin;
    /* it writes, and a second run from the graph's begin on does the same again (rec/undo.c) */
    uint8_t again;
    /* only inside the pipeline: torch's own op leaves the `_version` of what it writes (running statistics) */
    uint8_t uncounted;
    /* only inside the pipeline: its operands are not the host's, which can't replay it */
    uint8_t rewritten;
} CcNode;

/* Versions of frozen memory from here on are of one tensor alone, in the whole process. */
#define CC_VERSION_UNIQUE (UINT64_C(1) << 62)
/* CC_FROZEN_CAST: only what it is cast to (autocast, which casts a parameter once a block). CC_FROZEN_KEPT: frozen, where
 * autocast casts it once a block. */
typedef enum CcFrozen { CC_FROZEN_NOT, CC_FROZEN, CC_FROZEN_CAST, CC_FROZEN_KEPT } CcFrozen;

typedef struct CcVal {
    CcType type;
    int32_t def; /* node that makes it; -1: input of the graph */
    /* CcFrozen: an input whose memory may be packed once for each version (CcHost.version) */
    uint8_t frozen;
    /* the front needs it after the graph ran (result, effect, or used by a later segment) */
    uint8_t is_output;
    /* Only inside the pipeline: the type is not the recorded one (smaller, pass/narrow.c, or with other strides,
     * pass/turn.c). */
    uint8_t narrowed;
    uint8_t last;   /* channels innermost, which is not as recorded (pass/layout.c) */
    uint8_t hidden; /* the host has no such value (pass/pure.c) */
    /* without dims, on the CPU, for kernels of a GPU: they are given its number (run/device.c) */
    uint8_t scalar;
    /* Only inside the pipeline (pass/views.c, pass/narrow.c): the value is memory of another one (its number + 1; 0: it
     * is not), from this byte on. */
    int32_t window_of;
    int64_t offset;
} CcVal;

typedef struct CcEdit {
    enum { CC_EDIT_NODE, CC_EDIT_VAL, CC_EDIT_OPERAND } what;
    int at;
    union {
        CcNode node;
        CcVal val;
        CcOperand operand;
    } was;
} CcEdit;
typedef struct CcEditPlace {
    int node, before;
} CcEditPlace;

typedef struct CcGraph {
    CC_VEC(CcNode) node;
    CC_VEC(CcVal) val;
    CC_VEC(CcOperand) operand;
    bool gpu; /* only inside the pipeline: its device 1 is a GPU (run/device.c) */
    /* edit.c, while a pass runs: what it overwrote, oldest first; nodes at the end of `node` that belong before another
     * one, and those that go (before: -1) */
    CC_VEC(CcEdit) undo;
    CC_VEC(CcEditPlace) moved;
    int *reads; /* by value: operands of nodes that read it, or a window of it (as windows were when the pass began) */
    int n_reads;
} CcGraph;

CcGraph *cc_graph_new(void);
CcGraph *cc_graph_copy(const CcGraph *g);
void cc_graph_free(CcGraph *g);
const CcOperand *cc_graph_operand(const CcGraph *g, const CcNode *n, int i); /* i < n->n_in */
/* The dim that an operand names, which may count from the end; -1: none of this type's. */
int cc_graph_dim(const CcType *t, const CcOperand *o);
/* the value itself, or what it is a window of */
int cc_graph_base(const CcGraph *g, int value);
int cc_graph_input(CcGraph *g, const CcType *type); /* -> value */
/* Appends a node; its n_out values are made from `types`; -> node. `operands` is copied. */
int cc_graph_node(CcGraph *g, CcOpId op, unsigned flags, int host, const CcOperand *operands, int n_in,
                  const CcType *types, int n_out);

/* ------------------------------------------------------------------ edit.c: a graph is rewritten in place */

/* A pass changes what there is through these doors only, so that it can be undone; what it appends (values, operands)
 * goes with it. Numbers of values and nodes stay until cc_edit_settle(). */
typedef struct CcEditMark {
    int undo, node, val, operand, moved;
} CcEditMark;
CcEditMark cc_edit_mark(const CcGraph *g);
void cc_edit_undo(CcGraph *g, CcEditMark mark); /* all that was done since the mark */
CcNode *cc_edit_node(CcGraph *g, int node);     /* for all but its operands */
CcVal *cc_edit_val(CcGraph *g, int value);
void cc_edit_operand(CcGraph *g, int node, int i, CcOperand o);
void cc_edit_operands(CcGraph *g, int node, const CcOperand *in, int n_in); /* in: no memory of the graph's */
void cc_edit_slots(CcGraph *g, int node, int in0, int n_in);                /* those that CcGraph.operand has there */
/* The node is this op of these operands now, which the host does not know. */
void cc_edit_rewrite(CcGraph *g, int node, CcOpId op, const CcOperand *in, int n_in);
/* A node before `before`, which is a number that was there when the pass began. -> its number until things settle */
int cc_edit_insert(CcGraph *g, int before, const CcNode *n);
/* The node makes and reads nothing any more; other nodes stand in its place. */
void cc_edit_drop(CcGraph *g, int node);
/* How many operands of nodes, needed or not, read this value or a window of it. */
int cc_edit_reads(const CcGraph *g, int value);
/* Between passes, and before the first one: nodes stand in program order. Nothing before can be undone. */
void cc_edit_settle(CcGraph *g);
/* The expression of a node (by a CC_OPCASE where one fits); NULL when its row has none. */
const CcExpr *cc_op_expr(const CcGraph *g, const CcNode *node);
/* Does it ask where an element stands (place, row, col)? Then it can't be computed in part. */
bool cc_expr_counts(const CcExpr *e);
/* May this operand be a number that is another one in each call? Then neither the result's type nor what eager does
 * depends on it, as long as it is finite and fits the dtype. */
bool cc_op_number(const CcGraph *g, const CcNode *node, int operand);
/* Types of a node's results by those of its operands (infer.def), as torch would give them; `recorded`: the graph in
 * which the same node was recorded, whose dtypes and numbers of dims hold here as well. False: not known. */
bool cc_infer_node(const CcGraph *g, int node, const CcGraph *recorded, CcType *out);
bool cc_infer_asks(CcOpId op); /* torch itself can be asked: it would read no element */
/* The dims that a node's row reduces over, a bit each, bit 0 is the last dim of operand 0; -1: it does not reduce. */
int cc_op_dims(const CcGraph *g, const CcNode *node);
/* torch's common dtype of operands; `deflt` is torch's default dtype, CC_DT_OTHER when unknown. CC_DT_OTHER when it
 * can't be told. */
CcDtype cc_op_common(const CcGraph *g, const CcNode *node, CcDtype deflt);
/* Parses all rows; -1 with *err set when one is wrong (a test calls it). Thread-safe, done once. */
CC_MUST int cc_op_init(CcErr *err);
/* Text form, one line a value or node (gtext.c); for golden files, logs and reports. */
void cc_graph_print(const CcGraph *g, CcSbuf *out);
/* What cc_graph_print has written; NULL with *err set: which line is wrong. */
CcGraph *cc_graph_read(const char *text, CcErr *err);
/* Verifier: topological order, indices in range, arity, pointwise types equal to the rules. -1 with *err set. */
CC_MUST int cc_graph_check(const CcGraph *g, CcErr *err);
/* Its first part: without it nothing may read the graph. A graph that only breaks the rules of its ops can still run
 * by the host. */
CC_MUST int cc_graph_check_structure(const CcGraph *g, CcErr *err);
/* Of a graph that passes have rewritten. Windows: they lie in values that have memory, inside of it. */
CC_MUST int cc_graph_check_windows(const CcGraph *g, CcErr *err);
/* A node that was just rewritten: its operands and results, by the rules of its op. */
CC_MUST int cc_graph_check_node(const CcGraph *g, int node, CcErr *err);
/* All of it; live[node]: what no output or effect needs may be in any state (cc_dce_mark). */
CC_MUST int cc_graph_check_rewritten(const CcGraph *g, const bool *live, CcErr *err);

#endif
