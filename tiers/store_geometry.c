#include "tiers/store_geometry.h"

#include "tiers/store_private.h"

uint64_t kvt_store_segment_meta_bytes(uint64_t records)
{
    return 2 * KVT_STORE_BLOCK_BYTES + kvt_store_summary_bytes(records);
}

uint64_t kvt_store_choose_segment_bytes(uint64_t usable_bytes, uint32_t record_bytes_max, uint32_t alignment)
{
    uint64_t bytes = kvt_min_u64(usable_bytes / 8, KVT_STORE_SEGMENT_BYTES_MAX);
    bytes = kvt_max_u64(bytes, usable_bytes / KVT_STORE_SEGMENTS_MAX + 1); /* a file number has 16 bits */
    bytes = kvt_max_u64(kvt_align_up(bytes, KVT_STORE_BLOCK_BYTES) - KVT_STORE_BLOCK_BYTES,
                        KVT_STORE_SEGMENT_BYTES_MIN);
    if (record_bytes_max == 0) return bytes;
    const uint64_t stored = kvt_store_stored_bytes(record_bytes_max, alignment);
    if (stored * 8 <= bytes) return bytes;
    for (uint64_t records = 8; records > 0; records--) {
        const uint64_t wanted = kvt_align_up(records * stored + kvt_store_segment_meta_bytes(records),
                                             KVT_STORE_BLOCK_BYTES);
        const uint64_t count = usable_bytes / (wanted + KVT_STORE_FILE_SLACK);
        /* Several records a segment waste less of it; many segments waste less on the spare one. */
        if (count >= (records > 1 ? 6 : KVT_STORE_SEGMENTS_MIN))
            return kvt_max_u64(wanted, KVT_STORE_SEGMENT_BYTES_MIN);
    }
    return bytes;
}

uint32_t kvt_store_segments_that_fit(uint64_t usable_bytes, uint64_t segment_bytes)
{
    return (uint32_t)kvt_min_u64(usable_bytes / (segment_bytes + KVT_STORE_FILE_SLACK), KVT_STORE_SEGMENTS_MAX);
}

uint32_t kvt_store_segment_entries(uint64_t segment_bytes)
{
    return (uint32_t)kvt_min_u64(kvt_max_u64(segment_bytes / KVT_KIB, 16), 16384);
}
