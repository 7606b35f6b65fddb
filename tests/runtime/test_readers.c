/*
 * Contexts that the device does not hold: a streamed sequence claims only what it writes, and is read through a window,
 * layer by layer, exact or told what is lost.
 */
#include "tests/runtime/world.h"

enum {
    LAYERS = 2,
    DEVICE_SLOTS = 8,
    WINDOW_SLOTS = 2,
    PLACES = WINDOW_SLOTS * LAYERS,
    LONG_TOKENS = 40 * BLOCK_TOKENS + 5
};

/* ---- A streamed sequence ----------------------------------------------------------------------------------------- */

struct streamed {
    kvt_seq seq;
    kvt_reader_id reader;
};

static kvt_reader_id open_window(struct world *w, kvt_seq seq)
{
    kvt_reader_id reader = 0;
    enum kvt_room room = KVT_ROOM_PENDING;
    for (uint32_t round = 0; round < ROUNDS_MAX && room == KVT_ROOM_PENDING; round++) {
        assert_int_equal(kvt_reader_open(w->runtime, seq, 0, WINDOW_SLOTS, &room, &reader), KVT_OK);
        world_pump(w, 1);
    }
    assert_int_equal(room, KVT_ROOM_OK);
    return reader;
}

static struct streamed stream_begin(struct world *w, const struct text *text)
{
    struct streamed s = { 0 };
    (void)world_create(w, text, text->count, true, &s.seq);
    assert_int_equal(kvt_seq_stream(w->runtime, s.seq), KVT_OK);
    assert_int_equal(world_resume(w, s.seq), KVT_ROOM_OK);
    s.reader = open_window(w, s.seq);
    return s;
}

static void stream_end(struct world *w, struct streamed *s)
{
    assert_int_equal(kvt_reader_close(w->runtime, &s->reader), KVT_OK);
    assert_true(s->reader == 0);
    world_finish(w, s->seq, true);
}

/* Asks for the next piece until it is there, cranking the engine's stream when that is what it waits for. */
static struct kvt_piece next_piece(struct world *w, const struct streamed *s, uint32_t *chunks, uint32_t max)
{
    struct kvt_piece piece = { .state = KVT_PIECE_PENDING };
    for (uint32_t round = 0; round < ROUNDS_MAX && piece.state == KVT_PIECE_PENDING; round++) {
        assert_int_equal(
            kvt_reader_next(w->runtime, s->reader, kvt_emulated_stream(w->runtime, 0), chunks, max, &piece), KVT_OK);
        if (piece.state != KVT_PIECE_PENDING) break;
        world_pump(w, 1);
        if (round % 8 == 7) world_crank(w, 0);
    }
    return piece;
}

/* In a step: one pass; every block's layer is compared. Returns how it ended. */
static struct kvt_piece check_layer(struct world *w, const struct text *text, const struct streamed *s, uint32_t layer,
                                    uint64_t n, uint32_t max)
{
    uint32_t chunks[PLACES];
    const uint64_t blocks = (n + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    uint64_t seen = 0;
    assert_int_equal(kvt_reader_begin(w->runtime, s->reader, layer, 0, blocks), KVT_OK);
    for (;;) {
        const struct kvt_piece piece = next_piece(w, s, chunks, max);
        if (piece.state != KVT_PIECE_HERE) {
            if (piece.state == KVT_PIECE_END) assert_int_equal(seen, blocks);
            return piece;
        }
        assert_int_equal(piece.first, seen);
        assert_true(piece.count > 0 && piece.count <= max);
        for (uint32_t i = 0; i < piece.count; i++) world_check_chunk(w, text, layer, piece.first + i, chunks[i], n, 0);
        seen += piece.count;
    }
}

static void check_all(struct world *w, const struct text *text, const struct streamed *s, uint64_t n)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(check_layer(w, text, s, layer, n, PLACES).state, KVT_PIECE_END);
}

/* A step that reads all that is there and writes n more tokens. */
static void stream_step(struct world *w, const struct text *text, const struct streamed *s, uint64_t n, bool is_checked)
{
    kvt_step step;
    uint64_t lost_from;
    const uint64_t from = kvt_seq_tokens(w->runtime, s->seq);
    if (n > 0) assert_int_equal(world_reserve(w, s->seq, n), KVT_ROOM_OK);
    assert_int_equal(world_begin(w, s->seq, 0, &step, &lost_from), KVT_READY);
    if (is_checked) check_all(w, text, s, from);
    if (n > 0) world_write(w, text, s->seq, from, n, 0);
    world_end(w, step);
    world_crank(w, 0);
    world_verify(w);
}

/* Writes the text in chunks of a few blocks and some tokens. */
static void write_all(struct world *w, const struct text *text, const struct streamed *s)
{
    for (uint64_t at = kvt_seq_tokens(w->runtime, s->seq); at < text->count;) {
        const uint64_t n = kvt_min_u64(2 * BLOCK_TOKENS + 7, text->count - at);
        stream_step(w, text, s, n, true);
        at += n;
    }
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void written_and_read(struct world *w)
{
    struct text text;
    world_open(w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(w, &text);
    write_all(w, &text, &s);
    stream_step(w, &text, &s, 0, true);
    const struct kvt_stats stats = world_stats(w);
    assert_true(stats.window_chunks > 0);
    assert_true(stats.tiers[KVT_TIER_DEVICE].peak_bytes <= DEVICE_SLOTS * BLOCK_BYTES);
    assert_true(stats.tiers[KVT_TIER_HOST].peak_bytes <= stats.tiers[KVT_TIER_HOST].capacity_bytes);
    stream_end(w, &s);
    world_settle(w);
    world_verify_idle(w);
    /* It was sealed and stored as ever: a second one finds it, and reads it without computing. */
    struct streamed again = stream_begin(w, &text);
    assert_int_equal(kvt_seq_tokens(w->runtime, again.seq), LONG_TOKENS / BLOCK_TOKENS * BLOCK_TOKENS);
    stream_step(w, &text, &again, 5, true);
    stream_end(w, &again);
    world_settle(w);
    world_close(w);
}

static void a_context_five_times_the_device_is_written_and_read_back_exact(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, DEVICE_SLOTS, 60);
    written_and_read(&w);
}

static void a_context_that_mostly_lies_on_nvme_is_read_through_little_host_memory(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, DEVICE_SLOTS, 12);
    world_add_disk(&w, 12, 32 * KVT_MIB);
    written_and_read(&w);
}

static void packed_blocks_pass_through_the_window_too(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, DEVICE_SLOTS, 60);
    w.config.is_codec_off = false;
    written_and_read(&w);
}

/* Negative control: WINDOW_BEFORE_READ. Nothing runs on the engine's stream before the window must be filled again. */
static void a_place_is_filled_again_only_behind_what_reads_it(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint32_t chunks[PLACES];
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, DEVICE_SLOTS, 60);
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_settle(&w);
    assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 1, 0, 20), KVT_OK);
    for (uint64_t seen = 0; seen < 20;) {
        const struct kvt_piece piece = next_piece(&w, &s, chunks, PLACES);
        assert_int_equal(piece.state, KVT_PIECE_HERE);
        for (uint32_t i = 0; i < piece.count; i++)
            world_check_chunk(&w, &text, 1, piece.first + i, chunks[i], LONG_TOKENS, 0);
        world_pump(&w, 4); /* whatever could be moved into the window now is */
        seen += piece.count;
    }
    world_end(&w, step);
    world_crank(&w, 0);
    assert_int_equal(w.rows_wrong, 0);
    stream_end(&w, &s);
    world_settle(&w);
    world_close(&w);
}

/* The stream of a piece is the one that was named for it, whichever stream the step has or the next piece gets. */
static void a_place_is_filled_again_behind_the_stream_that_its_piece_was_for(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint32_t chunks[PLACES];
    kvt_step step;
    uint64_t lost_from;
    struct kvt_piece piece = { .state = KVT_PIECE_PENDING };
    world_init(&w, DEVICE_SLOTS, 60);
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_settle(&w);
    for (uint32_t way = 0; way < 3; way++) {
        assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
        assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 1, 0, PLACES), KVT_OK);
        do {
            world_pump(&w, 1);
            assert_int_equal(
                kvt_reader_next(w.runtime, s.reader, kvt_emulated_stream(w.runtime, 1), chunks, PLACES, &piece), KVT_OK);
        } while (piece.state == KVT_PIECE_PENDING);
        assert_int_equal(piece.state, KVT_PIECE_HERE);
        for (uint32_t i = 0; i < piece.count; i++)
            world_check_chunk(&w, &text, 1, piece.first + i, chunks[i], LONG_TOKENS, 1);
        /* The piece goes with the next pass, with the step, or with a piece for another stream. */
        if (way == 1) world_end(&w, step);
        if (way == 1) assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
        if (way == 2)
            assert_int_equal(
                kvt_reader_next(w.runtime, s.reader, kvt_emulated_stream(w.runtime, 0), chunks, PLACES, &piece), KVT_OK);
        world_crank(&w, 0);
        assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, PLACES, 3 * PLACES), KVT_OK);
        world_pump(&w, 8);
        world_crank(&w, 1);
        assert_int_equal(w.rows_wrong, 0);
        world_end(&w, step);
        world_crank(&w, 0);
    }
    stream_end(&w, &s);
    world_settle(&w);
    world_close(&w);
}

static void count_legs(void *user, const struct kvt_transfer_event *event)
{
    uint32_t(*legs)[KVT_TIERS] = user;
    assert_true(event->from < KVT_TIERS);
    assert_true(event->to < KVT_TIERS);
    legs[event->from][event->to]++;
}

static void who_watches_transfers_is_told_of_those_to_a_window(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint32_t legs[KVT_TIERS][KVT_TIERS] = { { 0 } };
    world_init(&w, DEVICE_SLOTS, 60);
    w.env.on_transfer = count_legs;
    w.env.transfer_user = legs;
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_settle(&w);
    const uint64_t chunks = world_stats(&w).window_chunks;
    assert_true(chunks > 0);
    assert_true(legs[KVT_TIER_HOST][KVT_TIER_DEVICE] >= chunks);
    stream_end(&w, &s);
    world_settle(&w);
    world_close(&w);
}

static void a_move_that_fails_is_made_again_and_one_that_fails_always_is_told_as_lost(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_step step;
    uint64_t lost_from, kept;
    world_init(&w, DEVICE_SLOTS, 60);
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_settle(&w);
    const uint64_t failures = world_stats(&w).failures;
    kvt_gpu_emulated_fault_at(w.gpu, KVT_DEVICE_STREAM_FETCH, 2, KVT_GPU_FAULT_FAIL_LATE);
    stream_step(&w, &text, &s, 0, true);
    assert_int_equal(world_stats(&w).failures, failures + 1);

    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_FETCH, 1000000, 1, KVT_GPU_FAULT_FAIL);
    assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
    const struct kvt_piece piece = check_layer(&w, &text, &s, 0, LONG_TOKENS, PLACES);
    assert_int_equal(piece.state, KVT_PIECE_LOST);
    assert_int_equal(piece.lost_from % BLOCK_TOKENS, 0);
    world_end(&w, step);
    world_crank(&w, 0);
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_FETCH, 0, 1, KVT_GPU_FAULT_NONE);
    assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, piece.lost_from);
    assert_int_equal(kvt_seq_truncate(w.runtime, s.seq, lost_from, NULL, &kept), KVT_OK);
    assert_int_equal(kept, lost_from);
    write_all(&w, &text, &s);
    stream_step(&w, &text, &s, 0, true);
    stream_end(&w, &s);
    world_settle(&w);
    world_close(&w);
}

static void a_device_that_stops_answering_ends_in_lost_and_not_in_a_wait_for_ever(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint32_t chunks[PLACES];
    kvt_step step;
    uint64_t lost_from;
    struct kvt_piece piece = { .state = KVT_PIECE_PENDING };
    world_init(&w, DEVICE_SLOTS, 60);
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_settle(&w);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, 0, 30), KVT_OK);
    for (uint32_t round = 0; round < 10 && piece.state != KVT_PIECE_LOST; round++) {
        piece = next_piece(&w, &s, chunks, PLACES);
        world_advance(&w, 31 * SECOND);
        world_verify(&w);
    }
    assert_int_equal(piece.state, KVT_PIECE_LOST);
    world_end(&w, step);
    assert_int_equal(kvt_reader_close(w.runtime, &s.reader), KVT_OK); /* while moves into it are still stuck */
    world_verify(&w);
    world_finish(&w, s.seq, false);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void a_window_may_go_while_moves_into_it_are_under_way(void **state)
{
    (void)state;
    struct world w;
    struct text text, other;
    kvt_step step;
    uint64_t lost_from;
    world_init(&w, DEVICE_SLOTS, 60);
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    text_make(&other, 2, 6 * BLOCK_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_settle(&w);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, 0, 30), KVT_OK);
    assert_int_equal(kvt_reader_close(w.runtime, &s.reader), KVT_INVAL); /* not in a step */
    world_end(&w, step);
    world_finish(&w, s.seq, true); /* and its reader with it */
    world_verify(&w);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, 0, 1), KVT_INVAL);
    kvt_seq seq;
    (void)world_create(&w, &other, other.count, false, &seq);
    const enum kvt_room room = world_reserve(&w, seq, other.count); /* the window's slots are not to be had yet */
    if (room == KVT_ROOM_OK) world_step(&w, &other, seq, other.count, true);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    world_settle(&w);
    if (room != KVT_ROOM_OK) world_step(&w, &other, seq, other.count, true);
    world_step(&w, &other, seq, 0, true);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void idle_truncate_and_fork_keep_a_streamed_sequence_exact(void **state)
{
    (void)state;
    struct world w;
    struct text text, branch;
    uint64_t kept;
    world_init(&w, DEVICE_SLOTS, 80);
    world_open(&w);
    text_make(&text, 1, LONG_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    world_idle(&w, s.seq);
    world_verify(&w);
    assert_int_equal(kvt_reader_close(w.runtime, &s.reader), KVT_OK);
    world_flush(&w, 5, false); /* takes the whole device */
    assert_int_equal(world_resume(&w, s.seq), KVT_ROOM_OK);
    s.reader = open_window(&w, s.seq);
    stream_step(&w, &text, &s, 0, true);

    const uint64_t cut = 20 * BLOCK_TOKENS + 3;
    assert_int_equal(kvt_seq_truncate(w.runtime, s.seq, cut, text.tokens + 20 * BLOCK_TOKENS, &kept), KVT_OK);
    assert_int_equal(kept, cut);
    world_verify(&w);
    text_branch(&branch, &text, cut, 9, 30 * BLOCK_TOKENS);
    write_all(&w, &branch, &s);
    stream_step(&w, &branch, &s, 0, true);

    struct streamed fork = { 0 };
    assert_int_equal(kvt_seq_fork(w.runtime, s.seq, &fork.seq), KVT_OK);
    stream_end(&w, &s);
    fork.reader = open_window(&w, fork.seq);
    stream_step(&w, &branch, &fork, 0, true);
    stream_end(&w, &fork);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void what_cannot_be_asked_of_a_reader_is_refused(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    struct kvt_piece piece;
    uint32_t chunk;
    kvt_step step;
    uint64_t lost_from, first, count;
    enum kvt_room room;
    kvt_reader_id reader = 0;
    world_init(&w, DEVICE_SLOTS, 60);
    world_open(&w);
    text_make(&text, 1, 20 * BLOCK_TOKENS);
    struct streamed s = stream_begin(&w, &text);
    write_all(&w, &text, &s);
    assert_int_equal(kvt_seq_stream(w.runtime, s.seq), KVT_INVAL); /* active */
    assert_int_equal(kvt_reader_open(w.runtime, s.seq, 1, 1, &room, &reader), KVT_INVAL);
    assert_int_equal(kvt_reader_open(w.runtime, s.seq, 0, 0, &room, &reader), KVT_INVAL);
    assert_int_equal(kvt_reader_open(w.runtime, s.seq, 0, DEVICE_SLOTS + 1, &room, &reader), KVT_OK);
    assert_int_equal(room, KVT_ROOM_TOO_LONG);
    assert_int_equal(kvt_reader_open(w.runtime, s.seq, 0, DEVICE_SLOTS, &room, &reader), KVT_OK);
    assert_int_equal(room, KVT_ROOM_FULL); /* two are this one's window */
    assert_true(reader == 0);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, 0, 1), KVT_INVAL); /* in no step */
    assert_int_equal(kvt_reader_next(w.runtime, s.reader, NULL, &chunk, 1, &piece), KVT_INVAL);
    assert_int_equal(world_begin(&w, s.seq, 0, &step, &lost_from), KVT_READY);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, LAYERS, 0, 1), KVT_INVAL);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, 0, 21), KVT_INVAL);
    assert_int_equal(kvt_reader_begin(w.runtime, s.reader, 0, 2, 1), KVT_INVAL);
    assert_int_equal(kvt_seq_table(w.runtime, s.seq, 0, &chunk, 1, &first, &count), KVT_OK);
    assert_int_equal(count, 20);
    assert_int_equal(chunk, KVT_NO_SLOT); /* held, and not pinned */
    assert_int_equal(world_append(&w, s.seq, (DEVICE_SLOTS + 1) * BLOCK_TOKENS), KVT_ROOM_TOO_LONG);
    assert_int_equal(check_layer(&w, &text, &s, 0, 20 * BLOCK_TOKENS, 1).state, KVT_PIECE_END); /* one by one */
    world_end(&w, step);
    world_crank(&w, 0);
    stream_end(&w, &s);
    reader = s.reader;
    assert_int_equal(kvt_reader_close(w.runtime, &reader), KVT_OK);
    world_settle(&w);
    world_close(&w);
}

/* Streamed and ordinary sequences side by side, with faults on the copy streams: exact or lost, and all comes to rest. */
static void random_use(uint64_t seed)
{
    struct world w;
    struct text texts[2], other;
    struct streamed s[2] = { { 0 }, { 0 } };
    struct kvt_rng rng = { .state = seed };
    world_init(&w, DEVICE_SLOTS + 4, 14);
    world_add_disk(&w, 14, 32 * KVT_MIB);
    world_open(&w);
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_FETCH, 20000, seed, KVT_GPU_FAULT_FAIL_LATE);
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_STASH, 20000, seed, KVT_GPU_FAULT_FAIL);
    for (uint32_t i = 0; i < 2; i++) text_make(&texts[i], seed * 2 + i, 20 * BLOCK_TOKENS);
    for (uint32_t round = 0; round < 60; round++) {
        const uint32_t i = (uint32_t)kvt_rng_below(&rng, 2);
        if (s[i].seq == 0) s[i] = stream_begin(&w, &texts[i]);
        kvt_step step;
        uint64_t lost_from, kept;
        const uint64_t from = kvt_seq_tokens(w.runtime, s[i].seq);
        const uint64_t n = kvt_min_u64(1 + kvt_rng_below(&rng, 30), texts[i].count - from);
        if (n == 0 || world_reserve(&w, s[i].seq, n) != KVT_ROOM_OK) {
            stream_end(&w, &s[i]);
            s[i] = (struct streamed){ 0 };
            continue;
        }
        bool is_lost = world_begin(&w, s[i].seq, 0, &step, &lost_from) == KVT_LOST;
        if (!is_lost) {
            for (uint32_t layer = 0; layer < LAYERS && !is_lost; layer++)
                is_lost = check_layer(&w, &texts[i], &s[i], layer, from, 3).state == KVT_PIECE_LOST;
            if (!is_lost) world_write(&w, &texts[i], s[i].seq, from, n, 0);
            world_end(&w, step);
            world_crank(&w, 0);
            if (is_lost) assert_int_equal(world_begin(&w, s[i].seq, 0, &step, &lost_from), KVT_LOST);
        }
        if (is_lost) assert_int_equal(kvt_seq_truncate(w.runtime, s[i].seq, lost_from / 16 * 16, NULL, &kept), KVT_OK);
        if (is_lost) (void)world_resume(&w, s[i].seq);
        if (round % 7 == 3) {
            text_make(&other, seed * 100 + round, 3 * BLOCK_TOKENS);
            kvt_seq seq;
            (void)world_create(&w, &other, other.count, false, &seq);
            if (world_reserve(&w, seq, other.count) == KVT_ROOM_OK) world_step(&w, &other, seq, other.count, true);
            world_finish(&w, seq, true);
        }
        world_verify(&w);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (s[i].seq) stream_end(&w, &s[i]);
    }
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_FETCH, 0, seed, KVT_GPU_FAULT_NONE);
    kvt_gpu_emulated_fault_randomly(w.gpu, KVT_DEVICE_STREAM_STASH, 0, seed, KVT_GPU_FAULT_NONE);
    world_settle(&w);
    world_verify_idle(&w);
    world_close(&w);
}

static void streamed_sequences_with_faults_are_exact_or_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) random_use(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_five_times_the_device_is_written_and_read_back_exact),
        cmocka_unit_test(a_context_that_mostly_lies_on_nvme_is_read_through_little_host_memory),
        cmocka_unit_test(packed_blocks_pass_through_the_window_too),
        cmocka_unit_test(a_place_is_filled_again_only_behind_what_reads_it),
        cmocka_unit_test(a_place_is_filled_again_behind_the_stream_that_its_piece_was_for),
        cmocka_unit_test(who_watches_transfers_is_told_of_those_to_a_window),
        cmocka_unit_test(a_move_that_fails_is_made_again_and_one_that_fails_always_is_told_as_lost),
        cmocka_unit_test(a_device_that_stops_answering_ends_in_lost_and_not_in_a_wait_for_ever),
        cmocka_unit_test(a_window_may_go_while_moves_into_it_are_under_way),
        cmocka_unit_test(idle_truncate_and_fork_keep_a_streamed_sequence_exact),
        cmocka_unit_test(what_cannot_be_asked_of_a_reader_is_refused),
        cmocka_unit_test(streamed_sequences_with_faults_are_exact_or_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
