/*
 * store_geometry: how the space of a store is cut into segments: arithmetic alone, so that a simulator cuts the same.
 *
 * Thread: any; no state.
 */
#ifndef KVT_TIERS_STORE_GEOMETRY_H
#define KVT_TIERS_STORE_GEOMETRY_H

#include <stdint.h>

#include "runtime/base/bytes.h"
#include "tiers/store_format.h"

#define KVT_STORE_SEGMENT_BYTES_MIN (64 * KVT_KIB)
#define KVT_STORE_SEGMENT_BYTES_MAX (64 * KVT_MIB)
#define KVT_STORE_SEGMENTS_MIN 4

/* Summary of so many records: whole blocks. */
static inline uint64_t kvt_store_summary_bytes(uint64_t records)
{
    return kvt_align_up(records * sizeof(struct kvt_summary_entry), KVT_STORE_BLOCK_BYTES);
}

/* What a segment with so many records has besides them: header, footer, summary. */
uint64_t kvt_store_segment_meta_bytes(uint64_t records);

/*
 * Segments are an eighth of the space, 64 MiB at most; and made to hold whole records when their size is known (0: it
 * is not).
 */
uint64_t kvt_store_choose_segment_bytes(uint64_t usable_bytes, uint32_t record_bytes_max, uint32_t alignment);
uint32_t kvt_store_segments_that_fit(uint64_t usable_bytes, uint64_t segment_bytes);

/* Records that a segment lists at most. */
uint32_t kvt_store_segment_entries(uint64_t segment_bytes);

#endif
