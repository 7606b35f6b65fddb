/*
 * env: everything nondeterministic that enters kvtier. Swap it and the whole program becomes a simulation.
 *
 * Each member may be left zero: kvt_env_default() says what the real one is. The struct is borrowed by a runtime
 * from open to close.
 */
#ifndef KVT_RUNTIME_BASE_ENV_H
#define KVT_RUNTIME_BASE_ENV_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_block_io_ops; /* tiers/block_io.h */
struct kvt_gpu_ops;      /* kernels/gpu.h */

enum kvt_log_level { KVT_LOG_ERROR, KVT_LOG_WARN, KVT_LOG_INFO, KVT_LOG_DEBUG };

/* A transfer that is over: one leg between two tiers, or a copy within the device. */
struct kvt_transfer_event {
    uint32_t from, to; /* KVT_TIER_... of kvtier.h */
    uint32_t priority; /* enum kvt_op_priority */
    int32_t status;    /* enum kvt_status; what did not end with KVT_OK moved nothing that counts */
    uint32_t block, group;
    uint64_t begun_ns, ended_ns; /* on the runtime's clock: queued, and seen to be done */
    uint64_t link_ns, codec_ns;  /* of that on the link, and packing or unpacking */
    uint64_t bytes;              /* as they crossed; 0 for a copy within the device */
};

struct kvt_env {
    /* Monotonic time in nanoseconds, any thread. NULL: CLOCK_MONOTONIC. */
    uint64_t (*now_ns)(void *clock_user);
    void *clock_user;

    /* One line of text without its newline, any thread. NULL: silent. */
    void (*log)(void *log_user, enum kvt_log_level level, const char *line);
    void *log_user;

    /* NULL: io_uring with O_DIRECT, or what the probe at open finds to work instead. */
    const struct kvt_block_io_ops *block_io;
    void *block_io_user;

    /* NULL: the first device that is built in and present; today the emulated one. */
    const struct kvt_gpu_ops *gpu;

    /* True: no thread is started anywhere; polling a tier does its work in the caller's thread. */
    bool is_single_threaded;

    /*
     * Single-threaded only: time passes on the clock, at most so much, until a tier has something to give or the runtime wants
     * to be called. NULL: waiting takes no time.
     */
    void (*pass)(void *clock_user, uint64_t timeout_ns);

    /*
     * Told of each transfer that is over, under the runtime's lock, in whatever thread: must be short and must not call
     * the runtime. NULL: nobody watches, and nothing is gathered.
     */
    void (*on_transfer)(void *transfer_user, const struct kvt_transfer_event *event);
    void *transfer_user;

    /* Seed of the few random choices. 0 is a seed like any other. */
    uint64_t seed;
};

/* The real world: CLOCK_MONOTONIC, no log, real devices, threads. */
struct kvt_env kvt_env_default(void);

static inline uint64_t kvt_env_now_ns(const struct kvt_env *env) { return env->now_ns(env->clock_user); }

/* Formats one line and hands it to env->log; nothing happens when there is none. */
void kvt_log(const struct kvt_env *env, enum kvt_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
