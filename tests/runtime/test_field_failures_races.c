/*
 * Field failures B03 to B19 that are races of copies with evictions, releases and each other, through the whole
 * runtime.
 */
#include "kvtier/store.h"
#include "runtime/residency.h"
#include "tests/runtime/world.h"
#include "tiers/nvme_tier.h"

enum { TWO = 2 * BLOCK_TOKENS, FOUR = 4 * BLOCK_TOKENS };

/* The stash of a sequence's blocks is late; the sequence is preempted (or ends), and others want its slots. */
static void preempted(bool is_finished)
{
    struct world w;
    struct text text, other;
    kvt_seq seq, thief;
    world_init(&w, 4, 16);
    world_open(&w);
    text_make(&text, 1, TWO);
    text_make(&other, 2, FOUR);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, true);
    (void)world_create(&w, &text, text.count, false, &seq);
    world_step(&w, &text, seq, text.count, true);
    world_pump(&w, 5);
    assert_int_equal(world_core(&w)->transfers.in_flight, 2);
    if (is_finished) world_finish(&w, seq, true);
    else world_idle(&w, seq);

    (void)world_create(&w, &other, other.count, false, &thief);
    assert_int_equal(world_reserve(&w, thief, FOUR), KVT_ROOM_PENDING);
    /* Admitted again meanwhile, it finds its blocks where they were; and may be preempted once more. */
    if (is_finished) assert_int_equal(world_create(&w, &text, text.count, false, &seq), TWO);
    else assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_step(&w, &text, seq, 0, true);
    world_idle(&w, seq);
    assert_int_equal(world_reserve(&w, thief, FOUR), KVT_ROOM_PENDING);
    world_verify(&w);

    world_gate(&w, KVT_DEVICE_STREAM_STASH, false);
    world_step(&w, &other, thief, FOUR, true); /* fills the slots with other bytes */
    world_finish(&w, thief, true);
    world_settle(&w);
    world_finish(&w, seq, true);
    assert_int_equal(world_read(&w, &text), TWO);
    assert_int_equal(w.rows_wrong, 0);
    world_close(&w);
}

static void b03_a_preempted_sequences_blocks_are_not_reused_while_their_stash_is_in_flight(void **state)
{
    (void)state;
    preempted(false);
    preempted(true);
}

/* Everything that could ask for a stash of the blocks does so, while they are still on their way to the device. */
static void ask_for_stashes(struct world *world, const struct text *other)
{
    struct kvt_core *core = world_core(world);
    kvt_seq seq;
    uint32_t filling = 0;
    for (uint32_t b = 0; b < core->table.high_water; b++) {
        if (kvt_copy_state(kvt_core_block(core, b), KVT_TIER_DEVICE) != KVT_COPY_FILLING) continue;
        kvt_write_back_push(core, 0, b);
        kvt_write_back_push(core, 1, b);
        filling++;
    }
    assert_int_equal(filling, 4);
    (void)world_create(world, other, other->count, false, &seq);
    assert_int_not_equal(world_reserve(world, seq, other->count), KVT_ROOM_OK);
    world_pump(world, 10);
    world_finish(world, seq, false);
    world_verify(world);
}

/* Promotes the text's 4 blocks, held up on the device link or on the disk; preempts; asks for stashes; looks again. */
static void stashed_while_loading(bool is_from_disk)
{
    struct world w;
    struct text text, other;
    kvt_seq seq;
    world_init(&w, 4, 16);
    if (is_from_disk) world_add_disk(&w, 8, 8 * KVT_MIB);
    world_open(&w);
    text_make(&text, 1, FOUR);
    text_make(&other, 2, FOUR);
    (void)world_serve(&w, &text);
    world_settle(&w);
    world_flush(&w, 3, is_from_disk);
    if (is_from_disk) io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_HELD, 1000000);
    else world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_create(&w, &text, FOUR, false, &seq), FOUR);
    world_pump(&w, 20);
    const uint64_t stashes_before = world_stats(&w).stashes;
    ask_for_stashes(&w, &other);
    world_idle(&w, seq);
    ask_for_stashes(&w, &other);
    const uint64_t stashes_after = world_stats(&w).stashes;
    if (is_from_disk) io_faulty_heal(w.image);
    else world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    world_finish(&w, seq, true);
    world_flush(&w, 4, is_from_disk); /* the device copies go; what was stored, if anything was, is what is left */
    assert_int_equal(world_read(&w, &text), FOUR);
    assert_int_equal(w.rows_wrong, 0);
    assert_int_equal(stashes_after, stashes_before);
    world_close(&w);
}

static void b04_a_block_that_is_loading_is_not_stashed(void **state)
{
    (void)state;
    stashed_while_loading(false);
    stashed_while_loading(true);
}

/* Found, and then others fill the tier: what was found stays until it is loaded, or let go. */
static void b05_what_lookup_found_is_held_until_it_is_used_or_let_go(void **state)
{
    (void)state;
    struct world w;
    struct text text, other;
    kvt_seq seq;
    world_init(&w, 4, 4);
    world_open(&w);
    text_make(&text, 1, TWO);
    text_make(&other, 2, FOUR);
    (void)world_serve(&w, &text);
    world_settle(&w);
    (void)world_serve(&w, &other); /* to host memory, which is full of cached blocks */
    world_settle(&w);
    assert_int_equal(world_create(&w, &text, TWO, true, &seq), TWO);
    world_flush(&w, 11, true);
    world_flush(&w, 12, true);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_step(&w, &text, seq, 0, true); /* checks all of it */
    assert_int_equal(w.rows_checked > 0, 1);

    /* Let go without a load: it is as evictable as anything. */
    world_idle(&w, seq);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_flush(&w, 13, true);
    assert_int_equal(world_read(&w, &text), 0);
    world_close(&w);
}

/* The source of a fetch is wanted by others, its owner is gone, and the fetch takes longer than any deadline. */
static void source_reclaimed(bool is_overdue, bool has_full_disk)
{
    struct world w;
    struct text text, other;
    kvt_seq seq;
    world_init(&w, 6, 4);
    if (has_full_disk) world_add_disk(&w, 4, 4 * KVT_MIB);
    world_open(&w);
    /* nothing goes on from host memory */
    if (has_full_disk) io_faulty_rate(w.image, IO_FAULTY_WRITE, IO_FAULTY_ENOSPC, 1000000);
    text_make(&text, 1, TWO);
    (void)world_serve(&w, &text);
    world_settle(&w);
    for (uint64_t i = 0; i < 2; i++) { /* out of the device, not out of the host */
        text_make(&other, 20 + i, 3 * BLOCK_TOKENS);
        (void)world_serve(&w, &other);
        world_settle(&w);
    }
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_create(&w, &text, TWO, false, &seq), TWO);
    world_pump(&w, 10);
    assert_int_equal(world_core(&w)->transfers.in_flight, 2);
    world_finish(&w, seq, true);       /* nobody refers to the source but the fetch */
    for (uint64_t i = 0; i < 6; i++) { /* host slots for all that is not in use */
        text_make(&other, 30 + i, FOUR);
        (void)world_create(&w, &other, FOUR, false, &seq);
        if (world_reserve(&w, seq, FOUR) == KVT_ROOM_OK) world_step(&w, &other, seq, FOUR, true);
        world_finish(&w, seq, true);
        world_pump(&w, 20);
        world_verify(&w);
    }
    if (is_overdue) {
        world_advance(&w, 40 * SECOND);
        assert_true(world_stats(&w).abandoned >= 2);
    }
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    const uint64_t found = world_read(&w, &text);
    assert_int_equal(w.rows_wrong, 0);
    if (!is_overdue) assert_int_equal(found, TWO);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void b06_the_source_of_a_fetch_is_never_a_victim_before_its_end(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) source_reclaimed(i % 2 != 0, i / 2 != 0);
}

/* The report's own case: device slot 0 goes to a host slot while a host slot comes to another device slot. */
static void b08_a_stash_and_a_fetch_between_equal_slot_numbers_are_two_things(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 2; first++) {
        struct world w;
        struct text up, down;
        kvt_seq seq;
        world_init(&w, 2, 8);
        world_open(&w);
        text_make(&up, 1, BLOCK_TOKENS);
        text_make(&down, 2, BLOCK_TOKENS);
        (void)world_serve(&w, &up);
        world_settle(&w);
        world_flush(&w, 3, false);
        world_gate(&w, KVT_DEVICE_STREAM_STASH, true);
        world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
        (void)world_serve(&w, &down); /* its stash is late */
        assert_int_equal(world_create(&w, &up, BLOCK_TOKENS, false, &seq), BLOCK_TOKENS);
        world_pump(&w, 10);
        struct kvt_core *core = world_core(&w);
        assert_int_equal(core->transfers.in_flight, 2);
        uint32_t device_reads = 0, device_writes = 0, host_reads = 0, host_writes = 0;
        for (uint32_t b = 0; b < core->table.high_water; b++) {
            const struct kvt_block *block = kvt_core_block(core, b);
            device_reads += block->readers[KVT_TIER_DEVICE];
            host_reads += block->readers[KVT_TIER_HOST];
            device_writes += kvt_copy_state(block, KVT_TIER_DEVICE) == KVT_COPY_FILLING;
            host_writes += kvt_copy_state(block, KVT_TIER_HOST) == KVT_COPY_FILLING;
        }
        assert_int_equal(device_reads, 1);
        assert_int_equal(device_writes, 1);
        assert_int_equal(host_reads, 1);
        assert_int_equal(host_writes, 1);
        world_gate(&w, first, false);
        world_pump(&w, 10);
        assert_int_equal(core->transfers.in_flight, 1);
        world_gate(&w, 1 - first, false);
        world_settle(&w);
        world_step(&w, &up, seq, 0, true);
        world_finish(&w, seq, true);
        world_flush(&w, 4, false);
        assert_int_equal(world_read(&w, &down), BLOCK_TOKENS);
        world_close(&w);
    }
}

/* Tables carry slots, whatever moves meanwhile: every row that attention reads through them is right. */
static void b08_block_tables_name_the_right_slots_under_a_random_mix(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world w;
        world_init(&w, 12, 10);
        if (seed % 2 == 0) world_add_disk(&w, 10, 4 * KVT_MIB);
        w.config.is_codec_off = seed % 3 != 0;
        if (!w.config.is_codec_off) w.config.host_bytes += 2 * KVT_MIB; /* the codec's scratch */
        world_open(&w);
        world_mix(&w,
                  &(struct mix){ .seed = seed,
                                 .steps = 2500,
                                 .live_max = 6,
                                 .tokens_max = 7 * BLOCK_TOKENS,
                                 .verify_every = 10,
                                 .is_gating = true });
        assert_true(w.rows_checked > 1000);
        world_close(&w);
    }
}

/*
 * Blocks, slots and budgets of requests that are gone come back, and a completion that comes too late changes nothing.
 */
static void b19_blocks_and_budgets_come_back_after_the_deadline(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 2; round++) {
        const bool is_prefetch = round == 1;
        struct world w;
        struct text text, other;
        kvt_seq seq;
        world_init(&w, 8, 16);
        w.config.transfers_max = 6;
        w.config.prefetch_bytes_max = 4 * BLOCK_BYTES;
        world_open(&w);
        text_make(&text, 1, FOUR);
        (void)world_serve(&w, &text);
        world_settle(&w);
        world_flush(&w, 3, false);
        world_gate(&w, KVT_DEVICE_STREAM_FETCH, true); /* no completion comes */
        assert_int_equal(world_create(&w, &text, FOUR, is_prefetch, &seq), FOUR);
        if (is_prefetch) kvt_expect(w.runtime, &seq, &(uint32_t){ 0 }, 1);
        world_pump(&w, 10);
        assert_int_equal(world_core(&w)->transfers.in_flight, 4);
        if (is_prefetch) assert_true(world_core(&w)->transfers.prefetch_bytes > 0);
        world_finish(&w, seq, true);
        world_advance(&w, 29 * SECOND);
        assert_int_equal(world_stats(&w).abandoned, 0);
        world_advance(&w, 2 * SECOND);
        assert_int_equal(world_stats(&w).abandoned, 4);
        assert_int_equal(world_core(&w)->transfers.prefetch_bytes, 0);
        assert_int_equal(world_stats(&w).quarantined, 4);
        /* The device may still write to these four slots: they stay out of use. The others serve. */
        text_make(&other, 5, FOUR);
        (void)world_serve(&w, &other);
        world_verify(&w);
        text_make(&other, 6, 5 * BLOCK_TOKENS);
        (void)world_create(&w, &other, other.count, false, &seq);
        assert_int_not_equal(world_reserve(&w, seq, other.count), KVT_ROOM_OK);
        world_finish(&w, seq, false);

        world_gate(&w, KVT_DEVICE_STREAM_FETCH, false); /* now they come, late */
        world_settle(&w);
        world_verify_idle(&w);
        assert_int_equal(world_read(&w, &text), FOUR);
        text_make(&other, 7, 8 * BLOCK_TOKENS); /* all slots are there again */
        (void)world_serve(&w, &other);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
}

/* Every record leaves the store, as when its segment is recycled. */
static void forget_records(struct world *world)
{
    struct kvt_store *store = kvt_nvme_tier_store(world->runtime->nvme);
    struct kvt_store_listed listed[64];
    uint64_t cursor = 0;
    uint32_t n;
    while ((n = kvt_store_list(store, &cursor, listed, 64)) > 0) {
        for (uint32_t i = 0; i < n; i++) (void)kvt_store_delete(store, &listed[i].name, 1);
    }
}

/*
 * Blocks are being read from the disk for a sequence that ends meanwhile, so that nobody holds them; their records leave;
 * and somebody else finds the blocks, whose reads are still under way.
 */
static void found_while_it_is_read(bool is_held_to_the_end, bool does_read_fail)
{
    struct world w;
    struct text text;
    kvt_seq seq, next;
    uint64_t lost_from = 0;
    kvt_step step = 0;
    world_init(&w, 4, 16);
    world_add_disk(&w, 8, 8 * KVT_MIB);
    world_open(&w);
    text_make(&text, 1, FOUR);
    (void)world_serve(&w, &text);
    world_settle(&w);
    world_flush(&w, 3, true);
    io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_HELD, 1000000);
    assert_int_equal(world_create(&w, &text, FOUR, false, &seq), FOUR);
    world_pump(&w, 20);
    assert_int_equal(world_core(&w)->transfers.in_flight, 4);
    if (!is_held_to_the_end) world_finish(&w, seq, true);
    forget_records(&w);
    world_pump(&w, 5);
    world_verify(&w);
    assert_int_equal(world_create(&w, &text, FOUR, false, &next), FOUR); /* joins the reads */
    world_verify(&w);
    io_faulty_heal(w.image);
    if (does_read_fail) io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_EIO, 1000000);
    if (is_held_to_the_end) world_finish(&w, seq, true);
    const enum kvt_ready ready = world_begin(&w, next, 0, &step, &lost_from);
    world_verify(&w);
    if (ready == KVT_READY) {
        world_check(&w, &text, next, FOUR, 0);
        world_end(&w, step);
        world_crank(&w, 0);
    } else {
        assert_int_equal(ready, KVT_LOST); /* told, not waited for */
    }
    io_faulty_heal(w.image);
    world_finish(&w, next, true);
    world_settle(&w);
    world_verify_idle(&w);
    assert_int_equal(w.rows_wrong, 0);
    world_close(&w);
}

static void b10_a_record_that_leaves_while_it_is_read_is_exact_or_lost_for_who_finds_its_block(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 4; n++) found_while_it_is_read(n & 1u, n & 2u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b03_a_preempted_sequences_blocks_are_not_reused_while_their_stash_is_in_flight),
        cmocka_unit_test(b04_a_block_that_is_loading_is_not_stashed),
        cmocka_unit_test(b05_what_lookup_found_is_held_until_it_is_used_or_let_go),
        cmocka_unit_test(b06_the_source_of_a_fetch_is_never_a_victim_before_its_end),
        cmocka_unit_test(b08_a_stash_and_a_fetch_between_equal_slot_numbers_are_two_things),
        cmocka_unit_test(b08_block_tables_name_the_right_slots_under_a_random_mix),
        cmocka_unit_test(b10_a_record_that_leaves_while_it_is_read_is_exact_or_lost_for_who_finds_its_block),
        cmocka_unit_test(b19_blocks_and_budgets_come_back_after_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
