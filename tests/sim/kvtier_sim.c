/* kvtier-sim: the whole runtime under seeded faults, many seeds or one. */
#include <argp.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tests/sim/commit.h"
#include "tests/sim/farm.h"
#include "tests/sim/plants.h"
#include "tools/cli.h"
#include "tools/text.h"

static const char command[] = "kvtier-sim";

enum {
    OPTION_COUNT = 0x100,
    OPTION_FAILS,
    OPTION_FAULTS,
    OPTION_JOBS,
    OPTION_JSON,
    OPTION_PLANT,
    OPTION_RESUME,
    OPTION_SECONDS,
    OPTION_SEEDS,
    OPTION_TICKS,
    OPTION_TRACE,
    OPTION_WITHOUT
};

struct options {
    uint64_t first, count;
    uint32_t ticks, jobs, without, seconds_max;
    const char *resume, *plant;
    bool is_one, is_range, is_traced, is_json, is_failure_wanted, has_count;
};

static const struct argp_option option_table[] = {
    { "seeds", OPTION_SEEDS, "A..B", 0, "run these seeds, the last one too", 0 },
    { "ticks", OPTION_TICKS, "N", 0, "ticks of each seed (5000)", 0 },
    { "without", OPTION_WITHOUT, "FAULT,...", 0, "switch these faults off", 0 },
    { "faults", OPTION_FAULTS, NULL, 0, "list the faults, and end", 0 },
    { "trace", OPTION_TRACE, NULL, 0, "with one seed: print every call", 0 },
    { "jobs", OPTION_JOBS, "N", 0, "processes (2)", 0 },
    { "resume", OPTION_RESUME, "FILE", 0, "go on where FILE says, and keep the total of all runs in it", 0 },
    { "count", OPTION_COUNT, "N", 0, "with --resume: how many seeds more (2000)", 0 },
    { "seconds", OPTION_SECONDS, "N", 0, "processor time after which a seed counts as hanging (60)", 0 },
    { "plant", OPTION_PLANT, "NAME", 0, "in a build with planted bugs: plant this one", 0 },
    { "fails", OPTION_FAILS, NULL, 0, "end at the first seed that fails, and succeed only then", 0 },
    { "json", OPTION_JSON, NULL, 0, "print JSON", 0 },
    { 0 }
};

static bool read_number(const char *text, uint64_t most, uint64_t *ret_number)
{
    return kvt_parse_count(text, 0, most, ret_number) == NULL;
}

static error_t refuse(const char *option, const char *value, const char *rule)
{
    (void)kvt_refuse_value(command, option, value, rule);
    return EINVAL;
}

static error_t read_seeds(struct options *options, char *value)
{
    static const char rule[] = "two numbers, A..B, and A is not above B";
    char *dots = strstr(value, "..");
    uint64_t last;
    if (!dots) return refuse("--seeds", value, rule);
    *dots = '\0';
    const bool is_good = read_number(value, UINT64_MAX - 1, &options->first)
        && read_number(dots + 2, UINT64_MAX - 1, &last) && options->first <= last
        && last - options->first < UINT64_C(1) << 32;
    *dots = '.';
    if (!is_good) return refuse("--seeds", value, rule);
    options->count = last - options->first + 1;
    options->is_range = true;
    return 0;
}

static error_t read_without(struct options *options, const char *value)
{
    for (const char *at = value; *at;) {
        const uint32_t length = (uint32_t)strcspn(at, ",");
        const enum sim_fault fault = sim_fault_find(at, length);
        if (fault == SIM_FAULTS) return refuse("--without", value, "faults with commas between; --faults lists them");
        options->without |= 1u << fault;
        at += length + (at[length] == ',');
    }
    return 0;
}

static error_t read_plant(struct options *options, const char *value)
{
    options->plant = value;
    if (sim_plant_choose(value)) return 0;
    return refuse("--plant", value, "a bug that this build can plant; tests/sim/README.md lists them");
}

static error_t list_faults(void)
{
    for (uint32_t f = 0; f < SIM_FAULTS; f++)
        (void)printf("%-10s %s\n", sim_fault_name((enum sim_fault)f), sim_fault_text((enum sim_fault)f));
    exit(KVT_EXIT_OK);
}

static error_t read_limit(const char *option, const char *value, uint64_t most, uint32_t *ret_value)
{
    uint64_t number;
    char rule[64];
    (void)snprintf(rule, sizeof rule, "a number from 1 to %llu", (unsigned long long)most);
    if (!read_number(value, most, &number) || number == 0) return refuse(option, value, rule);
    *ret_value = (uint32_t)number;
    return 0;
}

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct options *options = state->input;
    uint32_t count;
    error_t error;
    switch (key) {
    case OPTION_SEEDS: return read_seeds(options, value);
    case OPTION_TICKS: return read_limit("--ticks", value, 10000000, &options->ticks);
    case OPTION_JOBS: return read_limit("--jobs", value, 64, &options->jobs);
    case OPTION_SECONDS: return read_limit("--seconds", value, 86400, &options->seconds_max);
    case OPTION_COUNT:
        error = read_limit("--count", value, 100000000, &count);
        options->count = count;
        options->has_count = true;
        return error;
    case OPTION_WITHOUT: return read_without(options, value);
    case OPTION_PLANT: return read_plant(options, value);
    case OPTION_FAILS: options->is_failure_wanted = true; return 0;
    case OPTION_FAULTS: return list_faults();
    case OPTION_RESUME: options->resume = value; return 0;
    case OPTION_TRACE: options->is_traced = true; return 0;
    case OPTION_JSON: options->is_json = true; return 0;
    case ARGP_KEY_ARG:
        if (options->is_one) return kvt_refuse_argument(state, value);
        options->is_one = true;
        options->count = 1;
        if (!read_number(value, UINT64_MAX - 1, &options->first)) return refuse("SEED", value, "a number");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp sim_argp = {
    .options = option_table,
    .parser = read_option,
    .args_doc = "[SEED]",
    .doc = "Runs the whole runtime in one thread, on a clock, a disk and a device that "
           "a seed moves, and checks that it keeps its promises.\v"
           "A seed decides everything: the same command line gives the same run. A "
           "seed that fails is shrunk, and the command line that shows it is printed."
};

static int check_options(const struct options *options)
{
    const int ways = options->is_one + options->is_range + (options->resume != NULL);
    if (ways == 0) return kvt_usage_error(command, "what to run is missing: a SEED, --seeds A..B or --resume FILE");
    if (ways > 1) return kvt_usage_error(command, "SEED, --seeds and --resume exclude each other: give one of them");
    if (options->is_traced && !options->is_one) return kvt_usage_error(command, "--trace wants one SEED");
    if (options->has_count && !options->resume) return kvt_usage_error(command, "--count goes with --resume");
    return KVT_EXIT_OK;
}

/* ---- The total of all runs --------------------------------------------------------------------------------------- */

struct total {
    uint64_t next, seeds, ticks, failed; /* next: the first seed that was not run */
};

/* A file that is not there is an empty total. False: it is there and is none. */
static bool read_total(const char *path, struct total *ret_total)
{
    *ret_total = (struct total){ .next = 1 };
    if (access(path, F_OK) != 0) return errno == ENOENT;
    struct json_object *root = json_object_from_file(path), *item;
    if (!root) return false;
    const struct {
        const char *name;
        uint64_t *value;
    } members[] = { { "next_seed", &ret_total->next },
                    { "seeds", &ret_total->seeds },
                    { "ticks", &ret_total->ticks },
                    { "violations", &ret_total->failed } };
    bool is_good = true;
    for (size_t i = 0; i < KVT_ARRAY_COUNT(members); i++) {
        const bool is_there = json_object_object_get_ex(root, members[i].name, &item)
            && json_object_is_type(item, json_type_int) && json_object_get_int64(item) >= 0;
        if (is_there) *members[i].value = (uint64_t)json_object_get_int64(item);
        is_good = is_good && is_there;
    }
    (void)json_object_put(root);
    return is_good;
}

/* Whole or not at all: a run may be interrupted at any time. */
static bool write_total(const char *path, const struct total *total)
{
    struct json_object *root = json_object_new_object();
    (void)json_object_object_add(root, "next_seed", json_object_new_int64((int64_t)total->next));
    (void)json_object_object_add(root, "seeds", json_object_new_int64((int64_t)total->seeds));
    (void)json_object_object_add(root, "ticks", json_object_new_int64((int64_t)total->ticks));
    (void)json_object_object_add(root, "violations", json_object_new_int64((int64_t)total->failed));
    (void)json_object_object_add(root, "commit", json_object_new_string(sim_commit));
    char beside[4096];
    (void)snprintf(beside, sizeof beside, "%s.new", path);
    const bool is_good = json_object_to_file_ext(beside, root, JSON_C_TO_STRING_PRETTY) == 0
        && rename(beside, path) == 0;
    (void)json_object_put(root);
    return is_good;
}

/* ---- Reports ----------------------------------------------------------------------------------------------------- */

static void list_without(uint32_t without, char *ret_text, size_t size)
{
    size_t length = 0;
    ret_text[0] = '\0';
    for (uint32_t f = 0; f < SIM_FAULTS; f++) {
        if (!(without >> f & 1u)) continue;
        length += (size_t)snprintf(ret_text + length, size - length, "%s%s", length ? "," : " --without ",
                                   sim_fault_name((enum sim_fault)f));
    }
}

static void print_failure(const struct options *options, uint64_t seed, const struct sim_outcome *outcome,
                          uint32_t ticks, uint32_t without)
{
    char text[256];
    list_without(without, text, sizeof text);
    (void)fprintf(stderr, "seed %llu fails at tick %llu: %s\n    %s %llu --ticks %u%s%s%s --trace\n",
                  (unsigned long long)seed, (unsigned long long)outcome->tick, outcome->text, command,
                  (unsigned long long)seed, ticks, text, options->plant ? " --plant " : "",
                  options->plant ? options->plant : "");
}

static void add_number(struct json_object *root, const char *name, uint64_t value)
{
    (void)json_object_object_add(root, name, json_object_new_uint64(value));
}

static struct json_object *json_of(const struct options *options, const struct farm_result *result)
{
    const struct sim_counts *counts = &result->counts;
    struct json_object *root = json_object_new_object(), *faults = json_object_new_object(),
                       *failures = json_object_new_array();
    (void)json_object_object_add(root, "commit", json_object_new_string(sim_commit));
    add_number(root, "first_seed", options->first);
    add_number(root, "seeds", result->done);
    add_number(root, "ticks", counts->ticks);
    add_number(root, "violations", result->failed);
    (void)json_object_object_add(root, "seconds", json_object_new_double(result->seconds));
    add_number(root, "rows_checked", counts->rows);
    add_number(root, "recounts", counts->recounts);
    add_number(root, "reused_tokens", counts->reused_tokens);
    add_number(root, "losses", counts->losses);
    add_number(root, "restarts", counts->restarts);
    add_number(root, "kills", counts->kills);
    add_number(root, "power_cuts", counts->power_cuts);
    add_number(root, "resets", counts->resets);
    add_number(root, "reclaims", counts->reclaims);
    add_number(root, "records_read", counts->records_read);
    add_number(root, "records_durable", counts->records_durable);
    add_number(root, "verifies", counts->verifies);
    add_number(root, "landings", counts->landings);
    add_number(root, "window_layers", counts->chunks);
    for (uint32_t f = 0; f < SIM_FAULTS; f++) {
        if (counts->faults[f]) add_number(faults, sim_fault_name((enum sim_fault)f), counts->faults[f]);
    }
    (void)json_object_object_add(root, "faults", faults);
    for (uint32_t i = 0; i < kvt_min_u64(result->failed, FARM_FAILURES_MAX); i++) {
        struct json_object *failure = json_object_new_object();
        add_number(failure, "seed", result->failures[i].seed);
        add_number(failure, "tick", result->failures[i].outcome.tick);
        (void)json_object_object_add(failure, "text", json_object_new_string(result->failures[i].outcome.text));
        (void)json_object_array_add(failures, failure);
    }
    (void)json_object_object_add(root, "failures", failures);
    return root;
}

static void print_result(const struct options *options, const struct farm_result *result)
{
    if (options->is_json) {
        struct json_object *root = json_of(options, result);
        (void)printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN));
        (void)json_object_put(root);
        return;
    }
    const struct sim_counts *counts = &result->counts;
    const double rate = result->seconds > 0 ? (double)counts->ticks / result->seconds : 0;
    (void)printf("%llu seeds from %llu on, %llu ticks, %.1f s (%.0f ticks/s), commit %s: %llu violations\n",
                 (unsigned long long)result->done, (unsigned long long)options->first,
                 (unsigned long long)counts->ticks, result->seconds, rate, sim_commit,
                 (unsigned long long)result->failed);
    (void)printf("  engine: %llu rows compared, %llu tokens reused, %llu losses told, %llu recounts\n",
                 (unsigned long long)counts->rows, (unsigned long long)counts->reused_tokens,
                 (unsigned long long)counts->losses, (unsigned long long)counts->recounts);
    (void)printf(
        "  tiers: hits %llu device, %llu host, %llu nvme; %llu stashes, %llu fetches, %llu failed, %llu abandoned\n",
        (unsigned long long)counts->hits[0], (unsigned long long)counts->hits[1], (unsigned long long)counts->hits[2],
        (unsigned long long)counts->stashes, (unsigned long long)counts->fetches, (unsigned long long)counts->failures,
        (unsigned long long)counts->abandoned);
    (void)printf(
        "  store: %llu restarts, %llu kills, %llu power cuts, %llu resets, %llu reclaims; %llu records read, %llu were "
        "durable\n",
        (unsigned long long)counts->restarts, (unsigned long long)counts->kills, (unsigned long long)counts->power_cuts,
        (unsigned long long)counts->resets, (unsigned long long)counts->reclaims,
        (unsigned long long)counts->records_read, (unsigned long long)counts->records_durable);
    (void)printf(
        "  steps that began while blocks landed: %llu, %llu taken back; %llu layers of blocks through windows\n"
        "  directories verified as store verify does: %llu times\n",
        (unsigned long long)counts->landings, (unsigned long long)counts->episodes_lost,
        (unsigned long long)counts->chunks, (unsigned long long)counts->verifies);
    (void)printf("  faults:");
    for (uint32_t f = 0; f < SIM_FAULTS; f++) {
        if (counts->faults[f])
            (void)printf(" %s %llu", sim_fault_name((enum sim_fault)f), (unsigned long long)counts->faults[f]);
    }
    (void)printf("\n");
}

/* ---- Runs -------------------------------------------------------------------------------------------------------- */

static int run_one(const struct options *options)
{
    const struct sim_plan plan = sim_plan_of(options->first, options->ticks, options->without);
    if (!options->is_json) sim_plan_print(&plan);
    const struct sim_outcome outcome = farm_try(options->first, options->ticks, options->without, options->is_traced,
                                                options->seconds_max);
    struct farm_result result = { .done = 1, .failed = outcome.is_failed, .counts = outcome.counts };
    result.failures[0] = (struct farm_failure){ options->first, outcome };
    print_result(options, &result);
    if (!options->is_json) (void)printf("  digest: %016llx\n", (unsigned long long)outcome.digest);
    if (outcome.is_failed) print_failure(options, options->first, &outcome, options->ticks, options->without);
    return outcome.is_failed ? KVT_EXIT_FAILED : KVT_EXIT_OK;
}

struct watch {
    struct kvt_progress progress;
    const struct options *options;
    struct total total; /* before this run */
    uint64_t told, failed;
};

static struct total total_after(const struct watch *watch, uint64_t done, uint64_t failed)
{
    struct total total = watch->total;
    total.next += done;
    total.seeds += done;
    total.ticks += done * watch->options->ticks;
    total.failed += failed;
    return total;
}

/* Failures are told, and counted, when they are met: whoever interrupts the run would not hear of them otherwise. */
static void look(void *user, uint64_t done, uint64_t done_in_a_row, const struct farm_result *result)
{
    struct watch *watch = user;
    kvt_progress_update(&watch->progress, done, NULL);
    if (result->failed > watch->failed)
        (void)fprintf(stderr, "%llu seeds fail so far, the first of them is %llu\n", (unsigned long long)result->failed,
                      (unsigned long long)result->failures[0].seed);
    const bool is_news = result->failed > watch->failed;
    watch->failed = result->failed;
    if (!watch->options->resume || (!is_news && done_in_a_row < watch->told + 100)) return;
    watch->told = done_in_a_row;
    uint64_t failed = 0;
    for (uint64_t i = 0; i < kvt_min_u64(result->failed, FARM_FAILURES_MAX); i++)
        failed += result->failures[i].seed < watch->options->first + done_in_a_row;
    const struct total total = total_after(watch, done_in_a_row, failed);
    (void)write_total(watch->options->resume, &total);
}

static void shrink_first(const struct options *options, const struct farm_result *result)
{
    const struct farm_failure *failure = &result->failures[0];
    uint32_t ticks = options->ticks, without = options->without;
    print_failure(options, failure->seed, &failure->outcome, ticks, without);
    for (uint32_t i = 1; i < kvt_min_u64(result->failed, FARM_FAILURES_MAX); i++)
        print_failure(options, result->failures[i].seed, &result->failures[i].outcome, ticks, without);
    (void)fprintf(stderr, "shrinking seed %llu\n", (unsigned long long)failure->seed);
    const struct sim_outcome least = farm_shrink(failure->seed, &ticks, &without, options->seconds_max);
    if (least.is_failed) print_failure(options, failure->seed, &least, ticks, without);
    else
        (void)fprintf(stderr, "seed %llu does not fail again: it is not deterministic\n",
                      (unsigned long long)failure->seed);
}

static int run_many(struct options *options)
{
    struct watch watch = { .options = options };
    if (options->resume && !read_total(options->resume, &watch.total))
        return kvt_refuse_value(command, "--resume", options->resume, "a file that an earlier run wrote, or none");
    if (options->resume) options->first = watch.total.next;
    const struct farm_config config = { .first = options->first,
                                        .count = options->count,
                                        .ticks = options->ticks,
                                        .without = options->without,
                                        .jobs = (uint32_t)kvt_min_u64(options->jobs, options->count),
                                        .seconds_max = options->seconds_max,
                                        .is_first_enough = options->is_failure_wanted,
                                        .progress = look,
                                        .user = &watch };
    struct farm_result result;
    kvt_progress_begin(&watch.progress, "sim", options->count);
    const bool is_run = farm_run(&config, &result);
    kvt_progress_end(&watch.progress);
    if (!is_run) return kvt_failure(command, "a process could not be started: %s", strerror(errno));
    print_result(options, &result);
    if (options->is_failure_wanted) {
        if (result.failed > 0)
            (void)printf("seed %llu finds it: %s\n", (unsigned long long)result.failures[0].seed,
                         result.failures[0].outcome.text);
        return result.failed > 0 ? KVT_EXIT_OK : KVT_EXIT_FAILED;
    }
    if (options->resume) {
        const struct total total = total_after(&watch, result.done_in_a_row, result.failed);
        if (!write_total(options->resume, &total))
            return kvt_failure(command, "%s cannot be written: %s", options->resume, strerror(errno));
        if (!options->is_json)
            (void)printf("  all runs: %llu seeds, %llu ticks, %llu violations\n", (unsigned long long)total.seeds,
                         (unsigned long long)total.ticks, (unsigned long long)total.failed);
    }
    if (result.failed > 0) shrink_first(options, &result);
    return result.failed > 0 ? KVT_EXIT_FAILED : KVT_EXIT_OK;
}

int main(int argc, char **argv)
{
    struct options options = { .ticks = SIM_TICKS, .jobs = 2, .seconds_max = 60, .count = 2000 };
    argv[0] = (char *)(uintptr_t)command;
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* small tables by the thousand: clearing huge pages took a quarter */
    int status = kvt_parse_options(&sim_argp, argc, argv, &options);
    if (status == KVT_EXIT_OK) status = check_options(&options);
    if (status != KVT_EXIT_OK) return status;
    return options.is_one ? run_one(&options) : run_many(&options);
}
