/*
 * lines: reads a text file line by line, of any line length, NUL bytes included.
 *
 * Memory: one buffer of at least the longest line, owned by struct kvt_lines.
 * Thread: one.
 */
#ifndef KVT_TOOLS_WORKLOAD_LINES_H
#define KVT_TOOLS_WORKLOAD_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

struct kvt_lines {
    int fd;
    char *buffer;
    size_t capacity, begin, end; /* unread bytes are buffer[begin .. end - 1] */
    bool is_at_end;
    uint64_t number; /* of the line that was read last; the first is 1 */
    int os_errno;    /* why IO was returned */
};

/* IO: os_errno says why | NOMEM. After a failure there is nothing to close. */
KVT_NODISCARD enum kvt_status kvt_lines_open(struct kvt_lines *lines, const char *path);
void kvt_lines_close(struct kvt_lines *lines);

/*
 * The next line without its line end (\n or \r\n), terminated, valid until the next call; NULL at the end of the file.
 * Blanks around the text are cut off. IO | NOMEM.
 */
KVT_NODISCARD enum kvt_status kvt_lines_next(struct kvt_lines *lines, char **ret_line, size_t *ret_length);

#endif
