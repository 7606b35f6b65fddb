#include "tiers/store_index.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define CAPACITY_MIN (2 * KVT_MIB / sizeof(struct kvt_store_entry)) /* one huge page */

/* Names are digests already, but not in every caller's hands: mix them. */
static uint64_t hash_of(const struct kvt_name *name)
{
    return kvt_mix64(name->key.lo ^ kvt_mix64(name->key.hi ^ kvt_mix64(name->space.lo ^ kvt_mix64(name->space.hi))));
}

enum kvt_status kvt_store_index_init(struct kvt_store_index *index)
{
    *index = (struct kvt_store_index){ .capacity = CAPACITY_MIN };
    index->entries = kvt_table_map(index->capacity * sizeof *index->entries);
    return index->entries ? KVT_OK : KVT_NOMEM;
}

void kvt_store_index_done(struct kvt_store_index *index)
{
    kvt_table_unmap(index->entries, index->capacity * sizeof *index->entries);
    *index = (struct kvt_store_index){ 0 };
}

enum kvt_status kvt_store_index_reserve(struct kvt_store_index *index, uint64_t count)
{
    KVT_ASSERT(index->used == 0);
    struct kvt_store_index next = { .capacity = index->capacity };
    while (next.capacity - next.capacity / 4 <= count) next.capacity *= 2;
    if (next.capacity == index->capacity) return KVT_OK;
    next.entries = kvt_table_map(next.capacity * sizeof *next.entries);
    if (!next.entries) return KVT_NOMEM;
    kvt_store_index_done(index);
    *index = next;
    return KVT_OK;
}

struct kvt_store_entry *kvt_store_index_find(struct kvt_store_index *index, const struct kvt_name *name)
{
    const uint64_t mask = index->capacity - 1;
    for (uint64_t i = hash_of(name) & mask;; i = (i + 1) & mask) {
        struct kvt_store_entry *entry = &index->entries[i];
        if (entry->state == KVT_ENTRY_EMPTY) return NULL;
        if (entry->state == KVT_ENTRY_LIVE && kvt_name_equal(&entry->name, name)) return entry;
    }
}

/* The first place on the name's path that is free. */
static struct kvt_store_entry *place_for(struct kvt_store_index *index, const struct kvt_name *name)
{
    const uint64_t mask = index->capacity - 1;
    uint64_t i = hash_of(name) & mask;
    while (index->entries[i].state == KVT_ENTRY_LIVE || index->entries[i].state == KVT_ENTRY_LOST) i = (i + 1) & mask;
    return &index->entries[i];
}

/* A table of the size that the live entries want; removed ones are left behind. */
static enum kvt_status rebuild(struct kvt_store_index *index)
{
    struct kvt_store_index next = {
        .capacity = CAPACITY_MIN, .live = index->live, .lost = index->lost, .used = index->live + index->lost
    };
    while (next.capacity < next.used * 2) next.capacity *= 2;
    next.entries = kvt_table_map(next.capacity * sizeof *next.entries);
    if (!next.entries) return KVT_NOMEM;
    for (uint64_t i = 0; i < index->capacity; i++) {
        const struct kvt_store_entry *entry = &index->entries[i];
        if (entry->state == KVT_ENTRY_LIVE || entry->state == KVT_ENTRY_LOST) *place_for(&next, &entry->name) = *entry;
    }
    kvt_table_unmap(index->entries, index->capacity * sizeof *index->entries);
    *index = next;
    return KVT_OK;
}

enum kvt_status kvt_store_index_insert(struct kvt_store_index *index, const struct kvt_name *name,
                                       struct kvt_store_entry **ret_entry)
{
    KVT_ASSERT(!kvt_store_index_find(index, name));
    if (index->used >= index->capacity - index->capacity / 4) KVT_TRY(rebuild(index));
    struct kvt_store_entry *entry = place_for(index, name);
    if (entry->state == KVT_ENTRY_EMPTY) index->used++;
    *entry = (struct kvt_store_entry){ .name = *name, .state = KVT_ENTRY_LIVE };
    index->live++;
    *ret_entry = entry;
    return KVT_OK;
}

void kvt_store_index_remove(struct kvt_store_index *index, struct kvt_store_entry *entry)
{
    KVT_ASSERT(entry->state == KVT_ENTRY_LIVE);
    KVT_ASSERT(index->live > 0);
    entry->state = KVT_ENTRY_REMOVED;
    index->live--;
}

void kvt_store_index_lose(struct kvt_store_index *index, struct kvt_store_entry *entry)
{
    kvt_store_index_remove(index, entry);
    entry->state = KVT_ENTRY_LOST;
    index->lost++;
}

uint32_t kvt_store_index_take_lost(struct kvt_store_index *index, struct kvt_name *ret_names, uint32_t max)
{
    uint32_t count = 0;
    while (index->lost > 0 && count < max) {
        struct kvt_store_entry *entry = &index->entries[index->lost_cursor++ & (index->capacity - 1)];
        if (entry->state != KVT_ENTRY_LOST) continue;
        ret_names[count++] = entry->name;
        entry->state = KVT_ENTRY_REMOVED;
        index->lost--;
    }
    return count;
}
