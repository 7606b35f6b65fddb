/*
 * The four orders of design invariant 6, through the whole runtime. Each test holds, and falls when the wait that it is
 * about is taken out: the same file is built again with one of them missing (runtime/base/plant.h), and must fail then.
 */
#include "tests/runtime/world.h"

/* Compute-write -> stash: the kernel that writes a block is late, and its stash must not read before it. */
static void a_stash_waits_for_the_kernel_that_writes_the_block(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    world_init(&w, 4, 16);
    world_open(&w);
    text_make(&text, 1, 2 * BLOCK_TOKENS);
    kvt_seq seq;
    (void)world_create(&w, &text, text.count, false, &seq);
    world_step(&w, &text, seq, text.count, false);
    world_finish(&w, seq, true);
    world_pump(&w, 20); /* the blocks are sealed: their write-back begins, while the kernels have not run */
    const uint64_t stashes_before = world_stats(&w).stashes;
    world_settle(&w);
    assert_int_equal(world_stats(&w).stashes, 2);
    world_flush(&w, 2, false); /* what is read now was stashed */
    assert_int_equal(world_read(&w, &text), text.count);
    assert_int_equal(w.rows_wrong, 0);
    assert_true(world_stats(&w).fetches >= 2);
    assert_int_equal(stashes_before, 0);
    world_close(&w);
}

/* Compute-read -> fetch into the same slot: a slot is given on while a kernel still reads it. */
static void a_fetch_waits_for_the_kernel_that_still_reads_the_slot(void **state)
{
    (void)state;
    struct world w;
    struct text first, second;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, 2, 16);
    world_open(&w);
    text_make(&first, 1, 2 * BLOCK_TOKENS);
    text_make(&second, 2, 2 * BLOCK_TOKENS);
    (void)world_serve(&w, &second);
    world_settle(&w);
    (void)world_serve(&w, &first); /* takes the device: the second text is in host memory alone */
    world_settle(&w);

    assert_int_equal(world_create(&w, &first, first.count, false, &seq), first.count);
    world_step(&w, &first, seq, 0, false); /* its kernels read, late */
    world_finish(&w, seq, true);
    assert_int_equal(world_create(&w, &second, second.count, false, &seq), second.count);
    world_pump(&w, 20); /* into the same two slots, of a device that has no others */
    const uint64_t fetches_before = world_stats(&w).fetches;
    world_crank(&w, 0);
    assert_int_equal(w.rows_wrong, 0);
    assert_int_equal(fetches_before, 0);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_READY);
    world_check(&w, &second, seq, second.count, 0);
    world_end(&w, step);
    world_crank(&w, 0);
    world_finish(&w, seq, true);
    world_close(&w);
}

/*
 * Who lets go of a block last need not be who used it last: what was used last is what a fetch into its slot waits for.
 */
static void an_older_use_that_ends_later_does_not_hide_a_newer_one(void **state)
{
    (void)state;
    struct world w;
    struct text first, second;
    kvt_seq early, late, seq;
    world_init(&w, 2, 16);
    world_open(&w);
    text_make(&first, 1, 2 * BLOCK_TOKENS);
    text_make(&second, 2, 2 * BLOCK_TOKENS);
    (void)world_serve(&w, &second);
    world_settle(&w);
    (void)world_serve(&w, &first);
    world_settle(&w);
    (void)world_create(&w, &first, first.count, false, &early);
    (void)world_create(&w, &first, first.count, false, &late);
    world_step(&w, &first, early, 0, true);
    world_step(&w, &first, late, 0, false); /* its kernels read, late */
    world_finish(&w, late, true);
    world_finish(&w, early, true);
    (void)world_create(&w, &second, second.count, false, &seq);
    world_pump(&w, 20);
    world_crank(&w, 0);
    assert_int_equal(w.rows_wrong, 0);
    world_step(&w, &second, seq, 0, true);
    world_finish(&w, seq, true);
    world_close(&w);
}

/* Stash -> reuse of the slot: a slot whose stash is late is nobody else's before it has been read. */
static void a_slot_is_reused_only_when_its_stash_is_done(void **state)
{
    (void)state;
    struct world w;
    struct text first, second;
    kvt_seq seq;
    world_init(&w, 2, 16);
    world_open(&w);
    text_make(&first, 1, 2 * BLOCK_TOKENS);
    text_make(&second, 2, 2 * BLOCK_TOKENS);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, true);
    (void)world_serve(&w, &first);
    (void)world_create(&w, &second, second.count, false, &seq);
    const enum kvt_room room = world_reserve(&w, seq, second.count);
    /* writes over what is still to be read */
    if (room == KVT_ROOM_OK) world_step(&w, &second, seq, second.count, true);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, false);
    world_settle(&w);
    if (room != KVT_ROOM_OK) world_step(&w, &second, seq, second.count, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    assert_int_equal(world_read(&w, &first), first.count);
    assert_int_equal(w.rows_wrong, 0);
    assert_int_equal(room, KVT_ROOM_PENDING);
    world_close(&w);
}

/* Unfinished fetch -> stash: a copy that is still being filled is the source of nothing. */
static void a_block_is_not_stashed_before_what_fills_it_has_landed(void **state)
{
    (void)state;
    struct world w;
    struct text text, other;
    kvt_seq parent, child, third;
    enum { TOKENS = BLOCK_TOKENS + 8 };
    world_init(&w, 4, 16);
    world_open(&w);
    text_make(&text, 1, 3 * BLOCK_TOKENS);
    text_make(&other, 2, 2 * BLOCK_TOKENS);
    (void)world_create(&w, &text, text.count, false, &parent);
    world_step(&w, &text, parent, TOKENS, true);
    world_settle(&w);
    assert_int_equal(kvt_seq_fork(w.runtime, parent, &child), KVT_OK);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_reserve(&w, child, 1), KVT_ROOM_OK); /* the tail becomes a copy of its own, late */
    world_pump(&w, 5);
    world_idle(&w, child);
    (void)world_create(&w, &other, other.count, false, &third);
    /* takes what is idle: the child's copy, were it there */
    const enum kvt_room room = world_reserve(&w, third, other.count);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_step(&w, &other, third, other.count, true);
    world_finish(&w, third, false);
    world_finish(&w, parent, true);
    assert_int_equal(world_resume(&w, child), KVT_ROOM_OK);
    world_step(&w, &text, child, 2, true);
    assert_int_equal(w.rows_wrong, 0);
    assert_int_equal(room, KVT_ROOM_PENDING);
    world_finish(&w, child, true);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stash_waits_for_the_kernel_that_writes_the_block),
        cmocka_unit_test(a_fetch_waits_for_the_kernel_that_still_reads_the_slot),
        cmocka_unit_test(an_older_use_that_ends_later_does_not_hide_a_newer_one),
        cmocka_unit_test(a_slot_is_reused_only_when_its_stash_is_done),
        cmocka_unit_test(a_block_is_not_stashed_before_what_fills_it_has_landed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
