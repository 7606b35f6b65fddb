#include "tools/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "tools/text.h"

#define LINE_BYTES 1024
#define BAR_CHARACTERS 24
#define REDRAW_NS ((uint64_t)100000000)

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 0))) static void print_line(const char *command, const char *format, va_list arguments)
{
    char line[LINE_BYTES];
    (void)vsnprintf(line, sizeof line, format, arguments);
    for (char *c = line; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
    }
    (void)fprintf(stderr, "%s: %s\n", command, line);
}

int kvt_usage_error(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(command, format, arguments);
    va_end(arguments);
    return KVT_EXIT_USAGE;
}

int kvt_refuse_value(const char *command, const char *option, const char *value, const char *rule)
{
    return kvt_usage_error(command, "%s is '%.200s': %s", option, value, rule);
}

int kvt_failure(const char *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(command, format, arguments);
    va_end(arguments);
    return KVT_EXIT_FAILED;
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

/*
 * The parser around a command's own one. Without an error stream argp prints no usage hint and does not exit; what is
 * left of an unknown option is getopt's one line.
 */
static error_t parse_around(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    if (key != ARGP_KEY_INIT) return ARGP_ERR_UNKNOWN;
    state->err_stream = NULL;
    state->child_inputs[0] = state->input;
    return 0;
}

int kvt_parse_options(const struct argp *argp, int argc, char **argv, void *input)
{
    struct argp inner = *argp;
    inner.doc = NULL;
    inner.args_doc = NULL;
    const struct argp_child children[] = { { .argp = &inner }, { 0 } };
    const struct argp outer = {
        .parser = parse_around, .doc = argp->doc, .args_doc = argp->args_doc, .children = children
    };
    argp_err_exit_status = KVT_EXIT_USAGE;
    return argp_parse(&outer, argc, argv, 0, NULL, input) == 0 ? KVT_EXIT_OK : KVT_EXIT_USAGE;
}

error_t kvt_refuse_argument(const struct argp_state *state, const char *argument)
{
    (void)kvt_usage_error(state->argv[0], "'%.200s': this command takes options only", argument);
    return EINVAL;
}

error_t kvt_refuse_extra_argument(const struct argp_state *state, const char *argument)
{
    (void)kvt_usage_error(state->argv[0], "'%.200s': one argument too many", argument);
    return EINVAL;
}

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void kvt_progress_begin(struct kvt_progress *progress, const char *label, uint64_t total)
{
    *progress = (struct kvt_progress){ .label = label, .total = total, .is_shown = isatty(STDERR_FILENO) == 1 };
}

void kvt_progress_update(struct kvt_progress *progress, uint64_t done, const char *note)
{
    if (!progress->is_shown) return;
    const uint64_t now = now_ns();
    if (progress->drawn_ns != 0 && now - progress->drawn_ns < REDRAW_NS) return;
    progress->drawn_ns = now;

    char bar[BAR_CHARACTERS + 1];
    const double share = progress->total > 0 && done < progress->total ? (double)done / (double)progress->total : 1;
    const size_t filled = (size_t)(share * BAR_CHARACTERS);
    memset(bar, '.', BAR_CHARACTERS);
    memset(bar, '#', filled);
    bar[BAR_CHARACTERS] = '\0';
    (void)fprintf(stderr, "\r%s [%s] %3.0f%%  %s/%s  %s\033[K", progress->label, bar, share * 100,
                  kvt_format_count(done).text, kvt_format_count(progress->total).text, note ? note : "");
    (void)fflush(stderr);
}

void kvt_progress_end(struct kvt_progress *progress)
{
    if (!progress->is_shown || progress->drawn_ns == 0) return;
    (void)fputs("\r\033[K", stderr);
    (void)fflush(stderr);
    progress->is_shown = false;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

void kvt_listing_init(struct kvt_listing *listing, const char *alignment)
{
    listing->alignment = alignment;
    listing->column_count = (uint32_t)strlen(alignment);
    listing->cell_count = 0;
    KVT_ASSERT(listing->column_count > 0);
    KVT_ASSERT(listing->column_count <= KVT_LISTING_COLUMNS_MAX);
}

void kvt_listing_add(struct kvt_listing *listing, const char *format, ...)
{
    KVT_ASSERT(listing->cell_count < KVT_LISTING_CELLS_MAX);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(listing->cells[listing->cell_count++], KVT_LISTING_CELL_BYTES, format, arguments);
    va_end(arguments);
}

void kvt_listing_print(const struct kvt_listing *listing, FILE *stream, const char *indent)
{
    int widths[KVT_LISTING_COLUMNS_MAX] = { 0 };
    KVT_ASSERT(listing->cell_count % listing->column_count == 0);
    for (uint32_t i = 0; i < listing->cell_count; i++) {
        const int length = (int)strlen(listing->cells[i]);
        int *width = &widths[i % listing->column_count];
        if (length > *width) *width = length;
    }
    for (uint32_t i = 0; i < listing->cell_count; i++) {
        const uint32_t column = i % listing->column_count;
        const bool is_last = column + 1 == listing->column_count;
        const int width = listing->alignment[column] == 'r' ? widths[column] : is_last ? 0 : -widths[column];
        (void)fprintf(stream, "%s%*s%s", column == 0 ? indent : "", width, listing->cells[i], is_last ? "\n" : "  ");
    }
}
