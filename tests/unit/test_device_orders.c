/*
 * The orders between the device tier's streams and an engine's (design: compute-write -> stash, compute-read ->
 * fetch into the same slot, stash -> reuse of the slot, unfinished fetch -> stash). They hold with the marks of an
 * op; each has a control that leaves the mark out and sees wrong bytes.
 */
#include "tests/unit/device_fixture.h"

/* A kernel of the engine's: writes a pattern to a slot, or compares the slot with one. */
struct kernel {
    struct kvt_gpu_job job;
    struct fixture *f;
    uint32_t slot;
    uint64_t seed;
    bool was_equal;
};

static void run_write(struct kvt_gpu_job *job)
{
    struct kernel *k = job->user;
    fill_slot(k->f, k->slot, k->seed);
}

static void run_read(struct kvt_gpu_job *job)
{
    struct kernel *k = job->user;
    k->was_equal = slot_holds(k->f, k->slot, k->seed, BLOCK_TOKENS);
}

static void launch(struct kernel *k, uint32_t stream, void (*run)(struct kvt_gpu_job *job))
{
    k->job = (struct kvt_gpu_job){ .run = run, .user = k };
    k->f->gpu->ops->submit(k->f->gpu, stream, &k->job);
}

static uint32_t compute_stream(struct fixture *f)
{
    uint32_t stream;
    assert_int_equal(f->gpu->ops->stream(f->gpu, f, &stream), KVT_OK);
    return stream;
}

/* Runs what the stream has left, in the one thread there is. */
static void crank(struct fixture *f, uint32_t stream)
{
    while (kvt_gpu_emulated_run(f->gpu, stream)) continue;
}

static bool stash_after_write(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    struct kernel write = { .f = &f, .slot = 1, .seed = 2 };
    fill_slot(&f, 1, 1); /* what was there before */
    launch(&write, compute, run_write);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    stash.after[1] = has_mark ? f.gpu->ops->mark(f.gpu, compute) : 0;
    submit(&f, &stash);
    struct kvt_tier_op *done;
    if (kvt_tier_poll(f.tier, &done, 1) == 0) {
        crank(&f, compute); /* the kernel is late */
        (void)poll_one(&f);
    } else {
        crank(&f, compute);
    }
    const bool is_exact = raw_holds(&f, f.host, 2, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b01_a_stash_sees_what_the_kernel_before_it_writes(void **state)
{
    (void)state;
    assert_true(stash_after_write(true));
    assert_false(stash_after_write(false)); /* the control: without the mark the old bytes are stashed */
}

static bool fetch_after_read(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op stash = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    fill_slot(&f, 1, 3);
    struct kernel read = { .f = &f, .slot = 1, .seed = 3 };
    launch(&read, compute, run_read);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    fetch.after[0] = has_mark ? f.gpu->ops->mark(f.gpu, compute) : 0;
    submit(&f, &fetch);
    struct kvt_tier_op *done;
    const bool was_early = kvt_tier_poll(f.tier, &done, 1) == 1;
    crank(&f, compute);
    if (!was_early) (void)poll_one(&f);
    assert_true(slot_holds(&f, 1, 7, BLOCK_TOKENS));
    close_tier(&f);
    return read.was_equal;
}

static void b02_a_fetch_does_not_overwrite_what_a_kernel_still_reads(void **state)
{
    (void)state;
    assert_true(fetch_after_read(true));
    assert_false(fetch_after_read(false)); /* the control: without the mark the kernel reads the fetched bytes */
}

static bool reuse_after_stash(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    fill_slot(&f, 1, 1);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    submit(&f, &stash);
    if (has_mark) f.gpu->ops->wait(f.gpu, compute, stash.ret_mark);
    struct kernel write = { .f = &f, .slot = 1, .seed = 2 };
    launch(&write, compute, run_write);
    crank(&f, compute); /* the stash is late */
    (void)poll_one(&f);
    crank(&f, compute);
    assert_true(slot_holds(&f, 1, 2, BLOCK_TOKENS));
    const bool is_exact = raw_holds(&f, f.host, 1, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b03_a_slot_is_not_written_again_before_its_stash_has_read_it(void **state)
{
    (void)state;
    assert_true(reuse_after_stash(true));
    assert_false(reuse_after_stash(false));
}

static bool stash_after_fetch(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op first = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &first);
    fill_slot(&f, 1, 1);
    kvt_gpu_emulated_gate(f.gpu, KVT_DEVICE_STREAM_FETCH, true); /* the fetch is late */
    struct kvt_tier_op fetch = fetch_of(&first, 1);
    submit(&f, &fetch);
    struct kvt_tier_op second = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    second.host = f.host + HOST_BYTES;
    second.after[0] = has_mark ? fetch.ret_mark : 0;
    submit(&f, &second);
    struct kvt_tier_op *done[2];
    uint32_t count = kvt_tier_poll(f.tier, done, 2);
    kvt_gpu_emulated_gate(f.gpu, KVT_DEVICE_STREAM_FETCH, false);
    while (count < 2) count += kvt_tier_poll(f.tier, done, 2 - count);
    const bool is_exact = raw_holds(&f, second.host, 7, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b04_a_stash_of_a_slot_waits_for_the_fetch_that_fills_it(void **state)
{
    (void)state;
    assert_true(stash_after_fetch(true));
    assert_false(stash_after_fetch(false));
}

static bool read_after_fetch(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op stash = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    blank_slot(&f, 1);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    submit(&f, &fetch);
    if (has_mark) f.gpu->ops->wait(f.gpu, compute, fetch.ret_mark);
    struct kernel read = { .f = &f, .slot = 1, .seed = 7 };
    launch(&read, compute, run_read);
    crank(&f, compute);
    (void)poll_one(&f);
    crank(&f, compute);
    close_tier(&f);
    return read.was_equal;
}

static void a_kernel_behind_the_mark_of_a_fetch_reads_its_bytes(void **state)
{
    (void)state;
    assert_true(read_after_fetch(true));
    assert_false(read_after_fetch(false));
}

static void threads_keep_the_four_orders_over_many_rounds(void **state)
{
    (void)state;
    enum { ROUNDS = 300 };
    struct fixture f;
    open_tier(&f, kvt_env_default(), plain, false, false);
    const uint32_t compute = compute_stream(&f);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        struct kernel write = { .f = &f, .slot = 1, .seed = round }, read = { .f = &f, .slot = 1, .seed = round };
        struct kernel spoil = { .f = &f, .slot = 1, .seed = 0 };
        launch(&write, compute, run_write);
        struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
        stash.after[0] = f.gpu->ops->mark(f.gpu, compute);
        submit(&f, &stash);
        f.gpu->ops->wait(f.gpu, compute, stash.ret_mark);
        launch(&spoil, compute, run_write);
        assert_ptr_equal(poll_one(&f), &stash);
        assert_true(raw_holds(&f, f.host, round, BLOCK_TOKENS));
        struct kvt_tier_op fetch = fetch_of(&stash, 1);
        fetch.after[0] = f.gpu->ops->mark(f.gpu, compute);
        submit(&f, &fetch);
        f.gpu->ops->wait(f.gpu, compute, fetch.ret_mark);
        launch(&read, compute, run_read);
        f.gpu->ops->synchronize(f.gpu, f.gpu->ops->mark(f.gpu, compute));
        assert_true(read.was_equal);
        assert_ptr_equal(poll_one(&f), &fetch);
    }
    close_tier(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b01_a_stash_sees_what_the_kernel_before_it_writes),
        cmocka_unit_test(b02_a_fetch_does_not_overwrite_what_a_kernel_still_reads),
        cmocka_unit_test(b03_a_slot_is_not_written_again_before_its_stash_has_read_it),
        cmocka_unit_test(b04_a_stash_of_a_slot_waits_for_the_fetch_that_fills_it),
        cmocka_unit_test(a_kernel_behind_the_mark_of_a_fetch_reads_its_bytes),
        cmocka_unit_test(threads_keep_the_four_orders_over_many_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
