/* gtext: prints graphs as text, one line per value or node.
 *
 *   %0 : f32[2,3] frozen
 *   %1 : f32[2,3] = add(%0, 1) #0
 *   %2 : f32[3,2]{1,3} hidden of %1+0
 *
 * A line without '=' is an input or, after a node, other memory that the node makes or writes; a window names its
 * base and byte offset. Strides appear when they are not the contiguous ones. The number after '#' is the host's
 * number of the node. `5=s2` is a number that came from the host's number 2; `5=size` is a stride. Constants carry
 * the operand names of their op's row: `conv(%0, %1, none, stride=[1, 1], ...)`. gread.c reads this text. */
#include <math.h>

#include "ir.h"

static void print_type(const CcType *t, CcSbuf *out) {
    cc_sbuf_add(out, "%s", cc_dtype_info((CcDtype)t->dtype)->name);
    if (t->ndim < 0) cc_sbuf_add(out, "[?]");
    for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? "," : "[", (long long)t->size[i]);
    if (t->ndim >= 0) cc_sbuf_add(out, t->ndim ? "]" : "[]");
    if (t->ndim >= 0 && !cc_type_contiguous(t)) {
        for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? "," : "{", (long long)t->stride[i]);
        cc_sbuf_add(out, "}");
    }
    if (t->device != 1) cc_sbuf_add(out, "@%d:%d", t->device, t->device_index);
}

/* The shorter of two forms that read back as the same number, and as a float. */
static void print_float(double f, CcSbuf *out) {
    char text[40];
    snprintf(text, sizeof text, "%.9g", f);
    if (strtod(text, NULL) != f) snprintf(text, sizeof text, "%.17g", f);
    cc_sbuf_add(out, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

static void print_operand(const CcOperand *o, CcSbuf *out) {
    switch (o->kind) {
    case CC_IN_VALUE: cc_sbuf_add(out, "%%%d", o->value); return;
    case CC_IN_BOOL: cc_sbuf_add(out, o->i ? "true" : "false"); return;
    case CC_IN_NUMBER: cc_sbuf_add(out, "s%d", o->value); return;
    case CC_IN_NONE: cc_sbuf_add(out, "none"); return;
    case CC_IN_INT: cc_sbuf_add(out, "%lld", (long long)o->i); break;
    case CC_IN_FLOAT: print_float(o->f, out); break;
    }
    if (o->value == CC_OF_SIZES) cc_sbuf_add(out, "=size");
    else if (o->value) cc_sbuf_add(out, "=s%d", o->value - 1);
}

static void print_value(const CcGraph *g, int value, CcSbuf *out) {
    const CcVal *v = &g->val.at[value];
    cc_sbuf_add(out, "%%%d : ", value);
    print_type(&v->type, out);
    static const char *const FROZEN[] = {"", " frozen", " cast once", " frozen, cast once"};
    cc_sbuf_add(out, "%s", FROZEN[v->frozen]);
    if (v->frozen && v->changes) cc_sbuf_add(out, " changes");
    if (v->type.requires_grad) cc_sbuf_add(out, " grad");
    if (v->is_output) cc_sbuf_add(out, " out");
    if (v->narrowed) cc_sbuf_add(out, " narrowed");
    if (v->channels_last) cc_sbuf_add(out, " channels_last");
    if (v->hidden) cc_sbuf_add(out, " hidden");
    if (v->scalar) cc_sbuf_add(out, " scalar");
    if (v->window_of) cc_sbuf_add(out, " of %%%d%+lld", v->window_of - 1, (long long)v->offset);
}

static void print_range(const CcGraph *g, const CcNode *n, int from, int to, CcSbuf *out) {
    for (int i = from; i < to; i++) {
        if (i > from) cc_sbuf_add(out, ", ");
        print_operand(&g->operand.at[n->in0 + i], out);
    }
}

/* Prints an operand's name from ops.def; tensors, expression operands and REST have none. */
static void print_operands(const CcGraph *g, const CcNode *n, CcSbuf *out) {
    int ints, rest, at = 0;
    if (!cc_operands_count(n, &ints, &rest)) {
        print_range(g, n, 0, n->n_in, out);
        return;
    }
    for (const CcOperandSpec *s = cc_op_info((CcOpId)n->op)->operand; s->name && at < n->n_in; s++) {
        const bool list = s->kind == CC_IS_INTS || s->kind == CC_IS_MORE_INTS;
        const int to = CC_MIN(n->n_in, at + (s->kind == CC_IS_REST ? rest : list ? ints : s->room));
        if (to == at) continue;
        if (at) cc_sbuf_add(out, ", ");
        if (s->kind != CC_IS_TENSOR && s->kind != CC_IS_OPTIONAL && s->kind != CC_IS_REST && s->kind != CC_IS_IN)
            cc_sbuf_add(out, "%s=", s->name);
        if (list) cc_sbuf_add(out, "[");
        print_range(g, n, at, to, out);
        if (list) cc_sbuf_add(out, "]");
        at = to;
    }
}

static void print_node(const CcGraph *g, int node, CcSbuf *out) {
    const CcNode *n = &g->node.at[node];
    for (int i = 0; i < n->n_out; i++) {
        if (i) cc_sbuf_add(out, ", ");
        print_value(g, n->out0 + i, out);
    }
    cc_sbuf_add(out, "%s%s(", n->n_out ? " = " : "", cc_op_info((CcOpId)n->op)->name);
    print_operands(g, n, out);
    cc_sbuf_add(out, ") #%d", n->host);
    if (n->flags & CC_N_WRITES) cc_sbuf_add(out, " writes");
    if (n->flags & CC_N_RANDOM) cc_sbuf_add(out, " random");
    if (n->flags & CC_N_EFFECT) cc_sbuf_add(out, " effect");
    if (n->flags & CC_N_CHECKED) cc_sbuf_add(out, " checked");
    if (n->repeatable) cc_sbuf_add(out, " repeatable");
    if (n->kept) cc_sbuf_add(out, " kept");
    if (n->uncounted) cc_sbuf_add(out, " uncounted");
    if (n->rewritten) cc_sbuf_add(out, " rewritten");
    if (n->origin != node) cc_sbuf_add(out, " from %d", n->origin);
    cc_sbuf_add(out, "\n");
}

/* Prints on their own lines the values of a node that are not its results. */
static void print_others(const CcGraph *g, const bool *printed, int def, const int *first, const int *next,
                         CcSbuf *out) {
    for (int v = first[def + 1]; v; v = next[v]) {
        if (printed[v - 1]) continue;
        print_value(g, v - 1, out);
        cc_sbuf_add(out, "\n");
    }
}

void cc_graph_print(const CcGraph *g, CcSbuf *out) {
    /* linked lists of value numbers + 1, one list per defining node */
    int *first = cc_mem_get(sizeof *first * ((size_t)g->node.n + 1));
    int *next = cc_mem_get(sizeof *next * ((size_t)g->val.n + 1));
    bool *printed = cc_mem_get((size_t)g->val.n + 1);
    for (int v = g->val.n; v > 0; v--) {
        int *list = &first[g->val.at[v - 1].def + 1];
        next[v] = *list;
        *list = v;
    }
    for (int i = 0; i < g->node.n; i++)
        for (int k = 0; k < g->node.at[i].n_out; k++) printed[g->node.at[i].out0 + k] = true;
    print_others(g, printed, -1, first, next, out);
    for (int i = 0; i < g->node.n; i++) {
        print_node(g, i, out);
        print_others(g, printed, i, first, next, out);
    }
    free(first);
    free(next);
    free(printed);
}
