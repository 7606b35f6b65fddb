/* store: the directory: who may open it, what it takes of the disk, what is found in it. Real files. */
#include "tests/unit/store_bench.h"

#include <fcntl.h>
#include <fts.h>

enum { KIB = 1024 };

/* What du says of the store's directory. */
static uint64_t du(const char *path)
{
    char copy[80];
    (void)snprintf(copy, sizeof copy, "%s", path);
    char *const paths[] = { copy, NULL };
    FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    assert_non_null(walk);
    uint64_t bytes = 0;
    for (FTSENT *entry = fts_read(walk); entry; entry = fts_read(walk))
        if (entry->fts_info != FTS_DP && entry->fts_statp) bytes += (uint64_t)entry->fts_statp->st_blocks * 512;
    (void)fts_close(walk);
    return bytes;
}

static void plant(const struct bench *bench, const char *name, uint32_t bytes)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", bench->path, name);
    const int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    assert_true(file >= 0);
    uint8_t *zeros = kvt_alloc(1, bytes + 1);
    memset(zeros, 7, bytes);
    assert_int_equal(write(file, zeros, bytes), bytes);
    kvt_free(zeros);
    assert_int_equal(close(file), 0);
}

static bool is_there(const struct bench *bench, const char *name)
{
    char path[160];
    struct stat status;
    (void)snprintf(path, sizeof path, "%s/%s", bench->path, name);
    return lstat(path, &status) == 0;
}

static uint64_t live_bytes(struct bench *bench) { return bench_stats(bench).live_bytes; }

static void b12_after_a_restart_used_bytes_equal_a_scan(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    for (uint64_t i = 0; i < 200; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    const uint64_t live = live_bytes(&bench);
    const struct kvt_store_stats before = bench_stats(&bench);
    bench_reopen(&bench);
    const struct kvt_store_stats after = bench_stats(&bench);
    assert_int_equal(after.live_bytes, live);
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
    assert_true(du(bench.path) <= after.allocated_bytes);
    assert_true(after.allocated_bytes - du(bench.path) < 64 * KIB);
    for (uint64_t i = 200; i < 600; i++) {
        assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
        assert_true(du(bench.path) <= bench.config.capacity_bytes);
    }
    for (uint64_t i = 500; i < 600; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
    bench_done(&bench);
}

static void b12_a_lowered_capacity_evicts_the_oldest_at_open(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    for (uint64_t i = 0; i < 300; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    kvt_store_close(&bench.store);
    bench.config.capacity_bytes = 5 * KVT_MIB;
    bench_open(&bench);
    assert_true(du(bench.path) <= 5 * KVT_MIB);
    assert_false(bench_has(&bench, 0));
    for (uint64_t i = 200; i < 300; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
    for (uint64_t i = 300; i < 700; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_true(du(bench.path) <= 5 * KVT_MIB);
    /* So far down that its segments do not fit any more: it starts empty, and works. */
    kvt_store_close(&bench.store);
    bench.config.capacity_bytes = 1 * KVT_MIB;
    bench_open(&bench);
    assert_true(du(bench.path) <= 1 * KVT_MIB);
    for (uint64_t i = 0; i < 100; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_int_equal(bench_get(&bench, 99, 20 * KIB), KVT_OK);
    assert_true(du(bench.path) <= 1 * KVT_MIB);
    /* And up again: what is there stays, and there is more room. */
    kvt_store_close(&bench.store);
    bench.config.capacity_bytes = 4 * KVT_MIB;
    bench_open(&bench);
    assert_int_equal(bench_get(&bench, 99, 20 * KIB), KVT_OK);
    for (uint64_t i = 0; i < 120; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    bench_reopen(&bench);
    for (uint64_t i = 0; i < 120; i++) assert_int_equal(bench_get(&bench, i, 20 * KIB), KVT_OK);
    bench_done(&bench);
}

static void b52_files_are_ours_alone_whatever_the_umask(void **state)
{
    (void)state;
    const mode_t masks[] = { 0, 022, 0277 };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(masks); i++) {
        struct bench bench;
        bench_init(&bench, NULL, false);
        const mode_t before = umask(masks[i]);
        const enum kvt_status status = bench_try_open(&bench);
        if (status == KVT_OK) assert_int_equal(bench_put(&bench, 1, 1000), KVT_OK);
        (void)umask(before);
        assert_int_equal(status, KVT_OK);
        struct stat found;
        assert_int_equal(stat(bench.path, &found), 0);
        assert_int_equal(found.st_mode & 07777, 0700);
        const char *const names[] = { "lock", "superblock", "segment-000000" };
        for (size_t n = 0; n < KVT_ARRAY_COUNT(names); n++) {
            char path[160];
            (void)snprintf(path, sizeof path, "%s/%s", bench.path, names[n]);
            assert_int_equal(stat(path, &found), 0);
            assert_int_equal(found.st_mode & 07777, 0600);
        }
        bench_done(&bench);
    }
}

static void refused(struct bench *bench, enum kvt_status wanted, const char *words)
{
    assert_int_equal(bench_try_open(bench), wanted);
    assert_null(bench->store);
    if (!strstr(bench->error, words)) fail_msg("'%s' does not say '%s'", bench->error, words);
    assert_null(strchr(bench->error, '\n'));
}

static void b52_symlinks_and_files_in_the_place_of_the_directory_are_refused(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    char target[80];
    (void)snprintf(target, sizeof target, "%s/target", bench.directory);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, bench.path), 0);
    refused(&bench, KVT_INVAL, "symlink");
    assert_int_equal(unlink(bench.path), 0);
    assert_int_equal(symlink("/nowhere", bench.path), 0);
    refused(&bench, KVT_INVAL, "symlink");
    assert_int_equal(unlink(bench.path), 0);
    const int file = open(bench.path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(close(file), 0);
    refused(&bench, KVT_INVAL, "must be a directory");
    assert_int_equal(unlink(bench.path), 0);
    char missing[120];
    (void)snprintf(missing, sizeof missing, "%s/no/kv", bench.directory);
    bench.config.path = missing;
    refused(&bench, KVT_INVAL, "parent");
    (void)snprintf(missing, sizeof missing, "%s/kv/..", bench.directory);
    refused(&bench, KVT_INVAL, "last component");
    bench.config.path = "";
    refused(&bench, KVT_INVAL, "empty");
    bench.config.path = NULL;
    refused(&bench, KVT_INVAL, "empty");
    bench_done(&bench);
}

static void b52_symlinks_inside_are_not_followed(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 1000), KVT_OK);
    kvt_store_close(&bench.store);
    char victim[120], link[120];
    (void)snprintf(victim, sizeof victim, "%s/victim", bench.directory);
    (void)snprintf(link, sizeof link, "%s/segment-000000", bench.path);
    const int file = open(victim, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(file, "mine", 4), 4);
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink(victim, link), 0);
    bench_open(&bench);
    assert_false(bench_has(&bench, 1));
    for (uint64_t i = 0; i < 300; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    struct stat found;
    assert_int_equal(stat(victim, &found), 0);
    assert_int_equal(found.st_size, 4);
    kvt_store_close(&bench.store);
    (void)snprintf(link, sizeof link, "%s/superblock", bench.path);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(symlink(victim, link), 0);
    refused(&bench, KVT_IO, "superblock");
    bench_done(&bench);
}

static void a_directory_has_one_owner_at_a_time(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench_open(&bench);
    struct kvt_store *first = bench.store;
    bench.store = NULL;
    refused(&bench, KVT_BUSY, bench.path);
    kvt_store_close(&first);
    bench_open(&bench);
    bench_done(&bench);
}

static void impossible_values_name_field_value_and_rule(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    const struct kvt_store_config good = bench.config;
    bench.config.capacity_bytes = 0;
    refused(&bench, KVT_INVAL, "capacity is 0 bytes: at least");
    bench.config.capacity_bytes = 200 * KIB;
    refused(&bench, KVT_INVAL, "capacity is 204800 bytes: at least");
    bench.config.capacity_bytes = UINT64_MAX;
    refused(&bench, KVT_INVAL, "capacity is");
    bench.config = good;
    bench.config.record_bytes_max = 4 * KVT_MIB;
    refused(&bench, KVT_INVAL, "4194304");
    bench.config = good;
    bench.config.staging_bytes = 1000;
    refused(&bench, KVT_INVAL, "staging_bytes is 1000");
    bench.config = good;
    bench.config.size = 1;
    refused(&bench, KVT_INVAL, "size is 1");
    bench.config = good;
    bench_open(&bench);
    bench_done(&bench);
}

static void b64_an_object_larger_than_the_cap_is_refused_and_evicts_nothing(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.capacity_bytes = 64 * KVT_MIB;
    bench.config.record_bytes_max = 4 * KVT_MIB;
    bench_open(&bench);
    for (uint64_t i = 0; i < 10; i++) assert_int_equal(bench_put(&bench, i, 4 * KVT_MIB), KVT_OK);
    assert_int_equal(bench_put(&bench, 100, 80 * KVT_MIB), KVT_FULL);
    assert_int_equal(bench_put(&bench, 101, kvt_store_length_max(bench.store) + 1), KVT_FULL);
    for (uint64_t i = 0; i < 10; i++) assert_int_equal(bench_get(&bench, i, 4 * KVT_MIB), KVT_OK);
    assert_int_equal(bench_stats(&bench).evicted_records, 0);
    assert_int_equal(bench_put(&bench, 102, kvt_store_length_max(bench.store)), KVT_OK);
    assert_int_equal(bench_get(&bench, 102, kvt_store_length_max(bench.store)), KVT_OK);
    assert_true(du(bench.path) <= 64 * KVT_MIB);
    bench_done(&bench);
}

static void b65_du_is_never_above_the_cap(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.capacity_bytes = 6 * KVT_MIB;
    bench_open(&bench);
    for (uint64_t i = 0; i < 3000; i++) {
        assert_int_equal(bench_put(&bench, i, 5000), KVT_OK);
        if (i % 16 == 0) assert_true(du(bench.path) <= 6 * KVT_MIB);
    }
    assert_true(bench_stats(&bench).allocated_peak <= 6 * KVT_MIB);
    assert_true(bench_stats(&bench).records > 600);
    bench_done(&bench);
}

static void b65_what_a_crash_left_is_swept_and_foreign_files_are_counted(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.capacity_bytes = 6 * KVT_MIB;
    bench_open(&bench);
    for (uint64_t i = 0; i < 150; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    kvt_store_close(&bench.store);
    for (int i = 0; i < 20; i++) {
        char name[40];
        (void)snprintf(name, sizeof name, "segment-%06d", 500 + i);
        plant(&bench, name, 100 * KIB);
        (void)snprintf(name, sizeof name, "segment-%06d.tmp", i);
        plant(&bench, name, 100 * KIB);
    }
    plant(&bench, ".kvtier-probe", 100 * KIB);
    plant(&bench, "holiday.jpg", 700 * KIB);
    bench.logged = 0;
    bench_open(&bench);
    const struct kvt_store_stats stats = bench_stats(&bench);
    assert_int_equal(stats.swept_files, 41);
    assert_int_equal(stats.foreign_files, 1);
    assert_true(stats.foreign_bytes >= 700 * KIB);
    assert_true(bench.logged > 0);
    assert_true(is_there(&bench, "holiday.jpg"));
    assert_false(is_there(&bench, "segment-000500"));
    for (uint64_t i = 0; i < 600; i++) {
        assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
        if (i % 8 == 0) assert_true(du(bench.path) <= 6 * KVT_MIB);
    }
    bench_done(&bench);
}

static void a_damaged_superblock_copy_is_healed_and_two_make_an_empty_store(void **state)
{
    (void)state;
    struct bench bench;
    bench_init_faulty(&bench, 1);
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 1000), KVT_OK);
    const uint8_t junk = 0x99;
    for (uint64_t copy = 0; copy < 2; copy++) {
        kvt_store_close(&bench.store);
        assert_true(io_faulty_poke(bench.image, bench.path, "superblock", copy * 4096 + 20, &junk, 1));
        bench_open(&bench);
        assert_int_equal(bench_get(&bench, 1, 1000), KVT_OK);
    }
    kvt_store_close(&bench.store);
    for (uint64_t copy = 0; copy < 2; copy++)
        assert_true(io_faulty_poke(bench.image, bench.path, "superblock", copy * 4096 + 20, &junk, 1));
    bench_open(&bench);
    assert_false(bench_has(&bench, 1));
    assert_int_equal(bench_put(&bench, 2, 1000), KVT_OK);
    bench_reopen(&bench);
    assert_int_equal(bench_get(&bench, 2, 1000), KVT_OK);
    bench_done(&bench);
}

static void b35_a_directory_in_memory_works_or_is_refused(void **state)
{
    (void)state;
    struct stat found;
    if (stat("/dev/shm", &found) != 0) {
        print_message("skipped: no /dev/shm\n");
        return;
    }
    struct bench bench;
    bench_init(&bench, NULL, false);
    char path[80];
    (void)snprintf(path, sizeof path, "/dev/shm/kvt-test-%d", (int)getpid());
    bench.config.path = path;
    bench_open(&bench);
    for (uint64_t i = 0; i < 500; i++) assert_int_equal(bench_put(&bench, i, 20 * KIB), KVT_OK);
    assert_true(du(path) <= bench.config.capacity_bytes);
    assert_int_equal(bench_get(&bench, 499, 20 * KIB), KVT_OK);
    assert_non_null(bench_stats(&bench).io_path);
    kvt_store_close(&bench.store);
    assert_int_equal(nftw(path, bench_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
    bench_done(&bench);
}

static void a_reserve_of_free_space_is_kept(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    bench.config.reserve_bytes = (uint64_t)1 << 60; /* more than any disk has */
    bench_open(&bench);
    assert_int_equal(bench_put(&bench, 1, 1000), KVT_FULL);
    assert_false(is_there(&bench, "segment-000000"));
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b12_after_a_restart_used_bytes_equal_a_scan),
        cmocka_unit_test(b12_a_lowered_capacity_evicts_the_oldest_at_open),
        cmocka_unit_test(b52_files_are_ours_alone_whatever_the_umask),
        cmocka_unit_test(b52_symlinks_and_files_in_the_place_of_the_directory_are_refused),
        cmocka_unit_test(b52_symlinks_inside_are_not_followed),
        cmocka_unit_test(a_directory_has_one_owner_at_a_time),
        cmocka_unit_test(impossible_values_name_field_value_and_rule),
        cmocka_unit_test(b64_an_object_larger_than_the_cap_is_refused_and_evicts_nothing),
        cmocka_unit_test(b65_du_is_never_above_the_cap),
        cmocka_unit_test(b65_what_a_crash_left_is_swept_and_foreign_files_are_counted),
        cmocka_unit_test(a_damaged_superblock_copy_is_healed_and_two_make_an_empty_store),
        cmocka_unit_test(b35_a_directory_in_memory_works_or_is_refused),
        cmocka_unit_test(a_reserve_of_free_space_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
