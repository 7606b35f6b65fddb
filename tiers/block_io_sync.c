/*
 * block_io_sync: block I/O by pread, pwrite and fdatasync, in a few worker threads; where io_uring is refused.
 *
 * The workers take ops from one queue, urgent reads first. One worker is never given bulk, so that an urgent read does
 * not wait behind writes that all workers are stuck in. In a single-threaded env there is no worker: poll carries the
 * ops out itself, and does not wait when there are none.
 *
 * Thread: workers only take from `queue` and put to `done`, under the mutex; they touch nothing else of the caller's.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/block_io_base.h"
#include "tiers/block_io_queue.h"

#define WORKERS_MAX 4u

struct sync_io {
    struct kvt_io_base base;
    uint32_t in_flight; /* from submit until poll hands the op back; the caller's */

    pthread_mutex_t mutex;
    pthread_cond_t has_work, has_news;
    struct kvt_io_queue queue; /* shared: under the mutex, as all that follows */
    struct kvt_io_fifo done;
    uint32_t bulk_running;
    bool is_kicked, is_stopping;

    uint32_t worker_count;
    pthread_t workers[WORKERS_MAX];
};

static struct sync_io *sync_of(struct kvt_block_io *io) { return (struct sync_io *)io; }

/* Carries out one op; ret_ns still holds the time of its submit. */
static void carry_out(struct sync_io *sync, struct kvt_io_op *op)
{
    ssize_t n = -1;
    errno = kvt_io_is_beyond_limit(op) ? EFBIG : EINTR;
    while (n < 0 && errno == EINTR) {
        switch (op->kind) {
        case KVT_IO_READ: n = pread(op->file, op->buffer, op->size, (off_t)op->offset); break;
        case KVT_IO_WRITE: n = pwrite(op->file, op->buffer, op->size, (off_t)op->offset); break;
        case KVT_IO_SYNC: n = fdatasync(op->file); break;
        }
    }
    op->ret_bytes = n < 0 ? -errno : (int32_t)n;
    op->ret_ns = kvt_env_now_ns(&sync->base.env) - op->ret_ns;
}

static void *worker_main(void *argument)
{
    struct sync_io *sync = argument;
    (void)pthread_mutex_lock(&sync->mutex);
    while (!sync->is_stopping) {
        const bool is_bulk_allowed = sync->worker_count == 1 || sync->bulk_running + 1 < sync->worker_count;
        struct kvt_io_op *op = kvt_io_queue_pop(&sync->queue, is_bulk_allowed);
        if (!op) {
            (void)pthread_cond_wait(&sync->has_work, &sync->mutex);
            continue;
        }
        const bool is_bulk = !kvt_io_is_urgent(op);
        sync->bulk_running += is_bulk;
        (void)pthread_mutex_unlock(&sync->mutex);

        carry_out(sync, op);

        (void)pthread_mutex_lock(&sync->mutex);
        sync->bulk_running -= is_bulk;
        kvt_io_fifo_push(&sync->done, op);
        (void)pthread_cond_signal(&sync->has_news);
        /* Bulk that had to wait for this one may be for a worker that sleeps. */
        if (is_bulk && sync->queue.bulk.first) (void)pthread_cond_signal(&sync->has_work);
    }
    (void)pthread_mutex_unlock(&sync->mutex);
    return NULL;
}

static void stop_workers(struct sync_io *sync)
{
    (void)pthread_mutex_lock(&sync->mutex);
    sync->is_stopping = true;
    (void)pthread_cond_broadcast(&sync->has_work);
    (void)pthread_mutex_unlock(&sync->mutex);
    for (uint32_t i = 0; i < sync->worker_count; i++) (void)pthread_join(sync->workers[i], NULL);
}

static void sync_free(struct sync_io *sync)
{
    (void)pthread_cond_destroy(&sync->has_news);
    (void)pthread_cond_destroy(&sync->has_work);
    (void)pthread_mutex_destroy(&sync->mutex);
    kvt_free(sync);
}

/* Starts as many workers as the system gives; false: none. Signals stay with the caller's threads. */
static bool start_workers(struct sync_io *sync, uint32_t wanted)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_mutex_lock(&sync->mutex); /* worker_count is read by workers */
    int error = 0;
    while (sync->worker_count < wanted && !error) {
        error = pthread_create(&sync->workers[sync->worker_count], NULL, worker_main, sync);
        if (!error) sync->worker_count++;
    }
    (void)pthread_mutex_unlock(&sync->mutex);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (sync->worker_count == 0) errno = error;
    return sync->worker_count > 0;
}

static enum kvt_status sync_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                 struct kvt_block_io **ret_io)
{
    struct sync_io *sync = kvt_alloc(1, sizeof *sync);
    if (!sync) {
        errno = ENOMEM;
        return KVT_NOMEM;
    }
    const enum kvt_status status = kvt_io_base_init(&sync->base, &kvt_block_io_sync_ops, "threads", config, env);
    if (status != KVT_OK) {
        const int error = errno;
        kvt_free(sync);
        errno = error;
        return status;
    }
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&sync->mutex, NULL);
    (void)pthread_cond_init(&sync->has_work, NULL);
    (void)pthread_cond_init(&sync->has_news, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);

    if (!env->is_single_threaded && !start_workers(sync, kvt_min_u32(WORKERS_MAX, config->queue_depth))) {
        const int error = errno;
        kvt_io_base_done(&sync->base);
        sync_free(sync);
        errno = error;
        return KVT_NOMEM;
    }
    *ret_io = &sync->base.io;
    return KVT_OK;
}

static void sync_close(struct kvt_block_io *io)
{
    struct sync_io *sync = sync_of(io);
    stop_workers(sync); /* each ends with the op it is in: nothing touches a buffer from here on */
    struct kvt_io_op *op;
    while ((op = kvt_io_queue_pop(&sync->queue, true)) != NULL) op->ret_bytes = -ECANCELED;
    kvt_io_base_done(&sync->base);
    sync_free(sync);
}

static enum kvt_status sync_submit(struct kvt_block_io *io, struct kvt_io_op *op)
{
    struct sync_io *sync = sync_of(io);
    kvt_io_check_op(op, sync->base.facts.alignment);
    if (sync->in_flight == sync->base.queue_depth) return KVT_FULL;
    sync->in_flight++;
    op->ret_ns = kvt_env_now_ns(&sync->base.env);
    (void)pthread_mutex_lock(&sync->mutex);
    kvt_io_queue_push(&sync->queue, op);
    (void)pthread_cond_signal(&sync->has_work);
    (void)pthread_mutex_unlock(&sync->mutex);
    return KVT_OK;
}

static struct timespec monotonic_after(uint64_t wait_ns)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    const uint64_t ns = (uint64_t)at.tv_nsec + wait_ns % 1000000000u;
    at.tv_sec += (time_t)(kvt_min_u64(wait_ns / 1000000000u, INT32_MAX) + ns / 1000000000u);
    at.tv_nsec = (long)(ns % 1000000000u);
    return at;
}

static uint32_t sync_poll(struct kvt_block_io *io, struct kvt_io_op **ret_done, uint32_t max, uint64_t wait_ns)
{
    struct sync_io *sync = sync_of(io);
    uint32_t n = 0;
    (void)pthread_mutex_lock(&sync->mutex);
    if (sync->worker_count == 0) {
        struct kvt_io_op *op;
        while (n < max && (op = kvt_io_queue_pop(&sync->queue, true)) != NULL) {
            carry_out(sync, op);
            ret_done[n++] = op;
        }
    } else {
        if (wait_ns > 0 && !sync->done.first) {
            const struct timespec until = monotonic_after(wait_ns);
            int error = 0;
            while (!sync->done.first && !sync->is_kicked && error != ETIMEDOUT) {
                error = pthread_cond_timedwait(&sync->has_news, &sync->mutex, &until);
            }
        }
        n = kvt_io_fifo_pop_many(&sync->done, ret_done, max);
    }
    sync->is_kicked = false;
    (void)pthread_mutex_unlock(&sync->mutex);
    sync->in_flight -= n;
    return n;
}

static void sync_kick(struct kvt_block_io *io)
{
    struct sync_io *sync = sync_of(io);
    (void)pthread_mutex_lock(&sync->mutex);
    sync->is_kicked = true;
    (void)pthread_cond_signal(&sync->has_news);
    (void)pthread_mutex_unlock(&sync->mutex);
}

const struct kvt_block_io_ops kvt_block_io_sync_ops = {
    .name = "threads",
    .open = sync_open,
    .close = sync_close,
    .facts = kvt_io_base_facts,
    .open_file = kvt_io_base_open_file,
    .close_file = kvt_io_base_close_file,
    .allocate = kvt_io_base_allocate,
    .remove_file = kvt_io_base_remove_file,
    .sync_directory = kvt_io_base_sync_directory,
    .submit = sync_submit,
    .poll = sync_poll,
    .kick = sync_kick,
};
