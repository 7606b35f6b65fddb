/* bench: the parts' speeds, each beside its ceiling in the same run. */
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/cmd_bench_calibrate.h"
#include "tools/cmd_bench_codec.h"
#include "tools/cmd_bench_copy.h"
#include "tools/cmd_bench_core.h"
#include "tools/cmd_bench_store.h"
#include "tools/commands.h"
#include "tools/text.h"

/* What is measured; an option is for some of them. */
enum { PART_CORE = 1, PART_CODEC = 2, PART_COPY = 4, PART_STORE = 8, PART_CALIBRATE = 16 };

struct bench_options {
    const char *part;
    uint32_t given; /* of option_uses */
    bool is_json;
    uint64_t blocks;
    struct kvt_bench_store_options store;
    enum kvt_device_kind device;
    struct kvt_bench_calibrate_options calibrate;
};

enum {
    OPTION_JSON = 256,
    OPTION_BLOCKS,
    OPTION_DIR,
    OPTION_SIZE,
    OPTION_PAIRS,
    OPTION_ONLY,
    OPTION_CALIBRATE,
    OPTION_SHAPE,
    OPTION_BLOCK_TOKENS,
    OPTION_DEVICE
};

static const char command[] = "kvtier bench";

static const struct {
    int key;
    uint32_t parts;
    const char *name, *rule;
} option_uses[] = {
    { OPTION_BLOCKS, PART_CORE, "--blocks", "it is for core" },
    { OPTION_DIR, PART_STORE | PART_CALIBRATE, "--dir", "it is for store and --calibrate" },
    { OPTION_SIZE, PART_STORE | PART_COPY, "--size", "it is for copy and store" },
    { OPTION_PAIRS, PART_STORE | PART_COPY, "--pairs", "it is for copy and store" },
    { OPTION_ONLY, PART_STORE, "--only", "it is for store" },
    { OPTION_SHAPE, PART_CALIBRATE, "--shape", "it is for --calibrate" },
    { OPTION_BLOCK_TOKENS, PART_CALIBRATE, "--block-tokens", "it is for --calibrate" },
    { OPTION_DEVICE, PART_COPY, "--device", "it is for copy" },
};

/* An option that would change nothing was meant for something else: it is refused. */
static int refuse_options_of_others(const struct bench_options *options, uint32_t part)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(option_uses); i++) {
        if ((options->given >> i & 1) == 0 || (option_uses[i].parts & part) != 0) continue;
        return kvt_usage_error(command, "%s means nothing here: %s", option_uses[i].name, option_uses[i].rule);
    }
    return KVT_EXIT_OK;
}

/* NULL, or the rule that the value breaks. */
static const char *parse_store_option(int key, char *argument, struct kvt_bench_store_options *store)
{
    uint64_t size;
    const char *rule;
    switch (key) {
    case OPTION_DIR: store->directory = argument; return argument[0] ? NULL : "an existing directory";
    case OPTION_SIZE:
        rule = kvt_parse_size(argument, &size);
        if (rule) return rule;
        if (size < KVT_BENCH_STORE_SIZE_MIN || size > KVT_BENCH_STORE_SIZE_MAX) return "16MiB to 16GiB";
        store->size_bytes = size;
        return NULL;
    case OPTION_PAIRS: return kvt_parse_count(argument, 1, 101, &store->pairs);
    default: store->part = argument; return kvt_bench_store_part_rule(argument);
    }
}

static const char *store_option_name(int key)
{
    return key == OPTION_DIR ? "--dir" : key == OPTION_SIZE ? "--size" : key == OPTION_PAIRS ? "--pairs" : "--only";
}

static bool parse_device(const char *argument, enum kvt_device_kind *ret_device)
{
    static const char *const names[] = { "auto", "cuda", "emulated" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
        if (strcmp(argument, names[i]) != 0) continue;
        *ret_device = (enum kvt_device_kind)i;
        return true;
    }
    return false;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct bench_options *options = state->input;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(option_uses); i++)
        if (option_uses[i].key == key) options->given |= UINT32_C(1) << i;
    switch (key) {
    case OPTION_JSON: options->is_json = true; return 0;
    case OPTION_BLOCKS: {
        const char *rule = kvt_parse_count(argument, 10000, 10000000, &options->blocks);
        if (!rule) return 0;
        (void)kvt_refuse_value(command, "--blocks", argument, rule);
        return EINVAL;
    }
    case OPTION_CALIBRATE: options->calibrate.path = argument; return 0;
    case OPTION_SHAPE: options->calibrate.shape = argument; return 0;
    case OPTION_BLOCK_TOKENS: {
        const char *rule = kvt_parse_count(argument, 1, 65535, &options->calibrate.block_tokens);
        if (!rule) return 0;
        (void)kvt_refuse_value(command, "--block-tokens", argument, rule);
        return EINVAL;
    }
    case OPTION_DEVICE:
        if (parse_device(argument, &options->device)) return 0;
        (void)kvt_refuse_value(command, "--device", argument, "one of auto, cuda, emulated");
        return EINVAL;
    case OPTION_DIR:
    case OPTION_SIZE:
    case OPTION_PAIRS:
    case OPTION_ONLY: {
        const char *rule = parse_store_option(key, argument, &options->store);
        if (!rule) return 0;
        (void)kvt_refuse_value(command, store_option_name(key), argument, rule);
        return EINVAL;
    }
    case ARGP_KEY_ARG:
        if (options->part) return kvt_refuse_extra_argument(state, argument);
        options->part = argument;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static uint32_t part_of(const char *name)
{
    static const char *const names[] = { "core", "codec", "copy", "store" };
    for (uint32_t i = 0; name && i < KVT_ARRAY_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return UINT32_C(1) << i;
    return 0;
}

/* What --dir names is where files will be made; whatever is asked for, it is judged before anything is measured. */
static int check_directory(const char *directory)
{
    struct stat about;
    if (!directory || (stat(directory, &about) == 0 && S_ISDIR(about.st_mode))) return KVT_EXIT_OK;
    return kvt_refuse_value(command, "--dir", directory, "an existing directory");
}

static int run_part(struct bench_options *options, uint32_t part)
{
    switch (part) {
    case PART_CORE: return kvt_bench_core(options->blocks, options->is_json);
    case PART_CODEC: return kvt_bench_codec(options->is_json);
    case PART_COPY: {
        const struct kvt_bench_copy_options copy = { .device = options->device,
                                                     .size_bytes = options->store.size_bytes,
                                                     .rounds = options->store.pairs,
                                                     .is_json = options->is_json };
        return kvt_bench_copy(&copy);
    }
    case PART_STORE:
        if (!options->store.directory)
            return kvt_usage_error(command, "--dir is missing: store needs an existing directory");
        options->store.is_json = options->is_json;
        return kvt_bench_store(&options->store);
    default:
        options->calibrate.directory = options->store.directory;
        options->calibrate.is_json = options->is_json;
        return kvt_bench_calibrate(&options->calibrate);
    }
}

int kvt_cmd_bench(int argc, char **argv)
{
    static const struct argp_option listed[] = {
        { "json", OPTION_JSON, NULL, 0, "One JSON object instead of a table", 0 },
        { "blocks", OPTION_BLOCKS, "N", 0,
          "core: pools of at most N blocks, 10,000 to 10,000,000 (default: the largest, some minutes)", 0 },
        { "dir", OPTION_DIR, "DIR", 0, "store: an existing directory on the disk; what is made there is removed again",
          0 },
        { "size", OPTION_SIZE, "SIZE", 0,
          "copy, store: moved in one measurement (default 512MiB); store uses five times as much disk", 0 },
        { "pairs", OPTION_PAIRS, "N", 0,
          "store: rounds that alternate the contestants (default 7); copy: rounds of which the median counts (default "
          "5)",
          0 },
        { "device", OPTION_DEVICE, "KIND", 0, "copy: auto (default), cuda, emulated", 0 },
        { "only", OPTION_ONLY, "PART", 0, "store: speed, small, mixed or codec alone", 0 },
        { "calibrate", OPTION_CALIBRATE, "FILE", 0,
          "measure links, codec, the disk at --dir, and the main job's engine, and write them to FILE for kvtier sim "
          "--links; some seconds",
          0 },
        { "shape", OPTION_SHAPE, "SHAPE", 0, "calibrate: of the blocks, as in kvtier run", 0 },
        { "block-tokens", OPTION_BLOCK_TOKENS, "N", 0, "calibrate: tokens of a block (default 16)", 0 },
        { 0 }
    };
    const struct argp argp = {
        .options = listed,
        .parser = parse,
        .args_doc = "core|codec|copy|store\n--calibrate FILE",
        .doc = "Measures one part beside the ceiling of this machine in the same run.\v"
               "core: the runtime's bookkeeping beside misses of the cache. codec: pack and "
               "unpack beside memcpy, and what "
               "they save: a compression ratio has no ceiling, beside it stands what a coder at the order-0 entropy of the "
               "same sample would reach, which base tables, LZ4 and zstd may beat. copy: between device and host, beside the link's peak, or, on an "
               "emulated device, beside memcpy. store: beside what its disk gives. A ratio is value over ceiling; GB "
               "are 10^9 bytes. By default each takes a minute or more, "
               "and prints at its end."
    };
    struct bench_options options = { 0 };
    const int status = kvt_parse_options(&argp, argc, argv, &options);
    if (status != KVT_EXIT_OK) return status;
    if (options.calibrate.path && options.part) return kvt_usage_error(command, "--calibrate excludes '%s'", options.part);
    const uint32_t part = options.calibrate.path ? PART_CALIBRATE : part_of(options.part);
    if (!options.calibrate.path && !options.part)
        return kvt_usage_error(command, "the part is missing: core, codec, copy or store");
    if (part == 0) return kvt_refuse_value(command, "the part", options.part, "core, codec, copy or store");
    const int refusal = refuse_options_of_others(&options, part);
    if (refusal != KVT_EXIT_OK) return refusal;
    const int no_directory = check_directory(options.store.directory);
    return no_directory != KVT_EXIT_OK ? no_directory : run_part(&options, part);
}
