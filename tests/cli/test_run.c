/* run, from outside: whole runs verify, bad input is one line and exit status 2, a signal ends it with its report. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <ftw.h>
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime/base/bytes.h"
#include "tests/cli/run_program.h"

#define PATH_BYTES 256
#define SMALL_SHAPE "layers=2,kv_heads=1,head_dim=64,dtype=bf16"

static const char *program;
static struct outcome outcome;
static char root[PATH_BYTES];      /* a directory of this test's own */
static char store[PATH_BYTES];     /* root/kv, made by the program */
static char nvme[PATH_BYTES + 16]; /* store with a size: the option's value */
static char recorded[PATH_BYTES];  /* root/recorded.jsonl */

static void run(const char *const *arguments) { assert_true(run_program(program, arguments, &outcome)); }

#define RUN(...) run((const char *const[]){ "run", __VA_ARGS__, NULL })

/* ---- A directory for each test ----------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *entry, int kind, struct FTW *walk)
{
    (void)entry, (void)kind, (void)walk;
    return remove(path);
}

static int enter(void **state)
{
    (void)state;
    const char *parent = getenv("TMPDIR");
    (void)snprintf(root, sizeof root, "%.200s/kvtier-run-XXXXXX", parent ? parent : "/tmp");
    if (!mkdtemp(root)) return -1;
    (void)snprintf(store, sizeof store, "%.240s/kv", root);
    (void)snprintf(nvme, sizeof nvme, "%s:64MiB", store);
    (void)snprintf(recorded, sizeof recorded, "%.220s/recorded.jsonl", root);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- What a report says ------------------------------------------------------------------------------------------ */

static struct json_object *report(void)
{
    struct json_object *root_object = json_tokener_parse(outcome.out);
    if (!root_object) fail_msg("no JSON on stdout, but: %s%s", outcome.out, outcome.err);
    return root_object;
}

static struct json_object *field(struct json_object *object, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(object, name, &value)) fail_msg("the report has no '%s'", name);
    return value;
}

static uint64_t number(struct json_object *object, const char *section, const char *name)
{
    return json_object_get_uint64(field(field(object, section), name));
}

/* Every request completed, nothing differed, no tier was above its limit. Returns tokens.reused. */
static uint64_t assert_whole(void)
{
    if (outcome.exit_status != 0) fail_msg("exit status %d: %s", outcome.exit_status, outcome.err);
    struct json_object *object = report();
    assert_int_equal(number(object, "requests", "completed"), number(object, "requests", "total"));
    assert_int_equal(number(object, "requests", "failed"), 0);
    assert_int_equal(number(object, "verify", "mismatches"), 0);
    assert_true(number(object, "verify", "blocks_checked") > 0);
    struct json_object *tiers = field(object, "tiers");
    for (size_t i = 0; i < json_object_array_length(tiers); i++) {
        struct json_object *tier = json_object_array_get_idx(tiers, i);
        assert_true(json_object_get_uint64(field(tier, "peak_bytes"))
                    <= json_object_get_uint64(field(tier, "capacity_bytes")));
    }
    const uint64_t reused = number(object, "tokens", "reused");
    (void)json_object_put(object);
    return reused;
}

/* ---- Whole runs -------------------------------------------------------------------------------------------------- */

/* Goal: each generated workload passes all three tiers, and every byte is right. */
static void every_workload_verifies_through_all_tiers(void **state)
{
    (void)state;
    static const char *const names[] = { "chat", "agent", "longdoc", "batch" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
        RUN("--workload", names[i], "--requests", "16", "--shape", SMALL_SHAPE, "--hbm", "16MiB", "--host", "12MiB",
            "--nvme", nvme, "--batch", "6", "--json");
        (void)assert_whole();
        assert_int_equal(leave(NULL), 0);
        assert_int_equal(mkdir(root, 0700), 0);
    }
}

/* Goal: models with windows and states verify too, and so do runs without a store and without host memory. */
static void every_kind_of_group_and_every_set_of_tiers_verifies(void **state)
{
    (void)state;
    static const char *const shapes[] = {
        SMALL_SHAPE "+layers=1,kv_heads=1,head_dim=64,dtype=bf16,window=256",
        "layers=1,kv_heads=1,head_dim=64,dtype=fp16+layers=2,state_bytes=4096,dtype=fp32",
        "layers=1,kv_heads=1,head_dim=64,dtype=fp8+layers=1,kv_heads=1,head_dim=32,dtype=bf16,window=100+layers=1,"
        "state_bytes=2048,dtype=bf16",
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(shapes); i++) {
        RUN("--workload", "chat", "--requests", "10", "--shape", shapes[i], "--hbm", "16MiB", "--host", "16MiB",
            "--nvme", nvme, "--json");
        (void)assert_whole();
    }
    RUN("--workload", "chat", "--requests", "10", "--shape", SMALL_SHAPE, "--hbm", "16MiB", "--host", "16MiB",
        "--json");
    (void)assert_whole();
}

/* Goal: what is durable is reused by a second run; a store of another shape is all misses, and no error. */
static void a_second_run_reuses_what_the_first_one_stored(void **state)
{
    (void)state;
    RUN("--workload", "batch", "--requests", "12", "--shape", SMALL_SHAPE, "--hbm", "8MiB", "--host", "8MiB", "--nvme",
        nvme, "--arrival", "sequential", "--json");
    const uint64_t first = assert_whole();
    RUN("--workload", "batch", "--requests", "12", "--shape", SMALL_SHAPE, "--hbm", "8MiB", "--host", "8MiB", "--nvme",
        nvme, "--arrival", "sequential", "--json");
    assert_true(assert_whole() > first);
    RUN("--workload", "batch", "--requests", "12", "--shape", "layers=2,kv_heads=1,head_dim=64,dtype=fp16", "--hbm",
        "8MiB", "--host", "8MiB", "--nvme", nvme, "--arrival", "sequential", "--json");
    assert_int_equal(assert_whole(), first);
}

/* Goal: requests larger than the device fail by name and size, and the others complete. */
static void a_request_larger_than_the_device_is_refused_by_name(void **state)
{
    (void)state;
    char trace[PATH_BYTES + 16];
    (void)snprintf(trace, sizeof trace, "%s/trace.jsonl", root);
    FILE *file = fopen(trace, "w");
    assert_non_null(file);
    (void)fputs("{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n"
                "{\"timestamp\":1,\"input_length\":5120,\"output_length\":5,\"hash_ids\":[1,2,3,4,5,6,7,8,9,10]}\n"
                "{\"timestamp\":2,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,3]}\n",
                file);
    assert_int_equal(fclose(file), 0);
    RUN("--trace", trace, "--shape", SMALL_SHAPE, "--hbm", "1MiB", "--host", "8MiB", "--json");
    assert_int_equal(outcome.exit_status, 1);
    assert_int_equal(count_lines(outcome.err), 1);
    assert_non_null(strstr(outcome.err, "request 1: 5125 tokens"));
    struct json_object *object = report();
    assert_int_equal(number(object, "requests", "completed"), 2);
    assert_int_equal(number(object, "requests", "failed"), 1);
    assert_int_equal(number(object, "verify", "mismatches"), 0);
    (void)json_object_put(object);
}

/* Everything streamed is exact, its attention is that over everything at once, and it did exceed the device. */
static void assert_streamed(uint64_t device_bytes)
{
    (void)assert_whole();
    struct json_object *object = report();
    assert_true(number(object, "stream", "requests") > 0);
    assert_true(number(object, "stream", "bytes_max") > 2 * device_bytes);
    assert_true(number(object, "stream", "chunks_verified") > 0);
    const double stalled = json_object_get_double(field(field(object, "steps"), "stall_seconds"));
    assert_int_equal(number(object, "steps", "stalled") > 0, stalled > 0); /* a stall is some step's */
    assert_true(number(object, "stream", "results_compared") > 0);
    const double error = json_object_get_double(field(field(object, "stream"), "error_max"));
    assert_true(error > 0 && error < 1e-3);
    (void)json_object_put(object);
}

/* Goal: a context of several times the device passes through it, out of host memory and out of nvme. */
static void a_context_larger_than_the_device_is_streamed_when_asked(void **state)
{
    (void)state;
    RUN("--workload", "longdoc", "--requests", "2", "--context-tokens", "6000", "--shape", SMALL_SHAPE, "--hbm",
        "512KiB", "--host", "16MiB", "--stream", "--json");
    assert_streamed(512 * KVT_KIB);
    RUN("--workload", "longdoc", "--requests", "1", "--context-tokens", "16000", "--shape",
        SMALL_SHAPE "+layers=1,kv_heads=2,head_dim=32,dtype=fp16,window=200,sinks=4", "--hbm", "768KiB", "--host",
        "3MiB", "--nvme", nvme, "--stream", "--json");
    assert_streamed(768 * KVT_KIB);
}

/* Goal: a run that streamed all it had says nothing of slots that no sequence held; one that did not says it. */
static void a_streamed_run_says_nothing_that_it_has_no_figure_for(void **state)
{
    (void)state;
#define DOCUMENT "--workload", "longdoc", "--requests", "1", "--context-tokens", "3000", "--shape", SMALL_SHAPE, "--host", "16MiB"
    RUN(DOCUMENT, "--hbm", "512KiB", "--stream");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "  streamed    1 requests"));
    assert_null(strstr(outcome.out, "of the allocated device KV"));
    assert_null(strstr(outcome.out, "sequences fit in this HBM"));
    RUN(DOCUMENT, "--hbm", "512KiB", "--stream", "--json");
    struct json_object *object = report(), *memory = field(object, "memory"), *baseline, *value;
    assert_false(json_object_object_get_ex(memory, "used_over_allocated", &value));
    assert_true(json_object_object_get_ex(memory, "contiguous_baseline", &baseline));
    assert_false(json_object_object_get_ex(baseline, "sequences_paged", &value));
    (void)json_object_put(object);

    RUN(DOCUMENT, "--hbm", "16MiB", "--stream");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "of the allocated device KV"));
    assert_non_null(strstr(outcome.out, "sequences fit in this HBM"));
    RUN(DOCUMENT, "--hbm", "16MiB", "--stream", "--json");
    object = report();
    assert_true(json_object_get_double(field(field(object, "memory"), "used_over_allocated")) > 0);
    assert_true(json_object_get_uint64(field(field(field(object, "memory"), "contiguous_baseline"), "sequences_paged")) > 0);
    (void)json_object_put(object);
}

/* Goal: turns that could not run because an earlier one had failed are told apart from those that failed themselves. */
static void turns_that_failed_with_their_session_are_counted(void **state)
{
    (void)state;
#define SESSIONS "--workload", "chat", "--requests", "16", "--context-tokens", "3000", "--shape", SMALL_SHAPE, "--hbm", "512KiB"
    RUN(SESSIONS, "--json");
    assert_int_equal(outcome.exit_status, 1);
    struct json_object *object = report();
    const uint64_t failed = number(object, "requests", "failed");
    const uint64_t after = number(object, "requests", "failed_after_earlier_turn");
    assert_true(after > 0);
    assert_int_equal(count_lines(outcome.err), failed - after);
    (void)json_object_put(object);
    char line[128];
    (void)snprintf(line, sizeof line, "  %u of them failed because an earlier turn of their session had failed\n",
                   (unsigned)after);
    RUN(SESSIONS);
    assert_int_equal(outcome.exit_status, 1);
    assert_non_null(strstr(outcome.out, line));
}

/* Goal: sessions that outgrow the device go on streamed, and what fits runs as ever beside them. */
static void sessions_that_outgrow_the_device_go_on_streamed(void **state)
{
    (void)state;
    RUN("--workload", "chat", "--requests", "8", "--context-tokens", "3000", "--shape", SMALL_SHAPE, "--hbm", "512KiB",
        "--host", "16MiB", "--stream", "--json");
    (void)assert_whole();
    struct json_object *object = report();
    const uint64_t streamed = number(object, "stream", "requests");
    assert_true(streamed > 0 && streamed < 8);
    (void)json_object_put(object);
}

/* Goal: a window and a tail do not fit one block: that is said, and not waited for. */
static void a_streamed_context_that_no_tier_has_room_for_is_said_to_be_too_large(void **state)
{
    (void)state;
    RUN("--workload", "longdoc", "--requests", "1", "--seed", "1", "--shape", "layers=4,kv_heads=2,head_dim=64,dtype=bf16",
        "--hbm", "2MiB", "--host", "2MiB", "--stream");
    assert_int_equal(outcome.exit_status, 1);
    assert_non_null(strstr(outcome.err, "request 0: HBM, host memory and NVMe together are full with its first "));
    assert_non_null(strstr(outcome.err, "it takes a larger --host, or --nvme"));
}

static void a_device_of_one_block_is_told_to_be_too_small_to_stream(void **state)
{
    (void)state;
    RUN("--workload", "longdoc", "--requests", "1", "--context-tokens", "400", "--shape",
        "layers=8,kv_heads=2,head_dim=64,dtype=bf16", "--hbm", "64KiB", "--host", "16MiB", "--stream");
    assert_int_equal(outcome.exit_status, 1);
    assert_non_null(strstr(outcome.err, "--hbm holds too few blocks"));
}

/* Goal: people get a table that says the same. */
static void people_get_a_table(void **state)
{
    (void)state;
    RUN("--workload", "chat", "--requests", "4", "--shape", SMALL_SHAPE);
    assert_int_equal(outcome.exit_status, 0);
    assert_string_equal(outcome.err, "");
    assert_non_null(strstr(outcome.out, "4 of 4 completed"));
    assert_non_null(strstr(outcome.out, " 0 mismatches"));
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void assert_refused(const char *named)
{
    if (outcome.exit_status != 2) fail_msg("exit status %d for %s: %s", outcome.exit_status, named, outcome.err);
    assert_string_equal(outcome.out, "");
    assert_int_equal(count_lines(outcome.err), 1);
    if (!strstr(outcome.err, named)) fail_msg("'%s' is not named by: %s", named, outcome.err);
    assert_int_equal(access(store, F_OK), -1);
}

/* Goal: what only the runtime or the file system can tell is refused the same way, and nothing is left behind. */
static void bad_input_is_one_line_and_leaves_nothing_behind(void **state)
{
    (void)state;
    char other[PATH_BYTES + 32];
    RUN("--workload", "chat", "--hbm", "4KiB", "--nvme", nvme);
    assert_refused("--hbm");
    RUN("--workload", "chat", "--host", "4KiB", "--nvme", nvme);
    assert_refused("--host");
    RUN("--workload", "chat", "--policy", "wishful", "--nvme", nvme);
    assert_refused("--policy");
    RUN("--workload", "chat", "--host-policy", "wishful", "--nvme", nvme);
    assert_refused("--host-policy");
    RUN("--workload", "chat", "--admission", "wishful", "--nvme", nvme);
    assert_refused("--admission");
    RUN("--workload", "poetry", "--nvme", nvme);
    assert_refused("--workload");
    RUN("--workload", "longdoc", "--stream", "--shape", "layers=1,kv_heads=1,head_dim=64,dtype=fp8", "--nvme", nvme);
    assert_refused("--stream");
    RUN("--workload", "longdoc", "--stream", "--shape", SMALL_SHAPE "+layers=1,state_bytes=4096,dtype=fp32", "--nvme",
        nvme);
    assert_refused("--stream");
    RUN("--workload", "longdoc", "--context-tokens", "63", "--nvme", nvme);
    assert_refused("--context-tokens");
    RUN("--trace", "/nonexistent.jsonl", "--nvme", nvme);
    assert_refused("--trace");
    (void)snprintf(other, sizeof other, "%s/missing/kv:64MiB", root);
    RUN("--workload", "chat", "--nvme", other);
    assert_refused("missing");
    (void)snprintf(other, sizeof other, "%s:4KiB", store);
    RUN("--workload", "chat", "--nvme", other);
    assert_refused("--nvme");
    RUN("--workload", "chat", "--nvme", "/proc/kv:64MiB");
    assert_refused("--nvme");
}

/* Goal: an option that would change nothing is refused, with what it needs. */
static void an_option_without_effect_is_refused(void **state)
{
    (void)state;
    char key[PATH_BYTES + 16], trace[PATH_BYTES + 16];
    (void)snprintf(key, sizeof key, "%s/key", root);
    (void)snprintf(trace, sizeof trace, "%s/trace.jsonl", root);
    FILE *file = fopen(key, "w");
    assert_non_null(file);
    (void)fputs("0123456789abcdef0123456789abcdef", file);
    assert_int_equal(fclose(file), 0);
    file = fopen(trace, "w");
    assert_non_null(file);
    (void)fputs("{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n", file);
    assert_int_equal(fclose(file), 0);
    RUN("--workload", "chat", "--admission", "all");
    assert_refused("--admission needs --nvme");
    RUN("--workload", "chat", "--link-nvme", "1");
    assert_refused("--link-nvme needs --nvme");
    RUN("--workload", "chat", "--nvme-writes-per-day", "1GiB");
    assert_refused("--nvme-writes-per-day needs --nvme");
    RUN("--workload", "chat", "--nvme-key-file", key);
    assert_refused("--nvme-key-file needs --nvme");
    RUN("--workload", "chat", "--expect", "arrived", "--prefetch", "off", "--nvme", nvme);
    assert_refused("--expect needs --prefetch lookahead or session");
    RUN("--workload", "chat", "--device", "cuda", "--link-hbm", "1", "--nvme", nvme);
    assert_refused("--link-hbm needs --device emulated");
    RUN("--workload", "batch", "--think-ms", "5", "--nvme", nvme);
    assert_refused("--think-ms needs sessions");
    RUN("--trace", trace, "--think-ms", "5", "--nvme", nvme);
    assert_refused("--think-ms needs sessions");
}

/* Goal: a broken line of a trace is named by its number. */
static void a_broken_line_of_a_trace_is_named(void **state)
{
    (void)state;
    char trace[PATH_BYTES + 16];
    (void)snprintf(trace, sizeof trace, "%s/trace.jsonl", root);
    FILE *file = fopen(trace, "w");
    assert_non_null(file);
    (void)fputs("{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n"
                "{\"timestamp\":1,\"input_length\":5120,\"output_length\":5,\"hash_ids\":[1,2]}\n",
                file);
    assert_int_equal(fclose(file), 0);
    RUN("--trace", trace, "--nvme", nvme);
    assert_refused("trace.jsonl:2");
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

/* Starts the program and sends it the signal once its store is there; returns the nanoseconds from signal to end. */
static uint64_t run_until_signal(const char *const *arguments, int signal_number)
{
    char *argv[ARGUMENTS_MAX] = { (char *)(uintptr_t)program };
    for (uint32_t i = 0; arguments[i] && i < ARGUMENTS_MAX - 2; i++) argv[i + 1] = (char *)(uintptr_t)arguments[i];
    FILE *out = tmpfile(), *err = tmpfile();
    assert_true(out && err);
    posix_spawn_file_actions_t actions;
    pid_t child;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(err), STDERR_FILENO);
    assert_int_equal(posix_spawn(&child, program, &actions, NULL, argv, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);

    /* The store is made after the handlers are. */
    for (int i = 0; i < 2000 && access(store, F_OK) != 0; i++) (void)poll(NULL, 0, 5);
    struct timespec sent, over;
    (void)clock_gettime(CLOCK_MONOTONIC, &sent);
    assert_int_equal(kill(child, signal_number), 0);
    int status = 0;
    (void)waitpid(child, &status, 0);
    (void)clock_gettime(CLOCK_MONOTONIC, &over);
    outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_back(out, outcome.out);
    read_back(err, outcome.err);
    return (uint64_t)((over.tv_sec - sent.tv_sec) * 1000000000 + over.tv_nsec - sent.tv_nsec);
}

static void put_precious(void)
{
    FILE *file = fopen(recorded, "w");
    assert_non_null(file);
    (void)fputs("precious", file);
    assert_int_equal(fclose(file), 0);
}

static bool is_precious(void)
{
    char text[16];
    FILE *file = fopen(recorded, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    return strcmp(text, "precious") == 0;
}

/*
 * Goal: either signal ends the run with its report, the requests that were completed are recorded, and the directory
 * serves the next run.
 */
static void a_signal_ends_the_run_with_its_report(void **state)
{
    (void)state;
    static const int signals[] = { SIGINT, SIGTERM };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(signals); i++) {
        const char *const arguments[] = { "run",      "--workload", "chat",      "--shape", SMALL_SHAPE, "--hbm",
                                          "8MiB",     "--host",     "8MiB",      "--nvme",  nvme,        "--step-ms",
                                          "400",      "--json",     "--record", recorded,  NULL };
        put_precious();
        const uint64_t took_ns = run_until_signal(arguments, signals[i]);
        if (outcome.exit_status != 130) fail_msg("exit status %d: %s", outcome.exit_status, outcome.err);
        struct json_object *object = report();
        assert_true(json_object_get_boolean(field(object, "interrupted")));
        assert_int_equal(number(object, "verify", "mismatches"), 0);
        (void)json_object_put(object);
        assert_false(is_precious());
        /* Ten times what is promised: a loaded machine is no failure, a run that goes on is. */
        assert_true(took_ns < UINT64_C(10000000000));
        RUN("--workload", "chat", "--requests", "4", "--shape", SMALL_SHAPE, "--hbm", "8MiB", "--host", "8MiB",
            "--nvme", nvme, "--json");
        (void)assert_whole();
        assert_int_equal(leave(NULL), 0);
        assert_int_equal(mkdir(root, 0700), 0);
    }
}

/* Goal: a run that is killed has written nothing of its record, and what was there is there. */
static void a_killed_run_leaves_what_was_there(void **state)
{
    (void)state;
    const char *const arguments[] = { "run",  "--workload", "chat", "--shape",   SMALL_SHAPE, "--hbm",    "8MiB",   "--host",
                                      "8MiB", "--nvme",     nvme,   "--step-ms", "400",       "--record", recorded, NULL };
    put_precious();
    (void)run_until_signal(arguments, SIGKILL);
    assert_int_equal(outcome.exit_status, -1);
    assert_true(is_precious());
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_workload_verifies_through_all_tiers, enter, leave),
        cmocka_unit_test_setup_teardown(every_kind_of_group_and_every_set_of_tiers_verifies, enter, leave),
        cmocka_unit_test_setup_teardown(a_second_run_reuses_what_the_first_one_stored, enter, leave),
        cmocka_unit_test_setup_teardown(a_request_larger_than_the_device_is_refused_by_name, enter, leave),
        cmocka_unit_test_setup_teardown(a_context_larger_than_the_device_is_streamed_when_asked, enter, leave),
        cmocka_unit_test_setup_teardown(a_streamed_run_says_nothing_that_it_has_no_figure_for, enter, leave),
        cmocka_unit_test_setup_teardown(turns_that_failed_with_their_session_are_counted, enter, leave),
        cmocka_unit_test_setup_teardown(sessions_that_outgrow_the_device_go_on_streamed, enter, leave),
        cmocka_unit_test_setup_teardown(a_streamed_context_that_no_tier_has_room_for_is_said_to_be_too_large, enter, leave),
        cmocka_unit_test_setup_teardown(a_device_of_one_block_is_told_to_be_too_small_to_stream, enter, leave),
        cmocka_unit_test_setup_teardown(people_get_a_table, enter, leave),
        cmocka_unit_test_setup_teardown(bad_input_is_one_line_and_leaves_nothing_behind, enter, leave),
        cmocka_unit_test_setup_teardown(an_option_without_effect_is_refused, enter, leave),
        cmocka_unit_test_setup_teardown(a_broken_line_of_a_trace_is_named, enter, leave),
        cmocka_unit_test_setup_teardown(a_signal_ends_the_run_with_its_report, enter, leave),
        cmocka_unit_test_setup_teardown(a_killed_run_leaves_what_was_there, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
