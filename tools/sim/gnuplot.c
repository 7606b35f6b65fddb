#include "tools/sim/gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tools/cli.h"

enum { LINE_BYTES = 256 };

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_installed(const char *program)
{
    const char *folders = getenv("PATH");
    while (folders && *folders) {
        char path[PATH_MAX];
        const size_t length = strcspn(folders, ":");
        const int written = snprintf(path, sizeof path, "%.*s/%s", (int)kvt_min_u64(length, PATH_MAX), folders,
                                     program);
        if (written > 0 && written < PATH_MAX && access(path, X_OK) == 0) return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

const char *kvt_gnuplot_check(const char *path)
{
    if (!ends_with(path, ".svg") && !ends_with(path, ".png")) return "a file that ends in .svg or .png";
    if (!is_installed("gnuplot")) return "gnuplot, which draws it, is not installed";
    return NULL;
}

const char *kvt_gnuplot_terminal(const char *path) { return ends_with(path, ".svg") ? "svg" : "pngcairo"; }

void kvt_gnuplot_print_name(FILE *script, const char *name)
{
    for (; *name; name++) {
        if (*name == '\'') (void)fputc('\'', script);
        (void)fputc(*name == '\n' ? ' ' : *name, script);
    }
}

/* It reads the script from the pipe, and draws to its standard output. 0 or an errno. */
static int start(int script, FILE *picture, FILE *errors, pid_t *ret_child)
{
    char name[] = "gnuplot";
    char *const arguments[] = { name, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    (void)sigemptyset(&defaults);
    (void)sigaddset(&defaults, SIGPIPE);
    if (posix_spawn_file_actions_init(&actions) != 0) return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return ENOMEM;
    }
    (void)posix_spawnattr_setsigdefault(&attributes, &defaults);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    int error = posix_spawn_file_actions_adddup2(&actions, script, STDIN_FILENO);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, fileno(picture), STDOUT_FILENO);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&actions, fileno(errors), STDERR_FILENO);
    if (error == 0) error = posix_spawnp(ret_child, name, &actions, &attributes, arguments, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* The first line that says something: before it gnuplot repeats the command, with a mark below the wrong word. */
static void read_line(FILE *errors, char line[LINE_BYTES])
{
    char text[LINE_BYTES];
    rewind(errors);
    while (fgets(text, sizeof text, errors)) {
        text[strcspn(text, "\n")] = '\0';
        const char *begin = text + strspn(text, " \t");
        if (!*begin || strncmp(begin, "gnuplot>", 8) == 0 || strcmp(begin, "^") == 0) continue;
        (void)snprintf(line, LINE_BYTES, "%s", begin);
        return;
    }
    (void)snprintf(line, LINE_BYTES, "it said nothing");
}

/* True when there is a picture; else line says why not. */
static bool draw(FILE *picture, FILE *errors, void (*write)(const void *user, FILE *script), const void *user,
                 char line[LINE_BYTES])
{
    int pipes[2], status = 0;
    pid_t child = -1;
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        (void)snprintf(line, LINE_BYTES, "%s", strerror(errno));
        return false;
    }
    const int error = start(pipes[0], picture, errors, &child);
    (void)close(pipes[0]);
    FILE *script = error == 0 ? fdopen(pipes[1], "w") : NULL;
    if (script) {
        write(user, script);
        (void)fclose(script);
    } else {
        (void)close(pipes[1]);
    }
    if (error != 0) {
        (void)snprintf(line, LINE_BYTES, "%s", strerror(error));
        return false;
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    struct stat about;
    const bool is_empty = fstat(fileno(picture), &about) == 0 && S_ISREG(about.st_mode) && about.st_size == 0;
    if (script && status == 0 && !is_empty) return true;
    read_line(errors, line);
    return false;
}

int kvt_gnuplot_draw(const char *command, const char *path, struct kvt_output_file *file,
                     void (*write)(const void *user, FILE *script), const void *user)
{
    char line[LINE_BYTES];
    FILE *picture = NULL;
    (void)fflush(stdout); /* it may be what is drawn to */
    int error = kvt_output_file_begin(file, &picture);
    FILE *errors = error == 0 ? tmpfile() : NULL;
    if (error == 0 && !errors) error = errno;
    bool is_drawn = false;
    if (error == 0) {
        /* gnuplot may end early: its status says so, not a signal. */
        void (*before)(int) = signal(SIGPIPE, SIG_IGN);
        is_drawn = draw(picture, errors, write, user, line);
        (void)signal(SIGPIPE, before);
        (void)fclose(errors);
        if (is_drawn) error = kvt_output_file_commit(file);
    }
    kvt_output_file_abandon(file);
    if (error != 0) return kvt_failure(command, "--plot %.200s: %s", path, strerror(error));
    return is_drawn ? KVT_EXIT_OK : kvt_failure(command, "--plot %.200s: gnuplot failed: %s", path, line);
}
