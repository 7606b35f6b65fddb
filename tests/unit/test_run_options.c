/* The command line of the main job: what it takes, and the one line by which it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/run/options.h"

enum { ARGS_MAX = 24, LINE_BYTES = 1024 };

/* Parses "a b c"; what it prints to stderr lands in line. */
static int parse(const char *text, struct kvt_run_options *ret_options, char line[LINE_BYTES])
{
    static char words[LINE_BYTES];
    char *argv[ARGS_MAX + 1] = { (char[]){ "kvtier run" } };
    int argc = 1;
    (void)snprintf(words, sizeof words, "%s", text);
    char *rest = words;
    for (char *word = strsep(&rest, " "); word && argc < ARGS_MAX; word = strsep(&rest, " ")) {
        if (*word) argv[argc++] = word;
    }

    int ends[2];
    assert_int_equal(pipe(ends), 0);
    (void)fflush(stderr);
    const int saved = dup(STDERR_FILENO);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    const int status = kvt_run_options_parse(argc, argv, ret_options);
    (void)fflush(stderr);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    (void)close(ends[1]);
    ssize_t n = read(ends[0], line, LINE_BYTES - 1);
    (void)close(ends[0]);
    line[n > 0 ? n : 0] = '\0';
    return status;
}

/* Goal: each wrong value is refused with status 2 and one line that names the option. */
static void a_wrong_value_gets_one_line_that_names_it(void **state)
{
    (void)state;
    static const struct {
        const char *text, *named;
    } wrong[] = {
        { "", "--trace" },
        { "--trace a --workload chat", "--trace" },
        { "--workload chat surplus", "surplus" },
        { "--workload chat --frobnicate", "--frobnicate" },
        { "--workload chat --requests 0", "--requests" },
        { "--workload chat --requests -3", "--requests" },
        { "--workload chat --requests many", "--requests" },
        { "--workload chat --requests 99999999999999999999", "--requests" },
        { "--workload chat --hbm 0MiB", "--hbm" },
        { "--workload chat --hbm -1GiB", "--hbm" },
        { "--workload chat --hbm 64", "--hbm" },
        { "--workload chat --hbm 99999999999GiB", "--hbm" },
        { "--workload chat --host 1GB2", "--host" },
        { "--workload chat --nvme /tmp/x", "--nvme" },
        { "--workload chat --nvme :1GiB", "--nvme" },
        { "--workload chat --nvme /tmp/x:", "--nvme" },
        { "--workload chat --nvme /tmp/x:12", "--nvme" },
        { "--workload chat --nvme /tmp/x:0GiB", "--nvme" },
        { "--workload chat --device abacus", "--device" },
        { "--workload chat --prefetch xyz", "--prefetch is 'xyz': one of lookahead, demand, off, session" },
        { "--workload chat --expect some", "--expect is 'some': one of all, arrived" },
        { "--workload chat --arrival late", "--arrival" },
        { "--workload chat --arrival trace --speed 0", "--speed" },
        { "--workload chat --speed 2", "--speed" },
        { "--workload chat --admission all", "--admission needs --nvme" },
        { "--workload chat --link-nvme 1", "--link-nvme needs --nvme" },
        { "--workload chat --nvme-writes-per-day 1GiB", "--nvme-writes-per-day needs --nvme" },
        { "--trace t --context-tokens 100", "--context-tokens is for --workload only" },
        { "--trace t --arrival sequential --think-ms 5", "--think-ms means nothing with --arrival sequential" },
        { "--workload chat --verify hope", "--verify" },
        { "--workload chat --read minds", "--read" },
        { "--workload chat --link-hbm 0", "--link-hbm" },
        { "--workload chat --link-nvme fast", "--link-nvme" },
        { "--workload chat --step-ms -1", "--step-ms" },
        { "--workload chat --batch 0", "--batch" },
        { "--workload chat --prefill-chunk 0", "--prefill-chunk" },
        { "--workload chat --think-ms x", "--think-ms" },
        { "--workload chat --seed -1", "--seed" },
        { "--workload chat --block-tokens 0", "--block-tokens" },
        { "--workload chat --block-tokens 70000", "--block-tokens" },
        { "--workload chat --model gpt-9", "--model is 'gpt-9': one of" },
        { "--workload chat --shape layers=0,kv_heads=1,head_dim=64,dtype=bf16", "--shape" },
        { "--workload chat --shape layers=1", "--shape" },
        { "--workload chat --model llama-3-8b --shape layers=1,kv_heads=1,head_dim=64,dtype=bf16", "--model" },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        struct kvt_run_options options;
        char line[LINE_BYTES];
        assert_int_equal(parse(wrong[i].text, &options, line), KVT_EXIT_USAGE);
        if (!strstr(line, wrong[i].named)) fail_msg("'%s' is refused by '%s'", wrong[i].text, line);
        assert_memory_equal(line, "kvtier run: ", 12);
        assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
    }
}

/* Goal: a workload's name alone is enough, and says what the help says. */
static void a_workload_alone_is_enough(void **state)
{
    (void)state;
    struct kvt_run_options options;
    char line[LINE_BYTES];
    assert_int_equal(parse("--workload chat", &options, line), KVT_EXIT_OK);
    assert_string_equal(line, "");
    assert_string_equal(options.workload.generator, "chat");
    assert_int_equal(options.workload.block_tokens, 16);
    assert_true(options.workload.think_ns == UINT64_MAX);
    assert_int_equal(options.hbm_bytes, 64 * KVT_MIB);
    assert_int_equal(options.host_bytes, 256 * KVT_MIB);
    assert_string_equal(options.nvme_path, "");
    assert_int_equal(options.arrival, KVT_ARRIVAL_ASAP);
    assert_int_equal(options.prefetch, KVT_PREFETCH_LOOKAHEAD);
    assert_false(options.is_expecting_arrived);
    assert_int_equal(options.verify, KVT_VERIFY_FULL);
    assert_int_equal(options.read, KVT_READ_LINE);
    assert_int_equal(options.batch, 16);
    assert_int_equal(options.prefill_chunk, 2048);
}

/* Goal: everything that can be said reaches its field. */
static void every_option_reaches_its_field(void **state)
{
    (void)state;
    struct kvt_run_options options;
    char line[LINE_BYTES];
    assert_int_equal(parse("--trace t.jsonl --requests 500 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm "
                           "48MiB --host 32MiB "
                           "--nvme /a:b/c:6GiB --nvme-writes-per-day 2GiB --arrival trace --speed 200",
                           &options, line),
                     KVT_EXIT_OK);
    assert_string_equal(options.workload.trace, "t.jsonl");
    assert_int_equal(options.workload.requests_max, 500);
    assert_int_equal(options.workload.block_tokens, 512);
    assert_int_equal(options.model.shape.block_tokens, 512);
    assert_int_equal(options.hbm_bytes, 48 * KVT_MIB);
    assert_int_equal(options.host_bytes, 32 * KVT_MIB);
    assert_string_equal(options.nvme_path, "/a:b/c");
    assert_int_equal(options.nvme_bytes, 6 * KVT_GIB);
    assert_int_equal(options.nvme_bytes_per_day, 2 * KVT_GIB);
    assert_int_equal(options.arrival, KVT_ARRIVAL_TRACE);
    assert_true(options.speed == 200);

    assert_int_equal(
        parse("--workload agent --model llama-3-8b --block-tokens 32 --device emulated --policy lru --prefetch off "
              "--verify off --read full --link-hbm 2.5 --link-nvme 0.5 --nvme /a:6GiB",
              &options, line),
        KVT_EXIT_OK);
    assert_int_equal(options.model.shape.groups[0].layers, 32);
    assert_int_equal(options.model.shape.block_tokens, 32);
    assert_int_equal(options.device, KVT_DEVICE_EMULATED);
    assert_string_equal(options.policy, "lru");
    assert_int_equal(options.prefetch, KVT_PREFETCH_OFF);
    assert_int_equal(options.verify, KVT_VERIFY_OFF);
    assert_int_equal(options.read, KVT_READ_FULL);
    assert_int_equal(options.link_hbm_bytes_per_s, 2500000000u);
    assert_int_equal(options.link_nvme_bytes_per_s, 500000000u);

    assert_int_equal(parse("--workload chat --prefetch session --expect arrived", &options, line), KVT_EXIT_OK);
    assert_int_equal(options.prefetch, KVT_PREFETCH_SESSION);
    assert_int_equal(kvt_run_options_config(&options).prefetch, KVT_PREFETCH_SESSION);
    assert_true(options.is_expecting_arrived);

    assert_int_equal(parse("--workload chat --step-ms 2.5 --batch 3 --prefill-chunk 77 --think-ms 40 --seed 9 --json",
                           &options, line),
                     KVT_EXIT_OK);
    assert_int_equal(options.step_ns, 2500000);
    assert_int_equal(options.batch, 3);
    assert_int_equal(options.prefill_chunk, 77);
    assert_int_equal(options.pause_ns, 40000000);
    assert_int_equal(options.workload.think_ns, 40000000);
    assert_int_equal(options.workload.seed, 9);
    assert_true(options.is_json);
}

/* Goal: a field that the runtime refuses is called by the option that set it. */
static void a_field_is_called_by_its_option(void **state)
{
    (void)state;
    assert_string_equal(kvt_run_option_of_field("device_bytes"), "--hbm");
    assert_string_equal(kvt_run_option_of_field("nvme_path"), "--nvme");
    assert_string_equal(kvt_run_option_of_field("device_policy"), "--policy");
    assert_null(kvt_run_option_of_field("nonsense"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_value_gets_one_line_that_names_it),
        cmocka_unit_test(a_workload_alone_is_enough),
        cmocka_unit_test(every_option_reaches_its_field),
        cmocka_unit_test(a_field_is_called_by_its_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
