/* Bump allocator: a list of chunks that are freed together. Memory is zeroed. In debug builds each allocation is a chunk
 * of its own: sanitizers see where it ends, and each can be made to fail. */
#include "base.h"

enum { CHUNK_BYTES = CC_DEBUG >= 1 ? 16 : 64 * 1024, ALIGN = 16 };

typedef struct Chunk {
    struct Chunk *next;
    size_t size, used;
    _Alignas(16) unsigned char bytes[];
} Chunk;

struct CcArena {
    Chunk *head;
};

CcArena *cc_arena_new(void) { return calloc(1, sizeof(CcArena)); }

void cc_arena_free(CcArena *arena) {
    if (arena == NULL) return;
    for (Chunk *c = arena->head, *next; c != NULL; c = next) {
        next = c->next;
#if CC_DEBUG >= 1
        memset(c->bytes, 0xDD, c->size);
#endif
        free(c);
    }
    free(arena);
}

void *cc_arena_alloc(CcArena *arena, size_t n) {
    n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    Chunk *c = arena->head;
    if (c == NULL || c->size - c->used < n) {
        const size_t size = CC_MAX(n, (size_t)CHUNK_BYTES);
        c = calloc(1, sizeof *c + size);
        if (c == NULL) return NULL;
        c->size = size;
        c->next = arena->head;
        arena->head = c;
    }
    void *p = c->bytes + c->used;
    c->used += n;
    return p;
}

void *cc_vec_grow(void *at, int *cap, int need, size_t item) {
    int n = *cap > 0 ? *cap : 8;
    while (n < need) n *= 2;
#ifdef __SANITIZE_ADDRESS__
    n = need; /* each push moves the array, so that a pointer to an item that is held across one is always found */
#endif
    at = cc_mem_grow(at, (size_t)n * item);
    *cap = n;
    return at;
}
