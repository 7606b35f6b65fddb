/*
 * gpu_cuda, over a fake CUDA runtime: what goes wrong in CUDA ends in a failed job and never in other bytes; default
 * streams, tables, marks beyond the ring; a device that is lost or hangs. The four orders are in
 * test_device_orders.c.
 */
#include "tests/unit/device_fixture.h"

#include <pthread.h>
#include <stdlib.h>

#include "tests/fakes/cudart_fake.h"

/* ---- Around each test ------------------------------------------------------------------------ */

static int set_up(void **state)
{
    (void)state;
    cudart_fake_begin();
    are_buffers_pinned = true;
    return device_begin() ? 0 : -1;
}

static uint32_t left_sum(void)
{
    const struct cudart_fake_left left = cudart_fake_left();
    return left.streams + left.events + left.device_allocations + left.host_allocations + left.registrations;
}

static int tear_down(void **state)
{
    (void)state;
    device_end();
    const struct cudart_fake_left left = cudart_fake_end();
    if (left.streams + left.events + left.device_allocations + left.host_allocations + left.registrations == 0)
        return 0;
    print_error("left: %u streams, %u events, %u + %u allocations, %u registrations\n", left.streams, left.events,
                left.device_allocations, left.host_allocations, left.registrations);
    return -1;
}

/* After a lost device CUDA takes nothing back. */
static int tear_down_lost(void **state)
{
    (void)state;
    (void)cudart_fake_end();
    return 0;
}

static void open_plain(struct fixture *f, bool is_engine, bool has_codec)
{
    open_tier(f, kvt_env_default(), plain, is_engine, has_codec);
}

static cudaStream_t own_stream(const struct fixture *f, uint32_t stream) { return device_stream_of(f->gpu, stream); }

static void gate(const struct fixture *f, uint32_t stream, bool is_closed)
{
    cudart_fake_gate(own_stream(f, stream), is_closed);
}

static uint32_t number_of(const struct fixture *f, void *engine_stream)
{
    uint32_t stream;
    assert_int_equal(f->gpu->ops->stream(f->gpu, engine_stream, &stream), KVT_OK);
    return stream;
}

static kvt_mark mark_of(const struct fixture *f, uint32_t stream) { return f->gpu->ops->mark(f->gpu, stream); }
static bool is_reached(const struct fixture *f, kvt_mark mark) { return f->gpu->ops->is_reached(f->gpu, mark); }

/* ---- There is none --------------------------------------------------------------------------- */

static void without_a_driver_there_is_no_device_and_no_noise(void **state)
{
    (void)state;
    cudart_fake_hide(true);
    assert_false(kvt_gpu_cuda_ops.is_present());
    assert_ptr_equal(kvt_gpu_default_ops(), &kvt_gpu_emulated_ops);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    cudart_fake_hide(false);
    assert_ptr_equal(kvt_gpu_default_ops(), &kvt_gpu_cuda_ops);
}

static void open_that_fails_at_any_call_leaves_nothing(void **state)
{
    (void)state;
    static const char *const calls[] = { "cudaEventCreateWithFlags", "cudaDeviceGetAttribute",
                                         "cudaStreamCreateWithFlags", "cudaMalloc", "cudaSetDevice" };
    uint32_t refused = 0;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(calls); i++) {
        for (uint32_t n = 1; n <= 3; n++) {
            struct fixture f;
            prepare(&f, plain, false);
            const struct kvt_device_tier_config config = config_of(&f, true);
            const struct kvt_env env = kvt_env_default();
            cudart_fake_fail(calls[i], n, cudaErrorMemoryAllocation, false);
            const enum kvt_status status = kvt_device_tier_open(&config, &env, &f.tier);
            cudart_fake_fail(calls[i], 1, cudaSuccess, false);
            assert_true(status == KVT_OK || status == KVT_IO || status == KVT_NOMEM);
            refused += status != KVT_OK;
            kvt_tier_close(&f.tier);
            kvt_table_unmap(f.host, 2 * HOST_BYTES);
            assert_int_equal(cudaGetLastError(), cudaSuccess);
        }
    }
    assert_true(refused >= 5);
}

/* ---- Default streams ------------------------------------------------------------------------- */

static void b60_a_batch_is_never_put_on_a_default_stream(void **state)
{
    (void)state;
    struct fixture f;
    void *const defaults[] = { KVT_GPU_STREAM_DEFAULT, cudaStreamPerThread };
    are_buffers_pinned = false; /* by copies, not by a kernel */
    open_plain(&f, true, false);
    f.gpu->ops->describe(f.gpu, (char[8]){ 0 }, 8);
    for (uint32_t i = 0; i < 2; i++) {
        fill_slot(&f, 2, 5 + i);
        blank_slot(&f, 0);
        ((struct kvt_cuda *)f.gpu)->streams[number_of(&f, defaults[i])].has_kernel_tables = false;
        struct kvt_tier_op copy = {
            .kind = KVT_OP_COPY, .source_slot = 2, .slot = 0, .tokens = 9, .stream = number_of(&f, defaults[i])
        };
        run_op(&f, &copy);
        assert_int_equal(copy.status, KVT_OK);
        assert_true(slot_holds(&f, 0, 5 + i, 9));
    }
    assert_int_equal(cudart_fake_calls("cudaMemcpyBatchAsync"), 0);
    struct kvt_tier_op stash = stash_of(&f, 2, 9, KVT_FORM_RAW);
    run_op(&f, &stash); /* on the tier's own stream it is one */
    assert_int_equal(cudart_fake_calls("cudaMemcpyBatchAsync"), 1);
    assert_int_equal(cudart_fake_calls("cudaLaunchHostFunc"), 0);
    close_tier(&f);
}

struct locked {
    struct kvt_gpu_job job;
    pthread_mutex_t *lock;
    atomic_bool is_done;
};

static void take_lock(struct kvt_gpu_job *job)
{
    struct locked *locked = job->user;
    (void)pthread_mutex_lock(locked->lock);
    (void)pthread_mutex_unlock(locked->lock);
    atomic_store(&locked->is_done, true);
}

static void b60_done_may_take_a_lock_whose_holder_pins_and_unpins(void **state)
{
    (void)state;
    struct fixture f;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    open_plain(&f, false, false);
    uint8_t *memory = kvt_table_map(HOST_BYTES);
    struct locked locked = { .job = { .done = take_lock, .user = &locked }, .lock = &lock };
    (void)pthread_mutex_lock(&lock);
    f.gpu->ops->submit(f.gpu, KVT_DEVICE_STREAM_STASH, &locked.job);
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(f.gpu->ops->host_pin(f.gpu, memory, HOST_BYTES));
        f.gpu->ops->host_unpin(f.gpu, memory, HOST_BYTES);
        (void)is_reached(&f, mark_of(&f, KVT_DEVICE_STREAM_STASH));
    }
    assert_false(atomic_load(&locked.is_done));
    (void)pthread_mutex_unlock(&lock);
    f.gpu->ops->synchronize(f.gpu, mark_of(&f, KVT_DEVICE_STREAM_STASH));
    assert_true(atomic_load(&locked.is_done));
    kvt_table_unmap(memory, HOST_BYTES);
    close_tier(&f);
}

struct copier {
    struct fixture *f;
    struct kvt_tier_op *op;
};

static void *run_copy(void *user)
{
    struct copier *copier = user;
    submit(copier->f, copier->op);
    return NULL;
}

/* A kernel that writes a slot. */
struct writer {
    struct fixture *f;
    uint32_t slot;
    uint64_t seed;
};

static void write_slot(void *user)
{
    const struct writer *w = user;
    for (uint32_t s = 0; s < w->f->segment_count; s++) {
        for (uint64_t i = 0; i < w->f->segment_bytes; i++) segment_at(w->f, w->slot, s)[i] = pattern(w->seed, s, i);
    }
}

static void *ask_number(void *user)
{
    struct fixture *f = user;
    return (void *)(uintptr_t)number_of(f, cudaStreamPerThread);
}

/* The pump submits a copy in the order of the engine's stream, which only the engine's thread can name. */
static void a_per_thread_stream_is_its_owners_in_every_thread(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f, false, false);
    const uint32_t stream = number_of(&f, cudaStreamPerThread);
    assert_int_equal(number_of(&f, cudaStreamPerThread), stream);
    pthread_t thread;
    void *other;
    assert_int_equal(pthread_create(&thread, NULL, ask_number, &f), 0);
    (void)pthread_join(thread, &other);
    assert_int_not_equal((uint32_t)(uintptr_t)other, stream);

    fill_slot(&f, 1, 1);
    blank_slot(&f, 0);
    struct writer write = { &f, 1, 2 }, spoil = { &f, 1, 3 };
    cudart_fake_gate(cudaStreamPerThread, true);
    cudart_fake_launch(cudaStreamPerThread, write_slot, &write);
    const kvt_mark written = mark_of(&f, stream);
    struct kvt_tier_op copy = {
        .kind = KVT_OP_COPY, .source_slot = 1, .slot = 0, .tokens = BLOCK_TOKENS, .stream = stream
    };
    struct copier copier = { &f, &copy };
    assert_int_equal(pthread_create(&thread, NULL, run_copy, &copier), 0);
    (void)pthread_join(thread, NULL);
    assert_int_equal(number_of(&f, cudaStreamPerThread), stream); /* any call of the owner's puts it behind the copy */
    cudart_fake_launch(cudaStreamPerThread, write_slot, &spoil);
    assert_false(is_reached(&f, written));
    assert_true(poll_is_empty(&f));
    cudart_fake_gate(cudaStreamPerThread, false);
    assert_ptr_equal(poll_one(&f), &copy);
    f.gpu->ops->synchronize(f.gpu, mark_of(&f, stream));
    assert_true(slot_holds(&f, 0, 2, BLOCK_TOKENS));
    assert_true(slot_holds(&f, 1, 3, BLOCK_TOKENS));
    close_tier(&f);
}

/* ---- Tables, marks, buffers ------------------------------------------------------------------ */

static void b09_a_kernels_table_is_not_written_again_before_it_was_read(void **state)
{
    (void)state;
    enum { OPS = 2 * KVT_CUDA_TABLES + 5 };
    struct fixture f;
    prepare(&f, plain, true);
    struct kvt_device_tier_config config = config_of(&f, false);
    config.queue_depth = OPS;
    const struct kvt_env env = kvt_env_default();
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
    take_tier(&f);
    const uint32_t raw_bytes = (uint32_t)kvt_group_block_bytes(&plain, BLOCK_TOKENS);
    assert_true((uint64_t)OPS * raw_bytes <= ENGINE_BYTES);
    uint8_t *buffers = kvt_table_map(OPS * (size_t)raw_bytes);
    assert_true(f.gpu->ops->host_pin(f.gpu, buffers, OPS * (size_t)raw_bytes));
    for (uint32_t slot = 0; slot < SLOTS; slot++) fill_slot(&f, slot, slot);
    struct kvt_tier_op ops[OPS];
    const uint32_t kernels = cudart_fake_calls("kvt_cuda_pages_move"); /* each was tried at open */
    gate(&f, KVT_DEVICE_STREAM_STASH, true);
    for (uint32_t i = 0; i < OPS; i++) {
        ops[i] = stash_of(&f, i * 7 / 3 % SLOTS, BLOCK_TOKENS, KVT_FORM_RAW);
        ops[i].host = buffers + i * (size_t)raw_bytes;
        submit(&f, &ops[i]);
    }
    gate(&f, KVT_DEVICE_STREAM_STASH, false);
    for (uint32_t i = 0; i < OPS; i++) assert_ptr_equal(poll_one(&f), &ops[i]);
    for (uint32_t i = 0; i < OPS; i++) {
        assert_int_equal(ops[i].status, KVT_OK);
        assert_true(raw_holds(&f, ops[i].host, ops[i].slot, BLOCK_TOKENS));
    }
    assert_int_equal(cudart_fake_calls("kvt_cuda_pages_move") - kernels, OPS); /* by kernels it was */
    f.gpu->ops->host_unpin(f.gpu, buffers, OPS * (size_t)raw_bytes);
    kvt_table_unmap(buffers, OPS * (size_t)raw_bytes);
    close_tier(&f);
}

static void b01_a_batch_reads_its_sources_in_the_order_of_its_stream(void **state)
{
    (void)state;
    struct fixture f;
    are_buffers_pinned = false;
    open_plain(&f, true, false);
    void *engine = f.gpu->ops->engine_stream(f.gpu, 0);
    const uint32_t stream = number_of(&f, engine);
    fill_slot(&f, 1, 1);
    struct writer write = { &f, 1, 2 };
    cudart_fake_gate(engine, true);
    cudart_fake_launch(engine, write_slot, &write);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    stash.after[0] = mark_of(&f, stream);
    submit(&f, &stash);
    cudart_fake_gate(engine, false);
    assert_ptr_equal(poll_one(&f), &stash);
    assert_true(raw_holds(&f, f.host, 2, BLOCK_TOKENS));
    assert_int_equal(cudart_fake_calls("cudaMemcpyBatchAsync"), 1);
    close_tier(&f);
}

/* The buffer of a fetch under way is the tier's until poll says so; the control gives it to somebody else before. */
static bool fetch_keeps_its_buffer(bool is_waited_for)
{
    struct fixture f;
    open_plain(&f, false, false);
    fill_slot(&f, 1, 4);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    gate(&f, KVT_DEVICE_STREAM_FETCH, true);
    struct kvt_tier_op fetch = fetch_of(&stash, 2);
    submit(&f, &fetch);
    assert_true(poll_is_empty(&f));
    if (!is_waited_for) memset(f.host, 0, HOST_BYTES);
    gate(&f, KVT_DEVICE_STREAM_FETCH, false);
    assert_ptr_equal(poll_one(&f), &fetch);
    memset(f.host, 0, HOST_BYTES);
    const bool is_exact = slot_holds(&f, 2, 4, BLOCK_TOKENS);
    close_tier(&f);
    return is_exact;
}

static void b06_a_fetch_is_not_handed_back_before_its_buffer_was_read(void **state)
{
    (void)state;
    assert_true(fetch_keeps_its_buffer(true));
    assert_false(fetch_keeps_its_buffer(false));
}

/*
 * Device slot 1 goes to a host buffer of the same number while the buffer's block comes to a device slot of the same
 * number: only a mark that names stream and serial says which of the two copies is meant.
 */
static void b08_a_mark_names_its_stream_and_not_a_number_both_have(void **state)
{
    (void)state;
    enum { ROUNDS = 60 };
    struct fixture f;
    struct kvt_rng rng = { 8 };
    open_plain(&f, false, false);
    void *engine = f.gpu->ops->engine_stream(f.gpu, 0);
    const uint32_t stream = number_of(&f, engine);
    fill_slot(&f, 0, 0);
    struct kvt_tier_op first = stash_of(&f, 0, BLOCK_TOKENS, KVT_FORM_RAW);
    first.host = f.host + HOST_BYTES;
    run_op(&f, &first);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        /*
         * out: slot 0 -> buffer 0, late; in: buffer 1 -> slot 1, late; each slot is written again behind its own mark
         */
        struct writer spoil_out = { &f, 0, 1000 + round }, spoil_in = { &f, 1, 2000 + round };
        fill_slot(&f, 0, round);
        const uint32_t late = (uint32_t)kvt_rng_below(&rng, KVT_DEVICE_STREAMS);
        gate(&f, late, true);
        struct kvt_tier_op out = stash_of(&f, 0, BLOCK_TOKENS, KVT_FORM_RAW), in = fetch_of(&first, 1);
        submit(&f, &out);
        submit(&f, &in);
        const struct kvt_tier_op *slow = late == KVT_DEVICE_STREAM_STASH ? &out : &in;
        f.gpu->ops->wait(f.gpu, stream, slow->ret_mark);
        cudart_fake_launch(engine, write_slot, late == KVT_DEVICE_STREAM_STASH ? &spoil_out : &spoil_in);
        cudart_fake_settle(engine);
        gate(&f, late, false);
        (void)poll_one(&f);
        (void)poll_one(&f);
        f.gpu->ops->synchronize(f.gpu, mark_of(&f, stream));
        assert_true(raw_holds(&f, f.host, round, BLOCK_TOKENS));
        assert_true(slot_holds(&f, 1, late == KVT_DEVICE_STREAM_FETCH ? 2000 + round : 0, BLOCK_TOKENS));
    }
    close_tier(&f);
}

static void more_marks_than_the_ring_holds_stay_true_and_block_nobody(void **state)
{
    (void)state;
    enum { MARKS = 3 * KVT_CUDA_RING_ITEMS };
    struct fixture f;
    open_plain(&f, false, false);
    void *engine = f.gpu->ops->engine_stream(f.gpu, 0);
    const uint32_t stream = number_of(&f, engine);
    struct writer write = { &f, 1, 2 };
    kvt_mark first = 0, last = 0;
    cudart_fake_gate(engine, true);
    for (uint32_t i = 0; i < MARKS; i++) {
        last = mark_of(&f, stream);
        if (i == 0) first = last;
    }
    cudart_fake_launch(engine, write_slot, &write);
    const kvt_mark written = mark_of(&f, stream);
    assert_false(is_reached(&f, first));
    assert_false(is_reached(&f, last));
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    stash.after[0] = written;
    submit(&f, &stash);
    cudart_fake_settle(own_stream(&f, KVT_DEVICE_STREAM_STASH));
    cudart_fake_gate(engine, false);
    assert_ptr_equal(poll_one(&f), &stash);
    assert_true(raw_holds(&f, f.host, 2, BLOCK_TOKENS));
    f.gpu->ops->synchronize(f.gpu, written);
    assert_true(is_reached(&f, first));
    assert_true(is_reached(&f, last));
    for (uint32_t i = 0; i < MARKS; i++) f.gpu->ops->synchronize(f.gpu, mark_of(&f, stream));
    close_tier(&f);
}

/* ---- Memory that is not pinned --------------------------------------------------------------- */

static void a_copy_from_memory_that_is_not_pinned_blocks_no_caller(void **state)
{
    (void)state;
    struct fixture f;
    cudart_fake_fail("cudaHostRegister", 0, cudaErrorMemoryAllocation, false);
    are_buffers_pinned = false;
    open_plain(&f, true, false);
    assert_false(f.gpu->ops->host_pin(f.gpu, f.host, 2 * HOST_BYTES));
    fill_slot(&f, 1, 6);
    gate(&f, KVT_DEVICE_STREAM_STASH, true);
    struct kvt_tier_op stash = stash_of(&f, 1, 7, KVT_FORM_RAW);
    submit(&f, &stash); /* would not return if it copied here */
    assert_true(poll_is_empty(&f));
    gate(&f, KVT_DEVICE_STREAM_STASH, false);
    assert_ptr_equal(poll_one(&f), &stash);
    assert_true(raw_holds(&f, f.host, 6, 7));
    blank_slot(&f, 3);
    struct kvt_tier_op fetch = fetch_of(&stash, 3);
    run_op(&f, &fetch);
    assert_true(slot_holds(&f, 3, 6, 7));
    assert_true(slot_is_untouched(&f, 3, 7));
    close_tier(&f);
}

static void staging_that_is_not_pinned_still_moves_the_right_bytes(void **state)
{
    (void)state;
    struct fixture f;
    are_buffers_pinned = false;
    cudart_fake_fail("cudaHostAlloc", 0, cudaErrorMemoryAllocation, false);
    open_plain(&f, true, true);
    cudart_fake_fail("cudaHostAlloc", 1, cudaSuccess, false);
    for (uint32_t form = KVT_FORM_RAW; form <= KVT_FORM_PACKED; form++) {
        fill_slot(&f, 1, 9 + form);
        gate(&f, KVT_DEVICE_STREAM_STASH, true);
        struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, (enum kvt_form)form);
        submit(&f, &stash);
        gate(&f, KVT_DEVICE_STREAM_STASH, false);
        assert_ptr_equal(poll_one(&f), &stash);
        assert_int_equal(stash.ret_form, form);
        struct kvt_tier_op fetch = fetch_of(&stash, 2);
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_OK);
        assert_true(slot_holds(&f, 2, 9 + form, BLOCK_TOKENS));
    }
    close_tier(&f);
}

static void pinned_pieces_that_touch_are_one_and_come_off_from_the_end(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f, false, false);
    enum { PIECES = 300 };
    uint8_t *memory = kvt_table_map(PIECES * 4096);
    for (uint32_t i = 0; i < PIECES; i++) assert_true(f.gpu->ops->host_pin(f.gpu, memory + i * 4096, 4096));
    assert_true(f.gpu->ops->host_is_pinned(f.gpu, memory + PIECES * 4096 - 1));
    for (uint32_t i = PIECES; i-- > 0;) {
        f.gpu->ops->host_unpin(f.gpu, memory + i * 4096, 4096);
        assert_false(f.gpu->ops->host_is_pinned(f.gpu, memory + i * 4096));
    }
    kvt_table_unmap(memory, PIECES * 4096);
    close_tier(&f);
}

/* ---- Calls that fail ------------------------------------------------------------------------- */

static void a_driver_that_knows_no_batch_gets_one_copy_after_the_other(void **state)
{
    (void)state;
    struct fixture f;
    are_buffers_pinned = false;
    open_plain(&f, true, false);
    cudart_fake_fail("cudaMemcpyBatchAsync", 0, cudaErrorCallRequiresNewerDriver, false);
    for (uint32_t i = 0; i < 2; i++) {
        fill_slot(&f, 1, i);
        struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
        run_op(&f, &stash);
        assert_int_equal(stash.status, KVT_OK);
        assert_true(raw_holds(&f, f.host, i, BLOCK_TOKENS));
    }
    assert_int_equal(cudart_fake_calls("cudaMemcpyBatchAsync"), 1); /* asked once */
    close_tier(&f);
}

/* The fake's device memory is the CPU's: looked at without a call that could be the one that fails. */
static bool memory_holds(const struct fixture *f, uint32_t slot, uint64_t seed)
{
    for (uint32_t s = 0; s < f->segment_count; s++) {
        for (uint64_t i = 0; i < f->segment_bytes; i++)
            if (segment_at(f, slot, s)[i] != pattern(seed, s, i)) return false;
    }
    return true;
}

/* What is told of an op is true: OK with the bytes, or an error. Returns the errors of some round trips. */
static uint32_t round_trips(struct fixture *f, uint32_t rounds)
{
    void *engine = f->gpu->ops->engine_stream(f->gpu, 0);
    const uint32_t stream = number_of(f, engine);
    struct writer write;
    uint32_t errors = 0;
    for (uint32_t i = 1; i <= rounds; i++) {
        cudart_fake_settle(engine); /* the kernel of the round before may still read it, whatever its op came to */
        write = (struct writer){ f, 1, i };
        cudart_fake_launch(engine, write_slot, &write);
        struct kvt_tier_op stash = stash_of(f, 1, BLOCK_TOKENS, i % 2 ? KVT_FORM_RAW : KVT_FORM_PACKED);
        stash.after[0] = mark_of(f, stream);
        run_op(f, &stash);
        errors += stash.status != KVT_OK;
        if (stash.status != KVT_OK) {
            assert_int_equal(stash.status, KVT_IO);
            assert_int_equal(stash.ret_length, 0);
            continue;
        }
        if (stash.ret_form == KVT_FORM_RAW) assert_true(raw_holds(f, f->host, i, BLOCK_TOKENS));
        struct kvt_tier_op fetch = fetch_of(&stash, 2);
        fetch.after[0] = mark_of(f, stream);
        run_op(f, &fetch);
        errors += fetch.status != KVT_OK;
        if (fetch.status == KVT_OK) assert_true(memory_holds(f, 2, i));
        assert_true(fetch.status == KVT_OK || fetch.status == KVT_IO);
    }
    cudart_fake_settle(engine);
    return errors;
}

static const char *const failing_calls[] = { "cudaMemcpyAsync", "cudaMemcpyBatchAsync", "cudaEventRecord",
                                             "cudaEventQuery",  "cudaStreamWaitEvent",  "kvt_cuda_pages_move" };

static void a_call_that_fails_once_is_an_error_or_nothing_and_never_other_bytes(void **state)
{
    (void)state;
    uint32_t errors = 0;
    for (uint32_t pinned = 0; pinned < 2; pinned++) {
        for (uint32_t i = 0; i < KVT_ARRAY_COUNT(failing_calls); i++) {
            struct fixture f;
            are_buffers_pinned = pinned != 0;
            open_plain(&f, true, true);
            for (uint32_t n = 1; n <= 4; n++) {
                cudart_fake_fail(failing_calls[i], n, cudaErrorInvalidValue, false);
                errors += round_trips(&f, 4);
                cudart_fake_fail(failing_calls[i], 1, cudaSuccess, false);
            }
            assert_int_equal(round_trips(&f, 4), 0); /* and afterwards all is well */
            assert_false(f.gpu->ops->is_lost(f.gpu));
            close_tier(&f);
        }
    }
    assert_true(errors >= 8);
}

static void a_call_that_answers_nothing_does_not_end_the_copy(void **state)
{
    (void)state;
    struct fixture f;
    open_plain(&f, false, false);
    fill_slot(&f, 1, 3);
    cudart_fake_fail("cudaEventQuery", 0, cudaErrorInvalidResourceHandle, false);
    /* The probe is the same call: this error stays, so the device is lost, and the op comes back as failed. */
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_IO);
    assert_true(f.gpu->ops->is_lost(f.gpu));
    cudart_fake_fail("cudaEventQuery", 1, cudaSuccess, false);
    cudart_fake_settle(own_stream(&f, KVT_DEVICE_STREAM_STASH));
    close_tier(&f);
}

static atomic_uint errors_logged;

static void count_errors(void *user, enum kvt_log_level level, const char *line)
{
    (void)user;
    if (level == KVT_LOG_ERROR && strstr(line, "is lost")) atomic_fetch_add(&errors_logged, 1);
}

static void a_lost_device_fails_jobs_at_once_and_hangs_nobody(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(failing_calls); i++) {
        for (uint32_t n = 1; n <= 3; n++) {
            struct fixture f;
            struct kvt_env env = kvt_env_default();
            env.log = count_errors;
            atomic_store(&errors_logged, 0);
            are_buffers_pinned = n % 2 == 0;
            open_tier(&f, env, plain, true, true);
            (void)round_trips(&f, 1);
            memset(f.host + HOST_BYTES, 0x5a, HOST_BYTES);
            cudart_fake_fail(failing_calls[i], n, cudaErrorIllegalAddress, true);
            (void)round_trips(&f, 6);
            cudart_fake_lose(cudaErrorIllegalAddress); /* should it not have come to that call */
            struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_RAW);
            run_op(&f, &stash);
            assert_int_equal(stash.status, KVT_IO);
            assert_true(f.gpu->ops->is_lost(f.gpu));
            assert_int_equal(round_trips(&f, 3), 3);
            assert_int_equal(atomic_load(&errors_logged), 1);
            for (uint32_t b = 0; b < HOST_BYTES; b++) assert_int_equal(f.host[HOST_BYTES + b], 0x5a);
            assert_true(is_reached(&f, mark_of(&f, KVT_DEVICE_STREAM_STASH)));
            f.is_pinned = false; /* CUDA forgot it */
            close_tier(&f);
            (void)cudart_fake_end();
            cudart_fake_begin();
        }
    }
}

static void ops_in_flight_when_the_device_is_lost_come_back_once(void **state)
{
    (void)state;
    enum { OPS = 8 };
    struct fixture f;
    open_plain(&f, false, true);
    struct kvt_tier_op ops[OPS];
    gate(&f, KVT_DEVICE_STREAM_STASH, true);
    for (uint32_t i = 0; i < OPS; i++) {
        ops[i] = stash_of(&f, i % SLOTS, BLOCK_TOKENS, i % 2 ? KVT_FORM_RAW : KVT_FORM_PACKED);
        ops[i].host = f.host + i * 4096;
        ops[i].host_capacity = 4096;
        submit(&f, &ops[i]);
    }
    assert_true(poll_is_empty(&f));
    cudart_fake_lose(cudaErrorLaunchFailure);
    for (uint32_t i = 0; i < OPS; i++) assert_ptr_equal(poll_one(&f), &ops[i]);
    for (uint32_t i = 0; i < OPS; i++) assert_int_equal(ops[i].status, KVT_IO);
    assert_true(poll_is_empty(&f));
    f.is_pinned = false;
    close_tier(&f);
}

/* ---- A device that hangs --------------------------------------------------------------------- */

static void set_done(struct kvt_gpu_job *job)
{
    atomic_bool *is_done = job->user;
    atomic_store(is_done, true);
}

static void close_of_a_device_that_hangs_ends_and_cleans_up_when_it_answers(void **state)
{
    (void)state;
    const struct kvt_gpu_config config = { .close_limit_ns = 20000000, .segments_max = 1 };
    const struct kvt_env env = kvt_env_default();
    struct kvt_gpu *gpu;
    uint32_t stream;
    atomic_bool is_done = false;
    const uint32_t left_before = left_sum();
    assert_int_equal(kvt_gpu_cuda_ops.open(&config, &env, &gpu), KVT_OK);
    assert_int_equal(gpu->ops->stream(gpu, NULL, &stream), KVT_OK);
    void *memory = gpu->ops->memory_alloc(gpu, 4096);
    assert_non_null(memory);
    cudaStream_t handle = device_stream_of(gpu, stream);
    struct kvt_gpu_job job = { .done = set_done, .user = &is_done };
    cudart_fake_gate(handle, true);
    gpu->ops->submit(gpu, stream, &job);
    gpu->ops->memory_free(gpu, memory, 4096); /* not given back: it may still be written to */
    gpu->ops->close(gpu);
    assert_false(atomic_load(&is_done));
    cudart_fake_gate(handle, false);
    while (!atomic_load(&is_done)) (void)sched_yield();
    must(cudaFree(memory));
    while (left_sum() > left_before) (void)sched_yield(); /* tear_down would find it while the device's thread gives it back */
}

static void calibration_chooses_and_says_so(void **state)
{
    (void)state;
    struct kvt_gpu *gpu;
    char text[256];
    const struct kvt_gpu_config config = { .segments_max = 64 };
    const struct kvt_env env = kvt_env_default();
    assert_int_equal(kvt_gpu_cuda_ops.open(&config, &env, &gpu), KVT_OK);
    gpu->ops->describe(gpu, text, sizeof text);
    assert_non_null(strstr(text, "batched DMA"));
    assert_true(cudart_fake_calls("kvt_cuda_pages_move") > 0);
    assert_true(cudart_fake_calls("cudaMemcpyBatchAsync") > 0);
    gpu->ops->close(gpu);
    /* A kernel that cannot be launched leaves DMA for everything. */
    cudart_fake_fail("kvt_cuda_pages_move", 0, cudaErrorNoKernelImageForDevice, false);
    assert_int_equal(kvt_gpu_cuda_ops.open(&config, &env, &gpu), KVT_OK);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(((struct kvt_cuda *)gpu)->choice.kernel_below[i / 2][i % 2], 0);
    gpu->ops->close(gpu);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define LOST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down_lost)

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First: where marks are mixed up, others fall as well, and not all of them gently. */
        TEST(b08_a_mark_names_its_stream_and_not_a_number_both_have),
        TEST(without_a_driver_there_is_no_device_and_no_noise),
        TEST(open_that_fails_at_any_call_leaves_nothing),
        TEST(b60_a_batch_is_never_put_on_a_default_stream),
        TEST(b60_done_may_take_a_lock_whose_holder_pins_and_unpins),
        TEST(a_per_thread_stream_is_its_owners_in_every_thread),
        TEST(b09_a_kernels_table_is_not_written_again_before_it_was_read),
        TEST(b01_a_batch_reads_its_sources_in_the_order_of_its_stream),
        TEST(b06_a_fetch_is_not_handed_back_before_its_buffer_was_read),
        TEST(more_marks_than_the_ring_holds_stay_true_and_block_nobody),
        TEST(a_copy_from_memory_that_is_not_pinned_blocks_no_caller),
        TEST(staging_that_is_not_pinned_still_moves_the_right_bytes),
        TEST(pinned_pieces_that_touch_are_one_and_come_off_from_the_end),
        TEST(a_driver_that_knows_no_batch_gets_one_copy_after_the_other),
        TEST(a_call_that_fails_once_is_an_error_or_nothing_and_never_other_bytes),
        LOST(a_call_that_answers_nothing_does_not_end_the_copy),
        LOST(a_lost_device_fails_jobs_at_once_and_hangs_nobody),
        LOST(ops_in_flight_when_the_device_is_lost_come_back_once),
        TEST(close_of_a_device_that_hangs_ends_and_cleans_up_when_it_answers),
        TEST(calibration_chooses_and_says_so),
    };
    cmocka_set_test_filter(getenv("KVTIER_ONLY_TEST")); /* tests/runtime/must_fail.py */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
