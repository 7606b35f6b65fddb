#include "policy/ghost.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define CAPACITY_MAX (UINT32_C(3) << 30)

static uint64_t entries_bytes(const struct kvt_ghosts *ghosts)
{
    return ((uint64_t)ghosts->capacity + 1) * sizeof ghosts->entries[0];
}

static uint64_t heads_bytes(const struct kvt_ghosts *ghosts)
{
    return ((uint64_t)ghosts->bucket_mask + 1) * sizeof ghosts->heads[0];
}

enum kvt_status kvt_ghosts_init(struct kvt_ghosts *ghosts, uint32_t capacity, uint32_t list_count)
{
    KVT_ASSERT(capacity <= CAPACITY_MAX);
    KVT_ASSERT(list_count <= KVT_GHOST_LISTS_MAX);
    *ghosts = (struct kvt_ghosts){ .capacity = capacity };
    uint64_t buckets = 1;
    while (buckets < (uint64_t)capacity + capacity / 2) buckets *= 2;
    ghosts->bucket_mask = (uint32_t)(buckets - 1);
    ghosts->entries = kvt_table_map(entries_bytes(ghosts));
    if (!ghosts->entries) return KVT_NOMEM;
    ghosts->heads = kvt_table_map(heads_bytes(ghosts));
    if (!ghosts->heads) return KVT_NOMEM;
    return kvt_order_init(&ghosts->order, capacity, list_count);
}

void kvt_ghosts_done(struct kvt_ghosts *ghosts)
{
    kvt_order_done(&ghosts->order);
    kvt_table_unmap(ghosts->heads, heads_bytes(ghosts));
    kvt_table_unmap(ghosts->entries, entries_bytes(ghosts));
    ghosts->heads = NULL;
    ghosts->entries = NULL;
}

void kvt_ghosts_verify(const struct kvt_ghosts *ghosts)
{
    uint32_t chained = 0;
    for (uint64_t bucket = 0; bucket <= ghosts->bucket_mask; bucket++) {
        for (uint32_t link = ghosts->heads[bucket]; link != 0; link = ghosts->entries[link - 1].next) {
            const struct kvt_ghost *entry = &ghosts->entries[link - 1];
            KVT_ASSERT(link <= ghosts->fresh);
            KVT_ASSERT(entry->list < ghosts->order.list_count);
            KVT_ASSERT(kvt_ghosts_find(ghosts, entry->key_hash) == link - 1);
            KVT_ASSERT(kvt_ghosts_head(ghosts, entry->key_hash) == &ghosts->heads[bucket]);
            KVT_ASSERT(chained < ghosts->count);
            chained++;
        }
    }
    KVT_ASSERT(chained == ghosts->count);
    uint32_t listed = 0;
    for (uint32_t list = 0; list < ghosts->order.list_count; list++) {
        KVT_ASSERT(kvt_order_verify(&ghosts->order, list) == ghosts->size[list]);
        listed += ghosts->size[list];
    }
    KVT_ASSERT(listed == ghosts->count);
    uint32_t unused = 0;
    for (uint32_t link = ghosts->free_head; link != 0; link = ghosts->entries[link - 1].next) {
        KVT_ASSERT(ghosts->entries[link - 1].list == KVT_GHOST_NONE);
        KVT_ASSERT(unused < ghosts->fresh);
        unused++;
    }
    KVT_ASSERT(chained + unused == ghosts->fresh);
}
