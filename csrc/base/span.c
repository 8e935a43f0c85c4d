/* Spans: stretches of time with a name, from calls down to single kernels. The timeline writes them to a file; the
 * front end's ranges show them in torch's profiler. */
#include "base.h"

unsigned cc_span_on;

static CcSpanRanges ranges;

void cc_span_set_ranges(const CcSpanRanges *made) { ranges = *made; }

const char *cc_span_name(CcSpanKind kind) {
    static const char *const names[] = {
#define CC_SPAN(id, name) name,
#include "span.def"
#undef CC_SPAN
    };
    return names[kind];
}

void cc_span_open(CcSpan *s, CcSpanKind kind, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->name, sizeof s->name, fmt, args);
    va_end(args);
    cc_sbuf_whole(s->name);
    s->kind = kind;
    s->range = NULL;
    if (cc_span_on & CC_SPANS_PROFILER) {
        char full[sizeof s->name + 32];
        snprintf(full, sizeof full, "ccompile::%s %s", cc_span_name(kind), s->name);
        s->range = ranges.enter(full);
    }
    s->start_ns = cc_log_now_ns();
}

void cc_span_end(CcSpan *s) {
    if (cc_span_on & CC_SPANS_TIMELINE) cc_timeline_span(cc_span_name(s->kind), s->name, s->start_ns, cc_log_now_ns());
    if (s->range) ranges.leave(s->range);
    s->start_ns = 0;
}
