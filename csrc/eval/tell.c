/* Events that describe new segments and plans. They are made only for a listener that wants them. */
#include "eval_int.h"

/* "forward, segment 2" */
static void add_name(const CcSegment *s, CcSbuf *out) {
    cc_sbuf_add(out, "%s, segment %d", cc_root_name(s->root), s->id);
}

static void tell(const CcSegment *s, CcEventKind kind, const CcSbuf *head, const CcSbuf *detail) {
    const CcTrace *t = s->trace;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    const char *file = t->start.library != NULL ? NULL : PyUnicode_AsUTF8(t->start.file);
    PyErr_Restore(type, value, tb); /* also if the path has surrogates */
    const CcLogExtra extra = {.file = file, .line = file != NULL ? t->start.line : 0, .detail = cc_sbuf_text(detail)};
    CcSbuf name = {0};
    add_name(s, &name);
    cc_log_more(kind, extra, "%s: %s", cc_sbuf_text(&name), cc_sbuf_text(head));
    cc_sbuf_free(&name);
}

static void tell_graph(const CcSegment *s) {
    CcSbuf head = {0}, text = {0};
    cc_sbuf_add(&head, "%d ops", s->trace->ops);
    cc_graph_print(s->trace->graph, &text);
    tell(s, CC_LOG_GRAPH, &head, &text);
    cc_sbuf_free(&head);
    cc_sbuf_free(&text);
}

static void tell_guards(const CcSegment *s) {
    const CcTrace *t = s->trace;
    CcSbuf head = {0}, text = {0};
    cc_sbuf_add(&head, "%d guards", t->guards.g.n);
    for (int i = 0; i < t->guards.g.n; i++) {
        if (t->guards.g.at[i].check == CC_CHK_NONE || t->guards.g.at[i].check == CC_CHK_ANY) continue;
        cc_guard_text(&t->guards, i, &text);
        cc_sbuf_add(&text, "\n");
    }
    tell(s, CC_LOG_GUARDS, &head, &text);
    cc_sbuf_free(&head);
    cc_sbuf_free(&text);
}

void cc_tell_segment(const CcSegment *s) {
    if (cc_log_wants(CC_LOG_GRAPH)) tell_graph(s);
    if (cc_log_wants(CC_LOG_GUARDS)) tell_guards(s);
}

static void tell_fusion(const CcSegment *s, const CcPlan *plan, const CcPlanStats *stats) {
    CcSbuf head = {0}, text = {0};
    cc_sbuf_add(&head, "%d ops in %d kernels and %d library calls, %d ops run through torch", stats->fused_nodes,
                stats->kernels, stats->primitives, stats->host_steps);
    cc_run_print_fused(plan, &text);
    tell(s, CC_LOG_FUSION, &head, &text);
    cc_sbuf_free(&head);
    cc_sbuf_free(&text);
}

static void tell_schedule(const CcSegment *s, const CcShape *shape, const CcPlanStats *stats) {
    CcSbuf head = {0}, text = {0};
    cc_sbuf_add(&head, "%d steps, compiled in %.2f ms", stats->steps, stats->compile_ms);
    if (shape->training != NULL) cc_training_print(shape->training, &text);
    else cc_run_print(shape->plan, &text);
    tell(s, CC_LOG_SCHEDULE, &head, &text);
    cc_sbuf_free(&head);
    cc_sbuf_free(&text);
}

static void tell_code(const CcSegment *s, const CcPlan *plan, const CcPlanStats *stats) {
    CcSbuf head = {0}, text = {0};
    cc_sbuf_add(&head, "%d kernels", stats->kernels);
    cc_run_print_code(plan, &text);
    tell(s, CC_LOG_CODE, &head, &text);
    cc_sbuf_free(&head);
    cc_sbuf_free(&text);
}

/* One line per op, with the line of the user's code. */
static void tell_hosted(const CcSegment *s, const CcShape *shape, const CcPlanStats *stats) {
    const CcTrace *t = s->trace;
    CcSbuf head = {0}, text = {0};
    cc_sbuf_add(&head, "%d of %d ops run through torch%s", stats->host_steps, t->ops,
                s->options.host_only && t->needs_grad ? ", as autograd records them" : "");
    for (int step = 0, n; (n = cc_run_hosted(shape->plan, &step)) >= 0;) {
        const int action = t->graph->node.at[n].host;
        if (action < 0) continue;
        cc_sbuf_add(&text, "%s, line %d\n", t->node.at[action].name, cc_action_line(&t->node.at[action]));
    }
    tell(s, CC_LOG_HOSTED, &head, &text);
    cc_sbuf_free(&head);
    cc_sbuf_free(&text);
}

void cc_tell_plan(const CcSegment *s, const CcShape *shape) {
    CcPlanStats stats;
    cc_run_stats(shape->plan, &stats);
    if (cc_log_wants(CC_LOG_FUSION) && stats.fused_nodes > 0) tell_fusion(s, shape->plan, &stats);
    if (cc_log_wants(CC_LOG_SCHEDULE)) tell_schedule(s, shape, &stats);
    if (cc_log_wants(CC_LOG_CODE) && stats.kernels > 0) tell_code(s, shape->plan, &stats);
    if (cc_log_wants(CC_LOG_HOSTED) && shape->training == NULL && stats.host_steps > 0) tell_hosted(s, shape, &stats);
}
