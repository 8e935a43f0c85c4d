/* gtext: graphs as text, one line a value or node.
 *
 *   %0 : f32[2,3]
 *   %1 : f32[2,3] = add(%0, 1) #0
 *
 * Strides are shown when they are not the contiguous ones; after '#' stands the host's number. */
#include "ir.h"

static void print_type(const CcType *t, CcSbuf *out) {
    cc_sbuf_add(out, "%s", cc_dtype_info((CcDtype)t->dtype)->name);
    if (t->ndim < 0) {
        cc_sbuf_add(out, "[?]");
        return;
    }
    for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? "," : "[", (long long)t->size[i]);
    cc_sbuf_add(out, t->ndim ? "]" : "[]");
    if (!cc_type_contiguous(t)) {
        for (int i = 0; i < t->ndim; i++) cc_sbuf_add(out, "%s%lld", i ? "," : "{", (long long)t->stride[i]);
        cc_sbuf_add(out, "}");
    }
    if (t->device != 1) cc_sbuf_add(out, "@%d:%d", t->device, t->device_index);
}

static void print_operand(const CcOperand *o, CcSbuf *out) {
    if (o->kind == CC_IN_VALUE) cc_sbuf_add(out, "%%%d", o->value);
    else if (o->kind == CC_IN_INT) cc_sbuf_add(out, "%lld", (long long)o->i);
    else if (o->kind == CC_IN_BOOL) cc_sbuf_add(out, o->i ? "true" : "false");
    else if (o->kind == CC_IN_FLOAT) cc_sbuf_add(out, "%.9g%s", o->f, o->f == (double)(int64_t)o->f ? ".0" : "");
    else if (o->kind == CC_IN_NUMBER) cc_sbuf_add(out, "s%d", o->value);
    else cc_sbuf_add(out, "none");
}

static void print_value(const CcGraph *g, int v, CcSbuf *out) {
    cc_sbuf_add(out, "%%%d : ", v);
    print_type(&g->val.at[v].type, out);
    static const char *const FROZEN[] = {"", " frozen", " cast once", " frozen, cast once"};
    cc_sbuf_add(out, "%s", FROZEN[g->val.at[v].frozen]);
    if (g->val.at[v].is_output) cc_sbuf_add(out, " out");
}

static void print_node(const CcGraph *g, const CcNode *n, CcSbuf *out) {
    for (int i = 0; i < n->n_out; i++) {
        if (i) cc_sbuf_add(out, ", ");
        print_value(g, n->out0 + i, out);
    }
    cc_sbuf_add(out, "%s%s(", n->n_out ? " = " : "", cc_op_info((CcOpId)n->op)->name);
    for (int i = 0; i < n->n_in; i++) {
        if (i) cc_sbuf_add(out, ", ");
        print_operand(&g->operand.at[n->in0 + i], out);
    }
    cc_sbuf_add(out, ") #%d", n->host);
    if (n->flags & CC_N_WRITES) cc_sbuf_add(out, " writes");
    if (n->flags & CC_N_RANDOM) cc_sbuf_add(out, " random");
    if (n->flags & CC_N_EFFECT) cc_sbuf_add(out, " effect");
    cc_sbuf_add(out, "\n");
}

void cc_graph_print(const CcGraph *g, CcSbuf *out) {
    for (int i = 0; i < g->val.n; i++)
        if (g->val.at[i].def < 0) {
            print_value(g, i, out);
            cc_sbuf_add(out, "\n");
        }
    for (int i = 0; i < g->node.n; i++) print_node(g, &g->node.at[i], out);
}
