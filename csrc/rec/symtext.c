/* Symbolic steps as text, for reports and recompile events: "s2 = s0 * 2", "s1 > 32 is True". */
#include "rec_int.h"

static void add_number(PyObject *o, CcSbuf *out) {
    PyObject *s = Py_TYPE(o)->tp_repr(o); /* PyObject_Repr handles signals, whose exceptions would be lost here */
    if (s == NULL) cc_raised_clear();
    cc_sbuf_add(out, "%.80s", s != NULL ? PyUnicode_AsUTF8(s) : "?");
    Py_XDECREF(s);
}

static void add_recipe(const CcTrace *t, int recipe, CcSbuf *out) {
    const CcRecipe *r = &t->recipes.r.at[recipe];
    switch ((CcMake)r->make) {
    case CC_MAKE_SYMBOL: cc_sbuf_add(out, "s%d", r->id); return;
    case CC_MAKE_VALUE: cc_sbuf_add(out, "%%%d", r->id); return;
    case CC_MAKE_CONST: add_number(r->object, out); return;
    case CC_MAKE_SOURCE: cc_guard_source_text(&t->guards, r->id, out); return;
    default: break;
    }
    for (int i = 0; i < r->n; i++) {
        cc_sbuf_add(out, i > 0 ? ", " : "(");
        add_recipe(t, t->recipes.kid.at[r->kid0 + i], out);
    }
    cc_sbuf_add(out, ")");
}

static const char *operator_text(const CcAction *a) {
    static const char *const compare[] = {"<", "<=", "==", "!=", ">", ">="};
    static const char *const binop[CC_NB_COUNT] = {"+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"};
    return a->form == CC_F_COMPARE ? compare[a->arg] : a->form == CC_F_BINOP ? binop[a->arg] : NULL;
}

void cc_symtext_step(const CcTrace *t, int step, CcSbuf *out) {
    const CcSymStep *s = &t->step.at[step];
    const CcAction *a = &s->action;
    for (int i = 0; i < s->n; i++) cc_sbuf_add(out, "%ss%d", i > 0 ? ", " : "", s->symbol0 + i);
    if (s->n > 0) cc_sbuf_add(out, " = ");
    const char *between = operator_text(a);
    if (between == NULL && a->form != CC_F_UNARY) cc_sbuf_add(out, "%s(", a->name);
    if (a->form == CC_F_UNARY && a->arg != '+') cc_sbuf_add(out, "%c", a->arg);
    for (int i = 0; i < a->n; i++) {
        if (i > 0) cc_sbuf_add(out, between != NULL ? " %s " : ", ", between);
        add_recipe(t, t->args.at[a->args0 + i], out);
    }
    if (between == NULL && a->form != CC_F_UNARY) cc_sbuf_add(out, ")");
    if (s->same > 0) cc_sbuf_add(out, " returns its operand");
    if (s->want == NULL) return;
    cc_sbuf_add(out, " is ");
    add_number(s->want, out);
}
