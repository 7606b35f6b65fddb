/* Field failure B61: a prefix of a model with window layers is reused only with the whole of its window. */
#include "runtime/prefix.h"
#include "runtime/residency.h"
#include "tests/runtime/world.h"

enum { WINDOW = 40, BLOCKS = 10, ALL = BLOCKS * BLOCK_TOKENS }; /* a window that ends inside a block */

/* A full group and a window group, whose blocks share a pool. */
static void init_windowed(struct world *w, uint32_t device_slots, uint32_t host_slots)
{
    world_init(w, device_slots, host_slots);
    struct kvt_group_shape *groups = w->config.shape.groups;
    groups[0].layers = 2;
    groups[1] = groups[0];
    groups[1].kind = KVT_GROUP_WINDOW;
    groups[1].window_tokens = WINDOW;
    w->config.shape.group_count = 2;
}

static uint64_t first_in_window(uint64_t tokens) { return tokens <= WINDOW ? 0 : (tokens - WINDOW) / BLOCK_TOKENS; }

/* The longest prefix of n tokens whose window does not touch the missing block. */
static uint64_t longest(uint64_t n, uint64_t missing)
{
    uint64_t length = n / BLOCK_TOKENS * BLOCK_TOKENS;
    while (length > 0 && missing >= first_in_window(length) && missing < length / BLOCK_TOKENS) length -= BLOCK_TOKENS;
    return length;
}

/* Every length of prefix is asked for, and what is reused is read. */
static void ask_for_each_length(struct world *w, const struct text *text, uint64_t missing)
{
    for (uint64_t n = 0; n <= ALL; n++) {
        kvt_seq seq;
        const uint64_t reused = world_create(w, text, n, false, &seq);
        if (reused != longest(n, missing))
            fail_msg("%llu of %llu tokens without block %llu", (unsigned long long)reused, (unsigned long long)n,
                     (unsigned long long)missing);
        world_step(w, text, seq, 0, true);
        world_finish(w, seq, true);
    }
    assert_int_equal(w->rows_wrong, 0);
}

static void forget_window_block(struct world *w, const struct text *text, uint64_t missing)
{
    struct kvt_core *core = world_core(w);
    struct kvt_block_key keys[BLOCKS];
    uint64_t first, count;
    kvt_seq seq;
    assert_int_equal(world_create(w, text, ALL, true, &seq), ALL);
    assert_int_equal(kvt_seq_keys(w->runtime, seq, 0, keys, BLOCKS, &first, &count), KVT_OK);
    assert_int_equal(count, BLOCKS);
    world_finish(w, seq, true);
    const uint32_t block = kvt_prefix_find(&core->prefix, 1, (struct kvt_key){ keys[missing].lo, keys[missing].hi });
    assert_int_not_equal(block, KVT_NO_BLOCK);
    kvt_block_unindex(core, block);
    world_verify(w);
}

static void b61_a_prefix_is_reused_only_with_its_whole_window(void **state)
{
    (void)state;
    for (uint64_t missing = 0; missing <= BLOCKS; missing++) { /* the last: none is missing */
        struct world w;
        struct text text;
        kvt_seq seq;
        init_windowed(&w, 40, 0);
        world_open(&w);
        text_make(&text, 1, ALL);
        (void)world_create(&w, &text, ALL, false, &seq);
        /* lets go of blocks behind its window */
        for (uint64_t done = 0; done < ALL; done += 20) world_step(&w, &text, seq, 20, true);
        world_finish(&w, seq, true);
        if (missing < BLOCKS) forget_window_block(&w, &text, missing);
        ask_for_each_length(&w, &text, missing);
        world_close(&w);
    }
}

/*
 * A running sequence holds its window and no more, and a cut further back than that names what must be computed again.
 */
static void b61_a_cut_behind_the_window_names_the_tokens_to_compute(void **state)
{
    (void)state;
    for (uint64_t to = 0; to <= ALL; to += BLOCK_TOKENS) {
        struct world w;
        struct text text;
        kvt_seq seq;
        uint64_t kept;
        init_windowed(&w, 40, 0);
        world_open(&w);
        text_make(&text, 1, ALL);
        (void)world_create(&w, &text, ALL, false, &seq);
        for (uint64_t done = 0; done < ALL; done += 20) world_step(&w, &text, seq, 20, true);
        const struct kvt_sequence *sequence = kvt_sequence_of(world_core(&w), seq);
        assert_int_equal(sequence->groups[1].first, first_in_window(ALL));
        if (to == 3 * BLOCK_TOKENS) { /* a block behind the window went meanwhile */
            struct kvt_core *core = world_core(&w);
            const struct kvt_key key = kvt_core_block(core, sequence->groups[0].blocks[1])->key;
            kvt_block_unindex(core, kvt_prefix_find(&core->prefix, 1, key));
        }
        assert_int_equal(kvt_seq_truncate(w.runtime, seq, to, NULL, &kept), KVT_OK);
        assert_int_equal(kept, to == 3 * BLOCK_TOKENS ? BLOCK_TOKENS : to);
        assert_int_equal(kvt_seq_tokens(w.runtime, seq), kept);
        text_change(&text, kept, 7, ALL); /* another continuation */
        world_step(&w, &text, seq, ALL - kept, true);
        world_step(&w, &text, seq, 0, true);
        world_finish(&w, seq, true);
        assert_int_equal(world_read(&w, &text), ALL);
        world_close(&w);
    }
}

/*
 * A cut may need a block more than before it, when the window then begins in an earlier block: not when others claim
 * the rest of the device.
 */
static void a_cut_claims_no_more_than_the_device_has(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq, other;
    uint64_t kept;
    enum { SLOTS = 5 };
    init_windowed(&w, SLOTS, 12);
    w.config.shape.groups[1].window_tokens = BLOCK_TOKENS;
    world_open(&w);
    text_make(&text, 1, 2 * BLOCK_TOKENS);
    (void)world_create(&w, &text, text.count, false, &seq);
    world_step(&w, &text, seq, text.count, true);
    world_settle(&w);
    (void)world_create(&w, &text, 0, false, &other);
    assert_int_equal(world_reserve(&w, other, BLOCK_TOKENS), KVT_ROOM_OK);
    assert_int_equal(world_core(&w)->pools[0].claimed, SLOTS);
    const uint64_t cut = text.count - 1;
    assert_int_equal(kvt_seq_truncate(w.runtime, seq, cut, text.tokens + BLOCK_TOKENS, &kept), KVT_OK);
    assert_true(world_core(&w)->pools[0].claimed <= SLOTS);
    world_verify(&w);
    assert_int_equal(kept, cut); /* held, and idle until there is room again */
    world_finish(&w, other, true);
    assert_int_equal(world_resume(&w, seq), KVT_ROOM_OK);
    world_step(&w, &text, seq, 0, true);
    world_finish(&w, seq, true);
    world_close(&w);
}

/* Small tiers, so that what is behind windows leaves all the time: whatever is reused is whole. */
static void b61_windows_stay_whole_under_pressure(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct world w;
        init_windowed(&w, 20, 12);
        if (seed % 2 == 0) world_add_disk(&w, 12, 640 * KVT_KIB);
        world_open(&w);
        if (seed % 2 == 0) io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_EIO, 30000);
        world_mix(&w,
                  &(struct mix){ .seed = 61 + seed,
                                 .steps = 4000,
                                 .live_max = 5,
                                 .tokens_max = 6 * BLOCK_TOKENS,
                                 .verify_every = 20,
                                 .is_gating = seed > 3 });
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b61_a_prefix_is_reused_only_with_its_whole_window),
        cmocka_unit_test(b61_a_cut_behind_the_window_names_the_tokens_to_compute),
        cmocka_unit_test(a_cut_claims_no_more_than_the_device_has),
        cmocka_unit_test(b61_windows_stay_whole_under_pressure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
