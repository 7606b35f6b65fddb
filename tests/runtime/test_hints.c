/* What the policies of the device and of host memory are told of the blocks that they order. */
#include "tests/runtime/world.h"

enum { TOKENS = 8 * BLOCK_TOKENS, BLOCKS = 8 };

/* A policy that asks for hints, and a look at what it hears. */
static const struct kvt_policy_ops *real;
static struct kvt_policy_ops spied;
static struct kvt_policy_hint heard;
static struct {
    struct kvt_policy_hint hint;
    uint32_t slot;
    bool is_insert;
} uses[4096];
static uint32_t use_count;

static void on_hint(struct kvt_policy *policy, const struct kvt_policy_hint *hint)
{
    heard = *hint;
    real->hint(policy, hint);
}

static void note(uint32_t slot, bool is_insert)
{
    assert_true(use_count < KVT_ARRAY_COUNT(uses));
    uses[use_count].hint = heard;
    uses[use_count].slot = slot;
    uses[use_count++].is_insert = is_insert;
}

static void on_insert(struct kvt_policy *policy, uint32_t slot, uint64_t key_hash)
{
    note(slot, true);
    real->insert(policy, slot, key_hash);
}

static void on_touch(struct kvt_policy *policy, uint32_t slot)
{
    note(slot, false);
    real->touch(policy, slot);
}

static void open_world(struct world *w, bool is_spy_on_host)
{
    world_init(w, 24, 200);
    w->config.device_policy = is_spy_on_host ? "lru" : "workload-aware";
    w->config.host_policy = is_spy_on_host ? "workload-aware" : "lru";
    world_open(w);
    const struct kvt_policy_ops **place = is_spy_on_host ? &world_core(w)->host.policy_ops
                                                         : &world_core(w)->pools[0].policy_ops;
    real = *place;
    spied = *real;
    spied.hint = on_hint;
    spied.insert = on_insert;
    spied.touch = on_touch;
    *place = &spied;
    use_count = 0;
}

static kvt_seq begin(struct world *w, struct text *text)
{
    kvt_seq seq;
    text_make(text, 1, TOKENS);
    (void)world_create(w, text, TOKENS, false, &seq);
    world_step(w, text, seq, TOKENS, true);
    world_settle(w);
    return seq;
}

static void tell(struct world *w, kvt_seq seq, enum kvt_next next, uint32_t turn)
{
    const struct kvt_seq_hint hint = { .next = next, .turn = turn };
    assert_int_equal(kvt_seq_hint(w->runtime, seq, &hint), KVT_OK);
}

/* Of the sequence's block i in its tier's slot: the last use that the policy was told of. */
static const struct kvt_policy_hint *last_use(struct world *w, kvt_seq seq, uint32_t i, bool is_host)
{
    const struct kvt_sequence_table *table = &kvt_sequence_of(world_core(w), seq)->groups[0];
    const struct kvt_block *block = kvt_core_block(world_core(w), table->blocks[i]);
    const uint32_t slot = is_host ? block->host_slot : block->device_slot;
    for (uint32_t n = use_count; n-- > 0;) {
        if (uses[n].slot == slot) return &uses[n].hint;
    }
    fail_msg("block %u is not known to the policy", i);
    return NULL;
}

static void check(struct world *w, kvt_seq seq, bool is_host, enum kvt_policy_next next, uint32_t turn)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const struct kvt_policy_hint *hint = last_use(w, seq, i, is_host);
        assert_int_equal(hint->next, next);
        assert_int_equal(hint->turn, turn);
        assert_int_equal(hint->offset, i);
        assert_int_equal(hint->length, BLOCKS);
        assert_int_equal(hint->found, KVT_POLICY_UNKNOWN);
        assert_true(hint->now_ms > 0);
    }
}

static void host_memory_is_told_what_its_copies_wait_for(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, true);
    const kvt_seq seq = begin(&w, &text);
    assert_true(use_count > 0); /* they were written back already, when nothing was known */
    tell(&w, seq, KVT_NEXT_PERSON, 3);
    world_idle(&w, seq);
    check(&w, seq, true, KVT_POLICY_NEXT_PERSON, 3);
    world_flush(&w, 50, false);
    world_advance(&w, SECOND);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_settle(&w);
    assert_int_equal(last_use(&w, seq, 0, true)->now_ms, w.now_ns / 1000000 + 1); /* fetched from there: a use */
    world_step(&w, &text, seq, 0, true);
    tell(&w, seq, KVT_NEXT_TOOL, 4);
    world_idle(&w, seq);
    check(&w, seq, true, KVT_POLICY_NEXT_TOOL, 4);
    world_finish(&w, seq, true);
    world_close(&w);
}

static void a_copy_that_comes_down_late_brings_what_is_known_along(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, true);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, true); /* most of it is not written back before it is idle */
    kvt_seq seq;
    text_make(&text, 1, TOKENS);
    (void)world_create(&w, &text, TOKENS, false, &seq);
    world_step(&w, &text, seq, TOKENS, true);
    assert_true(use_count < BLOCKS);
    tell(&w, seq, KVT_NEXT_PERSON, 1);
    world_idle(&w, seq);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, false);
    world_flush(&w, 50, false);
    check(&w, seq, true, KVT_POLICY_NEXT_PERSON, 1);
    world_finish(&w, seq, true);
    world_close(&w);
}

static void the_device_is_told_of_each_block_what_is_known_of_it(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, false);
    const kvt_seq seq = begin(&w, &text);
    tell(&w, seq, KVT_NEXT_TOOL, 2);
    world_idle(&w, seq);
    world_flush(&w, 50, false); /* by sequences of which nothing was said */
    assert_int_equal(uses[use_count - 1].hint.next, KVT_POLICY_NEXT_UNKNOWN);
    assert_int_equal(uses[use_count - 1].hint.turn, KVT_POLICY_UNKNOWN);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_settle(&w);
    check(&w, seq, false, KVT_POLICY_NEXT_TOOL, 2);
    world_finish(&w, seq, true);
    world_close(&w);
}

static void an_entry_that_is_used_again_knows_nothing(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    open_world(&w, true);
    const kvt_seq seq = begin(&w, &text);
    tell(&w, seq, KVT_NEXT_NOBODY, 5);
    world_finish(&w, seq, false);
    world_settle(&w);
    const struct kvt_core *core = world_core(&w);
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        if (kvt_block_has_copies(kvt_core_block(core, b))) continue;
        assert_int_equal(core->hints[b].next, 0);
        assert_int_equal(core->hints[b].turn, 0);
    }
    world_close(&w);
}

static void policies_that_do_not_ask_cost_no_memory(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 24, 200);
    world_open(&w);
    assert_null(world_core(&w)->hints);
    world_close(&w);
}

/* Admission is asked ahead of need, and when the copy in host memory has to go: for one use that is one question. */
static void what_is_used_once_is_seen_once(void **state)
{
    (void)state;
    enum { TEXTS = 60 };
    struct world w;
    static struct text text;
    world_init(&w, 32, 0);
    world_add_disk(&w, 48, 16 * KVT_MIB);
    w.config.admission = "second-sight";
    world_open(&w);
    for (uint64_t seed = 1; seed <= TEXTS; seed++) {
        text_make(&text, seed, TOKENS);
        assert_int_equal(world_serve(&w, &text), 0);
        world_settle(&w);
    }
    assert_int_equal(world_stats(&w).tiers[KVT_TIER_NVME].bytes_in, 0);
    for (uint64_t seed = 1; seed <= TEXTS; seed++) {
        text_make(&text, seed, TOKENS);
        (void)world_serve(&w, &text);
        world_settle(&w);
    }
    assert_true(world_stats(&w).tiers[KVT_TIER_NVME].bytes_in > TEXTS / 2 * BLOCKS * BLOCK_BYTES);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_is_told_what_its_copies_wait_for),
        cmocka_unit_test(a_copy_that_comes_down_late_brings_what_is_known_along),
        cmocka_unit_test(the_device_is_told_of_each_block_what_is_known_of_it),
        cmocka_unit_test(an_entry_that_is_used_again_knows_nothing),
        cmocka_unit_test(policies_that_do_not_ask_cost_no_memory),
        cmocka_unit_test(what_is_used_once_is_seen_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
