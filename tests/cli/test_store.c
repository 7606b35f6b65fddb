/* store, from outside: what it says of a directory, and how it ends. */
#include "tests/unit/store_bench.h"

#include <fcntl.h>
#include <json-c/json.h>

#include "tests/cli/run_program.h"

static const char *program;
static struct outcome outcome;

static void run(const char *const *arguments) { assert_true(run_program(program, arguments, &outcome)); }

#define RUN(...) run((const char *const[]){ __VA_ARGS__, NULL })

static uint64_t number(struct json_object *root, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(root, name, &value)) fail_msg("no %s", name);
    return json_object_get_uint64(value);
}

static struct json_object *json_of(const char *action, const char *directory, int exit_status)
{
    RUN("store", action, directory, "--json");
    assert_int_equal(outcome.exit_status, exit_status);
    struct json_object *root = json_tokener_parse(outcome.out);
    assert_non_null(root);
    return root;
}

static void make(struct bench *bench)
{
    bench_init(bench, NULL, false);
    bench_open(bench);
    for (uint64_t i = 0; i < 50; i++) assert_int_equal(bench_put(bench, i, 10000), KVT_OK);
    kvt_store_close(&bench->store);
}

static void an_encrypted_store_is_verified_with_its_key_only(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    uint8_t key[32];
    for (int i = 0; i < 32; i++) key[i] = (uint8_t)(i * 7 + 200);
    bench.config.key = key;
    bench_open(&bench);
    for (uint64_t i = 0; i < 50; i++) assert_int_equal(bench_put(&bench, i, 10000), KVT_OK);
    kvt_store_close(&bench.store);
    char raw[96], digits[96];
    (void)snprintf(raw, sizeof raw, "%s/raw", bench.directory);
    (void)snprintf(digits, sizeof digits, "%s/digits", bench.directory);
    FILE *file = fopen(raw, "w");
    assert_int_equal(fwrite(key, 1, 32, file), 32);
    (void)fclose(file);
    file = fopen(digits, "w");
    for (int i = 0; i < 32; i++) (void)fprintf(file, i % 2 ? "%02x" : "%02X", key[i]);
    (void)fprintf(file, "\n");
    (void)fclose(file);
    RUN("store", "verify", bench.path, "--key-file", raw);
    assert_int_equal(outcome.exit_status, 0);
    RUN("store", "stat", bench.path, "--key-file", digits);
    assert_int_equal(outcome.exit_status, 0);
    RUN("store", "verify", bench.path);
    assert_int_not_equal(outcome.exit_status, 0);
    RUN("store", "verify", bench.path, "--key-file", bench.path);
    assert_int_equal(outcome.exit_status, 2);
    RUN("store", "verify", bench.path, "--key-file", digits); /* it is still there */
    assert_int_equal(outcome.exit_status, 0);
    bench_done(&bench);
}

static void a_whole_store_is_described_listed_verified_and_compacted(void **state)
{
    (void)state;
    struct bench bench;
    make(&bench);
    const char *const actions[] = { "stat", "ls", "verify", "compact", "stat" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(actions); i++) {
        struct json_object *root = json_of(actions[i], bench.path, 0);
        assert_int_equal(number(root, "records"), 50);
        assert_int_equal(number(root, "bad"), 0);
        assert_int_equal(number(root, "capacity_bytes"), bench.config.capacity_bytes);
        assert_true(number(root, "allocated_bytes") <= bench.config.capacity_bytes);
        if (i == 2) assert_int_equal(number(root, "verified"), 50);
        struct json_object *list;
        assert_int_equal(json_object_object_get_ex(root, "list", &list), i == 1);
        if (i == 1) assert_int_equal(json_object_array_length(list), 50);
        (void)json_object_put(root);
        RUN("store", actions[i], bench.path);
        assert_int_equal(outcome.exit_status, 0);
        assert_string_equal(outcome.err, "");
    }
    bench_open(&bench);
    for (uint64_t i = 0; i < 50; i++) assert_int_equal(bench_get(&bench, i, 10000), KVT_OK);
    bench_done(&bench);
}

static void a_bad_record_is_counted_and_is_exit_status_1(void **state)
{
    (void)state;
    struct bench bench;
    make(&bench);
    char path[120];
    (void)snprintf(path, sizeof path, "%s/segment-000000", bench.path);
    const int file = open(path, O_WRONLY);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, "x", 1, 50000), 1);
    assert_int_equal(close(file), 0);
    struct json_object *root = json_of("verify", bench.path, 1);
    assert_int_equal(number(root, "bad"), 1);
    assert_int_equal(number(root, "verified"), 49);
    assert_int_equal(number(root, "served_bad"), 0);
    (void)json_object_put(root);
    bench_done(&bench);
}

static void what_is_no_store_is_refused_and_left_as_it_is(void **state)
{
    (void)state;
    struct bench bench;
    bench_init(&bench, NULL, false);
    RUN("store", "stat", bench.path);
    assert_int_equal(outcome.exit_status, 2);
    assert_non_null(strstr(outcome.err, "there is no store"));
    assert_string_equal(outcome.out, "");
    struct stat found;
    assert_int_not_equal(stat(bench.path, &found), 0);
    assert_int_equal(mkdir(bench.path, 0700), 0);
    RUN("store", "stat", bench.path);
    assert_int_equal(outcome.exit_status, 2);
    assert_non_null(strstr(outcome.err, "there is no store"));
    assert_int_equal(rmdir(bench.path), 0); /* nothing was put into it */
    RUN("store", "stat");
    assert_int_equal(outcome.exit_status, 2);
    RUN("store", "burn", bench.path);
    assert_int_equal(outcome.exit_status, 2);
    assert_non_null(strstr(outcome.err, "stat, ls, verify or compact"));
    RUN("store");
    assert_int_equal(outcome.exit_status, 2);
    RUN("store", "stat", bench.path, "more");
    assert_int_equal(outcome.exit_status, 2);
    assert_string_equal(outcome.err, "kvtier store: 'more': one argument too many\n");
    RUN("store", "--help");
    assert_int_equal(outcome.exit_status, 0);
    bench_done(&bench);
}

static void a_store_in_use_is_refused(void **state)
{
    (void)state;
    struct bench bench;
    make(&bench);
    bench_open(&bench);
    RUN("store", "verify", bench.path);
    assert_int_equal(outcome.exit_status, 1);
    assert_non_null(strstr(outcome.err, "another process has this store open"));
    bench_done(&bench);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 1;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_encrypted_store_is_verified_with_its_key_only),
        cmocka_unit_test(a_whole_store_is_described_listed_verified_and_compacted),
        cmocka_unit_test(a_bad_record_is_counted_and_is_exit_status_1),
        cmocka_unit_test(what_is_no_store_is_refused_and_left_as_it_is),
        cmocka_unit_test(a_store_in_use_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
