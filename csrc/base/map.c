/* Pointer-keyed hash table: linear probing, power-of-two capacity, load factor at most one half. Removal leaves no
 * tombstones: addresses are inserted and removed over and over, and every lookup would have to skip them. */
#include "base.h"

static unsigned home_slot(const CcMap *map, const void *key) {
    return (unsigned)((uintptr_t)key * UINT64_C(0x9E3779B97F4A7C15) >> map->shift);
}

static unsigned next_slot(const CcMap *map, unsigned i) { return (i + 1) & (unsigned)(map->cap - 1); }

/* The slot that holds the key, or the empty slot where it would go. */
static unsigned find_slot(const CcMap *map, const void *key) {
    unsigned i = home_slot(map, key);
    while (map->slot[i].key != key && map->slot[i].key != NULL) i = next_slot(map, i);
    return i;
}

int64_t *cc_map_find(const CcMap *map, const void *key) {
    if (map->n == 0) return NULL;
    struct CcMapSlot *s = &map->slot[find_slot(map, key)];
    return s->key != NULL ? &s->value : NULL;
}

static void grow(CcMap *map) {
    const CcMap old = *map;
    map->cap = CC_MAX(32, 2 * old.cap);
    map->shift = 64 - __builtin_ctz((unsigned)map->cap);
    map->slot = cc_mem_get((size_t)map->cap * sizeof *map->slot);
    for (int i = 0; i < old.cap; i++)
        if (old.slot[i].key != NULL) map->slot[find_slot(map, old.slot[i].key)] = old.slot[i];
    free(old.slot);
}

void cc_map_put(CcMap *map, const void *key, int64_t value) {
    if ((map->n + 1) * 2 > map->cap) grow(map);
    struct CcMapSlot *s = &map->slot[find_slot(map, key)];
    if (s->key == NULL) map->n++;
    *s = (struct CcMapSlot){key, value};
}

bool cc_map_remove(CcMap *map, const void *key) {
    if (map->n == 0) return false;
    unsigned gap = find_slot(map, key);
    if (map->slot[gap].key == NULL) return false;
    /* Backward-shift deletion: later entries of the cluster move into the gap, unless that would put one before its
     * home slot. */
    for (unsigned i = next_slot(map, gap); map->slot[i].key != NULL; i = next_slot(map, i)) {
        const unsigned mask = (unsigned)(map->cap - 1), from_home = (i - home_slot(map, map->slot[i].key)) & mask;
        if (from_home < ((i - gap) & mask)) continue;
        map->slot[gap] = map->slot[i];
        gap = i;
    }
    map->slot[gap].key = NULL;
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
