/* store: several directories behind one handle. What one of them loses, the others do not. */
#include "tests/unit/store_bench.h"

#include <fcntl.h>
#include <poll.h>

#include "tiers/nvme_tier.h"

enum { KIB = 1024, PATHS = 3, KEYS = 300, LENGTH = 20000 };

struct striped {
    struct bench bench;
    char paths[PATHS + 6][96];
    const char *list[PATHS + 6];
};

static void init(struct striped *striped, bool is_single)
{
    bench_init(&striped->bench, NULL, is_single);
    for (int i = 0; i < PATHS + 6; i++) {
        (void)snprintf(striped->paths[i], sizeof striped->paths[i], "%.60s/disk%d", striped->bench.directory, i);
        striped->list[i] = striped->paths[i];
    }
    struct kvt_store_config *config = &striped->bench.config;
    config->path = NULL;
    config->paths = striped->list;
    config->path_count = PATHS;
    config->capacity_bytes = PATHS * 8 * KVT_MIB;
    config->staging_bytes = 0;
}

static void swap_paths(struct striped *striped, int i, int j)
{
    const char *path = striped->list[i];
    striped->list[i] = striped->list[j];
    striped->list[j] = path;
}

/* Records by directory, each opened alone. */
static void count_each(struct striped *striped, uint64_t ret_records[PATHS])
{
    for (int i = 0; i < PATHS; i++) {
        struct kvt_store_config config = kvt_store_config_default();
        config.path = striped->paths[i];
        config.is_existing = true;
        struct kvt_store *store = NULL;
        struct kvt_store_stats stats;
        assert_int_equal(kvt_store_open(&config, NULL, &store, NULL, 0), KVT_OK);
        kvt_store_stats(store, &stats);
        ret_records[i] = stats.records;
        kvt_store_close(&store);
    }
}

static void put_all(struct striped *striped)
{
    for (uint64_t key = 0; key < KEYS; key++) assert_int_equal(bench_put(&striped->bench, key, LENGTH), KVT_OK);
}

static uint64_t count_good(struct striped *striped)
{
    uint64_t good = 0;
    for (uint64_t key = 0; key < KEYS; key++) {
        const enum kvt_status status = bench_get(&striped->bench, key, LENGTH);
        assert_true(status == KVT_OK || status == KVT_NOTFOUND);
        good += status == KVT_OK;
    }
    return good;
}

static void each_record_lies_in_one_directory_whatever_their_order(void **state)
{
    (void)state;
    for (int is_single = 0; is_single < 2; is_single++) {
        struct striped striped;
        init(&striped, is_single);
        bench_open(&striped.bench);
        put_all(&striped);
        assert_int_equal(count_good(&striped), KEYS);
        assert_int_equal(bench_stats(&striped.bench).records, KEYS);
        assert_int_equal(bench_stats(&striped.bench).directories, PATHS);
        assert_true(bench_stats(&striped.bench).allocated_peak <= striped.bench.config.capacity_bytes);
        uint64_t cursor = 0, listed_count = 0;
        struct kvt_store_listed listed[7];
        for (uint32_t n; (n = kvt_store_list(striped.bench.store, &cursor, listed, 7)) > 0;) listed_count += n;
        assert_int_equal(listed_count, KEYS);
        kvt_store_close(&striped.bench.store);
        uint64_t records[PATHS];
        count_each(&striped, records);
        assert_int_equal(records[0] + records[1] + records[2], KEYS);
        for (int i = 0; i < PATHS; i++) assert_in_range(records[i], KEYS / 5, KEYS / 2);
        swap_paths(&striped, 0, 2);
        bench_open(&striped.bench);
        assert_int_equal(count_good(&striped), KEYS);
        bench_done(&striped.bench);
    }
}

static void a_replaced_directory_loses_its_own_records_only_and_heals(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    bench_open(&striped.bench);
    put_all(&striped);
    kvt_store_close(&striped.bench.store);
    uint64_t records[PATHS];
    count_each(&striped, records);
    assert_int_equal(nftw(striped.paths[1], bench_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
    bench_open(&striped.bench);
    assert_int_equal(count_good(&striped), KEYS - records[1]);
    put_all(&striped);
    assert_int_equal(count_good(&striped), KEYS);
    bench_done(&striped.bench);
}

static void a_directory_that_is_taken_away_takes_only_its_share_of_the_names(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    bench_open(&striped.bench);
    put_all(&striped);
    kvt_store_close(&striped.bench.store);
    uint64_t records[PATHS];
    count_each(&striped, records);
    striped.bench.config.path_count = 2;
    striped.bench.config.capacity_bytes = 16 * KVT_MIB;
    bench_open(&striped.bench);
    assert_int_equal(count_good(&striped), records[0] + records[1]);
    bench_done(&striped.bench);
}

static void a_disk_that_fails_at_open_is_left_out_and_the_others_go_on(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    bench_open(&striped.bench);
    put_all(&striped);
    kvt_store_close(&striped.bench.store);
    uint64_t records[PATHS];
    count_each(&striped, records);
    char lock[128];
    (void)snprintf(lock, sizeof lock, "%s/lock", striped.paths[2]);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(mkdir(lock, 0700), 0); /* it cannot be opened */
    bench_open(&striped.bench);
    assert_int_equal(bench_stats(&striped.bench).directories_lost, 1);
    assert_true(striped.bench.logged > 0);
    assert_int_equal(count_good(&striped), records[0] + records[1]);
    put_all(&striped); /* its names have gone to the others */
    assert_int_equal(count_good(&striped), KEYS);
    assert_int_equal(kvt_store_sync(striped.bench.store), KVT_OK);
    /* What lies there could be found again, so a reset must not say that it is gone. */
    assert_int_equal(kvt_store_reset(striped.bench.store), KVT_IO);
    assert_int_equal(count_good(&striped), 0);
    kvt_store_close(&striped.bench.store);
    assert_int_equal(rmdir(lock), 0);
    bench_open(&striped.bench);
    assert_int_equal(bench_stats(&striped.bench).directories_lost, 0);
    assert_int_equal(kvt_store_reset(striped.bench.store), KVT_OK);
    assert_int_equal(count_good(&striped), 0);
    bench_done(&striped.bench);
}

/* What lies where nobody looks is not listed, and what is listed is found. */
static void what_was_put_while_a_directory_was_out_is_forgotten_when_it_is_back(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    bench_open(&striped.bench);
    kvt_store_close(&striped.bench.store);
    char lock[128];
    (void)snprintf(lock, sizeof lock, "%s/lock", striped.paths[2]);
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(mkdir(lock, 0700), 0);
    bench_open(&striped.bench);
    put_all(&striped);
    kvt_store_close(&striped.bench.store);
    assert_int_equal(rmdir(lock), 0);
    for (int is_out_again = 0; is_out_again < 2; is_out_again++) {
        bench_open(&striped.bench);
        const uint64_t records = bench_stats(&striped.bench).records;
        if (is_out_again) assert_int_equal(records, KEYS); /* found again, where the names are now */
        else assert_in_range(records, KEYS / 2, KEYS - 1);
        struct kvt_store_listed listed[KEYS];
        uint64_t cursor = 0, count = 0;
        uint32_t n;
        while ((n = kvt_store_list(striped.bench.store, &cursor, listed, KEYS)) > 0) {
            for (uint32_t i = 0; i < n; i++) assert_true(bench_has(&striped.bench, listed[i].name.key[0]));
            count += n;
        }
        assert_int_equal(count, records);
        assert_int_equal(count_good(&striped), records);
        kvt_store_close(&striped.bench.store);
        if (is_out_again) continue;
        assert_int_equal(unlink(lock), 0);
        assert_int_equal(mkdir(lock, 0700), 0);
    }
    assert_int_equal(rmdir(lock), 0);
    bench_done(&striped.bench);
}

static void a_disk_that_fails_later_fails_its_own_records_only(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    bench_open(&striped.bench);
    put_all(&striped);
    for (int i = 0; i < 16; i++) { /* behind its back */
        char path[128];
        (void)snprintf(path, sizeof path, "%s/segment-%06d", striped.paths[0], i);
        (void)truncate(path, 0);
    }
    uint64_t good = 0, failed = 0;
    for (uint64_t key = 0; key < KEYS; key++) {
        const enum kvt_status status = bench_get(&striped.bench, key, LENGTH);
        if (status == KVT_OK) {
            good++;
            continue;
        }
        assert_true(status == KVT_IO || status == KVT_CORRUPT);
        assert_false(bench_has(&striped.bench, key));
        failed++;
    }
    assert_in_range(failed, KEYS / 5, KEYS / 2);
    assert_int_equal(good + failed, KEYS);
    bench_done(&striped.bench);
}

static void puts_are_numbered_over_all_directories_and_the_eventfd_serves_all(void **state)
{
    (void)state;
    enum { OPS = 64 };
    struct striped striped;
    init(&striped, false);
    bench_open(&striped.bench);
    static uint8_t bytes[OPS][4000];
    struct kvt_store_op puts[OPS], *ops[OPS], *done[OPS];
    struct pollfd event = { .fd = kvt_store_eventfd(striped.bench.store), .events = POLLIN };
    assert_int_equal(poll(&event, 1, 0), 0);
    assert_false(kvt_store_wait(striped.bench.store, 1000000));
    for (uint64_t i = 0; i < OPS; i++) {
        puts[i] = (struct kvt_store_op){
            .kind = KVT_STORE_PUT, .name = bench_name(i), .generation = 1, .buffer = bytes[i], .length = 4000
        };
        ops[i] = &puts[i];
        bench_fill(bytes[i], 4000, i, 1);
    }
    assert_int_equal(kvt_store_submit(striped.bench.store, ops, OPS), OPS);
    for (uint32_t back = 0; back < OPS;) {
        assert_int_equal(poll(&event, 1, 20000), 1);
        assert_true(kvt_store_wait(striped.bench.store, 0));
        back += kvt_store_poll(striped.bench.store, done, OPS);
    }
    assert_int_equal(poll(&event, 1, 0), 0);
    for (uint64_t i = 0; i < OPS; i++) {
        assert_int_equal(puts[i].status, KVT_OK);
        assert_int_equal(puts[i].ret_number, i + 1);
    }
    assert_int_equal(kvt_store_watermark(striped.bench.store), 0);
    assert_int_equal(kvt_store_wait_durable(striped.bench.store, OPS + 1, 1), KVT_INVAL);
    assert_int_equal(kvt_store_wait_durable(striped.bench.store, 1, UINT64_MAX), KVT_OK);
    assert_int_equal(kvt_store_watermark(striped.bench.store), OPS);
    bool exists[2];
    const struct kvt_store_name names[] = { bench_name(3), bench_name(1000) };
    assert_int_equal(kvt_store_exists(striped.bench.store, names, 2, exists), 1);
    assert_true(exists[0] && !exists[1]);
    assert_int_equal(kvt_store_delete(striped.bench.store, names, 2), 1);
    struct kvt_store_found found;
    assert_false(kvt_store_find(striped.bench.store, &names[0], &found));
    assert_int_equal(kvt_store_compact(striped.bench.store), KVT_OK);
    bench_done(&striped.bench);
}

static void what_cannot_be_meant_is_refused_and_leaves_nothing_behind(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    striped.bench.config.path_count = 9;
    assert_int_equal(bench_try_open(&striped.bench), KVT_INVAL);
    striped.bench.config.path_count = PATHS;
    striped.list[2] = striped.list[0];
    assert_int_equal(bench_try_open(&striped.bench), KVT_INVAL);
    assert_non_null(strstr(striped.bench.error, "twice"));
    striped.list[2] = "/nowhere-at-all/kv";
    assert_int_equal(bench_try_open(&striped.bench), KVT_INVAL);
    striped.list[2] = striped.paths[2];
    striped.bench.config.path = striped.paths[3];
    assert_int_equal(bench_try_open(&striped.bench), KVT_INVAL);
    striped.bench.config.path = NULL;
    bench_open(&striped.bench);
    bench_done(&striped.bench);
}

static void the_tier_takes_a_list_and_keeps_side_files_in_each(void **state)
{
    (void)state;
    struct striped striped;
    init(&striped, false);
    char list[400];
    (void)snprintf(list, sizeof list, "%s,%s", striped.paths[0], striped.paths[1]);
    const struct kvt_nvme_tier_config config = { .path = list, .capacity_bytes = 16 * KVT_MIB, .side_bytes_max = 4096 };
    struct kvt_tier *tier = NULL;
    int os_errno;
    char text[32];
    size_t size;
    const struct kvt_key name = { 1, 2 };
    assert_int_equal(kvt_nvme_tier_open(&config, &striped.bench.env, &tier), KVT_OK);
    assert_int_equal(kvt_nvme_tier_side_save(tier, name, "side", 4, &os_errno), KVT_OK);
    kvt_tier_close(&tier);
    assert_int_equal(nftw(striped.paths[0], bench_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
    assert_int_equal(kvt_nvme_tier_open(&config, &striped.bench.env, &tier), KVT_OK);
    assert_int_equal(kvt_nvme_tier_side_load(tier, name, text, sizeof text, &size), KVT_OK);
    assert_int_equal(size, 4);
    kvt_tier_close(&tier);
    bench_done(&striped.bench);
}

/* Goal: one of the paths cannot be a store's: the open is refused, and what it made of the others is gone again. */
static void a_refused_open_leaves_no_directory_behind(void **state)
{
    (void)state;
    static const char *const bad[] = { "", "/proc/no/such", "/etc/passwd" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        struct striped striped;
        init(&striped, false);
        striped.list[PATHS - 1] = bad[i];
        assert_int_equal(bench_try_open(&striped.bench), KVT_INVAL);
        assert_non_null(strstr(striped.bench.error, "path"));
        for (uint32_t p = 0; p + 1 < PATHS; p++) assert_int_not_equal(access(striped.paths[p], F_OK), 0);
        /* One that was there before stays, with what it holds. */
        striped.list[PATHS - 1] = striped.paths[PATHS - 1];
        bench_open(&striped.bench);
        put_all(&striped);
        kvt_store_close(&striped.bench.store);
        striped.list[PATHS - 1] = bad[i];
        assert_int_equal(bench_try_open(&striped.bench), KVT_INVAL);
        striped.list[PATHS - 1] = striped.paths[PATHS - 1];
        bench_open(&striped.bench);
        assert_int_equal(count_good(&striped), KEYS);
        bench_done(&striped.bench);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_open_leaves_no_directory_behind),
        cmocka_unit_test(each_record_lies_in_one_directory_whatever_their_order),
        cmocka_unit_test(a_replaced_directory_loses_its_own_records_only_and_heals),
        cmocka_unit_test(a_directory_that_is_taken_away_takes_only_its_share_of_the_names),
        cmocka_unit_test(a_disk_that_fails_at_open_is_left_out_and_the_others_go_on),
        cmocka_unit_test(what_was_put_while_a_directory_was_out_is_forgotten_when_it_is_back),
        cmocka_unit_test(a_disk_that_fails_later_fails_its_own_records_only),
        cmocka_unit_test(puts_are_numbered_over_all_directories_and_the_eventfd_serves_all),
        cmocka_unit_test(what_cannot_be_meant_is_refused_and_leaves_nothing_behind),
        cmocka_unit_test(the_tier_takes_a_list_and_keeps_side_files_in_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
