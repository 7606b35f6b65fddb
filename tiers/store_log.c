#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/plant.h"
#include "tiers/store_geometry.h"
#include "tiers/store_private.h"

/* ---- Segment files ---------------------------------------------------------------------------------------------- */

void kvt_segment_name(uint32_t index, char ret_name[24]) { (void)snprintf(ret_name, 24, "segment-%06u", index); }

uint64_t kvt_store_usable_bytes(const struct kvt_store *store)
{
    return store->capacity_bytes > store->allocated_fixed ? store->capacity_bytes - store->allocated_fixed : 0;
}

/* As du sees the file; a block I/O that is not on this file system knows only what was asked for. */
static uint64_t measure(const struct kvt_store *store, const char *name)
{
    struct stat status;
    if (fstatat(store->directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return store->segment_bytes;
    return (uint64_t)status.st_blocks * 512;
}

static void count_allocated(struct kvt_store *store, int64_t bytes)
{
    store->allocated_bytes += (uint64_t)bytes;
    pthread_mutex_lock(&store->lock);
    store->stats.allocated_bytes = store->allocated_fixed + store->allocated_bytes;
    store->stats.allocated_peak = kvt_max_u64(store->stats.allocated_peak, store->stats.allocated_bytes);
    store->stats.segments = store->file_count;
    pthread_mutex_unlock(&store->lock);
}

static bool has_disk_room(const struct kvt_store *store)
{
    if (store->reserve_bytes == 0) return true;
    struct statvfs room;
    if (fstatvfs(store->directory, &room) != 0) return true;
    return (uint64_t)room.f_bavail * room.f_frsize >= store->reserve_bytes + store->segment_bytes;
}

/*
 * The file of an absent segment goes. One that does not go takes its space still: it stays counted, and goes before the
 * segment gets a file again. False: it is still there.
 */
static bool remove_leftover(struct kvt_store *store, uint32_t index)
{
    struct kvt_segment *segment = &store->segments[index];
    char name[24];
    int os_errno = 0;
    kvt_segment_name(index, name);
    if (store->io->ops->remove_file(store->io, name, &os_errno) != KVT_OK && os_errno != ENOENT) return false;
    count_allocated(store, -(int64_t)segment->allocated_bytes);
    segment->allocated_bytes = 0;
    return true;
}

/* What was made of a file is taken back. */
static bool undo_create(struct kvt_store *store, uint32_t index, int file, const char *name)
{
    struct kvt_segment *segment = &store->segments[index];
    store->io->ops->close_file(store->io, file);
    segment->allocated_bytes = measure(store, name);
    count_allocated(store, (int64_t)segment->allocated_bytes);
    (void)remove_leftover(store, index);
    return false;
}

bool kvt_segment_create(struct kvt_store *store, uint32_t index, int *ret_errno)
{
    struct kvt_segment *segment = &store->segments[index];
    KVT_ASSERT(segment->state == KVT_SEGMENT_ABSENT);
    const struct kvt_block_io_ops *ops = store->io->ops;
    *ret_errno = ENOSPC;
    if (segment->allocated_bytes > 0 && !remove_leftover(store, index)) return false;
    /* The rule of the capacity: first there is room for all of the file, then the file. */
    if (store->allocated_bytes + store->segment_bytes + KVT_STORE_FILE_SLACK > kvt_store_usable_bytes(store)
        && !KVT_PLANTED(NO_CAP))
        return false;
    if (!has_disk_room(store)) return false;
    char name[24];
    kvt_segment_name(index, name);
    int file, ignored;
    if (ops->open_file(store->io, name, true, &file, ret_errno) != KVT_OK) {
        if (*ret_errno != EEXIST) return false;
        (void)ops->remove_file(store->io, name, &ignored); /* not one of ours: those are known since open */
        return false;
    }
    if (ops->allocate(store->io, file, store->segment_bytes, ret_errno) != KVT_OK
        || ops->sync_directory(store->io, ret_errno) != KVT_OK)
        return undo_create(store, index, file, name);
    segment->file = file;
    segment->state = KVT_SEGMENT_FREE;
    segment->allocated_bytes = measure(store, name);
    store->file_count++;
    store->free_count++;
    count_allocated(store, (int64_t)segment->allocated_bytes);
    return true;
}

void kvt_segment_remove(struct kvt_store *store, uint32_t index)
{
    struct kvt_segment *segment = &store->segments[index];
    KVT_ASSERT(segment->state == KVT_SEGMENT_FREE);
    store->io->ops->close_file(store->io, segment->file);
    segment->state = KVT_SEGMENT_ABSENT;
    segment->is_dirty = false;
    store->file_count--;
    store->free_count--;
    (void)remove_leftover(store, index);
}

/* ---- Records and the index ------------------------------------------------------------------------------------- */

void kvt_record_header_seal(struct kvt_record_header *header)
{
    header->crc = kvt_crc32c(0, header, offsetof(struct kvt_record_header, crc));
}

bool kvt_record_header_is_valid(const struct kvt_store *store, const struct kvt_record_header *header, uint64_t epoch,
                                uint64_t segment_sequence, uint64_t offset)
{
    if (header->magic != KVT_RECORD_MAGIC || header->version != KVT_STORE_FORMAT_VERSION) return false;
    if (header->crc != kvt_crc32c(0, header, offsetof(struct kvt_record_header, crc))) return false;
    if (header->store_id != store->store_id || header->epoch != epoch) return false;
    if (header->segment_sequence != segment_sequence || header->offset != offset) return false;
    if (header->stored != kvt_store_stored_bytes(header->length, store->alignment)) return false;
    return header->length > 0 && header->form <= KVT_STORE_FORM_MAX && header->tokens <= UINT16_MAX
        && offset + header->stored <= store->segment_bytes;
}

void kvt_store_entry_count(struct kvt_store *store, const struct kvt_store_entry *entry, int sign)
{
    struct kvt_segment *segment = &store->segments[entry->segment];
    const uint64_t stored = kvt_store_stored_bytes(entry->length, store->alignment);
    const uint32_t is_held = entry->holds > 0;
    const uint64_t held = is_held ? stored : 0;
    if (sign < 0) {
        KVT_ASSERT(segment->records > 0);
        KVT_ASSERT(segment->live_bytes >= stored);
        KVT_ASSERT(segment->held_bytes >= held);
        KVT_ASSERT(segment->held_records >= is_held);
        segment->records--;
        segment->live_bytes -= stored;
        segment->held_bytes -= held;
        segment->held_records -= is_held;
        store->stats.live_bytes -= stored;
        store->stats.held_bytes -= held;
    } else {
        segment->records++;
        segment->live_bytes += stored;
        segment->held_bytes += held;
        segment->held_records += is_held;
        store->stats.live_bytes += stored;
        store->stats.held_bytes += held;
    }
}

void kvt_store_entry_drop(struct kvt_store *store, struct kvt_store_entry *entry)
{
    kvt_store_entry_count(store, entry, -1);
    if (entry->holds > 0) {
        store->stats.lost_records++;
        store->has_news = true;
        kvt_store_index_lose(&store->index, entry);
    } else {
        kvt_store_index_remove(&store->index, entry);
    }
}

/* ---- The open segment -------------------------------------------------------------------------------------------- */

bool kvt_store_has_room(const struct kvt_store *store, uint64_t stored, uint64_t reserve_bytes, uint32_t reserve_count)
{
    if (store->open_segment == KVT_STORE_NONE) return false;
    const struct kvt_segment *segment = &store->segments[store->open_segment];
    const uint64_t entries = (uint64_t)segment->entry_count + reserve_count + 1;
    if (entries > store->entries_max) return false;
    return segment->data_end + stored + reserve_bytes + kvt_store_summary_bytes(entries) + KVT_STORE_BLOCK_BYTES
        <= store->segment_bytes;
}

uint32_t kvt_store_append(struct kvt_store *store, const struct kvt_summary_entry *entry, uint32_t stored,
                          uint64_t *ret_offset)
{
    struct kvt_segment *segment = &store->segments[store->open_segment];
    KVT_ASSERT(segment->state == KVT_SEGMENT_OPEN);
    KVT_ASSERT(segment->entry_count < store->entries_max);
    const uint32_t summary_index = segment->entry_count++;
    struct kvt_summary_entry *listed = &store->summaries[segment->summary][summary_index];
    *listed = *entry;
    listed->offset_units = (uint32_t)(segment->data_end / KVT_STORE_UNIT_BYTES);
    *ret_offset = segment->data_end;
    segment->data_end += stored;
    KVT_ASSERT(segment->data_end < store->segment_bytes);
    return summary_index;
}

/* A record whose write failed is not listed; length 0 says so until the summary is written. */
void kvt_store_summary_strike(struct kvt_store *store, uint32_t segment, uint32_t summary_index)
{
    const struct kvt_segment *s = &store->segments[segment];
    KVT_ASSERT(s->summary != KVT_STORE_NONE);
    store->summaries[s->summary][summary_index].length = 0;
}

/* ---- Extents -------------------------------------------------------------------------------------------------- */

struct kvt_extent *kvt_store_extent_take(struct kvt_store *store)
{
    for (uint32_t i = 0; i < store->extent_count; i++) {
        struct kvt_extent *extent = &store->extents[i];
        if (extent->state != KVT_EXTENT_FREE) continue;
        extent->state = KVT_EXTENT_FILLING;
        extent->segment = store->open_segment;
        extent->fill = extent->op_count = extent->move_count = extent->reads_pending = 0;
        extent->is_retried = extent->is_piecewise = false;
        return extent;
    }
    return NULL;
}

void kvt_store_extent_write(struct kvt_store *store, struct kvt_extent *extent, kvt_store_io_fn complete)
{
    struct kvt_segment *segment = &store->segments[extent->segment];
    extent->state = KVT_EXTENT_WRITING;
    segment->writes++;
    kvt_store_io_start(store, &extent->io, KVT_IO_WRITE, segment->file, extent->offset, extent->buffer, extent->fill,
                       false, complete, extent);
}

void kvt_store_finish_locked(struct kvt_store *store, struct kvt_store_op *op, enum kvt_status status, int os_errno)
{
    op->status = status;
    op->os_errno = os_errno;
    if (op->kind == KVT_STORE_PUT) {
        struct kvt_put_state *put = kvt_put_state(op);
        op->ret_link_ns = put->link_ns;
        KVT_ASSERT(store->phase_pending[put->phase] > 0);
        KVT_ASSERT(store->queued_bytes >= op->length);
        store->phase_pending[put->phase]--;
        store->queued_bytes -= op->length;
        if (status == KVT_FULL) store->stats.refused++;
        if (status == KVT_OK) {
            store->stats.puts++;
            store->stats.put_bytes += op->length;
            store->stats.put_stored_bytes += kvt_store_stored_bytes(op->length, store->alignment);
        }
    } else if (status == KVT_OK) {
        store->stats.gets++;
        store->stats.get_bytes += op->ret_length;
    }
    op->next = NULL;
    struct kvt_op_queue *done = store->seal ? kvt_seal_done_queue(store->seal) : &store->done;
    if (done->tail) done->tail->next = op;
    else done->head = op;
    done->tail = op;
    KVT_ASSERT(store->ops_unfinished > 0);
    store->ops_unfinished--;
    store->has_news = true;
}

void kvt_store_finish(struct kvt_store *store, struct kvt_store_op *op, enum kvt_status status, int os_errno)
{
    pthread_mutex_lock(&store->lock);
    kvt_store_finish_locked(store, op, status, os_errno);
    pthread_mutex_unlock(&store->lock);
}

/* The index learns of a record that is on the device. */
static enum kvt_status publish(struct kvt_store *store, const struct kvt_store_op *op, const struct kvt_put_state *put)
{
    if (put->epoch != store->epoch) return KVT_FULL; /* a reset came in between: nothing is published after it */
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(&op->name));
    if (entry) {
        if (entry->sequence > put->sequence) return KVT_OK; /* a later put of the name overtook this one */
        kvt_store_entry_count(store, entry, -1);
    } else {
        KVT_TRY(kvt_store_index_insert(&store->index, kvt_name_of(&op->name), &entry));
    }
    entry->generation = op->generation;
    entry->sequence = put->sequence & (((uint64_t)1 << 48) - 1);
    entry->segment = put->segment & 0xffffu;
    entry->offset_units = put->offset_units;
    entry->length = op->length;
    entry->tokens = (uint16_t)op->tokens;
    entry->form = op->form & 3u;
    entry->is_private = (op->flags & KVT_STORE_PRIVATE) != 0;
    entry->is_hit = 0;
    kvt_store_entry_count(store, entry, 1);
    return KVT_OK;
}

static enum kvt_status status_of_errno(int error) { return error == ENOSPC ? KVT_FULL : KVT_IO; }

void kvt_store_put_piece_done(struct kvt_store *store, struct kvt_store_op *op, uint64_t link_ns, int error)
{
    struct kvt_put_state *put = kvt_put_state(op);
    if (error) put->error = error;
    put->link_ns += link_ns;
    KVT_ASSERT(put->pieces > 0);
    if (--put->pieces > 0) return;
    const uint32_t segment = put->segment, summary_index = put->summary_index;
    pthread_mutex_lock(&store->lock);
    const enum kvt_status status = put->error ? status_of_errno(put->error) : publish(store, op, put);
    kvt_store_finish_locked(store, op, status == KVT_NOMEM ? KVT_FULL : status, put->error);
    pthread_mutex_unlock(&store->lock);
    /* What nobody was told of is not found after the next open either. */
    if (status != KVT_OK) kvt_store_summary_strike(store, segment, summary_index);
}

static void pause_puts(struct kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    const uint64_t now = kvt_env_now_ns(&store->env);
    if (store->paused_until_ns <= now) {
        store->stats.pauses++;
        kvt_log(&store->env, KVT_LOG_WARN, "%s: no space left on the device: puts pause for a second", store->path);
    }
    store->paused_until_ns = now + KVT_STORE_PAUSE_NS;
    pthread_mutex_unlock(&store->lock);
}

/* Gives the file system back what a free segment takes, beside the spare one. */
static void give_space_back(struct kvt_store *store)
{
    for (uint32_t i = 0; i < store->segment_slots && store->free_count >= 2; i++) {
        if (store->segments[i].state != KVT_SEGMENT_FREE) continue;
        if (store->syncer.io.is_busy && store->syncer.segment == i) continue;
        kvt_segment_remove(store, i);
        return;
    }
}

bool kvt_store_may_retry(struct kvt_store *store, const struct kvt_store_io *io, bool *is_retried)
{
    if (io->error != ENOSPC || *is_retried) return false;
    *is_retried = true;
    give_space_back(store);
    return true;
}

void kvt_store_write_ended(struct kvt_store *store, struct kvt_segment *segment, const struct kvt_store_io *io)
{
    segment->writes--;
    segment->is_dirty = true;
    pthread_mutex_lock(&store->lock);
    store->stats.written_bytes += io->done_bytes;
    if (io->error) store->stats.write_errors++;
    pthread_mutex_unlock(&store->lock);
    if (!io->error) return;
    kvt_log(&store->env, KVT_LOG_WARN, "%s: a write failed (%s), serving a miss", store->path, strerror(io->error));
    if (io->error == ENOSPC) pause_puts(store);
}

static void extent_written(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_extent *extent = io->owner;
    struct kvt_segment *segment = &store->segments[extent->segment];
    if (kvt_store_may_retry(store, io, &extent->is_retried)) {
        segment->writes--;
        kvt_store_extent_write(store, extent, extent_written);
        return;
    }
    kvt_store_write_ended(store, segment, io);
    for (uint32_t i = 0; i < extent->op_count; i++)
        kvt_store_put_piece_done(store, extent->ops[i], io->link_ns, io->error);
    extent->state = KVT_EXTENT_FREE;
}

static void filling_submit(struct kvt_store *store)
{
    if (!store->filling) return;
    struct kvt_extent *extent = store->filling;
    store->filling = NULL;
    kvt_store_extent_write(store, extent, extent_written);
}

/* ---- Placing puts ------------------------------------------------------------------------------------------------ */

static struct kvt_record_header header_of(const struct kvt_store *store, const struct kvt_store_op *op, uint64_t offset)
{
    const struct kvt_put_state *put = kvt_put_state((struct kvt_store_op *)(uintptr_t)op);
    return (struct kvt_record_header){ .magic = KVT_RECORD_MAGIC,
                                       .version = KVT_STORE_FORMAT_VERSION,
                                       .flags = (op->flags & KVT_STORE_PRIVATE) ? KVT_RECORD_PRIVATE : 0,
                                       .store_id = store->store_id,
                                       .epoch = put->epoch,
                                       .segment_sequence = store->segments[store->open_segment].sequence,
                                       .offset = offset,
                                       .sequence = put->sequence,
                                       .name = *kvt_name_of(&op->name),
                                       .generation = op->generation,
                                       .length = op->length,
                                       .stored = (uint32_t)kvt_store_stored_bytes(op->length, store->alignment),
                                       .tokens = op->tokens,
                                       .form = op->form };
}

struct kvt_record_header kvt_store_put_append(struct kvt_store *store, struct kvt_store_op *op, uint32_t stored)
{
    struct kvt_put_state *put = kvt_put_state(op);
    const struct kvt_summary_entry entry = { .name = *kvt_name_of(&op->name),
                                             .generation = op->generation,
                                             .sequence = put->sequence,
                                             .length = op->length,
                                             .tokens = (uint16_t)op->tokens,
                                             .form = (uint8_t)op->form,
                                             .flags = (op->flags & KVT_STORE_PRIVATE) ? KVT_RECORD_PRIVATE : 0 };
    uint64_t offset;
    put->summary_index = kvt_store_append(store, &entry, stored, &offset);
    put->segment = store->open_segment;
    put->offset_units = (uint32_t)(offset / KVT_STORE_UNIT_BYTES);
    put->pieces = 1;
    return header_of(store, op, offset);
}

/* The extent that the next `bytes` go to; NULL: none is free. */
static struct kvt_extent *extent_for(struct kvt_store *store, uint32_t bytes)
{
    struct kvt_extent *extent = store->filling;
    if (extent && (extent->fill + bytes > store->extent_bytes || extent->op_count == KVT_STORE_EXTENT_OPS)) {
        filling_submit(store);
        extent = NULL;
    }
    /* Copying forward appends to the same segment: an extent that would not continue is ended. */
    if (extent && extent->offset + extent->fill != store->segments[store->open_segment].data_end) {
        filling_submit(store);
        extent = NULL;
    }
    if (extent) return extent;
    extent = kvt_store_extent_take(store);
    if (!extent) return NULL;
    extent->offset = store->segments[store->open_segment].data_end;
    store->filling = extent;
    return extent;
}

static bool place_small(struct kvt_store *store, struct kvt_store_op *op, uint32_t stored)
{
    struct kvt_extent *extent = extent_for(store, stored);
    if (!extent) return false;
    struct kvt_record_header header = kvt_store_put_append(store, op, stored);
    uint8_t *record = extent->buffer + extent->fill;
    const uint32_t payload_at = kvt_store_payload_at(op->length, store->alignment);
    header.payload_crc = kvt_crc32c_copy(0, record + payload_at, op->buffer, op->length);
    kvt_record_header_seal(&header);
    memcpy(record, &header, sizeof header);
    memset(record + sizeof header, 0, payload_at - sizeof header);
    memset(record + payload_at + op->length, 0, stored - payload_at - op->length);
    extent->fill += stored;
    extent->ops[extent->op_count++] = op;
    if (extent->fill >= KVT_STORE_EXTENT_FULL) filling_submit(store);
    return true;
}

/* Bytes [at, at + size) of the record's image: header, payload from payload_at on, zeros elsewhere. */
static void copy_image(const struct kvt_record_header *header, uint32_t payload_at, const uint8_t *payload, uint64_t at,
                       uint8_t *target, uint64_t size)
{
    const uint64_t payload_end = payload_at + (uint64_t)header->length;
    while (size > 0) {
        uint64_t n = size;
        if (at < sizeof *header) {
            n = kvt_min_u64(size, sizeof *header - at);
            memcpy(target, (const uint8_t *)header + at, n);
        } else if (at >= payload_at && at < payload_end) {
            n = kvt_min_u64(size, payload_end - at);
            memcpy(target, payload + (at - payload_at), n);
        } else {
            if (at < payload_at) n = kvt_min_u64(size, payload_at - at);
            memset(target, 0, n);
        }
        at += n;
        target += n;
        size -= n;
    }
}

/*
 * A record larger than an extent: the checksum needs a pass of its own, since the header is written with the first
 * piece.
 */
static void big_begin(struct kvt_store *store, struct kvt_store_op *op, uint32_t stored)
{
    filling_submit(store);
    store->big_header = kvt_store_put_append(store, op, stored);
    store->big_header.payload_crc = kvt_crc32c(0, op->buffer, op->length);
    kvt_record_header_seal(&store->big_header);
    store->big = op;
    store->big_at = 0;
}

/* False: no extent is free. */
static bool big_go_on(struct kvt_store *store)
{
    struct kvt_store_op *op = store->big;
    struct kvt_put_state *put = kvt_put_state(op);
    while (store->big_at < store->big_header.stored) {
        struct kvt_extent *extent = kvt_store_extent_take(store);
        if (!extent) return false;
        extent->segment = put->segment;
        extent->offset = store->big_header.offset + store->big_at;
        extent->fill = (uint32_t)kvt_min_u64(store->extent_bytes, store->big_header.stored - store->big_at);
        copy_image(&store->big_header, kvt_store_payload_at(op->length, store->alignment), op->buffer, store->big_at,
                   extent->buffer, extent->fill);
        extent->ops[extent->op_count++] = op;
        put->pieces++;
        store->big_at += extent->fill;
        kvt_store_extent_write(store, extent, extent_written);
    }
    store->big = NULL;
    kvt_store_put_piece_done(store, op, 0, 0);
    return true;
}

static struct kvt_store_op *put_first(struct kvt_store *store, bool *ret_is_stale)
{
    pthread_mutex_lock(&store->lock);
    struct kvt_store_op *op = store->puts.head;
    *ret_is_stale = op && kvt_put_state(op)->epoch != store->epoch;
    pthread_mutex_unlock(&store->lock);
    return op;
}

static void put_pop(struct kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    store->puts.head = store->puts.head->next;
    if (!store->puts.head) store->puts.tail = NULL;
    pthread_mutex_unlock(&store->lock);
    store->has_moved = true;
}

void kvt_store_place_puts(struct kvt_store *store)
{
    enum { PUTS_PER_STEP = 256 };
    for (uint32_t i = 0; i < PUTS_PER_STEP; i++) {
        if (store->big && !big_go_on(store)) break;
        bool is_stale;
        struct kvt_store_op *op = put_first(store, &is_stale);
        if (!op) break;
        const uint32_t stored = (uint32_t)kvt_store_stored_bytes(op->length, store->alignment);
        const uint32_t open_before = store->open_segment;
        if (!kvt_store_has_room(store, stored, store->reclaim.reserve_bytes, store->reclaim.reserve_count))
            filling_submit(store);
        const enum kvt_advance advance = is_stale ? KVT_ADVANCE_FULL : kvt_store_advance(store, stored);
        if (open_before != store->open_segment) store->has_moved = true;
        if (advance == KVT_ADVANCE_WAIT) break;
        if (advance == KVT_ADVANCE_READY) {
            if (kvt_store_is_put_in_place(store, op)) {
                if (!kvt_store_put_in_place(store, op, stored)) break;
                put_pop(store);
            } else if (stored > store->extent_bytes) {
                put_pop(store);
                big_begin(store, op, stored);
            } else {
                if (!place_small(store, op, stored)) break;
                put_pop(store);
            }
            continue;
        }
        put_pop(store);
        if (advance == KVT_ADVANCE_NOSPACE) pause_puts(store);
        kvt_store_finish(store, op, KVT_FULL, advance == KVT_ADVANCE_NOSPACE ? ENOSPC : 0);
    }
    /* The queue is dry, or nothing more fits now: what there is goes out, nothing waits for more. */
    filling_submit(store);
}

/* ---- Closing a segment ------------------------------------------------------------------------------------------- */

static void closer_done(struct kvt_store *store)
{
    struct kvt_segment *segment = &store->segments[store->closer.segment];
    store->is_summary_taken[segment->summary] = false;
    segment->summary = KVT_STORE_NONE;
    segment->state = KVT_SEGMENT_CLOSED;
    store->closer.stage = KVT_CLOSER_IDLE;
    store->has_moved = true;
}

static void closer_io_done(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_segment *segment = &store->segments[store->closer.segment];
    pthread_mutex_lock(&store->lock);
    store->stats.written_bytes += io->done_bytes;
    if (io->error) store->stats.write_errors++;
    pthread_mutex_unlock(&store->lock);
    if (io->error) {
        /* Without its summary the segment is walked at the next open; nothing is lost but time. */
        kvt_log(&store->env, KVT_LOG_WARN, "%s: a segment could not be closed (%s)", store->path, strerror(io->error));
        segment->is_dirty = true;
        store->closer.stage = KVT_CLOSER_DONE;
        return;
    }
    switch (store->closer.stage) {
    case KVT_CLOSER_SYNC: store->closer.stage = KVT_CLOSER_SUMMARY; break;
    case KVT_CLOSER_SUMMARY: store->closer.at += io->size; break;
    case KVT_CLOSER_FOOTER:
        segment->is_findable = segment->is_dirty = true;
        store->closer.stage = KVT_CLOSER_DONE;
        break;
    case KVT_CLOSER_IDLE:
    case KVT_CLOSER_WRITES:
    case KVT_CLOSER_DONE: KVT_ASSERT(false);
    }
}

/* Struck records leave; what is left is listed. */
static void closer_compact(struct kvt_store *store, struct kvt_segment *segment)
{
    struct kvt_summary_entry *entries = store->summaries[segment->summary];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < segment->entry_count; i++)
        if (entries[i].length > 0) entries[kept++] = entries[i];
    segment->entry_count = kept;
}

static void closer_write(struct kvt_store *store, struct kvt_segment *segment)
{
    struct kvt_summary_entry *entries = store->summaries[segment->summary];
    const uint64_t entry_bytes = (uint64_t)segment->entry_count * sizeof *entries;
    const uint64_t padded = kvt_store_summary_bytes(segment->entry_count);
    const uint64_t start = store->segment_bytes - KVT_STORE_BLOCK_BYTES - padded;
    if (store->closer.at < padded) {
        const uint32_t piece = (uint32_t)kvt_min_u64(padded - store->closer.at, store->summary_buffer_bytes);
        const uint64_t real = store->closer.at < entry_bytes ? kvt_min_u64(piece, entry_bytes - store->closer.at) : 0;
        memcpy(store->summary_buffer, (const uint8_t *)entries + store->closer.at, real);
        memset(store->summary_buffer + real, 0, piece - real);
        kvt_store_io_start(store, &store->closer.io, KVT_IO_WRITE, segment->file, start + store->closer.at,
                           store->summary_buffer, piece, false, closer_io_done, NULL);
        return;
    }
    struct kvt_segment_footer footer = { .magic = KVT_FOOTER_MAGIC,
                                         .version = KVT_STORE_FORMAT_VERSION,
                                         .index = store->closer.segment,
                                         .store_id = store->store_id,
                                         .epoch = segment->epoch,
                                         .sequence = segment->sequence,
                                         .summary_offset = start,
                                         .entry_count = segment->entry_count,
                                         .summary_crc = kvt_crc32c(0, entries, entry_bytes) };
    footer.crc = kvt_crc32c(0, &footer, offsetof(struct kvt_segment_footer, crc));
    memset(store->footer_buffer, 0, KVT_STORE_BLOCK_BYTES);
    memcpy(store->footer_buffer, &footer, sizeof footer);
    store->closer.stage = KVT_CLOSER_FOOTER;
    kvt_store_io_start(store, &store->closer.io, KVT_IO_WRITE, segment->file,
                       store->segment_bytes - KVT_STORE_BLOCK_BYTES, store->footer_buffer, KVT_STORE_BLOCK_BYTES, false,
                       closer_io_done, NULL);
}

void kvt_store_closer_step(struct kvt_store *store)
{
    if (store->closer.stage == KVT_CLOSER_IDLE || store->closer.io.is_busy) return;
    struct kvt_segment *segment = &store->segments[store->closer.segment];
    if (store->closer.stage == KVT_CLOSER_WRITES) {
        if (segment->writes > 0) return;
        closer_compact(store, segment);
        pthread_mutex_lock(&store->lock);
        const bool is_dead = segment->epoch != store->epoch;
        store->stats.syncs++;
        pthread_mutex_unlock(&store->lock);
        store->closer.at = 0;
        if (is_dead) {
            closer_done(store); /* of before a reset: there is nothing to list */
            return;
        }
        /* The records are on the device before a summary names them. */
        store->closer.stage = KVT_CLOSER_SYNC; /* it stays dirty: whoever syncs meanwhile must not rely on this one */
        kvt_store_io_start(store, &store->closer.io, KVT_IO_SYNC, segment->file, 0, NULL, 0, false, closer_io_done,
                           NULL);
        return;
    }
    if (store->closer.stage == KVT_CLOSER_SUMMARY) closer_write(store, segment);
    else if (store->closer.stage == KVT_CLOSER_DONE) closer_done(store);
}

/* ---- Syncing ----------------------------------------------------------------------------------------------------- */

uint64_t kvt_store_want_sync(struct kvt_store *store)
{
    store->sync_wanted = store->sync_started + 1;
    return store->sync_wanted;
}

static void super_write(struct kvt_store *store);

/* Neither its header nor its footer is written: the next open would not know what lies in it. */
static bool is_lost_at_open(struct kvt_store *store, uint32_t index)
{
    const struct kvt_segment *segment = &store->segments[index];
    if (segment->is_findable || segment->state == KVT_SEGMENT_FREE) return false;
    pthread_mutex_lock(&store->lock);
    const bool is_wanted = segment->epoch == store->epoch && segment->records > 0;
    pthread_mutex_unlock(&store->lock);
    return is_wanted;
}

/* A copy of the superblock is written, or could not be: one of the two is enough. */
static void super_ended(struct kvt_store *store, bool is_written)
{
    store->syncer.written += is_written;
    if (++store->syncer.copy < 2) {
        super_write(store);
        return;
    }
    store->syncer.stage = KVT_SYNCER_SEGMENTS;
    if (store->syncer.written == 0) {
        store->syncer.has_failed = true;
        return;
    }
    pthread_mutex_lock(&store->lock);
    store->is_super_dirty = store->epoch != store->syncer.super_epoch;
    kvt_store_serials_raise(store);
    pthread_mutex_unlock(&store->lock);
}

/* A closed segment that the next open would not find, and that cannot be made findable: what it holds is forgotten. */
static void forget_unfindable(struct kvt_store *store, uint32_t index)
{
    pthread_mutex_lock(&store->lock);
    for (uint64_t i = 0; i < store->index.capacity && store->segments[index].records > 0; i++) {
        struct kvt_store_entry *entry = &store->index.entries[i];
        if (entry->state == KVT_ENTRY_LIVE && entry->segment == index) kvt_store_entry_drop(store, entry);
    }
    pthread_mutex_unlock(&store->lock);
}

static void syncer_io_done(struct kvt_store *store, struct kvt_store_io *io)
{
    if (io->error) {
        store->syncer.has_failed |= store->syncer.stage == KVT_SYNCER_SEGMENTS;
        kvt_log(&store->env, KVT_LOG_WARN, "%s: a sync failed: %s", store->path, strerror(io->error));
    }
    switch (store->syncer.stage) {
    case KVT_SYNCER_SUPER_WRITE:
        if (io->error) {
            super_ended(store, false);
            break;
        }
        store->syncer.stage = KVT_SYNCER_SUPER_SYNC;
        kvt_store_io_start(store, &store->syncer.io, KVT_IO_SYNC, store->super_file, 0, NULL, 0, false, syncer_io_done,
                           NULL);
        break;
    case KVT_SYNCER_SUPER_SYNC: super_ended(store, io->error == 0); break;
    case KVT_SYNCER_SEGMENTS:
        if (io->error || is_lost_at_open(store, store->syncer.segment))
            store->segments[store->syncer.segment].is_dirty = true;
        store->syncer.segment++;
        store->syncer.is_header_tried = false;
        break;
    case KVT_SYNCER_IDLE: KVT_ASSERT(false);
    }
}

/*
 * Both copies get the new epoch, one after the other: the first makes it durable, the second makes it survive a bad
 * block.
 */
static void super_write(struct kvt_store *store)
{
    store->super_sequence++;
    kvt_store_superblock_fill(store, store->super_sequence, store->syncer.super_epoch, store->super_buffer);
    store->syncer.stage = KVT_SYNCER_SUPER_WRITE;
    kvt_store_io_start(store, &store->syncer.io, KVT_IO_WRITE, store->super_file,
                       (store->super_sequence & 1) * KVT_STORE_BLOCK_BYTES, store->super_buffer, KVT_STORE_BLOCK_BYTES,
                       false, syncer_io_done, NULL);
}

/* Under the lock. Half of the numbers that go with the superblock are used: a sync writes it with a higher one. */
static void serials_renew(struct kvt_store *store)
{
    const uint64_t used = kvt_max_u64(store->record_sequence, store->segment_sequence);
    const uint64_t half = (uint64_t)1 << (KVT_STORE_SERIAL_BITS - 1);
    if (store->is_super_dirty || used < kvt_store_serial_floor(store) + half || used >= KVT_STORE_SERIAL_MAX) return;
    store->super_sequence = kvt_max_u64(store->super_sequence, used >> KVT_STORE_SERIAL_BITS);
    store->is_super_dirty = true;
    (void)kvt_store_want_sync(store);
}

static void syncer_begin(struct kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    serials_renew(store);
    const bool is_wanted = store->sync_wanted > store->sync_started;
    const bool is_super = store->is_super_dirty;
    if (is_wanted) store->sync_started++;
    store->syncer.super_epoch = store->epoch;
    pthread_mutex_unlock(&store->lock);
    if (!is_wanted) return;
    store->has_moved = true;
    store->syncer.segment = store->syncer.copy = store->syncer.written = 0;
    store->syncer.has_failed = store->syncer.is_header_tried = false;
    store->syncer.stage = KVT_SYNCER_SEGMENTS;
    if (is_super) super_write(store);
}

static void syncer_end(struct kvt_store *store)
{
    store->syncer.stage = KVT_SYNCER_IDLE;
    store->has_moved = true;
    pthread_mutex_lock(&store->lock);
    store->sync_finished = store->sync_started;
    if (store->syncer.has_failed) store->sync_failed = store->sync_started;
    store->stats.syncs++;
    (void)pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

void kvt_store_syncer_step(struct kvt_store *store)
{
    if (store->syncer.stage == KVT_SYNCER_IDLE) syncer_begin(store);
    if (store->syncer.stage != KVT_SYNCER_SEGMENTS || store->syncer.io.is_busy) return;
    while (store->syncer.segment < store->segment_slots) {
        struct kvt_segment *segment = &store->segments[store->syncer.segment];
        if (segment->is_dirty && segment->state != KVT_SEGMENT_ABSENT && !KVT_PLANTED(SYNC_SKIPS)) {
            /* Its header is part of what makes its records last: one that could not be written is tried again. */
            if (store->header_io.is_busy && store->header_segment == store->syncer.segment) return;
            if (is_lost_at_open(store, store->syncer.segment)) {
                if (!store->syncer.is_header_tried && store->header_io.is_busy) return; /* another one's */
                if (!store->syncer.is_header_tried) {
                    store->syncer.is_header_tried = true;
                    kvt_store_write_header(store, store->syncer.segment);
                    return;
                }
                store->syncer.has_failed = true;
                if (segment->state == KVT_SEGMENT_CLOSED) forget_unfindable(store, store->syncer.segment);
            }
            segment->is_dirty = false;
            kvt_store_io_start(store, &store->syncer.io, KVT_IO_SYNC, segment->file, 0, NULL, 0, false, syncer_io_done,
                               NULL);
            return;
        }
        store->syncer.segment++;
    }
    syncer_end(store);
}
