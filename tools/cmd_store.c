/* store: looks at, checks and tidies a store directory. */
#include <errno.h>
#include <json-c/json.h>
#include <string.h>

#include "kvtier/store.h"
#include "runtime/base/bytes.h"
#include "tiers/store_verify.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/key_file.h"
#include "tools/text.h"

enum { OPTION_JSON = 0x100, OPTION_KEY };

struct options {
    const char *action, *directory;
    bool is_json, has_key;
    uint8_t key[32];
};

/* What an action adds to what the store says of itself. */
struct findings {
    uint64_t good, bad;       /* verify */
    uint64_t served_bad;      /* verify */
    uint64_t freed_bytes;     /* compact */
    struct json_object *list; /* ls */
};

struct action {
    const char *name;
    int (*run)(const char *command, const struct options *options, struct kvt_store *store, struct findings *findings);
};

static const struct argp_option option_table[] = {
    { "key-file", OPTION_KEY, "FILE", 0, "the key of an encrypted store: 32 bytes, or 64 hexadecimal digits", 0 },
    { "json", OPTION_JSON, NULL, 0, "print JSON", 0 },
    { 0 }
};

static error_t read_option(int key, char *value, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case OPTION_JSON: options->is_json = true; return 0;
    case OPTION_KEY: {
        const char *rule = kvt_read_key_file(value, options->key);
        if (rule) {
            (void)kvt_refuse_value(state->argv[0], "--key-file", value, rule);
            return EINVAL;
        }
        options->has_key = true;
        return 0;
    }
    case ARGP_KEY_ARG:
        if (!options->action) options->action = value;
        else if (!options->directory) options->directory = value;
        else return kvt_refuse_extra_argument(state, value);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp store_argp = {
    .options = option_table,
    .parser = read_option,
    .args_doc = "stat|ls|verify|compact DIR",
    .doc = "Looks at a store directory that no process has open.\v"
           "stat: what it takes and holds. ls: its records. verify: reads every "
           "record as any reader would, and once more from its file. Bad is a "
           "record that is damaged: whoever asks for it is told of a miss, and it "
           "is forgotten; a write that a crash cut off is one, too. Served bad is "
           "one that was handed back as good and is not what lies in the file under "
           "sums that hold: that never happens. Exit status 1 when there is either. "
           "compact: moves scattered records together and gives space back."
};

/* ---- Actions ----------------------------------------------------------------------------------------------------- */

static int run_stat(const char *command, const struct options *options, struct kvt_store *store,
                    struct findings *findings)
{
    (void)command;
    (void)options;
    (void)store;
    (void)findings;
    return KVT_EXIT_OK;
}

static const char *form_name(uint32_t form) { return form == 0 ? "raw" : form == 1 ? "packed" : "other"; }

static void list_one(const struct options *options, const struct kvt_store_listed *record, struct findings *findings)
{
    char space[40], key[40];
    (void)snprintf(space, sizeof space, "%016llx%016llx", (unsigned long long)record->name.space[1],
                   (unsigned long long)record->name.space[0]);
    (void)snprintf(key, sizeof key, "%016llx%016llx", (unsigned long long)record->name.key[1],
                   (unsigned long long)record->name.key[0]);
    if (!options->is_json) {
        (void)printf("%s  %s  %12u  %-6s  %6u\n", space, key, record->length, form_name(record->form), record->tokens);
        return;
    }
    struct json_object *item = json_object_new_object();
    (void)json_object_object_add(item, "space", json_object_new_string(space));
    (void)json_object_object_add(item, "key", json_object_new_string(key));
    (void)json_object_object_add(item, "generation", json_object_new_uint64(record->generation));
    (void)json_object_object_add(item, "length", json_object_new_uint64(record->length));
    (void)json_object_object_add(item, "form", json_object_new_string(form_name(record->form)));
    (void)json_object_object_add(item, "tokens", json_object_new_uint64(record->tokens));
    (void)json_object_array_add(findings->list, item);
}

static int run_ls(const char *command, const struct options *options, struct kvt_store *store,
                  struct findings *findings)
{
    enum { BATCH = 64 };
    (void)command;
    struct kvt_store_listed listed[BATCH];
    uint64_t cursor = 0;
    findings->list = json_object_new_array();
    if (!options->is_json) (void)printf("%-32s  %-32s  %12s  %-6s  %6s\n", "space", "key", "bytes", "form", "tokens");
    for (uint32_t n = kvt_store_list(store, &cursor, listed, BATCH); n > 0;
         n = kvt_store_list(store, &cursor, listed, BATCH))
        for (uint32_t i = 0; i < n; i++) list_one(options, &listed[i], findings);
    return KVT_EXIT_OK;
}

static void tell_progress(void *user, uint64_t done) { kvt_progress_update(user, done, NULL); }

static int run_verify(const char *command, const struct options *options, struct kvt_store *store,
                      struct findings *findings)
{
    (void)options;
    struct kvt_store_stats stats;
    kvt_store_stats(store, &stats);
    struct kvt_progress progress;
    kvt_progress_begin(&progress, "verify", stats.records);
    const struct kvt_store_verify how = { .progress = tell_progress, .user = &progress, .looks_itself = true };
    struct kvt_store_verified verified;
    const enum kvt_status status = kvt_store_verify(store, &how, &verified);
    kvt_progress_end(&progress);
    if (status != KVT_OK) return kvt_failure(command, "verify: %s", kvt_status_text(status));
    findings->good = verified.good;
    findings->bad = verified.refused + stats.recovered_bad;
    findings->served_bad = verified.served_bad;
    return findings->bad + findings->served_bad > 0 ? KVT_EXIT_FAILED : KVT_EXIT_OK;
}

static int run_compact(const char *command, const struct options *options, struct kvt_store *store,
                       struct findings *findings)
{
    (void)options;
    struct kvt_store_stats before, after;
    kvt_store_stats(store, &before);
    const enum kvt_status status = kvt_store_compact(store);
    if (status != KVT_OK) return kvt_failure(command, "compact: %s", kvt_status_text(status));
    kvt_store_stats(store, &after);
    if (after.allocated_bytes < before.allocated_bytes)
        findings->freed_bytes = before.allocated_bytes - after.allocated_bytes;
    return KVT_EXIT_OK;
}

static const struct action actions[] = {
    { "stat", run_stat }, { "ls", run_ls }, { "verify", run_verify }, { "compact", run_compact }
};

static const struct action *find_action(const char *name)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(actions); i++)
        if (strcmp(name, actions[i].name) == 0) return &actions[i];
    return NULL;
}

/* ---- Report ------------------------------------------------------------------------------------------------------ */

static void print_json(const struct options *options, const struct kvt_store_stats *stats, struct findings *findings)
{
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = { { "records", stats->records },
                    { "bad", findings->bad },
                    { "served_bad", findings->served_bad },
                    { "verified", findings->good },
                    { "allocated_bytes", stats->allocated_bytes },
                    { "capacity_bytes", stats->capacity_bytes },
                    { "live_bytes", stats->live_bytes },
                    { "segment_bytes", stats->segment_bytes },
                    { "segments", stats->segments },
                    { "segments_max", stats->segments_max },
                    { "foreign_files", stats->foreign_files },
                    { "foreign_bytes", stats->foreign_bytes },
                    { "swept_files", stats->swept_files },
                    { "private_records_swept", stats->recovered_private },
                    { "freed_bytes", findings->freed_bytes },
                    { "alignment", stats->alignment },
                    { "day_bytes", stats->day_bytes } };
    struct json_object *root = json_object_new_object();
    (void)json_object_object_add(root, "directory", json_object_new_string(options->directory));
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(numbers); i++)
        (void)json_object_object_add(root, numbers[i].name, json_object_new_uint64(numbers[i].value));
    (void)json_object_object_add(root, "io", json_object_new_string(stats->io_path));
    (void)json_object_object_add(root, "is_direct", json_object_new_boolean(stats->is_direct));
    if (findings->list) (void)json_object_object_add(root, "list", findings->list);
    findings->list = NULL;
    (void)printf("%s\n",
                 json_object_to_json_string_ext(
                     root, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE));
    (void)json_object_put(root);
}

static void add_row(struct kvt_listing *rows, const char *name, uint64_t value, bool is_bytes)
{
    kvt_listing_add(rows, "%s", name);
    kvt_listing_add(rows, "%s", kvt_format_count(value).text);
    kvt_listing_add(rows, "%s", is_bytes ? kvt_format_bytes(value).text : "");
}

static void print_table(const struct options *options, const struct kvt_store_stats *stats,
                        const struct findings *findings)
{
    struct kvt_listing rows;
    kvt_listing_init(&rows, "lrl");
    add_row(&rows, "records", stats->records, false);
    if (strcmp(options->action, "verify") == 0) {
        add_row(&rows, "verified", findings->good, false);
        add_row(&rows, "bad", findings->bad, false);
        add_row(&rows, "served bad", findings->served_bad, false);
    }
    if (strcmp(options->action, "compact") == 0) add_row(&rows, "given back", findings->freed_bytes, true);
    add_row(&rows, "live", stats->live_bytes, true);
    add_row(&rows, "allocated", stats->allocated_bytes, true);
    add_row(&rows, "capacity", stats->capacity_bytes, true);
    add_row(&rows, "segments", stats->segments, false);
    add_row(&rows, "segment size", stats->segment_bytes, true);
    if (stats->foreign_files) add_row(&rows, "foreign files", stats->foreign_files, false);
    if (stats->swept_files) add_row(&rows, "swept files", stats->swept_files, false);
    kvt_listing_print(&rows, stdout, "  ");
    (void)printf("  %s, %s%s%s\n", stats->io_path, stats->is_direct ? "O_DIRECT" : "buffered",
                 stats->io_note[0] ? ": " : "", stats->io_note);
}

static int open_and_run(const char *command, const struct options *options, const struct action *action)
{
    char error[512];
    struct kvt_store_config config = kvt_store_config_default();
    config.path = options->directory;
    config.is_existing = true;
    config.key = options->has_key ? options->key : NULL;
    struct kvt_store *store = NULL;
    const enum kvt_status status = kvt_store_open(&config, NULL, &store, error, sizeof error);
    if (status == KVT_INVAL) return kvt_refuse_value(command, "DIR", options->directory, error);
    if (status != KVT_OK) return kvt_failure(command, "%s", error);

    struct findings findings = { 0 };
    const int exit_status = action->run(command, options, store, &findings);
    struct kvt_store_stats stats;
    kvt_store_stats(store, &stats);
    if (options->is_json) print_json(options, &stats, &findings);
    else if (action->run != run_ls) print_table(options, &stats, &findings);
    if (findings.list) (void)json_object_put(findings.list);
    kvt_store_close(&store);
    return exit_status;
}

int kvt_cmd_store(int argc, char **argv)
{
    struct options options = { 0 };
    const int exit_status = kvt_parse_options(&store_argp, argc, argv, &options);
    if (exit_status != KVT_EXIT_OK) return exit_status;
    if (!options.action) return kvt_usage_error(argv[0], "what to do is missing: stat, ls, verify or compact");
    const struct action *action = find_action(options.action);
    if (!action) return kvt_refuse_value(argv[0], "action", options.action, "stat, ls, verify or compact");
    if (!options.directory) return kvt_usage_error(argv[0], "DIR is missing: a store directory");
    return open_and_run(argv[0], &options, action);
}
