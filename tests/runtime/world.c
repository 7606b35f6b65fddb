#include "tests/runtime/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SLOTS_MAX = TEXT_TOKENS_MAX / BLOCK_TOKENS };

/* ---- Open and close ---------------------------------------------------------------------------------------------- */

static uint64_t world_now(void *user) { return ((const struct world *)user)->now_ns; }

void world_init(struct world *world, uint32_t device_slots, uint32_t host_slots)
{
    *world = (struct world){ .now_ns = SECOND };
    const char *base = getenv("TMPDIR");
    (void)snprintf(world->directory, sizeof world->directory, "%.40s/kvt-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(world->directory));
    (void)snprintf(world->path, sizeof world->path, "%s/kv", world->directory);
    world->env = kvt_env_default();
    world->env.now_ns = world_now;
    world->env.clock_user = world;
    world->env.is_single_threaded = true;
    world->config = kvt_config_default();
    world->config.env = &world->env;
    world->config.device = KVT_DEVICE_EMULATED;
    world->config.shape = (struct kvt_model_shape){
        .block_tokens = BLOCK_TOKENS,
        .group_count = 1,
        .groups = { { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 32 } }
    };
    world->config.model = "world";
    world->config.is_codec_off = true;
    world->config.sequences_max = 256;
    world->config.transfers_max = 128;
    world->config.device_bytes = (uint64_t)device_slots * BLOCK_BYTES;
    world->config.host_bytes = (uint64_t)host_slots * BLOCK_BYTES;
}

void world_add_disk(struct world *world, uint32_t host_slots, uint64_t nvme_bytes)
{
    world->image = io_faulty_image_create(&(struct io_faulty_config){ .seed = 1 });
    assert_non_null(world->image);
    world->env.block_io = &io_faulty_ops;
    world->env.block_io_user = world->image;
    world->config.nvme_path = world->path;
    world->config.nvme_bytes = nvme_bytes;
    world->config.host_bytes = KVT_MIB + (uint64_t)host_slots * BLOCK_BYTES; /* the store's buffers besides */
}

enum kvt_status world_try_open(struct world *world)
{
    const enum kvt_status status = kvt_open(&world->config, &world->runtime, world->error, sizeof world->error);
    if (status == KVT_OK) world->gpu = world->runtime->core.gpu;
    return status;
}

void world_open(struct world *world)
{
    const enum kvt_status status = world_try_open(world);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_text(status), world->error);
    for (uint32_t i = 0; i < 3; i++) (void)world_stream(world, i);
}

void world_shut(struct world *world)
{
    world_verify(world);
    kvt_close(&world->runtime);
    assert_int_equal(world->rows_wrong, 0);
}

void world_reopen(struct world *world)
{
    world_shut(world);
    world_open(world);
}

void world_close(struct world *world)
{
    if (world->runtime) world_shut(world);
    io_faulty_image_destroy(&world->image);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", world->directory);
    assert_int_equal(system(command), 0);
}

/* ---- Texts ------------------------------------------------------------------------------------------------------- */

/* One token more than `count`, so that all of `count` can be reused: a runtime leaves one to compute. */
static void text_extend(struct text *text, uint64_t from, uint64_t seed, uint64_t n)
{
    assert_true(n < TEXT_TOKENS_MAX);
    struct kvt_rng rng = { .state = seed };
    uint64_t chain = from > 0 ? text->chain[from - 1] : 0;
    for (uint64_t i = from; i <= n; i++) {
        text->tokens[i] = (uint32_t)kvt_rng_next(&rng);
        chain = kvt_mix64(chain * 0x9e3779b97f4a7c15u + text->tokens[i] + 1);
        text->chain[i] = chain;
    }
    text->count = n;
}

void text_make(struct text *text, uint64_t seed, uint64_t n) { text_extend(text, 0, seed, n); }

void text_branch(struct text *text, const struct text *from, uint64_t shared, uint64_t seed, uint64_t n)
{
    memcpy(text->tokens, from->tokens, shared * sizeof text->tokens[0]);
    memcpy(text->chain, from->chain, shared * sizeof text->chain[0]);
    text_extend(text, shared, seed, n);
}

void text_change(struct text *text, uint64_t at, uint64_t seed, uint64_t n) { text_extend(text, at, seed, n); }

/* ---- Time and turns ---------------------------------------------------------------------------------------------- */

struct kvt_core *world_core(struct world *world) { return &world->runtime->core; }

void world_pump(struct world *world, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) (void)kvt_wait(world->runtime, 0);
}

void world_advance(struct world *world, uint64_t ns)
{
    world->now_ns += ns;
    world_pump(world, 3);
}

void world_gate(struct world *world, uint32_t stream, bool is_closed)
{
    kvt_gpu_emulated_gate(world->gpu, stream, is_closed);
}

uint32_t world_stream(struct world *world, uint32_t i)
{
    uint32_t number;
    assert_int_equal(world->gpu->ops->stream(world->gpu, kvt_emulated_stream(world->runtime, i), &number), KVT_OK);
    return number;
}

void world_crank(struct world *world, uint32_t i)
{
    const uint32_t stream = world_stream(world, i);
    while (kvt_gpu_emulated_run(world->gpu, stream)) continue;
}

void world_settle(struct world *world)
{
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        for (uint32_t i = 0; i < 3; i++) world_crank(world, i);
        world_pump(world, 1);
        if (round > 2 && world_core(world)->transfers.in_flight == 0) return;
    }
    fail_msg("%u transfers do not come back", world_core(world)->transfers.in_flight);
}

void world_verify(struct world *world) { kvt_core_verify(world_core(world)); }

struct kvt_stats world_stats(struct world *world)
{
    struct kvt_stats stats;
    kvt_stats(world->runtime, &stats);
    return stats;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

struct kernel {
    struct world *world;
    struct kvt_group_shape group;
    uint16_t *slot;
    uint32_t plane_first, plane_count; /* of the block; slot points to the first */
    uint32_t position, count;          /* rows of the block */
    uint64_t chain[BLOCK_TOKENS];
    bool is_write;
};

/* Numbers like KV's: few exponents, random mantissas, so that a codec finds something to pack. */
static void make_row(uint16_t *row, uint32_t n, uint64_t chain, uint32_t plane)
{
    struct kvt_rng rng = { .state = chain ^ kvt_mix64(plane + 1) };
    for (uint32_t i = 0; i < n; i += 4) {
        uint64_t word = kvt_rng_next(&rng);
        for (uint32_t j = 0; j < 4 && i + j < n; j++, word >>= 16)
            row[i + j] = (uint16_t)((word & 0x80ff) | (120u + (word >> 8 & 3)) << 7);
    }
}

static void run_kernel(void *user)
{
    struct kernel *kernel = user;
    const uint32_t row_words = kernel->group.kv_heads * kernel->group.head_dim;
    uint16_t wanted[256];
    for (uint32_t plane = 0; plane < kernel->plane_count; plane++) {
        for (uint32_t i = 0; i < kernel->count; i++) {
            uint16_t *row = kernel->slot + ((uint64_t)plane * BLOCK_TOKENS + kernel->position + i) * row_words;
            make_row(kernel->is_write ? row : wanted, row_words, kernel->chain[i], kernel->plane_first + plane);
            if (kernel->is_write) continue;
            kernel->world->rows_checked++;
            kernel->world->rows_wrong += memcmp(row, wanted, row_words * sizeof *row) != 0;
        }
    }
    kvt_free(kernel);
}

/* Launches a kernel like `how` on tokens [from, from + count). */
static void launch_kernel(const struct kernel *how, const struct text *text, uint64_t from, uint64_t count,
                          uint32_t stream)
{
    struct world *world = how->world;
    struct kernel *kernel = kvt_alloc(1, sizeof *kernel);
    assert_non_null(kernel);
    *kernel = *how;
    kernel->position = (uint32_t)(from % BLOCK_TOKENS);
    kernel->count = (uint32_t)count;
    assert_true(kernel->group.kv_heads * kernel->group.head_dim <= 256);
    memcpy(kernel->chain, text->chain + from, count * sizeof text->chain[0]);
    assert_int_equal(
        kvt_emulated_launch(world->runtime, kvt_emulated_stream(world->runtime, stream), run_kernel, kernel), KVT_OK);
}

static void launch(struct world *world, const struct text *text, uint32_t group, uint32_t slot, uint64_t from,
                   uint64_t count, bool is_write, uint32_t stream)
{
    const struct kernel how = { .world = world,
                                .group = world->config.shape.groups[group],
                                .slot = kvt_device_slot(world->runtime, group, slot),
                                .plane_count = 2 * world->config.shape.groups[group].layers,
                                .is_write = is_write };
    launch_kernel(&how, text, from, count, stream);
}

void world_check_chunk(struct world *world, const struct text *text, uint32_t layer, uint64_t number, uint32_t chunk,
                       uint64_t n, uint32_t stream)
{
    const struct kvt_group_shape *group = &world->config.shape.groups[0];
    const uint64_t chunk_words = (uint64_t)2 * BLOCK_TOKENS * group->kv_heads * group->head_dim;
    const struct kernel how = { .world = world,
                                .group = *group,
                                .slot = (uint16_t *)kvt_device_slot(world->runtime, 0, 0) + chunk * chunk_words,
                                .plane_first = 2 * layer,
                                .plane_count = 2 };
    launch_kernel(&how, text, number * BLOCK_TOKENS, kvt_min_u64(BLOCK_TOKENS, n - number * BLOCK_TOKENS), stream);
}

/* One kernel a block for tokens [from, to) of each group; is_window: only what the next token attends to. */
static void launch_all(struct world *world, const struct text *text, kvt_seq seq, uint64_t from, uint64_t to,
                       bool is_write, uint32_t stream)
{
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        const struct kvt_group_shape *group = &world->config.shape.groups[g];
        uint32_t slots[SLOTS_MAX];
        uint64_t first, count;
        assert_int_equal(kvt_seq_table(world->runtime, seq, g, slots, SLOTS_MAX, &first, &count), KVT_OK);
        uint64_t at = from;
        if (!is_write && group->kind == KVT_GROUP_WINDOW && to > group->window_tokens)
            at = kvt_max_u64(at, to - group->window_tokens);
        for (uint64_t n; at < to; at += n) {
            n = kvt_min_u64(BLOCK_TOKENS - at % BLOCK_TOKENS, to - at);
            const uint64_t block = at / BLOCK_TOKENS;
            assert_true(block >= first && block < first + count);
            assert_int_not_equal(slots[block - first], KVT_NO_SLOT);
            launch(world, text, g, slots[block - first], at, n, is_write, stream);
        }
    }
}

/* ---- The engine -------------------------------------------------------------------------------------------------- */

uint64_t world_create(struct world *world, const struct text *text, uint64_t n, bool is_idle, kvt_seq *ret_seq)
{
    const struct kvt_seq_params params = {
        .tokens = text->tokens, .token_count = n + 1, .reuse_max = UINT64_MAX, .is_idle = is_idle
    };
    uint64_t reused = 0;
    assert_true(n <= text->count);
    assert_int_equal(kvt_seq_create(world->runtime, &params, ret_seq, &reused), KVT_OK);
    assert_int_equal(kvt_seq_tokens(world->runtime, *ret_seq), reused);
    return reused;
}

enum kvt_room world_append(struct world *world, kvt_seq seq, uint64_t n)
{
    enum kvt_room room = KVT_ROOM_FULL;
    assert_int_equal(kvt_seq_append(world->runtime, seq, n, &room), KVT_OK);
    return room;
}

enum kvt_room world_reserve(struct world *world, kvt_seq seq, uint64_t n)
{
    enum kvt_room room = world_append(world, seq, n);
    for (uint32_t round = 0; round < ROUNDS_MAX && room == KVT_ROOM_PENDING; round++) {
        world_pump(world, 1);
        room = world_append(world, seq, n);
    }
    return room;
}

enum kvt_room world_resume(struct world *world, kvt_seq seq)
{
    enum kvt_room room = KVT_ROOM_PENDING;
    assert_int_equal(kvt_seq_resume(world->runtime, seq, &room), KVT_OK);
    return room;
}

void world_wait_layer(struct world *world, kvt_step step, uint32_t group, uint32_t layer, uint32_t stream)
{
    assert_int_equal(
        kvt_step_wait_layer(world->runtime, step, group, layer, kvt_emulated_stream(world->runtime, stream)), KVT_OK);
}

enum kvt_ready world_begin_once(struct world *world, kvt_seq seq, uint32_t stream, kvt_step *ret_step,
                                uint64_t *ret_lost_from)
{
    struct kvt_step_entry entry = { .seq = seq };
    assert_int_equal(kvt_step_begin(world->runtime, &entry, 1, kvt_emulated_stream(world->runtime, stream), ret_step),
                     KVT_OK);
    assert_int_equal(*ret_step != 0, entry.ready == KVT_READY || entry.ready == KVT_LANDING);
    *ret_lost_from = entry.lost_from;
    if (entry.ready != KVT_LANDING) return entry.ready;
    for (uint32_t g = 0; g < world->config.shape.group_count; g++) {
        for (uint32_t layer = 0; layer < world->config.shape.groups[g].layers; layer++)
            world_wait_layer(world, *ret_step, g, layer, stream);
    }
    return KVT_READY;
}

enum kvt_ready world_begin(struct world *world, kvt_seq seq, uint32_t stream, kvt_step *ret_step,
                           uint64_t *ret_lost_from)
{
    enum kvt_ready ready = world_begin_once(world, seq, stream, ret_step, ret_lost_from);
    for (uint32_t round = 0; round < ROUNDS_MAX && ready == KVT_NOT_READY; round++) {
        world_pump(world, 1);
        ready = world_begin_once(world, seq, stream, ret_step, ret_lost_from);
    }
    return ready;
}

void world_end(struct world *world, kvt_step step) { assert_int_equal(kvt_step_end(world->runtime, step), KVT_OK); }

void world_write(struct world *world, const struct text *text, kvt_seq seq, uint64_t from, uint64_t n, uint32_t stream)
{
    launch_all(world, text, seq, from, from + n, true, stream);
    assert_int_equal(
        kvt_seq_commit(world->runtime, seq, text->tokens + from, n, 0, kvt_emulated_stream(world->runtime, stream)),
        KVT_OK);
}

void world_check(struct world *world, const struct text *text, kvt_seq seq, uint64_t n, uint32_t stream)
{
    launch_all(world, text, seq, 0, n, false, stream);
}

void world_step(struct world *world, const struct text *text, kvt_seq seq, uint64_t n, bool is_cranked)
{
    kvt_step step;
    uint64_t lost_from;
    const uint64_t from = kvt_seq_tokens(world->runtime, seq);
    const uint64_t reserved = kvt_sequence_of(world_core(world), seq)->reserved;
    if (from + n > reserved) assert_int_equal(world_reserve(world, seq, from + n - reserved), KVT_ROOM_OK);
    assert_int_equal(world_begin(world, seq, 0, &step, &lost_from), KVT_READY);
    world_check(world, text, seq, from, 0);
    if (n > 0) world_write(world, text, seq, from, n, 0);
    world_end(world, step);
    if (is_cranked) world_crank(world, 0);
}

void world_finish(struct world *world, kvt_seq seq, bool is_kept)
{
    assert_int_equal(kvt_seq_finish(world->runtime, seq, is_kept), KVT_OK);
}

void world_idle(struct world *world, kvt_seq seq) { assert_int_equal(kvt_seq_idle(world->runtime, seq), KVT_OK); }

static uint64_t serve(struct world *world, const struct text *text, bool is_computed)
{
    kvt_seq seq;
    const uint64_t reused = world_create(world, text, text->count, false, &seq);
    enum kvt_room room = world_resume(world, seq);
    for (uint32_t round = 0; round < ROUNDS_MAX && room != KVT_ROOM_OK; round++) {
        world_pump(world, 1);
        room = world_resume(world, seq);
    }
    assert_int_equal(room, KVT_ROOM_OK);
    world_step(world, text, seq, is_computed ? text->count - reused : 0, true);
    world_finish(world, seq, true);
    return reused;
}

uint64_t world_serve(struct world *world, const struct text *text) { return serve(world, text, true); }

uint64_t world_read(struct world *world, const struct text *text) { return serve(world, text, false); }

void world_flush(struct world *world, uint64_t seed, bool is_host_too)
{
    struct text other;
    const struct kvt_core *core = world_core(world);
    uint64_t blocks = core->pools[0].slot_count;
    if (is_host_too) blocks += core->host.chunk_count * core->host.chunk_bytes / BLOCK_BYTES;
    const uint64_t at_once = kvt_min_u64(core->pools[0].slot_count, SLOTS_MAX / 2);
    for (uint64_t done = 0; done < 2 * blocks; done += at_once) {
        text_make(&other, kvt_mix64(seed + done), at_once * BLOCK_TOKENS);
        (void)world_serve(world, &other);
        world_settle(world);
    }
}

void world_verify_idle(struct world *world)
{
    world_verify(world);
    const struct kvt_core *core = world_core(world);
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        const struct kvt_block *block = kvt_core_block(core, b);
        if (!kvt_block_has_copies(block)) continue;
        assert_int_equal(block->refs, 0);
        assert_int_equal(block->users, 0);
        assert_int_equal(block->readers[0] + block->readers[1] + block->readers[2], 0);
    }
    for (uint32_t p = 0; p < core->config.pool_count; p++) {
        assert_int_equal(core->pools[p].claimed, 0);
        assert_int_equal(core->pools[p].quarantined, 0);
        assert_int_equal(core->pools[p].leaving, 0);
    }
    assert_int_equal(core->host.quarantined, 0);
    assert_int_equal(core->transfers.in_flight, 0);
    assert_int_equal(core->transfers.abandoned, 0);
    assert_int_equal(core->transfers.prefetch_bytes, 0);
    for (uint32_t t = 0; t < KVT_TIERS; t++)
        assert_int_equal(core->transfers.tier_in_flight[t] + core->transfers.waiting_count[t], 0);
    assert_int_equal(core->sequence_count, 0);
}

/* ---- Random use -------------------------------------------------------------------------------------------------- */

enum { LIVE_MAX = 16, MIX_TEXTS = 12 };

struct live {
    kvt_seq seq;
    struct text text;
};

struct mixer {
    struct world *world;
    const struct mix *mix;
    struct kvt_rng rng;
    struct live live[LIVE_MAX];
    uint32_t count;
};

static void mix_create(struct mixer *mixer)
{
    if (mixer->count == mixer->mix->live_max) return;
    struct live *live = &mixer->live[mixer->count];
    const uint64_t n = BLOCK_TOKENS + kvt_rng_below(&mixer->rng, mixer->mix->tokens_max - BLOCK_TOKENS);
    text_make(&live->text, kvt_rng_below(&mixer->rng, MIX_TEXTS), n);
    (void)world_create(mixer->world, &live->text, n, kvt_rng_below(&mixer->rng, 4) == 0, &live->seq);
    mixer->count++;
}

static bool is_active(struct mixer *mixer, const struct live *live)
{
    return kvt_sequence_of(world_core(mixer->world), live->seq)->mode == KVT_SEQUENCE_ACTIVE;
}

static void mix_step(struct mixer *mixer, struct live *live)
{
    struct world *world = mixer->world;
    if (!is_active(mixer, live)) return;
    const uint64_t from = kvt_seq_tokens(world->runtime, live->seq);
    const uint64_t reserved = kvt_sequence_of(world_core(world), live->seq)->reserved;
    const uint64_t wanted = kvt_min_u64(from + 1 + kvt_rng_below(&mixer->rng, 2 * BLOCK_TOKENS), live->text.count);
    const uint32_t stream = (uint32_t)kvt_rng_below(&mixer->rng, 2);
    kvt_step step;
    uint64_t lost_from, kept;
    if (wanted > reserved && world_append(world, live->seq, wanted - reserved) != KVT_ROOM_OK) return;
    const enum kvt_ready ready = world_begin_once(world, live->seq, stream, &step, &lost_from);
    if (ready == KVT_LOST)
        assert_int_equal(kvt_seq_truncate(world->runtime, live->seq, lost_from, NULL, &kept), KVT_OK);
    if (ready != KVT_READY) return;
    world_check(world, &live->text, live->seq, from, stream);
    if (wanted > from) world_write(world, &live->text, live->seq, from, wanted - from, stream);
    world_end(world, step);
}

/* Cuts a sequence, sometimes inside a block, and goes on with other tokens now and then. */
static void mix_cut(struct mixer *mixer, struct live *live)
{
    struct world *world = mixer->world;
    const uint64_t to = kvt_rng_below(&mixer->rng, kvt_seq_tokens(world->runtime, live->seq) + 1);
    uint64_t kept;
    assert_int_equal(
        kvt_seq_truncate(world->runtime, live->seq, to, live->text.tokens + to / BLOCK_TOKENS * BLOCK_TOKENS, &kept),
        KVT_OK);
    assert_true(kept <= to);
    if (kvt_rng_below(&mixer->rng, 2) == 0)
        text_change(&live->text, kept, kvt_rng_below(&mixer->rng, 3), live->text.count);
}

static void mix_fork(struct mixer *mixer, const struct live *live)
{
    if (mixer->count == mixer->mix->live_max) return;
    struct live *child = &mixer->live[mixer->count];
    const enum kvt_status status = kvt_seq_fork(mixer->world->runtime, live->seq, &child->seq);
    assert_true(status == KVT_OK || status == KVT_FULL);
    if (status != KVT_OK) return;
    const uint64_t tokens = kvt_seq_tokens(mixer->world->runtime, child->seq);
    text_branch(&child->text, &live->text, tokens, kvt_rng_below(&mixer->rng, 3), live->text.count);
    mixer->count++;
}

static void mix_time(struct mixer *mixer)
{
    const uint64_t ms[] = { 1, 20, 500, 31000 };
    world_advance(mixer->world, ms[kvt_rng_below(&mixer->rng, KVT_ARRAY_COUNT(ms))] * (SECOND / 1000));
}

static void mix_turn(struct mixer *mixer)
{
    struct world *world = mixer->world;
    const uint64_t what = kvt_rng_below(&mixer->rng, 16);
    if (what < 2 || mixer->count == 0) {
        mix_create(mixer);
        return;
    }
    struct live *live = &mixer->live[kvt_rng_below(&mixer->rng, mixer->count)];
    if (what < 6) mix_step(mixer, live);
    else if (what == 6) world_idle(world, live->seq);
    else if (what == 7) (void)world_resume(world, live->seq);
    else if (what == 8) {
        world_finish(world, live->seq, kvt_rng_below(&mixer->rng, 8) != 0);
        *live = mixer->live[--mixer->count];
    } else if (what == 9 && mixer->mix->is_gating) {
        world_gate(world, (uint32_t)kvt_rng_below(&mixer->rng, KVT_DEVICE_STREAMS), kvt_rng_below(&mixer->rng, 2) == 0);
    } else if (what == 10) {
        world_crank(world, (uint32_t)kvt_rng_below(&mixer->rng, 2));
    } else if (what == 11) {
        mix_cut(mixer, live);
    } else if (what == 12) {
        mix_fork(mixer, live);
    } else if (what == 13) {
        kvt_expect(world->runtime, &live->seq, &(uint32_t){ (uint32_t)kvt_rng_below(&mixer->rng, 4) }, 1);
    } else if (what == 14 && kvt_rng_below(&mixer->rng, 4) == 0) {
        mix_time(mixer);
    } else {
        world_pump(world, 2);
    }
}

void world_mix(struct world *world, const struct mix *mix)
{
    struct mixer *mixer = kvt_alloc(1, sizeof *mixer);
    assert_non_null(mixer);
    *mixer = (struct mixer){ .world = world, .mix = mix, .rng = { .state = mix->seed } };
    assert_true(mix->live_max <= LIVE_MAX);
    print_message("mix: seed %llu\n", (unsigned long long)mix->seed);
    for (uint32_t i = 0; i < mix->steps; i++) {
        mix_turn(mixer);
        if (mix->after) mix->after(world);
        if (mix->verify_every && i % mix->verify_every == 0) world_verify(world);
        if (world->rows_wrong) fail_msg("step %u: %llu rows are wrong", i, (unsigned long long)world->rows_wrong);
    }
    for (uint32_t s = 0; s < KVT_DEVICE_STREAMS; s++) world_gate(world, s, false);
    world_settle(world);
    while (mixer->count > 0) world_finish(world, mixer->live[--mixer->count].seq, true);
    kvt_free(mixer);
    world_settle(world);
    world_verify_idle(world);
}
