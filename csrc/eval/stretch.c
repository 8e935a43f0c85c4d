/* Where a break ends: instructions that follow a break and belong to it run unobserved. */
#include "eval_int.h"

/* The n-th value from the top of the stack; NULL: there is none, or it is a NULL. */
static PyObject *from_top(const CcAct *act, int n) {
    return act->depth >= n ? cc_act_get(act, act->code->n_locals + act->depth - n) : NULL;
}

typedef enum Kin { OTHER, ARRAY, TENSOR } Kin;

static Kin kin_of(PyObject *o) {
    if (o == NULL) return OTHER;
    if (cc_tens_is(o)) return TENSOR;
    return cc_known_is(o, CC_KNOWN_ARRAY) || cc_known_number(Py_TYPE(o)) ? ARRAY : OTHER;
}

/* What the frame works on next, an array or a tensor: the first of either on its stack, from the top, then the first
 * that it loads from a local if it enters loops and falls through conditional jumps. */
static Kin works_on(const CcAct *act) {
    const CcCode *code = act->code;
    for (int n = 1; n <= act->depth; n++)
        if (kin_of(from_top(act, n)) != OTHER) return kin_of(from_top(act, n));
    for (int pc = act->pc, steps = 0; pc >= 0 && steps < code->n; steps++, pc = cc_code_onward(code, pc)) {
        const CcInsn *in = &code->insn[pc];
        const bool loads = in->op == CC_INSN_LOAD_FAST || in->op == CC_INSN_LOAD_FAST_2;
        Kin kin = loads ? kin_of(cc_act_get(act, in->arg)) : OTHER;
        if (kin == OTHER && in->op == CC_INSN_LOAD_FAST_2) kin = kin_of(cc_act_get(act, in->aux));
        if (kin != OTHER) return kin;
    }
    return OTHER;
}

/* After a break, a numpy array is on the stack. Operations on it can't be recorded, and one break per operation would
 * cost more than the operations. So the following instructions of this frame belong to the same break as long as they
 * work on arrays. */
static bool in_arrays(const CcAct *act, const CcAct **arrays) {
    const int op = act->code->insn[act->pc].op;
    if (act != *arrays && kin_of(from_top(act, 1)) != ARRAY) return false;
    *arrays = works_on(act) == ARRAY ? act : NULL;
    const bool leaves = op == CC_INSN_RETURN || op == CC_INSN_RETURN_CONST || op == CC_INSN_SUSPEND;
    return *arrays != NULL && !leaves && op != CC_INSN_HAND && op != CC_INSN_HAND_STOP;
}

/* A bool left by a break that only a jump uses: the jump belongs to the break, so that each branch has its own resume
 * point, and neither guards the bool. (3.13 tests the truth in one instruction and jumps in the next; 3.11 does both in
 * one.) */
static bool at_jump(const CcAct *act) {
    const CcInsn *in = &act->code->insn[act->pc];
    PyObject *top = from_top(act, 1);
    if (top == NULL || !PyBool_Check(top)) return false;
    if (in->op == CC_INSN_COPY && in->arg == 1) in++; /* `a and b`: the bool is also the result */
    return in->op == CC_INSN_JUMP_IF || in->op == CC_INSN_JUMP_OR_POP || in->op == CC_INSN_TO_BOOL;
}

/* An exception passes through the cleanup of an inlined comprehension (3.12), which restores the loop's variable and
 * raises again. */
static bool at_cleanup(const CcAct *act) {
    enum { FEW = 8 };
    for (int pc = act->pc; pc < CC_MIN(act->pc + FEW, act->code->n); pc++) {
        const int op = act->code->insn[pc].op;
        if (op == CC_INSN_RERAISE) return true;
        if (op != CC_INSN_SWAP && op != CC_INSN_POP && op != CC_INSN_STORE_FAST && op != CC_INSN_STORE_FAST_2)
            return false;
    }
    return false;
}

bool cc_stretch_goes_on(const CcAct *act, const CcAct **arrays) {
    return in_arrays(act, arrays) || at_jump(act) || at_cleanup(act);
}
