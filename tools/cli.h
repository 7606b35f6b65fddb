/*
 * cli: what every subcommand of kvtier does the same way: refuse in one line, read its options, show progress, print
 * tables.
 *
 * A subcommand is `int kvt_cmd_NAME(int argc, char **argv)`: argv[0] is "kvtier NAME", and what it returns is the
 * exit status: KVT_EXIT_OK only when what was asked holds.
 */
#ifndef KVT_TOOLS_CLI_H
#define KVT_TOOLS_CLI_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum kvt_exit {
    KVT_EXIT_OK = 0,
    KVT_EXIT_FAILED = 1, /* asked rightly, but it does not hold or did not work */
    KVT_EXIT_USAGE = 2   /* asked wrongly: one line on stderr, nothing done */
};

/*
 * One line on stderr, "command: text", whatever the text holds: control characters become '?'. Returns
 * KVT_EXIT_USAGE, so that a command can `return kvt_usage_error(...)`.
 */
int kvt_usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for an option's value: "command: option is 'value': rule". */
int kvt_refuse_value(const char *command, const char *option, const char *value, const char *rule);

/* The same line, for what went wrong later. Returns KVT_EXIT_FAILED. */
int kvt_failure(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * argp_parse() with argp's own errors cut to one line and no way to leave but --help. The parser reports its errors
 * itself with the functions above and returns EINVAL; it handles ARGP_KEY_ARG with kvt_refuse_argument(). Returns
 * KVT_EXIT_OK or KVT_EXIT_USAGE.
 */
int kvt_parse_options(const struct argp *argp, int argc, char **argv, void *input);

/* For ARGP_KEY_ARG of a command without arguments. Returns EINVAL. */
error_t kvt_refuse_argument(const struct argp_state *state, const char *argument);

/* The same for a command that has all the arguments it takes. */
error_t kvt_refuse_extra_argument(const struct argp_state *state, const char *argument);

/* ---- Progress ---------------------------------------------------------------------------------------------------- */

/* One line on stderr that is drawn again and again; nothing when stderr is no terminal. */
struct kvt_progress {
    const char *label;
    uint64_t total;
    uint64_t drawn_ns;
    bool is_shown;
};

void kvt_progress_begin(struct kvt_progress *progress, const char *label, uint64_t total);
/* Draws at most 10 times a second; note may be NULL: a few words behind the bar. */
void kvt_progress_update(struct kvt_progress *progress, uint64_t done, const char *note);
/* Clears the line. */
void kvt_progress_end(struct kvt_progress *progress);

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

#define KVT_LISTING_CELLS_MAX 512
#define KVT_LISTING_CELL_BYTES 64
#define KVT_LISTING_COLUMNS_MAX 16

/* Cells row by row; a column is as wide as its widest cell. */
struct kvt_listing {
    const char *alignment; /* one letter a column: l or r */
    uint32_t column_count, cell_count;
    char cells[KVT_LISTING_CELLS_MAX][KVT_LISTING_CELL_BYTES];
};

/* alignment: one 'l' or 'r' for each column; borrowed. */
void kvt_listing_init(struct kvt_listing *listing, const char *alignment);
/* The next cell; a longer text is cut. */
void kvt_listing_add(struct kvt_listing *listing, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints the rows, each behind `indent`. The last row is whole. */
void kvt_listing_print(const struct kvt_listing *listing, FILE *stream, const char *indent);

#endif
