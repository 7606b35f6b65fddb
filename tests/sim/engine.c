/* engine: kernels that write the KV of new tokens and compare that of old ones, when their stream comes to them. */
#include <string.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/sim/sim.h"

#define RUBBISH 0x5a /* what is computed from wrong bytes */

/* Rows [from, to) of one slot of a group; values are those of the tokens. */
struct access {
    bool is_write;
    uint32_t group, block, from, to;
    uint32_t segment, segments; /* of the slot, from where `slot` points to; 0 segments: all */
    uint8_t *slot;
    uint64_t values[SIM_BLOCK_TOKENS_MAX];
};

struct kernel {
    struct sim *sim;
    uint32_t sequence;
    uint64_t tick;
    uint32_t episode; /* of the sequence; 0: none */
    uint32_t count;
    struct access accesses[];
};

kvt_stream sim_stream(struct sim *sim, uint32_t i) { return kvt_emulated_stream(sim->runtime, i); }

/* Whose bytes they are instead, for the report. */
static void say_whose(struct sim *sim, const uint8_t *at, uint32_t group, uint32_t segment, uint32_t row_bytes)
{
    uint8_t bytes[SIM_ROW_BYTES_MAX];
    for (uint32_t s = 0; s < SIM_SEQUENCES_MAX + SIM_ARCHIVE; s++) {
        const struct twin_sequence *twin = s < SIM_SEQUENCES_MAX ? &sim->sequences[s]
                                                                 : &sim->archive[s - SIM_SEQUENCES_MAX];
        for (uint32_t t = 0; t < TWIN_TOKENS_MAX; t++) {
            twin_row(twin->value[t], group, segment, bytes, row_bytes);
            if (twin->value[t] && memcmp(bytes, at, row_bytes) == 0)
                sim_say(sim, "they are those of token %u of sequence %u", t, s);
        }
    }
    sim_say(sim, "first byte %02x, group %u", at[0], group);
}

static uint32_t segments_of(const struct kvt_group_shape *shape, uint32_t layers)
{
    return layers * (shape->kind == KVT_GROUP_STATE || shape->planes == 1 ? 1 : 2);
}

static void access_rows(const struct kernel *kernel, const struct access *access)
{
    struct sim *sim = kernel->sim;
    const struct kvt_group_shape *shape = &sim->plan.shape.groups[access->group];
    const bool is_state = shape->kind == KVT_GROUP_STATE;
    const uint32_t row_bytes = (uint32_t)kvt_group_row_bytes(shape);
    const uint32_t segments = access->segments ? access->segments : segments_of(shape, shape->layers);
    struct sim_episode *episode = kernel->episode ? &sim->episodes[kernel->episode] : NULL;
    const uint32_t rows = is_state ? 1 : sim->plan.shape.block_tokens;
    uint8_t expected[SIM_ROW_BYTES_MAX];
    for (uint32_t s = 0; s < segments; s++) {
        for (uint32_t t = access->from; t < access->to; t++) {
            uint8_t *at = access->slot + ((size_t)s * rows + t) * row_bytes;
            twin_row(access->values[t], access->group, access->segment + s, access->is_write ? at : expected,
                     row_bytes);
            if (access->is_write && episode && episode->has_wrong) memset(at, RUBBISH, row_bytes);
            if (access->is_write || memcmp(at, expected, row_bytes) == 0) continue;
            if (episode && !episode->is_right) {
                episode->has_wrong = true;
                continue;
            }
            say_whose(sim, at, access->group, access->segment + s, row_bytes);
            sim_fail(sim,
                     "wrong bytes: sequence %u read them (launched at tick %llu), group %u, block %u, row %u of %u",
                     kernel->sequence, (unsigned long long)kernel->tick, access->group, access->block, t, access->to);
        }
    }
    sim->counts.rows += segments * (access->to - access->from);
}

static void run_kernel(void *user)
{
    struct kernel *kernel = user;
    for (uint32_t i = 0; i < kernel->count; i++) access_rows(kernel, &kernel->accesses[i]);
    kvt_free(kernel);
}

static struct kernel *new_kernel(struct sim *sim, const struct twin_sequence *sequence, uint32_t accesses_max)
{
    struct kernel *kernel = kvt_alloc(1, sizeof *kernel + accesses_max * sizeof kernel->accesses[0]);
    KVT_ASSERT(kernel != NULL);
    kernel->sim = sim;
    kernel->sequence = sim_index_of(sim, sequence);
    kernel->tick = sim->tick;
    kernel->episode = sim->more[kernel->sequence].episode;
    return kernel;
}

static void launch(struct sim *sim, struct kernel *kernel, uint32_t stream)
{
    const enum kvt_status status = kvt_emulated_launch(sim->runtime, sim_stream(sim, stream), run_kernel, kernel);
    KVT_ASSERT(status == KVT_OK);
}

struct table {
    uint32_t slots[TWIN_TOKENS_MAX + 2];
    uint64_t first, count;
};

static void get_table(struct sim *sim, const struct twin_sequence *sequence, uint32_t group, struct table *ret_table)
{
    const enum kvt_status status = kvt_seq_table(sim->runtime, sequence->handle, group, ret_table->slots,
                                                 KVT_ARRAY_COUNT(ret_table->slots), &ret_table->first,
                                                 &ret_table->count);
    SIM_CHECK(sim, status == KVT_OK, "sequence %u group %u: table: status %d", sim_index_of(sim, sequence), group,
              (int)status);
    SIM_CHECK(sim, ret_table->count <= KVT_ARRAY_COUNT(ret_table->slots), "a table of %llu blocks",
              (unsigned long long)ret_table->count);
}

/* The slot of a block that the sequence attends to. */
static uint8_t *slot_of(struct sim *sim, const struct twin_sequence *sequence, uint32_t group,
                        const struct table *table, uint32_t block)
{
    const uint32_t s = sim_index_of(sim, sequence);
    const bool is_inside = block >= table->first && block < table->first + table->count;
    SIM_CHECK(sim, is_inside, "sequence %u group %u: block %u, which it attends to, is not in its table", s, group,
              block);
    const uint32_t slot = table->slots[block - table->first];
    SIM_CHECK(sim, slot != KVT_NO_SLOT, "sequence %u group %u: block %u, which it attends to, has no slot", s, group,
              block);
    SIM_CHECK(sim, slot < kvt_device_slots(sim->runtime, group), "sequence %u group %u: slot %u", s, group, slot);
    return kvt_device_slot(sim->runtime, group, slot);
}

static void read_group(struct sim *sim, const struct twin_sequence *sequence, uint32_t g, struct kernel *kernel)
{
    static struct table table;
    const struct kvt_group_shape *shape = &sim->plan.shape.groups[g];
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint32_t tokens = sequence->tokens;
    if (tokens == 0) return;
    get_table(sim, sequence, g, &table);
    if (shape->kind == KVT_GROUP_STATE) {
        kernel->accesses[kernel->count++] = (struct access){
            .group = g, .slot = slot_of(sim, sequence, g, &table, 0), .to = 1, .values = { sequence->value[tokens - 1] }
        };
        return;
    }
    const uint32_t first = twin_first_needed(&sim->twin, g, tokens);
    for (uint32_t i = 0; i * block_tokens < tokens; i++) {
        if (i < first && i >= twin_sink_blocks(&sim->twin, g)) continue;
        const bool is_elsewhere = sim->more[sim_index_of(sim, sequence)].is_streamed && shape->kind == KVT_GROUP_FULL;
        if (is_elsewhere && table.slots[i - table.first] == KVT_NO_SLOT) continue; /* a window reads it */
        if (shape->kind == KVT_GROUP_FULL && sequence->dropped_at[i]) {
            SIM_CHECK(sim, table.slots[i - table.first] == KVT_NO_SLOT, "group %u: block %u was dropped and is there",
                      g, i);
            continue;
        }
        struct access *access = &kernel->accesses[kernel->count++];
        *access = (struct access){ .group = g,
                                   .block = i,
                                   .slot = slot_of(sim, sequence, g, &table, i),
                                   .to = kvt_min_u32(block_tokens, tokens - i * block_tokens) };
        for (uint32_t t = 0; t < access->to; t++) access->values[t] = sequence->value[i * block_tokens + t];
    }
}

/* Narrows accesses from the first one on to one layer. */
static void only_layer(const struct sim *sim, struct kernel *kernel, uint32_t first, uint32_t layer)
{
    for (uint32_t i = first; i < kernel->count; i++) {
        struct access *access = &kernel->accesses[i];
        const struct kvt_group_shape *shape = &sim->plan.shape.groups[access->group];
        const uint32_t rows = shape->kind == KVT_GROUP_STATE ? 1 : sim->plan.shape.block_tokens;
        access->segment = segments_of(shape, layer);
        access->segments = segments_of(shape, 1);
        access->slot += (uint64_t)access->segment * rows * kvt_group_row_bytes(shape);
    }
}

void sim_launch_read_layer(struct sim *sim, const struct twin_sequence *sequence, uint32_t layer, uint32_t stream)
{
    const uint32_t blocks = sequence->tokens / sim->plan.shape.block_tokens + 1;
    struct kernel *kernel = new_kernel(sim, sequence, blocks * sim->plan.shape.group_count);
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) {
        const uint32_t first = kernel->count;
        if (layer < sim->plan.shape.groups[g].layers) read_group(sim, sequence, g, kernel);
        only_layer(sim, kernel, first, layer);
    }
    sim->counts.reads += kernel->count;
    launch(sim, kernel, stream);
}

void sim_launch_chunks(struct sim *sim, const struct twin_sequence *sequence, uint32_t group, uint32_t layer,
                       const struct kvt_piece *piece, const uint32_t *chunks, uint32_t stream)
{
    const struct kvt_group_shape *shape = &sim->plan.shape.groups[group];
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint64_t chunk_bytes = kvt_group_block_bytes(shape, block_tokens) / shape->layers;
    const uint32_t needed = twin_first_needed(&sim->twin, group, sequence->tokens);
    struct kernel *kernel = new_kernel(sim, sequence, piece->count);
    for (uint32_t i = 0; i < piece->count; i++) {
        const uint32_t block = (uint32_t)piece->first + i;
        const bool is_past = block < needed && block >= twin_sink_blocks(&sim->twin, group);
        const bool is_dropped = shape->kind == KVT_GROUP_FULL && sequence->dropped_at[block];
        if (chunks[i] == KVT_NO_SLOT) {
            SIM_CHECK(sim, is_past || is_dropped, "group %u: a window has no block %u, which its sequence attends to",
                      group, block);
            continue;
        }
        if (is_past) continue;
        struct access *access = &kernel->accesses[kernel->count++];
        *access = (struct access){ .group = group,
                                   .block = block,
                                   .segment = segments_of(shape, layer),
                                   .segments = segments_of(shape, 1),
                                   .slot = (uint8_t *)kvt_device_slot(sim->runtime, group, 0) + chunks[i] * chunk_bytes,
                                   .to = kvt_min_u32(block_tokens, sequence->tokens - block * block_tokens) };
        for (uint32_t t = 0; t < access->to; t++) access->values[t] = sequence->value[block * block_tokens + t];
    }
    launch(sim, kernel, stream);
}

void sim_launch_read(struct sim *sim, const struct twin_sequence *sequence, uint32_t stream)
{
    const uint32_t blocks = sequence->tokens / sim->plan.shape.block_tokens + 1;
    struct kernel *kernel = new_kernel(sim, sequence, blocks * sim->plan.shape.group_count);
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) read_group(sim, sequence, g, kernel);
    sim->counts.reads += kernel->count;
    launch(sim, kernel, stream);
}

static void write_group(struct sim *sim, const struct twin_sequence *sequence, uint32_t g, uint32_t n,
                        struct kernel *kernel)
{
    static struct table table;
    const uint32_t block_tokens = sim->plan.shape.block_tokens;
    const uint32_t from = sequence->tokens;
    get_table(sim, sequence, g, &table);
    if (sim->plan.shape.groups[g].kind == KVT_GROUP_STATE) {
        kernel->accesses[kernel->count++] = (struct access){ .is_write = true,
                                                             .group = g,
                                                             .to = 1,
                                                             .slot = slot_of(sim, sequence, g, &table, 0),
                                                             .values = { sequence->value[from + n - 1] } };
        return;
    }
    for (uint32_t i = from / block_tokens; i * block_tokens < from + n; i++) {
        struct access *access = &kernel->accesses[kernel->count++];
        *access = (struct access){ .is_write = true,
                                   .group = g,
                                   .block = i,
                                   .slot = slot_of(sim, sequence, g, &table, i),
                                   .from = i * block_tokens < from ? from - i * block_tokens : 0,
                                   .to = kvt_min_u32(block_tokens, from + n - i * block_tokens) };
        for (uint32_t t = access->from; t < access->to; t++) access->values[t] = sequence->value[i * block_tokens + t];
    }
}

void sim_launch_write(struct sim *sim, const struct twin_sequence *sequence, uint32_t n, uint32_t stream)
{
    if (n == 0) return;
    const uint32_t accesses_max = (n / sim->plan.shape.block_tokens + 2) * sim->plan.shape.group_count;
    struct kernel *kernel = new_kernel(sim, sequence, accesses_max);
    for (uint32_t g = 0; g < sim->plan.shape.group_count; g++) write_group(sim, sequence, g, n, kernel);
    launch(sim, kernel, stream);
}
