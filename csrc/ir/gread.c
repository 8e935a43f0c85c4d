/* gread: parses the text that gtext.c prints, for golden files of passes and graphs in reports. */
#include <ctype.h>

#include "ir.h"

typedef struct Reader {
    const char *at;
    CcGraph *g;
} Reader;

static void spaces(Reader *r) {
    while (*r->at == ' ') r->at++;
}

/* Consumes `s` if it comes next. */
static bool take(Reader *r, const char *text) {
    const size_t n = strlen(text);
    if (strncmp(r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

/* Consumes a whole word after a space. */
static bool word(Reader *r, const char *text) {
    const char *before = r->at;
    spaces(r);
    if (take(r, text) && !isalnum((unsigned char)*r->at)) return true;
    r->at = before;
    return false;
}

static bool number(Reader *r, int64_t *out) {
    char *end;
    *out = strtoll(r->at, &end, 10);
    const bool good = end != r->at;
    r->at = end;
    return good;
}

/* A name of letters, digits and '_'. */
static bool name(Reader *r, char *out, size_t size) {
    size_t n = 0;
    while ((isalnum((unsigned char)*r->at) || *r->at == '_') && n + 1 < size) out[n++] = *r->at++;
    out[n] = 0;
    return n > 0;
}

static bool value_number(Reader *r, int *value) {
    int64_t v;
    if (!take(r, "%") || !number(r, &v) || v < 0 || v > INT32_MAX / 2) return false;
    *value = (int)v;
    return true;
}

static bool dims(Reader *r, int64_t *out, const char *close, int8_t *n) {
    *n = 0;
    while (!take(r, close)) {
        if ((*n && !take(r, ",")) || *n == CC_MAX_DIMS || !number(r, &out[*n])) return false;
        (*n)++;
    }
    return true;
}

static bool type(Reader *r, CcType *t) {
    char dtype[16];
    int64_t device, index;
    *t = (CcType){.device = 1, .dtype = CC_DT_COUNT};
    if (!name(r, dtype, sizeof dtype)) return false;
    for (int i = 0; i < CC_DT_COUNT; i++)
        if (strcmp(cc_dtype_info((CcDtype)i)->name, dtype) == 0) t->dtype = (uint8_t)i;
    if (t->dtype == CC_DT_COUNT || !take(r, "[")) return false;
    if (take(r, "?]")) t->ndim = -1;
    else if (!dims(r, t->size, "]", &t->ndim)) return false;
    int8_t strides = t->ndim;
    if (t->ndim >= 0) cc_type_make_contiguous(t);
    if (take(r, "{") && (!dims(r, t->stride, "}", &strides) || strides != t->ndim)) return false;
    if (take(r, "@")) {
        if (!number(r, &device) || !take(r, ":") || !number(r, &index)) return false;
        t->device = (uint8_t)device;
        t->device_index = (uint8_t)index;
    }
    return true;
}

static CcVal *value_at(CcGraph *g, int value) {
    while (g->val.n <= value) cc_vec_push(&g->val, (CcVal){.def = -1});
    return &g->val.at[value];
}

static bool value(Reader *r, int def, int *made) {
    CcVal v = {.def = def};
    if (!value_number(r, made) || !take(r, " : ") || !type(r, &v.type)) return false;
    for (;;) {
        int64_t offset;
        int base;
        if (word(r, "frozen, cast once")) v.frozen = CC_FROZEN_KEPT;
        else if (word(r, "frozen")) v.frozen = CC_FROZEN;
        else if (word(r, "cast once")) v.frozen = CC_FROZEN_CAST;
        else if (word(r, "changes")) v.changes = true;
        else if (word(r, "grad")) v.type.requires_grad = true;
        else if (word(r, "out")) v.is_output = true;
        else if (word(r, "narrowed")) v.narrowed = true;
        else if (word(r, "channels_last")) v.channels_last = true;
        else if (word(r, "hidden")) v.hidden = true;
        else if (word(r, "scalar")) v.scalar = true;
        else if (word(r, "of")) {
            spaces(r);
            if (!value_number(r, &base) || !number(r, &offset)) return false;
            v.window_of = base + 1;
            v.offset = offset;
        } else break;
    }
    *value_at(r->g, *made) = v;
    return true;
}

/* An int, or a float: it has a '.' or an exponent, or is inf or nan. */
static bool constant(Reader *r, CcOperand *o) {
    char *end;
    const double f = strtod(r->at, &end);
    const size_t n = (size_t)(end - r->at);
    if (!n) return false;
    const bool is_float = strcspn(r->at, ".en") < n;
    *o = (CcOperand){.kind = is_float ? CC_IN_FLOAT : CC_IN_INT, .f = is_float ? f : 0};
    if (!is_float && !number(r, &o->i)) return false;
    r->at = end;
    int64_t from;
    if (take(r, "=size")) o->value = CC_OF_SIZES;
    else if (take(r, "=s")) {
        if (!number(r, &from)) return false;
        o->value = (int32_t)from + 1;
    }
    return true;
}

static bool operand(Reader *r, CcOperand *o) {
    int64_t i;
    *o = (CcOperand){.kind = CC_IN_NONE};
    if (*r->at == '%') {
        o->kind = CC_IN_VALUE;
        return value_number(r, &o->value);
    }
    if (take(r, "none")) return true;
    if (take(r, "true") || take(r, "false")) {
        *o = (CcOperand){.kind = CC_IN_BOOL, .i = r->at[-2] == 'u'};
        return true;
    }
    if (*r->at == 's') {
        r->at++;
        *o = (CcOperand){.kind = CC_IN_NUMBER};
        if (!number(r, &i)) return false;
        o->value = (int32_t)i;
        return true;
    }
    return constant(r, o);
}

/* Skips an operand's `name=`, if any: position alone identifies operands. */
static void operand_name(Reader *r) {
    const char *before = r->at;
    char text[48];
    if (!isalpha((unsigned char)*r->at) || !name(r, text, sizeof text) || !take(r, "=")) r->at = before;
}

static bool operands(Reader *r, CcNode *n) {
    CcOperand o;
    n->in0 = r->g->operand.n;
    while (!take(r, ")")) {
        if (n->n_in && !take(r, ", ")) return false;
        operand_name(r);
        (void)take(r, "[");
        if (!operand(r, &o)) return false;
        (void)take(r, "]");
        cc_vec_push(&r->g->operand, o);
        n->n_in++;
    }
    return true;
}

static bool node_words(Reader *r, CcNode *n) {
    int64_t i;
    for (;;) {
        if (word(r, "writes")) n->flags |= CC_N_WRITES;
        else if (word(r, "random")) n->flags |= CC_N_RANDOM;
        else if (word(r, "effect")) n->flags |= CC_N_EFFECT;
        else if (word(r, "checked")) n->flags |= CC_N_CHECKED;
        else if (word(r, "repeatable")) n->repeatable = true;
        else if (word(r, "kept")) n->kept = true;
        else if (word(r, "uncounted")) n->uncounted = true;
        else if (word(r, "rewritten")) n->rewritten = true;
        else if (word(r, "from")) {
            spaces(r);
            if (!number(r, &i)) return false;
            n->origin = (int32_t)i;
        } else return true;
    }
}

static bool node(Reader *r, CcNode n) {
    char op[48];
    int64_t host;
    if (!name(r, op, sizeof op) || !take(r, "(")) return false;
    n.op = (uint16_t)cc_op_find(op);
    if (n.op == CC_OP_host && strcmp(op, "host") != 0) return false;
    if (!operands(r, &n) || !take(r, " #") || !number(r, &host)) return false;
    n.host = (int32_t)host;
    if (!node_words(r, &n)) return false;
    cc_vec_push(&r->g->node, n);
    return true;
}

/* Reads a value line, or a node line with its results. */
static bool line(Reader *r) {
    CcNode n = {.origin = r->g->node.n};
    int made;
    if (*r->at != '%') return node(r, n);
    const char *begin = r->at;
    if (!value(r, r->g->node.n - 1, &made)) return false;
    if (*r->at == '\n') return true;
    r->at = begin;
    do {
        if (!value(r, r->g->node.n, &made)) return false;
        if (!n.n_out) n.out0 = made;
        if (made != n.out0 + n.n_out) return false; /* results have consecutive numbers */
        n.n_out++;
    } while (take(r, ", "));
    return take(r, " = ") && node(r, n);
}

CcGraph *cc_graph_read(const char *text, CcErr *err) {
    Reader r = {.at = text, .g = cc_graph_new()};
    int status = 0;
    for (int i = 1; *r.at && status == 0; i++)
        if (!line(&r) || !take(&r, "\n"))
            status = cc_err_set(err, CC_E_VERIFY, "line %d: cannot parse '%.40s'", i, r.at);
    for (int i = 0; i < r.g->operand.n && status == 0; i++) {
        const CcOperand *o = &r.g->operand.at[i];
        if (o->kind == CC_IN_VALUE && o->value >= r.g->val.n)
            status = cc_err_set(err, CC_E_VERIFY, "no value %%%d exists", o->value);
    }
    if (status == 0 && cc_graph_check_windows(r.g, err) == 0) return r.g;
    cc_graph_free(r.g);
    return NULL;
}
