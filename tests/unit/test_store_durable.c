/*
 * store: what sync, reset and compact say of a disk that fails, holds after the power went: nothing acknowledged is lost,
 * nothing that was let go comes back, and no number is given twice.
 */
#include "tests/unit/store_bench.h"
#include "tiers/store_private.h"

enum { KIB = 1024, WHOLE = 20 * KIB };

/* The power goes before anything else is done; the store is opened again. */
static void lose_power(struct bench *bench)
{
    io_faulty_cut_at(bench->image, 1);
    (void)bench_put(bench, 999999, WHOLE);
    kvt_store_close(&bench->store);
    io_faulty_power_cycle(bench->image);
    bench->now_ns += 1234567;
    bench_open(bench);
}

/* A tool looks for the file itself before it opens anything. */
static void bench_mark_existing(const struct bench *bench)
{
    char path[120];
    (void)snprintf(path, sizeof path, "%s/superblock", bench->path);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

/* How many puts of WHOLE the first segment takes. */
static uint64_t puts_of_a_segment(void)
{
    struct bench bench;
    char file[24] = "";
    uint64_t offset, count = 0;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (;; count++) {
        assert_int_equal(bench_put(&bench, count, WHOLE), KVT_OK);
        assert_true(bench_find_record(&bench, count, file, &offset));
        if (strcmp(file, "segment-000000") != 0) break;
    }
    bench_done(&bench);
    return count;
}

/* ---- Sync -------------------------------------------------------------------------------------------------------- */

static void a_sync_that_gave_up_does_not_make_the_next_one_lie(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    static uint8_t bytes[2][1000];
    struct kvt_store_op puts[2], *done[2];
    assert_int_equal(bench_put(&bench, 0, 1000), KVT_OK);
    for (uint64_t i = 0; i < 2; i++)
        puts[i] = (struct kvt_store_op){
            .kind = KVT_STORE_PUT, .name = bench_name(1 + i), .buffer = bytes[i], .length = 1000
        };
    struct kvt_store_op *ops[] = { &puts[0] };
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
    assert_int_equal(kvt_store_sync(bench.store), KVT_IO);
    ops[0] = &puts[1];
    assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
    assert_int_equal(kvt_store_sync(bench.store), KVT_IO);
    io_faulty_heal(bench.image);
    assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
    assert_int_equal(kvt_store_poll(bench.store, done, 2), 2);
    assert_int_equal(puts[1].status, KVT_OK);
    bench_done(&bench);
}

static void a_segment_that_the_next_open_could_not_find_is_not_durable(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    /* The header of the first segment cannot be written, its records can. */
    for (uint64_t n = 1; n <= 4; n++)
        if (n != 2) io_faulty_at(bench.image, IO_FAULTY_WRITE, n, IO_FAULTY_EIO);
    assert_int_equal(bench_put(&bench, 1, 1000), KVT_OK);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_EIO, 1000000);
    assert_int_equal(kvt_store_sync(bench.store), KVT_IO);
    io_faulty_heal(bench.image);
    /* Full and closed it has a footer, and that is enough. */
    for (uint64_t i = 2; i < 100; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
    bench_reopen(&bench);
    for (uint64_t i = 2; i < 100; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
    bench_done(&bench);
}

/* Nor is it by being synced a second time. Once its header can be written it is, and the next open finds it. */
static void a_segment_without_a_header_gets_it_before_a_sync_succeeds(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t n = 1; n <= 4; n++)
        if (n != 2) io_faulty_at(bench.image, IO_FAULTY_WRITE, n, IO_FAULTY_EIO);
    assert_int_equal(bench_put(&bench, 1, 1000), KVT_OK);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_EIO, 1000000);
    assert_int_equal(kvt_store_sync(bench.store), KVT_IO);
    assert_int_equal(kvt_store_sync(bench.store), KVT_IO);
    io_faulty_heal(bench.image);
    assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
    bench_reopen(&bench);
    assert_int_equal(bench_get(&bench, 1, 1000), KVT_OK);
    bench_done(&bench);
}

/*
 * A reclaimed segment is written again only when what was moved out of it is durable elsewhere: while no sync succeeds
 * puts are refused, and after that they go on.
 */
static void what_was_moved_is_let_go_only_after_a_sync_that_succeeds(void **state)
{
    (void)state;
    enum { HELD = 5, PUTS = 900, LENGTH = 20 * KIB };
    for (uint32_t heals = 0; heals < 2; heals++) {
        struct bench bench;
        bench_init_faulty(&bench, 1);
        bench_open(&bench);
        for (uint64_t i = 0; i < HELD; i++) {
            const struct kvt_store_name name = bench_name(i);
            struct kvt_store_found found;
            assert_int_equal(bench_put(&bench, i, LENGTH), KVT_OK);
            assert_true(kvt_store_hold(bench.store, &name, &found));
        }
        assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
        io_faulty_rate(bench.image, IO_FAULTY_SYNC, IO_FAULTY_EIO, 1000000);
        uint32_t refused = 0;
        for (uint64_t i = HELD; i < PUTS; i++) {
            const enum kvt_status status = bench_put(&bench, i, LENGTH);
            assert_true(status == KVT_OK || status == KVT_FULL);
            refused += status == KVT_FULL;
            bench.now_ns += 100000000;
        }
        assert_true(refused > 0);
        if (heals) {
            io_faulty_heal(bench.image);
            for (uint64_t i = PUTS; i < 2 * PUTS; i++) {
                bench.now_ns += 2000000000;
                assert_int_equal(bench_put(&bench, i, LENGTH), KVT_OK);
            }
            assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
        }
        io_faulty_cut_at(bench.image, 1);
        kvt_store_close(&bench.store);
        io_faulty_power_cycle(bench.image);
        bench_open(&bench);
        for (uint64_t i = 0; i < HELD; i++) assert_int_equal(bench_get(&bench, i, LENGTH), KVT_OK);
        bench_done(&bench);
    }
}

static void a_sync_that_fails_says_so(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 1000), KVT_OK);
    io_faulty_at(bench.image, IO_FAULTY_SYNC, 1, IO_FAULTY_EIO);
    assert_int_equal(kvt_store_sync(bench.store), KVT_IO);
    assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_EIO, 1000000);
    assert_int_equal(kvt_store_reset(bench.store), KVT_IO);
    assert_false(bench_has(&bench, 1));
    io_faulty_heal(bench.image);
    assert_int_equal(kvt_store_sync(bench.store), KVT_OK); /* makes the reset last, too */
    bench_reopen(&bench);
    assert_false(bench_has(&bench, 1));
    bench_done(&bench);
}

/* Goal: a segment is being closed, with a sync of its own that fails or hangs: the caller's sync does not rely on it. */
static void a_sync_does_not_rely_on_that_of_a_segment_that_is_being_closed(void **state)
{
    (void)state;
    static uint8_t bytes[WHOLE];
    const enum io_faulty_fault faults[] = { IO_FAULTY_EIO, IO_FAULTY_HELD, IO_FAULTY_NONE };
    const uint64_t count = puts_of_a_segment();
    uint32_t acknowledged = 0;
    for (uint64_t n = 0; n < 30; n++) {
        const enum io_faulty_fault fault = faults[n % 3];
        struct bench bench;
        bench_init_faulty(&bench, 1 + n);
        bench_open(&bench);
        if (fault == IO_FAULTY_NONE) /* or else its header was never written, and its footer is not yet */
            for (uint64_t write = 1; write <= 4; write += write == 1 ? 2 : 1)
                io_faulty_at(bench.image, IO_FAULTY_WRITE, write, IO_FAULTY_EIO);
        for (uint64_t i = 0; i < count; i++) assert_int_equal(bench_put(&bench, i, WHOLE), KVT_OK);
        bench_fill(bytes, WHOLE, count, 1);
        struct kvt_store_op op = { .kind = KVT_STORE_PUT,
                                   .name = bench_name(count),
                                   .generation = 1,
                                   .buffer = bytes,
                                   .length = WHOLE,
                                   .form = 1,
                                   .tokens = 16 };
        struct kvt_store_op *const ops[] = { &op };
        struct kvt_store_op *done = NULL;
        assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
        if (fault != IO_FAULTY_NONE) io_faulty_at(bench.image, IO_FAULTY_SYNC, 1, fault);
        const enum kvt_status status = kvt_store_sync(bench.store);
        (void)kvt_store_poll(bench.store, &done, 1);
        if (status == KVT_OK) {
            acknowledged++;
            lose_power(&bench);
            for (uint64_t i = 0; i <= count; i++) assert_int_equal(bench_get(&bench, i, WHOLE), KVT_OK);
        }
        bench_done(&bench);
    }
    assert_true(acknowledged > 0);
}

static void a_compaction_that_a_failed_sync_ended_says_so(void **state)
{
    (void)state;
    uint32_t failed = 0;
    for (uint64_t n = 0; n <= 6; n++) {
        struct bench bench;
        bench_init_faulty(&bench, 4);
        bench_open(&bench);
        bench_scatter(&bench);
        assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
        if (n > 0) io_faulty_at(bench.image, IO_FAULTY_SYNC, n, IO_FAULTY_EIO);
        const enum kvt_status status = kvt_store_compact(bench.store);
        assert_true(status == KVT_OK ? bench_stats(&bench).segments <= 3 : status == KVT_IO);
        failed += status == KVT_IO;
        assert_true(n > 0 || status == KVT_OK);
        io_faulty_heal(bench.image);
        bench.now_ns += 2000000000u;
        assert_int_equal(kvt_store_compact(bench.store), KVT_OK);
        assert_true(bench_stats(&bench).segments <= 3);
        bench_done(&bench);
    }
    assert_true(failed > 0);
}

/* ---- A bad block ------------------------------------------------------------------------------------------------- */

static struct kvt_block_io_ops bad_ops;
static struct io_faulty_image *bad_image;
static const char *bad_name; /* of the file */
static int bad_file;
static uint64_t bad_offsets[2];

static enum kvt_status bad_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                struct kvt_block_io **ret_io)
{
    const enum kvt_status status = io_faulty_ops.open(config, env, ret_io);
    if (status == KVT_OK) (*ret_io)->ops = &bad_ops;
    return status;
}

static enum kvt_status bad_open_file(struct kvt_block_io *io, const char *name, bool is_create, int *ret_file,
                                     int *ret_errno)
{
    const enum kvt_status status = io_faulty_ops.open_file(io, name, is_create, ret_file, ret_errno);
    if (status == KVT_OK && strcmp(name, bad_name) == 0) bad_file = *ret_file;
    return status;
}

static enum kvt_status bad_submit(struct kvt_block_io *io, struct kvt_io_op *op)
{
    const bool is_bad = op->offset == bad_offsets[0] || op->offset == bad_offsets[1];
    if (op->kind == KVT_IO_WRITE && op->file == bad_file && is_bad)
        io_faulty_at(bad_image, IO_FAULTY_WRITE, 1, IO_FAULTY_EIO);
    return io_faulty_ops.submit(io, op);
}

/* A disk with one file of which these blocks can be read, and never be written. */
static void bench_init_bad(struct bench *bench, const char *name, uint64_t first, uint64_t second)
{
    bench_init_faulty(bench, 1);
    bad_image = bench->image;
    bad_name = name;
    bad_file = -1;
    bad_offsets[0] = first;
    bad_offsets[1] = second;
    bad_ops = io_faulty_ops;
    bad_ops.open = bad_open;
    bad_ops.open_file = bad_open_file;
    bad_ops.submit = bad_submit;
    bench->env.block_io = &bad_ops;
}

/*
 * Goal: the header of one segment cannot be written, ever: it is found by its footer, and puts go on. Nor can its footer:
 *       what it held is forgotten, and puts go on.
 */
static void bad_blocks_of_a_segment_do_not_stop_the_puts(void **state)
{
    (void)state;
    enum { LIVES = 3, PUTS = 1500 };
    for (uint32_t has_footer = 0; has_footer <= 1; has_footer++) {
        struct bench bench;
        bench_init_faulty(&bench, 1);
        bench_open(&bench);
        const uint64_t footer_at = bench_stats(&bench).segment_bytes - KVT_STORE_BLOCK_BYTES;
        bench_done(&bench);
        bench_init_bad(&bench, "segment-000003", 0, has_footer ? 0 : footer_at);
        bench_open(&bench);
        for (uint64_t life = 0; life < LIVES; life++) {
            uint32_t stored = 0;
            for (uint64_t i = 0; i < PUTS; i++) {
                bench.now_ns += 2000000000u;
                stored += bench_put(&bench, life * PUTS + i, WHOLE) == KVT_OK;
            }
            assert_true(stored > PUTS * 8 / 10);
            bench_reopen(&bench);
        }
        assert_true(bad_file >= 0);
        bench_done(&bench);
    }
}

/* Goal: of two copies of the superblock one is enough, at open and for a reset. */
static void one_bad_superblock_stops_nothing(void **state)
{
    (void)state;
    for (uint64_t copy = 0; copy < 2; copy++) {
        struct bench bench;
        bench_init_bad(&bench, "superblock", copy * KVT_STORE_BLOCK_BYTES, copy * KVT_STORE_BLOCK_BYTES);
        bad_name = "none yet";
        bench_open(&bench);
        assert_int_equal(bench_put(&bench, 1, WHOLE), KVT_OK);
        bad_name = "superblock";
        for (uint32_t times = 0; times < 3; times++) {
            bench_reopen(&bench);
            assert_true(bad_file >= 0);
            assert_int_equal(bench_get(&bench, 1, WHOLE), KVT_OK);
            assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
            assert_int_equal(bench_get(&bench, 1, WHOLE), KVT_NOTFOUND);
            bench_reopen(&bench);
            assert_int_equal(bench_get(&bench, 1, WHOLE), KVT_NOTFOUND);
            assert_int_equal(bench_put(&bench, 1, WHOLE), KVT_OK);
            assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
        }
        bench_done(&bench);
    }
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

enum { KEY = 5000 };

/* The key is put anew, made durable and looked for after another open. False: something older is there. */
static bool is_newest_after_open(struct bench *bench)
{
    assert_int_equal(bench_put_as(bench, KEY, 2, WHOLE, 0), KVT_OK);
    assert_int_equal(kvt_store_sync(bench->store), KVT_OK);
    bench->now_ns += 1234567;
    bench_reopen(bench);
    return bench_get_as(bench, KEY, 2, WHOLE) == KVT_OK;
}

/* Goal: records landed and the header of their segment did not; the next one in that file is not taken for theirs. */
static void b63_a_segment_that_the_power_took_never_comes_back_as_another(void **state)
{
    (void)state;
    const uint64_t count = puts_of_a_segment();
    uint32_t tried = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct bench bench;
        bench_init_faulty(&bench, seed);
        bench_open(&bench);
        for (uint64_t i = 0; i < count; i++) assert_int_equal(bench_put(&bench, i, WHOLE), KVT_OK);
        assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
        for (uint64_t i = 0; i < 12; i++) assert_int_equal(bench_put(&bench, 1000 + i, WHOLE), KVT_OK);
        assert_int_equal(bench_put_as(&bench, KEY, 1, WHOLE, 0), KVT_OK);
        lose_power(&bench);
        if (!bench_has(&bench, KEY)) {
            tried++;
            assert_true(is_newest_after_open(&bench));
        }
        bench_done(&bench);
    }
    assert_true(tried > 10);
}

/* Goal: an open that cannot read a block today misses what it holds; tomorrow that is not newer than what came since. */
static void b62_what_one_open_could_not_read_is_older_than_what_was_put_since(void **state)
{
    (void)state;
    uint32_t tried = 0;
    for (uint64_t n = 1; n < 12; n++) {
        struct bench bench;
        bench_init_faulty(&bench, 1);
        bench_open(&bench);
        for (uint64_t i = 0; i < 12; i++) assert_int_equal(bench_put(&bench, i, WHOLE), KVT_OK);
        assert_int_equal(bench_put_as(&bench, KEY, 1, WHOLE, 0), KVT_OK);
        kvt_store_close(&bench.store);
        io_faulty_at(bench.image, IO_FAULTY_READ, n, IO_FAULTY_EIO);
        bench_open(&bench);
        io_faulty_heal(bench.image);
        if (!bench_has(&bench, KEY)) {
            tried++;
            assert_true(is_newest_after_open(&bench));
        }
        bench_done(&bench);
    }
    assert_true(tried >= 2);
}

/* Neither superblock can be written: the reset does not last. */
static void reset_in_vain(struct bench *bench)
{
    io_faulty_rate(bench->image, IO_FAULTY_WRITE, IO_FAULTY_EIO, 1000000);
    assert_int_equal(kvt_store_reset(bench->store), KVT_IO);
    io_faulty_heal(bench->image);
}

/* A reset in vain, a put after it, and the power goes; what the next reset, by a tool or not, says holds. */
static void check_the_next_reset(bool is_tool)
{
    uint32_t tried = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct bench bench;
        bench_init_faulty(&bench, seed);
        bench_open(&bench);
        assert_int_equal(bench_put(&bench, 1, WHOLE), KVT_OK);
        bench_reopen(&bench);
        reset_in_vain(&bench);
        assert_int_equal(bench_put(&bench, KEY, WHOLE), KVT_OK);
        if (is_tool) bench_mark_existing(&bench);
        bench.config.is_existing = is_tool;
        lose_power(&bench);
        if (bench_has(&bench, 1)) {
            tried++;
            assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
            bench.config.is_existing = false;
            bench_reopen(&bench);
            assert_int_equal(bench_get(&bench, KEY, WHOLE), KVT_NOTFOUND);
        }
        bench_done(&bench);
    }
    assert_true(tried > 10);
}

/* Goal: a reset that did not last, and what was put after it; the next reset does not make those records good again. */
static void b16_what_followed_a_reset_that_did_not_last_never_comes_back(void **state)
{
    (void)state;
    check_the_next_reset(false);
}

/* Goal: a tool's open takes no numbers for itself, because it only looks; when it resets all the same, it does. */
static void b16_a_reset_by_a_tool_has_an_epoch_of_its_own(void **state)
{
    (void)state;
    check_the_next_reset(true);
}

/* Goal: each reset has an epoch of its own, also in a store that was just made, and after one that failed. */
static void b16_a_reset_after_one_that_failed_is_another(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, KEY, WHOLE), KVT_OK);
    assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
    for (uint32_t times = 0; times < 3; times++) {
        reset_in_vain(&bench);
        assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
        bench_reopen(&bench);
        assert_int_equal(bench_get(&bench, KEY, WHOLE), KVT_NOTFOUND);
        assert_int_equal(bench_put(&bench, KEY, WHOLE), KVT_OK);
        assert_int_equal(kvt_store_sync(bench.store), KVT_OK);
    }
    bench_done(&bench);
}

/* Goal: an opening that lasts long takes new numbers for itself, before it comes to those of the next one. */
static void numbers_are_renewed_before_they_run_out(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 3; i++) {
        bench.store->record_sequence += (uint64_t)3 << KVT_STORE_SERIAL_BITS; /* as so many puts would */
        const uint64_t reached = bench.store->record_sequence, writes = io_faulty_counters(bench.image).writes;
        struct kvt_store_op *done;
        (void)kvt_store_wait(bench.store, 1000000);
        (void)kvt_store_poll(bench.store, &done, 1);
        assert_int_equal(io_faulty_counters(bench.image).writes - writes, 2); /* both superblocks, once */
        (void)kvt_store_wait(bench.store, 1000000);
        assert_int_equal(io_faulty_counters(bench.image).writes - writes, 2);
        lose_power(&bench);
        assert_true(bench.store->record_sequence > reached);
    }
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sync_that_gave_up_does_not_make_the_next_one_lie),
        cmocka_unit_test(a_segment_that_the_next_open_could_not_find_is_not_durable),
        cmocka_unit_test(a_segment_without_a_header_gets_it_before_a_sync_succeeds),
        cmocka_unit_test(what_was_moved_is_let_go_only_after_a_sync_that_succeeds),
        cmocka_unit_test(a_sync_that_fails_says_so),
        cmocka_unit_test(a_sync_does_not_rely_on_that_of_a_segment_that_is_being_closed),
        cmocka_unit_test(a_compaction_that_a_failed_sync_ended_says_so),
        cmocka_unit_test(bad_blocks_of_a_segment_do_not_stop_the_puts),
        cmocka_unit_test(one_bad_superblock_stops_nothing),
        cmocka_unit_test(b63_a_segment_that_the_power_took_never_comes_back_as_another),
        cmocka_unit_test(b62_what_one_open_could_not_read_is_older_than_what_was_put_since),
        cmocka_unit_test(b16_a_reset_after_one_that_failed_is_another),
        cmocka_unit_test(b16_a_reset_by_a_tool_has_an_epoch_of_its_own),
        cmocka_unit_test(numbers_are_renewed_before_they_run_out),
        cmocka_unit_test(b16_what_followed_a_reset_that_did_not_last_never_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
