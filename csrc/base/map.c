/* Pointer map: linear probing, power-of-two capacity, tombstones, at most half full. */
#include "base.h"

static const char TOMBSTONE; /* its address marks a removed slot */

static unsigned hash_pointer(const void *key) {
    return (unsigned)(((uintptr_t)key >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 32);
}

static struct CcMapSlot *probe(const CcMap *map, const void *key) {
    for (unsigned i = hash_pointer(key) & (unsigned)(map->cap - 1);; i = (i + 1) & (unsigned)(map->cap - 1))
        if (map->slot[i].key == key || map->slot[i].key == NULL) return &map->slot[i];
}

int64_t *cc_map_find(const CcMap *map, const void *key) {
    if (map->cap == 0) return NULL;
    struct CcMapSlot *s = probe(map, key);
    return s->key != NULL ? &s->value : NULL;
}

static void rehash(CcMap *map, int cap) {
    const CcMap old = *map;
    map->slot = cc_mem_get((size_t)cap * sizeof *map->slot);
    map->cap = cap;
    map->used = map->n;
    for (int i = 0; i < old.cap; i++)
        if (old.slot[i].key != NULL && old.slot[i].key != &TOMBSTONE) *probe(map, old.slot[i].key) = old.slot[i];
    free(old.slot);
}

void cc_map_put(CcMap *map, const void *key, int64_t value) {
    if ((map->used + 1) * 2 > map->cap) rehash(map, CC_MAX(32, map->n * 4 > map->cap ? map->cap * 2 : map->cap));
    struct CcMapSlot *s = probe(map, key);
    if (s->key == NULL) {
        s->key = key;
        map->n++;
        map->used++;
    }
    s->value = value;
}

bool cc_map_remove(CcMap *map, const void *key) {
    if (map->cap == 0) return false;
    struct CcMapSlot *s = probe(map, key);
    if (s->key == NULL) return false;
    s->key = &TOMBSTONE;
    map->n--;
    return true;
}

void cc_map_free(CcMap *map) {
    free(map->slot);
    *map = (CcMap){0};
}

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ (h >> 32);
}

uint64_t cc_map_hash(const void *bytes, size_t n, uint64_t seed) {
    const unsigned char *p = bytes;
    uint64_t h = (seed ^ UINT64_C(0xCBF29CE484222325)) + n;
    uint64_t word = 0;
    for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, p, n);
    h = mix(h, word);
    return h ^ (h >> 29);
}
