/*
 * The orders between the device tier's streams and an engine's (design: compute-write -> stash, compute-read ->
 * fetch into the same slot, stash -> reuse of the slot, unfinished fetch -> stash). They hold with the marks of an
 * op; each has a control that leaves the mark out and sees wrong bytes.
 */
#include "tests/unit/device_fixture.h"

/* The env has threads on any device: nothing is turned by hand. */
static bool is_threaded = DEVICE_IS_CUDA;

/* A kernel of the engine's: writes a pattern to a slot, or compares the slot with one. */
struct kernel {
    struct kvt_gpu_job job;
    struct fixture *f;
    uint32_t slot;
    uint64_t seed;
    uint32_t number; /* kernels that are under way together differ in it */
    bool was_equal;  /* once it is finished */
};

/*
 * The engine: one compute stream, held up from hold to release. What is launched meanwhile runs at release, unless
 * something else holds it up still; finish waits for it.
 */
#ifdef KVT_TEST_CUDA

static void *compute; /* the cudaStream_t; NULL: one that the device makes */
static sem_t gate;

static cudaStream_t compute_handle(struct fixture *f)
{
    return compute ? (cudaStream_t)compute : (cudaStream_t)f->gpu->ops->engine_stream(f->gpu, 0);
}

static void CUDART_CB wait_at_gate(void *user) { (void)sem_wait(user); }

static void hold(struct fixture *f) { must(cudaLaunchHostFunc(compute_handle(f), wait_at_gate, &gate)); }
static void release(struct fixture *f)
{
    (void)f;
    (void)sem_post(&gate);
}

static void hold_copies(struct fixture *f, uint32_t stream)
{
    must(cudaLaunchHostFunc(device_stream_of(f->gpu, stream), wait_at_gate, &gate));
}
static void release_copies(struct fixture *f, uint32_t stream)
{
    (void)stream;
    release(f);
}

static void launch(struct kernel *k, bool is_write)
{
    struct fixture *f = k->f;
    uint8_t *bytes = kernel_memory + k->number * (size_t)KERNEL_BYTES;
    for (uint32_t s = 0; s < f->segment_count; s++) {
        uint8_t *host = bytes + s * f->segment_bytes, *device = segment_at(f, k->slot, s);
        for (uint64_t i = 0; i < f->segment_bytes && is_write; i++) host[i] = pattern(k->seed, s, i);
        must(cudaMemcpyAsync(is_write ? device : host, is_write ? host : device, f->segment_bytes, cudaMemcpyDefault,
                             compute_handle(f)));
    }
}

static void finish(struct kernel *k)
{
    const struct fixture *f = k->f;
    KVT_ASSERT(is_threaded);
    const uint8_t *bytes = kernel_memory + k->number * (size_t)KERNEL_BYTES;
    must(cudaStreamSynchronize(compute_handle(k->f)));
    k->was_equal = true;
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < f->segment_bytes; i++)
            if (bytes[s * f->segment_bytes + i] != pattern(k->seed, s, i)) k->was_equal = false;
    }
}

/* A chance for what should not happen: long for a device, nothing that a test that passes depends on. */
static void linger(void)
{
    for (uint32_t i = 0; i < 2000; i++) (void)sched_yield();
}

/* The kernels launched so far run, when nothing should keep them from it. */
static void run_kernels(struct fixture *f, bool is_free)
{
    if (is_free) must(cudaStreamSynchronize(compute_handle(f)));
    else linger();
}

static uint32_t compute_stream(struct fixture *f)
{
    uint32_t stream;
    assert_int_equal(f->gpu->ops->stream(f->gpu, compute_handle(f), &stream), KVT_OK);
    return stream;
}

#else

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

static uint32_t compute_stream(struct fixture *f)
{
    uint32_t stream;
    assert_int_equal(f->gpu->ops->stream(f->gpu, f->gpu->ops->engine_stream(f->gpu, 0), &stream), KVT_OK);
    return stream;
}

static void launch(struct kernel *k, bool is_write)
{
    k->job = (struct kvt_gpu_job){ .run = is_write ? run_write : run_read, .user = k };
    k->f->gpu->ops->submit(k->f->gpu, compute_stream(k->f), &k->job);
}

/* Runs what the stream has left, in the one thread there is: nothing runs before. */
static void release(struct fixture *f)
{
    while (kvt_gpu_emulated_run(f->gpu, compute_stream(f))) continue;
}

static void hold(struct fixture *f) { (void)f; }

static void hold_copies(struct fixture *f, uint32_t stream) { kvt_gpu_emulated_gate(f->gpu, stream, true); }
static void release_copies(struct fixture *f, uint32_t stream) { kvt_gpu_emulated_gate(f->gpu, stream, false); }

static void finish(struct kernel *k)
{
    if (is_threaded) k->f->gpu->ops->synchronize(k->f->gpu, k->f->gpu->ops->mark(k->f->gpu, compute_stream(k->f)));
    else release(k->f);
}

static void linger(void) {}

static void run_kernels(struct fixture *f, bool is_free)
{
    (void)is_free;
    release(f);
}

#endif

/* True when an op has come back; it is waited for when it is free to. */
static bool comes_back(struct fixture *f, bool is_free, struct kvt_tier_op **ret_done)
{
    if (is_free) {
        *ret_done = poll_one(f);
        return true;
    }
    linger();
    return kvt_tier_poll(f->tier, ret_done, 1) == 1;
}

static bool stash_after_write(bool has_mark)
{
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    const uint32_t stream = compute_stream(&f);
    struct kernel write = { .f = &f, .slot = 1, .seed = 2 };
    fill_slot(&f, 1, 1); /* what was there before */
    hold(&f);            /* the kernel is late */
    launch(&write, true);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    stash.after[1] = has_mark ? f.gpu->ops->mark(f.gpu, stream) : 0;
    submit(&f, &stash);
    struct kvt_tier_op *done;
    const bool was_early = comes_back(&f, !has_mark, &done);
    release(&f);
    if (!was_early) (void)poll_one(&f);
    finish(&write);
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
    const uint32_t stream = compute_stream(&f);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op stash = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    fill_slot(&f, 1, 3);
    struct kernel read = { .f = &f, .slot = 1, .seed = 3 };
    hold(&f);
    launch(&read, false);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    fetch.after[0] = has_mark ? f.gpu->ops->mark(f.gpu, stream) : 0;
    submit(&f, &fetch);
    struct kvt_tier_op *done;
    const bool was_early = comes_back(&f, !has_mark, &done);
    release(&f);
    if (!was_early) (void)poll_one(&f);
    finish(&read);
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
    const uint32_t stream = compute_stream(&f);
    fill_slot(&f, 1, 1);
    hold_copies(&f, KVT_DEVICE_STREAM_STASH); /* the stash is late */
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    submit(&f, &stash);
    if (has_mark) f.gpu->ops->wait(f.gpu, stream, stash.ret_mark);
    struct kernel write = { .f = &f, .slot = 1, .seed = 2 };
    launch(&write, true);
    run_kernels(&f, !has_mark);
    release_copies(&f, KVT_DEVICE_STREAM_STASH);
    (void)poll_one(&f);
    finish(&write);
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
    hold_copies(&f, KVT_DEVICE_STREAM_FETCH); /* the fetch is late */
    struct kvt_tier_op fetch = fetch_of(&first, 1);
    submit(&f, &fetch);
    struct kvt_tier_op second = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    second.host = f.host + HOST_BYTES;
    second.after[0] = has_mark ? fetch.ret_mark : 0;
    submit(&f, &second);
    struct kvt_tier_op *done;
    const bool was_early = comes_back(&f, !has_mark, &done);
    release_copies(&f, KVT_DEVICE_STREAM_FETCH);
    if (!was_early) (void)poll_one(&f);
    (void)poll_one(&f);
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
    const uint32_t stream = compute_stream(&f);
    fill_slot(&f, 2, 7);
    struct kvt_tier_op stash = stash_of(&f, 2, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    blank_slot(&f, 1);
    hold_copies(&f, KVT_DEVICE_STREAM_FETCH);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    submit(&f, &fetch);
    if (has_mark) f.gpu->ops->wait(f.gpu, stream, fetch.ret_mark);
    struct kernel read = { .f = &f, .slot = 1, .seed = 7 };
    launch(&read, false);
    run_kernels(&f, !has_mark);
    release_copies(&f, KVT_DEVICE_STREAM_FETCH);
    (void)poll_one(&f);
    finish(&read);
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
    is_threaded = true;
    open_tier(&f, kvt_env_default(), plain, false, false);
    const uint32_t stream = compute_stream(&f);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        struct kernel write = { .f = &f, .slot = 1, .seed = round };
        struct kernel spoil = { .f = &f, .slot = 1, .seed = 0, .number = 1 };
        struct kernel read = { .f = &f, .slot = 1, .seed = round, .number = 2 };
        launch(&write, true);
        struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
        stash.after[0] = f.gpu->ops->mark(f.gpu, stream);
        submit(&f, &stash);
        f.gpu->ops->wait(f.gpu, stream, stash.ret_mark);
        launch(&spoil, true);
        assert_ptr_equal(poll_one(&f), &stash);
        assert_true(raw_holds(&f, f.host, round, BLOCK_TOKENS));
        struct kvt_tier_op fetch = fetch_of(&stash, 1);
        fetch.after[0] = f.gpu->ops->mark(f.gpu, stream);
        submit(&f, &fetch);
        f.gpu->ops->wait(f.gpu, stream, fetch.ret_mark);
        launch(&read, false);
        finish(&read);
        assert_true(read.was_equal);
        assert_ptr_equal(poll_one(&f), &fetch);
    }
    close_tier(&f);
    is_threaded = DEVICE_IS_CUDA;
}

static int run_all(void)
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

int main(void)
{
    if (!device_begin()) return DEVICE_SKIPPED;
#ifdef KVT_TEST_CUDA
    (void)sem_init(&gate, 0, 0);
#endif
    int failed = run_all();
#ifdef KVT_TEST_CUDA
    /* The same on a default stream of either kind, and with pinned memory. */
    void *const streams[] = { NULL, cudaStreamLegacy, cudaStreamPerThread };
    for (uint32_t i = 0; i < 3; i++) {
        compute = streams[i];
        are_buffers_pinned = true;
        failed += run_all();
    }
#endif
    device_end();
    return failed;
}
