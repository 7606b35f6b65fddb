/* top: a live view of a running process, from the metrics that it writes to a file. */
#include <errno.h>
#include <json-c/json.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/text.h"

#define COMMAND "kvtier top"

enum { OPTION_JSON = 0x100, OPTION_INTERVAL, OPTION_ONCE };
enum { TEXT_BYTES = 256 * 1024, STALE_S = 5, BUCKETS_MAX = 64 };

struct options {
    const char *path;
    uint64_t interval_ns;
    bool is_once, is_json;
};

/* One reading of the file. Its samples are lines: name, labels, value. */
struct reading {
    char text[TEXT_BYTES];
    double written_s; /* when the file was last written */
};

static atomic_bool is_interrupted; /* shared: set by the signal handler */

static void on_signal(int number)
{
    (void)number;
    atomic_store(&is_interrupted, true);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static const struct argp_option option_table[] = {
    { "interval", OPTION_INTERVAL, "TIME", 0, "between two looks, at least 100ms (default 1s)", 0 },
    { "once", OPTION_ONCE, NULL, 0, "look once and end, as when the output is no terminal", 0 },
    { "json", OPTION_JSON, NULL, 0, "print every sample once, as JSON", 0 },
    { 0 }
};

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case OPTION_JSON: options->is_json = true; return 0;
    case OPTION_ONCE: options->is_once = true; return 0;
    case OPTION_INTERVAL: {
        const char *rule = kvt_parse_time(value, &options->interval_ns);
        if (!rule && options->interval_ns < 100000000u) rule = "at least 100ms";
        if (!rule) return 0;
        (void)kvt_refuse_value(state->argv[0], "--interval", value, rule);
        return EINVAL;
    }
    case ARGP_KEY_ARG:
        if (options->path) return kvt_refuse_extra_argument(state, value);
        options->path = value;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp top_argp = { .options = option_table,
                                      .parser = read_option,
                                      .args_doc = "FILE",
                                      .doc = "Shows what a running process does.\vFILE is what `kvtier run --metrics "
                                             "FILE` writes, or any file with the text of kvt_metrics_text(). "
                                             "docs/operations.md explains each line." };

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* NULL, or why there is nothing to show. */
static const char *read_file(const char *path, struct reading *reading)
{
    FILE *stream = fopen(path, "re");
    if (!stream) return strerror(errno);
    struct stat about;
    const bool is_known = fstat(fileno(stream), &about) == 0;
    const size_t length = fread(reading->text, 1, TEXT_BYTES - 1, stream);
    const bool has_failed = ferror(stream) != 0;
    const int error = errno;
    (void)fclose(stream);
    if (has_failed || !is_known) return strerror(error);
    reading->text[length] = '\0';
    reading->written_s = (double)about.st_mtim.tv_sec + (double)about.st_mtim.tv_nsec / 1e9;
    if (length < 6 || strcmp(reading->text + length - 6, "# EOF\n") != 0) return "it is no complete OpenMetrics text";
    return NULL;
}

/* The value of "kvtier_NAME{LABELS}"; NAN when there is none. */
static double value_of(const struct reading *reading, const char *sample)
{
    const size_t length = strlen(sample);
    for (const char *line = reading->text; *line; line++) {
        if (strncmp(line, sample, length) == 0 && line[length] == ' ') return strtod(line + length, NULL);
        line = strchr(line, '\n');
        if (!line) break;
    }
    return NAN;
}

static double labelled(const struct reading *reading, const char *name, const char *label, const char *value)
{
    char sample[160];
    (void)snprintf(sample, sizeof sample, "kvtier_%s{%s=\"%s\"}", name, label, value);
    return value_of(reading, sample);
}

/* Growth in a second between two readings; NAN without an earlier one, or when the process is another one by now. */
static double growth(double before, double now, double seconds)
{
    return seconds > 0 && now >= before ? (now - before) / seconds : NAN;
}

/*
 * The bound under which the share of a leg's transfers stayed, of those since the reading before (of all without one).
 * NAN: there were none.
 */
static double quantile(const struct reading *before, const struct reading *now, const char *leg, double share)
{
    double bounds[BUCKETS_MAX], counts[BUCKETS_MAX];
    uint32_t n = 0;
    char prefix[96];
    const int length = snprintf(prefix, sizeof prefix, "kvtier_transfer_seconds_bucket{leg=\"%s\",le=\"", leg);
    for (const char *at = strstr(now->text, prefix); at && n < BUCKETS_MAX; at = strstr(at + 1, prefix)) {
        char sample[160];
        const char *space = strchr(at, ' ');
        if (!space || space - at >= (ptrdiff_t)sizeof sample) break;
        (void)snprintf(sample, sizeof sample, "%.*s", (int)(space - at), at);
        const double earlier = before ? value_of(before, sample) : 0;
        bounds[n] = at[length] == '+' ? INFINITY : strtod(at + length, NULL);
        counts[n++] = strtod(space, NULL) - (isnan(earlier) ? 0 : earlier);
    }
    if (n == 0 || counts[n - 1] <= 0) return NAN;
    for (uint32_t i = 0; i < n; i++) {
        if (counts[i] >= share * counts[n - 1]) return bounds[i];
    }
    return NAN;
}

/* ---- Showing ----------------------------------------------------------------------------------------------------- */

static const char *const tiers[] = { "device", "host", "nvme" };
static const char *const legs[] = { "device_to_host", "host_to_nvme", "nvme_to_host", "host_to_device",
                                    "device_to_device", "host_to_device_part", "host_to_window" };
static const char *const causes[] = {
    "late_hint", "no_slot", "nvme_queue", "nvme_link", "host_link", "codec", "other"
};
static const char *const reasons[] = { "io", "corrupt", "notfound", "full", "shutdown", "deadline" };

static void add_bytes(struct kvt_listing *listing, double bytes, const char *unit)
{
    if (isnan(bytes)) kvt_listing_add(listing, "-");
    else kvt_listing_add(listing, "%s%s", kvt_format_bytes((uint64_t)bytes).text, unit);
}

static void add_count(struct kvt_listing *listing, double count)
{
    if (isnan(count)) kvt_listing_add(listing, "-");
    else kvt_listing_add(listing, "%s", kvt_format_count((uint64_t)(count + 0.5)).text);
}

static void add_seconds(struct kvt_listing *listing, double seconds)
{
    if (isnan(seconds)) kvt_listing_add(listing, "-");
    else if (isinf(seconds)) kvt_listing_add(listing, "> 17 s");
    else kvt_listing_add(listing, "%s", kvt_format_duration((uint64_t)(seconds * 1e9)).text);
}

static double moved(const struct reading *reading, const char *tier, const char *direction)
{
    char sample[128];
    (void)snprintf(sample, sizeof sample, "kvtier_tier_moved_bytes_total{tier=\"%s\",direction=\"%s\"}", tier,
                   direction);
    return value_of(reading, sample);
}

static void heading(struct kvt_listing *listing, const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) kvt_listing_add(listing, "%s", names[i]);
}

static void show_tiers(const struct reading *before, const struct reading *now, double seconds)
{
    static const char *const names[] = { "tier", "used", "of", "blocks", "found", "evicted", "in", "out" };
    struct kvt_listing listing;
    kvt_listing_init(&listing, "lrrrrrrr");
    heading(&listing, names, KVT_ARRAY_COUNT(names));
    for (uint32_t t = 0; t < KVT_ARRAY_COUNT(tiers); t++) {
        kvt_listing_add(&listing, "%s", tiers[t]);
        add_bytes(&listing, labelled(now, "tier_used_bytes", "tier", tiers[t]), "");
        add_bytes(&listing, labelled(now, "tier_capacity_bytes", "tier", tiers[t]), "");
        add_count(&listing, labelled(now, "tier_blocks", "tier", tiers[t]));
        add_count(&listing, labelled(now, "lookup_blocks_total", "found", tiers[t]));
        add_count(&listing, labelled(now, "tier_evictions_total", "tier", tiers[t]));
        for (uint32_t d = 0; d < 2; d++) {
            const char *direction = d == 0 ? "in" : "out";
            const double total = moved(now, tiers[t], direction);
            if (before) add_bytes(&listing, growth(moved(before, tiers[t], direction), total, seconds), "/s");
            else add_bytes(&listing, total, "");
        }
    }
    kvt_listing_print(&listing, stdout, "  ");
}

static double failures(const struct reading *reading, const char *leg)
{
    double sum = 0;
    for (uint32_t r = 0; r < KVT_ARRAY_COUNT(reasons); r++) {
        char sample[128];
        (void)snprintf(sample, sizeof sample, "kvtier_transfer_failures_total{leg=\"%s\",reason=\"%s\"}", leg,
                       reasons[r]);
        sum += value_of(reading, sample);
    }
    return sum;
}

static void show_transfers(const struct reading *before, const struct reading *now, double seconds)
{
    static const char *const names[] = { "transfers", "done", "half within", "99 % within", "failed" };
    struct kvt_listing listing;
    kvt_listing_init(&listing, "lrrrr");
    heading(&listing, names, KVT_ARRAY_COUNT(names));
    for (uint32_t l = 0; l < KVT_ARRAY_COUNT(legs); l++) {
        const double total = labelled(now, "transfer_seconds_count", "leg", legs[l]);
        kvt_listing_add(&listing, "%s", legs[l]);
        if (before) {
            const double each = growth(labelled(before, "transfer_seconds_count", "leg", legs[l]), total, seconds);
            if (isnan(each)) kvt_listing_add(&listing, "-");
            else kvt_listing_add(&listing, "%.0f/s", each);
        } else {
            add_count(&listing, total);
        }
        add_seconds(&listing, quantile(before, now, legs[l], 0.5));
        add_seconds(&listing, quantile(before, now, legs[l], 0.99));
        add_count(&listing, failures(now, legs[l]));
    }
    kvt_listing_print(&listing, stdout, "  ");
}

static void show_stalls(const struct reading *before, const struct reading *now, double seconds)
{
    double total = 0;
    (void)printf("  stalls     ");
    for (uint32_t c = 0; c < KVT_ARRAY_COUNT(causes); c++) {
        const double all = labelled(now, "stall_seconds_total", "cause", causes[c]);
        const double since = before ? growth(labelled(before, "stall_seconds_total", "cause", causes[c]), all, seconds)
                                    : all;
        if (isnan(since) || since == 0) continue;
        (void)printf("%s%s %s%s", total > 0 ? ", " : "", causes[c], kvt_format_duration((uint64_t)(since * 1e9)).text,
                     before ? " a second" : "");
        total += since;
    }
    (void)printf("%s\n", total > 0 ? "" : "none");
}

static void show_line(const char *label, double value, bool is_bytes)
{
    if (isnan(value)) return;
    (void)printf("  %-10s %s\n", label,
                 is_bytes ? kvt_format_bytes((uint64_t)value).text : kvt_format_count((uint64_t)value).text);
}

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void show(const char *path, const struct reading *before, const struct reading *now)
{
    const double age_s = now_s() - now->written_s;
    const double seconds = before ? now->written_s - before->written_s : 0;
    (void)printf("%s, written %s ago%s\n", path, kvt_format_duration((uint64_t)(fmax(age_s, 0) * 1e9)).text,
                 age_s > STALE_S ? ": its process has ended, or hangs" : "");
    show_tiers(before, now, seconds);
    show_transfers(before, now, seconds);
    show_stalls(before, now, seconds);
    show_line("sequences", value_of(now, "kvtier_sequences"), false);
    show_line("steps", value_of(now, "kvtier_steps_total"), false);
    show_line("lost", value_of(now, "kvtier_lost_blocks_total"), false);
    show_line("dropped", value_of(now, "kvtier_dropped_blocks_total"), false);
    show_line("quarantine", value_of(now, "kvtier_quarantined_transfers"), false);
    show_line("records", value_of(now, "kvtier_store_records"), false);
    show_line("written", value_of(now, "kvtier_store_written_bytes_total"), true);
    show_line("day left", value_of(now, "kvtier_store_day_left_bytes"), true);
    (void)fflush(stdout);
}

static int print_json(const struct reading *reading)
{
    struct json_object *samples = json_object_new_object();
    for (const char *line = reading->text; *line;) {
        const char *end = strchr(line, '\n'), *space = end;
        if (!end) break;
        while (space > line && *space != ' ') space--;
        char sample[192];
        if (*line != '#' && space > line && space - line < (ptrdiff_t)sizeof sample) {
            (void)snprintf(sample, sizeof sample, "%.*s", (int)(space - line), line);
            (void)json_object_object_add(samples, sample, json_object_new_double(strtod(space, NULL)));
        }
        line = end + 1;
    }
    struct json_object *report = json_object_new_object();
    (void)json_object_object_add(report, "written", json_object_new_double(reading->written_s));
    (void)json_object_object_add(report, "samples", samples);
    (void)printf("%s\n", json_object_to_json_string_ext(report, JSON_C_TO_STRING_PRETTY));
    (void)json_object_put(report);
    return KVT_EXIT_OK;
}

static void nap(uint64_t ns)
{
    const struct timespec time = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };
    (void)nanosleep(&time, NULL); /* a signal ends it early */
}

/* Draws again and again; ends with the signal, or when the file has gone. */
static int watch(const struct options *options, struct reading readings[2])
{
    const struct sigaction action = { .sa_handler = on_signal };
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    for (uint32_t turn = 0; !atomic_load(&is_interrupted); turn++) {
        const struct reading *before = turn == 0 ? NULL : &readings[(turn + 1) % 2];
        (void)printf("\033[H\033[2J"); /* home, clear */
        show(options->path, before, &readings[turn % 2]);
        nap(options->interval_ns);
        const char *why = read_file(options->path, &readings[(turn + 1) % 2]);
        if (why) return kvt_failure(COMMAND, "'%s': %s", options->path, why);
    }
    return KVT_EXIT_OK;
}

int kvt_cmd_top(int argc, char **argv)
{
    static struct reading readings[2];
    struct options options = { .interval_ns = 1000000000u };
    const int parsed = kvt_parse_options(&top_argp, argc, argv, &options);
    if (parsed != KVT_EXIT_OK) return parsed;
    if (!options.path) return kvt_usage_error(COMMAND, "no FILE: kvtier run --metrics FILE writes one");
    const char *why = read_file(options.path, &readings[0]);
    if (why) return kvt_usage_error(COMMAND, "FILE is '%s': %s", options.path, why);
    if (options.is_json) return print_json(&readings[0]);
    if (!options.is_once && isatty(STDOUT_FILENO)) return watch(&options, readings);
    show(options.path, NULL, &readings[0]);
    return KVT_EXIT_OK;
}
