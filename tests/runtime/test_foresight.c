/* KVT_PREFETCH_SESSION: idle sequences are brought nearer before they are likely to come back, and at nobody's cost. */
#include "tests/runtime/world.h"

enum { TOKENS = 8 * BLOCK_TOKENS, BLOCKS = 8, DEVICE_SLOTS = 32, HOST_SLOTS = 200, LESSONS = 12 };

static void open_world(struct world *w, enum kvt_prefetch prefetch)
{
    world_init(w, DEVICE_SLOTS, HOST_SLOTS);
    w->config.prefetch = prefetch;
    world_open(w);
}

static void begin(struct world *w, struct text *text, uint64_t seed, uint64_t tokens, kvt_seq *ret_seq)
{
    text_make(text, seed, tokens);
    (void)world_create(w, text, tokens, false, ret_seq);
    world_step(w, text, *ret_seq, tokens, true);
    world_settle(w);
}

static void pause(struct world *w, kvt_seq seq, enum kvt_next next)
{
    const struct kvt_seq_hint hint = { .next = next, .turn = 9 };
    assert_int_equal(kvt_seq_hint(w->runtime, seq, &hint), KVT_OK);
    world_idle(w, seq);
}

static void go_on(struct world *w, const struct text *text, kvt_seq seq)
{
    assert_int_equal(world_resume(w, seq), KVT_ROOM_OK);
    world_settle(w);
    world_step(w, text, seq, 0, true);
    world_settle(w);
}

/* The sequence comes back after so long, again and again. */
static void teach(struct world *w, const struct text *text, kvt_seq seq, enum kvt_next next, uint64_t pause_ns)
{
    for (uint32_t i = 0; i < LESSONS; i++) {
        pause(w, seq, next);
        world_advance(w, pause_ns);
        go_on(w, text, seq);
    }
}

static uint32_t count_on(struct world *w, kvt_seq seq, uint32_t tier)
{
    const struct kvt_sequence_table *table = &kvt_sequence_of(world_core(w), seq)->groups[0];
    uint32_t count = 0;
    for (uint32_t i = 0; i < table->count; i++)
        count += kvt_copy_is_resident(kvt_core_block(world_core(w), table->blocks[i]), tier);
    return count;
}

/* Lets time pass as it does: a bit at a time. */
static void live(struct world *w, uint64_t ns)
{
    for (uint32_t i = 0; i < 100; i++) {
        world_advance(w, ns / 100);
        world_settle(w);
    }
}

/* A sequence that comes back after 10 s is idle, and others have pushed it out. */
static kvt_seq push_out(struct world *w, struct text *text)
{
    kvt_seq seq;
    begin(w, text, 1, TOKENS, &seq);
    teach(w, text, seq, KVT_NEXT_TOOL, 10 * SECOND);
    pause(w, seq, KVT_NEXT_TOOL);
    world_flush(w, 50, false);
    assert_int_equal(count_on(w, seq, KVT_TIER_DEVICE), 0);
    return seq;
}

static bool is_ready_at_once(struct world *w, kvt_seq seq)
{
    kvt_step step;
    uint64_t lost_from;
    assert_int_equal(world_resume(w, seq), KVT_ROOM_OK);
    const bool is_ready = world_begin_once(w, seq, 0, &step, &lost_from) == KVT_READY;
    if (is_ready) world_end(w, step);
    world_settle(w);
    return is_ready;
}

static void what_comes_back_as_ever_is_there_before_it_comes(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, KVT_PREFETCH_SESSION);
    const kvt_seq seq = push_out(&w, &text);
    live(&w, 5 * SECOND);
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), 0); /* not long before */
    live(&w, 4900 * (SECOND / 1000));
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), BLOCKS);
    struct kvt_stats stats = world_stats(&w);
    assert_int_equal(stats.foreseen_blocks, BLOCKS);
    assert_int_equal(stats.foreseen_used_blocks + stats.foreseen_wasted_blocks, 0);
    assert_true(is_ready_at_once(&w, seq));
    stats = world_stats(&w);
    assert_int_equal(stats.foreseen_used_blocks, BLOCKS);
    assert_int_equal(stats.foreseen_wasted_blocks, 0);
    world_step(&w, &text, seq, 0, true); /* checks every byte */
    world_finish(&w, seq, true);
    world_verify_idle(&w);
    world_close(&w);
}

static void without_being_asked_for_nothing_is_foreseen(void **state)
{
    (void)state;
    static const enum kvt_prefetch others[] = { KVT_PREFETCH_LOOKAHEAD, KVT_PREFETCH_DEMAND, KVT_PREFETCH_OFF };
    assert_int_equal(kvt_config_default().prefetch, KVT_PREFETCH_LOOKAHEAD);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(others); i++) {
        struct world w;
        struct text text;
        open_world(&w, others[i]);
        const kvt_seq seq = push_out(&w, &text);
        live(&w, 10 * SECOND);
        assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), 0);
        assert_false(is_ready_at_once(&w, seq));
        assert_int_equal(world_stats(&w).foreseen_blocks, 0);
        assert_null(world_core(&w)->foresight.blocks);
        world_finish(&w, seq, true);
        world_close(&w);
    }
}

static void what_only_nvme_has_is_brought_too(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    world_init(&w, DEVICE_SLOTS, 0);
    world_add_disk(&w, 48, 4 * KVT_MIB);
    w.config.prefetch = KVT_PREFETCH_SESSION;
    world_open(&w);
    kvt_seq seq;
    begin(&w, &text, 1, TOKENS, &seq);
    teach(&w, &text, seq, KVT_NEXT_PERSON, 10 * SECOND);
    pause(&w, seq, KVT_NEXT_PERSON);
    world_flush(&w, 50, true);
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), 0);
    assert_int_equal(count_on(&w, seq, KVT_TIER_HOST), 0);
    assert_int_equal(count_on(&w, seq, KVT_TIER_NVME), BLOCKS);
    live(&w, 9900 * (SECOND / 1000));
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), BLOCKS);
    assert_true(is_ready_at_once(&w, seq));
    world_step(&w, &text, seq, 0, true);
    world_finish(&w, seq, true);
    world_verify_idle(&w);
    world_close(&w);
}

/* The device is full of an active sequence's blocks and of an idle one's, which comes back after other_pause_ns. */
static void bring_beside(uint64_t other_pause_ns, bool is_other_to_give_way)
{
    struct world w;
    struct text text, other_text, active_text;
    kvt_seq seq, other, active;
    open_world(&w, KVT_PREFETCH_SESSION);
    begin(&w, &text, 1, TOKENS, &seq);
    teach(&w, &text, seq, KVT_NEXT_TOOL, 10 * SECOND);
    begin(&w, &other_text, 2, TOKENS, &other);
    teach(&w, &other_text, other, KVT_NEXT_PERSON, other_pause_ns);
    pause(&w, seq, KVT_NEXT_TOOL);
    pause(&w, other, KVT_NEXT_PERSON);
    world_flush(&w, 50, false);
    go_on(&w, &other_text, other);
    begin(&w, &active_text, 3, (DEVICE_SLOTS - 2) * BLOCK_TOKENS - TOKENS, &active);
    pause(&w, other, KVT_NEXT_PERSON);
    world_settle(&w);
    assert_int_equal(count_on(&w, other, KVT_TIER_DEVICE), BLOCKS);
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), 0);
    live(&w, 9900 * (SECOND / 1000));
    assert_int_equal(count_on(&w, active, KVT_TIER_DEVICE), DEVICE_SLOTS - 2 - BLOCKS);
    if (is_other_to_give_way) assert_true(count_on(&w, seq, KVT_TIER_DEVICE) >= BLOCKS - 1);
    else assert_int_equal(count_on(&w, other, KVT_TIER_DEVICE), BLOCKS);
    world_step(&w, &active_text, active, 0, true);
    world_finish(&w, active, true);
    go_on(&w, &other_text, other);
    go_on(&w, &text, seq);
    world_finish(&w, other, true);
    world_finish(&w, seq, true);
    world_verify_idle(&w);
    world_close(&w);
}

static void what_comes_back_later_gives_way(void **state)
{
    (void)state;
    bring_beside(1000 * SECOND, true);
}

static void what_comes_back_as_soon_is_not_evicted(void **state)
{
    (void)state;
    bring_beside(10 * SECOND, false);
}

static void nothing_is_brought_while_a_sequence_waits(void **state)
{
    (void)state;
    struct world w;
    struct text text, waiting_text;
    kvt_seq seq, waiting;
    open_world(&w, KVT_PREFETCH_SESSION);
    begin(&w, &waiting_text, 2, 24 * BLOCK_TOKENS, &waiting);
    world_idle(&w, waiting);
    seq = push_out(&w, &text);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    world_core(&w)->transfers.prefetch_bytes = 0;
    assert_int_equal(world_resume(&w, waiting), KVT_ROOM_OK);
    world_pump(&w, 8);
    assert_true(world_core(&w)->transfers.in_flight > 6); /* the link has enough to do */
    for (uint32_t i = 0; i < 100; i++) world_advance(&w, SECOND / 10);
    assert_int_equal(world_stats(&w).foreseen_blocks, 0);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    world_step(&w, &waiting_text, waiting, 0, true);
    world_finish(&w, waiting, true);
    go_on(&w, &text, seq);
    world_finish(&w, seq, true);
    world_close(&w);
}

/* An append that waits for room and is given up keeps its slots for a moment, and no longer. */
static void an_append_that_was_given_up_does_not_end_foresight(void **state)
{
    (void)state;
    struct world w;
    struct text text, other_text, third_text;
    kvt_seq other, third;
    open_world(&w, KVT_PREFETCH_SESSION);
    const kvt_seq seq = push_out(&w, &text);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, true);
    text_make(&other_text, 77, 20 * BLOCK_TOKENS);
    (void)world_create(&w, &other_text, 20 * BLOCK_TOKENS, false, &other);
    world_step(&w, &other_text, other, 20 * BLOCK_TOKENS, true);
    world_idle(&w, other);
    text_make(&third_text, 78, 24 * BLOCK_TOKENS);
    (void)world_create(&w, &third_text, 24 * BLOCK_TOKENS, false, &third);
    assert_int_not_equal(world_append(&w, third, 24 * BLOCK_TOKENS), KVT_ROOM_OK);
    world_finish(&w, third, false);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, false);
    world_settle(&w);
    world_finish(&w, other, true);
    world_settle(&w);
    live(&w, 9900 * (SECOND / 1000));
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), BLOCKS);
    world_finish(&w, seq, true);
    world_close(&w);
}

static void no_more_is_in_flight_than_prefetch_may_have(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    world_init(&w, DEVICE_SLOTS, HOST_SLOTS);
    w.config.prefetch = KVT_PREFETCH_SESSION;
    w.config.prefetch_bytes_max = 2 * BLOCK_BYTES;
    world_open(&w);
    const kvt_seq seq = push_out(&w, &text);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    for (uint32_t i = 0; i < 99; i++) world_advance(&w, SECOND / 10);
    assert_int_equal(world_stats(&w).foreseen_blocks, 2);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    assert_int_equal(world_stats(&w).foreseen_blocks, BLOCKS);
    go_on(&w, &text, seq);
    world_finish(&w, seq, true);
    world_close(&w);
}

static void what_was_brought_for_nothing_is_counted_and_costs_no_byte(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, KVT_PREFETCH_SESSION);
    const kvt_seq seq = push_out(&w, &text);
    live(&w, 9900 * (SECOND / 1000));
    assert_int_equal(world_stats(&w).foreseen_blocks, BLOCKS);
    const uint64_t stashed = world_stats(&w).tiers[KVT_TIER_DEVICE].bytes_out;
    live(&w, 40 * SECOND); /* it does not come */
    assert_int_equal(world_stats(&w).tiers[KVT_TIER_DEVICE].bytes_out, stashed);
    world_flush(&w, 90, false);
    assert_int_equal(world_stats(&w).foreseen_wasted_blocks, BLOCKS);
    assert_int_equal(world_stats(&w).foreseen_used_blocks, 0);
    live(&w, 40 * SECOND); /* past all that ever came back: nobody looks for it any more */
    assert_int_equal(world_stats(&w).foreseen_blocks, BLOCKS);
    go_on(&w, &text, seq);
    world_finish(&w, seq, true);
    world_verify_idle(&w);
    world_close(&w);
}

static void who_waits_for_nobody_is_not_brought(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    open_world(&w, KVT_PREFETCH_SESSION);
    begin(&w, &text, 1, TOKENS, &seq);
    teach(&w, &text, seq, KVT_NEXT_TOOL, 10 * SECOND);
    pause(&w, seq, KVT_NEXT_NOBODY);
    world_flush(&w, 50, false);
    live(&w, 20 * SECOND);
    assert_int_equal(world_stats(&w).foreseen_blocks, 0);
    world_finish(&w, seq, true);
    world_close(&w);
}

static void what_was_told_goes_before_what_is_foreseen(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, KVT_PREFETCH_SESSION);
    const kvt_seq seq = push_out(&w, &text);
    const uint32_t steps = 5000;
    kvt_expect(w.runtime, &seq, &steps, 1); /* much later than those like it */
    live(&w, 10 * SECOND);
    assert_int_equal(world_stats(&w).foreseen_blocks, 0);
    const uint32_t soon = 0;
    kvt_expect(w.runtime, &seq, &soon, 1);
    world_settle(&w);
    assert_int_equal(count_on(&w, seq, KVT_TIER_DEVICE), BLOCKS);
    assert_true(is_ready_at_once(&w, seq));
    world_finish(&w, seq, true);
    world_close(&w);
}

static void a_sequence_may_end_while_it_is_brought(void **state)
{
    (void)state;
    for (uint32_t is_kept = 0; is_kept <= 1; is_kept++) {
        struct world w;
        struct text text;
        open_world(&w, KVT_PREFETCH_SESSION);
        const kvt_seq seq = push_out(&w, &text);
        world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
        for (uint32_t i = 0; i < 99; i++) world_advance(&w, SECOND / 10);
        assert_true(world_stats(&w).foreseen_blocks > 0);
        assert_true(world_core(&w)->transfers.in_flight > 0);
        world_finish(&w, seq, is_kept == 1);
        world_verify(&w);
        world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
}

/* Most like it never come: that they are not brought says nothing about how long a copy would stay. */
static void who_hardly_ever_comes_teaches_nothing_about_stays(void **state)
{
    (void)state;
    struct world w;
    struct text text, other;
    kvt_seq seq, gone;
    open_world(&w, KVT_PREFETCH_SESSION);
    begin(&w, &text, 1, TOKENS, &seq);
    teach(&w, &text, seq, KVT_NEXT_TOOL, 10 * SECOND);
    for (uint32_t i = 0; i < 5 * LESSONS; i++) {
        begin(&w, &other, 2, TOKENS, &gone);
        pause(&w, gone, KVT_NEXT_TOOL);
        world_advance(&w, 20 * SECOND);
        world_finish(&w, gone, true);
    }
    pause(&w, seq, KVT_NEXT_TOOL);
    world_flush(&w, 50, false);
    uint64_t *stay_ns = world_core(&w)->foresight.stay_ns;
    stay_ns[KVT_TIER_DEVICE] = stay_ns[KVT_TIER_HOST] = SECOND;
    live(&w, 10 * SECOND);
    assert_int_equal(world_stats(&w).foreseen_blocks, 0);
    assert_int_equal(stay_ns[KVT_TIER_DEVICE], SECOND);
    assert_int_equal(stay_ns[KVT_TIER_HOST], SECOND);
    world_finish(&w, seq, true);
    world_close(&w);
}

/* Nothing can be brought from anywhere: the runtime's own thread has nothing to wake up for. */
static void without_host_memory_nobody_is_looked_at(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    world_init(&w, DEVICE_SLOTS, 0);
    w.config.prefetch = KVT_PREFETCH_SESSION;
    world_open(&w);
    begin(&w, &text, 1, TOKENS, &seq);
    teach(&w, &text, seq, KVT_NEXT_TOOL, 10 * SECOND);
    pause(&w, seq, KVT_NEXT_TOOL);
    for (uint32_t i = 0; i < 30; i++) {
        world_advance(&w, SECOND);
        assert_true(kvt_core_next_timer(world_core(&w)) > w.now_ns);
    }
    go_on(&w, &text, seq);
    world_finish(&w, seq, true);
    world_verify_idle(&w);
    world_close(&w);
}

static void random_use_stays_consistent(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world w;
        world_init(&w, 24, seed % 2 ? 60 : 0);
        if (seed % 2 == 0) world_add_disk(&w, 24, 4 * KVT_MIB);
        w.config.prefetch = KVT_PREFETCH_SESSION;
        world_open(&w);
        const struct mix mix = { .seed = seed,
                                 .steps = 1500,
                                 .live_max = 8,
                                 .tokens_max = 160,
                                 .verify_every = 16,
                                 .is_gating = seed % 3 == 0 };
        world_mix(&w, &mix);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_back_as_ever_is_there_before_it_comes),
        cmocka_unit_test(without_being_asked_for_nothing_is_foreseen),
        cmocka_unit_test(what_only_nvme_has_is_brought_too),
        cmocka_unit_test(what_comes_back_later_gives_way),
        cmocka_unit_test(what_comes_back_as_soon_is_not_evicted),
        cmocka_unit_test(nothing_is_brought_while_a_sequence_waits),
        cmocka_unit_test(an_append_that_was_given_up_does_not_end_foresight),
        cmocka_unit_test(no_more_is_in_flight_than_prefetch_may_have),
        cmocka_unit_test(what_was_brought_for_nothing_is_counted_and_costs_no_byte),
        cmocka_unit_test(who_waits_for_nobody_is_not_brought),
        cmocka_unit_test(what_was_told_goes_before_what_is_foreseen),
        cmocka_unit_test(a_sequence_may_end_while_it_is_brought),
        cmocka_unit_test(who_hardly_ever_comes_teaches_nothing_about_stays),
        cmocka_unit_test(without_host_memory_nobody_is_looked_at),
        cmocka_unit_test(random_use_stays_consistent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
