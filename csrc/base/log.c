/* The event ring: the last RING events, and one counter per kind. Reports and counters read it. Events of kinds that a
 * listener wants are also queued, unabridged, until it takes them: it runs Python, which events may not, as they occur
 * in the middle of recordings and while locks are held. */
#include "base.h"

#include <pthread.h>
#include <time.h>

enum { RING = 1024 };

static struct {
    pthread_mutex_t lock;
    CcLogEvent ring[RING];
    uint64_t serial, count[CC_LOG_COUNT];
    CC_VEC(CcLogNews) queue;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t cc_log_wanted;
bool cc_log_pending;

static const struct {
    const char *name, *topic;
    int level;
} KIND[] = {
#define CC_EVENT(id, name, topic, level) {name, topic, level},
#include "event.def"
#undef CC_EVENT
};
_Static_assert(CC_LOG_COUNT <= 64, "cc_log_wanted has a bit for each kind");

uint64_t cc_log_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

const char *cc_log_name(CcEventKind kind) { return (unsigned)kind < CC_LOG_COUNT ? KIND[kind].name : "unknown"; }
const char *cc_log_topic(CcEventKind kind) { return KIND[kind].topic; }
int cc_log_level(CcEventKind kind) { return KIND[kind].level; }

/* The end of a path that is too long tells more than its beginning. */
static void keep_path(CcLogEvent *e, const char *file) {
    const size_t n = file != NULL ? strlen(file) : 0, most = sizeof e->file - 1;
    const char *from = file != NULL ? file + (n > most ? n - most : 0) : "";
    while (((unsigned char)*from & 0xC0) == 0x80) from++; /* the rest of a UTF-8 character */
    snprintf(e->file, sizeof e->file, "%s", from);
}

static void add(CcEventKind kind, const CcLogExtra *extra, const char *fmt, va_list args) {
    CcSbuf text = {0};
    cc_sbuf_vadd(&text, fmt, args);
    pthread_mutex_lock(&state.lock);
    state.count[kind]++;
    CcLogEvent *e = &state.ring[state.serial++ % RING];
    *e = (CcLogEvent){.kind = kind, .serial = state.serial, .time_ns = cc_log_now_ns(), .line = extra->line};
    e->start_ns = extra->start_ns ? extra->start_ns : e->time_ns;
    keep_path(e, extra->file);
    snprintf(e->text, sizeof e->text, "%s", cc_sbuf_text(&text));
    cc_sbuf_whole(e->text);
    if (cc_log_wants(kind)) {
        CcLogNews news = {.event = *e, .text = cc_mem_text(cc_sbuf_text(&text))};
        if (extra->detail) news.detail = cc_mem_text(extra->detail);
        cc_vec_push(&state.queue, news);
        cc_log_pending = true;
    }
    if (cc_span_on & CC_SPANS_TIMELINE) cc_timeline_event(e, e->text);
    pthread_mutex_unlock(&state.lock);
    cc_sbuf_free(&text);
}

void cc_log_add(CcEventKind kind, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    add(kind, &(CcLogExtra){0}, fmt, args);
    va_end(args);
}

void cc_log_more(CcEventKind kind, CcLogExtra extra, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    add(kind, &extra, fmt, args);
    va_end(args);
}

int cc_log_take(CcLogNews **news) {
    pthread_mutex_lock(&state.lock);
    const int n = state.queue.n;
    *news = state.queue.at;
    memset(&state.queue, 0, sizeof state.queue);
    cc_log_pending = false;
    pthread_mutex_unlock(&state.lock);
    return n;
}

void cc_log_drop(CcLogNews *news, int n) {
    for (int i = 0; i < n; i++) {
        free(news[i].text);
        free(news[i].detail);
    }
    free(news);
}

uint64_t cc_log_count(CcEventKind kind) {
    pthread_mutex_lock(&state.lock);
    const uint64_t n = state.count[kind];
    pthread_mutex_unlock(&state.lock);
    return n;
}

int cc_log_copy(CcLogEvent *out, int max, uint64_t after) {
    pthread_mutex_lock(&state.lock);
    const uint64_t oldest = state.serial > RING ? state.serial - RING : 0;
    int n = 0;
    for (uint64_t s = CC_MAX(after, oldest); s < state.serial && n < max; s++) out[n++] = state.ring[s % RING];
    pthread_mutex_unlock(&state.lock);
    return n;
}

void cc_log_reset(void) {
    pthread_mutex_lock(&state.lock);
    memset(state.count, 0, sizeof state.count);
    state.serial = 0;
    pthread_mutex_unlock(&state.lock);
}
