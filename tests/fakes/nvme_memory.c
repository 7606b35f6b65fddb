#include "tests/fakes/nvme_memory.h"

#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

#define LOST_MAX 4096

struct record {
    bool is_live, is_private;
    struct kvt_name name;
    uint32_t length, tokens, holds;
    enum kvt_form form;
    uint64_t generation;
    uint64_t age; /* grows with each record written */
    uint8_t *bytes;
};

struct flight {
    struct kvt_tier_op *op;
    bool is_stuck;
    uint32_t epoch; /* of the tier when it was submitted */
};

struct nvme_memory {
    struct kvt_tier tier;
    struct kvt_nvme_memory_config config;
    struct kvt_rng rng;
    struct record *records;
    uint8_t *slab;
    struct flight *flights;
    uint32_t flight_count;
    struct kvt_tier_op **done;
    uint32_t done_count;
    struct kvt_name lost[LOST_MAX];
    uint32_t lost_count;
    uint32_t epoch;
    uint64_t age, dropped;
    uint64_t bytes_in, bytes_out;
};

static struct nvme_memory *memory_of(struct kvt_tier *tier) { return (struct nvme_memory *)(void *)tier; }
static const struct nvme_memory *memory_of_const(const struct kvt_tier *tier)
{
    return (const struct nvme_memory *)(const void *)tier;
}

static bool chance(struct nvme_memory *m, uint32_t per_million)
{
    return per_million > 0 && kvt_rng_below(&m->rng, 1000000) < per_million;
}

static struct record *find(struct nvme_memory *m, const struct kvt_name *name)
{
    for (uint32_t i = 0; i < m->config.records_max; i++) {
        if (m->records[i].is_live && kvt_name_equal(&m->records[i].name, name)) return &m->records[i];
    }
    return NULL;
}

static void drop(struct nvme_memory *m, struct record *record)
{
    if (record->holds > 0) {
        KVT_ASSERT(m->lost_count < LOST_MAX);
        m->lost[m->lost_count++] = record->name;
    }
    record->is_live = false;
    record->holds = 0;
    m->dropped++;
}

/* A place for a new record: a free one, or that of the oldest that may go. */
static struct record *make_place(struct nvme_memory *m)
{
    struct record *oldest = NULL;
    struct record *oldest_held = NULL;
    for (uint32_t i = 0; i < m->config.records_max; i++) {
        struct record *record = &m->records[i];
        if (!record->is_live) return record;
        struct record **candidate = record->holds > 0 ? &oldest_held : &oldest;
        if (!*candidate || record->age < (*candidate)->age) *candidate = record;
    }
    if (!oldest && m->config.is_losing && chance(m, 500000)) oldest = oldest_held;
    if (oldest) drop(m, oldest);
    return oldest;
}

static enum kvt_status write_record(struct nvme_memory *m, const struct kvt_tier_op *op)
{
    struct record *record = find(m, &op->name);
    if (!record) record = make_place(m);
    if (!record) return KVT_FULL;
    KVT_ASSERT(op->length <= m->config.record_bytes_max);
    const uint32_t holds = record->is_live ? record->holds : 0;
    uint8_t *bytes = record->bytes;
    *record = (struct record){ .is_live = true,
                               .is_private = op->is_private,
                               .name = op->name,
                               .length = op->length,
                               .tokens = op->tokens,
                               .holds = holds,
                               .form = op->form,
                               .generation = op->generation,
                               .age = ++m->age,
                               .bytes = bytes };
    memcpy(bytes, op->host, op->length);
    m->bytes_in += op->length;
    return KVT_OK;
}

static enum kvt_status read_record(struct nvme_memory *m, struct kvt_tier_op *op)
{
    struct record *record = find(m, &op->name);
    if (!record || record->generation != op->generation) return KVT_NOTFOUND;
    if (record->length > op->host_capacity) return KVT_FULL;
    memcpy(op->host, record->bytes, record->length);
    op->ret_length = record->length;
    op->ret_form = record->form;
    m->bytes_out += record->length;
    return KVT_OK;
}

static void fail(struct nvme_memory *m, struct kvt_tier_op *op)
{
    const uint64_t draw = kvt_rng_below(&m->rng, 3);
    if (op->kind == KVT_OP_STASH) {
        op->status = draw == 0 ? KVT_FULL : KVT_IO;
        return;
    }
    memset(op->host, 0xa5, op->host_capacity);
    op->status = draw == 0 ? KVT_IO : draw == 1 ? KVT_CORRUPT : KVT_NOTFOUND;
    struct record *record = find(m, &op->name);
    if (record && op->status != KVT_IO) drop(m, record);
}

static void complete(struct nvme_memory *m, uint32_t i)
{
    const struct flight flight = m->flights[i];
    struct kvt_tier_op *op = flight.op;
    m->flights[i] = m->flights[--m->flight_count];
    op->status = KVT_OK;
    op->ret_length = 0;
    if (chance(m, m->config.fail_per_million)) fail(m, op);
    else if (op->kind == KVT_OP_FETCH) op->status = read_record(m, op);
    else if (flight.epoch == m->epoch) op->status = write_record(m, op);
    else op->status = kvt_rng_below(&m->rng, 2) ? KVT_OK : KVT_SHUTDOWN; /* a reset came in between: not published */
    m->done[m->done_count++] = op;
}

bool kvt_nvme_memory_run(struct kvt_tier *tier)
{
    struct nvme_memory *m = memory_of(tier);
    if (m->flight_count == 0) return false;
    const uint32_t start = (uint32_t)kvt_rng_below(&m->rng, m->flight_count);
    for (uint32_t n = 0; n < m->flight_count; n++) {
        const uint32_t i = (start + n) % m->flight_count;
        if (m->flights[i].is_stuck) continue;
        complete(m, i);
        return true;
    }
    return false;
}

void kvt_nvme_memory_release(struct kvt_tier *tier)
{
    struct nvme_memory *m = memory_of(tier);
    for (uint32_t i = 0; i < m->flight_count; i++) m->flights[i].is_stuck = false;
}

void kvt_nvme_memory_heal(struct kvt_tier *tier)
{
    struct nvme_memory *m = memory_of(tier);
    m->config.fail_per_million = m->config.stuck_per_million = 0;
    m->config.is_losing = false;
    kvt_nvme_memory_release(tier);
}

bool kvt_nvme_memory_lose(struct kvt_tier *tier)
{
    struct nvme_memory *m = memory_of(tier);
    const uint32_t start = (uint32_t)kvt_rng_below(&m->rng, m->config.records_max);
    for (uint32_t n = 0; n < m->config.records_max; n++) {
        struct record *record = &m->records[(start + n) % m->config.records_max];
        if (!record->is_live) continue;
        drop(m, record);
        return true;
    }
    return false;
}

uint32_t kvt_nvme_memory_records(const struct kvt_tier *tier)
{
    const struct nvme_memory *m = memory_of_const(tier);
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->config.records_max; i++) count += m->records[i].is_live;
    return count;
}

uint32_t kvt_nvme_memory_holds(const struct kvt_tier *tier)
{
    const struct nvme_memory *m = memory_of_const(tier);
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->config.records_max; i++) count += m->records[i].is_live ? m->records[i].holds : 0;
    return count;
}

uint32_t kvt_nvme_memory_privates(const struct kvt_tier *tier)
{
    const struct nvme_memory *m = memory_of_const(tier);
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->config.records_max; i++) count += m->records[i].is_live && m->records[i].is_private;
    return count;
}

uint64_t kvt_nvme_memory_dropped(const struct kvt_tier *tier) { return memory_of_const(tier)->dropped; }

/* ---- The calls of tier.h ----------------------------------------------------------------------------------------- */

static enum kvt_status memory_submit(struct kvt_tier *tier, struct kvt_tier_op *op)
{
    struct nvme_memory *m = memory_of(tier);
    KVT_ASSERT(op->kind != KVT_OP_COPY);
    KVT_ASSERT(KVT_IMPLIES(op->kind == KVT_OP_STASH, op->length > 0 && op->length <= op->host_capacity));
    m->flights[m->flight_count++] = (struct flight){ .op = op,
                                                     .is_stuck = chance(m, m->config.stuck_per_million),
                                                     .epoch = m->epoch };
    return KVT_OK;
}

static uint32_t memory_poll(struct kvt_tier *tier, struct kvt_tier_op **ret_done, uint32_t max)
{
    struct nvme_memory *m = memory_of(tier);
    uint32_t count = 0;
    while (count < max && m->done_count > 0) ret_done[count++] = m->done[--m->done_count];
    return count;
}

static void memory_counters(struct kvt_tier *tier, struct kvt_tier_counters *ret_counters)
{
    const struct nvme_memory *m = memory_of(tier);
    const uint64_t used = (uint64_t)kvt_nvme_memory_records(tier) * m->config.record_bytes_max;
    *ret_counters = (struct kvt_tier_counters){ .capacity_bytes = (uint64_t)m->config.records_max
                                                    * m->config.record_bytes_max,
                                                .used_bytes = used,
                                                .peak_bytes = used,
                                                .bytes_in = m->bytes_in,
                                                .bytes_out = m->bytes_out,
                                                .dropped = m->dropped };
}

static void describe(const struct record *record, struct kvt_found *ret_found)
{
    *ret_found = (struct kvt_found){
        .length = record->length, .form = record->form, .tokens = record->tokens, .generation = record->generation
    };
}

static bool memory_find(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    const struct record *record = find(memory_of(tier), name);
    if (record) describe(record, ret_found);
    return record != NULL;
}

static bool memory_hold(struct kvt_tier *tier, const struct kvt_name *name, struct kvt_found *ret_found)
{
    struct record *record = find(memory_of(tier), name);
    if (!record) return false;
    record->holds++;
    describe(record, ret_found);
    return true;
}

static void memory_release(struct kvt_tier *tier, const struct kvt_name *name)
{
    struct record *record = find(memory_of(tier), name);
    if (record && record->holds > 0) record->holds--; /* a lost record's holds are gone with it */
}

static void memory_forget(struct kvt_tier *tier, const struct kvt_name *name)
{
    struct record *record = find(memory_of(tier), name);
    if (record) record->is_live = false;
}

static uint32_t memory_poll_lost(struct kvt_tier *tier, struct kvt_name *ret_names, uint32_t max)
{
    struct nvme_memory *m = memory_of(tier);
    uint32_t count = 0;
    while (count < max && m->lost_count > 0) ret_names[count++] = m->lost[--m->lost_count];
    return count;
}

static enum kvt_status memory_reset(struct kvt_tier *tier)
{
    struct nvme_memory *m = memory_of(tier);
    for (uint32_t i = 0; i < m->config.records_max; i++) {
        if (m->records[i].is_live) drop(m, &m->records[i]);
    }
    m->epoch++;
    return KVT_OK;
}

static enum kvt_status memory_sync(struct kvt_tier *tier)
{
    (void)tier;
    return KVT_OK;
}

static void memory_close(struct kvt_tier *tier)
{
    struct nvme_memory *m = memory_of(tier);
    kvt_free(m->records);
    kvt_free(m->slab);
    kvt_free(m->flights);
    kvt_free(m->done);
    kvt_free(m);
}

static const struct kvt_tier_ops memory_ops = { .name = "nvme-memory",
                                                .caps = KVT_TIER_INDEXED | KVT_TIER_DURABLE,
                                                .close = memory_close,
                                                .submit = memory_submit,
                                                .poll = memory_poll,
                                                .counters = memory_counters,
                                                .find = memory_find,
                                                .hold = memory_hold,
                                                .release = memory_release,
                                                .forget = memory_forget,
                                                .poll_lost = memory_poll_lost,
                                                .reset = memory_reset,
                                                .sync = memory_sync };

enum kvt_status kvt_nvme_memory_open(const struct kvt_nvme_memory_config *config, struct kvt_tier **ret_tier)
{
    KVT_ASSERT(kvt_tier_ops_are_valid(&memory_ops));
    struct nvme_memory *m = kvt_alloc(1, sizeof *m);
    if (!m) return KVT_NOMEM;
    m->tier = (struct kvt_tier){ .ops = &memory_ops, .queue_depth = config->queue_depth };
    m->config = *config;
    m->rng.state = config->seed;
    m->records = kvt_alloc(config->records_max, sizeof *m->records);
    m->slab = kvt_alloc(config->records_max, config->record_bytes_max);
    m->flights = kvt_alloc(config->queue_depth, sizeof *m->flights);
    m->done = kvt_alloc(config->queue_depth, sizeof(struct kvt_tier_op *));
    if (!m->records || !m->slab || !m->flights || !m->done) {
        memory_close(&m->tier);
        return KVT_NOMEM;
    }
    for (uint32_t i = 0; i < config->records_max; i++)
        m->records[i].bytes = m->slab + (size_t)i * config->record_bytes_max;
    *ret_tier = &m->tier;
    return KVT_OK;
}
