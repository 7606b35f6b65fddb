/*
 * device_tier: what comes back is what was there, valid tokens only, in every kind of group, form and memory; each op
 * exactly once, with the outcome that is true.
 */
#include "tests/unit/device_fixture.h"

#include <sys/mman.h>

/* ---- Round trips ----------------------------------------------------------------------------- */

static void round_trip(struct fixture *f, uint32_t tokens, enum kvt_form form, enum kvt_form form_expected)
{
    fill_slot(f, 1, tokens);
    blank_slot(f, 3);
    memset(f->host, UNTOUCHED, HOST_BYTES);
    struct kvt_tier_op stash = stash_of(f, 1, tokens, form);
    run_op(f, &stash);
    assert_int_equal(stash.status, KVT_OK);
    assert_int_equal(stash.ret_form, form_expected);
    const uint64_t raw_bytes = f->segment_count * tokens * f->row_bytes;
    if (stash.ret_form == KVT_FORM_RAW) {
        assert_int_equal(stash.ret_length, raw_bytes);
        assert_true(raw_holds(f, f->host, tokens, tokens));
    } else {
        assert_int_equal(stash.ret_length, raw_bytes + FAKE_HEAD_BYTES);
    }
    for (uint32_t i = stash.ret_length; i < HOST_BYTES; i++) assert_int_equal(f->host[i], UNTOUCHED);

    struct kvt_tier_op fetch = fetch_of(&stash, 3);
    run_op(f, &fetch);
    assert_int_equal(fetch.status, KVT_OK);
    assert_true(slot_holds(f, 3, tokens, tokens));
    assert_true(slot_is_untouched(f, 3, tokens));
    assert_true(slot_holds(f, 1, tokens, f->group.kind == KVT_GROUP_STATE ? 1 : BLOCK_TOKENS));
}

static void round_trips_of(struct kvt_group_shape group, bool is_engine, bool has_codec)
{
    static const uint32_t tails[] = { 1, 7, BLOCK_TOKENS };
    struct fixture f;
    open_tier(&f, kvt_env_default(), group, is_engine, has_codec);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(tails); i++) {
        if (group.kind == KVT_GROUP_STATE && tails[i] > 1) break;
        round_trip(&f, tails[i], KVT_FORM_RAW, KVT_FORM_RAW);
        round_trip(&f, tails[i], KVT_FORM_PACKED, has_codec ? KVT_FORM_PACKED : KVT_FORM_RAW);
    }
    assert_true(atomic_load(&f.wakes) > 0);
    close_tier(&f);
}

static void every_kind_and_dtype_comes_back_exact_in_both_forms(void **state)
{
    (void)state;
    for (uint32_t dtype = KVT_DTYPE_BF16; dtype <= KVT_DTYPE_INT8; dtype++) {
        for (uint32_t kind = KVT_GROUP_FULL; kind <= KVT_GROUP_STATE; kind++) {
            for (uint32_t planes = 0; planes <= 2; planes++) {
                struct kvt_group_shape group = { .kind = (enum kvt_group_kind)kind,
                                                 .dtype = (enum kvt_dtype)dtype,
                                                 .layers = 3,
                                                 .planes = planes,
                                                 .kv_heads = 2,
                                                 .head_dim = 5,
                                                 .window_tokens = 32,
                                                 .state_bytes = 777 };
                for (uint32_t i = 0; i < 4; i++) round_trips_of(group, (i & 1) != 0, (i & 2) != 0);
            }
        }
    }
}

static void groups_of_equal_block_bytes_share_a_pool_and_others_do_not(void **state)
{
    (void)state;
    struct kvt_group_shape window = plain, state_group = { .kind = KVT_GROUP_STATE, .layers = 2, .state_bytes = 100 };
    window.kind = KVT_GROUP_WINDOW;
    window.window_tokens = 32;
    const struct kvt_env env = cranked();
    struct kvt_device_tier_config config = {
        .shape = { .block_tokens = BLOCK_TOKENS, .group_count = 3, .groups = { plain, window, state_group } },
        .pool_of_group = { 0, 0, 1 },
        .pool_count = 2,
        .pool_slots = { 3, 2 },
        .gpu = DEVICE_OPS,
    };
    struct kvt_tier *tier;
    assert_int_equal(kvt_device_tier_open(&config, &env, &tier), KVT_OK);
    assert_ptr_equal(tier->ops->map(tier, 0, 2), tier->ops->map(tier, 1, 2));
    uint8_t *first = tier->ops->map(tier, 2, 0), *second = tier->ops->map(tier, 2, 1);
    assert_int_equal(second - first, 200);
    struct kvt_tier_counters counters;
    tier->ops->counters(tier, &counters);
    assert_int_equal(counters.capacity_bytes, 3 * kvt_group_block_bytes(&plain, BLOCK_TOKENS) + 2 * 200);
    kvt_tier_close(&tier);

    config.pool_of_group[2] = 0; /* other block bytes in the same pool */
    config.pool_count = 1;
    assert_int_equal(kvt_device_tier_open(&config, &env, &tier), KVT_INVAL);
}

static void a_copy_moves_the_valid_tokens_of_a_slot(void **state)
{
    (void)state;
    for (uint32_t is_engine = 0; is_engine < 2; is_engine++) {
        struct fixture f;
        open_tier(&f, kvt_env_default(), plain, is_engine != 0, false);
        fill_slot(&f, 2, 5);
        blank_slot(&f, 0);
        struct kvt_tier_op copy = { .kind = KVT_OP_COPY, .source_slot = 2, .slot = 0, .tokens = 9 };
        run_op(&f, &copy);
        assert_int_equal(copy.status, KVT_OK);
        assert_true(slot_holds(&f, 0, 5, 9));
        assert_true(slot_is_untouched(&f, 0, 9));
        close_tier(&f);
    }
}

static void only_the_valid_tokens_of_a_slot_are_read_and_written(void **state)
{
    (void)state;
    /* One segment whose valid tokens end where an inaccessible page begins: the engine's business at that moment. */
    const uint64_t page = 4096;
    const struct kvt_group_shape group = {
        .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 1, .planes = 1, .kv_heads = 2, .head_dim = 8
    };
    for (uint32_t form = KVT_FORM_RAW; form <= KVT_FORM_PACKED; form++) {
        struct fixture f;
        prepare(&f, group, true);
        uint8_t *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(pages, MAP_FAILED);
        assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
        f.base[0] = pages + page - 7 * f.row_bytes;
        const struct kvt_device_tier_config config = config_of(&f, true);
        const struct kvt_env env = cranked();
        assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
        struct kvt_tier_op stash = stash_of(&f, 0, 7, (enum kvt_form)form);
        run_op(&f, &stash);
        assert_int_equal(stash.status, KVT_OK);
        struct kvt_tier_op fetch = fetch_of(&stash, 0);
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_OK);
        close_tier(&f);
        (void)munmap(pages, 2 * page);
    }
}

/* ---- What an op is told ---------------------------------------------------------------------- */

static void a_stash_that_does_not_fit_is_full_and_may_be_asked_again_raw(void **state)
{
    (void)state;
    struct fixture f;
    open_tier(&f, cranked(), plain, false, true);
    fill_slot(&f, 1, 1);
    const uint32_t raw_bytes = (uint32_t)kvt_group_block_bytes(&plain, BLOCK_TOKENS);
    struct kvt_tier_op stash = stash_of(&f, 1, BLOCK_TOKENS, KVT_FORM_PACKED);
    stash.host_capacity = raw_bytes; /* the stand-in needs a head more */
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_FULL);
    stash.host_capacity = HOST_BYTES;
    codec.is_hopeless = true;
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_FULL);
    stash.form = KVT_FORM_RAW;
    stash.host_capacity = raw_bytes - 1;
    f.host[raw_bytes - 1] = UNTOUCHED;
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_FULL);
    assert_int_equal(f.host[raw_bytes - 1], UNTOUCHED);
    stash.host_capacity = raw_bytes;
    run_op(&f, &stash);
    assert_int_equal(stash.status, KVT_OK);
    assert_int_equal(stash.ret_form, KVT_FORM_RAW);
    assert_true(raw_holds(&f, f.host, 1, BLOCK_TOKENS));
    struct kvt_tier_counters counters;
    f.tier->ops->counters(f.tier, &counters);
    assert_int_equal(counters.dropped, 3);
    assert_int_equal(counters.bytes_out, raw_bytes);
    close_tier(&f);
}

static void damaged_bytes_are_corrupt_and_a_wrong_length_writes_nothing(void **state)
{
    (void)state;
    for (uint32_t has_codec = 0; has_codec < 2; has_codec++) {
        struct fixture f;
        open_tier(&f, cranked(), plain, false, has_codec != 0);
        struct kvt_tier_op stash = stash_of(&f, 1, 9, KVT_FORM_RAW);
        run_op(&f, &stash);
        struct kvt_tier_op fetch = fetch_of(&stash, 3);
        blank_slot(&f, 3);
        fetch.length--;
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_CORRUPT);
        fetch.length++;
        fetch.tokens++; /* bytes of another block */
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_CORRUPT);
        fetch.tokens--;
        fetch.form = KVT_FORM_PACKED; /* not packed at all, or nobody here can unpack it */
        run_op(&f, &fetch);
        assert_int_equal(fetch.status, KVT_CORRUPT);
        assert_true(slot_is_untouched(&f, 3, 0));
        struct kvt_tier_counters counters;
        f.tier->ops->counters(f.tier, &counters);
        assert_int_equal(counters.bytes_in, 0);
        close_tier(&f);
    }
}

static void a_copy_that_the_device_fails_comes_back_once_with_an_error(void **state)
{
    (void)state;
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    for (uint32_t kind = KVT_OP_STASH; kind <= KVT_OP_COPY; kind++) {
        const uint32_t stream = kind == KVT_OP_STASH ? KVT_DEVICE_STREAM_STASH : KVT_DEVICE_STREAM_FETCH;
        kvt_gpu_emulated_fault_at(f.gpu, stream, 1, KVT_GPU_FAULT_FAIL_LATE);
        struct kvt_tier_op op = stash_of(&f, 1, 4, KVT_FORM_RAW);
        op.kind = (enum kvt_op_kind)kind;
        op.length = (uint32_t)(f.segment_count * 4 * f.row_bytes);
        op.source_slot = 2;
        run_op(&f, &op);
        assert_int_equal(op.status, KVT_IO);
        assert_int_equal(op.ret_length, 0);
        assert_true(poll_is_empty(&f));
        run_op(&f, &op); /* the next one is fine */
        assert_int_equal(op.status, KVT_OK);
    }
    close_tier(&f);
}

static void a_device_that_stops_answering_gives_no_completion_until_it_does(void **state)
{
    (void)state;
    struct fixture f;
    open_tier(&f, cranked(), plain, false, false);
    fill_slot(&f, 1, 3);
    kvt_gpu_emulated_fault_at(f.gpu, KVT_DEVICE_STREAM_STASH, 1, KVT_GPU_FAULT_STUCK_END);
    struct kvt_tier_op stash = stash_of(&f, 1, 4, KVT_FORM_RAW);
    submit(&f, &stash);
    assert_true(poll_is_empty(&f));
    struct kvt_tier_op copy = { .kind = KVT_OP_COPY, .source_slot = 1, .slot = 0, .tokens = 1 };
    run_op(&f, &copy); /* the other stream goes on */
    assert_true(kvt_gpu_emulated_release(f.gpu, KVT_DEVICE_STREAM_STASH));
    assert_ptr_equal(poll_one(&f), &stash);
    assert_int_equal(stash.status, KVT_OK);
    close_tier(&f);
}

static void each_op_comes_back_exactly_once_through_a_bounded_queue(void **state)
{
    (void)state;
    enum { OPS = 8, ROUNDS = 400 };
    struct fixture f;
    open_tier(&f, kvt_env_default(), plain, false, true);
    struct kvt_tier_op ops[OPS], extra = stash_of(&f, 0, 1, KVT_FORM_RAW);
    uint8_t *buffers = kvt_alloc(OPS + 1, 4096);
    struct kvt_rng rng = { 42 };
    uint32_t submitted = 0, returned = 0, failed = 0;
    assert_non_null(buffers);
    extra.host = buffers + OPS * 4096;
    fill_slot(&f, 0, 1);
    fill_slot(&f, 1, 2);
    memset(ops, 0, sizeof ops);
    kvt_gpu_emulated_fault_randomly(f.gpu, KVT_DEVICE_STREAM_STASH, 100000, 5, KVT_GPU_FAULT_FAIL);
    while (returned < ROUNDS) {
        for (uint32_t i = 0; i < OPS; i++) {
            if (ops[i].is_in_flight || submitted == ROUNDS || kvt_rng_below(&rng, 4) == 0) continue;
            ops[i] = stash_of(&f, (uint32_t)kvt_rng_below(&rng, 2), 1 + (uint32_t)kvt_rng_below(&rng, BLOCK_TOKENS),
                              (enum kvt_form)kvt_rng_below(&rng, 2));
            ops[i].host = buffers + i * 4096;
            ops[i].host_capacity = 4096;
            submit(&f, &ops[i]);
            submitted++;
        }
        if (f.tier->in_flight == OPS) assert_int_equal(kvt_tier_submit(f.tier, &extra), KVT_FULL);
        struct kvt_tier_op *done[OPS];
        const uint32_t count = kvt_tier_poll(f.tier, done, 1 + (uint32_t)kvt_rng_below(&rng, OPS));
        for (uint32_t i = 0; i < count; i++) {
            if (done[i]->status == KVT_IO) {
                failed++;
                continue;
            }
            assert_int_equal(done[i]->status, KVT_OK);
            if (done[i]->ret_form == KVT_FORM_RAW)
                assert_true(raw_holds(&f, done[i]->host, done[i]->slot + 1, done[i]->tokens));
        }
        returned += count;
        if (count == 0) (void)sched_yield();
    }
    assert_int_equal(f.tier->in_flight, 0);
    assert_int_equal(atomic_load(&f.wakes), ROUNDS);
    assert_true(failed > 0);
    assert_true(failed < ROUNDS / 2);
    kvt_free(buffers);
    close_tier(&f);
}

static void the_link_is_charged_for_the_form_that_crosses_it(void **state)
{
    (void)state;
    struct fixture f;
    prepare(&f, plain, false);
    struct kvt_device_tier_config config = config_of(&f, true);
    config.gpu_config.link_bytes_per_s = 1000000000; /* a byte takes a nanosecond */
    const struct kvt_env env = cranked();
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
    f.gpu = kvt_device_tier_gpu(f.tier);
    for (uint32_t form = KVT_FORM_RAW; form <= KVT_FORM_PACKED; form++) {
        struct kvt_tier_op stash = stash_of(&f, 1, 4, (enum kvt_form)form);
        submit(&f, &stash);
        assert_true(poll_is_empty(&f));
        fake_ns = kvt_gpu_emulated_next_ns(f.gpu);
        assert_ptr_equal(poll_one(&f), &stash);
        assert_int_equal(stash.link_ns, stash.ret_length);
        struct kvt_tier_op fetch = fetch_of(&stash, 2);
        submit(&f, &fetch);
        assert_true(poll_is_empty(&f));
        fake_ns = kvt_gpu_emulated_next_ns(f.gpu);
        assert_ptr_equal(poll_one(&f), &fetch);
        assert_int_equal(fetch.link_ns, fetch.length);
    }
    struct kvt_tier_op copy = { .kind = KVT_OP_COPY, .source_slot = 1, .slot = 0, .tokens = 4 };
    run_op(&f, &copy); /* crosses no link */
    assert_int_equal(copy.link_ns, 0);
    close_tier(&f);
}

/* ---- Open ------------------------------------------------------------------------------------ */

static void open_fails_cleanly_at_each_allocation(void **state)
{
    (void)state;
    const struct kvt_env env = kvt_env_default();
    const uint64_t mapped = kvt_table_bytes();
    for (uint32_t is_engine = 0; is_engine < 2; is_engine++) {
        struct fixture f;
        prepare(&f, plain, is_engine != 0);
        const struct kvt_device_tier_config config = config_of(&f, true);
        enum kvt_status status = KVT_NOMEM;
        uint64_t n = 0;
        while (status != KVT_OK) {
            kvt_alloc_fail_at(++n);
            status = kvt_device_tier_open(&config, &env, &f.tier);
            kvt_alloc_fail_at(0);
            if (status != KVT_OK) assert_int_equal(status, KVT_NOMEM);
        }
        assert_true(n > 5);
        close_tier(&f);
        assert_int_equal(kvt_table_bytes(), mapped);
    }
}

static void segments_that_cannot_hold_a_block_are_refused(void **state)
{
    (void)state;
    const struct kvt_env env = cranked();
    struct fixture f;
    prepare(&f, plain, true);
    const struct kvt_device_tier_config config = config_of(&f, false);
    f.segments.count--;
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_INVAL);
    f.segments.count++;
    f.stride[2] = f.segment_bytes - 1;
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_INVAL);
    f.stride[2] = f.segment_bytes;
    assert_int_equal(kvt_device_tier_open(&config, &env, &f.tier), KVT_OK);
    take_tier(&f);
    assert_null(f.tier->ops->map(f.tier, 0, 0)); /* the engine's memory is not ours to show */
    close_tier(&f);
}

/* Items that one stash and one fetch of a block take on their streams. */
static uint64_t items_of_a_round_trip(uint32_t layers)
{
    struct fixture f;
    struct kvt_group_shape group = plain;
    group.layers = layers;
    open_tier(&f, cranked(), group, true, false);
    struct kvt_gpu *gpu = kvt_device_tier_gpu(f.tier);
    uint64_t before[2], after[2];
    for (uint32_t s = 0; s < 2; s++) before[s] = kvt_mark_serial(gpu->ops->mark(gpu, s));
    fill_slot(&f, 0, 1);
    struct kvt_tier_op stash = stash_of(&f, 0, BLOCK_TOKENS, KVT_FORM_RAW);
    run_op(&f, &stash);
    struct kvt_tier_op fetch = fetch_of(&stash, 1);
    run_op(&f, &fetch);
    assert_true(slot_holds(&f, 1, 1, BLOCK_TOKENS));
    for (uint32_t s = 0; s < 2; s++) after[s] = kvt_mark_serial(gpu->ops->mark(gpu, s));
    close_tier(&f);
    return after[0] - before[0] + after[1] - before[1];
}

/* One call a block, however many layers and planes an engine's memory cuts it into. */
static void b38_a_block_of_many_pieces_takes_as_many_calls_as_one_of_few(void **state)
{
    (void)state;
    assert_int_equal(items_of_a_round_trip(1), items_of_a_round_trip(3));
    assert_true(items_of_a_round_trip(3) <= 4);
}

/* What needs the emulated device's faults, clock or memory; for CUDA's the like is in test_gpu_cuda.c. */
static int run_on_emulated(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_valid_tokens_of_a_slot_are_read_and_written),
        cmocka_unit_test(a_copy_that_the_device_fails_comes_back_once_with_an_error),
        cmocka_unit_test(a_device_that_stops_answering_gives_no_completion_until_it_does),
        cmocka_unit_test(each_op_comes_back_exactly_once_through_a_bounded_queue),
        cmocka_unit_test(the_link_is_charged_for_the_form_that_crosses_it),
        cmocka_unit_test(open_fails_cleanly_at_each_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_on_any(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_and_dtype_comes_back_exact_in_both_forms),
        cmocka_unit_test(groups_of_equal_block_bytes_share_a_pool_and_others_do_not),
        cmocka_unit_test(a_copy_moves_the_valid_tokens_of_a_slot),
        cmocka_unit_test(a_stash_that_does_not_fit_is_full_and_may_be_asked_again_raw),
        cmocka_unit_test(damaged_bytes_are_corrupt_and_a_wrong_length_writes_nothing),
        cmocka_unit_test(b38_a_block_of_many_pieces_takes_as_many_calls_as_one_of_few),
        cmocka_unit_test(segments_that_cannot_hold_a_block_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    if (!device_begin()) return DEVICE_SKIPPED;
    int failed = run_on_any();
    are_buffers_pinned = DEVICE_IS_CUDA;
    failed += are_buffers_pinned ? run_on_any() : run_on_emulated();
    device_end();
    return failed;
}
