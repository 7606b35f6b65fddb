/*
 * Making room. One segment is kept free as a spare. When the open one is full and only the spare is left, the spare is
 * opened and the oldest segment becomes the victim: what is held of it, and what was read since it was written, is
 * copied into the new open segment, whose room for that is reserved before any put gets some. Then the victim is the
 * spare.
 *
 * Rules:
 * 1. A victim leaves room for the record that asked, and for an eighth of a segment, and of its number of records,
 *    besides, which is more than the summary of what is held takes. If no segment does, the put is refused; so reclaim
 *    always ends, gets somewhere, and loses nothing held.
 * 2. An entry that is not kept leaves the index when it is decided, before its bytes can change.
 * 3. The victim's bytes may change only when no get reads them, and after a sync: what replaced or moved a record of it
 *    is on the device by then.
 * 4. What cannot be moved is dropped; if it is held, it is told as lost.
 */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "tiers/store_private.h"

static uint64_t payload_bytes(const struct kvt_store *store)
{
    return store->segment_bytes - 3 * (uint64_t)KVT_STORE_BLOCK_BYTES;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static void write_header(struct kvt_store *store);

static void header_written(struct kvt_store *store, struct kvt_store_io *io)
{
    enum { TRIES_MAX = 3 };
    struct kvt_segment *segment = &store->segments[store->header_segment];
    KVT_ASSERT(segment->writes > 0);
    segment->writes--;
    segment->is_dirty = true;
    pthread_mutex_lock(&store->lock);
    store->stats.written_bytes += io->done_bytes;
    if (io->error) store->stats.write_errors++;
    pthread_mutex_unlock(&store->lock);
    if (!io->error) {
        segment->is_findable = true;
        return;
    }
    if (++store->header_tries < TRIES_MAX) write_header(store);
    else
        kvt_log(&store->env, KVT_LOG_WARN, "%s: a segment header could not be written (%s)", store->path,
                strerror(io->error));
}

static void write_header(struct kvt_store *store)
{
    struct kvt_segment *segment = &store->segments[store->header_segment];
    struct kvt_segment_header header = { .magic = KVT_SEGMENT_MAGIC,
                                         .version = KVT_STORE_FORMAT_VERSION,
                                         .index = store->header_segment,
                                         .store_id = store->store_id,
                                         .epoch = segment->epoch,
                                         .sequence = segment->sequence };
    header.crc = kvt_crc32c(0, &header, offsetof(struct kvt_segment_header, crc));
    memset(store->header_buffer, 0, KVT_STORE_BLOCK_BYTES);
    memcpy(store->header_buffer, &header, sizeof header);
    pthread_mutex_lock(&store->lock);
    kvt_wear_update(&store->wear, store->stats.written_bytes, kvt_env_now_ns(&store->env));
    kvt_wear_note_write(&store->wear, segment->sequence, kvt_store_wall_s(store), store->header_buffer);
    pthread_mutex_unlock(&store->lock);
    segment->writes++;
    kvt_store_io_start(store, &store->header_io, KVT_IO_WRITE, segment->file, 0, store->header_buffer,
                       KVT_STORE_BLOCK_BYTES, false, header_written, NULL);
}

void kvt_store_write_header(struct kvt_store *store, uint32_t index)
{
    store->header_segment = index;
    store->header_tries = 0;
    write_header(store);
}

static void open_segment(struct kvt_store *store, uint32_t index, uint64_t epoch)
{
    struct kvt_segment *segment = &store->segments[index];
    KVT_ASSERT(segment->state == KVT_SEGMENT_FREE);
    KVT_ASSERT(segment->records == 0);
    KVT_ASSERT(segment->readers == 0);
    KVT_ASSERT(segment->writes == 0);
    segment->state = KVT_SEGMENT_OPEN;
    segment->sequence = ++store->segment_sequence;
    segment->epoch = epoch;
    segment->is_findable = false;
    segment->data_end = KVT_STORE_BLOCK_BYTES;
    segment->entry_count = 0;
    segment->summary = store->is_summary_taken[0] ? 1 : 0;
    KVT_ASSERT(!store->is_summary_taken[segment->summary]);
    store->is_summary_taken[segment->summary] = true;
    store->free_count--;
    store->open_segment = index;
    kvt_store_write_header(store, index);
}

static void close_open_segment(struct kvt_store *store)
{
    if (store->open_segment == KVT_STORE_NONE) return;
    KVT_ASSERT(store->closer.stage == KVT_CLOSER_IDLE);
    store->segments[store->open_segment].state = KVT_SEGMENT_CLOSING;
    store->closer.segment = store->open_segment;
    store->closer.stage = KVT_CLOSER_WRITES;
    store->open_segment = KVT_STORE_NONE;
}

/* ---- Choosing ---------------------------------------------------------------------------------------------------- */

/* Makes the file of a segment that has none, if the capacity and the disk allow it. */
static void grow(struct kvt_store *store)
{
    const uint64_t now = kvt_env_now_ns(&store->env);
    if (store->file_count >= store->segments_max || now < store->grow_after_ns) return;
    int os_errno;
    uint32_t index = 0;
    while (store->segments[index].state != KVT_SEGMENT_ABSENT) index++;
    if (!kvt_segment_create(store, index, &os_errno)) store->grow_after_ns = now + KVT_STORE_PAUSE_NS;
}

static uint32_t any_free(const struct kvt_store *store)
{
    /* The one that was used longest ago, so that all files wear alike. */
    uint32_t best = KVT_STORE_NONE;
    for (uint32_t i = 0; i < store->segment_slots; i++) {
        const struct kvt_segment *segment = &store->segments[i];
        if (segment->state != KVT_SEGMENT_FREE || segment->writes > 0) continue;
        if (best == KVT_STORE_NONE || segment->sequence < store->segments[best].sequence) best = i;
    }
    return best;
}

/* Rule 1. `held_max`: more than that held, and a segment is no victim. */
static uint32_t choose_victim(struct kvt_store *store, uint64_t held_max, bool *ret_has_closed)
{
    uint32_t best = KVT_STORE_NONE;
    *ret_has_closed = false;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < store->segment_slots; i++) {
        const struct kvt_segment *segment = &store->segments[i];
        if (segment->state != KVT_SEGMENT_CLOSED) continue;
        *ret_has_closed = true;
        if (segment->held_bytes > held_max || segment->held_records > store->entries_max / 8 * 7) continue;
        if (best == KVT_STORE_NONE || segment->sequence < store->segments[best].sequence) best = i;
    }
    pthread_mutex_unlock(&store->lock);
    return best;
}

/* Lists what may be kept of the victim, and drops the rest. The lock is given back now and then. */
static void list_kept(struct kvt_store *store)
{
    enum { ENTRIES_PER_LOCK = 4096 };
    struct kvt_store_index *index = &store->index;
    store->reclaim.kept_count = 0;
    /* Only this thread inserts, so the table stays where it is while the lock is given back. */
    for (uint64_t i = 0; i < index->capacity;) {
        pthread_mutex_lock(&store->lock);
        const uint64_t end = kvt_min_u64(i + ENTRIES_PER_LOCK, index->capacity);
        for (; i < end; i++) {
            struct kvt_store_entry *entry = &index->entries[i];
            if (entry->state != KVT_ENTRY_LIVE || entry->segment != store->reclaim.victim) continue;
            if (entry->holds == 0 && !entry->is_hit && !store->reclaim.is_keeping_all) {
                kvt_store_entry_drop(store, entry);
                store->stats.evicted_records++;
                continue;
            }
            KVT_ASSERT(store->reclaim.kept_count < store->entries_max);
            store->reclaim.kept[store->reclaim.kept_count++] = (struct kvt_kept){
                .name = entry->name,
                .offset = (uint64_t)entry->offset_units * KVT_STORE_UNIT_BYTES,
                .stored = (uint32_t)kvt_store_stored_bytes(entry->length, store->alignment)
            };
        }
        pthread_mutex_unlock(&store->lock);
    }
}

static struct kvt_store_entry *entry_at(struct kvt_store *store, const struct kvt_name *name, uint64_t offset)
{
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, name);
    if (!entry || entry->segment != store->reclaim.victim) return NULL;
    return (uint64_t)entry->offset_units * KVT_STORE_UNIT_BYTES == offset ? entry : NULL;
}

/* Decides, held ones first, as far as there is room beside a record of `stored` bytes, hits up to half a segment. */
static void decide_kept(struct kvt_store *store, uint64_t stored)
{
    uint32_t kept_count = 0;
    struct kvt_kept *kept = store->reclaim.kept;
    pthread_mutex_lock(&store->lock);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = kept_count; i < store->reclaim.kept_count; i++) {
            struct kvt_store_entry *entry = entry_at(store, &kept[i].name, kept[i].offset);
            if (!entry || (entry->holds == 0 && round == 0)) continue;
            const uint64_t reserve = store->reclaim.reserve_bytes + kept[i].stored;
            const bool fits = kvt_store_has_room(store, stored, reserve, store->reclaim.reserve_count + 1)
                && (round == 0 || store->reclaim.is_keeping_all || reserve <= payload_bytes(store) / 2);
            if (!fits) {
                kvt_store_entry_drop(store, entry);
                store->stats.evicted_records++;
                continue;
            }
            store->reclaim.reserve_bytes = reserve;
            store->reclaim.reserve_count++;
            const struct kvt_kept swap = kept[kept_count];
            kept[kept_count++] = kept[i];
            kept[i] = swap;
        }
    }
    store->reclaim.epoch = store->epoch;
    pthread_mutex_unlock(&store->lock);
    store->reclaim.kept_count = kept_count;
}

static void reclaim_begin(struct kvt_store *store, uint32_t victim, uint64_t stored, bool is_keeping_all)
{
    KVT_ASSERT(store->reclaim.stage == KVT_RECLAIM_IDLE);
    store->reclaim.stage = KVT_RECLAIM_COPY;
    store->reclaim.victim = victim;
    store->reclaim.is_keeping_all = is_keeping_all;
    store->reclaim.next = store->reclaim.extents_busy = 0;
    store->reclaim.reserve_bytes = store->reclaim.reserve_count = 0;
    store->segments[victim].state = KVT_SEGMENT_RECLAIMED;
    pthread_mutex_lock(&store->lock);
    const bool is_empty = store->segments[victim].records == 0;
    store->reclaim.epoch = store->epoch;
    pthread_mutex_unlock(&store->lock);
    store->reclaim.kept_count = 0;
    if (!is_empty) {
        list_kept(store);
        decide_kept(store, stored);
    }
    store->has_moved = true;
}

enum kvt_advance kvt_store_advance(struct kvt_store *store, uint64_t stored)
{
    pthread_mutex_lock(&store->lock);
    const uint64_t epoch = store->epoch;
    pthread_mutex_unlock(&store->lock);
    const bool is_current = store->open_segment != KVT_STORE_NONE
        && store->segments[store->open_segment].epoch == epoch;
    if (is_current && kvt_store_has_room(store, stored, store->reclaim.reserve_bytes, store->reclaim.reserve_count))
        return KVT_ADVANCE_READY;
    if (store->reclaim.stage == KVT_RECLAIM_SYNC && store->reclaim.retry_ns != 0) {
        /* While its header cannot be written no sync succeeds; its footer, once it is full, says as much. */
        if (is_current && !store->segments[store->open_segment].is_findable && store->closer.stage == KVT_CLOSER_IDLE)
            close_open_segment(store);
        return KVT_ADVANCE_NOSPACE;
    }
    if (store->reclaim.stage != KVT_RECLAIM_IDLE || store->closer.stage != KVT_CLOSER_IDLE || store->header_io.is_busy)
        return KVT_ADVANCE_WAIT;

    if (store->free_count < 2) grow(store);
    const bool can_grow = store->file_count < store->segments_max
        && kvt_env_now_ns(&store->env) >= store->grow_after_ns;
    const uint64_t leave = stored + store->segment_bytes / 8;
    bool has_closed;
    uint32_t victim = KVT_STORE_NONE;
    if (store->free_count < 2 && !(store->free_count == 1 && can_grow)) {
        const bool has_spare = store->free_count == 1;
        victim = choose_victim(store, has_spare ? payload_bytes(store) - kvt_min_u64(leave, payload_bytes(store)) : 0,
                               &has_closed);
        if (!has_spare) {
            /* After a crash in the middle of reclaim, or when the disk filled up: only what nobody holds can go. */
            if (victim == KVT_STORE_NONE)
                return store->file_count < store->segments_max ? KVT_ADVANCE_NOSPACE : KVT_ADVANCE_FULL;
            reclaim_begin(store, victim, stored, false);
            return KVT_ADVANCE_WAIT;
        }
        if (victim == KVT_STORE_NONE && has_closed) return KVT_ADVANCE_FULL;
    }
    const uint32_t next = any_free(store);
    if (next == KVT_STORE_NONE) return KVT_ADVANCE_WAIT;
    close_open_segment(store);
    open_segment(store, next, epoch);
    if (victim != KVT_STORE_NONE) reclaim_begin(store, victim, stored, false);
    return kvt_store_has_room(store, stored, store->reclaim.reserve_bytes, store->reclaim.reserve_count)
        ? KVT_ADVANCE_READY
        : KVT_ADVANCE_WAIT;
}

/* ---- Copying forward --------------------------------------------------------------------------------------------- */

static void move_read(struct kvt_store *store, struct kvt_store_io *io);
static void piece_start(struct kvt_store *store, struct kvt_extent *extent);

/* Takes the place of a kept record, if it is still where it was. */
static bool move_begin(struct kvt_store *store, const struct kvt_kept *kept, struct kvt_move *move)
{
    store->reclaim.reserve_bytes -= kept->stored;
    store->reclaim.reserve_count--;
    pthread_mutex_lock(&store->lock);
    const struct kvt_store_entry *entry = entry_at(store, &kept->name, kept->offset);
    const bool is_there = entry && store->reclaim.epoch == store->epoch;
    struct kvt_summary_entry listed = { .name = kept->name };
    if (is_there) {
        listed.generation = entry->generation;
        listed.sequence = entry->sequence;
        listed.length = entry->length;
        listed.tokens = entry->tokens;
        listed.form = entry->form;
        listed.flags = entry->is_private ? KVT_RECORD_PRIVATE : 0;
    }
    pthread_mutex_unlock(&store->lock);
    if (!is_there) return false;
    *move = (struct kvt_move){ .name = kept->name,
                               .source_offset = kept->offset,
                               .stored = kept->stored,
                               .length = listed.length,
                               .generation = listed.generation,
                               .sequence = listed.sequence };
    move->summary_index = kvt_store_append(store, &listed, kept->stored, &move->target_offset);
    return true;
}

/* The header of what was read must be the record's; then it is made the header of its new place. */
static bool move_header_check(struct kvt_store *store, const struct kvt_move *move, struct kvt_record_header *header)
{
    const struct kvt_segment *victim = &store->segments[store->reclaim.victim];
    return kvt_record_header_is_valid(store, header, store->reclaim.epoch, victim->sequence, move->source_offset)
        && kvt_name_equal(&header->name, &move->name) && header->length == move->length
        && header->sequence == move->sequence && header->generation == move->generation;
}

static void move_header_place(struct kvt_store *store, const struct kvt_extent *extent, const struct kvt_move *move,
                              uint8_t *record)
{
    struct kvt_record_header header;
    memcpy(&header, record, sizeof header);
    header.segment_sequence = store->segments[extent->segment].sequence;
    header.offset = move->target_offset;
    kvt_record_header_seal(&header);
    memcpy(record, &header, sizeof header);
}

/* The index follows the record, or, if that failed, forgets it (rule 4). */
static void move_end(struct kvt_store *store, const struct kvt_extent *extent, const struct kvt_move *move,
                     bool is_good)
{
    if (!is_good) kvt_store_summary_strike(store, extent->segment, move->summary_index);
    pthread_mutex_lock(&store->lock);
    struct kvt_store_entry *entry = store->reclaim.epoch == store->epoch
        ? entry_at(store, &move->name, move->source_offset)
        : NULL;
    if (entry && is_good) {
        kvt_store_entry_count(store, entry, -1);
        entry->segment = extent->segment & 0xffffu;
        entry->offset_units = (uint32_t)(move->target_offset / KVT_STORE_UNIT_BYTES);
        entry->is_hit = 0;
        kvt_store_entry_count(store, entry, 1);
        store->stats.moved_records++;
        store->stats.moved_bytes += move->stored;
    } else if (entry) {
        kvt_store_entry_drop(store, entry);
    }
    pthread_mutex_unlock(&store->lock);
}

static void extent_end(struct kvt_store *store, struct kvt_extent *extent)
{
    extent->state = KVT_EXTENT_FREE;
    KVT_ASSERT(store->reclaim.extents_busy > 0);
    store->reclaim.extents_busy--;
    store->has_moved = true;
}

static void moves_written(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_extent *extent = io->owner;
    struct kvt_segment *segment = &store->segments[extent->segment];
    segment->writes--;
    segment->is_dirty = true;
    pthread_mutex_lock(&store->lock);
    store->stats.written_bytes += io->done_bytes;
    if (io->error) store->stats.write_errors++;
    pthread_mutex_unlock(&store->lock);
    if (extent->is_piecewise && !io->error) {
        extent->piece_at += extent->fill;
        if (extent->piece_at < extent->moves[0].stored) {
            piece_start(store, extent);
            return;
        }
    }
    for (uint32_t i = 0; i < extent->move_count; i++)
        move_end(store, extent, &extent->moves[i], extent->moves[i].is_good && !io->error);
    extent_end(store, extent);
}

static void moves_give_up(struct kvt_store *store, struct kvt_extent *extent)
{
    for (uint32_t i = 0; i < extent->move_count; i++) move_end(store, extent, &extent->moves[i], false);
    extent_end(store, extent);
}

static void count_bad_read(struct kvt_store *store, int error)
{
    pthread_mutex_lock(&store->lock);
    if (error) store->stats.read_errors++;
    else store->stats.corrupt++;
    pthread_mutex_unlock(&store->lock);
    kvt_log(&store->env, KVT_LOG_WARN, "%s: a record could not be copied forward (%s), serving a miss", store->path,
            error ? strerror(error) : "it failed its check");
}

/* A record larger than an extent: its pieces one after the other, the checksum as they pass. */
static void piece_read(struct kvt_store *store, struct kvt_extent *extent, int error)
{
    struct kvt_move *move = &extent->moves[0];
    uint64_t payload_at = 0;
    bool is_good = error == 0;
    if (is_good && extent->piece_at == 0) {
        struct kvt_record_header header;
        memcpy(&header, extent->buffer, sizeof header);
        is_good = move_header_check(store, move, &header);
        extent->wanted_crc = header.payload_crc;
        extent->piece_crc = 0;
        payload_at = kvt_store_payload_at(move->length, store->alignment);
        if (is_good) move_header_place(store, extent, move, extent->buffer);
    }
    if (is_good) {
        const uint64_t record_end = kvt_store_payload_at(move->length, store->alignment) + (uint64_t)move->length;
        const uint64_t end = kvt_min_u64(extent->fill, record_end - extent->piece_at);
        extent->piece_crc = kvt_crc32c(extent->piece_crc, extent->buffer + payload_at, end - payload_at);
        if (extent->piece_at + extent->fill == move->stored) is_good = extent->piece_crc == extent->wanted_crc;
    }
    move->is_good = is_good;
    if (is_good) {
        kvt_store_extent_write(store, extent, moves_written);
    } else {
        count_bad_read(store, error);
        moves_give_up(store, extent);
    }
}

static void piece_start(struct kvt_store *store, struct kvt_extent *extent)
{
    struct kvt_move *move = &extent->moves[0];
    extent->state = KVT_EXTENT_READING;
    extent->offset = move->target_offset + extent->piece_at;
    extent->fill = (uint32_t)kvt_min_u64(store->extent_bytes, move->stored - extent->piece_at);
    kvt_store_io_start(store, &move->read, KVT_IO_READ, store->segments[store->reclaim.victim].file,
                       move->source_offset + extent->piece_at, extent->buffer, extent->fill, false, move_read, extent);
}

static void move_read(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_extent *extent = io->owner;
    pthread_mutex_lock(&store->lock);
    store->stats.read_bytes += io->done_bytes;
    pthread_mutex_unlock(&store->lock);
    if (extent->is_piecewise) {
        piece_read(store, extent, io->error);
        return;
    }
    if (--extent->reads_pending > 0) return;
    uint32_t good_count = 0;
    for (uint32_t i = 0; i < extent->move_count; i++) {
        struct kvt_move *move = &extent->moves[i];
        uint8_t *record = extent->buffer + move->buffer_at;
        struct kvt_record_header header;
        memcpy(&header, record, sizeof header);
        move->is_good = move->read.error == 0 && move_header_check(store, move, &header)
            && kvt_crc32c(0, record + kvt_store_payload_at(header.length, store->alignment), header.length)
                == header.payload_crc;
        if (move->is_good) {
            move_header_place(store, extent, move, record);
            good_count++;
        } else {
            count_bad_read(store, move->read.error);
            memset(record, 0, sizeof header);
        }
    }
    if (good_count > 0) kvt_store_extent_write(store, extent, moves_written);
    else moves_give_up(store, extent);
}

static void moves_start(struct kvt_store *store, struct kvt_extent *extent)
{
    const struct kvt_kept *kept = store->reclaim.kept;
    extent->offset = store->segments[store->open_segment].data_end;
    while (store->reclaim.next < store->reclaim.kept_count && extent->move_count < KVT_STORE_MOVES_MAX) {
        const struct kvt_kept *item = &kept[store->reclaim.next];
        if (item->stored > store->extent_bytes && extent->move_count > 0) break;
        if (item->stored <= store->extent_bytes && extent->fill + item->stored > store->extent_bytes) break;
        store->reclaim.next++;
        struct kvt_move *move = &extent->moves[extent->move_count];
        if (!move_begin(store, item, move)) continue;
        extent->move_count++;
        if (item->stored > store->extent_bytes) {
            extent->is_piecewise = true;
            extent->piece_at = 0;
            break;
        }
        move->buffer_at = extent->fill;
        extent->fill += item->stored;
    }
    if (extent->move_count == 0) {
        extent->state = KVT_EXTENT_FREE;
        return;
    }
    store->reclaim.extents_busy++;
    if (extent->is_piecewise) {
        piece_start(store, extent);
        return;
    }
    extent->state = KVT_EXTENT_READING;
    extent->reads_pending = extent->move_count;
    for (uint32_t i = 0; i < extent->move_count; i++) {
        struct kvt_move *move = &extent->moves[i];
        kvt_store_io_start(store, &move->read, KVT_IO_READ, store->segments[store->reclaim.victim].file,
                           move->source_offset, extent->buffer + move->buffer_at, move->stored, false, move_read,
                           extent);
    }
}

static void reclaim_copy(struct kvt_store *store)
{
    const uint32_t extents_max = kvt_max_u32(store->extent_count / 2, 1);
    while (store->reclaim.next < store->reclaim.kept_count && store->reclaim.extents_busy < extents_max) {
        struct kvt_extent *extent = kvt_store_extent_take(store);
        if (!extent) return;
        moves_start(store, extent);
    }
    if (store->reclaim.next < store->reclaim.kept_count || store->reclaim.extents_busy > 0) return;
    KVT_ASSERT(store->reclaim.reserve_bytes == 0);
    KVT_ASSERT(store->reclaim.reserve_count == 0);
    store->reclaim.stage = KVT_RECLAIM_READERS;
    store->has_moved = true;
}

/* ---- Compacting -------------------------------------------------------------------------------------------------- */

/* The emptiest segment of those that were there at the start; NONE: each was looked at. */
static uint32_t choose_scattered(struct kvt_store *store, uint64_t *ret_live_bytes, uint32_t *ret_records)
{
    uint32_t best = KVT_STORE_NONE;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < store->segment_slots; i++) {
        const struct kvt_segment *segment = &store->segments[i];
        if (segment->state != KVT_SEGMENT_CLOSED || segment->sequence >= store->compact_below) continue;
        if (segment->live_bytes > payload_bytes(store) / 4 * 3) continue;
        if (best == KVT_STORE_NONE || segment->live_bytes < store->segments[best].live_bytes) best = i;
    }
    if (best != KVT_STORE_NONE) {
        *ret_live_bytes = store->segments[best].live_bytes;
        *ret_records = store->segments[best].records;
    }
    pthread_mutex_unlock(&store->lock);
    return best;
}

static void compact_end(struct kvt_store *store)
{
    for (uint32_t i = 0; i < store->segment_slots && store->free_count > 1; i++)
        if (store->segments[i].state == KVT_SEGMENT_FREE) kvt_segment_remove(store, i);
    store->compact_below = 0;
    store->has_moved = true;
    pthread_mutex_lock(&store->lock);
    store->is_compacting = false;
    (void)pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

/* Empties one scattered segment after the other, each at most once; no record is dropped for it. */
static void compact_step(struct kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    const bool is_wanted = store->is_compacting;
    const uint64_t epoch = store->epoch;
    pthread_mutex_unlock(&store->lock);
    if (!is_wanted || store->closer.stage != KVT_CLOSER_IDLE || store->header_io.is_busy || store->big
        || store->syncer.stage != KVT_SYNCER_IDLE)
        return;
    if (store->compact_below == 0) store->compact_below = store->segment_sequence + 1;
    uint64_t live_bytes = 0;
    uint32_t records = 0;
    const uint32_t victim = choose_scattered(store, &live_bytes, &records);
    if (victim == KVT_STORE_NONE) {
        compact_end(store);
        return;
    }
    const bool is_current = store->open_segment != KVT_STORE_NONE
        && store->segments[store->open_segment].epoch == epoch;
    if (!is_current || (records > 0 && !kvt_store_has_room(store, 0, live_bytes, records))) {
        if (store->free_count == 0) grow(store);
        const uint32_t next = any_free(store);
        if (next == KVT_STORE_NONE) {
            compact_end(store); /* no room to move anything */
            return;
        }
        close_open_segment(store);
        open_segment(store, next, epoch);
    }
    reclaim_begin(store, victim, 0, true);
}

/*
 * Under the lock. What was moved lasts only where it came from: the victim is not written again before a sync succeeds.
 * One that fails is tried again after a pause; puts that need the room are refused meanwhile.
 */
static void sync_again(struct kvt_store *store)
{
    const uint64_t now = kvt_env_now_ns(&store->env);
    if (store->reclaim.retry_ns == 0) {
        store->reclaim.retry_ns = now + KVT_STORE_PAUSE_NS;
        store->has_compact_failed |= store->is_compacting;
        store->is_compacting = false;
        store->compact_below = 0;
        store->has_moved = true;
        (void)pthread_cond_broadcast(&store->changed);
        kvt_log(&store->env, KVT_LOG_WARN, "%s: a sync failed: no segment is used again before one succeeds", store->path);
    } else if (now >= store->reclaim.retry_ns) {
        store->reclaim.retry_ns = 0;
        store->reclaim.run = kvt_store_want_sync(store);
        store->has_moved = true;
    }
}

void kvt_store_reclaim_step(struct kvt_store *store)
{
    struct kvt_segment *victim = &store->segments[store->reclaim.victim];
    switch (store->reclaim.stage) {
    case KVT_RECLAIM_IDLE: compact_step(store); return;
    case KVT_RECLAIM_COPY: reclaim_copy(store); return;
    case KVT_RECLAIM_READERS:
        pthread_mutex_lock(&store->lock);
        if (victim->readers == 0) {
            KVT_ASSERT(victim->records == 0);
            store->reclaim.run = kvt_store_want_sync(store);
            store->reclaim.stage = KVT_RECLAIM_SYNC;
            store->has_moved = true;
        }
        pthread_mutex_unlock(&store->lock);
        return;
    case KVT_RECLAIM_SYNC:
        pthread_mutex_lock(&store->lock);
        const bool is_through = store->sync_finished >= store->reclaim.run && store->sync_failed < store->reclaim.run;
        if (is_through) store->stats.reclaims++;
        else if (store->sync_finished >= store->reclaim.run) sync_again(store);
        pthread_mutex_unlock(&store->lock);
        if (!is_through || victim->writes > 0) return; /* its header may just be tried again */
        victim->state = KVT_SEGMENT_FREE;
        victim->is_dirty = false;
        store->free_count++;
        store->reclaim.stage = KVT_RECLAIM_IDLE;
        store->has_moved = true;
        return;
    }
}
