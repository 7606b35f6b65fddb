/* The set of transfers: each in flight once, in the order of its deadline, and the queues for a place in a tier. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/base/rng.h"
#include "runtime/transfer.h"
#include "tests/unit/assert_fails.h"

enum { CAPACITY = 9 };

static struct kvt_transfers transfers;

static int open_transfers(void **state)
{
    (void)state;
    return kvt_transfers_init(&transfers, CAPACITY) == KVT_OK ? 0 : -1;
}

static int close_transfers(void **state)
{
    (void)state;
    kvt_transfers_done(&transfers);
    return 0;
}

static void there_are_only_so_many_transfers(void **state)
{
    (void)state;
    struct kvt_transfer *all[CAPACITY];
    for (uint32_t i = 0; i < CAPACITY; i++) {
        all[i] = kvt_transfers_begin(&transfers, i);
        assert_non_null(all[i]);
        assert_int_equal(all[i]->source, KVT_NO_BLOCK);
        assert_int_equal(all[i]->device_slot, KVT_NO_SLOT);
        for (uint32_t j = 0; j < i; j++) assert_ptr_not_equal(all[i], all[j]);
    }
    assert_null(kvt_transfers_begin(&transfers, CAPACITY));
    assert_int_equal(transfers.in_flight, CAPACITY);
    for (uint32_t i = 0; i < CAPACITY; i++) kvt_transfers_end(&transfers, all[i]);
    assert_int_equal(transfers.in_flight, 0);
    assert_int_equal(transfers.oldest, KVT_NO_TRANSFER);
}

/* Against a plain list of what is in flight, in the order in which it began. */
static void the_oldest_one_is_found_whatever_ends_before_it(void **state)
{
    (void)state;
    struct kvt_transfer *list[CAPACITY], *abandoned[CAPACITY];
    uint32_t count = 0, abandoned_count = 0;
    struct kvt_rng rng = { 3 };
    for (uint64_t n = 0; n < 5000; n++) {
        const uint64_t draw = kvt_rng_below(&rng, 10);
        if (draw < 5 && count + abandoned_count < CAPACITY) {
            list[count++] = kvt_transfers_begin(&transfers, n);
        } else if (draw < 8 && count > 0) {
            const uint32_t i = (uint32_t)kvt_rng_below(&rng, count);
            if (draw == 7) {
                kvt_transfers_abandon(&transfers, list[i]);
                abandoned[abandoned_count++] = list[i];
            } else {
                kvt_transfers_end(&transfers, list[i]);
            }
            for (uint32_t j = i; j + 1 < count; j++) list[j] = list[j + 1];
            count--;
        } else if (abandoned_count > 0) {
            kvt_transfers_end(&transfers, abandoned[--abandoned_count]);
        }
        assert_int_equal(transfers.in_flight, count + abandoned_count);
        assert_int_equal(transfers.abandoned, abandoned_count);
        assert_int_equal(transfers.oldest, count ? kvt_transfer_index(&transfers, list[0]) : KVT_NO_TRANSFER);
        assert_int_equal(transfers.newest, count ? kvt_transfer_index(&transfers, list[count - 1]) : KVT_NO_TRANSFER);
        uint32_t at = transfers.oldest;
        for (uint32_t i = 0; i < count; i++, at = transfers.items[at].next)
            assert_ptr_equal(&transfers.items[at], list[i]);
    }
    while (count > 0) kvt_transfers_end(&transfers, list[--count]);
    while (abandoned_count > 0) kvt_transfers_end(&transfers, abandoned[--abandoned_count]);
}

static void what_waits_goes_by_priority_and_then_in_order(void **state)
{
    (void)state;
    static const enum kvt_op_priority priorities[] = { KVT_PRIORITY_WRITE_BACK, KVT_PRIORITY_DEMAND,
                                                       KVT_PRIORITY_PREFETCH,   KVT_PRIORITY_DEMAND,
                                                       KVT_PRIORITY_WRITE_BACK, KVT_PRIORITY_PREFETCH };
    static const uint32_t order[] = { 1, 3, 2, 5, 0, 4 };
    struct kvt_transfer *all[6];
    for (uint32_t i = 0; i < 6; i++) {
        all[i] = kvt_transfers_begin(&transfers, i);
        all[i]->op.priority = priorities[i];
        kvt_transfers_wait(&transfers, KVT_TIER_NVME, all[i]);
    }
    assert_int_equal(transfers.waiting_count[KVT_TIER_NVME], 6);
    assert_null(kvt_transfers_next_waiting(&transfers, KVT_TIER_DEVICE));
    for (uint32_t i = 0; i < 6; i++) {
        assert_ptr_equal(kvt_transfers_next_waiting(&transfers, KVT_TIER_NVME), all[order[i]]);
        kvt_transfers_pop_waiting(&transfers, KVT_TIER_NVME);
    }
    assert_null(kvt_transfers_next_waiting(&transfers, KVT_TIER_NVME));
    assert_int_equal(transfers.waiting_count[KVT_TIER_NVME], 0);
    for (uint32_t i = 0; i < 6; i++) kvt_transfers_end(&transfers, all[i]);
}

static void end(void *user) { kvt_transfers_end(&transfers, user); }
static void abandon(void *user) { kvt_transfers_abandon(&transfers, user); }

static void a_transfer_does_not_end_while_its_tier_owns_the_op(void **state)
{
    (void)state;
    struct kvt_transfer *transfer = kvt_transfers_begin(&transfers, 1);
    transfer->op.is_in_flight = true;
    assert_true(asserts(end, transfer));
    kvt_transfers_abandon(&transfers, transfer);
    assert_true(asserts(abandon, transfer));
    assert_true(asserts(end, transfer)); /* not even past its deadline: the memory is still the tier's */
    transfer->op.is_in_flight = false;
    assert_false(asserts(end, transfer));
}

static void legs_run_on_their_tier(void **state)
{
    (void)state;
    assert_int_equal(kvt_leg_tier(KVT_LEG_DEVICE_TO_HOST), KVT_TIER_DEVICE);
    assert_int_equal(kvt_leg_tier(KVT_LEG_HOST_TO_DEVICE), KVT_TIER_DEVICE);
    assert_int_equal(kvt_leg_tier(KVT_LEG_DEVICE_TO_DEVICE), KVT_TIER_DEVICE);
    assert_int_equal(kvt_leg_tier(KVT_LEG_HOST_TO_NVME), KVT_TIER_NVME);
    assert_int_equal(kvt_leg_tier(KVT_LEG_NVME_TO_HOST), KVT_TIER_NVME);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(there_are_only_so_many_transfers, open_transfers, close_transfers),
        cmocka_unit_test_setup_teardown(the_oldest_one_is_found_whatever_ends_before_it, open_transfers,
                                        close_transfers),
        cmocka_unit_test_setup_teardown(what_waits_goes_by_priority_and_then_in_order, open_transfers, close_transfers),
        cmocka_unit_test_setup_teardown(a_transfer_does_not_end_while_its_tier_owns_the_op, open_transfers,
                                        close_transfers),
        cmocka_unit_test(legs_run_on_their_tier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
