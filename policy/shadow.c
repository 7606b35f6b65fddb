#include "policy/shadow.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

#define ENTRIES (KVT_SHADOW_SIDES * KVT_SHADOW_KEYS_MAX)
#define BUCKET_SHIFT 48u /* other bits than the sample's */

enum kvt_status kvt_shadow_init(struct kvt_shadow *shadow, uint64_t tier_bytes)
{
    *shadow = (struct kvt_shadow){ .tier_bytes = tier_bytes };
    for (uint32_t s = 0; s < KVT_SHADOW_SIDES; s++) KVT_TRY(kvt_order_init(&shadow->sides[s].order, ENTRIES, 1));
    shadow->entries = kvt_table_map(ENTRIES * sizeof shadow->entries[0]);
    shadow->buckets = kvt_table_map(ENTRIES * sizeof shadow->buckets[0]);
    return shadow->entries && shadow->buckets ? KVT_OK : KVT_NOMEM;
}

void kvt_shadow_done(struct kvt_shadow *shadow)
{
    kvt_table_unmap(shadow->buckets, ENTRIES * sizeof shadow->buckets[0]);
    kvt_table_unmap(shadow->entries, ENTRIES * sizeof shadow->entries[0]);
    for (uint32_t s = 0; s < KVT_SHADOW_SIDES; s++) kvt_order_done(&shadow->sides[s].order);
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const struct kvt_shadow *shadow, uint64_t key)
{
    return &shadow->buckets[(key >> BUCKET_SHIFT) & (ENTRIES - 1)];
}

/* Its number, KVT_ORDER_NONE: no side holds it. */
static uint32_t find(const struct kvt_shadow *shadow, uint64_t key)
{
    uint32_t at = *bucket_of(shadow, key);
    while (at != 0 && shadow->entries[at - 1].key != key) at = shadow->entries[at - 1].next;
    return at != 0 ? at - 1 : KVT_ORDER_NONE;
}

/* There is always one: a side has no more than half of them. */
static uint32_t take(struct kvt_shadow *shadow, uint64_t key, uint32_t bytes)
{
    uint32_t *bucket = bucket_of(shadow, key);
    uint32_t number = shadow->free_head - 1;
    if (shadow->free_head != 0) shadow->free_head = shadow->entries[number].next;
    else number = shadow->taken++;
    KVT_ASSERT(number < ENTRIES);
    shadow->entries[number] = (struct kvt_shadow_entry){ .key = key, .next = *bucket, .bytes = bytes };
    *bucket = number + 1;
    return number;
}

static void give_back(struct kvt_shadow *shadow, uint32_t number)
{
    uint32_t *at = bucket_of(shadow, shadow->entries[number].key);
    while (*at != number + 1) at = &shadow->entries[*at - 1].next;
    *at = shadow->entries[number].next;
    shadow->entries[number].next = shadow->free_head;
    shadow->free_head = number + 1;
}

/* ---- Sides ------------------------------------------------------------------------------------------------------- */

static uint64_t bytes_max(const struct kvt_shadow *shadow) { return shadow->tier_bytes >> shadow->shift; }

static void evict_coldest(struct kvt_shadow *shadow, uint32_t s)
{
    struct kvt_shadow_side *side = &shadow->sides[s];
    const uint32_t number = kvt_order_coldest(&side->order, 0);
    kvt_order_unlink(&side->order, 0, number);
    side->bytes -= shadow->entries[number].bytes;
    side->count--;
    side->is_full = true;
    if (!kvt_order_has(&shadow->sides[1 - s].order, number)) give_back(shadow, number);
}

/* Room is made first, so that what comes is not what goes. */
static void make_room(struct kvt_shadow *shadow, uint32_t s, uint32_t bytes)
{
    const struct kvt_shadow_side *side = &shadow->sides[s];
    while (side->count == KVT_SHADOW_KEYS_MAX || side->bytes + bytes > bytes_max(shadow)) evict_coldest(shadow, s);
}

static bool has(const struct kvt_shadow *shadow, uint32_t s, uint32_t number)
{
    return number != KVT_ORDER_NONE && kvt_order_has(&shadow->sides[s].order, number);
}

bool kvt_shadow_has_sampled(struct kvt_shadow *shadow, uint64_t key, uint32_t bytes)
{
    if (!shadow->is_sized) {
        while (shadow->tier_bytes / bytes >> shadow->shift > KVT_SHADOW_KEYS_MAX) shadow->shift++;
        shadow->is_sized = true;
    }
    return bytes <= bytes_max(shadow) && (key & ((UINT64_C(1) << shadow->shift) - 1)) == 0;
}

uint32_t kvt_shadow_use(struct kvt_shadow *shadow, uint64_t key, uint32_t bytes, uint32_t admitting)
{
    uint32_t had = 0;
    uint32_t number = find(shadow, key);
    /* What a side holds is moved first: it may not go when the other makes room. */
    for (uint32_t s = 0; s < KVT_SHADOW_SIDES; s++) {
        if (!has(shadow, s, number)) continue;
        had |= 1u << s;
        kvt_order_unlink(&shadow->sides[s].order, 0, number);
        kvt_order_push_warm(&shadow->sides[s].order, 0, number);
    }
    for (uint32_t s = 0; s < KVT_SHADOW_SIDES; s++) {
        if ((had | ~admitting) >> s & 1) continue;
        if (number != KVT_ORDER_NONE) bytes = shadow->entries[number].bytes;
        make_room(shadow, s, bytes);
        if (number == KVT_ORDER_NONE) number = take(shadow, key, bytes);
        kvt_order_push_warm(&shadow->sides[s].order, 0, number);
        shadow->sides[s].bytes += bytes;
        shadow->sides[s].count++;
    }
    return had;
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

void kvt_shadow_verify(const struct kvt_shadow *shadow)
{
    for (uint32_t s = 0; s < KVT_SHADOW_SIDES; s++) {
        const struct kvt_shadow_side *side = &shadow->sides[s];
        uint64_t bytes = 0;
        uint32_t count = 0;
        for (uint32_t n = kvt_order_coldest(&side->order, 0); n != KVT_ORDER_NONE;
             n = kvt_order_warmer(&side->order, n)) {
            KVT_ASSERT(find(shadow, shadow->entries[n].key) == n);
            bytes += shadow->entries[n].bytes;
            count++;
        }
        KVT_ASSERT(bytes == side->bytes);
        KVT_ASSERT(bytes <= bytes_max(shadow));
        KVT_ASSERT(count == side->count);
    }
    uint32_t held = 0, free_count = 0;
    for (uint32_t at = shadow->free_head; at != 0; at = shadow->entries[at - 1].next) free_count++;
    for (uint32_t n = 0; n < shadow->taken; n++) held += has(shadow, 0, n) || has(shadow, 1, n);
    KVT_ASSERT(held + free_count == shadow->taken);
}
