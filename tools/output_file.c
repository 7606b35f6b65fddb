#include "tools/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "tools/cli.h"

enum { LINKS_MAX = 40, NAMES_MAX = 1000 };

/* ---- Where a path leads ------------------------------------------------------------------------------------------ */

/* "head/tail" into path. 0 or ENAMETOOLONG. */
static int join(char path[PATH_MAX], const char *head, const char *tail)
{
    const size_t head_length = strlen(head), tail_length = strlen(tail);
    const bool has_slash = head_length > 0 && head[head_length - 1] == '/';
    if (head_length + tail_length + 2 > PATH_MAX) return ENAMETOOLONG;
    memmove(path, head, head_length);
    if (!has_slash) path[head_length] = '/';
    memcpy(path + head_length + !has_slash, tail, tail_length + 1);
    return 0;
}

/* The directory of a path, without links, and its last name; the name points into the path. 0 or an errno. */
static int split(const char *path, char ret_directory[PATH_MAX], const char **ret_name)
{
    char head[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (slash) {
        const size_t length = slash == path ? 1 : (size_t)(slash - path);
        if (length >= sizeof head) return ENAMETOOLONG;
        memcpy(head, path, length);
        head[length] = '\0';
    }
    if (!*name) return *path ? EISDIR : ENOENT;
    if (!realpath(head, ret_directory)) return errno;
    *ret_name = name;
    return 0;
}

/* One path for all names of a file, also of one that is not there yet behind links that are. 0 or an errno. */
static int resolve(const char *path, char ret_path[PATH_MAX])
{
    char next[PATH_MAX], directory[PATH_MAX], target[PATH_MAX];
    if (strlen(path) >= sizeof next) return ENAMETOOLONG;
    memcpy(next, path, strlen(path) + 1);
    for (uint32_t i = 0; i < LINKS_MAX; i++) {
        const char *name = NULL;
        int error = split(next, directory, &name);
        if (error == 0) error = join(ret_path, directory, name);
        if (error != 0) return error;
        const ssize_t length = readlink(ret_path, target, sizeof target - 1);
        if (length < 0) return errno == EINVAL || errno == ENOENT ? 0 : errno; /* no link, or nothing yet */
        target[length] = '\0';
        if (target[0] == '/') memcpy(next, target, (size_t)length + 1);
        else error = join(next, directory, target);
        if (error != 0) return error;
    }
    return ELOOP;
}

/* ---- One file ---------------------------------------------------------------------------------------------------- */

/* What stands in a place of its own in the file system, as a file given to a container does, cannot be replaced. */
static bool is_mount(const char *path)
{
    struct statx about;
    return statx(AT_FDCWD, path, 0, STATX_TYPE, &about) == 0
        && (about.stx_attributes & about.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* The program's own output by another name: opened once more it would be written over. -1: it is another file. */
static int standard_of(const struct stat *about)
{
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        struct stat standard;
        if (fstat(fd, &standard) == 0 && standard.st_dev == about->st_dev && standard.st_ino == about->st_ino)
            return fd;
    }
    return -1;
}

/* A new file beside file->path, with a name of its own. 0 or an errno. */
static int make_temporary(struct kvt_output_file *file, int *ret_fd)
{
    char directory[PATH_MAX];
    const char *last = NULL;
    int error = split(file->path, directory, &last);
    for (uint32_t n = 0; error == 0 && n < NAMES_MAX; n++) {
        char name[64];
        (void)snprintf(name, sizeof name, ".kvtier-%ld-%u.tmp", (long)getpid(), n);
        error = join(file->temporary, directory, name);
        if (error != 0) break;
        const int fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) {
            *ret_fd = fd;
            return 0;
        }
        if (errno != EEXIST) error = errno;
    }
    file->temporary[0] = '\0';
    return error != 0 ? error : EEXIST;
}

static void remove_temporary(struct kvt_output_file *file)
{
    if (file->temporary[0]) (void)unlink(file->temporary);
    file->temporary[0] = '\0';
}

/* Whether a file can be made beside it; none is left. 0 or an errno. */
static int try_temporary(struct kvt_output_file *file)
{
    int fd = -1;
    const int error = make_temporary(file, &fd);
    if (error != 0) return error;
    (void)close(fd);
    remove_temporary(file);
    return 0;
}

/* Something is there. Opening it asks whether it may be written, and changes nothing. */
static int open_existing(struct kvt_output_file *file, const char *path, const struct stat *about)
{
    const int standard = standard_of(about);
    const int fd = standard >= 0 ? fcntl(standard, F_DUPFD_CLOEXEC, 0) : open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return errno;
    file->has_mode = true;
    file->mode = about->st_mode & 0777;
    file->owner = about->st_uid;
    file->group = about->st_gid;
    file->is_kept = standard >= 0 || !S_ISREG(about->st_mode);
    file->is_direct = file->is_kept || about->st_nlink == 0 || is_mount(path) || resolve(path, file->path) != 0
        || try_temporary(file) != 0;
    if (file->is_direct) file->fd = fd;
    else (void)close(fd);
    return 0;
}

int kvt_output_file_open(struct kvt_output_file *file, const char *path)
{
    struct stat about;
    int error = 0;
    *file = (struct kvt_output_file){ .fd = -1 };
    if (stat(path, &about) == 0) {
        error = open_existing(file, path, &about);
    } else if (errno == ENOENT) {
        error = resolve(path, file->path);
        if (error == 0) error = try_temporary(file);
    } else {
        error = errno;
    }
    file->is_open = error == 0;
    return error;
}

int kvt_output_file_open_option(struct kvt_output_file *file, const char *command, const char *option, const char *path)
{
    const int error = path ? kvt_output_file_open(file, path) : 0;
    if (error == 0) return KVT_EXIT_OK;
    return kvt_usage_error(command, "%s is '%.200s': it cannot be written: %s", option, path, strerror(error));
}

int kvt_output_file_begin(struct kvt_output_file *file, FILE **ret_stream)
{
    KVT_ASSERT(file->is_open && !file->stream);
    int fd = file->fd, error = 0;
    if (!file->is_direct) error = make_temporary(file, &fd);
    else if (!file->is_kept && ftruncate(fd, 0) != 0) error = errno;
    if (error != 0) return error;
    if (!file->is_direct && file->has_mode) {
        /* Only a privileged user may give a file away; for others it is theirs from now on. */
        if (fchown(fd, file->owner, file->group) != 0) errno = 0;
        (void)fchmod(fd, file->mode);
    }
    file->stream = fdopen(fd, "w");
    if (!file->stream) {
        error = errno;
        if (!file->is_direct) (void)close(fd);
        remove_temporary(file);
        return error;
    }
    file->fd = -1;
    *ret_stream = file->stream;
    return 0;
}

int kvt_output_file_commit(struct kvt_output_file *file)
{
    KVT_ASSERT(file->stream);
    errno = 0;
    int error = fflush(file->stream) != 0 || ferror(file->stream) ? errno ? errno : EIO : 0;
    if (fclose(file->stream) != 0 && error == 0) error = errno;
    if (error == 0 && !file->is_direct && rename(file->temporary, file->path) != 0) error = errno;
    if (error == 0) file->temporary[0] = '\0';
    file->stream = NULL;
    kvt_output_file_abandon(file);
    return error;
}

void kvt_output_file_abandon(struct kvt_output_file *file)
{
    if (!file->is_open) return;
    if (file->stream) (void)fclose(file->stream);
    if (file->fd >= 0) (void)close(file->fd);
    remove_temporary(file);
    *file = (struct kvt_output_file){ .fd = -1 };
}

/* ---- Files of one command ---------------------------------------------------------------------------------------- */

static bool is_same(const struct kvt_named_file *a, const struct kvt_named_file *b)
{
    struct stat left, right;
    char left_path[PATH_MAX], right_path[PATH_MAX];
    const bool is_left = stat(a->path, &left) == 0, is_right = stat(b->path, &right) == 0;
    if (is_left != is_right) return false;
    if (!is_left)
        return resolve(a->path, left_path) == 0 && resolve(b->path, right_path) == 0
            && strcmp(left_path, right_path) == 0;
    if (left.st_dev != right.st_dev || left.st_ino != right.st_ino) return false;
    return S_ISREG(left.st_mode) || (a->is_output && b->is_output);
}

int kvt_output_files_check(const char *command, const struct kvt_named_file *files, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++) {
            const struct kvt_named_file *output = &files[i], *other = &files[j];
            if (i == j || !output->is_output || !output->path || !other->path) continue;
            if (other->is_output && j > i) continue; /* seen the other way round */
            if (is_same(output, other))
                return kvt_usage_error(command, "%s is '%.200s': %s %s that file", output->option, output->path,
                                       other->option, other->is_output ? "writes" : "reads");
        }
    }
    return KVT_EXIT_OK;
}
