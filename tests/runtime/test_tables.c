/*
 * The codec's base tables between runs: blocks that were packed with them are read after a restart; whatever happens to
 * them, a reader gets exact bytes or a miss, and a miss heals; and no block is on the disk before its table.
 */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtier/store.h"
#include "tests/runtime/world.h"
#include "tiers/nvme_tier.h"

enum { LONG = 18 * BLOCK_TOKENS, FOUR = 4 * BLOCK_TOKENS, SIDE_BYTES_MAX = 4096 };

static void init(struct world *w)
{
    world_init(w, 24, 48);
    world_add_disk(w, 48, 8 * KVT_MIB);
    w->config.is_codec_off = false;
    w->config.host_bytes += KVT_MIB; /* the codec's scratch */
}

/* The side files of the store. */
static uint32_t side_files(const struct world *w, char ret_first[128])
{
    char pattern[128];
    glob_t found;
    (void)snprintf(pattern, sizeof pattern, "%s/side-*", w->path);
    const int status = glob(pattern, 0, NULL, &found);
    const uint32_t count = status == 0 ? (uint32_t)found.gl_pathc : 0;
    if (count > 0) (void)snprintf(ret_first, 128, "%s", found.gl_pathv[0]);
    if (status == 0) globfree(&found);
    return count;
}

static size_t read_side(const struct world *w, uint8_t *ret_bytes)
{
    char path[128];
    assert_int_equal(side_files(w, path), 1);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t size = fread(ret_bytes, 1, SIDE_BYTES_MAX, file);
    (void)fclose(file);
    return size;
}

static void write_side(const struct world *w, const uint8_t *bytes, size_t size)
{
    char path[128];
    assert_int_equal(side_files(w, path), 1);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    (void)fclose(file);
}

static void remove_side(const struct world *w)
{
    char path[128];
    assert_int_equal(side_files(w, path), 1);
    assert_int_equal(unlink(path), 0);
}

static uint32_t tables_count(const struct world *w) { return kvt_codec_tables_count(w->runtime->codec); }

/* Serves a text of which any part may be lost: what is left is checked, the rest is computed. Returns what was left. */
static uint64_t serve_what_is_left(struct world *w, const struct text *text)
{
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from, kept;
    uint64_t left = world_create(w, text, text->count, false, &seq);
    assert_int_equal(world_resume(w, seq), KVT_ROOM_OK);
    enum kvt_ready ready = world_begin(w, seq, 0, &step, &lost_from);
    while (ready == KVT_LOST) {
        assert_true(lost_from < left);
        assert_int_equal(kvt_seq_truncate(w->runtime, seq, lost_from, NULL, &kept), KVT_OK);
        left = kept;
        ready = world_begin(w, seq, 0, &step, &lost_from);
    }
    if (ready == KVT_READY && step) {
        world_check(w, text, seq, left, 0);
        world_end(w, step);
        world_crank(w, 0);
    }
    world_step(w, text, seq, text->count - left, true);
    world_finish(w, seq, true);
    world_settle(w);
    assert_int_equal(w->rows_wrong, 0);
    return left;
}

/* By texts that were never served before: those on the disk may have lost their tables. */
static void flush(struct world *w)
{
    static uint64_t count;
    world_flush(w, 1000 + ++count, true);
}

/* Serves the text and drives it out of device and host memory. */
static void put_on_disk(struct world *w, const struct text *text)
{
    (void)serve_what_is_left(w, text);
    flush(w);
}

/* Serves enough for a table, then a text whose blocks are packed with it and are on the disk alone. */
static void learn_and_put(struct world *w, const struct text *text)
{
    struct text first;
    text_make(&first, 77, LONG);
    put_on_disk(w, &first);
    assert_int_equal(tables_count(w), 1);
    put_on_disk(w, text);
}

static void assert_heals(struct world *w, const struct text *text)
{
    assert_int_equal(serve_what_is_left(w, text), 0);
    flush(w);
    assert_int_equal(world_read(w, text), text->count);
    world_reopen(w);
    assert_int_equal(world_read(w, text), text->count);
}

static void blocks_packed_with_tables_are_read_after_a_restart(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    char path[128];
    struct stat before, after;
    init(&w);
    world_open(&w);
    assert_int_equal(side_files(&w, path), 0);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    assert_int_equal(side_files(&w, path), 1);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(before.st_mode & 0777, 0600);
    world_reopen(&w);
    assert_int_equal(tables_count(&w), 1);
    assert_int_equal(world_read(&w, &text), FOUR);
    /* And the next run goes on packing with it, learns nothing, and saves nothing. */
    struct text more;
    text_make(&more, 6, LONG);
    put_on_disk(&w, &more);
    assert_int_equal(tables_count(&w), 1);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    world_close(&w);
}

static void lost_tables_are_misses_that_heal(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    init(&w);
    world_open(&w);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    world_shut(&w);
    remove_side(&w);
    world_open(&w);
    assert_int_equal(tables_count(&w), 0);
    assert_heals(&w, &text);
    world_close(&w);
}

static void what_does_not_unpack_is_not_found_again(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    init(&w);
    world_open(&w);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    world_shut(&w);
    remove_side(&w);
    world_open(&w);
    assert_int_equal(world_create(&w, &text, FOUR, false, &seq), FOUR);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_LOST);
    assert_int_equal(lost_from, 0);
    world_finish(&w, seq, true);
    world_settle(&w);
    /* Nobody computed it: the next one is told at once. */
    assert_int_equal(world_create(&w, &text, FOUR, false, &seq), 0);
    world_finish(&w, seq, false);
    world_close(&w);
}

static void damaged_tables_are_misses_that_heal(void **state)
{
    (void)state;
    static uint8_t exact[SIDE_BYTES_MAX], damaged[SIDE_BYTES_MAX];
    struct world w;
    struct text text;
    char path[128];
    init(&w);
    world_open(&w);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    size_t size = 0;
    /* A byte at every eleventh place, then cut short to every so many bytes; each time the next run learns anew. */
    for (uint32_t turn = 0; turn < 24; turn++) {
        world_shut(&w);
        size = read_side(&w, exact);
        memcpy(damaged, exact, size);
        const size_t at = turn * (size / 12) % size;
        if (turn < 12) damaged[at] ^= 0x10;
        write_side(&w, damaged, turn < 12 ? size : at);
        world_open(&w);
        assert_int_equal(tables_count(&w), 0);
        assert_int_equal(side_files(&w, path), 0);
        assert_int_equal(serve_what_is_left(&w, &text), 0);
        text_make(&text, 500 + turn, FOUR);
        learn_and_put(&w, &text);
    }
    world_reopen(&w);
    assert_int_equal(world_read(&w, &text), FOUR);
    world_close(&w);
}

/* Whole tables of this shape, learned from blocks of this value alone: not constant ones, which would teach nothing. */
static size_t make_tables(const struct world *w, uint16_t value, uint8_t *ret_bytes)
{
    static uint16_t rows[4][BLOCK_TOKENS * 32];
    static _Alignas(64) uint8_t packed[BLOCK_BYTES];
    struct kvt_codec *codec;
    assert_int_equal(kvt_codec_create(&w->config.shape, &codec), KVT_OK);
    void *scratch = kvt_table_map(kvt_codec_scratch_bytes(codec));
    assert_int_equal(kvt_codec_learn(codec, true), KVT_OK);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(rows[0]); i++)
        for (uint32_t p = 0; p < 4; p++) rows[p][i] = (uint16_t)(value + i % 64);
    const struct kvt_chunk_view views[2] = { { { (uint8_t *)rows[0], (uint8_t *)rows[1] } },
                                             { { (uint8_t *)rows[2], (uint8_t *)rows[3] } } };
    while (kvt_codec_tables_count(codec) == 0)
        (void)kvt_codec_pack(codec, 0, views, BLOCK_TOKENS, packed, sizeof packed, scratch);
    const size_t size = kvt_codec_tables_export(codec, ret_bytes, SIDE_BYTES_MAX);
    assert_true(size <= SIDE_BYTES_MAX);
    kvt_table_unmap(scratch, kvt_codec_scratch_bytes(codec));
    kvt_codec_destroy(&codec);
    return size;
}

static void whole_tables_of_another_run_are_misses_that_heal(void **state)
{
    (void)state;
    static uint8_t others[SIDE_BYTES_MAX];
    struct world w;
    struct text text;
    init(&w);
    world_open(&w);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    world_shut(&w);
    write_side(&w, others, make_tables(&w, 0x3f80, others));
    world_open(&w);
    assert_int_equal(tables_count(&w), 1);
    assert_heals(&w, &text);
    world_close(&w);
}

/* The process may die at any moment: what is on the disk then can be read by the next one. */
static void no_block_is_packed_with_a_table_that_is_not_saved(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    char path[128], obstacle[128];
    init(&w);
    world_open(&w);
    (void)snprintf(obstacle, sizeof obstacle, "%s/.kvtier-side", w.path);
    assert_int_equal(mkdir(obstacle, 0700), 0);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    assert_int_equal(side_files(&w, path), 0);
    world_shut(&w);
    assert_int_equal(rmdir(obstacle), 0);
    world_open(&w);
    assert_int_equal(tables_count(&w), 0);
    assert_int_equal(world_read(&w, &text), FOUR);
    world_close(&w);
}

static void tables_that_could_not_be_saved_are_saved_later(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    char path[128], obstacle[128];
    init(&w);
    world_open(&w);
    (void)snprintf(obstacle, sizeof obstacle, "%s/.kvtier-side", w.path);
    assert_int_equal(mkdir(obstacle, 0700), 0);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    assert_int_equal(rmdir(obstacle), 0);
    world_pump(&w, 3);
    assert_int_equal(side_files(&w, path), 0); /* not at once: a full disk is not asked all the time */
    world_advance(&w, 60 * SECOND);
    assert_int_equal(side_files(&w, path), 1);
    world_close(&w);
}

/* ---- Power ------------------------------------------------------------------------------------------------------- */

/* Whether there was a side file when the power went: a save that comes later did not happen. */
static struct {
    struct world *world;
    bool is_noted, was_there;
} at_cut;

static uint64_t now_and_note(void *user)
{
    char path[128];
    struct world *w = user;
    if (!at_cut.is_noted && io_faulty_was_cut(w->image)) {
        at_cut.is_noted = true;
        at_cut.was_there = side_files(w, path) > 0;
    }
    return w->now_ns;
}

static void run_to_cut(struct world *w, uint64_t cut, bool *ret_was_cut)
{
    struct text texts[3];
    init(w);
    at_cut = (typeof(at_cut)){ .world = w };
    w->env.now_ns = now_and_note;
    world_open(w);
    io_faulty_cut_at(w->image, cut);
    for (uint32_t i = 0; i < 3; i++) {
        text_make(&texts[i], 90 + i, 10 * BLOCK_TOKENS);
        (void)serve_what_is_left(w, &texts[i]);
    }
    for (uint32_t i = 0; i < 40 && !io_faulty_was_cut(w->image); i++) {
        struct text other;
        text_make(&other, 200 + i, 12 * BLOCK_TOKENS);
        (void)serve_what_is_left(w, &other);
    }
    *ret_was_cut = io_faulty_was_cut(w->image);
    world_shut(w);
    char path[128];
    if (*ret_was_cut && !at_cut.is_noted) at_cut.was_there = side_files(w, path) > 0;
    if (*ret_was_cut && !at_cut.was_there && side_files(w, path) > 0) remove_side(w);
    io_faulty_power_cycle(w->image);
}

static void b14_after_a_power_cut_every_record_has_its_table(void **state)
{
    (void)state;
    uint32_t before = 0, after = 0;
    bool was_cut = true;
    for (uint64_t cut = 1; cut < 400; cut += cut < 30 ? 1 : 13) {
        struct world w;
        struct text text;
        run_to_cut(&w, cut, &was_cut);
        *(at_cut.was_there ? &after : &before) += 1;
        world_open(&w);
        for (uint32_t i = 0; i < 43; i++) {
            text_make(&text, i < 3 ? 90 + i : 197 + i, (i < 3 ? 10 : 12) * BLOCK_TOKENS);
            (void)serve_what_is_left(&w, &text);
        }
        /* A record that was torn is no record; one that is whole can be unpacked. */
        struct kvt_store_stats store;
        kvt_store_stats(kvt_nvme_tier_store(w.runtime->nvme), &store);
        assert_int_equal(world_stats(&w).failures, store.corrupt);
        world_close(&w);
        if (!was_cut) break;
    }
    print_message("%u cuts before the table was saved, %u after\n", before, after);
    assert_true(before > 0 && after > 0);
}

/* ---- Several in one directory, and none -------------------------------------------------------------------------- */

static void two_shapes_in_one_directory_keep_their_own_tables(void **state)
{
    (void)state;
    struct world w;
    struct text texts[2];
    char path[128];
    const struct kvt_group_shape shapes[2] = {
        { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 2, .kv_heads = 1, .head_dim = 32 },
        { .kind = KVT_GROUP_FULL, .dtype = KVT_DTYPE_BF16, .layers = 1, .kv_heads = 2, .head_dim = 32 }
    };
    init(&w);
    for (uint32_t i = 0; i < 2; i++) {
        text_make(&texts[i], 5 + i, FOUR);
        w.config.shape.groups[0] = shapes[i];
        world_open(&w);
        learn_and_put(&w, &texts[i]);
        world_shut(&w);
        assert_int_equal(side_files(&w, path), i + 1);
    }
    for (uint32_t turn = 0; turn < 4; turn++) {
        w.config.shape.groups[0] = shapes[turn % 2];
        world_open(&w);
        assert_int_equal(tables_count(&w), 1);
        assert_int_equal(world_read(&w, &texts[turn % 2]), FOUR);
        world_shut(&w);
    }
    assert_int_equal(side_files(&w, path), 2);
    /* Another model of the same shape has scales of its own. */
    w.config.model = "another";
    world_open(&w);
    assert_int_equal(tables_count(&w), 0);
    world_close(&w);
}

static void switched_off_nothing_is_learned_and_what_was_packed_with_tables_is_read(void **state)
{
    (void)state;
    struct world w;
    struct text with, without;
    char path[128];
    init(&w);
    world_open(&w);
    text_make(&with, 5, FOUR);
    learn_and_put(&w, &with);
    world_shut(&w);
    w.config.is_codec_tables_off = true;
    world_open(&w);
    assert_int_equal(world_read(&w, &with), FOUR);
    text_make(&without, 6, FOUR);
    put_on_disk(&w, &without);
    world_shut(&w);
    remove_side(&w);
    world_open(&w);
    assert_int_equal(world_read(&w, &without), FOUR);
    struct text more;
    text_make(&more, 8, LONG);
    put_on_disk(&w, &more);
    assert_int_equal(tables_count(&w), 0);
    assert_int_equal(side_files(&w, path), 0);
    world_close(&w);
}

static void a_reset_keeps_the_tables_and_no_block(void **state)
{
    (void)state;
    struct world w;
    struct text text;
    uint64_t kept;
    init(&w);
    world_open(&w);
    text_make(&text, 5, FOUR);
    learn_and_put(&w, &text);
    assert_int_equal(kvt_reset(w.runtime, &kept), KVT_OK);
    put_on_disk(&w, &text);
    world_reopen(&w);
    assert_int_equal(tables_count(&w), 1);
    assert_int_equal(world_read(&w, &text), FOUR);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_packed_with_tables_are_read_after_a_restart),
        cmocka_unit_test(lost_tables_are_misses_that_heal),
        cmocka_unit_test(what_does_not_unpack_is_not_found_again),
        cmocka_unit_test(damaged_tables_are_misses_that_heal),
        cmocka_unit_test(whole_tables_of_another_run_are_misses_that_heal),
        cmocka_unit_test(no_block_is_packed_with_a_table_that_is_not_saved),
        cmocka_unit_test(tables_that_could_not_be_saved_are_saved_later),
        cmocka_unit_test(b14_after_a_power_cut_every_record_has_its_table),
        cmocka_unit_test(two_shapes_in_one_directory_keep_their_own_tables),
        cmocka_unit_test(switched_off_nothing_is_learned_and_what_was_packed_with_tables_is_read),
        cmocka_unit_test(a_reset_keeps_the_tables_and_no_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
