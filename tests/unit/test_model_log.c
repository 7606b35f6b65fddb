/* model_log: what the simulator thinks a store keeps and writes is what a store keeps and writes. */
#include "tests/unit/store_bench.h"

#include "tiers/nvme_tier.h"
#include "tools/sim/model_log.h"

enum { KIB = 1024, KEYS_MAX = 8192, LENGTH_MAX = 16 * KIB };

struct pair {
    struct bench bench;
    struct kvt_model_log *log;
    struct kvt_rng rng;
    uint32_t lengths[KEYS_MAX]; /* of each key that was put */
    uint32_t key_count;
};

static void pair_init(struct pair *pair, uint64_t capacity_bytes, uint64_t seed)
{
    memset(pair, 0, sizeof *pair);
    bench_init_faulty(&pair->bench, seed);
    pair->bench.env.clock_user = &pair->bench;
    pair->bench.config.capacity_bytes = capacity_bytes;
    pair->bench.config.record_bytes_max = LENGTH_MAX;
    pair->bench.config.held_bytes_max = UINT64_MAX; /* as the nvme tier has it */
    bench_open(&pair->bench);
    pair->rng.state = seed;
    const uint32_t alignment = bench_stats(&pair->bench).alignment;
    assert_int_equal(kvt_model_log_create(capacity_bytes, LENGTH_MAX, 0, alignment, &pair->log), KVT_OK);
}

static void pair_done(struct pair *pair)
{
    kvt_model_log_destroy(&pair->log);
    assert_null(pair->log);
    bench_done(&pair->bench);
}

static struct kvt_name name_of(uint64_t key)
{
    const struct kvt_store_name name = bench_name(key);
    return (struct kvt_name){ .space = { name.space[0], name.space[1] }, .key = { name.key[0], name.key[1] } };
}

static void put(struct pair *pair)
{
    const uint32_t key = pair->key_count++;
    const uint32_t length = 4 * KIB + (uint32_t)kvt_rng_below(&pair->rng, LENGTH_MAX - 4 * KIB);
    const struct kvt_name name = name_of(key);
    const struct kvt_found record = { .length = length, .form = KVT_FORM_PACKED, .tokens = 16, .generation = 1 };
    assert_in_range(key, 0, KEYS_MAX - 1);
    pair->lengths[key] = length;
    assert_int_equal(kvt_model_log_put(pair->log, &name, &record), bench_put(&pair->bench, key, length));
}

/* A key of the last few hundred. */
static uint32_t recent(struct pair *pair)
{
    return pair->key_count - 1 - (uint32_t)kvt_rng_below(&pair->rng, kvt_min_u64(pair->key_count, 400));
}

static bool model_has(struct pair *pair, uint32_t key)
{
    const struct kvt_name name = name_of(key);
    struct kvt_found found;
    return kvt_model_log_find(pair->log, &name, &found);
}

static void get(struct pair *pair, uint32_t key)
{
    const struct kvt_name name = name_of(key);
    struct kvt_found found;
    if (!bench_has(&pair->bench, key) || !model_has(pair, key)) return;
    assert_int_equal(kvt_model_log_get(pair->log, &name, 1, &found), KVT_OK);
    assert_int_equal(found.length, pair->lengths[key]);
    assert_int_equal(bench_get(&pair->bench, key, pair->lengths[key]), KVT_OK);
}

static void hold(struct pair *pair, uint32_t key, bool is_held)
{
    const struct kvt_store_name store_name = bench_name(key);
    const struct kvt_name name = name_of(key);
    struct kvt_store_found found;
    struct kvt_found model_found;
    if (!is_held) {
        kvt_store_release(pair->bench.store, &store_name);
        kvt_model_log_release(pair->log, &name);
    } else if (bench_has(&pair->bench, key) && model_has(pair, key)) {
        assert_true(kvt_store_hold(pair->bench.store, &store_name, &found));
        assert_true(kvt_model_log_hold(pair->log, &name, &model_found));
    }
}

/* Of a hundred keys, how many both know, or neither. */
static uint32_t percent_alike(struct pair *pair)
{
    uint32_t alike = 0;
    for (uint32_t key = 0; key < pair->key_count; key++) alike += bench_has(&pair->bench, key) == model_has(pair, key);
    return alike * 100 / pair->key_count;
}

static void assert_within(uint64_t modelled, uint64_t real, uint64_t percent)
{
    const uint64_t difference = modelled > real ? modelled - real : real - modelled;
    if (difference * 100 > real * percent)
        fail_msg("%llu modelled, %llu real", (unsigned long long)modelled, (unsigned long long)real);
}

/* Goal: puts alone fill and reclaim segments to the byte and the record as the store does. */
static void puts_alone_are_modelled_to_the_byte(void **state)
{
    (void)state;
    static const uint64_t capacities[] = { 1 * KVT_MIB, 8 * KVT_MIB, 24 * KVT_MIB };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(capacities); i++) {
        struct pair pair;
        struct kvt_model_log_counters model;
        pair_init(&pair, capacities[i], 7 + i);
        for (uint32_t n = 0; n < 4000; n++) put(&pair);
        assert_int_equal(kvt_store_sync(pair.bench.store), KVT_OK);
        const struct kvt_store_stats real = bench_stats(&pair.bench);
        kvt_model_log_counters(pair.log, &model);
        assert_true(real.evicted_records > 1000);
        assert_int_equal(model.written_bytes, real.written_bytes);
        assert_int_equal(model.stored_bytes, real.put_stored_bytes);
        assert_int_equal(model.records, real.records);
        assert_int_equal(model.evicted_records, real.evicted_records);
        assert_int_equal(model.reclaims, real.reclaims);
        assert_int_equal(percent_alike(&pair), 100);
        pair_done(&pair);
    }
}

/* Goal: what is read again is written again, as much as the store writes, and never more than half of a segment. */
static void records_that_are_read_are_carried_forward_as_the_store_does(void **state)
{
    (void)state;
    static const uint32_t gets_per_put[] = { 1, 4 };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(gets_per_put); i++) {
        struct pair pair;
        struct kvt_model_log_counters model;
        pair_init(&pair, 4 * KVT_MIB, 70 + i);
        for (uint32_t n = 0; n < 3000; n++) {
            put(&pair);
            for (uint32_t g = 0; g < gets_per_put[i]; g++) get(&pair, recent(&pair));
        }
        assert_int_equal(kvt_store_sync(pair.bench.store), KVT_OK);
        const struct kvt_store_stats real = bench_stats(&pair.bench);
        kvt_model_log_counters(pair.log, &model);
        assert_true(real.moved_bytes > real.put_stored_bytes / 10);
        assert_within(model.written_bytes, real.written_bytes, 2);
        assert_within(model.moved_bytes, real.moved_bytes, 5);
        assert_true(model.moved_bytes < model.stored_bytes * 11 / 10);
        assert_in_range(percent_alike(&pair), 97, 100);
        pair_done(&pair);
    }
}

/* Goal: what live sequences hold stays, in both, and costs the same writes. */
static void held_records_stay_and_cost_what_they_cost_the_store(void **state)
{
    (void)state;
    enum { HELD = 64 };
    struct pair pair;
    struct kvt_model_log_counters model;
    uint32_t held[HELD];
    pair_init(&pair, 4 * KVT_MIB, 700);
    for (uint32_t n = 0; n < HELD; n++) {
        put(&pair);
        held[n] = pair.key_count - 1;
        hold(&pair, held[n], true);
    }
    for (uint32_t n = 0; n < 3000; n++) {
        put(&pair);
        if (n % 10 != 0) continue;
        const uint32_t i = (uint32_t)kvt_rng_below(&pair.rng, HELD);
        assert_true(bench_has(&pair.bench, held[i]));
        assert_true(model_has(&pair, held[i]));
        hold(&pair, held[i], false);
        held[i] = pair.key_count - 1;
        hold(&pair, held[i], true);
    }
    assert_int_equal(kvt_store_sync(pair.bench.store), KVT_OK);
    const struct kvt_store_stats real = bench_stats(&pair.bench);
    kvt_model_log_counters(pair.log, &model);
    assert_true(real.moved_bytes > 0);
    assert_within(model.written_bytes, real.written_bytes, 2);
    struct kvt_name lost;
    assert_int_equal(kvt_model_log_poll_lost(pair.log, &lost, 1), 0);
    assert_in_range(percent_alike(&pair), 97, 100);
    pair_done(&pair);
}

/* Goal: a capacity without room for four segments is refused, as the store refuses it. */
static void a_capacity_that_is_too_small_is_refused(void **state)
{
    (void)state;
    struct kvt_model_log *log;
    assert_int_equal(kvt_model_log_create(64 * KIB, LENGTH_MAX, 0, 512, &log), KVT_INVAL);
}

/* Goal: a reset forgets everything, and tells of what was held. */
static void a_reset_forgets_everything_and_tells_what_was_held(void **state)
{
    (void)state;
    struct pair pair;
    pair_init(&pair, 4 * KVT_MIB, 9);
    for (uint32_t n = 0; n < 100; n++) put(&pair);
    const struct kvt_name name = name_of(50);
    struct kvt_found found;
    assert_true(kvt_model_log_hold(pair.log, &name, &found));
    kvt_model_log_reset(pair.log);
    struct kvt_name lost[4];
    assert_int_equal(kvt_model_log_poll_lost(pair.log, lost, 4), 1);
    assert_true(kvt_name_equal(&lost[0], &name));
    for (uint32_t key = 0; key < 100; key++) assert_false(model_has(&pair, key));
    pair_done(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(puts_alone_are_modelled_to_the_byte),
        cmocka_unit_test(records_that_are_read_are_carried_forward_as_the_store_does),
        cmocka_unit_test(held_records_stay_and_cost_what_they_cost_the_store),
        cmocka_unit_test(a_capacity_that_is_too_small_is_refused),
        cmocka_unit_test(a_reset_forgets_everything_and_tells_what_was_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
