/* bench, from outside: how it refuses, and what a small run of `bench store` says. */

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <json-c/json.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "runtime/base/bytes.h"
#include "tests/cli/run_program.h"

static const char *program;
static struct outcome outcome;
static char directory[64];

static void run(const char *const *arguments) { assert_true(run_program(program, arguments, &outcome)); }

#define RUN(...) run((const char *const[]){ "bench", __VA_ARGS__, NULL })

static int directory_create(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    (void)snprintf(directory, sizeof directory, "%.40s/kvt-bench-XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    return mkdtemp(directory) ? 0 : -1;
}

static int directory_remove(void **state)
{
    (void)state;
    return rmdir(directory); /* the program has left nothing in it */
}

static void put_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void assert_file(const char *path, const char *wanted)
{
    char text[64];
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s is gone", path);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    assert_string_equal(text, wanted);
}

static void a_bad_option_is_one_line_and_exit_status_2(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[7];
        const char *line;
    } cases[] = {
        { { NULL }, "the part is missing: core, codec, copy or store" },
        { { "stores" }, "core, codec, copy or store" },
        { { "store", "core" }, "'core': one argument too many" },
        { { "store" }, "--dir is missing" },
        { { "store", "--dir", "" }, "an existing directory" },
        { { "store", "--dir", "/tmp", "--size", "1MiB" }, "16MiB to 16GiB" },
        { { "store", "--dir", "/tmp", "--size", "32GiB" }, "16MiB to 16GiB" },
        { { "store", "--dir", "/tmp", "--size", "64" }, "a size" },
        { { "store", "--dir", "/tmp", "--pairs", "0" }, "--pairs" },
        { { "store", "--dir", "/tmp", "--pairs", "102" }, "--pairs" },
        { { "store", "--dir", "/tmp", "--only", "some" }, "speed, small, mixed or codec" },
        { { "core", "--blocks", "7" }, "--blocks" },
        { { "copy", "--device", "gpu" }, "one of auto, cuda, emulated" },
        { { "core", "--calibrate", "x" }, "--calibrate" },
        { { "--calibrate", "/nonexistent/links.json" }, "--calibrate" },
        { { "--calibrate", "x", "--shape", "layers=0" }, "--shape" },
        { { "--calibrate", "x", "--block-tokens", "0" }, "--block-tokens" },
        { { "core", "--dir", "/tmp" }, "--dir means nothing here: it is for store and --calibrate" },
        { { "codec", "--blocks", "10000" }, "--blocks means nothing here: it is for core" },
        { { "copy", "--only", "small" }, "--only means nothing here: it is for store" },
        { { "store", "--dir", "/tmp", "--device", "cuda" }, "--device means nothing here: it is for copy" },
        { { "--calibrate", "x", "--pairs", "3" }, "--pairs means nothing here: it is for copy and store" },
        { { "copy", "--shape", "layers=1,kv_heads=1,head_dim=8,dtype=bf16" }, "--shape means nothing here" },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        const char *arguments[9] = { "bench" };
        memcpy(arguments + 1, cases[i].arguments, sizeof cases[i].arguments);
        run(arguments);
        if (!strstr(outcome.err, cases[i].line)) fail_msg("case %zu: %s", i, outcome.err);
        assert_int_equal(outcome.exit_status, 2);
        assert_int_equal(count_lines(outcome.err), 1);
        assert_string_equal(outcome.out, "");
    }
}

/* Goal: a directory that is none is a wrong value, whatever it is for, and what --calibrate names is not touched. */
static void a_directory_that_is_none_is_one_line_and_exit_status_2(void **state)
{
    (void)state;
    char nothing[96], file[96], line[192];
    (void)snprintf(nothing, sizeof nothing, "%s/nothing", directory);
    (void)snprintf(file, sizeof file, "%s/file", directory);
    put_file(file, "precious");
    const char *const values[] = { nothing, file };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(values); i++) {
        (void)snprintf(line, sizeof line, "--dir is '%s': an existing directory", values[i]);
        for (int is_store = 0; is_store < 2; is_store++) {
            if (is_store) RUN("store", "--dir", values[i]);
            else RUN("--calibrate", file, "--dir", values[i]);
            assert_int_equal(outcome.exit_status, 2);
            assert_int_equal(count_lines(outcome.err), 1);
            assert_non_null(strstr(outcome.err, line));
            assert_string_equal(outcome.out, "");
        }
    }
    assert_file(file, "precious");
    assert_int_equal(unlink(file), 0);
}

static struct json_object *member(struct json_object *object, const char *name)
{
    struct json_object *found = NULL;
    if (!json_object_object_get_ex(object, name, &found)) fail_msg("no %s", name);
    return found;
}

/* Each case has a finite ratio and measured something. Returns how many names contain `text`. */
static uint32_t check_cases(struct json_object *cases, const char *text)
{
    uint32_t found = 0;
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        struct json_object *one = json_object_array_get_idx(cases, i);
        assert_true(json_object_get_double(member(one, "value")) > 0);
        assert_true(json_object_get_double(member(one, "ceiling")) > 0);
        assert_true(json_object_get_double(member(one, "ratio")) > 0);
        assert_true(json_object_get_string_len(member(one, "unit")) > 0);
        found += strstr(json_object_get_string(member(one, "name")), text) != NULL;
    }
    return found;
}

static void a_small_run_of_each_part_measures_and_leaves_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *part, *name;
        uint32_t count;
    } parts[] = { { "speed", "against the raw loop", 6 },
                  { "small", "a file each", 8 }, /* puts; cold gets in order, at random; space; reopen */
                  { "mixed", "mixed", 2 },
                  { "codec", "packed", 5 } };
    /* Without fio, so that the run is short and the same on every machine. */
    char *const path = getenv("PATH");
    assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
    for (size_t i = 0; i < KVT_ARRAY_COUNT(parts); i++) {
        RUN("store", "--dir", directory, "--size", "16MiB", "--pairs", "1", "--only", parts[i].part, "--json");
        assert_string_equal(outcome.err, "");
        assert_int_equal(outcome.exit_status, 0);
        struct json_object *root = json_tokener_parse(outcome.out);
        assert_non_null(root);
        assert_true(json_object_get_int(member(member(root, "probe"), "alignment")) >= 512);
        assert_false(json_object_get_boolean(member(member(root, "probe"), "fio")));
        assert_int_equal(check_cases(member(root, "cases"), parts[i].name), parts[i].count);
        (void)json_object_put(root);
    }
    if (path) assert_int_equal(setenv("PATH", path, 1), 0);
}

/* On the emulated device, so that it is the same on every machine. */
static void a_small_run_of_copy_measures_and_compares(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t count;
    } names[] = { { "pinned peak", 3 },
                  { "blocks of", 4 },
                  { "fragments of 32 KiB", 2 },
                  { "packed bf16", 3 },
                  { "beside a kernel", 1 } };
    RUN("copy", "--device", "emulated", "--size", "16MiB", "--pairs", "1", "--json");
    assert_string_equal(outcome.err, "");
    assert_int_equal(outcome.exit_status, 0);
    struct json_object *root = json_tokener_parse(outcome.out);
    assert_non_null(root);
    assert_string_equal(json_object_get_string(member(root, "device")), "emulated");
    assert_int_equal(json_object_get_int64(member(root, "mismatches")), 0);
    assert_true(json_object_get_int64(member(root, "bytes_checked")) > (int64_t)(32 * KVT_MIB));
    for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++)
        assert_int_equal(check_cases(member(root, "cases"), names[i].name), names[i].count);
    (void)json_object_put(root);
    RUN("copy", "--device", "emulated", "--size", "16MiB", "--pairs", "1");
    assert_string_equal(outcome.err, "");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(strncmp(outcome.out, "emulated: ", 10), 0);
    assert_non_null(strstr(outcome.out, "memcpy on this CPU"));
    assert_non_null(strstr(outcome.out, "0 mismatches"));
}

static void the_table_names_what_the_probe_found(void **state)
{
    (void)state;
    RUN("store", "--dir", directory, "--size", "16MiB", "--pairs", "1", "--only", "codec");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(strncmp(outcome.out, "probe: ", 7), 0);
    assert_non_null(strstr(outcome.out, "alignment"));
    assert_non_null(strstr(outcome.out, "bottleneck"));
}

/* Goal: a calibration measures every part, writes what the simulator reads, and leaves nothing else behind. */
static void a_calibration_is_what_the_simulator_reads(void **state)
{
    (void)state;
    char path[96];
    (void)snprintf(path, sizeof path, "%s/links.json", directory);
    RUN("--calibrate", path, "--dir", directory, "--shape", "layers=2,kv_heads=1,head_dim=64,dtype=fp16",
        "--block-tokens", "32", "--json");
    assert_string_equal(outcome.err, "");
    assert_int_equal(outcome.exit_status, 0);
    struct json_object *printed = json_tokener_parse(outcome.out), *written = json_object_from_file(path);
    assert_non_null(printed);
    assert_true(json_object_equal(printed, written));
    struct json_object *device = member(written, "device"), *disk = member(written, "nvme"),
                       *fp16 = member(member(written, "codec"), "fp16");
    assert_string_equal(json_object_get_string(member(device, "name")), "emulated");
    assert_true(json_object_get_double(member(member(device, "to_host"), "bytes_per_second")) > 0);
    assert_true(json_object_get_double(member(fp16, "ratio")) > 1.05);
    assert_true(json_object_get_double(member(fp16, "unpack_ns_per_byte")) > 0);
    assert_true(json_object_get_double(member(member(disk, "read"), "bytes_per_second")) > 0);
    assert_true(json_object_array_length(member(disk, "writes")) >= 3);
    assert_true(json_object_get_double(member(member(written, "engine"), "between_ns")) > 0);
    (void)json_object_put(printed);
    (void)json_object_put(written);
    run((const char *const[]){ "sim", "--links", path, "--workload", "chat", "--requests", "12", "--shape",
                               "layers=2,kv_heads=1,head_dim=64,dtype=fp16", "--hbm", "8MiB", "--json", NULL });
    assert_string_equal(outcome.err, "");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(unlink(path), 0);
}

/* Goal: a disk that cannot be measured fails the command; what was there is there, and no file where there was none. */
static void a_calibration_without_its_disk_leaves_what_was_there(void **state)
{
    (void)state;
    char path[96];
    (void)snprintf(path, sizeof path, "%s/links.json", directory);
    RUN("--calibrate", path, "--dir", "/proc"); /* nobody can make a file there */
    assert_int_equal(outcome.exit_status, 1);
    assert_int_equal(count_lines(outcome.err), 1);
    assert_non_null(strstr(outcome.err, "/proc"));
    assert_int_equal(access(path, F_OK), -1);
    put_file(path, "precious");
    RUN("--calibrate", path, "--dir", "/proc");
    assert_int_equal(outcome.exit_status, 1);
    assert_file(path, "precious");
    assert_int_equal(unlink(path), 0);
}

/* Goal: what fails is not removed when it is no file of its own. /dev/null stands behind a link, which would go first. */
static void a_calibration_that_fails_leaves_a_device_where_it_was(void **state)
{
    (void)state;
    char path[96];
    struct stat about;
    (void)snprintf(path, sizeof path, "%s/device", directory);
    assert_int_equal(symlink("/dev/null", path), 0);
    RUN("--calibrate", path, "--dir", "/proc");
    assert_int_equal(outcome.exit_status, 1);
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    assert_int_equal(unlink(path), 0);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 1;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_option_is_one_line_and_exit_status_2),
        cmocka_unit_test(a_directory_that_is_none_is_one_line_and_exit_status_2),
        cmocka_unit_test(a_small_run_of_each_part_measures_and_leaves_nothing),
        cmocka_unit_test(a_small_run_of_copy_measures_and_compares),
        cmocka_unit_test(the_table_names_what_the_probe_found),
        cmocka_unit_test(a_calibration_is_what_the_simulator_reads),
        cmocka_unit_test(a_calibration_without_its_disk_leaves_what_was_there),
        cmocka_unit_test(a_calibration_that_fails_leaves_a_device_where_it_was),
    };
    return cmocka_run_group_tests(tests, directory_create, directory_remove);
}
