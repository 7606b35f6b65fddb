/*
 * output_file: a file that a command writes: as a whole, or not at all.
 *
 *   open      before the work: can it be written? Nothing at the path changes, and nothing is left beside it.
 *   begin     gives the stream to fill: a new file in the same directory.
 *   commit    puts it in the place of what was there, by rename.
 *   abandon   instead of either: what was there is as it was.
 *
 * A link is followed: what it points at is replaced, with the mode that it had. Written directly, from begin on, is
 * what cannot be replaced: a device, a pipe, standard output by any name (behind what was printed), a file that is a
 * mount of its own, or one in a directory where no other can be made.
 *
 * Memory:  PATH_MAX bytes twice, in the struct.
 * Thread:  one at a time.
 */
#ifndef KVT_TOOLS_OUTPUT_FILE_H
#define KVT_TOOLS_OUTPUT_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct kvt_output_file {
    bool is_open;
    bool is_direct;
    bool is_kept; /* direct: what is in it, or was printed before, stays */
    int fd;       /* direct and not begun, else -1 */
    bool has_mode;
    mode_t mode; /* of what is replaced */
    uid_t owner;
    gid_t group;
    FILE *stream;             /* between begin and commit, else NULL */
    char path[PATH_MAX];      /* to be replaced */
    char temporary[PATH_MAX]; /* between begin and commit, unless direct */
};

/* 0, or the errno that says why it cannot be written. */
int kvt_output_file_open(struct kvt_output_file *file, const char *path);

/* The same for the file that an option names, or NULL. KVT_EXIT_OK, or one line was printed. */
int kvt_output_file_open_option(struct kvt_output_file *file, const char *command, const char *option, const char *path);

/* 0 or an errno. The stream is the file's: commit or abandon closes it. */
int kvt_output_file_begin(struct kvt_output_file *file, FILE **ret_stream);

/* After begin. 0 or an errno: then what was there is as it was, unless it was written directly. Closes in any case. */
int kvt_output_file_commit(struct kvt_output_file *file);

/* At any time; a file that is not open, or all zero, is fine. */
void kvt_output_file_abandon(struct kvt_output_file *file);

/* ---- Files of one command ---------------------------------------------------------------------------------------- */

struct kvt_named_file {
    const char *option, *path; /* path NULL: not given */
    bool is_output;
};

/*
 * Refuses an output that is another file of the command by any name: by device and inode, or, where nothing is there
 * yet, by directory and name. Before any of them is opened for writing. A device or a pipe may be both read and
 * written. KVT_EXIT_OK, or one line was printed.
 */
int kvt_output_files_check(const char *command, const struct kvt_named_file *files, uint32_t count);

#endif
