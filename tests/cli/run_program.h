/* run_program: runs the program under test and keeps what it printed. */
#ifndef KVT_TESTS_CLI_RUN_PROGRAM_H
#define KVT_TESTS_CLI_RUN_PROGRAM_H

#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES_MAX 65536
#define ARGUMENTS_MAX 32

struct outcome {
    int exit_status; /* -1: it did not exit by itself */
    char out[OUTPUT_BYTES_MAX], err[OUTPUT_BYTES_MAX];
};

static inline void read_back(FILE *file, char *text)
{
    rewind(file);
    text[fread(text, 1, OUTPUT_BYTES_MAX - 1, file)] = '\0';
    (void)fclose(file);
}

/* arguments: up to ARGUMENTS_MAX - 2, ended by NULL. False: it could not be started. */
static inline bool run_program(const char *program, const char *const *arguments, struct outcome *ret_outcome)
{
    char *argv[ARGUMENTS_MAX] = { (char *)(uintptr_t)program };
    for (uint32_t i = 0; arguments[i] && i < ARGUMENTS_MAX - 2; i++) argv[i + 1] = (char *)(uintptr_t)arguments[i];
    FILE *out = tmpfile(), *err = tmpfile();
    if (!out || !err) return false;

    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 0;
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
    (void)posix_spawn_file_actions_adddup2(&actions, fileno(err), STDERR_FILENO);
    const bool is_started = posix_spawn(&child, program, &actions, NULL, argv, environ) == 0;
    (void)posix_spawn_file_actions_destroy(&actions);
    if (is_started) (void)waitpid(child, &status, 0);
    ret_outcome->exit_status = is_started && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_back(out, ret_outcome->out);
    read_back(err, ret_outcome->err);
    return is_started;
}

/* Lines of a text; a last one without its newline counts. */
static inline uint32_t count_lines(const char *text)
{
    uint32_t lines = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '\n' || c[1] == '\0') lines++;
    }
    return lines;
}

#endif
