/* order: runs all passes in order. Debug builds verify the graph after each rewrite and each pass. */
#include "pass.h"

static const struct {
    const char *name;
    void (*rewrite)(CcGraph *g, const CcGroupRules *rules);
} PASS[] = {
#define CC_PASS(name, doc) {#name, cc_##name##_rewrite},
#include "pass.def"
#undef CC_PASS
};

static int refuse(const char *name, int n, CcErr *err) {
    CcSbuf all = {0};
    for (int i = 0; i < CC_COUNT(PASS); i++) cc_sbuf_add(&all, " %s", PASS[i].name);
    const int status = cc_err_set(err, CC_E_UNSUPPORTED, "unknown pass '%.*s'; the passes are%s", n, name, all.text);
    cc_sbuf_free(&all);
    return status;
}

unsigned cc_order_skipped(const char *names, CcErr *err) {
    unsigned skipped = 0;
    for (const char *at = names; at && *at;) {
        const size_t n = strcspn(at, ", ");
        int pass = 0;
        while (pass < CC_COUNT(PASS) && (strlen(PASS[pass].name) != n || memcmp(PASS[pass].name, at, n) != 0)) pass++;
        if (pass < CC_COUNT(PASS)) skipped |= 1U << pass;
        else if (n) (void)refuse(at, (int)n, err);
        at += n + (at[n] != 0);
    }
    return skipped;
}

static void verify(const CcGraph *g, const char *pass) {
    CcErr err = {0};
    CcSbuf text = {0};
    bool *live = cc_mem_get((size_t)g->node.n + 1);
    cc_dce_mark(g, live);
    if (cc_graph_check_rewritten(g, live, &err) < 0) {
        cc_graph_print(g, &text);
        cc_base_verify_failed(pass, err.text, cc_sbuf_text(&text));
    }
    free(live);
}

void cc_order_rewrite(CcGraph *g, const CcGroupRules *rules) {
    cc_edit_settle(g);
    for (int i = 0; i < CC_COUNT(PASS); i++) {
        if (rules->skipped >> i & 1) continue;
        CcSpan span = {.start_ns = 0};
        if (cc_span_on) cc_span_open(&span, CC_SPAN_PASS, "%s", PASS[i].name);
        PASS[i].rewrite(g, rules);
        cc_edit_settle(g);
        cc_span_close(&span);
        if (CC_DEBUG >= 2) verify(g, PASS[i].name);
    }
}
