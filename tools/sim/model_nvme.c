/*
 * The records: an open-addressed index of entries; an entry is on the list of its segment. Segments are filled one
 * after another; when only the spare is left, the oldest is reclaimed.
 */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/sim/model.h"

#define QUEUE_DEPTH 64
#define NONE UINT32_MAX
#define HEADER_BYTES 128
#define ALIGNMENT 512
#define SEGMENT_COUNT 64 /* as many as fit, at least 4 */
#define LOST_MAX 4096

struct entry {
    struct kvt_name name;
    uint64_t generation;
    uint32_t length, tokens, holds;
    uint32_t next; /* of its segment, or of the free ones */
    enum kvt_form form;
    bool is_live, was_read;
};

struct segment {
    uint32_t first, last;
    uint64_t used_bytes;
};

struct flight {
    struct kvt_tier_op *op;
    uint64_t done_ns;
    uint32_t epoch;
};

struct model_nvme {
    struct kvt_tier tier;
    const struct kvt_model_clock *clock;
    struct kvt_model_links links;
    uint64_t read_free_ns, write_free_ns;
    struct flight flights[QUEUE_DEPTH];
    uint32_t flight_count;

    struct entry *entries;
    uint32_t entry_count, entry_capacity, free_head;
    uint32_t *index; /* entry + 1; 0: free */
    uint64_t index_mask;
    uint32_t live_count;

    struct segment segments[SEGMENT_COUNT]; /* a ring, oldest first */
    uint32_t oldest, used_segments;         /* the newest is the open one */
    uint64_t segment_bytes;
    struct kvt_name lost[LOST_MAX];
    uint32_t lost_count, epoch;
    struct kvt_tier_counters counters;
};

static struct model_nvme *nvme_of(struct kvt_tier *tier) { return (struct model_nvme *)(void *)tier; }

static uint64_t stored_bytes(uint32_t length) { return kvt_align_up((uint64_t)length + HEADER_BYTES, ALIGNMENT); }

/* ---- The index --------------------------------------------------------------------------------------------------- */

static uint64_t home(const struct model_nvme *nvme, const struct kvt_name *name)
{
    return (name->key.lo ^ name->space.lo) & nvme->index_mask;
}

static uint64_t place_of(const struct model_nvme *nvme, const struct kvt_name *name)
{
    uint64_t at = home(nvme, name);
    while (nvme->index[at] != 0 && !kvt_name_equal(&nvme->entries[nvme->index[at] - 1].name, name))
        at = (at + 1) & nvme->index_mask;
    return at;
}

static struct entry *find(const struct model_nvme *nvme, const struct kvt_name *name)
{
    const uint32_t link = nvme->index[place_of(nvme, name)];
    return link != 0 ? &nvme->entries[link - 1] : NULL;
}

/* Moves back what the freed place would hide. */
static void unindex(struct model_nvme *nvme, const struct kvt_name *name)
{
    uint64_t hole = place_of(nvme, name);
    KVT_ASSERT(nvme->index[hole] != 0);
    for (uint64_t at = (hole + 1) & nvme->index_mask; nvme->index[at] != 0; at = (at + 1) & nvme->index_mask) {
        const uint64_t wanted = home(nvme, &nvme->entries[nvme->index[at] - 1].name);
        if (((at - wanted) & nvme->index_mask) < ((at - hole) & nvme->index_mask)) continue;
        nvme->index[hole] = nvme->index[at];
        hole = at;
    }
    nvme->index[hole] = 0;
}

/* The entry stays on its segment's list until that is reclaimed. */
static void drop(struct model_nvme *nvme, struct entry *entry)
{
    if (entry->holds > 0 && nvme->lost_count < LOST_MAX) nvme->lost[nvme->lost_count++] = entry->name;
    unindex(nvme, &entry->name);
    entry->is_live = false;
    nvme->live_count--;
    nvme->counters.used_bytes -= stored_bytes(entry->length);
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

static struct segment *open_segment(struct model_nvme *nvme)
{
    return &nvme->segments[(nvme->oldest + nvme->used_segments - 1) % SEGMENT_COUNT];
}

static void append(struct model_nvme *nvme, uint32_t number)
{
    struct segment *segment = open_segment(nvme);
    nvme->entries[number].next = NONE;
    if (segment->first == NONE) segment->first = number;
    else nvme->entries[segment->last].next = number;
    segment->last = number;
    segment->used_bytes += stored_bytes(nvme->entries[number].length);
}

/* Takes the next segment, and reclaims the oldest when it was the last but one. */
static void turn_over(struct model_nvme *nvme, uint32_t segments_max)
{
    nvme->used_segments++;
    *open_segment(nvme) = (struct segment){ NONE, NONE, 0 };
    if (nvme->used_segments < segments_max) return;
    const struct segment victim = nvme->segments[nvme->oldest];
    nvme->oldest = (nvme->oldest + 1) % SEGMENT_COUNT;
    nvme->used_segments--;
    for (uint32_t number = victim.first, next; number != NONE; number = next) {
        struct entry *entry = &nvme->entries[number];
        next = entry->next;
        const bool is_kept = entry->is_live && (entry->holds > 0 || entry->was_read);
        const bool is_fitting = open_segment(nvme)->used_bytes + stored_bytes(entry->length)
            <= nvme->segment_bytes * 7 / 8;
        if (is_kept && is_fitting) {
            entry->was_read = false;
            append(nvme, number);
            nvme->counters.bytes_in += stored_bytes(entry->length);
            nvme->write_free_ns += kvt_model_link_ns(stored_bytes(entry->length), nvme->links.nvme_write_bytes_per_s);
            continue;
        }
        if (entry->is_live) {
            drop(nvme, entry);
            nvme->counters.dropped++;
        }
        entry->next = nvme->free_head;
        nvme->free_head = number;
    }
}

/* A place for one more entry; NONE: no memory. */
static uint32_t take_entry(struct model_nvme *nvme)
{
    if (nvme->free_head != NONE) {
        const uint32_t number = nvme->free_head;
        nvme->free_head = nvme->entries[number].next;
        return number;
    }
    return nvme->entry_count < nvme->entry_capacity ? nvme->entry_count++ : NONE;
}

static uint32_t segments_max(const struct model_nvme *nvme)
{
    return (uint32_t)kvt_min_u64(SEGMENT_COUNT, nvme->counters.capacity_bytes / nvme->segment_bytes);
}

static enum kvt_status write_record(struct model_nvme *nvme, const struct kvt_tier_op *op)
{
    const uint64_t bytes = stored_bytes(op->length);
    if (bytes > nvme->segment_bytes / 2) return KVT_FULL;
    if (open_segment(nvme)->used_bytes + bytes > nvme->segment_bytes) turn_over(nvme, segments_max(nvme));
    struct entry *known = find(nvme, &op->name);
    const uint32_t holds = known ? known->holds : 0;
    if (known) {
        known->holds = 0;
        drop(nvme, known);
    }
    const uint32_t number = take_entry(nvme);
    if (number == NONE) return KVT_FULL;
    nvme->entries[number] = (struct entry){ .name = op->name,
                                            .generation = op->generation,
                                            .length = op->length,
                                            .tokens = op->tokens,
                                            .holds = holds,
                                            .form = op->form,
                                            .is_live = true };
    nvme->index[place_of(nvme, &op->name)] = number + 1;
    append(nvme, number);
    nvme->live_count++;
    nvme->counters.bytes_in += bytes;
    nvme->counters.used_bytes += bytes;
    nvme->counters.peak_bytes = kvt_max_u64(nvme->counters.peak_bytes, nvme->used_segments * nvme->segment_bytes);
    return KVT_OK;
}

static enum kvt_status read_record(struct model_nvme *nvme, struct kvt_tier_op *op)
{
    struct entry *entry = find(nvme, &op->name);
    if (!entry || entry->generation != op->generation) return KVT_NOTFOUND;
    if (entry->length > op->host_capacity) return KVT_FULL;
    entry->was_read = true;
    op->ret_length = entry->length;
    op->ret_form = entry->form;
    nvme->counters.bytes_out += entry->length;
    return KVT_OK;
}

/* ---- The calls of tier.h ----------------------------------------------------------------------------------------- */

static enum kvt_status nvme_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    struct model_nvme *nvme = nvme_of(tier);
    const bool is_read = op->kind == KVT_OP_FETCH;
    uint64_t *free_ns = is_read ? &nvme->read_free_ns : &nvme->write_free_ns;
    const uint64_t bytes_per_s = is_read ? nvme->links.nvme_read_bytes_per_s : nvme->links.nvme_write_bytes_per_s;
    op->link_ns = kvt_model_link_ns(stored_bytes(op->length), bytes_per_s);
    op->codec_ns = 0;
    *free_ns = kvt_max_u64(*free_ns, nvme->clock->now_ns) + op->link_ns;
    /* Latencies of ops in the queue overlap; their bytes do not. */
    nvme->flights[nvme->flight_count++] = (struct flight){ op, *free_ns + nvme->links.nvme_latency_ns, nvme->epoch };
    return KVT_OK;
}

static uint32_t nvme_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    struct model_nvme *nvme = nvme_of(tier);
    uint32_t count = 0, kept = 0;
    for (uint32_t i = 0; i < nvme->flight_count; i++) {
        const struct flight flight = nvme->flights[i];
        if (count == max || flight.done_ns > nvme->clock->now_ns) {
            nvme->flights[kept++] = flight;
            continue;
        }
        struct kvt_tier_op *op = flight.op;
        if (op->kind == KVT_OP_FETCH) op->status = read_record(nvme, op);
        else op->status = flight.epoch == nvme->epoch ? write_record(nvme, op) : KVT_SHUTDOWN;
        ret_done[count++] = op;
    }
    nvme->flight_count = kept;
    return count;
}

uint64_t kvt_model_nvme_next_ns(const struct kvt_tier *tier)
{
    const struct model_nvme *nvme = (const struct model_nvme *)(const void *)tier;
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < nvme->flight_count; i++) next_ns = kvt_min_u64(next_ns, nvme->flights[i].done_ns);
    return next_ns;
}

static void nvme_counters(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters)
{
    *ret_counters = nvme_of(tier)->counters;
}

static void describe(const struct entry *entry, struct kvt_found *ret_found)
{
    *ret_found = (struct kvt_found){
        .length = entry->length, .form = entry->form, .tokens = entry->tokens, .generation = entry->generation
    };
}

static bool nvme_find(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    const struct entry *entry = find(nvme_of(tier), name);
    if (entry) describe(entry, ret_found);
    return entry != NULL;
}

static bool nvme_hold(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    struct entry *entry = find(nvme_of(tier), name);
    if (!entry) return false;
    entry->holds++;
    describe(entry, ret_found);
    return true;
}

static void nvme_release(struct kvt_tier *tier, const struct kvt_name *name)
{
    struct entry *entry = find(nvme_of(tier), name);
    if (entry && entry->holds > 0) entry->holds--; /* a lost record's holds are gone with it */
}

static void nvme_forget(struct kvt_tier *tier, const struct kvt_name *name)
{
    struct entry *entry = find(nvme_of(tier), name);
    if (!entry) return;
    entry->holds = 0;
    drop(nvme_of(tier), entry);
}

static uint32_t nvme_poll_lost(struct kvt_tier *tier, struct kvt_name *ret_names, uint32_t max)
{
    struct model_nvme *nvme = nvme_of(tier);
    uint32_t count = 0;
    while (count < max && nvme->lost_count > 0) ret_names[count++] = nvme->lost[--nvme->lost_count];
    return count;
}

static enum kvt_status nvme_reset(struct kvt_tier *tier)
{
    struct model_nvme *nvme = nvme_of(tier);
    for (uint32_t i = 0; i < nvme->entry_count; i++) {
        if (nvme->entries[i].is_live) drop(nvme, &nvme->entries[i]);
    }
    nvme->epoch++;
    return KVT_OK;
}

static enum kvt_status nvme_sync(struct kvt_tier *tier)
{
    (void)tier;
    return KVT_OK;
}

static void nvme_close(struct kvt_tier *tier)
{
    struct model_nvme *nvme = nvme_of(tier);
    kvt_table_unmap(nvme->entries, (uint64_t)nvme->entry_capacity * sizeof *nvme->entries);
    kvt_table_unmap(nvme->index, (nvme->index_mask + 1) * sizeof *nvme->index);
    kvt_free(nvme);
}

static const struct kvt_tier_ops nvme_ops = {
    .name = "model-nvme",
    .caps = KVT_TIER_INDEXED | KVT_TIER_DURABLE,
    .close = nvme_close,
    .submit = nvme_submit,
    .poll = nvme_poll,
    .counters = nvme_counters,
    .find = nvme_find,
    .hold = nvme_hold,
    .release = nvme_release,
    .forget = nvme_forget,
    .poll_lost = nvme_poll_lost,
    .reset = nvme_reset,
    .sync = nvme_sync,
};

enum kvt_status kvt_model_nvme_open(const struct kvt_model_links *links, uint64_t capacity_bytes,
                                    uint32_t record_bytes_max, const struct kvt_model_clock *clock,
                                    struct kvt_tier **ret_tier)
{
    KVT_ASSERT(kvt_tier_ops_are_valid(&nvme_ops));
    struct model_nvme *nvme = kvt_alloc(1, sizeof *nvme);
    if (!nvme) return KVT_NOMEM;
    nvme->tier = (struct kvt_tier){ .ops = &nvme_ops, .queue_depth = QUEUE_DEPTH };
    nvme->clock = clock;
    nvme->links = *links;
    nvme->counters.capacity_bytes = capacity_bytes;
    /* Segments hold several records, and there are several of them. */
    nvme->segment_bytes = kvt_max_u64(capacity_bytes / SEGMENT_COUNT,
                                      kvt_min_u64(4 * stored_bytes(record_bytes_max), capacity_bytes / 4));
    nvme->free_head = NONE;
    nvme->used_segments = 1;
    nvme->segments[0] = (struct segment){ NONE, NONE, 0 };
    const uint64_t entries = capacity_bytes / ALIGNMENT + 2;
    nvme->entry_capacity = (uint32_t)kvt_min_u64(entries, UINT32_C(1) << 26);
    uint64_t places = 16;
    while (places < 2 * (uint64_t)nvme->entry_capacity) places *= 2;
    nvme->index_mask = places - 1;
    nvme->entries = kvt_table_map((uint64_t)nvme->entry_capacity * sizeof *nvme->entries);
    nvme->index = kvt_table_map(places * sizeof *nvme->index);
    if (!nvme->entries || !nvme->index) {
        nvme_close(&nvme->tier);
        return KVT_NOMEM;
    }
    *ret_tier = &nvme->tier;
    return KVT_OK;
}
