/*
 * Gets. A record is read into the read area, checked there (store_format.h, rules 1 to 5), and only then copied to the
 * caller. One that is larger than half of the area is read in pieces: each is copied as it comes, and OK is said only
 * when the checksum of all of it holds. In place: the header is read into the area and the payload into the caller's
 * buffer, and again nothing is said before both are checked.
 *
 * Short records that lie one behind the other and are asked for in that order, as the blocks of a sequence are, come
 * with one read, a run. Each is checked by itself; when the read of a run fails, each is read by itself.
 */
#include <errno.h>
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/plant.h"
#include "tiers/store_private.h"

/* First fit; NULL: no room. */
static uint8_t *area_take(struct kvt_store *store, uint32_t bytes, uint32_t *ret_unit, uint32_t *ret_count)
{
    const uint32_t wanted = (uint32_t)(kvt_align_up(bytes, KVT_STORE_READ_UNIT) / KVT_STORE_READ_UNIT);
    uint32_t run = 0;
    for (uint32_t i = 0; i < store->read_unit_count; i++) {
        run = store->read_units[i] ? 0 : run + 1;
        if (run < wanted) continue;
        *ret_unit = i + 1 - wanted;
        *ret_count = wanted;
        memset(store->read_units + *ret_unit, 1, wanted);
        return store->read_area + (uint64_t)*ret_unit * KVT_STORE_READ_UNIT;
    }
    return NULL;
}

/* Under the lock. The record that the get found is still the one in the index. */
static struct kvt_store_entry *same_entry(struct kvt_store *store, const struct kvt_get *get)
{
    struct kvt_store_entry *entry = kvt_store_index_find(&store->index, &get->entry.name);
    if (!entry || entry->segment != get->entry.segment || entry->offset_units != get->entry.offset_units) return NULL;
    return entry->sequence == get->entry.sequence ? entry : NULL;
}

/* The last get of a run gives the run's part of the area back. */
static void area_leave(struct kvt_store *store, struct kvt_get *leader)
{
    KVT_ASSERT(leader->run_left > 0);
    if (--leader->run_left == 0) memset(store->read_units + leader->unit, 0, leader->unit_count);
}

static void get_finish(struct kvt_store *store, struct kvt_get *get, enum kvt_status status, int os_errno)
{
    struct kvt_store_op *op = get->op;
    area_leave(store, get->leader);
    op->ret_link_ns = get->link_ns;
    pthread_mutex_lock(&store->lock);
    KVT_ASSERT(store->segments[get->segment].readers > 0);
    store->segments[get->segment].readers--;
    if (get->epoch != store->epoch) {
        status = KVT_NOTFOUND; /* a reset came in between */
        store->stats.misses++;
    } else {
        struct kvt_store_entry *entry = same_entry(store, get);
        if (status == KVT_OK && entry) entry->is_hit = 1;
        /* What failed once is forgotten, so that the next lookup says no and the next put heals it. */
        if (status != KVT_OK && entry && !KVT_PLANTED(BAD_RECORD_STAYS)) kvt_store_entry_drop(store, entry);
        if (status == KVT_CORRUPT) store->stats.corrupt++;
        if (status == KVT_IO) store->stats.read_errors++;
    }
    if (status == KVT_OK) {
        op->ret_length = get->entry.length;
        op->ret_form = get->entry.form;
        op->ret_tokens = get->entry.tokens;
        op->ret_generation = get->entry.generation;
    }
    kvt_store_finish_locked(store, op, status, os_errno);
    pthread_mutex_unlock(&store->lock);
    if (status == KVT_CORRUPT || status == KVT_IO)
        kvt_log(&store->env, KVT_LOG_WARN, "%s: a record of %u bytes %s, serving a miss", store->path,
                get->entry.length, status == KVT_IO ? strerror(os_errno) : "failed its check");
    get->op = NULL;
    store->gets_active--;
}

static void get_piece_done(struct kvt_store *store, struct kvt_store_io *io);

static void get_piece_start(struct kvt_store *store, struct kvt_get *get)
{
    get->piece = kvt_min_u32(store->read_piece_bytes, get->stored - get->at);
    kvt_store_io_start(store, &get->io, KVT_IO_READ, store->segments[get->segment].file,
                       (uint64_t)get->entry.offset_units * KVT_STORE_UNIT_BYTES + get->at, get->buffer, get->piece,
                       (get->op->flags & KVT_STORE_URGENT) != 0, get_piece_done, get);
}

static bool get_header_check(const struct kvt_store *store, const struct kvt_get *get)
{
    const struct kvt_record_header *header = &get->header;
    const struct kvt_store_entry *entry = &get->entry;
    return kvt_record_header_is_valid(store, header, get->epoch, get->segment_sequence,
                                      (uint64_t)entry->offset_units * KVT_STORE_UNIT_BYTES)
        && kvt_name_equal(&header->name, kvt_name_of(&get->op->name)) && header->generation == entry->generation
        && header->length == entry->length && header->sequence == entry->sequence && header->tokens == entry->tokens
        && header->form == entry->form;
}

/* A piece is in the buffer. */
static void get_piece_take(struct kvt_store *store, struct kvt_get *get)
{
    const uint8_t *bytes = get->buffer;
    uint64_t payload_at = get->at;
    uint32_t skip = 0;
    if (get->at == 0) {
        memcpy(&get->header, bytes, sizeof get->header);
        if (!get_header_check(store, get)) {
            get_finish(store, get, KVT_CORRUPT, 0);
            return;
        }
        skip = kvt_store_payload_at(get->entry.length, store->alignment);
    } else {
        payload_at -= kvt_store_payload_at(get->entry.length, store->alignment);
    }
    const uint64_t left = get->entry.length - payload_at;
    const uint32_t size = (uint32_t)kvt_min_u64(get->piece - skip, left);
    uint8_t *target = (uint8_t *)get->op->buffer + payload_at;
    const bool is_whole = get->piece == get->stored;
    if (is_whole) get->crc = kvt_crc32c(0, bytes + skip, size);
    else get->crc = kvt_crc32c_copy(get->crc, target, bytes + skip, size);
    get->at += get->piece;
    if (get->at < get->stored) {
        get_piece_start(store, get);
        return;
    }
    const bool is_good = get->crc == get->header.payload_crc || KVT_PLANTED(NO_CHECKSUM);
    if (is_good && is_whole) memcpy(target, bytes + skip, size);
    get_finish(store, get, is_good ? KVT_OK : KVT_CORRUPT, 0);
}

static void count_read(struct kvt_store *store, const struct kvt_store_io *io)
{
    pthread_mutex_lock(&store->lock);
    store->stats.read_bytes += io->done_bytes;
    pthread_mutex_unlock(&store->lock);
}

static void get_piece_done(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_get *get = io->owner;
    get->link_ns += io->link_ns;
    count_read(store, io);
    if (io->error) get_finish(store, get, KVT_IO, io->error);
    else get_piece_take(store, get);
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

/* One that cannot be read does not take the others with it. */
static void run_done(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_get *next = io->owner;
    const int error = io->error;
    const uint64_t link_ns = io->link_ns, size = io->size;
    count_read(store, io);
    while (next) {
        struct kvt_get *get = next;
        next = get->next_in_run;
        get->link_ns = link_ns * get->stored / size;
        get->piece = get->stored;
        if (error) get_piece_start(store, get);
        else get_piece_take(store, get);
    }
}

static void run_start(struct kvt_store *store, struct kvt_get *leader, uint32_t bytes)
{
    kvt_store_io_start(store, &leader->io, KVT_IO_READ, store->segments[leader->segment].file,
                       (uint64_t)leader->entry.offset_units * KVT_STORE_UNIT_BYTES, leader->buffer, bytes,
                       (leader->op->flags & KVT_STORE_URGENT) != 0, run_done, leader);
}

/* ---- In place ---------------------------------------------------------------------------------------------------- */

/* Whole blocks are read: the padding behind the payload needs room in the buffer. */
static bool is_get_in_place(const struct kvt_store *store, const struct kvt_store_op *op, uint32_t length)
{
    return (op->flags & KVT_STORE_IN_PLACE) && length >= KVT_STORE_IN_PLACE_GET_MIN
        && length <= KVT_STORE_IN_PLACE_LENGTH_MAX && kvt_store_payload_at(length, store->alignment) == store->alignment
        && kvt_align_up(length, store->alignment) <= op->length
        && kvt_is_aligned((uintptr_t)op->buffer, store->alignment);
}

static void in_place_done(struct kvt_store *store, struct kvt_store_io *io)
{
    struct kvt_get *get = io->owner;
    get->link_ns = kvt_max_u64(get->link_ns, io->link_ns);
    count_read(store, io);
    if (--get->ios_pending > 0) return;
    KVT_ASSERT(store->in_place_get_bytes >= get->entry.length);
    store->in_place_get_bytes -= get->entry.length;
    const int error = get->io.error ? get->io.error : get->payload_io.error;
    if (error) {
        get_finish(store, get, KVT_IO, error);
        return;
    }
    memcpy(&get->header, get->buffer, sizeof get->header);
    const bool is_good = get_header_check(store, get)
        && (kvt_crc32c(0, get->op->buffer, get->entry.length) == get->header.payload_crc || KVT_PLANTED(NO_CHECKSUM));
    get_finish(store, get, is_good ? KVT_OK : KVT_CORRUPT, 0);
}

static void in_place_start(struct kvt_store *store, struct kvt_get *get)
{
    const int file = store->segments[get->segment].file;
    const uint64_t offset = (uint64_t)get->entry.offset_units * KVT_STORE_UNIT_BYTES;
    const bool is_urgent = (get->op->flags & KVT_STORE_URGENT) != 0;
    get->ios_pending = 2;
    store->in_place_get_bytes += get->entry.length;
    kvt_store_io_start(store, &get->io, KVT_IO_READ, file, offset, get->buffer, store->alignment, is_urgent,
                       in_place_done, get);
    kvt_store_io_start(store, &get->payload_io, KVT_IO_READ, file, offset + store->alignment, get->op->buffer,
                       get->stored - store->alignment, is_urgent, in_place_done, get);
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static struct kvt_op_queue *queue_of_next(struct kvt_store *store)
{
    if (store->urgent_gets.head) return &store->urgent_gets;
    return store->gets.head ? &store->gets : NULL;
}

static void queue_pop(struct kvt_op_queue *queue)
{
    queue->head = queue->head->next;
    if (!queue->head) queue->tail = NULL;
}

/* Under the lock. The record that the op asks for; NULL: there is none. */
static const struct kvt_store_entry *find(struct kvt_store *store, const struct kvt_store_op *op)
{
    const struct kvt_store_entry *entry = kvt_store_index_find(&store->index, kvt_name_of(&op->name));
    if (!entry) return NULL;
    return (op->flags & KVT_STORE_GENERATION_ANY) || entry->generation == op->generation ? entry : NULL;
}

/* Under the lock. What can be said of a get without reading; OK: it must be read. */
static enum kvt_status look_up(struct kvt_store *store, struct kvt_store_op *op, struct kvt_store_entry *ret_entry)
{
    const struct kvt_store_entry *entry = find(store, op);
    if (!entry) {
        store->stats.misses++;
        return KVT_NOTFOUND;
    }
    if (entry->length > op->length) {
        op->ret_length = entry->length;
        return KVT_FULL;
    }
    *ret_entry = *entry;
    return KVT_OK;
}

/* Under the lock. What a get needs to know before it is read; there is a free slot for it. */
static struct kvt_get *prepare(struct kvt_store *store, struct kvt_store_op *op, const struct kvt_store_entry *entry,
                               struct kvt_get *get)
{
    get->entry = *entry;
    get->stored = (uint32_t)kvt_store_stored_bytes(entry->length, store->alignment);
    get->is_in_place = is_get_in_place(store, op, entry->length);
    get->op = op;
    get->epoch = store->epoch;
    get->segment = entry->segment;
    get->at = get->crc = 0;
    get->link_ns = 0;
    get->next_in_run = NULL;
    get->leader = get;
    return get;
}

/* A slot that no get and no run uses, `from` or behind it; NULL: none. */
static struct kvt_get *free_slot(struct kvt_store *store, struct kvt_get *from)
{
    struct kvt_get *const end = store->get_slots + KVT_STORE_GETS_MAX;
    for (struct kvt_get *get = from; get < end; get++)
        if (!get->op && get->run_left == 0) return get;
    return NULL;
}

/* Under the lock. The op's record begins where the get's ends, and is read the same way. */
static bool is_next_in_run(struct kvt_store *store, const struct kvt_get *get, const struct kvt_store_op *op,
                           struct kvt_store_entry *ret_entry)
{
    const struct kvt_store_entry *entry = find(store, op);
    if (!entry || entry->length > op->length || is_get_in_place(store, op, entry->length)) return false;
    *ret_entry = *entry;
    return entry->segment == get->segment
        && (uint64_t)entry->offset_units * KVT_STORE_UNIT_BYTES
        == (uint64_t)get->entry.offset_units * KVT_STORE_UNIT_BYTES + get->stored;
}

/* Under the lock. Puts the ops behind the leader's into slots, as far as they go on where it ends. Returns bytes. */
static uint32_t run_gather(struct kvt_store *store, struct kvt_get *leader)
{
    uint32_t bytes = leader->stored;
    struct kvt_store_entry entry;
    struct kvt_get *last = leader;
    while (last->op->next && is_next_in_run(store, last, last->op->next, &entry)) {
        const uint64_t stored = kvt_store_stored_bytes(entry.length, store->alignment);
        struct kvt_get *get = free_slot(store, last + 1);
        if (!get || bytes + stored > kvt_min_u32(KVT_STORE_RUN_BYTES_MAX, store->read_piece_bytes)) break;
        last->next_in_run = prepare(store, last->op->next, &entry, get);
        get->leader = leader;
        bytes += get->stored;
        last = get;
    }
    return bytes;
}

/* Under the lock. All but the leader are queued as before. */
static void run_shorten(struct kvt_get *leader)
{
    for (struct kvt_get *get = leader->next_in_run; get; get = get->next_in_run) get->op = NULL;
    leader->next_in_run = NULL;
}

/* Under the lock. Gives the run its part of the area, or else the leader alone; false: there is no room. */
static bool run_take_area(struct kvt_store *store, struct kvt_get *leader, uint32_t bytes)
{
    leader->buffer = area_take(store, bytes, &leader->unit, &leader->unit_count);
    if (!leader->buffer && leader->next_in_run) {
        run_shorten(leader);
        leader->buffer = area_take(store, leader->stored, &leader->unit, &leader->unit_count);
    }
    return leader->buffer != NULL;
}

/* Under the lock. Its ops are the first of the queue. Returns the bytes. */
static uint32_t run_leave_queue(struct kvt_store *store, struct kvt_get *leader, struct kvt_op_queue *queue)
{
    uint32_t bytes = 0;
    for (struct kvt_get *get = leader; get; get = get->next_in_run) {
        KVT_ASSERT(queue->head == get->op);
        queue_pop(queue);
        get->buffer = leader->buffer + bytes;
        get->segment_sequence = store->segments[get->segment].sequence;
        store->segments[get->segment].readers++;
        bytes += get->stored;
        leader->run_left++;
        store->gets_active++;
    }
    return bytes;
}

/* Under the lock. A get whose record is long, or read in place, is a run of one that takes another part of the area. */
static bool run_prepare(struct kvt_store *store, struct kvt_get *leader)
{
    if (leader->is_in_place) {
        const bool is_enough = store->in_place_get_bytes > 0
            && store->in_place_get_bytes + leader->entry.length > KVT_STORE_IN_PLACE_BYTES_MAX;
        return !is_enough && run_take_area(store, leader, store->alignment);
    }
    if (leader->stored > store->read_piece_bytes) return run_take_area(store, leader, store->read_piece_bytes);
    return run_take_area(store, leader, run_gather(store, leader));
}

/* Starts the next get with what can be read with it, in the slot, which is free. False: none is queued, or no room. */
static bool start_next(struct kvt_store *store, struct kvt_get *leader)
{
    struct kvt_store_entry entry;
    pthread_mutex_lock(&store->lock);
    struct kvt_op_queue *queue = queue_of_next(store);
    if (!queue) {
        pthread_mutex_unlock(&store->lock);
        return false;
    }
    const enum kvt_status status = look_up(store, queue->head, &entry);
    if (status != KVT_OK) {
        struct kvt_store_op *op = queue->head;
        queue_pop(queue);
        kvt_store_finish_locked(store, op, status, 0);
        pthread_mutex_unlock(&store->lock);
        store->has_moved = true;
        return true;
    }
    if (!run_prepare(store, prepare(store, queue->head, &entry, leader))) {
        run_shorten(leader);
        leader->op = NULL;
        pthread_mutex_unlock(&store->lock);
        return false;
    }
    const uint32_t bytes = run_leave_queue(store, leader, queue);
    pthread_mutex_unlock(&store->lock);
    if (leader->is_in_place) in_place_start(store, leader);
    else if (leader->next_in_run) run_start(store, leader, bytes);
    else get_piece_start(store, leader);
    return true;
}

void kvt_store_start_gets(struct kvt_store *store)
{
    struct kvt_get *slot = store->get_slots;
    while (store->gets_active < KVT_STORE_GETS_MAX && (slot = free_slot(store, slot)) && start_next(store, slot)) { }
}
