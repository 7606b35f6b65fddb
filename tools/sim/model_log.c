/*
 * The records: an open-addressed index of entries; an entry is on the list of its segment until that is reclaimed, dead
 * or alive.
 */
#include "tools/sim/model_log.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/store_geometry.h"

#define NONE UINT32_MAX
#define LOST_MAX 4096
#define ENTRIES_MAX (UINT32_C(1) << 26)
#define FIXED_BYTES (2 * KVT_STORE_BLOCK_BYTES + 16 * KVT_KIB) /* of a new store: superblock, lock, probe */

struct entry {
    struct kvt_name name;
    uint64_t generation;
    uint32_t length, tokens, holds;
    uint32_t segment;
    uint32_t next; /* of its segment, or of the free ones */
    enum kvt_form form;
    bool is_live, was_read;
};

enum segment_state { SEGMENT_ABSENT, SEGMENT_FREE, SEGMENT_OPEN, SEGMENT_CLOSED };

struct segment {
    enum segment_state state;
    uint32_t first, last, entry_count; /* records, dead ones too */
    uint32_t held_records;
    uint64_t sequence, data_end, held_bytes;
};

struct kvt_model_log {
    uint32_t alignment, entries_max;
    uint64_t segment_bytes;
    struct segment *segments;
    uint32_t segments_max, file_count, free_count, open_segment;
    uint64_t sequence;

    struct entry *entries;
    uint32_t entry_count, entry_capacity, free_head;
    uint32_t *index; /* entry + 1; 0: free */
    uint64_t index_mask;
    struct kvt_name lost[LOST_MAX];
    uint32_t lost_count;
    struct kvt_model_log_counters counters;
};

static uint64_t stored_of(const struct kvt_model_log *log, const struct entry *entry)
{
    return kvt_store_stored_bytes(entry->length, log->alignment);
}

uint64_t kvt_model_log_stored_bytes(const struct kvt_model_log *log, uint32_t length)
{
    return kvt_store_stored_bytes(length, log->alignment);
}

/* ---- The index --------------------------------------------------------------------------------------------------- */

static uint64_t home(const struct kvt_model_log *log, const struct kvt_name *name)
{
    return (name->key.lo ^ name->space.lo) & log->index_mask;
}

static uint64_t place_of(const struct kvt_model_log *log, const struct kvt_name *name)
{
    uint64_t at = home(log, name);
    while (log->index[at] != 0 && !kvt_name_equal(&log->entries[log->index[at] - 1].name, name))
        at = (at + 1) & log->index_mask;
    return at;
}

static struct entry *find(const struct kvt_model_log *log, const struct kvt_name *name)
{
    const uint32_t link = log->index[place_of(log, name)];
    return link != 0 ? &log->entries[link - 1] : NULL;
}

/* Moves back what the freed place would hide. */
static void unindex(struct kvt_model_log *log, const struct kvt_name *name)
{
    uint64_t hole = place_of(log, name);
    KVT_ASSERT(log->index[hole] != 0);
    for (uint64_t at = (hole + 1) & log->index_mask; log->index[at] != 0; at = (at + 1) & log->index_mask) {
        const uint64_t wanted = home(log, &log->entries[log->index[at] - 1].name);
        if (((at - wanted) & log->index_mask) < ((at - hole) & log->index_mask)) continue;
        log->index[hole] = log->index[at];
        hole = at;
    }
    log->index[hole] = 0;
}

/* What is held is counted where it lies. */
static void count_held(struct kvt_model_log *log, const struct entry *entry, int sign)
{
    struct segment *segment = &log->segments[entry->segment];
    segment->held_bytes += (uint64_t)((int64_t)stored_of(log, entry) * sign);
    segment->held_records += (uint32_t)sign;
}

/* The entry stays on its segment's list until that is reclaimed. */
static void drop(struct kvt_model_log *log, struct entry *entry)
{
    if (entry->holds > 0) count_held(log, entry, -1);
    unindex(log, &entry->name);
    entry->is_live = false;
    log->counters.records--;
}

static void tell_lost(struct kvt_model_log *log, const struct entry *entry)
{
    if (entry->holds > 0 && log->lost_count < LOST_MAX) log->lost[log->lost_count++] = entry->name;
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

static bool has_room(const struct kvt_model_log *log, uint64_t stored, uint64_t reserve_bytes, uint32_t reserve_count)
{
    if (log->open_segment == NONE) return false;
    const struct segment *segment = &log->segments[log->open_segment];
    const uint64_t entries = (uint64_t)segment->entry_count + reserve_count + 1;
    return entries <= log->entries_max
        && segment->data_end + stored + reserve_bytes + kvt_store_summary_bytes(entries) + KVT_STORE_BLOCK_BYTES
        <= log->segment_bytes;
}

static void append(struct kvt_model_log *log, uint32_t number)
{
    struct segment *segment = &log->segments[log->open_segment];
    struct entry *entry = &log->entries[number];
    entry->next = NONE;
    entry->segment = log->open_segment;
    if (segment->first == NONE) segment->first = number;
    else log->entries[segment->last].next = number;
    segment->last = number;
    segment->entry_count++;
    segment->data_end += stored_of(log, entry);
    log->counters.written_bytes += stored_of(log, entry);
    if (entry->holds > 0) count_held(log, entry, 1);
}

static void open_segment(struct kvt_model_log *log, uint32_t number)
{
    if (log->open_segment != NONE) {
        struct segment *before = &log->segments[log->open_segment];
        before->state = SEGMENT_CLOSED;
        log->counters.written_bytes += kvt_store_summary_bytes(before->entry_count) + KVT_STORE_BLOCK_BYTES;
    }
    log->segments[number] = (struct segment){ .state = SEGMENT_OPEN,
                                              .first = NONE,
                                              .last = NONE,
                                              .sequence = ++log->sequence,
                                              .data_end = KVT_STORE_BLOCK_BYTES };
    log->open_segment = number;
    log->free_count--;
    log->counters.written_bytes += KVT_STORE_BLOCK_BYTES;
}

/* The oldest that leaves enough room; NONE: none does. */
static uint32_t choose_victim(const struct kvt_model_log *log, uint64_t stored, bool *ret_has_closed)
{
    const uint64_t payload = log->segment_bytes - 3 * (uint64_t)KVT_STORE_BLOCK_BYTES;
    const uint64_t leave = kvt_min_u64(stored + log->segment_bytes / 8, payload);
    uint32_t best = NONE;
    *ret_has_closed = false;
    for (uint32_t i = 0; i < log->file_count; i++) {
        const struct segment *segment = &log->segments[i];
        if (segment->state != SEGMENT_CLOSED) continue;
        *ret_has_closed = true;
        if (segment->held_bytes > payload - leave || segment->held_records > log->entries_max / 8 * 7) continue;
        if (best == NONE || segment->sequence < log->segments[best].sequence) best = i;
    }
    return best;
}

/*
 * Carries forward what is held, or, afterwards, what was read, up to `most` bytes; the rest is dropped. *rest gets what
 * is for the second round; NULL: this is the second.
 */
static uint64_t carry(struct kvt_model_log *log, uint32_t list, uint64_t stored, uint64_t most, uint32_t *rest)
{
    uint64_t moved = 0;
    uint32_t next;
    for (uint32_t number = list; number != NONE; number = next) {
        struct entry *entry = &log->entries[number];
        const uint64_t bytes = stored_of(log, entry);
        next = entry->next;
        if (rest && entry->is_live && entry->holds == 0 && entry->was_read) {
            entry->next = *rest;
            *rest = number;
            continue;
        }
        const bool is_kept = entry->is_live && (entry->holds > 0 || entry->was_read);
        if (is_kept && has_room(log, stored + bytes, 0, 1) && moved + bytes <= most) {
            if (entry->holds > 0) count_held(log, entry, -1);
            entry->was_read = false;
            append(log, number);
            moved += bytes;
            continue;
        }
        if (entry->is_live) {
            tell_lost(log, entry);
            drop(log, entry);
            log->counters.evicted_records++;
        }
        entry->next = log->free_head;
        log->free_head = number;
    }
    return moved;
}

static void reclaim(struct kvt_model_log *log, uint32_t victim, uint64_t stored)
{
    const uint64_t half = (log->segment_bytes - 3 * (uint64_t)KVT_STORE_BLOCK_BYTES) / 2;
    uint32_t rest = NONE;
    uint64_t moved = carry(log, log->segments[victim].first, stored, UINT64_MAX, &rest);
    moved += carry(log, rest, stored, half - kvt_min_u64(half, moved), NULL);
    log->segments[victim].state = SEGMENT_FREE;
    log->free_count++;
    log->counters.moved_bytes += moved;
    log->counters.reclaims++;
}

/* Makes room for a record of so many bytes. False: the put is refused. */
static bool advance(struct kvt_model_log *log, uint64_t stored)
{
    for (uint32_t turn = 0; turn <= log->segments_max && !has_room(log, stored, 0, 0); turn++) {
        if (log->free_count < 2 && log->file_count < log->segments_max) {
            log->segments[log->file_count++].state = SEGMENT_FREE;
            log->free_count++;
            log->counters.allocated_bytes += log->segment_bytes;
        }
        const bool can_grow = log->file_count < log->segments_max;
        uint32_t victim = NONE;
        if (log->free_count < 2 && !can_grow) {
            bool has_closed;
            victim = choose_victim(log, stored, &has_closed);
            if (victim == NONE && has_closed) return false;
        }
        uint32_t best = NONE;
        for (uint32_t i = 0; i < log->file_count; i++) {
            const struct segment *segment = &log->segments[i];
            if (segment->state != SEGMENT_FREE) continue;
            if (best == NONE || segment->sequence < log->segments[best].sequence) best = i;
        }
        if (best == NONE) return false;
        open_segment(log, best);
        if (victim != NONE) reclaim(log, victim, stored);
    }
    return has_room(log, stored, 0, 0);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void describe(const struct entry *entry, struct kvt_found *ret_record)
{
    *ret_record = (struct kvt_found){
        .length = entry->length, .form = entry->form, .tokens = entry->tokens, .generation = entry->generation
    };
}

/* A place for one more entry; NONE: there is none. */
static uint32_t take_entry(struct kvt_model_log *log)
{
    if (log->free_head == NONE) return log->entry_count < log->entry_capacity ? log->entry_count++ : NONE;
    const uint32_t number = log->free_head;
    log->free_head = log->entries[number].next;
    return number;
}

enum kvt_status kvt_model_log_put(struct kvt_model_log *log, const struct kvt_name *name,
                                  const struct kvt_found *record)
{
    const uint64_t stored = kvt_store_stored_bytes(record->length, log->alignment);
    if (stored + 3 * (uint64_t)KVT_STORE_BLOCK_BYTES > log->segment_bytes || !advance(log, stored)) {
        log->counters.refused_puts++;
        return KVT_FULL;
    }
    struct entry *known = find(log, name);
    const uint32_t holds = known ? known->holds : 0;
    const uint32_t number = take_entry(log);
    if (number == NONE) return KVT_FULL;
    if (known) drop(log, known);
    log->entries[number] = (struct entry){ .name = *name,
                                           .generation = record->generation,
                                           .length = record->length,
                                           .tokens = record->tokens,
                                           .holds = holds,
                                           .form = record->form,
                                           .is_live = true };
    log->index[place_of(log, name)] = number + 1;
    append(log, number);
    log->counters.records++;
    log->counters.stored_bytes += stored;
    return KVT_OK;
}

enum kvt_status kvt_model_log_get(struct kvt_model_log *log, const struct kvt_name *name, uint64_t generation,
                                  struct kvt_found *ret_record)
{
    struct entry *entry = find(log, name);
    if (!entry || entry->generation != generation) return KVT_NOTFOUND;
    entry->was_read = true;
    describe(entry, ret_record);
    return KVT_OK;
}

bool kvt_model_log_find(const struct kvt_model_log *log, const struct kvt_name *name, struct kvt_found *ret_record)
{
    const struct entry *entry = find(log, name);
    if (entry) describe(entry, ret_record);
    return entry != NULL;
}

bool kvt_model_log_hold(struct kvt_model_log *log, const struct kvt_name *name, struct kvt_found *ret_record)
{
    struct entry *entry = find(log, name);
    if (!entry) return false;
    if (entry->holds++ == 0) count_held(log, entry, 1);
    describe(entry, ret_record);
    return true;
}

void kvt_model_log_release(struct kvt_model_log *log, const struct kvt_name *name)
{
    struct entry *entry = find(log, name);
    if (!entry || entry->holds == 0) return; /* a lost record's holds are gone with it */
    if (entry->holds == 1) count_held(log, entry, -1);
    entry->holds--;
}

void kvt_model_log_forget(struct kvt_model_log *log, const struct kvt_name *name)
{
    struct entry *entry = find(log, name);
    if (entry) drop(log, entry);
}

uint32_t kvt_model_log_poll_lost(struct kvt_model_log *log, struct kvt_name *ret_names, uint32_t max)
{
    uint32_t count = 0;
    while (count < max && log->lost_count > 0) ret_names[count++] = log->lost[--log->lost_count];
    return count;
}

void kvt_model_log_reset(struct kvt_model_log *log)
{
    for (uint32_t i = 0; i < log->entry_count; i++) {
        if (!log->entries[i].is_live) continue;
        tell_lost(log, &log->entries[i]);
        drop(log, &log->entries[i]);
    }
}

void kvt_model_log_counters(const struct kvt_model_log *log, struct kvt_model_log_counters *ret_counters)
{
    *ret_counters = log->counters;
}

/* ---- Create and destroy ------------------------------------------------------------------------------------------ */

enum kvt_status kvt_model_log_create(uint64_t capacity_bytes, uint32_t record_bytes_max, uint64_t side_bytes_max,
                                     uint32_t alignment, struct kvt_model_log **ret_log)
{
    const uint64_t sides = 2 * kvt_align_up(side_bytes_max, KVT_STORE_BLOCK_BYTES);
    const uint64_t directory = kvt_max_u64(
        KVT_STORE_BLOCK_BYTES, kvt_align_up(capacity_bytes / KVT_STORE_SEGMENT_BYTES_MAX * 32, KVT_STORE_BLOCK_BYTES));
    const uint64_t fixed = kvt_min_u64(capacity_bytes, directory + FIXED_BYTES + sides);
    const uint64_t segment_bytes = kvt_store_choose_segment_bytes(capacity_bytes - fixed, record_bytes_max, alignment);
    const uint32_t segments_max = kvt_store_segments_that_fit(capacity_bytes - fixed, segment_bytes);
    if (segments_max < KVT_STORE_SEGMENTS_MIN) return KVT_INVAL;
    struct kvt_model_log *log = kvt_alloc(1, sizeof *log);
    if (!log) return KVT_NOMEM;
    log->alignment = alignment;
    log->segment_bytes = segment_bytes;
    log->segments_max = segments_max;
    log->entries_max = kvt_store_segment_entries(segment_bytes);
    log->open_segment = log->free_head = NONE;
    log->counters.capacity_bytes = capacity_bytes;
    log->counters.allocated_bytes = fixed;
    log->entry_capacity = (uint32_t)kvt_min_u64((uint64_t)segments_max * log->entries_max + 1, ENTRIES_MAX);
    uint64_t places = 16;
    while (places < 2 * (uint64_t)log->entry_capacity) places *= 2;
    log->index_mask = places - 1;
    log->segments = kvt_alloc(segments_max, sizeof *log->segments);
    log->entries = kvt_table_map((uint64_t)log->entry_capacity * sizeof *log->entries);
    log->index = kvt_table_map(places * sizeof *log->index);
    if (!log->segments || !log->entries || !log->index) {
        kvt_model_log_destroy(&log);
        return KVT_NOMEM;
    }
    *ret_log = log;
    return KVT_OK;
}

void kvt_model_log_destroy(struct kvt_model_log **log_pointer)
{
    struct kvt_model_log *log = *log_pointer;
    if (!log) return;
    kvt_free(log->segments);
    if (log->entries) kvt_table_unmap(log->entries, (uint64_t)log->entry_capacity * sizeof *log->entries);
    if (log->index) kvt_table_unmap(log->index, (log->index_mask + 1) * sizeof *log->index);
    kvt_free(log);
    *log_pointer = NULL;
}
