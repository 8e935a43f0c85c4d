/* ir: dtypes, tensor types, the op table and the graph. Plain data: no Python, no torch.
 *
 * A graph holds what the recorder saw between two breaks: values (tensors with their recorded metadata) and nodes in
 * program order. The host can replay every node (`CcNode.host` is the host's number for it), so an op without a row
 * or a back-end that fails costs speed, never correctness. */
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
    char kind;              /* 'f' float, 'i' signed, 'u' unsigned, 'b' bool, '?' other */
    uint8_t dl_code, dl_bits;
} CcDtypeInfo;
const CcDtypeInfo *cc_dtype_info(CcDtype dt);
CcDtype cc_dtype_from_dl(int code, int bits); /* CC_DT_OTHER when there is none */
/* Bits of a bf16 or f16 to float and back. Rounds to nearest even and keeps NaNs as torch's conversions do
 * (c10/util/BFloat16.h, Half.h). */
float cc_dtype_widen(CcDtype half, uint16_t bits);
uint16_t cc_dtype_narrow(CcDtype half, float f);
static inline bool cc_dtype_is_half(int dt) { return dt == CC_DT_BF16 || dt == CC_DT_F16; }
static inline bool cc_dtype_is_float(int dt) { return cc_dtype_info((CcDtype)dt)->kind == 'f'; }
static inline int cc_dtype_size(int dt) { return cc_dtype_info((CcDtype)dt)->size; } /* bytes of an element */

/* What is known about a tensor. `ndim` < 0 marks a foreign tensor (more than CC_MAX_DIMS dims, sparse, complex,
 * subclass ...), which only the host may touch. Strides count elements. `device` is DLPack's device type (1 CPU, 2
 * CUDA). */
typedef struct CcType {
    uint8_t dtype;
    int8_t ndim;
    uint8_t device;
    uint8_t device_index;
    uint8_t requires_grad;
    int64_t size[CC_MAX_DIMS];
    int64_t stride[CC_MAX_DIMS];
} CcType;
/* May kernels and library calls touch it? Its dims and dtype are known, and it is on device 1: inside the pipeline the
 * device that they run on (run/device.c). */
static inline bool cc_type_known(const CcType *t) { return t->ndim >= 0 && t->device == 1 && t->dtype != CC_DT_OTHER; }
int64_t cc_type_numel(const CcType *t);
bool cc_type_contiguous(const CcType *t);
bool cc_type_same_shape(const CcType *a, const CcType *b);
bool cc_type_same_layout(const CcType *a, const CcType *b); /* shape and strides */
void cc_type_make_contiguous(CcType *t);
void cc_type_make_channels_last(CcType *t); /* makes dim 1, the channels, innermost; the type has at least three dims */
/* With a new dim of size 1 and stride 0 (the type has fewer than CC_MAX_DIMS dims); without a dim; with two dims
 * exchanged. The same memory: strides stay. */
CcType cc_type_with_dim(const CcType *t, int dim);
CcType cc_type_without_dim(const CcType *t, int dim);
CcType cc_type_swapped(const CcType *t, int a, int b);
/* elements of memory from the first to the last one, both included; 0: the tensor is empty */
int64_t cc_type_extent(const CcType *t);
/* the elements fill one block of memory, each exactly once, in any order of dims */
bool cc_type_dense(const CcType *t);
/* Has a dim a stride of 0, so that elements share memory? torch writes to no such tensor (assert_no_internal_overlap). */
bool cc_type_repeats(const CcType *t);
/* Can strides alone give `from` the shape and strides of `to`, with the elements in the same order? Follows torch's
 * reshape (at::detail::computeStride): dims that are contiguous with each other may be split and merged. */
bool cc_type_reshapes(const CcType *from, const CcType *to);

/* Kinds of recurrent layers: LSTM, GRU, RNN with tanh and with relu; the operand `cell` of ops. */
typedef enum CcCell { CC_CELL_LSTM, CC_CELL_GRU, CC_CELL_TANH, CC_CELL_RELU } CcCell;

/* ------------------------------------------------------------------ op table: ops.def, one row an op */

typedef enum CcOpKind {
    CC_K_HOST,      /* no row: the host replays it */
    CC_K_POINTWISE, /* expression over equal or broadcast shapes */
    CC_K_MATMUL,    /* linear, mm, matmul, addmm, bmm, ...: oneDNN */
    CC_K_VIEW,      /* result shares the storage of its input */
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
    /* CC_K_LIBRARY(family) in ops.def: the CcPrimFamily CC_<family> of run/ serves the op; otherwise the host does */
    CC_K_LIBRARY_CALL,
    CC_K_RANDOM,
} CcOpKind;
#define CC_K_LIBRARY(family) CC_K_LIBRARY_CALL

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

typedef enum CcOperandKind {
    CC_IS_TENSOR,
    CC_IS_OPTIONAL,
    CC_IS_INT,
    CC_IS_BOOL,
    CC_IS_NUMBER,
    CC_IS_ANY,
    CC_IS_INTS,
    CC_IS_MORE_INTS,
    CC_IS_REST,
    CC_IS_IN
} CcOperandKind;
typedef struct CcOperandSpec {
    const char *name; /* NULL ends the row's list */
    CcOperandKind kind;
    int room; /* max number of operands; REST: 0 */
} CcOperandSpec;

typedef struct CcOpInfo {
    const char *name;
    CcOpKind kind;
    const CcOperandSpec *operand;
    const char *promote; /* dtype rule, ops.def */
    const char *expr;    /* expression, ops.def; "": none */
    const char *doc;
} CcOpInfo;
const CcOpInfo *cc_op_info(CcOpId op);
/* Integers divided by a tensor that contains 0 raise. */
static inline bool cc_op_divides(CcOpId op) {
    return op == CC_OP_div_floor || op == CC_OP_div_trunc || op == CC_OP_remainder || op == CC_OP_fmod;
}
static inline bool cc_op_is_view(int op) { return cc_op_info((CcOpId)op)->kind == CC_K_VIEW; }
CcOpId cc_op_find(const char *name); /* CC_OP_host when there is no row of that name */
/* The row of the derivative of `op` for an operand (CC_OPGRAD); CC_OP_host: there is none. */
CcOpId cc_op_grad(CcOpId op, int operand);
/* formula.def: derivatives for which torch's versions have different formulas */
typedef enum CcFormula {
#define CC_FORMULA(id, ...) CC_FORMULA_##id,
#include "formula.def"
#undef CC_FORMULA
    CC_FORMULA_COUNT
} CcFormula;
/* The same of the later formula (CC_OPGRAD_LATER). */
CcOpId cc_op_grad_later(CcOpId op, int operand, CcFormula f);
bool cc_op_is_later(CcOpId row); /* a row of CC_OPGRAD_LATER */
CcOpId cc_op_base(CcOpId op);    /* of a derivative: the op that it derives; else `op` itself */
/* The operand `grad` of the op's derivatives; `result` is the next one. It is the number of operands of the op. */
int cc_op_grad_at(CcOpId op);
/* Has the op's rule this mark (~ ^ ! # ?)? A derivative has those of its op. */
bool cc_op_marks(CcOpId op, char mark);

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
CcScalarId cc_scalar_combine(CcScalarId fold); /* the primitive that combines two values of a reduction or a scan */
const CcScalarInfo *cc_scalar_info(CcScalarId id);
CcScalarId cc_scalar_find(const char *name, int n); /* CC_S_COUNT when there is none */

/* A row's parsed expression: nodes in evaluation order; the last one is the result. */
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
    } kind : 8;
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
    CcExprNode node[64];
    int n;
} CcExpr;

/* ------------------------------------------------------------------ graph */

/* The parts of a key x[...]. An int operand names each part; its own operands follow (ops.def: index). */
typedef enum CcKeyPart {
    CC_KEY_NEW,    /* None */
    CC_KEY_ALL,    /* : */
    CC_KEY_SLICE,  /* first, length, step */
    CC_KEY_INT,    /* the index, counted from the start */
    CC_KEY_TENSOR, /* of integers or bools */
} CcKeyPart;

/* CC_IN_NUMBER: a number that may differ in each call; the host supplies it (CcHost.number). */
typedef struct CcOperand {
    enum { CC_IN_NONE, CC_IN_VALUE, CC_IN_INT, CC_IN_FLOAT, CC_IN_BOOL, CC_IN_NUMBER } kind;
    /* CC_IN_VALUE: index into CcGraph.val. CC_IN_NUMBER: the host's number. CC_IN_INT, CC_IN_FLOAT: 1 + the host's
     * number that the constant came from, CC_OF_SIZES for a stride that a pass computed, or 0 */
    int32_t value;
    int64_t i; /* CC_IN_INT, CC_IN_BOOL */
    double f;  /* CC_IN_FLOAT */
} CcOperand;

enum { CC_OF_SIZES = 1 << 24 }; /* CcOperand.value */

/* CC_IN_INT, CC_IN_BOOL, CC_IN_FLOAT */
static inline double cc_operand_number(const CcOperand *o) { return o->kind == CC_IN_FLOAT ? o->f : (double)o->i; }

/* CcNode.flags */
enum {
    CC_N_WRITES = 1,  /* writes memory of an input (in place, out=, running statistics) */
    CC_N_RANDOM = 2,  /* draws from a generator: never removed, merged or moved past another such node */
    CC_N_EFFECT = 4,  /* touches host state, or is unknown: never removed; no node moves across it */
    CC_N_CHECKED = 8, /* its results' sizes were guessed, and a run checks them: never removed */
};

typedef struct CcNode {
    uint16_t op; /* CcOpId */
    uint16_t flags;
    int32_t in0, n_in;   /* operands: CcGraph.operand[in0 .. in0+n_in) */
    int32_t out0, n_out; /* values: CcGraph.val[out0 .. out0+n_out) */
    int32_t host;        /* the host's number for replaying this node */
    /* only inside the pipeline: the node of the given graph that this node implements, wholly or in part */
    int32_t origin;
    /* 0, or the torch.utils.checkpoint that the node belongs to: under autograd, what its backward needs of the checkpoint's
     * inside is computed again, not saved */
    int32_t checkpoint;
    /* the node writes, but running the graph again from its start gives the same memory (rec/undo.c) */
    uint8_t repeatable;
    /* only inside the pipeline: torch's own op does not bump the `_version` of what it writes (running statistics) */
    uint8_t uncounted;
    /* a torch.library op whose kernel is Python code that may do more than compute its results: never removed, and in order
     * with nodes that are random */
    uint8_t kept;
    /* only inside the pipeline: the operands differ from the recorded ones, so the host can't replay the node */
    uint8_t rewritten;
    /* 0, or 1 + the CcFunction (CcGraph.functions) of which this is a call; or of which this is a part, where
     * grad/function.c has spelled the call out */
    int32_t function;
} CcNode;

static inline CcOpKind cc_node_kind(const CcNode *n) { return cc_op_info((CcOpId)n->op)->kind; }
/* Whether the node has effects that no value shows: such nodes keep their order. */
static inline bool cc_node_in_order(const CcNode *n) { return n->flags & CC_N_RANDOM || n->kept; }

/* Versions of frozen memory from this number on belong to a single tensor of the whole process. */
#define CC_VERSION_UNIQUE (UINT64_C(1) << 62)
/* Autocast casts a parameter once per block. CC_FROZEN_CAST: only the cast copy is frozen. CC_FROZEN_KEPT: the input
 * is frozen and cast once per block. */
typedef enum CcFrozen { CC_FROZEN_NOT, CC_FROZEN, CC_FROZEN_CAST, CC_FROZEN_KEPT } CcFrozen;

typedef struct CcVal {
    CcType type;
    int32_t def; /* node that makes the value; -1: input of the graph */
    /* CcFrozen: an input whose memory may be packed once per version (CcHost.version) */
    uint8_t frozen;
    /* the front end needs the value after the graph ran (result, effect, or used by a later segment) */
    uint8_t is_output;
    uint8_t grad_changed; /* type.requires_grad is as when it was made; a node changes that (requires_grad_, a write) */
    uint8_t changes;      /* if frozen: it is written to so often that packed copies do not pay (eval/copies.c) */
    /* Only inside the pipeline: the type differs from the recorded one, by size (pass/narrow.c) or strides
     * (pass/transpose.c). */
    uint8_t narrowed;
    uint8_t channels_last; /* stored channels-last, unlike the recorded value (pass/layout.c) */
    uint8_t hidden;        /* the host does not have this value (pass/pure.c) */
    /* 0-dim CPU tensor read by GPU kernels, which get its number as an argument (run/device.c) */
    uint8_t scalar;
    /* Only inside the pipeline (pass/views.c, pass/narrow.c): this value is a window of value window_of - 1,
     * `offset` bytes into it. 0: the value has its own memory. */
    int32_t window_of;
    int64_t offset;
} CcVal;

/* A custom autograd.Function, for operands of these types: what its forward and its backward compute. The first values
 * of `graph` are the call's tensor operands; the next ones are the gradients of the results. Its first n_forward nodes
 * are the forward's, the others are the backward's. */
typedef struct CcFunction {
    struct CcGraph *graph;
    int n_in;  /* tensor operands */
    int n_out; /* results */
    int n_forward;
    int *result;   /* [result] value */
    int *grad;     /* [operand] value, of the operand's shape and dtype; -1: None */
    uint8_t *kept; /* [operand, then result] save_for_backward has got it, and the backward unpacks it */
    bool unpacks;  /* the backward reads saved_tensors, which the first one frees */
} CcFunction;
typedef struct CcFunctions {
    int refs; /* copies of a graph share them */
    CC_VEC(CcFunction) at;
} CcFunctions;

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
    bool resizes;  /* sizes differ between calls: its kernels should serve all of them */
    bool gpu;      /* only inside the pipeline: device 1 is a GPU (run/device.c) */
    bool measures; /* only inside the pipeline: steps may measure which implementation is the fastest (run/choose.c) */
    int64_t input_bytes; /* only inside the pipeline, if `measures` */
    /* edit.c, while a pass runs. `undo`: what the pass overwrote, oldest first. `moved`: nodes at the end of `node`
     * that belong before another node, and dropped nodes (before: -1). */
    CC_VEC(CcEdit) undo;
    CC_VEC(CcEditPlace) moved;
    /* per value: number of node operands that read it or a window of it (windows as of the start of the pass) */
    int *reads;
    int n_reads;
    CcFunctions *functions; /* NULL: none */
} CcGraph;

CcGraph *cc_graph_new(void);
CcGraph *cc_graph_copy(const CcGraph *g);
void cc_graph_free(CcGraph *g);
static inline const CcFunction *cc_graph_function(const CcGraph *g, const CcNode *n) {
    return &g->functions->at.at[n->function - 1];
}
/* i < n->n_in */
static inline const CcOperand *cc_graph_operand(const CcGraph *g, const CcNode *n, int i) {
    return &g->operand.at[n->in0 + i];
}
/* The value that operand i names; -1: it is not a tensor. */
static inline int cc_graph_value(const CcGraph *g, const CcNode *n, int i) {
    const CcOperand *o = cc_graph_operand(g, n, i);
    return o->kind == CC_IN_VALUE ? o->value : -1;
}
/* The value of the first operand; -1: there is none, or it is not a tensor. */
static inline int cc_graph_source(const CcGraph *g, const CcNode *n) { return n->n_in ? cc_graph_value(g, n, 0) : -1; }
/* The dim that an operand names; negative numbers count from the end. -1: the type has no such dim. */
int cc_graph_dim(const CcType *t, const CcOperand *o);
/* the value itself, or the value that it is a window of */
int cc_graph_base(const CcGraph *g, int value);
/* the value itself, or the value that view ops have made it of */
int cc_graph_viewed(const CcGraph *g, int value);
int cc_graph_input(CcGraph *g, const CcType *type); /* -> value */
/* Appends a node and makes its n_out values from `types`; -> node. Copies `operands`. */
int cc_graph_node(CcGraph *g, CcOpId op, unsigned flags, int host, const CcOperand *operands, int n_in,
                  const CcType *types, int n_out);

/* ------------------------------------------------------------------ formula.c: torch's formula of a derivative */

/* torch is asked for its gradients at these points, given gradients of 1. */
enum { CC_FORMULA_POINTS = 64, CC_FORMULA_OPERANDS = 3 };
double cc_formula_point(CcFormula f, int operand, int i);
int cc_formula_operands(CcFormula f);
int cc_formula_tensors(CcFormula f); /* so many of them, from the first one on, are tensors; the others are numbers */
/* grad[operand][point], for each operand that is a tensor: what torch gives. If it is asked twice, both must agree. */
void cc_formula_learn(CcFormula f, const float *const grad[CC_FORMULA_OPERANDS]);
void cc_formula_forget(void);
bool cc_formula_is_neither(CcFormula f); /* neither the earlier nor the later one: the op has no derivative here */
const char *cc_formula_name(CcFormula f);
/* The row of the derivative of a node for an operand, by torch's formula; CC_OP_host: there is none. As long as nothing
 * was learnt, torch has the earlier formulas. */
CcOpId cc_formula_grad(const CcGraph *g, const CcNode *n, int operand);

/* ------------------------------------------------------------------ operands.c: operands by the names of ops.def */

enum { CC_SPATIAL = 3, CC_OPERANDS_MAX = 24 };
typedef struct CcOperandRange {
    int first, n; /* indices into the node's operands */
} CcOperandRange;

/* CcIn_<op>: the operands of an op by name. Operands that a node lacks are CC_IN_NONE, as are unused trailing INTS. */
#define CC_OPERAND(kind, name) CC_FIELD_##kind(name)
#define CC_FIELD_TENSOR(name) CcOperand name;
#define CC_FIELD_OPTIONAL(name) CcOperand name;
#define CC_FIELD_INT(name) CcOperand name;
#define CC_FIELD_BOOL(name) CcOperand name;
#define CC_FIELD_NUMBER(name) CcOperand name;
#define CC_FIELD_ANY(name) CcOperand name;
#define CC_FIELD_INTS(name) CcOperand name[CC_SPATIAL];
#define CC_FIELD_MORE_INTS(name) CcOperand name[CC_SPATIAL];
#define CC_FIELD_REST(name) CcOperandRange name;
#define CC_FIELD_IN(n) CcOperand in[n];
#define CC_OPROW(id, kind, operands, ...)                                                                              \
    typedef struct CcIn_##id {                                                                                         \
        operands                                                                                                       \
    } CcIn_##id;
#define CC_OPCASE(...)
#define CC_OPCASE_HALF(...)
#include "ops.def"
#undef CC_OPROW
#undef CC_OPERAND

/* Fills a CcIn_<op>. False: the number or kinds of the node's operands do not match the op's row. The node's own op
 * may be another one with the same operands. */
bool cc_operands_read(const CcGraph *g, const CcNode *n, CcOpId op, void *in);
/* Index of a named operand; no INTS or REST may precede it in the row. */
#define CC_AT(op, name) ((int)(offsetof(CcIn_##op, name) / sizeof(CcOperand)))
/* The inverse, for a row without REST; -> number of operands. */
int cc_operands_write(CcOpId op, const void *in, CcOperand out[CC_OPERANDS_MAX]);
/* The first operand that violates the node's row; NULL: none. */
const CcOperandSpec *cc_operands_wrong(const CcGraph *g, const CcNode *n);
/* How many operands each spec of the node's row has in this node; *ints: of each INTS, *rest: of REST. False: the
 * number of operands fits no choice. */
bool cc_operands_count(const CcNode *n, int *ints, int *rest);
#define CC_OPROW(id, ...)                                                                                              \
    static inline bool cc_in_##id(const CcGraph *g, const CcNode *n, CcIn_##id *in) {                                  \
        return cc_operands_read(g, n, CC_OP_##id, in);                                                                 \
    }
#include "ops.def"
#undef CC_OPROW
#undef CC_OPCASE
#undef CC_OPCASE_HALF

/* ------------------------------------------------------------------ roles.c: operands of recurrent layers */

static inline int cc_cell_gates(CcCell cell) { return cell == CC_CELL_LSTM ? 4 : cell == CC_CELL_GRU ? 3 : 1; }

enum { CC_ROLE_X, CC_ROLE_H, CC_ROLE_C }; /* operands; C: LSTM only */
typedef struct CcRoles {
    CcCell cell;
    int states;             /* h, LSTM: and c */
    int layers, directions; /* a part is a layer in one direction: layer 0 forwards, backwards, layer 1 .. */
    int first, weights;     /* operands: the first weight; weights of a part: of x, of h, and their biases if `bias` */
    int masks;              /* operands: the first mask of a layer's result; -1: nothing is dropped */
    CcOperand kept;         /* the probability to keep an element */
    bool bias, batch_first;
} CcRoles;
/* False: the node is none, or its operands or results are too many or too few. */
bool cc_roles_read(const CcGraph *g, const CcNode *n, CcRoles *r);

/* ------------------------------------------------------------------ functions.c */

void cc_functions_make(CcFunction *f); /* its arrays, from n_in and n_out */
/* The number of the result that a value of the function is; -1: of none. */
int cc_functions_result(const CcFunction *f, int value);
/* Takes over what `f` holds. -> its CcNode.function; 0: it holds nothing */
int cc_functions_add(CcGraph *g, CcFunction *f);
void cc_functions_share(CcGraph *to, const CcGraph *from); /* `to` has none */
void cc_functions_release(CcFunctions *fs);
void cc_functions_free_one(CcFunction *f);
/* Whether the types of all its values follow from those of its operands. */
bool cc_functions_scale(const CcFunction *f);
/* Where the graph's operands have other sizes than a function's: gives the call one for these, or none. */
void cc_functions_fit(CcGraph *g);

/* ------------------------------------------------------------------ edit.c: rewrites a graph in place */

/* A pass changes existing nodes, values and operands only through these functions, so that the changes can be
 * undone; undoing also removes what the pass appended. Numbers of values and nodes stay valid until
 * cc_edit_settle(). */
typedef struct CcEditMark {
    int undo, node, val, operand, moved;
} CcEditMark;
CcEditMark cc_edit_mark(const CcGraph *g);
void cc_edit_undo(CcGraph *g, CcEditMark mark); /* undoes everything since the mark */
CcNode *cc_edit_node(CcGraph *g, int node);     /* to change anything but the operands */
CcVal *cc_edit_val(CcGraph *g, int value);
void cc_edit_operand(CcGraph *g, int node, int i, CcOperand o);
void cc_edit_operands(CcGraph *g, int node, const CcOperand *in, int n_in); /* `in` must not point into the graph */
/* takes operands that CcGraph.operand already holds at in0 */
void cc_edit_slots(CcGraph *g, int node, int in0, int n_in);
/* Turns the node into this op with these operands, which the host can't replay. */
void cc_edit_rewrite(CcGraph *g, int node, CcOpId op, const CcOperand *in, int n_in);
/* The same from a CcIn_<op>: cc_edit_make(g, node, attend, .q = q, .k = k ...). */
#define cc_edit_make(g, node, op, ...) cc_edit_make_in(g, node, CC_OP_##op, &(const CcIn_##op){__VA_ARGS__})
void cc_edit_make_in(CcGraph *g, int node, CcOpId op, const void *in);
/* Inserts a node before `before`, a number from the start of the pass. -> its number until cc_edit_settle() */
int cc_edit_insert(CcGraph *g, int before, const CcNode *n);
/* The node no longer makes or reads anything; other nodes replace it. */
void cc_edit_drop(CcGraph *g, int node);
/* Number of operands, of live and dead nodes, that read this value or a window of it. */
int cc_edit_reads(const CcGraph *g, int value);
/* Between passes, and before the first one: puts nodes in program order. Earlier changes can no longer be undone. */
void cc_edit_settle(CcGraph *g);
/* A node's expression (that of a matching CC_OPCASE, if any); NULL when its row has none. */
const CcExpr *cc_op_expr(const CcGraph *g, const CcNode *node);
/* The same for another op with these operands: the derivative of `node`. */
const CcExpr *cc_op_expr_as(const CcGraph *g, const CcNode *node, CcOpId op);
const CcExpr *cc_op_expr_row(CcOpId op); /* of the row itself, whatever its operands are */
bool cc_expr_reads(const CcExpr *e, int operand);
/* Does the derivative `grad` of the node `forward` read this operand (numbered as in the row of `grad`)? Of the others
 * it takes none. */
bool cc_op_grad_reads(const CcGraph *g, const CcNode *forward, CcOpId grad, int operand);
/* Does the expression use the position of an element (place, row, col)? Then part of the result can't be computed
 * alone. */
bool cc_expr_counts(const CcExpr *e);
/* May this operand be a number that changes from call to call? Then neither the result's type nor eager's choice of
 * algorithm depends on it, as long as it is finite and fits the dtype. */
bool cc_op_number(const CcGraph *g, const CcNode *node, int operand);
/* Infers the types of a node's results from its operands (infer.def), as torch would. `recorded`: the graph in which
 * the same node was recorded; its dtypes and numbers of dims hold here too. False: unknown. */
bool cc_infer_node(const CcGraph *g, int node, const CcGraph *recorded, CcType *out);
bool cc_infer_asks(CcOpId op); /* torch itself can be asked, because the op reads no element */
/* The dims that a node's row reduces over, as bits; bit 0 is the last dim of operand 0. -1: the node does not
 * reduce. */
int cc_op_dims(const CcGraph *g, const CcNode *node);
/* For a pointwise derivative: how many of its elements the op reduces to one. */
int64_t cc_op_count(const CcGraph *g, const CcNode *node);
/* torch's common dtype of the operands; `deflt` is torch's default dtype, CC_DT_OTHER when unknown. CC_DT_OTHER when
 * the result is unknown. */
CcDtype cc_op_common(const CcGraph *g, const CcNode *node, CcDtype deflt);
/* Parses all rows; -1 with *err set if a row is wrong (a test calls this). Thread-safe; runs once. */
CC_MUST int cc_op_init(CcErr *err);
/* Text form, one line per value or node (gtext.c), for golden files, logs and reports. */
void cc_graph_print(const CcGraph *g, CcSbuf *out);
/* Reads the output of cc_graph_print; NULL with *err naming the wrong line. */
CcGraph *cc_graph_read(const char *text, CcErr *err);
/* Verifier: topological order, indices in range, arity, pointwise types that follow from the rules. -1 with *err
 * set. */
CC_MUST int cc_graph_check(const CcGraph *g, CcErr *err);
/* The first part of the verifier; nothing may read a graph that fails it. The host can still run a graph that only
 * breaks rules of its ops. */
CC_MUST int cc_graph_check_structure(const CcGraph *g, CcErr *err);
/* For a graph that passes have rewritten: each window is a window of a value with memory, and stays inside it. */
CC_MUST int cc_graph_check_windows(const CcGraph *g, CcErr *err);
/* For a node that was just rewritten: checks operands and results against the rules of its op. */
CC_MUST int cc_graph_check_node(const CcGraph *g, int node, CcErr *err);
/* Checks the whole rewritten graph; live[node]: nodes that no output or effect needs may be in any state
 * (cc_dce_mark). */
CC_MUST int cc_graph_check_rewritten(const CcGraph *g, const bool *live, CcErr *err);

#endif
