/* Command lines of `kvtier run` and `kvtier sim`: one argument a line. */
#include "runtime/base/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tools/cli.h"
#include "tools/run/options.h"
#include "tools/sim/options.h"

enum { ARGUMENTS_MAX = 40 };

/* They print and exit, or hang (a hidden option of argp's), as they should; argp also takes byte 255 for a '?'. */
static bool leaves(const char *argument)
{
    static const char *const prefixes[] = { "--h", "--H", "--u", "--v" };
    if (argument[0] != '-') return false;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(prefixes); i++)
        if (strncmp(argument, prefixes[i], 3) == 0) return true;
    return strchr(argument, '?') || strchr(argument, '\xff');
}

static int split(char *text, char **argv)
{
    int argc = 0;
    argv[argc++] = (char *)(uintptr_t) "kvtier";
    for (char *save, *line = strtok_r(text, "\n", &save); line && argc < ARGUMENTS_MAX;
         line = strtok_r(NULL, "\n", &save))
        if (!leaves(line)) argv[argc++] = line;
    argv[argc] = NULL;
    return argc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvt_run_options run;
    static struct kvt_sim_options sim;
    char *argv[ARGUMENTS_MAX + 1];
    char *text = fuzz_text(data, size);
    const int argc = split(text, argv);
    const int run_status = kvt_run_options_parse(argc, argv, &run);
    FUZZ_HOLDS(run_status == KVT_EXIT_OK || run_status == KVT_EXIT_USAGE);
    if (run_status == KVT_EXIT_OK) {
        const struct kvt_config config = kvt_run_options_config(&run);
        FUZZ_HOLDS(config.device_bytes > 0);
    }
    free(text);
    text = fuzz_text(data, size);
    const int again = split(text, argv);
    const int sim_status = kvt_sim_options_parse(again, argv, &sim);
    FUZZ_HOLDS(sim_status == KVT_EXIT_OK || sim_status == KVT_EXIT_USAGE);
    free(text);
    return 0;
}
