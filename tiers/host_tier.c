#include "tiers/host_tier.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; an older kernel refuses it */
#endif

#define PAGE_BYTES (4 * KVT_KIB)

/* Between two looks at is_stopping: a few milliseconds of faulting even where each huge page has to be made first. */
#define SLICE_BYTES (4 * KVT_MIB)

struct kvt_host_tier {
    struct kvt_host_tier_config config;
    struct kvt_env env;
    uint8_t *memory;
    size_t memory_bytes;
    uint32_t chunk_count;
    pthread_t worker;
    bool has_worker;
    _Atomic uint32_t ready_chunks;  /* shared: written by the worker, after the chunk's pages are there */
    _Atomic uint32_t pinned_chunks; /* shared: likewise */
    _Atomic bool is_stopping;       /* shared: set by close */
    _Atomic bool is_growing;        /* shared: the worker may prepare more chunks */
};

static void touch(uint8_t *memory, size_t size_bytes)
{
    for (size_t at = 0; at < size_bytes; at += PAGE_BYTES) *(volatile uint8_t *)(memory + at) = 0;
}

/* Faults the chunk's pages in. False: stopped, or the system has no memory left. */
static bool populate_chunk(struct kvt_host_tier *host, uint8_t *chunk)
{
    for (uint64_t at = 0; at < host->config.chunk_bytes; at += SLICE_BYTES) {
        if (atomic_load(&host->is_stopping)) return false;
        const size_t slice_bytes = kvt_min_u64(SLICE_BYTES, host->config.chunk_bytes - at);
        if (madvise(chunk + at, slice_bytes, MADV_POPULATE_WRITE) == 0) continue;
        if (errno == EINVAL) {
            touch(chunk + at, slice_bytes);
        } else if (errno != EINTR && errno != EAGAIN) {
            kvt_log(&host->env, KVT_LOG_WARN, "host memory ends at %u of %u chunks: %s",
                    atomic_load(&host->ready_chunks), host->chunk_count, strerror(errno));
            return false;
        } else {
            at -= SLICE_BYTES; /* interrupted: the slice again */
        }
    }
    return true;
}

/* Pins a chunk, or says once why it and those behind it stay pageable. */
static bool pin_chunk(struct kvt_host_tier *host, uint32_t i, uint8_t *chunk)
{
    const struct kvt_host_pin *pin = &host->config.pin;
    if (!pin->pin) {
        if (mlock(chunk, host->config.chunk_bytes) == 0) return true;
        kvt_log(&host->env, KVT_LOG_WARN,
                "only %u of %u chunks of host memory are pinned (%s): raise the memlock limit", i, host->chunk_count,
                strerror(errno));
        return false;
    }
    if (pin->pin(pin->user, chunk, host->config.chunk_bytes)) return true;
    kvt_log(&host->env, KVT_LOG_WARN,
            "only %u of %u chunks of host memory are pinned (the device refused): copies of the others take longer", i,
            host->chunk_count);
    return false;
}

static void *worker_main(void *user)
{
    struct kvt_host_tier *host = user;
    bool is_pinning = host->config.is_pinning_wanted;
    const uint64_t start_ns = kvt_env_now_ns(&host->env);
    for (uint32_t i = 0; i < host->chunk_count; i++) {
        uint8_t *chunk = host->memory + i * host->config.chunk_bytes;
        if (!populate_chunk(host, chunk)) break;
        if (is_pinning) is_pinning = pin_chunk(host, i, chunk);
        if (is_pinning) atomic_store(&host->pinned_chunks, i + 1);
        atomic_store(&host->ready_chunks, i + 1);
        if (host->config.wake.wake) host->config.wake.wake(host->config.wake.user);
    }
    /* It ended before all of it was there: whoever waits for more is told that none will come. */
    atomic_store(&host->is_growing, false);
    const bool is_short = atomic_load(&host->ready_chunks) < host->chunk_count && !atomic_load(&host->is_stopping);
    if (is_short && host->config.wake.wake) host->config.wake.wake(host->config.wake.user);
    const uint64_t ready_bytes = atomic_load(&host->ready_chunks) * host->config.chunk_bytes;
    kvt_log(&host->env, KVT_LOG_INFO, "host memory: %.2f GiB ready in %.2f s, %u of %u chunks pinned",
            (double)ready_bytes / (double)KVT_GIB, (double)(kvt_env_now_ns(&host->env) - start_ns) / 1e9,
            atomic_load(&host->pinned_chunks), host->chunk_count);
    return NULL;
}

enum kvt_status kvt_host_tier_open(const struct kvt_host_tier_config *config, const struct kvt_env *env,
                                   struct kvt_host_tier **ret_host)
{
    if (config->chunk_bytes == 0 || !kvt_is_aligned(config->chunk_bytes, PAGE_BYTES)) return KVT_INVAL;
    const uint64_t chunk_count = config->capacity_bytes / config->chunk_bytes;
    if (chunk_count == 0 || chunk_count > UINT32_MAX) return KVT_INVAL;

    struct kvt_host_tier *host = kvt_alloc(1, sizeof *host);
    if (!host) return KVT_NOMEM;
    host->config = *config;
    host->env = *env;
    if (!host->env.now_ns) host->env.now_ns = kvt_env_default().now_ns;
    host->chunk_count = (uint32_t)chunk_count;
    host->memory_bytes = chunk_count * config->chunk_bytes;
    host->memory = kvt_table_map(host->memory_bytes);
    if (!host->memory) {
        kvt_free(host);
        return KVT_NOMEM;
    }
    host->is_growing = !env->is_single_threaded;
    if (env->is_single_threaded) {
        host->ready_chunks = host->chunk_count;
    } else if (pthread_create(&host->worker, NULL, worker_main, host) == 0) {
        host->has_worker = true;
    } else {
        kvt_table_unmap(host->memory, host->memory_bytes);
        kvt_free(host);
        return KVT_NOMEM;
    }
    *ret_host = host;
    return KVT_OK;
}

void kvt_host_tier_close(struct kvt_host_tier **host)
{
    struct kvt_host_tier *h = *host;
    if (!h) return;
    *host = NULL;
    atomic_store(&h->is_stopping, true);
    if (h->has_worker) (void)pthread_join(h->worker, NULL);
    const struct kvt_host_pin *pin = &h->config.pin;
    for (uint32_t i = pin->pin ? atomic_load(&h->pinned_chunks) : 0; i-- > 0;)
        pin->unpin(pin->user, h->memory + i * h->config.chunk_bytes, h->config.chunk_bytes);
    kvt_table_unmap(h->memory, h->memory_bytes); /* unlocks, too */
    kvt_free(h);
}

uint32_t kvt_host_tier_chunk_count(const struct kvt_host_tier *host) { return host->chunk_count; }

uint32_t kvt_host_tier_ready_chunks(const struct kvt_host_tier *host) { return atomic_load(&host->ready_chunks); }

bool kvt_host_tier_is_growing(const struct kvt_host_tier *host) { return atomic_load(&host->is_growing); }

uint32_t kvt_host_tier_pinned_chunks(const struct kvt_host_tier *host) { return atomic_load(&host->pinned_chunks); }

void *kvt_host_tier_chunk(const struct kvt_host_tier *host, uint32_t chunk)
{
    KVT_ASSERT(chunk < kvt_host_tier_ready_chunks(host));
    return host->memory + chunk * host->config.chunk_bytes;
}
