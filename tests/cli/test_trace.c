/* What run and sim write beside their reports: a trace of what happened, and a trace to be replayed. */
#include <dirent.h>
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

enum { PATH_BYTES = 160, WORDS_MAX = 30 };

#define SHAPE " --shape layers=2,kv_heads=1,head_dim=64,dtype=bf16"

static const char *program;
static struct outcome outcome;
static char root[PATH_BYTES - 32], store[PATH_BYTES], events[PATH_BYTES], recorded[PATH_BYTES];

static int enter(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/kvtier_trace_XXXXXX");
    if (!mkdtemp(root)) return -1;
    (void)snprintf(store, sizeof store, "%s/kv", root);
    (void)snprintf(events, sizeof events, "%s/events.json", root);
    (void)snprintf(recorded, sizeof recorded, "%s/recorded.jsonl", root);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    char command[PATH_BYTES + 16];
    (void)snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command) == 0 ? 0 : -1;
}

/*
 * Runs a subcommand with these words; %S stands for the store, %E for the events, %R for the recorded trace, %T for
 * their directory.
 */
static void run_words(const char *command, const char *text)
{
    static char words[1024], nvme[PATH_BYTES + 32], within[WORDS_MAX][PATH_BYTES + 32];
    const char *arguments[WORDS_MAX + 2] = { command };
    uint32_t count = 1;
    char *rest = words;
    (void)snprintf(words, sizeof words, "%s", text);
    for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " ")) {
        assert_true(count < WORDS_MAX);
        if (!*word) continue;
        const char *chosen = strcmp(word, "%E") == 0 ? events : strcmp(word, "%R") == 0 ? recorded : word;
        if (strncmp(word, "%S", 2) == 0) {
            (void)snprintf(nvme, sizeof nvme, "%s%s", store, word + 2);
            chosen = nvme;
        }
        if (strncmp(word, "%T", 2) == 0) {
            (void)snprintf(within[count], sizeof within[count], "%s%s", root, word + 2);
            chosen = within[count];
        }
        arguments[count++] = chosen;
    }
    assert_true(run_program(program, arguments, &outcome));
}

static struct json_object *report(void)
{
    if (outcome.exit_status != 0) fail_msg("exit status %d: %s", outcome.exit_status, outcome.err);
    assert_string_equal(outcome.err, "");
    struct json_object *object = json_tokener_parse(outcome.out);
    assert_non_null(object);
    struct json_object *results;
    if (!json_object_object_get_ex(object, "results", &results)) return object;
    struct json_object *first = json_object_get(json_object_array_get_idx(results, 0));
    (void)json_object_put(object);
    return first;
}

static struct json_object *member(struct json_object *object, const char *name)
{
    struct json_object *value;
    if (!json_object_object_get_ex(object, name, &value)) fail_msg("%s is missing", name);
    return value;
}

static int64_t number(struct json_object *object, const char *outer, const char *name)
{
    return json_object_get_int64(member(member(object, outer), name));
}

/* ---- The trace of what happened ---------------------------------------------------------------------------------- */

struct span {
    int64_t process, track;
    int64_t from_ns, to_ns;
};

static int64_t ns_of(struct json_object *event, const char *name)
{
    return (int64_t)(json_object_get_double(member(event, name)) * 1000 + 0.5);
}

static const char *text_of(struct json_object *event, const char *name)
{
    struct json_object *value;
    return json_object_object_get_ex(event, name, &value) ? json_object_get_string(value) : "";
}

/* By track, then begin, the longer one first. */
static int compare(const void *a, const void *b)
{
    const struct span *left = a, *right = b;
    if (left->process != right->process) return left->process < right->process ? -1 : 1;
    if (left->track != right->track) return left->track < right->track ? -1 : 1;
    if (left->from_ns != right->from_ns) return left->from_ns < right->from_ns ? -1 : 1;
    return left->to_ns > right->to_ns ? -1 : left->to_ns < right->to_ns;
}

/* Each two spans of a track are apart, or one is within the other. */
static void assert_nesting(struct span *spans, size_t count)
{
    enum { DEPTH_MAX = 8 };
    int64_t ends[DEPTH_MAX];
    uint32_t depth = 0;
    qsort(spans, count, sizeof *spans, compare);
    for (size_t i = 0; i < count; i++) {
        const bool is_new = i == 0 || spans[i].process != spans[i - 1].process || spans[i].track != spans[i - 1].track;
        if (is_new) depth = 0;
        while (depth > 0 && ends[depth - 1] <= spans[i].from_ns) depth--;
        if (depth > 0 && ends[depth - 1] < spans[i].to_ns)
            fail_msg("process %lld, track %lld: a span from %lld to %lld overlaps", (long long)spans[i].process,
                     (long long)spans[i].track, (long long)spans[i].from_ns, (long long)spans[i].to_ns);
        assert_true(depth < DEPTH_MAX);
        ends[depth++] = spans[i].to_ns;
    }
}

/* What the events add up to. */
struct sums {
    int64_t counts[3][3], bytes[3][3]; /* transfers that did not fail, by source and target */
    int64_t stall_ns, steps, turns, samples, failed;
};

static int tier_of(const char *name, size_t length)
{
    static const char *const names[] = { "device", "host", "nvme" };
    for (int i = 0; i < 3; i++) {
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) return i;
    }
    fail_msg("'%s' is no tier", name);
    return 0;
}

static void add_transfer(struct sums *sums, struct json_object *event)
{
    struct json_object *arguments = member(event, "args"), *failed;
    const char *name = text_of(event, "name"), *to = strstr(name, " to ");
    assert_non_null(to);
    if (json_object_object_get_ex(arguments, "failed", &failed)) {
        sums->failed++;
        return;
    }
    const int from = tier_of(name, (size_t)(to - name)), target = tier_of(to + 4, strlen(to + 4));
    sums->counts[from][target]++;
    sums->bytes[from][target] += json_object_get_int64(member(arguments, "bytes"));
}

static struct sums add_up(void)
{
    struct json_object *file = json_object_from_file(events);
    assert_non_null(file);
    struct json_object *array = member(file, "traceEvents");
    const size_t count = json_object_array_length(array);
    struct span *spans = calloc(count, sizeof *spans);
    struct sums sums = { 0 };
    size_t span_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct json_object *event = json_object_array_get_idx(array, i);
        const char *category = text_of(event, "cat");
        sums.samples += strcmp(text_of(event, "ph"), "C") == 0;
        if (strcmp(text_of(event, "ph"), "X") != 0) continue;
        const int64_t from_ns = ns_of(event, "ts"), took_ns = ns_of(event, "dur");
        assert_true(from_ns >= 0 && took_ns >= 0);
        spans[span_count++] = (struct span){ .process = json_object_get_int64(member(event, "pid")),
                                             .track = json_object_get_int64(member(event, "tid")),
                                             .from_ns = from_ns,
                                             .to_ns = from_ns + took_ns };
        if (strcmp(category, "stall") == 0) sums.stall_ns += took_ns;
        if (strcmp(category, "step") == 0) sums.steps++;
        if (strcmp(category, "turn") == 0) sums.turns++;
        if (strcmp(category, "transfer") == 0) add_transfer(&sums, event);
    }
    assert_nesting(spans, span_count);
    free(spans);
    (void)json_object_put(file);
    return sums;
}

static int64_t tier_bytes(struct json_object *object, const char *tier, const char *name)
{
    struct json_object *tiers = member(object, "tiers");
    for (size_t i = 0; i < json_object_array_length(tiers); i++) {
        struct json_object *item = json_object_array_get_idx(tiers, i);
        if (strcmp(text_of(item, "name"), tier) == 0) return json_object_get_int64(member(item, name));
    }
    return 0;
}

/* Goal: spans nest, transfers are those of the counters, stalls sum to the reported time: of run and of sim. */
static void the_trace_nests_and_adds_up_to_the_report(void **state)
{
    (void)state;
    static const char *const commands[] = { "run", "sim" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(commands); i++) {
        run_words(
            commands[i],
            "--workload chat --requests 40 --hbm 4MiB --host 5MiB --nvme %S:16MiB --link-hbm 0.05 --link-nvme 0.05"
            " --step-ms 1 --think-ms 20 --trace-out %E --json" SHAPE);
        struct json_object *object = report();
        const struct sums sums = add_up();
        assert_int_equal(sums.counts[0][1], number(object, "transfers", "stashes"));
        assert_int_equal(sums.counts[1][0], number(object, "transfers", "fetches"));
        assert_int_equal(sums.counts[0][0], number(object, "transfers", "copies"));
        assert_int_equal(sums.bytes[0][1], tier_bytes(object, "device", "bytes_out"));
        assert_int_equal(sums.bytes[1][0], tier_bytes(object, "device", "bytes_in"));
        assert_int_equal(sums.bytes[1][2], tier_bytes(object, "nvme", "bytes_in"));
        assert_int_equal(sums.bytes[2][1], tier_bytes(object, "nvme", "bytes_out"));
        assert_true(sums.counts[1][2] > 0 && sums.counts[2][1] > 0);
        assert_int_equal(sums.steps, number(object, "steps", "count"));
        assert_int_equal(sums.turns, number(object, "requests", "completed"));
        assert_true(sums.samples > 0);
        const double stalled = json_object_get_double(member(member(object, "steps"), "stall_seconds"));
        assert_true(stalled > 0);
        assert_in_range(sums.stall_ns, (int64_t)(stalled * 1e9) - 1000, (int64_t)(stalled * 1e9) + 1000);
        (void)json_object_put(object);
    }
}

/* ---- The trace to be replayed ------------------------------------------------------------------------------------ */

/* Goal: a recorded run, replayed by run and by sim, has the same requests, tokens and reuse: to the token. */
static void a_recorded_run_is_replayed_to_the_token(void **state)
{
    (void)state;
    static const char *const workloads[] = {
        "--workload chat --requests 30 --hbm 3MiB --host 6MiB",
        "--workload longdoc --requests 12 --hbm 9MiB --host 16MiB --seed 3",
        "--workload agent --requests 24 --hbm 20MiB --host 16MiB",
        "--workload batch --requests 24 --hbm 1MiB --host 8MiB",
    };
    static const char *const tokens[] = { "prompt", "reused", "generated" };
    for (size_t w = 0; w < KVT_ARRAY_COUNT(workloads); w++) {
        char line[512];
        const char *tiers = strstr(workloads[w], "--hbm");
        (void)snprintf(line, sizeof line, "%s --arrival sequential --record %%R --verify off --json" SHAPE,
                       workloads[w]);
        run_words("run", line);
        struct json_object *first = report();
        assert_true(number(first, "tokens", "reused") > 1000);
        for (int i = 0; i < 2; i++) {
            (void)snprintf(line, sizeof line,
                           "--trace %%R --block-tokens 16 --arrival sequential --verify off --json %s" SHAPE, tiers);
            run_words(i == 0 ? "run" : "sim", line);
            struct json_object *again = report();
            assert_int_equal(number(again, "requests", "total"), number(first, "requests", "completed"));
            assert_int_equal(number(again, "requests", "completed"), number(first, "requests", "completed"));
            for (size_t t = 0; t < KVT_ARRAY_COUNT(tokens); t++)
                assert_int_equal(number(again, "tokens", tokens[t]), number(first, "tokens", tokens[t]));
            (void)json_object_put(again);
        }
        (void)json_object_put(first);
    }
}

/* Goal: a file that cannot be written refuses the command before anything runs, and leaves nothing behind. */
static void a_file_that_cannot_be_written_is_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *command, *words, *named;
    } wrong[] = {
        { "run", "--workload chat --trace-out /nonexistent/a.json", "--trace-out" },
        { "run", "--workload chat --record /nonexistent/a.jsonl", "--record" },
        { "run", "--workload chat --record %R --trace-out /nonexistent/a.json", "--trace-out" },
        { "run", "--workload chat --record %R --trace-out %E --hbm 4KiB --host 1MiB", "--hbm" },
        { "run", "--workload chat --trace-out=", "--trace-out" },
        { "sim", "--workload chat --hbm 8MiB --trace-out /nonexistent/a.json", "--trace-out" },
        { "sim", "--workload chat --hbm 8MiB,16MiB --trace-out %E", "--trace-out" },
        { "sim", "--workload chat --hbm 8MiB --record %R", "--record" },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        run_words(wrong[i].command, wrong[i].words);
        if (outcome.exit_status != 2) fail_msg("exit status %d for '%s'", outcome.exit_status, wrong[i].words);
        assert_string_equal(outcome.out, "");
        assert_int_equal(count_lines(outcome.err), 1);
        if (!strstr(outcome.err, wrong[i].named)) fail_msg("'%s' is refused by '%s'", wrong[i].words, outcome.err);
        assert_int_equal(access(events, F_OK), -1);
        assert_int_equal(access(recorded, F_OK), -1);
    }
}

/* Goal: what was there before the run is there after it. /dev/null stands behind a link, which would go in its place. */
static void a_device_is_not_replaced_by_a_file_and_not_removed(void **state)
{
    (void)state;
    static const char *const wrong[] = { "--workload chat --record %R --trace-out /nonexistent/a.json",
                                         "--workload chat --record %R --hbm 4KiB --host 1MiB",
                                         "--workload chat --trace-out %R --hbm 4KiB --host 1MiB",
                                         "--workload chat --requests 1 --metrics %R" };
    struct stat about;
    assert_int_equal(symlink("/dev/null", recorded), 0);
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        run_words("run", wrong[i]);
        if (outcome.exit_status != 2) fail_msg("exit status %d for '%s'", outcome.exit_status, wrong[i]);
        assert_int_equal(count_lines(outcome.err), 1);
        if (lstat(recorded, &about) != 0) fail_msg("removed by '%s'", wrong[i]);
        if (!S_ISLNK(about.st_mode)) fail_msg("replaced by '%s'", wrong[i]);
    }
}

static void two_files_of_one_name_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = { "--workload chat --record %R --trace-out %R",
                                         "--workload chat --record %R --metrics %R",
                                         "--workload chat --trace-out %R --metrics %R",
                                         "--workload chat --trace-out %R --record %T/./recorded.jsonl",
                                         "--workload chat --trace-out %R --record %T/soft",
                                         "--workload chat --metrics %T/soft --record %T/./recorded.jsonl" };
    char soft[PATH_BYTES + 16];
    (void)snprintf(soft, sizeof soft, "%s/soft", root);
    assert_int_equal(symlink("recorded.jsonl", soft), 0);
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        run_words("run", wrong[i]);
        if (outcome.exit_status != 2) fail_msg("exit status %d for '%s'", outcome.exit_status, wrong[i]);
        assert_int_equal(count_lines(outcome.err), 1);
        assert_int_equal(access(recorded, F_OK), -1);
    }
}

static void put_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static bool has_text(const char *path, const char *text)
{
    static char read[65536];
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("%s is gone", path);
    read[fread(read, 1, sizeof read - 1, file)] = '\0';
    (void)fclose(file);
    return strstr(read, text) != NULL;
}

static uint32_t count_entries(void)
{
    uint32_t count = 0;
    DIR *directory = opendir(root);
    assert_non_null(directory);
    while (readdir(directory)) count++;
    (void)closedir(directory);
    return count - 2; /* itself and its parent */
}

/* Goal: a run that never was takes nothing away, whatever refuses it and when. */
static void a_refused_command_leaves_what_was_there(void **state)
{
    (void)state;
    static const struct {
        const char *command, *words;
    } wrong[] = {
        { "run", "--workload chat --requests 5 --record %R --trace-out %E --host 1KiB" },
        { "run", "--workload chat --requests 5 --record %R --trace-out %E --hbm 4KiB --host 1MiB" },
        { "run", "--workload chat --requests 5 --record %R --trace-out %T/none/a.json" },
        { "run", "--workload chat --requests 5 --trace-out %E --record %T/none/a.jsonl" },
        { "run", "--workload chat --requests 5 --record %R --trace-out %E --metrics %T/none/m" },
        { "run", "--workload chat --requests 5 --record %R --trace-out %E --nvme %T/events.json:1GiB" },
        { "sim", "--workload chat --requests 5 --trace-out %E --hbm 4KiB --host 1MiB" },
        { "sim", "--trace %T/none --trace-out %E --hbm 8MiB" },
    };
    put_file(recorded, "precious");
    put_file(events, "precious");
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        run_words(wrong[i].command, wrong[i].words);
        if (outcome.exit_status != 2) fail_msg("exit status %d for '%s'", outcome.exit_status, wrong[i].words);
        assert_int_equal(count_lines(outcome.err), 1);
        if (!has_text(recorded, "precious")) fail_msg("'%s' has changed the record", wrong[i].words);
        if (!has_text(events, "precious")) fail_msg("'%s' has changed the trace", wrong[i].words);
        if (count_entries() != 2) fail_msg("'%s' has left something", wrong[i].words);
    }
}

/* Goal: what a link points at is written, be it there or not, and keeps its mode; nothing is left beside it. */
static void a_link_is_written_through(void **state)
{
    (void)state;
    struct stat about;
    char target[PATH_BYTES + 16], metrics[PATH_BYTES + 16];
    (void)snprintf(target, sizeof target, "%s/target", root);
    (void)snprintf(metrics, sizeof metrics, "%s/metrics", root);
    put_file(target, "before");
    assert_int_equal(chmod(target, 0640), 0);
    assert_int_equal(symlink("target", recorded), 0);
    assert_int_equal(symlink("new", events), 0);
    assert_int_equal(symlink("new-metrics", metrics), 0);
    run_words("run", "--workload chat --requests 2 --record %R --trace-out %E --metrics %T/metrics" SHAPE);
    assert_int_equal(outcome.exit_status, 0);
    assert_string_equal(outcome.err, "");
    const char *const links[] = { recorded, events, metrics };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(links); i++) {
        assert_int_equal(lstat(links[i], &about), 0);
        if (!S_ISLNK(about.st_mode)) fail_msg("%s is no link any more", links[i]);
    }
    assert_int_equal(stat(target, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    assert_true(has_text(recorded, "output_hash_ids"));
    assert_false(has_text(recorded, "before"));
    assert_true(has_text(events, "traceEvents"));
    assert_true(has_text(metrics, "# EOF"));
    assert_int_equal(count_entries(), 6);
}

/* Goal: standard output by another name is not written over; a file of the same name as what it is sent to, neither. */
static void what_goes_to_standard_output_follows_the_report(void **state)
{
    (void)state;
    run_words("run", "--workload chat --requests 2 --record /dev/stdout" SHAPE);
    assert_int_equal(outcome.exit_status, 0);
    const char *report_text = strstr(outcome.out, "verified"), *record = strstr(outcome.out, "output_hash_ids");
    assert_non_null(report_text);
    assert_non_null(record);
    assert_true(record > report_text);
}

/* Goal: what a command reads it does not write, by whatever name. */
static void a_file_that_is_read_is_not_written(void **state)
{
    (void)state;
    static const struct {
        const char *command, *words, *first, *second;
    } wrong[] = {
        { "run", "--trace %R --record %R", "--record", "--trace" },
        { "run", "--trace %R --trace-out %T/./recorded.jsonl", "--trace-out", "--trace" },
        { "run", "--trace %T/hard --record %R", "--record", "--trace" },
        { "run", "--trace %T/soft --record %R", "--record", "--trace" },
        { "run", "--trace %R --metrics %T/soft", "--metrics", "--trace" },
        { "run", "--workload chat --nvme %S:1GiB --nvme-key-file %T/key --record %T/key", "--record",
          "--nvme-key-file" },
        { "sim", "--trace %R --hbm 8MiB --trace-out %R", "--trace-out", "--trace" },
        { "sim", "--trace %R --hbm 8MiB --plot %T/hard.svg", "--plot", "--trace" },
        { "sim", "--workload chat --links %T/key --hbm 8MiB --trace-out %T/key", "--trace-out", "--links" },
        { "sim", "--trace %T/key --trace %R --plot %T/hard.svg", "--plot", "--trace" },
    };
    char path[PATH_BYTES + 16];
    put_file(recorded, "{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n");
    const char *const names[] = { "hard", "hard.svg" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", root, names[i]);
        assert_int_equal(link(recorded, path), 0);
    }
    (void)snprintf(path, sizeof path, "%s/soft", root);
    assert_int_equal(symlink("recorded.jsonl", path), 0);
    (void)snprintf(path, sizeof path, "%s/key", root);
    put_file(path, "0123456789abcdef0123456789abcdef");
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        run_words(wrong[i].command, wrong[i].words);
        if (outcome.exit_status != 2) fail_msg("exit status %d for '%s'", outcome.exit_status, wrong[i].words);
        assert_string_equal(outcome.out, "");
        assert_int_equal(count_lines(outcome.err), 1);
        if (!strstr(outcome.err, wrong[i].first) || !strstr(outcome.err, wrong[i].second))
            fail_msg("'%s' is refused by '%s'", wrong[i].words, outcome.err);
        if (!has_text(recorded, "hash_ids\":[1,2]")) fail_msg("'%s' has changed it", wrong[i].words);
        if (!has_text(path, "0123456789abcdef")) fail_msg("'%s' has changed the key", wrong[i].words);
    }
    assert_int_equal(count_entries(), 5);
    run_words("run", "--trace %R --record %T/other" SHAPE); /* different files are fine */
    assert_int_equal(outcome.exit_status, 0);
}

/* A context larger than the device, so that transfers of layers are in the trace too. */
static void a_streamed_run_is_traced(void **state)
{
    (void)state;
    run_words("run",
              "--workload longdoc --requests 1 --context-tokens 600 --stream --device emulated --hbm 64KiB --host 8MiB"
              " --trace-out %E --json" SHAPE);
    struct json_object *result = report();
    struct json_object *file = json_object_from_file(events);
    assert_non_null(file);
    uint32_t to_device = 0;
    struct json_object *array = member(file, "traceEvents"), *name;
    for (size_t i = 0; i < json_object_array_length(array); i++) {
        struct json_object *event = json_object_array_get_idx(array, i), *category;
        if (!json_object_object_get_ex(event, "cat", &category)) continue;
        if (strcmp(json_object_get_string(category), "transfer") != 0) continue;
        assert_true(json_object_object_get_ex(event, "name", &name));
        to_device += strcmp(json_object_get_string(name), "host to device") == 0;
    }
    assert_true(to_device > 0);
    (void)json_object_put(file);
    (void)json_object_put(result);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    program = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_trace_nests_and_adds_up_to_the_report, enter, leave),
        cmocka_unit_test_setup_teardown(a_recorded_run_is_replayed_to_the_token, enter, leave),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_written_is_one_line, enter, leave),
        cmocka_unit_test_setup_teardown(a_device_is_not_replaced_by_a_file_and_not_removed, enter, leave),
        cmocka_unit_test_setup_teardown(two_files_of_one_name_are_refused, enter, leave),
        cmocka_unit_test_setup_teardown(a_refused_command_leaves_what_was_there, enter, leave),
        cmocka_unit_test_setup_teardown(a_link_is_written_through, enter, leave),
        cmocka_unit_test_setup_teardown(what_goes_to_standard_output_follows_the_report, enter, leave),
        cmocka_unit_test_setup_teardown(a_file_that_is_read_is_not_written, enter, leave),
        cmocka_unit_test_setup_teardown(a_streamed_run_is_traced, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
