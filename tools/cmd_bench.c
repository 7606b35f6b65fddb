/* bench: the parts' speeds, each beside its ceiling in the same run. */
#include <string.h>

#include "tools/cli.h"
#include "tools/cmd_bench_codec.h"
#include "tools/cmd_bench_core.h"
#include "tools/commands.h"
#include "tools/text.h"

struct bench_options { const char *part; bool is_json; uint64_t blocks; };

enum { OPTION_JSON = 256, OPTION_BLOCKS };

static const char command[] = "kvtier bench";

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct bench_options *options = state->input;
    switch (key) {
    case OPTION_JSON: options->is_json = true; return 0;
    case OPTION_BLOCKS: {
        const char *rule = kvt_parse_count(argument, 10000, 10000000, &options->blocks);
        if (!rule) return 0;
        (void)kvt_refuse_value(command, "--blocks", argument, rule);
        return EINVAL;
    }
    case ARGP_KEY_ARG:
        if (options->part) return kvt_refuse_argument(state, argument);
        options->part = argument;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int kvt_cmd_bench(int argc, char **argv)
{
    static const struct argp_option listed[] = {
        { "json", OPTION_JSON, NULL, 0, "One JSON object instead of a table", 0 },
        { "blocks", OPTION_BLOCKS, "N", 0, "core: pools of at most N blocks (10,000 to 10,000,000)", 0 },
        { 0 }
    };
    const struct argp argp = { .options = listed, .parser = parse, .args_doc = "core|codec",
        .doc = "Measures one part beside the ceiling of this machine in the same run." };
    struct bench_options options = { 0 };
    const int status = kvt_parse_options(&argp, argc, argv, &options);
    if (status != KVT_EXIT_OK) return status;
    if (options.part && strcmp(options.part, "core") == 0) return kvt_bench_core(options.blocks, options.is_json);
    if (options.part && strcmp(options.part, "codec") == 0) return kvt_bench_codec(options.is_json);
    return kvt_refuse_value(command, "the part", options.part ? options.part : "", "core or codec");
}
