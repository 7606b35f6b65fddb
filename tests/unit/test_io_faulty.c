/*
 * io_faulty: the disk in memory does what its header says. The stores' crash tests stand on this: a power cut that
 *            loses too little
 * proves nothing.
 */
#include "tests/unit/block_io_bench.h"

static const struct implementation memory = { "memory", &io_faulty_ops, true, 0 };

#define SECTOR IO_FAULTY_SECTOR

static void open_image(struct bench *bench, const struct io_faulty_config *config)
{
    *bench = (struct bench){ .implementation = &memory,
                             .env = kvt_env_default(),
                             .image = io_faulty_image_create(config) };
    assert_non_null(bench->image);
    bench->env.block_io_user = bench->image;
    bench->env.is_single_threaded = true;
    bench->buffers = kvt_table_map(BENCH_BUFFERS_BYTES);
    bench->config = (struct kvt_block_io_config){ .directory = "d", .queue_depth = 8 };
    assert_int_equal(bench_open_io(bench), KVT_OK);
}

static void close_image(struct bench *bench)
{
    if (bench->io) bench->io->ops->close(bench->io);
    bench->io = NULL;
    io_faulty_image_destroy(&bench->image);
    kvt_table_unmap(bench->buffers, BENCH_BUFFERS_BYTES);
}

static int32_t put(struct bench *bench, int file, uint64_t offset, uint32_t size, uint64_t seed)
{
    fill(bench->buffers, size, seed);
    return bench_run(bench, bench_op(KVT_IO_WRITE, file, offset, bench->buffers, size));
}

static bool holds(const struct bench *bench, uint64_t offset, uint32_t size, uint64_t seed)
{
    static uint8_t bytes[65536];
    assert_true(size <= sizeof bytes);
    return io_faulty_peek(bench->image, "d", "f", offset, bytes, size) && is_filled(bytes, size, seed);
}

/* The n-th operation of a kind, and no other, meets the fault. */
static void exact_faults_strike_once(void **state)
{
    (void)state;
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = 1 });
    const int file = bench_file(&bench, 65536);
    io_faulty_at(bench.image, IO_FAULTY_WRITE, 2, IO_FAULTY_EIO);
    io_faulty_at(bench.image, IO_FAULTY_ANY, 5, IO_FAULTY_ENOSPC);
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, 0, bench.buffers, SECTOR)), SECTOR);
    assert_int_equal(put(&bench, file, 0, SECTOR, 1), SECTOR);
    assert_int_equal(put(&bench, file, 0, SECTOR, 2), -EIO);
    assert_int_equal(put(&bench, file, 0, SECTOR, 3), SECTOR);
    assert_int_equal(put(&bench, file, 0, SECTOR, 4), -ENOSPC);
    assert_int_equal(put(&bench, file, 0, SECTOR, 5), SECTOR);
    assert_true(holds(&bench, 0, SECTOR, 5));
    int error = 0;
    io_faulty_at(bench.image, IO_FAULTY_CALL, 1, IO_FAULTY_EIO);
    assert_int_equal(bench.io->ops->sync_directory(bench.io, &error), KVT_IO);
    assert_int_equal(error, EIO);
    assert_int_equal(bench.io->ops->sync_directory(bench.io, &error), KVT_OK);
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_FULL);
    struct kvt_io_op op = bench_op(KVT_IO_READ, file, 0, bench.buffers, SECTOR);
    assert_int_equal(bench.io->ops->submit(bench.io, &op), KVT_FULL);
    assert_int_equal(bench_run(&bench, op), SECTOR);
    bench.io->ops->close_file(bench.io, file);
    close_image(&bench);
}

/* Each fault of the data does what its line in the header says, and is counted. */
static void faults_of_the_data_are_what_they_say(void **state)
{
    (void)state;
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = 2, .alignment = 4096 });
    const int file = bench_file(&bench, 65536);
    uint8_t *target = bench.buffers + KVT_MIB;
    assert_int_equal(put(&bench, file, 0, 32768, 1), 32768);

    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_FLIP);
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, 0, target, 32768)), 32768);
    uint32_t different = 0;
    for (uint32_t i = 0; i < 32768; i++) different += (uint32_t)__builtin_popcount(target[i] ^ bench.buffers[i]);
    assert_int_equal(different, 1);

    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_SHORT);
    const int32_t n = bench_run(&bench, bench_op(KVT_IO_READ, file, 0, target, 32768));
    assert_true(n >= 0 && n < 32768 && n % 4096 == 0);
    assert_true(is_filled(target, (uint64_t)n, 1));
    assert_int_equal(target[n], IO_FAULTY_POISON);
    assert_int_equal(target[32767], IO_FAULTY_POISON);

    io_faulty_at(bench.image, IO_FAULTY_WRITE, 1, IO_FAULTY_TORN);
    assert_int_equal(put(&bench, file, 0, 32768, 2), 32768);
    assert_false(holds(&bench, 0, 32768, 2));
    assert_int_equal(put(&bench, file, 0, 32768, 3), 32768);
    io_faulty_at(bench.image, IO_FAULTY_WRITE, 1, IO_FAULTY_MISDIRECT);
    assert_int_equal(put(&bench, file, 32768, 4096, 4), 4096);
    uint32_t places = 0;
    for (uint64_t offset = 0; offset < 65536; offset += 4096) places += holds(&bench, offset, 4096, 4);
    assert_int_equal(places, 1);
    assert_false(holds(&bench, 32768, 4096, 4));

    const struct io_faulty_counters counters = io_faulty_counters(bench.image);
    for (enum io_faulty_fault fault = IO_FAULTY_SHORT; fault <= IO_FAULTY_MISDIRECT; fault++) {
        const bool is_expected = fault != IO_FAULTY_DELAY && fault != IO_FAULTY_HELD;
        assert_int_equal(counters.faults[fault], is_expected ? 1 : 0);
    }
    bench.io->ops->close_file(bench.io, file);
    close_image(&bench);
}

/* A held op comes back when told and not before; a delayed one after a few polls; a waiting poll passes over delays. */
static void held_and_delayed_ops_come_back_late(void **state)
{
    (void)state;
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = 3, .delay_polls_max = 4 });
    const int file = bench_file(&bench, 65536);
    struct kvt_io_op held = bench_op(KVT_IO_READ, file, 0, bench.buffers, SECTOR), *done[4];
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_HELD);
    bench_submit(&bench, &held);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(bench.io->ops->poll(bench.io, done, 4, i), 0);
    assert_int_equal(io_faulty_counters(bench.image).held, 1);
    assert_int_equal(bench.buffers[0], IO_FAULTY_POISON);
    assert_int_equal(io_faulty_release(bench.image), 1);
    assert_int_equal(bench.io->ops->poll(bench.io, done, 4, 0), 1);

    struct kvt_io_op delayed = bench_op(KVT_IO_READ, file, 0, bench.buffers, SECTOR);
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_DELAY);
    bench_submit(&bench, &delayed);
    uint32_t polls = 1;
    while (bench.io->ops->poll(bench.io, done, 4, 0) == 0) polls++;
    assert_true(polls >= 2 && polls <= 5);
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_DELAY);
    bench_submit(&bench, &delayed);
    assert_int_equal(bench.io->ops->poll(bench.io, done, 4, 1), 1);
    bench.io->ops->close_file(bench.io, file);
    close_image(&bench);
}

/* A write up to the limit is short, one beyond is ENOSPC, an allocation is all or none, and the peak is never above. */
static void the_limit_of_bytes_is_a_limit(void **state)
{
    (void)state;
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = 4, .bytes_max = 10 * SECTOR });
    const int file = bench_file(&bench, 4 * SECTOR);
    int error = 0;
    assert_int_equal(bench.io->ops->allocate(bench.io, file, 11 * SECTOR, &error), KVT_IO);
    assert_int_equal(error, ENOSPC);
    assert_int_equal(put(&bench, file, 2 * SECTOR, 16 * SECTOR, 1), 8 * SECTOR);
    assert_int_equal(put(&bench, file, 10 * SECTOR, SECTOR, 1), -ENOSPC);
    assert_int_equal(put(&bench, file, 0, 10 * SECTOR, 2), 10 * SECTOR);
    const struct io_faulty_counters counters = io_faulty_counters(bench.image);
    assert_int_equal(counters.bytes_used, 10 * SECTOR);
    assert_int_equal(counters.bytes_peak, 10 * SECTOR);
    io_faulty_set_bytes_max(bench.image, 0);
    assert_int_equal(put(&bench, file, 10 * SECTOR, SECTOR, 1), SECTOR);
    bench.io->ops->close_file(bench.io, file);
    assert_int_equal(bench.io->ops->remove_file(bench.io, "f", &error), KVT_OK);
    assert_int_equal(io_faulty_counters(bench.image).bytes_used, 0);
    close_image(&bench);
}

static bool poll_asserts(struct bench *bench)
{
    struct kvt_io_op *done[2];
    expect_assert_failure((void)bench->io->ops->poll(bench->io, done, 2, 0));
    return true;
}

static bool submit_asserts(struct bench *bench, struct kvt_io_op *op)
{
    expect_assert_failure((void)bench->io->ops->submit(bench->io, op));
    return true;
}

/* A buffer that changes under a write, and an op that is submitted twice, are found. */
static void b11_misuse_of_a_lent_op_is_found(void **state)
{
    (void)state;
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = 5 });
    const int file = bench_file(&bench, 65536);
    struct kvt_io_op op = bench_op(KVT_IO_WRITE, file, 0, bench.buffers, SECTOR);
    bench_submit(&bench, &op);
    kvt_check_hook = mock_assert;
    assert_true(submit_asserts(&bench, &op));
    bench.buffers[SECTOR - 1] ^= 1;
    assert_true(poll_asserts(&bench));
    kvt_check_hook = NULL;
    bench.buffers[SECTOR - 1] ^= 1;
    bench_collect(&bench, 1);
    bench.io->ops->close_file(bench.io, file);
    close_image(&bench);
}

static void restart(struct bench *bench, bool is_power_lost)
{
    bench->io->ops->close(bench->io);
    bench->io = NULL;
    if (is_power_lost) io_faulty_power_cycle(bench->image);
    else io_faulty_process_restart(bench->image);
    assert_int_equal(bench_open_io(bench), KVT_OK);
}

/* Over many seeds: what was synced is always there; what was not lands, vanishes and tears, sector by sector. */
static void a_power_cut_keeps_what_was_synced_and_only_that_for_sure(void **state)
{
    (void)state;
    enum { WRITE = 8 * SECTOR };
    uint32_t landed = 0, vanished = 0, torn = 0, created = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct bench bench;
        open_image(&bench, &(struct io_faulty_config){ .seed = seed });
        int error = 0;
        const int file = bench_file(&bench, 64 * SECTOR);
        assert_int_equal(put(&bench, file, 0, WRITE, 1), WRITE);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_SYNC, file, 0, NULL, 0)), 0);
        assert_int_equal(bench.io->ops->sync_directory(bench.io, &error), KVT_OK);
        assert_int_equal(put(&bench, file, WRITE, WRITE, 2), WRITE);
        int other;
        assert_int_equal(bench.io->ops->open_file(bench.io, "g", true, &other, &error), KVT_OK);

        io_faulty_cut_at(bench.image, 1);
        assert_int_equal(put(&bench, file, 2 * WRITE, WRITE, 3), -EIO);
        assert_true(io_faulty_was_cut(bench.image));
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, 0, bench.buffers, SECTOR)), -EIO);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_SYNC, file, 0, NULL, 0)), -EIO);
        assert_int_equal(bench.io->ops->sync_directory(bench.io, &error), KVT_IO);
        restart(&bench, true);

        assert_true(holds(&bench, 0, WRITE, 1));
        static uint8_t now[WRITE], written[WRITE];
        for (uint64_t i = 1; i < 3; i++) {
            fill(written, WRITE, i + 1);
            assert_true(io_faulty_peek(bench.image, "d", "f", i * WRITE, now, WRITE));
            uint32_t whole = 0;
            for (uint32_t j = 0; j < WRITE; j += SECTOR) {
                static const uint8_t zeros[SECTOR];
                const bool is_new = memcmp(now + j, written + j, SECTOR) == 0;
                assert_true(is_new || memcmp(now + j, zeros, SECTOR) == 0);
                whole += is_new;
            }
            landed += whole == WRITE / SECTOR;
            vanished += whole == 0;
            torn += whole > 0 && whole < WRITE / SECTOR;
        }
        uint64_t size;
        created += io_faulty_file_size(bench.image, "d", "g", &size);
        close_image(&bench);
    }
    print_message("of 400 writes %u landed, %u vanished, %u tore; of 200 names %u landed\n", landed, vanished, torn,
                  created);
    assert_true(landed > 60 && vanished > 60 && torn > 60);
    assert_true(created > 40 && created < 160);
}

/* A sync covers what came back before it was submitted, not what comes back before the sync does. */
static void a_sync_covers_only_what_came_back_before_it(void **state)
{
    (void)state;
    uint32_t lost = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct bench bench;
        open_image(&bench, &(struct io_faulty_config){ .seed = seed });
        int error = 0;
        const int file = bench_file(&bench, 64 * SECTOR);
        assert_int_equal(bench.io->ops->sync_directory(bench.io, &error), KVT_OK);
        assert_int_equal(put(&bench, file, 0, SECTOR, 1), SECTOR);
        fill(bench.buffers + KVT_MIB, SECTOR, 2);
        struct kvt_io_op ops[2] = { bench_op(KVT_IO_WRITE, file, SECTOR, bench.buffers + KVT_MIB, SECTOR),
                                    bench_op(KVT_IO_SYNC, file, 0, NULL, 0) };
        for (uint32_t i = 0; i < 2; i++) bench_submit(&bench, &ops[i]);
        bench_collect(&bench, 2);
        assert_int_equal(ops[1].ret_bytes, 0);
        restart(&bench, true);
        assert_true(holds(&bench, 0, SECTOR, 1));
        lost += !holds(&bench, SECTOR, SECTOR, 2);
        close_image(&bench);
    }
    assert_true(lost > 10 && lost < 60);
}

/* A process that dies loses nothing that came back; what was in flight is there or not. */
static void a_process_restart_keeps_what_came_back(void **state)
{
    (void)state;
    uint32_t landed = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct bench bench;
        open_image(&bench, &(struct io_faulty_config){ .seed = seed });
        const int file = bench_file(&bench, 64 * SECTOR);
        assert_int_equal(put(&bench, file, 0, SECTOR, 1), SECTOR);
        io_faulty_cut_at(bench.image, 1);
        assert_int_equal(put(&bench, file, SECTOR, SECTOR, 2), -EIO);
        assert_int_equal(put(&bench, file, 2 * SECTOR, SECTOR, 3), -EIO);
        restart(&bench, false);
        assert_true(holds(&bench, 0, SECTOR, 1));
        landed += holds(&bench, SECTOR, SECTOR, 2);
        assert_false(holds(&bench, 2 * SECTOR, SECTOR, 3)); /* submitted after the end */
        close_image(&bench);
    }
    assert_true(landed > 10 && landed < 50);
}

/* A removal that was not synced may be undone; one name never means two files. */
static void names_survive_a_cut_as_directories_do(void **state)
{
    (void)state;
    uint32_t old_ones = 0, new_ones = 0, none = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct bench bench;
        open_image(&bench, &(struct io_faulty_config){ .seed = seed });
        int error = 0;
        int file = bench_file(&bench, SECTOR);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_SYNC, file, 0, NULL, 0)), 0);
        assert_int_equal(bench.io->ops->sync_directory(bench.io, &error), KVT_OK);
        bench.io->ops->close_file(bench.io, file);
        assert_int_equal(bench.io->ops->remove_file(bench.io, "f", &error), KVT_OK);
        file = bench_file(&bench, 2 * SECTOR);
        assert_int_equal(bench_run(&bench, bench_op(KVT_IO_SYNC, file, 0, NULL, 0)), 0);
        restart(&bench, true);
        uint64_t size = 0;
        if (!io_faulty_file_size(bench.image, "d", "f", &size)) none++;
        old_ones += size == SECTOR;
        new_ones += size == 2 * SECTOR;
        close_image(&bench);
    }
    assert_int_equal(old_ones + new_ones + none, 100);
    assert_true(old_ones > 10 && new_ones > 10 && none > 5);
}

/* The loop that a store's crash test runs: a toy journal loses nothing, and the same one without its sync is caught. */
static uint32_t run_toy_journal(struct bench *bench, bool is_synced)
{
    int file = -1, error;
    uint32_t acknowledged = 0;
    if (bench->io->ops->open_file(bench->io, "f", true, &file, &error) != KVT_OK) return 0;
    bool is_alive = bench->io->ops->allocate(bench->io, file, 16 * SECTOR, &error) == KVT_OK
        && bench->io->ops->sync_directory(bench->io, &error) == KVT_OK;
    for (uint32_t i = 0; i < 8 && is_alive; i++) {
        is_alive = put(bench, file, (uint64_t)i * SECTOR, SECTOR, i + 1) == SECTOR
            && (!is_synced || bench_run(bench, bench_op(KVT_IO_SYNC, file, 0, NULL, 0)) == 0);
        acknowledged += is_alive;
    }
    return acknowledged;
}

static uint32_t lost_acknowledgements(bool is_synced)
{
    uint32_t lost = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        bool was_cut = true;
        for (uint64_t cut = 1; was_cut; cut++) {
            struct bench bench;
            open_image(&bench, &(struct io_faulty_config){ .seed = seed });
            io_faulty_cut_at(bench.image, cut);
            const uint32_t acknowledged = run_toy_journal(&bench, is_synced);
            was_cut = io_faulty_was_cut(bench.image);
            restart(&bench, true);
            for (uint32_t i = 0; i < acknowledged; i++) lost += !holds(&bench, (uint64_t)i * SECTOR, SECTOR, i + 1);
            close_image(&bench);
        }
    }
    return lost;
}

static void the_power_cut_loop_catches_a_missing_sync(void **state)
{
    (void)state;
    assert_int_equal(lost_acknowledgements(true), 0);
    assert_true(lost_acknowledgements(false) > 100);
}

static uint64_t digest_of_a_run(uint64_t seed)
{
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = seed, .is_reordering = true });
    const int file = bench_file(&bench, 64 * SECTOR);
    for (enum io_faulty_fault fault = IO_FAULTY_EIO; fault < IO_FAULTY_COUNT; fault++) {
        if (fault != IO_FAULTY_HELD) io_faulty_rate(bench.image, IO_FAULTY_ANY, fault, 100000);
    }
    uint64_t digest = 0;
    struct kvt_io_op ops[8], *done[8];
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < 8; i++) {
            uint8_t *buffer = bench.buffers + i * 8192u;
            fill(buffer, 8 * SECTOR, round * 8 + i);
            ops[i] = bench_op(i % 3 ? KVT_IO_WRITE : KVT_IO_READ, file, i * 8u * SECTOR, buffer, 8 * SECTOR);
            n += bench.io->ops->submit(bench.io, &ops[i]) == KVT_OK;
        }
        while (n > 0) {
            const uint32_t got = bench.io->ops->poll(bench.io, done, 8, 1);
            for (uint32_t i = 0; i < got; i++)
                digest = kvt_mix64(digest ^ (uint64_t)(done[i] - ops) << 32 ^ (uint32_t)done[i]->ret_bytes);
            n -= got;
        }
    }
    restart(&bench, true);
    close_image(&bench);
    return digest;
}

static void the_same_seed_gives_the_same_run(void **state)
{
    (void)state;
    assert_int_equal(digest_of_a_run(1), digest_of_a_run(1));
    assert_int_not_equal(digest_of_a_run(1), digest_of_a_run(2));
}

/* A disk can be damaged by hand, and one image has several directories. */
static void a_disk_can_be_looked_at_and_damaged(void **state)
{
    (void)state;
    struct bench bench;
    open_image(&bench, &(struct io_faulty_config){ .seed = 6 });
    const int file = bench_file(&bench, 0);
    assert_int_equal(put(&bench, file, 0, 4 * SECTOR, 1), 4 * SECTOR);
    const uint8_t byte = 0x5a;
    uint8_t seen = 0;
    assert_true(io_faulty_poke(bench.image, "d", "f", 700, &byte, 1));
    assert_false(io_faulty_poke(bench.image, "d", "f", 4 * SECTOR, &byte, 1));
    assert_false(io_faulty_poke(bench.image, "e", "f", 0, &byte, 1));
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, SECTOR, bench.buffers, SECTOR)), SECTOR);
    assert_int_equal(bench.buffers[700 - SECTOR], 0x5a);
    assert_true(io_faulty_truncate(bench.image, "d", "f", 2 * SECTOR));
    assert_int_equal(bench_run(&bench, bench_op(KVT_IO_READ, file, 0, bench.buffers, 4 * SECTOR)), 2 * SECTOR);

    struct bench second = bench;
    second.config.directory = "e";
    assert_int_equal(bench_open_io(&second), KVT_OK);
    const int other = bench_file(&second, SECTOR);
    assert_true(io_faulty_peek(bench.image, "e", "f", 0, &seen, 1));
    assert_int_equal(seen, 0);
    second.io->ops->close_file(second.io, other);
    second.io->ops->close(second.io);
    bench.io->ops->close_file(bench.io, file);
    close_image(&bench);
}

int main(void)
{
    const struct CMUnitTest io_faulty_tests[] = {
        cmocka_unit_test(exact_faults_strike_once),
        cmocka_unit_test(faults_of_the_data_are_what_they_say),
        cmocka_unit_test(held_and_delayed_ops_come_back_late),
        cmocka_unit_test(the_limit_of_bytes_is_a_limit),
        cmocka_unit_test(b11_misuse_of_a_lent_op_is_found),
        cmocka_unit_test(a_power_cut_keeps_what_was_synced_and_only_that_for_sure),
        cmocka_unit_test(a_sync_covers_only_what_came_back_before_it),
        cmocka_unit_test(a_process_restart_keeps_what_came_back),
        cmocka_unit_test(names_survive_a_cut_as_directories_do),
        cmocka_unit_test(the_power_cut_loop_catches_a_missing_sync),
        cmocka_unit_test(the_same_seed_gives_the_same_run),
        cmocka_unit_test(a_disk_can_be_looked_at_and_damaged),
    };
    return cmocka_run_group_tests(io_faulty_tests, NULL, NULL);
}
