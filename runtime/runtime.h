/*
 * runtime: the parts of an open runtime, and its lock.
 *
 * Thread: `core` is touched under `lock` only. The tiers' workers call kvt_runtime_wake() and nothing else.
 */
#ifndef KVT_RUNTIME_RUNTIME_H
#define KVT_RUNTIME_RUNTIME_H

#include <pthread.h>

#include "kvtier/kvtier.h"
#include "runtime/core.h"
#include "runtime/fault_log.h"
#include "runtime/tables.h"

struct kvt_options;

struct kvt_runtime {
    struct kvt_env env;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* the core's events grew */
    struct kvt_core core;
    struct kvt_tier *device, *nvme;
    struct kvt_host_tier *host;
    struct kvt_codec *codec;
    struct kvt_tables tables; /* the pump's thread, or the single one */
    struct kvt_fault_log fault_log;
    uint64_t overhead_bytes;  /* of the host budget, besides slots */
    bool is_core_open;
    bool is_modelled; /* the tiers are a caller's */

    uint64_t events_told;   /* core.events that waiters know of */
    uint64_t events_waited; /* core.events at the end of the last kvt_wait */
    int wake_fd;            /* ends the pump's sleep; written by any thread */
    int event_fd;           /* kvt_eventfd */

    pthread_t pump_thread;
    bool is_pump_running;
    bool is_closing;        /* under lock */
    uint64_t pump_timer_ns; /* when the pump wakes by itself; under lock */
    uint32_t fork_count;    /* of the process that opened it */
};

/*
 * Opens a runtime on tiers of the caller's making: a simulator's. The options are resolved as ever; the runtime owns
 * the tiers from then on. is_packing: stashes are asked for in packed form, though there is no codec. parts is borrowed
 * for the call; NULL: what kvt_open() does.
 */
struct kvt_runtime_parts {
    enum kvt_status (*open_device)(void *user, const struct kvt_options *options, struct kvt_tier **ret_tier,
                                   struct kvt_gpu **ret_gpu);
    enum kvt_status (*open_nvme)(void *user, const struct kvt_options *options, struct kvt_tier **ret_tier);
    void *user;
    bool is_packing;
};
KVT_NODISCARD enum kvt_status kvt_runtime_open(const struct kvt_config *config, const struct kvt_runtime_parts *parts,
                                               struct kvt_runtime **ret_runtime, char *ret_error, size_t error_bytes);

/* True in a child of fork(): every call must be refused. */
bool kvt_runtime_is_child(const struct kvt_runtime *runtime);

/* The device's number of an engine's stream. NULL is the default stream; it has a number like any other. FULL | NOMEM. */
KVT_NODISCARD enum kvt_status kvt_runtime_stream_number(struct kvt_runtime *runtime, kvt_stream stream,
                                                        uint32_t *ret_number);

void kvt_runtime_lock(struct kvt_runtime *runtime);
/* Pumps once more, tells waiters, unlocks. */
void kvt_runtime_unlock(struct kvt_runtime *runtime);
/* kvt_stats, under the lock. */
void kvt_runtime_stats(struct kvt_runtime *runtime, struct kvt_stats *ret_stats);
/* One round of the core under the lock. True: there is more to do at once. */
bool kvt_runtime_pump(struct kvt_runtime *runtime);
/* Ends the pump's sleep. Any thread; never blocks. user: the runtime. */
void kvt_runtime_wake(void *user);

/* ---- pump.c: the thread that follows completions ---- */

/* IO: no thread. */
KVT_NODISCARD enum kvt_status kvt_pump_start(struct kvt_runtime *runtime);
void kvt_pump_stop(struct kvt_runtime *runtime);
/* Sleeps until woken, or until timeout_ns has passed. */
void kvt_pump_sleep(struct kvt_runtime *runtime, uint64_t timeout_ns);

#endif
