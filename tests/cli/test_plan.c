/* plan, from outside: its JSON to the byte, and that what it does not understand is one line and exit status 2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "tests/cli/run_program.h"

static const char *program;
static struct outcome outcome;

static void run(const char *const *arguments) { assert_true(run_program(program, arguments, &outcome)); }

#define RUN(...) run((const char *const[]){ __VA_ARGS__, NULL })

static void the_json_of_llama_3_70b_is_exact(void **state)
{
    (void)state;
    RUN("plan", "--model", "llama-3-70b", "--context", "4096", "--batch", "32", "--json");
    assert_int_equal(outcome.exit_status, 0);
    assert_string_equal(outcome.err, "");
    assert_string_equal(outcome.out,
                        "{\n"
                        "  \"model\": \"llama-3-70b\",\n"
                        "  \"context\": 4096,\n"
                        "  \"batch\": 32,\n"
                        "  \"block_tokens\": 16,\n"
                        "  \"bytes_per_token\": 327680,\n"
                        "  \"bytes_per_sequence\": 1342177280,\n"
                        "  \"total_bytes\": 42949672960,\n"
                        "  \"sequences_that_fit\": {\n"
                        "  },\n"
                        "  \"expected_ratio\": 1.40,\n"
                        "  \"groups\": [\n"
                        "    {\n"
                        "      \"kind\": \"full\",\n"
                        "      \"layers\": 80,\n"
                        "      \"window\": null,\n"
                        "      \"dtype\": \"bf16\",\n"
                        "      \"bytes_per_token\": 327680,\n"
                        "      \"bytes_per_sequence\": 1342177280\n"
                        "    }\n"
                        "  ],\n"
                        "  \"bytes_per_sequence_ignoring_windows\": 1342177280,\n"
                        "  \"bytes_per_sequence_in_blocks\": 1342177280,\n"
                        "  \"attention_heads\": 64,\n"
                        "  \"attention_matrix_bytes\": 2147483648\n"
                        "}\n");
}

static void the_json_of_gemma_3_27b_counts_its_windows(void **state)
{
    (void)state;
    RUN("plan", "--model=gemma-3-27b", "--context=32768", "--hbm=64GiB", "--host=256GiB", "--nvme=1TiB", "--json");
    assert_int_equal(outcome.exit_status, 0);
    assert_string_equal(outcome.err, "");
    assert_string_equal(outcome.out,
                        "{\n"
                        "  \"model\": \"gemma-3-27b\",\n"
                        "  \"context\": 32768,\n"
                        "  \"batch\": 1,\n"
                        "  \"block_tokens\": 16,\n"
                        "  \"bytes_per_token\": 507904,\n"
                        "  \"bytes_per_sequence\": 3120562176,\n"
                        "  \"total_bytes\": 3120562176,\n"
                        "  \"sequences_that_fit\": {\n"
                        "    \"hbm\": 22,\n"
                        "    \"host\": 88,\n"
                        "    \"nvme\": 352,\n"
                        "    \"host_packed\": 123,\n"
                        "    \"nvme_packed\": 493\n"
                        "  },\n"
                        "  \"expected_ratio\": 1.40,\n"
                        "  \"groups\": [\n"
                        "    {\n"
                        "      \"kind\": \"full\",\n"
                        "      \"layers\": 10,\n"
                        "      \"window\": null,\n"
                        "      \"dtype\": \"bf16\",\n"
                        "      \"bytes_per_token\": 81920,\n"
                        "      \"bytes_per_sequence\": 2684354560\n"
                        "    },\n"
                        "    {\n"
                        "      \"kind\": \"window\",\n"
                        "      \"layers\": 52,\n"
                        "      \"window\": 1024,\n"
                        "      \"dtype\": \"bf16\",\n"
                        "      \"bytes_per_token\": 425984,\n"
                        "      \"bytes_per_sequence\": 436207616\n"
                        "    }\n"
                        "  ],\n"
                        "  \"bytes_per_sequence_ignoring_windows\": 16642998272,\n"
                        "  \"bytes_per_sequence_in_blocks\": 3120562176,\n"
                        "  \"attention_heads\": 32,\n"
                        "  \"attention_matrix_bytes\": 68719476736\n"
                        "}\n");
}

static void people_get_a_table_that_says_what_grows_how(void **state)
{
    (void)state;
    RUN("plan", "--model", "gemma-3-27b", "--context", "32768", "--hbm", "64GiB");
    assert_int_equal(outcome.exit_status, 0);
    assert_string_equal(outcome.err, "");
    assert_non_null(strstr(outcome.out, "436,207,616"));
    assert_non_null(strstr(outcome.out, "16,642,998,272  B  15.5 GiB"));
    assert_non_null(strstr(outcome.out, "KV grows linearly"));
    assert_null(strstr(outcome.out, "\033")); /* no terminal, no colours */
}

static void a_dtype_halves_what_a_sequence_takes(void **state)
{
    (void)state;
    RUN("plan", "--model", "llama-3-70b", "--context", "4096", "--dtype", "fp8", "--json");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "\"bytes_per_token\": 163840,"));
    assert_non_null(strstr(outcome.out, "\"attention_matrix_bytes\": 2147483648")); /* in the model's own dtype */
}

static void sequences_fit_in_whole_blocks(void **state)
{
    (void)state;
    RUN("plan", "--shape", "layers=1,kv_heads=1,head_dim=64,dtype=bf16", "--context", "17", "--hbm", "12KiB", "--json");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "\"bytes_per_sequence\": 4352,")); /* 17 * 256 */
    assert_non_null(strstr(outcome.out, "\"bytes_per_sequence_in_blocks\": 8192,"));
    assert_non_null(strstr(outcome.out, "\"hbm\": 1\n"));
}

static void help_and_version_are_no_errors(void **state)
{
    (void)state;
    RUN("--help");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "\n  plan "));
    RUN("plan", "--help");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "Usage: kvtier plan [OPTION...]"));
    assert_string_equal(outcome.err, "");
    RUN("--version");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(count_lines(outcome.out), 1);
}

#define LLAMA "--model=llama-3-8b"
#define RULE_OF_SIZES "a size is a whole number and a unit, as in 64MiB"

static void what_is_not_understood_is_one_line_and_exit_status_2(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[8], *line;
    } cases[] = {
        { { NULL }, "kvtier: no command: kvtier --help lists them" },
        { { "" }, "kvtier: '': no such command: kvtier --help lists them" },
        { { "plann" }, "kvtier: 'plann': no such command: kvtier --help lists them" },
        { { "--nope" }, "kvtier: '--nope': no such command: kvtier --help lists them" },
        { { "plan" }, "kvtier plan: one of --model, --config and --shape says which model" },
        { { "plan", LLAMA, "--config", "x" }, "kvtier plan: one of --model, --config and --shape says which model" },
        { { "plan", "--nope" }, "kvtier plan: unrecognized option '--nope'" },
        { { "plan", "-q" }, "kvtier plan: invalid option -- 'q'" },
        { { "plan", "--model" }, "kvtier plan: option '--model' requires an argument" },
        { { "plan", LLAMA, "--json=yes" }, "kvtier plan: option '--json' doesn't allow an argument" },
        { { "plan", LLAMA, "extra" }, "kvtier plan: 'extra': this command takes options only" },
        { { "plan", LLAMA, "--", "extra" }, "kvtier plan: 'extra': this command takes options only" },
        { { "plan", LLAMA, "--context", "0" }, "kvtier plan: --context is '0': a whole number, 1 to 1099511627776" },
        { { "plan", LLAMA, "--context", "4k" }, "kvtier plan: --context is '4k': a whole number, 1 to 1099511627776" },
        { { "plan", LLAMA, "--batch", "-1" },
          "kvtier plan: --batch is '-1': a whole number, 1 to 18446744073709551615" },
        { { "plan", LLAMA, "--block-tokens", "65536" },
          "kvtier plan: --block-tokens is '65536': a whole number, 1 to 65535" },
        { { "plan", LLAMA, "--block-tokens", "65535" },
          "kvtier plan: --block-tokens is '65535': block bytes is 8589803520: at most 1 GiB a block" },
        { { "plan", LLAMA, "--dtype", "int4" }, "kvtier plan: --dtype is 'int4': bf16, fp16, fp8, fp32 or int8" },
        { { "plan", LLAMA, "--hbm", "12" }, "kvtier plan: --hbm is '12': a size needs a unit, as in 64MiB" },
        { { "plan", LLAMA, "--host", "0MiB" }, "kvtier plan: --host is '0MiB': a size is at least 1 byte" },
        { { "plan", LLAMA, "--nvme", "-4GiB" }, "kvtier plan: --nvme is '-4GiB': " RULE_OF_SIZES },
        { { "plan", LLAMA, "--nvme", "99999999999TiB" },
          "kvtier plan: --nvme is '99999999999TiB': a size fits in 64 bits" },
        { { "plan", LLAMA, "--hbm", "a\nb\033[31m" }, "kvtier plan: --hbm is 'a?b?[31m': " RULE_OF_SIZES },
        { { "plan", LLAMA, "--batch", "18446744073709551615" },
          "kvtier plan: --context is '8192' and --batch is '18446744073709551615': the bytes must fit in 64 bits" },
        { { "plan", LLAMA, "--context", "1099511627776" },
          "kvtier plan: --context is '1099511627776' and --batch is '1': the bytes must fit in 64 bits" },
        { { "plan", "--model", "gpt-5" },
          "kvtier plan: --model is 'gpt-5': one of llama-3-8b, llama-3-70b, qwen2.5-7b, qwen2.5-72b, "
          "gemma-3-270m, gemma-3-27b, gpt-oss-20b, qwen3-next-80b, deepseek-v3" },
        { { "plan", "--shape", "layers=0" },
          "kvtier plan: --shape is 'layers=0': layers is '0': a whole number, 1 to 4294967295" },
        { { "plan", "--config", "/nonexistent" },
          "kvtier plan: --config is '/nonexistent': cannot be read: No such file or directory" },
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        char line[512];
        run(cases[i].arguments);
        (void)snprintf(line, sizeof line, "%s\n", cases[i].line);
        assert_string_equal(outcome.err, line);
        assert_string_equal(outcome.out, "");
        assert_int_equal(outcome.exit_status, 2);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) return 1;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_json_of_llama_3_70b_is_exact),
        cmocka_unit_test(the_json_of_gemma_3_27b_counts_its_windows),
        cmocka_unit_test(people_get_a_table_that_says_what_grows_how),
        cmocka_unit_test(a_dtype_halves_what_a_sequence_takes),
        cmocka_unit_test(sequences_fit_in_whole_blocks),
        cmocka_unit_test(help_and_version_are_no_errors),
        cmocka_unit_test(what_is_not_understood_is_one_line_and_exit_status_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
