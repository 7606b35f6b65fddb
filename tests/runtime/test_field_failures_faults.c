/*
 * Field failures that are about failing disks, links and records, through the whole runtime over a disk in memory:
 * whatever fails, a reader gets exact bytes or a miss, a miss heals, and nothing hangs.
 */
#include <stdio.h>

#include "tests/runtime/world.h"

enum { TWO = 2 * BLOCK_TOKENS, FOUR = 4 * BLOCK_TOKENS };

static void open_with_disk(struct world *w, uint32_t device_slots, uint32_t host_slots)
{
    world_init(w, device_slots, host_slots);
    world_add_disk(w, host_slots, 8 * KVT_MIB);
    world_open(w);
}

/* Serves the text and drives it out of device and host memory. */
static void put_on_disk(struct world *w, const struct text *text)
{
    (void)world_serve(w, text);
    world_settle(w);
    world_flush(w, 1000 + text->tokens[0], true);
}

/* Every segment file of the store. */
static uint32_t for_each_segment(struct world *w, void (*act)(struct world *w, const char *name, uint64_t size))
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < 256; i++) {
        char name[24];
        uint64_t size;
        (void)snprintf(name, sizeof name, "segment-%06u", i);
        if (!io_faulty_file_size(w->image, w->path, name, &size)) continue;
        act(w, name, size);
        count++;
    }
    return count;
}

static void cut_off(struct world *w, const char *name, uint64_t size)
{
    (void)size;
    assert_true(io_faulty_truncate(w->image, w->path, name, 0));
}

static void overwrite(struct world *w, const char *name, uint64_t size)
{
    static const uint8_t noise[4096] = { 1, 2, 3 };
    for (uint64_t at = 0; at + sizeof noise <= size; at += sizeof noise)
        assert_true(io_faulty_poke(w->image, w->path, name, at, noise, sizeof noise));
}

/*
 * Begins a step; a lost sequence is cut to what is left. Either way all that is there is checked. Returns what is left.
 */
static uint64_t check_what_is_left(struct world *w, const struct text *text, kvt_seq seq)
{
    kvt_step step;
    uint64_t lost_from, kept;
    enum kvt_ready ready = world_begin(w, seq, 0, &step, &lost_from);
    for (uint32_t cuts = 0; ready == KVT_LOST; cuts++) {
        assert_true(cuts < 8);
        assert_int_equal(kvt_seq_truncate(w->runtime, seq, lost_from, NULL, &kept), KVT_OK);
        assert_true(kept <= lost_from);
        ready = world_begin(w, seq, 0, &step, &lost_from);
    }
    assert_int_equal(ready, KVT_READY);
    const uint64_t left = kvt_seq_tokens(w->runtime, seq);
    world_check(w, text, seq, left, 0);
    world_end(w, step);
    world_crank(w, 0);
    assert_int_equal(w->rows_wrong, 0);
    return left;
}

/*
 * A request that only looks: what it was told it could have, it has, or it was told what is gone. Returns what it got.
 */
static uint64_t look(struct world *w, const struct text *text)
{
    kvt_seq seq;
    const uint64_t found = world_create(w, text, text->count, false, &seq);
    for (uint32_t round = 0; world_resume(w, seq) != KVT_ROOM_OK; round++) {
        assert_true(round < ROUNDS_MAX);
        world_pump(w, 1);
    }
    const uint64_t left = check_what_is_left(w, text, seq);
    assert_true(left <= found);
    world_finish(w, seq, true);
    return left;
}

/* Ends it as an engine would: computes what is missing and leaves it cached. */
static void compute_rest(struct world *w, const struct text *text, kvt_seq seq)
{
    world_step(w, text, seq, text->count - kvt_seq_tokens(w->runtime, seq), true);
    world_finish(w, seq, true);
    world_settle(w);
}

/* ---- B10 --------------------------------------------------------------------------------------------------------- */

/*
 * Between the index and the disk: the record's file is cut off, overwritten, or forgotten, while its read is under way.
 */
static void b10_a_read_that_races_with_eviction_is_a_miss(void **state)
{
    (void)state;
    for (uint32_t how = 0; how < 4; how++) {
        struct world w;
        struct text text;
        kvt_seq seq;
        uint64_t ignored;
        open_with_disk(&w, 4, 8);
        text_make(&text, 1, TWO);
        put_on_disk(&w, &text);
        io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_HELD, 1000000);
        assert_int_equal(world_create(&w, &text, TWO, false, &seq), TWO);
        world_pump(&w, 20);
        assert_int_equal(io_faulty_counters(w.image).held, 2);
        struct kvt_core *core = world_core(&w);
        if (how == 0) assert_true(for_each_segment(&w, cut_off) > 0);
        if (how == 1) assert_true(for_each_segment(&w, overwrite) > 0);
        if (how == 2) assert_int_equal(kvt_reset(w.runtime, &ignored), KVT_OK);
        for (uint32_t b = 0; how == 3 && b < core->table.high_water; b++) { /* deleted, and once more */
            const struct kvt_block *block = kvt_core_block(core, b);
            const struct kvt_name name = { core->config.space[0], block->key };
            if (kvt_copy_is_resident(block, KVT_TIER_NVME))
                for (uint32_t times = 0; times < 2; times++) core->nvme->ops->forget(core->nvme, &name);
        }
        io_faulty_heal(w.image);
        const uint64_t left = check_what_is_left(&w, &text, seq);
        if (how != 3) assert_int_equal(left, 0); /* a read that was under way may still end well */
        compute_rest(&w, &text, seq);
        world_verify_idle(&w); /* buffers and slots came back */
        if (how == 2) assert_int_equal(kvt_reset(w.runtime, &ignored), KVT_OK);
        (void)world_read(&w, &text);
        world_settle(&w);
        world_close(&w);
    }
}

/* ---- B11 --------------------------------------------------------------------------------------------------------- */

/*
 * A read that was given up still owns its buffer: nobody gets it before the read is back, and what others hold stays.
 */
static void b11_the_buffer_of_an_abandoned_read_is_nobodys_until_it_is_back(void **state)
{
    (void)state;
    struct world w;
    struct text text, other;
    kvt_seq seq;
    open_with_disk(&w, 4, 8);
    text_make(&text, 1, TWO);
    put_on_disk(&w, &text);
    io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_HELD, 1000000);
    assert_int_equal(world_create(&w, &text, TWO, false, &seq), TWO);
    world_pump(&w, 20);
    world_finish(&w, seq, true);
    world_advance(&w, 31 * SECOND);
    assert_int_equal(world_stats(&w).abandoned, 2);
    assert_int_equal(world_core(&w)->host.quarantined, 2);
    io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_HELD, 0); /* others are answered */
    struct text pattern[4];
    for (uint64_t i = 0; i < 4; i++) {
        text_make(&pattern[i], 40 + i, TWO);
        (void)world_serve(&w, &pattern[i]);
        world_pump(&w, 30);
        world_verify(&w);
    }
    assert_int_equal(io_faulty_counters(w.image).held, 2);
    assert_int_equal(world_core(&w)->host.quarantined, 2);
    (void)io_faulty_release(w.image); /* now they write */
    world_settle(&w);
    world_verify_idle(&w);
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(world_read(&w, &pattern[i]), TWO);
    assert_int_equal(world_read(&w, &text), TWO);
    for (uint64_t i = 0; i < 3; i++) { /* closes with reads under way */
        text_make(&other, 60 + i, TWO);
        put_on_disk(&w, &other);
        io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_DELAY, 1000000);
        (void)world_create(&w, &other, TWO, false, &seq);
        assert_true(world_core(&w)->transfers.in_flight > 0);
        world_reopen(&w);
    }
    world_close(&w);
}

/* ---- B25, B62 ---------------------------------------------------------------------------------------------------- */

static void b25_a_failed_fetch_turns_the_hit_into_a_miss_and_a_store_makes_it_a_hit_again(void **state)
{
    (void)state;
    const enum io_faulty_fault faults[] = { IO_FAULTY_FLIP, IO_FAULTY_EIO, IO_FAULTY_NONE };
    for (uint32_t f = 0; f < KVT_ARRAY_COUNT(faults); f++) {
        struct world w;
        struct text text;
        kvt_seq seq;
        open_with_disk(&w, 4, 8);
        text_make(&text, 1, TWO);
        put_on_disk(&w, &text);
        if (faults[f] == IO_FAULTY_NONE) (void)for_each_segment(&w, cut_off);
        else io_faulty_rate(w.image, IO_FAULTY_READ, faults[f], 1000000);
        assert_int_equal(world_create(&w, &text, TWO, false, &seq), TWO); /* found */
        const uint64_t reads_before = io_faulty_counters(w.image).reads;
        const uint64_t failures_before = world_stats(&w).failures;
        assert_int_equal(check_what_is_left(&w, &text, seq), 0); /* not there */
        assert_true(world_stats(&w).failures <= failures_before + 4);
        assert_true(io_faulty_counters(w.image).reads <= reads_before + 4); /* at most one retry a block */
        world_finish(&w, seq, true);
        const uint64_t reads_after = io_faulty_counters(w.image).reads;
        assert_int_equal(world_create(&w, &text, TWO, false, &seq), 0); /* and not found again */
        assert_int_equal(io_faulty_counters(w.image).reads, reads_after);
        io_faulty_heal(w.image);
        compute_rest(&w, &text, seq);
        world_flush(&w, 5, true);
        assert_int_equal(world_read(&w, &text), TWO);
        world_close(&w);
    }
}

/* ---- B37 --------------------------------------------------------------------------------------------------------- */

static void b37_one_transfer_serves_all_who_wait_for_it(void **state)
{
    (void)state;
    enum { REQUESTS = 50, BLOCKS = 10 };
    struct world w;
    struct text text;
    kvt_seq seqs[REQUESTS], brief;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, 16, 64);
    world_open(&w);
    text_make(&text, 1, BLOCKS * BLOCK_TOKENS);
    (void)world_serve(&w, &text);
    world_settle(&w);
    world_flush(&w, 2, false);
    const uint64_t fetches_before = world_stats(&w).fetches;
    /* three land, the fourth does not */
    kvt_gpu_emulated_fault_at(w.gpu, KVT_DEVICE_STREAM_FETCH, 4, KVT_GPU_FAULT_STUCK_START);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(world_create(&w, &text, text.count, false, &seqs[i]), text.count);
    assert_int_equal(world_create(&w, &text, 3 * BLOCK_TOKENS, false, &brief), 3 * BLOCK_TOKENS);
    world_pump(&w, 20);
    assert_int_equal(world_begin_once(&w, brief, 1, &step, &lost_from), KVT_READY); /* its part is there */
    world_check(&w, &text, brief, 3 * BLOCK_TOKENS, 1);
    world_end(&w, step);
    world_crank(&w, 1);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(world_begin_once(&w, seqs[i], 0, &step, &lost_from), KVT_NOT_READY);
    assert_true(kvt_gpu_emulated_release(w.gpu, KVT_DEVICE_STREAM_FETCH));
    world_settle(&w);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_int_equal(world_begin_once(&w, seqs[i], 0, &step, &lost_from), KVT_READY); /* all at once */
        world_check(&w, &text, seqs[i], text.count, 0);
        world_end(&w, step);
    }
    world_crank(&w, 0);
    assert_int_equal(world_stats(&w).fetches - fetches_before, BLOCKS);
    for (uint32_t i = 0; i < REQUESTS; i++) { /* on the device it costs nothing more */
        kvt_seq again;
        assert_int_equal(world_create(&w, &text, text.count, false, &again), text.count);
        assert_int_equal(world_begin_once(&w, again, 0, &step, &lost_from), KVT_READY);
        world_end(&w, step);
        world_finish(&w, again, true);
        world_finish(&w, seqs[i], true);
    }
    world_finish(&w, brief, true);
    assert_int_equal(world_stats(&w).fetches - fetches_before, BLOCKS);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/* ---- B42, B66 ---------------------------------------------------------------------------------------------------- */

/* Prompt and decode alike: every full block is stored when the sequence ends, and found. */
static void b42_every_full_block_is_stored_and_found(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    open_with_disk(&w, 16, 64);
    text_make(&text, 1, 12 * BLOCK_TOKENS);
    (void)world_create(&w, &text, text.count, false, &seq);
    world_step(&w, &text, seq, 3 * BLOCK_TOKENS + 5, true);
    while (kvt_seq_tokens(w.runtime, seq) < text.count) world_step(&w, &text, seq, 1, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_settle(&w);
    struct kvt_stats stats = world_stats(&w);
    assert_int_equal(stats.stashes, 12);
    assert_int_equal(stats.store_records, 12);
    assert_int_equal(stats.store_raw_bytes, 12 * BLOCK_BYTES);
    assert_int_equal(stats.tiers[KVT_TIER_NVME].hits, 0);
    world_flush(&w, 2, true);
    assert_int_equal(world_read(&w, &text), text.count);
    stats = world_stats(&w);
    assert_int_equal(stats.tiers[KVT_TIER_NVME].hits, 12);
    world_reopen(&w); /* nor are they lost to the next process */
    assert_int_equal(world_read(&w, &text), text.count);
    world_close(&w);
}

/* Four times what the upper tiers hold goes down by itself, is found again, and the counters say where. */
static void b66_what_leaves_a_tier_arrives_in_the_next_and_the_counters_explain_it(void **state)
{
    (void)state;
    enum { TEXTS = 24 };
    struct world w;
    struct text text;
    open_with_disk(&w, 8, 16);
    for (uint64_t i = 0; i < TEXTS; i++) {
        text_make(&text, i, FOUR);
        (void)world_serve(&w, &text);
        world_settle(&w);
    }
    struct kvt_stats stats = world_stats(&w);
    assert_true(stats.tiers[KVT_TIER_DEVICE].evictions >= TEXTS * 4 - 8);
    assert_true(stats.tiers[KVT_TIER_HOST].evictions >= TEXTS * 4 - 8 - 16);
    assert_int_equal(stats.dropped_blocks, 0);
    assert_true(stats.store_records >= TEXTS * 4 - 8 - 16);
    for (uint32_t t = 0; t < KVT_TIERS; t++) assert_int_equal(stats.tiers[t].hits, 0);
    uint64_t expected[KVT_TIERS] = { 0 };
    for (uint64_t i = 0; i < TEXTS; i++) {
        const struct kvt_core *core = world_core(&w);
        kvt_seq seq;
        text_make(&text, i, FOUR);
        assert_int_equal(world_create(&w, &text, FOUR, true, &seq), FOUR);
        const struct kvt_sequence *sequence = kvt_sequence_of(world_core(&w), seq);
        for (uint32_t b = 0; b < 4; b++) {
            const struct kvt_block *block = kvt_core_block(core, sequence->groups[0].blocks[b]);
            uint32_t tier = 0;
            while (kvt_copy_state(block, tier) == KVT_COPY_EMPTY) tier++;
            expected[tier]++;
        }
        assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
        world_step(&w, &text, seq, 0, true);
        world_finish(&w, seq, true);
        world_settle(&w);
    }
    stats = world_stats(&w);
    for (uint32_t t = 0; t < KVT_TIERS; t++) assert_int_equal(stats.tiers[t].hits, expected[t]);
    assert_int_equal(expected[0] + expected[1] + expected[2], TEXTS * 4);
    assert_true(expected[KVT_TIER_NVME] >= TEXTS * 4 - 8 - 16);
    world_close(&w);
}

/* ---- B44 --------------------------------------------------------------------------------------------------------- */

/* Other texts push at the text's copies, however long its write takes. */
static void press(struct world *w, uint64_t seed)
{
    struct text other;
    kvt_seq seq;
    for (uint64_t i = 0; i < 4; i++) {
        text_make(&other, seed + i, FOUR);
        (void)world_create(w, &other, FOUR, false, &seq);
        if (world_reserve(w, seq, FOUR) == KVT_ROOM_OK) world_step(w, &other, seq, FOUR, true);
        world_finish(w, seq, true);
        world_pump(w, 10);
    }
    world_verify(w);
}

/* One order of: the write ends (well or not), lookup, delete, eviction. */
static void store_interleaved(enum io_faulty_fault fault, const char *order)
{
    struct world w;
    struct text text;
    uint64_t ignored;
    open_with_disk(&w, 4, 8);
    text_make(&text, 1, BLOCK_TOKENS);
    io_faulty_rate(w.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    if (fault != IO_FAULTY_NONE) io_faulty_rate(w.image, IO_FAULTY_WRITE, fault, 1000000);
    (void)world_serve(&w, &text);
    world_pump(&w, 30);
    assert_true(io_faulty_counters(w.image).held > 0);
    bool is_deleted = false;
    for (const char *event = order; *event; event++) {
        uint64_t found;
        enum kvt_status status;
        switch (*event) {
        case 'w':
            io_faulty_rate(w.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 0);
            (void)io_faulty_release(w.image);
            world_pump(&w, 30);
            break;
        case 'l':
            found = look(&w, &text); /* exact, or not there; checked inside */
            assert_true(found == 0 || !is_deleted);
            break;
        case 'd':
            status = kvt_reset(w.runtime, &ignored); /* IO: not durable, but nothing is found in this process */
            assert_true(status == KVT_OK || status == KVT_IO);
            is_deleted = true;
            break;
        case 'e': press(&w, 10); break;
        default: fail_msg("no such event");
        }
    }
    io_faulty_heal(w.image);
    world_advance(&w, 10 * SECOND); /* a pause after ENOSPC ends */
    world_settle(&w);
    press(&w, 100);
    press(&w, 200);
    world_settle(&w);
    const uint64_t found = look(&w, &text);
    assert_true(found == 0 || !is_deleted);
    if (fault == IO_FAULTY_NONE && !is_deleted) assert_int_equal(found, BLOCK_TOKENS);
    (void)world_serve(&w, &text); /* and a store heals */
    world_settle(&w);
    press(&w, 300);
    assert_int_equal(world_read(&w, &text), BLOCK_TOKENS);
    assert_int_equal(w.rows_wrong, 0);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void b44_a_failed_store_is_never_visible_in_any_interleaving(void **state)
{
    (void)state;
    static const char *const orders[] = { "wlde", "wled", "wdle", "wdel", "weld", "wedl", "lwde", "lwed",
                                          "ldwe", "ldew", "lewd", "ledw", "dwle", "dwel", "dlwe", "dlew",
                                          "dewl", "delw", "ewld", "ewdl", "elwd", "eldw", "edwl", "edlw",
                                          "wle",  "wel",  "lew",  "elw",  "ewl",  "lwe" };
    const enum io_faulty_fault faults[] = { IO_FAULTY_NONE, IO_FAULTY_EIO, IO_FAULTY_ENOSPC, IO_FAULTY_TORN,
                                            IO_FAULTY_MISDIRECT };
    for (uint32_t f = 0; f < KVT_ARRAY_COUNT(faults); f++)
        for (uint32_t o = 0; o < KVT_ARRAY_COUNT(orders); o++) store_interleaved(faults[f], orders[o]);
}

/* Of copy states too: what failed does not become readable by any edge. */
static void b44_only_its_own_completion_makes_a_copy_resident(void **state)
{
    (void)state;
    for (enum kvt_copy_event event = 0; event < KVT_COPY_EVENTS; event++) {
        enum kvt_copy_state from, to;
        kvt_copy_edge(event, &from, &to);
        if (to == KVT_COPY_RESIDENT) assert_int_equal(event, KVT_COPY_FILL_OK);
        if (event == KVT_COPY_FILL_OK) assert_int_equal(from, KVT_COPY_FILLING);
        if (event == KVT_COPY_FILL_FAIL) assert_int_equal(to, KVT_COPY_EMPTY);
    }
}

/* A fetch fails while two wait for it: neither is told that it may read. */
static void b44_a_failed_fetch_is_readable_for_none_who_waits(void **state)
{
    (void)state;
    const enum kvt_gpu_fault faults[] = { KVT_GPU_FAULT_FAIL, KVT_GPU_FAULT_FAIL_LATE };
    for (uint32_t f = 0; f < KVT_ARRAY_COUNT(faults); f++) {
        struct world w;
        struct text text;
        kvt_seq a, b;
        world_init(&w, 4, 16);
        world_open(&w);
        text_make(&text, 1, TWO);
        (void)world_serve(&w, &text);
        world_settle(&w);
        world_flush(&w, 2, false);
        kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_FETCH, 1000000, 1, faults[f]);
        assert_int_equal(world_create(&w, &text, TWO, false, &a), TWO);
        assert_int_equal(world_create(&w, &text, TWO, false, &b), TWO);
        assert_int_equal(check_what_is_left(&w, &text, a), 0);
        assert_int_equal(check_what_is_left(&w, &text, b), 0);
        kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_FETCH, 0, 1, KVT_GPU_FAULT_NONE);
        compute_rest(&w, &text, a);
        compute_rest(&w, &text, b);
        world_verify_idle(&w);
        assert_int_equal(world_read(&w, &text), TWO);
        world_close(&w);
    }
}

/* ---- B48 --------------------------------------------------------------------------------------------------------- */

/*
 * The n-th record of a prefix is bad: what is before it is used, what is from it on is computed, and all is as in a
 * clean process.
 */
static void b48_a_failed_restore_leaves_nothing_behind(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        struct world w;
        struct text text;
        kvt_seq seq;
        open_with_disk(&w, 6, 8);
        text_make(&text, 1, FOUR);
        put_on_disk(&w, &text);
        io_faulty_at(w.image, IO_FAULTY_READ, n, IO_FAULTY_FLIP);
        assert_int_equal(world_create(&w, &text, FOUR, false, &seq), FOUR);
        assert_int_equal(check_what_is_left(&w, &text, seq), (n - 1) * BLOCK_TOKENS);
        compute_rest(&w, &text, seq);
        world_verify_idle(&w);
        world_flush(&w, 7, true);
        assert_int_equal(world_read(&w, &text), FOUR);
        world_close(&w);
    }
}

/* Packed bytes in host memory that do not unpack have written half a slot by then: the slot is nobody's copy. */
static void b48_a_block_that_does_not_unpack_is_no_copy(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    world_init(&w, 4, 16);
    w.config.is_codec_off = false;
    w.config.host_bytes += 256 * KVT_KIB;
    world_open(&w);
    text_make(&text, 1, TWO);
    (void)world_serve(&w, &text);
    world_settle(&w);
    world_flush(&w, 2, false);
    struct kvt_core *core = world_core(&w);
    assert_int_equal(world_create(&w, &text, TWO, true, &seq), TWO);
    const uint32_t index = kvt_sequence_of(core, seq)->groups[0].blocks[1];
    assert_true(kvt_block_has(kvt_core_block(core, index), KVT_BLOCK_HOST_PACKED));
    uint8_t *packed = kvt_host_pool_address(&core->host, kvt_core_block(core, index)->host_slot);
    memset(packed + 8, 0xff, 8); /* the directory of chunks */
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    assert_int_equal(check_what_is_left(&w, &text, seq), BLOCK_TOKENS);
    compute_rest(&w, &text, seq);
    world_verify_idle(&w);
    assert_int_equal(world_read(&w, &text), TWO);
    world_close(&w);
}

static void b48_an_empty_sequence_is_saved_and_restored_harmlessly(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    uint64_t kept;
    open_with_disk(&w, 4, 8);
    text_make(&text, 1, TWO);
    (void)world_create(&w, &text, 0, false, &seq);
    for (uint32_t i = 0; i < 3; i++) {
        world_idle(&w, seq);
        world_flush(&w, i, true);
        assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
        assert_int_equal(kvt_seq_truncate(w.runtime, seq, 0, NULL, &kept), KVT_OK);
        assert_int_equal(kvt_seq_window(w.runtime, seq, 0, 0), KVT_OK);
    }
    compute_rest(&w, &text, seq);
    assert_int_equal(world_read(&w, &text), TWO);
    world_close(&w);
}

/* ---- B32, B34, B35, B43: the disk misbehaves all the time -------------------------------------------------------- */

struct weather {
    enum io_faulty_kind kind;
    enum io_faulty_fault fault;
    uint32_t per_million;
};

/* Random use under faults, with every row checked; and when the weather is fine again the cache works. */
static void mix_under(const struct weather *weather, uint32_t count, uint64_t seed)
{
    struct world w;
    struct text text;
    world_init(&w, 12, 8);
    world_add_disk(&w, 8, 768 * KVT_KIB);
    world_open(&w);
    for (uint32_t i = 0; i < count; i++)
        io_faulty_rate(w.image, weather[i].kind, weather[i].fault, weather[i].per_million);
    world_mix(&w,
              &(struct mix){
                  .seed = seed, .steps = 4000, .live_max = 8, .tokens_max = 7 * BLOCK_TOKENS, .verify_every = 40 });
    for (uint32_t i = 0; i < count; i++) assert_true(io_faulty_counters(w.image).faults[weather[i].fault] > 0);
    io_faulty_heal(w.image);
    world_advance(&w, 10 * SECOND); /* a pause after a full disk ends */
    text_make(&text, 77, FOUR);
    (void)world_serve(&w, &text);
    world_settle(&w);
    assert_int_equal(world_read(&w, &text), FOUR);
    world_close(&w);
}

static void b32_short_writes_and_a_full_disk_are_never_taken_for_done(void **state)
{
    (void)state;
    const struct weather weather[] = { { IO_FAULTY_WRITE, IO_FAULTY_SHORT, 200000 },
                                       { IO_FAULTY_WRITE, IO_FAULTY_ENOSPC, 50000 } };
    mix_under(weather, KVT_ARRAY_COUNT(weather), 32);
}

static void b43_short_reads_and_late_completions_expose_no_stale_bytes(void **state)
{
    (void)state;
    const struct weather weather[] = { { IO_FAULTY_READ, IO_FAULTY_SHORT, 300000 },
                                       { IO_FAULTY_ANY, IO_FAULTY_DELAY, 300000 },
                                       { IO_FAULTY_READ, IO_FAULTY_EIO, 50000 } };
    mix_under(weather, KVT_ARRAY_COUNT(weather), 43);
}

static void b47_flips_tears_and_misdirected_writes_are_never_served(void **state)
{
    (void)state;
    const struct weather weather[] = { { IO_FAULTY_READ, IO_FAULTY_FLIP, 100000 },
                                       { IO_FAULTY_WRITE, IO_FAULTY_TORN, 100000 },
                                       { IO_FAULTY_WRITE, IO_FAULTY_MISDIRECT, 100000 } };
    mix_under(weather, KVT_ARRAY_COUNT(weather), 47);
}

/* A disk that answers everything with an error: no request hangs, and memory alone still serves. */
/* Every copy from the device fails, and at once: whoever tried again at once would never come to an end. */
static void b35_a_device_that_fails_every_copy_keeps_nobody_busy(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    world_init(&w, 4, 16);
    world_open(&w);
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_STASH, 1000000, 1, KVT_GPU_FAULT_FAIL);
    for (uint64_t i = 0; i < 8; i++) {
        text_make(&text, 350 + i, FOUR - 1);
        (void)world_serve(&w, &text); /* finds its room: what cannot be saved is dropped */
        world_pump(&w, ROUNDS_MAX);
    }
    /* The clock stood still: a few failures, then none before it is time to try again. */
    assert_true(world_stats(&w).failures > 0);
    assert_true(world_stats(&w).failures <= 16);
    world_advance(&w, SECOND);
    assert_true(world_stats(&w).failures <= 32);
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_STASH, 0, 1, KVT_GPU_FAULT_NONE);
    const uint64_t before = world_stats(&w).stashes;
    world_advance(&w, SECOND);
    for (uint64_t i = 0; i < 4; i++) {
        text_make(&text, 360 + i, FOUR - 1);
        (void)world_serve(&w, &text);
        world_settle(&w);
    }
    assert_true(world_stats(&w).stashes > before); /* it is asked again */
    world_close(&w);
}

static void let_time_pass(void *user, uint64_t timeout_ns) { ((struct world *)user)->now_ns += timeout_ns; }

/* Serves texts until a stash waits for the store, which pauses on a full disk. */
static void make_stashes_wait(struct world *w, uint64_t seed)
{
    struct text text;
    io_faulty_rate(w->image, IO_FAULTY_WRITE, IO_FAULTY_ENOSPC, 1000000);
    for (uint64_t i = 0; i < 40 && world_core(w)->transfers.waiting_count[KVT_TIER_NVME] == 0; i++) {
        text_make(&text, seed + i, FOUR - 1);
        (void)world_serve(w, &text);
        world_advance(w, SECOND / 16); /* the core tries again before the store does */
    }
    assert_true(world_core(w)->transfers.waiting_count[KVT_TIER_NVME] > 0);
    io_faulty_heal(w->image);
}

static void b16_a_stash_that_waits_for_the_store_is_not_published_after_a_reset(void **state)
{
    (void)state;
    struct world w;
    uint64_t kept;
    world_init(&w, 8, 16);
    world_add_disk(&w, 16, 8 * KVT_MIB);
    world_open(&w);
    make_stashes_wait(&w, 160);
    const enum kvt_status status = kvt_reset(w.runtime, &kept);
    assert_true(status == KVT_OK || status == KVT_IO); /* durable or not, nothing is found in this process */
    for (uint32_t i = 0; i < 40; i++) world_advance(&w, SECOND / 8); /* the pause is over */
    world_settle(&w);
    assert_int_equal(world_stats(&w).store_records, 0);
    world_close(&w);
}

/* The store pauses on a full disk for longer than the close waits, and transfers queue up before it. */
static void b68_a_close_over_a_store_that_takes_nothing_leaves_nothing_behind(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 8, 16);
    world_add_disk(&w, 16, 8 * KVT_MIB);
    w.env.pass = let_time_pass;
    w.config.transfer_deadline_ns = SECOND / 5;
    world_open(&w);
    make_stashes_wait(&w, 680);
    world_shut(&w);
    assert_int_equal(io_faulty_counters(w.image).in_flight, 0);
    world_open(&w); /* nobody has the directory any more */
    world_close(&w);
}

/* A link that is slower than the deadline allows for all together, but brings one after the other. */
static void b68_a_close_waits_as_long_as_something_comes_back(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    world_init(&w, 8, 16);
    world_add_disk(&w, 16, 8 * KVT_MIB);
    w.env.pass = let_time_pass;
    w.config.transfer_deadline_ns = SECOND / 5;
    w.config.link_hbm_bytes_per_s = BLOCK_BYTES * 10; /* a block in 0.1 s */
    world_open(&w);
    text_make(&text, 1, FOUR);
    (void)world_serve(&w, &text);
    world_pump(&w, 3);
    assert_int_equal(world_core(&w)->transfers.in_flight, 4);
    world_shut(&w);
    world_open(&w); /* nobody has the directory any more */
    world_close(&w);
}

/* What is allocated between the two is lost on purpose. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#define LOSE_BEGIN() __lsan_disable()
#define LOSE_END() __lsan_enable()
#else
#define LOSE_BEGIN() ((void)0)
#define LOSE_END() ((void)0)
#endif

/* What the device never gave back keeps its memory; the store is not part of that. */
static void b68_a_close_over_a_device_that_hangs_closes_the_store(void **state)
{
    (void)state;
    struct world w;
    struct text text, other;
    world_init(&w, 8, 16);
    world_add_disk(&w, 16, 8 * KVT_MIB);
    w.env.pass = let_time_pass;
    w.config.transfer_deadline_ns = SECOND / 5;
    world_open(&w);
    text_make(&text, 1, TWO);
    put_on_disk(&w, &text);
    LOSE_BEGIN();
    world_reopen(&w);
    kvt_gpu_emulated_fault_at(w.gpu, KVT_DEVICE_STREAM_STASH, 1, KVT_GPU_FAULT_STUCK_START);
    text_make(&other, 2, TWO);
    (void)world_serve(&w, &other);
    world_pump(&w, 3);
    assert_true(world_core(&w)->transfers.in_flight > 0);
    world_shut(&w);
    LOSE_END();
    world_open(&w);
    assert_int_equal(world_read(&w, &text), TWO);
    world_close(&w);
}

/* Goal: host memory ends before all of it was there; who waits for room is told FULL in the end, as with all of it. */
static void b35_host_memory_that_ends_early_leaves_nobody_waiting(void **state)
{
    (void)state;
    enum { SEQUENCES = 64, TOKENS = 8 * BLOCK_TOKENS };
    struct world w;
    struct text *texts = kvt_alloc(SEQUENCES, sizeof *texts);
    kvt_seq seqs[SEQUENCES];
    enum kvt_room room = KVT_ROOM_OK;
    uint32_t n = 0;
    world_init(&w, 32, 64);
    world_open(&w);
    world_core(&w)->host.chunk_count += 4; /* which its worker, that is gone, never came to */
    for (; n < SEQUENCES; n++) {
        text_make(&texts[n], 500 + n, TOKENS);
        (void)world_create(&w, &texts[n], TOKENS, false, &seqs[n]);
        room = world_reserve(&w, seqs[n], TOKENS);
        if (room != KVT_ROOM_OK) break;
        world_step(&w, &texts[n], seqs[n], TOKENS, true);
        world_idle(&w, seqs[n]);
        world_settle(&w);
    }
    for (uint32_t i = 0; i < 1000 && room == KVT_ROOM_PENDING; i++) {
        world_advance(&w, SECOND);
        room = world_append(&w, seqs[n], TOKENS);
    }
    assert_int_equal(room, KVT_ROOM_FULL);
    for (uint32_t i = 0; i <= n; i++) world_finish(&w, seqs[i], false);
    world_core(&w)->host.chunk_count -= 4;
    world_close(&w);
    kvt_free(texts);
}

/*
 * Goal: idle sequences hold more blocks than the table has entries for, as many whose last copies were given up do: who
 *       asks for more is told that it is full, and gets it when one has finished. It is no matter of memory.
 */
static void b64_blocks_that_cannot_be_remembered_are_no_room_and_not_out_of_memory(void **state)
{
    (void)state;
    enum { TOKENS = 4 * BLOCK_TOKENS };
    struct world w;
    struct text text, more;
    kvt_seq idle, asking;
    world_init(&w, 32, 64);
    world_open(&w);
    text_make(&text, 900, TOKENS);
    text_make(&more, 901, 2 * TOKENS);
    (void)world_create(&w, &text, TOKENS, false, &idle);
    world_step(&w, &text, idle, TOKENS, true);
    world_idle(&w, idle);
    world_settle(&w);
    (void)world_create(&w, &more, 2 * TOKENS, false, &asking);
    struct kvt_block_table *table = &world_core(&w)->table;
    const uint32_t capacity = table->capacity;
    table->capacity = table->high_water + 5;
    assert_int_equal(world_append(&w, asking, 2 * TOKENS), KVT_ROOM_FULL);
    world_verify(&w);
    world_finish(&w, idle, false);
    world_settle(&w);
    assert_int_equal(world_append(&w, asking, 2 * TOKENS), KVT_ROOM_OK);
    world_finish(&w, asking, false);
    table->capacity = capacity;
    world_close(&w);
}

static void b35_a_disk_that_refuses_everything_hangs_nobody(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    open_with_disk(&w, 4, 8);
    text_make(&text, 1, TWO);
    put_on_disk(&w, &text);
    io_faulty_rate(w.image, IO_FAULTY_ANY, IO_FAULTY_EIO, 1000000);
    assert_int_equal(world_create(&w, &text, TWO, false, &seq), TWO);
    assert_int_equal(check_what_is_left(&w, &text, seq), 0);
    compute_rest(&w, &text, seq);
    for (uint64_t i = 0; i < 8; i++) {
        text_make(&text, 10 + i, FOUR);
        (void)world_serve(&w, &text);
        world_settle(&w);
        assert_int_equal(world_read(&w, &text), FOUR);
    }
    assert_true(world_stats(&w).failures > 0);
    world_verify_idle(&w);
    world_shut(&w);
    assert_int_equal(world_try_open(&w), KVT_IO); /* what cannot be read and written at open is said there */
    assert_non_null(strstr(w.error, w.path));
    io_faulty_heal(w.image);
    world_open(&w);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b10_a_read_that_races_with_eviction_is_a_miss),
        cmocka_unit_test(b11_the_buffer_of_an_abandoned_read_is_nobodys_until_it_is_back),
        cmocka_unit_test(b25_a_failed_fetch_turns_the_hit_into_a_miss_and_a_store_makes_it_a_hit_again),
        cmocka_unit_test(b37_one_transfer_serves_all_who_wait_for_it),
        cmocka_unit_test(b42_every_full_block_is_stored_and_found),
        cmocka_unit_test(b66_what_leaves_a_tier_arrives_in_the_next_and_the_counters_explain_it),
        cmocka_unit_test(b44_a_failed_store_is_never_visible_in_any_interleaving),
        cmocka_unit_test(b44_only_its_own_completion_makes_a_copy_resident),
        cmocka_unit_test(b44_a_failed_fetch_is_readable_for_none_who_waits),
        cmocka_unit_test(b48_a_failed_restore_leaves_nothing_behind),
        cmocka_unit_test(b48_a_block_that_does_not_unpack_is_no_copy),
        cmocka_unit_test(b48_an_empty_sequence_is_saved_and_restored_harmlessly),
        cmocka_unit_test(b32_short_writes_and_a_full_disk_are_never_taken_for_done),
        cmocka_unit_test(b43_short_reads_and_late_completions_expose_no_stale_bytes),
        cmocka_unit_test(b47_flips_tears_and_misdirected_writes_are_never_served),
        cmocka_unit_test(b35_a_device_that_fails_every_copy_keeps_nobody_busy),
        cmocka_unit_test(b64_blocks_that_cannot_be_remembered_are_no_room_and_not_out_of_memory),
        cmocka_unit_test(b35_host_memory_that_ends_early_leaves_nobody_waiting),
        cmocka_unit_test(b35_a_disk_that_refuses_everything_hangs_nobody),
        cmocka_unit_test(b16_a_stash_that_waits_for_the_store_is_not_published_after_a_reset),
        cmocka_unit_test(b68_a_close_over_a_store_that_takes_nothing_leaves_nothing_behind),
        cmocka_unit_test(b68_a_close_waits_as_long_as_something_comes_back),
        cmocka_unit_test(b68_a_close_over_a_device_that_hangs_closes_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
