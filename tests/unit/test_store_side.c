/*
 * store_side: a side file is there as a whole, or not at all; it is counted; and what a crash or a stranger left in its
 *             place
 * does no harm.
 */
#include <fcntl.h>

#include "tests/unit/store_bench.h"
#include "tiers/store_private.h"

enum { KIB = 1024, SIDE_MAX = 20 * KIB };

static const uint64_t one[2] = { 1, 0x2a };

static enum kvt_status try_open(struct bench *bench, uint64_t side_bytes_max)
{
    const struct kvt_store_more more = { .side_bytes_max = side_bytes_max, .side_name = { one[0], one[1] } };
    return kvt_store_open_with(&bench->config, &bench->env, &more, &bench->store, bench->error, sizeof bench->error);
}

static void init(struct bench *bench)
{
    bench_init(bench, NULL, false);
    bench->config.capacity_bytes = 6 * KVT_MIB;
    assert_int_equal(try_open(bench, SIDE_MAX), KVT_OK);
}

static enum kvt_status save(struct bench *bench, const uint64_t name[2], uint8_t fill, size_t size)
{
    static uint8_t bytes[2 * SIDE_MAX];
    int os_errno;
    memset(bytes, fill, size);
    return kvt_store_side_save(bench->store, name, bytes, size, &os_errno);
}

static enum kvt_status load(struct bench *bench, const uint64_t name[2], uint8_t fill, size_t *ret_size)
{
    static uint8_t bytes[SIDE_MAX];
    const enum kvt_status status = kvt_store_side_load(bench->store, name, bytes, sizeof bytes, ret_size);
    if (status != KVT_OK) return status;
    for (size_t i = 0; i < *ret_size; i++) assert_int_equal(bytes[i], fill);
    return KVT_OK;
}

static void path_of(const struct bench *bench, const char *name, char ret_path[160])
{
    (void)snprintf(ret_path, 160, "%s/%s", bench->path, name);
}

#define ONE_NAME "side-0000000000000001000000000000002a"

/* Goal: the room for its own side file is taken once, before it is there and after: no segment goes for it at an open. */
static void a_store_does_not_shrink_by_its_own_side_file(void **state)
{
    (void)state;
    uint32_t with_another = 0;
    for (uint64_t more = 0; more < 256 * KIB; more += 4 * KIB) {
        struct bench bench;
        bench_init(&bench, NULL, false);
        bench.config.capacity_bytes = 6 * KVT_MIB + more;
        assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
        const uint64_t before = bench_stats(&bench).segments_max;
        assert_int_equal(save(&bench, one, 7, SIDE_MAX), KVT_OK);
        kvt_store_close(&bench.store);
        assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
        assert_int_equal(bench_stats(&bench).segments_max, before);
        assert_int_equal(save(&bench, (const uint64_t[2]){ 5, 6 }, 7, SIDE_MAX), KVT_OK);
        kvt_store_close(&bench.store);
        assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
        with_another += bench_stats(&bench).segments_max < before; /* another's takes room besides */
        bench_done(&bench);
    }
    assert_true(with_another > 0);
}

static void what_was_saved_last_is_loaded_after_a_restart(void **state)
{
    (void)state;
    struct bench bench;
    size_t size = 0;
    const mode_t mask = umask(0777);
    init(&bench);
    assert_int_equal(load(&bench, one, 7, &size), KVT_NOTFOUND);
    assert_int_equal(save(&bench, one, 7, 3000), KVT_OK);
    assert_int_equal(save(&bench, one, 8, SIDE_MAX), KVT_OK);
    (void)umask(mask);
    char path[160];
    struct stat status;
    path_of(&bench, ONE_NAME, path);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    kvt_store_close(&bench.store);
    assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
    assert_int_equal(load(&bench, one, 8, &size), KVT_OK);
    assert_int_equal(size, SIDE_MAX);
    assert_int_equal(bench_stats(&bench).foreign_files, 0);
    kvt_store_side_remove(bench.store, one);
    kvt_store_side_remove(bench.store, one);
    assert_int_equal(load(&bench, one, 8, &size), KVT_NOTFOUND);
    bench_done(&bench);
}

static void more_than_was_announced_is_refused_and_the_old_one_stays(void **state)
{
    (void)state;
    struct bench bench;
    size_t size = 0;
    init(&bench);
    assert_int_equal(save(&bench, one, 7, 100), KVT_OK);
    assert_int_equal(save(&bench, one, 8, SIDE_MAX + 1), KVT_FULL);
    assert_int_equal(load(&bench, one, 7, &size), KVT_OK);
    assert_int_equal(size, 100);
    kvt_store_close(&bench.store);
    assert_int_equal(try_open(&bench, 0), KVT_OK);
    assert_int_equal(save(&bench, one, 8, 1), KVT_FULL);
    assert_int_equal(load(&bench, one, 7, &size), KVT_OK);
    bench_done(&bench);
}

static void b65_what_a_crash_left_of_a_save_is_swept(void **state)
{
    (void)state;
    struct bench bench;
    size_t size = 0;
    char path[160];
    init(&bench);
    assert_int_equal(save(&bench, one, 7, 100), KVT_OK);
    kvt_store_close(&bench.store);
    path_of(&bench, ".kvtier-side", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fclose(file);
    assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(bench_stats(&bench).swept_files, 1);
    assert_int_equal(load(&bench, one, 7, &size), KVT_OK);
    bench_done(&bench);
}

static void a_link_in_its_place_is_not_followed(void **state)
{
    (void)state;
    struct bench bench;
    size_t size = 0;
    char path[160], target[160];
    init(&bench);
    path_of(&bench, ONE_NAME, path);
    (void)snprintf(target, sizeof target, "%s/elsewhere", bench.directory);
    FILE *file = fopen(target, "w");
    assert_non_null(file);
    (void)fputs("private", file);
    (void)fclose(file);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(load(&bench, one, 7, &size), KVT_IO);
    assert_int_equal(save(&bench, one, 7, 100), KVT_OK);
    struct stat status;
    assert_int_equal(stat(target, &status), 0);
    assert_int_equal(status.st_size, 7);
    assert_int_equal(load(&bench, one, 7, &size), KVT_OK);
    bench_done(&bench);
}

static void of_more_than_sixteen_the_oldest_go(void **state)
{
    (void)state;
    struct bench bench;
    size_t size = 0;
    init(&bench);
    for (uint64_t i = 0; i < KVT_STORE_SIDES_MAX + 4; i++) {
        const uint64_t name[2] = { i, 0 };
        char text[64], path[160];
        assert_int_equal(save(&bench, name, (uint8_t)i, 100), KVT_OK);
        (void)snprintf(text, sizeof text, KVT_STORE_SIDE_PREFIX "%016llx%016llx", (unsigned long long)i, 0ull);
        path_of(&bench, text, path);
        const struct timespec times[2] = { { 1000 + (time_t)i, 0 }, { 1000 + (time_t)i, 0 } };
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
    kvt_store_close(&bench.store);
    assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
    for (uint64_t i = 0; i < KVT_STORE_SIDES_MAX + 4; i++)
        assert_int_equal(load(&bench, (const uint64_t[2]){ i, 0 }, (uint8_t)i, &size), i < 4 ? KVT_NOTFOUND : KVT_OK);
    bench_done(&bench);
}

static uint64_t du_bytes;

static int add_blocks(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)path, (void)type, (void)walk;
    du_bytes += (uint64_t)status->st_blocks * 512;
    return 0;
}

static void b65_side_files_are_inside_the_cap(void **state)
{
    (void)state;
    struct bench bench;
    init(&bench);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(save(&bench, (const uint64_t[2]){ i, 1 }, 1, SIDE_MAX), KVT_OK);
    kvt_store_close(&bench.store);
    assert_int_equal(try_open(&bench, SIDE_MAX), KVT_OK);
    for (uint64_t i = 0; i < 3000; i++) assert_int_equal(bench_put(&bench, i, 5000), KVT_OK);
    assert_int_equal(save(&bench, one, 1, SIDE_MAX), KVT_OK);
    du_bytes = 0;
    assert_int_equal(nftw(bench.path, add_blocks, 8, FTW_PHYS), 0);
    assert_true(du_bytes <= bench.config.capacity_bytes);
    assert_true(bench_stats(&bench).allocated_peak <= bench.config.capacity_bytes);
    assert_true(du_bytes <= bench_stats(&bench).allocated_bytes);
    bench_done(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_does_not_shrink_by_its_own_side_file),
        cmocka_unit_test(what_was_saved_last_is_loaded_after_a_restart),
        cmocka_unit_test(more_than_was_announced_is_refused_and_the_old_one_stays),
        cmocka_unit_test(b65_what_a_crash_left_of_a_save_is_swept),
        cmocka_unit_test(a_link_in_its_place_is_not_followed),
        cmocka_unit_test(of_more_than_sixteen_the_oldest_go),
        cmocka_unit_test(b65_side_files_are_inside_the_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
