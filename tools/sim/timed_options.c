/*
 * Options of the sim's own are taken out of the command line first; an option of kvtier run with commas in its value is
 * an axis of the grid. What is left, with one value of each axis, is a command line of kvtier run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "policy/policy.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/cli.h"
#include "tools/links.h"
#include "tools/run/outputs.h"
#include "tools/sim/gnuplot.h"
#include "tools/sim/options.h"
#include "tools/sim/timed.h"
#include "tools/sim/timed_build.h"
#include "tools/text.h"

#define COMMAND "kvtier sim"
#define PARAMETERS_MAX 1e15

enum { VALUES_MAX = 64, WORDS_MAX = 256, AXES = 11, TEXT_BYTES = 65536 };

static const struct gpu {
    const char *name;
    double flops_per_s, bytes_per_s; /* dense bf16; HBM */
    double link_bytes_per_s;         /* pinned copies, each way */
} gpus[] = {
    { "h200", 989e12, 4.8e12, 55e9 },
    { "h100", 989e12, 3.35e12, 55e9 },
    { "a100", 312e12, 2.04e12, 25e9 },
    { "4090", 165e12, 1.01e12, 25e9 },
};

/*
 * An option whose values make a grid. `given` is what the command line calls it; option: what kvtier run does; check: NULL,
 * or the rule that a value breaks; where there is none, kvtier run's parser checks.
 */
struct axis {
    const char *given, *option;
    const char *(*check)(const char *value);
    char *values[VALUES_MAX];
    uint32_t count;
};

struct parsing {
    struct kvt_timed *timed;
    struct axis axes[AXES];
    char *words[WORDS_MAX]; /* what is left for kvtier run, the command first */
    int word_count;
    char *text; /* TEXT_BYTES, for values that are put together */
    size_t text_used;
};

/* ---- The sim's own ----------------------------------------------------------------------------------------------- */

/* The option that asks for virtual time, or NULL. */
static const char *find_mark(int argc, char **argv)
{
    static const char *const marks[] = { "--hbm",       "--host",        "--nvme",       "--gpu",
                                         "--links",     "--step-ms",     "--parameters", "--pack-ratio",
                                         "--trace-out", "--link-hbm",    "--link-nvme",  "--prefetch",
                                         "--expect",    "--host-policy", NULL };
    return kvt_sim_find_option(argc, argv, marks);
}

bool kvt_sim_is_timed(int argc, char **argv) { return find_mark(argc, argv) != NULL; }

/* KVT_EXIT_OK, or one line was printed. */
static int refuse_counting(int argc, char **argv)
{
    static const char *const names[] = { "--capacities", "--count", "--order", "--repeat", "--warmup", NULL };
    const char *name = kvt_sim_find_option(argc, argv, names);
    if (!name) return KVT_EXIT_OK;
    return kvt_usage_error(COMMAND, "%s is for counting: without %s, which asks for virtual time", name,
                           find_mark(argc, argv));
}

static void set_gpu(struct kvt_timed *timed, double flops, double bytes, double link)
{
    timed->has_gpu = true;
    timed->roofline.flops_per_s = flops;
    timed->roofline.bytes_per_s = bytes;
    timed->links.to_host_bytes_per_s = timed->links.to_device_bytes_per_s = (uint64_t)link;
}

/* "h200" or "flops=989e12,bytes=4.8e12,link=55e9": per second each. NULL, or the rule. */
static const char *read_gpu(char *value, struct parsing *parsing)
{
    static const char rule[] = "h200, h100, a100, 4090, or flops=989e12,bytes=4.8e12,link=55e9 (each a second)";
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(gpus); i++) {
        if (strcmp(gpus[i].name, value) != 0) continue;
        set_gpu(parsing->timed, gpus[i].flops_per_s, gpus[i].bytes_per_s, gpus[i].link_bytes_per_s);
        return NULL;
    }
    double flops = 0, bytes = 0, link = 0;
    int end = 0;
    if (sscanf(value, "flops=%lf,bytes=%lf,link=%lf%n", &flops, &bytes, &link, &end) != 3 || value[end] != '\0')
        return rule;
    if (!(flops >= 1 && flops <= 1e21) || !(bytes >= 1 && bytes <= 1e18) || !(link >= 1 && link <= 1e18)) return rule;
    set_gpu(parsing->timed, flops, bytes, link);
    return NULL;
}

static const char *read_parameters(char *value, struct parsing *parsing)
{
    char *end;
    const double parameters = strtod(value, &end);
    if (end == value || *end != '\0' || !(parameters >= 0 && parameters <= PARAMETERS_MAX))
        return "a count, as in 8e9, 0 to 1e15";
    parsing->timed->roofline.parameters = parameters;
    parsing->timed->has_parameters = true;
    return NULL;
}

static const char *read_ratio(char *value, struct parsing *parsing)
{
    parsing->timed->has_pack_ratio = true;
    return kvt_parse_decimal(value, 1, 100, &parsing->timed->links.pack_ratio);
}

static const char *read_links(char *value, struct parsing *parsing)
{
    parsing->timed->links_path = value;
    return value[0] ? NULL : "a file that kvtier bench --calibrate wrote";
}

static const char *read_plot(char *value, struct parsing *parsing)
{
    parsing->timed->plot = value;
    return kvt_gnuplot_check(value);
}

static const char *read_threads(char *value, struct parsing *parsing)
{
    uint64_t threads;
    const char *rule = kvt_parse_count(value, 1, 64, &threads);
    if (!rule) parsing->timed->threads = (uint32_t)threads;
    return rule;
}

/* The value of `--name VALUE` or `--name=VALUE` at argv[*i], *i moved to its last word; NULL: it is another option. */
static char *value_of(int argc, char **argv, int *i, const char *name)
{
    static char none[1];
    const size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0) return NULL;
    if (argv[*i][length] == '=') return argv[*i] + length + 1;
    if (argv[*i][length] != '\0') return NULL;
    return *i + 1 < argc ? argv[++*i] : none;
}

/* Whether the word was one of the sim's own. *ret_exit_status: KVT_EXIT_OK, or one line was printed. */
static bool take_own(int argc, char **argv, int *i, struct parsing *parsing, int *ret_exit_status)
{
    static const struct {
        const char *name;
        const char *(*read)(char *value, struct parsing *parsing);
    } own[] = {
        { "--gpu", read_gpu },          { "--parameters", read_parameters },
        { "--pack-ratio", read_ratio }, { "--links", read_links },
        { "--plot", read_plot },        { "--threads", read_threads },
    };
    *ret_exit_status = KVT_EXIT_OK;
    if (strcmp(argv[*i], "--csv") == 0) {
        parsing->timed->format = KVT_TIMED_CSV;
        return true;
    }
    for (uint32_t o = 0; o < KVT_ARRAY_COUNT(own); o++) {
        char *value = value_of(argc, argv, i, own[o].name);
        if (!value) continue;
        const char *rule = own[o].read(value, parsing);
        if (rule) *ret_exit_status = kvt_refuse_value(COMMAND, own[o].name, value, rule);
        return true;
    }
    return false;
}

/* ---- Axes -------------------------------------------------------------------------------------------------------- */

static const char *check_policy(const char *value);
static const char *check_admission(const char *value);

static const struct axis axis_names[AXES] = {
    { .given = "--policies", .option = "--policy", .check = check_policy },
    { .given = "--policy", .option = "--policy", .check = check_policy },
    { .given = "--host-policy", .option = "--host-policy", .check = check_policy },
    { .given = "--admission", .option = "--admission", .check = check_admission },
    { .given = "--hbm", .option = "--hbm" },
    { .given = "--host", .option = "--host" },
    { .given = "--nvme", .option = "--nvme" },
    { .given = "--prefetch", .option = "--prefetch" },
    { .given = "--link-hbm", .option = "--link-hbm" },
    { .given = "--link-nvme", .option = "--link-nvme" },
    { .given = "--seed", .option = "--seed" },
};

/* Cuts at commas. False: an empty value, or too many. */
static bool cut(struct axis *axis, char *value)
{
    char *saved = NULL;
    const size_t length = strlen(value);
    if (length > 0 && (value[0] == ',' || value[length - 1] == ',' || strstr(value, ",,"))) return false;
    axis->count = 0;
    if (length == 0) axis->values[axis->count++] = value;
    for (char *item = strtok_r(value, ",", &saved); item; item = strtok_r(NULL, ",", &saved)) {
        if (axis->count == VALUES_MAX) return false;
        axis->values[axis->count++] = item;
    }
    return true;
}

/* "DIR:1GiB,2GiB" is two sizes of one directory, which is not touched anyway. */
static bool cut_nvme(struct parsing *parsing, struct axis *axis, char *value)
{
    char *colon = strrchr(value, ':');
    axis->values[0] = value;
    axis->count = 1;
    if (!colon || !strchr(colon, ',')) return true;
    if (!cut(axis, colon + 1)) return false;
    *colon = '\0';
    for (uint32_t v = 0; v < axis->count; v++) {
        const size_t left = TEXT_BYTES - parsing->text_used;
        char *text = parsing->text + parsing->text_used;
        const int written = snprintf(text, left, "%s:%s", value, axis->values[v]);
        if (written < 0 || (size_t)written >= left) return false;
        axis->values[v] = text;
        parsing->text_used += (size_t)written + 1;
    }
    return true;
}

static const char *policies_rule(void)
{
    static char rule[640]; /* of a process that is about to end */
    char names[512];
    kvt_policy_names(names, sizeof names);
    (void)snprintf(rule, sizeof rule, "names with commas between, of %s", names);
    return rule;
}

static const char *check_policy(const char *value) { return kvt_policy_find(value) ? NULL : policies_rule(); }

static const char *check_admission(const char *value)
{
    static char rule[256]; /* of a process that is about to end */
    char names[192];
    if (kvt_admission_find(value)) return NULL;
    kvt_admission_names(names, sizeof names);
    (void)snprintf(rule, sizeof rule, "names with commas between, of %s", names);
    return rule;
}

static int take_axis(struct parsing *parsing, struct axis *axis, char *value)
{
    char before[256];
    (void)snprintf(before, sizeof before, "%s", value);
    const bool is_cut = strcmp(axis->given, "--nvme") == 0 ? cut_nvme(parsing, axis, value) : cut(axis, value);
    if (!is_cut) return kvt_refuse_value(COMMAND, axis->given, before, "at most 64 values, with one comma between two");
    for (uint32_t v = 0; v < axis->count && axis->check; v++) {
        const char *rule = axis->check(axis->values[v]);
        if (rule) return kvt_refuse_value(COMMAND, axis->given, before, rule);
    }
    return KVT_EXIT_OK;
}

static int take_words(int argc, char **argv, struct parsing *parsing)
{
    int exit_status = KVT_EXIT_OK;
    parsing->words[parsing->word_count++] = argv[0];
    for (int i = 1; i < argc && exit_status == KVT_EXIT_OK; i++) {
        if (take_own(argc, argv, &i, parsing, &exit_status)) continue;
        uint32_t a = 0;
        char *value = NULL;
        while (a < AXES && !(value = value_of(argc, argv, &i, axis_names[a].given))) a++;
        if (value) exit_status = take_axis(parsing, &parsing->axes[a], value);
        else if (parsing->word_count == WORDS_MAX - 2 * AXES - 1)
            exit_status = kvt_usage_error(COMMAND, "the command line has %d words: at most %d", argc, WORDS_MAX / 2);
        else parsing->words[parsing->word_count++] = argv[i];
    }
    return exit_status;
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

/* Fills the job with the n-th combination; the last axis turns fastest. KVT_EXIT_OK, or one line was printed. */
static int fill_job(const struct parsing *parsing, uint64_t n, struct kvt_timed_job *job)
{
    char *words[WORDS_MAX];
    int count = parsing->word_count;
    memcpy(words, parsing->words, (size_t)count * sizeof *words);
    const char *chosen[AXES] = { NULL };
    for (uint32_t a = AXES; a-- > 0;) {
        const struct axis *axis = &parsing->axes[a];
        if (axis->count == 0) continue;
        char *value = axis->values[n % axis->count];
        n /= axis->count;
        if (axis->count > 1) chosen[a] = value;
        words[count++] = (char *)(uintptr_t)axis->option;
        words[count++] = value;
    }
    words[count] = NULL;
    const int exit_status = kvt_run_options_parse(count, words, &job->options);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    size_t used = (size_t)snprintf(job->label, sizeof job->label, "%s",
                                   job->options.policy ? job->options.policy : kvt_policy_at(0)->name);
    for (uint32_t a = 2; a < AXES; a++) {
        if (!chosen[a] || used >= sizeof job->label) continue;
        used += (size_t)snprintf(job->label + used, sizeof job->label - used, ", %s %s", axis_names[a].given + 2,
                                 chosen[a]);
    }
    return KVT_EXIT_OK;
}

static int make_jobs(const struct parsing *parsing, struct kvt_timed *timed)
{
    uint64_t count = 1;
    for (uint32_t a = 0; a < AXES; a++) {
        if (parsing->axes[a].count > 0) count *= parsing->axes[a].count;
        if (count > KVT_TIMED_JOBS_MAX)
            return kvt_usage_error(COMMAND, "the grid has more than %d points", KVT_TIMED_JOBS_MAX);
    }
    timed->jobs = kvt_alloc(count, sizeof *timed->jobs);
    if (!timed->jobs) return kvt_failure(COMMAND, "out of memory");
    timed->job_count = (uint32_t)count;
    int exit_status = KVT_EXIT_OK;
    for (uint64_t n = 0; n < count && exit_status == KVT_EXIT_OK; n++)
        exit_status = fill_job(parsing, n, &timed->jobs[n]);
    return exit_status;
}

/* ---- What a machine was measured to do --------------------------------------------------------------------------- */

static bool has_mixed_speed(const struct kvt_links *links)
{
    const double faster = links->read.bytes_per_s > links->write.bytes_per_s ? links->read.bytes_per_s
                                                                             : links->write.bytes_per_s;
    return links->mixed_bytes_per_s > 1.3 * faster;
}

static int use_links(struct kvt_timed *timed)
{
    char error[512];
    struct kvt_links measured;
    if (!timed->links_path) return KVT_EXIT_OK;
    if (kvt_links_read(timed->links_path, &measured, error, sizeof error) != KVT_OK)
        return kvt_usage_error(COMMAND, "--links: %s", error);
    struct kvt_model_links *links = &timed->links;
    const enum kvt_dtype dtype = timed->jobs[0].options.model.shape.groups[0].dtype;
    timed->has_links = true;
    if (measured.codec[dtype].is_measured) {
        links->pack_ns_per_byte = measured.codec[dtype].pack_ns_per_byte;
        links->unpack_ns_per_byte = measured.codec[dtype].unpack_ns_per_byte;
        if (!timed->has_pack_ratio) links->pack_ratio = measured.codec[dtype].ratio;
    }
    if (!timed->has_gpu) {
        links->to_host_bytes_per_s = (uint64_t)measured.to_host.bytes_per_s;
        links->to_device_bytes_per_s = (uint64_t)measured.to_device.bytes_per_s;
        links->to_host_latency_ns = (uint64_t)measured.to_host.op_ns;
        links->to_device_latency_ns = (uint64_t)measured.to_device.op_ns;
        timed->roofline.write_ns_per_byte = measured.engine.write_ns_per_byte;
        timed->roofline.line_ns = measured.engine.line_ns;
        timed->roofline.wake_ns = (uint64_t)measured.engine.oversleep_ns;
        timed->roofline.between_ns = (uint64_t)measured.engine.between_ns;
    }
    links->wake_ns = (uint64_t)measured.engine.wake_ns;
    if (!measured.has_disk) return KVT_EXIT_OK;
    links->nvme_read_bytes_per_s = (uint64_t)measured.read.bytes_per_s;
    links->nvme_write_bytes_per_s = (uint64_t)measured.write.bytes_per_s;
    links->nvme_read_latency_ns = (uint64_t)measured.read.op_ns;
    links->nvme_write_latency_ns = (uint64_t)measured.write.op_ns;
    links->is_nvme_shared = !has_mixed_speed(&measured);
    links->nvme_alignment = measured.alignment;
    return KVT_EXIT_OK;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static int check_outputs(const struct kvt_timed *timed)
{
    const struct kvt_run_options *first = &timed->jobs[0].options;
    if (first->record) return kvt_usage_error(COMMAND, "--record is for kvtier run: what a run was asked, not a model");
    if (first->metrics_path) return kvt_usage_error(COMMAND, "--metrics is for kvtier run: --json has the figures here");
    if (first->is_streaming) return kvt_usage_error(COMMAND, "--stream is for kvtier run: nothing is streamed in virtual time");
    if (first->trace_out && timed->job_count > 1)
        return kvt_usage_error(COMMAND, "--trace-out is for one run: this grid has %" PRIu32, timed->job_count);
    bool is_expect_idle = true;
    for (uint32_t j = 0; j < timed->job_count; j++)
        is_expect_idle = is_expect_idle && kvt_run_options_is_expect_idle(&timed->jobs[j].options);
    if (is_expect_idle) return kvt_usage_error(COMMAND, "%s", KVT_RUN_EXPECT_IDLE);
    if (timed->has_parameters && !timed->has_gpu)
        return kvt_usage_error(COMMAND, "--parameters needs --gpu: it is that which computes and reads them");
    if (timed->has_parameters && first->step_ns > 0)
        return kvt_usage_error(COMMAND, "--parameters means nothing with --step-ms: a step takes that long");
    if (first->is_json && timed->format == KVT_TIMED_CSV)
        return kvt_usage_error(COMMAND, "--json and --csv exclude each other");
    return KVT_EXIT_OK;
}

/* What is written and what is read must be different files. */
static int check_files(const struct kvt_timed *timed)
{
    struct kvt_named_file files[KVT_OUTPUTS_FILES + 2];
    kvt_outputs_name_files(&timed->jobs[0].options, files);
    files[KVT_OUTPUTS_FILES] = (struct kvt_named_file){ "--links", timed->links_path, false };
    files[KVT_OUTPUTS_FILES + 1] = (struct kvt_named_file){ "--plot", timed->plot, true };
    return kvt_output_files_check(COMMAND, files, KVT_OUTPUTS_FILES + 2);
}

int kvt_timed_parse(int argc, char **argv, struct kvt_timed *ret_timed)
{
    static const struct kvt_model_links defaults = { .to_host_latency_ns = 10000,
                                                     .to_device_latency_ns = 10000,
                                                     .nvme_read_latency_ns = 80000,
                                                     .nvme_write_latency_ns = 80000,
                                                     .nvme_alignment = 512,
                                                     .pack_ratio = 1 };
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    *ret_timed = (struct kvt_timed){ .links = defaults, .threads = processors > 0 ? (uint32_t)processors : 1 };
    ret_timed->memory = kvt_alloc(1, TEXT_BYTES);
    struct parsing parsing = { .timed = ret_timed, .text = ret_timed->memory };
    if (!ret_timed->memory) return kvt_failure(COMMAND, "out of memory");
    memcpy(parsing.axes, axis_names, sizeof axis_names);
    int exit_status = refuse_counting(argc, argv);
    if (exit_status == KVT_EXIT_OK) exit_status = take_words(argc, argv, &parsing);
    if (exit_status == KVT_EXIT_OK) exit_status = make_jobs(&parsing, ret_timed);
    if (exit_status == KVT_EXIT_OK) exit_status = check_outputs(ret_timed);
    if (exit_status == KVT_EXIT_OK) exit_status = check_files(ret_timed);
    if (exit_status == KVT_EXIT_OK) exit_status = use_links(ret_timed);
    if (exit_status == KVT_EXIT_OK && ret_timed->jobs[0].options.is_json) ret_timed->format = KVT_TIMED_JSON;
    if (exit_status != KVT_EXIT_OK) kvt_timed_done(ret_timed);
    return exit_status;
}

void kvt_timed_done(struct kvt_timed *timed)
{
    for (uint32_t j = 0; timed->jobs && j < timed->job_count; j++) {
        kvt_latencies_done(&timed->jobs[j].outcome.latencies);
        kvt_free(timed->jobs[j].outcome.line.samples);
    }
    kvt_free(timed->jobs);
    kvt_free(timed->memory);
    *timed = (struct kvt_timed){ 0 };
}
