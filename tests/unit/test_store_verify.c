/* store_verify: what is read of a directory, and what becomes of damage: refused, never served. */
#include "tests/unit/store_bench.h"

#include <fcntl.h>

#include "tiers/store_verify.h"

enum { KEYS = 60, LENGTH = 10000 };

struct seen {
    uint64_t told, refused, wrong_key; /* wrong_key: is_right says no for it */
};

static bool is_right(void *user, const struct kvt_store_listed *listed, const void *bytes)
{
    const struct seen *seen = user;
    const uint64_t key = listed->name.key[0];
    return key != seen->wrong_key && bench_is_filled(bytes, listed->length, key, listed->generation);
}

static void note_refused(void *user, const struct kvt_store_listed *listed, enum kvt_status status)
{
    (void)listed;
    assert_true(status == KVT_CORRUPT || status == KVT_IO);
    ((struct seen *)user)->refused++;
}

static void note_progress(void *user, uint64_t done) { ((struct seen *)user)->told = done; }

static struct kvt_store_verified verify(struct bench *bench, struct seen *seen, bool looks_itself)
{
    const struct kvt_store_verify how = { .is_right = is_right,
                                          .refused = note_refused,
                                          .progress = note_progress,
                                          .user = seen,
                                          .looks_itself = looks_itself };
    struct kvt_store_verified verified;
    assert_int_equal(kvt_store_verify(bench->store, &how, &verified), KVT_OK);
    assert_int_equal(seen->told, kvt_store_verified_count(&verified));
    return verified;
}

static void put_all(struct bench *bench)
{
    for (uint64_t key = 0; key < KEYS; key++) assert_int_equal(bench_put(bench, key, LENGTH), KVT_OK);
    assert_int_equal(kvt_store_sync(bench->store), KVT_OK);
}

static void what_was_put_is_good_in_both_readers(void **state)
{
    (void)state;
    static const uint8_t key[32] = { 7 };
    const struct kvt_block_io_ops *const ios[] = { NULL, &kvt_block_io_sync_ops, NULL };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(ios); i++) {
        struct bench bench;
        struct seen seen = { .wrong_key = UINT64_MAX };
        bench_init(&bench, ios[i], i == 1);
        bench.config.key = i == 2 ? key : NULL; /* encrypted */
        bench_open(&bench);
        put_all(&bench);
        assert_int_equal(bench_put_as(&bench, KEYS, 3, 300000, 0), KVT_OK); /* large: read in pieces */
        const struct kvt_store_verified verified = verify(&bench, &seen, true);
        assert_int_equal(verified.good, KEYS + 1);
        assert_int_equal(kvt_store_verified_count(&verified), KEYS + 1);
        bench_done(&bench);
    }
}

/* One byte of each of these records' payloads, behind the store's back. Returns how many were found. */
static uint32_t spoil(struct bench *bench, const uint64_t *keys, uint32_t count)
{
    static uint8_t bytes[LENGTH], file_bytes[8 * KVT_MIB];
    uint32_t found = 0;
    for (uint32_t segment = 0; segment < 64; segment++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/segment-%06u", bench->path, segment);
        const int file = open(path, O_RDWR);
        if (file < 0) continue;
        const ssize_t size = read(file, file_bytes, sizeof file_bytes);
        for (uint32_t i = 0; i < count && size > 0; i++) {
            bench_fill(bytes, LENGTH, keys[i], 1);
            const uint8_t *at = memmem(file_bytes, (size_t)size, bytes, LENGTH);
            if (!at) continue;
            const uint8_t other = (uint8_t)(at[5000] ^ 0x10);
            assert_int_equal(pwrite(file, &other, 1, at - file_bytes + 5000), 1);
            found++;
        }
        (void)fsync(file);
        (void)close(file);
    }
    return found;
}

static void no_damage_is_served(void **state)
{
    (void)state;
    static const uint64_t keys[] = { 3, 17, 40 };
    struct bench bench;
    struct seen seen = { .wrong_key = UINT64_MAX };
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    put_all(&bench);
    assert_int_equal(spoil(&bench, keys, KVT_ARRAY_COUNT(keys)), KVT_ARRAY_COUNT(keys));
    /* Nobody knows the bytes, as in the tool: the second reader finds what the first one should have. */
    const struct kvt_store_verify how = { .looks_itself = true };
    struct kvt_store_verified verified;
    assert_int_equal(kvt_store_verify(bench.store, &how, &verified), KVT_OK);
    assert_int_equal(verified.served_bad, 0);
    assert_int_equal(verified.refused, KVT_ARRAY_COUNT(keys));
    assert_int_equal(verified.good, KEYS - KVT_ARRAY_COUNT(keys));
    verified = verify(&bench, &seen, true); /* they are forgotten */
    assert_int_equal(seen.refused, 0);
    assert_int_equal(kvt_store_verified_count(&verified), KEYS - KVT_ARRAY_COUNT(keys));
    bench_done(&bench);
}

static void bytes_that_their_owner_does_not_know_are_served_bad(void **state)
{
    (void)state;
    struct bench bench;
    struct seen seen = { .wrong_key = 21 };
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    put_all(&bench);
    const struct kvt_store_verified verified = verify(&bench, &seen, false);
    assert_int_equal(verified.served_bad, 1);
    assert_int_equal(verified.good, KEYS - 1);
    bench_done(&bench);
}

static void a_disk_in_memory_is_read_once(void **state)
{
    (void)state;
    struct bench bench;
    struct seen seen = { .wrong_key = UINT64_MAX };
    bench_init_faulty(&bench, 3);
    bench_open(&bench);
    put_all(&bench);
    io_faulty_rate(bench.image, IO_FAULTY_READ, IO_FAULTY_FLIP, 200000);
    const struct kvt_store_verified verified = verify(&bench, &seen, false);
    assert_int_equal(verified.served_bad, 0);
    assert_true(verified.refused > 0);
    assert_int_equal(verified.refused, seen.refused);
    assert_int_equal(kvt_store_verified_count(&verified), KEYS);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_good_in_both_readers),
        cmocka_unit_test(no_damage_is_served),
        cmocka_unit_test(bytes_that_their_owner_does_not_know_are_served_bad),
        cmocka_unit_test(a_disk_in_memory_is_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
