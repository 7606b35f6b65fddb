/*
 * What a record is and when it leaves is model_log.h's; here is its time. An op is over when both are done with it: the
 * disk (its bytes one after another at the disk's speed, latencies overlapping), and the paced link before it, which
 * carries one op at a time, reads of a demand first (tiers/block_io_paced.c).
 */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/store_pace.h"
#include "tools/sim/model.h"
#include "tools/sim/model_log.h"

#define QUEUE_DEPTH 64
#define NONE UINT32_MAX
#define QUEUE_BYTES_MAX (64 * KVT_MIB) /* of puts that wait, as the store's default */
#define DRAIN_NS_MAX UINT64_C(2000000000)

struct flight {
    struct kvt_tier_op *op;
    uint64_t serial, bytes, submitted_ns;
    uint64_t disk_ns; /* when the disk is done with it */
    uint64_t due_ns;  /* when the link is */
    uint32_t epoch;
    bool has_crossed;
};

struct model_nvme {
    struct kvt_tier tier;
    const struct kvt_model_clock *clock;
    struct kvt_model_links links;
    struct kvt_model_log *log;
    struct kvt_pace pace;
    uint64_t queued_bytes;    /* of puts */
    uint64_t disk_free_ns[2]; /* read, write; one for both where the disk is shared */
    uint64_t link_free_ns, serial;
    uint64_t moving_bytes; /* a reclaim's, not yet on the link */
    uint32_t crossing;     /* flight on the link; NONE: none */
    struct flight flights[QUEUE_DEPTH];
    uint32_t flight_count, epoch;
    uint64_t bytes_out, peak_bytes;
};

static struct model_nvme *nvme_of(struct kvt_tier *tier) { return (struct model_nvme *)(void *)tier; }

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static bool is_urgent(const struct flight *flight)
{
    return flight->op->kind == KVT_OP_FETCH && flight->op->priority == KVT_PRIORITY_DEMAND;
}

/* The next op for the link: urgent reads, then the others, each in their order. */
static uint32_t next_to_cross(const struct model_nvme *nvme)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < nvme->flight_count; i++) {
        const struct flight *flight = &nvme->flights[i];
        if (flight->has_crossed) continue;
        if (best == NONE) {
            best = i;
            continue;
        }
        const bool is_first = is_urgent(flight) == is_urgent(&nvme->flights[best])
            ? flight->serial < nvme->flights[best].serial
            : is_urgent(flight);
        if (is_first) best = i;
    }
    return best;
}

/* Lets the link work until now. */
static void advance_link(struct model_nvme *nvme, uint64_t now_ns)
{
    for (;;) {
        if (nvme->crossing == NONE) {
            const uint32_t next = next_to_cross(nvme);
            if (next == NONE) return;
            struct flight *flight = &nvme->flights[next];
            uint64_t bytes = flight->bytes;
            if (!is_urgent(flight)) { /* what a reclaim moves stands in the same queue */
                bytes += nvme->moving_bytes;
                nvme->moving_bytes = 0;
            }
            flight->due_ns = kvt_max_u64(nvme->link_free_ns, flight->submitted_ns)
                + kvt_model_link_ns(bytes, nvme->links.nvme_pace_bytes_per_s);
            nvme->crossing = next;
        }
        struct flight *flight = &nvme->flights[nvme->crossing];
        if (flight->due_ns > now_ns) return;
        nvme->link_free_ns = flight->due_ns;
        flight->has_crossed = true;
        nvme->crossing = NONE;
    }
}

static uint64_t disk_done_ns(struct model_nvme *nvme, bool is_read, uint64_t bytes)
{
    const struct kvt_model_links *links = &nvme->links;
    uint64_t *free_ns = &nvme->disk_free_ns[links->is_nvme_shared || is_read ? 0 : 1];
    const uint64_t bytes_per_s = is_read ? links->nvme_read_bytes_per_s : links->nvme_write_bytes_per_s;
    *free_ns = kvt_max_u64(*free_ns, nvme->clock->now_ns) + kvt_model_link_ns(bytes, bytes_per_s);
    return *free_ns + (is_read ? links->nvme_read_latency_ns : links->nvme_write_latency_ns);
}

/* ---- The calls of tier.h ----------------------------------------------------------------------------------------- */

static enum kvt_status nvme_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    struct model_nvme *nvme = nvme_of(tier);
    const bool is_read = op->kind == KVT_OP_FETCH;
    const uint64_t now_ns = nvme->clock->now_ns;
    advance_link(nvme, now_ns);
    if (!is_read) {
        const uint64_t pace = nvme->links.nvme_pace_bytes_per_s;
        const uint64_t bytes_max = pace > 0 ? kvt_min_u64(QUEUE_BYTES_MAX, pace) : QUEUE_BYTES_MAX;
        if (!kvt_pace_allows(&nvme->pace, nvme->queued_bytes, op->length, now_ns)) return KVT_FULL;
        if (nvme->queued_bytes > 0 && nvme->queued_bytes + op->length > bytes_max) return KVT_FULL;
        nvme->queued_bytes += op->length;
        kvt_pace_begin(&nvme->pace, now_ns);
    }
    const uint64_t bytes = kvt_model_log_stored_bytes(nvme->log, op->length);
    nvme->flights[nvme->flight_count++] = (struct flight){ .op = op,
                                                           .serial = nvme->serial++,
                                                           .bytes = bytes,
                                                           .submitted_ns = now_ns,
                                                           .disk_ns = disk_done_ns(nvme, is_read, bytes),
                                                           .epoch = nvme->epoch };
    advance_link(nvme, now_ns);
    return KVT_OK;
}

static enum kvt_status write_record(struct model_nvme *nvme, const struct kvt_tier_op *op)
{
    const struct kvt_found record = {
        .length = op->length, .form = op->form, .tokens = op->tokens, .generation = op->generation
    };
    struct kvt_model_log_counters before, after;
    kvt_model_log_counters(nvme->log, &before);
    const enum kvt_status status = kvt_model_log_put(nvme->log, &op->name, &record);
    kvt_model_log_counters(nvme->log, &after);
    nvme->peak_bytes = kvt_max_u64(nvme->peak_bytes, after.allocated_bytes);
    /* What moves is read, and written again. */
    const uint64_t moved = after.moved_bytes - before.moved_bytes;
    if (moved > 0) {
        (void)disk_done_ns(nvme, true, moved);
        (void)disk_done_ns(nvme, false, moved);
        nvme->moving_bytes += 2 * moved;
    }
    return status;
}

static enum kvt_status read_record(struct model_nvme *nvme, struct kvt_tier_op *op)
{
    struct kvt_found found;
    KVT_TRY(kvt_model_log_get(nvme->log, &op->name, op->generation, &found));
    if (found.length > op->host_capacity) return KVT_FULL;
    op->ret_length = found.length;
    op->ret_form = found.form;
    nvme->bytes_out += found.length;
    return KVT_OK;
}

/* The flight is over; when it was is known to nobody but the op. */
static void land(struct model_nvme *nvme, const struct flight *flight)
{
    struct kvt_tier_op *op = flight->op;
    const uint64_t done_ns = kvt_max_u64(flight->due_ns, flight->disk_ns);
    op->link_ns = done_ns - flight->submitted_ns;
    op->codec_ns = 0;
    if (op->kind == KVT_OP_FETCH) {
        op->status = read_record(nvme, op);
        return;
    }
    nvme->queued_bytes -= op->length;
    kvt_pace_end(&nvme->pace, flight->bytes, nvme->clock->now_ns);
    op->status = flight->epoch == nvme->epoch ? write_record(nvme, op) : KVT_SHUTDOWN;
}

static uint64_t seen_ns(const struct model_nvme *nvme, const struct flight *flight)
{
    return kvt_max_u64(flight->due_ns, flight->disk_ns) + nvme->links.wake_ns;
}

static uint32_t nvme_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    struct model_nvme *nvme = nvme_of(tier);
    const uint64_t now_ns = nvme->clock->now_ns;
    uint32_t count = 0, kept = 0, crossing = NONE;
    advance_link(nvme, now_ns);
    for (uint32_t i = 0; i < nvme->flight_count; i++) {
        const struct flight flight = nvme->flights[i];
        if (count == max || !flight.has_crossed || seen_ns(nvme, &flight) > now_ns) {
            if (nvme->crossing == i) crossing = kept;
            nvme->flights[kept++] = flight;
            continue;
        }
        land(nvme, &flight);
        ret_done[count++] = flight.op;
    }
    nvme->flight_count = kept;
    nvme->crossing = crossing;
    return count;
}

uint64_t kvt_model_nvme_next_ns(const struct kvt_tier *tier)
{
    const struct model_nvme *nvme = (const struct model_nvme *)(const void *)tier;
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < nvme->flight_count; i++) {
        const struct flight *flight = &nvme->flights[i];
        if (flight->has_crossed || i == nvme->crossing) next_ns = kvt_min_u64(next_ns, seen_ns(nvme, flight));
        /* Who crosses next is known when this one is over: that is a time to look again. */
        if (i == nvme->crossing) next_ns = kvt_min_u64(next_ns, flight->due_ns);
    }
    return next_ns;
}

static void nvme_counters(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters)
{
    const struct model_nvme *nvme = nvme_of(tier);
    struct kvt_model_log_counters log;
    kvt_model_log_counters(nvme->log, &log);
    *ret_counters = (struct kvt_tier_counters){ .capacity_bytes = log.capacity_bytes,
                                                .used_bytes = log.allocated_bytes,
                                                .peak_bytes = nvme->peak_bytes,
                                                .bytes_in = log.written_bytes,
                                                .bytes_out = nvme->bytes_out,
                                                .day_bytes = log.written_bytes,
                                                .dropped = log.evicted_records };
}

static bool nvme_find(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    return kvt_model_log_find(nvme_of(tier)->log, name, ret_found);
}

static bool nvme_hold(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    return kvt_model_log_hold(nvme_of(tier)->log, name, ret_found);
}

static void nvme_release(struct kvt_tier *tier, const struct kvt_name *name)
{
    kvt_model_log_release(nvme_of(tier)->log, name);
}

static void nvme_forget(struct kvt_tier *tier, const struct kvt_name *name)
{
    kvt_model_log_forget(nvme_of(tier)->log, name);
}

static uint32_t nvme_poll_lost(struct kvt_tier *tier, struct kvt_name *ret_names, uint32_t max)
{
    return kvt_model_log_poll_lost(nvme_of(tier)->log, ret_names, max);
}

static enum kvt_status nvme_reset(struct kvt_tier *tier)
{
    struct model_nvme *nvme = nvme_of(tier);
    kvt_model_log_reset(nvme->log);
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
    kvt_model_log_destroy(&nvme->log);
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
                                    uint32_t record_bytes_max, uint64_t side_bytes_max,
                                    const struct kvt_model_clock *clock, struct kvt_tier **ret_tier)
{
    KVT_ASSERT(kvt_tier_ops_are_valid(&nvme_ops));
    struct model_nvme *nvme = kvt_alloc(1, sizeof *nvme);
    if (!nvme) return KVT_NOMEM;
    nvme->tier = (struct kvt_tier){ .ops = &nvme_ops, .queue_depth = QUEUE_DEPTH };
    nvme->clock = clock;
    nvme->links = *links;
    nvme->crossing = NONE;
    nvme->pace.drain_ns_max = DRAIN_NS_MAX;
    const enum kvt_status status = kvt_model_log_create(capacity_bytes, record_bytes_max, side_bytes_max,
                                                        links->nvme_alignment, &nvme->log);
    if (status != KVT_OK) {
        kvt_free(nvme);
        return status;
    }
    struct kvt_model_log_counters log;
    kvt_model_log_counters(nvme->log, &log);
    nvme->peak_bytes = log.allocated_bytes;
    *ret_tier = &nvme->tier;
    return KVT_OK;
}
