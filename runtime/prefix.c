#include "runtime/prefix.h"

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"

#define BLOCKS_PER_BUCKET 7u /* on average, of KVT_PREFIX_LANES */
#define BYTES(value) (UINT64_C(0x0101010101010101) * (value))
#define PASSED_ONE (UINT64_C(1) << 32)

_Static_assert(sizeof(struct kvt_prefix_bucket) == 64, "a bucket is one cache line");

struct place {
    uint32_t home; /* the first bucket to look at */
    uint8_t tag;
};

static struct place place_of(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key)
{
    /* Keys are digests: their bits are as good as a hash's. The group only has to differ. */
    const uint32_t hash = (uint32_t)(key.lo >> 32) ^ (group * 0x9e3779b9u);
    const uint8_t tag = (uint8_t)(key.lo + group);
    return (struct place){ .home = (uint32_t)(((uint64_t)hash * prefix->bucket_count) >> 32), .tag = tag ? tag : 1 };
}

static uint32_t after(const struct kvt_prefix *prefix, uint32_t bucket)
{
    return bucket + 1 == prefix->bucket_count ? 0 : bucket + 1;
}

/* ---- Lanes. A set of lanes is a word: lane n is bit 8 n for n < 8, and bit 8 (n - 8) + 1 above. ------------------ */

/* The top bit of each byte that is zero. Exact: no carry leaves a byte. */
static uint64_t zero_bytes(uint64_t x) { return ~(((x & BYTES(0x7f)) + BYTES(0x7f)) | x) & BYTES(0x80); }

static uint64_t lanes_with(const struct kvt_prefix_bucket *bucket, uint8_t tag)
{
    const uint64_t low = zero_bytes(bucket->tags[0] ^ BYTES(tag));
    const uint64_t high = (uint32_t)zero_bytes(bucket->tags[1] ^ BYTES(tag));
    return low >> 7 | high >> 6;
}

static uint32_t first_lane(uint64_t lanes)
{
    const uint32_t bit = (uint32_t)__builtin_ctzll(lanes);
    return bit / 8 + (bit & 1) * 8;
}

static void set_tag(struct kvt_prefix_bucket *bucket, uint32_t lane, uint8_t tag)
{
    uint64_t *word = &bucket->tags[lane / 8];
    const uint32_t shift = lane % 8 * 8;
    *word = (*word & ~(UINT64_C(0xff) << shift)) | (uint64_t)tag << shift;
}

static bool is_passed(const struct kvt_prefix_bucket *bucket) { return bucket->tags[1] >= PASSED_ONE; }

/* ---- The table --------------------------------------------------------------------------------------------------- */

enum kvt_status kvt_prefix_init(struct kvt_prefix *prefix, const struct kvt_block *blocks, uint32_t entries_max)
{
    *prefix = (struct kvt_prefix){ .bucket_count = entries_max / BLOCKS_PER_BUCKET + 1, .blocks = blocks };
    prefix->buckets = kvt_table_map(kvt_prefix_bytes(prefix));
    return prefix->buckets ? KVT_OK : KVT_NOMEM;
}

void kvt_prefix_done(struct kvt_prefix *prefix)
{
    if (prefix->buckets) kvt_table_unmap(prefix->buckets, kvt_prefix_bytes(prefix));
    prefix->buckets = NULL;
}

size_t kvt_prefix_bytes(const struct kvt_prefix *prefix)
{
    return (size_t)prefix->bucket_count * sizeof *prefix->buckets;
}

static uint32_t find(const struct kvt_prefix *prefix, struct place place, uint32_t group, struct kvt_key key)
{
    uint32_t position = place.home;
    for (uint32_t seen = 0; seen < prefix->bucket_count; seen++) {
        const struct kvt_prefix_bucket *bucket = &prefix->buckets[position];
        for (uint64_t lanes = lanes_with(bucket, place.tag); lanes != 0; lanes &= lanes - 1) {
            const uint32_t candidate = bucket->blocks[first_lane(lanes)];
            const struct kvt_block *block = &prefix->blocks[candidate];
            if (block->group == group && kvt_key_equal(block->key, key)) return candidate;
        }
        if (!is_passed(bucket)) break;
        position = after(prefix, position);
    }
    return KVT_NO_BLOCK;
}

uint32_t kvt_prefix_find(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key)
{
    return find(prefix, place_of(prefix, group, key), group, key);
}

uint32_t kvt_prefix_find_or_insert(struct kvt_prefix *prefix, uint32_t block)
{
    const struct kvt_block *entered = &prefix->blocks[block];
    const struct place place = place_of(prefix, entered->group, entered->key);
    const uint32_t other = find(prefix, place, entered->group, entered->key);
    if (other != KVT_NO_BLOCK) return other;

    KVT_ASSERT(prefix->count / BLOCKS_PER_BUCKET < prefix->bucket_count);
    struct kvt_prefix_bucket *bucket = &prefix->buckets[place.home];
    uint64_t free_lanes = lanes_with(bucket, 0);
    for (uint32_t position = place.home; free_lanes == 0; free_lanes = lanes_with(bucket, 0)) {
        bucket->tags[1] += PASSED_ONE;
        position = after(prefix, position);
        bucket = &prefix->buckets[position];
    }
    const uint32_t lane = first_lane(free_lanes);
    set_tag(bucket, lane, place.tag);
    bucket->blocks[lane] = block;
    prefix->count++;
    return KVT_NO_BLOCK;
}

void kvt_prefix_insert(struct kvt_prefix *prefix, uint32_t block)
{
    const uint32_t other = kvt_prefix_find_or_insert(prefix, block);
    KVT_ASSERT(other == KVT_NO_BLOCK);
}

/* The lanes, one or none, of the bucket where the block stands. */
static uint64_t lanes_of_block(const struct kvt_prefix_bucket *bucket, uint8_t tag, uint32_t block)
{
    uint64_t lanes = lanes_with(bucket, tag);
    while (lanes != 0 && bucket->blocks[first_lane(lanes)] != block) lanes &= lanes - 1;
    return lanes;
}

void kvt_prefix_remove(struct kvt_prefix *prefix, uint32_t block)
{
    const struct place place = place_of(prefix, prefix->blocks[block].group, prefix->blocks[block].key);
    uint32_t position = place.home;
    uint64_t lanes;
    while ((lanes = lanes_of_block(&prefix->buckets[position], place.tag, block)) == 0) {
        KVT_ASSERT(is_passed(&prefix->buckets[position]));
        prefix->buckets[position].tags[1] -= PASSED_ONE;
        position = after(prefix, position);
    }
    set_tag(&prefix->buckets[position], first_lane(lanes), 0);
    prefix->count--;
}

void kvt_prefix_prefetch(const struct kvt_prefix *prefix, uint32_t group, struct kvt_key key)
{
    __builtin_prefetch(&prefix->buckets[place_of(prefix, group, key).home], 1);
}
