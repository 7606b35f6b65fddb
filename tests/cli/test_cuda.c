/* The program on a CUDA device, which is a fake one here: the second program is linked with it. */

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <json-c/json.h>
#include <stdlib.h>

#include "runtime/base/bytes.h"
#include "tests/cli/run_program.h"

static const char *program, *program_with_device;
static struct outcome outcome;
static char directory[64];

static int directory_create(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    (void)snprintf(directory, sizeof directory, "%.40s/kvt-cuda-XXXXXX", base && strlen(base) < 40 ? base : "/tmp");
    return mkdtemp(directory) ? 0 : -1;
}

static int directory_remove(void **state)
{
    (void)state;
    char command[80];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

static struct json_object *member(struct json_object *object, const char *name)
{
    struct json_object *found = NULL;
    if (!json_object_object_get_ex(object, name, &found)) fail_msg("no %s", name);
    return found;
}

static int64_t number(struct json_object *root, const char *object, const char *name)
{
    return json_object_get_int64(member(member(root, object), name));
}

/*
 * A run whose blocks go through host memory to the store; every one of them is compared. A second run finds them
 * there. Returns the bytes that came to the device.
 */
static int64_t run_verifies(const char *shape, const char *read)
{
    char store[96];
    (void)snprintf(store, sizeof store, "%s/kv:64MiB", directory);
    const char *const arguments[] = { "run",  "--device", "cuda", "--workload", "chat", "--requests",
                                      "12",   "--shape",  shape,  "--hbm",      "4MiB", "--host",
                                      "6MiB", "--nvme",   store,  "--arrival",  "asap", "--block-tokens",
                                      "64",   "--verify", "full", "--read",     read,   "--seed",
                                      "3",    "--json",   NULL };
    assert_true(run_program(program_with_device, arguments, &outcome));
    if (outcome.exit_status != 0) fail_msg("exit status %d: %s", outcome.exit_status, outcome.err);
    struct json_object *root = json_tokener_parse(outcome.out);
    assert_non_null(root);
    assert_string_equal(json_object_get_string(member(root, "device")), "cuda");
    assert_int_equal(number(root, "verify", "mismatches"), 0);
    assert_true(number(root, "verify", "blocks_checked") > 100);
    assert_int_equal(number(root, "requests", "completed"), 12);
    struct json_object *device = json_object_array_get_idx(member(root, "tiers"), 0);
    const int64_t bytes_in = json_object_get_int64(member(device, "bytes_in"));
    assert_true(json_object_get_int64(member(device, "bytes_out")) + bytes_in > 0);
    (void)json_object_put(root);
    return bytes_in;
}

static void a_run_on_the_device_verifies_every_block(void **state)
{
    (void)state;
    static const char shape[] = "layers=2,kv_heads=1,head_dim=32,dtype=bf16";
    (void)run_verifies(shape, "line");
    assert_true(run_verifies(shape, "full") > 100000);
}

static void a_run_with_windows_and_states_verifies_too(void **state)
{
    (void)state;
    static const char shape[] = "layers=2,kv_heads=1,head_dim=32,dtype=fp16+layers=1,kv_heads=1,head_dim=64,dtype=bf16,"
                                "window=128+layers=2,kind=state,state_bytes=3000";
    (void)run_verifies(shape, "line");
    assert_true(run_verifies(shape, "line") > 10000);
}

static void a_run_that_asks_for_no_device_gets_the_one_that_is_there(void **state)
{
    (void)state;
    const char *const arguments[] = {
        "run",       "--workload", "chat",   "--requests", "2", "--shape", "layers=2,kv_heads=1,head_dim=32,dtype=bf16",
        "--arrival", "asap",       "--json", NULL
    };
    assert_true(run_program(program_with_device, arguments, &outcome));
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "\"cuda\""));
}

static void a_device_that_is_not_there_is_refused_in_one_line(void **state)
{
    (void)state;
    const char *const arguments[] = { "run", "--workload", "chat", "--requests", "2", "--device", "cuda", NULL };
    assert_true(run_program(program, arguments, &outcome));
    if (outcome.exit_status == 0) skip(); /* it is */
    assert_int_equal(outcome.exit_status, 2);
    assert_int_equal(count_lines(outcome.err), 1);
    assert_non_null(strstr(outcome.err, "--device"));
    assert_non_null(strstr(outcome.err, "none was found"));
    assert_string_equal(outcome.out, "");
}

static void doctor_opens_the_device_and_pins_memory_for_a_try(void **state)
{
    (void)state;
    assert_true(run_program(program_with_device, (const char *const[]){ "doctor", "--json", directory, NULL }, &outcome));
    assert_int_equal(outcome.exit_status, 0);
    struct json_object *root = json_tokener_parse(outcome.out);
    struct json_object *checks = member(root, "checks");
    uint32_t found = 0;
    for (size_t i = 0; i < json_object_array_length(checks); i++) {
        struct json_object *check = json_object_array_get_idx(checks, i);
        const char *name = json_object_get_string(member(check, "name"));
        if (strcmp(name, "GPU") != 0 && strcmp(name, "pinned memory") != 0) continue;
        assert_true(json_object_get_boolean(member(check, "ok")));
        found++;
    }
    assert_int_equal(found, 2);
    (void)json_object_put(root);
}

int main(int argc, char **argv)
{
    if (argc != 3) return 1;
    program = argv[1];
    program_with_device = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_on_the_device_verifies_every_block),
        cmocka_unit_test(a_run_with_windows_and_states_verifies_too),
        cmocka_unit_test(a_run_that_asks_for_no_device_gets_the_one_that_is_there),
        cmocka_unit_test(a_device_that_is_not_there_is_refused_in_one_line),
        cmocka_unit_test(doctor_opens_the_device_and_pins_memory_for_a_try),
    };
    return cmocka_run_group_tests(tests, directory_create, directory_remove);
}
