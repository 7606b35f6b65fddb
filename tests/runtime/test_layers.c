/*
 * Steps that begin while their blocks land, layer by layer: each layer is read behind its load, and what was computed from
 * what did not land is taken back.
 */
#include "runtime/residency.h"
#include "tests/runtime/world.h"

enum { LAYERS = 2, BLOCKS = 4, TOKENS = BLOCKS * BLOCK_TOKENS, DEVICE_SLOTS = 8, FETCH = KVT_DEVICE_STREAM_FETCH };

/* A text of some blocks that host memory alone has. */
static void open_with_text(struct world *w, struct text *text)
{
    world_init(w, DEVICE_SLOTS, 60);
    w->config.is_layered = true;
    world_open(w);
    text_make(text, 1, TOKENS + 3 * BLOCK_TOKENS);
    struct text first = *text;
    first.count = TOKENS;
    (void)world_serve(w, &first);
    world_settle(w);
    world_flush(w, 99, false);
}

/* A sequence that begins with it, and room for n more tokens. */
static kvt_seq create(struct world *w, const struct text *text, uint64_t n)
{
    kvt_seq seq;
    assert_int_equal(world_create(w, text, TOKENS, false, &seq), TOKENS);
    if (n > 0) assert_int_equal(world_reserve(w, seq, n), KVT_ROOM_OK);
    return seq;
}

static enum kvt_ready begin(struct world *w, kvt_seq seq, kvt_step *ret_step)
{
    struct kvt_step_entry entry = { .seq = seq };
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        assert_int_equal(kvt_step_begin(w->runtime, &entry, 1, kvt_emulated_stream(w->runtime, 0), ret_step), KVT_OK);
        if (entry.ready != KVT_NOT_READY) break;
        world_pump(w, 1);
    }
    return entry.ready;
}

/* Kernels that read one layer of all its blocks. */
static void check_layer(struct world *w, const struct text *text, kvt_seq seq, uint32_t layer)
{
    uint32_t slots[16];
    uint64_t first, count;
    assert_int_equal(kvt_seq_table(w->runtime, seq, 0, slots, 16, &first, &count), KVT_OK);
    for (uint32_t i = 0; i < BLOCKS; i++) world_check_chunk(w, text, layer, i, slots[i] * LAYERS + layer, TOKENS, 0);
}

static enum kvt_ready landed(struct world *w, kvt_seq seq, uint64_t *ret_lost_from)
{
    enum kvt_ready ready = KVT_NOT_READY;
    assert_int_equal(kvt_seq_landed(w->runtime, seq, &ready, ret_lost_from), KVT_OK);
    return ready;
}

static void run_until_reached(struct world *w, uint32_t range)
{
    const kvt_mark mark = world_core(w)->steps[0].range_marks[0][range];
    while (!w->gpu->ops->is_reached(w->gpu, mark)) assert_true(kvt_gpu_emulated_run(w->gpu, FETCH));
}

/* Negative control: LAYER_BEFORE_LOAD. Kernels are queued before anything has moved. */
static void b07_a_layer_is_read_only_behind_its_load(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    uint64_t lost_from;
    open_with_text(&w, &text);
    world_gate(&w, FETCH, true);
    const kvt_seq seq = create(&w, &text, 0);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        world_wait_layer(&w, step, 0, layer, 0);
        check_layer(&w, &text, seq, layer);
    }
    world_end(&w, step);
    const uint64_t checked = w.rows_checked;
    world_crank(&w, 0);
    assert_int_equal(w.rows_wrong, 0);
    assert_int_equal(w.rows_checked, checked); /* nothing has landed, nothing was read */

    world_gate(&w, FETCH, false);
    run_until_reached(&w, 0);
    world_crank(&w, 0); /* layer 0 is computed while layer 1 is still to come */
    assert_int_equal(w.rows_checked, checked + 2 * TOKENS);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_READY); /* it pumps: the rest lands */
    world_crank(&w, 0);
    assert_int_equal(w.rows_checked, checked + 4 * TOKENS);
    assert_int_equal(w.rows_wrong, 0);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_READY);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void a_layer_that_was_not_waited_for_takes_its_step_back(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    uint64_t lost_from, kept;
    open_with_text(&w, &text);
    const kvt_seq seq = create(&w, &text, 5);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    world_wait_layer(&w, step, 0, 1, 0); /* and not for layer 0 */
    world_write(&w, &text, seq, TOKENS, 5, 0);
    world_end(&w, step);
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, TOKENS);
    assert_int_equal(begin(&w, seq, &step), KVT_LOST);
    assert_int_equal(kvt_seq_truncate(w.runtime, seq, lost_from, NULL, &kept), KVT_OK);
    world_step(&w, &text, seq, 5, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_close(&w);
}

/* All may have landed before the step's end, and its kernels have read other bytes all the same. */
static void a_step_that_is_still_open_is_not_told_to_be_right(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    uint64_t lost_from, kept;
    open_with_text(&w, &text);
    const kvt_seq seq = create(&w, &text, BLOCK_TOKENS);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING); /* and no layer is waited for */
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_NOT_READY);
    world_write(&w, &text, seq, TOKENS, BLOCK_TOKENS, 0);
    world_end(&w, step);
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, TOKENS);
    assert_int_equal(kvt_seq_truncate(w.runtime, seq, lost_from, NULL, &kept), KVT_OK);
    world_finish(&w, seq, true);
    kvt_seq other;
    assert_int_equal(world_create(&w, &text, TOKENS + 2 * BLOCK_TOKENS, true, &other), TOKENS);
    world_finish(&w, other, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/* Begins a landing step that fills two more blocks, all layers waited for, and ends it. */
static kvt_seq compute_while_landing(struct world *w, const struct text *text)
{
    kvt_step step;
    const kvt_seq seq = create(w, text, 2 * BLOCK_TOKENS);
    assert_int_equal(begin(w, seq, &step), KVT_LANDING);
    for (uint32_t layer = 0; layer < LAYERS; layer++) world_wait_layer(w, step, 0, layer, 0);
    world_write(w, text, seq, TOKENS, 2 * BLOCK_TOKENS, 0);
    world_end(w, step);
    world_verify(w);
    return seq;
}

/* How much of the text another sequence would find. */
static uint64_t found(struct world *w, const struct text *text)
{
    kvt_seq seq;
    const uint64_t reused = world_create(w, text, TOKENS + 2 * BLOCK_TOKENS, true, &seq);
    world_finish(w, seq, true);
    return reused;
}

static void what_a_landing_step_computes_is_found_when_all_has_landed_and_not_before(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint64_t lost_from;
    kvt_seq fork;
    open_with_text(&w, &text);
    world_gate(&w, FETCH, true);
    const kvt_seq seq = compute_while_landing(&w, &text);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_NOT_READY);
    assert_int_equal(found(&w, &text), TOKENS);
    assert_int_equal(kvt_seq_fork(w.runtime, seq, &fork), KVT_INVAL);
    world_gate(&w, FETCH, false);
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_READY);
    assert_int_equal(found(&w, &text), TOKENS + 2 * BLOCK_TOKENS);
    world_step(&w, &text, seq, 3, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void a_load_that_fails_takes_back_what_its_step_computed(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    uint64_t lost_from, kept;
    for (uint32_t job = 1; job <= BLOCKS * LAYERS; job++) { /* each part of each block once */
        open_with_text(&w, &text);
        kvt_gpu_emulated_fault_at(w.gpu, FETCH, job, job % 2 ? KVT_GPU_FAULT_FAIL : KVT_GPU_FAULT_FAIL_LATE);
        const kvt_seq seq = compute_while_landing(&w, &text);
        world_settle(&w);
        world_verify(&w);
        assert_int_equal(landed(&w, seq, &lost_from), KVT_LOST);
        assert_int_equal(lost_from, TOKENS);
        assert_int_equal(found(&w, &text), TOKENS);
        assert_int_equal(begin(&w, seq, &step), KVT_LOST);
        assert_int_equal(kvt_seq_truncate(w.runtime, seq, lost_from, NULL, &kept), KVT_OK);
        assert_int_equal(kept, TOKENS);
        world_step(&w, &text, seq, 2 * BLOCK_TOKENS, true); /* checks all that was there */
        world_step(&w, &text, seq, 0, true);
        world_finish(&w, seq, true);
        world_settle(&w);
        assert_int_equal(found(&w, &text), TOKENS + 2 * BLOCK_TOKENS);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
}

static void a_fork_of_a_sequence_that_is_lost_is_lost_too(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq fork;
    kvt_step step;
    uint64_t lost_from, kept;
    open_with_text(&w, &text);
    kvt_gpu_emulated_fault_at(w.gpu, FETCH, 2, KVT_GPU_FAULT_FAIL_LATE);
    const kvt_seq seq = compute_while_landing(&w, &text);
    world_settle(&w);
    assert_int_equal(kvt_seq_fork(w.runtime, seq, &fork), KVT_OK); /* nobody has told the parent's engine yet */
    assert_int_equal(landed(&w, fork, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, TOKENS);
    assert_int_equal(begin(&w, fork, &step), KVT_LOST);
    assert_int_equal(kvt_seq_truncate(w.runtime, fork, lost_from, NULL, &kept), KVT_OK);
    assert_int_equal(kept, TOKENS);
    world_step(&w, &text, fork, BLOCK_TOKENS, true);
    assert_int_equal(begin(&w, seq, &step), KVT_LOST);
    world_finish(&w, seq, true);
    world_finish(&w, fork, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/* What is computed anew after a cut has its own loads to wait for. */
static void a_cut_takes_the_layers_that_were_not_waited_for_with_it(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    uint64_t lost_from, kept;
    open_with_text(&w, &text);
    const kvt_seq seq = create(&w, &text, 5);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    world_write(&w, &text, seq, TOKENS, 5, 0);
    world_end(&w, step);
    assert_int_equal(kvt_seq_truncate(w.runtime, seq, TOKENS, NULL, &kept), KVT_OK);
    assert_int_equal(kept, TOKENS);
    world_settle(&w);
    world_idle(&w, seq);
    world_flush(&w, 98, false);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    assert_int_equal(world_reserve(&w, seq, 5), KVT_ROOM_OK);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    for (uint32_t layer = 0; layer < LAYERS; layer++) world_wait_layer(&w, step, 0, layer, 0);
    world_write(&w, &text, seq, TOKENS, 5, 0);
    world_end(&w, step);
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_READY);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_close(&w);
}

/* Goal: host memory had all blocks, so the planner left them to the step; before it began, one went down to nvme. */
static void b24_a_block_that_leaves_host_memory_before_its_step_is_brought_all_the_same(void **state)
{
    (void)state;
    for (uint32_t gone = 0; gone < BLOCKS; gone++) {
        struct world w;
        struct text text, first;
        kvt_seq seq;
        kvt_step step;
        world_init(&w, DEVICE_SLOTS, 60);
        world_add_disk(&w, 60, 8 * KVT_MIB);
        w.config.is_layered = true;
        world_open(&w);
        text_make(&text, 1, TOKENS + 3 * BLOCK_TOKENS);
        first = text;
        first.count = TOKENS;
        (void)world_serve(&w, &first);
        world_settle(&w);
        world_flush(&w, 99, false);
        assert_int_equal(world_create(&w, &text, TOKENS, false, &seq), TOKENS);
        world_pump(&w, 5); /* the planner has passed all of them by */
        const struct kvt_sequence *sequence = kvt_sequence_of(world_core(&w), seq);
        const uint32_t block = sequence->groups[0].blocks[gone];
        assert_true(kvt_copy_is_resident(kvt_core_block(world_core(&w), block), KVT_TIER_NVME));
        kvt_host_drop(world_core(&w), block, KVT_POLICY_EVICTED);
        const enum kvt_ready ready = begin(&w, seq, &step);
        assert_true(ready == KVT_READY || ready == KVT_LANDING);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            world_wait_layer(&w, step, 0, layer, 0);
            check_layer(&w, &text, seq, layer);
        }
        world_end(&w, step);
        world_settle(&w);
        assert_int_equal(w.rows_wrong, 0);
        world_finish(&w, seq, true);
        world_close(&w);
    }
}

static void drop_copies(struct world *w, uint32_t block, bool is_lost)
{
    struct kvt_core *core = world_core(w);
    if (kvt_copy_is_resident(kvt_core_block(core, block), KVT_TIER_DEVICE))
        kvt_device_drop(core, block, KVT_POLICY_EVICTED);
    if (is_lost && kvt_copy_is_resident(kvt_core_block(core, block), KVT_TIER_HOST))
        kvt_host_drop(core, block, KVT_POLICY_EVICTED);
}

/* Goal: the blocks of the first group wait in host memory for a step, which cannot begin: the state is gone. */
static void b24_a_state_that_is_lost_is_told_though_blocks_before_it_wait_for_the_step(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, DEVICE_SLOTS, 60);
    w.config.is_layered = true;
    w.config.shape.group_count = 2;
    w.config.shape.groups[1] = (struct kvt_group_shape){
        .kind = KVT_GROUP_STATE, .dtype = KVT_DTYPE_FP32, .layers = 1, .state_bytes = BLOCK_BYTES
    };
    world_open(&w);
    text_make(&text, 1, TOKENS);
    (void)world_create(&w, &text, TOKENS, false, &seq);
    assert_int_equal(world_reserve(&w, seq, 2 * BLOCK_TOKENS), KVT_ROOM_OK);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(
        kvt_seq_commit(w.runtime, seq, text.tokens, 2 * BLOCK_TOKENS, 0, kvt_emulated_stream(w.runtime, 0)), KVT_OK);
    world_end(&w, step);
    world_settle(&w);
    world_idle(&w, seq);
    world_settle(&w);
    const struct kvt_sequence *sequence = kvt_sequence_of(world_core(&w), seq);
    for (uint32_t i = 0; i < 2; i++) drop_copies(&w, sequence->groups[0].blocks[i], false);
    drop_copies(&w, sequence->groups[1].live, true);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    assert_int_equal(begin(&w, seq, &step), KVT_LOST);
    world_finish(&w, seq, true);
    world_close(&w);
}

/* Goal: the sequence no longer has the block, and its tokens were computed from it all the same. */
static void a_load_that_fails_after_its_window_has_moved_on_is_told_too(void **state)
{
    (void)state;
    struct world w;
    struct text text, first;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, DEVICE_SLOTS, 60);
    w.config.is_layered = true;
    w.config.shape.groups[0].kind = KVT_GROUP_WINDOW;
    w.config.shape.groups[0].window_tokens = 2 * BLOCK_TOKENS;
    world_open(&w);
    text_make(&text, 1, TOKENS + 3 * BLOCK_TOKENS);
    first = text;
    first.count = TOKENS;
    (void)world_serve(&w, &first);
    world_settle(&w);
    world_flush(&w, 99, false);
    world_gate(&w, FETCH, true);
    assert_int_equal(world_create(&w, &text, TOKENS, false, &seq), TOKENS);
    assert_int_equal(world_reserve(&w, seq, 3 * BLOCK_TOKENS), KVT_ROOM_OK);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    for (uint32_t layer = 0; layer < LAYERS; layer++) world_wait_layer(&w, step, 0, layer, 0);
    world_write(&w, &text, seq, TOKENS, 3 * BLOCK_TOKENS, 0);
    world_end(&w, step);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_NOT_READY);
    kvt_gpu_emulated_fault_at(w.gpu, FETCH, 1, KVT_GPU_FAULT_FAIL);
    world_gate(&w, FETCH, false);
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, TOKENS);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void a_load_that_hangs_takes_back_what_its_step_computed(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint64_t lost_from;
    open_with_text(&w, &text);
    world_gate(&w, FETCH, true);
    const kvt_seq seq = compute_while_landing(&w, &text);
    world_advance(&w, 31 * SECOND);
    world_verify(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, TOKENS);
    world_finish(&w, seq, true);
    world_verify(&w);
    world_gate(&w, FETCH, false);
    world_settle(&w);
    world_verify_idle(&w);
    assert_int_equal(found(&w, &text), TOKENS);
    world_settle(&w);
    world_close(&w);
}

static void a_sequence_may_idle_and_end_while_its_blocks_land(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint64_t lost_from;
    open_with_text(&w, &text);
    world_gate(&w, FETCH, true);
    kvt_seq seq = compute_while_landing(&w, &text);
    world_idle(&w, seq);
    world_verify(&w);
    world_gate(&w, FETCH, false);
    world_settle(&w);
    assert_int_equal(landed(&w, seq, &lost_from), KVT_READY);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_step(&w, &text, seq, 1, true);
    world_finish(&w, seq, false);
    world_flush(&w, 98, false);
    world_gate(&w, FETCH, true);
    seq = compute_while_landing(&w, &text);
    world_finish(&w, seq, true); /* what it computed is not known to be right: it is not kept */
    assert_int_equal(found(&w, &text), TOKENS);
    world_gate(&w, FETCH, false);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void an_unsealed_tail_is_never_left_to_a_step(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    kvt_step step;
    world_init(&w, DEVICE_SLOTS, 60);
    w.config.is_layered = true;
    world_open(&w);
    text_make(&text, 1, 3 * BLOCK_TOKENS);
    (void)world_create(&w, &text, text.count, false, &seq);
    world_step(&w, &text, seq, 2 * BLOCK_TOKENS + 5, true);
    world_idle(&w, seq);
    world_flush(&w, 5, false);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    assert_int_equal(world_reserve(&w, seq, 2), KVT_ROOM_OK);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    const uint32_t tail = world_core(&w)->sequences[0].groups[0].blocks[2];
    assert_true(kvt_copy_is_resident(kvt_core_block(world_core(&w), tail), KVT_TIER_DEVICE));
    for (uint32_t layer = 0; layer < LAYERS; layer++) world_wait_layer(&w, step, 0, layer, 0);
    world_check(&w, &text, seq, 2 * BLOCK_TOKENS + 5, 0);
    world_write(&w, &text, seq, 2 * BLOCK_TOKENS + 5, 2, 0);
    world_end(&w, step);
    world_settle(&w);
    world_step(&w, &text, seq, 1, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_close(&w);
}

static void what_does_not_fit_into_the_queue_at_once_comes_whole(void **state)
{
    (void)state;
    struct world w;
    struct text text, first;
    kvt_seq seq;
    kvt_step step;
    world_init(&w, DEVICE_SLOTS, 60);
    w.config.is_layered = true;
    w.config.transfers_max = 6;
    world_open(&w);
    text_make(&text, 1, TOKENS + 16);
    first = text;
    first.count = TOKENS;
    (void)world_serve(&w, &first);
    world_settle(&w);
    world_flush(&w, 99, false);
    (void)world_create(&w, &text, TOKENS, false, &seq);
    assert_int_equal(begin(&w, seq, &step), KVT_READY);
    world_check(&w, &text, seq, TOKENS, 0);
    world_end(&w, step);
    world_crank(&w, 0);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_close(&w);
}

static void what_no_step_has_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    enum kvt_ready ready;
    uint64_t lost_from;
    open_with_text(&w, &text);
    const kvt_seq seq = create(&w, &text, 0);
    assert_int_equal(begin(&w, seq, &step), KVT_LANDING);
    assert_int_equal(kvt_step_wait_layer(w.runtime, step, 1, 0, NULL), KVT_INVAL);
    assert_int_equal(kvt_step_wait_layer(w.runtime, step, 0, LAYERS, NULL), KVT_INVAL);
    for (uint32_t layer = 0; layer < LAYERS; layer++) world_wait_layer(&w, step, 0, layer, 0);
    world_end(&w, step);
    assert_int_equal(kvt_step_wait_layer(w.runtime, step, 0, 0, NULL), KVT_INVAL);
    assert_int_equal(kvt_seq_landed(w.runtime, seq + 1, &ready, &lost_from), KVT_INVAL);
    world_settle(&w);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_close(&w);
}

/* A request on a text that may be found: one step, ended before anything of it has run. Returns what it was told. */
static enum kvt_ready random_request(struct world *w, const struct text *text, struct kvt_rng *rng, uint64_t *landings)
{
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    const uint64_t wrong_before = w->rows_wrong;
    const uint64_t from = world_create(w, text, 5 * BLOCK_TOKENS, false, &seq);
    const uint64_t n = 1 + kvt_rng_below(rng, text->count - from);
    enum kvt_ready ready = KVT_NOT_READY;
    if (world_resume(w, seq) == KVT_ROOM_OK && world_reserve(w, seq, n) == KVT_ROOM_OK) ready = begin(w, seq, &step);
    if (ready == KVT_LANDING || ready == KVT_READY) {
        *landings += ready == KVT_LANDING;
        for (uint32_t layer = 0; layer < LAYERS; layer++) world_wait_layer(w, step, 0, layer, 0);
        world_check(w, text, seq, from, 0);
        world_write(w, text, seq, from, n, 0);
        world_end(w, step);
        world_verify(w);
        if (kvt_rng_below(rng, 3) > 0) world_settle(w);
        world_crank(w, 0);
        for (uint32_t i = 0; i < ROUNDS_MAX && (ready = landed(w, seq, &lost_from)) == KVT_NOT_READY; i++)
            world_pump(w, 1);
        world_crank(w, 0);
        assert_int_not_equal(ready, KVT_NOT_READY);
    }
    /* Other bytes may have been read by a step that is told to be lost, and by no other. */
    if (ready == KVT_READY) assert_int_equal(w->rows_wrong, wrong_before);
    w->rows_wrong = wrong_before;
    world_finish(w, seq, true);
    world_verify(w);
    return ready;
}

static void random_use_reads_exact_bytes_or_is_told(void **state)
{
    (void)state;
    uint64_t landings = 0, lost = 0, right = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct world w;
        struct text texts[6];
        struct kvt_rng rng = { .state = seed };
        world_init(&w, 12, 60);
        w.config.is_layered = true;
        w.config.is_codec_off = seed % 2 == 0;
        world_open(&w);
        for (uint32_t i = 0; i < 6; i++) text_make(&texts[i], seed * 10 + i, 5 * BLOCK_TOKENS + 20);
        kvt_gpu_emulated_fault_randomly(w.gpu, FETCH, seed % 3 ? 30000 : 0, seed, KVT_GPU_FAULT_FAIL_LATE);
        for (uint32_t round = 0; round < 60; round++) {
            const enum kvt_ready ready = random_request(&w, &texts[kvt_rng_below(&rng, 6)], &rng, &landings);
            lost += ready == KVT_LOST;
            right += ready == KVT_READY;
        }
        kvt_gpu_emulated_fault_randomly(w.gpu, FETCH, 0, seed, KVT_GPU_FAULT_NONE);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
    assert_true(landings > 50 && lost > 5 && right > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b07_a_layer_is_read_only_behind_its_load),
        cmocka_unit_test(a_layer_that_was_not_waited_for_takes_its_step_back),
        cmocka_unit_test(a_step_that_is_still_open_is_not_told_to_be_right),
        cmocka_unit_test(a_fork_of_a_sequence_that_is_lost_is_lost_too),
        cmocka_unit_test(a_cut_takes_the_layers_that_were_not_waited_for_with_it),
        cmocka_unit_test(what_a_landing_step_computes_is_found_when_all_has_landed_and_not_before),
        cmocka_unit_test(a_load_that_fails_takes_back_what_its_step_computed),
        cmocka_unit_test(b24_a_block_that_leaves_host_memory_before_its_step_is_brought_all_the_same),
        cmocka_unit_test(b24_a_state_that_is_lost_is_told_though_blocks_before_it_wait_for_the_step),
        cmocka_unit_test(a_load_that_fails_after_its_window_has_moved_on_is_told_too),
        cmocka_unit_test(a_load_that_hangs_takes_back_what_its_step_computed),
        cmocka_unit_test(a_sequence_may_idle_and_end_while_its_blocks_land),
        cmocka_unit_test(an_unsealed_tail_is_never_left_to_a_step),
        cmocka_unit_test(what_does_not_fit_into_the_queue_at_once_comes_whole),
        cmocka_unit_test(what_no_step_has_is_refused),
        cmocka_unit_test(random_use_reads_exact_bytes_or_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
