#include "tests/model/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_emulated.h"
#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tests/fakes/nvme_memory.h"
#include "tiers/codec.h"
#include "tiers/device_tier.h"
#include "tiers/host_tier.h"

#define MS UINT64_C(1000000)

jmp_buf *world_failed;
bool world_is_quiet;
uint32_t world_failure;
char world_failure_text[512];

static struct world *current; /* the one that a failing assertion speaks of */

/* ---- Saying and failing ------------------------------------------------------------------------------------------ */

void world_say(struct world *world, const char *format, ...)
{
    char *line = world->trace[world->trace_count++ % WORLD_TRACE_LINES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof world->trace[0], format, arguments);
    va_end(arguments);
    if (world->is_traced) (void)printf("%6llu  %s\n", (unsigned long long)world->operation, line);
}

static void leave(struct world *world, const char *what)
{
    (void)snprintf(world_failure_text, sizeof world_failure_text, "%s", what);
    world_failure = 1;
    for (const char *at = what; *at; at++) {
        if (*at < '0' || *at > '9') world_failure = world_failure * 31 + (uint8_t)*at;
    }
    if (!world_is_quiet) {
        (void)fflush(stdout);
        (void)fprintf(stderr, "seed %llu, operation %llu: %s\nlast calls:\n", (unsigned long long)world->config.seed,
                      (unsigned long long)world->operation, what);
        const uint64_t first = world->trace_count > WORLD_TRACE_LINES ? world->trace_count - WORLD_TRACE_LINES : 0;
        for (uint64_t i = first; i < world->trace_count; i++)
            (void)fprintf(stderr, "    %s\n", world->trace[i % WORLD_TRACE_LINES]);
        (void)fprintf(stderr, "replay: test_model %llu\n", (unsigned long long)world->config.seed);
    }
    if (world_failed) longjmp(*world_failed, 1);
    abort();
}

void world_fail(struct world *world, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    leave(world, text);
    abort();
}

void world_broken(struct world *world, const char *condition, const char *format, ...)
{
    char text[512];
    const int length = snprintf(text, sizeof text, "%s: ", condition);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + length, sizeof text - (size_t)length, format, arguments);
    va_end(arguments);
    leave(world, text);
    abort();
}

static void assertion_failed(int result, const char *expression, const char *file, int line)
{
    (void)result;
    char text[512];
    (void)snprintf(text, sizeof text, "assertion %s (%s:%d)", expression, file, line);
    leave(current, text);
}

/* ---- What a seed decides ----------------------------------------------------------------------------------------- */

static const char *const policies[] = { "lru",    "lru-reward", "fifo", "clock", "lfu", "sieve",
                                        "s3fifo", "arc",        "2q",   "lirs",  "gdsf" };

static void choose_group(struct kvt_rng *rng, struct kvt_group_shape *group, uint32_t head_dim, bool is_first)
{
    const uint64_t draw = kvt_rng_below(rng, 10);
    *group = (struct kvt_group_shape){ .dtype = KVT_DTYPE_BF16,
                                       .layers = 1 + (uint32_t)kvt_rng_below(rng, 2),
                                       .kv_heads = 1,
                                       .head_dim = head_dim,
                                       .planes = 1 + (uint32_t)kvt_rng_below(rng, 2) };
    if (draw < 4 && !(is_first && draw < 1)) {
        group->kind = KVT_GROUP_FULL;
    } else if (draw < 7) {
        group->kind = KVT_GROUP_WINDOW;
        group->window_tokens = 1 + (uint32_t)kvt_rng_below(rng, 12);
        group->sink_tokens = kvt_rng_below(rng, 2) ? (uint32_t)kvt_rng_below(rng, 6) : 0;
    } else {
        group->kind = KVT_GROUP_STATE;
        group->state_bytes = 8 + 8 * kvt_rng_below(rng, 8);
        if (head_dim > 64) group->state_bytes += 2048;
    }
}

static void choose_shape(struct kvt_rng *rng, struct world_config *config)
{
    struct kvt_model_shape *shape = &config->shape;
    config->is_codec_on = kvt_rng_below(rng, 5) == 0;
    shape->block_tokens = 1 + (uint32_t)kvt_rng_below(rng, 5);
    shape->group_count = 1 + (uint32_t)kvt_rng_below(rng, 3);
    for (uint32_t g = 0; g < shape->group_count; g++)
        choose_group(rng, &shape->groups[g], config->is_codec_on ? 256 : 4 + 4 * (uint32_t)kvt_rng_below(rng, 2),
                     g == 0);
}

struct world_config world_config_of(uint64_t seed)
{
    struct kvt_rng rng = { kvt_mix64(seed + 1) };
    struct world_config config = { .seed = seed };
    choose_shape(&rng, &config);
    const bool is_large = kvt_rng_below(&rng, 6) == 0;
    for (uint32_t g = 0; g < config.shape.group_count; g++)
        config.pool_slots[g] = is_large ? 600 : 3 + (uint32_t)kvt_rng_below(&rng, 22);
    config.blocks_max = kvt_rng_below(&rng, 8) == 0 ? 24 + (uint32_t)kvt_rng_below(&rng, 40) : 4096;
    const uint32_t chunks[] = { 0, 1, 2, 4, 4, 64 };
    config.host_chunks = chunks[kvt_rng_below(&rng, KVT_ARRAY_COUNT(chunks))];
    config.chunk_bytes = config.is_codec_on ? 32768 : 4096;
    const uint32_t records[] = { 0, 0, 3, 8, 40, 400 };
    config.nvme_records = config.host_chunks ? records[kvt_rng_below(&rng, KVT_ARRAY_COUNT(records))] : 0;
    config.sequences_max = 2 + (uint32_t)kvt_rng_below(&rng, 14);
    config.transfers_max = kvt_rng_below(&rng, 3) == 0 ? 1 + (uint32_t)kvt_rng_below(&rng, 6) : 64;
    config.device_policy = kvt_rng_below(&rng, 2) ? "lru" : policies[kvt_rng_below(&rng, KVT_ARRAY_COUNT(policies))];
    config.host_policy = kvt_rng_below(&rng, 2) ? "lru" : policies[kvt_rng_below(&rng, KVT_ARRAY_COUNT(policies))];
    config.prefetch = (enum kvt_prefetch)kvt_rng_below(&rng, 3);
    config.deadline_ns = UINT64_C(1) << 60;
    if (kvt_rng_below(&rng, 2) == 0) {
        config.fail_per_million = 1000 + (uint32_t)kvt_rng_below(&rng, 60000);
        config.is_losing = kvt_rng_below(&rng, 2) == 0;
        if (kvt_rng_below(&rng, 2) == 0) {
            config.stuck_per_million = 1000 + (uint32_t)kvt_rng_below(&rng, 20000);
            config.deadline_ns = 200 * MS;
        }
    }
    config.haste = kvt_rng_below(&rng, 3) ? (uint32_t)kvt_rng_below(&rng, 7) : 0;
    config.is_careful = config.pool_slots[0] <= 12 && config.host_chunks <= 2;
    return config;
}

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

static uint64_t world_clock(void *user) { return ((const struct world *)user)->now_ns; }

static void share_pools(struct kvt_core_config *core, struct kvt_device_tier_config *device,
                        const struct world_config *config)
{
    uint64_t bytes[KVT_GROUPS_MAX] = { 0 };
    for (uint32_t g = 0; g < config->shape.group_count; g++) {
        const uint64_t block_bytes = kvt_group_block_bytes(&config->shape.groups[g], config->shape.block_tokens);
        uint32_t p = 0;
        while (p < core->pool_count && bytes[p] != block_bytes) p++;
        if (p == core->pool_count) {
            bytes[core->pool_count] = block_bytes;
            core->pool_slots[core->pool_count++] = config->pool_slots[g];
        }
        core->pool_of_group[g] = p;
    }
    memcpy(device->pool_of_group, core->pool_of_group, sizeof core->pool_of_group);
    memcpy(device->pool_slots, core->pool_slots, sizeof core->pool_slots);
    device->pool_count = core->pool_count;
}

static void open_tiers(struct world *world, struct kvt_device_tier_config *device)
{
    const struct world_config *config = &world->config;
    enum kvt_status status = KVT_OK;
    if (config->is_codec_on) status = kvt_codec_create(&config->shape, &world->codec);
    KVT_ASSERT(status == KVT_OK);
    device->codec = world->codec;
    device->gpu = &kvt_gpu_emulated_ops;
    device->queue_depth = 8;
    status = kvt_device_tier_open(device, &world->env, &world->device);
    KVT_ASSERT(status == KVT_OK);
    world->gpu = kvt_device_tier_gpu(world->device);
    for (uint32_t i = 0; i < WORLD_ENGINE_STREAMS; i++) {
        status = world->gpu->ops->stream(world->gpu, &world->engine_streams[i], &world->engine_streams[i]);
        KVT_ASSERT(status == KVT_OK);
    }
    if (config->host_chunks > 0) {
        const struct kvt_host_tier_config host = {
            .capacity_bytes = (uint64_t)config->host_chunks * config->chunk_bytes, .chunk_bytes = config->chunk_bytes
        };
        status = kvt_host_tier_open(&host, &world->env, &world->host);
        KVT_ASSERT(status == KVT_OK);
    }
    if (config->nvme_records > 0) {
        const struct kvt_nvme_memory_config nvme = { .records_max = config->nvme_records,
                                                     .record_bytes_max = config->chunk_bytes,
                                                     .queue_depth = 6,
                                                     .seed = config->seed,
                                                     .fail_per_million = config->fail_per_million,
                                                     .stuck_per_million = config->stuck_per_million,
                                                     .is_losing = config->is_losing };
        status = kvt_nvme_memory_open(&nvme, &world->nvme);
        KVT_ASSERT(status == KVT_OK);
    }
    for (uint32_t s = 0; s < KVT_DEVICE_STREAMS && config->fail_per_million > 0; s++) {
        const enum kvt_gpu_fault fault = config->stuck_per_million
            ? (kvt_rng_below(&world->rng, 2) ? KVT_GPU_FAULT_STUCK_START : KVT_GPU_FAULT_STUCK_END)
            : (kvt_rng_below(&world->rng, 2) ? KVT_GPU_FAULT_FAIL : KVT_GPU_FAULT_FAIL_LATE);
        kvt_gpu_emulated_fault_randomly(world->gpu, s, config->fail_per_million, config->seed + s, fault);
    }
}

void world_open(struct world *world, const struct world_config *config)
{
    memset(world, 0, sizeof *world);
    world->config = *config;
    world->now_ns = 1000 * MS;
    world->rng.state = kvt_mix64(config->seed ^ 0x77);
    current = world;
    kvt_check_hook = assertion_failed;
    world->env = (struct kvt_env){
        .now_ns = world_clock, .clock_user = world, .is_single_threaded = true, .seed = config->seed
    };
    twin_init(&world->twin, &config->shape);

    struct kvt_core_config core = { .shape = config->shape,
                                    .blocks_max = config->blocks_max,
                                    .sequences_max = config->sequences_max,
                                    .transfers_max = config->transfers_max,
                                    .prefetch_bytes_max = 64 * KVT_KIB,
                                    .transfer_deadline_ns = config->deadline_ns,
                                    .step_ns = 20 * MS,
                                    .prefetch = config->prefetch,
                                    .is_packing = config->is_codec_on,
                                    .device_policy = kvt_policy_find(config->device_policy),
                                    .host_policy = kvt_policy_find(config->host_policy),
                                    .admission = kvt_admission_at(0),
                                    .seed = config->seed,
                                    .private_space = { 0x7072, config->seed },
                                    .host_chunk_bytes = config->chunk_bytes,
                                    .env = &world->env };
    struct kvt_device_tier_config device = { .shape = config->shape };
    KVT_ASSERT(core.device_policy != NULL);
    KVT_ASSERT(core.host_policy != NULL);
    share_pools(&core, &device, config);
    open_tiers(world, &device);
    for (uint32_t g = 0; g < config->shape.group_count; g++) core.space[g] = (struct kvt_key){ 0x7370, g + 1 };
    core.device = world->device;
    core.host = world->host;
    core.nvme = world->nvme;
    core.gpu = world->gpu;
    const enum kvt_status status = kvt_core_init(&world->core, &core);
    KVT_ASSERT(status == KVT_OK);
    world->is_core_open = true;
}

/* ---- The engine -------------------------------------------------------------------------------------------------- */

/* Rows [from, to) of one slot of a group; values are those of the tokens. */
struct world_access {
    bool is_write;
    uint32_t group, block, slot, from, to;
    uint64_t values[8]; /* block_tokens is at most 5 */
};

struct world_job {
    struct kvt_gpu_job job;
    struct world *world;
    struct world_job *next;
    kvt_mark mark; /* reached when it is over */
    uint32_t sequence;
    uint64_t operation;
    uint32_t count;
    struct world_access accesses[];
};

/* Whose bytes they are, for the report. */
static void say_whose(struct world *world, const uint8_t *at, uint32_t g, uint32_t segment, uint32_t row_bytes)
{
    uint8_t bytes[4096];
    for (uint32_t s = 0; s < WORLD_SEQUENCES_MAX + WORLD_ARCHIVE; s++) {
        const struct twin_sequence *twin = s < WORLD_SEQUENCES_MAX ? &world->sequences[s]
                                                                   : &world->archive[s - WORLD_SEQUENCES_MAX];
        for (uint32_t t = 0; t < TWIN_TOKENS_MAX; t++) {
            twin_row(twin->value[t], g, segment, bytes, row_bytes);
            if (twin->value[t] && memcmp(bytes, at, row_bytes) == 0)
                world_say(world, "they are those of token %u of sequence %u", t, s);
        }
    }
    world_say(world, "first byte %02x, group %u", at[0], g);
}

static void access_rows(struct world_job *job, const struct world_access *access)
{
    struct world *world = job->world;
    const struct kvt_group_shape *shape = &world->config.shape.groups[access->group];
    const bool is_state = shape->kind == KVT_GROUP_STATE;
    const uint32_t row_bytes = (uint32_t)kvt_group_row_bytes(shape);
    const uint32_t segments = shape->layers * (is_state || shape->planes == 1 ? 1 : 2);
    const uint32_t rows = is_state ? 1 : world->config.shape.block_tokens;
    uint8_t *base = world->device->ops->map(world->device, access->group, access->slot);
    uint8_t expected[4096];
    KVT_ASSERT(row_bytes <= sizeof expected);
    for (uint32_t s = 0; s < segments; s++) {
        for (uint32_t t = access->from; t < access->to; t++) {
            uint8_t *at = base + ((size_t)s * rows + t) * row_bytes;
            twin_row(access->values[t], access->group, s, expected, row_bytes);
            if (access->is_write) {
                memcpy(at, expected, row_bytes);
            } else if (memcmp(at, expected, row_bytes) != 0) {
                say_whose(world, at, access->group, s, row_bytes);
                world_fail(world,
                           "wrong bytes: sequence %u read them (launched in operation %llu), group %u, block %u, row "
                           "%u of %u, slot %u",
                           job->sequence, (unsigned long long)job->operation, access->group, access->block, t,
                           access->to, access->slot);
            }
        }
    }
    world->rows += segments * (access->to - access->from);
}

static void run_engine_job(struct kvt_gpu_job *gpu_job)
{
    struct world_job *job = gpu_job->user;
    for (uint32_t i = 0; i < job->count; i++) access_rows(job, &job->accesses[i]);
}

static void free_jobs(struct world *world, bool is_all)
{
    for (struct world_job **at = &world->jobs; *at;) {
        struct world_job *job = *at;
        if (!is_all && !world->gpu->ops->is_reached(world->gpu, job->mark)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        kvt_free(job);
    }
}

static struct world_job *new_job(struct world *world, const struct twin_sequence *sequence, uint32_t accesses_max)
{
    free_jobs(world, false);
    struct world_job *job = kvt_alloc(1, sizeof *job + accesses_max * sizeof job->accesses[0]);
    KVT_ASSERT(job != NULL);
    job->world = world;
    job->sequence = (uint32_t)(sequence - world->sequences);
    job->operation = world->operation;
    return job;
}

static void launch(struct world *world, struct world_job *job, uint32_t stream)
{
    const uint32_t number = world->engine_streams[stream];
    job->job = (struct kvt_gpu_job){ .run = run_engine_job, .user = job };
    world->gpu->ops->submit(world->gpu, number, &job->job);
    job->mark = world->gpu->ops->mark(world->gpu, number);
    job->next = world->jobs;
    world->jobs = job;
}

static uint32_t slot_of(struct world *world, const struct twin_sequence *sequence, uint32_t group, uint32_t block,
                        uint32_t entry)
{
    const uint32_t s = (uint32_t)(sequence - world->sequences);
    WORLD_CHECK(world, block != KVT_NO_BLOCK, "sequence %u group %u: no block %u, which it attends to", s, group,
                entry);
    const struct kvt_block *at = kvt_core_block(&world->core, block);
    WORLD_CHECK(world, at->device_slot != KVT_NO_SLOT, "sequence %u group %u block %u: in a step and not on the device",
                s, group, entry);
    WORLD_CHECK(world, at->users > 0, "sequence %u group %u block %u: in a step and not claimed", s, group, entry);
    return at->device_slot;
}

static void read_group(struct world *world, const struct twin_sequence *sequence, uint32_t g, struct world_job *job)
{
    const struct kvt_sequence_table *table = &world_core_sequence(world, sequence)->groups[g];
    const uint32_t block_tokens = world->config.shape.block_tokens;
    const uint32_t tokens = sequence->tokens;
    if (tokens == 0) return;
    if (world->config.shape.groups[g].kind == KVT_GROUP_STATE) {
        struct world_access *access = &job->accesses[job->count++];
        *access = (struct world_access){ .group = g,
                                         .slot = slot_of(world, sequence, g, table->live, 0),
                                         .to = 1,
                                         .values = { sequence->value[tokens - 1] } };
        return;
    }
    const bool is_full = world->config.shape.groups[g].kind == KVT_GROUP_FULL;
    const uint32_t first = twin_first_needed(&world->twin, g, tokens);
    for (uint32_t i = 0; i * block_tokens < tokens; i++) {
        if (i < first && i >= twin_sink_blocks(&world->twin, g)) continue;
        if (is_full && sequence->dropped_at[i]) {
            WORLD_CHECK(world, table->blocks[i] == KVT_NO_BLOCK, "group %u: block %u was dropped and is there", g, i);
            continue;
        }
        struct world_access *access = &job->accesses[job->count++];
        *access = (struct world_access){ .group = g,
                                         .block = i,
                                         .slot = slot_of(world, sequence, g, table->blocks[i], i),
                                         .to = kvt_min_u32(block_tokens, tokens - i * block_tokens) };
        for (uint32_t t = 0; t < access->to; t++) access->values[t] = sequence->value[i * block_tokens + t];
    }
}

void world_launch_read(struct world *world, const struct twin_sequence *sequence, uint32_t stream)
{
    const uint32_t blocks = sequence->tokens / world->config.shape.block_tokens + 1;
    struct world_job *job = new_job(world, sequence, blocks * world->config.shape.group_count);
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) read_group(world, sequence, g, job);
    world->reads += job->count;
    launch(world, job, stream);
}

void world_launch_write(struct world *world, const struct twin_sequence *sequence, uint32_t n, uint32_t stream)
{
    const uint32_t block_tokens = world->config.shape.block_tokens;
    const uint32_t from = sequence->tokens;
    if (n == 0) return;
    struct world_job *job = new_job(world, sequence, (n / block_tokens + 2) * world->config.shape.group_count);
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        const struct kvt_sequence_table *table = &world_core_sequence(world, sequence)->groups[g];
        if (world->config.shape.groups[g].kind == KVT_GROUP_STATE) {
            job->accesses[job->count++] = (struct world_access){ .is_write = true,
                                                                 .group = g,
                                                                 .to = 1,
                                                                 .slot = slot_of(world, sequence, g, table->live, 0),
                                                                 .values = { sequence->value[from + n - 1] } };
            continue;
        }
        for (uint32_t i = from / block_tokens; i * block_tokens < from + n; i++) {
            WORLD_CHECK(world, i < table->count, "reserved block %u is not there", i);
            struct world_access *access = &job->accesses[job->count++];
            *access = (struct world_access){ .is_write = true,
                                             .group = g,
                                             .block = i,
                                             .slot = slot_of(world, sequence, g, table->blocks[i], i),
                                             .from = i * block_tokens < from ? from - i * block_tokens : 0,
                                             .to = kvt_min_u32(block_tokens, from + n - i * block_tokens) };
            for (uint32_t t = access->from; t < access->to; t++)
                access->values[t] = sequence->value[i * block_tokens + t];
        }
    }
    launch(world, job, stream);
}

/* ---- What runs by itself ----------------------------------------------------------------------------------------- */

static void run_stream(struct world *world, uint32_t stream, uint32_t turns)
{
    while (turns-- > 0 && kvt_gpu_emulated_run(world->gpu, stream)) continue;
}

void world_drift(struct world *world)
{
    switch (world_below(world, 12)) {
    case 0:
    case 1:
    case 2:
        run_stream(world, world->engine_streams[world_below(world, WORLD_ENGINE_STREAMS)], 1 + world_below(world, 12));
        break;
    case 3:
        for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) kvt_gpu_emulated_gate(world->gpu, s, world_chance(world, 10));
        break;
    case 4:
    case 5:
    case 11: run_stream(world, world_below(world, KVT_DEVICE_STREAMS), 1 + world_below(world, 4)); break;
    case 6:
    case 7:
    case 8:
        for (uint32_t n = 1 + world_below(world, 4); world->nvme && n > 0; n--) (void)kvt_nvme_memory_run(world->nvme);
        break;
    case 9: world->now_ns += world_chance(world, 10) ? 100 * MS : world_below(world, 20 * MS); break;
    case 10:
        if (world->nvme && world->config.is_losing && !world->is_draining && world_chance(world, 10))
            (void)kvt_nvme_memory_lose(world->nvme);
        if (world->nvme && world_chance(world, 10)) kvt_nvme_memory_release(world->nvme);
        for (uint32_t s = 0; s < KVT_DEVICE_STREAMS && world_chance(world, 20); s++)
            (void)kvt_gpu_emulated_release(world->gpu, s);
        break;
    default: break;
    }
    if (world_chance(world, 60)) (void)kvt_core_pump(&world->core, world->now_ns);
}

void world_heal(struct world *world)
{
    world->is_draining = true;
    for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) {
        kvt_gpu_emulated_fault_randomly(world->gpu, s, 0, 0, KVT_GPU_FAULT_NONE);
        kvt_gpu_emulated_gate(world->gpu, s, false);
        while (kvt_gpu_emulated_release(world->gpu, s)) continue;
    }
    if (world->nvme) kvt_nvme_memory_heal(world->nvme);
}

void world_round(struct world *world)
{
    world->now_ns += 10 * MS;
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t s = 0; s < WORLD_ENGINE_STREAMS; s++) run_stream(world, world->engine_streams[s], 1000);
        while (world->nvme && kvt_nvme_memory_run(world->nvme)) continue;
        for (uint32_t n = 0; n < 8 && kvt_core_pump(&world->core, world->now_ns); n++) continue;
    }
}

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

void world_verify(struct world *world)
{
    const struct kvt_core *core = &world->core;
    world->checks++;
    kvt_core_verify(core);
    if (world->nvme) {
        uint32_t held = 0;
        for (uint32_t b = 0; b < core->table.high_water; b++) {
            const struct kvt_block *block = kvt_core_block(core, b);
            held += kvt_copy_is_resident(block, KVT_TIER_NVME) && kvt_block_has(block, KVT_BLOCK_NVME_HELD);
        }
        const uint32_t holds = kvt_nvme_memory_holds(world->nvme);
        WORLD_CHECK(world, holds <= held, "%u holds in the store, %u blocks know of one", holds, held);
    }
    for (uint32_t s = 0; s < WORLD_SEQUENCES_MAX; s++) {
        const struct twin_sequence *twin = &world->sequences[s];
        if (!twin->is_live) continue;
        const struct kvt_sequence *sequence = world_core_sequence(world, twin);
        WORLD_CHECK(world, sequence != NULL, "sequence %u: its handle is stale", s);
        WORLD_CHECK(world, sequence->tokens == twin->tokens, "sequence %u: %llu tokens, not %u", s,
                    (unsigned long long)sequence->tokens, twin->tokens);
    }
}

void world_close(struct world *world)
{
    kvt_core_done(&world->core);
    kvt_tier_close(&world->device); /* runs what is left of the engine's jobs */
    free_jobs(world, true);
    kvt_tier_close(&world->nvme);
    kvt_host_tier_close(&world->host);
    kvt_codec_destroy(&world->codec);
    twin_done(&world->twin);
    kvt_check_hook = NULL;
}
