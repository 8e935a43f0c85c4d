/* Reads a code object's exception table (Objects/exception_handling_notes.txt; the format is the same in 3.11 to 3.14):
 * rows of start, length, target, depth * 2 + lasti as big-endian groups of six bits. Each row becomes a CcHandler;
 * handler_of maps each instruction to the row that covers it. */
#include "py_int.h"

static const uint8_t *varint(const uint8_t *p, const uint8_t *end, int *value) {
    int v = 0;
    while (p < end) {
        v = (v << 6) | (*p & 63);
        if (!(*p++ & 64)) break;
    }
    *value = v;
    return p;
}

int cc_extable_read(CcCodeFull *code) {
    PyObject *table = code->pub.co->co_exceptiontable;
    const uint8_t *p = (const uint8_t *)PyBytes_AS_STRING(table), *end = p + PyBytes_GET_SIZE(table);
    CC_VEC(CcHandler) rows = {0};
    while (p < end) {
        int start, length, target, depth_lasti;
        p = varint(p, end, &start);
        p = varint(p, end, &length);
        p = varint(p, end, &target);
        p = varint(p, end, &depth_lasti);
        int pc = cc_code_at(&code->pub, target);
        cc_vec_push(&rows, (CcHandler){start, start + length, pc, depth_lasti >> 1, depth_lasti & 1});
    }
    code->handlers = rows.at;
    code->n_handlers = rows.n;
    code->handler_of = malloc(sizeof(int32_t) * (size_t)(code->pub.n + 1));
    if (!code->handler_of) return -1;
    for (int pc = 0; pc < code->pub.n; pc++) {
        int unit = code->pub.insn[pc].real, found = -1;
        for (int i = 0; i < rows.n && found < 0; i++) {
            if (rows.at[i].start <= unit && unit < rows.at[i].end) found = i;
        }
        code->handler_of[pc] = found;
    }
    return 0;
}

const CcHandler *cc_extable_find(const CcCode *code, int pc) {
    const CcCodeFull *full = (const CcCodeFull *)code;
    int i = full->handler_of[pc];
    return i >= 0 && full->handlers[i].target >= 0 ? &full->handlers[i] : NULL;
}

int cc_code_catches(const CcCode *code, int pc, int *exits, int max) {
    int n = 0;
    for (const CcHandler *h = cc_extable_find(code, pc); h != NULL; h = cc_extable_find(code, h->target)) {
        const CcInsn *at = &code->insn[h->target];
        if (at->op != CC_INSN_PUSH_EXC || h->target + 1 >= code->n) continue;
        if (at[1].op != CC_INSN_WITH_EXCEPT || n == max) return -1;
        exits[n++] = h->level - 1;
    }
    return n;
}

/* If the code at pc is an `except` clause for a builtin exception that does not match GeneratorExit: the instruction
 * behind the clause; else -1. */
static int skip_clause(const CcCode *code, int pc, PyObject *globals) {
    const CcInsn *in = &code->insn[pc];
    if (pc + 2 >= code->n || in->op != CC_INSN_GLOBAL || in[1].op != CC_INSN_EXC_MATCH || in[2].op != CC_INSN_JUMP_IF ||
        in[2].arg)
        return -1;
    PyObject *name = PyTuple_GET_ITEM(code->co->co_names, in->arg), *builtins = PyEval_GetBuiltins();
    PyObject *type = PyDict_Contains(globals, name) == 0 ? PyDict_GetItemWithError(builtins, name) : NULL;
    const bool other = type != NULL && PyExceptionClass_Check(type) &&
                       !PyType_IsSubtype((PyTypeObject *)PyExc_GeneratorExit, (PyTypeObject *)type);
    cc_raised_clear();
    return other ? in[2].target : -1;
}

bool cc_code_closes_quietly(const CcCode *code, int pc, PyObject *globals) {
    for (const CcHandler *h = cc_extable_find(code, pc); h != NULL; h = cc_extable_find(code, h->target)) {
        if (code->insn[h->target].op != CC_INSN_PUSH_EXC) continue; /* the cleanup of another handler */
        int at = h->target + 1;
        while (at >= 0 && at < code->n && code->insn[at].op != CC_INSN_RERAISE) at = skip_clause(code, at, globals);
        if (at < 0) return false;
    }
    return true;
}
