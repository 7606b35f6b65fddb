/*
 * Field failures B16 to B28 that are about holds, budgets, accounts and waits, through the whole runtime: what is taken
 * comes back, what is counted is there, what waits ends.
 */
#include "tests/runtime/world.h"

enum { TWO = 2 * BLOCK_TOKENS, FOUR = 4 * BLOCK_TOKENS };

/* ---- B16 --------------------------------------------------------------------------------------------------------- */

struct spread {
    struct text in_device, in_host, in_nvme, live, moving;
    kvt_seq live_seq, moving_seq;
};

/* Texts in every tier, a live sequence, and one transfer of each kind on its way. */
static void spread_out(struct world *w, struct spread *s)
{
    struct text other;
    text_make(&s->in_nvme, 1, TWO);
    text_make(&s->in_host, 2, TWO);
    text_make(&s->in_device, 3, TWO);
    text_make(&s->live, 4, TWO);
    text_make(&s->moving, 5, TWO);
    (void)world_serve(w, &s->in_nvme);
    (void)world_serve(w, &s->moving);
    world_settle(w);
    world_flush(w, 6, true); /* both to nvme */
    (void)world_serve(w, &s->in_host);
    world_settle(w);
    for (uint64_t i = 0; i < 2; i++) { /* out of the device, not yet out of the host */
        text_make(&other, 50 + i, FOUR);
        (void)world_serve(w, &other);
        world_settle(w);
    }
    (void)world_create(w, &s->live, TWO, false, &s->live_seq);
    world_step(w, &s->live, s->live_seq, TWO, true);
    world_settle(w);

    kvt_seq seq;
    (void)world_create(w, &s->in_device, TWO, false, &seq);
    assert_int_equal(world_reserve(w, seq, TWO), KVT_ROOM_OK);
    io_faulty_rate(w->image, IO_FAULTY_READ, IO_FAULTY_HELD, 1000000);
    io_faulty_rate(w->image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    assert_int_equal(world_create(w, &s->moving, TWO, false, &s->moving_seq), TWO);
    world_pump(w, 10); /* nvme -> host, held */
    world_gate(w, KVT_DEVICE_STREAM_FETCH, true);
    world_gate(w, KVT_DEVICE_STREAM_STASH, true);
    world_step(w, &s->in_device, seq, TWO, true);
    world_finish(w, seq, true); /* device -> host, gated */
    world_pump(w, 10);
}

static void b16_reset_reaches_every_tier_and_what_is_in_flight(void **state)
{
    (void)state;
    for (uint32_t opened_first = 0; opened_first < 2; opened_first++) {
        struct world w;
        struct spread *s = kvt_alloc(1, sizeof *s);
        uint64_t kept = 0;
        kvt_step step;
        uint64_t lost_from, left;
        world_init(&w, 8, 8);
        world_add_disk(&w, 8, 8 * KVT_MIB);
        world_open(&w);
        spread_out(&w, s);
        assert_true(world_core(&w)->transfers.in_flight >= 3);
        if (opened_first) { /* the second leg of the promotion is under way at the reset */
            io_faulty_heal(w.image);
            world_pump(&w, 10);
        }
        enum kvt_status status = kvt_reset(w.runtime, &kept);
        io_faulty_heal(w.image);
        if (status == KVT_IO) status = kvt_reset(w.runtime, &kept);
        assert_int_equal(status, KVT_OK);
        assert_int_equal(kept, 4); /* the live sequence's two, and the two that were being fetched */
        world_gate(&w, KVT_DEVICE_STREAM_STASH, false);
        world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
        world_settle(&w);
        world_verify(&w);

        /* The live one still has its bytes. The one on its way gets its own, or is told that they are gone. */
        world_step(&w, &s->live, s->live_seq, 0, true);
        const enum kvt_ready ready = world_begin(&w, s->moving_seq, 0, &step, &lost_from);
        assert_int_not_equal(ready, KVT_NOT_READY);
        if (ready == KVT_READY) {
            world_check(&w, &s->moving, s->moving_seq, TWO, 0);
            world_end(&w, step);
            world_crank(&w, 0);
        } else {
            assert_int_equal(kvt_seq_truncate(w.runtime, s->moving_seq, lost_from, NULL, &left), KVT_OK);
        }
        world_finish(&w, s->moving_seq, true);
        world_finish(&w, s->live_seq, true);
        world_settle(&w);
        const struct text *const texts[] = { &s->in_device, &s->in_host, &s->in_nvme, &s->live, &s->moving };
        for (uint32_t round = 0; round < 2; round++) {
            for (uint32_t i = 0; i < KVT_ARRAY_COUNT(texts); i++) assert_int_equal(world_read(&w, texts[i]), 0);
            world_reopen(&w); /* nor after a restart */
        }
        (void)world_serve(&w, &s->in_nvme); /* and the cache goes on */
        world_settle(&w);
        assert_int_equal(world_read(&w, &s->in_nvme), TWO);
        kvt_free(s);
        world_close(&w);
    }
}

/* ---- B17 --------------------------------------------------------------------------------------------------------- */

static void b17_a_hold_ends_with_its_sequence_though_nothing_was_loaded(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seqs[3];
    world_init(&w, 8, 8);
    world_open(&w);
    for (uint64_t i = 0; i < 60; i++) {
        text_make(&text, i, FOUR);
        (void)world_serve(&w, &text);
        /* All of it is on the device: nothing to load. Held three ways, and let go without a step. */
        assert_int_equal(world_create(&w, &text, FOUR, false, &seqs[0]), FOUR);
        assert_int_equal(world_create(&w, &text, FOUR, true, &seqs[1]), FOUR);
        assert_int_equal(kvt_seq_fork(w.runtime, seqs[0], &seqs[2]), KVT_OK);
        for (uint32_t j = 0; j < 3; j++) world_finish(&w, seqs[j], j != 1);
        world_settle(&w);
        world_verify_idle(&w);
    }
    text_make(&text, 1000, 8 * BLOCK_TOKENS); /* everything is evictable */
    (void)world_serve(&w, &text);
    world_close(&w);
}

/* ---- B21 --------------------------------------------------------------------------------------------------------- */

/* The n-th stash fails; whichever it is, no live block is taken for backed, and none is lost. */
static void b21_a_failed_stash_is_seen_and_the_block_is_not_taken_for_backed(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 6; n++) {
        struct world w;
        struct text text, other;
        kvt_seq seq, thief;
        world_init(&w, 6, 16);
        world_open(&w);
        text_make(&text, 1, 3 * BLOCK_TOKENS);
        text_make(&other, 2, 6 * BLOCK_TOKENS);
        kvt_gpu_emulated_fault_at(w.gpu, KVT_DEVICE_STREAM_STASH, n,
                                  n % 2 ? KVT_GPU_FAULT_FAIL : KVT_GPU_FAULT_FAIL_LATE);
        (void)world_create(&w, &text, text.count, false, &seq);
        world_step(&w, &text, seq, text.count, true);
        world_idle(&w, seq);
        world_settle(&w);
        assert_int_equal(world_stats(&w).failures, n <= 3);
        (void)world_create(&w, &other, other.count, false, &thief);
        world_step(&w, &other, thief, other.count, true); /* the whole device */
        world_idle(&w, thief);
        assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
        world_step(&w, &text, seq, 0, true);
        world_idle(&w, seq);
        assert_int_equal(world_resume(&w, thief), KVT_ROOM_OK);
        world_step(&w, &other, thief, 0, true);
        assert_int_equal(world_stats(&w).failures, 1);
        assert_int_equal(world_stats(&w).lost_blocks, 0);
        world_finish(&w, seq, true);
        world_finish(&w, thief, true);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
}

/* Any mix of what the tiers hold of a prefix works: 6 blocks of 10 on nvme, all 10 in host memory, then put again. */
static void b21_tiers_may_hold_prefixes_of_any_length(void **state)
{
    (void)state;
    for (uint64_t on_nvme = 0; on_nvme <= 10; on_nvme += 2) {
        struct world w;
        struct text text;
        world_init(&w, 16, 24);
        world_add_disk(&w, 24, 8 * KVT_MIB);
        world_open(&w);
        if (on_nvme > 0) {
            text_make(&text, 7, on_nvme * BLOCK_TOKENS);
            (void)world_serve(&w, &text);
            world_settle(&w);
        }
        io_faulty_rate(w.image, IO_FAULTY_WRITE, IO_FAULTY_EIO, 1000000);
        text_make(&text, 7, 10 * BLOCK_TOKENS);
        assert_int_equal(world_serve(&w, &text), on_nvme * BLOCK_TOKENS);
        world_settle(&w);
        io_faulty_heal(w.image);
        world_advance(&w, 10 * SECOND); /* a store that refuses is asked again after a while */
        world_verify(&w);
        world_flush(&w, 100, false);
        assert_int_equal(world_read(&w, &text), 10 * BLOCK_TOKENS);
        text_branch(&text, &text, 5 * BLOCK_TOKENS, 9, 12 * BLOCK_TOKENS); /* put again, from its middle on */
        assert_int_equal(world_serve(&w, &text), 5 * BLOCK_TOKENS);
        world_flush(&w, 200, true);
        assert_int_equal(world_read(&w, &text), text.count);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
}

/* ---- B22 --------------------------------------------------------------------------------------------------------- */

static void b22_more_fetches_than_staging_slots_all_come_through(void **state)
{
    (void)state;
    enum { REQUESTS = 16 };
    for (uint32_t device_slots = 6; device_slots <= 40; device_slots += 34) {
        struct world w;
        struct text texts[REQUESTS];
        kvt_seq seqs[REQUESTS];
        world_init(&w, device_slots, 8);
        world_add_disk(&w, 8, 8 * KVT_MIB);
        world_open(&w);
        for (uint64_t i = 0; i < REQUESTS; i++) {
            text_make(&texts[i], i, TWO);
            (void)world_serve(&w, &texts[i]);
            world_settle(&w);
        }
        world_flush(&w, 100, true);
        for (uint64_t i = 0; i < REQUESTS; i++)
            assert_int_equal(world_create(&w, &texts[i], TWO, false, &seqs[i]), TWO);
        io_faulty_at(w.image, IO_FAULTY_READ, 3, IO_FAULTY_DELAY);
        uint32_t served = 0;
        for (uint32_t round = 0; round < ROUNDS_MAX && served < REQUESTS; round++) {
            for (uint32_t i = 0; i < REQUESTS; i++) {
                kvt_step step;
                uint64_t lost_from;
                if (seqs[i] == 0 || world_resume(&w, seqs[i]) != KVT_ROOM_OK) continue;
                if (world_begin_once(&w, seqs[i], 0, &step, &lost_from) != KVT_READY) continue;
                world_check(&w, &texts[i], seqs[i], TWO, 0);
                world_end(&w, step);
                world_crank(&w, 0);
                world_finish(&w, seqs[i], true);
                seqs[i] = 0;
                served++;
            }
        }
        assert_int_equal(served, REQUESTS);
        assert_int_equal(w.rows_checked, REQUESTS * TWO * 4);
        world_settle(&w);
        world_verify_idle(&w);
        world_close(&w);
    }
}

/* What is revoked to make room may share blocks with the one that asks: claims never exceed the slots there are. */
static void b22_room_is_not_promised_twice_when_a_prefetch_is_revoked(void **state)
{
    (void)state;
    struct world w;
    struct text base, texts[3];
    kvt_seq busy, warming, asking;
    world_init(&w, 8, 32);
    world_open(&w);
    text_make(&base, 1, FOUR);
    text_make(&texts[0], 2, 3 * BLOCK_TOKENS);
    text_branch(&texts[1], &base, FOUR, 3, 5 * BLOCK_TOKENS);
    text_branch(&texts[2], &base, FOUR, 4, 6 * BLOCK_TOKENS);
    for (uint32_t i = 0; i < 3; i++) {
        (void)world_serve(&w, &texts[i]);
        world_settle(&w);
    }
    assert_int_equal(world_create(&w, &texts[0], texts[0].count, false, &busy), texts[0].count);
    world_step(&w, &texts[0], busy, 0, true);
    (void)world_create(&w, &texts[1], texts[1].count, true, &warming);
    (void)world_create(&w, &texts[2], texts[2].count, true, &asking);
    kvt_expect(w.runtime, &warming, &(uint32_t){ 0 }, 1);
    world_settle(&w);
    assert_int_equal(world_core(&w)->pools[0].claimed, 8);
    assert_int_equal(world_resume(&w, asking), KVT_ROOM_FULL);
    world_verify(&w);
    world_finish(&w, busy, true);
    assert_int_equal(world_resume(&w, asking), KVT_ROOM_OK);
    world_step(&w, &texts[2], asking, 0, true);
    world_finish(&w, asking, true);
    world_finish(&w, warming, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/* As time passes for the runtime's own thread: it does what it says is left to do, and sleeps until its timer. */
static void pass_time(struct world *w, uint64_t ns)
{
    kvt_runtime_lock(w->runtime);
    while (kvt_runtime_pump(w->runtime)) continue;
    kvt_runtime_unlock(w->runtime);
    w->now_ns += ns;
}

/*
 * All tiers are full of what idle sequences hold: one that is resumed gets its blocks, at the expense of others, who are
 * told; also where there are many more copies than a search looks at in one go.
 */
static void b22_room_comes_from_who_is_idle_when_no_tier_has_any(void **state)
{
    (void)state;
    enum { SEQUENCES = 80, TOKENS = 16 * BLOCK_TOKENS, DEVICE_SLOTS = 40, HOST_SLOTS = 640 };
    static struct text texts[SEQUENCES];
    kvt_seq seqs[SEQUENCES];
    struct world w;
    world_init(&w, DEVICE_SLOTS, HOST_SLOTS);
    world_add_disk(&w, HOST_SLOTS, 700 * KVT_KIB);
    w.config.is_codec_off = true;
    world_open(&w);
    uint32_t count = 0;
    uint64_t lost_from;
    kvt_step step;
    for (; count < SEQUENCES; count++) {
        text_make(&texts[count], count, TOKENS);
        (void)world_create(&w, &texts[count], TOKENS, false, &seqs[count]);
        if (world_reserve(&w, seqs[count], TOKENS) != KVT_ROOM_OK) break;
        if (world_begin(&w, seqs[count], 0, &step, &lost_from) != KVT_READY) break;
        world_write(&w, &texts[count], seqs[count], 0, TOKENS, 0);
        world_end(&w, step);
        world_crank(&w, 0);
        world_idle(&w, seqs[count]);
        world_settle(&w);
    }
    assert_true(count < SEQUENCES && count * 16 > DEVICE_SLOTS + HOST_SLOTS);
    world_finish(&w, seqs[count], true);
    uint32_t served = 0;
    for (uint32_t i = 0; i < count; i++) {
        enum kvt_ready ready = KVT_NOT_READY;
        if (world_resume(&w, seqs[i]) != KVT_ROOM_OK) continue;
        for (uint32_t tries = 0; tries < 400 && ready == KVT_NOT_READY; tries++) {
            ready = world_begin_once(&w, seqs[i], 0, &step, &lost_from);
            pass_time(&w, 60 * SECOND / 1000); /* the store is asked again */
        }
        assert_int_not_equal(ready, KVT_NOT_READY);
        if (ready == KVT_READY) {
            world_check(&w, &texts[i], seqs[i], TOKENS, 0);
            world_end(&w, step);
            world_crank(&w, 0);
            served++;
        }
        world_idle(&w, seqs[i]);
    }
    assert_true(served > 0);
    for (uint32_t i = 0; i < count; i++) world_finish(&w, seqs[i], true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/*
 * The coldest copies are those of idle sequences, many more than a search looks at, and no tier below has room for them:
 * a cached copy behind them goes, as nobody holds it.
 */
static void b22_what_is_cached_goes_though_much_that_is_held_is_colder(void **state)
{
    (void)state;
    enum { DEVICE_SLOTS = 4000, BLOCKS = 60, HOLDERS = 40, CACHED = 20 };
    static struct text text;
    kvt_seq seqs[HOLDERS + CACHED], active;
    struct world w;
    world_init(&w, DEVICE_SLOTS, 0);
    world_open(&w);
    for (uint32_t i = 0; i < HOLDERS + CACHED; i++) {
        text_make(&text, i + 1, BLOCKS * BLOCK_TOKENS);
        (void)world_create(&w, &text, text.count, false, &seqs[i]);
        world_step(&w, &text, seqs[i], text.count, true);
        if (i < HOLDERS) world_idle(&w, seqs[i]);
        else world_finish(&w, seqs[i], true);
    }
    text_make(&text, 1000, BLOCKS * BLOCK_TOKENS);
    (void)world_create(&w, &text, 0, false, &active);
    const uint32_t free_count = world_core(&w)->pools[0].free_count;
    assert_int_equal(world_reserve(&w, active, (free_count + 100) * BLOCK_TOKENS), KVT_ROOM_OK);
    world_finish(&w, active, true);
    for (uint32_t i = 0; i < HOLDERS; i++) world_finish(&w, seqs[i], true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/*
 * That no copy could leave was so while host memory was full; once it has room again a sequence that waits for a slot
 * takes it from who is idle, and nothing is given up.
 */
static void b22_nothing_is_given_up_for_a_search_that_is_out_of_date(void **state)
{
    (void)state;
    enum { DEVICE_SLOTS = 16, HOST_SLOTS = 40, BLOCKS = 4, HOLDERS_MAX = 32 };
    static struct text texts[HOLDERS_MAX], text;
    kvt_seq seqs[HOLDERS_MAX], active;
    struct world w;
    uint32_t count = 0;
    world_init(&w, DEVICE_SLOTS, HOST_SLOTS);
    world_open(&w);
    for (; count < HOLDERS_MAX; count++) {
        text_make(&texts[count], count + 1, BLOCKS * BLOCK_TOKENS);
        (void)world_create(&w, &texts[count], texts[count].count, false, &seqs[count]);
        const enum kvt_room room = world_reserve(&w, seqs[count], texts[count].count);
        if (room != KVT_ROOM_OK) break;
        world_step(&w, &texts[count], seqs[count], texts[count].count, true);
        world_idle(&w, seqs[count]);
        world_settle(&w);
    }
    world_finish(&w, seqs[count], true);
    /* The last of them, whose blocks are on the device, ends: another takes its slots. */
    world_finish(&w, seqs[--count], false);
    world_settle(&w);
    text_make(&text, 1000, BLOCKS * BLOCK_TOKENS);
    (void)world_create(&w, &text, text.count, false, &active);
    const uint32_t free_count = world_core(&w)->pools[0].free_count;
    assert_int_equal(world_reserve(&w, active, free_count * BLOCK_TOKENS), KVT_ROOM_OK);
    world_finish(&w, seqs[0], false); /* host memory has room again */
    world_finish(&w, seqs[1], false);
    world_settle(&w);
    assert_int_equal(world_resume(&w, seqs[2]), KVT_ROOM_OK);
    world_settle(&w);
    assert_int_equal(world_core(&w)->counters.given_up_blocks, 0);
    world_step(&w, &texts[2], seqs[2], 0, true);
    world_finish(&w, active, true);
    for (uint32_t i = 2; i < count; i++) world_finish(&w, seqs[i], true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/* ---- B24 --------------------------------------------------------------------------------------------------------- */

/* A stash that never ends keeps nobody from its block; a fetch that never ends is a miss after its deadline. */
static void b24_what_never_completes_is_a_miss_after_its_deadline(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq a, b;
    kvt_step step;
    uint64_t lost_from, kept;
    world_init(&w, 16, 64); /* what is abandoned keeps its slots: there must be others */
    world_open(&w);
    text_make(&text, 1, TWO);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, true);
    (void)world_serve(&w, &text);
    world_pump(&w, 5);
    assert_int_equal(world_core(&w)->transfers.in_flight, 2);
    assert_int_equal(world_read(&w, &text), TWO); /* at once */
    world_advance(&w, 31 * SECOND);
    assert_int_equal(world_stats(&w).abandoned, 2);
    assert_int_equal(world_read(&w, &text), TWO);
    world_gate(&w, KVT_DEVICE_STREAM_STASH, false);
    world_settle(&w);
    world_verify_idle(&w);

    world_flush(&w, 3, false);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_create(&w, &text, TWO, false, &a), TWO);
    /* not at the moment of its submit either */
    assert_int_equal(world_begin_once(&w, a, 0, &step, &lost_from), KVT_NOT_READY);
    assert_int_equal(world_create(&w, &text, TWO, false, &b), TWO);
    uint32_t deadlines = 0;
    enum kvt_ready ready;
    while ((ready = world_begin_once(&w, a, 0, &step, &lost_from)) == KVT_NOT_READY) {
        world_pump(&w, 5);
        assert_true(++deadlines <= 3);
        world_advance(&w, 31 * SECOND);
    }
    assert_int_equal(ready, KVT_LOST);
    assert_int_equal(lost_from, 0);
    assert_int_equal(kvt_seq_truncate(w.runtime, a, 0, NULL, &kept), KVT_OK);
    assert_int_equal(kept, 0);
    world_step(&w, &text, a, TWO, true); /* computes them again, while the device still holds up the fetches */
    for (deadlines = 0; (ready = world_begin_once(&w, b, 0, &step, &lost_from)) == KVT_NOT_READY;) {
        world_pump(&w, 5);
        assert_true(++deadlines <= 3);
        world_advance(&w, 31 * SECOND);
    }
    if (ready == KVT_READY) {
        world_check(&w, &text, b, TWO, 0);
        world_end(&w, step);
        world_crank(&w, 0);
    }
    world_finish(&w, b, true);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    world_step(&w, &text, a, 0, true);
    world_finish(&w, a, true);
    world_settle(&w);
    world_verify_idle(&w);
    assert_int_equal(world_read(&w, &text), TWO);
    world_close(&w);
}

/* Nothing planned is not everything done, and an operation on nothing ends. */
static void b24_an_operation_without_blocks_ends(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, 4, 8);
    world_open(&w);
    text_make(&text, 1, TWO);
    assert_int_equal(world_create(&w, &text, 0, true, &seq), 0);
    kvt_expect(w.runtime, &seq, &(uint32_t){ 1 }, 1);
    world_advance(&w, SECOND);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    assert_int_equal(world_begin_once(&w, seq, 0, &step, &lost_from), KVT_READY);
    world_end(&w, step);
    world_idle(&w, seq);
    kvt_expect(w.runtime, &seq, &(uint32_t){ 0 }, 1);
    world_pump(&w, 5);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_step(&w, &text, seq, TWO, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

/* ---- B27, B28 ---------------------------------------------------------------------------------------------------- */

static void check_accounts(struct world *world)
{
    const struct kvt_core *core = world_core(world);
    const struct kvt_pool *pool = &core->pools[0];
    uint32_t owned = 0;
    for (uint32_t s = 0; s < pool->slot_count; s++) {
        if (pool->slots[s].owner == KVT_NO_BLOCK) continue;
        owned++;
        const struct kvt_block *block = kvt_core_block(core, pool->slots[s].owner);
        assert_true(pool->quarantined > 0 || block->device_slot == s);
    }
    assert_int_equal(pool->free_count + owned, pool->slot_count);
    const uint32_t copies = owned - pool->quarantined;
    const struct kvt_stats stats = world_stats(world); /* counts first, then lets the core go on */
    assert_int_equal(stats.tiers[KVT_TIER_DEVICE].blocks, copies);
    assert_int_equal(stats.tiers[KVT_TIER_DEVICE].used_bytes, (uint64_t)owned * BLOCK_BYTES);
    for (uint32_t t = 0; t < KVT_TIERS; t++) {
        assert_true(stats.tiers[t].used_bytes <= stats.tiers[t].peak_bytes);
        assert_true(stats.tiers[t].peak_bytes <= stats.tiers[t].capacity_bytes);
    }
    assert_true(stats.tiers[KVT_TIER_DEVICE].capacity_bytes <= world->config.device_bytes);
    assert_true(stats.tiers[KVT_TIER_HOST].capacity_bytes <= world->config.host_bytes);
    assert_true(stats.tiers[KVT_TIER_NVME].capacity_bytes <= world->config.nvme_bytes);
    if (world->image) assert_true(io_faulty_counters(world->image).bytes_peak <= world->config.nvme_bytes);
}

static void b27_free_and_used_make_the_total_in_every_tier_after_every_step(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 12, 10);
    world_add_disk(&w, 10, 2 * KVT_MIB);
    w.config.device_policy = "arc";
    world_open(&w);
    world_mix(&w,
              &(struct mix){ .seed = 27,
                             .steps = 30000,
                             .live_max = 8,
                             .tokens_max = 6 * BLOCK_TOKENS,
                             .verify_every = 50,
                             .is_gating = true,
                             .after = check_accounts });
    world_close(&w);
}

/* What the tiers take is under their limits at every moment; what can never fit is refused and pushes nothing out. */
static void b28_a_limit_is_a_limit_at_every_moment(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 2; round++) {
        struct world w;
        struct text text, huge;
        kvt_seq seq;
        world_init(&w, 12, 13);
        world_add_disk(&w, 13, 340 * KVT_KIB);
        w.config.is_codec_off = round == 0;
        if (round == 1) w.config.host_bytes += 64 * KVT_KIB;
        const uint64_t mapped_before = kvt_table_bytes();
        world_open(&w);
        text_make(&text, 1, FOUR);
        (void)world_serve(&w, &text);
        world_settle(&w);
        text_make(&huge, 2, 13 * BLOCK_TOKENS);
        (void)world_create(&w, &huge, huge.count, false, &seq);
        const uint64_t evictions = world_stats(&w).tiers[KVT_TIER_DEVICE].evictions;
        assert_int_equal(world_reserve(&w, seq, huge.count), KVT_ROOM_TOO_LONG);
        world_finish(&w, seq, true);
        world_settle(&w);
        assert_int_equal(world_stats(&w).tiers[KVT_TIER_DEVICE].evictions, evictions);
        assert_int_equal(world_read(&w, &text), FOUR);
        const uint64_t mapped = kvt_table_bytes();
        assert_true(mapped > mapped_before);
        world_mix(&w,
                  &(struct mix){ .seed = 28 + round,
                                 .steps = 6000,
                                 .live_max = 8,
                                 .tokens_max = 9 * BLOCK_TOKENS,
                                 .verify_every = 100,
                                 .after = check_accounts });
        assert_int_equal(kvt_table_bytes(), mapped); /* all tables were taken at open */
        assert_true(world_stats(&w).tiers[KVT_TIER_NVME].evictions > 0);
        assert_true(world_stats(&w).tiers[KVT_TIER_HOST].evictions > 0);
        world_close(&w);
        assert_int_equal(kvt_table_bytes(), mapped_before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b16_reset_reaches_every_tier_and_what_is_in_flight),
        cmocka_unit_test(b17_a_hold_ends_with_its_sequence_though_nothing_was_loaded),
        cmocka_unit_test(b21_a_failed_stash_is_seen_and_the_block_is_not_taken_for_backed),
        cmocka_unit_test(b21_tiers_may_hold_prefixes_of_any_length),
        cmocka_unit_test(b22_more_fetches_than_staging_slots_all_come_through),
        cmocka_unit_test(b22_room_comes_from_who_is_idle_when_no_tier_has_any),
        cmocka_unit_test(b22_what_is_cached_goes_though_much_that_is_held_is_colder),
        cmocka_unit_test(b22_nothing_is_given_up_for_a_search_that_is_out_of_date),
        cmocka_unit_test(b22_room_is_not_promised_twice_when_a_prefetch_is_revoked),
        cmocka_unit_test(b24_what_never_completes_is_a_miss_after_its_deadline),
        cmocka_unit_test(b24_an_operation_without_blocks_ends),
        cmocka_unit_test(b27_free_and_used_make_the_total_in_every_tier_after_every_step),
        cmocka_unit_test(b28_a_limit_is_a_limit_at_every_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
