/*
 * Method: the core alone, without tiers below the device and without a device: what is measured is bookkeeping.
 *         Sequences of
 * 64 blocks of 16 tokens are created, appended to, committed and released in random order; the pool is full, so that
 * each append evicts. Keys are given in the first case, digested in the second; in the third, slots and entries of a
 * sequence lie scattered over the tables, as they do once sequences have grown side by side. The fourth looks cached
 * prefixes up. The ceiling of each is a random walk over as many cache lines as the pool has blocks: one dependent miss
 * a block. What is given is the median of three runs in thread CPU time. A stand-in for the device hands out marks, so
 * that slots are marked as in earnest.
 *
 * Decode: 256 active sequences, each step appends and commits one token to each. Its ceiling is the same with sequences
 *         of 20
 * blocks: a step's cost must depend neither on their length nor on how many blocks there are.
 */
#include "tools/cmd_bench_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <json-c/json.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "runtime/core.h"
#include "tools/cli.h"

enum {
    BLOCK_TOKENS = 16,
    SEQUENCE_BLOCKS = 64,
    SEQUENCE_TOKENS = BLOCK_TOKENS * SEQUENCE_BLOCKS,
    CASES_MAX = 32,
    RUNS = 3
};
enum { DECODE_SEQUENCES = 256, DECODE_STEPS = 1000, DECODE_BLOCKS = 2000, DECODE_BLOCKS_SHORT = 20 };

struct bench_case {
    char name[64];
    double value;
    const char *unit;
    double ceiling;
};

struct bench {
    struct kvt_core core;
    uint32_t slots;
    uint32_t live_count; /* sequences that are live at once: half of the pool */
    struct kvt_sequence **live;
    struct kvt_key *keys; /* of the sequence that is being built */
    uint32_t tokens[SEQUENCE_TOKENS];
    struct kvt_rng rng;
};

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Three rates, in order: the middle one; 0 when one failed. */
static double median(double a, double b, double c)
{
    if (a == 0 || b == 0 || c == 0) return 0;
    const double low = a < b ? a : b;
    const double high = a < b ? b : a;
    if (c < low) return low;
    return c > high ? high : c;
}

/* Marks that grow, all of them reached. */
static kvt_mark next_mark(struct kvt_gpu *gpu, uint32_t stream)
{
    static uint64_t serial;
    (void)gpu;
    return kvt_mark_make(stream, ++serial);
}

static bool is_always_reached(struct kvt_gpu *gpu, kvt_mark mark)
{
    (void)gpu;
    (void)mark;
    return true;
}

/* A first token may come twice: the second sequence then shares the first one's blocks, in the order of the streams. */
static void wait_for_nothing(struct kvt_gpu *gpu, uint32_t stream, kvt_mark mark)
{
    (void)gpu;
    (void)stream;
    (void)mark;
}

static const struct kvt_gpu_ops marking_ops = {
    .name = "marks", .mark = next_mark, .is_reached = is_always_reached, .wait = wait_for_nothing
};
static struct kvt_gpu marking_gpu = { &marking_ops };

static enum kvt_status open_bench(struct bench *bench, uint32_t slots, uint32_t live_count)
{
    memset(bench, 0, sizeof *bench);
    bench->slots = slots;
    bench->live_count = live_count;
    bench->rng.state = 1;
    struct kvt_core_config config = { .shape = { .block_tokens = BLOCK_TOKENS,
                                                 .group_count = 1,
                                                 .groups = { { .kind = KVT_GROUP_FULL,
                                                               .dtype = KVT_DTYPE_BF16,
                                                               .layers = 1,
                                                               .kv_heads = 1,
                                                               .head_dim = 64 } } },
                                      .pool_count = 1,
                                      .pool_slots = { slots },
                                      .blocks_max = slots + 64,
                                      .sequences_max = bench->live_count + 8,
                                      .transfers_max = 16,
                                      .transfer_deadline_ns = 1000000000,
                                      .step_ns = 1000000,
                                      .device_policy = kvt_policy_find("lru"),
                                      .host_policy = kvt_policy_find("lru"),
                                      .admission = kvt_admission_find("all"),
                                      .prefetch = KVT_PREFETCH_DEMAND,
                                      .gpu = &marking_gpu };
    KVT_TRY(kvt_core_init(&bench->core, &config));
    bench->live = kvt_alloc(bench->live_count, sizeof(struct kvt_sequence *));
    bench->keys = kvt_alloc(SEQUENCE_BLOCKS, sizeof *bench->keys);
    return bench->live && bench->keys ? KVT_OK : KVT_NOMEM;
}

static void close_bench(struct bench *bench)
{
    for (uint32_t i = 0; bench->live && i < bench->live_count; i++) {
        if (bench->live[i]) kvt_sequence_finish(&bench->core, bench->live[i], true);
    }
    kvt_core_done(&bench->core);
    kvt_free(bench->live);
    kvt_free(bench->keys);
}

static void shuffle(struct bench *bench, uint32_t *numbers, uint32_t count)
{
    for (uint32_t i = count; i-- > 1;) {
        const uint32_t j = (uint32_t)kvt_rng_below(&bench->rng, (uint64_t)i + 1);
        const uint32_t swap = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = swap;
    }
}

/* Before anything is in use: the first round hands slots and entries out in random order, and later rounds keep it. */
static void scatter(struct bench *bench)
{
    struct kvt_pool *pool = &bench->core.pools[0];
    struct kvt_block_table *table = &bench->core.table;
    shuffle(bench, pool->free_slots, pool->free_count);
    for (uint32_t i = 0; i < bench->slots; i++) (void)kvt_block_table_take(table, 0);
    for (uint32_t i = 0; i < bench->slots; i++) kvt_block_table_give(table, i);
    shuffle(bench, table->free_entries, bench->slots);
}

/* One sequence: slots, a step that commits all of its tokens, the end of the step. */
static struct kvt_sequence *build(struct bench *bench, bool is_digested)
{
    struct kvt_core *core = &bench->core;
    struct kvt_sequence *sequence = kvt_sequence_begin(core, false);
    if (!sequence) return NULL;
    enum kvt_room room = KVT_ROOM_PENDING;
    while (room == KVT_ROOM_PENDING) {
        if (kvt_sequence_append(core, sequence, SEQUENCE_TOKENS, &room) != KVT_OK) return NULL;
        (void)kvt_core_pump(core, core->now_ns);
    }
    struct kvt_step_entry entry = { .seq = kvt_sequence_handle(core, sequence) };
    kvt_step step;
    if (room != KVT_ROOM_OK || kvt_core_step_begin(core, &entry, 1, 0, &step) != KVT_OK) return NULL;
    if (is_digested) {
        bench->tokens[0] = (uint32_t)kvt_rng_next(&bench->rng); /* another first token: another chain of keys */
    } else {
        for (uint32_t i = 0; i < SEQUENCE_BLOCKS; i++)
            bench->keys[i] = (struct kvt_key){ kvt_rng_next(&bench->rng), kvt_rng_next(&bench->rng) };
    }
    const enum kvt_status status = kvt_sequence_commit(core, sequence, bench->tokens, SEQUENCE_TOKENS, 0, 0,
                                                       is_digested ? NULL : bench->keys);
    if (status != KVT_OK || kvt_core_step_end(core, step) != KVT_OK) return NULL;
    return sequence;
}

/* Replaces a random live sequence. False: the core refused. */
static bool turn_over(struct bench *bench, bool is_digested)
{
    const uint32_t i = (uint32_t)kvt_rng_below(&bench->rng, bench->live_count);
    if (bench->live[i]) kvt_sequence_finish(&bench->core, bench->live[i], true);
    bench->live[i] = build(bench, is_digested);
    return bench->live[i] != NULL;
}

static double measure_turn_over_once(struct bench *bench, uint64_t blocks, bool is_digested)
{
    const double begin = seconds();
    for (uint64_t i = 0; i < blocks / SEQUENCE_BLOCKS; i++) {
        if (!turn_over(bench, is_digested)) return 0;
    }
    return (double)(blocks / SEQUENCE_BLOCKS * SEQUENCE_BLOCKS) / (seconds() - begin);
}

/* Blocks a second over three times `blocks` blocks, after the pool has filled. 0: the core refused. */
static double measure_turn_over(struct bench *bench, uint64_t blocks, bool is_digested)
{
    double rates[RUNS];
    (void)measure_turn_over_once(bench, 2 * (uint64_t)bench->slots, false);
    for (uint32_t i = 0; i < RUNS; i++) rates[i] = measure_turn_over_once(bench, blocks, is_digested);
    return median(rates[0], rates[1], rates[2]);
}

/* Steps a second of DECODE_SEQUENCES sequences. 0: the core refused. */
static double measure_steps(struct bench *bench, struct kvt_step_entry *entries)
{
    struct kvt_core *core = &bench->core;
    const double begin = seconds();
    for (uint32_t n = 0; n < DECODE_STEPS; n++) {
        for (uint32_t i = 0; i < DECODE_SEQUENCES; i++) {
            enum kvt_room room;
            if (kvt_sequence_append(core, bench->live[i], 1, &room) != KVT_OK || room != KVT_ROOM_OK) return 0;
        }
        kvt_step step;
        if (kvt_core_step_begin(core, entries, DECODE_SEQUENCES, 0, &step) != KVT_OK) return 0;
        for (uint32_t i = 0; i < DECODE_SEQUENCES; i++) {
            const uint32_t token = (uint32_t)kvt_rng_next(&bench->rng);
            if (kvt_sequence_commit(core, bench->live[i], &token, 1, 0, 0, NULL) != KVT_OK) return 0;
        }
        if (kvt_core_step_end(core, step) != KVT_OK) return 0;
        (void)kvt_core_pump(core, core->now_ns);
    }
    return DECODE_STEPS / (seconds() - begin);
}

/* Steps a second with sequences of so many blocks. 0: the core refused. */
static double measure_decode(uint32_t blocks)
{
    static struct kvt_step_entry entries[DECODE_SEQUENCES];
    struct bench bench;
    double rates[RUNS] = { 0 };
    bool is_built = open_bench(&bench, DECODE_SEQUENCES * (blocks * 2 + DECODE_STEPS), DECODE_SEQUENCES) == KVT_OK;
    for (uint32_t i = 0; is_built && i < DECODE_SEQUENCES; i++) {
        bench.live[i] = kvt_sequence_begin(&bench.core, false);
        is_built = bench.live[i] != NULL;
        if (is_built) entries[i].seq = kvt_sequence_handle(&bench.core, bench.live[i]);
    }
    /* Side by side, a block each in turn: how such sequences come to be. */
    for (uint32_t b = 0; is_built && b < blocks; b++) {
        kvt_step step = 0;
        for (uint32_t i = 0; i < DECODE_SEQUENCES; i++) {
            enum kvt_room room;
            is_built = is_built && kvt_sequence_append(&bench.core, bench.live[i], BLOCK_TOKENS, &room) == KVT_OK;
        }
        is_built = is_built && kvt_core_step_begin(&bench.core, entries, DECODE_SEQUENCES, 0, &step) == KVT_OK;
        for (uint32_t i = 0; is_built && i < DECODE_SEQUENCES; i++) {
            const struct kvt_key key = { kvt_rng_next(&bench.rng), kvt_rng_next(&bench.rng) };
            is_built = kvt_sequence_commit(&bench.core, bench.live[i], NULL, BLOCK_TOKENS, 0, 0, &key) == KVT_OK;
        }
        is_built = is_built && kvt_core_step_end(&bench.core, step) == KVT_OK;
    }
    for (uint32_t i = 0; is_built && i < RUNS; i++) rates[i] = measure_steps(&bench, entries);
    close_bench(&bench);
    return median(rates[0], rates[1], rates[2]);
}

/* Tokens a second that create matches and holds, prompts of 64 blocks all cached. */
static double measure_match(struct bench *bench, uint64_t tokens)
{
    enum { PROMPTS = 64 };
    static uint32_t prompts[PROMPTS][SEQUENCE_TOKENS + 1];
    struct kvt_core *core = &bench->core;
    for (uint32_t p = 0; p < PROMPTS; p++) {
        struct kvt_seq_params params = { .tokens = prompts[p], .token_count = 1, .reuse_max = UINT64_MAX };
        for (uint32_t i = 0; i < SEQUENCE_TOKENS; i++) prompts[p][i] = (uint32_t)kvt_rng_next(&bench->rng);
        struct kvt_sequence *sequence;
        enum kvt_room room = KVT_ROOM_PENDING;
        if (kvt_sequence_create(core, &params, &sequence) != KVT_OK) return 0;
        while (room == KVT_ROOM_PENDING) {
            if (kvt_sequence_append(core, sequence, SEQUENCE_TOKENS, &room) != KVT_OK) return 0;
            (void)kvt_core_pump(core, core->now_ns);
        }
        struct kvt_step_entry entry = { .seq = kvt_sequence_handle(core, sequence) };
        kvt_step step;
        if (room != KVT_ROOM_OK || kvt_core_step_begin(core, &entry, 1, 0, &step) != KVT_OK) return 0;
        if (kvt_sequence_commit(core, sequence, prompts[p], SEQUENCE_TOKENS, 0, 0, NULL) != KVT_OK) return 0;
        if (kvt_core_step_end(core, step) != KVT_OK) return 0;
        kvt_sequence_finish(core, sequence, true);
    }
    const uint64_t rounds = tokens / SEQUENCE_TOKENS;
    const double begin = seconds();
    for (uint64_t i = 0; i < rounds; i++) {
        const struct kvt_seq_params params = { .tokens = prompts[i % PROMPTS],
                                               .token_count = SEQUENCE_TOKENS + 1,
                                               .reuse_max = UINT64_MAX };
        struct kvt_sequence *sequence;
        if (kvt_sequence_create(core, &params, &sequence) != KVT_OK) return 0;
        if (sequence->reused != SEQUENCE_TOKENS) return 0;
        kvt_sequence_finish(core, sequence, true);
    }
    return (double)(rounds * SEQUENCE_TOKENS) / (seconds() - begin);
}

/* Cache lines a second in a random cycle over as many lines as there are blocks. */
static double measure_walk(uint32_t lines)
{
    uint64_t(*memory)[8] = kvt_table_map((size_t)lines * sizeof *memory);
    if (!memory) return 0;
    struct kvt_rng rng = { 7 };
    for (uint32_t i = 0; i < lines; i++) memory[i][0] = i;
    for (uint32_t i = lines - 1; i > 0; i--) { /* Sattolo: one cycle */
        const uint64_t j = kvt_rng_below(&rng, i);
        const uint64_t swap = memory[i][0];
        memory[i][0] = memory[j][0];
        memory[j][0] = swap;
    }
    enum { STEPS = 2000000 };
    uint64_t at = 0;
    const double begin = seconds();
    for (uint32_t i = 0; i < STEPS; i++) at = memory[at][0];
    const double rate = STEPS / (seconds() - begin);
    if (at == UINT64_MAX) puts(""); /* the walk must not be optimised away */
    kvt_table_unmap(memory, (size_t)lines * sizeof *memory);
    return rate;
}

/* Bytes of the core's tables for each slot of the pool, as far as they are touched. */
static double bookkeeping_per_block(const struct bench *bench)
{
    const struct kvt_core *core = &bench->core;
    const double blocks = (double)core->table.high_water;
    double bytes = blocks * (double)sizeof(struct kvt_block) + (double)kvt_pool_bytes(&core->pools[0]);
    bytes += blocks * sizeof(uint32_t); /* free entries */
    bytes += (double)kvt_prefix_bytes(&core->prefix);
    bytes += (double)bench->live_count * SEQUENCE_BLOCKS * sizeof(uint32_t); /* table entries */
    bytes += (double)bench->live_count * sizeof(struct kvt_sequence);
    return bytes / (double)bench->slots;
}

static void add_case(struct bench_case *cases, uint32_t *count, const char *what, uint32_t slots, double value,
                     const char *unit, double ceiling)
{
    struct bench_case *c = &cases[(*count)++];
    if (slots >= 1000000) (void)snprintf(c->name, sizeof c->name, "%s, %u M blocks", what, slots / 1000000);
    else (void)snprintf(c->name, sizeof c->name, "%s, %u k blocks", what, slots / 1000);
    c->value = value;
    c->unit = unit;
    c->ceiling = ceiling;
}

static bool bench_size(uint32_t slots, struct bench_case *cases, uint32_t *count)
{
    const uint32_t live_count = kvt_max_u32(slots / SEQUENCE_BLOCKS / 2, 1);
    const uint64_t blocks = kvt_max_u64(slots, 2000000);
    const double walk = measure_walk(slots);
    struct bench bench;
    bool is_open = open_bench(&bench, slots, live_count) == KVT_OK;
    if (is_open) {
        add_case(cases, count, "append, touch, release", slots, measure_turn_over(&bench, blocks, false), "blocks/s",
                 walk);
        add_case(cases, count, "the same with sealing", slots, measure_turn_over(&bench, blocks / 2, true), "blocks/s",
                 walk);
        add_case(cases, count, "prefix match", slots, measure_match(&bench, 50000000), "tokens/s", walk * BLOCK_TOKENS);
        add_case(cases, count, "bookkeeping", slots, bookkeeping_per_block(&bench), "bytes/block", 128);
    }
    close_bench(&bench);
    if (!is_open) return false;
    is_open = open_bench(&bench, slots, live_count) == KVT_OK;
    if (is_open) {
        scatter(&bench);
        add_case(cases, count, "append to scattered", slots, measure_turn_over(&bench, blocks, false), "blocks/s",
                 walk);
    }
    close_bench(&bench);
    return is_open;
}

static bool bench_decode(struct bench_case *cases, uint32_t *count)
{
    const double steps_short = measure_decode(DECODE_BLOCKS_SHORT);
    const double steps = measure_decode(DECODE_BLOCKS);
    if (steps == 0 || steps_short == 0) return false;
    struct bench_case *c = &cases[*count];
    c[0] = (struct bench_case){ "decode, 256 sequences of 2,000 blocks", steps, "steps/s", steps_short };
    c[1] = (struct bench_case){ "the same, a sequence and step", 1e9 / steps / DECODE_SEQUENCES, "ns",
                                1e9 / steps_short / DECODE_SEQUENCES };
    *count += 2;
    return true;
}

static void print_table(const struct bench_case *cases, uint32_t count)
{
    static struct kvt_listing listing;
    kvt_listing_init(&listing, "lrlrr");
    const char *const head[] = { "case", "value", "unit", "ceiling", "ratio" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(head); i++) kvt_listing_add(&listing, "%s", head[i]);
    for (uint32_t i = 0; i < count; i++) {
        kvt_listing_add(&listing, "%s", cases[i].name);
        kvt_listing_add(&listing, "%.4g", cases[i].value);
        kvt_listing_add(&listing, "%s", cases[i].unit);
        kvt_listing_add(&listing, "%.4g", cases[i].ceiling);
        kvt_listing_add(&listing, "%.3f", cases[i].value / cases[i].ceiling);
    }
    kvt_listing_print(&listing, stdout, "");
}

static void print_json(const struct bench_case *cases, uint32_t count)
{
    struct json_object *root = json_object_new_object();
    struct json_object *list = json_object_new_array();
    for (uint32_t i = 0; i < count; i++) {
        struct json_object *item = json_object_new_object();
        (void)json_object_object_add(item, "name", json_object_new_string(cases[i].name));
        (void)json_object_object_add(item, "value", json_object_new_double(cases[i].value));
        (void)json_object_object_add(item, "unit", json_object_new_string(cases[i].unit));
        (void)json_object_object_add(item, "ceiling", json_object_new_double(cases[i].ceiling));
        (void)json_object_object_add(item, "ratio", json_object_new_double(cases[i].value / cases[i].ceiling));
        (void)json_object_array_add(list, item);
    }
    (void)json_object_object_add(root, "cases", list);
    puts(json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY));
    (void)json_object_put(root);
}

int kvt_bench_core(uint64_t blocks_max, bool is_json)
{
    static const uint32_t sizes[] = { 10000, 100000, 1000000, 10000000 };
    struct bench_case cases[CASES_MAX];
    uint32_t count = 0;
    if (kvt_key_init() != KVT_OK) return kvt_failure("kvtier bench core", "the digest library refused");
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(sizes); i++) {
        if (blocks_max != 0 && sizes[i] > blocks_max) continue;
        if (!bench_size(sizes[i], cases, &count))
            return kvt_failure("kvtier bench core", "no memory for %u blocks", sizes[i]);
    }
    if (!bench_decode(cases, &count)) return kvt_failure("kvtier bench core", "the decode case was refused");
    if (is_json) print_json(cases, count);
    else print_table(cases, count);
    return KVT_EXIT_OK;
}
