#include "tools/workload/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#define FIRST_BUFFER_BYTES (64 * KVT_KIB)

enum kvt_status kvt_lines_open(struct kvt_lines *lines, const char *path)
{
    *lines = (struct kvt_lines){ .fd = -1 };
    lines->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (lines->fd < 0) {
        lines->os_errno = errno;
        return KVT_IO;
    }
    lines->buffer = kvt_alloc(1, FIRST_BUFFER_BYTES);
    if (!lines->buffer) {
        kvt_lines_close(lines);
        return KVT_NOMEM;
    }
    lines->capacity = FIRST_BUFFER_BYTES;
    return KVT_OK;
}

void kvt_lines_close(struct kvt_lines *lines)
{
    if (lines->fd >= 0) (void)close(lines->fd);
    kvt_free(lines->buffer);
    lines->fd = -1;
    lines->buffer = NULL;
}

/* Reads more behind the unread bytes; one byte always stays free for the terminator. */
static enum kvt_status fill(struct kvt_lines *lines)
{
    if (lines->begin > 0) {
        memmove(lines->buffer, lines->buffer + lines->begin, lines->end - lines->begin);
        lines->end -= lines->begin;
        lines->begin = 0;
    }
    if (lines->capacity - lines->end < 2) {
        char *grown = kvt_realloc(lines->buffer, lines->capacity, 2);
        if (!grown) return KVT_NOMEM;
        lines->buffer = grown;
        lines->capacity *= 2;
    }
    ssize_t got;
    do {
        got = read(lines->fd, lines->buffer + lines->end, lines->capacity - lines->end - 1);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        lines->os_errno = errno;
        return KVT_IO;
    }
    lines->is_at_end = got == 0;
    lines->end += (size_t)got;
    return KVT_OK;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

enum kvt_status kvt_lines_next(struct kvt_lines *lines, char **ret_line, size_t *ret_length)
{
    char *newline = NULL;
    for (size_t searched = 0;;) {
        const size_t unread = lines->end - lines->begin;
        char *line = lines->buffer + lines->begin;
        if (unread > searched) newline = memchr(line + searched, '\n', unread - searched);
        if (newline || lines->is_at_end) break;
        searched = unread;
        KVT_TRY(fill(lines));
    }
    if (!newline && lines->begin == lines->end) {
        *ret_line = NULL;
        *ret_length = 0;
        return KVT_OK;
    }
    char *line = lines->buffer + lines->begin;
    char *end = newline ? newline : lines->buffer + lines->end;
    lines->begin = (size_t)(end - lines->buffer) + (newline ? 1 : 0);
    lines->number++;
    while (end > line && is_blank(end[-1])) end--;
    while (line < end && is_blank(*line)) line++;
    *end = '\0';
    *ret_line = line;
    *ret_length = (size_t)(end - line);
    return KVT_OK;
}
