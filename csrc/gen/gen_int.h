/* gen, private: what gen_llvm.c and gen_math.c share, and what the files of the CUDA printer do. */
#ifndef CC_GEN_INT_H
#define CC_GEN_INT_H

#include "gen.h"

typedef char CcRef[40]; /* an SSA name or a constant, as text: "%t12", "splat (float 0x3FF0000000000000)" */

typedef struct CcEmit {
    const CcLoop *loop;
    const CcTarget *target;
    int lanes;    /* elements of a vector */
    int next;     /* number of the next temporary */
    CcSbuf *body; /* where instructions go */
    CcSbuf decl;  /* declarations and helper functions */
    CC_VEC(char *) declared;
    CcErr *err;
    CcRef *ref; /* [node] */
} CcEmit;

/* Vector type of values of a dtype, "<16 x float>"; of a raw element type. The text lives in a
 * ring: use it at once. */
const char *cc_emit_type(const CcEmit *e, CcDtype dt);
const char *cc_emit_vector(const CcEmit *e, const char *element);
/* Appends "%tN = <format>" and puts the name into out. */
void cc_emit_op(CcEmit *e, CcRef out, const char *fmt, ...) CC_PRINTF(3, 4);
void cc_emit_number(CcDtype dt, double v, CcRef out); /* splat of a float */
void cc_emit_declare(CcEmit *e, const char *name, const char *fmt, ...) CC_PRINTF(3, 4);
bool cc_emit_has_vector(const CcEmit *e, const char *function, CcDtype dt); /* does libmvec have it, of one operand? */
/* Calls the vector function of libmvec, or libm's lane by lane. */
CC_MUST int cc_emit_libm(CcEmit *e, const char *function, CcDtype dt, int arity, const CcRef *x, CcRef out);
void cc_emit_intrinsic(CcEmit *e, const char *name, CcDtype dt, int arity, const CcRef *x, CcRef out);

/* gen_llvm.c, for gen_point.c and gen_sweep.c */
const char *cc_emit_memory(CcDtype dt);                                   /* element type in memory */
void cc_emit_broadcast(CcEmit *e, CcDtype dt, const char *at, CcRef out); /* one element, in all lanes */
/* from memory's type to the value's: bool is a byte there */
void cc_emit_loaded(CcEmit *e, CcDtype dt, CcRef ref);
void cc_emit_splat(CcEmit *e, CcDtype dt, const char *x, CcRef out); /* an i64 in all lanes, as I64 or I32 */
void cc_emit_place(CcEmit *e, const char *at, CcRef out);            /* the number that a place's pointer is: an i64 */
/* the lanes of a vector of type v, last one first */
void cc_emit_reverse(CcEmit *e, const char *v, CcRef x);
/* Elements at a vector of pointers; 0 where the mask says that there is none. */
void cc_emit_gather(CcEmit *e, CcDtype dt, const char *pointers, const char *mask, CcRef out);
/* Of neighbours in memory those that the mask names; others read 0 and are not touched. */
void cc_emit_masked_load(CcEmit *e, const char *element, int size, const char *at, const char *mask, CcRef out);
void cc_emit_masked_store(CcEmit *e, const char *element, int size, const char *x, const char *at, const char *mask);
CC_MUST int cc_emit_scalar(CcEmit *e, CcScalarId op, CcDtype dt, const CcRef *x, CcRef out);
CC_MUST int cc_emit_node(CcEmit *e, int node); /* neither load nor reduction */

/* gen_combine.c: of a reduction or a scan (`fold`, a primitive of kind R or P) whose values have this dtype. */
enum { CC_COMBINE_LANES = 64 }; /* at most */
void cc_combine_identity(CcScalarId fold, CcDtype dt, CcRef out);
CC_MUST int cc_combine_two(CcEmit *e, CcScalarId fold, CcDtype dt, const char *x, const char *y, CcRef out);
/* Each lane gets the result of all of them. */
CC_MUST int cc_combine_lanes(CcEmit *e, CcScalarId fold, CcDtype dt, CcRef x);
/* The scan's next vector, and what it has come to, in all lanes. `along`: its lanes follow one another, else each has
 * its own. */
CC_MUST int cc_combine_scan(CcEmit *e, const CcLoopNode *n, bool along, const char *x, CcRef carry, CcRef out);

/* gen_point.c: the body of a loop that does not reduce. */
CC_MUST int cc_gen_point(CcEmit *e);
void cc_gen_invariant(const CcLoop *loop, bool *invariant); /* [node]: does not change along a row */

/* gen_sweep.c and gen_element.c: what a loop that reduces is printed with. */
enum { CC_SWEEP_COPIES = 4, CC_SWEEP_REDUCTIONS = 16 };

typedef struct CcSweep {
    CcEmit *e;
    const CcLoop *loop;
    CcSweeps plan;
    int n_line, n_reduction;
    CcRef *ref[CC_SWEEP_COPIES];  /* [copy][node] */
    CcRef at[CC_LOOP_MAX_ACCESS]; /* where the loops stand */
    CcRef lane, mask, line;       /* index of the first lane; lanes that exist, "": all; number of the line */
    const char *skip;             /* label behind all that follows the sweeps */
    CcRef origin;                 /* by columns: number of the first one */
    CcRef begin, end;             /* of the chunk */
    int copies, number;           /* of the sweep that is printed */
    bool by_lines;                /* copies are lines, not vectors side by side */
    bool need[CC_LOOP_MAX_NODES];
    int reduction[CC_SWEEP_REDUCTIONS], n;
    CcRef acc[CC_SWEEP_REDUCTIONS][CC_SWEEP_COPIES];
    CcRef carry[CC_LOOP_MAX_NODES]; /* of scans */
} CcSweep;

/* gen_element.c. j: number of a reduction of the sweep. */
CcDtype cc_element_dtype(const CcSweep *s, int node);
const char *cc_element_type(const CcSweep *s, int j);
bool cc_element_reduces(const CcLoopNode *n);
CcScalarId cc_element_op(const CcSweep *s, int j);
void cc_element_identity(const CcSweep *s, int j, CcRef out);
CC_MUST int cc_element_combine(CcSweep *s, int j, const char *x, const char *y, CcRef out);
void cc_element_begin(CcSweep *s);                     /* scans have come to nothing yet */
void cc_element_fetch(CcSweep *s, int node, int copy); /* what a node reads, which does no arithmetic */
void cc_element_store(CcSweep *s, int access, int copy);
/* what the sweep needs of a vector of elements, and what it stores */
CC_MUST int cc_element_make(CcSweep *s, int copy);

/* gen_sweep.c: the body of a loop that reduces. */
CC_MUST int cc_gen_sweeps(CcEmit *e);

/* gen_math.c: the expansion `name` of scalar.def's '!' lowerings. -1 with *err set when there is
 * none. */
CC_MUST int cc_math_expand(CcEmit *e, const char *name, CcDtype dt, const CcRef *x, CcRef out);

/* ------------------------------------------------------------------ CUDA: gen_cuda.c, gen_cuda_*.c */

typedef enum CcCudaKind { CC_CUDA_POINT, CC_CUDA_ROWS, CC_CUDA_COLUMNS } CcCudaKind;

/* How a loop is spread over threads. Its dims are the loop's in an order of their own: kept ones, then reduced ones;
 * the last one is the inner one, which threads take `vector` elements of at once: a chunk. */
typedef struct CcCudaPlan {
    CcCudaKind kind;
    int n_dim, n_kept; /* POINT: all are kept */
    int dim[CC_MAX_DIMS + 1];
    int threads, vector;
    /* ROWS: threads of a row. COLUMNS: threads of a column; a block has threads / group columns side by side */
    int group;
    int held;   /* ROWS: chunks that a thread keeps in registers from sweep to sweep; 0: they are read again */
    bool split; /* rows are cut into pieces: blocks leave partial results, which the next kernel combines */
    /* kernels: one; split: one a sweep, and one more where something of rows is known after the last one only */
    int parts;
    bool wide; /* 64-bit indices */
    int n_reduction, n_scan;
    CcSweeps sweeps;
} CcCudaPlan;
void cc_gen_cuda_plan(const CcLoop *loop, const CcCudaTuning *tuning, CcCudaPlan *out);
/* along the inner dim */
CcStepClass cc_gen_cuda_step(const CcLoop *loop, const CcCudaPlan *plan, int access);
/* of plan->dim[d], in elements */
int64_t cc_gen_cuda_stride(const CcLoop *loop, const CcCudaPlan *plan, int access, int d);
int64_t cc_gen_cuda_kept(const CcLoop *loop, const CcCudaPlan *plan); /* sets of kept indices */
/* is a chunk of it one load or store? */
bool cc_gen_cuda_packed(const CcLoop *loop, const CcCudaPlan *plan, int access);

/* Fields of the argument, in one order for the text and the bytes: wide ones, then those of index type. */
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
    int a, d; /* access or check; dim of the plan */
} CcCudaField;
typedef CC_VEC(CcCudaField) CcCudaFields;
/* A float, which has to be in [0, 1]; else an index, whose bounds are fields. */
static inline bool cc_gen_cuda_share(const CcLoopCheck *c) {
    return cc_dtype_info((CcDtype)c->type.dtype)->kind == 'f';
}
/* -> how many are wide */
int cc_gen_cuda_fields(const CcLoop *loop, const CcCudaPlan *plan, CcCudaFields *out);

/* gen_cuda_text.c */
CC_MUST int cc_gen_cuda_text(const CcLoop *loop, const CcCudaPlan *plan, const char *name, CcSbuf *out, CcErr *err);
/* What gen_cuda_text.c and gen_cuda_rows.c share. */
typedef struct CcText {
    const CcLoop *loop;
    const CcCudaPlan *plan;
    CcSbuf *out;
    CcErr *err;
    int depth;         /* of braces */
    const bool *later; /* nodes that are not known here; NULL: all that come before */
} CcText;
typedef struct CcTextChunk {
    bool need[CC_LOOP_MAX_NODES];   /* what is computed for it */
    bool varies[CC_LOOP_MAX_NODES]; /* along the inner dim */
    int sweep;                      /* its number; POINT: 0 */
    bool stores;
    bool all; /* threads behind the end of the row go along, for a scan: `here` says which are not */
    /* of what stays in registers: all loads of a sweep are begun, then the first one is waited for */
    enum { CC_LOADS_HERE, CC_LOADS_ONLY, CC_LOADS_DONE } loads;
} CcTextChunk;
static inline CcDtype cc_text_dtype(const CcText *t, int node) { return (CcDtype)t->loop->node[node].dtype; }
static inline int cc_text_inner(const CcText *t) { return t->plan->n_dim - 1; }
static inline bool cc_text_reduces(const CcLoopNode *n) { return cc_scalar_info((CcScalarId)n->op)->kind == 'R'; }
void cc_text_line(CcText *t, const char *fmt, ...) CC_PRINTF(2, 3);
void cc_text_close(CcText *t);              /* a brace */
const char *cc_text_count(const CcText *t); /* the type of numbers of elements */
bool cc_text_along(const CcText *t, int a); /* reductions: does the access move along a row? */
/* Indices of the dims [first, last] from the number `of` of a set of them; the inner dim is counted in chunks. */
void cc_text_decode(CcText *t, int first, int last, const char *of);
/* `<letter><a>`: where access a stands along the dims [first, last], counted from `<from><a>`. */
void cc_text_place(CcText *t, char letter, const char *from, int a, int first, int last);
/* A node of one element, or of a row. in_pack: element k of a chunk of several. */
CC_MUST int cc_text_node(CcText *t, int i, bool in_pack);
/* t7 = t7 combined with x */
CC_MUST int cc_text_combine(CcText *t, int i, const char *x, const char *condition);
void cc_text_varying(const CcText *t, bool *varies);                 /* nodes that differ along the inner dim */
CC_MUST int cc_text_chunk(CcText *t, const CcTextChunk *c);          /* whose indices are known */
bool cc_text_ahead(const CcText *t, const CcTextChunk *c, int node); /* is it a load that is begun ahead? */
void cc_text_begin(CcText *t, const char *name, int part);           /* a kernel */
/* gen_cuda_rows.c: a kernel of a loop that reduces */
CC_MUST int cc_text_rows(CcText *t, const char *name, int part);
/* gen_cuda_expr.c: C types and expressions. The texts live in a ring: use them at once. */
const char *cc_gen_cuda_type(CcDtype dt);   /* of values */
const char *cc_gen_cuda_memory(CcDtype dt); /* of elements in memory */
const char *cc_gen_cuda_konst(const CcLoopNode *n);
const char *cc_gen_cuda_ref(const CcLoop *loop, int node); /* "t3", or a constant */
const char *cc_gen_cuda_cast(CcDtype from, CcDtype to, const char *x);
CC_MUST int cc_gen_cuda_scalar(CcScalarId op, CcDtype dt, const char *const *x, CcSbuf *out, CcErr *err);

#endif
