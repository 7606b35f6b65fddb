/* Blocks: every (state, event) pair of a copy in every tier, what an edge asks for, and the table of entries. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/block.h"
#include "tests/unit/assert_fails.h"

struct edge_case {
    struct kvt_block block;
    uint32_t tier;
    enum kvt_copy_event event;
};

/* A block whose copy in the tier is in this state, all other facts in agreement. */
static struct kvt_block block_in(uint32_t tier, enum kvt_copy_state state)
{
    struct kvt_block block = { .device_slot = KVT_NO_SLOT, .host_slot = KVT_NO_SLOT, .origin = KVT_NO_BLOCK };
    block.state_bits = (uint8_t)((unsigned)state << (2 * tier));
    if (state != KVT_COPY_EMPTY && tier == KVT_TIER_DEVICE) block.device_slot = 3;
    if (state != KVT_COPY_EMPTY && tier == KVT_TIER_HOST) block.host_slot = 4;
    return block;
}

/* The caller of an edge sets or clears the slot before it. */
static void prepare_slot(struct edge_case *edge, enum kvt_copy_state to)
{
    if (edge->tier == KVT_TIER_DEVICE) edge->block.device_slot = to == KVT_COPY_EMPTY ? KVT_NO_SLOT : 3;
    if (edge->tier == KVT_TIER_HOST) edge->block.host_slot = to == KVT_COPY_EMPTY ? KVT_NO_SLOT : 4;
}

static void step(void *user)
{
    struct edge_case *edge = user;
    kvt_copy_step(&edge->block, edge->tier, edge->event);
}

static void legal_events_move_a_copy_and_illegal_ones_assert(void **state)
{
    (void)state;
    uint32_t legal = 0;
    for (uint32_t tier = 0; tier < KVT_TIERS; tier++) {
        for (uint32_t from = 0; from < KVT_COPY_STATES; from++) {
            for (uint32_t event = 0; event < KVT_COPY_EVENTS; event++) {
                enum kvt_copy_state wanted = KVT_COPY_STATES, to = KVT_COPY_STATES;
                kvt_copy_edge((enum kvt_copy_event)event, &wanted, &to);
                struct edge_case edge = { block_in(tier, (enum kvt_copy_state)from), tier, (enum kvt_copy_event)event };
                prepare_slot(&edge, to);
                const bool is_legal = wanted == (enum kvt_copy_state)from;
                assert_int_equal(asserts(step, &edge), !is_legal);
                assert_int_equal(kvt_copy_state(&edge.block, tier), is_legal ? to : (enum kvt_copy_state)from);
                for (uint32_t other = 0; other < KVT_TIERS; other++)
                    assert_true(other == tier || kvt_copy_state(&edge.block, other) == KVT_COPY_EMPTY);
                legal += is_legal;
            }
        }
    }
    assert_int_equal(legal, KVT_TIERS * KVT_COPY_EVENTS);
}

static void a_copy_that_is_read_or_claimed_does_not_leave(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier < KVT_TIERS; tier++) {
        struct edge_case edge = { block_in(tier, KVT_COPY_RESIDENT), tier, KVT_COPY_EVICT };
        prepare_slot(&edge, KVT_COPY_EMPTY);
        edge.block.readers[tier] = 1;
        assert_true(asserts(step, &edge));
        edge.block.readers[tier] = 0;
        edge.block.users = 1; /* claims the device alone */
        assert_int_equal(asserts(step, &edge), tier == KVT_TIER_DEVICE);
    }
}

static void a_copy_without_its_slot_is_not_valid(void **state)
{
    (void)state;
    for (uint32_t tier = 0; tier <= KVT_TIER_HOST; tier++) {
        for (uint32_t s = 0; s < KVT_COPY_STATES; s++) {
            struct edge_case edge = { block_in(tier, (enum kvt_copy_state)s), tier, KVT_COPY_RESERVE };
            assert_true(kvt_copy_is_valid(&edge.block, tier));
            prepare_slot(&edge, s == KVT_COPY_EMPTY ? KVT_COPY_RESIDENT : KVT_COPY_EMPTY);
            assert_false(kvt_copy_is_valid(&edge.block, tier));
        }
    }
    struct kvt_block filling = block_in(KVT_TIER_DEVICE, KVT_COPY_FILLING);
    filling.readers[KVT_TIER_DEVICE] = 1; /* invariant 2: nobody reads what is being filled */
    assert_false(kvt_copy_is_valid(&filling, KVT_TIER_DEVICE));
    assert_false(kvt_copy_is_valid(&(struct kvt_block){ .state_bits = 3, .device_slot = 1 }, KVT_TIER_DEVICE));
}

static void states_and_events_have_names(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < KVT_COPY_STATES; s++)
        assert_string_not_equal(kvt_copy_state_name((enum kvt_copy_state)s), "?");
    for (uint32_t e = 0; e < KVT_COPY_EVENTS; e++)
        assert_string_not_equal(kvt_copy_event_name((enum kvt_copy_event)e), "?");
    assert_string_equal(kvt_copy_state_name(KVT_COPY_STATES), "?");
}

static void entries_are_handed_out_once_and_again_under_a_new_generation(void **state)
{
    (void)state;
    enum { CAPACITY = 5 };
    struct kvt_block_table table;
    uint32_t taken[CAPACITY];
    assert_int_equal(kvt_block_table_init(&table, CAPACITY), KVT_OK);
    for (uint32_t i = 0; i < CAPACITY; i++) {
        taken[i] = kvt_block_table_take(&table, i % 3);
        assert_true(taken[i] < CAPACITY);
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(taken[i], taken[j]);
        assert_int_equal(table.blocks[taken[i]].group, i % 3);
        assert_int_equal(table.blocks[taken[i]].device_slot, KVT_NO_SLOT);
    }
    assert_int_equal(kvt_block_table_take(&table, 0), KVT_NO_BLOCK);
    const uint32_t generation = table.blocks[taken[2]].generation;
    kvt_block_table_give(&table, taken[2]);
    assert_int_equal(table.count, CAPACITY - 1);
    assert_int_equal(kvt_block_table_take(&table, 1), taken[2]);
    assert_true(table.blocks[taken[2]].generation > generation);
    assert_int_equal(table.high_water, CAPACITY);
    kvt_block_table_done(&table);
}

struct give_case {
    struct kvt_block_table *table;
    uint32_t index;
};

static void give(void *user)
{
    const struct give_case *given = user;
    kvt_block_table_give(given->table, given->index);
}

static void an_entry_in_use_is_not_given_back(void **state)
{
    (void)state;
    struct kvt_block_table table;
    assert_int_equal(kvt_block_table_init(&table, 2), KVT_OK);
    const uint32_t index = kvt_block_table_take(&table, 0);
    struct kvt_block *block = &table.blocks[index];
    const struct kvt_block clean = *block;
    struct give_case given = { &table, index };
    block->refs = 1;
    assert_true(asserts(give, &given));
    *block = clean;
    block->users = 1;
    assert_true(asserts(give, &given));
    *block = clean;
    block->readers[KVT_TIER_NVME] = 1;
    assert_true(asserts(give, &given));
    *block = block_in(KVT_TIER_HOST, KVT_COPY_RESIDENT);
    assert_true(asserts(give, &given));
    *block = clean;
    block->origin = 1;
    assert_true(asserts(give, &given));
    *block = clean;
    kvt_block_set(block, KVT_BLOCK_INDEXED, true);
    assert_true(asserts(give, &given));
    *block = clean;
    assert_false(asserts(give, &given));
    kvt_block_table_done(&table);
}

/* Goal: the window group's block of a place is not taken for the full group's, which has the same key. */
static void admission_tells_the_blocks_of_two_groups_apart(void **state)
{
    (void)state;
    const struct kvt_block full = { .key = { .lo = 5, .hi = 6 }, .group = 0 };
    const struct kvt_block window = { .key = { .lo = 5, .hi = 6 }, .group = 1 };
    assert_int_not_equal(kvt_block_key_hash(&full), kvt_block_key_hash(&window));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_events_move_a_copy_and_illegal_ones_assert),
        cmocka_unit_test(a_copy_that_is_read_or_claimed_does_not_leave),
        cmocka_unit_test(a_copy_without_its_slot_is_not_valid),
        cmocka_unit_test(states_and_events_have_names),
        cmocka_unit_test(entries_are_handed_out_once_and_again_under_a_new_generation),
        cmocka_unit_test(an_entry_in_use_is_not_given_back),
        cmocka_unit_test(admission_tells_the_blocks_of_two_groups_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
