/* kvtier sim from outside: what it prints, and how it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <json-c/json.h>

#include "runtime/base/bytes.h"
#include "tests/cli/run_program.h"

enum { PATH_BYTES = 128, WORDS_MAX = 29 };

static const char *program;
static struct outcome outcome;
static char root[PATH_BYTES], trace[PATH_BYTES + 16];

static int enter(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/kvtier_sim_XXXXXX");
    if (!mkdtemp(root)) return -1;
    (void)snprintf(trace, sizeof trace, "%s/trace.jsonl", root);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    (void)unlink(trace);
    return rmdir(root);
}

static void write_trace(const char *text)
{
    FILE *file = fopen(trace, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void write_file(const char *path, const char *text, const char *rest)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file, "%s%s", text, rest);
    assert_int_equal(fclose(file), 0);
}

/* Runs a subcommand with these words; @ stands for the trace. */
static void run_words(const char *command, const char *text)
{
    static char words[1024];
    const char *arguments[WORDS_MAX + 2] = { command };
    uint32_t count = 1;
    char *rest = words;
    (void)snprintf(words, sizeof words, "%s", text);
    for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " ")) {
        assert_true(count < WORDS_MAX);
        if (*word) arguments[count++] = strcmp(word, "@") == 0 ? trace : word;
    }
    assert_true(run_program(program, arguments, &outcome));
}

static void sim(const char *text) { run_words("sim", text); }

static struct json_object *report(void)
{
    if (outcome.exit_status != 0) fail_msg("exit status %d: %s", outcome.exit_status, outcome.err);
    assert_string_equal(outcome.err, "");
    struct json_object *object = json_tokener_parse(outcome.out);
    assert_non_null(object);
    return object;
}

static struct json_object *result_at(struct json_object *object, size_t i)
{
    struct json_object *results;
    assert_true(json_object_object_get_ex(object, "results", &results));
    struct json_object *result = json_object_array_get_idx(results, i);
    assert_non_null(result);
    return result;
}

static int64_t number(struct json_object *object, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(object, name, &value)) fail_msg("%s is missing", name);
    return json_object_get_int64(value);
}

static const char *text(struct json_object *object, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(object, name, &value)) fail_msg("%s is missing", name);
    return json_object_get_string(value);
}

#define THREE_REQUESTS                                                                   \
    "{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n"   \
    "{\"timestamp\":1,\"input_length\":1536,\"output_length\":5,\"hash_ids\":[1,2,3]}\n" \
    "{\"timestamp\":2,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,3]}\n"

/* Goal: the counts of a trace that can be reckoned by hand, in both modes. */
static void three_requests_count_as_reckoned_by_hand(void **state)
{
    (void)state;
    write_trace(THREE_REQUESTS);
    sim("--trace @ --count flat --policies lru,belady --capacities 2,3 --json");
    struct json_object *object = report();
    static const int64_t hits[] = { 3, 4, 4, 4 }; /* lru at 2 and 3; the bound */
    for (size_t i = 0; i < KVT_ARRAY_COUNT(hits); i++) {
        struct json_object *result = result_at(object, i);
        assert_string_equal(text(result, "trace"), trace);
        assert_string_equal(text(result, "policy"), i < 2 ? "lru" : "belady");
        assert_int_equal(number(result, "capacity_blocks"), 2 + (int64_t)i % 2);
        assert_int_equal(number(result, "accesses"), 7);
        assert_int_equal(number(result, "hits"), hits[i]);
        assert_int_equal(number(result, "hit_tokens"), hits[i] * 512);
    }
    (void)json_object_put(object);
    sim("--trace @ --policies lru --capacities 3 --json"); /* tail first: 3, 2, 1; then 1 is a hit and 3 too */
    object = report();
    assert_int_equal(number(result_at(object, 0), "hits"), 4);
    (void)json_object_put(object);
}

/* Goal: a percentage is of the trace's blocks; what never filled is said so; tiers add up. */
static void capacities_are_blocks_shares_or_tiers(void **state)
{
    (void)state;
    write_trace(THREE_REQUESTS);
    sim("--trace @ --policies lru --capacities 34%,100%,4,1+2 --json");
    struct json_object *object = report();
    assert_int_equal(number(result_at(object, 0), "capacity_blocks"), 1);
    assert_int_equal(number(result_at(object, 1), "capacity_blocks"), 3);
    assert_string_equal(text(result_at(object, 1), "filled"), "true");
    assert_string_equal(text(result_at(object, 2), "filled"), "false");
    assert_int_equal(number(result_at(object, 3), "capacity_blocks"), 3);
    assert_int_equal(number(result_at(object, 3), "hits"), number(result_at(object, 1), "hits"));
    (void)json_object_put(object);
}

/* Goal: an empty trace, one line, one block and more than everything are counted by every policy. */
static void the_smallest_traces_and_capacities_work(void **state)
{
    (void)state;
    static const char *const traces[] = {
        "", "\n\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "\nTIMESTAMP,ContextTokens,GeneratedTokens\n\n",
        "{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n"
    };
    enum { EMPTY = 4 };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(traces); i++) {
        write_trace(traces[i]);
        sim("--trace @ --capacities 1,100%,1073741822 --json");
        struct json_object *object = report();
        assert_int_equal(number(result_at(object, 0), "accesses"), i < EMPTY ? 0 : 2);
        assert_int_equal(number(result_at(object, 0), "hits"), 0);
        (void)json_object_put(object);
        sim("--trace @ --count flat --capacities 1,2");
        assert_int_equal(outcome.exit_status, 0);
        if (i >= EMPTY) continue;
        sim("--trace @ --warmup 5 --capacities 1"); /* there was nothing to count anyway */
        assert_int_equal(outcome.exit_status, 0);
        sim("--trace @ --hbm 8MiB");
        assert_int_equal(outcome.exit_status, 2);
        assert_int_equal(count_lines(outcome.err), 1);
        assert_non_null(strstr(outcome.err, "a trace has at least one"));
    }
}

/* Goal: people get a table, and CSV has a line for each result. */
static void people_get_a_table_and_programs_csv(void **state)
{
    (void)state;
    write_trace(THREE_REQUESTS);
    sim("--trace @ --policies lru --capacities 2,50");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "3 requests, 7 accesses, 3 blocks"));
    assert_non_null(strstr(outcome.out, "57.14*"));
    assert_non_null(strstr(outcome.out, "* never filled"));
    sim("--trace @ --policies lru,fifo --capacities 2,3,4 --csv");
    assert_int_equal(count_lines(outcome.out), 7);
    sim("--workload chat --requests 20 --policies lru --admission each --capacities 10%,20%");
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "second-sight"));
}

/* Goal: what is counted is of the requests after the warm-up, writes and evictions as well as uses and hits. */
static void a_warm_up_leaves_its_writes_uncounted(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int64_t accesses, hits, writes, evictions;
    } cases[] = {
        { "--count flat --warmup 0", 7, 3, 4, 2 },
        { "--count flat --warmup 1", 5, 3, 2, 2 },           /* 1 2 | 1 2 3 | 1 3: 3 and the last 1 are written */
        { "--count flat --warmup 1 --admission all", 5, 3, 2, 2 }, /* counted call by call */
        { "--count flat --warmup 67%", 2, 1, 1, 1 },
        { "--count flat --warmup 3 --repeat 2", 7, 4, 3, 3 }, /* 1 3 are there | 1 2 | 1 2 3 | 1 3: 2, 3 and the last 1 */
        { "--count prefix --order head --warmup 1", 5, 2, 2, 2 },
    };
    write_trace(THREE_REQUESTS);
    for (size_t i = 0; i < KVT_ARRAY_COUNT(cases); i++) {
        char line[128];
        (void)snprintf(line, sizeof line, "--trace @ --policies lru --capacities 2 --json %s", cases[i].words);
        sim(line);
        struct json_object *object = report(), *result = result_at(object, 0);
        assert_int_equal(number(result, "accesses"), cases[i].accesses);
        assert_int_equal(number(result, "hits"), cases[i].hits);
        assert_int_equal(number(result, "blocks_written"), cases[i].writes);
        assert_int_equal(number(result, "evictions"), cases[i].evictions);
        (void)json_object_put(object);
    }
}

static uint32_t occurrences(const char *text_, const char *part)
{
    uint32_t n = 0;
    for (const char *at = strstr(text_, part); at; at = strstr(at + 1, part)) n++;
    return n;
}

/* Goal: each combination is counted once: the bound knows no admission, nor what it writes. */
static void a_combination_is_counted_once(void **state)
{
    (void)state;
    write_trace(THREE_REQUESTS);
    sim("--trace @ --policies lru,belady,fifo --admission each --capacities 2,3 --csv");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(occurrences(outcome.out, ",lru,"), 8);
    assert_int_equal(occurrences(outcome.out, ",fifo,"), 8);
    assert_int_equal(occurrences(outcome.out, ",belady,all,"), 2);
    assert_int_equal(occurrences(outcome.out, ",belady,all,2,7,4,0.571429,,,1,"), 1);
    sim("--trace @ --policies belady,lru --admission all,second-sight,all --capacities 2,3");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(occurrences(outcome.out, "belady, all"), 1);
    assert_int_equal(occurrences(outcome.out, "lru, all"), 1);
    assert_int_equal(occurrences(outcome.out, "lru, second-sight"), 1);
    assert_int_equal(occurrences(outcome.out, "lru     second-sight"), 2);
    assert_int_equal(occurrences(outcome.out, "lru     all "), 2);
}

struct wrong {
    const char *words, *named;
};

/* Each is refused with status 2, one line that names it, and nothing on stdout. */
static void assert_refused(const struct wrong *wrong, size_t count)
{
    write_trace(THREE_REQUESTS);
    for (size_t i = 0; i < count; i++) {
        sim(wrong[i].words);
        if (outcome.exit_status != 2)
            fail_msg("exit status %d for '%s': %s", outcome.exit_status, wrong[i].words, outcome.err);
        assert_string_equal(outcome.out, "");
        assert_int_equal(count_lines(outcome.err), 1);
        assert_memory_equal(outcome.err, "kvtier sim: ", 12);
        if (!strstr(outcome.err, wrong[i].named)) fail_msg("'%s' is refused by '%s'", wrong[i].words, outcome.err);
    }
}

/* Goal: each wrong value is refused with status 2, one line that names it, and nothing on stdout. */
static void a_wrong_value_gets_one_line_that_names_it(void **state)
{
    (void)state;
    static const struct wrong wrong[] = {
        { "", "--trace" },
        { "--trace @ --workload chat", "--trace" },
        { "--workload chat surplus", "surplus" },
        { "--workload chat --frobnicate", "--frobnicate" },
        { "--workload poetry", "poetry" },
        { "--trace /nonexistent.jsonl", "/nonexistent.jsonl" },
        { "--workload chat --requests 0", "--requests" },
        { "--workload chat --requests many", "--requests" },
        { "--workload chat --seed -1", "--seed" },
        { "--workload chat --block-tokens 0", "--block-tokens" },
        { "--workload chat --block-tokens 70000", "--block-tokens" },
        { "--workload chat --repeat 0", "--repeat" },
        { "--workload chat --repeat 10001", "--repeat" },
        { "--workload chat --threads 0", "--threads" },
        { "--workload chat --count sheep", "--count" },
        { "--workload chat --order random", "--order" },
        { "--workload chat --policies lru,,fifo", "--policies" },
        { "--workload chat --policies wishful", "--policies" },
        { "--workload chat --policies wishful", "lru, lru-reward, fifo" }, /* which there are is said */
        { "--workload chat --admission wishful", "all, budget, second-sight" },
        { "--workload chat --warmup half", "--warmup" },
        { "--workload chat --warmup 0%", "--warmup" },
        { "--workload chat --warmup 101%", "--warmup" },
        { "--workload chat --warmup 1,2", "--warmup" },
        { "--trace @ --warmup 100%", "--warmup is '100%': fewer than the 3 requests" },
        { "--trace @ --warmup 3", "--warmup is '3': fewer than the 3 requests" },
        { "--trace @ --warmup 4", "--warmup is '4': fewer than the 3 requests" },
        { "--workload chat --arrival trace", "--arrival is for virtual time: with --hbm, --host or --nvme" },
        { "--workload chat --batch=3", "--batch is for virtual time" },
        { "--workload chat --model llama-3-8b", "--model is for virtual time" },
        { "--workload chat --context-tokens 500", "--context-tokens is for virtual time" },
        { "--workload chat --verify off", "--verify is for virtual time" },
        { "--workload chat --policy lru", "--policy is for virtual time" },
        { "--workload chat --shape layers=1", "--shape is for virtual time" },
        { "--workload chat --stream", "--stream is for kvtier run" },
        { "--trace @ --record x", "--record is for kvtier run" },
        { "--trace @ --metrics x", "--metrics is for kvtier run" },
        { "--workload chat --warmup 50% --policies lru,belady", "--warmup" },
        { "--workload chat --policies lru,", "--policies" },
        { "--workload chat --capacities 0", "--capacities" },
        { "--workload chat --capacities -5", "--capacities" },
        { "--workload chat --capacities 5,", "--capacities" },
        { "--workload chat --capacities 101%", "--capacities" },
        { "--workload chat --capacities 0%", "--capacities" },
        { "--workload chat --capacities %", "--capacities" },
        { "--workload chat --capacities 1073741823", "--capacities" },
        { "--workload chat --capacities 1+", "--capacities" },
        { "--workload chat --capacities 1+2+3+4", "--capacities" },
        { "--workload chat --capacities 1e3", "--capacities" },
        { "--workload chat --capacities 99999999999999999999", "--capacities" },
        { "--workload chat --admission hope", "--admission" },
        { "--workload chat --admission all --capacities 1+2", "--admission" },
        { "--workload chat --plot picture.jpg", "--plot" },
        { "--workload chat --policies belady --admission all", "--policies" },
        { "--workload chat --json --csv", "--json" },
        { "--workload chat --count flat --order head", "--order is for --count prefix only" },
        { "--workload chat --order tail --count flat", "--order is for --count prefix only" },
    };
    assert_refused(wrong, KVT_ARRAY_COUNT(wrong));
}

/* Goal: the same in virtual time. */
static void a_wrong_value_of_virtual_time_gets_one_line_that_names_it(void **state)
{
    (void)state;
    static const struct wrong wrong[] = {
        { "--workload chat --hbm 8MiB --gpu abacus", "--gpu" },
        { "--workload chat --hbm 8MiB --gpu flops=0,bytes=1,link=1", "--gpu" },
        { "--workload chat --gpu h200 --parameters many", "--parameters" },
        { "--workload chat --hbm 8MiB --pack-ratio 0", "--pack-ratio" },
        { "--workload chat --hbm 8MiB --policies wishful", "--policies" },
        { "--workload chat --hbm 8MiB --policies wishful", "lru, lru-reward, fifo" },
        { "--workload chat --hbm 8MiB --policy wishful", "lru, lru-reward, fifo" },
        { "--workload chat --hbm 4KiB --host 1MiB", "--hbm" },
        { "--workload chat --hbm 8MiB --policy wishful", "--policy" },
        { "--workload chat --hbm 8MiB, --policy lru", "--hbm" },
        { "--workload chat --hbm 8MiB,,9MiB", "--hbm" },
        { "--workload chat --hbm 8MiB,many", "--hbm" },
        { "--workload chat --hbm 8MiB --nvme x:1GiB,many", "--nvme" },
        { "--workload chat --hbm 8MiB --nvme x:64KiB", "--nvme" },
        { "--workload chat --hbm 8MiB --admission hope", "--admission" },
        { "--workload chat --hbm 8MiB --host-policy lru,hope", "--host-policy" },
        { "--workload chat --host-policy hope", "--host-policy" },
        { "--workload chat --prefetch hope", "--prefetch" },
        { "--workload chat --hbm 8MiB --admission hope", "all, budget, second-sight, adaptive" },
        { "--workload chat --hbm 8MiB --stream", "--stream" },
        { "--workload chat --hbm 8MiB --metrics x", "--metrics" },
        { "--workload chat --hbm 8MiB --record x", "--record" },
        { "--workload chat --hbm 8MiB --seed 1,-2", "--seed" },
        { "--workload chat --hbm 8MiB --count flat", "--count is for counting: without --hbm, which asks for virtual time" },
        { "--workload chat --capacities 5 --expect arrived", "--capacities is for counting: without --expect, " },
        { "--workload chat --host=8MiB --warmup 5", "--warmup is for counting: without --host, " },
        { "--workload chat --hbm 8MiB --order=tail", "--order is for counting" },
        { "--workload chat --gpu h200 --repeat 2", "--repeat is for counting: without --gpu, " },
        { "--workload chat --hbm 8MiB --threads 0", "--threads" },
        { "--workload chat --hbm 8MiB --csv --json", "--json" },
        { "--workload chat --hbm 8MiB --plot picture.jpg", "--plot" },
        { "--workload chat --hbm 8MiB --links /nonexistent.json", "/nonexistent.json" },
        { "--workload chat --hbm 8MiB --links @", "kvtier bench --calibrate" },
        { "--workload chat --parameters 8e9", "--parameters needs --gpu" },
        { "--workload chat --hbm 8MiB --parameters 0", "--parameters needs --gpu" },
        { "--workload chat --gpu h200 --parameters 8e9 --step-ms 3", "--parameters means nothing with --step-ms" },
        { "--workload chat --hbm 8MiB --admission all", "--admission needs --nvme" },
        { "--workload chat --hbm 8MiB --link-nvme 1,2", "--link-nvme needs --nvme" },
        { "--workload chat --hbm 8MiB --nvme-writes-per-day 1GiB", "--nvme-writes-per-day needs --nvme" },
        { "--workload chat --prefetch demand,off --expect all", "--expect needs --prefetch" },
        { "--workload longdoc --hbm 64MiB --think-ms 5", "--think-ms needs sessions" },
        { "--workload chat --hbm 8MiB --speed 2", "--speed is for --arrival trace only" },
        { "--workload chat --hbm 8MiB --links /", "/: cannot be read: Is a directory" },
        { "--workload chat --hbm", "--hbm" },
        { "--hbm 8MiB", "--trace" },
        { "--trace /nonexistent.jsonl --hbm 8MiB", "/nonexistent.jsonl" },
    };
    assert_refused(wrong, KVT_ARRAY_COUNT(wrong));
}

static void assert_picture(const char *path, const char *wanted)
{
    char drawn[64];
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s is not there", path);
    drawn[fread(drawn, 1, sizeof drawn - 1, file)] = '\0';
    (void)fclose(file);
    assert_string_equal(drawn, wanted);
}

/* Goal: a picture is drawn by gnuplot, from the same figures; without it, one line says so and nothing is counted. */
static void a_picture_is_gnuplots(void **state)
{
    (void)state;
    char drawer[PATH_BYTES + 16], drawn[PATH_BYTES + 16], line[2 * PATH_BYTES + 128], script[4096];
    const char *path = getenv("PATH");
    char before[4096];
    (void)snprintf(before, sizeof before, "%s", path ? path : "");
    write_trace(THREE_REQUESTS);
    (void)snprintf(drawer, sizeof drawer, "%s/gnuplot", root);
    (void)snprintf(drawn, sizeof drawn, "%s/drawn", root);
    (void)snprintf(line, sizeof line, "--trace @ --policies lru,belady --count flat --capacities 2,3 --plot %s/a.svg",
                   root);
    assert_int_equal(setenv("PATH", root, 1), 0);
    sim(line);
    assert_int_equal(outcome.exit_status, 2);
    assert_string_equal(outcome.out, "");
    assert_int_equal(count_lines(outcome.err), 1);
    assert_non_null(strstr(outcome.err, "gnuplot"));

    FILE *file = fopen(drawer, "w");
    assert_non_null(file);
    (void)fprintf(file, "#!/bin/sh\nwhile IFS= read -r line; do echo \"$line\"; done > %s\necho picture\n", drawn);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(drawer, 0700), 0);
    sim(line);
    assert_int_equal(outcome.exit_status, 0);
    file = fopen(drawn, "r");
    assert_non_null(file);
    script[fread(script, 1, sizeof script - 1, file)] = '\0';
    (void)fclose(file);
    assert_non_null(strstr(script, "set terminal svg"));
    assert_non_null(strstr(script, "2 42.8571\n3 57.1429\ne\n2 57.1429\n3 57.1429\ne\n"));
    assert_null(strstr(script, "xrange"));
    (void)snprintf(line, sizeof line, "--trace @ --policies lru --count flat --capacities 2 --plot %s/a.svg", root);
    sim(line); /* one capacity: an axis that has a width */
    assert_int_equal(outcome.exit_status, 0);
    file = fopen(drawn, "r");
    assert_non_null(file);
    script[fread(script, 1, sizeof script - 1, file)] = '\0';
    (void)fclose(file);
    assert_non_null(strstr(script, "set xrange [1:4]"));
    (void)snprintf(line, sizeof line, "%s/a.svg", root);
    assert_picture(line, "picture\n");
    (void)unlink(line);
    (void)unlink(drawn);
    (void)unlink(drawer);
    (void)setenv("PATH", before, 1);
}

/*
 * Goal: what gnuplot says is one line, and a picture that fails takes none away. What cannot be written refuses the
 * command before it counts.
 */
static void a_picture_that_fails_is_one_line_and_leaves_what_was_there(void **state)
{
    (void)state;
    static const char *const ways[] = { "--trace @ --policies lru --count flat --capacities 2",
                                        "--trace @ --hbm 8MiB --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16" };
    static const struct {
        const char *script, *told;
    } fails[] = { { "printf '\\ngnuplot> plot\\n         ^\\n         line 0: boom\\nmore\\n' >&2; exit 1",
                    ": line 0: boom\n" },
                  { "echo half a picture; exit 3", ": it said nothing\n" },
                  { "cat > /dev/null; echo 'Warning: empty x range' >&2", ": Warning: empty x range\n" },
                  { "kill -9 $$", ": it said nothing\n" } };
    char drawer[PATH_BYTES + 16], picture[PATH_BYTES + 16], line[2 * PATH_BYTES + 128];
    char before[4096], with_drawer[4096 + PATH_BYTES];
    const char *path = getenv("PATH");
    (void)snprintf(before, sizeof before, "%s", path ? path : "");
    (void)snprintf(with_drawer, sizeof with_drawer, "%s:%s", root, before);
    (void)snprintf(drawer, sizeof drawer, "%s/gnuplot", root);
    (void)snprintf(picture, sizeof picture, "%s/a.svg", root);
    write_trace(THREE_REQUESTS);
    for (size_t w = 0; w < KVT_ARRAY_COUNT(ways); w++) {
        for (size_t i = 0; i < KVT_ARRAY_COUNT(fails); i++) {
            write_file(drawer, "#!/bin/sh\n", fails[i].script);
            write_file(picture, "precious", "");
            assert_int_equal(chmod(drawer, 0700), 0);
            assert_int_equal(setenv("PATH", with_drawer, 1), 0);
            (void)snprintf(line, sizeof line, "%s --plot %s", ways[w], picture);
            sim(line);
            assert_int_equal(setenv("PATH", before, 1), 0);
            assert_int_equal(outcome.exit_status, 1);
            assert_int_equal(count_lines(outcome.err), 1);
            assert_non_null(strstr(outcome.err, "a.svg: gnuplot failed"));
            if (!strstr(outcome.err, fails[i].told)) fail_msg("%s", outcome.err);
            assert_picture(picture, "precious");
        }
        assert_int_equal(setenv("PATH", with_drawer, 1), 0);
        (void)snprintf(line, sizeof line, "%s --plot %s/none/a.svg", ways[w], root);
        sim(line);
        assert_int_equal(setenv("PATH", before, 1), 0);
        assert_int_equal(outcome.exit_status, 2);
        assert_string_equal(outcome.out, "");
        assert_int_equal(count_lines(outcome.err), 1);
        assert_non_null(strstr(outcome.err, "it cannot be written: No such file or directory"));
    }
    (void)unlink(picture);
    (void)unlink(drawer);
}

/* Goal: of virtual time, reuse against capacity and the first point's time are drawn, two panels in one picture. */
static void a_picture_of_virtual_time_has_two_panels(void **state)
{
    (void)state;
    char drawer[PATH_BYTES + 16], drawn[PATH_BYTES + 16], line[2 * PATH_BYTES + 256], before[4096];
    static char script[65536];
    const char *path = getenv("PATH");
    (void)snprintf(before, sizeof before, "%s", path ? path : "");
    (void)snprintf(drawer, sizeof drawer, "%s/gnuplot", root);
    (void)snprintf(drawn, sizeof drawn, "%s/drawn", root);
    FILE *file = fopen(drawer, "w");
    assert_non_null(file);
    (void)fprintf(file, "#!/bin/sh\nwhile IFS= read -r line; do echo \"$line\"; done > %s\necho picture\n", drawn);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(drawer, 0700), 0);
    (void)snprintf(
        line, sizeof line,
        "--workload chat --requests 12 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm 3MiB,6MiB --host "
        "8MiB --link-hbm 0.02 --step-ms 1 --policies lru,sieve --plot %s/a.svg",
        root);
    assert_int_equal(setenv("PATH", root, 1), 0);
    sim(line);
    assert_int_equal(setenv("PATH", before, 1), 0);
    assert_string_equal(outcome.err, "");
    assert_int_equal(outcome.exit_status, 0);
    file = fopen(drawn, "r");
    assert_non_null(file);
    script[fread(script, 1, sizeof script - 1, file)] = '\0';
    (void)fclose(file);
    assert_non_null(strstr(script, "set multiplot layout 2,1"));
    assert_non_null(strstr(script, "set xlabel 'MiB in all tiers'"));
    assert_non_null(strstr(script, "linespoints title 'lru', '-' using 1:2 with linespoints title 'sieve'\n"));
    assert_non_null(strstr(script, "set title 'lru, hbm 3MiB'"));
    assert_non_null(strstr(script, "title 'device', '-' using 1:2 with lines title 'host'"));
    assert_non_null(strstr(script, "title 'stalled'"));
    assert_null(strstr(script, "set xrange"));
    (void)snprintf(line, sizeof line,
                   "--workload chat --requests 2 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm 8MiB --plot "
                   "%s/a.svg",
                   root);
    assert_int_equal(setenv("PATH", root, 1), 0);
    sim(line); /* one point: an axis that has a width, and one of time that is free of it */
    assert_int_equal(setenv("PATH", before, 1), 0);
    assert_int_equal(outcome.exit_status, 0);
    file = fopen(drawn, "r");
    assert_non_null(file);
    script[fread(script, 1, sizeof script - 1, file)] = '\0';
    (void)fclose(file);
    double least = 0, most = 0;
    const char *range = strstr(script, "set xrange [");
    assert_non_null(range);
    assert_int_equal(sscanf(range, "set xrange [%lf:%lf]\nset yrange [0:100]", &least, &most), 2);
    assert_true(least > 0 && most > least);
    assert_non_null(strstr(script, "set autoscale x\n"));
    (void)snprintf(line, sizeof line, "%s/a.svg", root);
    assert_picture(line, "picture\n");
    (void)unlink(line);
    (void)unlink(drawn);
    (void)unlink(drawer);
}

/* ---- In virtual time --------------------------------------------------------------------------------------------- */

static int64_t inner(struct json_object *object, const char *outer, const char *name)
{
    struct json_object *value;
    assert_true(json_object_object_get_ex(object, outer, &value));
    return number(value, name);
}

static int64_t tier_number(struct json_object *object, const char *tier, const char *name)
{
    struct json_object *tiers;
    assert_true(json_object_object_get_ex(object, "tiers", &tiers));
    for (size_t i = 0; i < json_object_array_length(tiers); i++) {
        struct json_object *item = json_object_array_get_idx(tiers, i);
        if (strcmp(text(item, "name"), tier) == 0) return number(item, name);
    }
    return -1;
}

/*
 * Goal: what the simulator says is found in each tier, and reused, is what the main job finds and reuses, where timing
 * does not matter: to the block and the token.
 */
static void simulated_tiers_reuse_what_real_ones_do(void **state)
{
    (void)state;
#define SMALL                                                                                             \
    " --step-ms 0.5 --verify off --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --arrival sequential" \
    " --json"
    static const char *const workloads[] = {
        "--workload chat --requests 30 --hbm 8MiB --host 64MiB" SMALL,
        "--workload longdoc --requests 12 --hbm 9MiB --host 64MiB" SMALL,
        "--workload batch --requests 30 --hbm 1MiB --host 32MiB" SMALL,
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(workloads); i++) {
        sim(workloads[i]);
        struct json_object *object = report();
        const int64_t reused = inner(result_at(object, 0), "tokens", "reused");
        const int64_t generated = inner(result_at(object, 0), "tokens", "generated");
        static const char *const tiers[] = { "device", "host" };
        int64_t hits[2], misses[2];
        for (size_t t = 0; t < KVT_ARRAY_COUNT(tiers); t++) {
            hits[t] = tier_number(result_at(object, 0), tiers[t], "hits");
            misses[t] = tier_number(result_at(object, 0), tiers[t], "misses");
        }
        assert_true(hits[0] + hits[1] > 0);
        (void)json_object_put(object);
        run_words("run", workloads[i]);
        object = report();
        for (size_t t = 0; t < KVT_ARRAY_COUNT(tiers); t++) {
            assert_int_equal(tier_number(object, tiers[t], "hits"), hits[t]);
            assert_int_equal(tier_number(object, tiers[t], "misses"), misses[t]);
        }
        assert_int_equal(inner(object, "tokens", "reused"), reused);
        assert_int_equal(inner(object, "tokens", "generated"), generated);
        assert_true(reused > 1000);
        (void)json_object_put(object);
    }
}

/* Goal: with many at once, pauses, packed blocks and three tiers, reuse is within one per cent. */
static void simulated_reuse_is_within_one_per_cent_where_timing_matters(void **state)
{
    (void)state;
#define MIXED " --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --verify off --json"
    static const char *const workloads[] = {
        "--workload chat --requests 60 --hbm 4MiB --host 5MiB --step-ms 1 --batch 4 --link-hbm 0.1 --link-nvme 0.1"
        " --think-ms 10" MIXED,
        "--workload longdoc --requests 24 --hbm 10MiB --host 16MiB --step-ms 1 --batch 2 --link-hbm 0.05" MIXED,
        "--workload batch --requests 60 --hbm 4MiB --host 4MiB --step-ms 1 --link-hbm 0.2 --link-nvme 0.2" MIXED,
    };
    static const bool has_nvme[] = { true, false, true };
    char line[512], store[PATH_BYTES + 32];
    for (size_t i = 0; i < KVT_ARRAY_COUNT(workloads); i++) {
        (void)snprintf(line, sizeof line, "%s%s --pack-ratio 1.49", workloads[i], has_nvme[i] ? " --nvme x:24MiB" : "");
        sim(line);
        struct json_object *object = report();
        const int64_t simulated = inner(result_at(object, 0), "tokens", "reused");
        assert_int_equal(inner(result_at(object, 0), "requests", "completed"),
                         inner(result_at(object, 0), "requests", "total"));
        (void)json_object_put(object);
        (void)snprintf(store, sizeof store, "%s/kv", root);
        (void)snprintf(line, sizeof line, "%s%s%s%s", workloads[i], has_nvme[i] ? " --nvme " : "",
                       has_nvme[i] ? store : "", has_nvme[i] ? ":24MiB" : "");
        run_words("run", line);
        object = report();
        const int64_t real = inner(object, "tokens", "reused");
        (void)json_object_put(object);
        assert_true(real > 1000);
        if (llabs(simulated - real) * 100 > real)
            fail_msg("%s: %lld tokens simulated, %lld real", workloads[i], (long long)simulated, (long long)real);
        (void)snprintf(line, sizeof line, "rm -rf %s", store);
        assert_int_equal(system(line), 0);
    }
}

/* Goal: a comma makes a grid: a result for each point, in order, in JSON and CSV, the same on any number of threads. */
static void commas_make_a_grid_in_virtual_time(void **state)
{
    (void)state;
#define GRID                                                                                                       \
    "--workload chat --requests 24 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm 4MiB,6MiB --host 8MiB" \
    " --nvme x:8MiB --prefetch demand --seed 1,2 --policies lru,sieve --link-hbm 0.02 --step-ms 1"
    static const int64_t mib = 1 << 20;
    struct json_object *reports[2];
    for (int i = 0; i < 2; i++) {
        sim(i == 0 ? GRID " --threads 1 --json" : GRID " --threads 3 --json");
        reports[i] = report();
    }
    for (size_t i = 0; i < 8; i++) {
        struct json_object *result = result_at(reports[0], i);
        assert_string_equal(text(result, "policy"), i < 4 ? "lru" : "sieve");
        assert_int_equal(number(result, "hbm_bytes"), i % 4 < 2 ? 4 * mib : 6 * mib);
        assert_int_equal(number(result, "nvme_bytes"), 8 * mib);
        assert_int_equal(number(result, "seed"), 1 + (int64_t)i % 2);
        assert_int_equal(inner(result, "tokens", "reused"), inner(result_at(reports[1], i), "tokens", "reused"));
        assert_true(inner(result, "tokens", "reused") <= inner(result, "tokens", "reused_belady"));
        struct json_object *steps[2];
        for (int r = 0; r < 2; r++)
            assert_true(json_object_object_get_ex(result_at(reports[r], i), "steps", &steps[r]));
        assert_string_equal(json_object_to_json_string(steps[0]), json_object_to_json_string(steps[1]));
    }
    (void)json_object_put(reports[0]);
    (void)json_object_put(reports[1]);
    sim(GRID " --csv");
    assert_int_equal(outcome.exit_status, 0);
    assert_int_equal(count_lines(outcome.out), 9);
    sim(GRID);
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "sieve, hbm 6MiB, seed 2"));
}

/*
 * Goal: where requests fail there is no bound on what the others reuse; who fails is said once and not told what the sim
 * does not have, and how many failed with their session is counted.
 */
static void what_fails_in_virtual_time_is_said_once_and_has_no_bound(void **state)
{
    (void)state;
#define TOO_SMALL                                                                                                      \
    "--workload chat --requests 16 --context-tokens 3000 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm "    \
    "512KiB,520KiB --policies lru,sieve --threads 2"
    sim(TOO_SMALL " --json");
    assert_int_equal(outcome.exit_status, 1);
    assert_null(strstr(outcome.err, "--stream"));
    struct json_object *object = json_tokener_parse(outcome.out), *tokens, *bound;
    assert_non_null(object);
    const int64_t failed = inner(result_at(object, 0), "requests", "failed");
    const int64_t after = inner(result_at(object, 0), "requests", "failed_after_earlier_turn");
    assert_true(after > 0);
    assert_int_equal(count_lines(outcome.err), failed - after);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(inner(result_at(object, i), "requests", "failed"), failed);
        assert_true(json_object_object_get_ex(result_at(object, i), "tokens", &tokens));
        assert_true(json_object_object_get_ex(tokens, "reused_belady", &bound));
        assert_null(bound);
    }
    (void)json_object_put(object);

    char line[128];
    (void)snprintf(line, sizeof line,
                   "\n%d of 16 requests failed, %d of them because an earlier turn of their session had failed\n", (int)failed,
                   (int)after);
    sim(TOO_SMALL);
    assert_int_equal(outcome.exit_status, 1);
    assert_int_equal(occurrences(outcome.out, line), 1);
    assert_int_equal(occurrences(outcome.out, "  -  "), 4);
    sim(TOO_SMALL " --csv");
    assert_int_equal(count_lines(outcome.out), 5);
    const char *row = strchr(outcome.out, '\n') + 1;
    for (uint32_t comma = 0; comma < 13; comma++) row = strchr(row, ',') + 1;
    assert_int_equal(*row, ',');
}

/* Goal: each tier has the policy that is named for it, and the one of HBM where none is. */
static void host_memory_may_have_a_policy_of_its_own(void **state)
{
    (void)state;
#define TIERS "--workload chat --requests 60 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm 4MiB --host 4MiB --nvme x:8MiB"
    static const char *const host[] = { "lru", "lfu" };
    int64_t reused[3];
    sim(TIERS " --policies lru --host-policy lru,lfu --json");
    struct json_object *results = report();
    for (size_t i = 0; i < 2; i++) {
        struct json_object *result = result_at(results, i);
        assert_string_equal(text(result, "policy"), "lru");
        assert_string_equal(text(result, "host_policy"), host[i]);
        reused[i] = inner(result, "tokens", "reused");
    }
    (void)json_object_put(results);
    sim(TIERS " --policies lru --json");
    results = report();
    assert_string_equal(text(result_at(results, 0), "host_policy"), "lru");
    reused[2] = inner(result_at(results, 0), "tokens", "reused");
    (void)json_object_put(results);
    assert_int_equal(reused[2], reused[0]);
    assert_int_not_equal(reused[1], reused[0]);
}

static double stalled(struct json_object *result)
{
    struct json_object *steps, *seconds;
    assert_true(json_object_object_get_ex(result, "steps", &steps));
    assert_true(json_object_object_get_ex(steps, "stall_seconds", &seconds));
    return json_object_get_double(seconds);
}

/*
 * Goal: sessions that nobody announces are foreseen where the device has room for them, and stalls are shorter for it;
 * where all is told, nothing is foreseen and nothing changes.
 */
static void session_prefetch_knows_what_look_ahead_is_not_told(void **state)
{
    (void)state;
#define CHATS                                                                                                     \
    "--workload chat --requests 240 --context-tokens 1024 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16"     \
    " --hbm 8MiB --host 32MiB --nvme x:64MiB --link-hbm 0.02 --link-nvme 0.01 --step-ms 2 --arrival trace --json" \
    " --prefetch lookahead,session --expect "
    sim(CHATS "arrived");
    struct json_object *arrived = report();
    struct json_object *lookahead = result_at(arrived, 0), *session = result_at(arrived, 1);
    assert_string_equal(text(session, "prefetch"), "session");
    assert_int_equal(inner(lookahead, "transfers", "foreseen_blocks"), 0);
    const int64_t used = inner(session, "transfers", "foreseen_used_blocks");
    const int64_t wasted = inner(session, "transfers", "foreseen_wasted_blocks");
    assert_true(used > wasted);
    assert_true(used + wasted <= inner(session, "transfers", "foreseen_blocks"));
    assert_true(stalled(session) < 0.8 * stalled(lookahead));
    assert_int_equal(inner(session, "tokens", "reused"), inner(lookahead, "tokens", "reused"));
    sim(CHATS "all");
    struct json_object *all = report();
    assert_int_equal(inner(result_at(all, 1), "transfers", "foreseen_blocks"), 0);
    assert_true(stalled(result_at(all, 1)) == stalled(result_at(all, 0)));
    (void)json_object_put(arrived);
    (void)json_object_put(all);
    sim("--workload chat --hbm 8MiB --prefetch lookahead,xyz");
    assert_int_equal(outcome.exit_status, 2);
    assert_non_null(strstr(outcome.err, "--prefetch is 'xyz': one of lookahead, demand, off, session"));
}

/*
 * Goal: the same command line gives the same figures, and a slower link or smaller tiers never stall less than the
 * bound.
 */
static void virtual_time_repeats_itself_and_keeps_to_its_bound(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "--workload chat --requests 40 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm 4MiB --host 16MiB "
        "--nvme x:16MiB"
        " --link-hbm 0.01 --link-nvme 0.005 --gpu a100 --parameters 1e8 --policies lru,lirs-duel --json",
        "--workload longdoc --requests 12 --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16 --hbm 9MiB --host 16MiB"
        " --gpu flops=1e12,bytes=1e11,link=1e8 --step-ms 1 --json",
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(lines); i++) {
        struct json_object *steps[2][2];
        struct json_object *reports[2];
        for (uint32_t run = 0; run < 2; run++) {
            sim(lines[i]);
            reports[run] = report();
            for (uint32_t policy = 0; policy < (i == 0 ? 2 : 1); policy++) {
                struct json_object *result = result_at(reports[run], policy);
                struct json_object *stalled, *bound;
                assert_true(json_object_object_get_ex(result, "steps", &steps[run][policy]));
                assert_true(json_object_object_get_ex(steps[run][policy], "stall_seconds", &stalled));
                assert_true(json_object_object_get_ex(steps[run][policy], "stall_seconds_at_least", &bound));
                assert_true(json_object_get_double(stalled) + 1e-6 >= json_object_get_double(bound));
                assert_int_equal(inner(result, "requests", "completed"), inner(result, "requests", "total"));
            }
        }
        for (uint32_t policy = 0; policy < (i == 0 ? 2 : 1); policy++)
            assert_string_equal(json_object_to_json_string(steps[0][policy]),
                                json_object_to_json_string(steps[1][policy]));
        (void)json_object_put(reports[0]);
        (void)json_object_put(reports[1]);
    }
    assert_int_equal(access("x", F_OK), -1); /* the directory of a simulated store is not touched */
}

/* Goal: a broken line of a trace is named by its number. */
static void a_broken_line_of_a_trace_is_named(void **state)
{
    (void)state;
    write_trace(THREE_REQUESTS "{\"timestamp\":3,\"input_length\":5120,\"output_length\":5,\"hash_ids\":[1,2]}\n");
    sim("--trace @");
    assert_int_equal(outcome.exit_status, 2);
    assert_string_equal(outcome.out, "");
    assert_int_equal(count_lines(outcome.err), 1);
    assert_non_null(strstr(outcome.err, "trace.jsonl:4"));
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(three_requests_count_as_reckoned_by_hand, enter, leave),
        cmocka_unit_test_setup_teardown(capacities_are_blocks_shares_or_tiers, enter, leave),
        cmocka_unit_test_setup_teardown(the_smallest_traces_and_capacities_work, enter, leave),
        cmocka_unit_test_setup_teardown(people_get_a_table_and_programs_csv, enter, leave),
        cmocka_unit_test_setup_teardown(a_warm_up_leaves_its_writes_uncounted, enter, leave),
        cmocka_unit_test_setup_teardown(a_combination_is_counted_once, enter, leave),
        cmocka_unit_test_setup_teardown(a_wrong_value_gets_one_line_that_names_it, enter, leave),
        cmocka_unit_test_setup_teardown(a_wrong_value_of_virtual_time_gets_one_line_that_names_it, enter, leave),
        cmocka_unit_test_setup_teardown(a_picture_is_gnuplots, enter, leave),
        cmocka_unit_test_setup_teardown(a_picture_that_fails_is_one_line_and_leaves_what_was_there, enter, leave),
        cmocka_unit_test_setup_teardown(a_picture_of_virtual_time_has_two_panels, enter, leave),
        cmocka_unit_test_setup_teardown(simulated_tiers_reuse_what_real_ones_do, enter, leave),
        cmocka_unit_test_setup_teardown(simulated_reuse_is_within_one_per_cent_where_timing_matters, enter, leave),
        cmocka_unit_test_setup_teardown(commas_make_a_grid_in_virtual_time, enter, leave),
        cmocka_unit_test_setup_teardown(session_prefetch_knows_what_look_ahead_is_not_told, enter, leave),
        cmocka_unit_test_setup_teardown(what_fails_in_virtual_time_is_said_once_and_has_no_bound, enter, leave),
        cmocka_unit_test_setup_teardown(host_memory_may_have_a_policy_of_its_own, enter, leave),
        cmocka_unit_test_setup_teardown(virtual_time_repeats_itself_and_keeps_to_its_bound, enter, leave),
        cmocka_unit_test_setup_teardown(a_broken_line_of_a_trace_is_named, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
