/* store: encryption at rest. What opens is what was put under this name and key; everything else is a miss. */
#include "tests/unit/store_bench.h"

#include "runtime/base/crc32c.h"
#include "runtime/base/key.h"
#include "tiers/store_format.h"
#include "tiers/store_private.h"

enum { KIB = 1024 };
static const uint8_t key_a[32] = { 1, 2, 3 }, key_b[32] = { 1, 2, 4 };

static void init(struct bench *bench, uint64_t seed)
{
    bench_init_faulty(bench, seed);
    bench->config.key = key_a;
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static void what_opens_is_what_was_sealed_under_every_cipher(void **state)
{
    (void)state;
    struct kvt_seal *seal = NULL;
    assert_int_equal(kvt_key_init(), KVT_OK);
    assert_int_equal(kvt_seal_open(key_a, &seal), KVT_OK);
    const enum kvt_seal_cipher ciphers[] = { kvt_seal_cipher(seal), KVT_SEAL_XCHACHA20_POLY1305 };
    static uint8_t plain[5000], sealed[5000 + KVT_SEAL_BYTES], opened[5000];
    for (size_t c = 0; c < KVT_ARRAY_COUNT(ciphers); c++) {
        kvt_seal_set_cipher(seal, ciphers[c]);
        for (uint32_t length = 1; length <= sizeof plain; length = length * 3 + 1) {
            bench_fill(plain, length, length, c);
            struct kvt_seal_subject subject = { .store_id = 1,
                                                .epoch = 2,
                                                .name = { 3, 4, 5, 6 },
                                                .generation = 7,
                                                .length = length,
                                                .tokens = 8,
                                                .form = 1 };
            kvt_seal_bytes(seal, &subject, plain, sealed);
            assert_true(kvt_unseal_bytes(seal, &subject, sealed, opened));
            assert_memory_equal(opened, plain, length);
            for (uint32_t bit = 0; bit < (length + KVT_SEAL_BYTES) * 8; bit += length < 100 ? 1 : 97) {
                sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
                assert_false(kvt_unseal_bytes(seal, &subject, sealed, opened));
                sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
            for (size_t i = 0; i < sizeof subject; i++) {
                if (i >= offsetof(struct kvt_seal_subject, length) && i < offsetof(struct kvt_seal_subject, tokens))
                    continue;
                struct kvt_seal_subject other = subject;
                ((uint8_t *)&other)[i] ^= 0x10;
                assert_false(kvt_unseal_bytes(seal, &other, sealed, opened));
            }
            if (length == 1) continue;
            subject.length--;
            assert_false(kvt_unseal_bytes(seal, &subject, sealed, opened));
        }
    }
    kvt_seal_close(&seal);
}

static void the_same_bytes_are_never_sealed_alike(void **state)
{
    (void)state;
    uint8_t plain[64] = { 0 }, first[64 + KVT_SEAL_BYTES], again[64 + KVT_SEAL_BYTES];
    const struct kvt_seal_subject subject = { .length = sizeof plain };
    struct kvt_seal *seal = NULL, *next = NULL;
    assert_int_equal(kvt_seal_open(key_a, &seal), KVT_OK);
    assert_int_equal(kvt_seal_open(key_a, &next), KVT_OK);
    kvt_seal_bytes(seal, &subject, plain, first);
    kvt_seal_bytes(seal, &subject, plain, again);
    assert_memory_not_equal(first + KVT_SEAL_BYTES, again + KVT_SEAL_BYTES, sizeof plain);
    kvt_seal_bytes(next, &subject, plain, again); /* the counter of another opening begins anew, its session does not */
    assert_memory_not_equal(first + KVT_SEAL_BYTES, again + KVT_SEAL_BYTES, sizeof plain);
    uint8_t opened[64];
    assert_true(kvt_unseal_bytes(next, &subject, first, opened));
    assert_true(kvt_unseal_bytes(seal, &subject, again, opened));
    kvt_seal_close(&seal);
    kvt_seal_close(&next);
}

/* ---- The store --------------------------------------------------------------------------------------------------- */

static uint32_t length_of(uint64_t key)
{
    return key % 37 == 5 ? 700 * KIB : 1 + (uint32_t)(kvt_mix64(key) % (60 * KIB));
}

static void records_of_every_size_come_back_after_reopening_and_copying_forward(void **state)
{
    (void)state;
    struct bench bench;
    init(&bench, 1);
    bench_open(&bench);
    const struct kvt_store_name hot = bench_name(5);
    uint64_t moved = 0; /* stats begin anew with each opening */
    for (uint64_t key = 0; key < 400; key++) {
        assert_int_equal(bench_put(&bench, key, length_of(key)), KVT_OK);
        assert_int_equal(bench_get(&bench, key, length_of(key)), KVT_OK);
        struct kvt_store_found found;
        if (key == 5) assert_true(kvt_store_hold(bench.store, &hot, &found) && found.length == length_of(5));
        if (key % 50 == 9) moved += bench_stats(&bench).moved_records;
        if (key % 50 == 9) bench_reopen(&bench);
        if (key % 50 == 9 && key >= 5) assert_true(kvt_store_hold(bench.store, &hot, &found));
    }
    assert_int_equal(bench_get(&bench, 5, length_of(5)), KVT_OK);
    assert_true(moved > 0);
    assert_non_null(bench_stats(&bench).cipher);
    uint64_t cursor = 0, listed_count = 0;
    struct kvt_store_listed listed[16];
    for (uint32_t n; (n = kvt_store_list(bench.store, &cursor, listed, 16)) > 0; listed_count += n)
        for (uint32_t i = 0; i < n; i++) assert_int_equal(listed[i].length, length_of(listed[i].name.key[0]));
    assert_int_equal(listed_count, bench_stats(&bench).records);
    assert_int_equal(bench_stats(&bench).corrupt, 0);
    assert_int_equal(bench_put(&bench, 999, kvt_store_length_max(bench.store)), KVT_OK);
    assert_int_equal(bench_get(&bench, 999, kvt_store_length_max(bench.store)), KVT_OK);
    bench_done(&bench);
}

static uint8_t *segment_bytes(struct bench *bench, uint32_t index, char name[24], uint64_t *ret_size)
{
    (void)snprintf(name, 24, "segment-%06u", index);
    if (!io_faulty_file_size(bench->image, bench->path, name, ret_size)) return NULL;
    uint8_t *bytes = kvt_alloc(1, *ret_size);
    assert_true(io_faulty_peek(bench->image, bench->path, name, 0, bytes, *ret_size));
    return bytes;
}

static void no_payload_lies_on_the_disk_in_the_clear(void **state)
{
    (void)state;
    for (int is_sealed = 0; is_sealed < 2; is_sealed++) {
        struct bench bench;
        init(&bench, 2);
        if (!is_sealed) bench.config.key = NULL;
        bench_open(&bench);
        assert_int_equal(bench_put(&bench, 7, 30000), KVT_OK);
        kvt_store_close(&bench.store);
        uint8_t plain[30000];
        bench_fill(plain, sizeof plain, 7, 1);
        bool is_found = false;
        char name[24];
        uint64_t size;
        uint8_t *bytes;
        for (uint32_t i = 0; (bytes = segment_bytes(&bench, i, name, &size)); i++) {
            for (uint64_t at = 0; at + 16 <= size; at++) is_found |= memcmp(bytes + at, plain + 20000, 16) == 0;
            kvt_free(bytes);
        }
        assert_int_equal(is_found, !is_sealed);
        bench_done(&bench);
    }
}

/*
 * Changes one bit of the payload of the record at 4096, and makes the checksums hold as somebody would who knows the
 * format.
 */
static void tamper(struct bench *bench, uint64_t bit)
{
    struct kvt_record_header header;
    static uint8_t payload[KIB * 64];
    assert_true(io_faulty_peek(bench->image, bench->path, "segment-000000", 4096, &header, sizeof header));
    assert_int_equal(header.magic, KVT_RECORD_MAGIC);
    assert_true(
        io_faulty_peek(bench->image, bench->path, "segment-000000", 4096 + sizeof header, payload, header.length));
    payload[bit / 8 % header.length] ^= (uint8_t)(1u << bit % 8);
    header.payload_crc = kvt_crc32c(0, payload, header.length);
    header.crc = kvt_crc32c(0, &header, offsetof(struct kvt_record_header, crc));
    assert_true(io_faulty_poke(bench->image, bench->path, "segment-000000", 4096, &header, sizeof header));
    assert_true(
        io_faulty_poke(bench->image, bench->path, "segment-000000", 4096 + sizeof header, payload, header.length));
}

static void a_tampered_record_is_a_miss_and_forgotten_and_the_next_put_heals_it(void **state)
{
    (void)state;
    enum { LENGTH = 700 };
    struct bench bench;
    init(&bench, 3);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, LENGTH), KVT_OK);
    for (uint64_t bit = 0; bit < (LENGTH + KVT_SEAL_BYTES) * 8; bit += 3) {
        tamper(&bench, bit);
        kvt_store_close(&bench.store);
        bench_open(&bench);
        assert_true(bench_has(&bench, 1));
        assert_int_equal(bench_get(&bench, 1, LENGTH), KVT_CORRUPT);
        assert_false(bench_has(&bench, 1));
        assert_int_equal(bench_get(&bench, 1, LENGTH), KVT_NOTFOUND);
        tamper(&bench, bit); /* and back, for the next round */
    }
    assert_int_equal(bench_put(&bench, 1, LENGTH), KVT_OK);
    assert_int_equal(bench_get(&bench, 1, LENGTH), KVT_OK);
    assert_int_equal(bench_stats(&bench).corrupt, 1);
    bench_done(&bench);
}

static void a_held_record_that_was_tampered_with_is_told_as_lost(void **state)
{
    (void)state;
    struct bench bench;
    init(&bench, 4);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 700), KVT_OK);
    tamper(&bench, 999);
    bench_reopen(&bench);
    const struct kvt_store_name name = bench_name(1);
    struct kvt_store_name lost[2];
    struct kvt_store_found found;
    assert_true(kvt_store_hold(bench.store, &name, &found));
    assert_int_equal(bench_get(&bench, 1, 700), KVT_CORRUPT);
    assert_int_equal(kvt_store_poll_lost(bench.store, lost, 2), 1);
    assert_memory_equal(&lost[0], &name, sizeof name);
    bench_done(&bench);
}

/* A record of before a reset is made one of now, as far as checksums go. */
static void nobody_brings_back_what_a_reset_forgot(void **state)
{
    (void)state;
    for (int is_sealed = 0; is_sealed < 2; is_sealed++) {
        struct bench bench;
        init(&bench, 5);
        if (!is_sealed) bench.config.key = NULL;
        bench_open(&bench);
        assert_int_equal(bench_put(&bench, 1, 700), KVT_OK);
        assert_int_equal(kvt_store_reset(bench.store), KVT_OK);
        const uint64_t epoch = bench.store->epoch;
        kvt_store_close(&bench.store);
        struct kvt_segment_header segment;
        struct kvt_record_header record;
        assert_true(io_faulty_peek(bench.image, bench.path, "segment-000000", 0, &segment, sizeof segment));
        assert_true(io_faulty_peek(bench.image, bench.path, "segment-000000", 4096, &record, sizeof record));
        segment.epoch = record.epoch = epoch;
        segment.crc = kvt_crc32c(0, &segment, offsetof(struct kvt_segment_header, crc));
        record.crc = kvt_crc32c(0, &record, offsetof(struct kvt_record_header, crc));
        assert_true(io_faulty_poke(bench.image, bench.path, "segment-000000", 0, &segment, sizeof segment));
        assert_true(io_faulty_poke(bench.image, bench.path, "segment-000000", 4096, &record, sizeof record));
        bench_open(&bench);
        assert_true(bench_has(&bench, 1)); /* so much for checksums */
        assert_int_equal(bench_get(&bench, 1, 700), is_sealed ? KVT_CORRUPT : KVT_OK);
        bench_done(&bench);
    }
}

static void under_another_key_or_none_everything_is_a_miss_and_no_error(void **state)
{
    (void)state;
    const uint8_t *const keys[] = { key_a, key_b, NULL, key_a };
    struct bench bench;
    bench_init(&bench, NULL, true);
    for (size_t k = 0; k < KVT_ARRAY_COUNT(keys); k++) {
        bench.config.key = keys[k];
        bench_open(&bench);
        for (uint64_t key = 0; key < 50; key++) assert_int_equal(bench_get(&bench, key, length_of(key)), KVT_NOTFOUND);
        assert_int_equal(bench_stats(&bench).corrupt, 0);
        for (uint64_t key = 0; key < 50; key++) assert_int_equal(bench_put(&bench, key, length_of(key)), KVT_OK);
        bench_reopen(&bench);
        assert_int_equal(bench_get(&bench, 49, length_of(49)), KVT_OK);
        kvt_store_close(&bench.store);
    }
    /* A tool does not empty a store that it has no key for. */
    bench.config.key = key_b;
    bench.config.is_existing = true;
    assert_int_not_equal(bench_try_open(&bench), KVT_OK);
    assert_non_null(strstr(bench.error, "key"));
    bench.config.key = key_a;
    bench_open(&bench);
    assert_int_equal(bench_get(&bench, 49, length_of(49)), KVT_OK);
    bench_done(&bench);
}

/* Sessions and counters of all records that lie in the segments, of this use or an earlier one. */
struct nonce {
    uint8_t session[16];
    uint64_t counter;
    uint64_t sequence;
};

static int by_nonce(const void *a, const void *b) { return memcmp(a, b, offsetof(struct nonce, sequence)); }

static uint32_t collect_nonces(struct bench *bench, struct nonce *nonces, uint32_t count, uint32_t max)
{
    char name[24];
    uint64_t size;
    uint8_t *bytes;
    for (uint32_t i = 0; (bytes = segment_bytes(bench, i, name, &size)); i++) {
        for (uint64_t at = 4096; at + 512 <= size; at += 512) {
            struct kvt_record_header header;
            struct kvt_seal_head head;
            memcpy(&header, bytes + at, sizeof header);
            if (header.magic != KVT_RECORD_MAGIC) continue;
            memcpy(&head, bytes + at + sizeof header, sizeof head);
            assert_true(count < max);
            memcpy(nonces[count].session, head.session, sizeof head.session);
            nonces[count].counter = head.counter;
            nonces[count++].sequence = header.sequence;
        }
        kvt_free(bytes);
    }
    return count;
}

static void no_nonce_is_used_twice_whatever_a_power_cut_leaves(void **state)
{
    (void)state;
    enum { MAX = 40000 };
    struct nonce *nonces = kvt_alloc(MAX, sizeof *nonces);
    uint32_t count = 0;
    struct bench bench;
    init(&bench, 7);
    bench.config.capacity_bytes = 700 * KIB;
    uint64_t key = 0;
    for (uint64_t round = 0; round < 60; round++) {
        bench_open(&bench);
        if (round % 3) io_faulty_cut_at(bench.image, 20 + round * 3);
        for (uint32_t i = 0; i < 40; i++, key++) {
            (void)bench_put(&bench, key, 3000);
            if (i % 8 == 0) (void)bench_get(&bench, key, 3000);
        }
        kvt_store_close(&bench.store);
        if (round % 3) io_faulty_power_cycle(bench.image);
        count = collect_nonces(&bench, nonces, count, MAX);
    }
    qsort(nonces, count, sizeof *nonces, by_nonce);
    assert_true(count > 1000);
    /* The same put may lie in two places, and be seen in two rounds: that is one use. */
    for (uint32_t i = 1; i < count; i++)
        if (by_nonce(&nonces[i - 1], &nonces[i]) == 0) assert_int_equal(nonces[i - 1].sequence, nonces[i].sequence);
    kvt_free(nonces);
    bench_done(&bench);
}

static void a_get_does_not_wait_behind_puts_and_many_in_flight_come_back_exact(void **state)
{
    (void)state;
    enum { OPS = 200, LENGTH = 40000 };
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.key = key_a;
    bench.config.capacity_bytes = 32 * KVT_MIB;
    bench_open(&bench);
    uint8_t *bytes = kvt_alloc(OPS, LENGTH);
    struct kvt_store_op *ops = kvt_alloc(OPS, sizeof *ops);
    for (int round = 0; round < 2; round++) {
        for (uint64_t key = 0; key < OPS; key++) {
            if (round == 0) bench_fill(bytes + key * LENGTH, LENGTH, key, 1);
            else memset(bytes + key * LENGTH, 0, LENGTH);
            ops[key] = (struct kvt_store_op){ .kind = round ? KVT_STORE_GET : KVT_STORE_PUT,
                                              .name = bench_name(key),
                                              .generation = 1,
                                              .flags = round && key % 3 == 0 ? KVT_STORE_URGENT : 0,
                                              .buffer = bytes + key * LENGTH,
                                              .length = LENGTH };
        }
        for (uint32_t submitted = 0, back = 0; back < OPS;) {
            struct kvt_store_op *op = &ops[submitted], *done[16];
            if (submitted < OPS) submitted += kvt_store_submit(bench.store, &op, 1);
            back += kvt_store_poll(bench.store, done, 16);
            if (submitted == OPS && back < OPS) (void)kvt_store_wait(bench.store, 1000000000u);
        }
        for (uint64_t key = 0; key < OPS; key++) {
            assert_int_equal(ops[key].status, KVT_OK);
            assert_true(bench_is_filled(bytes + key * LENGTH, LENGTH, key, 1));
        }
        if (round == 0) bench_reopen(&bench);
    }
    kvt_free(ops);
    kvt_free(bytes);
    bench_done(&bench);
}

static void a_close_with_ops_waiting_gives_each_of_them_an_end(void **state)
{
    (void)state;
    struct bench bench;
    init(&bench, 8);
    bench_open(&bench);
    io_faulty_rate(bench.image, IO_FAULTY_WRITE, IO_FAULTY_HELD, 1000000);
    static uint8_t bytes[64][20 * KIB];
    static struct kvt_store_op ops[64];
    for (uint32_t i = 0; i < 64; i++) {
        ops[i] = (struct kvt_store_op){ .kind = KVT_STORE_PUT,
                                        .name = bench_name(i),
                                        .buffer = bytes[i],
                                        .length = sizeof bytes[i],
                                        .status = KVT_BUSY };
        struct kvt_store_op *const one[] = { &ops[i] };
        assert_int_equal(kvt_store_submit(bench.store, one, 1), 1);
    }
    kvt_store_close(&bench.store);
    for (uint32_t i = 0; i < 64; i++)
        assert_true(ops[i].status == KVT_OK || ops[i].status == KVT_SHUTDOWN || ops[i].status == KVT_IO
                    || ops[i].status == KVT_FULL);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_opens_is_what_was_sealed_under_every_cipher),
        cmocka_unit_test(the_same_bytes_are_never_sealed_alike),
        cmocka_unit_test(records_of_every_size_come_back_after_reopening_and_copying_forward),
        cmocka_unit_test(no_payload_lies_on_the_disk_in_the_clear),
        cmocka_unit_test(a_tampered_record_is_a_miss_and_forgotten_and_the_next_put_heals_it),
        cmocka_unit_test(a_held_record_that_was_tampered_with_is_told_as_lost),
        cmocka_unit_test(nobody_brings_back_what_a_reset_forgot),
        cmocka_unit_test(under_another_key_or_none_everything_is_a_miss_and_no_error),
        cmocka_unit_test(no_nonce_is_used_twice_whatever_a_power_cut_leaves),
        cmocka_unit_test(a_get_does_not_wait_behind_puts_and_many_in_flight_come_back_exact),
        cmocka_unit_test(a_close_with_ops_waiting_gives_each_of_them_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
