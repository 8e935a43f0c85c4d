/* Reasons for breaking or giving up a recording, and sites: the instructions at which the next recording must break. */
#include "rec_int.h"

static const struct {
    const char *name, *why, *advice;
} reasons[] = {
#define CC_REASON(id, name, why, advice) {name, why, advice},
#include "breaks.def"
#undef CC_REASON
};

static const struct {
    CcReason reason;
    const char *what, *before, *after;
} rewrites[] = {
#define CC_REASON(...)
#define CC_REWRITE(reason, what, before, after) {CC_R_##reason, what, before, after},
#include "breaks.def"
#undef CC_REASON
};

bool cc_break_rewrite(const CcBreakInfo *info, int *row, const char **before, const char **after) {
    const char *dot = info->what != NULL ? strrchr(info->what, '.') : NULL;
    const char *last = dot != NULL ? dot + 1 : info->what != NULL ? info->what : "";
    while (*row < CC_COUNT(rewrites)) {
        const int i = (*row)++;
        if (rewrites[i].reason != info->reason) continue;
        if (*rewrites[i].what != '\0' && strcmp(rewrites[i].what, last) != 0) continue;
        *before = rewrites[i].before;
        *after = rewrites[i].after;
        return true;
    }
    return false;
}

const struct CcPlace *cc_break_place(const CcBreakInfo *info) {
    for (int i = info->n_stack - 1; i >= 0; i--)
        if (info->stack[i].library == NULL) return &info->stack[i];
    return info->n_stack > 0 ? &info->stack[info->n_stack - 1] : NULL;
}

const char *cc_reason_name(CcReason r) { return reasons[r].name; }
const char *cc_reason_advice(CcReason r) { return reasons[r].advice; }

void cc_break_clear(CcBreakInfo *info) {
    free(info->text);
    free(info->what);
    for (int i = 0; i < info->n_stack; i++) {
        Py_CLEAR(info->stack[i].file);
        Py_CLEAR(info->stack[i].function);
    }
    free(info->stack);
    *info = (CcBreakInfo){0};
}

void cc_break_copy(CcBreakInfo *to, const CcBreakInfo *from) {
    if (to == from) return;
    cc_break_clear(to);
    *to = *from;
    to->text = from->text != NULL ? cc_mem_text(from->text) : NULL;
    to->what = from->what != NULL ? cc_mem_text(from->what) : NULL;
    to->stack = cc_mem_get(((size_t)from->n_stack + 1) * sizeof *to->stack);
    for (int i = 0; i < from->n_stack; i++) {
        to->stack[i] = from->stack[i];
        Py_INCREF(to->stack[i].file);
        Py_INCREF(to->stack[i].function);
    }
}

void cc_break_text(const CcBreakInfo *info, CcSbuf *out) {
    cc_sbuf_add(out, "reason: %s\n", cc_reason_name(info->reason));
    for (int i = 0; i < info->n_stack; i++) {
        const char *file = PyUnicode_AsUTF8(info->stack[i].file), *function = PyUnicode_AsUTF8(info->stack[i].function);
        cc_raised_clear(); /* a name has surrogates */
        cc_sbuf_add(out, "at %s:%d in %s\n", file != NULL ? file : "?", info->stack[i].line,
                    function != NULL ? function : "?");
    }
    if (*cc_reason_advice(info->reason) != '\0') cc_sbuf_add(out, "what to do: %s\n", cc_reason_advice(info->reason));
}

/* Source positions, not instructions: CPython 3.12 compiles a loop's condition twice. */
static uint64_t site_of(const CcAct *act) {
    int line = 0, column = 0, end_line = 0, end_column = 0;
    if (act == NULL) return 0;
    if (!PyCode_Addr2Location(act->co, act->code->insn[act->pc].real * 2, &line, &column, &end_line, &end_column))
        line = act->pc;
    const uint64_t words[] = {(uintptr_t)act->co, (uint64_t)line, (uint64_t)column, (uint64_t)end_line,
                              (uint64_t)end_column};
    return cc_map_hash(words, sizeof words, 0);
}

struct CcPlace cc_site_place(const CcAct *act, int line) {
    return (struct CcPlace){Py_NewRef(act->co->co_filename), Py_NewRef(act->co->co_qualname), line,
                            cc_rec_library(act)};
}

void cc_site_why(CcRec *rec, const CcAct *act, CcReason reason, const char *what) {
    cc_break_clear(&rec->why);
    rec->why.reason = reason;
    rec->sites->addresses = rec->sites->addresses || reason == CC_R_ADDRESS;
    char text[400];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, reasons[reason].why, what != NULL ? what : "");
#pragma GCC diagnostic pop
    rec->why.text = cc_mem_text(text);
    rec->why.what = what != NULL ? cc_mem_text(what) : NULL;
    int n = 0;
    for (const CcAct *a = act; a != NULL; a = a->prev) n++;
    rec->why.stack = cc_mem_get(((size_t)n + 1) * sizeof *rec->why.stack);
    rec->why.n_stack = n;
    rec->why.site = site_of(act);
    for (const CcAct *a = act; a != NULL; a = a->prev)
        rec->why.stack[--n] = cc_site_place(a, cc_code_line(a->code, a->pc));
}

void cc_sites_cut(CcSites *sites, int n) {
    while (sites->at.n > n) {
        struct CcSite *last = &sites->at.at[--sites->at.n];
        Py_CLEAR(last->co);
        cc_break_clear(&last->why);
    }
}

void cc_sites_free(CcSites *sites) {
    cc_sites_cut(sites, 0);
    sites->tracebacks = sites->addresses = false;
    cc_vec_free(&sites->at);
}

const struct CcSite *cc_site_find(const CcSites *sites, const CcAct *act) {
    for (int i = 0; i < sites->at.n; i++)
        if (sites->at.at[i].co == act->co && sites->at.at[i].pc == act->pc) return &sites->at.at[i];
    return NULL;
}

bool cc_site_mark(CcRec *rec, PyCodeObject *co, int pc) {
    for (int i = 0; i < rec->sites->at.n; i++)
        if (rec->sites->at.at[i].co == co && rec->sites->at.at[i].pc == pc) return false;
    struct CcSite site = {.co = (PyCodeObject *)Py_NewRef((PyObject *)co), .pc = pc};
    cc_break_copy(&site.why, &rec->why);
    cc_vec_push(&rec->sites->at, site);
    return true;
}

bool cc_site_made(CcRec *rec) {
    const CcProv *p = cc_value_find(rec, rec->unbuildable);
    if (p != NULL && p->site_co != NULL) return cc_site_mark(rec, p->site_co, p->site_pc);
    PyCodeObject *co = p != NULL && PyGen_CheckExact(rec->unbuildable) ? cc_generator_now(rec->unbuildable).co : NULL;
    return co != NULL && cc_site_mark(rec, co, CC_SITE_ADOPTION);
}

bool cc_site_may_adopt(const CcRec *rec, const PyCodeObject *generator) {
    for (int i = 0; i < rec->sites->at.n; i++)
        if (rec->sites->at.at[i].co == generator && rec->sites->at.at[i].pc == CC_SITE_ADOPTION) return false;
    return true;
}

void cc_site_before(CcRec *rec, int level) {
    if (cc_site_made(rec)) return;
    for (int i = level - 1; i >= 0; i--)
        if (cc_site_mark(rec, rec->frame.at[i].act->co, rec->frame.at[i].act->pc)) return;
}

bool cc_site_copy(CcRec *rec) {
    for (int i = 1; i < rec->frame.n; i++) {
        const CcAct *act = rec->frame.at[i].act, *caller = rec->frame.at[i - 1].act;
        if (cc_rec_in_module(act, "copy") && PyUnicode_CompareWithASCIIString(act->co->co_name, "deepcopy") == 0)
            return cc_site_mark(rec, caller->co, caller->pc);
    }
    return false;
}
