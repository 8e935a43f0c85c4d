/* Decoder: translates a code object's bytes into CcInsn[] once and keeps the result in its co_extra.
 *
 * The bytes come from PyCode_GetCode, which returns the original opcodes with empty caches, whatever specialisation or
 * sys.monitoring did to the code in memory. EXTENDED_ARG prefixes, and KW_NAMES and PRECALL before a CALL, are merged
 * into their instruction, because a frame can be handed over only in front of them (CPython's evaluator keeps kwnames
 * in a C local). 3.14 enters a context in six instructions, which become one again, and puts NOT_TAKEN, which does
 * nothing, behind jumps. Depths follow CPython's PyCompile_OpcodeStackEffectWithJump, handlers included. */
#include "py_int.h"

#include <limits.h>

static Py_ssize_t extra_index = -1;

typedef struct Raw {         /* what decoding needs of one instruction beyond its CcInsn */
    int effect, effect_jump; /* stack effect when falling through, and when jumping */
    int target_unit;         /* -1: none */
} Raw;

typedef struct Decoder {
    CcCodeFull *code;
    const uint8_t *bytes;
    CC_VEC(CcInsn) insns;
    CC_VEC(Raw) raws;
} Decoder;

/* co_extra's free function; 3.11 also calls it with NULL at exit, for code objects without data. */
static void release(void *data) {
    CcCodeFull *code = data;
    if (!code) return;
    free(code->pub.insn);
    free(code->pub.by_unit);
    free(code->pub.live);
    free(code->handlers);
    free(code->handler_of);
    free(code->offsets);
    free(code);
}

int cc_decode_init(void) {
    if (extra_index < 0) extra_index = cc_frame_extra_index(release);
    if (extra_index >= 0) return 0;
    PyErr_SetString(PyExc_ImportError, "ccompile: all co_extra slots of this interpreter are taken");
    return -1;
}

static int effect_of(int op, int oparg, int jump) {
    int effect = PyCompile_OpcodeStackEffectWithJump(op, oparg, jump);
    return effect == PY_INVALID_STACK_EFFECT ? INT_MIN / 2 : effect;
}

/* The depth behind a suspension includes the value sent in; for RETURN_GENERATOR CPython's own stack effect includes it
 * only in 3.13. Where we continue after an exhausted FOR_ITER, its iterator has been popped. */
static void set_effects(Raw *raw, const CcOpRow *row, int op, int oparg) {
    raw->effect += row->split == CC_SPLIT_SUSPEND ? row->k : effect_of(op, oparg, 0);
    raw->effect_jump = row->split == CC_SPLIT_FOR ? -1 : effect_of(op, oparg, 1);
}

static void split_intrinsic(CcInsn *in, int oparg) {
    if (oparg == cc_optab.to_tuple) {
        in->op = CC_INSN_LIST_TO_TUPLE;
    } else if (oparg == cc_optab.positive) {
        in->op = CC_INSN_UNARY;
        in->arg = '+';
    } else if (oparg == cc_optab.stop_error) {
        in->op = CC_INSN_STOP_ERROR;
    }
    in->flags = cc_optab_flags(in->op);
}

/* Turns the oparg into arg, aux and flags. */
static void split(CcInsn *in, const CcOpRow *row, int oparg) {
    in->arg = oparg;
    switch (row->split) {
    case CC_SPLIT_FIXED: in->arg = row->k; break;
    case CC_SPLIT_SHIFT: in->arg = oparg >> row->k; break;
    case CC_SPLIT_SHIFT_NULL:
        in->arg = oparg >> 1;
        if (oparg & 1) in->flags |= CC_IF_NULL;
        break;
    case CC_SPLIT_COMPARE_BOOL: in->arg = oparg >> 5; break;
    case CC_SPLIT_FLAG: in->flags |= row->k; break;
    case CC_SPLIT_FLAG_ONLY:
        in->arg = 0;
        in->flags |= row->k;
        break;
    case CC_SPLIT_FLAG_IF_ODD:
        if (oparg & 1) in->flags |= row->k;
        break;
    case CC_SPLIT_BINOP:
        if (oparg == CC_NB_SUBSCR) {
            in->op = CC_INSN_SUBSCR;
            in->flags = cc_optab_flags(in->op);
            break;
        }
        in->arg = oparg % CC_NB_COUNT;
        if (oparg >= CC_NB_COUNT) in->flags |= CC_IF_INPLACE;
        break;
    case CC_SPLIT_PAIR:
        in->arg = oparg >> 4;
        in->aux = oparg & 15;
        break;
    case CC_SPLIT_FORMAT:
        in->arg = oparg & 3;
        if (oparg & 4) in->flags |= CC_IF_SPEC;
        break;
    case CC_SPLIT_SUPER:
        in->arg = oparg >> 2;
        in->aux = oparg & 2;
        if (oparg & 1) in->flags |= CC_IF_NULL;
        break;
    case CC_SPLIT_UNPACK_EX:
        in->arg = oparg & 255;
        in->aux = oparg >> 8;
        break;
    case CC_SPLIT_INTRINSIC: split_intrinsic(in, oparg); break;
    case CC_SPLIT_RESUME: /* 2, 3: behind `yield from` or await, where CPython does not check the eval breaker */
        if ((oparg & 3) >= 2) in->flags &= (uint8_t)~CC_IF_POLL;
        break;
    default: break;
    }
}

static int jump_unit(CcInsn *in, const CcOpRow *row, int oparg) {
    switch (row->split) {
    case CC_SPLIT_FORWARD: in->arg = row->k; return in->next + oparg;
    case CC_SPLIT_FOR: return in->next + oparg;
    case CC_SPLIT_BACKWARD:
        in->arg = row->k;
        if (in->op != CC_INSN_JUMP) in->flags |= CC_IF_POLL; /* JUMP: JUMP_BACKWARD_NO_INTERRUPT */
        return in->next - oparg;
    default: return -1;
    }
}

/* Reads the opcode at *unit, prefixes included; returns its number and moves *unit behind it and its caches. */
static int fetch(const Decoder *d, int *unit, int *oparg, int *real) {
    int arg = 0, at = *unit, n = d->code->pub.n_units, op;
    do {
        op = d->bytes[2 * at];
        arg = (arg << 8) | d->bytes[2 * at + 1];
        *real = at++;
    } while (op == cc_optab.extended_arg && at < n);
    *oparg = arg;
    *unit = at + cc_optab.row[op].caches;
    return op;
}

/* From 3.13 on COMPARE_OP may convert its result to an exact bool. That becomes an instruction of its own, because the
 * comparison can be recorded even where taking the truth of its result is a break. */
static void push_truth(Decoder *d, const CcInsn *compare) {
    CcInsn in = *compare;
    in.op = CC_INSN_TO_BOOL;
    in.flags = cc_optab_flags(in.op) | CC_IF_INNER;
    cc_vec_push(&d->insns, in);
    cc_vec_push(&d->raws, (Raw){.target_unit = -1});
}

/* If `with` begins at this unit, moves it behind the call of __enter__ and gives that call's own unit and the stack
 * effect of all instructions. 3.14: COPY, __exit__, SWAP, SWAP, __enter__, CALL; LOAD_SPECIAL's arguments are 1 for
 * __exit__ and 0 for __enter__. */
static bool fetch_with(const Decoder *d, int *unit, int *real, int *effect) {
    const struct {
        int op, oparg;
    } parts[] = {{cc_optab.copy, 1}, {cc_optab.load_special, 1}, {cc_optab.swap, 2},
                 {cc_optab.swap, 3}, {cc_optab.load_special, 0}, {cc_optab.call, 0}};
    int at = *unit, oparg;
    if (cc_optab.load_special < 0) return false;
    *effect = 0;
    for (int i = 0; i < CC_COUNT(parts); i++) {
        if (at >= d->code->pub.n_units || fetch(d, &at, &oparg, real) != parts[i].op || oparg != parts[i].oparg)
            return false;
        *effect += effect_of(parts[i].op, oparg, 0);
    }
    *unit = at;
    return true;
}

static void skip_not_taken(const Decoder *d, int *unit) {
    int behind = *unit, oparg, real;
    if (*unit < d->code->pub.n_units && fetch(d, &behind, &oparg, &real) == cc_optab.not_taken) *unit = behind;
}

static bool decode_with(Decoder *d, int *unit) {
    CcInsn in = {.op = CC_INSN_WITH, .aux = -1, .target = -1, .at = *unit, .depth = -1};
    Raw raw = {.target_unit = -1};
    if (!fetch_with(d, unit, &in.real, &raw.effect)) return false;
    in.flags = cc_optab_flags(in.op) | CC_IF_SELF;
    in.next = *unit;
    d->code->pub.by_unit[in.at] = d->insns.n;
    cc_vec_push(&d->insns, in);
    cc_vec_push(&d->raws, raw);
    return true;
}

static void decode_one(Decoder *d, int *unit) {
    CcInsn in = {.aux = -1, .target = -1, .at = *unit, .depth = -1};
    Raw raw = {.target_unit = -1};
    int kwnames = -1, op, oparg;
    for (;;) { /* KW_NAMES and PRECALL are prefixes of a CALL */
        op = fetch(d, unit, &oparg, &in.real);
        set_effects(&raw, &cc_optab.row[op], op, oparg);
        bool prefix = op == cc_optab.kw_names || op == cc_optab.precall;
        if (op == cc_optab.kw_names) kwnames = oparg;
        if (!prefix || *unit >= d->code->pub.n_units) break;
    }
    const CcOpRow *row = &cc_optab.row[op];
    in.op = row->op;
    in.flags = cc_optab_flags(row->op);
    in.next = *unit;
    split(&in, row, oparg);
    if (op == cc_optab.call) in.aux = kwnames;
    raw.target_unit = jump_unit(&in, row, oparg);
    if (raw.target_unit >= 0) skip_not_taken(d, unit);
    in.next = *unit;
    d->code->pub.by_unit[in.at] = d->insns.n;
    cc_vec_push(&d->insns, in);
    cc_vec_push(&d->raws, raw);
    if (row->split == CC_SPLIT_COMPARE_BOOL && (oparg & 16)) push_truth(d, &in);
}

static void resolve_targets(Decoder *d) {
    CcCode *code = &d->code->pub;
    for (int i = 0; i < code->n; i++) {
        CcInsn *in = &code->insn[i];
        int unit = d->raws.at[i].target_unit;
        if (unit < 0 || unit >= code->n_units) continue;
        in->target = code->by_unit[unit];
        if (in->target >= 0 && in->op == CC_INSN_NEXT) in->target += cc_optab.for_skip;
        if (in->target >= code->n) in->target = -1;
    }
}

static uint64_t below(int depth) { return depth < 64 ? ((uint64_t)1 << depth) - 1 : ~(uint64_t)0; }

/* Static depths, and places of saved offsets, by a worklist over fall-through, jumps and handlers. False if two paths
 * disagree. */
static bool reach(CcCodeFull *full, int pc, int depth, uint64_t offsets, int32_t *todo, int *n_todo) {
    CcCode *code = &full->pub;
    if (pc < 0 || pc >= code->n || depth < 0) return false;
    if (code->insn[pc].depth >= 0) return code->insn[pc].depth == depth;
    code->insn[pc].depth = depth;
    full->offsets[pc] = offsets & below(depth);
    todo[(*n_todo)++] = pc;
    return true;
}

static bool solve_depths(Decoder *d) {
    CcCode *code = &d->code->pub;
    int32_t *todo = malloc(sizeof(int32_t) * (size_t)(code->n + 1));
    int n = 0;
    bool good = todo && code->n > 0 && reach(d->code, 0, 0, 0, todo, &n);
    while (good && n > 0) {
        int pc = todo[--n];
        const CcInsn *in = &code->insn[pc];
        const Raw *raw = &d->raws.at[pc];
        const uint64_t offsets = d->code->offsets[pc];
        const CcHandler *h = cc_extable_find(code, pc);
        const uint64_t caught = h && h->lasti && h->level < 64 ? (uint64_t)1 << h->level : 0;
        if (h)
            good = reach(d->code, h->target, h->level + h->lasti + 1, (offsets & below(h->level)) | caught, todo, &n);
        if (good && !(in->flags & CC_IF_STOP) && pc + 1 < code->n)
            good = reach(d->code, pc + 1, in->depth + raw->effect, offsets, todo, &n);
        if (good && in->target >= 0) good = reach(d->code, in->target, in->depth + raw->effect_jump, offsets, todo, &n);
    }
    free(todo);
    return good;
}

static int decode_all(Decoder *d) {
    CcCode *code = &d->code->pub;
    memset(code->by_unit, 0xff, sizeof(int32_t) * (size_t)(code->n_units + 1));
    for (int unit = 0; unit < code->n_units;)
        if (!decode_with(d, &unit)) decode_one(d, &unit);
    code->insn = d->insns.at;
    code->n = d->insns.n;
    resolve_targets(d);
    d->code->offsets = calloc((size_t)code->n + 1, sizeof *d->code->offsets);
    if (!d->code->offsets || cc_extable_read(d->code) < 0) return -1;
    if (!solve_depths(d)) { /* inconsistent depths: CPython runs this code object from its first instruction */
        for (int i = 0; i < code->n; i++) code->insn[i].op = CC_INSN_HAND;
    }
    return cc_live_solve(d->code);
}

static CcCodeFull *decode(PyCodeObject *co) {
    PyObject *bytes = PyCode_GetCode(co);
    if (!bytes) return NULL;
    int n_units = (int)(PyBytes_GET_SIZE(bytes) / 2);
    CcCodeFull *code = calloc(1, sizeof *code);
    Decoder d = {.code = code, .bytes = (const uint8_t *)PyBytes_AS_STRING(bytes)};
    if (!code) goto fail;
    code->pub = (CcCode){.co = co, .n_units = n_units, .n_locals = co->co_nlocalsplus};
    code->pub.by_unit = malloc(sizeof(int32_t) * (size_t)(n_units + 1));
    if (!code->pub.by_unit || decode_all(&d) < 0) goto fail;
    cc_vec_free(&d.raws);
    Py_DECREF(bytes);
    return code;
fail:
    cc_vec_free(&d.raws);
    release(code);
    Py_DECREF(bytes);
    PyErr_NoMemory();
    return NULL;
}

const CcCode *cc_code_get(PyCodeObject *co) {
    CcCodeFull *code = cc_frame_get_extra(co, extra_index);
    if (code) return &code->pub;
    code = decode(co);
    if (!code) return NULL;
    if (cc_frame_set_extra(co, extra_index, code) < 0) {
        release(code);
        return NULL;
    }
    return &code->pub;
}

uint64_t cc_code_offsets(const CcCode *code, int pc) { return ((const CcCodeFull *)code)->offsets[pc]; }

PyObject *cc_code_variable(PyCodeObject *co, int slot) {
    const bool known = slot >= 0 && slot < co->co_nlocalsplus;
    return known ? Py_NewRef(PyTuple_GET_ITEM(co->co_localsplusnames, slot)) : NULL;
}

int cc_code_at(const CcCode *code, int unit) { return unit >= 0 && unit < code->n_units ? code->by_unit[unit] : -1; }

int cc_code_line(const CcCode *code, int pc) {
    if (pc < 0 || pc >= code->n) return -1;
    return PyCode_Addr2Line(code->co, code->insn[pc].real * 2);
}

bool cc_code_writes(const CcInsn *insn) {
    return insn->op == CC_INSN_STORE_SUBSCR || insn->op == CC_INSN_DELETE_SUBSCR ||
           (insn->op == CC_INSN_BINOP && insn->flags & CC_IF_INPLACE);
}
