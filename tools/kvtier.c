/* kvtier: one program, its subcommands in one table. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"
#include "tools/commands.h"

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv); /* argv[0] is "kvtier NAME"; returns the exit status */
} commands[] = {
    { "bench", "the speed of one part beside the ceiling of this machine", kvt_cmd_bench },
    { "doctor", "what this machine gives to kvtier, and what to change", kvt_cmd_doctor },
    { "plan", "what a model's KV cache takes, and how many sequences fit", kvt_cmd_plan },
    { "run", "replays a workload on the real runtime and verifies every block", kvt_cmd_run },
    { "sim", "what eviction and admission policies would keep, counted or in virtual time", kvt_cmd_sim },
    { "store", "looks at, checks and tidies a store directory", kvt_cmd_store },
    { "top", "a live view of a running process", kvt_cmd_top },
};

static void print_help(void)
{
    (void)printf("Usage: kvtier COMMAND [OPTION...]\n\nServes contexts that HBM does not hold: KV-cache blocks in HBM, "
                 "host memory and on NVMe.\n\n");
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(commands); i++)
        (void)printf("  %-8s %s\n", commands[i].name, commands[i].help);
    (void)printf("\nkvtier COMMAND --help tells each one's options; kvtier --version prints the version.\n");
}

/* What was printed counts only once it is out: a full disk or a closed pipe is a failure. */
static int finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    (void)kvt_failure("kvtier", "the output could not be written");
    return status == KVT_EXIT_OK ? KVT_EXIT_FAILED : status;
}

int main(int argc, char **argv)
{
    if (argc < 2) return kvt_usage_error("kvtier", "no command: kvtier --help lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return finish(KVT_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("kvtier %s\n", KVTIER_VERSION);
        return finish(KVT_EXIT_OK);
    }
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(commands); i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        char name[32]; /* getopt and argp begin their messages with argv[0] */
        (void)snprintf(name, sizeof name, "kvtier %s", commands[i].name);
        argv[1] = name;
        return finish(commands[i].run(argc - 1, argv + 1));
    }
    return kvt_usage_error("kvtier", "'%.100s': no such command: kvtier --help lists them", argv[1]);
}
