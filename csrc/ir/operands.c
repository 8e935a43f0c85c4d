/* operands: reads and writes the operands of a node by the names and kinds of its op's row (ops.def). */
#include "ir.h"

bool cc_operands_count(const CcNode *n, int *ints, int *rest) {
    int single = 0, lists = 0, more = 0;
    bool open = false;
    for (const CcOperandSpec *s = cc_op_info((CcOpId)n->op)->operand; s->name; s++) {
        if (s->kind == CC_IS_INTS) lists++;
        else if (s->kind == CC_IS_MORE_INTS) more++;
        else if (s->kind == CC_IS_REST) open = true;
        else single += s->room;
    }
    const int left = n->n_in - single;
    *ints = 0;
    *rest = open ? left : 0;
    if (open) return left >= 0;
    if (!lists) return left <= 0;
    /* Each number of operands fits at most one number of spatial dims: conv has 4 + 3 d or 4 + 4 d, d <= 3. */
    for (int k = lists; k <= lists + more; k++) {
        if (left <= 0 || left % k || left / k > CC_SPATIAL) continue;
        *ints = left / k;
        return true;
    }
    return false;
}

static bool fits(CcOperandKind kind, const CcOperand *o) {
    switch (kind) {
    case CC_IS_TENSOR: return o->kind == CC_IN_VALUE;
    case CC_IS_OPTIONAL: return o->kind == CC_IN_VALUE || o->kind == CC_IN_NONE;
    case CC_IS_INT:
    case CC_IS_INTS:
    case CC_IS_MORE_INTS: return o->kind == CC_IN_INT;
    case CC_IS_BOOL: return o->kind == CC_IN_BOOL;
    case CC_IS_NUMBER: return o->kind == CC_IN_INT || o->kind == CC_IN_FLOAT || o->kind == CC_IN_BOOL;
    default: return true;
    }
}

/* How many of the node's operands, from `at` on, belong to this spec. */
static int count_of(const CcOperandSpec *s, const CcNode *n, int at, int ints, int rest) {
    switch (s->kind) {
    case CC_IS_REST: return rest;
    case CC_IS_INTS: return ints;
    case CC_IS_MORE_INTS: return CC_MIN(ints, n->n_in - at);
    default: return CC_MIN(s->room, n->n_in - at);
    }
}

/* Fills `in` unless NULL. -> the first spec that does not fit; NULL: all fit */
static const CcOperandSpec *read(const CcGraph *g, const CcNode *n, char *in) {
    const CcOperandSpec *s = cc_op_info((CcOpId)n->op)->operand;
    int ints, rest, at = 0;
    if (!cc_operands_count(n, &ints, &rest)) return s;
    for (; s->name; s++) {
        const int count = count_of(s, n, at, ints, rest);
        const CcOperand *o = &g->operand.at[n->in0 + at], missing = {.kind = CC_IN_NONE};
        for (int i = 0; i < count; i++)
            if (!fits(s->kind, &o[i])) return s;
        if (count == 0 && s->room == 1 && !fits(s->kind, &missing)) return s;
        if (in && s->kind == CC_IS_REST) {
            memcpy(in, &(CcOperandRange){at, count}, sizeof(CcOperandRange));
            in += sizeof(CcOperandRange);
        } else if (in) {
            if (count) memcpy(in, o, sizeof *o * (size_t)count);
            for (int i = count; i < s->room; i++) memcpy(in + sizeof *o * (size_t)i, &missing, sizeof missing);
            in += sizeof *o * (size_t)s->room;
        }
        at += count;
    }
    return NULL;
}

/* Do the rows of two ops have the same names and kinds, so that one can be read as the other? */
static bool alike(CcOpId a, CcOpId b) {
    const CcOperandSpec *s = cc_op_info(a)->operand, *t = cc_op_info(b)->operand;
    if (a == b) return true;
    for (; s->name && t->name; s++, t++)
        if (strcmp(s->name, t->name) != 0 || s->kind != t->kind || s->room != t->room) return false;
    return s->name == t->name;
}

bool cc_operands_read(const CcGraph *g, const CcNode *n, CcOpId op, void *in) {
    return alike((CcOpId)n->op, op) && read(g, n, in) == NULL;
}

const CcOperandSpec *cc_operands_wrong(const CcGraph *g, const CcNode *n) { return read(g, n, NULL); }

int cc_operands_write(CcOpId op, const void *in, CcOperand out[CC_OPERANDS_MAX]) {
    const CcOperand *from = in;
    int n = 0;
    for (const CcOperandSpec *s = cc_op_info(op)->operand; s->name; from += s->room, s++) {
        CC_ASSERT(s->kind != CC_IS_REST && n + s->room <= CC_OPERANDS_MAX);
        const bool list = s->kind == CC_IS_INTS || s->kind == CC_IS_MORE_INTS;
        for (int i = 0; i < s->room && (!list || from[i].kind != CC_IN_NONE); i++) out[n++] = from[i];
    }
    return n;
}
