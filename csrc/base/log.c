/* The event ring: the last RING events, and one counter per kind. Reports, counters and CCOMPILE_LOG=1 share its
 * rows. */
#include "base.h"

#include <pthread.h>
#include <time.h>

enum { RING = 1024 };

static struct {
    pthread_mutex_t lock;
    CcLogEvent ring[RING];
    uint64_t serial, count[CC_LOG_COUNT];
    int echo; /* -1: the environment has not been read yet */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .echo = -1};

uint64_t cc_log_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

const char *cc_log_name(CcEventKind kind) {
    static const char *const names[] = {
#define CC_EVENT(id, name) name,
#include "event.def"
#undef CC_EVENT
    };
    return (unsigned)kind < CC_LOG_COUNT ? names[kind] : "unknown";
}

void cc_log_add(CcEventKind kind, const char *fmt, ...) {
    pthread_mutex_lock(&state.lock);
    if (state.echo < 0) {
        const char *v = getenv("CCOMPILE_LOG");
        state.echo = v != NULL && *v != '\0' && strcmp(v, "0") != 0;
    }
    state.count[kind]++;
    CcLogEvent *e = &state.ring[state.serial++ % RING];
    e->kind = kind;
    e->serial = state.serial;
    e->time_ns = cc_log_now_ns();
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);
    if (state.echo) fprintf(stderr, "ccompile: %s: %s\n", cc_log_name(kind), e->text);
    pthread_mutex_unlock(&state.lock);
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
