#include "tools/run/metrics_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime/base/mem.h"
#include "tools/output_file.h"

#define TEXT_BYTES (128u * 1024u)

struct kvt_metrics_file {
    struct kvt_runtime *runtime;
    const char *path;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_ending; /* under lock */
    char text[TEXT_BYTES];
};

/* 0, or an errno: then the file is as it was. */
static int write_once(struct kvt_metrics_file *file)
{
    const size_t length = kvt_metrics_text(file->runtime, file->text, sizeof file->text);
    if (length >= sizeof file->text) return EFBIG;
    struct kvt_output_file output;
    FILE *stream = NULL;
    int error = kvt_output_file_open(&output, file->path);
    /* Who reads must find it whole at any time. */
    if (error == 0 && output.is_direct) error = EACCES;
    if (error == 0) error = kvt_output_file_begin(&output, &stream);
    if (error == 0) {
        (void)fwrite(file->text, 1, length, stream);
        error = kvt_output_file_commit(&output);
    }
    kvt_output_file_abandon(&output);
    return error;
}

static void *write_on(void *user)
{
    struct kvt_metrics_file *file = user;
    (void)pthread_mutex_lock(&file->lock);
    while (!file->is_ending) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        (void)pthread_cond_timedwait(&file->changed, &file->lock, &until);
        (void)pthread_mutex_unlock(&file->lock);
        /* A full disk later on must not end the run: the file then says how old it is. */
        (void)write_once(file);
        (void)pthread_mutex_lock(&file->lock);
    }
    (void)pthread_mutex_unlock(&file->lock);
    return NULL;
}

int kvt_metrics_file_start(struct kvt_runtime *runtime, const char *path, struct kvt_metrics_file **ret_file)
{
    struct kvt_metrics_file *file = kvt_alloc(1, sizeof *file);
    if (!file) return ENOMEM;
    file->runtime = runtime;
    file->path = path;
    /* Renaming would put a file in the place of a device or a pipe. */
    struct stat about;
    const bool is_taken = stat(path, &about) == 0 && !S_ISREG(about.st_mode);
    int error = 0;
    if (is_taken) error = S_ISDIR(about.st_mode) ? EISDIR : ENOTSUP;
    else error = write_once(file);
    if (error == 0) {
        (void)pthread_mutex_init(&file->lock, NULL);
        (void)pthread_cond_init(&file->changed, NULL);
        error = pthread_create(&file->thread, NULL, write_on, file);
    }
    if (error != 0) {
        kvt_free(file);
        return error;
    }
    *ret_file = file;
    return 0;
}

void kvt_metrics_file_stop(struct kvt_metrics_file **file_pointer)
{
    struct kvt_metrics_file *file = *file_pointer;
    if (!file) return;
    *file_pointer = NULL;
    (void)pthread_mutex_lock(&file->lock);
    file->is_ending = true;
    (void)pthread_cond_signal(&file->changed);
    (void)pthread_mutex_unlock(&file->lock);
    (void)pthread_join(file->thread, NULL);
    (void)pthread_cond_destroy(&file->changed);
    (void)pthread_mutex_destroy(&file->lock);
    kvt_free(file);
}
