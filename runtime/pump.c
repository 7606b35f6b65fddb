/*
 * pump: a small thread that wakes on completions and timers, so that a chain nvme -> host -> device advances while the
 *       engine
 * computes. It decides nothing: it takes the lock and pumps the core, as every call does.
 */
#include <poll.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "runtime/runtime.h"

#define SLEEP_NS_MAX (UINT64_C(1000000000))

void kvt_pump_sleep(struct kvt_runtime *runtime, uint64_t timeout_ns)
{
    struct pollfd wake = { .fd = runtime->wake_fd, .events = POLLIN };
    const struct timespec timeout = { (time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u) };
    (void)ppoll(&wake, 1, &timeout, NULL);
    uint64_t count;
    (void)!read(runtime->wake_fd, &count, sizeof count);
}

static void *pump(void *user)
{
    struct kvt_runtime *runtime = user;
    (void)pthread_mutex_lock(&runtime->lock);
    while (!runtime->is_closing) {
        uint64_t sleep_ns = 0;
        if (!kvt_runtime_pump(runtime)) {
            const uint64_t now_ns = kvt_env_now_ns(&runtime->env);
            const uint64_t timer_ns = kvt_core_next_timer(&runtime->core);
            sleep_ns = timer_ns > now_ns ? kvt_min_u64(timer_ns - now_ns, SLEEP_NS_MAX) : 0;
            runtime->pump_timer_ns = now_ns + sleep_ns;
        }
        (void)pthread_mutex_unlock(&runtime->lock);
        /* Between two rounds the lock is free, so that callers get their turn. */
        kvt_tables_save(&runtime->tables);
        if (sleep_ns > 0) kvt_pump_sleep(runtime, sleep_ns);
        (void)pthread_mutex_lock(&runtime->lock);
        runtime->pump_timer_ns = 0;
    }
    (void)pthread_mutex_unlock(&runtime->lock);
    return NULL;
}

enum kvt_status kvt_pump_start(struct kvt_runtime *runtime)
{
    if (pthread_create(&runtime->pump_thread, NULL, pump, runtime) != 0) return KVT_IO;
    runtime->is_pump_running = true;
    return KVT_OK;
}

void kvt_pump_stop(struct kvt_runtime *runtime)
{
    if (!runtime->is_pump_running) return;
    (void)pthread_mutex_lock(&runtime->lock);
    runtime->is_closing = true;
    (void)pthread_mutex_unlock(&runtime->lock);
    kvt_runtime_wake(runtime);
    (void)pthread_join(runtime->pump_thread, NULL);
    runtime->is_pump_running = false;
}
