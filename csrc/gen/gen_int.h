/* gen, private: the interfaces between the files of the LLVM printer, and between those of the CUDA printer. */
#ifndef CC_GEN_INT_H
#define CC_GEN_INT_H

#include "gen.h"

typedef char CcRef[40]; /* an SSA name or a constant, as text: "%t12", "splat (float 0x3FF0000000000000)" */

typedef struct CcEmit {
    const CcLoop *loop;
    const CcTarget *target;
    int lanes;    /* elements of a vector */
    int next;     /* number of the next temporary */
    CcSbuf *body; /* receives instructions */
    CcSbuf decl;  /* declarations and helper functions */
    CC_VEC(char *) declared;
    CcErr *err;
    CcRef *ref; /* [node] */
} CcEmit;

/* Vector type of a dtype, "<16 x float>", or of an element type. The text is in a ring buffer: use it at once. */
const char *cc_emit_type(const CcEmit *e, CcDtype dt);
const char *cc_emit_vector(const CcEmit *e, const char *element);
/* Appends "%tN = <format>" and puts the name into out. */
void cc_emit_op(CcEmit *e, CcRef out, const char *fmt, ...) CC_PRINTF(3, 4);
void cc_emit_number(CcDtype dt, double v, CcRef out); /* a splat constant */
void cc_emit_declare(CcEmit *e, const char *name, const char *fmt, ...) CC_PRINTF(3, 4);
bool cc_emit_has_vector(const CcEmit *e, const char *function, CcDtype dt); /* does libmvec have this unary one? */
/* Calls libmvec's vector function, or libm's scalar one for each lane. */
CC_MUST int cc_emit_libm(CcEmit *e, const char *function, CcDtype dt, int arity, const CcRef *x, CcRef out);
void cc_emit_intrinsic(CcEmit *e, const char *name, CcDtype dt, int arity, const CcRef *x, CcRef out);

/* gen_llvm.c, for gen_point.c and gen_sweep.c */
const char *cc_emit_memory(CcDtype dt);                                   /* LLVM element type in memory */
void cc_emit_broadcast(CcEmit *e, CcDtype dt, const char *at, CcRef out); /* loads one element into all lanes */
/* converts a loaded vector to the value's type: memory holds bools as bytes */
void cc_emit_loaded(CcEmit *e, CcDtype dt, CcRef ref);
/* Loads a whole vector of a strided access from element `index` on, one by one: faster than a gather (Zen 4). */
void cc_emit_load_each(CcEmit *e, CcDtype dt, int access, const char *row, const char *index, CcRef out);
void cc_emit_splat(CcEmit *e, CcDtype dt, const char *x, CcRef out); /* broadcasts an i64 as I64 or I32 */
void cc_emit_place(CcEmit *e, const char *at, CcRef out);            /* the i64 that a place's pointer encodes */
/* reverses the lanes of x, a vector of type v */
void cc_emit_reverse(CcEmit *e, const char *v, CcRef x);
/* Gathers the elements at a vector of pointers; masked-off lanes read 0. */
void cc_emit_gather(CcEmit *e, CcDtype dt, const char *pointers, const char *mask, CcRef out);
/* Masked load and store of contiguous elements. Masked-off lanes read 0; their memory is not accessed. */
void cc_emit_masked_load(CcEmit *e, const char *element, int size, const char *at, const char *mask, CcRef out);
void cc_emit_masked_store(CcEmit *e, const char *element, int size, const char *x, const char *at, const char *mask);
CC_MUST int cc_emit_scalar(CcEmit *e, CcScalarId op, CcDtype dt, const CcRef *x, CcRef out);
CC_MUST int cc_emit_node(CcEmit *e, int node); /* a node that is neither load nor reduction */

/* gen_combine.c: `fold` is a reduction or a scan (a primitive of kind R or P) of values of dtype dt. */
enum { CC_COMBINE_LANES = 64 }; /* at most */
void cc_combine_identity(CcScalarId fold, CcDtype dt, CcRef out);
CC_MUST int cc_combine_two(CcEmit *e, CcScalarId fold, CcDtype dt, const char *x, const char *y, CcRef out);
/* Reduces x across its lanes; every lane gets the result. */
CC_MUST int cc_combine_lanes(CcEmit *e, CcScalarId fold, CcDtype dt, CcRef x);
/* out: the scan of vector x, given the running value `carry` (in all lanes), which it updates. along: one scan runs
 * across the lanes; else each lane scans by itself. */
CC_MUST int cc_combine_scan(CcEmit *e, const CcLoopNode *n, bool along, const char *x, CcRef carry, CcRef out);

/* gen_point.c: the body of a loop that does not reduce. */
CC_MUST int cc_gen_point(CcEmit *e);
void cc_gen_invariant(const CcLoop *loop, bool *invariant); /* [node]: is it constant along a row? */

/* gen_sweep.c and gen_element.c: the state of printing a loop that reduces. */
enum { CC_SWEEP_COPIES = 4, CC_SWEEP_REDUCTIONS = 16 };

typedef struct CcSweep {
    CcEmit *e;
    const CcLoop *loop;
    CcSweeps plan;
    int n_line, n_reduction;
    CcRef *ref[CC_SWEEP_COPIES];  /* [copy][node] */
    CcRef at[CC_LOOP_MAX_ACCESS]; /* current pointers of the accesses */
    CcRef lane, mask, line;       /* index of the first lane; valid lanes ("": all); number of the line */
    const char *skip;             /* label behind the row's last store */
    CcRef origin;                 /* by columns: index of the first one */
    CcRef begin, end;             /* bounds of the chunk */
    int copies, number;           /* unroll factor and number of the current sweep */
    bool by_lines;                /* copies are successive lines, not adjacent vectors */
    bool need[CC_LOOP_MAX_NODES];
    int reduction[CC_SWEEP_REDUCTIONS], n;
    CcRef acc[CC_SWEEP_REDUCTIONS][CC_SWEEP_COPIES];
    CcRef carry[CC_LOOP_MAX_NODES]; /* running values of scans */
} CcSweep;

/* gen_element.c. j: index into CcSweep.reduction. */
CcDtype cc_element_dtype(const CcSweep *s, int node);
const char *cc_element_type(const CcSweep *s, int j);
bool cc_element_reduces(const CcLoopNode *n);
CcScalarId cc_element_op(const CcSweep *s, int j);
void cc_element_identity(const CcSweep *s, int j, CcRef out);
CC_MUST int cc_element_combine(CcSweep *s, int j, const char *x, const char *y, CcRef out);
void cc_element_begin(CcSweep *s);                     /* initialises the scans' running values */
void cc_element_fetch(CcSweep *s, int node, int copy); /* prints a node that reads memory or indices */
void cc_element_store(CcSweep *s, int access, int copy);
/* prints a sweep's computation and stores for one vector of elements */
CC_MUST int cc_element_compute(CcSweep *s, int copy);

/* gen_sweep.c: the body of a loop that reduces. */
CC_MUST int cc_gen_sweeps(CcEmit *e);

/* gen_math.c: the expansion `name` of scalar.def's '!' lowerings. -1 with *err set: unknown name. */
CC_MUST int cc_math_expand(CcEmit *e, const char *name, CcDtype dt, const CcRef *x, CcRef out);

/* ------------------------------------------------------------------ CUDA: gen_cuda.c, gen_cuda_*.c */

typedef enum CcCudaKind { CC_CUDA_POINT, CC_CUDA_ROWS, CC_CUDA_COLUMNS } CcCudaKind;

/* How a loop maps to threads. The plan orders the loop's dims: kept ones, then reduced ones. The last one is the inner
 * dim; threads process `vector` elements of it at a time: a chunk. */
typedef struct CcCudaPlan {
    CcCudaKind kind;
    int n_dim, n_kept; /* POINT: all dims are kept */
    int dim[CC_MAX_DIMS + 1];
    int threads, vector;
    /* threads that share a row (ROWS) or column (COLUMNS); a block has threads / group adjacent ones */
    int group;
    int held;   /* ROWS: chunks that a thread keeps in registers between sweeps; 0: every sweep re-reads them */
    bool split; /* rows are split into pieces: blocks store partial results, which the next kernel combines */
    /* kernels: one; split: one per sweep, plus one if per-row results depend on the last sweep */
    int parts;
    bool wide; /* uses 64-bit indices */
    int n_reduction, n_scan;
    CcSweeps sweeps;
} CcCudaPlan;
void cc_gen_cuda_plan(const CcLoop *loop, const CcCudaTuning *tuning, CcCudaPlan *out);
/* step class along the inner dim */
CcStepClass cc_gen_cuda_step(const CcLoop *loop, const CcCudaPlan *plan, int access);
/* stride of plan->dim[d] in elements; of a place in its own units */
int64_t cc_gen_cuda_stride(const CcLoop *loop, const CcCudaPlan *plan, int access, int d);
int64_t cc_gen_cuda_kept(const CcLoop *loop, const CcCudaPlan *plan); /* number of rows or columns */
/* does one vector load or store move a chunk of this access? */
bool cc_gen_cuda_packed(const CcLoop *loop, const CcCudaPlan *plan, int access);

/* Fields of the argument in the order of both struct text and bytes: 8-byte ones, then those of index type. */
typedef struct CcCudaField {
    enum {
        CC_FIELD_ACCESS,
        CC_FIELD_NUMBER,
        CC_FIELD_LOW,
        CC_FIELD_HIGH,
        CC_FIELD_ALSO,
        CC_FIELD_WORKSPACE,
        CC_FIELD_N,
        CC_FIELD_CHUNKS,
        CC_FIELD_ACROSS,
        CC_FIELD_INNER,
        CC_FIELD_COUNT,
        CC_FIELD_PIECE,
        CC_FIELD_PIECES,
        CC_FIELD_SIZE,
        CC_FIELD_STRIDE
    } kind;
    int a, d; /* number of the access or check; dim of the plan */
} CcCudaField;
typedef CC_VEC(CcCudaField) CcCudaFields;
/* Does the check test a float for [0, 1]? Else it tests an index against bounds, which are fields. */
static inline bool cc_gen_cuda_share(const CcLoopCheck *c) { return cc_dtype_is_float(c->type.dtype); }
/* -> number of 8-byte fields */
int cc_gen_cuda_fields(const CcLoop *loop, const CcCudaPlan *plan, CcCudaFields *out);

/* gen_cuda_text.c */
CC_MUST int cc_gen_cuda_text(const CcLoop *loop, const CcCudaPlan *plan, const char *name, CcSbuf *out, CcErr *err);
/* State shared by gen_cuda_text.c and gen_cuda_rows.c. */
typedef struct CcText {
    const CcLoop *loop;
    const CcCudaPlan *plan;
    CcSbuf *out;
    CcErr *err;
    int depth;         /* nesting of braces */
    const bool *later; /* nodes not yet computed here; NULL: all earlier ones are */
} CcText;
typedef struct CcTextChunk {
    bool need[CC_LOOP_MAX_NODES];   /* nodes computed for the chunk */
    bool varies[CC_LOOP_MAX_NODES]; /* nodes that vary along the inner dim */
    int sweep;                      /* number of the sweep; POINT: 0 */
    bool stores;
    bool all; /* scans: threads past the row's end run along for shuffles and barriers; `active` masks them */
    /* nodes held in registers: one pass issues all loads of a sweep, the next computes */
    enum { CC_LOADS_HERE, CC_LOADS_ONLY, CC_LOADS_DONE } loads;
} CcTextChunk;
static inline CcDtype cc_text_dtype(const CcText *t, int node) { return (CcDtype)t->loop->node[node].dtype; }
static inline int cc_text_inner(const CcText *t) { return t->plan->n_dim - 1; }
static inline bool cc_text_reduces(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'R'; }
void cc_text_line(CcText *t, const char *fmt, ...) CC_PRINTF(2, 3);
void cc_text_close(CcText *t);              /* closes a brace */
const char *cc_text_count(const CcText *t); /* type of element counts */
bool cc_text_along(const CcText *t, int a); /* reductions: does the access vary along a row? */
/* Decodes the linear index `of` into indices of dims [first, last]; the inner dim counts chunks. */
void cc_text_decode(CcText *t, int first, int last, const char *of);
/* Declares `<letter><a>`: access a's pointer `<from><a>` advanced along dims [first, last]. */
void cc_text_place(CcText *t, char letter, const char *from, int a, int first, int last);
/* Prints a node for one element or row. in_pack: for element k of a chunk. */
CC_MUST int cc_text_node(CcText *t, int i, bool in_pack);
/* Prints "<condition>t<i> = combine(t<i>, x)". */
CC_MUST int cc_text_combine(CcText *t, int i, const char *x, const char *condition);
void cc_text_varying(const CcText *t, bool *varies);                 /* nodes that vary along the inner dim */
CC_MUST int cc_text_chunk(CcText *t, const CcTextChunk *c);          /* a chunk whose indices are decoded */
bool cc_text_ahead(const CcText *t, const CcTextChunk *c, int node); /* is it a load issued ahead of use? */
void cc_text_begin(CcText *t, const char *name, int part);           /* opens a kernel */
/* gen_cuda_rows.c: prints a kernel of a loop that reduces */
CC_MUST int cc_text_rows(CcText *t, const char *name, int part);
/* gen_cuda_expr.c: C types and expressions, in a ring buffer: use them at once. */
const char *cc_gen_cuda_type(CcDtype dt);   /* of values */
const char *cc_gen_cuda_memory(CcDtype dt); /* of memory: bools are bytes */
const char *cc_gen_cuda_konst(const CcLoopNode *n);
const char *cc_gen_cuda_ref(const CcLoop *loop, int node); /* "t3", or a constant */
const char *cc_gen_cuda_cast(CcDtype from, CcDtype to, const char *x);
CC_MUST int cc_gen_cuda_scalar(CcScalarId op, CcDtype dt, const char *const *x, CcSbuf *out, CcErr *err);

#endif
