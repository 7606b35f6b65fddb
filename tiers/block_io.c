/*
 * block_io: which implementation a directory gets, found by using it.
 *
 * The candidates are tried in order of speed. Each is opened and must write, sync and read back a small file within the
 * time limit. That happens in a thread of its own: a directory on a dead mount hangs system calls, and such a thread is
 * left behind, with everything it uses, instead of the caller.
 */
#include "tiers/block_io.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tiers/block_io_base.h"

/* Submits one op and waits for it until end_ns. 0, or an errno. */
static int probe_op(struct kvt_block_io *io, const struct kvt_env *env, uint64_t end_ns, struct kvt_io_op *op)
{
    if (io->ops->submit(io, op) != KVT_OK) return EIO;
    while (true) {
        const uint64_t now_ns = kvt_env_now_ns(env);
        if (now_ns >= end_ns) return ETIMEDOUT;
        struct kvt_io_op *done;
        if (io->ops->poll(io, &done, 1, end_ns - now_ns) == 0) continue;
        KVT_ASSERT(done == op);
        if (op->ret_bytes < 0) return -op->ret_bytes;
        if (op->kind == KVT_IO_SYNC) return 0;
        if (op->ret_bytes == (int32_t)op->size) return 0;
        return op->kind == KVT_IO_WRITE ? ENOSPC : EIO;
    }
}

static uint8_t probe_byte(uint32_t index) { return (uint8_t)(index * 73 + 11); }

static int probe_file(struct kvt_block_io *io, const struct kvt_env *env, uint64_t end_ns, int file,
                      struct kvt_io_op *op, uint8_t *buffer, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) buffer[i] = probe_byte(i);
    *op = (struct kvt_io_op){ .kind = KVT_IO_WRITE, .file = file, .offset = size, .buffer = buffer, .size = size };
    int error = probe_op(io, env, end_ns, op);
    if (error) return error == ENOSPC || error == EDQUOT ? 0 : error;

    *op = (struct kvt_io_op){ .kind = KVT_IO_SYNC, .file = file };
    error = probe_op(io, env, end_ns, op);
    if (error) return error;

    memset(buffer, 0, size);
    *op = (struct kvt_io_op){
        .kind = KVT_IO_READ, .file = file, .offset = size, .buffer = buffer, .size = size, .is_urgent = true
    };
    error = probe_op(io, env, end_ns, op);
    for (uint32_t i = 0; i < size && !error; i++) {
        if (buffer[i] != probe_byte(i)) error = EIO;
    }
    return error;
}

enum kvt_status kvt_block_io_probe(struct kvt_block_io *io, const struct kvt_env *env, uint64_t limit_ns,
                                   int *ret_errno)
{
    /* The op and the buffer live together, so that both can be left to an I/O that does not come back. */
    struct probe_memory {
        struct kvt_io_op op;
        uint8_t bytes[3 * KVT_IO_ALIGNMENT_MAX];
    };
    struct kvt_block_io_facts facts;
    io->ops->facts(io, &facts);
    struct probe_memory *memory = kvt_alloc(1, sizeof *memory);
    if (!memory) {
        *ret_errno = ENOMEM;
        return KVT_NOMEM;
    }
    int file, error = 0, ignored;
    enum kvt_status status = io->ops->open_file(io, KVT_IO_PROBE_NAME, true, &file, &error);
    if (status != KVT_OK && error == EEXIST) {
        (void)io->ops->remove_file(io, KVT_IO_PROBE_NAME, &ignored);
        status = io->ops->open_file(io, KVT_IO_PROBE_NAME, true, &file, &error);
    }
    if (status != KVT_OK && (error == ENOSPC || error == EDQUOT)) error = 0;
    if (status == KVT_OK) {
        (void)io->ops->remove_file(io, KVT_IO_PROBE_NAME, &ignored);
        /* Aligned to what the facts say and no more. */
        uint8_t *buffer = (uint8_t *)kvt_align_up((uintptr_t)memory->bytes, KVT_IO_ALIGNMENT_MAX) + facts.alignment;
        error = probe_file(io, env, kvt_env_now_ns(env) + limit_ns, file, &memory->op, buffer, facts.alignment);
        if (error == ETIMEDOUT) {
            *ret_errno = error;
            return KVT_IO;
        }
        io->ops->close_file(io, file);
    }
    kvt_free(memory);
    if (!error) return KVT_OK;
    *ret_errno = error;
    return KVT_IO;
}

/* One attempt, shared by the thread that makes it and the one that waits for it. */
struct attempt {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool has_ended, is_abandoned; /* shared: under the mutex; the last of the two to leave frees */

    const struct kvt_block_io_ops *ops;
    struct kvt_block_io_config config;
    struct kvt_env env;
    uint64_t limit_ns;

    enum kvt_status status; /* valid once has_ended */
    int error;
    struct kvt_block_io *io;
};

static void attempt_run(struct attempt *attempt)
{
    struct kvt_block_io *io;
    errno = 0;
    attempt->status = attempt->ops->open(&attempt->config, &attempt->env, &io);
    attempt->error = errno;
    if (attempt->status != KVT_OK) return;
    attempt->status = kvt_block_io_probe(io, &attempt->env, attempt->limit_ns, &attempt->error);
    if (attempt->status == KVT_OK) attempt->io = io;
    else if (attempt->error != ETIMEDOUT) io->ops->close(io);
}

static void attempt_free(struct attempt *attempt)
{
    (void)pthread_cond_destroy(&attempt->ended);
    (void)pthread_mutex_destroy(&attempt->mutex);
    kvt_free((char *)attempt->config.directory);
    kvt_free(attempt);
}

static void *attempt_main(void *argument)
{
    struct attempt *attempt = argument;
    attempt_run(attempt);
    (void)pthread_mutex_lock(&attempt->mutex);
    const bool is_abandoned = attempt->is_abandoned;
    attempt->has_ended = true;
    (void)pthread_cond_signal(&attempt->ended);
    (void)pthread_mutex_unlock(&attempt->mutex);
    if (is_abandoned) {
        if (attempt->status == KVT_OK) attempt->io->ops->close(attempt->io);
        attempt_free(attempt);
    }
    return NULL;
}

/* Runs the attempt in a thread; false: it did not end in time and is no longer ours. */
static bool attempt_run_within(struct attempt *attempt)
{
    sigset_t all, before;
    pthread_t thread;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, attempt_main, attempt);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        attempt_run(attempt); /* no thread to be had: better unguarded than not at all */
        return true;
    }
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + attempt->limit_ns;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);

    (void)pthread_mutex_lock(&attempt->mutex);
    int waited = 0;
    while (!attempt->has_ended && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&attempt->ended, &attempt->mutex, &until);
    const bool has_ended = attempt->has_ended;
    attempt->is_abandoned = !has_ended;
    (void)pthread_mutex_unlock(&attempt->mutex);
    if (has_ended) (void)pthread_join(thread, NULL);
    else (void)pthread_detach(thread);
    return has_ended;
}

enum kvt_status kvt_block_io_open_within(const struct kvt_block_io_ops *ops, const struct kvt_block_io_config *config,
                                         const struct kvt_env *env, uint64_t limit_ns, struct kvt_block_io **ret_io,
                                         int *ret_errno)
{
    struct attempt *attempt = kvt_alloc(1, sizeof *attempt);
    char *directory = config->directory ? kvt_strdup(config->directory) : NULL;
    if (!attempt || (config->directory && !directory)) {
        kvt_free(directory);
        kvt_free(attempt);
        *ret_errno = ENOMEM;
        return KVT_NOMEM;
    }
    attempt->ops = ops;
    attempt->config = *config;
    attempt->config.directory = directory;
    /* An attempt that is left behind may outlive the caller's clock and log. */
    attempt->env = *env;
    attempt->env.now_ns = kvt_env_default().now_ns;
    attempt->env.clock_user = NULL;
    attempt->env.log = NULL;
    attempt->limit_ns = limit_ns;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&attempt->mutex, NULL);
    (void)pthread_cond_init(&attempt->ended, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);

    if (env->is_single_threaded) {
        attempt_run(attempt);
    } else if (!attempt_run_within(attempt)) {
        *ret_errno = ETIMEDOUT;
        return KVT_IO;
    }
    const enum kvt_status status = attempt->status;
    if (status == KVT_OK) *ret_io = attempt->io;
    else *ret_errno = attempt->error;
    attempt_free(attempt);
    return status;
}

static enum kvt_status open_best(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                 struct kvt_block_io **ret_io)
{
    static const struct kvt_block_io_ops *const candidates[] = { &kvt_block_io_uring_ops, &kvt_block_io_sync_ops };
    char refusal[96] = "";
    enum kvt_status status = KVT_IO;
    int error = 0;
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(candidates); i++) {
        status = kvt_block_io_open_within(candidates[i], config, env, KVT_IO_PROBE_LIMIT_NS, ret_io, &error);
        if (status == KVT_OK) {
            struct kvt_io_base *base = (struct kvt_io_base *)*ret_io;
            base->env = *env;
            if (refusal[0]) kvt_io_facts_add_note(&base->facts, "%s", refusal);
            return KVT_OK;
        }
        /* the next one would meet the same */
        if (status == KVT_INVAL || status == KVT_NOMEM || error == ETIMEDOUT) break;
        char text[48];
        (void)snprintf(refusal, sizeof refusal, "%s refused (%s)", candidates[i]->name,
                       strerror_r(error, text, sizeof text));
        kvt_log(env, KVT_LOG_INFO, "block I/O in %s: %s", config->directory, refusal);
    }
    errno = error;
    return status;
}

enum kvt_status kvt_block_io_open(const struct kvt_block_io_config *config, const struct kvt_env *env,
                                  struct kvt_block_io **ret_io)
{
    struct kvt_block_io *io;
    KVT_TRY(env->block_io ? env->block_io->open(config, env, &io) : open_best(config, env, &io));
    if (config->link_bytes_per_s > 0) {
        struct kvt_block_io *paced;
        const enum kvt_status status = kvt_block_io_pace(io, config->queue_depth, config->link_bytes_per_s, env,
                                                         &paced);
        if (status != KVT_OK) {
            io->ops->close(io);
            return status;
        }
        io = paced;
    }
    *ret_io = io;
    return KVT_OK;
}
