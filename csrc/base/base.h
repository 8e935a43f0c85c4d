/* base: what both halves build on: arena, growable array, pointer map, string buffer, error value, event ring. Knows
 * nothing of Python or torch. Every function may be called without the GIL. Threads share no object defined here except
 * the event ring and the table of tracked pages, which take their own locks. */
#ifndef CC_BASE_H
#define CC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CC_MUST __attribute__((warn_unused_result))
#define CC_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
/* Ownership marks, read by people and by the lint test: the result is a new or a borrowed reference; argument i is
 * stolen. */
#define CC_NEW
#define CC_BORROW
#define CC_STEAL(i)

#define CC_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define CC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CC_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Debug level: 0 release, 1 asserts and poisoned memory, 2 also verifiers between stages. */
#ifndef CC_DEBUG
#    define CC_DEBUG 0
#endif
#if CC_DEBUG >= 1
#    define CC_ASSERT(cond)                                                                                            \
        do {                                                                                                           \
            if (!(cond)) cc_base_assert_failed(#cond, __FILE__, __LINE__);                                             \
        } while (0)
#else
#    define CC_ASSERT(cond) ((void)0)
#endif
void cc_base_assert_failed(const char *cond, const char *file, int line);
/* Reports that a debug build's verifier found a broken invariant, then aborts: `where` names the stage, `what` the
 * violation, `text` the graph or nest. */
void cc_base_verify_failed(const char *where, const char *what, const char *text);

/* ---- err.def, err.c: errors of the core half are values, never exceptions ---- */
typedef enum CcStatus {
#define CC_ERR(id, text) CC_E_##id,
#include "err.def"
#undef CC_ERR
    CC_E_COUNT
} CcStatus;

typedef struct CcErr {
    CcStatus status; /* CC_E_OK when no error is set */
    char text[232];  /* what failed, where, and what to do about it; empty when OK */
} CcErr;

/* Sets *err (which may be NULL) and returns -1, so that `return cc_err_set(...)` reads well. */
int cc_err_set(CcErr *err, CcStatus status, const char *fmt, ...) CC_PRINTF(3, 4);

/* ---- mem.c: small allocations that callers have no way to do without; limits on traces bound their size ---- */
void *cc_mem_get(size_t n);            /* zeroed; never NULL */
void *cc_mem_grow(void *at, size_t n); /* as realloc; never NULL */
char *cc_mem_text(const char *text);   /* a copy; never NULL */
/* To be called when an allocation failed. Releases the reserve; true: memory is available again, so the caller
 * retries. */
bool cc_mem_release_reserve(void);
bool cc_mem_low(void);         /* the reserve was needed since the last cc_mem_reserve */
bool cc_mem_reserve(void);     /* sets the reserve aside: at start-up, and after memory was low; false: out of memory */
int64_t cc_mem_resident(void); /* bytes of this process that are in RAM; 0: unknown */
_Noreturn void cc_mem_exhausted(const char *what);

/* ---- arena.c: all memory of one compilation, freed at once ---- */
typedef struct CcArena CcArena;
CcArena *cc_arena_new(void);                    /* NULL when out of memory */
void cc_arena_free(CcArena *arena);             /* NULL is allowed; contents are poisoned in debug builds */
void *cc_arena_alloc(CcArena *arena, size_t n); /* zeroed, 16-byte aligned; NULL when out of memory */

/* ---- a typed growable array: CC_VEC(int) v = {0}; cc_vec_push(&v, 3); cc_vec_free(&v); ---- */
#define CC_VEC(T)                                                                                                      \
    struct {                                                                                                           \
        T *at;                                                                                                         \
        int n, cap;                                                                                                    \
    }
/* Grows by doubling (cc_mem_grow). */
void *cc_vec_grow(void *at, int *cap, int need, size_t item);
#define cc_vec_reserve(v, need)                                                                                        \
    ((void)((need) > (v)->cap ? ((v)->at = cc_vec_grow((v)->at, &(v)->cap, (need), sizeof *(v)->at)) : NULL))
#define cc_vec_push(v, ...) (cc_vec_reserve(v, (v)->n + 1), (void)((v)->at[(v)->n++] = (__VA_ARGS__)))
#define cc_vec_copy(to, from) /* `to` must be empty */                                                                 \
    (cc_vec_reserve(to, (from)->n),                                                                                    \
     (void)((from)->n ? memcpy((to)->at, (from)->at, sizeof *(to)->at * (size_t)(from)->n) : NULL),                    \
     (void)((to)->n = (from)->n))
#define cc_vec_last(v) ((v)->at[(v)->n - 1])
#define cc_vec_free(v) (free((v)->at), (v)->at = NULL, (v)->n = (v)->cap = 0)

/* ---- map.c: hash table with open addressing: non-NULL pointer (or any non-zero word) -> 64-bit value ---- */
typedef struct CcMap {
    struct CcMapSlot {
        const void *key;
        int64_t value;
    } *slot;
    int n, cap, shift; /* entries; capacity, a power of two; 64 - log2(capacity) */
} CcMap;
/* NULL when absent; valid until the next put or removal */
int64_t *cc_map_find(const CcMap *map, const void *key);
void cc_map_put(CcMap *map, const void *key, int64_t value); /* inserts or replaces */
bool cc_map_remove(CcMap *map, const void *key);
void cc_map_free(CcMap *map);

uint64_t cc_map_hash(const void *bytes, size_t n, uint64_t seed); /* over 64-bit words; keys structural caches */

/* ---- sbuf.c: a growing string ---- */
typedef struct CcSbuf {
    char *text; /* always NUL-terminated once something was added, else NULL */
    size_t n, cap;
} CcSbuf;
void cc_sbuf_add(CcSbuf *sb, const char *fmt, ...) CC_PRINTF(2, 3);
void cc_sbuf_vadd(CcSbuf *sb, const char *fmt, va_list args);
const char *cc_sbuf_text(const CcSbuf *sb); /* "" when empty */
void cc_sbuf_free(CcSbuf *sb);
/* Cuts the rest of a UTF-8 character off the end of a text that was cut to a number of bytes. */
void cc_sbuf_whole(char *text);

/* ---- io.c: transfers all n bytes; false: end of file, or an error ---- */
bool cc_io_read(int fd, void *at, size_t n);
bool cc_io_write(int fd, const void *at, size_t n);

/* ---- pages.c: advice to the kernel about memory ---- */
/* asks for huge pages; only a hint, the kernel may not have any */
void cc_pages_advise_huge(void *at, size_t bytes);
void cc_pages_trim(void); /* returns malloc's unused memory to the kernel */

/* ---- written.c: has memory been written to? Ranges consist of whole pages; any thread may ask ---- */
bool cc_written_supported(void); /* whether this kernel can track writes; if not, every range counts as written */
/* Starts tracking writes to the range, for all callers at once, and forgets earlier ones. -1: the range can't be
 * tracked. */
CC_MUST int cc_written_begin(const void *at, size_t bytes);
bool cc_written_since(const void *at, size_t bytes); /* true: written since cc_written_begin, or unknown */
/* No other mapping shares these pages; valid only for pages that have been touched. */
bool cc_written_private(const void *at, size_t bytes);
void cc_written_end(const void *at, size_t bytes);

/* ---- log.c: ring of recent events, which reports read; a listener gets them later, unabridged ---- */
typedef enum CcEventKind {
#define CC_EVENT(id, name, topic, level) CC_LOG_##id,
#include "event.def"
#undef CC_EVENT
    CC_LOG_COUNT
} CcEventKind;

typedef struct CcLogEvent {
    CcEventKind kind;
    uint64_t serial;            /* 1, 2, ...: in the order of events */
    uint64_t start_ns, time_ns; /* CLOCK_MONOTONIC; start_ns < time_ns: the event took time, and ended at time_ns */
    int line;                   /* of the user's code; 0: unknown */
    char file[160], text[240];
} CcLogEvent;
typedef struct CcLogExtra { /* all optional */
    uint64_t start_ns;
    const char *file;
    int line;
    const char *detail; /* further lines, for listeners only */
} CcLogExtra;
typedef struct CcLogNews {
    CcLogEvent event;
    char *text, *detail; /* owned; detail may be NULL */
} CcLogNews;

extern uint64_t cc_log_wanted; /* bit `kind`: a listener wants events of this kind */
extern bool cc_log_pending;    /* the listener has events to take */
static inline bool cc_log_wants(CcEventKind kind) { return cc_log_wanted >> kind & 1; }
void cc_log_add(CcEventKind kind, const char *fmt, ...) CC_PRINTF(2, 3);
void cc_log_more(CcEventKind kind, CcLogExtra extra, const char *fmt, ...) CC_PRINTF(3, 4);
int cc_log_take(CcLogNews **news); /* the number of queued events, oldest first, which cc_log_drop frees */
void cc_log_drop(CcLogNews *news, int n);
uint64_t cc_log_count(CcEventKind kind);                   /* since process start or cc_log_reset */
int cc_log_copy(CcLogEvent *out, int max, uint64_t after); /* events with serial > after, oldest first */
const char *cc_log_name(CcEventKind kind);
const char *cc_log_topic(CcEventKind kind);
int cc_log_level(CcEventKind kind);
void cc_log_reset(void);
uint64_t cc_log_now_ns(void);

/* ---- span.c: stretches of time with a name, for the timeline and torch's profiler ---- */
typedef enum CcSpanKind {
#define CC_SPAN(id, name) CC_SPAN_##id,
#include "span.def"
#undef CC_SPAN
} CcSpanKind;
enum { CC_SPANS_TIMELINE = 1, CC_SPANS_PROFILER = 2 };
extern unsigned cc_span_on; /* who looks, as these bits; 0: nobody, and spans cost a test of this word */

typedef struct CcSpan {
    uint64_t start_ns; /* 0: not open */
    void *range;       /* of CcSpanRanges */
    CcSpanKind kind;
    char name[160];
} CcSpan;
typedef struct CcSpanRanges { /* ranges of torch's profiler; NULL: none was made */
    void *(*enter)(const char *name);
    void (*leave)(void *range);
} CcSpanRanges;
void cc_span_set_ranges(const CcSpanRanges *ranges);
const char *cc_span_name(CcSpanKind kind);
void cc_span_open(CcSpan *s, CcSpanKind kind, const char *fmt, ...) CC_PRINTF(3, 4); /* only if cc_span_on */
void cc_span_end(CcSpan *s);
static inline void cc_span_close(CcSpan *s) {
    if (s->start_ns) cc_span_end(s);
}

/* ---- timeline.c: spans and events as a file in Chrome's trace format ---- */
/* A file, or a folder in which each process writes ccompile-PID.json. -1 with *err set. */
CC_MUST int cc_timeline_open(const char *path, CcErr *err);
void cc_timeline_close(void);
void cc_timeline_span(const char *category, const char *name, uint64_t start_ns, uint64_t end_ns);
void cc_timeline_event(const CcLogEvent *e, const char *text);

/* ---- histogram.c: counts of times by logarithmic buckets ---- */
enum { CC_HISTOGRAM_BUCKETS = 16 * 38 }; /* up to 2^41 ns, 36 minutes */
typedef struct CcHistogram {
    uint64_t n, sum_ns, max_ns, bucket[CC_HISTOGRAM_BUCKETS];
} CcHistogram;
void cc_histogram_add(CcHistogram *h, uint64_t ns);
uint64_t cc_histogram_above(int bucket); /* the least ns above the bucket */

#endif
