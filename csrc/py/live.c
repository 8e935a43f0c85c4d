/* Liveness of locals: backward dataflow over instructions, exception edges included. Cells and free variables are
 * always live, and so is every local of a function that may inspect its own frame. */
#include "py_int.h"

/* A function that uses a name of the first list may read its own locals through the frame, by itself or in a callee, or
 * an address, which belongs to one object only as long as that object lives: `id(a) == id(make())`. (An attribute
 * `_raw_saved_self` of a grad_fn points into a node that only the result keeps alive.) One that uses a name of the second
 * list may read other frames' locals, too. */
static const char *const frame_readers[] = {"locals",    "vars",  "dir", "eval",     "exec",   "breakpoint",
                                            "set_trace", "stack", "id",  "data_ptr", "_cdata", "_raw_saved_*"};
static const char *const frame_inspectors[] = {"_getframe", "currentframe", "f_locals", "f_back", "tb_frame"};

/* `name` may end with "*". */
static bool uses_name(PyCodeObject *co, const char *name) {
    const size_t n = strcspn(name, "*");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(co->co_names); i++) {
        PyObject *used = PyTuple_GET_ITEM(co->co_names, i);
        if (name[n] == '\0' ? cc_text_is(used, name) : cc_text_starts(used, name, n)) return true;
    }
    return false;
}

static bool reads_frame(PyCodeObject *co) {
    for (int i = 0; i < CC_COUNT(frame_readers); i++) {
        if (uses_name(co, frame_readers[i])) return true;
    }
    return cc_code_inspects_frames(co);
}

bool cc_code_inspects_frames(PyCodeObject *co) {
    for (int i = 0; i < CC_COUNT(frame_inspectors); i++) {
        if (uses_name(co, frame_inspectors[i])) return true;
    }
    return false;
}

int cc_code_onward(const CcCode *code, int pc) {
    const CcInsn *in = &code->insn[pc];
    if (in->flags & CC_IF_STOP) return in->flags & CC_IF_JUMP ? in->target : -1;
    return pc + 1;
}

static void set_bit(uint64_t *bits, int i) {
    if (i >= 0) bits[i >> 6] |= (uint64_t)1 << (i & 63);
}
static void clear_bit(uint64_t *bits, int i) {
    if (i >= 0) bits[i >> 6] &= ~((uint64_t)1 << (i & 63));
}

/* Marks the locals that are live everywhere. */
static void set_always(const CcCode *code, uint64_t *always) {
    bool all = reads_frame(code->co);
    char *kinds = PyBytes_AS_STRING(code->co->co_localspluskinds);
    for (int i = 0; i < code->n_locals; i++) {
        /* CO_FAST_CELL and CO_FAST_FREE (0x40, 0x80): kinds of co_localspluskinds since 3.11 */
        if (all || (kinds[i] & 0xC0)) set_bit(always, i);
    }
    /* super() reads the first argument from the frame */
    if (code->n_locals && uses_name(code->co, "super")) set_bit(always, 0);
}

/* Turns liveness behind an instruction into liveness before it. CPython runs the frame on from a HAND: its code may read
 * anything. */
static void transfer(const CcInsn *in, uint64_t *bits, int words) {
    switch (in->op) {
    case CC_INSN_HAND:
    case CC_INSN_HAND_STOP: memset(bits, 0xff, sizeof *bits * (size_t)words); break;
    case CC_INSN_STORE_FAST: clear_bit(bits, in->arg); break;
    case CC_INSN_STORE_FAST_2:
        clear_bit(bits, in->arg);
        clear_bit(bits, in->aux);
        break;
    case CC_INSN_STORE_LOAD_FAST:
        set_bit(bits, in->aux);
        clear_bit(bits, in->arg);
        break;
    case CC_INSN_LOAD_FAST_2:
        set_bit(bits, in->arg);
        set_bit(bits, in->aux);
        break;
    case CC_INSN_LOAD_FAST:
    case CC_INSN_LOAD_FAST_CLEAR:
    case CC_INSN_DELETE_FAST: /* a read: raises if unset */
    case CC_INSN_MAKE_CELL: set_bit(bits, in->arg); break;
    default: break;
    }
}

/* One backward pass; true if any row changed. */
static bool backward_pass(CcCodeFull *full, const uint64_t *always, uint64_t *bits) {
    CcCode *code = &full->pub;
    int words = code->live_words;
    bool changed = false;
    for (int pc = code->n - 1; pc >= 0; pc--) {
        const CcInsn *in = &code->insn[pc];
        uint64_t *live = code->live + (size_t)pc * (size_t)words;
        const uint64_t *next = !(in->flags & CC_IF_STOP) && pc + 1 < code->n ? live + words : NULL;
        const uint64_t *jump = in->target >= 0 ? code->live + (size_t)in->target * (size_t)words : NULL;
        const CcHandler *handler = cc_extable_find(code, pc);
        const uint64_t *caught = handler ? code->live + (size_t)handler->target * (size_t)words : NULL;
        for (int w = 0; w < words; w++) bits[w] = (next ? next[w] : 0) | (jump ? jump[w] : 0);
        transfer(in, bits, words);
        for (int w = 0; w < words; w++) {
            uint64_t now = bits[w] | (caught ? caught[w] : 0) | always[w];
            changed |= now != live[w];
            live[w] = now;
        }
    }
    return changed;
}

int cc_live_solve(CcCodeFull *full) {
    CcCode *code = &full->pub;
    int words = CC_MAX(1, (code->n_locals + 63) / 64);
    code->live_words = words;
    code->live = calloc((size_t)words * (size_t)(code->n + 3), sizeof(uint64_t));
    if (!code->live) return -1;
    uint64_t *always = code->live + (size_t)words * (size_t)(code->n + 1); /* scratch behind the last row */
    uint64_t *bits = always + words;
    set_always(code, always);
    while (backward_pass(full, always, bits)) {}
    return 0;
}

bool cc_code_live(const CcCode *code, int pc, int slot) {
    if (pc < 0 || pc >= code->n || slot < 0 || slot >= code->n_locals) return true;
    const uint64_t *live = code->live + (size_t)pc * (size_t)code->live_words;
    return live[slot >> 6] >> (slot & 63) & 1;
}
