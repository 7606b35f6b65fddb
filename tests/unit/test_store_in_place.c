/*
 * store: records that move between the device and the caller's memory without a copy. Same bytes, same trust, same
 * format.
 */
#include "tests/unit/store_bench.h"

#include "tiers/store_format.h"

enum { KIB = 1024, MIB = 1024 * KIB, MEMORY_BYTES = 8 * MIB };

static uint8_t *memory; /* what a caller in place brings: huge pages */

static int memory_map(void **state)
{
    (void)state;
    memory = kvt_table_map(MEMORY_BYTES);
    return memory ? 0 : -1;
}

static int memory_unmap(void **state)
{
    (void)state;
    kvt_table_unmap(memory, MEMORY_BYTES);
    return 0;
}

static enum kvt_status put(struct bench *bench, uint64_t key, uint32_t length, uint32_t flags, uint8_t *bytes)
{
    bench_fill(bytes, length, key, 1);
    struct kvt_store_op op = { .kind = KVT_STORE_PUT,
                               .flags = flags,
                               .name = bench_name(key),
                               .generation = 1,
                               .buffer = bytes,
                               .length = length,
                               .form = 1,
                               .tokens = 16 };
    return bench_run(bench, &op);
}

static enum kvt_status get(struct bench *bench, uint64_t key, uint32_t length, uint32_t flags, uint8_t *bytes)
{
    memset(bytes, 0xa5, length + 64);
    struct kvt_store_op op = { .kind = KVT_STORE_GET,
                               .flags = flags,
                               .name = bench_name(key),
                               .generation = 1,
                               .buffer = bytes,
                               .length = length };
    const enum kvt_status status = bench_run(bench, &op);
    if (status == KVT_OK) {
        assert_int_equal(op.ret_length, length);
        assert_true(bench_is_filled(bytes, length, key, 1));
    }
    for (uint32_t i = 0; i < 64; i++) assert_int_equal(bytes[length + i], 0xa5);
    return status;
}

static void init(struct bench *bench, bool is_faulty)
{
    if (is_faulty) bench_init_faulty(bench, 5);
    else bench_init(bench, NULL, false);
    bench->config.capacity_bytes = 64 * MIB;
    bench->config.staging_bytes = 4 * MIB;
    bench_open(bench);
}

static void bytes_are_the_same_in_place_and_copied_whoever_wrote_them(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 512, 32 * KIB,  64 * KIB, 64 * KIB + 8, 256 * KIB, 256 * KIB - 512,
                                        MIB, MIB + 512, 4 * MIB,  4 * MIB + 512 };
    for (int is_faulty = 0; is_faulty < 2; is_faulty++) {
        struct bench bench;
        init(&bench, is_faulty);
        for (uint32_t round = 0; round < 2; round++) {
            for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++) {
                for (uint64_t way = 0; way < 2 && round == 0; way++)
                    assert_int_equal(put(&bench, 2 * i + way, lengths[i], way ? KVT_STORE_IN_PLACE : 0, memory),
                                     KVT_OK);
                for (uint64_t way = 0; way < 4; way++)
                    assert_int_equal(get(&bench, 2 * i + way % 2, lengths[i], way < 2 ? KVT_STORE_IN_PLACE : 0, memory),
                                     KVT_OK);
            }
            bench_reopen(&bench); /* the open segment is walked: every record is found and checked there, too */
            assert_int_equal(bench_stats(&bench).recovered_records, 2 * KVT_ARRAY_COUNT(lengths));
            assert_int_equal(bench_stats(&bench).recovered_bad, 0);
        }
        bench_done(&bench);
    }
}

static void what_is_not_aligned_is_copied(void **state)
{
    (void)state;
    struct bench bench;
    init(&bench, false);
    assert_int_equal(put(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory + 8), KVT_OK);
    assert_int_equal(get(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory + 24), KVT_OK);
    assert_int_equal(get(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
    bench_done(&bench);
}

static void a_long_record_of_any_length_is_got_in_place_where_its_padding_fits(void **state)
{
    (void)state;
    static const uint32_t lengths[] = { 128 * KIB - 1, 128 * KIB + 1, 300001, MIB + 3, 4 * MIB - 511 };
    for (int is_faulty = 0; is_faulty < 2; is_faulty++) {
        struct bench bench;
        init(&bench, is_faulty);
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++)
            assert_int_equal(put(&bench, i, lengths[i], KVT_STORE_IN_PLACE, memory), KVT_OK);
        for (uint64_t i = 0; i < KVT_ARRAY_COUNT(lengths); i++) {
            for (uint32_t room = 0; room <= 1024; room += 256) {
                memset(memory, 0xa5, lengths[i] + room + 64);
                struct kvt_store_op op = { .kind = KVT_STORE_GET,
                                           .flags = KVT_STORE_IN_PLACE,
                                           .name = bench_name(i),
                                           .generation = 1,
                                           .buffer = memory,
                                           .length = lengths[i] + room };
                assert_int_equal(bench_run(&bench, &op), KVT_OK);
                assert_int_equal(op.ret_length, lengths[i]);
                assert_true(bench_is_filled(memory, lengths[i], i, 1));
                for (uint32_t k = 0; k < 64; k++) assert_int_equal(memory[lengths[i] + room + k], 0xa5);
            }
        }
        assert_int_equal(bench_stats(&bench).corrupt, 0);
        bench_done(&bench);
    }
}

/* Where the record of the key lies; there is one segment, and the records lie back to back. */
static uint64_t offset_of(struct bench *bench, uint64_t key)
{
    struct kvt_record_header header;
    for (uint64_t offset = KVT_STORE_BLOCK_BYTES;; offset += header.stored) {
        assert_true(io_faulty_peek(bench->image, bench->path, "segment-000000", offset, &header, sizeof header));
        assert_int_equal(header.magic, KVT_RECORD_MAGIC);
        if (header.name.key.lo == key) return offset;
    }
}

static void b47_a_flipped_bit_is_a_miss_in_place(void **state)
{
    (void)state;
    static const uint64_t places[] = { 0, 9, 60, 100, 124, 512, 513, 70000, 512 + 256 * KIB - 1 };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(places); i++) {
        struct bench bench;
        init(&bench, true);
        for (uint64_t key = 0; key < 3; key++)
            assert_int_equal(put(&bench, key, 256 * KIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        const uint64_t at = offset_of(&bench, 1) + places[i];
        uint8_t byte;
        assert_true(io_faulty_peek(bench.image, bench.path, "segment-000000", at, &byte, 1));
        byte ^= 1;
        assert_true(io_faulty_poke(bench.image, bench.path, "segment-000000", at, &byte, 1));
        assert_int_equal(get(&bench, 1, 256 * KIB, KVT_STORE_IN_PLACE, memory), KVT_CORRUPT);
        assert_false(bench_has(&bench, 1));
        assert_int_equal(get(&bench, 0, 256 * KIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        assert_int_equal(get(&bench, 2, 256 * KIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        bench_done(&bench);
    }
}

static void b43_a_short_transfer_in_place_is_finished_or_failed(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 4; n++) {
        struct bench bench;
        init(&bench, true);
        assert_int_equal(put(&bench, 0, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        io_faulty_at(bench.image, IO_FAULTY_WRITE, n, IO_FAULTY_SHORT);
        const bool is_put = put(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory) == KVT_OK;
        assert_int_equal(bench_has(&bench, 1), is_put);
        if (is_put) {
            io_faulty_at(bench.image, IO_FAULTY_READ, n, IO_FAULTY_SHORT);
            const enum kvt_status status = get(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory);
            assert_true(status == KVT_OK || status == KVT_IO);
        }
        bench_done(&bench);
    }
}

static void b44_an_error_of_either_write_or_read_in_place_fails_the_op(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        struct bench bench;
        init(&bench, true);
        assert_int_equal(put(&bench, 0, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        io_faulty_at(bench.image, IO_FAULTY_WRITE, n, IO_FAULTY_EIO);
        assert_int_equal(put(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory), KVT_IO);
        assert_false(bench_has(&bench, 1));
        io_faulty_at(bench.image, IO_FAULTY_READ, n, IO_FAULTY_EIO);
        assert_int_equal(get(&bench, 0, MIB, KVT_STORE_IN_PLACE, memory), KVT_IO);
        assert_false(bench_has(&bench, 0));
        io_faulty_at(bench.image, IO_FAULTY_WRITE, n, IO_FAULTY_ENOSPC); /* tried once more */
        assert_int_equal(put(&bench, 2, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        assert_int_equal(get(&bench, 2, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        bench_reopen(&bench);
        assert_int_equal(get(&bench, 2, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        assert_int_equal(get(&bench, 1, MIB, KVT_STORE_IN_PLACE, memory), KVT_NOTFOUND);
        bench_done(&bench);
    }
}

static void a_held_record_is_copied_forward_and_got_in_place(void **state)
{
    (void)state;
    for (int is_faulty = 0; is_faulty < 2; is_faulty++) {
        struct bench bench;
        init(&bench, is_faulty);
        struct kvt_store_found found;
        for (uint64_t key = 0; key < 2; key++) {
            const struct kvt_store_name name = bench_name(key);
            assert_int_equal(put(&bench, key, key ? 256 * KIB : 3 * MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
            assert_true(kvt_store_hold(bench.store, &name, &found));
        }
        for (uint64_t key = 2; key < 100; key++)
            assert_int_equal(put(&bench, key, MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        assert_true(bench_stats(&bench).moved_records >= 2);
        assert_int_equal(get(&bench, 0, 3 * MIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        assert_int_equal(get(&bench, 1, 256 * KIB, KVT_STORE_IN_PLACE, memory), KVT_OK);
        assert_true(bench_stats(&bench).allocated_peak <= bench.config.capacity_bytes);
        bench_done(&bench);
    }
}

static void many_at_once_of_all_sizes_come_back_exact(void **state)
{
    (void)state;
    enum { OPS = 16, SPAN = MEMORY_BYTES / OPS };
    for (int is_faulty = 0; is_faulty < 2; is_faulty++) {
        struct bench bench;
        init(&bench, is_faulty);
        for (uint32_t kind = 0; kind < 2; kind++) {
            struct kvt_store_op ops[OPS], *listed[OPS], *done[OPS];
            for (uint64_t i = 0; i < OPS; i++) {
                uint8_t *bytes = memory + i * SPAN;
                const uint32_t length = (uint32_t)(i % 3 == 0 ? 512 * KIB : i % 3 == 1 ? 1000 + i : 64 * KIB);
                if (kind == 0) bench_fill(bytes, length, i, 1);
                else memset(bytes, 0, SPAN);
                ops[i] = (struct kvt_store_op){ .kind = kind == 0 ? KVT_STORE_PUT : KVT_STORE_GET,
                                                .flags = KVT_STORE_IN_PLACE,
                                                .name = bench_name(i),
                                                .generation = 1,
                                                .buffer = bytes,
                                                .length = length };
                listed[i] = &ops[i];
            }
            assert_int_equal(kvt_store_submit(bench.store, listed, OPS), OPS);
            for (uint32_t count = 0; count < OPS;) {
                assert_true(kvt_store_wait(bench.store, 20000000000u));
                count += kvt_store_poll(bench.store, done, OPS);
            }
            for (uint64_t i = 0; i < OPS; i++) {
                assert_int_equal(ops[i].status, KVT_OK);
                assert_true(bench_is_filled(memory + i * SPAN, ops[i].length, i, 1));
            }
        }
        bench_done(&bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_the_same_in_place_and_copied_whoever_wrote_them),
        cmocka_unit_test(what_is_not_aligned_is_copied),
        cmocka_unit_test(a_long_record_of_any_length_is_got_in_place_where_its_padding_fits),
        cmocka_unit_test(b47_a_flipped_bit_is_a_miss_in_place),
        cmocka_unit_test(b43_a_short_transfer_in_place_is_finished_or_failed),
        cmocka_unit_test(b44_an_error_of_either_write_or_read_in_place_fails_the_op),
        cmocka_unit_test(a_held_record_is_copied_forward_and_got_in_place),
        cmocka_unit_test(many_at_once_of_all_sizes_come_back_exact),
    };
    return cmocka_run_group_tests(tests, memory_map, memory_unmap);
}
