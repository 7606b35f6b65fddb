#include "policy/ghost.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

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

static uint32_t *head_of(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    return &ghosts->heads[kvt_mix64(key_hash) & ghosts->bucket_mask];
}

/* The link to the key, or the end of its bucket's chain. */
static uint32_t *link_of(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    uint32_t *link = head_of(ghosts, key_hash);
    while (*link != 0 && ghosts->entries[*link - 1].key_hash != key_hash) link = &ghosts->entries[*link - 1].next;
    return link;
}

uint32_t kvt_ghosts_find(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    const uint32_t link = *link_of(ghosts, key_hash);
    return link != 0 ? link - 1 : KVT_GHOST_NONE;
}

void kvt_ghosts_prefetch(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    __builtin_prefetch(head_of(ghosts, key_hash), 1);
}

void kvt_ghosts_prefetch_first(const struct kvt_ghosts *ghosts, uint64_t key_hash)
{
    const uint32_t link = *head_of(ghosts, key_hash);
    if (link != 0) __builtin_prefetch(&ghosts->entries[link - 1]);
}

uint32_t kvt_ghosts_prefetch_oldest(const struct kvt_ghosts *ghosts, uint32_t list)
{
    const struct kvt_order *order = &ghosts->order;
    uint32_t ghost = kvt_order_coldest(order, list);
    if (ghost != KVT_GHOST_NONE) ghost = kvt_order_warmer(order, ghost);
    if (ghost == KVT_GHOST_NONE) return ghost;
    kvt_ghosts_prefetch(ghosts, ghosts->entries[ghost].key_hash);
    ghost = kvt_order_warmer(order, ghost);
    if (ghost == KVT_GHOST_NONE) return ghost;
    __builtin_prefetch(&ghosts->entries[ghost], 1);
    const uint32_t later = kvt_order_warmer(order, ghost);
    if (later != KVT_GHOST_NONE) __builtin_prefetch(&order->links[kvt_order_node(order, later)], 1);
    return ghost;
}

uint32_t kvt_ghosts_oldest(const struct kvt_ghosts *ghosts, uint32_t list)
{
    return kvt_order_coldest(&ghosts->order, list);
}

uint32_t kvt_ghosts_remember(struct kvt_ghosts *ghosts, uint64_t key_hash, uint32_t list)
{
    uint32_t *end = link_of(ghosts, key_hash);
    if (*end != 0) {
        kvt_ghosts_forget(ghosts, *end - 1);
        end = link_of(ghosts, key_hash);
    }
    KVT_ASSERT(ghosts->count < ghosts->capacity);
    uint32_t ghost;
    if (ghosts->free_head != 0) {
        ghost = ghosts->free_head - 1;
        ghosts->free_head = ghosts->entries[ghost].next;
    } else {
        ghost = ghosts->fresh++;
    }
    /* At the end of its chain: who is forgotten is mostly the oldest, and is met first. */
    *end = ghost + 1;
    ghosts->entries[ghost] = (struct kvt_ghost){ .key_hash = key_hash, .list = list };
    kvt_order_push_warm(&ghosts->order, list, ghost);
    ghosts->count++;
    ghosts->size[list]++;
    return ghost;
}

void kvt_ghosts_move(struct kvt_ghosts *ghosts, uint32_t ghost, uint32_t list)
{
    KVT_ASSERT(ghost < ghosts->fresh);
    struct kvt_ghost *entry = &ghosts->entries[ghost];
    KVT_ASSERT(entry->list != KVT_GHOST_NONE);
    kvt_order_unlink(&ghosts->order, ghost);
    kvt_order_push_warm(&ghosts->order, list, ghost);
    ghosts->size[entry->list]--;
    ghosts->size[list]++;
    entry->list = list;
}

void kvt_ghosts_forget(struct kvt_ghosts *ghosts, uint32_t ghost)
{
    KVT_ASSERT(ghost < ghosts->fresh);
    struct kvt_ghost *entry = &ghosts->entries[ghost];
    KVT_ASSERT(entry->list != KVT_GHOST_NONE);
    uint32_t *link = head_of(ghosts, entry->key_hash);
    while (*link != ghost + 1) {
        KVT_ASSERT(*link != 0);
        link = &ghosts->entries[*link - 1].next;
    }
    *link = entry->next;
    kvt_order_unlink(&ghosts->order, ghost);
    ghosts->size[entry->list]--;
    ghosts->count--;
    *entry = (struct kvt_ghost){ .next = ghosts->free_head, .list = KVT_GHOST_NONE };
    ghosts->free_head = ghost + 1;
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
            KVT_ASSERT(head_of(ghosts, entry->key_hash) == &ghosts->heads[bucket]);
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
