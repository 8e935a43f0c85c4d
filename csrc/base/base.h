/* base: what both halves stand on. Arena, growable array, pointer map, string buffer, error value, event ring.
 * Assumes nothing of Python or torch. All functions are safe to call without the GIL; no object here is shared
 * between threads except the event ring, which takes its own lock. */
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
/* Ownership marks, read by people and by the lint test: the result is a new / borrowed reference, argument i is
 * stolen. */
#define CC_NEW
#define CC_BORROW
#define CC_STEAL(i)

#define CC_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define CC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CC_MAX(a, b) ((a) > (b) ? (a) : (b))

/* Debug level: 0 release, 1 asserts, 2 verifiers between stages, 3 shadow runs. */
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
/* A verifier of debug builds met something wrong: what, and of what. */
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
    char text[232];  /* what was wrong, where, what to do; empty when OK */
} CcErr;

/* Sets *err (which may be NULL) and returns -1, so that `return cc_err_set(...)` reads well. */
int cc_err_set(CcErr *err, CcStatus status, const char *fmt, ...) CC_PRINTF(3, 4);

/* ---- mem.c: small memory, bounded by limits of traces, which the caller can't do without ---- */
void *cc_mem_get(size_t n);            /* zeroed; never NULL */
void *cc_mem_grow(void *at, size_t n); /* as realloc; never NULL */
/* An allocation failed: true when there is memory now that was kept for that, and it may be tried again. */
bool cc_mem_relieve(void);
bool cc_mem_low(void);  /* that has happened since the last cc_mem_keep */
bool cc_mem_keep(void); /* once at start-up, and when memory was low; false: there is none */
_Noreturn void cc_mem_lost(const char *what);

/* ---- arena.c: all memory of one compile; freed at once ---- */
typedef struct CcArena CcArena;
CcArena *cc_arena_new(void);                    /* NULL when out of memory */
void cc_arena_free(CcArena *arena);             /* NULL is allowed; contents are poisoned in debug builds */
void *cc_arena_alloc(CcArena *arena, size_t n); /* zeroed, 16-byte aligned; NULL when out of memory */

/* ---- vec.h part: a typed growable array. CC_VEC(int) v = {0}; cc_vec_push(&v, 3); cc_vec_free(&v); ---- */
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
#define cc_vec_copy(to, from) /* to: empty */                                                                          \
    (cc_vec_reserve(to, (from)->n),                                                                                    \
     (void)((from)->n ? memcpy((to)->at, (from)->at, sizeof *(to)->at * (size_t)(from)->n) : NULL),                    \
     (void)((to)->n = (from)->n))
#define cc_vec_last(v) ((v)->at[(v)->n - 1])
#define cc_vec_free(v) (free((v)->at), (v)->at = NULL, (v)->n = (v)->cap = 0)

/* ---- map.c: open addressing from a non-NULL pointer (or any non-zero word) to a 64-bit value ---- */
typedef struct CcMap {
    struct CcMapSlot {
        const void *key;
        int64_t value;
    } *slot;
    int n, cap, shift; /* entries, power of two, 64 - its logarithm */
} CcMap;
/* NULL when absent; valid until the next put or removal */
int64_t *cc_map_find(const CcMap *map, const void *key);
void cc_map_put(CcMap *map, const void *key, int64_t value); /* inserts or replaces */
bool cc_map_remove(CcMap *map, const void *key);
void cc_map_free(CcMap *map);

uint64_t cc_map_hash(const void *bytes, size_t n, uint64_t seed); /* by words, FNV-1a's way: for structural caches */

/* ---- sbuf.c: a growing string ---- */
typedef struct CcSbuf {
    char *text; /* always NUL-terminated once something was added, else NULL */
    size_t n, cap;
} CcSbuf;
void cc_sbuf_add(CcSbuf *sb, const char *fmt, ...) CC_PRINTF(2, 3);
void cc_sbuf_vadd(CcSbuf *sb, const char *fmt, va_list args);
const char *cc_sbuf_text(const CcSbuf *sb); /* "" when empty */
void cc_sbuf_free(CcSbuf *sb);

/* ---- io.c: false: it ended before, or failed ---- */
bool cc_io_read(int fd, void *at, size_t n);
bool cc_io_write(int fd, const void *at, size_t n);

/* ---- pages.c: what the kernel is told about memory ---- */
/* a wish: pages stay small where the kernel has no large ones */
void cc_pages_wish_huge(void *at, size_t bytes);
void cc_pages_trim(void); /* what malloc holds and nobody uses goes back */

/* ---- written.c: was memory written? Ranges are whole pages; any thread ---- */
bool cc_written_told(void); /* does this kernel tell? Else nothing below is ever sure */
/* From now on writes are noted, for all who ask: what was noted before is forgotten. -1: they can't be. */
CC_MUST int cc_written_begin(const void *at, size_t bytes);
bool cc_written_since(const void *at, size_t bytes); /* or it isn't known */
bool cc_written_private(const void *at,
                        size_t bytes); /* no other mapping shows it; of pages that were read or written */
void cc_written_end(const void *at, size_t bytes);

/* ---- log.c: ring of the last events; reports read it, CCOMPILE_LOG=1 also prints each to stderr ---- */
typedef enum CcEventKind {
#define CC_EVENT(id, name) CC_LOG_##id,
#include "event.def"
#undef CC_EVENT
    CC_LOG_COUNT
} CcEventKind;

typedef struct CcLogEvent {
    CcEventKind kind;
    uint64_t serial;  /* 1, 2, ...: order in which events happened */
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    char text[240];
} CcLogEvent;

void cc_log_add(CcEventKind kind, const char *fmt, ...) CC_PRINTF(2, 3);
uint64_t cc_log_count(CcEventKind kind);                   /* since the process began or cc_log_reset */
int cc_log_copy(CcLogEvent *out, int max, uint64_t after); /* events with serial > after, oldest first */
const char *cc_log_name(CcEventKind kind);
void cc_log_reset(void);
uint64_t cc_log_now_ns(void);

#endif
