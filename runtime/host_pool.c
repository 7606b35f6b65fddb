#include "runtime/host_pool.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define NONE UINT32_MAX
#define SLOT_ALIGNMENT 64u
#define SLOT_BYTES_MIN 512u
#define FREE_BIT 0x80000000u /* in owner[]: the slot is free, the rest is the next free one */
#define FREE_END 0x7fffffffu
#define CHUNKS_FOR_CLASSES 8u
#define OVERFLOWS_MAX (KVT_PACKED_SAMPLES / 16) /* more blocks in a window that do not fit: the slots become larger */
#define QUIET_WINDOWS 16u                       /* without that, before slots that grew become smaller again */

static uint32_t class_bytes(uint32_t bytes)
{
    return (uint32_t)kvt_align_up(kvt_max_u32(bytes, SLOT_BYTES_MIN), SLOT_ALIGNMENT);
}

/* True when no chunk is of the class, and no block would ask for it any more: sizes changed since. */
static bool is_class_left_behind(const struct kvt_host_pool *pool, uint32_t c)
{
    const uint32_t bytes = pool->classes[c].slot_bytes;
    if (pool->classes[c].chunk_count > 0) return false;
    for (uint32_t g = 0; g < KVT_GROUPS_MAX; g++) {
        const uint32_t raw = pool->groups[g].raw_bytes, packed = pool->groups[g].packed_bytes;
        if (bytes == class_bytes(raw)) return false;
        if (packed > 0
            && (bytes == class_bytes(packed) || bytes == class_bytes(packed / 2) || bytes == class_bytes(packed / 4)))
            return false;
    }
    return true;
}

static uint32_t class_find_or_add(struct kvt_host_pool *pool, uint32_t bytes)
{
    const uint32_t slot_bytes = class_bytes(bytes);
    for (uint32_t c = 0; c < pool->class_count; c++) {
        if (pool->classes[c].slot_bytes == slot_bytes) return c;
    }
    uint32_t c = 0;
    while (c < pool->class_count && !is_class_left_behind(pool, c)) c++;
    if (c == KVT_HOST_CLASSES_MAX) return NONE;
    const uint64_t per_chunk = pool->chunk_bytes / slot_bytes;
    pool->classes[c] = (struct kvt_host_class){
        .slot_bytes = slot_bytes,
        .slots_per_chunk = (uint32_t)kvt_min_u64(per_chunk, pool->slots_per_chunk_max),
        .partial_head = NONE,
    };
    if (c == pool->class_count) pool->class_count++;
    return c;
}

enum kvt_status kvt_host_pool_init(struct kvt_host_pool *pool, struct kvt_host_tier *tier, uint64_t chunk_bytes,
                                   const uint32_t *raw_bytes, uint32_t group_count,
                                   const struct kvt_policy_ops *policy_ops, uint64_t seed)
{
    *pool = (struct kvt_host_pool){ .tier = tier,
                                    .chunk_bytes = chunk_bytes,
                                    .free_head = NONE,
                                    .policy_ops = policy_ops,
                                    .chunk_count = kvt_host_tier_chunk_count(tier) };
    uint32_t raw_min = UINT32_MAX;
    for (uint32_t g = 0; g < group_count; g++) {
        pool->groups[g].raw_bytes = raw_bytes[g];
        pool->groups[g].quiet_windows = QUIET_WINDOWS; /* the first choice may be made smaller at once */
        raw_min = kvt_min_u32(raw_min, raw_bytes[g]);
    }
    /* A tail's quarter of a packed block is the smallest slot there is. */
    const uint32_t slot_min = kvt_max_u32(SLOT_BYTES_MIN, raw_min / 8 / SLOT_ALIGNMENT * SLOT_ALIGNMENT);
    pool->slots_per_chunk_max = (uint32_t)kvt_min_u64(chunk_bytes / slot_min, 1u << 16);
    const uint64_t slot_count = (uint64_t)pool->chunk_count * pool->slots_per_chunk_max;
    if (slot_count >= FREE_END) return KVT_NOMEM;
    pool->slot_count = (uint32_t)slot_count;
    if (pool->chunk_count == 0) return KVT_OK;

    pool->chunks = kvt_table_map((size_t)pool->chunk_count * sizeof *pool->chunks);
    pool->owner = kvt_table_map((size_t)pool->slot_count * sizeof *pool->owner);
    pool->parked = (struct kvt_parked){ .blocks = kvt_table_map((size_t)pool->slot_count * sizeof(uint32_t)),
                                        .capacity = pool->slot_count };
    if (!pool->chunks || !pool->owner || !pool->parked.blocks) return KVT_NOMEM;
    KVT_TRY(policy_ops->create(pool->slot_count, seed, &pool->policy));
    for (uint32_t g = 0; g < group_count; g++) (void)class_find_or_add(pool, raw_bytes[g]);
    (void)kvt_host_pool_refresh(pool);
    return KVT_OK;
}

void kvt_host_pool_done(struct kvt_host_pool *pool)
{
    if (pool->policy) pool->policy_ops->destroy(pool->policy);
    kvt_table_unmap(pool->chunks, (size_t)pool->chunk_count * sizeof *pool->chunks);
    kvt_table_unmap(pool->owner, (size_t)pool->slot_count * sizeof *pool->owner);
    kvt_table_unmap(pool->parked.blocks, (size_t)pool->parked.capacity * sizeof *pool->parked.blocks);
    *pool = (struct kvt_host_pool){ 0 };
}

static void chunk_free(struct kvt_host_pool *pool, uint32_t c)
{
    pool->chunks[c] = (struct kvt_host_chunk){
        .class_index = NONE, .free_head = NONE, .previous = NONE, .next = pool->free_head
    };
    pool->free_head = c;
    pool->free_chunks++;
}

bool kvt_host_pool_refresh(struct kvt_host_pool *pool)
{
    const uint32_t ready = kvt_host_tier_ready_chunks(pool->tier);
    const bool is_new = pool->chunks_seen < ready;
    while (pool->chunks_seen < ready) chunk_free(pool, pool->chunks_seen++);
    return is_new;
}

/* Asked in this order: the worker's last chunk is ready before it stops. */
bool kvt_host_pool_is_growing(const struct kvt_host_pool *pool)
{
    if (pool->chunks_seen == pool->chunk_count) return false;
    const bool is_growing = kvt_host_tier_is_growing(pool->tier);
    return is_growing || pool->chunks_seen < kvt_host_tier_ready_chunks(pool->tier);
}

static void list_chunk(struct kvt_host_pool *pool, uint32_t c)
{
    struct kvt_host_chunk *chunk = &pool->chunks[c];
    struct kvt_host_class *class = &pool->classes[chunk->class_index];
    chunk->previous = NONE;
    chunk->next = class->partial_head;
    if (class->partial_head != NONE) pool->chunks[class->partial_head].previous = c;
    class->partial_head = c;
    chunk->is_listed = true;
}

static void unlist_chunk(struct kvt_host_pool *pool, uint32_t c)
{
    struct kvt_host_chunk *chunk = &pool->chunks[c];
    struct kvt_host_class *class = &pool->classes[chunk->class_index];
    if (chunk->previous != NONE) pool->chunks[chunk->previous].next = chunk->next;
    else class->partial_head = chunk->next;
    if (chunk->next != NONE) pool->chunks[chunk->next].previous = chunk->previous;
    chunk->is_listed = false;
}

/* Gives a free chunk to a class and cuts it into slots. */
static void cut_chunk(struct kvt_host_pool *pool, uint32_t class_index)
{
    const uint32_t c = pool->free_head;
    struct kvt_host_chunk *chunk = &pool->chunks[c];
    struct kvt_host_class *class = &pool->classes[class_index];
    pool->free_head = chunk->next;
    pool->free_chunks--;
    const uint32_t first = c * pool->slots_per_chunk_max;
    for (uint32_t i = 0; i < class->slots_per_chunk; i++) {
        const bool is_last = i + 1 == class->slots_per_chunk;
        pool->owner[first + i] = FREE_BIT | (is_last ? FREE_END : first + i + 1);
    }
    *chunk = (struct kvt_host_chunk){ .class_index = class_index, .free_head = first };
    class->chunk_count++;
    pool->chunk_bytes_used += pool->chunk_bytes;
    pool->chunk_bytes_peak = kvt_max_u64(pool->chunk_bytes_peak, pool->chunk_bytes_used);
    list_chunk(pool, c);
}

/* The smallest class of at least `bytes` that has a free slot. */
static uint32_t class_with_room(const struct kvt_host_pool *pool, uint32_t bytes)
{
    uint32_t best = NONE;
    for (uint32_t c = 0; c < pool->class_count; c++) {
        const struct kvt_host_class *class = &pool->classes[c];
        if (class->slot_bytes < bytes || class->partial_head == NONE) continue;
        if (best == NONE || class->slot_bytes < pool->classes[best].slot_bytes) best = c;
    }
    return best;
}

/* The class that a free chunk would be cut for. */
static uint32_t class_for(const struct kvt_host_pool *pool, uint32_t bytes)
{
    uint32_t best = NONE;
    for (uint32_t c = 0; c < pool->class_count; c++) {
        const struct kvt_host_class *class = &pool->classes[c];
        if (class->slot_bytes < bytes || class->slots_per_chunk == 0) continue;
        if (best == NONE || class->slot_bytes < pool->classes[best].slot_bytes) best = c;
    }
    return best;
}

/*
 * With many chunks a block takes slots of its own class only: otherwise each block that needs a larger slot would turn
 * one more chunk into large slots, which small blocks would then fill, for good. With few chunks any slot that is large
 * enough will do.
 */
static bool may_take_larger(const struct kvt_host_pool *pool) { return pool->chunk_count < CHUNKS_FOR_CLASSES; }

bool kvt_host_pool_has_room(const struct kvt_host_pool *pool, uint32_t bytes)
{
    const uint32_t wanted = class_for(pool, bytes);
    if (wanted == NONE) return false;
    if (pool->classes[wanted].partial_head != NONE || pool->free_chunks > 0) return true;
    return may_take_larger(pool) && class_with_room(pool, bytes) != NONE;
}

uint32_t kvt_host_pool_take(struct kvt_host_pool *pool, uint32_t bytes, uint32_t block)
{
    const uint32_t wanted = class_for(pool, bytes);
    if (wanted == NONE) return KVT_NO_SLOT;
    uint32_t class_index = wanted;
    if (pool->classes[wanted].partial_head == NONE) {
        if (pool->free_chunks > 0) cut_chunk(pool, wanted);
        else class_index = may_take_larger(pool) ? class_with_room(pool, bytes) : NONE;
    }
    if (class_index == NONE) return KVT_NO_SLOT;

    const uint32_t c = pool->classes[class_index].partial_head;
    struct kvt_host_chunk *chunk = &pool->chunks[c];
    const uint32_t slot = chunk->free_head;
    KVT_ASSERT(pool->owner[slot] & FREE_BIT);
    const uint32_t next = pool->owner[slot] & ~FREE_BIT;
    chunk->free_head = next == FREE_END ? NONE : next;
    chunk->used++;
    if (chunk->free_head == NONE) unlist_chunk(pool, c);
    pool->owner[slot] = block;
    pool->used_slot_bytes += pool->classes[class_index].slot_bytes;
    pool->used_slots++;
    pool->used_slots_peak = kvt_max_u64(pool->used_slots_peak, pool->used_slots);
    return slot;
}

void kvt_host_pool_give(struct kvt_host_pool *pool, uint32_t slot)
{
    KVT_ASSERT(slot < pool->slot_count);
    KVT_ASSERT(!(pool->owner[slot] & FREE_BIT));
    const uint32_t c = slot / pool->slots_per_chunk_max;
    struct kvt_host_chunk *chunk = &pool->chunks[c];
    struct kvt_host_class *class = &pool->classes[chunk->class_index];
    KVT_ASSERT(chunk->used > 0);
    pool->owner[slot] = FREE_BIT | (chunk->free_head == NONE ? FREE_END : chunk->free_head);
    chunk->free_head = slot;
    chunk->used--;
    pool->used_slot_bytes -= class->slot_bytes;
    pool->used_slots--;
    if (!chunk->is_listed) list_chunk(pool, c);
    if (chunk->used == 0) {
        unlist_chunk(pool, c);
        class->chunk_count--;
        pool->chunk_bytes_used -= pool->chunk_bytes;
        chunk_free(pool, c);
    }
}

uint32_t kvt_host_pool_free_share(const struct kvt_host_pool *pool)
{
    const uint64_t capacity = pool->chunk_bytes * pool->chunks_seen;
    if (capacity == 0) return 0;
    return (uint32_t)((capacity - pool->used_slot_bytes) * 1024 / capacity);
}

uint32_t kvt_host_pool_wanted_bytes(const struct kvt_host_pool *pool, uint32_t group, uint32_t raw, bool is_packed)
{
    const uint32_t whole = pool->groups[group].packed_bytes;
    if (!is_packed || whole == 0) return raw;
    const uint64_t scaled = (uint64_t)whole * raw / pool->groups[group].raw_bytes + SLOT_ALIGNMENT;
    if (scaled <= whole / 4) return whole / 4;
    if (scaled <= whole / 2) return whole / 2;
    return whole;
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void set_packed_bytes(struct kvt_host_pool *pool, uint32_t group, uint32_t bytes)
{
    const uint32_t whole = (uint32_t)kvt_align_up(bytes, SLOT_ALIGNMENT);
    if (whole >= pool->groups[group].raw_bytes || class_find_or_add(pool, whole) == NONE) return;
    pool->groups[group].packed_bytes = whole; /* before its parts are added, so that they leave it alone */
    (void)class_find_or_add(pool, whole / 2);
    (void)class_find_or_add(pool, whole / 4);
}

/*
 * The largest slot of which as many fit into a chunk as of `bytes`: what would be left over at its end is shared out.
 */
static uint32_t fill_chunk(const struct kvt_host_pool *pool, uint32_t bytes)
{
    const uint64_t slot_bytes = kvt_align_up(bytes, SLOT_ALIGNMENT);
    const uint64_t per_chunk = kvt_min_u64(pool->chunk_bytes / slot_bytes, pool->slots_per_chunk_max);
    if (per_chunk == 0) return (uint32_t)slot_bytes;
    /* A little room is good for blocks that are larger than the samples; much of it helps nobody. */
    const uint64_t filling = pool->chunk_bytes / per_chunk / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    return (uint32_t)kvt_min_u64(filling, slot_bytes + slot_bytes / 16);
}

/*
 * The slot that the sampled blocks take least memory with. A block that does not fit takes a raw slot, and stays raw in
 * the store: that counts twice.
 */
static uint32_t best_slot(struct kvt_host_pool *pool, uint32_t group)
{
    uint32_t sorted[KVT_PACKED_SAMPLES];
    const uint32_t count = pool->groups[group].sample_count;
    memcpy(sorted, pool->groups[group].samples, count * sizeof sorted[0]);
    qsort(sorted, count, sizeof sorted[0], compare_u32);
    uint32_t best = 0;
    uint64_t best_cost = UINT64_MAX;
    for (uint32_t fitting = count; fitting + OVERFLOWS_MAX >= count && fitting > 0; fitting--) {
        const uint32_t slot = fill_chunk(pool, sorted[fitting - 1]);
        const uint64_t cost = (uint64_t)fitting * slot
            + (uint64_t)(count - fitting) * 2 * pool->groups[group].raw_bytes;
        if (cost >= best_cost) continue;
        best = slot;
        best_cost = cost;
    }
    return best;
}

/* After each window of blocks: larger slots at once when too many did not fit, smaller ones when that saves a 64th. */
static void choose_classes(struct kvt_host_pool *pool, uint32_t group)
{
    const uint32_t packed = pool->groups[group].packed_bytes;
    if (packed > 0 && pool->groups[group].overflow_count > OVERFLOWS_MAX) {
        set_packed_bytes(pool, group, packed + packed / 32);
        pool->groups[group].quiet_windows = 0;
    } else {
        const uint32_t best = best_slot(pool, group);
        const bool may_shrink = pool->groups[group].quiet_windows >= QUIET_WINDOWS && best + packed / 64 <= packed;
        if (best > 0 && (packed == 0 || may_shrink)) set_packed_bytes(pool, group, best);
        if (pool->groups[group].quiet_windows < QUIET_WINDOWS) pool->groups[group].quiet_windows++;
    }
    pool->groups[group].sample_count = pool->groups[group].overflow_count = 0;
}

void kvt_host_pool_learn(struct kvt_host_pool *pool, uint32_t group, uint32_t length)
{
    if (length > 0) pool->groups[group].samples[pool->groups[group].sample_count++] = length;
    else if (pool->groups[group].packed_bytes > 0) pool->groups[group].overflow_count++;
    if (pool->groups[group].sample_count + pool->groups[group].overflow_count == KVT_PACKED_SAMPLES)
        choose_classes(pool, group);
}

void *kvt_host_pool_address(const struct kvt_host_pool *pool, uint32_t slot)
{
    const uint32_t c = slot / pool->slots_per_chunk_max;
    const uint64_t offset = (uint64_t)(slot % pool->slots_per_chunk_max) * kvt_host_pool_slot_bytes(pool, slot);
    return (uint8_t *)kvt_host_tier_chunk(pool->tier, c) + offset;
}

uint32_t kvt_host_pool_slot_bytes(const struct kvt_host_pool *pool, uint32_t slot)
{
    return pool->classes[pool->chunks[slot / pool->slots_per_chunk_max].class_index].slot_bytes;
}

bool kvt_host_pool_is_fitting(const struct kvt_host_pool *pool, uint32_t slot, uint32_t bytes)
{
    const uint32_t class_index = pool->chunks[slot / pool->slots_per_chunk_max].class_index;
    if (may_take_larger(pool)) return pool->classes[class_index].slot_bytes >= bytes;
    return class_index == class_for(pool, bytes);
}

void kvt_host_pool_chunk_of(const struct kvt_host_pool *pool, uint32_t slot, uint32_t *ret_first, uint32_t *ret_count)
{
    const uint32_t c = slot / pool->slots_per_chunk_max;
    *ret_first = c * pool->slots_per_chunk_max;
    *ret_count = pool->classes[pool->chunks[c].class_index].slots_per_chunk;
}

uint32_t kvt_host_pool_owner(const struct kvt_host_pool *pool, uint32_t slot)
{
    return pool->owner[slot] & FREE_BIT ? KVT_NO_BLOCK : pool->owner[slot];
}

size_t kvt_host_pool_bytes(const struct kvt_host_pool *pool)
{
    return (size_t)pool->slot_count * (sizeof *pool->owner + 8) + (size_t)pool->chunk_count * sizeof *pool->chunks;
}
