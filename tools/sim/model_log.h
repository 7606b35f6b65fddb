/*
 * model_log: what a store would hold, and write, without bytes or time: records in segments, the oldest reclaimed.
 *
 * It cuts the capacity as the store does (tiers/store_geometry.h) and follows the rules of tiers/store_reclaim.c: one
 * segment is kept as a spare; a victim leaves room for the record that asked and an eighth of a segment; of what it
 * holds, records of live sequences are carried forward, then what was read since it was written, up to half a segment.
 * The moves of a reclaim are done at once, where the store does them between puts.
 *
 * Owns:    entries, segments and their index. Thread: one.
 * Fails:   NOMEM in create; later a put is refused as the store refuses it.
 */
#ifndef KVT_TOOLS_SIM_MODEL_LOG_H
#define KVT_TOOLS_SIM_MODEL_LOG_H

#include "tiers/tier.h"

struct kvt_model_log;

struct kvt_model_log_counters {
    uint64_t capacity_bytes, allocated_bytes;
    uint64_t written_bytes; /* all that goes to the disk: records, moves, headers, summaries, footers */
    uint64_t moved_bytes, stored_bytes;
    uint64_t reclaims, evicted_records, refused_puts;
    uint64_t records;
};

/*
 * record_bytes_max: 0 when unknown; side_bytes_max: of the files beside the records. INVAL: the capacity has no room for
 * four segments.
 */
KVT_NODISCARD enum kvt_status kvt_model_log_create(uint64_t capacity_bytes, uint32_t record_bytes_max,
                                                   uint64_t side_bytes_max, uint32_t alignment,
                                                   struct kvt_model_log **ret_log);
void kvt_model_log_destroy(struct kvt_model_log **log);

/* What a record of so many bytes takes on the disk. */
uint64_t kvt_model_log_stored_bytes(const struct kvt_model_log *log, uint32_t length);

/* The record is there afterwards; an older one of the name is not. FULL: no segment can be reclaimed. */
KVT_NODISCARD enum kvt_status kvt_model_log_put(struct kvt_model_log *log, const struct kvt_name *name,
                                                const struct kvt_found *record);
/* As a get does it: the record counts as read. NOTFOUND. */
KVT_NODISCARD enum kvt_status kvt_model_log_get(struct kvt_model_log *log, const struct kvt_name *name,
                                                uint64_t generation, struct kvt_found *ret_record);
bool kvt_model_log_find(const struct kvt_model_log *log, const struct kvt_name *name, struct kvt_found *ret_record);
bool kvt_model_log_hold(struct kvt_model_log *log, const struct kvt_name *name, struct kvt_found *ret_record);
void kvt_model_log_release(struct kvt_model_log *log, const struct kvt_name *name);
void kvt_model_log_forget(struct kvt_model_log *log, const struct kvt_name *name);
uint32_t kvt_model_log_poll_lost(struct kvt_model_log *log, struct kvt_name *ret_names, uint32_t max);
void kvt_model_log_reset(struct kvt_model_log *log);
void kvt_model_log_counters(const struct kvt_model_log *log, struct kvt_model_log_counters *ret_counters);

#endif
