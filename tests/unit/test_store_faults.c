/* store: a disk that fails. Every fault is a miss or a status, never wrong bytes, and heals with the next put. */
#include "tests/unit/store_bench.h"

enum { KIB = 1024 };

/* ---- Space ------------------------------------------------------------------------------------------------------- */

/* What lies in the directory takes its space, whether or not the store wanted it to go. */
static void b65_a_file_that_cannot_be_removed_is_counted_until_it_is_gone(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 4);
    bench_open(&bench);
    bench_scatter(&bench);
    const uint64_t before = bench_stats(&bench).allocated_bytes;
    io_faulty_rate(bench.image, IO_FAULTY_CALL, IO_FAULTY_EIO, 1000000);
    const enum kvt_status compacted = kvt_store_compact(bench.store);
    assert_true(compacted == KVT_OK || compacted == KVT_IO);
    assert_true(io_faulty_counters(bench.image).faults[IO_FAULTY_EIO] > 0);
    assert_true(bench_stats(&bench).allocated_bytes >= io_faulty_counters(bench.image).bytes_used);
    assert_int_equal(bench_stats(&bench).allocated_bytes, before);
    io_faulty_heal(bench.image);
    for (uint64_t i = 1000; i < 1600; i++) {
        assert_int_equal(bench_put(&bench, i, 12000), KVT_OK);
        assert_true(bench_stats(&bench).allocated_bytes >= io_faulty_counters(bench.image).bytes_used);
    }
    assert_true(bench_stats(&bench).allocated_peak <= bench.config.capacity_bytes);
    /* One that cannot be opened is no less there. */
    for (uint64_t n = 1; n < 40; n++) {
        kvt_store_close(&bench.store);
        io_faulty_at(bench.image, IO_FAULTY_CALL, n, IO_FAULTY_EIO);
        if (bench_try_open(&bench) == KVT_OK)
            assert_true(bench_stats(&bench).allocated_bytes >= io_faulty_counters(bench.image).bytes_used);
        io_faulty_heal(bench.image);
    }
    bench_done(&bench);
}

/* ---- Reads ------------------------------------------------------------------------------------------------------- */

static void b24_an_op_whose_disk_is_silent_comes_back_once_and_late(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(bench_put(&bench, i, 5000), KVT_OK);
    static uint8_t bytes[5000], other[5000];
    struct kvt_store_op silent = bench_get_op(0, bytes, sizeof bytes);
    struct kvt_store_op *ops[] = { &silent }, *done;
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_HELD);
    assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
    assert_false(kvt_store_wait(bench.store, 1000000));
    /* The others are served meanwhile. */
    for (uint64_t i = 1; i < 4; i++) {
        struct kvt_store_op op = bench_get_op(i, other, sizeof other);
        ops[0] = &op;
        assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
        assert_true(kvt_store_wait(bench.store, 1000000));
        assert_int_equal(kvt_store_poll(bench.store, &done, 1), 1);
        assert_ptr_equal(done, &op);
        assert_int_equal(op.status, KVT_OK);
    }
    assert_int_equal(io_faulty_release(bench.image), 1);
    assert_true(kvt_store_wait(bench.store, 1000000));
    assert_int_equal(kvt_store_poll(bench.store, &done, 1), 1);
    assert_ptr_equal(done, &silent);
    assert_int_equal(silent.status, KVT_OK);
    assert_int_equal(kvt_store_poll(bench.store, &done, 1), 0);
    bench_done(&bench);
}

static void b24_close_ends_ops_whose_disk_stays_silent(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 0, 5000), KVT_OK);
    static uint8_t bytes[5000], more[5000];
    struct kvt_store_op get = bench_get_op(0, bytes, sizeof bytes);
    struct kvt_store_op put = { .kind = KVT_STORE_PUT, .name = bench_name(1), .buffer = more, .length = sizeof more };
    struct kvt_store_op *const ops[] = { &get, &put };
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_HELD, 1000000);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    assert_int_equal(kvt_store_submit(bench.store, ops, 2), 2);
    kvt_store_close(&bench.store);
    assert_int_equal(get.status, KVT_SHUTDOWN);
    assert_int_equal(put.status, KVT_SHUTDOWN);
    io_faulty_heal(bench.image);
    bench_open(&bench);
    assert_int_equal(bench_get(&bench, 0, 5000), KVT_OK);
    bench_done(&bench);
}

static void b25_the_first_failed_get_turns_the_lookup_into_a_miss(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 5000), KVT_OK);
    assert_true(bench_has(&bench, 1));
    io_faulty_at(bench.image, IO_FAULTY_READ, 1, IO_FAULTY_EIO);
    assert_int_equal(bench_get(&bench, 1, 5000), KVT_IO);
    assert_false(bench_has(&bench, 1));
    assert_int_equal(bench_get(&bench, 1, 5000), KVT_NOTFOUND);
    assert_int_equal(bench_put(&bench, 1, 5000), KVT_OK);
    assert_int_equal(bench_get(&bench, 1, 5000), KVT_OK);
    assert_int_equal(bench_stats(&bench).read_errors, 1);
    bench_done(&bench);
}

static void b43_a_short_read_is_finished_or_failed(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 30; i++) assert_int_equal(bench_put(&bench, i, 30 * KIB), KVT_OK);
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_SHORT, 500000);
    uint32_t exact = 0;
    for (uint64_t i = 0; i < 30; i++) {
        const enum kvt_status status = bench_get(&bench, i, 30 * KIB);
        assert_true(status == KVT_OK || status == KVT_IO);
        exact += status == KVT_OK;
    }
    assert_true(exact > 15);
    assert_true(bench_stats(&bench).short_transfers > 10);
    bench_done(&bench);
}

static void b43_a_segment_that_was_cut_short_gives_misses(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(bench_put(&bench, i, 30 * KIB), KVT_OK);
    assert_true(io_faulty_truncate(bench.image, bench.path, "segment-000000", 300 * KIB + 100));
    for (uint64_t i = 0; i < 20; i++) {
        const enum kvt_status status = bench_get(&bench, i, 30 * KIB);
        assert_int_equal(status, i < 9 ? KVT_OK : KVT_IO);
    }
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(bench_put(&bench, i, 30 * KIB), KVT_OK);
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(bench_get(&bench, i, 30 * KIB), KVT_OK);
    bench_done(&bench);
}

static void b47_a_flipped_bit_anywhere_in_a_record_is_a_miss(void **state)
{
    (void)state;
    const uint32_t length = 3000;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    const uint32_t end = sizeof(struct kvt_record_header) + length;
    uint32_t flips = 0;
    for (uint32_t at = 0; at < end; at += at < sizeof(struct kvt_record_header) ? 1 : 61) {
        const uint64_t key = 1000 + at;
        char file[24];
        uint64_t offset;
        assert_int_equal(bench_put(&bench, key, length), KVT_OK);
        assert_true(bench_find_record(&bench, key, file, &offset));
        bench_flip(&bench, file, offset + at, (int)(at % 8));
        /* Alternately in this process and by the next one, which reads the segments anew. */
        if (at % 16 == 0) bench_reopen(&bench);
        const enum kvt_status status = bench_get(&bench, key, length);
        assert_true(status == KVT_CORRUPT || (at % 16 == 0 && status == KVT_NOTFOUND));
        assert_false(bench_has(&bench, key));
        assert_int_equal(bench_put(&bench, key, length), KVT_OK);
        assert_int_equal(bench_get(&bench, key, length), KVT_OK);
        flips++;
    }
    assert_true(flips > 128);
    assert_true(bench_stats(&bench).corrupt > 0);
    bench_done(&bench);
}

static void b47_swapped_records_are_misses(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    char file[2][24];
    uint64_t offset[2];
    static uint8_t record[2][3584];
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(bench_put(&bench, i, 3000), KVT_OK);
        assert_true(bench_find_record(&bench, i, file[i], &offset[i]));
        assert_true(io_faulty_peek(bench.image, bench.path, file[i], offset[i], record[i], sizeof record[i]));
    }
    for (uint64_t i = 0; i < 2; i++)
        assert_true(io_faulty_poke(bench.image, bench.path, file[i], offset[i], record[1 - i], sizeof record[i]));
    for (uint64_t i = 0; i < 2; i++) assert_int_equal(bench_get(&bench, i, 3000), KVT_CORRUPT);
    bench_done(&bench);
}

static void b48_a_failed_get_of_a_whole_record_leaves_the_buffer_alone(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 50 * KIB), KVT_OK);
    char file[24];
    uint64_t offset;
    assert_true(bench_find_record(&bench, 1, file, &offset));
    bench_flip(&bench, file, offset + 50 * KIB, 3);
    static uint8_t bytes[50 * KIB];
    memset(bytes, 0x77, sizeof bytes);
    struct kvt_store_op op = bench_get_op(1, bytes, sizeof bytes);
    assert_int_equal(bench_run(&bench, &op), KVT_CORRUPT);
    for (uint32_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0x77);
    bench_done(&bench);
}

static void b62_each_damage_heals_with_the_next_put(void **state)
{
    (void)state;
    const uint32_t length = 20 * KIB;
    for (int damage = 0; damage < 4; damage++) {
        for (int is_reopened = 0; is_reopened < 2; is_reopened++) {
            struct bench bench;
            bench_init_faulty(&bench, 1);
            bench_open(&bench);
            for (uint64_t i = 0; i < 3; i++) assert_int_equal(bench_put(&bench, i, length), KVT_OK);
            char file[24];
            uint64_t offset;
            assert_true(bench_find_record(&bench, 1, file, &offset));
            static const uint8_t zeros[4096];
            if (damage == 0) bench_flip(&bench, file, offset + 5000, 0);
            if (damage == 1) assert_true(io_faulty_truncate(bench.image, bench.path, file, offset + 4096));
            if (damage == 2) assert_true(io_faulty_poke(bench.image, bench.path, file, offset, zeros, sizeof zeros));
            if (damage == 3) io_faulty_at(bench.image, IO_FAULTY_WRITE, 1, IO_FAULTY_EIO);
            if (damage == 3) assert_int_equal(bench_put_as(&bench, 1, 2, length, 0), KVT_IO);
            if (is_reopened) bench_reopen(&bench);
            const enum kvt_status status = bench_get(&bench, 1, length);
            assert_int_equal(status == KVT_OK, damage == 3); /* the older record is still whole */
            assert_int_equal(bench_has(&bench, 1), damage == 3);
            assert_int_equal(bench_put(&bench, 1, length), KVT_OK);
            assert_int_equal(bench_get(&bench, 1, length), KVT_OK);
            assert_int_equal(bench_get(&bench, 0, length), KVT_OK);
            bench_reopen(&bench);
            assert_int_equal(bench_get(&bench, 1, length), KVT_OK);
            bench_done(&bench);
        }
    }
}

/* The process dies without a word; what had come back from the disk stays. */
static void crash(struct bench *bench)
{
    io_faulty_cut_at(bench->image, 1);
    kvt_store_close(&bench->store);
    io_faulty_process_restart(bench->image);
}

static void b63_after_a_crash_every_key_gives_its_bytes_or_a_miss(void **state)
{
    (void)state;
    for (uint64_t count = 700; count < 760; count += 7) {
        struct bench bench;
        bench_init_faulty(&bench, count);
        bench.config.capacity_bytes = 3 * KVT_MIB;
        bench_open(&bench);
        /* Several laps: recycled segments hold whole records of earlier laps behind the younger ones. */
        for (uint64_t i = 0; i < count; i++)
            assert_int_equal(bench_put(&bench, i, 20 * KIB - (uint32_t)(i / 200) * 512), KVT_OK);
        static bool was_there[800];
        uint64_t records = 0, again = 0;
        for (uint64_t i = 0; i < count; i++) records += was_there[i] = bench_has(&bench, i);
        crash(&bench);
        bench_open(&bench);
        again = bench_stats(&bench).records;
        for (uint64_t i = 0; i < count; i++) {
            const enum kvt_status status = bench_get(&bench, i, 20 * KIB - (uint32_t)(i / 200) * 512);
            assert_true(status == KVT_OK || (status == KVT_NOTFOUND && !was_there[i]));
        }
        /* More only from the spare segment, whose records nothing has overwritten yet. */
        assert_in_range(again, records, records + bench_stats(&bench).segment_bytes / (18 * KIB));
        bench_done(&bench);
    }
}

/* Plants a valid record of this store at a free place of the open segment, and wants it to be nothing. */
static void plant_and_look(struct bench *bench, const char *source_file, uint64_t source, const char *file,
                           uint64_t target, uint64_t end)
{
    static uint8_t record[3584];
    char next_file[24];
    uint64_t next;
    assert_true(io_faulty_peek(bench->image, bench->path, source_file, source, record, sizeof record));
    const uint64_t records = bench_stats(bench).records;
    kvt_store_close(&bench->store);
    assert_true(io_faulty_poke(bench->image, bench->path, file, target, record, sizeof record));
    bench_open(bench);
    assert_int_equal(bench_stats(bench).records, records);
    assert_int_equal(bench_put(bench, 9999, 3000), KVT_OK);
    assert_true(bench_find_record(bench, 9999, next_file, &next));
    assert_string_equal(next_file, file);
    assert_int_equal(next, end); /* appended to the records, not to what was planted */
}

static void a_record_at_another_place_than_its_own_is_no_record(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    char file[24];
    uint64_t offset;
    for (uint64_t i = 0; i < 3; i++) assert_int_equal(bench_put(&bench, i, 3000), KVT_OK);
    assert_true(bench_find_record(&bench, 0, file, &offset));
    plant_and_look(&bench, file, offset, file, offset + 100 * KIB, offset + 3 * 3584);
    bench_done(&bench);
}

static void a_record_of_an_earlier_use_of_its_segment_is_no_record(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    char first[24], file[24];
    uint64_t offset, end;
    assert_int_equal(bench_put(&bench, 0, 3000), KVT_OK);
    uint64_t key = 1;
    do {
        assert_int_equal(bench_put(&bench, key, 3000), KVT_OK);
        assert_true(bench_find_record(&bench, key++, file, &end));
    } while (strcmp(file, "segment-000000") == 0);
    /* The same offset, another segment: all that differs is the sequence. */
    assert_true(bench_find_record(&bench, key - 3, first, &offset));
    assert_string_equal(first, "segment-000000");
    plant_and_look(&bench, first, offset, file, offset, end + 3584);
    bench_done(&bench);
}

/* ---- Writes ------------------------------------------------------------------------------------------------------ */

static void b32_a_short_write_is_finished_or_the_put_fails(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_SHORT, 500000);
    uint32_t written = 0;
    bool is_ok[100];
    for (uint64_t i = 0; i < 100; i++) {
        const enum kvt_status status = bench_put(&bench, i, 30 * KIB);
        assert_true(status == KVT_OK || status == KVT_IO);
        is_ok[i] = status == KVT_OK;
        written += is_ok[i];
    }
    io_faulty_heal(bench.image);
    assert_true(written > 50);
    assert_int_equal(bench_stats(&bench).puts, written);
    for (int times = 0; times < 2; times++) {
        for (uint64_t i = 0; i < 100; i++)
            assert_int_equal(bench_get(&bench, i, 30 * KIB), is_ok[i] ? KVT_OK : KVT_NOTFOUND);
        bench_reopen(&bench);
    }
    bench_done(&bench);
}

static void b44_a_failed_put_is_never_seen(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 5000), KVT_OK);
    for (uint64_t i = 2; i < 40; i++) {
        io_faulty_at(bench.image, IO_FAULTY_WRITE, 1, IO_FAULTY_EIO);
        const enum kvt_status status = bench_put(&bench, i, 5000);
        assert_true(status == KVT_IO || status == KVT_OK); /* the write that failed may have been a header's */
        if (status != KVT_IO) continue;
        assert_false(bench_has(&bench, i));
        assert_int_equal(bench_get(&bench, i, 5000), KVT_NOTFOUND);
    }
    bench_reopen(&bench);
    assert_int_equal(bench_get(&bench, 1, 5000), KVT_OK);
    for (uint64_t i = 2; i < 40; i++) {
        const enum kvt_status status = bench_get(&bench, i, 5000);
        assert_true(status == KVT_OK || status == KVT_NOTFOUND);
    }
    bench_done(&bench);
}

static void a_lookup_during_the_write_is_a_miss(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 5000), KVT_OK);
    static uint8_t bytes[5000];
    struct kvt_store_op put = { .kind = KVT_STORE_PUT, .name = bench_name(2), .buffer = bytes, .length = sizeof bytes },
                        *done;
    struct kvt_store_op *const ops[] = { &put };
    io_faulty_at(bench.image, IO_FAULTY_WRITE, 1, IO_FAULTY_HELD);
    assert_int_equal(kvt_store_submit(bench.store, ops, 1), 1);
    for (int i = 0; i < 5; i++) assert_int_equal(kvt_store_poll(bench.store, &done, 1), 0);
    assert_false(bench_has(&bench, 2));
    assert_int_equal(io_faulty_release(bench.image), 1);
    assert_true(kvt_store_wait(bench.store, 0));
    assert_true(bench_has(&bench, 2));
    assert_int_equal(kvt_store_poll(bench.store, &done, 1), 1);
    bench_done(&bench);
}

static void a_disk_without_room_pauses_puts_and_recovers_by_itself(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 20 * KIB), KVT_OK);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_ENOSPC, 1000000);
    io_faulty_rate(bench.image, IO_FAULTY_CALL, IO_FAULTY_ENOSPC, 1000000);
    assert_int_equal(bench_put(&bench, 2, 20 * KIB), KVT_FULL);
    assert_int_equal(bench_stats(&bench).pauses, 1);
    assert_int_equal(bench_put(&bench, 3, 20 * KIB), KVT_FULL);
    assert_int_equal(bench_get(&bench, 1, 20 * KIB), KVT_OK); /* gets go on */
    io_faulty_heal(bench.image);
    assert_int_equal(bench_put(&bench, 4, 20 * KIB), KVT_FULL); /* still paused: no put hammers the disk */
    bench.now_ns += 1000000000u;
    assert_int_equal(bench_put(&bench, 5, 20 * KIB), KVT_OK);
    for (uint64_t i = 10; i < 400; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_int_equal(bench_get(&bench, 399, 20 * KIB), KVT_OK);
    bench_done(&bench);
}

static void a_disk_smaller_than_the_capacity_is_recycled_as_far_as_it_goes(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    io_faulty_set_bytes_max(bench.image, 4 * KVT_MIB);
    uint32_t written = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        const enum kvt_status status = bench_put(&bench, i, 20 * KIB);
        assert_true(status == KVT_OK || status == KVT_FULL);
        written += status == KVT_OK;
        bench.now_ns += 100000000u;
    }
    assert_true(written > 900);
    assert_int_equal(bench_get(&bench, 999, 20 * KIB), KVT_OK);
    assert_true(io_faulty_counters(bench.image).bytes_peak <= 4 * KVT_MIB);
    bench_done(&bench);
}

static void b35_every_submitted_op_gives_exactly_one_completion(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct bench bench;
        bench_init_faulty(&bench, seed);
        bench.config.capacity_bytes = 3 * KVT_MIB;
        bench_open(&bench);
        io_faulty_rate(bench.image, IO_FAULTY_ANY, IO_FAULTY_EIO, 30000);
        io_faulty_rate(bench.image, IO_FAULTY_ANY, IO_FAULTY_SHORT, 30000);
        io_faulty_rate(bench.image, IO_FAULTY_ANY, IO_FAULTY_DELAY, 100000);
        io_faulty_rate(bench.image, IO_FAULTY_ANY, IO_FAULTY_FULL, 50000);
        io_faulty_rate(bench.image, IO_FAULTY_ANY, IO_FAULTY_ENOSPC, 2000);
        io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_FLIP, 30000);
        io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_TORN, 30000);
        io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_MISDIRECT, 30000);
        enum { OPS = 32, LENGTH = 12000 };
        static uint8_t bytes[OPS][LENGTH];
        struct kvt_store_op ops[OPS], *done[OPS];
        bool is_out[OPS] = { false };
        struct kvt_rng rng = { seed };
        uint32_t out = 0, exact = 0;
        for (uint32_t turn = 0; turn < 3000 || out > 0; turn++) {
            const uint32_t slot = (uint32_t)kvt_rng_below(&rng, OPS);
            if (!is_out[slot] && turn < 3000) {
                const uint64_t key = kvt_rng_below(&rng, 200);
                const uint32_t length = 1 + (uint32_t)(kvt_mix64(key) % LENGTH);
                const bool is_put = kvt_rng_below(&rng, 2) == 0;
                if (is_put) bench_fill(bytes[slot], length, key, 1);
                ops[slot] = (struct kvt_store_op){ .kind = is_put ? KVT_STORE_PUT : KVT_STORE_GET,
                                                   .name = bench_name(key),
                                                   .generation = 1,
                                                   .buffer = bytes[slot],
                                                   .length = is_put ? length : LENGTH,
                                                   .user = &is_out[slot] };
                struct kvt_store_op *const one[] = { &ops[slot] };
                if (kvt_store_submit(bench.store, one, 1) == 1) {
                    is_out[slot] = true;
                    out++;
                }
                bench.now_ns += 1000000;
            }
            const uint32_t count = kvt_store_poll(bench.store, done, OPS);
            for (uint32_t i = 0; i < count; i++) {
                bool *flag = done[i]->user;
                assert_true(*flag);
                *flag = false;
                out--;
                if (done[i]->kind == KVT_STORE_PUT || done[i]->status != KVT_OK) continue;
                const uint64_t key = done[i]->name.key[0];
                assert_int_equal(done[i]->ret_length, 1 + kvt_mix64(key) % LENGTH);
                assert_true(bench_is_filled(done[i]->buffer, done[i]->ret_length, key, 1));
                exact++;
            }
            assert_true(turn < 100000);
        }
        assert_true(exact > 100);
        bench_done(&bench);
    }
}

static void held_records_that_cannot_be_copied_are_told_as_lost(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    struct kvt_store_found found;
    for (uint64_t i = 0; i < 5; i++) {
        const struct kvt_store_name name = bench_name(i);
        assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
        assert_true(kvt_store_hold(bench.store, &name, &found));
    }
    char file[24];
    uint64_t offset;
    assert_true(bench_find_record(&bench, 3, file, &offset));
    bench_flip(&bench, file, offset + 1000, 2);
    for (uint64_t i = 10; i < 800; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    struct kvt_store_name lost[5];
    assert_int_equal(kvt_store_poll_lost(bench.store, lost, 5), 1);
    const struct kvt_store_name wanted = bench_name(3);
    assert_memory_equal(&lost[0], &wanted, sizeof wanted);
    assert_int_equal(kvt_store_poll_lost(bench.store, lost, 5), 0);
    for (uint64_t i = 0; i < 5; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), i == 3 ? KVT_NOTFOUND : KVT_OK);
    bench_done(&bench);
}

static void b34_every_length_works_on_a_disk_of_4096_byte_blocks(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    io_faulty_image_destroy(&bench.image);
    bench.image = io_faulty_image_create(&(struct io_faulty_config){ .seed = 1, .alignment = 4096 });
    bench.env.block_io_user = bench.image;
    bench_open(&bench);
    const uint32_t lengths[] = { 1, 64, 512, 4095, 4096, 4097, 65536 + 100, 500000 + 100 };
    for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++) assert_int_equal(bench_put(&bench, i, lengths[i]), KVT_OK);
    for (int times = 0; times < 2; times++) {
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++)
            assert_int_equal(bench_get(&bench, i, lengths[i]), KVT_OK);
        bench_reopen(&bench);
    }
    assert_int_equal(bench_stats(&bench).alignment, 4096);
    bench_done(&bench);
}

static void b35_an_open_whose_disk_is_silent_is_refused(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    for (uint64_t i = 0; i < 100; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    kvt_store_close(&bench.store);
    for (uint64_t n = 1; n < 12; n++) {
        io_faulty_at(bench.image, IO_FAULTY_READ, n, IO_FAULTY_HELD);
        assert_int_equal(bench_try_open(&bench), KVT_IO);
        assert_non_null(strstr(bench.error, bench.path));
        io_faulty_heal(bench.image);
    }
    bench_open(&bench);
    assert_int_equal(bench_get(&bench, 99, 20 * KIB), KVT_OK);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b65_a_file_that_cannot_be_removed_is_counted_until_it_is_gone),
        cmocka_unit_test(b24_an_op_whose_disk_is_silent_comes_back_once_and_late),
        cmocka_unit_test(b24_close_ends_ops_whose_disk_stays_silent),
        cmocka_unit_test(b25_the_first_failed_get_turns_the_lookup_into_a_miss),
        cmocka_unit_test(b43_a_short_read_is_finished_or_failed),
        cmocka_unit_test(b43_a_segment_that_was_cut_short_gives_misses),
        cmocka_unit_test(b47_a_flipped_bit_anywhere_in_a_record_is_a_miss),
        cmocka_unit_test(b47_swapped_records_are_misses),
        cmocka_unit_test(b48_a_failed_get_of_a_whole_record_leaves_the_buffer_alone),
        cmocka_unit_test(b62_each_damage_heals_with_the_next_put),
        cmocka_unit_test(b63_after_a_crash_every_key_gives_its_bytes_or_a_miss),
        cmocka_unit_test(a_record_of_an_earlier_use_of_its_segment_is_no_record),
        cmocka_unit_test(a_record_at_another_place_than_its_own_is_no_record),
        cmocka_unit_test(b32_a_short_write_is_finished_or_the_put_fails),
        cmocka_unit_test(b44_a_failed_put_is_never_seen),
        cmocka_unit_test(a_lookup_during_the_write_is_a_miss),
        cmocka_unit_test(a_disk_without_room_pauses_puts_and_recovers_by_itself),
        cmocka_unit_test(a_disk_smaller_than_the_capacity_is_recycled_as_far_as_it_goes),
        cmocka_unit_test(b35_every_submitted_op_gives_exactly_one_completion),
        cmocka_unit_test(held_records_that_cannot_be_copied_are_told_as_lost),
        cmocka_unit_test(b34_every_length_works_on_a_disk_of_4096_byte_blocks),
        cmocka_unit_test(b35_an_open_whose_disk_is_silent_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
