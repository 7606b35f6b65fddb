#include "runtime/pool.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define TAKES_AHEAD 8u /* appends take many in a row */

enum kvt_status kvt_pool_init(struct kvt_pool *pool, uint64_t slot_bytes, uint32_t slot_count,
                              const struct kvt_policy_ops *policy_ops, uint64_t seed)
{
    *pool = (struct kvt_pool){ .slot_bytes = slot_bytes, .slot_count = slot_count, .policy_ops = policy_ops };
    pool->free_slots = kvt_table_map((size_t)slot_count * sizeof *pool->free_slots);
    pool->slots = kvt_table_map((size_t)slot_count * sizeof *pool->slots);
    pool->parked = (struct kvt_parked){ .blocks = kvt_table_map((size_t)slot_count * sizeof(uint32_t)),
                                        .capacity = slot_count };
    if (!pool->free_slots || !pool->slots || !pool->parked.blocks) return KVT_NOMEM;
    KVT_TRY(policy_ops->create(slot_count, seed, &pool->policy));
    for (uint32_t i = 0; i < slot_count; i++) {
        pool->free_slots[i] = slot_count - 1 - i; /* slot 0 is taken first */
        pool->slots[i].owner = KVT_NO_BLOCK;
    }
    pool->free_count = slot_count;
    pool->low = slot_count / 32;
    pool->high = slot_count / 16;
    return KVT_OK;
}

void kvt_pool_done(struct kvt_pool *pool)
{
    if (pool->policy) pool->policy_ops->destroy(pool->policy);
    kvt_table_unmap(pool->free_slots, (size_t)pool->slot_count * sizeof *pool->free_slots);
    kvt_table_unmap(pool->slots, (size_t)pool->slot_count * sizeof *pool->slots);
    kvt_table_unmap(pool->parked.blocks, (size_t)pool->parked.capacity * sizeof *pool->parked.blocks);
    *pool = (struct kvt_pool){ 0 };
}

uint32_t kvt_pool_take(struct kvt_pool *pool, uint32_t block)
{
    if (pool->free_count == 0) return KVT_NO_SLOT;
    const uint32_t slot = pool->free_slots[--pool->free_count];
    if (pool->free_count > TAKES_AHEAD)
        __builtin_prefetch(&pool->slots[pool->free_slots[pool->free_count - 1 - TAKES_AHEAD]], 1);
    KVT_ASSERT(pool->slots[slot].owner == KVT_NO_BLOCK);
    pool->slots[slot].owner = block;
    pool->used_peak = kvt_max_u32(pool->used_peak, pool->slot_count - pool->free_count);
    return slot;
}

void kvt_pool_give(struct kvt_pool *pool, uint32_t slot)
{
    KVT_ASSERT(slot < pool->slot_count);
    KVT_ASSERT(pool->slots[slot].owner != KVT_NO_BLOCK);
    KVT_ASSERT(pool->free_count < pool->slot_count);
    pool->slots[slot].owner = KVT_NO_BLOCK;
    pool->free_slots[pool->free_count++] = slot;
}

size_t kvt_pool_bytes(const struct kvt_pool *pool)
{
    /* And what a policy has a slot: two links and a byte. */
    return (size_t)pool->slot_count * (sizeof *pool->free_slots + sizeof *pool->slots + 9);
}
