/* What may happen in a step that has begun: more room, several commits, a snapshot in between. */
#include "tests/runtime/world.h"

enum { TOKENS = 2 * BLOCK_TOKENS + 5, STATE_BYTES = 64 };

/* ---- Room in a step ---------------------------------------------------------------------------------------------- */

/* A sequence of some tokens whose unfinished last block went down to host memory and came back. */
static kvt_seq back_from_host(struct world *w, const struct text *text)
{
    kvt_seq seq;
    (void)world_create(w, text, TOKENS, false, &seq);
    world_step(w, text, seq, TOKENS, true);
    world_settle(w);
    world_idle(w, seq);
    world_flush(w, 77, false);
    assert_int_equal(world_resume(w, seq), KVT_ROOM_OK);
    world_settle(w);
    return seq;
}

static void append_and_write(struct world *w, const struct text *text, kvt_seq seq, uint64_t n)
{
    kvt_step step;
    uint64_t lost_from;
    const uint64_t from = kvt_seq_tokens(w->runtime, seq);
    assert_int_equal(world_begin(w, seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(world_reserve(w, seq, n), KVT_ROOM_OK);
    world_write(w, text, seq, from, n, 0);
    world_end(w, step);
    world_crank(w, 0);
    world_settle(w);
}

static void a_copy_below_does_not_outlive_what_a_step_adds_to_its_block(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    world_init(&w, 8, 40);
    world_open(&w);
    text_make(&text, 1, TOKENS + 4);
    const kvt_seq seq = back_from_host(&w, &text);
    append_and_write(&w, &text, seq, 4);
    world_idle(&w, seq);
    world_flush(&w, 78, false);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_step(&w, &text, seq, 0, true); /* checks all of it */
    world_finish(&w, seq, true);
    world_close(&w);
}

static void a_shared_block_is_not_replaced_under_a_step(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq, fork;
    kvt_step step;
    uint64_t lost_from;
    enum kvt_room room;
    world_init(&w, 20, 0);
    world_open(&w);
    text_make(&text, 1, TOKENS + 4);
    (void)world_create(&w, &text, TOKENS, false, &seq);
    world_step(&w, &text, seq, TOKENS, true);
    assert_int_equal(kvt_seq_fork(w.runtime, seq, &fork), KVT_OK);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(kvt_seq_append(w.runtime, seq, 4, &room), KVT_INVAL);
    world_check(&w, &text, seq, TOKENS, 0);
    world_end(&w, step);
    world_crank(&w, 0);
    world_step(&w, &text, seq, 4, true);
    world_step(&w, &text, fork, 4, true);
    world_step(&w, &text, seq, 0, true);
    world_finish(&w, seq, true);
    world_finish(&w, fork, true);
    world_close(&w);
}

/* ---- A snapshot, and the step goes on ---------------------------------------------------------------------------- */

struct state_kernel {
    uint8_t *slot;
    uint8_t value;
    bool is_write;
    uint64_t wrong;
};

static void run_state_kernel(void *user)
{
    struct state_kernel *kernel = user;
    if (kernel->is_write) memset(kernel->slot, kernel->value, STATE_BYTES);
    for (uint32_t i = 0; i < STATE_BYTES; i++) kernel->wrong += kernel->slot[i] != kernel->value;
}

/* The kernel's struct lives until the stream was cranked. */
static void launch_state(struct world *w, kvt_seq seq, struct state_kernel *kernel)
{
    uint32_t slot;
    uint64_t first, count;
    assert_int_equal(kvt_seq_table(w->runtime, seq, 0, &slot, 1, &first, &count), KVT_OK);
    assert_int_equal(count, 1);
    kernel->slot = kvt_device_slot(w->runtime, 0, slot);
    assert_int_equal(kvt_emulated_launch(w->runtime, kvt_emulated_stream(w->runtime, 0), run_state_kernel, kernel),
                     KVT_OK);
}

static void a_snapshot_is_the_state_at_its_place_though_the_step_goes_on(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, 8, 0);
    w.config.shape.groups[0] = (struct kvt_group_shape){
        .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_FP32, .layers = 1, .state_bytes = STATE_BYTES
    };
    world_open(&w);
    text_make(&text, 1, 2 * BLOCK_TOKENS);
    struct state_kernel first = { .value = 1, .is_write = true }, second = { .value = 2, .is_write = true },
                        check = { .value = 1 };
    const kvt_stream stream = kvt_emulated_stream(w.runtime, 0);

    (void)world_create(&w, &text, 2 * BLOCK_TOKENS, false, &seq);
    assert_int_equal(world_reserve(&w, seq, BLOCK_TOKENS + 1), KVT_ROOM_OK);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_READY);
    launch_state(&w, seq, &first);
    assert_int_equal(kvt_seq_commit(w.runtime, seq, text.tokens, BLOCK_TOKENS, KVT_COMMIT_SNAPSHOT, stream), KVT_OK);
    launch_state(&w, seq, &second);
    assert_int_equal(kvt_seq_commit(w.runtime, seq, text.tokens + BLOCK_TOKENS, 1, 0, stream), KVT_OK);
    world_end(&w, step);
    world_crank(&w, 0);
    world_settle(&w);
    world_finish(&w, seq, true);

    assert_int_equal(world_create(&w, &text, 2 * BLOCK_TOKENS, false, &seq), BLOCK_TOKENS);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_READY);
    launch_state(&w, seq, &check);
    world_end(&w, step);
    world_crank(&w, 0);
    assert_int_equal(check.wrong, 0);
    world_finish(&w, seq, true);
    world_close(&w);
}

/* ---- Hints ------------------------------------------------------------------------------------------------------- */

static void a_hint_of_no_sequence_or_no_meaning_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq, fork;
    world_init(&w, 8, 0);
    world_open(&w);
    text_make(&text, 1, TOKENS);
    (void)world_create(&w, &text, TOKENS, false, &seq);
    struct kvt_seq_hint hint = { .next = KVT_NEXT_TOOL, .turn = 3 };
    assert_int_equal(kvt_seq_hint(w.runtime, seq, &hint), KVT_OK);
    assert_int_equal(kvt_seq_fork(w.runtime, seq, &fork), KVT_OK);
    assert_int_equal(kvt_sequence_of(world_core(&w), fork)->next_use, KVT_NEXT_TOOL);
    assert_int_equal(kvt_sequence_of(world_core(&w), fork)->turn, 3);
    hint.next = (enum kvt_next)9;
    assert_int_equal(kvt_seq_hint(w.runtime, seq, &hint), KVT_INVAL);
    assert_int_equal(kvt_sequence_of(world_core(&w), seq)->next_use, KVT_NEXT_TOOL);
    world_finish(&w, fork, true);
    world_finish(&w, seq, true);
    hint.next = KVT_NEXT_TOOL;
    assert_int_equal(kvt_seq_hint(w.runtime, seq, &hint), KVT_INVAL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_below_does_not_outlive_what_a_step_adds_to_its_block),
        cmocka_unit_test(a_shared_block_is_not_replaced_under_a_step),
        cmocka_unit_test(a_snapshot_is_the_state_at_its_place_though_the_step_goes_on),
        cmocka_unit_test(a_hint_of_no_sequence_or_no_meaning_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
